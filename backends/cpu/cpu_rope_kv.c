/* cpu_rope_kv.c - the KV cache: rotation and writing of new rows, compaction of accepted paths.
 *
 * Slot of a position: pages[first_page + slot / 64], then [n_kv_head][64][head_dim] within the page. */
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_kv.h"

enum { ROT_MAX = 512 };

static spec_status check_kv(const spec_host *h, const char *op, const spec_kv *kv)
{
    if (!cpu_is_float(kv->dtype) || kv->n_kv_head < 1 || kv->head_dim < 1 || kv->head_dim > CPU_HEAD_MAX)
        return h->fail(SPEC_E_UNSUPPORTED, "%s: a cache of %s with %d heads of %d (at most %d)", op,
                       speci_dtype_name(kv->dtype), kv->n_kv_head, kv->head_dim, CPU_HEAD_MAX);
    return SPEC_OK;
}

/* --- kv_commit --- */

spec_status speci_cpu_check_kv_commit(spec_device *dev, const spec_op *op)
{
    const spec_kv_commit_args *a = &op->u.kv_commit;
    for (int32_t i = 0; i < a->n_layer; i++) CPU_TRY(check_kv(dev->host, "kv_commit", &a->layers[i]));
    return SPEC_OK;
}

typedef struct commit_job {
    const spec_step_block *b;
    const spec_kv_commit_args *a;
} commit_job;

/* Task: one sequence in one layer. path[j] >= j and ascends, so moving in place is safe. */
static void commit_task(void *arg, int32_t i)
{
    const commit_job *job = arg;
    const spec_kv *kv = &job->a->layers[i % job->a->n_layer];
    const spec_step_seq *s = spec_step_seqs(job->b) + i / job->a->n_layer;
    const int32_t *path = spec_step_paths(job->b) + s->first_path;
    const int32_t *pages = spec_step_pages(job->b) + s->first_page;
    size_t bytes = (size_t)kv->head_dim * speci_dtype_bytes(kv->dtype);
    int32_t base = s->n_past - s->n_replay;
    for (int32_t j = 0; j < s->n_replay; j++) {
        if (path[j] == j) continue;
        for (int32_t h = 0; h < kv->n_kv_head; h++) {
            memcpy(cpu_kv_at(kv, kv->k, pages, base + j, h), cpu_kv_at(kv, kv->k, pages, base + path[j], h), bytes);
            memcpy(cpu_kv_at(kv, kv->v, pages, base + j, h), cpu_kv_at(kv, kv->v, pages, base + path[j], h), bytes);
        }
    }
}

spec_status speci_cpu_kv_commit(spec_queue *q, const spec_op *op)
{
    const spec_kv_commit_args *a = &op->u.kv_commit;
    CPU_TRY(speci_cpu_check_kv_commit(q->dev, op));
    commit_job job = { q->step, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_seq * a->n_layer, commit_task, &job);
    return SPEC_OK;
}

/* --- rope_kv --- */

spec_status speci_cpu_check_rope_kv(spec_device *dev, const spec_op *op)
{
    const spec_rope_kv_args *a = &op->u.rope_kv;
    const spec_host *h = dev->host;
    CPU_TRY(check_kv(h, "rope_kv", &a->kv));
    if (a->n_rot < 0 || a->n_rot % 2 != 0 || a->n_rot > a->kv.head_dim || a->n_rot > ROT_MAX)
        return h->fail(SPEC_E_INVALID, "rope_kv: %d rotated dimensions of %d", a->n_rot, a->kv.head_dim);
    int32_t width = (a->n_head + 2 * a->kv.n_kv_head) * a->kv.head_dim;
    if (!(a->gain >= 0.0f)) return h->fail(SPEC_E_INVALID, "rope_kv: a gain of %g", (double)a->gain);
    if (a->qkv.dtype != SPEC_DTYPE_F32 || a->n_head < 1 || a->qkv.ld < width)
        return h->fail(SPEC_E_INVALID, "rope_kv: qkv is %s with rows %d apart, expected f32 and %d",
                       speci_dtype_name(a->qkv.dtype), a->qkv.ld, width);
    return SPEC_OK;
}

typedef struct rope_job {
    const spec_queue *q;
    const spec_rope_kv_args *a;
} rope_job;

/* (a, b) = (x[i], x[i + n_rot/2]) -> (a cos - b sin, b cos + a sin) */
static void rotate(float *x, const float *cosine, const float *sine, int32_t half)
{
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

static void rope_row(void *arg, int32_t row)
{
    const rope_job *job = arg;
    const spec_rope_kv_args *a = job->a;
    const spec_kv *kv = &a->kv;
    const cpu_loops *loops = job->q->dev->loops;
    const spec_step_block *b = job->q->step;
    const spec_step_seq *s = spec_step_seqs(b) + spec_step_row_seq(b)[row];
    const int32_t *pages = spec_step_pages(b) + s->first_page;
    int32_t position = s->n_past + spec_step_row_node(b, s, row)->depth;
    int32_t slot = s->n_past + s->n_fed + (row - s->first_row);
    size_t d = (size_t)kv->head_dim;
    const float gain = a->gain > 0.0f ? a->gain : 1.0f;
    float cosine[ROT_MAX / 2], sine[ROT_MAX / 2];
    for (int32_t i = 0; i < a->n_rot / 2; i++) {
        double angle = (double)position * (double)a->inv_freq[i];
        cosine[i] = (float)cos(angle) * gain;
        sine[i] = (float)sin(angle) * gain;
    }
    float *x = cpu_at(&a->qkv, row, 0);
    for (int32_t h = 0; h < a->n_head + kv->n_kv_head; h++) {
        float *head = x + (size_t)h * d;
        const float *weight = h < a->n_head ? a->q_norm : a->k_norm;
        if (weight) loops->rms(head, head, weight, a->eps, d);
        rotate(head, cosine, sine, a->n_rot / 2);
    }
    const float *k = x + (size_t)a->n_head * d, *v = k + (size_t)kv->n_kv_head * d;
    for (int32_t h = 0; h < kv->n_kv_head; h++) {
        loops->store(cpu_kv_at(kv, kv->k, pages, slot, h), kv->dtype, k + (size_t)h * d, d);
        loops->store(cpu_kv_at(kv, kv->v, pages, slot, h), kv->dtype, v + (size_t)h * d, d);
    }
}

spec_status speci_cpu_rope_kv(spec_queue *q, const spec_op *op)
{
    const spec_rope_kv_args *a = &op->u.rope_kv;
    CPU_TRY(speci_cpu_check_rope_kv(q->dev, op));
    rope_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row, rope_row, &job);
    return SPEC_OK;
}
