#!/usr/bin/env python3
"""Makes tests/golden/heads: small heads of random weights on targets of tests/golden, and what they say by their equations.

    make_head_cases.py [OUT [CASE ...]]        needs PyTorch and safetensors; the networks are models/train/heads.py

A case is a head's directory (config.json, model.safetensors) and two files more. golden.safetensors:
    ids [T]                 tokens; the last one is pending: the target has not seen it
    hidden [T-1,H]          the target's hidden rows behind its final norm; taps [T-1,3,H]: what enters the layers that EAGLE-3 sees
    context [T-1,H]         the head's rows of pairs (hidden p, token p + 1)
    chain_tokens [N]        greedy drafts; chain [N,H] their rows, chain_logits [N,Vd] (Lyanna: without token info)
    info_tokens [n], info [n,V]   Lyanna: token info by factors; info_table [V,V]: collapsed
golden.json: `target`, and trees. A tree is its nodes in the order of their making, root left out: the path of tokens from the root,
and the score (EAGLE: sum of log q; Lyanna: joint probability). Where scores that decide are closer than a float32 can tell, another seed
is taken: trees are to be equal, not alike."""
import json
import os
import sys

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "models", "train"))
import checkpoint  # noqa: E402
import head_files  # noqa: E402
import heads  # noqa: E402

LENGTH, DEPTH, GAP = 20, 6, 2e-4  # tokens; rows of a chain; least relative distance of scores that decide
CASES = {
    "eagle2-bamba": ("bamba", heads.Eagle2, {}),
    "eagle2-llama2": ("llama2", heads.Eagle2, {"bias": False}),
    "eagle2-mamba2": ("mamba2", heads.Eagle2, {}),
    "eagle3-mamba2": ("mamba2", heads.Eagle3, {"draft_vocab_size": 48}),
    "eagle2-law8": ("law8-target", heads.Eagle2, {}),
    "eagle3-law8": ("law8-target", heads.Eagle3, {"draft_vocab_size": 5}),
    "eagle3-bamba": ("bamba", heads.Eagle3, {"draft_vocab_size": 48}),
    "eagle3-llama2": ("llama2", heads.Eagle3, {"fc_norm": True, "norm_output": True}),
    "eagle3-speculators": ("bamba", heads.Eagle3, {"draft_vocab_size": 64, "norm_before_residual": True, "norm_before_fc": True}),
    "lyanna-bamba": ("bamba", heads.Lyanna, {"hot": 40}),
    "lyanna-mamba2": ("mamba2", heads.Lyanna, {"hot": 96}),
    "lyanna-law8": ("law8-target", heads.Lyanna, {"hot": 6}),
    "lyanna-bare": ("llama2", heads.Lyanna, {"hot": 0}),
}


class Close(Exception):
    """Scores that decide are too close to each other."""


def close(a, b):
    """Probabilities have relative errors; logarithms near zero absolute ones."""
    return abs(a - b) <= GAP * (abs(b) if b > 0 else max(abs(b), 1e-2))


def best(nodes, n, score):
    """The n nodes of the largest scores, in their order; of equal ones the shallower."""
    ranked = sorted(nodes, key=lambda node: (-score(node), len(node["path"])))
    if len(ranked) > n and close(score(ranked[n - 1]), score(ranked[n])):
        raise Close
    kept = {id(node) for node in ranked[:n]}
    return [node for node in nodes if id(node) in kept]


def top(values, k):
    """(index, value) of the k largest."""
    got = values.topk(min(k + 1, len(values)))
    if len(got.values) > k and close(float(got.values[k - 1]), float(got.values[k])):
        raise Close
    return list(zip(got.indices[:k].tolist(), got.values[:k].tolist()))


