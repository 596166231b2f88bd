/* net_token_table.c - token info collapsed (algorithms.md 17.3 a): info(t) of each hot token in a table [n_hot][n_hot] on the device, norm
 * included. A row of logits then costs one row of the table, where the factors cost a product with rank columns. The table is made of the
 * factors, when a session opens, and never leaves the device. */
#include "models/net/net_token_pass.h"

#include "models/net/net_mixer.h"

static const model_token_info *info_of(const net_exec *net) { return net->base.model->intake->info; }

static size_t table_bytes(const net_exec *net)
{
    const size_t n = (size_t)info_of(net)->n_hot;
    return net_aligned(n * n * speci_dtype_bytes(net->base.model->dtype));
}

size_t speci_net_table_bytes(const net_exec *net)
{
    return table_bytes(net) + ((size_t)net->base.model->n_vocab + (size_t)info_of(net)->n_hot) * sizeof(int32_t);
}

void speci_net_close_table(net_exec *net)
{
    net_token_table *t = &net->plans.table;
    if (t->info.data) net->ops->free(net->dev, t->info.data, speci_net_table_bytes(net));
    *t = (net_token_table){ 0 };
}

void speci_net_emit_table(net_emitter *e, spec_view logits)
{
    const net_token_table *t = &e->plans->table;
    const int32_t n_hot = e->model->intake->info->n_hot;
    const spec_view info = t->info.data ? t->info : (spec_view){ NULL, e->model->dtype, n_hot };
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_BIAS, .head = 1,
                                    .u.bias = { .n_vocab = e->model->n_vocab, .dim = n_hot, .table = info, .row = t->row,
                                                .column = t->column, .y = logits } });
}

/* --- making it --- */

/* Rows of W2 times the norm's weights, of the hot tokens alone. */
static spec_status open_out(const net_exec *net, spec_weight **out)
{
    const model_token_info *info = info_of(net);
    const size_t r = (size_t)info->rank, n = (size_t)info->n_hot * r;
    float *rows = speci_alloc(net->a, n, sizeof *rows);
    if (!rows) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) rows[i] = info->norm[i / r] * info->w2[i];
    const spec_weight_part part = { rows, info->n_hot };
    const spec_weight_desc desc = { .n_out = info->n_hot, .n_in = info->rank, .dtype = SPEC_DTYPE_F32, .compute = net->base.model->dtype,
                                    .parts = &part, .n_part = 1 };
    const spec_status status = net->ops->weight_open(net->dev, out, &desc);
    speci_free(net->a, rows);
    return status;
}

/* Which row of the table is a token's, and which token's a column is. */
static spec_status put_places(net_exec *net, spec_queue *queue)
{
    const model_token_info *info = info_of(net);
    const net_token_table *t = &net->plans.table;
    const size_t n = (size_t)net->base.model->n_vocab;
    int32_t *row = speci_alloc(net->a, n, sizeof *row);
    if (!row) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) row[i] = -1;
    for (int32_t h = 0; h < info->n_hot; h++) row[info->hot[h]] = h;
    spec_status status = net->ops->upload(queue, t->row, row, n * sizeof *row);
    if (status == SPEC_OK) status = net->ops->upload(queue, t->column, info->hot, (size_t)info->n_hot * sizeof *info->hot);
    speci_free(net->a, row);
    return status;
}

/* All rows, pass by pass. A pass has rows that are not valid at its end, so they are copied from it. */
static spec_status put_rows(net_exec *net, net_token_pass *p)
{
    const model_token_info *info = info_of(net);
    const net_token_table *t = &net->plans.table;
    const size_t row = (size_t)info->n_hot * speci_dtype_bytes(t->info.dtype);
    for (int32_t first = 0, n; first < info->n_hot; first += n) {
        n = info->n_hot - first < p->rows ? info->n_hot - first : p->rows;
        SPEC_TRY(speci_net_token_pass_run(p, info->hot + first, n));
        const spec_range_copy copy = { (char *)t->info.data + (size_t)first * row, p->y.data, (size_t)n * row };
        SPEC_TRY(net->ops->copy(p->queue, &copy, 1));
    }
    SPEC_TRY(put_places(net, p->queue));
    return net->ops->sync(p->queue);
}

static spec_status take_memory(net_exec *net)
{
    net_token_table *t = &net->plans.table;
    const int32_t n_hot = info_of(net)->n_hot;
    void *at = NULL;
    SPEC_TRY(net->ops->alloc(net->dev, &at, speci_net_table_bytes(net)));
    t->info = (spec_view){ at, net->base.model->dtype, n_hot };
    t->row = (int32_t *)(void *)((char *)at + table_bytes(net));
    t->column = t->row + net->base.model->n_vocab;
    return SPEC_OK;
}

spec_status speci_net_make_table(net_exec *net, const spec_weight *factors)
{
    const model_token_info *info = info_of(net);
    spec_weight *out = NULL;
    SPEC_TRY(take_memory(net));
    spec_status status = open_out(net, &out);
    net_token_pass p = { .net = net, .table = factors, .wide = info->rank, .w = out, .n_out = info->n_hot, .rows = net->shape.chunk_least,
                         .out = net->base.model->dtype };
    if (status == SPEC_OK) status = speci_net_token_pass_open(&p);
    if (status == SPEC_OK) status = put_rows(net, &p);
    speci_net_token_pass_close(&p);
    if (out) net->ops->weight_close(net->dev, out);
    return status;
}
