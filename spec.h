/* spec.h - speculative decoding for transformers, state-space models and hybrids of both.
 *
 * Whoever generates text needs this header alone. It is valid C99 and C++17.
 *
 * IN SHORT
 *
 *     spec_backend *be;  spec_model *target, *small;  spec_drafter *dr;  spec_session *s;
 *     spec_backend_open(&be, "cpu", NULL);                      a device
 *     spec_model_open(&target, be, "models/target", NULL);      weights on it, read-only, shared
 *     spec_model_open(&small, be, "models/drafter", NULL);
 *     spec_drafter_from_model(&dr, small, NULL);                anything that proposes tokens
 *     spec_session_open(&s, target, dr, NULL);                  sequences in flight, one thread
 *     spec_generate(s, &result, "Once upon a time", strlen(...), NULL);
 *
 * Many texts at once: spec_sequence_add for each, then spec_step for all of them.
 *
 * Two more headers stand behind this one. spec_trees.h: the trees and the four calls that a step is made of, drafters, models and
 * builders of your own, tools that write files, and the algorithms on plain arrays. spec_lab.h: options of experiments.
 *
 * CONVENTIONS
 *
 * Errors      Every call that can fail returns a spec_status; 0 is success. spec_last_error() is a
 *             sentence for the latest failure on the calling thread, meaningful only after one.
 *             "End of text" is a field of a result, never an error. NULL in place of what a call
 *             needs is E_INVALID; a call without a status then returns NULL or 0, or does nothing.
 * Arguments   The object first, then what the call writes, then what it reads.
 * Ownership   Who opens, closes. Close functions take NULL. What is written through `out` belongs to
 *             the caller; a call that opens leaves NULL there after an error. A pointer that is
 *             *returned* is borrowed, and lives as long as its parent. Strings, arrays and structs that
 *             you give are read during the call, or copied. What user_data points at must live as long
 *             as its callbacks may be called; that of an allocator, as long as what was opened with it.
 * Closing     Objects may be closed in any order. A backend is there until its models are closed,
 *             a model until its drafters and sessions are, a drafter until its session is. Only a
 *             tokenizer or a builder that you give in place of one by name must outlive who took it.
 * Threads     A backend, a model and a tokenizer may be used by any number of threads. A session (and
 *             what was opened for it: its drafter) is in one call at a time. A second call, from another
 *             thread or from a callback of the first, is E_STATE. spec_session_cancel alone may be
 *             called at any time.
 * Structs     Those that will grow begin with struct_size, which their SPEC_..._INIT sets, or you do.
 *             Zero in any other field is its default. NULL in place of `params` or `request` is every
 *             default. Fields are only ever appended. The other structs are frozen: no field will be
 *             added. One struct grows without a size, since the library alone makes it:
 *             spec_step_result.
 * Files       What the library writes gets its name when it is whole. Until then it is called
 *             NAME.PROCESS.NUMBER.part; if its writer is killed, the next write of that name removes it.
 *             An older file of the same kind is replaced. A file of another kind is not (E_INVALID). Of a
 *             link the file behind it is replaced. A device or a pipe is written itself.
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

/* A struct of parameters with every default, in C and C++: SPEC_STRUCT_INIT(spec_request), or SPEC_REQUEST_INIT. */
#ifdef __cplusplus
template <typename T> inline T spec_struct_of() /* no warning of fields that are not named */
{
    T t = T();
    t.struct_size = sizeof t;
    return t;
}
#define SPEC_STRUCT_INIT(type) spec_struct_of<type>()
#elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L /* C90, which has no names in initialisers */
#define SPEC_STRUCT_INIT(type) __extension__({ type spec_struct_; spec_struct_init(&spec_struct_, sizeof spec_struct_); spec_struct_; })
#else
#define SPEC_STRUCT_INIT(type) { .struct_size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ status, logging, memory --- */

typedef enum spec_status {
    SPEC_OK = 0,
    SPEC_E_INVALID = 10,     /* an argument is wrong; nothing was changed */
    SPEC_E_NOMEM = 20,       /* host or device memory; the call failed, every object is still usable, or can be closed */
    SPEC_E_IO = 30,          /* a file could not be read or written */
    SPEC_E_FORMAT = 40,      /* a file was read and is not what it should be */
    SPEC_E_UNSUPPORTED = 50, /* understood, but not something this build can do */
    SPEC_E_DEVICE = 60,      /* the device or its driver failed, or there is none */
    SPEC_E_STATE = 70,       /* the call does not fit the object's state (verify before score, say) */
    SPEC_E_FULL = 80,        /* it can never fit: context, nodes, an array of the caller's */
    SPEC_E_BUSY = 85,        /* no room now: try again when a sequence was removed (spec_session_get_info tells what is free) */
    SPEC_E_ABORTED = 90      /* a callback or spec_session_cancel stopped the work */
} spec_status;

/* The sentence for the latest failure on this thread; "" if there was none. Never NULL. Valid until the
 * next failure on this thread. What it quotes, a path say, keeps its bytes, so it may not be UTF-8. A long one is cut off. */
SPEC_API const char *spec_last_error(void);
/* The name of a status, "E_IO" say; never NULL. */
SPEC_API const char *spec_status_name(spec_status status);
/* Version at run time, as SPEC_VERSION. */
SPEC_API const char *spec_version(void);

/* For bindings: SPEC_STRUCT_INIT at run time. All is zero but struct_size. */
SPEC_API void spec_struct_init(void *params, size_t struct_size);
/* For bindings: this library's size of the struct of that name ("spec_request"); 0 = it knows none. A binding may use a size of its
 * own, smaller or larger. */
SPEC_API size_t spec_struct_size(const char *name);

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

