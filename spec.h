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
 *     spec_generate(s, &result, "Once upon a time", strlen(...), &params);
 *
 * Many texts at once: spec_sequence_add, and spec_step for all of them. What a step is made of (trees, and four calls that draft,
 * score, verify and commit), drafters and builders of your own, and the algorithms on plain arrays: spec_trees.h. Options of
 * experiments: spec_lab.h.
 *
 * CONVENTIONS
 *
 * Errors      Every call that can fail returns a spec_status; 0 is success. spec_last_error() is a
 *             sentence for the latest failure on the calling thread, meaningful only after one.
 *             "End of text" is a field of a result, never an error. NULL for what a call cannot do
 *             without is E_INVALID; a call that returns no status then gives nothing.
 * Arguments   The object first, then what the call writes, then what it reads.
 * Ownership   Who opens, closes. Close functions take NULL. What is written through `out` belongs to
 *             the caller; a pointer that is *returned* is borrowed and lives as long as its parent.
 *             Objects may be closed in any order: a backend is there until its models are closed,
 *             a model until its drafters and sessions are, a drafter until its session is.
 * Threads     A backend and a model may be used by any number of threads. A session (and what was
 *             opened for it: its drafter) is in one call at a time: a second one, from another
 *             thread or from a callback of the first, is E_STATE. spec_session_cancel alone may be
 *             called at any time.
 * Structs     Those that will grow begin with struct_size (set by their SPEC_..._INIT); zero in any
 *             other field is its default, and fields are only ever appended. The others are frozen: no
 *             field will be added. What the library alone makes and hands out by pointer needs no size:
 *             spec_step_result grows.
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
    SPEC_E_NOMEM = 20,       /* host or device memory; the call failed, every object is still usable */
    SPEC_E_IO = 30,          /* a file could not be read */
    SPEC_E_FORMAT = 40,      /* a file was read and is not what it should be */
    SPEC_E_UNSUPPORTED = 50, /* understood, but not something this build can do */
    SPEC_E_DEVICE = 60,      /* the device or its driver failed, or there is none */
    SPEC_E_STATE = 70,       /* the call does not fit the object's state (verify before score, say) */
    SPEC_E_FULL = 80,        /* it can never fit: context, nodes, an array of the caller's */
    SPEC_E_BUSY = 85,        /* no room now: try again when a sequence was removed (spec_session_get_info tells what is free) */
    SPEC_E_ABORTED = 90      /* a callback or spec_session_cancel stopped the work */
} spec_status;

/* The sentence for the latest failure on this thread; "" if there was none. Never NULL. Valid until the
 * next failure on this thread. */
SPEC_API const char *spec_last_error(void);
/* The name of a status, "E_IO" say. */
SPEC_API const char *spec_status_name(spec_status status);
/* Version at run time, as SPEC_VERSION. */
SPEC_API const char *spec_version(void);

/* SPEC_STRUCT_INIT at run time, for bindings: all zero but struct_size. And the size by which this library knows a struct of that
 * name ("spec_request"); 0 = it knows none. A binding may use a size of its own, smaller or larger. */
SPEC_API void spec_struct_init(void *params, size_t struct_size);
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

/* Host memory. `alloc` returns memory aligned to at least `align` (a power of two) or NULL; `free` takes what
 * alloc returned, and NULL. Both may be called from several threads. */
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
    const spec_allocator *allocator; /* copied; NULL = malloc */
    spec_log_fn log;
    void *log_user_data;
    /* The application's own pool, or NULL: runs body(arg, i) for every i in [0, n) and returns when all are
     * done, using at most n_threads threads. */
    void (*parallel_for)(void *user_data, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
    void *parallel_user_data;
} spec_backend_params;
#define SPEC_BACKEND_PARAMS_INIT SPEC_STRUCT_INIT(spec_backend_params)

/* Opens a device by name: "cpu" (the best kernels of this machine), "cpu:portable" (the reference),
 * "cuda", "cuda:1", or the path of a plugin, with ":arg" after it if the plugin takes one.
 * Errors: E_INVALID (unknown name), E_DEVICE (no plugin, driver or device: the message names every place
 * where the plugin was looked for and what the loader said), E_UNSUPPORTED (a plugin of another ABI). */
