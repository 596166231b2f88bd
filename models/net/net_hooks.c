/* net_hooks.c - plans of operations on the device, as a kind of executor. */
#include "models/net/net.h"

const speci_exec_kind speci_exec_net = {
    .close_model = speci_model_free_owned,
    .open = speci_net_open, .close = speci_net_close, .plans = speci_net_plans, .memory = speci_net_memory,
    .attach = speci_net_attach, .begin = speci_net_begin, .end = speci_net_end, .prefill = speci_net_prefill,
    .forward = speci_net_forward, .commit = speci_net_commit, .break_seq = speci_net_break, .flush = speci_net_flush,
    .n_past = speci_net_n_past, .copy = speci_net_copy,
    .write = speci_net_write, .read = speci_net_read, .data_bytes = speci_net_data_bytes, .warm = speci_net_warm,
    .n_recent = speci_net_n_recent, .can_lag = speci_net_can_lag, .tap = speci_net_tap,
    .given = speci_net_given, .forward_part = speci_net_forward_part,
};
