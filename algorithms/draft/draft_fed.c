/* draft_fed.c - what a drafter's executor was fed since its last commit, and which of it is committed by now. */
#include "algorithms/draft/draft_model.h"

/* Among the first n that were fed. */
static int32_t fed_child(const model_seq *s, int32_t n, int32_t node, int32_t token)
{
    for (int32_t c = node + 1; c < n; c++)
        if (s->fed.parent[c] == node && s->fed.token[c] == token) return c;
    return -1;
}

void speci_draft_commit_fed(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    int32_t n_ids, n = 0;
    const int32_t *ids = speci_translated(&s->own, &n_ids), base = m->exec->kind->n_past(m->exec, seq);
    const int32_t n_true = speci_draft_is_head(m) ? s->n_given : s->n_fed;
    if (s->n_fed == 0 || s->rides) { /* a path that is pending stays so */
        s->fed.n = s->n_fed = 0, s->rides = false;
        return;
    }
    int32_t node = base < n_ids && s->fed.token[0] == ids[base] ? 0 : -1;
    for (; node >= 0 && base + n < n_ids - 1; node = fed_child(s, n_true, node, ids[base + n])) m->path[n++] = node;
    m->exec->kind->commit(m->exec, seq, m->path, n);
    s->fed.n = s->n_fed = 0;
}
