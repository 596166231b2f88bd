/* cuda_prepare.cu - what the operations of a plan do together, and in which form rows lie between two of them: decided once, when
 * the plan is prepared, from kinds, types, sizes and addresses. Rows decide nothing here: what depends on a step's is left to the
 * launchers, whose ways all have the same bits.
 *
 * A norm is deferred (rows/cuda_norm.cuh) where nobody but products takes its rows; then its bits differ from those of its
 * operations alone. The head's inputs are there as the plan says, so the final norm never is. */
#include "backends/cuda/cuda.cuh"

/* --- who reads what --- */

enum { VIEWS = 8 };

/* The rows that an operation reads, and those that it writes; what is added to is both. Returns how many there are. */
static int views_read(const spec_op *op, spec_view v[VIEWS])
{
    int n = 0;
    const auto &u = op->u;
    switch (op->kind) {
    case SPEC_OP_NORM: v[n++] = u.norm.x, v[n++] = u.norm.gate; break;
    case SPEC_OP_LINEAR: v[n++] = u.linear.x, v[n++] = u.linear.add ? u.linear.y : spec_view{}; break;
    case SPEC_OP_ROPE_KV: v[n++] = u.rope_kv.qkv; break;
    case SPEC_OP_ATTENTION: v[n++] = u.attention.q; break;
    case SPEC_OP_CONV: v[n++] = u.conv.u, v[n++] = u.conv.gate_in, v[n++] = u.conv.gate_out; break;
    case SPEC_OP_SCAN: v[n++] = u.scan.x, v[n++] = u.scan.b, v[n++] = u.scan.c, v[n++] = u.scan.dt, v[n++] = u.scan.z; break;
    case SPEC_OP_KEEP: v[n++] = u.keep.x; break;
    case SPEC_OP_RECYCLE: v[n++] = u.recycle.x; break;
    case SPEC_OP_BIAS: v[n++] = u.bias.y; break; /* the table is no tensor of the plan */
    case SPEC_OP_GLU: v[n++] = u.glu.gate, v[n++] = u.glu.up; break;
    case SPEC_OP_EMBED: case SPEC_OP_KV_COMMIT: case SPEC_OP_N: break;
    }
    return n;
}
static spec_view view_written(const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_EMBED: return op->u.embed.y;
    case SPEC_OP_NORM: return op->u.norm.y;
    case SPEC_OP_LINEAR: return op->u.linear.y;
    case SPEC_OP_ROPE_KV: return op->u.rope_kv.qkv;
    case SPEC_OP_ATTENTION: return op->u.attention.y;
    case SPEC_OP_CONV: return op->u.conv.y;
    case SPEC_OP_SCAN: return op->u.scan.y;
    case SPEC_OP_KEEP: return op->u.keep.y;
    case SPEC_OP_RECYCLE: return op->u.recycle.y; /* of a store nothing: its cache is no tensor */
    case SPEC_OP_BIAS: return op->u.bias.y;
    case SPEC_OP_GLU: return op->u.glu.y;
    case SPEC_OP_KV_COMMIT: case SPEC_OP_N: break;
    }
    return {};
}

/* Do v's rows lie among those of y? Columns of the same rows meet, on whichever side they are. */
static bool meets(const spec_view &v, const spec_view &y, int32_t rows)
{
    const char *const begin = (const char *)y.data, *const at = (const char *)v.data;
    const ptrdiff_t row = (ptrdiff_t)y.ld * (ptrdiff_t)speci_dtype_bytes(y.dtype);
    const bool same_rows = (ptrdiff_t)v.ld * (ptrdiff_t)speci_dtype_bytes(v.dtype) == row;
    return at && at > (same_rows ? begin - row : begin - 1) && at < begin + rows * row;
}
static bool is_same(const spec_view &a, const spec_view &b) { return a.data == b.data && a.ld == b.ld && a.dtype == b.dtype; }

static bool reads(const spec_op *op, const spec_view &y, int32_t rows)
{
    spec_view v[VIEWS];
    bool any = false;
    for (int n = views_read(op, v); n > 0; n--) any = any || meets(v[n - 1], y, rows);
    return any;
}

/* Calls each(j) for the operations behind i that read what it writes, until another one writes there. False: one of them
 * returned false, or what is there is written in parts. */
template <typename F> static bool each_reader(const spec_plan *plan, int32_t i, F each)
{
    const spec_view y = view_written(&plan->ops[i]);
    for (int32_t j = i + 1; j < plan->n_op; j++) {
        const spec_view other = view_written(&plan->ops[j]);
        if (reads(&plan->ops[j], y, plan->n_row_max) && !each(j)) return false;
        if (meets(other, y, plan->n_row_max)) return other.data == y.data;
    }
    return true;
}

/* --- deferred norms --- */

