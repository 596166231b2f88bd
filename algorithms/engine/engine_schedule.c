/* engine_schedule.c - the order in which the stages of a round are enqueued and read, and spec_step.
 *
 *   plain            a round that drafts nothing: roots alone
 *   ordinary         each stage is read before the next one is enqueued: what the four public calls do
 *   score first      trees that grew on the device to a known shape are scored before the host has read them, so that the device
 *                    never waits for the host between a draft and its score. At T = 0 they are read with the verdict; where a
 *                    sequence samples, while the target computes, since its verification needs the tokens. A tree that turns out
 *                    otherwise (a distribution had fewer candidates than there were places) is scored once more, as it is
 *   run ahead        a plain step, behind which the next one is enqueued before its token is read: the device puts the token
 *                    where the next pass finds its root. A pass that turns out not to be wanted (the text ended, another tree is
 *                    scored) is dropped: its own root was never committed. So the sequence may be forked and saved meanwhile
 *
 * Trees, rules and draws are the same in all of them, and so are the tokens. */
#include "algorithms/engine/engine.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* --- the table --- */

typedef enum verb { START, MARK, READ } verb;
typedef enum stage { DRAFT, SCORE, VERIFY, COMMIT, N_STAGE } stage;
typedef spec_status (*stage_fn)(spec_session *s, engine_round *r);

static const struct {
    stage_fn start, read;
} stages[N_STAGE] = {
    [DRAFT] = { speci_draft_start, speci_draft_read },
    [SCORE] = { speci_score_start, NULL },
    [VERIFY] = { speci_verify_start, speci_verify_read },
    [COMMIT] = { speci_commit_start, speci_commit_read },
};

typedef enum whose { NOW, NEXT } whose; /* of this round, or of the one behind it */
typedef struct move {
    stage stage;
    verb verb;
    whose round;
} move;

/* What may hold of a round whose drafts were enqueued. */
enum {
    SHAPES = 1, /* every tree has grown on the device to a shape that is known, or is its root alone */
    GREEDY = 2, /* what follows every node is found by the pass itself */
    MARKS = 4   /* the device says how far it is */
};

/* Moves behind the start of DRAFT, which all schedules that draft share. */
typedef struct schedule {
    const char *name;
    unsigned needs; /* facts */
    move moves[12];
    int32_t n_move;
} schedule;

static bool all_greedy(const spec_session *s, const engine_round *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        const engine_seq *q = &s->seqs[r->seqs[i]];
        if (q->request.p.sampling.temperature != 0 || q->adjust) return false;
    }
    return true;
}

static bool has_shapes(const spec_session *s, const engine_round *r)
{
    if (!r->pending || s->joint) return false;
    for (int32_t i = 0; i < r->n; i++) {
        const engine_proposal *p = &s->seqs[r->seqs[i]].proposal;
        if (p->tree.n > 1) return false;
        if (p->depth == 0) continue;
        const spec_builder *b = p->builder;
        if (!b || !b->known_shape || b->info.n_node > s->n_node || b->k > s->target->n_vocab) return false;
    }
    return true;
}

enum { ORDINARY = 2, FROM_SCORE = 1 }; /* its row, and its first move behind the drafts */
static const schedule schedules[] = {
    { "score first, greedy", SHAPES | GREEDY,
      { { SCORE, START, NOW }, { VERIFY, START, NOW }, { DRAFT, READ, NOW }, { VERIFY, READ, NOW }, { COMMIT, START, NOW },
        { COMMIT, READ, NOW } }, 6 },
    { "score first", SHAPES | MARKS,
      { { DRAFT, MARK, NOW }, { SCORE, START, NOW }, { DRAFT, READ, NOW }, { VERIFY, START, NOW }, { VERIFY, READ, NOW },
        { COMMIT, START, NOW }, { COMMIT, READ, NOW } }, 7 },
    [ORDINARY] = { "ordinary", 0,
      { { DRAFT, READ, NOW }, { SCORE, START, NOW }, { VERIFY, START, NOW }, { VERIFY, READ, NOW }, { COMMIT, START, NOW },
        { COMMIT, READ, NOW } }, 6 },
};
/* Of rounds that draft nothing. */
static const schedule plain = {
    "plain", 0,
    { { SCORE, START, NOW }, { VERIFY, START, NOW }, { VERIFY, READ, NOW }, { COMMIT, START, NOW }, { COMMIT, READ, NOW } }, 5 };
