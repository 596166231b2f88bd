/* cpu_loops.h - the bodies of cpu_loops (cpu.h): included once by each cpu_loops*.c, which differ in their compiler
 * flags only. Sums run over 16 partial sums, lane i % 16 taking element i, which are then added in halves: an order
 * that a vector unit of any width can keep. */
#include <math.h>

#include "backends/cpu/cpu_kv.h"
#include "backends/cpu/cpu_math.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = 16 };

/* What the vector unit takes of the partial sums at once. So they stay in registers: left to itself the compiler keeps sums
 * of several arrays in memory, and a vector that is wider than the unit's too. */
#if defined(__AVX512F__)
enum { UNIT = 16 };
#elif defined(__AVX__)
enum { UNIT = 8 };
#else
enum { UNIT = 4 };
#endif
typedef float unit __attribute__((vector_size(4 * UNIT)));
enum { UNITS = LANES / UNIT };

#define TILE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

TILE unit load_unit(const float *from)
{
    unit v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline float add_lanes(const float *acc)
{
    typedef float four __attribute__((vector_size(16)));
    four v[LANES / 4];
    memcpy(v, acc, sizeof v);
    v[0] += v[2], v[1] += v[3];
    v[0] += v[1];
    return (v[0][0] + v[0][2]) + (v[0][1] + v[0][3]);
}

/* --- types --- */

static inline void load_bf16(float *restrict out, const uint16_t *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = speci_from_bf16(in[i]);
}

static inline void load_f16(float *restrict out, const uint16_t *restrict in, size_t n)
{
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + i))));
#endif
    for (; i < n; i++) out[i] = speci_from_f16(in[i]);
}

static void load(float *out, const void *in, spec_dtype dtype, size_t n)
{
    if (dtype == SPEC_DTYPE_BF16) {
        load_bf16(out, in, n);
    } else if (dtype == SPEC_DTYPE_F16) {
        load_f16(out, in, n);
    } else if (n > 0) {
        memcpy(out, in, n * sizeof(float));
    }
}

static inline void store_bf16(uint16_t *restrict out, const float *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = speci_to_bf16(in[i]);
}

