/* draft_rows.c - a model that drafts: passes over what has grown, and candidates of their rows. For both ways to grow trees. */
#include "algorithms/draft/draft_model.h"

spec_status speci_draft_feed(model_draft *m, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const model_seq *s = &m->seqs[seqs[i]];
        m->inputs[i] = (speci_exec_input){ .slot = seqs[i], .tree = &s->fed, .n_fed = s->n_fed };
    }
    SPEC_TRY(speci_exec_forward(m->exec, m->inputs, n, NULL, NULL));
    for (int32_t i = 0; i < n; i++) m->seqs[seqs[i]].n_fed = m->seqs[seqs[i]].fed.n;
    return SPEC_OK;
}

/* What candidates are drawn from; where none is drawn, the plain softmax that ranks them. */
static spec_sampling draft_sampling(const model_draft *m, const model_seq *q)
{
    const bool samples = speci_builder_samples(m->b, speci_draft_samples(q));
    spec_sampling r = samples ? *q->ask.sampling : (spec_sampling){ .temperature = 1 };
    if (m->d->drafter->temperature > 0) r.temperature = m->d->drafter->temperature;
    return r;
}

void speci_draft_add_row(model_draft *m, int32_t *n, int32_t src, int32_t seq, int32_t q_row, int32_t place)
{
    model_rows *r = &m->rows;
    r->src[*n] = src;
    r->q_row[*n] = seq * m->d->site->n_q + q_row;
    r->sampling[*n] = draft_sampling(m, &m->seqs[seq]);
    r->seq[*n] = seq;
    r->place[(*n)++] = place;
}

/* The distributions of rows [first, first + n), for a draw from them. */
static spec_probs_args probs_of(const model_draft *m, int32_t first, int32_t n)
{
    int32_t ld;
    const float *logits = speci_exec_logits(m->exec, &ld);
    const int32_t n_target = m->d->site->target->n_vocab;
    return (spec_probs_args){ .logits = logits, .ld = ld, .n_valid = ld < n_target ? ld : n_target, .probs = m->d->site->q,
                              .ld_probs = n_target, .n_probs = n_target, .n_row = n, .host_src = m->rows.src + first,
                              .host_dst = m->rows.q_row + first, .host_sampling = m->rows.sampling + first };
}

/* Rows of one sequence stand together, so there is one call per run of sequences that do the same. */
spec_status speci_draft_rows(model_draft *m, int32_t n_row, int32_t k, const spec_grow *grow, bool keys, spec_candidate *out)
{
    const speci_draft_site *site = m->d->site;
    const model_rows *r = &m->rows;
    const int32_t n_vocab = site->target->n_vocab;
    for (int32_t i = 0, end; i < n_row; i = end) {
        const bool draw = speci_draft_samples(&m->seqs[r->seq[i]]);
        for (end = i + 1; end < n_row && speci_draft_samples(&m->seqs[r->seq[end]]) == draw;) end++;
        const spec_probs_args probs = probs_of(m, i, end - i);
        const spec_draw_args a = { .probs = site->q, .ld = n_vocab, .n_vocab = n_vocab, .n_row = end - i, .k = k,
                                   .how = speci_builder_how(m->b, draw), .distributions = &probs,
                                   .host_probs_row = r->q_row + i, .grow = grow, .host_slot = r->seq + i,
                                   .host_place = r->place + i, .host_key = keys ? r->key + i : NULL,
                                   .host_out = out ? out + (size_t)i * (size_t)k : NULL };
        SPEC_TRY(site->ops->draw(site->queue, &a));
    }
    return SPEC_OK;
}
