/* cpu_linear_avx512bf16.c - few-row products with VDPBF16PS: two bf16 products a lane and step (flags and order of
 * summation: cpu.h). The instruction takes subnormal values for zero and rounds to nearest, whatever the modes are:
 * a distribution of bits of its own. Everything else is that of cpu_linear_avx512.c. */
#include "backends/cpu/cpu.h"

#if CPU_X86
#include "backends/cpu/cpu_linear_avx512.h"
#include "backends/cpu/cpu_unpack_avx512.h"

static void product_pairs(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                          size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx * sizeof(uint16_t), n_row, n_k / 2, add, STEP_PAIRS);
}

static void product_q8_pairs(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                             size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product_blocks(t, w, panel_bytes, n_panel, next, x, ldx, n_row, n_k, add, STEP_Q8_PAIRS);
}

static void blocks_pairs(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                         const cpu_blocks_x *x, int32_t n_row, int32_t n_k)
{
    product_blocks_of(t, form, w, panel_bytes, n_panel, x, n_row, n_k, STEP_PAIRS);
}

static bool supported(void)
{
    return speci_cpu_isa_avx512.supported() && __builtin_cpu_supports("avx512bf16");
}

/* Intel's cores start one VDPBF16PS in two cycles and two VFMADD in one: for many rows the latter do twice the work.
 * AMD's start both alike. */
static bool preferred(void)
{
    return !__builtin_cpu_is("intel");
}

const cpu_isa speci_cpu_isa_avx512bf16 = {
    .name = "avx512bf16",
    .supported = supported,
    .preferred = preferred,
    .product = { [SPEC_DTYPE_F32] = speci_cpu_avx512_f32, [SPEC_DTYPE_BF16] = speci_cpu_avx512_bf16,
                 [SPEC_DTYPE_F16] = speci_cpu_avx512_f16,
                 [SPEC_DTYPE_Q8_0] = speci_cpu_avx512_q8_0 },
    .product_bf16 = { [SPEC_DTYPE_Q8_0] = product_q8_pairs },
    .bf16_pairs = product_pairs,
    .pairs_x = SPEC_DTYPE_BF16,
    .blocks = speci_cpu_avx512_blocks,
    .blocks_bf16 = blocks_pairs,
    .loops = &speci_cpu_loops_avx512,
};
#else
typedef int speci_cpu_linear_avx512bf16_is_empty;
#endif
