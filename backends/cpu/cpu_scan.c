/* cpu_scan.c - selective scan over trees with activation replay in front: prefill and the recurrent form
 * (algorithms.md 7.2, 7.3, 8.3, 9.3, 10.1). The chunked form: cpu_scan_window.c.
 *
 *   S(node) = exp(dt A) S(parent) + dt x B^T;   y = S C + D x;   out = z ? y silu(z) : y
 *
 * The state's rows (a head and one of its channels) are independent: a task is a piece of them, for one sequence,
 * and does everything for them in order: replay into the stored state, then the nodes.
 *
 * Recurrent form: the nodes in the order of the step's visits. A node's state is computed from where its parent's is to where
 * it is needed, so that none is copied: the stored one, a place in the task's scratch (at most LIVE_MAX floats each: they
 * stay in the second cache), and for a node from which nobody goes on nowhere, while its parent's stays live. Where the
 * order is not known to the host the parent's state is computed again from the stored one, with the node's ancestors'
 * values. All the same function of the same numbers, hence the same bits. */
#include "backends/cpu/cpu_scan.h"

enum { LIVE_MAX = 8192, HEADS_MAX = 64 };

spec_status speci_cpu_check_scan(const spec_device *dev, const spec_scan_args *a)
{
    const spec_host *h = dev->host;
    if (a->n_state < 1 || a->n_state > CPU_STATE_MAX)
        return h->fail(SPEC_E_UNSUPPORTED, "scan: state %d, supported are 1 to %d", a->n_state, CPU_STATE_MAX);
    if (a->n_head < 1 || a->head_dim < 1 || a->n_node < 1)
        return h->fail(SPEC_E_INVALID, "scan: %d heads of %d, %d nodes", a->n_head, a->head_dim, a->n_node);
    if (a->x_rep < 1 || a->b_rep < 1 || a->c_rep < 1 || a->n_head % a->x_rep || a->n_head % a->b_rep ||
        a->n_head % a->c_rep)
        return h->fail(SPEC_E_INVALID, "scan: %d heads do not share x, B, C by %d, %d, %d", a->n_head, a->x_rep,
                       a->b_rep, a->c_rep);
    if (!cpu_is_float(a->dtype) || !cpu_is_float(a->x.dtype) || !cpu_is_float(a->b.dtype) ||
        !cpu_is_float(a->c.dtype) || !cpu_is_float(a->dt.dtype) || !cpu_is_float(a->y.dtype) ||
        (a->z.data && !cpu_is_float(a->z.dtype)))
        return h->fail(SPEC_E_INVALID, "scan: x %s, B %s, C %s, dt %s, y %s, caches %s", cpu_dtype_name(a->x.dtype),
                       cpu_dtype_name(a->b.dtype), cpu_dtype_name(a->c.dtype), cpu_dtype_name(a->dt.dtype),
                       cpu_dtype_name(a->y.dtype), cpu_dtype_name(a->dtype));
    if (a->x.dtype != a->dtype || (a->b_in_conv && a->b.dtype != a->dtype))
        return h->fail(SPEC_E_INVALID, "scan: x is %s and B %s, but the convolution's output is %s",
                       cpu_dtype_name(a->x.dtype), cpu_dtype_name(a->b.dtype), cpu_dtype_name(a->dtype));
    if (!a->b_in_conv && !a->cache_b) return h->fail(SPEC_E_INVALID, "scan: no cache for B");
    return a->chunk != 0 ? speci_cpu_window_check(dev, a) : SPEC_OK;
}

float *speci_cpu_scan_cache_dt(const scan_part *t, int32_t half, int32_t node)
{
    const spec_scan_args *a = t->job->a;
    size_t row = ((size_t)t->s->slot * 2 + (size_t)half) * (size_t)a->n_node + (size_t)node;
    return a->cache_dt + row * (size_t)a->n_head;
}

