"""Trains a head on a target's hidden states: EAGLE-2, EAGLE-3, or Lyanna. It is unrolled over its own outputs as deep as it will draft.
Run the same command again after a kill: it goes on where the last checkpoint was.

    python models/train/train_head.py TARGET --kind eagle2|eagle3|lyanna --out DIR --text CORPUS... [--generated DIR...] [--depth 6] ..."""
import time

import torch
from torch.nn import functional as F

import acceptance
import checkpoint
import corpus
import head_files
import heads
import hot_tokens
import losses
import trainer
from files import Refusal, command, read_json
from run import check_memory
from sample import autocast


def arguments(argv=None):
    p = trainer.parser(__doc__)
    trainer.add_arguments(p, batch=64, length=256, lr=2e-3)
    p.add_argument("--kind", choices=["eagle2", "eagle3", "lyanna"], required=True)
    head = p.add_argument_group("the head")
    head.add_argument("--depth", type=int, default=6, help="rows of a chain in training")
    head.add_argument("--inner", type=int, help="width of its MLP; the target's without")
    head.add_argument("--taps", type=int, nargs=3, help="eagle3: the layers whose inputs it sees, n of n: the rows behind the final norm; "
                      "2, n/2, n-3 without")
    head.add_argument("--draft-vocab", type=int, help="eagle3: so many of the most frequent tokens; all without")
    head.add_argument("--rank", type=int, default=64, help="lyanna: of the token info")
    head.add_argument("--hot", help="lyanna: so many hot tokens, or a file of hot_tokens.py; all without")
    head.add_argument("--without", choices=["token-info", "first-token"], help="lyanna: leave a part out, to see what it is worth")
    loss = p.add_argument_group("its loss")
    loss.add_argument("--feature", type=float, default=0.1, help="weight of the distance to the target's hidden vector (not eagle3)")
    loss.add_argument("--kl", type=float, default=1.0, help="weight of the distributions")
    loss.add_argument("--ce", type=float, default=0.2, help="of them, the cross-entropy of the target's likeliest token")
    loss.add_argument("--decline", type=float, default=0.9, help="weight of a row of the chain by that of the row before")
    a = trainer.parse(p, argv)
    if not 1 <= a.depth < a.length - 2:
        raise Refusal("--depth is %d, need 1 to --length - 3" % a.depth)
    return a


def make_head(a, config, embedding, streams):
    """A head of random weights for the target whose config is given."""
    more = {"intermediate_size": a.inner} if a.inner else {}
    vocab = config["vocab_size"]
    torch.manual_seed(a.seed)
    if a.kind == "eagle3":
        ids = hot_tokens.hot_ids(streams, vocab, a.draft_vocab)[0] if a.draft_vocab else torch.arange(vocab)
        taps = a.taps or head_files.default_taps(config["num_hidden_layers"])
        if not all(0 <= t <= config["num_hidden_layers"] for t in taps):
            raise Refusal("--taps %s: need numbers from 0 to %d, the target's layers"
                          % (" ".join(map(str, taps)), config["num_hidden_layers"]))
        head = heads.Eagle3(head_files.head_config(config, n_taps=len(taps), taps=list(taps), draft_vocab_size=len(ids), **more))
        head.draft_ids = ids
        return head
    if a.kind == "lyanna" and not 1 <= a.rank <= config["hidden_size"]:
        raise Refusal("--rank is %d, need 1 to %d, the target's width" % (a.rank, config["hidden_size"]))
    if a.kind == "eagle2":
        return heads.Eagle2(head_files.head_config(config, **more))
    if a.without == "token-info":
        hot = []
    elif a.hot and not a.hot.isdigit():
        hot = read_json(a.hot)
    else:
        hot = hot_tokens.hot_ids(streams, vocab, int(a.hot or vocab))[0]
    c = head_files.head_config(config, token_info_rank=a.rank, draft_depth=a.depth, first_token=a.without != "first-token", **more)
    return heads.Lyanna(c, hot, embedding)


def memory_of(a, target, head, config):
    """Bytes, roughly: weights, what the rows of chains keep for the way back, a few tables of logits."""
    weights = sum(w.numel() * w.element_size() for w in target.parameters()) + sum(w.numel() for w in head.parameters()) * 16
    rows, vocab, c = a.batch * a.length, config["vocab_size"], head.c
    kept = 40 * c["hidden_size"] + 16 * c["intermediate_size"] + 12 * c["num_attention_heads"] * a.length
    return weights + rows * (a.depth * kept + 60 * c["hidden_size"]) + 5 * 4 * min(rows * vocab, losses.ELEMENTS + vocab)


