/* engine_generate.c - text for one prompt: steps until something stops it. Of sessions it uses the public calls alone. */
#include <limits.h>
#include <string.h>

#include "models/model.h"

enum { DEFAULT_PREDICT = 128 };

typedef struct generation {
    spec_session *s;
    const spec_model *target;
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

/* What spec_result_free has to find. */
enum { RESULT_LEAST = offsetof(spec_result, stop) };

static spec_status check_room(const spec_result *result)
{
    if (result->struct_size >= RESULT_LEAST) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "spec_result.struct_size is %zu: at least %d, so that its arrays can be freed", result->struct_size,
                      (int)RESULT_LEAST);
}

/* The sequence's text begins with the result's. */
static spec_status begin(generation *g, spec_session *s, spec_result *result, const spec_request *request)
{
    spec_session_info info = SPEC_STRUCT_INIT(spec_session_info);
    spec_result empty = { .n_ids = 0 };
    *g = (generation){ .s = s, .request = SPEC_REQUEST_INIT };
    SPEC_TRY(check_room(result));
    SPEC_TRY(speci_params_write(result, &empty, sizeof empty, "spec_result"));
    SPEC_TRY(spec_session_get_info(s, &info));
    const spec_allocator *a = info.target->allocator;
    g->target = info.target;
    g->text.a = g->ids.a = g->logprobs.a = empty.allocator_ = a;
    if (!(g->result = speci_alloc(a, 1, sizeof *g->result))) return SPEC_E_NOMEM;
    *g->result = empty;
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
    if (g->target->tokenizer && speci_buf_add(&g->text, &zero, 1) == SPEC_OK) {
        own->text = g->text.data, own->n_text = g->text.n - 1;
        g->text.data = NULL;
    } else if (g->target->tokenizer && status == SPEC_OK) {
        status = SPEC_E_NOMEM;
    }
    if (status == SPEC_E_ABORTED) own->stop = SPEC_STOP_ABORTED;
    own->ids = speci_buf_ids(&g->ids), own->n_ids = speci_buf_n_ids(&g->ids);
    own->logprobs = (spec_logprob *)(void *)g->logprobs.data;
    if (speci_params_write(result, own, sizeof *own, "spec_result") != SPEC_OK) { /* and nobody has it */
        speci_free(own->allocator_, own->text), speci_free(own->allocator_, own->ids), speci_free(own->allocator_, own->logprobs);
    }
    speci_buf_free(&g->text);
    speci_free(own->allocator_, own);
    return status;
}

/* A sequence of its own, which was admitted in so many milliseconds. */
static spec_status run(generation *g, int32_t seq, double prefill_ms)
{
    const int32_t *ids;
    size_t n = 0;
    g->result->prefill_ms = prefill_ms;
    spec_status status = spec_sequence_ids(g->s, &ids, &n, seq);
    g->result->n_prompt = (int32_t)n;
    if (status == SPEC_OK) status = loop(g, seq);
    spec_sequence_remove(g->s, seq);
    return status;
}

spec_status spec_generate_ids(spec_session *s, spec_result *result, const int32_t *ids, size_t n, const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(ids || n == 0, "ids");
    SPEC_NEED(result, "result");
    generation g;
    int32_t seq;
    spec_status status = begin(&g, s, result, request);
    const double start = speci_now_ms();
    if (status == SPEC_OK) status = spec_sequence_add(s, &seq, ids, n, &g.request);
    if (status == SPEC_OK) status = run(&g, seq, speci_now_ms() - start);
    return finish(&g, result, status);
}

spec_status spec_generate(spec_session *s, spec_result *result, const char *prompt, size_t n_prompt, const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(prompt || n_prompt == 0, "prompt");
    SPEC_NEED(result, "result");
    generation g;
    int32_t seq;
    spec_status status = begin(&g, s, result, request);
    const double start = speci_now_ms();
    if (status == SPEC_OK) status = spec_sequence_add_text(s, &seq, prompt, n_prompt, &g.request);
    if (status == SPEC_OK) status = run(&g, seq, speci_now_ms() - start);
    return finish(&g, result, status);
}

static spec_status run_more(generation *g, int32_t seq, const char *prompt, size_t n_prompt, const spec_request *request)
{
    const double start = speci_now_ms();
    const int32_t *ids;
    size_t before = 0, n = 0;
    SPEC_TRY(spec_sequence_ids(g->s, &ids, &before, seq));
    const spec_status status = spec_sequence_append_text(g->s, seq, prompt, n_prompt, request);
    g->result->prefill_ms = speci_now_ms() - start;
    if (spec_sequence_ids(g->s, &ids, &n, seq) == SPEC_OK) g->result->n_prompt = (int32_t)(n - before);
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
    if (status == SPEC_OK) status = run_more(&g, seq, prompt, n_prompt, request ? &g.request : NULL);
    return finish(&g, result, status);
}

void spec_result_free(spec_result *r)
{
    if (!r || r->struct_size < RESULT_LEAST || !r->allocator_) return;
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