/* Host memory. `alloc` returns memory aligned to at least `align` (a power of two), or NULL. `free` takes what alloc returned with the
 * same number of bytes, and NULL. Both may be called from several threads. The struct is copied by whatever takes one. */
typedef struct spec_allocator {
    void *(*alloc)(void *user_data, size_t bytes, size_t align);
    void (*free)(void *user_data, void *p, size_t bytes);
    void *user_data;
} spec_allocator; /* frozen */

/* ------------------------------------------------------------------------------- backends --- */

typedef struct spec_backend spec_backend;         /* a device */
typedef struct spec_backend_ops spec_backend_ops; /* its function table: see spec_backend.h */

typedef struct spec_backend_params {
    size_t struct_size;
    int32_t n_threads;               /* CPU: 0 = the CPUs that this process may use (affinity, cgroup) */
    const char *plugin_dir;          /* where to look for plugins first; NULL = beside the library */
    const spec_allocator *allocator; /* of the backend, its models and their sessions; NULL = malloc */
    spec_log_fn log;                 /* NULL = nobody is told */
    void *log_user_data;
    /* The application's own pool, or NULL: runs body(arg, i) for every i in [0, n) and returns when all are
     * done, using at most n_threads threads. */
    void (*parallel_for)(void *user_data, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
    void *parallel_user_data;
} spec_backend_params;
#define SPEC_BACKEND_PARAMS_INIT SPEC_STRUCT_INIT(spec_backend_params)

/* Opens a device by name:
 *
 *     "cpu"                    the best kernels that this machine has
 *     "cpu:portable"           the reference; also "cpu:avx2", "cpu:avx512", "cpu:avx512bf16", "cpu:amx"
 *     "cuda", "cuda:1"         a GPU
 *     a path                   a plugin, with ":arg" behind it if it takes one
 *
 * "cpu:amx" needs tiles. Opening asks Linux for them, for the whole process; where Linux refuses, "cpu" takes the next best.
 * Errors: E_INVALID (unknown name), E_DEVICE (no plugin, driver or device: the message names every place
 * where the plugin was looked for, and what the loader said), E_UNSUPPORTED (a plugin of another ABI), E_NOMEM. */
SPEC_API spec_status spec_backend_open(spec_backend **out, const char *name,
                                       const spec_backend_params *params);
SPEC_API void spec_backend_close(spec_backend *backend);
/* "cpu:avx512bf16", "cuda:0 NVIDIA H200": for people and reports. */
SPEC_API const char *spec_backend_name(const spec_backend *backend);

/* Calls `each` for every device that could be opened now (text: what it is), and once with name == NULL for every
 * kind that could not (text: why). The kinds are "cpu" and "cuda"; plugins of others are not looked for. Names and texts are borrowed for
 * the call. Errors: E_INVALID, E_NOMEM. */
SPEC_API spec_status spec_backend_list(const spec_backend_params *params,
                                       void (*each)(void *user_data, const char *name, const char *text),
                                       void *user_data);

/* ------------------------------------------------------------------------------ tokenizer --- */

typedef struct spec_tokenizer spec_tokenizer; /* immutable once open; any thread may use it */

enum {
    SPEC_TOKEN_ADD_SPECIAL = 1,   /* BOS / EOS as the model's own tokenizer adds them */
    SPEC_TOKEN_PARSE_SPECIAL = 2, /* "<|endoftext|>" in the text becomes that token: off for untrusted text */
    SPEC_TOKEN_SKIP_SPECIAL = 4,  /* decode: leave special tokens out */
    SPEC_TOKEN_CONTINUE = 8       /* encode: the text goes on behind another. What a tokenizer puts in front of a text is left
                                     out, and spaces at its ends stay */
};

/* Opens a tokenizer: a file tokenizer.json or tokenizer.model, a directory that holds one, or a GGUF file. A model has its own already
 * (spec_model_tokenizer). allocator: NULL = malloc. Errors: E_IO, E_FORMAT, E_UNSUPPORTED (names the component that is not known; a
 * build without tokenizers), E_NOMEM. */
SPEC_API spec_status spec_tokenizer_open(spec_tokenizer **out, const char *path,
                                         const spec_allocator *allocator);
SPEC_API void spec_tokenizer_close(spec_tokenizer *tokenizer);
typedef struct spec_tokenizer_info {
    size_t struct_size;
    int32_t n_vocab;   /* one more than the largest id */
    int32_t bos, eos;  /* as tokenizer_config.json and the post-processor, or the GGUF file, say; -1: there is none */
    size_t piece_max;  /* bytes of the longest piece */
    const char *chat_template; /* its text, in Jinja, which the library does not run; borrowed; NULL: there is none. From the GGUF
                                  file, or from chat_template.jinja or tokenizer_config.json beside the tokenizer's file */
} spec_tokenizer_info;
/* info->struct_size must be set. */
SPEC_API spec_status spec_tokenizer_get_info(const spec_tokenizer *tokenizer, spec_tokenizer_info *info);
/* The n bytes that a token stands for in running text, with no zero behind them; borrowed. NULL and *n = 0 for an id that is not used. */
SPEC_API const char *spec_tokenizer_piece(const spec_tokenizer *tokenizer, size_t *n, int32_t id);
SPEC_API int spec_tokenizer_is_special(const spec_tokenizer *tokenizer, int32_t id); /* 1 or 0 */

/* Text to ids. text is n_text bytes of UTF-8. ids [cap]; *n receives the count that is needed, also when cap is too small (then
 * E_FULL). To ask for the count, give NULL and cap 0. flags: SPEC_TOKEN_... joined by |.
 * Errors: E_FULL, E_INVALID (bytes that are not UTF-8: names the byte; unknown flags), E_NOMEM. */
SPEC_API spec_status spec_tokenizer_encode(const spec_tokenizer *tokenizer, int32_t *ids, size_t cap,
                                           size_t *n, const char *text, size_t n_text, uint32_t flags);
/* Ids to text [cap] bytes, with no zero at the end; *n as above. Bytes that are not UTF-8 become U+FFFD. An id that is not used has no
 * text. Errors: E_FULL, E_INVALID (an id below 0). */
SPEC_API spec_status spec_tokenizer_decode(const spec_tokenizer *tokenizer, char *text, size_t cap,
                                           size_t *n, const int32_t *ids, size_t n_ids, uint32_t flags);

/* --------------------------------------------------------------------------------- models --- */

typedef struct spec_model spec_model; /* weights on a backend; read-only, shared by threads */

typedef enum spec_dtype {
    SPEC_DTYPE_AUTO = 0, /* the type of the file's weights; BF16 for a GGUF file whose weights are mostly in blocks */
    SPEC_DTYPE_F32 = 1,
    SPEC_DTYPE_BF16 = 2,
    SPEC_DTYPE_F16 = 3,
    SPEC_DTYPE_I32 = 4, /* ids only */
    SPEC_DTYPE_Q8_0 = 5, /* weights only: 32 consecutive values of a row are int8 times one f16 scale, 8.5 bits each */
    /* weights only: blocks of 32 or, those called K, of 256 consecutive values of a row, as GGUF files have them (spec_blocks.h) */
    SPEC_DTYPE_Q4_0 = 6,
    SPEC_DTYPE_Q4_1 = 7,
    SPEC_DTYPE_Q5_0 = 8,
    SPEC_DTYPE_Q5_1 = 9,
    SPEC_DTYPE_Q4_K = 10,
    SPEC_DTYPE_Q5_K = 11,
    SPEC_DTYPE_Q6_K = 12
} spec_dtype;

/* Which layers of its target an EAGLE-3 head reads. Some programs write numbers of inputs of layers to its file, others of outputs, and
 * no file says which. So by default these numbers are not believed. */
typedef enum spec_head_layers {
    SPEC_HEAD_LAYERS_RULE = 0, /* what enters layers 2, n / 2 and n - 3 of the target's n. Two exceptions go by the file: it says that
                                  its ids are of inputs (layer_ids_are_inputs), or the head reads another number of rows */
    SPEC_HEAD_LAYERS_FILE = 1  /* what enters the layers of eagle_aux_hidden_state_layer_ids, where the file has it */
} spec_head_layers;

typedef struct spec_model_params {
    size_t struct_size;
    spec_dtype dtype;           /* activations, products' operands, KV cache; sums are always float32 */
    const char *tokenizer_path; /* NULL = the model's directory; a model without one works with ids only */
    spec_progress_fn progress;
    void *progress_user_data;
    /* How matrices are kept, embeddings and head too. Vectors and activations do not depend on it.
     * AUTO            In the file's type, or the compute type. Blocks of a GGUF file (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)
     *                 stay as they are, where the backend keeps such blocks. Elsewhere they are unpacked to the compute type.
     * a type of blocks  Matrices are quantised to it while they are loaded. One that the GGUF file has in this type stays as it is.
     *                 Where rows are no whole blocks of 256, Q4_K becomes Q5_0, Q5_K becomes Q5_1, and Q6_K becomes Q8_0. Where they
     *                 are no multiple of 32, the matrix is kept as with AUTO. E_UNSUPPORTED: the backend keeps no such blocks. */
    spec_dtype weights;
    spec_head_layers head_layers;
} spec_model_params;
#define SPEC_MODEL_PARAMS_INIT SPEC_STRUCT_INIT(spec_model_params)

/* Loads a model. `path` is
 *
 *     a Hugging Face directory   config.json, *.safetensors; optional: generation_config.json, tokenizer files
 *     a GGUF file                of several parts the first
 *
 * Every key of the config that changes the mathematics is honoured, or refused by name.
 * Errors: E_IO, E_FORMAT (names file, tensor, expected and found), E_UNSUPPORTED (a family, a key, blocks that the backend does not
 * keep), E_INVALID (params), E_NOMEM, E_DEVICE, E_ABORTED (by `progress`). */
SPEC_API spec_status spec_model_open(spec_model **out, spec_backend *backend, const char *path,
                                     const spec_model_params *params);
SPEC_API void spec_model_close(spec_model *model);

SPEC_API const spec_tokenizer *spec_model_tokenizer(const spec_model *model); /* NULL if there is none */

typedef struct spec_mixer_count {
    const char *name; /* "attention", "mamba1", "mamba2", "mlp", ...; static */
    int32_t n;        /* in how many layers */
} spec_mixer_count; /* frozen */
typedef struct spec_type_count {
    const char *name; /* as the file has it: "BF16", "Q4_K", ..., or "other"; static */
    int32_t n;        /* tensors */
    uint64_t bytes;   /* of these, in the file */
} spec_type_count; /* frozen */
typedef struct spec_model_info {
    size_t struct_size;
    const char *family;         /* "llama", "mamba2", ...; borrowed from the model */
    const char *path;           /* borrowed */
    const char *unknown_keys;   /* config keys that were neither used nor known, comma-separated; borrowed */
    spec_dtype dtype;           /* as resolved */
    int32_t n_vocab;            /* rows of the head; ids >= the tokenizer's n_vocab are padding */
    int32_t n_layer, n_mixer;
    const spec_mixer_count *mixers; /* [n_mixer] what its layers are made of, by name; borrowed */
    int32_t n_ctx;              /* the model's own limit in tokens; 0 = none (pure state-space models) */
    int32_t bos, n_eos;         /* bos -1 = none */
    const int32_t *eos;         /* [n_eos], borrowed */
    uint64_t n_parameters;
    uint64_t bytes_weights;     /* on the device */
    uint64_t bytes_state_seq;   /* recurrent state, recent tokens, convolution state, replay caches of one sequence */
    uint64_t bytes_kv_token;    /* KV cache per token of context */
    spec_dtype weights;         /* as asked for: AUTO or blocks */
    int32_t dim;                /* columns of a hidden row */
    int32_t n_type;
    const spec_type_count *types; /* [n_type] of the file's tensors, most bytes first; borrowed. An application's engine has none */
    const char *format;         /* "safetensors", "gguf"; NULL for an application's engine */
    const char *head;           /* NULL for a model by itself. A head on another model's hidden states (EAGLE) drafts, and cannot be
                                   a target: what it is and what it reads, in words; borrowed */
    spec_backend *backend;      /* the one that it is on; borrowed */
} spec_model_info;
/* info->struct_size must be set. n_node, 1 to 4096: bytes_state_seq is for so many nodes per sequence. Errors: E_INVALID, E_NOMEM. */
SPEC_API spec_status spec_model_get_info(const spec_model *model, spec_model_info *info, int32_t n_node);

/* -------------------------------------------------------------------- sampling, verification --- */

/* The distribution of the next token, in this order: temperature, top-k, top-p, min-p, softmax.
 * temperature 0 is greedy: the largest logit, the smallest id on ties. */
typedef struct spec_sampling {
    float temperature; /* 0 = greedy; finite */
    int32_t top_k;     /* 0 = off; ties: smallest ids survive */
    float top_p;       /* 0 or 1 = off: keep the shortest prefix of the sorted distribution whose mass is >= top_p */
    float min_p;       /* 0 = off: drop p < min_p * max p */
    uint64_t seed;     /* the same seed gives the same text, whatever the batch, with one exception. Other texts may change it (not its
                          distribution) where two things meet: drafts follow from more than the sequence (sequoia, dyspec-threshold,
                          trie, `adapt`), and a rule other than NAIVE verifies them */
} spec_sampling; /* frozen */

typedef enum spec_verify_rule {
    SPEC_VERIFY_AUTO = 0,   /* at temperature 0 GREEDY. Else for sampled trees TRAVERSAL (on a chain that is BLOCK), or of one level
                               MSS, for trees sampled i.i.d. MSS_REPEAT, NAIVE for all others */
    SPEC_VERIFY_GREEDY = 1, /* the only rule at temperature 0; E_INVALID at any other */
    SPEC_VERIFY_NAIVE = 2,  /* draw from the target once; follow the child that equals the draw. For every tree */
    SPEC_VERIFY_CHAIN = 3,  /* chain speculative sampling: accept y with min(1, p/q), else draw from the residual; for
                               sampled trees in which no node has two children (algorithms.md 3.1) */
    SPEC_VERIFY_MSS = 4,    /* multi-step speculative sampling without replacement (3.2), for sampled trees */
    SPEC_VERIFY_MSS_REPEAT = 5, /* multi-step speculative sampling with replacement (3.2), for trees sampled i.i.d. and
                               for sampled chains */
    SPEC_VERIFY_BLOCK = 6,  /* block verification (3.9; arXiv 2403.10444), for sampled trees in which no node has two
                               children: accepts never less than CHAIN, and on average more */
    SPEC_VERIFY_TRAVERSAL = 7 /* traversal verification (3.10; arXiv 2505.12398), for sampled trees: on average more than MSS,
                               and never less where no later sibling is deeper; draw for draw BLOCK on a chain */
} spec_verify_rule;

/* ------------------------------------------------------------------------------- drafters --- */

typedef struct spec_drafter spec_drafter; /* anything that proposes; one of your own: spec_trees.h */
typedef struct spec_builder spec_builder; /* how trees are grown: spec_trees.h */

/* How a model drafts for a target with another vocabulary (algorithms.md 18). Both need tokenizers then. */
typedef enum spec_draft_vocab {
    SPEC_DRAFT_VOCAB_AUTO = 0, /* where both have the same vocabulary, by its ids. Else INTERSECTION if that covers at least 60 % of
                                  the drafter's probability on a probe text, or TEXT if not; the log says which and why */
    SPEC_DRAFT_VOCAB_INTERSECTION = 1, /* by tokens that stand for the same bytes in both. Draft distributions are restricted to them
                                  and renormalised before anything is drawn. Goes with every tree and rule */
    SPEC_DRAFT_VOCAB_TEXT = 2  /* by text: what the drafter writes, encoded by the target's tokenizer. Trees are deterministic */
} spec_draft_vocab;

/* How a Lyanna head has what it knows of the token in front (algorithms.md 17.3). The same drafts, but for rounding. */
typedef enum spec_token_info {
    SPEC_TOKEN_INFO_FACTORED = 0, /* two factors; rank numbers per id, and a product over all ids for each level of a draft */
    SPEC_TOKEN_INFO_COLLAPSED = 1 /* one table, made when the session opens; hot tokens squared numbers of the compute type, of which a
                                     drafted node reads one row */
} spec_token_info;

typedef struct spec_drafter_params {
    size_t struct_size;
    int32_t n_draft;    /* length of chains where `tree` is NULL; 0 = 4 */
    float temperature;  /* of the draft distribution when the target samples; 0 = the target's. The target's top-k, top-p and
                           min-p shape the draft distribution in any case: mass where the target has none is wasted */
    const char *tree;   /* which trees to build: "KIND[:ARGS]" as for spec_builder_open. NULL = "chain:n_draft". Several may be
                           given, separated by ';': the session chooses among them by spec_session_params.adapt. Without `adapt`
                           it takes the first */
    spec_builder *builder; /* in place of `tree`: one builder of the caller's, which must outlive the drafter */
    spec_draft_vocab vocab; /* of a model: where its vocabulary is not the target's */
    int32_t n_resample; /* of a head whose rows are a chain (Lyanna); 0 = off. A rejection leaves rows unused. They give a tree once
                            more, of which so many of the best nodes join the next draft. Not with sampled trees. Saved sequences
                            have none of these rows */
    int32_t resample_left; /* n_resample and resample_across hold only where more than so many rows are left */
    int32_t resample_across; /* 1: where several sequences draft at once, that tree takes the place of the next draft, for up to half of
                            them. It has all the builder's nodes, and may be sampled. Such a sequence runs the head in its next step,
                            not in this one. Needs n_resample >= 1 */
    spec_token_info token_info; /* of a Lyanna head */
} spec_drafter_params;
#define SPEC_DRAFTER_PARAMS_INIT SPEC_STRUCT_INIT(spec_drafter_params)

/* Any model as a drafter: the library grows trees from its distributions. The session checks when it opens (E_INVALID) that
 *   - the model is on the target's backend;
 *   - its vocabulary agrees with the target's id by id, as far as both go; or both have tokenizers, and `vocab` says how they meet;
 *   - a head on hidden states (spec_model_info.head) was made for this target, and has its dtype.
 * Errors: E_INVALID (parameters; a tree that is none: as spec_builder_open), E_IO and E_FORMAT (static:@FILE), E_NOMEM. */
SPEC_API spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model,
                                             const spec_drafter_params *params);

