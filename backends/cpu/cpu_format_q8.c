/* cpu_format_q8.c - weights of Q8_0: 32 inputs of a panel's 32 outputs, and a scale for each of these (cpu.h). */
#include "backends/cpu/cpu.h"
#include "core/core_half.h"

static void pack(const spec_weight *w, uint8_t *panel, const uint8_t *const src[CPU_PANEL], spec_dtype type)
{
    cpu_q8_panel *const to = (void *)panel;
    const size_t n_block = (size_t)w->n_k / SPEC_Q8_BLOCK;
    spec_q8_block block;
    (void)type;
    for (size_t lane = 0; lane < CPU_PANEL; lane++)
        for (size_t i = 0; src[lane] && i < n_block; i++) {
            memcpy(&block, src[lane] + i * sizeof block, sizeof block);
            to[i].scale[lane] = block.scale;
            for (size_t k = 0; k < SPEC_Q8_BLOCK; k++) to[i].q[k][lane] = block.q[k];
        }
}

static void row(const spec_weight *w, const uint8_t *panel, size_t lane, float *out)
{
    for (size_t k = 0; k < (size_t)w->n_in; k++) {
        const cpu_q8_panel *block = (const cpu_q8_panel *)(const void *)panel + k / SPEC_Q8_BLOCK;
        out[k] = speci_from_f16(block->scale[lane]) * (float)block->q[k % SPEC_Q8_BLOCK][lane];
    }
}

/* k0 and n_k are multiples of SPEC_Q8_BLOCK. */
static void unpack(const spec_weight *w, const cpu_loops *loops, const uint8_t *panel, int32_t k0, int32_t n_k, float *out,
                   size_t ld)
{
    const cpu_q8_panel *block = (const cpu_q8_panel *)(const void *)panel + k0 / SPEC_Q8_BLOCK;
    float scale[CPU_PANEL];
    (void)w;
    for (int32_t i = 0; i < n_k; i += SPEC_Q8_BLOCK, block++) {
        loops->load(scale, block->scale, SPEC_DTYPE_F16, CPU_PANEL);
        for (size_t k = 0; k < SPEC_Q8_BLOCK; k++, out += ld)
            for (size_t j = 0; j < CPU_PANEL; j++) out[j] = scale[j] * (float)block->q[k][j];
    }
}

const cpu_format speci_cpu_format_q8_0 = { SPEC_DTYPE_Q8_0, false, SPEC_Q8_BLOCK, sizeof(spec_q8_block), sizeof(cpu_q8_panel),
                                           pack, row, unpack, NULL, NULL };
