/* files_directory.c - a directory that is not a model as transformers writes it: what it is, and what to do. */
#include <string.h>

#include "models/files/files_checkpoint.h"

typedef struct other_layout {
    const char *name;   /* of a file; with a star in front, how one ends; with a slash behind, of a directory */
    const char *advice; /* what that means, and the next step */
} other_layout;

/* The first that fits is told. */
static const other_layout layouts[] = {
    { "adapter_config.json", "a LoRA adapter, not a model: merge it into its base model (peft: merge_and_unload, then "
                             "save_pretrained) and take that directory" },
    { "snapshots/", "the download cache's directory of a repository: take the one below snapshots/" },
    { "pytorch_model.bin", "only pytorch_model.bin (pickle): examples/convert_bin.py writes safetensors" },
    { "pytorch_model.bin.index.json", "only pytorch_model.bin (pickle): examples/convert_bin.py writes safetensors" },
    { "consolidated.safetensors", "Mistral's own format (consolidated.safetensors, params.json): take the model in the Hugging "
                                  "Face layout, with config.json and model.safetensors" },
    { "*.pth", "Meta's own format (consolidated.*.pth, params.json): take the model in the Hugging Face layout, or convert it "
               "(transformers: convert_llama_weights_to_hf.py)" },
    { "params.json", "Mistral's own format (consolidated.safetensors, params.json): take the model in the Hugging Face layout, "
                     "with config.json and model.safetensors" },
    { "*.gguf", "a GGUF file is a model by itself: give its path, and of several parts the first's" },
    { "*.bin", "pickle files (.bin): examples/convert_bin.py writes safetensors" },
    { "*.pt", "pickle files (.pt): take the model in the Hugging Face layout, with config.json and model.safetensors" },
    { "*.msgpack", "weights of Flax: load the model in transformers with from_flax and save it with save_pretrained" },
    { "*.h5", "weights of TensorFlow: load the model in transformers with from_tf and save it with save_pretrained" },
    { "*.safetensors", "the weights have another name, or are shards without their index: expected model.safetensors, or shards "
                       "with model.safetensors.index.json" },
};

bool speci_has_file(const char *dir, const char *name)
{
    char path[MODEL_MAX_PATH];
    return speci_path_join(path, sizeof path, dir, name) == SPEC_OK && speci_file_exists(path);
}

static bool fits(const char *dir, const char *name)
{
    return name[0] == '*' ? speci_dir_has_ending(dir, name + 1) : speci_has_file(dir, name);
}

spec_status speci_directory_refuse(const char *dir, const char *missing)
{
    const bool config = strcmp(missing, "config.json") == 0; /* what its weights are called is then beside the point */
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (fits(dir, layouts[i].name) && !(config && strcmp(layouts[i].name, "*.safetensors") == 0))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is missing; found %s: %s", dir, missing, layouts[i].name,
                              layouts[i].advice);
    return speci_fail(SPEC_E_IO, "%s: %s is missing: expected a directory with config.json and model.safetensors, as "
                      "transformers writes it", dir, missing);
}
