/* support_greedy.c - see support_greedy.h. */
#include "tests/support_greedy.h"

#include <string.h>

#include "algorithms/engine/engine.h"
#include "tests/support_sequence.h"

enum { MAX_AT_ONCE = 32 };

const char *const support_trees[] = { "chain:4", "static:A", "static:eagle", "product:3,2,2", "product-repeat:3,2",
                                      "beam:3,4", "dyspec:16", "dyspec-threshold:0.05,24", "sequoia:16",
                                      "eagle2:4,16,3", NULL };

greedy_prompts support_prompts(const golden *g)
{
    int64_t n, width;
    const int32_t *ids = support_golden_find(g, "prompt_ids", &n, &width);
    return (greedy_prompts){ .n = (int32_t)n, .width = (int32_t)width, .ids = ids };
}

static int32_t add_prompt(spec_session *s, const greedy_run *run, const greedy_prompts *p, int32_t i)
{
    const int32_t *ids = p->ids + (size_t)i * (size_t)p->width, most = p->most ? p->most : p->width;
    int32_t n = 0, seq;
    spec_sampling sampling = { 0 };
    if (run->sampling) sampling = *run->sampling;
    sampling.seed += (uint64_t)i;
    while (n < most && ids[n] >= 0) n++;
    OK(add_endless(s, &seq, ids, (size_t)n, &sampling));
    return seq;
}

static void take(int32_t *out, int32_t *n_out, int32_t n_new, const spec_step_result *r, greedy_counts *c)
{
    for (int32_t j = 0; j < r->n_tokens && *n_out < n_new; j++) out[(*n_out)++] = r->tokens[j];
    c->steps++;
    c->drafted += r->n_drafted;
    c->accepted += r->n_accepted;
    c->emitted += r->n_tokens;
    c->accepting += r->n_accepted > 0;
    c->rejecting += r->n_accepted < r->n_drafted;
    c->branched += r->branched;
}

static void run_some(spec_session *s, int32_t *out, greedy_counts *counts, const greedy_run *run,
                     const greedy_prompts *p, int32_t first, int32_t n)
{
    int32_t seqs[MAX_AT_ONCE], prompt[MAX_AT_ONCE], n_out[MAX_AT_ONCE] = { 0 }, n_live = n;
    spec_step_result r[MAX_AT_ONCE];
    for (int32_t i = 0; i < n; i++) seqs[i] = add_prompt(s, run, p, first + i), prompt[i] = i;
    while (n_live > 0) {
        OK(step_into(s, r, seqs, n_live));
        int32_t kept = 0;
        for (int32_t i = 0; i < n_live; i++) {
            const int32_t k = prompt[i];
            take(out + (size_t)(first + k) * (size_t)run->n_new, &n_out[k], run->n_new, &r[i], counts);
            if (n_out[k] < run->n_new) seqs[kept] = seqs[i], prompt[kept++] = k;
            else OK(spec_sequence_remove(s, seqs[i]));
        }
        n_live = kept;
    }
}

void support_greedy(int32_t *out, greedy_counts *counts, const greedy_run *run, const greedy_prompts *p)
{
    enum { MORE = 64 }; /* a step emits more than the last token that is wanted */
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d = NULL;
    spec_session *s = NULL;
    greedy_counts unasked = { 0 };
    const int32_t n_at_once = run->n_at_once ? run->n_at_once : 1;
    dp.tree = run->tree;
    dp.vocab = run->vocab, dp.n_resample = run->n_resample, dp.resample_across = run->resample_across;
    dp.token_info = run->token_info;
    sp.n_seq = n_at_once;
    sp.n_node = run->n_node;
    sp.n_ctx = p->width + run->n_new + MORE;
    sp.verify = run->verify;
    spec_lab lab = SPEC_LAB_INIT;
    lab.scan = run->scan, lab.advance = run->advance, lab.draft_state = run->draft_state;
    sp.lab = &lab;
    sp.drafters = run->drafters, sp.n_drafter = run->n_drafter, sp.combine = run->combine;
    sp.adapt = run->adapt, sp.profile = run->profile;
    if (run->tree) OK(spec_drafter_from_model(&d, run->drafter, &dp));
    OK(spec_session_open(&s, run->target, d, &sp));
    for (int32_t i = 0; i < p->n; i += n_at_once)
        run_some(s, out, counts ? counts : &unasked, run, p, i, p->n - i < n_at_once ? p->n - i : n_at_once);
    spec_session_close(s);
    spec_drafter_close(d);
}

int64_t support_first_difference(const int32_t *a, const int32_t *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i]) return i;
    return -1;
}
