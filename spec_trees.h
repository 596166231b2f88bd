/* spec_trees.h - trees, the four calls of a step, drafters, models and builders of your own, files that the library writes, and the
 * algorithms on plain arrays.
 *
 * Who generates text needs spec.h alone. This header is for those who replace a part: a tree, a drafter, a verification rule, a
 * choice. It is also for tools, which convert a model, make a table of a corpus, or list what there is. `spec_step` of spec.h is four
 * calls that stand here:
 *
 *     spec_draft   proposes a tree of tokens for each sequence; no state changes
 *     spec_score   one packed pass of the target over the trees; results stay on the device
 *     spec_verify  walks a tree by a rule that keeps the target's distribution; gives a path and one token more
 *     spec_commit  the state advances along the path; rejected branches leave no trace
 *
 * Threads      Calls on a session: spec.h. Functions on plain data (trees, distributions, costs, bandits) keep no state: any thread may
 *              call them, two threads not with the same data that is written. A spec_builder and a spec_corpus are used by one
 *              thread at a time.
 *
 * The conventions are those of spec.h. Valid C99 and C++17. Numbers in brackets: docs/algorithms.md. */
#ifndef SPEC_TREES_H
#define SPEC_TREES_H

#include "spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------- trees --- */

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

/* A draft tree. Node 0 is the root, the pending token. parent[0] = -1, and parent[i] < i. Plain data: the arrays are the
 * caller's (spec_tree_alloc makes them). rank, prob and q_row are optional: NULL. */
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
} spec_tree; /* frozen */

SPEC_API const char *spec_verify_rule_name(spec_verify_rule rule); /* "auto", "greedy", ..., "traversal"; a constant */
/* Calls each(user, rule, name, help) for SPEC_VERIFY_AUTO and every rule; the texts are constants. */
SPEC_API void spec_verify_rule_list(void (*each)(void *user, spec_verify_rule rule, const char *name, const char *help),
                                    void *user);
/* Would `rule` keep the target's distribution on this tree at this temperature? SPEC_OK, or E_INVALID saying what the
 * rule would do wrong. SPEC_VERIFY_AUTO always does. */
SPEC_API spec_status spec_verify_is_lossless(const spec_tree *tree, spec_verify_rule rule, float temperature);

/* ----------------------------------------------------------------------- drafters of your own --- */

/* A sequence that an application's drafter drafts for. */
typedef struct spec_draft_request {
    int32_t seq;
    const int32_t *ids; /* [n_ids] so far, borrowed for the call; the last one is the root of the tree */
    size_t n_ids;
    int32_t depth_max;  /* nodes deeper than this are dropped */
    spec_tree *tree;    /* node 0 is set. Add nodes below it (spec_tree_add), at most tree->cap in all, siblings distinct. Left
                           as it is: no proposal. The session then asks its next drafter, or takes an ordinary step */
} spec_draft_request; /* frozen */

/* An application's own drafter. It proposes whole trees (`draft`), or gives distributions from which the library's builders grow them
 * (`probs`): one of the two. Any other callback may be NULL. Arrays that a callback is given are borrowed for that call. Callbacks run on
 * the session's thread. Where one returns an error (spec_fail), the call of the library that it works for returns the same status. */
typedef struct spec_drafter_ops {
    size_t struct_size;
    void *user_data; /* the first argument of each; must live until close */
    /* Proposes for requests [n]. Such trees are SPEC_TREE_DETERMINISTIC, hence verified by the naive rule. */
    spec_status (*draft)(void *user_data, spec_draft_request *requests, int32_t n);
    /* Fills probs [n_node][n_vocab]. Row i is the distribution of what follows ids [n] and then the path from the root (which is
     * ids[n - 1]) to nodes[i] of `tree`: finite, not negative, of sum 1. It is drawn from as it is: the target's truncation is not
     * applied to it. */
    spec_status (*probs)(void *user_data, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree, const int32_t *nodes,
                         int32_t n_node, float *probs, int32_t n_vocab);
    /* A sequence begins with ids [n], the last of them pending. */
    spec_status (*prefill)(void *user_data, int32_t seq, const int32_t *ids, size_t n);
    /* The last n_new of ids [n] were committed. */
    void (*committed)(void *user_data, int32_t seq, const int32_t *ids, size_t n, int32_t n_new);
    /* Sequence `copy` begins as seq is. NULL: prefill is called for it. */
    spec_status (*fork)(void *user_data, int32_t seq, int32_t copy);
    /* save gives the state of seq as bytes; restore begins a sequence with them, ids [n] as for prefill. Both or none. save may be
     * called twice in a row, and then gives the same bytes. Only states of a drafter with the same `identity`, which is not 0, are
     * restored; else prefill is called. */
    uint64_t identity;
    spec_status (*save)(void *user_data, int32_t seq, spec_write_fn write, void *write_data);
    spec_status (*restore)(void *user_data, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *read_data);
    void (*end)(void *user_data, int32_t seq); /* a sequence ends, or could not begin */
    void (*close)(void *user_data);            /* the drafter is closed */
    /* Hidden rows of the target at taps [n_tap] (copied): both, or neither.
     *
     * Rows     rows[k] [n_row][dim] f32 (dim of spec_model_info): tap k, of the tokens ids[first] to ids[first + n_row - 1]. Behind
     *          these ids [n] has at least the token that follows.
     * Order    Each committed token has its turn once, in order of positions. Those of a prompt come in pieces while it is consumed,
     *          before `prefill` or `committed` tells of it. Those of a step, the root and what was accepted below it, come before
     *          `committed`. The pending token has not been fed: it is the first of the next call.
     * Copies   The library keeps no rows that it has told: saved sequences and forks have none. So a drafter puts what it made of
     *          them into its own `save` and `fork`. Without these it begins by `prefill`, and the first row that it gets is the
     *          pending token's.
     * Errors   The sequence can then only be removed. */
    const spec_tap *taps;
    int32_t n_tap;
    spec_status (*hidden)(void *user_data, int32_t seq, const int32_t *ids, size_t n, int32_t first, int32_t n_row,
                          const float *const *rows);
} spec_drafter_ops;
/* ops are copied. With `draft` there is no tree and no builder in params (E_INVALID), and n_draft is the most nodes below the
 * root. With `probs` params are as for a model. Errors: as spec_drafter_from_model; E_INVALID (both or neither of draft and probs, one of
 * save and restore, one of taps and hidden). */
