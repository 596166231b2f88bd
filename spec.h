/* spec.h - speculative decoding for transformers, state-space models and hybrids of both.
 *
 * This is the only header that an application needs. It is valid C99 and C++17.
 *
 * IN SHORT
 *
 *     spec_backend *be;  spec_model *target, *small;  spec_drafter *dr;  spec_session *s;
 *     spec_backend_open(&be, "cpu", NULL);                      a device
 *     spec_model_open(&target, be, "models/target", NULL);      weights on it, read-only, shared
 *     spec_model_open(&small, be, "models/drafter", NULL);
 *     spec_drafter_from_model(&dr, small, NULL);                anything that proposes tokens
 *     spec_session_open(&s, target, dr, NULL);                  sequences in flight, one thread
 *     spec_generate(s, "Once upon a time", strlen(...), &params, &result);
 *
 * `spec_generate` is a loop over `spec_step`, which is the composition of four public calls:
 *
 *     spec_draft   propose a tree of tokens; no state changes
 *     spec_score   one packed pass of the target over the trees; results stay on the device
 *     spec_verify  walk the tree by a rule that keeps the target's distribution; path + one more token
 *     spec_commit  the state advances along the path; rejected branches leave no trace
 *
 * CONVENTIONS
 *
 * Errors      Every call that can fail returns a spec_status; 0 is success. spec_last_error() is a
 *             sentence for the latest failure on the calling thread, meaningful only after one.
 *             "End of text" is a field of a result, never an error. NULL for what a call cannot do
 *             without is E_INVALID; a call that returns no status then gives nothing.
 * Ownership   Who opens, closes. Close functions take NULL. What is written through `out` belongs to
 *             the caller; a pointer that is *returned* is borrowed and lives as long as its parent.
 *             A backend outlives its models, a model its drafters and sessions.
 * Threads     A backend and a model may be used by any number of threads. A session (and what was
 *             opened for it: its drafter) belongs to one thread at a time. Only spec_session_cancel
 *             may be called from another thread.
 * Structs     Parameter structs begin with struct_size (set by the SPEC_..._INIT initialiser); zero
 *             in any other field means its default. Fields are only ever appended.
 * Tokens      are int32_t ids. Shapes are written outermost first, row-major.
 * Numbers     Activations, distributions and log-probabilities are float32; weights keep their file's type.
 */
#ifndef SPEC_H
#define SPEC_H

#include <stddef.h>
#include <stdint.h>

#define SPEC_VERSION_MAJOR 0
#define SPEC_VERSION_MINOR 1
#define SPEC_VERSION_PATCH 0
#define SPEC_VERSION "0.1.0"

#if defined(SPEC_BUILD)
#define SPEC_API __attribute__((visibility("default")))
#else
#define SPEC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ status, logging, memory --- */

typedef enum spec_status {
    SPEC_OK = 0,
    SPEC_E_INVALID = 10,     /* an argument is wrong; nothing was changed */
    SPEC_E_NOMEM = 20,       /* host or device memory; the call failed, every object is still usable */
    SPEC_E_IO = 30,          /* a file could not be read */
    SPEC_E_FORMAT = 40,      /* a file was read and is not what it should be */
    SPEC_E_UNSUPPORTED = 50, /* understood, but not something this build can do */
    SPEC_E_DEVICE = 60,      /* the device or its driver failed, or there is none */
    SPEC_E_STATE = 70,       /* the call does not fit the object's state (verify before score, say) */
    SPEC_E_FULL = 80,        /* no room: context, sequences, KV pages, nodes */
    SPEC_E_ABORTED = 90      /* a callback or spec_session_cancel stopped the work */
} spec_status;

/* The sentence for the latest failure on this thread; "" if there was none. Never NULL. Valid until the
 * next failure on this thread. */
SPEC_API const char *spec_last_error(void);
/* The name of a status, "E_IO" say. */
SPEC_API const char *spec_status_name(spec_status status);
/* Version at run time, as SPEC_VERSION. */
SPEC_API const char *spec_version(void);

typedef enum spec_log_level {
    SPEC_LOG_DEBUG = 0,
    SPEC_LOG_INFO = 1,
    SPEC_LOG_WARN = 2
} spec_log_level;

/* Receives log lines (without a newline). May be called from any thread that calls the library. */
typedef void (*spec_log_fn)(void *user_data, spec_log_level level, const char *text);
/* Progress of a load, 0..1. Return non-zero to stop: the call then fails with SPEC_E_ABORTED. */
typedef int (*spec_progress_fn)(void *user_data, double fraction);
/* Polled between passes (steps and prefill chunks). Return non-zero to stop. */
typedef int (*spec_abort_fn)(void *user_data);

/* Host memory. `alloc` returns memory aligned to at least `align` (a power of two) or NULL; `free` takes what
 * alloc returned, and NULL. Both may be called from several threads. */
typedef struct spec_allocator {
    void *(*alloc)(void *user_data, size_t bytes, size_t align);
    void (*free)(void *user_data, void *p, size_t bytes);
    void *user_data;
} spec_allocator;

/* ------------------------------------------------------------------------------- backends --- */

typedef struct spec_backend spec_backend;         /* a device */
typedef struct spec_backend_ops spec_backend_ops; /* its function table: see spec_backend.h */

