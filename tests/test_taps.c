/* test_taps.c - hidden-state taps: hidden rows that passes keep. What is kept after the final norm is what the head multiplied,
 * bit for bit; the norm of what is kept after the last layer is that; what enters a layer is what a model without this layer and
 * those behind ends with; and rows are those of plain steps along a node's path. Prompts keep theirs chunk by chunk. */
#define SPEC_EXPERIMENTAL
#include <stdio.h>

#include "models/net/net.h"
#include "spec_lab.h"
#include "tests/support_taps.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *backend;

static int32_t last_of(const taps_worker *w) { return w->n_tap - 2; }
static int32_t norm_of(const taps_worker *w) { return w->n_tap - 1; }

/* --- trees --- */

/* From the root to `node`. */
static int32_t path_to(const taps_tree *t, int32_t node, int32_t *path)
{
    int32_t n = 0;
    for (int32_t i = node; i >= 0; i = t->parent[i]) n++;
    for (int32_t i = node, k = n; i >= 0; i = t->parent[i]) path[--k] = i;
    return n;
}

static void begin(taps_worker *w, int32_t slot, const taps_text *t)
{
    w->net->kind->begin(w->net, slot);
    OK(w->net->kind->prefill(w->net, slot, t->ids, (size_t)t->n_prompt, NULL));
}

/* What one node's pass keeps, after all before it was applied one by one. */
static void read_plainly(taps_worker *w, const taps_text *t, const taps_tree *tree, int32_t node,
                         float hidden[MOST_TAP][MOST_DIM])
{
    int32_t path[N_NODE], n = path_to(tree, node, path);
    begin(w, PLAIN, t);
    for (int32_t i = t->n_prompt; i < t->n - 1; i++) taps_plain_step(w, PLAIN, t->ids[i]);
    for (int32_t i = 0; i < n; i++) taps_plain_step(w, PLAIN, tree->token[path[i]]);
    taps_read(w, SPEC_PHASE_DECODE, 0, hidden);
    w->net->kind->end(w->net, PLAIN);
}

/* --- decode --- */

/* One pass over a tree of another sequence and then ours. */
static void score(taps_worker *w, const taps_tree *other, const taps_tree *ours)
{
    const speci_exec_input in[] = { { .slot = OTHER, .tree = &other->tree }, { .slot = OURS, .tree = &ours->tree } };
    OK(w->net->kind->forward(w->net, in, 2, NULL, NULL));
    OK(w->d.ops->sync(w->queue));
}

/* Of n rows, by the operations alone: the embedding enters the first layer, the norm of what leaves the last one is what the head
 * takes, and the head makes logits of it. */
static void check_ends(taps_worker *w, int32_t n, const int32_t *token)
{
    static float logits[N_ROW * N_VOCAB], normed[N_ROW * MOST_DIM], embedded[N_ROW * MOST_DIM], row[N_VOCAB];
    const spec_model *m = w->model;
    const spec_view x = w->net->kind->tap(w->net, SPEC_PHASE_DECODE, last_of(w));
    const spec_view y = w->net->kind->tap(w->net, SPEC_PHASE_DECODE, norm_of(w));
    const model_norm *a = &m->final_norm;
    spec_op norm = { .kind = SPEC_OP_NORM,
                     .u.norm = { .kind = a->kind, .dim = a->dim, .n_group = a->n_group, .eps = a->eps, .weight = a->weight,
                                 .bias = a->bias, .x = x } };
    spec_op embed = { .kind = SPEC_OP_EMBED,
                      .u.embed = { .table = m->embed, .n_vocab = m->n_vocab, .dim = m->dim, .scale = m->embed_scale } };
    const spec_view all = { w->net->logits, SPEC_DTYPE_F32, m->n_vocab };
    assert_int_equal(x.dtype, SPEC_DTYPE_F32);
    assert_int_equal(y.dtype, m->dtype);
    taps_run_head(&w->d, m, y, n, logits);
    taps_run_alone(&w->d, &norm, &norm.u.norm.y, m->dtype, n, m->dim, NULL, normed);
    taps_run_alone(&w->d, &embed, &embed.u.embed.y, SPEC_DTYPE_F32, n, m->dim, token, embedded);
    for (int32_t r = 0; r < n; r++) {
        float hidden[MOST_TAP][MOST_DIM];
        taps_read(w, SPEC_PHASE_DECODE, r, hidden);
        taps_read_row(w, all, r, N_VOCAB, row);
        taps_expect_same("head of the normed rows", r, logits + r * N_VOCAB, row, N_VOCAB);
        taps_expect_same("norm of the last layer's rows", r, normed + r * m->dim, hidden[norm_of(w)], m->dim);
        taps_expect_same("what enters the first layer", r, hidden[0], embedded + r * m->dim, m->dim);
    }
}

