/* test_joint.c - joint attainment (algorithms.md 9.3): greedy text through a net that feeds accepted paths again, in
 * front of the next tree, is that of a net that replays them, and both are plain decoding's: ids, and logits bit for
 * bit. And pages of KV for a prompt behind a path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/exec.h"
#include "models/net/net.h"
#include "tests/support_model.h"

enum { N_SEQ = 3, N_NEW = 220, N_IDS = N_NEW + 40, MAX_NODE = 48, N_CHAIN = 32 };

static const struct {
    const char *test, *name;
    bool recurrent;
} models[] = {
    { "mamba2", "mamba2", false }, { "mamba", "mamba", false },               { "bamba", "bamba", false },
    { "llama3", "llama3", false }, { "mambainllama", "mambainllama", false }, { "mamba2-bf16", "mamba2-bf16", false },
    { "lfm2", "lfm2", false },     { "mamba2, recurrent", "mamba2", true },   { "gemma2", "gemma2", false },
};
static spec_backend *backend;

typedef struct text {
    int32_t ids[N_IDS], n, n_prompt; /* ids[n - 1] is pending */
} text;

typedef struct worker {
    spec_model *model;
    speci_exec *net;
    spec_queue *queue;
    uint64_t random;
    int32_t n_deep; /* trees that did not fit behind their chain */
} worker;

static int32_t below(worker *w, int32_t n) { return (int32_t)(support_random(&w->random) % (uint32_t)n); }

static void open_net(worker *w, spec_model *m, int32_t n_node, bool joint, bool recurrent)
{
    const speci_exec_params p = { .n_seq = N_SEQ, .n_ctx = N_IDS + MAX_NODE, .n_node = n_node, .joint = joint,
                                .recurrent = recurrent };
    spec_plan plans[2];
    *w = (worker){ .model = m, .random = 11 };
    OK(m->exec->open(&w->net, m, &p));
    w->net->kind->plans(w->net, plans);
    OK(m->backend->ops->queue_open(m->backend->dev, &w->queue, plans, 2, m->n_vocab));
    OK(w->net->kind->attach(w->net, w->queue, true));
}

static void close_net(worker *w)
{
    speci_exec_close(w->net);
    w->model->backend->ops->queue_close(w->queue);
}

static void begin(worker *w, const text *t, int32_t slot)
{
    w->net->kind->begin(w->net, slot);
    OK(w->net->kind->prefill(w->net, slot, t->ids, (size_t)t->n - 1, NULL));
}

/* Row of node `node` of input k of the last pass. */
static void read_row(worker *w, int32_t k, int32_t node, float *row)
{
    const float *logits = w->net->logits + (size_t)(w->net->first_row[k] + node) * (size_t)w->net->n_logit;
    OK(w->model->backend->ops->download(w->queue, row, logits, (size_t)w->model->n_vocab * sizeof *row));
    OK(w->model->backend->ops->sync(w->queue));
}

static int32_t best(const float *row, int32_t n)
{
    int32_t at = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[at]) at = i;
    return at;
}

/* rows [N_IDS][n_vocab]: of every position of the text that follows the prompt. */
static void read_plainly(worker *w, text *t, int32_t slot, float *rows)
{
    int32_t parent = -1, path = 0;
    begin(w, t, slot);
    while (t->n < t->n_prompt + N_NEW) {
        float *row = rows + (size_t)(t->n - 1) * (size_t)w->model->n_vocab;
        spec_tree tree = { .n = 1, .cap = 1, .token = &t->ids[t->n - 1], .parent = &parent };
        const speci_exec_input in = { .slot = slot, .tree = &tree };
        OK(w->net->kind->forward(w->net, &in, 1, NULL, NULL));
        read_row(w, 0, 0, row);
        w->net->kind->commit(w->net, slot, &path, 1);
        t->ids[t->n++] = best(row, w->model->n_vocab);
    }
    w->net->kind->end(w->net, slot);
}

