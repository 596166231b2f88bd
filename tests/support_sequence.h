/* support_sequence.h - sequences by their sampling alone, and results of steps by value. */
#ifndef TESTS_SUPPORT_SEQUENCE_H
#define TESTS_SUPPORT_SEQUENCE_H

#include "spec_trees.h"

static inline spec_request request_sampled(const spec_sampling *sampling)
{
    spec_request r = SPEC_REQUEST_INIT;
    if (sampling) r.sampling = *sampling;
    return r;
}

static inline spec_status add_sampled(spec_session *s, int32_t *seq, const int32_t *ids, size_t n, const spec_sampling *sampling)
{
    const spec_request r = request_sampled(sampling);
    return spec_sequence_add(s, seq, ids, n, &r);
}

/* One that no end token ends: random weights say anything. */
static inline spec_status add_endless(spec_session *s, int32_t *seq, const int32_t *ids, size_t n, const spec_sampling *sampling)
{
    spec_request r = request_sampled(sampling);
    r.ignore_eos = 1;
    return spec_sequence_add(s, seq, ids, n, &r);
}

static inline spec_status step_into(spec_session *s, spec_step_result *results, const int32_t *seqs, int32_t n)
{
    const spec_step_result *all[64] = { 0 };
    const spec_status status = n > 64 ? SPEC_E_INVALID : spec_step(s, results ? all : NULL, seqs, n);
    for (int32_t i = 0; i < n && status == SPEC_OK; i++) results[i] = *all[i];
    return status;
}

#endif
