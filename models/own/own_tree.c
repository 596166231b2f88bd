/* own_tree.c - trees as the engine is shown them: all nodes on the host. Those of trees that grow on the device, or have grown
 * there to a shape that was known before, are fetched. */
#include <string.h>

#include "models/own/own.h"

/* Do the tokens of given nodes stand on the device? All but the root's. */
static bool tokens_grown(const speci_exec_input *in, const speci_exec_feed *feed)
{
    return feed && feed->grown && in->tree->n > 1;
}

static spec_status fetch(own_exec *own, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed)
{
    bool waits = false;
    for (int32_t k = 0; k < n_in; k++) {
        const size_t at = (size_t)k * (size_t)own->n_node, slot = (size_t)in[k].slot, n = (size_t)in[k].tree->n;
        if (in[k].n_grown > 0)
            SPEC_TRY(own->ops->download(own->queue, own->nodes + at, feed->nodes + slot * (size_t)feed->ld + n,
                                        (size_t)in[k].n_grown * sizeof *own->nodes));
        if (tokens_grown(&in[k], feed))
            SPEC_TRY(own->ops->download(own->queue, own->grown + at, feed->grown + slot * (size_t)feed->ld_grown,
                                        n * sizeof *own->grown));
        waits = waits || in[k].n_grown > 0 || tokens_grown(&in[k], feed);
    }
    return waits ? own->ops->sync(own->queue) : SPEC_OK;
}

/* What the host gave, and what was fetched. */
static void assemble(const own_exec *own, int32_t k, const speci_exec_input *in, const speci_exec_feed *feed, spec_tree *out)
{
    const size_t at = (size_t)k * (size_t)own->n_node;
    const int32_t n = in->tree->n;
    if (n > 0) memcpy(out->token, in->tree->token, (size_t)n * sizeof *out->token);
    if (n > 0) memcpy(out->parent, in->tree->parent, (size_t)n * sizeof *out->parent);
    for (int32_t i = 1; i < n && tokens_grown(in, feed); i++) out->token[i] = own->grown[at + (size_t)i].token;
    for (int32_t i = 0; i < in->n_grown; i++) {
        out->token[n + i] = own->nodes[at + (size_t)i].token;
        out->parent[n + i] = own->nodes[at + (size_t)i].parent;
    }
    out->n = n + in->n_grown;
}

/* What came from the device is not believed. */
static spec_status check_nodes(const own_exec *own, const spec_tree *t)
{
    for (int32_t i = 0; i < t->n; i++)
        if (t->token[i] < 0 || t->token[i] >= own->base.model->n_vocab || t->parent[i] < (i > 0 ? 0 : -1) || t->parent[i] >= i)
            return speci_fail(SPEC_E_DEVICE, "node %d of a tree is token %d below node %d, of %d ids", i, t->token[i],
                              t->parent[i], own->base.model->n_vocab);
    return SPEC_OK;
}

spec_status speci_own_show(own_exec *own, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed)
{
    int32_t n_row = 0;
    SPEC_TRY(fetch(own, in, n_in, feed));
    for (int32_t k = 0; k < n_in; k++) {
        spec_tree *t = &own->seqs[in[k].slot].tree;
        assemble(own, k, &in[k], feed, t);
        SPEC_TRY(check_nodes(own, t));
        own->shown[k] = (spec_model_tree){ .tree = t, .n_fed = in[k].n_fed };
        own->base.first_row[k] = n_row;
        n_row += t->n - in[k].n_fed;
    }
    return SPEC_OK;
}