SPEC_API spec_status spec_drafter_from_ops(spec_drafter **out, const spec_drafter_ops *ops,
                                           const spec_drafter_params *params);
/* Nodes of its largest tree, root included; 1 for NULL. */
SPEC_API int32_t spec_drafter_n_node(const spec_drafter *drafter);

/* ---------------------------------------------------------- any drafter: kinds, counts, files --- */

/* Calls each(user, name, args, help) for every kind of spec_drafter_open; the texts are constants. */
SPEC_API void spec_drafter_list(void (*each)(void *user, const char *name, const char *args, const char *help),
                                void *user);

/* What a drafter has done since its session was opened. Counts are of trees that were drafted and committed, of all sequences. The
 * sums over all drafters are those of spec_step_result. */
typedef struct spec_drafter_stats {
    size_t struct_size;
    int64_t n_asked;    /* how often it was asked for a proposal: sequences times rounds */
    int64_t n_proposed; /* trees with nodes of its own */
    int64_t n_drafted;  /* nodes; what several drafters of a union proposed counts for the first of them */
    int64_t n_accepted; /* of these nodes */
    double us;          /* microseconds of the host in all that; for a model on a device, queueing passes and waiting for trees */
} spec_drafter_stats;
#define SPEC_DRAFTER_STATS_INIT SPEC_STRUCT_INIT(spec_drafter_stats)
/* drafter: its number in the list that the session was opened with; 0 for a single one. stats->struct_size must be set. Errors:
 * E_INVALID (no such drafter), E_STATE. */
SPEC_API spec_status spec_session_get_drafter_stats(const spec_session *session, spec_drafter_stats *stats, int32_t drafter);

/* Saves what a drafter of spec_drafter_open has counted in all its sessions. "trie": how often what followed what in the texts, not
 * in the prompts. The file is the same on every machine. It replaces the one at `path` when all of it is written. A drafter that
 * serves a session is saved on the session's thread, between its calls. Errors: E_UNSUPPORTED (a kind that keeps nothing), E_INVALID (a
 * file of another kind at `path`), E_IO, E_NOMEM. */
SPEC_API spec_status spec_drafter_save(const spec_drafter *drafter, const char *path);
/* Loads what a drafter of this kind has saved, in place of what this one has counted. From then on no session opens with it whose target
 * has another vocabulary. On error nothing has changed.
 * Errors: E_STATE (it serves a session), E_UNSUPPORTED, E_INVALID (its own texts are of another vocabulary; the file has runs of more
 * tokens, or more of them, than it has room for: says which arguments have it), E_FORMAT (not such a file, cut short, changed), E_IO,
 * E_NOMEM. */
SPEC_API spec_status spec_drafter_load(spec_drafter *drafter, const char *path);

/* ---------------------------------------------------------------------------- models as files --- */

SPEC_API const char *spec_dtype_name(spec_dtype dtype); /* "f32", "bf16", ...; a constant */

typedef struct spec_convert_params {
    size_t struct_size;
    /* The types of the tensors; NULL or "" = "q4_k_m". One type for all matrices: "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k",
     * "q4_k", "q5_1", "q5_0", "q4_1", "q4_0". A mix: "q4_k_m" or "q5_k_m" have 4 or 5 bits, and Q6_K for the head and for some values
     * and down projections. Matrices whose rows are no whole blocks of 256 get blocks of 32, or F16. Vectors are F32. */
    const char *type;
    spec_progress_fn progress;
    void *progress_user_data;
    const char *tokenizer_path; /* NULL = the model's own, if it has one */
} spec_convert_params;
#define SPEC_CONVERT_PARAMS_INIT SPEC_STRUCT_INIT(spec_convert_params)

/* Writes a model (`path` as for spec_model_open) as a GGUF file at `out`: metadata, tensors, tokenizer, chat template, sampling
 * defaults. Other programs read such files, too. Tensors that have the wanted type already stay as they are. A GGUF file at `out` is
 * replaced when the new one is complete, and stays after an error. Nothing is loaded: it takes the memory of a few rows beside the mapped
 * source, by the backend's allocator, and the backend's threads.
 * Errors: as spec_model_open; E_UNSUPPORTED (a family that GGUF has no name for, a tokenizer whose rules it has no word for, values that
 * the type cannot hold); E_INVALID (a type that is none, a file of another kind at `out`). */
