/* cpu_scan.h - what the files of the scan share (cpu_scan.c tells which there are). */
#ifndef SPEC_CPU_SCAN_H
#define SPEC_CPU_SCAN_H

#include "backends/cpu/cpu.h"

enum { SCAN_ROWS = 512 /* values of a head that are stored at once */, HEADS_MAX = 64 /* of a task */ };

typedef struct scan_job {
    spec_queue *q;
    const spec_scan_args *a;
    int32_t rows; /* of the state, per task */
    int32_t n_part;
    int32_t n_saved; /* states that a traversal may save */
} scan_job;

/* Where one node's values lie. dt NULL: it is computed from dt_in. */
typedef struct scan_node {
    const void *x, *b, *c; /* row starts */
    spec_dtype b_type;
    const float *dt;       /* [n_head] in the cache */
    int32_t row;           /* of the step's tensors, -1 for a node that is replayed */
} scan_node;

typedef struct scan_part {
    const scan_job *job;
    const spec_step_seq *s;
    int32_t row0, n_row;    /* rows of the state */
    int32_t head0, n_head;  /* heads that they belong to */
} scan_part;

/* A node whose values are in the caches: entry `entry` of replay_y, cache entry `node` of `half`. */
scan_node speci_cpu_scan_replayed(const scan_part *t, int32_t entry, int32_t half, int32_t node);
/* Node i of the tree: fed by an earlier pass, or a row of this one. */
scan_node speci_cpu_scan_node(const scan_part *t, int32_t i);

/* Time steps of a node's heads [head0, head0 + n_head): from the cache, or dt = clamp(softplus(dt_in + dt_bias)). */
void speci_cpu_scan_dt(const scan_part *t, const scan_node *n, int32_t head0, int32_t n_head, float *dt);
/* Where the cache has those of node `node` of `half` [n_head]. */
float *speci_cpu_scan_cache_dt(const scan_part *t, int32_t half, int32_t node);
/* Block `block` of B [n_state], rounded to the type of the cache that replay reads it from. */
void speci_cpu_scan_b(const scan_part *t, const scan_node *n, int32_t block, float *b);
/* Out of y = S C: adds D x, applies the gate, stores. `count` rows of head h from channel p on, at most
 * SCAN_ROWS; where heads have one channel, of as many heads. */
void speci_cpu_scan_store(const scan_part *t, const scan_node *n, float *y, const float *x, int32_t h, int32_t p,
                          int32_t count);
/* Puts dt and B of new node i where a later replay reads them. A block of B belongs to the task that has its first
 * row. */
void speci_cpu_scan_fill(const scan_part *t, int32_t i);

/* --- the forms --- */

/* Of the recurrent form, and of prefill: rows of the state per task. */
int32_t speci_cpu_scan_recurrent_rows(const spec_scan_args *a);
void speci_cpu_scan_recurrent_task(void *job, int32_t i);
size_t speci_cpu_scan_recurrent_scratch(const spec_scan_args *a); /* bytes, of a task */
spec_status speci_cpu_scan_recurrent_check_step(const scan_job *job, const spec_step_seq *s);

/* Of the chunked form. Sets the rows of a task, whole heads, and the tasks per sequence. */
void speci_cpu_scan_chunked_cut(scan_job *job);
void speci_cpu_scan_chunked_task(void *job, int32_t i);
size_t speci_cpu_scan_chunked_scratch(const spec_scan_args *a); /* bytes, of a task */
spec_status speci_cpu_scan_chunked_check(const spec_device *dev, const spec_scan_args *a);
spec_status speci_cpu_scan_chunked_check_step(const scan_job *job, const spec_step_seq *s);

#endif
