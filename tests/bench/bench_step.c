/* bench_step.c - a step of n nodes beside the plain step and the floor.
 *
 * median_ms, min_ms: score + verify + commit with one look from the host, as in use; every step commits its root, so
 * that the next one absorbs a path of one node. queued_ms: score + commit, several steps queued before one look.
 * plain_ms: the same as median_ms in a session for one node. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { MAX_NODES = 256, WARM = 3, QUEUED = 8, GROUPS = 5 };

/* --- trees --- */

static int32_t parent_of(const char *kind, int32_t i, uint64_t *state)
{
    if (strcmp(kind, "chain") == 0) return i - 1;
    if (strcmp(kind, "random") != 0) return (i - 1) / 2;
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((*state >> 33) % (uint64_t)i);
}

static spec_status grow(spec_tree *tree, const char *kind, int32_t n)
{
    uint64_t state = 1;
    tree->n = 0;
    if (n > tree->cap) return speci_fail(SPEC_E_FULL, "a tree of %d nodes; at most %d", n, tree->cap);
    for (int32_t i = 0; i < n; i++)
        spec_tree_add(tree, i ? parent_of(kind, i, &state) : -1, 1 + i, 1);
    return SPEC_OK;
}

spec_status bench_tree(spec_tree *tree, const char *kind, int32_t n)
{
    static const char *const kinds[] = { "chain", "binary", "random", "unrolled" };
    spec_tree binary;
    bool known = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known = known || strcmp(kinds[i], kind) == 0;
    if (!known) return speci_fail(SPEC_E_INVALID, "--tree %s: chain, binary, random or unrolled", kind);
    tree->kind = SPEC_TREE_CHOSEN;
    if (strcmp(kind, "unrolled") != 0) {
        SPEC_TRY(grow(tree, kind, n));
        return strcmp(kind, "chain") == 0 && n > SPEC_MAX_DEPTH + 1
                   ? speci_fail(SPEC_E_FULL, "a chain of %d nodes is deeper than %d", n, SPEC_MAX_DEPTH)
                   : SPEC_OK;
    }
    SPEC_TRY(spec_tree_alloc(&binary, MAX_NODES, NULL));
    spec_status status = grow(&binary, "binary", n);
    if (status == SPEC_OK) status = spec_tree_unroll(&binary, tree, NULL);
    spec_tree_free(&binary, NULL);
    return status;
}

/* --- times --- */

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
    SPEC_TRY(spec_sequence_ids(s, seq, &ids, &n));
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
    SPEC_TRY(spec_verify(t->s, t->seq, SPEC_VERIFY_AUTO, path, &n_path, &next));
    SPEC_TRY(commit_root(t));
    *ms = speci_now_ms() - start;
    return SPEC_OK;
}

static spec_status looked(stepper *t, int32_t n)
{
    double ms;
    SPEC_TRY(restart(t));
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(one_step(t, &ms));
    for (int32_t i = 0; i < n; i++) SPEC_TRY(one_step(t, &t->ms[i]));
    return SPEC_OK;
}

static spec_status queued(stepper *t, double *median)
{
    double ms[GROUPS];
    SPEC_TRY(restart(t));
    for (int32_t i = 0; i < GROUPS; i++) {
        const double start = speci_now_ms();
        for (int32_t k = 0; k < QUEUED; k++) {
            SPEC_TRY(bench_score(t->s, t->seq, t->tree));
            SPEC_TRY(commit_root(t));
        }
        SPEC_TRY(t->s->ops->sync(t->s->queue));
        ms[i] = (speci_now_ms() - start) / QUEUED;
    }
    *median = bench_median(ms, GROUPS);
    return SPEC_OK;
}

/* Room for the context, what the repeats commit, and a tree behind it. */
static int32_t positions(const stepper *t)
{
    const int32_t n = t->b->o.repeats + WARM, m = GROUPS * QUEUED;
    return t->context + (n > m ? n : m) + SPEC_MAX_DEPTH + 2;
}

static spec_status open_stepper(stepper *t, int32_t n_node)
{
    t->seq = -1;
    return bench_session(&t->s, t->b, NULL, positions(t), n_node, 1);
}

