/* test_taps.c - hidden-state taps: hidden rows that passes keep. What is kept after the final norm is what the head multiplied, bit
 * for bit; the norm of what is kept after the last layer is that; what enters a layer is what a model without this layer and
 * those behind ends with; and rows are those of plain steps along a node's path. Prompts keep theirs chunk by chunk. Drafters that
 * ask for rows are told those of every committed token, once and in order. */
#define SPEC_EXPERIMENTAL
#include <stdio.h>

#include "algorithms/engine/engine.h"
#include "core/core_half.h"
#include "models/net/net.h"
#include "spec_lab.h"
#include "tests/late_backend.h"
#include "tests/support_model.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum {
    N_SEQ = 3, N_NODE = 24, N_ROW = N_SEQ * N_NODE, N_CTX = 220, N_PROMPT = 150, MOST_TAP = 8, MOST_DIM = 64, N_VOCAB = 96,
    OURS = 0, OTHER = 1, PLAIN = 2 /* slots */
};

static const char *const models[] = { "llama3", "mamba", "mamba2", "bamba", "lfm2" };
static const spec_dtype types[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16 };
static spec_backend *backend;

/* A model at work that keeps all there is: what enters each layer, then what leaves the last one and the norm. */
typedef struct worker {
    spec_model *model;
    test_device d;
    speci_exec *net;
    spec_queue *queue;
    spec_tap taps[MOST_TAP];
    int32_t n_tap;
    uint64_t random;
} worker;

static int32_t last_of(const worker *w) { return w->n_tap - 2; }
static int32_t norm_of(const worker *w) { return w->n_tap - 1; }
static int32_t below(uint64_t *random, int32_t n) { return (int32_t)(support_random(random) % (uint32_t)n); }

static test_device device_of(const spec_model *m)
{
    test_device d = { support_backend_name(), m->backend, m->backend->ops, m->backend->dev, NULL };
    d.io = test_row_queue(&d, m->n_vocab);
    return d;
}

static int32_t all_taps(const spec_model *m, spec_tap *taps)
{
    int32_t n = 0;
    assert_true(m->n_layer + 2 <= MOST_TAP && m->dim <= MOST_DIM && m->n_vocab == N_VOCAB);
    while (n < m->n_layer) taps[n] = (spec_tap){ SPEC_TAP_LAYER, n }, n++;
    taps[n++] = (spec_tap){ SPEC_TAP_LAST, 0 };
    taps[n++] = (spec_tap){ SPEC_TAP_NORM, 0 };
    return n;
}

static void open_worker(worker *w, spec_model *m, bool taps)
{
    *w = (worker){ .model = m, .d = device_of(m), .random = 5 };
    if (taps) w->n_tap = all_taps(m, w->taps);
    const speci_exec_params p = { .n_seq = N_SEQ, .n_ctx = N_CTX, .n_node = N_NODE, .taps = w->taps,
                                  .n_tap = w->n_tap };
    spec_plan plans[2];
    OK(speci_exec_open(&w->net, m, &p));
    speci_exec_plans(w->net, plans);
    OK(w->d.ops->queue_open(w->d.dev, &w->queue, plans, 2, m->n_vocab));
    OK(speci_exec_attach(w->net, w->queue, true));
}

static void close_worker(worker *w)
{
    speci_exec_close(w->net);
    w->d.ops->queue_close(w->queue);
    w->d.ops->queue_close(w->d.io);
}

static size_t type_bytes(spec_dtype t) { return t == SPEC_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t); }

/* Row `row` of a tensor as float32 [n]. */
static void read_row(worker *w, spec_view v, int32_t row, int32_t n, float *out)
{
    uint16_t half[MOST_DIM];
    const size_t size = type_bytes(v.dtype);
    void *to = v.dtype == SPEC_DTYPE_F32 ? (void *)out : half;
    OK(w->d.ops->download(w->queue, to, (const char *)v.data + (size_t)row * (size_t)v.ld * size, (size_t)n * size));
    OK(w->d.ops->sync(w->queue));
    for (int32_t i = 0; v.dtype != SPEC_DTYPE_F32 && i < n; i++)
        out[i] = v.dtype == SPEC_DTYPE_BF16 ? speci_from_bf16(half[i]) : speci_from_f16(half[i]);
}

/* hidden [n_tap][MOST_DIM] */
static void read_taps(worker *w, int32_t phase, int32_t row, float hidden[MOST_TAP][MOST_DIM])
{
    for (int32_t i = 0; i < w->n_tap; i++) read_row(w, speci_exec_tap(w->net, phase, i), row, w->model->dim, hidden[i]);
}

/* The operation alone, over n rows whose tokens are `token` (or NULL), into y [n][cols] f32. */
static void run_alone(const test_device *d, spec_op *op, spec_view *y, spec_dtype type, int32_t n, int32_t cols,
                      const int32_t *token, float *out)
{
    int32_t parent[N_ROW];
    for (int32_t i = 0; i < n; i++) parent[i] = i > 0 ? 0 : -1;
    const test_seq s = { .n_node = n, .parent = parent, .token = token };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    test_buffer b = test_buffer_new(d, (size_t)(n * cols), type);
    *y = test_view(&b, cols);
    test_run(d, op, step, n);
    double *got = test_read(&b);
    for (int32_t i = 0; i < n * cols; i++) out[i] = (float)got[i];
    free(got);
    free(step);
    test_buffer_free(&b);
}

/* The head's product of n rows. */
static void run_head(const test_device *d, const spec_model *m, spec_view x, int32_t n, float *logits)
{
    const model_linear *h = &m->head;
    spec_op op = { .kind = SPEC_OP_LINEAR,
                   .u.linear = { .w = h->w, .n_in = h->n_in, .n_out = h->n_out, .bias = h->bias, .x = x,
                                 .scale = m->logit_scale != 0 ? m->logit_scale : 1 } };
    run_alone(d, &op, &op.u.linear.y, SPEC_DTYPE_F32, n, m->n_vocab, NULL, logits);
}

static void expect_same(const char *what, int32_t row, const float *got, const float *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: column %d of row %d is %.9g, expected %.9g", what, i, row, (double)got[i], (double)want[i]);
}

/* --- trees --- */

typedef struct drawn {
    int32_t token[N_NODE], parent[N_NODE];
    spec_tree tree;
} drawn;

static void draw(uint64_t *random, drawn *t, int32_t root, int32_t n)
{
    t->tree = (spec_tree){ .n = n, .cap = N_NODE, .token = t->token, .parent = t->parent };
    t->token[0] = root, t->parent[0] = -1;
    for (int32_t i = 1; i < n; i++) {
        t->parent[i] = below(random, 3) ? i - 1 : below(random, i);
        t->token[i] = (t->token[t->parent[i]] * 5 + i) % N_VOCAB; /* siblings differ: i does */
    }
}

/* From the root to `node`. */
static int32_t path_to(const drawn *t, int32_t node, int32_t *path)
{
    int32_t n = 0;
    for (int32_t i = node; i >= 0; i = t->parent[i]) n++;
    for (int32_t i = node, k = n; i >= 0; i = t->parent[i]) path[--k] = i;
    return n;
}

/* Ids of a sequence, the first n_prompt of which are applied by prefill. The last one is pending. */
typedef struct text {
    int32_t ids[N_CTX], n, n_prompt;
} text;

