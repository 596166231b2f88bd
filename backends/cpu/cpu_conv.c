/* cpu_conv.c - causal depth-wise convolution over trees, with the replay of the accepted path in front.
 *
 *   y_i[c] = act(bias[c] + sum_k w[c][width-1-k] u_{anc_k(i)}[c])    (algorithms.md 7.1)
 *
 * with a gate in front of u, and one behind. anc_0(i) = i; beyond the root the ancestors continue into the stored
 * window. Channels are independent: a task is a piece of the channels of one sequence, and does everything for them in
 * order: window, replay, nodes. */
#include "backends/cpu/cpu.h"

enum { CHANNELS = 128, TAPS = 4 };

spec_status speci_cpu_check_conv(spec_device *dev, const spec_op *op)
{
    const spec_conv_args *a = &op->u.conv;
    const spec_host *h = dev->host;
    if (a->width < 2 || a->width > TAPS)
        return h->fail(SPEC_E_UNSUPPORTED, "conv: width %d, supported are 2 to %d", a->width, TAPS);
    if (a->n_channel < 1 || a->n_node < 1)
        return h->fail(SPEC_E_INVALID, "conv: %d channels, %d nodes", a->n_channel, a->n_node);
    if (!cpu_is_float(a->dtype) || !cpu_is_float(a->u.dtype) || a->y.dtype != a->dtype)
        return h->fail(SPEC_E_INVALID, "conv: u is %s, y is %s; y must be of the compute type %s",
                       speci_dtype_name(a->u.dtype), speci_dtype_name(a->y.dtype), speci_dtype_name(a->dtype));
    if (a->u.ld < a->n_channel || a->y.ld < a->n_channel)
        return h->fail(SPEC_E_INVALID, "conv: rows of u and y are %d and %d apart, need %d", a->u.ld, a->y.ld,
                       a->n_channel);
    if (a->act != SPEC_ACT_SILU && a->act != SPEC_ACT_NONE)
        return h->fail(SPEC_E_UNSUPPORTED, "conv: activation %d, supported are silu and none", (int)a->act);
    const spec_view *gates[] = { &a->gate_in, &a->gate_out };
    for (int i = 0; i < 2; i++)
        if (gates[i]->data && (!cpu_is_float(gates[i]->dtype) || gates[i]->ld < a->n_channel))
            return h->fail(SPEC_E_INVALID, "conv: a gate of type %s with rows %d apart, need %d",
                           speci_dtype_name(gates[i]->dtype), gates[i]->ld, a->n_channel);
    if (a->gate_out.data && a->replay_y) return h->fail(SPEC_E_INVALID, "conv: a gate behind what is replayed");
    return SPEC_OK;
}

typedef struct conv_job {
    const spec_queue *q;
    const spec_conv_args *a;
    int32_t n_part;
} conv_job;

/* What a task works on: n channels from c0 on of one sequence. */
typedef struct conv_part {
    const conv_job *job;
    const spec_step_seq *s;
    int32_t c0;
    size_t n;
    float w[TAPS][CHANNELS]; /* taps, oldest first */
    float bias[CHANNELS];
    float buf[TAPS][CHANNELS];
} conv_part;

static void *window_at(const conv_part *t, int32_t half, int32_t entry)
{
    const spec_conv_args *a = t->job->a;
    size_t row = ((size_t)t->s->slot * 2 + (size_t)half) * (size_t)(a->width - 1) + (size_t)entry;
    return cpu_item(a->window, a->dtype, row * (size_t)a->n_channel + (size_t)t->c0);
}

static void *cache_at(const conv_part *t, int32_t half, int32_t entry)
{
    const spec_conv_args *a = t->job->a;
    size_t row = ((size_t)t->s->slot * 2 + (size_t)half) * (size_t)a->n_node + (size_t)entry;
    return cpu_item(a->cache, a->dtype, row * (size_t)a->n_channel + (size_t)t->c0);
}

