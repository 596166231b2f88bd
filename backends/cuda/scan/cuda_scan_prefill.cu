/* cuda_scan_prefill.cu - selective scan over a prompt by matrix products: prefill passes with one decay per head and
 * 16-bit x, B and C. Others are scanned row after row (cuda_scan_recurrent.cu). Source: Mamba-2, section 6 (state-space
 * duality).
 *
 *   sigma_i = sum over rows k <= i of the chunk of dt_k A;  S0 = the state in front of the chunk, L = its last row
 *   y_i = e^sigma_i S0 C_i + sum over j <= i of e^(sigma_i - sigma_j) dt_j (C_i . B_j) x_j + D x_i
 *   S0 of the next chunk = e^sigma_L S0 + sum over j of (e^(sigma_L - sigma_j) dt_j x_j) B_j^T
 *
 * A block has CH channels of a head (32, or 16 where processors would stay idle or the state is wide) and walks the
 * prompt in chunks of 64 rows. Four warps have the state in registers, a quarter each: they bring x, B and C by
 * asynchronous copies, a chunk ahead, apply the chunk and leave S0 of the next one in shared memory. Meanwhile four
 * others make y, 16 rows each. C . B is made 32 columns at a time and goes from the accumulators of one product
 * straight into the operand of the next. A barrier a chunk, and one for S0: it is read first and written last, so
 * nobody waits.
 *
 * Decays are taken once for a row and once for 16 columns: for rows i of a tile and columns j of an earlier one, whose
 * last row is r, e^(sigma_i - sigma_r) e^(sigma_r - sigma_j), both exponents <= 0. On the diagonal, pair by pair.
 *
 * Accuracy. The matrix instruction takes 16 bits. x, B and C are 16 bits; what is computed (the decayed scores, the
 * state, the weighted x) is a sum of bfloat16 values, its *planes*, the first of 8 bits and each next one of the rest:
 * two keep 2^-17, and bfloat16's range is float's. float16 input is exactly two planes. Products add into float32.
 * What a chunk adds to the state is summed alone and added once. sigma is a sum of doubles, kept as two floats, in
 * powers of two; only sums of decays behind a row are raised, never ratios: no exponent is positive.
 *
 * Bits: a chunk is 64 rows from the pass's first on, whatever the number of rows; rows behind the last are zero, with
 * dt = 0. So a row's y, and the state behind a whole chunk, are functions of the rows in front and where it stands in
 * the pass. */
#include "backends/cuda/linear/cuda_linear.cuh"
#include "backends/cuda/scan/cuda_scan_ssd.cuh"

enum {
    SSD_WARPS = SSD_ROWS / 16, /* that make y; as many have the state */
    SSD_GROUP = SSD_WARPS * 32,
    SSD_THREADS = 2 * SSD_GROUP,
    SSD_PAD = 8 /* elements behind a row of shared memory: 8 rows lie on different banks */
};

/* Planes of an operand that is 16 bits in memory, and of one that is computed. */
template <typename T> struct ssd_planes {
    static constexpr int INPUT = 1, COMPUTED = 2;
};
template <> struct ssd_planes<__half> {
    static constexpr int INPUT = 2, COMPUTED = 2;
};

template <int NS, int CH> struct ssd_rows {
    __align__(16) uint16_t b[SSD_ROWS][NS + SSD_PAD], c[SSD_ROWS][NS + SSD_PAD], x[SSD_ROWS][CH + SSD_PAD];
};
template <typename T, int NS, int CH> struct ssd_shared { /* of two: one is read, one is made */
    ssd_rows<NS, CH> rows[2];
    __align__(16) uint16_t state[ssd_planes<T>::COMPUTED][CH][NS + SSD_PAD];
    ssd_table table[2];
};

/* Four matrices of 8 x 8 from [row][col] on: r[0] at (0, 0), then `first` says which of (8, 0) and (0, 8) is r[1], and
 * r[3] at (8, 8). A lane has two neighbours of a row: (lane / 4, lane % 4 * 2), or turned, of a column. */
