/* draft_grow.c - what the executor of a model that drafts is fed: committed ids that it has not seen, so that it is in step with the
 * sequence (algorithms.md 10.2), and below the last of them trees that grow on the device, for many sequences at once (4).
 *
 * A builder with levels is a list of rules: pass, distributions, draw, expand, level after level, all of it enqueued without a
 * look from the host. The trees are read once, when they are there. The distributions that candidates were drawn from stay in
 * the session's rows, where verification finds them. */
#include "algorithms/draft/draft_model.h"

/* --- ids ---
 *
 * With another vocabulary the sequence is kept in the drafter's ids, which are only ever appended to: a recurrent state cannot be taken
 * back. A prompt is encoded as one text, each emitted token on its own, so that an accepted token is fed by the id that drafted it. */

/* The target's. */
static spec_status take_ids(const model_draft *m, speci_translation *x, const int32_t *ids, int32_t n)
{
    SPEC_TRY(speci_buf_reserve(&x->ids, (size_t)n * sizeof *ids));
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = speci_draft_feed_id(m, ids[i]);
        SPEC_TRY(speci_buf_add(&x->ids, &id, sizeof id));
    }
    x->n_from += n;
    return SPEC_OK;
}

spec_status speci_draft_follow(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t *ids = q->ids + s->own.n_from, n = q->n_ids - s->own.n_from;
    const bool prompt = s->own.n_from == 0 || n > m->n_step_most;
    if (m->is_head) s->ids = q->ids + s->first + 1, s->n_ids = s->n_told;
    if (m->is_head || s->outgrown || n == 0) return SPEC_OK;
    const spec_status status = m->vocab.map ? speci_translate(&s->own, m->vocab.map, ids, n, prompt || m->vocab.by_text)
                                            : take_ids(m, &s->own, ids, n);
    /* After an error, too: they may have moved. */
    s->ids = speci_buf_ids(&s->own.ids), s->n_ids = (int32_t)speci_buf_n_ids(&s->own.ids);
    s->outgrown = m->n_ctx > 0 && s->n_ids > m->n_ctx;
    return status;
}

spec_status speci_draft_begin(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    s->begun = true, s->outgrown = false;
    s->fed.n = s->n_fed = 0;
    s->own.ids.n = 0, s->own.n_from = s->own.n_held = s->n_ids = 0;
    SPEC_TRY(speci_buf_reserve(&s->own.ids, (size_t)speci_draft_room_of(m, q) * sizeof(int32_t)));
    if (m->vocab.map) SPEC_TRY(speci_translation_begin(&s->own, m->vocab.map));
    return speci_draft_follow(m, q);
}

/* --- what was fed --- */

/* Of what was fed the nodes that are now committed, to `path`; returns how many. */
static int32_t n_accepted(const model_draft *m, int32_t seq, int32_t *path)
{
    const model_seq *s = &m->seqs[seq];
    const int32_t base = m->exec->kind->n_past(m->exec, seq);
    int32_t n = 0;
    spec_tree fed = s->fed;
    if (s->n_fed == 0 || s->rides) return 0;
    fed.n = m->is_head ? s->n_given : s->n_fed;
    int32_t node = base < s->n_ids && fed.token[0] == s->ids[base] ? 0 : -1;
    for (; node >= 0 && base + n < s->n_ids - 1; node = speci_tree_child_with(&fed, node, s->ids[base + n])) path[n++] = node;
    return n;
}

/* With nothing fed a path that is pending stays so. */
void speci_draft_commit_fed(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    if (s->n_fed > 0 && !s->rides) m->exec->kind->commit(m->exec, seq, m->path, n_accepted(m, seq, m->path));
    s->fed.n = s->n_fed = 0, s->rides = false;
}

/* --- what is to be fed --- */

/* Where an engine of the application's fails in it, its sequence is ended: another one begins with all ids. */
spec_status speci_draft_consume(model_draft *m, int32_t seq)
{
    const speci_draft_site *site = m->d->site;
    const model_seq *s = &m->seqs[seq];
    const speci_prefill_hooks hooks = { .poll = site->stopped, .arg = site->stopped_arg };
    const int32_t first = m->exec->kind->n_past(m->exec, seq), n = speci_max32(s->n_ids - 1 - first, 0);
    const spec_status status = m->exec->kind->prefill(m->exec, seq, s->ids + first, (size_t)n, &hooks);
    if (status == SPEC_OK || status == SPEC_E_ABORTED || status == SPEC_E_DEVICE) return status;
    m->exec->kind->end(m->exec, seq);
    m->exec->kind->begin(m->exec, seq);
    return status;
}

