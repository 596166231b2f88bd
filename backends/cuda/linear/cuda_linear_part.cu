/* cuda_linear_part.cu - products of 16-bit weights and 17 to 32 rows where both sides are wide: a block has one part of K and
 * keeps x of it in shared memory.
 *
 * A block of linear_few_kernel (cuda_linear_few.cuh) reads all of x for every 16 outputs: with 32 rows twice as many bytes as of
 * weights, and level 2 gives no more. Here the 8 blocks of a cluster have the 8 parts of K, and go from tile to tile of 128
 * outputs; x is read once. Weights are the operand that the instruction takes from registers: a lane reads only what it
 * copied itself to its warp's ring, which goes on over the ends of tiles.
 *
 * Each block stores an eighth of a tile's sums: block 2 n + c has rows 8 n + 2 t + c (lane (g, t)), and is sent the other
 * parts' sums of them. Those of a tile are stored when the next one's products are done: they have come by then. There is
 * room for two tiles, and nothing says that a place is free, as nothing has to: who has all sums of tile i - 1 knows that
 * every block has sent its own, hence has read those of tile i - 2.
 *
 * The same sums in the same order as linear_few_kernel's, so the same bits (cuda_linear.cuh). */
#include "backends/cuda/cuda_cluster.cuh"
#include "backends/cuda/linear/cuda_wgmma.cuh"

enum {
    PART_WARPS = 8,
    PART_THREADS = PART_WARPS * 32,
    PART_ROWS = LINEAR_FEW,
    PART_OUTPUTS = PART_WARPS * 16, /* of a tile; with glu half of them are gates */
    PART_DEPTH = 4,                 /* steps of 64 k in flight, of a warp */
    PART_STEP = 4 * 32,             /* units of 16 bytes: [2 chunks][2 rows][lanes] */
    PART_LEAST = 2560, PART_MOST = 8192, /* n_in: of shorter parts there is little to stream, of longer ones x leaves no room */
    PART_ARRIVE = LINEAR_PARTS * PART_THREADS * 8 /* bytes of sums that a block is sent for a tile */
};
static_assert(PART_ROWS / 8 * 2 == LINEAR_PARTS, "a block for each eight rows and parity");

static __host__ __device__ __forceinline__ int part_steps(int n_in) /* of the longest part */
{
    return (cuda_chunks(n_in) + LINEAR_PARTS - 1) / LINEAR_PARTS * (CUDA_CHUNK / 64);
}
static int part_bytes(int n_in)
{
    return PART_WARPS * PART_DEPTH * PART_STEP * 16 + 2 * PART_ARRIVE + part_steps(n_in) * 8 * PART_ROWS * 16;
}

/* Columns [k0, k0 + 64 n_step) of the rows of x, as slabs; of rows that are not there, nothing. */
template <typename T>
static __device__ __forceinline__ void load_slabs(uint4 *slabs, const T *x, int ld_x, int k0, int n_step, int n_row)
{
    constexpr int DEEP = 8; /* loads in flight */
    const int n_unit = n_step * 8 * PART_ROWS;
#pragma unroll 1
    for (int first = (int)threadIdx.x; first < n_unit; first += DEEP * PART_THREADS) {
        uint4 u[DEEP];
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const int i = first + d * PART_THREADS, row = i / 4 % PART_ROWS, chunk = i / (4 * PART_ROWS);
            if (i < n_unit && row < n_row)
                u[d] = *(const uint4 *)(x + (size_t)row * ld_x + k0 + chunk * 32 + i % 4 * 8);
        }
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const int i = first + d * PART_THREADS, row = i / 4 % PART_ROWS, chunk = i / (4 * PART_ROWS);
            uint32_t *const to = (uint32_t *)slabs + (chunk * 4 * PART_ROWS + row) * 4 + i % 4;
            if (i < n_unit && row < n_row) {
                to[0] = u[d].x, to[4 * PART_ROWS] = u[d].y;
                to[8 * PART_ROWS] = u[d].z, to[12 * PART_ROWS] = u[d].w;
            }
        }
    }
    shared_written();
    __syncthreads();
}

