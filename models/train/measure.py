"""Measures drafters against their target on held-back text: a table of conditional acceptance by depth, and Sequoia's acceptance vector,
which says how often the first, second, ... child is the accepted one.

    python models/train/measure.py TARGET DRAFTER... --text CORPUS... [--wide 1 4] [--parts] [--temperature 0 1] [--children 8]
        [--out FILE.json]

DRAFTER is a model directory or a head of train_head.py. Acceptance at depth d, with the tokens before it accepted: how often the target's
greedy token is among the `wide` likeliest of the drafter. --parts adds rows for a Lyanna head that drafts without a part that it was
trained with: its token info, or the first token in its chain. (What a head is worth that was trained without: recipes/lyanna_parts.sh.)"""
import copy

import torch
from torch.nn import functional as F

import acceptance
import checkpoint
import corpus
import head_files
import heads
import trainer
from files import Refusal, command, write_json
from sample import autocast, sample


def arguments(argv=None):
    p = trainer.parser(__doc__)
    p.add_argument("target")
    p.add_argument("drafter", nargs="+")
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--cache")
    p.add_argument("--wide", type=int, nargs="+", default=[1, 4], help="candidates of a depth, for the table")
    p.add_argument("--parts", action="store_true", help="Lyanna heads also without a part of them")
    p.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    p.add_argument("--children", type=int, default=8)
    p.add_argument("--rows", type=int, default=128, help="continuations of the target")
    p.add_argument("--prompt", type=int, default=96, help="tokens of text in front of each")
    p.add_argument("--length", type=int, default=64, help="tokens of each")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out")
    return p.parse_args(argv)


def accepted_rank(p, q, children, draw):
    """Which of `children` children, drawn from q without replacement, multi-step speculative sampling accepts, by row: 0 for the first,
    `children` for none. p, q [R,V]; draw: a generator of their device."""
    p, q = p.clone(), q.clone()
    rank = torch.full((len(p),), children, device=p.device)
    for b in range(children):
        some = (q.sum(-1) > 0) & (rank == children)
        x = torch.multinomial(torch.where(some[:, None], q, torch.ones_like(q)), 1, generator=draw)
        u = torch.rand(len(p), 1, generator=draw, device=p.device, dtype=p.dtype)
        accept = (u * q.gather(1, x) < p.gather(1, x))[:, 0] & some
        rank = torch.where(accept, b, rank)
        p = (p - q).clamp(min=0)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-30)
        q = q.scatter(1, x, 0.0)
        q = q / q.sum(-1, keepdim=True).clamp(min=1e-30)
    return rank


def greedy_rank(p, q, children):
    """At T = 0 children are the likeliest of q, and the accepted one is the target's token."""
    hit = q.topk(children, -1).indices == p.argmax(-1, keepdim=True)
    return torch.where(hit.any(-1), hit.long().argmax(-1), children)


def vector(p, q, temperature, children, draw):
    """[children] acceptance by rank; p, q: logits [R,V]."""
    if temperature:
        rank = accepted_rank((p / temperature).softmax(-1), (q / temperature).softmax(-1), children, draw)
    else:
        rank = greedy_rank(p, q, children)
    return torch.bincount(rank, minlength=children + 1)[:children].double() / len(rank)


