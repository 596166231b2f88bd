/* algo.h - how to speculate. Internal. Knows no device but the vtable, and of models only speci_net. */
#ifndef SPEC_ALGO_H
#define SPEC_ALGO_H

#include <stdatomic.h>

#include "backends/backend_grow.h"
#include "models/model.h"

/* --- random numbers (algo_rng.c) --- */

/* What a uniform is for. Verification and target draws are keyed by (seed, absolute position, purpose, index), draft
 * draws by (seed, the sequence's step counter, purpose, slot in the tree): nothing is drawn twice. */
enum { ALGO_DRAW_TARGET = 1, ALGO_DRAW_ACCEPT = 2, ALGO_DRAW_RESIDUAL = 3 }; /* below spec_draw.h's streams */

/* --- trees (algo_tree.c; the rest is public) --- */

/* Are siblings of such trees draws, by whose laws rules may judge them? */
bool speci_tree_drawn(spec_tree_kind kind);
int32_t speci_tree_depth(const spec_tree *t, int32_t node);
/* Same nodes at the same places? */
bool speci_tree_equal(const spec_tree *a, const spec_tree *b);
/* The child of `node` that comes after its child `before` in order of rank (-1: the first), or -1: the order in which
 * every rule looks at siblings. */
int32_t speci_tree_next_child(const spec_tree *t, int32_t node, int32_t before);
/* All of them into out [t->n]; returns how many. */
int32_t speci_tree_children(const spec_tree *t, int32_t node, int32_t *out);

/* --- verification on plain arrays (algo_verify_laws.c) --- */

/* What SPEC_VERIFY_AUTO means for trees of this kind; any other rule is itself. */
spec_verify_rule speci_verify_resolve(spec_verify_rule rule, spec_tree_kind kind, float temperature);

/* --- builders (algo_builder.c, algo_builder_grow.c, algo_builder_shape.c; a kind is a file algo_build_<kind>.c and a
 * row of algo_table.c) --- */

/* Limits of every builder: nodes of a tree, rows of laws, places of a frontier; and nodes while growing. */
enum { ALGO_MAX_NODE = 256, ALGO_MAX_POOL = 4096 };
/* Below every slot's value. That can be less than 0: a law's sum is 1 within 1e-3, and of draws with replacement k may
 * have probability 1 together many times. */
#define ALGO_NO_THRESHOLD (-1e3)

/* A level of growth as data: what a draw and an expansion (spec_draw_args, spec_expand_args) need to know. So the same
 * rules run on a device without a look from the host, and on plain arrays. Growth ends at a level whose n_next is 0
 * (which may come before info.n_level: sequoia's shape changes in `learn`). The law of what follows frontier place p of
 * level L is row (sum of n_place of the levels before) + p, whether or not there is a node. */
typedef struct algo_level {
    int32_t n_place;           /* places of the frontier that this level starts from; level 0: 1, the root */
    int32_t k;                 /* candidates per place */
    int32_t *take;             /* [n_place] or NULL; owned by the builder */
    double threshold;          /* ALGO_NO_THRESHOLD: every candidate that exists */
    int32_t n_add;
    int32_t n_next;            /* the next level's n_place; 0 at the last */
    int32_t *next;             /* [n_next] or NULL; owned by the builder */
    double next_threshold;
} algo_level;

typedef struct algo_builder_kind {
    const char *name, *args, *help; /* "beam", "M,N", "M beams, N levels" */
    /* Parses args (what follows the colon, "" if nothing) and fills the builder: sizes, kind, levels. */
    spec_status (*open)(spec_builder *b, const char *args);
    /* NULL, or chooses among the nodes of the pool when it is grown: keep [pool->n], all 1 before. In a drawn tree the
     * choice must not depend on a node's own token or probability; later siblings of what is dropped go too. */
    void (*keep)(const spec_builder *b, const spec_tree *pool, uint8_t *keep);
    /* NULL, or grows by looks (spec_builder_ops.look, with the builder as user_data). */
    spec_status (*look)(void *builder, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                        int32_t *n_feed, int32_t n_feed_max);
    void (*learn)(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n); /* or NULL */
    void (*costs)(spec_builder *b, const spec_cost_profile *profile);                /* or NULL */
} algo_builder_kind;
extern const algo_builder_kind *const algo_table[]; /* ends with NULL */

