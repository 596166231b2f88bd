/* engine_sequence.c - sequences coming, going on with another prompt, and going. */
#include "algorithms/engine/engine.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

spec_status speci_session_free_seq(const spec_session *s, int32_t *out)
{
    for (*out = 0; *out < s->n_seq; (*out)++)
        if (!s->seqs[*out].live) return SPEC_OK;
    return speci_fail(SPEC_E_BUSY, "all %d sequences of the session are in use", s->n_seq);
}

/* ids [n] behind n_ids others. */
static spec_status check_prompt(const spec_session *s, const int32_t *ids, size_t n, int32_t n_ids)
{
    const size_t most = (size_t)(s->n_ctx ? s->n_ctx : INT32_MAX);
    if (n < 1) return speci_fail(SPEC_E_INVALID, "a prompt needs at least one token");
    char behind[32] = "";
    if (n_ids > 0) snprintf(behind, sizeof behind, " behind %d others", n_ids);
    if (n >= most - (size_t)n_ids)
        return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens%s does not fit a context of %zu with room for one more", n, behind, most);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->target->n_vocab)
            return speci_fail(SPEC_E_INVALID, "prompt token %zu is %d, not in the vocabulary of %d ids", i, ids[i],
                              s->target->n_vocab);
    return SPEC_OK;
}

/* Now, or by the steps that follow. */
static spec_status consume_prompt(spec_session *s, int32_t seq)
{
    s->seqs[seq].consuming = true;
    return s->n_prompt_step > 0 ? SPEC_OK : speci_sequence_consume(s, seq, 0, NULL);
}

/* --- requests --- */

/* How many ids it may reach. */
static void set_limit(const spec_session *s, engine_seq *q)
{
    const int32_t n = q->request.p.n_predict;
    q->n_end = n > 0 && n < INT32_MAX - q->n_ids ? q->n_ids + n : INT32_MAX;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    if (q->n_end < q->n_limit) q->n_limit = q->n_end;
}

/* All of it, or nothing has changed. */
spec_status speci_sequence_take_request(spec_session *s, engine_seq *q, const spec_request *given)
{
    engine_request request;
    engine_adjust *adjust = NULL;
    spec_request all = SPEC_REQUEST_INIT;
    SPEC_TRY(speci_params_read(&all, sizeof all, given, "spec_request"));
    SPEC_TRY(speci_request_open(&request, s->target, &all));
    spec_status status = speci_adjust_open(&adjust, s, &all);
    if (status == SPEC_OK) status = speci_text_room(&q->text, &request, s->n_node + 1);
    if (status != SPEC_OK) {
        speci_adjust_close(s, adjust);
        speci_request_close(&request, s->a);
        return status;
    }
    speci_request_close(&q->request, s->a);
    speci_adjust_close(s, q->adjust);
    q->request = request;
    q->adjust = adjust;
    return SPEC_OK;
}

spec_status spec_sequence_set_request(spec_session *s, int32_t seq, const spec_request *request)
{
    ENGINE_ENTER(s);
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_sequence_take_request(s, q, request));
    speci_sequence_forget(s, seq); /* what runs ahead was drawn by the request before */
    set_limit(s, q);
    return SPEC_OK;
}

/* --- coming and going --- */

void speci_sequence_end(spec_session *s, int32_t seq)
{
    engine_seq *q = &s->seqs[seq];
    speci_sequence_end_drafters(s, seq);
    for (int32_t i = 0; i < 2 && s->plain; i++) s->plain[2 * seq + i].n_part = 0; /* what runs ahead has no one to go to */
    s->exec->kind->end(s->exec, seq);
    speci_free(s->a, q->ids);
    speci_request_close(&q->request, s->a);
    speci_adjust_close(s, q->adjust);
    speci_text_close(&q->text);
    const engine_seq kept = { .proposal.tree = q->proposal.tree, .proposal.maker = q->proposal.maker, .part = -1 };
    *q = kept;
    q->proposal.tree.n = 0;
}

static spec_status begin(spec_session *s, int32_t seq, const int32_t *ids, size_t n, const spec_request *request)
{
    engine_seq *q = &s->seqs[seq];
    speci_text_begin(&q->text, s->target, ids, n);
    SPEC_TRY(speci_sequence_take_request(s, q, request));
    SPEC_TRY(speci_sequence_take_ids(s, q, ids, n));
    q->n_prompt = q->n_ids;
    set_limit(s, q);
    s->exec->kind->begin(s->exec, seq);
    return consume_prompt(s, seq);
}

spec_status spec_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n, const spec_request *request)
{
    ENGINE_ENTER(s);
    SPEC_NEED(seq, "seq");
    SPEC_NEED(ids || n == 0, "ids");
    return speci_sequence_add(s, seq, ids, n, request);
}

/* Is no sequence but i there? */
static bool is_alone(const spec_session *s, int32_t i)
{
    for (int32_t k = 0; k < s->n_seq; k++)
        if (k != i && s->seqs[k].live) return false;
    return true;
}

spec_status speci_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n, const spec_request *request)
{
    int32_t i;
    SPEC_TRY(check_prompt(s, ids, n, 0));
    SPEC_TRY(speci_session_free_seq(s, &i));
    const spec_status status = begin(s, i, ids, n, request);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    if (is_alone(s, i)) speci_choice_begin(&s->choice);
    s->seqs[i].live = true;
    *seq = i;
    return SPEC_OK;
}

spec_status spec_sequence_append(spec_session *s, int32_t seq, const int32_t *ids, size_t n, const spec_request *request)
{
    ENGINE_ENTER(s);
    SPEC_NEED(ids || n == 0, "ids");
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(check_prompt(s, ids, n, q->n_ids));
    SPEC_TRY(speci_sequence_room(s, q, n));
    speci_sequence_forget(s, seq);
    /* A path that is pending is applied as decoded tokens are, in front of the prompt: what prefill applies must not depend on how many
     * drafts were accepted. And an engine of the application's that refuses it does so before anything has changed. */
    SPEC_TRY(s->exec->kind->flush(s->exec, seq));
    if (request) SPEC_TRY(speci_sequence_take_request(s, q, request));
    speci_watch_forget(s, seq);
    SPEC_TRY(speci_sequence_take_ids(s, q, ids, n));
    q->n_prompt = q->n_ids;
    speci_adjust_recount(q->adjust);
    speci_text_goes_on(&q->text, (size_t)q->n_ids);
    set_limit(s, q);
    return consume_prompt(s, seq);
}

spec_status spec_sequence_remove(spec_session *s, int32_t seq)
{
    ENGINE_ENTER(s);
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    speci_sequence_end(s, seq);
    return SPEC_OK;
}

spec_status spec_sequence_ids(const spec_session *s, const int32_t **ids, size_t *n, int32_t seq)
{
    ENGINE_ENTER(s);
    SPEC_NEED(ids, "ids");
    SPEC_NEED(n, "n");
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *ids = q->ids;
    *n = (size_t)q->n_ids;
    return SPEC_OK;
}
