/* test_request.c - what a request asks for: penalties, biases and masks change every node of a tree by its own path, so that
 * speculation gives the text of a plain loop that is obviously right; where texts end; prompts appended and consumed in parts. */
#define SPEC_EXPERIMENTAL
#include "tests/support_decode.h"
#include "spec_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/engine/engine.h"
#include "tests/support_corpus.h"
#include "tests/support_request.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *backend;

static const char *const families[] = { "llama2", "mamba", "mamba2", "bamba", "lfm2" };
static const int32_t prompt[] = { 7, 3, 1, 5, 3, 2, 9, 4, 3 };
enum { N_PROMPT = 9, N_NEW = 60, N_ID = 250 };

/* --- the reference --- */

/* Plain decoding by hand: one token a pass, chosen on the host. */
static void plain_text(int32_t *out, int32_t n_new, spec_model *m, const spec_request *r)
{
    spec_model_info info = { .struct_size = sizeof info };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    int32_t ids[N_ID], seq, n = N_PROMPT;
    OK(spec_model_get_info(m, &info, 1));
    float *x = malloc((size_t)info.n_vocab * sizeof *x), *probs = malloc((size_t)info.n_vocab * sizeof *x);
    int32_t *scratch = malloc((size_t)info.n_vocab * sizeof *scratch);
    memcpy(ids, prompt, sizeof prompt);
    p.n_ctx = N_ID;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(add_endless(s, &seq, prompt, N_PROMPT, NULL));
    for (int32_t i = 0; i < n_new; i++, n++) {
        int32_t token = ids[n - 1], parent = -1;
        const int32_t root = 0;
        const spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *trees[] = { &tree };
        OK(spec_score(s, &seq, 1, trees));
        OK(spec_node_logits(s, x, seq, 0));
        support_change_logits(x, info.n_vocab, r, ids, (size_t)n, N_PROMPT);
        OK(spec_probs(probs, x, info.n_vocab, &r->sampling, scratch));
        ids[n] = out[i] = spec_draw(probs, info.n_vocab, spec_uniform(r->sampling.seed, (uint64_t)n, 1, 0));
        OK(spec_commit(s, seq, &root, 1, ids[n]));
    }
    spec_session_close(s);
    free(x), free(probs), free(scratch);
}

/* --- speculation against it --- */

static const spec_logit_bias biases[] = { { 3, -INFINITY }, { 5, 2.5f }, { 17, 1.0f }, { 5, 0.5f }, { 2, -3.0f } };

typedef struct request_case {
    const char *name;
    float repeat, presence, frequency;
    int32_t n_penalty, n_bias, mask;
} request_case;

static const request_case requests[] = {
    { "nothing", 0, 0, 0, 0, 0, 0 },         { "repeat", 1.7f, 0, 0, 0, 0, 0 },     { "presence", 0, 0.9f, 0, 0, 0, 0 },
    { "frequency", 0, 0, 0.6f, 0, 0, 0 },    { "negative", 0.8f, -0.3f, -0.1f, 0, 0, 0 }, { "window", 1.5f, 0.4f, 0.3f, 6, 0, 0 },
    { "window of 1", 2, 1, 1, 1, 0, 0 },     { "bias", 0, 0, 0, 0, 5, 0 },          { "mask", 0, 0, 0, 0, 0, 1 },
    { "everything", 1.3f, 0.5f, 0.4f, 20, 5, 1 },
};

static spec_request request_of(const request_case *c, bool sampled, support_masked *masked)
{
    spec_request r = SPEC_REQUEST_INIT;
    if (sampled) r.sampling = (spec_sampling){ 0.9f, 40, 0.95f, 0, 5 };
    r.repeat_penalty = c->repeat, r.presence_penalty = c->presence, r.frequency_penalty = c->frequency;
    r.n_penalty = c->n_penalty;
    r.bias = biases, r.n_bias = c->n_bias;
    if (c->mask) r.mask = support_mask, r.mask_user_data = masked;
    r.ignore_eos = 1;
    r.n_predict = N_NEW;
    return r;
}

typedef struct draft_case {
    const char *tree, *draft; /* of a model, or a drafter without one */
    spec_verify_rule sampled; /* by which the text of a seed is plain decoding's */
} draft_case;
static const draft_case drafts[] = {
    { NULL, NULL, SPEC_VERIFY_AUTO },
    { "chain:4", NULL, SPEC_VERIFY_NAIVE },
    { "product:3,2,2", NULL, SPEC_VERIFY_NAIVE },
    { "dyspec:12", NULL, SPEC_VERIFY_NAIVE },
    { NULL, "ngram:2,6", SPEC_VERIFY_NAIVE },
    { NULL, "trie:12,4,1", SPEC_VERIFY_NAIVE },
    { NULL, "png", SPEC_VERIFY_NAIVE },
};

