/* cpu_loops_blocks.h - blocks of a panel (cpu.h) as numbers: a part of cpu_loops.h, included by it.
 *   value = (d f) (q - o) + m, or - m fm   (spec_blocks.h), rounded to the compute type */

#define GROUP_OF static inline __attribute__((always_inline))

/* Of a block: scale [2], of either half of a group, and what is added, of each lane. */
typedef struct group_scales {
    float d[CPU_PANEL], m[CPU_PANEL], scale[2][CPU_PANEL], add[CPU_PANEL];
} group_scales;

/* Those of group g. */
GROUP_OF void scales_of(group_scales *s, const spec_block_form *form, const uint8_t *panel, int g)
{
    const uint8_t *f = panel + 2 * CPU_PANEL * (1 + form->has_m);
    if (g == 0) {
        load_f16(s->d, (const void *)panel, CPU_PANEL);
        for (size_t o = 0; o < CPU_PANEL; o++) s->m[o] = 0.0f;
        if (form->has_m) load_f16(s->m, (const void *)(panel + 2 * CPU_PANEL), CPU_PANEL);
    }
    if (form->n_f == 0) {
        for (size_t o = 0; o < CPU_PANEL; o++) s->scale[0][o] = s->scale[1][o] = s->d[o], s->add[o] = s->m[o];
    } else if (form->n_f == 8) {
        const uint8_t *at = f + g * CPU_PANEL, *fm = at + 8 * CPU_PANEL;
        for (size_t o = 0; o < CPU_PANEL; o++) s->scale[0][o] = s->scale[1][o] = s->d[o] * (float)at[o], s->add[o] = -(s->m[o] * (float)fm[o]);
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
    const int at = k % 8 * 4, high_at = k * n_high % 32, mask = (1 << n_high) - 1;
    for (size_t o = 0; o < CPU_PANEL; o++) {
        int q = (int)(low[o] >> at & 15u);
        if (n_high > 0) q |= (int)(high[o] >> high_at & (uint32_t)mask) << 4;
        y[o] = scale[o] * (float)(q - middle);
        if (has_m) y[o] += add[o];
    }
}

/* Two inputs of 32 lanes as pairs of bf16. */
GROUP_OF void store_pairs(uint32_t *restrict out, const float *restrict first, const float *restrict second)
{
    for (size_t o = 0; o < CPU_PANEL; o++) out[o] = speci_to_bf16(first[o]) | (uint32_t)speci_to_bf16(second[o]) << 16;
}

/* 32 inputs; the numbers of the form are constants where this is called. */
GROUP_OF void unpack_group(uint8_t *out, spec_dtype type, bool pairs, const group_scales *s, const uint32_t *group, int n_high, int middle,
                        bool has_m)
{
    float y[2][CPU_PANEL];
    const size_t bytes = CPU_PANEL * (type == SPEC_DTYPE_F32 ? 4 : 2);
    for (int k = 0; k < SPEC_SMALL_BLOCK; k += 2, out += 2 * bytes) {
        unpack_input(y[0], s, group, k, n_high, middle, has_m);
        unpack_input(y[1], s, group, k + 1, n_high, middle, has_m);
        if (pairs) {
            store_pairs((void *)out, y[0], y[1]);
            continue;
        }
        for (size_t i = 0; i < 2; i++) store(out + i * bytes, type, y[i], CPU_PANEL);
    }
}

static void unpack(void *out, spec_dtype type, bool pairs, const spec_block_form *form, const uint8_t *panel, int32_t n_k)
{
    const size_t scales = cpu_block_scales(form), group_bytes = cpu_block_group(form);
    const int n_group = form->n_value / SPEC_SMALL_BLOCK;
    uint8_t *to = out;
    group_scales s;
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK, to += SPEC_SMALL_BLOCK * CPU_PANEL * (type == SPEC_DTYPE_F32 ? 4 : 2)) {
        const uint32_t *const group = (const void *)(panel + scales + (size_t)g * group_bytes);
        scales_of(&s, form, panel, g);
        if (form->n_high == 2) unpack_group(to, type, pairs, &s, group, 2, 32, false);
        else if (form->n_high == 1 && form->has_m) unpack_group(to, type, pairs, &s, group, 1, 0, true);
        else if (form->n_high == 1) unpack_group(to, type, pairs, &s, group, 1, 16, false);
        else if (form->has_m) unpack_group(to, type, pairs, &s, group, 0, 0, true);
        else unpack_group(to, type, pairs, &s, group, 0, 8, false);
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
}
