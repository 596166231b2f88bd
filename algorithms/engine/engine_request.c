/* engine_request.c - see engine_request.h. */
#include "algorithms/engine/engine_request.h"

#include <math.h>
#include <string.h>

spec_status speci_sampling_check(const spec_sampling *p)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return speci_fail(SPEC_E_INVALID, "temperature is %g: a number, not negative", (double)p->temperature);
    if (p->top_k < 0) return speci_fail(SPEC_E_INVALID, "top_k is %d: not negative", p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1)) return speci_fail(SPEC_E_INVALID, "top_p is %g: 0 to 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1)) return speci_fail(SPEC_E_INVALID, "min_p is %g: 0 to 1", (double)p->min_p);
    return SPEC_OK;
}

static spec_status check_ends(const spec_model *m, const spec_request *p)
{
    if (p->n_end_id < 0 || (p->n_end_id > 0 && !p->end_ids))
        return speci_fail(SPEC_E_INVALID, "n_end_id is %d, end_ids is %s", p->n_end_id, p->end_ids ? "given" : "NULL");
    for (int32_t i = 0; i < p->n_end_id; i++)
        if (p->end_ids[i] < 0 || p->end_ids[i] >= m->n_vocab)
            return speci_fail(SPEC_E_INVALID, "end id %d is %d, not in the vocabulary of %d ids", i, p->end_ids[i], m->n_vocab);
    return SPEC_OK;
}

static spec_status check_stops(const spec_model *m, const spec_request *p)
{
    if (p->n_stop < 0 || (p->n_stop > 0 && !p->stop))
        return speci_fail(SPEC_E_INVALID, "n_stop is %d, stop is %s", p->n_stop, p->stop ? "given" : "NULL");
    for (int32_t i = 0; i < p->n_stop; i++)
        if (!p->stop[i]) return speci_fail(SPEC_E_INVALID, "stop string %d is NULL", i);
    if (p->n_stop > 0 && !m->tokenizer)
        return speci_fail(SPEC_E_UNSUPPORTED, "stop strings need a tokenizer, and the model has none");
    return SPEC_OK;
}

static spec_status check(const spec_model *m, const spec_request *p)
{
    enum { TOP = sizeof ((spec_logprob *)0)->top_id / sizeof(int32_t) };
    SPEC_TRY(speci_sampling_check(&p->sampling));
    if (p->n_predict < -1) return speci_fail(SPEC_E_INVALID, "n_predict is %d: -1 is no limit", p->n_predict);
    if (p->n_top < 0 || p->n_top > TOP || p->n_top > m->n_vocab)
        return speci_fail(SPEC_E_INVALID, "n_top is %d: at most %d, and the %d ids there are", p->n_top, (int)TOP, m->n_vocab);
    if (p->n_top > 0 && !p->logprobs)
        return speci_fail(SPEC_E_INVALID, "n_top is %d without logprobs: set logprobs to 1 too", p->n_top);
    SPEC_TRY(check_ends(m, p));
    return check_stops(m, p);
}

/* The strings behind the list of pointers to them, in one piece. */
static spec_status copy_stops(engine_request *r, const spec_allocator *a)
{
    const spec_request *p = &r->p;
    size_t n = (size_t)p->n_stop * sizeof *p->stop, at = n;
    for (int32_t i = 0; i < p->n_stop; i++) n += strlen(p->stop[i]) + 1;
    char *block = speci_alloc(a, n, 1);
    if (!block) return SPEC_E_NOMEM;
    char **list = (char **)(void *)block;
    for (int32_t i = 0; i < p->n_stop; i++) {
        const size_t len = strlen(p->stop[i]) + 1;
        list[i] = memcpy(block + at, p->stop[i], len);
        at += len;
    }
    r->stops = (speci_stops){ (const char *const *)list, p->n_stop };
    r->p.stop = r->stops.strings;
    return SPEC_OK;
}

/* The special token that a stop string is; -1: it is none. What is not UTF-8 is refused, as a prompt is: it could match inside a
 * character only. */
static spec_status special_of(const spec_model *m, const char *stop, int32_t *out)
{
    size_t n = 0;
    int32_t id = -1;
    const spec_status status = spec_tokenizer_encode(m->tokenizer, &id, 1, &n, stop, strlen(stop), SPEC_TOKEN_PARSE_SPECIAL);
    if (status != SPEC_OK && status != SPEC_E_FULL) return speci_fail(status, "stop string \"%.100s\": %s", stop, spec_last_error());
    *out = n == 1 && spec_tokenizer_is_special(m->tokenizer, id) ? id : -1;
    return SPEC_OK;
}

/* Special tokens are not in the text, where stop strings are looked for: one that is a special token is known by its id. */
static spec_status list_ends(engine_request *r, const spec_model *m)
{
    const spec_request *p = &r->p;
    const int32_t n_own = p->ignore_eos ? 0 : m->n_eos;
    r->ends = speci_alloc(m->allocator, (size_t)(n_own + p->n_end_id + p->n_stop), sizeof *r->ends);
    if (!r->ends) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < n_own; i++) r->ends[r->n_end++] = m->eos[i];
    for (int32_t i = 0; i < p->n_end_id; i++) r->ends[r->n_end++] = p->end_ids[i];
    r->n_eos = r->n_end;
    r->p.end_ids = r->ends + n_own;
    for (int32_t i = 0; i < p->n_stop; i++) {
        int32_t id = -1;
        SPEC_TRY(special_of(m, p->stop[i], &id));
        if (id >= 0) r->ends[r->n_end++] = id;
    }
    return SPEC_OK;
}

static spec_status take(engine_request *r, const spec_model *m, const spec_request *given)
{
    r->p = *given;
    SPEC_TRY(check(m, &r->p));
    SPEC_TRY(copy_stops(r, m->allocator));
    SPEC_TRY(list_ends(r, m));
    r->p.bias = NULL, r->p.n_bias = 0; /* engine_adjust has them */
    return SPEC_OK;
}

spec_status speci_request_open(engine_request *out, const spec_model *target, const spec_request *given)
{
    *out = (engine_request){ 0 };
    const spec_status status = take(out, target, given);
    if (status != SPEC_OK) speci_request_close(out, target->allocator);
    return status;
}

spec_status speci_request_copy(engine_request *out, const spec_model *target, const engine_request *from)
{
    return speci_request_open(out, target, &from->p);
}

void speci_request_close(engine_request *r, const spec_allocator *a)
{
    speci_free(a, (void *)(uintptr_t)r->stops.strings);
    speci_free(a, r->ends);
    *r = (engine_request){ 0 };
}
