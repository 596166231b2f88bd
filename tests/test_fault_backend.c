/* test_fault_backend.c - the invariance test finds every fault of fault_backend.h, and none where there is none; and
 * the backend table refuses what it should. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <stddef.h>
#include <stdio.h>

#include "tests/fault_backend.h"
#include "tests/mini_model.h"
#include "tests/support_drafts.h"
#include "tests/support_memory.h"
#include "tests/support_paths.h"
#include "tests/support_sequence.h"
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

static spec_backend *faulty_backend(spec_backend_ops *ops, fault_kind kind)
{
    spec_backend *be = NULL;
    fault_backend_ops(ops, kind);
    test_ok(spec_backend_open_ops(&be, ops, NULL, NULL), "spec_backend_open_ops");
    return be;
}

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* In the order of visits: of scans in the recurrent form. */
static bool is_of_visits(fault_kind kind) { return kind == FAULT_SCAN_SAVED || kind == FAULT_SCAN_LOADED; }

/* Whole models that meet the fault: those with attention, with a convolution, with a scan (or one that is chunked). */
static bool has_its_place(fault_kind kind, const char *model)
{
    const bool attends = strstr(model, "mistral") || strstr(model, "bamba") || strstr(model, "lfm2");
    const bool convolves = !strstr(model, "mistral"), scans = convolves && !strstr(model, "lfm2");
    const bool chunked = strstr(model, "mamba2") || strstr(model, "bamba");
    switch (kind) {
    case FAULT_MASK:
    case FAULT_KV_SLOT:
    case FAULT_KV_POSITION: return attends;
    case FAULT_PARENT: return true; /* attention and convolution read it */
    case FAULT_PARENT_VISITS: return true;
    case FAULT_CONV_TAP:
    case FAULT_REPLAY:
    case FAULT_WINDOW:
    case FAULT_PADDED_ROW: return convolves;
    case FAULT_RECENT:
    case FAULT_RECENT_PLACE:
    case FAULT_FOLD: return chunked;
    default: return scans;
    }
}

static void check_paths(spec_backend *healthy, fault_kind kind, const char *path)
{
    const paths_size size = { .n_world = 2, .n_walk = 6, .depth = 48, .n_tree = 24,
                              .scan = is_of_visits(kind) ? SPEC_SCAN_RECURRENT : SPEC_SCAN_CHUNKED };
    spec_backend_ops ops;
    paths_counts c;
    spec_backend *be = faulty_backend(&ops, kind);
    spec_model *plain = support_model(healthy, path, SPEC_DTYPE_F32), *tested = support_model(be, path, SPEC_DTYPE_F32);
    support_paths(&c, plain, tested, &size, 3);
    spec_model_close(tested);
    spec_model_close(plain);
    spec_backend_close(be);
    if ((c.n_differ > 0) != (kind != FAULT_NONE))
        fail_msg("%s, the fault \"%s\": %lld of %lld nodes differ", path, fault_name(kind), (long long)c.n_differ,
                 (long long)c.n_node);
}

/* The suite of trees over whole models. */
static void test_faults_paths(void **state)
{
    static const char *const paths[] = { GOLDEN "mistral", GOLDEN "mamba", GOLDEN "mamba2", GOLDEN "bamba",
                                         GOLDEN "lfm2" };
    (void)state;
    spec_backend *healthy = NULL;
    test_ok(spec_backend_open(&healthy, "cpu", NULL), "spec_backend_open");
    for (fault_kind kind = FAULT_NONE; kind < FAULT_ROW_COUNT; kind++)
        for (int32_t i = 0; i < N_ELEMENTS(paths); i++)
            if (kind == FAULT_NONE || has_its_place(kind, paths[i])) check_paths(healthy, kind, paths[i]);
    spec_backend_close(healthy);
}

