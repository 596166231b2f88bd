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
