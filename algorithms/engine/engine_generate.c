/* engine_generate.c - text for one prompt: steps until something stops it. Of sessions it uses the public calls alone. */
#include <limits.h>
#include <string.h>

#include "models/model.h"

enum { DEFAULT_PREDICT = 128 };

typedef struct generation {
    spec_session *s;
    const spec_request *given; /* &request, or NULL: a living sequence goes on by its own */
    spec_request request;
    spec_result *result;
    speci_buf text, ids, logprobs;
} generation;

/* --- steps --- */

static void count(spec_result *result, const spec_step_result *r)
{
    if (r->n_tokens == 0) return; /* the prompt is being consumed */
    result->n_step++;
    result->n_drafted += r->n_drafted;
    result->n_accepted += r->n_accepted;
    result->n_emitted += r->n_tokens;
    result->n_speculated += r->n_drafted > 0;
    result->n_branched += r->branched;
    result->accepted[r->n_accepted]++;
}

static spec_status keep(generation *g, const spec_step_result *r)
{
    const size_t n = (size_t)r->n_tokens;
    if (n > 0) SPEC_TRY(speci_buf_add(&g->ids, r->tokens, n * sizeof *r->tokens));
    if (n > 0 && r->logprobs) SPEC_TRY(speci_buf_add(&g->logprobs, r->logprobs, n * sizeof *r->logprobs));
    return r->n_text > 0 ? speci_buf_add(&g->text, r->text, r->n_text) : SPEC_OK;
}

static spec_status deliver(const generation *g, const spec_step_result *r)
{
    if (!g->request.on_text || (r->n_text == 0 && r->n_tokens == 0)) return SPEC_OK;
    const char *text = r->n_text > 0 ? r->text : "";
    const int stop = g->request.on_text(g->request.text_user_data, text, r->n_text, r->tokens, (size_t)r->n_tokens);
    if (!stop || r->stop != SPEC_STOP_NONE) return SPEC_OK;
    return speci_fail(SPEC_E_ABORTED, "stopped by the text callback");
}

static spec_status step(generation *g, int32_t seq)
{
    const spec_step_result *r;
    SPEC_TRY(spec_step(g->s, &r, &seq, 1));
    count(g->result, r);
    SPEC_TRY(keep(g, r));
    g->result->stop = r->stop;
    return deliver(g, r);
}

static spec_status loop(generation *g, int32_t seq)
{
    const double start = speci_now_ms();
    spec_status status = SPEC_OK;
    while (status == SPEC_OK && g->result->stop == SPEC_STOP_NONE) status = step(g, seq);
    g->result->decode_ms = speci_now_ms() - start;
    return status;
}

/* --- begin and end --- */

/* The sequence's text begins with the result's. */
static spec_status begin(generation *g, spec_session *s, spec_result *result, const spec_request *request)
{
    const spec_allocator *a = spec_session_target(s)->allocator;
    const spec_result empty = { .allocator_ = a };
    *g = (generation){ .s = s, .request = SPEC_REQUEST_INIT, .result = speci_alloc(a, 1, sizeof *g->result) };
    g->text.a = g->ids.a = g->logprobs.a = a;
    if (!g->result) return SPEC_E_NOMEM;
    g->result->allocator_ = a;
    SPEC_TRY(speci_params_write(result, &empty, sizeof empty, "spec_result"));
    SPEC_TRY(speci_params_read(&g->request, sizeof g->request, request, "spec_request"));
    if (g->request.n_predict == 0) g->request.n_predict = DEFAULT_PREDICT;
    return SPEC_OK;
}

/* What was generated goes to the caller, whatever has become of it. */
static spec_status finish(generation *g, spec_result *result, spec_status status)
{
    spec_result *own = g->result;
    const char zero = 0;
    if (!own) return status;
    if (spec_session_target(g->s)->tokenizer && speci_buf_add(&g->text, &zero, 1) == SPEC_OK) {
        own->text = g->text.data, own->n_text = g->text.n - 1;
        g->text.data = NULL;
    } else if (spec_session_target(g->s)->tokenizer && status == SPEC_OK) {
        status = SPEC_E_NOMEM;
    }
    if (status == SPEC_E_ABORTED) own->stop = SPEC_STOP_ABORTED;
    own->ids = (int32_t *)(void *)g->ids.data, own->n_ids = g->ids.n / sizeof *own->ids;
    own->logprobs = (spec_logprob *)(void *)g->logprobs.data;
    if (speci_params_write(result, own, sizeof *own, "spec_result") != SPEC_OK) { /* and nobody has it */
        speci_free(own->allocator_, own->text), speci_free(own->allocator_, own->ids), speci_free(own->allocator_, own->logprobs);
    }
    speci_buf_free(&g->text);
    speci_free(own->allocator_, own);
    return status;
}

static spec_status run(generation *g, const int32_t *ids, size_t n)
{
    int32_t seq;
    const double start = speci_now_ms();
    g->result->n_prompt = n > INT32_MAX ? INT32_MAX : (int32_t)n;
    const spec_status added = spec_sequence_add(g->s, &seq, ids, n, &g->request);
    g->result->prefill_ms = speci_now_ms() - start;
    SPEC_TRY(added);
    const spec_status status = loop(g, seq);
    spec_sequence_remove(g->s, seq);
    return status;
}

spec_status spec_generate_ids(spec_session *s, spec_result *result, const int32_t *ids, size_t n, const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(ids || n == 0, "ids");
    SPEC_NEED(result, "result");
    generation g;
    spec_status status = begin(&g, s, result, request);
    if (status == SPEC_OK) status = run(&g, ids, n);
    return finish(&g, result, status);
}

