/* test_regret.c - what a session's choice costs, by a clock of our own: drafters whose success is ours to say, or that
 * take long; a text that begins to repeat itself, and ends to; more sequences and fewer. The time lost against the best
 * way known beforehand stays below what it becomes when a constant of choose_source.c or choose_adapt.c is far off, or
 * a part of the choice is left out. */
#include "tests/support_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "algorithms/engine/engine.h"

enum { N_DRAFTED = 5, N_ROUND = 6000, N_SEED = 8 };

static spec_backend *backend;
static double clock_ms;
static double now(void) { return clock_ms; }

/* Between 1 and 1 + depth tokens: accepted with the same chance one after the other. */
static int32_t draw_emitted(double chance, int32_t depth, uint64_t *random)
{
    int32_t n = 1;
    while (n <= depth && support_random(random) / 4294967296.0 < chance) n++;
    return n;
}

static double expected(double chance, int32_t depth)
{
    double sum = 0;
    for (int32_t k = 0; k <= depth; k++) sum = 1 + chance * sum;
    return sum;
}

/* The chance with which so many tokens are emitted on average. */
static double chance_of(double mean)
{
    double low = 0, high = 1;
    for (int32_t i = 0; i < 40; i++) {
        const double a = (low + high) / 2;
        if (expected(a, N_DRAFTED) < mean) low = a;
        else high = a;
    }
    return low;
}

static void check_lost(const char *name, double lost, double most, double least)
{
    print_message("  %s: %.4f of the time lost\n", name, lost);
    if (!(lost <= most && lost >= least)) fail_msg("%s: %.4f of the time lost, not %.4f to %.4f", name, lost, least, most);
}

/* ---------------------------------------------------------------- ways that do well, and not --- */

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
    { "the best way stays", { { 2.2, 1 }, { 1.8, 1 } }, { { 2.2, 1 }, { 1.8, 1 } }, N_ROUND, 0, 0.011 },
    { "the better way changes", { { 3, 1 }, { 1.2, 1 } }, { { 1.2, 1 }, { 3, 1 } }, N_ROUND / 2, 0, 0.06 },
    { "drafting begins without luck", { { 3, 1 }, { 1.1, 1 } }, { { 3, 1 }, { 1.1, 1 } }, N_ROUND, 3, 0.06 },
    { "drafting does not pay", { { 1.3, 1 }, { 1.5, 1 } }, { { 1.3, 1 }, { 1.5, 1 } }, N_ROUND, 0, 0.01 },
};

/* Tokens per millisecond: a pass takes one. */
static double rate_of(const way *w) { return w->emitted / (1 + w->ms); }

typedef struct outcome {
    double ms, best_ms; /* what it took; what the best way would have taken for as many tokens */
    int32_t n_first;    /* rounds of way 0 */
} outcome;

/* A pass takes a millisecond, however large it is: what the ways take more, rounds show. */
static spec_session *open_session(spec_model *model, spec_drafter **list, int32_t n_drafter, int32_t n_ctx)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    p.n_ctx = n_ctx, p.adapt = SPEC_ADAPT_COST;
    p.drafters = list, p.n_drafter = n_drafter, p.combine = SPEC_DRAFT_CHOOSE;
    OK(spec_session_open(&s, model, NULL, &p));
    s->profile.target = (spec_cost_table){ .n = 2, .n_node = { 1, SPECI_MAX_NODE }, .ms = { 1, 1 } };
    s->now_ms = now;
    return s;
}

static void play_round(spec_session *s, int32_t seq, const environment *e, int32_t round, uint64_t *random, outcome *out)
{
    const way *ways = round < e->n_first ? e->first : e->then;
    const spec_tree *tree;
    int32_t chosen, path[N_DRAFTED + 1];
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_draft_choice(s, &chosen, seq));
    assert_true(chosen >= -1 && chosen < 3);
    if (chosen == 2) chosen = 0; /* both, of which the first always proposes */
    assert_int_equal(tree->n, chosen < 0 ? 1 : N_DRAFTED + 1);
    const bool luck = chosen != 0 || out->n_first >= e->unlucky;
    const int32_t n = chosen < 0 || !luck ? 1 : draw_emitted(chance_of(ways[chosen].emitted), N_DRAFTED, random);
    for (int32_t i = 0; i < n; i++) path[i] = i;
    const double ms = 1 + (chosen < 0 ? 0 : ways[chosen].ms);
    clock_ms += ms;
    OK(spec_score(s, &seq, 1, &tree));
    OK(spec_commit(s, seq, path, n, 1));
    double best = 1;
    for (int32_t i = 0; i < 2; i++) best = fmax(rate_of(&ways[i]), best);
    out->ms += ms, out->best_ms += (chosen < 0 ? 1 : ways[chosen].emitted) / best; /* expected: luck is not the choice's */
    out->n_first += chosen == 0;
}

/* Adds the rounds of one session. */
static void play(spec_model *model, const environment *e, uint64_t seed, outcome *out)
{
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *list[2];
    outcome own = { 0 };
    int32_t seq, prompt = 1;
    dp.n_draft = N_DRAFTED;
    for (int32_t i = 0; i < 2; i++) OK(spec_drafter_from_ops(&list[i], &ops, &dp));
    spec_session *s = open_session(model, list, 2, 8 * N_ROUND);
    OK(spec_sequence_add(s, &seq, &prompt, 1, NULL));
    for (int32_t i = 0; i < N_ROUND; i++) play_round(s, seq, e, i, &seed, &own);
    spec_session_close(s);
    for (int32_t i = 0; i < 2; i++) spec_drafter_close(list[i]);
    out->ms += own.ms, out->best_ms += own.best_ms;
}

static void check_ways(void **state)
{
    const environment *e = *state;
    outcome out = { 0 };
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    for (uint64_t seed = 1; seed <= N_SEED; seed++) play(model, e, seed, &out);
    check_lost(e->name, 1 - out.best_ms / out.ms, e->lost, 0);
    spec_model_close(model);
}

/* ------------------------------------------------------------------------ texts one by one --- */

static double expected_after(speci_choice *c, int32_t n, double n_accepted)
{
    for (int32_t i = 0; i < n; i++) {
        speci_asks asks = { 0 };
        speci_asks_add(&asks, N_DRAFTED, n_accepted);
        (void)speci_source_update(&c->sources[0], &c->levels[0], &asks);
        speci_source_age(&c->sources[0], false);
    }
    return speci_source_expect(&c->sources[0], &c->levels[0], 0).n_accepted;
}

/* A text ends by repeating itself, and the next one does not: some asks then count for more than all that were before. What was
 * known is not forgotten. */
static void check_next_text(void **state)
{
    (void)state;
    speci_source source = { .n_node = N_DRAFTED, .depth = N_DRAFTED };
    speci_levels levels = { 0 };
    speci_choice c = { .n_source = 1, .sources = &source, .levels = &levels };
    const double before = expected_after(&c, 100, N_DRAFTED), same_text = expected_after(&c, 4, 1);
    assert_true(before > N_DRAFTED - 0.5 && same_text > N_DRAFTED - 1);
    source = (speci_source){ .n_node = N_DRAFTED, .depth = N_DRAFTED }, levels = (speci_levels){ 0 };
    (void)expected_after(&c, 100, N_DRAFTED);
    speci_choice_begin(&c);
    assert_true(expected_after(&c, 0, 0) > N_DRAFTED - 0.5);
    assert_true(expected_after(&c, 4, 1) < 0.75 * N_DRAFTED);
    print_message("  expected %.2f; after four asks that bring less %.2f in this text, %.2f in the next\n", before, same_text,
                  expected_after(&c, 0, 0));
}

