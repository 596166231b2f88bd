"""What training a drafter model and training a head on hidden states have in common: data, optimiser, steps, checkpoints."""
import argparse
import math
import time

import torch

import acceptance
import corpus
from files import Refusal
from run import Run

MEASURE_AFTER, WARM_UP = 40, 200  # steps: when a budget becomes a number of steps; until the full learning rate
NOT_OF_THE_WEIGHTS = {"target", "out", "text", "generated", "logits", "cache", "device", "compile", "budget", "seconds", "save_every",
                      "evaluate_every", "held_rows"}


def add_arguments(p, batch, length, lr):
    """Options that every training command has."""
    p.add_argument("target", help="the target's directory")
    p.add_argument("--out", required=True, help="directory of the run, which becomes the drafter's")
    data = p.add_argument_group("data")
    data.add_argument("--text", nargs="+", default=[], help="files or directories of .txt, .txt.xz")
    data.add_argument("--repeat", nargs="*", default=[], metavar="NAME=N", help="count files whose name begins so N times")
    data.add_argument("--generated", nargs="*", default=[], help="directories of generate.py")
    data.add_argument("--generated-share", type=float, default=0.5, help="of a batch, when there is generated text")
    data.add_argument("--cache", help="directory where tokenised text is kept")
    how = p.add_argument_group("training")
    how.add_argument("--batch", type=int, default=batch)
    how.add_argument("--length", type=int, default=length)
    how.add_argument("--steps", type=int, help="or --budget")
    how.add_argument("--budget", type=float, help="seconds of this call: as many steps as fit, found by measuring the first")
    how.add_argument("--lr", type=float, default=lr)
    how.add_argument("--decay", type=float, default=0.05)
    how.add_argument("--seed", type=int, default=1)
    how.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    call = p.add_argument_group("this call")
    call.add_argument("--seconds", type=float, help="put the run away after so long; the same command goes on")
    call.add_argument("--save-every", type=float, default=60, help="seconds")
    call.add_argument("--evaluate-every", type=int, default=1000, help="steps")
    call.add_argument("--held-rows", type=int, default=256, help="greedy continuations that acceptance is measured on")


def parse(p, argv):
    a = p.parse_args(argv)
    if bool(a.steps) == bool(a.budget):
        raise Refusal("give either --steps or --budget")
    if a.batch < 1 or a.length < 8 or not 0 <= a.generated_share <= 1:
        raise Refusal("--batch needs 1 at least, --length 8, --generated-share 0 to 1")
    return a


def parser(doc):
    return argparse.ArgumentParser(description=doc.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)


def learning_rate(step, steps, peak):
    """Linear warm-up, then a cosine to a hundredth."""
    if step < WARM_UP or not steps:
        return peak * (step + 1) / WARM_UP
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(steps - WARM_UP, 1))))


def make_optimizer(net, lr, decay):
    """AdamW; vectors and the decays of a Mamba are not pulled to zero."""
    matrices = [w for n, w in net.named_parameters() if w.dim() == 2 and not n.endswith("A_log")]
    others = [w for n, w in net.named_parameters() if not (w.dim() == 2 and not n.endswith("A_log"))]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=next(net.parameters()).is_cuda)


def to_device(x, device):
    """A CPU tensor there, without waiting for what the device still has to do: from ordinary memory the copy would."""
    return x.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else x.to(device)


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
        starts = [to_device(torch.randint(len(tokens) - self.length, (n,), generator=draw), tokens.device) for tokens, n in self.parts]
        return torch.cat([corpus.windows(tokens, s, self.length) for (tokens, _), s in zip(self.parts, starts)])


