/* net_executor.c - a model at work: sequence memory, the step descriptor, forward passes.
 *
 * A sequence slot has a state that covers n_past positions, and perhaps a pending path: nodes of its last tree that
 * were accepted and will be applied by the next pass (replay, algorithms.md 9.2). Caches and convolution windows
 * have two halves; each first pass of a tree writes the half that the previous one did not.
 *
 * A joint net (9.3) keeps the tokens of a pending path instead of its nodes. The next pass feeds them once more, as
 * a chain in front of the caller's tree, and stores the states as of the chain's end: nothing is replayed or
 * compacted, since the chain writes its K and V where they belong. */
#include "models/net/net.h"

#include <string.h>

/* --- memory --- */

void speci_exec_memory(const speci_exec *net, spec_memory *out)
{
    out->bytes_work += net->memory.work.n;
    out->bytes_state += net->memory.state.n;
    out->bytes_kv += net->memory.kv.n;
}

spec_status speci_exec_bytes(const spec_model *model, const speci_exec_params *p, spec_memory *out)
{
    speci_exec *net;
    SPEC_TRY(speci_exec_open(&net, model, p));
    speci_exec_memory(net, out);
    speci_exec_close(net);
    return SPEC_OK;
}

/* The largest step descriptor: every part at its capacity. */
static size_t block_bytes(const net_shape *s)
{
    const size_t rows = (size_t)(s->n_row_decode > s->chunk ? s->n_row_decode : s->chunk);
    return sizeof(spec_step_block) + (size_t)s->n_seq * sizeof(spec_step_seq) + rows * sizeof(spec_step_node) +
           rows * sizeof(int32_t) + (size_t)s->n_row_decode * (sizeof(spec_traversal_node) + sizeof(int32_t)) +
           (size_t)s->n_seq * (size_t)s->n_page_seq * sizeof(int32_t);
}

