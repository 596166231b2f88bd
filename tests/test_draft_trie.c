/* test_draft_trie.c - the drafter "trie" against one that is obviously right: lists of grams, searched from end to end. Counts, their
 * ageing, trees, several sequences, forks, further prompts; and its past as a file. */
#define _POSIX_C_SOURCE 200809L /* rlimits */
#include "tests/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "algorithms/draft/draft_trie.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"
#include "tests/support_model.h"

/* ------------------------------------------------------------------- counts that are obviously right --- */

typedef struct slow_gram {
    int32_t n, ids[SPECI_TRIE_DEPTH];
    uint32_t count; /* 2 for each occurrence, halved at times */
    int64_t last;   /* when it was counted last */
} slow_gram;

typedef struct slow_counts {
    slow_gram *gram; /* [n] */
    int32_t n, depth;
    uint32_t n_counted, period;
    int64_t time;
} slow_counts;

enum { MOST_GRAM = 1 << 16 };

static void slow_open(slow_counts *s, int32_t depth, uint32_t period)
{
    *s = (slow_counts){ .gram = malloc(MOST_GRAM * sizeof *s->gram), .depth = depth, .period = period };
}

static slow_gram *slow_find(const slow_counts *s, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < s->n; i++)
        if (s->gram[i].n == n && memcmp(s->gram[i].ids, ids, (size_t)n * sizeof *ids) == 0) return &s->gram[i];
    return NULL;
}

static uint32_t slow_value(const slow_counts *s, const int32_t *ids, int32_t n)
{
    const slow_gram *g = slow_find(s, ids, n);
    return g ? g->count : 0;
}

static void slow_count(slow_counts *s, const int32_t *ids, int32_t n)
{
    slow_gram *g = slow_find(s, ids, n);
    if (!g) {
        assert_true(s->n < MOST_GRAM);
        g = &s->gram[s->n++];
        *g = (slow_gram){ .n = n };
        memcpy(g->ids, ids, (size_t)n * sizeof *ids);
    }
    g->count += 2, g->last = ++s->time;
    s->n_counted++;
    for (int32_t k = 1; k < n; k++) { /* no gram counts less than a longer one that begins with it */
        slow_gram *shorter = slow_find(s, ids, k);
        if (shorter->count < g->count) shorter->count = g->count;
    }
}

static void slow_age(slow_counts *s)
{
    int32_t n = 0;
    if (s->n_counted < s->period) return;
    s->n_counted = 0;
    for (int32_t i = 0; i < s->n; i++) {
        s->gram[i].count /= 2;
        if (s->gram[i].count > 0) s->gram[n++] = s->gram[i];
    }
    s->n = n;
}

/* All grams that end at ids[end] and begin at ids[first] or behind it. */
static void slow_step(slow_counts *s, const int32_t *ids, int32_t end, int32_t first)
{
    for (int32_t n = s->depth; n > 0; n--)
        if (end + 1 - n >= first && (n == 1 || slow_find(s, ids + end + 1 - n, n - 1))) slow_count(s, ids + end + 1 - n, n);
    slow_age(s);
}

/* The tokens that followed ids [n], the one that was counted last first; at most SPECI_TRIE_LOOK. */
static int32_t slow_followers(int32_t *out, const slow_counts *s, const int32_t *ids, int32_t n)
{
    int64_t before = INT64_MAX;
    int32_t n_out = 0;
    for (const slow_gram *best = NULL; n_out < SPECI_TRIE_LOOK; before = best->last, out[n_out++] = best->ids[n], best = NULL) {
        for (int32_t i = 0; i < s->n; i++) {
            const slow_gram *g = &s->gram[i];
            if (g->n == n + 1 && memcmp(g->ids, ids, (size_t)n * sizeof *ids) == 0 && g->last < before && (!best || g->last > best->last))
                best = g;
        }
        if (!best) break;
    }
    return n_out;
}

/* ------------------------------------------------------------------- trees that are obviously right --- */

typedef struct slow_candidate {
    int32_t ids[SPECI_TRIE_DEPTH], n, parent, depth; /* ids: suffix and path */
    double score;
    bool taken;
} slow_candidate;

enum { MOST_CANDIDATE = 1 << 14 };

typedef struct slow_tree {
    int32_t n, token[SPECI_MAX_NODE], parent[SPECI_MAX_NODE];
    int32_t n_match; /* tokens of the longest suffix that brought a node */
    slow_candidate *list;
    int32_t n_list;
} slow_tree;