/* What was enqueued by the step before is not enqueued again. */
static const schedule run_ahead = {
    "run ahead", 0,
    { { SCORE, START, NOW }, { VERIFY, START, NOW }, { VERIFY, MARK, NOW }, { COMMIT, START, NOW }, { SCORE, START, NEXT },
      { VERIFY, START, NEXT }, { VERIFY, MARK, NEXT }, { VERIFY, READ, NOW }, { COMMIT, READ, NOW } }, 9 };

static spec_status make_move(spec_session *s, engine_round *r, const move *m)
{
    if (m->verb == READ) return stages[m->stage].read(s, r);
    if (m->verb == START) return stages[m->stage].start(s, r);
    const spec_status status = s->ops->mark(s->queue, &r->mark);
    r->marked = status == SPEC_OK;
    return status;
}

static bool takes_part(const engine_round *r, int32_t seq)
{
    for (int32_t i = 0; i < r->n; i++)
        if (r->seqs[i] == seq) return true;
    return false;
}

/* After an error nothing is left of what the schedule has begun: a later round would meet its results. What the device did for
 * the sequences is not known where that has failed; others may have been scored before. */
static spec_status give_up(spec_session *s, engine_round *r, spec_status status)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%s", spec_last_error());
    for (int32_t i = 0; i < r->n_part && status == SPEC_E_DEVICE; i++)
        if (takes_part(r, r->part[i].seq)) s->exec->kind->break_seq(s->exec, r->part[i].seq);
    if (r->by_shape || r->pending) {
        if (r->by_shape) speci_round_drop(s, r);
        (void)speci_draft_read(s, r);
    }
    return speci_fail(status, "%s", text);
}

static spec_status run(spec_session *s, engine_round *r, const schedule *how, int32_t first)
{
    for (int32_t i = first; i < how->n_move; i++) {
        const spec_status status = make_move(s, r, &how->moves[i]);
        if (status != SPEC_OK) return give_up(s, r, status);
        if (!r->reshaped) continue;
        r->reshaped = false;
        return run(s, r, &schedules[ORDINARY], FROM_SCORE);
    }
    return SPEC_OK;
}

static spec_status run_drafting(spec_session *s, engine_round *r)
{
    SPEC_TRY(speci_draft_start(s, r));
    if (speci_session_stopped(s)) return give_up(s, r, speci_fail(SPEC_E_ABORTED, "stopped after drafting"));
    const unsigned facts = (has_shapes(s, r) ? SHAPES : 0) | (all_greedy(s, r) ? GREEDY : 0) | (s->ops->mark ? MARKS : 0);
    const schedule *how = schedules;
    while (how->needs & ~facts) how++;
    return run(s, r, how, 0);
}

/* --- rounds that draft nothing --- */

/* Where drafting is a choice, it may be made before the round: by what is known now. */
static bool chooses_plain(spec_session *s, const int32_t *seqs, int32_t n)
{
    if (s->choice.mode == SPEC_ADAPT_OFF) return true;
    if (n == 1) speci_watch_alone(s, seqs[0]);
    return speci_choice_arm(&s->choice, n) == 0;
}

/* Where there is a choice it is updated by what rounds without drafts have come to, too. */
static void begin_outcome(spec_session *s, engine_round *r, double start)
{
    s->n_round++;
    for (int32_t i = 0; i < r->n; i++) r->part[i].round = s->n_round;
    speci_ways_begin(s, 0, r->n, start);
}

/* --- running ahead --- */

/* Of a session that can. */
static bool runs_ahead(spec_session *s, int32_t seq)
{
    const engine_seq *q = &s->seqs[seq];
    if (q->request.p.logprobs || q->adjust || (s->n_ctx > 0 && q->n_ids >= s->n_ctx)) return false;
    if (!speci_flight(s, seq) && !chooses_plain(s, &seq, 1)) return false;
    return s->rule != SPEC_VERIFY_GREEDY || q->request.p.sampling.temperature == 0; /* else a rule that verify refuses */
}

