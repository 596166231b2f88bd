/* model_convert.c - a directory or a GGUF file becomes another GGUF file. No weight goes to the device. */
#include <string.h>

#include "models/exec.h"
#include "models/families/family.h"
#include "models/families/family_gguf_write.h"
#include "models/model_generation.h"
#include "models/model_source.h"
#include "models/model_unused.h"
#include "models/text/text_gguf.h"

enum { QUANTISATION_VERSION = 2 }; /* general.quantization_version: of ggml's blocks */

typedef struct conversion {
    spec_model *m; /* only what reading a config needs: it has no layers */
    const char *out;
    const spec_convert_params *p;
    const gguf_mix *mix;
    model_source source;
    json_t *taken;
    spec_tokenizer *tokenizer; /* NULL: none to write */
    speci_gguf_head head;
    gguf_writing w;
} conversion;

/* Is it a whole model: has it each tensor that its family asks for, in its shape, and no other that would count? */
static spec_status check_whole(conversion *k)
{
    model_source *s = &k->source;
    const model_family *family = NULL;
    SPEC_TRY(speci_family_find(&family, &s->config, k->m->path));
    k->m->family = family->name;
    s->config.taken = NULL;
    model_builder b = { .model = k->m, .checkpoint = s->checkpoint, .config = &s->config, .dir = k->m->path, .shapes_only = true };
    if (s->gguf) speci_checkpoint_rename(s->checkpoint, s->gguf->names), b.form = s->gguf->form;
    SPEC_TRY(family->build(&b));
    return speci_model_check_unused(k->m, &s->config, s->checkpoint);
}

/* --- what a directory says --- */

/* The config as the family takes it. */
static spec_status read_config(conversion *k)
{
    const model_family *family = NULL;
    model_source *s = &k->source;
    const model_family *head = speci_family_find_head(&s->config, s->checkpoint);
    if (head)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s is a head on another model's hidden states (%s), which GGUF has no name for", k->m->path,
                          head->name);
    SPEC_TRY(speci_family_find(&family, &s->config, k->m->path));
    s->config.taken = k->taken;
    model_builder b = { .model = k->m, .checkpoint = s->checkpoint, .config = &s->config, .dir = k->m->path, .config_only = true };
    const spec_status status = family->build(&b);
    return b.config_read ? SPEC_OK : status;
}

static spec_status find_row(conversion *k)
{
    char names[512];
    const json_t *type = json_object_get(k->source.config.root, "model_type");
    k->w.row = speci_gguf_row(json_is_string(type) ? json_string_value(type) : "");
    if (k->w.row) return SPEC_OK;
    speci_gguf_row_names(names, sizeof names);
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: model_type is %s, which cannot be written to GGUF; these can: %s", k->source.config.file,
                      speci_value_of(type).s, names);
}

static spec_status open_tokenizer(conversion *k)
{
    const char *path = k->p->tokenizer_path;
    if (!path && !speci_has_tokenizer(k->m->path)) return SPEC_OK;
    return spec_tokenizer_open(&k->tokenizer, path ? path : k->m->path, k->m->allocator);
}

static spec_status put_id(conversion *k, const char *key, int32_t id)
{
    return id >= 0 && id < k->m->n_vocab ? speci_gguf_put_whole(&k->head, key, (uint32_t)id) : SPEC_OK;
}

/* Those of the model, under the keys that the reader has for them. */
static spec_status put_ends(conversion *k)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    const spec_model *m = k->m;
    for (int32_t i = 0; i < m->n_eos && i < 3; i++) SPEC_TRY(put_id(k, keys[i], m->eos[i]));
    if (m->n_eos > 3) speci_log(m->backend, SPEC_LOG_WARN, "%s: of %d end tokens a GGUF file has three", m->path, m->n_eos);
    return SPEC_OK;
}

