/* cuda_format.cu - what matrices can be made of: one row each. */
#include "backends/cuda/linear/cuda_linear.cuh"

/* What all types of blocks have but their sizes. */
static constexpr cuda_format blocks_of(spec_dtype dtype, int32_t n_value, size_t bytes)
{
    return { dtype, false, n_value, bytes, speci_cuda_bytes_blocks, speci_cuda_pack_blocks, &speci_cuda_linear_blocks,
             speci_cuda_embed_blocks };
}

static const cuda_format formats[] = {
    { SPEC_DTYPE_F32, true, 1, 4, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_BF16, true, 1, 2, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_F16, true, 1, 2, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_Q8_0, false, SPEC_Q8_BLOCK, sizeof(spec_q8_block), speci_cuda_bytes_q8, speci_cuda_pack_q8, &speci_cuda_linear_q8,
      speci_cuda_embed_q8 },
    blocks_of(SPEC_DTYPE_Q4_0, SPEC_SMALL_BLOCK, sizeof(spec_q4_0_block)),
    blocks_of(SPEC_DTYPE_Q4_1, SPEC_SMALL_BLOCK, sizeof(spec_q4_1_block)),
    blocks_of(SPEC_DTYPE_Q5_0, SPEC_SMALL_BLOCK, sizeof(spec_q5_0_block)),
    blocks_of(SPEC_DTYPE_Q5_1, SPEC_SMALL_BLOCK, sizeof(spec_q5_1_block)),
    blocks_of(SPEC_DTYPE_Q4_K, SPEC_K_BLOCK, sizeof(spec_q4_k_block)),
    blocks_of(SPEC_DTYPE_Q5_K, SPEC_K_BLOCK, sizeof(spec_q5_k_block)),
    blocks_of(SPEC_DTYPE_Q6_K, SPEC_K_BLOCK, sizeof(spec_q6_k_block)),
};

const cuda_format *speci_cuda_format_of(spec_dtype dtype)
{
    for (const cuda_format &f : formats)
        if (f.dtype == dtype) return &f;
    return NULL;
}
