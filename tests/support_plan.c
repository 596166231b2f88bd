/* support_plan.c - see support_plan.h. */
#include "tests/support_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

test_buffer support_plan_values(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    double *v = test_values(random, n, scale);
    const test_buffer b = test_buffer_from(d, v, n, type);
    free(v);
    return b;
}

test_buffer support_plan_between(const test_device *d, size_t n, double low, double high, test_random *random)
{
    double *v = test_values(random, n, 1.0);
    for (size_t i = 0; i < n; i++) v[i] = low + (high - low) * fabs(v[i]);
    const test_buffer b = test_floats(d, v, n);
    free(v);
    return b;
}

spec_weight *support_plan_weight(const test_device *d, int32_t n_out, int32_t n_in, plan_types types, int32_t glu,
                                 test_random *random)
{
    const bool whole = types.weights != SPEC_DTYPE_Q8_0 || n_in % SPEC_Q8_BLOCK == 0;
    double *v = test_values(random, (size_t)n_out * (size_t)n_in, 1.7 / sqrt(n_in));
    spec_weight *w = test_weight(d, v, n_out, n_in, whole ? types.weights : types.compute, types.compute, glu, 1);
    free(v);
    return w;
}

void support_plan_name(char *out, size_t cap, const char *name, plan_types types)
{
    snprintf(out, cap, "%s, %s, weights in %s", name, spec_dtype_name(types.compute), spec_dtype_name(types.weights));
}

plan_pair support_plan_pair(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    test_random again = *random;
    const plan_pair p = { { support_plan_values(d, n, scale, type, random), support_plan_values(d, n, scale, type, &again) } };
    return p;
}

plan_pair support_plan_pair_between(const test_device *d, size_t n, double low, double high, test_random *random)
{
    test_random again = *random;
    const plan_pair p = { { support_plan_between(d, n, low, high, random), support_plan_between(d, n, low, high, &again) } };
    return p;
}

void support_plan_free(plan_pair *p)
{
    test_buffer_free(&p->of[0]);
    test_buffer_free(&p->of[1]);
}

spec_view support_plan_column(const test_buffer *b, int32_t ld, int32_t col)
{
    spec_view v = test_view(b, ld);
    v.data = (char *)v.data + (size_t)col * test_type_size(v.dtype);
    return v;
}

/* The same step in the other halves of all double buffers. */
static spec_step_block *other_half(const spec_step_block *step)
{
    spec_step_block *b = malloc((size_t)step->bytes);
    assert_non_null(b);
    memcpy(b, step, (size_t)step->bytes);
    spec_step_seq *s = (spec_step_seq *)((char *)b + b->off_seq);
    for (int32_t i = 0; i < b->n_seq; i++) s[i].parity ^= 1;
    return b;
}

void support_plan_one_by_one(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node,
                             int32_t n_pass)
{
    spec_step_block *other = other_half(step);
    for (int32_t pass = 0; pass < n_pass; pass++)
        for (int32_t i = 0; i < n; i++) test_run(d, &ops[i], pass % 2 == 0 ? step : other, n_node);
    free(other);
}

void support_plan_run(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step, int32_t n_node,
                      int32_t n_pass)
{
    const spec_backend_ops *o = d->ops;
    const spec_plan plan = { ops, n_op, step->phase, step->n_row_run, TEST_SEQS, n_node, TEST_PAGES * SPEC_PAGE };
    spec_queue *q = test_queue(d, ops, n_op, step, n_node, 1);
    spec_prepared *p = NULL;
    spec_step_block *other = other_half(step);
    test_ok(speci_plan_prepare(o, q, &p, &plan, true), "plan_prepare");
    for (int32_t i = 0; i < n_pass; i++) test_ok(speci_plan_run(o, q, &plan, p, i % 2 == 0 ? step : other, NULL), "plan_run");
    test_ok(o->sync(q), "sync");
    free(other);
    if (p) o->plan_free(q, p);
    o->queue_close(q);
}

/* Does the product read what one of n norms makes? */
static bool reads_norm(const spec_op *product, const spec_op *norm, int32_t n)
{
    bool reads = false;
    for (int32_t i = 0; i < n; i++)
        reads = reads || (norm[i].kind == SPEC_OP_NORM && norm[i].u.norm.y.data == product->u.linear.x.data);
    return reads;
}

/* The operations that begin at ops[0] and stay together: norms, and the products that read these; else one. */
static int32_t together(const spec_op *ops, int32_t n)
{
    int32_t end = 1;
    if (ops->kind != SPEC_OP_NORM) return 1;
    while (end < n && (ops[end].kind == SPEC_OP_NORM || (ops[end].kind == SPEC_OP_LINEAR && reads_norm(&ops[end], ops, end))))
        end++;
    return end;
}