typedef struct spec_backend_params {
    size_t struct_size;
    int32_t n_threads;               /* CPU: 0 = the CPUs that this process may use (affinity, cgroup) */
    const char *plugin_dir;          /* where to look for plugins first; NULL = beside the library */
    const spec_allocator *allocator; /* copied; NULL = malloc */
    spec_log_fn log;
    void *log_user_data;
    /* The application's own pool, or NULL: runs body(arg, i) for every i in [0, n) and returns when all are
     * done, using at most n_threads threads. */
    void (*parallel_for)(void *user_data, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
    void *parallel_user_data;
} spec_backend_params;
#define SPEC_BACKEND_PARAMS_INIT { sizeof(spec_backend_params), 0, 0, 0, 0, 0, 0, 0 }

/* Opens a device by name: "cpu" (the best kernels of this machine), "cpu:portable" (the reference),
 * "cuda", "cuda:1", or the path of a plugin, with ":arg" after it if the plugin takes one.
 * Errors: E_INVALID (unknown name), E_DEVICE (no plugin, driver or device: the message names every place
 * where the plugin was looked for and what the loader said), E_UNSUPPORTED (a plugin of another ABI). */
SPEC_API spec_status spec_backend_open(spec_backend **out, const char *name,
                                       const spec_backend_params *params);
/* Opens an application's own operations, or those of a statically linked backend (spec_cuda_ops()). `arg` is
 * what would follow the colon in a name; may be NULL. The table must outlive the backend. */
SPEC_API spec_status spec_backend_open_ops(spec_backend **out, const spec_backend_ops *ops,
                                           const char *arg, const spec_backend_params *params);
SPEC_API void spec_backend_close(spec_backend *backend);
/* "cpu:avx512bf16", "cuda:0 NVIDIA H200": for people and reports. */
SPEC_API const char *spec_backend_name(const spec_backend *backend);

/* Calls `each` for every device that could be opened now (text: what it is), and once with name == NULL for every
 * kind that could not (text: why). */
SPEC_API spec_status spec_backend_list(const spec_backend_params *params,
                                       void (*each)(void *user_data, const char *name, const char *text),
                                       void *user_data);

/* ------------------------------------------------------------------------------ tokenizer --- */

typedef struct spec_tokenizer spec_tokenizer; /* immutable once open; any thread may use it */

enum {
    SPEC_TOKEN_ADD_SPECIAL = 1,   /* BOS / EOS as the model's own tokenizer adds them */
    SPEC_TOKEN_PARSE_SPECIAL = 2, /* "<|endoftext|>" in the text becomes that token: off for untrusted text */
    SPEC_TOKEN_SKIP_SPECIAL = 4   /* decode: leave special tokens out */
};

/* Opens tokenizer.json or tokenizer.model: `path` is such a file or a directory that holds one.
 * allocator may be NULL. Errors: E_IO, E_FORMAT, E_UNSUPPORTED (names the component that is not known). */
SPEC_API spec_status spec_tokenizer_open(spec_tokenizer **out, const char *path,
                                         const spec_allocator *allocator);
SPEC_API void spec_tokenizer_close(spec_tokenizer *tokenizer);
/* One more than the largest id. */
SPEC_API int32_t spec_tokenizer_n_vocab(const spec_tokenizer *tokenizer);
/* BOS and EOS id as tokenizer_config.json and the post-processor say, -1 if there is none. */
SPEC_API int32_t spec_tokenizer_bos(const spec_tokenizer *tokenizer);
SPEC_API int32_t spec_tokenizer_eos(const spec_tokenizer *tokenizer);
/* The bytes that a token stands for in running text; borrowed; NULL and *n = 0 for an id that is not used. */
SPEC_API const char *spec_tokenizer_piece(const spec_tokenizer *tokenizer, int32_t id, size_t *n);
SPEC_API int spec_tokenizer_is_special(const spec_tokenizer *tokenizer, int32_t id);

/* ids [cap]; *n receives the count that is needed, also when cap is too small (then E_FULL; ids may be NULL
 * with cap 0 to ask). text is n_text bytes of UTF-8; invalid UTF-8 is E_INVALID and names the byte. */
SPEC_API spec_status spec_tokenizer_encode(const spec_tokenizer *tokenizer, int32_t *ids, size_t cap,
                                           size_t *n, const char *text, size_t n_text, uint32_t flags);
/* text [cap] bytes, not terminated; *n as above. Sequences that are not UTF-8 become U+FFFD. */
SPEC_API spec_status spec_tokenizer_decode(const spec_tokenizer *tokenizer, char *text, size_t cap,
                                           size_t *n, const int32_t *ids, size_t n_ids, uint32_t flags);

/* Text as a stream: a token may end inside a character, whose bytes are then held back. Plain data: set it to
 * zero to begin. */
typedef struct spec_text_stream {
    uint8_t held[8];
    int32_t n_held;
    int32_t n_tokens; /* how many tokens went in */
} spec_text_stream;
/* Appends the text that token `id` completes to text [cap], *n its bytes; a piece needs at most
 * spec_tokenizer_piece_max() + 16 bytes. */
SPEC_API spec_status spec_text_stream_push(spec_text_stream *stream, const spec_tokenizer *tokenizer,
                                           char *text, size_t cap, size_t *n, int32_t id, uint32_t flags);
/* What is held back when the stream ends (an incomplete character becomes U+FFFD). cap >= 16. */
SPEC_API spec_status spec_text_stream_end(spec_text_stream *stream, char *text, size_t cap, size_t *n);
SPEC_API size_t spec_tokenizer_piece_max(const spec_tokenizer *tokenizer);

/* --------------------------------------------------------------------------------- models --- */

typedef struct spec_model spec_model; /* weights on a backend; read-only, shared by threads */

typedef enum spec_dtype {
    SPEC_DTYPE_AUTO = 0, /* the type of the file's weights */
    SPEC_DTYPE_F32 = 1,
    SPEC_DTYPE_BF16 = 2,
    SPEC_DTYPE_F16 = 3,
    SPEC_DTYPE_I32 = 4, /* ids only */
    SPEC_DTYPE_Q8_0 = 5 /* weights only: 32 consecutive values of a row are int8 times one f16 scale, 8.5 bits each */
} spec_dtype;
SPEC_API const char *spec_dtype_name(spec_dtype dtype); /* "f32", "bf16", ... */

typedef struct spec_model_params {
    size_t struct_size;
    spec_dtype dtype;           /* activations, products' operands, KV cache; sums are always float32 */
    const char *tokenizer_path; /* NULL = the model's directory; a model without one works with ids only */
    spec_progress_fn progress;
    void *progress_user_data;
    /* AUTO: matrices are kept in the file's or the compute type. Q8_0: those with rows of a multiple of 32 are
     * quantised while they are loaded, embeddings and head too; the others, vectors and activations are as ever. */
    spec_dtype weights;
} spec_model_params;
#define SPEC_MODEL_PARAMS_INIT { sizeof(spec_model_params), SPEC_DTYPE_AUTO, 0, 0, 0, SPEC_DTYPE_AUTO }

/* Loads a Hugging Face directory: config.json, generation_config.json (optional), *.safetensors, tokenizer
 * files (optional). Every key of the config that changes the mathematics is honoured, or refused by name.
 * Errors: E_IO, E_FORMAT (names file, tensor, expected and found), E_UNSUPPORTED, E_NOMEM, E_ABORTED. */
SPEC_API spec_status spec_model_open(spec_model **out, spec_backend *backend, const char *path,
                                     const spec_model_params *params);
SPEC_API void spec_model_close(spec_model *model);
SPEC_API const spec_tokenizer *spec_model_tokenizer(const spec_model *model); /* NULL if there is none */
SPEC_API spec_backend *spec_model_backend(const spec_model *model);

typedef struct spec_mixer_count {
    const char *name; /* "attention", "mamba1", "mamba2", "mlp", ...; static */
    int32_t n;        /* in how many layers */
} spec_mixer_count;
typedef struct spec_model_info {
    size_t struct_size;
    const char *family;         /* "llama", "mamba2", ...; borrowed from the model */
    const char *path;           /* borrowed */
    const char *unknown_keys;   /* config keys that were neither used nor known, comma-separated; borrowed */
    spec_dtype dtype;           /* as resolved */
    int32_t n_vocab;            /* rows of the head; ids >= the tokenizer's n_vocab are padding */
    int32_t n_layer, n_mixer;
    const spec_mixer_count *mixers; /* [n_mixer] what its layers are made of; borrowed */
    int32_t n_ctx;              /* the model's own limit in tokens; 0 = none (pure state-space models) */
    int32_t bos, n_eos;         /* bos -1 = none */
    const int32_t *eos;         /* [n_eos], borrowed */
    uint64_t n_parameters;
    uint64_t bytes_weights;     /* on the device */
    uint64_t bytes_state_seq;   /* recurrent state, recent tokens, convolution state, replay caches of one sequence */
    uint64_t bytes_kv_token;    /* KV cache per token of context */
    spec_dtype weights;         /* as asked for: AUTO or Q8_0 */
    int32_t dim;                /* columns of a hidden row */
} spec_model_info;
/* info->struct_size must be set. n_node: the nodes per sequence that bytes_state_seq is told for. */
SPEC_API spec_status spec_model_get_info(const spec_model *model, spec_model_info *info, int32_t n_node);

/* ------------------------------------------------------------------------- sampling, trees --- */

/* The distribution of the next token, in this order: temperature, top-k, top-p, min-p, softmax.
 * temperature 0 is greedy: the largest logit, the smallest id on ties. */
typedef struct spec_sampling {
    float temperature; /* 0 = greedy */
    int32_t top_k;     /* 0 = off; ties: smallest ids survive */
    float top_p;       /* 0 or 1 = off: keep the shortest prefix of the sorted distribution whose mass is >= top_p */
    float min_p;       /* 0 = off: drop p < min_p * max p */
    uint64_t seed;     /* the same seed gives the same text, whatever the batch */
} spec_sampling;

/* How the nodes of a tree came about. It decides which verification rules keep the target's distribution (algorithms.md
 * 3.6). */
typedef enum spec_tree_kind {
    SPEC_TREE_DETERMINISTIC = 0, /* no draw (top-k, beam, found in a table), or sampled and then selected by value */
    SPEC_TREE_SAMPLED = 1,       /* siblings sampled without replacement from the draft distribution after their
                                    parent, in order of rank */
    SPEC_TREE_SAMPLED_IID = 2,   /* siblings sampled independently of each other; a repeated token is a node again */
    SPEC_TREE_UNROLLED = 3       /* paths of another tree side by side (spec_lab.h): siblings may repeat, and are no
                                    draws of their own */
} spec_tree_kind;

/* A draft tree: node 0 is the root, the pending token; parent[0] = -1; parent[i] < i. Plain data; the arrays are the
 * caller's (spec_tree_alloc makes them). The optional ones may be NULL. */
typedef struct spec_tree {
    int32_t n;           /* nodes, root included */
    int32_t cap;         /* room of the arrays below */
    int32_t *token;      /* [cap] */
    int32_t *parent;     /* [cap] */
    int32_t *rank;       /* [cap] place among its siblings in the order in which they were sampled, 0-based.
                            NULL: siblings stand in that order */
    float *prob;         /* [cap] or NULL: the draft probability of the token after its parent; 1 for the root */
    int32_t *q_row;      /* [cap] or NULL: the row of draft distributions that the children were sampled from, -1 = no
                            children */
    spec_tree_kind kind;
} spec_tree;

typedef enum spec_verify_rule {
    SPEC_VERIFY_AUTO = 0,   /* GREEDY at T = 0; else MSS for sampled trees (i.i.d.: MSS_REPEAT), NAIVE for others */
    SPEC_VERIFY_GREEDY = 1, /* the only rule at T = 0; E_INVALID at any other */
    SPEC_VERIFY_NAIVE = 2,  /* draw from the target once; follow the child that equals the draw. For every tree */
    SPEC_VERIFY_CHAIN = 3,  /* chain speculative sampling: accept y with min(1, p/q), else draw from the residual; for
                               sampled trees in which no node has two children (algorithms.md 3.1) */
    SPEC_VERIFY_MSS = 4,    /* multi-step speculative sampling without replacement (3.2), for sampled trees */
    SPEC_VERIFY_MSS_REPEAT = 5 /* multi-step speculative sampling with replacement (3.2), for trees sampled i.i.d. and
                               for sampled chains */
} spec_verify_rule;
SPEC_API const char *spec_verify_rule_name(spec_verify_rule rule); /* "auto", "greedy", ..., "mss-repeat" */
/* Calls each(user, rule, name, help) for SPEC_VERIFY_AUTO and every rule; the texts are constants. */
SPEC_API void spec_verify_rule_list(void (*each)(void *user, spec_verify_rule rule, const char *name, const char *help),
                                    void *user);

/* Would `rule` keep the target's distribution on this tree at this temperature? SPEC_OK, or E_INVALID saying what the
 * rule would do wrong. SPEC_VERIFY_AUTO always does. */
SPEC_API spec_status spec_verify_is_lossless(const spec_tree *tree, spec_verify_rule rule, float temperature);

/* ------------------------------------------------------------------------------- drafters --- */

typedef struct spec_drafter spec_drafter; /* anything that proposes */

typedef struct spec_drafter_params {
    size_t struct_size;
    int32_t n_draft;    /* length of chains where `tree` is NULL; 0 = 4 */
    float temperature;  /* of the draft distribution when the target samples; 0 = the target's. Its top-k, top-p and min-p
                           shape the draft distribution in any case: mass where the target has none is wasted */
    const char *tree;   /* which trees to build: "KIND[:ARGS]" as for spec_builder_open, or several of them separated by
                           ';', among which the session chooses (spec_session_params.adapt; without it the first).
                           NULL = "chain:n_draft" */
    struct spec_builder *builder; /* in place of `tree`: one builder of the caller's, which must outlive the drafter */
} spec_drafter_params;
#define SPEC_DRAFTER_PARAMS_INIT { sizeof(spec_drafter_params), 0, 0, 0, 0 }

/* Any model as a drafter: the library grows trees from its distributions. It must be on the target's backend (checked when the
 * session opens), and its vocabulary must agree with the target's id by id. The model must outlive the drafter, and the
 * drafter its session. Errors: E_INVALID (parameters; a tree that is none: as spec_builder_open), E_IO, E_FORMAT,
 * E_NOMEM. */
SPEC_API spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model,
                                             const spec_drafter_params *params);

