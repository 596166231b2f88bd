/* own_pass.c - a decode pass: the engine scores trees on the host, and their logits go where row operations find them. */
#include <math.h>

#include "models/own/own.h"

static spec_status check_input(const own_exec *own, const speci_exec_input *in, const speci_exec_feed *feed)
{
    const spec_tree *t = in->tree;
    const own_seq *s = &own->seqs[in->slot];
    const int32_t n = t->n + in->n_grown, n_token = feed && feed->grown ? 1 : t->n, n_vocab = own->base.model->n_vocab;
    SPEC_TRY(speci_own_check_live(own, in->slot));
    if (t->n < 0 || in->n_grown < 0 || n < 1 || n > own->n_node)
        return speci_fail(SPEC_E_INVALID, "a tree of %d nodes; this session planned for 1 to %d", n, own->n_node);
    if (in->n_fed < 0 || in->n_fed >= n || in->n_fed != s->n_fed * (in->n_fed > 0))
        return speci_fail(SPEC_E_INVALID, "%d of %d nodes are said to be fed; %d are", in->n_fed, n, s->n_fed);
    for (int32_t i = 0; i < t->n && i < n_token; i++) /* the others stand on the device */
        if (t->token[i] < 0 || t->token[i] >= n_vocab)
            return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", t->token[i], n_vocab);
    return SPEC_OK;
}

/* Do the logits of a row give a distribution? Minus infinity is a token that never comes. */
static bool is_distribution(const float *logits, int32_t n_vocab)
{
    int32_t n_wrong = 0, n_finite = 0;
    for (int32_t i = 0; i < n_vocab; i++) n_wrong += !(logits[i] < INFINITY), n_finite += logits[i] > -INFINITY;
    return n_wrong == 0 && n_finite > 0;
}

static spec_status check_rows(const own_exec *own, int32_t n_in)
{
    const int32_t n_vocab = own->base.model->n_vocab;
    const float *row = own->rows;
    for (int32_t k = 0; k < n_in; k++)
        for (int32_t node = own->shown[k].n_fed; node < own->shown[k].tree->n; node++, row += n_vocab)
            if (!is_distribution(row, n_vocab))
                return speci_fail(SPEC_E_INVALID, "score of the application's model: the logits of node %d of its tree %d are no numbers "
                                  "below infinity, or all of them minus infinity", node, k);
    return SPEC_OK;
}

static spec_status score(own_exec *own, const speci_exec_input *in, int32_t n_in)
{
    for (int32_t k = 0; k < n_in; k++) own->shown[k].seq = own->seqs[in[k].slot].seq;
    const uint64_t before = speci_n_failure();
    SPEC_TRY(speci_own_told(own, "score", before, own->app->score(own->app->user_data, own->rows, own->shown, n_in)));
    for (int32_t k = 0; k < n_in; k++) {
        own_seq *s = &own->seqs[in[k].slot];
        s->has_tree = true;
        s->n_fed = s->tree.n;
    }
    return check_rows(own, n_in);
}

/* Rows of the pass to the device, and their arg-max if it is wanted. */
static spec_status hand_over(own_exec *own, int32_t n_row, const speci_exec_tokens *tokens)
{
    const int32_t n_vocab = own->base.model->n_vocab;
    const size_t bytes = (size_t)n_row * (size_t)n_vocab * sizeof *own->rows;
    SPEC_TRY(own->ops->upload(own->queue, own->base.logits, own->rows, bytes));
    if (!tokens) return SPEC_OK;
    return own->ops->argmax(own->queue, &(spec_argmax_args){ .logits = own->base.logits, .ld = n_vocab, .n_vocab = n_vocab, .n_row = n_row,
                                                             .host_out_token = tokens->token, .next = tokens->next });
}

static spec_status pass(own_exec *own, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                        const speci_exec_tokens *tokens)
{
    for (int32_t k = 0; k < n_in; k++)
        if (in[k].n_fed == 0) SPEC_TRY(speci_own_ready(own, in[k].slot));
    SPEC_TRY(speci_own_show(own, in, n_in, feed));
    SPEC_TRY(score(own, in, n_in));
    const spec_model_tree *last = &own->shown[n_in - 1];
    return hand_over(own, own->base.first_row[n_in - 1] + last->tree->n - last->n_fed, tokens);
}

spec_status speci_own_forward(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens)
{
    own_exec *own = exec->state;
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(check_input(own, &in[k], feed));
    const spec_status status = pass(own, in, n_in, feed, tokens);
    for (int32_t k = 0; k < n_in && status == SPEC_E_DEVICE; k++) own->seqs[in[k].slot].broken = true;
    return status;
}
