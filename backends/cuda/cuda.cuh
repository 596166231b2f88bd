/* cuda.cuh - what every kernel family of the CUDA backend stands on.
 *
 * Host side: the device, the queue, errors. Device side: loads and stores by type, the functions that scan and
 * replay share, fixed-order reductions.
 *
 * Two rules hold in every file:
 *  - The order of every sum is a function of the operation's shape and type, never of the number of rows. The whole
 *    backend is compiled with --fmad=false: a fused multiply-add is written fmaf, and nowhere else is there one.
 *  - Kernels read counts and trees from the step block in device memory. Grids are sized by the queue's `shape`,
 *    which is the step rounded up to a bucket; blocks beyond the counts return. So a captured graph of a bucket can
 *    be replayed for any step that falls into it.
 *
 * The kernels of a pass overlap at their edges (programmatic dependent launch). Each is launched by cuda_launch and
 * begins with grid_begin(): the next one may be set up from then on, and this one goes on when all before it are done
 * and their writes are seen. What is read in front of the wait must not be written in the pass: weights, the step block,
 * states and windows that only the same kernel writes. For that the operations that begin a pass (kv_commit, embed) wait
 * before they release. All threads of all blocks wait, so that a kernel's end implies the end of all before it. */
#ifndef SPEC_CUDA_CUH
#define SPEC_CUDA_CUH

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>
#include <string.h>

#include <mutex>

#include "backends/spec_backend.h"
#include "core/core_dtype.h"

/* Clusters of blocks, messages between them, bulk copies and the overlap of kernels are of compute capability 9.0 on. Is this code
 * compiled for such a device? On the host a device says what its code has (cuda_has_clusters). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SPEC_CUDA_CLUSTERS 0
#else
#define SPEC_CUDA_CLUSTERS 1
#endif

/* ------------------------------------------------------------------------------- host side --- */

enum {
    CUDA_PREFILL_CHUNK = 2048, CUDA_PREFILL_LEAST = 64, /* rows of prefill passes: powers of two */
    CUDA_ROW_MAX = 8192,      /* rows of a decode pass */
    CUDA_DEFER = 1024,        /* columns: in wider models products lose more by a deferred norm than its own kernel takes */
    CUDA_SQUARES = 16,        /* columns whose squares a deferred norm adds up */
    CUDA_DEFERRED = 3,        /* norms of a plan that are deferred at the same time */
    CUDA_SPLIT = 512,         /* positions per split of attention */
    CUDA_FEW = 160,           /* positions for which its blocks are small */
    CUDA_BLOCK = 64,          /* positions per block of attention; a page */
    CUDA_RING = 8,            /* pinned staging slots of a queue */
    CUDA_MARKS = 8,
    CUDA_WEIGHT_PAD = 128,    /* rows behind a weight that may be read */
    CUDA_SHARED_LARGE = 200 << 10, /* bytes of shared memory that a block has on devices for data centres */
    CUDA_SHARED_OWN = 2048,   /* bytes of shared memory that are left for what a kernel has of its own */
    CUDA_CHUNK = 128          /* columns that products take at once: rows of weights are whole chunks */
};

struct spec_device {
    const spec_host *host;
    int ordinal, n_sm;
    size_t shared_most; /* dynamic shared memory that a block may ask for, a little left for what a kernel has of its own */
    int ability; /* compute capability, 10 major + minor, that the code which runs was compiled for: the device's, or an older one's */
    char name[96];
    /* Weights come through two pinned buffers; the lock is held for a whole weight_open. */
    std::mutex stage_lock;
    char *stage[2]; /* made by the first weight_open, kept until the device is closed */
    cudaEvent_t stage_free[2];
    cudaStream_t stage_stream;
    /* One for all queues, made by the first that has prompts, kept until the device is closed: cublasDestroy waits for the
     * whole device, and the driver has crashed in that wait while other threads made streams and graphs. The lock is held
     * for a call, since stream and workspace belong to the handle. */
    std::mutex blas_lock;
    cublasHandle_t blas;
};