SPEC_API spec_status spec_backend_open(spec_backend **out, const char *name,
                                       const spec_backend_params *params);
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
    SPEC_TOKEN_SKIP_SPECIAL = 4,  /* decode: leave special tokens out */
    SPEC_TOKEN_CONTINUE = 8       /* encode: the text goes on behind another. Nothing is put in front of it that a tokenizer puts in
                                     front of a text, and spaces at its ends stay */
};

/* Opens tokenizer.json, tokenizer.model or the tokenizer of a GGUF file: `path` is such a file, or a directory that holds one of the
 * first two.
 * allocator may be NULL. Errors: E_IO, E_FORMAT, E_UNSUPPORTED (names the component that is not known). */
SPEC_API spec_status spec_tokenizer_open(spec_tokenizer **out, const char *path,
                                         const spec_allocator *allocator);
SPEC_API void spec_tokenizer_close(spec_tokenizer *tokenizer);
typedef struct spec_tokenizer_info {
    size_t struct_size;
    int32_t n_vocab;   /* one more than the largest id */
    int32_t bos, eos;  /* as tokenizer_config.json and the post-processor, or the GGUF file, say; -1: there is none */
    size_t piece_max;  /* bytes of the longest piece */
    const char *chat_template; /* its text, in Jinja, which the library does not run: of a GGUF file, of chat_template.jinja beside the
                                  tokenizer's file, or of tokenizer_config.json there. Borrowed; NULL: there is none */
} spec_tokenizer_info;
/* info->struct_size must be set. */
SPEC_API spec_status spec_tokenizer_get_info(const spec_tokenizer *tokenizer, spec_tokenizer_info *info);
/* The bytes that a token stands for in running text; borrowed; NULL and *n = 0 for an id that is not used. */
SPEC_API const char *spec_tokenizer_piece(const spec_tokenizer *tokenizer, size_t *n, int32_t id);
SPEC_API int spec_tokenizer_is_special(const spec_tokenizer *tokenizer, int32_t id);

/* ids [cap]; *n receives the count that is needed, also when cap is too small (then E_FULL; ids may be NULL
 * with cap 0 to ask). text is n_text bytes of UTF-8; invalid UTF-8 is E_INVALID and names the byte. */
SPEC_API spec_status spec_tokenizer_encode(const spec_tokenizer *tokenizer, int32_t *ids, size_t cap,
                                           size_t *n, const char *text, size_t n_text, uint32_t flags);
/* text [cap] bytes, not terminated; *n as above. Sequences that are not UTF-8 become U+FFFD. */
SPEC_API spec_status spec_tokenizer_decode(const spec_tokenizer *tokenizer, char *text, size_t cap,
                                           size_t *n, const int32_t *ids, size_t n_ids, uint32_t flags);

/* --------------------------------------------------------------------------------- models --- */

typedef struct spec_model spec_model; /* weights on a backend; read-only, shared by threads */

