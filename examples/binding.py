#!/usr/bin/env python3
"""binding.py - spec from Python, by ctypes alone: text as it comes, then the same text by steps.

    binding.py build/lib/libspec.so models/demo-target models/demo-drafter "Once upon a time"
"""
import ctypes as c, sys

TEXT_FN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_char), c.c_size_t, c.POINTER(c.c_int32), c.c_size_t)

class Sampling(c.Structure):
    _fields_ = [("temperature", c.c_float), ("top_k", c.c_int32), ("top_p", c.c_float), ("min_p", c.c_float), ("seed", c.c_uint64)]

class Request(c.Structure):  # all fields of spec.h up to the last one that is needed
    _fields_ = [("struct_size", c.c_size_t), ("sampling", Sampling), ("n_predict", c.c_int32), ("stop", c.POINTER(c.c_char_p)),
                ("n_stop", c.c_int32), ("end_ids", c.POINTER(c.c_int32)), ("n_end_id", c.c_int32), ("ignore_eos", c.c_int32),
                ("keep_special", c.c_int32), ("logprobs", c.c_int32), ("n_top", c.c_int32), ("repeat_penalty", c.c_float),
                ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float), ("n_penalty", c.c_int32), ("bias", c.c_void_p),
                ("n_bias", c.c_int32), ("mask", c.c_void_p), ("mask_user_data", c.c_void_p), ("on_text", TEXT_FN)]

class StepResult(c.Structure):  # made by the library, which hands out pointers: the rest may be left out
    _fields_ = [("tokens", c.POINTER(c.c_int32)), ("n_tokens", c.c_int32), ("text", c.POINTER(c.c_char)), ("n_text", c.c_size_t),
                ("logprobs", c.c_void_p), ("stop", c.c_int)]

spec = c.CDLL(sys.argv[1])
spec.spec_last_error.restype = c.c_char_p
spec.spec_struct_size.restype = c.c_size_t
for close in spec.spec_session_close, spec.spec_drafter_close, spec.spec_model_close, spec.spec_backend_close, spec.spec_result_free:
    close.restype = None

def call(function, *args):  # every call that can fail returns a status
    if getattr(spec, function)(*args) != 0:
        sys.exit(function + ": " + spec.spec_last_error().decode(errors="replace"))

def opened(function, *args):
    out = c.c_void_p()
    call(function, c.byref(out), *args)
    return out

def write(data):
    sys.stdout.buffer.write(data), sys.stdout.buffer.flush()

@TEXT_FN
def on_text(user_data, text, n_text, ids, n_ids):
    write(text[:n_text])
    return 0

target_path, drafter_path, prompt = (word.encode() for word in sys.argv[2:])
backend = opened("spec_backend_open", b"cpu", None)
target, small = (opened("spec_model_open", backend, path, None) for path in (target_path, drafter_path))
drafter = opened("spec_drafter_from_model", small, None)
session = opened("spec_session_open", target, drafter, None)

request = Request(struct_size=c.sizeof(Request), n_predict=64, on_text=on_text)
result = (c.c_size_t * (spec.spec_struct_size(b"spec_result") // c.sizeof(c.c_size_t)))(spec.spec_struct_size(b"spec_result"))
call("spec_generate", session, result, prompt, c.c_size_t(len(prompt)), c.byref(request))
spec.spec_result_free(result)
write(b"\n")

seq, step = c.c_int32(), c.POINTER(StepResult)()
call("spec_sequence_add_text", session, c.byref(seq), prompt, c.c_size_t(len(prompt)), c.byref(request))
while not step or step.contents.stop == 0:
    call("spec_step", session, c.byref(step), c.byref(seq), 1)
    write(step.contents.text[:step.contents.n_text])
write(b"\n")
call("spec_sequence_remove", session, seq)

for close, object in (("session", session), ("drafter", drafter), ("model", small), ("model", target), ("backend", backend)):
    getattr(spec, f"spec_{close}_close")(object)
