/* cuda_scan_wgmma.cu - selective scan over a prompt on Hopper: what cuda_scan_prefill.cu computes, in the same chunks
 * and planes, for bfloat16, 128 states and heads of whole 64 channels. There wgmma takes operands where copies leave
 * them.
 *
 * A block has 64 channels of a head and walks the prompt in chunks of 64 rows. Its warpgroups have a role each:
 *   copies  brings x, B and C of the next chunks, and makes their tables
 *   state   has the state in registers, 16 channels a warp: applies the chunk and leaves S0 of the next one, in two
 *           planes, in shared memory. It alone is a chain from chunk to chunk
 *   y       two of them, a chunk each by turns, 16 rows a warp: C B^T, which goes from the accumulators into an operand
 *           of the product with x, and S0 C
 * Barriers in shared memory say when a chunk or an S0 has come and when all have read it.
 *
 * Shared memory is tiles of 64 rows of 128 bytes, in which unit u (16 bytes) of row r lies at u ^ r % 8: as wgmma takes
 * them, rows being one of its dimensions and columns the other, or the other way round. */
#include "backends/cuda/cuda_barrier.cuh"
#include "backends/cuda/scan/cuda_scan_ssd.cuh"
#include "backends/cuda/linear/cuda_wgmma.cuh"

enum {
    SW_GROUP = 128,
    SW_COPIES = 0, SW_STATE = 1, SW_Y = 2, SW_Y_GROUPS = 2, /* roles, by warpgroup */
    SW_THREADS = (SW_Y + SW_Y_GROUPS) * SW_GROUP,
    SW_STAGES = 3, /* chunks in shared memory */
    SW_CHANNELS = 64,
    SW_STATES = 128,
    SW_PLANES = 2,
    SW_TILE = 64 * 64, /* elements */
    /* Registers of a thread by role: 512 threads have 128 each. */
    SW_REGISTERS_COPIES = 40, SW_REGISTERS_STATE = 184, SW_REGISTERS_Y = 144
};

struct sw_chunk {
    uint16_t b[2][SW_TILE], c[2][SW_TILE], x[SW_TILE]; /* of B and C each half of the states */
};
struct sw_shared {
    sw_chunk chunk[SW_STAGES];
    uint16_t state[2][SW_PLANES][2][SW_TILE]; /* of two chunks: [channel][state], each half of the states */
    ssd_table table[SW_STAGES];
};
struct sw_barriers { /* of each: warps that arrive */
    uint64_t come[SW_STAGES], read[SW_STAGES];     /* a chunk: 4; 4 of state, 4 of y */
    uint64_t state_come[2], state_read[2];         /* 4; 4 */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* --- barriers --- */

/* All lanes have done what others wait for. */
static __device__ __forceinline__ void warp_arrive(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(b);
}
/* --- wgmma --- */

/* A tile, from element `at` on: its rows are the operand's rows (K along columns, 16 of which are 32 bytes), or its
 * columns are (K along rows, 16 of which are 2048 bytes); with more than 64, the next tile has the others. In units of
 * 16 bytes: 8 rows are 64, a tile 512. */
static __device__ __forceinline__ uint64_t operand(const uint16_t *at, int next_tile)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)next_tile << 16 | (address >> 4 & 0x3fff);
}
static __device__ __forceinline__ uint64_t rows_operand(const uint16_t *at) { return operand(at, 1); }
static __device__ __forceinline__ uint64_t columns_operand(const uint16_t *at) { return operand(at, 512); }

