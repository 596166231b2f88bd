/* cuda_attention_bf16.cu - attention with K and V in bfloat16. */
#include "cuda_attention_tiles.cuh"

template spec_status speci_cuda_attention_tiles<__nv_bfloat16>(spec_queue *, const spec_attention_args *, bool, int);