static void *cache_b_at(const scan_part *t, int32_t half, int32_t node)
{
    const spec_scan_args *a = t->job->a;
    size_t row = ((size_t)t->s->slot * 2 + (size_t)half) * (size_t)a->n_node + (size_t)node;
    return cpu_item(a->cache_b, a->dtype, row * (size_t)spec_scan_columns(a->n_head, a->b_rep, a->n_state));
}

scan_node speci_cpu_scan_replayed(const scan_part *t, int32_t entry, int32_t half, int32_t node)
{
    const spec_scan_args *a = t->job->a;
    size_t seq = (size_t)(t->s - spec_step_seqs(t->job->q->step));
    size_t at = (seq * 2 * (size_t)a->n_node + (size_t)entry) * (size_t)a->replay_ld;
    scan_node n = { .row = -1 };
    n.x = cpu_item(a->replay_y, a->dtype, at + (size_t)a->replay_x_col);
    n.b = a->b_in_conv ? cpu_item(a->replay_y, a->dtype, at + (size_t)a->replay_b_col) : cache_b_at(t, half, node);
    n.b_type = a->dtype;
    n.dt = speci_cpu_scan_cache_dt(t, half, node);
    return n;
}

scan_node speci_cpu_scan_node(const scan_part *t, int32_t i)
{
    const spec_scan_args *a = t->job->a;
    const spec_step_seq *s = t->s;
    if (i < s->n_fed) return speci_cpu_scan_replayed(t, s->n_replay + i, s->parity, i);
    int32_t row = s->first_row + i - s->n_fed;
    scan_node n = { .row = row };
    n.x = cpu_at(&a->x, row, 0);
    n.b = cpu_at(&a->b, row, 0);
    n.c = cpu_at(&a->c, row, 0);
    n.b_type = a->b.dtype;
    return n;
}

void speci_cpu_scan_dt(const scan_part *t, const scan_node *n, int32_t head0, int32_t n_head, float *dt)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    float in[HEADS_MAX];
    if (n->dt) {
        memcpy(dt, n->dt + head0, (size_t)n_head * sizeof *dt);
        return;
    }
    loops->load(in, cpu_at(&a->dt, n->row, head0), a->dt.dtype, (size_t)n_head);
    loops->dt(dt, in, a->dt_bias ? a->dt_bias + head0 : NULL, a->dt_min, a->dt_max, (size_t)n_head);
}

static void node_dt(const scan_part *t, const scan_node *n, float *dt)
{
    speci_cpu_scan_dt(t, n, t->head0, t->n_head, dt);
}

void speci_cpu_scan_b(const scan_part *t, const scan_node *n, int32_t block, float *b)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    size_t n_state = (size_t)a->n_state;
    loops->load(b, cpu_item(n->b, n->b_type, (size_t)block * n_state), n->b_type, n_state);
    if (n->b_type == a->dtype) return;
    uint32_t rounded[CPU_STATE_MAX];
    loops->store(rounded, a->dtype, b, n_state);
    loops->load(b, rounded, a->dtype, n_state);
}

void speci_cpu_scan_store(const scan_part *t, const scan_node *n, float *y, const float *x, int32_t h, int32_t p,
                          int32_t count)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    float z[SCAN_ROWS];
    int32_t col = h * a->head_dim + p;
    if (a->z.data) loops->load(z, cpu_at(&a->z, n->row, col), a->z.dtype, (size_t)count);
    loops->scan_out(y, a->d + h, a->head_dim == 1, x, a->z.data ? z : NULL, (size_t)count);
    loops->store(cpu_at(&a->y, n->row, col), a->y.dtype, y, (size_t)count);
}

/* State `from` [t->n_row][n_state] applies node n, and is then at `to` (`from` itself, or NULL: nowhere); with `out` the node's
 * outputs are stored. */
static void absorb(const scan_part *t, float *to, const float *from, const scan_node *n, bool out)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    _Alignas(64) float b[CPU_STATE_MAX], c[CPU_STATE_MAX]; /* read for every row: a vector of them lies in one line */
    float dt[HEADS_MAX], x[SCAN_ROWS], y[SCAN_ROWS];
    int32_t block_b = -1, block_c = -1, dim = a->head_dim;
    /* Mamba-1: heads of one channel, all of the part at once. */
    const bool heads = a->a_per_state && dim == 1 && a->x_rep == 1 && a->b_rep == a->n_head && a->c_rep == a->n_head;
    node_dt(t, n, dt);
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

