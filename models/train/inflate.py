"""Makes a trained model as costly as a large one without changing what it says: for measuring speed at a size that there are no
weights for. What it says of quality is the small model's.

    python models/train/inflate.py MODEL --out DIR --width 4096 --layers 40 [--inner 11008] [--vocab 128256]

The residual stream of the small model stands in the first channels of the wide one; the rest of it stays zero:
  * what writes to the residual (o_proj, out_proj, down_proj, embeddings) has zeros in the rows of new channels;
  * what reads it has random weights in their columns, which meet zeros;
  * a norm over r times as many channels sees a mean of squares r times as small: its weight is divided by sqrt(r), its eps by r;
  * new heads and MLP units are random, and what reads them has zero columns; so are new layers, whose outputs are zero;
  * new channels of a Mamba have x = 0, so its gated norm sees zeros there too, and grows by the same r.
A token beyond the vocabulary has a logit of some -1000: one new channel holds a small constant, of which the rows of such tokens in the
head subtract a large multiple. This needs a head of its own.

MODEL may be a head of train_head.py: it then drafts for the target of that --width and --vocab what it drafts for its own, and costs what a
head for a target of that width costs. One that uses its target's head hands the constant on. An EAGLE-3 head names layers of its target,
which --target (as it was) and --layers (of the inflated one) say.
Vectors (norms, biases, decays) and token info's second matrix are written as float32, whatever --dtype is: bfloat16 would round what was
divided by sqrt(r). So a file says what MODEL says; what computes in bfloat16 rounds that matrix anew.
Made weights are drawn from a seed, tensor by tensor, so what is in memory at once is a shard."""
import argparse
import math
import os
from fractions import Fraction

import torch

import checkpoint
import head_files
import heads
import nets
from files import Refusal, command, write_json

CONSTANT = 2.0 ** -12  # of the extra channel, in the embedding: its square is lost in any mean of squares
NORMED = 2.0 ** 7  # weight of the final norm there: the normed channel is 2^-5 / rms, still lost
HANDED = 2.0 ** 3  # weight of a head's fc there: what it hands to the target's head is 2^-9, lost too, and makes a logit of -64
BEYOND = -2.0 ** 15  # weight of the target's head there, in the rows of new tokens; float16 holds it
SHARD_BYTES = 4 << 30
WRITES = ("o_proj", "out_proj", "down_proj")


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("model", help="of the family llama, bamba or mamba2; or a head of train_head.py")
    p.add_argument("--out", required=True)
    p.add_argument("--width", type=int, help="channels of the residual stream")
    p.add_argument("--layers", type=int, help="of an EAGLE-3 head: those of its inflated target")
    p.add_argument("--inner", type=int, help="units of an MLP; in proportion to the width without")
    p.add_argument("--vocab", type=int, help="rows of the vocabulary; of a head: those of its inflated target")
    p.add_argument("--target", help="an EAGLE-3 head needs it: the directory of the target that it was trained for")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                   help="where values are drawn; other devices draw others")
    p.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    return p.parse_args(argv)


def wider(value, by, name):
    if value * by % 1:
        raise Refusal("the width would give %.2f %s; choose one that gives a whole number%s"
                      % (value * by, name, ", or --inner" if "MLP" in name else ""))
    return int(value * by)


def large_config(config, width, layers, inner, vocab):
    by, family = Fraction(width, config["hidden_size"]), config["model_type"]
    big = dict(config) | {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": vocab}
    if vocab > config["vocab_size"]:
        big["tie_word_embeddings"] = False
    eps = "layer_norm_epsilon" if family == "mamba2" else "rms_norm_eps"
    big[eps] = config[eps] / float(by)
    if family == "mamba2":
        return big | {"num_heads": wider(config["num_heads"], by, "heads")}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or config["num_attention_heads"]
    big |= {"head_dim": head_dim, "num_attention_heads": wider(config["num_attention_heads"], by, "attention heads"),
            "num_key_value_heads": wider(kv, by, "key-value heads"),
            "intermediate_size": inner or wider(config["intermediate_size"], by, "MLP units")}
    if family == "bamba":
        big["mamba_n_heads"] = wider(config["mamba_n_heads"], by, "Mamba heads")
        n, attention = config["num_hidden_layers"], config["attn_layer_indices"]
        big["attn_layer_indices"] = [i for i in range(layers) if i % n in attention]  # new layers repeat the pattern
    return big


def reads_residual(name):
    return name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "in_proj.weight", "gate_proj.weight", "up_proj.weight"))


