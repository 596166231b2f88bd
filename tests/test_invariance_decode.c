/* test_invariance_decode.c - path invariance through the whole house: the logits of a path, by plain steps, by chains of
 * 8, by random trees in random batches, after rejections and replay, after scores that were thrown away, behind a prompt that was
 * appended in the middle: bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_model.h"

enum { N_IDS = 64, N_SEQ = 3, MAX_NODE = 24 };
/* Where token APPEND_AT is pending, the N_APPEND that follow come as a prompt. */
enum { APPEND_AT = 30, N_APPEND = 9 };

static const char *const models[] = { "llama3",           "mistral",   "gpt_neox",     "qwen3",         "phi3",
                                      "phi3-long",        "phi4_mini", "smollm3",      "gemma",         "gemma2",
                                      "gemma3",           "olmo2",     "olmo",         "cohere2",       "gptj",
                                      "falcon",           "codegen",   "mamba",        "mamba2",        "bamba",
                                      "granitemoehybrid", "lfm2",      "mambainllama", "mamba2-ssd-cfg" };
static const struct {
    spec_dtype compute, weights;
} types[] = {
    { SPEC_DTYPE_F32, SPEC_DTYPE_AUTO },
    { SPEC_DTYPE_BF16, SPEC_DTYPE_AUTO },
    { SPEC_DTYPE_F16, SPEC_DTYPE_AUTO },
    { SPEC_DTYPE_BF16, SPEC_DTYPE_Q8_0 },
    { SPEC_DTYPE_BF16, SPEC_DTYPE_Q4_1 },
    { SPEC_DTYPE_F32, SPEC_DTYPE_Q5_0 },
};
static spec_backend *backend;

typedef struct text {
    int32_t ids[N_IDS];
    float *rows; /* [N_IDS][n_vocab] by plain steps after prefill of `n_prompt - 1` tokens; none of what was appended */
    int32_t n_prompt;
} text;

typedef struct fixture {
    spec_model *model;
    int32_t n_vocab;
    text texts[N_SEQ];
    uint64_t random;
} fixture;

static uint32_t below(fixture *f, uint32_t n) { return support_random(&f->random) % n; }

/* Token *at is pending: the next prompt, if this is its place. */
static void append(spec_session *s, int32_t seq, const text *t, int32_t *at)
{
    if (*at != APPEND_AT) return;
    OK(spec_sequence_append(s, seq, t->ids + APPEND_AT + 1, N_APPEND, NULL));
    *at += N_APPEND;
}

static void plain_rows(fixture *f, text *t)
{
    int32_t seq;
    spec_session *s = support_session(f->model, 1, 1);
    OK(spec_sequence_add(s, &seq, t->ids, (size_t)t->n_prompt, NULL));
    for (int32_t i = t->n_prompt - 1; i < N_IDS; i++) {
        append(s, seq, t, &i);
        support_plain_step(s, seq, t->ids[i], t->ids[i + 1 < N_IDS ? i + 1 : i],
                           t->rows + (size_t)i * (size_t)f->n_vocab);
    }
    spec_session_close(s);
}

static void begin(fixture *f, const char *name, spec_dtype dtype, spec_dtype weights)
{
    char path[512];
    golden g;
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", SPEC_TEST_DIR, name);
    support_golden_open(&g, path);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    snprintf(path, sizeof path, "%s/golden/%s", SPEC_TEST_DIR, name);
    f->model = support_model_of(backend, path, dtype, weights);
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(f->model, &info, 1));
    f->n_vocab = info.n_vocab;
    f->random = 7;
    for (int32_t k = 0; k < N_SEQ; k++) {
        text *t = &f->texts[k];
        for (int32_t i = 0; i < N_IDS; i++) t->ids[i] = ids[(i * (k + 1) + 5 * k) % N_IDS];
        t->n_prompt = 1 + 6 * k;
        t->rows = calloc((size_t)N_IDS * (size_t)f->n_vocab, sizeof(float));
        plain_rows(f, t);
    }
    support_golden_close(&g);
}

static void finish(fixture *f)
{
    for (int32_t k = 0; k < N_SEQ; k++) free(f->texts[k].rows);
    spec_model_close(f->model);
}

/* --- trees that hold the true continuation --- */

typedef struct drawn_tree {
    int32_t token[MAX_NODE], parent[MAX_NODE];
    int32_t path[MAX_NODE], n_path; /* nodes of the true continuation, root first */
    spec_tree tree;
} drawn_tree;

