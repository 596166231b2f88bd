/* cpu_linear_avx512.h - the tile of the AVX-512 products: both panels of a task by up to 6 rows, 24 accumulators.
 * Included by cpu_linear_avx512.c and cpu_linear_avx512bf16.c, which name the step (TILE_STEP) along K. */
#include <immintrin.h>

#define TILE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* How a tile multiplies: float32 after conversion, or pairs of bf16. */
typedef enum cpu_step { STEP_F32, STEP_BF16, STEP_F16, STEP_PAIRS } cpu_step;

/* Bytes of 16 outputs at one step along K (two k for pairs). */
TILE size_t step_bytes(cpu_step step)
{
    return step == STEP_F32 || step == STEP_PAIRS ? 64 : 32;
}

TILE __m512 weights16(const uint8_t *w, cpu_step step)
{
    if (step == STEP_F32 || step == STEP_PAIRS) return _mm512_loadu_ps((const void *)w);
    __m256i h = _mm256_loadu_si256((const void *)w);
    if (step == STEP_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* acc + w * (x at this step, in every lane) */
TILE __m512 multiply(__m512 acc, __m512 w, const uint8_t *x, cpu_step step)
{
#if defined(__AVX512BF16__)
    if (step == STEP_PAIRS) {
        int32_t pair;
        memcpy(&pair, x, sizeof pair);
        return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
    }
#else
    (void)step;
#endif
    float f;
    memcpy(&f, x, sizeof f);
    return _mm512_fmadd_ps(w, _mm512_set1_ps(f), acc);
}

/* t[r][32 p + 16 j ..] over n_panel panels and n_row rows, both constants where this is called.
 * n: steps along K; x rows are ldx bytes apart, 4 bytes a step. */
TILE void tile(float *t, const uint8_t *w, size_t panel_bytes, const uint8_t *x, size_t ldx, int n_panel, int n_row,
               int32_t n, bool add, cpu_step step)
{
    __m512 acc[6][4];
    int n_vec = 2 * n_panel;
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int j = 0; j < n_vec; j++) acc[r][j] = _mm512_setzero_ps();
    for (int32_t k = 0; k < n; k++) {
        __m512 wk[4];
        const uint8_t *at = w + (size_t)k * 2 * step_bytes(step);
        UNROLL
        for (int j = 0; j < n_vec; j++)
            wk[j] = weights16(at + (size_t)(j / 2) * panel_bytes + (size_t)(j % 2) * step_bytes(step), step);
        UNROLL
        for (int r = 0; r < n_row; r++)
            UNROLL
            for (int j = 0; j < n_vec; j++)
                acc[r][j] = multiply(acc[r][j], wk[j], x + (size_t)r * ldx + (size_t)k * 4, step);
    }
    UNROLL
    for (int r = 0; r < n_row; r++) {
        UNROLL
        for (int j = 0; j < n_vec; j++) {
            float *out = t + r * CPU_TASK_OUT + j * 16;
            _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), acc[r][j]) : acc[r][j]);
        }
    }
}

TILE void rows(float *t, const uint8_t *w, size_t panel_bytes, const uint8_t *x, size_t ldx, int n_panel,
               int32_t n_row, int32_t n, bool add, cpu_step step)
{
    switch (n_row) {
    case 1: tile(t, w, panel_bytes, x, ldx, n_panel, 1, n, add, step); break;
    case 2: tile(t, w, panel_bytes, x, ldx, n_panel, 2, n, add, step); break;
    case 3: tile(t, w, panel_bytes, x, ldx, n_panel, 3, n, add, step); break;
    case 4: tile(t, w, panel_bytes, x, ldx, n_panel, 4, n, add, step); break;
    case 5: tile(t, w, panel_bytes, x, ldx, n_panel, 5, n, add, step); break;
    default: tile(t, w, panel_bytes, x, ldx, n_panel, 6, n, add, step); break;
    }
}

/* n_row rows in tiles of at most 6, of nearly equal height. */
TILE void product(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *x, size_t ldx_bytes,
                  int32_t n_row, int32_t n, bool add, cpu_step step)
{
    int32_t tiles = (n_row + 5) / 6;
    for (int32_t r = 0; tiles > 0; tiles--) {
        int32_t count = (n_row - r + tiles - 1) / tiles;
        float *out = t + r * CPU_TASK_OUT;
        const uint8_t *in = (const uint8_t *)x + (size_t)r * ldx_bytes;
        if (n_panel == 2) rows(out, w, panel_bytes, in, ldx_bytes, 2, count, n, add, step);
        else rows(out, w, panel_bytes, in, ldx_bytes, 1, count, n, add, step);
        r += count;
    }
}
