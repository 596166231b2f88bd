/* family_phi3.c - Phi-3, Phi-3.5 and Phi-4: Llama with q, k and v in one tensor, gate and up in another, heads that may turn
 * partly, a sliding window, and rope_type "longrope" for the long ones. Source: transformers models/phi3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_phi3(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 4096, .eps = 1e-5,
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 1, .partial_top_counts = true,
                  .original_default = 4096 },
    };
    /* Training's; and what only "longrope" reads. */
    static const char *const inert[] = { "resid_pdrop", "embd_pdrop", "original_max_position_embeddings" };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    if (t.rope.type != MODEL_ROPE_DEFAULT && t.rope.type != MODEL_ROPE_LONGROPE)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: rope_type is \"%s\", expected default or longrope", b->config->file,
                          speci_rope_type_name(&t.rope));
    SPEC_TRY(speci_config_int_or(b->config, &t.window, "sliding_window", 0, 1, INT32_MAX));
    SPEC_TRY(speci_config_agree(b->config, "full_attn_mod", 1)); /* in Phi-4-mini's file, both; not read by the class */
    SPEC_TRY(speci_config_agree(b->config, "interpolate_factor", 1));
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++) (void)speci_config_take(b->config, inert[i]);
    t.qkv = MODEL_QKV_FUSED;
    t.fused_mlp = true;
    return speci_transformer_build(b, &t, NULL);
}