static inline bool cuda_has_clusters(const spec_device *dev) { return dev->ability >= 90; }
/* And the shared memory that products of many rows take. */
static inline bool cuda_has_large_blocks(const spec_device *dev)
{
    return cuda_has_clusters(dev) && dev->shared_most >= CUDA_SHARED_LARGE;
}

/* A matrix as its format has it. A plain one is [n_out + CUDA_WEIGHT_PAD][ld] of dtype, ld = n_in rounded up to CUDA_CHUNK
 * elements, the padding zero. dtype: of the activations. */
struct cuda_format;
struct spec_weight {
    void *data;
    int32_t n_out, n_in, ld;
    spec_dtype dtype;
    int32_t glu;
    const cuda_format *format;
    size_t bytes; /* without what is behind the matrix */
};

/* A step rounded up: what grids and graphs are made for. */
struct cuda_shape {
    int32_t phase;
    int32_t rows;   /* of token-wise operations: a power of two in decode, the padded chunk in prefill */
    int32_t seqs;   /* a power of two */
    int32_t splits; /* of the longest context, a power of two; 0: it has up to CUDA_FEW positions */
    int32_t moves;  /* K and V of an accepted path do not stand in their places yet */
    int32_t fits;   /* the step block is a kernel's parameter (cuda_step) */
    int32_t finds;  /* the pass ends with the tokens of its rows (cuda_tokens) */
    int32_t no_head; /* spec_step_block's */
    int32_t no_row;  /* paths are applied, and nothing else */
    int32_t grows;   /* the rows stand below nodes that earlier passes were fed */
};

/* Where arg-max of a pass's first n_row rows goes. */
struct cuda_tokens {
    int32_t *token; /* pinned [n_row] */
    spec_step_node *next; /* or NULL */
    int32_t n_row;
};

/* A step block as a parameter of the kernel that writes it to its place, and `tokens` to theirs. releases: the kernel behind it
 * waits before it lets others be, so that none reads the step too early. */
struct cuda_step {
    alignas(16) char byte[3584];
    cuda_tokens tokens;
    int32_t releases;
};
static inline bool cuda_step_fits(const spec_step_block *b) { return (size_t)b->bytes <= sizeof(((cuda_step *)NULL)->byte); }
static inline void cuda_step_of(cuda_step *p, const spec_step_block *b, const cuda_tokens &tokens, bool releases)
{
    memcpy(p->byte, b, (size_t)b->bytes);
    p->tokens = tokens, p->releases = releases;
}

struct cuda_pending { /* a result that waits in pinned memory for sync() */
    void *dst;
    const void *src;
    size_t bytes;
};

/* How the rows at `of` lie once more, as the product behind reads them (cuda_linear.cuh); of NULL: not at all. */
enum linear_order { ORDER_ROWS, ORDER_TILES, ORDER_SLABS };
struct cuda_arranged {
    const void *of;
    uint16_t *at;
    linear_order order;
};

/* What the scans and convolutions of a pass follow from node to node, found once for all of them, with trees of up to n_node nodes.
 *   list       for each sequence 1 + room words: how many steps its scans do one after the other (scan/cuda_scan_steps.cuh; -1: more
 *              than there is room for), and the steps. NULL, or no room: each scan finds them.
 *   ancestors  for each sequence [n_node] of its nodes: the node and the three above it, where -1 - m is the m-th newest token in front of
 *              the root. NULL: each convolution finds them. */
struct cuda_steps {
    int32_t *list;
    int4 *ancestors;
    int32_t room, n_node, chunk; /* chunk: steps that a scan does at once, 0: lists have no rounds */
};

struct spec_queue {
    spec_device *dev;
    cudaStream_t stream;
    char *memory; /* all device memory of the queue */
    size_t memory_bytes;

    spec_step_block *d_step; /* the current step, at a fixed address */
    size_t step_cap;
    cuda_tokens *d_tokens; /* of a pass that finds them */
    cuda_shape shape;
    int32_t n_row_run; /* of the current step */

