/* family_phi3.c - Phi-3, Phi-3.5 and Phi-4, all but the long ones (rope_type "longrope"): Llama with q, k and v in one tensor, gate and up
 * in another, heads that may turn partly, and a sliding window. Source: transformers models/phi3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_phi3(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 4096, .eps = 1e-5,
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 1, .partial_top_counts = true },
    };
    /* Training's; and the length that factors of "longrope" begin at. */
    static const char *const inert[] = { "resid_pdrop", "embd_pdrop", "original_max_position_embeddings" };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_int_or(b->config, &t.window, "sliding_window", 0, 1, INT32_MAX));
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++) (void)speci_config_take(b->config, inert[i]);
    t.fused_qkv = t.fused_mlp = true;
    return speci_transformer_build(b, &t, NULL);
}