/* A drafter that needs no model: a kind and its numbers. Kinds:
 *
 *     ngram:N,M,L                 Prompt lookup: the last N tokens, or fewer down to L, are found where they stood before. The up to M
 *                                 tokens that followed are drafted. Default 3,10; L: 1, in front of another drafter 2
 *     trie:NODES,DEPTH,MEGABYTES  A tree of what followed the last tokens most often: in the sequence's prompts, and in all that this
 *                                 drafter's sessions have emitted. Counts up to DEPTH tokens, within MEGABYTES. Default 16,8,256
 *     png:FILE,D,K                What most often followed in the text and in a corpus: D drafts of K tokens (2; what the table has).
 *                                 FILE: a corpus table (spec ngram build; spec_corpus_open of spec_trees.h)
 *
 * It works with every target. allocator: NULL = malloc. Errors: E_INVALID (no such kind, numbers out of its range), E_IO and
 * E_FORMAT (FILE), E_NOMEM. A table of another vocabulary is refused by the session (E_INVALID). */
SPEC_API spec_status spec_drafter_open(spec_drafter **out, const char *text, const spec_allocator *allocator);

SPEC_API void spec_drafter_close(spec_drafter *drafter);

/* ------------------------------------------------------------------------------- sessions --- */

typedef struct spec_session spec_session; /* sequences in flight on one target; one thread at a time */

