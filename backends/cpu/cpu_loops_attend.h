/* cpu_loops_attend.h - the inner loop of attention, and products of rows: a part of cpu_loops.h, included by it. */

/* Units of values as they lie in the cache: float32, or bf16. */
typedef uint16_t half_unit __attribute__((vector_size(2 * UNIT)));
typedef uint32_t bits_unit __attribute__((vector_size(4 * UNIT)));

TILE unit load_values(const void *from, size_t i, bool bf16)
{
    if (!bf16) return load_unit((const float *)from + i);
    const uint16_t *const at = (const uint16_t *)from + i;
#if defined(__AVX512F__) /* where the compiler would widen half a vector at a time */
    return (unit)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at)), 16);
#else
    half_unit h;
    memcpy(&h, at, sizeof h);
    return (unit)(__builtin_convertvector(h, bits_unit) << 16);
#endif
}

TILE float value_of(const void *from, size_t i, bool bf16)
{
    return bf16 ? speci_from_bf16(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

/* The sums of four, each as add_lanes makes it. */
static inline void add_lanes4(float *s, const float (*acc)[LANES])
{
#if defined(__AVX512F__)
    const __m512 a = _mm512_loadu_ps(acc[0]), b = _mm512_loadu_ps(acc[1]), c = _mm512_loadu_ps(acc[2]), d = _mm512_loadu_ps(acc[3]);
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); /* eight lanes of each */
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e)), one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(s, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
#elif defined(__x86_64__)
    __m128 v[4];
    for (int k = 0; k < 4; k++)
        v[k] = _mm_add_ps(_mm_add_ps(_mm_loadu_ps(acc[k]), _mm_loadu_ps(acc[k] + 8)),
                          _mm_add_ps(_mm_loadu_ps(acc[k] + 4), _mm_loadu_ps(acc[k] + 12)));
    _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
    _mm_storeu_ps(s, _mm_add_ps(_mm_add_ps(v[0], v[2]), _mm_add_ps(v[1], v[3])));
#else
    for (int k = 0; k < 4; k++) s[k] = add_lanes(acc[k]);
#endif
}

/* s[k] = x y[k] for n_y of them, 4 or 1, in chains that do not wait for each other. n_y and bf16 are constants where this is called. */
TILE void dots(float *s, const float *x, const void *const *y, size_t n_y, size_t n, bool bf16)
{
    unit acc[4][UNITS];
    float sums[4][LANES];
    size_t i = 0;
    UNROLL
    for (size_t k = 0; k < n_y; k++) memset(acc[k], 0, sizeof acc[k]);
    for (; i + LANES <= n; i += LANES)
        UNROLL
        for (size_t j = 0; j < UNITS; j++)
            UNROLL
            for (size_t k = 0; k < n_y; k++) acc[k][j] += load_unit(x + i + j * UNIT) * load_values(y[k], i + j * UNIT, bf16);
    UNROLL
    for (size_t k = 0; k < n_y; k++) memcpy(sums[k], acc[k], sizeof sums[k]);
    for (size_t j = 0; i + j < n; j++)
        for (size_t k = 0; k < n_y; k++) sums[k][j] += x[i + j] * value_of(y[k], i + j, bf16);
    if (n_y == 4) add_lanes4(s, sums);
    else s[0] = add_lanes(sums[0]);
}

static inline float dot(const float *x, const float *y, size_t n)
{
    float s;
    const void *const one = y;
    dots(&s, x, &one, 1, n, false);
    return s;
}

/* y += f[0] x[0] + f[1] x[1] + ..., one after the other: `n_unit` units of y, a constant where this is called, stay in registers.
 * Returns total + f[0] + f[1] + ...: a chain beside these. */
