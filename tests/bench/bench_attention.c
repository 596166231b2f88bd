/* bench_attention.c - attention over trees alone, of sizes beyond a session's: does the order of the nodes matter, and
 * what would a kernel do that knows no tree?
 *
 *   insertion, depth-first, heavy-path   a random tree in these orders (algorithms.md 5.3)
 *   dense                                as many rows, each attending all rows before it: a prefill pass
 *
 * blocks: of 32 x 32 nodes of the mask that are not empty, what a block-sparse kernel works on; pairs: of a query and a
 * key, what must be done at least. median_ms: one call with one look. queued_ms: calls one after the other before one
 * look. The floor is K, V, the queries and the output once. */
#include <math.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { HEADS = 32, DIM = 128, MOST_NODES = 2048, BLOCK = 32, WARM = 2, QUEUED = 16 };

typedef struct attention {
    bench *b;
    spec_queue *q;
    spec_dtype dtype;
    int32_t nodes, context;
    char *memory; /* on the device: K, V, queries, output */
    size_t kv_bytes, bytes;
    spec_step_block *block;
    double *ms;
} attention;

/* --- the operation --- */

static int32_t n_page(const attention *t) { return (t->context + MOST_NODES) / SPEC_PAGE + 1; }

static spec_op operation(const attention *t)
{
    char *v = t->memory + t->kv_bytes, *q = v + t->kv_bytes;
    const spec_kv kv = { .k = t->memory, .v = v, .dtype = t->dtype, .n_page = n_page(t), .n_kv_head = HEADS,
                         .head_dim = DIM };
    return (spec_op){ .kind = SPEC_OP_ATTENTION,
                      .u.attention = { .q = { .data = q, .dtype = SPEC_DTYPE_F32, .ld = HEADS * DIM },
                                       .n_head = HEADS, .scale = 1 / sqrtf((float)DIM), .kv = kv,
                                       .y = { .data = q + (size_t)MOST_NODES * HEADS * DIM * sizeof(float),
                                              .dtype = t->dtype, .ld = HEADS * DIM } } };
}

static spec_status open_queue(attention *t)
{
    const spec_backend *be = t->b->be;
    const size_t width = t->dtype == SPEC_DTYPE_F32 ? 4 : 2, row = HEADS * DIM;
    void *at = NULL;
    t->kv_bytes = (size_t)n_page(t) * SPEC_PAGE * row * width;
    t->bytes = 2 * t->kv_bytes + (size_t)MOST_NODES * row * (sizeof(float) + width);
    SPEC_TRY(be->ops->alloc(be->dev, &at, t->bytes));
    t->memory = at;
    const spec_op op = operation(t);
    SPEC_TRY(speci_op_supports(be->ops, be->dev, &op));
    spec_plan plans[2];
    for (int32_t phase = 0; phase < 2; phase++)
        plans[phase] = (spec_plan){ .ops = &op, .n_op = 1, .phase = phase, .n_row_max = MOST_NODES, .n_seq_max = 1,
                                    .n_node_max = MOST_NODES, .n_kv_max = n_page(t) * SPEC_PAGE };
    SPEC_TRY(be->ops->queue_open(be->dev, &t->q, plans, 2, 0));
    return be->ops->zero(t->q, &(spec_range){ t->memory, t->bytes }, 1);
}

/* --- the step --- */

static size_t block_bytes(const attention *t)
{
    return sizeof(spec_step_block) + sizeof(spec_step_seq) +
           MOST_NODES * (sizeof(spec_step_node) + sizeof(int32_t) + sizeof(spec_traversal_node)) +
           (size_t)n_page(t) * sizeof(int32_t);
}

/* One sequence whose new nodes are the tree's. */
static spec_status bind(attention *t, const spec_tree *tree, int32_t phase)
{
    spec_step_block *b = t->block;
    memset(b, 0, block_bytes(t));
    *b = (spec_step_block){ .phase = phase, .n_seq = 1, .n_row = tree->n, .n_row_run = tree->n };
    b->off_seq = (int32_t)sizeof *b;
    b->off_node = b->off_seq + (int32_t)sizeof(spec_step_seq);
    b->off_row_seq = b->off_path = b->off_node + tree->n * (int32_t)sizeof(spec_step_node);
    b->off_traversal = b->off_row_seq + tree->n * (int32_t)sizeof(int32_t); /* row_seq: all of sequence 0 */
    b->off_page = b->off_traversal + tree->n * (int32_t)sizeof(spec_traversal_node);
    b->bytes = b->off_page + n_page(t) * (int32_t)sizeof(int32_t);
    spec_step_node *nodes = (spec_step_node *)((char *)b + b->off_node);
    int32_t *pages = (int32_t *)((char *)b + b->off_page);
    *(spec_step_seq *)((char *)b + b->off_seq) =
        (spec_step_seq){ .n_past = t->context, .n_row = tree->n, .n_given = tree->n };
    for (int32_t i = 0; i < tree->n; i++) {
        const int32_t up = tree->parent[i];
        nodes[i] = (spec_step_node){ .parent = up, .depth = up < 0 ? 0 : nodes[up].depth + 1 };
        if (t->context + nodes[i].depth + 1 > b->n_kv) b->n_kv = t->context + nodes[i].depth + 1;
    }
    for (int32_t i = 0; i < n_page(t); i++) pages[i] = i;
    return t->b->be->ops->step_bind(t->q, b);
}

