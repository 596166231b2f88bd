/* bench_fork.c - a sequence behind --context tokens is copied: median_ms, min_ms from spec_sequence_fork until the copy is
 * there. Floor: its states and K and V read and written once. */
#include "tests/bench/bench.h"

enum { WARM = 3 };

static spec_status one(double *ms, spec_session *s, int32_t seq)
{
    int32_t copy;
    const double start = speci_now_ms();
    SPEC_TRY(spec_sequence_fork(s, &copy, seq));
    SPEC_TRY(s->ops->sync(s->queue));
    *ms = speci_now_ms() - start;
    return spec_sequence_remove(s, copy);
}

static spec_status times(double *ms, double *bytes, bench *b, spec_session *s, int32_t context)
{
    double warm;
    int32_t seq;
    SPEC_TRY(bench_sequence(&seq, s, context, NULL));
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(one(&warm, s, seq));
    for (int32_t i = 0; i < b->o.repeats; i++) SPEC_TRY(one(&ms[i], s, seq));
    *bytes = (double)s->exec->kind->data_bytes(s->exec, s->exec->kind->n_past(s->exec, seq), speci_exec_n_recent(s->exec, seq));
    return SPEC_OK;
}

static spec_status measure(bench *b, double *ms, int32_t context)
{
    spec_session *s;
    double bytes = 0;
    SPEC_TRY(bench_session(&s, b, NULL, context + 1, 1, 2));
    const spec_status status = times(ms, &bytes, b, s, context);
    spec_session_close(s);
    SPEC_TRY(status);
    json_t *r = bench_record(b, "fork");
    bench_count(r, "context", context);
    bench_number(r, "megabytes", bytes / 1e6);
    bench_times(r, ms, b->o.repeats);
    return bench_emit(b, r, 2e3 * bytes / b->bandwidth);
}

spec_status bench_fork(bench *b)
{
    double *ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *ms);
    if (!ms) return SPEC_E_NOMEM;
    const spec_status status = measure(b, ms, b->o.context ? b->o.context : 128);
    speci_free(NULL, ms);
    return status;
}