TILE float add_units(float *y, const float *f, const void *const *x, size_t n_x, size_t at, size_t n_unit, bool bf16, float total)
{
    unit sum[4];
    UNROLL
    for (size_t i = 0; i < n_unit; i++) sum[i] = load_unit(y + at + i * UNIT);
    for (size_t j = 0; j < n_x; j++) {
        total += f[j];
        UNROLL
        for (size_t i = 0; i < n_unit; i++) sum[i] += f[j] * load_values(x[j], at + i * UNIT, bf16);
    }
    memcpy(y + at, sum, n_unit * sizeof *sum);
    return total;
}

/* The same for all of y. */
TILE float add_scaled(float *y, const float *f, const void *const *x, size_t n_x, size_t n, bool bf16, float total)
{
    size_t i = 0;
    float sum = total;
    if (n < 4 * UNIT)
        for (size_t j = 0; j < n_x; j++) sum += f[j];
    else sum = add_units(y, f, x, n_x, 0, 4, bf16, total), i = 4 * UNIT;
    for (; i + 4 * UNIT <= n; i += 4 * UNIT) (void)add_units(y, f, x, n_x, i, 4, bf16, 0.0f);
    for (; i + UNIT <= n; i += UNIT) (void)add_units(y, f, x, n_x, i, 1, bf16, 0.0f);
    for (; i < n; i++)
        for (size_t j = 0; j < n_x; j++) y[i] += f[j] * value_of(x[j], i, bf16);
    return sum;
}

/* s = cap tanh(s / cap). Returns the largest of these and m. */
static float cap_scores(float *s, int32_t n, float cap, float m)
{
    for (int32_t j = 0; j < n; j++) s[j] = cap * cpu_tanh(s[j] / cap);
    for (int32_t j = 0; j < n; j++) m = s[j] > m ? s[j] : m;
    return m;
}

/* The n values of each of n_row rows of bf16 come into the cache meanwhile. */
TILE void ask_rows(const void *const *rows, int32_t n_row, size_t n)
{
    enum { LINE = 64 };
    for (int32_t j = 0; j < n_row; j++)
        for (size_t i = 0; i < n * sizeof(uint16_t); i += LINE) __builtin_prefetch((const char *)rows[j] + i);
}

enum { KEYS_AHEAD = 16 };

/* m' = max(m, s);  o' = o e^(m - m') + sum_j e^(s_j - m') v_j;  l' likewise   (algorithms.md 6) */
TILE void attend_values(cpu_attend *st, const float *q, const void *const *k, const void *const *v, int32_t n, size_t d,
                        float scale, float cap, bool bf16)
{
    float s[SPEC_PAGE], m = st->m;
    int32_t j = 0;
    if (bf16) ask_rows(k, n < KEYS_AHEAD ? n : KEYS_AHEAD, d); /* one row reads the cache itself; others read copies that are near */
    for (; j + 4 <= n; j += 4) {
        if (bf16 && j + KEYS_AHEAD + 4 <= n) ask_rows(k + j + KEYS_AHEAD, 4, d);
        if (bf16) ask_rows(v + j, 4, d);
        dots(s + j, q, k + j, 4, d, bf16);
    }
    for (; j < n; j++) dots(s + j, q, k + j, 1, d, bf16);
    for (j = 0; j < n; j++) s[j] *= scale;
    const float most = max_of(s, (size_t)n);
    m = cap > 0.0f ? cap_scores(s, n, cap, m) : most > m ? most : m;
    float old = cpu_exp(st->m - m);
    if (st->l == 0.0f) old = 0.0f; /* nothing yet: m may be -inf */
    for (size_t i = 0; i < d; i++) st->o[i] *= old;
    for (j = 0; j < n; j++) s[j] = cpu_exp(s[j] - m);
    st->l = add_scaled(st->o, s, v, (size_t)n, d, bf16, st->l * old);
    st->m = m;
}

static void attend(cpu_attend *st, const float *q, const void *const *k, const void *const *v, spec_dtype dtype,
                   int32_t n, size_t d, float scale, float cap)
{
    if (dtype == SPEC_DTYPE_BF16) attend_values(st, q, k, v, n, d, scale, cap, true);
    else attend_values(st, q, k, v, n, d, scale, cap, false);
}
