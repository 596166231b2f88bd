/* family_gguf_write.c - see family_gguf_write.h. Source: llama.cpp, conversion/<family>.py. */
#include "models/families/family_gguf_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_MAX = 128 };

/* ------------------------------------------------------------------------------------------- keys --- */

static const char *full_key(const gguf_writing *w, const char *key, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", w->row->architecture, key);
    return out;
}

static int64_t whole(const gguf_writing *w, const char *key) { return json_integer_value(json_object_get(w->taken, key)); }
static double real(const gguf_writing *w, const char *key) { return json_number_value(json_object_get(w->taken, key)); }

spec_status speci_gguf_put_own_whole(gguf_writing *w, const char *key, uint32_t value)
{
    char full[KEY_MAX];
    return speci_gguf_put_whole(w->head, full_key(w, key, full), value);
}

static spec_status put(speci_gguf_head *h, const char *key, const json_t *v, gguf_kind kind)
{
    switch (kind) {
    case GGUF_REAL: return speci_gguf_put_real(h, key, (float)json_number_value(v));
    case GGUF_FLAG: return speci_gguf_put_flag(h, key, json_is_true(v));
    case GGUF_WORD: return speci_gguf_put_text(h, key, json_string_value(v), json_string_length(v));
    default: return speci_gguf_put_whole(h, key, (uint32_t)json_number_value(v));
    }
}

static bool begins_with(const char *s, const char *start) { return strncmp(s, start, strlen(start)) == 0; }

static const char *rope_type(const gguf_writing *w)
{
    const char *type = json_string_value(json_object_get(w->taken, "rope_scaling.rope_type"));
    return type ? type : "";
}

/* Is it said by keys? llama3 is by a tensor, longrope by two and a factor. */
static bool is_said(const gguf_writing *w, const gguf_key *k)
{
    const char *type = rope_type(w);
    if (!begins_with(k->config, "rope_scaling.")) return true;
    const bool factor = strcmp(k->config, "rope_scaling.attention_factor") == 0, yarn = strcmp(type, "yarn") == 0;
    if (strcmp(type, "longrope") == 0) return strcmp(k->gguf, "rope.scaling.attn_factor") == 0;
    if (strcmp(type, "linear") == 0) return strcmp(k->gguf, "rope.scaling.type") == 0 || strcmp(k->gguf, "rope.scaling.factor") == 0;
    return yarn && !factor;
}

static spec_status put_key(gguf_writing *w, const gguf_key *k)
{
    char full[KEY_MAX];
    const json_t *v = k->config ? json_object_get(w->taken, k->config) : NULL;
    return v && !json_is_null(v) && is_said(w, k) ? put(w->head, full_key(w, k->gguf, full), v, k->kind) : SPEC_OK;
}

static spec_status put_keys(gguf_writing *w)
{
    const bool attends = whole(w, "num_attention_heads") > 0;
    for (const gguf_key *k = w->row->keys; k && k->gguf; k++) SPEC_TRY(put_key(w, k));
    for (const gguf_key *k = speci_gguf_shared; k->gguf; k++) {
        const bool of_heads = begins_with(k->gguf, "attention.") || begins_with(k->gguf, "rope.");
        if (!speci_gguf_find_key(w->row->keys, k->gguf) && (attends || !of_heads)) SPEC_TRY(put_key(w, k));
    }
    SPEC_TRY(speci_gguf_put_own_whole(w, "vocab_size", (uint32_t)whole(w, "vocab_size")));
    if (!attends) return SPEC_OK;
    const int64_t head_dim = whole(w, "head_dim");
    SPEC_TRY(speci_gguf_put_own_whole(w, "attention.value_length", (uint32_t)head_dim));
    return speci_gguf_put_own_whole(w, "rope.dimension_count", (uint32_t)((double)head_dim * real(w, "partial_rotary_factor")));
}