    float *attention_scratch, *linear_scratch;
    size_t attention_floats, linear_floats;
    char *blas_workspace; /* with blas_bytes 0 no plan of the queue is a prefill */
    size_t blas_bytes;
    uint16_t *arranged[2]; /* places for what a product reads (cuda_arranged); an operation reads one and writes the other */
    size_t arranged_floats[2];
    float *squares;        /* of deferred norms, CUDA_DEFERRED places of squares_floats */
    size_t squares_floats;
    cuda_steps steps;      /* n_node: the most that there is room for */
    unsigned long long *best;        /* [row_cap] of a pass that finds its rows' largest */
    unsigned long long *argmax_part; /* [row_cap][CUDA_ARGMAX_PARTS] */
    unsigned int *argmax_count;      /* [row_cap], zero between calls */
    int32_t row_cap;                 /* rows of one launch of the arg-max */

    char *ring; /* pinned [CUDA_RING][slot_bytes], host to device */
    size_t slot_bytes;
    cudaEvent_t ring_free[CUDA_RING];
    int32_t ring_next;

    char *result; /* pinned, device to host */
    size_t result_cap, result_used;
    cuda_pending pending[64];
    int32_t n_pending;

    /* Marks, in a ring. One that has left it is waited for with all that was queued since. */
    cudaEvent_t mark[CUDA_MARKS];
    uint64_t n_mark;                /* so far; mark m has event m % CUDA_MARKS */
    uint64_t n_result[CUDA_MARKS];  /* results that were asked for before the mark */
    uint64_t n_handed_out;          /* of the results asked for so far, all but n_pending */
};
enum { CUDA_ARGMAX_PARTS = 16 };

/* Errors (cuda_error.cu). A CUDA status becomes SPEC_E_NOMEM or SPEC_E_DEVICE; `what` is the call and its place. */
spec_status speci_cuda_status(const spec_device *dev, cudaError_t error, const char *what);
static inline spec_status cuda_launched(spec_queue *q, const char *kernel)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, kernel);
}
/* Launches a kernel that begins with grid_begin(). `cluster`: blocks of a cluster along x. */
template <typename... P, typename... A>
static inline spec_status cuda_launch(spec_queue *q, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                      size_t shared, unsigned cluster, A... args)
{
    cudaLaunchAttribute attribute[2]; /* without clusters there is no overlap either */
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = cudaLaunchAttributeClusterDimension;
    attribute[1].val.clusterDim.x = cluster, attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = q->stream;
    config.attrs = attribute, config.numAttrs = !cuda_has_clusters(q->dev) ? 0 : cluster > 1 ? 2 : 1;
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, P(args)...);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, name);
}
#define SPEC_TRY(call)                                                                             \
    do {                                                                                           \
        spec_status try_status_ = (call);                                                          \
        if (try_status_ != SPEC_OK) return try_status_;                                            \
    } while (0)

/* Every entry point of the table makes its device current. */
static inline spec_status cuda_enter(const spec_device *dev)
{
    cudaError_t e = cudaSetDevice(dev->ordinal);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, e, "cudaSetDevice");
}
static inline spec_status cuda_enter_op(spec_queue *q, const char *op)
{
    if (q->shape.rows == 0)
        return q->dev->host->fail(SPEC_E_STATE, "cuda: %s before step_bind", op);
    return cuda_enter(q->dev);
}

/* What cudaMalloc takes for `bytes`: from 1 MiB on whole pages of 2 MiB. */
static inline size_t speci_cuda_memory_bytes(size_t bytes)
{
    const size_t page = bytes < (size_t)1 << 20 ? 512 : (size_t)2 << 20;
    return (bytes + page - 1) / page * page;
}

/* Devices (cuda_device.cu). */
spec_status speci_cuda_open(spec_device **out, const spec_host *host, const char *arg);
void speci_cuda_close(spec_device *dev);
spec_status speci_cuda_info(spec_device *dev, spec_device_info *out);
spec_status speci_cuda_list(const spec_host *host, void (*each)(void *user, const char *arg, const char *text), void *user);
spec_status speci_cuda_alloc(spec_device *dev, void **out, size_t bytes);
void speci_cuda_free(spec_device *dev, void *p, size_t bytes);

