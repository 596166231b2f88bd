/* cpu_attention.c - softmax attention of a row over its own path (algorithms.md 6).
 *
 * A query at position p reads positions (p - window, p] in ascending order, in blocks of 64 absolute positions that
 * are merged by running maximum and sum. A position's key comes from the cache or from the tree alike, so the
 * arithmetic depends on p and the values only: not on how the path was split over steps. */
#include <math.h>

#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_kv.h"

spec_status speci_cpu_check_attention(spec_device *dev, const spec_op *op)
{
    const spec_attention_args *a = &op->u.attention;
    const spec_host *h = dev->host;
    const spec_kv *kv = &a->kv;
    if (!cpu_is_float(kv->dtype) || kv->n_kv_head < 1 || kv->head_dim < 1 || kv->head_dim > CPU_HEAD_MAX)
        return h->fail(SPEC_E_UNSUPPORTED, "attention: a cache of %s with %d heads of %d (at most %d)",
                       speci_dtype_name(kv->dtype), kv->n_kv_head, kv->head_dim, CPU_HEAD_MAX);
    if (a->n_head < 1 || a->n_head % kv->n_kv_head != 0)
        return h->fail(SPEC_E_INVALID, "attention: %d heads on %d key heads", a->n_head, kv->n_kv_head);
    if (a->window < 0) return h->fail(SPEC_E_INVALID, "attention: window %d", a->window);
    if (!(a->cap >= 0.0f)) return h->fail(SPEC_E_INVALID, "attention: scores capped at %g", (double)a->cap);
    int32_t width = a->n_head * kv->head_dim;
    if (a->q.dtype != SPEC_DTYPE_F32 || !cpu_is_float(a->y.dtype) || a->q.ld < width || a->y.ld < width)
        return h->fail(SPEC_E_INVALID, "attention: q %s, y %s, rows %d and %d apart; need f32, a float type and %d",
                       speci_dtype_name(a->q.dtype), speci_dtype_name(a->y.dtype), a->q.ld, a->y.ld, width);
    return SPEC_OK;
}

enum { TILE_ROWS = 16 };

/* A task has up to 16 rows of a sequence and the query heads of one key head, so that a block of the cache becomes float32
 * once for all of them; fewer where there are not tasks enough. One row reads bf16 where it lies. */
typedef struct attention_job {
    spec_queue *q;
    const spec_attention_args *a;
    int32_t heads, rows; /* of a task, at most */
    spec_dtype dtype;    /* of keys and values in blocks */
} attention_job;

/* A task's row. */
typedef struct tile_row {
    int32_t first, position;          /* it attends both and what lies between */
    int32_t slot[SPEC_MAX_DEPTH + 1]; /* decode passes: of the ancestor of each depth, and its own */
} tile_row;

/* 64 positions, from t0 on: where they lie, or copies as float32. */
typedef struct kv_block {
    float *k_copy, *v_copy; /* [SPEC_PAGE][d] */
    const void *k[SPEC_PAGE], *v[SPEC_PAGE];
} kv_block;

static void find_row(const spec_step_block *b, const spec_step_seq *s, int32_t row, int32_t window, tile_row *out)
{
    const spec_step_node *nodes = spec_step_nodes(b) + s->first_node;
    out->position = s->n_past + spec_step_row_node(b, s, row)->depth;
    out->first = window > 0 && out->position >= window ? out->position - window + 1 : 0;
    if (b->phase != SPEC_PHASE_DECODE) return; /* a position is its slot */
    for (int32_t i = s->n_fed + row - s->first_row; i >= 0; i = nodes[i].parent) out->slot[nodes[i].depth] = s->n_past + i;
}

