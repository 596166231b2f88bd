/* cuda_plan.cu - a plan made ready: captured as a graph per shape, and replayed.
 * The graph holds the launches that the walk makes for that shape, so the bits are the same. Its first kernel has the step
 * block as a parameter, and puts it to its fixed address; a block too large for that is copied there before the launch,
 * outside the graph. Its last one finds the rows' tokens, where these are asked for and their largest were noted: an operation
 * behind a graph begins 2 us behind its end. A shape is walked when it is met for the first time
 * (kernels are then loaded) and captured the second time; where capture fails it is walked for good. */
#include <string.h>

#include "backends/cuda/scan/cuda_scan.cuh"

enum { PLAN_GRAPHS = 64 };

struct plan_graph {
    cuda_shape shape;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t step; /* of a step that fits, its first kernel */
    bool walk;            /* capture failed */
};

struct spec_prepared {
    spec_plan plan; /* ops and the layers of kv_commit are copies */
    spec_op *ops;
    bool has_attention, has_commit;
    const uint64_t *best; /* what the last product notes, or NULL */
    plan_graph graphs[PLAN_GRAPHS];
    int32_t n_graph;
};

static spec_status run_op(spec_queue *q, const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_EMBED: return speci_cuda_embed(q, &op->u.embed);
    case SPEC_OP_NORM: return speci_cuda_norm(q, &op->u.norm);
    case SPEC_OP_LINEAR: return speci_cuda_linear(q, &op->u.linear);
    case SPEC_OP_KV_COMMIT: return speci_cuda_kv_commit(q, &op->u.kv_commit);
    case SPEC_OP_ROPE_KV: return speci_cuda_rope_kv(q, &op->u.rope_kv);
    case SPEC_OP_ATTENTION: return speci_cuda_attention(q, &op->u.attention);
    case SPEC_OP_CONV: return speci_cuda_conv(q, &op->u.conv);
    case SPEC_OP_SCAN: return speci_cuda_scan(q, &op->u.scan);
    case SPEC_OP_KEEP: return speci_cuda_keep(q, &op->u.keep);
    case SPEC_OP_N: break;
    }
    return q->dev->host->fail(SPEC_E_UNSUPPORTED, "cuda: a plan holds an operation of unknown kind %d", (int)op->kind);
}

spec_status speci_cuda_check(spec_device *dev, const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_EMBED: return speci_cuda_check_embed(dev, &op->u.embed);
    case SPEC_OP_NORM: return speci_cuda_check_norm(dev, &op->u.norm);
    case SPEC_OP_LINEAR: return speci_cuda_check_linear(dev, &op->u.linear);
    case SPEC_OP_KV_COMMIT: return speci_cuda_check_kv_commit(dev, &op->u.kv_commit);
    case SPEC_OP_ROPE_KV: return speci_cuda_check_rope_kv(dev, &op->u.rope_kv);
    case SPEC_OP_ATTENTION: return speci_cuda_check_attention(dev, &op->u.attention);
    case SPEC_OP_CONV: return speci_cuda_check_conv(dev, &op->u.conv);
    case SPEC_OP_SCAN: return speci_cuda_check_scan(dev, &op->u.scan);
    case SPEC_OP_KEEP: return speci_cuda_check_keep(dev, &op->u.keep);
    case SPEC_OP_N: break;
    }
    return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda: operation of unknown kind %d", (int)op->kind);
}

/* Two operations by one kernel, a product and the scan that takes its dt, a product and the convolution of what it makes, or
 * what makes a row and its deferred norm; false: nothing was launched. */
static bool run_two(spec_queue *q, const spec_op *op, const spec_op *next, const spec_op *behind, spec_status *status)
{
    if (op->kind == SPEC_OP_LINEAR && next->kind == SPEC_OP_SCAN && !op->u.linear.best)
        return speci_cuda_scan_dt(q, &op->u.linear, &next->u.scan, status);
    if (op->kind == SPEC_OP_EMBED && next->kind == SPEC_OP_NORM)
        return speci_cuda_embed_norm(q, &op->u.embed, &next->u.norm, status);
    if (op->kind == SPEC_OP_LINEAR && next->kind == SPEC_OP_NORM)
        return speci_cuda_linear_norm(q, &op->u.linear, &next->u.norm, status);
    if (op->kind == SPEC_OP_LINEAR && next->kind == SPEC_OP_CONV)
        return speci_cuda_linear_conv(q, &op->u.linear, &next->u.conv, behind && behind->kind == SPEC_OP_SCAN, status);
    if (op->kind == SPEC_OP_SCAN && next->kind == SPEC_OP_NORM)
        return speci_cuda_scan_norm(q, &op->u.scan, &next->u.norm, status);
    return false;
}