/* At most n_true nodes of ids[at ...] among n nodes; others hang anywhere with other tokens. */
static void draw_tree(fixture *f, drawn_tree *t, const int32_t *ids, int32_t at, int32_t n_true, int32_t n)
{
    t->token[0] = ids[at], t->parent[0] = -1;
    t->path[0] = 0, t->n_path = 1;
    int32_t made = 1;
    while (made < n) {
        const bool truth = t->n_path < n_true && (below(f, 2) || n - made <= n_true - t->n_path);
        const int32_t parent = truth ? t->path[t->n_path - 1] : (int32_t)below(f, (uint32_t)made);
        int32_t token = truth ? ids[at + t->n_path] : (int32_t)below(f, (uint32_t)f->n_vocab);
        bool clash = false;
        for (int32_t i = 1; i < made; i++) clash = clash || (t->parent[i] == parent && t->token[i] == token);
        for (int32_t j = 0; !truth && j < t->n_path && j + 1 < n_true; j++) /* leave the true child's place free */
            clash = clash || (t->path[j] == parent && token == ids[at + j + 1]);
        if (clash) {
            assert_false(truth);
            continue;
        }
        t->token[made] = token, t->parent[made] = parent;
        if (truth) t->path[t->n_path++] = made;
        made++;
    }
    t->tree = (spec_tree){ .n = n, .cap = n, .token = t->token, .parent = t->parent };
}

static void expect_rows(fixture *f, spec_session *s, int32_t seq, const text *truth, int32_t at, const drawn_tree *t,
                        const char *what)
{
    float *row = malloc((size_t)f->n_vocab * sizeof *row);
    for (int32_t j = 0; j < t->n_path; j++) {
        const float *want = truth->rows + (size_t)(at + j) * (size_t)f->n_vocab;
        OK(spec_node_logits(s, row, seq, t->path[j]));
        if (memcmp(row, want, (size_t)f->n_vocab * sizeof *row) != 0)
            fail_msg("%s: position %d differs, by %.3g of the largest logit", what, at + j,
                     support_error(row, want, (size_t)f->n_vocab));
    }
    free(row);
}

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

/* Walks all texts to their end in one session: random batches, trees of at most max_node nodes, random acceptance. */
static void walk(fixture *f, int32_t max_node, bool chains, bool repeat, const char *what)
{
    spec_session *s = support_session(f->model, max_node, N_SEQ);
    int32_t seq[N_SEQ], at[N_SEQ];
    for (int32_t k = 0; k < N_SEQ; k++) {
        OK(spec_sequence_add(s, &seq[k], f->texts[k].ids, (size_t)f->texts[k].n_prompt, NULL));
        at[k] = f->texts[k].n_prompt - 1;
    }
    for (;;) {
        drawn_tree trees[N_SEQ];
        const spec_tree *list[N_SEQ];
        int32_t who[N_SEQ], seqs[N_SEQ], n = 0;
        for (int32_t k = 0; k < N_SEQ; k++) {
            const int32_t left = (at[k] < APPEND_AT ? APPEND_AT : N_IDS) - at[k]; /* rows to compare with */
            if (at[k] + 1 >= N_IDS || (n > 0 && below(f, 3) == 0)) continue;
            const int32_t nodes = chains ? min32(max_node, left) : 1 + (int32_t)below(f, (uint32_t)max_node);
            const int32_t n_true = min32(nodes, min32(left, chains ? nodes : 1 + (int32_t)below(f, 8)));
            draw_tree(f, &trees[n], f->texts[k].ids, at[k], n_true, nodes);
            list[n] = &trees[n].tree, seqs[n] = seq[k], who[n++] = k;
        }
        if (n == 0) break;
        if (repeat && below(f, 2)) { /* a score that leads nowhere */
            const spec_tree *junk[N_SEQ];
            drawn_tree other[N_SEQ];
            for (int32_t i = 0; i < n; i++) {
                draw_tree(f, &other[i], f->texts[who[i]].ids, at[who[i]], 1, 1 + (int32_t)below(f, (uint32_t)max_node));
                junk[i] = &other[i].tree;
            }
            OK(spec_score(s, seqs, n, junk));
            if (below(f, 2)) OK(spec_rollback(s, seqs[0]));
        }
        OK(spec_score(s, seqs, n, list));
        for (int32_t i = 0; i < n; i++) {
            const int32_t k = who[i];
            expect_rows(f, s, seqs[i], &f->texts[k], at[k], &trees[i], what);
            int32_t n_path = 1 + (int32_t)below(f, (uint32_t)trees[i].n_path);
            n_path = min32(n_path, N_IDS - 1 - at[k]);
            OK(spec_commit(s, seqs[i], trees[i].path, n_path, f->texts[k].ids[at[k] + n_path]));
            at[k] += n_path;
            append(s, seqs[i], &f->texts[k], &at[k]);
        }
    }
    spec_session_close(s);
}

static void check(void **state)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        fixture f;
        begin(&f, *state, types[d].compute, types[d].weights);
        walk(&f, 8, true, false, "chains of 8");
        walk(&f, MAX_NODE, false, false, "trees");
        walk(&f, MAX_NODE, false, true, "trees, with scores thrown away");
        finish(&f);
    }
}

int main(void)
{
    struct CMUnitTest tests[sizeof models / sizeof *models];
    backend = support_backend();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        tests[i] = (struct CMUnitTest){ models[i], check, NULL, NULL, (void *)(uintptr_t)models[i] };
    const int failed = _cmocka_run_group_tests("invariance", tests, sizeof tests / sizeof *tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