static text make_text(int32_t n_prompt)
{
    text t = { .n = n_prompt + 1, .n_prompt = n_prompt };
    for (int32_t i = 0; i < t.n; i++) t.ids[i] = (i * 7 + 3) % N_VOCAB;
    return t;
}

static void begin(worker *w, int32_t slot, const text *t)
{
    speci_exec_begin(w->net, slot);
    OK(speci_exec_prefill(w->net, slot, t->ids, (size_t)t->n_prompt, NULL));
}

static void plain_step(worker *w, int32_t slot, int32_t token)
{
    int32_t parent = -1, path = 0;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent };
    const speci_exec_input in = { .slot = slot, .tree = &tree };
    OK(speci_exec_forward(w->net, &in, 1, NULL, NULL));
    speci_exec_commit(w->net, slot, &path, 1);
}

/* What one node's pass keeps, after all before it was applied one by one. */
static void read_plainly(worker *w, const text *t, const drawn *tree, int32_t node, float hidden[MOST_TAP][MOST_DIM])
{
    int32_t path[N_NODE], n = path_to(tree, node, path);
    begin(w, PLAIN, t);
    for (int32_t i = t->n_prompt; i < t->n - 1; i++) plain_step(w, PLAIN, t->ids[i]);
    for (int32_t i = 0; i < n; i++) plain_step(w, PLAIN, tree->token[path[i]]);
    read_taps(w, SPEC_PHASE_DECODE, 0, hidden);
    speci_exec_end(w->net, PLAIN);
}

/* --- decode --- */

/* One pass over a tree of another sequence and then ours. */
static void score(worker *w, const drawn *other, const drawn *ours)
{
    const speci_exec_input in[] = { { .slot = OTHER, .tree = &other->tree }, { .slot = OURS, .tree = &ours->tree } };
    OK(speci_exec_forward(w->net, in, 2, NULL, NULL));
    OK(w->d.ops->sync(w->queue));
}

/* Of n rows, by the operations alone: the embedding enters the first layer, the norm of what leaves the last one is what the head
 * takes, and the head makes logits of it. */
static void check_ends(worker *w, int32_t n, const int32_t *token)
{
    static float logits[N_ROW * N_VOCAB], normed[N_ROW * MOST_DIM], embedded[N_ROW * MOST_DIM], row[N_VOCAB];
    const spec_model *m = w->model;
    const spec_view x = speci_exec_tap(w->net, SPEC_PHASE_DECODE, last_of(w));
    const spec_view y = speci_exec_tap(w->net, SPEC_PHASE_DECODE, norm_of(w));
    const model_norm *a = &m->final_norm;
    spec_op norm = { .kind = SPEC_OP_NORM,
                     .u.norm = { .kind = a->kind, .dim = a->dim, .n_group = a->n_group, .eps = a->eps, .weight = a->weight,
                                 .bias = a->bias, .x = x } };
    spec_op embed = { .kind = SPEC_OP_EMBED,
                      .u.embed = { .table = m->embed, .n_vocab = m->n_vocab, .dim = m->dim, .scale = m->embed_scale } };
    int32_t ld;
    const spec_view all = { speci_exec_logits(w->net, &ld), SPEC_DTYPE_F32, m->n_vocab };
    assert_int_equal(x.dtype, SPEC_DTYPE_F32);
    assert_int_equal(y.dtype, m->dtype);
    run_head(&w->d, m, y, n, logits);
    run_alone(&w->d, &norm, &norm.u.norm.y, m->dtype, n, m->dim, NULL, normed);
    run_alone(&w->d, &embed, &embed.u.embed.y, SPEC_DTYPE_F32, n, m->dim, token, embedded);
    for (int32_t r = 0; r < n; r++) {
        float hidden[MOST_TAP][MOST_DIM];
        read_taps(w, SPEC_PHASE_DECODE, r, hidden);
        read_row(w, all, r, N_VOCAB, row);
        expect_same("head of the normed rows", r, logits + r * N_VOCAB, row, N_VOCAB);
        expect_same("norm of the last layer's rows", r, normed + r * m->dim, hidden[norm_of(w)], m->dim);
        expect_same("what enters the first layer", r, hidden[0], embedded + r * m->dim, m->dim);
    }
}

static void check_paths(worker *w, const text *t, const drawn *tree)
{
    static float in_tree[N_NODE][MOST_TAP][MOST_DIM];
    const int32_t first = speci_exec_first_row(w->net, 1);
    for (int32_t i = 0; i < tree->tree.n; i++) read_taps(w, SPEC_PHASE_DECODE, first + i, in_tree[i]);
    for (int32_t i = 0; i < tree->tree.n; i++) {
        float alone[MOST_TAP][MOST_DIM];
        char what[64];
        read_plainly(w, t, tree, i, alone);
        for (int32_t k = 0; k < w->n_tap; k++) {
            snprintf(what, sizeof what, "tap %d against plain steps", k);
            expect_same(what, i, in_tree[i][k], alone[k], w->model->dim);
        }
    }
}

static void check_decode(worker *w)
{
    text t = make_text(37), o = make_text(5);
    begin(w, OURS, &t);
    begin(w, OTHER, &o);
    for (int32_t round = 0; round < 3; round++) {
        drawn ours, other;
        int32_t token[N_ROW], path[N_NODE], n = 3 + round;
        draw(&w->random, &other, o.ids[o.n - 1], n);
        draw(&w->random, &ours, t.ids[t.n - 1], round == 0 ? N_NODE : 2 + below(&w->random, N_NODE - 2));
        score(w, &other, &ours);
        memcpy(token, other.token, (size_t)n * sizeof *token);
        memcpy(token + n, ours.token, (size_t)ours.tree.n * sizeof *token);
        check_ends(w, n + ours.tree.n, token);
        check_paths(w, &t, &ours);
        const int32_t n_path = path_to(&ours, below(&w->random, ours.tree.n), path);
        speci_exec_commit(w->net, OURS, path, n_path);
        for (int32_t i = 1; i < n_path; i++) t.ids[t.n++] = ours.token[path[i]];
        t.ids[t.n++] = below(&w->random, N_VOCAB);
    }
}

/* --- shorter models --- */

/* A model of n layers ends with what enters layer n of ours; in passes over prompts, too. */
static void check_layers(worker *w)
{
    const text t = make_text(20);
    drawn tree;
    draw(&w->random, &tree, t.ids[t.n - 1], N_NODE);
    const speci_exec_input in = { .slot = OURS, .tree = &tree.tree };
    begin(w, OURS, &t);
    OK(speci_exec_forward(w->net, &in, 1, NULL, NULL));
    for (int32_t n = 1; n < w->model->n_layer; n++) {
        spec_model shorter = *w->model;
        worker s;
        shorter.n_layer = n;
        open_worker(&s, &shorter, true);
        begin(&s, OURS, &t);
        OK(speci_exec_forward(s.net, &in, 1, NULL, NULL));
        for (int32_t phase = 0; phase < 2; phase++)
            for (int32_t r = 0; r < (phase == SPEC_PHASE_PREFILL ? t.n_prompt : N_NODE); r++) {
                float ours[MOST_TAP][MOST_DIM], theirs[MOST_TAP][MOST_DIM];
                read_taps(w, phase, r, ours);
                read_taps(&s, phase, r, theirs);
                expect_same("what enters a layer", r, ours[n], theirs[last_of(&s)], shorter.dim);
            }
        close_worker(&s);
    }
}