void support_plan_apart(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node,
                        int32_t n_pass)
{
    spec_step_block *other = other_half(step);
    for (int32_t pass = 0; pass < n_pass; pass++)
        for (int32_t i = 0, end; i < n; i = end) {
            end = i + together(ops + i, n - i);
            support_plan_run(d, ops + i, end - i, pass % 2 == 0 ? step : other, n_node, 1);
        }
    free(other);
}

void support_plan_same(const test_device *d, const char *name, const char *step, const char *tensor,
                       const test_buffer *ready, const test_buffer *one_by_one)
{
    const size_t size = test_type_size(ready->dtype);
    char *x = test_read_raw(ready), *y = test_read_raw(one_by_one);
    for (size_t i = 0; i < ready->n; i++)
        if (memcmp(x + i * size, y + i * size, size) != 0)
            fail_msg("%s %s, %s: %s differs from the operations apart, first at value %zu of %zu", d->name, name, step,
                     tensor, i, ready->n);
    free(x);
    free(y);
}

void support_plan_same_all(const test_device *d, const char *name, const char *step, const plan_tensor *tensors, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        support_plan_same(d, name, step, tensors[i].name, &tensors[i].p->of[0], &tensors[i].p->of[1]);
}

bool support_plan_can(const test_device *d, const char *name, const spec_op *ops, int32_t n)
{
    bool can = true;
    for (int32_t i = 0; i < n; i++) can = test_can(d, name, &ops[i]) && can;
    return can;
}

static void check_step(plan_check *check, void *test, const test_seq *seqs, int32_t n_seq)
{
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, n_seq, 0);
    char what[96];
    snprintf(what, sizeof what, "%d rows of %d sequences, %d fed, %d recent, path of %d, chain of %d", step->n_row, n_seq,
             seqs[0].n_fed, seqs[0].n_recent, seqs[0].n_replay, seqs[0].n_advance);
    check(test, step, what);
    free(step);
}

void support_plan_each_step(const test_device *d, plan_check *check, void *test)
{
    static const int32_t path[] = { 0, 2, 3, 7, 8, 20, 21, 22, 25, 26, 27, 28, 29, 30, 31, 33, 34, 40, 41, 50 };
    static const struct {
        int32_t n, n_fed, n_recent, n_replay, n_advance;
    } steps[] = { { 1, 0, 0, 0, 0 },   { 20, 0, 31, 5, 0 },  { 1, 0, 31, 1, 0 },   { 5, 0, 17, 3, 0 },
                  { 16, 0, 20, 2, 0 }, { 33, 0, 3, 6, 0 },   { 64, 0, 29, 6, 0 },  { 40, 12, 16, 0, 0 },
                  { 20, 0, 14, 0, 4 }, { 64, 44, 31, 0, 0 }, { 8, 0, 31, 20, 0 },  { 12, 0, 9, 2, 0 },
                  { 15, 3, 13, 0, 0 }, { 21, 5, 30, 0, 0 },  { 3, 2, 20, 0, 0 },   { 4, 0, 30, 3, 2 },
                  { 16, 0, 18, 0, 16 }, { 2, 0, 31, 19, 1 }, { 13, 0, 31, 20, 9 }, { 0, 0, 12, 4, 0 },
                  { 3, 0, 5, 0, 0 },   { 9, 0, 12, 4, 0 },   { 17, 0, 25, 1, 1 },  { 32, 0, 0, 6, 0 },
                  { 63, 0, 8, 2, 0 } };
    const int32_t n_steps = d->ops->plan_prepare ? N_ELEMENTS(steps) : 2;
    test_random random = { 44 };
    int32_t parent[PLAN_NODES] = { -1 };
    for (int32_t i = 0; i < n_steps; i++) {
        for (int32_t k = 1; k < steps[i].n; k++)
            parent[k] = k < steps[i].n_advance || test_below(&random, 2) ? k - 1 : test_below(&random, k);
        const test_seq s = { .slot = i % PLAN_SLOTS, .parity = i / 2 % 2, .n_past = PLAN_PAST, .n_recent = steps[i].n_recent,
                             .path = path, .n_replay = steps[i].n_replay, .n_node = steps[i].n, .n_fed = steps[i].n_fed,
                             .parent = parent, .n_advance = steps[i].n_advance };
        check_step(check, test, &s, 1);
    }
    const test_seq three[] = { { .slot = 2, .n_past = PLAN_PAST, .n_recent = 20, .path = path, .n_replay = 2, .n_node = 20,
                                 .parent = parent },
                               { .slot = 0, .n_past = PLAN_PAST, .n_recent = 30, .path = path, .n_replay = 4 },
                               { .slot = 1, .parity = 1, .n_past = PLAN_PAST, .n_recent = 9, .n_node = 5, .parent = parent } };
    check_step(check, test, three, 3);
}
