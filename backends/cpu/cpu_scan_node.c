/* cpu_scan_node.c - what a node brings to a scan of any form: where its x, B, C and dt lie, rounded as caches hold
 * them, what the caches keep of a new one, and its outputs. */
#include "backends/cpu/cpu_scan.h"

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

void speci_cpu_scan_fill(const scan_part *t, int32_t i)
{
    const spec_scan_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    scan_node n = speci_cpu_scan_node(t, i);
    float dt[HEADS_MAX], b[CPU_STATE_MAX], *cache = speci_cpu_scan_cache_dt(t, t->s->parity, i);
    speci_cpu_scan_dt(t, &n, t->head0, t->n_head, dt);
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
