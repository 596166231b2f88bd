/* family_phi.c - Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side behind one layer norm, biases everywhere, half of
 * each head turning. Source: transformers models/phi. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_phi(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 2048, .eps_key = "layer_norm_eps", .eps = 1e-5, .act = "gelu_new",
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 0.5,
                  .partial_top_counts = true },
    };
    static const char *const training[] = { "resid_pdrop", "embd_pdrop" };
    model_transformer_names names = speci_llama_names;
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) (void)speci_config_take(b->config, training[i]);
    t.qkv_bias = t.out_bias = t.mlp_bias = t.head_bias = true;
    t.norm = MODEL_NORM_LAYER;
    t.ungated = t.parallel = true;
    if (speci_checkpoint_find(b->checkpoint, "model.layers.0.self_attn.qkv_proj.weight")) t.qkv = MODEL_QKV_FUSED; /* old GGUF files */
    names.final_norm = "model.final_layernorm", names.norm2 = NULL;
    names.out = "dense", names.up = "fc1", names.down = "fc2";
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
