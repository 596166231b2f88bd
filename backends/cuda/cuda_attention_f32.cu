/* cuda_attention_f32.cu - attention with K and V in float32. */
#include "cuda_attention_tiles.cuh"

template spec_status speci_cuda_attention_tiles<float>(spec_queue *, const spec_attention_args *, bool, int);
