/* cpu_unpack_avx512.h - products of blocks (cpu_blocks_fn in cpu.h) with AVX-512: the numbers q - o of sixteen lanes at a time, as float32
 * or as pairs of bf16. A number is the place of its value in a table that registers hold. Included behind cpu_linear_avx512.h by
 * cpu_linear_avx512.c, cpu_linear_avx512bf16.c and cpu_linear_amx.c. */
#include <immintrin.h>

#define UNPACK static inline __attribute__((always_inline))

/* Lines are asked for so far ahead in each panel, into the second cache: the first one waits for too few lines at a time to keep memory
 * busy, and what it then lacks is near. */
enum { AHEAD_BYTES = 12288 };
UNPACK void ask_ahead(const void *at) { _mm_prefetch((const char *)at + AHEAD_BYTES, _MM_HINT_T1); }

/* --- groups and their scales --- */

UNPACK __m512 from_f16(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at)); }
UNPACK __m512 from_u8(const uint8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)at))); }
UNPACK __m512 from_i8(const uint8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at))); }

/* Group g of a panel's block */
typedef struct group_place {
    const uint8_t *block;
    int g;
} group_place;

UNPACK const uint32_t *words_of_group(group_place at, const spec_block_form *form)
{
    return (const void *)(at.block + cpu_block_scales(form) + (size_t)at.g * cpu_block_group(form));
}

UNPACK group_place next_group(group_place at, const spec_block_form *form)
{
    const int n_group = form->n_value / SPEC_SMALL_BLOCK;
    ask_ahead(at.block + at.g * 128); /* with each group two lines of scales, of which eight groups have ten at most */
    ask_ahead(at.block + at.g * 128 + 64);
    if (at.g + 1 < n_group) return (group_place){ at.block, at.g + 1 };
    return (group_place){ at.block + cpu_block_scales(form) + (size_t)n_group * cpu_block_group(form), 0 };
}

/* Of sixteen lanes, those of half h: d f of a part of the group (Q6_K's have two), and m'. They are made when they are used: between
 * groups no register holds them. */
UNPACK __m512 scale_of(group_place at, const spec_block_form *form, int h, int part)
{
    const __m512 d = from_f16(at.block + 32 * h);
    const uint8_t *const f = at.block + 2 * CPU_PANEL * (1 + form->has_m) + 16 * h;
    if (form->n_f == 8) return _mm512_mul_ps(d, from_u8(f + at.g * CPU_PANEL));
    return form->n_f == 16 ? _mm512_mul_ps(d, from_i8(f + (2 * at.g + part) * CPU_PANEL)) : d;
}

UNPACK __m512 minimum_of(group_place at, const spec_block_form *form, int h)
{
    const __m512 m = from_f16(at.block + 2 * CPU_PANEL + 32 * h);
    if (form->n_f == 0) return m;
    return _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(m, from_u8(at.block + 4 * CPU_PANEL + 16 * h + (8 + at.g) * CPU_PANEL)));
}

/* --- numbers --- */

/* q - o of q 0, 1, ...: float32 [16] in each of two registers, or bf16 [32] */
typedef struct number_table {
    __m512i part[2];
    __m512 middle;
} number_table;

/* first .. first + 15 */
UNPACK __m512 sixteen_from(int first)
{
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(i, _mm512_set1_epi32(first)));
}

UNPACK __m256i sixteen_bf16(int first)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(sixteen_from(first)), 16));
}

/* Of four bits the table of bf16 has each value twice: a place may have any fifth bit. */
UNPACK number_table table_of(int middle, int n_high, cpu_step step)
{
    number_table t = { { _mm512_castps_si512(sixteen_from(-middle)), _mm512_castps_si512(sixteen_from(16 - middle)) },
                       _mm512_set1_ps((float)middle) };
    for (int i = 0; i < 2 && step == STEP_PAIRS; i++)
        t.part[i] = _mm512_inserti64x4(_mm512_castsi256_si512(sixteen_bf16(32 * i - middle)),
                                       sixteen_bf16(32 * i - middle + (n_high ? 16 : 0)), 1);
    return t;
}

/* Steps that a word of eight inputs is: pairs, or inputs. */
UNPACK int word_steps(cpu_step step) { return step == STEP_PAIRS ? 4 : 8; }

UNPACK __m512i shifted(__m512i v, int down)
{
    return down >= 0 ? _mm512_srli_epi32(v, (unsigned)down) : _mm512_slli_epi32(v, (unsigned)-down);
}

/* Five or six bits: the lowest four where `four` has bits, the others of `high` that are from bit `at` on */
UNPACK __m512i with_high(__m512i low, __m512i high, int at, __m512i four)
{
    return _mm512_ternarylogic_epi32(four, low, shifted(high, at - 4), 0xca); /* a bit of low where `four` has one, else of high */
}

