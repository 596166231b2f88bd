/* cpu_linear_avx512.h - the tile of the AVX-512 products: both panels of a task by up to 6 rows, 24 accumulators; other shapes where
 * rows are few. Included by cpu_linear_avx512.c and cpu_linear_avx512bf16.c, which name the step along K. */
#include <immintrin.h>

#define TILE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 12")

/* How a tile multiplies: float32 after conversion (Q8: the scales come last), or pairs of bf16. STEP_WIDE: weights in
 * pairs, x float32, the two of a pair one after the other. STEP_Q8_PAIRS: int8, which bf16 holds, in pairs. */
typedef enum cpu_step { STEP_F32, STEP_BF16, STEP_F16, STEP_Q8, STEP_Q8_PAIRS, STEP_PAIRS, STEP_WIDE } cpu_step;

TILE bool is_q8(cpu_step step) { return step == STEP_Q8 || step == STEP_Q8_PAIRS; }

/* Bytes of 16 outputs at one step along K (two k for pairs). */
TILE size_t step_bytes(cpu_step step)
{
    return step == STEP_Q8 ? 16 : step == STEP_BF16 || step == STEP_F16 || step == STEP_Q8_PAIRS ? 32 : 64;
}

/* From a panel's first 16 outputs to the others. */
TILE size_t half_panel(cpu_step step) { return is_q8(step) ? CPU_PANEL / 2 : step_bytes(step); }

/* Weight k % 2 = half of 16 pairs as float32: one operation, where bf16 side by side take two. */
TILE __m512 half_of_pairs(const uint8_t *w, int half)
{
    __m512i pairs = _mm512_loadu_si512((const void *)w);
    return _mm512_castsi512_ps(half == 0 ? _mm512_slli_epi32(pairs, 16)
                                         : _mm512_and_si512(pairs, _mm512_set1_epi32((int32_t)0xffff0000)));
}

TILE __m512 from_int8(const uint8_t *w) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)w))); }

TILE __m512 weights16(const uint8_t *w, cpu_step step)
{
    if (step == STEP_F32 || step == STEP_PAIRS) return _mm512_loadu_ps((const void *)w);
    if (step == STEP_Q8) return from_int8(w);
    if (step == STEP_Q8_PAIRS) { /* of k + 1 the upper halves, of k they become the lower ones */
        const __m512i lower = _mm512_srli_epi32(_mm512_castps_si512(from_int8(w)), 16);
        return _mm512_castsi512_ps(_mm512_mask_mov_epi16(lower, 0xaaaaaaaa, _mm512_castps_si512(from_int8(w + CPU_PANEL))));
    }
    __m256i h = _mm256_loadu_si256((const void *)w);
    if (step == STEP_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* acc + w * (x at this step, in every lane) */
TILE __m512 multiply(__m512 acc, __m512 w, const uint8_t *x, cpu_step step)
{
#if defined(__AVX512BF16__)
    if (step == STEP_PAIRS || step == STEP_Q8_PAIRS) {
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

/* 16 sums to t; with scales (f16, or NULL) times these */
TILE void put16(float *out, __m512 acc, bool add, const uint16_t *scale)
{
    if (scale) {
        __m512 s = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scale));
        _mm512_storeu_ps(out, add ? _mm512_fmadd_ps(s, acc, _mm512_loadu_ps(out)) : _mm512_mul_ps(s, acc));
    } else {
        _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), acc) : acc);
    }
}

/* Weights are asked for CPU_NEAR_BYTES ahead in each panel. Where several tiles use those of STEP_WIDE, which Intel's cores multiply as
 * fast as memory gives them, it is the next block: it comes into the second cache while this one is multiplied, and part `part`
 * of `n_part` tiles asks for its share, else later tiles would compute while the memory rests. Nothing is asked for with
 * STEP_PAIRS, AMD's, which was slower for it. */
typedef struct ahead {
    const uint8_t *next; /* the next block, of the first panel */
    int32_t part, n_part;
} ahead;
enum { LINE = 64 };

TILE bool asks_near(cpu_step step, ahead next)
{
    return step != STEP_PAIRS && !is_q8(step) && (step == STEP_WIDE ? next.n_part == 1 : next.part == 0);
}

