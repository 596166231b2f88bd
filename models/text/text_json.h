/* text_json.h - what the readers of JSON files share. Internal. */
#ifndef SPEC_MODEL_TEXT_JSON_H
#define SPEC_MODEL_TEXT_JSON_H

#include "core/core_json.h"
#include "models/text/text_tokenizer.h"

/* {"content": "<s>", "lstrip": false, ...}: a token without its id. *content [n] is borrowed from json; `file` begins
 * messages. */
spec_status speci_text_read_added(const char *file, const json_t *json, speci_added *out, const char **content, size_t *n);

#endif
