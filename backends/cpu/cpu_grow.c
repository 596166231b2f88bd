/* cpu_grow.c - operations that grow draft trees: the host's form, a row or a tree per task. */
#include "backends/backend_grow.h"
#include "backends/cpu/cpu.h"

static spec_status check_slots(const spec_queue *q, const spec_grow *g, const int32_t *slots, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= g->n_slot)
            return q->dev->host->fail(SPEC_E_INVALID, "grow: slot %d of %d", slots[i], g->n_slot);
    return SPEC_OK;
}

static void draw_task(void *arg, int32_t i) { speci_draw_one(arg, i); }

spec_status speci_cpu_draw(spec_queue *q, const spec_draw_args *a)
{
    if (a->k < 1 || a->k > SPEC_MAX_CHILD || a->n_vocab < 1 || a->ld < a->n_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "draw: %d candidates of %d values, rows %d apart", a->k, a->n_vocab,
                                  a->ld);
    if (a->distributions && a->distributions->n_row != a->n_row)
        return q->dev->host->fail(SPEC_E_INVALID, "draw: %d rows, of %d distributions", a->n_row, a->distributions->n_row);
    if (a->grow) CPU_TRY(check_slots(q, a->grow, a->host_slot, a->n_row));
    for (int32_t i = 0; a->grow && i < a->n_row; i++)
        if (a->host_place[i] < 0 || a->host_place[i] >= a->grow->cap_frontier)
            return q->dev->host->fail(SPEC_E_INVALID, "draw: place %d of a frontier of %d", a->host_place[i], a->grow->cap_frontier);
    if (a->distributions) CPU_TRY(speci_cpu_probs(q, a->distributions));
    spec_draw_args args = *a;
    speci_cpu_parallel(q->dev->pool, a->n_row, draw_task, &args);
    return SPEC_OK;
}

static void expand_task(void *arg, int32_t i) { speci_expand_one(arg, i); }

spec_status speci_cpu_expand(spec_queue *q, const spec_expand_args *a)
{
    const int32_t most = cpu_min(a->grow->cap_frontier, SPEC_MAX_FRONTIER);
    CPU_TRY(check_slots(q, a->grow, a->host_slot, a->n));
    if (a->n_place < 0 || (a->host_root && a->n_place != 1) || a->n_place > most || a->n_next < 0 || a->n_next > most ||
        a->n_max > a->grow->cap || a->k < 1 || a->k > SPEC_MAX_CHILD)
        return q->dev->host->fail(SPEC_E_INVALID, "expand: %d places to %d of %d, %d candidates, %d nodes of %d", a->n_place, a->n_next,
                                  most, a->k, a->n_max, a->grow->cap);
    for (int32_t i = 0; i < a->n; i++)
        if (a->host_feed_base[i] < 0 || a->host_feed_base[i] + a->n_next > a->grow->cap_feed)
            return q->dev->host->fail(SPEC_E_INVALID, "expand: nodes %d to %d of a drafter's tree of %d",
                                      a->host_feed_base[i], a->host_feed_base[i] + a->n_next, a->grow->cap_feed);
    spec_expand_args args = *a;
    speci_cpu_parallel(q->dev->pool, a->n, expand_task, &args);
    return SPEC_OK;
}
