/* bench.c - what a step costs on this device, every figure beside its bound. One JSON object a line on stdout.
 *
 *   bench -m MODEL [-b BACKEND] [-c N_CTX] [--dtype T] [-r REPEATS] [--plugin-dir DIR]
 *
 *   load      bytes, seconds, GB/s of spec_model_open (the file's pages cached by a first reading)
 *   memory    spec_session_predict against what was taken: by the device's word, or resident in host memory
 *   bandwidth of a copy on the device: bytes read and written per second
 *   step      one pass of n nodes + verification, ms, beside weights read once at that bandwidth
 *   rollback  the plain step after accepting 0, 4 and 7 of 8 drafts, minus the plain step after a plain step
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algo.h"
#include "core/core.h"

enum { N_DRAFT = 8, N_NODE = 64 };

typedef struct bench {
    const char *model_path, *backend_name, *plugin_dir;
    int32_t n_ctx, repeats;
    spec_dtype dtype;
    spec_backend *be;
    spec_model *model;
    spec_session *s;
    int32_t seq;
    double bandwidth; /* bytes per second, reading + writing */
} bench;

static void need(spec_status status)
{
    if (status == SPEC_OK) return;
    fprintf(stderr, "bench: %s\n", spec_last_error());
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int32_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* --- load and memory --- */

/* Anonymous resident memory of this process: mapped files are not in it. */
static uint64_t resident_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

/* Bytes taken on the device: what it says is missing, or for the host's own memory what is resident. */
static uint64_t taken_bytes(const bench *b)
{
    spec_device_info info;
    need(b->be->ops->info(b->be->dev, &info));
    return info.host_visible ? resident_bytes() : info.bytes_total - info.bytes_free;
}

static void load(bench *b)
{
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.dtype = b->dtype;
    need(spec_model_open(&b->model, b->be, b->model_path, &p)); /* reads the file into the page cache */
    spec_model_close(b->model);
    const double start = speci_now_ms();
    need(spec_model_open(&b->model, b->be, b->model_path, &p));
    const double seconds = (speci_now_ms() - start) / 1e3;
    const double bytes = (double)b->model->bytes_weights;
    printf("{\"what\":\"load\",\"bytes\":%.0f,\"seconds\":%.3f,\"GB_per_s\":%.2f}\n", bytes, seconds,
           bytes / seconds / 1e9);
}

static void memory(bench *b, uint64_t before)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_memory m = { .struct_size = sizeof m };
    p.n_ctx = b->n_ctx;
    p.n_node = N_NODE;
    need(spec_session_predict(&m, b->model, NULL, &p));
    need(spec_session_open(&b->s, b->model, NULL, &p));
    const double predicted = (double)(m.bytes_model + m.bytes_state + m.bytes_kv + m.bytes_work);
    const double taken = (double)taken_bytes(b) - (double)before;
    printf("{\"what\":\"memory\",\"model\":%llu,\"state\":%llu,\"kv\":%llu,\"work\":%llu,\"predicted\":%.0f,"
           "\"taken\":%.0f,\"ratio\":%.4f}\n",
           (unsigned long long)m.bytes_model, (unsigned long long)m.bytes_state, (unsigned long long)m.bytes_kv,
           (unsigned long long)m.bytes_work, predicted, taken, predicted > 0 ? taken / predicted : 0);
}

static void bandwidth(bench *b)
{
    const size_t bytes = (size_t)1 << 30;
    void *from, *to;
    double t[9];
    const spec_backend_ops *ops = b->be->ops;
    need(ops->alloc(b->be->dev, &from, bytes));
    need(ops->alloc(b->be->dev, &to, bytes));
    need(ops->zero(b->s->queue, from, bytes));
    for (int i = 0; i < 9; i++) {
        need(ops->sync(b->s->queue));
        const double start = speci_now_ms();
        need(ops->copy(b->s->queue, to, from, bytes));
        need(ops->sync(b->s->queue));
        t[i] = speci_now_ms() - start;
    }
    b->bandwidth = 2.0 * (double)bytes / (median(t, 9) / 1e3);
    printf("{\"what\":\"bandwidth\",\"TB_per_s\":%.3f}\n", b->bandwidth / 1e12);
    ops->free(b->be->dev, from, bytes);
    ops->free(b->be->dev, to, bytes);
}

/* --- steps --- */

/* Scores a chain of n nodes and looks at the result; ms. */
static double score_chain(bench *b, int32_t n)
{
    int32_t token[N_NODE], parent[N_NODE], path[N_NODE], n_path, next;
    const int32_t *ids;
    size_t n_ids;
    need(spec_sequence_ids(b->s, b->seq, &ids, &n_ids));
    for (int32_t i = 0; i < n; i++) token[i] = i == 0 ? ids[n_ids - 1] : 1 + i, parent[i] = i - 1;
    const spec_tree tree = { .n = n, .cap = n, .token = token, .parent = parent }, *trees = &tree;
    const double start = speci_now_ms();
    need(spec_score(b->s, &b->seq, 1, &trees));
    need(spec_verify(b->s, b->seq, SPEC_VERIFY_AUTO, path, &n_path, &next));
    return speci_now_ms() - start;
}

