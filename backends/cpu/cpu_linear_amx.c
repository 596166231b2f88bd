/* cpu_linear_amx.c - products by matrix tiles (AMX) of bf16 (flags: cpu.h), of one row as of sixteen.
 *
 * TDPBF16PS adds to a sum those of 32 inputs:  c + (e + o),  e one chain of fused multiply-adds over the even k, o one over the odd k; it
 * rounds to nearest and takes subnormal values for zero. K goes on in this sum to its end: an order of summation of its own, the same for
 * every number of rows, and whichever of the two is on the left.
 *
 * Two ways, which give the same bits:
 *   pairs    x on the left [row][32], weights on the right as they lie in pairs [16][output][2]; of blocks, unpacked to pairs
 *   tables   four-bit blocks on the left [output][32], x on the right in pairs [16][row][2]. Sixteen values of a block are made once, and a
 *            number is the place of one of them: of 32 numbers 5 operations, where 10 make each of them by itself.
 * One row of Q8_0 is multiplied without tiles, by the same sums in their order: a third faster. */
#define _GNU_SOURCE /* syscall */
#include "backends/cpu/cpu.h"

#if CPU_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/cpu/cpu_linear_avx512.h"
#include "backends/cpu/cpu_unpack_avx512.h"

enum { DIM = 16 /* rows of a tile, and pairs or sums in one of them */, STEP = 32 /* inputs */, PASS = 2 * DIM /* rows at a time */ };

/* --- tiles: 0 to 3 are sums, 4 and 5 on the left, 6 and 7 on the right --- */

typedef struct tile_config {
    uint8_t palette, start, none[14];
    uint16_t bytes[16]; /* of a tile's row */
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "what LDTILECFG reads");

/* What is written before is in memory, and what is written after is not yet: the intrinsics of gcc do not say that they read. */
static inline void memory_fence(void) { __asm__ volatile("" ::: "memory"); }

static void configure(const tile_config *c)
{
    memory_fence();
    _tile_loadconfig(c);
}

TILE void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* --- pairs --- */

/* Of a pass of n_row rows: sums 0 and 1 have the first sixteen, 2 and 3 the others. */
static void configure_pairs(int32_t n_row)
{
    tile_config c = { .palette = 1 };
    const uint8_t first = (uint8_t)cpu_min(n_row, DIM), second = (uint8_t)cpu_min(cpu_max(n_row - DIM, 1), DIM);
    for (int i = 0; i < 8; i++) c.bytes[i] = 4 * DIM, c.rows[i] = DIM;
    c.rows[0] = c.rows[1] = c.rows[4] = first;
    c.rows[2] = c.rows[3] = c.rows[5] = second;
    configure(&c);
}

/* One step; x rows and rows of pairs are so many bytes apart. */
TILE void step_pairs(const uint8_t *w, const uint8_t *x, size_t ldx, bool second)
{
    _tile_loadd(4, x, ldx);
    _tile_loadd(6, w, 4 * CPU_PANEL);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 4 * DIM, 4 * CPU_PANEL);
    _tile_dpbf16ps(1, 4, 7);
    if (!second) return;
    _tile_loadd(5, x + DIM * ldx, ldx);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* The last n < 16 pairs of K: in tiles that are filled with zeros. */
static void step_rest(const uint8_t *w, const uint8_t *x, size_t ldx, int32_t n_row, int32_t n)
{
    uint32_t left[PASS][DIM] = { { 0 } }, right[DIM][CPU_PANEL] = { { 0 } };
    for (int32_t r = 0; r < n_row; r++) memcpy(left[r], x + (size_t)r * ldx, (size_t)n * 4);
    memcpy(right, w, (size_t)n * sizeof right[0]);
    memory_fence();
    step_pairs((const uint8_t *)right, (const uint8_t *)left, sizeof left[0], n_row > DIM);
    memory_fence();
}