SPEC_API spec_status spec_model_convert(spec_backend *backend, const char *path, const char *out, const spec_convert_params *params);

/* ------------------------------------------------------------------------------ corpus tables --- */

/* A corpus that is made into a table for the drafter "png" (spec_drafter_open): what most often follows the last tokens. Texts
 * are added in pieces of any size. Nothing is kept of them but tokens, sorted in runs, in a file without a name beside the table.
 * One thread at a time. The file's layout: docs/drafters.md. Source: Snakes and Ladders, prompt and corpus n-grams (15). */
typedef struct spec_corpus spec_corpus;
typedef struct spec_corpus_params {
    size_t struct_size;
    const spec_tokenizer *tokenizer; /* of the targets that the table is for; must live as long. NULL: ids alone */
    int32_t n_vocab;    /* without a tokenizer: ids are 0 to n_vocab - 1 */
    int32_t n_context;  /* look at 1 to so many last tokens, at most 8; 0 = 3 */
    int32_t n_draft;    /* tokens of a continuation, at most 32; 0 = 6 */
    int32_t n_row;      /* continuations of a context, at most 16; 0 = 4 */
    int32_t min_count;  /* continuations that stand less often in the corpus are left out; 0 = 2 */
    size_t memory;      /* bytes for sorting and merging; 0 = 1 GiB. Beside it come 4 + 8 n_row bytes for each id, and 30 MB. The
                           runs take 3 (n_context + n_draft) + 8 bytes of disk for each different place of the corpus */
    spec_progress_fn progress; /* of spec_corpus_write */
    void *progress_user_data;
    const spec_allocator *allocator; /* copied; NULL = malloc */
} spec_corpus_params;
#define SPEC_CORPUS_PARAMS_INIT SPEC_STRUCT_INIT(spec_corpus_params)
typedef struct spec_corpus_info {
    size_t struct_size;
    uint64_t n_text, n_token;           /* what was added */
    uint64_t n_context, n_continuation; /* what the table keeps of it */
    uint64_t bytes;                     /* of the table */
    uint64_t bytes_runs;                /* of the sorted runs, which are gone */
    int32_t n_run;
} spec_corpus_info;
#define SPEC_CORPUS_INFO_INIT SPEC_STRUCT_INIT(spec_corpus_info)

/* An empty corpus, to become the table at `path`. Errors: E_INVALID (neither tokenizer nor n_vocab, a number out of its range,
 * a file at `path` that is no table), E_IO (no file can be made in that folder), E_NOMEM. */
SPEC_API spec_status spec_corpus_open(spec_corpus **out, const char *path, const spec_corpus_params *params);
/* The next n bytes of a text, in UTF-8; or its next ids [n]. A text ends with spec_corpus_end_text, and with the tokenizer's
 * end-of-text token, which may be written in it. No continuation goes across an end. Long texts are encoded in pieces of
 * 1 MiB at most, cut behind lines.
 * Errors: E_INVALID (an id out of its range: nothing was added; bytes that are not UTF-8: says where, and what waited to be encoded is
 * left out). After any other, E_IO or E_NOMEM, the corpus can only be closed. */
SPEC_API spec_status spec_corpus_add_text(spec_corpus *corpus, const char *text, size_t n);
SPEC_API spec_status spec_corpus_add_ids(spec_corpus *corpus, const int32_t *ids, size_t n);
SPEC_API spec_status spec_corpus_end_text(spec_corpus *corpus);
/* Writes the table, which appears whole, in place of what was there, or not at all. Then the corpus can only be closed. info may
 * be NULL, else info->struct_size must be set. Errors: E_IO, E_NOMEM, E_FULL (more than 2^32 contexts or continuations),
 * E_ABORTED. */
SPEC_API spec_status spec_corpus_write(spec_corpus *corpus, spec_corpus_info *info);
SPEC_API void spec_corpus_close(spec_corpus *corpus);

/* ------------------------------------------------------------------------- models of your own --- */

/* For callbacks that fail: stores the sentence that spec_last_error gives on this thread, up to 1023 bytes of it, and returns `code`:
 * return spec_fail(SPEC_E_IO, "why"). */
SPEC_API spec_status spec_fail(spec_status code, const char *text);

/* A tree to score below the tokens of a sequence, or the next part of one: at most 257 nodes, none deeper than 63. */
typedef struct spec_model_tree {
    void *seq;             /* as `begin`, `fork` or `restore` gave it; each at most once in a call */
    const spec_tree *tree; /* n, token and parent of all nodes so far, borrowed for the call. Node 0 comes right behind the
                              tokens of the sequence. Siblings may repeat (SPEC_TREE_UNROLLED); no rank, prob or q_row */
    int32_t n_fed;         /* nodes [0, n_fed) are as they were scored by earlier calls; 0: a new tree */
} spec_model_tree; /* frozen */

