/* family_cohere2.c - Cohere's Command R7B and Command A: Cohere with a sliding window in three layers of four; the heads of the
 * others do not turn. Source: transformers models/cohere2. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    int32_t pattern, width;
    SPEC_TRY(speci_config_int_or(c, &pattern, "sliding_window_pattern", 4, 1, INT32_MAX));
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 4096, 1, INT32_MAX));
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].window = (i + 1) % pattern ? width : 0;
    SPEC_TRY(speci_transformer_layer_types(c, layers, t->n_layer, width, ""));
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].no_rope = layers[i].window == 0;
    return SPEC_OK;
}

/* In the files, and without a meaning for the class: what it always does. */
static spec_status read_fixed(model_config *c)
{
    static const char *const always[] = { "use_gated_activation", "use_parallel_block", "use_embedding_sharing" };
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) SPEC_TRY(speci_config_agree_bool(c, always[i], true));
    SPEC_TRY(speci_config_agree_bool(c, "use_parallel_embedding", false));
    SPEC_TRY(speci_config_agree_text(c, "position_embedding_type", "rope_gptj"));
    SPEC_TRY(speci_config_agree_text(c, "order_of_interleaved_layers", "local_attn_first"));
    SPEC_TRY(speci_config_agree(c, "rotary_pct", 1));
    if (speci_config_present(c, "sliding_window") && !speci_config_has(c, "sliding_window"))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: sliding_window is null, expected a width", c->file);
    (void)speci_config_take(c, "layer_switch");         /* sliding_window_pattern, once more */
    (void)speci_config_take(c, "cache_implementation"); /* of generate */
    return SPEC_OK;
}

spec_status speci_family_cohere2(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 8192, .eps_key = "layer_norm_eps", .eps = 1e-5, .tied = true,
                                                  .rope = speci_rope_whole_head };
    SPEC_TRY(read_fixed(b->config));
    return speci_cohere_build(b, &defaults, read_layers);
}