/* What a drafting suite sees of a fault in a tree of this kind. */
static drafts_counts drafting(spec_backend *healthy, fault_kind kind, const char *tree, float temperature)
{
    spec_backend_ops ops;
    spec_backend *be = faulty_backend(&ops, kind);
    drafts_counts c = { 0 };
    const drafts_run run = { .target = support_model(be, GOLDEN "law8-target", SPEC_DTYPE_F32),
                             .drafter = support_model(be, GOLDEN "law8-drafter", SPEC_DTYPE_F32),
                             .plain = support_model(healthy, GOLDEN "law8-drafter", SPEC_DTYPE_F32), .tree = tree,
                             .sampling = { .temperature = temperature, .seed = 4 }, .n_token = 60 };
    support_drafts(&c, &run);
    spec_model_close(run.plain);
    spec_model_close(run.drafter);
    spec_model_close(run.target);
    spec_backend_close(be);
    return c;
}

/* The suite of drafted trees and their walks. A fault in a drafted tree is seen in the tree, one in accept in the
 * walk. */
static void test_faults_drafts(void **state)
{
    static const struct {
        fault_kind kind;
        const char *tree;
        float temperature;
        bool in_tree, in_walk;
    } cases[] = {
        { FAULT_NONE, "product:3,2,2", 1, false, false },
        { FAULT_NONE, "beam:3,4", 0, false, false },
        { FAULT_NONE, "dyspec:16", 1, false, false },
        { FAULT_SIBLINGS, "product:3,2,2", 1, false, true },
        { FAULT_SIBLINGS, "product-repeat:3,2", 1, false, true },
        { FAULT_SIBLINGS, "dyspec:16", 1, false, true },
        { FAULT_GROWN_TOKEN, "product:3,2,2", 1, true, false },
        { FAULT_GROWN_TOKEN, "beam:3,4", 0, true, false },
        { FAULT_GROWN_PARENT, "static:A", 1, true, false },
        { FAULT_GROWN_PARENT, "sequoia:16", 0, true, false },
        { FAULT_GROWN_FEED, "chain:4", 1, true, false },
        { FAULT_GROWN_FEED, "product:3,2,2", 0, true, false },
        { FAULT_DRAW_ORDER, "product:3,2,2", 1, true, false },
        { FAULT_DRAW_ORDER, "dyspec:16", 1, true, false },
        { FAULT_DRAW_ORDER, "eagle2:4,16,3", 0, true, false },
        { FAULT_DRAW_ORDER, "beam:3,4", 0, true, false },
    };
    (void)state;
    spec_backend *healthy = NULL;
    test_ok(spec_backend_open(&healthy, "cpu", NULL), "spec_backend_open");
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        const drafts_counts c = drafting(healthy, cases[i].kind, cases[i].tree, cases[i].temperature);
        if ((c.n_tree_differ > 0) != cases[i].in_tree || (c.n_walk_differ > 0) != cases[i].in_walk)
            fail_msg("the fault \"%s\" in %s: of %lld trees %lld differ, of their walks %lld",
                     fault_name(cases[i].kind), cases[i].tree, (long long)c.n_tree, (long long)c.n_tree_differ, (long long)c.n_walk_differ);
    }
    spec_backend_close(healthy);
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

static spec_status no_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan, int32_t capture)
{
    (void)capture;
    (void)q;
    (void)out;
    (void)plan;
    return SPEC_E_UNSUPPORTED;
}

static spec_status no_mark(spec_queue *q, uint64_t *mark)
{
    (void)q;
    (void)mark;
    return SPEC_E_UNSUPPORTED;
}

static void test_table(void **state)
{
    (void)state;
    spec_backend_ops ops = speci_cpu_ops;
    char abi[24];
    assert_int_equal(open_ops(&ops), SPEC_OK);
    ops.abi = SPEC_BACKEND_ABI + 6;
    snprintf(abi, sizeof abi, "for ABI %u,", ops.abi);
    expect_refusal(&ops, SPEC_E_UNSUPPORTED, abi);
    ops = speci_cpu_ops;
    ops.struct_size = 16;
    expect_refusal(&ops, SPEC_E_UNSUPPORTED, "16 bytes");
    ops = speci_cpu_ops;
    ops.op[SPEC_OP_CONV] = (spec_backend_op){ .kind = SPEC_OP_CONV };
    ops.probs = NULL;
    expect_refusal(&ops, SPEC_E_INVALID, "operation conv");
    ops = speci_cpu_ops;
    ops.plan_prepare = no_prepare;
    expect_refusal(&ops, SPEC_E_INVALID, "all or none");
    ops = speci_cpu_ops;
    ops.mark = no_mark;
    expect_refusal(&ops, SPEC_E_INVALID, "both or none");
    assert_int_equal(open_ops(NULL), SPEC_E_INVALID);
}