struct spec_builder {
    const algo_builder_kind *kind;
    spec_allocator memory;    /* a copy of the caller's */
    const spec_allocator *allocator; /* &memory */
    char *text;
    spec_builder_info info;   /* what the finished tree needs; info.kind: at a temperature above 0 */
    int32_t n_pool;           /* nodes while growing, root included: >= info.n_node; 0 while opening = info.n_node */
    int32_t k;                /* most candidates per node */
    bool repeat;              /* drawn with replacement */
    algo_level *levels;       /* [info.n_level] or NULL: by looks (none: neither) */
    int32_t *places;          /* where the levels' take and next lie: [2 * info.n_node], or NULL */
    spec_builder_ops ops;     /* a caller's own builder: ops.look */
    void *own;                /* a kind's own numbers, freed with speci_free */
    spec_tree pool;           /* [n_pool] scratch of finish, and what spec_builder_build grows */
    uint8_t *keep;            /* [n_pool] scratch */
    int32_t *map;             /* [n_pool] scratch */
};
/* Has this tree the right to be drawn? (draw wanted, and the kind draws) */
bool speci_builder_draws(const spec_builder *b, bool draw);
spec_draw_how speci_builder_how(const spec_builder *b, bool draw);
bool speci_builder_looks(const spec_builder *b); /* does it grow by looks? */
/* Stream of the draws after `node`: from its slot, the ranks on its path. tree->rank must be there. */
uint64_t speci_builder_key(const spec_tree *tree, int32_t node, uint64_t seed, uint64_t step);
/* For builders that grow by looks. Begins tree (room for b->n_pool nodes, with rank and q_row): the root, fed: row
 * 0. */
void speci_builder_begin(const spec_builder *b, bool draw, int32_t token, spec_tree *tree);
/* Calls the look, and checks what a caller's own did: the tree stays a tree, fits b->n_pool and info.depth, in a drawn
 * tree child j of a node is its candidate j, and feed (room for info.n_row) names nodes that were not fed. Those get
 * the next rows, in order: q_row. candidates [rows so far][b->k]. After an error the tree is of no use. */
spec_status speci_builder_look(spec_builder *b, bool draw, spec_tree *tree, const spec_candidate *candidates,
                               int32_t *feed, int32_t *n_feed);
/* pool, a grown tree (it is pruned in place: not deeper than depth_max (0 = no limit), what the kind's keep drops), is
 * copied to tree. A tree with less room than it needs loses the last nodes. pool->q_row says which row is whose. */
spec_status speci_builder_trim(const spec_builder *b, spec_tree *pool, int32_t depth_max, spec_tree *tree);
/* The same for nodes [n] of a tree that grew in a spec_grow; row[i] is node i's row of laws, or -1. */
spec_status speci_builder_finish(const spec_builder *b, bool draw, const spec_grow_node *nodes, const int32_t *row,
                                 int32_t n, int32_t depth_max, spec_tree *tree);

/* For the kinds. E_INVALID: what the kind takes, and that args is not it (`why`, may be NULL: says more). */
spec_status speci_builder_refuse(const spec_builder *b, const char *args, const char *why);
/* Whole numbers from 0 to 100000, separated by commas and nothing else: their count, or -1 if args is anything else or
 * more than cap. */
int32_t speci_parse_counts(const char *args, int32_t *out, int32_t cap);
/* The decimal number ("0.02", "2e-3") that s begins with; *end behind it. False if there is none. No locale. */
bool speci_parse_real(const char *s, double *out, const char **end);
/* Memory for levels [n_level] and, with_places, for takes and nexts of trees of info.n_node nodes. */
spec_status speci_builder_levels(spec_builder *b, int32_t n_level, bool with_places);
/* Levels for a fixed shape: parent [n], parents before children, siblings in order of rank; parent[0] is not read.
 * Nodes with children are fed, others not. Sets info.depth, n_row, n_level and k by it. The levels must have room for
 * the shape's depth. scratch [4 n] */
