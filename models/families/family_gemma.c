/* family_gemma.c - Gemma 1: Llama with norms whose weights are told as what they are above 1, embeddings times
 * sqrt(hidden_size), and GELU. Source: transformers models/gemma. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

#include <math.h>
#include <string.h>

/* The first files say "gelu" and mean its tanh form, as the class has it. hidden_activation came later. */
static spec_status gemma_activation(model_config *c, model_transformer *t)
{
    const char *act;
    SPEC_TRY(speci_config_string_or(c, &act, "hidden_activation", "gelu_pytorch_tanh"));
    if (strcmp(act, "gelu_pytorch_tanh") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: hidden_activation is \"%.60s\", expected gelu_pytorch_tanh", c->file, act);
    if (t->act != SPEC_ACT_GELU) return SPEC_OK;
    t->act = SPEC_ACT_GELU_TANH;
    speci_config_note(c, "hidden_act", json_null());
    return SPEC_OK;
}

/* The key of Gemma 1 means nothing to the later classes. */
spec_status speci_gemma_one_activation(model_config *c, model_transformer *t)
{
    SPEC_TRY(gemma_activation(c, t));
    if (t->act == SPEC_ACT_GELU_TANH) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: hidden_act is %s, but this family's activation is gelu_pytorch_tanh", c->file,
                      speci_value_of(json_object_get(c->root, "hidden_act")).s);
}

spec_status speci_family_gemma(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 8192, .n_kv_head = 16, .head_dim = 256, .eps = 1e-6, .tied = true,
                                                  .act = "gelu_pytorch_tanh", .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    SPEC_TRY(gemma_activation(b->config, &t));
    t.out_bias = t.qkv_bias;
    b->norms_from_one = true;
    SPEC_TRY(speci_transformer_build(b, &t, NULL));
    b->model->embed_scale = (float)sqrt(t.dim);
    return SPEC_OK;
}
