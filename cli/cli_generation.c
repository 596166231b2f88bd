/* cli_generation.c - what a model's generation_config.json says, as the library reads it, for people and as JSON. */
#define _GNU_SOURCE /* asprintf */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* The number as the file has it: 0.8, not the float beside it. */
static void set_number(json_t *o, const char *key, float x)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%.7g", (double)x);
    if (x != 0) json_object_set_new(o, key, json_real(strtod(digits, NULL)));
}

static void set_count(json_t *o, const char *key, int32_t n)
{
    if (n != 0) json_object_set_new(o, key, json_integer(n));
}

static void set_lists(json_t *o, const spec_request *r)
{
    json_t *stop = json_array(), *never = json_array();
    for (int32_t i = 0; i < r->n_stop; i++) json_array_append_new(stop, cli_json_text(r->stop[i]));
    for (int32_t i = 0; i < r->n_bias; i++) json_array_append_new(never, json_integer(r->bias[i].token));
    if (r->n_stop > 0) json_object_set(o, "stop_strings", stop);
    if (r->n_bias > 0) json_object_set(o, "suppress_tokens", never);
    json_decref(stop);
    json_decref(never);
}

json_t *cli_generation_config(const spec_model *model)
{
    json_t *o = json_object();
    spec_request r = SPEC_REQUEST_INIT;
    const char *unread = "";
    if (spec_request_from_model(&r, model, &unread) != SPEC_OK) {
        json_object_set_new(o, "error", cli_json_text(spec_last_error()));
        return o;
    }
    set_number(o, "temperature", r.sampling.temperature);
    set_count(o, "top_k", r.sampling.top_k);
    set_number(o, "top_p", r.sampling.top_p);
    set_number(o, "min_p", r.sampling.min_p);
    set_number(o, "repetition_penalty", r.repeat_penalty);
    set_count(o, "max_new_tokens", r.n_predict);
    set_lists(o, &r);
    if (unread[0] != 0) json_object_set_new(o, "unread", cli_json_text(unread));
    return o;
}

char *cli_generation_text(const spec_model *model)
{
    json_t *said = cli_generation_config(model), *value;
    const char *key;
    char *text = strdup("");
    json_object_foreach(said, key, value) {
        char *one = cli_json_dump(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7)), *more = NULL;
        const char *comma = text != NULL && text[0] != 0 ? ", " : "";
        if (one == NULL || text == NULL || asprintf(&more, "%s%s%s %s", text, comma, key, one) < 0) more = NULL;
        free(one);
        free(text);
        text = more;
    }
    json_decref(said);
    return text;
}
