/* cuda_step.cu - the step descriptor on its way to the device. */
#include <string.h>

#include "backends/cuda/cuda.cuh"

/* Nodes of sequence `seq` that grew on the device take their places in the step, or their tokens alone, by a block; b: what is
 * known of it. */
static __device__ void feed_sequence(spec_step_block *step, const spec_step_block *b, int seq)
{
    const spec_step_seq s = spec_step_seqs(b)[seq];
    const spec_step_node *feed = b->feed + (size_t)s.slot * (size_t)b->ld_feed;
    const spec_grow_node *grown = b->grown + (size_t)s.slot * (size_t)b->ld_grown;
    spec_step_node *node = (spec_step_node *)((char *)step + b->off_node) + s.first_node;
    const int t = (int)threadIdx.x, threads = (int)blockDim.x;
    for (int i = s.n_given + t; b->feed && i < s.n_fed + s.n_row; i += threads) node[i] = feed[i];
    for (int i = 1 + t; b->grown && i < s.n_given; i += threads) node[i].token = grown[i].token;
}

static __global__ void __launch_bounds__(128) feed_kernel(spec_step_block *step) { feed_sequence(step, step, (int)blockIdx.x); }

/* Writes a step, what grew included, and where its tokens go. Most steps travel as a kernel's parameter: no copy of its own, and
 * what grew is fed by the same kernel. */
static __global__ void __launch_bounds__(256)
step_kernel(const __grid_constant__ cuda_step p, spec_step_block *step, cuda_tokens *tokens)
{
    const spec_step_block *const b = (const spec_step_block *)p.byte;
    const int bytes = b->bytes;
    if (p.releases) grid_release();
    grid_wait(); /* until then the step before stands there */
    for (int i = (int)threadIdx.x; i * 16 < bytes; i += (int)blockDim.x) ((uint4 *)step)[i] = ((const uint4 *)p.byte)[i];
    if (threadIdx.x == 0) *tokens = p.tokens;
    if (b->feed || b->grown) {
        __syncthreads();
        for (int seq = 0; seq < b->n_seq; seq++) feed_sequence(step, b, seq);
    }
    /* Else the kernel behind may begin when this block has ended, and read the step before it waits. */
    if (!p.releases) __threadfence();
}

spec_status speci_cuda_step_launch(spec_queue *q, const cuda_step *p)
{
    return cuda_launch(q, "step_bind", step_kernel, dim3(1), dim3(256), 0, 1, *p, q->d_step, q->d_tokens);
}

spec_status speci_cuda_step_update(spec_queue *q, cudaGraphExec_t exec, cudaGraphNode_t node, const cuda_step *p)
{
    void *args[] = { (void *)p, &q->d_step, &q->d_tokens };
    cudaKernelNodeParams k = {};
    k.func = (void *)step_kernel, k.gridDim = dim3(1), k.blockDim = dim3(256), k.kernelParams = args;
    const cudaError_t e = cudaGraphExecKernelNodeSetParams(exec, node, &k);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "cudaGraphExecKernelNodeSetParams");
}

spec_status speci_cuda_step_send(spec_queue *q, const spec_step_block *b, const cuda_tokens &tokens)
{
    cuda_step p;
    int32_t slot;
    if (cuda_step_fits(b)) {
        cuda_step_of(&p, b, tokens, false);
        return speci_cuda_step_launch(q, &p);
    }
    SPEC_TRY(speci_cuda_slot_take(q, &slot));
    memcpy(q->ring + (size_t)slot * q->slot_bytes, b, (size_t)b->bytes);
    SPEC_TRY(speci_cuda_slot_send(q, slot, q->d_step, (size_t)b->bytes));
    if ((!b->feed && !b->grown) || b->n_seq == 0) return SPEC_OK;
    feed_kernel<<<(unsigned)b->n_seq, 128, 0, q->stream>>>(q->d_step);
    return cuda_launched(q, "step_bind");
}

/* Has a path been accepted whose K and V do not stand at the front of the tree's slots already? Paths ascend. */
static bool step_moves(const spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) {
        const spec_step_seq *s = &spec_step_seqs(b)[i];
        if (s->n_replay > 0 && spec_step_paths(b)[s->first_path + s->n_replay - 1] != s->n_replay - 1) return true;
    }
    return false;
}

static bool step_grows(const spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++)
        if (spec_step_seqs(b)[i].n_fed > 0) return true;
    return false;
}

/* The shape comes from what the host knows: with nodes that grow on the device, n_kv is a bound. */
spec_status speci_cuda_step_shape(spec_queue *q, const spec_step_block *b)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    if (b->bytes < (int32_t)sizeof *b || (size_t)b->bytes > q->step_cap)
        return h->fail(SPEC_E_INVALID, "cuda: a step of %d bytes, the queue was opened for %zu", b->bytes, q->step_cap);
    const int32_t least = b->phase == SPEC_PHASE_PREFILL ? 1 : 0; /* a decode step may only apply paths */
    if (b->n_row < 0 || b->n_row > b->n_row_run || b->n_row_run < least || b->n_row_run > 32768 || b->n_seq < 0 ||
        (b->phase == SPEC_PHASE_DECODE && b->n_row != b->n_row_run) || b->n_seq > 4096 || b->n_kv < 0)
        return h->fail(SPEC_E_INVALID, "cuda: a step of %d of %d rows, %d sequences", b->n_row, b->n_row_run, b->n_seq);
    if (b->n_seq > 0 && b->off_seq != (int32_t)sizeof *b) /* spec_step_seqs() */
        return h->fail(SPEC_E_INVALID, "cuda: a step whose sequences stand at byte %d, not right behind its head at %zu",
                       b->off_seq, sizeof *b);
    q->n_row_run = b->n_row_run;
    q->shape.phase = b->phase;
    q->shape.rows = b->phase == SPEC_PHASE_PREFILL ? b->n_row_run : cuda_pow2(b->n_row_run);
    q->shape.seqs = cuda_pow2(b->n_seq);
    q->shape.splits = b->n_kv <= CUDA_FEW ? 0 : cuda_pow2(cuda_div_up(b->n_kv, CUDA_SPLIT));
    q->shape.moves = step_moves(b);
    q->shape.fits = cuda_step_fits(b);
    q->shape.finds = 0;
    q->shape.no_head = b->no_head != 0;
    q->shape.no_row = b->n_row_run == 0;
    q->shape.grows = step_grows(b);
    return SPEC_OK;
}

spec_status speci_cuda_step_bind(spec_queue *q, const spec_step_block *b)
{
    SPEC_TRY(speci_cuda_step_shape(q, b));
    return speci_cuda_step_send(q, b, cuda_tokens());
}
