/* cuda_attention.cu - attention: what is refused, scratch memory, and the merge of split rows. The kernels are in
 * cuda_attention_few.cuh and cuda_attention_tiles.cuh; cuda_attention_keys.cuh tells what is computed and in which order.
 * Prefill in 16-bit types has its own in cuda_attention_prefill.cu, where the head's dimensions and the addresses allow it. */
#include "cuda_attention.cuh"

/* Merges the splits of row blockIdx.x, head blockIdx.y in ascending order. */
static __global__ void attention_merge_kernel(const spec_step_block *step, spec_attention_args a, const float *scratch,
                                              int n_split)
{
    const int r = (int)blockIdx.x, h = (int)blockIdx.y, d = a.kv.head_dim;
    grid_release();
    if (r >= step->n_row) return grid_wait();
    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    const int p = s->n_past + spec_step_row_node(step, s, r)->depth;
    grid_wait();
    const float *in = scratch + ((size_t)r * a.n_head + h) * n_split * (d + 2);
    for (int c = (int)threadIdx.x; c < d; c += (int)blockDim.x) {
        att_merged sum;
        sum.clear();
#pragma unroll 4
        for (int split = 0; split <= p / CUDA_SPLIT; split++) {
            const float *x = in + (size_t)split * (d + 2);
            sum.add(x[d], x[d + 1], x[c]);
        }
        store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + (size_t)h * d + c, sum.o / sum.l);
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
    if ((int64_t)kv->n_page * kv->n_kv_head * SPEC_PAGE > INT32_MAX / 2) /* rows are numbered with a flag */
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: %d pages of %d heads are too many", kv->n_page,
                               kv->n_kv_head);
    return SPEC_OK;
}

size_t speci_cuda_attention_floats(const spec_attention_args *a, const spec_plan *plan)
{
    const size_t limit = (size_t)16 << 20; /* beyond 64 MiB the splits of a row are walked by one block */
    if (plan->phase != SPEC_PHASE_DECODE || plan->n_kv_max <= CUDA_SPLIT) return 0;
    const size_t per_row = (size_t)a->n_head * (size_t)(a->kv.head_dim + 2) *
                           (size_t)cuda_pow2(cuda_div_up(plan->n_kv_max, CUDA_SPLIT));
    const size_t n = per_row * (size_t)cuda_pow2(plan->n_row_max);
    return n < limit ? n : limit;
}

spec_status speci_cuda_attention(spec_queue *q, const spec_attention_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "attention"));
    SPEC_TRY(speci_cuda_check_attention(q->dev, a));
    if (speci_cuda_attention_prefill_can(q, a)) return speci_cuda_attention_prefill(q, a);
    const int d = a->kv.head_dim;
    const bool vec = d % 8 == 0 && cuda_aligned(a->kv.k, 16) && cuda_aligned(a->kv.v, 16);
    const size_t floats = (size_t)q->shape.rows * a->n_head * q->shape.splits * (size_t)(d + 2);
    const bool split = q->shape.phase == SPEC_PHASE_DECODE && q->shape.splits > 1 && q->shape.splits <= 65535 &&
                       floats <= q->attention_floats;
    const int splits = split ? q->shape.splits : 1;
    SPEC_TRY(cuda_by_dtype(a->kv.dtype, [&](auto tag) {
        return speci_cuda_attention_tiles<decltype(tag)>(q, a, vec, splits);
    }));
    if (!split) return SPEC_OK;
    return cuda_launch(q, "attention merge", attention_merge_kernel, dim3((unsigned)q->shape.rows, (unsigned)a->n_head),
                       dim3(d <= 64 ? 64 : d <= 128 ? 128 : 256), 0, 1, q->d_step, *a, q->attention_scratch, splits);
}
