/* fault_backend.c - see fault_backend.h. Each fault wraps one operation: it changes a copy of the step, lets the CPU's
 * operation run on the copy, and puts the step back. No state: what is wrong is the function that the table holds. */
#include "tests/fault_backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/cpu/cpu.h"

/* ------------------------------------------------------------------------- steps with a fault --- */

static spec_step_seq *seqs(spec_step_block *b)
{
    return (spec_step_seq *)((char *)b + b->off_seq);
}

static spec_step_node *nodes(spec_step_block *b, const spec_step_seq *s)
{
    return (spec_step_node *)((char *)b + b->off_node) + s->first_node;
}

/* Each of these changes one thing in a step. */
typedef void fault_fn(spec_step_block *b);

/* The last node that has a choice gets a parent of the right depth that is not its own. */
static void wrong_parent(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) {
        spec_step_seq *s = &seqs(b)[i];
        spec_step_node *node = nodes(b, s);
        for (int32_t n = s->n_fed + s->n_row - 1, done = 0; n > 0 && !done; n--)
            for (int32_t p = 0; p < n && !done; p++)
                if (p != node[n].parent && node[p].depth == node[n].depth - 1) {
                    node[n].parent = p;
                    done = 1;
                }
    }
}

static void previous_row(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++)
        for (int32_t n = 0; n < seqs(b)[i].n_fed + seqs(b)[i].n_row; n++) nodes(b, &seqs(b)[i])[n].parent = n - 1;
}

static spec_traversal_node *visits(spec_step_block *b, const spec_step_seq *s)
{
    return (spec_traversal_node *)((char *)b + b->off_traversal) + s->first_row;
}

/* Every node goes on from the state of the one before it. */
static void previous_visit(spec_step_block *b)
{
    previous_row(b);
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++) {
        const spec_step_seq *s = &seqs(b)[i];
        for (int32_t k = 0; k < s->n_row; k++)
            visits(b, s)[k] = (spec_traversal_node){ .node = s->n_fed + k, .save = -1,
                                                 .load = k == 0 && s->n_fed > 0 ? SPEC_LOAD_PATH : SPEC_LOAD_LIVE };
    }
}

/* A saved state is overwritten by that of the next node. */
static void late_save(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++) {
        spec_traversal_node *v = visits(b, &seqs(b)[i]);
        for (int32_t k = 0; k + 1 < seqs(b)[i].n_row; k++)
            if (v[k].save >= 0 && v[k + 1].save < 0) {
                v[k + 1].save = v[k].save;
                k++;
            }
    }
}

/* What waits in a place is passed over: another place's state, or the live one where there is one place only. */
static void other_load(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++) {
        spec_traversal_node *v = visits(b, &seqs(b)[i]);
        for (int32_t k = 0; k < seqs(b)[i].n_row; k++)
            if (v[k].load >= 0) v[k].load = v[k].load > 0 ? v[k].load - 1 : SPEC_LOAD_LIVE;
    }
}

static void number_as_depth(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++)
        for (int32_t n = 0; n < seqs(b)[i].n_fed + seqs(b)[i].n_row; n++) nodes(b, &seqs(b)[i])[n].depth = n;
}

static void repeat_replayed(spec_step_block *b)
{
    int32_t *paths = (int32_t *)((char *)b + b->off_path);
    for (int32_t i = 0; i < b->n_seq; i++) {
        int32_t *path = paths + seqs(b)[i].first_path, n = seqs(b)[i].n_replay;
        if (n > 1) path[n - 1] = path[n - 2];
    }
}

static void short_path(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++)
        if (seqs(b)[i].n_replay > 1) seqs(b)[i].n_replay--;
}

/* Compaction of one slot less, at the same place. */
static void short_compaction(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) {
        if (seqs(b)[i].n_replay < 1) continue;
        seqs(b)[i].n_replay--;
        seqs(b)[i].n_past--;
    }
}

static void fewer_recent(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++)
        if (seqs(b)[i].n_recent > 0) seqs(b)[i].n_recent--;
}

static void late_recent(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) seqs(b)[i].n_past += seqs(b)[i].n_past & 1;
}

static void one_half(spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) seqs(b)[i].parity = 0;
}

static void one_row_more(spec_step_block *b)
{
    if (b->phase == SPEC_PHASE_PREFILL && b->n_row < b->n_row_run) seqs(b)[0].n_row++;
}

