/* own_hooks.c - an application's engine, as a kind of executor. */
#include "models/own/own.h"

const speci_exec_kind speci_exec_own = {
    .waits = true,
    .close_model = speci_own_close_model,
    .open = speci_own_open, .close = speci_own_close, .plans = speci_own_plans, .memory = speci_own_memory,
    .attach = speci_own_attach, .begin = speci_own_begin, .end = speci_own_end, .prefill = speci_own_prefill,
    .forward = speci_own_forward, .commit = speci_own_commit, .break_seq = speci_own_break, .flush = speci_own_flush,
    .n_past = speci_own_n_past, .copy = speci_own_copy,
    .write = speci_own_write, .read = speci_own_read, .seq_bytes = speci_own_seq_bytes,
};
