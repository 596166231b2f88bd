/* draft_grow.c - growing draft trees with a network, for many sequences at once (algorithms.md 4, 10).
 *
 * A builder with levels is a list of rules: pass, distributions, draw, expand, level after level, all of it enqueued without a look
 * from the host; at the end the trees are read once, by spec_step perhaps only when they have been scored (engine_unseen.c).
 * A builder that looks gets candidates after each pass and names the nodes to feed next. Either way the distributions that
 * candidates were drawn from stay in device rows seq * n_q + q_row, where verification finds them. */
#include "algorithms/engine/engine.h"

#include <string.h>

/* A call of speci_grow: which sequences still grow. */
typedef struct growth {
    spec_session *s;
    spec_builder *b;
    int32_t *active, n_active;
} growth;

static bool wants_draw(const spec_session *s, int32_t seq) { return s->seqs[seq].sampling.temperature > 0; }

/* The distribution that candidates are drawn from; where none is drawn, the plain softmax that ranks them. */
static spec_sampling draft_sampling(const spec_session *s, const spec_builder *b, int32_t seq)
{
    const bool draws = speci_builder_samples(b, wants_draw(s, seq));
    spec_sampling r = draws ? s->seqs[seq].sampling : (spec_sampling){ .temperature = 1 };
    if (s->drafter->temperature > 0) r.temperature = s->drafter->temperature;
    return r;
}

/* Rows for the candidates to come: logits row `src` of the pass just run, distribution row, sequence, place in the frontier. */
static void add_row(const growth *g, int32_t *n, int32_t src, int32_t seq, int32_t q_row, int32_t place)
{
    algo_rows *r = &g->s->rows;
    r->src[*n] = src;
    r->q_row[*n] = seq * g->s->n_q + q_row;
    r->sampling[*n] = draft_sampling(g->s, g->b, seq);
    r->slot[*n] = seq;
    r->place[(*n)++] = place;
}

/* The distributions of listed rows [first, first + n), for a draw from them. */
static spec_probs_args distributions_of(const growth *g, int32_t first, int32_t n)
{
    spec_session *s = g->s;
    int32_t ld;
    const float *logits = speci_exec_logits(s->draft_exec, &ld);
    const int32_t n_target = s->target->n_vocab;
    return (spec_probs_args){ .logits = logits, .ld = ld, .n_valid = ld < n_target ? ld : n_target, .probs = s->q,
                            .ld_probs = n_target, .n_probs = n_target, .n_row = n, .host_src = s->rows.src + first,
                            .host_dst = s->rows.q_row + first, .host_sampling = s->rows.sampling + first };
}

/* Distributions of the listed rows, and candidates: greedy sequences take the likeliest, sampled ones draw. Rows of one sequence
 * stand together, so there is one call per run of sequences that do the same. keys: those of the rows are in rows.key, and
 * not in the trees. */
static spec_status draw_rows(const growth *g, int32_t n_row, int32_t k, const spec_grow *grow, bool keys,
                             spec_candidate *out)
{
    spec_session *s = g->s;
    const algo_rows *r = &s->rows;
    for (int32_t i = 0, end; i < n_row; i = end) {
        const bool draw = wants_draw(s, r->slot[i]);
        for (end = i + 1; end < n_row && wants_draw(s, r->slot[end]) == draw;) end++;
        const spec_probs_args distributions = distributions_of(g, i, end - i);
        SPEC_TRY(s->ops->draw(s->queue, &(spec_draw_args){ .probs = s->q, .ld = s->target->n_vocab,
                                                           .n_vocab = s->target->n_vocab, .n_row = end - i, .k = k,
                                                           .how = speci_builder_how(g->b, draw), .distributions = &distributions,
                                                           .host_probs_row = r->q_row + i, .grow = grow,
                                                           .host_slot = r->slot + i, .host_place = r->place + i,
                                                           .host_key = keys ? r->key + i : NULL,
                                                           .host_out = out ? out + (size_t)i * (size_t)k : NULL }));
    }
    return SPEC_OK;
}

/* --- by levels --- */

/* The roots, and the streams of the draws after them, in the order of `active`: one row each. */
static void set_roots(const growth *g)
{
    spec_session *s = g->s;
    for (int32_t i = 0; i < g->n_active; i++) {
        const algo_seq *q = &s->seqs[g->active[i]];
        s->rows.key[i] = spec_stream_root(q->sampling.seed, q->n_step);
        s->roots[i] = (spec_grow_node){ .key = s->rows.key[i], .value = 1, .token = q->draft.token[0], .parent = -1,
                                        .prob = 1, .fed = q->fed.n - 1 };
    }
}