/* An application's own engine as a model: a target, or what spec_drafter_from_model drafts with. The library asks it for logits
 * by callbacks on the host, and grows trees, samples, verifies and counts as ever, on the model's backend.
 *
 * Sequences   The engine keeps of each sequence its tokens so far (a KV cache, a state), and the nodes of one tree below them.
 *             What stands for a sequence is the engine's affair: any pointer, which the library hands back. A tree is followed
 *             by `commit` before anything else is asked of its sequence, but for `score` of more of its nodes, and `end`.
 * Threads     A session calls from its own thread. Sessions on several threads that share the model call at once, for different
 *             sequences. A callback makes no call on the session that it works for.
 * Errors      A status other than SPEC_OK ends the call of the library that the callback works for, which returns the same
 *             status; the sentence is that of spec_fail, or of whatever else failed last within the callback. E_DEVICE: the
 *             sequences of that call are lost, and will only be ended. Any other: they are as they were before the callback, and
 *             it may be made again. Where `prefill` fails, whatever the status, the sequence is ended. What `begin`, `fork` or
 *             `restore` failed to make is not.
 * Exactness   Speculative text is exactly plain text if the logits behind a path depend on its tokens alone, bit for bit, and not
 *             on the tree round it, on other sequences, or on how it was cut into calls.
 * Waiting     A pass is over when `score` returns, so no schedule runs ahead. Where trees grow on the device, their new tokens
 *             are fetched before each `score`. */
typedef struct spec_model_ops {
    size_t struct_size;
    void *user_data;    /* the first argument of each callback; must live until `close` */
    const char *name;   /* spec_model_info.path, and for messages; copied. NULL = "own" */
    int32_t n_vocab;    /* ids are 0 to n_vocab - 1; columns of the logits */
    int32_t n_ctx;      /* most tokens of a sequence, nodes of a tree included; 0 = no limit */
    int32_t bos;        /* -1 = none, or the tokenizer's */
    const int32_t *eos; /* [n_eos] end-of-text tokens, copied; none: the tokenizer's */
    int32_t n_eos;
    const char *tokenizer_path;      /* of spec_tokenizer_open; or NULL */
    const spec_tokenizer *tokenizer; /* in its place: one that outlives the model. Neither: the model works with ids only */
    uint64_t identity;  /* of the weights, for saved sequences: they are restored where it is the same. 0 = cannot be saved */

    /* Required. A new sequence without tokens: *seq is what it is called from now on. */
    spec_status (*begin)(void *user_data, void **seq);
    /* Required. ids [n], n >= 1, are the next tokens of the sequence. Long prompts come in pieces. */
    spec_status (*prefill)(void *user_data, void *seq, const int32_t *ids, size_t n);
    /* Required. trees [n]: nodes n_fed to tree->n - 1 of each are scored, tree after tree. Row by row in this order, logits
     * [rows][n_vocab] receives what follows a node: the logits of the token behind the sequence's tokens and the node's path.
     * With n_fed 0 the sequence has no tree. A logit may be minus infinity, but not all of a row; one that is no number, or plus
     * infinity, fails the call (E_INVALID). */
    spec_status (*score)(void *user_data, float *logits, const spec_model_tree *trees, int32_t n);
    /* Required. The nodes path [n_path] of the tree, from its root down (path[0] = 0), are now tokens of the sequence; all others
     * are forgotten. n_path 0: the whole tree is. */
    spec_status (*commit)(void *user_data, void *seq, const int32_t *path, int32_t n_path);
    /* Required. The sequence ends, whatever state it is in. */
    void (*end)(void *user_data, void *seq);
    /* A new sequence *copy with the tokens of seq, which has no tree. NULL: spec_sequence_fork is E_UNSUPPORTED. */
    spec_status (*fork)(void *user_data, void **copy, void *seq);
    /* The tokens of seq, which has no tree, as bytes; and a new sequence with them, from all of these bytes. `write` and `read`
     * return non-zero when they fail; the callback then returns at once, with any error. `save` is called again and again, and
     * gives the same bytes: the first time they are counted. Both or none; NULL, or identity 0: spec_sequence_save is
     * E_UNSUPPORTED, and as a drafter's model this one begins anew, from the ids. */
    spec_status (*save)(void *user_data, void *seq, spec_write_fn write, void *write_data);
    spec_status (*restore)(void *user_data, void **seq, spec_read_fn read, void *read_data);
    void (*close)(void *user_data); /* the model is closed; its sequences have ended */
} spec_model_ops;
#define SPEC_MODEL_OPS_INIT { sizeof(spec_model_ops), 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ops are copied. The model is closed by spec_model_close, after its sessions and drafters. What it has no layers for is
 * E_UNSUPPORTED when a session opens: hidden-state taps, joint attainment (spec_lab.h). spec_model_info tells the family "own",
 * SPEC_DTYPE_F32, and 0 for what the library cannot know. Errors: E_INVALID (a required callback is missing, which is named; one
 * of save and restore; a number that cannot be; both tokenizers), E_FORMAT (a tokenizer with more ids than n_vocab), E_IO,
 * E_NOMEM. After an error `close` is not called. */
SPEC_API spec_status spec_model_from_ops(spec_model **out, spec_backend *backend, const spec_model_ops *ops);

/* ------------------------------------------------------------------- the four calls of a step --- */

