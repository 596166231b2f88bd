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

#if defined(__AVX2__)
/* Rounded to `type`, as float32; bf16 to nearest even. */
GROUP_OF __m256 rounded8(__m256 v, spec_dtype type)
{
    if (type == SPEC_DTYPE_F32) return v;
    if (type == SPEC_DTYPE_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    const __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000)));
}

/* 32 inputs, of eight lanes at a time; type and the numbers of the form are constants where this is called. */
GROUP_OF void unpack_inputs(float *out, size_t ld, spec_dtype type, const group_scales *s, const uint32_t *group, int n_high, int middle,
                            bool has_m)
{
    const __m256 from = _mm256_set1_ps((float)middle);
    for (size_t o = 0; o < CPU_PANEL; o += 8) {
        const __m256 add = _mm256_loadu_ps(s->add + o);
        for (size_t word = 0; word < 4; word++) {
            const __m256 scale = _mm256_loadu_ps(s->scale[word / 2] + o);
            __m256i low = _mm256_loadu_si256((const void *)(group + word * CPU_PANEL + o)), high = low;
            float *to = out + 8 * word * ld + o;
            if (n_high > 0) { /* its bits to where they belong: bit 4 and up */
                high = _mm256_loadu_si256((const void *)(group + (4 + word * (size_t)n_high / 4) * CPU_PANEL + o));
                high = _mm256_srli_epi32(high, (int)(8 * word * (size_t)n_high % 32));
            }
            for (int i = 0; i < 8; i++, to += ld) {
                __m256i q = _mm256_and_si256(low, _mm256_set1_epi32(15));
                low = _mm256_srli_epi32(low, 4);
                if (n_high > 0) {
                    const __m256i bits = _mm256_and_si256(high, _mm256_set1_epi32((1 << n_high) - 1));
                    q = _mm256_or_si256(q, _mm256_slli_epi32(bits, 4));
                    high = _mm256_srli_epi32(high, n_high);
                }
                __m256 v = _mm256_cvtepi32_ps(q);
                if (middle) v = _mm256_sub_ps(v, from);
                v = has_m ? _mm256_fmadd_ps(scale, v, add) : _mm256_mul_ps(scale, v);
                _mm256_storeu_ps(to, rounded8(v, type));
            }
        }
    }
}
#else
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

/* Rounded to `type`, as float32. */
GROUP_OF void round_input(float *restrict out, const float *restrict y, spec_dtype type)
{
    if (type == SPEC_DTYPE_F16) {
        uint16_t half[CPU_PANEL];
        store_f16(half, y, CPU_PANEL);
        load_f16(out, half, CPU_PANEL);
        return;
    }
    for (size_t o = 0; o < CPU_PANEL; o++) out[o] = type == SPEC_DTYPE_BF16 ? speci_from_bf16(speci_to_bf16(y[o])) : y[o];
}

/* 32 inputs; type and the numbers of the form are constants where this is called. */
GROUP_OF void unpack_inputs(float *out, size_t ld, spec_dtype type, const group_scales *s, const uint32_t *group, int n_high, int middle,
                            bool has_m)
{
    float y[CPU_PANEL];
    for (int k = 0; k < SPEC_SMALL_BLOCK; k++, out += ld) {
        unpack_input(y, s, group, k, n_high, middle, has_m);
        round_input(out, y, type);
    }
}
#endif

GROUP_OF void unpack_group(float *out, size_t ld, spec_dtype type, const group_scales *s, const uint32_t *group, const spec_block_form *form)
{
    if (form->n_high == 2) unpack_inputs(out, ld, type, s, group, 2, 32, false);
    else if (form->n_high == 1 && form->has_m) unpack_inputs(out, ld, type, s, group, 1, 0, true);
    else if (form->n_high == 1) unpack_inputs(out, ld, type, s, group, 1, 16, false);
    else if (form->has_m) unpack_inputs(out, ld, type, s, group, 0, 0, true);
    else unpack_inputs(out, ld, type, s, group, 0, 8, false);
}

static void unpack(float *out, size_t ld, spec_dtype type, const spec_block_form *form, const uint8_t *panel, int32_t n_k)
{
    const size_t scales = cpu_block_scales(form), group_bytes = cpu_block_group(form);
    const int n_group = form->n_value / SPEC_SMALL_BLOCK;
    group_scales s;
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK, out += SPEC_SMALL_BLOCK * ld) {
        const uint8_t *const group = panel + scales + (size_t)g * group_bytes;
        for (size_t i = 0; i < group_bytes; i += 64) __builtin_prefetch(group + i + CPU_NEAR_BYTES);
        scales_of(&s, form, panel, g);
        if (type == SPEC_DTYPE_BF16) unpack_group(out, ld, SPEC_DTYPE_BF16, &s, (const void *)group, form);
        else if (type == SPEC_DTYPE_F16) unpack_group(out, ld, SPEC_DTYPE_F16, &s, (const void *)group, form);
        else unpack_group(out, ld, SPEC_DTYPE_F32, &s, (const void *)group, form);
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
}