/* t [n_row][32 of 64] = (add ? t : 0) + those of n pairs of inputs; n_row <= PASS, for which tiles are configured. */
TILE void panel_pairs(float *t, const uint8_t *w, const uint8_t *x, size_t ldx, int32_t n_row, int32_t n, bool add, bool second)
{
    enum { LD = CPU_TASK_OUT * sizeof(float) };
    memory_fence();
    zero_sums();
    if (add) {
        _tile_loadd(0, t, LD);
        _tile_loadd(1, t + DIM, LD);
    }
    if (add && second) {
        _tile_loadd(2, t + DIM * CPU_TASK_OUT, LD);
        _tile_loadd(3, t + DIM * CPU_TASK_OUT + DIM, LD);
    }
    for (; n >= DIM; n -= DIM, w += DIM * 4 * CPU_PANEL, x += 4 * DIM) {
        prefetch(w + CPU_NEAR_BYTES, 0, 1, DIM * 4 * CPU_PANEL, true);
        step_pairs(w, x, ldx, second);
    }
    if (n > 0) step_rest(w, x, ldx, n_row, n);
    _tile_stored(0, t, LD);
    _tile_stored(1, t + DIM, LD);
    if (second) {
        _tile_stored(2, t + DIM * CPU_TASK_OUT, LD);
        _tile_stored(3, t + DIM * CPU_TASK_OUT + DIM, LD);
    }
    memory_fence();
}

/* --- Q8_0: int8, which bf16 holds, in pairs; each block's sum begins at zero and is times the scale --- */

typedef struct q8_pairs {
    uint32_t pair[DIM][CPU_PANEL];
} q8_pairs;

TILE void unpack_q8(q8_pairs *to, const cpu_q8_panel *block)
{
    UNROLL
    for (int i = 0; i < DIM; i++)
        for (int h = 0; h < CPU_PANEL; h += DIM)
            _mm512_store_ps((void *)(to->pair[i] + h), weights16((const uint8_t *)block->q[2 * i] + h, STEP_Q8_PAIRS));
    prefetch((const uint8_t *)(block + CPU_NEAR_BLOCKS), 0, 1, sizeof *block, true);
    memory_fence();
}

/* t [n_row][32 of 64] = (add ? t : 0) + scale (x w) of one block; the next one is unpacked meanwhile, unless it is NULL. */
TILE void step_q8(float *t, const q8_pairs *now, const uint16_t *scale, const uint8_t *x, size_t ldx, int32_t n_row, bool add, bool second,
                  q8_pairs *next, const cpu_q8_panel *next_block)
{
    enum { LD = CPU_PANEL * sizeof(float) };
    _Alignas(64) float sum[PASS][CPU_PANEL];
    zero_sums();
    step_pairs((const uint8_t *)now, x, ldx, second);
    if (next) unpack_q8(next, next_block);
    _tile_stored(0, sum[0], LD);
    _tile_stored(1, sum[0] + DIM, LD);
    if (second) {
        _tile_stored(2, sum[DIM], LD);
        _tile_stored(3, sum[DIM] + DIM, LD);
    }
    memory_fence();
    for (int32_t r = 0; r < n_row; r++)
        for (int h = 0; h < CPU_PANEL; h += DIM)
            put16(t + r * CPU_TASK_OUT + h, _mm512_load_ps(sum[r] + h), add, scale + h);
}

TILE void panel_q8(float *t, const cpu_q8_panel *w, const uint8_t *x, size_t ldx, int32_t n_row, int32_t n_block, bool add, bool second)
{
    _Alignas(64) q8_pairs pairs[2];
    unpack_q8(&pairs[0], w);
    for (int32_t i = 0; i < n_block; i++, x += STEP * 2) {
        q8_pairs *const next = i + 1 < n_block ? &pairs[(i + 1) % 2] : NULL;
        step_q8(t, &pairs[i % 2], w[i].scale, x, ldx, n_row, add || i > 0, second, next, w + i + 1);
    }
}

/* One row, of which tiles would be mostly empty: the same sums by fused multiply-adds, a chain over the even inputs of each block and one
 * over the odd. Its modes are those of tiles. sum [n_block][64] */
