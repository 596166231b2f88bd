/* engine_profile.c - step costs of a session: passes of the target and of drafters timed by their nodes and by their sequences,
 * and what the choice among ways to draft makes of them (algorithms.md 12, 14).
 *
 * A pass of the target over n_row rows of n_seq sequences is taken to cost what n_row rows of one sequence do, and beyond that what
 * n_seq sequences of one row each cost more than as many rows of one. */
#include "algorithms/engine/engine.h"

enum { MOST_SIZES = sizeof((spec_cost_table *)0)->ms / sizeof(float) };
/* Twice the rows that take so much longer are as good as in proportion: larger passes are not timed. Nor is a pass more often than
 * this many milliseconds allow. */
static const double IN_PROPORTION = 1.8, LONG_MS = 50;

/* --- passes --- */

/* A tree that branches everywhere: node i hangs below node (i - 1) / 2. */
static void binary_tree(spec_tree *t, int32_t n)
{
    t->n = 0;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(t, i == 0 ? -1 : (i - 1) / 2, i == 0 ? 0 : i % 2, 1);
}

/* The sizes that are timed: powers of two, and n_max. 0: no more. */
static int32_t next_size(int32_t n, int32_t n_max)
{
    if (n >= n_max) return 0;
    return n > 0 && 2 * n > n_max ? n_max : n == 0 ? 1 : 2 * n;
}

/* What is timed: an executor, with sequences of one token each. */
typedef struct timing {
    spec_session *s;
    speci_exec *exec;
    const int32_t *seqs; /* [n_seq] */
    int32_t n_seq;
    int32_t n_timed;     /* so many of them at most had passes of several rows that were timed */
    spec_tree *tree;     /* scratch */
} timing;

/* The first n_seq sequences, each with the scratch tree. */
static const speci_exec_input *inputs_of(const timing *t, int32_t n_seq)
{
    for (int32_t i = 0; i < n_seq; i++) t->s->inputs[i] = (speci_exec_input){ .slot = t->seqs[i], .tree = t->tree };
    return t->s->inputs;
}

static spec_status run_pass(const timing *t, int32_t n_seq, double *ms)
{
    spec_session *s = t->s;
    const double start = s->now_ms();
    SPEC_TRY(t->exec->kind->forward(t->exec, inputs_of(t, n_seq), n_seq, NULL, NULL));
    for (int32_t i = 0; i < n_seq; i++) t->exec->kind->commit(t->exec, t->seqs[i], NULL, 0);
    SPEC_TRY(s->ops->sync(s->queue));
    *ms = s->now_ms() - start;
    return SPEC_OK;
}

/* Milliseconds of a pass over n nodes of each of n_seq sequences, the lower quartile, since what disturbs a pass makes it longer;
 * nothing of it is kept. */
static spec_status time_pass(const timing *t, int32_t n_seq, int32_t n, double *ms)
{
    double times[SPECI_TIMINGS], sum = 0;
    size_t k = 0;
    binary_tree(t->tree, n);
    for (int32_t i = 0; i < 2; i++) SPEC_TRY(run_pass(t, n_seq, ms)); /* to warm up */
    while (k < SPECI_TIMINGS && (k == 0 || sum < LONG_MS)) {
        SPEC_TRY(run_pass(t, n_seq, &times[k]));
        sum += times[k++];
    }
    *ms = speci_by_rank(times, k, k / 4);
    return SPEC_OK;
}

static void add_entry(spec_cost_table *out, int32_t n, double ms)
{
    out->n_node[out->n] = n;
    out->ms[out->n++] = (float)ms;
}

static bool in_proportion(const spec_cost_table *t)
{
    return t->n > 1 && (double)t->ms[t->n - 1] > IN_PROPORTION * (double)t->ms[t->n - 2];
}

/* By the nodes of one sequence, up to n_max. */
static spec_status time_nodes(const timing *t, int32_t n_max, spec_cost_table *out)
{
    double ms;
    out->n = 0;
    for (int32_t n = 0; (n = next_size(n, n_max)) > 0;) {
        SPEC_TRY(time_pass(t, 1, n, &ms));
        add_entry(out, n, ms);
    }
    return SPEC_OK;
}

/* By sequences of one node each. */
static spec_status time_sequences(const timing *t, spec_cost_table *out)
{
    double ms;
    out->n = 0;
    for (int32_t n = 0; t->n_seq > 1 && !in_proportion(out) && (n = next_size(n, t->n_seq)) > 0;) {
        SPEC_TRY(time_pass(t, n, 1, &ms));
        add_entry(out, n, ms);
    }
    return SPEC_OK;
}