/* Asks of long ago count for little beside the next one: those of the past, and those that are too few to be in it yet. */
static void check_old_asks(void **state)
{
    (void)state;
    static const int32_t n_asks[] = { 10, 40 };
    for (int k = 0; k < 2; k++) {
        speci_source source = { .n_node = N_DRAFTED, .depth = N_DRAFTED };
        speci_levels levels = { 0 };
        const speci_asks one = { .n = 1, .n_proposed = 1, .n_node = N_DRAFTED };
        for (int32_t i = 0; i < n_asks[k]; i++) (void)speci_source_update(&source, &levels, &one);
        assert_true(source.past.n + source.recent.n > 9);
        for (int32_t i = 0; i < 1000; i++) speci_source_age(&source, false);
        (void)speci_source_update(&source, &levels, &one);
        assert_true(source.recent.n < 2.1 && source.past.n < 5.1);
    }
}

/* ----------------------------------------------------------------------- text that changes --- */

/* A text of parts, now without a repetition of three tokens, now the last N_PIECE tokens again and again. */
enum { N_PART = 120, N_PARTS = 20, N_PIECE = 12, N_TEXT = N_PART * N_PARTS };

static bool repeats(int32_t at) { return at / N_PART % 2 == 1; }

static void write_text(int32_t *text, int32_t n_vocab)
{
    uint64_t random = 7;
    for (int32_t i = 0; i < N_TEXT; i++)
        text[i] = repeats(i) ? text[i - N_PIECE] : 1 + (int32_t)(support_random(&random) % (uint32_t)(n_vocab - 1));
}

/* How many tokens of the text a tree has right, its root being text[at]: path [..] receives them. */
static int32_t walk(const spec_tree *t, const int32_t *text, int32_t at, int32_t *path)
{
    int32_t n = 0, child = 0;
    for (path[n++] = 0; at + n < N_TEXT && (child = speci_tree_child_with(t, child, text[at + n])) >= 0;) path[n++] = child;
    return n;
}

/* Looking up takes a pass of twice the time where it proposes, and is right where the text repeats itself. Of the time that the best
 * way of each part takes little is lost in changing over. */