/* --- prefill --- */

typedef struct chunks {
    worker *w;
    int32_t n_pass, n, fail_at; /* n: positions seen */
    float hidden[N_PROMPT][MOST_TAP][MOST_DIM];
} chunks;

static spec_status see_chunk(void *arg, int32_t first, int32_t n)
{
    chunks *c = arg;
    if (c->n_pass == c->fail_at) return speci_fail(SPEC_E_ABORTED, "the chunk at %d", first);
    assert_int_equal(first, c->n);
    assert_true(n > 0 && first + n <= N_PROMPT);
    for (int32_t i = 0; i < n; i++) read_taps(c->w, SPEC_PHASE_PREFILL, i, c->hidden[first + i]);
    c->n += n;
    c->n_pass++;
    return SPEC_OK;
}

/* Prompts may be added up in another order: by the bar of logits (test_logits_families), in 16 bits by some roundings. */
static double tolerance_of(spec_dtype type) { return type == SPEC_DTYPE_F32 ? 1e-4 : type == SPEC_DTYPE_F16 ? 1e-2 : 1e-1; }

static void check_prefill(worker *w)
{
    static chunks c;
    const text t = make_text(N_PROMPT);
    c = (chunks){ .w = w, .fail_at = -1 };
    const speci_prefill_hooks hooks = { .chunk = see_chunk, .arg = &c };
    speci_exec_begin(w->net, OURS);
    OK(speci_exec_prefill(w->net, OURS, t.ids, N_PROMPT, &hooks));
    assert_int_equal(c.n, N_PROMPT);
    assert_true(c.n_pass > 1);
    speci_exec_begin(w->net, PLAIN);
    for (int32_t i = 0; i < N_PROMPT; i++) {
        float hidden[MOST_TAP][MOST_DIM];
        plain_step(w, PLAIN, t.ids[i]);
        read_taps(w, SPEC_PHASE_DECODE, 0, hidden);
        for (int32_t k = 0; k < w->n_tap; k++) {
            const double error = support_error(c.hidden[i][k], hidden[k], (size_t)w->model->dim);
            if (!(error <= tolerance_of(w->model->dtype)))
                fail_msg("position %d, tap %d: %.3g from a plain step's", i, k, error);
        }
    }
    c = (chunks){ .w = w, .fail_at = 1 };
    speci_exec_begin(w->net, OTHER);
    FAILS(speci_exec_prefill(w->net, OTHER, t.ids, N_PROMPT, &hooks), SPEC_E_ABORTED, "the chunk at");
    assert_int_equal(c.n_pass, 1);
    for (int32_t slot = 0; slot < N_SEQ; slot++) speci_exec_end(w->net, slot);
}

/* --- nothing is kept unless asked for --- */

static bool is_final_norm(const spec_model *m, const spec_op *op)
{
    return op->kind == SPEC_OP_NORM && op->u.norm.weight == m->final_norm.weight;
}

/* But for what keeps, and a prompt's final norm, plans are the same; and so is what they compute. */
static void check_plans(worker *with, worker *without)
{
    for (int32_t phase = 0; phase < 2; phase++) {
        const net_plans *a = &net_of(with->net)->plans, *b = &net_of(without->net)->plans;
        int32_t j = 0, n_keep = 0;
        for (int32_t i = 0; i < a->n_op[phase]; i++) {
            const spec_op *op = &a->ops[phase][i];
            n_keep += op->kind == SPEC_OP_KEEP;
            if (op->kind == SPEC_OP_KEEP || (phase == SPEC_PHASE_PREFILL && is_final_norm(with->model, op))) continue;
            assert_true(j < b->n_op[phase]);
            assert_int_equal(op->kind, b->ops[phase][j++].kind);
        }
        assert_int_equal(j, b->n_op[phase]);
        assert_int_equal(n_keep, with->n_tap);
    }
    const text t = make_text(9);
    drawn tree;
    draw(&with->random, &tree, t.ids[t.n - 1], N_NODE);
    const speci_exec_input in = { .slot = OURS, .tree = &tree.tree };
    worker *both[] = { with, without };
    for (int32_t k = 0; k < 2; k++) {
        begin(both[k], OURS, &t);
        OK(speci_exec_forward(both[k]->net, &in, 1, NULL, NULL));
    }
    for (int32_t r = 0; r < N_NODE; r++) {
        float rows[2][N_VOCAB];
        int32_t ld;
        for (int32_t k = 0; k < 2; k++)
            read_row(both[k], (spec_view){ speci_exec_logits(both[k]->net, &ld), SPEC_DTYPE_F32, N_VOCAB }, r, N_VOCAB, rows[k]);
        expect_same("logits with and without taps", r, rows[0], rows[1], N_VOCAB);
    }
}

static uint64_t aligned(int32_t rows, int32_t cols, spec_dtype type)
{
    return ((uint64_t)rows * (uint64_t)cols * type_bytes(type) + 255) / 256 * 256;
}

static uint64_t expected_bytes(const worker *w)
{
    const net_shape *s = &net_of(w->net)->shape;
    uint64_t n = 0;
    for (int32_t i = 0; i < w->n_tap; i++) {
        const spec_dtype type = i == norm_of(w) ? w->model->dtype : SPEC_DTYPE_F32;
        n += aligned(s->n_row_decode, w->model->dim, type) + aligned(s->chunk, w->model->dim, type);
    }
    return n;
}

static void check_memory(const worker *w)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_memory plain = { .struct_size = sizeof plain }, kept = plain;
    p.n_seq = N_SEQ, p.n_node = N_NODE, p.n_ctx = N_CTX;
    OK(spec_session_estimate(&plain, w->model, NULL, &p));
    p.taps = w->taps, p.n_tap = w->n_tap;
    OK(spec_session_estimate(&kept, w->model, NULL, &p));
    assert_int_equal(kept.bytes_state, plain.bytes_state);
    assert_int_equal(kept.bytes_kv, plain.bytes_kv);
    assert_int_equal(kept.bytes_work - plain.bytes_work, expected_bytes(w));
}

/* --- sessions --- */

/* An application's drafter: random trees. */
typedef struct proposer {
    uint64_t random;
    int32_t n_called;
} proposer;

static spec_status propose(void *user, spec_draft_request *requests, int32_t n)
{
    proposer *p = user;
    for (int32_t k = 0; k < n; k++) {
        drawn t;
        spec_tree *tree = requests[k].tree;
        draw(&p->random, &t, tree->token[0], tree->cap < N_NODE ? tree->cap : N_NODE);
        for (int32_t i = 1; i < t.tree.n; i++) spec_tree_add(tree, t.parent[i], t.token[i], 0);
        p->n_called++;
    }
    return SPEC_OK;
}

/* On every node of the sequence's scored tree, what the head makes of its tap is its logits. */
static void check_nodes(const test_device *d, spec_model *m, spec_session *s, int32_t seq, int32_t tap, int32_t n)
{
    static float logits[N_NODE * N_VOCAB];
    static double hidden[N_NODE * MOST_DIM];
    float row[N_VOCAB];
    for (int32_t i = 0; i < n; i++) {
        OK(spec_node_hidden(s, row, seq, tap, i));
        for (int32_t c = 0; c < m->dim; c++) hidden[i * m->dim + c] = (double)row[c];
    }
    test_buffer x = test_buffer_from(d, hidden, (size_t)(n * m->dim), m->dtype); /* exact: it was of this type */
    run_head(d, m, test_view(&x, m->dim), n, logits);
    for (int32_t i = 0; i < n; i++) {
        OK(spec_node_logits(s, row, seq, i));
        expect_same("head(tap) in a session", i, logits + i * N_VOCAB, row, N_VOCAB);
    }
    test_buffer_free(&x);
}

