/* draft_model.c - a model as drafter: its executor in a session, and how that is kept in step (algorithms.md 10.2).
 *
 * The executor's state covers committed tokens only. Each draft first commits what the executor was fed and what was since
 * accepted, then feeds the committed tokens that it has not seen (the last of them is the pending token, the root) as a chain,
 * and below it the nodes that the builder wants to know more of (draft_grow.c, draft_expand.c), as one growing tree whose
 * states are never stored: the next draft replays what was accepted. */
#include "algorithms/draft/draft_model.h"

#include <string.h>

enum { DEFAULT_CTX = 4096, PROMPT = 64 /* tokens that are a prompt rather than a few steps without a draft */ };

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

/* --- the object --- */

spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model, const spec_drafter_params *params)
{
    SPEC_NEED(out, "out");
    SPEC_NEED(model, "model");
    SPEC_TRY(speci_drafter_create(out, &speci_draft_model, model->allocator, params, true));
    (*out)->own = (*out)->held = model;
    speci_hold(&model->holds);
    return SPEC_OK;
}

/* --- does it fit a target? --- */

/* A drafter speaks in ids: where its pieces differ from the target's, its proposals would mean something else. Tokens that
 * one of the models has no row for are never proposed. */
static spec_status check_pieces(const spec_model *draft, const spec_model *target)
{
    const spec_tokenizer *d = draft->tokenizer, *t = target->tokenizer;
    spec_tokenizer_info di = SPEC_STRUCT_INIT(spec_tokenizer_info), ti = di;
    SPEC_TRY(spec_tokenizer_get_info(d, &di));
    SPEC_TRY(spec_tokenizer_get_info(t, &ti));
    const int32_t n = min32(min32(di.n_vocab, ti.n_vocab), min32(draft->n_vocab, target->n_vocab));
    for (int32_t id = 0; id < n; id++) {
        size_t nd, nt;
        const char *pd = spec_tokenizer_piece(d, &nd, id), *pt = spec_tokenizer_piece(t, &nt, id);
        if (nd != nt || (nd > 0 && memcmp(pd, pt, nd) != 0))
            return speci_fail(SPEC_E_INVALID,
                              "the drafter has another vocabulary: token %d is \"%.*s\" in %s and \"%.*s\" in %s", id,
                              (int)nd, pd ? pd : "", draft->path, (int)nt, pt ? pt : "", target->path);
    }
    return SPEC_OK;
}

static spec_status check(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    if (m->backend != target->backend)
        return speci_fail(SPEC_E_INVALID, "the drafter %s is on backend %s, the target on %s: load both on one", m->path,
                          spec_backend_name(m->backend), spec_backend_name(target->backend));
    if (m->tokenizer && target->tokenizer) return check_pieces(m, target);
    if (m->n_vocab != target->n_vocab)
        return speci_fail(SPEC_E_INVALID,
                          "the drafter has %d ids and the target %d, and without both tokenizers they cannot be compared",
                          m->n_vocab, target->n_vocab);
    return SPEC_OK;
}

/* --- the executor --- */

/* Nodes of the executor's trees: a chain of at most two committed tokens, the second the root, and the nodes that the builder
 * asks about. Tokens of steps without a draft are caught up by passes of so many: not as few as small trees have, unless each
 * of them costs a state. */
static int32_t tree_nodes(const speci_draft *d)
{
    enum { CATCH_UP = 32 }; /* rows, of all sequences */
    const int32_t n = d->site->n_q + 1;
    return d->site->node_state ? n : max32(n, CATCH_UP / d->site->n_seq);
}

