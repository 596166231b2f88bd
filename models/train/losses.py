"""Losses on rows of logits that are never all in memory at once."""
import torch
from torch.nn import functional as F

import fused

ELEMENTS = 1 << 27  # of one float32 table of logits: 512 MiB


def rows_at_once(vocab):
    return max(ELEMENTS // vocab, 1)


class TargetRows:
    """The target's distributions, made of its hidden rows [R,width] as they are asked for."""

    def __init__(self, head, hidden):
        self.head, self.hidden = head, hidden

    def logits(self, rows):
        return self.head(self.hidden[rows])

    def __call__(self, rows, q):
        return self.logits(rows).float().softmax(-1)


class TopRows:
    """The target's distributions from its k likeliest tokens: ids and probabilities [R,k]. The rest of the mass is spread as the
    drafter q spreads its own, so that its gradient moves the rest as a whole: KL over k + 1 outcomes."""

    def __init__(self, ids, probs):
        self.ids, self.probs = ids, probs

    def __call__(self, rows, q):
        ids, probs = self.ids[rows].long(), self.probs[rows].float()
        rest = q.scatter(1, ids, 0.0)
        rest *= ((1 - probs.sum(1)).clamp(min=0) / rest.sum(1).clamp(min=1e-20))[:, None]
        return rest.scatter(1, ids, probs)


def _distil_rows(logits, target, ce, n_rows):
    """(sums [3] of rows of logits [R,V], the slope of the loss by them, which are n_rows'th parts of it). target(q): the target's
    distributions. fused.py has the same for a GPU."""
    log_q = logits.float().log_softmax(-1)
    q = log_q.exp()
    p = target(q)
    best = p.argmax(-1, keepdim=True)
    sums = torch.stack([(p * (p.clamp(min=1e-20).log() - log_q)).sum(), -log_q.gather(1, best).sum(), torch.minimum(p, q).sum()])
    slope = q.mul_(1 + ce).sub_(p).scatter_add_(1, best, torch.full_like(best, -ce, dtype=q.dtype)).div_(n_rows)
    return sums, slope.to(logits.dtype)


class _Distil(torch.autograd.Function):
    """mean over rows of KL(p || q) + ce * (-log q[arg-max p]), and its gradient, by parts of the rows. With m the mixture of p and
    its arg-max both terms are a cross-entropy against m, whose gradient by logits is (1 + ce) q - m."""

    @staticmethod
    def forward(ctx, hidden, weight, target, ce):
        kind = torch.bfloat16 if hidden.is_cuda else torch.float32
        w, sums = weight.to(kind), hidden.new_zeros(3, dtype=torch.float32)
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), rows_at_once(len(weight))):
            rows = slice(start, start + rows_at_once(len(weight)))
            h = hidden[rows].to(kind)
            logits = h @ w.T
            if isinstance(target, TargetRows) and fused.usable(logits):
                part, slope = fused.distil_rows(logits, target.logits(rows), ce, len(hidden))
            else:
                part, slope = _distil_rows(logits, lambda q: target(rows, q), ce, len(hidden))
            sums += part
            by_hidden[rows] = (slope @ w).to(hidden.dtype)
            if by_weight is not None:
                by_weight += (slope.T @ h).float()
        ctx.save_for_backward(by_hidden, by_weight)
        sums /= len(hidden)
        ctx.mark_non_differentiable(sums)
        return sums[0] + ce * sums[1], sums

    @staticmethod
    def backward(ctx, slope, _):
        by_hidden, by_weight = ctx.saved_tensors
        return slope * by_hidden, None if by_weight is None else slope * by_weight, None, None


def distil(hidden, weight, target, ce):
    """hidden [R,W] rows of the drafter, weight [V,W] its head, target: TargetRows or TopRows. Gives the loss, and without gradient
    [3]: KL(p || q), -log q[arg-max p], and the overlap sum_v min(p, q), which is the acceptance of one draft at T = 1."""
    return _Distil.apply(hidden, weight, target, ce)


def distil_plain(hidden, weight, p, ce):
    """distil, as its formula says, for tests: p [R,V]."""
    log_q = F.linear(hidden, weight).float().log_softmax(-1)
    kl = (p * (p.clamp(min=1e-20).log() - log_q)).sum(-1)
    return (kl - ce * log_q.gather(1, p.argmax(-1, keepdim=True))[:, 0]).mean()
