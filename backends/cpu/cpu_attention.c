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

enum { TILE_ROWS = 16 };

/* A task has up to 16 rows of a sequence and the query heads of one key head, so that a block of the cache becomes float32
 * once for all of them; of a pass with one row a query head, so that there are tasks enough. */
typedef struct attention_job {
    spec_queue *q;
    const spec_attention_args *a;
    int32_t heads; /* of a task */
} attention_job;

/* A task's row. */
typedef struct tile_row {
    int32_t first, position;           /* it attends both and what lies between */
    int32_t slot[SPEC_MAX_DEPTH + 1];  /* decode passes: of the ancestor of each depth, and its own */
} tile_row;

/* 64 positions, from t0 on, as float32: where they lie, or copies. */
typedef struct kv_block {
    float *k_copy, *v_copy; /* [SPEC_PAGE][d] */
    const float *k[SPEC_PAGE], *v[SPEC_PAGE];
} kv_block;

static void find_row(const spec_step_block *b, const spec_step_seq *s, int32_t row, int32_t window, tile_row *out)
{
    const spec_step_node *nodes = spec_step_nodes(b) + s->first_node;
    out->position = s->n_past + spec_step_row_node(b, s, row)->depth;
    out->first = window > 0 && out->position >= window ? out->position - window + 1 : 0;
    if (b->phase != SPEC_PHASE_DECODE) return; /* a position is its slot */
    for (int32_t i = s->n_fed + row - s->first_row; i >= 0; i = nodes[i].parent) out->slot[nodes[i].depth] = s->n_past + i;
}

/* Entry `at` of the block: what lies at `slot`. */
static void fetch(const attention_job *job, kv_block *block, int32_t at, const int32_t *pages, int32_t slot, int32_t kv_head)
{
    const spec_kv *kv = &job->a->kv;
    const size_t d = (size_t)kv->head_dim;
    const void *k = cpu_kv_at(kv, kv->k, pages, slot, kv_head), *v = cpu_kv_at(kv, kv->v, pages, slot, kv_head);
    if (kv->dtype != SPEC_DTYPE_F32) {
        float *k_copy = block->k_copy + (size_t)at * d, *v_copy = block->v_copy + (size_t)at * d;
        job->q->dev->loops->load(k_copy, k, kv->dtype, d);
        job->q->dev->loops->load(v_copy, v, kv->dtype, d);
        k = k_copy, v = v_copy;
    }
    block->k[at] = k, block->v[at] = v;
}

/* Scratch of a task: copies of the prefix's block and of a row's own, then for each row and head its sums. */
size_t speci_cpu_attention_scratch(const spec_attention_args *a)
{
    if (a->kv.n_kv_head < 1 || a->kv.head_dim < 1 || a->n_head < 1) return 0;
    const size_t d = (size_t)a->kv.head_dim, heads = (size_t)(a->n_head / a->kv.n_kv_head);
    return 4 * SPEC_PAGE * d * sizeof(float) + TILE_ROWS * heads * (d * sizeof(float) + sizeof(cpu_attend));
}