/* Entries at .. at + n - 1 of the block: what lies at `slot` and behind it, all in its page. */
static void fetch(const attention_job *job, kv_block *block, int32_t at, int32_t n, const int32_t *pages, int32_t slot, int32_t kv_head)
{
    const spec_kv *kv = &job->a->kv;
    const size_t d = (size_t)kv->head_dim, bytes = d * speci_dtype_bytes(job->dtype);
    const uint8_t *k = cpu_kv_at(kv, kv->k, pages, slot, kv_head), *v = cpu_kv_at(kv, kv->v, pages, slot, kv_head);
    if (kv->dtype != job->dtype) {
        float *k_copy = block->k_copy + (size_t)at * d, *v_copy = block->v_copy + (size_t)at * d;
        job->q->dev->loops->load(k_copy, k, kv->dtype, (size_t)n * d);
        job->q->dev->loops->load(v_copy, v, kv->dtype, (size_t)n * d);
        k = (const uint8_t *)k_copy, v = (const uint8_t *)v_copy;
    }
    for (int32_t i = at; i < at + n; i++, k += bytes, v += bytes) block->k[i] = k, block->v[i] = v;
}

/* Scratch of a task: copies of the prefix's block and of a row's own, then for each row and head its sums. */
size_t speci_cpu_attention_scratch(const spec_attention_args *a)
{
    if (a->kv.n_kv_head < 1 || a->kv.head_dim < 1 || a->n_head < 1) return 0;
    const size_t d = (size_t)a->kv.head_dim, heads = (size_t)(a->n_head / a->kv.n_kv_head);
    return 4 * SPEC_PAGE * d * sizeof(float) + TILE_ROWS * heads * (d * sizeof(float) + sizeof(cpu_attend)) + sizeof(float);
}

/* Rows [row0, row0 + n) of a sequence, heads [head0, head0 + job->heads). */
typedef struct tile {
    const attention_job *job;
    const spec_step_seq *s;
    int32_t row0, n, head0, kv_head;
    int32_t first, last;   /* positions that any row attends */
    int32_t same;          /* those before it lie where they lie for all rows */
    tile_row rows[TILE_ROWS];
    kv_block prefix, own;  /* what lies alike for all rows; a row's */
    cpu_attend *states;    /* [n][heads] */
} tile;

static void find_rows(tile *t)
{
    const spec_step_block *b = t->job->q->step;
    t->first = INT32_MAX, t->last = -1;
    for (int32_t r = 0; r < t->n; r++) {
        const tile_row *row = &t->rows[r];
        find_row(b, t->s, t->row0 + r, t->job->a->window, &t->rows[r]);
        t->first = cpu_min(t->first, row->first), t->last = cpu_max(t->last, row->position);
    }
    t->same = b->phase == SPEC_PHASE_DECODE ? t->s->n_past : t->last + 1;
}

static void use_scratch(tile *t, uint8_t *scratch)
{
    const size_t d = (size_t)t->job->a->kv.head_dim, copy = SPEC_PAGE * d, n = (size_t)(t->n * t->job->heads);
    float *copies = (float *)(void *)scratch, *sums = copies + 4 * copy; /* first: rows of copies begin where lines of the cache do */
    t->states = (cpu_attend *)(void *)(sums + (n * d + 1) / 2 * 2);
    t->prefix.k_copy = copies, t->prefix.v_copy = copies + copy;
    t->own.k_copy = copies + 2 * copy, t->own.v_copy = copies + 3 * copy;
    memset(sums, 0, n * d * sizeof *sums);
    for (size_t i = 0; i < n; i++) t->states[i] = (cpu_attend){ -INFINITY, 0.0f, sums + i * d };
}

/* Positions [t0, t0 + 64), each row what it attends of them. */
static void attend_block(tile *t, int32_t t0)
{
    const spec_attention_args *a = t->job->a;
    const int32_t *pages = spec_step_pages(t->job->q->step) + t->s->first_page, heads = t->job->heads, dim = a->kv.head_dim;
    const int32_t from = cpu_max(t0, t->first), to = cpu_min(t0 + SPEC_PAGE, t->same);
    if (from < to) fetch(t->job, &t->prefix, from - t0, to - from, pages, from, t->kv_head); /* a position is its slot */
    for (int32_t r = 0; r < t->n; r++) {
        const tile_row *row = &t->rows[r];
        const int32_t begin = cpu_max(t0, row->first), end = cpu_min(t0 + SPEC_PAGE, row->position + 1);
        for (int32_t p = begin; p < end; p++) {
            const int32_t i = p - t0;
            if (p >= t->same) fetch(t->job, &t->own, i, 1, pages, row->slot[p - t->same], t->kv_head);
            else t->own.k[i] = t->prefix.k[i], t->own.v[i] = t->prefix.v[i];
        }
        for (int32_t h = 0; h < heads && begin < end; h++)
            t->job->q->dev->loops->attend(&t->states[r * heads + h], cpu_at(&a->q, t->row0 + r, (t->head0 + h) * dim),
                                          t->own.k + begin - t0, t->own.v + begin - t0, t->job->dtype, end - begin, (size_t)dim,
                                          a->scale, a->cap);
    }
}