/* Feeds the frontier: n_place nodes per sequence that stand on the device; at level 0 the chain up to the root. */
static spec_status feed_level(const growth *g, int32_t level, int32_t n_place)
{
    spec_session *s = g->s;
    if (level == 0) return speci_draft_feed(s, g->active, g->n_active);
    const speci_exec_feed feed = { .nodes = s->grow.feed, .ld = s->grow.cap_feed };
    for (int32_t i = 0; i < g->n_active; i++) {
        const algo_seq *q = &s->seqs[g->active[i]];
        s->inputs[i] = (speci_exec_input){ .slot = g->active[i], .tree = &q->fed, .n_fed = q->n_fed,
                                          .n_grown = q->n_fed - q->fed.n + n_place, .depth = q->fed.n - 1 + level };
    }
    SPEC_TRY(speci_exec_forward(s->draft_exec, s->inputs, g->n_active, &feed, NULL));
    for (int32_t i = 0; i < g->n_active; i++) s->seqs[g->active[i]].n_fed += n_place;
    return SPEC_OK;
}

/* ends: it is the last of some sequences, whose trees the host is to have. */
static spec_status grow_level(const growth *g, const speci_level *l, int32_t level, int32_t first_row, bool ends)
{
    spec_session *s = g->s;
    SPEC_TRY(feed_level(g, level, l->n_place));
    if (level == 0) set_roots(g); /* behind the pass, which the device can begin with */
    int32_t n_row = 0;
    for (int32_t i = 0; i < g->n_active; i++) {
        const int32_t seq = g->active[i];
        const int32_t row = speci_exec_first_row(s->draft_exec, i) + (level == 0 ? s->seqs[seq].fed.n - 1 : 0);
        for (int32_t p = 0; p < l->n_place; p++) add_row(g, &n_row, row + p, seq, first_row + p, p);
        s->feed_base[i] = s->seqs[seq].n_fed;
    }
    SPEC_TRY(draw_rows(g, n_row, l->k, &s->grow, level == 0, NULL));
    return s->ops->expand(s->queue, &(spec_expand_args){ .grow = &s->grow, .n = g->n_active, .host_slot = g->active,
                                                         .host_feed_base = s->feed_base,
                                                         .host_root = level == 0 ? s->roots : NULL, .n_place = l->n_place,
                                                         .k = l->k, .host_take = l->take, .threshold = l->threshold,
                                                         .n_add = l->n_add, .n_max = g->b->n_pool,
                                                         .n_next = l->n_next, .host_next = l->next,
                                                         .next_threshold = l->next_threshold,
                                                         .host_out_n = ends ? s->n_grown : NULL,
                                                         .host_out_node = ends ? s->grown : NULL });
}

/* The net was fed these nodes below the root: the next draft applies those that are accepted. */
static void note_fed(algo_seq *q, const spec_grow_node *nodes, int32_t n)
{
    const int32_t n_chain = q->fed.n;
    for (int32_t i = n_chain; i < q->n_fed; i++) (void)spec_tree_add(&q->fed, 0, 0, 0); /* places without a node */
    for (int32_t i = 1; i < n; i++) {
        if (nodes[i].fed < n_chain || nodes[i].fed >= q->n_fed) continue;
        q->fed.token[nodes[i].fed] = nodes[i].token;
        q->fed.parent[nodes[i].fed] = nodes[nodes[i].parent].fed;
    }
}

static spec_status take_tree(spec_session *s, spec_builder *b, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    const int32_t n = s->n_grown[seq], root = q->fed.n - 1;
    const spec_grow_node *nodes = s->grown + (size_t)seq * (size_t)s->grow.cap;
    if (n < 1 || n > s->grow.cap) return speci_fail(SPEC_E_DEVICE, "a drafted tree of %d nodes of %d", n, s->grow.cap);
    for (int32_t i = 0; i < n; i++) s->path[i] = nodes[i].fed < 0 || nodes[i].fed >= q->n_fed ? -1 : nodes[i].fed - root;
    note_fed(q, nodes, n);
    return speci_builder_finish(b, wants_draw(s, seq), nodes, s->path, n, s->depth[seq], &q->draft);
}

