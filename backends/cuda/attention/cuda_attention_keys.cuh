/* cuda_attention_keys.cuh - softmax attention of each row over its prefix and its ancestors in the tree, and how its kernels
 * find whom a row attends.
 *   y = sum_t softmax_t(scale q.k_t) v_t,  t in (p - window, p], p the row's position; scores perhaps under a cap
 * q f32 [rows][n_head][d]; K, V [n_page][n_kv_head][64][d]; y [rows][n_head][d]. Position t lies in slot t when
 * t < n_past, else in slot n_past + (the row's ancestor of depth t - n_past); in prefill always in slot t.
 *
 * The order of sums depends on absolute positions only, and on the type of K and V: cuda_attention_f32.cu and
 * cuda_attention_matrix.cu tell it. What is not attended (later positions, outside the window) is left out by selection.
 *
 * Whom each row attends follows from the step, and is found before a kernel waits for the pass: only q, and K and V of
 * the tree's slots, come from it. */
#ifndef SPEC_CUDA_ATTENTION_KEYS_CUH
#define SPEC_CUDA_ATTENTION_KEYS_CUH

#include "backends/cuda/attention/cuda_attention.cuh"

enum { ATT_LINKS = 512 /* nodes of larger trees */ };

/* Rows of K and V at positions [first, end), where these are of the prefix, are on their way to L2: no kernel of this pass
 * writes them. size: of an element. */
static __device__ __forceinline__ void prefetch_prefix(const spec_step_block *step, const spec_step_seq *s, const spec_kv &kv,
                                                       size_t size, int kv_head, int first, int end)
{
    const size_t bytes = (size_t)kv.head_dim * size;
    end = min(end, s->n_past);
#pragma unroll 1
    for (int t = first + (int)threadIdx.x; t < end; t += (int)blockDim.x) {
        const int page = spec_step_pages(step)[s->first_page + t / SPEC_PAGE];
        const size_t row = ((size_t)page * kv.n_kv_head + kv_head) * SPEC_PAGE + t % SPEC_PAGE;
#pragma unroll 1
        for (size_t at = row * bytes; at < (row + 1) * bytes; at += 128) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)kv.k + at));
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)kv.v + at));
        }
    }
}

/* Parent and depth of the nodes of `tree` up to the one of row `last`, where they are not too many: returns how many there
 * are in `link` for what follows a barrier. Parents come first. */
static __device__ __forceinline__ int load_links(const spec_step_block *step, const spec_step_seq *tree, int last, short2 *link)
{
    const spec_step_node *node = spec_step_nodes(step) + tree->first_node;
    const int n_link = min(tree->n_fed + last + 1 - tree->first_row, tree->n_fed + tree->n_row);
    if (n_link > ATT_LINKS) return 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n_link; i += (int)blockDim.x)
        link[i] = make_short2((short)node[i].parent, (short)node[i].depth);
    return n_link;
}

/* ancestor[depth] = the node of that depth on the path of row `row` of sequence `s`. A walk of dependent loads: through shared
 * memory if links are there. */
static __device__ __forceinline__ void walk_ancestors(const spec_step_block *step, const spec_step_seq *s, int row, int n_link,
                                                      const short2 *link, short *ancestor)
{
    const spec_step_node *node = spec_step_nodes(step) + s->first_node;
    for (int i = s->n_fed + row - s->first_row; i >= 0;) {
        const int depth = n_link ? link[i].y : node[i].depth, parent = n_link ? link[i].x : node[i].parent;
        if (depth <= SPEC_MAX_DEPTH) ancestor[depth] = (short)i;
        i = parent;
    }
}

/* Of rows row0 + i, i < n, by thread i, which names the row's sequence (NULL: no such row); `tree`: the one that all rows
 * are of, else NULL. */
static __device__ __forceinline__ void find_ancestors(const spec_step_block *step, const spec_step_seq *mine,
                                                      const spec_step_seq *tree, int row0, int n, short2 *link,
                                                      short (*ancestor)[SPEC_MAX_DEPTH + 1])
{
    const int tid = (int)threadIdx.x, n_link = tree ? load_links(step, tree, row0 + n - 1, link) : 0;
    __syncthreads();
    if (tid < n && mine) walk_ancestors(step, mine, row0 + tid, n_link, link, ancestor[tid]);
}

#endif
