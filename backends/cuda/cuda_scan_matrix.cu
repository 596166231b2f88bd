/* cuda_scan_matrix.cu - selective scan over a tree, matrix form, for one decay per head (algorithms.md 8.2), with
 * activation replay in front.
 *
 *   y_i = e^sigma_i S0 C_i + sum over j on the path of i of e^(sigma_i - sigma_j) (C_i . B_j) dt_j x_j + D x_i
 *   sigma_i = sum over j on the path of i of dt_j A: double; its differences are rounded to float
 *
 * A block has one head of one sequence and 32 of its channels. It reads their state once, absorbs the accepted path
 * (the recurrent form's functions and order: the same bits) and stores it; then S0 lies in shared memory, turned,
 * and each warp takes MATRIX_ROWS nodes at a time, a lane being a channel. Of the matrix M only what is not zero is
 * computed: pairs of a node and an ancestor, found by walking up. So no exponent is positive, and a tree of depth d
 * costs N d (n + 32) per block beside the N n 32 of S0, whatever N is. Nothing of the size of a state is written per
 * node. Nodes do not wait for each other, which is what this form is for. Sums are float32, in an order that the
 * tree's shape does not change for a path, but C . B and the walk differ from the recurrent form: equal within
 * rounding, not in bits. */
#include "cuda_scan.cuh"

enum { MATRIX_WARPS = 8, MATRIX_THREADS = MATRIX_WARPS * 32, MATRIX_ROWS = 4, MATRIX_CHANNELS = 32, MATRIX_BATCH = 8 };

/* Dynamic shared memory of a block. */
template <int NS> struct matrix_shared {
    float state[NS][MATRIX_CHANNELS + 1];         /* S0; the column more keeps lanes on different banks */
    float c[MATRIX_WARPS][MATRIX_ROWS][NS];       /* of the nodes that a warp has */
    float x[MATRIX_BATCH][MATRIX_CHANNELS];       /* of nodes that are absorbed */
    double sigma[1];                              /* [n_node]; then float dt [n_node], int32_t parent [n_node],
                                                     float2 path [n_node]: dt and decay of replayed nodes */
};
template <int NS> static size_t matrix_bytes(int n_node)
{
    const size_t node = sizeof(double) + sizeof(float) + sizeof(int32_t) + sizeof(float2);
    return sizeof(matrix_shared<NS>) + (size_t)n_node * node;
}