/* Queues growth up to depth [sequence]; the trees come to the host. */
static spec_status grow_by_levels(growth *g, const int32_t *depth)
{
    spec_session *s = g->s;
    for (int32_t i = 0; i < g->n_active; i++) s->growing[s->n_growing++] = g->active[i];
    for (int32_t level = 0, row = 0; level < g->b->info.n_level && g->n_active > 0; level++) {
        const speci_level *l = &g->b->levels[level];
        const bool last = l->n_next == 0 || level + 1 == g->b->info.n_level;
        bool ends = last;
        for (int32_t i = 0; i < g->n_active; i++) ends = ends || depth[g->active[i]] == level + 1;
        SPEC_TRY(grow_level(g, l, level, row, ends));
        row += l->n_place;
        int32_t kept = 0;
        for (int32_t i = 0; i < g->n_active && !last; i++)
            if (depth[g->active[i]] > level + 1) g->active[kept++] = g->active[i];
        g->n_active = kept;
    }
    return SPEC_OK;
}

/* --- by looks --- */

static int32_t node_of_row(const spec_tree *t, int32_t row)
{
    int32_t node = 0;
    while (t->q_row[node] != row) node++;
    return node;
}

/* Could the node that distribution `row` stands behind have children? */
static bool is_open(const spec_session *s, int32_t seq, int32_t row)
{
    const spec_tree *t = &s->seqs[seq].draft;
    return speci_tree_depth(t, node_of_row(t, row)) < s->depth[seq];
}

/* Puts the sequences whose latest look named an open node in front; returns how many. */
static int32_t bring_forward(const growth *g)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_active; i++) {
        const int32_t seq = g->active[i];
        const algo_seq *q = &g->s->seqs[seq];
        int32_t row = q->n_expanded;
        while (row < q->n_probs && !is_open(g->s, seq, row)) row++;
        if (row == q->n_probs) continue;
        g->active[i] = g->active[n];
        g->active[n++] = seq;
    }
    return n;
}

/* Candidates of the rows just drawn to their places; behind a node that is not open there are none. */
static void take_candidates(const growth *g)
{
    spec_session *s = g->s;
    const size_t k = (size_t)g->b->k;
    const spec_candidate *from = s->candidates;
    for (int32_t i = 0; i < g->n_active; i++) {
        const int32_t seq = g->active[i];
        algo_seq *q = &s->seqs[seq];
        for (; q->n_expanded < q->n_probs; q->n_expanded++) {
            const bool open = is_open(s, seq, q->n_expanded);
            spec_candidate *to = speci_candidates_of(s, seq) + (size_t)q->n_expanded * k;
            for (size_t j = 0; j < k; j++) to[j] = open ? from[j] : (spec_candidate){ .token = -1 };
            from += open ? k : 0;
        }
    }
}

/* One pass over what was named, its distributions, and their candidates into s->looked. */
static spec_status expand_pass(const growth *g)
{
    spec_session *s = g->s;
    const int32_t n = bring_forward(g);
    int32_t n_row = 0;
    for (int32_t i = 0; i < n; i++) s->feed_base[i] = s->seqs[g->active[i]].n_fed;
    if (n > 0) SPEC_TRY(speci_draft_feed(s, g->active, n));
    for (int32_t i = 0; i < n; i++) {
        const int32_t seq = g->active[i];
        const algo_seq *q = &s->seqs[seq];
        const int32_t end = speci_exec_first_row(s->draft_exec, i) + q->n_fed - s->feed_base[i];
        for (int32_t row = q->n_expanded; row < q->n_probs; row++) {
            if (!is_open(s, seq, row)) continue;
            s->rows.key[n_row] = speci_builder_key(&q->draft, node_of_row(&q->draft, row), q->sampling.seed,
                                                    q->n_step);
            add_row(g, &n_row, end - (q->n_probs - row), seq, row, 0);
        }
    }
    if (n_row > 0) {
        SPEC_TRY(draw_rows(g, n_row, g->b->k, NULL, true, s->candidates)); /* k <= s->n_candidate_row */
        SPEC_TRY(s->ops->sync(s->queue));
    }
    take_candidates(g);
    return SPEC_OK;
}

/* Asks the builder, and puts what it names below the chain: node x of the draft is node n_chain - 1 + q_row[x] there. One
 * that is not open keeps its place by another token, since there may be no position for it. */
