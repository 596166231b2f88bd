/* cpu_unpack_avx512.h - blocks of a panel as pairs of bf16 (cpu.h): what cpu_loops.unpack does, fused. Of sixteen lanes at a time, a
 * number of four or five bits is the place of its value in a table that registers hold. Memory is asked for CPU_NEAR_BYTES ahead in
 * each panel: left to itself it was waited for half of the time. Included by cpu_linear_avx512.c, cpu_linear_avx512bf16.c and cpu_linear_amx.c. */
#include <immintrin.h>

#define UNPACK static inline __attribute__((always_inline))

/* Of the sixteen lanes of half h: the block's, and a group's. scale: of either half of the group. */
typedef struct half_scales {
    __m512 d, m, scale[2], add;
} half_scales;

UNPACK __m512 from_f16(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at)); }
UNPACK __m512 from_u8(const uint8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)at))); }
UNPACK __m512 from_i8(const uint8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at))); }

UNPACK void block_scales(half_scales *s, const uint8_t *panel, int h, bool has_m)
{
    s->d = s->scale[0] = s->scale[1] = from_f16(panel + 32 * h);
    s->m = s->add = has_m ? from_f16(panel + 2 * CPU_PANEL + 32 * h) : _mm512_setzero_ps();
}

/* Those of group g, in blocks that have f. */
UNPACK void group_scales_of(half_scales *s, const uint8_t *panel, int h, int g, int n_f, bool has_m)
{
    const uint8_t *const f = panel + 2 * CPU_PANEL * (1 + has_m) + 16 * h;
    if (n_f == 8) {
        s->scale[0] = s->scale[1] = _mm512_mul_ps(s->d, from_u8(f + g * CPU_PANEL));
        s->add = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(s->m, from_u8(f + (8 + g) * CPU_PANEL)));
    } else if (n_f == 16) {
        for (int i = 0; i < 2; i++) s->scale[i] = _mm512_mul_ps(s->d, from_i8(f + (2 * g + i) * CPU_PANEL));
    }
}

/* Numbers first .. first + 15, less the middle. */
UNPACK __m512 sixteen_from(int first)
{
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(i, _mm512_set1_epi32(first)));
}

/* q - middle of input k, of words of eight low fours and of the words of high bits. */
UNPACK __m512 number(__m512i low, __m512i high, int k, int n_high, int middle)
{
    const __m512i at = _mm512_srli_epi32(low, (unsigned)(k % 8 * 4));
    if (n_high == 0) return _mm512_permutexvar_ps(at, sixteen_from(-middle));
    const int shift = k * n_high % 32 - 4; /* the high bits to bit 4 */
    const __m512i top = shift < 0 ? _mm512_slli_epi32(high, (unsigned)-shift) : _mm512_srli_epi32(high, (unsigned)shift);
    const __m512i q = _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), at, top, 0xca); /* a bit of `at` where 15 has one, else of top */
    if (n_high == 1) return _mm512_permutex2var_ps(sixteen_from(-middle), q, sixteen_from(16 - middle));
    return _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(q, _mm512_set1_epi32(63))), _mm512_set1_ps((float)middle));
}

/* Rounded to bf16, as float32: rounded8 of cpu_unpack_avx2.h. */
UNPACK __m512 as_bf16(__m512 v)
{
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7f800000));
    const __m512 power = _mm512_castsi512_ps(exponent), by = _mm512_set1_ps(98304.0f);
    return _mm512_fnmadd_ps(power, by, _mm512_fmadd_ps(power, by, v));
}

/* Two values of each lane, rounded to nearest even; none is subnormal, and what becomes of a NaN is open. */
UNPACK __m512i pair_of(__m512 first, __m512 second)
{
#if defined(__AVX512BF16__)
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first); /* the first of all lanes, then the second */
    const __m512i order = _mm512_add_epi32(_mm512_set1_epi32(0x00100000), _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001),
                              _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    return _mm512_permutexvar_epi16(order, both);
#else
    const __m512i lower = _mm512_srli_epi32(_mm512_castps_si512(as_bf16(first)), 16);
    return _mm512_or_si512(lower, _mm512_castps_si512(as_bf16(second)));
#endif
}