TILE void sums_q8(float *sum, const cpu_q8_panel *w, size_t panel_bytes, int n_panel, const cpu_q8_panel *next, const float *x, int32_t n_block)
{
    for (int32_t i = 0; i < n_block; i++, x += STEP, sum += CPU_TASK_OUT) {
        __m512 even[4], odd[4];
        for (int h = 0; h < 2 * n_panel; h++) even[h] = odd[h] = _mm512_setzero_ps();
        prefetch((const uint8_t *)cpu_q8_near(w, next, i, n_block), panel_bytes, n_panel, sizeof *w, true);
        UNROLL
        for (int k = 0; k < STEP; k += 2)
            UNROLL
            for (int h = 0; h < 2 * n_panel; h++) {
                const uint8_t *const q = (const uint8_t *)(w + i) + (size_t)(h / 2) * panel_bytes + k * CPU_PANEL + h % 2 * DIM;
                even[h] = _mm512_fmadd_ps(from_int8(q), _mm512_set1_ps(x[k]), even[h]);
                odd[h] = _mm512_fmadd_ps(from_int8(q + CPU_PANEL), _mm512_set1_ps(x[k + 1]), odd[h]);
            }
        for (int h = 0; h < 2 * n_panel; h++) /* + 0: a tile's sum begins so, and is never -0 */
            _mm512_storeu_ps(sum + h * DIM, _mm512_add_ps(_mm512_setzero_ps(), _mm512_add_ps(even[h], odd[h])));
    }
}

/* Not inlined, else a part could be computed outside of the modes that it is called in. */
static __attribute__((noinline)) void all_sums_q8(float *sum, const cpu_q8_panel *w, size_t panel_bytes, int32_t n_panel,
                                                  const cpu_q8_panel *next, const float *x, int32_t n_block)
{
    if (n_panel == 2) sums_q8(sum, w, panel_bytes, 2, next, x, n_block);
    else sums_q8(sum, w, panel_bytes, 1, next, x, n_block);
}

static void product_q8_one(float *t, const cpu_q8_panel *w, size_t panel_bytes, int32_t n_panel, const cpu_q8_panel *next, const uint16_t *x,
                           int32_t n_k, bool add)
{
    enum { SUBNORMAL_IS_ZERO = 0x8040 /* of operands and of results */ };
    float in[CPU_K_BLOCK], sum[CPU_K_BLOCK / STEP][CPU_TASK_OUT];
    speci_cpu_loops_avx512.load(in, x, SPEC_DTYPE_BF16, (size_t)n_k);
    const unsigned modes = _mm_getcsr();
    _mm_setcsr(modes | SUBNORMAL_IS_ZERO);
    all_sums_q8(sum[0], w, panel_bytes, n_panel, next, in, n_k / STEP);
    _mm_setcsr(modes);
    for (int32_t i = 0; i < n_k / STEP; i++)
        for (int32_t h = 0; h < 2 * n_panel; h++) {
            const cpu_q8_panel *const block = (const void *)((const uint8_t *)(w + i) + (size_t)(h / 2) * panel_bytes);
            put16(t + h * DIM, _mm512_loadu_ps(sum[i] + h * DIM), add || i > 0, block->scale + h % 2 * DIM);
        }
}

/* --- products of weights in pairs, and of Q8_0 --- */

TILE void panel_of(float *t, const uint8_t *w, const uint8_t *x, size_t ldx, int32_t n_row, int32_t n_k, bool add, bool second, bool q8)
{
    if (q8) panel_q8(t, (const void *)w, x, ldx, n_row, n_k / SPEC_Q8_BLOCK, add, second);
    else panel_pairs(t, w, x, ldx, n_row, n_k / 2, add, second);
}

TILE void product_tiles(float *t, const uint8_t *w, size_t panel_bytes, int32_t n_panel, const uint8_t *x, size_t ldx, int32_t n_row,
                        int32_t n_k, bool add, bool q8)
{
    for (int32_t r = 0; r < n_row; r += PASS) {
        const int32_t n = cpu_min(PASS, n_row - r);
        const uint8_t *const in = x + (size_t)r * ldx;
        if (n_row > PASS) configure_pairs(n);
        for (int32_t p = 0; p < n_panel; p++) {
            float *const out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            const uint8_t *const panel = w + (size_t)p * panel_bytes;
            if (n > DIM) panel_of(out, panel, in, ldx, n, n_k, add, true, q8);
            else panel_of(out, panel, in, ldx, n, n_k, add, false, q8);
        }
    }
    if (n_row > PASS) configure_pairs(PASS); /* as enter did: what follows may come in pieces of X_ROWS */
}