/* Of `left` committed tokens the pass in front of a draft by this builder takes so many; 0: they fit into one pass with it. */
static int32_t n_behind(const model_draft *m, const spec_builder *b, int32_t left)
{
    const spec_builder_info *tree = &b->info;
    const bool fit = left <= m->n_chain && left + tree->n_row - 1 <= m->n_node && left + tree->depth - 2 <= SPEC_MAX_DEPTH;
    return fit ? 0 : speci_min32(left - 1, speci_min32(m->n_node, SPEC_MAX_DEPTH));
}

/* Chains of what the executor has not seen of these sequences, or as much of it as the next pass takes. Those that are still behind then
 * come first, in m->behind; how many. */
static int32_t lay_chains(model_draft *m, const int32_t *seqs, int32_t n)
{
    int32_t n_left = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t seq = seqs[i];
        model_seq *s = &m->seqs[seq];
        const int32_t base = m->exec->kind->n_past(m->exec, seq), left = s->n_ids - base, behind = n_behind(m, m->b, left);
        s->n_given = behind > 0 ? behind : left;
        for (int32_t k = 0; k < s->n_given; k++) spec_tree_add(&s->fed, k - 1, s->ids[base + k], 0);
        if (behind > 0) m->behind[n_left++] = seq;
    }
    return n_left;
}

/* More than fit (steps without a draft leave many, a caller's own trees too) are fed first, those of all sequences together; a whole
 * prompt that was appended as one. */
spec_status speci_draft_catch_up(model_draft *m)
{
    for (int32_t i = 0; i < m->n_active; i++) {
        const int32_t seq = m->active[i];
        if (m->seqs[seq].n_ids - m->exec->kind->n_past(m->exec, seq) > m->n_step_most) SPEC_TRY(speci_draft_consume(m, seq));
    }
    for (int32_t n = lay_chains(m, m->active, m->n_active); n > 0; n = lay_chains(m, m->behind, n)) {
        SPEC_TRY(speci_draft_feed(m, m->behind, n));
        for (int32_t i = 0; i < n; i++) speci_draft_commit_fed(m, m->behind[i]);
    }
    return SPEC_OK;
}

/* Of `left` ids those that were fed and are committed by now. What a head was given is; its ids are there only while it is told rows. */
static int32_t n_covered(const model_draft *m, int32_t seq, int32_t left)
{
    const model_seq *s = &m->seqs[seq];
    if (!m->is_head) return n_accepted(m, seq, m->path);
    return s->n_fed > 0 && !s->rides ? speci_min32(s->n_given, left - 1) : 0;
}

/* As speci_draft_catch_up() would. */
speci_draft_lag speci_draft_lag_of(const speci_draft *d, const spec_builder *b, const int32_t *seqs, int32_t n)
{
    const model_draft *m = d->state;
    speci_draft_lag lag = { 0 };
    int32_t n_shared = 0;
    for (int32_t i = 0; i < n; i++) {
        const model_seq *s = &m->seqs[seqs[i]];
        if (s->outgrown || !s->begun) continue;
        int32_t n_pass = 0, left = s->n_ids - m->exec->kind->n_past(m->exec, seqs[i]);
        left -= n_covered(m, seqs[i], left);
        if (left > m->n_step_most) lag.n_pass++, lag.n_row += left - 1, left = 1;
        for (int32_t k; (k = n_behind(m, b, left)) > 0; left -= k) n_pass++, lag.n_row += k;
        n_shared = speci_max32(n_shared, n_pass);
    }
    lag.n_pass += n_shared;
    return lag;
}

/* --- passes and rows, for both ways to grow --- */

spec_status speci_draft_feed(model_draft *m, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const model_seq *s = &m->seqs[seqs[i]];
        m->inputs[i] = (speci_exec_input){ .slot = seqs[i], .tree = &s->fed, .n_fed = s->n_fed };
    }
    if (m->is_head) SPEC_TRY(speci_draft_give(m, seqs, n));
    SPEC_TRY(m->exec->kind->forward(m->exec, m->inputs, n, NULL, NULL));
    for (int32_t i = 0; i < n; i++) m->seqs[seqs[i]].n_fed = m->seqs[seqs[i]].fed.n;
    return SPEC_OK;
}

int32_t speci_draft_feed_id(const model_draft *m, int32_t token)
{
    const int32_t id = m->vocab.feed ? m->vocab.feed[token] : token;
    return id < 0 || id >= m->model->n_vocab ? 0 : id;
}

void speci_draft_add_row(model_draft *m, int32_t *n, int32_t src, int32_t seq, int32_t q_row, int32_t place)
{
    model_rows *r = &m->rows;
    r->src[*n] = src;
    r->q_row[*n] = seq * m->d->site->n_q + q_row;
    r->sampling[*n] = m->seqs[seq].sampling;
    r->seq[*n] = seq;
    r->place[(*n)++] = place;
}

