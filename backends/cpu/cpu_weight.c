/* cpu_weight.c - weights: a copy of the file's matrix in panels (layout: cpu.h).
 *
 * The file's type is kept, except that a 16-bit compute type takes weights of another float type rounded to itself. */
#include "backends/cpu/cpu.h"
#include "core/core_half.h"

static spec_dtype stored_type(const spec_weight_desc *d)
{
    return d->compute != SPEC_DTYPE_F32 && d->dtype != SPEC_DTYPE_Q8_0 ? d->compute : d->dtype;
}

size_t speci_cpu_weight_offset(const spec_weight *w, int32_t k0)
{
    if (w->dtype == SPEC_DTYPE_Q8_0) return (size_t)k0 / SPEC_Q8_BLOCK * sizeof(cpu_q8_panel);
    return (size_t)k0 * CPU_PANEL * cpu_dtype_size(w->dtype);
}

/* Fills everything of w but its data. */
static spec_status layout(const spec_device *dev, spec_weight *w, const spec_weight_desc *d)
{
    const spec_host *h = dev->host;
    const bool q8 = d->dtype == SPEC_DTYPE_Q8_0;
    if ((!q8 && !cpu_is_float(d->dtype)) || !cpu_is_float(d->compute))
        return h->fail(SPEC_E_UNSUPPORTED, "weight: %s for activations of %s is not supported",
                       cpu_dtype_name(d->dtype), cpu_dtype_name(d->compute));
    if (d->n_out < 1 || d->n_in < 1 || d->n_out > INT32_MAX - 2 * CPU_PANEL || d->n_in > INT32_MAX - CPU_K_BLOCK)
        return h->fail(SPEC_E_INVALID, "weight: %d x %d is not a matrix", d->n_out, d->n_in);
    if (d->glu && d->n_out % 2 != 0)
        return h->fail(SPEC_E_INVALID, "weight: gate and up need an even number of rows, not %d", d->n_out);
    if (q8 && d->n_in % SPEC_Q8_BLOCK != 0)
        return h->fail(SPEC_E_INVALID, "weight: q8_0 needs rows of a multiple of %d, not %d", SPEC_Q8_BLOCK, d->n_in);
    memset(w, 0, sizeof *w);
    w->n_out = d->n_out;
    w->n_in = d->n_in;
    w->glu = d->glu;
    w->dtype = stored_type(d);
    w->compute = d->compute;
    w->pairs = w->dtype == SPEC_DTYPE_BF16 && d->compute == SPEC_DTYPE_BF16 && dev->isa->bf16_pairs;
    w->n_k = w->pairs ? d->n_in + d->n_in % 2 : d->n_in;
    w->n_panel = d->glu ? 2 * cpu_parts(d->n_out / 2, CPU_PANEL) : cpu_parts(d->n_out, CPU_PANEL);
    w->panel_bytes = speci_cpu_weight_offset(w, w->n_k);
    if ((size_t)w->n_panel > (SIZE_MAX / 2) / w->panel_bytes)
        return h->fail(SPEC_E_NOMEM, "weight: %d x %d is too large", d->n_out, d->n_in);
    return SPEC_OK;
}

size_t speci_cpu_weight_bytes(spec_device *dev, const spec_weight_desc *desc)
{
    spec_weight w;
    return layout(dev, &w, desc) == SPEC_OK ? (size_t)w.n_panel * w.panel_bytes : 0;
}

/* The matrix row that lane `lane` of panel p holds, or -1 for padding. */
static int32_t panel_row(const spec_weight *w, int32_t p, int32_t lane)
{
    if (!w->glu) {
        int32_t row = p * CPU_PANEL + lane;
        return row < w->n_out ? row : -1;
    }
    int32_t half = w->n_out / 2, row = p / 2 * CPU_PANEL + lane;
    return row < half ? row + (p % 2) * half : -1;
}

/* Index of (k, lane) within a panel. */
static inline size_t panel_index(const spec_weight *w, size_t k, size_t lane)
{
    return w->pairs ? k / 2 * (2 * CPU_PANEL) + lane * 2 + k % 2 : k * CPU_PANEL + lane;
}

