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
 *     spec_verify  walk the tree by a rule that keeps the target's law; path + one more token
 *     spec_commit  the state advances along the path; rejected branches leave no trace
 *
 * CONVENTIONS
 *
 * Errors      Every call that can fail returns a spec_status; 0 is success. spec_last_error() is a
 *             sentence for the latest failure on the calling thread, meaningful only after one.
 *             "End of text" is a field of a result, never an error.
 * Ownership   Who opens, closes. Close functions take NULL. What is written through `out` belongs to
 *             the caller; a pointer that is *returned* is borrowed and lives as long as its parent.
 *             A backend outlives its models, a model its drafters and sessions.
 * Threads     A backend and a model may be used by any number of threads. A session (and what was
 *             opened for it: its drafter) belongs to one thread at a time. Only spec_session_cancel
 *             may be called from another thread.
 * Structs     Parameter structs begin with struct_size (set by the SPEC_..._INIT initialiser); zero
 *             in any other field means its default. Fields are only ever appended.
 * Tokens      are int32_t ids. Shapes are written outermost first, row-major.
 * Numbers     Activations, laws and log-probabilities are float32; weights keep their file's type.
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
    SPEC_DTYPE_I32 = 4 /* ids only */
} spec_dtype;
SPEC_API const char *spec_dtype_name(spec_dtype dtype); /* "f32", "bf16", ... */

typedef struct spec_model_params {
    size_t struct_size;
    spec_dtype dtype;           /* activations, products' operands, KV cache; sums are always float32 */
    const char *tokenizer_path; /* NULL = the model's directory; a model without one works with ids only */
    spec_progress_fn progress;
    void *progress_user_data;
} spec_model_params;
#define SPEC_MODEL_PARAMS_INIT { sizeof(spec_model_params), SPEC_DTYPE_AUTO, 0, 0, 0 }

/* Loads a Hugging Face directory: config.json, generation_config.json (optional), *.safetensors, tokenizer
 * files (optional). Every key of the config that changes the mathematics is honoured, or refused by name.
 * Errors: E_IO, E_FORMAT (names file, tensor, expected and found), E_UNSUPPORTED, E_NOMEM, E_ABORTED. */
SPEC_API spec_status spec_model_open(spec_model **out, spec_backend *backend, const char *path,
                                     const spec_model_params *params);
SPEC_API void spec_model_close(spec_model *model);
SPEC_API const spec_tokenizer *spec_model_tokenizer(const spec_model *model); /* NULL if there is none */
SPEC_API spec_backend *spec_model_backend(const spec_model *model);

typedef struct spec_model_info {
    size_t struct_size;
    const char *family;         /* "llama", "mamba2", ...; borrowed from the model */
    const char *path;           /* borrowed */
    const char *unknown_keys;   /* config keys that were neither used nor known, comma-separated; borrowed */
    spec_dtype dtype;           /* as resolved */
    int32_t n_vocab;            /* rows of the head; ids >= the tokenizer's n_vocab are padding */
    int32_t n_layer, n_attention, n_mamba1, n_mamba2;
    int32_t n_ctx;              /* the model's own limit in tokens; 0 = none (pure state-space models) */
    int32_t bos, n_eos;         /* bos -1 = none */
    const int32_t *eos;         /* [n_eos], borrowed */
    uint64_t n_parameters;
    uint64_t bytes_weights;     /* on the device */
    uint64_t bytes_state_seq;   /* recurrent state, convolution state and replay caches of one sequence */
    uint64_t bytes_kv_token;    /* KV cache per token of context */
} spec_model_info;
/* info->struct_size must be set. n_node: the nodes per sequence that bytes_state_seq is told for. */
SPEC_API spec_status spec_model_get_info(const spec_model *model, spec_model_info *info, int32_t n_node);

/* ------------------------------------------------------------------------- sampling, trees --- */

/* The law of the next token, in this order: temperature, top-k, top-p, min-p, softmax.
 * temperature 0 is greedy: the largest logit, the smallest id on ties. */
