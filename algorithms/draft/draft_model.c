/* draft_model.c - a model as drafter: its executor in a session, and its drafts (algorithms.md 10.2).
 *
 * The executor's state covers committed tokens only. Each draft first commits what the executor was fed and what was since
 * accepted, then feeds the committed tokens that it has not seen (the last of them is the pending token, the root) as a chain
 * (draft_grow.c), and below it the nodes that the builder wants to know more of (there, or draft_expand.c), as one growing tree whose
 * states are never stored: the next draft replays what was accepted. */
#include "algorithms/draft/draft_model.h"

#include <string.h>

enum {
    DEFAULT_CTX = 4096, /* positions of a drafter with attention, where neither it nor the target has a limit */
    CHAIN = 2,   /* committed tokens in front of a draft, the root included: the last one drafted, and the one that followed */
    CHAIN_OTHER = 6 /* the same where a token of the target is several of the drafter */
};

/* --- the object --- */

/* What is asked for works with heads whose rows are a chain. */
static spec_status check_chain(const spec_drafter *d, const spec_model *model)
{
    if (d->n_resample > 0 && !(speci_model_is_head(model) && speci_head_chains(model)))
        return speci_fail(SPEC_E_INVALID, "%s: n_resample is for heads whose rows are a chain (Lyanna), which this is not", model->path);
    if (d->token_info != SPEC_TOKEN_INFO_FACTORED && !speci_head_has_token_info(model))
        return speci_fail(SPEC_E_INVALID, "%s: token_info is for heads that have it (Lyanna), and this has none", model->path);
    return SPEC_OK;
}

spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model, const spec_drafter_params *params)
{
    SPEC_NEED(out, "out");
    *out = NULL;
    SPEC_NEED(model, "model");
    const speci_draft_kind *kind = speci_model_is_head(model) ? &speci_draft_head : &speci_draft_model;
    SPEC_TRY(speci_drafter_create(out, kind, model->allocator, params, true));
    const spec_status status = check_chain(*out, model);
    if (status != SPEC_OK) {
        spec_drafter_close(*out);
        *out = NULL;
        return status;
    }
    (*out)->own = (*out)->held = model;
    speci_hold(&model->holds);
    return SPEC_OK;
}

/* --- does it fit a target? --- */

static spec_status check(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    if (m->backend != target->backend)
        return speci_fail(SPEC_E_INVALID, "the drafter %s is on backend %s, the target on %s: load both on one", m->path,
                          spec_backend_name(m->backend), spec_backend_name(target->backend));
    return speci_draft_vocab_check(d, target);
}

/* --- the executor --- */

/* Nodes of the executor's trees: a chain of a few committed tokens, the last of them the root, and the nodes that the builder
 * asks about. Tokens of steps without a draft are caught up by passes of so many: not as few as small trees have, unless each
 * of them costs a state. */
static int32_t tree_nodes(const model_draft *m)
{
    enum { CATCH_UP = 32 }; /* rows, of all sequences */
    const speci_draft_site *site = m->d->site;
    const int32_t n = site->n_q - 1 + m->n_chain + speci_draft_chain_nodes(m);
    return site->node_state ? n : speci_max32(n, CATCH_UP / site->n_seq);
}

/* Committed tokens in front of a draft: a head is given all that was accepted anew. */
static int32_t chain_nodes(const model_draft *m)
{
    int32_t depth = 0;
    for (int32_t i = 0; i < m->d->drafter->n_builder; i++) depth = speci_max32(depth, m->d->drafter->builders[i]->info.depth);
    const int32_t n_step = m->d->drafter->resample_across ? 2 : 1; /* a step in between whose draft was not fed */
    if (m->is_head) return speci_max32(CHAIN, speci_min32(n_step * (depth + 1), SPEC_MAX_DEPTH + 1));
    return m->vocab.map ? CHAIN_OTHER : CHAIN;
}

/* Without attention its positions have no limit, unless it says so itself. */
static int32_t context(const model_draft *m)
{
    const spec_model *model = m->model;
    if (model->n_ctx == 0 && !speci_model_attends(model)) return 0;
    const int32_t own = model->n_ctx, n = own > 0 && (m->n_own == 0 || own < m->n_own) ? own : m->n_own;
    return n ? n : DEFAULT_CTX;
}

static void *array(const speci_draft *d, size_t n, size_t size, bool *ok)
{
    void *p = speci_alloc(d->site->a, n, size);
    if (!p) *ok = false;
    return p;
}