/* Without attention its positions have no limit, unless it says so itself. */
static int32_t context(const spec_model *model, const speci_draft_site *site)
{
    if (model->n_ctx == 0 && !speci_model_attends(model)) return 0;
    const int32_t own = model->n_ctx, n = own > 0 && (site->n_ctx == 0 || own < site->n_ctx) ? own : site->n_ctx;
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
    const size_t n = (size_t)site->n_seq, rows = n * (size_t)max32(site->n_q, m->n_node);
    const size_t candidates = n * (size_t)site->n_q * (size_t)d->size.n_candidate;
    bool ok = true;
    model_rows *r = &m->rows;
    int32_t **by_row[] = { &r->src, &r->q_row, &r->seq, &r->place };
    int32_t **by_seq[] = { &m->drafting, &m->active, &m->feed_base, &m->n_nodes };
    for (size_t i = 0; i < sizeof by_row / sizeof *by_row; i++) *by_row[i] = array(d, rows, sizeof(int32_t), &ok);
    for (size_t i = 0; i < sizeof by_seq / sizeof *by_seq; i++) *by_seq[i] = array(d, n, sizeof(int32_t), &ok);
    r->sampling = array(d, rows, sizeof *r->sampling, &ok);
    r->key = array(d, rows, sizeof *r->key, &ok);
    m->inputs = array(d, n, sizeof *m->inputs, &ok);
    m->n_path = max32(SPECI_MAX_NODE, max32(d->size.pool, m->n_node));
    m->path = array(d, (size_t)m->n_path, sizeof *m->path, &ok);
    m->roots = array(d, n, sizeof *m->roots, &ok);
    m->nodes = array(d, n * (size_t)d->size.cap, sizeof *m->nodes, &ok);
    m->drawn = array(d, candidates, sizeof *m->drawn, &ok);
    m->seen = array(d, candidates, sizeof *m->seen, &ok);
    m->seqs = array(d, n, sizeof *m->seqs, &ok);
    if (!ok) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) SPEC_TRY(spec_tree_alloc(&m->seqs[i].fed, m->n_node, site->a));
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
    m->n_node = tree_nodes(d);
    m->n_ctx = context(m->model, site);
    SPEC_TRY(alloc_host(d, m));
    const speci_exec_params p = { .n_seq = site->n_seq, .n_ctx = m->n_ctx ? m->n_ctx : site->n_ctx, .n_node = m->n_node,
                                  .recurrent = site->recurrent, .node_state = site->node_state };
    SPEC_TRY(speci_exec_open(&m->exec, m->model, &p));
    m->grow_bytes = d->size.cap > 0 ? speci_draft_grow_bytes(m) : 0;
    return SPEC_OK;
}

static void needs(const speci_draft *d, speci_draft_needs *out)
{
    const model_draft *m = d->state;
    if (m->model != d->site->target) out->memory.bytes_model += m->model->bytes_weights;
    speci_exec_memory(m->exec, &out->memory);
    out->memory.bytes_work += m->grow_bytes;
    speci_exec_plans(m->exec, out->plans);
    out->n_plan = 2;
    out->n_row = d->site->n_seq * m->n_node;
}

static spec_status attach(speci_draft *d)
{
    model_draft *m = d->state;
    const speci_draft_site *site = d->site;
    SPEC_TRY(speci_exec_attach(m->exec, site->queue, site->captures));
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
    model_rows *r = &m->rows;
    void *arrays[] = { r->src, r->q_row, r->seq, r->place, r->sampling, r->key, m->inputs, m->path, m->drafting, m->active,
                       m->feed_base, m->n_nodes, m->roots, m->nodes, m->drawn, m->seen, m->seqs, m };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(site->a, arrays[i]);
    d->state = NULL;
}

/* --- in step with the sequence --- */

/* The drafter may know fewer ids; any stand-in only lowers acceptance. */
static int32_t known_token(const model_draft *m, int32_t token) { return token < m->model->n_vocab ? token : 0; }

static bool outgrows(const model_draft *m, int32_t n_ids) { return m->n_ctx > 0 && n_ids > m->n_ctx; }

static void begin(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    s->begun = true;
    s->outgrown = outgrows(m, q->n_ids);
    s->fed.n = s->n_fed = 0;
}

/* What the executor has not seen of all but the pending token, as a prompt. */
static spec_status consume(model_draft *m, const speci_draft_seq *q)
{
    const speci_draft_site *site = m->d->site;
    const int32_t first = speci_exec_n_past(m->exec, q->seq), n = q->n_ids - 1 - first;
    const speci_prefill_hooks hooks = { .poll = site->stopped, .arg = site->stopped_arg };
    int32_t *ids = speci_alloc(site->a, (size_t)n, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < n; i++) ids[i] = known_token(m, q->ids[first + i]);
    const spec_status status = speci_exec_prefill(m->exec, q->seq, ids, (size_t)n, &hooks);
    speci_free(site->a, ids);
    return status;
}

static spec_status prefill(speci_draft *d, const speci_draft_seq *q)
{
    model_draft *m = d->state;
    begin(m, q);
    if (m->seqs[q->seq].outgrown) return SPEC_OK;
    speci_exec_begin(m->exec, q->seq);
    return consume(m, q);
}

static void end(speci_draft *d, int32_t seq)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[seq];
    speci_exec_end(m->exec, seq);
    s->begun = false;
    s->fed.n = s->n_fed = 0;
}