static void product_pairs(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                          size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)next;
    product_tiles(t, w, panel_bytes, n_panel, x, ldx * 2, n_row, n_k, add, false);
}

static void product_q8(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x, size_t ldx,
                       int32_t n_row, int32_t n_k, bool add)
{
    if (n_row == 1) product_q8_one(t, w, panel_bytes, n_panel, next, x, n_k, add);
    else product_tiles(t, w, panel_bytes, n_panel, x, ldx * 2, n_row, n_k, add, true);
}

/* --- tables --- */

/* Of one row the right side is x as it lies, a pair a row. */
static void configure_tables(bool one)
{
    tile_config c = { .palette = 1 };
    for (int i = 0; i < 8; i++) c.bytes[i] = one && i != 4 && i != 5 ? 4 : 4 * DIM, c.rows[i] = DIM;
    configure(&c);
}

/* Dwords [n_row][16] -> out [n][n_row], both at most 16; rows of `in` are so many bytes apart, those of `out` dwords. */
TILE void transpose(uint32_t *out, size_t ldo, const void *in, size_t in_bytes, int n_row, int n)
{
    __m512i a[DIM], b[DIM];
    UNROLL
    for (int i = 0; i < DIM; i++) a[i] = i < n_row ? _mm512_loadu_si512((const uint8_t *)in + (size_t)i * in_bytes) : _mm512_setzero_si512();
    for (int i = 0; i < DIM; i += 2) b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    for (int i = 0; i < DIM; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]), a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]), a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* columns i, i + 4, ... of rows 0 .. 3 | 4 .. 7, and of 8 .. 11 | 12 .. 15 */
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88), b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88), a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88), a[i + 12] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
    }
    const __mmask16 some = (__mmask16)((1u << n_row) - 1);
    for (int i = 0; i < n; i++) _mm512_mask_storeu_epi32((void *)(out + (size_t)i * ldo), some, a[i]);
}

/* The sixteen values of each of two outputs' blocks, those of `a` first. */
TILE __m512i values_of(const float *scale, const float *add, int a, int b, int middle)
{
    const __m512 q = sixteen_from(-middle);
    const __m512 first = _mm512_fmadd_ps(q, _mm512_set1_ps(scale[a]), _mm512_set1_ps(add[a]));
    const __m512 second = _mm512_fmadd_ps(q, _mm512_set1_ps(scale[b]), _mm512_set1_ps(add[b]));
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* A group of a panel: its values [half][output][32 inputs] and what they are made of. */
typedef struct table_rows {
    uint16_t value[2][DIM][STEP];
    float scale[2 * DIM], add[2 * DIM];
} table_rows;

/* Where a group lies in a panel, and scales of its block from that one's first group on. */
typedef struct table_place {
    const uint8_t *panel;
    int g;
    half_scales s[2];
} table_place;

TILE void next_group(table_place *at, const spec_block_form *form)
{
    const int n_group = form->n_value / SPEC_SMALL_BLOCK;
    if (++at->g < n_group) return;
    at->g = 0;
    at->panel += cpu_block_scales(form) + (size_t)n_group * cpu_block_group(form);
}

/* The scales of a group. They are read back one by one, to be repeated in a register, which is free where they are in the cache by then. */
TILE void unpack_scales(table_rows *to, table_place *at, const spec_block_form *form)
{
    _mm_prefetch((const char *)at->panel + (size_t)(at->g * 64) + CPU_NEAR_BYTES, _MM_HINT_T0);
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (at->g == 0) block_scales(&at->s[h], at->panel, h, form->has_m);
        group_scales_of(&at->s[h], at->panel, h, at->g, form->n_f, form->has_m);
        _mm512_store_ps(to->scale + h * DIM, at->s[h].scale[0]);
        _mm512_store_ps(to->add + h * DIM, at->s[h].add);
    }
    memory_fence(); /* else gcc takes them from the registers, by permutations that all wait for one port */
}

