/* backend_plan.c - runs a plan: prepared by the backend, or operation by operation. */
#include "backends/backend.h"

spec_status speci_op_run(const spec_backend_ops *ops, spec_queue *q, const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_EMBED: return ops->embed(q, &op->u.embed);
    case SPEC_OP_NORM: return ops->norm(q, &op->u.norm);
    case SPEC_OP_LINEAR: return ops->linear(q, &op->u.linear);
    case SPEC_OP_KV_COMMIT: return ops->kv_commit(q, &op->u.kv_commit);
    case SPEC_OP_ROPE_KV: return ops->rope_kv(q, &op->u.rope_kv);
    case SPEC_OP_ATTENTION: return ops->attention(q, &op->u.attention);
    case SPEC_OP_CONV: return ops->conv(q, &op->u.conv);
    case SPEC_OP_SCAN: return ops->scan(q, &op->u.scan);
    case SPEC_OP_KEEP: return ops->keep(q, &op->u.keep);
    case SPEC_OP_N: break;
    }
    return speci_fail(SPEC_E_UNSUPPORTED, "a plan holds an operation of unknown kind %d", (int)op->kind);
}

spec_status speci_plan_run(const spec_backend_ops *ops, spec_queue *q, const spec_plan *plan, spec_prepared *prepared,
                           const spec_step_block *block, const spec_argmax_args *argmax)
{
    if (prepared && !block->no_head) return ops->plan_run(q, prepared, block, argmax);
    SPEC_TRY(ops->step_bind(q, block));
    for (int32_t i = 0; i < plan->n_op; i++) {
        spec_op op = plan->ops[i];
        if (block->no_head && op.head) continue;
        if (block->no_head && op.kind == SPEC_OP_EMBED) op.u.embed.best = NULL;
        SPEC_TRY(speci_op_run(ops, q, &op));
    }
    return argmax ? ops->argmax(q, argmax) : SPEC_OK;
}