static spec_status alloc_host(speci_draft *d, model_draft *m)
{
    const speci_draft_site *site = d->site;
    const size_t n = (size_t)site->n_seq, rows = n * (size_t)speci_max32(site->n_q, m->n_node);
    const size_t candidates = n * (size_t)site->n_q * (size_t)d->size.n_candidate;
    bool ok = true;
    model_rows *r = &m->rows;
    int32_t **by_row[] = { &r->src, &r->q_row, &r->seq, &r->place };
    int32_t **by_seq[] = { &m->drafting, &m->active, &m->behind, &m->feed_base, &m->grown.n };
    for (size_t i = 0; i < sizeof by_row / sizeof *by_row; i++) *by_row[i] = array(d, rows, sizeof(int32_t), &ok);
    for (size_t i = 0; i < sizeof by_seq / sizeof *by_seq; i++) *by_seq[i] = array(d, n, sizeof(int32_t), &ok);
    r->sampling = array(d, rows, sizeof *r->sampling, &ok);
    r->key = array(d, rows, sizeof *r->key, &ok);
    m->inputs = array(d, n, sizeof *m->inputs, &ok);
    m->n_path = speci_max32(SPECI_MAX_NODE, speci_max32(d->size.pool, m->n_node));
    m->path = array(d, (size_t)m->n_path, sizeof *m->path, &ok);
    m->roots = array(d, n, sizeof *m->roots, &ok);
    m->grown.node = array(d, n * (size_t)d->size.cap, sizeof *m->grown.node, &ok);
    m->drawn = array(d, candidates, sizeof *m->drawn, &ok);
    m->seen = array(d, candidates, sizeof *m->seen, &ok);
    m->seqs = array(d, n, sizeof *m->seqs, &ok);
    if (!ok) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        SPEC_TRY(spec_tree_alloc(&m->seqs[i].fed, m->n_node, site->a));
        SPEC_TRY(speci_draft_vocab_seq(m, &m->seqs[i]));
    }
    return SPEC_OK;
}

static spec_status prepare(speci_draft *d)
{
    const speci_draft_site *site = d->site;
    model_draft *m = speci_alloc(site->a, 1, sizeof *m);
    if (!m) return SPEC_E_NOMEM;
    d->state = m;
    m->d = d;
    m->model = d->drafter->own;
    m->is_head = speci_model_is_head(m->model);
    m->n_step_most = m->is_head ? INT32_MAX : SPEC_MAX_DEPTH + 1;
    SPEC_TRY(speci_draft_told_open(m));
    SPEC_TRY(speci_draft_vocab_open(m));
    SPEC_TRY(speci_draft_chain_open(m));
    m->n_chain = chain_nodes(m);
    m->n_node = tree_nodes(m);
    m->n_own = site->n_ctx > 0 ? speci_draft_positions(m, site->n_ctx) : 0;
    m->n_ctx = context(m);
    SPEC_TRY(alloc_host(d, m));
    const speci_exec_params p = { .n_seq = site->n_seq, .n_ctx = m->n_ctx ? m->n_ctx : site->n_ctx, .n_node = m->n_node,
                                  .recurrent = site->recurrent, .node_state = site->node_state,
                                  .target = m->is_head ? site->target : NULL,
                                  .collapsed = d->drafter->token_info == SPEC_TOKEN_INFO_COLLAPSED };
    SPEC_TRY(m->model->exec->open(&m->exec, m->model, &p));
    m->grow_bytes = d->size.cap > 0 ? speci_draft_grow_bytes(m) : 0;
    return SPEC_OK;
}

static void needs(const speci_draft *d, speci_draft_needs *out)
{
    const model_draft *m = d->state;
    if (m->model != d->site->target) out->memory.bytes_model += m->model->bytes_weights;
    m->exec->kind->memory(m->exec, &out->memory);
    out->memory.bytes_work += m->grow_bytes + m->vocab.bytes + m->told.bytes + m->chain.bytes;
    m->exec->kind->plans(m->exec, out->plans);
    out->n_plan = 2;
    out->n_row = d->site->n_seq * m->n_node;
    if (m->vocab.map && m->vocab.how != SPEC_DRAFT_VOCAB_INTERSECTION) out->n_column = m->model->n_vocab;
}

static spec_status attach(speci_draft *d)
{
    model_draft *m = d->state;
    const speci_draft_site *site = d->site;
    SPEC_TRY(m->exec->kind->attach(m->exec, site->queue, site->captures));
    SPEC_TRY(speci_draft_told_attach(m));
    SPEC_TRY(speci_draft_chain_attach(m));
    SPEC_TRY(speci_draft_vocab_attach(m));
    if (m->grow_bytes == 0) return SPEC_OK;
    SPEC_TRY(site->ops->alloc(site->dev, &m->grow_base, m->grow_bytes));
    speci_draft_grow_place(m);
    const spec_range all = { m->grow_base, m->grow_bytes };
    return site->ops->zero(site->queue, &all, 1); /* a tree that is scored before it is read may lack nodes: any token will do */
}

