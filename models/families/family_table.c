/* family_table.c - the one table of families. A new family is one file and one row. */
#include <stdio.h>
#include <string.h>

#include "models/families/family.h"

static const model_family families[] = {
    /* Told apart by what is in the directory or in the file, not by model_type. */
    { "mambainllama", NULL, speci_is_mambainllama, speci_family_mambainllama },
    { "mamba2", NULL, speci_is_mamba2_original, speci_family_mamba2_original },
    { "mamba", NULL, speci_is_mamba_original, speci_family_mamba_original },
    /* By model_type. */
    { "llama", "llama", NULL, speci_family_llama },
    { "mistral", "mistral", NULL, speci_family_mistral },
    { "qwen2", "qwen2", NULL, speci_family_qwen2 },
    { "qwen3", "qwen3", NULL, speci_family_qwen3 },
    { "granite", "granite", NULL, speci_family_granite },
    { "phi3", "phi3", NULL, speci_family_phi3 },
    { "gemma", "gemma", NULL, speci_family_gemma },
    { "gemma3", "gemma3_text", NULL, speci_family_gemma3 },
    { "seed_oss", "seed_oss", NULL, speci_family_seed_oss },
    { "ministral", "ministral", NULL, speci_family_ministral },
    { "smollm3", "smollm3", NULL, speci_family_smollm3 },
    { "olmo", "olmo", NULL, speci_family_olmo },
    { "ernie4_5", "ernie4_5", NULL, speci_family_ernie4_5 },
    { "helium", "helium", NULL, speci_family_helium },
    { "internlm3", "internlm3", NULL, speci_family_internlm3 },
    { "glm", "glm", NULL, speci_family_glm },
    { "glm4", "glm4", NULL, speci_family_glm4 },
    { "exaone4", "exaone4", NULL, speci_family_exaone4 },
    { "olmo2", "olmo2", NULL, speci_family_olmo2 },
    { "olmo3", "olmo3", NULL, speci_family_olmo3 },
    { "stablelm", "stablelm", NULL, speci_family_stablelm },
    { "starcoder2", "starcoder2", NULL, speci_family_starcoder2 },
    { "cohere", "cohere", NULL, speci_family_cohere },
    { "cohere2", "cohere2", NULL, speci_family_cohere2 },
    { "phi", "phi", NULL, speci_family_phi },
    { "gptj", "gptj", NULL, speci_family_gptj },
    { "gpt_neox", "gpt_neox", NULL, speci_family_gpt_neox },
    { "mamba", "mamba", NULL, speci_family_mamba },
    { "mamba2", "mamba2", NULL, speci_family_mamba2 },
    { "bamba", "bamba", NULL, speci_family_bamba },
    { "granitemoehybrid", "granitemoehybrid", NULL, speci_family_granitemoehybrid },
    { "lfm2", "lfm2", NULL, speci_family_lfm2 },
};
#define N_FAMILY (sizeof families / sizeof *families)

/* "llama, mistral, ..." for the message. */
static void list_types(char *text, size_t cap)
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < N_FAMILY && n < cap; i++)
        if (families[i].model_type)
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n ? ", " : "", families[i].model_type);
}

spec_status speci_family_find(const model_family **out, const model_config *config, const char *dir)
{
    char known[512];
    const char *type = json_string_value(json_object_get(config->root, "model_type"));
    for (size_t i = 0; i < N_FAMILY; i++) {
        const model_family *f = &families[i];
        if (f->matches ? f->matches(config, dir) : type && strcmp(f->model_type, type) == 0) {
            *out = f;
            return speci_family_check_class(config);
        }
    }
    list_types(known, sizeof known);
    return speci_family_refuse(config, known);
}