/* ------------------------------------------------------------------------- operations with it --- */

static spec_step_block *enter(spec_queue *q, fault_fn *fault)
{
    spec_step_block *saved = malloc((size_t)q->step->bytes);
    if (!saved) abort();
    memcpy(saved, q->step, (size_t)q->step->bytes);
    fault(q->step);
    return saved;
}

static spec_status leave(spec_queue *q, spec_step_block *saved, spec_status status)
{
    memcpy(q->step, saved, (size_t)saved->bytes);
    free(saved);
    return status;
}

static spec_status bind_wrong_parent(spec_queue *q, const spec_step_block *block)
{
    spec_status status = speci_cpu_ops.step_bind(q, block);
    if (status == SPEC_OK && block->phase == SPEC_PHASE_DECODE) wrong_parent(q->step);
    return status;
}

/* A consistent step over another tree. */
static spec_status bind_other_tree(spec_queue *q, const spec_step_block *block)
{
    spec_status status = bind_wrong_parent(q, block);
    for (int32_t i = 0; status == SPEC_OK && i < block->n_seq && block->phase == SPEC_PHASE_DECODE; i++) {
        spec_step_block *b = q->step;
        const spec_step_seq *s = &seqs(b)[i];
        speci_traversal_schedule(nodes(b, s), s->n_fed, s->n_given, s->n_row, visits(b, s));
    }
    return status;
}

static spec_status attention_mask(spec_queue *q, const spec_op *op)
{
    if (q->step->phase == SPEC_PHASE_PREFILL) return speci_cpu_attention(q, op);
    spec_step_block *saved = enter(q, wrong_parent);
    return leave(q, saved, speci_cpu_attention(q, op));
}

static spec_status conv_tap(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, previous_row);
    return leave(q, saved, speci_cpu_conv(q, op));
}

static spec_status conv_window(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, one_half);
    return leave(q, saved, speci_cpu_conv(q, op));
}

static spec_status conv_replay(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, repeat_replayed);
    return leave(q, saved, speci_cpu_conv(q, op));
}

static spec_status conv_padded(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, one_row_more);
    return leave(q, saved, speci_cpu_conv(q, op));
}

