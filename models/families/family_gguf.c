/* family_gguf.c - see family_gguf.h. */
#include "models/families/family_gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const model_gguf *const rows[] = { &speci_gguf_llama, &speci_gguf_qwen2, &speci_gguf_qwen3, &speci_gguf_mamba, &speci_gguf_mamba2,
                                          &speci_gguf_gptneox, &speci_gguf_phi3, &speci_gguf_granite, &speci_gguf_granitehybrid,
                                          &speci_gguf_starcoder2, &speci_gguf_gemma, &speci_gguf_smollm3, &speci_gguf_olmo,
                                          &speci_gguf_seed_oss, &speci_gguf_ernie4_5, &speci_gguf_stablelm, &speci_gguf_command_r,
                                          &speci_gguf_lfm2, &speci_gguf_gemma2, &speci_gguf_gemma3, &speci_gguf_olmo2,
                                          &speci_gguf_exaone4, &speci_gguf_glm4, &speci_gguf_cohere2, &speci_gguf_chatglm,
                                          &speci_gguf_falcon, &speci_gguf_exaone, &speci_gguf_phi2 };
enum { N_ROW = sizeof rows / sizeof *rows, KEY_MAX = 128 };

/* Keys that mean the same for all. */
const gguf_key speci_gguf_shared[] = {
    { "block_count", "num_hidden_layers", GGUF_WHOLE },
    { "context_length", "max_position_embeddings", GGUF_WHOLE },
    { "embedding_length", "hidden_size", GGUF_WHOLE },
    { "feed_forward_length", "intermediate_size", GGUF_WHOLE },
    { "vocab_size", NULL, GGUF_WHOLE }, /* the embeddings tell */
    { "attention.head_count", "num_attention_heads", GGUF_WHOLE },
    { "attention.head_count_kv", "num_key_value_heads", GGUF_WHOLE },
    { "attention.key_length", "head_dim", GGUF_WHOLE },
    { "attention.value_length", NULL, GGUF_WHOLE }, /* head_dims */
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps", GGUF_REAL },
    { "attention.causal", "is_causal", GGUF_FLAG },
    { "attention.scale", "attention_scale", GGUF_REAL },
    { "rope.freq_base", "rope_theta", GGUF_REAL },
    { "rope.dimension_count", NULL, GGUF_WHOLE }, /* rotary */
    { "rope.scaling.type", "rope_scaling.rope_type", GGUF_WORD },
    { "rope.scaling.factor", "rope_scaling.factor", GGUF_REAL },
    { "rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings", GGUF_WHOLE },
    { "rope.scaling.attn_factor", "rope_scaling.attention_factor", GGUF_REAL },
    { "rope.scaling.yarn_attn_factor", "rope_scaling.attention_factor", GGUF_REAL },
    { "rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", GGUF_REAL },
    { "rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", GGUF_REAL },
    { "rope.scaling.finetuned", NULL, GGUF_WHOLE },
    { NULL, NULL, 0 },
};

/* ------------------------------------------------------------------------------------------- keys --- */

static spec_status no_memory(const gguf_reading *r)
{
    return speci_fail(SPEC_E_NOMEM, "%s: out of memory", r->file->file);
}

/* The object that "rope_scaling.factor" goes into, made where it is not there. */
static json_t *parent_of(json_t *config, const char **key)
{
    const char *dot = strchr(*key, '.');
    if (!dot) return config;
    json_t *object = json_object_getn(config, *key, (size_t)(dot - *key));
    if (!object && json_object_setn_new(config, *key, (size_t)(dot - *key), json_object()) == 0)
        object = json_object_getn(config, *key, (size_t)(dot - *key));
    *key = dot + 1;
    return object;
}

