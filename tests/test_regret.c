/* test_regret.c - what a session's choice costs: rounds with a clock of our own, and drafters whose success is ours to say. The
 * time lost against the best way known beforehand stays below what it becomes when discount, dwell or exploration of
 * choose_adapt.c is four times as large or as small. */
#include "tests/support_model.h"

#include "algorithms/engine/engine.h"

enum { N_DRAFTED = 5, N_ROUND = 6000, N_SEED = 8 };

static spec_backend *backend;
static double clock_ms; /* a look at the clock takes a millisecond: so does a pass of the profile */
static double tick(void) { return clock_ms += 1; }

/* Five tokens in a row, whatever they are: which are accepted is for the environment to say. */
static spec_status propose(void *user_data, spec_draft_request *requests, int32_t n)
{
    (void)user_data;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 1; k <= N_DRAFTED && k < requests[i].tree->cap; k++, requests[i].tree->n = k)
            requests[i].tree->token[k] = 1, requests[i].tree->parent[k] = k - 1;
    return SPEC_OK;
}

/* Emitted tokens of a round of a way to draft, on average, and the milliseconds that it takes beside its pass. */
typedef struct way {
    double emitted, ms;
} way;

/* Ways in the first rounds, and from round n_first on. The first `unlucky` rounds of way 0 have nothing accepted. */
typedef struct environment {
    const char *name;
    way first[2], then[2];
    int32_t n_first, unlucky;
    double lost; /* the most of the time that may be lost against the best way of each round */
} environment;

static const environment environments[] = {
    { "the best way stays", { { 2.2, 1 }, { 1.8, 1 } }, { { 2.2, 1 }, { 1.8, 1 } }, N_ROUND, 0, 0.0085 },
    { "the better way changes", { { 3, 1 }, { 1.2, 1 } }, { { 1.2, 1 }, { 3, 1 } }, N_ROUND / 2, 0, 0.155 },
    { "drafting begins without luck", { { 3, 1 }, { 1.1, 1 } }, { { 3, 1 }, { 1.1, 1 } }, N_ROUND, 8, 0.06 },
    { "drafting does not pay", { { 1.3, 1 }, { 1.5, 1 } }, { { 1.3, 1 }, { 1.5, 1 } }, N_ROUND, 0, 0.015 },
};

/* Between 1 and 6, with this mean: accepted with the same chance one after the other. */
static int32_t draw_emitted(double mean, uint64_t *random)
{
    double low = 0, high = 1;
    for (int32_t i = 0; i < 40; i++) { /* 1 + a + a^2 + ... + a^5 = mean */
        const double a = (low + high) / 2;
        double sum = 0;
        for (int32_t k = 0; k <= N_DRAFTED; k++) sum = 1 + a * sum;
        if (sum < mean) low = a;
        else high = a;
    }
    int32_t n = 1;
    while (n <= N_DRAFTED && support_random(random) / 4294967296.0 < low) n++;
    return n;
}

/* Tokens per millisecond; a round's second look at the clock is its pass. */
static double rate_of(const way *w) { return w->emitted / (1 + w->ms); }

typedef struct outcome {
    double ms, best_ms; /* what it took; what the best way would have taken for as many tokens */
    int32_t used[3];
} outcome;

static void play_round(spec_session *s, int32_t seq, const environment *e, int32_t round, uint64_t *random, outcome *out)
{
    const way *ways = round < e->n_first ? e->first : e->then;
    const spec_tree *tree;
    int32_t chosen, path[N_DRAFTED + 1];
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_draft_choice(s, &chosen, seq));
    assert_true(chosen >= -1 && chosen < 2);
    assert_int_equal(tree->n, chosen < 0 ? 1 : N_DRAFTED + 1);
    const bool luck = chosen != 0 || out->used[1] >= e->unlucky;
    const int32_t n = chosen < 0 || !luck ? 1 : draw_emitted(ways[chosen].emitted, random);
    for (int32_t i = 0; i < n; i++) path[i] = i;
    const double ms = chosen < 0 ? 0 : ways[chosen].ms;
    clock_ms += ms;
    OK(spec_score(s, &seq, 1, &tree));
    OK(spec_commit(s, seq, path, n, 1));
    double best = 1;
    for (int32_t i = 0; i < 2; i++) best = rate_of(&ways[i]) > best ? rate_of(&ways[i]) : best;
    const double emitted = chosen < 0 ? 1 : ways[chosen].emitted; /* expected: luck is not the choice's */
    out->ms += 1 + ms, out->best_ms += emitted / best;
    out->used[1 + chosen]++;
}

/* Adds the rounds of one session. */
static void play(spec_model *model, const environment *e, uint64_t seed, outcome *out)
{
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *list[2];
    spec_session *s;
    outcome own = { 0 };
    int32_t seq, prompt = 1;
    dp.n_draft = N_DRAFTED;
    for (int32_t i = 0; i < 2; i++) OK(spec_drafter_from_ops(&list[i], &ops, &dp));
    p.n_ctx = 8 * N_ROUND, p.adapt = SPEC_ADAPT_COST;
    p.drafters = list, p.n_drafter = 2, p.combine = SPEC_DRAFT_CHOOSE;
    OK(spec_session_open(&s, model, NULL, &p));
    s->now_ms = tick;
    OK(spec_sequence_add(s, &seq, &prompt, 1, NULL));
    for (int32_t i = 0; i < N_ROUND; i++) play_round(s, seq, e, i, &seed, &own);
    spec_session_close(s);
    for (int32_t i = 0; i < 2; i++) spec_drafter_close(list[i]);
    out->ms += own.ms, out->best_ms += own.best_ms;
    for (int32_t i = 0; i < 3; i++) out->used[i] += own.used[i];
}

static void check(void **state)
{
    const environment *e = *state;
    outcome out = { 0 };
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    for (uint64_t seed = 1; seed <= N_SEED; seed++) play(model, e, seed, &out);
    const double lost = 1 - out.best_ms / out.ms;
    print_message("  %s: %.4f of the time lost; plain %d, first %d, second %d rounds\n", e->name, lost, out.used[0],
                  out.used[1], out.used[2]);
    if (!(lost <= e->lost)) fail_msg("%s: %.4f of the time lost, at most %.4f", e->name, lost, e->lost);
    spec_model_close(model);
}

int main(void)
{
    enum { N = sizeof environments / sizeof *environments };
    struct CMUnitTest tests[N];
    OK(spec_backend_open(&backend, "cpu", NULL)); /* the choice knows no device */
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ environments[i].name, check, NULL, NULL, (void *)(uintptr_t)&environments[i] };
    const int failed = _cmocka_run_group_tests("regret", tests, N, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
