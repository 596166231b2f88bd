/* engine_generate.c - text for one prompt: steps until something stops it. Of sessions it uses the public calls alone. */
#include "algorithms/engine/engine_stop.h"
#include "models/model.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_PREDICT = 128, MAX_TOP = 20 };

typedef struct generation {
    spec_session *s;
    const spec_generate_params *p;
    const spec_tokenizer *tokenizer; /* NULL: ids only */
    speci_stops stops;
    int32_t *stop_ids; /* [stops.n] the special token that a stop string is, -1 if it is none */
    spec_text_stream stream;
    speci_buf text, ids, logprobs, piece;
    size_t n_text_sent, n_ids_sent;
    int32_t n_predict;
    spec_stop stop;
} generation;

static size_t n_ids(const generation *g) { return g->ids.n / sizeof(int32_t); }

/* --- out --- */

/* Text that no later token can change or take back. */
static size_t n_final(const generation *g)
{
    return g->stop != SPEC_STOP_NONE ? g->text.n : g->text.n - speci_stop_held(&g->stops, g->text.data, g->text.n);
}

static spec_status deliver(generation *g)
{
    if (!g->p->on_text) return SPEC_OK;
    const size_t end = n_final(g), n_text = end > g->n_text_sent ? end - g->n_text_sent : 0;
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    if (n_text == 0 && n_ids(g) == g->n_ids_sent) return SPEC_OK;
    const char *text = n_text > 0 ? g->text.data + g->n_text_sent : "";
    const int stop = g->p->on_text(g->p->user_data, text, n_text, ids + g->n_ids_sent, n_ids(g) - g->n_ids_sent);
    g->n_text_sent += n_text;
    g->n_ids_sent = n_ids(g);
    if (!stop || g->stop != SPEC_STOP_NONE) return SPEC_OK;
    g->stop = SPEC_STOP_ABORTED;
    return speci_fail(SPEC_E_ABORTED, "stopped by the text callback");
}

/* Cuts the text before a stop string that ends in what was just added. */
static void match_stops(generation *g, size_t n_old)
{
    size_t at;
    if (!speci_stop_find(&g->stops, g->text.data, g->text.n, n_old, &at)) return;
    g->text.n = at;
    g->stop = SPEC_STOP_STRING;
}

/* What the stream held back; it, too, may complete a stop string. */
static spec_status end_text(generation *g)
{
    if (!g->tokenizer || g->stop == SPEC_STOP_STRING) return SPEC_OK;
    size_t n = 0;
    const size_t n_old = g->text.n;
    SPEC_TRY(spec_text_stream_end(&g->stream, g->piece.data, g->piece.cap, &n));
    SPEC_TRY(speci_buf_add(&g->text, g->piece.data, n));
    match_stops(g, n_old);
    return SPEC_OK;
}

static bool is_stop_id(const generation *g, int32_t id)
{
    for (int32_t i = 0; i < g->stops.n; i++)
        if (g->stop_ids[i] == id) return true;
    return false;
}

static spec_status add_token(generation *g, int32_t id, bool eos)
{
    SPEC_TRY(speci_buf_add(&g->ids, &id, sizeof id));
    if (!g->tokenizer || eos) return SPEC_OK;
    if (is_stop_id(g, id)) {
        SPEC_TRY(end_text(g));
        g->stop = SPEC_STOP_STRING;
        return SPEC_OK;
    }
    size_t n = 0;
    const size_t n_old = g->text.n;
    SPEC_TRY(spec_text_stream_push(&g->stream, g->piece.data, g->piece.cap, &n, g->tokenizer, id,
                                   g->p->keep_special ? 0 : SPEC_TOKEN_SKIP_SPECIAL));
    SPEC_TRY(speci_buf_add(&g->text, g->piece.data, n));
    match_stops(g, n_old);
    return SPEC_OK;
}

/* --- the loop --- */

static spec_status step(generation *g, int32_t seq, spec_result *result)
{
    spec_step_result r;
    SPEC_TRY(spec_step(g->s, &r, &seq, 1));
    result->n_step++;
    result->n_drafted += r.n_drafted;
    result->n_accepted += r.n_accepted;
    result->n_emitted += r.n_tokens;
    result->n_speculated += r.n_drafted > 0;
    result->n_branched += r.branched;
    result->accepted[r.n_accepted]++;
    for (int32_t i = 0; i < r.n_tokens && g->stop == SPEC_STOP_NONE; i++) {
        const bool eos = r.stop == SPEC_STOP_EOS && i == r.n_tokens - 1;
        SPEC_TRY(add_token(g, r.tokens[i], eos));
        if (r.logprobs) SPEC_TRY(speci_buf_add(&g->logprobs, &r.logprobs[i], sizeof *r.logprobs));
    }
    if (g->stop == SPEC_STOP_NONE) g->stop = r.stop;
    return SPEC_OK;
}