/* Eight outputs of a group, in words of four each (cpu_table_word): bits 0 to 3 of a place choose the value, bit 4 which output's. */
TILE void unpack_quarter(table_rows *to, const table_place *at, int quarter, const spec_block_form *form)
{
    const __m512i low = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
    const uint8_t *words = at->panel + cpu_block_scales(form) + (size_t)at->g * cpu_block_group(form) + quarter * 128;
    UNROLL
    for (int o = 8 * quarter; o < 8 * quarter + 8; o += 4, words += 64) {
        uint16_t (*const out)[STEP] = to->value[0] + o;
        const __m512i w = _mm512_loadu_si512((const void *)words);
        const __m512i of01 = values_of(to->scale + o, to->add + o, 0, 1, form->middle), of32 = values_of(to->scale + o, to->add + o, 3, 2, form->middle);
        _mm_prefetch((const char *)words + CPU_NEAR_BYTES, _MM_HINT_T0);
        _mm512_store_si512(out[0], _mm512_permutexvar_epi16(_mm512_and_si512(w, low), of01));
        _mm512_store_si512(out[1], _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w, 4), low, second, 0xea), of01));
        _mm512_store_si512(out[2], _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w, 8), low, second, 0xea), of32));
        _mm512_store_si512(out[3], _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 12), of32));
    }
    memory_fence();
}

/* Multiplies group `now`, x [16 pairs][ldx], while the next one is unpacked, if there is one: by turns, else one waits for the other. */
TILE void step_tables(const table_rows *now, const uint8_t *x, size_t ldx, bool second, table_rows *next, const table_place *at,
                      const spec_block_form *form)
{
    if (next) unpack_quarter(next, at, 0, form);
    _tile_loadd(6, x, ldx * 4);
    _tile_loadd(4, now->value[0], sizeof now->value[0][0]);
    if (second) _tile_loadd(7, x + 4 * DIM, ldx * 4);
    if (next) unpack_quarter(next, at, 1, form);
    _tile_dpbf16ps(0, 4, 6);
    if (second) _tile_dpbf16ps(2, 4, 7);
    if (next) unpack_quarter(next, at, 2, form);
    _tile_loadd(5, now->value[1], sizeof now->value[1][0]);
    if (next) unpack_quarter(next, at, 3, form);
    _tile_dpbf16ps(1, 5, 6);
    if (second) _tile_dpbf16ps(3, 5, 7);
    memory_fence();
}

/* Sums [32 outputs][16 rows], twice, to t [n_row][32 of 64]. */
static void put_tables(float *t, int32_t n_row)
{
    float sum[4][DIM][DIM];
    _tile_stored(0, sum[0], sizeof sum[0][0]);
    _tile_stored(1, sum[1], sizeof sum[0][0]);
    if (n_row > DIM) {
        _tile_stored(2, sum[2], sizeof sum[0][0]);
        _tile_stored(3, sum[3], sizeof sum[0][0]);
    }
    memory_fence();
    for (int i = 0; i < 4 && i / 2 * DIM < n_row; i++)
        transpose((uint32_t *)(void *)(t + i / 2 * DIM * CPU_TASK_OUT + i % 2 * DIM), CPU_TASK_OUT, sum[i], sizeof sum[0][0], DIM,
                  cpu_min(DIM, n_row - i / 2 * DIM));
}

/* t [n_row][32 of 64] of a panel; numbers of the form are constants where this is called. */
TILE void table_pass(float *t, const uint8_t *panel, int32_t n_in, const uint8_t *x, size_t ldx, int32_t n_row, const spec_block_form *form,
                     bool second)
{
    _Alignas(64) table_rows rows[2];
    table_place at = { panel, 0, { { .d = _mm512_setzero_ps() } } }, scales = at;
    const int32_t n = n_in / STEP;
    zero_sums();
    unpack_scales(&rows[0], &scales, form);
    for (int quarter = 0; quarter < 4; quarter++) unpack_quarter(&rows[0], &at, quarter, form);
    if (n > 1) next_group(&scales, form), unpack_scales(&rows[1], &scales, form);
    for (int32_t i = 0; i < n - 1; i++, x += DIM * 4 * ldx) {
        next_group(&at, form);
        if (i + 2 < n) next_group(&scales, form), unpack_scales(&rows[i % 2], &scales, form);
        step_tables(&rows[i % 2], x, ldx, second, &rows[(i + 1) % 2], &at, form);
    }
    step_tables(&rows[(n - 1) % 2], x, ldx, second, NULL, &at, form);
    if (ldx == 1) {
        _tile_stored(0, t, 4);
        _tile_stored(1, t + DIM, 4);
    } else {
        put_tables(t, n_row);
    }
    memory_fence();
}

