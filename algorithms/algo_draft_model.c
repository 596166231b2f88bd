/* algo_draft_model.c - drafting chains with a network.
 *
 * The drafter's net absorbs only committed tokens. Each draft first commits what the net was fed and what was since
 * accepted, then feeds the committed tokens that it has not seen (the last of them is the pending token, the root) and
 * the drafts one by one, as one growing chain whose state is never stored: the next draft replays what was accepted.
 * Source: algorithms.md 4.1, 10.2. */
#include "algorithms/algo.h"

/* The drafter may know fewer ids; any stand-in only lowers acceptance. */
static int32_t known_token(const spec_session *s, int32_t token)
{
    return token < s->drafter->model->n_vocab ? token : 0;
}

/* What was fed and turned out to be committed; the pending token is left out, since its row must be computed anew. */
static void absorb_accepted(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    const int32_t base = speci_net_n_past(s->draft_net, seq);
    int32_t n = 0;
    while (n < q->n_fed && base + n < q->n_ids - 1 && q->fed.token[n] == known_token(s, q->ids[base + n])) s->path[n] = n, n++;
    speci_net_commit(s->draft_net, seq, s->path, n);
    q->fed.n = q->n_fed = 0;
}

static spec_status feed(spec_session *s, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        s->inputs[i] = (speci_net_input){ .slot = seqs[i], .tree = &q->fed, .n_fed = q->n_fed };
    }
    SPEC_TRY(speci_net_forward(s->draft_net, s->inputs, n, NULL));
    for (int32_t i = 0; i < n; i++) s->seqs[seqs[i]].n_fed = s->seqs[seqs[i]].fed.n;
    return SPEC_OK;
}

static void chain_add(spec_session *s, algo_seq *q, int32_t token)
{
    speci_tree_add(&q->fed, known_token(s, token), q->fed.n - 1);
}

/* Makes q->fed the chain of committed tokens that the net has not absorbed. More than a pass has room for (a caller's
 * own trees can leave that many) are absorbed first. */
static spec_status catch_up(spec_session *s, int32_t seq, int32_t room)
{
    algo_seq *q = &s->seqs[seq];
    absorb_accepted(s, seq);
    for (;;) {
        const int32_t base = speci_net_n_past(s->draft_net, seq), left = q->n_ids - base;
        const bool fits = left + room - 1 <= s->draft_node;
        const int32_t n = fits ? left : (left - 1 < s->draft_node ? left - 1 : s->draft_node);
        for (int32_t i = 0; i < n; i++) chain_add(s, q, q->ids[base + i]);
        if (fits) return SPEC_OK;
        SPEC_TRY(feed(s, &seq, 1));
        absorb_accepted(s, seq);
    }
}

static spec_sampling draft_sampling(const spec_session *s, const algo_seq *q)
{
    spec_sampling r = q->sampling;
    if (s->drafter->temperature > 0) r.temperature = s->drafter->temperature;
    return r;
}

/* Lists a draw after last_row for every sequence that samples; returns how many. Its law will stay in the device row
 * seq * n_draft + level, where verification finds it. */
static int32_t list_draws(spec_session *s, const int32_t *seqs, int32_t n, int32_t level, const int32_t *last_row)
{
    algo_rows *r = &s->rows;
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        if (q->sampling.temperature == 0) continue;
        r->src[k] = last_row[i];
        r->q_row[k] = seqs[i] * s->n_draft + level;
        r->sampling[k] = draft_sampling(s, q);
        r->u_last[k] = spec_uniform(q->sampling.seed, q->n_step, SPEC_STREAM_RACE, (uint32_t)level);
        r->first[k++] = 0;
    }
    r->first[k] = 0;
    return k;
}

/* Laws of the listed rows, and a draw from each, into `drawn` after the next sync. An accept without candidates is a
 * draw; what it says of choices goes nowhere. */
