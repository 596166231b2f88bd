"""What a model says: many sequences at once, token by token."""
import torch

import nets


def autocast(device):
    """bfloat16 products on a GPU, float32 on the CPU."""
    return torch.autocast("cuda", torch.bfloat16, enabled=torch.device(device).type == "cuda")


def choose(logits, temperature, noise):
    """Tokens [B] of logits [B,V]: the arg-max where temperature [B] is 0, else a draw by exponential race. noise [B,V]."""
    greedy = logits.argmax(-1)
    drawn = (logits / temperature.clamp(min=1e-6)[:, None] - noise.log()).argmax(-1)
    return torch.where(temperature > 0, drawn, greedy)


class Stepper:
    """One token of every sequence: reads and writes self.ids. On a GPU the second step is captured in a CUDA graph, which the steps
    behind it repeat; the first sets the libraries up."""

    def __init__(self, net, state, temperature):
        self.net, self.state, self.temperature = net, state, temperature
        device, batch = temperature.device, len(temperature)
        self.ids = torch.zeros(batch, dtype=torch.int64, device=device)
        self.noise = torch.empty(batch, net.head_weight.shape[0], device=device)
        self.taken, self.graph = 0, None

    def run(self):
        with autocast(self.ids.device):
            logits = self.net.head(self.net.step(self.ids, self.state)).float()
        self.ids.copy_(choose(logits, self.temperature, self.noise.exponential_()))

    def __call__(self):
        self.taken += 1
        if self.ids.device.type != "cuda" or self.taken == 1:
            return self.run()
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run()  # recorded, not run
        self.graph.replay()


@torch.no_grad()
def sample(net, forced, temperature, seed=0):
    """Completes forced [B,T], where -1 stands for tokens to be generated: each row begins with at least one token given. Rows may
    have different numbers of them. temperature [B]: 0 is greedy. Gives int64 [B,T]."""
    device, length = forced.device, forced.shape[1]
    torch.manual_seed(seed)
    given = int((forced >= 0).all(0).long().cumprod(0).sum())  # columns given in all rows
    if isinstance(net, nets.Decoder):
        state = nets.State(net, len(forced), length)
        stepper = Stepper(net, state, temperature)
        out = forced.clone()
        if given > 1:
            with autocast(device):
                for rows in range(0, len(forced), 256):  # a prefill of all rows at once would take too much memory
                    part = _part(state, rows, rows + 256)
                    net(forced[rows:rows + 256, :given - 1], state=part)
            state.at.fill_(given - 1)
        stepper.ids.copy_(forced[:, given - 1])
        for t in range(given, length):
            stepper()
            stepper.ids.copy_(torch.where(forced[:, t] >= 0, forced[:, t], stepper.ids))
            out[:, t] = stepper.ids
        return out
    return _foreign(net, forced, temperature)


def _part(state, start, end):
    """Rows start to end of a state, by the same buffers."""
    part = object.__new__(nets.State)
    part.kept, part.tables, part.at = [[b[start:end] for b in layer] for layer in state.kept], state.tables, state.at
    return part


def _foreign(net, forced, temperature):
    """By transformers' generate, which wants prompts of one length and temperature at a time; its cache makes room as it goes."""
    out, given = forced.clone(), (forced >= 0).sum(1)
    for n, t in sorted(set(zip(given.tolist(), temperature.tolist()))):
        rows = torch.nonzero((given == n) & (temperature == t))[:, 0]
        how = {"do_sample": True, "temperature": t, "top_k": 0, "top_p": 1.0} if t else {"do_sample": False}
        new = forced.shape[1] - n
        given_rows = forced[rows, :n]
        out[rows] = net.model.generate(given_rows, attention_mask=torch.ones_like(given_rows), max_new_tokens=new,
                                       eos_token_id=-1, pad_token_id=0, **how)  # no token ends it
    return out