static int32_t fed_child(const model_seq *s, int32_t node, int32_t token)
{
    for (int32_t c = node + 1; c < s->n_fed; c++)
        if (s->fed.parent[c] == node && s->fed.token[c] == token) return c;
    return -1;
}

/* Commits what was fed and is now committed. The pending token is left out, since its row must be computed anew. */
static void commit_fed(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t base = speci_exec_n_past(m->exec, q->seq);
    int32_t n = 0;
    int32_t node = s->n_fed > 0 && base < q->n_ids && s->fed.token[0] == known_token(m, q->ids[base]) ? 0 : -1;
    for (; node >= 0 && base + n < q->n_ids - 1; node = fed_child(s, node, known_token(m, q->ids[base + n]))) m->path[n++] = node;
    speci_exec_commit(m->exec, q->seq, m->path, n);
    s->fed.n = s->n_fed = 0;
}

/* Makes `fed` the chain of committed tokens that the executor has not seen, with room for n_row - 1 nodes below it. More than
 * two (a caller's own trees can leave that many) are fed first, a whole prompt that was appended as one. */
static spec_status catch_up(model_draft *m, const speci_draft_seq *q, int32_t n_row)
{
    model_seq *s = &m->seqs[q->seq];
    commit_fed(m, q);
    if (q->n_ids - speci_exec_n_past(m->exec, q->seq) > PROMPT) SPEC_TRY(consume(m, q));
    for (;;) {
        const int32_t base = speci_exec_n_past(m->exec, q->seq), left = q->n_ids - base;
        const bool fits = left + n_row - 1 <= m->n_node && left <= 2;
        const int32_t n = fits ? left : min32(left - 1, min32(m->n_node, SPEC_MAX_DEPTH));
        for (int32_t i = 0; i < n; i++) spec_tree_add(&s->fed, i - 1, known_token(m, q->ids[base + i]), 0);
        if (fits) return SPEC_OK;
        SPEC_TRY(speci_draft_feed(m, &q->seq, 1));
        commit_fed(m, q);
    }
}

/* --- a draft --- */

/* Drafts may stand so deep: what has a use, the executor's own context, the builder's wish. In that context the root stands
 * at n_ids - 1, and the deepest nodes need no position, since they are not fed. */
static int32_t depth_of(const model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    if (outgrows(m, q->n_ids)) s->outgrown = true;
    if (s->outgrown) return 0;
    const int32_t depth = min32(q->depth_max, m->b->info.depth);
    return m->n_ctx > 0 ? min32(depth, m->n_ctx - q->n_ids + 1) : depth;
}

/* Nothing of what was fed counts. */
static void forget(speci_draft *d)
{
    model_draft *m = d->state;
    for (int32_t i = 0; i < m->n_drafting; i++) {
        model_seq *s = &m->seqs[m->drafting[i]];
        if (!s->outgrown) speci_exec_commit(m->exec, m->drafting[i], NULL, 0);
        s->fed.n = s->n_fed = 0;
    }
    m->n_drafting = 0;
}

static spec_status draft(model_draft *m, speci_draft_seq *seqs, int32_t n)
{
    m->n_drafting = m->n_active = 0;
    for (int32_t i = 0; i < n; i++) {
        model_seq *s = &m->seqs[seqs[i].seq];
        s->depth = seqs[i].depth_max = depth_of(m, &seqs[i]);
        s->ask = seqs[i];
        if (s->depth == 0) continue;
        SPEC_TRY(catch_up(m, &seqs[i], m->b->info.n_row));
        m->drafting[m->n_drafting++] = m->active[m->n_active++] = seqs[i].seq;
    }
    if (m->n_active == 0) return SPEC_OK;
    return speci_builder_is_host_driven(m->b) ? speci_draft_expand(m) : speci_draft_grow(m);
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    model_draft *m = d->state;
    m->b = b;
    const spec_status status = draft(m, seqs, n);
    if (status != SPEC_OK) forget(d);
    if (status != SPEC_OK || m->n_drafting == 0 || speci_builder_is_host_driven(b)) return status;
    d->grown = m->grow.node, d->ld_grown = m->grow.cap;
    return SPEC_OK;
}

static spec_status read(speci_draft *d)
{
    const spec_status status = speci_draft_grow_read(d->state);
    if (status != SPEC_OK) forget(d);
    return status;
}

/* --- fork, save, restore --- */

/* What the executor was fed beyond the positions that its state covers stays with the original: the copy is fed those ids
 * anew, to the same bits. */