typedef enum spec_dtype {
    SPEC_DTYPE_AUTO = 0, /* the type of the file's weights; of a GGUF file with most of them in blocks BF16 */
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
SPEC_API const char *spec_dtype_name(spec_dtype dtype); /* "f32", "bf16", ... */

typedef struct spec_model_params {
    size_t struct_size;
    spec_dtype dtype;           /* activations, products' operands, KV cache; sums are always float32 */
    const char *tokenizer_path; /* NULL = the model's directory; a model without one works with ids only */
    spec_progress_fn progress;
    void *progress_user_data;
    /* AUTO: matrices are kept in the file's or the compute type, those of a GGUF file in the blocks of the file where the backend has
     * these (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K), else unpacked to the compute type.
     * Blocks: those with rows of a multiple of 32 are quantised while they are loaded (the same blocks of a GGUF file stay what they
     * are), embeddings and head too; where rows are no whole blocks of 256, Q4_K becomes Q5_0, Q5_K Q5_1 and Q6_K Q8_0. The
     * others, vectors and activations are as ever. E_UNSUPPORTED for a backend that does not keep such blocks. */
    spec_dtype weights;
} spec_model_params;
#define SPEC_MODEL_PARAMS_INIT SPEC_STRUCT_INIT(spec_model_params)

/* Loads a Hugging Face directory: config.json, generation_config.json (optional), *.safetensors, tokenizer
 * files (optional). Or a GGUF file, the first where it is in parts: metadata, tensors, tokenizer (optional), sampling defaults.
 * Every key of the config that changes the mathematics is honoured, or refused by name.
 * Errors: E_IO, E_FORMAT (names file, tensor, expected and found), E_UNSUPPORTED, E_NOMEM, E_ABORTED. */
SPEC_API spec_status spec_model_open(spec_model **out, spec_backend *backend, const char *path,
                                     const spec_model_params *params);
SPEC_API void spec_model_close(spec_model *model);

typedef struct spec_convert_params {
    size_t struct_size;
    /* NULL or "" = "q4_k_m". Of all matrices: "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q5_1", "q5_0", "q4_1", "q4_0".
     * Mixes: "q4_k_m", "q5_k_m": 4 or 5 bits, and Q6_K for the head and for some values and down projections. Matrices whose rows
     * are no whole blocks of 256 get blocks of 32, or F16; vectors are F32. */
    const char *type;
    spec_progress_fn progress;
    void *progress_user_data;
    const char *tokenizer_path; /* NULL = the model's own, if it has one */
} spec_convert_params;
#define SPEC_CONVERT_PARAMS_INIT SPEC_STRUCT_INIT(spec_convert_params)

/* Writes a model (as spec_model_open takes it) as a GGUF file at `out`, which other programs read, too: metadata, tensors, tokenizer,
 * chat template, sampling defaults. A GGUF file's tensors get other types; those that have the type stay as they are. What is there at
 * `out` is replaced when the new file is complete, and stays after an error. Memory is that of a few rows beside the mapped source.
 * Errors: as spec_model_open; E_UNSUPPORTED for a family that GGUF has no name for, a tokenizer whose rules it has no word for, and
 * values that the type cannot hold; E_INVALID for a type that is none. The backend gives its allocator and log. */
SPEC_API spec_status spec_model_convert(spec_backend *backend, const char *path, const char *out, const spec_convert_params *params);
SPEC_API const spec_tokenizer *spec_model_tokenizer(const spec_model *model); /* NULL if there is none */
SPEC_API spec_backend *spec_model_backend(const spec_model *model);

typedef struct spec_mixer_count {
    const char *name; /* "attention", "mamba1", "mamba2", "mlp", ...; static */
    int32_t n;        /* in how many layers */
} spec_mixer_count; /* frozen */
typedef struct spec_type_count {
    const char *name; /* as the file has it: "BF16", "Q4_K", ...; static */
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
    const spec_type_count *types; /* [n_type] of the file's tensors, most bytes first; borrowed. None of an application's engine */
    const char *format;         /* "safetensors", "gguf"; NULL of an application's engine */
    const char *head;           /* a head on another model's hidden states (EAGLE): what it is and what it reads, in words; it
                                   drafts, and cannot be a target. NULL: a model by itself; borrowed */
} spec_model_info;
/* info->struct_size must be set. n_node: the nodes per sequence that bytes_state_seq is told for. */
SPEC_API spec_status spec_model_get_info(const spec_model *model, spec_model_info *info, int32_t n_node);

/* -------------------------------------------------------------------- sampling, verification --- */

/* The distribution of the next token, in this order: temperature, top-k, top-p, min-p, softmax.
 * temperature 0 is greedy: the largest logit, the smallest id on ties. */
typedef struct spec_sampling {
    float temperature; /* 0 = greedy; finite */
    int32_t top_k;     /* 0 = off; ties: smallest ids survive */
    float top_p;       /* 0 or 1 = off: keep the shortest prefix of the sorted distribution whose mass is >= top_p */
    float min_p;       /* 0 = off: drop p < min_p * max p */
    uint64_t seed;     /* the same seed gives the same text, whatever the batch */
} spec_sampling; /* frozen */

typedef enum spec_verify_rule {
    SPEC_VERIFY_AUTO = 0,   /* GREEDY at T = 0; else TRAVERSAL for sampled trees (chains: which is BLOCK there; i.i.d.:
                               MSS_REPEAT), NAIVE for others */
    SPEC_VERIFY_GREEDY = 1, /* the only rule at T = 0; E_INVALID at any other */
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
    SPEC_DRAFT_VOCAB_AUTO = 0, /* the same vocabulary: by its ids. Another one: INTERSECTION, where that covers at least 60 % of the
                                  drafter's probability on a probe text, else TEXT; the log says which and why */
    SPEC_DRAFT_VOCAB_INTERSECTION = 1, /* tokens that stand for the same bytes in both. Draft distributions are restricted to them and
                                  renormalised before anything is drawn: every tree, every rule */
    SPEC_DRAFT_VOCAB_TEXT = 2  /* what the drafter writes, encoded by the target's tokenizer: deterministic trees */
} spec_draft_vocab;

typedef struct spec_drafter_params {
    size_t struct_size;
    int32_t n_draft;    /* length of chains where `tree` is NULL; 0 = 4 */
    float temperature;  /* of the draft distribution when the target samples; 0 = the target's. Its top-k, top-p and min-p
                           shape the draft distribution in any case: mass where the target has none is wasted */
    const char *tree;   /* which trees to build: "KIND[:ARGS]" as for spec_builder_open, or several of them separated by
                           ';', among which the session chooses (spec_session_params.adapt; without it the first).
                           NULL = "chain:n_draft" */
    spec_builder *builder; /* in place of `tree`: one builder of the caller's, which must outlive the drafter */
    spec_draft_vocab vocab; /* of a model: where its vocabulary is not the target's */
    int32_t n_resample; /* of a head whose rows are a chain (Lyanna): behind a rejection the rows that were not used yet give a tree once
                           more, whose best so many nodes join the next draft; 0 = none. Not with trees that are drawn */
    int32_t resample_left; /* only where more than so many rows are left */
} spec_drafter_params;
#define SPEC_DRAFTER_PARAMS_INIT SPEC_STRUCT_INIT(spec_drafter_params)

/* Any model as a drafter: the library grows trees from its distributions. It must be on the target's backend (checked when the
 * session opens). Its vocabulary agrees with the target's id by id, as far as both go; or both have tokenizers, and `vocab` says how
 * they come together. A head on hidden states (spec_model_info.head) drafts for the target that it was made for, whose dtype it is to be
 * opened with; the session refuses it for others (E_INVALID). The model must outlive the drafter, and the drafter its session. Errors: E_INVALID (parameters; a tree that
 * is none: as spec_builder_open), E_IO, E_FORMAT, E_NOMEM. */
SPEC_API spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model,
                                             const spec_drafter_params *params);

