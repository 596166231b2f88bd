/* engine_choice.c - the ways to draft that a session chooses among, and what its choice is told of each round. */
#include "algorithms/engine/engine.h"

/* --- the ways --- */

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

/* A drafter without builders has one way to propose. */
static int32_t n_tree(const speci_draft *d) { return max32(d->drafter->n_builder, 1); }

static bool unites(const spec_session *s) { return s->drafters.combine == SPEC_DRAFT_UNION && s->drafters.n > 1; }

/* Bit k of them: drafter k. */
static uint64_t one(int32_t k) { return (uint64_t)1 << k; }
static uint64_t all_of(const spec_session *s) { return ~(uint64_t)0 >> (SPECI_MAX_DRAFTER - s->drafters.n); }

/* The most trees of a drafter, and of all together. */
static int32_t count_trees(const spec_session *s, int32_t *sum)
{
    int32_t most = 0;
    *sum = 0;
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const int32_t n = n_tree(&s->drafters.draft[k]);
        most = max32(most, n), *sum += n;
    }
    return most;
}

/* With `n_tree` trees one after the other; not twice. */
static void add_ways(spec_session *s, uint64_t drafters, int32_t n_tree)
{
    for (int32_t i = 0; i < s->n_way; i++)
        if (s->ways[i].drafters == drafters) return;
    for (int32_t b = 0; b < n_tree; b++) s->ways[s->n_way++] = (engine_way){ drafters, b };
}

/* A drafter that looks up in front of one behind it, as far as n_way ways go: where the first finds nothing, the other is asked. */
static void add_pairs(spec_session *s, int32_t n_way)
{
    for (int32_t k = 0; k < s->drafters.n; k++)
        for (int32_t m = k + 1; m < s->drafters.n && speci_draft_looks_up(&s->drafters.draft[k]); m++) {
            const int32_t n = n_tree(&s->drafters.draft[m]);
            if (s->n_way + n <= n_way) add_ways(s, one(k) | one(m), n);
        }
}

/* To choose among: drafters in their order, each with each of its trees; pairs; and, as without a choice, all together, with tree b of
 * each. */
static void list_ways(spec_session *s, int32_t most, int32_t n_way)
{
    if (s->drafters.combine == SPEC_DRAFT_CHOOSE) {
        for (int32_t k = 0; k < s->drafters.n; k++) add_ways(s, one(k), n_tree(&s->drafters.draft[k]));
        add_pairs(s, n_way - most);
    }
    if (s->drafters.n > 0) add_ways(s, all_of(s), most);
}

/* --- their sources --- */

static speci_source source_of(const speci_draft *d, int32_t k, int32_t b)
{
    const spec_builder *builder = speci_draft_builder(d, b);
    const int32_t n = builder ? builder->info.n_node - 1 : d->drafter->n_draft;
    return (speci_source){ .drafter = k, .n_node = n, .depth = builder ? builder->info.depth : n };
}

static speci_source union_of(const spec_session *s, int32_t b)
{
    speci_source all = { .drafter = 0 };
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const speci_source one = source_of(&s->drafters.draft[k], k, b);
        all.n_node += one.n_node, all.depth = max32(all.depth, one.depth);
    }
    if (all.n_node >= s->n_node) all.n_node = s->n_node - 1;
    return all;
}

static void list_sources(spec_session *s, int32_t most)
{
    speci_choice *c = &s->choice;
    for (int32_t b = 0; b < most && unites(s); b++) c->sources[c->n_source++] = union_of(s, b);
    for (int32_t k = 0; k < s->drafters.n && !unites(s); k++) {
        s->first_source[k] = c->n_source;
        for (int32_t b = 0; b < n_tree(&s->drafters.draft[k]); b++) c->sources[c->n_source++] = source_of(&s->drafters.draft[k], k, b);
        s->first_source[k + 1] = c->n_source;
    }
}

int32_t speci_ways_source(const spec_session *s, int32_t arm, int32_t drafter)
{
    if (arm == 0) return -1;
    const engine_way *w = &s->ways[arm - 1];
    if (unites(s)) return w->builder;
    if (!(w->drafters & one(drafter))) return -1;
    const int32_t last = n_tree(&s->drafters.draft[drafter]) - 1;
    return s->first_source[drafter] + (w->builder < last ? w->builder : last);
}