template <int NS>
static __global__ void __launch_bounds__(MATRIX_THREADS)
matrix_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile)
{
    extern __shared__ __align__(16) char dynamic[];
    matrix_shared<NS> &shared = *(matrix_shared<NS> *)dynamic;
    double *sigma = shared.sigma;
    float2 *table = (float2 *)(sigma + a.n_node);
    float *dt = (float *)(table + a.n_node);
    int32_t *parent = (int32_t *)(dt + a.n_node);
    constexpr int OWN = MATRIX_CHANNELS * NS / MATRIX_THREADS; /* entries of the state that a thread has: channels
                                                                  p_own + k * STRIDE of state number n_own */
    constexpr int STRIDE = MATRIX_THREADS / NS;

    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const int n_tree = s.n_fed + s.n_row;
    if (s.n_replay > a.n_node || n_tree > a.n_node || s.n_advance > s.n_row) return grid_wait(); /* caches hold n_node */
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const int32_t *path = spec_step_paths(step) + s.first_path;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int head = (int)blockIdx.x / n_tile, tile = (int)blockIdx.x % n_tile, c0 = tile * MATRIX_CHANNELS;
    const int n_ch = min(a.head_dim - c0, (int)MATRIX_CHANNELS);

    const size_t half = ((size_t)s.slot * 2 + s.parity) * a.n_node;
    const size_t other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node, entry0 = (size_t)n_seq * 2 * a.n_node;
    const int b_width = a.n_head / a.b_rep * a.n_state;
    const size_t x_col = (size_t)(head / a.x_rep) * a.head_dim + c0, y_col = (size_t)head * a.head_dim + c0;
    const size_t b_col = (size_t)(head / a.b_rep) * a.n_state, c_col = (size_t)(head / a.c_rep) * a.n_state;
    const float rate = a.a[head], bias = a.dt_bias ? a.dt_bias[head] : 0.0f, skip = a.d ? a.d[head] : 0.0f;

    /* x of channel p and B of state number n: of an entry of replay_y (whose B may be in the cache), of a row */
    auto cached_x = [&](int entry, int p) {
        return load_any(a.replay_y, a.dtype, (entry0 + entry) * a.replay_ld + a.replay_x_col + x_col + p);
    };
    auto cached_b = [&](int entry, size_t cached, int n) {
        if (!a.b_in_conv) return load_any(a.cache_b, a.dtype, cached * b_width + b_col + n);
        return load_any(a.replay_y, a.dtype, (entry0 + entry) * a.replay_ld + a.replay_b_col + b_col + n);
    };
    auto node_x = [&](int i, int p) {
        if (i < s.n_fed) return cached_x(s.n_replay + i, p);
        const size_t row = (size_t)(s.first_row + i - s.n_fed);
        return round_any(a.dtype, load_any(a.x.data, a.x.dtype, row * a.x.ld + x_col + p));
    };
    auto node_b = [&](int i, int n) {
        if (i < s.n_fed) return cached_b(s.n_replay + i, half + i, n);
        const size_t row = (size_t)(s.first_row + i - s.n_fed);
        return round_any(a.dtype, load_any(a.b.data, a.b.dtype, row * a.b.ld + b_col + n));
    };

    /* The state: no other kernel of the pass writes it. */
    const int n_own = tid % NS, p_own = tid / NS;
    float *memory = a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0) * a.n_state + n_own;
    float state[OWN];
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        const int p = p_own + k * STRIDE;
        state[k] = n_own < a.n_state && p < n_ch ? memory[(size_t)p * a.n_state] : 0.0f;
    }
    grid_wait();

    /* Tables. The first tile of a head keeps dt for the replay to come. */
    for (int i = tid; i < n_tree; i += MATRIX_THREADS) {
        const int up = node[i].parent;
        parent[i] = up < i && up >= 0 ? up : -1;
        if (i < s.n_fed) {
            dt[i] = a.cache_dt[(half + i) * a.n_head + head];
        } else {
            const size_t at = (size_t)(s.first_row + i - s.n_fed) * a.dt.ld + head;
            dt[i] = scan_dt(load_any(a.dt.data, a.dt.dtype, at), bias, a.dt_min, a.dt_max);
            if (tile == 0) a.cache_dt[(half + i) * a.n_head + head] = dt[i];
        }
    }
    for (int j = tid; j < s.n_replay; j += MATRIX_THREADS) {
        const float v = a.cache_dt[(other + path[j]) * a.n_head + head];
        table[j] = make_float2(v, scan_decay(v, rate));
    }
    __syncthreads();
    for (int i = tid; i < n_tree; i += MATRIX_THREADS) {
        double sum = 0.0;
        for (int j = i; j >= 0; j = parent[j]) sum += (double)dt[j] * (double)rate;
        sigma[i] = sum;
    }

    /* What the state absorbs. */
    /* Nodes 0 .. n - 1 of a list: x(j, p), b(j, state number), dt and decay by step(j). All threads call it. */
    auto absorb = [&](int n, auto x, auto b, auto dt_decay) {
        for (int j0 = 0; j0 < n; j0 += MATRIX_BATCH) {
            float mine[MATRIX_BATCH];
            __syncthreads(); /* the batch before has been read */
            if (j0 + warp < n && lane < n_ch) shared.x[warp][lane] = x(j0 + warp, lane);
            static_assert(MATRIX_WARPS >= MATRIX_BATCH, "a warp per node of a batch");
#pragma unroll
            for (int u = 0; u < MATRIX_BATCH; u++) mine[u] = n_own < a.n_state ? b(min(j0 + u, n - 1), n_own) : 0.0f;
            __syncthreads();
#pragma unroll
            for (int u = 0; u < MATRIX_BATCH; u++) {
                if (j0 + u >= n) break;
                const float2 v = dt_decay(j0 + u);
#pragma unroll
                for (int k = 0; k < OWN; k++) {
                    const int p = p_own + k * STRIDE;
                    if (p < n_ch) state[k] = scan_update(state[k], v.y, v.x * shared.x[u][p], mine[u]);
                }
            }
        }
    };
    auto store_state = [&]() {
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int p = p_own + k * STRIDE;
            if (n_own < a.n_state && p < n_ch) memory[(size_t)p * a.n_state] = state[k];
        }
    };
    if (s.n_replay > 0) {
        absorb(s.n_replay, cached_x, [&](int j, int n) { return cached_b(j, other + path[j], n); },
               [&](int j) { return table[j]; });
        store_state();
    }
    if (s.n_row <= 0) return;
