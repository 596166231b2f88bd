"""Decoders as plain PyTorch modules: llama, bamba (hybrid), mamba2 and mamba, with the mathematics of transformers' models.

A Decoder gives final-normed hidden rows; `head` makes logits of them. It runs over whole sequences, or token by token on
buffers that keep their addresses (`State`), so that a CUDA graph can repeat a step. The residual stream is float32."""
import torch
from torch import nn
from torch.nn import functional as F

from scan import convolve, selective_scan, selective_step, ssd, ssd_step


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps)


def rope_table(n, dim, theta, device):
    """cos and sin [n, dim/2] of positions 0 to n-1."""
    frequency = 1.0 / theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angle = torch.arange(n, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotates the first 2*dim channels of x [..., T, D] by tables [T, dim]; pairs are (i, i + dim)."""
    dim = cos.shape[-1]
    a, b, rest = x[..., :dim], x[..., dim:2 * dim], x[..., 2 * dim:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads, head_dim, rotary, bias=False):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.rotary = heads, kv_heads, head_dim, rotary
        self.q_proj = nn.Linear(width, heads * head_dim, bias)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias)
        self.o_proj = nn.Linear(heads * head_dim, width, bias)

    def project(self, x, tables):
        """q [B,heads,T,D], k and v [B,kv_heads,T,D], rotated by the tables' rows."""
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(q, *tables), rotate(k, *tables), v

    def buffers_for(self, batch, length, like):
        return [torch.zeros(batch, self.kv_heads, length, self.head_dim, device=like.device, dtype=like.dtype) for _ in range(2)]

    def forward(self, x, tables, kept=None):
        q, k, v = self.project(x, [t[:x.shape[1]] for t in tables])
        if kept:
            for buffer, rows in zip(kept, (k, v)):
                buffer[:, :, :x.shape[1]] = rows
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def step(self, x, tables, kept, at):
        """at: the position, an int64 tensor [1]: the same for all sequences."""
        q, k, v = self.project(x, [t.index_select(0, at) for t in tables])
        for buffer, row in zip(kept, (k, v)):
            buffer.index_copy_(2, at, row.to(buffer.dtype))
        seen = torch.arange(kept[0].shape[2], device=x.device) <= at
        q = q.reshape(len(x), self.kv_heads, -1, self.head_dim).to(kept[0].dtype)  # heads that share keys are rows of one product
        y = F.scaled_dot_product_attention(q, *kept, attn_mask=seen[None, None, None].expand(len(x), self.kv_heads, q.shape[2], -1))
        return self.o_proj(y.reshape(len(x), 1, -1))


class Mamba2(nn.Module):
    """One group. The order of in_proj is z, x, B, C, dt; the gated norm multiplies by the gate before it normalises."""

    def __init__(self, width, heads, head_dim, states, conv, eps, limit, proj_bias, conv_bias):
        super().__init__()
        self.heads, self.head_dim, self.states, self.limit = heads, head_dim, states, limit
        inner = heads * head_dim
        self.sizes = [inner, inner + 2 * states, heads]
        self.in_proj = nn.Linear(width, sum(self.sizes), proj_bias)
        self.conv1d = nn.Conv1d(self.sizes[1], self.sizes[1], conv, groups=self.sizes[1], bias=conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.zeros(heads)) for _ in range(3))
        self.norm = RMSNorm(inner, eps)
        self.out_proj = nn.Linear(inner, width, proj_bias)

    def reset(self, low=1e-3, high=0.1):
        step = torch.exp(torch.linspace(0, 1, self.heads) * (torch.tensor(high).log() - torch.tensor(low).log()) + torch.tensor(low).log())
        self.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of the soft-plus
        self.A_log.data.copy_(torch.linspace(1, 16, self.heads).log())
        self.D.data.fill_(1)

    def buffers_for(self, batch, length, like):
        return [torch.zeros(batch, self.conv1d.kernel_size[0] - 1, self.sizes[1], device=like.device, dtype=like.dtype),
                torch.zeros(batch, self.heads, self.head_dim, self.states, device=like.device)]

    def enter(self, x, before=None):
        """What the scan needs of x [B,T,width]: gate, inputs of the convolution, then x, B, C behind it, and dt."""
        gate, inputs, dt = self.in_proj(x).split(self.sizes, -1)
        mixed = F.silu(convolve(inputs, self.conv1d.weight, self.conv1d.bias, before))
        dt = F.softplus(dt.float() + self.dt_bias.float()).clamp(*self.limit)
        return gate, inputs, mixed.split([self.sizes[0], self.states, self.states], -1), dt

    def leave(self, y, x, gate):
        y = (y + self.D.float()[:, None] * x).flatten(-2)
        return self.out_proj(self.norm(y.float() * F.silu(gate.float())))

    def forward(self, u, tables, kept=None):
        gate, inputs, (x, B, C), dt = self.enter(u)
        x = x.unflatten(-1, (self.heads, self.head_dim))
        y, state = ssd(x, dt, -self.A_log.float().exp(), B, C)
        if kept:
            tail = inputs[:, -kept[0].shape[1]:]
            kept[0].zero_()[:, kept[0].shape[1] - tail.shape[1]:] = tail
            kept[1].copy_(state)
        return self.leave(y, x, gate)

    def step(self, u, tables, kept, at):
        gate, inputs, (x, B, C), dt = self.enter(u, kept[0].to(u.dtype))
        kept[0].copy_(torch.cat([kept[0][:, 1:], inputs.to(kept[0].dtype)], 1))
        x = x[:, 0].unflatten(-1, (self.heads, self.head_dim))
        y = ssd_step(x.float(), dt[:, 0], -self.A_log.float().exp(), B[:, 0].float(), C[:, 0].float(), kept[1])
        return self.leave(y, x.float(), gate[:, 0])[:, None]