static void *replay_at(const conv_part *t, int32_t entry)
{
    const spec_conv_args *a = t->job->a;
    size_t seq = (size_t)(t->s - spec_step_seqs(t->job->q->step));
    size_t row = seq * 2 * (size_t)a->n_node + (size_t)entry;
    return cpu_item(a->replay_y, a->dtype, row * (size_t)a->n_channel + (size_t)t->c0);
}

static void load_weights(conv_part *t)
{
    const spec_conv_args *a = t->job->a;
    for (size_t c = 0; c < t->n; c++) {
        size_t channel = (size_t)t->c0 + c;
        t->bias[c] = a->bias ? a->bias[channel] : 0.0f;
        for (int32_t k = 0; k < a->width; k++) t->w[k][c] = a->weight[channel * (size_t)a->width + (size_t)k];
    }
}

/* v times the gate's row */
static void apply_gate(const conv_part *t, float *v, const spec_view *gate, int32_t row)
{
    float g[CHANNELS];
    if (!gate->data) return;
    t->job->q->dev->loops->load(g, cpu_at(gate, row, t->c0), gate->dtype, t->n);
    for (size_t c = 0; c < t->n; c++) v[c] *= g[c];
}

/* out = the convolution over taps u [width], oldest first, all of the compute type; of row `row`, or (-1) of none */
static void convolve(conv_part *t, void *out, const void *const *u, int32_t row)
{
    const spec_conv_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    const float *w[TAPS], *taps[TAPS];
    float y[CHANNELS];
    for (int32_t k = 0; k < a->width; k++) {
        loops->load(t->buf[k], u[k], a->dtype, t->n);
        taps[k] = t->buf[k];
        w[k] = t->w[k];
    }
    loops->conv(y, t->bias, w, taps, a->width, a->act == SPEC_ACT_SILU, t->n);
    if (row >= 0) apply_gate(t, y, &a->gate_out, row);
    loops->store(out, a->dtype, y, t->n);
}

/* The input of row `row`, gated, rounded to the compute type, to dst. */
static void round_input(const conv_part *t, void *dst, int32_t row)
{
    const spec_conv_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    float u[CHANNELS];
    loops->load(u, cpu_at(&a->u, row, t->c0), a->u.dtype, t->n);
    apply_gate(t, u, &a->gate_in, row);
    loops->store(dst, a->dtype, u, t->n);
}

/* Applies the accepted path: its outputs for the scan, and the window from half parity ^ 1 to half parity.
 * The sequence is (old window, u[path[0]], u[path[1]], ...): entry e of it, counted from the window's oldest. */
static void apply_path(conv_part *t)
{
    const spec_conv_args *a = t->job->a;
    const spec_step_seq *s = t->s;
    const int32_t *path = spec_step_paths(t->job->q->step) + s->first_path;
    int32_t old = s->parity ^ 1, keep = a->width - 1;
    const void *taps[TAPS];
    for (int32_t j = 0; j < s->n_replay && a->replay_y; j++) {
        for (int32_t k = 0; k < a->width; k++) {
            int32_t e = j + k;
            taps[k] = e < keep ? window_at(t, old, e) : cache_at(t, old, path[e - keep]);
        }
        convolve(t, replay_at(t, j), taps, -1);
    }
    for (int32_t k = 0; k < keep; k++) {
        int32_t e = s->n_replay + k;
        const void *from = e < keep ? window_at(t, old, e) : cache_at(t, old, path[e - keep]);
        memcpy(window_at(t, s->parity, k), from, t->n * speci_dtype_bytes(a->dtype));
    }
}

/* The output of node i of the tree, which is row `row` or (-1) none. */
static void convolve_node(conv_part *t, void *out, int32_t i, int32_t row)
{
    const spec_conv_args *a = t->job->a;
    const spec_step_node *nodes = spec_step_nodes(t->job->q->step) + t->s->first_node;
    const void *taps[TAPS];
    int32_t beyond = 1; /* entries of the window used so far, from its newest, plus one */
    for (int32_t k = a->width - 1; k >= 0; k--) {
        if (i >= 0) {
            taps[k] = cache_at(t, t->s->parity, i);
            i = nodes[i].parent;
        } else {
            taps[k] = window_at(t, t->s->parity, a->width - 1 - beyond++);
        }
    }
    convolve(t, out, taps, row);
}