@torch.no_grad()
def scale_embeddings(head, target, text):
    """Of a head without norms in front of its `fc`: by rows from all over the text. The same for a run that goes on."""
    length = min(64, len(text) - 1)
    ids = corpus.windows(text, torch.linspace(0, len(text) - length - 1, 16, device=text.device).long(), length)
    head.c["embedding_scale"] = heads.embedding_scale(target.embed(ids), target(ids))
    return head.c["embedding_scale"]


class HeadTrainer(trainer.BesideTarget):
    def __init__(self, a):
        target, config = checkpoint.load(a.target, a.device)
        text, held, generated = trainer.load_data(a, config)
        head = make_head(a, config, target.embed.weight.detach().float(), [text] if generated is None else [text, generated])
        identity = {} if a.kind == "eagle3" else {"embedding_scale": scale_embeddings(head, target, text.to(a.device))}
        if a.device.startswith("cuda"):
            target.half()
        memory = memory_of(a, target, head, config)
        check_memory(a.device, memory, "--batch, --length or --depth")
        self.draft_ids = head.draft_ids.to(a.device) if a.kind == "eagle3" else None
        super().__init__(a, target, head.to(a.device).train(), memory, text, held, generated, **identity)

    def see(self, ids):
        """What a head is given of a batch [B,T+1]: embeddings of x_1.., hidden vectors at 0.., tokens x_1.., and the target's final rows
        at 1.., of whose distributions row 0 of the chains speaks. [B,T,.]"""
        with torch.no_grad():
            if self.a.kind == "eagle3":
                final, taps = self.target(ids, tuple(self.net.c["taps"]))
                hidden = torch.cat(taps, -1)
            else:
                final = hidden = self.target(ids)
            return self.target.embed(ids[:, 1:]).float(), hidden[:, :-1], ids[:, 1:], final[:, 1:]

    def of_draft_vocabulary(self, hidden):
        """Rows of the target's head for tokens that can be drafted."""
        weight = self.target.head_weight
        return F.linear(hidden.to(weight.dtype), weight[self.draft_ids])

    def loss(self, ids):
        a, head = self.a, self.of_draft_vocabulary if self.a.kind == "eagle3" and self.a.draft_vocab else self.target.head
        with autocast(ids.device):
            embedded, hidden, tokens, final = self.see(ids)
            total, by_step, scale = 0.0, [], sum(a.decline ** j for j in range(a.depth))
            weight = self.net.weight(self.target.head_weight)
            for j, out in enumerate(self.net.unroll(embedded, hidden, a.depth)):
                out, seen = out[:, j:], final[:, j:]
                rows = self.net.rows(out, tokens[:, j:]).flatten(0, 1)
                kl, sums = losses.distil(rows.float(), weight, losses.TargetRows(head, seen.flatten(0, 1)), a.ce)
                step = a.kl * kl
                if a.kind != "eagle3":
                    distance = F.mse_loss if a.kind == "lyanna" else F.smooth_l1_loss
                    step = step + a.feature * distance(out.float(), seen.float())
                total = total + a.decline ** j / scale * step
                by_step.append(sums)
        return total, torch.stack(by_step).mean(0)

    @torch.no_grad()
    def reached_on(self, ids, n):
        return torch.cat([self.agreed(rows, n) for rows in ids.split(16)], 1).mean((1, 2))

    def agreed(self, ids, n):
        """[depth, B, chains]: are the first d tokens of the chain what the target says?"""
        depth = acceptance.DEPTH
        with autocast(ids.device):
            embedded, hidden, tokens, _ = self.see(ids)
            weight, right = self.net.weight(self.target.head_weight), []
            # Positions b where chains begin: row j drafts the token two behind p = b + j.
            first, last = ids.shape[1] - n - 2, ids.shape[1] - 2 - depth
            for j, out in enumerate(self.net.unroll(embedded, hidden, depth)):
                p = slice(first + j, last + j + 1)
                rows = self.net.rows(out[:, p], tokens[:, p])
                said = F.linear(rows, weight.to(rows.dtype)).argmax(-1)
                said = said if self.draft_ids is None else self.draft_ids[said]
                right.append(said == ids[:, first + j + 2:last + j + 3])
        return torch.stack(right).float().cumprod(0)

    def export(self):
        head_files.save(self.net, self.a.out)


def main(argv=None):
    began = time.time()
    return HeadTrainer(arguments(argv)).main(began)


if __name__ == "__main__":
    command(main)