/* A drafter that needs no model: a kind and its numbers. Kinds:
 *   ngram:N,M,L prompt lookup: what followed the last N tokens where they stood before, or fewer down to L: up to M tokens (3,10; L: 1,
 *               in front of another drafter 2)
 *   trie:NODES,DEPTH,MEGABYTES   a tree of what followed the last tokens most often, in the sequence's prompts and in all that this
 *               drafter's sessions have emitted; counts up to DEPTH tokens, within MEGABYTES (16,8,256)
 *   png:FILE,D,K  what most often followed in the text and in a corpus: D drafts of K tokens (2, what the table has).
 *               FILE: a corpus table (spec ngram build; spec_corpus_open of spec_trees.h)
 * It works with every target. allocator is kept; NULL = malloc. Errors: E_INVALID (no such kind, numbers out of its range),
 * E_IO and E_FORMAT (FILE), E_NOMEM. A table of another vocabulary is refused by the session (E_INVALID). */
SPEC_API spec_status spec_drafter_open(spec_drafter **out, const char *text, const spec_allocator *allocator);
/* Calls each(user, name, args, help) for every such kind; the texts are constants. */
SPEC_API void spec_drafter_list(void (*each)(void *user, const char *name, const char *args, const char *help),
                                void *user);

SPEC_API void spec_drafter_close(spec_drafter *drafter);

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
    SPEC_DRAFT_CHOOSE = 2 /* a choice (`adapt`; without it the first) among: each with each of its trees; all together as FIRST; chains
                             of drafters from text in front of another; by COST each of these by matches of 1, 2 and 3 tokens */
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
    int32_t n_prompt_step; /* prompt tokens, about, that a step consumes of sequences which were added or appended to, so that others
                              do not wait for a long prompt; 0 = spec_sequence_add and _append consume all of it */
} spec_session_params;
#define SPEC_SESSION_PARAMS_INIT SPEC_STRUCT_INIT(spec_session_params)

