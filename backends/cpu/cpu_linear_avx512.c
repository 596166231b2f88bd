/* cpu_linear_avx512.c - few-row products with AVX-512 and FMA (flags and order of summation: cpu.h). */
#include "backends/cpu/cpu.h"

#if CPU_X86
#include "backends/cpu/cpu_linear_avx512.h"
#include "backends/cpu/cpu_unpack_avx512.h"

void speci_cpu_avx512_f32(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx * sizeof(float), n_row, n_k, add, STEP_F32);
}

void speci_cpu_avx512_bf16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx * sizeof(float), n_row, n_k, add, STEP_BF16);
}

void speci_cpu_avx512_f16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx * sizeof(float), n_row, n_k, add, STEP_F16);
}

void speci_cpu_avx512_q8_0(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product_blocks(t, w, panel_bytes, n_panel, next, x, ldx, n_row, n_k, add, STEP_Q8);
}

void speci_cpu_avx512_blocks(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes,
                             int32_t n_panel, const cpu_blocks_x *x, int32_t n_row, int32_t n_k)
{
    product_blocks_of(t, form, w, panel_bytes, n_panel, x, n_row, n_k, STEP_F32);
}

static void product_pairs(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                          size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx * sizeof(float), n_row, n_k / 2, add, STEP_WIDE);
}

static void product_pairs_two(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                              size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)n_panel; /* 4 */
    product_two(t, w, panel_bytes, next, x, ldx * sizeof(float), n_row, n_k / 2, add, STEP_WIDE);
}

static bool supported(void)
{
    return speci_cpu_isa_avx2.supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const cpu_isa speci_cpu_isa_avx512 = {
    .name = "avx512",
    .supported = supported,
    .product = { [SPEC_DTYPE_F32] = speci_cpu_avx512_f32, [SPEC_DTYPE_BF16] = speci_cpu_avx512_bf16,
                 [SPEC_DTYPE_F16] = speci_cpu_avx512_f16,
                 [SPEC_DTYPE_Q8_0] = speci_cpu_avx512_q8_0 },
    .bf16_pairs = product_pairs,
    .pairs_two = product_pairs_two,
    .pairs_x = SPEC_DTYPE_F32,
    .blocks = speci_cpu_avx512_blocks,
    .loops = &speci_cpu_loops_avx512,
};
#else
typedef int speci_cpu_linear_avx512_is_empty;
#endif
