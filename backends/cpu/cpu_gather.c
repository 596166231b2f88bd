/* cpu_gather.c - rows of logits under other numbers: the host's form, a row per task. */
#include "backends/backend.h"
#include "backends/cpu/cpu.h"

static void gather_task(void *arg, int32_t i)
{
    const spec_gather_args *a = arg;
    speci_gather_row(a->column, a->n_out, a->logits + (size_t)a->host_src[i] * (size_t)a->ld,
                     a->out + (size_t)i * (size_t)a->ld_out);
}

spec_status speci_cpu_gather(spec_queue *q, const spec_gather_args *a)
{
    if (a->n_out < 1 || a->ld_out < a->n_out || a->n_row < 0)
        return q->dev->host->fail(SPEC_E_INVALID, "gather: %d rows of %d values, %d apart", a->n_row, a->n_out, a->ld_out);
    spec_gather_args args = *a;
    speci_cpu_parallel(q->dev->pool, a->n_row, gather_task, &args);
    return SPEC_OK;
}