static const spec_linear_args *product(const spec_op *op) { return op && op->kind == SPEC_OP_LINEAR ? &op->u.linear : NULL; }

static spec_status walk(spec_queue *q, const spec_prepared *p)
{
    const spec_op *op = p->ops, *const end = op + p->plan.n_op;
    spec_status status = SPEC_OK;
    while (op < end && status == SPEC_OK) {
        const spec_op *const next = op + 1 < end ? op + 1 : NULL, *const behind = op + 2 < end ? op + 2 : NULL;
        q->next = product(behind);
        const bool both = next && run_two(q, op, next, behind, &status);
        q->next = product(next);
        if (!both) status = run_op(q, op);
        q->arranged_in = q->arranged_out, q->arranged_out = {};
        op += both ? 2 : 1;
    }
    q->arranged_in.of = NULL, q->next = NULL;
    return status == SPEC_OK && q->shape.finds ? speci_cuda_tokens(q, p->best) : status;
}

static void graph_free(plan_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    if (g->graph) (void)cudaGraphDestroy(g->graph);
    g->exec = NULL, g->graph = NULL;
}

/* Does the first kernel of a pass of such a shape wait before it lets others be? */
static bool begins_waiting(const spec_queue *q, const spec_prepared *p)
{
    const spec_op *op = p->ops, *const end = op + p->plan.n_op;
    if (op < end && op->kind == SPEC_OP_KV_COMMIT && !q->shape.moves) op++;
    return op < end && (op->kind == SPEC_OP_KV_COMMIT || op->kind == SPEC_OP_EMBED);
}

/* The launches of a step and of the operations behind it. */
static spec_status walk_captured(spec_queue *q, const spec_prepared *p)
{
    cuda_step none = {};
    if (q->shape.fits) SPEC_TRY(speci_cuda_step_launch(q, &none));
    return walk(q, p);
}

/* g->exec stays NULL when the plan cannot be captured: not an error. */
static void capture(spec_queue *q, const spec_prepared *p, plan_graph *g)
{
    /* relaxed: other threads may allocate meanwhile */
    if (cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    const spec_status status = walk_captured(q, p);
    const cudaError_t ended = cudaStreamEndCapture(q->stream, &g->graph);
    size_t n_root = 1;
    bool good = status == SPEC_OK && ended == cudaSuccess && g->graph;
    if (good && q->shape.fits)
        good = cudaGraphGetRootNodes(g->graph, &g->step, &n_root) == cudaSuccess && n_root == 1;
    if (!good || cudaGraphInstantiate(&g->exec, g->graph, 0) != cudaSuccess) g->exec = NULL, graph_free(g);
    (void)cudaGetLastError();
}

/* The graph of the queue's shape, or NULL: walk. */
static plan_graph *find_graph(spec_queue *q, spec_prepared *p)
{
    for (int32_t i = 0; i < p->n_graph; i++) {
        plan_graph *g = &p->graphs[i];
        if (memcmp(&g->shape, &q->shape, sizeof g->shape) != 0) continue;
        if (!g->exec && !g->walk) {
            capture(q, p, g);
            g->walk = !g->exec;
            if (g->walk)
                q->dev->host->log(q->dev->host, SPEC_LOG_WARN, "cuda: a plan could not be captured; it runs uncaptured");
        }
        return g;
    }
    if (p->n_graph < PLAN_GRAPHS) {
        plan_graph *g = &p->graphs[p->n_graph++];
        *g = plan_graph();
        g->shape = q->shape;
    }
    return NULL;
}

/* ------------------------------------------------------------------------- the table's --- */

spec_status speci_cuda_plan_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan)
{
    const spec_host *h = q->dev->host;
    *out = NULL;
    for (int32_t i = 0; i < plan->n_op; i++) SPEC_TRY(speci_cuda_check(q->dev, &plan->ops[i]));
    spec_prepared *p = (spec_prepared *)h->alloc(h, 1, sizeof *p);
    if (!p) return SPEC_E_NOMEM;
    p->plan = *plan;
    p->plan.n_op = 0; /* counts up, for plan_free */
    p->ops = (spec_op *)h->alloc(h, (size_t)plan->n_op, sizeof *p->ops);
    if (!p->ops) {
        speci_cuda_plan_free(q, p);
        return SPEC_E_NOMEM;
    }
    for (int32_t i = 0; i < plan->n_op; i++) {
        spec_op *op = &p->ops[i];
        *op = plan->ops[i];
        p->has_attention = p->has_attention || op->kind == SPEC_OP_ATTENTION;
        p->has_commit = p->has_commit || op->kind == SPEC_OP_KV_COMMIT;
        p->best = op->kind == SPEC_OP_LINEAR ? op->u.linear.best : p->best;
        if (op->kind == SPEC_OP_KV_COMMIT && op->u.kv_commit.n_layer > 0) {
            const size_t n = (size_t)op->u.kv_commit.n_layer;
            spec_kv *layers = (spec_kv *)h->alloc(h, n, sizeof *layers);
            if (!layers) {
                speci_cuda_plan_free(q, p);
                return SPEC_E_NOMEM;
            }
            memcpy(layers, op->u.kv_commit.layers, n * sizeof *layers);
            op->u.kv_commit.layers = layers;
        }
        p->plan.n_op = i + 1;
    }
    p->plan.ops = p->ops;
    *out = p;
    return SPEC_OK;
}

