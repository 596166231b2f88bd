/* family_helium.c - Helium: Llama whose heads turn in neighbouring pairs. Source: transformers models/helium. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_helium(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 4096, .n_kv_head = 20, .head_dim = 128, .eps = 1e-8,
        .rope = { .theta = "rope_theta", .theta_default = 100000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true },
    };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(b->config, &t));
    t.out_bias = false; /* whatever the config says */
    t.interleaved = true;
    return speci_transformer_build(b, &t, NULL);
}