/* `bytes` of each panel, to the first cache or to the second */
TILE void prefetch(const uint8_t *from, size_t panel_bytes, int n_panel, size_t bytes, bool first)
{
    UNROLL
    for (int p = 0; p < n_panel; p++)
        for (size_t i = 0; i < bytes; i += LINE) {
            const char *const at = (const char *)from + (size_t)p * panel_bytes + i;
            if (first) _mm_prefetch(at, _MM_HINT_T0);
            else _mm_prefetch(at, _MM_HINT_T1);
        }
}

/* t[r][32 p + 16 j ..] over n_panel panels and n_row rows, both constants where this is called; of two tasks' panels, t of the
 * second one is behind that of the first.
 * n: steps along K; x rows are ldx bytes apart, 4 bytes a step (8 a step for STEP_WIDE). */
TILE void tile(float *t, const uint8_t *w, size_t panel_bytes, const uint8_t *x, size_t ldx, int n_panel, int n_row,
               int32_t n, bool add, cpu_step step, ahead next)
{
    __m512 acc[12][8]; /* 24 are used, or 32 */
    int n_vec = 2 * n_panel;
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int j = 0; j < n_vec; j++) acc[r][j] = _mm512_setzero_ps();
    const int halves = step == STEP_WIDE ? 2 : 1;
    const bool near = asks_near(step, next);
    const size_t bytes = 2 * step_bytes(step);
    const int32_t turn = n - (int32_t)(CPU_NEAR_BYTES / bytes); /* from there on what is near is the next block's */
    const uint8_t *soon = near && turn > 0 ? w + CPU_NEAR_BYTES : next.next + (size_t)(next.part * (n / next.n_part)) * bytes;
    int32_t wait = 0;
    for (int32_t k = 0; k < n; k++) {
        const uint8_t *at = w + (size_t)k * bytes;
        if (near) {
            if (k == turn) soon = next.next;
            prefetch(soon, panel_bytes, n_panel, bytes, true);
            soon += bytes;
        } else if (step == STEP_WIDE && --wait <= 0) {
            prefetch(soon, panel_bytes, n_panel, bytes, false);
            soon += bytes;
            wait = next.n_part;
        }
        UNROLL
        for (int half = 0; half < halves; half++) {
            __m512 wk[8];
            UNROLL
            for (int j = 0; j < n_vec; j++) {
                const uint8_t *from = at + (size_t)(j / 2) * panel_bytes + (size_t)(j % 2) * half_panel(step);
                wk[j] = step == STEP_WIDE ? half_of_pairs(from, half) : weights16(from, step);
            }
            UNROLL
            for (int r = 0; r < n_row; r++)
                UNROLL
                for (int j = 0; j < n_vec; j++)
                    acc[r][j] = multiply(acc[r][j], wk[j], x + (size_t)r * ldx + (size_t)(k * halves + half) * 4, step);
        }
    }
    UNROLL
    for (int r = 0; r < n_row; r++) {
        UNROLL
        for (int j = 0; j < n_vec; j++) {
            const cpu_q8_panel *q8 = (const void *)(w + (size_t)(j / 2) * panel_bytes);
            put16(t + (j / 4 * n_row + r) * CPU_TASK_OUT + j % 4 * 16, acc[r][j], add, is_q8(step) ? q8->scale + j % 2 * 16 : NULL);
        }
    }
}

/* Rows of a tile of both panels. Those of steps with much to convert are of up to eight, if there are no more (which leaves no
 * register for a weight, and yet is faster than four and four), and else of one panel, where twelve rows share a weight once it
 * is converted. */
enum { ROWS = 6, ROWS_BOTH = 8, ROWS_ONE = 12 };

TILE bool is_tall(cpu_step step) { return step == STEP_WIDE || step == STEP_Q8_PAIRS; }