typedef struct drawn {
    int32_t token[MAX_NODE], parent[MAX_NODE];
    spec_tree tree;
} drawn;

/* The text from its pending token on, mixed with other branches. */
static void draw(worker *w, drawn *d, const text *t, const text *truth)
{
    const int32_t n = below(w, 3) ? 1 + below(w, 16) : MAX_NODE, n_true = below(w, 2) ? n / 2 + 1 : n;
    int32_t tip = 0, made = 1, on_text = 1;
    d->token[0] = t->ids[t->n - 1], d->parent[0] = -1;
    while (made < n) {
        const bool extend = on_text < n_true && t->n - 1 + on_text < truth->n && (n == n_true || below(w, 3) > 0);
        int32_t parent = extend ? tip : below(w, made), token = below(w, w->model->n_vocab);
        if (extend) token = truth->ids[t->n - 1 + on_text];
        bool clash = !extend && parent == tip; /* keep the place free for the text */
        for (int32_t i = 1; i < made; i++) clash = clash || (d->parent[i] == parent && d->token[i] == token);
        if (clash && (extend || t->n - 1 + on_text >= truth->n || on_text >= n_true)) break;
        if (clash) continue;
        d->token[made] = token, d->parent[made] = parent;
        if (extend) tip = made, on_text++;
        made++;
    }
    d->tree = (spec_tree){ .n = made, .cap = made, .token = d->token, .parent = d->parent };
}

static int32_t depth_of(const spec_tree *t)
{
    int32_t depth[MAX_NODE] = { 0 }, most = 0;
    for (int32_t i = 1; i < t->n; i++) {
        depth[i] = depth[t->parent[i]] + 1;
        if (depth[i] > most) most = depth[i];
    }
    return most;
}

/* Accepts greedily; each accepted node's row is the plain one's. Returns the path's length. */
static int32_t verify(worker *w, int32_t k, const drawn *d, text *t, const text *truth, const float *rows,
                      int32_t *path, const char *what)
{
    const size_t n_vocab = (size_t)w->model->n_vocab;
    float *row = malloc(n_vocab * sizeof *row);
    int32_t n = 0, at = 0;
    while (at >= 0 && t->n < truth->n) {
        read_row(w, k, at, row);
        if (memcmp(row, rows + (size_t)(t->n - 1) * n_vocab, n_vocab * sizeof *row) != 0)
            fail_msg("%s: position %d differs, by %.3g of the largest logit", what, t->n - 1,
                     support_error(row, rows + (size_t)(t->n - 1) * n_vocab, n_vocab));
        path[n++] = at;
        const int32_t token = best(row, w->model->n_vocab);
        t->ids[t->n++] = token;
        int32_t next = -1;
        for (int32_t i = at + 1; i < d->tree.n; i++)
            if (d->parent[i] == at && d->token[i] == token) next = i;
        at = next;
    }
    free(row);
    return n;
}

