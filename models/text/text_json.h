/* text_json.h - what the readers of JSON files share. Internal. */
#ifndef SPEC_MODEL_TEXT_JSON_H
#define SPEC_MODEL_TEXT_JSON_H

#include "core/core_json.h"
#include "models/text/text_tokenizer.h"

/* {"content": "<s>", "lstrip": false, ...}: a token without its id. *content [n] is borrowed from json; `file` begins
 * messages. */
spec_status speci_text_read_added(const char *file, const json_t *json, speci_added *out, const char **content, size_t *n);

/* --- values by their keys (text_json_read.c) --- */

/* E_FORMAT: the key is missing or wrong. */
spec_status speci_text_bad(const char *file, const char *key, const char *expected);
/* A boolean; `missing` if the key is not there or null. */
spec_status speci_text_read_bool(const char *file, const json_t *json, const char *key, bool missing, bool *out);
spec_status speci_text_read_int(const char *file, const json_t *json, const char *key, json_int_t low, json_int_t high, json_int_t *out);
/* Borrowed text; may hold zero bytes. And a copy of such text. */
spec_status speci_text_read_string(const char *file, const json_t *json, const char *key, const char **out, size_t *n);
spec_status speci_text_copy_string(const spec_tokenizer *t, const char *s, size_t n, char **out);
/* One character, as UTF-8 in out [4]. */
spec_status speci_text_read_char(const spec_tokenizer *t, const json_t *json, const char *key, char out[4], size_t *n);
/* {"String": "..."} or {"Regex": "..."}, as Split and Replace have it. */
spec_status speci_text_read_pattern(const spec_tokenizer *t, const json_t *json, speci_regex **out);
/* Where Metaspace puts its mark. */
spec_status speci_text_read_prepend(const spec_tokenizer *t, const json_t *json, speci_prepend *out);

/* --- components --- */

/* Reads one component; `depth` counts Sequences. */
typedef spec_status (*speci_text_read_fn)(spec_tokenizer *t, const json_t *json, int depth);
typedef struct speci_text_component {
    const char *type;
    speci_text_read_fn read;
} speci_text_component;

/* By its type in the table, which ends with NULL; `section` is for messages. And the components of a Sequence. */
spec_status speci_text_read_component(spec_tokenizer *t, const json_t *json, const char *section, const speci_text_component *table,
                                      int depth);
spec_status speci_text_read_sequence(spec_tokenizer *t, const json_t *json, const char *key, speci_text_read_fn each, int depth);

/* The sections, a file each. */
spec_status speci_text_read_normalizer(spec_tokenizer *t, const json_t *json, int depth);
spec_status speci_text_read_pre_tokenizer(spec_tokenizer *t, const json_t *json, int depth);
spec_status speci_text_read_post_processor(spec_tokenizer *t, const json_t *json, int depth);
spec_status speci_text_read_decoder(spec_tokenizer *t, const json_t *json, int depth);

#endif