/* What no key says. */
static spec_status check_rope(const gguf_writing *w)
{
    const char *sliding = json_string_value(json_object_get(w->taken, "sliding_rope_type"));
    if (sliding && strcmp(sliding, "default") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED,
                          "%s: rope_type of sliding_attention is \"%s\", which cannot be written to GGUF",
                          w->config->file, sliding);
    const bool yarn = strcmp(rope_type(w), "yarn") == 0;
    if (yarn && !json_is_true(json_object_get(w->taken, "rope_scaling.truncate")))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: rope_scaling.truncate is false, for which GGUF files have no key: they mean true",
                          w->config->file);
    const double factor = real(w, "rope_scaling.factor"), plain = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    if (!yarn || fabs(real(w, "rope_scaling.attention_factor") - plain) < 1e-6) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: yarn with an attention factor of its own, %g, cannot be written to GGUF", w->config->file,
                      real(w, "rope_scaling.attention_factor"));
}

static spec_status check_activation(const gguf_writing *w)
{
    static const char key[] = "hidden_act";
    const char *act = json_string_value(json_object_get(w->taken, key));
    if (!act) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is \"%.60s\", for which GGUF files of %s have no key: they mean another", w->config->file,
                      speci_config_said(w->config, key), act, w->row->architecture);
}

/* Has the new file a tensor of that name? */
static bool is_stored(const gguf_writing *w, const char *name)
{
    for (size_t i = 0; i < w->n_tensor; i++)
        if (strcmp(w->tensors[i].name, name) == 0) return true;
    return false;
}

spec_status speci_gguf_put_layers(gguf_writing *w)
{
    char key[KEY_MAX];
    const int64_t n = whole(w, "num_hidden_layers");
    SPEC_TRY(speci_gguf_put_array(w->head, full_key(w, "attention.head_count_kv", key), SPECI_GGUF_I32, (uint64_t)n));
    for (int64_t i = 0; i < n; i++) {
        const bool attends = is_stored(w, speci_namef("blk.%d.attn_k.weight", (int)i).s);
        const int32_t n_kv = attends ? (int32_t)whole(w, "num_key_value_heads") : 0;
        SPEC_TRY(speci_gguf_put_element(w->head, &n_kv, sizeof n_kv));
    }
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------------- tensors --- */

static spec_status add(gguf_writing *w, gguf_stored **out, const char *name)
{
    if (w->n_tensor == w->cap) {
        const size_t cap = w->cap ? 2 * w->cap : 64;
        gguf_stored *more = speci_alloc(w->a, cap, sizeof *more);
        if (!more) return SPEC_E_NOMEM;
        if (w->n_tensor) memcpy(more, w->tensors, w->n_tensor * sizeof *more);
        speci_free(w->a, w->tensors);
        w->tensors = more, w->cap = cap;
    }
    *out = &w->tensors[w->n_tensor];
    **out = (gguf_stored){ .n_dim = 1, .dim = { 1, 1 } };
    if ((size_t)snprintf((*out)->name, GGUF_NAME_MAX, "%s", name) >= GGUF_NAME_MAX)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s has a name of more than %d bytes", w->config->file, name, GGUF_NAME_MAX - 1);
    w->n_tensor++;
    return SPEC_OK;
}

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

static bool has_values(const model_tensor *t) { return t->dtype != SPEC_DTYPE_AUTO || t->blocks; }

/* [n_channel][1][width] is [n_channel][width] there. How many dimensions; 0: of such a shape there is nothing. */
static int32_t dims_of(const model_tensor *from, int64_t dim[MODEL_MAX_DIM])
{
    int32_t n = 0;
    for (int32_t i = 0; i < from->n_dim; i++)
        if (from->n_dim < 3 || from->dim[i] != 1) dim[n++] = from->dim[i];
    return n > 2 || from->bytes == 0 ? 0 : n;
}

static spec_status shape(gguf_stored *t)
{
    const model_tensor *from = t->from;
    int64_t dim[MODEL_MAX_DIM];
    const int32_t n = dims_of(from, dim);
    if (!has_values(from))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s: %s cannot be converted, expected F32, BF16, F16 or blocks", from->file,
                          from->name, from->dtype_name);
    if (n == 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s: shape %s cannot be converted, expected a vector or a matrix", from->file,
                          from->name, speci_shape_of(from->n_dim, from->dim).s);
    t->n_dim = n;
    t->dim[0] = dim[0], t->dim[1] = n > 1 ? dim[1] : 1;
    return SPEC_OK;
}