/* png: the text of that drafter, which has a table */
static void text_of(int32_t *out, spec_model *m, const draft_case *d, const char *png, const spec_request *r, int64_t *n_accepted)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *drafter = NULL;
    spec_session *s;
    int32_t seq, n = 0;
    p.n_ctx = N_ID;
    if (r->sampling.temperature > 0) p.verify = d->sampled;
    dp.tree = d->tree;
    if (d->tree) OK(spec_drafter_from_model(&drafter, m, &dp));
    if (d->draft) OK(spec_drafter_open(&drafter, strcmp(d->draft, "png") == 0 ? png : d->draft, NULL));
    OK(spec_session_open(&s, m, drafter, &p));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, r));
    for (spec_stop stop = SPEC_STOP_NONE; stop == SPEC_STOP_NONE;) {
        const spec_step_result *step;
        OK(spec_step(s, &step, &seq, 1));
        assert_true(n + step->n_tokens <= N_NEW);
        memcpy(out + n, step->tokens, (size_t)step->n_tokens * sizeof *out);
        n += step->n_tokens, *n_accepted += step->n_accepted, stop = step->stop;
        if (stop != SPEC_STOP_NONE) assert_int_equal(stop, SPEC_STOP_LENGTH);
    }
    assert_int_equal(n, N_NEW);
    spec_session_close(s);
    spec_drafter_close(drafter);
}

static void check_request(void **state)
{
    const request_case *c = *state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char path[256], png[64];
        int64_t n_accepted = 0, n_call = 0;
        support_masked masked = { N_PROMPT, &n_call };
        (void)snprintf(path, sizeof path, GOLDEN "%s", families[f]);
        spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
        for (int sampled = 0; sampled < 2; sampled++) {
            const spec_request r = request_of(c, sampled, &masked);
            int32_t want[N_NEW], got[N_NEW];
            plain_text(want, N_NEW, m, &r);
            support_table(png, want, N_NEW, m->n_vocab, 2, 5);
            for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++) {
                text_of(got, m, &drafts[d], png, &r, &n_accepted);
                for (int32_t i = 0; i < N_NEW; i++)
                    if (got[i] != want[i])
                        fail_msg("%s, %s, %s, temperature %g: token %d is %d, plain decoding has %d", families[f], c->name,
                                 drafts[d].tree ? drafts[d].tree : drafts[d].draft ? drafts[d].draft : "no draft",
                                 (double)r.sampling.temperature, i, got[i], want[i]);
            }
            support_table_remove(png);
        }
        assert_true(n_accepted > 0);
        assert_true((n_call > 0) == c->mask);
        spec_model_close(m);
    }
}

/* --- copies --- */

/* The text of a sequence up to its end is `want` from token `from` on. */
static void expect_rest(spec_session *s, int32_t seq, const int32_t *want, int32_t from, const char *what)
{
    const int32_t *ids;
    size_t n;
    spec_step_result r;
    do OK(step_into(s, &r, &seq, 1));
    while (r.stop == SPEC_STOP_NONE);
    OK(spec_sequence_ids(s, &ids, &n, seq));
    assert_int_equal(n, N_PROMPT + N_NEW);
    for (int32_t i = from; i < N_NEW; i++)
        if (ids[N_PROMPT + i] != want[i]) fail_msg("%s: token %d is %d, plain decoding has %d", what, i, ids[N_PROMPT + i], want[i]);
}

/* A copy counts what its original would; and so does a restored sequence, once it has the request again. */
static void check_copied(spec_model *m, const request_case *c, const spec_request *r)
{
    enum { N_FIRST = 7 };
    int32_t want[N_NEW], seq, at_once, later, restored;
    support_stream saved = { 0 };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_step_result step;
    spec_request rest = *r;
    spec_session *s;
    plain_text(want, N_NEW, m, r);
    p.n_ctx = N_ID, p.n_seq = 4;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, r));
    OK(spec_sequence_fork(s, &at_once, seq));
    for (int32_t i = 0; i < N_FIRST; i++) OK(step_into(s, &step, &seq, 1));
    OK(spec_sequence_fork(s, &later, seq));
    OK(spec_sequence_save(s, seq, support_to_stream, &saved));
    OK(spec_sequence_restore(s, &restored, support_from_stream, &saved));
    rest.n_predict = N_NEW - N_FIRST;
    OK(spec_sequence_set_request(s, restored, &rest));
    expect_rest(s, at_once, want, 0, c->name);
    expect_rest(s, later, want, N_FIRST, c->name);
    expect_rest(s, restored, want, N_FIRST, c->name);
    spec_session_close(s);
    free(saved.data);
}

/* What was emitted is counted from the latest prompt on: two turns are as one prompt of all ids. */
static void check_turns(spec_model *m, const request_case *c, const spec_request *r)
{
    enum { N_FIRST = 9, N_MORE = 4, N_THEN = 20 };
    int32_t seqs[2];
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_step_result step = { .tokens = NULL };
    spec_session *s;
    const int32_t *ids;
    size_t n;
    p.n_ctx = N_ID, p.n_seq = 2;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(spec_sequence_add(s, &seqs[0], prompt, N_PROMPT, r));
    for (int32_t i = 0; i < N_FIRST; i++) OK(step_into(s, &step, &seqs[0], 1));
    OK(spec_sequence_append(s, seqs[0], prompt, N_MORE, NULL));
    OK(spec_sequence_ids(s, &ids, &n, seqs[0]));
    OK(spec_sequence_add(s, &seqs[1], ids, n, r));
    for (int32_t i = 0; i < N_THEN; i++) {
        int32_t last[2];
        for (int32_t k = 0; k < 2; k++) {
            OK(step_into(s, &step, &seqs[k], 1));
            last[k] = step.tokens ? step.tokens[0] : -1;
        }
        if (last[0] != last[1]) fail_msg("%s: token %d of the second turn is %d, behind one prompt %d", c->name, i, last[0], last[1]);
    }
    spec_session_close(s);
}

