/* cuda_step.cuh - a step block that travels as a kernel's parameter (cuda_step): how it comes to its place. */
#ifndef SPEC_CUDA_STEP_CUH
#define SPEC_CUDA_STEP_CUH

#include "cuda.cuh"

/* Nodes of sequence `seq` that grew on the device take their places in the step, or their tokens alone, by a block; b: what is
 * known of it. */
static __device__ __forceinline__ void feed_sequence(spec_step_block *step, const spec_step_block *b, int seq)
{
    const spec_step_seq s = spec_step_seqs(b)[seq];
    const spec_step_node *feed = b->feed + (size_t)s.slot * (size_t)b->ld_feed;
    const spec_grow_node *grown = b->grown + (size_t)s.slot * (size_t)b->ld_grown;
    spec_step_node *node = (spec_step_node *)((char *)step + b->off_node) + s.first_node;
    const int t = (int)threadIdx.x, threads = (int)blockDim.x;
    for (int i = s.n_given + t; b->feed && i < s.n_fed + s.n_row; i += threads) node[i] = feed[i];
    for (int i = 1 + t; b->grown && i < s.n_given; i += threads) node[i].token = grown[i].token;
}

/* Writes the step, what grew included, and where its tokens go; by a block. */
static __device__ __forceinline__ void write_step(const cuda_step &p, spec_step_block *step, cuda_tokens *tokens)
{
    const spec_step_block *const b = (const spec_step_block *)p.byte;
    const int bytes = b->bytes;
    for (int i = (int)threadIdx.x; i * 16 < bytes; i += (int)blockDim.x) ((uint4 *)step)[i] = ((const uint4 *)p.byte)[i];
    if (threadIdx.x == 0) *tokens = p.tokens;
    if (!b->feed && !b->grown) return;
    __syncthreads();
    for (int seq = 0; seq < b->n_seq; seq++) feed_sequence(step, b, seq);
}

/* The token of row r of the step, before that is written. */
static __device__ __forceinline__ int step_token(const spec_step_block *b, int r)
{
    const spec_step_seq *s = spec_step_seqs(b) + row_sequence(b, r);
    const int i = s->n_fed + r - s->first_row;
    if (b->feed && i >= s->n_given) return b->feed[(size_t)s->slot * (size_t)b->ld_feed + i].token;
    if (b->grown && i > 0) return b->grown[(size_t)s->slot * (size_t)b->ld_grown + i].token;
    return spec_step_row_node(b, s, r)->token;
}

#endif
