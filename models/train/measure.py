"""Measures a drafter against its target on held-back text: greedy acceptance by depth, and Sequoia's acceptance vector, which says how
often the first, second, ... child is the accepted one.

    python models/train/measure.py TARGET DRAFTER --text CORPUS... [--temperature 0 1] [--children 8] [--out FILE.json]

DRAFTER is a model directory or a head of train_head.py."""
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
    p.add_argument("drafter")
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--cache")
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
            taps = head.c["taps"] or head_files.default_taps(len(target.layers))
            hidden = torch.cat(target(ids, tuple(taps))[1], -1)
        outs = head.unroll(target.embed(ids[:, 1:]).float(), (final if hidden is None else hidden)[:, :-1], acceptance.DEPTH)
        return [head.rows(out, ids[:, 1:]) for out in outs], head.weight(target.head_weight)

    def whole(self, logits):
        """Logits over the target's vocabulary; what cannot be drafted is -inf."""
        if not isinstance(self.head, heads.Eagle3) or logits.shape[-1] == self.target.head_weight.shape[0]:
            return logits
        out = logits.new_full((*logits.shape[:-1], self.target.head_weight.shape[0]), -torch.inf)
        return out.index_copy(-1, self.head.draft_ids.to(logits.device), logits)

    def reached(self, ids, n):
        """acceptance.by_depth of the drafter's chains."""
        if self.net is not None:
            return acceptance.of_model(self.net, ids, n)
        rows, weight = self.chains(ids, n)
        first, last, right = ids.shape[1] - n - 2, ids.shape[1] - 2 - acceptance.DEPTH, []
        for j, row in enumerate(rows):
            said = self.whole(F.linear(row[:, first + j:last + j + 1], weight.to(row.dtype))).argmax(-1)
            right.append(said == ids[:, first + j + 2:last + j + 3])
        return torch.stack(right).float().cumprod(0).mean((1, 2))

    def logits(self, ids, n):
        """(target's, drafter's first row's) logits [B*(n-1),V] of the tokens behind the first of the last n."""
        p = self.target.head(self.target(ids)[:, -n:-1]).float()
        if self.net is not None:
            q = self.net.head(self.net(ids)[:, -n:-1]).float()
        else:
            rows, weight = self.chains(ids, n)
            q = self.whole(F.linear(rows[0][:, -n:][:, :n - 1], weight.to(rows[0].dtype)).float())
        return p.flatten(0, 1), q.flatten(0, 1)


@torch.no_grad()
def main(argv=None):
    a = arguments(argv)
    target, config = checkpoint.load(a.target, a.device)
    if not 1 <= a.children < config["vocab_size"]:
        raise Refusal("--children is %d, need 1 to %d" % (a.children, config["vocab_size"] - 1))
    drafter = Measured(target, a.drafter, a.device)
    _, held = corpus.load_text(a.text, a.target, config, a.cache)
    draw = torch.Generator(a.device).manual_seed(a.seed)
    greedy = acceptance.continuations(target, held, a.rows, a.prompt, a.length, a.seed)
    report = {"rows": a.rows, "length": a.length}
    with autocast(a.device):
        reached = sum(drafter.reached(ids, a.length) * len(ids) for ids in greedy.split(16)) / len(greedy)
        report["greedy"] = acceptance.report(reached)
        print("greedy chains reach depth 1-%d: %s, emitted per step %.3f"
              % (len(reached), " ".join("%.3f" % v for v in report["greedy"]["reached"]), report["greedy"]["emitted_per_step"]))
        for t in a.temperature:
            ids = greedy
            if t:
                forced = greedy.clone()
                forced[:, -a.length:] = -1
                ids = sample(target, forced, torch.full((len(greedy),), t, device=greedy.device), a.seed)
            parts = [vector(*drafter.logits(rows, a.length), t, a.children, draw) * len(rows) for rows in ids.split(16)]
            found = (sum(parts) / len(ids)).tolist()
            report["acceptance_vector_T%g" % t] = [round(v, 5) for v in found]
            print("T = %g, acceptance of child 1-%d: %s; none %.4f" % (t, a.children, " ".join("%.4f" % v for v in found), 1 - sum(found)))
    if a.out:
        write_json(a.out, report)
    return 0


if __name__ == "__main__":
    command(main)
