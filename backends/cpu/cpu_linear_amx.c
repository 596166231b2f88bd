/* cpu_linear_amx.c - products by matrix tiles (AMX) of bf16 (flags: cpu.h), of one row as of sixteen.
 *
 * TDPBF16PS adds to a sum those of 32 inputs:  c + (e + o),  e one chain of fused multiply-adds over the even k, o one over the odd k; it
 * rounds to nearest and takes subnormal values for zero. K goes on in this sum to its end: an order of summation of its own, the same for
 * every number of rows, and whichever of the two is on the left.
 *
 * x is on the left [row][32], weights on the right as they lie in pairs [16][output][2]; numbers of blocks become such pairs first.
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

/* Of a pass of n_row rows: sums 0 and 1 have the first sixteen, 2 and 3 the others. n_pair: of inputs, at a time. */
static void configure_pairs(int32_t n_row, int32_t n_pair)
{
    tile_config c = { .palette = 1 };
    const uint8_t first = (uint8_t)cpu_min(n_row, DIM), second = (uint8_t)cpu_min(cpu_max(n_row - DIM, 1), DIM);
    for (int i = 0; i < 8; i++) c.bytes[i] = 4 * DIM, c.rows[i] = DIM;
    c.rows[0] = c.rows[1] = c.rows[4] = first;
    c.rows[2] = c.rows[3] = c.rows[5] = second;
    c.bytes[4] = c.bytes[5] = (uint16_t)(4 * n_pair);
    c.rows[6] = c.rows[7] = (uint8_t)n_pair;
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

TILE void store_sums(float (*sum)[CPU_PANEL], bool second)
{
    enum { LD = CPU_PANEL * sizeof(float) };
    _tile_stored(0, sum[0], LD);
    _tile_stored(1, sum[0] + DIM, LD);
    if (second) {
        _tile_stored(2, sum[DIM], LD);
        _tile_stored(3, sum[DIM] + DIM, LD);
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
    _Alignas(64) float sum[PASS][CPU_PANEL];
    zero_sums();
    step_pairs((const uint8_t *)now, x, ldx, second);
    if (next) unpack_q8(next, next_block);
    store_sums(sum, second);
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
TILE void sums_q8(float *sum, const cpu_q8_panel *w, size_t panel_bytes, int n_panel, const cpu_q8_panel *next,
                  const float *x, int32_t n_block)
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

static void product_q8_one(float *t, const cpu_q8_panel *w, size_t panel_bytes, int32_t n_panel,
                           const cpu_q8_panel *next, const uint16_t *x, int32_t n_k, bool add)
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
        if (n_row > PASS) configure_pairs(n, DIM);
        for (int32_t p = 0; p < n_panel; p++) {
            float *const out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            const uint8_t *const panel = w + (size_t)p * panel_bytes;
            if (n > DIM) panel_of(out, panel, in, ldx, n, n_k, add, true, q8);
            else panel_of(out, panel, in, ldx, n, n_k, add, false, q8);
        }
    }
    if (n_row > PASS) configure_pairs(PASS, DIM); /* as enter did: what follows may come in pieces of X_ROWS */
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

/* --- blocks: numbers, which bf16 holds, in pairs; a group's sum, of Q6_K half a group's, begins at zero and is times the scale --- */

/* Pairs of a group, and where it lies. */
typedef struct block_pairs {
    _Alignas(64) uint32_t pair[DIM][CPU_PANEL];
    group_place at;
} block_pairs;

/* A group's numbers: [16 pairs][32 lanes] */
TILE void unpack_numbers(uint32_t *out, const number_table *t, const uint32_t *group, int n_high)
{
    UNROLL
    for (int word = 0; word < 4; word++)
        UNROLL
        for (int h = 0; h < CPU_PANEL; h += DIM) {
            const lane_words words = load_words(group + h, word, n_high);
            UNROLL
            for (int i = 0; i < 4; i++)
                _mm512_store_ps((void *)(out + (4 * word + i) * CPU_PANEL + h), numbers(t, words, n_high, i, STEP_PAIRS));
        }
}

/* t [n_row][32 of 64] of a panel, and sums of part `part` of a group; x_sum [n_row][ld_x]: those of x, or NULL */
TILE void add_sums(float *t, group_place at, const spec_block_form *form, int part, const float (*sum)[CPU_PANEL],
                   int32_t n_row, const float *x_sum, size_t ld_x, bool first)
{
    for (int h = 0; h < 2; h++, t += DIM) {
        const __m512 scale = scale_of(at, form, h, part), minimum = x_sum ? minimum_of(at, form, h) : _mm512_setzero_ps();
        for (int32_t r = 0; r < n_row; r++) {
            __m512 v = first ? _mm512_setzero_ps() : _mm512_loadu_ps(t + r * CPU_TASK_OUT);
            v = _mm512_fmadd_ps(scale, _mm512_load_ps(sum[r] + h * DIM), v);
            if (x_sum) v = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x_sum[(size_t)r * ld_x]), v);
            _mm512_storeu_ps(t + r * CPU_TASK_OUT, v);
        }
    }
}

