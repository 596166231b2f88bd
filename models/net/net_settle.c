/* net_settle.c - states brought up to all tokens that were applied, so that a prompt can follow.
 *
 * The states of chunked scans lag: a chunk is folded when a whole one stands behind it. What is left is folded by tokens that are
 * none: entries of zeros in the recent-token buffers have dt 0, so that they neither decay a state nor add to it. Whole chunks, the
 * rest of them and one more made of such entries, are folded by one pass; the entries are then forgotten. */
#include "models/net/net.h"

enum { RANGES = 256 /* of a call */ };

typedef struct zero_list {
    const net_exec *net;
    spec_range range[RANGES];
    int32_t n, slot, position, count;
} zero_list;

static spec_status zero_all(zero_list *z)
{
    const int32_t n = z->n;
    z->n = 0;
    return n > 0 ? z->net->ops->zero(z->net->queue, z->range, n) : SPEC_OK;
}

/* The entries of `count` positions, which may go on at the buffer's start. */
static spec_status add_entries(void *arg, const net_buffer *b)
{
    zero_list *z = arg;
    if (b->role != NET_RECENT) return SPEC_OK;
    char *const base = b->base + (size_t)z->slot * speci_net_slot_bytes(b);
    for (int32_t at = z->position, end = z->position + z->count, n; at < end; at += n) {
        const int32_t entry = at % b->n;
        n = b->n - entry < end - at ? b->n - entry : end - at;
        if (z->n == RANGES) SPEC_TRY(zero_all(z));
        z->range[z->n++] = (spec_range){ base + (size_t)entry * b->bytes, (size_t)n * b->bytes };
    }
    return SPEC_OK;
}

/* Folds what states do not cover: less than two chunks (speci_net_flush). */
static spec_status fold(net_exec *net, int32_t slot)
{
    net_seq *s = &net->seqs[slot];
    const int32_t n = s->n_recent, whole = (n + SPEC_CHUNK - 1) / SPEC_CHUNK * SPEC_CHUNK, n_none = whole + SPEC_CHUNK - n;
    zero_list z = { .net = net, .slot = slot, .position = s->n_past, .count = n_none };
    SPEC_TRY(speci_net_each_buffer(&net->plans, add_entries, &z));
    SPEC_TRY(zero_all(&z));
    s->n_recent = n + n_none, s->n_past += n_none;
    const speci_exec_input nothing = { .slot = slot };
    speci_net_describe(net, &nothing, 1, NULL);
    const spec_status status = speci_net_run(net, NET_FOLD, NULL);
    s->n_past -= n_none;
    s->n_recent = 0;
    s->broken = status != SPEC_OK;
    return status;
}

spec_status speci_net_settle(net_exec *net, int32_t slot)
{
    SPEC_TRY(speci_net_flush(&net->base, slot));
    return net->seqs[slot].n_recent > 0 ? fold(net, slot) : SPEC_OK;
}