/* Random paths are committed, so that trees stand behind accepted nodes. */
static void commit_any(spec_session *s, uint64_t *random, int32_t seq, const spec_tree *t)
{
    int32_t path[N_NODE], n = 0, node = below(random, t->n);
    for (int32_t i = node; i >= 0; i = t->parent[i]) n++;
    for (int32_t i = node, k = n; i >= 0; i = t->parent[i]) path[--k] = i;
    OK(spec_commit(s, seq, path, n, below(random, N_VOCAB)));
}

static void check_session(const test_device *d, spec_model *m, spec_advance advance)
{
    proposer p = { .random = 3 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose, .user_data = &p };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    const spec_lab lab = { .struct_size = sizeof lab, .advance = advance };
    const spec_tap taps[] = { { SPEC_TAP_LAYER, 1 }, { SPEC_TAP_NORM, 0 } };
    spec_drafter *drafter;
    spec_session *s;
    const text t = make_text(30);
    uint64_t random = 8;
    int32_t seqs[2], third;
    dp.n_draft = N_NODE - 1;
    sp.n_seq = N_SEQ + 1, sp.n_ctx = N_CTX, sp.lab = &lab, sp.taps = taps, sp.n_tap = N_ELEMENTS(taps);
    OK(spec_drafter_from_ops(&drafter, &ops, &dp));
    OK(spec_session_open(&s, m, drafter, &sp));
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_add(s, &seqs[i], t.ids, (size_t)(t.n - i), NULL));
    for (int32_t round = 0; round < 4; round++) {
        const spec_tree *trees[2];
        OK(spec_draft(s, trees, seqs, 2));
        OK(spec_score(s, seqs, 2, trees));
        for (int32_t i = 0; i < 2; i++) check_nodes(d, m, s, seqs[i], 1, trees[i]->n);
        /* What is applied for others meanwhile, by passes of its own, changes nothing. */
        OK(spec_sequence_add(s, &third, t.ids, 20, NULL));
        for (int32_t i = 0; i < 2; i++) check_nodes(d, m, s, seqs[i], 1, trees[i]->n);
        OK(spec_sequence_remove(s, third));
        for (int32_t i = 0; i < 2; i++) commit_any(s, &random, seqs[i], trees[i]);
        OK(spec_draft(s, trees, seqs, 1));
        OK(spec_score(s, seqs, 1, trees));
        OK(spec_sequence_fork(s, &third, seqs[1])); /* its path is pending: applied now */
        check_nodes(d, m, s, seqs[0], 1, trees[0]->n);
        OK(spec_sequence_remove(s, third));
        commit_any(s, &random, seqs[0], trees[0]);
    }
    assert_int_equal(p.n_called, 12);
    spec_session_close(s);
    spec_drafter_close(drafter);
}

/* --- drafters that listen --- */

enum {
    N_LIVE = 4, N_ASKED = 2, N_TURN = 70, MOST_IDS = N_CTX - 110, /* room for what a turn may add */
    BY_OPS = 0, INSIDE = 1                                        /* the two drafters of a session */
};

/* What a drafter was told of a sequence. */
typedef struct told {
    int32_t first, n;         /* positions first to n - 1 */
    bool anew;                /* it began by a prefill that no rows came with: those of `first` on follow */
    int32_t ids[N_CTX], next; /* next: the id behind them */
    float rows[N_CTX][N_ASKED][MOST_DIM];
} told;

typedef struct listener {
    const spec_model *m;
    spec_tap taps[N_ASKED];
    uint64_t random;
    told of[N_LIVE];
    int32_t n_prefill, n_end, fail_in; /* fail_in: calls of hidden until one fails; 0: none does */
} listener;

/* The token at position p of seq. */
static void hear(listener *l, int32_t seq, int32_t p, int32_t id, const float *const row[N_ASKED])
{
    told *t = &l->of[seq];
    if (t->anew) t->first = t->n = p, t->anew = false;
    assert_int_equal(p, t->n);
    t->ids[t->n] = id;
    for (int32_t k = 0; k < N_ASKED; k++) memcpy(t->rows[t->n][k], row[k], (size_t)l->m->dim * sizeof(float));
    t->n++;
}

static spec_status begin_or_fail(listener *l, const int32_t *ids, size_t n, int32_t first, int32_t n_row)
{
    assert_true(n_row > 0 && (size_t)(first + n_row) < n);
    assert_true(ids[first + n_row] >= 0 && ids[first + n_row] < N_VOCAB);
    return l->fail_in > 0 && --l->fail_in == 0 ? spec_fail(SPEC_E_ABORTED, "rows are not wanted") : SPEC_OK;
}

static spec_status ops_hidden(void *user, int32_t seq, const int32_t *ids, size_t n, int32_t first, int32_t n_row,
                              const float *const *rows)
{
    listener *l = user;
    const size_t dim = (size_t)l->m->dim;
    SPEC_TRY(begin_or_fail(l, ids, n, first, n_row));
    for (int32_t i = 0; i < n_row; i++) {
        const float *row[N_ASKED];
        for (int32_t k = 0; k < N_ASKED; k++) row[k] = rows[k] + (size_t)i * dim;
        hear(l, seq, first + i, ids[first + i], row);
    }
    l->of[seq].next = ids[first + n_row];
    return SPEC_OK;
}

/* Rows of a prompt have come before it; or none ever will. */
static spec_status ops_prefill(void *user, int32_t seq, const int32_t *ids, size_t n)
{
    listener *l = user;
    (void)ids;
    l->of[seq].anew = l->of[seq].n != (int32_t)n - 1;
    l->n_prefill++;
    return SPEC_OK;
}

static spec_status ops_fork(void *user, int32_t seq, int32_t copy)
{
    listener *l = user;
    l->of[copy] = l->of[seq];
    return SPEC_OK;
}

static spec_status ops_save(void *user, int32_t seq, spec_write_fn write, void *data)
{
    listener *l = user;
    return write(data, &l->of[seq], sizeof l->of[seq]) ? SPEC_E_IO : SPEC_OK;
}

static spec_status ops_restore(void *user, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *data)
{
    listener *l = user;
    (void)ids, (void)n;
    return read(data, &l->of[seq], sizeof l->of[seq]) ? SPEC_E_IO : SPEC_OK;
}

static void ops_end(void *user, int32_t seq)
{
    listener *l = user;
    l->of[seq].n = l->of[seq].first = 0;
    l->n_end++;
}

static spec_status ops_draft(void *user, spec_draft_request *requests, int32_t n)
{
    listener *l = user;
    proposer p = { .random = l->random };
    const spec_status status = propose(&p, requests, n);
    l->random = p.random;
    return status;
}

