/* cuda_pack.cu - rows of a matrix from the pinned buffer to their places on the device, by format. Rows that are already as they
 * shall be are copied; others are converted and padded by a kernel that reads the pinned buffer itself. */
#include "backends/cuda/linear/cuda_blocks.cuh"

/* dst [n_row][ld] of T from src [n_row][n_in] of S, zero beyond n_in. */
template <typename T, typename S>
static __global__ void pack_kernel(T *dst, const S *src, int n_row, int n_in, int ld)
{
    const size_t n = (size_t)n_row * ld;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const size_t r = i / ld, c = i % ld;
        dst[i] = from_f32<T>(c < (size_t)n_in ? to_f32(src[r * n_in + c]) : 0.0f);
    }
}

enum { Q8_AT_ONCE = 64 }; /* blocks that a thread block takes: a whole number of words */

/* n blocks of Q8_0 from `src`, the first one of row `row`, to their places. */
static __global__ void pack_q8_kernel(q8_piece *dst, q8_shape s, const uint32_t *src, int row, int n)
{
    const int words = Q8_AT_ONCE * (int)sizeof(spec_q8_block) / 4;
    __shared__ uint32_t staged[words];
    const spec_q8_block *blocks = (const spec_q8_block *)staged;
    const int per_row = s.n_in / SPEC_Q8_BLOCK;
    for (int first = (int)blockIdx.x * Q8_AT_ONCE; first < n; first += (int)gridDim.x * Q8_AT_ONCE) {
        const int n_here = n - first < Q8_AT_ONCE ? n - first : Q8_AT_ONCE;
        for (int i = (int)threadIdx.x; i < words && i * 4 < n_here * (int)sizeof(spec_q8_block); i += (int)blockDim.x)
            staged[i] = src[(size_t)first / Q8_AT_ONCE * words + i];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n_here * 4; i += (int)blockDim.x) { /* 8 values */
            const int b = first + i / 4, r = row + b / per_row, k = b % per_row * SPEC_Q8_BLOCK + i % 4 * 8;
            q8_piece *p = dst + s.piece(r, k);
            const int in_strip = s.lane_row(r);
            for (int j = 0; j < 8; j++) q8_values(p, in_strip, k)[j] = blocks[i / 4].q[i % 4 * 8 + j];
            if (i % 4 == 0) *q8_scale(p, in_strip, k) = blocks[i / 4].scale;
        }
        __syncthreads();
    }
}

size_t speci_cuda_bytes_q8(const spec_weight *w)
{
    const q8_shape s = q8_shape_of(w);
    return (size_t)s.n_strip() * (size_t)s.n_piece() * sizeof(q8_piece);
}

spec_status speci_cuda_pack_q8(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row)
{
    pack_q8_kernel<<<4 * (unsigned)dev->n_sm, 256, 0, dev->stage_stream>>>(
        (q8_piece *)w->data, q8_shape_of(w), (const uint32_t *)src, row, n_row * (w->n_in / SPEC_Q8_BLOCK));
    const cudaError_t launched = cudaGetLastError();
    return launched == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, launched, "weight packing");
}

