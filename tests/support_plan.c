/* support_plan.c - see support_plan.h. */
#include "tests/support_plan.h"

#include <math.h>

test_buffer support_plan_values(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    double *v = test_values(random, n, scale);
    const test_buffer b = test_buffer_from(d, v, n, type);
    free(v);
    return b;
}

spec_weight *support_plan_weight(const test_device *d, int32_t n_out, int32_t n_in, spec_dtype type, int32_t glu,
                                  test_random *random)
{
    double *v = test_values(random, (size_t)n_out * (size_t)n_in, 1.7 / sqrt(n_in));
    spec_weight *w = test_weight(d, v, n_out, n_in, type, type, glu, 1);
    free(v);
    return w;
}

plan_pair support_plan_pair(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    test_random again = *random;
    const plan_pair p = { { support_plan_values(d, n, scale, type, random), support_plan_values(d, n, scale, type, &again) } };
    return p;
}

void support_plan_free(plan_pair *p)
{
    test_buffer_free(&p->of[0]);
    test_buffer_free(&p->of[1]);
}

void support_plan_one_by_one(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node,
                             int32_t n_pass)
{
    for (int32_t pass = 0; pass < n_pass; pass++)
        for (int32_t i = 0; i < n; i++) test_run(d, &ops[i], step, n_node);
}

void support_plan_run(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step, int32_t n_node,
                      int32_t n_pass)
{
    const spec_backend_ops *o = d->ops;
    const spec_plan plan = { ops, n_op, step->phase, step->n_row_run, TEST_SEQS, n_node, TEST_PAGES * SPEC_PAGE };
    spec_queue *q = test_queue(d, ops, n_op, step, n_node, 1);
    spec_prepared *p = NULL;
    if (o->plan_prepare) test_ok(o->plan_prepare(q, &p, &plan), "plan_prepare");
    for (int32_t i = 0; i < n_pass; i++) test_ok(speci_plan_run(o, q, &plan, p, step), "plan_run");
    test_ok(o->sync(q), "sync");
    if (p) o->plan_free(q, p);
    o->queue_close(q);
}

void support_plan_same(const test_device *d, const char *name, const char *step, const char *tensor,
                       const test_buffer *ready, const test_buffer *one_by_one)
{
    void *x = test_read_raw(ready), *y = test_read_raw(one_by_one);
    if (memcmp(x, y, ready->n * test_type_size(ready->dtype)) != 0)
        fail_msg("%s %s, %s: %s differs from the operations one by one", d->name, name, step, tensor);
    free(x);
    free(y);
}
