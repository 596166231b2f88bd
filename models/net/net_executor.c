/* net_executor.c - a model at work: opened (which plans it), attached (which takes the device's memory), closed. */
#include "models/net/net.h"

void speci_net_memory(const speci_exec *exec, spec_memory *out)
{
    const net_exec *net = exec->state;
    out->bytes_model += speci_net_info_bytes(net);
    out->bytes_work += net->memory.work.n;
    out->bytes_state += net->memory.state.n;
    out->bytes_kv += net->memory.kv.n;
}

static spec_status alloc_host(net_exec *net)
{
    const net_shape *s = &net->shape;
    net_plans *plans = &net->plans;
    for (int i = 0; i < NET_PLANS; i++)
        if (!(plans->ops[i] = speci_alloc(net->a, (size_t)plans->n_op[i], sizeof(spec_op)))) return SPEC_E_NOMEM;
    if (!(plans->kv = speci_alloc(net->a, (size_t)plans->n_kv, sizeof(spec_kv)))) return SPEC_E_NOMEM;
    if (!(plans->kept = speci_alloc(net->a, (size_t)plans->n_kept, sizeof(net_kept)))) return SPEC_E_NOMEM;
    if (!(net->to_zero = speci_alloc(net->a, (size_t)plans->n_zeroed, sizeof(spec_range)))) return SPEC_E_NOMEM;
    if (!(net->seqs = speci_alloc(net->a, (size_t)s->n_seq, sizeof(net_seq)))) return SPEC_E_NOMEM;
    if (!(net->base.first_row = speci_alloc(net->a, (size_t)s->n_seq, sizeof(int32_t)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        net_seq *q = &net->seqs[i];
        if (!(q->path = speci_alloc(net->a, (size_t)s->n_node, sizeof(int32_t)))) return SPEC_E_NOMEM;
        if (s->joint && !(q->token = speci_alloc(net->a, (size_t)s->n_node, sizeof(int32_t)))) return SPEC_E_NOMEM;
        if (!(q->page = speci_alloc(net->a, (size_t)s->n_page_seq, sizeof(int32_t)))) return SPEC_E_NOMEM;
    }
    if (!(net->free_pages = speci_alloc(net->a, (size_t)s->n_page, sizeof(int32_t)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_page; i++) net->free_pages[net->n_free++] = s->n_page - 1 - i;
    net->block_cap = speci_net_block_bytes(s);
    if (net->block_cap > INT32_MAX)
        return speci_fail(SPEC_E_INVALID, "a context of %d positions is more than a step can describe", s->n_ctx);
    return (net->block = speci_alloc(net->a, 1, net->block_cap)) ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status alloc_device(net_exec *net)
{
    net_arena *arenas[] = { &net->memory.work, &net->memory.state, &net->memory.kv };
    for (size_t i = 0; i < 3; i++) {
        void *p = NULL;
        if (arenas[i]->n > 0) SPEC_TRY(net->ops->alloc(net->dev, &p, arenas[i]->n));
        arenas[i]->base = p;
    }
    return SPEC_OK;
}

/* Abilities are asked once, here; decode passes then fail for the device's own reasons only. */
static spec_status check_abilities(const net_exec *net)
{
    for (int i = 0; i < 2; i++)
        for (int32_t j = 0; j < net->plans.n_op[i]; j++) SPEC_TRY(speci_op_supports(net->ops, net->dev, &net->plans.ops[i][j]));
    return SPEC_OK;
}

static void list_plans(net_exec *net)
{
    const net_shape *s = &net->shape;
    for (int i = 0; i < NET_PLANS; i++) {
        const bool prefill = i == SPEC_PHASE_PREFILL;
        net->plan[i] = (spec_plan){ .ops = net->plans.ops[i], .n_op = net->plans.n_op[i],
                                    .phase = prefill ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE,
                                    .n_row_max = prefill ? s->chunk : s->n_row_decode, .n_seq_max = prefill ? 1 : s->n_seq,
                                    .n_node_max = s->n_cache, .n_kv_max = s->n_page_seq * SPEC_PAGE };
    }
    for (int32_t i = 0; i < net->plans.n_op[SPEC_PHASE_DECODE]; i++) {
        const spec_op *op = &net->plans.ops[SPEC_PHASE_DECODE][i];
        if (op->kind == SPEC_OP_SCAN && op->u.scan.chunk == 0) net->walks = true;
    }
}

static spec_status net_open(net_exec *net)
{
    const int32_t row_max = net->base.model->backend->info.row_max;
    if (net->shape.n_row_decode > row_max)
        return speci_fail(SPEC_E_INVALID, "%d sequences of %d nodes, accepted paths in front included, are more than the "
                          "%d rows that this device takes in a pass", net->shape.n_seq, net->shape.n_cache, row_max);
    SPEC_TRY(speci_net_open_taps(net));
    speci_net_emit(&net->plans, &net->memory, net->base.model, &net->shape); /* counts and measures: nothing is there yet */
    SPEC_TRY(alloc_host(net));
    speci_net_emit(&net->plans, &net->memory, net->base.model, &net->shape);
    list_plans(net);
    return SPEC_OK;
}

spec_status speci_net_open(speci_exec **out, const spec_model *model, const speci_exec_params *p)
{
    *out = NULL;
    net_exec *net = speci_alloc(model->allocator, 1, sizeof *net);
    if (!net) return SPEC_E_NOMEM;
    net->base = (speci_exec){ .kind = &speci_exec_net, .state = net, .model = model, .n_logit = speci_model_n_logit(model) };
    net->a = model->allocator;
    net->ops = model->backend->ops;
    net->dev = model->backend->dev;
    net->shape = speci_net_shape_of(model, p);
    const spec_status status = net_open(net);
    if (status != SPEC_OK) {
        speci_net_close(&net->base);
        return status;
    }
    *out = &net->base;
    return SPEC_OK;
}

void speci_net_close(speci_exec *exec)
{
    net_exec *net = exec->state;
    for (int i = 0; i < NET_PLANS; i++) {
        if (net->prepared[i]) net->ops->plan_free(net->queue, net->prepared[i]);
        speci_free(net->a, net->plans.ops[i]);
    }
    net_arena *arenas[] = { &net->memory.work, &net->memory.state, &net->memory.kv };
    for (size_t i = 0; i < 3; i++)
        if (arenas[i]->base) net->ops->free(net->dev, arenas[i]->base, arenas[i]->n);
    for (int32_t i = 0; net->seqs && i < net->shape.n_seq; i++) {
        speci_free(net->a, net->seqs[i].path);
        speci_free(net->a, net->seqs[i].token);
        speci_free(net->a, net->seqs[i].page);
    }
    speci_net_close_taps(net);
    for (int i = 0; i < 2; i++)
        if (net->prepared_part[i]) net->ops->plan_free(net->queue, net->prepared_part[i]);
    speci_net_close_info(net);
    speci_free(net->a, net->plans.kv);
    speci_free(net->a, net->plans.kept);
    speci_free(net->a, net->to_zero);
    speci_free(net->a, net->seqs);
    speci_free(net->a, net->base.first_row);
    speci_free(net->a, net->free_pages);
    speci_free(net->a, net->block);
    speci_free(net->a, net);
}

void speci_net_plans(const speci_exec *exec, spec_plan plans[2])
{
    const net_exec *net = exec->state;
    plans[0] = net->plan[0], plans[1] = net->plan[1];
}

spec_plan speci_net_part_plan(const net_exec *net, int32_t i)
{
    spec_plan plan = net->plan[SPEC_PHASE_DECODE];
    plan.ops = net->plans.part[i], plan.n_op = net->plans.n_part[i];
    return plan;
}

static spec_status prepare(net_exec *net, spec_prepared **out, const spec_plan *plan, bool capture)
{
    return plan->n_op > 0 ? speci_plan_prepare(net->ops, net->queue, out, plan, capture) : SPEC_OK;
}

static spec_status prepare_parts(net_exec *net, bool capture)
{
    for (int32_t i = 0; i < 2; i++) {
        const spec_plan plan = speci_net_part_plan(net, i);
        SPEC_TRY(prepare(net, &net->prepared_part[i], &plan, capture));
    }
    return SPEC_OK;
}

/* Short texts then differ from the reference's, which chooses by the length of each. */
static void warn_of_long(const net_exec *net)
{
    const int32_t n_short = speci_net_n_short(net->base.model);
    if (speci_net_is_long(&net->shape, n_short))
        speci_log(net->base.model->backend, SPEC_LOG_WARN,
                  "%s: a context of %d tokens has RoPE's long factors, for short texts too; one of at most %d has the short ones",
                  net->base.model->path, net->shape.n_ctx, n_short + 1);
}

spec_status speci_net_attach(speci_exec *exec, spec_queue *queue, bool capture)
{
    net_exec *net = exec->state;
    net->queue = queue;
    warn_of_long(net);
    SPEC_TRY(alloc_device(net));
    SPEC_TRY(speci_net_make_info(net));
    speci_net_emit(&net->plans, &net->memory, net->base.model, &net->shape);
    net->base.logits = net->plans.logits;
    SPEC_TRY(check_abilities(net));
    for (int i = 0; i < NET_PLANS; i++) SPEC_TRY(prepare(net, &net->prepared[i], &net->plan[i], capture));
    return prepare_parts(net, capture);
}