static bool may_defer(const spec_plan *plan, const spec_op *op)
{
    const spec_norm_args *a = &op->u.norm;
    return plan->phase == SPEC_PHASE_DECODE && op->kind == SPEC_OP_NORM && a->kind == SPEC_NORM_RMS && a->n_group == 1 &&
           !a->bias && !(a->gate.data && a->norm_first) && a->y.dtype == SPEC_DTYPE_BF16 && a->dim % CUDA_SQUARES == 0;
}

/* Has it the norm's rows for its x, and is it worth deferring for? What is added to is as wide as the residual; else the norm's
 * input is that. */
static bool takes_deferred(const spec_op *op, const spec_norm_args *norm)
{
    const spec_linear_args *a = &op->u.linear;
    return op->kind == SPEC_OP_LINEAR && !op->head && is_same(a->x, norm->y) && a->n_in == norm->dim &&
           (a->add ? a->n_out : norm->dim) <= CUDA_DEFER;
}

/* The last product that reads the norm, if all that read it are such; else -1. */
static int32_t last_reader(const spec_plan *plan, int32_t i)
{
    int32_t last = -1;
    const bool all = each_reader(plan, i, [&](int32_t j) {
        last = j;
        return takes_deferred(&plan->ops[j], &plan->ops[i].u.norm);
    });
    return all ? last : -1;
}

static void defer_norms(const spec_queue *q, const spec_plan *plan, cuda_op *ops)
{
    /* used: a place's last reader. One kernel may be that and make the norm right behind it: it reads one place
     * while it writes the other, so the two differ. */
    int32_t used[CUDA_DEFERRED];
    for (int32_t &u : used) u = -2;
    for (int32_t i = 0; i < plan->n_op; i++) {
        const spec_norm_args *norm = &plan->ops[i].u.norm;
        int32_t place = 0;
        while (place < CUDA_DEFERRED && used[place] >= i - 1) place++;
        if (!may_defer(plan, &plan->ops[i]) || place == CUDA_DEFERRED) continue;
        const int32_t last = last_reader(plan, i);
        if (last < 0 || (size_t)plan->n_row_max * (size_t)(norm->dim / CUDA_SQUARES) > q->squares_floats) continue;
        used[place] = last;
        ops[i].squares = q->squares + (size_t)place * q->squares_floats;
        each_reader(plan, i, [&](int32_t j) {
            ops[j].squares = ops[i].squares, ops[j].eps = norm->eps;
            return true;
        });
    }
}

size_t speci_cuda_squares_floats(const spec_plan *plan)
{
    size_t n = 0;
    for (int32_t i = 0; plan->ops && i < plan->n_op; i++)
        if (may_defer(plan, &plan->ops[i])) n = max(n, (size_t)plan->n_row_max * (size_t)(plan->ops[i].u.norm.dim / CUDA_SQUARES));
    return n;
}

/* --- neighbours --- */

/* Columns of what an operation writes, where a product may read all of them. */
static int32_t columns_written(const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_NORM: return op->u.norm.dim;
    case SPEC_OP_LINEAR: return op->u.linear.glu ? op->u.linear.n_out / 2 : op->u.linear.n_out;
    case SPEC_OP_ATTENTION: return op->u.attention.n_head * op->u.attention.kv.head_dim;
    case SPEC_OP_SCAN: return op->u.scan.n_head * op->u.scan.head_dim;
    default: return 0;
    }
}

static bool is_reader(const spec_op *op, const spec_op *next)
{
    const spec_linear_args *a = &next->u.linear;
    return next->kind == SPEC_OP_LINEAR && a->w && is_same(a->x, view_written(op)) && a->n_in == columns_written(op) &&
           a->n_in % CUDA_CHUNK == 0;
}

/* May one kernel do both? A head is left alone: whether it runs is the step's. */
static const cuda_fusion *fusion_of(const spec_plan *plan, int32_t i)
{
    const spec_op *op = &plan->ops[i];
    const cuda_fusion *f = speci_cuda_fusion_of(op[0].kind, op[1].kind);
    if (!f || op[0].head || op[1].head) return NULL;
    return !f->hides || each_reader(plan, i, [&](int32_t j) { return j == i + 1; }) ? f : NULL;
}

void speci_cuda_prepare(const spec_queue *q, const spec_plan *plan, cuda_op *ops)
{
    for (int32_t i = 0; i < plan->n_op; i++) {
        const spec_op *op = &plan->ops[i];
        ops[i] = {};
        ops[i].op = *op;
        if (i + 1 == plan->n_op) continue;
        ops[i].reader = is_reader(op, op + 1) ? &ops[i + 1] : NULL;
        ops[i].fusion = fusion_of(plan, i);
    }
    defer_norms(q, plan, ops);
}
