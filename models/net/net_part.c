/* net_part.c - passes in parts, of a head whose layers no drafted token enters: layers alone; logits of what nodes have handed down;
 * token info on top. HEAD and INFO are plans of their own, made of operations that the decode plan has, too: the bits are the same. */
#include "models/net/net_mixer.h"

/* Nodes that no layer sees: they take no place of the caches. */
static spec_status check_aside(const net_exec *net, const speci_exec_input *in)
{
    const int32_t n = in->tree->n + in->n_grown;
    SPEC_TRY(speci_net_check_live(net, in->slot));
    if (in->n_grown < 0 || in->n_fed < 1 || in->n_fed >= n || n > net->shape.n_node)
        return speci_fail(SPEC_E_INVALID, "nodes %d to %d of trees of up to %d", in->n_fed, n, net->shape.n_node);
    const int32_t n_token = in->tree->n - in->n_fed;
    return n_token > 0 ? speci_net_check_tokens(net, in->tree->token + in->n_fed, (size_t)n_token) : SPEC_OK;
}

static spec_status run_aside(net_exec *net, int32_t i)
{
    const spec_plan plan = speci_net_part_plan(net, i);
    return plan.n_op > 0 ? speci_plan_run(net->ops, net->queue, &plan, net->prepared_part[i], net->block, NULL) : SPEC_OK;
}

spec_status speci_net_forward_part(speci_exec *exec, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                   const speci_exec_feed *feed)
{
    net_exec *net = exec->state;
    const bool layers = part == SPECI_PART_LAYERS;
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(layers ? speci_net_check_input(net, &in[k], feed) : check_aside(net, &in[k]));
    speci_net_describe(net, in, n_in, feed);
    if (!layers) return run_aside(net, part == SPECI_PART_INFO);
    net->block->no_head = 1;
    const spec_status status = speci_net_run(net, SPEC_PHASE_DECODE, NULL);
    speci_net_take_note(net, in, n_in, status);
    return status;
}
