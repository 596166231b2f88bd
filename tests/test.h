/* test.h - what the tests of backends share: devices, guarded buffers, steps, comparison.
 *
 * Backends: "cpu:portable", "cpu:avx2", "cpu:avx512", "cpu", "cuda", or the comma-separated list in the environment
 * variable SPEC_TEST_BACKENDS; plugins are looked for in SPEC_TEST_PLUGIN_DIR. A backend that does not open, and a case
 * that its `can` refuses, is printed as SKIP with the reason. Device memory is reached through the table only.
 *
 * Helpers fail the running test by themselves. */
#ifndef SPEC_TEST_H
#define SPEC_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/backend.h"

#define N_ELEMENTS(a) ((int32_t)(sizeof(a) / sizeof((a)[0])))

/* ------------------------------------------------------------------------------------- devices --- */

typedef struct test_device {
    const char *name;
    spec_backend *be;
    const spec_backend_ops *ops;
    spec_device *dev;
    spec_queue *io; /* for transfers; synced after each */
} test_device;

/* SPEC_TEST_THREADS; 0 when it is not set. */
int32_t test_thread_count(void);
/* Opens device `name` with n_threads (0 = SPEC_TEST_THREADS, or else as many as there are); false, after a SKIP line, when
 * it cannot be had. */
bool test_open(test_device *d, const char *name, int32_t n_threads);
/* The same from a table of operations. */
void test_open_ops(test_device *d, const spec_backend_ops *ops);
void test_close(test_device *d);
/* Calls each(d) for every backend that can be opened. */
void test_each_device(void (*each)(test_device *d));
/* Fails the test, naming `what`, unless status is SPEC_OK. */
void test_ok(spec_status status, const char *what);
/* False, after a SKIP line, when the device cannot run op; an error other than E_UNSUPPORTED fails the test. */
bool test_can(const test_device *d, const char *name, const spec_op *op);

/* A queue for these operations. n_kv: positions; n_vocab: columns of row operations. */
spec_queue *test_queue(const test_device *d, const spec_op *ops, int32_t n_op, const spec_step_block *step,
                       int32_t n_node, int32_t n_vocab);
/* A queue for row operations alone. */
spec_queue *test_row_queue(const test_device *d, int32_t n_vocab);
/* Binds step, runs the operation and waits. */
void test_run(const test_device *d, const spec_op *op, const spec_step_block *step, int32_t n_node);

/* ------------------------------------------------------------------------------------- numbers --- */

/* The same numbers every time. */
typedef struct test_random {
    uint64_t state;
} test_random;
double test_uniform(test_random *r);                          /* [0, 1) */
double test_signed(test_random *r);                           /* (-1, 1) */
int32_t test_below(test_random *r, int32_t n);                /* 0 .. n - 1 */
double *test_values(test_random *r, size_t n, double scale);  /* n values in (-scale, scale); free() */

size_t test_type_size(spec_dtype dtype);
/* v as the type can hold it, to nearest even: by arithmetic on exponents, sharing nothing with the library. */
double test_round(double v, spec_dtype dtype);
void test_round_all(double *v, size_t n, spec_dtype dtype);
/* Largest error allowed, as a share of the largest value: f32 sums of some thousand terms in float32 keep 1e-5; bf16 and
 * f16 round results and intermediate values to 8 and 11 bits. */
double test_tolerance(spec_dtype dtype);

/* got against want [rows][cols]: the largest difference as a share of the largest |want|, over all and within each row
 * (a row's own largest, but at least a hundredth of that over all). A NaN where none is wanted fails. */
void test_compare(const test_device *d, const char *name, const char *output, const double *got, const double *want,
                  int32_t rows, int32_t cols, double tolerance);

/* ------------------------------------------------------------------------------------- buffers --- */

/* n elements on the device between guards that test_read checks. */
typedef struct test_buffer {
    const test_device *d;
    void *base, *data; /* data: the first element */
    size_t n;
    spec_dtype dtype;
} test_buffer;

test_buffer test_buffer_new(const test_device *d, size_t n, spec_dtype dtype); /* NaN everywhere */
test_buffer test_buffer_from(const test_device *d, const double *v, size_t n, spec_dtype dtype); /* rounded to dtype */
void test_write(test_buffer *b, const double *v);
double *test_read(const test_buffer *b); /* [n], free(); checks the guards */
void *test_read_raw(const test_buffer *b); /* the bytes, free() */
void test_buffer_free(test_buffer *b);
/* f32 array on the device, or no buffer (data NULL) for v NULL */
test_buffer test_floats(const test_device *d, const double *v, size_t n);
spec_view test_view(const test_buffer *b, int32_t ld);

/* False, after a SKIP line, when the device takes no weights of these blocks. */
bool test_keeps(const test_device *d, const char *name, spec_dtype dtype);
/* A weight from values [n_out][n_in], which become what the weight holds: of blocks the exact values. With `parts` > 1
 * it is cut in that many. */
spec_weight *test_weight(const test_device *d, double *v, int32_t n_out, int32_t n_in, spec_dtype dtype,
                         spec_dtype compute, int32_t glu, int32_t parts);

/* --------------------------------------------------------------------------------------- steps --- */

enum { TEST_NODES = 64 };

/* One sequence of a step. parent [n_node]; the nodes before n_fed were fed by earlier passes. */
typedef struct test_seq {
    int32_t slot, parity, n_past;
    int32_t n_replay;
    const int32_t *path; /* [n_replay] */
    int32_t n_node, n_fed;
    const int32_t *parent;
    const int32_t *token; /* [n_node], NULL = 0 */
    int32_t n_given;      /* nodes whose place in the tree visits may use; 0 = all */
    int32_t n_advance;
    int32_t n_recent;     /* chunked scans */
} test_seq;

/* The block of a step; free(). n_run: rows that token-wise operations run over, 0 = as many as are valid.
 * Sequence s has page i at number test_page(s, i): sequences' pages interleave and descend. */
spec_step_block *test_step(int32_t phase, const test_seq *seqs, int32_t n_seq, int32_t n_run);
enum { TEST_PAGES = 20, TEST_SEQS = 8 }; /* pages per sequence, sequences at most */
int32_t test_page(int32_t seq, int32_t i);
/* The nodes from the root to `node`: returns how many. */
int32_t test_path(const test_seq *s, int32_t node, int32_t *path);

/* `got` is within `tolerance` of `want`. Needs math.h. */
#define NEAR(got, want, tolerance)                                                                          \
    do {                                                                                                    \
        const double got_ = (got), want_ = (want);                                                          \
        if (!(fabs(got_ - want_) <= (tolerance))) fail_msg("%s is %.12g, not %.12g", #got, got_, want_);    \
    } while (0)

#endif