/* Choice of the tree at run time (algorithms.md 13, 14). Not to speculate is always one of the choices. Measured times decide which tree
 * is verified. So a seed may give another sampled text in another run; its distribution is the same.
 * A round is what is measured. It begins with a draft, and ends when all its sequences have committed. What it emitted and the time that it
 * took update the choice. Between the four calls of spec_trees.h that is the caller's own time, too. */
typedef enum spec_adapt {
    SPEC_ADAPT_OFF = 0,
    SPEC_ADAPT_COST = 1, /* most expected tokens per second. Tokens: what was accepted of each tree so far, and more for trees
                            that are little known, so that they are tried. Seconds: step costs of the profile. If this session
                            measured the profile, they are corrected by what the tree's rounds took */
    SPEC_ADAPT_UCB = 2   /* UCB1 over the trees, by measured tokens over measured time */
} spec_adapt;

/* How several drafters of a session work together. */
typedef enum spec_draft_combine {
    SPEC_DRAFT_FIRST = 0, /* in their order: the first that proposes for a sequence */
    SPEC_DRAFT_UNION = 1, /* the union of what all propose, which is SPEC_TREE_DETERMINISTIC: naive or greedy verification */
    SPEC_DRAFT_CHOOSE = 2 /* `adapt` chooses (without it the first): each drafter with each of its trees; all together as FIRST; chains
                             of drafters from text in front of another. By COST also matches of 1, 2 or 3 tokens of those from text */
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
} spec_tap; /* frozen */