void speci_cpu_scan_fill(const scan_part *t, int32_t i)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    scan_node n = speci_cpu_scan_node(t, i);
    float dt[HEADS_MAX], b[CPU_STATE_MAX], *cache = speci_cpu_scan_cache_dt(t, t->s->parity, i);
    node_dt(t, &n, dt);
    for (int32_t h = t->head0; h < t->head0 + t->n_head; h++) {
        if (h * a->head_dim < t->row0) continue; /* another task has the head's first row */
        cache[h] = dt[h - t->head0];
        if (a->b_in_conv || h % a->b_rep != 0) continue;
        int32_t block = h / a->b_rep;
        speci_cpu_scan_b(t, &n, block, b);
        loops->store(cpu_item(cache_b_at(t, t->s->parity, i), a->dtype, (size_t)block * (size_t)a->n_state), a->dtype,
                     b, (size_t)a->n_state);
    }
}

/* --- recurrent form --- */

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

/* The state at node i, from the stored one, which is that of node `base` (-1: before the tree). Computed at `work`, if at all. */
static const float *restart(const scan_part *t, float *work, const float *stored, int32_t base, int32_t i)
{
    const spec_step_node *nodes = spec_step_nodes(t->job->q->step) + t->s->first_node;
    int32_t path[2 * (SPEC_MAX_DEPTH + 1)], n = 0;
    if (t->job->a->node_state && i >= 0) return node_state_at(t, i);
    for (; i >= 0 && i != base && n < (int32_t)(sizeof path / sizeof *path); i = nodes[i].parent) path[n++] = i;
    const float *from = stored;
    while (n > 0) {
        const scan_node node = speci_cpu_scan_node(t, path[--n]);
        absorb(t, work, from, &node, false);
        from = work;
    }
    return from;
}

/* Nobody goes on from the node of visit i: its state is needed for its output only. */
static bool is_leaf(const scan_part *t, const spec_traversal_node *visits, int32_t i)
{
    const bool followed = i + 1 < t->s->n_row && visits[i + 1].load == SPEC_LOAD_LIVE;
    return visits[i].save < 0 && !followed && visits[i].node != t->s->n_advance - 1 && !t->job->a->node_state;
}

/* scratch: a state to work at, then the places. */
static void recurrent(const scan_part *t, float *stored, float *scratch)
{
    const spec_step_block *b = t->job->q->step;
    const spec_step_seq *s = t->s;
    const spec_step_node *nodes = spec_step_nodes(b) + s->first_node;
    const spec_traversal_node *visits = spec_step_traversal(b) + s->first_row;
    const size_t place = (size_t)t->job->rows * (size_t)t->job->a->n_state;
    float *work = scratch, *places = scratch + place;
    const float *live = stored; /* the state of node `live_node` */
    int32_t base = -1, live_node = -1;
    for (int32_t i = 0; i < s->n_row; i++) {
        const spec_traversal_node v = visits[i];
        const int32_t parent = nodes[v.node].parent;
        const float *from = live;
        if (v.load >= 0 && parent != live_node) from = places + (size_t)v.load * place;
        if (v.load == SPEC_LOAD_PATH && (parent != live_node || t->job->a->node_state))
            from = restart(t, work, stored, base, parent);
        float *to = v.save >= 0 ? places + (size_t)v.save * place : work;
        if (v.node == s->n_advance - 1 && v.save < 0) to = stored;
        if (is_leaf(t, visits, i)) to = NULL;
        speci_cpu_scan_fill(t, v.node);
        const scan_node n = speci_cpu_scan_node(t, v.node);
        absorb(t, to, from, &n, true);
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
        absorb(t, stored, stored, &n, false);
    }
    uint8_t *scratch = speci_cpu_scratch_take(q);
    recurrent(t, stored, (float *)(void *)scratch);
    speci_cpu_scratch_give(q, scratch);
}