void speci_builder_shape(spec_builder *b, const int32_t *parent, int32_t n, int32_t *scratch);
/* The same with memory of its own: a builder of one shape. n up to ALGO_MAX_NODE, not deeper than SPEC_MAX_DEPTH, at
 * most SPEC_MAX_CHILD children: else refused. */
spec_status speci_builder_static(spec_builder *b, const char *args, const int32_t *parent, int32_t n);

/* --- drafters (algo_drafter.c) --- */

struct spec_drafter {
    const spec_allocator *allocator;
    spec_model *model;    /* or NULL: ops */
    spec_drafter_ops ops;
    spec_builder **builders; /* [n_builder]; 0: ops.draft makes whole trees */
    int32_t n_builder;
    bool borrowed;        /* the one builder is the caller's */
    int32_t n_draft;      /* of ops.draft: nodes below the root that it may propose */
    float temperature;
    atomic_flag in_use;   /* serves one session at a time */
};
/* Vocabularies must agree id by id; both on one backend. */
spec_status speci_drafter_check(const spec_drafter *d, const spec_model *target);

/* --- choice (algo_adapt.c) --- */

/* What is known of one way to draft: sums over the steps that used it, old ones fading; and milliseconds that its latest
 * rounds took beyond the profile's passes, of n_beside so far. */
enum { ALGO_BESIDE = 9 };
typedef struct algo_arm {
    double n_step, n_emitted, n_node;
    double beside[ALGO_BESIDE];
    int64_t n_beside;
} algo_arm;

typedef struct algo_adapt {
    spec_adapt mode;
    spec_cost_profile profile; /* target.n == 0: not there yet */
    algo_arm *arms;            /* [1 + builders]: arm 0 does not speculate */
    int64_t n_round;
    int32_t arm;               /* of the latest round */
    bool measured;         /* the profile is of this session; one that was loaded is taken as it is */
    spec_bandit bandit;
    /* The round since the latest drafts: when it began (ms), its sequences, those committed, and what came of these. */
    double start;
    int32_t n_seq, n_done;
    double n_emitted, n_node;
} algo_adapt;

/* --- sessions (algo_session.c) --- */

/* A sequence in flight. ids[n_ids - 1] is the pending token: emitted, not yet fed. */
typedef struct algo_seq {
    bool live, ignore_eos, no_draft; /* no_draft: it has outgrown the drafter's context */
    spec_sampling sampling;
    int32_t *ids, n_ids, cap_ids;
    int32_t n_limit;    /* most ids it may reach; INT32_MAX = none */
    uint64_t n_step;
    spec_tree draft;    /* the drafter's latest proposal; its q rows are s->q rows seq * n_q + q_row */
    uint64_t draft_step; /* n_step when it was made */
    int32_t arm;        /* the builder that made it, or -1 */
    bool in_round;      /* the choice among builders waits for what comes of it */
    spec_tree scored;   /* what score saw last; scored.n == 0: nothing */
    bool scored_laws;   /* the draft laws that its q rows name are there */
    bool scored_draft;  /* it is the latest proposal itself */
    int32_t first_row;  /* its first row in the target's pass */
    int32_t first_judged; /* its first row in verification's */
    spec_tree fed;      /* what the drafter's net was fed since its last commit: [0, fed.n) known to the host */
    int32_t n_fed;
    int32_t n_chain, n_law, n_looked; /* growth by looks: committed nodes of `fed`, laws named, laws looked at */
    bool rows_wanted;   /* the logits of a step are read after it: no pass goes ahead */
    bool ahead;         /* the pass over the pending token is queued; what follows it is next_token[n_step % 2] */
    uint64_t next_mark; /* when that is there */
    int32_t next_token[2], next_choice;
} algo_seq;

/* Host arrays for row operations, [n_row] each unless said. */
typedef struct algo_rows {
    int32_t *src, *dst, *q_row, *first, *candidate, *choice, *token, *slot, *place; /* first [n_row + 2] */
    float *u, *u_last;
    spec_sampling *sampling;
    uint64_t *key;
} algo_rows;