/* All texts to their end, in random batches of random trees; some trees are scored twice. */
static void walk(worker *w, const text *truth, float *const *rows, bool joint, const char *what)
{
    text t[N_SEQ];
    int32_t last_path[N_SEQ] = { 0 };
    memcpy(t, truth, sizeof t);
    for (int32_t k = 0; k < N_SEQ; k++) {
        t[k].n = t[k].n_prompt;
        begin(w, &t[k], N_SEQ - 1 - k);
    }
    for (;;) {
        drawn trees[N_SEQ];
        speci_exec_input in[N_SEQ];
        int32_t who[N_SEQ], n = 0, left = 0;
        for (int32_t k = 0; k < N_SEQ; k++) {
            if (t[k].n >= truth[k].n) continue;
            left++;
            if (below(w, 4) == 0) continue;
            draw(w, &trees[n], &t[k], &truth[k]);
            in[n] = (speci_exec_input){ .slot = N_SEQ - 1 - k, .tree = &trees[n].tree };
            w->n_deep += joint && last_path[k] > 0 && last_path[k] + depth_of(&trees[n].tree) > SPEC_MAX_DEPTH;
            who[n++] = k;
        }
        if (left == 0) return;
        if (n == 0) continue;
        OK(w->net->kind->forward(w->net, in, n, NULL, NULL));
        if (below(w, 3) == 0) OK(w->net->kind->forward(w->net, in, n, NULL, NULL));
        for (int32_t i = 0; i < n; i++) {
            int32_t path[MAX_NODE];
            const int32_t k = who[i], slot = in[i].slot;
            assert_int_equal(w->net->kind->n_past(w->net, slot), t[k].n - 1);
            last_path[k] = verify(w, i, &trees[i], &t[k], &truth[k], rows[k], path, what);
            w->net->kind->commit(w->net, slot, path, last_path[k]);
            assert_int_equal(w->net->kind->n_past(w->net, slot), t[k].n - 1);
            assert_memory_equal(t[k].ids, truth[k].ids, (size_t)t[k].n * sizeof *t[k].ids);
        }
    }
}

/* As many recent tokens as there can be: chains as long as the net lets them be, all accepted, one behind the other. */
static void walk_chains(worker *w, const text *truth, const float *rows, const char *what)
{
    text t = *truth;
    t.n = t.n_prompt;
    begin(w, &t, 0);
    for (int32_t n = SPEC_CHUNK - 1; t.n < truth->n; n = N_CHAIN) {
        drawn d = { .tree = { .n = n < truth->n - t.n ? n : truth->n - t.n, .cap = MAX_NODE } };
        int32_t path[MAX_NODE];
        d.tree.token = d.token, d.tree.parent = d.parent;
        for (int32_t i = 0; i < d.tree.n; i++) d.token[i] = truth->ids[t.n - 1 + i], d.parent[i] = i - 1;
        const speci_exec_input in = { .slot = 0, .tree = &d.tree };
        OK(w->net->kind->forward(w->net, &in, 1, NULL, NULL));
        const int32_t n_path = verify(w, 0, &d, &t, truth, rows, path, what);
        assert_int_equal(n_path, d.tree.n);
        w->net->kind->commit(w->net, 0, path, n_path);
    }
    assert_memory_equal(t.ids, truth->ids, (size_t)t.n * sizeof *t.ids);
    w->net->kind->end(w->net, 0);
}

static void check(void **state)
{
    char path[512];
    golden g;
    worker w;
    text truth[N_SEQ];
    float *rows[N_SEQ];
    int64_t n_rows, n_cols;
    const size_t which = (size_t)(uintptr_t)*state;
    const bool recurrent = models[which].recurrent;
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", SPEC_TEST_DIR, models[which].name);
    support_golden_open(&g, path);
    const int32_t *ids = support_golden_find(&g, "ids", &n_rows, &n_cols);
    snprintf(path, sizeof path, "%s/golden/%s", SPEC_TEST_DIR, models[which].name);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_AUTO);
    open_net(&w, m, 1, false, recurrent);
    for (int32_t k = 0; k < N_SEQ; k++) {
        truth[k] = (text){ .n = 1 + 7 * k, .n_prompt = 1 + 7 * k };
        for (int32_t i = 0; i < truth[k].n; i++) truth[k].ids[i] = ids[i + 3 * k];
        rows[k] = calloc((size_t)N_IDS * (size_t)m->n_vocab, sizeof *rows[k]);
        read_plainly(&w, &truth[k], k, rows[k]);
    }
    close_net(&w);
    support_golden_close(&g);
    for (int32_t joint = 0; joint < 2; joint++) {
        open_net(&w, m, MAX_NODE, joint, recurrent);
        walk(&w, truth, rows, joint, joint ? "joint" : "replay");
        close_net(&w);
        assert_true(w.n_deep > 0 || !joint);
        open_net(&w, m, N_CHAIN, joint, recurrent);
        walk_chains(&w, &truth[0], rows[0], joint ? "joint chains" : "replayed chains");
        close_net(&w);
    }
    for (int32_t k = 0; k < N_SEQ; k++) free(rows[k]);
    spec_model_close(m);
}

