/* net_pass.c - the sequences of an executor, and the decode passes that move them: trees of many sequences, what is pending alone.
 *
 * A slot has a state that covers n_past positions, the KV pages that it has taken, and perhaps a pending path: nodes of its last tree
 * that were accepted and will be applied by the next pass (replay, algorithms.md 9.2). Buffers with two halves: each first pass of a
 * tree writes the half that the previous one did not. What a pass is to do is said by one block of memory, the step descriptor. */
#include "models/net/net.h"

#include <string.h>

/* --- slots and their pages --- */

void speci_net_begin(speci_exec *exec, int32_t slot)
{
    net_exec *net = exec->state;
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
    net_exec *net = exec->state;
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

/* --- what is pending of a sequence --- */

int32_t speci_net_n_past(const speci_exec *exec, int32_t slot)
{
    const net_exec *net = exec->state;
    return net->seqs[slot].n_past + net->seqs[slot].n_path;
}

int32_t speci_net_n_recent(const speci_exec *exec, int32_t slot)
{
    const net_exec *net = exec->state;
    return net->seqs[slot].n_recent;
}

void speci_net_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path)
{
    net_exec *net = exec->state;
    net_seq *s = &net->seqs[slot];
    s->n_path = n_path > 0 ? n_path : 0;
    for (int32_t j = 0; j < n_path; j++) s->path[j] = s->token ? s->token[path[j]] : path[j];
    s->n_fed = 0;
}

void speci_net_break(speci_exec *exec, int32_t slot)
{
    net_exec *net = exec->state;
    net->seqs[slot].broken = true;
}

/* --- the step descriptor --- */

size_t speci_net_block_bytes(const net_shape *s)
{
    const size_t rows = (size_t)(s->n_row_decode > s->chunk ? s->n_row_decode : s->chunk);
    return sizeof(spec_step_block) + (size_t)s->n_seq * sizeof(spec_step_seq) + rows * sizeof(spec_step_node) +
           rows * sizeof(int32_t) + (size_t)s->n_row_decode * (sizeof(spec_traversal_node) + sizeof(int32_t)) +
           (size_t)s->n_seq * (size_t)s->n_page_seq * sizeof(int32_t);
}

/* Lays out an empty block for n_node nodes, n_row rows, run as n_row_run, and n_path path entries; counts are raised as
 * parts are added. */
static void block_begin(net_exec *net, int32_t phase, int32_t n_seq, int32_t n_node, int32_t n_row, int32_t n_row_run,
                        int32_t n_path)
{
    spec_step_block *b = net->block;
    size_t n = sizeof *b;
    *b = (spec_step_block){ .phase = phase, .n_seq = n_seq, .n_row = n_row, .n_row_run = n_row_run };
    b->off_seq = (int32_t)n, n += (size_t)n_seq * sizeof(spec_step_seq);
    b->off_node = (int32_t)n, n += (size_t)n_node * sizeof(spec_step_node);
    b->off_row_seq = (int32_t)n, n += (size_t)n_row * sizeof(int32_t);
    b->off_path = (int32_t)n, n += (size_t)n_path * sizeof(int32_t);
    b->off_traversal = (int32_t)n, n += phase == SPEC_PHASE_DECODE ? (size_t)n_row * sizeof(spec_traversal_node) : 0;
    b->off_page = (int32_t)n;
    b->bytes = (int32_t)n;
}

/* Running totals while the sequences of a block are added. */
typedef struct block_cursor {
    int32_t seq, node, row, path, page;
} block_cursor;

static spec_step_node *block_add(net_exec *net, block_cursor *c, int32_t slot, int32_t parity, int32_t n_replay,
                                 int32_t n_fed, int32_t n_row)
{
    spec_step_block *b = net->block;
    const net_seq *s = &net->seqs[slot];
    spec_step_seq *q = (spec_step_seq *)((char *)b + b->off_seq) + c->seq;
    *q = (spec_step_seq){ .slot = slot, .parity = parity, .n_past = s->n_past + n_replay, .n_replay = n_replay,
                          .first_path = c->path, .n_fed = n_fed, .n_row = n_row, .first_row = c->row,
                          .first_node = c->node, .first_page = c->page, .n_given = n_fed + n_row,
                          .n_recent = s->n_recent };
    int32_t *row_seq = (int32_t *)((char *)b + b->off_row_seq) + c->row;
    for (int32_t i = 0; i < n_row; i++) row_seq[i] = c->seq;
    memcpy((int32_t *)((char *)b + b->off_path) + c->path, s->path, (size_t)n_replay * sizeof(int32_t));
    memcpy((int32_t *)((char *)b + b->off_page) + c->page, s->page, (size_t)s->n_page * sizeof(int32_t));
    b->bytes += (int32_t)((size_t)s->n_page * sizeof(int32_t));
    spec_step_node *nodes = (spec_step_node *)((char *)b + b->off_node) + c->node;
    c->seq++, c->node += n_fed + n_row, c->row += n_row, c->path += n_replay, c->page += s->n_page;
    return nodes;
}

