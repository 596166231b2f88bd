/* ways.cu - products of many rows alone, by each way in which the backend may divide them (cuda_linear_many.cuh): what find_way()
 * has to know. A graph of products of one shape, launched programmatically, each with weights of its own, more of them than
 * level 2 holds; x in order already, as the operation in front leaves it. The first way's bits are what the others must have.
 *
 *     build/bin/bench_ways [rows [n_out n_in [glu]]]      64 rows, shapes of known models
 *
 * Of up to LINEAR_FEW rows those of Q8_0 alone, of up to LINEAR_NEVER_MANY none.
 * One line each: microseconds a product, the least of ROUNDS; * marks the way that the backend takes. */
#include <string.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/linear/cuda_linear_many.cu"
#include "backends/cuda/linear/cuda_linear_many_q8.cu"
#include "graph_time.cuh"

/* What these files want of the others and do not call here. */
uint16_t *speci_cuda_arranged_for(const spec_queue *, cuda_pass *, linear_order, const uint16_t *) { return NULL; }
spec_status speci_cuda_status(const spec_device *, cudaError_t, const char *) { return SPEC_E_DEVICE; }

enum { LAUNCHES = 24, ROUNDS = 7, MOST_COPIES = 40 };
static const size_t COLD = (size_t)400 << 20; /* bytes of weights in turn */

struct shape {
    const char *name;
    int n_out, n_in, glu;
};
static const shape shapes[] = {
    { "Mamba2-130M in", 3352, 768, 0 },    { "Mamba2-130M out", 768, 1536, 0 },   { "Mamba2-370M in", 4384, 1024, 0 },
    { "Mamba2-370M out", 1024, 2048, 0 },  { "Mamba2-1.3B in", 8512, 2048, 0 },   { "Mamba2-1.3B out", 2048, 4096, 0 },
    { "Mamba2-2.7B in", 10576, 2560, 0 },  { "Mamba2-2.7B out", 2560, 5120, 0 },  { "Mamba2-2.7B head", 50288, 2560, 0 },
    { "Llama-1.1B qkv", 2560, 2048, 0 },   { "Llama-1.1B up", 11264, 2048, 1 },   { "Llama-1.1B down", 2048, 5632, 0 },
    { "Llama-2-7B qkv", 12288, 4096, 0 },  { "Llama-2-7B o", 4096, 4096, 0 },     { "Llama-2-7B up", 22016, 4096, 1 },
    { "Llama-2-7B down", 4096, 11008, 0 },
};

struct product {
    shape s;
    int rows, copies;
    size_t bytes; /* of a weight */
    char *w;      /* [copies] */
    uint4 *x;
    float *y;
    spec_step_block *step;
    cudaStream_t q;
};

/* Random bits that are small numbers: of bfloat16, and as well of Q8_0's scales and values. */
static void *fill(size_t bytes)
{
    std::vector<uint16_t> host(bytes / 2);
    uint32_t r = 1;
    for (uint16_t &v : host) r = r * 1664525u + 1013904223u, v = (uint16_t)(0x3c00u | (r >> 8 & 0x83ffu));
    void *device;
    check(cudaMalloc(&device, bytes), "memory");
    check(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice), "memory");
    return device;
}

static product open_product(const shape &s, int rows, bool q8, cudaStream_t q)
{
    product p = { s, rows };
    const q8_shape pieces = { s.n_out, s.n_in, s.glu };
    p.bytes = q8 ? (size_t)pieces.n_strip() * pieces.n_piece() * sizeof(q8_piece) : (size_t)s.n_out * s.n_in * 2;
    p.copies = (int)std::min<size_t>(MOST_COPIES, COLD / p.bytes + 1);
    p.w = (char *)fill(p.bytes * p.copies);
    p.x = (uint4 *)fill((size_t)cuda_div_up(rows, SLAB_ROWS) * SLAB_ROWS * cuda_chunks(s.n_in) * CUDA_CHUNK * 2);
    check(cudaMalloc(&p.y, (size_t)rows * s.n_out * sizeof(float)), "memory");
    spec_step_block step = {};
    step.n_row_run = rows;
    check(cudaMalloc(&p.step, sizeof step), "memory");
    check(cudaMemcpy(p.step, &step, sizeof step, cudaMemcpyHostToDevice), "memory");
    p.q = q;
    return p;
}
static void close_product(const product &p)
{
    for (void *memory : { (void *)p.w, (void *)p.x, (void *)p.y, (void *)p.step }) check(cudaFree(memory), "memory");
}

