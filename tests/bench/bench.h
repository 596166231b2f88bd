/* bench.h - the parts of spec-bench: one program that measures what steps cost, each figure beside its bound.
 *
 *   bench_main.c       options and modes            bench_output.c   records: JSON lines, tables, comparison
 *   bench_device.c     backend, models, sessions    bench_count.c    calls counted through the backend's table
 *   bench_bandwidth.c  how fast memory is read      bench_models.c   models by shape name
 *   bench_tree.c       trees by name                bench_prompts.c  prompts of files
 *   bench_set.c        drafters by name
 *   bench_<mode>.c     a mode each
 *
 * Modes return a status; spec_last_error() says what went wrong. */
#ifndef SPEC_BENCH_H
#define SPEC_BENCH_H

#include <jansson.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"
#include "core/core.h"

/* NULL and 0: the mode's default. Lists are separated by commas, lists of trees by semicolons. */
typedef struct bench_options {
    const char *model, *drafter; /* name of a shape, or a directory */
    const char *backend, *plugin_dir, *dtype, *weights;
    const char *keep, *compare;
    const char *nodes, *tree, *draft, *verify, *temperature, *prompts, *chat, *costs, *sequences, *tokens;
    double top_p, bandwidth_gbs, least_gbs;
    spec_lab lab;
    spec_adapt adapt;
    spec_draft_combine combine;
    spec_draft_vocab vocab;
    spec_token_info token_info;
    int32_t resample, resample_left;
    bool resample_across;
    int32_t n_threads, repeats, context, n_predict, n_prompt;
    bool json, ignore_eos;
} bench_options;

typedef struct bench {
    bench_options o;
    spec_backend *be;
    spec_model *model, *draft_model;
    char model_name[128], draft_name[128];
    double bandwidth;           /* bytes per second */
    const char *bandwidth_kind; /* "read", or "given" */
    bool valid;                 /* a device whose memory was slower than it should be makes a run void */
    double load_s;              /* of the model, file in the page cache */
    json_t *old;                /* records of --compare, or NULL */
    char columns[1024];         /* of the table that is being printed */
} bench;

/* --- modes --- */

typedef struct bench_mode {
    const char *name, *help;
    spec_status (*run)(bench *b);
    bool no_model; /* it needs none */
} bench_mode;
spec_status bench_step(bench *b);
spec_status bench_generate(bench *b);
spec_status bench_load(bench *b);
spec_status bench_rules(bench *b);
spec_status bench_draft(bench *b);
spec_status bench_prefill(bench *b);
spec_status bench_replay(bench *b);
spec_status bench_sequences(bench *b);
spec_status bench_fork(bench *b);
spec_status bench_append(bench *b);
spec_status bench_rows(bench *b);
spec_status bench_attention(bench *b);
spec_status bench_text_drafters(bench *b);
spec_status bench_png(bench *b);
spec_status bench_machine(bench *b);
spec_status bench_memory(bench *b);

/* --- device (bench_device.c) --- */

/* Backend; models, written first where they are named by shape; bandwidth. */
spec_status bench_open(bench *b, bool with_model);
void bench_close(bench *b);
/* A session on the model with room for n_node nodes and n_ctx positions, the options' forms of computing. */
spec_status bench_session(spec_session **out, const bench *b, spec_drafter *drafter, int32_t n_ctx, int32_t n_node,
                          int32_t n_seq);
/* A sequence of `n` ids, no two neighbours alike. */
spec_status bench_sequence(int32_t *seq, spec_session *s, int32_t n, const spec_sampling *sampling);
/* Bytes of the weights that a step reads: of an embedding that is not the head too, only some rows. */
double bench_weight_bytes(const spec_model *m);
/* What a step of n_seq sequences takes if nothing but memory counts: weights read once, recurrent states read and
 * written once, K and V of `context` positions read once. */
double bench_floor_ms(const bench *b, int32_t context, int32_t n_seq);
/* Likewise of a draft by a model, or by a head for b->model: its weights once per level, and the matrix that makes logits; of a head whose
 * rows are a chain that matrix once, and of token info the product per level, or collapsed a row for each row of the draft. */
double bench_draft_floor_ms(const bench *b, const spec_model *drafter, const spec_builder_info *tree, int32_t context);
/* What the options say of drafters that are models. */
spec_drafter_params bench_drafter_params(const bench *b);

/* --- bandwidth (bench_bandwidth.c) --- */

/* Bytes per second that the device reads, or n_thread threads where it computes on the host. */
spec_status bench_read_bandwidth(double *out, const spec_backend *be, int32_t n_thread);

/* --- matrix rate (bench_machine.c) --- */

/* Operations per second, 1e12, of a product of this type with as many rows as a prefill pass has; the best of some. */
spec_status bench_matrix_tflops(double *out, bench *b, spec_dtype dtype);

/* --- counting (bench_count.c) --- */