/* n blocks from `src`, the first one of row `row`, to their places: a thread takes eight values. */
template <spec_dtype D>
static __global__ void pack_blocks_kernel(char *dst, q8_shape s, const uint32_t *src, int row, int n)
{
    typedef blocks_layout<D> L;
    typedef typename L::B B;
    enum { AT_ONCE = L::VALUES == SPEC_K_BLOCK ? 8 : 64, WORDS = AT_ONCE * sizeof(typename B::type) / 4, EIGHTS = L::VALUES / 8 };
    __shared__ uint32_t staged[WORDS];
    const typename B::type *const blocks_here = (const typename B::type *)staged;
    const int per_row = s.n_in / L::VALUES;
    for (int first = (int)blockIdx.x * AT_ONCE; first < n; first += (int)gridDim.x * AT_ONCE) {
        const int n_here = n - first < AT_ONCE ? n - first : AT_ONCE;
        for (int i = (int)threadIdx.x; i < WORDS && i * 4 < n_here * (int)sizeof(typename B::type); i += (int)blockDim.x)
            staged[i] = src[(size_t)first / AT_ONCE * WORDS + i];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n_here * EIGHTS; i += (int)blockDim.x) {
            const typename B::type &block = blocks_here[i / EIGHTS];
            const int at = i % EIGHTS * 8, b = first + i / EIGHTS, r = row + b / per_row, k = b % per_row * L::VALUES + at;
            const int in_strip = s.lane_row(r), g = in_strip % 8, upper = in_strip / 8, group = k / 32 % 2;
            const int lane = g * 4 + k / 8 % 4, word = 2 * upper + group;
            char *const strip = dst + (size_t)s.strip(r) * L::strip_bytes(s), *const piece = strip + L::piece_at(k / Q8_PIECE);
            uint32_t low = 0, high = 0;
            for (int j = 0; j < 8; j++) {
                const uint32_t q = (uint32_t)B::number(block, at + j);
                low |= (q & 15u) << 4 * j, high |= q >> 4 << B::HIGH * j;
            }
            ((uint32_t *)piece)[lane * 4 + word] = low;
            if (B::HIGH == 1) ((uint8_t *)(piece + L::HIGH_AT))[lane * 4 + word] = (uint8_t)high;
            if (B::HIGH == 2) ((uint16_t *)(piece + L::HIGH_AT))[lane * 4 + word] = (uint16_t)high;
            char *const scales = piece + L::SCALES_AT + g * L::G_SCALES;
            if (!B::LARGE && at == 0) {
                ((uint16_t *)scales)[word] = block.d;
                if (B::M) ((uint16_t *)scales)[4 + word] = B::m(block);
            }
            if (B::LARGE && at % 16 == 0) {
                int f = 0, fm = 0;
                B::factors(block, at, &f, &fm);
                if (!B::M) scales[4 * upper + 2 * group + at / 16 % 2] = (char)f;
                else scales[word] = (char)f, scales[4 + word] = (char)fm;
            }
            if (B::LARGE && at == 0) {
                uint16_t *const head = (uint16_t *)(strip + L::head_at(k / Q8_PIECE) + g * L::G_HEAD);
                head[upper] = block.d;
                if (B::M) head[2 + upper] = B::m(block);
            }
        }
        __syncthreads();
    }
}

size_t speci_cuda_bytes_blocks(const spec_weight *w)
{
    const q8_shape s = q8_shape_of(w);
    size_t bytes = 0;
    (void)blocks_by_type(w->format->dtype, [&](auto d) {
        bytes = (size_t)s.n_strip() * blocks_layout<decltype(d)::value>::strip_bytes(s);
        return SPEC_OK;
    });
    return bytes;
}

spec_status speci_cuda_pack_blocks(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row)
{
    return blocks_by_type(w->format->dtype, [&](auto d) {
        pack_blocks_kernel<decltype(d)::value><<<4 * (unsigned)dev->n_sm, 256, 0, dev->stage_stream>>>(
            (char *)w->data, q8_shape_of(w), (const uint32_t *)src, row, n_row * (w->n_in / w->format->block));
        const cudaError_t launched = cudaGetLastError();
        return launched == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, launched, "weight packing");
    });
}

size_t speci_cuda_bytes_plain(const spec_weight *w) { return (size_t)w->n_out * w->ld * speci_dtype_bytes(w->dtype); }

spec_status speci_cuda_pack_plain(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row)
{
    const spec_dtype from = w->format->dtype;
    void *const dst = (char *)w->data + (size_t)row * w->ld * speci_dtype_bytes(w->dtype);
    if (w->dtype == from && w->ld == w->n_in) {
        const size_t bytes = (size_t)n_row * w->n_in * speci_dtype_bytes(from);
        const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->stage_stream);
        return e == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, e, "cudaMemcpyAsync: weight");
    }
    return cuda_by_dtype(w->dtype, [&](auto t) {
        using T = decltype(t);
        return cuda_by_dtype(from, [&](auto s) {
            using S = decltype(s);
            pack_kernel<T, S><<<4 * (unsigned)dev->n_sm, 256, 0, dev->stage_stream>>>((T *)dst, (const S *)src, n_row,
                                                                                       w->n_in, w->ld);
            const cudaError_t launched = cudaGetLastError();
            return launched == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, launched, "weight conversion");
        });
    });
}