static int64_t n_pair(const attention *t, const spec_tree *tree)
{
    const spec_step_node *nodes = spec_step_nodes(t->block);
    int64_t n = (int64_t)tree->n * t->context;
    for (int32_t i = 0; i < tree->n; i++) n += nodes[i].depth + 1;
    return n;
}

/* --- the mode --- */

static spec_status call(attention *t)
{
    const spec_op op = operation(t);
    return speci_op_run(t->b->be->ops, t->q, &op, NULL);
}

static spec_status times(attention *t, double *queued_ms)
{
    const spec_backend_ops *ops = t->b->be->ops;
    for (int32_t i = -WARM; i < t->b->o.repeats; i++) {
        SPEC_TRY(ops->sync(t->q));
        const double start = speci_now_ms();
        SPEC_TRY(call(t));
        SPEC_TRY(ops->sync(t->q));
        if (i >= 0) t->ms[i] = speci_now_ms() - start;
    }
    const double start = speci_now_ms();
    for (int32_t i = 0; i < QUEUED; i++) SPEC_TRY(call(t));
    SPEC_TRY(ops->sync(t->q));
    *queued_ms = (speci_now_ms() - start) / QUEUED;
    return SPEC_OK;
}

/* *dense: queued_ms of the dense form, which comes first and sets it. */
static spec_status measure(attention *t, const char *what, const spec_tree *tree, double *dense)
{
    const bool is_dense = strcmp(what, "dense") == 0;
    const double width = t->dtype == SPEC_DTYPE_F32 ? 4 : 2, row = HEADS * DIM;
    double queued_ms;
    SPEC_TRY(bind(t, tree, is_dense ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE));
    SPEC_TRY(times(t, &queued_ms));
    if (is_dense) *dense = queued_ms;
    json_t *r = bench_record(t->b, "attention");
    json_object_set_new(r, "dtype", json_string(spec_dtype_name(t->dtype)));
    bench_text(r, "what", what);
    bench_count(r, "nodes", tree->n);
    bench_text(r, "tree", is_dense ? "chain" : "random");
    bench_count(r, "context", t->context);
    bench_count(r, "blocks", spec_tree_blocks(tree, BLOCK));
    bench_count(r, "pairs", n_pair(t, tree));
    bench_times(r, t->ms, t->b->o.repeats);
    bench_number(r, "queued_ms", queued_ms);
    bench_number(r, "over_dense", queued_ms / *dense);
    const double bytes = 2 * (t->context + tree->n) * row * width + tree->n * row * (sizeof(float) + width);
    return bench_emit(t->b, r, 1e3 * bytes / t->b->bandwidth);
}

static spec_status in_order(attention *t, const char *what, spec_tree_order_kind how, const spec_tree *tree,
                            spec_tree *out, double *dense)
{
    int32_t *order = speci_alloc(NULL, 4 * MOST_NODES, sizeof *order);
    if (!order) return SPEC_E_NOMEM;
    spec_tree_order(tree, order, how, order + MOST_NODES);
    spec_status status = spec_tree_permute(tree, out, order);
    speci_free(NULL, order);
    return status == SPEC_OK ? measure(t, what, out, dense) : status;
}

static spec_status each_order(attention *t, int32_t n, spec_tree *tree, spec_tree *out)
{
    double dense;
    tree->n = 0;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(tree, i - 1, 1, 1);
    SPEC_TRY(measure(t, "dense", tree, &dense));
    SPEC_TRY(bench_tree(tree, "random", n));
    SPEC_TRY(measure(t, "insertion", tree, &dense));
    SPEC_TRY(in_order(t, "depth-first", SPEC_ORDER_DEPTH_FIRST, tree, out, &dense));
    return in_order(t, "heavy-path", SPEC_ORDER_HEAVY_PATH, tree, out, &dense);
}

static spec_status run(attention *t)
{
    int32_t nodes[16], n;
    spec_tree tree, out;
    SPEC_TRY(bench_ints(nodes, 16, &n, t->b->o.nodes ? t->b->o.nodes : "64,256,2048", "--nodes"));
    SPEC_TRY(spec_tree_alloc(&tree, MOST_NODES, NULL));
    spec_status status = spec_tree_alloc(&out, MOST_NODES, NULL);
    for (int32_t i = 0; status == SPEC_OK && i < n; i++)
        status = nodes[i] <= MOST_NODES ? each_order(t, nodes[i], &tree, &out)
                                        : speci_fail(SPEC_E_INVALID, "--nodes: at most %d", MOST_NODES);
    spec_tree_free(&out, NULL);
    spec_tree_free(&tree, NULL);
    return status;
}

spec_status bench_attention(bench *b)
{
    attention t = { .b = b, .context = b->o.context ? b->o.context : 128,
                    .dtype = b->o.dtype && strcmp(b->o.dtype, "f32") == 0 ? SPEC_DTYPE_F32 : SPEC_DTYPE_BF16 };
    t.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t.ms);
    t.block = speci_alloc(NULL, 1, block_bytes(&t));
    spec_status status = t.ms && t.block ? open_queue(&t) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = run(&t);
    if (t.q) b->be->ops->sync(t.q);
    if (t.q) b->be->ops->queue_close(t.q);
    if (t.memory) b->be->ops->free(b->be->dev, t.memory, t.bytes);
    speci_free(NULL, t.block);
    speci_free(NULL, t.ms);
    return status;
}