/* What n sequences of one row cost more than n rows. */
static double sequences_ms(const spec_cost_table *sequences, const spec_cost_table *rows, int32_t n)
{
    const double more = (double)spec_cost_ms(sequences, n) - (double)spec_cost_ms(rows, n);
    return n > 1 && more > 0 ? more : 0;
}

/* Beyond the nodes of one sequence: rows of several, n_max each. */
static spec_status time_rows(timing *t, int32_t n_max, const spec_cost_table *sequences, spec_cost_table *out)
{
    double ms;
    t->n_timed = 1;
    for (int32_t n = 2; n <= t->n_seq && out->n < MOST_SIZES && !in_proportion(out); n *= 2) {
        SPEC_TRY(time_pass(t, n, n_max, &ms));
        t->n_timed = n;
        add_entry(out, n * n_max, ms - sequences_ms(sequences, out, n));
    }
    return SPEC_OK;
}

/* --- passes that are new --- */

/* The power of two below n; 0: there is none. */
static int32_t size_below(int32_t n)
{
    int32_t size = n > 1;
    while (size > 0 && 2 * size < n) size *= 2;
    return size;
}

/* Of n_seq sequences with trees of up to n_max nodes. The largest first: a device may have room for some. */
static spec_status warm_trees(const timing *t, int32_t n_seq, int32_t n_max)
{
    for (int32_t n = n_max; n > 0; n = size_below(n)) {
        binary_tree(t->tree, n);
        SPEC_TRY(speci_exec_warm(t->exec, inputs_of(t, n_seq), n_seq));
    }
    return SPEC_OK;
}

/* What each of the first two passes over n nodes takes longer than those behind them. What was made ready before is not part of it. */
static spec_status time_first(const timing *t, int32_t n_seq, int32_t n, double *out)
{
    double first[2], ms, least = 0;
    binary_tree(t->tree, n);
    SPEC_TRY(t->s->ops->sync(t->s->queue));
    for (int32_t i = 0; i < 2; i++) SPEC_TRY(run_pass(t, n_seq, &first[i]));
    for (int32_t i = 0; i < 3; i++) {
        SPEC_TRY(run_pass(t, n_seq, &ms));
        least = i == 0 || ms < least ? ms : least;
    }
    *out = (first[0] + first[1]) / 2 - least;
    return SPEC_OK;
}

/* The most sequences whose passes are made ready: all of them, unless these were too large to be timed and take so long that to be new is
 * little of it. */
static int32_t most_warm(const timing *t, int32_t n_max, const spec_cost_table *rows)
{
    int32_t n = t->n_seq;
    while (n >= 2 * t->n_timed && n > 1 && (double)spec_cost_ms(rows, n * n_max) > LONG_MS / SPECI_TIMINGS) n = size_below(n);
    return n;
}

/* With trees of two sizes that were not timed, as those of n_max were. The shorter time counts: what disturbs a pass makes it longer, and
 * there is no second one that is new. */
static spec_status time_first_sizes(const timing *t, int32_t n_seq, int32_t n_max, double *out)
{
    const int32_t large = speci_max32(size_below(n_max), 1), small = speci_max32(size_below(large), 1);
    double ms;
    SPEC_TRY(time_first(t, n_seq, large, out));
    if (small == large) return SPEC_OK;
    SPEC_TRY(time_first(t, n_seq, small, &ms));
    if (ms < *out) *out = ms;
    return SPEC_OK;
}

/* Passes of several sequences over trees of up to n_most nodes are made ready as far as the device has room. What one takes longer all the
 * same while it is new is measured; first_ms [SPECI_LOADS] receives it. */
static spec_status warm_sequences(const timing *t, int32_t n_max, int32_t n_most, const spec_cost_table *rows, double *first_ms)
{
    for (int32_t n = most_warm(t, n_max, rows); n > 1; n = size_below(n)) {
        double ms;
        SPEC_TRY(warm_trees(t, n, n_most));
        SPEC_TRY(time_first_sizes(t, n, n_max, &ms));
        const int32_t load = speci_choice_load(n);
        if (ms > first_ms[load]) first_ms[load] = ms;
    }
    return SPEC_OK;
}

/* --- a profile --- */

static spec_status measure_target(timing *t, spec_cost_profile *out)
{
    const int32_t n = t->s->n_node;
    t->exec = t->s->exec;
    speci_measured_of(out->target_of, sizeof out->target_of, t->exec->model);
    SPEC_TRY(warm_trees(t, 1, n));
    SPEC_TRY(time_nodes(t, n, &out->target));
    SPEC_TRY(time_sequences(t, &out->sequences));
    SPEC_TRY(time_rows(t, n, &out->sequences, &out->target));
    return warm_sequences(t, n, n, &out->target, t->s->first_ms[0]);
}

