/* support_model.c - see support_model.h. */
#define _POSIX_C_SOURCE 200809L /* setenv, unsetenv */
#include "tests/support_model.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "tests/test.h"

const char *support_backend_name(void)
{
    const char *name = getenv("SPEC_TEST_BACKEND");
    return name && *name ? name : "cpu";
}

spec_backend *support_backend_again(const spec_backend_params *params)
{
    spec_backend_params p = params ? *params : (spec_backend_params)SPEC_BACKEND_PARAMS_INIT;
    if (p.n_threads == 0) p.n_threads = test_thread_count();
    p.plugin_dir = getenv("SPEC_TEST_PLUGIN_DIR");
    spec_backend *be = NULL;
    return spec_backend_open(&be, support_backend_name(), &p) == SPEC_OK ? be : NULL;
}

spec_backend *support_backend(void)
{
    spec_backend *be = support_backend_again(NULL);
    if (be) return be;
    printf("SKIPPED: %s\n", spec_last_error());
    exit(0);
}

const char *support_shared(void)
{
    const char *dir = getenv("SPEC_SHARED");
    return dir && *dir ? dir : NULL;
}

void support_ok(spec_status status, const char *call, const char *file, int line)
{
    if (status == SPEC_OK) return;
    print_error("%s: %s: %s\n", call, spec_status_name(status), spec_last_error());
    _fail(file, line);
}

void support_fails(spec_status status, spec_status code, const char *part, const char *call, const char *file, int line)
{
    if (status == code && strstr(spec_last_error(), part)) return;
    print_error("%s gave %s \"%s\"; expected %s with \"%s\"\n", call, spec_status_name(status),
                status ? spec_last_error() : "", spec_status_name(code), part);
    _fail(file, line);
}

spec_tokenizer_info support_tokenizer_info(const spec_tokenizer *t)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    if (t) OK(spec_tokenizer_get_info(t, &info));
    return info;
}

spec_model *support_model(spec_backend *be, const char *path, spec_dtype dtype)
{
    return support_model_of(be, path, dtype, SPEC_DTYPE_AUTO);
}

spec_model *support_model_of(spec_backend *be, const char *path, spec_dtype dtype, spec_dtype weights)
{
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    spec_model *m = NULL;
    const uint64_t kept = be->ops->weight_blocks;
    if (weights != SPEC_DTYPE_AUTO && !(kept >> weights & 1)) weights = kept >> SPEC_DTYPE_Q8_0 & 1 ? SPEC_DTYPE_Q8_0 : SPEC_DTYPE_AUTO;
    p.dtype = dtype, p.weights = weights;
    OK(spec_model_open(&m, be, path, &p));
    return m;
}

void support_golden_open(golden *g, const char *path)
{
    memset(g, 0, sizeof *g);
    OK(speci_file_map(&g->file, path));
    OK(speci_file_load(&g->file, path, 0, g->file.n));
    OK(speci_safetensors_read(&g->tensors, &g->n, &g->header, g->file.data, g->file.n, path, &speci_malloc));
}

void support_golden_close(golden *g)
{
    speci_free(&speci_malloc, g->tensors);
    json_decref(g->header);
    speci_file_unmap(&g->file);
}

const void *support_golden_find(const golden *g, const char *name, int64_t *rows, int64_t *cols)
{
    for (size_t i = 0; i < g->n; i++) {
        const model_tensor *t = &g->tensors[i];
        if (strcmp(t->name, name) != 0) continue;
        if (rows) *rows = t->dim[0];
        if (cols) *cols = t->dim[t->n_dim - 1];
        return t->data;
    }
    fail_msg("the golden file has no tensor %s", name);
    return NULL;
}

spec_session *support_session(spec_model *model, int32_t n_node, int32_t n_seq)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    p.n_node = n_node;
    p.n_seq = n_seq;
    OK(spec_session_open(&s, model, NULL, &p));
    return s;
}

void support_plain_step(spec_session *s, int32_t seq, int32_t pending, int32_t next, float *row)
{
    int32_t parent = -1, path = 0;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &pending, .parent = &parent }, *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    if (row) OK(spec_node_logits(s, row, seq, 0));
    OK(spec_commit(s, seq, &path, 1, next));
}

uint32_t support_random(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

typedef struct parallel {
    void (*body)(void *arg, int32_t i);
    void *arg;
    int32_t n;
    atomic_int next;
} parallel;

/* Takes the next one that nobody has. */
static void *work(void *arg)
{
    parallel *p = arg;
    for (int32_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) p->body(p->arg, i);
    return NULL;
}

void support_parallel(int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    enum { MAX_THREAD = 64 };
    pthread_t threads[MAX_THREAD];
    parallel p = { .body = body, .arg = arg, .n = n };
    int32_t n_thread = test_thread_count() > 0 ? test_thread_count() : speci_n_cpus();
    if (n_thread > MAX_THREAD) n_thread = MAX_THREAD;
    if (n_thread > n) n_thread = n;
    /* In a thread that is not the test's own, cmocka keeps to itself what failed and calls exit(), from a signal's handler after
     * a crash: silent, and libraries are taken down (a driver among them) that the other threads are inside of, which need
     * not come to an end. Told to abort it says what failed. */
    const char *const name = "CMOCKA_TEST_ABORT";
    const bool aborts = getenv(name) != NULL;
    if (!aborts) assert_int_equal(setenv(name, "1", 1), 0);
    for (int32_t i = 0; i < n_thread; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &p), 0);
    for (int32_t i = 0; i < n_thread; i++) pthread_join(threads[i], NULL);
    if (!aborts) unsetenv(name);
}

void support_share(int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    const bool computes = strncmp(support_backend_name(), "cpu", 3) == 0;
    if (!computes) support_parallel(n, body, arg);
    for (int32_t i = 0; i < n && computes; i++) body(arg, i);
}

double support_error(const float *a, const float *b, size_t n)
{
    double worst = 0, peak = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= 1e30)) return INFINITY;
        if (d > worst) worst = d;
        if (fabs((double)b[i]) > peak) peak = fabs((double)b[i]);
    }
    return peak > 0 ? worst / peak : worst;
}
