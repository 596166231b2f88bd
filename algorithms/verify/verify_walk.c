/* verify_walk.c - walks of scored trees: that of a rule that decides node by node (algorithms.md 3.5); and in a session those of all trees
 * of one pass, through the device sides of their rules. */
#include "algorithms/verify/verify.h"

/* --- one tree --- */

spec_status speci_verify_walk(speci_verify_node_fn decide, void *arg, const speci_verify_item *x, int32_t *path, int32_t *n_path,
                              int32_t *token)
{
    *n_path = 0;
    for (int32_t node = 0, next; node >= 0; node = next) {
        const int32_t depth = (*n_path)++;
        path[depth] = node;
        SPEC_TRY(decide(arg, node, depth, &next, token));
        if (x && *token < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node %d are not numbers", node);
        if (x && speci_has_id(x->eos, x->n_eos, *token)) next = -1;
    }
    return SPEC_OK;
}

/* --- by the likeliest token of every node, which came with the pass --- */

static spec_status follow_likeliest(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    const speci_verify_item *x = *(const speci_verify_item *const *)arg;
    (void)depth;
    *token = x->likeliest[node];
    *child = speci_tree_child_with(x->tree, node, *token);
    return SPEC_OK;
}

static spec_status walk_likeliest(const speci_verify_batch *b, const speci_verify_item *items)
{
    (void)b;
    for (const speci_verify_item *x = items; x; x = x->next)
        SPEC_TRY(speci_verify_walk(follow_likeliest, &x, x, x->path, x->n_path, x->token));
    return SPEC_OK;
}

const speci_verify_device speci_verify_by_likeliest = { .walk = walk_likeliest };

/* --- the trees of a pass: distributions first, then what each device side asks for, then the walks --- */

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
