/* engine.h - sessions: sequences in flight on one target. Internal. Knows no device but the vtable, and of models only
 * speci_exec. */
#ifndef SPEC_ENGINE_H
#define SPEC_ENGINE_H

#include <stdatomic.h>

#include "algorithms/build/build.h"
#include "algorithms/verify/verify.h"
#include "models/model.h"

/* --- drafters (draft_open.c) --- */

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

/* --- choice (choose_adapt.c) --- */

/* What is known of one way to draft: sums over the steps that used it, old ones fading; and milliseconds that its latest
 * rounds took beyond the profile's passes, of n_overhead so far. */
enum { ALGO_OVERHEAD = 9 };
typedef struct algo_arm {
    double n_step, n_emitted, n_node;
    double overhead[ALGO_OVERHEAD];
    int64_t n_overhead;
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

/* --- sessions (engine_session.c) --- */

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
    bool scored_distributions;   /* the draft distributions that its q rows name are there */
    bool scored_draft;  /* it is the latest proposal itself */
    int32_t first_row;  /* its first row in the target's pass */
    speci_verify_item verified; /* `scored` as verification sees it */
    spec_tree fed;      /* what the drafter's net was fed since its last commit: [0, fed.n) known to the host */
    int32_t n_fed;
    int32_t n_chain, n_probs, n_expanded; /* growth by looks: committed nodes of `fed`, distributions named, distributions looked at */
    bool rows_wanted;   /* the logits of a step are read after it: no pass goes ahead */
    bool ahead;         /* the pass over the pending token is queued; what follows it is next_token[n_step % 2] */
    uint64_t next_mark; /* when that is there */
    int32_t next_token[2], next_choice;
} algo_seq;

/* Host arrays for row operations, [n_row] each unless said. */
typedef struct algo_rows {
    int32_t *src, *dst, *q_row, *first, *candidate, *choice, *token, *slot, *place; /* first [n_row + SPECI_VERIFY_CALLS] */
    float *u, *u_last;
    spec_sampling *sampling;
    uint64_t *key;
} algo_rows;