typedef struct spec_sampling {
    float temperature; /* 0 = greedy */
    int32_t top_k;     /* 0 = off; ties: smallest ids survive */
    float top_p;       /* 0 or 1 = off: keep the shortest prefix of the sorted law whose mass is >= top_p */
    float min_p;       /* 0 = off: drop p < min_p * max p */
    uint64_t seed;     /* the same seed gives the same text, whatever the batch */
} spec_sampling;

/* A draft tree: node 0 is the root, the pending token; parent[0] = -1; parent[i] < i. Siblings are in the
 * order in which they were drawn. */
typedef struct spec_tree {
    int32_t n;       /* nodes, root included */
    int32_t cap;     /* room of the arrays below */
    int32_t *token;  /* [cap] */
    int32_t *parent; /* [cap] */
} spec_tree;

typedef enum spec_verify_rule {
    SPEC_VERIFY_AUTO = 0,  /* greedy at T = 0; else SAMPLED for trees drawn from a law, NAIVE for the others */
    SPEC_VERIFY_GREEDY = 1, /* the only rule at T = 0; E_INVALID at any other */
    SPEC_VERIFY_NAIVE = 2,  /* draw from the target once; follow the child that equals the draw */
    SPEC_VERIFY_SAMPLED = 3 /* multi-step speculative sampling without replacement; on a chain: accept y with
                               min(1, p/q), else draw from the residual (algorithms.md 3.1, 3.2). A tree whose
                               draft laws are not known counts each candidate as certain (3.4) */
} spec_verify_rule;

/* ------------------------------------------------------------------------------- drafters --- */

typedef struct spec_drafter spec_drafter; /* anything that proposes */

typedef struct spec_drafter_params {
    size_t struct_size;
    int32_t n_draft;    /* nodes proposed per step, K; 0 = 4 */
    float temperature;  /* of the draft law when the target samples; 0 = the target's. Its top-k, top-p and min-p
                           shape the draft law in any case: mass where the target has none is wasted */
} spec_drafter_params;
#define SPEC_DRAFTER_PARAMS_INIT { sizeof(spec_drafter_params), 0, 0 }

/* Any model as a drafter: chains of n_draft tokens. It must be on the target's backend (checked when the
 * session opens), and its vocabulary must agree with the target's id by id. */
SPEC_API spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model,
                                             const spec_drafter_params *params);

/* An application's own drafter. Proposals are deterministic as far as the library knows, hence verified by
 * the naive rule, which is lossless for any of them. */
typedef struct spec_drafter_ops {
    size_t struct_size;
    /* Fills tree (token and parent from node 1 on; node 0 is set) with at most tree->cap nodes; siblings must be
     * distinct. ids [n]: the sequence so far, its last token being the root. Nodes behind the end of the context
     * are dropped afterwards. */
    spec_status (*draft)(void *user_data, int32_t seq, const int32_t *ids, size_t n, spec_tree *tree);
    void (*begin)(void *user_data, int32_t seq); /* a sequence starts; may be NULL */
    void (*end)(void *user_data, int32_t seq);   /* a sequence ends; may be NULL */
    void (*close)(void *user_data);              /* the drafter is closed; may be NULL */
    void *user_data;
} spec_drafter_ops;
SPEC_API spec_status spec_drafter_from_ops(spec_drafter **out, const spec_drafter_ops *ops,
                                           const spec_drafter_params *params);
SPEC_API void spec_drafter_close(spec_drafter *drafter);

/* ------------------------------------------------------------------------------- sessions --- */

typedef struct spec_session spec_session; /* sequences in flight on one target; one thread at a time */

