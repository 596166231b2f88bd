"""Heads as directories: config.json and model.safetensors in the published layouts of EAGLE-2 and EAGLE-3 (both dialects), and one of
its own for Lyanna: EAGLE-2's names, with token_info.*."""
import os

import torch

import checkpoint
import heads
from files import Refusal, write_json

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
         "vocab_size", "max_position_embeddings")
NORMS_OF_BLOCK = ("input_layernorm", "hidden_norm")  # of EAGLE-3: among the block's tensors in a file, in front of it here
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def head_config(target, **more):
    """Sizes of a head for the target whose config is given, as a Llama's config has them."""
    width = target["hidden_size"]
    n = target.get("num_attention_heads") or width // 64
    return {"hidden_size": width, "target_hidden_size": width, "vocab_size": target["vocab_size"],
            "intermediate_size": target.get("intermediate_size") or width * 8 // 3 // 16 * 16,
            "num_attention_heads": n, "num_key_value_heads": target.get("num_key_value_heads") or n,
            "head_dim": target.get("head_dim") or width // n, "rope_theta": checkpoint.rope_theta(target),
            "rms_norm_eps": target.get("rms_norm_eps", target.get("layer_norm_epsilon", 1e-5)),
            "max_position_embeddings": target.get("max_position_embeddings") or 2048} | more


