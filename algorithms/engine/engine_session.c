/* engine_session.c - sessions: what they take when they open. */
#define SPEC_EXPERIMENTAL
#include "algorithms/engine/engine.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "spec_lab.h"

enum {
    DEFAULT_CTX = 4096,
    MOST_CTX = 1 << 30 /* positions and the trees behind them are counted in 31 bits */
};
static const int64_t MOST_TOKENS = (int64_t)1 << 36; /* of all sequences: so are their pages */

/* --- what is asked for --- */

typedef struct wishes {
    spec_session_params params; /* as the caller gave them */
    spec_lab lab;
    spec_drafter *const *drafters; /* [n_drafter] */
    int32_t n_drafter;
    spec_drafter *single;
} wishes;

static spec_status check_choices(const spec_session_params *p, const spec_lab *lab)
{
    if (p->verify != SPEC_VERIFY_AUTO && !speci_verify_find(p->verify))
        return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)p->verify);
    if (p->adapt < SPEC_ADAPT_OFF || p->adapt > SPEC_ADAPT_UCB)
        return speci_fail(SPEC_E_INVALID, "there is no way %d to choose among trees", (int)p->adapt);
    if (p->combine < SPEC_DRAFT_FIRST || p->combine > SPEC_DRAFT_CHOOSE)
        return speci_fail(SPEC_E_INVALID, "there is no way %d to combine drafters", (int)p->combine);
    if ((uint32_t)lab->scan > SPEC_SCAN_RECURRENT || (uint32_t)lab->advance > SPEC_ADVANCE_JOINT ||
        (uint32_t)lab->draft_state > SPEC_DRAFT_STATE_PER_NODE)
        return speci_fail(SPEC_E_INVALID, "scan %d, advance %d, draft_state %d: each is 0 or 1", (int)lab->scan,
                          (int)lab->advance, (int)lab->draft_state);
    if (p->n_prompt_step < 0) return speci_fail(SPEC_E_INVALID, "n_prompt_step is %d", p->n_prompt_step);
    return SPEC_OK;
}

/* The list, or the one drafter. */
static spec_status read_drafters(wishes *w, spec_drafter *drafter)
{
    const spec_session_params *p = &w->params;
    if (p->n_drafter < 0 || p->n_drafter > SPECI_MAX_DRAFTER || (p->n_drafter > 0 && !p->drafters))
        return speci_fail(SPEC_E_INVALID, "a list of %d drafters%s; at most %d", p->n_drafter,
                          p->drafters ? "" : ", which is NULL", SPECI_MAX_DRAFTER);
    if (drafter && p->n_drafter > 0)
        return speci_fail(SPEC_E_INVALID, "a drafter and a list of drafters; one of the two");
    w->single = drafter;
    w->drafters = drafter ? &w->single : p->drafters, w->n_drafter = drafter ? 1 : p->n_drafter;
    for (int32_t i = 0; i < w->n_drafter; i++) {
        if (!w->drafters[i]) return speci_fail(SPEC_E_INVALID, "drafter %d of the list is NULL", i);
        for (int32_t j = 0; j < i; j++)
            if (w->drafters[j] == w->drafters[i]) return speci_fail(SPEC_E_INVALID, "drafter %d is in the list twice", i);
    }
    return SPEC_OK;
}

static spec_status read_wishes(wishes *w, spec_drafter *drafter, const spec_session_params *params)
{
    *w = (wishes){ .params = SPEC_SESSION_PARAMS_INIT, .lab = SPEC_LAB_INIT };
    SPEC_TRY(speci_params_read(&w->params, sizeof w->params, params, "spec_session_params"));
    SPEC_TRY(speci_params_read(&w->lab, sizeof w->lab, w->params.lab, "spec_lab"));
    SPEC_TRY(check_choices(&w->params, &w->lab));
    return read_drafters(w, drafter);
}

/* --- a session without device memory --- */

