/* choose.h - a session's choice at run time among ways to draft, not drafting being one (algorithms.md 13, 14). Internal. */
#ifndef SPEC_CHOOSE_H
#define SPEC_CHOOSE_H

#include "algorithms/build/build.h"

/* What is known of one arm: discounted sums over the steps that used it; and the milliseconds that its latest rounds took
 * beyond the passes of the profile, of n_overhead so far. */
enum { SPECI_OVERHEADS = 9 };
typedef struct speci_arm {
    double n_step, n_emitted, n_node;
    double overhead[SPECI_OVERHEADS];
    int64_t n_overhead;
} speci_arm;

/* What the passes of a step cost, in milliseconds: n_node nodes of the target for each of n_seq sequences, and what arm's
 * drafts take. */
typedef double (*speci_step_cost_fn)(const void *arg, int32_t arm, double n_node, int32_t n_seq);

/* Arm 0 does not draft. */
typedef struct speci_choice {
    spec_adapt mode;
    int32_t n_arm;
    speci_arm *arms;       /* [n_arm]; NULL with OFF */
    int64_t n_round;
    int32_t arm;           /* of the latest round */
    bool counts_overhead;  /* the profile is of this session; one that was loaded is taken as it is */
    spec_bandit bandit;
    speci_step_cost_fn cost;
    const void *cost_arg;
} speci_choice;

/* What came of a round. */
typedef struct speci_outcome {
    int32_t n_seq;             /* sequences, all of which count */
    double n_emitted, n_node;  /* of all of them */
    double ms;
} speci_outcome;

/* OFF: arm 1 always, where there is one. Errors: E_NOMEM, E_INVALID (more than SPEC_MAX_ARM arms). */
spec_status speci_choice_open(speci_choice *c, spec_adapt mode, int32_t n_arm, const spec_allocator *a);
/* The arm of the next round, of n_seq sequences. Pure. */
int32_t speci_choice_arm(const speci_choice *c, int32_t n_seq);
/* A round of `arm` is over. */
void speci_choice_update(speci_choice *c, int32_t arm, const speci_outcome *o);
/* Milliseconds of the passes in which builder b drafts for n_seq sequences, by the drafter's table. */
double speci_choice_draft_ms(const spec_builder *b, const spec_cost_table *t, int32_t n_seq);

/* --- step costs measured (choose_cost.c) --- */

enum { SPECI_TIMINGS = 5 };
/* The value that `rank` of ms [n] are not above. Sorts. */
double speci_by_rank(double *ms, size_t n, size_t rank);

#endif