/* The logits of the rows, at the places of the target's ids: row i is the i-th of the list then. */
static spec_status gather_rows(model_draft *m, int32_t n_row)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n_column = m->vocab.n_q_column, ld = m->exec->n_logit;
    const spec_gather_args a = { .logits = m->exec->logits, .ld = ld, .out = m->vocab.logits, .ld_out = n_column, .n_out = n_column,
                                 .column = m->vocab.column, .n_row = n_row, .host_src = m->rows.src };
    SPEC_TRY(speci_gather(site->ops, site->queue, &a, m->vocab.columns, ld, site->a));
    for (int32_t i = 0; i < n_row; i++) m->rows.src[i] = i;
    return SPEC_OK;
}

/* Rows of one sequence stand together, so there is one call per run of sequences that do the same. */
spec_status speci_draft_rows(model_draft *m, int32_t n_row, int32_t k, const spec_grow *grow, bool keys, spec_candidate *out)
{
    const speci_draft_site *site = m->d->site;
    const model_rows *r = &m->rows;
    const int32_t n_column = m->vocab.n_q_column;
    spec_probs_args probs = { .logits = m->exec->logits, .ld = m->exec->n_logit, .probs = m->vocab.q, .ld_probs = n_column,
                              .n_probs = n_column };
    if (m->vocab.columns) {
        SPEC_TRY(gather_rows(m, n_row));
        probs.logits = m->vocab.logits, probs.ld = n_column;
    }
    probs.n_valid = speci_min32(probs.ld, n_column);
    for (int32_t i = 0, end; i < n_row; i = end) {
        const spec_tree_kind kind = m->seqs[r->seq[i]].kind;
        for (end = i + 1; end < n_row && m->seqs[r->seq[end]].kind == kind;) end++;
        probs.n_row = end - i;
        probs.host_src = r->src + i, probs.host_dst = r->q_row + i, probs.host_sampling = r->sampling + i;
        const spec_draw_args a = { .probs = m->vocab.q, .ld = n_column, .n_vocab = n_column, .n_row = end - i, .k = k,
                                   .how = speci_builder_how[kind], .distributions = &probs,
                                   .host_probs_row = r->q_row + i, .grow = grow, .host_slot = r->seq + i,
                                   .host_place = r->place + i, .host_key = keys ? r->key + i : NULL,
                                   .host_out = out ? out + (size_t)i * (size_t)k : NULL };
        SPEC_TRY(site->ops->draw(site->queue, &a));
    }
    return SPEC_OK;
}

/* --- device memory --- */

/* The parts of one block: with base NULL it only measures. */
static size_t carve(spec_grow *g, const model_draft *m, char *base)
{
    const speci_draft_size *z = &m->d->size;
    *g = (spec_grow){ .n_slot = m->d->site->n_seq, .cap = z->cap, .cap_frontier = z->frontier,
                      .cap_feed = m->n_node + z->frontier };
    const size_t n = (size_t)g->n_slot, place = n * (size_t)g->cap_frontier;
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

size_t speci_draft_grow_bytes(const model_draft *m)
{
    spec_grow g;
    return carve(&g, m, NULL);
}

void speci_draft_grow_place(model_draft *m) { (void)carve(&m->grow, m, m->grow_base); }

/* --- levels --- */

/* The roots, and the streams of the draws after them, in the order of `active`: one row each. Of deterministic trees nothing is drawn. */
static void set_roots(model_draft *m)
{
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *q = &m->seqs[m->active[i]];
        m->rows.key[i] = q->kind != SPEC_TREE_DETERMINISTIC ? spec_stream_root(q->ask.sampling->seed, q->ask.step) : 0;
        m->roots[i] = (spec_grow_node){ .key = m->rows.key[i], .value = 1, .token = q->ask.tree->token[0], .parent = -1,
                                        .prob = 1, .fed = q->fed.n - 1 };
    }
}

/* Feeds the frontier: n_place nodes per sequence that stand on the device; at level 0 the chain up to the root. */
static spec_status feed_level(model_draft *m, int32_t level, int32_t n_place)
{
    if (m->chain.now) return speci_draft_chain_level(m, level, n_place);
    if (level == 0) return speci_draft_feed(m, m->active, m->n_active);
    const speci_exec_feed feed = { .nodes = m->grow.feed, .ld = m->grow.cap_feed };
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *q = &m->seqs[m->active[i]];
        m->inputs[i] = (speci_exec_input){ .slot = m->active[i], .tree = &q->fed, .n_fed = q->n_fed,
                                           .n_grown = q->n_fed - q->fed.n + n_place, .depth = q->fed.n - 1 + level };
    }
    SPEC_TRY(m->exec->kind->forward(m->exec, m->inputs, m->n_active, &feed, NULL));
    for (int32_t i = 0; i < m->n_active; i++) m->seqs[m->active[i]].n_fed += n_place;
    return SPEC_OK;
}