static spec_status plan_context(spec_session *s, int32_t n_ctx)
{
    const spec_model *target = s->target;
    if (n_ctx < 0 || n_ctx == 1)
        return speci_fail(SPEC_E_INVALID, "n_ctx is %d: a token and the one that follows it need 2", n_ctx);
    const bool beyond = target->n_ctx > 0 && n_ctx > target->n_ctx;
    if (beyond && target->ctx_ends)
        return speci_fail(SPEC_E_UNSUPPORTED, "n_ctx is %d; with RoPE \"dynamic\" the frequencies change with each token behind %d", n_ctx,
                          target->n_ctx);
    if (n_ctx > MOST_CTX) return speci_fail(SPEC_E_INVALID, "n_ctx is %d, at most %d is supported", n_ctx, MOST_CTX);
    s->n_ctx = n_ctx ? n_ctx : target->n_ctx < MOST_CTX ? target->n_ctx : MOST_CTX;
    if (s->n_ctx == 0 && speci_model_attends(target)) s->n_ctx = DEFAULT_CTX;
    return SPEC_OK;
}

/* Where a session opens; an estimate says nothing. */
static void warn_of_context(const spec_session *s)
{
    const spec_model *target = s->target;
    if (target->n_ctx > 0 && s->n_ctx > target->n_ctx)
        speci_log(target->backend, SPEC_LOG_WARN, "n_ctx is %d; the model was trained on %d positions, and text may get worse behind "
                  "them", s->n_ctx, target->n_ctx);
}

static spec_status check_rows(const spec_session *s, int64_t n_row)
{
    const int32_t most = s->target->backend->info.row_max;
    if (n_row <= most) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%d sequences of %d nodes are more rows than the backend's %d", s->n_seq, (int)(n_row / s->n_seq),
                      most);
}

/* Before anything is multiplied in 31 bits: rows, and pages of all contexts. */
static spec_status check_sizes(const spec_session *s)
{
    SPEC_TRY(check_rows(s, (int64_t)s->n_seq * (s->n_node + 1)));
    if ((int64_t)s->n_seq * s->n_ctx <= MOST_TOKENS) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%d sequences of %d tokens are more than %lld: take a smaller n_ctx", s->n_seq, s->n_ctx,
                      (long long)MOST_TOKENS);
}

/* Trees and rows that the drafters need. */
static spec_status plan_nodes(spec_session *s, const wishes *w)
{
    int32_t n_node = 1, n_q = 0;
    for (int32_t i = 0; i < w->n_drafter; i++) {
        const speci_draft_size z = speci_draft_size_of(w->drafters[i]);
        n_q = speci_max32(n_q, z.n_q);
        if (w->params.combine == SPEC_DRAFT_UNION && i > 0) n_node += z.n_node - 1;
        else n_node = speci_max32(n_node, z.n_node);
    }
    if (n_node > SPECI_MAX_NODE) n_node = SPECI_MAX_NODE;
    s->n_seq = w->params.n_seq ? w->params.n_seq : 1;
    s->n_node = w->params.n_node ? w->params.n_node : n_node;
    if (s->n_seq < 1 || s->n_node < 1 || s->n_node > SPECI_MAX_NODE)
        return speci_fail(SPEC_E_INVALID, "n_seq is %d (at least 1), n_node is %d (1 to %d)", s->n_seq, s->n_node,
                          SPECI_MAX_NODE);
    const size_t row = (size_t)s->target->n_vocab * sizeof(float);
    s->site.n_q = s->n_node > 1 ? n_q : 0;
    s->p_bytes = (size_t)s->n_seq * (size_t)s->n_node * row;
    s->q_bytes = (size_t)s->n_seq * (size_t)s->site.n_q * row;
    return SPEC_OK;
}

