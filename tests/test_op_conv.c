/* test_op_conv.c - causal convolution over trees: every node's path is unrolled behind the window and the replayed path,
 * and given to the sequential formula. What must not be read is NaN, what must not be written stays NaN. */
#include <math.h>

#include "tests/ref_ops.h"
#include "tests/support_steps.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

enum { NODES = 12 }; /* that the caches hold */

static const int32_t line[] = { -1, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24 };

static const test_seq tree_replay_far[] = { { .slot = 1, .parity = 1, .n_past = 9, .n_replay = 5, .path = path_far,
                                              .n_node = 10, .parent = bush } };
static const test_seq prompt_1[] = { { .slot = 2, .n_past = 64, .n_node = 1, .parent = chain } };
static const test_seq prompt_8[] = { { .slot = 1, .n_past = 64, .n_node = 8, .parent = chain } };
static const test_seq prompt_9[] = { { .slot = 4, .parity = 1, .n_past = 64, .n_node = 9, .parent = chain } };
static const test_seq prompt_26[] = { { .slot = 3, .n_past = 64, .n_node = 26, .parent = line } };

/* What a case has beyond the form of Mamba. */
enum { GATE_IN = 1, GATE_OUT = 2, NO_ACT = 4, NO_REPLAY = 8, GATE_16 = 16 /* gates of the compute type */,
       SHORT = GATE_IN | GATE_OUT | NO_ACT | NO_REPLAY };

typedef struct conv_case {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq, channels, width;
    bool bias;
    spec_dtype u, dtype;
    int32_t phase, run;
    int32_t form;
} conv_case;

static const conv_case cases[] = {
    { "base", tree, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "one_row", one, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "one_row_replay", one_replay, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "replay", tree_replay, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "replay_far", tree_replay_far, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "fed", fed, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "several", several, 4, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "advance", advance, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "advance_one", advance_one, 2, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "advance_all", advance_all, 1, 16, 4, true, F32, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "flush", flush, 1, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "flush_some", flush_some, 3, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "no_bias", several, 4, 16, 4, false, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "width_2", several, 4, 16, 2, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "width_3", several, 4, 16, 3, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "one_channel", several, 4, 1, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "odd_channels", several, 4, 387, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16", several, 4, 40, 4, true, BF16, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_from_f32", several, 4, 40, 4, true, F32, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "f16", several, 4, 40, 4, true, F16, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "prefill", prompt, 1, 16, 4, true, F32, F32, SPEC_PHASE_PREFILL, 16, 0 },
    { "prefill_full", prompt, 1, 16, 4, true, F32, F32, SPEC_PHASE_PREFILL, 0, 0 },
    { "prefill_one", prompt_1, 1, 16, 4, true, F32, F32, SPEC_PHASE_PREFILL, 16, 0 },
    { "prefill_8", prompt_8, 1, 16, 4, true, F32, F32, SPEC_PHASE_PREFILL, 8, 0 },
    { "prefill_9", prompt_9, 1, 16, 4, true, F32, F32, SPEC_PHASE_PREFILL, 16, 0 },
    { "prefill_26", prompt_26, 1, 520, 4, true, F32, BF16, SPEC_PHASE_PREFILL, 32, 0 },
    { "prefill_26_odd", prompt_26, 1, 131, 3, true, F32, F32, SPEC_PHASE_PREFILL, 0, 0 },
    { "prefill_width_2", prompt, 1, 131, 2, false, F32, F32, SPEC_PHASE_PREFILL, 16, 0 },
    { "prefill_bf16", prompt, 1, 40, 4, true, F32, BF16, SPEC_PHASE_PREFILL, 16, 0 },
    { "prefill_f16", prompt, 1, 40, 4, true, F16, F16, SPEC_PHASE_PREFILL, 16, 0 },
    { "short", several, 4, 16, 3, false, F32, F32, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_one", one_replay, 1, 16, 3, false, F32, F32, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_bias", tree_replay_far, 1, 16, 3, true, F32, F32, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_fed", fed, 1, 16, 3, false, F32, BF16, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_odd", several, 4, 387, 3, true, F32, BF16, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_width_4", several, 4, 40, 4, true, F32, F16, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_gates_16", several, 4, 40, 3, false, BF16, BF16, SPEC_PHASE_DECODE, 0, SHORT | GATE_16 },
    { "short_flush", flush_some, 3, 16, 3, false, F32, F32, SPEC_PHASE_DECODE, 0, SHORT },
    { "short_advance", advance_one, 2, 16, 3, false, F32, BF16, SPEC_PHASE_DECODE, 0, SHORT },
    { "gate_in", several, 4, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, GATE_IN },
    { "gate_out", several, 4, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, GATE_OUT | NO_REPLAY },
    { "no_act", several, 4, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, NO_ACT },
    { "no_replay", several, 4, 16, 4, true, F32, F32, SPEC_PHASE_DECODE, 0, NO_REPLAY },
    { "prefill_short", prompt, 1, 16, 3, false, F32, F32, SPEC_PHASE_PREFILL, 16, SHORT },
    { "prefill_short_26", prompt_26, 1, 520, 3, true, F32, BF16, SPEC_PHASE_PREFILL, 32, SHORT },
    { "prefill_short_26_odd", prompt_26, 1, 131, 3, false, F32, F32, SPEC_PHASE_PREFILL, 0, SHORT },
    { "prefill_short_16", prompt_9, 1, 40, 3, false, F16, F16, SPEC_PHASE_PREFILL, 16, SHORT | GATE_16 },
    { "prefill_gate_in", prompt, 1, 40, 4, true, F32, F32, SPEC_PHASE_PREFILL, 16, GATE_IN },
};

