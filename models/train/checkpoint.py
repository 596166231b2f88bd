"""Model directories in the Hugging Face layout: config.json, *.safetensors, tokenizer files.

What nets.py has is built from it; a model of another family is run by transformers (`Foreign`)."""
import glob
import math
import os
import shutil

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import nets
from files import Refusal, read_json, write_json, write_whole

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "chat_template.jinja")

# Names of a Decoder in a family's checkpoint: what stands before, and parts renamed.
NAMES = {
    "llama": ("model.", {"embed": "embed_tokens", "norm1": "input_layernorm", "mixer": "self_attn", "norm2": "post_attention_layernorm"}),
    "bamba": ("model.", {"embed": "embed_tokens", "norm1": "input_layernorm", "mixer": "mamba", "norm2": "pre_ff_layernorm",
                         "mlp": "feed_forward", "norm": "final_layernorm"}),
    "mamba2": ("backbone.", {"embed": "embeddings", "norm1": "norm", "norm": "norm_f"}),
    "mamba": ("backbone.", {"embed": "embeddings", "norm1": "norm", "norm": "norm_f"}),
}


def file_name(net, family, name):
    """The name in a checkpoint of parameter `name` of net."""
    if name == "lm_head.weight":
        return name
    before, renamed = NAMES[family]
    parts = name.split(".")
    at = 2 if parts[0] == "layers" else 0
    new = renamed.get(parts[at], parts[at])
    if family == "bamba" and parts[at] == "mixer" and isinstance(net.layers[int(parts[1])].mixer, nets.Attention):
        new = "self_attn"
    return before + ".".join(parts[:at] + [new] + parts[at + 1:])


# ---------------------------------------------------------------------------------- configurations ---


def rope_object(config):
    """What newer configs say of rotation in an object, older ones (but for a scaling) in keys beside it."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def rope_theta(config):
    return rope_object(config).get("rope_theta", config.get("rope_theta", 10000.0))


def rope_of(config, head_dim):
    """(channels rotated, theta), or None for a kind of rotation that nets.py has not."""
    rope = rope_object(config)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return None
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.5 if config["model_type"] == "bamba" else 1.0))
    return int(head_dim * part), rope_theta(config)


def attention(config, rope):
    heads, width = config["num_attention_heads"], config["hidden_size"]
    return nets.Attention(width, heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or width // heads, rope[0],
                          config.get("attention_bias", False))


def mlp(config):
    return nets.MLP(config["hidden_size"], config["intermediate_size"], config.get("mlp_bias", False))


def limit_of(config):
    low, high = config.get("time_step_limit") or (0.0, math.inf)
    return tuple(math.inf if isinstance(v, dict) or v == "Infinity" else float(v) for v in (low, high))


def build_llama(config):
    rope = rope_of(config, config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    if rope is None:
        return None
    eps, width = config.get("rms_norm_eps", 1e-6), config["hidden_size"]
    layers = [nets.Layer(width, eps, attention(config, rope), mlp(config)) for _ in range(config["num_hidden_layers"])]
    return nets.Decoder(config["vocab_size"], width, layers, eps, rope, config.get("tie_word_embeddings", False))


def build_bamba(config):
    rope = rope_of(config, config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    if rope is None or config.get("mamba_n_groups", 1) != 1:
        return None
    eps, width = config["rms_norm_eps"], config["hidden_size"]

    def mixer(i):
        if i in (config.get("attn_layer_indices") or ()):
            return attention(config, rope)
        return nets.Mamba2(width, config["mamba_n_heads"], config["mamba_d_head"], config["mamba_d_state"], config["mamba_d_conv"], eps,
                           limit_of(config), config.get("mamba_proj_bias", False), config.get("mamba_conv_bias", True))
    layers = [nets.Layer(width, eps, mixer(i), mlp(config)) for i in range(config["num_hidden_layers"])]
    return nets.Decoder(config["vocab_size"], width, layers, eps, rope, config.get("tie_word_embeddings", False))


def build_mamba2(config):
    if config.get("n_groups", 8) != 1:
        return None
    eps, width = config.get("layer_norm_epsilon", 1e-5), config["hidden_size"]

    def mixer():
        return nets.Mamba2(width, config["num_heads"], config["head_dim"], config["state_size"], config["conv_kernel"], eps,
                           limit_of(config), config.get("use_bias", False), config.get("use_conv_bias", True))
    layers = [nets.Layer(width, eps, mixer()) for _ in range(config["num_hidden_layers"])]
    return nets.Decoder(config["vocab_size"], width, layers, eps, None, config.get("tie_word_embeddings", False))


def build_mamba(config):
    eps, width = config.get("layer_norm_epsilon", 1e-5), config["hidden_size"]
    inner = config.get("intermediate_size") or width * config.get("expand", 2)
    layers = [nets.Layer(width, eps, nets.Mamba1(width, inner, config["state_size"], config["conv_kernel"], config["time_step_rank"],
                                                config.get("use_bias", False), config.get("use_conv_bias", True)))
              for _ in range(config["num_hidden_layers"])]
    return nets.Decoder(config["vocab_size"], width, layers, eps, None, config.get("tie_word_embeddings", True))


BUILD = {"llama": build_llama, "bamba": build_bamba, "mamba2": build_mamba2, "mamba": build_mamba}


# ------------------------------------------------------------------------------------------ reading ---


def read_config(directory):
    if not os.path.isdir(directory):
        raise Refusal("%s is not a directory with a model" % directory)
    config = read_json(os.path.join(directory, "config.json"))
    if "model_type" not in config and "speculators_model_type" not in config:
        raise Refusal("%s/config.json has no model_type" % directory)
    return config


def read_tensors(directory):
    """All tensors of the directory, as they are stored: of the files that an index names, else of model.safetensors, else of what there
    is."""
    index, one, tensors = os.path.join(directory, "model.safetensors.index.json"), os.path.join(directory, "model.safetensors"), {}
    if os.path.exists(index):
        names = [os.path.join(directory, f) for f in sorted(set(read_json(index)["weight_map"].values()))]
    else:
        names = [one] if os.path.exists(one) else sorted(glob.glob(os.path.join(directory, "*.safetensors")))
    if not names:
        raise Refusal("%s has no *.safetensors" % directory)
    for name in names:
        try:
            with safe_open(name, "pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})
        except (SafetensorError, OSError) as error:
            raise Refusal("%s cannot be read: %s" % (name, error))
    return tensors


class Foreign:
    """A model of a family that nets.py has not, run by transformers. Interface of a Decoder, without a step."""

    def __init__(self, directory, device):
        from transformers import AutoModelForCausalLM
        try:
            self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval().requires_grad_(False)
        except Exception as error:  # whatever transformers finds wrong is the directory's fault
            raise Refusal("%s does not load as a model: %s" % (directory, str(error).splitlines()[0]))

    def __call__(self, ids, taps=()):
        out = self.model(input_ids=ids, output_hidden_states=True, use_cache=False, logits_to_keep=1).hidden_states
        return (out[-1].float(), [out[i].float() for i in taps]) if taps else out[-1].float()

    @property
    def head_weight(self):
        return self.model.get_output_embeddings().weight

    @property
    def n_layers(self):
        return self.model.config.num_hidden_layers

    @property
    def embed(self):
        return self.model.get_input_embeddings()

    def head(self, hidden):
        return self.model.get_output_embeddings()(hidden.to(self.head_weight.dtype))

    def half(self):
        self.model.to(torch.bfloat16)
        return self

    def parameters(self):
        return self.model.parameters()


def load(directory, device="cpu"):
    """(net, config). The net's weights are float32 and are not trained unless the caller says so."""
    config = read_config(directory)
    build = BUILD.get(config["model_type"]) if config.get("hidden_act", "silu") in ("silu", "swish") else None  # nets.py has no other
    try:
        net = build(config) if build else None
    except (KeyError, TypeError) as error:
        raise Refusal("%s/config.json lacks %s" % (directory, error))
    if net is None:
        return Foreign(directory, device), config
    tensors = read_tensors(directory)
    own = {}
    for name, weight in net.state_dict().items():
        key = file_name(net, config["model_type"], name)
        if key not in tensors:
            raise Refusal("%s has no tensor %s" % (directory, key))
        if tensors[key].shape != weight.shape:
            raise Refusal("%s: tensor %s is %s, config.json says %s" % (directory, key, list(tensors[key].shape), list(weight.shape)))
        own[name] = tensors[key].float()
    net.load_state_dict(own)
    return net.to(device).eval().requires_grad_(False), config


