/* engine_choice.c - the ways to draft that a session chooses among, and what its choice is told of each round. */
#include "algorithms/engine/engine.h"

/* --- the ways --- */

enum { GRADES = 3, CHAINED = 2 }; /* matches of so many tokens and more are alike; the least one of a chain, where nothing else is said */

/* A drafter without builders has one way to propose. */
static int32_t n_tree(const speci_draft *d) { return speci_max32(d->drafter->n_builder, 1); }

static bool unites(const spec_session *s) { return s->drafters.combine == SPEC_DRAFT_UNION && s->drafters.n > 1; }

static uint64_t one(int32_t k) { return (uint64_t)1 << k; }
static uint64_t all_of(const spec_session *s) { return ~(uint64_t)0 >> (SPECI_MAX_DRAFTER - s->drafters.n); }
static bool looks_up(const spec_session *s, int32_t k) { return speci_draft_looks_up(&s->drafters.draft[k]); }

/* The most trees of a drafter, and of all together. */
static int32_t count_trees(const spec_session *s, int32_t *sum)
{
    int32_t most = 0;
    *sum = 0;
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const int32_t n = n_tree(&s->drafters.draft[k]);
        most = speci_max32(most, n), *sum += n;
    }
    return most;
}

/* With trees 0 to n - 1. */
static void add_ways(spec_session *s, uint64_t drafters, int32_t n, int32_t least)
{
    for (int32_t b = 0; b < n; b++) s->ways[s->n_way++] = speci_draft_way_of(&s->drafters, drafters, b, least);
}

static bool has_way(const spec_session *s, uint64_t drafters, int32_t least)
{
    for (int32_t i = 0; i < s->n_way; i++)
        if (s->ways[i].drafters == drafters && s->ways[i].least == least) return true;
    return false;
}

/* Drafter m with each of its trees, behind those of `front`, as far as there is room for n_way ways. */
static void add_chain(spec_session *s, uint64_t front, int32_t m, int32_t least, int32_t n_way)
{
    const int32_t n = n_tree(&s->drafters.draft[m]);
    if (s->n_way + n <= n_way && !has_way(s, front | one(m), least)) add_ways(s, front | one(m), n, least);
}

/* In front of a drafter stands one that looks up, or the first ones that do. */
static void add_chains(spec_session *s, int32_t least, int32_t n_way)
{
    for (int32_t m = 1; m < s->drafters.n; m++) {
        uint64_t front = 0;
        for (int32_t k = 0; k < m; k++) {
            if (!looks_up(s, k)) continue;
            add_chain(s, one(k), m, least, n_way);
            add_chain(s, front | one(k), m, least, n_way);
            front |= one(k);
        }
    }
}

/* To choose among: each drafter with each of its trees; all together, with tree b of each; chains; and those that look up by longer
 * matches alone. COST knows by source what lengths of a match bring, so each length is a way of its own; UCB has to try each way. */
static void list_ways(spec_session *s, spec_adapt adapt, int32_t most, int32_t n_way)
{
    const bool chooses = s->drafters.combine == SPEC_DRAFT_CHOOSE && s->drafters.n > 1, by_source = adapt == SPEC_ADAPT_COST;
    for (int32_t k = 0; k < s->drafters.n && chooses; k++) add_ways(s, one(k), n_tree(&s->drafters.draft[k]), 0);
    if (s->drafters.n > 0) add_ways(s, all_of(s), most, chooses ? CHAINED : 0);
    for (int32_t least = 1; least <= GRADES && chooses; least++)
        if (by_source || least == CHAINED) add_chains(s, least, n_way);
    for (int32_t least = 2; least <= GRADES && by_source && (chooses || s->drafters.n == 1); least++)
        for (int32_t k = 0; k < s->drafters.n; k++)
            if (looks_up(s, k)) add_chain(s, 0, k, least, n_way);
}

/* --- their sources --- */

static speci_source source_of(const speci_draft *d, int32_t b)
{
    const spec_builder *builder = speci_draft_builder(d, b);
    const int32_t n = builder ? builder->info.n_node - 1 : d->drafter->n_draft;
    return (speci_source){ .n_node = n, .depth = builder ? builder->info.depth : n };
}

static speci_source union_of(const spec_session *s, int32_t b)
{
    speci_source all = { .kin = 0 };
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const speci_source one = source_of(&s->drafters.draft[k], b);
        all.n_node += one.n_node, all.depth = speci_max32(all.depth, one.depth);
    }
    if (all.n_node >= s->n_node) all.n_node = s->n_node - 1;
    return all;
}

/* What a match of one token brings is not what a longer one does, nor the same where the text repeats itself, which the longest matches
 * say. The trees of a drafter are kin. */
enum { N_GRADED = 2 * GRADES - 1 };
static const double hits[N_GRADED] = { 0.67, 0.5, 0.5, 0.25, 0.25 };

static void list_sources(spec_session *s, int32_t most)
{
    speci_choice *c = &s->choice;
    for (int32_t b = 0; b < most && unites(s); b++) c->sources[c->n_source++] = union_of(s, b);
    for (int32_t k = 0; k < s->drafters.n && !unites(s); k++) {
        const int32_t first = s->first_source[k] = c->n_source, n = looks_up(s, k) ? s->n_grade : n_tree(&s->drafters.draft[k]);
        for (int32_t i = 0; i < n; i++, c->n_source++) {
            speci_source *one = &c->sources[c->n_source];
            *one = source_of(&s->drafters.draft[k], looks_up(s, k) ? 0 : i);
            one->kin = looks_up(s, k) ? first + i : first;
            if (looks_up(s, k) && n == N_GRADED) one->hit = hits[i];
        }
        s->first_source[k + 1] = c->n_source;
    }
}

