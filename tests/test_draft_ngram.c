/* test_draft_ngram.c - the index of prompt lookup against a search that is obviously right: texts that grow by pieces, copies that
 * go on apart, memory that fails. What the drafter makes of it: test_drafters.c. */
#include "tests/test.h"

#include "algorithms/draft/draft_ngram_index.h"
#include "tests/support_memory.h"

enum { N_TEXT = 4, N_ID = 6000 };

/* --- texts --- */

typedef struct text {
    speci_ngram_index index;
    int32_t ids[N_ID], n; /* n 0: there is none */
} text;

static void go_on(text *t, test_random *random, int32_t n, int32_t alphabet)
{
    for (; n > 0 && t->n < N_ID; n--) t->ids[t->n++] = test_below(random, alphabet);
}

/* Where the n tokens that end at `end` stand first. */
static int32_t first(const text *t, int32_t end, int32_t n)
{
    int32_t at = n - 1;
    while (memcmp(t->ids + at + 1 - n, t->ids + end + 1 - n, (size_t)n * sizeof *t->ids) != 0) at++;
    return at;
}

/* Grams that the index has, and those that end at the last id, which it does not have. */
static void check(const text *t, test_random *random, int32_t n_most)
{
    for (int32_t i = 0; i < 40 && t->n > 1; i++) {
        const int32_t end = i == 0 ? t->n - 1 : test_below(random, t->n);
        for (int32_t n = 1; n <= n_most && n <= end + 1; n++) {
            const int32_t at = first(t, end, n), got = speci_ngram_first(&t->index, t->ids, end, n, n_most);
            if (got != (at == t->n - 1 ? -1 : at))
                fail_msg("of %d tokens, the %d that end at %d: found at %d, they stand first at %d", t->n, n, end, got, at);
        }
    }
}

typedef struct index_case {
    const char *name;
    int32_t n_most, alphabet, longest; /* longest: tokens that are added at once */
    int64_t fail_every;                /* this allocation fails, counted from each operation on; 0: none */
} index_case;

static const index_case cases[] = {
    { "two tokens", 3, 2, 9, 0 },          { "one gram of a token", 1, 50, 5, 0 },
    { "sixteen", 16, 3, 30, 0 },           { "a large vocabulary", 4, 40000, 300, 0 },
    { "long pieces", 3, 20, 3000, 0 },     { "the first allocation fails", 3, 6, 200, 1 },
    { "the second fails", 3, 6, 200, 2 },  { "the ninth fails", 5, 30, 100, 9 },
};

static void check_index(void **state)
{
    static text texts[N_TEXT];
    const index_case *c = *state;
    support_memory f = { 0 };
    const spec_allocator a = support_allocator(&f);
    test_random random = { 34 };
    int64_t n_failed = 0;
    memset(texts, 0, sizeof texts);
    for (int32_t i = 0; i < 600; i++) {
        text *t = &texts[test_below(&random, N_TEXT)], *other = &texts[test_below(&random, N_TEXT)];
        const int32_t what = test_below(&random, 12);
        f.n_call = 0, f.fail_at = test_below(&random, 2) ? c->fail_every : 0;
        if (what == 0 || t->n >= N_ID) {
            speci_ngram_free(&t->index, &a);
            t->n = 0;
        } else if (what == 1 && t != other) { /* other begins as a copy */
            speci_ngram_free(&other->index, &a);
            *other = *t;
            other->index = (speci_ngram_index){ 0 };
            n_failed += speci_ngram_share(&other->index, &t->index, &a) != SPEC_OK;
        } else {
            go_on(t, &random, 1 + test_below(&random, c->longest), c->alphabet);
        }
        for (int32_t k = 0; k < N_TEXT; k++) { /* what has failed is made again */
            f.n_call = 0;
            n_failed += speci_ngram_extend(&texts[k].index, texts[k].ids, texts[k].n - 1, c->n_most, &a) != SPEC_OK;
            f.fail_at = 0;
            assert_int_equal(speci_ngram_extend(&texts[k].index, texts[k].ids, texts[k].n - 1, c->n_most, &a), SPEC_OK);
            check(&texts[k], &random, c->n_most);
        }
    }
    assert_true((n_failed > 0) == (c->fail_every > 0));
    for (int32_t k = 0; k < N_TEXT; k++) speci_ngram_free(&texts[k].index, &a);
    assert_int_equal(f.n_block, 0);
}

int main(void)
{
    struct CMUnitTest tests[N_ELEMENTS(cases)];
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++)
        tests[i] = (struct CMUnitTest){ cases[i].name, check_index, NULL, NULL, (void *)(uintptr_t)&cases[i] };
    return _cmocka_run_group_tests("draft_ngram", tests, N_ELEMENTS(tests), NULL, NULL);
}
