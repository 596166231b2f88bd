/* test_draft_png.c - prompt and corpus n-grams: proposals against a search that is obviously right; tables and arguments that
 * do not fit. */
#define _GNU_SOURCE
#include "algorithms/draft/draft_png_grams.h"
#include "algorithms/engine/engine.h"
#include "algorithms/tree/tree.h"
#include "tests/support_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support_corpus.h"
#include "tests/support_memory.h"
#include "tests/support_sequence.h"

static spec_backend *backend;
static char path[] = "/tmp/spec_png_XXXXXX";

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* ---------------------------------------------------------------------------------- proposals --- */

enum { EOS = 0, MOST = 64, MOST_ROW = 8 }; /* token 0 ends a text of golden/mamba */

typedef struct trie {
    int32_t token[MOST], parent[MOST], n, n_row; /* n_row: rows that added a node */
    int32_t n_match;                             /* tokens of the longest context of these */
} trie;

static void add_row(trie *t, const int32_t *tokens, int32_t n, int32_t n_match, int32_t depth, int32_t cap)
{
    const int32_t before = t->n;
    for (int32_t i = 0, node = 0; i < n && i < depth && tokens[i] != EOS; i++) {
        int32_t child = 1;
        while (child < t->n && (t->parent[child] != node || t->token[child] != tokens[i])) child++;
        if (child == cap) break;
        if (child == t->n) t->token[child] = tokens[i], t->parent[child] = node, t->n++;
        node = child;
    }
    t->n_row += t->n > before;
    if (t->n > before && n_match > t->n_match) t->n_match = n_match;
}

/* The most frequent of the (K+1)-grams that begin with the last token; of those that are as frequent the one that stood there
 * last. */
static int32_t of_sequence(int32_t at[MOST_ROW], const int32_t *ids, int32_t n, int32_t k, int32_t d)
{
    int32_t n_row = 0;
    bool *taken = calloc((size_t)n, sizeof *taken);
    assert_non_null(taken);
    for (; n_row < d; n_row++) {
        int32_t best = -1, best_count = 0;
        for (int32_t i = n - 1 - k; i >= 0; i--) {
            int32_t count = 0;
            if (ids[i] != ids[n - 1] || taken[i]) continue;
            for (int32_t j = 0; j + k < n; j++) count += memcmp(ids + i, ids + j, (size_t)(k + 1) * sizeof *ids) == 0;
            if (count > best_count) best = i, best_count = count;
        }
        if (best < 0) break;
        at[n_row] = best;
        for (int32_t j = 0; j + k < n; j++)
            if (memcmp(ids + best, ids + j, (size_t)(k + 1) * sizeof *ids) == 0) taken[j] = true;
    }
    free(taken);
    return n_row;
}

/* algorithms.md 15: D rows of K; missing ones from the table by the longest context, then from the extension order. */
static void want_trie(trie *t, const corpus *c, const int32_t *ids, int32_t n, int32_t d, int32_t k, int32_t depth, int32_t cap)
{
    int32_t at[MOST_ROW];
    corpus_row rows[CORPUS_ROWS];
    *t = (trie){ .n = 1, .token = { ids[n - 1] }, .parent = { -1 } };
    if (depth > k) depth = k;
    const int32_t n_row = of_sequence(at, ids, n, k, d);
    for (int32_t i = 0; i < n_row && t->n_row < d; i++) add_row(t, ids + at[i] + 1, k, 1, depth, cap);
    for (int32_t context = c->n_context; context >= 0 && t->n_row < d; context--) {
        const int32_t n_token = context > 0 ? context : 1;
        if (n_token > n) continue;
        const int32_t n_found = corpus_rows(rows, c, ids + n - n_token, n_token, context == 0);
        for (int32_t i = 0; i < n_found && t->n_row < d; i++) add_row(t, rows[i].tokens, rows[i].n, n_token, depth, cap);
    }
}

typedef struct png_case {
    const char *name, *args; /* behind png:FILE */
    int32_t d, k;            /* D, K */
    int32_t n_vocab, n_context, n_draft, n_row, min_count, n_text, most; /* of the corpus; most: ids of a text */
    int32_t alphabet;        /* of the sequences */
    int32_t n_node;          /* of the session; 0: what the drafter asks for */
} png_case;

static const png_case cases[] = {
    { "png", "", 2, 4, 5, 3, 4, 4, 2, 3, 200, 5, 0 },
    { "png,1", ",1", 1, 3, 4, 2, 3, 2, 1, 2, 100, 5, 0 },
    { "png,4,2", ",4,2", 4, 2, 6, 3, 5, 3, 2, 2, 200, 6, 0 },
    { "png,8,5", ",8,5", 8, 5, 9, 2, 5, 8, 1, 3, 120, 9, 0 },
    { "few nodes", ",3,4", 3, 4, 4, 2, 4, 4, 2, 2, 200, 4, 7 },
    { "empty table", ",2,3", 2, 3, 3, 3, 3, 4, 2, 1, 0, 3, 0 },
    { "ids that the corpus lacks", "", 2, 3, 2, 1, 3, 2, 2, 1, 60, 30, 0 },
};