/* prompt: of the sequence, may have no grams; past: of all. */
static void slow_add_followers(slow_tree *t, const slow_counts *prompt, const slow_counts *past, const int32_t *ids, int32_t n,
                               int32_t parent, int32_t depth)
{
    int32_t tokens[2 * SPECI_TRIE_LOOK];
    const int32_t n_prompt = slow_followers(tokens, prompt, ids, n);
    const int32_t n_all = n_prompt + slow_followers(tokens + n_prompt, past, ids, n);
    for (int32_t i = 0; i < n_all; i++) {
        slow_candidate c = { .n = n + 1, .parent = parent, .depth = depth };
        bool again = false;
        for (int32_t k = 0; k < i; k++) again = again || tokens[k] == tokens[i];
        if (again) continue;
        memcpy(c.ids, ids, (size_t)n * sizeof *ids);
        c.ids[n] = tokens[i];
        c.score = (1 - 1e-4) * slow_value(prompt, c.ids, n + 1) + 1e-4 * slow_value(past, c.ids, n + 1);
        assert_true(t->n_list < MOST_CANDIDATE);
        t->list[t->n_list++] = c;
    }
}

static int32_t slow_child(const slow_tree *t, int32_t parent, int32_t token)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] == parent && t->token[i] == token) return i;
    return -1;
}

static void slow_suffix(slow_tree *t, const slow_counts *prompt, const slow_counts *past, const int32_t *suffix, int32_t n,
                        int32_t n_node, int32_t depth_max, int32_t eos)
{
    t->n_list = 0;
    slow_add_followers(t, prompt, past, suffix, n, 0, 1);
    for (;;) {
        slow_candidate *best = NULL;
        for (int32_t i = 0; i < t->n_list; i++)
            if (!t->list[i].taken && (!best || t->list[i].score > best->score)) best = &t->list[i];
        if (!best) return;
        best->taken = true;
        const slow_candidate c = *best;
        const int32_t token = c.ids[c.n - 1];
        int32_t x = slow_child(t, c.parent, token);
        if (token == eos) continue;
        if (x < 0 && t->n == n_node) return;
        if (x < 0) x = t->n++, t->token[x] = token, t->parent[x] = c.parent;
        if (c.depth < depth_max) slow_add_followers(t, prompt, past, c.ids, c.n, x, c.depth + 1);
    }
}

static void slow_propose(slow_tree *t, const slow_counts *prompt, const slow_counts *past, const int32_t *ids, int32_t n, int32_t n_node,
                         int32_t depth_max, int32_t eos)
{
    t->n = 1, t->n_match = 0, t->token[0] = ids[n - 1], t->parent[0] = -1;
    for (int32_t k = past->depth - 1; k > 0; k--) {
        const bool there = k <= n && (slow_find(prompt, ids + n - k, k) || slow_find(past, ids + n - k, k));
        if (there && t->n <= past->depth) slow_suffix(t, prompt, past, ids + n - k, k, n_node, depth_max, eos);
        if (t->n > 1 && t->n_match == 0) t->n_match = k;
    }
}

/* `got` has these nodes, depth first, siblings in their order here. */
static void same_tree(const slow_tree *t, int32_t x, const spec_tree *got, int32_t *at, int32_t parent)
{
    const int32_t here = (*at)++;
    int32_t rank = 0;
    assert_true(here < got->n);
    assert_int_equal(got->token[here], t->token[x]);
    assert_int_equal(got->parent[here], parent);
    for (int32_t i = 1; i < x; i++) rank += t->parent[i] == t->parent[x];
    assert_int_equal(got->rank[here], rank);
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] == x) same_tree(t, i, got, at, here);
}

/* ------------------------------------------------------------------------------------------ counts --- */

/* Every gram of one has the same count in the other, and there are no more. */
static void same_counts(const speci_trie_counts *t, const slow_counts *s)
{
    int32_t n = 0, n_taken = 0;
    for (uint32_t x = 1; x < t->n; x++) {
        n += t->node[x].token >= 0 && speci_trie_value(t, x) > 0;
        n_taken += t->node[x].token >= 0;
    }
    assert_int_equal(n, s->n);
    if (t->hand == 0) assert_int_equal(n_taken, s->n); /* behind a sweep nothing that is gone takes a place */
    for (int32_t i = 0; i < s->n; i++) {
        uint32_t x = 0;
        for (int32_t k = 0; k < s->gram[i].n; k++) assert_true((x = speci_trie_find(t, x, s->gram[i].ids[k])) != 0);
        assert_int_equal(speci_trie_value(t, x), s->gram[i].count);
    }
}

typedef struct count_case {
    const char *name;
    uint32_t cap;
    int32_t depth, alphabet, n_token, n_text;
} count_case;

static const count_case count_cases[] = {
    { "counts, 120 places", 120, 3, 3, 3000, 1 },          { "counts, 400 places, two texts", 400, 8, 4, 3000, 2 },
    { "counts, 97 places, five texts", 97, 2, 12, 3000, 5 }, { "counts, all tokens alike", 256, 8, 1, 2000, 1 },
    { "counts, 3000 places", 3000, 16, 2, 4000, 3 },
};

