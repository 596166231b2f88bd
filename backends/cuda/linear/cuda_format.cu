/* cuda_format.cu - what matrices can be made of: one row each. */
#include "backends/cuda/linear/cuda_linear.cuh"

static const cuda_format formats[] = {
    { SPEC_DTYPE_F32, true, 1, 4, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_BF16, true, 1, 2, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_F16, true, 1, 2, speci_cuda_bytes_plain, speci_cuda_pack_plain, NULL, NULL },
    { SPEC_DTYPE_Q8_0, false, SPEC_Q8_BLOCK, sizeof(spec_q8_block), speci_cuda_bytes_q8, speci_cuda_pack_q8, &speci_cuda_linear_q8,
      speci_cuda_embed_q8 },
};

const cuda_format *speci_cuda_format_of(spec_dtype dtype)
{
    for (const cuda_format &f : formats)
        if (f.dtype == dtype) return &f;
    return NULL;
}