static void check_bursts(void **state)
{
    (void)state;
    int32_t text[N_TEXT], seq, at = 0, used[2] = { 0 }, late = 0;
    double ms = 0, best_ms = 0;
    spec_drafter *d;
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    write_text(text, model->n_vocab);
    OK(spec_drafter_open(&d, "ngram:3,9", NULL));
    spec_session *s = open_session(model, &d, 1, 2 * N_TEXT);
    s->profile.target = (spec_cost_table){ .n = 3, .n_node = { 1, 2, SPECI_MAX_NODE }, .ms = { 1, 2, 2 } };
    OK(spec_sequence_add(s, &seq, text, 1, NULL));
    for (int32_t round = 0; at + 1 < N_TEXT; round++) {
        const spec_tree *tree;
        int32_t path[SPEC_MAX_DEPTH + 1];
        OK(spec_draft(s, &tree, &seq, 1));
        int32_t n = walk(tree, text, at, path);
        if (at + n >= N_TEXT) n = N_TEXT - 1 - at;
        const int32_t chosen = s->seqs[seq].proposal.arm;
        clock_ms += tree->n > 1 ? 2 : 1, ms += tree->n > 1 ? 2 : 1;
        best_ms += repeats(at) ? 0.2 * n : n;
        used[repeats(at)] += chosen >= 0;
        late += chosen < 0 && repeats(at) && at % N_PART > 24; /* the piece has been there once, and again */
        OK(spec_score(s, &seq, 1, &tree));
        OK(spec_commit(s, seq, path, n, text[at + n]));
        at += n;
    }
    print_message("  rounds that look up: %d where nothing repeats, %d where all does; %d late\n", used[0], used[1], late);
    check_lost("bursts", 1 - best_ms / ms, 0.05, 0);
    assert_true(late <= N_PARTS);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* ---------------------------------------------------------------------------------- chains --- */

/* A model, as it were: it has the next two tokens right in two steps of three, and takes half a pass. */
enum { N_RIGHT = 2 };
typedef struct clerk {
    const int32_t *text;
    uint64_t random;
    int32_t n_asked;
} clerk;
static spec_status propose_right(void *user_data, spec_draft_request *requests, int32_t n)
{
    clerk *c = user_data;
    for (int32_t i = 0; i < n; i++) {
        const bool right = support_random(&c->random) % 3 > 0;
        const int32_t at = (int32_t)requests[i].n_ids;
        c->n_asked++;
        for (int32_t k = 0; k < N_RIGHT && at + k < N_TEXT; k++)
            (void)spec_tree_add(requests[i].tree, k, right ? c->text[at + k] : 0, 0);
    }
    return SPEC_OK;
}

/* Milliseconds for the text of check_bursts, by a way that is chosen, or by one that is given. */
static double play_chain(spec_model *model, const int32_t *text, bool looks_up, bool asks, spec_draft_combine combine, spec_adapt adapt)
{
    clerk c = { .text = text, .random = 3 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose_right, .user_data = &c };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *list[2];
    spec_session *s;
    int32_t seq, at = 0;
    dp.n_draft = N_RIGHT;
    if (looks_up) OK(spec_drafter_open(&list[p.n_drafter++], "ngram:3,9", NULL));
    if (asks) OK(spec_drafter_from_ops(&list[p.n_drafter++], &ops, &dp));
    p.n_ctx = 2 * N_TEXT, p.adapt = adapt, p.drafters = list, p.combine = combine;
    OK(spec_session_open(&s, model, NULL, &p));
    s->profile.target = (spec_cost_table){ .n = 2, .n_node = { 1, SPECI_MAX_NODE }, .ms = { 1, 1 } };
    s->now_ms = now;
    OK(spec_sequence_add(s, &seq, text, 1, NULL));
    const double start = clock_ms;
    while (at + 1 < N_TEXT) {
        const spec_tree *tree;
        const int32_t n_asked = c.n_asked;
        int32_t path[SPEC_MAX_DEPTH + 1];
        OK(spec_draft(s, &tree, &seq, 1));
        int32_t n = walk(tree, text, at, path);
        if (at + n >= N_TEXT) n = N_TEXT - 1 - at;
        clock_ms += c.n_asked > n_asked ? 1.5 : 1;
        OK(spec_score(s, &seq, 1, &tree));
        OK(spec_commit(s, seq, path, n, text[at + n]));
        at += n;
    }
    spec_session_close(s);
    for (int32_t k = 0; k < p.n_drafter; k++) spec_drafter_close(list[k]);
    return clock_ms - start;
}

/* A chain is faster than each of its drafters, and the choice finds it. */
static void check_chain(void **state)
{
    (void)state;
    int32_t text[N_TEXT];
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    write_text(text, model->n_vocab);
    const double looked = play_chain(model, text, true, false, SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF);
    const double asked = play_chain(model, text, false, true, SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF);
    const double chain = play_chain(model, text, true, true, SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF);
    const double chosen = play_chain(model, text, true, true, SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST);
    print_message("  ms: looked up %.0f, asked %.0f, a chain %.0f, chosen %.0f\n", looked, asked, chain, chosen);
    assert_true(chain < 0.9 * fmin(looked, asked));
    check_lost("chain", 1 - chain / chosen, 0.05, -0.1);
    spec_model_close(model);
}

/* ------------------------------------------------------------------------ right, and slow --- */

/* Each reading is a millisecond later, so a plain step takes one. */
static double next_ms(void) { return clock_ms++; }

/* What the target says, thought of for 40 ms. */
typedef struct thinker {
    int32_t *text, n_text, n_asked;
} thinker;
static spec_status propose_slowly(void *user_data, spec_draft_request *requests, int32_t n)
{
    thinker *t = user_data;
    spec_tree *tree = requests[0].tree;
    assert_int_equal(n, 1);
    clock_ms += 40, t->n_asked++;
    for (int32_t at = (int32_t)requests[0].n_ids; at < t->n_text && tree->n < tree->cap && tree->n <= N_DRAFTED; at++)
        (void)spec_tree_add(tree, tree->n - 1, t->text[at], 1);
    return SPEC_OK;
}

/* The steps that a text of n tokens takes; then `text` holds it. */
static int32_t say(spec_session *s, int32_t *text, int32_t n)
{
    const spec_request all = { .struct_size = sizeof all, .ignore_eos = true };
    const spec_step_result *result;
    const int32_t *ids, prompt = 1;
    size_t n_ids = 0;
    int32_t seq, n_step = 0;
    OK(spec_sequence_add(s, &seq, &prompt, 1, &all));
    for (; n_ids < (size_t)n; n_step++) {
        OK(spec_step(s, &result, &seq, 1));
        OK(spec_sequence_ids(s, &ids, &n_ids, seq));
    }
    memcpy(text, ids, (size_t)n * sizeof *text);
    spec_session_close(s);
    return n_step;
}

/* A drafter that is always right and takes too long: no step cost says that, whole steps show it. */
static void check_slow(void **state)
{
    (void)state;
    enum { N_TOKEN = 600, N_TRIED = 4 };
    static int32_t text[N_TOKEN], again[N_TOKEN];
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    thinker t = { text, N_TOKEN, 0 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose_slowly, .user_data = &t };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d;
    dp.n_draft = N_DRAFTED;
    OK(spec_drafter_from_ops(&d, &ops, &dp));
    (void)say(open_session(model, NULL, 0, N_TOKEN + 16), text, N_TOKEN);
    spec_session *s = open_session(model, &d, 1, N_TOKEN + 16);
    s->now_ms = next_ms;
    const int32_t n_step = say(s, again, N_TOKEN);
    assert_memory_equal(text, again, sizeof text);
    print_message("  %d of %d steps drafted\n", t.n_asked, n_step);
    assert_true(t.n_asked > 0 && t.n_asked <= N_TRIED); /* one may be good luck */
    assert_true(n_step < N_TOKEN - 1);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* What came of a step is told once: by the drafter that was asked, or by what was watched of it. */
static void check_told_once(void **state)
{
    (void)state;
    enum { N_STEP = 150 };
    const spec_request all = { .struct_size = sizeof all, .ignore_eos = true };
    const int32_t prompt = 1;
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    spec_drafter_stats stats = SPEC_DRAFTER_STATS_INIT;
    spec_drafter *d;
    int32_t seq;
    OK(spec_drafter_open(&d, "ngram:3,5", NULL));
    spec_session *s = open_session(model, &d, 1, 6 * N_STEP);
    s->choice.costs.measured = false; /* the choice follows from the text alone */
    OK(spec_sequence_add(s, &seq, &prompt, 1, &all));
    for (int32_t i = 1; i <= N_STEP; i++) {
        const spec_step_result *step;
        OK(spec_step(s, &step, &seq, 1));
        assert_true(s->choice.sources[0].ever.n <= i);
    }
    OK(spec_session_get_drafter_stats(s, &stats, 0));
    assert_true(stats.n_proposed > 10);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* A tree that was scored before the latest drafts tells nothing of their round. */
static void check_late(void **state)
{
    (void)state;
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose };
    const int32_t prompt = 1, root = 0;
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d;
    const spec_tree *tree;
    int32_t seq;
    dp.n_draft = N_DRAFTED;
    OK(spec_drafter_from_ops(&d, &ops, &dp));
    spec_session *s = open_session(model, &d, 1, 64);
    OK(spec_sequence_add(s, &seq, &prompt, 1, NULL));
    for (int late = 0; late < 2; late++) {
        OK(spec_draft(s, &tree, &seq, 1));
        OK(spec_score(s, &seq, 1, &tree));
        if (late) OK(spec_draft(s, &tree, &seq, 1));
        const uint64_t round = s->outcome.round;
        assert_true(round > 0);
        OK(spec_commit(s, seq, &root, 1, 1));
        assert_true(s->outcome.round == (late ? round : 0) && s->outcome.n_done == !late);
    }
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* ------------------------------------------------------------------------------ what a pass takes --- */

/* Several sequences of a row each may take more than as many rows of one; one sequence is what it is. */
static void check_pass_ms(void **state)
{
    (void)state;
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    spec_drafter *d;
    OK(spec_drafter_open(&d, "ngram", NULL));
    spec_session *s = open_session(model, &d, 1, 64);
    const speci_step_costs *c = &s->choice.costs;
    s->profile.target = (spec_cost_table){ .n = 2, .n_node = { 1, 8 }, .ms = { 2, 9 } };
    s->profile.sequences = (spec_cost_table){ .n = 3, .n_node = { 1, 2, 4 }, .ms = { 3, 5, 4 } };
    assert_true(c->target(c->arg, 1, 1) == 2 && c->target(c->arg, 1, 8) == 9);
    assert_true(c->target(c->arg, 2, 2) == 5 && c->target(c->arg, 2, 8) == 9 + 2);
    assert_true(c->target(c->arg, 4, 4) == 5); /* and never less */
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* --------------------------------------------------------------------------------- the bandit --- */

/* A bandit's past is halved now and then; an arm that was used once stays one that was used. */
static void check_halved(void **state)
{
    (void)state;
    enum { WINDOW = 256 };
    speci_choice c = { .n_arm = 3 };
    const speci_outcome o = { .n_seq = 1, .n_emitted = 2, .ms = 4 };
    const spec_bandit *b = &c.bandit[speci_choice_load(1)];
    OK(speci_choice_open(&c, SPEC_ADAPT_UCB));
    speci_choice_update(&c, 1, &o);
    for (int32_t i = 0; i < 5; i++) speci_choice_update(&c, 2, &o);
    for (int32_t i = 6; i < WINDOW - 1; i++) speci_choice_update(&c, 0, &o);
    assert_int_equal(b->n_round, WINDOW - 1);
    speci_choice_update(&c, 0, &o);
    assert_true(b->n_pull[0] == (WINDOW - 6) / 2 && b->n_pull[1] == 1 && b->n_pull[2] == 3);
    assert_int_equal(b->n_round, b->n_pull[0] + b->n_pull[1] + b->n_pull[2]);
    assert_true(b->tokens[0] == WINDOW - 6 && b->ms[2] == 10);
}

/* ----------------------------------------------------------------------------------- the union --- */

/* A union is expected to bring all that its drafters may, as far as trees have room. */
static void check_union_source(void **state)
{
    (void)state;
    static const int32_t n_nodes[] = { 0, 7, 9, 40 };
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    for (size_t i = 0; i < sizeof n_nodes / sizeof *n_nodes; i++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *list[2];
        spec_session *s;
        OK(spec_drafter_open(&list[0], "ngram:3,5", NULL));
        OK(spec_drafter_open(&list[1], "trie:3", NULL));
        p.n_ctx = 64, p.n_node = n_nodes[i], p.drafters = list, p.n_drafter = 2, p.combine = SPEC_DRAFT_UNION, p.adapt = SPEC_ADAPT_COST;
        OK(spec_session_open(&s, model, NULL, &p));
        assert_int_equal(s->choice.n_source, 1);
        assert_int_equal(s->choice.sources[0].n_node, n_nodes[i] == 7 ? 6 : 8);
        assert_int_equal(s->choice.sources[0].depth, 5);
        spec_session_close(s);
        for (int k = 0; k < 2; k++) spec_drafter_close(list[k]);
    }
    spec_model_close(model);
}

/* --------------------------------------------------------------------------------- to look up --- */

static int32_t n_looked;
static spec_status count_looks(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)d, (void)b;
    for (int32_t i = 0; i < n; i++) n_looked += seqs[i].by < 0; /* not asked for a draft */
    return SPEC_OK;                                             /* nothing is found */
}

/* Where to look something up takes long, it is done now and then: it may take one two-hundredth of the time. */
static void check_slow_looks(void **state)
{
    (void)state;
    enum { N_TOKEN = 400 };
    static int32_t text[N_TOKEN];
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    for (int slow = 0; slow < 2; slow++) {
        speci_draft_kind kind = speci_draft_ngram;
        spec_drafter *d;
        OK(spec_drafter_open(&d, "ngram", NULL));
        spec_session *s = open_session(model, &d, 1, N_TOKEN + 16);
        kind.enqueue = count_looks;
        s->drafters.draft[0].kind = &kind;
        if (slow) s->now_ms = next_ms;
        n_looked = 0;
        const int32_t n_step = say(s, text, N_TOKEN);
        print_message("  %d looks in %d steps\n", n_looked, n_step);
        assert_true(slow ? n_looked > 0 && n_looked < N_TOKEN / 50 : n_looked >= n_step);
        spec_drafter_close(d);
    }
    spec_model_close(model);
}

/* ------------------------------------------------------------------------------------- load --- */

/* A drafter of four tokens; the rows of a pass are free up to n_free, then they cost in proportion. Sequences come and go: with few of
 * them drafting pays, with many it does not. */
enum { N_DRAFT = 4, LOAD_ROUNDS = 300, N_FIRST = 2 };
static const int32_t loads[] = { 1, 2, 4, 8, 16, 32, 16, 4, 1, 32, 2, 8 };
enum { N_LOAD = sizeof loads / sizeof *loads };

typedef struct load_case {
    double chance;   /* that the next draft is accepted */
    double error;    /* what rounds with drafts take longer than step costs say */
    double n_free;
    double first_ms; /* what each of the first N_FIRST rounds with drafts of several sequences takes longer, as step costs say */
    double lag_ms;   /* and one with drafts behind others without, for each of these */
    int32_t n_behind; /* of them now */
} load_case;

static double load_target_ms(const void *arg, int32_t n_seq, double n_row)
{
    const double n_free = ((const load_case *)arg)->n_free;
    return 1 + 0.02 * n_seq + (n_row > n_free ? (n_row - n_free) / n_free : 0);
}

static double load_draft_ms(const void *arg, int32_t source, double n_seq)
{
    (void)arg, (void)source;
    return 0.2 + 0.005 * n_seq;
}

/* All of it is the target's. */
static double load_first_ms(const void *arg, int32_t source, int32_t n_seq)
{
    return source < 0 && n_seq > 1 ? ((const load_case *)arg)->first_ms : 0;
}

static double load_lag_ms(const void *arg, int32_t source, int32_t n_seq, bool is_new)
{
    const load_case *l = arg;
    (void)source, (void)n_seq, (void)is_new;
    return l->n_behind * l->lag_ms;
}

/* With drafts for n_ask of the sequences. */
static double round_ms(const load_case *l, int32_t n_seq, int32_t n_ask)
{
    const double plain = load_target_ms(l, n_seq, n_seq);
    return n_ask == 0 ? plain : (load_target_ms(l, n_seq, n_seq + N_DRAFT * n_ask) + load_draft_ms(l, 0, n_ask)) * l->error;
}

/* What rounds of a choice took, would have taken by the best arm for as many tokens, and plainly; how many drafted, and those that did for
 * some of the sequences. */
typedef struct load_ms {
    double all, best, plain;
    int32_t n_drafted, n_part;
} load_ms;

static load_ms play_load(speci_choice *c, load_case *l, int32_t n, int32_t n_round, uint64_t *random)
{
    const double emitted = expected(l->chance, N_DRAFT), plain = round_ms(l, n, 0), best = fmin(plain, round_ms(l, n, n) / emitted);
    load_ms out = { 0 };
    for (int32_t i = 0; i < n_round; i++) {
        const int32_t arm = speci_choice_arm(c, n), n_ask = arm == 1 ? c->n_ask : 0;
        const double share = (double)n_ask / n, tokens = 1 - share + share * emitted, took = round_ms(l, n, n_ask);
        const double first = arm == 1 && out.n_drafted < N_FIRST ? load_first_ms(l, -1, n) : 0;
        const double lag = arm == 1 && n > 1 ? load_lag_ms(l, 0, n_ask, false) : 0;
        speci_asks asks = { 0 };
        speci_outcome o = { .n_seq = n, .n_emitted = n, .n_row = n, .ms = took + first + lag, .asks = &asks };
        for (int32_t k = 0; k < n_ask; k++) {
            const int32_t n_accepted = draw_emitted(l->chance, N_DRAFT, random) - 1;
            speci_asks_add(&asks, N_DRAFT, n_accepted);
            o.n_emitted += n_accepted, o.n_row += N_DRAFT;
        }
        out.all += o.ms, out.n_drafted += arm, out.n_part += n_ask > 0 && n_ask < n;
        out.best += best * tokens, out.plain += plain * tokens;
        speci_choice_update(c, arm, &o);
        l->n_behind = arm == 1 ? 0 : l->n_behind + 1;
    }
    return out;
}

/* A choice between not drafting and one drafter. */
typedef struct two_arms {
    speci_arm arms[2];
    speci_source source;
    speci_levels levels;
    load_case of;
    speci_choice choice;
} two_arms;

static speci_choice *open_two(two_arms *t, const load_case *l)
{
    *t = (two_arms){ .arms = { { .sources = 0 }, { .sources = 1 } }, .source = { .n_node = N_DRAFT, .depth = N_DRAFT }, .of = *l };
    t->choice = (speci_choice){ .arms = t->arms, .n_arm = 2, .sources = &t->source, .n_source = 1, .levels = &t->levels,
                                .costs = { load_target_ms, load_draft_ms, &t->of, true, load_first_ms, load_lag_ms } };
    OK(speci_choice_open(&t->choice, SPEC_ADAPT_COST));
    return &t->choice;
}

/* Returns what is lost at each load against the best arm. */
static void play_loads(const load_case *of, uint64_t random, double *lost, double *against_plain)
{
    two_arms t;
    speci_choice *c = open_two(&t, of);
    for (int32_t l = 0; l < N_LOAD; l++) {
        const load_ms ms = play_load(c, &t.of, loads[l], LOAD_ROUNDS, &random);
        lost[l] = 1 - ms.best / ms.all, against_plain[l] = ms.plain / ms.all;
    }
}

/* Sessions with rounds of n_seq sequences alone, their first ones counted: what drafting may lose is bounded before anything is known. With
 * rows that are free up to 32 no drafts of 16 or 32 sequences can pay, and none are asked for; up to 512, they do. */
typedef struct short_case {
    load_case of;
    int32_t n_round;
    double least[4]; /* of plain decoding, by sequences */
} short_case;

static const short_case shorts[] = {
    { { 0.1, 1.3, 32, 0, 0, 0 }, 64, { 0.98, 0.98, 1, 1 } },
    { { 0.3, 1.3, 32, 0, 0, 0 }, 64, { 0.98, 0.98, 1, 1 } },
    { { 0.7, 1.3, 32, 0, 0, 0 }, 64, { 1.6, 1.4, 1, 1 } },
    { { 0.1, 1.3, 512, 0, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.3, 1.3, 512, 0, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 0, 0, 0 }, 64, { 1.6, 1.6, 1.6, 1.6 } },
    { { 0.1, 1.3, 512, 0.3, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 0.3, 0, 0 }, 64, { 1.6, 1.6, 1.6, 1.6 } },
    { { 0.1, 1.3, 512, 8, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.1, 1.3, 512, 8, 0, 0 }, 3000, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 8, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 8, 0, 0 }, 6000, { 1.3, 1.3, 1.3, 1.3 } },
    { { 0.1, 1.3, 64, 0, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1, 64, 0, 0, 0 }, 64, { 1.6, 1.6, 1.6, 1.2 } },
    { { 0.7, 1, 48, 0, 0, 0 }, 64, { 1.6, 1.6, 1.4, 1 } },
    { { 0.8, 1, 48, 0, 0, 0 }, 64, { 1.6, 1.6, 1.4, 1 } },
    { { 0.1, 1, 64, 0, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.3, 1, 64, 0, 0, 0 }, 64, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 0.55, 0, 0 }, 64, { 1.5, 1.5, 1.5, 1.5 } },
    { { 0.1, 1.3, 32, 0, 0.2, 0 }, 256, { 0.98, 0.98, 1, 1 } },
    { { 0.3, 1.3, 512, 0, 0.2, 0 }, 256, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.1, 1.3, 512, 0, 0.2, 0 }, 256, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.1, 1.3, 512, 0, 0.2, 0 }, 3000, { 0.98, 0.98, 0.98, 0.98 } },
    { { 0.7, 1.3, 512, 0, 0.2, 0 }, 64, { 1.6, 1.6, 1.6, 1.6 } },
    { { 0.5, 1.3, 512, 0, 0.2, 0 }, 3000, { 1.1, 1.1, 1.1, 1.1 } },
};