/* Texts that take turns, for a while the same one, so that others are old when they go on. */
static void check_counts(void **state)
{
    enum { MOST_TEXT = 5, MOST_ID = 4096 };
    static int32_t ids[MOST_TEXT][MOST_ID];
    const count_case *c = *state;
    int32_t n[MOST_TEXT] = { 0 }, n_age = 0;
    speci_trie_cursor cursor[MOST_TEXT] = { { 0 } };
    speci_trie_counts t, copy;
    slow_counts s;
    test_random random = { 15 };
    assert_int_equal(speci_trie_open(&t, c->cap, c->cap / 4, c->depth, NULL), SPEC_OK);
    slow_open(&s, c->depth, c->cap / 4);
    for (int32_t i = 0, k = 0; i < c->n_token; i++) {
        if (test_below(&random, 40) == 0) k = test_below(&random, c->n_text);
        ids[k][n[k]++] = test_below(&random, c->alphabet);
        const uint32_t age = t.age;
        speci_trie_step(&t, &cursor[k], ids[k], n[k] - 1, 0);
        slow_step(&s, ids[k], n[k] - 1, 0);
        n_age += t.age != age;
        if (t.age != age || i % 50 == 0) same_counts(&t, &s);
        if (i % 700 != 350) continue;
        assert_int_equal(speci_trie_copy(&copy, &t, t.cap + (uint32_t)test_below(&random, 100), NULL), SPEC_OK);
        speci_trie_close(&t, NULL);
        t = copy;
    }
    same_counts(&t, &s);
    assert_true(n_age > 4);
    speci_trie_close(&t, NULL);
    free(s.gram);
}

/* Where nothing ages a count is the number of places where the gram stands. */
static void check_occurrences(void **state)
{
    enum { N = 1500, DEPTH = 5, SECOND = 700 };
    (void)state;
    int32_t ids[N];
    speci_trie_cursor cursor = { 0 };
    speci_trie_counts t;
    test_random random = { 8 };
    assert_int_equal(speci_trie_open(&t, 16384, 16384, DEPTH, NULL), SPEC_OK);
    for (int32_t i = 0; i < N; i++) {
        ids[i] = test_below(&random, 6);
        speci_trie_step(&t, &cursor, ids, i, i < SECOND ? 0 : SECOND); /* two stretches: no gram lies across */
    }
    for (int32_t i = 0; i < N; i += 7)
        for (int32_t n = 1; n <= DEPTH && i + n <= N; n++) {
            uint32_t places = 0, x = 0;
            for (int32_t k = 0; k + n <= N; k++)
                places += (k + n <= SECOND || k >= SECOND) && memcmp(ids + k, ids + i, (size_t)n * sizeof *ids) == 0;
            for (int32_t k = i; k < i + n && (k == i || x); k++) x = speci_trie_find(&t, x, ids[k]);
            assert_int_equal(x ? speci_trie_value(&t, x) : 0, 2 * places);
        }
    speci_trie_close(&t, NULL);
}

/* --------------------------------------------------------------------------------------- the drafter --- */

enum { MOST_SEQ = 4, MOST_ID = 3000, EOS = 1 };

/* The drafter's hooks, called as a session calls them, beside the one that is obviously right. */
typedef struct bench {
    spec_model target;
    speci_draft_site site;
    speci_draft draft;
    spec_drafter *drafter;
    spec_tree tree;
    spec_sampling sampling;
    struct {
        int32_t ids[MOST_ID], n, n_prompt; /* n 0: there is none */
        slow_counts prompt;
    } seq[MOST_SEQ];
    slow_counts past;
    slow_tree slow;
    test_random random;
    int32_t alphabet, n_drafted;
} bench;

static const int32_t end_tokens[] = { EOS };

static void attach(bench *b, int32_t n_seq, int32_t n_node)
{
    b->target = (spec_model){ .n_vocab = 1000, .eos = (int32_t *)(uintptr_t)end_tokens, .n_eos = 1 };
    b->site = (speci_draft_site){ .target = &b->target, .a = &speci_malloc, .n_seq = n_seq, .n_node = n_node };
    b->draft = (speci_draft){ .drafter = b->drafter, .kind = b->drafter->kind, .site = &b->site, .size = speci_draft_size_of(b->drafter) };
    OK(b->draft.kind->check(b->drafter, &b->target));
    OK(b->draft.kind->prepare(&b->draft));
    OK(b->draft.kind->attach(&b->draft));
}

static bench *bench_open(const char *text, int32_t n_seq, int32_t n_node, int32_t alphabet)
{
    bench *b = calloc(1, sizeof *b);
    assert_int_equal(spec_drafter_open(&b->drafter, text, NULL), SPEC_OK);
    assert_int_equal(spec_tree_alloc(&b->tree, SPECI_MAX_NODE, NULL), SPEC_OK);
    attach(b, n_seq, n_node);
    const speci_trie *t = b->drafter->own;
    slow_open(&b->past, t->past.depth, t->past.period);
    for (int32_t i = 0; i < MOST_SEQ; i++) slow_open(&b->seq[i].prompt, t->past.depth, (uint32_t)(t->n_prompt_node / n_seq / 4));
    b->slow.list = malloc(MOST_CANDIDATE * sizeof *b->slow.list);
    b->alphabet = alphabet;
    b->random.state = 34;
    return b;
}

