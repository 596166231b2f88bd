/* engine_watch.c - what drafters from text would propose: told to the choice before it chooses, and compared with the text behind.
 *
 * To look something up takes microseconds. So before each step of a sequence that is alone in its round the choice knows what each of
 * them would propose (engine_choice.c says which source that is), and takes a way for what there is, not for what there is on average.
 * And what the target says shows whether a proposal that nobody scored was right: the naive rule accepts a draft where it is what plain
 * decoding would have said. A proposal is watched to its end, and then the next one, as if the drafter were used: where all is right,
 * one proposal takes the place of many steps. Of the sequences of a round one is looked at, each in its turn. */
#include "algorithms/engine/engine.h"

/* The part of its time that a session may look things up for this. */
static const double WATCHING = 0.005;

static bool looks_up(const spec_session *s, int32_t drafter) { return speci_draft_looks_up(&s->drafters.draft[drafter]); }

/* Is there a choice that it matters to? */
static bool is_wanted(const spec_session *s)
{
    bool any = false;
    for (int32_t k = 0; k < s->drafters.n; k++) any |= looks_up(s, k);
    return any && s->choice.mode == SPEC_ADAPT_COST && (s->drafters.combine != SPEC_DRAFT_UNION || s->drafters.n == 1);
}

spec_status speci_watch_open(spec_session *s)
{
    const size_t n = (size_t)s->drafters.n * (size_t)s->n_seq;
    if (!is_wanted(s)) return SPEC_OK;
    if (!(s->watches = speci_alloc(s->a, n, sizeof *s->watches))) return SPEC_E_NOMEM;
    s->seen_seq = -1;
    for (size_t i = 0; i < n; i++)
        if (looks_up(s, (int32_t)(i / (size_t)s->n_seq))) SPEC_TRY(spec_tree_alloc(&s->watches[i].tree, s->n_node, s->a));
    return spec_tree_alloc(&s->looked, s->n_node, s->a);
}

void speci_watch_close(spec_session *s)
{
    for (int32_t i = 0; s->watches && i < s->drafters.n * s->n_seq; i++) spec_tree_free(&s->watches[i].tree, s->a);
    speci_free(s->a, s->watches);
    spec_tree_free(&s->looked, s->a);
}

/* The sources that are asked: up to the one that a proposal was found by, or all. */
static int32_t last_source(const spec_session *s, int32_t drafter, int32_t source)
{
    return source >= 0 ? source : s->first_source[drafter + 1] - 1;
}

/* What came of a proposal. */
static void tell(spec_session *s, int32_t drafter, const engine_watch *w)
{
    for (int32_t i = s->first_source[drafter]; i <= last_source(s, drafter, w->source); i++) {
        const bool found = i == w->source;
        speci_choice_watch(&s->choice, i, found ? w->tree.n - 1 : 0, found ? w->depth : 0);
    }
}

static void see(spec_session *s, int32_t drafter, int32_t source, int32_t n_node)
{
    for (int32_t i = s->first_source[drafter]; i <= last_source(s, drafter, source); i++)
        speci_choice_see(&s->choice, i, i == source ? n_node : 0);
}

/* Asks what follows the pending token. Returns the tokens of the match; 0: nothing is found. An error is none of the step's, which is
 * over. */
static int32_t look(spec_session *s, int32_t drafter, int32_t seq, spec_tree *t)
{
    speci_draft *d = &s->drafters.draft[drafter];
    engine_seq *q = &s->seqs[seq];
    speci_draft_seq ask = speci_sequence_asked(s, seq);
    t->n = 0, t->kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(t, -1, q->ids[q->n_ids - 1], 1);
    ask.tree = t, ask.least = 1;
    if (ask.depth_max > 0 && d->kind->enqueue(d, NULL, &ask, 1) != SPEC_OK) t->n = 1;
    return t->n > 1 ? ask.n_match : 0;
}