/* The table's first `n` bytes alone in memory, as a backend's older build has them; or of a newer one, with n - sizeof ops more. */
static spec_status open_cut(size_t n, size_t claimed)
{
    spec_backend_ops *ops = malloc(n);
    assert_non_null(ops);
    memset(ops, 0xA5, n);
    memcpy(ops, &speci_cpu_ops, n < sizeof *ops ? n : sizeof *ops);
    ops->struct_size = claimed;
    const spec_status status = open_ops(ops);
    free(ops);
    return status;
}

/* An older table ends earlier, at any member behind those that are required; a newer one goes on. */
static void test_ages(void **state)
{
    (void)state;
    const size_t whole = sizeof(spec_backend_ops), least = offsetof(spec_backend_ops, plan_prepare);
    for (size_t n = least; n <= whole; n += sizeof(void *)) assert_int_equal(open_cut(n, n), SPEC_OK);
    assert_int_equal(open_cut(whole + 64, whole + 64), SPEC_OK);
    assert_int_equal(open_cut(least, least - 1), SPEC_E_UNSUPPORTED);
    assert_int_equal(open_cut(least, least - sizeof(void *)), SPEC_E_UNSUPPORTED);
    assert_non_null(strstr(spec_last_error(), "what is required takes"));
}

/* What arguments have gained since an older table was built is refused there, and not left out: while a model or a session is opened. */
static void test_what_it_does_not_know(void **state)
{
    (void)state;
    static const struct {
        const char *model, *words;
    } cases[] = { { "gemma2", "its attention does not know softly capped values" },
                  { "phi4_mini", "its rope_kv does not know a gain of the dimensions that turn" } };
    spec_backend_ops ops = speci_cpu_ops;
    spec_backend *older;
    ops.struct_size = offsetof(spec_backend_ops, knows);
    OK(spec_backend_open_ops(&older, &ops, NULL, NULL));
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        char path[512];
        spec_model *m = NULL;
        spec_session *s = NULL;
        snprintf(path, sizeof path, GOLDEN "%s", cases[i].model);
        spec_status status = spec_model_open(&m, older, path, NULL);
        if (status == SPEC_OK) status = spec_session_open(&s, m, NULL, NULL);
        assert_int_equal(status, SPEC_E_UNSUPPORTED);
        assert_non_null(strstr(spec_last_error(), cases[i].words));
        spec_model_close(m);
    }
    spec_backend_close(older);
}

/* A cap of logits alone. */
static void test_capped_logits_are_refused(void **state)
{
    (void)state;
    spec_backend_ops ops = speci_cpu_ops;
    const spec_op op = { .kind = SPEC_OP_LINEAR, .u.linear = { .act = SPEC_ACT_CAP, .scale = 30 } };
    ops.knows = SPEC_KNOWS_GAIN;
    FAILS(speci_op_supports(&ops, NULL, &op), SPEC_E_UNSUPPORTED, "its linear does not know softly capped values");
}