/* The drafter's proposal for each sequence in seqs [n] (each once). trees [n] receives a pointer for each, borrowed until the next draft.
 * No state of the target changes. Near the end of the context the tree is clipped. Without a drafter it is the root alone. Draft
 * distributions of an earlier draft are gone: what was scored before is then verified without them.
 * Errors: E_INVALID (no such sequence; what an application's drafter or builder did wrong), E_NOMEM, E_DEVICE, E_ABORTED, what callbacks
 * return. */
SPEC_API spec_status spec_draft(spec_session *session, const spec_tree **trees, const int32_t *seqs, int32_t n);
/* After draft, until the commit: which of the drafter's trees *tree was (numbers of spec_step_result.tree); -1 = did not speculate.
 * Errors: E_INVALID (no such sequence). */
SPEC_API spec_status spec_draft_choice(const spec_session *session, int32_t *tree, int32_t seq);
/* One packed pass over the trees [n], the caller's own or the drafter's, which are copied. trees[i]->token[0] is the pending token of
 * seqs[i] (each once). Distributions stay on the device. It may be called again with other trees: no sequence has advanced. Scores of
 * all sequences of the session are those of the latest call.
 * Sampled trees are verified by the draft distributions that q_row names: rows of the sequence's latest spec_draft. The caller vouches
 * that the nodes were drawn from them.
 * Errors: E_INVALID (not a tree, another root, token out of range, more nodes than the session's n_node, depth over 63), E_FULL
 * (context), E_STATE (an earlier pass failed), E_NOMEM, E_ABORTED. After E_DEVICE the sequences of the call can only be removed. */
SPEC_API spec_status spec_score(spec_session *session, const int32_t *seqs, int32_t n,
                                const spec_tree *const *trees);
/* Walks the tree of seq after score. path, with room for tree->n entries, receives the accepted nodes: path[0] = 0, *n_path >= 1. *token
 * is the bonus (or correction) that follows the last of them. The walk ends at an end-of-text token, which then is *token: nothing is
 * fed after it. Changes nothing: may be repeated, and gives the same. At temperature 0 every rule is GREEDY. SPEC_VERIFY_AUTO: the
 * session's rule.
 * Errors: E_STATE (nothing was scored), E_INVALID (the rule would not keep the distribution of this tree, or needs draft distributions
 * that the session does not have), E_DEVICE (no numbers), E_UNSUPPORTED (by the backend). */
SPEC_API spec_status spec_verify(spec_session *session, int32_t *path, int32_t *n_path, int32_t *token, int32_t seq,
                                 spec_verify_rule rule);
/* Advances seq along path [n_path] (of the scored tree, from its root: path[0] = 0); `token` becomes the pending one. Tokens of nodes
 * path[1] on, then `token`, are emitted. Nothing is computed: the next pass applies the path. The builder of a drafted tree observes it.
 * Errors: E_STATE (nothing was scored), E_INVALID (not a path, token out of range); then nothing has changed. What a drafter's `hidden`
 * returns: seq has advanced, and can only be removed. */
SPEC_API spec_status spec_commit(spec_session *session, int32_t seq, const int32_t *path, int32_t n_path,
                                 int32_t token);
/* Forgets the score of seq: it is as before. Errors: E_INVALID (no such sequence). */
SPEC_API spec_status spec_rollback(spec_session *session, int32_t seq);

/* After score, until the commit: the target's distribution of the token that follows `node`, by the sequence's sampling. probs [n_vocab]
 * f32 (n_vocab of the target); at temperature 0 all on the arg-max. What a verifier of your own needs. It is copied from the device, which
 * waits for it. Errors here and below: E_STATE (no score, no such distribution now), E_INVALID (sequence, node), E_DEVICE. */
SPEC_API spec_status spec_node_probs(spec_session *session, float *probs, int32_t seq, int32_t node);
/* After draft, until the commit: row `q_row` of the drafter's latest tree, probs [n_vocab] f32 (n_vocab of the target). Only rows that
 * tree->q_row names hold a distribution. A copy from the device. */
SPEC_API spec_status spec_draft_probs(spec_session *session, float *probs, int32_t seq, int32_t q_row);
/* After score: the logits behind a node, logits [n_vocab] f32 (of spec_model_info: padded rows included). A copy from the device: for
 * tests and research. */
SPEC_API spec_status spec_node_logits(spec_session *session, float *logits, int32_t seq, int32_t node);
/* After score, until the commit: the hidden row of a node, hidden [dim] f32 (dim of spec_model_info). tap: its number in
 * spec_session_params.taps. A copy from the device. Errors: E_INVALID (the session keeps no such tap), and as above. */
SPEC_API spec_status spec_node_hidden(spec_session *session, float *hidden, int32_t seq, int32_t tap, int32_t node);
/* After score: log-probabilities of what follows `node`, of the distribution before temperature and truncation. *logprob is that of
 * `token`. top_id, top_logprob [n] are the n likeliest, n <= 64; with n 0 they may be NULL. */
SPEC_API spec_status spec_node_logprobs(spec_session *session, float *logprob, int32_t *top_id, float *top_logprob,
                                        int32_t seq, int32_t node, int32_t token, int32_t n);

/* --------------------------------------------------------------------- text of your own steps --- */

