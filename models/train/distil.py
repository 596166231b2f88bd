"""Distils a drafter from a target: KL of the target's distribution plus cross-entropy of its likeliest token, on text and on what the
target itself generated. Run the same command again after a kill: it goes on where the last checkpoint was.

    python models/train/distil.py TARGET --out DIR --text CORPUS... [--generated DIR...] [--family mamba2 --layers 2 --width 256] ..."""
import argparse
import math
import time

import torch

import acceptance
import checkpoint
import corpus
import losses
from files import Refusal, command
from run import Run, check_memory
from sample import autocast

MEASURE_AFTER, WARM_UP = 40, 200  # steps: when a budget becomes a number of steps; until the full learning rate


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("target")
    p.add_argument("--out", required=True)
    data = p.add_argument_group("data")
    data.add_argument("--text", nargs="+", required=True, help="files or directories of .txt, .txt.xz")
    data.add_argument("--repeat", nargs="*", default=[], metavar="NAME=N", help="count files whose name begins so N times")
    data.add_argument("--generated", nargs="*", default=[], help="directories of generate.py")
    data.add_argument("--generated-share", type=float, default=0.5, help="of a batch, when there is generated text")
    data.add_argument("--cache", help="directory where tokenised text is kept")
    size = p.add_argument_group("the drafter")
    size.add_argument("--family", choices=["mamba2", "mamba", "llama"], default="mamba2")
    size.add_argument("--layers", type=int, default=2)
    size.add_argument("--width", type=int, default=256)
    size.add_argument("--state", type=int, help="states of a Mamba (64; 16 for mamba)")
    size.add_argument("--head-dim", type=int, help="channels a head (64; 32 for llama)")
    size.add_argument("--heads", type=int)
    size.add_argument("--kv-heads", type=int)
    size.add_argument("--inner", type=int, help="width of a llama's MLP")
    how = p.add_argument_group("training")
    how.add_argument("--batch", type=int, default=128)
    how.add_argument("--length", type=int, default=512)
    how.add_argument("--steps", type=int, help="or --budget")
    how.add_argument("--budget", type=float, help="seconds of this call: as many steps as fit, found by measuring the first")
    how.add_argument("--lr", type=float, default=3e-3)
    how.add_argument("--decay", type=float, default=0.05)
    how.add_argument("--ce", type=float, default=0.2, help="weight of the cross-entropy of the target's likeliest token")
    how.add_argument("--seed", type=int, default=1)
    how.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    how.add_argument("--compile", action="store_true", help="torch.compile the drafter")
    call = p.add_argument_group("this call")
    call.add_argument("--seconds", type=float, help="put the run away after so long; the same command goes on")
    call.add_argument("--save-every", type=float, default=60, help="seconds")
    call.add_argument("--evaluate-every", type=int, default=1000, help="steps")
    call.add_argument("--held-rows", type=int, default=256, help="greedy continuations that acceptance is measured on")
    return p.parse_args(argv)


NOT_OF_THE_WEIGHTS = {"target", "out", "text", "generated", "cache", "device", "compile", "budget", "seconds", "save_every", "evaluate_every", "held_rows"}


def learning_rate(step, steps, peak):
    """Linear warm-up, then a cosine to a hundredth."""
    if step < WARM_UP or not steps:
        return peak * (step + 1) / WARM_UP
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(steps - WARM_UP, 1))))


def make_optimizer(net, lr, decay):
    matrices = [w for n, w in net.named_parameters() if w.dim() == 2 and not n.endswith("A_log")]
    others = [w for n, w in net.named_parameters() if not (w.dim() == 2 and not n.endswith("A_log"))]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95),
                             fused=next(net.parameters()).is_cuda)