/* Vectors of heads are columns, and the gated norm is [n_group][width], in all but Mamba-1. */
static void fold(const gguf_writing *w, gguf_stored *t)
{
    const bool mamba1 = strcmp(w->row->architecture, "mamba") == 0;
    if (t->n_dim != 1 || mamba1) return;
    if (speci_ends_with(t->name, ".ssm_a") || speci_ends_with(t->name, ".ssm_d")) t->n_dim = 2;
    if (!speci_ends_with(t->name, ".ssm_norm.weight")) return;
    const int64_t said = whole(w, "n_groups"), n_group = said ? said : whole(w, "mamba_n_groups");
    if (n_group < 1 || t->dim[0] % n_group) return;
    t->n_dim = 2;
    t->dim[1] = t->dim[0] / n_group, t->dim[0] = n_group;
}

/* What the row's form says of it. */
static void transform(const gguf_writing *w, gguf_stored *t)
{
    const model_form *form = &w->row->form;
    const bool q = has(t->name, ".attn_q."), k = has(t->name, ".attn_k.");
    t->n_kv_head = (int32_t)whole(w, "num_key_value_heads");
    t->n_head = k ? t->n_kv_head : (int32_t)whole(w, "num_attention_heads");
    t->head_dim = (int32_t)whole(w, "head_dim");
    if (form->pairs_together && (q || k)) t->order = GGUF_PAIRS_TOGETHER;
    if (form->qkv_in_order && has(t->name, ".attn_qkv.")) t->order = GGUF_QKV_IN_ORDER;
    if (form->decays && speci_ends_with(t->name, ".ssm_a")) t->map = GGUF_MINUS_EXP;
    if (form->norms && has(t->name, "_norm.")) t->map = GGUF_PLUS_ONE;
}

static spec_status check_order(const gguf_writing *w, const gguf_stored *t)
{
    const int64_t n = (int64_t)(t->n_head + (t->order == GGUF_QKV_IN_ORDER ? 2 * t->n_kv_head : 0)) * t->head_dim;
    if (t->order == GGUF_AS_THEY_ARE || (n > 0 && n == t->dim[0])) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: tensor %s has %lld rows, but %s tells of %lld", t->from->file, t->from->name,
                      (long long)t->dim[0], w->config->file, (long long)n);
}

static spec_status plan_one(gguf_writing *w, const model_tensor *from, const char *name, int64_t first, int64_t part)
{
    gguf_stored *t;
    SPEC_TRY(add(w, &t, name));
    t->from = from;
    SPEC_TRY(shape(t));
    if (part && t->dim[0] % part)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s has %lld rows, expected a multiple of %lld", from->file, from->name,
                          (long long)t->dim[0], (long long)part);
    if (part) t->dim[0] /= part, t->first = first * t->dim[0];
    transform(w, t);
    SPEC_TRY(check_order(w, t));
    fold(w, t);
    return SPEC_OK;
}

/* Two tensors from one. *done: it is such. */
static spec_status plan_halves(gguf_writing *w, const model_tensor *from, bool *done)
{
    char name[256];
    int64_t first = 0;
    for (const model_rename *r = w->row->halves; r && r->name; r++) {
        if (!speci_renamed_by(r, from->name, name, sizeof name)) continue;
        SPEC_TRY(plan_one(w, from, name, first++, 2));
    }
    *done = first > 0;
    return SPEC_OK;
}

static spec_status plan_tensor(gguf_writing *w, const model_tensor *from)
{
    char name[256];
    bool done = false;
    SPEC_TRY(plan_halves(w, from, &done));
    if (done) return SPEC_OK;
    if (speci_renamed(w->row->names, from->name, name, sizeof name)) {
        const bool copy = strcmp(name, "output.weight") == 0 && json_is_true(json_object_get(w->taken, "tie_word_embeddings"));
        return copy ? SPEC_OK : plan_one(w, from, name, 0, 0);
    }
    return SPEC_OK; /* speci_gguf_check_named */
}

static bool is_named(const gguf_writing *w, const char *name)
{
    char stored[256];
    for (const model_rename *r = w->row->halves; r && r->name; r++)
        if (speci_renamed_by(r, name, stored, sizeof stored)) return true;
    return speci_renamed(w->row->names, name, stored, sizeof stored) != NULL;
}

