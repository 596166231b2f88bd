/* test_device.c - the helpers of test.h. */
#include "models/families/family_build.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>

enum { GUARD = 256, GUARD_BYTE = 0x5a };

/* ------------------------------------------------------------------------------------- devices --- */

void test_ok(spec_status status, const char *what)
{
    if (status != SPEC_OK) fail_msg("%s: %s: %s", what, spec_status_name(status), spec_last_error());
}

int32_t test_thread_count(void)
{
    const char *n = getenv("SPEC_TEST_THREADS");
    return n ? (int32_t)strtol(n, NULL, 10) : 0;
}

static spec_backend_params params_of(int32_t n_threads)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = n_threads > 0 ? n_threads : test_thread_count();
    p.plugin_dir = getenv("SPEC_TEST_PLUGIN_DIR");
    return p;
}

static void use(test_device *d)
{
    d->ops = d->be->ops;
    d->dev = d->be->dev;
    d->name = spec_backend_name(d->be);
    test_ok(d->ops->queue_open(d->dev, &d->io, NULL, 0, 1), "queue_open");
}

bool test_open(test_device *d, const char *name, int32_t n_threads)
{
    spec_backend_params p = params_of(n_threads);
    memset(d, 0, sizeof *d);
    spec_status status = spec_backend_open(&d->be, name, &p);
    if (status == SPEC_E_DEVICE) {
        printf("SKIP %s: %s\n", name, spec_last_error());
        return false;
    }
    test_ok(status, name);
    use(d);
    return true;
}

void test_open_ops(test_device *d, const spec_backend_ops *ops)
{
    spec_backend_params p = params_of(0);
    memset(d, 0, sizeof *d);
    test_ok(spec_backend_open_ops(&d->be, ops, NULL, &p), "spec_backend_open_ops");
    use(d);
}

void test_close(test_device *d)
{
    d->ops->queue_close(d->io);
    spec_backend_close(d->be);
}

void test_each_device(void (*each)(test_device *d))
{
    const char *list = getenv("SPEC_TEST_BACKENDS");
    char names[512], *rest = names;
    int32_t opened = 0;
    snprintf(names, sizeof names, "%s", list && list[0] ? list : "cpu:portable,cpu:avx2,cpu:avx512,cpu,cuda");
    for (char *name; rest && (name = rest)[0];) {
        rest = strchr(name, ',');
        if (rest) *rest++ = '\0';
        test_device d;
        if (!test_open(&d, name, 0)) continue;
        each(&d);
        test_close(&d);
        opened++;
    }
    if (opened == 0) printf("SKIPPED: no backend of \"%s\" can be opened\n", list ? list : "");
}

bool test_can(const test_device *d, const char *name, const spec_op *op)
{
    spec_status status = speci_op_supports(d->ops, d->dev, op);
    if (status == SPEC_E_UNSUPPORTED) {
        printf("SKIP %s %s: %s\n", d->name, name, spec_last_error());
        return false;
    }
    test_ok(status, name);
    return true;
}

spec_queue *test_queue(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step,
                       int32_t n_node, int32_t n_vocab)
{
    spec_plan plan = { ops, n_op, step->phase, step->n_row_run, TEST_SEQS, n_node, TEST_PAGES * SPEC_PAGE };
    spec_queue *q = NULL;
    test_ok(d->ops->queue_open(d->dev, &q, &plan, 1, n_vocab), "queue_open");
    return q;
}

spec_queue *test_row_queue(const test_device *d, int32_t n_vocab)
{
    static const int32_t root[] = { -1 };
    test_seq s = { .n_node = 1, .parent = root };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    spec_queue *q = test_queue(d, NULL, 0, step, TEST_NODES, n_vocab);
    free(step);
    return q;
}

