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
from files import command
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
    p.add_argument("--ce", type=float, default=0.2, help="weight of the cross-entropy of the target's likeliest token")
    p.add_argument("--compile", action="store_true", help="torch.compile the drafter")
    return trainer.parse(p, argv)


def memory_of(a, target, net):
    """Bytes, roughly: weights with their gradient and moments, what layers keep for the way back, a few tables of logits."""
    weights = sum(w.numel() * w.element_size() for w in target.parameters()) + sum(w.numel() for w in net.parameters()) * 16
    rows, vocab, inner = a.batch * a.length, net.head_weight.shape[0], 2 * a.width
    kept = {"mamba2": 60 * inner + 16 * 64 * inner // (a.head_dim or 64), "mamba": 120 * inner, "llama": 80 * a.width}[a.family]
    of_target = 60 * target.head_weight.shape[1]
    return weights + rows * (a.layers * kept + of_target) + 5 * 4 * min(rows * vocab, losses.ELEMENTS + vocab)


class Distiller(trainer.Trainer):
    def __init__(self, a):
        target, config = checkpoint.load(a.target, a.device)
        if a.device.startswith("cuda"):
            target.half()
        self.config = checkpoint.drafter_config(config, a.family, a.layers, a.width, a.state, a.head_dim, a.heads, a.kv_heads, a.inner)
        net = checkpoint.BUILD[a.family](self.config).reset(a.seed).to(a.device).train()
        self.memory = memory_of(a, target, net)
        check_memory(a.device, self.memory, "--batch, --length, --width or --layers")
        text, held = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
        generated = corpus.load_generated(a.generated, config) if a.generated else None
        super().__init__(a, "distil", target, config, net, text, held, generated)
        self.forward = torch.compile(net) if a.compile else net

    def loss(self, ids):
        with autocast(ids.device):
            with torch.no_grad():
                seen = self.target(ids)
            hidden = (self.forward if self.net.training else self.net)(ids)
            rows = losses.TargetRows(self.target.head, seen.flatten(0, 1))
            return losses.distil(hidden.flatten(0, 1), self.net.head_weight, rows, self.a.ce)

    def reached(self, ids, n):
        return acceptance.of_model(self.net, ids, n)

    def export(self):
        checkpoint.save(self.net, self.config, self.a.out, self.a.target)


def main(argv=None):
    began = time.time()
    return Distiller(arguments(argv)).main(began)


if __name__ == "__main__":
    command(main)