/* d[64][64] (FIRST: =, else +=) A[64][16] B[16][64], both from tiles by rows */
template <bool FIRST> static __device__ __forceinline__ void wgmma_tiles(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile("{ .reg .pred more; setp.ne.b32 more, %34, 0;"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_32 "}, %32, %33, more, 1, 1, 0, 0; }"
                 : WGMMA_EIGHT(0), WGMMA_EIGHT(8), WGMMA_EIGHT(16), WGMMA_EIGHT(24)
                 : "l"(a), "l"(b), "n"(FIRST ? 0 : 1));
}
/* A from registers, B a tile by columns */
static __device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : WGMMA_EIGHT(0), WGMMA_EIGHT(8), WGMMA_EIGHT(16), WGMMA_EIGHT(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/* ... of 128 columns, in two tiles */
template <bool FIRST>
static __device__ __forceinline__ void wgmma_registers(float (&d)[64], const uint32_t a[4], uint64_t b)
{
    asm volatile("{ .reg .pred more; setp.ne.b32 more, %69, 0;"
                 " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_32
                 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
                 "%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, more, 1, 1, 1; }"
                 : WGMMA_EIGHT(0), WGMMA_EIGHT(8), WGMMA_EIGHT(16), WGMMA_EIGHT(24), WGMMA_EIGHT(32), WGMMA_EIGHT(40), WGMMA_EIGHT(48),
                   WGMMA_EIGHT(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(FIRST ? 0 : 1));
}

/* --- a block's part of the operation --- */

/* Element (row, col) of a tile. */
static __device__ __forceinline__ int in_tile(int row, int col)
{
    return row * 64 + ((col / 8 ^ row % 8) * 8 + col % 8);
}

struct sw_block {
    const spec_scan_args &a;
    const spec_step_seq &s;
    sw_shared &shared;
    sw_barriers &barriers;
    int head, c0, n_chunk;
    int warp, g, t; /* warp: of its group */

    __device__ __forceinline__ sw_block(const spec_scan_args &args, const spec_step_seq &seq, sw_shared &sh,
                                        sw_barriers &b)
        : a(args), s(seq), shared(sh), barriers(b)
    {
        const int n_tile = a.head_dim / SW_CHANNELS;
        head = (int)blockIdx.x / n_tile, c0 = (int)blockIdx.x % n_tile * SW_CHANNELS;
        n_chunk = (s.n_row + SSD_ROWS - 1) / SSD_ROWS;
        warp = (int)(threadIdx.x % SW_GROUP / 32), g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    }

    /* -- copies -- */

    __device__ __forceinline__ void copy_tile(uint16_t *to, const spec_view &v, size_t col, int first, int n) const
    {
        const int i = (int)threadIdx.x % SW_GROUP, u = i % 8, r = i / 8;
        const uint16_t *from = (const uint16_t *)v.data + (size_t)(first + r) * v.ld + col + u * 8;
        to += in_tile(r, u * 8);
#pragma unroll
        for (int k = 0; k < 64; k += SW_GROUP / 8) copy_async(to + k * 64, from + (size_t)k * v.ld, r + k < n);
    }
    __device__ __forceinline__ void bring_chunks() const
    {
        const size_t b = (size_t)(head / a.b_rep) * SW_STATES, c = (size_t)(head / a.c_rep) * SW_STATES;
        const size_t x = (size_t)(head / a.x_rep) * a.head_dim + c0;
        for (int i = 0, stage = 0, round = 0; i < n_chunk; i++) {
            sw_chunk &to = shared.chunk[stage];
            const int first = s.first_row + i * SSD_ROWS, n = s.n_row - i * SSD_ROWS;
            if (round > 0) barrier_wait(&barriers.read[stage], round - 1 & 1);
            copy_tile(to.x, a.x, x, first, n);
            copy_tile(to.b[0], a.b, b, first, n), copy_tile(to.b[1], a.b, b + 64, first, n);
            copy_tile(to.c[0], a.c, c, first, n), copy_tile(to.c[1], a.c, c + 64, first, n);
            if (warp == 0) make_table(shared.table[stage], a, head, load_dt(a, head, first, n), n);
            scan_copies_wait();
            shared_written();
            warp_arrive(&barriers.come[stage]);
            if (++stage == SW_STAGES) stage = 0, round++;
        }
    }

    /* -- state: entries 2 h and 2 h + 1 of eight i are channel(h), states 8 i + 2 t and the next -- */

    __device__ __forceinline__ int channel(int h) const { return warp * 16 + h * 8 + g; }
    __device__ __forceinline__ float *state_memory(int h) const
    {
        return a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0 + channel(h)) * SW_STATES + 2 * t;
    }
    __device__ __forceinline__ void load_state(float (&state)[64]) const
    {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float2 v = load_two(state_memory(i % 2) + i / 2 * 8);
            state[2 * i] = v.x, state[2 * i + 1] = v.y;
        }
    }
    __device__ __forceinline__ void store_state(const float (&state)[64]) const
    {
#pragma unroll
        for (int i = 0; i < 32; i++)
            store_two(state_memory(i % 2) + i / 2 * 8, make_float2(state[2 * i], state[2 * i + 1]));
    }
    /* S0 of chunk i */
    __device__ __forceinline__ void share_state(const float (&state)[64], int i) const
    {
        if (i >= 2) barrier_wait(&barriers.state_read[i % 2], i / 2 - 1 & 1);
#pragma unroll
        for (int k = 0; k < 32; k++) {
            uint32_t plane[SW_PLANES];
            split<SW_PLANES>(plane, state[2 * k], state[2 * k + 1]);
#pragma unroll
            for (int p = 0; p < SW_PLANES; p++)
                *(uint32_t *)&shared.state[i % 2][p][k / 16][in_tile(channel(k % 2), k / 2 % 8 * 8 + 2 * t)] = plane[p];
        }
        shared_written();
        warp_arrive(&barriers.state_come[i % 2]);
    }
    /* sum = sum over rows of (weight x) B^T */
    __device__ __forceinline__ void apply(float (&sum)[64], const sw_chunk &in, const ssd_table &table) const
    {
        uint32_t weighted[4][SW_PLANES][4]; /* of 16 rows */
        const int lane = (int)threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, col = warp * 16 + lane / 8 % 2 * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t v[4];
            load_turned(v, (uint32_t)__cvta_generic_to_shared(&in.x[in_tile(j * 16 + row, col)]));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 two = unpack2<__nv_bfloat16>(v[k]);
                const float2 weight = load_two(&table.chunk[j * 16 + k / 2 * 8 + 2 * t]);
                uint32_t plane[SW_PLANES];
                split<SW_PLANES>(plane, weight.x * two.x, weight.y * two.y);
#pragma unroll
                for (int p = 0; p < SW_PLANES; p++) weighted[j][p][k] = plane[p];
            }
        }
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint64_t b = columns_operand(&in.b[0][j * 16 * 64]);
            if (j == 0) wgmma_registers<true>(sum, weighted[j][0], b);
            else wgmma_registers<false>(sum, weighted[j][0], b);
            wgmma_registers<false>(sum, weighted[j][1], b);
        }
        wgmma_end();
        wgmma_wait<0>(sum);
    }
    __device__ __forceinline__ void walk_states() const
    {
        float state[64], sum[64];
        load_state(state); /* no other kernel of the pass writes it */
        share_state(state, 0);
        grid_wait();
        for (int i = 0, stage = 0, round = 0; i < n_chunk; i++) {
            barrier_wait(&barriers.come[stage], round & 1);
            apply(sum, shared.chunk[stage], shared.table[stage]);
            const float decay = decay_between(shared.table[stage].sigma[SSD_ROWS - 1], make_float2(0.0f, 0.0f));
            warp_arrive(&barriers.read[stage]);
#pragma unroll
            for (int k = 0; k < 64; k++) state[k] = fmaf(decay, state[k], sum[k]);
            if (i + 1 < n_chunk) share_state(state, i + 1);
            if (++stage == SW_STAGES) stage = 0, round++;
        }
        store_state(state);
    }

    /* -- y: entries 2 h and 2 h + 1 of eight i are row(h), columns 8 i + 2 t and the next -- */

    __device__ __forceinline__ int row(int h) const { return warp * 16 + h * 8 + g; }
    __device__ __forceinline__ size_t offset(int first, int h, int ld) const
    {
        return (size_t)(first + row(h)) * ld + (size_t)head * a.head_dim + c0 + 2 * t;
    }
    /* The decayed scores of 16 columns, as an operand of the product with x. */
    __device__ __forceinline__ void weigh(uint32_t (&weighted)[SW_PLANES][4], float *score, int j0,
                                          const ssd_table &table) const
    {
        const int i0 = warp * 16;
        const float2 sigma[2] = { table.sigma[row(0)], table.sigma[row(1)] };
        if (j0 < i0) {
            const float2 last = table.sigma[j0 + 15];
            const float decay[2] = { decay_between(sigma[0], last), decay_between(sigma[1], last) };
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float2 column = load_two(&table.tile[j0 + k * 8 + 2 * t]);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    score[k * 4 + e] = decay[e / 2] * (e % 2 ? column.y : column.x) * score[k * 4 + e];
            }
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int column = j0 + e / 4 * 8 + 2 * t + e % 2;
                const float weight = decay_between(sigma[e / 2 % 2], table.sigma[column]) * table.dt[column];
                score[e] = column <= row(e / 2 % 2) ? weight * score[e] : 0.0f;
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t plane[SW_PLANES];
            split<SW_PLANES>(plane, score[2 * k], score[2 * k + 1]);
#pragma unroll
            for (int p = 0; p < SW_PLANES; p++) weighted[p][k] = plane[p];
        }
    }
    __device__ __forceinline__ void load_gate(float (&gate)[32], int first, int n) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float *z = (const float *)a.z.data + offset(first, i % 2, a.z.ld);
            const float2 v = row(i % 2) < n ? load_two(z + i / 2 * 8) : make_float2(0.0f, 0.0f);
            gate[2 * i] = v.x, gate[2 * i + 1] = v.y;
        }
    }
    template <typename E> __device__ __forceinline__ void store_outputs(const float (&out)[32], int first, int n) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            E *y = (E *)a.y.data + offset(first, i % 2, a.y.ld);
            if (row(i % 2) < n) store_two(y + i / 2 * 8, make_float2(out[2 * i], out[2 * i + 1]));
        }
    }
    /* S0 C + the chunk's own rows. Calls meanwhile() while products go on. */
    template <typename F>
    __device__ __forceinline__ void outputs(float (&out)[32], int i, const sw_chunk &in, const ssd_table &table,
                                            F meanwhile) const
    {
        float score[32];
        uint32_t weighted[4][SW_PLANES][4];
        wgmma_begin();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int at = n % 4 * 16;
            if (n == 0) wgmma_tiles<true>(score, rows_operand(&in.c[n / 4][at]), rows_operand(&in.b[n / 4][at]));
            else wgmma_tiles<false>(score, rows_operand(&in.c[n / 4][at]), rows_operand(&in.b[n / 4][at]));
        }
        wgmma_end();
        barrier_wait(&barriers.state_come[i % 2], i / 2 & 1);
        wgmma_begin();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int at = n % 4 * 16;
            const uint64_t c = rows_operand(&in.c[n / 4][at]);
            if (n == 0) wgmma_tiles<true>(out, c, rows_operand(&shared.state[i % 2][0][n / 4][at]));
            else wgmma_tiles<false>(out, c, rows_operand(&shared.state[i % 2][0][n / 4][at]));
            wgmma_tiles<false>(out, c, rows_operand(&shared.state[i % 2][1][n / 4][at]));
        }
        wgmma_end();
        wgmma_wait<1>(score);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j <= warp) {
                weigh(weighted[j], score + j * 8, j * 16, table);
            } else {
#pragma unroll
                for (int k = 0; k < 4 * SW_PLANES; k++) weighted[j][k / 4][k % 4] = 0;
            }
        }
        meanwhile();
        wgmma_wait<0>(out);
        warp_arrive(&barriers.state_read[i % 2]);
        const float2 zero = make_float2(0.0f, 0.0f);
        const float decay[2] = { decay_between(table.sigma[row(0)], zero), decay_between(table.sigma[row(1)], zero) };