/* The same proposal, or none where its match is too short. */
static void check_longer(spec_session *s, int32_t seq, const trie *want)
{
    speci_draft *d = &s->drafters.draft[0];
    speci_draft_seq ask = speci_sequence_asked(s, seq);
    spec_tree tree;
    OK(spec_tree_alloc(&tree, s->n_node, NULL));
    ask.tree = &tree;
    for (ask.least = 1; ask.least <= 4; ask.least++) {
        tree.n = 0, ask.n_match = 0;
        (void)spec_tree_add(&tree, -1, want->token[0], 1);
        OK(d->kind->enqueue(d, NULL, &ask, 1));
        assert_int_equal(tree.n, want->n_match >= ask.least ? want->n : 1);
        assert_int_equal(ask.n_match, tree.n > 1 ? want->n_match : 0);
    }
    spec_tree_free(&tree, NULL);
}

/* *n_proposed: nodes; *n_none: steps without a proposal */
static void check_proposal(spec_session *s, int32_t seq, const png_case *x, const corpus *c, int32_t *n_proposed,
                           int32_t *n_none)
{
    const spec_tree *tree;
    const int32_t *ids;
    spec_session_info info = { .struct_size = sizeof info };
    size_t n;
    trie want;
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_sequence_ids(s, &ids, &n, seq));
    OK(spec_session_get_info(s, &info));
    want_trie(&want, c, ids, (int32_t)n, x->d, x->k, info.n_ctx - (int32_t)n, info.n_node);
    assert_int_equal(tree->kind, SPEC_TREE_DETERMINISTIC);
    assert_int_equal(tree->n, want.n);
    assert_memory_equal(tree->token, want.token, (size_t)want.n * sizeof *want.token);
    assert_memory_equal(tree->parent, want.parent, (size_t)want.n * sizeof *want.parent);
    *n_proposed += tree->n - 1, *n_none += tree->n == 1;
    check_longer(s, seq, &want);
}

/* Commits one random token, or as much of a path of the proposal as chance says. */
static void grow(spec_session *s, int32_t seq, int32_t alphabet, uint64_t *random)
{
    const spec_tree *tree;
    int32_t children[MOST], at[MOST], n = 1;
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_score(s, &seq, 1, &tree));
    for (at[0] = 0; support_random(random) % 3 > 0; n++) {
        int32_t n_child = 0;
        for (int32_t c = -1; (c = speci_tree_next_child(tree, at[n - 1], c)) >= 0;) children[n_child++] = c;
        if (n_child == 0) break;
        at[n] = children[support_random(random) % (uint32_t)n_child];
    }
    OK(spec_commit(s, seq, at, n, (int32_t)(support_random(random) % (uint32_t)alphabet)));
}

static spec_session *open_session(const png_case *x, spec_model *model, spec_drafter **d)
{
    char text[64];
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    (void)snprintf(text, sizeof text, "png:%s%s", path, x->args);
    OK(spec_drafter_open(d, text, NULL));
    assert_int_equal(spec_drafter_n_node(*d), x->d * x->k + 1);
    p.n_ctx = 100, p.n_seq = 2, p.n_node = x->n_node;
    OK(spec_session_open(&s, model, *d, &p));
    return s;
}

static void check_case(void **state)
{
    enum { PROMPTS = 20, STEPS = 10, N_MOST = 60 };
    const png_case *x = *state;
    spec_model *model = support_model(backend, GOLDEN "mamba", SPEC_DTYPE_F32);
    corpus c = { .n_text = x->n_text, .n_vocab = x->n_vocab, .n_context = x->n_context, .n_draft = x->n_draft,
                 .n_row = x->n_row, .min_count = x->min_count };
    spec_drafter *d;
    uint64_t random = 35;
    int32_t ids[N_MOST], n_proposed = 0, n_none = 0;
    corpus_random(&c, x->most, &random);
    OK(corpus_write(&c, path, 0, NULL, NULL));
    spec_session *s = open_session(x, model, &d);
    for (int32_t i = 0; i < PROMPTS; i++) {
        const int32_t n = 1 + (int32_t)(support_random(&random) % N_MOST);
        int32_t seq, copy;
        for (int32_t k = 0; k < n; k++) ids[k] = (int32_t)(support_random(&random) % (uint32_t)x->alphabet);
        OK(spec_sequence_add(s, &seq, ids, (size_t)n, NULL));
        for (int32_t k = 0; k < STEPS / 2; k++) {
            grow(s, seq, x->alphabet, &random);
            check_proposal(s, seq, x, &c, &n_proposed, &n_none);
        }
        OK(spec_sequence_fork(s, &copy, seq));
        for (int32_t k = 0; k < STEPS; k++) {
            const int32_t which = k % 2 ? copy : seq;
            check_proposal(s, which, x, &c, &n_proposed, &n_none);
            grow(s, which, x->alphabet, &random);
        }
        OK(spec_sequence_remove(s, seq));
        OK(spec_sequence_remove(s, copy));
    }
    assert_true(n_proposed > PROMPTS);
    if (x->most == 0) assert_true(n_none > 0);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
    free(c.ids);
}