static void check_paths(taps_worker *w, const taps_text *t, const taps_tree *tree)
{
    static float in_tree[N_NODE][MOST_TAP][MOST_DIM];
    const int32_t first = w->net->first_row[1];
    for (int32_t i = 0; i < tree->tree.n; i++) taps_read(w, SPEC_PHASE_DECODE, first + i, in_tree[i]);
    for (int32_t i = 0; i < tree->tree.n; i++) {
        float alone[MOST_TAP][MOST_DIM];
        char what[64];
        read_plainly(w, t, tree, i, alone);
        for (int32_t k = 0; k < w->n_tap; k++) {
            snprintf(what, sizeof what, "tap %d against plain steps", k);
            taps_expect_same(what, i, in_tree[i][k], alone[k], w->model->dim);
        }
    }
}

static void check_decode(taps_worker *w)
{
    taps_text t = taps_make_text(37), o = taps_make_text(5);
    begin(w, OURS, &t);
    begin(w, OTHER, &o);
    for (int32_t round = 0; round < 3; round++) {
        taps_tree ours, other;
        int32_t token[N_ROW], path[N_NODE], n = 3 + round;
        taps_draw(&w->random, &other, o.ids[o.n - 1], n);
        taps_draw(&w->random, &ours, t.ids[t.n - 1], round == 0 ? N_NODE : 2 + taps_below(&w->random, N_NODE - 2));
        score(w, &other, &ours);
        memcpy(token, other.token, (size_t)n * sizeof *token);
        memcpy(token + n, ours.token, (size_t)ours.tree.n * sizeof *token);
        check_ends(w, n + ours.tree.n, token);
        check_paths(w, &t, &ours);
        const int32_t n_path = path_to(&ours, taps_below(&w->random, ours.tree.n), path);
        w->net->kind->commit(w->net, OURS, path, n_path);
        for (int32_t i = 1; i < n_path; i++) t.ids[t.n++] = ours.token[path[i]];
        t.ids[t.n++] = taps_below(&w->random, N_VOCAB);
    }
}

/* --- shorter models --- */

/* A model of n layers ends with what enters layer n of ours; in passes over prompts, too. */
static void check_layers(taps_worker *w)
{
    const taps_text t = taps_make_text(20);
    taps_tree tree;
    taps_draw(&w->random, &tree, t.ids[t.n - 1], N_NODE);
    const speci_exec_input in = { .slot = OURS, .tree = &tree.tree };
    begin(w, OURS, &t);
    OK(w->net->kind->forward(w->net, &in, 1, NULL, NULL));
    for (int32_t n = 1; n < w->model->n_layer; n++) {
        spec_model shorter = *w->model;
        taps_worker s;
        shorter.n_layer = n;
        taps_open(&s, &shorter, true);
        begin(&s, OURS, &t);
        OK(s.net->kind->forward(s.net, &in, 1, NULL, NULL));
        for (int32_t phase = 0; phase < 2; phase++)
            for (int32_t r = 0; r < (phase == SPEC_PHASE_PREFILL ? t.n_prompt : N_NODE); r++) {
                float ours[MOST_TAP][MOST_DIM], theirs[MOST_TAP][MOST_DIM];
                taps_read(w, phase, r, ours);
                taps_read(&s, phase, r, theirs);
                taps_expect_same("what enters a layer", r, ours[n], theirs[last_of(&s)], shorter.dim);
            }
        taps_close(&s);
    }
}

