/* cuda_rope_kv.cu - per head: normalise q and k (RMS over head_dim), rotate by position, put k and v into the cache.
 *   (a, b) = (x[i], x[i + n_rot/2]) -> (a cos - b sin, b cos + a sin), angle = position * inv_freq[i], i < n_rot/2,
 *   cos and sin times the gain
 * qkv f32 [rows][(n_head + 2 n_kv_head) head_dim]; q is replaced in place; K and V [n_page][n_kv_head][64][head_dim] of
 * the compute type, row i of a sequence in slot n_past + its node's number. One warp per row and head. All that follows
 * from the step (the angles, the slot) is there before qkv is waited for. */
#include "backends/cuda/cuda.cuh"

enum { ROPE_WARPS = 4, ROPE_HEAD_DIM_MAX = 256, ROPE_PAIRS = ROPE_HEAD_DIM_MAX / 64 /* of a lane */ };

/* Of an angle: cosine and sine, times the gain. Out of line, since the code for large angles is long. */
static __device__ __noinline__ float2 rotation(float angle, float gain)
{
    float2 r;
    sincosf(angle, &r.y, &r.x);
    r.x *= gain, r.y *= gain;
    return r;
}

static __global__ void __launch_bounds__(ROPE_WARPS * 32)
rope_kv_kernel(const spec_step_block *step, spec_rope_kv_args a)
{
    __shared__ float shared[ROPE_WARPS][ROPE_HEAD_DIM_MAX];
    grid_release();
    const int r = (int)blockIdx.y;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int n_kv = a.kv.n_kv_head, d = a.kv.head_dim;
    const int h = (int)blockIdx.x * ROPE_WARPS + warp; /* q heads, then k, then v */
    if (r >= step->n_row || h >= a.n_head + 2 * n_kv) return grid_wait();
    const bool is_q = h < a.n_head, is_v = h >= a.n_head + n_kv;

    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    const int slot = s->n_past + s->n_fed + (r - s->first_row), half = is_v ? 0 : a.n_rot / 2;
    const int page = spec_step_pages(step)[s->first_page + slot / SPEC_PAGE];
    const float position = (float)(s->n_past + spec_step_row_node(step, s, r)->depth);
    const float gain = a.gain > 0.0f ? a.gain : 1.0f;
    float2 turn[ROPE_PAIRS]; /* of the pairs lane, lane + 32, ... */
#pragma unroll
    for (int k = 0; k < ROPE_PAIRS; k++)
        if (lane + 32 * k < half) turn[k] = rotation(position * a.inv_freq[lane + 32 * k], gain);
    grid_wait();

    float *x = (float *)a.qkv.data + (size_t)r * a.qkv.ld + (size_t)h * d;
    float *v = shared[warp];
    for (int c = lane; c < d; c += 32) v[c] = x[c];
    __syncwarp();

    const float *norm = is_q ? a.q_norm : is_v ? NULL : a.k_norm;
    if (norm) {
        float square = 0.0f;
#pragma unroll 1
        for (int c = lane; c < d; c += 32) square = fmaf(v[c], v[c], square);
        const float scale = 1.0f / sqrtf(warp_sum(square) / (float)d + a.eps);
#pragma unroll 1
        for (int c = lane; c < d; c += 32) v[c] = v[c] * scale * norm[c];
        __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < ROPE_PAIRS; k++) { /* a lane owns both elements of its pairs */
        const int i = lane + 32 * k;
        if (i >= half) continue;
        const float p = v[i], o = v[i + half];
        v[i] = fmaf(p, turn[k].x, -(o * turn[k].y));
        v[i + half] = fmaf(o, turn[k].x, p * turn[k].y);
    }
    __syncwarp();
    if (is_q) {
#pragma unroll 1
        for (int c = lane; c < d; c += 32) x[c] = v[c];
        return;
    }
    const int kv_head = h - a.n_head - (is_v ? n_kv : 0);
    const size_t out = (((size_t)page * n_kv + kv_head) * SPEC_PAGE + slot % SPEC_PAGE) * d;
#pragma unroll 1
    for (int c = lane; c < d; c += 32) store_any(is_v ? a.kv.v : a.kv.k, a.kv.dtype, out + c, v[c]);
}

spec_status speci_cuda_check_rope_kv(spec_device *dev, const spec_rope_kv_args *a)
{
    if (a->n_head < 1 || a->kv.n_kv_head < 1 || a->n_head % a->kv.n_kv_head)
        return dev->host->fail(SPEC_E_INVALID, "cuda rope_kv: %d heads over %d", a->n_head, a->kv.n_kv_head);
    if (a->kv.head_dim < 1 || a->kv.head_dim > ROPE_HEAD_DIM_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda rope_kv: head_dim %d, supported are up to %d", a->kv.head_dim,
                               (int)ROPE_HEAD_DIM_MAX);
    if (a->n_rot < 0 || a->n_rot % 2 || a->n_rot > a->kv.head_dim)
        return dev->host->fail(SPEC_E_INVALID, "cuda rope_kv: %d rotated dimensions of %d", a->n_rot, a->kv.head_dim);
    if (!(a->gain >= 0.0f)) return dev->host->fail(SPEC_E_INVALID, "cuda rope_kv: a gain of %g", (double)a->gain);
    if (a->qkv.dtype != SPEC_DTYPE_F32 || !cuda_is_float(a->kv.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda rope_kv: qkv must be f32, the cache a float type");
    return SPEC_OK;
}

spec_status speci_cuda_rope_kv(spec_queue *q, const spec_rope_kv_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "rope_kv"));
    SPEC_TRY(speci_cuda_check_rope_kv(q->dev, a));
    const int blocks = cuda_div_up(a->n_head + 2 * a->kv.n_kv_head, ROPE_WARPS);
    return cuda_launch(q, "rope_kv", rope_kv_kernel, dim3((unsigned)blocks, (unsigned)q->shape.rows),
                       dim3(ROPE_WARPS * 32), 0, 1, q->d_step, *a);
}
