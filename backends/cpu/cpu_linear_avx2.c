/* cpu_linear_avx2.c - few-row products with AVX2 and FMA (flags and order of summation: cpu.h).
 * A tile is 16 or 32 outputs by some rows; the weights of a step are read once for all its rows. */
#include "backends/cpu/cpu.h"

#if CPU_X86
#include <cpuid.h>

#include "backends/cpu/cpu_unpack_avx2.h"

#define TILE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* 8 weights as float32 */
TILE __m256 load8(const void *w, size_t i, spec_dtype type)
{
    if (type == SPEC_DTYPE_F32) return _mm256_loadu_ps((const float *)w + i);
    if (type == SPEC_DTYPE_Q8_0) {
        __m128i q = _mm_loadl_epi64((const void *)((const int8_t *)w + i));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)); /* without the scale */
    }
    __m128i h = _mm_loadu_si128((const void *)((const uint16_t *)w + i));
    if (type == SPEC_DTYPE_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* 8 sums to t, times their f16 scales if there are any */
TILE void put8(float *out, __m256 acc, bool add, const uint16_t *scale)
{
    if (scale) {
        __m256 s = _mm256_cvtph_ps(_mm_loadu_si128((const void *)scale));
        _mm256_storeu_ps(out, add ? _mm256_fmadd_ps(s, acc, _mm256_loadu_ps(out)) : _mm256_mul_ps(s, acc));
    } else {
        _mm256_storeu_ps(out, add ? _mm256_add_ps(_mm256_loadu_ps(out), acc) : acc);
    }
}

/* Bytes of 32 weights at one step along K. */
TILE size_t step_bytes(spec_dtype type)
{
    return CPU_PANEL * (type == SPEC_DTYPE_Q8_0 ? 1 : type == SPEC_DTYPE_F32 ? 4 : 2);
}

/* t[r][8 j ..] over n_vec vectors (more than four: of two panels) and n_row rows, both constants where this is called. With `next`
 * the weights are read for the first time, and asked for CPU_NEAR_BYTES before; from the end on these are next's. */
TILE void tile(float *t, const void *w, size_t panel_bytes, const uint16_t *scale, const float *x, size_t ldx, int n_vec,
               int n_row, int32_t n_k, bool add, spec_dtype type, const uint8_t *next)
{
    const int32_t turn = n_k - CPU_NEAR_BYTES / (int32_t)step_bytes(type);
    const uint8_t *soon = turn > 0 ? (const uint8_t *)w + CPU_NEAR_BYTES : next;
    __m256 acc[8][8]; /* 12 are used */
    const int n_panel = (n_vec + 3) / 4;
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int j = 0; j < n_vec; j++) acc[r][j] = _mm256_setzero_ps();
    for (int32_t k = 0; k < n_k; k++) {
        __m256 wk[8];
        if (next) {
            if (k == turn) soon = next;
            UNROLL
            for (int p = 0; p < n_panel; p++)
                for (size_t i = 0; i < step_bytes(type); i += 64)
                    _mm_prefetch((const char *)soon + (size_t)p * panel_bytes + i, _MM_HINT_T0);
            soon += step_bytes(type);
        }
        UNROLL
        for (int j = 0; j < n_vec; j++)
            wk[j] = load8((const uint8_t *)w + (size_t)(j / 4) * panel_bytes, (size_t)k * CPU_PANEL + (size_t)(j % 4) * 8, type);
        UNROLL
        for (int r = 0; r < n_row; r++) {
            __m256 xk = _mm256_broadcast_ss(x + (size_t)r * ldx + (size_t)k);
            UNROLL
            for (int j = 0; j < n_vec; j++) acc[r][j] = _mm256_fmadd_ps(xk, wk[j], acc[r][j]);
        }
    }
    UNROLL
    for (int r = 0; r < n_row; r++) {
        UNROLL
        for (int j = 0; j < n_vec; j++)
            put8(t + r * CPU_TASK_OUT + j * 8, acc[r][j], add, scale ? scale + j * 8 : NULL);
    }
}

/* One panel: up to two rows take its 32 outputs at once, more rows half of them. */
TILE void rows(float *t, const uint8_t *w, const float *x, size_t ldx, int n_row, int32_t n_k, bool add,
               spec_dtype type, const uint8_t *next)
{
    const bool q8 = type == SPEC_DTYPE_Q8_0;
    const uint16_t *scale = q8 ? ((const cpu_q8_panel *)(const void *)w)->scale : NULL;
    if (n_row <= 2) {
        tile(t, w, 0, scale, x, ldx, 4, n_row, n_k, add, type, next);
        return;
    }
    tile(t, w, 0, scale, x, ldx, 2, n_row, n_k, add, type, next);
    tile(t + 16, w + step_bytes(type) / 2, 0, scale ? scale + 16 : NULL, x, ldx, 2, n_row, n_k, add, type, NULL);
}