enum ssd_order { ROWS_FIRST, COLUMNS_FIRST };
template <bool TURNED, ssd_order FIRST, int LD>
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const uint16_t (*m)[LD], int row, int col)
{
    const int lane = (int)threadIdx.x % 32, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    const uint16_t *at = &m[row + lane % 8 + (FIRST == ROWS_FIRST ? second : third)]
                           [col + (FIRST == ROWS_FIRST ? third : second)];
    const uint32_t from = (uint32_t)__cvta_generic_to_shared(at);
    if constexpr (TURNED) load_turned(r, from);
    else load_matrices(r, from);
}

/* Two 16-bit values, likewise: exact. */
template <typename T> static __device__ __forceinline__ void split_input(uint32_t plane[], uint32_t w)
{
    if constexpr (ssd_planes<T>::INPUT == 1) {
        plane[0] = w;
    } else {
        const float2 v = unpack2<T>(w);
        split<ssd_planes<T>::INPUT>(plane, v.x, v.y);
    }
}
/* acc[tile] += A B[tile] over planes, without those products that are smaller than what the planes leave out; the tiles
 * one after the other, so that a sum does not wait for itself. */
template <int TILES, int PA, int PB>
static __device__ __forceinline__ void mma_planes(float (*acc)[4], const uint32_t a[4][PA],
                                                  const uint32_t b[TILES][2][PB])
{
#pragma unroll
    for (int i = 0; i < PA; i++)
#pragma unroll
        for (int j = 0; j < PB; j++)
#pragma unroll
            for (int k = 0; k < TILES && i + j < (PA > PB ? PA : PB); k++)
                mma16816<__nv_bfloat16>(acc[k], a[0][i], a[1][i], a[2][i], a[3][i], b[k][0][j], b[k][1][j]);
}

/* S0 has been read: those who read it tell, those who write it wait. compute-sanitizer's racecheck (13.0) does not
 * follow bar.arrive and reports the reads in front of it; with bar.sync on both sides, 3 % slower, it reports nothing. */
static __device__ __forceinline__ void state_read()
{
    asm volatile("bar.arrive 1, %0;" ::"n"((int)SSD_THREADS) : "memory");
}
static __device__ __forceinline__ void state_wait()
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)SSD_THREADS) : "memory");
}

