/* cpu_loops_chunked.h - the inner loops of the chunked scan: a part of cpu_loops.h, included by it.
 *
 * A product of a row of the state and C of a node is summed as dot() does it, over the same partial sums added in the
 * same order, so its bits do not depend on how many rows and nodes are taken at once. */

/* Rows and nodes whose sums stay in registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 4, TILE_NODES = 4 };
#else
enum { TILE_ROWS = 4, TILE_NODES = 2 };
#endif

typedef float four __attribute__((vector_size(16)));

/* --- weights of tokens --- */

static void decays(float *restrict decay, const float *restrict dt, const float *restrict a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < CPU_RUN; h++) decay[i * CPU_RUN + h] = cpu_exp(dt[i * CPU_RUN + h] * a[h]);
}

static void weights(float *restrict w, float *restrict e, const float *restrict dt, const float *restrict decay,
                    const int32_t *restrict token, const float *restrict cb, size_t n)
{
    float p[CPU_RUN];
    for (size_t h = 0; h < CPU_RUN; h++) p[h] = 1.0f;
    for (size_t j = n; j-- > 0;) {
        const size_t at = (size_t)token[j] * CPU_RUN;
        const float f = cb ? cb[j] : 1.0f;
        for (size_t h = 0; h < CPU_RUN; h++) {
            w[j * CPU_RUN + h] = p[h] * dt[at + h] * f;
            p[h] = p[h] * decay[at + h];
        }
    }
    for (size_t h = 0; h < CPU_RUN; h++) e[h] = p[h];
}

/* --- products --- */