typedef struct spec_session_params {
    size_t struct_size;
    int32_t n_ctx;      /* tokens per sequence; 0 = the model's limit (for attention without one: 4096) */
    int32_t n_seq;      /* sequences at once; 0 = 1 */
    int32_t n_node;     /* nodes per sequence and step, root included, at most 256; 0 = the drafter's n_draft + 1.
                           A smaller one shortens the drafts */
    spec_verify_rule verify; /* what spec_step uses, and spec_verify with SPEC_VERIFY_AUTO */
    int32_t no_capture; /* 1 = walk the plan operation by operation (for debugging) */
    spec_abort_fn abort;
    void *abort_user_data;
} spec_session_params;
#define SPEC_SESSION_PARAMS_INIT { sizeof(spec_session_params), 0, 0, 0, SPEC_VERIFY_AUTO, 0, 0, 0 }

/* drafter may be NULL: plain decoding. A drafter serves one session at a time. All memory of the steady state
 * is taken here. Errors: E_INVALID (vocabularies differ: names the first id), E_NOMEM, E_UNSUPPORTED. */
SPEC_API spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                                       const spec_session_params *params);
SPEC_API void spec_session_close(spec_session *session);
/* From any thread: the step or prefill in progress ends after its current pass with E_ABORTED. Stays set until
 * spec_session_resume. */
SPEC_API void spec_session_cancel(spec_session *session);
SPEC_API void spec_session_resume(spec_session *session);