static void check_copies(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        for (int sampled = 0; sampled < 2; sampled++) {
            int64_t n_call = 0;
            support_masked masked = { N_PROMPT, &n_call };
            const spec_request r = request_of(&requests[i], sampled, &masked);
            check_copied(m, &requests[i], &r);
            if (!requests[i].mask) check_turns(m, &requests[i], &r);
        }
    spec_model_close(m);
}

/* Sequences with different requests in one session are as they are alone. */
static void check_together(void **state)
{
    (void)state;
    enum { N_REQUEST = sizeof requests / sizeof *requests };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    spec_drafter *drafter;
    spec_session *s;
    int32_t want[N_REQUEST][N_NEW], got[N_REQUEST][N_NEW], n[N_REQUEST] = { 0 }, seqs[N_REQUEST], of[N_REQUEST], n_live = 0;
    support_masked masked = { N_PROMPT, NULL };
    p.n_ctx = N_ID, p.n_seq = N_REQUEST, p.verify = SPEC_VERIFY_NAIVE;
    dp.tree = "product:2,2,1";
    OK(spec_drafter_from_model(&drafter, m, &dp));
    OK(spec_session_open(&s, m, drafter, &p));
    for (int32_t i = 0; i < N_REQUEST; i++) {
        spec_request r = request_of(&requests[i], true, &masked);
        r.sampling.seed = (uint64_t)i;
        r.n_predict = N_NEW - i;
        plain_text(want[i], N_NEW, m, &r);
        OK(spec_sequence_add(s, &seqs[n_live], prompt, N_PROMPT, &r));
        of[n_live++] = i;
    }
    while (n_live > 0) {
        const spec_step_result *step[N_REQUEST];
        int32_t kept = 0;
        OK(spec_step(s, step, seqs, n_live));
        for (int32_t i = 0; i < n_live; i++) {
            const int32_t k = of[i];
            memcpy(got[k] + n[k], step[i]->tokens, (size_t)step[i]->n_tokens * sizeof **got);
            n[k] += step[i]->n_tokens;
            if (step[i]->stop == SPEC_STOP_NONE) seqs[kept] = seqs[i], of[kept++] = k;
            else OK(spec_sequence_remove(s, seqs[i]));
        }
        n_live = kept;
    }
    for (int32_t i = 0; i < N_REQUEST; i++) {
        assert_int_equal(n[i], N_NEW - i);
        assert_memory_equal(got[i], want[i], (size_t)n[i] * sizeof **got);
    }
    spec_session_close(s);
    spec_drafter_close(drafter);
    spec_model_close(m);
}

/* Log-probabilities are the model's, whatever the request does to its logits; probabilities are the request's. */
static void check_what_is_told(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32);
    spec_request r = request_of(&requests[9], true, &(support_masked){ N_PROMPT, NULL });
    spec_session *s;
    const spec_step_result *step;
    int32_t seq, plain, ids[N_PROMPT + 1];
    float *x = malloc(sizeof *x << 16), *y = malloc(sizeof *y << 16), want;
    int32_t *scratch = malloc(sizeof *scratch << 16);
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_seq = 2, p.n_ctx = N_ID;
    r.logprobs = 1, r.n_top = 3;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
    OK(spec_sequence_add(s, &plain, prompt, N_PROMPT, NULL));
    OK(spec_step(s, &step, &seq, 1));
    const spec_logprob told = step->logprobs[0];
    int32_t token = prompt[N_PROMPT - 1], parent = -1, next = step->tokens[0];
    const spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *trees[] = { &tree };
    OK(spec_score(s, &plain, 1, trees));
    int32_t top[3];
    float top_logprob[3];
    OK(spec_node_logprobs(s, &want, top, top_logprob, plain, 0, next, 3));
    assert_true(want == told.logprob);
    assert_memory_equal(top, told.top_id, sizeof top);
    /* The distribution that the token was drawn from. */
    OK(spec_node_logits(s, x, plain, 0));
    OK(spec_sequence_remove(s, seq));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
    OK(spec_score(s, &seq, 1, trees));
    OK(spec_node_logits(s, y, seq, 0));
    assert_memory_equal(x, y, (size_t)m->n_vocab * sizeof *x);
    memcpy(ids, prompt, sizeof prompt);
    support_change_logits(x, m->n_vocab, &r, ids, N_PROMPT, N_PROMPT);
    OK(spec_probs(y, x, m->n_vocab, &r.sampling, scratch));
    OK(spec_node_probs(s, x, seq, 0));
    for (int32_t t = 0; t < m->n_vocab; t++) assert_true(fabsf(x[t] - y[t]) < 1e-6f);
    free(x), free(y), free(scratch);
    spec_session_close(s);
    spec_model_close(m);
}

/* --- what is refused --- */

static int refuse(void *user_data, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n)
{
    (void)n_vocab, (void)ids, (void)n;
    if (user_data) memset(allowed, 0, (size_t)(n_vocab + 31) / 32 * sizeof *allowed);
    return user_data == NULL;
}

static int only_first(void *user_data, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n)
{
    (void)user_data, (void)ids, (void)n;
    memset(allowed, 0, (size_t)(n_vocab + 31) / 32 * sizeof *allowed);
    allowed[0] = 1;
    return 0;
}

/* A bias for each token that leaves none. */
static spec_logit_bias *forbid_all(const spec_model *m)
{
    spec_logit_bias *nothing = calloc((size_t)m->n_vocab, sizeof *nothing);
    assert_non_null(nothing);
    for (int32_t i = 0; i < m->n_vocab; i++) nothing[i] = (spec_logit_bias){ i, -INFINITY };
    return nothing;
}

