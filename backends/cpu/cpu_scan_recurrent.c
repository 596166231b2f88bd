/* cpu_scan_recurrent.c - the scan's recurrent form, and prefill (algorithms.md 7.2, 7.3, 8.3, 9.3, 10.1).
 *
 * The state's rows (a head and one of its channels) are independent: a task is a piece of them, for one sequence,
 * and does everything for them in order: replay into the stored state, then the nodes.
 *
 * The nodes come in the order of the step's traversal schedule. A node's state is computed from where its parent's is
 * to where it is needed, so that none is copied: the stored one, a saved one in the task's scratch (at most LIVE_MAX
 * floats each: they stay in the second cache), and for a node from which nobody goes on nowhere, while its parent's
 * stays live. Where the order is not known to the host the parent's state is computed again from the stored one, with
 * the node's ancestors' values. All the same function of the same numbers, hence the same bits. */
#include "backends/cpu/cpu_scan.h"

enum { LIVE_MAX = 8192 };

/* State `from` [t->n_row][n_state] applies node n, and is then at `to` (`from` itself, or NULL: nowhere); with `out`
 * the node's outputs are stored. */
static void apply(const scan_part *t, float *to, const float *from, const scan_node *n, bool out)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    _Alignas(64) float b[CPU_STATE_MAX], c[CPU_STATE_MAX]; /* read for every row: a vector of them lies in one line */
    float dt[HEADS_MAX], x[SCAN_ROWS], y[SCAN_ROWS];
    int32_t block_b = -1, block_c = -1, dim = a->head_dim;
    /* Mamba-1: heads of one channel, all of the part at once. */
    const bool heads = a->a_per_state && dim == 1 && a->x_rep == 1 && a->b_rep == a->n_head && a->c_rep == a->n_head;
    speci_cpu_scan_dt(t, n, t->head0, t->n_head, dt);
    for (int32_t row = t->row0, end = t->row0 + t->n_row; row < end;) {
        int32_t h = row / dim, p = row % dim, count = cpu_min(heads ? SCAN_ROWS : dim - p, end - row);
        if (h / a->b_rep != block_b) speci_cpu_scan_b(t, n, block_b = h / a->b_rep, b);
        if (out && h / a->c_rep != block_c) {
            block_c = h / a->c_rep;
            loops->load(c, cpu_item(n->c, a->c.dtype, (size_t)block_c * (size_t)a->n_state), a->c.dtype,
                        (size_t)a->n_state);
        }
        loops->load(x, cpu_item(n->x, a->dtype, (size_t)(h / a->x_rep * dim + p)), a->dtype, (size_t)count);
        const float *decay = a->a + (size_t)h * (a->a_per_state ? (size_t)a->n_state : 1u);
        loops->scan(to, from, out ? y : NULL, x, (size_t)count, (size_t)a->n_state, dt + (h - t->head0), decay,
                    a->a_per_state != 0, heads, b, c);
        if (out) speci_cpu_scan_store(t, n, y, x, h, p, count);
        from += (size_t)count * (size_t)a->n_state;
        if (to) to += (size_t)count * (size_t)a->n_state;
        row += count;
    }
}

/* --- the tree --- */

static size_t part_bytes(const scan_part *t)
{
    return (size_t)t->n_row * (size_t)t->job->a->n_state * sizeof(float);
}

/* The rows' kept state of a node. */
static float *node_state_at(const scan_part *t, int32_t node)
{
    const spec_scan_args *a = t->job->a;
    size_t at = (size_t)t->s->slot * (size_t)a->n_node + (size_t)node, rows = (size_t)a->n_head * (size_t)a->head_dim;
    return a->node_state + (at * rows + (size_t)t->row0) * (size_t)a->n_state;
}

/* The state at node i, from the stored one, which is that of node `base` (-1: before the tree). Computed at `work`, if
 * at all. */
static const float *restart(const scan_part *t, float *work, const float *stored, int32_t base, int32_t i)
{
    const spec_step_node *nodes = spec_step_nodes(t->job->q->step) + t->s->first_node;
    int32_t path[2 * (SPEC_MAX_DEPTH + 1)], n = 0;
    if (t->job->a->node_state && i >= 0) return node_state_at(t, i);
    for (; i >= 0 && i != base && n < (int32_t)(sizeof path / sizeof *path); i = nodes[i].parent) path[n++] = i;
    const float *from = stored;
    while (n > 0) {
        const scan_node node = speci_cpu_scan_node(t, path[--n]);
        apply(t, work, from, &node, false);
        from = work;
    }
    return from;
}

/* Nobody goes on from the node of entry i: its state is needed for its output only. */
static bool is_leaf(const scan_part *t, const spec_traversal_node *traversal, int32_t i)
{
    const bool followed = i + 1 < t->s->n_row && traversal[i + 1].load == SPEC_LOAD_LIVE;
    return traversal[i].save < 0 && !followed && traversal[i].node != t->s->n_advance - 1 && !t->job->a->node_state;
}