static spec_status draw(spec_session *s, int32_t n_draw, int32_t *drawn)
{
    int32_t ld;
    const float *logits = speci_net_logits(s->draft_net, &ld);
    const int32_t n_target = s->target->n_vocab;
    algo_rows *r = &s->rows;
    SPEC_TRY(s->ops->law(s->queue, &(spec_law_args){ .logits = logits, .ld = ld, .n_valid = ld < n_target ? ld : n_target,
                                                     .law = s->q, .ld_law = n_target, .n_law = n_target,
                                                     .n_row = n_draw, .host_src = r->src, .host_dst = r->q_row,
                                                     .host_sampling = r->sampling }));
    for (int32_t k = 0; k < n_draw; k++) r->src[k] = -1; /* no draft row */
    return s->ops->accept(s->queue, &(spec_accept_args){ .p = s->q, .q = s->q, .ld_p = n_target, .ld_q = n_target,
                                                         .n_vocab = n_target, .n_row = n_draw,
                                                         .host_p_row = r->q_row, .host_q_row = r->src,
                                                         .host_first_candidate = r->first,
                                                         .host_candidate = r->candidate, .host_u = r->u,
                                                         .host_u_last = r->u_last, .host_out_choice = r->candidate,
                                                         .host_out_token = drawn });
}

/* The tokens that follow the last row of each sequence in the pass just run: arg-max where the target is greedy, else
 * drawn. Ids that the target does not have are left out. */
static spec_status choose(spec_session *s, const int32_t *seqs, int32_t n, int32_t level, const int32_t *last_row)
{
    int32_t ld, *best = s->rows.token, *drawn = s->rows.choice;
    const float *logits = speci_net_logits(s->draft_net, &ld);
    const int32_t n_known = ld < s->target->n_vocab ? ld : s->target->n_vocab;
    const int32_t n_draw = list_draws(s, seqs, n, level, last_row);
    if (n_draw < n)
        SPEC_TRY(s->ops->argmax(s->queue, &(spec_argmax_args){ .logits = logits, .ld = ld, .n_vocab = n_known,
                                                               .n_row = last_row[n - 1] + 1,
                                                               .host_out_token = best }));
    if (n_draw > 0) SPEC_TRY(draw(s, n_draw, drawn));
    SPEC_TRY(s->ops->sync(s->queue));
    for (int32_t i = 0, k = 0; i < n; i++) {
        algo_seq *q = &s->seqs[seqs[i]];
        const int32_t token = q->sampling.temperature == 0 ? best[last_row[i]] : drawn[k++];
        if (token < 0) return speci_fail(SPEC_E_DEVICE, "the drafter's logits are not numbers");
        speci_tree_add(&q->draft, token, q->draft.n - 1);
    }
    return SPEC_OK;
}

/* Drafts that fit: the target's room, the drafter's own context. */
static int32_t room_of(const spec_session *s, algo_seq *q)
{
    const int32_t room = speci_draft_room(s, q);
    const int32_t n = room < s->n_draft ? room : s->n_draft;
    if (s->draft_ctx > 0 && q->n_ids + n > s->draft_ctx) q->no_draft = true;
    return q->no_draft ? 0 : n;
}

spec_status speci_draft_model(spec_session *s, const int32_t *seqs, int32_t n)
{
    int32_t *active = s->order, n_active = 0;
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q = &s->seqs[seqs[i]];
        const int32_t room = room_of(s, q);
        q->draft_drawn = q->sampling.temperature > 0;
        if (room == 0) continue;
        SPEC_TRY(catch_up(s, seqs[i], room));
        active[n_active++] = seqs[i];
    }
    for (int32_t level = 0; n_active > 0; level++) {
        int32_t *last_row = s->path, row = 0, kept = 0;
        for (int32_t i = 0; i < n_active; i++) {
            const algo_seq *q = &s->seqs[active[i]];
            row += q->fed.n - q->n_fed;
            last_row[i] = row - 1;
        }
        SPEC_TRY(feed(s, active, n_active));
        SPEC_TRY(choose(s, active, n_active, level, last_row));
        for (int32_t i = 0; i < n_active; i++) {
            algo_seq *q = &s->seqs[active[i]];
            if (q->draft.n - 1 >= room_of(s, q)) continue;
            chain_add(s, q, q->draft.token[q->draft.n - 1]);
            active[kept++] = active[i];
        }
        n_active = kept;
    }
    return SPEC_OK;
}
