/* test_op_scan.c - selective scan over trees: every node's path is unrolled behind the replayed path, and run from the
 * stored state one token after the other. So it is with the chunked form, where the recent tokens stand behind
 * the stored state. What must not be read is NaN, what must not be written stays NaN. */
#include <math.h>
#include <stdio.h>

#include "tests/ref_ops.h"
#include "tests/support_steps.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

enum { NODES = 12, WIDE = 256 }; /* that the caches hold, or as many as a chunked step has */

/* Longer prompts: around the lengths at which a backend may cut them. */
enum { LINE = 517 };
static int32_t line[LINE];
static const test_seq prompt_1[] = { { .slot = 3, .n_node = 1, .parent = line } };
static const test_seq prompt_63[] = { { .slot = 0, .n_node = 63, .parent = line } };
static const test_seq prompt_64[] = { { .slot = 5, .n_node = 64, .parent = line } };
static const test_seq prompt_65[] = { { .slot = 1, .n_node = 65, .parent = line } };
static const test_seq prompt_150[] = { { .slot = 2, .n_node = 150, .parent = line } };
static const test_seq prompt_517[] = { { .slot = 4, .n_node = LINE, .parent = line } };

/* Chunked form. Positions are such that the recent tokens of some lie at the ends of their buffers. */
enum { DEPTHS = SPEC_MAX_DEPTH + 1 };
static int32_t path_line[DEPTHS], path_far_apart[DEPTHS]; /* node j, 3 j */
static int32_t binary[WIDE], comb[WIDE], mixed[WIDE]; /* mixed: a spine of 30 and chains that leave it */
static int32_t forks[WIDE];                           /* chains of 63 below the root */
static const int32_t path_comb[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 104 };

static const test_seq recent_0[] = { { .slot = 1, .n_past = 40, .n_node = 10, .parent = bush } };
static const test_seq recent_1[] = { { .slot = 1, .n_past = 44, .n_recent = 1, .n_node = 10, .parent = bush } };
static const test_seq recent_5[] = { { .slot = 1, .n_past = 45, .n_recent = 5, .n_node = 10, .parent = bush } };
static const test_seq recent_15[] = { { .slot = 1, .parity = 1, .n_past = 46, .n_recent = 15, .n_node = 10,
                                        .parent = bush } };
static const test_seq recent_16[] = { { .slot = 1, .n_past = 52, .n_recent = 16, .n_node = 10, .parent = bush } };
static const test_seq recent_26[] = { { .slot = 1, .n_past = 58, .n_recent = 26, .n_node = 10, .parent = bush } };
static const test_seq recent_31[] = { { .slot = 1, .n_past = 31, .n_recent = 31, .n_node = 10, .parent = bush } };
static const test_seq path_below[] = { { .slot = 4, .n_past = 60, .n_recent = 29, .n_replay = 2, .path = path_two,
                                         .n_node = 10, .parent = bush } };
static const test_seq path_to_fold[] = { { .slot = 4, .n_past = 97, .n_recent = 31, .n_replay = 1, .path = path_root,
                                           .n_node = 10, .parent = bush } };
static const test_seq path_over[] = { { .slot = 4, .parity = 1, .n_past = 90, .n_recent = 28, .n_replay = 5,
                                        .path = path_far, .n_node = 10, .parent = bush } };
static const test_seq path_alone[] = { { .slot = 4, .n_past = 200, .n_replay = 40, .path = path_far_apart, .n_node = 10,
                                         .parent = bush } };
static const test_seq path_of_31[] = { { .slot = 4, .n_past = 200, .n_replay = 31, .path = path_far_apart, .n_node = 1,
                                         .parent = chain } };
static const test_seq path_of_all[] = { { .slot = 4, .n_past = 150, .n_recent = 31, .n_replay = 64, .path = path_line,
                                          .n_node = 10, .parent = bush } };
static const test_seq path_of_comb[] = { { .slot = 2, .parity = 1, .n_past = 331, .n_recent = 15, .n_replay = 18,
                                           .path = path_comb, .n_node = 120, .parent = comb } };
static const test_seq seqs_of_each[] = {
    { .slot = 3, .n_past = 9, .n_recent = 4, .n_replay = 2, .path = path_two, .n_node = 10, .parent = bush },
    { .slot = 0, .parity = 1, .n_past = 100, .n_recent = 31, .n_replay = 1, .path = path_root, .n_node = 1,
      .parent = chain },
    { .slot = 5, .parity = 1, .n_past = 77, .n_recent = 16, .n_node = 6, .n_fed = 2, .parent = star },
    { .slot = 6, .n_past = 64, .n_node = 10, .parent = bush },
    { .slot = 2, .parity = 1, .n_past = 333, .n_recent = 27, .n_replay = 5, .path = path_far, .n_node = 12,
      .parent = chain },
    { .slot = 7, .n_past = 10, .n_recent = 5, .n_replay = 5, .path = path_far },
    { .slot = 4, .n_past = 55, .n_recent = 15, .n_node = 10, .parent = late_bush, .n_advance = 4 } };
static const test_seq fed_recent[] = { { .slot = 2, .n_past = 80, .n_recent = 20, .n_node = 10, .n_fed = 4,
                                         .parent = bush } };
static const test_seq fed_deep[] = { { .slot = 2, .parity = 1, .n_past = 80, .n_recent = 31, .n_node = 64, .n_fed = 30,
                                       .parent = line } };
static const test_seq fed_mixed[] = { { .slot = 2, .n_past = 80, .n_recent = 12, .n_node = 100, .n_fed = 41,
                                        .parent = mixed } };
static const test_seq fed_replay_apart[] = { { .slot = 2, .n_past = 81, .n_recent = 19, .n_node = 64, .n_fed = 63,
                                               .parent = line } };
