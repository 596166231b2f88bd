/* cpu.h - inside the CPU backend: devices, queues, weights, and the tables of kernels that a device chooses from.
 *
 * Two things depend on the instruction set, and each is a table chosen once, when the device opens:
 *   cpu_isa    the few-row product, written by hand per instruction set (each has its own order of rounding);
 *   cpu_loops  every other inner loop: one source (cpu_loops.h, whose parts are cpu_loops_*.h), compiled per
 *              instruction set. It has no contraction and a written order of summation, hence the same
 *              bits whichever way it was compiled.
 *
 * Flags per file (x86-64; elsewhere these files compile to nothing): all files -ffp-contract=off; besides
 *   *_avx2.c        -mavx2 -mfma -mf16c
 *   *_avx512.c      -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
 *   *_avx512bf16.c  the same and -mavx512bf16
 *   *_amx.c         the same and -mamx-tile -mamx-bf16
 * The loops gain from -O3. */
#ifndef SPEC_CPU_H
#define SPEC_CPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backends/spec_backend.h"
#include "core/core_dtype.h"

#if defined(__x86_64__) && !defined(SPEC_CPU_PORTABLE_ONLY)
#define CPU_X86 1
#else
#define CPU_X86 0
#endif
#if CPU_X86 && defined(SPEC_HAVE_AMX) /* the compiler knows it */
#define CPU_AMX 1
#else
#define CPU_AMX 0
#endif

#define CPU_TRY(call)                                                                              \
    do {                                                                                           \
        spec_status try_status_ = (call);                                                          \
        if (try_status_ != SPEC_OK) return try_status_;                                            \
    } while (0)

/* ------------------------------------------------------------------------- products (cpu_isa) --- */

/* A weight lies in panels of 32 outputs: [n_panel][n_k][32], or, where two 16-bit values are multiplied at once,
 * or converted at once, [n_panel][n_k / 2][32][2]. A product walks a panel from its start to its end: one stream of memory, and no
 * sum across lanes. K is summed in blocks of 256: within a block one chain k = 0, 1, ..., then the blocks in order.
 * Both orders are the same for every number of rows, which is what path invariance asks. (Matrix tiles have an order of their own:
 * cpu_linear_amx.c.)
 * Of Q8_0, panels are [n_k / 32] cpu_q8_panel; the blocks of K are of 32, and a block's sum is times the scale. Of other blocks they
 * are what cpu_block_scales says; cpu_blocks_fn says how they are summed. */
enum { CPU_PREFILL_CHUNK = 64 };
enum { CPU_PANEL = 32, CPU_TASK_PANELS = 2, CPU_TASK_OUT = 64, CPU_K_BLOCK = 256, CPU_ROW_BLOCK = 64,
       CPU_FEW = 2 /* rows of two tasks done together; of blocks whose numbers stay in registers */ };

enum { CPU_STATE_MAX = 1024 /* values of a row of a state */, CPU_FORMATS = 16 /* values of spec_dtype, with room */ };

/* Value (k, o) is scale[o] q[k][o]. */
typedef struct cpu_q8_panel {
    int8_t q[SPEC_Q8_BLOCK][CPU_PANEL];
    uint16_t scale[CPU_PANEL]; /* f16 */
} cpu_q8_panel;

/* t[r][o] = (add ? t[r][o] : 0) + sum_k x[r][k] w[k][o]   for r < n_row <= CPU_ROW_BLOCK, k < n_k <= CPU_K_BLOCK
 * t [n_row][CPU_TASK_OUT]; panel j's outputs are columns 32 j ..; x rows are ldx elements apart; j < n_panel <= 2.
 * next: where the weights are that will be multiplied after these, in as many panels; they may be asked for. */
typedef void cpu_product_fn(float *t, const void *w, size_t panel_bytes, int32_t n_panel, const void *next, const void *x,
                            size_t ldx, int32_t n_row, int32_t n_k, bool add);

/* How far ahead in a panel weights are asked for: bytes; blocks of Q8_0, which are as many. */
enum { CPU_NEAR_BYTES = 4096, CPU_NEAR_BLOCKS = 4 };

/* That block, at block i of n from w on. */
static inline const cpu_q8_panel *cpu_q8_near(const cpu_q8_panel *w, const cpu_q8_panel *next, int32_t i, int32_t n)
{
    return i + CPU_NEAR_BLOCKS < n ? w + i + CPU_NEAR_BLOCKS : next + (i + CPU_NEAR_BLOCKS - n);
}