static cuda_linear_args arguments(const product &p)
{
    cuda_linear_args a = {};
    a.n_in = p.s.n_in, a.n_out = p.s.n_out, a.glu = p.s.glu, a.scale = 1.0f;
    a.act = p.s.glu ? SPEC_ACT_SILU : SPEC_ACT_NONE;
    a.y.data = p.y, a.y.dtype = SPEC_DTYPE_F32, a.y.ld = p.s.glu ? p.s.n_out / 2 : p.s.n_out;
    return a;
}

static void launch(const product &p, const many_way &w, int copy)
{
    const cuda_linear_args a = arguments(p);
    spec_queue q = {};
    q.stream = p.q, q.d_step = p.step;
    if (cuda_launch(&q, "linear", w.kernel, many_grid(w, p.rows, a.y.ld), dim3((unsigned)w.threads), (size_t)w.bytes,
                    (unsigned)w.blocks, p.step, p.w + copy * p.bytes, p.s.n_in, (const uint4 *)p.x, p.s.n_in, w.share,
                    linear_out_of(&a)) != SPEC_OK)
        check(cudaGetLastError(), "launch");
}

static float time_way(const product &p, const many_way &w)
{
    const float ms = time_graph(p.q, 1, ROUNDS, [&]() {
        for (int i = 0; i < LAUNCHES; i++) launch(p, w, i % p.copies);
    });
    return ms * 1e3f / LAUNCHES;
}

static std::vector<float> results(const product &p, const many_way &w)
{
    std::vector<float> y((size_t)p.rows * arguments(p).y.ld);
    launch(p, w, 0);
    check(cudaStreamSynchronize(p.q), "product");
    check(cudaMemcpy(y.data(), p.y, y.size() * sizeof(float), cudaMemcpyDeviceToHost), "memory");
    return y;
}

template <typename W> static void each_way(const shape &s, int rows, const char *weights, int n_sm, cudaStream_t stream)
{
    const product p = open_product(s, rows, strcmp(weights, "bf16") != 0, stream);
    const cuda_linear_args a = arguments(p);
    spec_device dev = {};
    spec_queue q = {};
    dev.n_sm = n_sm, q.dev = &dev, q.shape.rows = cuda_pow2(rows);
    const many_way taken = find_way<W, LINEAR_PLAIN>(&q, &a, a.y.ld);
    std::vector<float> first;
    for (many_way w : W::template ways<LINEAR_PLAIN>()) {
        if (!has_rows(w, q.shape.rows)) continue;
        fit_way(&q, &a, a.y.ld, &w);
        const std::vector<float> y = results(p, w);
        if (first.empty()) first = y;
        const bool same = memcmp(first.data(), y.data(), y.size() * sizeof(float)) == 0;
        const dim3 grid = many_grid(w, rows, a.y.ld);
        const float us = time_way(p, w);
        printf("%c %-17s %5d x %5d, %d rows, %s: %7.2f us, %4.0f GB/s;", w.kernel == taken.kernel ? '*' : ' ', s.name, s.n_out,
               s.n_in, rows, weights, us, p.bytes / us / 1e3);
        printf(" %u blocks of %d threads and %d rows, clusters of %d, share %d%s\n", grid.x * grid.y * grid.z, w.threads, w.n,
               w.blocks, w.share, same ? "" : "; OTHER BITS");
    }
    close_product(p);
}

int main(int argc, char **argv)
{
    const int rows = argc > 1 ? atoi(argv[1]) : 64;
    shape own = { "own", argc > 3 ? atoi(argv[2]) : 0, argc > 3 ? atoi(argv[3]) : 0, argc > 4 && atoi(argv[4]) };
    int n_sm;
    cudaStream_t stream;
    if (rows <= LINEAR_NEVER_MANY || (argc > 2 && (own.n_out < 2 || own.n_in < CUDA_CHUNK || own.n_in % CUDA_CHUNK != 0))) {
        fprintf(stderr, "usage: %s [rows [n_out n_in [glu]]], more than %d rows, n_in a multiple of %d\n", argv[0], LINEAR_NEVER_MANY,
                CUDA_CHUNK);
        return 2;
    }
    check(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0), "device");
    check(cudaStreamCreate(&stream), "stream");
    for (const shape &s : shapes) {
        const shape &one = own.n_out ? own : s;
        each_way<many_plain<__nv_bfloat16>>(one, rows, "bf16", n_sm, stream);
        each_way<many_q8<__nv_bfloat16>>(one, rows, "q8_0", n_sm, stream);
        if (own.n_out) break;
    }
    return 0;
}
