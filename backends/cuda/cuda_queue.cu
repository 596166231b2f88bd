/* cuda_queue.cu - queues: a stream with all the memory that its operations need, taken when it is opened: one block on the
 * device (step, scratch, cuBLAS workspace), a ring of pinned slots for what goes there, and a pinned area for what comes back
 * (cuda_transfer.cu). */
#include <string.h>

#include "backends/cuda/cuda.cuh"

static spec_status blas_status(const spec_device *dev, cublasStatus_t s, const char *what)
{
    const spec_status code = s == CUBLAS_STATUS_ALLOC_FAILED ? SPEC_E_NOMEM : SPEC_E_DEVICE;
    return dev->host->fail(code, "%s: %s, on %s", cublasGetStatusName(s), what, dev->name);
}

/* How large everything is; sizes in bytes unless said. */
struct queue_sizes {
    int32_t rows; /* of row operations */
    int32_t steps_node; /* nodes of a tree whose steps are listed */
    size_t step, tokens, argmax, attention_floats, linear_floats, arranged_floats, squares_floats, ancestors, steps, workspace;
    size_t slot, result, total;
};

/* Nodes fed before, rows and a path. */
static int32_t steps_room(int32_t n_node) { return 2 * n_node; }

/* Every part of a step at its capacity. */
static size_t step_bytes(const spec_plan *p)
{
    const size_t seqs = (size_t)p->n_seq_max, rows = (size_t)p->n_row_max, nodes = seqs * (size_t)p->n_node_max + rows;
    const size_t pages = ((size_t)p->n_kv_max + (size_t)p->n_node_max) / SPEC_PAGE + 2;
    return sizeof(spec_step_block) + seqs * sizeof(spec_step_seq) + nodes * (sizeof(spec_step_node) + 4) +
           rows * (4 + sizeof(spec_traversal_node)) + seqs * pages * 4 + 6 * 256;
}

static queue_sizes measure(const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    queue_sizes z;
    memset(&z, 0, sizeof z);
    z.rows = n_vocab > 0 ? 64 : 1;
    z.step = 4096;
    int32_t list_seqs = 0;
    for (int32_t i = 0; i < n_plan; i++) {
        const spec_plan *p = &plans[i];
        z.rows = max(z.rows, p->n_row_max);
        z.step = max(z.step, step_bytes(p));
        if (p->phase == SPEC_PHASE_PREFILL) z.workspace = (size_t)32 << 20; /* what cuBLAS advises for Hopper */
        z.squares_floats = max(z.squares_floats, speci_cuda_squares_floats(p));
        for (int32_t j = 0; p->ops && j < p->n_op; j++) {
            const spec_op *op = &p->ops[j];
            if (op->kind == SPEC_OP_ATTENTION)
                z.attention_floats = max(z.attention_floats, speci_cuda_attention_floats(&op->u.attention, p));
            if (op->kind == SPEC_OP_SCAN && p->phase == SPEC_PHASE_DECODE && op->u.scan.a_per_state) {
                z.steps_node = max(z.steps_node, op->u.scan.n_node);
                list_seqs = max(list_seqs, p->n_seq_max);
            }
            if (op->kind == SPEC_OP_LINEAR) z.linear_floats = max(z.linear_floats, speci_cuda_linear_floats(&op->u.linear, p));
            if (j > 0 && op[-1].kind == SPEC_OP_LINEAR && op->kind == SPEC_OP_LINEAR)
                z.arranged_floats = max(z.arranged_floats, speci_cuda_arranged_floats(&op->u.linear, p));
        }
    }
    const size_t rows = (size_t)z.rows;
    z.step = cuda_round_up(z.step, 256);
    z.tokens = cuda_round_up(sizeof(cuda_tokens), 256);
    z.argmax = cuda_round_up(rows * (8 + CUDA_ARGMAX_PARTS * 8 + 4), 256);
    z.squares_floats = cuda_round_up(z.squares_floats, 64);
    z.ancestors = cuda_round_up((size_t)list_seqs * (size_t)z.steps_node * sizeof(int4), 256);
    z.steps = cuda_round_up((size_t)list_seqs * (size_t)(1 + steps_room(z.steps_node)) * 4, 256);
    z.slot = z.step > (size_t)64 << 10 ? z.step : (size_t)64 << 10;
    z.result = rows * (64 * 8 + 32) + ((size_t)64 << 10);
    z.total = z.step + z.tokens + z.argmax + cuda_round_up(z.attention_floats * 4, 256) +
              cuda_round_up(z.linear_floats * 4, 256) + cuda_round_up(z.arranged_floats * 4, 256) +
              CUDA_DEFERRED * z.squares_floats * 4 + z.ancestors + z.steps + z.workspace;
    return z;
}

size_t speci_cuda_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    (void)dev;
    return speci_cuda_memory_bytes(measure(plans, n_plan, n_vocab).total);
}