/* A joint net refuses what it cannot remember, and what is more than the device's rows. */
static void refusals(void **state)
{
    (void)state;
    char path[512];
    worker w;
    snprintf(path, sizeof path, "%s/golden/mamba2", SPEC_TEST_DIR);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_AUTO);
    int32_t token[2] = { 1, 2 }, parent[2] = { -1, 0 };
    spec_tree tree = { .n = 2, .cap = 2, .token = token, .parent = parent };
    open_net(&w, m, 4, true, false);
    w.net->kind->begin(w.net, 0);
    speci_exec_input in = { .slot = 0, .tree = &tree };
    tree.n = 1;
    OK(w.net->kind->forward(w.net, &in, 1, NULL, NULL));
    tree.n = 2, in.n_fed = 1;
    FAILS(w.net->kind->forward(w.net, &in, 1, NULL, NULL), SPEC_E_INVALID, "whole trees");
    in.n_fed = 0, in.n_grown = 1;
    FAILS(w.net->kind->forward(w.net, &in, 1, NULL, NULL), SPEC_E_INVALID, "whole trees");
    close_net(&w);
    /* 200 nodes and 64 of the path in front; one sequence more than a pass takes */
    const speci_exec_params p = { .n_seq = m->backend->info.row_max / 264 + 1, .n_ctx = 100, .n_node = 200, .joint = true };
    char said[64];
    speci_exec *net;
    snprintf(said, sizeof said, "%d sequences of 264 nodes", (int)p.n_seq);
    FAILS(m->exec->open(&net, m, &p), SPEC_E_INVALID, said);
    spec_model_close(m);
}

/* A prompt behind a path that no pass has applied yet takes pages for both. */
static void pages(void **state)
{
    (void)state;
    enum { N_PATH = 4, N_FIRST = SPEC_PAGE - N_PATH };
    char path[512];
    worker w;
    snprintf(path, sizeof path, "%s/golden/llama3", SPEC_TEST_DIR);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_AUTO);
    int32_t ids[SPEC_PAGE] = { 1, 2, 3 }, parent[N_PATH] = { -1, 0, 1, 2 }, all[N_PATH] = { 0, 1, 2, 3 };
    const spec_tree tree = { .n = N_PATH, .cap = N_PATH, .token = ids, .parent = parent };
    const speci_exec_input in = { .slot = 0, .tree = &tree };
    open_net(&w, m, N_PATH, false, false);
    w.net->kind->begin(w.net, 0);
    OK(w.net->kind->prefill(w.net, 0, ids, N_FIRST, NULL));
    OK(w.net->kind->forward(w.net, &in, 1, NULL, NULL));
    w.net->kind->commit(w.net, 0, all, N_PATH);
    const net_exec *net = w.net->state;
    assert_int_equal(net->seqs[0].n_page, 1);
    OK(w.net->kind->prefill(w.net, 0, ids, 1, NULL));
    assert_int_equal(net->seqs[0].n_page, 2);
    close_net(&w);
    spec_model_close(m);
}

int main(void)
{
    enum { N = sizeof models / sizeof *models };
    struct CMUnitTest tests[N + 2];
    backend = support_backend();
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ models[i].test, check, NULL, NULL, (void *)(uintptr_t)i };
    tests[N] = (struct CMUnitTest)cmocka_unit_test(refusals);
    tests[N + 1] = (struct CMUnitTest)cmocka_unit_test(pages);
    const int failed = _cmocka_run_group_tests("joint", tests, N + 2, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