/* Weights (linear/cuda_weight.cu). */
size_t speci_cuda_weight_bytes(spec_device *dev, const spec_weight_desc *desc);
spec_status speci_cuda_weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc);
void speci_cuda_weight_close(spec_device *dev, spec_weight *w);
void speci_cuda_stage_close(spec_device *dev);

/* What matrices can be made of (linear/cuda_format.cu): a row for each type that parts may have. */
struct linear_format; /* cuda_linear.cuh */
struct norm_out;      /* cuda_norm.cuh */
struct cuda_format {
    spec_dtype dtype;   /* of the parts */
    bool plain;         /* elements of the activations' type */
    int32_t block;      /* elements that lie together in a row of the parts: n_in is a multiple */
    size_t block_bytes;
    size_t (*bytes)(const spec_weight *w); /* of the matrix */
    /* n_row rows from `row` on to their places, by kernels or copies on the staging stream; src is pinned. */
    spec_status (*pack)(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row);
    /* NULL where plain: products and embeddings by kernels of its own. */
    const linear_format *products;
    spec_status (*embed)(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out *next);
};
const cuda_format *speci_cuda_format_of(spec_dtype dtype); /* or NULL */
/* linear/cuda_pack.cu */
size_t speci_cuda_bytes_plain(const spec_weight *w);
size_t speci_cuda_bytes_q8(const spec_weight *w);
spec_status speci_cuda_pack_plain(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row);
size_t speci_cuda_bytes_blocks(const spec_weight *w);
spec_status speci_cuda_pack_blocks(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row);
spec_status speci_cuda_pack_q8(spec_device *dev, const spec_weight *w, int32_t row, const void *src, int32_t n_row);
/* rows/cuda_embed.cu */
spec_status speci_cuda_embed_blocks(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out *next);
spec_status speci_cuda_embed_q8(spec_queue *q, const spec_embed_args *a, unsigned long long *best, const norm_out *next);

/* Queues (cuda_queue.cu). */
spec_status speci_cuda_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab);
size_t speci_cuda_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab);
void speci_cuda_queue_close(spec_queue *q);

/* Transfers (cuda_transfer.cu). Makes room for n results of `bytes` together (16 more for each); then speci_cuda_result gives
 * pinned memory that a kernel fills and sync() copies to dst. slot: the next of the ring, once the copy out of it is done. */
spec_status speci_cuda_result_room(spec_queue *q, size_t bytes, int32_t n);
spec_status speci_cuda_result(spec_queue *q, void **out, void *dst, size_t bytes);
spec_status speci_cuda_slot_take(spec_queue *q, int32_t *slot);
spec_status speci_cuda_slot_send(spec_queue *q, int32_t slot, void *dst, size_t bytes);
spec_status speci_cuda_upload(spec_queue *q, void *dst, const void *src, size_t bytes);
spec_status speci_cuda_download(spec_queue *q, void *dst, const void *src, size_t bytes);
spec_status speci_cuda_copy(spec_queue *q, const spec_range_copy *range, int32_t n);
spec_status speci_cuda_zero(spec_queue *q, const spec_range *range, int32_t n);
spec_status speci_cuda_sync(spec_queue *q);
spec_status speci_cuda_mark(spec_queue *q, uint64_t *mark);
spec_status speci_cuda_wait(spec_queue *q, uint64_t mark);

/* The step in three parts (cuda_step.cu): checks it and notes its shape; brings it to the device; or, where it fits a
 * parameter, does so as the first kernel of a graph that is captured, and gives that kernel another one. */
spec_status speci_cuda_step_shape(spec_queue *q, const spec_step_block *block);
spec_status speci_cuda_step_send(spec_queue *q, const spec_step_block *block, const cuda_tokens &tokens);
spec_status speci_cuda_step_launch(spec_queue *q, const cuda_step *step);
spec_status speci_cuda_step_update(spec_queue *q, cudaGraphExec_t exec, cudaGraphNode_t node, const cuda_step *step);
spec_status speci_cuda_step_bind(spec_queue *q, const spec_step_block *block);

