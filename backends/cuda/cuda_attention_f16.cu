/* cuda_attention_f16.cu - attention with K and V in float16. */
#include "cuda_attention_tiles.cuh"

template spec_status speci_cuda_attention_tiles<__half>(spec_queue *, const spec_attention_args *, bool, int);
