/* core_json.h - JSON behind one file (jansson): config.json, tokenizer.json, safetensors headers.
 * Internal. Values are jansson's json_t; who parses calls json_decref. */
#ifndef SPEC_CORE_JSON_H
#define SPEC_CORE_JSON_H

#include <jansson.h>

#include "core/core.h"

/* Parses n bytes; `what` (a path, say) begins every message. Duplicate keys, invalid UTF-8 and nesting deeper than
 * jansson's limit are E_FORMAT with line and column. Bare Infinity, -Infinity and NaN outside strings, which real
 * files have and jansson refuses, are read as {"__float__": "Infinity"}, the form that other real files have; integers
 * over 64 bits ("model_max_length") as reals. Strings may hold zero bytes; of keys that may speci_json_key tells. */
spec_status speci_json_parse(json_t **out, const char *text, size_t n, const char *what);
spec_status speci_json_read(json_t **out, const char *path, size_t max, const spec_allocator *a);

/* json_dumps, which leaves bytes out where memory is gone: NULL then. Whoever has it calls free. */
char *speci_json_dump(const json_t *value, size_t flags);

/* true and the value for a number or a {"__float__": "Infinity" | "-Infinity" | "NaN"} object. */
bool speci_json_number(const json_t *value, double *out);

/* The string [n] that an object's key stands for, which may hold zero bytes: the key itself, or made in work. */
spec_status speci_json_key(const char *key, const char **out, size_t *n, speci_buf *work);

#endif
