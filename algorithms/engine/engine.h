/* engine.h - sessions: sequences in flight on one target, and the rounds that advance them. Internal. Knows no device but the
 * backend's table, of models only speci_exec, and of drafters only their hooks. */
#ifndef SPEC_ENGINE_H
#define SPEC_ENGINE_H

#include <stdatomic.h>

#include "algorithms/choose/choose.h"
#include "algorithms/draft/draft.h"
#include "algorithms/engine/engine_adjust.h"
#include "algorithms/engine/engine_text.h"
#include "algorithms/verify/verify.h"

/* --- sequences --- */

/* A proposal, and the round that it was made in: 0 = none that still counts. */
typedef struct engine_proposal {
    spec_tree tree;        /* its q rows are rows seq * n_q + q_row of the session's */
    uint64_t round;
    int32_t arm;           /* the way that was chosen, -1 = did not draft */
    bool asked;            /* drafters were, since there was room for a draft */
    int32_t n_match;       /* speci_draft_seq */
    bool repeats;          /* of the sequence, when it was made */
    int32_t by;            /* the drafter that proposed it, -1 = none or several: */
    uint8_t *maker;        /* [n_node] of each node, with a union: the first drafter that has it; else NULL */
    spec_builder *builder; /* that grew it, or NULL */
    int32_t depth;         /* its nodes can stand so deep */
} engine_proposal;

/* A sequence in flight. ids[n_ids - 1] is the pending token: emitted, not yet fed. */
typedef struct engine_seq {
    bool live;
    bool repeats;          /* as of its latest watch */
    bool consuming;        /* prompt tokens have yet to be applied: ids from the executor's position on, but the pending one */
    engine_request request;
    engine_adjust *adjust; /* NULL: logits count as they are */
    engine_text text;
    int32_t *ids, n_ids, cap_ids;
    int32_t n_begun;  /* drafters that have begun, the first ones; all of them unless one could not */
    int32_t n_told;   /* ids that these know of */
    int32_t n_prompt; /* ids from here on were emitted since the latest prompt */
    int32_t n_limit;  /* most ids it may reach; INT32_MAX = none */
    int32_t n_end;    /* the same, as its request says */
    spec_stop stop;   /* of its latest commit */
    uint64_t n_step;
    engine_proposal proposal;
    int32_t part;     /* its part in the session's round: what was scored last; -1: nothing */
} engine_seq;

/* --- rounds --- */

/* A sequence whose tree was scored. */
typedef struct engine_part {
    int32_t seq;
    spec_tree tree;         /* tokens that the host does not have yet are -1 */
    uint64_t round;         /* the proposal's, if the tree is that proposal; else 0 */
    uint64_t probs_round;   /* the proposal's whose draft distributions its q rows name; 0 = none */
    uint64_t position;      /* of the token that follows the root */
    int32_t first_row;      /* of the pass: the root's */
    int32_t raw_row;        /* of the adjuster: where the root's logits are as the model gave them; -1: at first_row */
    speci_verify_item item; /* how it is verified, and what came of it: */
    int32_t *path, n_path, token; /* path [n_node] */
} engine_part;

/* One round of a session. Its stages DRAFT, SCORE, VERIFY and COMMIT each have an enqueue and a read (engine_round.c); in which
 * order these stand is a schedule (engine_schedule.c), and no stage knows in which schedule it is. */