static spec_status loop(generation *g, int32_t seq, spec_result *result)
{
    const double start = speci_now_ms();
    spec_status status = SPEC_OK;
    while (status == SPEC_OK && g->stop == SPEC_STOP_NONE) {
        status = step(g, seq, result);
        if (status == SPEC_OK && g->stop == SPEC_STOP_NONE) status = deliver(g);
    }
    if (status == SPEC_E_ABORTED) g->stop = SPEC_STOP_ABORTED;
    result->decode_ms = speci_now_ms() - start;
    if (status != SPEC_OK) return status;
    SPEC_TRY(end_text(g));
    return deliver(g);
}

/* --- begin and end --- */

static spec_status check_params(const generation *g)
{
    const spec_generate_params *p = g->p;
    if (p->n_predict < 0 || p->n_logprobs > MAX_TOP || p->n_stop < 0)
        return speci_fail(SPEC_E_INVALID, "n_predict %d, n_logprobs %d (at most %d), n_stop %d", p->n_predict,
                          p->n_logprobs, MAX_TOP, p->n_stop);
    if (p->n_stop > 0 && !g->tokenizer)
        return speci_fail(SPEC_E_UNSUPPORTED, "stop strings need a tokenizer, and the model has none");
    return SPEC_OK;
}

/* Special tokens are not in the text, where stop strings are looked for: one that is a special token is known by its id.
 * What is not UTF-8 is refused, as a prompt is: it could match inside a character only. */
static spec_status find_stop_ids(generation *g)
{
    if (g->stops.n == 0) return SPEC_OK;
    g->stop_ids = speci_alloc(g->text.a, (size_t)g->stops.n, sizeof *g->stop_ids);
    if (!g->stop_ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < g->stops.n; i++) {
        const char *stop = g->stops.strings[i];
        int32_t id = -1;
        size_t n = 0;
        const spec_status status =
            spec_tokenizer_encode(g->tokenizer, &id, 1, &n, stop, strlen(stop), SPEC_TOKEN_PARSE_SPECIAL);
        if (status != SPEC_OK && status != SPEC_E_FULL) return status;
        g->stop_ids[i] = n == 1 && spec_tokenizer_is_special(g->tokenizer, id) ? id : -1;
    }
    return SPEC_OK;
}

static bool all_special(const spec_tokenizer *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!spec_tokenizer_is_special(t, ids[i])) return false;
    return true;
}

static spec_status run(generation *g, const int32_t *ids, size_t n, spec_result *result)
{
    SPEC_TRY(check_params(g));
    SPEC_TRY(find_stop_ids(g));
    int32_t seq;
    const double start = speci_now_ms();
    SPEC_TRY(speci_buf_reserve(&g->text, 1)); /* never NULL */
    if (g->tokenizer) SPEC_TRY(speci_buf_reserve(&g->piece, spec_tokenizer_piece_max(g->tokenizer) + 32));
    const spec_status added = spec_sequence_add(g->s, &seq, ids, n, &g->p->sampling);
    result->prefill_ms = speci_now_ms() - start;
    if (added != SPEC_OK) {
        if (added == SPEC_E_ABORTED) g->stop = SPEC_STOP_ABORTED;
        return added;
    }
    /* The text goes on from the prompt's, unless there is none yet. */
    if (g->tokenizer && !all_special(g->tokenizer, ids, n)) g->stream.n_tokens = (int32_t)n;
    const spec_sequence_options options = { .struct_size = sizeof options, .n_predict = g->n_predict,
                                            .ignore_eos = g->p->ignore_eos, .logprobs = g->p->n_logprobs >= 0,
                                            .n_top = g->p->n_logprobs > 0 ? g->p->n_logprobs : 0 };
    spec_status status = spec_sequence_set_options(g->s, seq, &options);
    if (status == SPEC_OK) status = loop(g, seq, result);
    spec_sequence_remove(g->s, seq);
    return status;
}

static spec_status finish(generation *g, spec_result *result, spec_status status)
{
    const char zero = 0;
    if (g->tokenizer && speci_buf_add(&g->text, &zero, 1) == SPEC_OK) {
        result->text = g->text.data;
        result->n_text = g->text.n - 1;
        g->text.data = NULL;
    } else if (g->tokenizer && status == SPEC_OK) {
        status = SPEC_E_NOMEM;
    }
    result->ids = (int32_t *)(void *)g->ids.data;
    result->n_ids = n_ids(g);
    result->logprobs = (spec_logprob *)(void *)g->logprobs.data;
    result->stop = g->stop;
    speci_buf_free(&g->piece);
    if (g->text.data) speci_buf_free(&g->text);
    return status;
}