/* ends: NULL, or it is the last level of some sequences, whose trees come there. */
static spec_status grow_level(model_draft *m, const speci_level *l, int32_t level, int32_t first_row, const model_grown *ends)
{
    const speci_draft_site *site = m->d->site;
    SPEC_TRY(feed_level(m, level, l->n_place));
    if (level == 0) set_roots(m); /* behind the pass, which the device can begin with */
    int32_t n_row = 0;
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *q = &m->seqs[m->active[i]];
        const int32_t row = m->exec->first_row[i] + (level == 0 && !m->chain.now ? q->fed.n - 1 : 0);
        for (int32_t p = 0; p < l->n_place; p++) speci_draft_add_row(m, &n_row, row + p, m->active[i], first_row + p, p);
        m->feed_base[i] = q->n_fed;
    }
    SPEC_TRY(speci_draft_rows(m, n_row, l->k, &m->grow, level == 0, NULL));
    const spec_expand_args a = { .grow = &m->grow, .n = m->n_active, .host_slot = m->active, .host_feed_base = m->feed_base,
                                 .host_root = level == 0 ? m->roots : NULL, .n_place = l->n_place, .k = l->k,
                                 .host_take = l->take, .threshold = l->threshold, .n_add = l->n_add, .n_max = m->b->n_pool,
                                 .n_next = l->n_next, .host_next = l->next, .next_threshold = l->next_threshold,
                                 .host_out_n = ends ? ends->n : NULL, .host_out_node = ends ? ends->node : NULL,
                                 .feed_token = m->vocab.feed ? m->vocab.column : NULL };
    return m->vocab.feed ? speci_expand_fed(site->ops, site->queue, &a, m->vocab.feed, site->a) : site->ops->expand(site->queue, &a);
}

spec_status speci_draft_grow(model_draft *m, const model_grown *out)
{
    const spec_builder *b = m->b;
    for (int32_t level = 0, row = 0; level < b->info.n_level && m->n_active > 0; level++) {
        const speci_level *l = &b->levels[level];
        const bool last = l->n_next == 0 || level + 1 == b->info.n_level;
        bool ends = last;
        for (int32_t i = 0; i < m->n_active; i++) ends = ends || m->seqs[m->active[i]].depth == level + 1;
        SPEC_TRY(grow_level(m, l, level, row, ends ? out : NULL));
        row += l->n_place;
        int32_t kept = 0;
        for (int32_t i = 0; i < m->n_active && !last; i++)
            if (m->seqs[m->active[i]].depth > level + 1) m->active[kept++] = m->active[i];
        m->n_active = kept;
    }
    return SPEC_OK;
}

/* --- the trees are there --- */

/* The executor was fed these nodes below the root: the next draft commits those that are accepted. */
static void note_fed(const model_draft *m, model_seq *q, const spec_grow_node *nodes, int32_t n)
{
    const int32_t n_chain = q->fed.n;
    for (int32_t i = n_chain; i < q->n_fed; i++) (void)spec_tree_add(&q->fed, 0, 0, 0); /* places without a node */
    for (int32_t i = 1; i < n; i++) {
        if (nodes[i].fed < n_chain || nodes[i].fed >= q->n_fed) continue;
        q->fed.token[nodes[i].fed] = speci_draft_feed_id(m, nodes[i].token);
        q->fed.parent[nodes[i].fed] = nodes[nodes[i].parent].fed;
    }
}

spec_status speci_draft_take_tree(model_draft *m, int32_t seq, const model_grown *grown)
{
    model_seq *q = &m->seqs[seq];
    const int32_t n = grown->n[seq], root = q->fed.n - 1;
    const spec_grow_node *nodes = grown->node + (size_t)seq * (size_t)m->grow.cap;
    if (n < 1 || n > m->grow.cap) return speci_fail(SPEC_E_DEVICE, "a drafted tree of %d nodes of %d", n, m->grow.cap);
    SPEC_TRY(speci_builder_take(m->b, q->kind, nodes, n));
    spec_tree *pool = &m->b->pool;
    for (int32_t i = 0; i < n; i++) pool->q_row[i] = pool->q_row[i] < 0 || pool->q_row[i] >= q->n_fed ? -1 : pool->q_row[i] - root;
    note_fed(m, q, nodes, n);
    return speci_builder_trim(m->b, pool, q->depth, q->ask.tree);
}