static void bench_close(bench *b)
{
    b->draft.kind->detach(&b->draft);
    spec_drafter_close(b->drafter);
    spec_tree_free(&b->tree, NULL);
    for (int32_t i = 0; i < MOST_SEQ; i++) free(b->seq[i].prompt.gram);
    free(b->past.gram);
    free(b->slow.list);
    free(b);
}

static speci_draft_seq asked(bench *b, int32_t seq)
{
    return (speci_draft_seq){ .seq = seq, .ids = b->seq[seq].ids, .n_ids = b->seq[seq].n, .n_prompt = b->seq[seq].n_prompt,
                              .sampling = &b->sampling, .depth_max = SPEC_MAX_DEPTH, .tree = &b->tree };
}

/* A text that repeats itself now and then. */
static void add_ids(bench *b, int32_t seq, int32_t n)
{
    for (; n > 0; n--) {
        const int32_t at = b->seq[seq].n, back = 3 + test_below(&b->random, 20);
        const bool again = at > back && test_below(&b->random, 3) > 0;
        b->seq[seq].ids[at] = again ? b->seq[seq].ids[at - back] : test_below(&b->random, b->alphabet);
        b->seq[seq].n++;
    }
}

static void add_prompt(bench *b, int32_t seq, int32_t n)
{
    const int32_t first = b->seq[seq].n;
    add_ids(b, seq, n);
    b->seq[seq].n_prompt = b->seq[seq].n;
    for (int32_t i = first; i < b->seq[seq].n; i++) slow_step(&b->seq[seq].prompt, b->seq[seq].ids, i, first);
    const speci_draft_seq q = asked(b, seq);
    if (first > 0) b->draft.kind->committed(&b->draft, &q, n);
    else assert_int_equal(b->draft.kind->prefill(&b->draft, &q), SPEC_OK);
}

static void emit(bench *b, int32_t seq, int32_t n)
{
    const int32_t first = b->seq[seq].n;
    add_ids(b, seq, n);
    for (int32_t i = first; i < b->seq[seq].n; i++) slow_step(&b->past, b->seq[seq].ids, i, b->seq[seq].n_prompt);
    const speci_draft_seq q = asked(b, seq);
    b->draft.kind->committed(&b->draft, &q, n);
}

static void finish(bench *b, int32_t seq)
{
    b->draft.kind->end(&b->draft, seq);
    b->seq[seq].n = b->seq[seq].prompt.n = 0, b->seq[seq].prompt.n_counted = 0;
}

static void copy_seq(bench *b, int32_t seq, int32_t to)
{
    const speci_draft_seq q = asked(b, seq);
    slow_gram *gram = b->seq[to].prompt.gram;
    b->draft.kind->end(&b->draft, to);
    assert_int_equal(b->draft.kind->fork(&b->draft, &q, to), SPEC_OK);
    memcpy(gram, b->seq[seq].prompt.gram, (size_t)b->seq[seq].prompt.n * sizeof *gram);
    b->seq[to] = b->seq[seq];
    b->seq[to].prompt.gram = gram;
}

/* The same proposal, or none where its match is too short. */
static void draft_by_longer(bench *b, speci_draft_seq *q)
{
    for (q->least = 1; q->least <= 4; q->least++) {
        q->n_match = 0;
        b->tree.n = 1;
        assert_int_equal(b->draft.kind->enqueue(&b->draft, NULL, q, 1), SPEC_OK);
        assert_int_equal(b->tree.n, b->slow.n_match >= q->least ? b->slow.n : 1);
    }
}

static void draft(bench *b, int32_t seq, int32_t depth_max)
{
    speci_draft_seq q = asked(b, seq);
    const int32_t n_draft = b->drafter->n_draft + 1, n_node = n_draft < b->site.n_node ? n_draft : b->site.n_node;
    int32_t at = 0;
    q.depth_max = depth_max;
    b->tree.n = 0, b->tree.kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(&b->tree, -1, q.ids[q.n_ids - 1], 1);
    assert_int_equal(b->draft.kind->enqueue(&b->draft, NULL, &q, 1), SPEC_OK);
    assert_int_equal(spec_tree_check(&b->tree, n_node, b->target.n_vocab), SPEC_OK);
    assert_int_equal(b->tree.kind, SPEC_TREE_DETERMINISTIC);
    slow_propose(&b->slow, &b->seq[seq].prompt, &b->past, q.ids, q.n_ids, n_node, depth_max, EOS);
    assert_int_equal(b->tree.n, b->slow.n);
    same_tree(&b->slow, 0, &b->tree, &at, -1);
    assert_int_equal(q.n_match, b->slow.n_match);
    b->n_drafted += b->tree.n - 1;
    draft_by_longer(b, &q);
}

