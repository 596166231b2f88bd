/* family_table.c - the one table of families. A new family is one file and one row. */
#include <stdio.h>
#include <string.h>

#include "models/families/family.h"

static const model_family families[] = {
    /* Told apart by what is in the directory or in the file, not by model_type. */
    { "mambainllama", NULL, speci_is_mambainllama, speci_family_mambainllama, NULL },
    { "mamba2", NULL, speci_is_mamba2_original, speci_family_mamba2_original, NULL },
    { "mamba", NULL, speci_is_mamba_original, speci_family_mamba_original, NULL },
    /* By model_type. */
    { "llama", "llama", NULL, speci_family_llama, NULL },
    { "mistral", "mistral", NULL, speci_family_mistral, NULL },
    { "qwen2", "qwen2", NULL, speci_family_qwen2, NULL },
    { "qwen3", "qwen3", NULL, speci_family_qwen3, NULL },
    { "granite", "granite", NULL, speci_family_granite, NULL },
    { "phi3", "phi3", NULL, speci_family_phi3, NULL },
    { "gemma", "gemma", NULL, speci_family_gemma, NULL },
    { "gemma2", "gemma2", NULL, speci_family_gemma2, NULL },
    { "gemma3", "gemma3_text", NULL, speci_family_gemma3, NULL },
    { "seed_oss", "seed_oss", NULL, speci_family_seed_oss, NULL },
    { "ministral", "ministral", NULL, speci_family_ministral, NULL },
    { "smollm3", "smollm3", NULL, speci_family_smollm3, NULL },
    { "olmo", "olmo", NULL, speci_family_olmo, NULL },
    { "ernie4_5", "ernie4_5", NULL, speci_family_ernie4_5, NULL },
    { "helium", "helium", NULL, speci_family_helium, NULL },
    { "internlm3", "internlm3", NULL, speci_family_internlm3, NULL },
    { "glm", "glm", NULL, speci_family_glm, NULL },
    { "glm4", "glm4", NULL, speci_family_glm4, NULL },
    { "exaone4", "exaone4", NULL, speci_family_exaone4, NULL },
    { "olmo2", "olmo2", NULL, speci_family_olmo2, NULL },
    { "olmo3", "olmo3", NULL, speci_family_olmo3, NULL },
    { "stablelm", "stablelm", NULL, speci_family_stablelm, NULL },
    { "starcoder2", "starcoder2", NULL, speci_family_starcoder2, NULL },
    { "cohere", "cohere", NULL, speci_family_cohere, NULL },
    { "cohere2", "cohere2", NULL, speci_family_cohere2, NULL },
    { "phi", "phi", NULL, speci_family_phi, NULL },
    { "gptj", "gptj", NULL, speci_family_gptj, NULL },
    { "cwm", "cwm", NULL, speci_family_cwm, NULL },
    { "gpt_neox_japanese", "gpt_neox_japanese", NULL, speci_family_gpt_neox_japanese, NULL },
    { "codegen", "codegen", NULL, speci_family_codegen, NULL },
    { "exaone", "exaone", NULL, speci_family_exaone, NULL },
    { "falcon", "falcon", NULL, speci_family_falcon, NULL },
    { "gpt_neox", "gpt_neox", NULL, speci_family_gpt_neox, NULL },
    { "mamba", "mamba", NULL, speci_family_mamba, NULL },
    { "mamba2", "mamba2", NULL, speci_family_mamba2, NULL },
    { "bamba", "bamba", NULL, speci_family_bamba, NULL },
    { "granitemoehybrid", "granitemoehybrid", NULL, speci_family_granitemoehybrid, NULL },
    { "lfm2", "lfm2", NULL, speci_family_lfm2, NULL },
};
#define N_FAMILY (sizeof families / sizeof *families)

/* Heads: networks that draft from another model's hidden states. */
static const model_family heads[] = {
    { .name = "eagle3", .is_head = speci_is_eagle3, .build = speci_family_eagle3 },
    { .name = "lyanna", .is_head = speci_is_lyanna, .build = speci_family_lyanna },
    { .name = "eagle2", .is_head = speci_is_eagle2, .build = speci_family_eagle2 },
};

const model_family *speci_family_find_head(const model_config *config, const model_checkpoint *checkpoint)
{
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (heads[i].is_head(config, checkpoint)) return &heads[i];
    return NULL;
}

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
