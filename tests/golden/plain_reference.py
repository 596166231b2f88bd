"""Plain reference networks in float64, one token at a time, straight from the equations.

Nothing here is fast or shares code with another implementation: attention keeps a list of keys and
values, Mamba keeps its state and the last few inputs of the convolution, every token is one pass.
Used for formats that transformers does not read (state-spaces' original layout, MambaInLlama) and
as a second opinion for those that it does (see cross_check.py).

    logits = run(directory, ids)        float32 [n][vocab]
"""
import json
import math
import os

import torch
from safetensors.torch import load_file

F64 = torch.float64


def read_json(path):
    with open(path) as f:
        return json.load(f)


def read_weights(directory):
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        w = {}
        for shard in sorted(set(read_json(index)["weight_map"].values())):
            w.update(load_file(os.path.join(directory, shard)))
    else:
        w = load_file(os.path.join(directory, "model.safetensors"))
    return {k: v.to(F64) for k, v in w.items()}


# ---------------------------------------------------------------- pieces

def silu(x):
    return x / (1 + torch.exp(-x))


def softplus(x):
    return torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20))))


ACT = {
    "silu": silu,
    "swish": silu,
    "relu": lambda x: torch.clamp(x, min=0),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
}
ACT["gelu_pytorch_tanh"] = ACT["gelu_new"]


def rms_norm(x, weight, eps, groups=1):
    g = x.reshape(groups, -1)
    g = g / torch.sqrt((g * g).mean(-1, keepdim=True) + eps)
    return g.reshape(-1) * weight


def layer_norm(x, weight, bias, eps):
    d = x - x.mean()
    return d / torch.sqrt((d * d).mean() + eps) * weight + bias


def linear(w, name, x):
    y = w[name + ".weight"] @ x
    return y + w[name + ".bias"] if name + ".bias" in w else y