/* The first drafter whose passes can be timed; -1: none. */
static int32_t first_timed(const spec_session *s)
{
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (s->drafters.draft[k].kind->exec) return k;
    return -1;
}

static spec_status measure_drafter(timing *t, int32_t k)
{
    static const spec_cost_table none = { 0 };
    const speci_draft *d = &t->s->drafters.draft[k];
    spec_cost_table *out = &t->s->draft_costs[k];
    int32_t n_timed = 0, n_most = 0;
    spec_cost_profile *profile = &t->s->profile;
    if (!d->kind->exec || !(t->exec = d->kind->exec(d, t->seqs[0], &n_timed, &n_most))) return SPEC_OK;
    if (k == first_timed(t->s)) speci_measured_of(profile->draft_of, sizeof profile->draft_of, t->exec->model);
    SPEC_TRY(warm_trees(t, 1, n_most));
    SPEC_TRY(time_nodes(t, n_timed, out));
    SPEC_TRY(time_rows(t, n_timed, &none, out));
    return warm_sequences(t, n_timed, n_most, out, t->s->first_ms[1 + k]);
}

/* What is not known of them: of the target, and of drafters that are models. */
static spec_status measure_with(timing *t)
{
    spec_session *s = t->s;
    if (s->profile.target.n == 0) SPEC_TRY(measure_target(t, &s->profile));
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (s->draft_costs[k].n == 0) SPEC_TRY(measure_drafter(t, k));
    const int32_t first = first_timed(s);
    if (first >= 0) s->profile.draft = s->draft_costs[first];
    return SPEC_OK;
}

/* Sequences of one token, as many as are free; one at least. */
static spec_status add_sequences(spec_session *s, int32_t *seqs, int32_t *n)
{
    static const int32_t token = 0;
    spec_status status = SPEC_OK;
    for (*n = 0; *n < s->n_seq && status == SPEC_OK;) {
        status = speci_sequence_add(s, &seqs[*n], &token, 1, NULL);
        if (status != SPEC_OK) break;
        const int32_t seq = seqs[(*n)++];
        if (s->seqs[seq].consuming) status = speci_sequence_consume(s, seq, 0, NULL);
    }
    return status == SPEC_E_BUSY && *n > 0 ? SPEC_OK : status;
}

static spec_status measure(spec_session *s)
{
    spec_tree tree;
    timing t = { .s = s, .tree = &tree };
    const int32_t n_node = s->n_node > s->site.n_q + 64 ? s->n_node : s->site.n_q + 64;
    int32_t *seqs = speci_alloc(s->a, (size_t)s->n_seq, sizeof *seqs);
    if (!seqs) return SPEC_E_NOMEM;
    spec_status status = spec_tree_alloc(&tree, n_node, s->a);
    t.seqs = seqs;
    if (status == SPEC_OK) status = add_sequences(s, seqs, &t.n_seq);
    if (status == SPEC_OK) status = measure_with(&t);
    for (int32_t i = 0; i < t.n_seq; i++) speci_sequence_end(s, seqs[i]);
    spec_tree_free(&tree, s->a);
    speci_free(s->a, seqs);
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].part = -1; /* the rows of their pass are gone */
    return status;
}

/* Builders that weigh costs are told, each those of its drafter. */
static spec_status give_costs(spec_session *s)
{
    spec_cost_profile own = s->profile;
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const spec_drafter *d = s->drafters.draft[k].drafter;
        own.draft = s->draft_costs[k];
        for (int32_t i = 0; i < d->n_builder; i++) SPEC_TRY(spec_builder_costs(d->builders[i], &own));
    }
    return SPEC_OK;
}

static bool is_known(const spec_session *s)
{
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (s->drafters.draft[k].kind->exec && s->draft_costs[k].n == 0) return false;
    return s->profile.target.n > 0;
}

/* What was begun of a table is no table. */
static spec_status complete(spec_session *s)
{
    const spec_cost_profile before = s->profile;
    if (is_known(s)) return SPEC_OK;
    const spec_status status = measure(s);
    if (status == SPEC_OK) return give_costs(s);
    s->profile = before;
    for (int32_t k = 0; k < s->drafters.n; k++) s->draft_costs[k].n = 0;
    if (first_timed(s) >= 0) s->draft_costs[first_timed(s)] = before.draft;
    return status;
}

spec_status spec_session_profile(spec_session *s, spec_cost_profile *out)
{
    ENGINE_ENTER(s);
    SPEC_NEED(out, "out");
    SPEC_TRY(complete(s));
    return speci_params_write(out, &s->profile, sizeof s->profile, "spec_cost_profile");
}

/* --- for the choice --- */