/* 32 inputs of sixteen lanes: out [16][32 lanes] pairs. The numbers of the form are constants where this is called. */
UNPACK void unpack_half(uint32_t *out, const half_scales *s, const uint32_t *group, int h, int n_high, int middle, bool has_m)
{
    const uint32_t *const lanes = group + 16 * h;
    _Pragma("GCC unroll 4")
    for (int word = 0; word < 4; word++) {
        const __m512i low = _mm512_loadu_si512((const void *)(lanes + word * CPU_PANEL));
        _mm_prefetch((const char *)(lanes + word * CPU_PANEL) + CPU_NEAR_BYTES, _MM_HINT_T0);
        if (n_high && word % (4 / n_high) == 0)
            _mm_prefetch((const char *)(lanes + (4 + word * n_high / 4) * CPU_PANEL) + CPU_NEAR_BYTES, _MM_HINT_T0);
        const __m512i high = n_high ? _mm512_loadu_si512((const void *)(lanes + (4 + word * n_high / 4) * CPU_PANEL)) : low;
        _Pragma("GCC unroll 4")
        for (int pair = 0; pair < 4; pair++) {
            __m512 v[2];
            _Pragma("GCC unroll 2")
            for (int i = 0; i < 2; i++) {
                const __m512 q = number(low, high, 8 * word + 2 * pair + i, n_high, middle), scale = s->scale[word / 2];
                v[i] = has_m ? _mm512_fmadd_ps(scale, q, s->add) : _mm512_mul_ps(scale, q);
            }
            _mm512_storeu_si512((void *)(out + (4 * word + pair) * CPU_PANEL + 16 * h), pair_of(v[0], v[1]));
        }
    }
}

UNPACK void unpack_pairs(uint32_t *out, const uint8_t *panel, int32_t n_k, int n_group, int n_high, int middle, bool has_m, int n_f)
{
    const spec_block_form form = { .n_high = n_high, .has_m = has_m, .n_f = n_f };
    const size_t scales = cpu_block_scales(&form), group_bytes = cpu_block_group(&form);
    half_scales s[2];
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK, out += SPEC_SMALL_BLOCK / 2 * CPU_PANEL) {
        const uint32_t *const group = (const void *)(panel + scales + (size_t)g * group_bytes);
        _Pragma("GCC unroll 2")
        for (int h = 0; h < 2; h++) {
            if (h == 0) _mm_prefetch((const char *)panel + (size_t)(g * 64) + CPU_NEAR_BYTES, _MM_HINT_T0);
            if (g == 0) block_scales(&s[h], panel, h, has_m);
            group_scales_of(&s[h], panel, h, g, n_f, has_m);
            unpack_half(out, &s[h], group, h, n_high, middle, has_m);
        }
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
}

/* The first n_k inputs of a panel's blocks. */
static void unpack_to_pairs(void *out, const spec_block_form *form, const uint8_t *panel, int32_t n_k)
{
    if (form->n_f == 16) unpack_pairs(out, panel, n_k, 8, 2, 32, false, 16);
    else if (form->n_f == 8 && form->n_high) unpack_pairs(out, panel, n_k, 8, 1, 0, true, 8);
    else if (form->n_f == 8) unpack_pairs(out, panel, n_k, 8, 0, 0, true, 8);
    else if (form->n_high && form->has_m) unpack_pairs(out, panel, n_k, 1, 1, 0, true, 0);
    else if (form->n_high) unpack_pairs(out, panel, n_k, 1, 1, 16, false, 0);
    else if (form->has_m) unpack_pairs(out, panel, n_k, 1, 0, 0, true, 0);
    else unpack_pairs(out, panel, n_k, 1, 0, 8, false, 0);
}

/* --- products of one or two rows: what is unpacked is multiplied where it is, in registers. By way of memory four bits took 1.4 times as long --- */

/* acc + first x[0] + second x[1], one after the other: both rounded to bf16, x a pair of the type that products in pairs read */
UNPACK __m512 multiply_pair(__m512 acc, __m512 first, __m512 second, const uint8_t *x)
{
#if defined(__AVX512BF16__)
    return multiply(acc, _mm512_castsi512_ps(pair_of(first, second)), x, STEP_PAIRS);
#else
    return multiply(multiply(acc, as_bf16(first), x, STEP_WIDE), as_bf16(second), x + 4, STEP_WIDE);
#endif
}
#if defined(__AVX512BF16__)
enum { PAIR_BYTES = 4 }; /* of x */
#else
enum { PAIR_BYTES = 8 };
#endif

