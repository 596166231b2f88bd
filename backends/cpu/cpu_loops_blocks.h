/* cpu_loops_blocks.h - blocks of a panel (cpu.h) as numbers: a part of cpu_loops.h, included by it.
 *   value = (d f) (q - o) + m, or - m fm   (spec_blocks.h), rounded to the compute type */

#define GROUP_OF static inline __attribute__((always_inline))

#if defined(__AVX2__)
#include "backends/cpu/cpu_unpack_avx2.h"

typedef lane_scales group_scales;

/* 32 inputs, the g-th group of the block; type and n_high are constants where this is called. */
GROUP_OF void unpack_words(float *out, size_t ld, spec_dtype type, const group_scales *s, const uint32_t *group,
                           const spec_block_form *form, int n_high)
{
    for (size_t o = 0; o < CPU_PANEL; o += 8) {
        float *to = out + o;
        for (int w = 0; w < 4; w++) {
            const int h = half_of(form, w);
            const lane_words words = words_of(group + o, w, n_high);
            const __m256 add = _mm256_loadu_ps(s->add[h] + o);
            _Pragma("GCC unroll 8")
            for (int k = 0; k < 8; k++, to += ld) _mm256_storeu_ps(to, value8(&words, k, s->scale[h][0] + o, add, type, n_high));
        }
    }
}

GROUP_OF void unpack_group(float *out, size_t ld, spec_dtype type, group_scales *s, const uint8_t *panel, int g, const uint32_t *group,
                           const spec_block_form *form)
{
    lane_scales_of(s, form, panel, g, 4);
    if (form->n_high == 2) unpack_words(out, ld, type, s, group, form, 2);
    else if (form->n_high == 1) unpack_words(out, ld, type, s, group, form, 1);
    else unpack_words(out, ld, type, s, group, form, 0);
}
#else
/* Of a block: scale [2], of either half of a group, and what is added, of each lane. */
typedef struct group_scales {
    float d[CPU_PANEL], m[CPU_PANEL], scale[2][CPU_PANEL], add[CPU_PANEL];
} group_scales;

/* Those of group g. */
GROUP_OF void scales_of(group_scales *s, const uint8_t *panel, int g, int n_f, bool has_m)
{
    const uint8_t *f = panel + 2 * CPU_PANEL * (1 + has_m);
    if (g == 0) {
        load_f16(s->d, (const void *)panel, CPU_PANEL);
        for (size_t o = 0; o < CPU_PANEL; o++) s->m[o] = 0.0f;
        if (has_m) load_f16(s->m, (const void *)(panel + 2 * CPU_PANEL), CPU_PANEL);
    }
    if (n_f == 0) {
        for (size_t o = 0; o < CPU_PANEL; o++) s->scale[0][o] = s->scale[1][o] = s->d[o], s->add[o] = s->m[o];
    } else if (n_f == 8) {
        const uint8_t *at = f + g * CPU_PANEL, *fm = at + 8 * CPU_PANEL;
        for (size_t o = 0; o < CPU_PANEL; o++)
            s->scale[0][o] = s->scale[1][o] = s->d[o] * (float)at[o], s->add[o] = -(s->m[o] * (float)fm[o]);
    } else {
        const int8_t *at = (const int8_t *)f + 2 * g * CPU_PANEL;
        for (size_t i = 0; i < 2; i++)
            for (size_t o = 0; o < CPU_PANEL; o++) s->scale[i][o] = s->d[o] * (float)at[i * CPU_PANEL + o];
    }
}

/* Input k of a group of 32 lanes, as float32. */
GROUP_OF void unpack_input(float y[CPU_PANEL], const group_scales *s, const uint32_t *group, int k, int n_high, int middle, bool has_m)
{
    const uint32_t *restrict low = group + k / 8 * CPU_PANEL, *restrict high = group + 4 * CPU_PANEL + k * n_high / 32 * CPU_PANEL;
    const float *restrict scale = s->scale[k / 16], *restrict add = s->add;
    const int at = cpu_low_shift(k), high_at = n_high > 0 ? cpu_high_shift(k, n_high) : 0, mask = (1 << n_high) - 1;
    for (size_t o = 0; o < CPU_PANEL; o++) {
        int q = (int)(low[o] >> at & 15u);
        if (n_high > 0) q |= (int)(high[o] >> high_at & (uint32_t)mask) << 4;
        y[o] = scale[o] * (float)(q - middle);
        if (has_m) y[o] += add[o];
    }
}