/* --- operations --- */

/* Arguments with what preparing a plan adds (cuda_prepare.cu): a deferred norm (rows/cuda_norm.cuh), [rows][columns /
 * CUDA_SQUARES]. An operation by itself has none of it. */
struct cuda_norm_args : spec_norm_args {
    float *squares; /* the norm is deferred; NULL: it is not */
};
struct cuda_linear_args : spec_linear_args {
    const float *squares; /* of the deferred norm that makes x, or NULL */
    float eps;            /* of that norm */
};

/* An operation of a prepared plan. What stands behind it in the plan, if anything, is the next one of an array. */
struct cuda_fusion;
struct cuda_op {
    spec_op op;
    float *squares; /* of its deferred norm, or of that which makes its x; or NULL */
    float eps;
    const cuda_op *reader;     /* the product right behind it that reads whole chunks of what it makes, or NULL */
    const cuda_fusion *fusion; /* what may be done of it and the operation behind it by one kernel, or NULL */
};
static inline cuda_norm_args cuda_norm_of(const cuda_op *o) { return { o->op.u.norm, o->squares }; }
static inline cuda_linear_args cuda_linear_of(const cuda_op *o) { return { o->op.u.linear, o->squares, o->eps }; }

/* What goes on from operation to operation of a pass. */
struct cuda_pass {
    cuda_arranged in, out;    /* what the operation reads, as the one in front has left it, and as it leaves what it makes */
    const cuda_op *reader;    /* of what it makes */
    cuda_steps steps;         /* of its scans and convolutions */
    const cuda_op *head;      /* whose rows' largest the pass finds, or NULL */
    unsigned long long *best; /* ... there, or NULL: the embedding sets them to 0, the head raises them */
};

/* The branches of a graph while it is captured (cuda_branches.cu): the first is the queue's own stream, the trunk. */
enum { CUDA_BRANCHES = 4 };
struct cuda_branches {
    cudaStream_t stream[CUDA_BRANCHES];
    cudaEvent_t event[CUDA_BRANCHES];
    const void *place[CUDA_BRANCHES]; /* [n] that operations of the branch share */
    int n;
};
/* open: forks them off; on an error too, close. take: launches go to the operation's branch; join: to the trunk, behind all of them. */
spec_status speci_cuda_branches_open(spec_queue *q, cuda_branches *b);
void speci_cuda_branch_take(spec_queue *q, cuda_branches *b, const spec_op *op);
spec_status speci_cuda_branches_join(spec_queue *q, cuda_branches *b);
void speci_cuda_branches_close(cuda_branches *b);

/* One check and one launcher per kind, in a table (cuda_ops.cu). A check answers for types and sizes and never looks at row
 * counts; a launcher asks it first. */
struct cuda_kind {
    spec_status (*check)(spec_device *dev, const spec_op *op);
    spec_status (*run)(spec_queue *q, const cuda_op *o, cuda_pass *pass);
};
extern const cuda_kind speci_cuda_kinds[SPEC_OP_N];
/* Two operations by one kernel (cuda_ops.cu); false: nothing was launched, the step's rows do not suit. */
struct cuda_fusion {
    spec_op_kind first, second;
    bool hides; /* what the first makes is then nowhere: the second alone may read it */
    bool (*run)(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status); /* o[0] and o[1] */
};
const cuda_fusion *speci_cuda_fusion_of(spec_op_kind first, spec_op_kind second); /* or NULL */
/* The table's. */
spec_status speci_cuda_supports(spec_device *dev, const spec_op *op);
spec_status speci_cuda_run(spec_queue *q, const spec_op *op);

