/* test_model_plan.c - the plans of models: how they begin, which norms are deferred (spec_backend.h, algorithms.md 7.6), that every
 * product which reads one has its squares and its eps, and who notes the rows' largest. */
#include <stdio.h>

#include "models/net/net.h"
#include "tests/support_model.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { SEQS = 2, NODES = 8 };

/* Both plans, in host memory that nobody computes with. */
typedef struct emitted {
    net_plans plans;
    net_memory memory;
    net_shape shape;
} emitted;

static emitted emit(const spec_model *model)
{
    const speci_exec_params p = { .n_seq = SEQS, .n_ctx = 128, .n_node = NODES, .best = true };
    emitted e = { .shape = speci_net_shape_of(model, &p) };
    net_plans *plans = &e.plans;
    speci_net_emit(plans, &e.memory, model, &e.shape);
    for (int i = 0; i < 2; i++) assert_non_null(plans->ops[i] = calloc((size_t)plans->n_op[i], sizeof(spec_op)));
    assert_non_null(plans->kv = calloc((size_t)plans->n_kv + 1, sizeof *plans->kv));
    assert_non_null(plans->kept = calloc((size_t)plans->n_kept + 1, sizeof *plans->kept));
    net_arena *arenas[] = { &e.memory.work, &e.memory.state, &e.memory.kv };
    for (int i = 0; i < 3; i++) assert_non_null(arenas[i]->base = malloc(arenas[i]->n + 256));
    speci_net_emit(plans, &e.memory, model, &e.shape);
    return e;
}

static void free_emitted(emitted *e)
{
    void *all[] = { e->plans.ops[0], e->plans.ops[1], e->plans.kv, e->plans.kept, e->memory.work.base,
                    e->memory.state.base, e->memory.kv.base };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) free(all[i]);
}