static void describe_site(spec_session *s, const spec_lab *lab)
{
    speci_draft_site *site = &s->site;
    site->target = s->target, site->ops = s->ops, site->dev = s->dev, site->a = s->a;
    site->n_seq = s->n_seq, site->n_ctx = s->n_ctx, site->n_node = s->n_node;
    site->captures = s->captures;
    site->recurrent = lab->scan == SPEC_SCAN_RECURRENT;
    site->node_state = lab->draft_state == SPEC_DRAFT_STATE_PER_NODE;
    site->stopped = speci_session_stopped, site->stopped_arg = s;
}

/* A drafter that cannot propose anything here, since trees are roots alone, is not attached. */
static spec_status prepare_drafters(spec_session *s, const wishes *w)
{
    speci_drafters *all = &s->drafters;
    all->combine = w->params.combine;
    if (w->n_drafter == 0 || s->n_node == 1) return SPEC_OK;
    if (!(all->draft = speci_alloc(s->a, (size_t)w->n_drafter, sizeof *all->draft))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < w->n_drafter; i++) {
        speci_draft *d = &all->draft[all->n++];
        *d = (speci_draft){ .drafter = w->drafters[i], .kind = w->drafters[i]->kind, .site = &s->site,
                            .size = speci_draft_size_of(w->drafters[i]), .taps = w->drafters[i]->taps,
                            .n_tap = w->drafters[i]->n_tap };
        if (d->kind->prepare) SPEC_TRY(d->kind->prepare(d));
    }
    return SPEC_OK;
}

/* Plain steps can run ahead where the device says how far it is, the target's passes run on behind a call, not drafting is the
 * only way or a choice, and no drafter waits for the rows of a step. */
static bool may_run_ahead(const spec_session *s, const wishes *w)
{
    if (!s->ops->mark || s->target->exec->waits || s->joint || s->tells_hidden) return false;
    return s->drafters.n == 0 || w->params.adapt != SPEC_ADAPT_OFF;
}

static spec_status prepare(spec_session *s, spec_model *target, const wishes *w)
{
    const spec_session_params *p = &w->params;
    s->ops = target->backend->ops;
    s->dev = target->backend->dev;
    s->rule = p->verify;
    s->joint = w->lab.advance == SPEC_ADVANCE_JOINT;
    s->captures = !w->lab.no_capture;
    s->n_prompt_step = p->n_prompt_step;
    s->abort = p->abort, s->abort_user_data = p->abort_user_data;
    s->now_ms = speci_now_ms;
    atomic_init(&s->cancelled, 0);
    SPEC_TRY(plan_context(s, p->n_ctx));
    SPEC_TRY(plan_nodes(s, w));
    SPEC_TRY(check_sizes(s));
    describe_site(s, &w->lab);
    SPEC_TRY(prepare_drafters(s, w));
    SPEC_TRY(speci_hidden_plan(s, p->taps, p->n_tap));
    const speci_exec_params exec = { .n_seq = s->n_seq, .n_ctx = s->n_ctx, .n_node = s->n_node,
                                     .recurrent = s->site.recurrent, .joint = s->joint, .taps = s->taps, .n_tap = s->n_kept,
                                     .n_chunk = p->n_prompt_step };
    if (may_run_ahead(s, w)) s->roots_bytes = (size_t)s->n_seq * sizeof *s->roots;
    return target->exec->open(&s->exec, target, &exec);
}

