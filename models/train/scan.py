"""The recurrences of Mamba-1 and Mamba-2 over whole sequences and by one token, in plain PyTorch operations.

Shapes: B sequences, T tokens, H heads of P channels, E = H*P channels, N states. Decays and states are float32; products take
the type that autocast gives them."""
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def convolve(x, weight, bias, before=None):
    """Causal depth-wise convolution. x [B,T,C], weight [C,1,W], bias [C] or None; before [B,W-1,C]: the inputs before x, zeros
    without. One multiply-add a tap: a depth-wise cuDNN convolution is many times slower backwards."""
    width = weight.shape[-1]
    x = F.pad(x, (0, 0, width - 1, 0)) if before is None else torch.cat([before, x], 1)
    n = x.shape[1] - width + 1
    taps = weight[:, 0].to(x.dtype)
    out = x[:, :n] * taps[:, 0]
    for k in range(1, width):
        out = torch.addcmul(out, x[:, k:k + n], taps[:, k])
    return out if bias is None else out + bias.to(x.dtype)


def ssd(x, dt, A, B, C, chunk=64, state=None):
    """Mamba-2 in chunks (Dao & Gu 2024, section 6): within a chunk a masked product, between chunks a recurrence of states.
    x [B,T,H,P], dt [B,T,H] after the soft-plus, A [H] < 0, B and C [B,T,N] (one group); state [B,H,P,N] before x, or None.
    Gives y [B,T,H,P] without the skip D x, and the state after x."""
    batch, length, heads, size = x.shape
    pad = -length % chunk
    x, dt, B, C = (F.pad(v, (0, 0) * (v.dim() - 2) + (0, pad)) for v in (x, dt, B, C))  # dt = 0: nothing decays or enters
    x, dt, B, C = (v.unflatten(1, (-1, chunk)) for v in (x, dt, B, C))
    cum = (dt * A).cumsum(2).movedim(-1, 1)  # [B,H,c,l] log-decay from the chunk's start through each token
    x = (x * dt[..., None].to(x.dtype)).movedim(3, 1)  # [B,H,c,l,P]
    # Non-ancestors are masked before the exponential, where their difference may be large and positive.
    above = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    decay = (cum[..., :, None] - cum[..., None, :]).masked_fill(above, -torch.inf).exp()  # [B,H,c,l,s]
    y = ((C @ B.transpose(-1, -2))[:, None] * decay) @ x  # token l from token s of its chunk
    weighted = x * (cum[..., -1:] - cum).exp()[..., None]
    made = (weighted.transpose(-1, -2) @ B[:, None]).float()  # [B,H,c,P,N] what each chunk adds to the state
    state = torch.zeros_like(made[:, :, 0]) if state is None else state
    before = []
    for c, total in enumerate(cum[..., -1].exp().unbind(2)):
        before.append(state)
        state = state * total[..., None, None] + made[:, :, c]
    carried = C[:, None] @ torch.stack(before, 2).transpose(-1, -2)  # [B,H,c,l,P] what the states before give
    y = y + carried * cum.exp()[..., None]
    return y.movedim(1, 3).flatten(1, 2)[:, :length], state


def ssd_step(x, dt, A, B, C, state):
    """One token of ssd: x [B,H,P], dt [B,H], B and C [B,N]. Changes state [B,H,P,N] in place and gives y [B,H,P]."""
    state.mul_((dt * A).exp()[..., None, None]).add_((dt[..., None] * x)[..., None] * B[:, None, None, :])
    return (state * C[:, None, None, :]).sum(-1)


def _scan_chunk(x, dt, A, B, C, state):
    """The scan of one chunk by doubling: log2 of its length passes over [B,T,E,N]."""
    decay = (dt[..., None] * A).exp()
    add = (dt * x)[..., None] * B[:, :, None, :]
    add = torch.cat([add[:, :1] + decay[:, :1] * state[:, None], add[:, 1:]], 1)
    step = 1
    while step < x.shape[1]:
        add = torch.cat([add[:, :step], add[:, step:] + decay[:, step:] * add[:, :-step]], 1)
        decay = torch.cat([decay[:, :step], decay[:, step:] * decay[:, :-step]], 1)
        step *= 2
    return (add * C[:, :, None, :]).sum(-1), add[:, -1]


def selective_scan(x, dt, A, B, C, chunk=32, state=None):
    """Mamba-1: x, dt [B,T,E], A [E,N] < 0, B and C [B,T,N]; state [B,E,N] before x. All float32. Gives y [B,T,E] without the skip,
    and the state after x. A chunk is recomputed for its gradient: what it keeps would be N times x."""
    state = x.new_zeros(x.shape[0], x.shape[2], A.shape[1]) if state is None else state
    out = []
    for start in range(0, x.shape[1], chunk):
        part = [v[:, start:start + chunk] for v in (x, dt)] + [A] + [v[:, start:start + chunk] for v in (B, C)]
        y, state = checkpoint(_scan_chunk, *part, state, use_reentrant=False)
        out.append(y)
    return torch.cat(out, 1), state


def selective_step(x, dt, A, B, C, state):
    """One token of selective_scan: x, dt [B,E], B and C [B,N]. Changes state [B,E,N] in place and gives y [B,E]."""
    state.mul_((dt[..., None] * A).exp()).add_((dt * x)[..., None] * B[:, None, :])
    return (state * C[:, None, :]).sum(-1)