static void commit_chain(bench *b, int32_t n_path)
{
    int32_t path[N_NODE];
    for (int32_t i = 0; i < n_path; i++) path[i] = i;
    need(spec_commit(b->s, b->seq, path, n_path, 1));
}

static void restart(bench *b)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    if (b->seq >= 0) need(spec_sequence_remove(b->s, b->seq));
    need(spec_sequence_add(b->s, &b->seq, ids, sizeof ids / sizeof *ids, NULL));
}

static double step_ms(bench *b, int32_t n)
{
    double *t = malloc((size_t)b->repeats * sizeof *t);
    restart(b);
    for (int32_t i = -3; i < b->repeats; i++) { /* the first three warm up */
        const double ms = score_chain(b, n);
        commit_chain(b, 1);
        if (i >= 0) t[i] = ms;
    }
    const double m = median(t, b->repeats);
    free(t);
    return m;
}

/* The plain step after accepting n_path - 1 drafts of N_DRAFT (n_path 0: after a plain step). */
static double after_ms(bench *b, int32_t n_path)
{
    double *t = malloc((size_t)b->repeats * sizeof *t);
    restart(b);
    for (int32_t i = -3; i < b->repeats; i++) {
        score_chain(b, n_path > 0 ? N_DRAFT + 1 : 1);
        commit_chain(b, n_path > 0 ? n_path : 1);
        const double ms = score_chain(b, 1);
        commit_chain(b, 1);
        if (i >= 0) t[i] = ms;
    }
    const double m = median(t, b->repeats);
    free(t);
    return m;
}

static void steps(bench *b)
{
    const double floor_ms = 1e3 * (double)b->model->bytes_weights / b->bandwidth;
    for (int32_t n = 1; n <= N_NODE; n *= 2)
        printf("{\"what\":\"step\",\"nodes\":%d,\"ms\":%.4f,\"floor_ms\":%.4f}\n", n, step_ms(b, n), floor_ms);
}

static void rollback(bench *b)
{
    static const int32_t accepted[] = { 0, 4, 7 };
    const double plain = after_ms(b, 0);
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        const double ms = after_ms(b, accepted[i] + 1);
        printf("{\"what\":\"rollback\",\"accepted\":%d,\"of\":%d,\"plain_ms\":%.4f,\"ms\":%.4f,\"cost_percent\":%.2f}\n",
               accepted[i], N_DRAFT, plain, ms, 100.0 * (ms - plain) / plain);
    }
}

/* --- arguments --- */

static spec_dtype dtype_of(const char *name)
{
    for (spec_dtype t = SPEC_DTYPE_F32; t <= SPEC_DTYPE_F16; t++)
        if (strcmp(name, spec_dtype_name(t)) == 0) return t;
    return SPEC_DTYPE_AUTO;
}

static void arguments(bench *b, int argc, char **argv)
{
    static const struct option options[] = { { "dtype", required_argument, 0, 'd' },
                                             { "plugin-dir", required_argument, 0, 'p' },
                                             { 0, 0, 0, 0 } };
    for (int c; (c = getopt_long(argc, argv, "m:b:c:r:", options, NULL)) != -1;) {
        if (c == 'm') b->model_path = optarg;
        else if (c == 'b') b->backend_name = optarg;
        else if (c == 'c') b->n_ctx = atoi(optarg);
        else if (c == 'r') b->repeats = atoi(optarg);
        else if (c == 'd') b->dtype = dtype_of(optarg);
        else if (c == 'p') b->plugin_dir = optarg;
        else exit(2);
    }
    if (b->model_path && b->repeats > 0) return;
    fprintf(stderr, "usage: bench -m MODEL [-b BACKEND] [-c N_CTX] [--dtype T] [-r REPEATS] [--plugin-dir DIR]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    bench b = { .backend_name = "cpu", .repeats = 50, .seq = -1 };
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    arguments(&b, argc, argv);
    bp.plugin_dir = b.plugin_dir;
    need(spec_backend_open(&b.be, b.backend_name, &bp));
    printf("{\"what\":\"run\",\"backend\":\"%s\",\"model\":\"%s\",\"version\":\"%s\"}\n", spec_backend_name(b.be),
           b.model_path, spec_version());
    const uint64_t before = taken_bytes(&b);
    load(&b);
    memory(&b, before);
    bandwidth(&b);
    steps(&b);
    rollback(&b);
    spec_session_close(b.s);
    spec_model_close(b.model);
    spec_backend_close(b.be);
    return 0;
}
