"""How often a drafter's tokens are what the target says: greedy agreement by depth, and the overlap of distributions."""
import torch

from corpus import windows
from files import Refusal
from sample import autocast, sample

DEPTH = 6


@torch.no_grad()
def continuations(net, held, rows=256, prompt=96, length=64, seed=1):
    """Greedy continuations of held-back text: ids [rows, prompt+length] on the net's device. Prompts are spread over the files alike."""
    device = net.head_weight.device
    draw = torch.Generator().manual_seed(seed)
    usable = [h for h in held if len(h) > prompt] or [torch.cat(held)]
    if len(usable[0]) < prompt:
        raise Refusal("the last hundredth of the text, which is held back, has %d tokens, and prompts take %d: more text is needed"
                      % (len(usable[0]), prompt))
    prompts = []
    for i in range(rows):
        tokens = usable[i % len(usable)]
        start = int(torch.randint(max(len(tokens) - prompt, 1), (1,), generator=draw))
        prompts.append(windows(tokens, torch.tensor([start]), prompt))
    forced = torch.cat([torch.cat(prompts), torch.full((rows, length), -1)], 1).to(device)
    return sample(net, forced, torch.zeros(rows, device=device), seed)


def by_depth(agreed, depth=DEPTH):
    """agreed [B,L]: was the token at each place of a continuation what the drafter says there? Gives [depth] the share of places
    from which the first d tokens are all right. A drafter that is a model of its own sees, after right tokens, the same context as
    the target: so teacher-forced agreement is what its chains would have."""
    return agreed.float().unfold(1, depth, 1).cumprod(-1).mean((0, 1))


def report(reached):
    """The numbers of by_depth, as training.json has them: reached, conditional, tokens a step of chains of that depth."""
    conditional = reached / torch.cat([reached.new_ones(1), reached[:-1]]).clamp(min=1e-9)
    return {"reached": [round(v, 4) for v in reached.tolist()], "conditional": [round(v, 4) for v in conditional.tolist()],
            "emitted_per_step": round(1 + float(reached.sum()), 3)}


def among(logits, tokens, wide):
    """Is each token among the `wide` likeliest? logits [..., V], tokens [...]"""
    return (logits.topk(wide, -1).indices == tokens[..., None]).any(-1)


@torch.no_grad()
def of_model(net, ids, length, batch=64, wide=1):
    """by_depth of a drafter that is a model, on continuations [B,T] whose last `length` tokens are the target's."""
    agreed = []
    for rows in ids.split(batch):
        with autocast(rows.device):
            agreed.append(among(net.head(net(rows[:, :-1])[:, -length:]), rows[:, -length:], wide))
    return by_depth(torch.cat(agreed))
