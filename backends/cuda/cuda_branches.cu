/* cuda_branches.cu - passes without rows. Each of their kernels is small, and what one layer does there no other one waits for: a graph
 * has the layers in branches side by side. Operations share a branch where they have one place for what convolutions hand to scans
 * (spec_plan); others stay on the trunk, the queue's own stream. Streams and events are needed while the graph is captured alone. */
#include "backends/cuda/cuda.cuh"

static const void *place_of(const spec_op *op)
{
    return op->kind == SPEC_OP_CONV ? op->u.conv.replay_y : op->kind == SPEC_OP_SCAN ? op->u.scan.replay_y : NULL;
}

/* From here on branches go on by themselves. */
static cudaError_t fork(cuda_branches *b)
{
    cudaError_t e = cudaEventRecord(b->event[0], b->stream[0]);
    for (int i = 1; i < CUDA_BRANCHES && e == cudaSuccess; i++) e = cudaStreamWaitEvent(b->stream[i], b->event[0], 0);
    return e;
}

spec_status speci_cuda_branches_open(spec_queue *q, cuda_branches *b)
{
    *b = cuda_branches();
    b->stream[0] = q->stream;
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < CUDA_BRANCHES && e == cudaSuccess; i++) {
        if (i > 0) e = cudaStreamCreateWithFlags(&b->stream[i], cudaStreamNonBlocking);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->event[i], cudaEventDisableTiming);
    }
    if (e == cudaSuccess) e = fork(b);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "branches of a graph");
}

void speci_cuda_branch_take(spec_queue *q, cuda_branches *b, const spec_op *op)
{
    const void *const place = place_of(op);
    int i = 0;
    while (place && i < b->n && b->place[i] != place) i++;
    if (place && i == b->n && i < CUDA_BRANCHES) b->place[b->n++] = place;
    q->stream = b->stream[i < CUDA_BRANCHES ? i : 0];
}

spec_status speci_cuda_branches_join(spec_queue *q, cuda_branches *b)
{
    q->stream = b->stream[0];
    cudaError_t e = cudaSuccess;
    for (int i = 1; i < CUDA_BRANCHES && e == cudaSuccess; i++) {
        e = cudaEventRecord(b->event[i], b->stream[i]);
        if (e == cudaSuccess) e = cudaStreamWaitEvent(q->stream, b->event[i], 0);
    }
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "branches of a graph");
}

void speci_cuda_branches_close(cuda_branches *b)
{
    for (int i = 0; i < CUDA_BRANCHES; i++) {
        if (b->event[i]) (void)cudaEventDestroy(b->event[i]);
        if (i > 0 && b->stream[i]) (void)cudaStreamDestroy(b->stream[i]);
    }
}
