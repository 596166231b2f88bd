/* test_scan_trees.c - the scan over large trees. Every node's output and state, computed by plain steps (one node a
 * pass, then a flush that replays it), is what the scan makes in any other way, bit for bit: whole trees, permuted,
 * in several passes, by paths, with a state per node, as a plan, with a chain in front that is advanced over. So it is with the
 * chunked form, whose plain steps go over many chunks' ends; and the two forms agree within rounding. And the order
 * of the traversal: every load finds the parent's state, with few saved. */
#include <math.h>
#include <stdio.h>

#include "tests/test.h"

enum { NODES = 256, SLOT = 1, SLOTS = 2, ROWS = NODES + 8, STEM = 40 };
enum { RECENT = 2 * SPEC_CHUNK + 3 * (SPEC_MAX_DEPTH + 1) }; /* for replay and for chains in front */

/* ------------------------------------------------------------------------------------- trees --- */

typedef struct shape {
    int32_t n, parent[NODES];
} shape;

static int32_t depth_of(const shape *t, int32_t i)
{
    int32_t depth = 0;
    while ((i = t->parent[i]) >= 0) depth++;
    return depth;
}

typedef void grow_fn(shape *t, int32_t i, test_random *random);

static void grow_wide(shape *t, int32_t i, test_random *random) { (void)random, t->parent[i] = 0; }
static void grow_binary(shape *t, int32_t i, test_random *random) { (void)random, t->parent[i] = (i - 1) / 2; }
static void grow_deep(shape *t, int32_t i, test_random *random) /* chains of 63 below the root */
{
    (void)random;
    t->parent[i] = (i - 1) % SPEC_MAX_DEPTH == 0 ? 0 : i - 1;
}
static void grow_caterpillar(shape *t, int32_t i, test_random *random) /* a spine of 63, each with leaves */
{
    (void)random;
    t->parent[i] = i < SPEC_MAX_DEPTH ? i - 1 : (i * 7) % SPEC_MAX_DEPTH;
}
static void grow_random(shape *t, int32_t i, test_random *random)
{
    do t->parent[i] = test_below(random, 2) ? i - 1 : test_below(random, i);
    while (depth_of(t, t->parent[i]) >= SPEC_MAX_DEPTH);
}
static void grow_late(shape *t, int32_t i, test_random *random) /* each half of what is left below the half before it */
{
    int32_t first = 0, n = t->n;
    while (i - first > (n - first) / 2 && n - first > 2) first += (n - first) / 2;
    t->parent[i] = i == first ? first - 1 : i - first == 1 ? first : test_below(random, 2) ? i - 1 : first;
    if (depth_of(t, i) > SPEC_MAX_DEPTH) t->parent[i] = 0;
}

static void grow_stem(shape *t, int32_t i, test_random *random) /* a binary tree below a chain: ancestors that are far apart */
{
    (void)random;
    t->parent[i] = i <= STEM ? i - 1 : STEM + (i - STEM - 1) / 2;
}

static const struct {
    const char *name;
    grow_fn *grow;
} growths[] = { { "wide", grow_wide },   { "binary", grow_binary }, { "deep", grow_deep },
                { "caterpillar", grow_caterpillar }, { "random", grow_random }, { "late", grow_late },
                { "stem", grow_stem } };

static void grow(shape *t, int32_t kind, int32_t n, test_random *random)
{
    t->n = n;
    t->parent[0] = -1;
    for (int32_t i = 1; i < n; i++) growths[kind].grow(t, i, random);
}

/* The same tree with its nodes in another order, parents first: node i of `to` is node was[i] of `from`; the first
 * `keep` stay where they are. */
static void permute(shape *to, int32_t *was, const shape *from, int32_t keep, test_random *random)
{
    int32_t now[NODES];
    bool taken[NODES] = { false };
    to->n = from->n;
    for (int32_t i = 0; i < from->n; i++) {
        int32_t pick = i;
        while (i >= keep) {
            pick = test_below(random, from->n);
            if (!taken[pick] && (from->parent[pick] < 0 || taken[from->parent[pick]])) break;
        }
        taken[pick] = true;
        was[i] = pick;
        now[pick] = i;
        to->parent[i] = from->parent[pick] < 0 ? -1 : now[from->parent[pick]];
    }
}

/* ------------------------------------------------------------------------------------- traversal --- */

/* Walks the traversal with the numbers of nodes for states. */
static void check_traversal(const char *name, const shape *t, int32_t n_fed, int32_t n_given)
{
    spec_step_node nodes[NODES];
    spec_traversal_node traversal[NODES + 1];
    bool seen[NODES] = { false };
    int32_t live = -1, saved[SPEC_MAX_SAVED], n_row = t->n - n_fed;
    for (int32_t i = 0; i < t->n; i++) nodes[i] = (spec_step_node){ .parent = i < n_given ? t->parent[i] : -7 };
    for (int32_t k = 0; k < SPEC_MAX_SAVED; k++) saved[k] = -2;
    traversal[n_row].node = -99;
    speci_traversal_schedule(nodes, n_fed, n_given, n_row, traversal);
    assert_int_equal(traversal[n_row].node, -99);
    for (int32_t i = 0; i < n_row; i++) {
        const spec_traversal_node v = traversal[i];
        if (v.node < n_fed || v.node >= t->n || seen[v.node]) fail_msg("%s: entry %d is of node %d", name, i, v.node);
        seen[v.node] = true;
        const int32_t parent = t->parent[v.node];
        if (v.load == SPEC_LOAD_LIVE && parent != live) fail_msg("%s: node %d finds %d live", name, v.node, live);
        if (v.node == 0 && v.load != SPEC_LOAD_LIVE) fail_msg("%s: the root finds no state", name);
        if (v.load == SPEC_LOAD_LIVE && v.node > 0 && v.node >= n_given)
            fail_msg("%s: node %d's parent is not known", name, v.node);
        if (v.load >= 0 && (v.load >= spec_traversal_saved(t->n) || saved[v.load] != parent))
            fail_msg("%s: node %d is not saved as %d", name, parent, v.load);
        if (v.load == SPEC_LOAD_PATH && n_fed == 0 && n_given == t->n)
            fail_msg("%s: node %d by its path", name, v.node);
        if (parent >= n_fed && parent < n_given && !seen[parent] && v.node < n_given)
            fail_msg("%s: node %d before its parent", name, v.node);
        if (v.save >= spec_traversal_saved(t->n) || v.save < -1) fail_msg("%s: saved as %d, of %d nodes", name, v.save, t->n);
        live = v.node;
        if (v.save >= 0) saved[v.save] = v.node;
    }
}