/* A drafter that needs no model: a kind and its numbers. Kinds:
 *   ngram:N,M   prompt lookup: what followed the last N (or fewer) tokens where they stood before, up to M tokens (3,10)
 * It works with every target. allocator is kept; NULL = malloc. Errors: E_INVALID (no such kind, numbers out of its range),
 * E_NOMEM. */
SPEC_API spec_status spec_drafter_open(spec_drafter **out, const char *text, const spec_allocator *allocator);
/* Calls each(user, name, args, help) for every such kind; the texts are constants. */
SPEC_API void spec_drafter_list(void (*each)(void *user, const char *name, const char *args, const char *help), void *user);

/* A sequence that an application's drafter drafts for. */
typedef struct spec_draft_request {
    int32_t seq;
    const int32_t *ids; /* [n_ids] so far; the last one is the root of the tree */
    size_t n_ids;
    int32_t depth_max;  /* nodes deeper than this are dropped */
    spec_tree *tree;    /* node 0 is set. Fill token and parent from node 1 on, at most tree->cap nodes; siblings distinct. Left
                           as it is: no proposal, and the session takes an ordinary step (or asks its next drafter) */
} spec_draft_request;

/* Bytes that a sequence's state is saved to and restored from; see spec_sequence_save. */
typedef int (*spec_write_fn)(void *user_data, const void *data, size_t n);
typedef int (*spec_read_fn)(void *user_data, void *data, size_t n);

/* An application's own drafter: it proposes whole trees (`draft`), or tells distributions from which the library's builders grow
 * them (`probs`). One of the two; any other callback may be NULL. They run on the session's thread; an error of theirs fails
 * the call that they are called from, with their status. */
