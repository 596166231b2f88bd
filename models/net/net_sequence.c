/* net_sequence.c - the slots of sequences and the KV pages that they take.
 *
 * A slot has a state that covers n_past positions, and perhaps a pending path: nodes of its last tree that were accepted
 * and will be applied by the next pass (replay, algorithms.md 9.2). Buffers with two halves: each first pass of a tree writes
 * the half that the previous one did not. */
#include "models/net/net.h"

void speci_net_begin(speci_exec *exec, int32_t slot)
{
    net_exec *net = net_of(exec);
    net_seq *s = &net->seqs[slot];
    s->n_past = s->n_recent = s->n_path = s->parity = s->n_fed = 0;
    s->broken = false;
    net->n_begun += !s->begun;
    s->live = s->begun = true;
}

/* The same buffers of the slots [first, end). */
typedef struct zero_list {
    spec_range *range;
    int32_t n, first, end;
} zero_list;

static spec_status add_zeroed(void *arg, const net_buffer *b)
{
    zero_list *z = arg;
    const size_t slot = speci_net_slot_bytes(b);
    if (b->zeroed)
        z->range[z->n++] = (spec_range){ b->base + (size_t)z->first * slot, (size_t)(z->end - z->first) * slot };
    return SPEC_OK;
}

spec_status speci_net_zero_begun(net_exec *net)
{
    for (int32_t first = 0, end; first < net->shape.n_seq; first = end) {
        end = first + 1;
        if (!net->seqs[first].begun) continue;
        while (end < net->shape.n_seq && net->seqs[end].begun) end++;
        zero_list z = { .range = net->to_zero, .first = first, .end = end };
        SPEC_TRY(speci_net_each_buffer(&net->plans, add_zeroed, &z));
        SPEC_TRY(net->ops->zero(net->queue, z.range, z.n));
        for (int32_t slot = first; slot < end; slot++) net->seqs[slot].begun = false;
        net->n_begun -= end - first;
    }
    return SPEC_OK;
}

void speci_net_end(speci_exec *exec, int32_t slot)
{
    net_exec *net = net_of(exec);
    net_seq *s = &net->seqs[slot];
    while (s->n_page > 0) net->free_pages[net->n_free++] = s->page[--s->n_page];
    net->n_begun -= s->begun;
    s->live = s->begun = false;
}

spec_status speci_net_reserve(net_exec *net, net_seq *s, int32_t n)
{
    if (net->shape.n_ctx == 0) return SPEC_OK;
    const int32_t need = (n + SPEC_PAGE - 1) / SPEC_PAGE;
    if (need > net->shape.n_page_seq)
        return speci_fail(SPEC_E_FULL, "%d positions do not fit a context of %d", n, net->shape.n_ctx);
    if (need - s->n_page > net->n_free)
        return speci_fail(SPEC_E_BUSY, "no free KV page: %d needed, %d free of %d", need - s->n_page, net->n_free,
                          net->shape.n_page);
    while (s->n_page < need) s->page[s->n_page++] = net->free_pages[--net->n_free];
    return SPEC_OK;
}

spec_status speci_net_check_live(const net_exec *net, int32_t slot)
{
    const net_seq *s = &net->seqs[slot];
    if (s->live && !s->broken) return SPEC_OK;
    return speci_fail(SPEC_E_STATE, "sequence slot %d cannot go on: %s", slot,
                      s->live ? "an earlier pass failed" : "it is empty");
}

int32_t speci_net_n_past(const speci_exec *exec, int32_t slot)
{
    const net_exec *net = net_of(exec);
    return net->seqs[slot].n_past + net->seqs[slot].n_path;
}

int32_t speci_net_n_recent(const speci_exec *exec, int32_t slot) { return net_of(exec)->seqs[slot].n_recent; }

void speci_net_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path)
{
    net_exec *net = net_of(exec);
    net_seq *s = &net->seqs[slot];
    s->n_path = n_path > 0 ? n_path : 0;
    for (int32_t j = 0; j < n_path; j++) s->path[j] = s->token ? s->token[path[j]] : path[j];
    s->n_fed = 0;
}

void speci_net_break(speci_exec *exec, int32_t slot) { net_of(exec)->seqs[slot].broken = true; }
