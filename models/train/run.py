"""A training run: a directory that holds one run, is resumed after a kill at any point, and never has a half file in it."""
import json
import os
import signal
import time

import torch

from files import Refusal, read_json, write_json, write_whole


def memory_free(device):
    """Bytes that can be taken."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))


def check_memory(device, needed, smaller):
    """Refuses before the first step what would not fit. smaller: the options to lower."""
    free = memory_free(device)
    if needed > free:
        raise Refusal("this needs about %.1f GiB and %s has %.1f GiB free; lower %s" % (needed / 2**30, device, free / 2**30, smaller))


class Run:
    """Options that the weights depend on are written with the first checkpoint; a directory whose run had others is refused."""

    STATE = "state.pt"

    def __init__(self, directory, options, seconds=None):
        """seconds: how long this call may take before it puts the run away."""
        self.directory, self.options = directory, json.loads(json.dumps(options))
        self.began, self.saved = time.time(), time.time()
        self.seconds, self.asked = seconds, False
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, "training.json")
        if os.path.exists(path):
            self.refuse_other(read_json(path))
        elif os.path.exists(os.path.join(directory, "config.json")):
            raise Refusal("%s has a model in it that is not of a training run; name another --out" % directory)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)

    def refuse_other(self, old):
        before = old.get("options")
        if before is None:
            raise Refusal("%s has a model in it that is not of this command; name another --out" % self.directory)
        for key in sorted(set(before) | set(self.options)):
            if before.get(key) != self.options.get(key):
                raise Refusal("%s has another run in it: its --%s is %s, not %s. Go on with the same options, or name another --out"
                              % (self.directory, key.replace("_", "-"), before.get(key), self.options.get(key)))

    def ask(self, *_):
        self.asked = True

    def load(self, device):
        """The state of the last checkpoint, or None."""
        path = os.path.join(self.directory, self.STATE)
        if not os.path.exists(path):
            return None
        try:
            return torch.load(path, map_location=device, weights_only=True)
        except Exception as error:
            raise Refusal("%s cannot be read (%s); remove it to begin again" % (path, str(error).splitlines()[0]))

    def save(self, state, report):
        """report: what training.json says of the run so far."""
        write_json(os.path.join(self.directory, "training.json"), report | {"options": self.options})
        write_whole(os.path.join(self.directory, self.STATE), lambda to: torch.save(state, to))
        self.saved = time.time()

    def finish(self):
        """The run is over: its state is of no more use."""
        path = os.path.join(self.directory, self.STATE)
        if os.path.exists(path):
            os.remove(path)

    def must_stop(self):
        return self.asked or (self.seconds is not None and time.time() - self.began > self.seconds)

    def must_save(self, every):
        return time.time() - self.saved > every

    def is_finished(self):
        path = os.path.join(self.directory, "training.json")
        return os.path.exists(path) and read_json(path).get("finished", False)