typedef struct bench_counts {
    int64_t n_sync, n_alloc; /* n_alloc: of device memory */
    int64_t n_read;          /* bytes of device memory that were asked for */
    double wait_ms;          /* in calls that compute or wait for the device */
} bench_counts;
/* From now on the backend's calls are counted. */
void bench_count_install(spec_backend *be);
/* While on, a device's queue is drained before each call, so that no call but sync and wait waits for it. */
void bench_count_drain(bool on);
bench_counts bench_count_now(void);

/* --- models (bench_models.c) --- */

/* Where the model `name` is: itself where it is a directory or a file (GGUF); else it is written, random weights, below `keep`
 * (and stays; what is there is used again) or in a temporary directory. *written: the caller removes it. */
spec_status bench_model_directory(char *out, size_t cap, const char *name, const char *keep, bool *written);
void bench_model_remove(const char *dir);
void bench_model_list(FILE *to);

/* --- output (bench_output.c) --- */

json_t *bench_record(const bench *b, const char *mode);
void bench_text(json_t *record, const char *key, const char *value);
void bench_count(json_t *record, const char *key, int64_t value);
void bench_number(json_t *record, const char *key, double value);
void bench_scan(json_t *record, const bench *b); /* the form of Mamba-2's scan */
/* median_ms and min_ms of ms [n], which is sorted. */
void bench_times(json_t *record, double *ms, int32_t n);
double bench_median(double *ms, int32_t n); /* sorts */
/* Adds floor, bandwidth and commit, prints, compares, and takes the record. */
spec_status bench_emit(bench *b, json_t *record, double floor_ms);
spec_status bench_compare_open(bench *b);

/* --- lists (bench_main.c) --- */

/* Numbers of a list, at least 1 each: their count in *n. */
spec_status bench_ints(int32_t *out, int32_t cap, int32_t *n, const char *list, const char *what);
/* Item i of a list into out [cap]; false behind the last. */
bool bench_item(char *out, size_t cap, const char *list, char separator, int32_t i);
/* An item of --temp. */
spec_status bench_temperature(float *out, const char *item);

/* --- trees (bench_tree.c) --- */

/* A tree by kind: of n nodes for chain, binary, random and unrolled (the paths of the binary tree of n nodes); a
 * builder's, "static:A", has its own size. The tokens of siblings differ. tree: room for SPECI_MAX_NODE nodes. E_FULL
 * when it has more, or is deeper than a tree may be. */
spec_status bench_tree(spec_tree *tree, const char *kind, int32_t n);
bool bench_tree_built(const char *kind); /* a builder's? */
/* Item i of a list of kinds: between semicolons where a builder's is among them, whose arguments have commas. */
bool bench_tree_item(char *out, size_t cap, const char *list, int32_t i);

/* --- drafters (bench_set.c) --- */

enum { BENCH_MAX_DRAFTER = 8 };
/* The drafters of a session, in their order. */
typedef struct bench_set {
    spec_drafter *drafters[BENCH_MAX_DRAFTER];
    int32_t n;
} bench_set;
/* draft: names with '+' between them, "model" being the drafter with `tree`; NULL: none. To be closed whatever comes back. */
spec_status bench_set_open(bench_set *set, const bench *b, const char *draft, const char *tree);
void bench_set_close(bench_set *set);
spec_status bench_set_session(spec_session **s, const bench *b, const bench_set *set, spec_verify_rule rule, int32_t n_ctx,
                              int32_t n_seq);
/* E_INVALID where it has one and there is no --drafter. */
spec_status bench_set_has_model(bool *has, const bench *b, const char *draft);
void bench_set_describe(json_t *record, const bench *b, const char *draft, const char *tree);

/* --- workloads (bench_prompts.c) --- */

enum { BENCH_PROMPTS = 256 };
typedef struct bench_prompt {
    int32_t *ids;
    size_t n;
} bench_prompt;
typedef struct bench_workload {
    char name[64];
    bench_prompt prompts[BENCH_PROMPTS];
    int32_t n;
} bench_workload;
/* Calls run for the prompts of each file of --prompts, or of SPEC_SHARED/data/prompts; without a tokenizer once, for random ids. */
typedef spec_status (*bench_run_fn)(bench *b, const bench_workload *task);
spec_status bench_each_workload(bench *b, bench_run_fn run);
int32_t bench_positions(const bench *b, const bench_workload *t); /* that a session needs for it */
spec_status bench_rule(spec_verify_rule *out, const char *name);

/* --- steps (bench_step.c) --- */

typedef struct bench_plain {
    double ms;        /* spec_step in a session for one node: the median */
    double queued_ms; /* the device's part of it */
} bench_plain;
spec_status bench_plain_step(bench_plain *out, bench *b, int32_t context);
/* Scores `tree` after seq's pending token, which becomes its root's token. */
spec_status bench_score(spec_session *s, int32_t seq, spec_tree *tree);

#endif