typedef struct trie_case {
    const char *name, *text;
    int32_t n_seq, n_node, alphabet, n_op, longest; /* longest: tokens that are added at once */
    int32_t n_age;                                  /* halvings of the past, at least */
} trie_case;

static const trie_case trie_cases[] = {
    { "one sequence", "trie", 1, 64, 6, 300, 8, 0 },
    { "fewer nodes than it would take", "trie:32,6,1", 2, 9, 3, 300, 8, 0 },
    { "four sequences", "trie:12,8,1", 4, 64, 5, 600, 20, 0 },
    { "long grams", "trie:40,16,1", 2, 256, 2, 300, 12, 1 },
    { "pairs", "trie:8,2,4", 3, 64, 40, 500, 12, 0 },
    { "many followers", "trie:64,3,16", 3, 256, 400, 400, 25, 0 },
    { "counts that age", "trie:16,8,1", 3, 64, 3, 500, 120, 3 },
};

static void check_trie(void **state)
{
    const trie_case *c = *state;
    bench *b = bench_open(c->text, c->n_seq, c->n_node, c->alphabet);
    const speci_trie *t = b->drafter->own;
    for (int32_t i = 0; i < c->n_op; i++) {
        const int32_t seq = test_below(&b->random, c->n_seq), to = test_below(&b->random, c->n_seq);
        const int32_t what = test_below(&b->random, 30), n = 1 + test_below(&b->random, c->longest);
        const bool full = b->seq[seq].n + c->longest > MOST_ID;
        if (full || (what == 0 && b->seq[seq].n > 0)) finish(b, seq);
        else if (b->seq[seq].n == 0 || what == 1) add_prompt(b, seq, n);
        else if (what == 2 && to != seq) copy_seq(b, seq, to);
        else emit(b, seq, n);
        for (int32_t k = 0; k < c->n_seq; k++)
            if (b->seq[k].n > 0) draft(b, k, i % 5 == 0 ? 2 : SPEC_MAX_DEPTH);
    }
    same_counts(&t->past, &b->past);
    assert_true(t->past.age >= (uint32_t)c->n_age);
    assert_true(b->n_drafted > 4 * c->n_op);
    bench_close(b);
}

/* ------------------------------------------------------------------------------------------ the file --- */

static const char *const dir = support_directory;
static char path[96];

static uint8_t *read_all(size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(1 << 22);
    assert_non_null(f);
    *n = fread(data, 1, 1 << 22, f);
    fclose(f);
    return data;
}

static void write_all(const uint8_t *data, size_t n) { support_write(path, data, n); }

static void put_sum(uint8_t *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n - 8);
    for (int i = 0; i < 8; i++) data[n - 8 + (size_t)i] = (uint8_t)(speci_hash_value(&h) >> 8 * i);
}

/* A drafter that has counted some texts, and its file. */
static bench *counted(int32_t n_op, int32_t alphabet)
{
    bench *b = bench_open("trie:16,4,1", 2, 64, alphabet);
    for (int32_t i = 0; i < n_op; i++) {
        if (i % 20 == 0) add_prompt(b, i / 20 % 2, 8);
        else emit(b, test_below(&b->random, 2) && i > 20, 1 + test_below(&b->random, 9));
    }
    OK(spec_drafter_save(b->drafter, path));
    return b;
}

/* What was loaded goes on as what was saved: counts, their age, and the order in which followers are looked at. */
static void check_loaded(void **state)
{
    (void)state;
    bench *b = counted(500, 4);
    const speci_trie *t;
    spec_drafter *loaded, *larger;
    assert_true(((const speci_trie *)b->drafter->own)->past.age > 0);
    OK(spec_drafter_open(&loaded, "trie:16,4,1", NULL));
    OK(spec_drafter_load(loaded, path));
    t = loaded->own;
    assert_int_equal(t->n_vocab, 1000);
    assert_int_equal(t->past.n_counted, b->past.n_counted);
    same_counts(&t->past, &b->past);
    b->draft.kind->detach(&b->draft);
    spec_drafter_close(b->drafter);
    b->drafter = loaded;
    attach(b, 2, 64);
    for (int32_t k = 0; k < 2; k++) b->seq[k].n = b->seq[k].prompt.n = 0, b->seq[k].prompt.n_counted = 0;
    for (int32_t i = 0; i < 300; i++) {
        const int32_t seq = i < 2 ? i : test_below(&b->random, 2);
        if (i < 2) add_prompt(b, seq, 30);
        else emit(b, seq, 1 + test_below(&b->random, 5));
        draft(b, seq, SPEC_MAX_DEPTH);
    }
    OK(spec_drafter_open(&larger, "trie:20,9,3", NULL)); /* longer grams, more room */
    OK(spec_drafter_save(loaded, path));
    OK(spec_drafter_load(larger, path));
    t = larger->own;
    same_counts(&t->past, &b->past);
    spec_drafter_close(larger);
    bench_close(b);
}