static void table_form(float *t, const spec_block_form *form, const uint8_t *panel, int32_t n_in, const uint8_t *x, size_t ldx,
                       int32_t n_row)
{
    static const spec_block_form q4_0 = SPEC_FORM_Q4_0, q4_1 = SPEC_FORM_Q4_1, q4_k = SPEC_FORM_Q4_K;
    const bool second = n_row > DIM;
    if (form->n_f == 8) {
        if (second) table_pass(t, panel, n_in, x, ldx, n_row, &q4_k, true);
        else table_pass(t, panel, n_in, x, ldx, n_row, &q4_k, false);
    } else if (form->has_m) {
        if (second) table_pass(t, panel, n_in, x, ldx, n_row, &q4_1, true);
        else table_pass(t, panel, n_in, x, ldx, n_row, &q4_1, false);
    } else {
        if (second) table_pass(t, panel, n_in, x, ldx, n_row, &q4_0, true);
        else table_pass(t, panel, n_in, x, ldx, n_row, &q4_0, false);
    }
}

/* cpu_isa.tables */
static void product_tables(float *t, const spec_weight *w, const uint8_t *panel, int32_t n_panel, const void *x, size_t ldx, int32_t n_row)
{
    for (int32_t p = 0; p < n_panel; p++, panel += w->panel_bytes)
        for (int32_t r = 0; r < n_row; r += PASS)
            table_form(t + r * CPU_TASK_OUT + p * CPU_PANEL, w->format->form, panel, w->n_in, (const uint8_t *)x + 4 * r, ldx,
                       cpu_min(PASS, n_row - r));
}

/* cpu_isa.tables_x */
static void pairs_of_rows(uint32_t *out, const uint16_t *x, size_t ldx, int32_t n_row, int32_t n_k)
{
    for (int32_t k = 0; k < n_k; k += STEP, out += DIM * n_row)
        for (int32_t r = 0; r < n_row; r += DIM)
            transpose(out + r, (size_t)n_row, x + (size_t)r * ldx + k, 2 * ldx, cpu_min(DIM, n_row - r), DIM);
}

/* --- the table --- */

/* cpu_isa.enter. What loads a configuration takes as long as hundreds of products of one row, hence not in each call. */
static void enter(const spec_weight *w, int32_t n_row, bool one)
{
    if (w->tables) configure_tables(one);
    else if (w->format->dtype != SPEC_DTYPE_Q8_0 || n_row > 1) configure_pairs(n_row);
}

/* Tiles that are in use make a thread's state larger, which is saved when it is not at work. */
static void leave(void) { _tile_release(); }

enum { XCOMP_PERM = 0x1023 /* arch_prctl: a process asks for a state of its registers */, TILE_DATA = 18 };

/* Linux gives the tiles to a process that asks, for all of its threads. */
static bool supported(void)
{
    unsigned a, b, c, d = 0;
    if (!speci_cpu_isa_avx512bf16.supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool bf16 = d >> 22 & 1, tile = d >> 24 & 1;
    return bf16 && tile && syscall(SYS_arch_prctl, XCOMP_PERM, TILE_DATA) == 0;
}

const cpu_isa speci_cpu_isa_amx = {
    .name = "amx",
    .supported = supported,
    .product = { [SPEC_DTYPE_F32] = speci_cpu_avx512_f32, [SPEC_DTYPE_BF16] = speci_cpu_avx512_bf16, [SPEC_DTYPE_F16] = speci_cpu_avx512_f16,
                 [SPEC_DTYPE_Q8_0] = speci_cpu_avx512_q8_0 },
    .product_bf16 = { [SPEC_DTYPE_Q8_0] = product_q8 },
    .enter = enter,
    .leave = leave,
    .bf16_pairs = product_pairs,
    .unpack_pairs = unpack_to_pairs,
    .tables = product_tables,
    .tables_x = pairs_of_rows,
    .pairs_x = SPEC_DTYPE_BF16,
    .loops = &speci_cpu_loops_avx512,
};
#else
typedef int speci_cpu_linear_amx_is_empty;
#endif
