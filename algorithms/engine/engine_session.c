/* engine_session.c - sessions: what they take when they open. */
#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_CTX = 4096 };

/* --- sizes --- */

/* What growing trees takes: the largest of what the drafter's builders ask for. */
typedef struct growth_plan {
    int32_t n_node;    /* of finished trees, root included */
    int32_t n_q;       /* rows of distributions per sequence */
    int32_t pool;      /* of trees while they grow */
    int32_t cap;       /* the same of those that grow on the device */
    int32_t frontier;
    int32_t n_candidate_row;    /* candidates per row that the host looks at; 0 = none */
} growth_plan;

typedef struct session_plan {
    spec_session_params params; /* as the caller gave them */
    spec_lab lab;               /* the same; in place of params.lab */
    int32_t n_ctx, n_seq, n_node;
    int32_t draft_ctx, draft_node;
    growth_plan growth;
    speci_exec_params target, draft;
    size_t p_bytes, q_bytes, grow_bytes, next_bytes;
} session_plan;

static spec_status plan_context(session_plan *s, const spec_model *target, int32_t n_ctx)
{
    if (n_ctx < 0) return speci_fail(SPEC_E_INVALID, "n_ctx is %d", n_ctx);
    if (target->n_ctx > 0 && n_ctx > target->n_ctx)
        return speci_fail(SPEC_E_INVALID, "n_ctx is %d, but the model knows %d positions", n_ctx, target->n_ctx);
    s->n_ctx = n_ctx ? n_ctx : target->n_ctx;
    if (s->n_ctx == 0 && speci_model_attends(target)) s->n_ctx = DEFAULT_CTX;
    return SPEC_OK;
}

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static growth_plan plan_growth(const spec_drafter *d)
{
    growth_plan g = { .n_node = 1 };
    if (!d) return g;
    if (d->n_builder == 0) g.n_node = d->n_draft + 1;
    for (int32_t i = 0; i < d->n_builder; i++) {
        const spec_builder *b = d->builders[i];
        g.n_node = max32(g.n_node, b->info.n_node);
        g.n_q = max32(g.n_q, b->info.n_row);
        g.pool = max32(g.pool, b->n_pool);
        if (speci_builder_is_host_driven(b)) {
            g.n_candidate_row = max32(g.n_candidate_row, b->k);
            continue;
        }
        g.cap = max32(g.cap, b->n_pool);
        /* Levels of a kind that learns change; never beyond its rows. */
        if (b->kind->observe) g.frontier = max32(g.frontier, b->info.n_row);
        for (int32_t l = 0; l < b->info.n_level; l++)
            g.frontier = max32(g.frontier, max32(b->levels[l].n_place, b->levels[l].n_next));
    }
    return g;
}

/* Nodes of the drafter's net: a chain of at most two committed tokens, the second the root, and the nodes that are looked
 * behind. What piles up in steps without a draft it applies by passes of so many (speci_draft_catch_up): not as few as small
 * trees have, unless each of them costs a state. */
static int32_t draft_nodes(const session_plan *s)
{
    enum { PILE = 32 }; /* rows, of all sequences */
    const int32_t n = s->growth.n_q + 1;
    return s->lab.draft_state == SPEC_DRAFT_STATE_PER_NODE ? n : max32(n, PILE / s->n_seq);
}

/* Without attention the positions of the drafter's net have no limit. */
static void plan_draft_net(session_plan *s, const spec_model *model)
{
    s->draft_node = draft_nodes(s);
    const int32_t own = model->n_ctx;
    if (speci_model_attends(model)) {
        s->draft_ctx = own > 0 && (s->n_ctx == 0 || own < s->n_ctx) ? own : s->n_ctx;
        if (s->draft_ctx == 0) s->draft_ctx = DEFAULT_CTX;
    }
    s->draft = (speci_exec_params){ .n_seq = s->n_seq, .n_ctx = s->draft_ctx ? s->draft_ctx : s->n_ctx,
                                   .n_node = s->draft_node,
                                   .recurrent = s->lab.scan == SPEC_SCAN_RECURRENT,
                                   .node_state = s->lab.draft_state == SPEC_DRAFT_STATE_PER_NODE };
}