/* The rows [row, row + n) of s, heads [head, head + job->heads). */
static void attend_rows(const attention_job *job, const spec_step_seq *s, int32_t row, int32_t n, int32_t head)
{
    const spec_attention_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const spec_step_block *b = job->q->step;
    const int32_t *pages = spec_step_pages(b) + s->first_page;
    const int32_t kv_head = head / (a->n_head / a->kv.n_kv_head), heads = job->heads;
    const size_t d = (size_t)a->kv.head_dim, copy = SPEC_PAGE * d;
    uint8_t *scratch = speci_cpu_scratch_take(job->q);
    cpu_attend *states = (cpu_attend *)(void *)scratch;
    float *copies = (float *)(void *)(states + n * heads), *sums = copies + 4 * copy;
    kv_block prefix = { copies, copies + copy, { NULL }, { NULL } }, own = { copies + 2 * copy, copies + 3 * copy, { NULL }, { NULL } };
    tile_row rows[TILE_ROWS];
    int32_t first = INT32_MAX, last = -1;
    for (int32_t r = 0; r < n; r++) {
        find_row(b, s, row + r, a->window, &rows[r]);
        first = cpu_min(first, rows[r].first), last = rows[r].position > last ? rows[r].position : last;
    }
    memset(sums, 0, (size_t)(n * heads) * d * sizeof *sums);
    for (int32_t i = 0; i < n * heads; i++) states[i] = (cpu_attend){ -INFINITY, 0.0f, sums + (size_t)i * d };

    const int32_t same = b->phase == SPEC_PHASE_DECODE ? s->n_past : last + 1; /* positions before it are of all rows */
    for (int32_t t0 = first / SPEC_PAGE * SPEC_PAGE; t0 <= last; t0 += SPEC_PAGE) {
        for (int32_t t = t0 > first ? t0 : first; t < cpu_min(t0 + SPEC_PAGE, same); t++)
            fetch(job, &prefix, t - t0, pages, t, kv_head);
        for (int32_t r = 0; r < n; r++) {
            const int32_t begin = t0 > rows[r].first ? t0 : rows[r].first, end = cpu_min(t0 + SPEC_PAGE, rows[r].position + 1);
            for (int32_t t = begin; t < end; t++) {
                if (t >= same) fetch(job, &own, t - t0, pages, rows[r].slot[t - same], kv_head);
                else own.k[t - t0] = prefix.k[t - t0], own.v[t - t0] = prefix.v[t - t0];
            }
            for (int32_t h = 0; h < heads && begin < end; h++)
                loops->attend(&states[r * heads + h], cpu_at(&a->q, row + r, (head + h) * a->kv.head_dim), own.k + begin - t0,
                              own.v + begin - t0, end - begin, d, a->scale);
        }
    }
    for (int32_t i = 0; i < n * heads; i++) {
        loops->scale(states[i].o, 1.0f / states[i].l, d);
        loops->store(cpu_at(&a->y, row + i / heads, (head + i % heads) * a->kv.head_dim), a->y.dtype, states[i].o, d);
    }
    speci_cpu_scratch_give(job->q, scratch);
}

/* Task i: of all sequences' tiles of rows the i / n-th, n tasks to each. */
static void attention_task(void *arg, int32_t i)
{
    const attention_job *job = arg;
    const spec_step_block *b = job->q->step;
    const int32_t n = job->a->n_head / job->heads;
    int32_t tile = i / n;
    const spec_step_seq *s = spec_step_seqs(b);
    for (; tile >= cpu_parts(s->n_row, TILE_ROWS); s++) tile -= cpu_parts(s->n_row, TILE_ROWS);
    const int32_t row = tile * TILE_ROWS;
    attend_rows(job, s, s->first_row + row, cpu_min(TILE_ROWS, s->n_row - row), i % n * job->heads);
}

spec_status speci_cpu_attention(spec_queue *q, const spec_attention_args *a)
{
    CPU_TRY(speci_cpu_check_attention(q->dev, a));
    const spec_step_block *b = q->step;
    if (speci_cpu_attention_scratch(a) > q->slot_bytes)
        return q->dev->host->fail(SPEC_E_INVALID, "attention: %zu bytes of scratch, the queue was opened for %zu",
                                  speci_cpu_attention_scratch(a), q->slot_bytes);
    attention_job job = { q, a, b->n_row > 1 ? a->n_head / a->kv.n_kv_head : 1 };
    int32_t tiles = 0;
    for (int32_t i = 0; i < b->n_seq; i++) tiles += cpu_parts(spec_step_seqs(b)[i].n_row, TILE_ROWS);
    speci_cpu_parallel(q->dev->pool, tiles * (a->n_head / job.heads), attention_task, &job);
    return SPEC_OK;
}
