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
    if kind in ("default", "dynamic"):      # up to max_position_embeddings the same
        return f
    if kind in ("longrope", "su"):
        is_long = rope["n_ids"] > rope["original_max_position_embeddings"]
        return f / torch.tensor(rope["long_factor" if is_long else "short_factor"], dtype=F64)
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
    low, high = dimension(rope.get("beta_fast", 32)), dimension(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    ramp = [min(max((k - low) / max(high - low, 0.001), 0), 1) for k in range(len(f))]
    return torch.tensor([x * (1 - r) + x / rope["factor"] * r for x, r in zip(f.tolist(), ramp)], dtype=F64)


def rope_gain(rope):
    """What queries and keys are multiplied by."""
    if rope.get("rope_type") in ("longrope", "su"):
        original = rope["original_max_position_embeddings"]
        factor = rope.get("factor") or rope["max_position_embeddings"] / original
        return rope.get("attention_factor") or (math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
    if rope.get("rope_type") != "yarn":
        return 1.0
    if "mscale" in rope:
        a, b = (0.1 * rope[k] * math.log(rope["factor"]) + 1 for k in ("mscale", "mscale_all_dim"))
        return a / b
    return rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1


def rotate(x, position, freq, pairs=False):
    """x [heads][head_dim]; the first 2 * len(freq) dims turn, first half against second half or neighbours in pairs."""
    n = len(freq)
    c, s = torch.cos(position * freq), torch.sin(position * freq)
    if pairs:
        a, b = x[:, 0:2 * n:2], x[:, 1:2 * n:2]
        return torch.cat([torch.stack([a * c - b * s, b * c + a * s], dim=2).flatten(1), x[:, 2 * n:]], dim=1)
    a, b, rest = x[:, :n], x[:, n:2 * n], x[:, 2 * n:]
    return torch.cat([a * c - b * s, b * c + a * s, rest], dim=1)


def soft_cap(x, cap):
    return x if cap is None else cap * torch.tanh(x / cap)


class Attention:
    def __init__(self, heads, kv_heads, head_dim, freq, window=None, gain=1.0, pairs=False, scale=None, cap=None):
        self.cap = cap
        self.h, self.kv, self.d, self.freq, self.window = heads, kv_heads, head_dim, freq, window
        self.gain, self.pairs, self.scale = gain, pairs, scale or 1 / math.sqrt(head_dim)
        self.keys, self.values = [], []

    def step(self, q, k, v):
        """q [h*d], k, v [kv*d] of the newest token; returns [h*d]."""
        p = len(self.keys)
        q = self.turned(q.reshape(self.h, self.d), p)
        self.keys.append(self.turned(k.reshape(self.kv, self.d), p))
        self.values.append(v.reshape(self.kv, self.d))
        first = 0 if self.window is None else max(0, p - self.window + 1)
        out = []
        for h in range(self.h):
            g = h // (self.h // self.kv)
            keys = torch.stack([x[g] for x in self.keys[first:]])
            values = torch.stack([x[g] for x in self.values[first:]])
            scores = keys @ q[h] * self.scale
            out.append(torch.softmax(soft_cap(scores, self.cap), 0) @ values)
        return torch.cat(out)

    def turned(self, x, p):
        """The gain is of the dimensions that turn."""
        y = rotate(x, p, self.freq, self.pairs)
        return torch.cat([y[:, :2 * len(self.freq)] * self.gain, y[:, 2 * len(self.freq):]], 1)


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
    if c.get("original_max_position_embeddings"):
        r["original_max_position_embeddings"] = c["original_max_position_embeddings"]
    return {**r, "n_ids": c["n_ids"], "max_position_embeddings": c.get("max_position_embeddings")}


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
            mixers.append(Attention(heads, c["num_key_value_heads"], hd, freq, None, rope_gain(rope)))
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


# The other transformers. eps: the key of it; second: the MLP's norm; pairs: neighbours turn together.
OTHERS = {
    "granite": {}, "phi3": {}, "gemma": {}, "seed_oss": {}, "ministral": {}, "smollm3": {"theta": 2e6}, "internlm3": {},
    "olmo": {"norm": "bare"}, "ernie4_5": {"pairs": True, "theta": 5e5}, "helium": {"pairs": True, "theta": 1e5},
    "glm": {"pairs": True, "partial": 0.5}, "stablelm": {"norm": "layer", "eps": "layer_norm_eps", "partial": 0.25},
    "starcoder2": {"norm": "layer", "eps": "norm_epsilon", "mlp": ("c_fc", "c_proj")},
    "cohere": {"norm": "layer", "eps": "layer_norm_eps", "pairs": True, "second": None, "theta": 5e5},
    "cohere2": {"norm": "layer", "eps": "layer_norm_eps", "pairs": True, "second": None},
    "phi": {"norm": "layer", "eps": "layer_norm_eps", "partial": 0.5, "second": None, "mlp": ("fc1", "fc2"), "out": "dense",
            "final": "model.final_layernorm"},
    "gptj": {"norm": "layer", "eps": "layer_norm_epsilon", "pairs": True, "second": None, "mlp": ("fc_in", "fc_out"),
             "out": "out_proj", "final": "transformer.ln_f", "layers": "transformer.h", "first": "ln_1", "attention": "attn",
             "embed": "transformer.wte.weight"},
    "codegen": {"norm": "layer", "eps": "layer_norm_epsilon", "pairs": True, "second": None, "mlp": ("fc_in", "fc_out"),
                "out": "out_proj", "final": "transformer.ln_f", "layers": "transformer.h", "first": "ln_1", "attention": "attn",
                "embed": "transformer.wte.weight"},
    "cwm": {"theta": 1e6},
    "exaone": {"eps": "layer_norm_epsilon", "theta": 5e5, "first": "ln_1", "second": "ln_2", "attention": "attn.attention",
               "out": "out_proj", "mlp": ("c_fc_1", "c_proj"), "gate": "c_fc_0", "final": "transformer.ln_f", "layers": "transformer.h",
               "embed": "transformer.wte.weight"},
    # behind: norms of what attention and the MLP give; first and second None: they read the residual as it is
    "gemma2": {"second": "pre_feedforward_layernorm", "behind": ("post_attention_layernorm", "post_feedforward_layernorm")},
    "gemma3_text": {"theta": 1e6, "second": "pre_feedforward_layernorm",
                    "behind": ("post_attention_layernorm", "post_feedforward_layernorm")},
    "glm4": {"pairs": True, "partial": 0.5, "behind": ("post_self_attn_layernorm", "post_mlp_layernorm")},
    **{kind: {"first": None, "second": None, "behind": ("post_attention_layernorm", "post_feedforward_layernorm"), "theta": theta}
       for kind, theta in (("exaone4", 1e4), ("olmo2", 1e4), ("olmo3", 5e5))},
}
GEMMA = ("gemma", "gemma2", "gemma3_text")
TIED = (*GEMMA, "ernie4_5", "starcoder2", "cohere", "cohere2", "smollm3")


def norm_of(w, c, s):
    eps = c.get(s.get("eps", "rms_norm_eps"), c.get("rms_norm_eps", 1e-5))

    def norm(name, x):
        if s.get("norm") == "bare":
            return layer_norm(x, 1, 0, 1e-5)
        if s.get("norm") == "layer":
            return layer_norm(x, w[name + ".weight"], w.get(name + ".bias", 0), eps)
        return rms_norm(x, w[name + ".weight"] + (c["model_type"] in GEMMA), eps)
    return norm


def windows(c, n):
    """Of each layer: its window, or None; does it turn?"""
    kind, types, width = c["model_type"], c.get("layer_types"), c.get("sliding_window")
    if kind == "smollm3":
        every = c.get("no_rope_layer_interval", 4)
        turns = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(n)]
        slides = [c.get("use_sliding_window") and (types[i] == "sliding_attention" if types else not turns[i]) for i in range(n)]
        return [(width if slides[i] else None, bool(turns[i])) for i in range(n)]
    if kind == "cohere2":
        every = c.get("sliding_window_pattern", 4)
        slides = [types[i] == "sliding_attention" if types else (i + 1) % every != 0 for i in range(n)]
        return [(width if s else None, s) for s in slides]
    if kind in ("gemma2", "gemma3_text", "exaone4", "olmo3") and width:
        every = c.get("sliding_window_pattern", {"gemma2": 2, "gemma3_text": 6}.get(kind, 4))
        slides = [types[i] == "sliding_attention" if types else (i + 1) % every != 0 for i in range(n)]
        return [(width if s else None, s or kind != "exaone4") for s in slides]
    if kind == "cwm":
        return [(width if (types[i] == "sliding_attention" if types else i % 4) else None, True) for i in range(n)]
    if kind == "ministral" and types:
        return [(width if t == "sliding_attention" else None, True) for t in types]
    return [(width if kind in ("phi3", "starcoder2", "ministral") else None, True)] * n


def other_mlp(w, p, c, s, x):
    act = ACT[c.get("hidden_act", c.get("hidden_activation", c.get("activation_function", "gelu_pytorch_tanh")))]
    if c["model_type"] == "gemma" and c.get("hidden_act") == "gelu":
        act = ACT["gelu_pytorch_tanh"]
    if "gate" in s:
        return linear(w, p + s["mlp"][1], act(linear(w, p + s["gate"], x)) * linear(w, p + s["mlp"][0], x))
    if "mlp" in s:
        return linear(w, p + s["mlp"][1], act(linear(w, p + s["mlp"][0], x)))
    if p + "gate_up_proj.weight" in w:
        gate, up = linear(w, p + "gate_up_proj", x).chunk(2)
    else:
        gate, up = linear(w, p + "gate_proj", x), linear(w, p + "up_proj", x)
    return linear(w, p + "down_proj", act(gate) * up)


def other_freq(c, s, hd):
    if c["model_type"] in ("gptj", "codegen"):
        return rope_frequencies({"rope_theta": 1e4}, c["rotary_dim"]), 1.0
    c = {"rope_theta": s.get("theta", 1e4), **c}
    rope = rope_of(c, c.get("partial_rotary_factor", s.get("partial")))
    return rope_frequencies(rope, int(hd * rope["partial_rotary_factor"])), rope_gain(rope)


def freq_of_kind(c, s, hd, window):
    """Of a layer with a window, or without, where the two turn differently."""
    kinds = c.get("rope_parameters") or {}
    if "full_attention" in kinds:
        return other_freq({"rope_parameters": kinds["sliding_attention" if window else "full_attention"]}, s, hd)
    if window and c["model_type"] == "gemma3_text":
        return other_freq({"rope_theta": c.get("rope_local_base_freq", 1e4)}, s, hd)
    if window and c["model_type"] == "olmo3":
        return other_freq({"rope_theta": c.get("rope_theta", s["theta"])}, s, hd)
    return other_freq(c, s, hd)


def others(w, c):
    kind, s = c["model_type"], OTHERS[c["model_type"]]
    n, heads, dim = (c.get(a, c.get(b)) for a, b in (("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
                                                     ("hidden_size", "n_embd")))
    n = n or c["num_layers"]
    hd, kv = c.get("head_dim") or dim // heads, c.get("num_key_value_heads") or heads
    scale = c.get("attention_multiplier", 1.0) if kind == "granite" else None
    if kind in ("gemma2", "gemma3_text"):
        scale = c.get("query_pre_attn_scalar", 256) ** -0.5
    cap, last_cap = (c.get(k, v) if kind == "gemma2" else None for k, v in (("attn_logit_softcapping", 50.0),
                                                                           ("final_logit_softcapping", 30.0)))
    none, attention = torch.zeros(0, dtype=F64), []
    for window, turns in windows(c, n):
        freq, gain = freq_of_kind(c, s, hd, window)
        attention.append(Attention(heads, kv, hd, freq if turns else none, window, gain if turns else 1.0, s.get("pairs", False),
                                   scale, cap))
    norm, emb = norm_of(w, c, s), s.get("embed", "model.embed_tokens.weight")
    out = head(w, c.get("tie_word_embeddings", kind in TIED), emb)
    add = c.get("residual_multiplier", 1.0)
    second = None if c.get("use_parallel_residual") else s.get("second", "post_attention_layernorm")

    def attend(p, a, x):
        names = [p + f"{t}_proj" for t in "qkv"]
        if kind == "codegen":   # of each of four devices its q, v and k
            quarters = linear(w, p + "qkv_proj", x).reshape(4, 3, dim // 4)
            qkv = [quarters[:, i].reshape(-1) for i in (0, 2, 1)]
        elif p + "qkv_proj.weight" in w:
            qkv = linear(w, p + "qkv_proj", x).split([heads * hd, kv * hd, kv * hd])
        else:
            qkv = [linear(w, t, x) for t in names]
        for i, t in enumerate("qk"):
            if p + f"{t}_norm.weight" in w:
                weight = w[p + f"{t}_norm.weight"] + (kind in GEMMA)
                groups = qkv[i].shape[0] // weight.shape[0]
                qkv[i] = rms_norm(qkv[i], weight.repeat(groups), c.get("rms_norm_eps", 1e-5), groups)
        return linear(w, p + s.get("out", "o_proj"), a.step(*qkv))

    def step(token):
        r = w[emb][token] * (math.sqrt(dim) if kind in GEMMA else c.get("embedding_multiplier", 1.0))
        for i, a in enumerate(attention):
            p = f"{s.get('layers', 'model.layers')}.{i}."
            first, behind = s.get("first", "input_layernorm"), s.get("behind")
            x = norm(p + first, r) if first else r
            y = attend(p + s.get("attention", "self_attn") + ".", a, x)
            r = r + (norm(p + behind[0], y) if behind else add * y)
            x = norm(p + second, r) if second else r if behind else x
            y = other_mlp(w, p + "mlp.", c, s, x)
            r = r + (norm(p + behind[1], y) if behind else add * y)
        y = out @ norm(s.get("final", "model.norm"), r) + w.get("lm_head.bias", 0)
        return soft_cap(y, last_cap) * (c.get("logit_scale", 0.0625) if "cohere" in kind else 1 / c.get("logits_scaling", 1.0))
    return step


def granite4(w, c):
    """Bamba's mixers, Granite's factors."""
    eps, heads, hd = c["rms_norm_eps"], c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    rope, turns = rope_of(c), c.get("position_embedding_type") == "rope"
    freq, mixers = rope_frequencies(rope, hd if turns else 0), []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        if p + "self_attn.q_proj.weight" in w:
            mixers.append(Attention(heads, c["num_key_value_heads"], hd, freq, None, rope_gain(rope) if turns else 1.0,
                                    scale=c.get("attention_multiplier", 1.0)))
        else:
            inner = c["mamba_expand"] * c["hidden_size"]
            mixers.append(Mamba2(w, p + "mamba.", inner, c["mamba_d_state"], c["mamba_n_groups"], inner // c["mamba_n_heads"],
                                 eps, limits(c.get("time_step_limit", [0.0, math.inf]))))
    out, add = head(w, c.get("tie_word_embeddings", False), "model.embed_tokens.weight"), c.get("residual_multiplier", 1.0)

    def step(token):
        r = w["model.embed_tokens.weight"][token] * c.get("embedding_multiplier", 1.0)
        for i, m in enumerate(mixers):
            p = f"model.layers.{i}."
            x = rms_norm(r, w[p + "input_layernorm.weight"], eps)
            r = r + add * (llama_attention(w, p + "self_attn.", m, x) if isinstance(m, Attention) else m.step(x))
            x = rms_norm(r, w[p + "post_attention_layernorm.weight"], eps)
            gate, up = linear(w, p + "shared_mlp.input_linear", x).chunk(2)
            r = r + add * linear(w, p + "shared_mlp.output_linear", silu(gate) * up)
        return out @ rms_norm(r, w["model.norm.weight"], eps) / c.get("logits_scaling", 1.0)
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
    rope = rope_of({"rope_theta": 1000000.0, **c})
    freq = rope_frequencies(rope, hd)
    mixers = []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        attends = p + "self_attn.q_proj.weight" in w
        mixers.append(Attention(heads, c["num_key_value_heads"], hd, freq, None, rope_gain(rope)) if attends
                      else ShortConv(w, p + "conv."))
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
    """The Japanese one has a bias in the last layer alone, and one branch behind the other."""
    base, japanese = c["model_type"], c["model_type"] != "gpt_neox"
    heads, eps, act = c["num_attention_heads"], c["layer_norm_eps"], c["hidden_act"]
    hd = c["hidden_size"] // heads
    rope = rope_of({"rope_theta": c.get("rotary_emb_base", 10000.0), **c}, c.get("rotary_pct", 1.0 if japanese else 0.25))
    freq = rope_frequencies(rope, int(hd * rope["partial_rotary_factor"]))
    attention = [Attention(heads, heads, hd, freq, gain=rope_gain(rope)) for _ in range(c["num_hidden_layers"])]
    out = head(w, c.get("tie_word_embeddings", japanese), base + ".embed_in.weight", "embed_out.weight")

    def step(token):
        r = w[base + ".embed_in.weight"][token]
        for i, a in enumerate(attention):
            p = f"{base}.layers.{i}."

            def norm(name, x):
                return layer_norm(x, w[p + name + ".weight"], w[p + name + ".bias"], eps)
            qkv = linear(w, p + "attention.query_key_value", norm("input_layernorm", r)).reshape(heads, 3, hd)
            y = linear(w, p + "attention.dense", a.step(*(qkv[:, j].reshape(-1) for j in range(3)))) + w.get(p + "attention.dense_bias", 0)
            x = r if c.get("use_parallel_residual", not japanese) else r + y
            h = ACT[act](linear(w, p + "mlp.dense_h_to_4h", norm("post_attention_layernorm", x)))
            r = r + y + linear(w, p + "mlp.dense_4h_to_h", h)
        f = base + ".final_layer_norm"
        return out @ layer_norm(r, w[f + ".weight"], w[f + ".bias"], eps)
    return step


def falcon(w, c):
    """q, k and v group by group: a group's heads of q, then its k and its v."""
    heads, eps, act, new = c["num_attention_heads"], c["layer_norm_epsilon"], c.get("activation", "gelu"), c["new_decoder_architecture"]
    dim = c.get("hidden_size", c.get("n_embed"))
    hd, one = dim // heads, not new and c.get("multi_query", True)
    kv = 1 if one else c.get("num_kv_heads") or heads
    rope = rope_of(c)
    freq = rope_frequencies(rope, hd)
    attention = [Attention(heads, kv, hd, freq, gain=rope_gain(rope)) for _ in range(c["num_hidden_layers"])]
    out = head(w, c.get("tie_word_embeddings", True), "transformer.word_embeddings.weight")

    def step(token):
        r = w["transformer.word_embeddings.weight"][token]
        for i, a in enumerate(attention):
            p = f"transformer.h.{i}."

            def norm(name, x):
                return layer_norm(x, w[p + name + ".weight"], w[p + name + ".bias"], eps)
            two = p + "ln_attn.weight" in w
            x = norm("ln_attn" if two else "input_layernorm", r)
            qkv = linear(w, p + "self_attention.query_key_value", x).reshape(kv, heads // kv + 2, hd)
            y = linear(w, p + "self_attention.dense", a.step(qkv[:, :-2].reshape(-1), qkv[:, -2].reshape(-1), qkv[:, -1].reshape(-1)))
            if not new and not c.get("parallel_attn", True):
                x = norm("post_attention_layernorm", r + y)
            elif two:
                x = norm("ln_mlp", r)
            r = r + y + linear(w, p + "mlp.dense_4h_to_h", ACT[act](linear(w, p + "mlp.dense_h_to_4h", x)))
        f = "transformer.ln_f"
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


def build(directory, n_ids, config=None, mamba_config=None, weights=None):
    w = read_weights(weights or directory)
    c = dict(config if config is not None else read_json(os.path.join(directory, "config.json")), n_ids=n_ids)
    hybrid = os.path.join(directory, "mamba_config.json")
    if mamba_config is None and os.path.exists(hybrid):
        mamba_config = read_json(hybrid)
    if "ssm_cfg" in c or "d_model" in c and "model_type" not in c:
        return mamba_original(w, c)
    kind = c["model_type"]
    if kind in ("llama", "mistral", "qwen2", "qwen3"):
        return llama(w, c, mamba_config)
    if kind in OTHERS:
        return others(w, c)
    return {"falcon": falcon, "gpt_neox": gpt_neox, "gpt_neox_japanese": gpt_neox, "bamba": bamba, "granitemoehybrid": granite4,
            "lfm2": lfm2, "mamba": mamba_hf, "mamba2": mamba_hf}[kind](w, c)


def run(directory, ids, config=None, mamba_config=None, weights=None):
    step = build(directory, len(ids), config, mamba_config, weights)
    return torch.stack([step(int(t)) for t in ids]).to(torch.float32)
