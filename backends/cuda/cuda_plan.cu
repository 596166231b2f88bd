/* cuda_plan.cu - a plan made ready: its operations prepared (cuda_prepare.cu), captured as a graph per shape, and replayed.
 * The graph holds the launches that the walk makes for that shape, so the bits are the same. Its first kernel has the step
 * block as a parameter, and puts it to its fixed address; a block too large for that is copied there before the launch,
 * outside the graph. Its last one takes the rows' tokens from what the head has found, where these are asked for: an operation
 * behind a graph begins 2 us behind its end. A shape is walked when it is met for the first time
 * (kernels are then loaded) and captured the second time; where capture fails it is walked for good. */
#include <string.h>

#include "backends/cuda/cuda.cuh"

/* Graphs of a plan, and so many of them by plan_warm: what 32 sequences with trees of 16 nodes meet. One of 360 operations is captured
 * in 2 to 6 ms. */
enum { PLAN_GRAPHS = 512, PLAN_WARM = 320 };

struct plan_graph {
    cuda_shape shape;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t step; /* of a step that fits, its first kernel */
    bool walk;            /* capture failed */
};

struct spec_prepared {
    spec_plan plan; /* without operations */
    cuda_op *ops;   /* [plan.n_op], and one of no kind behind them; the layers of kv_commit are copies */
    bool captures, has_attention, has_commit;
    const cuda_op *head;    /* the product whose rows' largest a pass can find, or NULL */
    const cuda_op *states;  /* the first scan of a decay per state, or NULL */
    plan_graph graphs[PLAN_GRAPHS];
    int32_t n_graph;
};

/* Does the first operation of a pass of such a shape wait before it lets others be? */
static bool begins_waiting(const spec_queue *q, const spec_prepared *p)
{
    const cuda_op *o = p->ops;
    if (o->op.kind == SPEC_OP_KV_COMMIT && !q->shape.moves) o++;
    return o->op.kind == SPEC_OP_KV_COMMIT || o->op.kind == SPEC_OP_EMBED;
}
/* Has it a list of steps, which is made in front of it and waits first? */
static bool has_list(const spec_queue *q, const spec_prepared *p)
{
    return p->states && speci_cuda_lists_steps(q, &p->states->op.u.scan);
}

/* branches: of a graph that is captured, or NULL: one operation behind the other. */
static spec_status walk(spec_queue *q, const spec_prepared *p, cuda_branches *branches)
{
    cuda_pass pass = {};
    if (q->shape.finds) pass.head = p->head, pass.best = q->best;
    spec_status status = SPEC_OK;
    if (has_list(q, p)) status = speci_cuda_list_steps(q, &p->states->op.u.scan, begins_waiting(q, p), &pass.steps);
    for (const cuda_op *o = p->ops, *const end = o + p->plan.n_op; o < end && status == SPEC_OK;) {
        if (q->shape.no_head && o->op.head) {
            o++;
            continue;
        }
        if (branches) speci_cuda_branch_take(q, branches, &o->op);
        pass.reader = o[1].reader;
        const bool both = o->fusion && o->fusion->run(q, o, &pass, &status);
        pass.reader = o->reader;
        if (!both) status = speci_cuda_kinds[o->op.kind].run(q, o, &pass);
        pass.in = pass.out, pass.out = {};
        o += both ? 2 : 1;
    }
    return status == SPEC_OK && q->shape.finds ? speci_cuda_tokens(q) : status;
}

static void graph_free(plan_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    if (g->graph) (void)cudaGraphDestroy(g->graph);
    g->exec = NULL, g->graph = NULL;
}

static spec_status walk_branches(spec_queue *q, const spec_prepared *p, cuda_branches *branches)
{
    SPEC_TRY(speci_cuda_branches_open(q, branches));
    const spec_status status = walk(q, p, branches), joined = speci_cuda_branches_join(q, branches);
    return status == SPEC_OK ? joined : status;
}

/* The launches of a step and of the operations behind it. */
static spec_status walk_captured(spec_queue *q, const spec_prepared *p, cuda_branches *branches)
{
    cuda_step none = {};
    if (q->shape.fits) SPEC_TRY(speci_cuda_step_launch(q, &none));
    return q->shape.no_row ? walk_branches(q, p, branches) : walk(q, p, NULL);
}