typedef struct spec_drafter_ops {
    size_t struct_size;
    void *user_data; /* the first argument of each; must live until close */
    /* Proposes for requests [n]. Such trees are SPEC_TREE_DETERMINISTIC, hence verified by the naive rule. */
    spec_status (*draft)(void *user_data, spec_draft_request *requests, int32_t n);
    /* probs [n_node][n_vocab], each a distribution: of what follows ids [n] and then the path from the root (which is ids[n - 1])
     * to nodes[i] of `tree`. As it is drawn from: the target's truncation is not applied to it. */
    spec_status (*probs)(void *user_data, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree, const int32_t *nodes,
                         int32_t n_node, float *probs, int32_t n_vocab);
    /* A sequence begins with ids [n], the last of them pending. */
    spec_status (*prefill)(void *user_data, int32_t seq, const int32_t *ids, size_t n);
    /* The last n_new of ids [n] were committed. */
    void (*committed)(void *user_data, int32_t seq, const int32_t *ids, size_t n, int32_t n_new);
    /* Sequence `copy` begins as seq is. NULL: prefill is called for it. */
    spec_status (*fork)(void *user_data, int32_t seq, int32_t copy);
    /* The state of seq as bytes, and a sequence that begins with them; ids [n] as for prefill. Both or none. save may be called
     * twice in a row and then gives the same bytes. Only states of a drafter with the same `identity`, which is not 0, are
     * restored; else prefill is called. */
    uint64_t identity;
    spec_status (*save)(void *user_data, int32_t seq, spec_write_fn write, void *write_data);
    spec_status (*restore)(void *user_data, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *read_data);
    void (*end)(void *user_data, int32_t seq); /* a sequence ends, or could not begin */
    void (*close)(void *user_data);            /* the drafter is closed */
} spec_drafter_ops;
/* ops are copied. With `draft` there is no tree and no builder in params (E_INVALID), and n_draft is the most nodes below the
 * root. Errors: as above. */
SPEC_API spec_status spec_drafter_from_ops(spec_drafter **out, const spec_drafter_ops *ops,
                                           const spec_drafter_params *params);
SPEC_API void spec_drafter_close(spec_drafter *drafter);
/* Nodes of its largest tree, root included. */
SPEC_API int32_t spec_drafter_n_node(const spec_drafter *drafter);

/* ------------------------------------------------------------------------------- sessions --- */

typedef struct spec_session spec_session; /* sequences in flight on one target; one thread at a time */

/* Choice of the tree at run time (algorithms.md 13, 14), not speculating always being among the choices. A choice by
 * time measured changes which tree is verified, hence the text of MSS for a seed; never its distribution. A round is one
 * spec_draft; the commits of all its sequences by the drafted trees end it, and update the choice what it emitted and the
 * time that it took (with the four calls, the caller's own in between too). */
typedef enum spec_adapt {
    SPEC_ADAPT_OFF = 0,
    SPEC_ADAPT_COST = 1, /* most expected tokens per second: accepted so far by tree, and what that may be beyond (trees that
                            are little known are tried), step costs from the profile, and, if that was measured by this
                            session, what the tree's rounds have taken beside it */
    SPEC_ADAPT_UCB = 2   /* UCB1 over the trees, by measured tokens over measured time */
} spec_adapt;

/* How several drafters of a session work together. */
typedef enum spec_draft_combine {
    SPEC_DRAFT_FIRST = 0, /* in their order: the first that proposes for a sequence */
    SPEC_DRAFT_UNION = 1, /* the union of what all propose, which is SPEC_TREE_DETERMINISTIC: naive or greedy verification */
    SPEC_DRAFT_CHOOSE = 2 /* each with each of its trees is a choice of its own (`adapt`; without it the first) */
} spec_draft_combine;

typedef struct spec_lab spec_lab; /* options of experiments and comparisons: see spec_lab.h */

/* A hidden-state tap: rows of the target that a session keeps on the device, one for each node of a pass. What enters a layer and
 * what leaves the last one is the residual, f32. What leaves the final norm is what the head multiplies, in the compute type. */
typedef enum spec_tap_where {
    SPEC_TAP_LAYER = 0, /* entering layer `layer` */
    SPEC_TAP_LAST = 1,  /* after the last layer */
    SPEC_TAP_NORM = 2   /* after the final norm */
} spec_tap_where;
typedef struct spec_tap {
    int32_t where; /* SPEC_TAP_... */
    int32_t layer; /* LAYER: 0 to n_layer - 1; else 0 */
} spec_tap;

typedef struct spec_session_params {
    size_t struct_size;
    int32_t n_ctx;      /* tokens per sequence; 0 = the model's limit (for attention without one: 4096) */
    int32_t n_seq;      /* sequences at once; 0 = 1 */
    int32_t n_node;     /* nodes per sequence and step, root included, at most 256; 0 = what the drafter's largest tree
                           needs. A smaller one cuts trees short */
    spec_verify_rule verify; /* what spec_step uses, and spec_verify with SPEC_VERIFY_AUTO */
    spec_abort_fn abort;
    void *abort_user_data;
    spec_adapt adapt;   /* how spec_draft chooses among the drafter's trees */
    const char *profile; /* step costs: a file of spec_cost_save; NULL = measured when first needed */
    const spec_lab *lab; /* NULL = none of them */
    const spec_tap *taps; /* [n_tap] of the target, copied; counted in spec_memory.bytes_work. None: nothing is kept */
    int32_t n_tap;
    spec_drafter *const *drafters; /* [n_drafter] in place of spec_session_open's `drafter`: several of them, by `combine` */
    int32_t n_drafter;
    spec_draft_combine combine;
} spec_session_params;
#define SPEC_SESSION_PARAMS_INIT \
    { sizeof(spec_session_params), 0, 0, 0, SPEC_VERIFY_AUTO, 0, 0, SPEC_ADAPT_OFF, 0, 0, 0, 0, 0, 0, SPEC_DRAFT_FIRST }

/* drafter may be NULL: plain decoding. A drafter serves one session at a time. All memory of the steady state
 * is taken here. Errors: E_INVALID (vocabularies differ: names the first id), E_NOMEM, E_UNSUPPORTED. */
SPEC_API spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                                       const spec_session_params *params);
SPEC_API void spec_session_close(spec_session *session);
/* The target. */
SPEC_API const spec_model *spec_session_target(const spec_session *session);
/* From any thread: the step or prefill in progress ends after its current pass with E_ABORTED. Stays set until
 * spec_session_resume. */
SPEC_API void spec_session_cancel(spec_session *session);
SPEC_API void spec_session_resume(spec_session *session);

typedef struct spec_memory {
    size_t struct_size;
    uint64_t bytes_model;    /* weights of the target (and the drafter's, when it is a model) */
    uint64_t bytes_state;    /* recurrent states, recent tokens behind them (8.6), convolution states, replay caches */
    uint64_t bytes_kv;       /* KV pages */
    uint64_t bytes_work;     /* activations, logits, distributions, workspaces */
} spec_memory;
/* What a session with these parameters takes on the device, before it is opened. out->struct_size must be set. Errors:
 * as spec_session_open. */