static void check_refused(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32);
    spec_session *s;
    int32_t seq;
    OK(spec_session_open(&s, m, NULL, NULL));
#define REFUSES(what, code, text)                                         \
    do {                                                                  \
        spec_request r = SPEC_REQUEST_INIT;                               \
        what;                                                             \
        FAILS(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r), code, text); \
    } while (0)
    const char *stop = "x", *none = NULL;
    const int32_t id = m->n_vocab;
    const spec_logit_bias outside = { id, 1 }, infinite = { 1, INFINITY }, too_much[] = { { 1, 3e38f }, { 1, 3e38f } };
    spec_logit_bias *nothing = forbid_all(m);
    REFUSES(r.sampling.temperature = INFINITY, SPEC_E_INVALID, "temperature");
    REFUSES(r.sampling.temperature = NAN, SPEC_E_INVALID, "temperature");
    REFUSES(r.sampling.top_k = -1, SPEC_E_INVALID, "top_k");
    REFUSES(r.sampling.top_p = 1.5f, SPEC_E_INVALID, "top_p");
    REFUSES(r.sampling.min_p = -1, SPEC_E_INVALID, "min_p");
    REFUSES(r.n_predict = -2, SPEC_E_INVALID, "n_predict");
    REFUSES((r.logprobs = 1, r.n_top = 21), SPEC_E_INVALID, "n_top is 21: at most 20");
    REFUSES(r.n_top = 2, SPEC_E_INVALID, "n_top is 2 without logprobs");
    REFUSES(r.repeat_penalty = -1, SPEC_E_INVALID, "repeat_penalty");
    REFUSES(r.presence_penalty = NAN, SPEC_E_INVALID, "presence_penalty");
    REFUSES(r.n_penalty = -1, SPEC_E_INVALID, "n_penalty");
    REFUSES((r.bias = &outside, r.n_bias = 1), SPEC_E_INVALID, "not in the vocabulary");
    REFUSES((r.bias = &infinite, r.n_bias = 1), SPEC_E_INVALID, "is inf: a number");
    REFUSES(r.n_bias = 1, SPEC_E_INVALID, "bias");
    REFUSES((r.bias = too_much, r.n_bias = 2), SPEC_E_INVALID, "biases of token 1 add up to infinity");
    REFUSES((r.bias = nothing, r.n_bias = m->n_vocab), SPEC_E_INVALID, "leave no token");
    REFUSES((r.end_ids = &id, r.n_end_id = 1), SPEC_E_INVALID, "end id 0");
    REFUSES((r.stop = &stop, r.n_stop = 1), SPEC_E_UNSUPPORTED, "tokenizer");
    REFUSES((r.stop = &none, r.n_stop = 1), SPEC_E_INVALID, "stop string 0");
    REFUSES(r.struct_size = 0, SPEC_E_INVALID, "struct_size");
    free(nothing);
    spec_session_close(s);
    spec_model_close(m);
}

static void check_refused_by_mask(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32);
    spec_session *s;
    int32_t seq;
    const spec_step_result *step;
    spec_request r = SPEC_REQUEST_INIT;
    spec_logit_bias *nothing = forbid_all(m);
    OK(spec_session_open(&s, m, NULL, NULL));
    r.mask = refuse;
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
    FAILS(spec_step(s, &step, &seq, 1), SPEC_E_ABORTED, "mask");
    r.mask_user_data = &r;
    OK(spec_sequence_set_request(s, seq, &r));
    FAILS(spec_step(s, &step, &seq, 1), SPEC_E_INVALID, "no token");
    r.mask = only_first, r.bias = nothing, r.n_bias = 1; /* what the one leaves, the other forbids */
    OK(spec_sequence_set_request(s, seq, &r));
    FAILS(spec_step(s, &step, &seq, 1), SPEC_E_INVALID, "no token");
    r.bias = nothing + 1, r.n_bias = m->n_vocab - 1;
    OK(spec_sequence_set_request(s, seq, &r));
    OK(spec_step(s, &step, &seq, 1));
    assert_int_equal(step->tokens[0], 0);
    OK(spec_sequence_remove(s, seq));
    free(nothing);
    spec_session_close(s);
    spec_model_close(m);
}

static void check_refused_later(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32);
    spec_session *s;
    spec_session_info info = SPEC_STRUCT_INIT(spec_session_info);
    int32_t seq, other;
    const int32_t *ids, id = m->n_vocab;
    size_t n;
    const spec_step_result *step;
    OK(spec_session_open(&s, m, NULL, NULL));
    spec_request r = SPEC_REQUEST_INIT;
    r.mask = refuse;
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
    OK(spec_sequence_ids(s, &ids, &n, seq));
    assert_int_equal(n, N_PROMPT);
    r.n_predict = -5;
    FAILS(spec_sequence_set_request(s, seq, &r), SPEC_E_INVALID, "n_predict");
    OK(spec_sequence_set_request(s, seq, NULL));
    OK(spec_step(s, &step, &seq, 1));
    FAILS(spec_sequence_add(s, &other, prompt, N_PROMPT, NULL), SPEC_E_BUSY, "in use");
    OK(spec_session_get_info(s, &info));
    assert_int_equal(info.n_seq, 1);
    assert_int_equal(info.n_seq_free, 0);
    FAILS(spec_sequence_append(s, seq, &id, 1, NULL), SPEC_E_INVALID, "vocabulary");
    FAILS(spec_sequence_append(s, seq, prompt, (size_t)info.n_ctx, NULL), SPEC_E_FULL, "context");
    FAILS(spec_sequence_append(s, seq, prompt, 0, NULL), SPEC_E_INVALID, "at least one");
    OK(spec_step(s, &step, &seq, 1));
    spec_session_close(s);
    spec_model_close(m);
}