/* g->exec stays NULL when the plan cannot be captured: not an error. */
static void capture(spec_queue *q, const spec_prepared *p, plan_graph *g)
{
    /* relaxed: other threads may allocate meanwhile */
    if (cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    cuda_branches branches = {};
    const spec_status status = walk_captured(q, p, &branches);
    const cudaError_t ended = cudaStreamEndCapture(q->stream, &g->graph);
    speci_cuda_branches_close(&branches);
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
    if (!p->captures) return NULL;
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

/* A copy of the layers for the plan's own operation. */
static spec_status own_layers(const spec_host *h, spec_kv_commit_args *a)
{
    if (a->n_layer <= 0) return SPEC_OK;
    const spec_kv *given = a->layers;
    spec_kv *layers = (spec_kv *)h->alloc(h, (size_t)a->n_layer, sizeof *layers);
    a->layers = layers;
    if (!layers) return SPEC_E_NOMEM;
    memcpy(layers, given, (size_t)a->n_layer * sizeof *layers);
    return SPEC_OK;
}

/* Can its pass find the largest of the rows that it makes? Of a pass that begins with an embedding, which sets them to 0. */
static bool can_find(const spec_plan *plan, const spec_op *op)
{
    const spec_linear_args *a = &op->u.linear;
    bool embeds = false;
    for (int32_t i = 0; i < plan->n_op; i++) embeds = embeds || plan->ops[i].kind == SPEC_OP_EMBED;
    return embeds && plan->phase == SPEC_PHASE_DECODE && op->kind == SPEC_OP_LINEAR && op->head && !a->glu && !a->add &&
           a->y.dtype == SPEC_DTYPE_F32;
}

static spec_status take_plan(spec_prepared *p, const spec_queue *q, const spec_plan *plan)
{
    const spec_host *h = q->dev->host;
    p->plan = *plan;
    p->plan.ops = NULL, p->plan.n_op = 0; /* counts up, for plan_free */
    p->ops = (cuda_op *)h->alloc(h, (size_t)plan->n_op + 1, sizeof *p->ops);
    if (!p->ops) return SPEC_E_NOMEM;
    speci_cuda_prepare(q, plan, p->ops);
    p->ops[plan->n_op].op.kind = SPEC_OP_N;
    for (int32_t i = 0; i < plan->n_op; i++) {
        cuda_op *o = &p->ops[i];
        p->has_attention = p->has_attention || o->op.kind == SPEC_OP_ATTENTION;
        p->has_commit = p->has_commit || o->op.kind == SPEC_OP_KV_COMMIT;
        if (!p->states && o->op.kind == SPEC_OP_SCAN && o->op.u.scan.a_per_state) p->states = o;
        if (can_find(plan, &o->op)) p->head = o;
        if (o->op.kind == SPEC_OP_KV_COMMIT) SPEC_TRY(own_layers(h, &o->op.u.kv_commit));
        p->plan.n_op = i + 1;
    }
    return SPEC_OK;
}

spec_status speci_cuda_plan_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan, int32_t capture)
{
    const spec_host *h = q->dev->host;
    *out = NULL;
    for (int32_t i = 0; i < plan->n_op; i++) SPEC_TRY(speci_cuda_supports(q->dev, &plan->ops[i]));
    spec_prepared *p = (spec_prepared *)h->alloc(h, 1, sizeof *p);
    if (!p) return SPEC_E_NOMEM;
    p->captures = capture != 0;
    const spec_status status = take_plan(p, q, plan);
    if (status == SPEC_OK) *out = p;
    else speci_cuda_plan_free(q, p);
    return status;
}

/* Can the pass end with these tokens? */
static bool finds_tokens(const spec_queue *q, const spec_prepared *p, const spec_argmax_args *a)
{
    const spec_linear_args *head = p->head ? &p->head->op.u.linear : NULL;
    return a && head && a->logits == head->y.data && a->ld == head->y.ld && a->n_vocab == head->n_out &&
           a->n_row <= q->n_row_run && a->n_row <= q->row_cap && q->shape.fits && !q->shape.no_head;
}

static spec_status run_pass(spec_queue *q, spec_prepared *p, const spec_step_block *block, const cuda_tokens &tokens)
{
    const plan_graph *g = find_graph(q, p);
    if (!g || !g->exec || !g->step) SPEC_TRY(speci_cuda_step_send(q, block, tokens));
    if (!g || !g->exec) return walk(q, p, NULL);
    if (g->step) {
        cuda_step step;
        cuda_step_of(&step, block, tokens, begins_waiting(q, p) || has_list(q, p));
        SPEC_TRY(speci_cuda_step_update(q, g->exec, g->step, &step));
    }
    const cudaError_t e = cudaGraphLaunch(g->exec, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "cudaGraphLaunch");
}

/* The step's shape, as the plan sees it. */
static spec_status shape_of(spec_queue *q, const spec_prepared *p, const spec_step_block *block)
{
    if (block->phase != p->plan.phase || block->n_row_run > p->plan.n_row_max || block->n_seq > p->plan.n_seq_max)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda: a step of phase %d, %d rows, %d sequences; the plan has %d, %d, %d",
                                  block->phase, block->n_row_run, block->n_seq, p->plan.phase, p->plan.n_row_max,
                                  p->plan.n_seq_max);
    SPEC_TRY(speci_cuda_step_shape(q, block));
    /* Only attention in decode passes asks for the context's length. */
    if (!p->has_attention || block->phase == SPEC_PHASE_PREFILL) q->shape.splits = 1;
    if (!p->has_commit) q->shape.moves = 0;
    if (!p->states) q->shape.grows = 0; /* nor does another operation ask whether a tree grows */
    return SPEC_OK;
}

