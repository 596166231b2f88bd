/* files_config.h - config.json: keys by name, with a record of which were asked for. Internal.
 *
 * A family asks for the keys that it honours. What it did not ask for is verified by two lists (files_config_keys.c): keys
 * that would change the mathematics are refused by name, keys known to be inert are ignored, the rest is reported.
 * A default is given only where the family's class in transformers (models/<family>/configuration_<family>.py) has
 * one that files rely on. null counts as absent. */
#ifndef SPEC_MODEL_CONFIG_H
#define SPEC_MODEL_CONFIG_H

#include "core/core_json.h"

typedef struct model_config {
    const char *file; /* for messages; borrowed */
    char in[32];      /* "ssm_cfg." for an object inside the file, else "" */
    json_t *root;
    json_t *rest;     /* the keys not asked for yet */
    json_t *said;     /* {key: what the file calls it}, for messages; NULL: all by their own names */
    json_t *taken;    /* {key: value} of typed keys as a family took them, its defaults too; NULL = nobody wants to know. Borrowed */
} model_config;

/* Zero to begin; close is good for that too. `file` must outlive the config. */
spec_status speci_config_read(model_config *out, const char *file, const spec_allocator *a);
spec_status speci_config_parse(model_config *out, const char *text, size_t n, const char *file);
/* An object that was made from another file: root and said (or NULL) are the config's from here on, also when it fails. */
spec_status speci_config_adopt(model_config *out, json_t *root, json_t *said, const char *file);
void speci_config_close(model_config *c);
/* A key as the file has it, for messages. */
const char *speci_config_said(const model_config *c, const char *key);

bool speci_config_has(const model_config *c, const char *key);     /* and is not null; not recorded */
bool speci_config_present(const model_config *c, const char *key); /* even if null; not recorded */
json_t *speci_config_take(model_config *c, const char *key);       /* borrowed, NULL if absent or null; recorded */

/* A key under another name that the family's files have for it: from here on it is there as `key`, and messages call it `other`. Where a
 * config has both, they must agree. */
spec_status speci_config_also(model_config *c, const char *key, const char *other);

/* For `taken`: what a key comes to that is more than its own value. Owns the value, of which NULL is none. */
void speci_config_note(const model_config *c, const char *key, json_t *value);

/* The value must be there, be of the type, and lie in [min, max]. */
spec_status speci_config_int(model_config *c, int32_t *out, const char *key, int32_t min, int32_t max);
spec_status speci_config_number(model_config *c, double *out, const char *key, double min, double max);
/* The same with a default. */
spec_status speci_config_int_or(model_config *c, int32_t *out, const char *key, int32_t fallback, int32_t min,
                                int32_t max);
spec_status speci_config_number_or(model_config *c, double *out, const char *key, double fallback, double min,
                                   double max);
/* A number that something else has settled: absent, or equal to `value`. */
spec_status speci_config_agree(model_config *c, const char *key, int32_t value);
/* The same for what else a family always does. */
spec_status speci_config_agree_bool(model_config *c, const char *key, bool value);
spec_status speci_config_agree_text(model_config *c, const char *key, const char *value);
spec_status speci_config_bool_or(model_config *c, bool *out, const char *key, bool fallback);
/* Borrowed from the config. */
spec_status speci_config_string_or(model_config *c, const char **out, const char *key, const char *fallback);
/* An object as a config of its own, to be closed; out->root stays NULL when it is absent. */
spec_status speci_config_child(model_config *c, model_config *out, const char *key);
/* [lo, hi], lo <= hi, both >= 0, hi may be infinite; absent: [0, infinity). */
spec_status speci_config_limits_or_none(model_config *c, float *lo, float *hi, const char *key);

/* Fails naming the first key that nobody asked for: for objects all of whose keys matter. */
spec_status speci_config_all_known(const model_config *c);
/* Verifies the keys of config.json that nobody asked for. *unknown: those in neither list, comma-separated, "" if none;
 * from speci_alloc. */
spec_status speci_config_check(const model_config *c, char **unknown, const spec_allocator *a);

/* What the keys of config.json say that no family has: "mixtures of experts, latent attention (MLA)", or "". */
void speci_config_missing(const json_t *root, char *out, size_t cap);

/* "8", "\"gelu\"", "an object" - what was found, for messages. */
typedef struct model_value_text {
    char s[80];
} model_value_text;
model_value_text speci_value_of(const json_t *value);

#endif