/* 16 partial sums to 4, as add_lanes does it. */
TILE four add_quarters(const unit v[UNITS])
{
#if defined(__AVX512F__)
    const __m512 all = (__m512)v[0];
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return (four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
    const __m256 half = (__m256)(v[0] + v[1]);
    return (four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* The sums of four vectors, each (v0 + v2) + (v1 + v3). */
TILE four add_four(four a, four b, four c, four d)
{
#if defined(__x86_64__)
    const __m128 p = (__m128)a, q = (__m128)b, r = (__m128)c, s = (__m128)d;
    const __m128 t = _mm_add_ps(_mm_shuffle_ps(p, q, 0x44), _mm_shuffle_ps(p, q, 0xee));
    const __m128 u = _mm_add_ps(_mm_shuffle_ps(r, s, 0x44), _mm_shuffle_ps(r, s, 0xee));
    return (four)_mm_add_ps(_mm_shuffle_ps(t, u, 0x88), _mm_shuffle_ps(t, u, 0xdd));
#else
    return (four){ (a[0] + a[2]) + (a[1] + a[3]), (b[0] + b[2]) + (b[1] + b[3]), (c[0] + c[2]) + (c[1] + c[3]),
                   (d[0] + d[2]) + (d[1] + d[3]) };
#endif
}

#if defined(__AVX512F__)
/* The sums of up to 16 at once, in the same order: in 256, 128, 64 bits. Node k's lie in quarter k. */
TILE __m512 add_sixteen(const unit v[TILE_NODES][TILE_ROWS], int n)
{
    __m512 row[TILE_ROWS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        const __m512 a = (__m512)v[0][r], b = (__m512)v[1][r];
        const __m512 c = (__m512)v[n > 2 ? 2 : 0][r], d = (__m512)v[n - 1][r];
        const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        row[r] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    const __m512 t = _mm512_add_ps(_mm512_shuffle_ps(row[0], row[1], 0x44), _mm512_shuffle_ps(row[0], row[1], 0xee));
    const __m512 u = _mm512_add_ps(_mm512_shuffle_ps(row[2], row[3], 0x44), _mm512_shuffle_ps(row[2], row[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(t, u, 0x88), _mm512_shuffle_ps(t, u, 0xdd));
}
#endif

/* y [node][ldy] = the sums of n nodes' products with four rows */
TILE void put_sums(float *y, size_t ldy, const unit acc[UNITS][TILE_NODES][TILE_ROWS], int n)
{
#if defined(__AVX512F__)
    if (n > 1) {
        const __m512 sums = add_sixteen(acc[0], n);
        _mm_storeu_ps(y, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(y + ldy, _mm512_extractf32x4_ps(sums, 1));
        if (n > 2) _mm_storeu_ps(y + 2 * ldy, _mm512_extractf32x4_ps(sums, 2));
        if (n > 3) _mm_storeu_ps(y + 3 * ldy, _mm512_extractf32x4_ps(sums, 3));
        return;
    }
#endif
    UNROLL
    for (int k = 0; k < n; k++) {
        four v[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            unit sums[UNITS];
            UNROLL
            for (int u = 0; u < UNITS; u++) sums[u] = acc[u][k][r];
            v[r] = add_quarters(sums);
        }
        v[0] = add_four(v[0], v[1], v[2], v[3]);
        memcpy(y + (size_t)k * ldy, v, sizeof *v);
    }
}

/* Products of 4 rows, lds apart, and n nodes, ldc apart (n a constant where this is called), over `length` values, a
 * multiple of LANES: acc [unit][node][row]. */
TILE void add_products(unit acc[UNITS][TILE_NODES][TILE_ROWS], const float *c, size_t ldc, int n, const float *s,
                       size_t lds, size_t length)
{
    for (size_t u = 0; u < UNITS; u++) { /* so many sums as there are registers for */
        unit a[TILE_NODES][TILE_ROWS];
        UNROLL
        for (int k = 0; k < n; k++)
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) a[k][r] = acc[u][k][r];
        for (size_t i = u * UNIT; i < length; i += LANES) {
            unit row[TILE_ROWS];
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) row[r] = load_unit(s + (size_t)r * lds + i);
            UNROLL
            for (int k = 0; k < n; k++) {
                const unit node = load_unit(c + (size_t)k * ldc + i);
                UNROLL
                for (int r = 0; r < TILE_ROWS; r++) a[k][r] += row[r] * node;
            }
        }
        UNROLL
        for (int k = 0; k < n; k++)
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) acc[u][k][r] = a[k][r];
    }
}

TILE void tile(float *y, size_t ldy, const float *c, int n, const float *s, size_t n_state)
{
    unit acc[UNITS][TILE_NODES][TILE_ROWS] = { 0 };
    const size_t whole = n_state / LANES * LANES, rest = n_state - whole;
    add_products(acc, c, n_state, n, s, n_state, whole);
    if (rest > 0) { /* with zeros behind: a sum that began with 0 keeps its bits when 0 is added */
        float last_c[TILE_NODES][LANES] = { 0 }, last_s[TILE_ROWS][LANES] = { 0 };
        for (int k = 0; k < n; k++) memcpy(last_c[k], c + (size_t)k * n_state + whole, rest * sizeof *c);
        for (int r = 0; r < TILE_ROWS; r++) memcpy(last_s[r], s + (size_t)r * n_state + whole, rest * sizeof *s);
        add_products(acc, last_c[0], LANES, n, last_s[0], LANES, LANES);
    }
    put_sums(y, ldy, acc, n);
}

/* Four rows and all nodes, in tiles of nearly equal width. */
TILE void products_of_rows(float *y, size_t ldy, const float *c, size_t n, const float *s, size_t n_state)
{
    for (size_t i = 0, tiles = (n + TILE_NODES - 1) / TILE_NODES; tiles > 0; tiles--) {
        const size_t width = (n - i + tiles - 1) / tiles;
        float *out = y + i * ldy;
        const float *node = c + i * n_state;
        if (width == 1) tile(out, ldy, node, 1, s, n_state);
        else if (width == 2) tile(out, ldy, node, 2, s, n_state);
#if defined(__AVX512F__)
        else if (width == 3) tile(out, ldy, node, 3, s, n_state);
        else tile(out, ldy, node, 4, s, n_state);
#endif
        i += width;
    }
}

static void products(float *y, size_t ldy, const float *c, size_t n, const float *s, size_t n_row, size_t n_state,
                     const float *soon)
{
    size_t r = 0;
    for (; r + TILE_ROWS <= n_row; r += TILE_ROWS) {
        for (size_t i = 0; soon && i < TILE_ROWS * n_state; i += LANES) __builtin_prefetch(soon + r * n_state + i);
        products_of_rows(y + r, ldy, c, n, s + r * n_state, n_state);
    }
    for (; r < n_row; r++)
        for (size_t i = 0; i < n; i++) y[i * ldy + r] = dot(s + r * n_state, c + i * n_state, n_state);
}

/* --- folds --- */

enum { FOLD_ROWS = 16 };

/* `width` units from value i on of four rows; f [token][FOLD_ROWS] = u x, from the first of them on. */
TILE void fold_units(float *to, const float *from, size_t n_state, size_t i, int width, const cpu_chunk *chunk,
                     const float *f)
{
    unit acc[TILE_ROWS][2];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++)
        UNROLL
        for (int k = 0; k < width; k++) acc[r][k] = chunk->e * load_unit(from + (size_t)r * n_state + i + (size_t)k * UNIT);
    for (size_t j = 0; j < SPEC_CHUNK; j++) {
        unit b[2];
        UNROLL
        for (int k = 0; k < width; k++) b[k] = load_unit(chunk->b[j] + i + (size_t)k * UNIT);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            UNROLL
            for (int k = 0; k < width; k++) acc[r][k] += f[j * FOLD_ROWS + (size_t)r] * b[k];
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++)
        UNROLL
        for (int k = 0; k < width; k++)
            memcpy(to + (size_t)r * n_state + i + (size_t)k * UNIT, &acc[r][k], sizeof(unit));
}

/* Values [i, n_state) of one row. */
static inline void fold_values(float *to, const float *from, size_t i, size_t n_state, const cpu_chunk *chunk,
                               const float *f)
{
    for (; i < n_state; i++) {
        float v = chunk->e * from[i];
        for (size_t j = 0; j < SPEC_CHUNK; j++) v += f[j * FOLD_ROWS] * chunk->b[j][i];
        to[i] = v;
    }
}

/* Four rows. */
TILE void fold_rows(float *to, const float *from, size_t n_state, const cpu_chunk *chunk, const float *f)
{
    size_t i = 0;
    for (; i + 2 * UNIT <= n_state; i += 2 * UNIT) fold_units(to, from, n_state, i, 2, chunk, f);
    for (; i + UNIT <= n_state; i += UNIT) fold_units(to, from, n_state, i, 1, chunk, f);
    for (size_t r = 0; r < TILE_ROWS; r++) fold_values(to + r * n_state, from + r * n_state, i, n_state, chunk, f + r);
}

static void fold(float *to, const float *from, size_t n_row, size_t n_state, const cpu_chunk *chunk)
{
    for (size_t p = 0; p < n_row; p += FOLD_ROWS, to += FOLD_ROWS * n_state, from += FOLD_ROWS * n_state) {
        const size_t n = n_row - p < FOLD_ROWS ? n_row - p : FOLD_ROWS;
        float f[SPEC_CHUNK * FOLD_ROWS];
        size_t r = 0;
        for (size_t j = 0; j < SPEC_CHUNK; j++)
            for (size_t k = 0; k < n; k++) f[j * FOLD_ROWS + k] = chunk->u[j] * chunk->x[j][p + k];
        for (; r + TILE_ROWS <= n; r += TILE_ROWS) {
            for (size_t i = 0; n_row - p > FOLD_ROWS && i < TILE_ROWS * n_state; i += LANES)
                __builtin_prefetch(from + (FOLD_ROWS + r) * n_state + i);
            fold_rows(to + r * n_state, from + r * n_state, n_state, chunk, f + r);
        }
        for (; r < n; r++) fold_values(to + r * n_state, from + r * n_state, 0, n_state, chunk, f + r);
    }
}

/* --- near tokens --- */

/* `width` units of n outputs from value i on: y = e y in the first call for them, and what tokens [begin, end) of the
 * first one's list add, which the others have too. */
TILE void recall_units(const cpu_recall *r, int n, size_t i, int width, bool first, size_t begin, size_t end,
                       const float *x, size_t ldx)
{
    unit acc[TILE_NODES][4];
    UNROLL
    for (int k = 0; k < n; k++)
        UNROLL
        for (int u = 0; u < width; u++) {
            acc[k][u] = load_unit(r[k].y + i + (size_t)u * UNIT);
            if (first) acc[k][u] = r[k].e * acc[k][u];
        }
    for (size_t j = begin; j < end; j++) {
        const float *from = x + (size_t)r->token[j] * ldx + i;
        unit v[4];
        UNROLL
        for (int u = 0; u < width; u++) v[u] = load_unit(from + (size_t)u * UNIT);
        UNROLL
        for (int k = 0; k < n; k++)
            UNROLL
            for (int u = 0; u < width; u++) acc[k][u] += r[k].w[j * CPU_RUN] * v[u];
    }
    UNROLL
    for (int k = 0; k < n; k++)
        UNROLL
        for (int u = 0; u < width; u++) memcpy(r[k].y + i + (size_t)u * UNIT, &acc[k][u], sizeof(unit));
}

TILE void recall_tokens(const cpu_recall *r, int n, bool first, size_t begin, size_t end, const float *x, size_t ldx)
{
    size_t i = 0;
    for (; i + 4 * UNIT <= ldx; i += 4 * UNIT) recall_units(r, n, i, 4, first, begin, end, x, ldx);
    for (; i + UNIT <= ldx; i += UNIT) recall_units(r, n, i, 1, first, begin, end, x, ldx);
    for (; i < ldx; i++)
        for (int k = 0; k < n; k++) {
            float v = first ? r[k].e * r[k].y[i] : r[k].y[i];
            for (size_t j = begin; j < end; j++) v += r[k].w[j * CPU_RUN] * x[(size_t)r[k].token[j] * ldx + i];
            r[k].y[i] = v;
        }
}

static void recall(const cpu_recall *r, size_t n, size_t n_shared, const float *x, size_t ldx)
{
    size_t k = 0;
    for (; k + TILE_NODES <= n; k += TILE_NODES) recall_tokens(r + k, TILE_NODES, true, 0, n_shared, x, ldx);
    for (; k < n; k++) recall_tokens(r + k, 1, true, 0, n_shared, x, ldx);
    for (k = 0; k < n; k++) recall_tokens(r + k, 1, false, n_shared, r[k].n_token, x, ldx);
}
