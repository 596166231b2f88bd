#!/usr/bin/env python3
"""Tests of the training commands, on models of a few thousand random weights and on one CPU thread.

    python test_train.py [-v] [Class.test_name]

SPEC_TEST_PROGRAM: the program `spec`, which then has to load what the commands write."""
import contextlib
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    import transformers
except ImportError as error:
    print("SKIPPED: %s" % error)
    sys.exit(0)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import acceptance  # noqa: E402
import checkpoint  # noqa: E402
import corpus  # noqa: E402
import distil  # noqa: E402
import files  # noqa: E402
import from_gguf  # noqa: E402
import generate  # noqa: E402
import head_files  # noqa: E402
import heads  # noqa: E402
import hot_tokens  # noqa: E402
import inflate  # noqa: E402
import losses  # noqa: E402
import measure  # noqa: E402
import nets  # noqa: E402
import sample  # noqa: E402
import scan  # noqa: E402
import train_head  # noqa: E402
import translate  # noqa: E402

VOCAB = 260
COMMON = {"vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 256, "hidden_act": "silu", "tie_word_embeddings": True}
SSM = {"time_step_limit": [0.0, {"__float__": "Infinity"}], "hidden_size": 32, "num_hidden_layers": 2, "conv_kernel": 4, "layer_norm_epsilon": 1e-5,
       "use_bias": False, "use_conv_bias": True, "residual_in_fp32": True, "expand": 2}
CONFIGS = {
    "llama": COMMON | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
                       "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "bamba": COMMON | {"model_type": "bamba", "architectures": ["BambaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "attn_layer_indices": [1],
                       "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5, "mamba_n_heads": 4,
                       "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 64,
                       "mamba_proj_bias": False, "mamba_conv_bias": True, "max_position_embeddings": 512, "num_logits_to_keep": 1,
                       "time_step_limit": [0.0, {"__float__": "Infinity"}],
                       "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}},
    "mamba2": COMMON | SSM | {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_heads": 4, "head_dim": 16, "state_size": 16,
                              "n_groups": 1, "chunk_size": 64, "rms_norm": True},
    "mamba": COMMON | SSM | {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "intermediate_size": 64, "state_size": 8, "time_step_rank": 2},
}
STORY = "Once upon a time there was a %s. It liked the %s, and the %s liked it.\n"
WORDS = ["dog", "cat", "sea", "hill", "king", "tree", "boat", "moon"]


def story(n=80, seed=0):
    draw = random.Random(seed)
    return "".join(STORY % tuple(draw.choice(WORDS) for _ in range(3)) + ("<|endoftext|>\n" if i % 4 == 3 else "") for i in range(n))


def make_model(directory, family, seed=0, **changes):
    """A model of random weights, large enough for its distributions to be no flat ones, with a tokenizer of bytes."""
    config = CONFIGS[family] | changes
    net = checkpoint.BUILD[family](config).reset(seed)
    for name, weight in net.named_parameters():
        if "embed" in name:
            weight.data.mul_(10)
    checkpoint.save(net, config, directory, dtype=torch.float32)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    return directory


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        yield said


class Case(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = self.folder.name

    def path(self, name, text=None):
        path = os.path.join(self.at, name)
        if text is not None:
            with open(path, "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
        return path

    def model(self, family="llama", name="target", **changes):
        return make_model(self.path(name), family, **changes)

    def close(self, a, b, limit):
        self.assertEqual(a.shape, b.shape)
        self.assertLessEqual(float((a - b).abs().max()), limit)

    def loads(self, directory, *more):
        """The library runs it."""
        program = os.environ.get("SPEC_TEST_PROGRAM")
        if program:
            said = subprocess.run([program, "run", directory, "-p", "Once upon", "-n", "12", "--temp", "0", *more], capture_output=True, text=True)
            self.assertEqual(said.returncode, 0, said.stderr)
            return said.stdout

    def refused(self, words, call, *arguments):
        with self.assertRaisesRegex(files.Refusal, words), quiet():
            call(*arguments)


class Nets(Case):
    def test_logits_equal_those_of_transformers(self):
        ids = torch.randint(0, VOCAB, (2, 70), generator=torch.Generator().manual_seed(1))
        for family in CONFIGS:
            with self.subTest(family), torch.no_grad():
                directory = self.model(family, family)
                net, _ = checkpoint.load(directory)
                theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
                self.close(net.head(net(ids)), theirs(ids).logits, 1e-4)

    def test_another_activation_is_left_to_transformers(self):
        for family in ("llama", "mamba2"):
            directory, ids = self.model(family, family, hidden_act="gelu"), torch.arange(20)[None]
            theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
            with self.subTest(family), torch.no_grad():
                net, _ = checkpoint.load(directory)
                self.close(net.head(net(ids)), theirs(ids).logits, 1e-4)

    def test_steps_equal_the_whole_sequence(self):
        ids = torch.randint(0, VOCAB, (3, 40), generator=torch.Generator().manual_seed(2))
        for family in CONFIGS:
            for prompt in (2, 21):
                with self.subTest(family, prompt=prompt), torch.no_grad():
                    net = checkpoint.BUILD[family](CONFIGS[family]).reset(3)
                    state = nets.State(net, 3, 40)
                    net(ids[:, :prompt], state=state)
                    rows = torch.stack([net.step(ids[:, t], state) for t in range(prompt, 40)], 1)
                    self.close(rows, net(ids)[:, prompt:], 1e-4)

    def test_scans_equal_their_recurrences(self):
        torch.manual_seed(0)
        x, dt = torch.randn(2, 37, 3, 4, dtype=torch.float64), torch.rand(2, 37, 3, dtype=torch.float64) * 3
        A, B, C = -torch.rand(3, dtype=torch.float64) * 20, torch.randn(2, 37, 5, dtype=torch.float64), torch.randn(2, 37, 5, dtype=torch.float64)
        y, last = scan.ssd(x.float(), dt.float(), A.float(), B.float(), C.float(), chunk=8)
        state, rows = torch.zeros(2, 3, 4, 5, dtype=torch.float64), []
        for t in range(37):
            rows.append(scan.ssd_step(x[:, t], dt[:, t], A, B[:, t], C[:, t], state))
        self.close(y.double(), torch.stack(rows, 1), 1e-4)
        self.close(last.double(), state, 1e-4)
        x, dt, A = x[:, :, 0], dt[:, :, :1].expand(-1, -1, 4), -torch.rand(4, 5, dtype=torch.float64) * 5
        y, last = scan.selective_scan(x, dt, A, B, C, chunk=8)
        state, rows = torch.zeros(2, 4, 5, dtype=torch.float64), []
        for t in range(37):
            rows.append(scan.selective_step(x[:, t], dt[:, t], A, B[:, t], C[:, t], state))
        self.close(y, torch.stack(rows, 1), 1e-9)
        self.close(last, state, 1e-9)


def distil_plain(hidden, weight, p, ce):
    """losses.distil, as its formula says: p [R,V]."""
    log_q = torch.nn.functional.linear(hidden, weight).log_softmax(-1)
    kl = (p * (p.clamp(min=1e-20).log() - log_q)).sum(-1)
    return (kl - ce * log_q.gather(1, p.argmax(-1, keepdim=True))[:, 0]).mean()


class Losses(Case):
    def test_gradient_is_that_of_the_formula(self):
        torch.manual_seed(0)
        target, seen = torch.nn.Linear(6, 50, bias=False).requires_grad_(False), torch.randn(30, 6) * 3
        rows, p = losses.TargetRows(target, seen), target(seen).softmax(-1)
        hidden, weight = torch.randn(30, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
        before, losses.ELEMENTS = losses.ELEMENTS, 50 * 7  # five parts, the last of two rows
        self.addCleanup(setattr, losses, "ELEMENTS", before)
        loss, sums = losses.distil(hidden, weight, rows, 0.3)
        ours = torch.autograd.grad(2 * loss, (hidden, weight))
        theirs = torch.autograd.grad(2 * distil_plain(hidden, weight, p, 0.3), (hidden, weight))
        for a, b in zip(ours, theirs):
            self.close(a, b, 1e-5)
        q = (hidden @ weight.T).softmax(-1)
        self.assertAlmostEqual(float(sums[2]), float(torch.minimum(p, q).sum(-1).mean().detach()), places=5)

    def test_the_kernel_says_what_pytorch_says(self):
        """Triton's interpreter runs it on the CPU. A row of 50, of 5000 (two blocks and a part), logits far from zero, and a tie of the likeliest."""
        code = """
import torch, fused, losses
if fused.triton is None:
    raise SystemExit(77)
torch.manual_seed(0)
for vocab, at in ((50, 0.0), (5000, 0.0), (2048, 90.0)):
    q, p = torch.randn(6, vocab) * 3 + at, torch.randn(6, vocab) * 3 - at
    p[2, 7] = p[2, 9] = 30 - at
    sums, slope = losses.distil_rows(q, p, 0.3, 20)
    ours, in_place = fused.distil_rows(q, p, 0.3, 20)
    assert in_place is q and float((ours - sums).abs().max()) < 1e-4 * vocab ** 0.5, (vocab, ours, sums)
    assert float((q - slope).abs().max()) < 1e-6, (vocab, (q - slope).abs().max())
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(os.path.abspath(__file__)), env=os.environ | {"TRITON_INTERPRET": "1"},
                              capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest("there is no Triton")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_top_k_and_the_rest(self):
        """The loss over k + 1 outcomes: the k likeliest and the rest as one. All of them: the whole loss."""
        torch.manual_seed(1)
        p = (torch.randn(20, 40) * 2).softmax(-1)
        hidden, weight = torch.randn(20, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
        for k in (5, 40):
            top = p.topk(k, -1)
            ours = torch.autograd.grad(losses.distil(hidden, weight, losses.TopRows(top.indices, top.values), 0.0)[0], hidden)[0]
            q = (hidden @ weight.T).softmax(-1)
            rest_p, rest_q = 1 - top.values.sum(-1), 1 - q.gather(1, top.indices).sum(-1)
            whole = -(top.values * q.gather(1, top.indices).log()).sum(-1) - rest_p.clamp(min=0) * rest_q.clamp(min=1e-9).log()
            self.close(ours, torch.autograd.grad(whole.mean(), hidden, retain_graph=True)[0], 1e-5)
            loss, sums = losses.distil(hidden, weight, losses.TopRows(top.indices, top.values), 0.5)
            entropy = torch.special.xlogy(top.values, top.values).sum(-1) + torch.special.xlogy(rest_p.clamp(min=0), rest_p.clamp(min=0))
            ce = -q.log().gather(1, top.indices[:, :1]).mean()
            self.close(torch.stack([loss, *sums]).detach(), torch.stack([(whole + entropy).mean() + 0.5 * ce, (whole + entropy).mean(), ce, (
                torch.minimum(top.values, q.gather(1, top.indices)).sum(-1) + torch.minimum(rest_p, rest_q).clamp(min=0)).mean()]).detach(), 1e-5)
            by_hidden = torch.autograd.grad(loss, hidden)[0]
            self.close(by_hidden, torch.autograd.grad(whole.mean() + 0.5 * ce, hidden)[0], 1e-5)

    def test_acceptance_by_depth(self):
        agreed = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1]], dtype=torch.bool)
        self.close(acceptance.by_depth(agreed, 3), torch.tensor([5, 3, 1]) / 6, 1e-6)


class FromGguf(Case):
    def test_weights_and_tokens_are_those_of_the_file(self):
        """Of files that the library writes: each value is right but for such a share of the greatest in its block of 32."""
        program = os.environ.get("SPEC_TEST_PROGRAM")
        if not program:
            self.skipTest("SPEC_TEST_PROGRAM is not set")
        before, config = checkpoint.load(self.model(intermediate_size=64))
        text = "Once upon a time, 1234!"
        for kind, share in (("f32", 1 / 200), ("f16", 1 / 200), ("q8_0", 1 / 100), ("q4_0", 1 / 6), ("q4_1", 1 / 6)):
            with self.subTest(kind):
                file, out = self.path(kind + ".gguf"), self.path(kind)
                subprocess.run([program, "convert", self.path("target"), "-o", file, "--type", kind], check=True, capture_output=True)
                from_gguf.convert(file, out)
                after, again = checkpoint.load(out)
                for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                            "rms_norm_eps", "vocab_size", "tie_word_embeddings", "rope_parameters", "max_position_embeddings", "eos_token_id"):
                    self.assertEqual(again[key], config[key], key)
                for (name, a), b in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
                    a, b = a.view(-1, 32), b.view(-1, 32)
                    self.assertLessEqual(float(((a - b).abs().amax(-1) - share * a.abs().amax(-1)).max()), 0, name)
                self.assertEqual(*(corpus.load_tokenizer(d).encode(text).ids for d in (out, self.path("target"))))
                self.loads(out)
        with open(file, "r+b") as f:
            f.truncate(os.path.getsize(file) - 64)
        self.refused("ends inside tensor", from_gguf.convert, file, self.path("o"))
        self.refused("is not a GGUF file", from_gguf.convert, os.path.join(self.path("target"), "model.safetensors"), self.path("o"))


    def test_what_is_no_plain_llama(self):
        program = os.environ.get("SPEC_TEST_PROGRAM")
        if not program:
            self.skipTest("SPEC_TEST_PROGRAM is not set")
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4,
                  "original_max_position_embeddings": 32}
        for name, words, biases, rope in (("bias", r"attn_[a-z]+\.bias is no part of the Llama", True, None),
                                          ("linear", "positions scaled by linear", False, {"rope_type": "linear", "factor": 2.0}),
                                          ("llama3", "rope_freqs.weight", False, llama3)):
            with self.subTest(name):
                directory, file = self.model(name=name, attention_bias=biases), self.path(name + ".gguf")
                config = checkpoint.read_config(directory)
                files.write_json(os.path.join(directory, "config.json"), config | ({"rope_parameters": rope} if rope else {}))
                subprocess.run([program, "convert", directory, "-o", file, "--type", "f32"], check=True, capture_output=True)
                self.refused(words, from_gguf.convert, file, self.path("o"))


class Files(Case):
    def test_what_could_not_be_written_leaves_the_old_file(self):
        path = self.path("file", "old")

        def write(to):
            with open(to, "w") as f:
                f.write("half")
            raise OSError("no room")
        with self.assertRaises(OSError):
            files.write_whole(path, write)
        with open(path) as f:
            self.assertEqual([f.read(), os.listdir(self.at)], ["old", ["file"]])


class Generating(Case):
    def test_greedy_equals_transformers_and_forced_tokens_stay(self):
        for family in CONFIGS:
            with self.subTest(family):
                directory = self.model(family, family)
                net, _ = checkpoint.load(directory)
                theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
                forced = torch.full((2, 20), -1)
                forced[:, :6] = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(4))
                forced[1, 6:9] = torch.tensor([7, 8, 9])
                made = sample.sample(net, forced, torch.zeros(2))
                expected = theirs.generate(forced[:1, :6], attention_mask=torch.ones(1, 6, dtype=torch.long), max_new_tokens=14, min_new_tokens=14, do_sample=False,
                                           eos_token_id=None, pad_token_id=256)
                self.assertEqual(made[0].tolist(), expected[0].tolist())
                self.assertEqual(made[1, :9].tolist(), forced[1, :9].tolist())

    def test_draws_follow_the_distribution(self):
        logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20000, -1)
        noise = torch.empty(20000, 4).exponential_(generator=torch.Generator().manual_seed(0))
        for temperature in (0.7, 1.0):
            drawn = sample.choose(logits, torch.full((20000,), temperature), noise)
            self.close(torch.bincount(drawn, minlength=4) / 20000, (logits[0] / temperature).softmax(-1), 0.015)

    def test_parts_that_are_there_stay(self):
        target, text, out = self.model(), self.path("a.txt", story()), self.path("made")
        argv = [target, "--out", out, "--text", text, "--sequences", "8", "--batch", "4", "--length", "24", "--beginning", "4", "8", "--device", "cpu"]
        with quiet():
            generate.main(argv)
        parts = [os.path.join(out, "part-%05d.safetensors" % i) for i in range(2)]
        before = [load_file(p)["tokens"] for p in parts]
        os.remove(parts[0])
        stamp = os.stat(parts[1]).st_mtime_ns
        with quiet():
            generate.main(argv)
        self.assertEqual(load_file(parts[0])["tokens"].tolist(), before[0].tolist())
        self.assertEqual(os.stat(parts[1]).st_mtime_ns, stamp)
        self.refused("other options", generate.main, argv[:-2] + ["--seed", "9", "--device", "cpu"])
        os.remove(os.path.join(target, "model.safetensors"))  # with all parts there, nothing of it is read
        with quiet() as said:
            self.assertEqual(generate.main(argv), 0)
        self.assertIn("has all its parts", said.getvalue())

    def test_templates_stand_round_beginnings_of_documents(self):
        target, text, out = self.model(), self.path("a.txt", story()), self.path("made")
        with quiet():
            generate.main([target, "--out", out, "--text", text, "--sequences", "4", "--batch", "4", "--length", "100", "--beginning", "20", "60",
                           "--templates", self.path("t.json", '["Q: {} A:"]'), "--device", "cpu"])
        made, tokenizer = load_file(os.path.join(out, "part-00000.safetensors")), corpus.load_tokenizer(target)
        for row, given in zip(made["tokens"], made["given"]):
            self.assertRegex(tokenizer.decode(row[:given].tolist()), r"^Q: Once upon a time there was.* A:$")
        self.refused("needs one {}", generate.main, [target, "--out", self.path("o"), "--text", text, "--templates", self.path("u.json", '["Q"]'),
                                                      "--device", "cpu"])

    def test_generated_text_ends_with_its_first_end(self):
        end = CONFIGS["llama"]["eos_token_id"]
        os.mkdir(self.path("made"))
        checkpoint.save_tensors(self.path("made/part-00000.safetensors"), {
            "tokens": torch.tensor([[end, 1, 2, end, 3], [end, end, 4, 5, 6]], dtype=torch.int32), "given": torch.tensor([2, 2], dtype=torch.int32)})
        self.assertEqual(corpus.load_generated([self.path("made")], CONFIGS["llama"]).tolist(), [end, 1, 2, end, end, end, 4, 5, 6])
        self.refused("another model's text", corpus.load_generated, [self.path("made")], CONFIGS["llama"] | {"vocab_size": 9})

    def test_a_model_that_only_transformers_has(self):
        """Another family generates as transformers does, and gives the same rows and taps as ours for one that both have."""
        directory = self.model()
        ours, _ = checkpoint.load(directory)
        theirs, ids = checkpoint.Foreign(directory, "cpu"), torch.arange(40).view(2, 20)
        with torch.no_grad():
            (rows, taps), (their_rows, their_taps) = (net(ids, (1, 3)) for net in (ours, theirs))  # of 3 layers: 3 is behind the final norm
            for a, b in zip([rows, *taps], [their_rows, *their_taps], strict=True):
                self.close(a, b, 1e-4)
        forced = torch.full((3, 12), -1)
        forced[:, :4], forced[2, 4:6] = 7, 9
        self.assertEqual(sample.sample(ours, forced, torch.zeros(3)).tolist(), sample.sample(theirs, forced, torch.zeros(3)).tolist())


class Distilling(Case):
    def argv(self, out, *more):
        if not os.path.exists(self.path("target")):
            self.model("bamba")
            self.path("text.txt", story())
        return [self.path("target"), "--out", out, "--text", self.path("text.txt"), "--layers", "1", "--width", "16", "--head-dim", "16", "--state", "4",
                "--batch", "2", "--length", "24", "--steps", "14", "--held-rows", "2", "--evaluate-every", "7", "--device", "cpu", *more]

    def weights(self, out):
        return load_file(os.path.join(out, "model.safetensors"))

    def same(self, a, b):
        self.assertEqual(a.keys(), b.keys())
        for key in a:
            self.assertTrue(torch.equal(a[key], b[key]), key)

    def test_a_killed_run_gives_the_same_weights(self):
        whole, killed = self.path("whole"), self.path("killed")
        with quiet():
            self.assertEqual(distil.main(self.argv(whole)), 0)
            argv, draw = self.argv(killed, "--save-every", "0"), random.Random(5)
            for _ in range(2):
                child = os.fork()
                if child == 0:
                    os._exit(distil.main(argv))
                state, began = os.path.join(killed, "state.pt"), time.time()
                stamp = os.stat(state).st_mtime_ns if os.path.exists(state) else 0
                while not (os.path.exists(state) and os.stat(state).st_mtime_ns > stamp) and time.time() - began < 60:
                    time.sleep(0.001)
                time.sleep(draw.random() * 0.05)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.assertFalse(files.read_json(os.path.join(killed, "training.json"))["finished"], "the child finished before it was killed")
                load_file(os.path.join(killed, "model.safetensors"))
            with quiet() as said:
                self.assertEqual(distil.main(argv), 0)
        self.assertIn("resumed at step", said.getvalue())
        self.same(self.weights(whole), self.weights(killed))
        with quiet() as said:
            self.assertEqual(distil.main(argv), 0)
        self.assertIn("is finished", said.getvalue())

    def test_each_family_learns_and_loads(self):
        for family in ("mamba2", "mamba", "llama"):
            with self.subTest(family):
                out = self.path(family)
                with quiet():
                    distil.main(self.argv(out, "--family", family, "--steps", "40", "--lr", "0.3"))
                with open(os.path.join(out, "training.json")) as f:
                    measured = json.load(f)["measured"]
                self.assertLess(measured[-1]["kl"], measured[0]["kl"])
                self.assertEqual(len(measured[-1]["reached"]), 6)
                net, _ = checkpoint.load(out)
                theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
                ids = torch.arange(30)[None]
                with torch.no_grad():
                    self.close(net.head(net(ids)), theirs(ids).logits, 1e-4)
                self.assertEqual(self.loads(self.path("target"), "-md", out), self.loads(self.path("target")))

    def test_from_logits_of_elsewhere(self):
        """All tokens as the k likeliest: the same distributions, so the same loss as beside the target."""
        argv, parts = self.argv(self.path("out")), self.path("logits")
        target, _ = checkpoint.load(self.path("target"))
        ids = torch.randint(0, 256, (6, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            top = target.head(target(ids)).softmax(-1).topk(VOCAB, -1)
        os.mkdir(parts)
        checkpoint.save_tensors(os.path.join(parts, "part-00000.safetensors"), {"tokens": ids.int(), "top_ids": top.indices.int(), "top_probs": top.values})
        at = argv.index("--text")
        with quiet():
            beside = distil.Distiller(distil.arguments(argv))
            argv = argv[:at] + argv[at + 2:] + ["--logits", parts]
            alone = distil.FromLogits(distil.arguments([self.path("out2") if x == self.path("out") else x for x in argv]))
            self.close(beside.loss(ids)[1], alone.loss(torch.arange(6))[1], 1e-5)
            self.assertEqual(alone.main(time.time()), 0)
        checkpoint.save_tensors(os.path.join(parts, "part-00001.safetensors"), {"tokens": ids.int(), "top_ids": top.indices.int()})
        self.refused("has no tensor top_probs", distil.main, argv)
        self.refused("--text is missing", distil.main, argv[:-2])
        self.refused("leave --text", distil.main, argv + ["--text", self.path("text.txt")])

    def test_another_vocabulary(self):
        """The target's text in other tokens says the same, each token stands behind its row, and what is distilled from it drafts."""
        other, made, end = self.path("other"), self.path("made"), CONFIGS["llama"]["eos_token_id"]
        os.mkdir(other), os.mkdir(made)
        letters = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(["<|endoftext|>"] + letters + ["th", "the"])}, [("t", "h"), ("th", "e")]))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.save(os.path.join(other, "tokenizer.json"))
        own = corpus.load_tokenizer(self.model())
        texts = [("the cat and the dog " * 4)[i:i + 40] for i in range(8)]
        rows = torch.tensor([own.encode(t).ids + [end, 7] for t in texts], dtype=torch.int32)
        checkpoint.save_tensors(os.path.join(made, "part-00000.safetensors"), {"tokens": rows, "given": torch.full((8,), 4, dtype=torch.int32)})
        argv = [self.path("target"), other, "--generated", made, "--out", self.path("translated"), "--length", "16"]
        with quiet():
            translate.main(argv)
        ids, behind, probs = corpus.load_logits(self.path("translated"), checkpoint.read_config(self.path("translated")))
        stream = ids.flatten().tolist()
        self.assertEqual(behind.flatten().tolist()[:-1], stream[1:])
        self.assertTrue((probs == 1).all())
        said = "".join(texts)
        self.assertTrue(said.startswith(tokenizer.decode(stream, skip_special_tokens=True)) and len(said) < len(stream) * 2)
        self.assertIn(tokenizer.token_to_id("the"), stream)
        out = self.path("out")
        with quiet():
            distil.main([self.path("translated"), "--logits", self.path("translated"), "--out", out, "--layers", "1", "--width", "16", "--head-dim", "16",
                         "--state", "16", "--batch", "2", "--steps", "3", "--device", "cpu"])
        self.assertEqual(checkpoint.read_config(out)["vocab_size"], tokenizer.get_vocab_size())
        self.assertEqual(self.loads(self.path("target"), "-md", out), self.loads(self.path("target")))
        self.refused("in the other vocabulary; --length is 512", translate.main, argv[:-1] + ["512"])

    def test_refusals(self):
        out = self.path("out")
        argv = self.argv(out)
        with quiet():
            distil.main(argv)
        self.refused("another run in it: its --width is 16, not 32", distil.main, argv + ["--width", "32"])
        self.refused("not of a training run", distil.main, self.argv(self.path("target")))
        self.refused("is not UTF-8 text: byte 3 is 0xff", distil.main, self.argv(self.path("o"), "--text", self.path("b.txt", b"abc\xff")))
        self.refused("is not text: character 1 is the control", distil.main, self.argv(self.path("o"), "--text", self.path("c.txt", "a\0b")))
        self.refused("cannot be unpacked", distil.main, self.argv(self.path("o"), "--text", self.path("d.txt.xz", b"no xz")))
        self.refused("has no text in it", distil.main, self.argv(self.path("o"), "--text", self.path("e.txt", "\n")))
        self.refused("has no text in it", distil.main, self.argv(self.path("o"), "--text", self.path("s.txt", "<|endoftext|>\n\n")))
        self.refused("there is no", distil.main, self.argv(self.path("o"), "--text", self.path("absent.txt")))
        self.refused("no whole number of heads", distil.main, self.argv(self.path("o"), "--head-dim", "24"))
        self.refused("which is held back, has 6 tokens, and prompts take 24", distil.main, self.argv(self.path("o"), "--text", self.path("f.txt", story(8))))
        self.refused("lower --batch", distil.main, self.argv(self.path("o"), "--batch", "100000000"))
        self.refused("is not a directory with a model", distil.main, [self.path("no")] + argv[1:])
        weights = os.path.join(self.path("target"), "model.safetensors")
        with open(weights, "r+b") as f:
            f.truncate(os.path.getsize(weights) // 2)
        self.refused("cannot be read", distil.main, self.argv(self.path("o")))

    def test_a_file_is_whole_or_the_old_one(self):
        path = self.path("x", "old")

        def write(to):
            with open(to, "w") as f:
                f.write("ne")
                f.flush()
                raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            files.write_whole(path, write)
        with open(path) as f:
            self.assertEqual(f.read(), "old")


SIZES = {"hidden_size": 16, "target_hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 30, "max_position_embeddings": 64, "n_taps": 3, "taps": [0, 1, 2],
         "draft_vocab_size": 30, "token_info_rank": 4}


def some_heads(embedding):
    torch.manual_seed(3)
    yield "eagle2", heads.Eagle2(SIZES)
    yield "eagle3", heads.Eagle3(SIZES | {"norm_output": True, "fc_norm": True})
    yield "eagle3 before", heads.Eagle3(SIZES | {"norm_before_residual": True, "norm_before_fc": True})
    yield "lyanna", heads.Lyanna(SIZES, [1, 5, 7, 9, 20], embedding)
    yield "lyanna bare", heads.Lyanna(SIZES, [], embedding)


class Heads(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.E, self.W = torch.randn(30, 16), torch.randn(30, 16)
        self.ids = torch.randint(0, 30, (2, 11))

    def test_unrolled_chains_equal_chains_alone(self):
        for name, head in some_heads(self.E):
            hidden = torch.randn(2, 11, 48 if isinstance(head, heads.Eagle3) else 16)
            with self.subTest(name), torch.no_grad():
                outs = head.unroll(self.E[self.ids], hidden, 4)
                for b, start in ((0, 0), (1, 3), (0, 6)):
                    state = []
                    tokens = self.ids[b]
                    out = head.extend(*head.prepare(self.E[tokens[:start + 1]], hidden[b, :start + 1], False), state)[-1:]
                    for j in range(4):
                        self.close(out[0], outs[j][b, start + j], 1e-4)
                        out = head.extend(*head.prepare(self.E[tokens[start + j + 1:start + j + 2]], head.recycle(out), True), state) if j < 3 else out

    def test_token_info_factored_equals_its_table(self):
        head = heads.Lyanna(SIZES, [1, 5, 7, 9, 20], self.E)
        torch.nn.init.uniform_(head.token_info.norm.weight, 0.5, 1.5)
        out = torch.randn(2, 11, 16)
        with torch.no_grad():
            info = head.token_info.table(self.E)[self.ids]
            self.close(head.logits(out, self.ids, self.W), out @ self.W.T + info, 1e-4)
            self.assertGreater(float(info.abs().max()), 0.5)

    def test_files_keep_a_head(self):
        for name, head in some_heads(self.E):
            for dialect in ("eagle", "speculators") if name.startswith("eagle3") else ("eagle",):
                with self.subTest(name, dialect=dialect), torch.no_grad():
                    if name == "eagle3":
                        head = heads.Eagle3(head.c | {"draft_vocab_size": 8})
                        head.draft_ids = torch.tensor([0, 2, 3, 5, 9, 17, 20, 29])
                    directory = self.path(name + dialect)
                    head_files.save(head, directory, torch.float32, dialect)
                    again = head_files.load(directory, self.E)
                    hidden = torch.randn(2, 11, 48 if isinstance(head, heads.Eagle3) else 16)
                    for a, b in zip(head.unroll(self.E[self.ids], hidden, 3), again.unroll(self.E[self.ids], hidden, 3)):
                        self.close(head.logits(a, self.ids, self.W), again.logits(b, self.ids, self.W), 1e-5)
                    if name == "eagle3":
                        self.assertEqual(again.draft_ids.tolist(), head.draft_ids.tolist())
        self.refused("for a target of width 16, not 8", head_files.load, self.path("eagle2eagle"), torch.zeros(30, 8))

    def test_a_base_of_rotation_is_that_of_the_target(self):
        """However its config says it, and so for a head's own. Another kind of rotation is refused."""
        plain = {k: v for k, v in CONFIGS["llama"].items() if k != "rope_parameters"}
        for said in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_scaling": None, "rope_theta": 5e5}):
            c = head_files.head_config(plain | said)
            self.assertEqual((c["rope_theta"], checkpoint.rope_of(plain | said, 8)[1]), (5e5, 5e5))
            head = heads.Eagle2(c)
            head_files.save(head, self.path("head"), torch.float32)
            config = os.path.join(self.path("head"), "config.json")
            stored = {k: v for k, v in files.read_json(config).items() if k != "rope_theta"}
            files.write_json(config, stored | said)
            again, embedded, hidden = head_files.load(self.path("head"), torch.zeros(VOCAB, 32)), *torch.randn(2, 1, 20, 32)
            with torch.no_grad():
                self.assertTrue(torch.equal(head.unroll(embedded, hidden, 1)[0], again.unroll(embedded, hidden, 1)[0]))
        files.write_json(config, stored | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}})
        self.refused("rope_type default alone", head_files.load, self.path("head"), torch.zeros(VOCAB, 32))
        files.write_json(config, stored | {"partial_rotary_factor": 0.5})
        self.refused("the whole head_dim", head_files.load, self.path("head"), torch.zeros(VOCAB, 32))

    def test_a_file_has_the_scale_of_embeddings_in_its_weights(self):
        """Trained with embeddings 8 times as large, a head is written as one that reads them as they are: with the same weights in bfloat16."""
        embedding, hidden = torch.randn(30, 16) / 8, torch.randn(2, 11, 16)
        self.assertEqual(heads.embedding_scale(embedding, hidden), 8.0)
        for name, head in some_heads(embedding):
            if isinstance(head, heads.Eagle3):
                continue
            with self.subTest(name), torch.no_grad():
                head.bfloat16().float().c["embedding_scale"] = 8.0
                head_files.save(head, self.path(name))
                again = head_files.load(self.path(name), embedding)
                scaled = head.unroll(embedding[self.ids], hidden, 3)
                for a, b in zip(scaled, again.unroll(embedding[self.ids], hidden, 3)):
                    self.assertTrue(torch.equal(a, b))
                head.c["embedding_scale"] = 1.0
                self.assertGreater(float((scaled[0] - head.unroll(embedding[self.ids], hidden, 1)[0]).abs().max()), 0.01)

    def test_a_head_without_a_part_is_one_trained_without(self):
        head = heads.Lyanna(SIZES, [1, 5, 7, 9, 20], self.E)
        bare = heads.Lyanna(SIZES | {"first_token": False}, [], self.E)
        bare.load_state_dict({k: v for k, v in head.state_dict().items() if not k.startswith("token_info")})
        hidden = torch.randn(2, 11, 16)
        with torch.no_grad():
            head_files.save(bare, self.path("bare"), torch.float32)
            again = head_files.load(self.path("bare"), self.E)
            drafter = measure.Measured.__new__(measure.Measured)
            drafter.head = head
            parts = {name: other.head for name, other in drafter.without()}
            self.assertEqual(list(parts), ["token info", "first token"])
            self.assertIsNotNone(head.token_info)
            other = parts["first token"]
            other.token_info = None
            self.assertIsNotNone(head.token_info)
            for a, b, c in zip(*(h.unroll(self.E[self.ids], hidden, 3) for h in (bare, again, other))):
                self.close(bare.logits(a, self.ids, self.W), again.logits(b, self.ids, self.W), 1e-5)
                self.close(bare.logits(a, self.ids, self.W), other.logits(c, self.ids, self.W), 1e-5)

    def test_hot_tokens(self):
        ids, share = hot_tokens.hot_ids([torch.tensor([3, 3, 1, 2], dtype=torch.int32), torch.tensor([2, 2], dtype=torch.int32)], 5, 2)
        self.assertEqual((ids.tolist(), round(share, 4)), ([2, 3], 0.875))
        self.refused("9 hot tokens of a vocabulary of 5", hot_tokens.hot_ids, [], 5, 9)

    def argv(self, kind, out, *more):
        if not os.path.exists(self.path("target")):
            self.model("bamba")
            self.path("text.txt", story())
        return [self.path("target"), "--kind", kind, "--out", out, "--text", self.path("text.txt"), "--batch", "2", "--length", "24", "--depth", "3",
                "--steps", "12", "--held-rows", "2", "--evaluate-every", "6", "--device", "cpu", *more]

    def test_a_rank_that_the_library_refuses_is_not_trained(self):
        self.refused("--rank is 33, need 1 to 32", train_head.main, self.argv("lyanna", self.path("o"), "--rank", "33"))

    def test_each_kind_learns_and_goes_on(self):
        for kind, more in (("eagle2", []), ("eagle3", ["--draft-vocab", "40"]), ("lyanna", ["--hot", "50", "--rank", "8"])):
            with self.subTest(kind):
                whole, stopped = self.path(kind), self.path(kind + "2")
                with quiet() as said:
                    self.assertEqual(train_head.main(self.argv(kind, whole, "--lr", "0.2", *more)), 0)
                    self.assertEqual(train_head.main(self.argv(kind, stopped, "--lr", "0.2", "--seconds", "0", *more)), 3)
                    self.assertEqual(train_head.main(self.argv(kind, stopped, "--lr", "0.2", *more)), 0)
                self.assertIn("resumed at step 1 of 12", said.getvalue())
                a, b = (load_file(os.path.join(d, "model.safetensors")) for d in (whole, stopped))
                self.assertEqual(a.keys(), b.keys())
                for key in a:
                    self.assertTrue(torch.equal(a[key], b[key]), key)
                with open(os.path.join(whole, "training.json")) as f:
                    measured = json.load(f)["measured"]
                self.assertLess(measured[-1]["kl"], measured[0]["kl"])
                report = self.path("m.json")
                with quiet():
                    measure.main([self.path("target"), whole, "--text", self.path("text.txt"), "--rows", "2", "--prompt", "24", "--length", "23", "--children", "3",
                                  "--wide", "1", "3", "--parts",
                                  "--device", "cpu", "--out", report])
                with open(report) as f:
                    found = json.load(f)["drafters"]
                self.assertEqual(len(found[0]["acceptance_vector_T1"]), 3)
                self.assertEqual([d["name"][len(whole):] for d in found],
                                 [""] + ([", drafting without token info", ", drafting without first token"] if kind == "lyanna" else []))
                for drafter in found:
                    narrow, wide = (drafter["greedy"][w]["reached"] for w in ("1", "3"))
                    self.assertTrue(all(0 <= x <= y <= 1 for x, y in zip(narrow, wide)))

    def test_measured_depth_is_that_of_chains(self):
        """What HeadTrainer and measure.py count at once, chain by chain."""
        for kind in ("eagle2", "eagle3", "lyanna"):
            with self.subTest(kind):
                out = self.path(kind)
                with quiet():
                    t = train_head.HeadTrainer(train_head.arguments(self.argv(kind, out, "--steps", "30", "--lr", "0.1", "--rank", "8")))
                    t.main(time.time())
                torch.set_grad_enabled(False)
                self.addCleanup(torch.set_grad_enabled, True)
                t.net.load_state_dict(head_files.load(out, t.target.embed.weight).state_dict())  # as rounded by its file
                t.net.c.pop("embedding_scale", None)  # which its weights now have
                ids, n = acceptance.continuations(t.target, t.held, 2, 12, 20), 20
                embedded, hidden, tokens, _ = t.see(ids)
                reached, chains = torch.zeros(acceptance.DEPTH), 0
                for b in range(2):
                    for start in range(ids.shape[1] - n - 2, ids.shape[1] - 1 - acceptance.DEPTH):
                        state, last = [], int(ids[b, start + 1])
                        out_row = t.net.extend(*t.net.prepare(embedded[b, :start + 1], hidden[b, :start + 1], False), state)[-1:]
                        chains += 1
                        for j in range(acceptance.DEPTH):
                            last = int(t.net.logits(out_row, torch.tensor([last]), t.target.head_weight).argmax())
                            if last != int(ids[b, start + 2 + j]):
                                break
                            reached[j] += 1
                            out_row = t.net.extend(*t.net.prepare(t.target.embed(torch.tensor([last])), t.net.recycle(out_row), True), state)
                self.close(t.reached_on(ids, n), reached / chains, 1e-6)
                self.close(measure.Measured(t.target, out, "cpu").reached(ids, n), reached / chains, 1e-6)
                torch.set_grad_enabled(True)


class Recipes(Case):
    def test_smollm2_trains_each_thing_behind_one_text(self):
        """The recipe with options of a small model behind its own; a run that is put away at once has left what the library loads. Paths may
        have spaces and quotes in them."""
        target, text = self.model(name="a store/target"), self.path("a corpus/a.txt")
        os.mkdir(self.path("a corpus"))
        self.path("a corpus/a.txt", story(160))
        os.symlink(os.path.dirname(os.path.abspath(__file__)), self.path("somebody's commands"))
        recipe = self.path("somebody's commands/recipes/smollm2.sh")
        env = os.environ | {"PYTHON": sys.executable, "SEQUENCES": "2", "SAMPLE_BATCH": "2", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

        def run(seconds, what, *options):
            return subprocess.run(["bash", recipe, "train", self.path("a store"), os.path.dirname(text), str(seconds), what, *options], env=env,
                                  capture_output=True, text=True)
        said = run(0, "text")
        self.assertEqual((said.returncode, os.listdir(self.path("a store/generated")).count("part-00000.safetensors")), (0, 1), said.stderr)
        small = ["--batch", "2", "--length", "24", "--held-rows", "2", "--seconds", "0"]
        for what, more in (("drafter", ["--layers", "1", "--width", "32", "--state", "16"]), ("eagle2", []), ("eagle3", ["--draft-vocab", "40"]),
                           ("lyanna", ["--hot", "40", "--rank", "8"])):
            with self.subTest(what):
                said = run(60, what, *small, *more)
                self.assertEqual(said.returncode, 3, said.stderr)
                self.assertIn("has all its parts", said.stdout)
                self.assertEqual(self.loads(target, "-md", self.path("a store/" + what)), self.loads(target))
        self.assertIn("is neither text, drafter", run(60, "eagle4").stderr)


class Goldens(Case):
    def test_files_of_cases_say_what_is_stored(self):
        tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests")
        sys.path.insert(0, os.path.join(tests, "tools"))
        import make_head_cases
        for case in ("eagle2-llama2", "eagle3-speculators", "lyanna-mamba2"):
            with self.subTest(case), torch.no_grad():
                directory = os.path.join(tests, "golden", "heads", case)
                with open(os.path.join(directory, "golden.json")) as f:
                    golden = json.load(f)
                target, _ = checkpoint.load(os.path.join(tests, "golden", golden["target"]))
                stored = load_file(os.path.join(directory, "golden.safetensors"))
                tensors, trees = make_head_cases.said(target, head_files.load(directory, target.embed.weight), stored["ids"].long())
                for key, tensor in tensors.items():
                    self.close(tensor, stored[key], 1e-4 * max(1, float(stored[key].abs().max())))
                self.assertEqual([[n["path"] for n in t["nodes"]] for t in trees], [[n["path"] for n in t["nodes"]] for t in golden["trees"]])


class Measuring(Case):
    def test_accepted_rank_keeps_the_distribution(self):
        """Children without replacement: the first child's share is sum min(p, q), and with all tokens as children one is accepted."""
        torch.manual_seed(0)
        p, q = (torch.randn(2, 5) * 1.5).softmax(-1).double()
        rows, draw = 40000, torch.Generator().manual_seed(1)
        rank = measure.accepted_rank(p.expand(rows, -1), q.expand(rows, -1), 5, draw)
        self.assertAlmostEqual(float((rank == 0).double().mean()), float(torch.minimum(p, q).sum()), delta=0.01)
        self.assertEqual(int((rank == 5).sum()), 0)
        # The second child, by enumeration of the first.
        second = 0.0
        for x in range(5):
            rest = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
            left = q.clone()
            left[x] = 0
            second += max(float(q[x] - p[x]), 0.0) * float(torch.minimum(rest, left / left.sum()).sum())
        self.assertAlmostEqual(float((rank == 1).double().mean()), second, delta=0.01)

    def test_a_head_reads_of_a_target_of_transformers_what_it_reads_of_ours(self):
        """Its file names no layers that can be believed: those of the rule, for the number of layers that each target has."""
        directory, out = self.model(), self.path("head")
        head = heads.Eagle3(head_files.head_config(CONFIGS["llama"], n_taps=3, taps=[], draft_vocab_size=VOCAB))
        head_files.save(head, out, torch.float32)
        ids = torch.arange(40).view(2, 20)
        with torch.no_grad():
            drafts = [measure.Measured(target, out, "cpu").chains(ids, 8)[0] for target in (checkpoint.load(directory)[0], checkpoint.Foreign(directory, "cpu"))]
        for a, b in zip(*drafts):
            self.close(a, b, 1e-4)

    def test_greedy_rank(self):
        p, q = torch.tensor([[0.0, 1, 2], [3.0, 1, 2]]), torch.tensor([[0.0, 3, 2], [0.0, 3, 2]])
        self.assertEqual(measure.greedy_rank(p, q, 2).tolist(), [1, 2])


class Inflating(Case):
    def test_logits_stay(self):
        ids = torch.randint(0, VOCAB, (2, 50), generator=torch.Generator().manual_seed(1))
        for family in ("llama", "bamba", "mamba2"):
            small = self.model(family, family)
            net, _ = checkpoint.load(small)
            with torch.no_grad():
                expected = net.head(net(ids))
            for what, options in (("wide", ["--width", "96"]), ("deep", ["--layers", "7"]), ("all", ["--width", "64", "--layers", "5", "--vocab", "500"])):
                with self.subTest(family, what=what), torch.no_grad():
                    out = self.path(family + what)
                    with quiet():
                        inflate.main([small, "--out", out, "--dtype", "float32", *options])
                    big = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
                    logits = big(ids).logits
                    self.close(logits[..., :VOCAB], expected, 1e-4)
                    self.assertEqual(self.loads(out, "--dtype", "f32"), self.loads(small, "--dtype", "f32"))
                    if what == "all":
                        self.assertLess(float(logits[..., VOCAB:].max()), -50)
                        self.assertGreater(sum(w.numel() for w in big.parameters()), 4 * sum(w.numel() for w in net.parameters()))

    def test_heads_draft_the_same(self):
        """For the wide target, whose embedding and hidden vectors have zeros behind those of the small one. In bfloat16 too."""
        embedding, ids = torch.randn(30, 16), torch.randint(0, 30, (2, 11))
        target_head, hidden = torch.randn(30, 16), torch.randn(2, 11, 3, 16)
        wide = [torch.nn.functional.pad(x, (0, 32)) for x in (embedding, target_head, hidden)]
        target = self.model(vocab_size=30, hidden_size=16)
        for (name, head), dtype in itertools.product(some_heads(embedding), (torch.float32, torch.bfloat16)):
            with self.subTest(name, dtype=dtype), torch.no_grad():
                is_eagle3 = isinstance(head, heads.Eagle3)
                for key, weight in head.named_parameters():
                    if "norm" in key:
                        torch.nn.init.uniform_(weight, 0.5, 1.5)
                    if "token_info.w1" in key and dtype == torch.float32:
                        weight.mul_(0.01)  # so that eps counts
                small, out, seen = self.path("%s %s" % (name, dtype)), self.path("%s %s wide" % (name, dtype)), slice(None) if is_eagle3 else slice(1)
                head_files.save(head, small, dtype, "speculators" if name == "eagle3 before" else "eagle")
                head = head_files.load(small, embedding)
                with quiet():
                    inflate.main([small, "--out", out, "--dtype", str(dtype).split(".")[1], "--width", "48", "--inner", "80"]
                                 + ["--target", target] * is_eagle3)
                big = head_files.load(out, wide[0])
                self.assertGreater(sum(w.numel() for w in big.parameters()), 4 * sum(w.numel() for w in head.parameters()))
                given, wide_given = (h[:, :, seen].flatten(2) for h in (hidden, wide[2]))
                for a, b in zip(head.unroll(embedding[ids], given, 4), big.unroll(wide[0][ids], wide_given, 4)):
                    self.close(b, torch.nn.functional.pad(a, (0, 32)), 1e-4)
                    self.close(big.logits(b, ids, wide[1]), head.logits(a, ids, target_head), 1e-4)

    def test_heads_draft_the_same_for_a_target_of_more_tokens(self):
        """Those that it has more are not drafted."""
        small, large = self.model("bamba"), self.path("large")
        ids = torch.randint(0, VOCAB, (2, 30), generator=torch.Generator().manual_seed(1))
        wider = ["--dtype", "float32", "--width", "96", "--layers", "7", "--vocab", "500"]
        with quiet():
            inflate.main([small, "--out", large, *wider])
        c = head_files.head_config(CONFIGS["bamba"], n_taps=3, taps=[3, 1, 0], draft_vocab_size=VOCAB, fc_norm=True, token_info_rank=8)
        torch.manual_seed(1)
        for name, head in (("eagle2", heads.Eagle2(c)), ("eagle3", heads.Eagle3(c)), ("lyanna", heads.Lyanna(c, range(0, VOCAB, 2), None))):
            with self.subTest(name), torch.no_grad():
                head.draft_ids = torch.arange(VOCAB)
                head_files.save(head, self.path(name), torch.float32)
                more = wider if name == "eagle3" else wider[:4] + wider[6:]
                with quiet():
                    inflate.main([self.path(name), "--out", self.path(name + " large"), *more] + ["--target", small] * (name == "eagle3"))
                logits = []
                for target, directory in ((small, self.path(name)), (large, self.path(name + " large"))):
                    drafter = measure.Measured(checkpoint.load(target)[0], directory, "cpu")
                    rows, weight = drafter.chains(ids, 20)
                    logits.append(torch.stack([drafter.whole(row @ weight.T) for row in rows]))
                self.close(logits[0], logits[1][..., :VOCAB], 1e-4)
                for depth, rows in enumerate(logits[1]):  # chains begin at the first position, and have such a row from the depth-th on
                    self.assertLess(float(rows[:, depth:, VOCAB:].max()), -50)
                self.assertEqual(*(self.drafted(*pair) for pair in ((small, self.path(name)), (large, self.path(name + " large")))))

    def test_an_eagle3_head_reads_the_same_of_a_deeper_target(self):
        """Of its own layers, of the rule's where its file names none, and of what leaves the final norm, which is another number in the deeper one."""
        small, deep = self.model("bamba"), self.path("deep")
        ids = torch.randint(0, VOCAB, (2, 30), generator=torch.Generator().manual_seed(1))
        with quiet():
            inflate.main([small, "--out", deep, "--dtype", "float32", "--width", "96", "--layers", "7"])
        for name, taps, read in (("own", [0, 1, 2], [0, 1, 2]), ("rule", [], [2, 1, 0]), ("last", [3, 1, 0], [7, 1, 0])):
            with self.subTest(name), torch.no_grad():
                torch.manual_seed(1)
                head = heads.Eagle3(head_files.head_config(CONFIGS["bamba"], n_taps=3, taps=taps, draft_vocab_size=130, fc_norm=True))
                head.draft_ids = torch.arange(130) * 2
                head.fc_norm[1].weight.mul_(3)
                head_files.save(head, self.path(name), torch.float32)
                out = self.path(name + " deep")
                with quiet():
                    inflate.main([self.path(name), "--out", out, "--dtype", "float32", "--width", "96", "--target", small, "--layers", "7"])
                self.assertEqual(checkpoint.read_config(out)["eagle_config"]["eagle_aux_hidden_state_layer_ids"], read)
                drafts = []
                for target, directory in ((small, self.path(name)), (deep, out)):
                    drafter = measure.Measured(checkpoint.load(target)[0], directory, "cpu")
                    rows, weight = drafter.chains(ids, 20)
                    drafts.append(torch.stack([drafter.whole(row @ weight.T)[..., head.draft_ids] for row in rows]))
                self.close(*drafts, 1e-4)
                if taps:  # the library believes no empty list
                    said = [self.drafted(*pair) for pair in ((small, self.path(name)), (deep, out))]
                    self.assertEqual(*said)

    def drafted(self, target, head):
        """What the library says of tokens, and of each step's drafts."""
        said = self.loads(target, "-md", head, "--dtype", "f32", "--tree", "eagle2:40,120,2", "-n", "120", "--json", "--check")
        if said:
            said = json.loads(said)
            self.assertGreater(said["accepted"], 9)
            return said["tokens"], said["drafted"], said["accepted_histogram"]

    def test_refusals_of_heads(self):
        for name, head in some_heads(torch.randn(30, 16)):
            if isinstance(head, heads.Eagle3):
                head.draft_ids = torch.arange(30)
            head_files.save(head, self.path(name), torch.float32)
        target, out = self.model(vocab_size=30, hidden_size=16), self.path("o")
        self.refused("say --target", inflate.main, [self.path("eagle3"), "--out", out, "--width", "32"])
        self.refused("is 32 wide, the head is for a target of width 16", inflate.main,
                     [self.path("eagle3"), "--out", out, "--target", self.model(name="wide")])
        self.refused("--layers is 2, .* has 3", inflate.main, [self.path("eagle3"), "--out", out, "--target", target, "--layers", "2"])
        self.refused("reads layers 0 1 2, .* has 1: it is for another target", inflate.main,
                     [self.path("eagle3"), "--out", out, "--target", self.model(name="flat", hidden_size=16, num_hidden_layers=1)])
        self.refused("--vocab is 29, the model has 30", inflate.main, [self.path("eagle3"), "--out", out, "--target", target, "--vocab", "29"])
        self.refused("need a larger --width", inflate.main, [self.path("eagle2"), "--out", out, "--vocab", "99"])
        self.refused("--width is 8 and --inner None, the head has 16 and 24", inflate.main, [self.path("eagle2"), "--out", out, "--width", "8"])
        self.refused("leave --layers and --target out", inflate.main, [self.path("lyanna"), "--out", out, "--layers", "2"])
        self.refused("is no head: leave --target out", inflate.main, [target, "--out", out, "--target", target])

    def test_refusals(self):
        small = self.model("bamba")
        self.refused("--width is 16, the model has 32", inflate.main, [small, "--out", self.path("o"), "--width", "16"])
        self.refused("a whole number", inflate.main, [small, "--out", self.path("o"), "--width", "33"])
        self.refused("need a larger --width", inflate.main, [small, "--out", self.path("o"), "--vocab", "300"])
        self.refused("has a model in it", inflate.main, [small, "--out", small])


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    unittest.main()
