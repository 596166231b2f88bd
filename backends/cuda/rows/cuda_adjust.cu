/* cuda_adjust.cu - logits that a request changes (spec_adjust_args): a block per row copies it, then writes the entries that are
 * edited, then what its mask forbids. What it does to an entry are the operations of the host's form, so results are equal bit for
 * bit. A row is read and written once: 2 x 4 bytes an entry, beside which edits are few. */
#include "backends/cuda/cuda.cuh"

enum { ADJUST_THREADS = 512 };

static __device__ __forceinline__ void edit(float *out, const float *logits, const spec_logit_edit *edits, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const spec_logit_edit e = edits[i];
        const float x = logits[e.token];
        out[e.token] = (x > 0.0f ? x / e.repeat : x * e.repeat) + e.add;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(ADJUST_THREADS)
adjust_kernel(const float *logits, float *out, int ld, int n_vocab, const spec_adjust_row *rows, const spec_logit_edit *edits,
              const uint32_t *masks, int n_word)
{
    const spec_adjust_row row = rows[blockIdx.x];
    const float *const x = logits + (size_t)row.src * ld;
    float *const y = out + (size_t)row.dst * ld;
    for (int i = (int)threadIdx.x; i < n_vocab; i += (int)blockDim.x) y[i] = x[i];
    __syncthreads();
    edit(y, x, edits + row.first_edit, row.n_edit);
    edit(y, x, edits + row.first_own, row.n_own);
    if (row.mask < 0) return;
    const uint32_t *const mask = masks + (size_t)row.mask * n_word;
    for (int i = (int)threadIdx.x; i < n_vocab; i += (int)blockDim.x)
        if (!(mask[i / 32] >> (i % 32) & 1u)) y[i] = -INFINITY;
}

/* The host's arrays, behind each other in the operation's room. */
static spec_status send(spec_queue *q, char **at, const void *from, size_t bytes)
{
    char *const to = *at;
    *at += bytes;
    return bytes > 0 ? speci_cuda_upload(q, to, from, bytes) : SPEC_OK;
}

spec_status speci_cuda_adjust(spec_queue *q, const spec_adjust_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (a->n_vocab < 1 || a->ld < a->n_vocab || a->n_row < 0)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda adjust: %d rows of %d values, %d apart", a->n_row, a->n_vocab, a->ld);
    if (a->n_row == 0) return SPEC_OK;
    char *at = (char *)a->room;
    const spec_adjust_row *const rows = (const spec_adjust_row *)at;
    SPEC_TRY(send(q, &at, a->host_row, (size_t)a->n_row * sizeof *rows));
    const spec_logit_edit *const edits = (const spec_logit_edit *)at;
    SPEC_TRY(send(q, &at, a->host_edit, (size_t)a->n_edit * sizeof *edits));
    const uint32_t *const masks = (const uint32_t *)at;
    SPEC_TRY(send(q, &at, a->host_mask, (size_t)a->n_mask * (size_t)a->n_word * sizeof *masks));
    adjust_kernel<<<a->n_row, ADJUST_THREADS, 0, q->stream>>>(a->logits, a->out, a->ld, a->n_vocab, rows, edits, masks, a->n_word);
    return cuda_launched(q, "adjust");
}