def rope_frequencies(rope, rotary_dim):
    """rope: {rope_theta, rope_type, ...}. Returns rotary_dim / 2 angular frequencies."""
    f = torch.tensor([rope["rope_theta"] ** (-2 * k / rotary_dim) for k in range(rotary_dim // 2)], dtype=F64)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return f
    if kind == "linear":
        return f / rope["factor"]
    if kind == "yarn":
        return yarn_frequencies(rope, f)
    if kind != "llama3":
        raise ValueError("rope_type " + kind)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    out = []
    for x in f.tolist():
        wave = 2 * math.pi / x
        if wave < original / high:
            out.append(x)
        elif wave > original / low:
            out.append(x / factor)
        else:
            s = (original / wave - low) / (high - low)
            out.append((1 - s) * x / factor + s * x)
    return torch.tensor(out, dtype=F64)


def yarn_frequencies(rope, f):
    """Waves by how often they turn in the original length: beta_fast times and more are kept, beta_slow and less slowed."""
    n, original, base = 2 * len(f), rope["original_max_position_embeddings"], rope["rope_theta"]

    def dimension(turns):
        return n * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low = max(math.floor(dimension(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension(rope.get("beta_slow", 1))), n - 1)
    ramp = [min(max((k - low) / max(high - low, 0.001), 0), 1) for k in range(len(f))]
    return torch.tensor([x * (1 - r) + x / rope["factor"] * r for x, r in zip(f.tolist(), ramp)], dtype=F64)


def rope_gain(rope):
    """What queries and keys are multiplied by."""
    if rope.get("rope_type") != "yarn":
        return 1.0
    return rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1


def rotate(x, position, freq):
    """x [heads][head_dim]; the first 2 * len(freq) dims turn, first half against second half."""
    n = len(freq)
    c, s = torch.cos(position * freq), torch.sin(position * freq)
    a, b, rest = x[:, :n], x[:, n:2 * n], x[:, 2 * n:]
    return torch.cat([a * c - b * s, b * c + a * s, rest], dim=1)


class Attention:
    def __init__(self, heads, kv_heads, head_dim, freq, window=None, gain=1.0):
        self.h, self.kv, self.d, self.freq, self.window = heads, kv_heads, head_dim, freq, window
        self.gain = gain
        self.keys, self.values = [], []

    def step(self, q, k, v):
        """q [h*d], k, v [kv*d] of the newest token; returns [h*d]."""
        p = len(self.keys)
        q = rotate(q.reshape(self.h, self.d), p, self.freq) * self.gain
        self.keys.append(rotate(k.reshape(self.kv, self.d), p, self.freq) * self.gain)
        self.values.append(v.reshape(self.kv, self.d))
        first = 0 if self.window is None else max(0, p - self.window + 1)
        out = []
        for h in range(self.h):
            g = h // (self.h // self.kv)
            keys = torch.stack([x[g] for x in self.keys[first:]])
            values = torch.stack([x[g] for x in self.values[first:]])
            out.append(torch.softmax(keys @ q[h] / math.sqrt(self.d), 0) @ values)
        return torch.cat(out)


class Conv:
    """Causal depth-wise convolution with its activation; weight [channels][1][width], last tap newest."""

    def __init__(self, weight, bias, act=silu):
        self.w, self.b, self.act = weight[:, 0, :], bias, act
        self.past = torch.zeros(weight.shape[0], weight.shape[2], dtype=F64)

    def step(self, u):
        self.past = torch.cat([self.past[:, 1:], u[:, None]], dim=1)
        y = (self.past * self.w).sum(1)
        return self.act(y if self.b is None else y + self.b)


class Mamba1:
    """S <- exp(dt A) S + dt x B^T;  y = S C + D x;  out = W_out (y silu(z))."""

    def __init__(self, w, p):
        self.w, self.p = w, p
        self.A = -torch.exp(w[p + "A_log"])
        self.inner, self.n = self.A.shape
        self.conv = Conv(w[p + "conv1d.weight"], w.get(p + "conv1d.bias"))
        self.S = torch.zeros_like(self.A)

    def step(self, u):
        w, p = self.w, self.p
        x, z = linear(w, p + "in_proj", u).split([self.inner, self.inner])
        x = self.conv.step(x)
        xp = linear(w, p + "x_proj", x)
        dt, B, C = xp.split([len(xp) - 2 * self.n, self.n, self.n])
        dt = softplus(linear(w, p + "dt_proj", dt))
        self.S = torch.exp(dt[:, None] * self.A) * self.S + (dt * x)[:, None] * B[None, :]
        y = self.S @ C + w[p + "D"] * x
        return linear(w, p + "out_proj", y * silu(z))


class Mamba2:
    """One scalar decay per head. In MambaInLlama x and B have fewer heads and are repeated after the convolution."""

    def __init__(self, w, p, inner, n, groups, head_dim, eps=1e-5, dt_limit=(0.0, math.inf), norm_groups=None,
                 norm_before_gate=False, d_xb=None):
        self.w, self.p, self.inner, self.n, self.groups, self.hd = w, p, inner, n, groups, head_dim
        self.eps, self.limit, self.before = eps, dt_limit, norm_before_gate
        self.norm_groups = groups if norm_groups is None else norm_groups
        self.d_xb = d_xb
        self.heads = inner // head_dim
        self.A = -torch.exp(w[p + "A_log"])
        self.conv = Conv(w[p + "conv1d.weight"], w.get(p + "conv1d.bias"))
        self.S = torch.zeros(self.heads, head_dim, n, dtype=F64)

    def step(self, u):
        w, p = self.w, self.p
        nx = self.inner if self.d_xb is None else self.d_xb
        nb = self.groups * self.n if self.d_xb is None else self.d_xb
        nc = self.groups * self.n
        z, xbc, dt = linear(w, p + "in_proj", u).split([self.inner, nx + nb + nc, self.heads])
        x, B, C = self.conv.step(xbc).split([nx, nb, nc])
        dt = torch.clamp(softplus(dt + w[p + "dt_bias"]), self.limit[0], self.limit[1])
        D, y = w[p + "D"], []
        for h in range(self.heads):
            hx = h if self.d_xb is None else h // (self.inner // self.d_xb)
            hc = h // (self.heads // self.groups)
            hb = hc if self.d_xb is None else hx
            xh = x[hx * self.hd:(hx + 1) * self.hd]
            Bh, Ch = B[hb * self.n:(hb + 1) * self.n], C[hc * self.n:(hc + 1) * self.n]
            self.S[h] = torch.exp(dt[h] * self.A[h]) * self.S[h] + dt[h] * xh[:, None] * Bh[None, :]
            y.append(self.S[h] @ Ch + D[h] * xh)
        y = torch.cat(y)
        norm = w.get(p + "norm.weight")
        if norm is None:
            y = y * silu(z)
        elif self.before:
            y = rms_norm(y, norm, self.eps, self.norm_groups) * silu(z)
        else:
            y = rms_norm(y * silu(z), norm, self.eps, self.norm_groups)
        return linear(w, p + "out_proj", y)


# ---------------------------------------------------------------- networks
# Each builder returns step(token id) -> logits.

def rope_of(c, partial=None):
    r = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    r.setdefault("rope_type", r.get("type", "default"))
    r.setdefault("rope_theta", c.get("rope_theta", 10000.0))
    r.setdefault("partial_rotary_factor", partial if partial is not None else 1.0)
    return r


def head(w, tied, emb, name="lm_head.weight"):
    return w[emb] if tied else w[name]


def gated_mlp(w, p, x, act):
    return linear(w, p + "down_proj", ACT[act](linear(w, p + "gate_proj", x)) * linear(w, p + "up_proj", x))


def llama_attention(w, p, a, x, qk_eps=None):
    q, k, v = (linear(w, p + n, x) for n in ("q_proj", "k_proj", "v_proj"))
    if qk_eps is not None:
        q = torch.cat([rms_norm(t, w[p + "q_norm.weight"], qk_eps) for t in q.split(a.d)])
        k = torch.cat([rms_norm(t, w[p + "k_norm.weight"], qk_eps) for t in k.split(a.d)])
    return linear(w, p + "o_proj", a.step(q, k, v))


def llama(w, c, mamba=None):
    """Llama, Mistral, Qwen2, Qwen3; with mamba (mamba_config.json) the MambaInLlama hybrid."""
    kind = c["model_type"]
    eps, act, n_layer = c["rms_norm_eps"], c["hidden_act"], c["num_hidden_layers"]
    heads = c["num_attention_heads"]
    hd = c.get("head_dim") or c["hidden_size"] // heads
    freq = rope_frequencies(rope_of(c), hd)
    mixers = []
    for i in range(n_layer):
        if mamba is not None and i not in mamba["attn_layers"]:
            s = mamba["ssm_cfg"]
            mixers.append(Mamba2(w, f"model.layers.{i}.mamba.", mamba["d_inner"], s["d_state"], s["ngroups"],
                                 mamba["d_inner"] // s["ngroups"], d_xb=mamba["d_xb"]))
        else:
            window = c.get("sliding_window") if kind == "mistral" else None
            if kind in ("qwen2", "qwen3") and c.get("use_sliding_window"):
                types = c.get("layer_types")
                slides = types[i] == "sliding_attention" if types else i >= c["max_window_layers"]
                window = c["sliding_window"] if slides else None
            mixers.append(Attention(heads, c.get("num_key_value_heads") or heads, hd, freq, window, rope_gain(rope_of(c))))
    out = head(w, c.get("tie_word_embeddings", False), "model.embed_tokens.weight")

    def step(token):
        r = w["model.embed_tokens.weight"][token]
        for i, m in enumerate(mixers):
            p = f"model.layers.{i}."
            x = rms_norm(r, w[p + "input_layernorm.weight"], eps)
            if isinstance(m, Attention):
                r = r + llama_attention(w, p + "self_attn.", m, x, eps if kind == "qwen3" else None)
            else:
                r = r + m.step(x)
            r = r + gated_mlp(w, p + "mlp.", rms_norm(r, w[p + "post_attention_layernorm.weight"], eps), act)
        return out @ rms_norm(r, w["model.norm.weight"], eps)
    return step


def bamba(w, c):
    eps, act = c["rms_norm_eps"], c["hidden_act"]
    heads, hd = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    rope = rope_of(c, 0.5)
    freq = rope_frequencies(rope, int(hd * rope["partial_rotary_factor"]))
    mixers = []
    for i in range(c["num_hidden_layers"]):
        if i in (c["attn_layer_indices"] or []):
            mixers.append(Attention(heads, c["num_key_value_heads"], hd, freq))
        else:
            inner = c["mamba_expand"] * c["hidden_size"]
            mixers.append(Mamba2(w, f"model.layers.{i}.mamba.", inner, c["mamba_d_state"], c["mamba_n_groups"],
                                 inner // c["mamba_n_heads"], eps, limits(c["time_step_limit"])))
    out = head(w, c.get("tie_word_embeddings", False), "model.embed_tokens.weight")

    def step(token):
        r = w["model.embed_tokens.weight"][token]
        for i, m in enumerate(mixers):
            p = f"model.layers.{i}."
            x = rms_norm(r, w[p + "input_layernorm.weight"], eps)
            r = r + (llama_attention(w, p + "self_attn.", m, x) if isinstance(m, Attention) else m.step(x))
            r = r + gated_mlp(w, p + "feed_forward.", rms_norm(r, w[p + "pre_ff_layernorm.weight"], eps), act)
        return out @ rms_norm(r, w["model.final_layernorm.weight"], eps)
    return step


class ShortConv:
    """[B | C | x] = W_in u;  y = W_out (C conv(B x))."""

    def __init__(self, w, p):
        self.w, self.p = w, p
        self.conv = Conv(w[p + "conv.weight"], w.get(p + "conv.bias"), lambda y: y)

    def step(self, u):
        b, c, x = linear(self.w, self.p + "in_proj", u).chunk(3)
        return linear(self.w, self.p + "out_proj", c * self.conv.step(b * x))


def lfm2(w, c):
    eps, heads = c["norm_eps"], c["num_attention_heads"]
    hd = c.get("head_dim") or c["hidden_size"] // heads
    freq = rope_frequencies(rope_of({"rope_theta": 1000000.0, **c}), hd)
    mixers = []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        attends = p + "self_attn.q_proj.weight" in w
        mixers.append(Attention(heads, c["num_key_value_heads"], hd, freq) if attends else ShortConv(w, p + "conv."))
    out = head(w, c.get("tie_embedding", c.get("tie_word_embeddings", True)), "model.embed_tokens.weight")

    def attention(p, a, x):
        q, k, v = (linear(w, p + n, x) for n in ("q_proj", "k_proj", "v_proj"))
        q = torch.cat([rms_norm(t, w[p + "q_layernorm.weight"], eps) for t in q.split(hd)])
        k = torch.cat([rms_norm(t, w[p + "k_layernorm.weight"], eps) for t in k.split(hd)])
        return linear(w, p + "out_proj", a.step(q, k, v))

    def step(token):
        r = w["model.embed_tokens.weight"][token]
        for i, m in enumerate(mixers):
            p = f"model.layers.{i}."
            x = rms_norm(r, w[p + "operator_norm.weight"], eps)
            r = r + (attention(p + "self_attn.", m, x) if isinstance(m, Attention) else m.step(x))
            x = rms_norm(r, w[p + "ffn_norm.weight"], eps)
            f = p + "feed_forward."
            r = r + linear(w, f + "w2", silu(linear(w, f + "w1", x)) * linear(w, f + "w3", x))
        return out @ rms_norm(r, w["model.embedding_norm.weight"], eps)
    return step


def gpt_neox(w, c):
    heads, eps, act = c["num_attention_heads"], c["layer_norm_eps"], c["hidden_act"]
    hd = c["hidden_size"] // heads
    rope = rope_of({"rope_theta": c.get("rotary_emb_base", 10000.0), **c}, c.get("rotary_pct", 0.25))
    freq = rope_frequencies(rope, int(hd * rope["partial_rotary_factor"]))
    attention = [Attention(heads, heads, hd, freq) for _ in range(c["num_hidden_layers"])]
    out = head(w, c.get("tie_word_embeddings", False), "gpt_neox.embed_in.weight", "embed_out.weight")

    def step(token):
        r = w["gpt_neox.embed_in.weight"][token]
        for i, a in enumerate(attention):
            p = f"gpt_neox.layers.{i}."

            def norm(name, x):
                return layer_norm(x, w[p + name + ".weight"], w[p + name + ".bias"], eps)
            qkv = linear(w, p + "attention.query_key_value", norm("input_layernorm", r)).reshape(heads, 3, hd)
            y = linear(w, p + "attention.dense", a.step(*(qkv[:, j].reshape(-1) for j in range(3))))
            x = r if c.get("use_parallel_residual", True) else r + y
            h = ACT[act](linear(w, p + "mlp.dense_h_to_4h", norm("post_attention_layernorm", x)))
            r = r + y + linear(w, p + "mlp.dense_4h_to_h", h)
        f = "gpt_neox.final_layer_norm"
        return out @ layer_norm(r, w[f + ".weight"], w[f + ".bias"], eps)
    return step


def limits(x):
    return tuple(float(v["__float__"]) if isinstance(v, dict) else float(v) for v in x)


def backbone(w, mixers, embedding, eps, tied):
    out = head(w, tied, embedding)

    def step(token):
        r = w[embedding][token]
        for i, m in enumerate(mixers):
            r = r + m.step(rms_norm(r, w[f"backbone.layers.{i}.norm.weight"], eps))
        return out @ rms_norm(r, w["backbone.norm_f.weight"], eps)
    return step


def mamba_hf(w, c):
    eps = c["layer_norm_epsilon"]
    mixers = []
    for i in range(c["num_hidden_layers"]):
        p = f"backbone.layers.{i}.mixer."
        if c["model_type"] == "mamba":
            mixers.append(Mamba1(w, p))
        else:
            mixers.append(Mamba2(w, p, c["expand"] * c["hidden_size"], c["state_size"], c["n_groups"], c["head_dim"],
                                 eps, limits(c["time_step_limit"])))
    tied = c.get("tie_word_embeddings", c["model_type"] == "mamba")
    return backbone(w, mixers, "backbone.embeddings.weight", eps, tied)


def mamba_original(w, c):
    """state-spaces layout: everything that config.json does not carry is a default of the module."""
    s = dict(c.get("ssm_cfg") or {})
    kind = s.pop("layer", "Mamba1")
    mixers = []
    for i in range(c["n_layer"]):
        p = f"backbone.layers.{i}.mixer."
        if kind == "Mamba1":
            mixers.append(Mamba1(w, p))
        else:
            mixers.append(Mamba2(w, p, s.get("expand", 2) * c["d_model"], s.get("d_state", 128), s.get("ngroups", 1),
                                 s.get("headdim", 64), 1e-5, s.get("dt_limit", (0.0, math.inf)),
                                 norm_before_gate=s.get("norm_before_gate", False)))
    return backbone(w, mixers, "backbone.embedding.weight", 1e-5, c.get("tie_embeddings", True))


def build(directory, config=None, mamba_config=None, weights=None):
    w = read_weights(weights or directory)
    c = config if config is not None else read_json(os.path.join(directory, "config.json"))
    hybrid = os.path.join(directory, "mamba_config.json")
    if mamba_config is None and os.path.exists(hybrid):
        mamba_config = read_json(hybrid)
    if "ssm_cfg" in c or "d_model" in c and "model_type" not in c:
        return mamba_original(w, c)
    kind = c["model_type"]
    if kind in ("llama", "mistral", "qwen2", "qwen3"):
        return llama(w, c, mamba_config)
    return {"gpt_neox": gpt_neox, "bamba": bamba, "lfm2": lfm2, "mamba": mamba_hf, "mamba2": mamba_hf}[kind](w, c)


def run(directory, ids, config=None, mamba_config=None, weights=None):
    step = build(directory, config, mamba_config, weights)
    return torch.stack([step(int(t)) for t in ids]).to(torch.float32)
