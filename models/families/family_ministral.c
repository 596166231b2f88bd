/* family_ministral.c - Ministral: Mistral with a window in the layers that layer_types says. Source: transformers
 * models/ministral. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    return speci_transformer_layer_types(c, layers, t->n_layer, t->window, "sliding_window is null");
}

spec_status speci_family_ministral(model_builder *b)
{
    model_transformer t;
    SPEC_TRY(speci_mistral_read(b->config, &t));
    return speci_transformer_build(b, &t, read_layers);
}