static spec_status check_choices(const spec_session_params *p, const spec_lab *lab)
{
    if (p->verify != SPEC_VERIFY_AUTO && !speci_verify_find(p->verify))
        return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)p->verify);
    if (p->adapt < SPEC_ADAPT_OFF || p->adapt > SPEC_ADAPT_UCB)
        return speci_fail(SPEC_E_INVALID, "there is no way %d to choose among trees", (int)p->adapt);
    if ((uint32_t)lab->scan > SPEC_SCAN_RECURRENT || (uint32_t)lab->advance > SPEC_ADVANCE_JOINT ||
        (uint32_t)lab->draft_state > SPEC_DRAFT_STATE_PER_NODE)
        return speci_fail(SPEC_E_INVALID, "scan %d, advance %d, draft_state %d: each is 0 or 1", (int)lab->scan,
                          (int)lab->advance, (int)lab->draft_state);
    return SPEC_OK;
}

/* Device memory of growing trees, carved from one block: with base NULL it only measures. */
static size_t carve_growth(spec_grow *g, const session_plan *p, char *base)
{
    *g = (spec_grow){ .n_slot = p->n_seq, .cap = p->growth.cap, .cap_frontier = p->growth.frontier,
                      .cap_feed = p->draft_node + p->growth.frontier };
    const size_t n = (size_t)p->n_seq, place = n * (size_t)g->cap_frontier;
    const size_t bytes[] = { n * (size_t)g->cap * sizeof *g->node, n * sizeof *g->n, place * sizeof *g->frontier,
                             n * (size_t)g->cap_feed * sizeof *g->feed, place * SPEC_MAX_CHILD * sizeof *g->candidate };
    enum { PARTS = sizeof bytes / sizeof *bytes };
    void *at[PARTS];
    size_t end = 0;
    for (size_t i = 0; i < PARTS; i++) {
        at[i] = base ? base + end : NULL;
        end += (bytes[i] + 255) / 256 * 256;
    }
    g->node = at[0], g->n = at[1], g->frontier = at[2], g->feed = at[3], g->candidate = at[4];
    return end;
}

static spec_status plan_session(session_plan *s, const spec_model *target, const spec_drafter *d,
                                const spec_session_params *params)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_session_params"));
    spec_lab lab = SPEC_LAB_INIT;
    SPEC_TRY(speci_params_read(&lab, sizeof lab, p.lab, "spec_lab"));
    SPEC_TRY(check_choices(&p, &lab));
    p.lab = NULL;
    *s = (session_plan){ .params = p, .lab = lab, .n_seq = p.n_seq ? p.n_seq : 1, .growth = plan_growth(d) };
    SPEC_TRY(plan_context(s, target, p.n_ctx));
    s->n_node = p.n_node ? p.n_node : s->growth.n_node;
    if (s->n_seq < 1 || s->n_node < 1 || s->n_node > SPECI_MAX_NODE)
        return speci_fail(SPEC_E_INVALID, "n_seq is %d (at least 1), n_node is %d (1 to %d)", s->n_seq, s->n_node,
                          SPECI_MAX_NODE);
    s->target = (speci_exec_params){ .n_seq = s->n_seq, .n_ctx = s->n_ctx, .n_node = s->n_node,
                                    .recurrent = lab.scan == SPEC_SCAN_RECURRENT,
                                    .joint = lab.advance == SPEC_ADVANCE_JOINT,
                                    .taps = p.taps, .n_tap = p.n_tap };
    const size_t row = (size_t)target->n_vocab * sizeof(float);
    s->p_bytes = (size_t)s->n_seq * (size_t)s->n_node * row;
    if (!s->target.joint && speci_ahead_planned(target->backend->ops, d, &p)) s->next_bytes = (size_t)s->n_seq * sizeof(spec_step_node);
    if (s->growth.n_q > 0 && s->n_node > 1) {
        s->q_bytes = (size_t)s->n_seq * (size_t)s->growth.n_q * row;
        if (d->model) plan_draft_net(s, d->model);
        if (d->model && s->growth.cap > 0) {
            spec_grow g;
            s->grow_bytes = carve_growth(&g, s, NULL);
        }
    }
    const int64_t rows = (int64_t)s->n_seq * max32(s->n_node + 1, s->draft_node);
    if (rows > target->backend->info.row_max)
        return speci_fail(SPEC_E_UNSUPPORTED, "%d sequences of %d nodes are more rows than the backend's %d", s->n_seq,
                          max32(s->n_node + 1, s->draft_node), target->backend->info.row_max);
    return SPEC_OK;
}

