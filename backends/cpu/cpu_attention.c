/* cpu_attention.c - softmax attention of a row over its own path (algorithms.md 6).
 *
 * A query at position p reads positions (p - window, p] in ascending order, in blocks of 64 absolute positions that
 * are merged by running maximum and sum. A position's key comes from the cache or from the tree alike, so the
 * arithmetic depends on p and the values only: not on how the path was split over steps. */
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_kv.h"

spec_status speci_cpu_check_attention(const spec_device *dev, const spec_attention_args *a)
{
    const spec_host *h = dev->host;
    const spec_kv *kv = &a->kv;
    if (!cpu_is_float(kv->dtype) || kv->n_kv_head < 1 || kv->head_dim < 1 || kv->head_dim > CPU_HEAD_MAX)
        return h->fail(SPEC_E_UNSUPPORTED, "attention: a cache of %s with %d heads of %d (at most %d)",
                       cpu_dtype_name(kv->dtype), kv->n_kv_head, kv->head_dim, CPU_HEAD_MAX);
    if (a->n_head < 1 || a->n_head % kv->n_kv_head != 0)
        return h->fail(SPEC_E_INVALID, "attention: %d heads on %d key heads", a->n_head, kv->n_kv_head);
    if (a->window < 0) return h->fail(SPEC_E_INVALID, "attention: window %d", a->window);
    int32_t width = a->n_head * kv->head_dim;
    if (a->q.dtype != SPEC_DTYPE_F32 || !cpu_is_float(a->y.dtype) || a->q.ld < width || a->y.ld < width)
        return h->fail(SPEC_E_INVALID, "attention: q %s, y %s, rows %d and %d apart; need f32, a float type and %d",
                       cpu_dtype_name(a->q.dtype), cpu_dtype_name(a->y.dtype), a->q.ld, a->y.ld, width);
    return SPEC_OK;
}

typedef struct attention_job {
    const spec_queue *q;
    const spec_attention_args *a;
} attention_job;

/* slot[d] of the row's ancestor of depth d, d <= its own depth; in a prefill pass a position is its slot */
static void ancestor_slots(const spec_step_block *b, const spec_step_seq *s, int32_t row, int32_t *slot)
{
    const spec_step_node *nodes = spec_step_nodes(b) + s->first_node;
    for (int32_t i = s->n_fed + row - s->first_row; i >= 0; i = nodes[i].parent) slot[nodes[i].depth] = s->n_past + i;
}

static void attention_task(void *arg, int32_t i)
{
    const attention_job *job = arg;
    const spec_attention_args *a = job->a;
    const spec_kv *kv = &a->kv;
    const spec_step_block *b = job->q->step;
    int32_t row = i / a->n_head, head = i % a->n_head, kv_head = head / (a->n_head / kv->n_kv_head);
    const spec_step_seq *s = spec_step_seqs(b) + spec_step_row_seq(b)[row];
    const int32_t *pages = spec_step_pages(b) + s->first_page;
    int32_t position = s->n_past + spec_step_row_node(b, s, row)->depth;
    int32_t first = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
    int32_t slots[SPEC_MAX_DEPTH + 1];
    bool tree = b->phase == SPEC_PHASE_DECODE;
    if (tree) ancestor_slots(b, s, row, slots);

    float o[CPU_HEAD_MAX] = { 0 };
    cpu_attend state = { -INFINITY, 0.0f, o };
    size_t d = (size_t)kv->head_dim;
    const float *query = cpu_at(&a->q, row, head * kv->head_dim);
    const void *k[SPEC_PAGE], *v[SPEC_PAGE];
    for (int32_t t = first; t <= position;) {
        int32_t end = cpu_min((t / SPEC_PAGE + 1) * SPEC_PAGE, position + 1), n = 0;
        for (; t < end; t++, n++) {
            int32_t slot = tree && t >= s->n_past ? slots[t - s->n_past] : t;
            k[n] = cpu_kv_at(kv, kv->k, pages, slot, kv_head);
            v[n] = cpu_kv_at(kv, kv->v, pages, slot, kv_head);
        }
        job->q->dev->loops->attend(&state, query, k, v, kv->dtype, n, d, a->scale);
    }
    job->q->dev->loops->scale(o, 1.0f / state.l, d);
    job->q->dev->loops->store(cpu_at(&a->y, row, head * kv->head_dim), a->y.dtype, o, d);
}

spec_status speci_cpu_attention(spec_queue *q, const spec_attention_args *a)
{
    CPU_TRY(speci_cpu_check_attention(q->dev, a));
    attention_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row * a->n_head, attention_task, &job);
    return SPEC_OK;
}