/* Of other blocks (spec_block_form), a panel's block is, of 32 lanes each: d; m if there is one; f [n_f], with m also fm [n_f], bytes;
 * then of each group of 32 inputs low [4], words of the low four bits of eight numbers, and high [n_high], words of the other bits of
 * 32 / n_high. The lower half of a word has the even inputs, the upper one the odd, both ascending from the lowest bit: so a shift
 * brings pairs of inputs to places in pairs of 16 bits. */
static inline size_t cpu_block_scales(const spec_block_form *f) /* bytes in front of the groups */
{
    return (size_t)(CPU_PANEL * (2 + f->n_f) * (1 + f->has_m));
}
static inline size_t cpu_block_group(const spec_block_form *f) { return (size_t)(CPU_PANEL * 4 * (4 + f->n_high)); }
/* Where number k of a group is in its word, k / 8 of low, k n_high / 32 of high. */
static inline int cpu_low_shift(int k) { return k % 8 / 2 * 4 + k % 2 * 16; }
static inline int cpu_high_shift(int k, int n_high) { return k % (32 / n_high) / 2 * n_high + k % 2 * 16; }

typedef struct cpu_loops cpu_loops; /* below */

/* What weights can be made of: a row each (cpu_format.c). Of K a block takes `block` inputs, which lie together. */
typedef struct cpu_format {
    spec_dtype dtype;
    bool rounds;              /* a 16-bit compute type takes it rounded to itself; else it is kept */
    int32_t block;            /* n_in is a multiple of it */
    size_t source_bytes;      /* of a block in a row of the parts */
    size_t panel_bytes;       /* of a block in a panel */
    /* A panel of w, zero before, from the rows of its lanes, which are of `type`; NULL: stays zero. */
    void (*pack)(const spec_weight *w, uint8_t *panel, const uint8_t *const src[CPU_PANEL], spec_dtype type);
    /* A lane as float32 [n_in]; and inputs [k0, k0 + n_k) of all lanes, multiples of CPU_K_BLOCK but the last: out [n_k][ld]. */
    void (*row)(const spec_weight *w, const uint8_t *panel, size_t lane, float *out);
    void (*unpack)(const spec_weight *w, const cpu_loops *loops, const uint8_t *panel, int32_t k0, int32_t n_k, float *out,
                   size_t ld);
    /* Of blocks other than Q8_0 (cpu_format_blocks.c); else NULL. */
    const spec_block_form *form;
    void (*parts)(spec_block_parts *to, const void *block);
} cpu_format;
extern const cpu_format speci_cpu_format_f32, speci_cpu_format_bf16, speci_cpu_format_f16, speci_cpu_format_q8_0;
extern const cpu_format speci_cpu_format_q4_0, speci_cpu_format_q4_1, speci_cpu_format_q5_0, speci_cpu_format_q5_1,
    speci_cpu_format_q4_k, speci_cpu_format_q5_k, speci_cpu_format_q6_k;
const cpu_format *speci_cpu_format_of(spec_dtype dtype); /* or NULL */

/* t = x w of weights in blocks, where the compute type has 16 bits: of each group of inputs that share a scale, 32 or, of Q6_K, 16,
 *   t = t + (d f) sum of (q - o) x,  then with a minimum  t = t + m' sum of x,  m' = m or -(m fm)   (spec_blocks.h)
 * both fused multiply-adds (portable: not fused), the groups in order, t 0 at first. q - o is exact in either type, so no weight is
 * rounded. The sum of (q - o) x begins at zero: one chain, or that of the instruction. All of K of n_panel panels; t
 * [n_row][CPU_TASK_OUT] */
typedef struct cpu_blocks_x {
    const void *x;       /* [n_row][ldx], float32 or bf16 */
    size_t ldx;
    const float *sum;    /* [n_row][n_k / 32], of each 32 inputs; NULL where there is no minimum */
} cpu_blocks_x;
typedef void cpu_blocks_fn(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel,
                           const cpu_blocks_x *x, int32_t n_row, int32_t n_k);

/* t (as cpu_product_fn has it) of blocks' values in float32, of up to CPU_FEW rows, x in float32 */
typedef void cpu_values_fn(float *t, const spec_block_form *form, const uint8_t *w, size_t panel_bytes, int32_t n_panel, const float *x,
                           size_t ldx, int32_t n_row, int32_t n_k, bool add);