/* scratch: a state to work at, then the stack of saved ones. */
static void recurrent(const scan_part *t, float *stored, float *scratch)
{
    const spec_step_block *b = t->job->q->step;
    const spec_step_seq *s = t->s;
    const spec_step_node *nodes = spec_step_nodes(b) + s->first_node;
    const spec_traversal_node *traversal = spec_step_traversal(b) + s->first_row;
    const size_t size = (size_t)t->job->rows * (size_t)t->job->a->n_state;
    float *work = scratch, *saved = scratch + size;
    const float *live = stored; /* the state of node `live_node` */
    int32_t base = -1, live_node = -1;
    for (int32_t i = 0; i < s->n_row; i++) {
        const spec_traversal_node v = traversal[i];
        const int32_t parent = nodes[v.node].parent;
        const float *from = live;
        if (v.load >= 0 && parent != live_node) from = saved + (size_t)v.load * size;
        if (v.load == SPEC_LOAD_PATH && (parent != live_node || t->job->a->node_state))
            from = restart(t, work, stored, base, parent);
        float *to = v.save >= 0 ? saved + (size_t)v.save * size : work;
        if (v.node == s->n_advance - 1 && v.save < 0) to = stored;
        if (is_leaf(t, traversal, i)) to = NULL;
        speci_cpu_scan_fill(t, v.node);
        const scan_node n = speci_cpu_scan_node(t, v.node);
        apply(t, to, from, &n, true);
        if (t->job->a->node_state) memcpy(node_state_at(t, v.node), to, part_bytes(t));
        if (v.node == s->n_advance - 1) {
            if (to != stored) memcpy(stored, to, part_bytes(t));
            base = v.node;
        }
        live = to ? to : from, live_node = to ? v.node : parent;
    }
}

/* --- tasks --- */

static void decode(const scan_part *t, float *stored)
{
    spec_queue *q = t->job->q;
    const spec_step_seq *s = t->s;
    const int32_t *path = spec_step_paths(q->step) + s->first_path;
    for (int32_t j = 0; j < s->n_replay && s->n_fed == 0; j++) {
        scan_node n = speci_cpu_scan_replayed(t, j, s->parity ^ 1, path[j]);
        apply(t, stored, stored, &n, false);
    }
    uint8_t *scratch = speci_cpu_scratch_take(q);
    recurrent(t, stored, (float *)(void *)scratch);
    speci_cpu_scratch_give(q, scratch);
}

void speci_cpu_scan_recurrent_task(void *arg, int32_t i)
{
    const scan_job *job = arg;
    const spec_scan_args *a = job->a;
    const spec_step_block *b = job->q->step;
    int32_t n_row = a->n_head * a->head_dim;
    scan_part t = { .job = job, .s = spec_step_seqs(b) + i / job->n_part };
    t.row0 = i % job->n_part * job->rows;
    t.n_row = cpu_min(job->rows, n_row - t.row0);
    t.head0 = t.row0 / a->head_dim;
    t.n_head = (t.row0 + t.n_row - 1) / a->head_dim - t.head0 + 1;
    float *stored = a->state + ((size_t)t.s->slot * (size_t)n_row + (size_t)t.row0) * (size_t)a->n_state;
    if (b->phase == SPEC_PHASE_DECODE) {
        decode(&t, stored);
        return;
    }
    for (int32_t r = 0; r < t.s->n_row; r++) {
        scan_node n = speci_cpu_scan_node(&t, r);
        apply(&t, stored, stored, &n, true);
    }
}

/* Rows of the state per task: whole heads where they are small, parts of one head where it is large. */
int32_t speci_cpu_scan_recurrent_rows(const spec_scan_args *a)
{
    int32_t most = cpu_min(LIVE_MAX / a->n_state, SCAN_ROWS);
    if (a->head_dim >= most) {
        int32_t parts = cpu_parts(a->head_dim, most);
        return cpu_parts(a->head_dim, parts);
    }
    return cpu_min(most / a->head_dim, HEADS_MAX) * a->head_dim;
}

size_t speci_cpu_scan_recurrent_scratch(const spec_scan_args *a)
{
    const size_t state = (size_t)speci_cpu_scan_recurrent_rows(a) * (size_t)a->n_state * sizeof(float);
    return state * (size_t)(1 + spec_traversal_saved(a->n_node));
}

/* --- checks --- */

spec_status speci_cpu_scan_recurrent_check_step(const scan_job *job, const spec_step_seq *s)
{
    const int32_t n = s->n_fed + s->n_row;
    bool written[SPEC_MAX_SAVED] = { false };
    for (int32_t i = 0; i < s->n_row; i++) {
        const spec_traversal_node *v = spec_step_traversal(job->q->step) + s->first_row + i;
        if (v->node < s->n_fed || v->node >= n || v->load < SPEC_LOAD_PATH || v->load >= job->n_saved ||
            v->save < -1 || v->save >= job->n_saved || (v->load >= 0 && !written[v->load]))
            return job->q->dev->host->fail(SPEC_E_INVALID, "scan: traversal entry %d: node %d, loads %d, saves %d; there are "
                                           "nodes %d to %d and %d saved states", i, v->node, v->load, v->save, s->n_fed,
                                           n - 1, job->n_saved);
        if (v->save >= 0) written[v->save] = true;
    }
    return SPEC_OK;
}
