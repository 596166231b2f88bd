/* chain.cu - what a product of few rows costs beside its weights: a chain of small kernels, each of which multiplies what the one
 * in front has made, as in a step, with one thing left out or changed. Kernels are captured and launched programmatically; all ask
 * for their weights before they wait. Results mean nothing. One line each: microseconds a kernel. build/bin/bench_chain */
#include <cuda_bf16.h>
#include <stdint.h>

#include "graph_time.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, TILE = 16 /* outputs of a block */, MOST_ROWS = 16, LAUNCHES = 40, ROUNDS = 5 };

enum way {
    ROWS_8,     /* a lane's load of x: 8 bytes of a row, 4 lanes to it */
    ROWS_16,    /* 16 bytes */
    TILES_16,   /* 16 bytes of tiles of 8 rows and 32 k: whole lines */
    NO_X,       /* nothing is read of x */
    NO_WEIGHTS, /* nothing of the weights, x as ROWS_16 */
    ONLY_TILES, /* nothing of the weights, x as TILES_16 */
    N_WAYS
};
static const char *const names[N_WAYS] = { "rows by 8 bytes", "rows by 16 bytes", "tiles by 16 bytes", "no x",
                                           "no weights, rows by 16 bytes", "no weights, tiles by 16 bytes" };

struct product {
    const uint4 *w; /* [tile][warp][16 k][lane] */
    const void *x;  /* [rows][n_in] of bfloat16, or its tiles */
    uint16_t *y;
    int n_in, n_out, rows;
};

/* Of MMAS * 16 k for each warp. TILES: of 8 rows. */
template <int WAY, int MMAS, int TILES> static __global__ void __launch_bounds__(THREADS) product_kernel(product p)
{
    extern __shared__ uint4 ring[];
    __shared__ float sums[WARPS * TILE * 8];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, tile = (int)blockIdx.x;
    uint4 *const mine = ring + warp * MMAS * 32 + lane;
    asm volatile("griddepcontrol.launch_dependents;");
    if (WAY < NO_WEIGHTS) {
        const uint4 *from = p.w + ((size_t)tile * WARPS + warp) * MMAS * 32 + lane;
#pragma unroll
        for (int i = 0; i < MMAS; i++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(mine + i * 32)),
                         "l"(from + i * 32));
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");

    uint32_t b[MMAS][2] = {};
#pragma unroll
    for (int t = 0; t < TILES; t++) { /* a second tile of rows is only waited for */
        const int row = min(t * 8 + lane / 4, p.rows - 1), unit = lane % 4;
        if (WAY == ROWS_8) {
            const uint2 *x = (const uint2 *)p.x + ((size_t)row * p.n_in + warp * MMAS * 16) / 4 + unit;
#pragma unroll
            for (int i = 0; i < MMAS; i++) b[i][0] ^= x[i * 4].x, b[i][1] ^= x[i * 4].y;
        } else if (WAY != NO_X) {
            const bool tiles = WAY == TILES_16 || WAY == ONLY_TILES;
            const int pitch = tiles ? 8 : 1, chunk = warp * MMAS / 2;
            const size_t at = tiles ? ((size_t)(row / 8 * (p.n_in / 32) + chunk) * 8 + row % 8) * 4
                                    : (size_t)row * p.n_in / 8 + chunk * 4;
            const uint4 *x = (const uint4 *)p.x + at + unit;
#pragma unroll
            for (int i = 0; i < MMAS / 2; i++) {
                const uint4 v = x[i * 4 * pitch];
                b[2 * i][0] ^= v.x, b[2 * i][1] ^= v.y, b[2 * i + 1][0] ^= v.z, b[2 * i + 1][1] ^= v.w;
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < MMAS; i++) {
        const uint4 a = mine[i * 32];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[i][0]), "r"(b[i][1]));
    }
#pragma unroll
    for (int e = 0; e < 4; e++) sums[(warp * TILE + lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = c[e];
    __syncthreads();
    const int r = (int)threadIdx.x / TILE, o = (int)threadIdx.x % TILE;
    if (r >= 8) return;
    float y = 0.0f;
#pragma unroll
    for (int part = 0; part < WARPS; part++) y += sums[(part * TILE + o) * 8 + r];
    for (int row = r; row < p.rows; row += 8)
        p.y[(size_t)row * p.n_out + tile * TILE + o] = __bfloat16_as_ushort(__float2bfloat16_rn(y));
}

template <int WAY, int MMAS, int TILES> static void launch_with(cudaLaunchConfig_t *c, const product &p)
{
    c->dynamicSmemBytes = MMAS * THREADS * 16;
    auto *kernel = product_kernel<WAY, MMAS, TILES>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->dynamicSmemBytes), "shared memory");
    check(cudaLaunchKernelEx(c, kernel, p), "launch");
}
template <int WAY, int TILES> static void launch_rows(cudaLaunchConfig_t *c, const product &p)
{
    switch (p.n_in) {
    case 768: return launch_with<WAY, 6, TILES>(c, p);
    case 1536: return launch_with<WAY, 12, TILES>(c, p);
    case 2560: return launch_with<WAY, 20, TILES>(c, p);
    default: return launch_with<WAY, 40, TILES>(c, p); /* 5120 */
    }
}
template <int WAY> static void launch(cudaStream_t q, const product &p, bool first)
{
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = !first;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(p.n_out / TILE)), c.blockDim = dim3(THREADS), c.stream = q, c.attrs = &early, c.numAttrs = 1;
    if (p.rows > 8) launch_rows<WAY, 2>(&c, p);
    else launch_rows<WAY, 1>(&c, p);
}
static void launch_any(int way, cudaStream_t q, const product &p, bool first)
{
    static void (*const ways[N_WAYS])(cudaStream_t, const product &, bool) = {
        launch<ROWS_8>, launch<ROWS_16>, launch<TILES_16>, launch<NO_X>, launch<NO_WEIGHTS>, launch<ONLY_TILES> };
    ways[way](q, p, first);
}