typedef struct spec_session_params {
    size_t struct_size;
    int32_t n_ctx;      /* tokens per sequence; 0 = the model's limit (for attention without one: 4096) */
    int32_t n_seq;      /* sequences at once; 0 = 1 */
    int32_t n_node;     /* nodes per sequence and step, root included, at most 256; 0 = what the drafter's largest tree
                           needs. A smaller one cuts trees short */
    spec_verify_rule verify; /* what spec_step uses, and spec_verify with SPEC_VERIFY_AUTO */
    spec_abort_fn abort;     /* or NULL */
    void *abort_user_data;
    spec_adapt adapt;   /* how spec_draft chooses among the drafter's trees */
    const char *profile; /* step costs: a file of spec_cost_save; NULL = measured: with SPEC_ADAPT_COST when the session opens, else by
                            spec_session_profile. Of costs of another machine, number of threads, model or type a warning is logged */
    const spec_lab *lab; /* NULL = none of them */
    const spec_tap *taps; /* [n_tap] of the target, copied; counted in spec_memory.bytes_work. None: nothing is kept */
    int32_t n_tap;
    spec_drafter *const *drafters; /* [n_drafter] in place of spec_session_open's `drafter`: several, which `combine` joins */
    int32_t n_drafter;
    spec_draft_combine combine;
    int32_t n_prompt_step; /* 0 = spec_sequence_add and _append consume the whole prompt. Else a step consumes about so many prompt
                              tokens, so that other sequences do not wait for a long prompt */
} spec_session_params;
#define SPEC_SESSION_PARAMS_INIT SPEC_STRUCT_INIT(spec_session_params)

