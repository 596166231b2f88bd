/* bench_replay.c - what an accepted path costs the step after it.
 *
 * A chain of L nodes is scored and accepted; the next step (score + verify of --nodes nodes) applies that path:
 * median_ms. It is rolled back and taken again, with nothing to apply: base_ms. cost_ms is the median of the
 * differences, pair by pair. Joint attainment feeds the path again in place of replay. */
#include "tests/bench/bench.h"

enum { WARM = 3 };

typedef struct replayer {
    bench *b;
    spec_session *s;
    int32_t seq, context, nodes;
    spec_tree chain, tree;
    double *after, *base, *cost; /* [repeats] */
} replayer;

static spec_status looked(replayer *t, double *ms)
{
    int32_t path[SPECI_MAX_NODE], n_path, next;
    const double start = speci_now_ms();
    SPEC_TRY(bench_score(t->s, t->seq, &t->tree));
    SPEC_TRY(spec_verify(t->s, path, &n_path, &next, t->seq, SPEC_VERIFY_AUTO));
    *ms = speci_now_ms() - start;
    return SPEC_OK;
}

static spec_status pair(replayer *t, int32_t length, double *after, double *base)
{
    int32_t path[SPEC_MAX_DEPTH + 1];
    for (int32_t i = 0; i < length; i++) path[i] = i;
    SPEC_TRY(bench_tree(&t->chain, "chain", length));
    SPEC_TRY(bench_score(t->s, t->seq, &t->chain));
    SPEC_TRY(spec_commit(t->s, t->seq, path, length, 1));
    SPEC_TRY(t->s->ops->sync(t->s->queue));
    SPEC_TRY(looked(t, after));
    SPEC_TRY(spec_rollback(t->s, t->seq));
    SPEC_TRY(looked(t, base));
    return spec_commit(t->s, t->seq, path, 1, 1);
}

static spec_status pairs(replayer *t, int32_t length)
{
    double after, base;
    SPEC_TRY(bench_sequence(&t->seq, t->s, t->context, NULL));
    SPEC_TRY(bench_tree(&t->tree, t->b->o.tree ? t->b->o.tree : "binary", t->nodes));
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(pair(t, length, &after, &base));
    for (int32_t i = 0; i < t->b->o.repeats; i++) {
        SPEC_TRY(pair(t, length, &t->after[i], &t->base[i]));
        t->cost[i] = t->after[i] - t->base[i];
    }
    return spec_sequence_remove(t->s, t->seq);
}

static spec_status emit(replayer *t, int32_t length)
{
    const int32_t n = t->b->o.repeats;
    json_t *r = bench_record(t->b, "replay");
    bench_count(r, "nodes", t->nodes);
    bench_text(r, "tree", t->b->o.tree ? t->b->o.tree : "binary");
    bench_scan(r, t->b);
    bench_text(r, "advance", t->b->o.lab.advance == SPEC_ADVANCE_JOINT ? "joint" : "replay");
    bench_count(r, "path", length);
    bench_count(r, "context", t->context);
    const double base = bench_median(t->base, n), cost = bench_median(t->cost, n);
    bench_times(r, t->after, n);
    bench_number(r, "base_ms", base);
    bench_number(r, "cost_ms", cost);
    bench_number(r, "cost_percent", 100 * cost / base);
    return bench_emit(t->b, r, bench_floor_ms(t->b, t->context, 1));
}

static spec_status each_length(replayer *t, const int32_t *lengths, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(pairs(t, lengths[i]));
        SPEC_TRY(emit(t, lengths[i]));
    }
    return SPEC_OK;
}

static int32_t largest(const int32_t *v, int32_t n)
{
    int32_t most = 1;
    for (int32_t i = 0; i < n; i++)
        if (v[i] > most) most = v[i];
    return most;
}

/* All lengths by the way of advancing that the options say. */
static spec_status by_advance(replayer *t)
{
    int32_t lengths[SPEC_MAX_DEPTH], n;
    SPEC_TRY(bench_ints(lengths, SPEC_MAX_DEPTH, &n, t->b->o.tokens ? t->b->o.tokens : "1,2,3,4,5,6,7,8", "--tokens"));
    const int32_t most = largest(lengths, n);
    if (most > SPEC_MAX_DEPTH + 1)
        return speci_fail(SPEC_E_INVALID, "--tokens: a path has at most %d nodes", SPEC_MAX_DEPTH + 1);
    const int32_t n_node = t->nodes > most ? t->nodes : most;
    const int32_t n_ctx = t->context + (WARM + t->b->o.repeats) * (most + 1) + SPEC_MAX_DEPTH + 2;
    SPEC_TRY(bench_session(&t->s, t->b, NULL, n_ctx, n_node, 1));
    const spec_status status = each_length(t, lengths, n);
    spec_session_close(t->s);
    return status;
}

static spec_status run(replayer *t)
{
    int32_t nodes[16], n;
    SPEC_TRY(bench_ints(nodes, 16, &n, t->b->o.nodes ? t->b->o.nodes : "1", "--nodes"));
    SPEC_TRY(spec_tree_alloc(&t->chain, SPECI_MAX_NODE, NULL));
    SPEC_TRY(spec_tree_alloc(&t->tree, SPECI_MAX_NODE, NULL));
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < 2; k++) {
            t->nodes = nodes[i];
            t->b->o.lab.advance = k ? SPEC_ADVANCE_JOINT : SPEC_ADVANCE_REPLAY;
            SPEC_TRY(by_advance(t));
        }
    return SPEC_OK;
}

spec_status bench_replay(bench *b)
{
    replayer t = { .b = b, .context = b->o.context ? b->o.context : 128 };
    double *times = speci_alloc(NULL, 3 * (size_t)b->o.repeats, sizeof *times);
    t.after = times;
    t.base = times ? times + b->o.repeats : NULL;
    t.cost = times ? times + 2 * (size_t)b->o.repeats : NULL;
    const spec_advance given = b->o.lab.advance; /* run tries both */
    const spec_status status = times ? run(&t) : SPEC_E_NOMEM;
    b->o.lab.advance = given;
    spec_tree_free(&t.chain, NULL);
    spec_tree_free(&t.tree, NULL);
    speci_free(NULL, times);
    return status;
}