/* ------------------------------------------------------------------------------------ refused --- */

static spec_drafter *open_drafter(const char *args)
{
    char text[64];
    spec_drafter *d;
    (void)snprintf(text, sizeof text, "png:%s%s", path, args);
    OK(spec_drafter_open(&d, text, NULL));
    return d;
}

static void write_small(int32_t n_vocab)
{
    uint64_t random = 5;
    corpus c = { .n_text = 1, .n_vocab = n_vocab, .n_context = 2, .n_draft = 6, .n_row = 2, .min_count = 1 };
    corpus_random(&c, 50, &random);
    OK(corpus_write(&c, path, 0, NULL, NULL));
    free(c.ids);
}

static void check_refused(void **state)
{
    static const struct {
        const char *args, *part;
    } wrong[] = {
        { ",0", "at least 1" }, { ",2,0", "at least 1" }, { ",x", "png:FILE,D,K" }, { ",2,3,4", "png:FILE,D,K" },
        { ",", "png:FILE,D,K" }, { ",2,7", "draft 7 tokens in a row" }, { ",43,6", "at most 255" },
    };
    spec_drafter *d = NULL;
    spec_session *s;
    (void)state;
    write_small(8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "png:%s%s", path, wrong[i].args);
        FAILS(spec_drafter_open(&d, text, NULL), SPEC_E_INVALID, wrong[i].part);
    }
    FAILS(spec_drafter_open(&d, "png", NULL), SPEC_E_INVALID, "needs a corpus table");
    FAILS(spec_drafter_open(&d, "png:/no/such/file,2", NULL), SPEC_E_IO, "/no/such/file: cannot open");
    FAILS(spec_drafter_open(&d, "png:" GOLDEN "law8-target/config.json", NULL), SPEC_E_FORMAT, "not a corpus table");
    assert_null(d);
    d = open_drafter(",42,6");
    spec_drafter_close(d);
    char commas[80]; /* which may stand in the name, and numbers behind them */
    (void)snprintf(commas, sizeof commas, "%s,2,b", path);
    assert_int_equal(rename(path, commas), 0);
    d = open_drafter(",2,b");
    spec_drafter_close(d);
    d = open_drafter(",2,b,3,2");
    assert_int_equal(spec_drafter_n_node(d), 7);
    spec_drafter_close(d);
    assert_int_equal(rename(commas, path), 0);
    write_small(9);
    d = open_drafter("");
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    FAILS(spec_session_open(&s, model, d, NULL), SPEC_E_INVALID, "a table of 9 token ids, the target has 8");
    spec_drafter_close(d);
    spec_model_close(model);
}

#ifndef SPEC_NO_TOKENIZER
static void write_text(const char *tokenizer_path)
{
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    spec_tokenizer *t;
    spec_corpus *c;
    OK(spec_tokenizer_open(&t, tokenizer_path, NULL));
    p.tokenizer = t;
    OK(spec_corpus_open(&c, path, &p));
    OK(spec_corpus_add_text(c, "abcdefgh abcdefgh abcdefgh", 26));
    OK(spec_corpus_write(c, NULL));
    spec_corpus_close(c);
    spec_tokenizer_close(t);
}

/* A table is for models of its tokenizer, whatever else they are. */
static void check_foreign(void **state)
{
    const variant_file own = { "tokenizer.json", support_tokenizer8 };
    char dir[64], swapped[4096], *b;
    spec_session *s;
    (void)state;
    support_variant(dir, GOLDEN "law8-target", &own, 1);
    spec_model *with = support_model(backend, dir, SPEC_DTYPE_F32);
    spec_model *without = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    write_text(dir);
    spec_drafter *d = open_drafter("");
    FAILS(spec_session_open(&s, without, d, NULL), SPEC_E_INVALID, "the target has none");
    OK(spec_session_open(&s, with, d, NULL));
    spec_session_close(s);
    spec_drafter_close(d);
    support_variant_remove(dir);

    assert_true(strlen(support_tokenizer8) < sizeof swapped);
    strcpy(swapped, support_tokenizer8); /* b and c change places */
    assert_non_null(b = strstr(swapped, "\"b\""));
    b[1] = 'c';
    assert_non_null(b = strstr(b + 3, "\"c\""));
    b[1] = 'b';
    const variant_file other = { "tokenizer.json", swapped };
    support_variant(dir, GOLDEN "law8-target", &other, 1);
    write_text(dir);
    d = open_drafter("");
    FAILS(spec_session_open(&s, with, d, NULL), SPEC_E_INVALID, "made with another tokenizer");
    spec_drafter_close(d);
    support_variant_remove(dir);
    spec_model_close(with);
    spec_model_close(without);
}
#endif