#pragma unroll
        for (int k = 0; k < 32; k++) out[k] = decay[k / 2 % 2] * out[k];
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int p = 0; p < SW_PLANES; p++)
                wgmma_registers(out, weighted[j][p], columns_operand(&in.x[j * 16 * 64]));
        wgmma_end();
        wgmma_wait<0>(out);
    }
    /* out + D x, gated */
    __device__ __forceinline__ void finish(float (&out)[32], const float (&gate)[32], float skip,
                                           const sw_chunk &in) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 x = unpack2<__nv_bfloat16>(*(const uint32_t *)&in.x[in_tile(row(i % 2), i / 2 * 8 + 2 * t)]);
            float *y = &out[2 * i];
            y[0] = fmaf(skip, x.x, y[0]), y[1] = fmaf(skip, x.y, y[1]);
            if (a.z.data) y[0] = y[0] * silu(gate[2 * i]), y[1] = y[1] * silu(gate[2 * i + 1]);
        }
    }
    __device__ __forceinline__ void make_outputs(int group) const
    {
        const float skip = a.d ? a.d[head] : 0.0f;
        for (int i = group; i < n_chunk; i += SW_Y_GROUPS) {
            const int stage = i % SW_STAGES, first = s.first_row + i * SSD_ROWS, n = s.n_row - i * SSD_ROWS;
            float out[32], gate[32];
            barrier_wait(&barriers.come[stage], i / SW_STAGES & 1);
            outputs(out, i, shared.chunk[stage], shared.table[stage], [&] {
                if (a.z.data) load_gate(gate, first, n);
            });
            finish(out, gate, skip, shared.chunk[stage]);
            warp_arrive(&barriers.read[stage]);
            if (a.y.dtype == SPEC_DTYPE_F32) store_outputs<float>(out, first, n);
            else store_outputs<__nv_bfloat16>(out, first, n);
        }
    }
};