/* 32 inputs of both halves, whose chains of sums do not wait for each other. Numbers are constants where this is called. */
UNPACK void multiply_group(__m512 acc[CPU_FEW][2], const half_scales s[2], const uint32_t *group, const uint8_t *x, size_t ldx, int n_row,
                           int n_high, int middle, bool has_m)
{
    _Pragma("GCC unroll 4")
    for (int word = 0; word < 4; word++) {
        __m512i low[2], high[2];
        _Pragma("GCC unroll 2")
        for (int h = 0; h < 2; h++) {
            const uint32_t *const lanes = group + 16 * h;
            low[h] = high[h] = _mm512_loadu_si512((const void *)(lanes + word * CPU_PANEL));
            _mm_prefetch((const char *)(lanes + word * CPU_PANEL) + CPU_NEAR_BYTES, _MM_HINT_T0);
            if (n_high == 0) continue;
            high[h] = _mm512_loadu_si512((const void *)(lanes + (4 + word * n_high / 4) * CPU_PANEL));
            if (word % (4 / n_high) == 0) _mm_prefetch((const char *)(lanes + (4 + word * n_high / 4) * CPU_PANEL) + CPU_NEAR_BYTES, _MM_HINT_T0);
        }
        _Pragma("GCC unroll 4")
        for (int pair = 0; pair < 4; pair++) {
            _Pragma("GCC unroll 2")
            for (int h = 0; h < 2; h++) {
                __m512 v[2];
                _Pragma("GCC unroll 2")
                for (int i = 0; i < 2; i++) {
                    const __m512 q = number(low[h], high[h], 8 * word + 2 * pair + i, n_high, middle), scale = s[h].scale[word / 2];
                    v[i] = has_m ? _mm512_fmadd_ps(scale, q, s[h].add) : _mm512_mul_ps(scale, q);
                }
                _Pragma("GCC unroll 2")
                for (int r = 0; r < n_row; r++)
                    acc[r][h] = multiply_pair(acc[r][h], v[0], v[1], x + (size_t)r * ldx + (size_t)((4 * word + pair) * PAIR_BYTES));
            }
        }
    }
}

UNPACK void multiply_blocks(float *t, const uint8_t *panel, const uint8_t *x, size_t ldx, int n_row, int32_t n_k, bool add, int n_group,
                            int n_high, int middle, bool has_m, int n_f)
{
    const spec_block_form form = { .n_high = n_high, .has_m = has_m, .n_f = n_f };
    const size_t scales = cpu_block_scales(&form), group_bytes = cpu_block_group(&form);
    half_scales s[2];
    __m512 acc[CPU_FEW][2];
    for (int r = 0; r < n_row; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK, x += SPEC_SMALL_BLOCK / 2 * PAIR_BYTES) {
        _mm_prefetch((const char *)panel + (size_t)(g * 64) + CPU_NEAR_BYTES, _MM_HINT_T0);
        _Pragma("GCC unroll 2")
        for (int h = 0; h < 2; h++) {
            if (g == 0) block_scales(&s[h], panel, h, has_m);
            group_scales_of(&s[h], panel, h, g, n_f, has_m);
        }
        multiply_group(acc, s, (const void *)(panel + scales + (size_t)g * group_bytes), x, ldx, n_row, n_high, middle, has_m);
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
    for (int r = 0; r < n_row; r++)
        for (int h = 0; h < 2; h++) put16(t + r * CPU_TASK_OUT + 16 * h, acc[r][h], add, NULL);
}

UNPACK void multiply_form(float *t, const spec_block_form *form, const uint8_t *panel, const uint8_t *x, size_t ldx, int n_row, int32_t n_k,
                          bool add)
{
    if (form->n_f == 16) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 8, 2, 32, false, 16);
    else if (form->n_f == 8 && form->n_high) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 8, 1, 0, true, 8);
    else if (form->n_f == 8) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 8, 0, 0, true, 8);
    else if (form->n_high && form->has_m) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 1, 1, 0, true, 0);
    else if (form->n_high) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 1, 1, 16, false, 0);
    else if (form->has_m) multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 1, 0, 0, true, 0);
    else multiply_blocks(t, panel, x, ldx, n_row, n_k, add, 1, 0, 8, false, 0);
}

/* cpu_isa.blocks_few of weights in pairs */
static inline void product_few(float *t, const spec_block_form *form, spec_dtype type, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                        const void *x, size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)type; /* bf16 */
    for (int32_t p = 0; p < n_panel; p++, t += CPU_PANEL, w += panel_bytes) {
        if (n_row == 1) multiply_form(t, form, w, x, ldx * (PAIR_BYTES / 2), 1, n_k, add);
        else multiply_form(t, form, w, x, ldx * (PAIR_BYTES / 2), 2, n_k, add);
    }
}
