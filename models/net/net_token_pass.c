/* net_token_pass.c - passes of the device over listed tokens: embedding, then a product. */
#include "models/net/net_token_pass.h"

#include "models/net/net_mixer.h"

static void describe(net_token_pass *p, char *base)
{
    const spec_model *m = p->net->base.model;
    net_memory memory = { .work = { .base = base } };
    net_emitter e = { .memory = &memory };
    p->x = speci_net_tensor(&e, p->rows, p->wide, SPEC_DTYPE_F32);
    p->x_in = speci_net_tensor(&e, p->rows, p->wide, m->dtype);
    p->y = speci_net_tensor(&e, p->rows, p->n_out, p->out);
    p->bytes = memory.work.n;
    p->ops[0] = (spec_op){ .kind = SPEC_OP_EMBED,
                           .u.embed = { .table = p->table, .n_vocab = m->n_vocab, .dim = p->wide, .scale = 1, .y = p->x } };
    p->ops[1] = (spec_op){ .kind = SPEC_OP_KEEP, .u.keep = { .dim = p->wide, .x = p->x, .y = p->x_in } };
    p->ops[2] = (spec_op){ .kind = SPEC_OP_LINEAR,
                           .u.linear = { .w = p->w, .n_in = p->wide, .n_out = p->n_out, .scale = 1, .x = p->x_in, .y = p->y } };
}

spec_status speci_net_token_pass_open(net_token_pass *p)
{
    const net_exec *net = p->net;
    describe(p, NULL);
    const spec_plan plan = { .ops = p->ops, .n_op = 3, .phase = SPEC_PHASE_PREFILL, .n_row_max = p->rows, .n_seq_max = 1,
                             .n_node_max = net->shape.n_cache };
    SPEC_TRY(net->ops->queue_open(net->dev, &p->queue, &plan, 1, 1));
    SPEC_TRY(net->ops->alloc(net->dev, &p->memory, p->bytes));
    describe(p, p->memory);
    for (int i = 0; i < 3; i++) SPEC_TRY(speci_op_supports(net->ops, net->dev, &p->ops[i]));
    return SPEC_OK;
}

void speci_net_token_pass_close(net_token_pass *p)
{
    const net_exec *net = p->net;
    if (p->queue) net->ops->queue_close(p->queue);
    if (p->memory) net->ops->free(net->dev, p->memory, p->bytes);
}

spec_status speci_net_token_pass_run(net_token_pass *p, const int32_t *ids, int32_t n)
{
    const net_exec *net = p->net;
    speci_net_describe_prefill(p->net, 0, ids, n, p->rows);
    SPEC_TRY(net->ops->step_bind(p->queue, net->block));
    for (int i = 0; i < 3; i++) SPEC_TRY(speci_op_run(net->ops, p->queue, &p->ops[i], net->block));
    return SPEC_OK;
}