static void detach(speci_draft *d)
{
    model_draft *m = d->state;
    const speci_draft_site *site = d->site;
    if (!m) return;
    speci_exec_close(m->exec);
    if (m->grow_base) site->ops->free(site->dev, m->grow_base, m->grow_bytes);
    for (int32_t i = 0; m->seqs && i < site->n_seq; i++) spec_tree_free(&m->seqs[i].fed, site->a);
    speci_draft_vocab_close(m);
    speci_draft_told_close(m);
    speci_draft_chain_close(m);
    model_rows *r = &m->rows;
    void *arrays[] = { r->src, r->q_row, r->seq, r->place, r->sampling, r->key, m->inputs, m->path, m->drafting, m->active,
                       m->behind, m->feed_base, m->grown.n, m->roots, m->grown.node, m->drawn, m->seen, m->seqs, m };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(site->a, arrays[i]);
    d->state = NULL;
}

/* --- in step with the sequence --- */

static spec_status prefill(speci_draft *d, const speci_draft_seq *q)
{
    model_draft *m = d->state;
    SPEC_TRY(speci_draft_begin(m, q));
    if (m->seqs[q->seq].outgrown) return SPEC_OK;
    m->exec->kind->begin(m->exec, q->seq);
    return speci_draft_consume(m, q->seq);
}

/* A sequence is in the drafter's ids as it came, prompts and steps: what a copy or a saved one goes on with. When there is no
 * memory for it, the next draft asks for it again. */
static void committed(speci_draft *d, const speci_draft_seq *q, int32_t n_new)
{
    (void)n_new;
    (void)speci_draft_follow(d->state, q);
}

static void end(speci_draft *d, int32_t seq)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[seq];
    m->exec->kind->end(m->exec, seq);
    s->begun = false;
    s->fed.n = s->n_fed = 0;
    speci_buf_free(&s->own.ids);
    s->own.n_from = s->own.n_held = s->n_ids = 0;
}

/* --- a draft --- */

/* Drafts may stand so deep: what has a use, the executor's own context, the builder's wish. In that context the root stands
 * at n_ids - 1, and the deepest nodes need no position, since they are not fed. How much text a depth of the drafter's is of the
 * target's is known when it is written. Behind half a character the distribution would be that of another place. */
static int32_t depth_of(const model_draft *m, const speci_draft_seq *q)
{
    const model_seq *s = &m->seqs[q->seq];
    const bool shares = !m->vocab.feed || m->vocab.map->n_twin > 0;
    if (!shares || s->outgrown || s->n_ids == 0 || s->own.n_held > 0) return 0;
    const int32_t depth = m->vocab.by_text ? m->b->info.depth : speci_min32(q->depth_max, m->b->info.depth);
    return m->n_ctx > 0 ? speci_min32(depth, m->n_ctx - s->n_ids + 1) : depth;
}

/* What is asked of the builder: the tree that was asked for; or, by text, a greedy one of the drafter's ids. */
static void ask(model_draft *m, speci_draft_seq *q)
{
    static const spec_sampling greedy = { 0 };
    model_seq *s = &m->seqs[q->seq];
    s->depth = depth_of(m, q);
    s->ask = *q;
    if (m->vocab.by_text) {
        s->ask.tree = &s->written;
        s->ask.sampling = &greedy;
        s->written.n = 0, s->written.kind = SPEC_TREE_DETERMINISTIC;
        (void)spec_tree_add(&s->written, -1, 0, 1);
    }
    if (!m->vocab.by_text || s->depth == 0) q->depth_max = s->depth;
    s->kind = s->ask.sampling->temperature > 0 ? m->b->info.kind : SPEC_TREE_DETERMINISTIC;
    s->sampling = s->kind != SPEC_TREE_DETERMINISTIC ? *s->ask.sampling : (spec_sampling){ .temperature = 1 };
    if (m->d->drafter->temperature > 0) s->sampling.temperature = m->d->drafter->temperature;
}

/* Nothing of what was fed counts. */
static void forget(speci_draft *d)
{
    model_draft *m = d->state;
    for (int32_t i = 0; i < m->n_drafting; i++) {
        model_seq *s = &m->seqs[m->drafting[i]];
        if (!s->outgrown && !s->rides) m->exec->kind->commit(m->exec, m->drafting[i], NULL, 0);
        s->fed.n = s->n_fed = 0, s->rides = false;
    }
    m->n_drafting = 0;
}

