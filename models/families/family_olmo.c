/* family_olmo.c - OLMo 1: Llama with layer norms that have neither weight nor bias. Source: transformers models/olmo. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

#define OLMO_EPS 1e-5 /* no key says it */

spec_status speci_family_olmo(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = OLMO_EPS, .rope = speci_rope_whole_head };
    model_config *c = b->config;
    model_transformer t;
    SPEC_TRY(speci_transformer_read(c, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(c, &t.qkv_bias, "attention_bias", false));
    speci_config_note(c, "rms_norm_eps", json_null());
    if (t.eps != OLMO_EPS)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: rms_norm_eps is %g, expected none: OLMo's norms have %g", c->file, t.eps,
                          OLMO_EPS);
    t.out_bias = t.qkv_bias;
    t.norm = MODEL_NORM_LAYER_BARE;
    return speci_transformer_build(b, &t, NULL);
}