static const uint8_t *source_row(const spec_weight_desc *d, int32_t row)
{
    const size_t n = (size_t)d->n_in;
    const size_t bytes = d->dtype == SPEC_DTYPE_Q8_0 ? n / SPEC_Q8_BLOCK * sizeof(spec_q8_block)
                                                     : n * cpu_dtype_size(d->dtype);
    for (int32_t i = 0; i < d->n_part; row -= d->parts[i++].n_row)
        if (row < d->parts[i].n_row) return (const uint8_t *)d->parts[i].data + (size_t)row * bytes;
    return NULL;
}

static float source_value(const uint8_t *p, spec_dtype t)
{
    uint16_t h;
    float f;
    if (t == SPEC_DTYPE_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    return t == SPEC_DTYPE_BF16 ? speci_from_bf16(h) : speci_from_f16(h);
}

static void store_value(uint8_t *p, spec_dtype t, float f)
{
    uint16_t h = t == SPEC_DTYPE_BF16 ? speci_to_bf16(f) : speci_to_f16(f);
    if (t == SPEC_DTYPE_F32) memcpy(p, &f, sizeof f);
    else memcpy(p, &h, sizeof h);
}

typedef struct pack_job {
    spec_weight *w;
    const spec_weight_desc *desc;
} pack_job;

/* Inputs [k0, k1) of one lane; src NULL = zeros. */
static void pack_lane(const pack_job *job, uint8_t *panel, size_t lane, const uint8_t *src, size_t k0, size_t k1)
{
    const spec_weight *w = job->w;
    size_t from = cpu_dtype_size(job->desc->dtype), to = cpu_dtype_size(w->dtype);
    bool same = job->desc->dtype == w->dtype;
    for (size_t k = k0; k < k1; k++) {
        uint8_t *dst = panel + panel_index(w, k, lane) * to;
        if (!src || k >= (size_t)w->n_in) memset(dst, 0, to);
        else if (same && to == 2) memcpy(dst, src + k * 2, 2);
        else if (same) memcpy(dst, src + k * 4, 4);
        else store_value(dst, w->dtype, source_value(src + k * from, job->desc->dtype));
    }
}

/* A lane of all blocks of a panel; src NULL = zeros, which the panel is made of. */
static void pack_lane_q8(cpu_q8_panel *panel, size_t lane, const uint8_t *src, size_t n_block)
{
    spec_q8_block block;
    for (size_t i = 0; src && i < n_block; i++) {
        memcpy(&block, src + i * sizeof block, sizeof block);
        panel[i].scale[lane] = block.scale;
        for (size_t k = 0; k < SPEC_Q8_BLOCK; k++) panel[i].q[k][lane] = block.q[k];
    }
}

static void pack_panel_q8(void *arg, int32_t p)
{
    const pack_job *job = arg;
    const spec_weight *w = job->w;
    for (int32_t lane = 0; lane < CPU_PANEL; lane++) {
        const int32_t row = panel_row(w, p, lane);
        pack_lane_q8((void *)(w->data + (size_t)p * w->panel_bytes), (size_t)lane,
                     row < 0 ? NULL : source_row(job->desc, row), (size_t)w->n_k / SPEC_Q8_BLOCK);
    }
}

static void pack_panel(void *arg, int32_t p)
{
    const pack_job *job = arg;
    const spec_weight *w = job->w;
    uint8_t *panel = w->data + (size_t)p * w->panel_bytes;
    for (size_t k = 0; k < (size_t)w->n_k; k += 64) { /* a piece that stays in cache */
        size_t end = k + 64 < (size_t)w->n_k ? k + 64 : (size_t)w->n_k;
        for (int32_t lane = 0; lane < CPU_PANEL; lane++) {
            int32_t row = panel_row(w, p, lane);
            pack_lane(job, panel, (size_t)lane, row < 0 ? NULL : source_row(job->desc, row), k, end);
        }
    }
}

spec_status speci_cpu_weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc)
{
    const spec_host *h = dev->host;
    spec_weight layout_of;
    int64_t rows = 0;
    CPU_TRY(layout(dev, &layout_of, desc));
    for (int32_t i = 0; i < desc->n_part; i++) rows += desc->parts[i].n_row;
    if (rows != desc->n_out)
        return h->fail(SPEC_E_INVALID, "weight: the parts have %lld rows, expected %d", (long long)rows, desc->n_out);
    spec_weight *w = h->alloc(h, 1, sizeof *w);
    if (!w) return SPEC_E_NOMEM;
    *w = layout_of;
    w->data = h->alloc(h, (size_t)w->n_panel, w->panel_bytes);
    if (!w->data) {
        h->free(h, w);
        return SPEC_E_NOMEM;
    }
    pack_job job = { w, desc };
    speci_cpu_parallel(dev->pool, w->n_panel, w->dtype == SPEC_DTYPE_Q8_0 ? pack_panel_q8 : pack_panel, &job);
    *out = w;
    return SPEC_OK;
}