spec_status speci_cuda_check_embed(spec_device *dev, const spec_embed_args *a);
spec_status speci_cuda_check_norm(spec_device *dev, const spec_norm_args *a);
spec_status speci_cuda_check_linear(spec_device *dev, const spec_linear_args *a);
spec_status speci_cuda_check_kv_commit(spec_device *dev, const spec_kv_commit_args *a);
spec_status speci_cuda_check_rope_kv(spec_device *dev, const spec_rope_kv_args *a);
spec_status speci_cuda_check_attention(spec_device *dev, const spec_attention_args *a);
spec_status speci_cuda_check_conv(spec_device *dev, const spec_conv_args *a);
spec_status speci_cuda_check_scan(spec_device *dev, const spec_scan_args *a);
spec_status speci_cuda_check_keep(spec_device *dev, const spec_keep_args *a);
spec_status speci_cuda_check_recycle(spec_device *dev, const spec_recycle_args *a);
spec_status speci_cuda_check_bias(spec_device *dev, const spec_bias_args *a);
spec_status speci_cuda_check_glu(spec_device *dev, const spec_glu_args *a);
spec_status speci_cuda_embed(spec_queue *q, const spec_embed_args *a, unsigned long long *best);
spec_status speci_cuda_norm(spec_queue *q, const cuda_norm_args *a, cuda_pass *pass);
/* best: raised to the ranks of the rows' largest; or NULL. */
spec_status speci_cuda_linear(spec_queue *q, const cuda_linear_args *a, unsigned long long *best, cuda_pass *pass);
spec_status speci_cuda_kv_commit(spec_queue *q, const spec_kv_commit_args *a);
spec_status speci_cuda_rope_kv(spec_queue *q, const spec_rope_kv_args *a);
spec_status speci_cuda_attention(spec_queue *q, const spec_attention_args *a, cuda_pass *pass);
spec_status speci_cuda_conv(spec_queue *q, const spec_conv_args *a);
spec_status speci_cuda_scan(spec_queue *q, const spec_scan_args *a, cuda_pass *pass);
spec_status speci_cuda_keep(spec_queue *q, const spec_keep_args *a);
spec_status speci_cuda_recycle(spec_queue *q, const spec_recycle_args *a);
spec_status speci_cuda_bias(spec_queue *q, const spec_bias_args *a);
spec_status speci_cuda_glu(spec_queue *q, const spec_glu_args *a);
/* Both; false: nothing was launched. */
bool speci_cuda_embed_norm(spec_queue *q, const spec_embed_args *a, const cuda_norm_args *norm, cuda_pass *pass, spec_status *status);
bool speci_cuda_linear_norm(spec_queue *q, const cuda_linear_args *a, const cuda_norm_args *norm, cuda_pass *pass,
                            spec_status *status);
bool speci_cuda_linear_conv(spec_queue *q, const cuda_linear_args *a, const spec_conv_args *conv, bool scan_next, cuda_pass *pass,
                            spec_status *status);

/* The steps of a pass's scans, and the ancestors of its nodes (cuda_scan_state.cu): whether a pass of the queue's shape finds them once
 * for all, by what one of its scans says, and the launch that does, in front of the pass. releases: as of cuda_step. */
bool speci_cuda_lists_steps(const spec_queue *q, const spec_scan_args *a);
spec_status speci_cuda_list_steps(spec_queue *q, const spec_scan_args *a, bool releases, cuda_steps *out);

/* --- rows of logits --- */