static void check_shorts(const short_case *s)
{
    static const int32_t n_seqs[] = { 4, 8, 16, 32 };
    for (size_t i = 0; i < sizeof n_seqs / sizeof *n_seqs; i++) {
        load_ms sum = { 0 };
        for (uint64_t seed = 1; seed <= N_SEED; seed++) {
            two_arms t;
            uint64_t random = seed;
            const load_ms ms = play_load(open_two(&t, &s->of), &t.of, n_seqs[i], s->n_round, &random);
            sum.all += ms.all, sum.plain += ms.plain, sum.n_drafted += ms.n_drafted, sum.n_part += ms.n_part;
        }
        print_message("  %d sequences, %d rounds, %g free, %g accepted, %g ms at first, %g behind each: %d drafted, %d in part, "
                      "%.4f of plain decoding\n",
                      n_seqs[i], s->n_round, s->of.n_free, s->of.chance, s->of.first_ms, s->of.lag_ms, sum.n_drafted / N_SEED,
                      sum.n_part / N_SEED, sum.plain / sum.all);
        if (!(sum.plain / sum.all >= s->least[i])) fail_msg("%d sequences: not %g of plain decoding", n_seqs[i], s->least[i]);
    }
}

static void check_short(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++) check_shorts(&shorts[i]);
}