/* --- prefill --- */

typedef struct chunks {
    taps_worker *w;
    int32_t n_pass, n, fail_at; /* n: positions seen */
    float hidden[N_PROMPT][MOST_TAP][MOST_DIM];
} chunks;

static spec_status see_chunk(void *arg, int32_t first, int32_t n)
{
    chunks *c = arg;
    if (c->n_pass == c->fail_at) return speci_fail(SPEC_E_ABORTED, "the chunk at %d", first);
    assert_int_equal(first, c->n);
    assert_true(n > 0 && first + n <= N_PROMPT);
    for (int32_t i = 0; i < n; i++) taps_read(c->w, SPEC_PHASE_PREFILL, i, c->hidden[first + i]);
    c->n += n;
    c->n_pass++;
    return SPEC_OK;
}

/* Prompts may be added up in another order: by the bar of logits (test_logits_families), in 16 bits by some roundings. */
static double tolerance_of(spec_dtype type) { return type == SPEC_DTYPE_F32 ? 1e-4 : type == SPEC_DTYPE_F16 ? 1e-2 : 1e-1; }

static void check_prefill(taps_worker *w)
{
    static chunks c;
    const taps_text t = taps_make_text(N_PROMPT);
    c = (chunks){ .w = w, .fail_at = -1 };
    const speci_prefill_hooks hooks = { .chunk = see_chunk, .arg = &c };
    w->net->kind->begin(w->net, OURS);
    OK(w->net->kind->prefill(w->net, OURS, t.ids, N_PROMPT, &hooks));
    assert_int_equal(c.n, N_PROMPT);
    assert_true(c.n_pass > 1);
    w->net->kind->begin(w->net, PLAIN);
    for (int32_t i = 0; i < N_PROMPT; i++) {
        float hidden[MOST_TAP][MOST_DIM];
        taps_plain_step(w, PLAIN, t.ids[i]);
        taps_read(w, SPEC_PHASE_DECODE, 0, hidden);
        for (int32_t k = 0; k < w->n_tap; k++) {
            const double error = support_error(c.hidden[i][k], hidden[k], (size_t)w->model->dim);
            if (!(error <= tolerance_of(w->model->dtype)))
                fail_msg("position %d, tap %d: %.3g from a plain step's", i, k, error);
        }
    }
    c = (chunks){ .w = w, .fail_at = 1 };
    w->net->kind->begin(w->net, OTHER);
    FAILS(w->net->kind->prefill(w->net, OTHER, t.ids, N_PROMPT, &hooks), SPEC_E_ABORTED, "the chunk at");
    assert_int_equal(c.n_pass, 1);
    for (int32_t slot = 0; slot < N_SEQ; slot++) w->net->kind->end(w->net, slot);
}

/* --- nothing is kept unless asked for --- */

static bool is_final_norm(const spec_model *m, const spec_op *op)
{
    return op->kind == SPEC_OP_NORM && op->u.norm.weight == m->final_norm.weight;
}