def in_proj_rows(mixer):
    """Sizes of the parts z, x, B, C, dt of in_proj's rows."""
    inner = mixer.heads * mixer.head_dim
    return [inner, inner, mixer.states, mixer.states, mixer.heads]


def pieces(name, old, new):
    """How rows of a tensor are laid out: sizes of its parts in the small and in the large model."""
    mixer = name.split(".mixer.")[-1]
    if isinstance(old, nets.Mamba2) and mixer == "in_proj.weight":
        return in_proj_rows(old), in_proj_rows(new)
    if isinstance(old, nets.Mamba2) and mixer.startswith("conv1d."):
        return in_proj_rows(old)[1:4], in_proj_rows(new)[1:4]
    return None


def random(name, shape, draw):
    """Values that a trained model might have: none that overflow, whatever they meet."""
    how = {"generator": draw, "device": draw.device}
    if name.endswith(("A_log", "dt_bias", ".D")):
        return torch.rand(shape, **how) - (3 if name.endswith("dt_bias") else 0)
    if len(shape) == 1:
        return torch.rand(shape, **how) + 0.5
    return torch.randn(shape, **how).div_(math.sqrt(math.prod(shape[1:])))


def check_vocab(vocab, width, config):
    """How large the vocabulary becomes; without --vocab, as large as it is."""
    if (vocab or config["vocab_size"]) < config["vocab_size"]:
        raise Refusal("--vocab is %d, the model has %d already" % (vocab, config["vocab_size"]))
    if (vocab or 0) > config["vocab_size"] and width == config["hidden_size"]:
        raise Refusal("more rows of the vocabulary need a larger --width: their logits take a channel of their own")
    return vocab or config["vocab_size"]


