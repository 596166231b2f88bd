/* engine_watch.c - drafters that are not used at present, and would be right: proposals that nobody scores, compared with the text.
 *
 * To look something up takes microseconds, and what the target says shows whether it was right: the naive rule accepts a draft where
 * it is what plain decoding would have said. So a choice knows of a text that begins to repeat itself without a trial. One sequence of
 * a round is watched, each in its turn. */
#include "algorithms/engine/engine.h"

/* Levels of a proposal that are waited for: a step without drafts brings one. The part of its time that a session may watch. */
enum { HORIZON = 4 };
static const double WATCHING = 0.005;

spec_status speci_watch_open(spec_session *s)
{
    const size_t n = (size_t)s->drafters.n * (size_t)s->n_seq;
    if (s->choice.mode != SPEC_ADAPT_COST || (s->drafters.combine == SPEC_DRAFT_UNION && s->drafters.n > 1)) return SPEC_OK;
    if (!(s->watches = speci_alloc(s->a, n, sizeof *s->watches))) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (speci_draft_looks_up(&s->drafters.draft[i / (size_t)s->n_seq])) SPEC_TRY(spec_tree_alloc(&s->watches[i].tree, s->n_node, s->a));
    return SPEC_OK;
}

void speci_watch_close(spec_session *s)
{
    for (int32_t i = 0; s->watches && i < s->drafters.n * s->n_seq; i++) spec_tree_free(&s->watches[i].tree, s->a);
    speci_free(s->a, s->watches);
}

/* What came of it, for the sources from the longest matches to the one that it was found by; no match: for all. */
static void tell(spec_session *s, int32_t drafter, int32_t n_match, int32_t n_node, int32_t depth, bool ended)
{
    for (int32_t i = s->first_source[drafter]; i < s->first_source[drafter + 1]; i++) {
        const bool found = n_match > 0 && i == speci_ways_match(s, drafter, n_match);
        speci_choice_watch(&s->choice, i, found ? n_node : 0, found ? depth : 0, !found || ended);
        if (found) return;
    }
}

/* Asked about what follows the pending token. An error is none of the step's, which is over. */
static void begin(spec_session *s, int32_t drafter, int32_t seq)
{
    speci_draft *d = &s->drafters.draft[drafter];
    engine_watch *w = &s->watches[drafter * s->n_seq + seq];
    engine_seq *q = &s->seqs[seq];
    speci_draft_seq ask = speci_sequence_asked(s, seq);
    const double start = s->now_ms();
    w->tree.n = 0, w->tree.kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(&w->tree, -1, q->ids[q->n_ids - 1], 1);
    ask.tree = &w->tree, ask.depth_max = speci_draft_room(s, q), ask.least = 1;
    const spec_status status = ask.depth_max > 0 ? d->kind->enqueue(d, NULL, &ask, 1) : SPEC_E_FULL;
    s->watch_ms += s->now_ms() - start;
    w->node = w->depth = 0, w->n_ids = q->n_ids, w->n_match = ask.n_match;
    if (status == SPEC_OK && w->tree.n > 1) return;
    if (status == SPEC_OK) tell(s, drafter, 0, 0, 0, true);
    w->tree.n = 0;
}

/* Down the tree by the sequence's new ids; tells what came of it as soon as that is known. */
static void follow(spec_session *s, int32_t drafter, int32_t seq)
{
    engine_watch *w = &s->watches[drafter * s->n_seq + seq];
    const engine_seq *q = &s->seqs[seq];
    bool ended = false;
    for (; w->n_ids < q->n_ids && !ended && w->depth < HORIZON; w->n_ids++) {
        const int32_t child = speci_tree_child_with(&w->tree, w->node, q->ids[w->n_ids]);
        if (child >= 0) w->node = child, w->depth++;
        ended = child < 0 || speci_tree_next_child(&w->tree, child, -1) < 0;
    }
    if (!ended && w->depth < HORIZON) return;
    tell(s, drafter, w->n_match, w->tree.n - 1, w->depth, ended);
    w->tree.n = 0;
}

/* Time is looked at where rounds are held against it: else the choice is to follow from the text alone. */
static bool affords(const spec_session *s)
{
    return !s->choice.costs.measured || s->watch_ms <= WATCHING * s->round_ms;
}

static void watch(spec_session *s, int32_t drafter, const engine_part *p, bool turn)
{
    const engine_seq *q = &s->seqs[p->seq];
    engine_watch *w = &s->watches[drafter * s->n_seq + p->seq];
    const bool asked = speci_ways_ask(s, q->proposal.arm + 1, drafter);
    if (asked || w->n_ids != q->n_ids - p->n_path) w->tree.n = 0;
    if (w->tree.n > 0) follow(s, drafter, p->seq);
    if (!asked && turn && w->tree.n == 0 && affords(s)) begin(s, drafter, p->seq);
}

void speci_watch_round(spec_session *s, const engine_round *r)
{
    for (int32_t k = 0; k < s->drafters.n; k++)
        for (int32_t i = 0; i < r->n_part && speci_draft_looks_up(&s->drafters.draft[k]); i++)
            watch(s, k, &r->part[i], s->n_round % (uint64_t)r->n_part == (uint64_t)i);
}