class Mamba1(nn.Module):
    def __init__(self, width, inner, states, conv, rank, proj_bias, conv_bias):
        super().__init__()
        self.inner, self.states, self.rank = inner, states, rank
        self.in_proj = nn.Linear(width, 2 * inner, proj_bias)
        self.conv1d = nn.Conv1d(inner, inner, conv, groups=inner, bias=conv_bias)
        self.x_proj = nn.Linear(inner, rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log, self.D = nn.Parameter(torch.zeros(inner, states)), nn.Parameter(torch.zeros(inner))
        self.out_proj = nn.Linear(inner, width, proj_bias)

    def reset(self, low=1e-3, high=0.1):
        step = torch.exp(torch.rand(self.inner) * (torch.tensor(high).log() - torch.tensor(low).log()) + torch.tensor(low).log())
        self.dt_proj.bias.data.copy_(step + torch.log(-torch.expm1(-step)))
        self.dt_proj.weight.data.uniform_(-self.rank ** -0.5, self.rank ** -0.5)
        self.A_log.data.copy_(torch.arange(1, self.states + 1).log().expand_as(self.A_log))
        self.D.data.fill_(1)

    def buffers_for(self, batch, length, like):
        return [torch.zeros(batch, self.conv1d.kernel_size[0] - 1, self.inner, device=like.device, dtype=like.dtype),
                torch.zeros(batch, self.inner, self.states, device=like.device)]

    def enter(self, u, before=None):
        inputs, gate = self.in_proj(u).chunk(2, -1)
        x = F.silu(convolve(inputs, self.conv1d.weight, self.conv1d.bias, before))
        dt, B, C = self.x_proj(x).split([self.rank, self.states, self.states], -1)
        dt = F.softplus(F.linear(dt, self.dt_proj.weight).float() + self.dt_proj.bias.float())
        return gate, inputs, x.float(), dt, B.float(), C.float()

    def leave(self, y, x, gate):
        return self.out_proj((y + self.D.float() * x) * F.silu(gate.float()))

    def forward(self, u, tables, kept=None):
        gate, inputs, x, dt, B, C = self.enter(u)
        y, state = selective_scan(x, dt, -self.A_log.float().exp(), B, C)
        if kept:
            tail = inputs[:, -kept[0].shape[1]:]
            kept[0].zero_()[:, kept[0].shape[1] - tail.shape[1]:] = tail
            kept[1].copy_(state)
        return self.leave(y, x, gate)

    def step(self, u, tables, kept, at):
        gate, inputs, x, dt, B, C = self.enter(u, kept[0].to(u.dtype))
        kept[0].copy_(torch.cat([kept[0][:, 1:], inputs.to(kept[0].dtype)], 1))
        y = selective_step(x[:, 0], dt[:, 0], -self.A_log.float().exp(), B[:, 0], C[:, 0], kept[1])
        return self.leave(y, x[:, 0], gate[:, 0])[:, None]


class MLP(nn.Module):
    def __init__(self, width, inner, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias), nn.Linear(width, inner, bias)
        self.down_proj = nn.Linear(inner, width, bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """r <- r + mixer(norm1(r)); with an MLP also r <- r + mlp(norm2(r))."""

    def __init__(self, width, eps, mixer, mlp=None):
        super().__init__()
        self.norm1, self.mixer = RMSNorm(width, eps), mixer
        if mlp:
            self.norm2, self.mlp = RMSNorm(width, eps), mlp

    def feed(self, r):
        return r + self.mlp(self.norm2(r)) if hasattr(self, "mlp") else r

    def forward(self, r, tables, kept=None):
        return self.feed(r + self.mixer(self.norm1(r), tables, kept))

    def step(self, r, tables, kept, at):
        return self.feed(r + self.mixer.step(self.norm1(r), tables, kept, at))


class State:
    """What a Decoder keeps of `batch` sequences of at most `length` tokens. Its buffers never move."""

    def __init__(self, net, batch, length):
        weight = net.embed.weight
        self.kept = [layer.mixer.buffers_for(batch, length, weight) for layer in net.layers]
        self.tables = net.tables(length, weight.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=weight.device)


class Decoder(nn.Module):
    def __init__(self, vocab, width, layers, eps, rope=None, tied=True):
        """rope: (channels rotated, theta) of the attention layers, or None."""
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(vocab, width), nn.ModuleList(layers), RMSNorm(width, eps)
        self.lm_head = None if tied else nn.Linear(width, vocab, bias=False)
        self.rope = rope

    def tables(self, n, device):
        return rope_table(n, *self.rope, device) if self.rope else None

    @property
    def head_weight(self):
        return self.embed.weight if self.lm_head is None else self.lm_head.weight

    @property
    def n_layers(self):
        return len(self.layers)

    def head(self, hidden):
        return F.linear(hidden, self.head_weight)

    def forward(self, ids, taps=(), state=None):
        """Final-normed rows [B,T,width] of ids [B,T]; with taps also the residual that enters each layer named (the number of layers
        names the final-normed rows, as in the library). With a state, whose sequences then begin with ids."""
        r = self.embed(ids).float()
        tables, kept = self.tables(ids.shape[1], ids.device), {}
        for i, layer in enumerate(self.layers):
            kept[i] = r
            r = layer(r, tables, state and state.kept[i])
        if state:
            state.at.fill_(ids.shape[1])
        kept[len(self.layers)] = hidden = self.norm(r)
        return (hidden, [kept[i] for i in taps]) if taps else hidden

    def step(self, ids, state):
        """The row [B,width] of the next token ids [B]."""
        r = self.embed(ids)[:, None].float()
        for layer, kept in zip(self.layers, state.kept):
            r = layer.step(r, state.tables, kept, state.at)
        state.at += 1
        return self.norm(r)[:, 0]

    def reset(self, seed):
        """Random weights of a model to be trained."""
        torch.manual_seed(seed)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02 if isinstance(module, nn.Embedding) else module.weight.shape[1] ** -0.5)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv1d):
                nn.init.uniform_(module.weight, -module.kernel_size[0] ** -0.5, module.kernel_size[0] ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, (Mamba1, Mamba2)):
                module.reset()
        return self

    def half(self):
        """Weights of products as bfloat16; the rest stays float32. For a model that is not trained."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.to(torch.bfloat16)
        return self