class Trainer:
    """Steps of one net. A command gives the hooks at the end."""

    def __init__(self, a, net, batches, memory, **identity):
        """batches: batch i by its number. memory: bytes that the command has estimated. identity: what the weights depend on beside
        options."""
        self.a, self.net, self.batches, self.memory = a, net, batches, memory
        torch.backends.cuda.matmul.allow_tf32 = True
        self.run = Run(a.out, {k: v for k, v in vars(a).items() if k not in NOT_OF_THE_WEIGHTS} | identity, a.seconds)
        self.optimizer = make_optimizer(net, a.lr, a.decay)
        self.step, self.steps, self.history, self.trained = 0, a.steps, [], 0.0

    def resume(self):
        state = self.run.load(self.a.device)
        if state:
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.steps, self.history, self.trained = state["step"], state["steps"], state["history"], state["seconds"]
            print("resumed at step %d of %s" % (self.step, self.steps))

    def save(self, finished=False):
        """The drafter as it is now, too: a run that is never taken up again has left one."""
        self.export()
        self.run.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step, "steps": self.steps,
                       "history": self.history, "seconds": self.trained}, self.report(finished))

    def report(self, finished):
        return {"finished": finished, "parameters": sum(w.numel() for w in self.net.parameters()), "step": self.step, "steps": self.steps,
                "tokens": self.step * self.a.batch * self.a.length, "seconds": round(self.trained, 1), "measured": self.history}

    def learn(self):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.a.lr)
        loss, sums = self.loss(self.batches(self.step))
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
        parts = self.held_parts()
        sums = torch.stack([self.loss(part)[1] * len(part) for part in parts]).sum(0) / sum(map(len, parts))
        measured = acceptance.report(self.reached())
        self.net.train()
        self.history.append({"step": self.step, "kl": round(float(sums[0]), 4), "overlap": round(float(sums[2]), 4)} | measured)
        reached = " ".join("%.3f" % v for v in measured["reached"])
        print("step %d held back: KL %.4f nats, overlap %.3f at T = 1; greedy chains reach depth 1-%d: %s, emitted per step %.3f"
              % (self.step, sums[0], sums[2], len(measured["reached"]), reached, measured["emitted_per_step"]), flush=True)

    def settled(self):
        if self.a.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.time()

    def find_steps(self, began, mark):
        """What is left of the budget, at the speed of the last steps, less the time to write and to measure."""
        a_step = (self.settled() - mark) / (MEASURE_AFTER - 10)
        left = 0.95 * (self.a.budget - (time.time() - began)) - 10
        self.steps = max(self.step + int(left / a_step), WARM_UP + 1)
        print("%.1f ms a step: %d steps" % (1000 * a_step, self.steps), flush=True)

    def say(self, sums, tokens, seconds):
        kl, ce, overlap = sums.tolist()[:3]
        print("step %d of %s: KL %.4f, CE %.4f, overlap %.3f, %.2f M tokens/s"
              % (self.step, self.steps, kl, ce, overlap, tokens / seconds / 1e6), flush=True)

    def train(self, began):
        """Gives 0 when the run is over, 3 when it was put away."""
        last, shown, first = time.time(), self.step, self.step
        while not self.steps or self.step < self.steps:
            if self.step - first == 10:
                mark = self.settled()
            sums = self.learn()
            if not self.steps and self.step - first == MEASURE_AFTER:
                self.find_steps(began, mark)
            if self.step % 100 == 0 or self.step == self.steps:
                now = self.settled()
                self.say(sums, (self.step - shown) * self.a.batch * self.a.length, now - last)
                self.trained += now - last
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

    def main(self, began):
        if self.run.is_finished():
            print("%s is finished" % self.a.out)
            return 0
        self.resume()
        status = self.train(began)
        if self.a.device.startswith("cuda"):
            print("peak of GPU memory %.1f GiB, estimated %.1f GiB" % (torch.cuda.max_memory_allocated() / 2**30, self.memory / 2**30))
        return status

    # Hooks.

    def loss(self, batch):
        """(loss of a batch, without gradient [3]: KL, cross-entropy of the likeliest token, overlap)."""
        raise NotImplementedError

    def held_parts(self):
        """Batches of what is held back, each with a len."""
        raise NotImplementedError

    def reached(self):
        """acceptance.by_depth on what is held back."""
        raise NotImplementedError

    def export(self):
        """Writes the model directory."""
        raise NotImplementedError


class BesideTarget(Trainer):
    """Batches are tokens [B,T] of text and of what the target generated; the target runs beside the net. Two hooks are left: loss, and
    reached_on, which is reached on continuations [B,T] whose last n tokens are the target's."""

    def __init__(self, a, target, net, memory, text, held, generated, **identity):
        """text, held: of corpus.load_text; generated: of corpus.load_generated, or None. identity: as for Trainer."""
        self.target, self.held = target, held
        batches = Batches(a, text.to(a.device), None if generated is None else generated.to(a.device))
        made = 0 if generated is None else len(generated)
        super().__init__(a, net, batches, memory, text_tokens=len(text), generated_tokens=made, **identity)
        self.continued, self.n_continued = None, min(64, a.length - 1)

    def main(self, began):
        if not self.run.is_finished():
            self.continued = acceptance.continuations(self.target, self.held, self.a.held_rows, min(96, self.a.length), self.n_continued)
        return super().main(began)

    def held_parts(self):
        """Rows of held-back text, from each file alike."""
        length = self.a.length
        rows = [corpus.windows(h, torch.arange(0, len(h) - length, length)[:8], length) for h in self.held if len(h) > length]
        return torch.cat(rows or [self.continued[:, :length].cpu()]).to(self.a.device).split(self.a.batch)

    def reached(self):
        return self.reached_on(self.continued, self.n_continued)


def load_data(a, config):
    """(text, held, generated) of the options, for BesideTarget."""
    if not a.text:
        raise Refusal("--text is missing: there is nothing to train on")
    text, held = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
    return text, held, corpus.load_generated(a.generated, config) if a.generated else None