spec_status bench_plain_ms(double *median, bench *b, int32_t context)
{
    int32_t token, parent;
    spec_tree tree = { .cap = 1, .token = &token, .parent = &parent };
    stepper t = { .b = b, .context = context, .tree = &tree };
    t.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t.ms);
    if (!t.ms) return SPEC_E_NOMEM;
    spec_status status = open_stepper(&t, 1);
    if (status == SPEC_OK) status = bench_tree(&tree, "chain", 1);
    if (status == SPEC_OK) status = looked(&t, b->o.repeats);
    if (status == SPEC_OK) *median = bench_median(t.ms, b->o.repeats);
    spec_session_close(t.s);
    speci_free(NULL, t.ms);
    return status;
}

/* --- the mode --- */

static spec_status measure(stepper *t, const char *kind, int32_t nodes, double plain_ms)
{
    bench *b = t->b;
    double queued_ms;
    const double floor_ms = bench_floor_ms(b, t->context, 1);
    SPEC_TRY(looked(t, b->o.repeats));
    SPEC_TRY(queued(t, &queued_ms));
    json_t *r = bench_record(b, "step");
    bench_count(r, "nodes", nodes);
    bench_count(r, "rows", t->tree->n);
    bench_text(r, "tree", kind);
    bench_text(r, "scan", b->o.scan == SPEC_SCAN_MATRIX ? "matrix" : "recurrent");
    bench_text(r, "advance", b->o.advance == SPEC_ADVANCE_JOINT ? "joint" : "replay");
    bench_count(r, "context", t->context);
    bench_times(r, t->ms, b->o.repeats);
    bench_number(r, "queued_ms", queued_ms);
    bench_number(r, "plain_ms", plain_ms);
    bench_number(r, "over_plain", bench_median(t->ms, b->o.repeats) / plain_ms);
    bench_number(r, "over_floor", bench_median(t->ms, b->o.repeats) / floor_ms);
    return bench_emit(b, r, floor_ms);
}

/* Trees that cannot be, a chain of 128 nodes say, are told and left out. */
static spec_status each_tree(stepper *t, const int32_t *nodes, int32_t n, double plain_ms)
{
    char kind[32];
    for (int32_t k = 0; bench_item(kind, sizeof kind, t->b->o.tree ? t->b->o.tree : "binary", ',', k); k++) {
        for (int32_t i = 0; i < n; i++) {
            const spec_status status = bench_tree(t->tree, kind, nodes[i]);
            if (status == SPEC_E_FULL) fprintf(stderr, "spec-bench: left out: %s\n", spec_last_error());
            else SPEC_TRY(status);
            if (status == SPEC_OK) SPEC_TRY(measure(t, kind, nodes[i], plain_ms));
        }
    }
    return SPEC_OK;
}

/* Nodes of the largest tree of all, so that one session serves them. */
static spec_status largest(int32_t *out, stepper *t, const int32_t *nodes, int32_t n)
{
    char kind[32];
    *out = 1;
    for (int32_t k = 0; bench_item(kind, sizeof kind, t->b->o.tree ? t->b->o.tree : "binary", ',', k); k++)
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
    double plain_ms;
    SPEC_TRY(bench_ints(nodes, 32, &n, t->b->o.nodes ? t->b->o.nodes : "1,2,4,8,16,32,64,128,256", "--nodes"));
    SPEC_TRY(largest(&n_node, t, nodes, n));
    SPEC_TRY(bench_plain_ms(&plain_ms, t->b, t->context));
    spec_status status = open_stepper(t, n_node);
    if (status == SPEC_OK) status = each_tree(t, nodes, n, plain_ms);
    spec_session_close(t->s);
    return status;
}

spec_status bench_step(bench *b)
{
    spec_tree tree;
    stepper t = { .b = b, .seq = -1, .context = b->o.context ? b->o.context : 128, .tree = &tree };
    SPEC_TRY(spec_tree_alloc(&tree, MAX_NODES, NULL));
    t.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t.ms);
    const spec_status status = t.ms ? run(&t) : SPEC_E_NOMEM;
    speci_free(NULL, t.ms);
    spec_tree_free(&tree, NULL);
    return status;
}