/* As the model has them when it is opened. */
static spec_status put_ids(conversion *k)
{
    SPEC_TRY(speci_source_ids(k->m, &k->source));
    if (k->tokenizer) SPEC_TRY(speci_model_ids_of_tokenizer(k->m, k->tokenizer));
    const int32_t first = k->tokenizer ? speci_tokenizer_first(k->tokenizer) : -1;
    SPEC_TRY(put_id(k, "tokenizer.ggml.bos_token_id", first >= 0 ? first : k->m->bos));
    return put_ends(k);
}

/* What a model would be refused for when it is asked to follow it, is left out. */
static spec_status put_sampling(conversion *k)
{
    const json_t *root = k->source.generation.root;
    spec_request checked = { 0 };
    bool samples;
    if (!json_is_true(json_object_get(root, "do_sample"))) return SPEC_OK;
    if (speci_generation_sampling(&checked, &k->source.generation, &samples) != SPEC_OK) {
        speci_log(k->m->backend, SPEC_LOG_WARN, "%s: the new file has no defaults of sampling", spec_last_error());
        return SPEC_OK;
    }
    for (const gguf_key *key = speci_gguf_sampling; key->gguf; key++) {
        const json_t *v = json_object_get(root, key->config);
        if (!json_is_number(v)) continue;
        SPEC_TRY(key->kind == GGUF_REAL ? speci_gguf_put_real(&k->head, key->gguf, (float)json_number_value(v))
                                        : speci_gguf_put_whole(&k->head, key->gguf, (uint32_t)json_number_value(v)));
    }
    return SPEC_OK;
}

/* The last part of the path, as a name. */
static spec_status put_name(conversion *k)
{
    const char *path = k->m->path, *end = path + strlen(path);
    while (end > path && end[-1] == '/') end--;
    const char *begin = end;
    while (begin > path && begin[-1] != '/') begin--;
    SPEC_TRY(speci_gguf_put_text(&k->head, "general.type", "model", 5));
    return end > begin ? speci_gguf_put_text(&k->head, "general.name", begin, (size_t)(end - begin)) : SPEC_OK;
}

static void warn_unsaid(void *user_data, const char *text)
{
    const conversion *k = user_data;
    speci_log(k->m->backend, SPEC_LOG_WARN, "%s: %s", k->m->path, text);
}

static spec_status put_tokenizer(conversion *k)
{
    const int32_t n_vocab = (int32_t)json_integer_value(json_object_get(k->taken, "vocab_size"));
    if (!k->tokenizer) return speci_gguf_put_text(&k->head, "tokenizer.ggml.model", "none", 4);
    SPEC_TRY(speci_tokenizer_put_gguf(&k->head, k->tokenizer, n_vocab));
    return speci_tokenizer_tell_unsaid(k->tokenizer, warn_unsaid, k);
}

static spec_status plan_directory(conversion *k)
{
    SPEC_TRY(read_config(k));
    SPEC_TRY(find_row(k));
    SPEC_TRY(open_tokenizer(k));
    SPEC_TRY(speci_gguf_plan(&k->w));
    SPEC_TRY(put_name(k));
    SPEC_TRY(put_sampling(k));
    SPEC_TRY(speci_gguf_check(&k->w, k->m));
    SPEC_TRY(check_whole(k));
    SPEC_TRY(speci_gguf_check_named(&k->w));
    SPEC_TRY(put_ids(k));
    return put_tokenizer(k);
}

/* --- a GGUF file --- */

