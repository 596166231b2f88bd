"""Drafters on the target's hidden states, as plain modules that are their equations: EAGLE-2, EAGLE-3, and the hidden-state drafter of
"Make Every Draft Count" (Lyanna).

Position p of a head pairs the target's hidden vector at p with token x_{p+1}, and speaks of x_{p+2}. Row 0 of a chain is such a pair;
rows behind it take the head's own output for the hidden vector. One layer of attention, whose position is p."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from nets import MLP, Attention, RMSNorm, rope_table


class Block(nn.Module):
    """s = r + attention(a); out = s + mlp(norm(s)). The attention reads `wide` channels, the residual r has `width`."""

    def __init__(self, c, wide):
        super().__init__()
        heads, size = c["num_attention_heads"], c["head_dim"]
        self.self_attn = Attention(wide, heads, c["num_key_value_heads"], size, size, c.get("attention_bias", False))
        self.self_attn.o_proj = nn.Linear(heads * size, c["hidden_size"], False)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c["hidden_size"], c["intermediate_size"])

    def leave(self, r, y):
        s = r + self.self_attn.o_proj(y)
        return s + self.mlp(self.post_attention_layernorm(s))


class Head(nn.Module):
    """What the three heads share. embedded: rows of the target's embedding; target_head [V,H]: its head's weight, where it is used.

    A kind gives   prepare(embedded, hidden, own) -> (a, r): what attention reads, and the residual; own: is hidden the head's own?
                   recycle(out) -> the hidden vector of the row behind
                   rows(out, tokens) -> rows, and weight(target_head) -> [Vd, .]: logits are their product"""

    def __init__(self, c):
        super().__init__()
        self.c, self.theta = c, c.get("rope_theta", 10000.0)

    def tables(self, n, device):
        return rope_table(n, self.c["head_dim"], self.theta, device)

    def scaled(self, embedded):
        """Embeddings as `fc` reads them in training (`embedding_scale`); a file has the factor in its `fc.weight`."""
        return embedded * self.c.get("embedding_scale", 1.0)

    def recycle(self, out):
        return out

    def rows(self, out, tokens):
        return out

    def weight(self, target_head):
        return target_head

    def logits(self, out, tokens, target_head):
        """[..., Vd]: of out [..., H] and the tokens [...] that stand before what is drafted."""
        return F.linear(self.rows(out, tokens), self.weight(target_head))

    def extend(self, a, r, state):
        """The plain form: rows a [n,wide], r [n,H] behind those in state, which it changes: [keys, values] or empty. Gives out [n,H]."""
        attention, before = self.block.self_attn, state[0].shape[1] if state else 0
        tables = [t[before:] for t in self.tables(before + len(a), a.device)]
        q, k, v = (x[0] for x in attention.project(a[None], tables))
        state[:] = [torch.cat([old, new], 1) for old, new in zip(state, (k, v))] if state else [k, v]
        k, v = (x.repeat_interleave(attention.heads // attention.kv_heads, 0) for x in state)
        scores = q @ k.transpose(1, 2) * attention.head_dim ** -0.5
        later = torch.ones(len(a), before + len(a), dtype=torch.bool, device=a.device).triu(before + 1)
        y = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.block.leave(r, y.transpose(0, 1).flatten(1))

    def unroll(self, embedded, hidden, depth):
        """All chains of a sequence at once, for training: [depth] outputs [B,T,H]. Step j at position p belongs to the chain that began
        at p - j: it reads the pairs of the target up to p - j, and behind them its own chain's rows. Before position j it means nothing.
        embedded [B,T,H]: of x_{p+1}. hidden [B,T,.]: of the target at p."""
        attention, steps, outs = self.block.self_attn, [], []
        length = embedded.shape[1]
        tables = self.tables(length, embedded.device)
        for j in range(depth):
            if j:
                hidden = shift(self.recycle(outs[-1]), 1)
            a, r = self.prepare(embedded, hidden, own=j > 0)
            q, k, v = attention.project(a, tables)
            group = attention.heads // attention.kv_heads
            steps.append([x.repeat_interleave(group, 1) for x in (k, v)])
            outs.append(self.block.leave(r, attend(q, steps).transpose(1, 2).flatten(2)))
        return outs


def shift(x, n):
    """x [..., T, D] moved n positions towards the end; zeros come in."""
    return F.pad(x, (0, 0, n, 0))[..., :x.shape[-2], :] if n else x


def attend(q, steps):
    """Attention of step j = len(steps) - 1, q [B,heads,T,D], over keys and values of steps 0 to j, [B,heads,T,D] each."""
    j, length = len(steps) - 1, q.shape[2]
    (k0, v0), scale = steps[0], q.shape[-1] ** -0.5
    if not j:
        return F.scaled_dot_product_attention(q, k0, v0, is_causal=True)
    place = torch.arange(length, device=q.device)
    scores = (q @ k0.transpose(2, 3) * scale).masked_fill(place > place[:, None] - j, -torch.inf)
    own = [(q * shift(steps[i][0], j - i)).sum(-1, keepdim=True) * scale for i in range(1, j + 1)]
    weights = torch.cat([scores, *own], -1).float().softmax(-1).to(q.dtype)
    y = weights[..., :length] @ v0
    for i in range(1, j + 1):
        y = y + weights[..., length + i - 1, None] * shift(steps[i][1], j - i)
    return y


def embedding_scale(embedding, hidden):
    """The power of two that brings rows of the embedding to about the size of hidden rows [B,T,H]. AdamW moves all weights of `fc`
    alike: where an embedding is 28 times smaller (hybrid-target), a head learns what the hidden row says long before it learns what the
    token says. A power of two, so that a file keeps the same rounded weights."""
    return 2.0 ** round(math.log2(float(hidden.float().pow(2).mean().sqrt() / embedding.float().pow(2).mean().sqrt().clamp(min=1e-6))))


class Eagle2(Head):
    """x = fc(cat(E[x_{p+1}], h_p)), h after the target's final norm; no norm before attention, none behind; the target's head."""

    def __init__(self, c):
        super().__init__(c)
        self.fc = nn.Linear(2 * c["hidden_size"], c["hidden_size"], c.get("bias", True))
        self.block = Block(c, c["hidden_size"])

    def prepare(self, embedded, hidden, own):
        x = self.fc(torch.cat([self.scaled(embedded), hidden], -1))
        return x, x


class Eagle3(Head):
    """g = fc(cat(taps)); a = cat(norm(E[x_{p+1}]), norm(g)); its own final norm and head, over the draft vocabulary. Rows behind the
    first take `out` for g. hidden: the taps side by side, or g."""

    def __init__(self, c):
        super().__init__(c)
        width, seen, eps = c["hidden_size"], c["target_hidden_size"], c["rms_norm_eps"]
        taps = c["n_taps"]
        self.fc = nn.Linear(taps * seen, width, False)
        self.fc_norm = nn.ModuleList(RMSNorm(seen, eps) for _ in range(taps)) if c.get("fc_norm") else None
        self.input_norm = RMSNorm(taps * seen, eps) if c.get("norm_before_fc") else None
        self.input_layernorm, self.hidden_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.block, self.norm = Block(c, 2 * width), RMSNorm(width, eps)
        self.lm_head = nn.Linear(width, c["draft_vocab_size"], False)

    def fuse(self, taps):
        if self.fc_norm:
            taps = torch.cat([norm(t) for norm, t in zip(self.fc_norm, taps.chunk(len(self.fc_norm), -1))], -1)
        return self.fc(self.input_norm(taps) if self.input_norm else taps)

    def prepare(self, embedded, hidden, own):
        g = (hidden if own else self.fuse(hidden)).float()
        normed = self.hidden_norm(g)
        return torch.cat([self.input_layernorm(embedded), normed], -1), normed if self.c.get("norm_before_residual") else g

    def recycle(self, out):
        return self.norm(out) if self.c.get("norm_output") else out

    def rows(self, out, tokens):
        return self.norm(out)

    def weight(self, target_head):
        return self.lm_head.weight


class TokenInfo(nn.Module):
    """info(t) = RMSNorm(e_t W1 W2) over the hot tokens, for a hot token t; zero elsewhere. e_t: the target's embedding, frozen."""

    def __init__(self, width, rank, hot, eps, vocab):
        super().__init__()
        self.w1, self.w2, self.norm = nn.Linear(width, rank, False), nn.Linear(rank, len(hot), False), RMSNorm(len(hot), eps)
        self.register_buffer("hot_ids", torch.as_tensor(hot, dtype=torch.int32))
        # A table to look up in: torch.isin sorts, and waits for the device.
        is_hot = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, self.hot_ids.long(), True)
        self.register_buffer("is_hot", is_hot, persistent=False)

    def scaled(self, embedded, tokens):
        """s_t e_t W1 [..., rank], zero for tokens that are not hot: info is its product with `weight`. 1 / s_t is the root mean square over
        the hot outputs, which a rank x rank matrix gives: |W2 u|^2 / n = u (W2^T W2 / n) u."""
        u = self.w1(embedded).float()
        square = ((u @ (self.w2.weight.T @ self.w2.weight).float()) * u).sum(-1, keepdim=True) / len(self.hot_ids)
        return u * torch.rsqrt(square + self.norm.eps) * self.is_hot[tokens][..., None]

    def weight(self, vocab):
        """[V, rank]: rows of W2 times the norm's weight, at their tokens."""
        rows = self.norm.weight[:, None] * self.w2.weight
        return rows.new_zeros(vocab, rows.shape[1]).index_copy(0, self.hot_ids.long(), rows)

    def table(self, embedding):
        """The collapsed form [V,V]: by the formula itself. Row t is info(t)."""
        out = embedding.new_zeros(len(embedding), len(embedding))
        hot = self.hot_ids.long()
        out[hot[:, None], hot] = self.norm(self.w2(self.w1(embedding[hot])))
        return out


