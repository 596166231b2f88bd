/* family_mamba.c - Mamba-1, as transformers writes it (models/mamba) and in the original layout (mamba_ssm
 * modules/mamba_simple.py), whose config leaves most numbers to the module's defaults. */
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_ssm.h"

/* "auto" or absent: ceil(dim / 16) */
static spec_status read_rank(model_config *c, int32_t *rank, const char *key, int32_t dim)
{
    const json_t *v = json_object_get(c->root, key);
    const bool automatic = json_is_string(v) && strcmp(json_string_value(v), "auto") == 0;
    *rank = (dim + 15) / 16;
    if (automatic) {
        speci_config_take(c, key);
        speci_config_note(c, key, json_integer(*rank));
        return SPEC_OK;
    }
    return speci_config_int_or(c, rank, key, *rank, 1, MODEL_DIM_MAX);
}

static spec_status mixer(model_builder *b, model_branch *out, const char *prefix, const void *shape)
{
    return speci_model_build_mamba1(b, out, prefix, shape);
}

spec_status speci_family_mamba(model_builder *b)
{
    model_config *c = b->config;
    model_mamba1_shape m = { 0 };
    model_ssm s;
    int32_t expand;
    SPEC_TRY(speci_ssm_read(c, &s, true));
    m.dim = s.dim;
    SPEC_TRY(speci_config_int_or(c, &expand, "expand", 2, 1, MODEL_EXPAND_MAX));
    m.n_inner = expand * s.dim; /* the class computes it; a file that says otherwise contradicts itself */
    SPEC_TRY(speci_config_agree(c, "intermediate_size", m.n_inner));
    SPEC_TRY(speci_config_agree(c, "d_inner", m.n_inner));
    SPEC_TRY(speci_config_int_or(c, &m.n_state, "state_size", 16, 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &m.width, "conv_kernel", 4, 1, 64));
    SPEC_TRY(read_rank(c, &m.dt_rank, "time_step_rank", s.dim));
    SPEC_TRY(speci_config_bool_or(c, &m.bias, "use_bias", false));
    SPEC_TRY(speci_config_bool_or(c, &m.conv_bias, "use_conv_bias", true));
    return speci_ssm_build(b, &s, mixer, &m);
}

/* --- original layout --- */

bool speci_is_mamba_original(const model_config *config, const char *dir)
{
    const char *layer;
    (void)dir;
    return speci_ssm_is_original(config, &layer);
}

static spec_status read_ssm_cfg(model_config *c, model_mamba1_shape *m)
{
    static const char *const training[] = { "layer", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor",
                                            "use_fast_path" };
    int32_t expand;
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) speci_config_take(c, training[i]);
    SPEC_TRY(speci_config_int_or(c, &expand, "expand", 2, 1, MODEL_EXPAND_MAX));
    m->n_inner = expand * m->dim;
    SPEC_TRY(speci_config_int_or(c, &m->n_state, "d_state", 16, 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->width, "d_conv", 4, 1, 64));
    SPEC_TRY(read_rank(c, &m->dt_rank, "dt_rank", m->dim));
    SPEC_TRY(speci_config_bool_or(c, &m->bias, "bias", false));
    SPEC_TRY(speci_config_bool_or(c, &m->conv_bias, "conv_bias", true));
    return speci_config_all_known(c);
}

spec_status speci_family_mamba_original(model_builder *b)
{
    model_mamba1_shape m = { 0 };
    model_config cfg;
    model_ssm s;
    const char *layer;
    speci_ssm_is_original(b->config, &layer);
    if (strcmp(layer, "Mamba1") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: ssm_cfg.layer is \"%.60s\", expected Mamba1 or Mamba2",
                          b->config->file, layer);
    SPEC_TRY(speci_ssm_read_original(b->config, &s));
    m.dim = s.dim;
    SPEC_TRY(speci_config_child(b->config, &cfg, "ssm_cfg"));
    if (!cfg.root) cfg.root = json_object(), cfg.rest = json_object(); /* all defaults */
    const spec_status status = cfg.root && cfg.rest ? read_ssm_cfg(&cfg, &m) : SPEC_E_NOMEM;
    speci_config_close(&cfg);
    SPEC_TRY(status);
    return speci_ssm_build(b, &s, mixer, &m);
}
