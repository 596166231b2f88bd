"""The loss of rows of logits by one Triton kernel, for a GPU: it reads both tables twice and writes the slope, where PyTorch's own
operations pass over tables of float32 some twenty times. losses.py has the formula, and does the same without Triton."""
import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for a CPU comes without
    triton = None

BLOCK = 2048


def usable(logits):
    return triton is not None and logits.is_cuda


def distil_rows(logits, target, ce, n_rows):
    """logits [R,V] of the drafter, target [R,V] of the target, contiguous. Gives the sums [3] of losses.distil over the rows, and the
    slope of the loss by logits, of which these rows are n_rows'th parts; it takes the place of logits."""
    if logits.shape != target.shape or not (logits.is_contiguous() and target.is_contiguous()):
        raise ValueError("logits %s, target %s: need the same shape, contiguous" % (list(logits.shape), list(target.shape)))
    rows, vocab = logits.shape
    sums = torch.empty(3, rows, device=logits.device)
    _distil[(rows,)](logits, target, sums, rows, vocab, ce, 1.0 / n_rows, BLOCK=BLOCK, num_warps=8)
    return sums.sum(1), logits


if triton:
    LOWEST = tl.constexpr(-1e30)  # finite: what is no column takes part in no difference of infinities

    @triton.jit
    def _distil(q_rows, p_rows, sums, rows, vocab, ce, share, BLOCK: tl.constexpr):
        """One row a program. With m the mixture of p and its arg-max, slope = share * ((1 + ce) q - m)."""
        row = tl.program_id(0).to(tl.int64)
        q_row, p_row = q_rows + row * vocab, p_rows + row * vocab
        lane = tl.arange(0, BLOCK)
        # First pass, by lanes: the greatest logit so far, the sum of exponentials below it, and where p has its greatest.
        q_top, p_top = tl.full([BLOCK], LOWEST, tl.float32), tl.full([BLOCK], LOWEST, tl.float32)
        q_sum, p_sum = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        p_at = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab, BLOCK):
            at = start + lane
            q = tl.load(q_row + at, mask=at < vocab, other=LOWEST).to(tl.float32)
            p = tl.load(p_row + at, mask=at < vocab, other=LOWEST).to(tl.float32)
            p_at = tl.where(p > p_top, at, p_at)
            top = tl.maximum(q, q_top)
            q_sum = q_sum * tl.exp(q_top - top) + tl.exp(q - top)
            q_top = top
            top = tl.maximum(p, p_top)
            p_sum = p_sum * tl.exp(p_top - top) + tl.exp(p - top)
            p_top = top
        q_max, p_max = tl.max(q_top, 0), tl.max(p_top, 0)
        q_norm = q_max + tl.log(tl.sum(q_sum * tl.exp(q_top - q_max), 0))
        p_norm = p_max + tl.log(tl.sum(p_sum * tl.exp(p_top - p_max), 0))
        best = tl.min(tl.where(p_top == p_max, p_at, vocab), 0)
        # Second pass.
        kl, nll, overlap = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            at = start + lane
            log_q = tl.load(q_row + at, mask=at < vocab, other=LOWEST).to(tl.float32) - q_norm
            log_p = tl.load(p_row + at, mask=at < vocab, other=LOWEST).to(tl.float32) - p_norm
            q, p = tl.exp(log_q), tl.exp(log_p)  # 0 where there is no column
            kl += tl.where(at < vocab, p * (log_p - log_q), 0.0)
            nll -= tl.where(at == best, log_q, 0.0)
            overlap += tl.minimum(p, q)
            slope = share * ((1 + ce) * q - p - tl.where(at == best, ce, 0.0))
            tl.store(q_row + at, slope.to(q_rows.dtype.element_ty), mask=at < vocab)
        tl.store(sums + row, tl.sum(kl, 0))
        tl.store(sums + rows + row, tl.sum(nll, 0))
        tl.store(sums + 2 * rows + row, tl.sum(overlap, 0))