static const test_seq deep_0[] = { { .slot = 0, .n_past = 1, .n_node = 64, .parent = line } };
static const test_seq deep_16[] = { { .slot = 0, .n_past = 300, .n_recent = 16, .n_node = 64, .parent = line } };
static const test_seq deep_31[] = { { .slot = 0, .n_past = 310, .n_recent = 31, .n_node = 64, .parent = line } };
static const test_seq deep_40[] = { { .slot = 0, .parity = 1, .n_past = 310, .n_recent = 7, .n_replay = 11,
                                      .path = path_line, .n_node = 40, .parent = line } };
static const test_seq tree_64[] = { { .slot = 3, .n_past = 70, .n_recent = 23, .n_node = 64, .parent = binary } };
static const test_seq tree_mixed[] = { { .slot = 3, .n_past = 70, .n_recent = 29, .n_replay = 12, .path = path_line,
                                         .n_node = 200, .parent = mixed } };
static const test_seq tree_256[] = { { .slot = 3, .n_past = 75, .n_recent = 31, .n_node = WIDE, .parent = binary } };
static const test_seq comb_256[] = { { .slot = 3, .n_past = 75, .n_recent = 17, .n_node = WIDE, .parent = comb } };
static const test_seq forks_0[] = { { .slot = 5, .n_past = 3, .n_node = 190, .parent = forks } };
static const test_seq forks_31[] = { { .slot = 5, .parity = 1, .n_past = 88, .n_recent = 27, .n_replay = 4,
                                       .path = path_line, .n_node = WIDE - 3, .parent = forks } };
static const test_seq advance_recent[] = { { .slot = 1, .n_past = 63, .n_recent = 14, .n_node = 10, .parent = late_bush,
                                             .n_advance = 4 } };
static const test_seq advance_behind[] = { { .slot = 1, .n_past = 163, .n_recent = 31 + 64, .n_node = 10,
                                             .parent = late_bush, .n_advance = 4 } };
static const test_seq advance_full[] = { { .slot = 1, .n_past = 501, .n_recent = 31 + 64, .n_node = 64, .parent = line,
                                           .n_advance = 64 } };
static const test_seq advance_deep[] = { { .slot = 1, .n_past = 501, .n_recent = 40, .n_node = 80, .parent = mixed,
                                           .n_advance = 30 } };
static const test_seq fold_only[] = { { .slot = 1, .n_past = 501, .n_recent = 31 + 64 } };
static const test_seq flush_recent[] = {
    { .slot = 3, .n_past = 90, .n_recent = 28, .n_replay = 5, .path = path_far },
    { .slot = 1, .parity = 1, .n_past = 99, .n_recent = 3, .n_node = 10, .parent = bush },
    { .slot = 0, .n_past = 47, .n_recent = 47 },
    { .slot = 5, .n_past = 20, .n_recent = 20 },
    { .slot = 2, .parity = 1, .n_past = 170, .n_recent = 31, .n_replay = 64, .path = path_line } };

typedef struct scan_case {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq;
    int32_t n_head, head_dim, n_state, x_rep, b_rep, c_rep;
    bool per_state, in_conv, gate, dt_bias;
    double dt_min, dt_max;
    double decay; /* size of A */
    spec_dtype dtype, rest; /* of x (and B, C in the convolution); of dt, z, y and the others */
    bool chunked;
    int32_t phase, run;
} scan_case;

