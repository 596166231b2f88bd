/* cuda_attention_prefill.cu - attention of prefill passes in 16-bit types, on the matrix instruction.
 *   y = sum_t softmax_t(scale q.k_t) v_t,  t in (p - window, p], p = n_past + row; scores perhaps under a cap
 * q f32 [rows][n_head][d], rounded to T once it is scaled; K, V [n_page][n_kv_head][64][d] of T, position t in slot t;
 * y [rows][n_head][d] of T.
 *
 * Source: Dao, FlashAttention-2 (arXiv 2307.08691), algorithm 1. A block takes PRE_ROWS rows of one head and walks the
 * pages up to its last row, while the next page's K and V are copied to shared memory. A warp takes 16 rows: their q,
 * running maximum and sum, and their y stay in registers (m16n8k16, float32 accumulators), and e^(s - max), which the
 * first product leaves, is the second one's operand as it lies: rounded to T, and summed so.
 *
 * A row's sums run over pages of absolute positions in ascending order, 16 positions at a time, and a page that the row
 * does not attend leaves them as they were: bits depend on position and values only, not on the rows beside it or on
 * where the pass begins. What is not attended is left out by selection: scores become -inf; and since 0 times a V that
 * is not finite is not 0, such values are taken out of pages that not all rows attend.
 *
 * Shared memory: [2][K, V][64][D] of T in units of 16 bytes, unit u of row r at u ^ (r % 8), so that the 8 rows of a
 * matrix lie in different banks. */
#include "backends/cuda/attention/cuda_attention.cuh"
#include "backends/cuda/cuda_tuning.h"
#include "backends/cuda/linear/cuda_linear.cuh"

enum { PRE_WARPS = 4, PRE_THREADS = PRE_WARPS * 32, PRE_ROWS = PRE_WARPS * 16 };

/* The rows of a lane, g and g + 8 of its warp's: what they attend is [first, last]. */
struct pre_rows {
    int first[2], last[2];
    __device__ __forceinline__ bool attends(int i, int t) const { return t >= first[i] && t <= last[i]; }
};

template <typename T> static __device__ __forceinline__ bool all_finite(const uint32_t w)
{
    const float2 v = unpack2<T>(w);
    return isfinite(v.x) && isfinite(v.y);
}

/* Zeros in place of the elements of V that are not finite; rows that attend one are no longer finite in its column. */
template <typename T, int D>
static __device__ __forceinline__ void take_out(float (&o)[D / 8][4], uint32_t *v, int t0, const pre_rows &rows)
{
    const int lane = (int)threadIdx.x % 32;
    for (int key = 0; key < SPEC_PAGE; key++) {
        const bool mine[2] = { rows.attends(0, t0 + key), rows.attends(1, t0 + key) };
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float2 x = unpack2<T>(v[(key * (D / 8) + (n ^ key % 8)) * 4 + lane % 4]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (mine[i] && !isfinite(x.x)) o[n][2 * i] += x.x;
                if (mine[i] && !isfinite(x.y)) o[n][2 * i + 1] += x.y;
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SPEC_PAGE * D / 2; i += PRE_THREADS) {
        const float2 x = unpack2<T>(v[i]);
        v[i] = pack2<T>(isfinite(x.x) ? x.x : 0.0f, isfinite(x.y) ? x.y : 0.0f);
    }
    __syncthreads();
}

/* Grid: tiles of rows, heads. D: d rounded up; what is behind d is zero. CAP: scores have a cap. */
template <typename T, int D, bool CAP>
static __global__ void __launch_bounds__(PRE_THREADS, 2)
attention_prefill_kernel(const spec_step_block *step, spec_attention_args a)
{
    constexpr int UNITS = D / 8, PAGE = SPEC_PAGE * UNITS;
    extern __shared__ __align__(16) uint4 shared[];
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int row0 = (int)(gridDim.x - 1 - blockIdx.x) * PRE_ROWS; /* the longest first */
    const int h = (int)blockIdx.y, n_kv = a.kv.n_kv_head, d = a.kv.head_dim, kv_head = h / (a.n_head / n_kv);
    grid_begin();
    const int n_row = step->n_row;
    if (row0 >= n_row) return;
    const spec_step_seq *s = spec_step_seqs(step);
    const int32_t *page_of = spec_step_pages(step) + s->first_page;
    const int bottom = s->n_past + row0, top = s->n_past + min(row0 + PRE_ROWS, n_row) - 1; /* positions of the block */
    const int warp_row = row0 + warp * 16, low = s->n_past + warp_row, high = low + 15;     /* and of the warp */
    pre_rows rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rows.last[i] = low + g + 8 * i;
        rows.first[i] = a.window ? rows.last[i] - a.window + 1 : 0;
    }

    /* --- 1: the first page's K and V are on their way --- */
    /* This thread copies unit u of every STEP-th row; behind d it takes the last one, and nothing of it. */
    constexpr int STEP = PRE_THREADS / UNITS;
    static_assert(STEP % 8 == 0, "rows of a thread have their units in one place");
    const int u = tid % UNITS, key = tid / UNITS, mine = key * UNITS + (u ^ key % 8);
    const size_t page_size = (size_t)n_kv * SPEC_PAGE * d;
    const size_t from = (size_t)(kv_head * SPEC_PAGE + key) * d + min(u * 8, d - 8);
    const auto copy = [&](int page) {
        uint4 *to = shared + page % 2 * 2 * PAGE + mine;
        const size_t at = page_of[page] * page_size + from;
        const T *k = (const T *)a.kv.k + at, *v = (const T *)a.kv.v + at;
        const int there = u * 8 < d ? top - page * SPEC_PAGE - key : -1; /* rows i * STEP <= there */
#pragma unroll
        for (int i = 0; i < SPEC_PAGE / STEP; i++) {
            const int bytes = i * STEP <= there ? 16 : 0;
            copy_part16(to + i * STEP * UNITS, k + i * STEP * d, bytes);
            copy_part16(to + PAGE + i * STEP * UNITS, v + i * STEP * d, bytes);
        }
        copy_commit();
    };
    const int page0 = a.window ? max(bottom - a.window + 1, 0) / SPEC_PAGE : 0, page1 = top / SPEC_PAGE;
    copy(page0);

    /* --- 2: q to registers --- */
    uint32_t q[D / 16][4];
    const float scale = a.scale * CUDART_L2E_F; /* powers are of 2 */
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = warp_row + g + e % 2 * 8, col = c * 16 + e / 2 * 8 + 2 * t;
            const float *from_q = (const float *)a.q.data + (size_t)r * a.q.ld + (size_t)h * d + col;
            const float2 x = r < n_row && col < d ? *(const float2 *)from_q : make_float2(0.0f, 0.0f);
            q[c][e] = pack2<T>(x.x * scale, x.y * scale);
        }

    float o[D / 8][4], m[2] = { -CUDART_INF_F, -CUDART_INF_F };
    float l[4] = { 0.0f, 0.0f, 0.0f, 0.0f }; /* each row's sum twice */