/* The round of the step that is `ahead` (0 or 1) of the sequence's next one: its root alone, which the device may have. */
static engine_round *plain_round(spec_session *s, int32_t seq, int32_t ahead)
{
    const engine_seq *q = &s->seqs[seq];
    engine_round *r = &s->plain[2 * seq + (int32_t)((q->n_step + (uint64_t)ahead) % 2)];
    r->n = 1, r->seqs[0] = seq;
    r->hand_on = s->roots + seq;
    r->rule = s->rule;
    speci_plain_start(s, r, ahead);
    return r;
}

/* Is the move one that has been made, or must not be? */
static bool skips(const move *m, bool in_flight, bool goes_on)
{
    const bool queues = m->verb != READ && m->stage != COMMIT;
    return m->round == NEXT ? !goes_on : queues && in_flight;
}

/* Before anything was enqueued the sequence is as it was. Later its state is ahead of its ids. */
static spec_status fail_plain(spec_session *s, engine_round *now, engine_round *next, spec_status status)
{
    if (now->n_part == 0) return status;
    s->exec->kind->break_seq(s->exec, now->part[0].seq);
    now->n_part = 0;
    if (next) next->n_part = 0;
    return status;
}

/* alone: no other sequence was given, whose prompt would stand in front of a pass that runs ahead. Else nothing new does. */
static spec_status step_ahead(spec_session *s, int32_t seq, bool alone)
{
    engine_seq *q = &s->seqs[seq];
    const bool in_flight = speci_flight(s, seq) != NULL;
    engine_round *now = in_flight ? speci_flight(s, seq) : plain_round(s, seq, 0), *next = NULL;
    const double start = s->now_ms();
    bool goes_on = true;
    for (int32_t i = 0; i < run_ahead.n_move; i++) {
        const move *m = &run_ahead.moves[i];
        if (m->round == NEXT && !next) {
            /* The last token that fits is followed by nothing. */
            goes_on = alone && q->n_ids + 1 < q->n_limit && chooses_plain(s, &seq, 1);
            next = plain_round(s, seq, 1);
        }
        if (skips(m, in_flight, goes_on)) continue;
        const spec_status status = make_move(s, m->round == NEXT ? next : now, m);
        /* Nor is it worth an error if there is no room for a pass that nobody has asked for yet. */
        if ((status == SPEC_E_FULL || status == SPEC_E_BUSY) && m->round == NEXT && m->stage == SCORE) goes_on = false;
        else if (status != SPEC_OK) return fail_plain(s, now, next, status);
        if (m->stage == COMMIT && m->verb == START && s->choice.mode != SPEC_ADAPT_OFF) begin_outcome(s, now, start);
    }
    return SPEC_OK;
}

/* --- the step --- */

/* Did the path leave the first children? */
static bool branched(const engine_part *p)
{
    for (int32_t i = 1; i < p->n_path; i++)
        if (p->tree.rank[p->path[i]] > 0) return true;
    return false;
}

/* What sequence i of the step has come to. */
static spec_status tell(spec_session *s, int32_t i, const engine_part *p)
{
    const engine_seq *q = &s->seqs[p->seq];
    const size_t at = (size_t)i * ((size_t)s->n_node + 1);
    spec_step_result *out = &s->step_results[i];
    memcpy(s->step_ids + at, q->ids + q->n_ids - p->n_path, (size_t)p->n_path * sizeof *q->ids);
    *out = (spec_step_result){ .tokens = s->step_ids + at, .n_tokens = p->n_path, .n_drafted = p->tree.n - 1,
                               .n_accepted = p->n_path - 1, .stop = q->stop, .tree = q->proposal.arm,
                               .branched = p->n_path > 1 && branched(p), .drafter = q->proposal.by };
    if (q->text.tokenizer) out->text = q->text.buf.data, out->n_text = q->text.n_told;
    if (!q->request.p.logprobs) return SPEC_OK;
    out->logprobs = s->step_logprobs + at;
    return speci_logprobs(s, p, out->tokens, p->n_path, s->step_logprobs + at, q->request.p.n_top);
}