/* Host copies of everything; arrays as the operation has them. */
typedef struct world {
    double *u, *y, *window, *cache, *replay;
    size_t n_u, n_y, n_window, n_cache, n_replay;
    double *weight, *bias;
    double *gate_in, *gate_out; /* as u */
} world;

static spec_dtype gate_type(const conv_case *c) { return c->form & GATE_16 ? c->dtype : F32; }

static double *nans(size_t n)
{
    double *v = calloc(n + 1, sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = NAN;
    return v;
}

static double *window_at(const conv_case *c, const world *w, const test_seq *s, int32_t half, int32_t entry)
{
    return w->window + (((size_t)s->slot * 2 + (size_t)half) * (size_t)(c->width - 1) + (size_t)entry) * (size_t)c->channels;
}

static double *cache_at(const conv_case *c, const world *w, const test_seq *s, int32_t half, int32_t entry)
{
    return w->cache + (((size_t)s->slot * 2 + (size_t)half) * NODES + (size_t)entry) * (size_t)c->channels;
}

static void put(const conv_case *c, double *row, test_random *random)
{
    for (int32_t i = 0; i < c->channels; i++) row[i] = test_round(2.0 * test_signed(random), c->dtype);
}

static world make_world(const conv_case *c, int32_t rows, test_random *random)
{
    world w;
    size_t channels = (size_t)c->channels;
    w.n_u = w.n_y = (size_t)rows * channels;
    w.n_window = TEST_SEQS * 2 * (size_t)(c->width - 1) * channels;
    w.n_cache = TEST_SEQS * 2 * NODES * channels;
    w.n_replay = TEST_SEQS * 2 * NODES * channels;
    w.u = test_values(random, w.n_u, 2.0);
    test_round_all(w.u, w.n_u, c->u);
    w.y = nans(w.n_y);
    w.window = nans(w.n_window);
    w.cache = nans(w.n_cache);
    w.replay = nans(w.n_replay);
    w.weight = test_values(random, channels * (size_t)c->width, 1.0);
    w.bias = test_values(random, channels, 1.0);
    w.gate_in = test_values(random, w.n_u, 1.5), w.gate_out = test_values(random, w.n_u, 1.5);
    test_round_all(w.gate_in, w.n_u, gate_type(c));
    test_round_all(w.gate_out, w.n_u, gate_type(c));
    test_round_all(w.weight, channels * (size_t)c->width, F32);
    test_round_all(w.bias, channels, F32);
    for (int32_t i = 0; i < c->n_seq; i++) {
        const test_seq *s = &c->seqs[i];
        bool first_pass = s->n_fed == 0;
        int32_t half = first_pass ? s->parity ^ 1 : s->parity;
        for (int32_t e = 0; e < c->width - 1; e++) put(c, window_at(c, &w, s, half, e), random);
        for (int32_t j = 0; j < s->n_replay; j++) put(c, cache_at(c, &w, s, s->parity ^ 1, s->path[j]), random);
        for (int32_t n = 0; n < s->n_fed; n++) put(c, cache_at(c, &w, s, s->parity, n), random);
    }
    return w;
}

static void free_world(world *w)
{
    free(w->u);
    free(w->y);
    free(w->window);
    free(w->cache);
    free(w->replay);
    free(w->gate_in);
    free(w->gate_out);
    free(w->weight);
    free(w->bias);
}

/* The inputs before the tree: window, then the replayed path. Returns how many. */
static int32_t history(const conv_case *c, const world *w, const test_seq *s, double *out)
{
    size_t bytes = (size_t)c->channels * sizeof(double);
    int32_t n = 0, half = s->n_fed == 0 ? s->parity ^ 1 : s->parity;
    for (int32_t e = 0; e < c->width - 1; e++) memcpy(out + n++ * c->channels, window_at(c, w, s, half, e), bytes);
    for (int32_t j = 0; j < s->n_replay; j++)
        memcpy(out + n++ * c->channels, cache_at(c, w, s, s->parity ^ 1, s->path[j]), bytes);
    return n;
}

/* The last of n inputs through the formula; of a row, or (-1) of none. */
static void last(const conv_case *c, const world *w, double *y, const double *inputs, int32_t n, int32_t row)
{
    ref_conv(y, inputs, n, c->channels, w->weight, c->bias ? w->bias : NULL, c->width,
             c->form & NO_ACT ? SPEC_ACT_NONE : SPEC_ACT_SILU);
    for (int32_t i = 0; i < c->channels && row >= 0 && c->form & GATE_OUT; i++) y[i] *= w->gate_out[row * c->channels + i];
}

/* The input of a row: a product is rounded to f32, then to the compute type. */
static void input_of(const conv_case *c, const world *w, double *out, int32_t row)
{
    for (int32_t i = 0; i < c->channels; i++) {
        const int32_t at = row * c->channels + i;
        const double u = c->form & GATE_IN ? test_round(w->gate_in[at] * w->u[at], F32) : w->u[at];
        out[i] = test_round(u, c->dtype);
    }
}

static void expect_decode(const conv_case *c, world *w, int32_t index, int32_t row)
{
    const test_seq *s = &c->seqs[index];
    int32_t path[TEST_NODES];
    size_t channels = (size_t)c->channels, bytes = channels * sizeof(double);
    double *inputs = calloc((size_t)(NODES * 3) * channels, sizeof *inputs);
    double *replay = w->replay + (size_t)index * 2 * NODES * channels;
    int32_t before = history(c, w, s, inputs);
    const bool replays = !(c->form & NO_REPLAY);
    for (int32_t n = s->n_fed; n < s->n_node; n++) input_of(c, w, cache_at(c, w, s, s->parity, n), row + n - s->n_fed);
    for (int32_t j = 0; j < s->n_replay && replays; j++) last(c, w, replay + j * c->channels, inputs, c->width + j, -1);
    for (int32_t n = 0; n < s->n_node; n++) {
        int32_t length = test_path(s, n, path);
        for (int32_t i = 0; i < length; i++)
            memcpy(inputs + (before + i) * c->channels, cache_at(c, w, s, s->parity, path[i]), bytes);
        const int32_t r = n < s->n_fed ? -1 : row + n - s->n_fed;
        if (r < 0 && !replays) continue;
        last(c, w, r < 0 ? replay + (s->n_replay + n) * c->channels : w->y + r * c->channels, inputs, before + length, r);
    }
    for (int32_t i = 0; i < s->n_advance; i++)
        memcpy(inputs + (before + i) * c->channels, cache_at(c, w, s, s->parity, i), bytes);
    before += s->n_advance;
    for (int32_t e = 0; e < c->width - 1; e++)
        memcpy(window_at(c, w, s, s->parity, e), inputs + (before - c->width + 1 + e) * c->channels, bytes);
    free(inputs);
}

static void expect_prefill(const conv_case *c, world *w)
{
    const test_seq *s = &c->seqs[0];
    size_t channels = (size_t)c->channels, bytes = channels * sizeof(double);
    double *inputs = calloc((size_t)(NODES * 3) * channels, sizeof *inputs);
    int32_t n = history(c, w, s, inputs);
    for (int32_t r = 0; r < s->n_node; r++) {
        input_of(c, w, inputs + n * c->channels, r);
        last(c, w, w->y + r * c->channels, inputs, ++n, r);
    }
    for (int32_t e = 0; e < c->width - 1; e++)
        memcpy(window_at(c, w, s, s->parity, e), inputs + (n - c->width + 1 + e) * c->channels, bytes);
    free(inputs);
}

static void check(const test_device *d, const conv_case *c, const char *output, const test_buffer *b, const double *want,
                  size_t n)
{
    double *got = test_read(b);
    test_compare(d, c->name, output, got, want, (int32_t)(n / (size_t)c->channels), c->channels, test_tolerance(c->dtype));
    free(got);
}

static void run_case(const test_device *d, const conv_case *c)
{
    test_random random = { 7 };
    spec_step_block *step = test_step(c->phase, c->seqs, c->n_seq, c->run);
    world w = make_world(c, step->n_row_run, &random);
    test_buffer u = test_buffer_from(d, w.u, w.n_u, c->u), y = test_buffer_new(d, w.n_y, c->dtype);
    test_buffer window = test_buffer_from(d, w.window, w.n_window, c->dtype);
    test_buffer cache = test_buffer_from(d, w.cache, w.n_cache, c->dtype);
    test_buffer replay = test_buffer_new(d, w.n_replay, c->dtype);
    test_buffer weight = test_floats(d, w.weight, (size_t)c->channels * (size_t)c->width);
    test_buffer bias = test_floats(d, c->bias ? w.bias : NULL, (size_t)c->channels);
    test_buffer gate_in = test_buffer_from(d, w.gate_in, w.n_u, gate_type(c));
    test_buffer gate_out = test_buffer_from(d, w.gate_out, w.n_u, gate_type(c));
    spec_op op = { .kind = SPEC_OP_CONV };
    op.u.conv = (spec_conv_args){ .u = test_view(&u, c->channels), .n_channel = c->channels, .width = c->width,
                                  .weight = weight.data, .bias = bias.data, .dtype = c->dtype, .window = window.data,
                                  .cache = cache.data, .replay_y = c->form & NO_REPLAY ? NULL : replay.data,
                                  .n_node = NODES, .y = test_view(&y, c->channels),
                                  .act = c->form & NO_ACT ? SPEC_ACT_NONE : SPEC_ACT_SILU };
    if (c->form & GATE_IN) op.u.conv.gate_in = test_view(&gate_in, c->channels);
    if (c->form & GATE_OUT) op.u.conv.gate_out = test_view(&gate_out, c->channels);
    if (c->phase == SPEC_PHASE_PREFILL) expect_prefill(c, &w);
    else
        for (int32_t i = 0, row = 0; i < c->n_seq; row += c->seqs[i].n_node - c->seqs[i].n_fed, i++)
            expect_decode(c, &w, i, row);
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, NODES);
        check(d, c, "y", &y, w.y, (size_t)step->n_row * (size_t)c->channels);
        check(d, c, "window", &window, w.window, w.n_window);
        check(d, c, "cache", &cache, w.cache, w.n_cache);
        check(d, c, "replay_y", &replay, w.replay, w.n_replay);
    }
    test_buffer_free(&gate_out);
    test_buffer_free(&gate_in);
    test_buffer_free(&bias);
    test_buffer_free(&weight);
    test_buffer_free(&replay);
    test_buffer_free(&cache);
    test_buffer_free(&window);
    test_buffer_free(&y);
    test_buffer_free(&u);
    free_world(&w);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_conv(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_conv) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