#define DECODE false, SPEC_PHASE_DECODE, 0
#define CHUNKED true, SPEC_PHASE_DECODE, 0
#define PREFILL false, SPEC_PHASE_PREFILL
static const scan_case cases[] = {
    { "base", tree, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "one_row", one, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "one_replay", one_replay, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "replay", tree_replay, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "fed", fed, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "several", several, 4, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "advance", advance, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "advance_one", advance_one, 2, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "advance_all", advance_all, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "flush", flush, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "flush_some", flush_some, 3, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "flush_mamba1", flush_some, 3, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "gate", several, 4, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "no_dt_bias", several, 4, 4, 8, 16, 1, 2, 2, false, true, true, false, 0, INFINITY, 1, F32, F32, DECODE },
    { "dt_limits", several, 4, 4, 8, 16, 1, 2, 2, false, true, false, true, 0.4, 1.1, 1, F32, F32, DECODE },
    { "one_group", several, 4, 4, 8, 16, 1, 4, 4, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "own_groups", several, 4, 4, 8, 16, 1, 1, 1, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "shared_x", several, 4, 4, 8, 16, 2, 2, 1, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "odd_sizes", several, 4, 3, 7, 13, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "large_head", several, 4, 2, 64, 128, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "wide_state", tree_replay, 1, 3, 96, 256, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "huge_head", several, 4, 2, 600, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "parts_of_heads", several, 4, 3, 33, 256, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "parts_of_heads_1024", tree_replay, 1, 3, 9, 1024, 1, 1, 1, false, false, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "strong_decay", several, 4, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 60, F32, F32, DECODE },
    { "mamba1", several, 4, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "mamba1_many", several, 4, 300, 1, 16, 1, 300, 300, true, false, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "mamba1_odd", tree_replay, 1, 37, 1, 5, 1, 37, 37, true, false, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "mamba1_grouped", several, 4, 24, 1, 16, 4, 8, 6, true, false, true, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "cached_b", several, 4, 4, 8, 16, 1, 2, 2, false, false, false, true, 0, INFINITY, 1, F32, F32, DECODE },
    { "bf16", several, 4, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, BF16, BF16, DECODE },
    { "bf16_f32_rest", several, 4, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_mamba1", several, 4, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_mamba1_one", one_replay, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, BF16, DECODE },
    { "f16", several, 4, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F16, F16, DECODE },
    { "f16_mamba1", several, 4, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, F16, F16, DECODE },
    { "bf16_large", several, 4, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_large_groups", several, 4, 8, 20, 128, 1, 4, 4, false, true, true, true, 0, INFINITY, 1, BF16, BF16, DECODE },
    { "bf16_large_odd", several, 4, 5, 7, 128, 1, 1, 1, false, true, true, false, 0.4, 1.1, 1, BF16, F32, DECODE },
    { "bf16_large_shared_x", several, 4, 8, 64, 128, 4, 4, 1, false, true, true, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_large_shared_c", tree_replay, 1, 8, 16, 128, 2, 1, 4, false, true, false, true, 0, INFINITY, 1, BF16, BF16, DECODE },
    { "bf16_large_one", one_replay, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_large_advance", advance, 1, 4, 16, 128, 1, 4, 4, false, true, false, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "bf16_large_flush", flush_some, 3, 4, 16, 128, 1, 4, 4, false, true, false, true, 0, INFINITY, 1, BF16, F32, DECODE },
    { "f16_large", several, 4, 4, 16, 128, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F16, F16, DECODE },
    { "chunked_gate", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_no_dt_bias", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, false, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_dt_limits", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, false, true, 0.4, 1.1, 1, F32, F32, CHUNKED },
    { "chunked_one_group", seqs_of_each, 7, 4, 8, 16, 1, 4, 4, false, true, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_own_groups", path_over, 1, 4, 8, 16, 1, 1, 1, false, true, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_shared_x", seqs_of_each, 7, 4, 8, 16, 2, 2, 1, false, true, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_shared_c", deep_31, 1, 4, 8, 16, 4, 1, 4, false, true, false, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_odd_sizes", seqs_of_each, 7, 3, 7, 13, 1, 3, 3, false, true, true, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_odd_deep", deep_31, 1, 3, 7, 13, 1, 3, 1, false, false, true, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_states_64", seqs_of_each, 7, 4, 8, 64, 1, 2, 2, false, true, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_large_head", seqs_of_each, 7, 2, 64, 128, 1, 2, 2, false, true, true, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_huge_head", path_over, 1, 2, 521, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_wide_state", path_over, 1, 3, 96, 256, 1, 3, 3, false, true, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_slow_decay", deep_31, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 0.001,
      F32, F32, CHUNKED },
    { "chunked_strong_decay", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 60,
      F32, F32, CHUNKED },
    { "chunked_strong_deep", deep_31, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 60,
      F32, F32, CHUNKED },
    { "chunked_cached_b", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, false, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_cached_b_deep", fed_deep, 1, 4, 8, 16, 1, 2, 2, false, false, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_cached_b_advance", advance_deep, 1, 4, 8, 16, 1, 2, 2, false, false, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_cached_b_flush", flush_recent, 5, 4, 8, 16, 1, 2, 2, false, false, false, true, 0, INFINITY, 1,
      F32, F32, CHUNKED },
    { "chunked_cached_b_bf16", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, false, true, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, BF16, BF16, CHUNKED },
    { "chunked_bf16_f32_rest", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_deep", deep_31, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, BF16, F32, CHUNKED },
    { "chunked_bf16_64", seqs_of_each, 7, 4, 64, 64, 1, 4, 4, false, true, true, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_large", seqs_of_each, 7, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_large_groups", seqs_of_each, 7, 8, 20, 128, 1, 4, 4, false, true, true, true, 0, INFINITY, 1,
      BF16, BF16, CHUNKED },
    { "chunked_bf16_large_odd", path_over, 1, 5, 7, 128, 1, 1, 1, false, true, true, false, 0.4, 1.1, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_large_shared_x", seqs_of_each, 7, 8, 64, 128, 4, 4, 1, false, true, true, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_large_strong", deep_31, 1, 4, 64, 128, 1, 4, 4, false, true, false, true, 0, INFINITY, 60,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24", path_over, 1, 24, 64, 128, 1, 24, 24, false, true, true, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_one", recent_1, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_f16", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F16, F16, CHUNKED },
    { "chunked_f16_f32_rest", seqs_of_each, 7, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1,
      F16, F32, CHUNKED },
    { "chunked_f16_deep", deep_31, 1, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F16, F32, CHUNKED },
    { "chunked_f16_64", seqs_of_each, 7, 4, 64, 64, 1, 4, 4, false, true, true, true, 0, INFINITY, 1, F16, F32, CHUNKED },
    { "chunked_f16_large", seqs_of_each, 7, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1,
      F16, F32, CHUNKED },
    { "chunked_f16_large_groups", seqs_of_each, 7, 8, 20, 128, 1, 4, 4, false, true, true, true, 0, INFINITY, 1,
      F16, F16, CHUNKED },
    { "chunked_f16_large_odd", path_over, 1, 5, 7, 128, 1, 1, 1, false, true, true, false, 0.4, 1.1, 1,
      F16, F32, CHUNKED },
    { "chunked_f16_large_shared_x", seqs_of_each, 7, 8, 64, 128, 4, 4, 1, false, true, true, true, 0, INFINITY, 1,
      F16, F32, CHUNKED },
    { "chunked_f16_large_strong", deep_31, 1, 4, 64, 128, 1, 4, 4, false, true, false, true, 0, INFINITY, 60,
      F16, F32, CHUNKED },
    { "chunked_f16_24", path_over, 1, 24, 64, 128, 1, 24, 24, false, true, true, true, 0, INFINITY, 1,
      F16, F32, CHUNKED },
    { "chunked_f16_24_one", recent_1, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      F16, F32, CHUNKED },
    { "chunked_bf16_24_several", seqs_of_each, 7, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_deep", deep_31, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_fed", fed_deep, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_advance", advance_deep, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_flush", flush_recent, 5, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_tree", tree_64, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_24_256", tree_256, 1, 24, 64, 128, 1, 24, 24, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_80", path_over, 1, 80, 64, 128, 1, 80, 80, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_80_all", path_of_all, 1, 80, 64, 128, 1, 80, 80, false, true, false, true, 0, INFINITY, 1,
      BF16, F32, CHUNKED },
    { "chunked_bf16_80_groups", path_to_fold, 1, 80, 64, 128, 1, 10, 10, false, true, true, true, 0, INFINITY, 1,
      BF16, BF16, CHUNKED },
    { "prefill", prompt, 1, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32, PREFILL, 16 },
    { "prefill_chunked", prompt, 1, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, F32, F32,
      true, SPEC_PHASE_PREFILL, 16 },
    { "prefill_chunked_bf16", prompt_65, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      true, SPEC_PHASE_PREFILL, 128 },
    { "prefill_mamba1", prompt, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, F32, F32,
      PREFILL, 16 },
    { "prefill_bf16", prompt, 1, 4, 8, 16, 1, 2, 2, false, true, true, true, 0, INFINITY, 1, BF16, BF16, PREFILL, 0 },
    { "prefill_bf16_1", prompt_1, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 16 },
    { "prefill_bf16_63", prompt_63, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 64 },
    { "prefill_bf16_64", prompt_64, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 64 },
    { "prefill_bf16_65", prompt_65, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 128 },
    { "prefill_bf16_gate", prompt_150, 1, 3, 64, 128, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_types", prompt_150, 1, 3, 64, 128, 1, 3, 3, false, true, true, false, 0, INFINITY, 1, BF16, BF16,
      PREFILL, 0 },
    { "prefill_bf16_limits", prompt_150, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0.4, 1.1, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_groups", prompt_150, 1, 8, 32, 128, 2, 4, 1, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_long", prompt_517, 1, 2, 64, 128, 1, 2, 2, false, true, false, true, 0, INFINITY, 0.01, BF16, F32,
      PREFILL, 1024 },
    { "prefill_bf16_strong", prompt_150, 1, 3, 64, 128, 1, 3, 3, false, true, false, true, 0, INFINITY, 60, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_64_states", prompt_150, 1, 4, 64, 64, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_widths", prompt_150, 1, 3, 40, 104, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_odd", prompt_65, 1, 3, 7, 13, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_wide", prompt_65, 1, 3, 64, 256, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_mamba1", prompt_65, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_mamba1_1", prompt_1, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 16 },
    { "prefill_bf16_mamba1_64", prompt_64, 1, 300, 1, 16, 1, 300, 300, true, false, false, true, 0.4, 1.1, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_f16_mamba1_long", prompt_517, 1, 70, 1, 16, 1, 70, 70, true, false, true, false, 0, INFINITY, 1, F16, F32,
      PREFILL, 1024 },
    { "prefill_bf16_mamba1_strong", prompt_150, 1, 40, 1, 16, 1, 40, 40, true, false, true, true, 0, INFINITY, 60, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_mamba1_states", prompt_65, 1, 40, 1, 12, 1, 40, 40, true, false, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_tiles", prompt_517, 1, 4, 128, 128, 2, 4, 1, false, true, true, true, 0, INFINITY, 0.1, BF16, F32,
      PREFILL, 1024 },
    { "prefill_bf16_many", prompt_65, 1, 80, 64, 128, 1, 80, 80, false, true, true, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_bf16_many_64", prompt_65, 1, 70, 40, 64, 1, 10, 10, false, true, false, true, 0, INFINITY, 1, BF16, F32,
      PREFILL, 0 },
    { "prefill_f16_many", prompt_65, 1, 70, 40, 128, 1, 10, 10, false, true, true, true, 0, INFINITY, 1, F16, F16,
      PREFILL, 0 },
    { "prefill_f16_many_64", prompt_65, 1, 70, 40, 56, 1, 10, 10, false, true, false, true, 0, INFINITY, 1, F16, F16,
      PREFILL, 0 },
    { "prefill_f16", prompt_150, 1, 3, 64, 128, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, F16, F16,
      PREFILL, 0 },
    { "prefill_f16_strong", prompt_150, 1, 3, 64, 64, 1, 1, 3, false, true, false, true, 0, INFINITY, 60, F16, F32,
      PREFILL, 0 },
    { "prefill_f16_long", prompt_517, 1, 2, 64, 128, 1, 2, 2, false, true, false, true, 0, INFINITY, 0.01, F16, F32,
      PREFILL, 0 },
};

/* Chunked form: every step with each of these, which have no steps of their own. */
static const scan_case chunked[] = {
    { "chunked", NULL, 0, 4, 8, 16, 1, 2, 2, false, true, false, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_own_b", NULL, 0, 4, 8, 16, 1, 1, 4, false, false, true, true, 0, INFINITY, 1, F32, F32, CHUNKED },
    { "chunked_bf16", NULL, 0, 3, 64, 128, 1, 3, 3, false, true, true, true, 0, INFINITY, 1, BF16, F32, CHUNKED },
};
static const struct {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq;
} chunked_steps[] = {
    { "recent_5", recent_5, 1 }, { "one", one, 1 }, { "recent_0", recent_0, 1 }, { "recent_1", recent_1, 1 },
    { "recent_15", recent_15, 1 }, { "recent_16", recent_16, 1 }, { "recent_26", recent_26, 1 },
    { "recent_31", recent_31, 1 }, { "one_replay", one_replay, 1 }, { "path_below", path_below, 1 },
    { "path_to_fold", path_to_fold, 1 }, { "path_over", path_over, 1 }, { "path_alone", path_alone, 1 },
    { "path_of_31", path_of_31, 1 }, { "path_of_all", path_of_all, 1 }, { "path_of_comb", path_of_comb, 1 },
    { "seqs_of_each", seqs_of_each, 7 }, { "fed_recent", fed_recent, 1 }, { "fed_deep", fed_deep, 1 },
    { "fed_mixed", fed_mixed, 1 }, { "fed_replay_apart", fed_replay_apart, 1 }, { "deep_0", deep_0, 1 },
    { "deep_16", deep_16, 1 }, { "deep_31", deep_31, 1 }, { "deep_40", deep_40, 1 }, { "tree_64", tree_64, 1 },
    { "tree_mixed", tree_mixed, 1 }, { "tree_256", tree_256, 1 }, { "comb_256", comb_256, 1 },
    { "forks_0", forks_0, 1 }, { "forks_31", forks_31, 1 }, { "advance_recent", advance_recent, 1 },
    { "advance_behind", advance_behind, 1 }, { "advance_full", advance_full, 1 }, { "advance_deep", advance_deep, 1 },
    { "fold_only", fold_only, 1 }, { "flush_recent", flush_recent, 5 },
};

/* Host copies. Rows hold x, B, C behind each other in `xbc` as the convolution would leave them; with B of its own,
 * x alone is there and `bc` holds [B | C]. */
typedef struct world {
    int32_t n_x, n_b, n_c, ld_x, ld_bc, inner;
    double *xbc, *bc, *dt, *z, *y;
    double *a, *d, *dt_bias;
    double *state, *cache_dt, *cache_b, *replay;
    size_t n_state, n_cache_dt, n_cache_b, n_replay;
    int32_t n_node, n_recent_max;       /* of the caches and, with chunks, of the recent-token buffers, [TEST_SEQS][n_recent_max]: */
    double *recent[3];              /* x, B, dt */
    int32_t recent_cols[3];
    bool written[TEST_SEQS][512]; /* entries of path tokens that are folded at once: they may be there or not */
} world;

/* The values of one token. */
typedef struct token {
    const double *x, *b, *c, *z;
    const double *dt_in;  /* a row's, or */
    const double *dt;     /* what the cache holds */
} token;

static double *nans(size_t n)
{
    double *v = calloc(n + 1, sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = NAN;
    return v;
}

static double *rounded(test_random *random, size_t n, double scale, spec_dtype dtype)
{
    double *v = test_values(random, n, scale);
    test_round_all(v, n, dtype);
    return v;
}

static size_t cache_row(const world *w, const test_seq *s, int32_t half, int32_t node)
{
    return ((size_t)s->slot * 2 + (size_t)half) * (size_t)w->n_node + (size_t)node;
}

static double *replay_at(const world *w, int32_t index, int32_t entry)
{
    return w->replay + ((size_t)index * 2 * (size_t)w->n_node + (size_t)entry) * (size_t)w->ld_x;
}

/* The entry of the token at `position`: of x, B or dt. */
static double *recent_at(const world *w, const test_seq *s, int32_t position, int32_t part)
{
    return w->recent[part] + (size_t)(s->slot * w->n_recent_max + position % w->n_recent_max) * (size_t)w->recent_cols[part];
}

static void put(double *v, int32_t n, double low, double high, spec_dtype dtype, test_random *random)
{
    for (int32_t i = 0; i < n; i++) v[i] = test_round(low + (high - low) * test_uniform(random), dtype);
}

static void put_cached(const scan_case *c, world *w, int32_t index, int32_t entry, int32_t half, int32_t node,
                       test_random *random)
{
    const test_seq *s = &c->seqs[index];
    put(replay_at(w, index, entry), w->ld_x, -1.0, 1.0, c->dtype, random);
    put(w->cache_dt + cache_row(w, s, half, node) * (size_t)c->n_head, c->n_head, 0.1, 1.2, F32, random);
    if (c->in_conv) return;
    put(w->cache_b + cache_row(w, s, half, node) * (size_t)w->n_b, w->n_b, -1.0, 1.0, c->dtype, random);
}

static void put_recent(const scan_case *c, world *w, const test_seq *s, int32_t position, test_random *random)
{
    put(recent_at(w, s, position, 0), w->n_x, -1.0, 1.0, c->dtype, random);
    put(recent_at(w, s, position, 1), w->n_b, -1.0, 1.0, c->dtype, random);
    put(recent_at(w, s, position, 2), c->n_head, 0.1, 1.2, F32, random);
}

static void make_sequences(const scan_case *c, world *w, test_random *random)
{
    size_t state = (size_t)(w->inner * c->n_state);
    for (int32_t i = 0; i < c->n_seq; i++) {
        const test_seq *s = &c->seqs[i];
        put(w->state + (size_t)s->slot * state, (int32_t)state, -1.0, 1.0, F32, random);
        for (int32_t j = 0; j < s->n_replay; j++) put_cached(c, w, i, j, s->parity ^ 1, s->path[j], random);
        for (int32_t n = 0; n < s->n_fed; n++) put_cached(c, w, i, s->n_replay + n, s->parity, n, random);
        const int32_t first = s->n_past - s->n_replay - s->n_recent;
        for (int32_t j = 0; j < s->n_recent; j++) put_recent(c, w, s, first + j, random);
    }
}

/* Caches are as small as the case lets them be, recent-token buffers as small as the library makes them (net_plan.c). */
static void size_world(const scan_case *c, world *w)
{
    int32_t n_path = 0, n_chain = 0;
    w->n_node = NODES;
    for (int32_t i = 0; i < c->n_seq && c->chunked; i++) {
        const test_seq *s = &c->seqs[i];
        if (s->n_node > w->n_node) w->n_node = s->n_node;
        if (s->n_replay > 0 && s->path[s->n_replay - 1] >= w->n_node) w->n_node = s->path[s->n_replay - 1] + 1;
        if (s->n_advance > n_chain) n_chain = s->n_advance;
        if (s->n_recent - 2 * SPEC_CHUNK + 1 > n_chain) n_chain = s->n_recent - 2 * SPEC_CHUNK + 1;
    }
    n_path = w->n_node < DEPTHS ? w->n_node : DEPTHS;
    w->n_recent_max = c->chunked ? spec_recent_capacity(n_path, n_chain) : 0;
    assert_true(w->n_recent_max <= N_ELEMENTS(w->written[0]));
    const int32_t cols[] = { w->n_x, w->n_b, c->n_head };
    memcpy(w->recent_cols, cols, sizeof cols);
    for (int32_t i = 0; i < 3; i++) w->recent[i] = nans((size_t)(TEST_SEQS * w->n_recent_max * cols[i]));
}

static world make_world(const scan_case *c, int32_t rows, test_random *random)
{
    world w = { 0 };
    size_t r = (size_t)rows, heads = (size_t)c->n_head;
    w.inner = c->n_head * c->head_dim;
    w.n_x = w.inner / c->x_rep;
    w.n_b = c->n_head / c->b_rep * c->n_state;
    w.n_c = c->n_head / c->c_rep * c->n_state;
    w.ld_x = c->in_conv ? w.n_x + w.n_b + w.n_c : w.n_x;
    w.ld_bc = w.n_b + w.n_c;
    size_world(c, &w);
    const size_t nodes = TEST_SEQS * 2 * (size_t)w.n_node;
    w.xbc = rounded(random, r * (size_t)w.ld_x, 1.0, c->dtype);
    w.bc = rounded(random, r * (size_t)w.ld_bc, 1.0, c->rest);
    w.dt = rounded(random, r * heads, 2.0, c->rest);
    w.z = rounded(random, r * (size_t)w.inner, 3.0, c->rest);
    w.y = nans(r * (size_t)w.inner);
    w.a = rounded(random, heads * (c->per_state ? (size_t)c->n_state : 1), 1.0, F32);
    for (size_t i = 0; i < heads * (c->per_state ? (size_t)c->n_state : 1); i++)
        w.a[i] = test_round(-c->decay * fabs(w.a[i]), F32);
    w.d = rounded(random, heads, 1.0, F32);
    w.dt_bias = rounded(random, heads, 0.5, F32);
    w.n_state = TEST_SEQS * (size_t)w.inner * (size_t)c->n_state;
    w.n_cache_dt = nodes * heads;
    w.n_cache_b = c->in_conv ? 0 : nodes * (size_t)w.n_b;
    w.n_replay = nodes * (size_t)w.ld_x;
    w.state = nans(w.n_state);
    w.cache_dt = nans(w.n_cache_dt);
    w.cache_b = nans(w.n_cache_b);
    w.replay = nans(w.n_replay);
    make_sequences(c, &w, random);
    return w;
}

static void free_world(world *w)
{
    double *all[] = { w->xbc, w->bc, w->dt, w->z, w->y, w->a, w->d, w->dt_bias, w->state, w->cache_dt, w->cache_b,
                      w->replay, w->recent[0], w->recent[1], w->recent[2] };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) free(all[i]);
}

static token cached_token(const scan_case *c, const world *w, int32_t index, int32_t entry, int32_t half, int32_t node)
{
    const test_seq *s = &c->seqs[index];
    const double *row = replay_at(w, index, entry);
    token t = { .x = row, .b = row + w->n_x, .dt = w->cache_dt + cache_row(w, s, half, node) * (size_t)c->n_head };
    if (!c->in_conv) t.b = w->cache_b + cache_row(w, s, half, node) * (size_t)w->n_b;
    return t;
}

static token recent_token(const world *w, const test_seq *s, int32_t position)
{
    token t = { .x = recent_at(w, s, position, 0), .b = recent_at(w, s, position, 1), .dt = recent_at(w, s, position, 2) };
    return t;
}

static token row_token(const scan_case *c, const world *w, int32_t row)
{
    const double *x = w->xbc + row * w->ld_x, *b = c->in_conv ? x + w->n_x : w->bc + row * w->ld_bc;
    token t = { .x = x, .b = b, .c = b + w->n_b, .z = w->z + row * w->inner, .dt_in = w->dt + row * c->n_head };
    return t;
}

static double token_dt(const scan_case *c, const world *w, const token *t, int32_t h)
{
    return t->dt ? t->dt[h] : ref_dt(t->dt_in[h] + (c->dt_bias ? w->dt_bias[h] : 0.0), c->dt_min, c->dt_max);
}

/* All heads of state s apply token t; y [inner] or NULL. B counts as the cache keeps it. */
static void apply(const scan_case *c, const world *w, double *s, double *y, const token *t)
{
    double b[1024];
    assert_true(c->n_state <= N_ELEMENTS(b));
    for (int32_t h = 0; h < c->n_head; h++) {
        for (int32_t n = 0; n < c->n_state; n++) b[n] = test_round(t->b[h / c->b_rep * c->n_state + n], c->dtype);
        const double *cc = t->c ? t->c + h / c->c_rep * c->n_state : NULL;
        ref_scan(s + h * c->head_dim * c->n_state, y ? y + h * c->head_dim : NULL, t->x + h / c->x_rep * c->head_dim,
                 c->head_dim, c->n_state, token_dt(c, w, t, h), w->a + h * (c->per_state ? c->n_state : 1), c->per_state,
                 b, cc, w->d[h]);
    }
    for (int32_t i = 0; y && c->gate && i < w->inner; i++) y[i] *= ref_silu(t->z[i]);
}

static token node_token(const scan_case *c, const world *w, int32_t index, int32_t first_row, int32_t node)
{
    const test_seq *s = &c->seqs[index];
    if (node < s->n_fed) return cached_token(c, w, index, s->n_replay + node, s->parity, node);
    return row_token(c, w, first_row + node - s->n_fed);
}

static void fill_caches(const scan_case *c, world *w, const test_seq *s, int32_t node, const token *t)
{
    for (int32_t h = 0; h < c->n_head; h++)
        w->cache_dt[cache_row(w, s, s->parity, node) * (size_t)c->n_head + (size_t)h] = token_dt(c, w, t, h);
    for (int32_t i = 0; i < w->n_b && !c->in_conv; i++)
        w->cache_b[cache_row(w, s, s->parity, node) * (size_t)w->n_b + (size_t)i] = test_round(t->b[i], c->dtype);
}

/* The recent-token buffers get the token at `position`. */
static void keep(const scan_case *c, world *w, const test_seq *s, int32_t position, const token *t)
{
    double *dt = recent_at(w, s, position, 2), *b = recent_at(w, s, position, 1);
    memcpy(recent_at(w, s, position, 0), t->x, (size_t)w->n_x * sizeof(double));
    for (int32_t i = 0; i < w->n_b; i++) b[i] = test_round(t->b[i], c->dtype);
    for (int32_t h = 0; h < c->n_head; h++) dt[h] = token_dt(c, w, t, h);
}

/* Chunked: of the recent tokens and the path, whole chunks go into `stored`, until less than two are left. `live`
 * becomes the state behind all of them. */
static void expect_chunked(const scan_case *c, world *w, int32_t index, double *stored, double *live, size_t size)
{
    const test_seq *s = &c->seqs[index];
    const int32_t first = s->n_past - s->n_replay - s->n_recent, n = s->n_recent + s->n_replay;
    int32_t n_fold = 0;
    while (s->n_fed == 0 && n - n_fold >= 2 * SPEC_CHUNK) n_fold += SPEC_CHUNK;
    for (int32_t j = 0; j < n; j++) {
        token t = j < s->n_recent ? recent_token(w, s, first + j)
                                  : cached_token(c, w, index, j - s->n_recent, s->parity ^ 1, s->path[j - s->n_recent]);
        if (j == n_fold) memcpy(live, stored, size * sizeof *live);
        apply(c, w, j < n_fold ? stored : live, NULL, &t);
        if (j < s->n_recent) continue;
        keep(c, w, s, first + j, &t);
        w->written[s->slot][(first + j) % w->n_recent_max] = j < n_fold;
    }
    if (n == n_fold) memcpy(live, stored, size * sizeof *live);
}

static void expect_decode(const scan_case *c, world *w, int32_t index, int32_t row)
{
    const test_seq *s = &c->seqs[index];
    size_t size = (size_t)(w->inner * c->n_state);
    double *stored = w->state + (size_t)s->slot * size;
    double *live = calloc(size, sizeof *live), *base = calloc(size, sizeof *base);
    int32_t path[TEST_NODES];
    for (int32_t j = 0; j < s->n_replay && !c->chunked; j++) {
        token t = cached_token(c, w, index, j, s->parity ^ 1, s->path[j]);
        apply(c, w, stored, NULL, &t);
    }
    if (c->chunked) expect_chunked(c, w, index, stored, base, size);
    else memcpy(base, stored, size * sizeof *base);
    for (int32_t n = s->n_fed; n < s->n_node; n++) {
        int32_t length = test_path(s, n, path);
        memcpy(live, base, size * sizeof *live);
        for (int32_t i = 0; i < length; i++) {
            token t = node_token(c, w, index, row, path[i]);
            apply(c, w, live, i == length - 1 ? w->y + (row + n - s->n_fed) * w->inner : NULL, &t);
            if (i == length - 1) fill_caches(c, w, s, n, &t);
        }
    }
    for (int32_t n = 0; n < s->n_advance; n++) {
        token t = node_token(c, w, index, row, n);
        if (c->chunked) keep(c, w, s, s->n_past + n, &t);
        else apply(c, w, stored, NULL, &t);
    }
    free(base);
    free(live);
}

static void expect_prefill(const scan_case *c, world *w)
{
    const test_seq *s = &c->seqs[0];
    for (int32_t r = 0; r < s->n_node; r++) {
        token t = row_token(c, w, r);
        apply(c, w, w->state + (size_t)s->slot * (size_t)(w->inner * c->n_state), w->y + r * w->inner, &t);
    }
}

static void check(const test_device *d, const char *name, const char *output, const test_buffer *b, const double *want,
                  size_t n, int32_t cols, double tolerance)
{
    double *got = test_read(b);
    test_compare(d, name, output, got, want, (int32_t)(n / (size_t)cols), cols, tolerance);
    free(got);
}

/* Chunked scans keep what they were given; the time steps of a chain in front are computed in the pass. */
static void check_recent(const test_device *d, const scan_case *c, world *w, const test_buffer recent[3])
{
    static const char *const names[] = { "recent x", "recent B", "recent dt" };
    for (int32_t i = 0; i < 3; i++) {
        const size_t cols = (size_t)w->recent_cols[i];
        double *got = test_read(&recent[i]);
        for (int32_t e = 0; e < TEST_SEQS * w->n_recent_max; e++)
            if (w->written[e / w->n_recent_max][e % w->n_recent_max] && isnan(got[(size_t)e * cols]))
                memcpy(w->recent[i] + (size_t)e * cols, got + (size_t)e * cols, cols * sizeof *got);
        test_compare(d, c->name, names[i], got, w->recent[i], TEST_SEQS * w->n_recent_max, w->recent_cols[i],
                     i < 2 ? 0.0 : test_tolerance(F32));
        free(got);
    }
}

/* Prefill may make y by products of 16-bit parts, two to a value; the state stays float32. */
static double y_tolerance(const scan_case *c)
{
    const bool parts = c->phase == SPEC_PHASE_PREFILL && c->dtype != F32 && c->rest == F32;
    return parts ? 1e-4 : test_tolerance(c->rest);
}

/* A prompt's first rows do not know what follows them: y has the same bits when only they are there. */
static void check_prefix(const test_device *d, const scan_case *c, const spec_op *op, const test_buffer *whole,
                         test_buffer *state, const double *initial)
{
    test_seq some = c->seqs[0];
    some.n_node = (some.n_node * 2 + 2) / 3;
    const int32_t run = c->run > 0 ? c->run : c->seqs[0].n_node;
    spec_step_block *step = test_step(c->phase, &some, 1, run);
    test_buffer y = test_buffer_new(d, whole->n, c->rest);
    spec_op again = *op;
    again.u.scan.y = test_view(&y, op->u.scan.y.ld);
    test_write(state, initial);
    test_run(d, &again, step, NODES);
    uint8_t *got = test_read_raw(&y), *want = test_read_raw(whole);
    const size_t row = (size_t)op->u.scan.y.ld * test_type_size(c->rest);
    for (int32_t r = 0; r < some.n_node; r++)
        if (memcmp(got + (size_t)r * row, want + (size_t)r * row, row) != 0)
            fail_msg("%s %s: row %d of %d differs from the same row of %d", d->name, c->name, r, some.n_node,
                     c->seqs[0].n_node);
    free(got);
    free(want);
    test_buffer_free(&y);
    free(step);
}

static void run_case(const test_device *d, const scan_case *c)
{
    test_random random = { 8 };
    spec_step_block *step = test_step(c->phase, c->seqs, c->n_seq, c->run);
    size_t rows = (size_t)step->n_row_run;
    world w = make_world(c, step->n_row_run, &random);
    double *initial = malloc(w.n_state * sizeof *initial);
    assert_non_null(initial);
    memcpy(initial, w.state, w.n_state * sizeof *initial);
    test_buffer xbc = test_buffer_from(d, w.xbc, rows * (size_t)w.ld_x, c->dtype);
    test_buffer bc = test_buffer_from(d, w.bc, rows * (size_t)w.ld_bc, c->rest);
    test_buffer dt = test_buffer_from(d, w.dt, rows * (size_t)c->n_head, c->rest);
    test_buffer z = test_buffer_from(d, w.z, rows * (size_t)w.inner, c->rest);
    test_buffer y = test_buffer_new(d, rows * (size_t)w.inner, c->rest);
    test_buffer a = test_floats(d, w.a, (size_t)c->n_head * (c->per_state ? (size_t)c->n_state : 1));
    test_buffer skip = test_floats(d, w.d, (size_t)c->n_head);
    test_buffer dt_bias = test_floats(d, c->dt_bias ? w.dt_bias : NULL, (size_t)c->n_head);
    test_buffer state = test_floats(d, w.state, w.n_state), cache_dt = test_floats(d, w.cache_dt, w.n_cache_dt);
    test_buffer cache_b = test_buffer_from(d, w.cache_b, w.n_cache_b, c->dtype);
    test_buffer replay = test_buffer_from(d, w.replay, w.n_replay, c->dtype);
    test_buffer recent[3];
    for (int32_t i = 0; i < 3; i++)
        recent[i] = test_buffer_from(d, w.recent[i], (size_t)(TEST_SEQS * w.n_recent_max * w.recent_cols[i]),
                                    i < 2 ? c->dtype : F32);
    spec_view x = test_view(&xbc, w.ld_x), b = c->in_conv ? x : test_view(&bc, w.ld_bc), cc = b;
    size_t b_size = test_type_size(b.dtype);
    if (c->in_conv) b.data = (char *)x.data + (size_t)w.n_x * b_size;
    cc.data = (char *)b.data + (size_t)w.n_b * b_size;
    spec_op op = { .kind = SPEC_OP_SCAN };
    op.u.scan = (spec_scan_args){ .n_head = c->n_head, .head_dim = c->head_dim, .n_state = c->n_state, .x_rep = c->x_rep,
                                  .b_rep = c->b_rep, .c_rep = c->c_rep, .a = a.data, .a_per_state = c->per_state,
                                  .d = skip.data, .dt_bias = dt_bias.data, .dt_min = (float)c->dt_min,
                                  .dt_max = (float)c->dt_max, .x = x, .b = b, .c = cc, .dt = test_view(&dt, c->n_head),
                                  .dtype = c->dtype, .replay_y = replay.data, .replay_ld = w.ld_x, .replay_x_col = 0,
                                  .replay_b_col = w.n_x, .b_in_conv = c->in_conv, .state = state.data,
                                  .cache_dt = cache_dt.data, .cache_b = c->in_conv ? NULL : cache_b.data,
                                  .n_node = w.n_node, .y = test_view(&y, w.inner) };
    if (c->gate) op.u.scan.z = test_view(&z, w.inner);
    if (c->chunked)
        op.u.scan.chunk = SPEC_CHUNK, op.u.scan.n_recent_max = w.n_recent_max, op.u.scan.recent_x = recent[0].data,
        op.u.scan.recent_b = recent[1].data, op.u.scan.recent_dt = recent[2].data;
    if (c->phase == SPEC_PHASE_PREFILL) expect_prefill(c, &w);
    else
        for (int32_t i = 0, row = 0; i < c->n_seq; row += c->seqs[i].n_node - c->seqs[i].n_fed, i++)
            expect_decode(c, &w, i, row);
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, w.n_node);
        check(d, c->name, "y", &y, w.y, (size_t)step->n_row * (size_t)w.inner, w.inner, y_tolerance(c));
        check(d, c->name, "state", &state, w.state, w.n_state, w.inner * c->n_state, test_tolerance(F32));
        check(d, c->name, "cache_dt", &cache_dt, w.cache_dt, w.n_cache_dt, c->n_head, test_tolerance(F32));
        if (!c->in_conv) check(d, c->name, "cache_b", &cache_b, w.cache_b, w.n_cache_b, w.n_b, 0.0);
        if (c->chunked) check_recent(d, c, &w, recent);
        if (c->phase == SPEC_PHASE_PREFILL) check_prefix(d, c, &op, &y, &state, initial);
    }
    test_buffer *all[] = { &recent[0], &recent[1], &recent[2], &replay, &cache_b, &cache_dt, &state, &dt_bias, &skip, &a,
                           &y, &z, &dt, &bc, &xbc };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) test_buffer_free(all[i]);
    free_world(&w);
    free(initial);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
    for (int32_t i = 0; i < N_ELEMENTS(chunked) * N_ELEMENTS(chunked_steps); i++) {
        const int32_t k = i / N_ELEMENTS(chunked_steps), step = i % N_ELEMENTS(chunked_steps);
        char name[96];
        scan_case c = chunked[k];
        snprintf(name, sizeof name, "%s %s", c.name, chunked_steps[step].name);
        c.name = name, c.seqs = chunked_steps[step].seqs, c.n_seq = chunked_steps[step].n_seq;
        run_case(d, &c);
    }
}

static void test_scan(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    for (int32_t i = 0; i < LINE; i++) line[i] = i - 1;
    for (int32_t i = 0; i < DEPTHS; i++) path_line[i] = i, path_far_apart[i] = 3 * i;
    for (int32_t i = 0; i < WIDE; i++) {
        binary[i] = i > 0 ? (i - 1) / 2 : -1;
        comb[i] = i < SPEC_MAX_DEPTH ? i - 1 : i * 5 % SPEC_MAX_DEPTH;
        forks[i] = i == 0 ? -1 : (i - 1) % SPEC_MAX_DEPTH == 0 ? 0 : i - 1;
        mixed[i] = i < 30 || i % 15 > 0 ? i - 1 : i / 2 % 30;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scan) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