static spec_status draft(model_draft *m, speci_draft_seq *seqs, int32_t n)
{
    const bool across = m->d->drafter->resample_across;
    m->n_drafting = m->n_active = 0;
    m->chain.now = false;
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(speci_draft_follow(m, &seqs[i]));
        ask(m, &seqs[i]);
        if (m->seqs[seqs[i].seq].depth == 0) continue;
        speci_draft_commit_fed(m, seqs[i].seq);
        m->drafting[m->n_drafting++] = m->active[m->n_active++] = seqs[i].seq;
    }
    if (m->n_drafting == 0) return SPEC_OK;
    if (across) speci_draft_choose_riders(m);
    SPEC_TRY(speci_draft_catch_up(m));
    if (m->b->host_driven) return speci_draft_expand(m);
    if (m->chain.n_level > 0) SPEC_TRY(speci_draft_chain(m));
    if (across) speci_draft_join_riders(m, seqs, n);
    return speci_draft_grow(m, &m->grown);
}

/* Its trees, which are there. */
static spec_status read(speci_draft *d)
{
    model_draft *m = d->state;
    for (int32_t i = 0; i < m->n_drafting; i++) SPEC_TRY(speci_draft_take_tree(m, m->drafting[i], &m->grown));
    return SPEC_OK;
}

/* What was drafted by text, in the target's ids. */
static spec_status write(model_draft *m, const speci_draft_seq *seqs, int32_t n)
{
    if (m->n_drafting > 0 && !m->b->host_driven) {
        SPEC_TRY(m->d->site->ops->sync(m->d->site->queue));
        SPEC_TRY(read(m->d));
    }
    for (int32_t i = 0; i < n; i++)
        if (m->seqs[seqs[i].seq].depth > 0) SPEC_TRY(speci_draft_write(m, &m->seqs[seqs[i].seq], &seqs[i]));
    return SPEC_OK;
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    model_draft *m = d->state;
    m->b = b;
    spec_status status = draft(m, seqs, n);
    if (status == SPEC_OK && m->vocab.by_text) status = write(m, seqs, n);
    bool taken = b->host_driven || m->vocab.by_text;
    if (status == SPEC_OK && m->chain.now && m->chain.n_half == 2) status = speci_draft_again(m, &taken);
    if (status != SPEC_OK) forget(d);
    if (status != SPEC_OK || m->n_drafting == 0 || taken) return status;
    d->grown = m->grow.node, d->ld_grown = m->grow.cap;
    return SPEC_OK;
}

/* --- fork --- */

/* What the executor was fed beyond the positions that its state covers stays with the original: the copy is fed those ids
 * anew, to the same bits. */
static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    model_draft *m = d->state;
    const model_seq *from = &m->seqs[q->seq];
    model_seq *s = &m->seqs[to];
    SPEC_TRY(speci_draft_follow(m, q));
    s->begun = true;
    s->outgrown = from->outgrown;
    s->fed.n = s->n_fed = 0;
    s->own.ids.n = 0;
    SPEC_TRY(speci_buf_add(&s->own.ids, from->own.ids.data, from->own.ids.n));
    const speci_buf ids = s->own.ids;
    s->own = from->own;
    s->own.ids = ids;
    s->ids = speci_buf_ids(&s->own.ids), s->n_ids = (int32_t)speci_buf_n_ids(&s->own.ids);
    return from->outgrown ? SPEC_OK : m->exec->kind->copy(m->exec, q->seq, to);
}

/* --- cost --- */

static speci_exec *exec(const speci_draft *d, int32_t seq, int32_t *n_timed, int32_t *n_most)
{
    const model_draft *m = d->state;
    *n_timed = speci_min32(d->site->n_q + 1, m->n_node), *n_most = m->n_node;
    return m->seqs[seq].outgrown ? NULL : m->exec;
}

const speci_draft_kind speci_draft_model = {
    .name = "model", .check = check, .prepare = prepare, .needs = needs, .attach = attach, .detach = detach,
    .prefill = prefill, .committed = committed, .enqueue = enqueue, .read = read, .forget = forget, .fork = fork,
    .end = end, .identity = speci_draft_identity, .save = speci_draft_save, .restore = speci_draft_restore, .exec = exec,
    .lag = speci_draft_lag_of,
};

const speci_draft_kind speci_draft_head = {
    .name = "head", .check = speci_draft_head_check, .prepare = prepare, .needs = needs, .attach = attach, .detach = detach,
    .hidden = speci_draft_head_hidden, .prefill = speci_draft_head_prefill, .enqueue = enqueue, .read = read, .forget = forget,
    .fork = speci_draft_head_fork, .end = end, .identity = speci_draft_identity, .save = speci_draft_head_save,
    .restore = speci_draft_head_restore, .exec = exec, .lag = speci_draft_lag_of,
};