# ------------------------------------------------------------------------------------------ writing ---


def save_tensors(path, tensors):
    write_whole(path, lambda to: save_file({k: v.contiguous() for k, v in tensors.items()}, to, metadata={"format": "pt"}))


def copy_tokenizer(source, directory):
    for name in TOKENIZER:
        if os.path.exists(os.path.join(source, name)):
            write_whole(os.path.join(directory, name), lambda to, name=name: shutil.copyfile(os.path.join(source, name), to))


def save_config(config, directory):
    write_json(os.path.join(directory, "config.json"), config)
    ends = {k: config.get(k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(os.path.join(directory, "generation_config.json"), ends)


def save(net, config, directory, tokenizer_from=None, dtype=torch.bfloat16):
    """Writes a Decoder. Weights come last: a directory with weights is whole."""
    os.makedirs(directory, exist_ok=True)
    if tokenizer_from:
        copy_tokenizer(tokenizer_from, directory)
    save_config(config, directory)
    tensors = {file_name(net, config["model_type"], name): weight.detach().to("cpu", dtype) for name, weight in net.state_dict().items()}
    save_tensors(os.path.join(directory, "model.safetensors"), tensors)


def drafter_config(target, family, layers, width, state=None, head_dim=None, heads=None, kv_heads=None, inner=None):
    """config.json of a drafter for the target whose config is given: its vocabulary and special tokens, tied embeddings."""
    common = {k: target.get(k) for k in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    common |= {"model_type": family, "num_hidden_layers": layers, "hidden_size": width, "tie_word_embeddings": True, "dtype": "bfloat16",
               "hidden_act": "silu"}
    if family == "llama":
        head_dim = head_dim or 32
        heads = heads or width // head_dim
        return common | {"architectures": ["LlamaForCausalLM"], "num_attention_heads": heads, "num_key_value_heads": kv_heads or heads,
                         "head_dim": head_dim, "intermediate_size": inner or width * 8 // 3 // 16 * 16, "rms_norm_eps": 1e-5,
                         "max_position_embeddings": target.get("max_position_embeddings") or 2048,
                         "attention_bias": False, "mlp_bias": False, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    ssm = {"expand": 2, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "layer_norm_epsilon": 1e-5, "residual_in_fp32": True}
    if family == "mamba2":
        head_dim = head_dim or 64
        if 2 * width % head_dim:
            raise Refusal("a width of %d gives %d channels, which are no whole number of heads of %d" % (width, 2 * width, head_dim))
        return common | ssm | {"architectures": ["Mamba2ForCausalLM"], "num_heads": 2 * width // head_dim, "head_dim": head_dim,
                               "state_size": state or 64, "n_groups": 1, "chunk_size": 64, "rms_norm": True,
                               "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    return common | ssm | {"architectures": ["MambaForCausalLM"], "intermediate_size": 2 * width, "state_size": state or 16,
                           "time_step_rank": math.ceil(width / 16)}