spec_status spec_generate_ids(spec_session *s, spec_result *result, const int32_t *ids, size_t n,
                              const spec_generate_params *params)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(ids || n == 0, "ids");
    SPEC_NEED(result, "result");
    spec_generate_params p = SPEC_GENERATE_PARAMS_INIT;
    *result = (spec_result){ .allocator_ = spec_session_target(s)->allocator, .n_prompt = n > INT32_MAX ? INT32_MAX : (int32_t)n };
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_generate_params"));
    const spec_allocator *a = spec_session_target(s)->allocator;
    generation *g = speci_alloc(a, 1, sizeof *g);
    if (!g) return SPEC_E_NOMEM;
    g->s = s;
    g->p = &p;
    g->tokenizer = spec_session_target(s)->tokenizer;
    g->stops = (speci_stops){ g->p->stop, g->p->n_stop };
    g->n_predict = g->p->n_predict ? g->p->n_predict : DEFAULT_PREDICT;
    g->text.a = g->ids.a = g->logprobs.a = g->piece.a = a;
    const spec_status status = finish(g, result, run(g, ids, n, result));
    speci_free(a, g->stop_ids);
    speci_free(a, g);
    return status;
}

/* The prompt's ids; an empty prompt is BOS. */
static spec_status encode(const spec_session *s, const char *prompt, size_t n_prompt,
                          const spec_generate_params *params, int32_t **out, size_t *n)
{
    spec_generate_params p = SPEC_GENERATE_PARAMS_INIT;
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_generate_params"));
    const spec_tokenizer *t = spec_session_target(s)->tokenizer;
    if (!t) return speci_fail(SPEC_E_UNSUPPORTED, "%s has no tokenizer: give ids", spec_session_target(s)->path);
    const uint32_t flags = (p.no_bos ? 0u : (uint32_t)SPEC_TOKEN_ADD_SPECIAL) |
                           (p.parse_special ? (uint32_t)SPEC_TOKEN_PARSE_SPECIAL : 0u);
    size_t cap = n_prompt + 8; /* enough but for normal forms that expand; then *n says what is needed */
    int32_t *ids = speci_alloc(spec_session_target(s)->allocator, cap, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    spec_status status = spec_tokenizer_encode(t, ids, cap, n, prompt, n_prompt, flags);
    if (status == SPEC_E_FULL) {
        speci_free(spec_session_target(s)->allocator, ids);
        cap = *n + 1;
        if (!(ids = speci_alloc(spec_session_target(s)->allocator, cap, sizeof *ids))) return SPEC_E_NOMEM;
        status = spec_tokenizer_encode(t, ids, cap, n, prompt, n_prompt, flags);
    }
    if (status == SPEC_OK && *n == 0) {
        const int32_t bos = spec_tokenizer_bos(t) >= 0 ? spec_tokenizer_bos(t) : spec_session_target(s)->bos;
        if (bos >= 0) ids[(*n)++] = bos;
        else status = speci_fail(SPEC_E_INVALID, "the prompt is empty and the model has no BOS to start from");
    }
    if (status != SPEC_OK) {
        speci_free(spec_session_target(s)->allocator, ids);
        return status;
    }
    const int32_t bos = spec_tokenizer_bos(t);
    if (p.parse_special && !p.no_bos && *n > 1 && bos >= 0 && ids[0] == bos && ids[1] == bos)
        speci_log(spec_session_target(s)->backend, SPEC_LOG_WARN,
                  "the prompt begins with two BOS tokens (%d): one is written in it, one was added (no_bos adds none)", bos);
    *out = ids;
    return SPEC_OK;
}

spec_status spec_generate(spec_session *s, spec_result *result, const char *prompt, size_t n_prompt,
                          const spec_generate_params *params)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(prompt || n_prompt == 0, "prompt");
    SPEC_NEED(result, "result");
    int32_t *ids = NULL;
    size_t n = 0;
    *result = (spec_result){ .allocator_ = spec_session_target(s)->allocator };
    SPEC_TRY(encode(s, prompt, n_prompt, params, &ids, &n));
    const spec_status status = spec_generate_ids(s, result, ids, n, params);
    speci_free(spec_session_target(s)->allocator, ids);
    return status;
}

void spec_result_free(spec_result *r)
{
    if (!r || !r->allocator_) return;
    speci_free(r->allocator_, r->text);
    speci_free(r->allocator_, r->ids);
    speci_free(r->allocator_, r->logprobs);
    *r = (spec_result){ 0 };
}

const char *spec_stop_name(spec_stop stop)
{
    static const char *const names[] = { "none", "eos", "stop", "length", "context", "aborted" };
    return (unsigned)stop < sizeof names / sizeof *names ? names[stop] : "unknown";
}
