/* cpu_queue.c - queues: their memory, transfers, and the step that is bound. */
#include "backends/cpu/cpu.h"

/* ------------------------------------------------------------------------------------- queues --- */

/* Bytes that a step of this plan needs at most. */
static size_t step_bytes(const spec_plan *p)
{
    size_t seqs = (size_t)p->n_seq_max, nodes = (size_t)p->n_node_max, rows = (size_t)p->n_row_max;
    size_t pages = (size_t)p->n_kv_max / SPEC_PAGE + 2;
    return sizeof(spec_step_block) + seqs * sizeof(spec_step_seq) + rows * sizeof(spec_traversal_node) +
           (seqs * nodes + rows) * sizeof(spec_step_node) +
           (rows + seqs * nodes + seqs * pages) * sizeof(int32_t) + 6 * 64;
}

/* Bytes of scratch that a task of an operation takes in passes of a phase. */
static size_t norm_scratch(const spec_op *op, int32_t phase)
{
    (void)phase;
    return (size_t)op->u.norm.dim * sizeof(float);
}

static size_t attention_scratch(const spec_op *op, int32_t phase)
{
    (void)phase;
    return speci_cpu_attention_scratch(&op->u.attention);
}

static size_t scan_scratch(const spec_op *op, int32_t phase)
{
    return phase == SPEC_PHASE_DECODE ? speci_cpu_scan_scratch(&op->u.scan) : 0;
}

static size_t linear_scratch(const spec_op *op, int32_t phase)
{
    (void)op;
    return phase == SPEC_PHASE_PREFILL ? speci_cpu_prefill_scratch() : 0;
}

/* The kinds that take some. */
static size_t (*const scratch_of[SPEC_OP_N])(const spec_op *op, int32_t phase) = {
    [SPEC_OP_NORM] = norm_scratch,
    [SPEC_OP_LINEAR] = linear_scratch,
    [SPEC_OP_ATTENTION] = attention_scratch,
    [SPEC_OP_SCAN] = scan_scratch,
};

/* Bytes of a slot: the most that a task takes, of row operations too. */
static size_t slot_bytes(const spec_plan *plans, int32_t n_plan, size_t n_vocab)
{
    size_t most = speci_cpu_rows_scratch(n_vocab);
    for (int32_t i = 0; i < n_plan; i++)
        for (int32_t j = 0; j < plans[i].n_op; j++) {
            const spec_op *op = &plans[i].ops[j];
            const size_t need = scratch_of[op->kind] ? scratch_of[op->kind](op, plans[i].phase) : 0;
            if (need > most) most = need;
        }
    return (most + 63) / 64 * 64;
}

/* Floats for x of the largest product, and sums of each 32: of a prefill, and of as many rows as decode passes make f32 at once. */
static size_t x_floats(const spec_plan *plans, int32_t n_plan)
{
    size_t most = 0;
    for (int32_t i = 0; i < n_plan; i++) {
        const bool decode = plans[i].phase == SPEC_PHASE_DECODE;
        const int32_t rows = decode ? cpu_min(plans[i].n_row_max, CPU_ROW_BLOCK) : plans[i].n_row_max;
        for (int32_t j = 0; j < plans[i].n_op; j++) {
            const spec_op *op = &plans[i].ops[j];
            if (op->kind != SPEC_OP_LINEAR || (decode && op->u.linear.x.dtype == SPEC_DTYPE_F32)) continue;
            const size_t n = (size_t)(op->u.linear.n_in + op->u.linear.n_in / SPEC_SMALL_BLOCK) * (size_t)rows;
            if (n > most) most = n;
        }
    }
    return most;
}

size_t speci_cpu_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    return slot_bytes(plans, n_plan, (size_t)n_vocab) * (size_t)dev->host->n_threads +
           x_floats(plans, n_plan) * sizeof(float);
}

void speci_cpu_queue_close(spec_queue *q)
{
    if (!q) return;
    const spec_host *h = q->dev->host;
    h->free(h, q->x);
    h->free(h, q->slot_taken);
    h->free(h, q->scratch);
    h->free(h, q->step);
    h->free(h, q);
}

