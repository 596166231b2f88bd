/* backend_ops.c - the kinds of operations: their names, and what stands in where a backend's table has no row for one. And plans of
 * operations: prepared by the backend, or run one by one. */
#include "backends/backend.h"
#include "core/core_dtype.h"

/* --- kv_commit by copies on the device --- */

enum { COPIES = 64 /* ranges of a call */ };

typedef struct copy_list {
    const spec_backend_ops *ops;
    spec_queue *q;
    spec_range_copy range[COPIES];
    int32_t n;
} copy_list;

static spec_status copy_all(copy_list *list)
{
    const int32_t n = list->n;
    list->n = 0;
    return n > 0 ? list->ops->copy(list->q, list->range, n) : SPEC_OK;
}

/* The vector [head_dim] of a head in a slot of one of the caches: its bytes, and where it is, bytes from the cache's start. */
static size_t kv_bytes(const spec_kv *kv) { return (size_t)kv->head_dim * speci_dtype_bytes(kv->dtype); }
static size_t kv_offset(const spec_kv *kv, const int32_t *page, int32_t slot, int32_t head)
{
    const size_t block = (size_t)page[slot / SPEC_PAGE] * (size_t)kv->n_kv_head + (size_t)head;
    return (block * SPEC_PAGE + (size_t)(slot % SPEC_PAGE)) * kv_bytes(kv);
}

/* All layers' K and V of a slot. None of these ranges meets another. */
static spec_status move_slot(copy_list *list, const spec_kv_commit_args *a, const int32_t *page, int32_t to, int32_t from)
{
    for (int32_t l = 0; l < a->n_layer; l++) {
        const spec_kv *kv = &a->layers[l];
        char *const cache[] = { kv->k, kv->v };
        for (int32_t i = 0; i < 2 * kv->n_kv_head; i++) {
            char *base = cache[i % 2];
            list->range[list->n++] = (spec_range_copy){ base + kv_offset(kv, page, to, i / 2),
                                                        base + kv_offset(kv, page, from, i / 2), kv_bytes(kv) };
            if (list->n == COPIES) SPEC_TRY(copy_all(list));
        }
    }
    return copy_all(list);
}

/* A path ascends, so a slot is read before a later move writes it. */
static spec_status kv_commit_by_copies(const spec_backend_ops *ops, spec_queue *q, const spec_op *op,
                                       const spec_step_block *step)
{
    copy_list list = { .ops = ops, .q = q };
    for (int32_t i = 0; i < step->n_seq; i++) {
        const spec_step_seq *s = &spec_step_seqs(step)[i];
        const int32_t *path = spec_step_paths(step) + s->first_path, *page = spec_step_pages(step) + s->first_page;
        const int32_t first = s->n_past - s->n_replay;
        for (int32_t j = 0; j < s->n_replay; j++)
            if (path[j] != j) SPEC_TRY(move_slot(&list, &op->u.kv_commit, page, first + j, first + path[j]));
    }
    return SPEC_OK;
}

/* --- the table --- */

const speci_op_kind speci_op_kinds[SPEC_OP_N] = {
    [SPEC_OP_EMBED] = { .name = "embed" },
    [SPEC_OP_NORM] = { .name = "norm" },
    [SPEC_OP_LINEAR] = { .name = "linear" },
    [SPEC_OP_KV_COMMIT] = { .name = "kv_commit", .fallback = kv_commit_by_copies, .replays = true },
    [SPEC_OP_ROPE_KV] = { .name = "rope_kv" },
    [SPEC_OP_ATTENTION] = { .name = "attention" },
    [SPEC_OP_CONV] = { .name = "conv", .replays = true },
    [SPEC_OP_SCAN] = { .name = "scan", .replays = true },
    [SPEC_OP_KEEP] = { .name = "keep" },
    [SPEC_OP_RECYCLE] = { .name = "recycle", .optional = true },
    [SPEC_OP_BIAS] = { .name = "bias", .optional = true },
    [SPEC_OP_GLU] = { .name = "glu", .optional = true },
};

static bool is_known(const spec_op *op) { return (int)op->kind >= 0 && op->kind < SPEC_OP_N; }

/* What the operation asks for that the table may be too old for; NULL: nothing. */
static const char *unknown_to(const spec_backend_ops *ops, const spec_op *op)
{
    const bool cap = (op->kind == SPEC_OP_ATTENTION && op->u.attention.cap != 0) ||
                     (op->kind == SPEC_OP_LINEAR && op->u.linear.act == SPEC_ACT_CAP);
    const bool gain = op->kind == SPEC_OP_ROPE_KV && op->u.rope_kv.gain != 0 && op->u.rope_kv.gain != 1;
    if (cap && !(ops->knows & SPEC_KNOWS_CAP)) return "softly capped values";
    return gain && !(ops->knows & SPEC_KNOWS_GAIN) ? "a gain of the dimensions that turn" : NULL;
}

spec_status speci_op_supports(const spec_backend_ops *ops, spec_device *dev, const spec_op *op)
{
    const char *unknown = unknown_to(ops, op);
    if (unknown)
        return speci_fail(SPEC_E_UNSUPPORTED, "backend %s: its %s does not know %s", ops->name, speci_op_kinds[op->kind].name, unknown);
    if (is_known(op) && ops->op[op->kind].supports) return ops->op[op->kind].supports(dev, op);
    if (is_known(op) && speci_op_kinds[op->kind].fallback) return SPEC_OK;
    if (is_known(op)) return speci_fail(SPEC_E_UNSUPPORTED, "backend %s has no operation %s", ops->name, speci_op_kinds[op->kind].name);
    return speci_fail(SPEC_E_UNSUPPORTED, "backend %s: operation of unknown kind %d", ops->name, (int)op->kind);
}

/* An operation of the library's own: its kind is one that there is. */
spec_status speci_op_run(const spec_backend_ops *ops, spec_queue *q, const spec_op *op, const spec_step_block *step)
{
    const speci_op_kind *kind = &speci_op_kinds[op->kind];
    if (ops->op[op->kind].run) return ops->op[op->kind].run(q, op);
    if (kind->fallback) return kind->fallback(ops, q, op, step);
    return speci_fail(SPEC_E_UNSUPPORTED, "backend %s has no operation %s", ops->name, kind->name);
}

/* --- plans --- */

/* Has the backend all of its operations? What stands in for others is no part of a prepared plan. */
static bool is_own(const spec_backend_ops *ops, const spec_plan *plan)
{
    for (int32_t i = 0; i < plan->n_op; i++)
        if (!is_known(&plan->ops[i]) || !ops->op[plan->ops[i].kind].run) return false;
    return true;
}

spec_status speci_plan_prepare(const spec_backend_ops *ops, spec_queue *q, spec_prepared **out, const spec_plan *plan, bool capture)
{
    *out = NULL;
    return ops->plan_prepare && is_own(ops, plan) ? ops->plan_prepare(q, out, plan, capture) : SPEC_OK;
}

spec_status speci_plan_run(const spec_backend_ops *ops, spec_queue *q, const spec_plan *plan, spec_prepared *prepared,
                           const spec_step_block *block, const spec_argmax_args *argmax)
{
    if (prepared) return ops->plan_run(q, prepared, block, argmax);
    SPEC_TRY(ops->step_bind(q, block));
    for (int32_t i = 0; i < plan->n_op; i++)
        if (!block->no_head || !plan->ops[i].head) SPEC_TRY(speci_op_run(ops, q, &plan->ops[i], block));
    return argmax ? ops->argmax(q, argmax) : SPEC_OK;
}