struct spec_session {
    spec_model *target;
    spec_drafter *drafter;
    bool joint, captures; /* advances by joint attainment; passes may be captured */
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    int32_t n_ctx, n_seq, n_node, n_row; /* n_ctx 0 = no limit; n_row = n_seq * n_node */
    int32_t n_q;                         /* rows of draft distributions per sequence */
    int32_t n_tap;                       /* hidden rows that the target keeps */
    spec_verify_rule rule;
    spec_abort_fn abort;
    void *abort_user_data;
    atomic_int cancelled;
    spec_queue *queue;
    speci_exec *net, *draft_exec; /* draft_exec NULL unless the drafter is a model */
    int32_t draft_ctx, draft_node; /* limits of draft_exec: positions (0 = none), nodes per tree */
    /* Device rows of distributions, f32 [..][n_vocab of the target]: p [n_row], of verification; q [n_seq * n_q], of drafts. */
    float *p, *q;
    size_t p_bytes, q_bytes;
    spec_step_node *next; /* device [n_seq]: roots of steps that go ahead; NULL where none does */
    size_t next_bytes;
    algo_seq *seqs;      /* [n_seq] */
    algo_rows rows;
    speci_exec_input *inputs; /* [n_seq] */
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
    spec_candidate *candidates, *looked; /* by looks: [n_seq * n_q * n_candidate_row] */
    int32_t n_candidate_row;
    float *host_q;                      /* an application's distributions: [n_q][n_vocab] */
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

/* Proposals for the sequences seqs [n], into their `draft` trees (draft.c). unseen: may be left on the device, where
 * their shapes are known (engine_unseen.c): s->unseen then names the builder, and a tree here has its shape and no tokens until
 * draft_see, once what was queued is there. */
spec_status speci_draft(spec_session *s, const int32_t *seqs, int32_t n, bool unseen);
spec_status speci_draft_see(spec_session *s, const int32_t *seqs, int32_t n);
/* The same by builder b over draft_exec (draft_grow.c). unseen: the trees are queued, to be taken when they are there. */
spec_status speci_grow(spec_session *s, spec_builder *b, const int32_t *seqs, int32_t n, bool unseen);
spec_status speci_grow_take(spec_session *s, spec_builder *b);
/* Candidates looked at by sequence seq: [n_q][k]. */
spec_candidate *speci_candidates_of(spec_session *s, int32_t seq);

/* The drafter's net (draft_model.c). outgrown: it has no position for the last of n_ids ids (or there is no net).
 * apply: commits what was fed and is now committed. forget: nothing of what was
 * fed counts. feed: one pass over the nodes of `fed` that the net has not seen. catch_up: makes q->fed the chain of
 * committed tokens that the net has not applied, with room for n_row - 1 nodes below it; more than two (a caller's own
 * trees can leave that many) are applied first. */
bool speci_draft_outgrown(const spec_session *s, int32_t n_ids);
void speci_draft_absorb(spec_session *s, int32_t seq);
void speci_draft_forget(spec_session *s, int32_t seq);
spec_status speci_draft_feed(spec_session *s, const int32_t *seqs, int32_t n);
spec_status speci_draft_catch_up(spec_session *s, int32_t seq, int32_t n_row);
/* draft_exec begins with all ids but the pending one, with stand-ins for tokens that it does not know, by prefill. */
spec_status speci_draft_prefill(spec_session *s, int32_t seq);

/* Plain decoding one pass ahead (engine_ahead.c). planned: may sessions like this ever? open: s->next is there. fits: may the
 * sequence's next step? step: queues the pass after it, commits its root, gives its token, which is to be appended; what
 * spec_step says of errors holds. drop: a pass that went ahead is forgotten, before another takes its place. */
bool speci_ahead_planned(const spec_backend_ops *ops, const spec_drafter *d, const spec_session_params *p);
spec_status speci_ahead_open(spec_session *s);
bool speci_ahead_fits(const spec_session *s, int32_t seq);
spec_status speci_ahead_step(spec_session *s, int32_t seq, int32_t *token);
void speci_ahead_drop(spec_session *s, int32_t seq);

/* Scoring trees that the host has not seen (engine_unseen.c). fits: may they be, drafted by b? foresee: the tree that b grows up
 * to depth_max below its root t->token[0], if no distribution has fewer candidates than it has places; with stand-ins for tokens.
 * step: scores and verifies trees that speci_draft left unseen (s->step_trees), and reads them. verified false: they were not as
 * foreseen, and have yet to be scored as any. drop: reads them alone, if there are any. */
bool speci_unseen_fits(const spec_session *s, const spec_builder *b, const int32_t *seqs, int32_t n);
void speci_unseen_foresee(const spec_builder *b, int32_t depth_max, spec_tree *t);
spec_status speci_unseen_step(spec_session *s, const int32_t *seqs, int32_t n, bool *verified);
spec_status speci_unseen_drop(spec_session *s, const int32_t *seqs, int32_t n);

/* spec_score of checked sequences (engine_step.c); feed: where tokens are that the trees do not have, or NULL. What verifies
 * sequences at T = 0, the likeliest token of every node, is asked for with the pass, and there after the next sync. keep: what
 * verification needs of the tree of a pass. */
spec_status speci_score(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees,
                        const speci_exec_feed *feed);
void speci_score_keep(const spec_session *s, algo_seq *q, const spec_tree *t);

/* verify for several sequences: paths [n][n_node], n_path [n], token [n]. In two parts: enqueue queues what the rules ask of the
 * device beside what came with the pass (nothing at T = 0, where it does not look at the trees), and read walks the same
 * sequences when that is there. */
spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token);
spec_status speci_verify_enqueue(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule);
spec_status speci_verify_read(spec_session *s, const int32_t *seqs, int32_t n, int32_t *paths, int32_t *n_path,
                              int32_t *token);
/* Log-probabilities of tokens [n] after nodes path [n] of the scored pass, seq's rows starting at first_row. */
spec_status speci_logprobs(spec_session *s, int32_t first_row, const int32_t *nodes, const int32_t *tokens, int32_t n,
                           float *logprob, int32_t *top_id, float *top_logprob, int32_t n_top);

/* Choice (choose_adapt.c). open and close with the session; choose: builder, or -1 = do not speculate; begin: sequences
 * seqs [n] were drafted for by it, which began at `start` ms; learn: q is being committed, n_emitted tokens by a tree of
 * n_node nodes (0: a caller's own). With the last of the sequences the choice is updated, by the time since then; not if
 * any was committed by a tree of the caller's. */
spec_status speci_adapt_open(spec_session *s, spec_adapt mode, const char *profile);
int32_t speci_adapt_choose(const spec_session *s, int32_t n_seq);
void speci_adapt_begin(spec_session *s, int32_t builder, const int32_t *seqs, int32_t n, double start);
void speci_adapt_observe(spec_session *s, algo_seq *q, int32_t n_node, int32_t n_emitted);

#endif