bool speci_ways_repeats(int32_t n_match) { return n_match >= GRADES; }

/* From the longest matches on: GRADES tokens and more, then fewer, where the text does not repeat itself and where it does. */
int32_t speci_ways_match(const spec_session *s, int32_t drafter, int32_t n_match, bool repeats)
{
    if (s->n_grade == 1 || n_match >= GRADES) return s->first_source[drafter];
    return s->first_source[drafter] + 2 * (GRADES - speci_max32(n_match, 1)) - 1 + repeats;
}

/* The sources of drafter k in a way, which are asked in the order of their numbers. */
static uint64_t sources_of(const spec_session *s, const speci_draft_way *w, int32_t k)
{
    const int32_t last = n_tree(&s->drafters.draft[k]) - 1, b = w->builder < last ? w->builder : last;
    uint64_t sources = 0;
    if (!looks_up(s, k)) return one(s->first_source[k] + b);
    for (int32_t i = s->first_source[k]; i <= speci_ways_match(s, k, w->least, true); i++) sources |= one(i);
    return sources;
}

static void list_arms(spec_session *s)
{
    speci_choice *c = &s->choice;
    c->n_arm = 1 + s->n_way;
    for (int32_t w = 0; w < s->n_way && c->n_source <= SPECI_MAX_SOURCE; w++) {
        if (unites(s)) c->arms[1 + w].sources = one(s->ways[w].builder);
        for (int32_t k = 0; k < s->drafters.n && !unites(s); k++)
            if (s->ways[w].drafters & one(k)) c->arms[1 + w].sources |= sources_of(s, &s->ways[w], k);
    }
}

bool speci_ways_ask(const spec_session *s, int32_t arm, int32_t drafter) { return arm > 0 && s->ways[arm - 1].drafters & one(drafter); }

/* Lengths are told apart where a choice takes so many sources. Returns how many there are. */
static int32_t grade(spec_session *s)
{
    int32_t n_look = 0, n_other = 0;
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (looks_up(s, k)) n_look++;
        else n_other += n_tree(&s->drafters.draft[k]);
    s->n_grade = N_GRADED * n_look + n_other <= SPECI_MAX_SOURCE ? N_GRADED : 1;
    return n_look * s->n_grade + n_other;
}

static int32_t most_arms(spec_adapt adapt)
{
    return adapt == SPEC_ADAPT_COST ? SPECI_MAX_CHOICE : adapt == SPEC_ADAPT_UCB ? SPEC_MAX_ARM : 1;
}

spec_status speci_ways_open(spec_session *s, spec_adapt adapt)
{
    speci_choice *c = &s->choice;
    int32_t sum;
    const int32_t most = count_trees(s, &sum), n_arm = most_arms(adapt);
    const size_t n_drafter = (size_t)s->drafters.n, n_way = (size_t)speci_max32(sum + most, n_arm - 1),
                 n_source = (size_t)speci_max32(grade(s), most);
    if (!(s->ways = speci_alloc(s->a, n_way, sizeof *s->ways))) return SPEC_E_NOMEM;
    if (!(s->first_source = speci_alloc(s->a, n_drafter + 1, sizeof *s->first_source))) return SPEC_E_NOMEM;
    if (!(c->arms = speci_alloc(s->a, 1 + n_way, sizeof *c->arms))) return SPEC_E_NOMEM;
    if (!(c->sources = speci_alloc(s->a, n_source, sizeof *c->sources))) return SPEC_E_NOMEM;
    if (!(c->levels = speci_alloc(s->a, n_source, sizeof *c->levels))) return SPEC_E_NOMEM;
    if (!(s->asks = speci_alloc(s->a, n_source, sizeof *s->asks))) return SPEC_E_NOMEM;
    list_ways(s, adapt, most, n_arm - 1);
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

void speci_ways_begin(spec_session *s, int32_t arm, int32_t n_seq, double start)
{
    s->outcome = (engine_outcome){ .round = s->n_round, .arm = arm, .n_seq = n_seq, .start = start };
    for (int32_t i = 0; i < s->choice.n_source; i++) s->asks[i] = (speci_asks){ 0 };
}

static bool has_proposed(const spec_session *s, const engine_proposal *own, int32_t source)
{
    if (unites(s)) return true;
    if (own->by < 0 || source < s->first_source[own->by] || source >= s->first_source[own->by + 1]) return false;
    return !looks_up(s, own->by) || source == speci_ways_match(s, own->by, own->n_match, own->repeats);
}

/* Sources are asked in their order, up to the one that proposes. */
static void add_asks(spec_session *s, const engine_part *p)
{
    const engine_proposal *own = &s->seqs[p->seq].proposal;
    const int32_t arm = s->outcome.arm, n_node = p->tree.n - 1;
    if (arm == 0 || !own->asked) return;
    for (int32_t i = 0; i < s->choice.n_source; i++) {
        if (!(s->choice.arms[arm].sources >> i & 1)) continue;
        const bool proposed = n_node > 0 && has_proposed(s, own, i);
        speci_asks_add(&s->asks[i], proposed ? n_node : 0, proposed ? p->n_path - 1 : 0);
        if (proposed) return;
    }
}

/* With the last of a round's sequences the choice is updated, by the time since the round began; not if any was committed by a
 * tree of the caller's. */
void speci_ways_tell(spec_session *s, const engine_part *p)
{
    engine_outcome *o = &s->outcome;
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
