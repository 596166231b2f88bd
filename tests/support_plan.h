/* support_plan.h - a plan made ready, to be compared with its operations one by one. */
#ifndef SPEC_SUPPORT_PLAN_H
#define SPEC_SUPPORT_PLAN_H

#include "tests/test.h"

/* Runs the operations n_pass times over the step as a plan: made ready, or walked where the backend makes none ready. */
void support_plan_run(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step, int32_t n_node,
                      int32_t n_pass);
/* Fails, naming case, step and tensor, unless both have the same bytes. */
void support_plan_same(const test_device *d, const char *name, const char *step, const char *tensor,
                       const test_buffer *ready, const test_buffer *one_by_one);

#endif