static void test_traversal(void **state)
{
    (void)state;
    test_random random = { 31 };
    shape t, p;
    int32_t was[NODES];
    static const int32_t counts[] = { 1, 2, 3, 6, 7, 8, 14, 15, 63, 127, 254, 255, 256 };
    for (int32_t kind = 0; kind < N_ELEMENTS(growths); kind++)
        for (int32_t i = 0; i < N_ELEMENTS(counts); i++) {
            grow(&t, kind, counts[i], &random);
            check_traversal(growths[kind].name, &t, 0, t.n);
            permute(&p, was, &t, 0, &random);
            check_traversal(growths[kind].name, &p, 0, t.n);
        }
    for (int32_t i = 0; i < 4000; i++) {
        grow(&t, 4 + i % 2, 1 + test_below(&random, NODES), &random);
        permute(&p, was, &t, 0, &random);
        check_traversal("random", &p, 0, p.n);
        const int32_t n_fed = test_below(&random, p.n), n_given = n_fed + test_below(&random, p.n - n_fed + 1);
        check_traversal("growing", &p, n_fed, n_given);
    }
    shape none = { 0 };
    check_traversal("none", &none, 0, 0);
    for (int32_t n = 3; n <= 255; n = 2 * n + 1) { /* full binary trees need them all */
        spec_step_node nodes[NODES];
        spec_traversal_node traversal[NODES];
        int32_t most = -1;
        for (int32_t i = 0; i < n; i++) nodes[i] = (spec_step_node){ .parent = i > 0 ? (i - 1) / 2 : -1 };
        speci_traversal_schedule(nodes, 0, n, n, traversal);
        for (int32_t i = 0; i < n; i++) most = traversal[i].save > most ? traversal[i].save : most;
        assert_int_equal(most + 1, spec_traversal_saved(n));
        assert_true(most + 1 < SPEC_MAX_SAVED);
    }
}

/* ------------------------------------------------------------------------------------ the scan --- */

typedef struct scan_kind {
    const char *name;
    int32_t n_head, head_dim, n_state, x_rep, b_rep, c_rep;
    bool per_state, in_conv, gate;
    spec_dtype dtype, rest; /* of x, and of B and C; y, dt and z are f32 */
    double decay;           /* largest dt |A| */
} scan_kind;

static const scan_kind kinds[] = {
    { "mamba2", 4, 8, 16, 1, 2, 2, false, true, false, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 2 },
    { "mamba2_bf16", 2, 64, 128, 1, 2, 2, false, true, true, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "mamba2_shared", 4, 32, 128, 2, 4, 1, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "mamba2_f16", 2, 48, 64, 1, 1, 1, false, true, false, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 2 },
    { "mamba2_wide", 1, 32, 256, 1, 1, 1, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "mamba2_odd", 3, 7, 13, 1, 3, 3, false, false, true, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 2 },
    { "mamba1", 40, 1, 16, 1, 40, 40, true, false, true, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 2 },
    { "mamba1_bf16", 64, 1, 16, 1, 64, 64, true, false, true, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "mamba1_f16", 37, 1, 16, 1, 37, 37, true, false, false, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 2 },
};

/* A scan's memory on a device, and the values of NODES tokens to feed it. */
typedef struct bench {
    const test_device *d;
    const scan_kind *k;
    int32_t ld_x, ld_bc, inner;
    size_t state_bytes, y_bytes;
    test_buffer xbc, bc, dt, z, y, a, skip, dt_bias, state, cache_dt, cache_b, replay, node_state;
    test_buffer recent[3]; /* x, B, dt of recent tokens; chunked form */
    size_t entry_bytes[3];
    uint8_t *tokens[4]; /* of xbc, bc, dt, z: rows as the buffers hold them */
    size_t row_bytes[4];
    uint8_t *zero_state;
    spec_op op;
    spec_queue *q;
    bool by_plan; /* what several scans have in common a backend may find once for all of a plan */
} bench;

static test_buffer *token_buffer(bench *b, int32_t i)
{
    test_buffer *const all[] = { &b->xbc, &b->bc, &b->dt, &b->z };
    return all[i];
}

static test_buffer random_buffer(const test_device *d, test_random *random, size_t n, double scale, spec_dtype dtype)
{
    double *v = test_values(random, n, scale);
    test_buffer b = test_buffer_from(d, v, n, dtype);
    free(v);
    return b;
}

static test_buffer decays(const bench *b, test_random *random)
{
    const size_t n = (size_t)b->k->n_head * (b->k->per_state ? (size_t)b->k->n_state : 1);
    double *v = test_values(random, n, 1.0);
    for (size_t i = 0; i < n; i++) v[i] = i == 0 ? -b->k->decay : -b->k->decay * v[i] * v[i] - 0.01;
    test_buffer out = test_floats(b->d, v, n);
    free(v);
    return out;
}

static spec_plan plan_of(const spec_op *op)
{
    return (spec_plan){ .ops = op, .n_op = 1, .phase = SPEC_PHASE_DECODE, .n_row_max = ROWS, .n_seq_max = SLOTS,
                        .n_node_max = NODES, .n_kv_max = TEST_PAGES * SPEC_PAGE };
}

static spec_queue *queue_of(const bench *b, const spec_op *op)
{
    const spec_plan plan = plan_of(op);
    spec_queue *q = NULL;
    test_ok(b->d->ops->queue_open(b->d->dev, &q, &plan, 1, 0), "queue_open");
    return q;
}

/* The op becomes chunked. */
static void open_recent(bench *b)
{
    const scan_kind *k = b->k;
    const int32_t cols[] = { b->inner / k->x_rep, k->n_head / k->b_rep * k->n_state, k->n_head };
    for (int32_t i = 0; i < 3; i++) {
        const spec_dtype dtype = i < 2 ? k->dtype : SPEC_DTYPE_F32;
        b->recent[i] = test_buffer_new(b->d, SLOTS * RECENT * (size_t)cols[i], dtype);
        b->entry_bytes[i] = (size_t)cols[i] * test_type_size(dtype);
    }
    spec_scan_args *a = &b->op.u.scan;
    a->chunk = SPEC_CHUNK, a->n_recent_max = RECENT;
    a->recent_x = b->recent[0].data, a->recent_b = b->recent[1].data, a->recent_dt = b->recent[2].data;
}

