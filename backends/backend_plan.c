/* backend_plan.c - runs a plan: prepared by the backend, or operation by operation. */
#include "backends/backend.h"

/* Has the backend all of its operations? What stands in for others is no part of a prepared plan. */
static bool is_own(const spec_backend_ops *ops, const spec_plan *plan)
{
    for (int32_t i = 0; i < plan->n_op; i++)
        if ((int)plan->ops[i].kind < 0 || plan->ops[i].kind >= SPEC_OP_N || !ops->op[plan->ops[i].kind].run) return false;
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