/* Plans of all executors, columns of row operations, and bytes. plans [2 + 2 n]. */
static spec_status sum_needs(const spec_session *s, spec_plan *plans, int32_t *n_plan, int32_t *n_column, spec_memory *memory)
{
    int32_t n_row = s->n_seq * (s->n_node + 1);
    s->exec->kind->plans(s->exec, plans);
    *n_plan = 2;
    *n_column = s->target->n_vocab;
    memory->bytes_model = s->target->bytes_weights;
    s->exec->kind->memory(s->exec, memory);
    memory->bytes_work += s->p_bytes + s->q_bytes + s->roots_bytes;
    for (int32_t i = 0; i < s->drafters.n; i++) {
        const speci_draft *d = &s->drafters.draft[i];
        speci_draft_needs needs = { 0 };
        if (!d->kind->needs) continue;
        d->kind->needs(d, &needs);
        memory->bytes_model += needs.memory.bytes_model, memory->bytes_state += needs.memory.bytes_state;
        memory->bytes_kv += needs.memory.bytes_kv, memory->bytes_work += needs.memory.bytes_work;
        memcpy(plans + *n_plan, needs.plans, (size_t)needs.n_plan * sizeof *plans);
        *n_plan += needs.n_plan;
        n_row = speci_max32(n_row, needs.n_row);
        *n_column = speci_max32(*n_column, needs.n_column);
    }
    SPEC_TRY(check_rows(s, n_row));
    const spec_backend *be = s->target->backend;
    memory->bytes_work += be->ops->queue_bytes(be->dev, plans, *n_plan, *n_column);
    return SPEC_OK;
}

static spec_status new_session(spec_session **out, spec_model *target)
{
    *out = NULL;
    if (!target) return speci_fail(SPEC_E_INVALID, "a session needs a target");
    if (speci_model_is_head(target)) return speci_head_refuse(target);
    *out = speci_alloc(target->allocator, 1, sizeof **out);
    if (!*out) return SPEC_E_NOMEM;
    (*out)->target = target, (*out)->a = target->allocator;
    atomic_flag_clear(&(*out)->in_call);
    speci_hold(&target->holds);
    return SPEC_OK;
}

spec_status spec_session_estimate(spec_memory *out, spec_model *target, spec_drafter *drafter,
                                  const spec_session_params *params)
{
    SPEC_NEED(out, "out");
    wishes w;
    spec_session *s;
    spec_memory memory = { 0 };
    SPEC_TRY(read_wishes(&w, drafter, params));
    SPEC_TRY(new_session(&s, target));
    spec_status status = prepare(s, target, &w);
    spec_plan *plans = speci_alloc(s->a, 2 + 2 * (size_t)w.n_drafter, sizeof *plans);
    int32_t n_plan, n_column;
    if (status == SPEC_OK) status = plans ? sum_needs(s, plans, &n_plan, &n_column, &memory) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = speci_params_write(out, &memory, sizeof memory, "spec_memory");
    speci_free(s->a, plans);
    spec_session_close(s);
    return status;
}

/* --- host memory --- */

static void *array(const spec_session *s, size_t n, size_t size, bool *ok)
{
    void *p = speci_alloc(s->a, n, size);
    if (!p) *ok = false;
    return p;
}

/* Memory of a round of n_seq sequences, of n_node nodes each at most. Parts stay where they are for the life of the round. */
static spec_status open_round(spec_session *s, engine_round *r, int32_t n_seq, int32_t n_node)
{
    const size_t n = (size_t)n_seq, rows = n * (size_t)n_node;
    bool ok = true;
    speci_verify_rows *v = &r->batch.rows;
    int32_t **ints[] = { &v->src, &v->dst, &v->q_row, &v->parent, &v->choice, &v->token, &v->candidate };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) *ints[i] = array(s, rows, sizeof(int32_t), &ok);
    v->first = array(s, rows + SPECI_VERIFY_CALLS, sizeof *v->first, &ok);
    v->u = array(s, rows, sizeof *v->u, &ok);
    v->u_last = array(s, rows, sizeof *v->u_last, &ok);
    v->prob = array(s, rows, sizeof *v->prob, &ok);
    v->sampling = array(s, rows, sizeof *v->sampling, &ok);
    r->likeliest = array(s, 2 * rows, sizeof *r->likeliest, &ok); /* with joint attainment, the paths' rows too */
    r->seqs = array(s, n, sizeof *r->seqs, &ok);
    r->trees = array(s, n, sizeof *r->trees, &ok);
    r->part = array(s, n, sizeof *r->part, &ok);
    r->paths = array(s, rows, sizeof *r->paths, &ok);
    if (!ok) return SPEC_E_NOMEM;
    r->n_most = n_seq;
    for (int32_t i = 0; i < n_seq; i++) {
        r->part[i].path = r->paths + (size_t)i * (size_t)n_node;
        SPEC_TRY(spec_tree_alloc(&r->part[i].tree, n_node, s->a));
    }
    return SPEC_OK;
}

