/* net_joint.c - joint attainment (algorithms.md 9.3), for comparison.
 *
 * A joint executor keeps the tokens of a pending path instead of its nodes. The next pass feeds them once more, as a chain in
 * front of the caller's tree, and stores the states as of the chain's end: nothing is replayed or compacted, since the
 * chain writes its K and V where they belong. */
#include "models/net/net.h"

#include <string.h>

void speci_net_joint_chain(const net_exec *net, int32_t slot, spec_step_node *nodes, int32_t front)
{
    const net_seq *s = &net->seqs[slot];
    for (int32_t i = 0; i < front; i++) nodes[i] = (spec_step_node){ .token = s->path[i], .parent = i - 1, .depth = i };
}

static int32_t tree_depth(const spec_tree *t)
{
    int32_t most = 0;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t depth = 0;
        for (int32_t up = t->parent[i]; up >= 0; up = t->parent[up]) depth++;
        if (depth > most) most = depth;
    }
    return most;
}

bool speci_net_joint_too_deep(const net_exec *net, const speci_exec_input *in)
{
    const int32_t front = net->seqs[in->slot].n_path;
    return front > 0 && front + tree_depth(in->tree) > SPEC_MAX_DEPTH;
}

spec_status speci_net_joint_check(const speci_exec_input *in)
{
    if (in->n_fed == 0 && in->n_grown == 0) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "an executor that feeds accepted paths again takes whole trees: %d nodes are fed, %d grow",
                      in->n_fed, in->n_grown);
}

void speci_net_joint_note(net_seq *s, const spec_tree *t)
{
    if (t) memcpy(s->token, t->token, (size_t)t->n * sizeof *s->token);
}