/* next NULL: nothing is asked for. */
TILE void product(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const float *x, size_t ldx,
                  int32_t n_row, int32_t n_k, bool add, spec_dtype type)
{
    if (n_row == 1 && n_panel == 2 && type != SPEC_DTYPE_Q8_0) { /* both streams of memory at once */
        tile(t, w, panel_bytes, NULL, x, ldx, 8, 1, n_k, add, type, next);
        return;
    }
    for (int32_t r = 0; r < n_row;) {
        int32_t n = n_row - r <= 6 ? n_row - r : n_row - r < 12 ? (n_row - r) / 2 : 6;
        for (int32_t p = 0; p < n_panel; p++) {
            float *out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            const uint8_t *panel = (const uint8_t *)w + (size_t)p * panel_bytes;
            const uint8_t *soon = r == 0 && next ? (const uint8_t *)next + (size_t)p * panel_bytes : NULL;
            const float *in = x + (size_t)r * ldx;
            switch (n) {
            case 1: rows(out, panel, in, ldx, 1, n_k, add, type, soon); break;
            case 2: rows(out, panel, in, ldx, 2, n_k, add, type, soon); break;
            case 3: rows(out, panel, in, ldx, 3, n_k, add, type, soon); break;
            case 4: rows(out, panel, in, ldx, 4, n_k, add, type, soon); break;
            case 5: rows(out, panel, in, ldx, 5, n_k, add, type, soon); break;
            default: rows(out, panel, in, ldx, 6, n_k, add, type, soon); break;
            }
        }
        r += n;
    }
}

static void product_f32(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                        size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx, n_row, n_k, add, SPEC_DTYPE_F32);
}

static void product_bf16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx, n_row, n_k, add, SPEC_DTYPE_BF16);
}

static void product_f16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                        size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    product(t, w, panel_bytes, n_panel, next, x, ldx, n_row, n_k, add, SPEC_DTYPE_F16);
}

TILE void prefetch_blocks(const cpu_q8_panel *block, size_t panel_bytes, int32_t n_panel)
{
    for (int32_t p = 0; p < n_panel; p++)
        for (size_t i = 0; i < sizeof *block; i += 64)
            _mm_prefetch((const char *)block + (size_t)p * panel_bytes + i, _MM_HINT_T0);
}

static void product_q8_0(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    const cpu_q8_panel *block = w;
    const int32_t n_block = n_k / SPEC_Q8_BLOCK;
    for (int32_t i = 0; i < n_block; i++, block++) {
        prefetch_blocks(cpu_q8_near(w, next, i, n_block), panel_bytes, n_panel);
        product(t, block, panel_bytes, n_panel, NULL, (const float *)x + i * SPEC_Q8_BLOCK, ldx, n_row, SPEC_Q8_BLOCK,
                add || i > 0, SPEC_DTYPE_Q8_0);
    }
}

/* --- blocks, of few rows: an input is multiplied in the register that it is unpacked to. By way of memory it took 1.5
 * times as long --- */

/* How a group is multiplied. values: by float32 values, and its sum goes on from the groups before; else cpu_blocks_fn. n_high and middle
 * are the form's. Constants where this is used. */
typedef struct group_kind {
    int n_high, middle;
    bool values;
} group_kind;

/* acc + what is between, of a group of a panel: as values it is in sum already */
TILE __m256 end_sum(const float *acc, __m256 sum, const lane_scales *s, int h, size_t o, const float *x_sum)
{
    const __m256 v = _mm256_fmadd_ps(_mm256_loadu_ps(s->scale[h][0] + o), sum, _mm256_loadu_ps(acc));
    return x_sum ? _mm256_fmadd_ps(_mm256_loadu_ps(s->add[0] + o), _mm256_broadcast_ss(x_sum), v) : v;
}

/* Words [w0, w1) of a group, those of half h, and sixteen lanes from o on: two vectors at a time, or the chain of one would be waited for.
 * x_sum: of the first row's group, the next row's is ld_sum behind it. The number of rows is a constant where this is called. */