/* Text as a stream: a token may end inside a character, whose bytes are then held back. Plain data: set it to
 * zero to begin. No memory is taken. */
typedef struct spec_text_stream {
    uint8_t held[8];
    int32_t n_held;
    int32_t n_tokens; /* how many tokens went in */
} spec_text_stream; /* frozen */
/* Writes the text that token `id` completes to text [cap], from its beginning. *n receives the number of bytes, which may be 0. No zero
 * stands at the end. One token needs at most spec_tokenizer_info.piece_max + 16 bytes. flags: 0 or SPEC_TOKEN_SKIP_SPECIAL. Errors: E_FULL,
 * E_INVALID; the stream is then as before. */
SPEC_API spec_status spec_text_stream_push(spec_text_stream *stream, char *text, size_t cap, size_t *n,
                                           const spec_tokenizer *tokenizer, int32_t id, uint32_t flags);
/* What is held back when the stream ends, as above; an incomplete character becomes U+FFFD. cap >= 16. */
SPEC_API spec_status spec_text_stream_end(spec_text_stream *stream, char *text, size_t cap, size_t *n);

/* ----------------------------------------------------------------- algorithms on plain arrays --- */

/* The distribution probs [n_vocab] from logits [n_vocab], by `s`, as sessions make it. scratch [n_vocab] is the caller's. Errors:
 * E_INVALID (a logit that is not a number, a largest one that is infinite, a setting below 0). */
SPEC_API spec_status spec_probs(float *probs, const float *logits, int32_t n_vocab, const spec_sampling *s,
                                int32_t *scratch);
/* A draw: the smallest i with probs[i] > 0 and sum of probs[0..i] > u * total. u in [0, 1). */
SPEC_API int32_t spec_draw(const float *probs, int32_t n_vocab, float u);
/* A uniform number in [0, 1), 24 bits, of the counter-based generator (Philox4x32-10). The same arguments give the same number. */
SPEC_API float spec_uniform(uint64_t seed, uint64_t position, uint32_t purpose, uint32_t index);

/* --- trees --- */

/* An empty tree (n = 0) with arrays for cap nodes, at most 2^20, the optional ones too. All or nothing. allocator: NULL = malloc. Errors:
 * E_INVALID (cap), E_NOMEM. */
SPEC_API spec_status spec_tree_alloc(spec_tree *tree, int32_t cap, const spec_allocator *allocator);
SPEC_API void spec_tree_free(spec_tree *tree, const spec_allocator *allocator); /* the one of spec_tree_alloc */
/* Copies nodes and kind into the arrays of `to`. Of optional arrays those that `to` has; what `from` lacks is filled in: ranks by place,
 * prob 0, q_row -1. Errors: E_FULL (to->cap is too small), E_INVALID (ranks would be lost). Then `to` is as it was. */
SPEC_API spec_status spec_tree_copy(spec_tree *to, const spec_tree *from);
/* Appends a node below `parent` (-1: the root, into an empty tree). prob: 0 where it is not known. The node's rank is the number of
 * siblings before it, its q_row -1. Returns its number; -1 when there is no room or no such parent. */
SPEC_API int32_t spec_tree_add(spec_tree *tree, int32_t parent, int32_t token, float prob);
/* Is it a tree that can be scored? Root first with parent -1, parents before children, tokens in [0, n_vocab), at most
 * n_max nodes, depth at most 63, siblings distinct (unless sampled i.i.d. or unrolled), ranks a numbering of siblings.
 * Errors: E_INVALID (names the node). */
SPEC_API spec_status spec_tree_check(const spec_tree *tree, int32_t n_max, int32_t n_vocab);
SPEC_API void spec_tree_depths(const spec_tree *tree, int32_t *depth); /* [n]; 0 for the root */
SPEC_API void spec_tree_ranks(const spec_tree *tree, int32_t *rank);   /* [n]; tree->rank, or by place */
/* Ancestors and self as bits: bit j of row i is set iff j is on the path of i. bits [n][(n + 31) / 32]  (5.1) */
SPEC_API void spec_tree_masks(const spec_tree *tree, uint32_t *bits);
/* The convolution's window of each node (7.1): anc [n][width - 1], entry k - 1 the k-th ancestor, or -1 - j where the
 * window reaches the j-th newest entry of the stored state. */
SPEC_API void spec_tree_conv_ancestors(const spec_tree *tree, int32_t *anc, int32_t width);
/* order [n]: order[i] is the node that comes at place i. Depth first, children by rank; or heavy path first: children
 * by decreasing size of their subtree, ties by rank (5.3). scratch [3 n]. */
typedef enum spec_tree_order_kind { SPEC_ORDER_DEPTH_FIRST = 0, SPEC_ORDER_HEAVY_PATH = 1 } spec_tree_order_kind;
SPEC_API void spec_tree_order(const spec_tree *tree, int32_t *order, spec_tree_order_kind how, int32_t *scratch);
/* out = tree in another topological order; ranks, probabilities and rows go along. order [n]: what spec_tree_order gives. out is not tree,
 * and has room for ranks. Errors: E_INVALID (a child would come before its parent, a node is missing, out has no ranks), E_FULL. */