static spec_status scan_branch(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, op->u.scan.chunk ? wrong_parent : previous_visit);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_saved(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, late_save);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_loaded(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, other_load);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_short(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, short_path);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_recent(spec_queue *q, const spec_op *op)
{
    if (!op->u.scan.chunk || q->step->phase == SPEC_PHASE_PREFILL) return speci_cpu_scan(q, op);
    spec_step_block *saved = enter(q, fewer_recent);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_recent_place(spec_queue *q, const spec_op *op)
{
    if (!op->u.scan.chunk || q->step->phase == SPEC_PHASE_PREFILL) return speci_cpu_scan(q, op);
    spec_step_block *saved = enter(q, late_recent);
    return leave(q, saved, speci_cpu_scan(q, op));
}

static spec_status scan_fold(spec_queue *q, const spec_op *op)
{
    if (!op->u.scan.chunk || q->step->phase == SPEC_PHASE_PREFILL) return speci_cpu_scan(q, op);
    const spec_scan_args *a = &op->u.scan;
    const size_t n = (size_t)a->n_head * (size_t)a->head_dim * (size_t)a->n_state * sizeof(float);
    char *states = malloc((size_t)q->step->n_seq * n);
    if (!states) abort();
    for (int32_t i = 0; i < q->step->n_seq; i++)
        memcpy(states + (size_t)i * n, (char *)a->state + (size_t)seqs(q->step)[i].slot * n, n);
    const spec_status status = speci_cpu_scan(q, op);
    for (int32_t i = 0; i < q->step->n_seq; i++)
        memcpy((char *)a->state + (size_t)seqs(q->step)[i].slot * n, states + (size_t)i * n, n);
    free(states);
    return status;
}

static spec_status commit_short(spec_queue *q, const spec_op *op)
{
    spec_step_block *saved = enter(q, short_compaction);
    return leave(q, saved, speci_cpu_kv_commit(q, op));
}

static spec_status rope_number(spec_queue *q, const spec_op *op)
{
    if (q->step->phase == SPEC_PHASE_PREFILL) return speci_cpu_rope_kv(q, op);
    spec_step_block *saved = enter(q, number_as_depth);
    return leave(q, saved, speci_cpu_rope_kv(q, op));
}

/* The last bit of the first output of the last of several rows. */
static spec_status linear_row_count(spec_queue *q, const spec_op *op)
{
    const spec_linear_args *a = &op->u.linear;
    spec_status status = speci_cpu_linear(q, op);
    int32_t n = q->step->n_row_run;
    if (status != SPEC_OK || n < 2 || a->y.dtype != SPEC_DTYPE_F32) return status;
    float *y = cpu_at(&a->y, n - 1, 0);
    *y = nextafterf(*y, INFINITY);
    return SPEC_OK;
}

/* ------------------------------------------------------------------------- drafting, verifying --- */

static void swap_candidates(spec_candidate *c)
{
    const spec_candidate first = c[0];
    if (c[1].token < 0) return;
    c[0] = c[1];
    c[1] = first;
}

static spec_status accept_siblings(spec_queue *q, const spec_accept_args *a)
{
    int32_t *swapped = malloc((size_t)(a->n_candidate + 1) * sizeof *swapped);
    if (!swapped) abort();
    memcpy(swapped, a->host_candidate, (size_t)a->n_candidate * sizeof *swapped);
    for (int32_t i = 0; i < a->n_row; i++) {
        int32_t *c = swapped + a->host_first_candidate[i];
        if (a->host_first_candidate[i + 1] - a->host_first_candidate[i] < 2) continue;
        const int32_t first = c[0];
        c[0] = c[1];
        c[1] = first;
    }
    spec_accept_args other = *a;
    other.host_candidate = swapped;
    const spec_status status = speci_cpu_ops.accept(q, &other);
    free(swapped);
    return status;
}

static spec_status accept_tree_siblings(spec_queue *q, const spec_accept_tree_args *a)
{
    int32_t *swapped = malloc((size_t)(a->n_row + 1) * sizeof *swapped);
    if (!swapped) abort();
    memcpy(swapped, a->host_token, (size_t)a->n_row * sizeof *swapped);
    for (int32_t i = 1; i + 1 < a->n_row; i++)
        if (a->host_parent[i] >= 0 && a->host_parent[i - 1] != a->host_parent[i] && a->host_parent[i + 1] == a->host_parent[i])
            swapped[i] = a->host_token[i + 1], swapped[i + 1] = a->host_token[i];
    spec_accept_tree_args other = *a;
    other.host_token = swapped;
    const spec_status status = speci_cpu_ops.accept_tree(q, &other);
    free(swapped);
    return status;
}

static spec_status draw_order(spec_queue *q, const spec_draw_args *a)
{
    const spec_status status = speci_cpu_ops.draw(q, a);
    for (int32_t i = 0; status == SPEC_OK && a->k > 1 && i < a->n_row; i++) {
        if (a->host_out) swap_candidates(a->host_out + (size_t)i * (size_t)a->k);
        if (!a->grow) continue;
        const size_t place = (size_t)a->host_slot[i] * (size_t)a->grow->cap_frontier + (size_t)a->host_place[i];
        swap_candidates(a->grow->candidate + place * SPEC_MAX_CHILD);
    }
    return status;
}

/* The last node of tree i of an expansion; NULL when it is the root. */
static spec_grow_node *last_grown(const spec_expand_args *a, int32_t i)
{
    const int32_t slot = a->host_slot[i], n = a->grow->n[slot];
    return n > 1 ? a->grow->node + (size_t)slot * (size_t)a->grow->cap + (n - 1) : NULL;
}

static spec_status expand_token(spec_queue *q, const spec_expand_args *a)
{
    const spec_status status = speci_cpu_ops.expand(q, a);
    for (int32_t i = 0; status == SPEC_OK && i < a->n; i++)
        if (last_grown(a, i)) last_grown(a, i)->token ^= 1;
    return status;
}

static spec_status expand_parent(spec_queue *q, const spec_expand_args *a)
{
    const spec_status status = speci_cpu_ops.expand(q, a);
    for (int32_t i = 0; status == SPEC_OK && i < a->n; i++) {
        spec_grow_node *x = last_grown(a, i);
        const int32_t n = a->grow->n[a->host_slot[i]];
        if (x && n > 2) x->parent = x->parent == 0 ? 1 : 0;
    }
    return status;
}

static spec_status expand_feed(spec_queue *q, const spec_expand_args *a)
{
    const spec_status status = speci_cpu_ops.expand(q, a);
    for (int32_t i = 0; status == SPEC_OK && i < a->n && a->n_next > 0; i++)
        a->grow->feed[(size_t)a->host_slot[i] * (size_t)a->grow->cap_feed + (size_t)a->host_feed_base[i]].token ^= 1;
    return status;
}

const char *fault_name(fault_kind kind)
{
    static const char *const names[FAULT_N] = {
        [FAULT_NONE] = "none", [FAULT_PARENT] = "parent", [FAULT_MASK] = "mask", [FAULT_CONV_TAP] = "conv tap",
        [FAULT_SCAN_BRANCH] = "scan branch", [FAULT_SCAN_SAVED] = "saved state",
        [FAULT_REPLAY] = "replayed node", [FAULT_REPLAY_SHORT] = "short replay",
        [FAULT_KV_SLOT] = "KV slot", [FAULT_KV_POSITION] = "KV position", [FAULT_WINDOW] = "window half",
        [FAULT_PADDED_ROW] = "padded row", [FAULT_PARENT_VISITS] = "parent, and visits by it",
        [FAULT_SCAN_LOADED] = "loaded state", [FAULT_ROW_COUNT] = "row count", [FAULT_SIBLINGS] = "order of siblings",
        [FAULT_GROWN_TOKEN] = "grown token", [FAULT_GROWN_PARENT] = "grown parent", [FAULT_GROWN_FEED] = "grown feed",
        [FAULT_DRAW_ORDER] = "order of candidates", [FAULT_RECENT] = "recent token",
        [FAULT_RECENT_PLACE] = "recent tokens' place", [FAULT_FOLD] = "fold",
    };
    return names[kind];
}

void fault_backend_ops(spec_backend_ops *out, fault_kind kind)
{
    *out = speci_cpu_ops;
    switch (kind) {
    case FAULT_PARENT: out->step_bind = bind_wrong_parent; break;
    case FAULT_MASK: out->op[SPEC_OP_ATTENTION].run = attention_mask; break;
    case FAULT_CONV_TAP: out->op[SPEC_OP_CONV].run = conv_tap; break;
    case FAULT_SCAN_BRANCH: out->op[SPEC_OP_SCAN].run = scan_branch; break;
    case FAULT_SCAN_SAVED: out->op[SPEC_OP_SCAN].run = scan_saved; break;
    case FAULT_REPLAY: out->op[SPEC_OP_CONV].run = conv_replay; break;
    case FAULT_REPLAY_SHORT: out->op[SPEC_OP_SCAN].run = scan_short; break;
    case FAULT_KV_SLOT: out->op[SPEC_OP_KV_COMMIT].run = commit_short; break;
    case FAULT_KV_POSITION: out->op[SPEC_OP_ROPE_KV].run = rope_number; break;
    case FAULT_WINDOW: out->op[SPEC_OP_CONV].run = conv_window; break;
    case FAULT_PADDED_ROW: out->op[SPEC_OP_CONV].run = conv_padded; break;
    case FAULT_PARENT_VISITS: out->step_bind = bind_other_tree; break;
    case FAULT_SCAN_LOADED: out->op[SPEC_OP_SCAN].run = scan_loaded; break;
    case FAULT_RECENT: out->op[SPEC_OP_SCAN].run = scan_recent; break;
    case FAULT_RECENT_PLACE: out->op[SPEC_OP_SCAN].run = scan_recent_place; break;
    case FAULT_FOLD: out->op[SPEC_OP_SCAN].run = scan_fold; break;
    case FAULT_SIBLINGS: out->accept = accept_siblings, out->accept_tree = accept_tree_siblings; break;
    case FAULT_GROWN_TOKEN: out->expand = expand_token; break;
    case FAULT_GROWN_PARENT: out->expand = expand_parent; break;
    case FAULT_GROWN_FEED: out->expand = expand_feed; break;
    case FAULT_DRAW_ORDER: out->draw = draw_order; break;
    case FAULT_ROW_COUNT: out->op[SPEC_OP_LINEAR].run = linear_row_count; break;
    case FAULT_NONE:
    case FAULT_N: break;
    }
}