static void open_bench(bench *b, const test_device *d, const scan_kind *k, bool in_chunks)
{
    test_random random = { 17 };
    const size_t heads = (size_t)k->n_head;
    const int32_t n_b = k->n_head / k->b_rep * k->n_state, n_c = k->n_head / k->c_rep * k->n_state;
    *b = (bench){ .d = d, .k = k, .inner = k->n_head * k->head_dim };
    const int32_t n_x = b->inner / k->x_rep;
    b->ld_bc = n_b + n_c;
    b->ld_x = n_x + (k->in_conv ? b->ld_bc : 0);
    b->state_bytes = (size_t)b->inner * (size_t)k->n_state * sizeof(float);
    b->y_bytes = (size_t)b->inner * sizeof(float);
    b->xbc = random_buffer(d, &random, (size_t)(ROWS * b->ld_x), 1.0, k->dtype);
    b->bc = random_buffer(d, &random, (size_t)(ROWS * b->ld_bc), 1.0, k->rest);
    b->dt = random_buffer(d, &random, ROWS * heads, 12.0, SPEC_DTYPE_F32); /* so that dt is 1e-5 to its limit */
    b->z = random_buffer(d, &random, (size_t)(ROWS * b->inner), 2.0, SPEC_DTYPE_F32);
    b->y = test_buffer_new(d, (size_t)(ROWS * b->inner), SPEC_DTYPE_F32);
    b->a = decays(b, &random);
    b->skip = random_buffer(d, &random, heads, 1.0, SPEC_DTYPE_F32);
    b->dt_bias = random_buffer(d, &random, heads, 0.5, SPEC_DTYPE_F32);
    b->state = random_buffer(d, &random, (size_t)(SLOTS * b->inner * k->n_state), 1.0, SPEC_DTYPE_F32);
    b->cache_dt = test_buffer_new(d, SLOTS * 2 * NODES * heads, SPEC_DTYPE_F32);
    b->cache_b = test_buffer_new(d, (size_t)(SLOTS * 2 * NODES * n_b), k->dtype);
    b->replay = test_buffer_new(d, (size_t)(SLOTS * 2 * NODES * b->ld_x), k->dtype);
    if (!in_chunks)
        b->node_state = test_buffer_new(d, (size_t)SLOTS * NODES * (size_t)(b->inner * k->n_state), SPEC_DTYPE_F32);
    for (int32_t i = 0; i < 4; i++) {
        const test_buffer *from = token_buffer(b, i);
        b->row_bytes[i] = from->n / ROWS * test_type_size(from->dtype);
        b->tokens[i] = test_read_raw(from);
    }
    b->zero_state = test_read_raw(&b->state);
    memmove(b->zero_state, b->zero_state + SLOT * b->state_bytes, b->state_bytes);
    const size_t type = test_type_size(k->dtype);
    spec_view x = test_view(&b->xbc, b->ld_x), in_b = k->in_conv ? x : test_view(&b->bc, b->ld_bc), in_c = in_b;
    if (k->in_conv) in_b.data = (char *)x.data + (size_t)n_x * type;
    in_c.data = (char *)in_b.data + (size_t)n_b * test_type_size(in_b.dtype);
    b->op.kind = SPEC_OP_SCAN;
    b->op.u.scan = (spec_scan_args){
        .n_head = k->n_head, .head_dim = k->head_dim, .n_state = k->n_state, .x_rep = k->x_rep, .b_rep = k->b_rep,
        .c_rep = k->c_rep, .a = b->a.data, .a_per_state = k->per_state, .d = b->skip.data, .dt_bias = b->dt_bias.data,
        .dt_max = 1.0f, .x = x, .b = in_b, .c = in_c, .dt = test_view(&b->dt, k->n_head), .dtype = k->dtype,
        .replay_y = b->replay.data, .replay_ld = b->ld_x, .replay_b_col = n_x, .b_in_conv = k->in_conv,
        .state = b->state.data, .cache_dt = b->cache_dt.data, .cache_b = k->in_conv ? NULL : b->cache_b.data,
        .n_node = NODES, .y = test_view(&b->y, b->inner) };
    if (k->gate) b->op.u.scan.z = test_view(&b->z, b->inner);
    if (in_chunks) open_recent(b);
    b->q = queue_of(b, &b->op);
}

static void close_bench(bench *b)
{
    b->d->ops->queue_close(b->q);
    test_buffer *all[] = { &b->recent[0], &b->recent[1], &b->recent[2], &b->node_state, &b->replay, &b->cache_b, &b->cache_dt,
                           &b->state, &b->dt_bias, &b->skip, &b->a, &b->y, &b->z, &b->dt, &b->bc, &b->xbc };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) test_buffer_free(all[i]);
    for (int32_t i = 0; i < 4; i++) free(b->tokens[i]);
    free(b->zero_state);
}

static char *slot_state(const bench *b) { return (char *)b->state.data + SLOT * b->state_bytes; }

static void write_state(bench *b, const void *state)
{
    test_ok(b->d->ops->upload(b->q, slot_state(b), state, b->state_bytes), "upload");
}

static void expect_bytes(bench *b, const void *device, const void *want, size_t bytes, const char *what,
                         const char *part, int32_t number)
{
    uint8_t *got = malloc(bytes);
    test_ok(b->d->ops->download(b->q, got, device, bytes), "download");
    test_ok(b->d->ops->sync(b->q), "sync");
    if (memcmp(got, want, bytes) != 0)
        fail_msg("%s %s: %s: the %s of node %d differs", b->d->name, b->k->name, what, part, number);
    free(got);
}

/* Entry `entry` of replay_y as the convolution would leave it for token t. */
static void put_replay(bench *b, int32_t entry, int32_t t)
{
    char *to = (char *)b->replay.data + (size_t)entry * b->row_bytes[0];
    test_ok(b->d->ops->upload(b->q, to, b->tokens[0] + (size_t)t * b->row_bytes[0], b->row_bytes[0]), "upload");
}

/* Row r < n is token[r]. */
static void feed_rows(bench *b, const int32_t *token, int32_t n)
{
    for (int32_t i = 0; i < 4 && n > 0; i++) {
        const size_t bytes = b->row_bytes[i];
        uint8_t *rows = malloc((size_t)n * bytes);
        for (int32_t r = 0; r < n; r++)
            memcpy(rows + (size_t)r * bytes, b->tokens[i] + (size_t)token[r] * bytes, bytes);
        test_ok(b->d->ops->upload(b->q, token_buffer(b, i)->data, rows, (size_t)n * bytes), "upload");
        free(rows);
    }
}

static void run_step(bench *b, const spec_op *op, const test_seq *seqs, int32_t n_seq)
{
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, n_seq, 0);
    if (b->by_plan) {
        const spec_plan plan = plan_of(op);
        spec_prepared *prepared = NULL;
        test_ok(speci_plan_prepare(b->d->ops, b->q, &prepared, &plan, false), "plan_prepare");
        test_ok(speci_plan_run(b->d->ops, b->q, &plan, prepared, step, NULL), "the plan");
        test_ok(b->d->ops->sync(b->q), "sync");
        if (prepared) b->d->ops->plan_free(b->q, prepared);
    } else {
        test_ok(b->d->ops->step_bind(b->q, step), "step_bind");
        test_ok(speci_op_run(b->d->ops, b->q, op, NULL), "scan");
        test_ok(b->d->ops->sync(b->q), "sync");
    }
    free(step);
}

