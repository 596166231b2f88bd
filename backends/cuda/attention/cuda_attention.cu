/* cuda_attention.cu - attention: what is refused, scratch memory, and which kernel does it. cuda_attention_keys.cuh tells
 * what is computed; with K and V in float32 by cuda_attention_f32.cu, in 16-bit types by cuda_attention_matrix.cu, or, in
 * prefill, cuda_attention_prefill.cu where the head's dimensions and the addresses allow it. */
#include "backends/cuda/attention/cuda_attention.cuh"

spec_status speci_cuda_check_attention(spec_device *dev, const spec_attention_args *a)
{
    const spec_kv *kv = &a->kv;
    if (a->n_head < 1 || kv->n_kv_head < 1 || a->n_head % kv->n_kv_head || kv->n_page < 0 || a->window < 0)
        return dev->host->fail(SPEC_E_INVALID, "cuda attention: %d heads over %d, window %d", a->n_head, kv->n_kv_head,
                               a->window);
    if (!(a->cap >= 0.0f)) return dev->host->fail(SPEC_E_INVALID, "cuda attention: scores capped at %g", (double)a->cap);
    if (kv->head_dim < 1 || kv->head_dim > 256)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: head_dim %d, supported are up to 256", kv->head_dim);
    if (a->q.dtype != SPEC_DTYPE_F32 || !cuda_is_float(kv->dtype) || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: q must be f32, cache and y float types");
    if ((int64_t)kv->n_page * kv->n_kv_head * SPEC_PAGE > INT32_MAX) /* rows are numbered */
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda attention: %d pages of %d heads are too many", kv->n_page,
                               kv->n_kv_head);
    return SPEC_OK;
}

/* For `rows` rows of `splits` splits, both rounded up to powers of two. */
static size_t scratch_floats(const spec_attention_args *a, int rows, int splits)
{
    return (size_t)cuda_pow2(rows) * a->n_head * (a->kv.head_dim + 2) * cuda_pow2(splits) * (CUDA_SPLIT / attention_part(a));
}

size_t speci_cuda_attention_floats(const spec_attention_args *a, const spec_plan *plan)
{
    const size_t limit = (size_t)16 << 20; /* beyond 64 MiB the splits of a row are walked by one block */
    if (plan->phase != SPEC_PHASE_DECODE || plan->n_kv_max <= CUDA_SPLIT) return 0;
    const size_t n = scratch_floats(a, plan->n_row_max, cuda_div_up(plan->n_kv_max, CUDA_SPLIT));
    return n < limit ? n : limit;
}

spec_status speci_cuda_attention(spec_queue *q, const spec_attention_args *a, cuda_pass *pass)
{
    SPEC_TRY(cuda_enter_op(q, "attention"));
    SPEC_TRY(speci_cuda_check_attention(q->dev, a));
    if (speci_cuda_attention_prefill_can(q, a)) return speci_cuda_attention_prefill(q, a);
    const bool split = q->shape.phase == SPEC_PHASE_DECODE && 2 * (int64_t)q->shape.splits <= 65535 /* of a grid */ &&
                       scratch_floats(a, q->shape.rows, q->shape.splits) <= q->attention_floats;
    const int splits = split && q->shape.splits > 1 ? q->shape.splits : 1;
    return a->kv.dtype == SPEC_DTYPE_F32 ? speci_cuda_attention_f32(q, a, splits) : speci_cuda_attention_matrix(q, a, splits, pass);
}