typedef struct engine_round {
    int32_t n, *seqs;         /* sequences of the call */
    const spec_tree **trees;  /* [n] what is to be scored */
    engine_part *part;        /* [n_part] what was scored */
    int32_t n_part, n_most;   /* n_most: room */
    int32_t *paths;           /* the parts' */
    speci_draft *pending;     /* its trees stand on the device, and have yet to be read; or NULL */
    bool by_shape;            /* parts were scored by the shapes of such trees, whose tokens have yet to come */
    bool adjusted;            /* logits of some sequences are not taken as the model gave them */
    bool reshaped;            /* they were scored before they were read, and have other shapes than that pass took them to have */
    bool plain;               /* trees are roots alone, and nobody has drafted */
    bool root_on_device;      /* the root's token is in the session's roots, and not with the host */
    spec_step_node *hand_on;  /* device memory that receives the token that follows, or NULL */
    int32_t *likeliest;       /* [rows] the arg-max of the pass's rows, if a sequence of it is at T = 0 */
    speci_verify_batch batch; /* what is being verified */
    spec_verify_rule rule;
    /* Results of what was enqueued are there behind `mark`, or, with none, behind all that is queued. */
    bool queued, marked;
    uint64_t mark;
    spec_status told;         /* what drafters have made of the hidden rows of committed paths: an error is one sequence's alone */
} engine_round;

/* --- sessions --- */

/* What sequences drafted in the latest round have come to: the choice is updated when the last of them is committed. */
typedef struct engine_outcome {
    uint64_t round;
    int32_t arm, n_seq, n_done;
    double start, n_emitted, n_row; /* start: ms */
} engine_outcome;

/* What a drafter that looks things up in texts would propose, which nobody scores: what is emitted is compared with it. */
typedef struct engine_watch {
    bool on;
    spec_tree tree;      /* the root alone: it finds nothing */
    int32_t source;      /* that it was found by; -1: nothing is found */
    int32_t node, depth; /* what of it came: down to this node */
    int32_t n_ids;       /* the sequence's, when that was so */
    int32_t n_looked;    /* nodes of what it proposes now */
} engine_watch;

struct spec_session {
    spec_model *target;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    int32_t n_ctx, n_seq, n_node;   /* n_ctx 0 = no limit */
    spec_verify_rule rule;
    spec_tap *taps;                 /* [n_kept] hidden rows that the target keeps: those of the session's params come first */
    int32_t n_tap, n_kept;          /* n_tap: of the params */
    bool tells_hidden;              /* drafters ask for some of them */
    bool joint, captures;           /* advances by joint attainment; passes may be captured */
    spec_abort_fn abort;
    void *abort_user_data;
    atomic_int cancelled;           /* by any thread */
    bool was_cancelled;             /* the call that is on its way has seen it */
    atomic_flag in_call;
    void (*closes)(spec_session *s); /* is called when the call has ended: a callback has closed it; or NULL */
    double (*now_ms)(void);         /* the clock that rounds are timed by */
    spec_queue *queue;
    speci_exec *exec;               /* the target's executor */
    speci_exec_input *inputs;       /* [n_seq] scratch */
    engine_seq *seqs;               /* [n_seq] */
    /* Device rows of distributions, f32 [..][n_vocab of the target]: p [n_seq * n_node] of verification, q of drafts. */
    float *p;
    size_t p_bytes, q_bytes;
    /* Drafting. */
    speci_draft_site site;
    speci_drafters drafters;
    spec_drafter **taken;           /* [n_taken] drafters that serve this session alone */
    int32_t n_taken;
    speci_draft_seq *asked;         /* [n_seq] */
    speci_draft_way *ways;          /* [n_way]; arm 1 + i of the choice is way i */
    int32_t n_way;
    speci_choice choice;            /* among them */
    int32_t *first_source;          /* [n drafters + 1]: drafter k's sources are from [k] to [k + 1] - 1 */
    int32_t n_grade;                /* sources of one that looks up, by the length of the match */
    spec_cost_profile profile;      /* target.n == 0: not there yet */
    spec_cost_table *draft_costs;   /* [n drafters]; n 0: it has no passes */
    double (*first_ms)[SPECI_LOADS]; /* [1 + n drafters] by load: what a pass of the target, of a drafter, takes longer while it is new */
    engine_outcome outcome;
    speci_asks *asks;               /* [n sources] of the outcome's round */
    engine_watch *watches;          /* [n drafters * n_seq] or NULL */
    spec_tree looked;               /* scratch of them */
    int32_t seen_seq;               /* the sequence whose next proposals the choice has been told; -1: none */
    double watch_ms, round_ms;      /* time that went into watching, and into rounds */
    uint64_t n_round;
    /* Rounds: the session's; and two of each sequence that take turns where plain steps run ahead, else NULL. */
    engine_adjuster adjuster;
    int32_t n_prompt_step;          /* spec_session_params */
    engine_round round, *plain;
    spec_step_node *roots;          /* device [n_seq], with `plain` */
    size_t roots_bytes;
    /* Results of a step, borrowed by the caller. */
    int32_t *step_ids;              /* [n_seq * (n_node + 1)] */
    spec_logprob *step_logprobs;    /* the same */
    spec_step_result *step_results; /* [n_seq] */
    int32_t *step_seqs;             /* [n_seq] those that take part in its round */
    int32_t *scratch;               /* [SPECI_MAX_NODE] */
};