/* A pass: row r is token[s->n_fed + r], and the nodes fed before are in replay_y. */
static void run_pass(bench *b, const spec_op *op, const test_seq *s, const int32_t *token)
{
    for (int32_t i = 0; i < s->n_fed; i++) put_replay(b, s->n_replay + i, token[i]);
    if (s->n_node > s->n_fed) feed_rows(b, token + s->n_fed, s->n_node - s->n_fed);
    run_step(b, op, s, 1);
}

/* ---------------------------------------------------------------------------------- bit for bit --- */

/* By plain steps, of every node: its output and the state after it. */
typedef struct truth {
    uint8_t *y, *state;
} truth;

static truth read_plainly(bench *b, const shape *t)
{
    static const int32_t root = -1, path = 0;
    truth out = { malloc((size_t)t->n * b->y_bytes), malloc((size_t)t->n * b->state_bytes) };
    for (int32_t i = 0; i < t->n; i++) {
        write_state(b, t->parent[i] < 0 ? b->zero_state : out.state + (size_t)t->parent[i] * b->state_bytes);
        const test_seq step = { .slot = SLOT, .n_node = 1, .parent = &root };
        run_pass(b, &b->op, &step, &i);
        test_ok(b->d->ops->download(b->q, out.y + (size_t)i * b->y_bytes, b->y.data, b->y_bytes), "download");
        put_replay(b, 0, i);
        const test_seq flush = { .slot = SLOT, .parity = 1, .n_replay = 1, .path = &path };
        run_pass(b, &b->op, &flush, NULL);
        uint8_t *state = out.state + (size_t)i * b->state_bytes;
        test_ok(b->d->ops->download(b->q, state, slot_state(b), b->state_bytes), "download");
        test_ok(b->d->ops->sync(b->q), "sync");
    }
    return out;
}

/* The outputs of rows that are nodes [n_fed, n) of `t`, node i being was[i] of the truth. */
static void expect_y(bench *b, const truth *want, const shape *t, const int32_t *was, int32_t n_fed, const char *what)
{
    const size_t row = b->y_bytes, n = (size_t)(t->n - n_fed);
    uint8_t *got = malloc(n * row);
    test_ok(b->d->ops->download(b->q, got, b->y.data, n * row), "download");
    test_ok(b->d->ops->sync(b->q), "sync");
    for (int32_t i = n_fed; i < t->n; i++)
        if (memcmp(got + (size_t)(i - n_fed) * row, want->y + (size_t)was[i] * row, row) != 0)
            fail_msg("%s %s: %s: the output of node %d differs", b->d->name, b->k->name, what, was[i]);
    free(got);
}

static void check_whole(bench *b, const truth *want, const shape *t, const int32_t *was, const char *what)
{
    const test_seq whole = { .slot = SLOT, .n_node = t->n, .parent = t->parent };
    write_state(b, b->zero_state);
    run_pass(b, &b->op, &whole, was);
    expect_y(b, want, t, was, 0, what);
    expect_bytes(b, slot_state(b), b->zero_state, b->state_bytes, what, "stored state", -1);
    int32_t path[SPEC_MAX_DEPTH + 1], last = t->n - 1;
    const int32_t n = test_path(&whole, last, path); /* what was fed is replayed as it was scanned */
    for (int32_t j = 0; j < n; j++) put_replay(b, j, was[path[j]]);
    const test_seq flush = { .slot = SLOT, .parity = 1, .n_replay = n, .path = path };
    run_pass(b, &b->op, &flush, NULL);
    expect_bytes(b, slot_state(b), want->state + (size_t)was[last] * b->state_bytes, b->state_bytes, what,
                 "replayed state", was[last]);
}

/* In three passes, of which the host knows the first nodes only; with or without a state per node. */
static void check_growing(bench *b, const truth *want, const shape *t, const int32_t *was, bool kept)
{
    spec_op op = b->op;
    const int32_t cuts[] = { 0, t->n / 5 + 1, t->n / 2 + 1, t->n };
    const char *what = kept ? "growing, states kept" : "growing";
    if (kept) op.u.scan.node_state = b->node_state.data;
    write_state(b, b->zero_state);
    for (int32_t i = 0; i < 3; i++) {
        shape part = { .n = cuts[i + 1] < t->n ? cuts[i + 1] : t->n };
        memcpy(part.parent, t->parent, sizeof part.parent);
        if (part.n <= cuts[i]) continue;
        const test_seq s = { .slot = SLOT, .n_node = part.n, .n_fed = cuts[i], .parent = part.parent,
                             .n_given = i == 0 ? part.n / 2 + 1 : cuts[i] };
        run_pass(b, &op, &s, was);
        expect_y(b, want, &part, was, cuts[i], what);
    }
    expect_bytes(b, slot_state(b), b->zero_state, b->state_bytes, what, "stored state", -1);
    for (int32_t i = 0; kept && i < t->n; i++)
        expect_bytes(b, (char *)b->node_state.data + ((size_t)SLOT * NODES + (size_t)i) * b->state_bytes,
                     want->state + (size_t)was[i] * b->state_bytes, b->state_bytes, what, "kept state", was[i]);
}

/* The nodes of a chain in front are advanced over; what hangs below them is as ever. */
static void check_advance(bench *b, const truth *want, const shape *t, const int32_t *was, int32_t n_advance,
                          const char *what)
{
    const test_seq s = { .slot = SLOT, .n_node = t->n, .parent = t->parent, .n_advance = n_advance };
    write_state(b, b->zero_state);
    run_pass(b, &b->op, &s, was);
    expect_y(b, want, t, was, 0, what);
    expect_bytes(b, slot_state(b), want->state + (size_t)was[n_advance - 1] * b->state_bytes, b->state_bytes, what,
                 "stored state", was[n_advance - 1]);
}

static void check_tree(bench *b, const shape *t, const char *name, test_random *random)
{
    shape p;
    int32_t was[NODES];
    const truth want = read_plainly(b, t);
    for (int32_t i = 0; i < t->n; i++) was[i] = i;
    check_whole(b, &want, t, was, name);
    check_growing(b, &want, t, was, false);
    check_growing(b, &want, t, was, true);
    permute(&p, was, t, 0, random);
    check_whole(b, &want, &p, was, "permuted");
    check_growing(b, &want, &p, was, false);
    b->by_plan = true;
    check_whole(b, &want, &p, was, "as a plan");
    check_growing(b, &want, &p, was, false);
    b->by_plan = false;
    free(want.state);
    free(want.y);
}