SPEC_API spec_status spec_tree_permute(const spec_tree *tree, spec_tree *out, const int32_t *order);
/* Keeps, in place, the nodes with keep[i] != 0 whose ancestors are all kept; keep [n]. The root is always kept. map [n] receives the new
 * numbers, -1 for dropped nodes. A sampled tree becomes deterministic, unless `by_slot`: then the caller asserts that no node was
 * dropped for its own token or probability, and the later siblings of a dropped node go too (4.5, 4.6). */
SPEC_API void spec_tree_prune(spec_tree *tree, int32_t *map, const uint8_t *keep, int by_slot);
/* out = a and b merged at their root, a shared prefix stored once; map_b [b->n] (may be NULL) receives where b's nodes are. out is neither
 * a nor b. The result is SPEC_TREE_DETERMINISTIC. Errors: E_INVALID (the roots differ), E_FULL, E_NOMEM. */
SPEC_API spec_status spec_tree_union(spec_tree *out, int32_t *map_b, const spec_tree *a, const spec_tree *b);
/* How many blocks of block x block nodes of the mask are not empty: the work of block-sparse attention (5.3). block >= 1. */
SPEC_API int64_t spec_tree_blocks(const spec_tree *tree, int32_t block);

/* --- verification --- */

typedef struct spec_verify_args {
    size_t struct_size;
    const spec_tree *tree;
    int32_t n_vocab;
    const float *p;            /* [tree->n][n_vocab] the target's distribution behind each node */
    const float *q;            /* [..][n_vocab] draft distributions: node i's children were sampled from row tree->q_row[i]. NULL for
                                  rules that do not use it (GREEDY, NAIVE) */
    const int32_t *child_row;  /* [tree->n] or NULL. The row of q that each *child* was sampled from, for several drafters */
    spec_verify_rule rule;
    float temperature;         /* 0: distributions are one-hot, GREEDY */
    uint64_t seed, position;   /* position: of the token after the root. Draws are keyed by the seed and the position of the token after
                                  the node; of BLOCK and TRAVERSAL after the root */
    const spec_allocator *allocator; /* for scratch; NULL = malloc */
} spec_verify_args;
/* The walk of spec_verify over plain arrays. path, with room for as many entries as the deepest path has nodes, *n_path and *token as for
 * spec_verify. Errors: E_INVALID (the rule does not fit the tree; a distribution that is negative, not a number, or whose sum is not 1
 * within 1e-3), E_NOMEM. */
SPEC_API spec_status spec_verify_probs(int32_t *path, int32_t *n_path, int32_t *token, const spec_verify_args *args);

/* --- builders --- */

/* How trees are grown: a kind and its numbers. One thread at a time. Kinds, in the order of algorithms/build/build_table.c:
 *   none                    no drafts
 *   chain:K                 K drafts in a row
 *   static:A                a fixed shape: A to E of STree, "eagle", or a file of lines "PARENT" (static:@FILE)
 *   product:N1,N2,...       every node of depth i has N(i+1) children; product-repeat: sampled with replacement
 *   beam:M,N                M beams, N levels
 *   dyspec:N                N drafts where reaching them is likeliest (heap)
 *   dyspec-threshold:T,N    all draws reached with probability T, at most N (64); T,N,WIDTH,DEPTH: by levels
 *   sequoia:N[,DEPTH]       the best shape of N drafts for measured acceptance; of at most N where step costs are known
 *   eagle2:K,N,D            K best of each level expanded, D levels, the N - 1 best nodes kept
 * Trees of chain, static, product, dyspec, dyspec-threshold and sequoia are sampled (SPEC_TREE_SAMPLED) at a temperature above 0. At 0, and
 * always of beam and eagle2, candidates are the likeliest ones (SPEC_TREE_DETERMINISTIC). docs/trees.md compares them. allocator: NULL =
 * malloc. Errors: E_INVALID (no such kind, numbers out of its range: says which are possible), E_IO and E_FORMAT (static:@FILE),
 * E_NOMEM. */
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
/* Builds one tree from distributions that a callback gives; tree->cap >= info.n_node. Draws are keyed by the slot in the tree, so that
 * builders agree where their trees do. It takes some memory of the builder's allocator for the call. On error `tree` is as it was.
 * Errors: E_INVALID (arguments, a distribution that is none, an `expand` that broke its contract), E_NOMEM, what `probs` or `expand`
 * returned. */
SPEC_API spec_status spec_builder_build(spec_builder *builder, spec_tree *tree, const spec_build_args *args);
typedef struct spec_candidate {
    int32_t token; /* -1: the distribution's support has no more */
    float prob;    /* the distribution's, before any candidate was removed */
} spec_candidate; /* frozen */
/* A builder of your own: host-driven growth. `expand` is called once per round.
 *
 *   1. It is given candidates [row][k]: what may follow the nodes fed so far. Those of node x are in row tree->q_row[x], in order
 *      (token -1: no more). The first call has the root alone in the tree, fed.
 *   2. It adds children (spec_tree_add). In a sampled tree child number j of a node must be its candidate j.
 *   3. It names in feed the nodes whose candidates it wants next: not fed before (q_row < 0), at most n_feed_max. *n_feed = 0 ends the
 *      tree.
 *
 * tree has rank, prob and q_row. A session grows the trees of several sequences in turns. So what `expand` must know of a tree it reads
 * from the tree. Whether a sampled node is kept may depend on its ancestors and earlier siblings, not on its own token or probability
 * (3.2). */
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
/* After a step: the builder observes how large its tree was, and the rank of the accepted child at each node of the path (ranks [n], -1 =
 * none accepted there). dyspec-threshold adjusts its threshold, sequoia its estimate of acceptance. Sessions do this in spec_commit. */