SPEC_API spec_status spec_session_estimate(spec_memory *out, spec_model *target, spec_drafter *drafter,
                                          const spec_session_params *params);

typedef enum spec_stop {
    SPEC_STOP_NONE = 0,    /* still running */
    SPEC_STOP_EOS = 1,     /* an end-of-text token; it is the last id and counts, its text is not emitted */
    SPEC_STOP_STRING = 2,  /* a stop string; the text ends before it */
    SPEC_STOP_LENGTH = 3,  /* the number of tokens asked for */
    SPEC_STOP_CONTEXT = 4, /* the context is full */
    SPEC_STOP_ABORTED = 5
} spec_stop;
SPEC_API const char *spec_stop_name(spec_stop stop); /* "eos", "stop", "length", "context", "aborted" */

/* --- fork, save, restore --- */

/* Admits a copy of seq: same ids, state, sampling (change the seed with spec_sequence_seed) and drafts to come. What
 * seq has accepted and not yet applied is applied first. Errors: E_INVALID (no such sequence), E_FULL (no free
 * sequence, no KV pages), E_STATE (an earlier pass failed), E_NOMEM. */
SPEC_API spec_status spec_sequence_fork(spec_session *session, int32_t seq, int32_t *copy);
/* From the next draw on. Errors: E_INVALID. */
SPEC_API spec_status spec_sequence_seed(spec_session *session, int32_t seq, uint64_t seed);
/* Everything that seq needs to go on, as bytes that `write` receives in order (non-zero from it: E_IO). What was
 * accepted and is still to be applied is applied first; the score of seq is forgotten. Errors: E_INVALID, E_IO,
 * E_NOMEM, E_STATE (an earlier pass failed), E_DEVICE. */
SPEC_API spec_status spec_sequence_save(spec_session *session, int32_t seq, spec_write_fn write, void *user_data);
/* Admits what was saved: on the same backend and device it continues bit for bit as the saved one would have. Refused
 * (E_FORMAT, saying what differs): another model, compute type or version, bytes cut short or changed, and for a session
 * with SPEC_SCAN_RECURRENT states that lag, as SPEC_SCAN_CHUNKED leaves them. The ids of what is refused can be admitted
 * anew (spec_sequence_add). `read` fills n bytes or returns non-zero. The drafter's state is in it where the saving
 * session had a model as drafter; where this session's drafter is another model, it applies the ids anew. */
SPEC_API spec_status spec_sequence_restore(spec_session *session, int32_t *seq, spec_read_fn read, void *user_data);

/* Admits a sequence: prefills ids[0 .. n-2]; ids[n-1] becomes the pending token. n >= 1, and n < n_ctx.
 * On error nothing is left of it. Errors: E_FULL (does not fit: says by how much; or no free sequence),
 * E_INVALID (id out of range), E_ABORTED. *seq is a small number, reused after removal. */
SPEC_API spec_status spec_sequence_add(spec_session *session, int32_t *seq, const int32_t *ids, size_t n,
                                       const spec_sampling *sampling);
SPEC_API spec_status spec_sequence_remove(spec_session *session, int32_t seq);

typedef struct spec_sequence_options {
    size_t struct_size;
    int32_t n_predict;  /* tokens that may still come, after which spec_step tells SPEC_STOP_LENGTH; 0 = no such limit. Trees are
                           cut so that no step goes beyond it */
    int32_t ignore_eos; /* 1: end-of-text tokens do not end the sequence */
    int32_t logprobs;   /* 1: spec_step tells log-probabilities of the emitted tokens */
    int32_t n_top;      /* and of so many likeliest ones, at most 20 */
} spec_sequence_options;
/* From the next step on, in place of what was set before; NULL = defaults. Errors: E_INVALID, E_NOMEM. */
SPEC_API spec_status spec_sequence_set_options(spec_session *session, int32_t seq, const spec_sequence_options *options);
/* All ids so far, prompt included; borrowed until the next call on the session. */
SPEC_API spec_status spec_sequence_ids(const spec_session *session, int32_t seq, const int32_t **ids,
                                       size_t *n);

/* --- the four calls of a step --- */

/* The drafter's proposal for each sequence in seqs [n] (each once); trees[i] is borrowed until the next draft. No state
 * of the target changes. Near the end of the context the tree is clipped; without a drafter it is the root alone. Draft
 * distributions of an earlier draft are gone: what was scored before is then verified without. Errors: E_INVALID (no such
 * sequence; what an application's drafter or builder did wrong), E_DEVICE, what callbacks return. */
SPEC_API spec_status spec_draft(spec_session *session, const int32_t *seqs, int32_t n,
                                const spec_tree **trees);
/* After draft, until the commit: which of the drafter's trees (spec_step_result.tree) that was; -1 = did not speculate.
 * Errors: E_INVALID (no such sequence). */
SPEC_API spec_status spec_draft_choice(const spec_session *session, int32_t seq, int32_t *tree);
/* One packed pass over the trees (the caller's own or the drafter's), trees[i]->token[0] being the pending token of
 * seqs[i]. Distributions stay on the device. May be called again with other trees: nothing has changed. Scores of all sequences
 * of the session are those of the latest call. The trees are copied. A tree of a drawn kind is verified by the draft
 * distributions that its q_row names: rows of the sequence's latest spec_draft; that its nodes were drawn from them, the caller
 * vouches for. Errors: E_INVALID (not a tree, token out of range, more nodes than planned, depth over 63), E_FULL
 * (context), E_STATE (an earlier pass failed), E_NOMEM, E_DEVICE. */
SPEC_API spec_status spec_score(spec_session *session, const int32_t *seqs, int32_t n,
                                const spec_tree *const *trees);
/* Walks the tree of seq after score. path [tree->n]: accepted nodes, path[0] = 0, *n_path >= 1; *token: the bonus (or
 * correction) that follows the last of them. The walk ends at an end-of-text token, which then is *token: nothing is
 * fed after it. Changes nothing: may be repeated, and gives the same. At temperature 0 every rule is GREEDY.
 * SPEC_VERIFY_AUTO: the session's rule. Errors: E_STATE (nothing was scored), E_INVALID (the rule would not keep the
 * distribution of this tree, or needs draft distributions that the session does not have), E_DEVICE (logits that are no numbers). */
SPEC_API spec_status spec_verify(spec_session *session, int32_t seq, spec_verify_rule rule, int32_t *path,
                                 int32_t *n_path, int32_t *token);
/* Advances seq along path [n_path] (of the scored tree, from its root: path[0] = 0); `token` becomes the pending one.
 * Nothing is computed: the next pass applies the path. The builder of a drafted tree learns from it. Errors: E_STATE
 * (nothing was scored), E_INVALID (not a path, token out of range); then nothing has changed. */
SPEC_API spec_status spec_commit(spec_session *session, int32_t seq, const int32_t *path, int32_t n_path,
                                 int32_t token);
/* Forgets the score of seq: it is as before. Errors: E_INVALID (no such sequence). */
SPEC_API spec_status spec_rollback(spec_session *session, int32_t seq);

