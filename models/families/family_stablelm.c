/* family_stablelm.c - StableLM: Llama with layer norms, a quarter of each head turning, and, where the config says so, attention
 * and MLP side by side behind one norm. Source: transformers models/stablelm. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_stablelm(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 4096, .n_kv_head = 32, .eps_key = "layer_norm_eps", .eps = 1e-5,
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 0.25,
                  .partial_top_counts = true },
    };
    model_transformer_names names = speci_llama_names;
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "use_qkv_bias", false));
    SPEC_TRY(speci_config_bool_or(b->config, &t.parallel, "use_parallel_residual", false));
    t.norm = MODEL_NORM_LAYER;
    if (t.parallel) names.norm2 = NULL;
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
