/* family_internlm3.c - InternLM3: Llama with a head size of its own. Source: transformers models/internlm3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

/* The first files say qkv_bias, of q, k and v, and bias, of what is left; new ones attention_bias, of all four projections, and
 * mlp_bias. Like the class, this takes files in which the two are the same. */
static spec_status read_biases(model_config *c, model_transformer *t)
{
    SPEC_TRY(speci_transformer_read_biases(c, t));
    SPEC_TRY(speci_config_bool_or(c, &t->qkv_bias, "qkv_bias", t->qkv_bias));
    SPEC_TRY(speci_config_bool_or(c, &t->mlp_bias, "bias", t->mlp_bias));
    t->out_bias = t->qkv_bias;
    if (t->qkv_bias == t->mlp_bias) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: qkv_bias is %s and bias %s: expected both true or both false", c->file,
                      t->qkv_bias ? "true" : "false", t->mlp_bias ? "true" : "false");
}

spec_status speci_family_internlm3(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 32768, .n_kv_head = 2, .head_dim = 128, .eps = 1e-5,
                                                  .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(read_biases(b->config, &t));
    return speci_transformer_build(b, &t, NULL);
}