/* The nets of a session, and the plans that its queue must be ready for: plans [4]. */
static spec_status plan_nets(speci_exec **net, speci_exec **draft_exec, spec_plan *plans, int32_t *n_plan,
                             const spec_model *target, const spec_drafter *d, const session_plan *p)
{
    *n_plan = 2;
    SPEC_TRY(speci_exec_open(net, target, &p->target));
    speci_exec_plans(*net, plans);
    if (p->draft_node == 0) return SPEC_OK;
    SPEC_TRY(speci_exec_open(draft_exec, d->model, &p->draft));
    speci_exec_plans(*draft_exec, plans + 2);
    *n_plan = 4;
    return SPEC_OK;
}

spec_status spec_session_estimate(spec_memory *out, spec_model *target, spec_drafter *drafter,
                                 const spec_session_params *params)
{
    session_plan p;
    SPEC_TRY(plan_session(&p, target, drafter, params));
    speci_exec *net = NULL, *draft_exec = NULL;
    spec_plan plans[4];
    int32_t n_plan;
    spec_status status = plan_nets(&net, &draft_exec, plans, &n_plan, target, drafter, &p);
    if (status == SPEC_OK) {
        const spec_backend *be = target->backend;
        spec_memory m = { .bytes_model = target->bytes_weights };
        if (drafter && drafter->model && drafter->model != target) m.bytes_model += drafter->model->bytes_weights;
        speci_exec_memory(net, &m);
        if (draft_exec) speci_exec_memory(draft_exec, &m);
        m.bytes_work += p.p_bytes + p.q_bytes + p.grow_bytes + p.next_bytes;
        m.bytes_work += be->ops->queue_bytes(be->dev, plans, n_plan, target->n_vocab);
        status = speci_params_write(out, &m, sizeof m, "spec_memory");
    }
    speci_exec_close(draft_exec);
    speci_exec_close(net);
    return status;
}

/* --- open and close --- */

static void *host_array(spec_session *s, size_t n, size_t size, bool *ok)
{
    void *p = speci_alloc(s->a, n, size);
    if (!p) *ok = false;
    return p;
}

static spec_status alloc_rows(spec_session *s)
{
    algo_rows *r = &s->rows;
    bool ok = true;
    const size_t n_seq = (size_t)s->n_seq, n_row = (size_t)s->n_row;
    const size_t n = n_seq * (size_t)max32(max32(s->n_node, s->n_q), s->draft_node);
    int32_t **ints[] = { &r->src, &r->dst, &r->q_row, &r->candidate, &r->choice, &r->token, &r->slot, &r->place };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) *ints[i] = host_array(s, n, sizeof(int32_t), &ok);
    r->first = host_array(s, n + SPECI_VERIFY_CALLS, sizeof(int32_t), &ok);
    r->u = host_array(s, n, sizeof(float), &ok);
    r->u_last = host_array(s, n, sizeof(float), &ok);
    r->sampling = host_array(s, n, sizeof(spec_sampling), &ok);
    r->key = host_array(s, n, sizeof(uint64_t), &ok);
    s->inputs = host_array(s, n_seq, sizeof(speci_exec_input), &ok);
    s->step_paths = host_array(s, n_row, sizeof(int32_t), &ok);
    s->step_n_path = host_array(s, n_seq, sizeof(int32_t), &ok);
    s->step_token = host_array(s, n_seq, sizeof(int32_t), &ok);
    s->step_trees = host_array(s, n_seq, sizeof(spec_tree *), &ok);
    s->best = host_array(s, 2 * n_row, sizeof(int32_t), &ok); /* with joint attainment, the paths' rows too */
    s->step_ids = host_array(s, n_seq * ((size_t)s->n_node + 1), sizeof(int32_t), &ok);
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}

