/* family_mamba2.c - Mamba-2, as transformers writes it (models/mamba2) and in the original layout (mamba_ssm
 * modules/mamba2.py), whose config leaves most numbers to the module's defaults.
 *
 * The gated norm is taken over each of n_groups groups: so mamba_ssm (ops/triton/layernorm_gated.py, group_size), and
 * so transformers since its 5.x. Earlier versions of transformers took the whole width, which is the same for one
 * group. */
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_ssm.h"
#include "models/families/family_transformer.h"

static spec_status mixer(model_builder *b, model_branch *out, const char *prefix, const void *shape)
{
    return speci_model_build_mamba2(b, out, prefix, shape);
}

/* Mamba2Config's defaults for heads and groups describe Mamba-Codestral, so that a file of another model always says
 * them: they are required. */
spec_status speci_family_mamba2(model_builder *b)
{
    model_config *c = b->config;
    model_mamba2_shape m = { .norm = true };
    model_ssm s;
    int32_t expand, n_group;
    SPEC_TRY(speci_ssm_read(c, &s, false));
    m.dim = s.dim, m.eps = s.eps;
    SPEC_TRY(speci_config_int(c, &m.n_head, "num_heads", 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int(c, &m.head_dim, "head_dim", 1, MODEL_HEAD_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &n_group, "n_groups", 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &m.n_state, "state_size", 128, 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &expand, "expand", 2, 1, MODEL_EXPAND_MAX));
    SPEC_TRY(speci_config_int_or(c, &m.width, "conv_kernel", 4, 1, 64));
    SPEC_TRY(speci_config_bool_or(c, &m.bias, "use_bias", false));
    SPEC_TRY(speci_config_bool_or(c, &m.conv_bias, "use_conv_bias", true));
    SPEC_TRY(speci_config_limits_or_none(c, &m.dt_min, &m.dt_max, "time_step_limit"));
    speci_config_take(c, "time_step_rank"); /* a leftover of Mamba-1: nothing reads it */
    const int32_t n_inner = expand * s.dim;
    SPEC_TRY(speci_config_agree(c, "intermediate_size", n_inner));
    SPEC_TRY(speci_mamba2_grouped(&m, n_inner, n_group, c->file));
    return speci_ssm_build(b, &s, mixer, &m);
}

/* --- original layout --- */

bool speci_is_mamba2_original(const model_config *config, const char *dir)
{
    const char *layer;
    (void)dir;
    return speci_ssm_is_original(config, &layer) && strcmp(layer, "Mamba2") == 0;
}

/* Keys of ssm_cfg that change the network in ways that are not supported; all others are asked for. */
static spec_status read_ssm_cfg(model_config *c, model_mamba2_shape *m)
{
    static const char *const training[] = { "layer", "dt_min", "dt_max", "dt_init_floor", "A_init_range", "conv_init",
                                            "chunk_size", "use_mem_eff_path", "process_group", "sequence_parallel" };
    int32_t expand, n_group;
    bool wide_d;
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) speci_config_take(c, training[i]);
    SPEC_TRY(speci_config_int_or(c, &expand, "expand", 2, 1, MODEL_EXPAND_MAX));
    const int32_t n_inner = expand * m->dim;
    SPEC_TRY(speci_config_int_or(c, &m->n_state, "d_state", 128, 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->head_dim, "headdim", 64, 1, MODEL_HEAD_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &n_group, "ngroups", 1, 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->width, "d_conv", 4, 1, 64));
    SPEC_TRY(speci_config_agree(c, "d_ssm", n_inner)); /* no MLP part in in_proj */
    SPEC_TRY(speci_config_bool_or(c, &m->norm, "rmsnorm", true));
    SPEC_TRY(speci_config_bool_or(c, &m->norm_first, "norm_before_gate", false));
    SPEC_TRY(speci_config_bool_or(c, &m->bias, "bias", false));
    SPEC_TRY(speci_config_bool_or(c, &m->conv_bias, "conv_bias", true));
    SPEC_TRY(speci_config_limits_or_none(c, &m->dt_min, &m->dt_max, "dt_limit"));
    SPEC_TRY(speci_config_bool_or(c, &wide_d, "D_has_hdim", false));
    SPEC_TRY(speci_silu_only(c, "activation"));
    if (wide_d) return speci_fail(SPEC_E_UNSUPPORTED, "%s: %sD_has_hdim is true: not supported", c->file, c->in);
    SPEC_TRY(speci_config_all_known(c));
    m->n_head = n_inner / m->head_dim;
    return speci_mamba2_grouped(m, n_inner, n_group, c->file);
}

spec_status speci_family_mamba2_original(model_builder *b)
{
    model_mamba2_shape m = { .eps = MODEL_SSM_EPS };
    model_config cfg;
    model_ssm s;
    SPEC_TRY(speci_ssm_read_original(b->config, &s));
    m.dim = s.dim;
    SPEC_TRY(speci_config_child(b->config, &cfg, "ssm_cfg"));
    const spec_status status = read_ssm_cfg(&cfg, &m);
    speci_config_close(&cfg);
    SPEC_TRY(status);
    return speci_ssm_build(b, &s, mixer, &m);
}
