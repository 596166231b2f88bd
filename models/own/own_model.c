/* own_model.c - a model of an application's own: callbacks, and what they say of the vocabulary. */
#include <string.h>

#include "models/own/own.h"

static spec_status check_callbacks(const spec_model_ops *o)
{
    const struct {
        const char *name;
        bool is_there;
    } required[] = { { "begin", o->begin != NULL }, { "prefill", o->prefill != NULL }, { "score", o->score != NULL },
                     { "commit", o->commit != NULL }, { "end", o->end != NULL } };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!required[i].is_there)
            return speci_fail(SPEC_E_INVALID, "a model of one's own needs the callback %s", required[i].name);
    if (!o->save != !o->restore)
        return speci_fail(SPEC_E_INVALID, "a model has both of the callbacks save and restore, or none; this one has one");
    return SPEC_OK;
}

static spec_status check_numbers(const spec_model_ops *o)
{
    if (o->n_vocab < 1 || o->n_ctx < 0 || o->bos < -1 || o->bos >= o->n_vocab)
        return speci_fail(SPEC_E_INVALID, "n_vocab is %d (at least 1), n_ctx %d (0 = no limit), bos %d (-1 = none, or an id)",
                          o->n_vocab, o->n_ctx, o->bos);
    if (o->n_eos < 0 || (o->n_eos > 0 && !o->eos))
        return speci_fail(SPEC_E_INVALID, "a list of %d eos tokens%s", o->n_eos, o->eos ? "" : ", which is NULL");
    for (int32_t i = 0; i < o->n_eos; i++)
        if (o->eos[i] < 0 || o->eos[i] >= o->n_vocab)
            return speci_fail(SPEC_E_INVALID, "eos token %d is %d, not in the vocabulary of %d ids", i, o->eos[i], o->n_vocab);
    if (o->tokenizer && o->tokenizer_path) return speci_fail(SPEC_E_INVALID, "a tokenizer and the path of one; one of the two");
    return SPEC_OK;
}

static spec_status take_tokenizer(spec_model *m, const spec_model_ops *o)
{
    if (o->tokenizer_path) return speci_model_open_tokenizer(m, o->tokenizer_path);
    m->tokenizer = o->tokenizer;
    return m->tokenizer ? speci_model_fit_tokenizer(m, m->path) : SPEC_OK;
}

static spec_status fill(spec_model *m, const spec_model_ops *o)
{
    m->family = "own";
    m->dtype = SPEC_DTYPE_F32;
    m->n_vocab = o->n_vocab, m->n_ctx = o->n_ctx, m->bos = o->bos;
    m->fingerprint = o->save ? o->identity : 0;
    if (!(m->unknown_keys = speci_strdup(m->allocator, ""))) return SPEC_E_NOMEM;
    if (o->n_eos > 0) {
        if (!(m->eos = speci_alloc(m->allocator, (size_t)o->n_eos, sizeof *m->eos))) return SPEC_E_NOMEM;
        memcpy(m->eos, o->eos, (size_t)o->n_eos * sizeof *m->eos);
        m->n_eos = o->n_eos;
    }
    SPEC_TRY(take_tokenizer(m, o));
    spec_model_ops *copy = speci_alloc(m->allocator, 1, sizeof *copy);
    if (!copy) return SPEC_E_NOMEM;
    *copy = *o;
    m->own = copy; /* last: until here `close` is not owed */
    return SPEC_OK;
}

spec_status spec_model_from_ops(spec_model **out, spec_backend *backend, const spec_model_ops *ops)
{
    SPEC_NEED(out, "out");
    *out = NULL;
    SPEC_NEED(backend, "backend");
    SPEC_NEED(ops, "ops");
    spec_model_ops own = SPEC_MODEL_OPS_INIT;
    spec_model *m = NULL;
    SPEC_TRY(speci_params_read(&own, sizeof own, ops, "spec_model_ops"));
    SPEC_TRY(check_callbacks(&own));
    SPEC_TRY(check_numbers(&own));
    SPEC_TRY(speci_model_new(&m, backend, &speci_exec_own, own.name ? own.name : "own"));
    const spec_status status = fill(m, &own);
    if (status != SPEC_OK) {
        spec_model_close(m);
        return status;
    }
    *out = m;
    return SPEC_OK;
}

void speci_own_close_model(spec_model *m)
{
    if (m->own && m->own->close) m->own->close(m->own->user_data);
    speci_free(m->allocator, m->own);
}