/* Microseconds a kernel of a chain of `n` products, whose sizes come by turns; the least of ROUNDS. */
static float time_chain(int way, int rows, const int sizes[3][2], int n)
{
    enum { MOST = 72 };
    void *x[4], *w[MOST];
    for (int i = 0; i < 4; i++) {
        check(cudaMalloc(&x[i], MOST_ROWS * 5120 * 2), "x");
        check(cudaMemset(x[i], 0x3c, MOST_ROWS * 5120 * 2), "x");
    }
    cudaStream_t q;
    check(cudaStreamCreate(&q), "stream");
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)sizes[i % 3][0] * sizes[i % 3][1] * 2;
        check(cudaMalloc(&w[i], bytes), "weights");
        check(cudaMemset(w[i], 0x3c, bytes), "weights");
    }
    check(cudaDeviceSynchronize(), "memory");
    const float ms = time_graph(q, LAUNCHES, ROUNDS, [&]() {
        for (int i = 0; i < n; i++) {
            const product p = { (const uint4 *)w[i], x[i % 4], (uint16_t *)x[(i + 1) % 4], sizes[i % 3][0], sizes[i % 3][1], rows };
            launch_any(way, q, p, i == 0);
        }
    });
    check(cudaStreamDestroy(q), "stream");
    for (int i = 0; i < n; i++) check(cudaFree(w[i]), "weights");
    for (int i = 0; i < 4; i++) check(cudaFree(x[i]), "x");
    return ms * 1e3f / n;
}

int main(void)
{
    static const struct {
        const char *name;
        int sizes[3][2], n; /* n_in x n_out, by turns */
    } chains[] = { { "768 x 3360, 1536 x 768, 768 x 768", { { 768, 3360 }, { 1536, 768 }, { 768, 768 } }, 72 },
                   { "2560 x 4224, 2560 x 5120, 5120 x 2560", { { 2560, 4224 }, { 2560, 5120 }, { 5120, 2560 } }, 24 } };
    static const int rows[] = { 1, 8, 16 };
    for (const auto &chain : chains)
        for (int r : rows)
            for (int way = 0; way < N_WAYS; way++)
                printf("%s, %d rows, %s: %.3f us a product\n", chain.name, r, names[way], time_chain(way, r, chain.sizes, chain.n));
    return 0;
}