TILE void tile_words(float *acc, const lane_scales *s, const uint32_t *group, const float *x, size_t ldx, const float *x_sum, size_t ld_sum,
                     size_t o, int h, int w0, int w1, int n_row, group_kind kind)
{
    __m256 sum[CPU_FEW][2];
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int j = 0; j < 2; j++) sum[r][j] = kind.values ? _mm256_loadu_ps(acc + r * CPU_PANEL + o + 8 * j) : _mm256_setzero_ps();
    for (int w = w0; w < w1; w++) {
        lane_words words[2];
        __m256 add[2];
        UNROLL
        for (int j = 0; j < 2; j++) words[j] = words_of(group + o + 8 * j, w, kind.n_high), add[j] = _mm256_loadu_ps(s->add[h] + o + 8 * j);
        UNROLL
        for (int k = 0; k < 8; k++)
            UNROLL
            for (int j = 0; j < 2; j++) {
                const __m256 v = kind.values ? value8(&words[j], k, s->scale[h][0] + o + 8 * j, add[j], SPEC_DTYPE_F32, kind.n_high)
                                             : centred8(&words[j], k, kind.n_high, kind.middle);
                UNROLL
                for (int r = 0; r < n_row; r++)
                    sum[r][j] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + (size_t)r * ldx + 8 * w + k), v, sum[r][j]);
            }
    }
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int j = 0; j < 2; j++) {
            float *const to = acc + r * CPU_PANEL + o + 8 * j;
            _mm256_storeu_ps(to, kind.values ? sum[r][j]
                                             : end_sum(to, sum[r][j], s, h, o + 8 * (size_t)j,
                                                       x_sum ? x_sum + (size_t)r * ld_sum : NULL));
        }
}

TILE void prefetch_group(const uint8_t *group, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)group + i + CPU_NEAR_BYTES, _MM_HINT_T0);
}

/* t [n_row][32] of a panel. x_sum NULL: there is no minimum. */
TILE void panel_blocks(float *t, const spec_block_form *form, const uint8_t *panel, const float *x, size_t ldx,
                       const float *x_sum, int32_t n_k, bool add, int n_row, group_kind kind)
{
    const size_t scales = cpu_block_scales(form), group_bytes = cpu_block_group(form), ld_sum = (size_t)(n_k / SPEC_SMALL_BLOCK);
    const int n_group = form->n_value / SPEC_SMALL_BLOCK, n_half = kind.n_high == 2 ? 2 : 1; /* two bits are Q6_K's */
    float acc[CPU_FEW * CPU_PANEL] = { 0 };
    lane_scales s;
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK) {
        const uint8_t *const group = panel + scales + (size_t)g * group_bytes;
        prefetch_group(group, group_bytes);
        lane_scales_of(&s, form, panel, g, kind.values ? 4 : 1);
        for (int h = 0; h < n_half; h++)
            for (size_t o = 0; o < CPU_PANEL; o += 16)
                tile_words(acc, &s, (const void *)group, x + k, ldx, x_sum ? x_sum + k / SPEC_SMALL_BLOCK : NULL,
                           ld_sum, o, h, h * 4 / n_half, (h + 1) * 4 / n_half, n_row, kind);
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
    for (int r = 0; r < n_row; r++)
        for (int o = 0; o < CPU_PANEL; o += 8)
            put8(t + r * CPU_TASK_OUT + o, _mm256_loadu_ps(acc + r * CPU_PANEL + o), add, NULL);
}

TILE void panel_rows(float *t, const spec_block_form *form, const uint8_t *panel, const float *x, size_t ldx,
                     const float *x_sum, int32_t n_row, int32_t n_k, bool add, group_kind kind)
{
    if (n_row == 1) panel_blocks(t, form, panel, x, ldx, x_sum, n_k, add, 1, kind);
    else panel_blocks(t, form, panel, x, ldx, x_sum, n_k, add, 2, kind);
}

static void values_few(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                       const float *x, size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    for (int32_t p = 0; p < n_panel; p++, t += CPU_PANEL, w += panel_bytes) {
        if (form->n_high == 2) panel_rows(t, form, w, x, ldx, NULL, n_row, n_k, add, (group_kind){ 2, 32, true });
        else if (form->n_high == 1) panel_rows(t, form, w, x, ldx, NULL, n_row, n_k, add, (group_kind){ 1, 0, true });
        else panel_rows(t, form, w, x, ldx, NULL, n_row, n_k, add, (group_kind){ 0, 0, true });
    }
}

/* --- blocks: of more rows numbers of a group lie in the cache --- */

/* A group's numbers: out [32 inputs][32 lanes] */
TILE void unpack_numbers(float *out, const uint32_t *group, group_kind kind)
{
    for (int w = 0; w < 4; w++)
        for (int o = 0; o < CPU_PANEL; o += 8) {
            const lane_words words = words_of(group + o, w, kind.n_high);
            UNROLL
            for (int k = 0; k < 8; k++) _mm256_storeu_ps(out + (8 * w + k) * CPU_PANEL + o, centred8(&words, k, kind.n_high, kind.middle));
        }
}

