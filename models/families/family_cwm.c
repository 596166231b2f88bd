/* family_cwm.c - Code World Model: Llama with sliding windows in three of four layers. Source: transformers models/cwm. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

enum { PERIOD = 4 }; /* the first of so many layers has no window */

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    int32_t width;
    if (speci_config_present(c, "sliding_window") && !speci_config_has(c, "sliding_window"))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: sliding_window is null, expected a number: this family has windows", c->file);
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 8192, 1, INT32_MAX));
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].window = i % PERIOD ? width : 0;
    return speci_transformer_layer_types(c, layers, t->n_layer, width, "sliding_window is null");
}

/* The class has a scaling of its own where the file says nothing. */
static spec_status check_rope(const model_config *c)
{
    if (speci_config_has(c, "rope_scaling") || speci_config_has(c, "rope_parameters")) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: rope_scaling is missing, expected an object", c->file);
}

spec_status speci_family_cwm(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 131072, .n_kv_head = 8, .head_dim = 128, .eps = 1e-5,
        .rope = { .theta = "rope_theta", .theta_default = 1000000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true },
    };
    model_transformer t;
    SPEC_TRY(check_rope(b->config));
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.mlp_bias, "mlp_bias", false));
    return speci_transformer_build(b, &t, read_layers);
}