TILE void unpack_block_pairs(block_pairs *to, group_place at, const spec_block_form *form, const number_table *table, int n_high)
{
    to->at = at;
    unpack_numbers(to->pair[0], table, words_of_group(at, form), n_high);
    memory_fence();
}

/* t [n_row][32 of 64] of one panel, in tiles that are configured for n_row <= PASS rows and the pairs of a part; n_high is a constant where
 * this is called, 2 is Q6_K's. */
TILE void panel_tiles(float *t, const spec_block_form *form, const uint8_t *panel, const cpu_blocks_x *x, int32_t n_row,
                      int32_t n_k, int n_high, bool second)
{
    const number_table table = table_of(form->middle, n_high, STEP_PAIRS);
    const int n_part = n_high == 2 ? 2 : 1;
    const int32_t n_group = n_k / STEP;
    const uint8_t *in = x->x;
    block_pairs pairs[2];
    _Alignas(64) float sum[PASS][CPU_PANEL];
    group_place at = { panel, 0 };
    unpack_block_pairs(&pairs[0], at, form, &table, n_high);
    for (int32_t g = 0; g < n_group; g++) {
        const block_pairs *const now = &pairs[g % 2];
        for (int part = 0; part < n_part; part++, in += 2 * STEP / n_part) {
            zero_sums();
            step_pairs((const uint8_t *)now->pair[part * DIM / n_part], in, x->ldx * 2, second);
            if (part == 0 && g + 1 < n_group) { /* meanwhile */
                at = next_group(at, form);
                unpack_block_pairs(&pairs[(g + 1) % 2], at, form, &table, n_high);
            }
            store_sums(sum, second);
            add_sums(t, now->at, form, part, sum, n_row, x->sum ? x->sum + g : NULL, (size_t)n_group, g + part == 0);
        }
    }
}

TILE void form_tiles(float *t, const spec_block_form *form, const uint8_t *panel, const cpu_blocks_x *x, int32_t n_row,
                     int32_t n_k, bool second)
{
    if (form->n_high == 2) panel_tiles(t, form, panel, x, n_row, n_k, 2, second);
    else if (form->n_high == 1) panel_tiles(t, form, panel, x, n_row, n_k, 1, second);
    else panel_tiles(t, form, panel, x, n_row, n_k, 0, second);
}

/* form NULL: of other weights */
static int32_t pairs_of_part(const spec_block_form *form) { return form && form->n_f == 16 ? DIM / 2 : DIM; }

/* cpu_isa.blocks_bf16 */
static void product_blocks_tiles(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes,
                                 int32_t n_panel, const cpu_blocks_x *x, int32_t n_row, int32_t n_k)
{
    for (int32_t r = 0; r < n_row; r += PASS) {
        const int32_t n = cpu_min(PASS, n_row - r);
        const cpu_blocks_x in = { (const uint16_t *)x->x + (size_t)r * x->ldx, x->ldx, x->sum ? x->sum + r * (n_k / STEP) : NULL };
        if (n_row > PASS) configure_pairs(n, pairs_of_part(form));
        for (int32_t p = 0; p < n_panel; p++) {
            float *const out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            if (n > DIM) form_tiles(out, form, w + (size_t)p * panel_bytes, &in, n, n_k, true);
            else form_tiles(out, form, w + (size_t)p * panel_bytes, &in, n, n_k, false);
        }
    }
}

/* --- the table --- */

/* cpu_isa.enter. What loads a configuration takes as long as hundreds of products of one row, hence not in each call. */
static void enter(const spec_weight *w, int32_t n_row)
{
    if (w->format->dtype != SPEC_DTYPE_Q8_0 || n_row > 1) configure_pairs(n_row, pairs_of_part(w->format->form));
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
    .product = { [SPEC_DTYPE_F32] = speci_cpu_avx512_f32, [SPEC_DTYPE_BF16] = speci_cpu_avx512_bf16,
                 [SPEC_DTYPE_F16] = speci_cpu_avx512_f16,
                 [SPEC_DTYPE_Q8_0] = speci_cpu_avx512_q8_0 },
    .product_bf16 = { [SPEC_DTYPE_Q8_0] = product_q8 },
    .enter = enter,
    .leave = leave,
    .bf16_pairs = product_pairs,
    .pairs_x = SPEC_DTYPE_BF16,
    .blocks = speci_cpu_avx512_blocks,
    .blocks_bf16 = product_blocks_tiles,
    .loops = &speci_cpu_loops_avx512,
};
#else
typedef int speci_cpu_linear_amx_is_empty;
#endif