class HeadInflater:
    """A head for a wider target. Its rows, too, stand in the first channels, and the rest of them is zero, but for the constant."""

    def __init__(self, directory, width=None, inner=None, vocab=None, seed=1):
        c = head_files.flat_config(directory)
        vocab = check_vocab(vocab, width or c["hidden_size"], c)
        self.net = head_files.load(directory, torch.zeros(1, c["hidden_size"]))  # of the embedding, only the width matters here
        self.old, self.width, units = c["hidden_size"], width or c["hidden_size"], c["intermediate_size"]
        if self.width < self.old or (inner or units) < units:
            raise Refusal("--width is %d and --inner %s, the head has %d and %d already" % (self.width, inner, self.old, units))
        self.by, self.draw, self.padded = self.width / self.old, torch.Generator().manual_seed(seed), vocab > c["vocab_size"]
        large = large_config(self.net.c | {"model_type": "llama"}, self.width, 1, inner, vocab)
        with torch.device("meta"):
            self.big = self.same_kind(large | {"target_hidden_size": self.width})

    def same_kind(self, c):
        if isinstance(self.net, heads.Lyanna):
            return heads.Lyanna(c, self.net.token_info.hot_ids if self.net.token_info else (), None)
        return type(self.net)(c)

    def read_layers(self, target, layers=None):
        """Of an EAGLE-3 head: which layers it reads of the target inflated to so many. New layers stand behind the old ones, so the same,
        but for the rows behind the final norm, whose number is that of the layers. target: the directory that the head is for."""
        c = checkpoint.read_config(target)
        if c["hidden_size"] != self.old:
            raise Refusal("%s is %d wide, the head is for a target of width %d" % (target, c["hidden_size"], self.old))
        n = c["num_hidden_layers"]
        if (layers or n) < n:
            raise Refusal("--layers is %d, %s has %d already" % (layers, target, n))
        taps = head_files.taps_of(self.net, n)
        if max(taps) > n:
            raise Refusal("the head reads layers %s, %s has %d: it is for another target" % (" ".join(map(str, taps)), target, n))
        self.big.c["taps"] = [layers or n if tap == n else tap for tap in taps]
        self.big.draft_ids = self.net.draft_ids

    def side_by_side(self, name):
        """How many rows of the residual stream stand side by side in what this tensor reads."""
        at = name.split(".")
        if at[-1] == "bias" or at[-2] not in ("fc", "input_norm", "q_proj", "k_proj", "v_proj"):
            return 1
        reader = self.net.block.self_attn.q_proj if at[-2].endswith("_proj") else self.net.fc
        return reader.in_features // self.old

    def tensor(self, name, old, shape):
        """Token info is over tokens: its norm stays, but for eps, which one number is of in a file. So what enters it shrinks with eps."""
        if name.startswith("token_info."):
            if ".w1." in name:
                return torch.cat([old, old.new_zeros(len(old), self.width - self.old)], 1)
            return old / math.sqrt(self.by) if ".w2." in name else old
        out, what = random(name, shape, self.draw), name.split(".")[-2]
        if what in ("fc", *WRITES):
            out.zero_()
        n, old = self.side_by_side(name), old / math.sqrt(self.by) if "norm" in name else old
        for new, part in zip(out.chunk(n, -1), old.chunk(n, -1)):
            new[tuple(slice(size) for size in part.shape)] = part
            if self.padded and ("norm" in name or what in ("q_proj", "k_proj", "v_proj") and name.endswith(".weight")):
                new[..., self.old] = 0  # what reads the constant says nothing of it
        if self.padded and name == "fc.weight" and not isinstance(self.net, heads.Eagle3):
            out[self.old, self.old] = HANDED  # of the embedding, which comes first; an EAGLE-3 head has a head of its own
        return out

    def write(self, directory, dtype, _):
        sizes = {name: weight.shape for name, weight in self.big.state_dict().items()}
        self.big.load_state_dict({name: self.tensor(name, old, sizes[name]) for name, old in self.net.state_dict().items()}, assign=True)
        head_files.save(self.big, directory, dtype, in_float32=lambda name, t: t.dim() == 1 or name == "token_info.w2.weight")
        return sum(w.numel() for w in self.big.parameters())


