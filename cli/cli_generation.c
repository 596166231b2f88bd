/* cli_generation.c - what a model's generation_config.json says about sampling. Other programs take it as their defaults; here
 * the options alone decide, so what the file says is told. */
#define _GNU_SOURCE /* asprintf */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Keys of transformers' GenerationConfig that change which tokens come, with the value that changes nothing (as JSON). */
static const struct {
    const char *key, *neutral;
} keys[] = {
    { "do_sample", "false" },
    { "temperature", "1.0" },
    { "top_k", "0" },
    { "top_p", "1.0" },
    { "min_p", "0.0" },
    { "typical_p", "1.0" },
    { "epsilon_cutoff", "0.0" },
    { "eta_cutoff", "0.0" },
    { "num_beams", "1" },
    { "penalty_alpha", "0.0" },
    { "guidance_scale", "1.0" },
    { "repetition_penalty", "1.0" },
    { "encoder_repetition_penalty", "1.0" },
    { "no_repeat_ngram_size", "0" },
    { "bad_words_ids", "[]" },
    { "force_words_ids", "[]" },
    { "forced_bos_token_id", "null" },
    { "forced_eos_token_id", "null" },
    { "suppress_tokens", "[]" },
    { "begin_suppress_tokens", "[]" },
    { "sequence_bias", "{}" },
    { "exponential_decay_length_penalty", "null" },
    { "min_length", "0" },
    { "min_new_tokens", "0" },
    { "stop_strings", "[]" },
};

static bool is_neutral(const json_t *value, const char *neutral)
{
    if (json_is_null(value)) return true;
    json_t *other = json_loads(neutral, JSON_DECODE_ANY, NULL);
    const bool same = json_is_number(value) && json_is_number(other) ? json_number_value(value) == json_number_value(other)
                                                                     : json_equal(value, other) != 0;
    json_decref(other);
    return same;
}

json_t *cli_generation_config(const char *model)
{
    json_t *said = json_object();
    char *path = NULL;
    if (asprintf(&path, "%s/generation_config.json", model) < 0) return said;
    json_t *file = json_load_file(path, 0, NULL); /* a wrong file is the library's to name, where it reads it */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(file, keys[i].key);
        if (value != NULL && !is_neutral(value, keys[i].neutral)) json_object_set(said, keys[i].key, value);
    }
    json_decref(file);
    free(path);
    return said;
}

char *cli_generation_text(const char *model)
{
    json_t *said = cli_generation_config(model), *value;
    const char *key;
    char *text = strdup("");
    json_object_foreach(said, key, value) {
        char *one = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6)), *more = NULL;
        if (one == NULL || text == NULL || asprintf(&more, "%s%s%s %s", text, text[0] != 0 ? ", " : "", key, one) < 0) more = NULL;
        free(one);
        free(text);
        text = more;
    }
    json_decref(said);
    return text;
}
