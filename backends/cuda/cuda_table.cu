/* cuda_table.cu - the backend's table. */
#include "backends/cuda/cuda.cuh"
#include "backends/cuda/spec_cuda.h"

static const spec_backend_ops table = {
    SPEC_BACKEND_ABI,
    sizeof(spec_backend_ops),
    "cuda",
    speci_cuda_open,
    speci_cuda_close,
    speci_cuda_info,
    speci_cuda_list,
    speci_cuda_alloc,
    speci_cuda_free,
    speci_cuda_weight_bytes,
    speci_cuda_weight_open,
    speci_cuda_weight_close,
    speci_cuda_queue_open,
    speci_cuda_queue_bytes,
    speci_cuda_queue_close,
    speci_cuda_upload,
    speci_cuda_download,
    speci_cuda_copy,
    speci_cuda_zero,
    speci_cuda_sync,
    speci_cuda_step_bind,
    /* Kinds differ inside (cuda_ops.cu). */
    { { SPEC_OP_EMBED, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_NORM, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_LINEAR, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_KV_COMMIT, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_ROPE_KV, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_ATTENTION, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_CONV, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_SCAN, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_KEEP, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_RECYCLE, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_BIAS, speci_cuda_supports, speci_cuda_run },
      { SPEC_OP_GLU, speci_cuda_supports, speci_cuda_run } },
    speci_cuda_argmax,
    speci_cuda_probs,
    speci_cuda_accept,
    speci_cuda_logprob,
    speci_cuda_draw,
    speci_cuda_expand,
    speci_cuda_plan_prepare,
    speci_cuda_plan_run,
    speci_cuda_plan_free,
    speci_cuda_mark,
    speci_cuda_wait,
    speci_cuda_plan_warm,
    speci_cuda_adjust,
    speci_cuda_accept_tree,
    speci_cuda_gather,
    1u << SPEC_DTYPE_Q8_0 | 1u << SPEC_DTYPE_Q4_0 | 1u << SPEC_DTYPE_Q4_1 | 1u << SPEC_DTYPE_Q5_0 | 1u << SPEC_DTYPE_Q5_1 |
        1u << SPEC_DTYPE_Q4_K | 1u << SPEC_DTYPE_Q5_K | 1u << SPEC_DTYPE_Q6_K,
    speci_cuda_parallel,
    SPEC_KNOWS_CAP | SPEC_KNOWS_GAIN,
};

extern "C" const spec_backend_ops *spec_cuda_ops(void) { return &table; }

/* The plugin's entry, SPEC_BACKEND_ENTRY. */
extern "C" __attribute__((visibility("default"))) const spec_backend_ops *spec_backend_table(void) { return &table; }
