#!/usr/bin/env python3
"""binding.py - spec from Python, by ctypes alone: text as it comes, then the same text by steps.

    binding.py build/lib/libspec.so models/demo-target models/demo-drafter "Once upon a time"
"""
import ctypes as c, sys
from ctypes import POINTER, c_float, c_int, c_int32, c_size_t, c_void_p

TextFn = c.CFUNCTYPE(c_int, c_void_p, POINTER(c.c_char), c_size_t, POINTER(c_int32), c_size_t)

class Sampling(c.Structure):
    _fields_ = [("temperature", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float), ("seed", c.c_uint64)]

class Request(c.Structure):  # the fields of spec.h up to the last one that is needed
    _fields_ = [("struct_size", c_size_t), ("sampling", Sampling), ("n_predict", c_int32), ("stop", POINTER(c.c_char_p)),
                ("n_stop", c_int32), ("end_ids", POINTER(c_int32)), ("n_end_id", c_int32), ("ignore_eos", c_int32),
                ("keep_special", c_int32), ("logprobs", c_int32), ("n_top", c_int32), ("repeat_penalty", c_float),
                ("presence_penalty", c_float), ("frequency_penalty", c_float), ("n_penalty", c_int32), ("bias", c_void_p),
                ("n_bias", c_int32), ("mask", c_void_p), ("mask_user_data", c_void_p), ("on_text", TextFn)]

class StepResult(c.Structure):  # the library makes it and hands out pointers: the rest can be left out
    _fields_ = [("tokens", POINTER(c_int32)), ("n_tokens", c_int32), ("text", POINTER(c.c_char)), ("n_text", c_size_t),
                ("logprobs", c_void_p), ("stop", c_int)]

if len(sys.argv) != 5: sys.exit(__doc__)
spec, write = c.CDLL(sys.argv[1]), open(1, "wb", buffering=0).write
spec.spec_last_error.restype, spec.spec_struct_size.restype = c.c_char_p, c_size_t

def call(function, *args):  # whatever can fail returns a status
    if getattr(spec, function)(*args) != 0:
        sys.exit(f"{function}: {spec.spec_last_error().decode(errors='replace')}")

def opened(function, *args):
    call(function, c.byref(out := c_void_p()), *args)
    return out

@TextFn
def on_text(user_data, text, n_text, ids, n_ids):
    write(text[:n_text])
    return 0  # anything else stops the generation

*paths, prompt = (word.encode() for word in sys.argv[2:])
backend = opened("spec_backend_open", b"cpu", None)
target, small = (opened("spec_model_open", backend, path, None) for path in paths)
drafter = opened("spec_drafter_from_model", small, None)
session = opened("spec_session_open", target, drafter, None)

request = Request(struct_size=c.sizeof(Request), n_predict=64, on_text=on_text)
size = spec.spec_struct_size(b"spec_result")  # nothing is read of it, so its fields can be left out
call("spec_generate", session, result := (c_size_t * (size // 8))(size), prompt, c_size_t(len(prompt)), c.byref(request))
write(b"\n")
spec.spec_result_free(result)

seq, step = c_int32(), POINTER(StepResult)()
call("spec_sequence_add_text", session, c.byref(seq), prompt, c_size_t(len(prompt)), c.byref(request))
while not step or step.contents.stop == 0:
    call("spec_step", session, c.byref(step), c.byref(seq), 1)
    write(step.contents.text[:step.contents.n_text] + b"\n" * (step.contents.stop != 0))
for kind, it in ("session", session), ("drafter", drafter), ("model", small), ("model", target), ("backend", backend):
    getattr(spec, f"spec_{kind}_close")(it)