#pragma unroll
    for (int k = 0; k < OWN; k++) shared.state[n_own][p_own + k * STRIDE] = state[k];
    if (s.n_advance > 0) {
        absorb(s.n_advance, node_x, node_b, [&](int j) { return make_float2(dt[j], scan_decay(dt[j], rate)); });
        store_state();
    }
    __syncthreads();

    const bool keeps_b = !a.b_in_conv && a.cache_b && tile == 0 && head % a.b_rep == 0;
    float(*c)[NS] = shared.c[warp];
    for (int r0 = warp * MATRIX_ROWS; r0 < s.n_row; r0 += MATRIX_WARPS * MATRIX_ROWS) {
        __syncwarp(); /* C of the nodes before has been read */
#pragma unroll
        for (int r = 0; r < MATRIX_ROWS; r++)
            for (int n = lane; n < NS; n += 32)
                c[r][n] = r0 + r < s.n_row && n < a.n_state
                              ? load_any(a.c.data, a.c.dtype, (size_t)(s.first_row + r0 + r) * a.c.ld + c_col + n)
                              : 0.0f;
        __syncwarp();
        float y[MATRIX_ROWS];
#pragma unroll
        for (int r = 0; r < MATRIX_ROWS; r++) y[r] = 0.0f;
#pragma unroll 2
        for (int n = 0; n < NS; n += 4) {
            float s0[4];
#pragma unroll
            for (int k = 0; k < 4; k++) s0[k] = shared.state[n + k][lane];
#pragma unroll
            for (int r = 0; r < MATRIX_ROWS; r++) {
                const float4 v = *(const float4 *)&c[r][n];
                y[r] = fmaf(v.w, s0[3], fmaf(v.z, s0[2], fmaf(v.y, s0[1], fmaf(v.x, s0[0], y[r]))));
            }
        }
        for (int r = 0; r < MATRIX_ROWS; r++) {
            if (r0 + r >= s.n_row) break;
            const int i = s.n_fed + r0 + r;
            float out = expf((float)sigma[i]) * (r == 0 ? y[0] : r == 1 ? y[1] : r == 2 ? y[2] : y[3]);
            for (int j = i; j >= 0; j = parent[j]) {
                float dot = 0.0f;
                for (int n = lane; n < a.n_state; n += 32) dot = fmaf(c[r][n], node_b(j, n), dot);
                const float x = lane < n_ch ? node_x(j, lane) : 0.0f;
                out = fmaf(expf((float)(sigma[i] - sigma[j])) * warp_sum(dot) * dt[j], x, out);
            }
            if (lane < n_ch) {
                const size_t row = (size_t)(s.first_row + r0 + r);
                out = fmaf(skip, node_x(i, lane), out);
                if (a.z.data) out = out * silu(load_any(a.z.data, a.z.dtype, row * a.z.ld + y_col + lane));
                store_any(a.y.data, a.y.dtype, row * a.y.ld + y_col + lane, out);
            }
            for (int n = lane; keeps_b && n < a.n_state; n += 32)
                store_any(a.cache_b, a.dtype, (half + i) * b_width + b_col + n, node_b(i, n));
        }
    }
}

template <int NS> static spec_status launch_matrix(spec_queue *q, const spec_scan_args *a)
{
    const int n_tile = cuda_div_up(a->head_dim, MATRIX_CHANNELS);
    const size_t bytes = matrix_bytes<NS>(a->n_node);
    scan_allow_shared(q->dev, matrix_kernel<NS>, bytes);
    const dim3 grid((unsigned)(a->n_head * n_tile), (unsigned)q->shape.seqs);
    return cuda_launch(q, "scan", matrix_kernel<NS>, grid, dim3(MATRIX_THREADS), bytes, 1, q->d_step, *a, n_tile);
}

spec_status speci_cuda_scan_matrix(spec_queue *q, const spec_scan_args *a)
{
    if (a->n_state <= 16) return launch_matrix<16>(q, a);
    if (a->n_state <= 32) return launch_matrix<32>(q, a);
    if (a->n_state <= 64) return launch_matrix<64>(q, a);
    if (a->n_state <= 128) return launch_matrix<128>(q, a);
    return launch_matrix<256>(q, a);
}