typedef struct cpu_isa {
    const char *name;
    bool (*supported)(void);
    bool (*preferred)(void);          /* NULL = where supported; else whether to take it unasked */
    cpu_product_fn *product[CPU_FORMATS]; /* by the format of w; x is f32. NULL = the portable one */
    cpu_product_fn *product_bf16[CPU_FORMATS]; /* likewise where activations are bf16, as x is; NULL = product */
    /* Around the products of up to CPU_ROW_BLOCK rows by one thread. NULL = nothing to do */
    void (*enter)(const spec_weight *w, int32_t n_row);
    void (*leave)(void);
    cpu_product_fn *bf16_pairs;       /* w in pairs; NULL = no pairs */
    cpu_product_fn *pairs_two;        /* likewise, of the four panels of two tasks and up to CPU_FEW rows: t [2][n_row][CPU_TASK_OUT].
                                         More of memory is then on its way at once. NULL = one task after the other */
    spec_dtype pairs_x;               /* the type of x that bf16_pairs reads */
    cpu_blocks_fn *blocks;            /* x is f32. NULL = the portable one */
    cpu_blocks_fn *blocks_bf16;       /* likewise where activations are bf16, as x is; NULL = blocks */
    cpu_values_fn *values_few;        /* of few rows, unpacked in registers, where activations are float32. NULL = unpacked to memory */
    bool blas_prefill;                /* OpenBLAS, where it is there, is faster in prefill passes */
    const cpu_loops *loops;
} cpu_isa;

extern const cpu_isa speci_cpu_isa_portable; /* always there */
#if CPU_X86
extern const cpu_isa speci_cpu_isa_avx2, speci_cpu_isa_avx512, speci_cpu_isa_avx512bf16, speci_cpu_isa_amx;
cpu_product_fn speci_cpu_avx512_f32, speci_cpu_avx512_bf16, speci_cpu_avx512_f16, speci_cpu_avx512_q8_0; /* of those with AVX-512 */
cpu_blocks_fn speci_cpu_avx512_blocks;
#endif

/* ----------------------------------------------------------------------------- other inner loops --- */

/* Softmax attention in progress: m the largest score so far, l the sum of exp(score - m), o [d] the weighted values. */
typedef struct cpu_attend {
    float m, l;
    float *o;
} cpu_attend;

enum { CPU_RUN = 8 /* heads that a task of the chunked scan has at most */ };

/* What a chunk of tokens does to the rows of one head: s = e s + sum over j, ascending, of (u[j] x[j]) b[j]. */
typedef struct cpu_chunk {
    float e, u[SPEC_CHUNK];
    const float *x[SPEC_CHUNK]; /* [n_row] */
    const float *b[SPEC_CHUNK]; /* [n_state] */
} cpu_chunk;

/* What a path's near tokens add to an output: y = e y + sum over j, ascending, of w[j * CPU_RUN] x[token[j]]. */
typedef struct cpu_recall {
    float *y, e;
    const float *w;
    const int32_t *token;
    size_t n_token;
} cpu_recall;

