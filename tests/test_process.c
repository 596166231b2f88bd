/* test_process.c - what the library does to the process around it: forked children, memory, threads of
 * OpenBLAS. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support_decode.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *open_backend(const char *name, int32_t n_threads)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    p.n_threads = n_threads;
    OK(spec_backend_open(&be, name, &p));
    return be;
}

/* --- fork --- */

/* A child has none of its parent's threads. It decodes with what it inherited, and closes it; so does the parent. */
static void forked_child_closes(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 1, 2, 3 };
    int32_t want[8], got[8];
    spec_backend *be = open_backend("cpu", 4);
    spec_model *m = support_model(be, GOLDEN "llama3", SPEC_DTYPE_AUTO);
    support_plain_ids(m, prompt, 3, NULL, 8, want);
    nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL); /* the workers are asleep */
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        support_plain_ids(m, prompt, 3, NULL, 8, got);
        spec_model_close(m);
        spec_backend_close(be);
        _exit(memcmp(got, want, sizeof want) == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the child ended by signal %d (%d: it hung)", WTERMSIG(status), SIGALRM);
    assert_int_equal(WEXITSTATUS(status), 0);
    support_plain_ids(m, prompt, 3, NULL, 8, got);
    assert_memory_equal(got, want, sizeof want);
    spec_model_close(m);
    spec_backend_close(be);
}

/* --- memory --- */

static long resident_kib(void)
{
    long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &total, &resident), 2);
    (void)fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* llama3 with another limit of positions, on the CPU. */
typedef struct limited {
    char dir[64];
    spec_backend *be;
    spec_model *m;
} limited;

static limited open_limited(const char *limit, int32_t n_threads)
{
    limited l;
    char *config = support_json_with(GOLDEN "llama3", "config.json", limit);
    support_variant(l.dir, GOLDEN "llama3", &(variant_file){ "config.json", config }, 1);
    free(config);
    l.be = open_backend("cpu", n_threads);
    l.m = support_model(l.be, l.dir, SPEC_DTYPE_AUTO);
    return l;
}

static void close_limited(limited *l)
{
    spec_model_close(l->m);
    spec_backend_close(l->be);
    support_variant_remove(l->dir);
}

/* A session of the model's whole context, which is long, takes what its few tokens need. */
static void long_context_takes_what_is_used(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 1, 2, 3 };
    limited l = open_limited("{\"max_position_embeddings\": 1048576}", 2);
    spec_memory memory = { .struct_size = sizeof memory };
    int32_t ids[8];
    OK(spec_session_estimate(&memory, l.m, NULL, NULL));
    assert_true(memory.bytes_kv > 200u << 20); /* else this shows nothing */
    const long before = resident_kib();
    spec_session *s = NULL;
    OK(spec_session_open(&s, l.m, NULL, NULL));
    support_plain_ids(l.m, prompt, 3, NULL, 8, ids);
    const long grown = resident_kib() - before;
    spec_session_close(s);
    close_limited(&l);
    if (grown > 50 * 1024) fail_msg("%ld KiB for a few tokens", grown);
}

/* A limit near the largest number: no session of it fits, and the message says a size that makes sense. */
static void largest_context_does_not_go_round(void **state)
{
    (void)state;
    limited l = open_limited("{\"max_position_embeddings\": 2147483647}", 1);
    spec_memory memory = { .struct_size = sizeof memory };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    OK(spec_session_estimate(&memory, l.m, NULL, NULL));
    assert_true(memory.bytes_kv > (uint64_t)1 << 38 && memory.bytes_kv < (uint64_t)1 << 42);
    p.n_ctx = 2147483647;
    FAILS(spec_session_estimate(&memory, l.m, NULL, &p), SPEC_E_INVALID, "n_ctx is 2147483647, at most");
    close_limited(&l);
}

/* --- OpenBLAS --- */

static int32_t n_threads_now(void)
{
    int32_t n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) n += e->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

/* Before anything here loads OpenBLAS: kernels that do not use it leave it alone, and one thread is one. */
static void one_thread_is_one(void **state)
{
    (void)state;
    spec_backend *be = open_backend("cpu:portable", 1);
    spec_model *m = support_model(be, GOLDEN "llama3", SPEC_DTYPE_AUTO);
    int32_t ids[8];
    support_plain_ids(m, (const int32_t[]){ 1, 2, 3 }, 3, NULL, 8, ids);
    assert_null(dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD));
#if !defined(__SANITIZE_THREAD__)
    assert_int_equal(n_threads_now(), 1);
#endif
    spec_model_close(m);
    spec_backend_close(be);
}

static int blas_threads(void *lib, const char *name, int n)
{
    int (*get)(void);
    void (*set)(int);
    void *found = dlsym(lib, name);
    assert_non_null(found);
    memcpy(n ? (void *)&set : (void *)&get, &found, sizeof found);
    if (!n) return get();
    set(n);
    return n;
}

/* The application's number of threads is as before while a backend is open, after a prefill through OpenBLAS, and after. */
static void blas_threads_stay(void **state)
{
    (void)state;
    enum { N = 200 };
    int32_t prompt[N], ids[2];
    spec_backend *be = NULL;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!lib) skip();
    blas_threads(lib, "openblas_set_num_threads", 2);
    p.n_threads = 2;
    if (spec_backend_open(&be, "cpu:avx2", &p) != SPEC_OK) skip();
    assert_int_equal(blas_threads(lib, "openblas_get_num_threads", 0), 2);
    spec_model *m = support_model(be, GOLDEN "llama3", SPEC_DTYPE_AUTO);
    for (int32_t i = 0; i < N; i++) prompt[i] = 3 + i % 90;
    support_plain_ids(m, prompt, N, NULL, 2, ids);
    assert_int_equal(blas_threads(lib, "openblas_get_num_threads", 0), 2);
    spec_model_close(m);
    spec_backend_close(be);
    assert_int_equal(blas_threads(lib, "openblas_get_num_threads", 0), 2);
    (void)dlclose(lib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_is_one), /* first */
        cmocka_unit_test(forked_child_closes),
        cmocka_unit_test(long_context_takes_what_is_used),
        cmocka_unit_test(largest_context_does_not_go_round),
        cmocka_unit_test(blas_threads_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