class Lyanna(Head):
    """h_1 = Layer(fc(cat(E[t_1], h_0))), h_{i+1} = Layer(h_i): a chain that no drafted token enters. Logits of row i are the target's head
    of h_i, plus info of the token before."""

    def __init__(self, c, hot, embedding):
        """hot: ids of hot tokens, or empty for no token info; embedding [V,H]: the target's."""
        super().__init__(c)
        width = c["hidden_size"]
        self.fc = nn.Linear(2 * width, width, c.get("bias", True))
        self.block = Block(c, width)
        self.token_info = TokenInfo(width, c["token_info_rank"], hot, c["rms_norm_eps"], c["vocab_size"]) if len(hot) else None
        self.embedding = [embedding]  # in a list: the target's, no parameter of the head

    def prepare(self, embedded, hidden, own):
        if not self.c.get("first_token", True):  # a trial: what is the fused token worth?
            embedded = torch.zeros_like(embedded)
        x = hidden if own else self.fc(torch.cat([self.scaled(embedded), hidden], -1))
        return x, x

    def rows(self, out, tokens):
        if not self.token_info:
            return out
        return torch.cat([out.float(), self.token_info.scaled(F.embedding(tokens, self.embedding[0]), tokens)], -1)

    def weight(self, target_head):
        if not self.token_info:
            return target_head
        return torch.cat([target_head.float(), self.token_info.weight(len(target_head))], 1)
