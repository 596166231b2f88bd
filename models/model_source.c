/* model_source.c - see model_source.h. */
#include "models/model_source.h"

#include <string.h>

/* "org/name": what people write when they mean a repository of the hub. */
static bool looks_like_repository(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && path[0] != '~';
}

spec_status speci_source_check(const char *path)
{
    SPEC_TRY(speci_path_check(path));
    if (speci_is_directory(path) || (speci_ends_with(path, ".gguf") && speci_file_exists(path)) || speci_is_gguf(path)) return SPEC_OK;
    if (speci_ends_with(path, ".bin"))
        return speci_fail(SPEC_E_UNSUPPORTED,
                          "%s: pickle files are not read, expected a directory with config.json and model.safetensors: "
                          "examples/convert_bin.py writes safetensors",
                          path);
    if (speci_file_exists(path))
        return speci_fail(SPEC_E_INVALID, "%s: a file, expected the directory with config.json and model.safetensors, or a GGUF file",
                          path);
    if (looks_like_repository(path))
        return speci_fail(SPEC_E_IO,
                          "%s: no such directory. If it is a repository of the Hugging Face hub, download it first: "
                          "huggingface-cli download %s --local-dir %s",
                          path, path, strchr(path, '/') + 1);
    return speci_fail(SPEC_E_IO, "%s: no such %s", path, speci_ends_with(path, ".gguf") ? "file" : "directory");
}

static spec_status read_directory(const spec_model *m, model_source *s)
{
    SPEC_TRY(speci_path_join(s->path[0], MODEL_MAX_PATH, m->path, "config.json"));
    SPEC_TRY(speci_path_join(s->path[1], MODEL_MAX_PATH, m->path, "generation_config.json"));
    if (!speci_file_exists(s->path[0])) return speci_directory_refuse(m->path, "config.json");
    SPEC_TRY(speci_config_read(&s->config, s->path[0], m->allocator));
    return speci_file_exists(s->path[1]) ? speci_config_read(&s->generation, s->path[1], m->allocator) : SPEC_OK;
}

static spec_status read_gguf(const spec_model *m, model_source *s)
{
    SPEC_TRY(speci_checkpoint_open(&s->checkpoint, m->path, m->allocator));
    SPEC_TRY(speci_gguf_config(&s->config, &s->gguf, s->checkpoint, m->path));
    return speci_gguf_generation(&s->generation, speci_checkpoint_gguf(s->checkpoint));
}

spec_status speci_source_read(model_source *s, const spec_model *m)
{
    return speci_is_directory(m->path) ? read_directory(m, s) : read_gguf(m, s);
}

void speci_source_close(model_source *s)
{
    speci_checkpoint_close(s->checkpoint);
    speci_config_close(&s->generation);
    speci_config_close(&s->config);
}

bool speci_has_tokenizer(const char *dir) { return speci_has_file(dir, "tokenizer.json") || speci_has_file(dir, "tokenizer.model"); }

/* --- ids --- */

/* *out is -1, with a warning, for an id that the model has no row for: such a token never comes, and files have -1 for
 * "none", or the ids of the model they were made from. */
static spec_status one_id(const spec_model *m, int32_t *out, const json_t *v, const char *file, const char *key)
{
    *out = -1;
    if (!json_is_integer(v))
        return speci_fail(SPEC_E_FORMAT, "%s: %s is %s, expected an id below %d", file, key, speci_value_of(v).s,
                          m->n_vocab);
    if (json_integer_value(v) >= 0 && json_integer_value(v) < m->n_vocab)
        *out = (int32_t)json_integer_value(v);
    else
        speci_log(m->backend, SPEC_LOG_WARN, "%s: %s is %s, and the model has ids below %d: no such token ever comes",
                  file, key, speci_value_of(v).s, m->n_vocab);
    return SPEC_OK;
}

/* eos_token_id: a number or a list. A list of which no id is left says that there is none: no other file is asked. */
static spec_status read_eos(spec_model *m, const json_t *v, const char *file)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    m->eos = speci_alloc(m->allocator, n, sizeof *m->eos);
    if (!m->eos) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        SPEC_TRY(one_id(m, &id, json_is_array(v) ? json_array_get(v, i) : v, file, "eos_token_id"));
        if (id >= 0) m->eos[m->n_eos++] = id;
    }
    return SPEC_OK;
}

/* Ids that the model does not have yet. */
static spec_status read_ids(spec_model *m, const model_config *c)
{
    const json_t *bos = json_object_get(c->root, "bos_token_id"), *eos = json_object_get(c->root, "eos_token_id");
    if (m->bos < 0 && bos && !json_is_null(bos)) SPEC_TRY(one_id(m, &m->bos, bos, c->file, "bos_token_id"));
    if (!m->eos && eos && !json_is_null(eos)) return read_eos(m, eos, c->file);
    return SPEC_OK;
}

spec_status speci_source_ids(spec_model *m, const model_source *s)
{
    SPEC_TRY(read_ids(m, &s->generation)); /* which counts first */
    return read_ids(m, &s->config);
}
