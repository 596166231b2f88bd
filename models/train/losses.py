"""Losses on rows of logits that are never all in memory at once."""
import torch

import fused

ELEMENTS = 1 << 27  # of one float32 table of logits: 512 MiB


def rows_at_once(vocab):
    return max(ELEMENTS // vocab, 1)


class TargetRows:
    """The target's distributions, made of its hidden rows [R,width] as they are asked for."""

    def __init__(self, head, hidden):
        self.head, self.hidden = head, hidden

    def against(self, logits, rows, ce, n_rows):
        p = self.head(self.hidden[rows])
        return (fused.distil_rows if fused.usable(logits) else distil_rows)(logits, p, ce, n_rows)


def distil_rows(logits, target, ce, n_rows):
    """(the sums [3] of `distil` over rows of logits [R,V] of the drafter, the slope of the loss by them, of which they are n_rows'th
    parts). target [R,V]: the target's logits. fused.py has the same for a GPU."""
    log_q, p = logits.float().log_softmax(-1), target.float().softmax(-1)
    q, best = log_q.exp(), p.argmax(-1, keepdim=True)
    sums = torch.stack([(p * (p.clamp(min=1e-20).log() - log_q)).sum(), -log_q.gather(1, best).sum(), torch.minimum(p, q).sum()])
    slope = q.mul_(1 + ce).sub_(p).scatter_add_(1, best, torch.full_like(best, -ce, dtype=q.dtype)).div_(n_rows)
    return sums, slope.to(logits.dtype)


class TopRows:
    """The target's distributions from its k likeliest tokens: ids, the likeliest first, and probabilities [R,k]. The rest of the mass is
    one more outcome: spread as the drafter q spreads its own, so that its gradient moves the rest as a whole. No table but q's is made."""

    def __init__(self, ids, probs):
        self.ids, self.probs = ids, probs

    def against(self, logits, rows, ce, n_rows):
        ids, p = self.ids[rows].long(), self.probs[rows].float()
        log_q = logits.float().log_softmax(-1)
        top = log_q.gather(1, ids)
        q, rest_p = top.exp(), (1 - p.sum(1)).clamp(min=0)
        rest_q = (1 - q.sum(1)).clamp(min=1e-7)
        kl = (torch.special.xlogy(p, p) - p * top).sum() + (torch.special.xlogy(rest_p, rest_p) - rest_p * rest_q.log()).sum()
        sums = torch.stack([kl, -top[:, 0].sum(), torch.minimum(p, q).sum() + torch.minimum(rest_p, rest_q).sum()])
        slope_of_top = (1 + ce) * q - p
        slope_of_top[:, 0] -= ce
        slope = log_q.exp_().mul_((1 + ce - rest_p / rest_q)[:, None]).scatter_(1, ids, slope_of_top).div_(n_rows)
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
            part, slope = target.against(h @ w.T, rows, ce, len(hidden))
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
