/* family.h - the families: one function per model_type, one row each in family_table.c. Internal. */
#ifndef SPEC_MODEL_FAMILY_H
#define SPEC_MODEL_FAMILY_H

#include "models/families/family_build.h"

/* Reads b->config, then fills b->model: sizes, embeddings, layers, final norm, head. What it made is in the model's
 * list of owned things, also when it fails. */
typedef spec_status (*model_family_build)(model_builder *b);

typedef struct model_family {
    const char *name;       /* for spec_model_info */
    const char *model_type; /* as config.json says; NULL: found by `matches` */
    /* Layouts that say no model_type of their own; asked in order before the others. */
    bool (*matches)(const model_config *config, const char *dir);
    model_family_build build;
    bool (*is_head)(const model_config *config, const model_checkpoint *checkpoint); /* of heads, in place of the two above */
} model_family;

/* The family of config.json in `dir`; fails naming the model_type and those that are known. */
spec_status speci_family_find(const model_family **out, const model_config *config, const char *dir);
/* Heads on another model's hidden states say as a rule the model_type of their one layer. Found by what config.json says of them
 * (checkpoint NULL), or by their tensors; NULL: it is none. */
const model_family *speci_family_find_head(const model_config *config, const model_checkpoint *checkpoint);
spec_status speci_family_eagle2(model_builder *b);
spec_status speci_family_eagle3(model_builder *b);
spec_status speci_family_lyanna(model_builder *b);
bool speci_is_lyanna(const model_config *config, const model_checkpoint *checkpoint);
bool speci_is_eagle2(const model_config *config, const model_checkpoint *checkpoint);
bool speci_is_eagle3(const model_config *config, const model_checkpoint *checkpoint);

/* Its parts (family_refuse.c): fails where `architectures` names a class of another family than model_type, which it names
 * both; fails for a model_type that no row has, and tells what the model would need where the config tells. */
spec_status speci_family_check_class(const model_config *config);
spec_status speci_family_refuse(const model_config *config, const char *known);

spec_status speci_family_llama(model_builder *b);
spec_status speci_family_mistral(model_builder *b);
spec_status speci_family_qwen2(model_builder *b);
spec_status speci_family_qwen3(model_builder *b);
spec_status speci_family_granite(model_builder *b);
spec_status speci_family_phi3(model_builder *b);
spec_status speci_family_gemma(model_builder *b);
spec_status speci_family_gemma2(model_builder *b);
spec_status speci_family_gemma3(model_builder *b);
spec_status speci_family_seed_oss(model_builder *b);
spec_status speci_family_ministral(model_builder *b);
spec_status speci_family_smollm3(model_builder *b);
spec_status speci_family_olmo(model_builder *b);
spec_status speci_family_ernie4_5(model_builder *b);
spec_status speci_family_helium(model_builder *b);
spec_status speci_family_internlm3(model_builder *b);
spec_status speci_family_glm(model_builder *b);
spec_status speci_family_glm4(model_builder *b);
spec_status speci_family_exaone4(model_builder *b);
spec_status speci_family_olmo2(model_builder *b);
spec_status speci_family_olmo3(model_builder *b);
spec_status speci_family_stablelm(model_builder *b);
spec_status speci_family_starcoder2(model_builder *b);
spec_status speci_family_cohere(model_builder *b);
spec_status speci_family_cohere2(model_builder *b);
spec_status speci_family_phi(model_builder *b);
spec_status speci_family_gptj(model_builder *b);
spec_status speci_family_cwm(model_builder *b);
spec_status speci_family_gpt_neox_japanese(model_builder *b);
spec_status speci_family_codegen(model_builder *b);
spec_status speci_family_exaone(model_builder *b);
spec_status speci_family_falcon(model_builder *b);
spec_status speci_family_gpt_neox(model_builder *b);
spec_status speci_family_mamba(model_builder *b);
spec_status speci_family_mamba_original(model_builder *b);
spec_status speci_family_mamba2(model_builder *b);
spec_status speci_family_mamba2_original(model_builder *b);
spec_status speci_family_bamba(model_builder *b);
spec_status speci_family_granitemoehybrid(model_builder *b);
spec_status speci_family_lfm2(model_builder *b);
spec_status speci_family_mambainllama(model_builder *b);

bool speci_is_mamba_original(const model_config *config, const char *dir);
bool speci_is_mamba2_original(const model_config *config, const char *dir);
bool speci_is_mambainllama(const model_config *config, const char *dir);

#endif
