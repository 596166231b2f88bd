/* algo_session.c - sessions: what they take when they open, and sequences coming and going. */
#include "algorithms/algo.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_CTX = 4096, MAX_NODE = 256 };

/* --- sizes --- */

typedef struct session_plan {
    spec_session_params params; /* as the caller gave them */
    int32_t n_ctx, n_seq, n_node, n_draft;
    int32_t draft_ctx, draft_node;
    speci_net_params target, draft;
    size_t p_bytes, q_bytes;
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

static spec_status plan_session(session_plan *s, const spec_model *target, const spec_drafter *d,
                                const spec_session_params *params)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_session_params"));
    *s = (session_plan){ .params = p, .n_seq = p.n_seq ? p.n_seq : 1, .n_draft = d ? d->n_draft : 0 };
    SPEC_TRY(plan_context(s, target, p.n_ctx));
    s->n_node = p.n_node ? p.n_node : s->n_draft + 1;
    if (s->n_seq < 1 || s->n_node < 1 || s->n_node > MAX_NODE)
        return speci_fail(SPEC_E_INVALID, "n_seq is %d (at least 1), n_node is %d (1 to %d)", s->n_seq, s->n_node,
                          MAX_NODE);
    if (s->n_draft > s->n_node - 1) s->n_draft = s->n_node - 1;
    const int64_t rows = (int64_t)s->n_seq * (s->n_node + 1);
    if (rows > target->backend->info.row_max)
        return speci_fail(SPEC_E_UNSUPPORTED, "%d sequences of %d nodes are more rows than the backend's %d", s->n_seq,
                          s->n_node, target->backend->info.row_max);
    s->target = (speci_net_params){ .n_seq = s->n_seq, .n_ctx = s->n_ctx, .n_node = s->n_node };
    const size_t row = (size_t)target->n_vocab * sizeof(float);
    s->p_bytes = (size_t)s->n_seq * (size_t)s->n_node * row;
    if (d && d->model && s->n_draft > 0) {
        s->draft_node = s->n_draft + 1; /* two committed tokens at most, and all drafts but the last */
        const int32_t own = d->model->n_ctx;
        s->draft_ctx = own > 0 && (s->n_ctx == 0 || own < s->n_ctx) ? own : s->n_ctx;
        if (s->draft_ctx == 0 && speci_model_attends(d->model)) s->draft_ctx = DEFAULT_CTX;
        s->draft = (speci_net_params){ .n_seq = s->n_seq, .n_ctx = s->draft_ctx, .n_node = s->draft_node };
        s->q_bytes = (size_t)s->n_seq * (size_t)s->n_draft * row;
    }
    return SPEC_OK;
}

/* The nets of a session, and the plans that its queue must be ready for: plans [4]. */
static spec_status plan_nets(speci_net **net, speci_net **draft_net, spec_plan *plans, int32_t *n_plan,
                             const spec_model *target, const spec_drafter *d, const session_plan *p)
{
    *n_plan = 2;
    SPEC_TRY(speci_net_open(net, target, &p->target));
    speci_net_plans(*net, plans);
    if (p->draft_node == 0) return SPEC_OK;
    SPEC_TRY(speci_net_open(draft_net, d->model, &p->draft));
    speci_net_plans(*draft_net, plans + 2);
    *n_plan = 4;
    return SPEC_OK;
}

spec_status spec_session_predict(spec_memory *out, spec_model *target, spec_drafter *drafter,
                                 const spec_session_params *params)
{
    session_plan p;
    SPEC_TRY(plan_session(&p, target, drafter, params));
    speci_net *net = NULL, *draft_net = NULL;
    spec_plan plans[4];
    int32_t n_plan;
    spec_status status = plan_nets(&net, &draft_net, plans, &n_plan, target, drafter, &p);
    if (status == SPEC_OK) {
        const spec_backend *be = target->backend;
        spec_memory m = { .bytes_model = target->bytes_weights };
        if (drafter && drafter->model && drafter->model != target) m.bytes_model += drafter->model->bytes_weights;
        speci_net_memory(net, &m);
        if (draft_net) speci_net_memory(draft_net, &m);
        m.bytes_work += p.p_bytes + 2 * p.q_bytes;
        m.bytes_work += be->ops->queue_bytes(be->dev, plans, n_plan, target->n_vocab);
        status = speci_params_write(out, &m, sizeof m, "spec_memory");
    }
    speci_net_close(draft_net);
    speci_net_close(net);
    return status;
}

