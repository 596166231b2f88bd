/* cpu_backend.c - the CPU as a device: choice of kernels, memory, queues, steps, and the backend's table. */
#define _POSIX_C_SOURCE 200809L /* sched_yield */
#include <sched.h>

#include "backends/cpu/cpu.h"

/* ------------------------------------------------------------------------------------- device --- */

/* Best first; the last one runs everywhere. */
static const cpu_isa *const isas[] = {
#if CPU_X86
    &speci_cpu_isa_avx512bf16,
    &speci_cpu_isa_avx512,
    &speci_cpu_isa_avx2,
#endif
    &speci_cpu_isa_portable,
};
enum { N_ISA = sizeof isas / sizeof isas[0] };

/* arg: NULL or "" for the best that this machine has, else a name. */
static spec_status choose_isa(const cpu_isa **out, const spec_host *host, const char *arg)
{
    bool any = !arg || !arg[0];
    for (size_t i = 0; i < N_ISA; i++) {
        if (!any && strcmp(arg, isas[i]->name) != 0) continue;
        *out = isas[i];
        if (isas[i]->supported() && (!any || !isas[i]->preferred || isas[i]->preferred())) return SPEC_OK;
        if (!any) return host->fail(SPEC_E_DEVICE, "cpu: this machine has no %s", arg);
    }
    return host->fail(SPEC_E_INVALID, "cpu: no kernels named \"%s\"; there are portable, avx2, avx512, avx512bf16", arg);
}

static spec_status cpu_open(spec_device **out, const spec_host *host, const char *arg)
{
    const cpu_isa *isa = NULL;
    CPU_TRY(choose_isa(&isa, host, arg));
    spec_device *dev = host->alloc(host, 1, sizeof *dev);
    if (!dev) return SPEC_E_NOMEM;
    dev->host = host;
    dev->isa = isa;
    dev->loops = isa->loops;
    spec_status status = speci_cpu_pool_open(&dev->pool, host);
    if (status != SPEC_OK) {
        host->free(host, dev);
        return status;
    }
#if defined(SPEC_HAVE_BLAS)
    speci_cpu_prefill_open();
#endif
    *out = dev;
    return SPEC_OK;
}

static void cpu_close(spec_device *dev)
{
    if (!dev) return;
    const spec_host *host = dev->host;
    speci_cpu_pool_close(dev->pool);
    host->free(host, dev);
}

static spec_status cpu_info(spec_device *dev, spec_device_info *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->name, "cpu:", 4);
    strncpy(out->name + 4, dev->isa->name, sizeof out->name - 5);
    out->host_visible = 1;
    out->prefill_chunk = CPU_PREFILL_CHUNK;
    out->row_max = 1024;
    out->row_best = 1;
    return SPEC_OK;
}

static spec_status cpu_list(const spec_host *host, void (*each)(void *, const char *, const char *), void *user)
{
    const cpu_isa *isa = NULL;
    CPU_TRY(choose_isa(&isa, host, NULL));
    each(user, NULL, isa->name);
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------------- memory --- */

enum { ALIGN = 256 };

/* Host memory is 64-byte aligned: 256 more bytes hold the shift to the next multiple of 256, and where it came from. */
static spec_status cpu_alloc(spec_device *dev, void **out, size_t bytes)
{
    uint8_t *p = bytes <= SIZE_MAX - ALIGN ? dev->host->alloc(dev->host, 1, bytes + ALIGN) : NULL;
    if (!p) return dev->host->fail(SPEC_E_NOMEM, "cpu: no memory for %zu bytes", bytes);
    uint8_t *aligned = p + (ALIGN - (uintptr_t)p % ALIGN);
    memcpy(aligned - sizeof p, &p, sizeof p);
    *out = aligned;
    return SPEC_OK;
}

static void cpu_free(spec_device *dev, void *aligned, size_t bytes)
{
    uint8_t *p = NULL;
    (void)bytes;
    if (!aligned) return;
    memcpy(&p, (uint8_t *)aligned - sizeof p, sizeof p);
    dev->host->free(dev->host, p);
}

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

/* Bytes of a slot of scratch: rows of logits, rows of norms, blocks of attention, states of scans, panels of prefill. */
static size_t slot_bytes(const spec_plan *plans, int32_t n_plan, size_t n_vocab)
{
    size_t most = speci_cpu_rows_scratch(n_vocab);
    for (int32_t i = 0; i < n_plan; i++) {
        for (int32_t j = 0; j < plans[i].n_op; j++) {
            const spec_op *op = &plans[i].ops[j];
            size_t need = op->kind == SPEC_OP_NORM ? (size_t)op->u.norm.dim * sizeof(float) : 0;
            if (op->kind == SPEC_OP_ATTENTION) need = speci_cpu_attention_scratch(&op->u.attention);
            if (op->kind == SPEC_OP_SCAN && plans[i].phase == SPEC_PHASE_DECODE)
                need = speci_cpu_scan_scratch(&op->u.scan);
#if defined(SPEC_HAVE_BLAS)
            if (op->kind == SPEC_OP_LINEAR && plans[i].phase == SPEC_PHASE_PREFILL) need = speci_cpu_prefill_scratch();
#endif
            if (need > most) most = need;
        }
    }
    return (most + 63) / 64 * 64;
}

/* Floats for x of the largest product: of a prefill, and of as many rows as decode passes make f32 at once. */
static size_t x_floats(const spec_plan *plans, int32_t n_plan)
{
    size_t most = 0;
    for (int32_t i = 0; i < n_plan; i++) {
        const bool decode = plans[i].phase == SPEC_PHASE_DECODE;
        const int32_t rows = decode ? cpu_min(plans[i].n_row_max, CPU_ROW_BLOCK) : plans[i].n_row_max;
        for (int32_t j = 0; j < plans[i].n_op; j++) {
            const spec_op *op = &plans[i].ops[j];
            if (op->kind != SPEC_OP_LINEAR || (decode && op->u.linear.x.dtype == SPEC_DTYPE_F32)) continue;
            const size_t n = (size_t)op->u.linear.n_in * (size_t)rows;
            if (n > most) most = n;
        }
    }
    return most;
}

static size_t cpu_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    return slot_bytes(plans, n_plan, (size_t)n_vocab) * (size_t)dev->host->n_threads +
           x_floats(plans, n_plan) * sizeof(float);
}

