/* bench_step.c - a step of n nodes beside the plain step and the floor.
 *
 * median_ms, min_ms: score + verify + commit with one look from the host, as in use; every step commits its root, so
 * that the next one applies a path of one node. queued_ms: the same work of the device, many steps queued before one
 * look: what a step takes where the device never waits for the host. So host_share, 1 - queued_ms / median_ms, is the
 * part of a step in which the device has nothing to do. It is not there for devices that compute in the calls.
 * plain_ms, plain_host_share: of spec_step in a session for one node. */
#include <math.h>
#include <stdio.h>

#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { MAX_NODES = SPECI_MAX_NODE, WARM = 3, GROUPS = 5, QUEUED_HOST = 4, QUEUED_DEVICE = 32 };

typedef struct stepper {
    bench *b;
    spec_session *s;
    int32_t seq, context;
    spec_tree *tree;
    double *ms; /* [repeats] */
} stepper;

static spec_status restart(stepper *t)
{
    if (t->seq >= 0) SPEC_TRY(spec_sequence_remove(t->s, t->seq));
    t->seq = -1;
    return bench_sequence(&t->seq, t->s, t->context, NULL);
}

spec_status bench_score(spec_session *s, int32_t seq, spec_tree *tree)
{
    const int32_t *ids;
    size_t n;
    const spec_tree *trees = tree;
    SPEC_TRY(spec_sequence_ids(s, &ids, &n, seq));
    tree->token[0] = ids[n - 1];
    return spec_score(s, &seq, 1, &trees);
}

static spec_status commit_root(stepper *t)
{
    const int32_t root = 0;
    return spec_commit(t->s, t->seq, &root, 1, 1);
}

static spec_status one_step(stepper *t, double *ms)
{
    int32_t path[MAX_NODES], n_path, next;
    const double start = speci_now_ms();
    SPEC_TRY(bench_score(t->s, t->seq, t->tree));
    SPEC_TRY(spec_verify(t->s, path, &n_path, &next, t->seq, SPEC_VERIFY_AUTO));
    SPEC_TRY(commit_root(t));
    *ms = speci_now_ms() - start;
    return SPEC_OK;
}

static spec_status looked(stepper *t, int32_t n)
{
    double ms;
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(one_step(t, &ms));
    for (int32_t i = 0; i < n; i++) SPEC_TRY(one_step(t, &t->ms[i]));
    return SPEC_OK;
}

static int32_t n_queued(const bench *b) { return b->be->info.host_visible ? QUEUED_HOST : QUEUED_DEVICE; }

/* What score and verify have the device do, without the look: greedy verification asks for all of it with the score. */
static spec_status enqueue(stepper *t)
{
    SPEC_TRY(bench_score(t->s, t->seq, t->tree));
    return commit_root(t);
}

static spec_status queued(stepper *t, double *median)
{
    double ms[GROUPS];
    const int32_t n = n_queued(t->b);
    for (int32_t i = 0; i < GROUPS; i++) {
        SPEC_TRY(restart(t));
        SPEC_TRY(enqueue(t));
        SPEC_TRY(t->s->ops->sync(t->s->queue));
        const double start = speci_now_ms();
        for (int32_t k = 0; k < n; k++) SPEC_TRY(enqueue(t));
        SPEC_TRY(t->s->ops->sync(t->s->queue));
        ms[i] = (speci_now_ms() - start) / n;
    }
    *median = bench_median(ms, GROUPS);
    return SPEC_OK;
}

/* Room for the context, what the repeats commit, and a tree behind it. */
static int32_t positions(const stepper *t)
{
    const int32_t n = t->b->o.repeats + WARM, m = n_queued(t->b) + 1;
    return t->context + (n > m ? n : m) + SPEC_MAX_DEPTH + 2;
}

static spec_status open_stepper(stepper *t, int32_t n_node)
{
    t->seq = -1;
    return bench_session(&t->s, t->b, NULL, positions(t), n_node, 1);
}

static spec_status plain_step(stepper *t, double *ms)
{
    spec_step_result r;
    const double start = speci_now_ms();
    SPEC_TRY(step_into(t->s, &r, &t->seq, 1));
    *ms = speci_now_ms() - start;
    return SPEC_OK;
}

static spec_status plain(stepper *t, bench_plain *out)
{
    double ms;
    SPEC_TRY(bench_tree(t->tree, "chain", 1));
    SPEC_TRY(queued(t, &out->queued_ms));
    SPEC_TRY(restart(t));
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(plain_step(t, &ms));
    for (int32_t i = 0; i < t->b->o.repeats; i++) SPEC_TRY(plain_step(t, &t->ms[i]));
    out->ms = bench_median(t->ms, t->b->o.repeats);
    return SPEC_OK;
}