/* --- where texts end --- */

static void check_end_ids(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    int32_t want[N_NEW], seq;
    spec_request r = SPEC_REQUEST_INIT;
    r.ignore_eos = 1;
    plain_text(want, N_NEW, m, &r);
    int32_t at = 5; /* the first place of a token that did not come before */
    while (support_occurrences(want, 0, (size_t)at, want[at]) > 0) at++;
    r.n_end_id = 1;
    dp.tree = "chain:8";
    for (int drafted = 0; drafted < 2; drafted++) {
        spec_drafter *d = NULL;
        spec_session *s;
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        const spec_step_result *step;
        int32_t n = 0, end = want[at], copy;
        r.end_ids = &end;
        if (drafted) OK(spec_drafter_from_model(&d, m, &dp));
        p.n_seq = 2;
        OK(spec_session_open(&s, m, d, &p));
        OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
        end = want[at - 1]; /* the list was the caller's, and is copied: for copies, too */
        if (drafted) {
            OK(spec_sequence_fork(s, &copy, seq));
            OK(spec_sequence_remove(s, seq));
            seq = copy;
        }
        do {
            OK(spec_step(s, &step, &seq, 1));
            assert_memory_equal(step->tokens, want + n, (size_t)step->n_tokens * sizeof *want);
            n += step->n_tokens;
        } while (step->stop == SPEC_STOP_NONE);
        assert_int_equal(step->stop, SPEC_STOP_EOS);
        assert_int_equal(n, at + 1);
        spec_session_close(s);
        spec_drafter_close(d);
    }
    spec_model_close(m);
}

/* A stop string ends the sequence with the token that completes it, though the drafts after it were right; the text goes on
 * from there as plain decoding would. */
/* An end token has no text, be it a word: the text is that of the tokens in front. */
static void check_end_text(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    enum { N = 30 };
    spec_model *m = support_model(backend, DEMO_TARGET, SPEC_DTYPE_F32);
    spec_session *s;
    spec_result all = SPEC_RESULT_INIT, want = SPEC_RESULT_INIT, got = SPEC_RESULT_INIT;
    spec_request r = SPEC_REQUEST_INIT;
    OK(spec_session_open(&s, m, NULL, NULL));
    r.n_predict = N, r.ignore_eos = 1, r.keep_special = 1;
    OK(spec_generate(s, &all, "Once upon a time", 16, &r));
    int32_t at = 6; /* the first place of a token that did not come before */
    while (support_occurrences(all.ids, 0, (size_t)at, all.ids[at]) > 0) at++;
    r.n_predict = at;
    OK(spec_generate(s, &want, "Once upon a time", 16, &r));
    r.n_predict = N, r.end_ids = &all.ids[at], r.n_end_id = 1;
    OK(spec_generate(s, &got, "Once upon a time", 16, &r));
    assert_int_equal(got.stop, SPEC_STOP_EOS);
    assert_int_equal(got.n_ids, at + 1);
    assert_string_equal(got.text, want.text);
    spec_result_free(&all), spec_result_free(&want), spec_result_free(&got);
    spec_session_close(s);
    spec_model_close(m);
}

static int had_enough(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)n_text, (void)ids, (void)n_ids;
    return --*(int32_t *)user_data <= 0;
}

/* Who has had enough with the last text stops nothing that had not ended. */
static void check_enough(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    spec_session *s;
    OK(spec_session_open(&s, m, NULL, NULL));
    for (int32_t calls = 1; calls <= 3; calls++) {
        int32_t left = calls;
        spec_request r = SPEC_REQUEST_INIT;
        spec_result got = SPEC_RESULT_INIT;
        r.n_predict = 3, r.ignore_eos = 1, r.on_text = had_enough, r.text_user_data = &left;
        const spec_status status = spec_generate_ids(s, &got, prompt, N_PROMPT, &r);
        assert_int_equal(status, calls < 3 ? SPEC_E_ABORTED : SPEC_OK);
        assert_int_equal(got.stop, calls < 3 ? SPEC_STOP_ABORTED : SPEC_STOP_LENGTH);
        assert_int_equal(got.n_ids, calls);
        spec_result_free(&got);
    }
    spec_session_close(s);
    spec_model_close(m);
}

static int mask_behind_end(void *user_data, uint32_t *mask, int32_t n_vocab, const int32_t *ids, size_t n)
{
    const int32_t *end = user_data;
    (void)mask, (void)n_vocab;
    assert_true(ids[n - 1] != *end);
    return 0;
}

/* Nothing follows an end token: nobody is asked what may. */
static void check_masks_end(void **state)
{
    (void)state;
    int32_t end = 5, seq, token[] = { prompt[N_PROMPT - 1], 6, 5, 7, 8 }, parent[] = { -1, 0, 0, 2, 1 };
    const spec_tree tree = { .n = 5, .cap = 5, .token = token, .parent = parent }, *trees = &tree;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_request r = SPEC_REQUEST_INIT;
    spec_session *s;
    p.n_node = 5;
    r.end_ids = &end, r.n_end_id = 1, r.mask = mask_behind_end, r.mask_user_data = &end;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
    OK(spec_score(s, &seq, 1, &trees));
    spec_session_close(s);
    spec_model_close(m);
}