/* The first n_path nodes, a chain, are an accepted path that the tree's pass replays; the others hang below its end. */
static void check_behind_path(bench *b, const truth *want, const shape *t, int32_t n_path)
{
    shape rest = { .n = t->n - n_path };
    int32_t token[NODES];
    for (int32_t i = 0; i < t->n; i++) token[i] = i;
    for (int32_t i = 0; i < rest.n; i++) rest.parent[i] = i == 0 ? -1 : t->parent[n_path + i] - n_path;
    const test_seq chain = { .slot = SLOT, .n_node = n_path, .parent = t->parent };
    const test_seq next = { .slot = SLOT, .parity = 1, .n_replay = n_path, .path = token, .n_node = rest.n, .parent = rest.parent };
    write_state(b, b->zero_state);
    run_pass(b, &b->op, &chain, token);
    for (int32_t j = 0; j < n_path; j++) put_replay(b, j, j);
    run_pass(b, &b->op, &next, token + n_path);
    expect_y(b, want, &rest, token + n_path, 0, "behind a path");
    expect_bytes(b, slot_state(b), want->state + (size_t)(n_path - 1) * b->state_bytes, b->state_bytes, "behind a path", "stored state",
                 n_path - 1);
}

static void check_chain_in_front(bench *b, int32_t n, int32_t chain, test_random *random)
{
    shape t = { .n = n }, p;
    int32_t was[NODES];
    for (int32_t i = 0; i < t.n; i++)
        t.parent[i] = i < chain ? i - 1 : i == chain ? chain - 1 : chain + test_below(random, i - chain);
    const truth want = read_plainly(b, &t);
    for (int32_t k = 0; k < 2; k++) {
        b->by_plan = k == 1;
        permute(&p, was, &t, chain, random);
        check_advance(b, &want, &p, was, chain, "a chain in front");
        check_advance(b, &want, &p, was, 1, "a chain of one");
        check_behind_path(b, &want, &t, chain);
        for (int32_t i = 0; i < chain; i++) was[i] = i;
        p = (shape){ .n = chain };
        memcpy(p.parent, t.parent, sizeof p.parent);
        check_advance(b, &want, &p, was, chain, "nothing but a chain");
    }
    b->by_plan = false;
    free(want.state);
    free(want.y);
}

static void each_kind(test_device *d)
{
    test_random random = { 5 };
    for (int32_t i = 0; i < N_ELEMENTS(kinds); i++) {
        bench b;
        shape t;
        open_bench(&b, d, &kinds[i], false);
        if (test_can(d, kinds[i].name, &b.op)) {
            check_chain_in_front(&b, 90, 12, &random);
            check_chain_in_front(&b, 24, 3, &random);
            for (int32_t g = 0; g < N_ELEMENTS(growths); g++) {
                grow(&t, g, i < 2 ? NODES : 60 + 7 * g, &random);
                check_tree(&b, &t, growths[g].name, &random);
                grow(&t, g, 13 + 4 * g, &random); /* all in a chunk of the scan's */
                check_tree(&b, &t, growths[g].name, &random);
            }
        }
        close_bench(&b);
    }
}

static void test_trees(void **state)
{
    (void)state;
    test_each_device(each_kind);
}

/* -------------------------------------------------------------------------------- chunked form --- */