/* ---------------------------------------------------------------------------- memory that fails --- */

/* Counts all of ids, once more where memory failed. */
static void count_all(png_grams *g, const int32_t *ids, int32_t n, int32_t *n_failed)
{
    for (int32_t i = 1; i <= n; i += 17) {
        const spec_status status = speci_png_grams_catch_up(g, ids, i);
        if (status == SPEC_OK) continue;
        assert_int_equal(status, SPEC_E_NOMEM);
        OK(speci_png_grams_catch_up(g, ids, i));
        ++*n_failed;
    }
    OK(speci_png_grams_catch_up(g, ids, n));
}

static void check_no_memory(void **state)
{
    enum { N = 3000, ALPHABET = 700 };
    char text[64];
    int32_t ids[N], n_failed = 0;
    uint64_t random = 9;
    support_memory f = { 0 };
    const spec_allocator a = support_allocator(&f);
    spec_status status = SPEC_E_NOMEM;
    (void)state;
    write_small(8);
    (void)snprintf(text, sizeof text, "png:%s", path);
    for (int32_t n = 1; status == SPEC_E_NOMEM; n++) {
        spec_drafter *d = NULL;
        f = (support_memory){ .fail_at = n };
        status = spec_drafter_open(&d, text, &a);
        spec_drafter_close(d);
        assert_int_equal(f.n_block, 0);
    }
    OK(status);
    for (int32_t i = 0; i < N; i++)
        ids[i] = i % 40 < 20 && i >= 400 ? ids[i - 400] : (int32_t)(support_random(&random) % ALPHABET);
    png_grams whole = { .n_draft = 3, .n_row = 2 }; /* has all its room beforehand: nothing of it moves */
    OK(speci_png_grams_reserve(&whole, ids, N, ALPHABET));
    count_all(&whole, ids, N, &n_failed);
    assert_int_equal(n_failed, 0);
    for (int32_t n = 1; n_failed == n - 1; n++) {
        png_grams g = { .a = &a, .n_draft = 3, .n_row = 2 };
        f = (support_memory){ .fail_at = n };
        count_all(&g, ids, N, &n_failed);
        for (int32_t token = 0; token < ALPHABET; token++) {
            const png_gram *x = speci_png_grams_rows(&whole, token), *y = speci_png_grams_rows(&g, token);
            assert_int_equal(x != NULL, y != NULL);
            if (x) assert_memory_equal(x, y, 2 * sizeof *x);
        }
        png_grams copy = { .a = &a, .n_draft = 3, .n_row = 2 };
        f.fail_at = f.n_call + n % 4; /* 0: that one does not fail */
        if (speci_png_grams_copy(&copy, &g) != SPEC_OK) {
            assert_int_equal(copy.cap_gram, 0);
            OK(speci_png_grams_copy(&copy, &g));
        }
        OK(speci_png_grams_catch_up(&copy, ids, N)); /* which it has */
        for (int32_t token = 0; token < ALPHABET; token++) {
            const png_gram *x = speci_png_grams_rows(&g, token), *y = speci_png_grams_rows(&copy, token);
            if (x) assert_memory_equal(x, y, 2 * sizeof *x);
        }
        speci_png_grams_free(&copy);
        speci_png_grams_free(&g);
        assert_int_equal(f.n_block, 0);
    }
    assert_true(n_failed > 5);
    speci_png_grams_free(&whole);
}

int main(void)
{
    enum { N_CASE = sizeof cases / sizeof *cases };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(check_refused), cmocka_unit_test(check_no_memory),
#ifndef SPEC_NO_TOKENIZER
        cmocka_unit_test(check_foreign),
#endif
    };
    enum { N_OTHER = sizeof others / sizeof *others };
    struct CMUnitTest tests[N_CASE + N_OTHER];
    for (size_t i = 0; i < N_CASE; i++)
        tests[i] = (struct CMUnitTest){ cases[i].name, check_case, NULL, NULL, (void *)(uintptr_t)&cases[i] };
    memcpy(tests + N_CASE, others, sizeof others);
    const int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    backend = support_backend();
    const int failed = _cmocka_run_group_tests("png", tests, N_CASE + N_OTHER, NULL, NULL);
    spec_backend_close(backend);
    unlink(path);
    return failed;
}
