/* bench_count.c - synchronisations, allocations, bytes read and time spent waiting, counted between the library and the
 * backend.
 *
 * The functions of a backend's table get no pointer of ours, so what they count into is one static object: a run opens
 * one backend, and its sessions belong to one thread. A device that works in the calls themselves (the CPU) is waited
 * for in every call that computes; any other, in sync and wait, and in calls that find its queue full. Those cannot be
 * told from calls that queue at once: so that there are none, the queue can be drained before each call, which is
 * waiting. */
#include <stddef.h>

#include "backends/backend.h"
#include "tests/bench/bench.h"

static struct {
    const spec_backend_ops *base;
    spec_backend_ops table;
    bool computes; /* in its calls */
    bool drains;
    bench_counts counts;
} counted;

static spec_status waited(double since, spec_status status)
{
    counted.counts.wait_ms += speci_now_ms() - since;
    return status;
}

/* Around a call that computes or queues. */
static double begin(spec_queue *q)
{
    const double since = speci_now_ms();
    if (counted.drains) (void)waited(since, counted.base->sync(q)); /* if it failed, so will the call */
    return since;
}

static spec_status end(double since, spec_status status)
{
    return counted.computes ? waited(since, status) : status;
}

static spec_status count_alloc(spec_device *dev, void **out, size_t bytes)
{
    counted.counts.n_alloc++;
    return counted.base->alloc(dev, out, bytes);
}

static spec_status count_sync(spec_queue *q)
{
    const double since = speci_now_ms();
    counted.counts.n_sync++;
    return waited(since, counted.base->sync(q));
}

static spec_status count_wait(spec_queue *q, uint64_t mark)
{
    const double since = speci_now_ms();
    counted.counts.n_sync++;
    return waited(since, counted.base->wait(q, mark));
}

static spec_status count_upload(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    const double since = begin(q);
    return end(since, counted.base->upload(q, dst, src, bytes));
}

static spec_status count_download(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    const double since = begin(q);
    counted.counts.n_read += (int64_t)bytes;
    return end(since, counted.base->download(q, dst, src, bytes));
}

static spec_status count_copy(spec_queue *q, const spec_range_copy *range, int32_t n)
{
    const double since = begin(q);
    return end(since, counted.base->copy(q, range, n));
}

static spec_status count_zero(spec_queue *q, const spec_range *range, int32_t n)
{
    const double since = begin(q);
    return end(since, counted.base->zero(q, range, n));
}

static spec_status count_op(spec_queue *q, const spec_op *op)
{
    const double since = begin(q);
    return end(since, counted.base->op[op->kind].run(q, op));
}

static spec_status count_argmax(spec_queue *q, const spec_argmax_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->argmax(q, a));
}

static spec_status count_probs(spec_queue *q, const spec_probs_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->probs(q, a));
}

static spec_status count_accept(spec_queue *q, const spec_accept_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->accept(q, a));
}

static spec_status count_accept_tree(spec_queue *q, const spec_accept_tree_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->accept_tree(q, a));
}

static spec_status count_logprob(spec_queue *q, const spec_logprob_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->logprob(q, a));
}

static spec_status count_draw(spec_queue *q, const spec_draw_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->draw(q, a));
}

static spec_status count_expand(spec_queue *q, const spec_expand_args *a)
{
    const double since = begin(q);
    return end(since, counted.base->expand(q, a));
}

static spec_status count_step_bind(spec_queue *q, const spec_step_block *block)
{
    const double since = begin(q);
    return end(since, counted.base->step_bind(q, block));
}

static spec_status count_plan_run(spec_queue *q, spec_prepared *plan, const spec_step_block *block, const spec_argmax_args *argmax)
{
    const double since = begin(q);
    return end(since, counted.base->plan_run(q, plan, block, argmax));
}

static void count_calls(spec_backend_ops *t)
{
    t->upload = count_upload, t->download = count_download, t->copy = count_copy, t->zero = count_zero;
    for (int32_t i = 0; i < SPEC_OP_N; i++)
        if (t->op[i].run) t->op[i].run = count_op;
    t->argmax = count_argmax, t->probs = count_probs, t->accept = count_accept, t->logprob = count_logprob;
    t->draw = count_draw, t->expand = count_expand, t->step_bind = count_step_bind;
    if (t->plan_run) t->plan_run = count_plan_run;
    if (t->accept_tree) t->accept_tree = count_accept_tree;
}

void bench_count_install(spec_backend *be)
{
    if (be->ops == &counted.table) return;
    counted.base = be->ops;
    counted.table = *be->ops;
    counted.counts = (bench_counts){ 0 };
    counted.computes = be->info.host_visible;
    counted.table.alloc = count_alloc;
    counted.table.sync = count_sync;
    if (be->ops->wait) counted.table.wait = count_wait;
    count_calls(&counted.table);
    be->ops = &counted.table;
}

void bench_count_drain(bool on)
{
    counted.drains = on && !counted.computes;
}

bench_counts bench_count_now(void)
{
    return counted.counts;
}