SPEC_API void spec_builder_observe(spec_builder *builder, int32_t n_node, const int32_t *ranks, int32_t n);

/* --- choice --- */

/* Step costs, milliseconds by number of nodes. Between entries they are interpolated, beyond the last one extended by the last slope.
 * Measured curves have steps (14), so no line is fitted to them. */
typedef struct spec_cost_table {
    int32_t n;
    int32_t n_node[16];   /* ascending */
    float ms[16];
} spec_cost_table; /* frozen */
/* Milliseconds of a step of n_node nodes. Below the first entry it is the first. Beyond the last one a slope below 0 counts as 0. 0 for
 * n_node <= 0, and of a table whose n is not 1 to 16. */
SPEC_API float spec_cost_ms(const spec_cost_table *table, int32_t n_node);
/* Least squares a N^2 + b N + c (a = 0 with quadratic 0), for reports. coefficient [3]: c, b, a. */
SPEC_API void spec_cost_fit(const spec_cost_table *table, double coefficient[3], int quadratic);
/* What a session measured or loaded. A table with n = 0 is empty. */
typedef struct spec_cost_profile {
    size_t struct_size;
    spec_cost_table target;    /* the target's pass, by nodes; sizes beyond one sequence's nodes are those of several sequences */
    spec_cost_table draft;     /* the drafter's pass, by rows; of several models that draft, the first one's; empty without one */
    spec_cost_table sequences; /* the target's pass over one node of each of n sequences, by n; empty where a session has but one */
    /* Of what and where, in words (ASCII, with a zero): a model, its types, a device, threads. Empty: not known. */
    char target_of[256], draft_of[256];
} spec_cost_profile;
/* Tells a builder what passes cost. sequoia then plans for the size of most tokens per time, within its N and DEPTH. Other kinds take no
 * notice. Sessions do it when they have a profile. Errors: E_INVALID (no costs of the target). */
SPEC_API spec_status spec_builder_costs(spec_builder *builder, const spec_cost_profile *profile);
/* The session's step costs. They are measured now if they were not yet: some passes of each size, for a fraction of a second or a few
 * seconds. Sequences of the session are not touched, but one must be free (else E_BUSY); as many as are free are used. Call it between
 * steps, not between score and verify. out->struct_size must be set. Errors: E_BUSY, E_NOMEM, E_DEVICE. */
SPEC_API spec_status spec_session_profile(spec_session *session, spec_cost_profile *out);
/* Step costs as a JSON file. profile->struct_size must be set, for both. Errors of save: E_INVALID (a table that is none, a file of another
 * kind at `path`), E_IO, E_NOMEM. Of load: E_IO, E_FORMAT, E_NOMEM. Costs of another machine or model load, too: a session that is given
 * such a file logs a warning. */
SPEC_API spec_status spec_cost_save(const spec_cost_profile *profile, const char *path);
SPEC_API spec_status spec_cost_load(spec_cost_profile *profile, const char *path);
/* Expected emitted tokens of a static shape when the child of rank b is the accepted one with probability a[b]: 1 + sum
 * over nodes of the product along their path (4.7). */
SPEC_API double spec_expected_emitted(const spec_tree *tree, const float *a, int32_t n_a);
/* Of n >= 1 candidates with expected emitted tokens emitted [n] and step costs ms [n]: the number of the one of most
 * tokens per second, the first on ties. */
SPEC_API int32_t spec_choose_rate(const double *emitted, const double *ms, int32_t n);

enum { SPEC_MAX_ARM = 16 };
/* UCB1 over n_arm arms (13). Plain data; deterministic. */
typedef struct spec_bandit {
    int32_t n_arm;
    double lambda_ucb;              /* 1 = the textbook's */
    int64_t n_round;                /* updates, of all arms */
    int64_t n_pull[SPEC_MAX_ARM];   /* updates of each */
    double tokens[SPEC_MAX_ARM], ms[SPEC_MAX_ARM]; /* of an arm's rounds, summed */
} spec_bandit; /* frozen */
/* Errors: E_INVALID (1 <= n_arm <= SPEC_MAX_ARM, lambda_ucb >= 0). */
SPEC_API spec_status spec_bandit_open(spec_bandit *bandit, int32_t n_arm, double lambda_ucb);
/* The arm of the largest index, the first on ties; each arm once in the beginning. The index is tokens / time, as a share of the best
 * arm's, plus UCB1's bonus. Changes nothing. */
SPEC_API int32_t spec_bandit_choose(const spec_bandit *bandit);
/* A round: emitted tokens (bonus included) in ms milliseconds with that arm. Impossible numbers update nothing. */
SPEC_API void spec_bandit_update(spec_bandit *bandit, int32_t arm, double emitted, double ms);

#ifdef __cplusplus
}
#endif
#endif
