/* support_state.c - see support_state.h. */
#include "tests/support_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"
#include "tests/support_decode.h"

enum { N_SEQ = 2, N_NODE = 16, N_CTX = 4096, MAX_ACCEPT = 4 };

/* Grouped heads, and with a sliding window, and with soft caps; Mamba-1; Mamba-2, in both forms of scans; both hybrids; short
 * convolutions. */
static const struct {
    const char *name;
    spec_dtype dtype;
    spec_scan_form scan;
} models[] = {
    { "llama3", SPEC_DTYPE_BF16, SPEC_SCAN_CHUNKED }, { "mistral", SPEC_DTYPE_F32, SPEC_SCAN_CHUNKED },
    { "mamba", SPEC_DTYPE_F32, SPEC_SCAN_CHUNKED },   { "mamba2", SPEC_DTYPE_BF16, SPEC_SCAN_CHUNKED },
    { "mambainllama", SPEC_DTYPE_BF16, SPEC_SCAN_CHUNKED }, { "bamba", SPEC_DTYPE_F32, SPEC_SCAN_CHUNKED },
    { "lfm2", SPEC_DTYPE_BF16, SPEC_SCAN_CHUNKED },   { "mamba2", SPEC_DTYPE_F32, SPEC_SCAN_RECURRENT },
    { "gemma2", SPEC_DTYPE_BF16, SPEC_SCAN_CHUNKED },
};
static spec_backend *backend;
static int32_t n_step; /* of each sequence */

typedef struct walker {
    spec_session *s;
    int32_t n_vocab;
    uint64_t random;
    int64_t n_branched, n_again, n_back, n_fork;
} walker;

static int32_t below(walker *w, int32_t n) { return (int32_t)(support_random(&w->random) % (uint32_t)n); }

typedef struct drawn {
    int32_t token[N_NODE], parent[N_NODE];
    spec_tree tree;
} drawn;

static void draw_tree(walker *w, int32_t seq, drawn *t)
{
    const engine_seq *q = &w->s->seqs[seq];
    const int32_t n = 1 + below(w, N_NODE);
    t->token[0] = q->ids[q->n_ids - 1], t->parent[0] = -1;
    for (int32_t i = 1; i < n; i++) {
        t->parent[i] = below(w, 2) ? i - 1 : below(w, i);
        bool clash = true;
        while (clash) {
            t->token[i] = below(w, w->n_vocab);
            clash = false;
            for (int32_t j = 1; j < i; j++)
                clash = clash || (t->parent[j] == t->parent[i] && t->token[j] == t->token[i]);
        }
    }
    t->tree = (spec_tree){ .n = n, .cap = N_NODE, .token = t->token, .parent = t->parent };
}

static void score(walker *w, const int32_t *seqs, int32_t n, drawn *trees)
{
    const spec_tree *list[N_SEQ] = { NULL };
    for (int32_t i = 0; i < n; i++) {
        draw_tree(w, seqs[i], &trees[i]);
        list[i] = &trees[i].tree;
    }
    OK(spec_score(w->s, seqs, n, list));
}

/* A random path, short enough for all steps to fit the context. */
static void accept(walker *w, int32_t seq, const drawn *t)
{
    int32_t path[N_NODE], n = 0, node = below(w, t->tree.n);
    for (int32_t x = node; x >= 0; x = t->parent[x]) n++;
    for (; n > MAX_ACCEPT; n--) node = t->parent[node];
    bool branched = false;
    for (int32_t x = node, i = n; x >= 0; x = t->parent[x]) {
        path[--i] = x;
        for (int32_t j = 1; j < x; j++) branched = branched || t->parent[j] == t->parent[x];
    }
    w->n_branched += branched;
    OK(spec_commit(w->s, seq, path, n, below(w, w->n_vocab)));
}

static void step(walker *w, int32_t *seqs)
{
    drawn trees[N_SEQ];
    const int32_t first = below(w, 4) ? 0 : below(w, N_SEQ), n = below(w, 4) ? N_SEQ - first : 1;
    if (below(w, 8) == 0) {
        w->n_again++;
        score(w, seqs + first, n, trees);
    }
    if (below(w, 16) == 0) {
        w->n_back++;
        OK(spec_rollback(w->s, seqs[first]));
    }
    if (below(w, 24) == 0) { /* the copy goes on, at another place of the device */
        int32_t copy;
        w->n_fork++;
        OK(spec_sequence_fork(w->s, &copy, seqs[first]));
        OK(spec_sequence_remove(w->s, seqs[first]));
        seqs[first] = copy;
    }
    score(w, seqs + first, n, trees);
    for (int32_t i = 0; i < n; i++) accept(w, seqs[first + i], &trees[i]);
}

/* --- comparison --- */

typedef struct bytes {
    char *data;
    size_t n, cap;
} bytes;