/* The window moves on, in place, over the first n_advance nodes: a chain whose inputs are in the cache by now. */
static void advance(conv_part *t)
{
    const spec_conv_args *a = t->job->a;
    const int32_t n = t->s->n_advance, half = t->s->parity, keep = a->width - 1;
    for (int32_t k = 0; k < keep && n > 0; k++) {
        const void *from = n + k < keep ? window_at(t, half, n + k) : cache_at(t, half, n + k - keep);
        memcpy(window_at(t, half, k), from, t->n * speci_dtype_bytes(a->dtype));
    }
}

static void decode(conv_part *t)
{
    const spec_conv_args *a = t->job->a;
    const spec_step_seq *s = t->s;
    if (s->n_fed == 0) apply_path(t);
    for (int32_t i = 0; i < s->n_fed && a->replay_y; i++) convolve_node(t, replay_at(t, s->n_replay + i), i, -1);
    for (int32_t i = 0; i < s->n_row; i++) {
        const int32_t row = s->first_row + i;
        round_input(t, cache_at(t, s->parity, s->n_fed + i), row);
        convolve_node(t, cpu_at(&a->y, row, t->c0), s->n_fed + i, row);
    }
    advance(t);
}

/* A chain that is applied at once; of its inputs the last `width` are kept. */
static void prefill(conv_part *t)
{
    const spec_conv_args *a = t->job->a;
    const spec_step_seq *s = t->s;
    int32_t keep = a->width - 1;
    float kept[TAPS][CHANNELS]; /* entry e of (window, inputs) in kept[e % width] */
    const void *taps[TAPS];
    size_t bytes = t->n * speci_dtype_bytes(a->dtype);
    for (int32_t e = 0; e < keep; e++) memcpy(kept[e], window_at(t, s->parity ^ 1, e), bytes);
    for (int32_t i = 0; i < s->n_row; i++) {
        round_input(t, kept[(i + keep) % a->width], s->first_row + i);
        for (int32_t k = 0; k < a->width; k++) taps[k] = kept[(i + k) % a->width];
        convolve(t, cpu_at(&a->y, s->first_row + i, t->c0), taps, s->first_row + i);
    }
    for (int32_t k = 0; k < keep; k++) memcpy(window_at(t, s->parity, k), kept[(s->n_row + k) % a->width], bytes);
}

static void conv_task(void *arg, int32_t i)
{
    const conv_job *job = arg;
    const spec_step_block *b = job->q->step;
    conv_part t;
    t.job = job;
    t.s = spec_step_seqs(b) + i / job->n_part;
    t.c0 = i % job->n_part * CHANNELS;
    t.n = (size_t)cpu_min(CHANNELS, job->a->n_channel - t.c0);
    load_weights(&t);
    if (b->phase == SPEC_PHASE_PREFILL) prefill(&t);
    else decode(&t);
}

spec_status speci_cpu_conv(spec_queue *q, const spec_op *op)
{
    const spec_conv_args *a = &op->u.conv;
    const spec_step_block *b = q->step;
    CPU_TRY(speci_cpu_check_conv(q->dev, op));
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++) {
        const spec_step_seq *s = spec_step_seqs(b) + i;
        if (s->n_fed + s->n_row > a->n_node || s->n_replay > a->n_node)
            return q->dev->host->fail(SPEC_E_INVALID, "conv: %d nodes fed, %d new, %d replayed; the caches hold %d",
                                      s->n_fed, s->n_row, s->n_replay, a->n_node);
        if (s->n_advance < 0 || s->n_advance > s->n_row || (s->n_advance > 0 && s->n_fed > 0))
            return q->dev->host->fail(SPEC_E_INVALID, "conv: %d nodes to advance by, of %d fed and %d new", s->n_advance,
                                      s->n_fed, s->n_row);
    }
    conv_job job = { q, a, cpu_parts(a->n_channel, CHANNELS) };
    speci_cpu_parallel(q->dev->pool, b->n_seq * job.n_part, conv_task, &job);
    return SPEC_OK;
}
