/* choose.h - a session's choice at run time among ways to draft, not drafting being one (algorithms.md 12, 13, 14). Internal. */
#ifndef SPEC_CHOOSE_H
#define SPEC_CHOOSE_H

#include "algorithms/build/build.h"

/* --- sources of drafts (choose_source.c) --- */

/* What came of asking a source for drafts: `n` times, a sequence in a round being one. */
typedef struct speci_asks {
    double n, n_proposed, n_hit; /* of them with a proposal, and with an accepted node */
    double n_node, n_accepted;   /* nodes below the roots, and accepted ones */
} speci_asks;
void speci_asks_add(speci_asks *to, int32_t n_node, double n_accepted);

/* A source is a drafter with one of its trees, or the union of all drafters, or, of a drafter that looks up, what it finds by matches of
 * one length. */
typedef struct speci_source {
    int32_t kin;            /* sources of one number are expected to be alike */
    int32_t n_node, depth;  /* most nodes below the root, and levels of them */
    double hit;             /* beforehand: how often a level of a proposal has an accepted node; 0: as any drafter's */
    speci_asks ever;        /* of all texts */
    speci_asks past, recent; /* of this text since it changed: discounted by asks, and the latest few, which are not in it yet */
    double n_sure;          /* asks, discounted by rounds: how well it is known at present */
    double known_ms, known_n_seq; /* what its passes for so many sequences take, as of the latest choice; 0: not known yet */
    speci_asks seen;        /* what the next round's sequences would get of it; n 0: that is not known. Nothing is accepted yet */
} speci_source;

/* How often a level of such sources' trees has an accepted node, in n of them. */
typedef struct speci_levels {
    double n, n_hit;
} speci_levels;

/* Takes `a` in. true: the source is accepted otherwise than before, so the text has changed. */
bool speci_source_update(speci_source *s, speci_levels *levels, const speci_asks *a);
/* Another text begins: what is known is of texts before it. */
void speci_source_begin(speci_source *s);
/* A round is over; changed: the text has. */
void speci_source_age(speci_source *s, bool changed);
/* Accepted nodes below `depth` levels more, if levels of the source's kin go on as they were. */
double speci_levels_expect(const speci_source *s, const speci_levels *levels, int32_t depth);

/* What one more ask is expected to bring. */
typedef struct speci_prospect {
    double share;           /* the probability of a proposal */
    double n_node;          /* nodes below the root, without a proposal 0 */
    double n_accepted;
    double n_accepted_least, n_accepted_most; /* what that may be at worst and at best */
} speci_prospect;
/* n_sure_others: of other sources of its kin. */
speci_prospect speci_source_expect(const speci_source *s, const speci_levels *levels, double n_sure_others);

/* --- the choice (choose_adapt.c) --- */

enum { SPECI_MAX_SOURCE = 64, SPECI_MAX_CHOICE = 64, SPECI_RATIOS = 9, SPECI_LOADS = 12 };

/* Of the latest rounds: their time to what step costs say of them. n: of all. */
typedef struct speci_ratios {
    double ratio[SPECI_RATIOS];
    int64_t n;
} speci_ratios;

/* A way to draft: its sources are asked in their order, each for the sequences for which none before it has proposed. */
typedef struct speci_arm {
    uint64_t sources; /* bit i: source i; 0: no drafts */
    speci_ratios loads[SPECI_LOADS];
} speci_arm;

/* Step costs, in milliseconds: a pass of the target over n_row rows of n_seq sequences; the passes in which a source drafts for
 * n_seq sequences. */
typedef struct speci_step_costs {
    double (*target)(const void *arg, int32_t n_seq, double n_row);
    double (*draft)(const void *arg, int32_t source, double n_seq);
    const void *arg;
    bool measured;              /* by this session: then its rounds are held against them. Else they are taken as they are */
    double (*first)(const void *arg, int32_t source, int32_t n_seq); /* what passes of a source, or of the target (-1), take longer in
                                 * the first rounds with so many sequences, since they are new to the device; NULL: nothing */
    double (*lag)(const void *arg, int32_t source, int32_t n_seq, bool is_new); /* what passes take in which a source's drafter catches
                                 * up with the first n_seq sequences of the round that is chosen for, which may be new; NULL: nothing */
} speci_step_costs;

/* The caller's: arms and sources, filled, and levels, zero. */
typedef struct speci_choice {
    spec_adapt mode;
    int32_t n_arm, n_source;
    speci_arm *arms;            /* [n_arm]; arm 0 has no sources */
    speci_source *sources;      /* [n_source] */
    speci_levels *levels;       /* by kin */
    speci_step_costs costs;
    int64_t n_round;
    int32_t arm;                /* of the latest round */
    int32_t best;               /* the arm of most tokens per time, as far as is known */
    double best_rate;           /* its tokens per millisecond, of all sequences */
    double plain_ms;            /* what a round without drafts takes */
    double once_ms;             /* of the next round's time: its passes are new, its drafters catch up */
    double expected_ms;         /* all of its time */
    double credit;              /* plain rounds that trials may lose now */
    double reserve;             /* plain rounds that drafting may lose now against plain decoding */
    int32_t next, next_n_seq;   /* the next round's arm, if that is of so many sequences; 0: not chosen yet */
    int32_t n_ask;              /* its first sequences, so many, are asked drafts for */
    int32_t n_plain, n_plain_last; /* plain rounds for which that holds: still; when it was chosen */
    int32_t plain_load;            /* the load that they are of */
    spec_bandit bandit[SPECI_LOADS]; /* by load */
} speci_choice;

/* What came of a round. */
typedef struct speci_outcome {
    int32_t n_seq;              /* sequences, all of which count */
    double n_emitted, n_row;    /* of all of them */
    double ms;
    const speci_asks *asks;     /* [n_source] */
} speci_outcome;

/* OFF: arm 1 always, where there is one. Errors: E_INVALID (too many arms). */
spec_status speci_choice_open(speci_choice *c, spec_adapt mode);
/* A sequence begins, and there is no other: what was accepted so far was of other texts. */
void speci_choice_begin(speci_choice *c);
/* The arm of the next round, of n_seq sequences; n_ask says for how many of them. */
int32_t speci_choice_arm(speci_choice *c, int32_t n_seq);
/* A round of `arm` is over. */
void speci_choice_update(speci_choice *c, int32_t arm, const speci_outcome *o);
/* A proposal of n_node nodes (0: there was none) that nobody scored, but compared with the text: n_matched levels of it came. */
void speci_choice_watch(speci_choice *c, int32_t source, int32_t n_node, int32_t n_matched);
/* What the sequences of the next round would get: first nothing is known, then of one sequence after the other what a source that is
 * asked would propose, n_node nodes (0: nothing). */
void speci_choice_unsee(speci_choice *c);
void speci_choice_see(speci_choice *c, int32_t source, int32_t n_node);
/* Numbers of sequences that are alike. */
int32_t speci_choice_load(int32_t n_seq);
/* Milliseconds of the passes in which builder b drafts for n_seq sequences, by the drafter's table. */
double speci_choice_draft_ms(const spec_builder *b, const spec_cost_table *t, double n_seq);

/* --- step costs measured (choose_cost.c) --- */

enum { SPECI_TIMINGS = 8 };
/* As spec_cost_ms, between whole numbers too. */
double speci_cost_ms(const spec_cost_table *table, double n);
/* The value that `rank` of ms [n] are not above. Sorts. */
double speci_by_rank(double *ms, size_t n, size_t rank);

#endif