/* But for what keeps, and a prompt's final norm, plans are the same; and so is what they compute. */
static void check_plans(taps_worker *with, taps_worker *without)
{
    for (int32_t phase = 0; phase < 2; phase++) {
        const net_exec *first = with->net->state, *second = without->net->state;
        const net_plans *a = &first->plans, *b = &second->plans;
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
    const taps_text t = taps_make_text(9);
    taps_tree tree;
    taps_draw(&with->random, &tree, t.ids[t.n - 1], N_NODE);
    const speci_exec_input in = { .slot = OURS, .tree = &tree.tree };
    taps_worker *both[] = { with, without };
    for (int32_t k = 0; k < 2; k++) {
        begin(both[k], OURS, &t);
        OK(both[k]->net->kind->forward(both[k]->net, &in, 1, NULL, NULL));
    }
    for (int32_t r = 0; r < N_NODE; r++) {
        float rows[2][N_VOCAB];
        for (int32_t k = 0; k < 2; k++)
            taps_read_row(both[k], (spec_view){ both[k]->net->logits, SPEC_DTYPE_F32, N_VOCAB }, r, N_VOCAB, rows[k]);
        taps_expect_same("logits with and without taps", r, rows[0], rows[1], N_VOCAB);
    }
}

static uint64_t expected_bytes(const taps_worker *w)
{
    const net_exec *net = w->net->state;
    const net_shape *s = &net->shape;
    uint64_t n = 0;
    for (int32_t i = 0; i < w->n_tap; i++) {
        const spec_dtype type = i == norm_of(w) ? w->model->dtype : SPEC_DTYPE_F32;
        n += taps_tensor_bytes(s->n_row_decode, w->model->dim, type) + taps_tensor_bytes(s->chunk, w->model->dim, type);
    }
    return n;
}

static void check_memory(const taps_worker *w)
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
    taps_run_head(d, m, test_view(&x, m->dim), n, logits);
    for (int32_t i = 0; i < n; i++) {
        OK(spec_node_logits(s, row, seq, i));
        taps_expect_same("head(tap) in a session", i, logits + i * N_VOCAB, row, N_VOCAB);
    }
    test_buffer_free(&x);
}

/* Random paths are committed, so that trees stand behind accepted nodes. */
static void commit_any(spec_session *s, uint64_t *random, int32_t seq, const spec_tree *t)
{
    int32_t path[N_NODE], n = 0, node = taps_below(random, t->n);
    for (int32_t i = node; i >= 0; i = t->parent[i]) n++;
    for (int32_t i = node, k = n; i >= 0; i = t->parent[i]) path[--k] = i;
    OK(spec_commit(s, seq, path, n, taps_below(random, N_VOCAB)));
}

static void check_session(const test_device *d, spec_model *m, spec_advance advance)
{
    taps_proposer p = { .random = 3 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = taps_propose, .user_data = &p };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    const spec_lab lab = { .struct_size = sizeof lab, .advance = advance };
    const spec_tap taps[] = { { SPEC_TAP_LAYER, 1 }, { SPEC_TAP_NORM, 0 } };
    spec_drafter *drafter;
    spec_session *s;
    const taps_text t = taps_make_text(30);
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

/* --- the tests: of every model, in every type --- */

static void taps_of_trees(void **state)
{
    (void)state;
    taps_each_model(backend, check_decode);
}

static void taps_of_layers(void **state)
{
    (void)state;
    taps_each_model(backend, check_layers);
}

/* Passes as small as the device takes them: prompts have several. */
static void taps_of_prompts(void **state)
{
    (void)state;
    const int32_t second = backend->info.prefill_rows[1];
    backend->info.prefill_rows[1] = 0;
    taps_each_model(backend, check_prefill);
    backend->info.prefill_rows[1] = second;
}

static void check_unasked(taps_worker *w)
{
    taps_worker without;
    taps_open(&without, w->model, false);
    check_plans(w, &without);
    check_memory(w);
    taps_close(&without);
}

static void nothing_is_kept_unasked(void **state)
{
    (void)state;
    taps_each_model(backend, check_unasked);
}

static void check_sessions(taps_worker *w)
{
    for (int32_t i = 0; i < 2; i++) check_session(&w->d, w->model, (spec_advance)i);
}

static void taps_of_sessions(void **state)
{
    (void)state;
    taps_each_model(backend, check_sessions);
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
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
