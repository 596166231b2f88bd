/* draft_model.c - drafting with a network: what its net has applied, and what it is fed (algorithms.md 10.2).
 *
 * The net applies only committed tokens. Each draft first commits what the net was fed and what was since accepted, then
 * feeds the committed tokens that it has not seen (the last of them is the pending token, the root) as a chain, and below
 * it the nodes that the builder wants to look behind (draft_grow.c), as one growing tree whose states are never stored:
 * the next draft replays what was accepted. */
#include "algorithms/engine/engine.h"

/* The drafter may know fewer ids; any stand-in only lowers acceptance. */
static int32_t known_token(const spec_session *s, int32_t token)
{
    return token < s->drafter->model->n_vocab ? token : 0;
}

spec_status speci_draft_prefill(spec_session *s, int32_t seq)
{
    const algo_seq *q = &s->seqs[seq];
    speci_exec_begin(s->draft_exec, seq);
    int32_t *ids = speci_alloc(s->a, (size_t)q->n_ids, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < q->n_ids; i++) ids[i] = known_token(s, q->ids[i]);
    const speci_prefill_hooks hooks = { .poll = speci_session_stopped, .arg = s };
    const spec_status status = speci_exec_prefill(s->draft_exec, seq, ids, (size_t)q->n_ids - 1, &hooks);
    speci_free(s->a, ids);
    return status;
}

bool speci_draft_outgrown(const spec_session *s, int32_t n_ids)
{
    return !s->draft_exec || (s->draft_ctx > 0 && n_ids > s->draft_ctx);
}

static int32_t fed_child(const algo_seq *q, int32_t node, int32_t token)
{
    for (int32_t c = node + 1; c < q->n_fed; c++)
        if (q->fed.parent[c] == node && q->fed.token[c] == token) return c;
    return -1;
}

void speci_draft_absorb(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    const int32_t base = speci_exec_n_past(s->draft_exec, seq);
    int32_t n = 0, node = q->n_fed > 0 && base < q->n_ids && q->fed.token[0] == known_token(s, q->ids[base]) ? 0 : -1;
    /* The pending token is left out, since its row must be computed anew. */
    for (; node >= 0 && base + n < q->n_ids - 1; node = fed_child(q, node, known_token(s, q->ids[base + n])))
        s->path[n++] = node;
    speci_exec_commit(s->draft_exec, seq, s->path, n);
    q->fed.n = q->n_fed = 0;
}

void speci_draft_forget(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    if (!q->no_draft) speci_exec_commit(s->draft_exec, seq, NULL, 0);
    q->fed.n = q->n_fed = 0;
}

spec_status speci_draft_feed(spec_session *s, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        s->inputs[i] = (speci_exec_input){ .slot = seqs[i], .tree = &q->fed, .n_fed = q->n_fed };
    }
    SPEC_TRY(speci_exec_forward(s->draft_exec, s->inputs, n, NULL, NULL));
    for (int32_t i = 0; i < n; i++) s->seqs[seqs[i]].n_fed = s->seqs[seqs[i]].fed.n;
    return SPEC_OK;
}

spec_status speci_draft_catch_up(spec_session *s, int32_t seq, int32_t n_row)
{
    algo_seq *q = &s->seqs[seq];
    speci_draft_absorb(s, seq);
    for (;;) {
        const int32_t base = speci_exec_n_past(s->draft_exec, seq), left = q->n_ids - base;
        const int32_t most = s->draft_node < SPEC_MAX_DEPTH ? s->draft_node : SPEC_MAX_DEPTH;
        const bool fits = left + n_row - 1 <= s->draft_node && left <= 2;
        const int32_t n = fits ? left : left - 1 < most ? left - 1 : most;
        for (int32_t i = 0; i < n; i++) spec_tree_add(&q->fed, i - 1, known_token(s, q->ids[base + i]), 0);
        if (fits) return SPEC_OK;
        SPEC_TRY(speci_draft_feed(s, &seq, 1));
        speci_draft_absorb(s, seq);
    }
}