class Scene:
    """A head beside its target, at a sequence of ids whose last token is pending."""

    def __init__(self, target, head, ids):
        self.target, self.head, self.ids = target, head, ids
        final = target(ids[None, :-1])
        self.hidden, self.taps = final[0], None
        if isinstance(head, heads.Eagle3):
            self.taps = torch.stack(target(ids[None, :-1], tuple(head.c["taps"]))[1], 2)[0]
        self.E, self.W = target.embed.weight.float(), target.head_weight.float()
        given = self.hidden if self.taps is None else self.taps.flatten(1)
        self.state = []
        self.context = head.extend(*head.prepare(self.E[ids[1:]], given, False), self.state)

    def step(self, out, token, state):
        """The row behind `out` [1,H] when `token` was drafted from it; changes state."""
        return self.head.extend(*self.head.prepare(self.E[torch.tensor([token])], self.head.recycle(out), True), state)

    def id_of(self, index):
        return int(self.head.draft_ids[index]) if isinstance(self.head, heads.Eagle3) else int(index)

    def log_q(self, out, token):
        return self.head.logits(out, torch.tensor([token]), self.W)[0].log_softmax(-1)

    def chain(self):
        """Greedy drafts: tokens, rows [N,H], logits [N,Vd]."""
        out, state, token = self.context[-1:], list(self.state), int(self.ids[-1])
        tokens, rows, logits = [], [], []
        for _ in range(DEPTH):
            plain = out @ self.W.T if isinstance(self.head, heads.Lyanna) else self.head.logits(out, torch.tensor([token]), self.W)
            rows.append(out[0])
            logits.append(plain[0])
            token = self.id_of(top(self.log_q(out, token), 1)[0][0])
            tokens.append(token)
            out = self.step(out, token, state)
        return tokens, torch.stack(rows), torch.stack(logits)

    def eagle_tree(self, k, depth, budget):
        """Expand and re-rank (algorithms.md 16): the k best of a level grow, the `budget` best of all that were seen stay."""
        pool, frontier = [], [({"path": [], "score": 0.0}, self.context[-1:], list(self.state), int(self.ids[-1]))]
        for level in range(depth):
            born = []
            for node, out, state, token in frontier:
                for index, log_q in top(self.log_q(out, token), k):
                    born.append(({"path": node["path"] + [self.id_of(index)], "score": node["score"] + log_q}, out, state))
            pool += [node for node, _, _ in born]
            grow = best([node for node, _, _ in born], k, lambda n: n["score"])
            frontier = []
            for node, out, state in born if level + 1 < depth else ():
                if any(node is g for g in grow):
                    state = list(state)
                    frontier.append((node, self.step(out, node["path"][-1], state), state, node["path"][-1]))
        return best(pool, budget, lambda n: n["score"])


def token_info_tree(rows, info, root, k, budget):
    """algorithms.md 17.4: rows [n,V] of raw logits, info [V,V]; all children of a frontier node are kept, then the budget prunes."""
    nodes, frontier = [], [{"path": [], "score": 1.0}]
    for row in rows:
        born = []
        for node in frontier:
            q = (row + info[node["path"][-1] if node["path"] else root]).softmax(-1)
            born += [{"path": node["path"] + [token], "score": node["score"] * p} for token, p in top(q, k)]
        nodes += born
        frontier = best(born, k, lambda n: n["score"])
    return best(nodes, budget, lambda n: n["score"])


def union(first, second):
    """The trie of two trees of one root: the second's nodes that the first has not, behind it."""
    there = {tuple(node["path"]) for node in first}
    return first + [node for node in second if tuple(node["path"]) not in there]


def rounded(tree):
    return [{"path": node["path"], "score": float("%.7g" % node["score"])} for node in tree]


def lyanna_trees(scene, target, rows, info):
    """Trees of a chain; then, for each number of accepted drafts, what the rows left give, and its union with the next step's tree."""
    root = int(scene.ids[-1])
    trees = [{"kind": "token_info", "k": k, "rows": n, "budget": budget, "nodes": rounded(token_info_tree(rows[:n], info, root, k, budget))}
             for k, n, budget in ((4, 3, 12), (3, 6, 16), (1, 6, 6), (4, 6, 31))]
    path = max((node["path"] for node in token_info_tree(rows, info, root, 3, 16)), key=len)
    for accepted in range(len(path) + 1):
        bonus = (path[accepted] + 7) % len(info) if accepted < len(path) else 3
        left = rows[accepted + 1:]  # algorithms.md 17.5: l_{a+2} .. l_N, counted from 1
        again = token_info_tree(left, info, bonus, 3, 8)
        ids = torch.cat([scene.ids, torch.tensor(path[:accepted] + [bonus])])
        following = Scene(target, scene.head, ids)
        _, _, fresh_rows = following.chain()
        fresh = token_info_tree(fresh_rows, info, bonus, 3, 12)
        trees.append({"kind": "resampled", "k": 3, "budget": 8, "accepted": path[:accepted], "bonus": bonus, "nodes": rounded(again)})
        few = best(again, 4, lambda n: n["score"])
        trees.append({"kind": "fused", "k": 3, "budget": 12, "resampled_nodes": 4, "accepted": path[:accepted], "bonus": bonus,
                      "fresh": rounded(fresh), "nodes": rounded(union(fresh, few))})
    return trees