/* A block's part of the operation. Of the two groups of warps each calls its own functions. */
template <typename T, int NS, int CH> struct ssd_block {
    typedef ssd_planes<T> planes;
    static constexpr int STATES = NS * CH / 16 / SSD_WARPS, TILES = STATES / 8; /* of a warp, of 16 channels */
    static constexpr int UNITS = CH / 8;                                        /* of 8 channels */

    const spec_scan_args &a;
    const spec_step_seq &s;
    int head, c0, n_ch;     /* channels c0 .. c0 + n_ch - 1 of the head */
    int warp, lane, g, t;   /* warp: of its group */

    __device__ __forceinline__ ssd_block(const spec_scan_args &args, const spec_step_seq &seq, int n_tile)
        : a(args), s(seq)
    {
        head = (int)blockIdx.x / n_tile, c0 = (int)blockIdx.x % n_tile * CH;
        n_ch = min(a.head_dim - c0, CH);
        warp = (int)(threadIdx.x % SSD_GROUP / 32), lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    }

    /* -- the warps that have the state -- */

    /* A warp's part, and the pairs of it that a lane has: entries 2 h and 2 h + 1 of a tile. */
    __device__ __forceinline__ int first_channel() const { return warp % (CH / 16) * 16; }
    __device__ __forceinline__ int first_state() const { return warp / (CH / 16) * STATES; }
    __device__ __forceinline__ int state_channel(int h) const { return first_channel() + h * 8 + g; }
    __device__ __forceinline__ int state_column(int tile) const { return first_state() + tile * 8 + 2 * t; }
    __device__ __forceinline__ float *state_memory(int tile, int h) const /* NULL: not there */
    {
        const int p = state_channel(h), n = state_column(tile);
        if (p >= n_ch || n >= a.n_state) return NULL;
        return a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0 + p) * a.n_state + n;
    }
    __device__ __forceinline__ void load_state(float state[TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            const float *at = state_memory(i / 2, i % 2);
            const float2 v = at ? load_two(at) : make_float2(0.0f, 0.0f);
            state[i / 2][i % 2 * 2] = v.x, state[i / 2][i % 2 * 2 + 1] = v.y;
        }
    }
    __device__ __forceinline__ void store_state(const float state[TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            float *at = state_memory(i / 2, i % 2);
            if (at) store_two(at, make_float2(state[i / 2][i % 2 * 2], state[i / 2][i % 2 * 2 + 1]));
        }
    }
    __device__ __forceinline__ void share_state(uint16_t (*to)[CH][NS + SSD_PAD], const float state[TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            uint32_t plane[planes::COMPUTED];
            split<planes::COMPUTED>(plane, state[i / 2][i % 2 * 2], state[i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int k = 0; k < planes::COMPUTED; k++)
                *(uint32_t *)&to[k][state_channel(i % 2)][state_column(i / 2)] = plane[k];
        }
    }

    /* Of x, B and C of n rows from `first` of the pass on, in four parts; what is not there becomes 0. */
    template <int FROM, int TO, int LD>
    __device__ __forceinline__ void copy_part(uint16_t (*to)[LD], const spec_view &v, size_t col, int width, int first,
                                              int n) const
    {
        constexpr unsigned UNITS = (LD - SSD_PAD) / 8, STEP = SSD_GROUP / UNITS; /* rows that the group copies at once */
        const unsigned i = threadIdx.x % SSD_GROUP, u = i % UNITS * 8, r = i / UNITS;
        const uint16_t *from = (const uint16_t *)v.data + (size_t)(first + (int)r) * v.ld + col + u;
        const int there = (int)u < width ? n - (int)r : 0;
#pragma unroll
        for (unsigned k = FROM / STEP; k < TO / STEP; k++)
            copy_async(&to[r + k * STEP][u], from + (size_t)(k * STEP) * v.ld, (int)(k * STEP) < there);
    }
    __device__ __forceinline__ void copy_quarter(int k, ssd_rows<NS, CH> &to, int first, int n) const
    {
        constexpr int HALF = SSD_ROWS / 2;
        const size_t b = (size_t)(head / a.b_rep) * a.n_state, c = (size_t)(head / a.c_rep) * a.n_state;
        if (k == 0) copy_part<0, SSD_ROWS>(to.x, a.x, (size_t)(head / a.x_rep) * a.head_dim + c0, n_ch, first, n);
        if (k == 0) copy_part<0, HALF>(to.b, a.b, b, a.n_state, first, n);
        if (k == 1) copy_part<HALF, SSD_ROWS>(to.b, a.b, b, a.n_state, first, n);
        if (k == 2) copy_part<0, HALF>(to.c, a.c, c, a.n_state, first, n);
        if (k == 3) copy_part<HALF, SSD_ROWS>(to.c, a.c, c, a.n_state, first, n);
    }

    /* state = e^sigma_L state + sum over rows of (weight x) B^T. Calls between(k) after quarter k. */
    template <typename F>
    __device__ __forceinline__ void apply(float state[TILES][4], const ssd_rows<NS, CH> &in, const ssd_table &table,
                                           F between) const
    {
        float sum[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) sum[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int j = 0; j < SSD_ROWS; j += 16) {
            uint32_t v[4], weighted[4][planes::COMPUTED], plane[TILES][2][planes::INPUT];
            load_matrices<true, COLUMNS_FIRST>(v, in.x, j, first_channel());
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 two = unpack2<T>(v[k]), weight = load_two(&table.chunk[j + k / 2 * 8 + 2 * t]);
                split<planes::COMPUTED>(weighted[k], weight.x * two.x, weight.y * two.y);
            }
#pragma unroll
            for (int i = 0; i < TILES; i += 2) {
                load_matrices<true, ROWS_FIRST>(v, in.b, j, first_state() + i * 8);
#pragma unroll
                for (int k = 0; k < 4; k++) split_input<T>(plane[i + k / 2][k % 2], v[k]);
            }
            mma_planes<TILES, planes::COMPUTED, planes::INPUT>(sum, weighted, plane);
            between(j / 16);
        }
        const float decay = decay_between(table.sigma[SSD_ROWS - 1], make_float2(0.0f, 0.0f));
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) state[i / 4][i % 4] = fmaf(decay, state[i / 4][i % 4], sum[i / 4][i % 4]);
    }

    /* -- the warps that make y -- */

    /* out[channel / 8] of the warp's 16 rows += the scores of H tiles of 16 columns, j0 and on, times their
     * x. The tiles lie on the diagonal or below. */
    template <int H>
    __device__ __forceinline__ void add_columns(float out[UNITS][4], int j0,
                                                const ssd_rows<NS, CH> &in, const ssd_table &table) const
    {
        const int i0 = warp * 16;
        float score[2 * H][4];
#pragma unroll
        for (int i = 0; i < 8 * H; i++) score[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int n = 0; n < NS / 16; n++) {
            uint32_t c[4];
            load_matrices<false, ROWS_FIRST>(c, in.c, i0, n * 16);
#pragma unroll
            for (int h = 0; h < H; h++) {
                uint32_t b[4];
                load_matrices<false, COLUMNS_FIRST>(b, in.b, j0 + h * 16, n * 16);
                mma16816<T>(score[h * 2], c[0], c[1], c[2], c[3], b[0], b[1]);
                mma16816<T>(score[h * 2 + 1], c[0], c[1], c[2], c[3], b[2], b[3]);
            }
        }
        const float2 sigma[2] = { table.sigma[i0 + g], table.sigma[i0 + g + 8] };
#pragma unroll
        for (int h = 0; h < H; h++) {
            const int j = j0 + h * 16;
            if (j < i0) {
                const float2 last = table.sigma[j + 15];
                const float row[2] = { decay_between(sigma[0], last), decay_between(sigma[1], last) };
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float2 column = load_two(&table.tile[j + k * 8 + 2 * t]);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        score[h * 2 + k][e] = row[e / 2] * (e % 2 ? column.y : column.x) * score[h * 2 + k][e];
                }
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const int column = e / 4 * 8 + 2 * t + e % 2, row = e / 2 % 2 * 8 + g;
                    const float weight = decay_between(sigma[e / 2 % 2], table.sigma[j + column]) * table.dt[j + column];
                    score[h * 2 + e / 4][e % 4] = column <= row ? weight * score[h * 2 + e / 4][e % 4] : 0.0f;
                }
            }
            uint32_t weighted[4][planes::COMPUTED];