static spec_status alloc_host(speci_exec *net)
{
    const net_shape *s = &net->shape;
    net_plans *plans = &net->plans;
    for (int i = 0; i < 2; i++)
        if (!(plans->ops[i] = speci_alloc(net->a, (size_t)plans->n_op[i], sizeof(spec_op)))) return SPEC_E_NOMEM;
    for (int i = 0; i < 2 && s->n_tap > 0; i++)
        if (!(plans->taps[i] = speci_alloc(net->a, (size_t)s->n_tap, sizeof(spec_view)))) return SPEC_E_NOMEM;
    if (!(plans->kv = speci_alloc(net->a, (size_t)plans->n_kv, sizeof(spec_kv)))) return SPEC_E_NOMEM;
    plans->slot_memory = speci_alloc(net->a, (size_t)plans->n_slot_memory, sizeof(net_slot_memory));
    if (!plans->slot_memory) return SPEC_E_NOMEM;
    if (!(net->to_zero = speci_alloc(net->a, (size_t)plans->n_slot_memory, sizeof(spec_range)))) return SPEC_E_NOMEM;
    if (!(net->seqs = speci_alloc(net->a, (size_t)s->n_seq, sizeof(net_seq)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_seq; i++) {
        net_seq *q = &net->seqs[i];
        if (!(q->path = speci_alloc(net->a, (size_t)s->n_node, sizeof(int32_t)))) return SPEC_E_NOMEM;
        if (s->joint && !(q->token = speci_alloc(net->a, (size_t)s->n_node, sizeof(int32_t)))) return SPEC_E_NOMEM;
        if (!(q->page = speci_alloc(net->a, (size_t)s->n_page_seq, sizeof(int32_t)))) return SPEC_E_NOMEM;
    }
    if (!(net->free_pages = speci_alloc(net->a, (size_t)s->n_page, sizeof(int32_t)))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_page; i++) net->free_pages[net->n_free++] = s->n_page - 1 - i;
    net->block_cap = block_bytes(s);
    if (net->block_cap > INT32_MAX)
        return speci_fail(SPEC_E_INVALID, "a context of %d positions is more than a step can describe", s->n_ctx);
    return (net->block = speci_alloc(net->a, 1, net->block_cap)) ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status alloc_device(speci_exec *net)
{
    net_arena *arenas[] = { &net->memory.work, &net->memory.state, &net->memory.kv };
    for (size_t i = 0; i < 3; i++) {
        void *p = NULL;
        if (arenas[i]->n > 0) SPEC_TRY(net->ops->alloc(net->dev, &p, arenas[i]->n));
        arenas[i]->base = p;
    }
    return SPEC_OK;
}

/* Abilities are asked once, here; decode passes then fail for the device's own reasons only. */
static spec_status check_abilities(const speci_exec *net)
{
    for (int i = 0; i < 2; i++)
        for (int32_t j = 0; j < net->plans.n_op[i]; j++) SPEC_TRY(net->ops->can(net->dev, &net->plans.ops[i][j]));
    return SPEC_OK;
}

/* The caller's list, checked, as a copy of our own. */
static spec_status take_tap_list(speci_exec *net)
{
    net_shape *s = &net->shape;
    if (s->n_tap < 0 || (s->n_tap > 0 && !s->taps)) return speci_fail(SPEC_E_INVALID, "a list of %d taps", s->n_tap);
    for (int32_t i = 0; i < s->n_tap; i++) {
        const spec_tap *t = &s->taps[i];
        const int32_t most = t->where == SPEC_TAP_LAYER ? net->model->n_layer - 1 : 0;
        if (t->where < SPEC_TAP_LAYER || t->where > SPEC_TAP_NORM || t->layer < 0 || t->layer > most)
            return speci_fail(SPEC_E_INVALID, "tap %d: there is no place %d, layer %d in a model of %d layers", i, t->where,
                              t->layer, net->model->n_layer);
    }
    if (s->n_tap == 0) return SPEC_OK;
    if (!(net->taps = speci_alloc(net->a, (size_t)s->n_tap, sizeof *net->taps))) return SPEC_E_NOMEM;
    memcpy(net->taps, s->taps, (size_t)s->n_tap * sizeof *net->taps);
    s->taps = net->taps;
    return SPEC_OK;
}

static spec_status net_open(speci_exec *net)
{
    const int32_t row_max = net->model->backend->info.row_max;
    if (net->shape.n_row_decode > row_max)
        return speci_fail(SPEC_E_INVALID, "%d sequences of %d nodes, accepted paths in front included, are more than the "
                          "%d rows that this device takes in a pass", net->shape.n_seq, net->shape.n_cache, row_max);
    SPEC_TRY(take_tap_list(net));
    speci_net_emit(&net->plans, &net->memory, net->model, &net->shape); /* counts and measures: nothing is there yet */
    SPEC_TRY(alloc_host(net));
    speci_net_emit(&net->plans, &net->memory, net->model, &net->shape);
    return SPEC_OK;
}

spec_status speci_exec_open(speci_exec **out, const spec_model *model, const speci_exec_params *p)
{
    *out = NULL;
    speci_exec *net = speci_alloc(model->allocator, 1, sizeof *net);
    if (!net) return SPEC_E_NOMEM;
    net->model = model;
    net->a = model->allocator;
    net->ops = model->backend->ops;
    net->dev = model->backend->dev;
    net->shape = speci_net_shape_of(model, p);
    const spec_status status = net_open(net);
    if (status != SPEC_OK) {
        speci_exec_close(net);
        return status;
    }
    *out = net;
    return SPEC_OK;
}

void speci_exec_close(speci_exec *net)
{
    if (!net) return;
    for (int i = 0; i < 2; i++) {
        if (net->prepared[i]) net->ops->plan_free(net->queue, net->prepared[i]);
        speci_free(net->a, net->plans.ops[i]);
        speci_free(net->a, net->plans.taps[i]);
    }
    net_arena *arenas[] = { &net->memory.work, &net->memory.state, &net->memory.kv };
    for (size_t i = 0; i < 3; i++)
        if (arenas[i]->base) net->ops->free(net->dev, arenas[i]->base, arenas[i]->n);
    for (int32_t i = 0; net->seqs && i < net->shape.n_seq; i++) {
        speci_free(net->a, net->seqs[i].path);
        speci_free(net->a, net->seqs[i].token);
        speci_free(net->a, net->seqs[i].page);
    }
    speci_free(net->a, net->taps);
    speci_free(net->a, net->plans.kv);
    speci_free(net->a, net->plans.slot_memory);
    speci_free(net->a, net->to_zero);
    speci_free(net->a, net->seqs);
    speci_free(net->a, net->free_pages);
    speci_free(net->a, net->block);
    speci_free(net->a, net);
}

void speci_exec_plans(const speci_exec *net, spec_plan plans[2])
{
    const net_shape *s = &net->shape;
    for (int i = 0; i < 2; i++)
        plans[i] = (spec_plan){ .ops = net->plans.ops[i], .n_op = net->plans.n_op[i], .phase = i,
                                .n_row_max = i == SPEC_PHASE_PREFILL ? s->chunk : s->n_row_decode,
                                .n_seq_max = i == SPEC_PHASE_PREFILL ? 1 : s->n_seq, .n_node_max = s->n_cache,
                                .n_kv_max = s->n_page_seq * SPEC_PAGE };
}

spec_status speci_exec_attach(speci_exec *net, spec_queue *queue, bool capture)
{
    net->queue = queue;
    SPEC_TRY(alloc_device(net));
    speci_net_emit(&net->plans, &net->memory, net->model, &net->shape);
    SPEC_TRY(check_abilities(net));
    if (!capture || !net->ops->plan_prepare) return SPEC_OK;
    spec_plan plans[2];
    speci_exec_plans(net, plans);
    for (int i = 0; i < 2; i++) SPEC_TRY(net->ops->plan_prepare(queue, &net->prepared[i], &plans[i]));
    return SPEC_OK;
}

/* --- sequences --- */

void speci_exec_begin(speci_exec *net, int32_t slot)
{
    net_seq *s = &net->seqs[slot];
    s->n_past = s->n_recent = s->n_path = s->parity = s->n_fed = 0;
    s->broken = false;
    s->live = s->begun = true;
}

spec_status speci_net_zero_begun(speci_exec *net)
{
    for (int32_t first = 0, end; first < net->shape.n_seq; first = end) {
        end = first + 1;
        if (!net->seqs[first].begun) continue;
        while (end < net->shape.n_seq && net->seqs[end].begun) end++;
        for (int32_t i = 0; i < net->plans.n_slot_memory; i++) {
            const net_slot_memory *m = &net->plans.slot_memory[i];
            net->to_zero[i] = (spec_range){ m->base + (size_t)first * m->bytes, (size_t)(end - first) * m->bytes };
        }
        SPEC_TRY(net->ops->zero(net->queue, net->to_zero, net->plans.n_slot_memory));
        for (int32_t slot = first; slot < end; slot++) net->seqs[slot].begun = false;
    }
    return SPEC_OK;
}

void speci_exec_end(speci_exec *net, int32_t slot)
{
    net_seq *s = &net->seqs[slot];
    while (s->n_page > 0) net->free_pages[net->n_free++] = s->page[--s->n_page];
    s->live = s->begun = false;
}

spec_status speci_net_reserve(speci_exec *net, net_seq *s, int32_t n)
{
    if (net->shape.n_ctx == 0) return SPEC_OK;
    const int32_t need = (n + SPEC_PAGE - 1) / SPEC_PAGE;
    if (need > net->shape.n_page_seq)
        return speci_fail(SPEC_E_FULL, "%d positions do not fit a context of %d", n, net->shape.n_ctx);
    if (need - s->n_page > net->n_free)
        return speci_fail(SPEC_E_FULL, "no free KV page: %d needed, %d free of %d", need - s->n_page, net->n_free,
                          net->shape.n_page);
    while (s->n_page < need) s->page[s->n_page++] = net->free_pages[--net->n_free];
    return SPEC_OK;
}

int32_t speci_exec_n_past(const speci_exec *net, int32_t slot)
{
    return net->seqs[slot].n_past + net->seqs[slot].n_path;
}

int32_t speci_exec_n_recent(const speci_exec *net, int32_t slot) { return net->seqs[slot].n_recent; }

void speci_exec_commit(speci_exec *net, int32_t slot, const int32_t *path, int32_t n_path)
{
    net_seq *s = &net->seqs[slot];
    s->n_path = n_path > 0 ? n_path : 0;
    for (int32_t j = 0; j < n_path; j++) s->path[j] = net->shape.joint ? s->token[path[j]] : path[j];
    s->n_fed = 0;
}

void speci_exec_break(speci_exec *net, int32_t slot) { net->seqs[slot].broken = true; }

int32_t speci_exec_first_row(const speci_exec *net, int32_t k)
{
    const spec_step_seq *s = &spec_step_seqs(net->block)[k];
    return s->first_row + s->n_advance;
}

float *speci_exec_logits(const speci_exec *net, int32_t *ld)
{
    *ld = net->model->n_vocab;
    return net->plans.logits;
}

spec_view speci_exec_tap(const speci_exec *net, int32_t phase, int32_t tap) { return net->plans.taps[phase][tap]; }

spec_argmax_args speci_exec_argmax(const speci_exec *net, int32_t first_row, int32_t n_row)
{
    const net_plans *p = &net->plans;
    const int32_t ld = net->model->n_vocab;
    return (spec_argmax_args){ .logits = p->logits + (size_t)first_row * (size_t)ld, .ld = ld, .n_vocab = ld,
                               .n_row = n_row, .best = p->best ? p->best + first_row : NULL };
}

/* --- the step descriptor --- */

/* Lays out an empty block for n_node nodes, n_row rows, run as n_row_run, and n_path path entries; counts are raised as
 * parts are added. */
static void block_begin(speci_exec *net, int32_t phase, int32_t n_seq, int32_t n_node, int32_t n_row, int32_t n_row_run,
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

static spec_step_node *block_add(speci_exec *net, block_cursor *c, int32_t slot, int32_t parity, int32_t n_replay,
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

static void block_reach(spec_step_block *b, int32_t n_kv)
{
    if (n_kv > b->n_kv) b->n_kv = n_kv;
}

static spec_status run(speci_exec *net, int32_t phase, const spec_argmax_args *argmax)
{
    spec_plan plans[2];
    SPEC_TRY(speci_net_zero_begun(net));
    speci_exec_plans(net, plans);
    return speci_plan_run(net->ops, net->queue, &plans[phase], net->prepared[phase], net->block, argmax);
}

/* --- passes --- */

static spec_status check_token(const speci_exec *net, int32_t token)
{
    if (token >= 0 && token < net->model->n_vocab) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", token, net->model->n_vocab);
}

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
    block_cursor c = { 0 };
    block_begin(net, SPEC_PHASE_PREFILL, 1, n, n, rows, 0);
    spec_step_node *nodes = block_add(net, &c, slot, s->parity ^ 1, 0, 0, n);
    for (int32_t i = 0; i < n; i++) nodes[i] = (spec_step_node){ .token = ids[i], .parent = i - 1, .depth = i };
    block_reach(net->block, s->n_past + n);
    SPEC_TRY(run(net, SPEC_PHASE_PREFILL, NULL));
    s->parity ^= 1;
    s->n_past += n;
    return SPEC_OK;
}

spec_status speci_exec_prefill(speci_exec *net, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks)
{
    const speci_prefill_hooks none = { 0 }, *h = hooks ? hooks : &none;
    net_seq *s = &net->seqs[slot];
    if (s->n_recent > 0) /* states cover all positions, or a pass of this kind would skip those behind them */
        return speci_fail(SPEC_E_STATE, "sequence slot %d: a prompt behind decoded tokens", slot);
    if (n > INT32_MAX) return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens is too long", n);
    for (size_t i = 0; i < n; i++) SPEC_TRY(check_token(net, ids[i]));
    SPEC_TRY(speci_net_reserve(net, s, (int32_t)n));
    for (int32_t i = 0, end = (int32_t)n; i < end;) {
        const int32_t rows = pass_rows(&net->shape, end - i), n_fed = rows < end - i ? rows : end - i;
        if (h->poll && h->poll(h->arg)) return speci_fail(SPEC_E_ABORTED, "stopped after %d of %zu prompt tokens", i, n);
        SPEC_TRY(prefill_pass(net, slot, ids + i, n_fed, rows));
        if (h->chunk) SPEC_TRY(h->chunk(h->arg, s->n_past - n_fed, n_fed));
        i += n_fed;
    }
    return SPEC_OK;
}

static spec_status check_live(const speci_exec *net, int32_t slot)
{
    const net_seq *s = &net->seqs[slot];
    if (s->live && !s->broken) return SPEC_OK;
    return speci_fail(SPEC_E_STATE, "sequence slot %d cannot go on: %s", slot,
                      s->live ? "an earlier pass failed" : "it is empty");
}

/* What can be wrong with an input (its shape is the caller's: spec_tree_check), and its pages, before the device is
 * touched. */
static spec_status check_input(speci_exec *net, const speci_exec_input *in)
{
    const spec_tree *t = in->tree;
    net_seq *s = &net->seqs[in->slot];
    SPEC_TRY(check_live(net, in->slot));
    const int32_t n = t->n + in->n_grown;
    if (t->n < 0 || in->n_grown < 0 || n < 1 || n > net->shape.n_node)
        return speci_fail(SPEC_E_INVALID, "a tree of %d nodes; this session planned for 1 to %d", n,
                          net->shape.n_node);
    if (in->n_fed < 0 || in->n_fed >= n || in->n_fed != s->n_fed * (in->n_fed > 0))
        return speci_fail(SPEC_E_INVALID, "%d of %d nodes are said to be fed; %d are", in->n_fed, n, s->n_fed);
    if (net->shape.joint && (in->n_fed > 0 || in->n_grown > 0))
        return speci_fail(SPEC_E_INVALID, "a net that feeds accepted paths again takes whole trees: %d nodes are fed, "
                          "%d grow", in->n_fed, in->n_grown);
    for (int32_t i = 0; i < t->n; i++) SPEC_TRY(check_token(net, t->token[i]));
    return speci_net_reserve(net, s, s->n_past + s->n_path + n);
}

static int32_t tree_depth(const spec_tree *t)
{
    int32_t most = 0;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t depth = 0;
        for (int32_t up = t->parent[i]; up >= 0; up = t->parent[up]) depth++;
        if (depth > most) most = depth;
    }
    return most;
}

/* Joint: how many pending tokens stand in front of the tree of the next pass. */
static int32_t n_in_front(const speci_exec *net, int32_t slot) { return net->shape.joint ? net->seqs[slot].n_path : 0; }

/* What a pass feeds of one sequence: a chain of pending tokens in front (joint), then the caller's tree (or none). */
static void add_input(speci_exec *net, block_cursor *c, const speci_exec_input *in)
{
    const spec_tree *t = in->tree;
    const net_seq *s = &net->seqs[in->slot];
    const bool first = in->n_fed == 0;
    const int32_t front = first ? n_in_front(net, in->slot) : 0, n_given = front + (t ? t->n : 0);
    const int32_t n_row = n_given + in->n_grown - in->n_fed, n_past = s->n_past + s->n_path - front;
    spec_traversal_node *visits = (spec_traversal_node *)((char *)net->block + net->block->off_traversal) + c->row;
    spec_step_seq *seq = (spec_step_seq *)((char *)net->block + net->block->off_seq) + c->seq;
    spec_step_node *nodes = block_add(net, c, in->slot, first ? s->parity ^ 1 : s->parity,
                                      first && !net->shape.joint ? s->n_path : 0, in->n_fed, n_row);
    seq->n_given = n_given, seq->n_advance = front;
    for (int32_t i = 0; i < front; i++)
        nodes[i] = (spec_step_node){ .token = s->path[i], .parent = i - 1, .depth = i };
    for (int32_t i = front; i < n_given; i++) {
        const int32_t up = t->parent[i - front], parent = up < 0 ? front - 1 : front + up;
        nodes[i] = (spec_step_node){ .token = t->token[i - front], .parent = parent,
                                     .depth = parent < 0 ? 0 : nodes[parent].depth + 1 };
        block_reach(net->block, n_past + nodes[i].depth + 1);
    }
    if (front > 0) block_reach(net->block, n_past + front);
    if (in->n_grown > 0) block_reach(net->block, n_past + in->depth + 1);
    if (n_row > 0) speci_traversal_schedule(nodes, in->n_fed, n_given, n_row, visits);
}

/* The step of a decode pass over inputs that are checked. */
static void describe(speci_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed)
{
    int32_t n_node = 0, n_row = 0, n_path = 0;
    for (int32_t k = 0; k < n_in; k++) {
        const int32_t front = n_in_front(net, in[k].slot), n = front + (in[k].tree ? in[k].tree->n : 0) + in[k].n_grown;
        n_node += n;
        n_row += n - in[k].n_fed;
        n_path += in[k].n_fed == 0 && !net->shape.joint ? net->seqs[in[k].slot].n_path : 0;
    }
    block_cursor c = { 0 };
    block_begin(net, SPEC_PHASE_DECODE, n_in, n_node, n_row, n_row, n_path);
    if (feed) {
        net->block->feed = feed->nodes, net->block->ld_feed = feed->ld;
        net->block->grown = feed->grown, net->block->ld_grown = feed->ld_grown;
    }
    for (int32_t k = 0; k < n_in; k++) add_input(net, &c, &in[k]);
}

/* The step was run, with this status. */
static void take_note(speci_exec *net, const speci_exec_input *in, int32_t n_in, spec_status status)
{
    for (int32_t k = 0; k < n_in; k++) {
        net_seq *s = &net->seqs[in[k].slot];
        const spec_tree *t = in[k].tree;
        s->broken = status != SPEC_OK;
        if (in[k].n_fed == 0) {
            const int32_t front = n_in_front(net, in[k].slot), replayed = s->n_path - front;
            if (net->shape.n_recent_max > 0) s->n_recent = spec_chunk_left(s->n_recent + replayed) + front;
            s->parity ^= 1;
            s->n_past += s->n_path;
            s->n_path = 0;
        }
        s->n_fed = (t ? t->n : 0) + in[k].n_grown;
        if (s->token && t) memcpy(s->token, t->token, (size_t)t->n * sizeof *s->token);
    }
}

static spec_status pass(speci_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                        const speci_exec_tokens *tokens)
{
    describe(net, in, n_in, feed);
    spec_argmax_args a = speci_exec_argmax(net, 0, net->block->n_row);
    if (tokens) a.host_out_token = tokens->token, a.next = tokens->next;
    const spec_status status = run(net, SPEC_PHASE_DECODE, tokens ? &a : NULL);
    take_note(net, in, n_in, status);
    return status;
}

/* Joint: a chain and a tree that together are deeper than the device's operations take go one after the other. */
static spec_status advance_deep(speci_exec *net, const speci_exec_input *in, int32_t n_in)
{
    for (int32_t k = 0; k < n_in; k++) {
        const int32_t front = n_in_front(net, in[k].slot);
        if (front == 0 || front + tree_depth(in[k].tree) <= SPEC_MAX_DEPTH) continue;
        const speci_exec_input chain = { .slot = in[k].slot };
        SPEC_TRY(pass(net, &chain, 1, NULL, NULL));
    }
    return SPEC_OK;
}

spec_status speci_exec_forward(speci_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens)
{
    for (int32_t k = 0; k < n_in; k++) SPEC_TRY(check_input(net, &in[k]));
    SPEC_TRY(advance_deep(net, in, n_in));
    return pass(net, in, n_in, feed, tokens);
}

/* --- flush --- */

/* Does the operation have a part in applying what is pending? A path is replayed by three kinds of operation, over a step
 * without rows. Tokens that are fed again (joint) go through all layers; but the logits, their rows' largest, and taps, in
 * which rows of other sequences may still be wanted, are not touched. */
static bool absorbs(const speci_exec *net, const spec_op *op)
{
    if (op->kind == SPEC_OP_KEEP) return false;
    if (net->block->n_row > 0) return op->kind != SPEC_OP_LINEAR || op->u.linear.y.data != net->plans.logits;
    return op->kind == SPEC_OP_KV_COMMIT || op->kind == SPEC_OP_CONV || op->kind == SPEC_OP_SCAN;
}

/* Operation by operation: a plan that was prepared is for whole passes. */
static spec_status run_absorbing(speci_exec *net)
{
    const net_plans *p = &net->plans;
    SPEC_TRY(net->ops->step_bind(net->queue, net->block));
    for (int32_t i = 0; i < p->n_op[SPEC_PHASE_DECODE]; i++) {
        spec_op op = p->ops[SPEC_PHASE_DECODE][i];
        if (op.kind == SPEC_OP_EMBED) op.u.embed.best = NULL;
        if (absorbs(net, &op)) SPEC_TRY(speci_op_run(net->ops, net->queue, &op));
    }
    return SPEC_OK;
}

spec_status speci_exec_flush(speci_exec *net, int32_t slot)
{
    SPEC_TRY(check_live(net, slot));
    const net_seq *s = &net->seqs[slot];
    /* Joint: a chain that was fed is folded by the pass behind. */
    for (int32_t i = 0; i < 2 && (s->n_path > 0 || spec_chunk_folds(s->n_recent) > 0); i++) {
        const speci_exec_input nothing = { .slot = slot };
        describe(net, &nothing, 1, NULL);
        const spec_status status = run_absorbing(net);
        take_note(net, &nothing, 1, status);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}