static const scan_kind chunked[] = {
    { "chunked", 4, 8, 16, 1, 2, 2, false, true, false, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 2 },
    { "chunked_strong", 4, 32, 16, 1, 4, 4, false, true, false, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 50 },
    { "chunked_bf16", 2, 64, 128, 1, 2, 2, false, true, true, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 50 },
    { "chunked_shared", 4, 32, 128, 2, 4, 1, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "chunked_f16", 2, 48, 64, 1, 1, 1, false, true, false, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 2 },
    { "chunked_wide", 1, 33, 256, 1, 1, 1, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "chunked_odd", 3, 7, 13, 1, 3, 3, false, false, true, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 50 },
    { "chunked_rounded_b", 2, 16, 64, 1, 2, 2, false, false, true, SPEC_DTYPE_BF16, SPEC_DTYPE_F32, 2 },
    { "chunked_24", 24, 64, 128, 1, 24, 24, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
    { "chunked_24_f16", 24, 64, 128, 1, 8, 8, false, true, true, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 50 },
    { "chunked_80", 80, 64, 128, 1, 80, 80, false, true, false, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 2 },
};

/* What a sequence has: its state, and the recent-token buffers with n_recent tokens in them. */
typedef struct memory {
    uint8_t *bytes;
    int32_t n_past, n_recent;
} memory;

static size_t recent_bytes(const bench *b, int32_t i) { return RECENT * b->entry_bytes[i]; }

static size_t memory_bytes(const bench *b)
{
    return b->state_bytes + recent_bytes(b, 0) + recent_bytes(b, 1) + recent_bytes(b, 2);
}

static char *slot_recent(const bench *b, int32_t i) { return (char *)b->recent[i].data + SLOT * recent_bytes(b, i); }

/* From the device, or to it. */
static void move_memory(bench *b, const memory *m, bool save)
{
    uint8_t *at = m->bytes;
    for (int32_t i = -1; i < 3; i++) {
        char *part = i < 0 ? slot_state(b) : slot_recent(b, i);
        const size_t n = i < 0 ? b->state_bytes : recent_bytes(b, i);
        if (save) test_ok(b->d->ops->download(b->q, at, part, n), "download");
        else test_ok(b->d->ops->upload(b->q, part, at, n), "upload");
        at += n;
    }
    test_ok(b->d->ops->sync(b->q), "sync");
}

static memory copy_of(const bench *b, const memory *m)
{
    memory out = { malloc(memory_bytes(b)), m->n_past, m->n_recent };
    memcpy(out.bytes, m->bytes, memory_bytes(b));
    return out;
}

static test_seq step_of(const memory *m, const shape *t)
{
    return (test_seq){ .slot = SLOT, .n_past = m->n_past, .n_recent = m->n_recent, .n_node = t->n,
                       .parent = t->parent };
}

/* The step that replays path [n] in front of tree t, or of none. */
static test_seq replay_of(const memory *m, const int32_t *path, int32_t n, const shape *t)
{
    test_seq s = { .slot = SLOT, .parity = 1, .n_past = m->n_past + n, .n_recent = m->n_recent, .n_replay = n,
                   .path = path };
    if (t) s.n_node = t->n, s.parent = t->parent;
    return s;
}

/* n more tokens: those that whole chunks have taken are no longer recent. */
static void count(memory *m, int32_t n)
{
    m->n_past += n, m->n_recent += n;
    while (m->n_recent >= 2 * SPEC_CHUNK) m->n_recent -= SPEC_CHUNK;
}

/* A plain step: m, which is on the device, applies a token. */
static void step_plainly(bench *b, memory *m, int32_t token, uint8_t *y)
{
    static const int32_t path = 0;
    const shape one = { .n = 1, .parent = { -1 } };
    const test_seq step = step_of(m, &one), flush = replay_of(m, &path, 1, NULL);
    run_pass(b, &b->op, &step, &token);
    if (y) test_ok(b->d->ops->download(b->q, y, b->y.data, b->y_bytes), "download");
    put_replay(b, 0, token);
    run_pass(b, &b->op, &flush, NULL);
    count(m, 1);
}

enum { PAST = 177 }; /* positions that prefill covered */
static int32_t token_before(int32_t i) { return NODES - 1 - i; } /* token number i behind them */

/* After n plain steps from the state that prefill left; the recent-token buffers are empty before. */
static memory memory_after(bench *b, int32_t n)
{
    memory m = { malloc(memory_bytes(b)), PAST, 0 };
    memset(m.bytes, 0xff, memory_bytes(b));
    memcpy(m.bytes, b->zero_state, b->state_bytes);
    move_memory(b, &m, false);
    for (int32_t i = 0; i < n; i++) step_plainly(b, &m, token_before(i), NULL);
    move_memory(b, &m, true);
    return m;
}

/* On the device is what m has. */
static void expect_kept(bench *b, const memory *m, const char *what, int32_t node)
{
    const uint8_t *want = m->bytes + b->state_bytes;
    expect_bytes(b, slot_state(b), m->bytes, b->state_bytes, what, "state", node);
    for (int32_t i = 0; i < 3; want += recent_bytes(b, i), i++)
        for (int32_t j = 1; j <= m->n_recent; j++) {
            const size_t at = (size_t)((m->n_past - j) % RECENT) * b->entry_bytes[i];
            expect_bytes(b, slot_recent(b, i) + at, want + at, b->entry_bytes[i], what, "recent token", m->n_past - j);
        }
}

/* By plain steps from `base`, of every node: its output (`all.y`), and the memory after it. */
typedef struct chunked_truth {
    truth all;
    memory after[NODES];
} chunked_truth;

static chunked_truth *walk_plainly(bench *b, const memory *base, const shape *t)
{
    chunked_truth *w = calloc(1, sizeof *w);
    w->all.y = malloc((size_t)t->n * b->y_bytes);
    for (int32_t i = 0; i < t->n; i++) {
        w->after[i] = copy_of(b, t->parent[i] < 0 ? base : &w->after[t->parent[i]]);
        move_memory(b, &w->after[i], false);
        step_plainly(b, &w->after[i], i, w->all.y + (size_t)i * b->y_bytes);
        test_ok(b->d->ops->sync(b->q), "sync");
        move_memory(b, &w->after[i], true);
    }
    return w;
}

static void free_truth(chunked_truth *w, const shape *t)
{
    for (int32_t i = 0; i < t->n; i++) free(w->after[i].bytes);
    free(w->all.y);
    free(w);
}

/* The tree in one pass; then the path to `node`, alone, in front of the next tree, and in two halves. */
static void check_chunked_whole(bench *b, const memory *base, const chunked_truth *want, const shape *t,
                               const int32_t *was, int32_t node, const char *what)
{
    const test_seq whole = step_of(base, t);
    int32_t path[SPEC_MAX_DEPTH + 1];
    const int32_t n = test_path(&whole, node, path);
    const memory *after = &want->after[was[node]];
    move_memory(b, base, false);
    run_pass(b, &b->op, &whole, was);
    expect_y(b, &want->all, t, was, 0, what);
    expect_kept(b, base, what, -1);
    for (int32_t j = 0; j < n; j++) put_replay(b, j, was[path[j]]);
    const test_seq flush = replay_of(base, path, n, NULL), next = replay_of(base, path, n, t);
    run_pass(b, &b->op, &flush, NULL);
    expect_kept(b, after, what, was[node]);

    const test_seq behind = step_of(after, t);
    truth there = { malloc((size_t)t->n * b->y_bytes), NULL };
    int32_t same[NODES];
    for (int32_t i = 0; i < t->n; i++) same[i] = i;
    run_pass(b, &b->op, &behind, was);
    test_ok(b->d->ops->download(b->q, there.y, b->y.data, (size_t)t->n * b->y_bytes), "download");
    test_ok(b->d->ops->sync(b->q), "sync");
    move_memory(b, base, false);
    run_pass(b, &b->op, &whole, was);
    for (int32_t j = 0; j < n; j++) put_replay(b, j, was[path[j]]);
    run_pass(b, &b->op, &next, was);
    expect_y(b, &there, t, same, 0, what);
    expect_kept(b, after, what, was[node]);
    free(there.y);
}

/* In three passes behind a path that the first replays: the tree's root is a token after n more plain steps. */
static void check_chunked_growing(bench *b, const chunked_truth *want, const memory *base, const memory *before,
                                 const shape *t, const int32_t *was, const char *what)
{
    const int32_t cuts[] = { 0, t->n / 5 + 1, t->n / 2 + 1, t->n }, n = base->n_past - before->n_past;
    shape chain = { .n = n };
    int32_t token[SPEC_MAX_DEPTH + 1], path[SPEC_MAX_DEPTH + 1];
    for (int32_t i = 0; i < n; i++)
        chain.parent[i] = i - 1, path[i] = i, token[i] = token_before(before->n_past - PAST + i);
    move_memory(b, before, false);
    if (n > 0) {
        const test_seq s = step_of(before, &chain);
        run_pass(b, &b->op, &s, token);
    }
    for (int32_t i = 0; i < 3; i++) {
        shape part = { .n = cuts[i + 1] < t->n ? cuts[i + 1] : t->n };
        memcpy(part.parent, t->parent, sizeof part.parent);
        if (part.n <= cuts[i]) continue;
        test_seq s = i == 0 ? replay_of(before, path, n, &part) : step_of(base, &part);
        for (int32_t j = 0; j < s.n_replay; j++) put_replay(b, j, token[j]);
        s.parity = 1, s.n_fed = cuts[i], s.n_given = i == 0 ? part.n / 2 + 1 : cuts[i];
        run_pass(b, &b->op, &s, was);
        expect_y(b, &want->all, &part, was, cuts[i], what);
    }
    expect_kept(b, base, what, -1);
}

/* Beside another sequence, whose numbers are all NaN. */
static void check_chunked_beside(bench *b, const memory *base, const chunked_truth *want, const shape *t,
                                const int32_t *was)
{
    static const int32_t chain[] = { -1, 0, 1, 2, 3 };
    const test_seq seqs[] = { { .n_past = 600, .n_recent = 30, .n_replay = 4, .path = (const int32_t[]){ 0, 1, 2, 3 },
                                .n_node = 5, .parent = chain }, step_of(base, t) };
    int32_t token[ROWS];
    for (int32_t i = 0; i < 5 + t->n; i++) token[i] = i < 5 ? i : was[i - 5];
    move_memory(b, base, false);
    feed_rows(b, token, 5 + t->n);
    run_step(b, &b->op, seqs, 2);
    uint8_t *got = test_read_raw(&b->y);
    for (int32_t i = 0; i < t->n; i++)
        if (memcmp(got + (size_t)(5 + i) * b->y_bytes, want->all.y + (size_t)was[i] * b->y_bytes, b->y_bytes) != 0)
            fail_msg("%s %s: beside another: the output of node %d differs", b->d->name, b->k->name, was[i]);
    free(got);
    expect_kept(b, base, "beside another", -1);
}

/* Rows [n] of y within 1e-5 of each row's largest value: float32 sums in two forms, over 256 states and 154 tokens. */
static void near_rows(const bench *b, const float *want, const float *got, int32_t n, const char *what)
{
    for (int32_t r = 0; r < n; r++) {
        double most = 0, error = 0;
        for (int32_t i = r * b->inner; i < (r + 1) * b->inner; i++) {
            if (!isfinite(got[i])) fail_msg("%s %s: %s: row %d is not finite", b->d->name, b->k->name, what, r);
            most = fmax(most, fabs((double)want[i]));
            error = fmax(error, fabs((double)got[i] - (double)want[i]));
        }
        if (!(error <= 1e-5 * most))
            fail_msg("%s %s: %s: row %d is off by %.2g", b->d->name, b->k->name, what, r, error / most);
    }
}

/* The recurrent form, from the state that prefill left. */
static void check_forms(bench *b, const chunked_truth *want, int32_t n_before, const shape *t, const char *name)
{
    static const int32_t root = -1, path = 0;
    int32_t token[NODES];
    spec_op op = b->op;
    op.u.scan.chunk = 0;
    write_state(b, b->zero_state);
    for (int32_t i = 0; i < n_before; i++) {
        const test_seq step = { .slot = SLOT, .n_node = 1, .parent = &root };
        const test_seq flush = { .slot = SLOT, .parity = 1, .n_replay = 1, .path = &path };
        token[0] = token_before(i);
        run_pass(b, &op, &step, token);
        put_replay(b, 0, token[0]);
        run_pass(b, &op, &flush, NULL);
    }
    for (int32_t i = 0; i < t->n; i++) token[i] = i;
    const test_seq s = { .slot = SLOT, .n_node = t->n, .parent = t->parent };
    run_pass(b, &op, &s, token);
    float *y = test_read_raw(&b->y);
    near_rows(b, y, (const float *)(const void *)want->all.y, t->n, name);
    free(y);
}

/* Chains in front, one after the other, each with some nodes below that the next feeds again (joint attainment). */
static void check_chains(bench *b)
{
    static const int32_t chains[] = { 1, 5, 40, 64, 64, 3, 20, 11, 64, 1, 2, 30 };
    enum { MOST = SPEC_MAX_DEPTH + 1, BELOW = 3 };
    int32_t n = 0, done = 0, token[MOST];
    for (int32_t k = 0; k < N_ELEMENTS(chains); k++) n += chains[k];
    uint8_t *y = malloc((size_t)(n + BELOW) * b->y_bytes);
    memory m = memory_after(b, 21), plain = copy_of(b, &m), want = plain;
    for (int32_t i = 0; i < n + BELOW; i++) {
        step_plainly(b, &plain, i % NODES, y + (size_t)i * b->y_bytes);
        if (i == n - 1) move_memory(b, &plain, true), want = plain;
    }
    move_memory(b, &m, false);
    for (int32_t k = 0; k < N_ELEMENTS(chains); k++) {
        shape t = { .n = chains[k] + BELOW < MOST ? chains[k] + BELOW : MOST };
        for (int32_t i = 0; i < t.n; i++) t.parent[i] = i - 1, token[i] = (done + i) % NODES;
        test_seq s = step_of(&m, &t);
        s.n_advance = chains[k];
        run_pass(b, &b->op, &s, token);
        uint8_t *got = test_read_raw(&b->y);
        if (memcmp(got, y + (size_t)done * b->y_bytes, (size_t)t.n * b->y_bytes) != 0)
            fail_msg("%s %s: chain %d of %d in front: an output differs", b->d->name, b->k->name, k, chains[k]);
        free(got);
        count(&m, 0);
        m.n_past += chains[k], m.n_recent += chains[k], done += chains[k];
    }
    const test_seq fold = { .slot = SLOT, .n_past = m.n_past, .n_recent = m.n_recent };
    run_pass(b, &b->op, &fold, NULL);
    expect_kept(b, &want, "chains in front", n - 1);
    free(plain.bytes);
    free(m.bytes);
    free(y);
}

static int32_t deepest(const shape *t)
{
    int32_t at = 0;
    for (int32_t i = 1; i < t->n; i++)
        if (depth_of(t, i) > depth_of(t, at)) at = i;
    return at;
}

/* A tree after n_before plain steps, of which the last n_replay are a path that a pass replays. */
static void check_chunked(bench *b, const shape *t, int32_t n_before, int32_t n_replay, const char *name,
                         test_random *random)
{
    shape p;
    int32_t was[NODES];
    const memory before = memory_after(b, n_before - n_replay), base = memory_after(b, n_before);
    chunked_truth *want = walk_plainly(b, &base, t);
    for (int32_t i = 0; i < t->n; i++) was[i] = i;
    check_chunked_whole(b, &base, want, t, was, deepest(t), name);
    check_chunked_growing(b, want, &base, &before, t, was, name);
    check_chunked_beside(b, &base, want, t, was);
    check_forms(b, want, n_before, t, name);
    permute(&p, was, t, 0, random);
    check_chunked_whole(b, &base, want, &p, was, p.n - 1, "permuted");
    check_chunked_growing(b, want, &base, &before, &p, was, "permuted");
    free_truth(want, t);
    free(base.bytes);
    free(before.bytes);
}

/* What a step cannot be is refused where the host computes, before anything is written. */
static void check_refusals(bench *b)
{
    static const int32_t chain[] = { -1, 0, 1, 2, 3, 4, 5 }, path[] = { 0, 1, NODES }, back[] = { 0, -1 };
    static const struct {
        const char *what;
        test_seq s;
    } cases[] = {
        { "recent tokens below 0", { .n_past = 50, .n_recent = -1, .n_node = 7 } },
        { "more recent tokens than positions", { .n_past = 8, .n_recent = 9, .n_node = 7 } },
        { "more recent tokens and path than positions", { .n_past = 8, .n_recent = 7, .n_replay = 2, .path = path } },
        { "more recent tokens than the buffers hold", { .n_past = 900, .n_recent = RECENT + 1, .n_node = 7 } },
        { "a chain in front that the buffers do not hold", { .n_past = 900, .n_recent = RECENT - 3, .n_node = 7,
                                                           .n_advance = 4 } },
        { "so many that a sum overflows", { .n_past = 900, .n_recent = INT32_MAX, .n_node = 7, .n_advance = 4 } },
        { "a chain in front that is longer than the tree", { .n_past = 50, .n_node = 7, .n_advance = 8 } },
        { "a path in a later pass", { .n_past = 50, .n_replay = 2, .path = path, .n_node = 7, .n_fed = 3 } },
        { "chunks to fold in a later pass", { .n_past = 50, .n_recent = 32, .n_node = 7, .n_fed = 3 } },
        { "a path of nodes that no cache has", { .n_past = 50, .n_replay = 3, .path = path, .n_node = 7 } },
        { "a path of nodes below 0", { .n_past = 50, .n_replay = 2, .path = back } },
    };
    const memory m = memory_after(b, 20);
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        test_seq s = cases[i].s;
        s.slot = SLOT, s.parent = chain;
        spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
        test_ok(b->d->ops->step_bind(b->q, step), "step_bind");
        if (speci_op_run(b->d->ops, b->q, &b->op, NULL) != SPEC_E_INVALID)
            fail_msg("%s: %s: not refused", b->d->name, cases[i].what);
        free(step);
    }
    expect_kept(b, &m, "refused", -1);
    free(m.bytes);
    const spec_scan_args right = b->op.u.scan;
    const struct {
        int32_t chunk, n_recent_max;
        void *x;
        spec_status status;
    } ops[] = { { 8, RECENT, right.recent_x, SPEC_E_UNSUPPORTED }, { -1, RECENT, right.recent_x, SPEC_E_UNSUPPORTED },
                { SPEC_CHUNK, 2 * SPEC_CHUNK, right.recent_x, SPEC_E_INVALID },
                { SPEC_CHUNK, -RECENT, right.recent_x, SPEC_E_INVALID }, { SPEC_CHUNK, RECENT, NULL, SPEC_E_INVALID } };
    for (int32_t i = 0; i < N_ELEMENTS(ops); i++) {
        b->op.u.scan.chunk = ops[i].chunk, b->op.u.scan.n_recent_max = ops[i].n_recent_max, b->op.u.scan.recent_x = ops[i].x;
        assert_int_equal(speci_op_supports(b->d->ops, b->d->dev, &b->op), ops[i].status);
    }
    b->op.u.scan = right;
    b->op.u.scan.node_state = b->state.data;
    assert_int_equal(speci_op_supports(b->d->ops, b->d->dev, &b->op), SPEC_E_UNSUPPORTED);
    b->op.u.scan = right;
}

