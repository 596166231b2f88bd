/* bench_text.c - drafters that draft from text alone, by the length of the history: what a step of theirs takes, a fork, and the
 * memory of a token. No model: their hooks are called as a session calls them, over a text that is made up. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { VOCAB = 32000, STEP_TOKENS = 4, STEPS_PER_REPEAT = 20, MAX_LENGTH = 8 };

typedef struct text_run {
    spec_model target; /* as much of it as drafters look at */
    speci_draft_site site;
    speci_draft draft;
    speci_draft_seq q;
    spec_tree tree;
    spec_sampling sampling;
    int32_t *ids, n_ids;
    double *us;       /* [n_step] */
    int32_t n_step;
    int64_t n_drafted;
} text_run;

/* --- the text --- */

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 32) * n >> 32);
}

/* Tokens by Zipf's law, and in one place of 64 a passage of 16 to 79 tokens that stood before. */
static void make_text(int32_t *ids, int32_t n)
{
    uint64_t state = 34;
    int32_t left = 0, from = 0;
    for (int32_t i = 0; i < n; i++) {
        if (left == 0 && i > 128 && random_below(&state, 64) == 0) {
            left = 16 + (int32_t)random_below(&state, 64);
            from = (int32_t)random_below(&state, (uint32_t)(i - 80));
        }
        ids[i] = left > 0 ? ids[from++] : (int32_t)pow(VOCAB, random_below(&state, 1 << 24) / 16777216.0) - 1;
        if (left > 0) left--;
    }
}

/* --- a drafter at work --- */

static spec_status begin(text_run *t, spec_drafter *drafter)
{
    t->target = (spec_model){ .n_vocab = VOCAB };
    t->site = (speci_draft_site){ .target = &t->target, .a = &speci_malloc, .n_seq = 2, .n_node = SPECI_MAX_NODE };
    t->draft = (speci_draft){ .drafter = drafter, .kind = drafter->kind, .site = &t->site, .size = speci_draft_size_of(drafter) };
    t->q = (speci_draft_seq){ .ids = t->ids, .sampling = &t->sampling, .depth_max = SPEC_MAX_DEPTH, .tree = &t->tree };
    SPEC_TRY(t->draft.kind->prepare(&t->draft));
    return t->draft.kind->attach ? t->draft.kind->attach(&t->draft) : SPEC_OK;
}

/* Microseconds of a step that commits `n` more tokens and drafts. */
static spec_status step(text_run *t, int32_t n, double *us)
{
    const speci_draft_kind *kind = t->draft.kind;
    t->q.n_ids += n;
    t->q.tree->n = 0;
    (void)spec_tree_add(t->q.tree, -1, t->ids[t->q.n_ids - 1], 1);
    const double start = speci_now_ms();
    if (n > 0 && kind->committed) kind->committed(&t->draft, &t->q, n);
    const spec_status status = kind->enqueue(&t->draft, NULL, &t->q, 1);
    *us = 1e3 * (speci_now_ms() - start);
    t->n_drafted += t->q.tree->n - 1;
    return status;
}

static spec_status steps(text_run *t, int32_t n)
{
    for (int32_t i = 0; i < t->n_step; i++) SPEC_TRY(step(t, n, &t->us[i]));
    return SPEC_OK;
}

/* Median, the slowest in a hundred and the slowest of the steps. */
static void put_steps(json_t *r, text_run *t, const char *median, const char *slow, const char *worst)
{
    bench_number(r, median, bench_median(t->us, t->n_step));
    bench_number(r, slow, t->us[t->n_step * 99 / 100]);
    bench_number(r, worst, t->us[t->n_step - 1]);
}

static double resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (double)pages * 4096;
}

static spec_status run(text_run *t, json_t *r, int32_t n_history)
{
    (void)malloc_trim(0);
    const double before = resident_bytes(), start = speci_now_ms();
    t->q.n_ids = t->q.n_prompt = n_history;
    SPEC_TRY(t->draft.kind->prefill(&t->draft, &t->q));
    bench_number(r, "prompt_ms", speci_now_ms() - start);
    bench_number(r, "bytes_per_token", (resident_bytes() - before) / n_history);
    SPEC_TRY(steps(t, STEP_TOKENS));
    put_steps(r, t, "step_us", "slow_us", "worst_us");
    bench_number(r, "drafted", (double)t->n_drafted / t->n_step);
    SPEC_TRY(steps(t, 0));
    bench_number(r, "lookup_us", bench_median(t->us, t->n_step));
    const double fork = speci_now_ms();
    SPEC_TRY(t->draft.kind->fork(&t->draft, &t->q, 1));
    bench_number(r, "fork_us", 1e3 * (speci_now_ms() - fork));
    t->q.seq = 1;
    SPEC_TRY(steps(t, STEP_TOKENS));
    put_steps(r, t, "copy_us", "copy_slow_us", "copy_worst_us");
    return SPEC_OK;
}

/* --- the mode --- */

static spec_status measure(bench *b, const char *drafter_text, int32_t n_history)
{
    spec_drafter *drafter;
    text_run t = { .n_step = b->o.repeats * STEPS_PER_REPEAT };
    SPEC_TRY(spec_drafter_open(&drafter, drafter_text, NULL));
    json_t *r = bench_record(b, "text");
    bench_text(r, "what", drafter_text);
    bench_count(r, "tokens", n_history);
    t.n_ids = n_history + 2 * STEP_TOKENS * t.n_step;
    t.ids = speci_alloc(NULL, (size_t)t.n_ids, sizeof *t.ids);
    t.us = speci_alloc(NULL, (size_t)t.n_step, sizeof *t.us);
    spec_status status = t.ids && t.us ? spec_tree_alloc(&t.tree, SPECI_MAX_NODE, NULL) : SPEC_E_NOMEM;
    if (status == SPEC_OK) {
        make_text(t.ids, t.n_ids);
        status = begin(&t, drafter);
        if (status == SPEC_OK) status = run(&t, r, n_history);
        drafter->kind->detach(&t.draft);
    }
    spec_tree_free(&t.tree, NULL);
    speci_free(NULL, t.us);
    speci_free(NULL, t.ids);
    spec_drafter_close(drafter);
    if (status == SPEC_OK) return bench_emit(b, r, 0);
    json_decref(r);
    return status;
}

spec_status bench_text_drafters(bench *b)
{
    int32_t lengths[MAX_LENGTH], n_length;
    char drafter[128];
    SPEC_TRY(bench_ints(lengths, MAX_LENGTH, &n_length, b->o.tokens ? b->o.tokens : "10000,100000,1000000", "--tokens"));
    for (int32_t k = 0; bench_item(drafter, sizeof drafter, b->o.tree ? b->o.tree : "ngram;trie", ';', k); k++)
        for (int32_t i = 0; i < n_length; i++) SPEC_TRY(measure(b, drafter, lengths[i]));
    return SPEC_OK;
}