struct spec_session {
    spec_model *target;
    spec_drafter *drafter;
    bool joint, captures; /* advances by joint attainment; passes are made ready */
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    int32_t n_ctx, n_seq, n_node, n_row; /* n_ctx 0 = no limit; n_row = n_seq * n_node */
    int32_t n_q;                         /* rows of draft laws per sequence */
    spec_verify_rule rule;
    spec_abort_fn abort;
    void *abort_user_data;
    atomic_int cancelled;
    spec_queue *queue;
    speci_net *net, *draft_net; /* draft_net NULL unless the drafter is a model */
    int32_t draft_ctx, draft_node; /* limits of draft_net: positions (0 = none), nodes per tree */
    /* Device rows of laws, f32 [..][n_vocab of the target]: p [n_row], of verification; q [n_seq * n_q], of drafts. */
    float *p, *q;
    size_t p_bytes, q_bytes;
    spec_step_node *next; /* device [n_seq]: roots of steps that go ahead; NULL where none does */
    size_t next_bytes;
    algo_seq *seqs;      /* [n_seq] */
    algo_rows rows;
    speci_net_input *inputs; /* [n_seq] */
    int32_t *path;       /* [n_scratch] scratch */
    int32_t n_scratch;   /* as many as nodes of any tree, and as sequences */
    int32_t *step_paths, *step_n_path, *step_token; /* results of a step: [n_seq * n_node], [n_seq], [n_seq] */
    const spec_tree **step_trees;                   /* [n_seq] */
    int32_t *best;       /* arg-max of each row of the target's pass, if a sequence of it is at T = 0 */
    int32_t *step_ids;                              /* [n_seq * (n_node + 1)] */
    /* Growth: device trees, and the host's side; [n_seq] each unless said. */
    spec_grow grow;
    void *grow_base;
    size_t grow_bytes;
    int32_t *order, *growing, *depth, *feed_base;
    int32_t n_growing;                  /* sequences `growing` whose trees are to be taken */
    spec_grow_node *roots, *grown;      /* grown [n_seq][grow.cap] */
    int32_t *n_grown;
    spec_builder *unseen;               /* whose trees stand on the device, and were not read; or NULL */
    spec_candidate *candidates, *looked; /* by looks: [n_seq * n_q * n_look] */
    int32_t n_look;
    float *host_q;                      /* an application's laws: [n_q][n_vocab] */
    algo_adapt adapt;
};

/* The live sequence `seq`, or an error. */
spec_status speci_session_seq(const spec_session *s, int32_t seq, algo_seq **out);
/* A number that is not in use, or E_FULL. What is admitted is live: the application's drafter is told. What fails before
 * that is ended; so is what was live, when it goes. */
spec_status speci_session_free_seq(const spec_session *s, int32_t *out);
void speci_sequence_admit(spec_session *s, int32_t seq);
void speci_sequence_end(spec_session *s, int32_t seq);
spec_status speci_sampling_check(const spec_sampling *p);
/* Has somebody asked to stop? */
bool speci_session_stopped(void *session);
bool speci_is_eos(const spec_session *s, const algo_seq *q, int32_t token);
/* Most drafts below the root now: emitted tokens must fit n_limit. */
int32_t speci_draft_room(const spec_session *s, const algo_seq *q);

/* Proposals for the sequences seqs [n], into their `draft` trees (algo_draft.c). unseen: may be left on the device, where
 * their shapes are known (algo_unseen.c): s->unseen then names the builder, and a tree here has its shape and no tokens until
 * draft_see, once what was queued is there. */
spec_status speci_draft(spec_session *s, const int32_t *seqs, int32_t n, bool unseen);
spec_status speci_draft_see(spec_session *s, const int32_t *seqs, int32_t n);
/* The same by builder b over draft_net (algo_grow.c). unseen: the trees are queued, to be taken when they are there. */
spec_status speci_grow(spec_session *s, spec_builder *b, const int32_t *seqs, int32_t n, bool unseen);
spec_status speci_grow_take(spec_session *s, spec_builder *b);
/* Candidates looked at by sequence seq: [n_q][k]. */
spec_candidate *speci_looked(spec_session *s, int32_t seq);

/* The drafter's net (algo_draft_model.c). outgrown: it has no position for the last of n_ids ids (or there is no net).
 * absorb: commits what was fed and is now committed. forget: nothing of what was
 * fed counts. feed: one pass over the nodes of `fed` that the net has not seen. catch_up: makes q->fed the chain of
 * committed tokens that the net has not absorbed, with room for n_row - 1 nodes below it; more than two (a caller's own
 * trees can leave that many) are absorbed first. */
