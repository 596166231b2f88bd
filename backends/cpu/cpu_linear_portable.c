/* cpu_linear_portable.c - few-row products for any machine: the reference of the others (order of summation: cpu.h). */
#include "backends/cpu/cpu.h"
#include "core/core_half.h"

/* --- for each row and lane, one chain over k --- */

static inline float weight_value(const void *w, spec_dtype t, size_t i)
{
    if (t == SPEC_DTYPE_F32) return ((const float *)w)[i];
    uint16_t h = ((const uint16_t *)w)[i];
    return t == SPEC_DTYPE_BF16 ? speci_from_bf16(h) : speci_from_f16(h);
}

static inline void product(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const float *x, size_t ldx,
                           int32_t n_row, int32_t n_k, bool add, spec_dtype dtype)
{
    for (int32_t r = 0; r < n_row; r++) {
        for (int32_t p = 0; p < n_panel; p++) {
            const char *panel = (const char *)w + (size_t)p * panel_bytes;
            float acc[CPU_PANEL] = { 0 }, *out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            for (int32_t k = 0; k < n_k; k++) {
                float xk = x[(size_t)r * ldx + (size_t)k];
                for (size_t o = 0; o < CPU_PANEL; o++)
                    acc[o] += xk * weight_value(panel, dtype, (size_t)k * CPU_PANEL + o);
            }
            for (size_t o = 0; o < CPU_PANEL; o++) out[o] = add ? out[o] + acc[o] : acc[o];
        }
    }
}

static void product_f32(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                        size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)next;
    product(t, w, panel_bytes, n_panel, x, ldx, n_row, n_k, add, SPEC_DTYPE_F32);
}

static void product_bf16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)next;
    product(t, w, panel_bytes, n_panel, x, ldx, n_row, n_k, add, SPEC_DTYPE_BF16);
}

static void product_f16(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                        size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)next;
    product(t, w, panel_bytes, n_panel, x, ldx, n_row, n_k, add, SPEC_DTYPE_F16);
}

/* The same, with a chain over each block of 32 inputs */
static void product_q8_0(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                         size_t ldx, int32_t n_row, int32_t n_k, bool add)
{
    (void)next;
    for (int32_t r = 0; r < n_row; r++) {
        const float *xr = (const float *)x + (size_t)r * ldx;
        for (int32_t p = 0; p < n_panel; p++) {
            const cpu_q8_panel *panel = (const void *)((const char *)w + (size_t)p * panel_bytes);
            float *out = t + r * CPU_TASK_OUT + p * CPU_PANEL;
            for (int32_t k0 = 0; k0 < n_k; k0 += SPEC_Q8_BLOCK, panel++) {
                float acc[CPU_PANEL] = { 0 };
                for (size_t k = 0; k < SPEC_Q8_BLOCK; k++)
                    for (size_t o = 0; o < CPU_PANEL; o++) acc[o] += xr[(size_t)k0 + k] * (float)panel->q[k][o];
                for (size_t o = 0; o < CPU_PANEL; o++)
                    out[o] = (add || k0 > 0 ? out[o] : 0.0f) + speci_from_f16(panel->scale[o]) * acc[o];
            }
        }
    }
}

/* --- blocks --- */

/* q - o of a group: out [32 inputs][32 lanes]; n_high is a constant where this is called. */
static inline __attribute__((always_inline)) void unpack_numbers(float (*restrict out)[CPU_PANEL],
                                                                 const uint32_t *restrict group, int n_high, int middle)
{
    for (int k = 0; k < SPEC_SMALL_BLOCK; k++) {
        const uint32_t *const low = group + k / 8 * CPU_PANEL, *const high = group + (4 + k * n_high / 32) * CPU_PANEL;
        const int at = cpu_low_shift(k), high_at = n_high ? cpu_high_shift(k, n_high) : 0, mask = (1 << n_high) - 1;
        for (size_t o = 0; o < CPU_PANEL; o++) {
            int q = (int)(low[o] >> at & 15u);
            if (n_high > 0) q |= ((int)(high[o] >> high_at) & mask) << 4;
            out[k][o] = (float)(q - middle);
        }
    }
}