#pragma unroll
    for (int e = 0; e < D / 2; e++) o[e / 4][e % 4] = 0.0f;
    /* In bytes: where in a page the rows of matrices lie that this lane names, and their unit in the first columns. */
    const uint32_t shared0 = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t at_k = (lane / 16 * 8 + lane % 8) * UNITS * 16, at_v = (lane / 8 % 2 * 8 + lane % 8) * UNITS * 16;
    const uint32_t unit_k = (lane / 8 % 2 ^ lane % 8) * 16, unit_v = (lane / 16 ^ lane % 8) * 16;
    /* --- 3: page after page --- */
    for (int page = page0; page <= page1; page++) {
        const int t0 = page * SPEC_PAGE;
        uint4 *v = shared + (page % 2 * 2 + 1) * PAGE;
        /* --- 3a: the page has come, values of V that are not finite are taken out, the next page is asked for --- */
        copy_wait<0>();
        bool odd = false;
        if (t0 + SPEC_PAGE - 1 > bottom || (a.window && t0 <= top - a.window))
            for (int i = 0; i < SPEC_PAGE / STEP; i++) { /* what this thread copied */
                const uint4 x = v[mine + i * STEP * UNITS];
                odd = odd || !(all_finite<T>(x.x) && all_finite<T>(x.y) && all_finite<T>(x.z) && all_finite<T>(x.w));
            }
        odd = __syncthreads_or(odd);
        if (page < page1) copy(page + 1);
        if (odd) take_out<T, D>(o, (uint32_t *)v, t0, rows);
        if (t0 > high || (a.window && t0 + SPEC_PAGE - 1 <= low - a.window)) continue;

        const uint32_t k_page = shared0 + page % 2 * 2 * PAGE * 16, v_page = k_page + PAGE * 16;
        /* --- 3b: scores --- */
        /* s = q K^T: lane (g, t) holds positions 8 n + 2 t and the next of rows g and g + 8. */
        float x[8][4];
#pragma unroll
        for (int e = 0; e < 32; e++) x[e / 4][e % 4] = 0.0f;
#pragma unroll
        for (int c = 0; c < D / 16; c++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b[4];
                load_matrices(b, k_page + at_k + (c * 32 ^ unit_k) + n * 16 * UNITS * 16);
                mma16816<T>(x[2 * n], q[c][0], q[c][1], q[c][2], q[c][3], b[0], b[1]);
                mma16816<T>(x[2 * n + 1], q[c][0], q[c][1], q[c][2], q[c][3], b[2], b[3]);
            }
        if (CAP) {
            const att_cap cap(a);
#pragma unroll
            for (int e = 0; e < 32; e++) x[e / 4][e % 4] = cap.of(x[e / 4][e % 4]);
        }
        if (t0 + SPEC_PAGE - 1 > low || (a.window && t0 <= high - a.window)) {
#pragma unroll
            for (int e = 0; e < 32; e++)
                if (!rows.attends(e % 4 / 2, t0 + e / 4 * 8 + 2 * t + e % 2)) x[e / 4][e % 4] = -CUDART_INF_F;
        }

        /* --- 3c: the running softmax --- */
        /* The softmax so far; a row that has attended nothing yet stays at 0. */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = m[i];
#pragma unroll
            for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(x[n][2 * i], x[n][2 * i + 1]));
            most = quad_max(most);
            const float base = most == -CUDART_INF_F ? 0.0f : most, shrink = exp2_fast(m[i] - base);
            m[i] = most;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                x[n][2 * i] = exp2_fast(x[n][2 * i] - base);
                x[n][2 * i + 1] = exp2_fast(x[n][2 * i + 1] - base);
            }
            l[2 * i] *= shrink; /* of the two, the one that is read */