static spec_drafter_ops listening(listener *l)
{
    return (spec_drafter_ops){ .struct_size = sizeof(spec_drafter_ops), .user_data = l, .draft = ops_draft, .prefill = ops_prefill,
                               .fork = ops_fork, .save = ops_save, .restore = ops_restore, .identity = 7, .end = ops_end,
                               .taps = l->taps, .n_tap = N_ASKED, .hidden = ops_hidden };
}

/* The same inside the library: it proposes nothing, and reads rows where the pass has left them. */
static spec_status inner_hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    listener *l = d->drafter->own;
    worker reader = { .d = { .ops = d->site->ops }, .queue = d->site->queue };
    SPEC_TRY(begin_or_fail(l, q->ids, (size_t)q->n_ids, h->first, h->n));
    for (int32_t i = 0; i < h->n; i++) {
        float rows[N_ASKED][MOST_DIM];
        const float *const row[N_ASKED] = { rows[0], rows[1] };
        for (int32_t k = 0; k < N_ASKED; k++) read_row(&reader, h->taps[k], speci_hidden_row(h, i), l->m->dim, rows[k]);
        hear(l, q->seq, h->first + i, q->ids[h->first + i], row);
    }
    l->of[q->seq].next = q->ids[h->first + h->n];
    return SPEC_OK;
}

static spec_status inner_enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)d, (void)b, (void)seqs, (void)n;
    return SPEC_OK;
}

static spec_status inner_fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    return ops_fork(d->drafter->own, q->seq, to);
}

static void inner_end(speci_draft *d, int32_t seq) { ops_end(d->drafter->own, seq); }

static uint64_t inner_identity(const spec_drafter *d)
{
    (void)d;
    return 9;
}

static spec_status inner_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    const listener *l = d->drafter->own;
    *bytes = sizeof l->of[q->seq];
    return put ? put(arg, &l->of[q->seq], sizeof l->of[q->seq]) : SPEC_OK;
}

static spec_status inner_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    listener *l = d->drafter->own;
    assert_int_equal(bytes, sizeof l->of[q->seq]);
    return get(arg, &l->of[q->seq], sizeof l->of[q->seq]);
}

static const speci_draft_kind inner_kind = {
    .name = "listener", .hidden = inner_hidden, .enqueue = inner_enqueue, .fork = inner_fork, .end = inner_end,
    .identity = inner_identity, .save = inner_save, .restore = inner_restore,
};

/* How the tokens of a sequence were applied: parts of prompts, and steps one by one. */
typedef struct history {
    int32_t n, part[N_CTX]; /* > 0: so many tokens of a prompt; 0: a step */
    bool scored[N_CTX];     /* its logits are known: */
    float logits[N_CTX][N_VOCAB];
} history;

typedef struct scene {
    worker *w;
    spec_session *s;
    listener heard[2];
    spec_drafter *drafter[2];
    history past[N_LIVE];
    bool live[N_LIVE];
    uint64_t random;
} scene;

static spec_drafter *open_inner(listener *l)
{
    spec_drafter *d;
    OK(speci_drafter_create(&d, &inner_kind, NULL, NULL, false));
    OK(speci_drafter_take_taps(d, l->taps, N_ASKED));
    d->own = l;
    return d;
}

/* The drafters' taps are partly each other's and the session's. */
static void open_scene(scene *c, worker *w, const spec_session_params *params)
{
    const spec_tap own[] = { { SPEC_TAP_LAYER, 0 }, { SPEC_TAP_LAST, 0 } };
    const listener by_ops = { .m = w->model, .taps = { { SPEC_TAP_LAYER, 1 }, { SPEC_TAP_NORM, 0 } }, .random = 3 };
    const listener inside = { .m = w->model, .taps = { { SPEC_TAP_NORM, 0 }, { SPEC_TAP_LAST, 0 } } };
    spec_session_params p = *params;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    memset(c, 0, sizeof *c);
    c->w = w, c->random = 11;
    c->heard[BY_OPS] = by_ops, c->heard[INSIDE] = inside;
    const spec_drafter_ops ops = listening(&c->heard[BY_OPS]);
    dp.n_draft = N_NODE - 1;
    OK(spec_drafter_from_ops(&c->drafter[BY_OPS], &ops, &dp));
    c->drafter[INSIDE] = open_inner(&c->heard[INSIDE]);
    p.n_seq = N_LIVE, p.n_ctx = N_CTX, p.taps = own, p.n_tap = N_ELEMENTS(own), p.drafters = c->drafter, p.n_drafter = 2;
    OK(spec_session_open(&c->s, w->model, NULL, &p));
}

static void close_scene(scene *c)
{
    spec_session_close(c->s);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(c->drafter[k]);
}

static int32_t ids_of(const scene *c, int32_t seq, const int32_t **ids)
{
    size_t n;
    OK(spec_sequence_ids(c->s, ids, &n, seq));
    return (int32_t)n;
}

/* --- what they must have been told: the rows of plain steps, and of prompts applied alike, one sequence alone --- */

static float reference[N_CTX][MOST_TAP][MOST_DIM];

static spec_status see_reference(void *arg, int32_t first, int32_t n)
{
    worker *w = arg;
    for (int32_t i = 0; i < n; i++) read_taps(w, SPEC_PHASE_PREFILL, i, reference[first + i]);
    return SPEC_OK;
}

static void make_reference(worker *w, const history *h, const int32_t *ids, int32_t n)
{
    const speci_prefill_hooks hooks = { .chunk = see_reference, .arg = w };
    int32_t at = 0;
    speci_exec_begin(w->net, PLAIN);
    for (int32_t i = 0; i < h->n && at < n; i++) {
        if (h->part[i] > 0) OK(speci_exec_prefill(w->net, PLAIN, ids + at, (size_t)h->part[i], &hooks));
        else plain_step(w, PLAIN, ids[at]), read_taps(w, SPEC_PHASE_DECODE, 0, reference[at]);
        at += h->part[i] > 0 ? h->part[i] : 1;
    }
    assert_true(at >= n);
    speci_exec_end(w->net, PLAIN);
}

static int32_t number_of(const worker *w, const spec_tap *tap)
{
    int32_t i = 0;
    while (w->taps[i].where != tap->where || w->taps[i].layer != tap->layer) i++;
    assert_true(i < w->n_tap);
    return i;
}

/* head(tap after the final norm) = logits, where these were read. */
static void check_heads(const worker *w, const history *h, const told *t, int32_t norm)
{
    static float logits[N_NODE * N_VOCAB];
    double row[N_NODE * MOST_DIM];
    const int32_t dim = w->model->dim;
    for (int32_t at = 0; at < t->n; at += N_NODE) {
        const int32_t n = t->n - at < N_NODE ? t->n - at : N_NODE;
        for (int32_t i = 0; i < n * dim; i++) row[i] = (double)t->rows[at + i / dim][norm][i % dim];
        test_buffer x = test_buffer_from(&w->d, row, (size_t)(n * dim), w->model->dtype); /* exact: it was of this type */
        run_head(&w->d, w->model, test_view(&x, dim), n, logits);
        for (int32_t i = 0; i < n; i++)
            if (h->scored[at + i]) expect_same("head of a told row", at + i, logits + i * N_VOCAB, h->logits[at + i], N_VOCAB);
        test_buffer_free(&x);
    }
}