static spec_status look(const growth *g, int32_t seq, int32_t *n_feed)
{
    spec_session *s = g->s;
    algo_seq *q = &s->seqs[seq];
    const spec_tree *t = &q->draft;
    SPEC_TRY(speci_builder_expand(g->b, wants_draw(s, seq), &q->draft, speci_candidates_of(s, seq), s->path, n_feed));
    for (int32_t i = 0; i < *n_feed; i++) {
        const int32_t x = s->path[i];
        if (is_open(s, seq, t->q_row[x]))
            (void)spec_tree_add(&q->fed, q->n_chain - 1 + t->q_row[t->parent[x]], t->token[x], 0);
        else
            (void)spec_tree_add(&q->fed, 0, 0, 0);
    }
    q->n_probs += *n_feed;
    return SPEC_OK;
}

/* A look may add nodes ahead of knowing that they belong to the tree: what the kind keeps is decided at the end. */
static spec_status take_expanded(const growth *g, int32_t seq, int32_t depth_max)
{
    algo_seq *q = &g->s->seqs[seq];
    q->fed.n = q->n_fed; /* what the last look named was not fed */
    SPEC_TRY(spec_tree_copy(&g->b->pool, &q->draft));
    return speci_builder_trim(g->b, &g->b->pool, depth_max, &q->draft);
}

static spec_status grow_by_host(growth *g, const int32_t *depth)
{
    spec_session *s = g->s;
    const int32_t n = g->n_active;
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q = &s->seqs[g->active[i]];
        s->growing[i] = g->active[i];
        q->n_chain = q->fed.n;
        q->n_probs = 1, q->n_expanded = 0;
        speci_builder_begin(g->b, wants_draw(s, g->active[i]), q->draft.token[0], &q->draft);
    }
    for (int32_t round = 0; round < g->b->info.n_level && g->n_active > 0; round++) {
        SPEC_TRY(expand_pass(g));
        int32_t kept = 0;
        for (int32_t i = 0; i < g->n_active; i++) {
            int32_t n_feed;
            SPEC_TRY(look(g, g->active[i], &n_feed));
            if (n_feed > 0) g->active[kept++] = g->active[i];
        }
        g->n_active = kept;
    }
    for (int32_t i = 0; i < n; i++) SPEC_TRY(take_expanded(g, s->growing[i], depth[s->growing[i]]));
    return SPEC_OK;
}

/* --- */

/* Drafts may stand so deep below the root: the target's room, the drafter's own context, the builder's wish. In that
 * context the root stands at n_ids - 1, and the deepest nodes need no position, since they are not fed. */
static int32_t depth_of(const spec_session *s, const spec_builder *b, algo_seq *q)
{
    int32_t depth = speci_draft_room(s, q);
    if (depth > b->info.depth) depth = b->info.depth;
    if (speci_draft_outgrown(s, q->n_ids)) q->no_draft = true;
    if (q->no_draft) return 0;
    const int32_t own = s->draft_ctx - q->n_ids + 1;
    return s->draft_ctx > 0 && depth > own ? own : depth;
}

/* What the nets were fed does not count any more if the trees could not be had. */
static spec_status forget_unless_ok(spec_session *s, const int32_t *seqs, int32_t n, spec_status status)
{
    for (int32_t i = 0; i < n && status != SPEC_OK; i++) speci_draft_forget(s, seqs[i]);
    return status;
}

spec_status speci_grow(spec_session *s, spec_builder *b, const int32_t *seqs, int32_t n, bool unseen)
{
    growth g = { .s = s, .b = b, .active = s->order };
    s->n_growing = 0;
    for (int32_t i = 0; i < n; i++) {
        s->depth[seqs[i]] = depth_of(s, b, &s->seqs[seqs[i]]);
        if (s->depth[seqs[i]] == 0) continue;
        SPEC_TRY(speci_draft_catch_up(s, seqs[i], b->info.n_row));
        s->order[g.n_active++] = seqs[i];
    }
    if (g.n_active == 0) return SPEC_OK;
    if (speci_builder_is_host_driven(b)) return forget_unless_ok(s, seqs, n, grow_by_host(&g, s->depth));
    spec_status status = grow_by_levels(&g, s->depth);
    if (status == SPEC_OK && !unseen) status = s->ops->sync(s->queue);
    if (status != SPEC_OK) return forget_unless_ok(s, seqs, n, status);
    return unseen ? SPEC_OK : speci_grow_take(s, b);
}

spec_status speci_grow_take(spec_session *s, spec_builder *b)
{
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < s->n_growing && status == SPEC_OK; i++) status = take_tree(s, b, s->growing[i]);
    return forget_unless_ok(s, s->growing, s->n_growing, status);
}
