/* draft_chain.c - trees of a head that no drafted token enters (algorithms.md 17): its rows are one chain, whatever the tree. So its
 * layers run once per level and sequence, the logits of all levels come from one product, and a level's nodes take a copy of its row, to
 * which their tokens' info is added. The bits are those of a pass per level over all of its nodes. */
#include "algorithms/draft/draft_model.h"

#include <string.h>

/* --- memory --- */

static spec_status open_again(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n = m->d->size.n_node;
    const size_t n_slot = (size_t)site->n_seq;
    model_grown *g = &m->chain.grown;
    g->n = speci_alloc(site->a, n_slot, sizeof *g->n);
    g->node = speci_alloc(site->a, n_slot * (size_t)m->d->size.cap, sizeof *g->node);
    m->chain.again = speci_alloc(site->a, n_slot, sizeof *m->chain.again);
    if (!g->n || !g->node || !m->chain.again) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < site->n_seq; i++) SPEC_TRY(spec_tree_alloc(&m->chain.again[i], n, site->a));
    return spec_tree_alloc(&m->chain.merged, n, site->a);
}

spec_status speci_draft_chain_open(model_draft *m)
{
    const spec_drafter *o = m->d->drafter;
    if (!m->is_head || !speci_head_chains(m->model) || m->d->size.cap == 0) return SPEC_OK;
    for (int32_t i = 0; i < o->n_builder; i++) m->chain.n_level = speci_max32(m->chain.n_level, o->builders[i]->info.depth);
    m->chain.n_half = o->n_resample > 0 ? 2 : 1;
    m->chain.bytes = (size_t)(m->d->site->n_seq * m->chain.n_half) * (size_t)m->chain.n_level * (size_t)speci_model_n_logit(m->model) *
                     sizeof(float);
    return o->n_resample > 0 ? open_again(m) : SPEC_OK;
}

/* The chain behind the root; then the rows whose logits are wanted, and in their place the root once more, above the tree. */
int32_t speci_draft_chain_nodes(const model_draft *m)
{
    const int32_t n = m->chain.n_level, n_tree = m->d->site->n_q;
    return n == 0 ? 0 : n - 1 + 1 + speci_max32(n - n_tree, 0);
}

spec_status speci_draft_chain_attach(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    void *at = NULL;
    if (m->chain.bytes == 0) return SPEC_OK;
    SPEC_TRY(site->ops->alloc(site->dev, &at, m->chain.bytes));
    m->chain.rows = at;
    return SPEC_OK;
}

void speci_draft_chain_close(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    if (m->chain.rows) site->ops->free(site->dev, m->chain.rows, m->chain.bytes);
    for (int32_t i = 0; m->chain.again && i < site->n_seq; i++) spec_tree_free(&m->chain.again[i], site->a);
    spec_tree_free(&m->chain.merged, site->a);
    speci_free(site->a, m->chain.again);
    speci_free(site->a, m->chain.grown.n);
    speci_free(site->a, m->chain.grown.node);
}

static char *row_of(const model_draft *m, int32_t seq, int32_t half, int32_t row)
{
    const model_chain *c = &m->chain;
    const size_t n = (size_t)speci_model_n_logit(m->model), i = (size_t)(seq * c->n_half + half) * (size_t)c->n_level + (size_t)row;
    return (char *)(c->rows + i * n);
}

spec_status speci_draft_chain_copy(model_draft *m, int32_t seq, int32_t to)
{
    const model_seq *from = &m->seqs[seq];
    model_seq *s = &m->seqs[to];
    if (m->chain.n_half < 2) return SPEC_OK;
    memcpy(s->kept, from->kept, sizeof s->kept);
    s->half = from->half, s->rode_at = from->rode_at;
    return speci_draft_told_add(m, row_of(m, to, 0, 0), row_of(m, seq, 0, 0), (size_t)(row_of(m, 1, 0, 0) - row_of(m, 0, 0, 0)));
}

/* --- the chain --- */

static int32_t levels_of(const model_draft *m, const model_seq *s) { return speci_min32(s->depth, m->b->info.n_level); }

/* Numbers of nodes stand for depths while a tree grows (spec_expand_args): they must be depths. */
static bool fits(const model_draft *m)
{
    if (m->chain.off) return false;
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *s = &m->seqs[m->active[i]];
        if (s->fed.n + 2 * m->b->info.depth > SPEC_MAX_DEPTH) return false;
    }
    return true;
}

static spec_status run(model_draft *m, speci_exec_part part, int32_t n)
{
    SPEC_TRY(m->exec->kind->forward_part(m->exec, part, m->inputs, n, NULL));
    for (int32_t i = 0; i < n && part != SPECI_PART_HEAD; i++) {
        model_seq *s = &m->seqs[m->inputs[i].slot];
        s->n_fed = s->fed.n;
    }
    return SPEC_OK;
}