static void check_told(scene *c, int32_t seq)
{
    worker *w = c->w;
    const int32_t *ids, n_ids = ids_of(c, seq, &ids);
    make_reference(w, &c->past[seq], ids, c->heard[BY_OPS].of[seq].n);
    for (int32_t k = 0; k < 2; k++) {
        const listener *l = &c->heard[k];
        const told *t = &l->of[seq];
        assert_true(t->n < n_ids && (t->n == 0 || t->next == ids[t->n]));
        assert_int_equal(t->n, c->heard[BY_OPS].of[seq].n);
        for (int32_t i = 0; i < t->n; i++) {
            assert_int_equal(t->ids[i], ids[i]);
            for (int32_t a = 0; a < N_ASKED; a++)
                expect_same("a told row", i, t->rows[i][a], reference[i][number_of(w, &l->taps[a])], w->model->dim);
        }
        check_heads(w, &c->past[seq], t, k == BY_OPS ? 1 : 0);
    }
}

/* --- turns: everything that brings tokens, in any order --- */

static int32_t live_of(const scene *c, int32_t *seqs)
{
    int32_t n = 0;
    for (int32_t i = 0; i < N_LIVE; i++)
        if (c->live[i]) seqs[n++] = i;
    return n;
}

/* All but the pending token have been told. */
static bool is_told(const scene *c, int32_t seq)
{
    const int32_t *ids;
    return c->heard[BY_OPS].of[seq].n == ids_of(c, seq, &ids) - 1;
}

static void note_part(history *h, int32_t n)
{
    if (n > 0) h->part[h->n++] = n;
}

static void add_one(scene *c)
{
    const text t = make_text(10 + below(&c->random, 90));
    const spec_request r = { .struct_size = sizeof r, .ignore_eos = 1 };
    const int32_t first = below(&c->random, 9); /* so that prompts differ */
    int32_t seq, seqs[N_LIVE];
    if (live_of(c, seqs) == N_LIVE) return;
    OK(spec_sequence_add(c->s, &seq, t.ids + first, (size_t)(t.n_prompt - 9), &r));
    memset(&c->past[seq], 0, sizeof c->past[seq]);
    c->live[seq] = true;
    note_part(&c->past[seq], t.n_prompt - 10);
}

static void remove_one(scene *c, int32_t seq)
{
    check_told(c, seq);
    OK(spec_sequence_remove(c->s, seq));
    c->live[seq] = false;
}

static void append_to(scene *c, int32_t seq)
{
    const text t = make_text(1 + below(&c->random, 40));
    OK(spec_sequence_append(c->s, seq, t.ids + 1, (size_t)t.n_prompt, NULL));
    note_part(&c->past[seq], t.n_prompt); /* the pending token, and all that was appended but the last */
}

static void fork_one(scene *c, int32_t seq)
{
    int32_t copy, seqs[N_LIVE];
    if (live_of(c, seqs) == N_LIVE) return;
    OK(spec_sequence_fork(c->s, &copy, seq));
    c->past[copy] = c->past[seq];
    c->live[copy] = true;
}

static int put_bytes(void *user, const void *data, size_t n) { return speci_buf_add(user, data, n) == SPEC_OK ? 0 : 1; }

typedef struct source {
    const speci_buf *buf;
    size_t at;
} source;

static int get_bytes(void *user, void *data, size_t n)
{
    source *f = user;
    if (n > f->buf->n - f->at) return 1;
    memcpy(data, f->buf->data + f->at, n);
    f->at += n;
    return 0;
}

/* It goes on where it may find another's place. */
static void save_and_restore(scene *c, int32_t seq)
{
    static history past;
    speci_buf buf = { .a = NULL };
    int32_t again, seqs[N_LIVE];
    OK(spec_sequence_save(c->s, seq, put_bytes, &buf));
    past = c->past[seq];
    remove_one(c, seq);
    if (live_of(c, seqs) < N_LIVE - 1) add_one(c);
    OK(spec_sequence_restore(c->s, &again, get_bytes, &(source){ .buf = &buf }));
    c->past[again] = past;
    c->live[again] = true;
    speci_buf_free(&buf);
}

/* The four calls: a random path of each tree is committed, its logits kept. */
static void commit_random(scene *c, int32_t seq, const spec_tree *t)
{
    history *h = &c->past[seq];
    const int32_t *ids, n_ids = ids_of(c, seq, &ids);
    int32_t path[N_NODE], n = 0;
    for (int32_t i = below(&c->random, t->n); i >= 0; i = t->parent[i]) path[n++] = i;
    for (int32_t i = 0; i < n / 2; i++) {
        const int32_t other = path[i];
        path[i] = path[n - 1 - i], path[n - 1 - i] = other;
    }
    for (int32_t i = 0; i < n; i++) {
        OK(spec_node_logits(c->s, h->logits[n_ids - 1 + i], seq, path[i]));
        h->scored[n_ids - 1 + i] = true;
        h->part[h->n++] = 0;
    }
    OK(spec_commit(c->s, seq, path, n, below(&c->random, N_VOCAB)));
}

static void four_calls(scene *c)
{
    const spec_tree *trees[N_LIVE];
    int32_t seqs[N_LIVE], n = live_of(c, seqs);
    if (n > 1 && below(&c->random, 2)) seqs[0] = seqs[n - 1], n--; /* not always all, nor in order */
    OK(spec_draft(c->s, trees, seqs, n));
    if (below(&c->random, 3) == 0) { /* a score that comes to nothing */
        OK(spec_score(c->s, seqs, n, trees));
        OK(spec_rollback(c->s, seqs[0]));
    }
    OK(spec_score(c->s, seqs, n, trees));
    if (below(&c->random, 3) == 0) add_one(c); /* applied meanwhile */
    for (int32_t i = n - 1; i >= 0; i--) commit_random(c, seqs[i], trees[i]);
}

/* Steps over every live sequence; those whose prompts are consumed take part. */
static void steps(scene *c)
{
    for (int32_t k = 1 + below(&c->random, 3); k > 0; k--) {
        const spec_step_result *r[N_LIVE];
        int32_t seqs[N_LIVE], n = live_of(c, seqs);
        if (below(&c->random, 3) == 0) n = 1;
        OK(spec_step(c->s, r, seqs, n));
        for (int32_t i = 0; i < n; i++)
            for (int32_t j = 0; j < r[i]->n_tokens; j++) c->past[seqs[i]].part[c->past[seqs[i]].n++] = 0;
    }
}

static void take_turn(scene *c)
{
    int32_t seqs[N_LIVE], n = live_of(c, seqs);
    if (n == 0) {
        add_one(c);
        return;
    }
    const int32_t *ids, seq = seqs[below(&c->random, n)];
    for (int32_t i = 0; i < n; i++)
        if (ids_of(c, seqs[i], &ids) > MOST_IDS) {
            remove_one(c, seqs[i]);
            return;
        }
    switch (below(&c->random, 10)) {
    case 0: case 1: add_one(c); break;
    case 2: remove_one(c, seq); break;
    case 3: if (is_told(c, seq)) append_to(c, seq); break;
    case 4: fork_one(c, seq); break;
    case 5: save_and_restore(c, seq); break;
    case 6: case 7: four_calls(c); break;
    default: steps(c); break;
    }
}

/* A clock that does not depend on the machine: what it chooses does not. */
static double tick(void)
{
    static double now;
    return now += 1;
}