static void scan_task(void *arg, int32_t i)
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
        absorb(&t, stored, stored, &n, true);
    }
}

/* Rows of the state per task: whole heads where they are small, parts of one head where it is large. */
static int32_t rows_per_task(const spec_scan_args *a)
{
    int32_t most = cpu_min(LIVE_MAX / a->n_state, SCAN_ROWS);
    if (a->head_dim >= most) {
        int32_t parts = cpu_parts(a->head_dim, most);
        return cpu_parts(a->head_dim, parts);
    }
    return cpu_min(most / a->head_dim, HEADS_MAX) * a->head_dim;
}

size_t speci_cpu_scan_scratch(const spec_scan_args *a)
{
    if (a->n_state < 1 || a->head_dim < 1) return 0;
    if (a->chunk != 0) return speci_cpu_window_scratch(a);
    const size_t state = (size_t)rows_per_task(a) * (size_t)a->n_state * sizeof(float);
    return state * (size_t)(1 + spec_traversal_saved(a->n_node));
}

/* Nothing outside of caches, places and rings is to be reached, and no place is to be read before it is written. */
static spec_status check_step(const scan_job *job, const spec_step_seq *s)
{
    const spec_host *h = job->q->dev->host;
    const int32_t n = s->n_fed + s->n_row;
    if (s->n_fed < 0 || s->n_row < 0 || n > job->a->n_node || s->n_replay > job->a->n_node)
        return h->fail(SPEC_E_INVALID, "scan: %d nodes fed, %d new, %d replayed; the caches hold %d", s->n_fed, s->n_row,
                       s->n_replay, job->a->n_node);
    if (s->n_advance < 0 || s->n_advance > s->n_row || (s->n_advance > 0 && s->n_fed > 0))
        return h->fail(SPEC_E_INVALID, "scan: %d nodes to advance by, of %d fed and %d new", s->n_advance, s->n_fed,
                       s->n_row);
    if (job->a->chunk != 0) return speci_cpu_window_check_step(job, s);
    bool written[SPEC_MAX_SAVED] = { false };
    for (int32_t i = 0; i < s->n_row; i++) {
        const spec_traversal_node *v = spec_step_traversal(job->q->step) + s->first_row + i;
        if (v->node < s->n_fed || v->node >= n || v->load < SPEC_LOAD_PATH || v->load >= job->n_place ||
            v->save < -1 || v->save >= job->n_place || (v->load >= 0 && !written[v->load]))
            return h->fail(SPEC_E_INVALID, "scan: visit %d: node %d, loads %d, saves %d; there are nodes %d to %d and %d "
                           "places", i, v->node, v->load, v->save, s->n_fed, n - 1, job->n_place);
        if (v->save >= 0) written[v->save] = true;
    }
    return SPEC_OK;
}

spec_status speci_cpu_scan(spec_queue *q, const spec_scan_args *a)
{
    const spec_step_block *b = q->step;
    CPU_TRY(speci_cpu_check_scan(q->dev, a));
    const bool windowed = a->chunk != 0 && b->phase == SPEC_PHASE_DECODE;
    scan_job job = { .q = q, .a = a, .rows = rows_per_task(a), .n_place = spec_traversal_saved(a->n_node) };
    job.n_part = cpu_parts(a->n_head * a->head_dim, job.rows);
    if (windowed) speci_cpu_window_cut(&job);
    if (b->phase == SPEC_PHASE_DECODE && speci_cpu_scan_scratch(a) > q->slot_bytes)
        return q->dev->host->fail(SPEC_E_INVALID, "scan: %zu bytes of scratch, the queue was opened for %zu",
                                  speci_cpu_scan_scratch(a), q->slot_bytes);
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++)
        CPU_TRY(check_step(&job, spec_step_seqs(b) + i));
    speci_cpu_parallel(q->dev->pool, b->n_seq * job.n_part, windowed ? speci_cpu_window_task : scan_task, &job);
    return SPEC_OK;
}