static void check_stop_strings(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    enum { N = 40 };
    spec_model *m = support_model(backend, DEMO_TARGET, SPEC_DTYPE_F32), *small = support_model(backend, DEMO_DRAFTER, SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d;
    spec_session *s;
    spec_result all = SPEC_RESULT_INIT, part = SPEC_RESULT_INIT, rest = SPEC_RESULT_INIT;
    spec_request r = SPEC_REQUEST_INIT;
    dp.tree = "chain:6";
    OK(spec_drafter_from_model(&d, small, &dp));
    OK(spec_session_open(&s, m, d, NULL));
    r.n_predict = N, r.ignore_eos = 1;
    OK(spec_generate(s, &all, "Once upon a time", 16, &r));
    for (size_t from = 5; from + 12 < all.n_text; from += 9) {
        char text[8];
        const char *stop = memcpy(text, all.text + from, 4);
        int32_t ids[64], seq;
        size_t n;
        const int32_t *got;
        text[4] = 0;
        const size_t at = (size_t)(strstr(all.text, stop) - all.text);
        r.stop = &stop, r.n_stop = 1;
        OK(spec_tokenizer_encode(m->tokenizer, ids, 64, &n, "Once upon a time", 16, SPEC_TOKEN_ADD_SPECIAL));
        OK(spec_sequence_add(s, &seq, ids, n, &r));
        OK(spec_generate_more(s, &part, seq, NULL, 0, &r));
        assert_int_equal(part.stop, SPEC_STOP_STRING);
        assert_int_equal(part.n_text, at);
        assert_memory_equal(part.text, all.text, at);
        assert_memory_equal(part.ids, all.ids, part.n_ids * sizeof *all.ids);
        size_t n_got; /* the sequence ends with that token too */
        OK(spec_sequence_ids(s, &got, &n_got, seq));
        assert_int_equal(n_got, n + part.n_ids);
        r.stop = NULL, r.n_stop = 0, r.n_predict = N - (int32_t)part.n_ids;
        if (r.n_predict > 0) {
            OK(spec_generate_more(s, &rest, seq, NULL, 0, &r));
            assert_memory_equal(rest.ids, all.ids + part.n_ids, rest.n_ids * sizeof *all.ids);
        }
        r.n_predict = N;
        OK(spec_sequence_remove(s, seq));
        spec_result_free(&part), spec_result_free(&rest);
    }
    spec_result_free(&all);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(small), spec_model_close(m);
}

/* --- prompts appended, and consumed in parts --- */

typedef struct append_case {
    const char *family;
    int32_t n_first, n_between, n_more; /* tokens of a prompt, generated, of the next prompt */
    const char *tree;                   /* NULL = no drafter */
    int32_t n_prompt_step;
    spec_scan_form scan;
    spec_advance advance;
} append_case;

static const append_case appends[] = {
    { "llama2", 9, 5, 7, NULL, 0, 0, 0 },       { "llama2", 9, 40, 130, "product:2,2", 0, 0, 0 },
    { "mamba", 9, 40, 70, "chain:3", 0, 0, 0 },
    { "mamba2", 9, 3, 1, "chain:3", 0, 0, 0 },  { "mamba2", 9, 15, 20, NULL, 0, 0, 0 }, { "mamba2", 9, 16, 33, "chain:3", 0, 0, 0 },
    { "mamba2", 1, 17, 90, "chain:3", 0, 0, 0 }, { "mamba2", 40, 31, 64, NULL, 0, 0, 0 }, { "mamba2", 9, 33, 5, NULL, 0, 0, 0 },
    { "mamba2", 9, 40, 130, "product:2,2", 0, SPEC_SCAN_RECURRENT, 0 },
    { "mamba2", 9, 40, 130, "chain:3", 0, 0, SPEC_ADVANCE_JOINT },
    { "bamba", 9, 40, 130, "product:2,2", 0, 0, 0 }, { "lfm2", 9, 40, 70, "chain:3", 0, 0, 0 },
    { "bamba", 120, 20, 70, "chain:3", 16, 0, 0 }, { "llama2", 120, 20, 70, NULL, 32, 0, 0 },
    { "mamba2", 120, 20, 70, "product:2,2", 1, 0, 0 },
};

static void generate(spec_session *s, int32_t seq, int32_t *out, int32_t n_new)
{
    int32_t n = 0;
    spec_request r = SPEC_REQUEST_INIT;
    r.n_predict = n_new, r.ignore_eos = 1;
    OK(spec_sequence_set_request(s, seq, &r));
    for (spec_stop stop = SPEC_STOP_NONE; stop == SPEC_STOP_NONE;) {
        const spec_step_result *step;
        OK(spec_step(s, &step, &seq, 1));
        memcpy(out + n, step->tokens, (size_t)step->n_tokens * sizeof *out);
        n += step->n_tokens, stop = step->stop;
        if (step->n_prompt_left > 0) assert_int_equal(step->n_tokens, 0);
    }
    assert_int_equal(n, n_new);
}

static float logit_distance(spec_session *s, int32_t a, int32_t b, int32_t token, int32_t n_vocab)
{
    float *x = malloc((size_t)n_vocab * sizeof *x), *y = malloc((size_t)n_vocab * sizeof *y), most = 0;
    int32_t parent = -1;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *trees[] = { &tree, &tree };
    const int32_t seqs[] = { a, b };
    OK(spec_score(s, seqs, 2, trees));
    OK(spec_node_logits(s, x, a, 0));
    OK(spec_node_logits(s, y, b, 0));
    for (int32_t i = 0; i < n_vocab; i++)
        if (!(fabsf(x[i] - y[i]) <= most)) most = fabsf(x[i] - y[i]);
    OK(spec_rollback(s, a));
    OK(spec_rollback(s, b));
    free(x), free(y);
    return most;
}

/* prompt, text, prompt, text: against the ids of the first three as one prompt. */
static void check_append(void **state)
{
    const append_case *c = *state;
    enum { N = 24 };
    char path[256];
    int32_t ids[N_ID], got[N], want[N], a, b;
    uint64_t random = 5;
    spec_lab lab = { .struct_size = sizeof lab, .scan = c->scan, .advance = c->advance };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d = NULL;
    spec_session *s;
    (void)snprintf(path, sizeof path, GOLDEN "%s", c->family);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
    p.n_ctx = N_ID, p.n_seq = 2, p.lab = &lab, p.n_prompt_step = c->n_prompt_step;
    dp.tree = c->tree;
    if (c->tree) OK(spec_drafter_from_model(&d, m, &dp));
    OK(spec_session_open(&s, m, d, &p));
    const int32_t n_first = c->n_first, n_text = n_first + c->n_between, n_all = n_text + c->n_more;
    for (int32_t i = 0; i < n_all; i++) ids[i] = (int32_t)(support_random(&random) % (uint32_t)(m->n_vocab < 90 ? m->n_vocab : 90));
    OK(add_endless(s, &a, ids, (size_t)n_first, NULL));
    generate(s, a, ids + n_first, c->n_between);
    OK(spec_sequence_append(s, a, ids + n_text, (size_t)c->n_more, NULL));
    OK(add_endless(s, &b, ids, (size_t)n_all, NULL));
    const float apart = logit_distance(s, a, b, ids[n_all - 1], m->n_vocab);
    if (!(apart < 2e-3f)) fail_msg("%s: logits after an appended prompt are %g apart", c->family, (double)apart);
    generate(s, a, got, N);
    generate(s, b, want, N);
    assert_memory_equal(got, want, sizeof got);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(m);
}

/* The next turn has a limit of its own: the request's, or that of the one before once more. */
static void check_limits(void **state)
{
    (void)state;
    static const int32_t limits[] = { 5, 9, 3 };
    spec_model *m = support_model(backend, GOLDEN "mamba", SPEC_DTYPE_F32);
    for (int given = 0; given < 2; given++) {
        spec_request r = SPEC_REQUEST_INIT;
        spec_session *s;
        int32_t seq;
        r.ignore_eos = 1, r.n_predict = limits[0];
        OK(spec_session_open(&s, m, NULL, NULL));
        OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, &r));
        for (size_t turn = 0; turn < sizeof limits / sizeof *limits; turn++) {
            spec_step_result step = { .n_tokens = 0 };
            int32_t n = 0;
            if (turn > 0) {
                r.n_predict = limits[turn];
                OK(spec_sequence_append(s, seq, prompt, 2, given ? &r : NULL));
            }
            do OK(step_into(s, &step, &seq, 1)), n += step.n_tokens;
            while (step.stop == SPEC_STOP_NONE);
            assert_int_equal(step.stop, SPEC_STOP_LENGTH);
            assert_int_equal(n, limits[given ? turn : 0]);
        }
        spec_session_close(s);
    }
    spec_model_close(m);
}