void test_run(const test_device *d, const spec_op *op, const spec_step_block *step, int32_t n_node)
{
    spec_queue *q = test_queue(d, op, 1, step, n_node, 1);
    test_ok(d->ops->step_bind(q, step), "step_bind");
    test_ok(speci_op_run(d->ops, q, op, step), "operation");
    test_ok(d->ops->sync(q), "sync");
    d->ops->queue_close(q);
}

/* ------------------------------------------------------------------------------------- numbers --- */

/* SplitMix64 */
static uint64_t next(test_random *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double test_uniform(test_random *r)
{
    return (double)(next(r) >> 40) / 16777216.0;
}

double test_signed(test_random *r)
{
    return 2.0 * test_uniform(r) - 1.0;
}

int32_t test_below(test_random *r, int32_t n)
{
    return (int32_t)(next(r) % (uint64_t)n);
}

double *test_values(test_random *r, size_t n, double scale)
{
    double *v = calloc(n + 1, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = scale * test_signed(r);
    return v;
}

size_t test_type_size(spec_dtype dtype)
{
    return dtype == SPEC_DTYPE_F32 || dtype == SPEC_DTYPE_I32 ? 4 : 2;
}

/* Doubles are taken apart by their bits: sign, 11 bits of exponent (1023 for [1, 2)), 52 behind the point. */
static uint64_t double_bits(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double test_round(double v, spec_dtype dtype)
{
    const int behind = dtype == SPEC_DTYPE_F32 ? 23 : dtype == SPEC_DTYPE_BF16 ? 7 : 10; /* bits behind the point */
    const int least = dtype == SPEC_DTYPE_F16 ? -14 : -126; /* exponent of the smallest normal value */
    if (v == 0.0 || isnan(v) || isinf(v)) return v;
    int e = (int)(double_bits(v) >> 52 & 2047) - 1023;
    if (e < least) e = least;
    /* A double of 1.5 * 2^(e - behind + 52) ends where v has to: the sum is rounded there, to nearest even. */
    const double c = double_of((uint64_t)(e - behind + 52 + 1023) << 52 | UINT64_C(1) << 51);
    v = copysign(v + c - c, v);
    return dtype == SPEC_DTYPE_F16 && fabs(v) > 65504.0 ? copysign(INFINITY, v) : v;
}

void test_round_all(double *v, size_t n, spec_dtype dtype)
{
    for (size_t i = 0; i < n; i++) v[i] = test_round(v[i], dtype);
}

/* v is a value of f16. */
static uint16_t f16_bits(double v)
{
    const uint16_t sign = signbit(v) ? 0x8000u : 0;
    if (isnan(v)) return 0x7e00u;
    if (isinf(v)) return (uint16_t)(sign | 0x7c00u);
    if (fabs(v) < 0x1p-14) return (uint16_t)(sign | (uint16_t)(fabs(v) * 0x1p24));
    return (uint16_t)(sign | (uint16_t)((double_bits(fabs(v)) >> 42) - ((uint64_t)(1023 - 15) << 10)));
}

static double f16_value(uint16_t h)
{
    const uint64_t e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? (double)m * 0x1p-24 : double_of((e + 1023 - 15) << 52 | m << 42);
    return h & 0x8000u ? -v : v;
}

static void encode(void *out, double v, spec_dtype dtype)
{
    v = test_round(v, dtype);
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t half = dtype == SPEC_DTYPE_BF16 ? (uint16_t)(bits >> 16) : f16_bits(v);
    if (dtype == SPEC_DTYPE_F32) memcpy(out, &f, 4);
    else memcpy(out, &half, 2);
}

static double decode(const void *in, spec_dtype dtype)
{
    uint16_t h;
    uint32_t bits;
    float f;
    if (dtype == SPEC_DTYPE_F32) {
        memcpy(&f, in, 4);
        return (double)f;
    }
    memcpy(&h, in, 2);
    if (dtype == SPEC_DTYPE_F16) return f16_value(h);
    bits = (uint32_t)h << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

double test_tolerance(spec_dtype dtype)
{
    return dtype == SPEC_DTYPE_F32 ? 1e-5 : dtype == SPEC_DTYPE_BF16 ? 2e-2 : 2e-3;
}

static double largest(const double *v, size_t n)
{
    double m = 0.0;
    for (size_t i = 0; i < n; i++)
        if (fabs(v[i]) > m) m = fabs(v[i]);
    return m;
}

void test_compare(const test_device *d, const char *name, const char *output, const double *got, const double *want,
                  int32_t rows, int32_t cols, double tolerance)
{
    double all = largest(want, (size_t)rows * (size_t)cols);
    for (int32_t r = 0; r < rows; r++) {
        const double *w = want + (size_t)r * (size_t)cols, *g = got + (size_t)r * (size_t)cols;
        double scale = fmax(fmax(largest(w, (size_t)cols), 0.01 * all), 1e-30);
        for (int32_t c = 0; c < cols; c++) {
            if (isnan(w[c]) ? isnan(g[c]) : fabs(g[c] - w[c]) <= tolerance * scale) continue;
            fail_msg("%s %s: %s(%d, %d) is %.9g, expected %.9g: off by %.3g of the row's largest, allowed %.3g", d->name,
                     name, output, r, c, g[c], w[c], fabs(g[c] - w[c]) / scale, tolerance);
        }
    }
}

/* ------------------------------------------------------------------------------------- buffers --- */

static void upload(const test_device *d, void *dst, const void *src, size_t bytes)
{
    test_ok(d->ops->upload(d->io, dst, src, bytes), "upload");
    test_ok(d->ops->sync(d->io), "sync");
}

test_buffer test_buffer_new(const test_device *d, size_t n, spec_dtype dtype)
{
    test_buffer b = { .d = d, .n = n, .dtype = dtype };
    size_t bytes = n * test_type_size(dtype), total = bytes + 2 * GUARD;
    uint8_t *host = malloc(total);
    assert_non_null(host);
    memset(host, GUARD_BYTE, total);
    memset(host + GUARD, 0xff, bytes); /* NaN in every type */
    test_ok(d->ops->alloc(d->dev, &b.base, total), "alloc");
    b.data = (uint8_t *)b.base + GUARD;
    upload(d, b.base, host, total);
    free(host);
    return b;
}

void test_write(test_buffer *b, const double *v)
{
    size_t size = test_type_size(b->dtype);
    uint8_t *host = malloc(b->n * size + 1);
    assert_non_null(host);
    for (size_t i = 0; i < b->n; i++) encode(host + i * size, v[i], b->dtype);
    upload(b->d, b->data, host, b->n * size);
    free(host);
}

test_buffer test_buffer_from(const test_device *d, const double *v, size_t n, spec_dtype dtype)
{
    test_buffer b = test_buffer_new(d, n, dtype);
    test_write(&b, v);
    return b;
}

void *test_read_raw(const test_buffer *b)
{
    size_t bytes = b->n * test_type_size(b->dtype), total = bytes + 2 * GUARD;
    uint8_t *host = malloc(total);
    assert_non_null(host);
    test_ok(b->d->ops->download(b->d->io, host, b->base, total), "download");
    test_ok(b->d->ops->sync(b->d->io), "sync");
    for (size_t i = 0; i < GUARD; i++)
        if (host[i] != GUARD_BYTE || host[GUARD + bytes + i] != GUARD_BYTE)
            fail_msg("%s: a guard of a buffer of %zu elements was overwritten", b->d->name, b->n);
    memmove(host, host + GUARD, bytes);
    return host;
}

double *test_read(const test_buffer *b)
{
    uint8_t *host = test_read_raw(b);
    double *v = calloc(b->n + 1, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < b->n; i++) v[i] = decode(host + i * test_type_size(b->dtype), b->dtype);
    free(host);
    return v;
}

void test_buffer_free(test_buffer *b)
{
    if (b->base) b->d->ops->free(b->d->dev, b->base, b->n * test_type_size(b->dtype) + 2 * GUARD);
    b->base = b->data = NULL;
}

test_buffer test_floats(const test_device *d, const double *v, size_t n)
{
    test_buffer none = { .d = d };
    return v ? test_buffer_from(d, v, n, SPEC_DTYPE_F32) : none;
}

spec_view test_view(const test_buffer *b, int32_t ld)
{
    spec_view v = { b->data, b->dtype, ld };
    return v;
}

/* --- blocks --- */

static const gguf_type *blocks_of(spec_dtype dtype)
{
    const gguf_type *const type = speci_gguf_type_of(dtype);
    return type && type->unpack ? type : NULL;
}

bool test_keeps(const test_device *d, const char *name, spec_dtype dtype)
{
    if (!blocks_of(dtype) || d->ops->weight_blocks >> dtype & 1) return true;
    printf("SKIP %s %s: it keeps no %s\n", d->name, name, spec_dtype_name(dtype));
    return false;
}

/* Values [n] in blocks, which become what the blocks hold. */
static void encode_blocks(void *out, double *v, size_t n, spec_dtype dtype)
{
    const gguf_type *type = blocks_of(dtype);
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)v[i];
    assert_int_equal(speci_pack(type->packing, out, x, n / type->n_value), n / type->n_value);
    type->unpack(x, out, n / type->n_value);
    for (size_t i = 0; i < n; i++) v[i] = (double)x[i];
    free(x);
}

spec_weight *test_weight(const test_device *d, double *v, int32_t n_out, int32_t n_in, spec_dtype dtype,
                         spec_dtype compute, int32_t glu, int32_t parts)
{
    const gguf_type *blocks = blocks_of(dtype);
    size_t n = (size_t)n_out * (size_t)n_in, size = blocks ? 0 : test_type_size(dtype);
    size_t row = blocks ? (size_t)n_in / blocks->n_value * blocks->bytes : (size_t)n_in * size;
    uint8_t *host = malloc((size_t)n_out * row + 1), *odd = host + 1; /* parts may lie anywhere */
    spec_weight_part part[8];
    spec_weight *w = NULL;
    assert_non_null(host);
    assert_true(parts <= 8);
    for (size_t i = 0; !blocks && i < n; i++) encode(odd + i * size, v[i], dtype);
    if (blocks) {
        encode_blocks(host, v, n, dtype);
        memmove(odd, host, (size_t)n_out * row);
    }
    for (int32_t i = 0; i < parts; i++) {
        int32_t from = n_out * i / parts, to = n_out * (i + 1) / parts;
        part[i].data = odd + (size_t)from * row;
        part[i].n_row = to - from;
    }
    spec_weight_desc desc = { n_out, n_in, dtype, compute, glu, 1, part, parts };
    test_ok(d->ops->weight_open(d->dev, &w, &desc), "weight_open");
    assert_true(d->ops->weight_bytes(d->dev, &desc) >= (blocks ? (size_t)n_out * row : n * 2));
    free(host);
    if (blocks) return w; /* exact */
    test_round_all(v, n, dtype);
    if (compute != SPEC_DTYPE_F32) test_round_all(v, n, compute);
    return w;
}

/* --------------------------------------------------------------------------------------- steps --- */

int32_t test_page(int32_t seq, int32_t i)
{
    return (TEST_PAGES - 1 - i) * TEST_SEQS + seq;
}

int32_t test_path(const test_seq *s, int32_t node, int32_t *path)
{
    int32_t n = 0, back[TEST_NODES * 8];
    for (int32_t i = node; i >= 0; i = s->parent[i]) back[n++] = i;
    for (int32_t i = 0; i < n; i++) path[i] = back[n - 1 - i];
    return n;
}

static int32_t depth_of(const test_seq *s, int32_t node)
{
    int32_t depth = 0;
    while ((node = s->parent[node]) >= 0) depth++;
    return depth;
}

/* Places the parts after each other, each at a multiple of 16 bytes. */
static int32_t place(int32_t *end, size_t bytes)
{
    int32_t at = (*end + 7) / 8 * 8;
    *end = at + (int32_t)bytes;
    return at;
}

static void fill_seq(spec_step_block *b, spec_step_seq *out, const test_seq *s, int32_t index, const int32_t *first)
{
    int32_t row = first[0], node = first[1], path = first[2];
    *out = (spec_step_seq){ .slot = s->slot, .parity = s->parity, .n_past = s->n_past, .n_replay = s->n_replay,
                            .first_path = path, .n_fed = s->n_fed, .n_row = s->n_node - s->n_fed, .first_row = row,
                            .first_node = node, .first_page = index * TEST_PAGES,
                            .n_given = s->n_given ? s->n_given : s->n_node, .n_advance = s->n_advance,
                            .n_recent = s->n_recent };
    spec_step_node *nodes = (spec_step_node *)((char *)b + b->off_node) + node;
    int32_t *rows = (int32_t *)((char *)b + b->off_row_seq) + row, *paths = (int32_t *)((char *)b + b->off_path) + path;
    int32_t *pages = (int32_t *)((char *)b + b->off_page) + index * TEST_PAGES;
    for (int32_t i = 0; i < s->n_node; i++) {
        int32_t depth = depth_of(s, i);
        nodes[i] = (spec_step_node){ s->token ? s->token[i] : 0, s->parent[i], depth, 0 };
        if (s->n_past + depth + 1 > b->n_kv) b->n_kv = s->n_past + depth + 1;
    }
    for (int32_t i = 0; i < out->n_row; i++) rows[i] = index;
    for (int32_t i = 0; i < s->n_replay; i++) paths[i] = s->path[i];
    for (int32_t i = 0; i < TEST_PAGES; i++) pages[i] = test_page(s->slot, i);
    spec_traversal_node *visits = (spec_traversal_node *)((char *)b + b->off_traversal) + row;
    speci_traversal_schedule(nodes, s->n_fed, out->n_given, out->n_row, visits);
}

spec_step_block *test_step(int32_t phase, const test_seq *seqs, int32_t n_seq, int32_t n_run)
{
    size_t nodes = 0, rows = 0, paths = 0;
    for (int32_t i = 0; i < n_seq; i++) {
        nodes += (size_t)seqs[i].n_node;
        rows += (size_t)(seqs[i].n_node - seqs[i].n_fed);
        paths += (size_t)seqs[i].n_replay;
    }
    spec_step_block h = { .phase = phase, .n_seq = n_seq, .n_row = (int32_t)rows };
    int32_t end = (int32_t)sizeof h, first[3] = { 0, 0, 0 };
    h.n_row_run = n_run > 0 ? n_run : h.n_row;
    h.off_seq = place(&end, (size_t)n_seq * sizeof(spec_step_seq));
    h.off_node = place(&end, nodes * sizeof(spec_step_node));
    h.off_row_seq = place(&end, (rows + 1) * sizeof(int32_t));
    h.off_path = place(&end, (paths + 1) * sizeof(int32_t));
    h.off_traversal = place(&end, (rows + 1) * sizeof(spec_traversal_node));
    h.off_page = place(&end, (size_t)n_seq * TEST_PAGES * sizeof(int32_t));
    h.bytes = (end + 15) / 16 * 16;
    spec_step_block *b = calloc(1, (size_t)h.bytes);
    assert_non_null(b);
    *b = h;
    spec_step_seq *out = (spec_step_seq *)((char *)b + h.off_seq);
    for (int32_t i = 0; i < n_seq; i++) {
        fill_seq(b, out + i, &seqs[i], i, first);
        first[0] += seqs[i].n_node - seqs[i].n_fed;
        first[1] += seqs[i].n_node;
        first[2] += seqs[i].n_replay;
    }
    return b;
}