/* A token that follows in a prompt and in the past is one candidate, and not two, below each of which are two more. */
static void check_candidates(void **state)
{
    (void)state;
    static const int32_t ids[] = { 1, 2, 3, 4, 1 };
    enum { N = sizeof ids / sizeof *ids, DEPTH = 4 };
    spec_model target = { .n_vocab = 1000 };
    speci_trie_counts counts[2];
    speci_trie_proposer p;
    speci_trie_cursor at[2] = { { .n_change = 0 } };
    spec_tree tree;
    OK(spec_tree_alloc(&tree, 32, NULL));
    OK(speci_trie_proposer_open(&p, 32, &speci_malloc));
    for (int k = 0; k < 2; k++) {
        OK(speci_trie_open(&counts[k], 256, 64, DEPTH, &speci_malloc));
        for (int32_t i = 0; i < N; i++) speci_trie_step(&counts[k], &at[k], ids, i, 0);
    }
    const speci_trie_place place = { .prompt = &counts[0], .past = &counts[1], .in_prompt = at[0], .in_past = at[1] };
    speci_draft_seq q = { .ids = ids, .n_ids = N, .depth_max = 2, .tree = &tree };
    (void)spec_tree_add(&tree, -1, 1, 1);
    speci_trie_propose(&p, &q, &place, &target);
    assert_int_equal(tree.n, 3);
    assert_int_equal(p.n_found, 2);
    for (int k = 0; k < 2; k++) speci_trie_close(&counts[k], &speci_malloc);
    speci_trie_proposer_close(&p, &speci_malloc);
    spec_tree_free(&tree, NULL);
}

static uint32_t value_of(const speci_trie_counts *t, const int32_t *ids, int32_t n)
{
    uint32_t x = 0;
    for (int32_t i = 0; i < n; i++)
        if (!(x = speci_trie_find(t, x, ids[i]))) return 0;
    return speci_trie_value(t, x);
}

/* A file of more nodes than are written at once. */
static void check_large(void **state)
{
    (void)state;
    enum { N = 6000, DEPTH = 4, ALPHABET = 200 };
    static int32_t ids[N];
    spec_drafter *d[2];
    spec_model target = { .n_vocab = ALPHABET };
    speci_trie_cursor c = { .n_change = 0 };
    test_random random = { .state = 3 };
    for (int k = 0; k < 2; k++) OK(spec_drafter_open(&d[k], "trie:16,4,8", NULL));
    speci_trie_counts *past = &((speci_trie *)d[0]->own)->past;
    speci_trie_take_vocabulary(d[0]->own, &target);
    for (int32_t i = 0; i < N; i++) {
        ids[i] = test_below(&random, ALPHABET);
        speci_trie_step(past, &c, ids, i, 0);
    }
    assert_true(past->n > 2 * 4096);
    OK(spec_drafter_save(d[0], path));
    OK(spec_drafter_load(d[1], path));
    const speci_trie_counts *loaded = &((speci_trie *)d[1]->own)->past;
    assert_int_equal(loaded->n, past->n);
    for (int32_t i = 0; i + DEPTH <= N; i++)
        for (int32_t n = 1; n <= DEPTH; n++) assert_int_equal(value_of(loaded, ids + i, n), value_of(past, ids + i, n));
    for (int k = 0; k < 2; k++) spec_drafter_close(d[k]);
}

/* However many sequences a session has, each has room for some grams of its prompt. */
static void check_many_sequences(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 1, 2, 3, 4, 1, 2, 3 };
    enum { N_SEQ = 20000, N = sizeof prompt / sizeof *prompt };
    bench *b = bench_open("trie:4,4,1", 2, 64, 4);
    b->draft.kind->detach(&b->draft);
    attach(b, N_SEQ, 64);
    speci_draft_seq q = { .seq = N_SEQ - 1, .ids = prompt, .n_ids = N, .n_prompt = N, .sampling = &b->sampling, .depth_max = 4,
                          .tree = &b->tree };
    OK(b->draft.kind->prefill(&b->draft, &q));
    b->tree.n = 0;
    (void)spec_tree_add(&b->tree, -1, prompt[N - 1], 1);
    OK(b->draft.kind->enqueue(&b->draft, NULL, &q, 1));
    assert_true(b->tree.n > 1);
    assert_int_equal(b->tree.token[1], 4);
    bench_close(b);
}

/* A drafter that never served has an empty past, which any may load. */
static void check_empty(void **state)
{
    (void)state;
    spec_drafter *d;
    size_t n;
    OK(spec_drafter_open(&d, "trie:4,3,1", NULL));
    OK(spec_drafter_save(d, path));
    free(read_all(&n));
    assert_int_equal(n, 56);
    OK(spec_drafter_load(d, path));
    assert_int_equal(((const speci_trie *)d->own)->past.n, 1);
    spec_drafter_close(d);
}