static double target_ms(const void *session, int32_t n_seq, double n_row)
{
    const spec_cost_profile *p = &((const spec_session *)session)->profile;
    return speci_cost_ms(&p->target, n_row) + sequences_ms(&p->sequences, &p->target, n_seq);
}

/* The passes of a drafter that a builder takes. */
typedef double (*passes_fn)(const spec_session *s, int32_t k, const spec_builder *b, double n_seq);

static double passes_ms(const spec_session *s, int32_t k, const spec_builder *b, double n_seq)
{
    return speci_choice_draft_ms(b, &s->draft_costs[k], n_seq);
}

static double first_passes_ms(const spec_session *s, int32_t k, const spec_builder *b, double n_seq)
{
    const spec_cost_table each = { .n = 1, .n_node = { 1 }, .ms = { (float)s->first_ms[1 + k][speci_choice_load((int32_t)n_seq)] } };
    return speci_choice_draft_ms(b, &each, n_seq);
}

/* Of the first sequences of the session's round. */
static speci_draft_lag lag_of(const spec_session *s, int32_t k, const spec_builder *b, double n_seq)
{
    const speci_draft *d = &s->drafters.draft[k];
    return d->kind->lag ? d->kind->lag(d, b, s->round.seqs, (int32_t)n_seq) : (speci_draft_lag){ 0 };
}

static double lag_passes_ms(const spec_session *s, int32_t k, const spec_builder *b, double n_seq)
{
    const speci_draft_lag lag = lag_of(s, k, b, n_seq);
    return lag.n_pass > 0 ? lag.n_pass * speci_cost_ms(&s->draft_costs[k], lag.n_row / lag.n_pass) : 0;
}

/* They are of one shape, which is new in the first two of them. */
static double new_lag_passes_ms(const spec_session *s, int32_t k, const spec_builder *b, double n_seq)
{
    const int32_t n_new = speci_min32(lag_of(s, k, b, n_seq).n_pass, 2);
    return lag_passes_ms(s, k, b, n_seq) + n_new * s->first_ms[1 + k][speci_choice_load((int32_t)n_seq)];
}

static double with_builder(const spec_session *s, int32_t k, int32_t builder, double n_seq, passes_fn passes)
{
    const spec_builder *b = speci_draft_builder(&s->drafters.draft[k], builder);
    return b ? passes(s, k, b, n_seq) : 0;
}

/* With a union all drafters are asked, by the builder that the source is named by. */
static double of_source(const spec_session *s, int32_t source, double n_seq, passes_fn passes)
{
    double ms = 0;
    if (s->choice.n_source > s->first_source[s->drafters.n]) {
        for (int32_t k = 0; k < s->drafters.n; k++) ms += with_builder(s, k, source, n_seq, passes);
        return ms;
    }
    int32_t k = 0;
    while (source >= s->first_source[k + 1]) k++;
    return with_builder(s, k, source - s->first_source[k], n_seq, passes);
}

static double draft_ms(const void *session, int32_t source, double n_seq) { return of_source(session, source, n_seq, passes_ms); }

static double first_ms(const void *session, int32_t source, int32_t n_seq)
{
    const spec_session *s = session;
    return source < 0 ? s->first_ms[0][speci_choice_load(n_seq)] : of_source(s, source, n_seq, first_passes_ms);
}

static double lag_ms(const void *session, int32_t source, int32_t n_seq, bool is_new)
{
    return of_source(session, source, n_seq, is_new ? new_lag_passes_ms : lag_passes_ms);
}

spec_status speci_profile_open(spec_session *s, spec_adapt adapt, const char *profile)
{
    s->profile.struct_size = sizeof s->profile;
    if (!(s->draft_costs = speci_alloc(s->a, (size_t)s->drafters.n, sizeof *s->draft_costs))) return SPEC_E_NOMEM;
    if (!(s->first_ms = speci_alloc(s->a, 1 + (size_t)s->drafters.n, sizeof *s->first_ms))) return SPEC_E_NOMEM;
    if (profile) {
        const int32_t first = first_timed(s);
        SPEC_TRY(spec_cost_load(&s->profile, profile));
        speci_measured_check(s, first >= 0 ? s->drafters.draft[first].drafter->held : NULL, profile);
        if (first >= 0) s->draft_costs[first] = s->profile.draft;
        SPEC_TRY(give_costs(s));
    }
    SPEC_TRY(speci_choice_open(&s->choice, adapt));
    SPEC_TRY(speci_watch_open(s));
    s->choice.costs = (speci_step_costs){ .target = target_ms, .draft = draft_ms, .arg = s, .measured = profile == NULL, .first = first_ms,
                                           .lag = lag_ms };
    return s->choice.mode == SPEC_ADAPT_COST ? complete(s) : SPEC_OK;
}