TILE void rows(float *t, const uint8_t *w, size_t panel_bytes, const uint8_t *x, size_t ldx, int n_panel,
               int32_t n_row, int32_t n, bool add, cpu_step step, ahead next)
{
    const bool tall = is_tall(step), one = tall && n_panel == 1;
    switch (n_row) {
    case 1: tile(t, w, panel_bytes, x, ldx, n_panel, 1, n, add, step, next); break;
    case 2: tile(t, w, panel_bytes, x, ldx, n_panel, 2, n, add, step, next); break;
    case 3: tile(t, w, panel_bytes, x, ldx, n_panel, 3, n, add, step, next); break;
    case 4: tile(t, w, panel_bytes, x, ldx, n_panel, 4, n, add, step, next); break;
    case 5: tile(t, w, panel_bytes, x, ldx, n_panel, 5, n, add, step, next); break;
    case 6: tile(t, w, panel_bytes, x, ldx, n_panel, 6, n, add, step, next); break;
    case 7: if (tall) tile(t, w, panel_bytes, x, ldx, n_panel, 7, n, add, step, next); break;
    case 8: if (tall) tile(t, w, panel_bytes, x, ldx, n_panel, 8, n, add, step, next); break;
    case 9: if (one) tile(t, w, panel_bytes, x, ldx, n_panel, 9, n, add, step, next); break;
    case 10: if (one) tile(t, w, panel_bytes, x, ldx, n_panel, 10, n, add, step, next); break;
    case 11: if (one) tile(t, w, panel_bytes, x, ldx, n_panel, 11, n, add, step, next); break;
    default: if (one) tile(t, w, panel_bytes, x, ldx, n_panel, 12, n, add, step, next); break;
    }
}

/* n_row rows in tiles of nearly equal height, of both panels or of one after the other. */
TILE void product(float *t, const uint8_t *w, size_t panel_bytes, int32_t n_panel, const uint8_t *after, const uint8_t *x,
                  size_t ldx_bytes, int32_t n_row, int32_t n, bool add, cpu_step step)
{
    const bool tall = is_tall(step), both = n_panel == 2 && !(tall && n_row > ROWS_BOTH);
    const int32_t most = !tall ? ROWS : n_row > ROWS_BOTH ? ROWS_ONE : ROWS_BOTH, n_tile = (n_row + most - 1) / most;
    for (int32_t p = 0; p < n_panel; p += both ? 2 : 1) {
        const uint8_t *panel = w + (size_t)p * panel_bytes;
        ahead next = { .next = after + (size_t)p * panel_bytes, .n_part = n_tile };
        for (int32_t r = 0; next.part < n_tile; next.part++) {
            const int32_t left = n_tile - next.part, count = (n_row - r + left - 1) / left;
            float *out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            const uint8_t *in = x + (size_t)r * ldx_bytes;
            if (both) rows(out, panel, panel_bytes, in, ldx_bytes, 2, count, n, add, step, next);
            else rows(out, panel, panel_bytes, in, ldx_bytes, 1, count, n, add, step, next);
            r += count;
        }
    }
}

/* Of up to CPU_FEW rows, and the four panels of two tasks. */
TILE void product_two(float *t, const uint8_t *w, size_t panel_bytes, const uint8_t *after, const uint8_t *x, size_t ldx_bytes,
                      int32_t n_row, int32_t n, bool add, cpu_step step)
{
    const ahead next = { .next = after, .n_part = 1 };
    if (n_row == 1) tile(t, w, panel_bytes, x, ldx_bytes, 4, 1, n, add, step, next);
    else tile(t, w, panel_bytes, x, ldx_bytes, 4, 2, n, add, step, next);
}

/* Q8_0: block after block of 32 inputs, each asking for one ahead, but AMD's of one tile, which are slower for it. x is float32,
 * for pairs bf16; ldx in elements. */
TILE void product_blocks(float *t, const cpu_q8_panel *w, size_t panel_bytes, int32_t n_panel, const cpu_q8_panel *after,
                         const uint8_t *x, size_t ldx, int32_t n_row, int32_t n_k, bool add, cpu_step step)
{
    const bool pairs = step == STEP_Q8_PAIRS;
    const size_t size = pairs ? sizeof(uint16_t) : sizeof(float);
    const int32_t n_block = n_k / SPEC_Q8_BLOCK, n = pairs ? SPEC_Q8_BLOCK / 2 : SPEC_Q8_BLOCK;
    for (int32_t i = 0; i < n_block; i++) {
        const uint8_t *block = (const uint8_t *)(w + i), *soon = (const uint8_t *)cpu_q8_near(w, after, i, n_block);
        if (!pairs || n_row > ROWS_BOTH) prefetch(soon, panel_bytes, n_panel, sizeof *w, true);
        product(t, block, panel_bytes, n_panel, soon, x + (size_t)(i * SPEC_Q8_BLOCK) * size, ldx * size, n_row, n, add || i > 0,
                step);
    }
}