static void store_tile(const tile *t)
{
    const spec_attention_args *a = t->job->a;
    const cpu_loops *loops = t->job->q->dev->loops;
    const int32_t heads = t->job->heads, dim = a->kv.head_dim;
    for (int32_t i = 0; i < t->n * heads; i++) {
        const cpu_attend *state = &t->states[i];
        loops->scale(state->o, 1.0f / state->l, (size_t)dim);
        loops->store(cpu_at(&a->y, t->row0 + i / heads, (t->head0 + i % heads) * dim), a->y.dtype, state->o, (size_t)dim);
    }
}

static int32_t tiles_of(const attention_job *job, const spec_step_seq *s)
{
    return cpu_parts(s->n_row, job->rows);
}

static int32_t n_task(const attention_job *job)
{
    const spec_step_block *b = job->q->step;
    int32_t tiles = 0;
    for (int32_t i = 0; i < b->n_seq; i++) tiles += tiles_of(job, &spec_step_seqs(b)[i]);
    return tiles * (job->a->n_head / job->heads);
}

/* Where a thread would have one task or none, tasks are made smaller: down to four rows, then to a head. */
static attention_job divide(spec_queue *q, const spec_attention_args *a)
{
    enum { ROWS_MIN = 4, TASKS = 2 /* of a thread */ };
    const bool one = q->step->n_row == 1;
    attention_job job = { q, a, a->n_head / a->kv.n_kv_head, TILE_ROWS,
                          one && a->kv.dtype == SPEC_DTYPE_BF16 ? SPEC_DTYPE_BF16 : SPEC_DTYPE_F32 };
    const int32_t enough = TASKS * q->dev->host->n_threads;
    while (n_task(&job) < enough && job.rows > ROWS_MIN) job.rows /= 2;
    if (one || n_task(&job) < enough) job.heads = 1;
    return job;
}

/* Task i: of all sequences' tiles of rows the i / n-th, n tasks to each. */
static void attention_task(void *arg, int32_t i)
{
    const attention_job *job = arg;
    const spec_attention_args *a = job->a;
    const int32_t n = a->n_head / job->heads;
    const spec_step_seq *s = spec_step_seqs(job->q->step);
    int32_t at = i / n;
    for (; at >= tiles_of(job, s); s++) at -= tiles_of(job, s);

    tile t = { .job = job, .s = s, .row0 = s->first_row + at * job->rows, .head0 = i % n * job->heads };
    t.n = cpu_min(job->rows, s->n_row - at * job->rows);
    t.kv_head = t.head0 / (a->n_head / a->kv.n_kv_head);
    find_rows(&t);
    uint8_t *scratch = speci_cpu_scratch_take(job->q);
    use_scratch(&t, scratch);
    for (int32_t t0 = t.first / SPEC_PAGE * SPEC_PAGE; t0 <= t.last; t0 += SPEC_PAGE) attend_block(&t, t0);
    store_tile(&t);
    speci_cpu_scratch_give(job->q, scratch);
}

spec_status speci_cpu_attention(spec_queue *q, const spec_op *op)
{
    const spec_attention_args *a = &op->u.attention;
    CPU_TRY(speci_cpu_check_attention(q->dev, op));
    if (speci_cpu_attention_scratch(a) > q->slot_bytes)
        return q->dev->host->fail(SPEC_E_INVALID, "attention: %zu bytes of scratch, the queue was opened for %zu",
                                  speci_cpu_attention_scratch(a), q->slot_bytes);
    attention_job job = divide(q, a);
    speci_cpu_parallel(q->dev->pool, n_task(&job), attention_task, &job);
    return SPEC_OK;
}