static inline void store_f16(uint16_t *restrict out, const float *restrict in, size_t n)
{
#if defined(__F16C__)
    for (; n >= 8; n -= 8, in += 8, out += 8)
        _mm_storeu_si128((void *)out, _mm256_cvtps_ph(_mm256_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (size_t i = 0; i < n; i++) out[i] = speci_to_f16(in[i]);
}

static void store(void *out, spec_dtype dtype, const float *in, size_t n)
{
    if (dtype == SPEC_DTYPE_BF16) {
        store_bf16(out, in, n);
    } else if (dtype == SPEC_DTYPE_F16) {
        store_f16(out, in, n);
    } else if (n > 0) {
        memcpy(out, in, n * sizeof(float));
    }
}

#include "backends/cpu/cpu_loops_blocks.h"

/* --- activations --- */

static void activate(float *t, spec_activation act, float scale, size_t n)
{
    switch (act) {
    case SPEC_ACT_NONE: break;
    case SPEC_ACT_SILU:
        for (size_t i = 0; i < n; i++) t[i] = cpu_silu(t[i]);
        break;
    case SPEC_ACT_GELU:
        for (size_t i = 0; i < n; i++) t[i] = cpu_gelu(t[i]);
        break;
    case SPEC_ACT_GELU_TANH:
        for (size_t i = 0; i < n; i++) t[i] = cpu_gelu_tanh(t[i]);
        break;
    case SPEC_ACT_RELU:
        for (size_t i = 0; i < n; i++) t[i] = t[i] < 0.0f ? 0.0f : t[i];
        break;
    case SPEC_ACT_CAP:
        for (size_t i = 0; i < n; i++) t[i] = cpu_tanh(t[i] / scale);
        break;
    }
}

/* --- norms --- */

static inline float sum(const float *x, size_t n)
{
    float acc[LANES] = { 0 };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) acc[j] += x[i + j];
    for (size_t j = 0; i + j < n; j++) acc[j] += x[i + j];
    return add_lanes(acc);
}

static void group_sums(float *out, const void *x, spec_dtype dtype, size_t n)
{
    const size_t bytes = SPEC_SMALL_BLOCK * speci_dtype_bytes(dtype);
    float group[SPEC_SMALL_BLOCK];
    for (size_t g = 0; g < n / SPEC_SMALL_BLOCK; g++) {
        load(group, (const uint8_t *)x + g * bytes, dtype, SPEC_SMALL_BLOCK);
        out[g] = sum(group, SPEC_SMALL_BLOCK);
    }
}

/* sum of (x - mean)^2 */
static inline float sum_squares(const float *x, float mean, size_t n)
{
    float acc[LANES] = { 0 };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) acc[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (size_t j = 0; i + j < n; j++) acc[j] += (x[i + j] - mean) * (x[i + j] - mean);
    return add_lanes(acc);
}

static void rms(float *y, const float *x, const float *weight, float eps, size_t n)
{
    float r = 1.0f / sqrtf(sum_squares(x, 0.0f, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * r * weight[i];
}

static void norm_layer(const spec_norm_args *a, float *y, const float *x)
{
    size_t n = (size_t)a->dim;
    float mean = sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + a->eps);
    for (size_t i = 0; i < n; i++) y[i] = (x[i] - mean) * r * a->weight[i];
    if (a->bias)
        for (size_t i = 0; i < n; i++) y[i] += a->bias[i];
}

/* y serves as scratch for v = x silu(gate). x may be y. */
static void norm(const spec_norm_args *a, float *y, const float *x, const float *gate)
{
    size_t dim = (size_t)a->dim, part = dim / (size_t)a->n_group;
    if (a->kind == SPEC_NORM_LAYER) {
        norm_layer(a, y, x);
        return;
    }
    if (a->kind == SPEC_NORM_NONE) {
        memmove(y, x, dim * sizeof *y);
        return;
    }
    bool before = gate && !a->norm_first;
    if (before)
        for (size_t i = 0; i < dim; i++) y[i] = x[i] * cpu_silu(gate[i]);
    for (size_t g = 0; g < dim; g += part) rms(y + g, (before ? y : x) + g, a->weight + g, a->eps, part);
    if (a->bias)
        for (size_t i = 0; i < dim; i++) y[i] += a->bias[i];
    if (gate && a->norm_first)
        for (size_t i = 0; i < dim; i++) y[i] = y[i] * cpu_silu(gate[i]);
}

/* --- the largest --- */

static float max_of(const float *v, size_t n)
{
    float m[LANES];
    for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) m[j] = v[i + j] > m[j] ? v[i + j] : m[j];
    for (size_t j = 0; i + j < n; j++) m[j] = v[i + j] > m[j] ? v[i + j] : m[j];
    for (int j = 1; j < LANES; j++) m[0] = m[j] > m[0] ? m[j] : m[0];
    return m[0];
}

#include "backends/cpu/cpu_loops_attend.h"

/* --- convolution, scan --- */

static void conv(float *restrict y, const float *bias, const float *const *w, const float *const *u, int32_t width,
                 bool silu, size_t n)
{
    for (size_t c = 0; c < n; c++) y[c] = bias[c];
    for (int32_t k = 0; k < width; k++) {
        const float *restrict wk = w[k], *restrict uk = u[k];
        for (size_t c = 0; c < n; c++) y[c] += wk[c] * uk[c];
    }
    for (size_t c = 0; c < n && silu; c++) y[c] = cpu_silu(y[c]);
}

static void dt(float *out, const float *in, const float *bias, float lo, float hi, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = cpu_softplus(bias ? in[i] + bias[i] : in[i]);
        v = v < lo ? lo : v;
        out[i] = v > hi ? hi : v;
    }
}

/* exp(dt A) S + dt x B^T of one row of the state `from`, the one function of scan and replay, into `to` (which may be `from`;
 * NULL: nowhere); with c its product with c, in the order of dot, from the values still in registers. */
