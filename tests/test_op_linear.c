/* test_op_linear.c - products with every epilogue, in decode and prefill passes; behind a norm in a plan, whose factor a backend
 * may leave to them; and heads, with passes that end with the largest of each row. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ref_ops.h"
#include "tests/support_plan.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16
#define Q8 SPEC_DTYPE_Q8_0

typedef struct linear_case {
    const char *name;
    int32_t rows, n_in, n_out;
    spec_dtype weight, compute, y;
    spec_activation act;
    bool glu, bias, add;
    double scale;
    int32_t parts;
    bool prefill;
} linear_case;

static const linear_case cases[] = {
    { "base", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "one_row", 1, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "rows_2", 2, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "rows_7", 7, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "rows_13", 13, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "rows_64", 64, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "rows_100", 100, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "odd_sizes", 5, 67, 101, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "one_output", 3, 70, 1, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "one_input", 3, 1, 40, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "deep", 3, 2600, 33, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "wide", 3, 40, 1100, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "bias", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "scale", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 0.3, 1, false },
    { "add", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, true, true, 1.0, 1, false },
    { "add_scale", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, true, -0.7, 1, false },
    { "silu", 4, 64, 96, F32, F32, F32, SPEC_ACT_SILU, false, true, false, 1.0, 1, false },
    { "gelu", 4, 64, 96, F32, F32, F32, SPEC_ACT_GELU, false, true, false, 1.0, 1, false },
    { "gelu_tanh", 4, 64, 96, F32, F32, F32, SPEC_ACT_GELU_TANH, false, true, false, 1.0, 1, false },
    { "relu", 4, 64, 96, F32, F32, F32, SPEC_ACT_RELU, false, true, false, 1.0, 1, false },
    { "cap", 4, 64, 96, F32, F32, F32, SPEC_ACT_CAP, false, false, false, 2.0, 1, false },
    { "cap_far", 4, 64, 96, F32, F32, F32, SPEC_ACT_CAP, false, true, false, 30.0, 1, false },
    { "cap_bf16_one_row", 1, 256, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, false },
    { "cap_bf16_rows_13", 13, 256, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, false },
    { "cap_f16_rows_20_wide", 20, 2688, 3100, F16, F16, F32, SPEC_ACT_CAP, false, false, false, 20.0, 1, false },
    { "cap_bf16_rows_64", 64, 256, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, false },
    { "cap_q8_rows_7", 7, 288, 101, Q8, BF16, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, false },
    { "cap_q8_f32", 5, 288, 101, Q8, F32, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, false },
    { "cap_prefill", 40, 300, 200, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 3.0, 1, true },
    { "glu", 4, 64, 128, F32, F32, F32, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "glu_bias_odd", 5, 67, 106, F32, F32, F32, SPEC_ACT_GELU, true, true, false, 1.0, 1, false },
    { "glu_none", 2, 64, 60, F32, F32, F32, SPEC_ACT_NONE, true, true, false, 1.0, 2, false },
    { "parts", 4, 64, 97, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 3, false },
    { "bf16", 4, 64, 96, BF16, BF16, BF16, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "bf16_to_f32", 4, 64, 96, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "bf16_odd", 7, 67, 101, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "bf16_deep", 9, 2601, 65, BF16, BF16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "bf16_glu", 6, 130, 192, BF16, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "bf16_rows_64", 64, 256, 70, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "bf16_rows_20_both_wide", 20, 2688, 3100, BF16, BF16, F32, SPEC_ACT_NONE, false, true, true, -0.7, 1, false },
    { "bf16_rows_32_both_wide_glu", 32, 2560, 3060, BF16, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "f16_rows_17_both_wide_odd", 17, 2560, 1501, F16, F16, F16, SPEC_ACT_GELU, false, true, false, 0.3, 1, false },
    { "bf16_rows_33_parts", 33, 1000, 330, BF16, BF16, F32, SPEC_ACT_GELU, false, true, true, -0.7, 1, false },
    { "bf16_rows_130_glu", 130, 776, 402, BF16, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "bf16_rows_33_both_wide", 33, 8200, 3900, BF16, BF16, F32, SPEC_ACT_NONE, false, true, true, 1.0, 1, false },
    { "bf16_rows_40_wide", 40, 40, 32700, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f16_rows_140_glu", 140, 776, 3202, F16, F16, F16, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "bf16_rows_70_long", 70, 5128, 2500, BF16, BF16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "bf16_rows_66_long_wide", 66, 2560, 8450, BF16, BF16, BF16, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f16_rows_300", 300, 72, 260, F16, F16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "bf16_weight_f32", 5, 67, 101, BF16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f32_weight_bf16", 5, 67, 101, F32, BF16, BF16, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f16", 4, 64, 96, F16, F16, F16, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "f16_odd", 7, 67, 101, F16, F16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f16_glu", 6, 130, 192, F16, F16, F16, SPEC_ACT_GELU_TANH, true, true, false, 1.0, 1, false },
    { "f16_weight_f32", 5, 67, 101, F16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "f16_weight_bf16", 5, 67, 101, F16, BF16, BF16, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "bf16_weight_f16", 5, 67, 101, BF16, F16, F16, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "q8", 4, 64, 96, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "q8_one_row", 1, 96, 40, Q8, BF16, BF16, SPEC_ACT_NONE, false, true, false, 0.3, 1, false },
    { "q8_one_block", 3, 32, 1, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "q8_f32", 13, 96, 101, Q8, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "q8_f16", 7, 160, 101, Q8, F16, F32, SPEC_ACT_RELU, false, true, false, 1.0, 1, false },
    { "q8_deep", 9, 2592, 65, Q8, BF16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "q8_wide", 3, 64, 1100, Q8, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 3, false },
    { "q8_glu", 6, 160, 192, Q8, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "q8_glu_odd", 20, 288, 106, Q8, BF16, F32, SPEC_ACT_GELU, true, true, false, 1.0, 1, false },
    { "q8_glu_f32", 5, 288, 106, Q8, F32, F32, SPEC_ACT_SILU, true, true, false, 1.0, 1, false },
    { "q8_rows_64", 64, 256, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "q8_rows_100", 100, 256, 70, Q8, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "q8_rows_33_long", 33, 10272, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, true, -0.7, 1, false },
    { "q8_rows_70_long_glu", 70, 10240, 106, Q8, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "q8_rows_17_long", 17, 20512, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, true, -0.7, 1, false },
    { "q8_rows_32_long_glu", 32, 10240, 106, Q8, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "q8_f16_rows_24_wide_glu", 24, 1696, 12600, Q8, F16, F16, SPEC_ACT_SILU, true, true, false, 1.0, 1, false },
    { "q8_rows_25_wider_glu", 25, 1280, 16000, Q8, BF16, F32, SPEC_ACT_SILU, true, false, false, 0.3, 3, false },
    { "q8_f16_rows_130_long", 130, 10272, 45, Q8, F16, F32, SPEC_ACT_GELU, false, true, false, 1.0, 1, false },
    { "q8_rows_33_wide", 33, 1696, 12600, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 3, false },
    { "q8_f16_rows_40_both_wide", 40, 3360, 4300, Q8, F16, F16, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "q8_rows_36_both_wide_glu", 36, 3360, 4300, Q8, BF16, F32, SPEC_ACT_SILU, true, false, false, 0.3, 1, false },
    { "prefill", 40, 300, 200, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, true },
    { "prefill_glu", 40, 300, 264, F32, F32, F32, SPEC_ACT_SILU, true, true, false, 1.0, 1, true },
    { "prefill_add_odd", 33, 67, 101, F32, F32, F32, SPEC_ACT_NONE, false, false, true, 0.5, 1, true },
    { "prefill_bf16", 40, 300, 200, BF16, BF16, BF16, SPEC_ACT_GELU, false, true, false, 1.0, 1, true },
    { "prefill_bf16_weight_f32", 40, 301, 200, BF16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, true },
    { "prefill_f16", 40, 301, 200, F16, F16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, true },
    { "prefill_q8", 40, 288, 200, Q8, BF16, F32, SPEC_ACT_GELU, false, true, false, 1.0, 1, true },
    { "prefill_q8_add", 33, 96, 101, Q8, BF16, F32, SPEC_ACT_NONE, false, false, true, 0.5, 1, true },
    { "prefill_q8_glu", 40, 320, 264, Q8, F16, F16, SPEC_ACT_SILU, true, true, false, 1.0, 2, true },
    { "prefill_q8_f32", 40, 288, 101, Q8, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, true },
};

/* Behind a norm: the rows' factors differ much. */
static const linear_case behind_norm[] = {
    { "behind_norm", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "behind_norm_one_sum", 1, 16, 96, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_one_output", 2, 80, 1, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_bias_scale_odd", 7, 112, 101, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 0.3, 1, false },
    { "behind_norm_add", 13, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "behind_norm_add_bias_scale", 20, 64, 97, F32, F32, F32, SPEC_ACT_NONE, false, true, true, -0.7, 3, false },
    { "behind_norm_silu", 6, 64, 96, F32, F32, F32, SPEC_ACT_SILU, false, true, false, 1.0, 1, false },
    { "behind_norm_glu", 33, 64, 128, F32, F32, F32, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "behind_norm_glu_bias_odd", 5, 112, 106, F32, F32, F32, SPEC_ACT_GELU, true, true, false, 0.3, 1, false },
    { "behind_norm_glu_none", 2, 64, 60, F32, F32, F32, SPEC_ACT_NONE, true, true, true, 1.0, 2, false },
    { "behind_norm_deep", 3, 9232, 33, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_rows_64", 64, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_rows_100", 100, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "behind_norm_rows_130", 130, 48, 260, F32, F32, F32, SPEC_ACT_GELU, true, true, false, 1.0, 1, false },
    { "behind_norm_rows_300", 300, 80, 72, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_bf16_one_row", 1, 768, 96, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_bf16_rows_2", 2, 768, 96, BF16, BF16, BF16, SPEC_ACT_SILU, false, true, false, 1.0, 1, false },
    { "behind_norm_bf16_rows_7", 7, 272, 101, BF16, BF16, F32, SPEC_ACT_NONE, false, false, true, -0.7, 1, false },
    { "behind_norm_bf16_rows_13_glu", 13, 272, 106, BF16, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "behind_norm_bf16_rows_20", 20, 2560, 70, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_bf16_rows_33_parts", 33, 1008, 330, BF16, BF16, F32, SPEC_ACT_GELU, false, true, true, -0.7, 1, false },
    { "behind_norm_bf16_rows_64", 64, 256, 70, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "behind_norm_bf16_rows_64_glu", 64, 2560, 200, BF16, BF16, BF16, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "behind_norm_bf16_rows_100", 100, 768, 102, BF16, BF16, F32, SPEC_ACT_NONE, false, true, true, 0.5, 1, false },
    { "behind_norm_bf16_rows_130_glu", 130, 784, 402, BF16, BF16, BF16, SPEC_ACT_SILU, true, true, false, 1.0, 2, false },
    { "behind_norm_bf16_rows_300", 300, 80, 260, BF16, BF16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "behind_norm_bf16_rows_20_wide", 20, 48, 32700, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_bf16_weight_f32", 5, 80, 101, BF16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_f32_weight_bf16", 5, 80, 101, F32, BF16, BF16, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_f16_weight_f32", 20, 80, 101, F16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_f16_weight_bf16", 33, 80, 101, F16, BF16, F32, SPEC_ACT_NONE, false, true, true, 1.0, 1, false },
    { "behind_norm_q8_one_row", 1, 96, 40, Q8, BF16, BF16, SPEC_ACT_NONE, false, true, false, 0.3, 1, false },
    { "behind_norm_q8_f32", 13, 96, 101, Q8, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_q8_deep", 7, 2592, 65, Q8, BF16, F32, SPEC_ACT_NONE, false, false, true, 1.0, 1, false },
    { "behind_norm_q8_glu", 20, 288, 106, Q8, BF16, F32, SPEC_ACT_SILU, true, true, false, 1.0, 1, false },
    { "behind_norm_q8_glu_f32", 5, 288, 106, Q8, F32, F32, SPEC_ACT_SILU, true, true, false, 1.0, 1, false },
    { "behind_norm_q8_rows_33", 33, 256, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_q8_rows_40_long", 40, 10272, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_q8_rows_31_long", 31, 20512, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "behind_norm_q8_rows_18_long_glu", 18, 10240, 106, Q8, BF16, BF16, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "behind_norm_q8_rows_70_long_glu", 70, 10240, 106, Q8, BF16, BF16, SPEC_ACT_SILU, true, false, false, 1.0, 1, false },
    { "behind_norm_q8_rows_100", 100, 256, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, false, true, 0.5, 1, false },
};

/* Of heads, the largest of each row is wanted. */
static const linear_case best[] = {
    { "best", 4, 64, 96, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_one_row", 1, 64, 1003, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_one_output", 3, 70, 1, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_rows_64", 64, 64, 101, F32, F32, F32, SPEC_ACT_NONE, false, true, false, -0.7, 1, false },
    { "best_wide", 3, 40, 9001, F32, F32, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_one_row", 1, 768, 1003, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_one_row_deep", 1, 2304, 333, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_2_tiles", 2, 128, 15003, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_5_relu", 5, 128, 77, BF16, BF16, F32, SPEC_ACT_RELU, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_8_one_output", 8, 256, 1, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_8_deep", 8, 2304, 7000, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_9", 9, 128, 101, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, -0.7, 1, false },
    { "best_bf16_rows_16_tiles", 16, 128, 9001, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_17", 17, 384, 1003, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_32_tiles", 32, 128, 9001, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_20_both_wide", 20, 2560, 3100, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_32_both_wide", 32, 2688, 3001, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_33", 33, 128, 15, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_40_wide", 40, 128, 32700, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_rows_63_deep", 63, 2304, 333, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_64", 64, 768, 1003, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 0.3, 1, false },
    { "best_bf16_rows_100", 100, 256, 2001, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_rows_130", 130, 1024, 402, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_odd", 7, 67, 101, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_bf16_odd_rows_40", 40, 72, 101, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_bf16_weight_f32", 5, 67, 101, BF16, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_f16_rows_7", 7, 128, 1003, F16, F16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_f16_rows_20", 20, 384, 70, F16, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_f16_rows_24_both_wide", 24, 2560, 3100, F16, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_f16_rows_64", 64, 256, 1003, F16, F16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_f16_rows_300", 300, 128, 260, F16, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_q8_one_row", 1, 96, 1003, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_q8_f32", 13, 96, 101, Q8, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_q8_rows_64", 64, 256, 70, Q8, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_q8_rows_16", 16, 128, 9001, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_q8_rows_64_long", 64, 10240, 70, Q8, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_q8_rows_30_long", 30, 20512, 70, Q8, F16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_q8_rows_20_wide", 20, 1696, 23300, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_q8_rows_33_wide", 33, 1696, 12600, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_prefill", 40, 300, 200, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, true },
    { "best_prefill_bf16", 40, 256, 200, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, true },
    { "best_prefill_q8", 40, 288, 200, Q8, BF16, F32, SPEC_ACT_GELU, false, true, false, 1.0, 1, true },
};
static const linear_case best_behind_norm[] = {
    { "best_behind_norm_one_row", 1, 768, 1003, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_behind_norm_rows_13", 13, 128, 9001, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_behind_norm_rows_20", 20, 2560, 70, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_behind_norm_rows_64", 64, 768, 1003, BF16, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_behind_norm_rows_130", 130, 1024, 402, BF16, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_behind_norm_f32", 7, 112, 101, F32, F32, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_behind_norm_q8_one_row", 1, 768, 1003, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
    { "best_behind_norm_q8_long", 100, 10240, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, true, false, 1.0, 1, false },
    { "best_behind_norm_cap_one_row", 1, 768, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 5.0, 1, false },
    { "best_behind_norm_cap_rows_13", 13, 768, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, true, false, 5.0, 1, false },
    { "best_behind_norm_cap_rows_64", 64, 768, 1003, BF16, BF16, F32, SPEC_ACT_CAP, false, false, false, 5.0, 1, false },
    { "best_behind_norm_cap_q8", 9, 256, 70, Q8, BF16, F32, SPEC_ACT_CAP, false, false, false, 5.0, 1, false },
    { "best_behind_norm_q8", 33, 256, 70, Q8, BF16, F32, SPEC_ACT_NONE, false, false, false, 1.0, 1, false },
};

#define EPS 1e-5f

static void expect(double *y, const linear_case *c, const double *w, const double *x, const double *bias)
{
    int32_t half = c->n_out / 2, n_y = c->glu ? half : c->n_out;
    double *t = calloc((size_t)c->n_out, sizeof *t);
    for (int32_t r = 0; r < c->rows; r++) {
        ref_product(t, w, x + r * c->n_in, bias, c->n_out, c->n_in);
        for (int32_t o = 0; o < n_y; o++) {
            double v = ref_activation(t[o], c->act, c->scale) * (c->glu ? t[half + o] : 1.0);
            y[r * n_y + o] = (c->add ? y[r * n_y + o] : 0.0) + c->scale * v;
        }
    }
    free(t);
}

/* A product and all it takes, with a norm in front: what is not there is NULL. */
typedef struct product_test {
    int32_t n_y;
    double *x, *w, *bias, *y; /* x: as the product is to see it; y: before */
    spec_step_block *step;
    spec_weight *weight;
    test_buffer bx, by, bb, residual, norm_weight; /* residual: of the norm */
    spec_op op[2];
    int32_t n_op;
} product_test;

/* Rows whose mean of squares goes from well above EPS to well below it, and x becomes what their norm is. */
static void put_norm(product_test *t, const test_device *d, const linear_case *c, test_random *random)
{
    const size_t n_x = (size_t)c->rows * (size_t)c->n_in;
    double *v = test_values(random, n_x, 1.0), *weight = test_values(random, (size_t)c->n_in, 1.5);
    for (size_t i = 0; i < n_x; i++) v[i] *= pow(0.3, (double)(i / (size_t)c->n_in % 5));
    test_round_all(v, n_x, F32);
    test_round_all(weight, (size_t)c->n_in, F32);
    for (int32_t r = 0; r < c->rows; r++)
        ref_norm(t->x + r * c->n_in, v + r * c->n_in, NULL, weight, NULL, c->n_in, 1, (double)EPS, SPEC_NORM_RMS, false);
    t->residual = test_buffer_from(d, v, n_x, F32), t->norm_weight = test_floats(d, weight, (size_t)c->n_in);
    t->op[t->n_op++] = (spec_op){ .kind = SPEC_OP_NORM,
                                  .u.norm = { .dim = c->n_in, .n_group = 1, .eps = EPS, .weight = t->norm_weight.data,
                                              .x = test_view(&t->residual, c->n_in), .y = test_view(&t->bx, c->n_in) } };
    free(weight);
    free(v);
}

/* change, if there is one: makes of random values those that are wanted. */
static product_test open_product(const test_device *d, const linear_case *c, bool behind,
                                 void (*change)(const linear_case *c, double *w, double *x, double *bias))
{
    test_random random = { 3 };
    product_test t = { .n_y = c->glu ? c->n_out / 2 : c->n_out };
    int32_t *parent = calloc((size_t)c->rows, sizeof *parent);
    for (int32_t i = 0; i < c->rows; i++) parent[i] = i - 1;
    test_seq s = { .n_node = c->rows, .parent = parent };
    t.step = test_step(c->prefill ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE, &s, 1, 0);
    free(parent);
    const size_t n_x = (size_t)c->rows * (size_t)c->n_in, n = (size_t)c->rows * (size_t)t.n_y;
    t.x = test_values(&random, n_x, 1.0), t.w = test_values(&random, (size_t)c->n_out * (size_t)c->n_in, 1.0);
    t.bias = test_values(&random, (size_t)c->n_out, 2.0), t.y = test_values(&random, n, 1.0);
    if (change) change(c, t.w, t.x, t.bias);
    t.weight = test_weight(d, t.w, c->n_out, c->n_in, c->weight, c->compute, c->glu, c->parts);
    test_round_all(t.x, n_x, c->compute);
    t.bx = test_buffer_from(d, t.x, n_x, c->compute), t.by = test_buffer_new(d, n, c->y);
    t.bb = test_floats(d, c->bias ? t.bias : NULL, (size_t)c->n_out);
    if (c->add) test_write(&t.by, t.y);
    if (behind) put_norm(&t, d, c, &random);
    t.op[t.n_op++] = (spec_op){ .kind = SPEC_OP_LINEAR,
                                .u.linear = { .w = t.weight, .n_in = c->n_in, .n_out = c->n_out, .bias = t.bb.data,
                                              .act = c->act, .glu = c->glu, .add = c->add, .scale = (float)c->scale,
                                              .x = test_view(&t.bx, c->n_in), .y = test_view(&t.by, t.n_y) } };
    return t;
}

static void close_product(const test_device *d, product_test *t)
{
    test_buffer *const buffers[] = { &t->bx, &t->by, &t->bb, &t->residual, &t->norm_weight };
    void *const memory[] = { t->x, t->w, t->bias, t->y, t->step };
    d->ops->weight_close(d->dev, t->weight);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    for (int32_t i = 0; i < N_ELEMENTS(memory); i++) free(memory[i]);
}

static void run_case(const test_device *d, const linear_case *c, bool behind)
{
    if (!test_keeps(d, c->name, c->weight)) return;
    product_test t = open_product(d, c, behind, NULL);
    expect(t.y, c, t.w, t.x, c->bias ? t.bias : NULL);
    if (test_can(d, c->name, &t.op[t.n_op - 1])) {
        if (behind) support_plan_run(d, t.op, t.n_op, t.step, c->rows, 1);
        else test_run(d, t.op, t.step, c->rows);
        double *got = test_read(&t.by);
        /* Decode passes sum a block's whole numbers, exactly as it says; prefill may round its values to the compute type, as CUDA does
         * but for Q8_0. x is rounded, between norm and product. */
        const bool rounds = c->weight >= Q8 && (c->prefill || (c->weight != Q8 && strncmp(d->name, "cuda", 4) == 0));
        const spec_dtype rounded = rounds || behind ? c->compute : c->y;
        test_compare(d, c->name, "y", got, t.y, c->rows, t.n_y, test_tolerance(rounded));
        free(got);
    }
    close_product(d, &t);
}

/* Every kind of blocks, with rows of one block, of several, and in pieces of no power of two, and numbers of rows that kernels divide
 * otherwise. */
static void each_blocks(test_device *d)
{
    static const spec_dtype blocks[] = { SPEC_DTYPE_Q4_0, SPEC_DTYPE_Q4_1, SPEC_DTYPE_Q5_0, SPEC_DTYPE_Q5_1, SPEC_DTYPE_Q4_K,
                                         SPEC_DTYPE_Q5_K, SPEC_DTYPE_Q6_K };
    static const spec_dtype computes[] = { BF16, F16, F32 };
    static const int32_t rows[] = { 1, 2, 3, 5, 8, 9, 13, 16, 17, 24, 32, 33, 47, 64, 80 };
    static const int32_t small[] = { 32, 96, 576, 1056 }, large[] = { 256, 512, 1280 };
    for (int32_t b = 0; b < N_ELEMENTS(blocks); b++) {
        const bool is_large = blocks[b] >= SPEC_DTYPE_Q4_K;
        if (!test_keeps(d, "blocks", blocks[b])) continue;
        for (int32_t i = 0; i < N_ELEMENTS(rows) * N_ELEMENTS(computes); i++) {
            char name[64];
            const int32_t n_in = is_large ? large[i % N_ELEMENTS(large)] : small[i % N_ELEMENTS(small)];
            const spec_dtype compute = computes[i % N_ELEMENTS(computes)];
            const bool glu = i % 5 == 1, prefill = i % 7 == 3;
            linear_case c = { name, rows[i / N_ELEMENTS(computes)], n_in, glu ? 106 : 73 + 40 * (i % 2), blocks[b], compute,
                              i % 4 == 0 ? compute : F32, glu ? SPEC_ACT_SILU : SPEC_ACT_NONE, glu, i % 3 == 0, !glu && i % 4 == 1,
                              i % 2 ? 1.0 : 0.3, 1 + i % 3, prefill };
            snprintf(name, sizeof name, "%s_%s_rows_%d_of_%d%s", spec_dtype_name(blocks[b]), spec_dtype_name(compute), (int)c.rows,
                     (int)n_in, prefill ? "_prefill" : "");
            run_case(d, &c, false);
            if (c.add || compute != BF16 || prefill) continue;
            run_case(d, &c, true);
        }
        static const int32_t of_long[] = { 1, 16, 17, 27, 32, 33, 65, 130 };
        for (int32_t i = 0; i < N_ELEMENTS(of_long); i++) {
            char name[64];
            const bool glu = i % 2 == 1;
            linear_case c = { name, of_long[i], i % 3 == 2 ? 4352 : 4096, glu ? 106 : 73, blocks[b], BF16, F32, SPEC_ACT_NONE, glu, false,
                              !glu, 1.0, 1, false };
            snprintf(name, sizeof name, "%s_long_rows_%d", spec_dtype_name(blocks[b]), (int)c.rows);
            run_case(d, &c, false);
        }
    }
}

static void test_linear_blocks(void **state)
{
    (void)state;
    test_each_device(each_blocks);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i], false);
    for (int32_t i = 0; i < N_ELEMENTS(behind_norm); i++) run_case(d, &behind_norm[i], true);
}

static void test_linear(void **state)
{
    (void)state;
    test_each_device(each);
}

/* --- the largest of each row --- */

/* Of about half of the rows the largest are two outputs alike, of the others the last output; an output that is never a
 * number, and rows that have none. */
static void make_ties(const linear_case *c, double *w, double *x, double *bias)
{
    const int32_t last = c->n_out - 1, first = c->n_out / 2, second = (first + last) / 2;
    for (int32_t i = 0; i < c->n_in; i++) {
        w[first * c->n_in + i] *= 30.0;
        w[second * c->n_in + i] = w[first * c->n_in + i];
        w[last * c->n_in + i] = -w[first * c->n_in + i];
    }
    bias[second] = bias[first];
    if (c->n_out > 3) bias[3] = NAN;
    for (int32_t r = 2; r < c->rows; r += 5)
        for (int32_t i = 0; i < c->n_in; i++) x[r * c->n_in + i] = r % 10 == 2 ? NAN : 0.0;
}

static int32_t largest(const double *row, int32_t n)
{
    int32_t at = -1;
    for (int32_t i = 0; i < n; i++)
        if (row[i] == row[i] && (at < 0 || row[i] > row[at])) at = i;
    return at;
}

/* A pass begins with an embedding: of rows that nobody reads. */
typedef struct beginning {
    spec_weight *table;
    test_buffer y;
} beginning;

static beginning begin(const test_device *d, int32_t rows)
{
    double v[2 * 16] = { 0 };
    return (beginning){ test_weight(d, v, 2, 16, F32, F32, 0, 1), test_buffer_new(d, (size_t)rows * 16, F32) };
}

/* Arg-max as the pass's end, and of its rows, against a look at the rows. */
static void check_best(const test_device *d, const linear_case *c, const product_test *t, const spec_op *ops, int32_t n_op)
{
    const spec_plan plan = { ops, n_op, t->step->phase, c->rows, 1, c->rows, TEST_PAGES * SPEC_PAGE };
    int32_t *got = calloc((size_t)c->rows * 2, sizeof *got);
    spec_queue *q = test_queue(d, ops, n_op, t->step, c->rows, c->n_out);
    spec_prepared *p = NULL;
    spec_argmax_args a = { t->by.data, c->n_out, c->n_out, c->rows, got, NULL };
    test_ok(speci_plan_prepare(d->ops, q, &p, &plan, true), "plan_prepare");
    test_ok(speci_plan_run(d->ops, q, &plan, p, t->step, &a), "plan_run");
    a.host_out_token = got + c->rows;
    test_ok(d->ops->argmax(q, &a), "argmax");
    test_ok(d->ops->sync(q), "sync");
    double *y = test_read(&t->by);
    for (int32_t r = 0; r < c->rows; r++) {
        const int32_t want = largest(y + r * c->n_out, c->n_out);
        if (got[r] != want || got[c->rows + r] != want)
            fail_msg("%s %s: the largest of row %d is %d by the pass, %d as read again, expected %d", d->name, c->name, r,
                     got[r], got[c->rows + r], want);
    }
    free(y);
    if (p) d->ops->plan_free(q, p);
    d->ops->queue_close(q);
    free(got);
}

static void run_best(const test_device *d, const linear_case *c, bool behind)
{
    if (!test_keeps(d, c->name, c->weight)) return;
    product_test t = open_product(d, c, behind, make_ties);
    beginning b = begin(d, c->rows);
    spec_op ops[3] = { { .kind = SPEC_OP_EMBED, .u.embed = { b.table, 2, 16, 1.0f, test_view(&b.y, 16) } } };
    for (int32_t i = 0; i < t.n_op; i++) ops[1 + i] = t.op[i];
    ops[t.n_op].head = 1;
    if (test_can(d, c->name, &ops[t.n_op])) check_best(d, c, &t, ops, 1 + t.n_op);
    test_buffer_free(&b.y);
    d->ops->weight_close(d->dev, b.table);
    close_product(d, &t);
}

static void each_best(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(best); i++) run_best(d, &best[i], false);
    for (int32_t i = 0; i < N_ELEMENTS(best_behind_norm); i++) run_best(d, &best_behind_norm[i], true);
}

static void test_linear_best(void **state)
{
    (void)state;
    test_each_device(each_best);
}

/* A weight that is not a matrix, and operations that do not fit it, are refused. */
static void refuse(test_device *d)
{
    float m[6] = { 0 };
    spec_weight_part part = { m, 2 };
    spec_weight_desc desc = { 3, 3, F32, F32, 0, 0, &part, 1 };
    spec_weight *w = NULL;
    assert_int_equal(d->ops->weight_open(d->dev, &w, &desc), SPEC_E_INVALID); /* rows missing */
    desc = (spec_weight_desc){ 2, 3, SPEC_DTYPE_I32, F32, 0, 0, &part, 1 };
    assert_int_equal(d->ops->weight_open(d->dev, &w, &desc), SPEC_E_UNSUPPORTED);
    desc = (spec_weight_desc){ 2, 3, Q8, F32, 0, 0, &part, 1 };
    const spec_status no_block = d->ops->weight_blocks ? SPEC_E_INVALID : SPEC_E_UNSUPPORTED;
    assert_int_equal(d->ops->weight_open(d->dev, &w, &desc), no_block); /* no whole one */
    desc = (spec_weight_desc){ 2, 128, SPEC_DTYPE_Q4_K, F32, 0, 0, &part, 1 };
    assert_int_equal(d->ops->weight_open(d->dev, &w, &desc), no_block);
    desc = (spec_weight_desc){ 2, 3, F32, F32, 0, 0, &part, 1 };
    test_ok(d->ops->weight_open(d->dev, &w, &desc), "weight_open");
    spec_op op = { .kind = SPEC_OP_LINEAR };
    op.u.linear = (spec_linear_args){ .w = w, .n_in = 4, .n_out = 2, .scale = 1.0f, .x = { m, F32, 4 }, .y = { m, F32, 2 } };
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID); /* 4 inputs, the weight has 3 */
    op.u.linear.n_in = 3;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_OK);
    op.u.linear.x.dtype = BF16;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    d->ops->weight_close(d->dev, w);
}

static void test_linear_refuses(void **state)
{
    (void)state;
    test_each_device(refuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_linear), cmocka_unit_test(test_linear_blocks),
                                        cmocka_unit_test(test_linear_best),
                                        cmocka_unit_test(test_linear_refuses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