/* Where rounds are not timed, nobody counts an arm's first ones: what its passes take longer then is left out, and it is used. */
static void check_not_timed(void **state)
{
    (void)state;
    const load_case l = { 0.7, 1, 512, 1000, 0, 0 };
    two_arms t;
    uint64_t random = 1;
    open_two(&t, &l)->costs.measured = false;
    assert_true(play_load(&t.choice, &t.of, 8, 64, &random).n_drafted > 60);
}

static void check_load(void **state)
{
    (void)state;
    static const load_case cases[] = {
        { 0.7, 1, 32, 0, 0, 0 },   { 0.5, 1, 32, 0, 0, 0 },   { 0.3, 1, 32, 0, 0, 0 }, { 0.1, 1, 32, 0, 0, 0 },
        { 0.7, 1.6, 32, 0, 0, 0 }, { 0.5, 0.8, 32, 0, 0, 0 }, { 0.3, 2, 32, 0, 0, 0 },
    };
    double sum = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double all[N_LOAD] = { 0 };
        for (uint64_t seed = 1; seed <= N_SEED; seed++) {
            double lost[N_LOAD], against_plain[N_LOAD];
            play_loads(&cases[i], seed, lost, against_plain);
            for (int32_t l = 0; l < N_LOAD; l++) sum += lost[l], all[l] += against_plain[l] / N_SEED;
        }
        for (int32_t l = 0; l < N_LOAD; l++)
            if (!(all[l] >= 0.98))
                fail_msg("%g accepted, costs off by %g, %d sequences: %.4f of plain decoding", cases[i].chance, cases[i].error,
                         loads[l], all[l]);
    }
    check_lost("load", sum / (N_SEED * N_LOAD) / (double)(sizeof cases / sizeof *cases), 0.02, -0.01);
}

/* A trial that would lose too much with all sequences asks for one, the first. What that brings is known of all: they are asked then. */
enum { N_SEQ = 8 };
static int32_t n_requests;
static spec_status propose_counted(void *user_data, spec_draft_request *requests, int32_t n)
{
    n_requests += n;
    return propose(user_data, requests, n);
}

/* Returns how many sequences were asked. All drafts are accepted. */
static int32_t play_all(spec_session *s, const int32_t *seqs)
{
    static const int32_t path[] = { 0, 1, 2, 3, 4, 5 };
    const spec_tree *trees[N_SEQ];
    int32_t n_row = 0;
    n_requests = 0;
    OK(spec_draft(s, trees, seqs, N_SEQ));
    for (int32_t i = 0; i < N_SEQ; i++) {
        assert_int_equal(trees[i]->n, i < n_requests ? N_DRAFTED + 1 : 1);
        n_row += trees[i]->n;
    }
    clock_ms += (double)spec_cost_ms(&s->profile.target, n_row);
    OK(spec_score(s, seqs, N_SEQ, trees));
    for (int32_t i = 0; i < N_SEQ; i++) OK(spec_commit(s, seqs[i], path, trees[i]->n, 1));
    return n_requests;
}

