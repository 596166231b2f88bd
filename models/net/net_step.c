/* net_step.c - the step descriptor: what a pass is to do, as one block of memory. */
#include "models/net/net.h"

#include <string.h>

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
