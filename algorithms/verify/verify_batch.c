/* verify_batch.c - the trees of one pass through the device sides of their rules: distributions first, then what each
 * of them asks for, then their walks. */
#include "algorithms/verify/verify.h"

void speci_verify_batch_add(speci_verify_batch *b, speci_verify_item *x)
{
    speci_verify_item **first = &b->items;
    while (*first && (*first)->rule->device != x->rule->device) first = &(*first)->others;
    x->next = *first;
    x->others = *first ? (*first)->others : NULL;
    *first = x;
}

/* Rows p_row to p_row + tree->n - 1 of p are the item's. */
static int32_t add_probs(speci_verify_batch *b, speci_verify_item *x, int32_t n_row)
{
    x->p_row = n_row;
    for (int32_t node = 0; node < x->tree->n; node++, n_row++) {
        b->rows.src[n_row] = x->logits_row + node;
        b->rows.dst[n_row] = n_row;
        b->rows.sampling[n_row] = *x->sampling;
    }
    return n_row;
}

/* Rows of one device side stand together: they are one call's. */
static spec_status enqueue_probs(speci_verify_batch *b)
{
    int32_t n_row = 0;
    for (speci_verify_item *first = b->items; first; first = first->others)
        for (speci_verify_item *x = first; x && x->rule->device->needs_probs; x = x->next) n_row = add_probs(b, x, n_row);
    return b->ops->probs(b->queue, &(spec_probs_args){ .logits = b->logits, .ld = b->n_vocab, .n_valid = b->n_vocab,
                                                       .probs = b->p, .ld_probs = b->n_vocab, .n_probs = b->n_vocab,
                                                       .n_row = n_row, .host_src = b->rows.src, .host_dst = b->rows.dst,
                                                       .host_sampling = b->rows.sampling });
}

spec_status speci_verify_batch_enqueue(speci_verify_batch *b)
{
    bool needs_probs = false;
    for (const speci_verify_item *x = b->items; x; x = x->others) needs_probs = needs_probs || x->rule->device->needs_probs;
    if (needs_probs) SPEC_TRY(enqueue_probs(b));
    for (const speci_verify_item *x = b->items; x; x = x->others)
        if (x->rule->device->enqueue) SPEC_TRY(x->rule->device->enqueue(b, x));
    return SPEC_OK;
}

spec_status speci_verify_batch_walk(const speci_verify_batch *b)
{
    for (const speci_verify_item *x = b->items; x; x = x->others) SPEC_TRY(x->rule->device->walk(b, x));
    return SPEC_OK;
}