static void check_part(void **state)
{
    (void)state;
    enum { ROUNDS = 40 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose_counted };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_model *model = support_model(backend, SPEC_TEST_DIR "/golden/mamba", SPEC_DTYPE_F32);
    spec_drafter *d;
    spec_session *s;
    int32_t seqs[N_SEQ], asked[ROUNDS], first = 0, prompt = 1;
    dp.n_draft = N_DRAFTED;
    OK(spec_drafter_from_ops(&d, &ops, &dp));
    p.n_ctx = 8 * ROUNDS, p.adapt = SPEC_ADAPT_COST, p.drafters = &d, p.n_drafter = 1, p.n_seq = N_SEQ;
    OK(spec_session_open(&s, model, NULL, &p));
    memset(s->first_ms, 0, 2 * sizeof *s->first_ms);
    s->profile.sequences.n = 0;
    s->profile.target = (spec_cost_table){ .n = 3, .n_node = { 1, 16, N_SEQ * (N_DRAFTED + 1) }, .ms = { 1, 1, 3 } };
    s->now_ms = now;
    for (int32_t i = 0; i < N_SEQ; i++) OK(spec_sequence_add(s, &seqs[i], &prompt, 1, NULL));
    for (int32_t i = 0; i < ROUNDS; i++) asked[i] = play_all(s, seqs);
    while (first < ROUNDS && asked[first] == 0) first++;
    print_message("  round %d asks for %d, the last one for %d of %d sequences\n", first, asked[first], asked[ROUNDS - 1], N_SEQ);
    assert_int_equal(asked[first], 1);
    assert_int_equal(asked[ROUNDS - 1], N_SEQ);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

static double long_draft_ms(const void *arg, int32_t source, double n_seq)
{
    (void)arg, (void)source;
    return n_seq / 10;
}

/* An arm that cannot pay if all of it is accepted is never tried. So of 17 rounds one waits for a choice, and not much fewer: a text may
 * begin to repeat itself. With another load that begins anew. */
static void check_hopeless(void **state)
{
    (void)state;
    const load_case l = { .n_free = 32 };
    speci_arm arms[2] = { { .sources = 0 }, { .sources = 1 } };
    speci_source source = { .n_node = N_DRAFT, .depth = N_DRAFT };
    speci_levels levels = { 0 };
    speci_choice c = { .arms = arms, .n_arm = 2, .sources = &source, .n_source = 1, .levels = &levels,
                       .costs = { .target = load_target_ms, .draft = long_draft_ms, .arg = &l, .measured = true } };
    const speci_asks none = { 0 };
    int32_t n_choice = 0;
    OK(speci_choice_open(&c, SPEC_ADAPT_COST));
    for (int32_t i = 0; i < 5000; i++) {
        n_choice += c.next_n_seq == 0;
        const speci_outcome o = { .n_seq = 64, .n_emitted = 64, .n_row = 64, .ms = round_ms(&l, 64, 0), .asks = &none };
        assert_true(load_target_ms(&l, 64, 5 * 64) + long_draft_ms(&l, 0, 64) > (1 + N_DRAFT) * round_ms(&l, 64, 0));
        assert_int_equal(speci_choice_arm(&c, 64), 0);
        speci_choice_update(&c, 0, &o);
    }
    assert_in_range(n_choice, 5000 / 17, 5000 / 17 + 4);
    for (int32_t i = 0, n = 0; i < 5; i++, n += c.next_n_seq == 0) { /* 4 rounds more behind the first choice */
        const speci_outcome o = { .n_seq = 16, .n_emitted = 16, .n_row = 16, .ms = round_ms(&l, 16, 0), .asks = &none };
        assert_int_equal(speci_choice_arm(&c, 16), 0);
        assert_int_equal(n, 0);
        speci_choice_update(&c, 0, &o);
    }
    assert_int_equal(c.next_n_seq, 0);
}

static double row_target_ms(const void *arg, int32_t n_seq, double n_row) { return 1 + *(const double *)arg * (n_row / n_seq - 1); }
static double no_draft_ms(const void *arg, int32_t source, double n_seq) { return (void)arg, (void)source, (void)n_seq, 0; }

/* How many of 8 sequences the first trial asks for four drafts, which are expected to bring 0.66 tokens, where a node more of each takes
 * row_ms of a plain round of 1 ms. The best way is then `best`: none, or one draft, which is expected to bring 0.4. */
static int32_t first_asked(double row_ms, int32_t best)
{
    speci_arm arms[3] = { { .sources = 0 }, { .sources = 1 }, { .sources = 2 } };
    speci_source sources[2] = { { .kin = 0, .n_node = N_DRAFT, .depth = N_DRAFT }, { .kin = 1, .n_node = 1, .depth = 1 } };
    speci_levels levels[2] = { { 0 } };
    speci_choice c = { .arms = arms, .n_arm = 2 + (best > 0), .sources = sources, .n_source = 2, .levels = levels,
                       .costs = { .target = row_target_ms, .draft = no_draft_ms, .arg = &row_ms } };
    const speci_asks none[2] = { { 0 } };
    const speci_outcome plain = { .n_seq = 8, .n_emitted = 8, .n_row = 8, .ms = 1, .asks = none };
    OK(speci_choice_open(&c, SPEC_ADAPT_COST));
    speci_choice_update(&c, 0, &plain);
    c.reserve = 2, c.credit = 4;
    assert_int_equal(speci_choice_arm(&c, 8), 1);
    assert_int_equal(c.best, best);
    return c.n_ask;
}

/* All sequences take part in a trial that is expected to gain against plain decoding, some in one that is expected to lose. */
static void check_gains(void **state)
{
    (void)state;
    assert_int_equal(first_asked(0.15, 2), 8);
    assert_in_range(first_asked(0.18, 0), 1, 4);
}

/* ------------------------------------------------------------- what a choice follows from --- */

/* Two sources of which a level has an accepted node in `hits` of 4 asks; arm i asks source i - 1 alone. arg of the step costs: this. */
typedef struct pair {
    speci_arm arms[3];
    speci_source sources[2];
    speci_levels levels[2];
    double plain_ms, draft_ms[2];
    speci_choice choice;
} pair;

static double pair_target_ms(const void *arg, int32_t n_seq, double n_row)
{
    return (void)n_seq, (void)n_row, ((const pair *)arg)->plain_ms;
}
static double pair_draft_ms(const void *arg, int32_t source, double n_seq) { return n_seq * ((const pair *)arg)->draft_ms[source]; }

static speci_choice *open_pair(pair *t, const int32_t hits[2])
{
    *t = (pair){ .arms = { { .sources = 0 }, { .sources = 1 }, { .sources = 2 } }, .plain_ms = 1,
                 .sources = { { .kin = 0, .n_node = 1, .depth = 1 }, { .kin = 1, .n_node = 1, .depth = 1 } } };
    t->choice = (speci_choice){ .arms = t->arms, .n_arm = 3, .sources = t->sources, .n_source = 2, .levels = t->levels, .n_round = 1,
                                .costs = { .target = pair_target_ms, .draft = pair_draft_ms, .arg = t } };
    OK(speci_choice_open(&t->choice, SPEC_ADAPT_COST));
    for (int32_t k = 0; k < 2; k++) {
        for (int32_t i = 0; i < 400; i++) {
            const speci_asks one = { .n = 1, .n_proposed = 1, .n_node = 1, .n_hit = i % 4 < hits[k], .n_accepted = i % 4 < hits[k] };
            (void)speci_source_update(&t->sources[k], &t->levels[k], &one);
        }
    }
    return &t->choice;
}

/* What is as good within a hundredth is no reason to change. What drafts cost is asked anew by each choice: a builder's trees may have
 * become others. */
static void check_stays(void **state)
{
    (void)state;
    static const int32_t hits[] = { 3, 3 };
    for (int32_t before = 0; before <= 2; before++) {
        pair t;
        speci_choice *const c = open_pair(&t, hits);
        t.draft_ms[0] = 0.2, t.draft_ms[1] = 0.195, c->best = before;
        (void)speci_choice_arm(c, 1);
        assert_int_equal(c->best, before == 1 ? 1 : 2);
        t.draft_ms[1] = 0.15, c->next_n_seq = 0, c->best = before;
        (void)speci_choice_arm(c, 1);
        assert_int_equal(c->best, 2);
    }
}

/* An arm that looks a hundredth too slow is left where it is well known, and not where it may be better. */
static void check_loyal(void **state)
{
    (void)state;
    static const int32_t hits[] = { 3, 0 };
    for (int32_t known = 0; known < 2; known++) {
        pair t;
        speci_choice *const c = open_pair(&t, hits);
        t.draft_ms[0] = 0.75, t.draft_ms[1] = 1, t.sources[0].n_sure = known ? 1000 : 4, c->best = 1;
        (void)speci_choice_arm(c, 1);
        assert_int_equal(c->best, !known);
        c->next_n_seq = 0, c->best = 0, t.sources[0].n_sure = 4; /* nor is it taken up for that */
        (void)speci_choice_arm(c, 1);
        assert_int_equal(c->best, 0);
    }
}

/* Plain rounds take turns in being short and long, and a draft that is 6 % better than their mean is better; rounds that were disturbed
 * tell nothing. */
static void check_uneven(void **state)
{
    (void)state;
    static const int32_t hits[] = { 3, 0 };
    for (int32_t better = 0; better < 2; better++) {
        pair t;
        speci_choice *const c = open_pair(&t, hits);
        speci_ratios *const plain = &t.arms[0].loads[0], *const drafted = &t.arms[1].loads[0];
        c->costs.measured = true;
        t.draft_ms[0] = 1.75 / (better ? 1.06 : 0.98) - 1, t.draft_ms[1] = 1;
        for (; plain->n < SPECI_RATIOS - 1; plain->n++) plain->ratio[plain->n] = plain->n % 2 ? 0.92 : 1.08;
        for (; drafted->n < SPECI_RATIOS; drafted->n++) drafted->ratio[drafted->n] = drafted->n % 4 == 1 ? 5 : 1;
        plain->ratio[plain->n++] = 3;
        (void)speci_choice_arm(c, 1);
        assert_int_equal(c->best, better);
    }
}

/* Credit is what rounds earn less what they lost against the best arm, the reserve what they earn and gain against plain decoding, both
 * in plain rounds: whatever a millisecond is worth. */
static void check_account(void **state)
{
    (void)state;
    enum { N = 2 };
    static const int32_t hits[] = { 3, 3 };
    static const double units[] = { 0.01, 1, 30 }, earned = 2 * 0.0075;
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        pair t;
        speci_choice *const c = open_pair(&t, hits);
        const speci_asks none[2] = { { 0 } };
        t.plain_ms = 2 * units[k];
        for (int32_t tokens = 1; tokens <= 3; tokens += 2) { /* of a sequence, in two plain rounds of one unit */
            const speci_outcome o = { .n_seq = N, .n_emitted = N * tokens, .n_row = 2 * N, .asks = none };
            c->plain_ms = units[k], c->best = 0, c->best_rate = N / units[k], c->credit = 0.5, c->reserve = 2;
            c->expected_ms = 2 * units[k];
            speci_choice_update(c, 1, &o);
            NEAR(c->credit, 0.5 + earned - (2 - tokens), 1e-9);
            NEAR(c->reserve, 2 + earned + (tokens - 2), 1e-9);
            c->plain_ms = units[k], c->best = 1, c->credit = 0.5, c->reserve = 2; /* the best arm loses nothing against itself */
            speci_choice_update(c, 1, &o);
            NEAR(c->credit, 0.5 + earned, 1e-9);
            c->plain_ms = units[k], c->best = 0, c->reserve = 2; /* nor does plain decoding gain */
            speci_choice_update(c, 0, &o);
            NEAR(c->reserve, 2 + earned, 1e-9);
            c->plain_ms = units[k], c->credit = 0.5, c->expected_ms = 0.8 * units[k]; /* a trial that was disturbed owes twice that */
            speci_choice_update(c, 1, &o);
            NEAR(c->credit, 0.5 + earned - (1.6 - tokens), 1e-9);
        }
    }
}