spec_status speci_gguf_set(gguf_reading *r, const char *key, json_t *value, const char *from)
{
    if (from && json_object_set_new(r->said, key, json_string(from)) != 0) {
        json_decref(value);
        return no_memory(r);
    }
    json_t *object = parent_of(r->config, &key);
    if (json_is_null(value)) {
        (void)json_object_del(object, key);
        return SPEC_OK;
    }
    return json_object_set_new(object, key, value) == 0 ? SPEC_OK : no_memory(r);
}

static const char *full_key(const gguf_reading *r, const char *key, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", r->architecture, key);
    return out;
}

const speci_gguf_value *speci_gguf_own(const gguf_reading *r, const char *key)
{
    char full[KEY_MAX];
    return speci_gguf_find(r->file, full_key(r, key, full));
}

bool speci_gguf_has_tensor(const gguf_reading *r, const char *name) { return speci_checkpoint_find(r->checkpoint, name) != NULL; }

const gguf_key *speci_gguf_find_key(const gguf_key *list, const char *key)
{
    for (; list && list->gguf; list++)
        if (strcmp(list->gguf, key) == 0) return list;
    return NULL;
}

/* The key of a list that becomes config's `name`, or a part of that; or NULL. */
static const gguf_key *maker_of(const gguf_key *list, const char *name)
{
    const size_t n = strlen(name);
    for (; list && list->gguf; list++)
        if (list->config && strncmp(list->config, name, n) == 0 && (list->config[n] == '\0' || list->config[n] == '.')) return list;
    return NULL;
}

/* A key in no list goes by its own name: it is refused where that tells of mathematics, or is what other keys become, else reported
 * (files_config_keys.c). */
static spec_status take_key(gguf_reading *r, const model_gguf *row, const speci_gguf_pair *pair, const char *key)
{
    char own[KEY_MAX];
    const gguf_key *known = speci_gguf_find_key(row->keys, key);
    if (!known) known = speci_gguf_find_key(speci_gguf_shared, key);
    if (known && !known->config) return SPEC_OK;
    snprintf(own, sizeof own, "%s", key);
    for (char *s = own; *s; s++)
        if (*s == '.') *s = '_';
    const gguf_key *maker = known ? NULL : maker_of(row->keys, own);
    if (!known && !maker) maker = maker_of(speci_gguf_shared, own);
    if (maker)
        return speci_fail(SPEC_E_FORMAT, "%s: %s is no key of GGUF files, which say this by %s.%s", r->file->file, pair->key,
                          r->architecture, maker->gguf);
    json_t *value;
    SPEC_TRY(speci_gguf_take(&value, r->file, pair->key, &pair->value));
    return speci_gguf_set(r, known ? known->config : own, value, pair->key);
}

static spec_status take_keys(gguf_reading *r, const model_gguf *row)
{
    const size_t n = strlen(r->architecture);
    for (size_t i = 0; i < r->file->n_pair; i++) {
        const speci_gguf_pair *p = &r->file->pairs[i];
        if (strncmp(p->key, r->architecture, n) == 0 && p->key[n] == '.') SPEC_TRY(take_key(r, row, p, p->key + n + 1));
    }
    return SPEC_OK;
}

spec_status speci_gguf_layers(gguf_reading *r, json_t *types, json_t *attending, const char *attention, const char *other)
{
    char key[KEY_MAX];
    const speci_gguf_value *counts = NULL;
    int64_t n_kv = 0;
    SPEC_TRY(speci_gguf_array(r->file, full_key(r, "attention.head_count_kv", key), SPECI_GGUF_I32, &counts));
    if (!counts) return speci_fail(SPEC_E_FORMAT, "%s: %s is missing", r->file->file, key);
    for (uint64_t i = 0; i < counts->n; i++) {
        const int64_t n = speci_gguf_integer_at(counts, i);
        if (n != 0 && n_kv != 0 && n != n_kv)
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s has %" PRId64 " and %" PRId64 ": layers of several shapes are not supported",
                              r->file->file, key, n_kv, n);
        if (n != 0) n_kv = n;
        if (json_array_append_new(types, json_string(n ? attention : other)) != 0 ||
            (n && attending && json_array_append_new(attending, json_integer((json_int_t)i)) != 0))
            return no_memory(r);
    }
    if (n_kv == 0) return SPEC_OK; /* no layer attends: as many as heads, which is what a config says by nothing */
    return speci_gguf_set(r, "num_key_value_heads", json_integer(n_kv), key);
}

