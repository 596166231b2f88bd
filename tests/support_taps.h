/* support_taps.h - models at work that keep hidden rows, small enough to compare all of them. */
#ifndef SUPPORT_TAPS_H
#define SUPPORT_TAPS_H

#include "models/exec.h"
#include "tests/support_model.h"
#include "tests/test.h"

enum {
    N_SEQ = 3, N_NODE = 24, N_ROW = N_SEQ * N_NODE, N_CTX = 220, N_PROMPT = 150, MOST_TAP = 8, MOST_DIM = 64, N_VOCAB = 96,
    OURS = 0, OTHER = 1, PLAIN = 2 /* slots */
};

/* A model at work that keeps all there is: what enters each layer, then what leaves the last one and the norm. */
typedef struct taps_worker {
    spec_model *model;
    test_device d;
    speci_exec *net;
    spec_queue *queue;
    spec_tap taps[MOST_TAP];
    int32_t n_tap;
    uint64_t random;
} taps_worker;
void taps_open(taps_worker *w, spec_model *m, bool taps);
void taps_close(taps_worker *w);
/* check(a worker with all taps) of every model, in every type. */
void taps_each_model(spec_backend *backend, void (*check)(taps_worker *w));

/* Row `row` of a tensor as float32 [n]; and of all taps. */
void taps_read_row(taps_worker *w, spec_view v, int32_t row, int32_t n, float *out);
void taps_read(taps_worker *w, int32_t phase, int32_t row, float hidden[MOST_TAP][MOST_DIM]);
/* Bytes of a tensor of the work memory. */
uint64_t taps_tensor_bytes(int32_t rows, int32_t cols, spec_dtype type);
/* The operation alone, over n rows whose tokens are `token` (or NULL), into y [n][cols] f32. */
void taps_run_alone(const test_device *d, spec_op *op, spec_view *y, spec_dtype type, int32_t n, int32_t cols,
                    const int32_t *token, float *out);
/* The head's product of n rows. */
void taps_run_head(const test_device *d, const spec_model *m, spec_view x, int32_t n, float *logits);
/* Bit for bit. */
void taps_expect_same(const char *what, int32_t row, const float *got, const float *want, int32_t n);

/* Random trees. */
int32_t taps_below(uint64_t *random, int32_t n);
typedef struct taps_tree {
    int32_t token[N_NODE], parent[N_NODE];
    spec_tree tree;
} taps_tree;
void taps_draw(uint64_t *random, taps_tree *t, int32_t root, int32_t n);

/* Ids of a sequence, the first n_prompt of which are applied by prefill. The last one is pending. */
typedef struct taps_text {
    int32_t ids[N_CTX], n, n_prompt;
} taps_text;
taps_text taps_make_text(int32_t n_prompt);
/* A pass over one token, which is committed. */
void taps_plain_step(taps_worker *w, int32_t slot, int32_t token);

/* An application's drafter: random trees. */
typedef struct taps_proposer {
    uint64_t random;
    int32_t n_called;
} taps_proposer;
spec_status taps_propose(void *user, spec_draft_request *requests, int32_t n);

#endif
