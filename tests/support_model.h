/* support_model.h - models, goldens and sequences for tests that decode. */
#ifndef SUPPORT_MODEL_H
#define SUPPORT_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/core_json.h"
#include "models/files/files_checkpoint.h"
#include "spec_trees.h"

/* The device under test: SPEC_TEST_BACKEND, "cpu" without. When it cannot be opened the program says
 * "SKIPPED: <reason>" and ends. */
spec_backend *support_backend(void);
const char *support_backend_name(void);
/* The same device again with other parameters; NULL when it cannot be. */
spec_backend *support_backend_again(const spec_backend_params *params);
/* SPEC_SHARED, or NULL. */
const char *support_shared(void);

/* status must be SPEC_OK, else the message is shown. */
#define OK(call) support_ok((call), #call, __FILE__, __LINE__)
void support_ok(spec_status status, const char *call, const char *file, int line);
/* The call fails with `code` and a message that contains `part`. */
#define FAILS(call, code, part) support_fails((call), (code), (part), #call, __FILE__, __LINE__)
void support_fails(spec_status status, spec_status code, const char *part, const char *call, const char *file, int line);

/* Of NULL: zero. */
spec_tokenizer_info support_tokenizer_info(const spec_tokenizer *t);
spec_model *support_model(spec_backend *be, const char *path, spec_dtype dtype);
/* The same with its matrices made of `weights`. */
spec_model *support_model_of(spec_backend *be, const char *path, spec_dtype dtype, spec_dtype weights);

/* Tensors of a golden file. Freed by support_golden_close. */
typedef struct golden {
    speci_file file;
    model_tensor *tensors;
    size_t n;
    json_t *header;
} golden;
void support_golden_open(golden *g, const char *path);
void support_golden_close(golden *g);
/* The data of a tensor, or a failure; cols receives its last dimension, rows the first. */
const void *support_golden_find(const golden *g, const char *name, int64_t *rows, int64_t *cols);

/* A session of one sequence over ids [n]; drafter NULL. n_node nodes. */
spec_session *support_session(spec_model *model, int32_t n_node, int32_t n_seq);
/* Scores the single pending token, its logits into row; then commits `next`. */
void support_plain_step(spec_session *s, int32_t seq, int32_t pending, int32_t next, float *row);

/* Numbers that depend on a seed alone. */
uint32_t support_random(uint64_t *state);

/* body(arg, i) for every i in [0, n), on SPEC_TEST_THREADS threads, or as many as there are CPUs. An assertion that fails in it, or
 * a crash, ends the program at once, which says what it was. */
void support_parallel(int32_t n, void (*body)(void *arg, int32_t i), void *arg);
/* The same of work that leaves a device waiting for the host, as small models do; on the CPU one after the other. */
void support_share(int32_t n, void (*body)(void *arg, int32_t i), void *arg);

/* max |a - b| / max |b| over n entries; NaN gives infinity. */
double support_error(const float *a, const float *b, size_t n);

#endif
