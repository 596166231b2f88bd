/* cpu_format_float.c - weights of a float type: input k of a panel's 32 outputs side by side, or two inputs of each where the
 * product takes pairs (cpu.h). */
#include "backends/cpu/cpu.h"
#include "core/core_half.h"

static float source_value(const uint8_t *p, spec_dtype t)
{
    uint16_t h;
    float f;
    if (t == SPEC_DTYPE_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    return t == SPEC_DTYPE_BF16 ? speci_from_bf16(h) : speci_from_f16(h);
}

static void store_value(uint8_t *p, spec_dtype t, float f)
{
    uint16_t h = t == SPEC_DTYPE_BF16 ? speci_to_bf16(f) : speci_to_f16(f);
    if (t == SPEC_DTYPE_F32) memcpy(p, &f, sizeof f);
    else memcpy(p, &h, sizeof h);
}

/* Index of (k, lane) within a panel. */
static inline size_t panel_index(const spec_weight *w, size_t k, size_t lane)
{
    return w->pairs ? k / 2 * (2 * CPU_PANEL) + lane * 2 + k % 2 : k * CPU_PANEL + lane;
}

/* Inputs [k0, k1) of one lane. */
static void pack_lane(const spec_weight *w, uint8_t *panel, size_t lane, const uint8_t *src, spec_dtype type, size_t k0, size_t k1)
{
    const size_t from = speci_dtype_bytes(type), to = speci_dtype_bytes(w->format->dtype);
    const bool same = type == w->format->dtype;
    for (size_t k = k0; k < k1 && k < (size_t)w->n_in; k++) {
        uint8_t *dst = panel + panel_index(w, k, lane) * to;
        if (same && to == 2) memcpy(dst, src + k * 2, 2);
        else if (same) memcpy(dst, src + k * 4, 4);
        else store_value(dst, w->format->dtype, source_value(src + k * from, type));
    }
}

static void pack(const spec_weight *w, uint8_t *panel, const uint8_t *const src[CPU_PANEL], spec_dtype type)
{
    for (size_t k = 0; k < (size_t)w->n_k; k += 64) /* a piece that stays in cache */
        for (size_t lane = 0; lane < CPU_PANEL; lane++)
            if (src[lane]) pack_lane(w, panel, lane, src[lane], type, k, k + 64);
}

static void row(const spec_weight *w, const uint8_t *panel, size_t lane, float *out)
{
    const spec_dtype type = w->format->dtype;
    for (size_t k = 0; k < (size_t)w->n_in; k++)
        out[k] = source_value(panel + panel_index(w, k, lane) * speci_dtype_bytes(type), type);
}

static void unpack(const spec_weight *w, const cpu_loops *loops, const uint8_t *panel, int32_t k0, int32_t n_k, float *out,
                   size_t ld)
{
    const spec_dtype type = w->format->dtype;
    const size_t size = speci_dtype_bytes(type);
    float pair[2 * CPU_PANEL];
    for (int32_t i = 0; i < n_k; i++) {
        float *dst = out + (size_t)i * ld;
        const uint8_t *src = panel + panel_index(w, (size_t)(k0 + i), 0) * size;
        if (!w->pairs) {
            loops->load(dst, src, type, CPU_PANEL);
            continue;
        }
        loops->load(pair, src - (size_t)((k0 + i) % 2) * size, type, 2 * CPU_PANEL);
        for (size_t j = 0; j < CPU_PANEL; j++) dst[j] = pair[2 * j + (size_t)((k0 + i) % 2)];
    }
}

const cpu_format speci_cpu_format_f32 = { SPEC_DTYPE_F32, true, 1, 4, 4 * CPU_PANEL, pack, row, unpack, NULL, NULL };
const cpu_format speci_cpu_format_bf16 = { SPEC_DTYPE_BF16, true, 1, 2, 2 * CPU_PANEL, pack, row, unpack, NULL, NULL };
const cpu_format speci_cpu_format_f16 = { SPEC_DTYPE_F16, true, 1, 2, 2 * CPU_PANEL, pack, row, unpack, NULL, NULL };