/* drafter may be NULL: plain decoding. All memory of the steady state is taken here. With SPEC_ADAPT_COST and no profile, step costs are
 * measured here, for a fraction of a second or a few seconds.
 * Errors: E_INVALID (parameters; a drafter that does not fit the target: says why), E_STATE (the drafter serves another session),
 * E_UNSUPPORTED, E_IO and E_FORMAT (the profile), E_NOMEM, E_DEVICE. */
SPEC_API spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                                       const spec_session_params *params);
SPEC_API void spec_session_close(spec_session *session);
/* From any thread. The call in progress (a prompt, a draft, a score, a step) ends after its current pass, with E_ABORTED. If none is in
 * progress, or that pass was its last, the next such call ends so. Calls after that are not concerned. */
SPEC_API void spec_session_cancel(spec_session *session);

typedef struct spec_session_info {
    size_t struct_size;
    int32_t n_seq, n_seq_free;
    int32_t n_ctx;  /* as resolved; 0 = no limit */
    int32_t n_node; /* as resolved */
    const spec_model *target; /* borrowed */
} spec_session_info;
/* info->struct_size must be set. */
SPEC_API spec_status spec_session_get_info(const spec_session *session, spec_session_info *info);

typedef struct spec_memory {
    size_t struct_size;
    uint64_t bytes_model;    /* weights of the target (and the drafter's, when it is a model) */
    uint64_t bytes_state;    /* recurrent states, recent tokens behind them (8.6), convolution states, replay caches */
    uint64_t bytes_kv;       /* KV pages */
    uint64_t bytes_work;     /* activations, logits, distributions, workspaces */
} spec_memory;
/* What a session with these parameters will take on the device, in bytes. Nothing is taken yet. out->struct_size must be set. Errors:
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

/* --- requests: what is wanted of a sequence --- */

typedef struct spec_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY = never */
} spec_logit_bias; /* frozen */

/* Which tokens may follow ids [n] (prompt, what was emitted, and a draft's path)? allowed [(n_vocab + 31) / 32]: bit t % 32 of
 * allowed[t / 32] stands for token t. All are set when it is called: clear those of tokens that must not come. It is called on the
 * session's thread, for each node of a tree that can still be reached. Its answer must follow from ids alone. It must leave a token that
 * no bias forbids (else E_INVALID). Non-zero stops the step (E_ABORTED). */
typedef int (*spec_mask_fn)(void *user_data, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n);

/* Receives text as it becomes final, n_text bytes with no zero at the end, and the ids emitted since the last call. Both are borrowed for
 * the call. Bytes that could begin a stop string, or half a character, are withheld. Non-zero stops (E_ABORTED). It is called between two
 * steps: it may call the session, to fork the sequence, say. It must not step, append to or remove the sequence, nor close the session. */
typedef int (*spec_text_fn)(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids);

/* What is wanted of a sequence. Zero in a field is its default. Everything is copied, except user data.
 *
 * Penalties, biases and mask change the logits of each node of a tree by that node's own path, before sampling. So speculation gives
 * what plain decoding gives. Log-probabilities are those of the model, without such changes. The first request of a session that
 * changes logits takes memory on the device, as much as the logits have (E_NOMEM). The host then copies a row per node. */
typedef struct spec_request {
    size_t struct_size;
    spec_sampling sampling;
    /* When it ends. */
    int32_t n_predict;       /* tokens at most, from now on; -1 = no limit; 0 = no limit, but 128 for spec_generate */
    const char *const *stop; /* [n_stop] strings in UTF-8; the text ends before them. A special token's text stands for that token.
                                An empty one never matches */
    int32_t n_stop;
    const int32_t *end_ids;  /* [n_end_id] that end the text as the model's own end tokens do */
    int32_t n_end_id;
    int32_t ignore_eos;      /* 1: the model's own end tokens do not end it; end_ids do */
    /* What is told. */
    int32_t keep_special;    /* 1: special tokens are written in the text, but for the one that ends it */
    int32_t logprobs;        /* 1: log-probabilities of the emitted tokens, */
    int32_t n_top;           /* and of so many likeliest ones at each place, at most 20; needs logprobs */
    /* Which tokens come. */
    float repeat_penalty;    /* of tokens that stand in prompt or output: a positive logit is divided by it, another is multiplied; 0 or
                                1 = off (CTRL, arXiv 1909.05858, 4.1) */
    float presence_penalty;  /* subtracted once from the logit of a token that was emitted since the latest prompt */
    float frequency_penalty; /* subtracted from it for each time that it was emitted since then */
    int32_t n_penalty;       /* penalties look at so many last tokens; 0 = all */
    const spec_logit_bias *bias; /* [n_bias]; those of one token add up. Some token must be left */
    int32_t n_bias;
    spec_mask_fn mask;       /* or NULL */
    void *mask_user_data;
    /* Of spec_generate alone. */
    spec_text_fn on_text;    /* or NULL */
    void *text_user_data;
    /* Of prompts that are text. */
    int32_t no_bos;          /* 1: the prompt is encoded without special tokens */
    int32_t parse_special;   /* 1: special tokens written in the prompt are recognised: off for untrusted text */
} spec_request;
#define SPEC_REQUEST_INIT SPEC_STRUCT_INIT(spec_request)