/* --- open and close --- */

static void *host_array(spec_session *s, int32_t n, size_t size, bool *ok)
{
    void *p = speci_alloc(s->a, (size_t)n, size);
    if (!p) *ok = false;
    return p;
}

static spec_status alloc_rows(spec_session *s)
{
    algo_rows *r = &s->rows;
    bool ok = true;
    const int32_t node = s->n_node > s->draft_node ? s->n_node : s->draft_node, n = s->n_seq * node;
    int32_t **ints[] = { &r->src, &r->q_row, &r->candidate, &r->choice, &r->token };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) *ints[i] = host_array(s, n, sizeof(int32_t), &ok);
    r->first = host_array(s, n + 1, sizeof(int32_t), &ok);
    r->u = host_array(s, n, sizeof(float), &ok);
    r->u_last = host_array(s, n, sizeof(float), &ok);
    r->sampling = host_array(s, n, sizeof(spec_sampling), &ok);
    s->inputs = host_array(s, s->n_seq, sizeof(speci_net_input), &ok);
    s->order = host_array(s, s->n_seq, sizeof(int32_t), &ok);
    s->path = host_array(s, node > s->n_seq ? node : s->n_seq, sizeof(int32_t), &ok);
    s->step_paths = host_array(s, s->n_row, sizeof(int32_t), &ok);
    s->step_n_path = host_array(s, s->n_seq, sizeof(int32_t), &ok);
    s->step_token = host_array(s, s->n_seq, sizeof(int32_t), &ok);
    s->step_trees = host_array(s, s->n_seq, sizeof(spec_tree *), &ok);
    s->best = host_array(s, s->n_row, sizeof(int32_t), &ok);
    s->step_ids = host_array(s, s->n_seq * (s->n_node + 1), sizeof(int32_t), &ok);
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status alloc_seqs(spec_session *s)
{
    if (!(s->seqs = speci_alloc(s->a, (size_t)s->n_seq, sizeof(algo_seq)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        algo_seq *q = &s->seqs[i];
        SPEC_TRY(speci_tree_alloc(&q->draft, s->n_node, s->a));
        SPEC_TRY(speci_tree_alloc(&q->scored, s->n_node, s->a));
        SPEC_TRY(speci_tree_alloc(&q->fed, s->draft_node, s->a));
    }
    return SPEC_OK;
}

static spec_status open_nets(spec_session *s, const session_plan *p, bool capture)
{
    spec_plan plans[4];
    int32_t n_plan;
    SPEC_TRY(plan_nets(&s->net, &s->draft_net, plans, &n_plan, s->target, s->drafter, p));
    SPEC_TRY(s->ops->queue_open(s->dev, &s->queue, plans, n_plan, s->target->n_vocab));
    SPEC_TRY(speci_net_attach(s->net, s->queue, capture));
    if (s->draft_net) SPEC_TRY(speci_net_attach(s->draft_net, s->queue, capture));
    void *law = NULL;
    SPEC_TRY(s->ops->alloc(s->dev, &law, p->p_bytes));
    s->p = law;
    s->p_bytes = p->p_bytes;
    if (p->q_bytes == 0) return SPEC_OK;
    s->q_bytes = p->q_bytes;
    SPEC_TRY(s->ops->alloc(s->dev, &law, p->q_bytes));
    s->q = law;
    SPEC_TRY(s->ops->alloc(s->dev, &law, p->q_bytes));
    s->q_work = law;
    return SPEC_OK;
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
    s->n_ctx = p->n_ctx, s->n_seq = p->n_seq, s->n_node = p->n_node, s->n_draft = p->n_draft;
    s->n_row = s->n_seq * s->n_node;
    s->draft_ctx = p->draft_ctx, s->draft_node = p->draft_node;
    s->rule = p->params.verify;
    s->abort = p->params.abort, s->abort_user_data = p->params.abort_user_data;
    SPEC_TRY(take_drafter(s, drafter));
    SPEC_TRY(alloc_seqs(s));
    SPEC_TRY(alloc_rows(s));
    return open_nets(s, p, !p->params.no_capture);
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
        speci_tree_free(&q->draft, s->a);
        speci_tree_free(&q->scored, s->a);
        speci_tree_free(&q->fed, s->a);
        speci_free(s->a, q->ids);
    }
    algo_rows *r = &s->rows;
    void *arrays[] = { s->seqs, r->src, r->q_row, r->candidate, r->choice, r->token, r->first, r->u, r->u_last,
                       r->sampling, s->inputs, s->order, s->path, s->step_paths, s->step_n_path, s->step_token,
                       s->step_trees, s->best, s->step_ids };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

void spec_session_close(spec_session *s)
{
    if (!s) return;
    if (s->queue) s->ops->sync(s->queue); /* nothing of this session runs on; a late error has no one to go to */
    for (int32_t i = 0; s->seqs && s->net && i < s->n_seq; i++)
        if (s->seqs[i].live) spec_sequence_remove(s, i);
    speci_net_close(s->net);
    speci_net_close(s->draft_net);
    if (s->p) s->ops->free(s->dev, s->p, s->p_bytes);
    if (s->q) s->ops->free(s->dev, s->q, s->q_bytes);
    if (s->q_work) s->ops->free(s->dev, s->q_work, s->q_bytes);
    if (s->queue) s->ops->queue_close(s->queue);
    if (s->drafter) atomic_flag_clear(&s->drafter->in_use);
    free_host(s);
    speci_free(s->a, s);
}

void spec_session_cancel(spec_session *s) { atomic_store(&s->cancelled, 1); }
void spec_session_resume(spec_session *s) { atomic_store(&s->cancelled, 0); }

bool speci_session_stopped(void *session)
{
    spec_session *s = session;
    return atomic_load(&s->cancelled) || (s->abort && s->abort(s->abort_user_data));
}

/* --- sequences --- */

spec_status speci_session_seq(const spec_session *s, int32_t seq, algo_seq **out)
{
    if (seq < 0 || seq >= s->n_seq || !s->seqs[seq].live)
        return speci_fail(SPEC_E_INVALID, "there is no sequence %d", seq);
    *out = &s->seqs[seq];
    return SPEC_OK;
}

spec_status speci_session_free_seq(const spec_session *s, int32_t *out)
{
    for (*out = 0; *out < s->n_seq; (*out)++)
        if (!s->seqs[*out].live) return SPEC_OK;
    return speci_fail(SPEC_E_FULL, "all %d sequences of the session are in use", s->n_seq);
}

void speci_sequence_admit(spec_session *s, int32_t seq)
{
    s->seqs[seq].live = true;
    if (s->drafter && s->drafter->ops.begin) s->drafter->ops.begin(s->drafter->ops.user_data, seq);
}

bool speci_is_eos(const spec_session *s, const algo_seq *q, int32_t token)
{
    for (int32_t i = 0; !q->ignore_eos && i < s->target->n_eos; i++)
        if (s->target->eos[i] == token) return true;
    return false;
}

int32_t speci_draft_room(const spec_session *s, const algo_seq *q)
{
    const int32_t room = q->n_limit == INT32_MAX ? s->n_node - 1 : q->n_limit - q->n_ids - 1;
    return room < 0 ? 0 : room < s->n_node - 1 ? room : s->n_node - 1;
}

static spec_status check_prompt(const spec_session *s, const int32_t *ids, size_t n)
{
    if (n < 1) return speci_fail(SPEC_E_INVALID, "a sequence needs at least one token to start from");
    if (n >= (size_t)(s->n_ctx ? s->n_ctx : INT32_MAX))
        return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens does not fit a context of %d with room for one more", n,
                          s->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->target->n_vocab)
            return speci_fail(SPEC_E_INVALID, "prompt token %zu is %d, not in the vocabulary of %d ids", i, ids[i],
                              s->target->n_vocab);
    return SPEC_OK;
}

spec_status speci_sampling_check(const spec_sampling *p)
{
    if (p->temperature >= 0 && p->top_k >= 0 && p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1)
        return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "temperature %g, top-k %d, top-p %g, min-p %g: not negative, top-p and min-p "
                      "at most 1", (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p);
}

spec_status speci_draft_prefill(spec_session *s, int32_t seq)
{
    const algo_seq *q = &s->seqs[seq];
    const int32_t n_known = s->drafter->model->n_vocab;
    SPEC_TRY(speci_net_begin(s->draft_net, seq));
    int32_t *ids = speci_alloc(s->a, (size_t)q->n_ids, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < q->n_ids; i++) ids[i] = q->ids[i] < n_known ? q->ids[i] : 0;
    const spec_status status =
        speci_net_prefill(s->draft_net, seq, ids, (size_t)q->n_ids - 1, speci_session_stopped, s);
    speci_free(s->a, ids);
    return status;
}

static spec_status begin(spec_session *s, int32_t seq, const int32_t *ids, size_t n)
{
    algo_seq *q = &s->seqs[seq];
    const size_t cap = s->n_ctx ? (size_t)s->n_ctx : n + 1024;
    q->ids = speci_alloc(s->a, cap, sizeof *q->ids);
    if (!q->ids) return SPEC_E_NOMEM;
    q->cap_ids = (int32_t)cap;
    memcpy(q->ids, ids, n * sizeof *ids);
    q->n_ids = (int32_t)n;
    q->no_draft = !s->draft_net || (s->draft_ctx > 0 && q->n_ids >= s->draft_ctx);
    SPEC_TRY(speci_net_begin(s->net, seq));
    SPEC_TRY(speci_net_prefill(s->net, seq, ids, n - 1, speci_session_stopped, s));
    if (!q->no_draft) SPEC_TRY(speci_draft_prefill(s, seq));
    return s->ops->sync(s->queue);
}

void speci_sequence_end(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    speci_net_end(s->net, seq);
    if (s->draft_net) speci_net_end(s->draft_net, seq);
    speci_free(s->a, q->ids);
    const algo_seq kept = { .draft = q->draft, .scored = q->scored, .fed = q->fed };
    *q = kept;
    q->draft.n = q->scored.n = q->fed.n = 0;
}

spec_status spec_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n,
                              const spec_sampling *sampling)
{
    const spec_sampling greedy = { 0 };
    SPEC_TRY(check_prompt(s, ids, n));
    SPEC_TRY(speci_sampling_check(sampling ? sampling : &greedy));
    int32_t i;
    SPEC_TRY(speci_session_free_seq(s, &i));
    algo_seq *q = &s->seqs[i];
    q->sampling = sampling ? *sampling : greedy;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    const spec_status status = begin(s, i, ids, n);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    speci_sequence_admit(s, i);
    *seq = i;
    return SPEC_OK;
}

spec_status spec_sequence_remove(spec_session *s, int32_t seq)
{
    algo_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (s->drafter && s->drafter->ops.end) s->drafter->ops.end(s->drafter->ops.user_data, seq);
    speci_sequence_end(s, seq);
    return SPEC_OK;
}

spec_status spec_sequence_ids(const spec_session *s, int32_t seq, const int32_t **ids, size_t *n)
{
    algo_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *ids = q->ids;
    *n = (size_t)q->n_ids;
    return SPEC_OK;
}