/* After a load that failed all counts are as they were. */
static void refused(bench *b, spec_drafter *d, spec_status status, const char *why)
{
    const speci_trie *t = d->own;
    FAILS(spec_drafter_load(d, path), status, why);
    assert_non_null(strstr(spec_last_error(), status == SPEC_E_NOMEM ? "" : path));
    if (b) same_counts(&t->past, &b->past);
    else assert_int_equal(t->past.n, 1);
}

static void check_damaged(void **state)
{
    (void)state;
    bench *b = counted(40, 4);
    size_t n;
    uint8_t *good = read_all(&n), *bad = malloc(n + 1);
    b->draft.kind->detach(&b->draft);
    for (size_t i = 0; i < n; i++) {
        write_all(good, i);
        refused(b, b->drafter, SPEC_E_FORMAT, "");
        memcpy(bad, good, n);
        bad[i] ^= (uint8_t)(1 << i % 8);
        write_all(bad, n);
        refused(b, b->drafter, SPEC_E_FORMAT, i < 8 ? "not a saved trie" : i < 12 ? "version" : "changed");
    }
    memcpy(bad, good, n);
    bad[n] = 0;
    write_all(bad, n + 1);
    refused(b, b->drafter, SPEC_E_FORMAT, "changed");
    write_all(good, n);
    OK(spec_drafter_load(b->drafter, path));
    attach(b, 2, 64);
    free(good);
    free(bad);
    bench_close(b);
}

/* Numbers that no trie has, under a checksum that fits. Places: the header's numbers, then 12 bytes a node. */
static const struct {
    const char *name;
    size_t at;
    uint32_t value;
    spec_status status;
    const char *why;
} forgeries[] = {
    { "version", 8, 2, SPEC_E_FORMAT, "version 2" },
    { "depth", 12, 5, SPEC_E_INVALID, "DEPTH 5" },
    { "vocabulary", 16, 999, SPEC_E_INVALID, "another vocabulary" },
    { "pieces", 24, 1, SPEC_E_INVALID, "another vocabulary" },
    { "number of nodes", 32, 3, SPEC_E_FORMAT, "cut short or changed" },
    { "many nodes", 32, UINT32_MAX, SPEC_E_FORMAT, "cut short or changed" },
    { "its own parent", 48, 1, SPEC_E_FORMAT, "node 1" },
    { "a parent behind it", 60, 7, SPEC_E_FORMAT, "node 2" },
    { "no token", 52, UINT32_MAX, SPEC_E_FORMAT, "node 1" },
    { "a token beyond", 64, 1000, SPEC_E_FORMAT, "node 2" },
    { "no count", 56, 0, SPEC_E_FORMAT, "node 1" },
    { "counts more than its parent", 68, 1 << 20, SPEC_E_FORMAT, "node 2" },
    { "a count that is none", 56, 1u << 31, SPEC_E_FORMAT, "node 1" },
};

static void check_forged(void **state)
{
    (void)state;
    bench *b = counted(40, 4);
    size_t n;
    uint8_t *good = read_all(&n), *bad = malloc(n);
    b->draft.kind->detach(&b->draft);
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        memcpy(bad, good, n);
        for (int k = 0; k < 4; k++) bad[forgeries[i].at + (size_t)k] = (uint8_t)(forgeries[i].value >> 8 * k);
        put_sum(bad, n);
        write_all(bad, n);
        refused(b, b->drafter, forgeries[i].status, forgeries[i].why);
    }
    memcpy(bad, good, n);
    memcpy(bad + n - 8 - 12, bad + n - 8 - 24, 12); /* the last node twice */
    put_sum(bad, n);
    write_all(bad, n);
    refused(b, b->drafter, SPEC_E_FORMAT, "could have been counted");
    attach(b, 2, 64);
    free(good);
    free(bad);
    bench_close(b);
}

/* It is not read: that would be told by its checksum. */
static void check_too_large(void **state)
{
    (void)state;
    enum { N_NODE = 1 << 20 };
    bench *b = counted(40, 4);
    size_t n;
    uint8_t *good = read_all(&n);
    b->draft.kind->detach(&b->draft);
    for (int k = 0; k < 4; k++) good[32 + k] = (uint8_t)(N_NODE >> 8 * k);
    write_all(good, n);
    assert_int_equal(truncate(path, 48 + 12 * (off_t)N_NODE + 8), 0);
    refused(b, b->drafter, SPEC_E_INVALID, "MEGABYTES");
    attach(b, 2, 64);
    free(good);
    bench_close(b);
}

