/* support_request.c - see support_request.h. */
#include "tests/support_request.h"

#include <math.h>

static int allowed_after(const int32_t *ids, size_t n, int32_t token)
{
    const int32_t last = ids[n - 1], before = n > 1 ? ids[n - 2] : 0;
    return (token + last + 2 * before) % 5 != 0 || token == 11;
}

int support_mask(void *masked, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n)
{
    const support_masked *m = masked;
    if (m->n_call) ++*m->n_call;
    for (size_t i = m->n_prompt; i < n; i++)
        if (!allowed_after(ids, i, ids[i])) return 1;
    for (int32_t t = 0; t < n_vocab; t++)
        if (!allowed_after(ids, n, t)) allowed[t / 32] &= ~(1u << (t % 32));
    return 0;
}

int32_t support_occurrences(const int32_t *ids, size_t from, size_t to, int32_t token)
{
    int32_t n = 0;
    for (size_t i = from; i < to; i++) n += ids[i] == token;
    return n;
}

void support_change_logits(float *x, int32_t n_vocab, const spec_request *r, const int32_t *ids, size_t n, size_t n_prompt)
{
    const size_t from = r->n_penalty > 0 && n > (size_t)r->n_penalty ? n - (size_t)r->n_penalty : 0;
    const size_t first = from > n_prompt ? from : n_prompt;
    for (int32_t t = 0; t < n_vocab; t++) {
        const int32_t n_out = first < n ? support_occurrences(ids, first, n, t) : 0;
        float bias = 0;
        for (int32_t i = 0; i < r->n_bias; i++) bias += r->bias[i].token == t ? r->bias[i].bias : 0;
        if (r->repeat_penalty > 0 && support_occurrences(ids, from, n, t) > 0)
            x[t] = x[t] > 0 ? x[t] / r->repeat_penalty : x[t] * r->repeat_penalty;
        x[t] += bias - (n_out > 0 ? r->presence_penalty : 0) - r->frequency_penalty * (float)n_out;
        if (r->mask && !allowed_after(ids, n, t)) x[t] = -INFINITY;
    }
}