spec_status speci_gguf_check_named(const gguf_writing *w)
{
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(w->checkpoint, &n);
    for (size_t i = 0; i < n; i++)
        if (t[i].used && !is_named(w, t[i].name))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s has no name in GGUF files of %s: it cannot be converted", t[i].file,
                              t[i].name, w->row->architecture);
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------- rotary divisors --- */

static spec_status add_made(gguf_writing *w, const char *name, const float *values, int64_t n)
{
    gguf_stored *t;
    SPEC_TRY(add(w, &t, name));
    t->made = values, t->dim[0] = n;
    return SPEC_OK;
}

/* By how much the scaling divides each frequency. */
static spec_status divisors(gguf_writing *w, int32_t n_rot)
{
    model_rope rope = { .type = MODEL_ROPE_LLAMA3, .theta = real(w, "rope_theta"), .factor = real(w, "rope_scaling.factor"),
                        .low_freq_factor = real(w, "rope_scaling.low_freq_factor"),
                        .high_freq_factor = real(w, "rope_scaling.high_freq_factor"),
                        .original_max_position = real(w, "rope_scaling.original_max_position_embeddings") };
    float *plain = w->made + n_rot / 2;
    SPEC_TRY(speci_rope_frequencies(&rope, w->made, n_rot, w->config->file));
    rope.type = MODEL_ROPE_DEFAULT;
    SPEC_TRY(speci_rope_frequencies(&rope, plain, n_rot, w->config->file));
    for (int32_t k = 0; k < n_rot / 2; k++) w->made[k] = plain[k] / w->made[k];
    return add_made(w, "rope_freqs.weight", w->made, n_rot / 2);
}

static spec_status factors(gguf_writing *w, const char *key, const char *name, float *out, int32_t n)
{
    const json_t *list = json_object_get(w->taken, key);
    if (json_array_size(list) != (size_t)n)
        return speci_fail(SPEC_E_FORMAT, "%s: %s has %zu entries, expected %d", w->config->file, key, json_array_size(list), n);
    for (int32_t i = 0; i < n; i++) out[i] = (float)json_number_value(json_array_get(list, (size_t)i));
    return add_made(w, name, out, n);
}

static spec_status plan_rope(gguf_writing *w)
{
    const char *type = rope_type(w);
    const int32_t n_rot = (int32_t)((double)whole(w, "head_dim") * real(w, "partial_rotary_factor"));
    if (strcmp(type, "llama3") != 0 && strcmp(type, "longrope") != 0) return SPEC_OK;
    if (!(w->made = speci_alloc(w->a, (size_t)n_rot, sizeof *w->made))) return SPEC_E_NOMEM;
    if (strcmp(type, "llama3") == 0) return divisors(w, n_rot);
    SPEC_TRY(factors(w, "rope_scaling.short_factor", "rope_factors_short.weight", w->made, n_rot / 2));
    return factors(w, "rope_scaling.long_factor", "rope_factors_long.weight", w->made + n_rot / 2, n_rot / 2);
}

/* --------------------------------------------------------------------------------------- the file --- */

spec_status speci_gguf_plan(gguf_writing *w)
{
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(w->checkpoint, &n);
    for (size_t i = 0; i < n; i++) SPEC_TRY(plan_tensor(w, &t[i]));
    SPEC_TRY(plan_rope(w));
    SPEC_TRY(check_rope(w));
    SPEC_TRY(check_activation(w));
    SPEC_TRY(speci_gguf_put_text(w->head, "general.architecture", w->row->architecture, strlen(w->row->architecture)));
    SPEC_TRY(put_keys(w));
    return w->row->write ? w->row->write(w) : SPEC_OK;
}

spec_status speci_gguf_plan_same(gguf_writing *w)
{
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(w->checkpoint, &n);
    for (size_t i = 0; i < n; i++) {
        gguf_stored *stored;
        int64_t dim[MODEL_MAX_DIM];
        if (!t[i].used && (!has_values(&t[i]) || dims_of(&t[i], dim) == 0)) continue;
        SPEC_TRY(add(w, &stored, t[i].name));
        stored->from = &t[i];
        SPEC_TRY(shape(stored));
    }
    return SPEC_OK;
}

void speci_gguf_plan_free(gguf_writing *w)
{
    speci_free(w->a, w->tensors);
    speci_free(w->a, w->made);
}