spec_status speci_cuda_plan_run(spec_queue *q, spec_prepared *p, const spec_step_block *block, const spec_argmax_args *argmax)
{
    SPEC_TRY(shape_of(q, p, block));
    cuda_tokens tokens = {};
    q->shape.finds = finds_tokens(q, p, argmax);
    if (q->shape.finds) SPEC_TRY(speci_cuda_tokens_of(q, argmax, &tokens));
    SPEC_TRY(run_pass(q, p, block, tokens));
    return argmax && !q->shape.finds ? speci_cuda_argmax(q, argmax) : SPEC_OK;
}

/* Kernels are loaded by a first pass and captured with the second, for each shape by itself: with and without a path to move
 * and rows to find the largest of, or, with neither, as a level of a growing tree; in short contexts and those of one split. A
 * longer context's shape is met once while it doubles. What a shape says beyond the step is room: kernels read from the step
 * what there is. */
spec_status speci_cuda_plan_warm(spec_queue *q, spec_prepared *p, const spec_step_block *block)
{
    SPEC_TRY(shape_of(q, p, block));
    const cuda_shape given = q->shape;
    const int moves = p->has_commit ? 2 : 1, finds = p->head && given.fits ? 2 : 1, longer = p->has_attention ? 2 : 1;
    const int kinds = moves * finds + (p->states != NULL);
    for (int i = 0; i < 2 * kinds * longer; i++) {
        const int kind = i / 2 % kinds;
        if (p->n_graph >= PLAN_WARM) break; /* what a session meets has room as well */
        q->shape = given;
        q->shape.moves = kind % moves, q->shape.finds = kind / moves % finds, q->shape.grows = kind == moves * finds;
        if (i / 2 >= kinds && given.splits == 0) q->shape.splits = 1;
        SPEC_TRY(run_pass(q, p, block, cuda_tokens()));
    }
    return SPEC_OK;
}

void speci_cuda_plan_free(spec_queue *q, spec_prepared *p)
{
    if (!p) return;
    const spec_host *h = q->dev->host;
    (void)cudaSetDevice(q->dev->ordinal);
    for (int32_t i = 0; i < p->n_graph; i++) graph_free(&p->graphs[i]);
    for (int32_t i = 0; p->ops && i < p->plan.n_op; i++)
        if (p->ops[i].op.kind == SPEC_OP_KV_COMMIT && p->ops[i].op.u.kv_commit.n_layer > 0)
            h->free(h, (void *)p->ops[i].op.u.kv_commit.layers);
    h->free(h, p->ops);
    h->free(h, p);
}