/* The host's side of growth; trees may be larger while they grow. */
static spec_status alloc_growth(spec_session *s, const growth_plan *g, bool host_distributions)
{
    const size_t n_seq = (size_t)s->n_seq, n_candidate_row = n_seq * (size_t)g->n_q * (size_t)g->n_candidate_row;
    bool ok = true;
    int32_t **ints[] = { &s->order, &s->growing, &s->depth, &s->feed_base };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) *ints[i] = host_array(s, n_seq, sizeof(int32_t), &ok);
    s->n_scratch = max32(max32(SPECI_MAX_NODE, g->pool), s->n_seq);
    s->path = host_array(s, (size_t)s->n_scratch, sizeof(int32_t), &ok);
    s->roots = host_array(s, n_seq, sizeof(spec_grow_node), &ok);
    s->grown = host_array(s, n_seq * (size_t)g->cap, sizeof(spec_grow_node), &ok);
    s->n_grown = host_array(s, n_seq, sizeof(int32_t), &ok);
    s->n_candidate_row = g->n_candidate_row;
    s->candidates = host_array(s, n_candidate_row, sizeof(spec_candidate), &ok);
    s->looked = host_array(s, n_candidate_row, sizeof(spec_candidate), &ok);
    if (host_distributions) s->host_q = host_array(s, (size_t)g->n_q * (size_t)s->target->n_vocab, sizeof(float), &ok);
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status alloc_seqs(spec_session *s, const growth_plan *g)
{
    if (!(s->seqs = speci_alloc(s->a, (size_t)s->n_seq, sizeof(algo_seq)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        algo_seq *q = &s->seqs[i];
        SPEC_TRY(spec_tree_alloc(&q->draft, max32(max32(s->n_node, g->n_node), g->pool), s->a));
        SPEC_TRY(spec_tree_alloc(&q->scored, s->n_node, s->a));
        SPEC_TRY(spec_tree_alloc(&q->fed, max32(s->draft_node, 1), s->a));
    }
    return SPEC_OK;
}

static spec_status alloc_distributions(spec_session *s, const session_plan *p)
{
    void *at = NULL;
    SPEC_TRY(s->ops->alloc(s->dev, &at, p->p_bytes));
    s->p = at;
    s->p_bytes = p->p_bytes;
    if (p->next_bytes > 0) {
        SPEC_TRY(s->ops->alloc(s->dev, &at, p->next_bytes));
        s->next = at;
        s->next_bytes = p->next_bytes;
        SPEC_TRY(speci_ahead_open(s));
    }
    if (p->q_bytes == 0) return SPEC_OK;
    s->q_bytes = p->q_bytes;
    SPEC_TRY(s->ops->alloc(s->dev, &at, p->q_bytes));
    s->q = at;
    if (p->grow_bytes == 0) return SPEC_OK;
    SPEC_TRY(s->ops->alloc(s->dev, &s->grow_base, p->grow_bytes));
    s->grow_bytes = p->grow_bytes;
    (void)carve_growth(&s->grow, p, s->grow_base);
    const spec_range all = { s->grow_base, s->grow_bytes };
    return s->ops->zero(s->queue, &all, 1); /* a tree scored unseen may lack nodes: any token will do */
}

static spec_status open_nets(spec_session *s, const session_plan *p)
{
    spec_plan plans[4];
    int32_t n_plan;
    SPEC_TRY(plan_nets(&s->net, &s->draft_exec, plans, &n_plan, s->target, s->drafter, p));
    SPEC_TRY(s->ops->queue_open(s->dev, &s->queue, plans, n_plan, s->target->n_vocab));
    SPEC_TRY(speci_exec_attach(s->net, s->queue, s->captures));
    if (s->draft_exec) SPEC_TRY(speci_exec_attach(s->draft_exec, s->queue, s->captures));
    return alloc_distributions(s, p);
}

static spec_status take_drafter(spec_session *s, spec_drafter *d)
{
    if (!d) return SPEC_OK;
    SPEC_TRY(speci_drafter_check(d, s->target));
    if (atomic_flag_test_and_set(&d->in_use))
        return speci_fail(SPEC_E_STATE, "the drafter already serves another session");
    s->drafter = d;
    return SPEC_OK;
}

static spec_status session_open(spec_session *s, spec_drafter *drafter, const session_plan *p)
{
    s->n_ctx = p->n_ctx, s->n_seq = p->n_seq, s->n_node = p->n_node, s->n_q = p->growth.n_q;
    s->n_row = s->n_seq * s->n_node;
    s->draft_ctx = p->draft_ctx, s->draft_node = p->draft_node;
    s->rule = p->params.verify;
    s->joint = p->lab.advance == SPEC_ADVANCE_JOINT;
    s->captures = !p->lab.no_capture;
    s->n_tap = p->params.n_tap;
    s->abort = p->params.abort, s->abort_user_data = p->params.abort_user_data;
    SPEC_TRY(take_drafter(s, drafter));
    SPEC_TRY(alloc_seqs(s, &p->growth));
    SPEC_TRY(alloc_rows(s));
    SPEC_TRY(alloc_growth(s, &p->growth, drafter && drafter->ops.distributions));
    SPEC_TRY(open_nets(s, p));
    return speci_adapt_open(s, p->params.adapt, p->params.profile);
}

spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                              const spec_session_params *params)
{
    session_plan p;
    *out = NULL;
    SPEC_TRY(plan_session(&p, target, drafter, params));
    spec_session *s = speci_alloc(target->allocator, 1, sizeof *s);
    if (!s) return SPEC_E_NOMEM;
    s->target = target;
    s->a = target->allocator;
    s->ops = target->backend->ops;
    s->dev = target->backend->dev;
    atomic_init(&s->cancelled, 0);
    const spec_status status = session_open(s, drafter, &p);
    if (status != SPEC_OK) {
        spec_session_close(s);
        return status;
    }
    *out = s;
    return SPEC_OK;
}

static void free_host(spec_session *s)
{
    for (int32_t i = 0; s->seqs && i < s->n_seq; i++) {
        algo_seq *q = &s->seqs[i];
        spec_tree_free(&q->draft, s->a);
        spec_tree_free(&q->scored, s->a);
        spec_tree_free(&q->fed, s->a);
        speci_free(s->a, q->ids);
    }
    algo_rows *r = &s->rows;
    void *arrays[] = { s->seqs,       r->src,         r->dst,       r->q_row,     r->candidate,   r->choice,  r->token,
                       r->slot,       r->place,       r->first,     r->u,         r->u_last,      r->sampling, r->key,
                       s->inputs,     s->order,       s->growing,   s->depth,     s->feed_base,   s->grown,   s->n_grown,
                       s->path,       s->step_paths,  s->step_n_path, s->step_token, s->step_trees, s->best,  s->step_ids,
                       s->roots,      s->candidates,  s->looked,    s->host_q,    s->adapt.arms };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

void spec_session_close(spec_session *s)
{
    if (!s) return;
    if (s->queue) s->ops->sync(s->queue); /* nothing of this session runs on; a late error has no one to go to */
    for (int32_t i = 0; s->seqs && s->net && i < s->n_seq; i++)
        if (s->seqs[i].live) spec_sequence_remove(s, i);
    speci_exec_close(s->net);
    speci_exec_close(s->draft_exec);
    if (s->p) s->ops->free(s->dev, s->p, s->p_bytes);
    if (s->next) s->ops->free(s->dev, s->next, s->next_bytes);
    if (s->q) s->ops->free(s->dev, s->q, s->q_bytes);
    if (s->grow_base) s->ops->free(s->dev, s->grow_base, s->grow_bytes);
    if (s->queue) s->ops->queue_close(s->queue);
    if (s->drafter) atomic_flag_clear(&s->drafter->in_use);
    free_host(s);
    speci_free(s->a, s);
}

void spec_session_cancel(spec_session *s) { atomic_store(&s->cancelled, 1); }
void spec_session_resume(spec_session *s) { atomic_store(&s->cancelled, 0); }

spec_candidate *speci_candidates_of(spec_session *s, int32_t seq)
{
    return s->looked + (size_t)seq * (size_t)s->n_q * (size_t)s->n_candidate_row;
}

bool speci_session_stopped(void *session)
{
    spec_session *s = session;
    return atomic_load(&s->cancelled) || (s->abort && s->abort(s->abort_user_data));
}