static bool is_deferred(const spec_norm_args *a, int32_t phase, spec_dtype type)
{
    return phase == SPEC_PHASE_DECODE && type == SPEC_DTYPE_BF16 && a->kind == SPEC_NORM_RMS && a->n_group == 1 &&
           !a->bias && !a->norm_first && a->dim % SPEC_SQUARES == 0;
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

/* The norm that wrote what product i reads, or NULL. Its squares are still there. */
static const spec_norm_args *norm_of(const spec_op *ops, int32_t i, const char *name)
{
    int32_t j = i - 1;
    while (j >= 0 && output_of(&ops[j]) != ops[i].u.linear.x.data) j--;
    if (j < 0) fail_msg("%s: nobody wrote what operation %d reads", name, i);
    if (ops[j].kind != SPEC_OP_NORM) return NULL;
    for (int32_t k = j + 1; k < i; k++)
        if (ops[k].kind == SPEC_OP_NORM && ops[k].u.norm.squares && ops[k].u.norm.squares == ops[j].u.norm.squares)
            fail_msg("%s: operation %d finds the squares of another norm", name, i);
    return &ops[j].u.norm;
}

static void check_product(const spec_op *ops, int32_t i, const char *name)
{
    const spec_linear_args *l = &ops[i].u.linear;
    const spec_norm_args *norm = norm_of(ops, i, name);
    if (l->squares != (norm ? norm->squares : NULL)) fail_msg("%s: operation %d has not the squares of its input", name, i);
    if (!l->squares) return;
    assert_int_equal(l->n_in, norm->dim);
    assert_int_equal(l->x.ld, norm->y.ld);
    assert_memory_equal(&l->eps, &norm->eps, sizeof l->eps);
}

/* The final norm's factor is never left to the head: whoever reads the row reads what the head multiplies. */
static void check_norm(const emitted *e, const spec_norm_args *a, bool final, int32_t phase, spec_dtype type, const char *name)
{
    assert_int_equal(a->squares != NULL, !final && is_deferred(a, phase, type));
    if (!a->squares) return;
    const size_t bytes = (size_t)(e->shape.n_row_decode * a->dim / SPEC_SQUARES) * sizeof(float);
    const size_t at = (size_t)((const char *)a->squares - e->memory.work.base);
    if (at + bytes > e->memory.work.n) fail_msg("%s: squares of %d columns lie outside", name, a->dim);
    const char *y = a->y.data, *y_end = y + (size_t)(e->shape.n_row_decode * a->y.ld) * test_type_size(a->y.dtype);
    if ((const char *)a->squares + bytes > y && (const char *)a->squares < y_end) fail_msg("%s: squares lie in y", name);
}

static int32_t count_deferred(const emitted *e)
{
    int32_t n = 0;
    for (int32_t phase = 0; phase < 2; phase++)
        for (int32_t i = 0; i < e->plans.n_op[phase]; i++) {
            const spec_op *op = &e->plans.ops[phase][i];
            n += op->kind == SPEC_OP_NORM && op->u.norm.squares;
        }
    return n;
}

/* Of a device that defers no norms of models as wide as this one. */
static void check_too_wide(spec_model *model)
{
    model->backend->info.defer_norms = model->dim - 1;
    emitted e = emit(model);
    assert_int_equal(count_deferred(&e), 0);
    free_emitted(&e);
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

/* Counts the deferred norms of both plans. */
static void check_model(const char *model_name, spec_dtype type, int32_t *n_deferred)
{
    char name[96], path[256];
    snprintf(name, sizeof name, "%s, %s", model_name, spec_dtype_name(type));
    snprintf(path, sizeof path, "%s%s", GOLDEN, model_name);
    spec_model *model = support_model(support_backend(), path, type);
    model->backend->info.defer_norms = model->dim; /* whatever the device would like */
    emitted e = emit(model);
    for (int32_t phase = 0; phase < 2; phase++) {
        const spec_op *ops = e.plans.ops[phase];
        check_begin(ops, e.plans.n_op[phase], name);
        for (int32_t i = 0; i < e.plans.n_op[phase]; i++) {
            if (ops[i].kind == SPEC_OP_LINEAR) check_product(ops, i, name);
            if (ops[i].kind == SPEC_OP_NORM) check_norm(&e, &ops[i].u.norm, ops[i + 1].head, phase, type, name);
        }
    }
    *n_deferred += count_deferred(&e);
    free_emitted(&e);
    check_too_wide(model);
    spec_model_close(model);
}

static void test_deferred(void **state)
{
    static const char *const models[] = { "llama2", "qwen2", "qwen3", "mistral", "gpt_neox", "mamba", "mamba2", "mamba2-ssd",
                                          "bamba", "mambainllama" };
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(models); i++) {
        int32_t n_bf16 = 0, n_others = 0;
        check_model(models[i], SPEC_DTYPE_BF16, &n_bf16);
        check_model(models[i], SPEC_DTYPE_F32, &n_others);
        check_model(models[i], SPEC_DTYPE_F16, &n_others);
        assert_int_equal(n_others, 0);
        assert_int_equal(n_bf16 == 0, strcmp(models[i], "gpt_neox") == 0);
    }
}

/* The operations of a plan that have `best`: all have the same. */
static int32_t count_best(const emitted *e, int32_t phase)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->plans.n_op[phase]; i++) {
        const spec_op *op = &e->plans.ops[phase][i];
        const uint64_t *best = op->kind == SPEC_OP_EMBED    ? op->u.embed.best
                               : op->kind == SPEC_OP_LINEAR ? op->u.linear.best
                                                            : NULL;
        if (best) assert_ptr_equal(best, e->plans.best);
        n += best != NULL;
    }
    return n;
}

/* Of decode passes alone, the head notes them and the embedding sets them to 0. */
static void test_best(void **state)
{
    (void)state;
    spec_model *model = support_model(support_backend(), GOLDEN "bamba", SPEC_DTYPE_BF16);
    for (int32_t can = 0; can < 2; can++) {
        model->backend->info.row_best = can; /* whatever the device would like */
        emitted e = emit(model);
        const spec_op *ops = e.plans.ops[SPEC_PHASE_DECODE], *head = &ops[e.plans.n_op[SPEC_PHASE_DECODE] - 1];
        assert_int_equal(count_best(&e, SPEC_PHASE_DECODE), 2 * can);
        assert_int_equal(count_best(&e, SPEC_PHASE_PREFILL), 0);
        assert_ptr_equal(head->u.linear.y.data, e.plans.logits);
        assert_ptr_equal(head->u.linear.best, e.plans.best);
        assert_int_equal(e.plans.best != NULL, can);
        free_emitted(&e);
    }
    spec_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_deferred), cmocka_unit_test(test_best) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