typedef struct spec_memory {
    size_t struct_size;
    uint64_t bytes_model;    /* weights of the target (and the drafter's, when it is a model) */
    uint64_t bytes_state;    /* recurrent states, convolution states, replay caches */
    uint64_t bytes_kv;       /* KV pages */
    uint64_t bytes_work;     /* activations, logits, laws, workspaces */
} spec_memory;
/* What a session with these parameters takes on the device, before it is opened. */
SPEC_API spec_status spec_session_predict(spec_memory *out, spec_model *target, spec_drafter *drafter,
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

/* Admits a sequence: prefills ids[0 .. n-2]; ids[n-1] becomes the pending token. n >= 1, and n < n_ctx.
 * On error nothing is left of it. Errors: E_FULL (does not fit: says by how much; or no free sequence),
 * E_INVALID (id out of range), E_ABORTED. *seq is a small number, reused after removal. */
SPEC_API spec_status spec_sequence_add(spec_session *session, int32_t *seq, const int32_t *ids, size_t n,
                                       const spec_sampling *sampling);
SPEC_API spec_status spec_sequence_remove(spec_session *session, int32_t seq);
/* All ids so far, prompt included; borrowed until the next call on the session. */
SPEC_API spec_status spec_sequence_ids(const spec_session *session, int32_t seq, const int32_t **ids,
                                       size_t *n);

/* --- the four calls of a step --- */

/* The drafter's proposal for each sequence in seqs [n]; trees[i] is borrowed until the next draft.
 * No state of the target changes. Near the end of the context the tree is clipped. */
SPEC_API spec_status spec_draft(spec_session *session, const int32_t *seqs, int32_t n,
                                const spec_tree **trees);
/* One packed pass over the trees (the caller's own or the drafter's), trees[i]->token[0] being the pending
 * token of seqs[i]. Laws stay on the device. May be called again with other trees: nothing has changed.
 * Errors: E_INVALID (not a tree, token out of range, more nodes than planned, depth over 63), E_FULL. */
SPEC_API spec_status spec_score(spec_session *session, const int32_t *seqs, int32_t n,
                                const spec_tree *const *trees);
/* Walks the tree of seq after score. path [tree->n]: accepted nodes, path[0] = 0, *n_path >= 1; *token: the
 * bonus (or correction) that follows the last of them. The walk ends at an end-of-text token, which then is *token:
 * nothing is fed after it. Changes nothing: may be repeated, and gives the same. */
SPEC_API spec_status spec_verify(spec_session *session, int32_t seq, spec_verify_rule rule, int32_t *path,
                                 int32_t *n_path, int32_t *token);
/* Advances seq along path (a path of the scored tree from its root); `token` becomes the pending one. */
SPEC_API spec_status spec_commit(spec_session *session, int32_t seq, const int32_t *path, int32_t n_path,
                                 int32_t token);
/* Forgets the score of seq: it is as before. */
SPEC_API spec_status spec_rollback(spec_session *session, int32_t seq);

/* After score: logits of a node, f32 [n_vocab] (of spec_model_info: padded rows included). A copy from the device: for tests and research. */
SPEC_API spec_status spec_node_logits(spec_session *session, int32_t seq, int32_t node, float *logits);
/* After score: log-probabilities, of the law before temperature and truncation, of the token that follows
 * `node`: of `token` in *logprob, and of the n likeliest in top_id, top_logprob [n] (n <= 64, may be 0). */
SPEC_API spec_status spec_node_logprobs(spec_session *session, int32_t seq, int32_t node, int32_t token,
                                        float *logprob, int32_t *top_id, float *top_logprob, int32_t n);

typedef struct spec_step_result {
    const int32_t *tokens; /* emitted in this step: accepted drafts, then the bonus; borrowed until the next step */
    int32_t n_tokens;
    int32_t n_drafted;     /* nodes proposed, without the root */
    int32_t n_accepted;
    spec_stop stop;        /* EOS or CONTEXT: the sequence will not go on */
} spec_step_result;
/* draft + score + verify + commit for the sequences in seqs [n]; results [n]. After E_DEVICE its sequences can only be
 * removed; after any other error they are as before. */
SPEC_API spec_status spec_step(spec_session *session, const int32_t *seqs, int32_t n,
                               spec_step_result *results);

/* ------------------------------------------------------------------------------- generate --- */

typedef struct spec_logprob {
    float logprob;        /* of the chosen token */
    int32_t n_top;
    int32_t top_id[20];
    float top_logprob[20];
} spec_logprob;

/* Receives text as it becomes final (bytes that could begin a stop string, or half a character, are withheld)
 * and the ids emitted since the last call. Return non-zero to stop. */
typedef int (*spec_text_fn)(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids);

typedef struct spec_generate_params {
    size_t struct_size;
    int32_t n_predict;          /* tokens at most; 0 = 128 */
    spec_sampling sampling;
    const char *const *stop;    /* [n_stop] stop strings */
    int32_t n_stop;
    int32_t n_logprobs;         /* -1 = none; N >= 0: of the chosen token and of the top N (N <= 20) */
    int32_t no_bos;             /* 1 = the prompt is encoded without special tokens */
    int32_t parse_special;      /* 1 = special tokens written in the prompt are recognised */
    int32_t ignore_eos;
    spec_text_fn on_text;
    void *user_data;
} spec_generate_params;
#define SPEC_GENERATE_PARAMS_INIT { sizeof(spec_generate_params), 0, { 0, 0, 0, 0, 0 }, 0, 0, -1, 0, 0, 0, 0, 0 }

typedef struct spec_result {
    char *text;                 /* n_text bytes and a zero; NULL when the model has no tokenizer */
    size_t n_text;
    int32_t *ids;               /* generated ids [n_ids] */
    size_t n_ids;
    spec_logprob *logprobs;     /* [n_ids] or NULL */
    spec_stop stop;
    int32_t n_prompt;
    int64_t n_step, n_drafted, n_accepted, n_emitted; /* emitted = accepted + one per step */
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

/* law [n_vocab] from logits [n_vocab], by `s` (the reference that backends are tested against). scratch [n_vocab]. */
SPEC_API spec_status spec_law(float *law, const float *logits, int32_t n_vocab, const spec_sampling *s,
                              int32_t *scratch);
/* The smallest i with law[i] > 0 and sum of law[0..i] > u * total. u in [0, 1). */
SPEC_API int32_t spec_draw(const float *law, int32_t n_vocab, float u);
/* 24-bit uniform of the counter-based generator (Philox4x32-10). Pure function. */
SPEC_API float spec_uniform(uint64_t seed, uint64_t position, uint32_t purpose, uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