/* The defaults that a model's generation_config.json gives, to be changed and passed on:
 *
 *     sampling         greedy unless do_sample is true. A filter that the file does not name is off
 *     repeat_penalty   repetition_penalty
 *     n_predict        max_new_tokens
 *     stop             stop_strings
 *     bias             -infinity for suppress_tokens, and for bad_words_ids of one token each
 *
 * All other fields are zero. Without such a file all are. The model's own end tokens need no field. out->struct_size must be set.
 * *unread (`unread` may be NULL): the keys that change which tokens come and that this library does not support
 * ("no_repeat_ngram_size, num_beams"), "" if there are none. It and the arrays are borrowed from the model.
 * Errors: E_FORMAT (a value of that file is wrong: names the key; out is unchanged). */
SPEC_API spec_status spec_request_from_model(spec_request *out, const spec_model *model, const char **unread);

/* --- sequences --- */

/* Admits a sequence: consumes ids[0 .. n-2]; ids[n-1] becomes the pending token. n >= 1, and n < n_ctx. request NULL: greedy, until
 * an end token. *seq is 0 to n_seq - 1, reused after removal. With n_prompt_step of the session nothing is consumed now: the steps that
 * follow do it. On error nothing is left of the sequence.
 * Errors: E_FULL (it can never fit: says by how much), E_BUSY (no free sequence now), E_INVALID (an id or a setting out of its range,
 * named), E_UNSUPPORTED (stop strings without a tokenizer), E_NOMEM, E_DEVICE, E_ABORTED. */
SPEC_API spec_status spec_sequence_add(spec_session *session, int32_t *seq, const int32_t *ids, size_t n,
                                       const spec_request *request);
/* Appends ids [n], n >= 1, to a living sequence, also behind an end token: the next turn of a chat. The pending token and
 * ids[0 .. n-2] are consumed, ids[n-1] becomes pending. request NULL: as before, n_predict counted anew. Text that was held back is
 * given up.
 * Errors: as above. The sequence is then as before, except that a score of it is forgotten. Two cases differ. After E_ABORTED the ids
 * are there, and the next step consumes what is left of them. After E_DEVICE, and where an engine of the application's failed to consume
 * them, the sequence can only be removed (E_STATE). */
SPEC_API spec_status spec_sequence_append(spec_session *session, int32_t seq, const int32_t *ids, size_t n,
                                          const spec_request *request);
/* The same with n_text bytes of text, which the target's tokenizer encodes by request->no_bos and request->parse_special. An empty text
 * that is added begins with BOS. Text without a token that is appended changes the request alone. Errors: as above; E_UNSUPPORTED (the
 * target has no tokenizer), E_INVALID (text that is not UTF-8, no BOS to begin with). */
SPEC_API spec_status spec_sequence_add_text(spec_session *session, int32_t *seq, const char *text, size_t n_text,
                                            const spec_request *request);
SPEC_API spec_status spec_sequence_append_text(spec_session *session, int32_t seq, const char *text, size_t n_text,
                                               const spec_request *request);
/* Another request from the next step on; NULL = greedy, until an end token. A score of seq, which is of the former request, is
 * forgotten. Errors: E_INVALID, E_UNSUPPORTED, E_NOMEM; the former request then still holds. */
SPEC_API spec_status spec_sequence_set_request(spec_session *session, int32_t seq, const spec_request *request);
/* Ends a sequence, in whatever state it is. Its number may be given to another one. Errors: E_INVALID (no such sequence). */
SPEC_API spec_status spec_sequence_remove(spec_session *session, int32_t seq);
/* All ids [n] so far: the prompt, what was emitted, the pending token last. Borrowed until the next call on the session. Errors: E_INVALID
 * (no such sequence). */
SPEC_API spec_status spec_sequence_ids(const spec_session *session, const int32_t **ids, size_t *n, int32_t seq);

/* Takes, or gives, n bytes of a saved sequence. Returns 0, or non-zero if it could not take or give all of them. */
typedef int (*spec_write_fn)(void *user_data, const void *data, size_t n);
typedef int (*spec_read_fn)(void *user_data, void *data, size_t n);

/* Admits a copy of seq: ids, state, request, held-back text. Its draws are those of seq, too: give it a seed of its own. What seq has
 * accepted and not yet applied is applied first. A prompt that steps have yet to consume is consumed. Errors: E_INVALID (no such
 * sequence), E_BUSY (no free sequence), E_STATE (an earlier pass failed), E_NOMEM, E_DEVICE, E_ABORTED; E_UNSUPPORTED (an engine of
 * the application's that cannot). */
SPEC_API spec_status spec_sequence_fork(spec_session *session, int32_t *copy, int32_t seq);
/* Another seed from the next draw on. Errors: E_INVALID. */
SPEC_API spec_status spec_sequence_seed(spec_session *session, int32_t seq, uint64_t seed);
/* Saves all that seq needs to go on, held-back text too, as bytes that `write` receives in order. Of its request these are saved:
 * sampling, ignore_eos and what is left of n_predict. First what seq has accepted is applied, and a prompt that steps have yet to consume
 * is consumed. A score of seq is forgotten. Errors: E_INVALID, E_IO (`write` returned non-zero), E_NOMEM, E_STATE (an earlier pass
 * failed), E_DEVICE, E_ABORTED; E_UNSUPPORTED (an engine of the application's that cannot). */
