/* model_generation.c - see model_generation.h.
 *
 * The keys are those of GenerationConfig of transformers, and mean what they mean there, with one difference: a filter that the
 * file does not name is off, where transformers has a default of its own (top_k 50). */
#include "models/model_generation.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct model_generation {
    spec_request request;  /* its arrays are the two below */
    const char **stop;     /* strings of the file */
    spec_logit_bias *bias; /* ids that never come */
    json_t *file;          /* for its strings */
    char *unread;          /* keys, comma-separated */
    char *wrong;           /* NULL, or the sentence about what is wrong in the file: then the rest is not told */
};

/* --- keys that are done --- */

/* In a request 0 is off; a top_p of 0 in the file leaves the likeliest token alone, as every tiny one does. */
spec_status speci_generation_sampling(spec_request *r, model_config *c, bool *samples)
{
    double temperature, top_p, min_p, penalty;
    int32_t top_k;
    SPEC_TRY(speci_config_bool_or(c, samples, "do_sample", false));
    SPEC_TRY(speci_config_number_or(c, &temperature, "temperature", 1, 0, FLT_MAX));
    SPEC_TRY(speci_config_int_or(c, &top_k, "top_k", 0, 0, INT32_MAX));
    SPEC_TRY(speci_config_number_or(c, &top_p, "top_p", 1, 0, 1));
    SPEC_TRY(speci_config_number_or(c, &min_p, "min_p", 0, 0, 1));
    SPEC_TRY(speci_config_number_or(c, &penalty, "repetition_penalty", 1, FLT_MIN, FLT_MAX));
    r->repeat_penalty = penalty == 1 ? 0.0f : (float)penalty;
    if (!*samples) return SPEC_OK; /* greedy, whatever the others say */
    r->sampling = (spec_sampling){ .temperature = (float)temperature, .top_k = top_k, .min_p = (float)min_p,
                                   .top_p = top_p == 1 ? 0.0f : fmaxf((float)top_p, FLT_MIN) };
    return SPEC_OK;
}

static spec_status read_stops(model_generation *g, const spec_model *m, model_config *c)
{
    const json_t *v = speci_config_take(c, "stop_strings");
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!v) return SPEC_OK;
    g->stop = speci_alloc(m->allocator, n, sizeof *g->stop);
    if (!g->stop) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        const char *text = json_string_value(one);
        if (!text || !text[0] || strlen(text) != json_string_length(one))
            return speci_fail(SPEC_E_FORMAT, "%s: stop_strings has %s, expected strings that are not empty and have no zero byte",
                              c->file, speci_value_of(one).s);
        g->stop[i] = text;
    }
    g->request.stop = g->stop, g->request.n_stop = (int32_t)n;
    return SPEC_OK;
}

/* A token that never comes. One that the model has no row for never does anyway. */
static spec_status add_never(model_generation *g, const spec_model *m, const model_config *c, const char *key, const json_t *id)
{
    const json_int_t token = json_integer_value(id);
    if (!json_is_integer(id))
        return speci_fail(SPEC_E_FORMAT, "%s: %s has %s, expected ids", c->file, key, speci_value_of(id).s);
    if (token >= 0 && token < m->n_vocab)
        g->bias[g->request.n_bias++] = (spec_logit_bias){ .token = (int32_t)token, .bias = -INFINITY };
    return SPEC_OK;
}

static spec_status check_list(const model_config *c, const char *key, const json_t *v)
{
    if (!v || json_is_array(v)) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: %s is %s, expected a list", c->file, key, speci_value_of(v).s);
}

/* Words of one token are done; where one has more, none of them is. */
static spec_status check_words(const model_config *c, const json_t *words, bool *single)
{
    const json_t *word;
    size_t i;
    *single = true;
    SPEC_TRY(check_list(c, "bad_words_ids", words));
    json_array_foreach(words, i, word) {
        if (json_array_size(word) == 0)
            return speci_fail(SPEC_E_FORMAT, "%s: bad_words_ids has %s, expected lists of ids that are not empty", c->file,
                              json_is_array(word) ? "an empty list" : speci_value_of(word).s);
        *single = *single && json_array_size(word) == 1;
    }
    return SPEC_OK;
}

static bool is_eos(const spec_model *m, const json_t *id)
{
    for (int32_t i = 0; i < m->n_eos; i++)
        if (json_is_integer(id) && json_integer_value(id) == m->eos[i]) return true;
    return false;
}