static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    model_draft *m = d->state;
    const model_seq *from = &m->seqs[q->seq];
    m->seqs[to].begun = true;
    m->seqs[to].outgrown = from->outgrown;
    m->seqs[to].fed.n = m->seqs[to].n_fed = 0;
    return from->outgrown ? SPEC_OK : speci_exec_copy(m->exec, q->seq, to);
}

static uint64_t identity(const spec_drafter *d)
{
    const spec_model *m = d->own;
    if (m->fingerprint == 0) return 0; /* its sequences cannot be saved */
    const int32_t sizes[] = { (int32_t)m->dtype, m->n_vocab, m->dim, m->n_layer };
    speci_hash h = { 0 };
    speci_hash_text(&h, m->family);
    speci_hash_add(&h, sizes, sizeof sizes);
    speci_hash_add(&h, &m->fingerprint, sizeof m->fingerprint);
    return speci_hash_value(&h);
}

/* In front of the executor's bytes; little-endian hosts only, as the states are. */
typedef struct saved_head {
    int32_t outgrown, n_past, n_recent, zero;
} saved_head;

static spec_status save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    model_draft *m = d->state;
    saved_head h = { .outgrown = m->seqs[q->seq].outgrown };
    *bytes = sizeof h;
    if (!put && !h.outgrown) SPEC_TRY(speci_exec_flush(m->exec, q->seq));
    if (!h.outgrown) {
        uint64_t n;
        SPEC_TRY(speci_exec_seq_bytes(m->exec, q->seq, &n));
        h.n_past = speci_exec_n_past(m->exec, q->seq), h.n_recent = speci_exec_n_recent(m->exec, q->seq);
        *bytes += n;
    }
    if (!put) return SPEC_OK;
    SPEC_TRY(put(arg, &h, sizeof h));
    return h.outgrown ? SPEC_OK : speci_exec_write(m->exec, q->seq, put, arg);
}

/* A state that lags can only go on where scans are chunked: this executor keeps one per node, say. */
static bool goes_on(const model_draft *m, const saved_head *h)
{
    return h->n_recent <= 0 || speci_exec_can_lag(m->exec, 1, 1);
}

static spec_status skip(uint64_t n, speci_get_fn get, void *arg)
{
    uint8_t bytes[4096];
    for (; n > 0; n -= n < sizeof bytes ? n : sizeof bytes) SPEC_TRY(get(arg, bytes, n < sizeof bytes ? (size_t)n : sizeof bytes));
    return SPEC_OK;
}

static spec_status check_head(const model_draft *m, const saved_head *h, const speci_draft_seq *q, uint64_t bytes)
{
    if (h->n_past < 0 || h->n_past > q->n_ids - 1)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter is at position %d of %d", h->n_past, q->n_ids);
    if (!speci_exec_can_lag(m->exec, h->n_past, h->n_recent))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter's states lag %d of %d positions, which cannot be",
                          h->n_recent, h->n_past);
    return speci_exec_check_bytes(m->exec, h->n_past, h->n_recent, bytes, "drafter");
}

static spec_status restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    model_draft *m = d->state;
    saved_head h;
    if (bytes < sizeof h)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of a drafter", (unsigned long long)bytes);
    SPEC_TRY(get(arg, &h, sizeof h));
    bytes -= sizeof h;
    begin(m, q);
    if (h.outgrown || m->seqs[q->seq].outgrown) {
        m->seqs[q->seq].outgrown = true;
        return skip(bytes, get, arg);
    }
    if (!goes_on(m, &h)) {
        SPEC_TRY(skip(bytes, get, arg));
        return prefill(d, q);
    }
    SPEC_TRY(check_head(m, &h, q, bytes));
    return speci_exec_read(m->exec, q->seq, h.n_past, h.n_recent, bytes, get, arg);
}

/* --- cost --- */

static speci_exec *exec(const speci_draft *d, int32_t seq, int32_t *n_timed, int32_t *n_most)
{
    const model_draft *m = d->state;
    *n_timed = min32(d->site->n_q + 1, m->n_node), *n_most = m->n_node;
    return m->seqs[seq].outgrown ? NULL : m->exec;
}

const speci_draft_kind speci_draft_model = {
    .name = "model", .check = check, .prepare = prepare, .needs = needs, .attach = attach, .detach = detach,
    .prefill = prefill, .enqueue = enqueue, .read = read, .forget = forget, .fork = fork, .end = end, .identity = identity,
    .save = save, .restore = restore, .exec = exec,
};