static void each_chunked(test_device *d)
{
    static const int32_t n_before[] = { 0, 31, 16, 5, 47, 90, 20 }, n_replay[] = { 0, 1, 12, 5, 31, 64, 7 };
    test_random random = { 6 };
    assert_int_equal(N_ELEMENTS(n_before), N_ELEMENTS(growths));
    assert_int_equal(N_ELEMENTS(n_replay), N_ELEMENTS(growths));
    for (int32_t i = 0; i < N_ELEMENTS(chunked); i++) {
        bench b;
        shape t;
        open_bench(&b, d, &chunked[i], true);
        const bool can = test_can(d, chunked[i].name, &b.op), large = b.inner > 1000;
        for (int32_t g = 0; can && g < N_ELEMENTS(growths); g++) {
            if (large && g != 2 && g != 4) continue; /* deep ones */
            grow(&t, g, large ? 100 - g : g == 0 ? 64 : NODES, &random);
            check_chunked(&b, &t, n_before[g], n_replay[g], growths[g].name, &random);
        }
        if (can) check_chains(&b);
        if (can && i == 0 && strncmp(d->name, "cpu", 3) == 0) check_refusals(&b);
        b.op.u.scan.a_per_state = 1;
        assert_int_equal(speci_op_supports(d->ops, d->dev, &b.op), SPEC_E_UNSUPPORTED);
        close_bench(&b);
    }
}