/* Words of sixteen lanes, of eight inputs; the high bits of the first input are lowest. */
typedef struct lane_words {
    __m512i low, high;
} lane_words;

UNPACK lane_words load_words(const uint32_t *lanes, int word, int n_high)
{
    lane_words words;
    words.low = words.high = _mm512_loadu_si512((const void *)(lanes + word * CPU_PANEL));
    ask_ahead(lanes + word * CPU_PANEL);
    if (n_high == 0) return words;
    const uint32_t *const at = lanes + (4 + word * n_high / 4) * CPU_PANEL;
    ask_ahead(at);
    words.high = _mm512_srl_epi32(_mm512_loadu_si512((const void *)at), _mm_cvtsi32_si128(cpu_high_shift(8 * word, n_high)));
    return words;
}

/* Step i of a word; i and n_high are constants where this is called. Bits above those of a place in the table do not count: they may be a
 * neighbour's. */
UNPACK __m512 pair_numbers(const number_table *t, lane_words words, int n_high, int i)
{
    __m512i at = shifted(words.low, cpu_low_shift(2 * i));
    if (n_high > 0) at = with_high(at, words.high, cpu_high_shift(2 * i, n_high), _mm512_set1_epi16(15));
    if (n_high == 2) return _mm512_castsi512_ps(_mm512_permutex2var_epi16(t->part[0], at, t->part[1]));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(at, t->part[0]));
}

UNPACK __m512 float_numbers(const number_table *t, lane_words words, int n_high, int i)
{
    const __m512 first = _mm512_castsi512_ps(t->part[0]);
    __m512i at = shifted(words.low, cpu_low_shift(i));
    if (n_high == 0) return _mm512_permutexvar_ps(at, first);
    at = with_high(at, words.high, cpu_high_shift(i, n_high), _mm512_set1_epi32(15));
    if (n_high == 1) return _mm512_permutex2var_ps(first, at, _mm512_castsi512_ps(t->part[1]));
    return _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(at, _mm512_set1_epi32(63))), t->middle);
}

UNPACK __m512 numbers(const number_table *t, lane_words words, int n_high, int i, cpu_step step)
{
    return step == STEP_PAIRS ? pair_numbers(t, words, n_high, i) : float_numbers(t, words, n_high, i);
}

/* --- products: numbers are multiplied where they are, in registers, by up to ROWS_MANY rows at a time --- */

/* Where rows of x are, in few registers: a row is so many row lengths behind one of three addresses. One address for each row would be more
 * than there are registers, and to load it takes as long as to multiply. */
typedef struct row_places {
    const uint8_t *from[3]; /* rows 0, 3, 6 */
    size_t ld_bytes;
} row_places;

UNPACK row_places places_of(const uint8_t *x, size_t ld_bytes, int n_row)
{
    row_places rows = { .ld_bytes = ld_bytes };
    UNROLL
    for (int i = 0; 3 * i < n_row; i++) {
        rows.from[i] = x + (size_t)(3 * i) * ld_bytes;
        __asm__("" : "+r"(rows.from[i])); /* else the compiler makes an address for each row all the same */
    }
    return rows;
}
UNPACK const uint8_t *row_at(const row_places *rows, int r) { return rows->from[r / 3] + (size_t)(r % 3) * rows->ld_bytes; }

/* Of words [w0, w1) of a group: acc [n_row][2 halves]; x is that of the group's first step. */
UNPACK void multiply_words(__m512 acc[][2], const number_table *t, const uint32_t *group, const uint8_t *x,
                           size_t ldx_bytes, int n_row, int n_high, int w0, int w1, cpu_step step)
{
    UNROLL
    for (int r = 0; r < n_row; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int word = w0; word < w1; word++) {
        const lane_words words[2] = { load_words(group, word, n_high), load_words(group + 16, word, n_high) };
        const row_places in = places_of(x + (size_t)(word * word_steps(step) * 4), ldx_bytes, n_row);
        UNROLL
        for (int i = 0; i < word_steps(step); i++)
            UNROLL
            for (int h = 0; h < 2; h++) {
                const __m512 v = numbers(t, words[h], n_high, i, step);
                UNROLL
                for (int r = 0; r < n_row; r++) acc[r][h] = multiply(acc[r][h], v, row_at(&in, r) + 4 * i, step);
            }
    }
}

enum { ROWS_MANY = 8, ROWS_HIGH = 6 /* of numbers that take more registers */ };

