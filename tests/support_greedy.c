/* support_greedy.c - see support_greedy.h. */
#include "tests/support_greedy.h"

#include <string.h>

#include "algorithms/algo.h"

enum { MAX_AT_ONCE = 32 };

greedy_prompts support_prompts(const golden *g)
{
    int64_t n, width;
    const int32_t *ids = support_golden_find(g, "prompt_ids", &n, &width);
    return (greedy_prompts){ (int32_t)n, (int32_t)width, ids };
}

static int32_t add_prompt(spec_session *s, const greedy_prompts *p, int32_t i)
{
    const int32_t *ids = p->ids + (size_t)i * (size_t)p->width;
    int32_t n = 0, seq;
    while (n < p->width && ids[n] >= 0) n++;
    OK(spec_sequence_add(s, &seq, ids, (size_t)n, NULL));
    s->seqs[seq].ignore_eos = true;
    return seq;
}

static void take(int32_t *out, int32_t *n_out, const spec_step_result *r, greedy_counts *c)
{
    for (int32_t j = 0; j < r->n_tokens && *n_out < GREEDY_NEW; j++) out[(*n_out)++] = r->tokens[j];
    c->steps++;
    c->drafted += r->n_drafted;
    c->accepted += r->n_accepted;
    c->accepting += r->n_accepted > 0;
    c->rejecting += r->n_accepted < r->n_drafted;
}

static void run_some(spec_session *s, int32_t *out, greedy_counts *counts, const greedy_prompts *p, int32_t first,
                     int32_t n)
{
    int32_t seqs[MAX_AT_ONCE], prompt[MAX_AT_ONCE], n_out[MAX_AT_ONCE] = { 0 }, n_live = n;
    spec_step_result r[MAX_AT_ONCE];
    for (int32_t i = 0; i < n; i++) seqs[i] = add_prompt(s, p, first + i), prompt[i] = i;
    while (n_live > 0) {
        OK(spec_step(s, seqs, n_live, r));
        int32_t kept = 0;
        for (int32_t i = 0; i < n_live; i++) {
            const int32_t k = prompt[i];
            take(out + (size_t)(first + k) * GREEDY_NEW, &n_out[k], &r[i], counts);
            if (n_out[k] < GREEDY_NEW) seqs[kept] = seqs[i], prompt[kept++] = k;
            else OK(spec_sequence_remove(s, seqs[i]));
        }
        n_live = kept;
    }
}

void support_greedy(int32_t *out, greedy_counts *counts, spec_model *target, spec_model *drafter, int32_t n_draft,
                    const greedy_prompts *p, int32_t n_at_once)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d = NULL;
    spec_session *s = NULL;
    dp.n_draft = n_draft;
    sp.n_seq = n_at_once;
    sp.n_ctx = p->width + GREEDY_NEW + 16;
    if (n_draft > 0) OK(spec_drafter_from_model(&d, drafter, &dp));
    OK(spec_session_open(&s, target, d, &sp));
    for (int32_t i = 0; i < p->n; i += n_at_once)
        run_some(s, out, counts, p, i, p->n - i < n_at_once ? p->n - i : n_at_once);
    spec_session_close(s);
    spec_drafter_close(d);
}

int64_t support_first_difference(const int32_t *a, const int32_t *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i]) return i;
    return -1;
}