struct cpu_loops {
    /* n values to and from float32; storing rounds to nearest even */
    void (*load)(float *out, const void *in, spec_dtype dtype, size_t n);
    void (*store)(void *out, spec_dtype dtype, const float *in, size_t n);
    /* The first n_k inputs of a panel's blocks, whole groups, rounded to `type`: out [n_k][ld], 32 columns */
    void (*unpack)(float *out, size_t ld, spec_dtype type, const spec_block_form *form, const uint8_t *panel, int32_t n_k);
    /* The sums of each 32 of n values of a type */
    void (*group_sums)(float *out, const void *x, spec_dtype dtype, size_t n);
    /* t = act(t), of a product that `scale` then multiplies */
    void (*activate)(float *t, spec_activation act, float scale, size_t n);
    /* One row of spec_norm_args; y is f32. gate may be NULL */
    void (*norm)(const spec_norm_args *a, float *y, const float *x, const float *gate);
    /* y = x * rsqrt(mean(x^2) + eps) * weight */
    void (*rms)(float *y, const float *x, const float *weight, float eps, size_t n);
    /* n <= SPEC_PAGE keys and values, in position order and of dtype (f32 or bf16), join the softmax of q [d]; cap 0 = none */
    void (*attend)(cpu_attend *s, const float *q, const void *const *k, const void *const *v, spec_dtype dtype, int32_t n, size_t d,
                   float scale, float cap);
    /* y[c] = silu(bias[c] + sum_k w[k][c] u[k][c]), oldest tap first */
    void (*conv)(float *y, const float *bias, const float *const *w, const float *const *u, int32_t width, bool silu,
                 size_t n);
    /* dt = clamp(softplus(in + bias), lo, hi) */
    void (*dt)(float *dt, const float *in, const float *bias, float lo, float hi, size_t n);
    /* n_row rows: s = exp(dt a) from + dt x b^T, then y = s c unless y is NULL. s is put `to` (`from` itself, or NULL:
     * nowhere). from, to [n_row][n_state], n_state <= CPU_STATE_MAX. Of one head, dt [1], a [1] or with a_per_state
     * [n_state]; of `heads` of one row each dt [n_row], a [n_row][n_state] */
    void (*scan)(float *to, const float *from, float *y, const float *x, size_t n_row, size_t n_state, const float *dt,
                 const float *a, bool a_per_state, bool heads, const float *b, const float *c);
    /* The chunked scan. decay = exp(dt a) of n tokens: dt, decay [n][CPU_RUN], a [CPU_RUN] */
    void (*decays)(float *decay, const float *dt, const float *a, size_t n);
    /* A path of n tokens: token[j] is where dt and decay [][CPU_RUN] have its j-th. From the last to the first, for
     * each head, w[j] = p dt cb[j] and p = p decay, p = 1 at first and e in the end. cb NULL: ones. w [n][CPU_RUN] */
    void (*weights)(float *w, float *e, const float *dt, const float *decay, const int32_t *token, const float *cb,
                    size_t n);
    /* n_row rows of one head, through a chunk */
    void (*fold)(float *to, const float *from, size_t n_row, size_t n_state, const cpu_chunk *chunk);
    /* y[i][r] = c[i] s[r]: c [n][n_state], s [n_row][n_state], y [n][ldy]. As many rows from `soon` on come into the
     * cache meanwhile; NULL: none */
    void (*products)(float *y, size_t ldy, const float *c, size_t n, const float *s, size_t n_row, size_t n_state,
                     const float *soon);
    /* n outputs of one head; x [][n_value]. The first n_shared tokens of all of them are the same. */
    void (*recall)(const cpu_recall *r, size_t n, size_t n_shared, const float *x, size_t n_value);
    /* y = y + d x, gated: y = (y + d x) silu(z). d [1], with `heads` [n] */
    void (*scan_out)(float *y, const float *d, bool heads, const float *x, const float *z, size_t n);
    /* the largest value, NaN left out; -inf for none */
    float (*max)(const float *v, size_t n);
    /* e[i] = exp((v[i] - m) / t), 0 for NaN; returns the sum. e may be NULL */
    double (*exps)(float *e, const float *v, float m, float t, size_t n);
    /* v = v * f */
    void (*scale)(float *v, float f, size_t n);
};

extern const cpu_loops speci_cpu_loops_portable;
#if CPU_X86
extern const cpu_loops speci_cpu_loops_avx2, speci_cpu_loops_avx512;
#endif

/* -------------------------------------------------------------------------------------- threads --- */

typedef struct cpu_pool cpu_pool;
typedef void cpu_task_fn(void *arg, int32_t i);

spec_status speci_cpu_pool_open(cpu_pool **out, const spec_host *host);
void speci_cpu_pool_close(cpu_pool *pool);
/* Runs body(arg, i) for all i in [0, n), in any order, on at most host->n_threads threads; returns when all are done.
 * Tasks run with round-to-nearest and without flushing to zero; the caller's modes are restored. A second caller,
 * while the pool is busy, runs its tasks by itself. */
void speci_cpu_parallel(cpu_pool *pool, int32_t n, cpu_task_fn *body, void *arg);

/* -------------------------------------------------------------------------------------- objects --- */

typedef struct cpu_blas cpu_blas;

struct spec_device {
    const spec_host *host;
    const cpu_isa *isa;
    const cpu_loops *loops;
    cpu_pool *pool;
    cpu_blas *blas; /* NULL: there is none, or the own kernels are as fast */
};

struct spec_weight {
    int32_t n_out, n_in;
    int32_t glu;
    int32_t n_panel;     /* with glu: gate panel 0, up panel 0, gate panel 1, ... */
    int32_t n_k;         /* n_in, made even for pairs */
    bool pairs;               /* what is multiplied lies in pairs */
    const cpu_format *format; /* as stored */
    spec_dtype compute;
    size_t panel_bytes;
    uint8_t *data;
};