void speci_cuda_queue_close(spec_queue *q)
{
    if (!q) return;
    const spec_host *host = q->dev->host;
    (void)cudaSetDevice(q->dev->ordinal);
    if (q->stream) (void)cudaStreamSynchronize(q->stream);
    for (int i = 0; i < CUDA_RING; i++)
        if (q->ring_free[i]) (void)cudaEventDestroy(q->ring_free[i]);
    for (int i = 0; i < CUDA_MARKS; i++)
        if (q->mark[i]) (void)cudaEventDestroy(q->mark[i]);
    if (q->ring) (void)cudaFreeHost(q->ring);
    if (q->result) (void)cudaFreeHost(q->result);
    if (q->memory) (void)cudaFree(q->memory);
    if (q->stream) (void)cudaStreamDestroy(q->stream);
    (void)cudaGetLastError();
    host->free(host, q);
}

/* Gives each part its place in the queue's memory. */
static void queue_divide(spec_queue *q, const queue_sizes *z)
{
    char *p = q->memory;
    q->d_step = (spec_step_block *)p, p += z->step;
    q->d_tokens = (cuda_tokens *)p, p += z->tokens;
    q->best = (unsigned long long *)p, q->argmax_part = q->best + z->rows;
    q->argmax_count = (unsigned int *)(q->argmax_part + (size_t)z->rows * CUDA_ARGMAX_PARTS), p += z->argmax;
    q->attention_scratch = (float *)p, p += cuda_round_up(z->attention_floats * 4, 256);
    q->linear_scratch = (float *)p, p += cuda_round_up(z->linear_floats * 4, 256);
    q->arranged[0] = (uint16_t *)q->linear_scratch, q->arranged_floats[0] = z->linear_floats;
    q->arranged[1] = (uint16_t *)p, q->arranged_floats[1] = z->arranged_floats, p += cuda_round_up(z->arranged_floats * 4, 256);
    q->squares = (float *)p, q->squares_floats = z->squares_floats, p += CUDA_DEFERRED * z->squares_floats * 4;
    q->steps.ancestors = (int4 *)p, p += z->ancestors;
    q->steps.list = (int32_t *)p, p += z->steps;
    q->steps.room = steps_room(z->steps_node), q->steps.n_node = z->steps_node;
    q->blas_workspace = p, q->blas_bytes = z->workspace;
    q->step_cap = z->step, q->slot_bytes = z->slot, q->result_cap = z->result, q->row_cap = z->rows;
    q->attention_floats = z->attention_floats, q->linear_floats = z->linear_floats;
}

/* The device's handle, if this is the first queue that needs it. */
static spec_status blas_open(spec_device *dev)
{
    std::lock_guard<std::mutex> lock(dev->blas_lock);
    if (dev->blas) return SPEC_OK;
    cublasHandle_t blas;
    cublasStatus_t s = cublasCreate(&blas);
    if (s != CUBLAS_STATUS_SUCCESS) return blas_status(dev, s, "cublasCreate");
    const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION; /* no TF32, f32 sums */
    if ((s = cublasSetMathMode(blas, (cublasMath_t)mode)) != CUBLAS_STATUS_SUCCESS) {
        (void)cublasDestroy(blas);
        return blas_status(dev, s, "cublasSetMathMode");
    }
    dev->blas = blas;
    return SPEC_OK;
}

static spec_status queue_open_all(spec_queue *q, const queue_sizes *z)
{
    spec_device *const dev = q->dev;
    cudaError_t e = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaStreamCreate: queue");
    for (int i = 0; i < CUDA_RING; i++)
        if ((e = cudaEventCreateWithFlags(&q->ring_free[i], cudaEventDisableTiming)) != cudaSuccess)
            return speci_cuda_status(dev, e, "cudaEventCreate: queue");
    for (int i = 0; i < CUDA_MARKS; i++)
        if ((e = cudaEventCreateWithFlags(&q->mark[i], cudaEventDisableTiming)) != cudaSuccess)
            return speci_cuda_status(dev, e, "cudaEventCreate: mark");
    if ((e = cudaMalloc((void **)&q->memory, z->total)) != cudaSuccess) {
        q->memory = NULL;
        return speci_cuda_status(dev, e, "cudaMalloc: queue");
    }
    q->memory_bytes = z->total;
    queue_divide(q, z);
    if ((e = cudaHostAlloc((void **)&q->ring, (size_t)CUDA_RING * q->slot_bytes, cudaHostAllocPortable)) != cudaSuccess) {
        q->ring = NULL;
        return speci_cuda_status(dev, e, "cudaHostAlloc: queue");
    }
    e = cudaHostAlloc((void **)&q->result, q->result_cap, cudaHostAllocPortable | cudaHostAllocMapped);
    if (e != cudaSuccess) {
        q->result = NULL;
        return speci_cuda_status(dev, e, "cudaHostAlloc: queue");
    }
    if ((e = cudaMemsetAsync(q->best, 0, z->argmax, q->stream)) != cudaSuccess)
        return speci_cuda_status(dev, e, "cudaMemset: queue");
    return z->workspace ? blas_open(dev) : SPEC_OK;
}

spec_status speci_cuda_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    *out = NULL;
    SPEC_TRY(cuda_enter(dev));
    spec_queue *q = (spec_queue *)dev->host->alloc(dev->host, 1, sizeof *q);
    if (!q) return SPEC_E_NOMEM;
    q->dev = dev;
    const queue_sizes z = measure(plans, n_plan, n_vocab);
    const spec_status status = queue_open_all(q, &z);
    if (status != SPEC_OK) {
        speci_cuda_queue_close(q);
        return status;
    }
    *out = q;
    return SPEC_OK;
}