class Measured:
    """A drafter's logits beside its target's, along continuations [B,T] whose last n tokens are the target's."""

    def __init__(self, target, directory, device):
        self.target, config = target, checkpoint.read_config(directory)
        fc = any(k == "fc.weight" for k in checkpoint.read_tensors(directory))
        self.head = head_files.load(directory, target.embed.weight.detach().float()).to(device) if fc else None
        self.net = None if fc else checkpoint.load(directory, device)[0]
        if self.net is not None and config["vocab_size"] != target.head_weight.shape[0]:
            raise Refusal("%s has a vocabulary of %d, its target has %d" % (directory, config["vocab_size"], target.head_weight.shape[0]))

    def chains(self, ids, n):
        """Of a head: rows of chains [depth][B,T,.] as they are multiplied by its weight, and the weight."""
        target, head = self.target, self.head
        final, hidden = target(ids), None
        if isinstance(head, heads.Eagle3):
            hidden = torch.cat(target(ids, tuple(head_files.taps_of(head, target.n_layers)))[1], -1)
        outs = head.unroll(target.embed(ids[:, 1:]).float(), (final if hidden is None else hidden)[:, :-1], acceptance.DEPTH)
        return [head.rows(out, ids[:, 1:]) for out in outs], head.weight(target.head_weight)

    def whole(self, logits):
        """Logits over the target's vocabulary; what cannot be drafted is -inf."""
        if not isinstance(self.head, heads.Eagle3) or logits.shape[-1] == self.target.head_weight.shape[0]:
            return logits
        out = logits.new_full((*logits.shape[:-1], self.target.head_weight.shape[0]), -torch.inf)
        return out.index_copy(-1, self.head.draft_ids.to(logits.device), logits)

    def reached(self, ids, n, wide=1):
        """acceptance.by_depth of the drafter's chains; of `wide` candidates at each depth."""
        if self.net is not None:
            return acceptance.of_model(self.net, ids, n, wide=wide)
        rows, weight = self.chains(ids, n)
        first, last, right = ids.shape[1] - n - 2, ids.shape[1] - 2 - acceptance.DEPTH, []
        for j, row in enumerate(rows):
            logits = self.whole(F.linear(row[:, first + j:last + j + 1], weight.to(row.dtype)))
            right.append(acceptance.among(logits, ids[:, first + j + 2:last + j + 3], wide))
        return torch.stack(right).float().cumprod(0).mean((1, 2))

    def without(self):
        """(name, drafter) for each part that a Lyanna head can do without."""
        if not isinstance(self.head, heads.Lyanna):
            return
        parts = {}
        if self.head.token_info:
            parts["token info"] = lambda head: setattr(head, "token_info", None)
        if self.head.fc.weight[:, :self.head.c["hidden_size"]].any():  # zeros: it was trained without
            parts["first token"] = lambda head: head.c.update(first_token=False)
        for name, leave_out in parts.items():
            other, other.head = copy.copy(self), copy.copy(self.head)
            other.head.c = dict(self.head.c)
            other.head._modules = dict(self.head._modules)
            leave_out(other.head)
            yield name, other

    def logits(self, ids, n):
        """(target's, drafter's first row's) logits [B*(n-1),V] of the tokens behind the first of the last n."""
        p = self.target.head(self.target(ids)[:, -n:-1]).float()
        if self.net is not None:
            q = self.net.head(self.net(ids)[:, -n:-1]).float()
        else:
            rows, weight = self.chains(ids, n)
            q = self.whole(F.linear(rows[0][:, -n:][:, :n - 1], weight.to(rows[0].dtype)).float())
        return p.flatten(0, 1), q.flatten(0, 1)


def by_depth(drafter, greedy, a):
    """The reports of acceptance.report, by width."""
    return {str(wide): acceptance.report(sum(drafter.reached(ids, a.length, wide) * len(ids) for ids in greedy.split(16)) / len(greedy))
            for wide in a.wide}


def print_table(reports):
    """One row for each drafter and width, of conditional acceptance."""
    width = max(len(name) for name, _ in reports)
    depth = acceptance.DEPTH
    print("\nconditional acceptance by depth, percent; the first of so many that are not accepted ends a chain")
    print("%-*s  wide %s  emitted per step" % (width, "", " ".join("%5d" % d for d in range(1, depth + 1))))
    for name, report in reports:
        for wide, found in report["greedy"].items():
            by_depth = " ".join("%5.1f" % (100 * v) for v in found["conditional"])
            print("%-*s  %4s %s  %.3f" % (width, name, wide, by_depth, found["emitted_per_step"]))
    print(flush=True)


def vectors(drafter, greedy, a, draw):
    """Acceptance of child 1, 2, ... at each temperature."""
    found = {}
    for t in a.temperature:
        ids = greedy
        if t:
            forced = greedy.clone()
            forced[:, -a.length:] = -1
            ids = sample(drafter.target, forced, torch.full((len(greedy),), t, device=greedy.device), a.seed)
        parts = [vector(*drafter.logits(rows, a.length), t, a.children, draw) * len(rows) for rows in ids.split(16)]
        found["acceptance_vector_T%g" % t] = values = [round(v, 5) for v in (sum(parts) / len(ids)).tolist()]
        print("T = %g, acceptance of child 1-%d: %s; none %.4f" % (t, a.children, " ".join("%.4f" % v for v in values), 1 - sum(values)))
    return found


@torch.no_grad()
def main(argv=None):
    a = arguments(argv)
    target, config = checkpoint.load(a.target, a.device)
    if not 1 <= a.children < config["vocab_size"]:
        raise Refusal("--children is %d, need 1 to %d" % (a.children, config["vocab_size"] - 1))
    if not all(1 <= wide < config["vocab_size"] for wide in a.wide):
        raise Refusal("--wide %s: each from 1 to %d" % (" ".join(map(str, a.wide)), config["vocab_size"] - 1))
    drafters = [(name, Measured(target, name, a.device)) for name in a.drafter]
    _, held = corpus.load_text(a.text, a.target, config, a.cache)
    greedy = acceptance.continuations(target, held, a.rows, a.prompt, a.length, a.seed)
    reports = []
    with autocast(a.device):
        for name, drafter in drafters:
            reports.append((name, {"greedy": by_depth(drafter, greedy, a)}))
            for part, other in drafter.without() if a.parts else ():
                reports.append(("%s, drafting without %s" % (name, part), {"greedy": by_depth(other, greedy, a)}))
        print_table(reports)
        for name, drafter in drafters:
            print(name)
            dict(reports)[name].update(vectors(drafter, greedy, a, torch.Generator(a.device).manual_seed(a.seed)))
    if a.out:
        write_json(a.out, {"rows": a.rows, "length": a.length, "drafters": [{"name": name} | report for name, report in reports]})
    return 0


if __name__ == "__main__":
    command(main)
