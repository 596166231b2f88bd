/* test_model_plan.c - the plans of models: how they begin, that somebody wrote what a product reads, and what makes the logits. */
#include <stdio.h>

#include "models/net/net.h"
#include "tests/support_model.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { SEQS = 2, NODES = 8 };

/* All plans, in host memory that nobody computes with. */
typedef struct emitted {
    net_plans plans;
    net_memory memory;
    net_shape shape;
} emitted;

static emitted emit(const spec_model *model)
{
    const speci_exec_params p = { .n_seq = SEQS, .n_ctx = 128, .n_node = NODES };
    emitted e = { .shape = speci_net_shape_of(model, &p) };
    net_plans *plans = &e.plans;
    speci_net_emit(plans, &e.memory, model, &e.shape);
    for (int i = 0; i < NET_PLANS; i++) assert_non_null(plans->ops[i] = calloc((size_t)plans->n_op[i], sizeof(spec_op)));
    assert_non_null(plans->kv = calloc((size_t)plans->n_kv + 1, sizeof *plans->kv));
    assert_non_null(plans->kept = calloc((size_t)plans->n_kept + 1, sizeof *plans->kept));
    net_arena *arenas[] = { &e.memory.work, &e.memory.state, &e.memory.kv };
    for (int i = 0; i < 3; i++) assert_non_null(arenas[i]->base = malloc(arenas[i]->n + 256));
    speci_net_emit(plans, &e.memory, model, &e.shape);
    return e;
}

static void free_emitted(emitted *e)
{
    void *others[] = { e->plans.kv, e->plans.kept, e->memory.work.base, e->memory.state.base, e->memory.kv.base };
    for (int32_t i = 0; i < NET_PLANS; i++) free(e->plans.ops[i]);
    for (int32_t i = 0; i < N_ELEMENTS(others); i++) free(others[i]);
}

/* Where an operation leaves what a product may read. */
static const void *output_of(const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_NORM: return op->u.norm.y.data;
    case SPEC_OP_LINEAR: return op->u.linear.y.data;
    case SPEC_OP_ATTENTION: return op->u.attention.y.data;
    case SPEC_OP_CONV: return op->u.conv.y.data;
    case SPEC_OP_SCAN: return op->u.scan.y.data;
    default: return NULL;
    }
}

/* The operation that wrote what product i reads. */
static int32_t writer_of(const spec_op *ops, int32_t i, const char *name)
{
    int32_t j = i - 1;
    while (j >= 0 && output_of(&ops[j]) != ops[i].u.linear.x.data) j--;
    if (j < 0) fail_msg("%s: nobody wrote what operation %d reads", name, i);
    return j;
}

/* A norm's rows it reads as they were written. */
static void check_product(const spec_op *ops, int32_t i, const char *name)
{
    const spec_linear_args *l = &ops[i].u.linear;
    const spec_op *from = &ops[writer_of(ops, i, name)];
    if (from->kind != SPEC_OP_NORM) return;
    assert_int_equal(l->n_in, from->u.norm.dim);
    assert_int_equal(l->x.ld, from->u.norm.y.ld);
    assert_int_equal(l->x.dtype, from->u.norm.y.dtype);
}

/* The head is the last operation of decode passes, and reads the final norm, which stands in front of it; prefill has none. */
static void check_head(const emitted *e, const char *name)
{
    for (int32_t phase = 0; phase < 2; phase++) {
        const int32_t n = e->plans.n_op[phase];
        const spec_op *ops = e->plans.ops[phase];
        for (int32_t i = 0; i < n; i++)
            if (ops[i].head != (phase == SPEC_PHASE_DECODE && i == n - 1)) fail_msg("%s: operation %d, head %d", name, i, ops[i].head);
        if (phase == SPEC_PHASE_PREFILL) continue;
        assert_int_equal(ops[n - 1].kind, SPEC_OP_LINEAR);
        assert_ptr_equal(ops[n - 1].u.linear.y.data, e->plans.logits);
        assert_int_equal(writer_of(ops, n - 1, name), n - 2);
        assert_int_equal(ops[n - 2].kind, SPEC_OP_NORM);
    }
}

/* kv_commit comes first (spec_kv_commit_args), and the embedding right behind it or first: what overlaps at its edges holds all
 * others back there. */
static void check_begin(const spec_op *ops, int32_t n, const char *name)
{
    const int32_t embed = ops[0].kind == SPEC_OP_KV_COMMIT;
    if (ops[embed].kind != SPEC_OP_EMBED) fail_msg("%s: operation %d is no embedding", name, embed);
    for (int32_t i = 1; i < n; i++)
        if (ops[i].kind == SPEC_OP_KV_COMMIT || (ops[i].kind == SPEC_OP_EMBED && i != embed))
            fail_msg("%s: operation %d belongs in front", name, i);
}

/* No norm is computed twice, though branches may share one. */
static void check_norms(const spec_op *ops, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; ops[i].kind == SPEC_OP_NORM && k < i; k++)
            if (ops[k].kind == SPEC_OP_NORM && ops[k].u.norm.weight == ops[i].u.norm.weight)
                fail_msg("%s: operation %d computes the norm of operation %d", name, i, k);
}

static void check_model(spec_backend *backend, const char *model_name, spec_dtype type)
{
    char name[96], path[256];
    snprintf(name, sizeof name, "%s, %s", model_name, spec_dtype_name(type));
    snprintf(path, sizeof path, "%s%s", GOLDEN, model_name);
    spec_model *model = support_model(backend, path, type);
    emitted e = emit(model);
    for (int32_t phase = 0; phase < 2; phase++) {
        const spec_op *ops = e.plans.ops[phase];
        check_begin(ops, e.plans.n_op[phase], name);
        check_norms(ops, e.plans.n_op[phase], name);
        for (int32_t i = 0; i < e.plans.n_op[phase]; i++)
            if (ops[i].kind == SPEC_OP_LINEAR) check_product(ops, i, name);
    }
    check_head(&e, name);
    free_emitted(&e);
    spec_model_close(model);
}

static void test_plans(void **state)
{
    static const char *const models[] = { "llama2",  "qwen2", "qwen3",       "mistral", "phi3",     "phi4_mini",
                                          "smollm3", "gemma", "gemma2",      "granite", "gpt_neox", "starcoder2",
                                          "cohere",  "gptj",  "falcon-new",  "mamba",   "mamba2",   "mamba2-ssd",
                                          "bamba",   "lfm2",  "mambainllama" };
    static const spec_dtype types[] = { SPEC_DTYPE_BF16, SPEC_DTYPE_F32, SPEC_DTYPE_F16 };
    (void)state;
    spec_backend *backend = support_backend();
    for (int32_t i = 0; i < N_ELEMENTS(models); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) check_model(backend, models[i], types[k]);
    spec_backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plans) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