/* The text of a session that verifies so, 40 tokens. */
static void sampled_text(int32_t *out, spec_backend *be, const char *tree, spec_verify_rule rule)
{
    const int32_t prompt = 3, *ids;
    size_t n = 1;
    spec_model *target = support_model(be, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_model *small = support_model(be, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    const spec_sampling sampling = { .temperature = 1, .seed = 15 };
    spec_step_result r;
    spec_drafter *drafter;
    spec_session *s;
    int32_t seq;
    dp.tree = tree, sp.n_ctx = 64, sp.verify = rule;
    OK(spec_drafter_from_model(&drafter, small, &dp));
    OK(spec_session_open(&s, target, drafter, &sp));
    OK(add_endless(s, &seq, &prompt, 1, &sampling));
    while (n < 41) {
        OK(step_into(s, &r, &seq, 1));
        OK(spec_sequence_ids(s, &ids, &n, seq));
    }
    memcpy(out, ids + 1, 40 * sizeof *out);
    spec_session_close(s);
    spec_drafter_close(drafter);
    spec_model_close(small);
    spec_model_close(target);
}

/* A device that cannot verify whole trees does without: `auto` is what it was, and the rules that need it are refused. With it
 * `auto` is block verification on a chain, and traversal on other trees. */
static void test_without_accept_tree(void **state)
{
    (void)state;
    static const struct {
        const char *tree;
        spec_verify_rule older, newer;
    } cases[] = { { "chain:3", SPEC_VERIFY_CHAIN, SPEC_VERIFY_BLOCK }, { "product:3,2", SPEC_VERIFY_MSS, SPEC_VERIFY_TRAVERSAL } };
    spec_backend_ops ops = speci_cpu_ops;
    spec_backend *whole, *lacking;
    ops.accept_tree = NULL;
    OK(spec_backend_open(&whole, "cpu", NULL));
    OK(spec_backend_open_ops(&lacking, &ops, NULL, NULL));
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        int32_t text[4][40];
        sampled_text(text[0], whole, cases[i].tree, SPEC_VERIFY_AUTO);
        sampled_text(text[1], whole, cases[i].tree, cases[i].newer);
        sampled_text(text[2], whole, cases[i].tree, cases[i].older);
        sampled_text(text[3], lacking, cases[i].tree, SPEC_VERIFY_AUTO);
        assert_memory_equal(text[0], text[1], sizeof text[0]);
        assert_memory_equal(text[2], text[3], sizeof text[2]);
        assert_memory_not_equal(text[0], text[2], sizeof text[0]);
    }
    spec_model *m = support_model(lacking, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    const spec_sampling sampling = { .temperature = 1 };
    const int32_t prompt = 3;
    spec_step_result r;
    spec_drafter *drafter;
    spec_session *s;
    int32_t seq;
    sp.n_ctx = 64, sp.verify = SPEC_VERIFY_TRAVERSAL;
    OK(spec_drafter_from_model(&drafter, m, &dp));
    OK(spec_session_open(&s, m, drafter, &sp));
    OK(add_endless(s, &seq, &prompt, 1, &sampling));
    FAILS(step_into(s, &r, &seq, 1), SPEC_E_UNSUPPORTED, "cannot verify by traversal");
    spec_session_close(s);
    spec_drafter_close(drafter);
    spec_model_close(m);
    spec_backend_close(lacking);
    spec_backend_close(whole);
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
    char longer[80] = { 0 }; /* than any; what is looked for is not a part of it */
    memset(longer, 'a', sizeof longer - 1);
    expect_no_open(longer, SPEC_E_INVALID, "is not the name of a backend");
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

/* Without memory from some allocation on opening fails, and nothing is leaked. */
static void test_host(void **state)
{
    (void)state;
    own_pool pool = { 0 };
    support_memory m = { 0 };
    const spec_allocator allocator = support_allocator(&m);
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.parallel_for = own_parallel_for;
    p.parallel_user_data = &pool;
    p.allocator = &allocator;
    p.n_threads = 3;
    for (int n = 1;; n++) {
        spec_backend *be = NULL;
        m = (support_memory){ .fail_at = n, .onwards = true };
        spec_status status = spec_backend_open(&be, "cpu", &p);
        if (status != SPEC_OK) assert_int_equal(status, SPEC_E_NOMEM);
        spec_backend_close(be);
        assert_int_equal(m.n_block, 0);
        if (status == SPEC_OK) break;
        assert_true(n < 1000);
    }
    assert_true(pool.jobs > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_faults), cmocka_unit_test(test_faults_paths),
                                        cmocka_unit_test(test_faults_drafts), cmocka_unit_test(test_probe),
                                        cmocka_unit_test(test_table),  cmocka_unit_test(test_ages),
                                        cmocka_unit_test(test_what_it_does_not_know),
                                        cmocka_unit_test(test_capped_logits_are_refused),
                                        cmocka_unit_test(test_without_accept_tree),
                                        cmocka_unit_test(test_names),  cmocka_unit_test(test_list),
                                        cmocka_unit_test(test_host) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