/* A sequence whose prompt is still being consumed takes no part in the round. */
static void tell_waiting(spec_session *s, int32_t i, int32_t seq)
{
    const engine_seq *q = &s->seqs[seq];
    s->step_results[i] = (spec_step_result){ .tokens = s->step_ids, .text = q->text.tokenizer ? "" : NULL, .tree = -1, .drafter = -1,
                                             .n_prompt_left = q->n_ids - 1 - s->exec->kind->n_past(s->exec, seq) };
}

/* Prompts go first, within what a step may consume of them. ready [n]: the sequences that have none, *n_ready of them. One whose
 * prompt has just come to its end joins the next step, unless nobody else is ready: the others are not kept waiting for both. Nor
 * is a part consumed beside a pass that ran ahead: the next step would wait for it and for a part of its own. */
static spec_status consume_prompts(spec_session *s, const int32_t *seqs, int32_t n, int32_t *ready, int32_t *n_ready)
{
    const bool in_parts = s->n_prompt_step > 0; /* else what an aborted call has left */
    int32_t left = s->n_prompt_step;
    *n_ready = 0;
    for (int32_t i = 0; i < n; i++)
        if (!s->seqs[seqs[i]].consuming) ready[(*n_ready)++] = seqs[i];
    const bool alone = *n_ready == 0;
    if (in_parts && *n_ready == 1 && speci_flight(s, ready[0])) return SPEC_OK;
    for (int32_t i = 0; i < n; i++) {
        const engine_seq *q = &s->seqs[seqs[i]];
        int32_t n_done = 0;
        if (!q->consuming || (in_parts && left <= 0)) continue;
        SPEC_TRY(speci_sequence_consume(s, seqs[i], in_parts ? left : 0, &n_done));
        left -= n_done;
        if (!q->consuming && (alone || !in_parts)) ready[(*n_ready)++] = seqs[i];
    }
    return SPEC_OK;
}

/* A pass that ran ahead is the step of its sequence, also where others have joined whose prompts are being consumed. */
static spec_status run_round(spec_session *s, const int32_t *seqs, int32_t n, bool alone, const engine_round **ran)
{
    engine_round *r = &s->round;
    if (s->plain && n == 1 && (alone || speci_flight(s, seqs[0])) && runs_ahead(s, seqs[0])) {
        *ran = &s->plain[2 * seqs[0] + (int32_t)(s->seqs[seqs[0]].n_step % 2)];
        return step_ahead(s, seqs[0], alone);
    }
    *ran = r;
    SPEC_TRY(speci_round_begin(s, r, seqs, n));
    r->rule = s->rule;
    const bool chooses = s->choice.mode != SPEC_ADAPT_OFF;
    if (chooses ? !chooses_plain(s, r->seqs, n) : s->drafters.n > 0) return run_drafting(s, r);
    const double start = s->now_ms();
    speci_plain_start(s, r, false);
    if (chooses) begin_outcome(s, r, start);
    return run(s, r, &plain, 0);
}

spec_status spec_step(spec_session *s, const spec_step_result **results, const int32_t *seqs, int32_t n)
{
    ENGINE_ENTER(s);
    SPEC_NEED(seqs || n == 0, "seqs");
    SPEC_NEED(results || n == 0, "results");
    const engine_round *r = NULL;
    int32_t n_ready;
    for (int32_t i = 0; i < n; i++) results[i] = NULL;
    if (speci_session_stopped(s)) return speci_fail(SPEC_E_ABORTED, "stopped before a step");
    SPEC_TRY(speci_session_check(s, seqs, n));
    SPEC_TRY(consume_prompts(s, seqs, n, s->step_seqs, &n_ready));
    if (n_ready > 0) SPEC_TRY(run_round(s, s->step_seqs, n_ready, n == 1, &r));
    for (int32_t i = 0; i < n; i++) {
        int32_t k = 0;
        while (k < n_ready && s->step_seqs[k] != seqs[i]) k++;
        if (k < n_ready) SPEC_TRY(tell(s, i, &r->part[k]));
        else tell_waiting(s, i, seqs[i]);
        results[i] = &s->step_results[i];
    }
    return r ? r->told : SPEC_OK;
}