/* Down the tree by the sequence's new ids; tells what came of it as soon as that is known. */
static void follow(spec_session *s, int32_t drafter, int32_t seq)
{
    engine_watch *w = &s->watches[drafter * s->n_seq + seq];
    const engine_seq *q = &s->seqs[seq];
    bool ended = w->tree.n == 1;
    for (; w->n_ids < q->n_ids && !ended; w->n_ids++) {
        const int32_t child = speci_tree_child_with(&w->tree, w->node, q->ids[w->n_ids]);
        if (child >= 0) w->node = child, w->depth++;
        ended = child < 0 || speci_tree_next_child(&w->tree, child, -1) < 0;
    }
    if (!ended) return;
    tell(s, drafter, w);
    w->on = false;
}

/* Time is looked at where rounds are held against it: else the choice is to follow from the text alone. */
static bool affords(const spec_session *s)
{
    return !s->choice.costs.measured || s->watch_ms <= WATCHING * s->round_ms;
}

/* Was the drafter asked in the sequence's step? One in front of it may have proposed. */
static bool was_asked(const spec_session *s, const engine_proposal *own, int32_t drafter)
{
    return own->asked && speci_ways_ask(s, own->arm + 1, drafter) && (own->by < 0 || own->by >= drafter);
}

/* What came of what was watched. */
static void end_watches(spec_session *s, const engine_part *p)
{
    const engine_seq *q = &s->seqs[p->seq];
    for (int32_t k = 0; k < s->drafters.n; k++) {
        engine_watch *w = &s->watches[k * s->n_seq + p->seq];
        if (was_asked(s, &q->proposal, k)) w->on = false;
        if (w->on) follow(s, k, p->seq);
    }
}

/* What each drafter would propose: match [n drafters] tokens. One whose proposal is being watched uses the scratch. */
static void look_all(spec_session *s, int32_t seq, int32_t *match)
{
    s->seqs[seq].repeats = false;
    for (int32_t k = 0; k < s->drafters.n; k++) {
        if (!looks_up(s, k)) continue;
        engine_watch *w = &s->watches[k * s->n_seq + seq];
        spec_tree *t = w->on ? &s->looked : &w->tree;
        match[k] = look(s, k, seq, t);
        w->n_looked = t->n - 1;
        s->seqs[seq].repeats |= speci_ways_repeats(match[k]);
    }
}

/* alone: the sequence alone takes part in the next round. */
static void begin_watches(spec_session *s, int32_t seq, bool alone)
{
    const double start = s->now_ms();
    int32_t match[SPECI_MAX_DRAFTER];
    look_all(s, seq, match);
    for (int32_t k = 0; k < s->drafters.n; k++) {
        if (!looks_up(s, k)) continue;
        engine_watch *w = &s->watches[k * s->n_seq + seq];
        const int32_t source = match[k] > 0 ? speci_ways_match(s, k, match[k], s->seqs[seq].repeats) : -1;
        if (alone) see(s, k, source, w->n_looked);
        if (w->on) continue;
        w->on = true, w->source = source, w->node = w->depth = 0, w->n_ids = s->seqs[seq].n_ids;
    }
    s->watch_ms += s->now_ms() - start;
}

static void see_none(spec_session *s)
{
    speci_choice_unsee(&s->choice);
    s->seen_seq = -1;
}

void speci_watch_alone(spec_session *s, int32_t seq)
{
    if (!s->watches || s->seen_seq == seq) return;
    see_none(s);
    s->seqs[seq].repeats = false;
    if (affords(s)) begin_watches(s, seq, true);
    s->seen_seq = seq;
}

void speci_watch_round(spec_session *s, const engine_round *r)
{
    see_none(s);
    for (int32_t i = 0; i < r->n_part; i++) {
        s->seqs[r->part[i].seq].repeats = false;
        end_watches(s, &r->part[i]);
    }
    if (r->n_part == 1) speci_watch_alone(s, r->part[0].seq);
    else if (r->n_part > 0 && affords(s)) begin_watches(s, r->part[s->n_round % (uint64_t)r->n_part].seq, false);
}
