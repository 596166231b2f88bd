/* family_granite.c - Granite 3: Llama with four factors: of embeddings, of scores in place of 1 / sqrt(head_dim), of what a
 * branch adds, and one by which logits are divided. Source: transformers models/granite. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_granite_read_scales(model_config *c, model_transformer *t, model_granite_scales *out)
{
    double embed, logits;
    SPEC_TRY(speci_config_number_or(c, &embed, "embedding_multiplier", 1, 1e-6, 1e6));
    SPEC_TRY(speci_config_number_or(c, &logits, "logits_scaling", 1, 1e-6, 1e6));
    SPEC_TRY(speci_config_number_or(c, &t->attention_scale, "attention_multiplier", 1, 1e-6, 1e6));
    SPEC_TRY(speci_config_number_or(c, &t->residual_scale, "residual_multiplier", 1, 1e-6, 1e6));
    *out = (model_granite_scales){ .embed = (float)embed, .logits = (float)(1 / logits) };
    return SPEC_OK;
}

spec_status speci_family_granite(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = 1e-6, .rope = speci_rope_whole_head };
    model_config *c = b->config;
    model_transformer t;
    model_granite_scales scales;
    SPEC_TRY(speci_transformer_read(c, &t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(c, &t));
    SPEC_TRY(speci_granite_read_scales(c, &t, &scales));
    SPEC_TRY(speci_transformer_build(b, &t, NULL));
    b->model->embed_scale = scales.embed;
    b->model->logit_scale = scales.logits;
    return SPEC_OK;
}
