/* cuda_attention.cu - attention: what is refused, scratch memory, and the merge of split rows. cuda_attention_keys.cuh tells
 * what is computed; with K and V in float32 by cuda_attention_f32.cu, in 16-bit types by cuda_attention_matrix.cu, or, in
 * prefill, cuda_attention_prefill.cu where the head's dimensions and the addresses allow it. */
#include "backends/cuda/attention/cuda_attention.cuh"

/* Merges the parts, of `size` positions each, of row blockIdx.x, head blockIdx.y in ascending order. */
static __global__ void attention_merge_kernel(const spec_step_block *step, spec_attention_args a, const float *scratch,
                                              int n_part, int size)
{
    const int r = (int)blockIdx.x, h = (int)blockIdx.y, d = a.kv.head_dim;
    grid_release();
    if (r >= step->n_row) return grid_wait();
    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    const int p = s->n_past + spec_step_row_node(step, s, r)->depth;
    grid_wait();
    const float *in = scratch + ((size_t)r * a.n_head + h) * n_part * (d + 2);
    for (int c = (int)threadIdx.x; c < d; c += (int)blockDim.x) {
        att_sum<1> sum;
        sum.clear();
#pragma unroll 4
        for (int part = 0; part <= p / size; part++) {
            const float *x = in + (size_t)part * (d + 2);
            sum.add(x[d], x[d + 1], x + c);
        }
        store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + (size_t)h * d + c, sum.at(0));
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_attention(spec_device *dev, const spec_attention_args *a)
{
    const spec_kv *kv = &a->kv;
    if (a->n_head < 1 || kv->n_kv_head < 1 || a->n_head % kv->n_kv_head || kv->n_page < 0 || a->window < 0)
        return dev->host->fail(SPEC_E_INVALID, "cuda attention: %d heads over %d, window %d", a->n_head, kv->n_kv_head,
                               a->window);
    if (kv->head_dim < 1 || kv->head_dim > 256)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: head_dim %d, can do up to 256", kv->head_dim);
    if (a->q.dtype != SPEC_DTYPE_F32 || !cuda_is_float(kv->dtype) || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: q must be f32, cache and y float types");
    if ((int64_t)kv->n_page * kv->n_kv_head * SPEC_PAGE > INT32_MAX) /* rows are numbered */
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: %d pages of %d heads are too many", kv->n_page,
                               kv->n_kv_head);
    return SPEC_OK;
}

/* Positions of a part of a row. */
static int part_size(const spec_attention_args *a) { return a->kv.dtype == SPEC_DTYPE_F32 ? (int)CUDA_SPLIT : (int)ATT_CHUNK; }

/* For `rows` rows of `splits` splits, both rounded up to powers of two. */
static size_t scratch_floats(const spec_attention_args *a, int rows, int splits)
{
    return (size_t)cuda_pow2(rows) * a->n_head * (a->kv.head_dim + 2) * cuda_pow2(splits) * (CUDA_SPLIT / part_size(a));
}

size_t speci_cuda_attention_floats(const spec_attention_args *a, const spec_plan *plan)
{
    const size_t limit = (size_t)16 << 20; /* beyond 64 MiB the splits of a row are walked by one block */
    if (plan->phase != SPEC_PHASE_DECODE || plan->n_kv_max <= CUDA_SPLIT) return 0;
    const size_t n = scratch_floats(a, plan->n_row_max, cuda_div_up(plan->n_kv_max, CUDA_SPLIT));
    return n < limit ? n : limit;
}

spec_status speci_cuda_attention(spec_queue *q, const spec_attention_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "attention"));
    SPEC_TRY(speci_cuda_check_attention(q->dev, a));
    if (speci_cuda_attention_prefill_can(q, a)) return speci_cuda_attention_prefill(q, a);
    const bool split = q->shape.phase == SPEC_PHASE_DECODE && 2 * (int64_t)q->shape.splits <= 65535 /* of a grid */ &&
                       scratch_floats(a, q->shape.rows, q->shape.splits) <= q->attention_floats;
    auto *attention = a->kv.dtype == SPEC_DTYPE_F32 ? speci_cuda_attention_f32 : speci_cuda_attention_matrix;
    return attention(q, a, split && q->shape.splits > 1 ? q->shape.splits : 1);
}

spec_status speci_cuda_attention_merge(spec_queue *q, const spec_attention_args *a, int parts)
{
    const int d = a->kv.head_dim;
    return cuda_launch(q, "attention merge", attention_merge_kernel, dim3((unsigned)q->shape.rows, (unsigned)a->n_head),
                       dim3(d <= 64 ? 64 : d <= 128 ? 128 : 256), 0, 1, q->d_step, *a, q->attention_scratch, parts,
                       part_size(a));
}