def random_head(kind, config, target, options, seed):
    torch.manual_seed(seed)
    more = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | options
    vocab = config["vocab_size"]
    if kind is heads.Eagle3:
        more = {"draft_vocab_size": vocab, "n_taps": 3, "taps": head_files.default_taps(config["num_hidden_layers"])} | more
        head = kind(head_files.head_config(config, **more))
        head.draft_ids = torch.randperm(vocab)[:head.c["draft_vocab_size"]].sort().values
    elif kind is heads.Lyanna:
        hot = torch.randperm(vocab)[:more.pop("hot")].sort().values
        head = kind(head_files.head_config(config, token_info_rank=8, draft_depth=DEPTH, **more), hot if len(hot) else [], target.embed.weight.float())
    else:
        head = kind(head_files.head_config(config, **more))
    for name, weight in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
        elif weight.dim() == 1:
            torch.nn.init.normal_(weight, std=0.2)
        else:
            torch.nn.init.normal_(weight, std=1.3 * weight.shape[1] ** -0.5)
    return head.requires_grad_(False)


def make_case(name, out, seed):
    target_name, kind, options = CASES[name]
    target, config = checkpoint.load(os.path.join(ROOT, "tests", "golden", target_name))
    head = random_head(kind, config, target, options, seed)
    tensors, trees = said(target, head, torch.randint(3, config["vocab_size"], (LENGTH,)))
    directory = os.path.join(out, name)
    head_files.save(head, directory, torch.float32, "speculators" if name.endswith("speculators") else "eagle")
    checkpoint.save_tensors(os.path.join(directory, "golden.safetensors"), tensors)
    with open(os.path.join(directory, "golden.json"), "w") as f:
        json.dump({"target": target_name, "seed": seed, "trees": trees}, f, separators=(",", ":"))
        f.write("\n")


def said(target, head, ids):
    """(tensors, trees) of a case."""
    scene = Scene(target, head, ids)
    tokens, rows, logits = scene.chain()
    tensors = {"ids": ids.int(), "hidden": scene.hidden, "context": scene.context, "chain_tokens": torch.tensor(tokens, dtype=torch.int32), "chain": rows,
               "chain_logits": logits}
    if scene.taps is not None:
        tensors["taps"] = scene.taps
    if isinstance(head, heads.Lyanna):
        vocab = len(scene.W)
        info = head.token_info.table(scene.E) if head.token_info else torch.zeros(vocab, vocab)
        if head.token_info:
            some = torch.tensor([int(ids[-1]), 5, 11, 50, 95]) % vocab
            tensors |= {"info_tokens": some.int(), "info_table": info,
                        "info": head.token_info.scaled(scene.E[some], some) @ head.token_info.weight(len(info)).T}
        trees = lyanna_trees(scene, target, logits, info)
    else:
        trees = [{"kind": "eagle", "k": k, "depth": depth, "budget": budget, "nodes": rounded(scene.eagle_tree(k, depth, budget))}
                 for k, depth, budget in ((4, 3, 12), (2, 6, 8), (10, 3, 59), (1, 6, 6))]
    return tensors, trees


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "golden", "heads")
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        for seed in range(1, 200):
            try:
                with torch.no_grad():
                    make_case(name, out, seed)
                print("%s: seed %d" % (name, seed))
                break
            except Close:
                continue
        else:
            sys.exit("%s: no seed keeps its scores apart" % name)


if __name__ == "__main__":
    main()
