/* support_decode.h - what tests of decoding share: variants of model directories, sessions, results. */
#ifndef SUPPORT_DECODE_H
#define SUPPORT_DECODE_H

#include "models/exec.h"
#include "tests/support_model.h"

#define DEMO_TARGET SPEC_TEST_MODELS "/demo-target"
#define DEMO_DRAFTER SPEC_TEST_MODELS "/demo-drafter"

/* A file of a model directory, replaced: by text, or with text NULL left out. */
typedef struct variant_file {
    const char *name, *text;
} variant_file;
/* A directory in dir (support_directory_new) that has all files of `base` but those in files [n], n may be 0. */
void support_variant(char *dir, const char *base, const variant_file *files, size_t n);
void support_variant_remove(const char *dir);
/* base/config.json (or another JSON file) with keys set from `changes`, a JSON object; null removes. Free the text. */
char *support_json_with(const char *base, const char *name, const char *changes);
/* Writes model.safetensors into dir: base's, with embedding and head of `rows` rows grown to n. New rows repeat the first
 * ones with opposite sign. */
void support_grow_rows(const char *dir, const char *base, int64_t rows, int64_t n);
/* The same with n rows in any order: row r is base's row from[r]; -1 - row: with the opposite sign. */
void support_take_rows(const char *dir, const char *base, int64_t rows, const int32_t *from, int64_t n);

/* tokenizer.json for the 8-token models of golden/law8-*: "a" to "h". */
extern const char support_tokenizer8[];
/* Another one: "b" "a" "f" "bc" "d" "c" "cd" "g", of which seven are text of the first one and six a token of it. Free the text. */
char *support_other_tokenizer8(void);

/* A session with a drafter made from `small` (NULL: plain); *dr must be closed after the session. */
spec_session *support_open(spec_model *target, spec_model *small, int32_t n_draft, const spec_session_params *params,
                           spec_drafter **dr);

/* What spec_sequence_save writes, and spec_sequence_restore reads: zero to begin. free(data) ends it. */
typedef struct support_stream {
    uint8_t *data;
    size_t n, cap, at;        /* at: read so far */
    int32_t n_write, fail_at; /* the fail_at-th write fails; 0 = none */
} support_stream;
int support_to_stream(void *stream, const void *data, size_t n);
int support_from_stream(void *stream, void *data, size_t n);

/* Same ids, text, stop reason and log-probabilities, bit for bit. */
void support_same(const spec_result *a, const spec_result *b, const char *what);
/* n_predict greedy ids after ids [n], from a plain session of its own; out [n_predict]. */
void support_plain_ids(spec_model *m, const int32_t *ids, size_t n, const spec_sampling *sampling, int32_t n_predict,
                       int32_t *out);


/* The executor of the session's first drafter, a model; NULL if it is none. Has the sequence outgrown it? */
speci_exec *support_drafter_exec(const spec_session *s);
bool support_drafter_outgrown(const spec_session *s, int32_t seq);

#endif