template <typename T, bool BEST>
static __global__ void __launch_bounds__(PART_THREADS, 1)
linear_part_kernel(const spec_step_block *step, const T *w, int ld_w, const T *x, int ld_x, int n_in, linear_out o)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ uint64_t met[2];
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int part = (int)blockIdx.x % LINEAR_PARTS, cluster = (int)blockIdx.x / LINEAR_PARTS;
    const int n_cluster = (int)gridDim.x / LINEAR_PARTS;
    uint4 *const ring = (uint4 *)dynamic + warp * PART_DEPTH * PART_STEP + lane;
    float2 *const sums = (float2 *)((uint4 *)dynamic + PART_WARPS * PART_DEPTH * PART_STEP); /* [2][parts][threads] */
    uint4 *const slabs = (uint4 *)(sums + 2 * LINEAR_PARTS * PART_THREADS);

    grid_release();
    if (tid == 0) {
        for (int i = 0; i < 2; i++) barrier_init(&met[i], 1), barrier_expect(&met[i], PART_ARRIVE);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");

    /* A lane's two rows of weights: two outputs side by side, with glu a gate and its up. */
    const int half = o.n_out / 2, per_warp = o.glu ? 8 : 16, m_end = o.glu ? half : o.n_out;
    const int n_tile = (m_end + PART_WARPS * per_warp - 1) / (PART_WARPS * per_warp), m_lane = o.glu ? g : 2 * g;
    const int k0 = part_begin(n_in, part), n_step = (part_begin(n_in, part + 1) - k0) / 64;
    const size_t second = (size_t)(o.glu ? half : 1) * ld_w;
    const uint64_t policy = read_once();
    auto output_of = [&](int tile) { return (tile * PART_WARPS + warp) * per_warp; };
    auto weights_of = [&](int tile) { return w + (size_t)(min(output_of(tile), m_end - 1) + m_lane) * ld_w + k0 + t * 8; };
    int ahead = cluster, ahead_step = 0; /* what is copied next */
    const T *from = weights_of(ahead);
    auto copy_w = [&](int slot) {
        if (ahead >= n_tile) return;
#pragma unroll
        for (int i = 0; i < 4; i++) copy16(ring + slot * PART_STEP + i * 32, from + i / 2 * 32 + i % 2 * second, policy);
        from += 64;
        if (++ahead_step < n_step) return;
        ahead += n_cluster, ahead_step = 0;
        from = weights_of(ahead);
    };
    /* Half of the ring at a time: what the kernels in front have still to read would queue behind more. */
#pragma unroll
    for (int s = 0; s < PART_DEPTH; s++) {
        copy_w(s);
        copy_commit();
        if (s == PART_DEPTH / 2 - 1) copy_wait<0>();
    }
    const int n_row = min(step->n_row_run, (int)PART_ROWS);
    grid_wait();
    load_slabs(slabs, x, ld_x, k0, n_step, n_row);

    const int row = part / 2 * 8 + 2 * t + part % 2; /* that this thread stores */
    unsigned long long best = 0;                     /* of what it stores */
    auto store = [&](int tile, int i) {              /* the cluster's i-th */
        const int m = output_of(tile) + m_lane, n_m = row < n_row ? min(m_end - m, o.glu ? 1 : 2) : 0;
        const size_t at = (size_t)row * o.ld_y + m;
        float was[2];
#pragma unroll
        for (int e = 0; e < 2; e++) was[e] = o.add && e < n_m ? ((const float *)o.y)[at + e] : 0.0f;
        barrier_wait(&met[i % 2], i / 2 & 1);
        if (tid == 0) barrier_expect(&met[i % 2], PART_ARRIVE);
        float2 p[LINEAR_PARTS];
#pragma unroll
        for (int k = 0; k < LINEAR_PARTS; k++) p[k] = sums[(i % 2 * LINEAR_PARTS + k) * PART_THREADS + tid];
        /* Not known to be the same each time: the compiler would copy what follows for every kind of output, 71 KB. */
        asm volatile("" : "+l"(o.bias), "+r"(o.act), "+r"(o.glu), "+r"(o.add), "+r"(o.y_type));
        const float v[2] = { (p[0].x + p[1].x + p[2].x + p[3].x) + (p[4].x + p[5].x + p[6].x + p[7].x),
                             (p[0].y + p[1].y + p[2].y + p[3].y) + (p[4].y + p[5].y + p[6].y + p[7].y) };
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (e < n_m) {
                const float y = linear_put(o, at + e, linear_value(o, m + e, v[e], v[1]), was[e]);
                if (BEST) better(&best, y, m + e);
            }
    };

    int slot = 0, i = 0, before = 0;
    for (int tile = cluster; tile < n_tile; before = tile, tile += n_cluster, i++) {
        float acc[PART_ROWS / 2] = {};
        for (int s = 0; s < n_step; s++) {
            copy_wait<PART_DEPTH - 1>();
            uint4 v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = ring[slot * PART_STEP + k * 32];
            wgmma_begin();
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma_chunk<T, PART_ROWS, PART_ROWS>(acc, v[2 * c], v[2 * c + 1], slabs + (s * 2 + c) * 4 * PART_ROWS);
            wgmma_end();
            copy_w(slot);
            copy_commit();
            wgmma_wait<0>(acc);
            slot = slot == PART_DEPTH - 1 ? 0 : slot + 1;
        }
        if (i == 0) asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); /* all have their barriers */
        else store(before, i - 1);
        float2 *const to = sums + (i % 2 * LINEAR_PARTS + part) * PART_THREADS + tid;
#pragma unroll
        for (int b = 0; b < LINEAR_PARTS; b++) /* of 8 rows a lane has [output][2 rows] */
            cluster_send(to, make_float2(acc[b / 2 * 4 + b % 2], acc[b / 2 * 4 + 2 + b % 2]), &met[i % 2], b);
    }
    store(before, i - 1);
    if (BEST) {
        best = lanes_best<16, 4>(best);
        if (g == 0 && row < n_row) atomicMax(o.best + row, best);
    }
}