/* Keys that tell of the old file, not of the model. */
static bool is_of_file(const char *key)
{
    static const char *const keys[] = { "general.file_type", "general.quantization_version", "general.alignment", "split.no", "split.count",
                                        "split.tensors.count" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static spec_status plan_file(conversion *k)
{
    const speci_gguf *g = speci_checkpoint_gguf(k->source.checkpoint);
    if (k->p->tokenizer_path)
        return speci_fail(SPEC_E_INVALID, "%s: a GGUF file keeps its tokenizer, and tokenizer_path is %s", k->m->path,
                          k->p->tokenizer_path);
    for (size_t i = 0; i < g->n_pair; i++)
        if (!is_of_file(g->pairs[i].key)) SPEC_TRY(speci_gguf_put_pair(&k->head, &g->pairs[i]));
    SPEC_TRY(check_whole(k));
    return speci_gguf_plan_same(&k->w);
}

/* --- the new file --- */

static spec_status tell(void *user_data, double fraction)
{
    const conversion *k = user_data;
    if (!k->p->progress || k->p->progress(k->p->progress_user_data, fraction) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_ABORTED, "%s: converting was stopped by the application", k->m->path);
}

static int32_t layers_of(const conversion *k)
{
    return (int32_t)json_integer_value(json_object_get(k->source.config.root, "num_hidden_layers"));
}

static spec_status write_file(conversion *k)
{
    size_t n_other;
    gguf_writing *w = &k->w;
    speci_gguf_choose_types(w->tensors, w->n_tensor, k->mix, layers_of(k), &n_other);
    if (n_other)
        speci_log(k->m->backend, SPEC_LOG_WARN, "%s: %zu of %zu tensors have rows that are no whole blocks of 256, and got blocks of 32 or "
                  "F16", k->m->path, n_other, w->n_tensor);
    SPEC_TRY(speci_gguf_put_whole(&k->head, "general.file_type", k->mix->file_type));
    SPEC_TRY(speci_gguf_put_whole(&k->head, "general.quantization_version", QUANTISATION_VERSION));
    return speci_gguf_write(&(gguf_new_file){ .path = k->out, .head = &k->head, .tensors = w->tensors, .n = w->n_tensor,
                                              .source = k->source.checkpoint, .be = k->m->backend, .progress = tell, .user_data = k,
                                              .a = k->m->allocator });
}

static spec_status convert(conversion *k)
{
    SPEC_TRY(speci_source_read(&k->source, k->m));
    if (!k->source.checkpoint) SPEC_TRY(speci_checkpoint_open(&k->source.checkpoint, k->m->path, k->m->allocator));
    if (!(k->taken = json_object())) return speci_fail(SPEC_E_NOMEM, "%s: out of memory", k->m->path);
    speci_gguf_head_begin(&k->head, k->m->allocator);
    k->w = (gguf_writing){ .head = &k->head, .config = &k->source.config, .taken = k->taken, .checkpoint = k->source.checkpoint,
                           .a = k->m->allocator };
    SPEC_TRY(k->source.gguf ? plan_file(k) : plan_directory(k));
    return write_file(k);
}

static spec_status find_mix(conversion *k)
{
    char names[256];
    const char *type = k->p->type && k->p->type[0] ? k->p->type : "q4_k_m";
    k->mix = speci_gguf_mix(type);
    if (k->mix) return SPEC_OK;
    speci_gguf_mix_names(names, sizeof names);
    return speci_fail(SPEC_E_INVALID, "type is \"%.60s\", expected one of %s", type, names);
}

spec_status spec_model_convert(spec_backend *backend, const char *path, const char *out, const spec_convert_params *params)
{
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    conversion k = { .out = out, .p = &p };
    if (!backend || !path || !path[0] || !out || !out[0])
        return speci_fail(SPEC_E_INVALID, "spec_model_convert needs a backend, a path and a path to write to, none of them empty");
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_convert_params"));
    SPEC_TRY(find_mix(&k));
    SPEC_TRY(speci_source_check(path));
    SPEC_TRY(speci_model_new(&k.m, backend, &speci_exec_net, path));
    const spec_status status = convert(&k);
    speci_gguf_plan_free(&k.w);
    speci_gguf_head_free(&k.head);
    spec_tokenizer_close(k.tokenizer);
    speci_source_close(&k.source);
    json_decref(k.taken);
    spec_model_close(k.m);
    return status;
}