#pragma unroll
            for (int n = 0; n < D / 8; n++) o[n][2 * i] *= shrink, o[n][2 * i + 1] *= shrink;
        }

        /* --- 3d: weighted V --- */
        /* o += e^(s - max) V */
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t p[4];
#pragma unroll
            for (int e = 0; e < 4; e++) p[e] = pack2<T>(x[2 * c + e / 2][e % 2 * 2], x[2 * c + e / 2][e % 2 * 2 + 1]);
            const uint32_t ones = pack2<T>(1.0f, 1.0f);
            mma16816<T>(l, p[0], p[1], p[2], p[3], ones, ones);
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t b[4];
                load_turned(b, v_page + at_v + (n * 32 ^ unit_v) + c * 16 * UNITS * 16);
                mma16816<T>(o[2 * n], p[0], p[1], p[2], p[3], b[0], b[1]);
                mma16816<T>(o[2 * n + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
            }
        }
    }

/* --- 4: outputs --- */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = warp_row + g + 8 * i;
        if (r >= n_row) continue;
        const float share = 1.0f / l[2 * i];
        T *y = (T *)a.y.data + (size_t)r * a.y.ld + (size_t)h * d + 2 * t;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < d) *(uint32_t *)(y + n * 8) = pack2<T>(o[n][2 * i] * share, o[n][2 * i + 1] * share);
    }
}

/* --- launcher --- */

template <typename T, int D> static spec_status launch(spec_queue *q, const spec_attention_args *a)
{
    auto *kernel = a->cap > 0.0f ? attention_prefill_kernel<T, D, true> : attention_prefill_kernel<T, D, false>;
    const size_t least = cuda_tuning_of(q->dev).attention_prefill_shared;
    const size_t need = (size_t)2 * 2 * SPEC_PAGE * D * sizeof(T), bytes = need > least ? need : least;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const dim3 grid((unsigned)cuda_div_up(q->shape.rows, PRE_ROWS), (unsigned)a->n_head);
    return cuda_launch(q, "attention prefill", kernel, grid, dim3(PRE_THREADS), bytes, 1, q->d_step, *a);
}

bool speci_cuda_attention_prefill_can(const spec_queue *q, const spec_attention_args *a)
{
    const spec_kv *kv = &a->kv;
    return q->shape.phase == SPEC_PHASE_PREFILL && q->shape.seqs == 1 && kv->dtype != SPEC_DTYPE_F32 &&
           a->y.dtype == kv->dtype && kv->head_dim <= 128 && kv->head_dim % 8 == 0 && cuda_aligned(kv->k, 16) &&
           cuda_aligned(kv->v, 16) && cuda_aligned(a->q.data, 8) && a->q.ld % 2 == 0 && cuda_aligned(a->y.data, 4) &&
           a->y.ld % 2 == 0;
}

spec_status speci_cuda_attention_prefill(spec_queue *q, const spec_attention_args *a)
{
    const bool small = a->kv.head_dim <= 64;
    if (a->kv.dtype == SPEC_DTYPE_BF16)
        return small ? launch<__nv_bfloat16, 64>(q, a) : launch<__nv_bfloat16, 128>(q, a);
    return small ? launch<__half, 64>(q, a) : launch<__half, 128>(q, a);
}