/* A trial is made where there is credit for what it loses: for a tenth of a plain round, in any unit. */
static void check_affords(void **state)
{
    (void)state;
    static const int32_t hits[] = { 0, 3 };
    static const double units[] = { 0.01, 1, 30 };
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        for (int32_t credit = 0; credit < 2; credit++) {
            pair t;
            speci_choice *const c = open_pair(&t, hits);
            t.sources[0] = (speci_source){ .kin = 0, .n_node = 1, .depth = 1 }, t.levels[0] = (speci_levels){ 0 }; /* nothing is known */
            t.plain_ms = units[k], t.draft_ms[0] = 0.1 * units[k], t.draft_ms[1] = 0;
            c->credit = credit == 0 ? 0.05 : 1;
            assert_int_equal(speci_choice_arm(c, 1), credit == 0 ? 2 : 1);
            assert_int_equal(c->best, 2);
        }
    }
}

/* Arm 2 asks the second source where the first one has proposed nothing, which is half of the asks: its passes take half as long then. What
 * is not known of the first one is no reason to try an arm that asks it as the best one does. */
static void check_in_turn(void **state)
{
    (void)state;
    static const int32_t hits[] = { 0, 3 }, never[] = { 0, 0 };
    const speci_asks one = { .n = 1, .n_proposed = 1, .n_node = 1, .n_hit = 1, .n_accepted = 1 }, none = { .n = 1 };
    for (int32_t helps = 0; helps < 2; helps++) {
        pair t;
        speci_choice *const c = open_pair(&t, helps ? hits : never);
        t.arms[2].sources = 3, t.draft_ms[1] = helps ? 0.2 : 0.001, c->credit = 4;
        t.sources[0] = (speci_source){ .kin = 0, .n_node = 1, .depth = 1 }, t.levels[0] = (speci_levels){ 0 };
        for (int32_t i = 0; i < (helps ? 400 : 6); i++) (void)speci_source_update(&t.sources[0], &t.levels[0], i % 2 ? &one : &none);
        assert_int_equal(speci_choice_arm(c, 1), 1 + helps);
        assert_int_equal(c->best, 1 + helps);
    }
}

/* A draft takes a pass a level: the root comes with one more token, and so many places as the builder says behind it. */
static void check_draft_ms(void **state)
{
    (void)state;
    spec_builder *b;
    const spec_cost_table t = { .n = 5, .n_node = { 1, 2, 3, 6, 12 }, .ms = { 1, 2, 4, 8, 16 } }, none = { .n = 0 };
    OK(spec_builder_open(&b, "product:3,2,2", NULL));
    NEAR(speci_choice_draft_ms(b, &t, 1), 2 + 4 + 8, 1e-6);
    NEAR(speci_choice_draft_ms(b, &t, 2), 4 + (double)4 / 3 + 8 + 16, 1e-6); /* 4, 6 and 12 rows */
    NEAR(speci_choice_draft_ms(b, &none, 1), 0, 0);
    spec_builder_close(b);
}

/* ---------------------------------------------------------- what is known before the choice --- */

static double seen_target_ms(const void *arg, int32_t n_seq, double n_row)
{
    (void)arg, (void)n_seq, (void)n_row;
    return 1;
}
static double seen_draft_ms(const void *arg, int32_t source, double n_seq)
{
    (void)arg;
    return source == 1 ? 0.3 * n_seq : 0;
}

/* A drafter from text that is right where it finds something, and a model that is right now and then. What the first one would propose
 * decides, not how often it proposes; and once that is old it counts no more. */
static void check_seen(void **state)
{
    (void)state;
    speci_arm arms[3] = { { .sources = 0 }, { .sources = 1 }, { .sources = 2 } };
    speci_source sources[2] = { { .kin = 0, .n_node = 5, .depth = 5 }, { .kin = 1, .n_node = 5, .depth = 5 } };
    speci_levels levels[2] = { { 0 } };
    speci_choice c = { .arms = arms, .n_arm = 3, .sources = sources, .n_source = 2, .levels = levels,
                       .costs = { .target = seen_target_ms, .draft = seen_draft_ms } };
    OK(speci_choice_open(&c, SPEC_ADAPT_COST));
    for (int32_t i = 0; i < 100; i++) {
        speci_asks asks[2] = { { 0 } };
        speci_asks_add(&asks[0], i % 2 ? 5 : 0, i % 2 ? 4 : 0);
        speci_asks_add(&asks[1], 5, 1);
        const speci_outcome o = { .n_seq = 1, .n_emitted = 2, .n_row = 6, .ms = 1, .asks = asks };
        speci_choice_update(&c, 1, &o);
    }
    assert_int_equal(speci_choice_arm(&c, 1), 1); /* on average the text: 3 tokens, the model 2 */
    speci_choice_see(&c, 0, 0);
    assert_int_equal(speci_choice_arm(&c, 1), 2);
    speci_choice_unsee(&c);
    assert_int_equal(speci_choice_arm(&c, 1), 1);
    speci_choice_see(&c, 0, 1); /* a proposal of one token brings one at most */
    (void)speci_choice_arm(&c, 1);
    assert_true(c.best_rate <= 2.02);
    speci_choice_unsee(&c);
    speci_choice_see(&c, 0, 5);
    assert_int_equal(speci_choice_arm(&c, 1), 1);
    assert_true(c.best_rate > 4);
}