bool speci_draft_outgrown(const spec_session *s, int32_t n_ids);
void speci_draft_absorb(spec_session *s, int32_t seq);
void speci_draft_forget(spec_session *s, int32_t seq);
spec_status speci_draft_feed(spec_session *s, const int32_t *seqs, int32_t n);
spec_status speci_draft_catch_up(spec_session *s, int32_t seq, int32_t n_row);
/* draft_net begins with all ids but the pending one, with stand-ins for tokens that it does not know, by prefill. */
spec_status speci_draft_prefill(spec_session *s, int32_t seq);

/* Plain decoding one pass ahead (algo_ahead.c). planned: may sessions like this ever? open: s->next is there. fits: may the
 * sequence's next step? step: queues the pass after it, commits its root, gives its token, which is to be appended; what
 * spec_step says of errors holds. drop: a pass that went ahead is forgotten, before another takes its place. */
bool speci_ahead_planned(const spec_backend_ops *ops, const spec_drafter *d, const spec_session_params *p);
spec_status speci_ahead_open(spec_session *s);
bool speci_ahead_fits(const spec_session *s, int32_t seq);
spec_status speci_ahead_step(spec_session *s, int32_t seq, int32_t *token);
void speci_ahead_drop(spec_session *s, int32_t seq);

/* Scoring trees that the host has not seen (algo_unseen.c). fits: may they be, drafted by b? foresee: the tree that b grows up
 * to depth_max below its root t->token[0], if no law has fewer candidates than it has places; with stand-ins for tokens.
 * step: scores and judges trees that speci_draft left unseen (s->step_trees), and reads them. judged false: they were not as
 * foreseen, and have yet to be scored as any. drop: reads them alone, if there are any. */
bool speci_unseen_fits(const spec_session *s, const spec_builder *b, const int32_t *seqs, int32_t n);
void speci_unseen_foresee(const spec_builder *b, int32_t depth_max, spec_tree *t);
spec_status speci_unseen_step(spec_session *s, const int32_t *seqs, int32_t n, bool *judged);
spec_status speci_unseen_drop(spec_session *s, const int32_t *seqs, int32_t n);

/* spec_score of checked sequences (algo_step.c); feed: where tokens are that the trees do not have, or NULL. What judges
 * sequences at T = 0, the likeliest token of every node, is asked for with the pass, and there after the next sync. keep: what
 * verification needs of the tree of a pass. */
spec_status speci_score(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees,
                        const speci_net_feed *feed);
void speci_score_keep(const spec_session *s, algo_seq *q, const spec_tree *t);

/* verify for several sequences with one look from the host: paths [n][n_node], n_path [n], token [n]. In two parts: judge
 * queues what the device has to find beside what came with the pass (nothing at T = 0, where it does not look at the trees), and
 * walk reads it when it is there. */
spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token);
spec_status speci_verify_judge(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule);
spec_status speci_verify_walk(const spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                              int32_t *n_path, int32_t *token);
/* Log-probabilities of tokens [n] after nodes path [n] of the scored pass, seq's rows starting at first_row. */
spec_status speci_logprobs(spec_session *s, int32_t first_row, const int32_t *nodes, const int32_t *tokens, int32_t n,
                           float *logprob, int32_t *top_id, float *top_logprob, int32_t n_top);

/* Choice (algo_adapt.c). open and close with the session; choose: builder, or -1 = do not speculate; begin: sequences
 * seqs [n] were drafted for by it, which began at `start` ms; learn: q is being committed, n_emitted tokens by a tree of
 * n_node nodes (0: a caller's own). With the last of the sequences the choice is taught, by the time since then; not if
 * any was committed by a tree of the caller's. */
spec_status speci_adapt_open(spec_session *s, spec_adapt mode, const char *profile);
int32_t speci_adapt_choose(const spec_session *s, int32_t n_seq);
void speci_adapt_begin(spec_session *s, int32_t builder, const int32_t *seqs, int32_t n, double start);
void speci_adapt_learn(spec_session *s, algo_seq *q, int32_t n_node, int32_t n_emitted);

#endif
