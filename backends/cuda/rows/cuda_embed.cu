/* cuda_embed.cu - y[r] = scale * table[token of row r]; and the deferred norm of y, where it comes next.
 * table [n_vocab][ld] f32, bf16 or f16, or blocks (cuda_q8.cuh, cuda_blocks.cuh); y f32 [rows][dim]. Rows that are not valid, and ids
 * outside the table, give 0. A pass begins here: what its last product raises is set to 0. */
#include "backends/cuda/linear/cuda_linear.cuh"
#include "backends/cuda/linear/cuda_blocks.cuh"

/* Tables: element (row, c) as float32. */
template <typename T> struct plain_table {
    const T *data;
    int ld;
    __device__ float at(int row, int c) const { return to_f32(data[(size_t)row * ld + c]); }
};
struct q8_table {
    const q8_piece *data;
    q8_shape shape;
    __device__ float at(int row, int c) const
    {
        const q8_piece *p = data + shape.piece(row, c);
        const int r = shape.lane_row(row);
        return q8_scale_value(p, r, c) * (float)q8_values(p, r, c)[c % 8];
    }
};

/* T: the compute type */
template <spec_dtype D, typename T> struct blocks_table {
    const char *data;
    q8_shape shape;
    __device__ float at(int row, int c) const
    {
        float v[8];
        blocks_values<D, 8>(v, data, shape, row, c / 8 * 8);
        float found = v[0];
#pragma unroll
        for (int i = 1; i < 8; i++) found = c % 8 == i ? v[i] : found; /* from registers */
        return to_f32(from_f32<T>(found));
    }
};

template <typename T>
static __global__ void embed_kernel(const spec_step_block *step, T table, int n_vocab, int dim, float scale, float *y,
                                    int ld, unsigned long long *best, norm_out next)
{
    const int r = (int)blockIdx.y;
    grid_wait(); /* before the release: a pass begins here, and later kernels read its nodes before they wait */
    grid_release();
    if (r >= step->n_row_run) return;
    if (best && blockIdx.x == 0 && threadIdx.x == 0) best[r] = 0; /* the product that raises it waits for all before it */
    int token = -1;
    if (r < step->n_row) {
        const spec_step_seq *s = spec_step_seqs(step) + row_sequence(step, r);
        token = spec_step_row_node(step, s, r)->token;
    }
    const bool valid = token >= 0 && token < n_vocab;
    float *out = y + (size_t)r * ld;
    for (int c0 = (int)(blockIdx.x * blockDim.x); c0 < dim; c0 += (int)(gridDim.x * blockDim.x)) {
        const int c = c0 + (int)threadIdx.x;
        const bool there = c < dim;
        const float v = there && valid ? scale * table.at(token, c) : 0.0f;
        if (there) out[c] = v;
        const float weight = next.weight && there ? next.weight[c] : 0.0f;
        if (next.weight) norm_put<__nv_bfloat16>(next, r, c, v, weight, there);
        if (next.tiles && there) put_arranged<__nv_bfloat16>(next.tiles, ORDER_TILES, r, c, dim, v * weight);
    }
}

spec_status speci_cuda_check_embed(spec_device *dev, const spec_embed_args *a)
{
    if (a->dim < 1 || a->n_vocab < 1)
        return dev->host->fail(SPEC_E_INVALID, "cuda embed: table of %d x %d", a->n_vocab, a->dim);
    if (a->y.dtype != SPEC_DTYPE_F32)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda embed: output must be f32");
    if (a->table && (a->table->n_in != a->dim || a->table->n_out < a->n_vocab))
        return dev->host->fail(SPEC_E_INVALID, "cuda embed: table is %d x %d, expected %d x %d", a->table->n_out,
                               a->table->n_in, a->n_vocab, a->dim);
    return SPEC_OK;
}

template <typename T>
static spec_status launch_embed(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out &next, T table)
{
    const int threads = 256;
    int blocks = cuda_div_up(a->dim, threads);
    if (blocks > 8) blocks = 8;
    const dim3 grid((unsigned)blocks, (unsigned)q->shape.rows);
    return cuda_launch(q, "embed", embed_kernel<T>, grid, dim3(threads), 0, 1, q->d_step, table, a->n_vocab,
                       a->dim, a->scale, (float *)a->y.data, a->y.ld, best, next);
}

spec_status speci_cuda_embed_q8(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out *next)
{
    return launch_embed(q, a, best, *next, q8_table{ (const q8_piece *)a->table->data, q8_shape_of(a->table) });
}

spec_status speci_cuda_embed_blocks(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out *next)
{
    const spec_weight *w = a->table;
    return blocks_by_type(w->format->dtype, [&](auto d) {
        return cuda_by_dtype(w->dtype, [&](auto t) {
            return launch_embed(q, a, best, *next, blocks_table<decltype(d)::value, decltype(t)>{ (const char *)w->data, q8_shape_of(w) });
        });
    });
}

static spec_status embed(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out &next)
{
    if (!a->table) return q->dev->host->fail(SPEC_E_INVALID, "cuda embed: no table");
    const spec_weight *w = a->table;
    if (w->format->embed) return w->format->embed(q, a, best, &next);
    return cuda_by_dtype(w->dtype, [&](auto t) {
        using T = decltype(t);
        return launch_embed(q, a, best, next, plain_table<T>{ (const T *)w->data, w->ld });
    });
}

spec_status speci_cuda_embed(spec_queue *q, const spec_embed_args *a, unsigned long long *best)
{
    SPEC_TRY(cuda_enter_op(q, "embed"));
    SPEC_TRY(speci_cuda_check_embed(q->dev, a));
    return embed(q, a, best, norm_out());
}

/* Of more rows the norm writes slabs as well. */
bool speci_cuda_embed_norm(spec_queue *q, const spec_embed_args *a, const cuda_norm_args *norm, cuda_pass *pass, spec_status *status)
{
    if (q->shape.phase != SPEC_PHASE_DECODE || q->shape.rows > LINEAR_FEW ||
        !norm_follows(norm, &a->y, a->dim, SPEC_DTYPE_BF16))
        return false;
    if ((*status = cuda_enter_op(q, "embed")) != SPEC_OK || (*status = speci_cuda_check_embed(q->dev, a)) != SPEC_OK ||
        (*status = speci_cuda_check_norm(q->dev, norm)) != SPEC_OK)
        return true;
    norm_out next = norm_out_of(norm);
    next.tiles = speci_cuda_arranged_for(q, pass, ORDER_TILES, NULL);
    *status = embed(q, a, pass->best, next);
    return true;
}