static void test_chunked(void **state)
{
    (void)state;
    test_each_device(each_chunked);
}

/* What a tree over chunks' ends leaves behind on `name` with so many threads: its outputs and the memory; free(). */
static uint8_t *with_threads(const char *name, int32_t n_thread, const scan_kind *k, size_t *bytes)
{
    test_device d;
    test_random random = { 7 };
    bench b;
    shape t;
    int32_t token[NODES], path[SPEC_MAX_DEPTH + 1];
    assert_true(test_open(&d, name, n_thread));
    open_bench(&b, &d, k, true);
    grow(&t, 2, 100, &random);
    for (int32_t i = 0; i < t.n; i++) token[i] = i;
    memory m = memory_after(&b, 29);
    const test_seq s = step_of(&m, &t);
    const int32_t n = test_path(&s, 50, path);
    run_pass(&b, &b.op, &s, token);
    uint8_t *y = test_read_raw(&b.y);
    for (int32_t j = 0; j < n; j++) put_replay(&b, j, path[j]);
    const test_seq flush = replay_of(&m, path, n, NULL);
    run_pass(&b, &b.op, &flush, NULL);
    move_memory(&b, &m, true);
    const size_t y_bytes = (size_t)t.n * b.y_bytes;
    *bytes = y_bytes + memory_bytes(&b);
    uint8_t *out = malloc(*bytes);
    memcpy(out, y, y_bytes);
    memcpy(out + y_bytes, m.bytes, memory_bytes(&b));
    free(y);
    free(m.bytes);
    close_bench(&b);
    test_close(&d);
    return out;
}

static void each_threads(test_device *d)
{
    static const int32_t threads[] = { 2, 3, 7, 16 };
    char name[96];
    if (strncmp(d->name, "cpu", 3) != 0) return;
    snprintf(name, sizeof name, "%s", d->name);
    for (int32_t i = 0; i < N_ELEMENTS(chunked); i++) {
        size_t n, n_got;
        uint8_t *want = with_threads(name, 1, &chunked[i], &n);
        for (int32_t k = 0; k < N_ELEMENTS(threads); k++) {
            uint8_t *got = with_threads(name, threads[k], &chunked[i], &n_got);
            if (n != n_got || memcmp(got, want, n) != 0)
                fail_msg("%s %s: %d threads leave other bits than one", name, chunked[i].name, threads[k]);
            free(got);
        }
        free(want);
    }
}

static void test_threads(void **state)
{
    (void)state;
    test_each_device(each_threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_traversal), cmocka_unit_test(test_trees),
                                        cmocka_unit_test(test_chunked), cmocka_unit_test(test_threads) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
