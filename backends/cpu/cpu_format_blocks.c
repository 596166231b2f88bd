/* cpu_format_blocks.c - weights in the blocks of GGUF files (layout: cpu_block_scales in cpu.h). Who takes their values (embeddings, and
 * library products of prefill passes) takes them rounded to the compute type. */
#include "backends/cpu/cpu.h"
#include "core/core_half.h"

/* A block of one lane to its places. */
static void put_lane(uint8_t *panel, const spec_block_form *f, const spec_block_parts *from, size_t lane)
{
    uint16_t *const d = (void *)panel;
    uint8_t *const scale = panel + 2 * CPU_PANEL * (1 + f->has_m) + lane;
    d[lane] = from->d;
    if (f->has_m) d[CPU_PANEL + lane] = from->m;
    for (int i = 0; i < f->n_f; i++) {
        scale[i * CPU_PANEL] = from->f[i * 16 / f->n_f];
        if (f->has_m) scale[(f->n_f + i) * CPU_PANEL] = from->fm[i * 16 / f->n_f];
    }
    for (int k = 0; k < f->n_value; k++) {
        const int in = k % SPEC_SMALL_BLOCK;
        uint32_t *const group = (void *)(panel + cpu_block_scales(f) + (size_t)(k / SPEC_SMALL_BLOCK) * cpu_block_group(f));
        group[in / 8 * CPU_PANEL + (int)lane] |= (from->q[k] & 15u) << cpu_low_shift(in);
        if (f->n_high == 0) continue;
        group[(4 + in * f->n_high / 32) * CPU_PANEL + (int)lane] |= (uint32_t)(from->q[k] >> 4) << cpu_high_shift(in, f->n_high);
    }
}

static void pack(const spec_weight *w, uint8_t *panel, const uint8_t *const src[CPU_PANEL], spec_dtype type)
{
    const cpu_format *const format = w->format;
    uint16_t block[SPEC_K_BLOCK / 2]; /* no block has more bytes */
    spec_block_parts parts;
    (void)type;
    for (size_t lane = 0; lane < CPU_PANEL; lane++)
        for (int32_t i = 0; src[lane] && i < w->n_k / format->block; i++) {
            memcpy(block, src[lane] + (size_t)i * format->source_bytes, format->source_bytes);
            format->parts(&parts, block);
            put_lane(panel + (size_t)i * format->panel_bytes, format->form, &parts, lane);
        }
}

static float rounded(float v, spec_dtype type)
{
    return type == SPEC_DTYPE_BF16 ? speci_from_bf16(speci_to_bf16(v)) : type == SPEC_DTYPE_F16 ? speci_from_f16(speci_to_f16(v)) : v;
}

/* Input k of a block's lane, in float32. */
static float value_of(const uint8_t *panel, const spec_block_form *f, size_t lane, int k)
{
    const uint16_t *const d = (const void *)panel;
    const uint8_t *const scale = panel + 2 * CPU_PANEL * (1 + f->has_m) + lane;
    const int in = k % SPEC_SMALL_BLOCK, i = k * f->n_f / f->n_value;
    const uint32_t *const group = (const void *)(panel + cpu_block_scales(f) + (size_t)(k / SPEC_SMALL_BLOCK) * cpu_block_group(f));
    int q = (int)(group[in / 8 * CPU_PANEL + (int)lane] >> cpu_low_shift(in) & 15u);
    if (f->n_high > 0) {
        const uint32_t high = group[(4 + in * f->n_high / 32) * CPU_PANEL + (int)lane] >> cpu_high_shift(in, f->n_high);
        q |= (int)(high & ((1u << f->n_high) - 1)) << 4;
    }
    const float by = f->n_f == 0 ? 1.0f : f->n_f == 8 ? (float)scale[i * CPU_PANEL] : (float)(int8_t)scale[i * CPU_PANEL];
    const float v = speci_from_f16(d[lane]) * by * (float)(q - f->middle);
    if (!f->has_m) return v;
    const float m = speci_from_f16(d[CPU_PANEL + lane]);
    return f->n_f == 0 ? v + m : v - m * (float)scale[(f->n_f + i) * CPU_PANEL];
}

static void row(const spec_weight *w, const uint8_t *panel, size_t lane, float *out)
{
    const cpu_format *const format = w->format;
    for (int32_t k = 0; k < w->n_in; k++) {
        const uint8_t *const block = panel + (size_t)(k / format->block) * format->panel_bytes;
        out[k] = rounded(value_of(block, format->form, lane, k % format->block), w->compute);
    }
}

static void unpack(const spec_weight *w, const cpu_loops *loops, const uint8_t *panel, int32_t k0, int32_t n_k, float *out,
                   size_t ld)
{
    loops->unpack(out, ld, w->compute, w->format->form, panel + speci_cpu_weight_offset(w, k0), n_k);
}

static const spec_block_form form_q4_0 = SPEC_FORM_Q4_0, form_q4_1 = SPEC_FORM_Q4_1, form_q5_0 = SPEC_FORM_Q5_0,
                             form_q5_1 = SPEC_FORM_Q5_1, form_q4_k = SPEC_FORM_Q4_K, form_q5_k = SPEC_FORM_Q5_K,
                             form_q6_k = SPEC_FORM_Q6_K;

/* The bytes of a lane in a panel are those of a block but for the K types' six-bit numbers, which are a byte each. */
#define LANES(n) (CPU_PANEL * (size_t)(n))

const cpu_format speci_cpu_format_q4_0 = { SPEC_DTYPE_Q4_0, false, SPEC_SMALL_BLOCK, sizeof(spec_q4_0_block), LANES(18), pack, row,
                                           unpack, &form_q4_0, spec_q4_0_parts };
const cpu_format speci_cpu_format_q4_1 = { SPEC_DTYPE_Q4_1, false, SPEC_SMALL_BLOCK, sizeof(spec_q4_1_block), LANES(20), pack, row,
                                           unpack, &form_q4_1, spec_q4_1_parts };
const cpu_format speci_cpu_format_q5_0 = { SPEC_DTYPE_Q5_0, false, SPEC_SMALL_BLOCK, sizeof(spec_q5_0_block), LANES(22), pack, row,
                                           unpack, &form_q5_0, spec_q5_0_parts };
const cpu_format speci_cpu_format_q5_1 = { SPEC_DTYPE_Q5_1, false, SPEC_SMALL_BLOCK, sizeof(spec_q5_1_block), LANES(24), pack, row,
                                           unpack, &form_q5_1, spec_q5_1_parts };
const cpu_format speci_cpu_format_q4_k = { SPEC_DTYPE_Q4_K, false, SPEC_K_BLOCK, sizeof(spec_q4_k_block), LANES(148), pack, row, unpack,
                                           &form_q4_k, spec_q4_k_parts };
const cpu_format speci_cpu_format_q5_k = { SPEC_DTYPE_Q5_K, false, SPEC_K_BLOCK, sizeof(spec_q5_k_block), LANES(180), pack, row, unpack,
                                           &form_q5_k, spec_q5_k_parts };
const cpu_format speci_cpu_format_q6_k = { SPEC_DTYPE_Q6_K, false, SPEC_K_BLOCK, sizeof(spec_q6_k_block), LANES(210), pack, row, unpack,
                                           &form_q6_k, spec_q6_k_parts };