/* After score, until the commit: the target's distribution of the token that follows `node`, by the sequence's sampling: f32
 * [n_vocab] of the target; at temperature 0 all on the arg-max. What a verifier of your own needs; a copy from the
 * device, which waits for it. Errors here and below: E_STATE (no score, no such distribution now), E_INVALID, E_DEVICE. */
SPEC_API spec_status spec_node_probs(spec_session *session, int32_t seq, int32_t node, float *probs);
/* After draft, until the commit: row `q_row` of the drafter's latest tree, f32 [n_vocab] of the target. Only rows that
 * tree->q_row names hold a distribution. A copy from the device. */
SPEC_API spec_status spec_draft_probs(spec_session *session, int32_t seq, int32_t q_row, float *probs);
/* After score: logits of a node, f32 [n_vocab] (of spec_model_info: padded rows included). A copy from the device: for
 * tests and research. */
SPEC_API spec_status spec_node_logits(spec_session *session, int32_t seq, int32_t node, float *logits);
/* After score, until the commit: the hidden row of a node at tap `tap` of the session's, f32 [dim] (of spec_model_info). A copy from
 * the device. Errors: E_INVALID (the session keeps no such tap), and as above. */
SPEC_API spec_status spec_node_hidden(spec_session *session, int32_t seq, int32_t tap, int32_t node, float *hidden);
/* After score: log-probabilities, of the distribution before temperature and truncation, of the token that follows
 * `node`: of `token` in *logprob, and of the n likeliest in top_id, top_logprob [n] (n <= 64, may be 0). */
SPEC_API spec_status spec_node_logprobs(spec_session *session, int32_t seq, int32_t node, int32_t token,
                                        float *logprob, int32_t *top_id, float *top_logprob, int32_t n);

typedef struct spec_logprob {
    float logprob;        /* of the chosen token */
    int32_t n_top;
    int32_t top_id[20];
    float top_logprob[20];
} spec_logprob;

typedef struct spec_step_result {
    const int32_t *tokens; /* emitted in this step: accepted drafts, then the bonus; borrowed until the next step */
    int32_t n_tokens;
    int32_t n_drafted;     /* nodes proposed, without the root */
    int32_t n_accepted;
    spec_stop stop;        /* EOS, LENGTH or CONTEXT: the sequence will not go on */
    int32_t tree;          /* which way to draft (a drafter's trees in their order, drafters in theirs), -1 = did not draft */
    int32_t branched;      /* 1: a node was accepted that is not the first child of its parent */
    int32_t drafter;       /* which of the session's drafters proposed it, -1 = none or several */
    const spec_logprob *logprobs; /* [n_tokens] by the sequence's options, else NULL; borrowed until the next step */
} spec_step_result;
/* draft + score + verify + commit for the sequences in seqs [n]; results [n]. After E_DEVICE its sequences can only be
 * removed; after any other error they are as before. */
SPEC_API spec_status spec_step(spec_session *session, const int32_t *seqs, int32_t n,
                               spec_step_result *results);

/* ------------------------------------------------------------------------------- generate --- */

/* Receives text as it becomes final (bytes that could begin a stop string, or half a character, are withheld)
 * and the ids emitted since the last call. Return non-zero to stop. */
typedef int (*spec_text_fn)(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids);

typedef struct spec_generate_params {
    size_t struct_size;
    int32_t n_predict;          /* tokens at most; 0 = 128 */
    spec_sampling sampling;
    const char *const *stop;    /* [n_stop] stop strings, UTF-8; one that is a special token ends where that token comes */
    int32_t n_stop;
    int32_t n_logprobs;         /* -1 = none; N >= 0: of the chosen token and of the top N (N <= 20) */
    int32_t no_bos;             /* 1 = the prompt is encoded without special tokens */
    int32_t parse_special;      /* 1 = special tokens written in the prompt are recognised */
    int32_t ignore_eos;
    spec_text_fn on_text;
    void *user_data;
    int32_t keep_special;       /* 1 = special tokens are written in the text, but for the one that ends it */
} spec_generate_params;
#define SPEC_GENERATE_PARAMS_INIT { sizeof(spec_generate_params), 0, { 0, 0, 0, 0, 0 }, 0, 0, -1, 0, 0, 0, 0, 0, 0 }

typedef struct spec_result {
    char *text;                 /* n_text bytes and a zero; NULL when the model has no tokenizer */
    size_t n_text;
    int32_t *ids;               /* generated ids [n_ids] */
    size_t n_ids;
    spec_logprob *logprobs;     /* [n_ids] or NULL */
    spec_stop stop;
    int32_t n_prompt;
    int64_t n_step, n_drafted, n_accepted, n_emitted; /* emitted = accepted + one per step */
    int64_t n_speculated;       /* steps that drafted at all */
    int64_t n_branched;         /* steps that accepted a node which is not the first child of its parent */
    int64_t accepted[64];       /* [k]: steps that accepted k drafts */
    double prefill_ms, decode_ms;
    const spec_allocator *allocator_; /* internal */
} spec_result;

/* Text for one prompt. An empty prompt starts from BOS where the model has one. When it fails or is cancelled, what
 * was generated until then is in *result (for E_ABORTED stop is SPEC_STOP_ABORTED). Free with spec_result_free, before
 * the backend is closed. */
SPEC_API spec_status spec_generate(spec_session *session, const char *prompt, size_t n_prompt,
                                   const spec_generate_params *params, spec_result *result);
/* The same from ids; works without a tokenizer. */
SPEC_API spec_status spec_generate_ids(spec_session *session, const int32_t *ids, size_t n,
                                       const spec_generate_params *params, spec_result *result);
SPEC_API void spec_result_free(spec_result *result);

/* ----------------------------------------------------------------- algorithms on plain arrays --- */

/* The distribution probs [n_vocab] from logits [n_vocab], by `s`, as sessions have it. scratch [n_vocab]. E_INVALID: a
 * logit that is not a number, a largest one that is infinite, a setting below 0. */
SPEC_API spec_status spec_probs(float *probs, const float *logits, int32_t n_vocab, const spec_sampling *s,
                                int32_t *scratch);
/* The smallest i with probs[i] > 0 and sum of probs[0..i] > u * total. u in [0, 1). */
SPEC_API int32_t spec_draw(const float *probs, int32_t n_vocab, float u);
/* 24-bit uniform of the counter-based generator (Philox4x32-10). Pure function. */
SPEC_API float spec_uniform(uint64_t seed, uint64_t position, uint32_t purpose, uint32_t index);

/* --- trees --- */

/* Arrays for cap nodes, the optional ones too; all or nothing. allocator may be NULL. An empty tree (n = 0). */
SPEC_API spec_status spec_tree_alloc(spec_tree *tree, int32_t cap, const spec_allocator *allocator);
SPEC_API void spec_tree_free(spec_tree *tree, const spec_allocator *allocator); /* the one of spec_tree_alloc */
/* Copies nodes and kind; optional arrays where `to` has them (what `from` lacks: ranks by place, prob 0, q_row -1).
 * E_FULL when to->cap is too small; E_INVALID when ranks would be lost. Then `to` is as it was. */
