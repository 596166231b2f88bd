/* support_plan.h - a plan made ready, to be compared with its operations one by one, or apart: each a plan of its own, but norms
 * with the products that read them. A backend may leave a part of a norm to the one product that reads it, so that these two
 * have other bits than one after the other; all else that it does together leaves the bits that it leaves apart. */
#ifndef SPEC_SUPPORT_PLAN_H
#define SPEC_SUPPORT_PLAN_H

#include "tests/test.h"

enum { PLAN_NODES = 64, PLAN_ROWS = 2 * PLAN_NODES, PLAN_SLOTS = 3, PLAN_PAST = 200 }; /* of support_plan_each_step */

/* One tensor in both ways: [0] by the plan, [1] one by one, or apart. They begin alike. */
typedef struct plan_pair {
    test_buffer of[2];
} plan_pair;

test_buffer support_plan_values(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random);
/* float32, from low on. */
test_buffer support_plan_between(const test_device *d, size_t n, double low, double high, test_random *random);
plan_pair support_plan_pair(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random);
/* float32, from low on: time steps. */
plan_pair support_plan_pair_between(const test_device *d, size_t n, double low, double high, test_random *random);
void support_plan_free(plan_pair *p);
/* The tensor from column `col` on; rows are ld apart. */
spec_view support_plan_column(const test_buffer *b, int32_t ld, int32_t col);

/* Of what a plan's tensors are made; weights whose rows are no whole blocks of Q8_0 are of the compute type. */
typedef struct plan_types {
    spec_dtype compute, weights;
} plan_types;
spec_weight *support_plan_weight(const test_device *d, int32_t n_out, int32_t n_in, plan_types types, int32_t glu,
                                 test_random *random);
/* "CASE, COMPUTE, WEIGHTS" */
void support_plan_name(char *out, size_t cap, const char *name, plan_types types);

/* Runs the operations n_pass times over the step as a plan: made ready, or walked where the backend makes none ready. By turns
 * in one half of the double buffers and in the other, so that a pass that takes the step before it for its own is seen. */
void support_plan_run(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step, int32_t n_node,
                      int32_t n_pass);
/* The same operations, each by the table's function. */
void support_plan_one_by_one(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node,
                             int32_t n_pass);
/* Likewise in plans of their own. */
void support_plan_apart(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node,
                        int32_t n_pass);
/* Decode steps of up to PLAN_ROWS rows in up to PLAN_SLOTS sequences of up to PLAN_NODES nodes: plain ones, trees, nodes fed
 * before, paths and recent tokens, chains in front. Those of a backend that makes no plans ready are few. `what` names one. */
typedef void plan_check(void *test, const spec_step_block *step, const char *what);
void support_plan_each_step(const test_device *d, plan_check *check, void *test);
/* Fails, naming case, step and tensor, unless both have the same bytes. ready, one_by_one: as of a plan_pair. */
void support_plan_same(const test_device *d, const char *name, const char *step, const char *tensor,
                       const test_buffer *ready, const test_buffer *one_by_one);
typedef struct plan_tensor {
    const char *name;
    const plan_pair *p;
} plan_tensor;
void support_plan_same_all(const test_device *d, const char *name, const char *step, const plan_tensor *tensors, int32_t n);
/* Can the device do all of them? Those that it cannot do are printed. */
bool support_plan_can(const test_device *d, const char *name, const spec_op *ops, int32_t n);

#endif