static void check_refused(void **state)
{
    (void)state;
    bench *b = counted(40, 4);
    spec_model other = { .n_vocab = 1001 };
    spec_drafter *d, *larger;
    FAILS(b->draft.kind->check(b->drafter, &other), SPEC_E_INVALID, "another vocabulary");
    OK(b->draft.kind->check(b->drafter, &b->target));
    OK(spec_drafter_open(&d, "trie:4,3,1", NULL));
    refused(NULL, d, SPEC_E_INVALID, "DEPTH 4");
    speci_trie_take_vocabulary(d->own, &other); /* of a session in which nothing was said */
    refused(NULL, d, SPEC_E_INVALID, "DEPTH 4");
    OK(spec_drafter_open(&larger, "trie:4,4,1", NULL));
    OK(spec_drafter_load(larger, path));
    OK(larger->kind->check(larger, &b->target));
    FAILS(larger->kind->check(larger, &other), SPEC_E_INVALID, "another vocabulary");
    spec_drafter_close(larger);
    spec_drafter_close(d);
    (void)atomic_flag_test_and_set(&b->drafter->in_use);
    FAILS(spec_drafter_load(b->drafter, path), SPEC_E_STATE, "session");
    atomic_flag_clear(&b->drafter->in_use);
    bench_close(b);

    OK(spec_drafter_open(&d, "ngram", NULL));
    FAILS(spec_drafter_save(d, path), SPEC_E_UNSUPPORTED, "ngram");
    FAILS(spec_drafter_load(d, path), SPEC_E_UNSUPPORTED, "ngram");
    spec_drafter_close(d);

    OK(spec_drafter_open(&d, "trie:4,3,1", NULL));
    FAILS(spec_drafter_load(d, "/no/such/file"), SPEC_E_IO, "/no/such/file");
    FAILS(spec_drafter_load(d, dir), SPEC_E_IO, dir);
    FAILS(spec_drafter_save(d, "/no/such/file"), SPEC_E_IO, "/no/such/file");
    FAILS(spec_drafter_save(d, dir), SPEC_E_IO, dir);
    spec_drafter_close(d);
    static const char *const wrong[] = { "0", "16,1", "16,17", "256", "16,8,0", "16,8,70000", "16,8,1,1", "x", "16,", "16;8" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "trie:%s", wrong[i]);
        FAILS(spec_drafter_open(&d, text, NULL), SPEC_E_INVALID, wrong[i]);
        assert_null(d);
    }
}

/* A disk that is full leaves the file that was there, and nothing beside it. */
static void check_kept(void **state)
{
    (void)state;
    size_t n, n_after;
    int32_t n_entry = 0;
    bench *b = counted(40, 4);
    uint8_t *before = read_all(&n), *after;
    for (int32_t i = 0; i < 20; i++) emit(b, 0, 5);
    const struct rlimit small = { 100, RLIM_INFINITY }, none = { RLIM_INFINITY, RLIM_INFINITY };
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const spec_status status = spec_drafter_save(b->drafter, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(status, SPEC_E_IO);
    assert_non_null(strstr(spec_last_error(), path));
    after = read_all(&n_after);
    assert_int_equal(n, n_after);
    assert_memory_equal(before, after, n);
    DIR *d = opendir(dir);
    while (readdir(d)) n_entry++;
    closedir(d);
    assert_int_equal(n_entry, 3); /* ".", "..", and the file */
    free(before);
    free(after);
    bench_close(b);
}

static int make_directory(void **state)
{
    const int failed = support_directory_make(state);
    (void)snprintf(path, sizeof path, "%s/past", dir);
    return failed;
}

int main(void)
{
    enum { N_COUNT = N_ELEMENTS(count_cases), N_TRIE = N_ELEMENTS(trie_cases), N_OTHER = 11 };
    struct CMUnitTest tests[N_OTHER + N_COUNT + N_TRIE] = {
        cmocka_unit_test(check_occurrences), cmocka_unit_test(check_loaded), cmocka_unit_test(check_empty),
        cmocka_unit_test(check_damaged), cmocka_unit_test(check_forged), cmocka_unit_test(check_too_large),
        cmocka_unit_test(check_refused),
        cmocka_unit_test(check_kept), cmocka_unit_test(check_many_sequences),
        cmocka_unit_test(check_large), cmocka_unit_test(check_candidates),
    };
    for (int32_t i = 0; i < N_COUNT; i++)
        tests[N_OTHER + i] = (struct CMUnitTest){ count_cases[i].name, check_counts, NULL, NULL, (void *)(uintptr_t)&count_cases[i] };
    for (int32_t i = 0; i < N_TRIE; i++)
        tests[N_OTHER + N_COUNT + i] =
            (struct CMUnitTest){ trie_cases[i].name, check_trie, NULL, NULL, (void *)(uintptr_t)&trie_cases[i] };
    return _cmocka_run_group_tests("draft_trie", tests, N_ELEMENTS(tests), make_directory, support_directory_remove);
}