def memory_of(a, target, net):
    """Bytes, roughly: weights with their gradient and moments, what layers keep for the way back, two tables of logits."""
    weights = sum(w.numel() * w.element_size() for w in target.parameters()) + sum(w.numel() for w in net.parameters()) * 16
    rows, vocab = a.batch * a.length, net.head_weight.shape[0]
    inner = 2 * a.width
    kept = {"mamba2": 60 * inner + 16 * 64 * inner // (a.head_dim or 64), "mamba": 120 * inner, "llama": 80 * a.width}[a.family]
    of_target = 60 * target.head_weight.shape[1]
    return weights + rows * (a.layers * kept + of_target) + 5 * 4 * min(rows * vocab, losses.ELEMENTS + vocab)


class Batches:
    """Batch i is a function of the seed and i alone, so a resumed run needs no position in the data but its step."""

    def __init__(self, a, text, generated=None):
        """text, generated: tokens [n] on the device that trains."""
        of_generated = 0 if generated is None else round(a.batch * a.generated_share)
        self.length, self.seed = a.length, a.seed
        self.parts = [(tokens, n) for tokens, n in ((text, a.batch - of_generated), (generated, of_generated)) if n]
        for tokens, _ in self.parts:
            if len(tokens) <= a.length:
                raise Refusal("--length is %d; the text has %d tokens" % (a.length, len(tokens)))

    def __call__(self, step):
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = [torch.randint(len(tokens) - self.length, (n,), generator=draw).to(tokens.device) for tokens, n in self.parts]
        return torch.cat([corpus.windows(tokens, s, self.length) for (tokens, _), s in zip(self.parts, starts)])


class Distiller:
    def __init__(self, a):
        self.a = a
        torch.backends.cuda.matmul.allow_tf32 = True
        self.target, config = checkpoint.load(a.target, a.device)
        if a.device.startswith("cuda"):
            self.target.half()
        self.config = checkpoint.drafter_config(config, a.family, a.layers, a.width, a.state, a.head_dim, a.heads, a.kv_heads, a.inner)
        self.net = checkpoint.BUILD[a.family](self.config).reset(a.seed).to(a.device).train()
        check_memory(a.device, memory_of(a, self.target, self.net), "--batch, --length, --width or --layers")
        text, self.held = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
        generated = corpus.load_generated(a.generated, config) if a.generated else None
        options = {k: v for k, v in vars(a).items() if k not in NOT_OF_THE_WEIGHTS}
        options |= {"text_tokens": len(text), "generated_tokens": 0 if generated is None else generated.numel()}
        self.run = Run(a.out, options, a.seconds)
        self.batches = Batches(a, text.to(a.device), None if generated is None else generated.to(a.device))
        self.optimizer = make_optimizer(self.net, a.lr, a.decay)
        self.forward = torch.compile(self.net) if a.compile else self.net
        self.step, self.steps, self.history, self.trained = 0, a.steps, [], 0.0

    def resume(self):
        state = self.run.load(self.a.device)
        if state:
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.steps, self.history, self.trained = state["step"], state["steps"], state["history"], state["seconds"]
            print("resumed at step %d of %s" % (self.step, self.steps))

    def save(self, finished=False):
        if finished:
            checkpoint.save(self.net, self.config, self.a.out, self.a.target)
        self.run.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step, "steps": self.steps,
                       "history": self.history, "seconds": self.trained}, self.report(finished))

    def report(self, finished):
        parameters = sum(w.numel() for w in self.net.parameters())
        return {"finished": finished, "command": "distil", "parameters": parameters, "step": self.step, "steps": self.steps,
                "tokens": self.step * self.a.batch * self.a.length, "seconds": round(self.trained, 1), "measured": self.history}

    def loss(self, net, ids):
        with torch.no_grad(), autocast(ids.device):
            seen = self.target(ids)
        with autocast(ids.device):
            hidden = net(ids)
        width = hidden.shape[-1]
        with autocast(ids.device):
            rows = losses.TargetRows(self.target.head, seen.reshape(-1, seen.shape[-1]))
            return losses.distil(hidden.reshape(-1, width), self.net.head_weight, rows, self.a.ce)

    def learn(self):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.a.lr)
        loss, sums = self.loss(self.forward, self.batches(self.step))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return sums

    @torch.no_grad()
    def evaluate(self):
        """Held-back loss and acceptance."""
        self.net.eval()
        rows = torch.cat([corpus.windows(h, torch.arange(0, len(h) - self.a.length, self.a.length)[:8], self.a.length)
                          for h in self.held if len(h) > self.a.length] or [self.ids[:, :self.a.length].cpu()])
        sums = torch.stack([self.loss(self.net, part.to(self.a.device))[1] * len(part) for part in rows.split(self.a.batch)]).sum(0) / len(rows)
        measured = acceptance.report(acceptance.of_model(self.net, self.ids, self.continued))
        self.net.train()
        self.history.append({"step": self.step, "kl": round(float(sums[0]), 4), "overlap": round(float(sums[2]), 4)} | measured)
        print("step %d held back: KL %.4f nats, overlap %.3f at T = 1; greedy chains reach depth 1-%d: %s, emitted per step %.3f"
              % (self.step, sums[0], sums[2], acceptance.DEPTH, " ".join("%.3f" % v for v in measured["reached"]), measured["emitted_per_step"]), flush=True)

    def find_steps(self, began, mark):
        """What is left of the budget, at the speed of the last steps, less the time to write and to measure."""
        if self.a.budget and not self.steps:
            a_step = (self.settled() - mark) / (MEASURE_AFTER - 10)
            left = 0.95 * (self.a.budget - (time.time() - began)) - 10
            self.steps = max(self.step + int(left / a_step), WARM_UP + 1)
            print("%.1f ms a step: %d steps" % (1000 * a_step, self.steps), flush=True)

    def train(self, began):
        self.continued = min(64, self.a.length - 1)
        self.ids = acceptance.continuations(self.target, self.held, self.a.held_rows, min(96, self.a.length), self.continued)
        last, shown, first = time.time(), self.step, self.step
        while not self.steps or self.step < self.steps:
            if self.step - first == 10:
                mark = self.settled()
            sums = self.learn()
            if self.step - first == MEASURE_AFTER:
                self.find_steps(began, mark)
            if self.step % 100 == 0 or self.step == self.steps:
                kl, ce, overlap = sums.tolist()
                now = time.time()
                self.trained += now - last
                print("step %d of %s: KL %.4f, CE %.4f, overlap %.3f, %.2f M tokens/s" % (self.step, self.steps, kl, ce, overlap,
                      (self.step - shown) * self.a.batch * self.a.length / (now - last) / 1e6), flush=True)
                last, shown = now, self.step
            if self.step % self.a.evaluate_every == 0 or self.step == self.steps:
                self.evaluate()
            if self.step < (self.steps or math.inf) and (self.run.must_stop() or self.run.must_save(self.a.save_every)):
                self.save()
                if self.run.must_stop():
                    print("put away at step %d of %s; the same command goes on" % (self.step, self.steps))
                    return 3
        self.save(finished=True)
        self.run.finish()
        return 0

    def settled(self):
        if self.a.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.time()


def main(argv=None):
    began, a = time.time(), arguments(argv)
    if bool(a.steps) == bool(a.budget):
        raise Refusal("give either --steps or --budget")
    distiller = Distiller(a)
    if distiller.run.is_finished():
        print("%s is finished" % a.out)
        return 0
    distiller.resume()
    status = distiller.train(began)
    if a.device.startswith("cuda"):
        print("peak of GPU memory %.1f GiB, estimated %.1f GiB" % (torch.cuda.max_memory_allocated() / 2**30, memory_of(a, distiller.target, distiller.net) / 2**30))
    return status


if __name__ == "__main__":
    command(main)
