/* cuda_linear_arrange.cu - which products take their rows in an order of their own, and where these are written so
 * (cuda_linear.cuh). */
#include "backends/cuda/linear/cuda_linear.cuh"

/* Floats of x in the order that a product of so many rows reads. */
static size_t order_floats(const spec_linear_args *a, int rows)
{
    const int block = rows > LINEAR_NEVER_MANY ? (int)SLAB_ROWS : (int)TILE_ROWS;
    return (size_t)cuda_div_up(rows, block) * block * (size_t)cuda_chunks(a->n_in) * CUDA_CHUNK / 2;
}

bool speci_cuda_is_many(const spec_queue *q, const cuda_linear_args *a)
{
    const linear_format *const other = a->w->format->products;
    /* The queue was opened for the operation, or it does without scratch. */
    return cuda_has_large_blocks(q->dev) && speci_dtype_bytes(a->x.dtype) == 2 &&
           (other ? other->is_many(q, a) : q->shape.rows > LINEAR_FEW) &&
           q->linear_floats >= order_floats(a, q->n_row_run);
}

size_t speci_cuda_arranged_floats(const spec_linear_args *a, const spec_plan *plan)
{
    const bool some = plan->phase == SPEC_PHASE_DECODE && speci_dtype_bytes(a->x.dtype) == 2 && plan->n_row_max >= TILE_LEAST;
    return some ? order_floats(a, plan->n_row_max) : 0;
}

/* The order in which the product reads x. */
static linear_order order_for(const spec_queue *q, const cuda_linear_args *a)
{
    const int rows = q->shape.rows;
    if (q->shape.phase != SPEC_PHASE_DECODE) return ORDER_ROWS;
    if (speci_cuda_is_many(q, a)) return ORDER_SLABS;
    const bool tiles = rows >= TILE_LEAST && rows <= TILE_MOST && linear_has_whole(q, a) && !speci_cuda_is_part(q, a, true);
    return tiles ? ORDER_TILES : ORDER_ROWS;
}

uint16_t *speci_cuda_arranged_for(const spec_queue *q, cuda_pass *pass, linear_order order, const uint16_t *read)
{
    if (!pass->reader) return NULL;
    const cuda_linear_args next = cuda_linear_of(pass->reader);
    const int other = read == q->arranged[0];
    if (q->arranged_floats[other] < order_floats(&next, q->n_row_run)) return NULL;
    const linear_order wanted = order_for(q, &next);
    if (wanted == ORDER_ROWS || (order != ORDER_ROWS && order != wanted)) return NULL;
    pass->out = { next.x.data, q->arranged[other], wanted };
    return pass->out.at;
}
