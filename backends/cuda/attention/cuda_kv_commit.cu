/* cuda_kv_commit.cu - the accepted path's K and V move to the front of the tree's slots, in every layer:
 * for j ascending, slot base + path[j] -> slot base + j, base = n_past - n_replay.
 * In place: path[j] >= j, so what a step writes (slot j) no later step reads (slots path[j'] > j); a thread owns its
 * bytes of all slots and takes the steps in order, reading a few ahead. The embedding comes next: it lets no other kernel begin
 * before all are moved, so attention may read slots of earlier passes before it waits. */
#include "backends/cuda/cuda.cuh"
#include "backends/cuda/cuda_tuning.h"

enum { COMMIT_LAYERS = 64, COMMIT_AHEAD = 8 };
struct commit_layers { /* by value: a captured graph holds it */
    void *cache[COMMIT_LAYERS][2];
};

/* Unit: the type in which bytes are moved. n_unit: units per head and slot. */
template <typename Unit>
static __global__ void kv_commit_kernel(const spec_step_block *step, commit_layers layers, int n_kv_head, int n_unit)
{
    grid_wait(); /* before the release, as in cuda_embed.cu */
    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return;
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.y];
    if (s.n_replay <= 0) return;
    const int32_t *path = spec_step_paths(step) + s.first_path;
    if (path[s.n_replay - 1] == s.n_replay - 1) return; /* ascending and ends in place: all are in place */
    const int32_t *page = spec_step_pages(step) + s.first_page;
    const int base = s.n_past - s.n_replay;
    Unit *cache = (Unit *)layers.cache[blockIdx.z / 2][blockIdx.z % 2];
    const int n = n_kv_head * n_unit;
    for (int e = (int)(blockIdx.x * blockDim.x + threadIdx.x); e < n; e += (int)(gridDim.x * blockDim.x)) {
        const int h = e / n_unit, c = e % n_unit;
        for (int j0 = 0; j0 < s.n_replay; j0 += COMMIT_AHEAD) {
            Unit v[COMMIT_AHEAD];
#pragma unroll
            for (int i = 0; i < COMMIT_AHEAD; i++)
                if (j0 + i < s.n_replay) {
                    const int from = base + path[j0 + i];
                    v[i] = cache[(((size_t)page[from / SPEC_PAGE] * n_kv_head + h) * SPEC_PAGE + from % SPEC_PAGE) *
                                     n_unit + c];
                }
#pragma unroll
            for (int i = 0; i < COMMIT_AHEAD; i++)
                if (j0 + i < s.n_replay && path[j0 + i] != j0 + i) {
                    const int to = base + j0 + i;
                    cache[(((size_t)page[to / SPEC_PAGE] * n_kv_head + h) * SPEC_PAGE + to % SPEC_PAGE) * n_unit + c] =
                        v[i];
                }
        }
    }
}

spec_status speci_cuda_check_kv_commit(spec_device *dev, const spec_kv_commit_args *a)
{
    if (a->n_layer < 0 || (a->n_layer > 0 && !a->layers))
        return dev->host->fail(SPEC_E_INVALID, "cuda kv_commit: %d layers", a->n_layer);
    for (int i = 0; i < a->n_layer; i++) {
        const spec_kv *kv = &a->layers[i];
        if (!cuda_is_float(kv->dtype) || kv->n_kv_head < 1 || kv->head_dim < 1)
            return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda kv_commit: layer %d: %d heads of %d", i, kv->n_kv_head,
                                   kv->head_dim);
    }
    return SPEC_OK;
}

spec_status speci_cuda_kv_commit(spec_queue *q, const spec_kv_commit_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "kv_commit"));
    SPEC_TRY(speci_cuda_check_kv_commit(q->dev, a));
    if (!q->shape.moves) return SPEC_OK;
    /* One launch per run of layers of one geometry. */
    for (int first = 0; first < a->n_layer;) {
        const spec_kv *kv = &a->layers[first];
        const size_t head_bytes = (size_t)kv->head_dim * speci_dtype_bytes(kv->dtype);
        commit_layers layers;
        int unit = head_bytes % 16 == 0 ? 16 : (int)speci_dtype_bytes(kv->dtype); /* bytes moved at once */
        int n = 0;
        for (; n < COMMIT_LAYERS && first + n < a->n_layer; n++) {
            const spec_kv *next = kv + n;
            if (next->dtype != kv->dtype || next->n_kv_head != kv->n_kv_head || next->head_dim != kv->head_dim) break;
            layers.cache[n][0] = next->k, layers.cache[n][1] = next->v;
            if (!cuda_aligned(next->k, 16) || !cuda_aligned(next->v, 16)) unit = (int)speci_dtype_bytes(kv->dtype);
        }
        const int n_unit = (int)(head_bytes / (size_t)unit), threads = 128;
        int blocks = cuda_div_up((int64_t)kv->n_kv_head * n_unit, threads);
        if (blocks > cuda_tuning_of(q->dev).commit_blocks) blocks = cuda_tuning_of(q->dev).commit_blocks;
        const dim3 grid((unsigned)blocks, (unsigned)q->shape.seqs, (unsigned)(2 * n));
        auto *kernel = unit == 16  ? kv_commit_kernel<uint4>
                       : unit == 4 ? kv_commit_kernel<uint32_t>
                                   : kv_commit_kernel<uint16_t>;
        SPEC_TRY(cuda_launch(q, "kv_commit", kernel, grid, dim3(threads), 0, 1, q->d_step, layers, kv->n_kv_head, n_unit));
        first += n;
    }
    return SPEC_OK;
}
