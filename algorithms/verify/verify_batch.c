/* verify_batch.c - the trees of one pass through the device sides of their rules: distributions first, then what each
 * of them asks for, then their walks. */
#include "algorithms/verify/verify.h"

speci_verify_item *speci_verify_next(const speci_verify_batch *b, const speci_verify_device *device,
                                     const speci_verify_item *before)
{
    speci_verify_item *x = before ? before->next : b->items;
    while (x && x->rule->device != device) x = x->next;
    return x;
}

/* The first item of every device side stands for it. */
static bool stands_for_device(const speci_verify_batch *b, const speci_verify_item *x)
{
    return speci_verify_next(b, x->rule->device, NULL) == x;
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

/* Items of one device side stand together, so that its rows are one call's. */
static spec_status enqueue_probs(speci_verify_batch *b)
{
    int32_t n_row = 0;
    for (const speci_verify_item *x = b->items; x; x = x->next) {
        const speci_verify_device *device = x->rule->device;
        if (!device->needs_probs || !stands_for_device(b, x)) continue;
        for (speci_verify_item *y = NULL; (y = speci_verify_next(b, device, y));) n_row = add_probs(b, y, n_row);
    }
    return b->ops->probs(b->queue, &(spec_probs_args){ .logits = b->logits, .ld = b->n_vocab, .n_valid = b->n_vocab,
                                                       .probs = b->p, .ld_probs = b->n_vocab, .n_probs = b->n_vocab,
                                                       .n_row = n_row, .host_src = b->rows.src, .host_dst = b->rows.dst,
                                                       .host_sampling = b->rows.sampling });
}

spec_status speci_verify_batch_enqueue(speci_verify_batch *b)
{
    bool needs_probs = false;
    for (const speci_verify_item *x = b->items; x; x = x->next) needs_probs = needs_probs || x->rule->device->needs_probs;
    if (needs_probs) SPEC_TRY(enqueue_probs(b));
    for (const speci_verify_item *x = b->items; x; x = x->next)
        if (stands_for_device(b, x) && x->rule->device->enqueue) SPEC_TRY(x->rule->device->enqueue(b, x->rule->device));
    return SPEC_OK;
}

spec_status speci_verify_batch_walk(const speci_verify_batch *b)
{
    for (const speci_verify_item *x = b->items; x; x = x->next)
        if (stands_for_device(b, x)) SPEC_TRY(x->rule->device->walk(b, x->rule->device));
    return SPEC_OK;
}
