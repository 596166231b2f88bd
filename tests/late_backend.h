/* late_backend.h - a backend that makes plans ready, captures passes and is late, as a GPU does, on the CPU's operations.
 *
 *  - Results for the host are not there before sync(), or wait() for a mark behind what made them: what stood at their place is
 *    overwritten with LATE_POISON at once, and they come when they are waited for.
 *  - A prepared plan defines the bits: with `alters` the norms of its decode passes have another epsilon, so that a pass that
 *    went another way would be seen.
 *  - A pass of a shape (rows and sequences rounded up, a path to move, an arg-max behind it) that neither plan_warm nor an earlier
 *    pass has made ready is counted as cold. It has a clock: a pass takes LATE_MS, and LATE_COLD_MS more if it is cold.
 *  - Passes without rows go from layer to layer as a device may that runs layers side by side.
 *
 * One at a time: what is set and what is counted is static. */
#ifndef LATE_BACKEND_H
#define LATE_BACKEND_H

#include "backends/backend.h"

enum { LATE_POISON = 0xEE, LATE_MARKS = 64 /* that a queue remembers */, LATE_MS = 1, LATE_COLD_MS = 10 };

typedef struct late_settings {
    bool alters;
    bool one_warm;        /* plan_warm has room for passes of one sequence alone */
    bool by_rows;         /* a pass takes LATE_MS for 16 rows, and in proportion for others */
    int32_t light;        /* passes of plans with up to so many operations take half of LATE_MS */
    int32_t disturb;      /* so many passes run before one takes LATE_COLD_MS more; -1: none does */
    int32_t fail_prepare; /* so many plans are made ready before one fails; -1: none fails */
    int32_t fail_wait;    /* so many waits and syncs succeed before one fails; -1: none fails */
} late_settings;

typedef struct late_counts {
    int32_t alone;         /* operations that ran outside a plan */
    int32_t n_prepared[2]; /* plans, of which nothing may be captured, and others */
    int32_t n_alive;       /* prepared plans and queues that are not freed */
    int32_t pass, cold;    /* decode passes */
    int32_t empty;         /* of them without rows */
    int32_t no_head;       /* of them without operations that are heads */
    int32_t found;         /* of them that ended with an arg-max */
    int32_t warm;          /* calls of plan_warm */
    int32_t late;          /* results that were waited for */
    double ms;             /* that decode passes took */
    double queued_ms;      /* that passes of plan_warm take until the next sync() */
} late_counts;

extern late_settings late_set;
extern late_counts late_count;

/* The table. */
extern const spec_backend_ops late_ops;
double late_now(void);     /* late_count.ms, as a session's clock */
/* Nothing is altered, nothing fails, nothing is counted yet. */
void late_reset(void);

#endif
