"""Distils a drafter from a target: KL of the target's distribution plus cross-entropy of its likeliest token, on text and on what the
target itself generated. Run the same command again after a kill: it goes on where the last checkpoint was.

    python models/train/distil.py TARGET --out DIR --text CORPUS... [--generated DIR...] [--family mamba2 --layers 2 --width 256] ..."""
import time

import torch

import acceptance
import checkpoint
import corpus
import losses
import trainer
from files import Refusal, command
from run import check_memory
from sample import autocast


def arguments(argv=None):
    p = trainer.parser(__doc__)
    trainer.add_arguments(p, batch=128, length=512, lr=3e-3)
    size = p.add_argument_group("the drafter")
    size.add_argument("--family", choices=["mamba2", "mamba", "llama"], default="mamba2")
    size.add_argument("--layers", type=int, default=2)
    size.add_argument("--width", type=int, default=256)
    size.add_argument("--state", type=int, help="states of a Mamba (64; 16 for mamba)")
    size.add_argument("--head-dim", type=int, help="channels a head (64; 32 for llama)")
    size.add_argument("--heads", type=int)
    size.add_argument("--kv-heads", type=int)
    size.add_argument("--inner", type=int, help="width of a llama's MLP")
    p.add_argument("--logits", help="directory of logits that were computed elsewhere, in place of --text: part-*.safetensors with tokens "
                   "[N,T], top_ids [N,T,k], the likeliest first, and top_probs [N,T,k]")
    p.add_argument("--ce", type=float, default=0.2, help="weight of the cross-entropy of the target's likeliest token")
    p.add_argument("--compile", action="store_true", help="torch.compile the drafter")
    return trainer.parse(p, argv)


def memory_of(a, target, net):
    """Bytes, roughly: weights with their gradient and moments, what layers keep for the way back, a few tables of logits."""
    weights = sum(w.numel() for w in net.parameters()) * 16
    weights += sum(w.numel() * w.element_size() for w in target.parameters()) if target else 0
    rows, vocab, inner = a.batch * a.length, net.head_weight.shape[0], 2 * a.width
    kept = {"mamba2": 60 * inner + 16 * 64 * inner // (a.head_dim or 64), "mamba": 120 * inner, "llama": 80 * a.width}[a.family]
    of_target = 60 * target.head_weight.shape[1] if target else 0
    return weights + rows * (a.layers * kept + of_target) + 5 * 4 * min(rows * vocab, losses.ELEMENTS + vocab)


def make_drafter(a, config):
    """(net of random weights, its config.json) for a target whose config is given."""
    own = checkpoint.drafter_config(config, a.family, a.layers, a.width, a.state, a.head_dim, a.heads, a.kv_heads, a.inner)
    return checkpoint.BUILD[a.family](own).reset(a.seed).to(a.device).train(), own


class Distiller(trainer.BesideTarget):
    def __init__(self, a):
        target, config = checkpoint.load(a.target, a.device)
        if a.device.startswith("cuda"):
            target.half()
        net, self.config = make_drafter(a, config)
        memory = memory_of(a, target, net)
        check_memory(a.device, memory, "--batch, --length, --width or --layers")
        super().__init__(a, target, net, memory, *trainer.load_data(a, config))
        self.forward = torch.compile(net) if a.compile else net

    def loss(self, ids):
        with autocast(ids.device):
            with torch.no_grad():
                seen = self.target(ids)
            hidden = (self.forward if self.net.training else self.net)(ids)
            rows = losses.TargetRows(self.target.head, seen.flatten(0, 1))
            return losses.distil(hidden.flatten(0, 1), self.net.head_weight, rows, self.a.ce)

    def reached_on(self, ids, n):
        return acceptance.of_model(self.net, ids, n)

    def export(self):
        checkpoint.save(self.net, self.config, self.a.out, self.a.target)


class FromLogits(trainer.Trainer):
    """The same from logits that were computed elsewhere: the target's weights are not loaded. A batch is indices of rows."""

    def __init__(self, a):
        config = checkpoint.read_config(a.target)
        net, self.config = make_drafter(a, config)
        self.data = corpus.load_logits(a.logits, config)
        n, length = self.data[0].shape
        if n < 2 or length <= acceptance.DEPTH:
            raise Refusal("%s has %d rows of %d tokens; need 2 at least, of more than %d" % (a.logits, n, length, acceptance.DEPTH))
        self.n_train, a.length = n - max(1, int(n * corpus.HELD_BACK)), length
        memory = memory_of(a, None, net) + sum(t.numel() * t.element_size() for t in self.data)
        check_memory(a.device, memory, "--batch, --width or --layers")
        self.data = [t.to(a.device) for t in self.data]
        super().__init__(a, net, self.rows_of, memory, logits_rows=n)
        self.forward = torch.compile(net) if a.compile else net

    def rows_of(self, step):
        return torch.randint(self.n_train, (self.a.batch,), generator=torch.Generator().manual_seed(self.a.seed * 1_000_003 + step))

    def held_parts(self):
        return torch.arange(self.n_train, len(self.data[0])).split(self.a.batch)

    def loss(self, batch):
        at = trainer.to_device(batch, self.a.device)
        ids, top, probs = (t[at] for t in self.data)
        with autocast(ids.device):
            hidden = (self.forward if self.net.training else self.net)(ids.long())
            rows = losses.TopRows(top.flatten(0, 1), probs.flatten(0, 1))
            return losses.distil(hidden.flatten(0, 1), self.net.head_weight, rows, self.a.ce)

    def reached(self):
        """On the rows as they are: where the text is not greedy, so deep as the target's likeliest tokens go."""
        agreed = []
        for batch in self.held_parts():
            ids, top, _ = (t[batch.to(t.device)] for t in self.data)
            with autocast(ids.device):
                agreed.append(self.net.head(self.net(ids.long())).argmax(-1) == top[..., 0])
        return acceptance.by_depth(torch.cat(agreed))

    def export(self):
        checkpoint.save(self.net, self.config, self.a.out, self.a.target)


def main(argv=None):
    began, a = time.time(), arguments(argv)
    if a.logits and (a.text or a.generated):
        raise Refusal("--logits has its text in it; leave --text and --generated out")
    return (FromLogits if a.logits else Distiller)(a).main(began)


if __name__ == "__main__":
    command(main)