void speci_cpu_weight_close(spec_device *dev, spec_weight *w)
{
    if (!w) return;
    dev->host->free(dev->host, w->data);
    dev->host->free(dev->host, w);
}

/* Value (k, lane) of a panel */
static inline float panel_value(const spec_weight *w, const uint8_t *panel, size_t k, size_t lane)
{
    if (w->dtype != SPEC_DTYPE_Q8_0)
        return source_value(panel + panel_index(w, k, lane) * cpu_dtype_size(w->dtype), w->dtype);
    const cpu_q8_panel *block = (const cpu_q8_panel *)(const void *)panel + k / SPEC_Q8_BLOCK;
    return speci_from_f16(block->scale[lane]) * (float)block->q[k % SPEC_Q8_BLOCK][lane];
}

void speci_cpu_weight_row(const spec_weight *w, int32_t row, float *out)
{
    int32_t half = w->n_out / 2, panel, lane;
    if (w->glu) {
        int32_t r = row % half;
        panel = r / CPU_PANEL * 2 + row / half;
        lane = r % CPU_PANEL;
    } else {
        panel = row / CPU_PANEL;
        lane = row % CPU_PANEL;
    }
    const uint8_t *data = w->data + (size_t)panel * w->panel_bytes;
    for (size_t k = 0; k < (size_t)w->n_in; k++) out[k] = panel_value(w, data, k, (size_t)lane);
}

/* Inputs [k0, k0 + n_k), both multiples of SPEC_Q8_BLOCK, of a panel in Q8_0: out [n_k][ld]. */
static void q8_panel(const cpu_q8_panel *block, const cpu_loops *loops, int32_t k0, int32_t n_k, float *out, size_t ld)
{
    float scale[CPU_PANEL];
    block += k0 / SPEC_Q8_BLOCK;
    for (int32_t i = 0; i < n_k; i += SPEC_Q8_BLOCK, block++) {
        loops->load(scale, block->scale, SPEC_DTYPE_F16, CPU_PANEL);
        for (size_t k = 0; k < SPEC_Q8_BLOCK; k++, out += ld)
            for (size_t j = 0; j < CPU_PANEL; j++) out[j] = scale[j] * (float)block->q[k][j];
    }
}

void speci_cpu_weight_panel(const spec_weight *w, const cpu_loops *loops, int32_t p, int32_t k0, int32_t n_k,
                            float *out, size_t ld)
{
    const uint8_t *panel = w->data + (size_t)p * w->panel_bytes;
    size_t size = cpu_dtype_size(w->dtype);
    float pair[2 * CPU_PANEL];
    if (w->dtype == SPEC_DTYPE_Q8_0) {
        q8_panel((const void *)panel, loops, k0, n_k, out, ld);
        return;
    }
    for (int32_t i = 0; i < n_k; i++) {
        float *dst = out + (size_t)i * ld;
        const uint8_t *src = panel + panel_index(w, (size_t)(k0 + i), 0) * size;
        if (!w->pairs) {
            loops->load(dst, src, w->dtype, CPU_PANEL);
            continue;
        }
        loops->load(pair, src - (size_t)((k0 + i) % 2) * size, w->dtype, 2 * CPU_PANEL);
        for (size_t j = 0; j < CPU_PANEL; j++) dst[j] = pair[2 * j + (size_t)((k0 + i) % 2)];
    }
}