class Inflater:
    def __init__(self, directory, width=None, layers=None, inner=None, vocab=None, seed=1, device="cpu"):
        self.net, self.config = checkpoint.load(directory, device)
        if not isinstance(self.net, nets.Decoder) or self.config["model_type"] not in ("llama", "bamba", "mamba2"):
            raise Refusal("%s is a %s; this inflates llama, bamba and mamba2" % (directory, self.config["model_type"]))
        c = self.config
        width, layers = width or c["hidden_size"], layers or c["num_hidden_layers"]
        vocab = check_vocab(vocab, width, c)
        units = c.get("intermediate_size", 0)
        for what, new, old in (("--width", width, c["hidden_size"]), ("--layers", layers, c["num_hidden_layers"]),
                               ("--inner", inner or units, units)):
            if new < old:
                raise Refusal("%s is %d, the model has %d already" % (what, new, old))
        self.large = large_config(c, width, layers, inner, vocab)
        with torch.device("meta"):
            self.big = checkpoint.BUILD[c["model_type"]](self.large)
        self.by = width / c["hidden_size"]
        self.small = self.net.state_dict()
        self.draw = torch.Generator(device).manual_seed(seed)
        self.padded = vocab > c["vocab_size"]

    def tensor(self, name):
        shape = self.big.state_dict()[name].shape
        out = random(name, shape, self.draw)
        at = name.split(".")
        layer = int(at[1]) if at[0] == "layers" else None
        if layer is not None and layer >= len(self.net.layers):
            return out.zero_() if at[-2] in WRITES else out
        if name == "lm_head.weight":
            return self.head(out)
        old = self.small[name]
        if name == "embed.weight":
            out.zero_()[:old.shape[0], :old.shape[1]] = old
            if self.padded:
                out[:, old.shape[1]] = CONSTANT
            return out
        if old.dim() == 1 and "norm" in at[-2]:
            out[:len(old)] = old / math.sqrt(self.by)
            if self.padded and len(old) == self.config["hidden_size"]:
                out[len(old)] = NORMED if name == "norm.weight" else 0  # no layer reads the constant
            return out
        mixers = (self.net.layers[layer].mixer, self.big.layers[layer].mixer) if layer is not None else (None, None)
        parts = pieces(name, *mixers)
        if parts:
            return self.by_parts(out, old, *parts)
        if at[-2] in WRITES:
            out.zero_()
        out[tuple(slice(n) for n in old.shape)] = old
        return out

    def by_parts(self, out, old, small, large):
        """Parts of rows keep their beginnings. New channels of x are zero at every tensor on their way."""
        x = len(small) - 4 if len(small) == 5 else 0
        for i, (rows_out, rows_old) in enumerate(zip(out.split(large), old.split(small))):
            if i == x:
                rows_out[len(rows_old):] = 0
            rows_out[tuple(slice(n) for n in rows_old.shape)] = rows_old
        return out

    def head(self, out):
        old = self.net.head_weight
        out[:, :old.shape[1]] = 0
        out[:len(old)] = 0
        out[:len(old), :old.shape[1]] = old
        if self.padded:
            out[len(old):, old.shape[1]] = BEYOND
        return out

    def stored(self, name, dtype):
        tensor = self.tensor(name)
        return tensor.to("cpu", torch.float32 if tensor.dim() == 1 else dtype)

    def write(self, directory, dtype, tokenizer_from):
        """Shards, then the index that names them: a directory with an index is whole."""
        os.makedirs(directory, exist_ok=True)
        checkpoint.copy_tokenizer(tokenizer_from, directory)
        checkpoint.save_config(self.large | {"dtype": str(dtype).split(".")[-1]}, directory)
        size = torch.empty(0, dtype=dtype).element_size()
        shards, filled = [[]], 0
        for name, weight in self.big.state_dict().items():
            if filled and filled + weight.numel() * size > SHARD_BYTES:
                shards.append([])
                filled = 0
            shards[-1].append(name)
            filled += weight.numel() * size
        index, total, parameters = {}, 0, 0
        for i, names in enumerate(shards):
            file = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
            tensors = {checkpoint.file_name(self.big, self.large["model_type"], n): self.stored(n, dtype) for n in names}
            checkpoint.save_tensors(os.path.join(directory, file), tensors)
            index |= dict.fromkeys(tensors, file)
            total += sum(t.numel() * t.element_size() for t in tensors.values())
            parameters += sum(t.numel() for t in tensors.values())
        write_json(os.path.join(directory, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": index})
        return parameters


def head_inflater(a):
    inflater = HeadInflater(a.model, a.width, a.inner, a.vocab, a.seed)
    if isinstance(inflater.net, heads.Eagle3):
        if not a.target:
            raise Refusal("%s is an EAGLE-3 head, which reads layers of its target: say --target" % a.model)
        inflater.read_layers(a.target, a.layers)
    elif a.layers or a.target:
        raise Refusal("%s is a head of one layer, which reads no others: leave --layers and --target out" % a.model)
    return inflater


def main(argv=None):
    a = arguments(argv)
    if os.path.exists(os.path.join(a.out, "config.json")):
        raise Refusal("%s has a model in it; name another --out" % a.out)
    is_head = "fc.weight" in checkpoint.read_tensors(a.model)
    if a.target and not is_head:
        raise Refusal("%s is no head: leave --target out" % a.model)
    inflater = head_inflater(a) if is_head else Inflater(a.model, a.width, a.layers, a.inner, a.vocab, a.seed, a.device)
    n = inflater.write(a.out, getattr(torch, a.dtype), a.model)
    print("%s: %.2f billion parameters; it %s what %s does" % (a.out, n / 1e9, "drafts" if is_head else "says", a.model))
    return 0


if __name__ == "__main__":
    command(main)