SPEC_API spec_status spec_tree_copy(spec_tree *to, const spec_tree *from);
/* Appends a node (parent -1: the root, into an empty tree): its rank is the number of siblings before it, its q_row -1.
 * Returns its number; -1 when there is no room or no such parent. */
SPEC_API int32_t spec_tree_add(spec_tree *tree, int32_t parent, int32_t token, float prob);
/* Is it a tree that can be scored? Root first with parent -1, parents before children, tokens in [0, n_vocab), at most
 * n_max nodes, depth at most 63, siblings distinct (unless sampled i.i.d. or unrolled), ranks a numbering of siblings.
 * E_INVALID names the node. O(n) but for siblings. */
SPEC_API spec_status spec_tree_check(const spec_tree *tree, int32_t n_max, int32_t n_vocab);
SPEC_API void spec_tree_depths(const spec_tree *tree, int32_t *depth); /* [n]; 0 for the root */
SPEC_API void spec_tree_ranks(const spec_tree *tree, int32_t *rank);   /* [n]; tree->rank, or by place */
/* Ancestors and self as bits: bit j of row i is set iff j is on the path of i. bits [n][(n + 31) / 32]  (5.1) */
SPEC_API void spec_tree_masks(const spec_tree *tree, uint32_t *bits);
/* The convolution's window of each node (7.1): anc [n][width - 1], entry k - 1 the k-th ancestor, or -1 - j where the
 * window reaches the j-th newest entry of the stored state. */
SPEC_API void spec_tree_conv_ancestors(const spec_tree *tree, int32_t width, int32_t *anc);
/* order [n]: order[i] is the node that comes at place i. Depth first, children by rank; or heavy path first: children
 * by decreasing size of their subtree, ties by rank (5.3). scratch [3 n]. */
typedef enum spec_tree_order_kind { SPEC_ORDER_DEPTH_FIRST = 0, SPEC_ORDER_HEAVY_PATH = 1 } spec_tree_order_kind;
SPEC_API void spec_tree_order(const spec_tree *tree, spec_tree_order_kind how, int32_t *order, int32_t *scratch);
/* out = tree in another topological order; ranks (out->rank must be there), probabilities and rows go along. order [n]:
 * what spec_tree_order gives. out is not tree. Errors: E_INVALID when a child would come before its parent, a node is
 * missing, or out has no ranks; E_FULL. */
SPEC_API spec_status spec_tree_permute(const spec_tree *tree, const int32_t *order, spec_tree *out);
/* Keeps the nodes with keep[i] != 0 whose ancestors are all kept, in place; map [n] receives the new numbers, -1 for
 * dropped ones; keep [n]. The root is always kept. A sampled tree stays one only if `by_slot`: the caller asserts that
 * no node was dropped for its own token or probability; the later siblings of a dropped node go too (4.5, 4.6). Else it
 * becomes deterministic. */
SPEC_API void spec_tree_prune(spec_tree *tree, const uint8_t *keep, int by_slot, int32_t *map);
/* out = a and b merged at their root, a shared prefix stored once; map_b [b->n] (may be NULL): where b's nodes are.
 * The result is SPEC_TREE_DETERMINISTIC. E_INVALID when the roots differ, E_FULL. out is neither a nor b. */
SPEC_API spec_status spec_tree_union(const spec_tree *a, const spec_tree *b, spec_tree *out, int32_t *map_b);
/* Blocks of block x block nodes of the mask that are not empty: the work of block-sparse attention (5.3). block >=
 * 1. */
SPEC_API int64_t spec_tree_blocks(const spec_tree *tree, int32_t block);

/* --- verification --- */

/* Walks `tree` given the target's distributions p [tree->n][n_vocab] and the draft distributions q [..][n_vocab]: node
 * i's children were sampled from row tree->q_row[i] of q. q may be NULL for rules that do not use it (GREEDY, NAIVE).
 * child_row, if not NULL, gives each *child* the row that it was sampled from: several drafters. Draws are keyed by
 * (seed, position of the token after the node): `position` is that of the token after the root. path [depth + 1],
 * *n_path, *token as for spec_verify. Errors: E_INVALID (the rule does not fit the tree; a distribution that is
 * negative, not a number, or whose sum is not 1 within 1e-3), E_NOMEM. */
typedef struct spec_verify_args {
    size_t struct_size;
    const spec_tree *tree;
    int32_t n_vocab;
    const float *p, *q;
    const int32_t *child_row;  /* [tree->n] or NULL */
    spec_verify_rule rule;
    float temperature;         /* 0: distributions are one-hot, GREEDY */
    uint64_t seed, position;
    const spec_allocator *allocator; /* for scratch; NULL = malloc */
} spec_verify_args;
SPEC_API spec_status spec_verify_probs(const spec_verify_args *args, int32_t *path, int32_t *n_path, int32_t *token);

/* --- builders --- */

/* How trees are grown: a kind and its numbers. Immutable but for a controller (dyspec-threshold), so one thread at a
 * time. Kinds, in the order of algorithms/build/build_table.c:
 *   none                    no drafts
 *   chain:K                 K drafts in a row
 *   static:A                a fixed shape: A to E of STree, "eagle", or a file of lines "PARENT" (static:@FILE)
 *   product:N1,N2,...       every node of depth i has N(i+1) children; product-repeat: sampled with replacement
 *   beam:M,N                M beams, N levels
 *   dyspec:N                N drafts where reaching them is likeliest (heap)
 *   dyspec-threshold:T,N    all draws reached with probability T, at most N (64); T,N,WIDTH,DEPTH: by levels
 *   sequoia:N[,DEPTH]       the best shape of N drafts for measured acceptance; of at most N where step costs are known
 *   eagle2:K,N,D            K best of each level expanded, D levels, the N - 1 best nodes kept
 * Sampled (SPEC_TREE_SAMPLED) at a temperature above 0: chain, static, product, dyspec, dyspec-threshold, sequoia.
 * Otherwise, and always for beam and eagle2, candidates are the likeliest ones (SPEC_TREE_DETERMINISTIC). docs/trees.md
 * compares them. allocator is copied; NULL = malloc. Errors: E_INVALID (no such kind, numbers out of its range: says
 * which are possible), E_IO and E_FORMAT (static:@FILE), E_NOMEM. */
typedef struct spec_builder spec_builder;
SPEC_API spec_status spec_builder_open(spec_builder **out, const char *text, const spec_allocator *allocator);
SPEC_API void spec_builder_close(spec_builder *builder);
/* Calls each(user, name, args, help) for every kind; the texts are constants. */
SPEC_API void spec_builder_list(void (*each)(void *user, const char *name, const char *args, const char *help),
                                void *user);
typedef struct spec_builder_info {
    size_t struct_size;
    const char *text;     /* as opened; borrowed */
    int32_t n_node;       /* most nodes of a tree, root included */
    int32_t n_row;        /* most nodes whose distribution is asked for: rows of draft distributions */
    int32_t n_level;      /* most rounds of asking */
    int32_t depth;        /* deepest node */
    spec_tree_kind kind;  /* at a temperature above 0 */
} spec_builder_info;
/* info->struct_size must be set. */
SPEC_API spec_status spec_builder_get_info(const spec_builder *builder, spec_builder_info *info);
/* Fills distributions [n][n_vocab], those after nodes [n] of the tree so far: finite, not negative, of sum 1 within
 * 1e-3. What it returns, if not SPEC_OK, ends the build. */
