/* test_json_memory.c - memory that the JSON library does not get. It takes it past the allocator, and says of a file that it could not
 * read for want of memory that the file is wrong. So at each of its allocations: the call fails with E_NOMEM, never with another error,
 * and does what it should when it is made again. */
#include "tests/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "spec_trees.h"
#include "tests/support_directory.h"

static long n_alloc, fail_at; /* fail_at 0: never */
static long n_failed;

static void *failing(size_t bytes)
{
    if (++n_alloc != fail_at) return malloc(bytes);
    n_failed++;
    errno = ENOMEM; /* as malloc does */
    return NULL;
}

static const char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", support_directory, name);
    return path;
}

typedef spec_status (*call)(spec_backend *backend, const char *path);

static spec_status open_model(spec_backend *backend, const char *path)
{
    spec_model *m = NULL;
    const spec_status status = spec_model_open(&m, backend, path, NULL);
    spec_model_close(m);
    return status;
}

static spec_status load_costs(spec_backend *backend, const char *path)
{
    (void)backend;
    spec_cost_profile p = { .struct_size = sizeof p };
    return spec_cost_load(&p, path);
}

static spec_status save_costs(spec_backend *backend, const char *path)
{
    (void)backend;
    const spec_cost_profile p = { .struct_size = sizeof p, .target = { .n = 2, .n_node = { 1, 4 }, .ms = { 1, 2 } } };
    return spec_cost_save(&p, path);
}

/* At each of the first allocations, then at some hundred of all. */
static void fail_each(spec_backend *backend, call make, const char *path)
{
    enum { FIRST = 300, SOME = 200 };
    fail_at = n_alloc = 0;
    test_ok(make(backend, path), path);
    const long n = n_alloc, step = n > SOME ? n / SOME : 1;
    assert_true(n > 0);
    n_failed = 0;
    for (long at = 1, tried = 1; at <= n; at += at < FIRST ? 1 : step, tried++) {
        fail_at = at, n_alloc = 0;
        const spec_status status = make(backend, path);
        assert_int_equal(n_failed, tried);
        /* A default that is noted for the log may be lost. */
        if (status != SPEC_E_NOMEM && status != SPEC_OK)
            fail_msg("%s: allocation %ld of %ld fails: %s: %s", path, at, n, spec_status_name(status), spec_last_error());
    }
    fail_at = 0;
    test_ok(make(backend, path), path);
}

static void it_is_told(void **state)
{
    (void)state;
    char costs[256];
    spec_backend *backend = NULL;
    test_ok(spec_backend_open(&backend, "cpu:portable", NULL), "cpu:portable");
    snprintf(costs, sizeof costs, "%s", in_dir("costs"));
    fail_each(backend, open_model, SPEC_TEST_DIR "/golden/phi3-long"); /* have no tokenizer, and many keys */
    fail_each(backend, open_model, SPEC_TEST_DIR "/golden/gguf/phi3-long.gguf");
    fail_each(backend, open_model, SPEC_TEST_MODELS "/demo-drafter");
#ifndef SPEC_NO_TOKENIZER
    const spec_convert_params p = { .struct_size = sizeof p, .type = "f16" };
    const char *const gguf = in_dir("m.gguf");
    test_ok(spec_model_convert(backend, SPEC_TEST_MODELS "/demo-drafter", gguf, &p), "convert");
    fail_each(backend, open_model, gguf);
#endif
    fail_each(backend, save_costs, costs);
    fail_each(backend, load_costs, costs);
    spec_backend_close(backend);
}

int main(void)
{
    json_set_alloc_funcs(failing, free);
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(it_is_told, support_directory_make, support_directory_remove) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