/* ------------------------------------------------------------------------------ what tensors tell --- */

static spec_status embeddings(gguf_reading *r)
{
    const model_tensor *t = speci_checkpoint_find(r->checkpoint, "token_embd.weight");
    if (!t || t->n_dim != 2) return speci_fail(SPEC_E_FORMAT, "%s: tensor token_embd.weight is missing, or no matrix", r->file->file);
    SPEC_TRY(speci_gguf_set(r, "vocab_size", json_integer(t->dim[0]), NULL));
    return speci_gguf_set(r, "tie_word_embeddings", json_boolean(!speci_gguf_has_tensor(r, "output.weight")), NULL);
}

int64_t speci_gguf_config_integer(const gguf_reading *r, const char *key)
{
    return json_integer_value(json_object_get(r->config, key));
}

/* A size that only says once more what another has said. */
static spec_status agree(const gguf_reading *r, const char *key, int64_t value, const char *what)
{
    char full[KEY_MAX];
    int64_t found = value;
    SPEC_TRY(speci_gguf_integer(r->file, full_key(r, key, full), &found));
    if (found == value) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is %" PRId64 ", expected %" PRId64 ", %s", r->file->file, full, found, value, what);
}

/* How much of a head turns. The share is rounded down when it is used. */
static spec_status rotary(gguf_reading *r)
{
    char full[KEY_MAX];
    const int64_t n_head = speci_gguf_config_integer(r, "num_attention_heads"), said = speci_gguf_config_integer(r, "head_dim");
    const int64_t head_dim = said ? said : n_head > 0 ? speci_gguf_config_integer(r, "hidden_size") / n_head : 0;
    int64_t n_rot = head_dim;
    if (head_dim <= 0) return SPEC_OK; /* no heads, or what the family refuses */
    SPEC_TRY(agree(r, "attention.value_length", head_dim, "as the keys have"));
    SPEC_TRY(speci_gguf_integer(r->file, full_key(r, "rope.dimension_count", full), &n_rot));
    if (n_rot < 1 || n_rot > head_dim)
        return speci_fail(SPEC_E_FORMAT, "%s: %s is %" PRId64 ", expected 1 to %" PRId64 ", a head's dimensions", r->file->file, full,
                          n_rot, head_dim);
    if (!said) SPEC_TRY(speci_gguf_set(r, "head_dim", json_integer(head_dim), NULL)); /* where classes have other defaults */
    const double share = n_rot == head_dim ? 1 : ((double)n_rot + 0.5) / (double)head_dim;
    return speci_gguf_set(r, "partial_rotary_factor", json_real(share), "rope.dimension_count");
}

/* The values of a vector as a JSON list. */
static spec_status list_of(const gguf_reading *r, json_t **out, model_tensor *t)
{
    float x;
    *out = json_array();
    if (t->n_dim != 1 || t->dtype != SPEC_DTYPE_F32)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: expected a vector of F32, found %s %s", t->file, t->name, t->dtype_name,
                          speci_shape_of(t->n_dim, t->dim).s);
    SPEC_TRY(speci_checkpoint_load(r->checkpoint, t));
    t->used = true;
    for (int64_t i = 0; i < t->dim[0]; i++) {
        speci_tensor_floats(&x, t, (size_t)i, 1);
        if (!isfinite(x)) return speci_fail(SPEC_E_FORMAT, "%s: tensor %s has a value that is not finite", t->file, t->name);
        if (json_array_append_new(*out, json_real((double)x)) != 0) return no_memory(r);
    }
    return SPEC_OK;
}