#pragma unroll
            for (int k = 0; k < 4; k++)
                split<planes::COMPUTED>(weighted[k], score[h * 2 + k / 2][k % 2 * 2],
                                        score[h * 2 + k / 2][k % 2 * 2 + 1]);
#pragma unroll
            for (int p = 0; p < CH; p += 16) {
                uint32_t x[4], plane[2][2][planes::INPUT];
                load_matrices<true, ROWS_FIRST>(x, in.x, j, p);
#pragma unroll
                for (int k = 0; k < 4; k++) split_input<T>(plane[k / 2][k % 2], x[k]);
                mma_planes<2, planes::COMPUTED, planes::INPUT>(&out[p / 8], weighted, plane);
            }
        }
    }
    /* S C + the chunk's own rows, of the warp's 16 rows, as the instruction lays them out */
    __device__ __forceinline__ void outputs(float out[UNITS][4], const uint16_t (*state)[CH][NS + SSD_PAD],
                                            const ssd_rows<NS, CH> &in, const ssd_table &table,
                                            bool is_awaited) const
    {
        const int i0 = warp * 16;
#pragma unroll
        for (int i = 0; i < UNITS * 4; i++) out[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int n = 0; n < NS / 16; n++) {
            uint32_t c[4], plane[4][planes::INPUT];
            load_matrices<false, ROWS_FIRST>(c, in.c, i0, n * 16);
#pragma unroll
            for (int k = 0; k < 4; k++) split_input<T>(plane[k], c[k]);
#pragma unroll
            for (int p = 0; p < CH; p += 16) {
                uint32_t s0[2][2][planes::COMPUTED];
#pragma unroll
                for (int k = 0; k < planes::COMPUTED; k++) {
                    uint32_t v[4];
                    load_matrices<false, COLUMNS_FIRST>(v, state[k], p, n * 16);
#pragma unroll
                    for (int e = 0; e < 4; e++) s0[e / 2][e % 2][k] = v[e];
                }
                mma_planes<2, planes::INPUT, planes::COMPUTED>(&out[p / 8], plane, s0);
            }
        }
        if (is_awaited) state_read();
        const float2 zero = make_float2(0.0f, 0.0f);
        const float decay[2] = { decay_between(table.sigma[i0 + g], zero), decay_between(table.sigma[i0 + g + 8], zero) };
#pragma unroll
        for (int i = 0; i < UNITS * 4; i++) out[i / 4][i % 4] = decay[i % 4 / 2] * out[i / 4][i % 4];
        for (int j0 = 0; j0 < i0; j0 += 32) add_columns<2>(out, j0, in, table);
        if (warp % 2 == 0) add_columns<1>(out, i0, in, table);
    }

    /* Entry 2 h and 2 h + 1 of tile i: row(h) of the chunk, the channels from 8 i + 2 t on. */
    __device__ __forceinline__ int row(int h) const { return warp * 16 + h * 8 + g; }
    __device__ __forceinline__ size_t offset(int first, int h, int ld) const
    {
        return (size_t)(first + row(h)) * ld + (size_t)head * a.head_dim + c0 + 2 * t;
    }
    /* One type: values that come from branches would be waited for where the branches meet. */
    __device__ __forceinline__ void load_gate(float gate[UNITS][4], int first, int n) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *z = (const float *)a.z.data + offset(first, h, a.z.ld);