static void play(worker *w, const spec_session_params *params)
{
    static scene c;
    open_scene(&c, w, params);
    c.s->now_ms = tick;
    for (int32_t i = 0; i < N_TURN; i++) take_turn(&c);
    for (int32_t i = 0; i < N_LIVE; i++)
        if (c.live[i]) remove_one(&c, i);
    assert_int_equal(c.heard[BY_OPS].n_end, c.heard[INSIDE].n_end);
    close_scene(&c);
}

static void play_all(worker *w)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    const spec_lab joint = { .struct_size = sizeof joint, .advance = SPEC_ADVANCE_JOINT };
    play(w, &p);
    p.n_prompt_step = backend->info.prefill_rows[0]; /* prompts are consumed by the steps */
    play(w, &p);
    p.adapt = SPEC_ADAPT_UCB; /* and some steps are plain ones */
    play(w, &p);
    p = (spec_session_params)SPEC_SESSION_PARAMS_INIT;
    p.lab = &joint;
    play(w, &p);
}

/* --- what may go wrong --- */

static void open_listening(spec_session **s, spec_drafter **d, spec_model *m, listener *l, bool keeps_state, int32_t n_prompt_step)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    memset(l, 0, sizeof *l);
    l->m = m, l->random = 5;
    l->taps[0] = (spec_tap){ SPEC_TAP_LAST, 0 }, l->taps[1] = (spec_tap){ SPEC_TAP_NORM, 0 };
    spec_drafter_ops ops = listening(l);
    if (!keeps_state) ops.fork = NULL, ops.save = NULL, ops.restore = NULL;
    dp.n_draft = N_NODE - 1;
    p.n_seq = N_LIVE, p.n_ctx = N_CTX, p.n_prompt_step = n_prompt_step;
    OK(spec_drafter_from_ops(d, &ops, &dp));
    OK(spec_session_open(s, m, *d, &p));
}

/* A prompt's or a path's rows that the drafter did not take: the call says so, the sequence is lost, and no other. */
static void check_refusals(worker *w)
{
    static listener l;
    const spec_tree *trees[2];
    const spec_step_result *r;
    const text t = make_text(90);
    const int32_t root = 0;
    spec_session *s;
    spec_drafter *d;
    int32_t seqs[2], other;
    open_listening(&s, &d, w->model, &l, true, 0);
    l.fail_in = 2;
    FAILS(spec_sequence_add(s, &other, t.ids, 90, NULL), SPEC_E_ABORTED, "rows are not wanted");
    assert_int_equal(l.n_end, 1);
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_add(s, &seqs[i], t.ids + i, 20, NULL));
    OK(spec_draft(s, trees, seqs, 2));
    OK(spec_score(s, seqs, 2, trees));
    l.fail_in = 1;
    FAILS(spec_commit(s, seqs[0], &root, 1, 3), SPEC_E_ABORTED, "rows are not wanted");
    OK(spec_commit(s, seqs[1], &root, 1, 3));
    FAILS(spec_step(s, &r, &seqs[0], 1), SPEC_E_STATE, "");
    OK(spec_step(s, &r, &seqs[1], 1));
    OK(spec_sequence_remove(s, seqs[0]));
    OK(spec_sequence_add(s, &seqs[0], t.ids, 20, NULL));
    const spec_step_result *both[2];
    l.fail_in = 1; /* of two sequences in one step the first */
    const int32_t n = l.of[seqs[1]].n;
    FAILS(spec_step(s, both, seqs, 2), SPEC_E_ABORTED, "rows are not wanted");
    assert_true(l.of[seqs[1]].n > n);
    FAILS(spec_step(s, &r, &seqs[0], 1), SPEC_E_STATE, "");
    OK(spec_step(s, &r, &seqs[1], 1));
    spec_session_close(s);
    spec_drafter_close(d);

    open_listening(&s, &d, w->model, &l, true, backend->info.prefill_rows[0]);
    OK(spec_sequence_add(s, &seqs[0], t.ids, 90, NULL));
    l.fail_in = 1;
    FAILS(spec_step(s, &r, seqs, 1), SPEC_E_ABORTED, "rows are not wanted");
    FAILS(spec_step(s, &r, seqs, 1), SPEC_E_STATE, "");
    spec_session_close(s);
    spec_drafter_close(d);
}

/* A drafter that keeps nothing for copies and saved sequences begins them by prefill, and hears from the pending token on. */
static void check_beginning_anew(worker *w)
{
    static listener l;
    const text t = make_text(30);
    const spec_step_result *r;
    const int32_t *ids;
    spec_session *s;
    spec_drafter *d;
    speci_buf buf = { .a = NULL };
    int32_t seqs[3];
    size_t n[3];
    open_listening(&s, &d, w->model, &l, false, 0);
    OK(spec_sequence_add(s, &seqs[0], t.ids, 30, &(spec_request){ .struct_size = sizeof(spec_request), .ignore_eos = 1 }));
    for (int32_t i = 0; i < 3; i++) OK(spec_step(s, &r, seqs, 1));
    OK(spec_sequence_fork(s, &seqs[1], seqs[0]));
    OK(spec_sequence_save(s, seqs[0], put_bytes, &buf));
    OK(spec_sequence_restore(s, &seqs[2], get_bytes, &(source){ .buf = &buf }));
    assert_int_equal(l.n_prefill, 3);
    for (int32_t i = 0; i < 3; i++) OK(spec_sequence_ids(s, &ids, &n[i], seqs[i]));
    for (int32_t k = 0; k < 2; k++)
        for (int32_t i = 2; i >= 0; i--) OK(spec_step(s, &r, &seqs[i], 1));
    for (int32_t i = 1; i < 3; i++) {
        const told *whole = &l.of[seqs[0]], *part = &l.of[seqs[i]];
        assert_int_equal(part->first, (int32_t)n[i] - 1);
        const int32_t end = whole->n < part->n ? whole->n : part->n; /* their texts are one */
        assert_true(end > part->first);
        for (int32_t p = part->first; p < end; p++) {
            assert_int_equal(part->ids[p], whole->ids[p]);
            expect_same("rows behind a prefill", p, part->rows[p][0], whole->rows[p][0], l.m->dim);
        }
    }
    speci_buf_free(&buf);
    spec_session_close(s);
    spec_drafter_close(d);
}

/* What several ask for is kept once. */
static void check_shared_memory(worker *w)
{
    static listener l;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_memory m[4];
    const spec_tap own = { SPEC_TAP_LAST, 0 };
    spec_drafter *d[2];
    l = (listener){ .m = w->model, .taps = { { SPEC_TAP_LAST, 0 }, { SPEC_TAP_NORM, 0 } } };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter_ops ops = listening(&l), deaf = ops;
    deaf.taps = NULL, deaf.n_tap = 0, deaf.hidden = NULL;
    dp.n_draft = N_NODE - 1;
    OK(spec_drafter_from_ops(&d[0], &deaf, &dp));
    OK(spec_drafter_from_ops(&d[1], &ops, &dp));
    p.n_seq = N_SEQ, p.n_ctx = N_CTX;
    for (int32_t i = 0; i < 4; i++) {
        m[i] = (spec_memory){ .struct_size = sizeof m[i] };
        p.taps = &own, p.n_tap = i % 2;
        OK(spec_session_estimate(&m[i], w->model, d[i / 2], &p));
    }
    const net_shape *s = &net_of(w->net)->shape;
    const uint64_t last = aligned(s->n_row_decode, w->model->dim, SPEC_DTYPE_F32) + aligned(s->chunk, w->model->dim, SPEC_DTYPE_F32);
    const uint64_t norm = aligned(s->n_row_decode, w->model->dim, w->model->dtype) + aligned(s->chunk, w->model->dim, w->model->dtype);
    assert_int_equal(m[1].bytes_work - m[0].bytes_work, last);
    assert_int_equal(m[2].bytes_work - m[0].bytes_work, last + norm);
    assert_int_equal(m[3].bytes_work, m[2].bytes_work);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(d[k]);
}