static spec_status factors(gguf_reading *r, const char *tensor, const char *key)
{
    model_tensor *t = speci_checkpoint_find(r->checkpoint, tensor);
    json_t *list = NULL;
    if (!t) return SPEC_OK;
    const spec_status status = list_of(r, &list, t);
    if (status == SPEC_OK) return speci_gguf_set(r, key, list, NULL);
    json_decref(list);
    return status;
}

/* Divisors of the frequencies: of llama3 as they are, of longrope two lists. Without a type there is no scaling, whatever else is said. */
static spec_status frequencies(gguf_reading *r)
{
    const bool divided = speci_gguf_has_tensor(r, "rope_freqs.weight");
    SPEC_TRY(factors(r, "rope_factors_short.weight", "rope_scaling.short_factor"));
    SPEC_TRY(factors(r, "rope_factors_long.weight", "rope_scaling.long_factor"));
    const json_t *scaling = json_object_get(r->config, "rope_scaling");
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type && json_object_get(scaling, "long_factor")) type = "longrope";
    if (!type || strcmp(type, "none") == 0) {
        SPEC_TRY(speci_gguf_set(r, "rope_scaling", json_null(), NULL));
        if (!divided) return SPEC_OK;
        SPEC_TRY(speci_gguf_set(r, "rope_scaling.rope_type", json_string(MODEL_ROPE_DIVIDED_NAME), NULL));
        return factors(r, "rope_freqs.weight", "rope_scaling.short_factor");
    }
    if (divided || (strcmp(type, "longrope") != 0 && speci_gguf_own(r, "rope.scaling.attn_factor")))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s beside rope.scaling.type \"%.60s\" is not supported", r->file->file,
                          divided ? "tensor rope_freqs.weight" : "rope.scaling.attn_factor", type);
    return speci_gguf_set(r, "rope_scaling.rope_type", json_string(type), NULL);
}

/* ------------------------------------------------------------------------------------- end tokens --- */

/* The end of the text, of a turn, and of a message, where they are others. */
static spec_status ids(gguf_reading *r)
{
    static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    int64_t id[3] = { -1, -1, -1 }, bos = -1;
    json_t *list = json_array();
    spec_status status = list ? SPEC_OK : no_memory(r);
    for (size_t i = 0; i < 3 && status == SPEC_OK; i++) {
        status = speci_gguf_integer(r->file, ends[i], &id[i]);
        const bool seen = (i > 0 && id[i] == id[0]) || (i > 1 && id[i] == id[1]);
        if (id[i] >= 0 && !seen && json_array_append_new(list, json_integer(id[i])) != 0) status = no_memory(r);
    }
    if (status != SPEC_OK || json_array_size(list) == 0) json_decref(list);
    else status = speci_gguf_set(r, "eos_token_id", list, ends[0]);
    SPEC_TRY(status);
    SPEC_TRY(speci_gguf_integer(r->file, "tokenizer.ggml.bos_token_id", &bos));
    return bos < 0 ? SPEC_OK : speci_gguf_set(r, "bos_token_id", json_integer(bos), "tokenizer.ggml.bos_token_id");
}

/* ---------------------------------------------------------------------------------------- the file --- */

static spec_status find_row(const model_gguf **out, const speci_gguf *g)
{
    char known[512] = "";
    const char *name = NULL;
    size_t n = 0, n_known = 0;
    SPEC_TRY(speci_gguf_text(g, "general.architecture", &name, &n));
    if (!name) return speci_fail(SPEC_E_FORMAT, "%s: general.architecture is missing", g->file);
    for (size_t i = 0; i < N_ROW; i++) {
        if (strlen(rows[i]->architecture) == n && memcmp(rows[i]->architecture, name, n) == 0) {
            *out = rows[i];
            return SPEC_OK;
        }
        if (n_known < sizeof known)
            n_known += (size_t)snprintf(known + n_known, sizeof known - n_known, "%s%s", i ? ", " : "", rows[i]->architecture);
    }
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: general.architecture is \"%.*s\", which is not supported; supported are %s", g->file,
                      n > 60 ? 60 : (int)n, name, known);
}

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *s = words; s && *s; s += strcspn(s, " "), s += *s == ' ')
        if (strcspn(s, " ") == n && memcmp(s, word, n) == 0) return true;
    return false;
}

