/* net_pass.c - decode passes: trees of many sequences, what is pending alone. */
#include "models/net/net.h"

spec_status speci_net_run(net_exec *net, int32_t plan, const spec_argmax_args *argmax)
{
    if (net->n_begun > 0) SPEC_TRY(speci_net_zero_begun(net));
    return speci_plan_run(net->ops, net->queue, &net->plan[plan], net->prepared[plan], net->block, argmax);
}

spec_status speci_net_check_tokens(const net_exec *net, const int32_t *ids, size_t n)
{
    const int32_t n_vocab = net->base.model->n_vocab;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", ids[i], n_vocab);
    return SPEC_OK;
}

/* What can be wrong with an input (its shape is the caller's: spec_tree_check), and its pages, before the device is
 * touched. */
spec_status speci_net_check_input(net_exec *net, const speci_exec_input *in, const speci_exec_feed *feed)
{
    const spec_tree *t = in->tree;
    net_seq *s = &net->seqs[in->slot];
    SPEC_TRY(speci_net_check_live(net, in->slot));
    const int32_t n = t->n + in->n_grown;
    if (t->n < 0 || in->n_grown < 0 || n < 1 || n > net->shape.n_node)
        return speci_fail(SPEC_E_INVALID, "a tree of %d nodes; this session planned for 1 to %d", n,
                          net->shape.n_node);
    if (in->n_fed < 0 || in->n_fed >= n || in->n_fed != s->n_fed * (in->n_fed > 0))
        return speci_fail(SPEC_E_INVALID, "%d of %d nodes are said to be fed; %d are", in->n_fed, n, s->n_fed);
    if (net->shape.joint) SPEC_TRY(speci_net_joint_check(in));
    const int32_t n_token = feed && feed->grown ? speci_min32(t->n, 1) : t->n; /* the others stand on the device */
    SPEC_TRY(speci_net_check_tokens(net, t->token, (size_t)n_token));
    return speci_net_reserve(net, s, s->n_past + s->n_path + n);
}

/* The step was run, with this status. */
void speci_net_take_note(net_exec *net, const speci_exec_input *in, int32_t n_in, spec_status status)
{
    for (int32_t k = 0; k < n_in; k++) {
        net_seq *s = &net->seqs[in[k].slot];
        const spec_tree *t = in[k].tree;
        s->broken = status != SPEC_OK;
        if (in[k].n_fed == 0) {
            const int32_t front = net->shape.joint ? s->n_path : 0, replayed = s->n_path - front;
            if (net->shape.n_recent_max > 0) s->n_recent = spec_chunk_left(s->n_recent + replayed) + front;
            s->parity ^= 1;
            s->n_past += s->n_path;
            s->n_path = 0;
        }
        s->n_fed = (t ? t->n : 0) + in[k].n_grown;
        if (net->shape.joint) speci_net_joint_note(s, t);
    }
}

/* What is pending of a sequence, and no tree: logits and kept rows, of which those of other sequences may still be wanted, stay.
 * Joint: tokens that are fed again are rows. */
static spec_status pass_pending(net_exec *net, int32_t slot)
{
    const speci_exec_input nothing = { .slot = slot };
    speci_net_describe(net, &nothing, 1, NULL);
    net->block->no_head = 1;
    const spec_status status = speci_net_run(net, net->block->n_row > 0 ? SPEC_PHASE_DECODE : NET_REPLAY, NULL);
    speci_net_take_note(net, &nothing, 1, status);
    return status;
}

spec_status speci_net_forward(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens)
{
    net_exec *net = net_of(exec);
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(speci_net_check_input(net, &in[k], feed));
    for (int32_t k = 0; k < n_in; k++)
        if (net->shape.joint && speci_net_joint_too_deep(net, &in[k])) SPEC_TRY(pass_pending(net, in[k].slot));
    speci_net_describe(net, in, n_in, feed);
    spec_argmax_args a = { .logits = net->base.logits, .ld = net->base.n_logit, .n_vocab = net->base.n_logit, .n_row = net->block->n_row };
    if (tokens) a.host_out_token = tokens->token, a.next = tokens->next;
    const spec_status status = speci_net_run(net, SPEC_PHASE_DECODE, tokens ? &a : NULL);
    speci_net_take_note(net, in, n_in, status);
    return status;
}

spec_status speci_net_flush(speci_exec *exec, int32_t slot)
{
    net_exec *net = net_of(exec);
    SPEC_TRY(speci_net_check_live(net, slot));
    const net_seq *s = &net->seqs[slot];
    /* Joint: a chain that was fed is folded by the pass behind. */
    for (int32_t i = 0; i < 2 && (s->n_path > 0 || spec_chunk_folds(s->n_recent) > 0); i++)
        SPEC_TRY(pass_pending(net, slot));
    return SPEC_OK;
}

spec_status speci_net_warm(speci_exec *exec, const speci_exec_input *in, int32_t n_in)
{
    net_exec *net = net_of(exec);
    spec_prepared *const prepared = net->prepared[SPEC_PHASE_DECODE];
    if (!prepared || !net->ops->plan_warm) return SPEC_OK;
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(speci_net_check_input(net, &in[k], NULL));
    SPEC_TRY(speci_net_zero_begun(net));
    speci_net_describe(net, in, n_in, NULL);
    return net->ops->plan_warm(net->queue, prepared, net->block);
}