static int append(void *user_data, const void *data, size_t n)
{
    bytes *b = user_data;
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->data = realloc(b->data, b->cap);
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

/* All that is saved, and the logits after the pending token. */
static void take(spec_session *s, int32_t seq, bytes *saved, float *row)
{
    const int32_t root = -1, *ids;
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seq));
    int32_t pending = ids[n - 1], parent = root;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &pending, .parent = &parent }, *trees = &tree;
    s->seqs[seq].n_step = 0; /* the one thing that may differ */
    OK(spec_sequence_save(s, seq, append, saved));
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_node_logits(s, row, seq, 0));
}

static void expect_plain(walker *w, spec_model *model, int32_t seq, size_t n_prompt, size_t k)
{
    const int32_t *ids;
    size_t n;
    int32_t plain_seq;
    bytes got = { 0 }, want = { 0 };
    spec_session_params params = SPEC_SESSION_PARAMS_INIT;
    spec_session *plain = NULL;
    float *rows = calloc(2 * (size_t)w->n_vocab, sizeof *rows);
    spec_lab lab = SPEC_LAB_INIT;
    lab.scan = models[k].scan;
    params.n_node = 1, params.n_ctx = N_CTX, params.lab = &lab;
    OK(spec_session_open(&plain, model, NULL, &params));
    OK(spec_sequence_ids(w->s, &ids, &n, seq));
    assert_true(n > (size_t)n_step);
    OK(spec_sequence_add(plain, &plain_seq, ids, n_prompt, NULL));
    for (size_t i = n_prompt; i < n; i++) support_plain_step(plain, plain_seq, ids[i - 1], ids[i], NULL);
    take(plain, plain_seq, &want, rows);
    take(w->s, seq, &got, rows + w->n_vocab);
    assert_int_equal(got.n, want.n);
    for (size_t i = 0; i < got.n; i++)
        if (got.data[i] != want.data[i])
            fail_msg("%s: after %zu tokens, byte %zu of %zu that are saved differs", models[k].name, n, i, got.n);
    assert_memory_equal(rows, rows + w->n_vocab, (size_t)w->n_vocab * sizeof *rows);
    spec_session_close(plain);
    free(got.data);
    free(want.data);
    free(rows);
}

/* --- */

static spec_model *open_model(const char *name, spec_dtype dtype)
{
    char base[512], dir[64];
    snprintf(base, sizeof base, "%s/golden/%s", SPEC_TEST_DIR, name);
    char *config = support_json_with(base, "config.json", "{\"max_position_embeddings\": 4096}");
    const variant_file file = { "config.json", config };
    support_variant(dir, base, &file, 1);
    spec_model *model = support_model(backend, dir, dtype);
    support_variant_remove(dir);
    free(config);
    return model;
}

static void check(void **state)
{
    static const size_t prompts[N_SEQ] = { 70, 1 };
    const size_t k = (size_t)(uintptr_t)*state;
    spec_model *model = open_model(models[k].name, models[k].dtype);
    spec_model_info info = { .struct_size = sizeof info };
    spec_session_params params = SPEC_SESSION_PARAMS_INIT;
    walker w = { .random = 40 + k };
    int32_t seqs[N_SEQ], ids[70];
    OK(spec_model_get_info(model, &info, 1));
    w.n_vocab = info.n_vocab;
    spec_lab lab = SPEC_LAB_INIT;
    lab.scan = models[k].scan;
    params.n_node = N_NODE, params.n_seq = N_SEQ + 1, params.n_ctx = N_CTX, params.lab = &lab;
    OK(spec_session_open(&w.s, model, NULL, &params));
    for (int32_t i = 0; i < 70; i++) ids[i] = below(&w, w.n_vocab);
    for (int32_t i = 0; i < N_SEQ; i++) OK(spec_sequence_add(w.s, &seqs[i], ids, prompts[i], NULL));
    for (int32_t i = 0; i < n_step; i++) step(&w, seqs);
    for (int32_t i = 0; i < N_SEQ; i++) {
        while (w.s->seqs[seqs[i]].n_step < (uint64_t)n_step) { /* it sat out at times */
            drawn tree;
            score(&w, &seqs[i], 1, &tree);
            accept(&w, seqs[i], &tree);
        }
        expect_plain(&w, model, seqs[i], prompts[i], k);
    }
    print_message("  %lld paths on a branch, %lld scored twice, %lld rolled back, %lld forks\n",
                  (long long)w.n_branched, (long long)w.n_again, (long long)w.n_back, (long long)w.n_fork);
    assert_true(w.n_branched > n_step / 4 && w.n_again > 0 && w.n_back > 0 && w.n_fork > 0);
    spec_session_close(w.s);
    spec_model_close(model);
}

int support_state_run(int32_t n)
{
    enum { N = sizeof models / sizeof *models };
    struct CMUnitTest tests[N];
    n_step = n;
    backend = support_backend();
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ models[i].name, check, NULL, NULL, (void *)(uintptr_t)i };
    cmocka_set_test_filter(getenv("SPEC_TEST_MODEL"));
    const int failed = _cmocka_run_group_tests("state", tests, N, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
