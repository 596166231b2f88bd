/* engine_prompt_text.c - prompts that are text: their ids, by the target's tokenizer. Of sessions it uses the public calls, but for
 * the request that a living sequence has. */
#include "algorithms/engine/engine.h"

static spec_status encode(int32_t **ids, size_t *n, const spec_model *m, const char *text, size_t n_text, uint32_t flags)
{
    size_t cap = n_text + 8; /* enough but for normal forms that expand; then *n says what is needed */
    spec_status status = SPEC_E_FULL;
    *ids = NULL;
    if (!m->tokenizer) return speci_fail(SPEC_E_UNSUPPORTED, "%s has no tokenizer: give ids", m->path);
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

static int32_t bos_of(const spec_model *m)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    return spec_tokenizer_get_info(m->tokenizer, &info) == SPEC_OK ? info.bos : -1;
}

/* An empty prompt is BOS. */
static spec_status start_from_bos(const spec_model *m, int32_t *ids, size_t *n)
{
    const int32_t bos = bos_of(m) >= 0 ? bos_of(m) : m->bos;
    if (bos < 0) return speci_fail(SPEC_E_INVALID, "the prompt is empty and the model has no BOS to start from");
    ids[(*n)++] = bos;
    return SPEC_OK;
}

static void warn_of_two(const spec_model *m, const spec_request *p, const int32_t *ids, size_t n)
{
    const int32_t bos = bos_of(m);
    if (p->parse_special && !p->no_bos && n > 1 && bos >= 0 && ids[0] == bos && ids[1] == bos)
        speci_log(m->backend, SPEC_LOG_WARN,
                  "the prompt begins with two BOS tokens (%d): one is written in it, one was added (no_bos adds none)", bos);
}

spec_status spec_sequence_add_text(spec_session *s, int32_t *seq, const char *text, size_t n_text, const spec_request *request)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(seq, "seq");
    SPEC_NEED(text || n_text == 0, "text");
    const spec_model *m = s->target;
    spec_request own = SPEC_REQUEST_INIT;
    int32_t *ids = NULL;
    size_t n = 0;
    SPEC_TRY(speci_params_read(&own, sizeof own, request, "spec_request"));
    spec_status status = encode(&ids, &n, m, text, n_text, flags_of(&own, true));
    if (status == SPEC_OK && n == 0) status = start_from_bos(m, ids, &n);
    if (status == SPEC_OK) {
        warn_of_two(m, &own, ids, n);
        status = spec_sequence_add(s, seq, ids, n, request);
    }
    speci_free(m->allocator, ids);
    return status;
}

/* Is special text in the prompt recognised? By the request given, or else by the one that the sequence has. */
static spec_status flags_to_append(spec_session *s, int32_t seq, const spec_request *request, uint32_t *flags)
{
    spec_request own = SPEC_REQUEST_INIT;
    engine_seq *q = NULL;
    ENGINE_ENTER(s);
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_params_read(&own, sizeof own, request, "spec_request"));
    *flags = flags_of(request ? &own : &q->request.p, false);
    return SPEC_OK;
}

spec_status spec_sequence_append_text(spec_session *s, int32_t seq, const char *text, size_t n_text, const spec_request *request)
{
    SPEC_NEED(text || n_text == 0, "text");
    int32_t *ids = NULL;
    size_t n = 0;
    uint32_t flags = 0;
    SPEC_TRY(flags_to_append(s, seq, request, &flags));
    const spec_model *m = s->target;
    spec_status status = n_text > 0 ? encode(&ids, &n, m, text, n_text, flags) : SPEC_OK;
    if (status == SPEC_OK && n > 0) status = spec_sequence_append(s, seq, ids, n, request);
    if (status == SPEC_OK && n == 0 && request) status = spec_sequence_set_request(s, seq, request);
    speci_free(m->allocator, ids);
    return status;
}