def default_taps(layers):
    """The residuals entering these layers (EAGLE's choice)."""
    return [min(2, layers - 1), layers // 2, max(layers - 3, 0)]


def taps_of(head, layers):
    """The layers that an EAGLE-3 head reads of a target with so many: its own, or EAGLE's choice where its file names none that can be
    believed."""
    return head.c["taps"] or default_taps(layers)


def renamed(state, block):
    """Tensors by the layout's names: what is `block.` here has another prefix there."""
    return {(block + key[len("block."):] if key.startswith("block.") else key): value for key, value in state.items()}


def scale_in_fc(head):
    """A head's tensors by the layout's names, with the factor of its embeddings in the matrix that reads them. Zero: it was trained
    without them, and zeros of the matrix give what zeros in their place do."""
    tensors = renamed(head.state_dict(), "layers.0.")
    tensors["fc.weight"] = tensors["fc.weight"].clone()
    tensors["fc.weight"][:, :head.c["hidden_size"]] *= head.c.get("embedding_scale", 1.0) if head.c.get("first_token", True) else 0
    return tensors


def common(c, **more):
    return {"model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
            "dtype": "bfloat16"} | {k: c[k] for k in SIZES} | more


def eagle2_files(head):
    return common(head.c, architectures=["LlamaForCausalLM"], bias=head.c.get("bias", True)), scale_in_fc(head)


def lyanna_files(head):
    info, tensors = head.token_info, scale_in_fc(head)
    config = common(head.c, architectures=["LyannaForCausalLM"], bias=head.c.get("bias", True), draft_depth=head.c.get("draft_depth", 6),
                    token_info_rank=head.c["token_info_rank"] if info else 0, token_info_hot=len(info.hot_ids) if info else 0)
    return config, tensors


def eagle3_files(head, dialect="eagle"):
    """dialect: "eagle" (midlayer.*, a flat config) or "speculators" (layers.0.*, a nested one)."""
    c, block = head.c, "midlayer." if dialect == "eagle" else "layers.0."
    tensors = {(block + k if k.startswith(NORMS_OF_BLOCK) else k): v for k, v in renamed(head.state_dict(), block).items()}
    if c["draft_vocab_size"] != c["vocab_size"]:
        ids = head.draft_ids
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(c["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    flags = {k: c[k] for k in FLAGS if c.get(k)}
    sizes = {"draft_vocab_size": c["draft_vocab_size"], "target_hidden_size": c["target_hidden_size"]} | flags
    if dialect == "eagle":
        aux = {"eagle_aux_hidden_state_layer_ids": c["taps"], "use_aux_hidden_state": True, "layer_ids_are_inputs": True}
        return common(c, architectures=["LlamaForCausalLMEagle3"], eagle_config=aux, **sizes), tensors
    nested = common(c, architectures=["LlamaForCausalLM"])
    config = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_config": {"algorithm": "eagle3"},
              "transformer_layer_config": nested, "dtype": "bfloat16", "eagle_aux_hidden_state_layer_ids": c["taps"],
              "layer_ids_are_inputs": True}
    return config | sizes, tensors


def files_of(head, dialect="eagle"):
    if isinstance(head, heads.Eagle3):
        return eagle3_files(head, dialect)
    return lyanna_files(head) if isinstance(head, heads.Lyanna) else eagle2_files(head)


def save(head, directory, dtype=torch.bfloat16, dialect="eagle", in_float32=lambda name, tensor: False):
    """Weights come last: a directory with weights is whole. in_float32: which tensors are, whatever dtype is."""
    config, tensors = files_of(head, dialect)
    os.makedirs(directory, exist_ok=True)
    write_json(os.path.join(directory, "config.json"), config | {"dtype": str(dtype).split(".")[-1]})
    stored = {k: (torch.float32 if in_float32(k, v) else dtype) if v.is_floating_point() else v.dtype for k, v in tensors.items()}
    checkpoint.save_tensors(os.path.join(directory, "model.safetensors"), {k: v.detach().to("cpu", stored[k]) for k, v in tensors.items()})


def flat_config(directory):
    """config.json of a head, with the sizes where the flat layouts have them. Of rotations, heads.py has one: of the whole head of
    attention, by one base."""
    config = checkpoint.read_config(directory)
    outside = {k: config[k] for k in ("draft_vocab_size", "target_hidden_size") if k in config}
    c = {"model_type": "llama"} | config | config.get("transformer_layer_config", {}) | outside
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    rope = checkpoint.rope_of(c, size)
    if rope is None or rope[0] != size:
        raise Refusal("%s/config.json says %s of rotary positions; these commands know the whole head_dim and rope_type default alone"
                      % (directory, checkpoint.rope_object(c) or {"partial_rotary_factor": c.get("partial_rotary_factor")}))
    return c | {"head_dim": size, "rope_theta": rope[1]}


def load(directory, embedding):
    """The head of a directory, float32; embedding [V,H]: its target's."""
    config, c, tensors = checkpoint.read_config(directory), flat_config(directory), checkpoint.read_tensors(directory)
    width = embedding.shape[1]
    if c["hidden_size"] != width:
        raise Refusal("%s is a head for a target of width %d, not %d" % (directory, c["hidden_size"], width))
    own = {}
    for key, value in tensors.items():
        for block in ("midlayer.", "layers.0."):
            if key.startswith(block):
                key = key[len(block):]
                key = key if key.startswith(NORMS_OF_BLOCK) else "block." + key
        own[key] = value.float() if value.is_floating_point() else value
    if "lm_head.weight" in own:
        offsets = own.pop("d2t", None)
        own.pop("t2d", None)
        said = config.get("eagle_config", config)
        trusted = said.get("layer_ids_are_inputs") or own["fc.weight"].shape[1] != 3 * c["target_hidden_size"]
        aux = said.get("eagle_aux_hidden_state_layer_ids", []) if trusted else []  # else by the rule: files differ in what they count
        c |= {"n_taps": own["fc.weight"].shape[1] // c["target_hidden_size"], "taps": aux}
        head = heads.Eagle3(c)
        head.draft_ids = torch.arange(c["draft_vocab_size"]) + (0 if offsets is None else offsets)
    elif config.get("architectures") == ["LyannaForCausalLM"]:
        head = heads.Lyanna(c, own.get("token_info.hot_ids", ()), embedding)
    else:
        head = heads.Eagle2(c)
    try:
        head.load_state_dict(own)
    except RuntimeError as error:
        raise Refusal("%s is not the head that its config.json says: %s" % (directory, " ".join(str(error).split())))
    return head.eval().requires_grad_(False)