#pragma unroll
            for (int i = 0; i < UNITS; i++) {
                const float2 v = row(h) < n && i * 8 < n_ch ? load_two(z + i * 8) : make_float2(0.0f, 0.0f);
                gate[i][2 * h] = v.x, gate[i][2 * h + 1] = v.y;
            }
        }
    }
    template <typename E> __device__ __forceinline__ void store_outputs(const float out[UNITS][4], int first, int n) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            E *y = (E *)a.y.data + offset(first, h, a.y.ld);
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                if (row(h) < n && i * 8 < n_ch) store_two(y + i * 8, make_float2(out[i][2 * h], out[i][2 * h + 1]));
        }
    }
    /* out + D x, gated */
    __device__ __forceinline__ void finish(float out[UNITS][4], const float gate[UNITS][4], float skip,
                                           const ssd_rows<NS, CH> &in) const
    {
#pragma unroll
        for (int i = 0; i < UNITS * 2; i++) {
            const float2 x = unpack2<T>(*(const uint32_t *)&in.x[row(i % 2)][i / 2 * 8 + 2 * t]);
            float *y = &out[i / 2][i % 2 * 2];
            y[0] = fmaf(skip, x.x, y[0]), y[1] = fmaf(skip, x.y, y[1]);
            if (!a.z.data) continue;
            y[0] = y[0] * silu(gate[i / 2][i % 2 * 2]), y[1] = y[1] * silu(gate[i / 2][i % 2 * 2 + 1]);
        }
    }
};