typedef spec_status (*spec_probs_fn)(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n,
                                     float *distributions, int32_t n_vocab);
typedef struct spec_build_args {
    size_t struct_size;
    int32_t token;          /* the root */
    int32_t n_vocab;
    spec_probs_fn probs;
    void *user_data;
    int32_t draw;           /* 1: candidates are sampled; 0: the likeliest are taken (greedy targets) */
    uint64_t seed, step;    /* key of the draws: the sequence's seed and its step counter */
    float *q;               /* [info.n_row][n_vocab] gets the distributions, or NULL: row tree->q_row[i] is node i's */
    int32_t depth_max;      /* no node deeper than this; 0 = no limit of its own */
} spec_build_args;
/* tree->cap >= info.n_node. Draws are keyed by the slot in the tree, so that builders agree where their trees do. Works
 * in memory of the builder, and takes some of its allocator for the call. On error `tree` is as it was. Errors:
 * E_INVALID (arguments, a distribution that is none, an `expand` that broke its contract), E_NOMEM, what
 * `distributions` or `expand` returned. */
SPEC_API spec_status spec_builder_build(spec_builder *builder, const spec_build_args *args, spec_tree *tree);
/* A builder of your own: host-driven growth. `expand` is called once per round. candidates [row][k] are what may follow
 * the nodes fed so far, those of node x in row tree->q_row[x], in order (token -1: no more). `expand` adds children
 * (spec_tree_add; in a sampled tree child number j of a node must be its candidate j) and names in feed the nodes (not
 * fed before: q_row < 0) whose candidates it wants next, at most n_feed_max of them; *n_feed = 0 ends the tree. The
 * first call has the root alone in the tree, fed. tree has rank, prob and q_row. A session grows the trees of several
 * sequences in turns: what `expand` must know of a tree it reads from the tree. Whether a sampled node is kept may
 * depend on its ancestors and earlier siblings, not on its own token or probability (3.2). */
typedef struct spec_candidate {
    int32_t token; /* -1: the distribution's support has no more */
    float prob;    /* the distribution's, before any candidate was removed */
} spec_candidate;
typedef struct spec_builder_ops {
    size_t struct_size;
    int32_t n_node, n_row, n_level, depth, k; /* as in spec_builder_info; k: candidates per node, at most 64 */
    spec_tree_kind kind;
    spec_status (*expand)(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                          int32_t *n_feed, int32_t n_feed_max);
    void *user_data;
} spec_builder_ops;
/* ops are copied; user_data must outlive the builder. What breaks the contract is found after each round (E_INVALID
 * says which node). Errors: E_INVALID (no expand; n_node and n_row 1 to 256, n_level >= 1, depth at most 63, k 1 to
 * 64), E_NOMEM. */
SPEC_API spec_status spec_builder_from_ops(spec_builder **out, const spec_builder_ops *ops,
                                           const spec_allocator *allocator);
/* After a step: the builder observes how large its tree was and at which rank the accepted children stood (ranks [n],
 * -1 = none accepted there). dyspec-threshold adjusts its threshold, sequoia its estimate of acceptance. */
SPEC_API void spec_builder_observe(spec_builder *builder, int32_t n_node, const int32_t *ranks, int32_t n);

/* --- choice --- */

/* Step costs over a table of node counts, milliseconds; interpolated between, extended by the last slope. Not by a line
 * fitted to it: measured curves have steps (14). */
typedef struct spec_cost_table {
    int32_t n;
    int32_t n_node[16];   /* ascending */
    float ms[16];
} spec_cost_table;
/* 0 for n_node <= 0; below the first entry the first; beyond the last one a slope below 0 counts as 0. */
SPEC_API float spec_cost_ms(const spec_cost_table *table, int32_t n_node);
/* Least squares a N^2 + b N + c (a = 0 with quadratic 0), for reports. coefficient [3]: c, b, a. */
SPEC_API void spec_cost_fit(const spec_cost_table *table, int quadratic, double coefficient[3]);
/* What a session measured or loaded: the target's pass by its nodes, the drafter's by its rows. */
typedef struct spec_cost_profile {
    size_t struct_size;
    spec_cost_table target, draft;
} spec_cost_profile;
/* Tells a builder what passes cost: sequoia then plans for the size, within its N and DEPTH, of most tokens per time;
 * other kinds take no notice. Sessions do it when they have a profile. Errors: E_INVALID (no costs of the target). */
SPEC_API spec_status spec_builder_costs(spec_builder *builder, const spec_cost_profile *profile);
/* Measures now if it was not yet: some passes of each size, for a fraction of a second or a few seconds. The sequences
 * of the session are not touched, but one must be free (E_FULL); call it between steps, not between score and verify.
 * `draft` is empty (n = 0) unless a model drafts. out->struct_size must be set. Errors: E_FULL, E_NOMEM, E_DEVICE. */
SPEC_API spec_status spec_session_profile(spec_session *session, spec_cost_profile *out);
/* JSON. save: E_INVALID (a table that is none), E_IO, E_NOMEM. load: E_IO, E_FORMAT, E_NOMEM. */
SPEC_API spec_status spec_cost_save(const spec_cost_profile *profile, const char *path);
SPEC_API spec_status spec_cost_load(spec_cost_profile *profile, const char *path);
/* Expected emitted tokens of a static shape when the child of rank b is the accepted one with probability a[b]: 1 + sum
 * over nodes of the product along their path (4.7). */
SPEC_API double spec_expected_emitted(const spec_tree *tree, const float *a, int32_t n_a);
/* Of n >= 1 candidates with expected emitted tokens emitted [n] and step costs ms [n]: the number of the one of most
 * tokens per second, the first on ties. */
SPEC_API int32_t spec_choose_rate(const double *emitted, const double *ms, int32_t n);

/* UCB1 over n_arm arms (13). Plain data; deterministic. */
enum { SPEC_MAX_ARM = 16 };
typedef struct spec_bandit {
    int32_t n_arm;
    double lambda_ucb;              /* 1 = the textbook's */
    int64_t n_round;
    int64_t n_pull[SPEC_MAX_ARM];
    double tokens[SPEC_MAX_ARM], ms[SPEC_MAX_ARM];
} spec_bandit;
/* Errors: E_INVALID (1 <= n_arm <= SPEC_MAX_ARM, lambda_ucb >= 0). */
SPEC_API spec_status spec_bandit_open(spec_bandit *bandit, int32_t n_arm, double lambda_ucb);
/* The arm of the largest index, the first on ties; each arm once in the beginning. The index: tokens / time, as a share
 * of the best arm's, plus the bonus. Pure. */
SPEC_API int32_t spec_bandit_choose(const spec_bandit *bandit);
/* A round: emitted tokens (bonus included) in ms milliseconds with that arm. Impossible numbers update nothing. */
SPEC_API void spec_bandit_update(spec_bandit *bandit, int32_t arm, double emitted, double ms);

#ifdef __cplusplus
}
#endif
#endif
