/* cpu_weight.c - weights: a copy of the file's matrix in panels (layout: cpu.h, cpu_format_*.c).
 *
 * The file's type is kept, except that a 16-bit compute type takes weights of another float type rounded to itself. */
#define _DEFAULT_SOURCE /* madvise */
#include <sys/mman.h>

#include "backends/cpu/cpu.h"

/* What the matrix is kept as, given what it comes in. */
static const cpu_format *kept_format(const spec_weight_desc *d, const cpu_format *given)
{
    return d->compute != SPEC_DTYPE_F32 && given->rounds ? speci_cpu_format_of(d->compute) : given;
}

size_t speci_cpu_weight_offset(const spec_weight *w, int32_t k0)
{
    return (size_t)(k0 / w->format->block) * w->format->panel_bytes;
}

/* Fills everything of w but its data. */
static spec_status layout(const spec_device *dev, spec_weight *w, const spec_weight_desc *d)
{
    const spec_host *h = dev->host;
    const cpu_format *given = speci_cpu_format_of(d->dtype);
    if (!given || !cpu_is_float(d->compute))
        return h->fail(SPEC_E_UNSUPPORTED, "weight: %s for activations of %s is not supported",
                       speci_dtype_name(d->dtype), speci_dtype_name(d->compute));
    if (d->n_out < 1 || d->n_in < 1 || d->n_out > INT32_MAX - 2 * CPU_PANEL || d->n_in > INT32_MAX - CPU_K_BLOCK)
        return h->fail(SPEC_E_INVALID, "weight: %d x %d is not a matrix", d->n_out, d->n_in);
    if (d->glu && d->n_out % 2 != 0)
        return h->fail(SPEC_E_INVALID, "weight: gate and up need an even number of rows, not %d", d->n_out);
    if (d->n_in % given->block != 0)
        return h->fail(SPEC_E_INVALID, "weight: %s needs rows of a multiple of %d, not %d", speci_dtype_name(d->dtype), given->block,
                       d->n_in);
    memset(w, 0, sizeof *w);
    w->n_out = d->n_out;
    w->n_in = d->n_in;
    w->glu = d->glu;
    w->format = kept_format(d, given);
    w->compute = d->compute;
    w->pairs = w->format->dtype == SPEC_DTYPE_BF16 && d->compute == SPEC_DTYPE_BF16 && dev->isa->bf16_pairs;
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

static const uint8_t *source_row(const spec_weight_desc *d, int32_t row)
{
    const cpu_format *f = speci_cpu_format_of(d->dtype);
    const size_t bytes = (size_t)(d->n_in / f->block) * f->source_bytes;
    for (int32_t i = 0; i < d->n_part; row -= d->parts[i++].n_row)
        if (row < d->parts[i].n_row) return (const uint8_t *)d->parts[i].data + (size_t)row * bytes;
    return NULL;
}

typedef struct pack_job {
    spec_weight *w;
    const spec_weight_desc *desc;
} pack_job;

static void pack_panel(void *arg, int32_t p)
{
    const pack_job *job = arg;
    const spec_weight *w = job->w;
    const uint8_t *src[CPU_PANEL];
    for (int32_t lane = 0; lane < CPU_PANEL; lane++) {
        const int32_t row = panel_row(w, p, lane);
        src[lane] = row < 0 ? NULL : source_row(job->desc, row);
    }
    w->format->pack(w, w->data + (size_t)p * w->panel_bytes, src, job->desc->dtype);
}

/* A step reads each weight from end to end: by large pages fewer addresses are looked up. Memory that was not touched yet; where there
 * are none, small pages do. */
static void ask_for_large_pages(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)2 << 20, first = ((uintptr_t)p + page - 1) / page * page, end = ((uintptr_t)p + bytes) / page * page;
    if (first < end) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
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
    ask_for_large_pages(w->data, (size_t)w->n_panel * w->panel_bytes);
    pack_job job = { w, desc };
    speci_cpu_parallel(dev->pool, w->n_panel, pack_panel, &job);
    *out = w;
    return SPEC_OK;
}

void speci_cpu_weight_close(spec_device *dev, spec_weight *w)
{
    if (!w) return;
    dev->host->free(dev->host, w->data);
    dev->host->free(dev->host, w);
}

void speci_cpu_weight_row(const spec_weight *w, int32_t row, float *out)
{
    w->format->row(w, w->data + (size_t)(row / CPU_PANEL) * w->panel_bytes, (size_t)(row % CPU_PANEL), out);
}

void speci_cpu_weight_panel(const spec_weight *w, const cpu_loops *loops, int32_t p, int32_t k0, int32_t n_k,
                            float *out, size_t ld)
{
    w->format->unpack(w, loops, w->data + (size_t)p * w->panel_bytes, k0, n_k, out, ld);
}