void speci_net_describe_prefill(net_exec *net, int32_t slot, const int32_t *ids, int32_t n, int32_t rows)
{
    const net_seq *s = &net->seqs[slot];
    block_cursor c = { 0 };
    block_begin(net, SPEC_PHASE_PREFILL, 1, n, n, rows, 0);
    spec_step_node *nodes = block_add(net, &c, slot, s->parity ^ 1, 0, 0, n);
    for (int32_t i = 0; i < n; i++) nodes[i] = (spec_step_node){ .token = ids[i], .parent = i - 1, .depth = i };
    net->block->n_kv = s->n_past + n;
}

/* What a pass feeds of one sequence: a chain of pending tokens in front (joint), then the caller's tree (or none). */
static void add_input(net_exec *net, block_cursor *c, const speci_exec_input *in)
{
    const spec_tree *t = in->tree;
    const net_seq *s = &net->seqs[in->slot];
    const bool first = in->n_fed == 0;
    const int32_t front = first && net->shape.joint ? s->n_path : 0, n_given = front + (t ? t->n : 0);
    const int32_t n_row = n_given + in->n_grown - in->n_fed, n_past = s->n_past + s->n_path - front;
    spec_traversal_node *schedule = (spec_traversal_node *)((char *)net->block + net->block->off_traversal) + c->row;
    spec_step_seq *seq = (spec_step_seq *)((char *)net->block + net->block->off_seq) + c->seq;
    net->base.first_row[c->seq] = c->row + front;
    spec_step_node *nodes = block_add(net, c, in->slot, first ? s->parity ^ 1 : s->parity,
                                      first ? s->n_path - front : 0, in->n_fed, n_row);
    int32_t n_level = in->n_grown > 0 ? in->depth + 1 : front; /* positions behind n_past that are written */
    seq->n_given = n_given, seq->n_advance = front;
    if (front > 0) speci_net_joint_chain(net, in->slot, nodes, front);
    for (int32_t i = front; i < n_given; i++) {
        const int32_t up = t->parent[i - front], parent = up < 0 ? front - 1 : front + up;
        nodes[i] = (spec_step_node){ .token = t->token[i - front], .parent = parent,
                                     .depth = parent < 0 ? 0 : nodes[parent].depth + 1 };
        if (nodes[i].depth + 1 > n_level) n_level = nodes[i].depth + 1;
    }
    if (n_level > 0 && n_past + n_level > net->block->n_kv) net->block->n_kv = n_past + n_level;
    if (n_row > 0 && net->walks) speci_traversal_schedule(nodes, in->n_fed, n_given, n_row, schedule);
}

void speci_net_describe(net_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed)
{
    int32_t n_node = 0, n_row = 0, n_path = 0;
    for (int32_t k = 0; k < n_in; k++) {
        const int32_t front = net->shape.joint ? net->seqs[in[k].slot].n_path : 0;
        const int32_t n = front + (in[k].tree ? in[k].tree->n : 0) + in[k].n_grown;
        n_node += n;
        n_row += n - in[k].n_fed;
        n_path += in[k].n_fed == 0 ? net->seqs[in[k].slot].n_path - front : 0;
    }
    block_cursor c = { 0 };
    block_begin(net, SPEC_PHASE_DECODE, n_in, n_node, n_row, n_row, n_path);
    if (feed) {
        net->block->feed = feed->nodes, net->block->ld_feed = feed->ld;
        net->block->grown = feed->grown, net->block->ld_grown = feed->ld_grown;
    }
    for (int32_t k = 0; k < n_in; k++) add_input(net, &c, &in[k]);
}

/* --- passes --- */

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
    net_exec *net = exec->state;
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
    net_exec *net = exec->state;
    SPEC_TRY(speci_net_check_live(net, slot));
    const net_seq *s = &net->seqs[slot];
    /* Joint: a chain that was fed is folded by the pass behind. */
    for (int32_t i = 0; i < 2 && (s->n_path > 0 || spec_chunk_folds(s->n_recent) > 0); i++)
        SPEC_TRY(pass_pending(net, slot));
    return SPEC_OK;
}

spec_status speci_net_warm(speci_exec *exec, const speci_exec_input *in, int32_t n_in)
{
    net_exec *net = exec->state;
    spec_prepared *const prepared = net->prepared[SPEC_PHASE_DECODE];
    if (!prepared || !net->ops->plan_warm) return SPEC_OK;
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(speci_net_check_input(net, &in[k], NULL));
    SPEC_TRY(speci_net_zero_begun(net));
    speci_net_describe(net, in, n_in, NULL);
    return net->ops->plan_warm(net->queue, prepared, net->block);
}