/* The committed tokens up to the root; then row after row, of the sequences that go so deep. The tokens below the root mean nothing. */
static spec_status feed_chain(model_draft *m)
{
    for (int32_t level = 0, n = 1; n > 0; level++) {
        n = 0;
        for (int32_t i = 0; i < m->n_active; i++) {
            model_seq *s = &m->seqs[m->active[i]];
            if (level >= levels_of(m, s)) continue;
            if (level > 0) (void)spec_tree_add(&s->fed, s->fed.n - 1, s->fed.token[s->n_given - 1], 0);
            m->inputs[n++] = (speci_exec_input){ .slot = m->active[i], .tree = &s->fed, .n_fed = s->n_fed };
        }
        if (level == 0) SPEC_TRY(speci_draft_give(m, m->active, m->n_active));
        if (n > 0) SPEC_TRY(run(m, SPECI_PART_LAYERS, n));
    }
    return SPEC_OK;
}

/* Logits of all rows of all chains, by one pass over children of theirs, which are taken back. */
static spec_status read_chain(model_draft *m)
{
    const float *logits = m->exec->logits;
    const int32_t ld = m->exec->n_logit;
    int32_t row = 0;
    for (int32_t i = 0; i < m->n_active; i++) {
        model_seq *s = &m->seqs[m->active[i]];
        for (int32_t k = 0; k < levels_of(m, s); k++) (void)spec_tree_add(&s->fed, s->n_given - 1 + k, 0, 0);
        m->inputs[i] = (speci_exec_input){ .slot = m->active[i], .tree = &s->fed, .n_fed = s->n_fed };
    }
    const spec_status status = run(m, SPECI_PART_HEAD, m->n_active);
    for (int32_t i = 0; i < m->n_active; i++) {
        model_seq *s = &m->seqs[m->active[i]];
        s->fed.n = s->n_fed;
    }
    SPEC_TRY(status);
    for (int32_t i = 0; i < m->n_active; i++)
        for (int32_t k = 0; k < levels_of(m, &m->seqs[m->active[i]]); k++, row++)
            SPEC_TRY(speci_draft_told_add(m, row_of(m, m->active[i], m->seqs[m->active[i]].half, k),
                                          (const char *)(logits + (size_t)row * (size_t)ld),
                                          (size_t)ld * sizeof *logits));
    return speci_draft_told_copy(m);
}

/* The rows of the chain before stay where they are, also where a draft is made once more: its chain takes the place that it had. */
static void begin_chain(const model_draft *m, model_seq *s)
{
    if (m->chain.n_half == 2 && s->kept[s->half].at != s->ask.n_ids) s->half ^= 1;
    s->kept[s->half].n = levels_of(m, s), s->kept[s->half].at = s->ask.n_ids;
    s->row_half = s->half, s->row = 0, s->rode_at = 0;
}

spec_status speci_draft_chain(model_draft *m)
{
    m->chain.now = fits(m);
    if (!m->chain.now) return SPEC_OK;
    for (int32_t i = 0; i < m->n_active; i++) begin_chain(m, &m->seqs[m->active[i]]);
    SPEC_TRY(feed_chain(m));
    SPEC_TRY(read_chain(m));
    for (int32_t i = 0; i < m->n_active; i++) {
        model_seq *s = &m->seqs[m->active[i]];
        s->place = spec_tree_add(&s->fed, s->n_given - 1, s->fed.token[s->n_given - 1], 0);
    }
    return SPEC_OK;
}

/* --- a level --- */

static spec_status copy_rows(model_draft *m, int32_t level, int32_t n_place)
{
    float *logits = m->exec->logits;
    const int32_t ld = m->exec->n_logit;
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *s = &m->seqs[m->active[i]];
        const char *from = row_of(m, m->active[i], s->row_half, s->row + level);
        for (int32_t p = 0; p < n_place; p++)
            SPEC_TRY(speci_draft_told_add(m, (char *)(logits + (size_t)(i * n_place + p) * (size_t)ld), from, (size_t)ld * sizeof *logits));
    }
    return speci_draft_told_copy(m);
}

spec_status speci_draft_chain_level(model_draft *m, int32_t level, int32_t n_place)
{
    const speci_exec_feed feed = { .nodes = m->grow.feed, .ld = m->grow.cap_feed };
    SPEC_TRY(copy_rows(m, level, n_place));
    for (int32_t i = 0; i < m->n_active; i++) {
        const model_seq *s = &m->seqs[m->active[i]];
        m->inputs[i] = (speci_exec_input){ .slot = m->active[i], .tree = &s->fed, .n_fed = s->n_fed,
                                           .n_grown = level == 0 ? 0 : s->n_fed - s->fed.n + n_place };
    }
    SPEC_TRY(m->exec->kind->forward_part(m->exec, SPECI_PART_INFO, m->inputs, m->n_active, level == 0 ? NULL : &feed));
    for (int32_t i = 0; i < m->n_active; i++) m->seqs[m->active[i]].n_fed += n_place;
    return SPEC_OK;
}
