/* cpu_adjust.c - logits that a request changes: the host's form, a row per task. */
#include "backends/backend.h"
#include "backends/cpu/cpu.h"

static void adjust_task(void *arg, int32_t i)
{
    const spec_adjust_args *a = arg;
    const spec_adjust_row *row = &a->host_row[i];
    speci_adjust_row(a, row, a->logits + (size_t)row->src * (size_t)a->ld, a->out + (size_t)row->dst * (size_t)a->ld);
}

spec_status speci_cpu_adjust(spec_queue *q, const spec_adjust_args *a)
{
    if (a->n_vocab < 1 || a->ld < a->n_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "adjust: rows of %d values, %d apart", a->n_vocab, a->ld);
    spec_adjust_args args = *a;
    speci_cpu_parallel(q->dev->pool, a->n_row, adjust_task, &args);
    return SPEC_OK;
}