/* Clusters that are at home at once, each going from tile to tile. */
template <typename T, bool BEST> static int part_clusters(const spec_queue *q, int n_in)
{
    auto *kernel = linear_part_kernel<T, BEST>;
    const int bytes = part_bytes(n_in);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return clusters_at_once(q, kernel, LINEAR_PARTS, PART_THREADS, bytes);
}

bool speci_cuda_is_part(const spec_queue *q, const cuda_linear_args *a, bool aligned)
{
    if (!cuda_has_large_blocks(q->dev) || q->shape.rows > PART_ROWS || q->shape.rows <= PART_ROWS / 2 || !aligned ||
        speci_dtype_bytes(a->w->dtype) != 2 || !a->w->format->plain || a->n_in % CUDA_CHUNK != 0 || a->n_in < PART_LEAST ||
        a->n_in > PART_MOST || a->squares)
        return false;
    const int at_once = part_clusters<__nv_bfloat16, false>(q, a->n_in); /* all types alike */
    const int tiles = cuda_div_up(a->n_out, PART_OUTPUTS), turns = cuda_div_up(tiles, at_once);
    return tiles * 3 >= turns * at_once * 2; /* else too much of the device would idle in the last turn */
}

template <typename T, bool BEST>
static spec_status linear_part(spec_queue *q, const cuda_linear_args *a, const linear_out &o)
{
    const int tiles = cuda_div_up(o.n_out, PART_OUTPUTS), at_once = part_clusters<T, BEST>(q, a->n_in);
    const int clusters = tiles < at_once ? tiles : at_once;
    return cuda_launch(q, "linear", linear_part_kernel<T, BEST>, dim3((unsigned)(clusters * LINEAR_PARTS)), dim3(PART_THREADS),
                       (size_t)part_bytes(a->n_in), LINEAR_PARTS, q->d_step, (const T *)a->w->data, a->w->ld,
                       (const T *)a->x.data, a->x.ld, a->n_in, o);
}

bool speci_cuda_linear_part(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, spec_status *status)
{
    if (o.next.weight || !speci_cuda_is_part(q, a, aligned)) return false;
    if (a->w->dtype == SPEC_DTYPE_F16)
        *status = o.best ? linear_part<__half, true>(q, a, o) : linear_part<__half, false>(q, a, o);
    else
        *status = o.best ? linear_part<__nv_bfloat16, true>(q, a, o) : linear_part<__nv_bfloat16, false>(q, a, o);
    return true;
}