/* The live sequence `seq`, or an error (engine_access.c). */
spec_status speci_session_seq(const spec_session *s, int32_t seq, engine_seq **out);
/* A number that is not in use, or E_FULL (engine_sequence.c). */
spec_status speci_session_free_seq(const spec_session *s, int32_t *out);
/* As spec_sequence_add, of a session that was entered. */
spec_status speci_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n, const spec_request *request);
/* What was begun of a sequence is given back. */
void speci_sequence_end(spec_session *s, int32_t seq);
/* Its request from now on. */
spec_status speci_sequence_take_request(spec_session *s, engine_seq *q, const spec_request *given);
/* Of a sequence that is consuming: applies prompt tokens that are left: about n_most of them, or all with 0; *n_done (may be NULL):
 * how many that were. */
spec_status speci_sequence_consume(spec_session *s, int32_t seq, int32_t n_most, int32_t *n_done);
/* Drafters forget it. */
void speci_sequence_end_drafters(spec_session *s, int32_t seq);
/* What was scored of it, or runs ahead of it, is forgotten (engine_round.c). */
void speci_sequence_forget(spec_session *s, int32_t seq);
/* Hidden rows for drafters (engine_hidden.c). What the target is to keep, for the caller's list own [n_own] and the drafters; and,
 * once it is attached, where that stands. */
spec_status speci_hidden_plan(spec_session *s, const spec_tap *own, int32_t n_own);
void speci_hidden_attach(spec_session *s);
/* Drafters are told the rows of the last prefill pass, whose tokens stand at positions [first, first + n); and those of a path
 * that was committed. After an error the sequence can only be removed. */
spec_status speci_hidden_chunk(spec_session *s, const speci_draft_seq *q, int32_t first, int32_t n);
spec_status speci_hidden_path(spec_session *s, const speci_draft_seq *q, const engine_part *p);
/* Room for n more ids, and for what a step adds: behind it nothing need be allocated. */
spec_status speci_sequence_room(const spec_session *s, engine_seq *q, size_t n);
/* Adds ids [n]. */
spec_status speci_sequence_take_ids(const spec_session *s, engine_seq *q, const int32_t *ids, size_t n);
/* Drafters (engine_access.c). What they are told of a sequence; `tree` is theirs to fill, as deep as emitted tokens fit its limit. */
speci_draft_seq speci_sequence_asked(spec_session *s, int32_t seq);
/* Of what it is by now: drafters that have begun see the ids that are new to them as committed. */
void speci_sequence_tell(spec_session *s, const speci_draft_seq *ask);
/* Has somebody asked to stop? (engine_access.c) */
bool speci_session_stopped(void *session);

/* What every public function of a session begins with: E_INVALID without one, E_STATE if it is in a call; left at the function's end. */
spec_session *speci_session_enter(const spec_session *session);
void speci_session_leave(spec_session *const *entered);
#define ENGINE_ENTER(session)                                                                                        \
    SPEC_NEED(session, "session");                                                                                   \
    spec_session *const entered_ __attribute__((cleanup(speci_session_leave))) = speci_session_enter(session);       \
    if (!entered_) return SPEC_E_STATE