struct spec_queue {
    spec_device *dev;
    spec_step_block *step; /* the step that is bound; its n_row_run is 0 before the first */
    size_t step_cap;
    /* scratch of tasks: n_slot pieces, each taken by one task at a time */
    uint8_t *scratch;
    size_t slot_bytes;
    int32_t n_slot;
    atomic_int *slot_taken; /* [n_slot] */
    size_t row_vocab;       /* columns that a slot has room for in row operations */
    /* x of a product as f32 (speci_cpu_x_f32) */
    float *x;
    size_t x_n; /* floats */
};

uint8_t *speci_cpu_scratch_take(spec_queue *q);
void speci_cpu_scratch_give(spec_queue *q, uint8_t *p);
/* Bytes of one slot for rows of n_vocab columns; for keys, values and sums of attention; for the states that a scan keeps. */
size_t speci_cpu_rows_scratch(size_t n_vocab);
size_t speci_cpu_attention_scratch(const spec_attention_args *a);
size_t speci_cpu_scan_scratch(const spec_scan_args *a);

/* ------------------------------------------------------------------------------------ operations --- */

spec_status speci_cpu_open(spec_device **out, const spec_host *host, const char *arg);
void speci_cpu_close(spec_device *dev);
spec_status speci_cpu_info(spec_device *dev, spec_device_info *out);
spec_status speci_cpu_list(const spec_host *host, void (*each)(void *, const char *, const char *), void *user);
spec_status speci_cpu_alloc(spec_device *dev, void **out, size_t bytes);
void speci_cpu_free(spec_device *dev, void *aligned, size_t bytes);
spec_status speci_cpu_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab);
size_t speci_cpu_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab);
void speci_cpu_queue_close(spec_queue *q);
spec_status speci_cpu_transfer(spec_queue *q, void *dst, const void *src, size_t bytes);
spec_status speci_cpu_copy(spec_queue *q, const spec_range_copy *range, int32_t n);
spec_status speci_cpu_zero(spec_queue *q, const spec_range *range, int32_t n);
spec_status speci_cpu_sync(spec_queue *q);
spec_status speci_cpu_step_bind(spec_queue *q, const spec_step_block *block);

void speci_cpu_run_tasks(spec_device *dev, int32_t n, cpu_task_fn *body, void *arg); /* of the library */

size_t speci_cpu_weight_bytes(spec_device *dev, const spec_weight_desc *desc);
spec_status speci_cpu_weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc);
void speci_cpu_weight_close(spec_device *dev, spec_weight *w);
/* Where a panel's inputs from k0 on begin, k0 a multiple of CPU_K_BLOCK: bytes. */
size_t speci_cpu_weight_offset(const spec_weight *w, int32_t k0);
/* The type whose product multiplies it, unless it is one of pairs: blocks become float32, where activations are. */
static inline spec_dtype cpu_weight_type(const spec_weight *w) { return w->format->form ? SPEC_DTYPE_F32 : w->format->dtype; }
/* Row `row` of a matrix without glu as float32 [n_in]. */
void speci_cpu_weight_row(const spec_weight *w, int32_t row, float *out);
/* Panel p from input k0 on: out [n_k][ld] float32, columns 0 .. 31. */
void speci_cpu_weight_panel(const spec_weight *w, const cpu_loops *loops, int32_t p, int32_t k0, int32_t n_k,
                            float *out, size_t ld);

spec_status speci_cpu_embed(spec_queue *q, const spec_op *op);
spec_status speci_cpu_norm(spec_queue *q, const spec_op *op);
spec_status speci_cpu_linear(spec_queue *q, const spec_op *op);
spec_status speci_cpu_kv_commit(spec_queue *q, const spec_op *op);
spec_status speci_cpu_rope_kv(spec_queue *q, const spec_op *op);
spec_status speci_cpu_attention(spec_queue *q, const spec_op *op);
spec_status speci_cpu_conv(spec_queue *q, const spec_op *op);
spec_status speci_cpu_scan(spec_queue *q, const spec_op *op);
spec_status speci_cpu_keep(spec_queue *q, const spec_op *op);
spec_status speci_cpu_recycle(spec_queue *q, const spec_op *op);
spec_status speci_cpu_bias(spec_queue *q, const spec_op *op);
spec_status speci_cpu_glu(spec_queue *q, const spec_op *op);
spec_status speci_cpu_argmax(spec_queue *q, const spec_argmax_args *a);
spec_status speci_cpu_adjust(spec_queue *q, const spec_adjust_args *a);
spec_status speci_cpu_gather(spec_queue *q, const spec_gather_args *a);
spec_status speci_cpu_probs(spec_queue *q, const spec_probs_args *a);
spec_status speci_cpu_accept(spec_queue *q, const spec_accept_args *a);
spec_status speci_cpu_accept_tree(spec_queue *q, const spec_accept_tree_args *a);
spec_status speci_cpu_logprob(spec_queue *q, const spec_logprob_args *a);
spec_status speci_cpu_draw(spec_queue *q, const spec_draw_args *a);
spec_status speci_cpu_expand(spec_queue *q, const spec_expand_args *a);