/* A change of the text gives credit for trials, whatever those before it have lost. */
static void check_credit(void **state)
{
    (void)state;
    speci_source source = { .n_node = 5, .depth = 5 };
    speci_levels levels = { 0 };
    speci_choice c = { .sources = &source, .n_source = 1, .levels = &levels, .credit = -3 };
    for (int32_t i = 0; i < 36; i++) speci_choice_watch(&c, 0, 5, 5);
    for (int32_t i = 0; i < 3; i++) speci_choice_watch(&c, 0, 5, 0); /* may be chance */
    assert_true(c.credit < -2.9);
    speci_choice_watch(&c, 0, 5, 0);
    assert_true(c.credit > 1.9 && c.credit < 2.1);
}

/* arg: what a pass with trees takes; one without takes 1 */
static double trees_target_ms(const void *arg, int32_t n_seq, double n_row) { return n_row > n_seq ? *(const double *)arg : 1; }

/* Of an arm with few rounds the worst of them counts: several sequences must not lose more than the reserve. */
static void check_worst(void **state)
{
    (void)state;
    static const struct {
        double ratio;
        int32_t arm;
    } cases[] = { { 1, 1 }, { 1.2, 1 }, { 1.9, 0 }, { 100, 0 } };
    const double ms = 1.5;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        speci_arm arms[2] = { { .sources = 0 }, { .sources = 1 } };
        speci_source source = { .n_node = 5, .depth = 5 };
        speci_levels levels = { 0 };
        speci_choice c = { .arms = arms, .n_arm = 2, .sources = &source, .n_source = 1, .levels = &levels, .n_round = 1,
                           .costs = { .target = trees_target_ms, .draft = no_draft_ms, .arg = &ms, .measured = true } };
        const speci_asks one = { .n = 1, .n_proposed = 1, .n_node = 5, .n_hit = 1, .n_accepted = 1 };
        OK(speci_choice_open(&c, SPEC_ADAPT_COST));
        for (int32_t i = 0; i < 50; i++) (void)speci_source_update(&source, &levels, &one);
        for (int32_t i = 0; i < SPECI_RATIOS; i++) arms[0].loads[speci_choice_load(4)].ratio[i] = 1;
        arms[0].loads[speci_choice_load(4)].n = SPECI_RATIOS;
        arms[1].loads[speci_choice_load(4)] = (speci_ratios){ .ratio = { cases[k].ratio }, .n = 1 };
        if (speci_choice_arm(&c, 4) != cases[k].arm) fail_msg("after a round of %g times the usual: arm %d", cases[k].ratio, c.next);
    }
}

/* The first round behind another arm's takes longer for that: it tells nothing of the arm's time once there are some that do. */
static void check_first_round(void **state)
{
    (void)state;
    const double ms = 1.5;
    speci_arm arms[2] = { { .sources = 0 }, { .sources = 1 } };
    speci_source source = { .n_node = 5, .depth = 5 };
    speci_levels levels = { 0 };
    speci_choice c = { .arms = arms, .n_arm = 2, .sources = &source, .n_source = 1, .levels = &levels,
                       .costs = { .target = trees_target_ms, .draft = no_draft_ms, .arg = &ms, .measured = true } };
    const speci_asks none = { 0 };
    const speci_outcome o = { .n_seq = 1, .n_emitted = 1, .n_row = 1, .ms = 1, .asks = &none };
    const int64_t *n = &arms[1].loads[speci_choice_load(1)].n;
    OK(speci_choice_open(&c, SPEC_ADAPT_COST));
    for (int32_t i = 1; i <= 3; i++) { /* few: all of them tell */
        speci_choice_update(&c, 0, &o);
        speci_choice_update(&c, 1, &o);
        assert_int_equal(*n, i);
    }
    speci_choice_update(&c, 0, &o);
    speci_choice_update(&c, 1, &o);
    assert_int_equal(*n, 3);
    speci_choice_update(&c, 1, &o);
    assert_int_equal(*n, 4);
}

/* Where it is known that all sequences get a proposal, what one brings at least counts for each: half of the asks had one so far. */
static void check_seen_least(void **state)
{
    (void)state;
    const double ms = 2.9;
    speci_arm arms[2] = { { .sources = 0 }, { .sources = 1 } };
    speci_source source = { .n_node = 5, .depth = 5 };
    speci_levels levels = { 0 };
    speci_choice c = { .arms = arms, .n_arm = 2, .sources = &source, .n_source = 1, .levels = &levels, .n_round = 1,
                       .costs = { .target = trees_target_ms, .draft = no_draft_ms, .arg = &ms } };
    const speci_asks one = { .n = 1, .n_proposed = 1, .n_node = 5, .n_hit = 1, .n_accepted = 2 }, none = { .n = 1 };
    OK(speci_choice_open(&c, SPEC_ADAPT_COST));
    for (int32_t i = 0; i < 100; i++) (void)speci_source_update(&source, &levels, i % 2 ? &one : &none);
    assert_int_equal(speci_choice_arm(&c, 4), 0);
    speci_choice_unsee(&c);
    for (int32_t i = 0; i < 4; i++) speci_choice_see(&c, 0, 5);
    assert_int_equal(speci_choice_arm(&c, 4), 1);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(check_next_text), cmocka_unit_test(check_bursts), cmocka_unit_test(check_load), cmocka_unit_test(check_part),
        cmocka_unit_test(check_hopeless), cmocka_unit_test(check_gains), cmocka_unit_test(check_stays),
        cmocka_unit_test(check_account), cmocka_unit_test(check_uneven), cmocka_unit_test(check_loyal),
        cmocka_unit_test(check_affords), cmocka_unit_test(check_in_turn),
        cmocka_unit_test(check_draft_ms),
        cmocka_unit_test(check_chain), cmocka_unit_test(check_short), cmocka_unit_test(check_seen), cmocka_unit_test(check_slow),
        cmocka_unit_test(check_not_timed), cmocka_unit_test(check_old_asks),
        cmocka_unit_test(check_credit), cmocka_unit_test(check_worst), cmocka_unit_test(check_seen_least),
        cmocka_unit_test(check_first_round), cmocka_unit_test(check_slow_looks),
        cmocka_unit_test(check_union_source), cmocka_unit_test(check_halved),
        cmocka_unit_test(check_told_once), cmocka_unit_test(check_late), cmocka_unit_test(check_pass_ms),
    };
    enum { N = sizeof environments / sizeof *environments, N_OTHER = sizeof others / sizeof *others };
    struct CMUnitTest tests[N + N_OTHER];
    OK(spec_backend_open(&backend, "cpu", NULL)); /* the choice knows no device */
    memcpy(tests, others, sizeof others);
    for (size_t i = 0; i < N; i++)
        tests[N_OTHER + i] = (struct CMUnitTest){ environments[i].name, check_ways, NULL, NULL, (void *)(uintptr_t)&environments[i] };
    const int failed = _cmocka_run_group_tests("regret", tests, N + N_OTHER, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