static void cpu_queue_close(spec_queue *q)
{
    if (!q) return;
    const spec_host *h = q->dev->host;
    h->free(h, q->x);
    h->free(h, q->slot_taken);
    h->free(h, q->scratch);
    h->free(h, q->step);
    h->free(h, q);
}

static spec_status cpu_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan,
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
        cpu_queue_close(q);
        return SPEC_E_NOMEM;
    }
    *out = q;
    return SPEC_OK;
}

uint8_t *speci_cpu_scratch_take(spec_queue *q)
{
    for (;;) {
        for (int32_t i = 0; i < q->n_slot; i++)
            if (atomic_exchange(&q->slot_taken[i], 1) == 0) return q->scratch + (size_t)i * q->slot_bytes;
        sched_yield(); /* a host's parallel_for may use more threads than it said */
    }
}

void speci_cpu_scratch_give(spec_queue *q, uint8_t *p)
{
    atomic_store(&q->slot_taken[(size_t)(p - q->scratch) / q->slot_bytes], 0);
}

static spec_status cpu_transfer(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q;
    if (bytes > 0) memmove(dst, src, bytes);
    return SPEC_OK;
}

static spec_status cpu_copy(spec_queue *q, const spec_range_copy *range, int32_t n)
{
    (void)q;
    for (int32_t i = 0; i < n; i++)
        if (range[i].bytes > 0) memcpy(range[i].to, range[i].from, range[i].bytes);
    return SPEC_OK;
}

static spec_status cpu_zero(spec_queue *q, const spec_range *range, int32_t n)
{
    (void)q;
    for (int32_t i = 0; i < n; i++)
        if (range[i].bytes > 0) memset(range[i].data, 0, range[i].bytes);
    return SPEC_OK;
}

static spec_status cpu_sync(spec_queue *q)
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

static spec_status cpu_step_bind(spec_queue *q, const spec_step_block *block)
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

spec_status speci_cpu_can(spec_device *dev, const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_EMBED: return speci_cpu_check_embed(dev, &op->u.embed);
    case SPEC_OP_NORM: return speci_cpu_check_norm(dev, &op->u.norm);
    case SPEC_OP_LINEAR: return speci_cpu_check_linear(dev, &op->u.linear);
    case SPEC_OP_KV_COMMIT: return speci_cpu_check_kv_commit(dev, &op->u.kv_commit);
    case SPEC_OP_ROPE_KV: return speci_cpu_check_rope_kv(dev, &op->u.rope_kv);
    case SPEC_OP_ATTENTION: return speci_cpu_check_attention(dev, &op->u.attention);
    case SPEC_OP_CONV: return speci_cpu_check_conv(dev, &op->u.conv);
    case SPEC_OP_SCAN: return speci_cpu_check_scan(dev, &op->u.scan);
    case SPEC_OP_KEEP: return speci_cpu_check_keep(dev, &op->u.keep);
    case SPEC_OP_N: break;
    }
    return dev->host->fail(SPEC_E_UNSUPPORTED, "cpu: operation %d", (int)op->kind);
}

const spec_backend_ops speci_cpu_ops = {
    .abi = SPEC_BACKEND_ABI,
    .struct_size = sizeof(spec_backend_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .list = cpu_list,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .weight_bytes = speci_cpu_weight_bytes,
    .weight_open = speci_cpu_weight_open,
    .weight_close = speci_cpu_weight_close,
    .queue_open = cpu_queue_open,
    .queue_bytes = cpu_queue_bytes,
    .queue_close = cpu_queue_close,
    .upload = cpu_transfer,
    .download = cpu_transfer,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .sync = cpu_sync,
    .can = speci_cpu_can,
    .step_bind = cpu_step_bind,
    .embed = speci_cpu_embed,
    .norm = speci_cpu_norm,
    .linear = speci_cpu_linear,
    .kv_commit = speci_cpu_kv_commit,
    .rope_kv = speci_cpu_rope_kv,
    .attention = speci_cpu_attention,
    .conv = speci_cpu_conv,
    .scan = speci_cpu_scan,
    .argmax = speci_cpu_argmax,
    .probs = speci_cpu_probs,
    .accept = speci_cpu_accept,
    .logprob = speci_cpu_logprob,
    .draw = speci_cpu_draw,
    .expand = speci_cpu_expand,
    .keep = speci_cpu_keep,
};