static void numbers_of(float (*out)[CPU_PANEL], const spec_block_form *f, const uint32_t *group)
{
    if (f->n_high == 2) unpack_numbers(out, group, 2, f->middle);
    else if (f->n_high == 1) unpack_numbers(out, group, 1, f->middle);
    else unpack_numbers(out, group, 0, f->middle);
}

/* d f of part `part` of group g (Q6_K's have two), and m': of each lane */
static void scales_of(float scale[CPU_PANEL], float add[CPU_PANEL], const spec_block_form *f, const uint8_t *block, int g, int part)
{
    const uint16_t *const d = (const void *)block;
    const uint8_t *const by = block + 2 * CPU_PANEL * (1 + f->has_m), *const at = by + (f->n_f == 16 ? 2 * g + part : g) * CPU_PANEL;
    for (size_t o = 0; o < CPU_PANEL; o++) {
        scale[o] = speci_from_f16(d[o]) * (f->n_f == 0 ? 1.0f : f->n_f == 8 ? (float)at[o] : (float)(int8_t)at[o]);
        if (f->has_m)
            add[o] = f->n_f == 0 ? speci_from_f16(d[CPU_PANEL + o])
                                 : -(speci_from_f16(d[CPU_PANEL + o]) * (float)at[8 * CPU_PANEL + o]);
    }
}

/* out = out + scale sum of n inputs' products (+ add x_sum) */
static void add_part(float *restrict out, const float (*restrict q)[CPU_PANEL], const float *restrict scale,
                     const float *restrict add, const float *restrict x, int n, const float *x_sum)
{
    float acc[CPU_PANEL] = { 0 };
    for (int k = 0; k < n; k++)
        for (size_t o = 0; o < CPU_PANEL; o++) acc[o] += x[k] * q[k][o];
    for (size_t o = 0; o < CPU_PANEL; o++) out[o] += scale[o] * acc[o];
    for (size_t o = 0; o < CPU_PANEL && x_sum; o++) out[o] += add[o] * *x_sum;
}

static void product_blocks(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                           const cpu_blocks_x *x, int32_t n_row, int32_t n_k)
{
    const int n_part = form->n_f == 16 ? 2 : 1, n_in_part = SPEC_SMALL_BLOCK / n_part, n_in_block = form->n_value / SPEC_SMALL_BLOCK;
    const size_t n_group = (size_t)(n_k / SPEC_SMALL_BLOCK),
                 block_bytes = cpu_block_scales(form) + (size_t)n_in_block * cpu_block_group(form);
    float q[SPEC_SMALL_BLOCK][CPU_PANEL], scale[CPU_PANEL], add[CPU_PANEL];
    memset(t, 0, (size_t)n_row * CPU_TASK_OUT * sizeof *t);
    for (int32_t p = 0; p < n_panel; p++, t += CPU_PANEL, w += panel_bytes)
        for (size_t i = 0; i < n_group; i++) {
            const int g = (int)i % n_in_block;
            const uint8_t *const block = w + i / (size_t)n_in_block * block_bytes;
            numbers_of(q, form, (const void *)(block + cpu_block_scales(form) + (size_t)g * cpu_block_group(form)));
            for (int part = 0; part < n_part; part++) {
                scales_of(scale, add, form, block, g, part);
                for (int32_t r = 0; r < n_row; r++)
                    add_part(t + r * CPU_TASK_OUT, (const float (*)[CPU_PANEL])(q + part * n_in_part), scale, add,
                             (const float *)x->x + (size_t)r * x->ldx + i * SPEC_SMALL_BLOCK + (size_t)(part * n_in_part), n_in_part,
                             x->sum ? x->sum + (size_t)r * n_group + i : NULL);
            }
        }
}

static bool always(void)
{
    return true;
}

const cpu_isa speci_cpu_isa_portable = {
    .name = "portable",
    .supported = always,
    .product = { [SPEC_DTYPE_F32] = product_f32, [SPEC_DTYPE_BF16] = product_bf16, [SPEC_DTYPE_F16] = product_f16,
                 [SPEC_DTYPE_Q8_0] = product_q8_0 },
    .blocks = product_blocks,
    .loops = &speci_cpu_loops_portable,
};
