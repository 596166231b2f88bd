/* cpu_unpack_avx2.h - blocks of a panel (cpu.h) as float32 in registers, eight lanes at a time: of cpu_loops.unpack and of the products
 * of cpu_linear_avx2.c. Included by files that are compiled with AVX2, FMA and F16C.
 *
 *   value = (d f) (q - o) + m, or - m fm   (spec_blocks.h), rounded to the compute type
 *
 * What saves operations: numbers stay at their place in the word, which makes them 16^i times as large, and the scale is divided by that;
 * - (d f) o is added like m. Each of these is exact, where the scale is finite. */
#include <immintrin.h>

#define UNPACK8 static inline __attribute__((always_inline))

/* d and m of a block; of a group scale[h][i], of half h (the second one where there are 16 in a block) and numbers that are times 16^i, and
 * what is added; of each lane. */
typedef struct lane_scales {
    float d[CPU_PANEL], m[CPU_PANEL], scale[2][4][CPU_PANEL], add[2][CPU_PANEL];
} lane_scales;

UNPACK8 __m256 of_f16(const uint8_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at)); }
UNPACK8 __m256 of_u8(const uint8_t *at) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)at))); }
UNPACK8 __m256 of_i8(const uint8_t *at) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at))); }

/* Those of group g; of group 0 the block's too. n_place: as many i are wanted, 1 or 4. */
static void lane_scales_of(lane_scales *s, const spec_block_form *form, const uint8_t *panel, int g, int n_place)
{
    const int n_f = form->n_f;
    const bool has_m = form->has_m;
    const uint8_t *const f = panel + 2 * CPU_PANEL * (1 + has_m);
    for (size_t o = 0; o < CPU_PANEL; o += 8) {
        if (g == 0) {
            _mm256_storeu_ps(s->d + o, of_f16(panel + 2 * o));
            if (has_m) _mm256_storeu_ps(s->m + o, of_f16(panel + 2 * (CPU_PANEL + o)));
        }
        const __m256 d = _mm256_loadu_ps(s->d + o);
        for (int h = 0; h < (n_f == 16 ? 2 : 1); h++) {
            const __m256 scale = n_f == 0 ? d
                                          : _mm256_mul_ps(d, n_f == 8 ? of_u8(f + g * CPU_PANEL + o)
                                                                      : of_i8(f + (2 * g + h) * CPU_PANEL + o));
            for (int i = 0; i < n_place; i++)
                _mm256_storeu_ps(s->scale[h][i] + o, _mm256_mul_ps(scale, _mm256_set1_ps(1.0f / (float)(1 << 4 * i))));
            __m256 add;
            if (!has_m) add = _mm256_mul_ps(scale, _mm256_set1_ps((float)-form->middle));
            else if (n_f == 0) add = _mm256_loadu_ps(s->m + o);
            else add = _mm256_mul_ps(_mm256_loadu_ps(s->m + o), _mm256_sub_ps(_mm256_setzero_ps(), of_u8(f + (8 + g) * CPU_PANEL + o)));
            _mm256_storeu_ps(s->add[h] + o, add);
        }
    }
}

/* Rounded to `type`, as float32. To bf16 by the unit's own rounding to nearest even: the last bit of v + 2^e * 1.5 * 2^16, for |v| from 2^e
 * on, is bf16's. Three operations, where five work on the bits. */
UNPACK8 __m256 rounded8(__m256 v, spec_dtype type)
{
    if (type == SPEC_DTYPE_F32) return v;
    if (type == SPEC_DTYPE_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    const __m256 power = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000))), by = _mm256_set1_ps(98304.0f);
    return _mm256_fnmadd_ps(power, by, _mm256_fmadd_ps(power, by, v));
}

/* Which half of a group has its scales for word w. */
UNPACK8 int half_of(const spec_block_form *form, int w) { return form->n_f == 16 ? w / 2 : 0; }

/* Eight lanes of 32 inputs: the words that hold eight of them. */
typedef struct lane_words {
    __m256i low, high;
} lane_words;

/* Word w, of inputs 8 w .., of the lanes from `lanes` on. */
UNPACK8 lane_words words_of(const uint32_t *lanes, int w, int n_high)
{
    lane_words words = { _mm256_loadu_si256((const void *)(lanes + w * CPU_PANEL)), _mm256_setzero_si256() };
    if (n_high == 0) return words;
    words.high = _mm256_loadu_si256((const void *)(lanes + (4 + w * n_high / 4) * CPU_PANEL));
    words.high = _mm256_srl_epi32(words.high, _mm_cvtsi32_si128(cpu_high_shift(8 * w, n_high)));
    return words;
}

UNPACK8 __m256i shifted8(__m256i v, int down) { return down >= 0 ? _mm256_srli_epi32(v, down) : _mm256_slli_epi32(v, -down); }

/* Input k of the eight, a constant where this is called: its number, times 2^at */
UNPACK8 __m256i number8(const lane_words *words, int k, int n_high, int at)
{
    const __m256i low = _mm256_and_si256(shifted8(words->low, cpu_low_shift(k) - at), _mm256_set1_epi32(15 << at));
    if (n_high == 0) return low;
    const __m256i high = shifted8(words->high, cpu_high_shift(k, n_high) - at - 4);
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi32(((1 << n_high) - 1) << (at + 4))));
}

/* q - o of it */
UNPACK8 __m256 centred8(const lane_words *words, int k, int n_high, int middle)
{
    const __m256i q = number8(words, k, n_high, 0);
    return _mm256_cvtepi32_ps(middle ? _mm256_sub_epi32(q, _mm256_set1_epi32(middle)) : q);
}

/* Its value; scale and add: the group's, from these lanes on. */
UNPACK8 __m256 value8(const lane_words *words, int k, const float *scale, __m256 add, spec_dtype type, int n_high)
{
    const int i = k / 2;
    const __m256i q = number8(words, k, n_high, 4 * i);
    return rounded8(_mm256_fmadd_ps(_mm256_cvtepi32_ps(q), _mm256_loadu_ps(scale + i * CPU_PANEL), add), type);
}