/* drafter may be NULL: plain decoding. A drafter serves one session at a time. All memory of the steady state
 * is taken here. Errors: E_INVALID (a drafter does not fit the target: says why), E_NOMEM, E_UNSUPPORTED. */
SPEC_API spec_status spec_session_open(spec_session **out, spec_model *target, spec_drafter *drafter,
                                       const spec_session_params *params);
SPEC_API void spec_session_close(spec_session *session);
/* The target. */
SPEC_API const spec_model *spec_session_target(const spec_session *session);
/* From any thread: the call in progress (a prompt, a draft, a score, a step) ends after its current pass with E_ABORTED; where none is
 * in progress, the next of these does. Calls behind that one go on. */
SPEC_API void spec_session_cancel(spec_session *session);

typedef struct spec_session_info {
    size_t struct_size;
    int32_t n_seq, n_seq_free;
    int32_t n_ctx;  /* as resolved; 0 = no limit */
    int32_t n_node; /* as resolved */
} spec_session_info;
/* info->struct_size must be set. */
SPEC_API spec_status spec_session_get_info(const spec_session *session, spec_session_info *info);

/* What a drafter of a session has done since that was opened. Counts are of trees that were drafted and committed, all sequences
 * together: over the drafters they add up to those of spec_step_result. */
typedef struct spec_drafter_stats {
    size_t struct_size;
    int64_t n_asked;    /* how often it was asked for a proposal: sequences times rounds */
    int64_t n_proposed; /* trees with nodes of its own */
    int64_t n_drafted;  /* nodes; what several drafters proposed in a union counts for the first of them */
    int64_t n_accepted; /* of them */
    double us;          /* microseconds of the host in all that: of a model on a device queueing passes, and waiting for trees */
} spec_drafter_stats;
#define SPEC_DRAFTER_STATS_INIT SPEC_STRUCT_INIT(spec_drafter_stats)
/* drafter: its number in the session's list, 0 of a single one; the order is that of spec_session_open. stats->struct_size must be
 * set. Errors: E_INVALID (no such drafter), E_STATE. */
SPEC_API spec_status spec_session_get_drafter_stats(const spec_session *session, spec_drafter_stats *stats, int32_t drafter);

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

/* --- requests: what is wanted of a sequence --- */

typedef struct spec_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY = never */
} spec_logit_bias; /* frozen */

/* Which tokens may follow ids [n] (prompt, what was emitted, and a draft's path)? Bit t % 32 of allowed [t / 32] is set for every
 * token t of the n_vocab when it is called: clear those that must not come. Called on the session's thread for each node of each
 * tree that can still be reached; what it answers must follow from ids alone. Non-zero stops the step (E_ABORTED). */
typedef int (*spec_mask_fn)(void *user_data, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n);

/* Receives text as it becomes final (bytes that could begin a stop string, or half a character, are withheld) and the ids emitted
 * since the last call. Non-zero stops (E_ABORTED). */
typedef int (*spec_text_fn)(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids);

/* What is wanted of a sequence. Zero in a field is its default. Everything is copied but user data.
 *
 * Penalties, biases and mask change the logits of each node of a tree by that node's own path, before sampling, so that
 * speculation gives what plain decoding gives. Log-probabilities are those of the model, without them. They take memory on the device:
 * as much as the logits, when the first such request of a session comes (E_NOMEM), and the host copies a row per node. */