static inline float update(float *to, const float *from, float decay, float dx, const float *b, const float *c, size_t n)
{
    unit acc[UNITS] = { { 0 } };
    float sums[LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < UNITS; j++) {
            const size_t at = i + j * UNIT;
            unit u, v;
            memcpy(&u, from + at, sizeof u);
            memcpy(&v, b + at, sizeof v);
            u = u * decay + v * dx;
            if (to) memcpy(to + at, &u, sizeof u);
            if (!c) continue;
            memcpy(&v, c + at, sizeof v);
            acc[j] += u * v;
        }
    memcpy(sums, acc, sizeof sums);
    for (size_t j = 0; i + j < n; j++) {
        const float u = decay * from[i + j] + dx * b[i + j];
        if (to) to[i + j] = u;
        if (c) sums[j] += u * c[i + j];
    }
    return add_lanes(sums);
}

/* The same with a decay per state (Mamba-1). */
static inline void update_per_state(float *to, const float *from, float step, const float *restrict a, float dx,
                                    const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = cpu_exp(step * a[i]) * from[i] + dx * b[i];
}

static void scan(float *to, const float *from, float *y, const float *x, size_t n_row, size_t n_state, const float *dt,
                 const float *a, bool a_per_state, bool heads, const float *b, const float *c)
{
    const float decay = a_per_state ? 0.0f : cpu_exp(dt[0] * a[0]);
    float row[CPU_STATE_MAX];
    for (size_t p = 0; p < n_row; p++, from += n_state) {
        const float step = dt[heads ? p : 0], dx = step * x[p];
        if (a_per_state) {
            float *s = to ? to : row;
            update_per_state(s, from, step, heads ? a + p * n_state : a, dx, b, n_state);
            if (y) y[p] = dot(s, c, n_state);
        } else if (!y) {
            (void)update(to, from, decay, dx, b, NULL, n_state);
        } else if (to) {
            y[p] = update(to, from, decay, dx, b, c, n_state);
        } else {
            y[p] = update(NULL, from, decay, dx, b, c, n_state);
        }
        if (to) to += n_state;
    }
}

static void scan_out(float *y, const float *d, bool heads, const float *x, const float *z, size_t n)
{
    const float of_all = d[0];
    if (heads)
        for (size_t i = 0; i < n; i++) y[i] = y[i] + d[i] * x[i];
    else
        for (size_t i = 0; i < n; i++) y[i] = y[i] + of_all * x[i];
    if (z)
        for (size_t i = 0; i < n; i++) y[i] = y[i] * cpu_silu(z[i]);
}

#include "backends/cpu/cpu_loops_chunked.h"

/* --- rows of logits --- */

static double exps(float *e, const float *v, float m, float t, size_t n)
{
    enum { CHUNK = 1024 };
    float part[CHUNK];
    double total = 0.0;
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        float *out = e ? e + i : part;
        for (size_t j = 0; j < count; j++) {
            float x = v[i + j] == m ? 0.0f : (v[i + j] - m) / t; /* also where both are infinite */
            float y = cpu_exp(x);
            out[j] = y == y ? y : 0.0f;
        }
        double acc[LANES] = { 0 };
        size_t j = 0;
        for (; j + LANES <= count; j += LANES)
            for (size_t k = 0; k < LANES; k++) acc[k] += (double)out[j + k];
        for (size_t k = 0; j + k < count; k++) acc[k] += (double)out[j + k];
        for (int k = 0; k < LANES; k++) total += acc[k];
    }
    return total;
}

static void scale(float *v, float f, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] *= f;
}

#define CPU_LOOPS_TABLE                                                                            \
    {                                                                                              \
        .load = load, .store = store, .unpack = unpack, .group_sums = group_sums, .activate = activate, .norm = norm, \
        .rms = rms, .attend = attend, .conv = conv, .dt = dt, .scan = scan, .decays = decays,      \
        .weights = weights, .fold = fold, .products = products, .recall = recall,                  \
        .scan_out = scan_out, .max = max_of, .exps = exps, .scale = scale,                         \
    }