/* A prompt that is consumed in parts does not keep another sequence from its steps, and is the same. */
static void check_parts(void **state)
{
    (void)state;
    enum { N = 30, LONG = 200 };
    int32_t ids[LONG], want[N], text[N], got[N], a, b, n_text = 0, n_got = 0;
    uint64_t random = 9;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    for (int32_t i = 0; i < LONG; i++) ids[i] = (int32_t)(support_random(&random) % 90);
    support_plain_ids(m, prompt, N_PROMPT, NULL, N, text);
    support_plain_ids(m, ids, LONG, NULL, N, want);
    p.n_ctx = N_ID, p.n_seq = 2, p.n_prompt_step = 16;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(add_endless(s, &a, prompt, N_PROMPT, NULL));
    OK(add_endless(s, &b, ids, LONG, NULL));
    int32_t left = LONG - 1, n_waited = 0;
    while (n_text < N || n_got < N) {
        const int32_t seqs[] = { a, b };
        const spec_step_result *step[2];
        OK(spec_step(s, step, seqs, 2));
        for (int32_t i = 0; i < step[0]->n_tokens && n_text < N; i++) text[n_text] = step[0]->tokens[i], n_text++;
        for (int32_t i = 0; i < step[1]->n_tokens && n_got < N; i++) got[n_got++] = step[1]->tokens[i];
        if (n_waited > 0) assert_true(step[0]->n_tokens > 0); /* it does not wait */
        if (left > 0 && step[1]->n_tokens == 0) assert_true(step[1]->n_prompt_left < left), n_waited++;
        left = step[1]->n_prompt_left;
    }
    assert_true(n_waited > 0); /* the smallest part of some devices is 128 tokens */
    assert_memory_equal(got, want, sizeof got);
    spec_session_close(s);
    spec_model_close(m);
}