/* --- prompts as text --- */

static spec_status encode(int32_t **ids, size_t *n, const spec_model *m, const char *text, size_t n_text, uint32_t flags)
{
    size_t cap = n_text + 8; /* enough but for normal forms that expand; then *n says what is needed */
    spec_status status = SPEC_E_FULL;
    *ids = NULL;
    for (int i = 0; i < 2 && status == SPEC_E_FULL; i++, cap = *n + 1) {
        speci_free(m->allocator, *ids);
        if (!(*ids = speci_alloc(m->allocator, cap, sizeof **ids))) return SPEC_E_NOMEM;
        status = spec_tokenizer_encode(m->tokenizer, *ids, cap, n, text, n_text, flags);
    }
    return status;
}

static uint32_t flags_of(const spec_request *p, bool first)
{
    return (first && !p->no_bos ? (uint32_t)SPEC_TOKEN_ADD_SPECIAL : 0u) | (p->parse_special ? (uint32_t)SPEC_TOKEN_PARSE_SPECIAL : 0u);
}

/* An empty prompt is BOS. */
static spec_status start_from_bos(const spec_model *m, int32_t *ids, size_t *n)
{
    const int32_t bos = spec_tokenizer_bos(m->tokenizer) >= 0 ? spec_tokenizer_bos(m->tokenizer) : m->bos;
    if (bos < 0) return speci_fail(SPEC_E_INVALID, "the prompt is empty and the model has no BOS to start from");
    ids[(*n)++] = bos;
    return SPEC_OK;
}

static void warn_of_two(const spec_model *m, const spec_request *p, const int32_t *ids, size_t n)
{
    const int32_t bos = spec_tokenizer_bos(m->tokenizer);
    if (p->parse_special && !p->no_bos && n > 1 && bos >= 0 && ids[0] == bos && ids[1] == bos)
        speci_log(m->backend, SPEC_LOG_WARN,
                  "the prompt begins with two BOS tokens (%d): one is written in it, one was added (no_bos adds none)", bos);
}

static spec_status need_tokenizer(const spec_model *m)
{
    return m->tokenizer ? SPEC_OK : speci_fail(SPEC_E_UNSUPPORTED, "%s has no tokenizer: give ids", m->path);
}

static spec_status run_text(generation *g, const char *prompt, size_t n_prompt)
{
    const spec_model *m = spec_session_target(g->s);
    int32_t *ids = NULL;
    size_t n = 0;
    SPEC_TRY(need_tokenizer(m));
    spec_status status = encode(&ids, &n, m, prompt, n_prompt, flags_of(&g->request, true));
    if (status == SPEC_OK && n == 0) status = start_from_bos(m, ids, &n);
    if (status == SPEC_OK) {
        warn_of_two(m, &g->request, ids, n);
        status = run(g, ids, n);
    }
    speci_free(m->allocator, ids);
    return status;
}

spec_status spec_generate(spec_session *s, spec_result *result, const char *prompt, size_t n_prompt, const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(prompt || n_prompt == 0, "prompt");
    SPEC_NEED(result, "result");
    generation g;
    spec_status status = begin(&g, s, result, request);
    if (status == SPEC_OK) status = run_text(&g, prompt, n_prompt);
    return finish(&g, result, status);
}

static spec_status go_on(const generation *g, int32_t seq)
{
    return g->given ? spec_sequence_set_request(g->s, seq, g->given) : SPEC_OK;
}

/* Text appended, which may be none. */
static spec_status append_text(generation *g, int32_t seq, const char *prompt, size_t n_prompt)
{
    const spec_model *m = spec_session_target(g->s);
    int32_t *ids = NULL;
    size_t n = 0;
    SPEC_TRY(need_tokenizer(m));
    spec_status status = encode(&ids, &n, m, prompt, n_prompt, flags_of(&g->request, false));
    if (status == SPEC_OK) {
        g->result->n_prompt = (int32_t)n;
        status = n > 0 ? spec_sequence_append(g->s, seq, ids, n, g->given) : go_on(g, seq);
    }
    speci_free(m->allocator, ids);
    return status;
}

static spec_status run_more(generation *g, int32_t seq, const char *prompt, size_t n_prompt)
{
    const double start = speci_now_ms();
    const spec_status status = n_prompt > 0 ? append_text(g, seq, prompt, n_prompt) : go_on(g, seq);
    g->result->prefill_ms = speci_now_ms() - start;
    SPEC_TRY(status);
    return loop(g, seq);
}

spec_status spec_generate_more(spec_session *s, spec_result *result, int32_t seq, const char *prompt, size_t n_prompt,
                               const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(prompt || n_prompt == 0, "prompt");
    SPEC_NEED(result, "result");
    generation g;
    spec_status status = begin(&g, s, result, request);
    g.given = request ? &g.request : NULL;
    if (status == SPEC_OK) status = run_more(&g, seq, prompt, n_prompt);
    return finish(&g, result, status);
}

void spec_result_free(spec_result *r)
{
    if (!r || !r->allocator_) return;
    const size_t size = r->struct_size;
    speci_free(r->allocator_, r->text);
    speci_free(r->allocator_, r->ids);
    speci_free(r->allocator_, r->logprobs);
    memset(r, 0, size < sizeof *r ? size : sizeof *r);
    r->struct_size = size;
}

const char *spec_stop_name(spec_stop stop)
{
    static const char *const names[] = { "none", "eos", "stop", "length", "context", "aborted" };
    return (unsigned)stop < sizeof names / sizeof *names ? names[stop] : "unknown";
}