static __global__ void __launch_bounds__(SW_THREADS, 1)
scan_wgmma_kernel(const spec_step_block *step, const spec_scan_args a)
{
    extern __shared__ char dynamic[];
    __shared__ sw_barriers barriers;
    /* A tile's rows go by the bits of their addresses. */
    const uint32_t up = -(uint32_t)__cvta_generic_to_shared(dynamic) & 1023;
    sw_shared &shared = *(sw_shared *)(dynamic + up);
    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.y];
    const sw_block block(a, s, shared, barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SW_STAGES; i++) barrier_init(&barriers.come[i], 4), barrier_init(&barriers.read[i], 8);
        for (int i = 0; i < 2; i++) barrier_init(&barriers.state_come[i], 4), barrier_init(&barriers.state_read[i], 4);
    }
    __syncthreads();
    const int role = __shfl_sync(0xffffffffu, (int)threadIdx.x / SW_GROUP, 0); /* so the compiler sees: a warp's */
    if (role == SW_COPIES) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)SW_REGISTERS_COPIES));
        grid_wait();
        block.bring_chunks();
    } else if (role == SW_STATE) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)SW_REGISTERS_STATE));
        block.walk_states();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)SW_REGISTERS_Y));
        grid_wait();
        block.make_outputs(role - SW_Y);
    }
}

#else

static __global__ void scan_wgmma_kernel(const spec_step_block *, const spec_scan_args) { grid_wait(); }

#endif

/* --- launcher --- */

/* Does the code that this device runs have wgmma? Then it has barriers. */
static bool has_wgmma()
{
    cudaFuncAttributes of;
    if (cudaFuncGetAttributes(&of, scan_wgmma_kernel) == cudaSuccess) return of.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return false;
}

bool speci_cuda_scan_wgmma(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    if (a->dtype != SPEC_DTYPE_BF16 || a->n_state != SW_STATES || a->head_dim % SW_CHANNELS != 0 || !cuda_has_clusters(q->dev) ||
        !has_wgmma())
        return false;
    const unsigned blocks = (unsigned)(a->n_head * (a->head_dim / SW_CHANNELS));
    const size_t bytes = sizeof(sw_shared) + 1024;
    scan_allow_shared(q->dev, scan_wgmma_kernel, bytes);
    *status = cuda_launch(q, "scan", scan_wgmma_kernel, dim3(blocks, (unsigned)q->shape.seqs), dim3(SW_THREADS), bytes,
                          1, q->d_step, *a);
    return true;
}
