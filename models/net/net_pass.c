/* net_pass.c - forward passes: a prompt, trees of many sequences, what is pending alone. */
#include "models/net/net.h"

static spec_status run(speci_exec *net, int32_t phase, const spec_argmax_args *argmax)
{
    spec_plan plans[2];
    SPEC_TRY(speci_net_zero_begun(net));
    speci_exec_plans(net, plans);
    return speci_plan_run(net->ops, net->queue, &plans[phase], net->prepared[phase], net->block, argmax);
}

static spec_status check_token(const speci_exec *net, int32_t token)
{
    if (token >= 0 && token < net->model->n_vocab) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", token, net->model->n_vocab);
}

/* --- prefill --- */

/* Rows of the first pass over n tokens: the smallest that takes all of them, or half of it where more rows than two of
 * the smallest passes have would stay empty; else the largest. Of n alone: a prompt is cut alike wherever it is fed. */
static int32_t pass_rows(const net_shape *s, int32_t n)
{
    int32_t rows = s->chunk_least;
    while (rows < s->chunk && rows < n) rows *= 2;
    return rows - n > 2 * s->chunk_least ? rows / 2 : rows;
}

static spec_status prefill_pass(speci_exec *net, int32_t slot, const int32_t *ids, int32_t n, int32_t rows)
{
    net_seq *s = &net->seqs[slot];
    speci_net_describe_prefill(net, slot, ids, n, rows);
    SPEC_TRY(run(net, SPEC_PHASE_PREFILL, NULL));
    s->parity ^= 1;
    s->n_past += n;
    return SPEC_OK;
}

spec_status speci_exec_prefill(speci_exec *net, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks)
{
    const speci_prefill_hooks none = { 0 }, *h = hooks ? hooks : &none;
    net_seq *s = &net->seqs[slot];
    if (n == 0) return SPEC_OK;
    if (n > (size_t)(INT32_MAX - s->n_past - s->n_path)) return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens is too long", n);
    for (size_t i = 0; i < n; i++) SPEC_TRY(check_token(net, ids[i]));
    SPEC_TRY(speci_net_reserve(net, s, s->n_past + s->n_path + (int32_t)n));
    SPEC_TRY(speci_net_settle(net, slot)); /* a pass of this kind reads states alone */
    const int32_t end = (int32_t)n, enough = h->n_least > 0 && h->n_least < end ? h->n_least : end;
    for (int32_t i = 0; i < enough;) {
        const int32_t rows = pass_rows(&net->shape, end - i), n_fed = rows < end - i ? rows : end - i;
        if (h->poll && h->poll(h->arg)) return speci_fail(SPEC_E_ABORTED, "stopped after %d of %zu prompt tokens", i, n);
        SPEC_TRY(prefill_pass(net, slot, ids + i, n_fed, rows));
        if (h->chunk) SPEC_TRY(h->chunk(h->arg, s->n_past - n_fed, n_fed));
        i += n_fed;
    }
    return SPEC_OK;
}

/* --- decode --- */

/* What can be wrong with an input (its shape is the caller's: spec_tree_check), and its pages, before the device is
 * touched. */
static spec_status check_input(speci_exec *net, const speci_exec_input *in, const speci_exec_feed *feed)
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
    const int32_t n_token = feed && feed->grown ? 1 : t->n; /* the others stand on the device */
    for (int32_t i = 0; i < t->n && i < n_token; i++) SPEC_TRY(check_token(net, t->token[i]));
    return speci_net_reserve(net, s, s->n_past + s->n_path + n);
}

/* The step was run, with this status. */
static void take_note(speci_exec *net, const speci_exec_input *in, int32_t n_in, spec_status status)
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

static spec_status pass(speci_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                        const speci_exec_tokens *tokens)
{
    speci_net_describe(net, in, n_in, feed);
    spec_argmax_args a = speci_exec_argmax(net, 0, net->block->n_row);
    if (tokens) a.host_out_token = tokens->token, a.next = tokens->next;
    const spec_status status = run(net, SPEC_PHASE_DECODE, tokens ? &a : NULL);
    take_note(net, in, n_in, status);
    return status;
}

spec_status speci_net_pass_pending(speci_exec *net, int32_t slot)
{
    const speci_exec_input nothing = { .slot = slot };
    speci_net_describe(net, &nothing, 1, NULL);
    net->block->no_head = 1;
    const spec_status status = run(net, SPEC_PHASE_DECODE, NULL);
    take_note(net, &nothing, 1, status);
    return status;
}

spec_status speci_exec_forward(speci_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens)
{
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(check_input(net, &in[k], feed));
    for (int32_t k = 0; k < n_in; k++)
        if (net->shape.joint && speci_net_joint_too_deep(net, &in[k])) SPEC_TRY(speci_net_pass_pending(net, in[k].slot));
    return pass(net, in, n_in, feed, tokens);
}

spec_status speci_exec_flush(speci_exec *net, int32_t slot)
{
    SPEC_TRY(speci_net_check_live(net, slot));
    const net_seq *s = &net->seqs[slot];
    /* Joint: a chain that was fed is folded by the pass behind. */
    for (int32_t i = 0; i < 2 && (s->n_path > 0 || spec_chunk_folds(s->n_recent) > 0); i++)
        SPEC_TRY(speci_net_pass_pending(net, slot));
    return SPEC_OK;
}

spec_status speci_exec_warm(speci_exec *net, int32_t slot, const spec_tree *tree)
{
    spec_prepared *const prepared = net->prepared[SPEC_PHASE_DECODE];
    const speci_exec_input in = { .slot = slot, .tree = tree };
    if (!prepared || !net->ops->plan_warm) return SPEC_OK;
    SPEC_TRY(check_input(net, &in, NULL));
    SPEC_TRY(speci_net_zero_begun(net));
    speci_net_describe(net, &in, 1, NULL);
    return net->ops->plan_warm(net->queue, prepared, net->block);
}

/* --- what a pass gave --- */

float *speci_exec_logits(const speci_exec *net, int32_t *ld)
{
    *ld = net->model->n_vocab;
    return net->plans.logits;
}

spec_argmax_args speci_exec_argmax(const speci_exec *net, int32_t first_row, int32_t n_row)
{
    const net_plans *p = &net->plans;
    const int32_t ld = net->model->n_vocab;
    return (spec_argmax_args){ .logits = p->logits + (size_t)first_row * (size_t)ld, .ld = ld, .n_vocab = ld,
                               .n_row = n_row };
}
