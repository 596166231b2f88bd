/* family_build_mixer.c - Mamba mixers from tensors. Row orders: transformers models/mamba, models/mamba2;
 * state-spaces/mamba mamba_ssm/modules/mamba_simple.py, mamba2.py. */
#include <math.h>

#include "models/families/family_build.h"
#include "models/net/net_mixer_mamba.h"

static spec_status check_width(const model_builder *b, int32_t width)
{
    if (width >= 2 && width <= 4) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: a convolution of width %d, expected 2 to 4", b->config->file, width);
}

/* Of a mixer whose n_channel and width are set. */
static spec_status mamba_conv(model_builder *b, model_mamba *out, const char *prefix, bool bias)
{
    model_conv conv;
    SPEC_TRY(speci_model_build_conv(b, &conv, speci_namef("%s.conv1d", prefix).s, out->n_channel, out->width, bias));
    out->conv_weight = conv.weight, out->conv_bias = conv.bias;
    return SPEC_OK;
}

/* Mamba-1: in_proj = [x | z]; x_proj = [dt_low | B | C]; dt_proj raises dt_low to one step per channel, and its bias
 * belongs inside the soft-plus. A head is a channel. */
spec_status speci_model_build_mamba1(model_builder *b, model_branch *branch, const char *prefix, const model_mamba1_shape *s)
{
    SPEC_TRY(speci_model_build_mixer(b, branch, &speci_mixer_mamba1));
    model_mamba *out = branch->own;
    *out = (model_mamba){ .col_u = 0, .col_z = s->n_inner, .n_channel = s->n_inner, .width = s->width,
                          .n_head = s->n_inner, .head_dim = 1, .n_state = s->n_state, .x_rep = 1,
                          .b_rep = s->n_inner, .c_rep = s->n_inner, .dt_rank = s->dt_rank, .a_per_state = 1,
                          .dt_min = 0.0f, .dt_max = INFINITY };
    SPEC_TRY(check_width(b, s->width));
    SPEC_TRY(speci_model_build_linear(b, &out->in, speci_namef("%s.in_proj", prefix).s, 2 * s->n_inner, s->dim, s->bias));
    SPEC_TRY(mamba_conv(b, out, prefix, s->conv_bias));
    SPEC_TRY(speci_model_build_linear(b, &out->select, speci_namef("%s.x_proj", prefix).s, s->dt_rank + 2 * s->n_state,
                                s->n_inner, false));
    SPEC_TRY(speci_model_build_linear(b, &out->dt, speci_namef("%s.dt_proj", prefix).s, s->n_inner, s->dt_rank, false));
    SPEC_TRY(speci_model_build_vector(b, &out->dt_bias, speci_namef("%s.dt_proj.bias", prefix).s, s->n_inner));
    SPEC_TRY(speci_model_build_decay(b, &out->a, speci_namef("%s.A_log", prefix).s, s->n_inner, s->n_state));
    SPEC_TRY(speci_model_build_vector(b, &out->d, speci_namef("%s.D", prefix).s, s->n_inner));
    return speci_model_build_linear(b, &out->out, speci_namef("%s.out_proj", prefix).s, s->dim, s->n_inner, s->bias);
}

spec_status speci_mamba2_grouped(model_mamba2_shape *s, int32_t n_inner, int32_t n_group, const char *file)
{
    if ((int64_t)s->n_head * s->head_dim != n_inner)
        return speci_fail(SPEC_E_FORMAT, "%s: %d heads of %d do not make the inner size %d", file, s->n_head,
                          s->head_dim, n_inner);
    if (s->n_head % n_group)
        return speci_fail(SPEC_E_FORMAT, "%s: %d heads do not divide into %d groups", file, s->n_head, n_group);
    if ((int64_t)n_group * s->n_state > MODEL_DIM_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: %d groups of state %d are too large", file, n_group, s->n_state);
    s->n_x = n_inner;
    s->n_b = s->n_c = n_group * s->n_state;
    s->n_norm_group = n_group;
    return SPEC_OK;
}

/* Heads that share one block of n_columns / block columns. */
static spec_status heads_per_block(int32_t *rep, int32_t n_head, int32_t n_columns, int32_t block, const char *what,
                                   const char *file)
{
    const int32_t n_block = n_columns / block;
    if (n_block < 1 || n_columns % block || n_head % n_block)
        return speci_fail(SPEC_E_FORMAT, "%s: %d columns of %s in blocks of %d do not fit %d heads", file, n_columns,
                          what, block, n_head);
    *rep = n_head / n_block;
    return SPEC_OK;
}

static spec_status gated_norm(model_builder *b, model_mamba *out, const char *prefix, const model_mamba2_shape *s)
{
    const int32_t n_inner = s->n_head * s->head_dim;
    out->has_norm = s->norm;
    out->norm_first = s->norm_first;
    if (!s->norm) return SPEC_OK;
    SPEC_TRY(speci_model_build_norm(b, &out->norm, SPEC_NORM_RMS, speci_namef("%s.norm", prefix).s, n_inner, s->eps));
    out->norm.n_group = s->n_norm_group;
    return SPEC_OK;
}

/* Mamba-2: in_proj = [z | x | B | C | dt]; the convolution runs over [x | B | C]. */
spec_status speci_model_build_mamba2(model_builder *b, model_branch *branch, const char *prefix, const model_mamba2_shape *s)
{
    SPEC_TRY(speci_model_build_mixer(b, branch, &speci_mixer_mamba2));
    model_mamba *out = branch->own;
    const char *file = b->config->file;
    const int32_t n_inner = s->n_head * s->head_dim, n_channel = s->n_x + s->n_b + s->n_c;
    *out = (model_mamba){ .col_z = 0, .col_u = n_inner, .col_dt = n_inner + n_channel, .n_channel = n_channel,
                          .width = s->width, .n_head = s->n_head, .head_dim = s->head_dim, .n_state = s->n_state,
                          .x_col = 0, .b_col = s->n_x, .c_col = s->n_x + s->n_b, .dt_min = s->dt_min,
                          .dt_max = s->dt_max };
    SPEC_TRY(check_width(b, s->width));
    SPEC_TRY(heads_per_block(&out->x_rep, s->n_head, s->n_x, s->head_dim, "x", file));
    SPEC_TRY(heads_per_block(&out->b_rep, s->n_head, s->n_b, s->n_state, "B", file));
    SPEC_TRY(heads_per_block(&out->c_rep, s->n_head, s->n_c, s->n_state, "C", file));
    SPEC_TRY(speci_model_build_linear(b, &out->in, speci_namef("%s.in_proj", prefix).s, n_inner + n_channel + s->n_head,
                                s->dim, s->bias));
    SPEC_TRY(mamba_conv(b, out, prefix, s->conv_bias));
    SPEC_TRY(speci_model_build_vector(b, &out->dt_bias, speci_namef("%s.dt_bias", prefix).s, s->n_head));
    SPEC_TRY(speci_model_build_decay(b, &out->a, speci_namef("%s.A_log", prefix).s, s->n_head, 0));
    SPEC_TRY(speci_model_build_vector(b, &out->d, speci_namef("%s.D", prefix).s, s->n_head));
    SPEC_TRY(gated_norm(b, out, prefix, s));
    return speci_model_build_linear(b, &out->out, speci_namef("%s.out_proj", prefix).s, s->dim, n_inner, s->bias);
}