spec_status speci_cuda_argmax(spec_queue *q, const spec_argmax_args *a);
spec_status speci_cuda_adjust(spec_queue *q, const spec_adjust_args *a);
spec_status speci_cuda_gather(spec_queue *q, const spec_gather_args *a);
void speci_cuda_parallel(spec_device *dev, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
/* The same as the end of a pass that has found its rows' largest: where tokens go, and the kernel that takes them from q->best. */
spec_status speci_cuda_tokens_of(spec_queue *q, const spec_argmax_args *a, cuda_tokens *out);
spec_status speci_cuda_tokens(spec_queue *q);
/* Raises best[r] to the rank of the largest of y[r][0 .. n), for the rows of the pass (cuda_rows.cu). */
spec_status speci_cuda_row_best(spec_queue *q, const spec_view *y, int32_t n, unsigned long long *best);
/* y [rows][n] f32 becomes cap tanh(y / cap) (rows/cuda_cap.cu). */
spec_status speci_cuda_cap_rows(spec_queue *q, const spec_view *y, int32_t n, float cap);
spec_status speci_cuda_probs(spec_queue *q, const spec_probs_args *a);
spec_status speci_cuda_accept(spec_queue *q, const spec_accept_args *a);
spec_status speci_cuda_accept_tree(spec_queue *q, const spec_accept_tree_args *a);
spec_status speci_cuda_logprob(spec_queue *q, const spec_logprob_args *a);
spec_status speci_cuda_check_slots(spec_queue *q, const char *op, const spec_grow *g, const int32_t *slots, int32_t n);
spec_status speci_cuda_draw(spec_queue *q, const spec_draw_args *a);
spec_status speci_cuda_expand(spec_queue *q, const spec_expand_args *a);

/* --- plans --- */

/* What the operations of a plan do together (cuda_prepare.cu): fills ops [plan->n_op]. And floats of one of the queue's
 * CUDA_DEFERRED places for squares, at most. */
void speci_cuda_prepare(const spec_queue *q, const spec_plan *plan, cuda_op *ops);
size_t speci_cuda_squares_floats(const spec_plan *plan);
spec_status speci_cuda_plan_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan, int32_t capture);
spec_status speci_cuda_plan_run(spec_queue *q, spec_prepared *plan, const spec_step_block *block, const spec_argmax_args *argmax);
void speci_cuda_plan_free(spec_queue *q, spec_prepared *plan);
spec_status speci_cuda_plan_warm(spec_queue *q, spec_prepared *plan, const spec_step_block *block);

/* Floats of scratch that the operation would like in passes of such a plan. */
size_t speci_cuda_attention_floats(const spec_attention_args *a, const spec_plan *plan); /* cuda_attention.cu */
size_t speci_cuda_linear_floats(const spec_linear_args *a, const spec_plan *plan);       /* cuda_linear.cu */
size_t speci_cuda_arranged_floats(const spec_linear_args *a, const spec_plan *plan);     /* cuda_linear_arrange.cu */
/* Where an operation's output goes a second time, in the order that pass->reader reads, if that is `order` (ORDER_ROWS: any),
 * which pass->out then tells. NULL: nowhere. read: what the operation itself reads in such an order, or NULL. */
uint16_t *speci_cuda_arranged_for(const spec_queue *q, cuda_pass *pass, linear_order order, const uint16_t *read);

static inline bool cuda_is_float(spec_dtype t) { return t >= SPEC_DTYPE_F32 && t <= SPEC_DTYPE_F16; }
static inline int32_t cuda_div_up(int64_t n, int64_t d) { return (int32_t)((n + d - 1) / d); }
static inline size_t cuda_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int32_t cuda_pow2(int32_t n) /* the smallest power of two >= n */
{
    int32_t p = 1;
    while (p < n && p < (1 << 30)) p *= 2;
    return p;
}
static inline bool cuda_aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }

/* Calls f with a value of the type that `t` names. */
template <typename F> static spec_status cuda_by_dtype(spec_dtype t, F f)
{
    switch (t) {
    case SPEC_DTYPE_BF16: return f(__nv_bfloat16());
    case SPEC_DTYPE_F16: return f(__half());
    default: return f(float());
    }
}

/* ----------------------------------------------------------------------------- device side --- */

/* Nanoseconds. In a test's build each warp pauses for up to as many behind its release, so that what the next kernels read
 * before they wait, and should not, is not written yet. */
#ifndef SPEC_CUDA_PAUSE
#define SPEC_CUDA_PAUSE 0
#endif

