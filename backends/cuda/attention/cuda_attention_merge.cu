/* cuda_attention_merge.cu - attention: the merge of rows whose positions several blocks have shared (cuda_attention.cuh). */
#include "backends/cuda/attention/cuda_attention.cuh"

/* Merges the parts, of `size` positions each, of row blockIdx.x, head blockIdx.y in ascending order. */
static __global__ void attention_merge_kernel(const spec_step_block *step, spec_attention_args a, const float *scratch,
                                              int n_part, int size)
{
    const int r = (int)blockIdx.x, h = (int)blockIdx.y, d = a.kv.head_dim;
    grid_release();
    if (r >= step->n_row) return grid_wait();
    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    const int p = s->n_past + spec_step_row_node(step, s, r)->depth;
    grid_wait();
    const float *in = scratch + ((size_t)r * a.n_head + h) * n_part * (d + 2);
    for (int c = (int)threadIdx.x; c < d; c += (int)blockDim.x) {
        att_sum<1> sum;
        sum.clear();
#pragma unroll 4
        for (int part = 0; part <= p / size; part++) {
            const float *x = in + (size_t)part * (d + 2);
            sum.add(x[d], x[d + 1], x + c);
        }
        store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + (size_t)h * d + c, sum.at(0));
    }
}

spec_status speci_cuda_attention_merge(spec_queue *q, const spec_attention_args *a, int parts)
{
    const int d = a->kv.head_dim;
    return cuda_launch(q, "attention merge", attention_merge_kernel, dim3((unsigned)q->shape.rows, (unsigned)a->n_head),
                       dim3(d <= 64 ? 64 : d <= 128 ? 128 : 256), 0, 1, q->d_step, *a, q->attention_scratch, parts,
                       attention_part(a));
}