spec_status bench_plain_step(bench_plain *out, bench *b, int32_t context)
{
    int32_t token, parent;
    spec_tree tree = { .cap = 1, .token = &token, .parent = &parent };
    stepper t = { .b = b, .context = context, .tree = &tree };
    t.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t.ms);
    if (!t.ms) return SPEC_E_NOMEM;
    spec_status status = open_stepper(&t, 1);
    if (status == SPEC_OK) status = plain(&t, out);
    spec_session_close(t.s);
    speci_free(NULL, t.ms);
    return status;
}

/* --- the mode --- */

static spec_status measure(stepper *t, const char *kind, int32_t nodes, const bench_plain *plain)
{
    bench *b = t->b;
    double queued_ms;
    const bool waits = !b->be->info.host_visible;
    const double floor_ms = bench_floor_ms(b, t->context, 1), steps = b->o.repeats + WARM;
    SPEC_TRY(restart(t));
    const bench_counts before = bench_count_now();
    SPEC_TRY(looked(t, b->o.repeats));
    const bench_counts after = bench_count_now();
    SPEC_TRY(queued(t, &queued_ms));
    const double median = bench_median(t->ms, b->o.repeats);
    json_t *r = bench_record(b, "step");
    bench_count(r, "nodes", nodes);
    bench_count(r, "rows", t->tree->n);
    bench_text(r, "tree", kind);
    bench_scan(r, b);
    bench_text(r, "advance", b->o.lab.advance == SPEC_ADVANCE_JOINT ? "joint" : "replay");
    bench_count(r, "context", t->context);
    bench_times(r, t->ms, b->o.repeats);
    bench_number(r, "queued_ms", queued_ms);
    bench_number(r, "host_share", waits ? 1 - queued_ms / median : NAN);
    bench_number(r, "plain_ms", plain->ms);
    bench_number(r, "plain_host_share", waits ? 1 - plain->queued_ms / plain->ms : NAN);
    bench_number(r, "over_plain", median / plain->ms);
    bench_number(r, "over_floor", median / floor_ms);
    bench_number(r, "syncs_per_step", (double)(after.n_sync - before.n_sync) / steps);
    bench_number(r, "allocs_per_step", (double)(after.n_alloc - before.n_alloc) / steps);
    return bench_emit(b, r, floor_ms);
}

static const char *tree_list(const stepper *t) { return t->b->o.tree ? t->b->o.tree : "binary"; }

/* Trees that cannot be, a chain of 128 nodes say, are told and left out. */
static spec_status each_tree(stepper *t, const int32_t *nodes, int32_t n, const bench_plain *plain)
{
    char kind[128];
    for (int32_t k = 0; bench_tree_item(kind, sizeof kind, tree_list(t), k); k++) {
        for (int32_t i = 0; i < (bench_tree_built(kind) ? 1 : n); i++) {
            const spec_status status = bench_tree(t->tree, kind, nodes[i]);
            if (status == SPEC_E_FULL) fprintf(stderr, "spec-bench: left out: %s\n", spec_last_error());
            else SPEC_TRY(status);
            if (status == SPEC_OK) SPEC_TRY(measure(t, kind, bench_tree_built(kind) ? t->tree->n : nodes[i], plain));
        }
    }
    return SPEC_OK;
}

/* Nodes of the largest tree of all, so that one session serves them. */
static spec_status largest(int32_t *out, stepper *t, const int32_t *nodes, int32_t n)
{
    char kind[128];
    *out = 1;
    for (int32_t k = 0; bench_tree_item(kind, sizeof kind, tree_list(t), k); k++)
        for (int32_t i = 0; i < n; i++) {
            const spec_status status = bench_tree(t->tree, kind, nodes[i]);
            if (status != SPEC_E_FULL) SPEC_TRY(status);
            if (status == SPEC_OK && t->tree->n > *out) *out = t->tree->n;
        }
    return SPEC_OK;
}

static spec_status run(stepper *t)
{
    int32_t nodes[32], n, n_node;
    bench_plain plain;
    SPEC_TRY(bench_ints(nodes, 32, &n, t->b->o.nodes ? t->b->o.nodes : "1,2,4,8,16,32,64,128,256", "--nodes"));
    SPEC_TRY(largest(&n_node, t, nodes, n));
    SPEC_TRY(bench_plain_step(&plain, t->b, t->context));
    spec_status status = open_stepper(t, n_node);
    if (status == SPEC_OK) status = each_tree(t, nodes, n, &plain);
    spec_session_close(t->s);
    return status;
}

spec_status bench_step(bench *b)
{
    spec_tree tree;
    stepper t = { .b = b, .seq = -1, .context = b->o.context ? b->o.context : 128, .tree = &tree };
    bench_count_install(b->be);
    SPEC_TRY(spec_tree_alloc(&tree, MAX_NODES, NULL));
    t.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t.ms);
    const spec_status status = t.ms ? run(&t) : SPEC_E_NOMEM;
    speci_free(NULL, t.ms);
    spec_tree_free(&tree, NULL);
    return status;
}