static void close_round(spec_session *s, engine_round *r)
{
    speci_verify_rows *v = &r->batch.rows;
    for (int32_t i = 0; r->part && i < r->n_most; i++) spec_tree_free(&r->part[i].tree, s->a);
    void *arrays[] = { v->src, v->dst, v->q_row, v->parent, v->choice, v->token, v->candidate, v->first, v->u, v->u_last,
                       v->prob, v->sampling, r->likeliest, r->seqs, r->trees, r->part, r->paths };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

static spec_status alloc_rounds(spec_session *s)
{
    SPEC_TRY(open_round(s, &s->round, s->n_seq, s->n_node));
    if (s->roots_bytes == 0) return SPEC_OK;
    if (!(s->plain = speci_alloc(s->a, 2 * (size_t)s->n_seq, sizeof *s->plain))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < 2 * s->n_seq; i++) SPEC_TRY(open_round(s, &s->plain[i], 1, 1));
    return SPEC_OK;
}

/* Trees may be larger while they grow. */
static int32_t proposal_nodes(const spec_session *s)
{
    int32_t n = s->n_node;
    for (int32_t i = 0; i < s->drafters.n; i++)
        n = speci_max32(n, speci_max32(s->drafters.draft[i].size.n_node, s->drafters.draft[i].size.pool));
    return n;
}

static spec_status alloc_unions(spec_session *s, int32_t n_node)
{
    speci_drafters *all = &s->drafters;
    if (all->combine != SPEC_DRAFT_UNION || all->n < 2) return SPEC_OK;
    if (!(all->other = speci_alloc(s->a, (size_t)s->n_seq, sizeof *all->other))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        SPEC_TRY(spec_tree_alloc(&all->other[i], n_node, s->a));
        if (!(s->seqs[i].proposal.maker = speci_alloc(s->a, SPECI_MAX_NODE, 1))) return SPEC_E_NOMEM;
    }
    return spec_tree_alloc(&all->merged, s->n_node, s->a);
}

static spec_status alloc_host(spec_session *s)
{
    const size_t n = (size_t)s->n_seq;
    const int32_t n_node = proposal_nodes(s);
    bool ok = true;
    s->inputs = array(s, n, sizeof *s->inputs, &ok);
    s->asked = array(s, n, sizeof *s->asked, &ok);
    s->drafters.asked = array(s, n, sizeof *s->drafters.asked, &ok);
    s->step_ids = array(s, n * ((size_t)s->n_node + 1), sizeof *s->step_ids, &ok);
    s->step_logprobs = array(s, n * ((size_t)s->n_node + 1), sizeof *s->step_logprobs, &ok);
    s->step_results = array(s, n, sizeof *s->step_results, &ok);
    s->step_seqs = array(s, n, sizeof *s->step_seqs, &ok);
    if (!ok || !(s->seqs = array(s, n, sizeof *s->seqs, &ok))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        s->seqs[i].part = -1;
        SPEC_TRY(spec_tree_alloc(&s->seqs[i].proposal.tree, n_node, s->a));
    }
    SPEC_TRY(alloc_unions(s, n_node));
    return alloc_rounds(s);
}

/* --- open and close --- */

static spec_status take_drafters(spec_session *s, const wishes *w)
{
    for (int32_t i = 0; i < w->n_drafter; i++) {
        spec_drafter *d = w->drafters[i];
        if (d->kind->check) SPEC_TRY(d->kind->check(d, s->target));
        if (atomic_flag_test_and_set(&d->in_use))
            return speci_fail(SPEC_E_STATE, "the drafter already serves another session");
        speci_hold(&d->holds);
        s->taken[s->n_taken++] = d;
    }
    return SPEC_OK;
}

static spec_status alloc_device(spec_session *s)
{
    void *at = NULL;
    const spec_step_node root = { .parent = -1 };
    SPEC_TRY(s->ops->alloc(s->dev, &at, s->p_bytes));
    s->p = at;
    if (s->roots_bytes > 0) {
        SPEC_TRY(s->ops->alloc(s->dev, &at, s->roots_bytes));
        s->roots = at;
        for (int32_t i = 0; i < s->n_seq; i++) SPEC_TRY(s->ops->upload(s->queue, s->roots + i, &root, sizeof root));
    }
    if (s->q_bytes == 0) return SPEC_OK;
    SPEC_TRY(s->ops->alloc(s->dev, &at, s->q_bytes));
    s->site.q = at;
    return SPEC_OK;
}

/* What is being verified is always in the same places. */
static void place_batch(const spec_session *s, engine_round *r)
{
    speci_verify_batch *b = &r->batch;
    b->queue = s->queue, b->p = s->p, b->q = s->site.q, b->n_vocab = s->target->n_vocab;
}

static spec_status attach(spec_session *s)
{
    spec_memory memory = { 0 };
    int32_t n_plan, n_column;
    spec_plan *plans = speci_alloc(s->a, 2 + 2 * (size_t)s->drafters.n, sizeof *plans);
    spec_status status = plans ? sum_needs(s, plans, &n_plan, &n_column, &memory) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = s->ops->queue_open(s->dev, &s->queue, plans, n_plan, n_column);
    speci_free(s->a, plans);
    SPEC_TRY(status);
    s->site.queue = s->queue;
    SPEC_TRY(s->exec->kind->attach(s->exec, s->queue, s->captures));
    speci_hidden_attach(s);
    SPEC_TRY(alloc_device(s));
    place_batch(s, &s->round);
    for (int32_t i = 0; s->plain && i < 2 * s->n_seq; i++) place_batch(s, &s->plain[i]);
    for (int32_t i = 0; i < s->drafters.n; i++) {
        speci_draft *d = &s->drafters.draft[i];
        if (d->kind->attach) SPEC_TRY(d->kind->attach(d));
    }
    return SPEC_OK;
}

static spec_status open_session(spec_session *s, spec_model *target, const wishes *w)
{
    if (!(s->taken = speci_alloc(s->a, (size_t)w->n_drafter, sizeof *s->taken))) return SPEC_E_NOMEM;
    SPEC_TRY(take_drafters(s, w));
    SPEC_TRY(prepare(s, target, w));
    warn_of_context(s);
    SPEC_TRY(alloc_host(s));
    SPEC_TRY(speci_ways_open(s, w->params.adapt));
    SPEC_TRY(attach(s));
    return speci_profile_open(s, w->params.adapt, w->params.profile);
}

/* Memory that nobody asked for by a number: the context is the model's own. */
static spec_status no_memory_for_context(const spec_session *s)
{
    char why[256];
    snprintf(why, sizeof why, "%s", spec_last_error());
    return speci_fail(SPEC_E_NOMEM, "%s; n_ctx is not set, and the model's own is %d tokens: a smaller one takes less", why, s->n_ctx);
}

spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                              const spec_session_params *params)
{
    SPEC_NEED(out, "out");
    wishes w;
    spec_session *s;
    *out = NULL;
    SPEC_TRY(read_wishes(&w, drafter, params));
    SPEC_TRY(new_session(&s, target));
    spec_status status = open_session(s, target, &w);
    if (status != SPEC_OK) {
        if (status == SPEC_E_NOMEM && w.params.n_ctx == 0 && s->n_ctx > DEFAULT_CTX) status = no_memory_for_context(s);
        spec_session_close(s);
        return status;
    }
    *out = s;
    return SPEC_OK;
}