/* t [n_row][32 of 64] of one panel; n_row and n_high are constants where this is called, n_high 2 is Q6_K's. */
UNPACK void blocks_tile(float *t, const spec_block_form *form, const uint8_t *panel, const cpu_blocks_x *x, int32_t n_k,
                        int n_row, int n_high, cpu_step step)
{
    const number_table table = table_of(form->middle, n_high, step);
    const int n_part = n_high == 2 ? 2 : 1, group_steps = 4 * word_steps(step);
    const int32_t n_group = n_k / SPEC_SMALL_BLOCK;
    const size_t ldx_bytes = x->ldx * (step == STEP_PAIRS ? 2 : 4);
    group_place at = { panel, 0 };
    __m512 sum[ROWS_MANY][2], acc[ROWS_MANY][2];
    UNROLL
    for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int32_t g = 0; g < n_group; g++, at = next_group(at, form)) {
        const uint8_t *const from = (const uint8_t *)x->x + (size_t)(g * group_steps) * 4;
        UNROLL
        for (int part = 0; part < n_part; part++) {
            multiply_words(acc, &table, words_of_group(at, form), from, ldx_bytes, n_row, n_high, part * 4 / n_part,
                           (part + 1) * 4 / n_part, step);
            UNROLL
            for (int h = 0; h < 2; h++) {
                const __m512 scale = scale_of(at, form, h, part);
                UNROLL
                for (int r = 0; r < n_row; r++) sum[r][h] = _mm512_fmadd_ps(scale, acc[r][h], sum[r][h]);
            }
        }
        if (!x->sum) continue;
        UNROLL
        for (int h = 0; h < 2; h++) {
            const __m512 minimum = minimum_of(at, form, h);
            UNROLL
            for (int r = 0; r < n_row; r++) sum[r][h] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x->sum[r * n_group + g]), sum[r][h]);
        }
    }
    UNROLL
    for (int r = 0; r < n_row; r++)
        UNROLL
        for (int h = 0; h < 2; h++) _mm512_storeu_ps(t + r * CPU_TASK_OUT + 16 * h, sum[r][h]);
}

UNPACK void blocks_rows(float *t, const spec_block_form *form, const uint8_t *panel, const cpu_blocks_x *x, int32_t n_k,
                        int n_row, int n_high, cpu_step step)
{
    switch (n_row) {
    case 1: blocks_tile(t, form, panel, x, n_k, 1, n_high, step); break;
    case 2: blocks_tile(t, form, panel, x, n_k, 2, n_high, step); break;
    case 3: blocks_tile(t, form, panel, x, n_k, 3, n_high, step); break;
    case 4: blocks_tile(t, form, panel, x, n_k, 4, n_high, step); break;
    case 5: blocks_tile(t, form, panel, x, n_k, 5, n_high, step); break;
    case 6: blocks_tile(t, form, panel, x, n_k, 6, n_high, step); break;
    case 7: if (n_high == 0) blocks_tile(t, form, panel, x, n_k, 7, n_high, step); break;
    default: if (n_high == 0) blocks_tile(t, form, panel, x, n_k, 8, n_high, step); break;
    }
}

/* n_row rows in tiles of nearly equal height. */
UNPACK void blocks_form(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel, const cpu_blocks_x *x,
                        int32_t n_row, int32_t n_k, int n_high, cpu_step step)
{
    const int32_t n_tile = cpu_parts(n_row, n_high ? ROWS_HIGH : ROWS_MANY);
    for (int32_t p = 0; p < n_panel; p++, w += panel_bytes)
        for (int32_t i = 0, r = 0, n; i < n_tile; i++, r += n) {
            const cpu_blocks_x in = { (const uint8_t *)x->x + (size_t)r * x->ldx * (step == STEP_PAIRS ? 2 : 4), x->ldx,
                                      x->sum ? x->sum + r * (n_k / SPEC_SMALL_BLOCK) : NULL };
            n = cpu_parts(n_row - r, n_tile - i);
            blocks_rows(t + r * CPU_TASK_OUT + p * CPU_PANEL, form, w, &in, n_k, n, n_high, step);
        }
}

/* cpu_isa.blocks, of STEP_F32, and blocks_bf16, of STEP_PAIRS */
UNPACK void product_blocks_of(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes,
                              int32_t n_panel, const cpu_blocks_x *x, int32_t n_row, int32_t n_k, cpu_step step)
{
    if (form->n_high == 2) blocks_form(t, form, w, panel_bytes, n_panel, x, n_row, n_k, 2, step);
    else if (form->n_high == 1) blocks_form(t, form, w, panel_bytes, n_panel, x, n_row, n_k, 1, step);
    else blocks_form(t, form, w, panel_bytes, n_panel, x, n_row, n_k, 0, step);
}