template <typename T, int NS, int CH>
static __global__ void __launch_bounds__(SSD_THREADS, 2)
scan_prefill_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile)
{
    typedef ssd_block<T, NS, CH> block_t;
    extern __shared__ __align__(16) char dynamic[];
    ssd_shared<T, NS, CH> &shared = *(ssd_shared<T, NS, CH> *)dynamic;
    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.y];
    const block_t block(a, s, n_tile);
    const bool has_state = threadIdx.x >= SSD_GROUP, makes_table = threadIdx.x < 32; /* the warp of the fewest columns */
    const float skip = a.d ? a.d[block.head] : 0.0f;

    float state[block_t::TILES][4];
    if (has_state) {
        block.load_state(state); /* no other kernel of the pass writes it */
        block.share_state(shared.state, state);
    }
    grid_wait();
    if (has_state)
        for (int k = 0; k < 4; k++) block.copy_quarter(k, shared.rows[0], s.first_row, s.n_row);
    if (makes_table) make_table(shared.table[0], a, block.head, load_dt(a, block.head, s.first_row, s.n_row), s.n_row);

    for (int i0 = 0, now = 0; i0 < s.n_row; i0 += SSD_ROWS, now ^= 1) {
        const int first = s.first_row + i0, n = s.n_row - i0, next = first + SSD_ROWS, n_next = n - SSD_ROWS;
        scan_copies_wait();
        __syncthreads(); /* the chunk, its table and S0 are there; the chunk before has been read */
        const ssd_rows<NS, CH> &in = shared.rows[now];
        const ssd_table &table = shared.table[now];
        if (has_state) {
            block.apply(state, in, table, [&](int k) {
                if (n_next > 0) block.copy_quarter(k, shared.rows[now ^ 1], next, n_next);
            });
            if (n_next > 0) {
                state_wait();
                block.share_state(shared.state, state);
            }
        } else {
            const bool ahead = makes_table && n_next > 0;
            float2 dt;
            float out[block_t::UNITS][4], gate[block_t::UNITS][4];
            if (ahead) dt = load_dt(a, block.head, next, n_next);
            if (a.z.data) block.load_gate(gate, first, n);
            block.outputs(out, shared.state, in, table, n_next > 0);
            block.finish(out, gate, skip, in);
            if (a.y.dtype == SPEC_DTYPE_F32) block.template store_outputs<float>(out, first, n);
            else block.template store_outputs<T>(out, first, n);
            if (ahead) make_table(shared.table[now ^ 1], a, block.head, dt, n_next);
        }
    }
    if (has_state) block.store_state(state);
}

/* --------------------------------------------------------------------------------- launcher --- */

/* false: a block of the device has no room for it. */
template <typename T, int NS, int CH> static bool launch(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    const int n_tile = cuda_div_up(a->head_dim, CH);
    const size_t bytes = sizeof(ssd_shared<T, NS, CH>);
    if (bytes > q->dev->shared_most) return false;
    scan_allow_shared(q->dev, scan_prefill_kernel<T, NS, CH>, bytes);
    *status = cuda_launch(q, "scan", scan_prefill_kernel<T, NS, CH>,
                          dim3((unsigned)(a->n_head * n_tile), (unsigned)q->shape.seqs), dim3(SSD_THREADS), bytes, 1,
                          q->d_step, *a, n_tile);
    return true;
}

/* Channels of a block: they share the scores, so the more the better, unless processors stay idle. Changes no bits. */
template <typename T> static bool launch_scan(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    const bool few = a->n_head * cuda_div_up(a->head_dim, 32) < q->dev->n_sm;
    if (a->n_state > 128) return launch<T, 256, 16>(q, a, status);
    if (a->n_state > 64) return few ? launch<T, 128, 16>(q, a, status) : launch<T, 128, 32>(q, a, status);
    return few ? launch<T, 64, 16>(q, a, status) : launch<T, 64, 32>(q, a, status);
}

bool speci_cuda_scan_prefill(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    const auto sixteen = [](const spec_view &v) { return cuda_aligned(v.data, 16) && v.ld % 8 == 0; };
    const auto pairs = [](const spec_view &v) {
        return !v.data || (cuda_aligned(v.data, 2 * speci_dtype_bytes(v.dtype)) && v.ld % 2 == 0);
    };
    if (q->shape.phase != SPEC_PHASE_PREFILL || a->a_per_state || a->dtype == SPEC_DTYPE_F32 ||
        a->x.dtype != a->dtype || a->b.dtype != a->dtype || a->c.dtype != a->dtype || a->n_state % 8 || a->head_dim % 8 ||
        (a->z.data && a->z.dtype != SPEC_DTYPE_F32) ||
        (a->y.dtype != SPEC_DTYPE_F32 && a->y.dtype != a->dtype) || !sixteen(a->x) || !sixteen(a->b) || !sixteen(a->c) ||
        !cuda_aligned(a->state, 8) || !pairs(a->z) || !pairs(a->y))
        return false;
    if (speci_cuda_scan_wgmma(q, a, status)) return true;
    return a->dtype == SPEC_DTYPE_BF16 ? launch_scan<__nv_bfloat16>(q, a, status) : launch_scan<__half>(q, a, status);
}