SPEC_API spec_status spec_sequence_save(spec_session *session, int32_t seq, spec_write_fn write, void *user_data);
/* Admits what was saved. On the same backend and device it goes on bit for bit as the saved one would have.
 *
 * Request   What was not saved of it is for spec_sequence_set_request. Call that before the next step, which tells the text that a stop
 *           string has held back.
 * Drafters  Their states were saved, too. A drafter of this session that finds no state of its own consumes the ids anew.
 * Errors    Those of spec_sequence_add; E_UNSUPPORTED. E_FORMAT says what differs: another model, compute type or version; bytes cut
 *           short (`read` returned non-zero) or changed; for a session with SPEC_SCAN_RECURRENT, a state of SPEC_SCAN_CHUNKED that lags.
 *           The ids of what was refused can be admitted anew (spec_sequence_add). */
SPEC_API spec_status spec_sequence_restore(spec_session *session, int32_t *seq, spec_read_fn read, void *user_data);

/* --- steps --- */

typedef struct spec_logprob {
    float logprob;        /* of the chosen token, natural logarithm, without the changes of a request */
    int32_t n_top;          /* as the request says */
    int32_t top_id[20];     /* [n_top] the likeliest tokens, */
    float top_logprob[20];  /* and theirs */
} spec_logprob; /* frozen */

/* What a step has come to for a sequence. Borrowed until the session's next step, or the sequence's end. */
typedef struct spec_step_result {
    const int32_t *tokens; /* [n_tokens] emitted: accepted drafts, then the bonus; none while the prompt is being consumed */
    int32_t n_tokens;
    const char *text;      /* [n_text] that has become final; NULL without a tokenizer */
    size_t n_text;
    const spec_logprob *logprobs; /* [n_tokens], or NULL unless asked for */
    spec_stop stop;        /* not NONE: the text has ended. The sequence is still there, to append to or to remove */
    int32_t n_prompt_left; /* prompt tokens that steps have yet to consume */
    int32_t n_drafted;     /* nodes proposed, without the root */
    int32_t n_accepted;    /* of them */
    int32_t drafter;       /* which of the session's drafters proposed them, -1 = none or several */
    int32_t tree;          /* which way to draft, -1 = did not draft. Numbered: the trees of the first drafter, those of the second, ...,
                              then ways of several drafters */
    int32_t branched;      /* 1: a node was accepted that is not the first child of its parent */
} spec_step_result; /* grows */
/* One round for the sequences in seqs [n], 1 <= n <= n_seq, each once: draft, score, verify, commit. results [n] receives a pointer for
 * each. A sequence whose text has ended goes on if it is given again.
 *
 * Errors    E_INVALID (no such sequence, one given twice; what a mask or an application's drafter did wrong), E_STATE (an earlier pass
 *           failed), E_FULL (one that has ended by SPEC_STOP_CONTEXT is given again), E_NOMEM, E_DEVICE, E_ABORTED, and what
 *           callbacks return. Where the context becomes full, that is no error: `stop` says it.
 * Then      After E_DEVICE the sequences of the call can only be removed. After any other error they are as before, and results are
 *           NULL. Two exceptions: E_ABORTED while a prompt is consumed leaves what was consumed until then. Where an application's
 *           drafter fails in `hidden` (spec_trees.h), that sequence can only be removed; if that was behind the commit, all have
 *           advanced, and results tell of them. */
SPEC_API spec_status spec_step(spec_session *session, const spec_step_result **results, const int32_t *seqs, int32_t n);

/* ------------------------------------------------------------------------------- generate --- */

typedef struct spec_result {
    size_t struct_size;
    const spec_allocator *allocator_; /* internal */
    char *text;                 /* n_text bytes and a zero; NULL when the model has no tokenizer */
    size_t n_text;
    int32_t *ids;               /* generated ids [n_ids] */
    size_t n_ids;
    spec_logprob *logprobs;     /* [n_ids] or NULL */
    spec_stop stop;
    int32_t n_prompt;           /* tokens of the prompt */
    int64_t n_step, n_drafted, n_accepted, n_emitted; /* emitted: what was accepted, and one more per step */
    int64_t n_speculated;       /* steps that drafted at all */
    int64_t n_branched;         /* steps that accepted a node which is not the first child of its parent */
    int64_t accepted[64];       /* [k]: steps that accepted k drafts */
    double prefill_ms, decode_ms; /* of the clock; prefill: until the prompt is consumed */
} spec_result;
#define SPEC_RESULT_INIT SPEC_STRUCT_INIT(spec_result)

/* Text for one prompt: admits a sequence, steps until it ends, removes it. request NULL: greedy, at most 128 tokens. An empty prompt
 * starts from BOS where the model has one.
 * result->struct_size must be set. What an earlier call left in it is not freed. When the call fails or is cancelled, what was generated
 * until then is in *result (for E_ABORTED stop is SPEC_STOP_ABORTED). Free it with spec_result_free, before the backend is closed.
 * Errors: those of spec_sequence_add_text and spec_step. */
SPEC_API spec_status spec_generate(spec_session *session, spec_result *result, const char *prompt, size_t n_prompt,
                                   const spec_request *request);
/* The same from ids; works without a tokenizer. */
SPEC_API spec_status spec_generate_ids(spec_session *session, spec_result *result, const int32_t *ids, size_t n,
                                       const spec_request *request);
/* The same for a living sequence, which stays: the prompt is appended to it (no BOS is added; n_prompt 0: it goes on as it is).
 * request NULL: as before; with a prompt n_predict is counted anew. */
SPEC_API spec_status spec_generate_more(spec_session *session, spec_result *result, int32_t seq, const char *prompt, size_t n_prompt,
                                        const spec_request *request);
SPEC_API void spec_result_free(spec_result *result); /* and it can be used again */

#ifdef __cplusplus
}
#endif
#endif