/* Sequences of a call: each once, all of them live. */
spec_status speci_session_check(const spec_session *s, const int32_t *seqs, int32_t n);
/* Of sequences that were checked: what is left of their prompts is consumed. Trees are their proposals. */
spec_status speci_round_begin(spec_session *s, engine_round *r, const int32_t *seqs, int32_t n);
/* Stages. read waits for what it reads. An error of a device leaves the sequences broken; any other leaves them as they were. */
spec_status speci_draft_start(spec_session *s, engine_round *r);
spec_status speci_draft_read(spec_session *s, engine_round *r);
/* Nobody drafts: what is to be scored are the roots alone. root_on_device: the device has yet to find their tokens, which are -1. */
void speci_plain_start(spec_session *s, engine_round *r, bool root_on_device);
spec_status speci_score_start(spec_session *s, engine_round *r);
spec_status speci_verify_start(spec_session *s, engine_round *r); /* by r->rule */
spec_status speci_verify_read(spec_session *s, engine_round *r);  /* parts' path, n_path, token */
spec_status speci_commit_start(spec_session *s, engine_round *r); /* the device's side: the next pass applies the path */
spec_status speci_commit_read(spec_session *s, engine_round *r);  /* the host's: ids, and who is told of them: r->told */
/* The plain round of the sequence's next step, if that runs ahead: it is queued already. Or NULL. */
engine_round *speci_flight(const spec_session *s, int32_t seq);
/* The pass over r is forgotten. */
void speci_round_drop(spec_session *s, engine_round *r);

/* The choice among ways to draft (engine_choice.c): lists the ways. */
spec_status speci_ways_open(spec_session *s, spec_adapt adapt);
void speci_ways_close(spec_session *s);
/* Where there is a choice: a round of n_seq sequences has begun at `start` (ms) with this arm; a part of it, the outcome's, is
 * committed. */
void speci_ways_begin(spec_session *s, int32_t arm, int32_t n_seq, double start);
void speci_ways_tell(spec_session *s, const engine_part *p);
/* Is the drafter asked in rounds of this arm? */
bool speci_ways_ask(const spec_session *s, int32_t arm, int32_t drafter);
/* Which source is it that has found a match of so many tokens, where the text repeats itself or not? */
int32_t speci_ways_match(const spec_session *s, int32_t drafter, int32_t n_match, bool repeats);
/* Is it a match by which the text is known to repeat itself? */
bool speci_ways_repeats(int32_t n_match);

/* Proposals that are compared with the text (engine_watch.c). Memory, with ways that are chosen by cost. */
spec_status speci_watch_open(spec_session *s);
void speci_watch_close(spec_session *s);
/* Parts of a round have been committed, their ids told to drafters. Of a session that watches. */
void speci_watch_round(spec_session *s, const engine_round *r);
/* It alone takes part in the next round: the choice is told what it would get. */
void speci_watch_alone(spec_session *s, int32_t seq);
/* Its ids are others now, or it ends. */
static inline void speci_watch_forget(spec_session *s, int32_t seq)
{
    s->seen_seq = -1;
    for (int32_t k = 0; s->watches && k < s->drafters.n; k++) s->watches[k * s->n_seq + seq].tree.n = 0;
}

/* Step costs (engine_profile.c): what the choice goes by. profile: a file of them, or NULL. */
spec_status speci_profile_open(spec_session *s, spec_adapt adapt, const char *profile);
/* What costs of m are measured of, as a profile says it (engine_measured.c). And a warning where the session's profile, of the file `path`,
 * says something else than its target, or this drafter (NULL: it has none). */
void speci_measured_of(char *out, size_t cap, const spec_model *m);
void speci_measured_check(const spec_session *s, const spec_model *drafter, const char *path);

/* Log-probabilities of tokens [n] after the nodes of the part's path (engine_scored.c). */
spec_status speci_logprobs(spec_session *s, const engine_part *p, const int32_t *tokens, int32_t n, spec_logprob *out, int32_t n_top);

#endif