const model_gguf *speci_gguf_row(const char *model_type)
{
    for (size_t i = 0; i < N_ROW; i++)
        if (strcmp(rows[i]->model_type, model_type) == 0 || has_word(rows[i]->also, model_type)) return rows[i];
    return NULL;
}

void speci_gguf_row_names(char *out, size_t cap)
{
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < N_ROW && n < cap; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", rows[i]->model_type);
        for (const char *s = rows[i]->also; s && *s && n < cap; s += strcspn(s, " "), s += *s == ' ')
            n += (size_t)snprintf(out + n, cap - n, ", %.*s", (int)strcspn(s, " "), s);
    }
}

static spec_status read(gguf_reading *r, const model_gguf *row)
{
    if (!r->config || !r->said) return no_memory(r);
    SPEC_TRY(speci_gguf_set(r, "model_type", json_string(row->model_type), "general.architecture"));
    SPEC_TRY(take_keys(r, row));
    SPEC_TRY(embeddings(r));
    SPEC_TRY(ids(r));
    SPEC_TRY(rotary(r));
    SPEC_TRY(frequencies(r));
    return row->finish ? row->finish(r) : SPEC_OK;
}

spec_status speci_gguf_config(model_config *out, const model_gguf **row, const model_checkpoint *c, const char *file)
{
    gguf_reading r = { .file = speci_checkpoint_gguf(c), .checkpoint = c };
    SPEC_TRY(find_row(row, r.file));
    r.architecture = (*row)->architecture;
    r.config = json_object(), r.said = json_object();
    const spec_status status = read(&r, *row);
    if (status == SPEC_OK) return speci_config_adopt(out, r.config, r.said, file);
    json_decref(r.config);
    json_decref(r.said);
    return status;
}

/* llama.cpp's samplers; its penalty looks back a fixed number of tokens, which is another one than here. */
const gguf_key speci_gguf_sampling[] = {
    { "general.sampling.temp", "temperature", GGUF_REAL }, { "general.sampling.top_k", "top_k", GGUF_WHOLE },
    { "general.sampling.top_p", "top_p", GGUF_REAL },      { "general.sampling.min_p", "min_p", GGUF_REAL },
    { NULL, NULL, 0 },
};

static spec_status take_sampling(json_t *root, json_t *said, const speci_gguf *g)
{
    bool good = root && said;
    for (const gguf_key *k = speci_gguf_sampling; k->gguf && good; k++) {
        const speci_gguf_value *v = speci_gguf_find(g, k->gguf);
        json_t *value;
        if (!v) continue;
        SPEC_TRY(speci_gguf_take(&value, g, k->gguf, v));
        good = json_object_set_new(root, k->config, value) == 0 && json_object_set_new(said, k->config, json_string(k->gguf)) == 0;
    }
    if (good && json_object_size(root) > 0) good = json_object_set_new(root, "do_sample", json_true()) == 0;
    return good ? SPEC_OK : speci_fail(SPEC_E_NOMEM, "%s: no memory for general.sampling", g->file);
}

spec_status speci_gguf_generation(model_config *out, const speci_gguf *g)
{
    json_t *root = json_object(), *said = json_object();
    const spec_status status = take_sampling(root, said, g);
    if (status == SPEC_OK && json_object_size(root) > 0) return speci_config_adopt(out, root, said, g->file);
    json_decref(root);
    json_decref(said);
    return status;
}