/* t [n_row][32 of 64] += sums [n_row][32 of 64] times scales */
TILE void add_sums(float *t, const float *sum, const lane_scales *s, int h, int32_t n_row, const float *x_sum, size_t ld_sum)
{
    for (int32_t r = 0; r < n_row; r++, t += CPU_TASK_OUT, sum += CPU_TASK_OUT)
        for (size_t o = 0; o < CPU_PANEL; o += 8)
            _mm256_storeu_ps(t + o, end_sum(t + o, _mm256_loadu_ps(sum + o), s, h, o, x_sum ? x_sum + (size_t)r * ld_sum : NULL));
}

TILE void many_rows(float *t, const spec_block_form *form, const uint8_t *panel, const cpu_blocks_x *x, int32_t n_row,
                    int32_t n_k, group_kind kind)
{
    const size_t scales = cpu_block_scales(form), group_bytes = cpu_block_group(form), ld_sum = (size_t)(n_k / SPEC_SMALL_BLOCK);
    const int n_group = form->n_value / SPEC_SMALL_BLOCK, n_half = kind.n_high == 2 ? 2 : 1, n = SPEC_SMALL_BLOCK / n_half;
    float tile_of[SPEC_SMALL_BLOCK * CPU_PANEL], sum[CPU_ROW_BLOCK * CPU_TASK_OUT];
    lane_scales s;
    for (int32_t r = 0; r < n_row; r++) memset(t + r * CPU_TASK_OUT, 0, CPU_PANEL * sizeof *t);
    for (int32_t k = 0, g = 0; k < n_k; k += SPEC_SMALL_BLOCK) {
        const uint8_t *const group = panel + scales + (size_t)g * group_bytes;
        prefetch_group(group, group_bytes);
        lane_scales_of(&s, form, panel, g, 1);
        unpack_numbers(tile_of, (const void *)group, kind);
        for (int h = 0; h < n_half; h++) {
            product(sum, tile_of + h * n * CPU_PANEL, 0, 1, NULL, (const float *)x->x + k + h * n, x->ldx, n_row, n, false, SPEC_DTYPE_F32);
            add_sums(t, sum, &s, h, n_row, x->sum ? x->sum + k / SPEC_SMALL_BLOCK : NULL, ld_sum);
        }
        if (++g == n_group) g = 0, panel += scales + (size_t)n_group * group_bytes;
    }
}

TILE void all_rows(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel, const cpu_blocks_x *x,
                   int32_t n_row, int32_t n_k, group_kind kind)
{
    for (int32_t p = 0; p < n_panel; p++, t += CPU_PANEL, w += panel_bytes) {
        if (n_row <= CPU_FEW) panel_rows(t, form, w, x->x, x->ldx, x->sum, n_row, n_k, false, kind);
        else many_rows(t, form, w, x, n_row, n_k, kind);
    }
}

static void product_blocks(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                           const cpu_blocks_x *x, int32_t n_row, int32_t n_k)
{
    if (form->n_high == 2) all_rows(t, form, w, panel_bytes, n_panel, x, n_row, n_k, (group_kind){ 2, 32, false });
    else if (form->n_high == 1 && form->has_m) all_rows(t, form, w, panel_bytes, n_panel, x, n_row, n_k, (group_kind){ 1, 0, false });
    else if (form->n_high == 1) all_rows(t, form, w, panel_bytes, n_panel, x, n_row, n_k, (group_kind){ 1, 16, false });
    else if (form->has_m) all_rows(t, form, w, panel_bytes, n_panel, x, n_row, n_k, (group_kind){ 0, 0, false });
    else all_rows(t, form, w, panel_bytes, n_panel, x, n_row, n_k, (group_kind){ 0, 8, false });
}

static bool supported(void)
{
    unsigned a, b, c, d; /* F16C by its bit: clang 14 has no name for it */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C);
}

const cpu_isa speci_cpu_isa_avx2 = {
    .name = "avx2",
    .supported = supported,
    .product = { [SPEC_DTYPE_F32] = product_f32, [SPEC_DTYPE_BF16] = product_bf16, [SPEC_DTYPE_F16] = product_f16,
                 [SPEC_DTYPE_Q8_0] = product_q8_0 },
    .blocks = product_blocks,
    .values_few = values_few,
    .blas_prefill = true,
    .loops = &speci_cpu_loops_avx2,
};
#else
typedef int speci_cpu_linear_avx2_is_empty;
#endif
