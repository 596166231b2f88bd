/* backend.h - the library's side of a backend. Internal: not installed. */
#ifndef SPEC_BACKEND_INTERNAL_H
#define SPEC_BACKEND_INTERNAL_H

#include "backends/spec_backend.h"
#include "core/core.h"

struct spec_backend {
    const spec_backend_ops *ops; /* the table below */
    spec_backend_ops table;      /* the backend's, members that it ends before being NULL */
    spec_device *dev;
    spec_device_info info;
    spec_host host;          /* given to the device; first services, then what they need */
    spec_allocator allocator;
    spec_log_fn log;
    void *log_user_data;
    void (*parallel_for)(void *, int32_t, void (*)(void *, int32_t), void *);
    void *parallel_user_data;
    void *lib;               /* the plugin, or NULL */
    speci_holds holds;       /* by its models */
};

extern const spec_backend_ops speci_cpu_ops; /* backends/cpu */

/* Logs through the application's callback (backend_table.c). */
void speci_log(const spec_backend *be, spec_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs piece(arg, i) for i < n on the threads that the backend has for such work, in any order, and waits (backend_parallel.c). Each writes
 * what is its own. Where some fail, the first of them is done again by the caller, whose error it is. */
spec_status speci_parallel(const spec_backend *be, int32_t n, spec_status (*piece)(void *arg, int32_t i), void *arg);

/* A kind of operation (backend_ops.c). */
typedef struct speci_op_kind {
    const char *name;
    /* The operation made of others that every backend has, for the step that is bound; NULL: there is none. */
    spec_status (*fallback)(const spec_backend_ops *ops, spec_queue *q, const spec_op *op, const spec_step_block *step);
    bool optional; /* no backend has to have it: a plan that holds it is unsupported there */
    bool replays;  /* it applies accepted paths: a decode pass without rows has nothing else to do (spec_backend.h) */
} speci_op_kind;
extern const speci_op_kind speci_op_kinds[SPEC_OP_N];

/* An operation by itself: can the device do it, and do it, of the step that is bound. */
spec_status speci_op_supports(const spec_backend_ops *ops, spec_device *dev, const spec_op *op);
spec_status speci_op_run(const spec_backend_ops *ops, spec_queue *q, const spec_op *op, const spec_step_block *step);

/* A plan. Prepared where the backend does so, else *out is NULL. Runs a pass, and `argmax` behind it unless
 * that is NULL: through the prepared plan where there is one, else operation by operation. */
spec_status speci_plan_prepare(const spec_backend_ops *ops, spec_queue *q, spec_prepared **out, const spec_plan *plan,
                               bool capture);
spec_status speci_plan_run(const spec_backend_ops *ops, spec_queue *q, const spec_plan *plan, spec_prepared *prepared,
                           const spec_step_block *block, const spec_argmax_args *argmax);

/* Logits that a request changes (backend_adjust.c): by the backend, or on the host, which waits for the device. And one row of it, to
 * out [n_vocab]. */
spec_status speci_adjust(const spec_backend_ops *ops, spec_queue *q, const spec_adjust_args *a, const spec_allocator *allocator);
void speci_adjust_row(const spec_adjust_args *a, const spec_adjust_row *row, const float *logits, float *out);

/* Logits under other numbers, and an expansion whose nodes are fed by other tokens (backend_gather.c): by the backend, or on the
 * host, which waits for the device. One row, to out [n_out]; host_column, host_feed: the tables of the arguments once more, in host
 * memory. */
spec_status speci_gather(const spec_backend_ops *ops, spec_queue *q, const spec_gather_args *a, const int32_t *host_column,
                         int32_t n_in, const spec_allocator *allocator);
void speci_gather_row(const int32_t *column, int32_t n_out, const float *logits, float *out);
spec_status speci_expand_fed(const spec_backend_ops *ops, spec_queue *q, const spec_expand_args *a, const int32_t *host_feed,
                             const spec_allocator *allocator);

/* The scan's order over the n_row new nodes of a tree (backend_traversal.c): nodes [n_fed + n_row], of which those from
 * n_given on are not known to the host. */
void speci_traversal_schedule(const spec_step_node *nodes, int32_t n_fed, int32_t n_given, int32_t n_row,
                               spec_traversal_node *schedule);

#endif