spec_status speci_cpu_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan,
                                  int32_t n_vocab)
{
    const spec_host *h = dev->host;
    spec_queue *q = h->alloc(h, 1, sizeof *q);
    if (!q) return SPEC_E_NOMEM;
    q->dev = dev;
    q->n_slot = h->n_threads;
    q->row_vocab = (size_t)n_vocab;
    q->slot_bytes = slot_bytes(plans, n_plan, (size_t)n_vocab);
    q->step_cap = sizeof(spec_step_block);
    for (int32_t i = 0; i < n_plan; i++)
        if (step_bytes(&plans[i]) > q->step_cap) q->step_cap = step_bytes(&plans[i]);
    q->x_n = x_floats(plans, n_plan);
    q->step = h->alloc(h, 1, q->step_cap);
    q->scratch = h->alloc(h, (size_t)q->n_slot, q->slot_bytes);
    q->slot_taken = h->alloc(h, (size_t)q->n_slot, sizeof *q->slot_taken);
    q->x = h->alloc(h, q->x_n, sizeof *q->x);
    if (!q->step || !q->scratch || !q->slot_taken || !q->x) {
        speci_cpu_queue_close(q);
        return SPEC_E_NOMEM;
    }
    *out = q;
    return SPEC_OK;
}

spec_status speci_cpu_transfer(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q;
    if (bytes > 0) memmove(dst, src, bytes);
    return SPEC_OK;
}

spec_status speci_cpu_copy(spec_queue *q, const spec_range_copy *range, int32_t n)
{
    (void)q;
    for (int32_t i = 0; i < n; i++)
        if (range[i].bytes > 0) memcpy(range[i].to, range[i].from, range[i].bytes);
    return SPEC_OK;
}

spec_status speci_cpu_zero(spec_queue *q, const spec_range *range, int32_t n)
{
    (void)q;
    for (int32_t i = 0; i < n; i++)
        if (range[i].bytes > 0) memset(range[i].data, 0, range[i].bytes);
    return SPEC_OK;
}

spec_status speci_cpu_sync(spec_queue *q)
{
    (void)q;
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------------- steps --- */

/* Nodes that grew on the device take their places in the block, or their tokens alone. */
static void take_feed(spec_step_block *b)
{
    for (int32_t k = 0; k < b->n_seq; k++) {
        const spec_step_seq *s = spec_step_seqs(b) + k;
        spec_step_node *nodes = (spec_step_node *)(void *)((char *)b + b->off_node) + s->first_node;
        const spec_step_node *feed = b->feed ? b->feed + (size_t)s->slot * (size_t)b->ld_feed : NULL;
        const spec_grow_node *grown = b->grown ? b->grown + (size_t)s->slot * (size_t)b->ld_grown : NULL;
        for (int32_t i = s->n_given; feed && i < s->n_fed + s->n_row; i++) nodes[i] = feed[i];
        for (int32_t i = 1; grown && i < s->n_given; i++) nodes[i].token = grown[i].token;
    }
}

spec_status speci_cpu_step_bind(spec_queue *q, const spec_step_block *block)
{
    const spec_host *h = q->dev->host;
    if (block->bytes < (int32_t)sizeof *block || block->n_row_run < block->n_row || block->n_row < 0 ||
        (block->phase == SPEC_PHASE_DECODE && block->n_row != block->n_row_run))
        return h->fail(SPEC_E_INVALID, "step: %d bytes, %d rows of %d", block->bytes, block->n_row, block->n_row_run);
    if (block->n_seq > 0 && block->off_seq != (int32_t)sizeof *block)
        return h->fail(SPEC_E_INVALID, "step: its sequences stand at byte %d, not right behind its head at %zu", block->off_seq,
                       sizeof *block);
    if ((size_t)block->bytes > q->step_cap) { /* larger than the plans said: grows once */
        spec_step_block *step = h->alloc(h, 1, (size_t)block->bytes);
        if (!step) return SPEC_E_NOMEM;
        h->free(h, q->step);
        q->step = step;
        q->step_cap = (size_t)block->bytes;
    }
    memcpy(q->step, block, (size_t)block->bytes);
    take_feed(q->step);
    return SPEC_OK;
}
