/* test_fault_backend.c - the invariance test finds every fault of fault_backend.h, and none where there is none; and the
 * backend table refuses what it should. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include "tests/fault_backend.h"
#include "tests/mini_model.h"
#include "tests/test.h"

/* Rows that differ from plain decoding on the CPU. */
static int32_t differing(fault_kind kind)
{
    spec_backend_ops ops;
    test_device plain, faulty;
    int32_t compared, differ = 0;
    fault_backend_ops(&ops, kind);
    test_open_ops(&plain, &speci_cpu_ops);
    test_open_ops(&faulty, &ops);
    for (uint64_t seed = 1; seed <= 2; seed++)
        differ += mini_invariance(&plain, &faulty, SPEC_DTYPE_F32, 0, 21, seed, &compared);
    test_close(&faulty);
    test_close(&plain);
    return differ;
}

static void test_faults(void **state)
{
    (void)state;
    assert_int_equal(differing(FAULT_NONE), 0);
    for (fault_kind kind = FAULT_PARENT; kind < FAULT_ROW_COUNT; kind++)
        if (differing(kind) == 0) fail_msg("the fault \"%s\" went unnoticed", fault_name(kind));
}

static spec_status open_ops(const spec_backend_ops *ops)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    spec_status status = spec_backend_open_ops(&be, ops, NULL, &p);
    assert_true((be == NULL) == (status != SPEC_OK));
    spec_backend_close(be);
    return status;
}

static void expect_refusal(const spec_backend_ops *ops, spec_status status, const char *words)
{
    assert_int_equal(open_ops(ops), status);
    if (!strstr(spec_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", spec_last_error(), words);
}

/* Products that depend on the row count are found when the device opens. */
static void test_probe(void **state)
{
    (void)state;
    spec_backend_ops ops;
    fault_backend_ops(&ops, FAULT_ROW_COUNT);
    expect_refusal(&ops, SPEC_E_DEVICE, "slot 2 of 3");
}

static spec_status no_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan)
{
    (void)q;
    (void)out;
    (void)plan;
    return SPEC_E_UNSUPPORTED;
}

static void test_table(void **state)
{
    (void)state;
    spec_backend_ops ops = speci_cpu_ops;
    assert_int_equal(open_ops(&ops), SPEC_OK);
    ops.abi = SPEC_BACKEND_ABI + 6;
    expect_refusal(&ops, SPEC_E_UNSUPPORTED, "ABI 8");
    ops = speci_cpu_ops;
    ops.struct_size = 16;
    expect_refusal(&ops, SPEC_E_UNSUPPORTED, "16 bytes");
    ops = speci_cpu_ops;
    ops.conv = NULL;
    ops.law = NULL;
    expect_refusal(&ops, SPEC_E_INVALID, "operation conv");
    ops = speci_cpu_ops;
    ops.plan_prepare = no_prepare;
    expect_refusal(&ops, SPEC_E_INVALID, "all or none");
    assert_int_equal(open_ops(NULL), SPEC_E_INVALID);
}

static void expect_no_open(const char *name, spec_status status, const char *words)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    p.plugin_dir = "/nowhere/at all";
    assert_int_equal(spec_backend_open(&be, name, &p), status);
    assert_null(be);
    if (!strstr(spec_last_error(), words)) fail_msg("%s: \"%s\" does not say \"%s\"", name, spec_last_error(), words);
}

static void test_names(void **state)
{
    (void)state;
    expect_no_open("cpu:abacus", SPEC_E_INVALID, "abacus");
    expect_no_open("abacus", SPEC_E_INVALID, "/nowhere/at all/libspec-abacus.so");
    expect_no_open("../cuda:0", SPEC_E_DEVICE, "../cuda");
    expect_no_open("c u", SPEC_E_INVALID, "c u");
    expect_no_open("", SPEC_E_INVALID, "\"\"");
    expect_no_open(":1", SPEC_E_INVALID, ":1");
    expect_no_open(NULL, SPEC_E_INVALID, "no name");
    spec_backend *be = NULL;
    assert_int_equal(spec_backend_open(&be, "cpu", NULL), SPEC_OK);
    assert_non_null(strstr(spec_backend_name(be), "cpu:"));
    spec_backend_close(be);
    spec_backend_close(NULL);
}

typedef struct seen {
    int cpu, others;
} seen;

static void see(void *user, const char *name, const char *text)
{
    seen *s = user;
    assert_non_null(text);
    if (name && strcmp(name, "cpu") == 0) s->cpu++;
    else s->others++;
}

static void test_list(void **state)
{
    (void)state;
    seen s = { 0, 0 };
    test_ok(spec_backend_list(NULL, see, &s), "spec_backend_list");
    assert_int_equal(s.cpu, 1);
    assert_true(s.others >= 1); /* CUDA's devices, or why there are none */
}

/* The application's own pool: called from one thread here, which is allowed. */
typedef struct own_pool {
    int jobs;
} own_pool;

static void own_parallel_for(void *user, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    own_pool *pool = user;
    pool->jobs++;
    for (int32_t i = n - 1; i >= 0; i--) body(arg, i);
}

/* An allocator that fails on the n-th call; opening then fails, and nothing is leaked. */
typedef struct meter {
    int left;
    int alive;
} meter;

static void *metered_alloc(void *user, size_t bytes, size_t align)
{
    meter *m = user;
    void *p = NULL;
    if (m->left-- <= 0 || posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes + 1) != 0) return NULL;
    m->alive++;
    return p;
}

static void metered_free(void *user, void *p, size_t bytes)
{
    (void)bytes;
    if (p) ((meter *)user)->alive--;
    free(p);
}

static void test_host(void **state)
{
    (void)state;
    own_pool pool = { 0 };
    meter m = { 0, 0 };
    spec_allocator allocator = { metered_alloc, metered_free, &m };
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.parallel_for = own_parallel_for;
    p.parallel_user_data = &pool;
    p.allocator = &allocator;
    p.n_threads = 3;
    for (int n = 0;; n++) {
        spec_backend *be = NULL;
        m = (meter){ n, 0 };
        spec_status status = spec_backend_open(&be, "cpu", &p);
        if (status != SPEC_OK) assert_int_equal(status, SPEC_E_NOMEM);
        spec_backend_close(be);
        assert_int_equal(m.alive, 0);
        if (status == SPEC_OK) break;
        assert_true(n < 1000);
    }
    assert_true(pool.jobs > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_faults), cmocka_unit_test(test_probe),
                                        cmocka_unit_test(test_table),  cmocka_unit_test(test_names),
                                        cmocka_unit_test(test_list),   cmocka_unit_test(test_host) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