/* Whether the device supports an operation; each operation asks first. */
spec_status speci_cpu_check_embed(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_norm(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_linear(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_kv_commit(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_rope_kv(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_attention(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_conv(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_scan(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_keep(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_recycle(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_bias(spec_device *dev, const spec_op *op);
spec_status speci_cpu_check_glu(spec_device *dev, const spec_op *op);

/* The epilogue of a product: t [n_row][CPU_TASK_OUT], outputs of task `task`, rows first_row .. */
void speci_cpu_linear_store(const spec_device *dev, const spec_linear_args *a, float *t, int32_t task,
                            int32_t first_row, int32_t n_row);
/* x as float32: as it is, or a copy in the queue, if that has room for it (until the queue's next product). */
bool speci_cpu_x_has_room(const spec_queue *q, const spec_linear_args *a);
spec_view speci_cpu_x_f32(spec_queue *q, const spec_linear_args *a);
/* What a product of blocks reads of rows [first, first + n_row), as float32 or where it is; and how many rows the queue has room for. */
cpu_blocks_x speci_cpu_x_blocks(spec_queue *q, const spec_linear_args *a, int32_t first, int32_t n_row, bool as_f32);
int32_t speci_cpu_x_blocks_rows(const spec_queue *q, const spec_linear_args *a, bool as_f32);
#if defined(SPEC_HAVE_BLAS)
/* The same product through OpenBLAS (prefill passes only). */
bool speci_cpu_prefill_wanted(const spec_queue *q, const spec_linear_args *a);
spec_status speci_cpu_prefill(spec_queue *q, const spec_linear_args *a);
size_t speci_cpu_prefill_scratch(void); /* bytes of a slot */
void speci_cpu_blas_open(spec_device *dev);  /* fills dev->blas where kernels ask for it */
void speci_cpu_blas_close(spec_device *dev);
#else
static inline size_t speci_cpu_prefill_scratch(void) { return 0; }
#endif

/* Rows that token-wise operations compute. Rows that are not valid matter to library products only, which keep to one
 * number of rows. */
static inline int32_t cpu_rows(const spec_queue *q)
{
    const bool padded = q->step->phase == SPEC_PHASE_PREFILL && q->dev->isa->blas_prefill;
    return padded ? q->step->n_row_run : q->step->n_row;
}

extern const spec_backend_ops speci_cpu_ops; /* the table */

/* ----------------------------------------------------------------------------------------- small --- */

static inline bool cpu_is_float(spec_dtype t)
{
    return t == SPEC_DTYPE_F32 || t == SPEC_DTYPE_BF16 || t == SPEC_DTYPE_F16;
}

/* Element (row, col) of a view. */
static inline void *cpu_at(const spec_view *v, int32_t row, int32_t col)
{
    return (char *)v->data + ((size_t)row * (size_t)v->ld + (size_t)col) * speci_dtype_bytes(v->dtype);
}

/* Element i of an array of type t. */
static inline void *cpu_item(const void *base, spec_dtype t, size_t i)
{
    return (char *)(uintptr_t)base + i * speci_dtype_bytes(t);
}

static inline int32_t cpu_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t cpu_max(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Of two float types a value is converted to or from float32, or kept. */
static inline bool cpu_converts(spec_dtype to, spec_dtype from)
{
    return cpu_is_float(to) && cpu_is_float(from) && (to == from || to == SPEC_DTYPE_F32 || from == SPEC_DTYPE_F32);
}

/* y = x, n values; y may be x itself */
static inline void cpu_convert(const cpu_loops *loops, void *y, spec_dtype to, const void *x, spec_dtype from, size_t n)
{
    if (x == y) return;
    if (to == from) memcpy(y, x, n * speci_dtype_bytes(from));
    else if (from == SPEC_DTYPE_F32) loops->store(y, to, x, n);
    else loops->load(y, x, from, n);
}

/* ceil(a / b) */
static inline int32_t cpu_parts(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

#endif