static void list_arms(spec_session *s)
{
    speci_choice *c = &s->choice;
    c->n_arm = 1 + s->n_way;
    for (int32_t arm = 1; arm < c->n_arm; arm++)
        for (int32_t k = 0; k < s->drafters.n; k++) {
            const int32_t source = speci_ways_source(s, arm, k);
            if (source >= 0 && source < SPECI_MAX_SOURCE) c->arms[arm].sources |= (uint64_t)1 << source;
        }
}

spec_status speci_ways_open(spec_session *s, spec_adapt adapt)
{
    speci_choice *c = &s->choice;
    int32_t sum;
    const int32_t most = count_trees(s, &sum), n_arm = adapt == SPEC_ADAPT_UCB ? SPEC_MAX_ARM : SPECI_MAX_CHOICE;
    const size_t n_drafter = (size_t)s->drafters.n, n_way = (size_t)max32(sum + most, n_arm - 1), n_source = (size_t)max32(sum, most);
    if (!(s->ways = speci_alloc(s->a, n_way, sizeof *s->ways))) return SPEC_E_NOMEM;
    if (!(s->first_source = speci_alloc(s->a, n_drafter + 1, sizeof *s->first_source))) return SPEC_E_NOMEM;
    if (!(c->arms = speci_alloc(s->a, 1 + n_way, sizeof *c->arms))) return SPEC_E_NOMEM;
    if (!(c->sources = speci_alloc(s->a, n_source, sizeof *c->sources))) return SPEC_E_NOMEM;
    if (!(c->levels = speci_alloc(s->a, n_drafter, sizeof *c->levels))) return SPEC_E_NOMEM;
    if (!(s->asks = speci_alloc(s->a, n_source, sizeof *s->asks))) return SPEC_E_NOMEM;
    list_ways(s, most, n_arm - 1);
    list_sources(s, most);
    list_arms(s);
    return SPEC_OK;
}

void speci_ways_close(spec_session *s)
{
    void *arrays[] = { s->ways, s->first_source, s->choice.arms, s->choice.sources, s->choice.levels, s->asks };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

/* --- rounds --- */

int32_t speci_ways_choose(spec_session *s, int32_t n_seq)
{
    return s->drafters.n > 0 ? speci_choice_arm(&s->choice, n_seq) : 0;
}

void speci_ways_begin(spec_session *s, int32_t arm, int32_t n_seq, double start)
{
    if (s->choice.mode == SPEC_ADAPT_OFF) return;
    s->outcome = (engine_outcome){ .round = s->n_round, .arm = arm, .n_seq = n_seq, .start = start };
    for (int32_t i = 0; i < s->choice.n_source; i++) s->asks[i] = (speci_asks){ 0 };
}

/* Drafters are asked in their order, up to the one that proposes. */
static void add_asks(spec_session *s, const engine_part *p)
{
    const engine_proposal *own = &s->seqs[p->seq].proposal;
    const int32_t arm = s->outcome.arm, n_node = p->tree.n - 1, n_accepted = p->n_path - 1;
    if (arm == 0 || !own->asked) return;
    if (unites(s)) {
        speci_asks_add(&s->asks[speci_ways_source(s, arm, 0)], n_node, n_accepted);
        return;
    }
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const int32_t source = speci_ways_source(s, arm, k);
        const bool proposed = own->by == k && n_node > 0;
        if (source >= 0) speci_asks_add(&s->asks[source], proposed ? n_node : 0, proposed ? n_accepted : 0);
        if (proposed) return;
    }
}

/* With the last of a round's sequences the choice is updated, by the time since the round began; not if any was committed by a
 * tree of the caller's. */
void speci_ways_tell(spec_session *s, const engine_part *p)
{
    engine_outcome *o = &s->outcome;
    if (o->round == 0 || p->round != o->round) return;
    o->n_done++;
    o->n_emitted += p->n_path;
    o->n_row += p->tree.n;
    add_asks(s, p);
    if (o->n_done < o->n_seq) return;
    const speci_outcome all = { .n_seq = o->n_seq, .n_emitted = o->n_emitted, .n_row = o->n_row, .ms = s->now_ms() - o->start,
                                .asks = s->asks };
    speci_choice_update(&s->choice, o->arm, &all);
    s->round_ms += all.ms;
    o->round = 0;
}