static void wrong_listeners_are_refused(void **state)
{
    (void)state;
    static listener l;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    spec_drafter *d;
    spec_session *s;
    l = (listener){ .m = m, .taps = { { SPEC_TAP_LAYER, 0 }, { SPEC_TAP_LAYER, m->n_layer } } };
    const spec_drafter_ops good = listening(&l);
    spec_drafter_ops o = good;
    o.hidden = NULL;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "taps and the callback hidden");
    o = good, o.n_tap = 0;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "taps and the callback hidden");
    o = good, o.n_tap = -1;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "a list of -1 taps");
    o = good, o.taps = NULL;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "a list of 2 taps");
    assert_null(d);
    OK(spec_drafter_from_ops(&d, &good, NULL));
    FAILS(spec_session_open(&s, m, d, NULL), SPEC_E_INVALID, "tap 1: there is no place");
    spec_drafter_close(d);
    spec_model_close(m);
}

/* --- the tests: of every model, in every type --- */

static void each_model(void (*check)(worker *w))
{
    for (int32_t i = 0; i < N_ELEMENTS(models); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) {
            char path[256];
            worker w;
            snprintf(path, sizeof path, "%s%s", GOLDEN, models[i]);
            spec_model *m = support_model(backend, path, types[k]);
            open_worker(&w, m, true);
            check(&w);
            close_worker(&w);
            spec_model_close(m);
        }
}

static void taps_of_trees(void **state)
{
    (void)state;
    each_model(check_decode);
}

static void taps_of_layers(void **state)
{
    (void)state;
    each_model(check_layers);
}

/* Passes as small as the device takes them: prompts have several. */
static void taps_of_prompts(void **state)
{
    (void)state;
    const int32_t second = backend->info.prefill_rows[1];
    backend->info.prefill_rows[1] = 0;
    each_model(check_prefill);
    backend->info.prefill_rows[1] = second;
}

static void check_unasked(worker *w)
{
    worker without;
    open_worker(&without, w->model, false);
    check_plans(w, &without);
    check_memory(w);
    close_worker(&without);
}

static void nothing_is_kept_unasked(void **state)
{
    (void)state;
    each_model(check_unasked);
}

static void check_sessions(worker *w)
{
    for (int32_t i = 0; i < 2; i++) check_session(&w->d, w->model, (spec_advance)i);
}

static void taps_of_sessions(void **state)
{
    (void)state;
    each_model(check_sessions);
}

/* Prompts have several passes here, too. */
static void each_listening(void (*check)(worker *w))
{
    const int32_t second = backend->info.prefill_rows[1];
    backend->info.prefill_rows[1] = 0;
    each_model(check);
    backend->info.prefill_rows[1] = second;
}

/* A pass of a prompt has more rows than an application is told at once. */
static void check_large_passes(worker *w)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    play(w, &p);
}

static void drafters_are_told_of_large_passes(void **state)
{
    (void)state;
    int32_t *rows = backend->info.prefill_rows;
    const int32_t first = rows[0];
    if (rows[0] < 2 * (SPEC_MAX_DEPTH + 1)) rows[0] = 2 * (SPEC_MAX_DEPTH + 1);
    each_listening(check_large_passes);
    rows[0] = first;
}

static void check_listeners(worker *w)
{
    play_all(w);
    check_refusals(w);
    check_beginning_anew(w);
    check_shared_memory(w);
}

static void drafters_are_told(void **state)
{
    (void)state;
    each_listening(check_listeners);
}

/* Results that the host does not wait for are no numbers; and steps could run ahead. */
static void drafters_are_told_late(void **state)
{
    spec_backend *const own = backend;
    const spec_backend_params p = { .struct_size = sizeof p, .n_threads = 1 };
    (void)state;
    late_reset();
    OK(spec_backend_open_ops(&backend, &late_ops, NULL, &p));
    each_listening(play_all);
    spec_backend_close(backend);
    backend = own;
}

static void expect_refused(spec_model *m, const spec_tap *taps, int32_t n_tap)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_memory memory = { .struct_size = sizeof memory };
    spec_session *s;
    p.taps = taps, p.n_tap = n_tap;
    FAILS(spec_session_open(&s, m, NULL, &p), SPEC_E_INVALID, "tap");
    FAILS(spec_session_estimate(&memory, m, NULL, &p), SPEC_E_INVALID, "tap");
}

static void wrong_taps_are_refused(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_BF16);
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 1));
    assert_int_equal(info.dim, m->dim);
    const spec_tap wrong[] = { { SPEC_TAP_LAYER, info.n_layer }, { SPEC_TAP_LAYER, -1 }, { SPEC_TAP_LAST, 1 },
                               { SPEC_TAP_NORM, 1 }, { SPEC_TAP_NORM + 1, 0 }, { -1, 0 } };
    for (int32_t i = 0; i < N_ELEMENTS(wrong); i++) expect_refused(m, &wrong[i], 1);
    expect_refused(m, NULL, 1);
    expect_refused(m, wrong, -1);

    const spec_tap right = { SPEC_TAP_LAST, 0 };
    const int32_t ids[] = { 1, 2 }, parent = -1;
    const spec_tree tree = { .n = 1, .cap = 1, .token = (int32_t *)&ids[1], .parent = (int32_t *)&parent }, *trees = &tree;
    for (int32_t n_tap = 0; n_tap < 2; n_tap++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_session *s;
        float row[MOST_DIM];
        int32_t seq;
        p.taps = &right, p.n_tap = n_tap;
        OK(spec_session_open(&s, m, NULL, &p));
        OK(spec_sequence_add(s, &seq, ids, 2, NULL));
        FAILS(spec_node_hidden(s, row, seq, 0, 0), SPEC_E_STATE, "scored");
        OK(spec_score(s, &seq, 1, &trees));
        FAILS(spec_node_hidden(s, row, seq, n_tap, 0), SPEC_E_INVALID, "tap");
        FAILS(spec_node_hidden(s, row, seq, -1, 0), SPEC_E_INVALID, "tap");
        if (n_tap) OK(spec_node_hidden(s, row, seq, 0, 0));
        if (n_tap) FAILS(spec_node_hidden(s, row, seq, 0, 1), SPEC_E_INVALID, "node 1");
        spec_session_close(s);
    }
    spec_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taps_of_trees),           cmocka_unit_test(taps_of_layers),
        cmocka_unit_test(taps_of_prompts),         cmocka_unit_test(nothing_is_kept_unasked),
        cmocka_unit_test(taps_of_sessions),        cmocka_unit_test(wrong_taps_are_refused),
        cmocka_unit_test(drafters_are_told),       cmocka_unit_test(drafters_are_told_late),
        cmocka_unit_test(drafters_are_told_of_large_passes), cmocka_unit_test(wrong_listeners_are_refused),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