typedef struct spec_request {
    size_t struct_size;
    spec_sampling sampling;
    /* When it ends. */
    int32_t n_predict;       /* tokens at most, from now on; 0 = no limit (spec_generate: 128), -1 = no limit */
    const char *const *stop; /* [n_stop] strings that end the text, UTF-8, without themselves; a special token's text: that token */
    int32_t n_stop;
    const int32_t *end_ids;  /* [n_end_id] that end the text as the model's own end tokens do */
    int32_t n_end_id;
    int32_t ignore_eos;      /* 1: the model's own end tokens do not end it; end_ids do */
    /* What is told. */
    int32_t keep_special;    /* 1: special tokens are written in the text, but for the one that ends it */
    int32_t logprobs;        /* 1: log-probabilities of the emitted tokens, */
    int32_t n_top;           /* and of so many likeliest ones at each place, at most 20 */
    /* Which tokens come. */
    float repeat_penalty;    /* logits of tokens that stand in prompt or output are divided by it if positive, else multiplied; 0 or
                                1 = off (CTRL, arXiv 1909.05858, 4.1) */
    float presence_penalty;  /* subtracted once from logits of tokens that were emitted since the latest prompt, */
    float frequency_penalty; /* and this, for each time that they were */
    int32_t n_penalty;       /* penalties look at so many last tokens; 0 = all */
    const spec_logit_bias *bias; /* [n_bias] */
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

/* The defaults that a model's generation_config.json gives, to be changed and passed on: sampling (greedy unless do_sample is
 * true), repeat_penalty, n_predict (max_new_tokens), stop (stop_strings), and as biases of -infinity suppress_tokens and
 * bad_words_ids of one token each. A filter that the file does not name is off. All other fields are zero, and all of them without
 * such a file; the model's own end tokens need no field. out->struct_size must be set. *unread (may be NULL): the keys that change
 * which tokens come and that this library does not do ("no_repeat_ngram_size, num_beams"), "" if there are none. It and the arrays
 * are borrowed from the model. Errors: E_FORMAT (a value of that file is wrong: names the key; out is unchanged). */
SPEC_API spec_status spec_request_from_model(spec_request *out, const spec_model *model, const char **unread);

/* --- sequences --- */

/* Admits a sequence: consumes ids[0 .. n-2]; ids[n-1] becomes the pending token. n >= 1, and n < n_ctx. request NULL: greedy, until
 * an end token. With n_prompt_step of the session the prompt is consumed by the steps that follow. On error nothing is left of it.
 * Errors: E_FULL (it can never fit: says by how much), E_BUSY (no free sequence now), E_INVALID (an id or a setting out of its range,
 * named), E_UNSUPPORTED (stop strings without a tokenizer), E_NOMEM, E_ABORTED. *seq is a small number, reused after removal. */
SPEC_API spec_status spec_sequence_add(spec_session *session, int32_t *seq, const int32_t *ids, size_t n,
                                       const spec_request *request);
/* A living sequence goes on with ids [n], n >= 1, behind all it has, an end token too: the next turn of a chat. The pending token
 * and ids[0 .. n-2] are consumed, ids[n-1] becomes pending. request NULL: as before, n_predict counted anew. Errors: as above, then
 * the sequence is as before; but after E_ABORTED the ids are there, and the next step consumes what is left of them; after an error
 * of the device it can only be removed (E_STATE). */
SPEC_API spec_status spec_sequence_append(spec_session *session, int32_t seq, const int32_t *ids, size_t n,
                                          const spec_request *request);
/* The same with text, which the target's tokenizer encodes as spec_generate does: request->no_bos, request->parse_special. An empty
 * text to begin with is BOS; one to append that is no token leaves the sequence as it is, but for the request. Errors: as above;
 * E_UNSUPPORTED (the target has no tokenizer), E_INVALID (text that is not UTF-8, no BOS to begin with). */
SPEC_API spec_status spec_sequence_add_text(spec_session *session, int32_t *seq, const char *text, size_t n_text,
                                            const spec_request *request);
SPEC_API spec_status spec_sequence_append_text(spec_session *session, int32_t seq, const char *text, size_t n_text,
                                               const spec_request *request);
/* From the next step on, in place of the request before; NULL = greedy, until an end token. Errors: E_INVALID, E_UNSUPPORTED,
 * E_NOMEM; then the one before still holds. */
SPEC_API spec_status spec_sequence_set_request(spec_session *session, int32_t seq, const spec_request *request);
SPEC_API spec_status spec_sequence_remove(spec_session *session, int32_t seq);
/* All ids so far, prompt included; borrowed until the next call on the session. */
SPEC_API spec_status spec_sequence_ids(const spec_session *session, const int32_t **ids, size_t *n, int32_t seq);

/* Bytes that a sequence's state is saved to and restored from. 0 = all of them were taken, or given. */
typedef int (*spec_write_fn)(void *user_data, const void *data, size_t n);
typedef int (*spec_read_fn)(void *user_data, void *data, size_t n);

/* Admits a copy of seq: same ids, state, request (change the seed with spec_sequence_seed), held-back text and drafts to come.
 * What seq has accepted and not yet applied is applied first. Errors: E_INVALID (no such sequence), E_BUSY (no free
 * sequence), E_STATE (an earlier pass failed), E_NOMEM. */
SPEC_API spec_status spec_sequence_fork(spec_session *session, int32_t *copy, int32_t seq);
/* From the next draw on. Errors: E_INVALID. */
SPEC_API spec_status spec_sequence_seed(spec_session *session, int32_t seq, uint64_t seed);
/* Everything that seq needs to go on, as bytes that `write` receives in order (non-zero from it: E_IO). What was
 * accepted and is still to be applied is applied first; the score of seq is forgotten. Of its request sampling, ignore_eos and what
 * is left of n_predict are in it. Errors: E_INVALID, E_IO, E_NOMEM, E_STATE (an earlier pass failed), E_DEVICE. */
SPEC_API spec_status spec_sequence_save(spec_session *session, int32_t seq, spec_write_fn write, void *user_data);
/* Admits what was saved: on the same backend and device it continues bit for bit as the saved one would have; the rest of its request
 * is for spec_sequence_set_request. Refused (E_FORMAT, saying what differs): another model, compute type or version, bytes cut short or
 * changed, and for a session with SPEC_SCAN_RECURRENT states that lag, as SPEC_SCAN_CHUNKED leaves them. The ids of what is refused can
 * be admitted anew (spec_sequence_add). `read` fills n bytes or returns non-zero. The drafter's state is in it where the saving
 * session had a model as drafter; where this session's drafter is another model, it applies the ids anew. */
SPEC_API spec_status spec_sequence_restore(spec_session *session, int32_t *seq, spec_read_fn read, void *user_data);

/* --- steps --- */

typedef struct spec_logprob {
    float logprob;        /* of the chosen token */
    int32_t n_top;
    int32_t top_id[20];
    float top_logprob[20];
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
    int32_t tree;          /* which way to draft (a drafter's trees in their order, drafters in theirs; then ways of several), -1 = did
                              not draft */
    int32_t branched;      /* 1: a node was accepted that is not the first child of its parent */
} spec_step_result; /* grows */
/* One round for the sequences in seqs [n], each once: draft, score, verify, commit; results [n] receives a pointer for each. A
 * sequence whose text has ended goes on if it is given again. After E_DEVICE its sequences can only be removed; after any other error
 * they are as before, but for E_ABORTED while a prompt is consumed: what was consumed until then stays so. */
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
    int32_t n_prompt;
    int64_t n_step, n_drafted, n_accepted, n_emitted; /* emitted = accepted + one per step */
    int64_t n_speculated;       /* steps that drafted at all */
    int64_t n_branched;         /* steps that accepted a node which is not the first child of its parent */
    int64_t accepted[64];       /* [k]: steps that accepted k drafts */
    double prefill_ms, decode_ms;
} spec_result;
#define SPEC_RESULT_INIT SPEC_STRUCT_INIT(spec_result)

/* Text for one prompt: admits a sequence, steps until it ends, removes it. An empty prompt starts from BOS where the model has one.
 * result->struct_size must be set, and what it held was freed. When it fails or is cancelled, what was generated until then is in
 * *result (for E_ABORTED stop is SPEC_STOP_ABORTED). Free with spec_result_free, before the backend is closed. */
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