/* What a step may consume is for all its sequences together. */
static void check_shared_parts(void **state)
{
    (void)state;
    enum { LONG = 240, N_SEQS = 3 };
    int32_t ids[LONG], seqs[N_SEQS], left[N_SEQS];
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    for (int32_t i = 0; i < LONG; i++) ids[i] = i % 90;
    p.n_seq = N_SEQS, p.n_prompt_step = 16;
    OK(spec_session_open(&s, m, NULL, &p));
    for (int32_t i = 0; i < N_SEQS; i++) {
        OK(add_endless(s, &seqs[i], ids, LONG, NULL));
        left[i] = LONG - 1;
    }
    for (int32_t first = 0; first < N_SEQS;) {
        const spec_step_result *step[N_SEQS];
        OK(spec_step(s, step, seqs, N_SEQS));
        assert_true(step[first]->n_prompt_left < left[first]);
        for (int32_t i = first + 1; i < N_SEQS; i++) assert_int_equal(step[i]->n_prompt_left, left[i]);
        left[first] = step[first]->n_prompt_left;
        if (left[first] == 0) first++;
    }
    spec_session_close(s);
    spec_model_close(m);
}

/* --- prompts that are text --- */

/* The ids of a sequence are what `text` [n_text] is encoded to by `flags`, at `at`. Returns where they end. */
static size_t has_text(spec_session *s, int32_t seq, size_t at, const char *text, size_t n_text, uint32_t flags)
{
    const int32_t *ids;
    int32_t want[64];
    size_t n, n_want;
    spec_session_info info = SPEC_STRUCT_INIT(spec_session_info);
    OK(spec_session_get_info(s, &info));
    OK(spec_tokenizer_encode(spec_model_tokenizer(info.target), want, 64, &n_want, text, n_text, flags));
    OK(spec_sequence_ids(s, &ids, &n, seq));
    assert_int_equal(n, at + n_want);
    assert_memory_equal(ids + at, want, n_want * sizeof *want);
    return n;
}

static void check_text(void **state)
{
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    enum { ADD = SPEC_TOKEN_ADD_SPECIAL, PARSE = SPEC_TOKEN_PARSE_SPECIAL };
    static const char special[] = "<|endoftext|> the end";
    spec_session *s;
    spec_request r = SPEC_REQUEST_INIT;
    const int32_t *ids;
    int32_t seq, other;
    size_t n;
    (void)state;
    spec_model *m = support_model(backend, DEMO_TARGET, SPEC_DTYPE_AUTO);
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_seq = 2, p.n_ctx = 256;
    OK(spec_session_open(&s, m, NULL, &p));
    OK(spec_sequence_add_text(s, &seq, "Once upon a time", 16, NULL));
    n = has_text(s, seq, 0, "Once upon a time", 16, ADD);
    OK(spec_sequence_append_text(s, seq, " there was", 10, NULL));
    n = has_text(s, seq, n, " there was", 10, 0);
    OK(spec_sequence_append_text(s, seq, special, sizeof special - 1, NULL));
    n = has_text(s, seq, n, special, sizeof special - 1, 0);
    r.parse_special = 1;
    OK(spec_sequence_append_text(s, seq, special, sizeof special - 1, &r));
    n = has_text(s, seq, n, special, sizeof special - 1, PARSE);
    OK(spec_sequence_append_text(s, seq, special, sizeof special - 1, NULL)); /* as before */
    n = has_text(s, seq, n, special, sizeof special - 1, PARSE);
    OK(spec_sequence_append_text(s, seq, "", 0, NULL));
    FAILS(spec_sequence_append_text(s, seq, "\xff", 1, NULL), SPEC_E_INVALID, "UTF-8");
    FAILS(spec_sequence_append_text(s, 7, "a", 1, NULL), SPEC_E_INVALID, "no sequence 7");
    FAILS(spec_sequence_add_text(s, &other, "\xff", 1, NULL), SPEC_E_INVALID, "UTF-8");
    size_t n_after;
    OK(spec_sequence_ids(s, &ids, &n_after, seq));
    assert_int_equal(n_after, n);
    spec_session_close(s);
    spec_model_close(m);
}

int main(void)
{
    enum { N_REQUEST = sizeof requests / sizeof *requests, N_APPEND = sizeof appends / sizeof *appends, N_OTHER = 15 };
    struct CMUnitTest tests[N_REQUEST + N_APPEND + N_OTHER] = {
        cmocka_unit_test(check_together), cmocka_unit_test(check_what_is_told), cmocka_unit_test(check_refused),
        cmocka_unit_test(check_refused_by_mask), cmocka_unit_test(check_refused_later),
        cmocka_unit_test(check_end_ids),  cmocka_unit_test(check_stop_strings), cmocka_unit_test(check_parts),
        cmocka_unit_test(check_text), cmocka_unit_test(check_copies),
        cmocka_unit_test(check_limits), cmocka_unit_test(check_shared_parts), cmocka_unit_test(check_end_text),
        cmocka_unit_test(check_masks_end), cmocka_unit_test(check_enough),
    };
    backend = support_backend();
    for (size_t i = 0; i < N_REQUEST; i++)
        tests[N_OTHER + i] = (struct CMUnitTest){ requests[i].name, check_request, NULL, NULL, (void *)(uintptr_t)&requests[i] };
    for (size_t i = 0; i < N_APPEND; i++)
        tests[N_OTHER + N_REQUEST + i] =
            (struct CMUnitTest){ appends[i].family, check_append, NULL, NULL, (void *)(uintptr_t)&appends[i] };
    const int failed = _cmocka_run_group_tests("request", tests, N_REQUEST + N_APPEND + N_OTHER, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