/* v as bf16 has it, by float32's own rounding to nearest even (rounded8 of cpu_unpack_avx2.h); v is finite. */
GROUP_OF float bf16_of(float v)
{
    const float far = speci_float(speci_bits(v) & 0x7f800000u) * 98304.0f;
    return (v + far) - far;
}

/* Rounded to `type`, as float32. */
GROUP_OF void round_input(float *restrict out, const float *restrict y, spec_dtype type)
{
    if (type == SPEC_DTYPE_F16) {
        uint16_t half[CPU_PANEL];
        store_f16(half, y, CPU_PANEL);
        load_f16(out, half, CPU_PANEL);
        return;
    }
    for (size_t o = 0; o < CPU_PANEL; o++) out[o] = type == SPEC_DTYPE_BF16 ? bf16_of(y[o]) : y[o];
}

/* 32 inputs; type and the numbers of the form are constants where this is called. */
GROUP_OF void unpack_inputs(float *out, size_t ld, spec_dtype type, group_scales *s, const uint8_t *panel, int g,
                            const uint32_t *group, int n_high, int middle, int n_f)
{
    scales_of(s, panel, g, n_f, middle == 0);
    float y[CPU_PANEL];
    for (int k = 0; k < SPEC_SMALL_BLOCK; k++, out += ld) {
        unpack_input(y, s, group, k, n_high, middle, middle == 0);
        round_input(out, y, type);
    }
}
GROUP_OF void unpack_group(float *out, size_t ld, spec_dtype type, group_scales *s, const uint8_t *panel, int g, const uint32_t *group,
                           const spec_block_form *form)
{
    if (form->n_high == 2) unpack_inputs(out, ld, type, s, panel, g, group, 2, 32, 16);
    else if (form->n_f == 8 && form->n_high == 1) unpack_inputs(out, ld, type, s, panel, g, group, 1, 0, 8);
    else if (form->n_f == 8) unpack_inputs(out, ld, type, s, panel, g, group, 0, 0, 8);
    else if (form->n_high == 1 && form->has_m) unpack_inputs(out, ld, type, s, panel, g, group, 1, 0, 0);
    else if (form->n_high == 1) unpack_inputs(out, ld, type, s, panel, g, group, 1, 16, 0);
    else if (form->has_m) unpack_inputs(out, ld, type, s, panel, g, group, 0, 0, 0);
    else unpack_inputs(out, ld, type, s, panel, g, group, 0, 8, 0);
}
#endif

static void unpack(float *out, size_t ld, spec_dtype type, const spec_block_form *form, const uint8_t *panel, int32_t n_k)
{
    const size_t scales = cpu_block_scales(form), group_bytes = cpu_block_group(form);
    const int n_group = form->n_value / SPEC_SMALL_BLOCK;
    group_scales s;
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK, out += SPEC_SMALL_BLOCK * ld) {
        const uint8_t *const group = panel + scales + (size_t)g * group_bytes;
        for (size_t i = 0; i < group_bytes; i += 64) __builtin_prefetch(group + i + CPU_NEAR_BYTES);
        if (type == SPEC_DTYPE_BF16) unpack_group(out, ld, SPEC_DTYPE_BF16, &s, panel, g, (const void *)group, form);
        else if (type == SPEC_DTYPE_F16) unpack_group(out, ld, SPEC_DTYPE_F16, &s, panel, g, (const void *)group, form);
        else unpack_group(out, ld, SPEC_DTYPE_F32, &s, panel, g, (const void *)group, form);
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
}