/* Can the pass end with these tokens? */
static bool finds_tokens(const spec_queue *q, const spec_prepared *p, const spec_argmax_args *a)
{
    return a && a->best && a->best == p->best && a->n_row <= q->n_row_run && a->n_row <= q->row_cap && q->shape.fits;
}

static spec_status run_pass(spec_queue *q, spec_prepared *p, const spec_step_block *block, const cuda_tokens &tokens)
{
    const plan_graph *g = find_graph(q, p);
    if (!g || !g->exec || !g->step) SPEC_TRY(speci_cuda_step_send(q, block, tokens));
    if (!g || !g->exec) return walk(q, p);
    if (g->step) {
        cuda_step step;
        cuda_step_of(&step, block, tokens, begins_waiting(q, p));
        SPEC_TRY(speci_cuda_step_update(q, g->exec, g->step, &step));
    }
    const cudaError_t e = cudaGraphLaunch(g->exec, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "cudaGraphLaunch");
}

spec_status speci_cuda_plan_run(spec_queue *q, spec_prepared *p, const spec_step_block *block, const spec_argmax_args *argmax)
{
    const spec_host *h = q->dev->host;
    if (block->phase != p->plan.phase || block->n_row_run > p->plan.n_row_max || block->n_seq > p->plan.n_seq_max)
        return h->fail(SPEC_E_INVALID, "cuda: a step of phase %d, %d rows, %d sequences; the plan has %d, %d, %d",
                       block->phase, block->n_row_run, block->n_seq, p->plan.phase, p->plan.n_row_max,
                       p->plan.n_seq_max);
    SPEC_TRY(speci_cuda_step_shape(q, block));
    /* Only attention in decode passes asks for the context's length. */
    if (!p->has_attention || block->phase == SPEC_PHASE_PREFILL) q->shape.splits = 1;
    if (!p->has_commit) q->shape.moves = 0;
    cuda_tokens tokens = {};
    q->shape.finds = finds_tokens(q, p, argmax);
    if (q->shape.finds) SPEC_TRY(speci_cuda_tokens_of(q, argmax, &tokens));
    SPEC_TRY(run_pass(q, p, block, tokens));
    return argmax && !q->shape.finds ? speci_cuda_argmax(q, argmax) : SPEC_OK;
}

void speci_cuda_plan_free(spec_queue *q, spec_prepared *p)
{
    if (!p) return;
    const spec_host *h = q->dev->host;
    (void)cudaSetDevice(q->dev->ordinal);
    for (int32_t i = 0; i < p->n_graph; i++) graph_free(&p->graphs[i]);
    for (int32_t i = 0; p->ops && i < p->plan.n_op; i++)
        if (p->ops[i].kind == SPEC_OP_KV_COMMIT && p->ops[i].u.kv_commit.n_layer > 0)
            h->free(h, (void *)p->ops[i].u.kv_commit.layers);
    h->free(h, p->ops);
    h->free(h, p);
}
