/* mini_model.h - a small hybrid network as a plan of operations, and the proof of path invariance over it.
 *
 * embed; attention (norm, qkv, rope_kv, attention, out); Mamba-2 (norm, in, conv, scan, gated norm, out) twice, with
 * the scan in the chunked and in the recurrent form; Mamba-1 (norm, in, conv, B and C and dt, scan, out); norm, head.
 * Weights are random; logits depend on the tokens of a path. */
#ifndef SPEC_MINI_MODEL_H
#define SPEC_MINI_MODEL_H

#include "tests/test.h"

enum { MINI_VOCAB = 50, MINI_CHUNK = 16, MINI_NODES = 24, MINI_SEQS = 4, MINI_ROWS = MINI_SEQS * MINI_NODES };

typedef struct mini_model {
    const test_device *d;
    spec_dtype dtype;
    int32_t window; /* of attention, 0 = none */
    spec_op ops[32];
    int32_t n_op;
    spec_kv kv;
    spec_view logits; /* f32 [rows][MINI_VOCAB] */
    spec_queue *q;
    spec_prepared *prepared; /* of decode passes; NULL: walked */
    spec_weight *weights[16];
    int32_t n_weight;
    struct {
        void *p;
        size_t bytes;
    } memory[96];
    int32_t n_memory;
    test_random random;
} mini_model;

void mini_open(mini_model *m, const test_device *d, spec_dtype dtype, int32_t window);
void mini_close(mini_model *m);
/* False, after a SKIP line, when the device has not all that the network needs. */
bool mini_can(const test_device *d, spec_dtype dtype, int32_t window);
/* Runs a pass; logits [rows of the step][MINI_VOCAB]. */
void mini_run(mini_model *m, const spec_step_block *step, float *logits);

/* Decodes MINI_SEQS random texts: once plainly, one node a step and one sequence at a time; once in random trees that hold the
 * text among other branches, batched, some fed in two passes. Returns how many logits rows of nodes on the text differ in any
 * bit; *compared receives how many were compared. prompt: tokens that are prefilled first. With even seeds the trees'
 * plan is made ready, where the backend can do that. */
int32_t mini_invariance(const test_device *plain, const test_device *d, spec_dtype dtype, int32_t window, int32_t prompt,
                        uint64_t seed, int32_t *compared);

#endif