static void free_host(spec_session *s)
{
    speci_drafters *all = &s->drafters;
    for (int32_t i = 0; s->seqs && i < s->n_seq; i++) {
        spec_tree_free(&s->seqs[i].proposal.tree, s->a);
        speci_free(s->a, s->seqs[i].proposal.maker);
    }
    speci_watch_close(s);
    speci_ways_close(s);
    for (int32_t i = 0; i < all->n; i++) speci_free(s->a, all->draft[i].hidden[0]);
    for (int32_t i = 0; all->other && i < s->n_seq; i++) spec_tree_free(&all->other[i], s->a);
    spec_tree_free(&all->merged, s->a);
    close_round(s, &s->round);
    for (int32_t i = 0; s->plain && i < 2 * s->n_seq; i++) close_round(s, &s->plain[i]);
    void *arrays[] = { s->seqs, s->inputs, s->asked, all->asked, all->other, all->draft, s->draft_costs, s->first_ms, s->plain, s->step_ids,
                       s->step_logprobs, s->step_results, s->step_seqs, s->taken, s->taps };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

void spec_session_close(spec_session *s)
{
    if (!s) return;
    if (atomic_flag_test_and_set(&s->in_call)) { /* by a callback: when that call has ended */
        s->closes = spec_session_close;
        return;
    }
    if (s->queue) s->ops->sync(s->queue); /* nothing of this session runs on; a late error has no one to go to */
    for (int32_t i = 0; s->seqs && s->exec && i < s->n_seq; i++)
        if (s->seqs[i].live) speci_sequence_end(s, i);
    for (int32_t i = 0; i < s->drafters.n; i++)
        if (s->drafters.draft[i].kind->detach) s->drafters.draft[i].kind->detach(&s->drafters.draft[i]);
    speci_exec_close(s->exec);
    if (s->p) s->ops->free(s->dev, s->p, s->p_bytes);
    if (s->roots) s->ops->free(s->dev, s->roots, s->roots_bytes);
    if (s->site.q) s->ops->free(s->dev, s->site.q, s->q_bytes);
    speci_adjuster_close(s);
    if (s->queue) s->ops->queue_close(s->queue);
    for (int32_t i = 0; i < s->n_taken; i++) {
        atomic_flag_clear(&s->taken[i]->in_use);
        spec_drafter_close(s->taken[i]);
    }
    free_host(s);
    spec_model *target = s->target;
    speci_free(s->a, s);
    spec_model_close(target);
}

spec_status spec_session_get_info(const spec_session *s, spec_session_info *info)
{
    ENGINE_ENTER(s);
    SPEC_NEED(info, "info");
    spec_session_info own = { .n_seq = s->n_seq, .n_ctx = s->n_ctx, .n_node = s->n_node, .target = s->target };
    for (int32_t i = 0; i < s->n_seq; i++) own.n_seq_free += !s->seqs[i].live;
    return speci_params_write(info, &own, sizeof own, "spec_session_info");
}

spec_status spec_session_get_drafter_stats(const spec_session *s, spec_drafter_stats *stats, int32_t drafter)
{
    ENGINE_ENTER(s);
    SPEC_NEED(stats, "stats");
    spec_drafter_stats own = { .n_asked = 0 };
    if (drafter < 0 || drafter >= s->n_taken)
        return speci_fail(SPEC_E_INVALID, "there is no drafter %d; the session has %d", drafter, s->n_taken);
    if (drafter < s->drafters.n) own = s->drafters.draft[drafter].stats; /* else nobody is asked: trees are roots alone */
    return speci_params_write(stats, &own, sizeof own, "spec_drafter_stats");
}