__device__ __forceinline__ float to_f32(float v) { return v; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_f32(__half v) { return __half2float(v); }
/* To nearest even. */
template <typename T> __device__ __forceinline__ T from_f32(float v);
template <> __device__ __forceinline__ float from_f32<float>(float v) { return v; }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ __half from_f32<__half>(float v) { return __float2half_rn(v); }

/* The edges of a kernel of a pass; see the head of this file. */
__device__ __forceinline__ void grid_release()
{
#if SPEC_CUDA_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (SPEC_CUDA_PAUSE) __nanosleep(((unsigned)clock64() + threadIdx.x / 32 + blockIdx.x) * 2654435761u % (SPEC_CUDA_PAUSE + 1));
}
__device__ __forceinline__ void grid_wait()
{
#if SPEC_CUDA_CLUSTERS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_begin()
{
    grid_release();
    grid_wait();
}

/* The sequence of row r; of one sequence a load less to wait for. */
__device__ __forceinline__ int row_sequence(const spec_step_block *step, int r)
{
    return step->n_seq == 1 ? 0 : spec_step_row_seq(step)[r];
}

/* By a type that is known at run time: the branch is uniform. */
__device__ __forceinline__ float load_any(const void *p, int dtype, size_t i)
{
    if (dtype == SPEC_DTYPE_F32) return ((const float *)p)[i];
    if (dtype == SPEC_DTYPE_BF16) return to_f32(((const __nv_bfloat16 *)p)[i]);
    return to_f32(((const __half *)p)[i]);
}
__device__ __forceinline__ void store_any(void *p, int dtype, size_t i, float v)
{
    if (dtype == SPEC_DTYPE_F32) ((float *)p)[i] = v;
    else if (dtype == SPEC_DTYPE_BF16) ((__nv_bfloat16 *)p)[i] = from_f32<__nv_bfloat16>(v);
    else ((__half *)p)[i] = from_f32<__half>(v);
}
__device__ __forceinline__ float round_any(int dtype, float v)
{
    if (dtype == SPEC_DTYPE_F32) return v;
    if (dtype == SPEC_DTYPE_BF16) return to_f32(from_f32<__nv_bfloat16>(v));
    return to_f32(from_f32<__half>(v));
}

/* Two 16-bit values in a word, the lower one first. */
template <typename T> __device__ __forceinline__ float2 unpack2(uint32_t w);
template <> __device__ __forceinline__ float2 unpack2<__nv_bfloat16>(uint32_t w)
{
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack2<__half>(uint32_t w)
{
    __half2 h;
    memcpy(&h, &w, 4);
    return __half22float2(h);
}
template <typename T> __device__ __forceinline__ uint32_t pack2(float low, float high);
template <> __device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float low, float high)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t w;
    memcpy(&w, &v, 4);
    return w;
}
template <> __device__ __forceinline__ uint32_t pack2<__half>(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    uint32_t w;
    memcpy(&w, &v, 4);
    return w;
}
template <typename T> __device__ __forceinline__ uint32_t bits16(T v)
{
    uint16_t u;
    memcpy(&u, &v, 2);
    return u;
}

/* 2^x, at most 2^-22 off; 0 for -inf, and below 2^-126. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* e^x, at most 2^-22 + |x| 2^-24 off; the code is short, which for kernels that run once a layer is what counts. */
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(CUDART_L2E_F * x); }

/* cap tanh(x / cap), of scores and of logits; inverse: 1 / cap. */
__device__ __forceinline__ float soft_cap(float x, float cap, float inverse) { return cap * tanhf(x * inverse); }

/* The functions that scan, replay and every activation share. */
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + exp_fast(-x)); }
/* ln(1 + e^x) = max(x, 0) + ln(1 + e), e = e^-|x|; by the series of 2 artanh(s), s = e / (2 + e) <= 1/3, whose first term left
 * out is 2e-8 of the sum. Short and without branches, where log1p has both. */
__device__ __forceinline__ float softplus(float x)
{
    const float e = exp_fast(-fabsf(x)), s = __fdividef(e, 2.0f + e), q = s * s;
    float sum = 1.0f / 13.0f;
#pragma unroll
    for (int n = 11; n > 0; n -= 2) sum = fmaf(sum, q, 1.0f / (float)n);
    return fmaf(2.0f * s, sum, fmaxf(x, 0.0f));
}

/* Sums over a warp, every lane receiving the result; a fixed tree (addition commutes, so all lanes agree). */
__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ double warp_sum(double v)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
/* Over the block, the warps' sums by the same tree. `shared` [32]; all threads call it; whole warps only. */
template <typename F> __device__ __forceinline__ F block_sum(F v, F *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : (F)0);
    __syncthreads();
    return v;
}

#endif