/* *words: every bad word is done. transformers takes no notice of one that is an end token. */
static spec_status read_never(model_generation *g, const spec_model *m, model_config *c, bool *words)
{
    const json_t *tokens = speci_config_take(c, "suppress_tokens"), *bad = speci_config_take(c, "bad_words_ids"), *one;
    size_t i;
    SPEC_TRY(check_list(c, "suppress_tokens", tokens));
    SPEC_TRY(check_words(c, bad, words));
    g->bias = speci_alloc(m->allocator, json_array_size(tokens) + json_array_size(bad), sizeof *g->bias);
    if (!g->bias) return SPEC_E_NOMEM;
    json_array_foreach(tokens, i, one) SPEC_TRY(add_never(g, m, c, "suppress_tokens", one));
    for (i = 0; *words && i < json_array_size(bad); i++) {
        const json_t *id = json_array_get(json_array_get(bad, i), 0);
        if (!is_eos(m, id)) SPEC_TRY(add_never(g, m, c, "bad_words_ids", id));
    }
    if (g->request.n_bias > 0) g->request.bias = g->bias;
    return SPEC_OK;
}

/* --- keys that are not --- */

/* Those that change which tokens come, with the number that changes nothing (NAN: every number does). null, false and what is
 * empty change nothing either. */
static const struct {
    const char *key;
    double neutral;
    bool sampled; /* it filters what is sampled from: without do_sample it does nothing */
} others[] = {
    { "begin_suppress_tokens", NAN, false }, { "constraints", NAN, false }, { "dola_layers", NAN, false },
    { "encoder_no_repeat_ngram_size", 0, false }, { "encoder_repetition_penalty", 1, false }, { "epsilon_cutoff", 0, true },
    { "eta_cutoff", 0, true }, { "exponential_decay_length_penalty", NAN, false }, { "force_words_ids", NAN, false },
    { "forced_bos_token_id", NAN, false }, { "forced_eos_token_id", NAN, false }, { "guidance_scale", 1, false },
    { "min_length", 0, false }, { "min_new_tokens", 0, false }, { "no_repeat_ngram_size", 0, false }, { "num_beams", 1, false },
    { "penalty_alpha", 0, false }, { "sequence_bias", NAN, false }, { "token_healing", NAN, false }, { "top_h", 1, true },
    { "typical_p", 1, true }, { "watermarking_config", NAN, false },
};

static bool is_neutral(const json_t *v, double neutral)
{
    if (!v || json_is_null(v) || json_is_false(v)) return true;
    if (json_is_number(v)) return json_number_value(v) == neutral;
    if (json_is_array(v)) return json_array_size(v) == 0;
    if (json_is_object(v)) return json_object_size(v) == 0;
    return json_is_string(v) && json_string_length(v) == 0;
}

static spec_status add_key(speci_buf *b, const char *key)
{
    if (b->n > 0) SPEC_TRY(speci_buf_add(b, ", ", 2));
    return speci_buf_add(b, key, strlen(key));
}

static spec_status list_unread(speci_buf *b, const model_config *c, bool samples, bool words)
{
    if (!words) SPEC_TRY(add_key(b, "bad_words_ids"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if ((samples || !others[i].sampled) && !is_neutral(json_object_get(c->root, others[i].key), others[i].neutral))
            SPEC_TRY(add_key(b, others[i].key));
    return speci_buf_add(b, "", 1);
}

/* --- the file --- */

static spec_status read(model_generation *g, const spec_model *m, model_config *c)
{
    bool samples = false, words = true;
    speci_buf unread = { .a = m->allocator };
    SPEC_TRY(speci_generation_sampling(&g->request, c, &samples));
    SPEC_TRY(speci_config_int_or(c, &g->request.n_predict, "max_new_tokens", 0, 1, INT32_MAX));
    SPEC_TRY(read_stops(g, m, c));
    SPEC_TRY(read_never(g, m, c, &words));
    const spec_status status = list_unread(&unread, c, samples, words);
    g->unread = unread.data;
    return status;
}

spec_status speci_generation_read(model_generation **out, const spec_model *m, model_config *file)
{
    model_generation *g = speci_alloc(m->allocator, 1, sizeof *g);
    if (!(*out = g)) return SPEC_E_NOMEM;
    g->file = json_incref(file->root);
    const spec_status status = read(g, m, file);
    if (status == SPEC_OK || status == SPEC_E_NOMEM) return status;
    g->wrong = speci_strdup(m->allocator, spec_last_error());
    return g->wrong ? SPEC_OK : SPEC_E_NOMEM;
}

void speci_generation_close(model_generation *g, const spec_allocator *a)
{
    if (!g) return;
    json_decref(g->file);
    void *parts[] = { (void *)g->stop, g->bias, g->unread, g->wrong, g };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) speci_free(a, parts[i]);
}

spec_status spec_request_from_model(spec_request *out, const spec_model *model, const char **unread)
{
    SPEC_NEED(out, "out");
    SPEC_NEED(model, "model");
    const model_generation *g = model->generation;
    const spec_request none = { 0 };
    if (unread) *unread = g && g->unread ? g->unread : "";
    if (g && g->wrong) return speci_fail(SPEC_E_FORMAT, "%s", g->wrong);
    return speci_params_write(out, g ? &g->request : &none, sizeof none, "spec_request");
}
