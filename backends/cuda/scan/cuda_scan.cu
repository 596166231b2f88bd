/* cuda_scan.cu - selective scan over a tree, with activation replay in front: what is done of it, and by which kernel.
 *   dt = clamp(softplus(dt_in + dt_bias), dt_min, dt_max)
 *   S(node) = exp(dt A) S(parent) + (dt x) B^T;   y = S C + D x;   out = z ? y silu(z) : y
 * S f32 [n_slot][n_head][head_dim][n_state]; x, z, y rows of n_head * head_dim (x: blocks of head_dim, shared by x_rep
 * heads), B, C rows of blocks of n_state. Sources: Mamba, eq. 2a with the authors' Euler step for B; Mamba-2; the tree
 * form of STree; activation replay of Snakes and Ladders (algorithms.md 7.2, 7.3, 8.3, 9.2, 9.3, 10.1). */
#include "backends/cuda/scan/cuda_scan.cuh"

enum { SCAN_NODE_MAX = 2048 };

static spec_status check_chunked(spec_device *dev, const spec_scan_args *a)
{
    if (a->chunk != SPEC_CHUNK || a->n_recent_max < spec_recent_capacity(1, 0))
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: chunks of %d with %d recent tokens, need %d and at least %d",
                               a->chunk, a->n_recent_max, SPEC_CHUNK, spec_recent_capacity(1, 0));
    if (a->a_per_state || a->node_state || a->n_node > SCAN_CHUNKED_NODES || a->n_recent_max > SCAN_CHUNKED_RECENT)
        return dev->host->fail(SPEC_E_UNSUPPORTED,
                               "cuda scan: the chunked form takes one decay per head, keeps no states of nodes, and "
                               "does up to %d nodes and %d recent tokens (here %d and %d)", (int)SCAN_CHUNKED_NODES,
                               (int)SCAN_CHUNKED_RECENT, a->n_node, a->n_recent_max);
    /* Types and sizes may be asked for without addresses. */
    if (a->state && (!a->recent_x || !a->recent_b || !a->recent_dt))
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: the chunked form without recent-token buffers");
    return SPEC_OK;
}

spec_status speci_cuda_check_scan(spec_device *dev, const spec_scan_args *a)
{
    if (a->n_head < 1 || a->head_dim < 1 || a->n_state < 1 || a->n_node < 1 || a->x_rep < 1 || a->b_rep < 1 ||
        a->c_rep < 1 || a->n_head % a->x_rep || a->n_head % a->b_rep || a->n_head % a->c_rep)
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: %d heads of %d, %d states, %d nodes, shared by %d, %d, %d",
                               a->n_head, a->head_dim, a->n_state, a->n_node, a->x_rep, a->b_rep, a->c_rep);
    if (a->n_state > 256 || a->n_node > SCAN_NODE_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: %d states and %d nodes, supported are 256 and %d", a->n_state,
                               a->n_node, (int)SCAN_NODE_MAX);
    if (a->chunk) SPEC_TRY(check_chunked(dev, a));
    if (!cuda_is_float(a->dtype) || !cuda_is_float(a->x.dtype) || !cuda_is_float(a->b.dtype) ||
        !cuda_is_float(a->c.dtype) || !cuda_is_float(a->dt.dtype) || (a->z.data && !cuda_is_float(a->z.dtype)) ||
        !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: x %s, B %s, C %s, dt %s, y %s, caches %s; float types only",
                               speci_dtype_name(a->x.dtype), speci_dtype_name(a->b.dtype), speci_dtype_name(a->c.dtype),
                               speci_dtype_name(a->dt.dtype), speci_dtype_name(a->y.dtype), speci_dtype_name(a->dtype));
    return SPEC_OK;
}

spec_status speci_cuda_scan(spec_queue *q, const spec_scan_args *a, cuda_pass *pass)
{
    SPEC_TRY(cuda_enter_op(q, "scan"));
    SPEC_TRY(speci_cuda_check_scan(q->dev, a));
    spec_status status = SPEC_OK;
    if (a->chunk && q->shape.phase == SPEC_PHASE_DECODE)
        return speci_cuda_scan_chunked_matrix(q, a, &status) ? status : speci_cuda_scan_chunked(q, a);
    const bool done = speci_cuda_scan_prefill(q, a, &status) || speci_cuda_scan_prefill_state(q, a, &status) ||
                      speci_cuda_scan_state(q, a, pass, &status);
    return done ? status : speci_cuda_scan_recurrent(q, a);
}
