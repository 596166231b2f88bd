/* engine_round.c - the stages of a round: what DRAFT, SCORE, VERIFY and COMMIT enqueue, and what they read (algorithms.md 19).
 *
 * One packed pass serves all sequences of a round. What the four public calls do are these stages, each read before the next is
 * enqueued; other orders are schedules (engine_schedule.c). */
#include "algorithms/engine/engine.h"

#include <string.h>

/* --- a round --- */

spec_status speci_round_begin(spec_session *s, engine_round *r, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (s->seqs[seqs[i]].consuming) SPEC_TRY(speci_sequence_consume(s, seqs[i], 0, NULL));
        r->seqs[i] = seqs[i];
        r->trees[i] = &s->seqs[seqs[i]].proposal.tree;
    }
    r->n = n;
    return SPEC_OK;
}

/* What was enqueued is there when it returns. */
static spec_status wait(spec_session *s, engine_round *r)
{
    spec_status status = SPEC_OK;
    if (r->marked) status = s->ops->wait(s->queue, r->mark);
    else if (r->queued) status = s->ops->sync(s->queue);
    if (!r->marked) r->queued = false;
    r->marked = false;
    return status;
}

engine_round *speci_flight(const spec_session *s, int32_t seq)
{
    if (!s->plain) return NULL;
    engine_round *r = &s->plain[2 * seq + (int32_t)(s->seqs[seq].n_step % 2)];
    return r->n_part > 0 ? r : NULL;
}

/* The rows of a pass replace those of the one before, for every sequence. */
static void forget_scores(spec_session *s)
{
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].part = -1;
    s->round.n_part = 0;
}

/* --- DRAFT --- */

/* The proposal of this round is the root alone. */
static void begin_proposal(engine_seq *q, uint64_t round)
{
    engine_proposal *p = &q->proposal;
    p->tree.n = 0, p->tree.kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(&p->tree, -1, q->ids[q->n_ids - 1], 1);
    p->round = round;
    p->arm = p->by = -1;
    p->asked = false;
    p->n_match = 0;
    p->builder = NULL;
    p->depth = 0;
}

/* Asks for proposals for the first n_ask sequences, by one way to draft. Trees that stand on the device then are r->pending's. */
static spec_status propose(spec_session *s, engine_round *r, int32_t way, int32_t n_ask)
{
    const speci_draft_way *w = &s->ways[way];
    int32_t n = 0;
    for (int32_t i = 0; i < n_ask; i++) {
        engine_proposal *p = &s->seqs[r->seqs[i]].proposal;
        speci_draft_seq *ask = &s->asked[n];
        *ask = speci_sequence_asked(s, r->seqs[i]);
        ask->least = w->least;
        p->arm = way;
        p->builder = w->only; /* it sees the steps without room for a draft, too */
        p->asked = ask->depth_max > 0;
        n += p->asked;
    }
    if (n == 0) return SPEC_OK;
    SPEC_TRY(speci_draft_enqueue(&s->drafters, w, s->asked, n, &r->pending));
    for (int32_t i = 0; i < n; i++) {
        engine_proposal *p = &s->seqs[s->asked[i].seq].proposal;
        p->by = s->asked[i].by, p->builder = s->asked[i].builder;
        p->depth = s->asked[i].depth_max, p->n_match = s->asked[i].n_match;
        p->repeats = s->seqs[s->asked[i].seq].repeats;
    }
    r->queued = r->pending != NULL;
    return SPEC_OK;
}

/* All proposals are with the host; after an error, `status`, they are given up. A tree of more nodes than the session planned for loses
 * the last slots, whatever they hold. Returns status. */
static spec_status end_proposals(spec_session *s, const engine_round *r, spec_status status)
{
    for (int32_t i = 0; i < r->n; i++) {
        engine_seq *q = &s->seqs[r->seqs[i]];
        spec_tree *t = &q->proposal.tree;
        if (status != SPEC_OK) begin_proposal(q, s->n_round);
        if (t->n <= s->n_node) continue;
        t->n = s->n_node;
        speci_tree_forget_rows(t);
    }
    return status;
}

spec_status speci_draft_start(spec_session *s, engine_round *r)
{
    const double start = s->now_ms();
    s->n_round++;
    r->pending = NULL;
    r->plain = r->root_on_device = false;
    r->marked = r->queued = false;
    for (int32_t i = 0; i < r->n; i++) begin_proposal(&s->seqs[r->seqs[i]], s->n_round);
    if (s->drafters.n == 0) return SPEC_OK;
    const bool chooses = s->choice.mode != SPEC_ADAPT_OFF;
    if (chooses && r->n == 1) speci_watch_alone(s, r->seqs[0]);
    const int32_t arm = chooses ? speci_choice_arm(&s->choice, r->n) : 1;
    const spec_status status = arm > 0 ? propose(s, r, arm - 1, chooses ? s->choice.n_ask : r->n) : SPEC_OK;
    if (status != SPEC_OK || !r->pending) SPEC_TRY(end_proposals(s, r, status));
    if (chooses) speci_ways_begin(s, arm, r->n, start);
    return SPEC_OK;
}

void speci_plain_start(spec_session *s, engine_round *r, bool root_on_device)
{
    r->pending = NULL;
    r->plain = true;
    r->root_on_device = root_on_device;
    r->marked = r->queued = false;
    if (r == &s->round) forget_scores(s); /* the parts are taken */
    for (int32_t i = 0; i < r->n; i++) {
        engine_seq *q = &s->seqs[r->seqs[i]];
        engine_part *p = &r->part[i];
        p->seq = r->seqs[i];
        p->tree.n = 1, p->tree.kind = SPEC_TREE_DETERMINISTIC;
        p->tree.token[0] = r->root_on_device ? -1 : q->ids[q->n_ids - 1];
        p->tree.parent[0] = p->tree.q_row[0] = -1, p->tree.rank[0] = 0, p->tree.prob[0] = 1;
        p->round = p->probs_round = 0;
        r->trees[i] = &p->tree;
        q->proposal.round = 0;
        q->proposal.arm = q->proposal.by = -1;
        q->proposal.asked = false;
    }
}

/* --- SCORE --- */

static spec_status check_tree(const spec_session *s, int32_t seq, const spec_tree *t)
{
    const engine_seq *q = &s->seqs[seq];
    SPEC_TRY(spec_tree_check(t, s->n_node, s->target->n_vocab));
    if (t->token[0] != q->ids[q->n_ids - 1])
        return speci_fail(SPEC_E_INVALID, "the root is token %d; the pending token of sequence %d is %d", t->token[0],
                          seq, q->ids[q->n_ids - 1]);
    return SPEC_OK;
}

/* t NULL: the root alone. */
static spec_status check_context(const spec_session *s, int32_t seq, const spec_tree *t)
{
    const engine_seq *q = &s->seqs[seq];
    if (q->n_ids >= s->n_ctx)
        return speci_fail(SPEC_E_FULL, "sequence %d has reached the context of %d tokens", seq, s->n_ctx);
    for (int32_t i = 1; t && i < t->n; i++)
        if (q->n_ids + speci_tree_depth(t, i) >= s->n_ctx)
            return speci_fail(SPEC_E_FULL, "node %d would stand behind the context of %d tokens", i, s->n_ctx);
    return SPEC_OK;
}

/* Do the tree's q rows name distributions of a proposal? */
static bool names_probs(const spec_session *s, const spec_tree *t)
{
    if (!speci_tree_sampled(t->kind) || !t->q_row || !s->site.q) return false;
    for (int32_t i = 1; i < t->n; i++)
        if (t->q_row[t->parent[i]] < 0 || t->q_row[t->parent[i]] >= s->site.n_q) return false;
    return true;
}

/* What the next stages need of a tree, once all of it is with the host. */
static void keep_tree(const spec_session *s, engine_part *p, const spec_tree *t)
{
    const engine_proposal *own = &s->seqs[p->seq].proposal;
    const bool samples = s->seqs[p->seq].request.p.sampling.temperature > 0;
    (void)spec_tree_copy(&p->tree, t); /* fits: it was checked */
    p->probs_round = samples && names_probs(s, t) ? own->round : 0;
    p->round = t == &own->tree || (own->round && speci_tree_equal(t, &own->tree)) ? own->round : 0;
}

static void keep_part(spec_session *s, engine_round *r, int32_t i)
{
    engine_part *p = &r->part[i];
    p->seq = r->seqs[i];
    p->first_row = s->exec->first_row[i];
    p->raw_row = -1;
    p->position = (uint64_t)s->seqs[p->seq].n_ids + r->root_on_device;
    if (!r->plain) keep_tree(s, p, r->trees[i]);
}

static spec_status check_inputs(spec_session *s, const engine_round *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        const engine_proposal *p = &s->seqs[r->seqs[i]].proposal;
        const bool own = r->trees[i] == &p->tree && p->round > 0; /* as deep as there is room for */
        if (!r->pending && !r->plain) SPEC_TRY(check_tree(s, r->seqs[i], r->trees[i]));
        if (s->n_ctx > 0) SPEC_TRY(check_context(s, r->seqs[i], own ? NULL : r->trees[i]));
        else SPEC_TRY(speci_sequence_room(s, &s->seqs[r->seqs[i]], 0)); /* a context has its room from the beginning */
    }
    return SPEC_OK;
}

/* Logits as the requests have them, once the tokens of the trees are known (r->adjusted). After an error nothing was scored. */
static spec_status adjust(spec_session *s, engine_round *r)
{
    const spec_status status = speci_round_adjust(s, r);
    if (status == SPEC_OK) return SPEC_OK;
    for (int32_t i = 0; i < r->n_part && status == SPEC_E_DEVICE; i++) s->exec->kind->break_seq(s->exec, r->part[i].seq);
    speci_round_drop(s, r);
    return status;
}

spec_status speci_score_start(spec_session *s, engine_round *r)
{
    static const spec_tree none = { 0 };
    bool greedy = false; /* is any of them? */
    r->adjusted = false;
    SPEC_TRY(check_inputs(s, r));
    for (int32_t i = 0; i < r->n; i++) {
        engine_seq *q = &s->seqs[r->seqs[i]];
        engine_proposal *own = &q->proposal;
        engine_round *flight = s->plain && r == &s->round ? speci_flight(s, r->seqs[i]) : NULL;
        greedy = greedy || q->request.p.sampling.temperature == 0;
        r->adjusted = r->adjusted || q->adjust;
        if (flight) speci_round_drop(s, flight);
        if (r->pending && own->depth > 0) speci_builder_known_shape(own->builder, own->depth, &own->tree); /* of a tree on the device */
        s->inputs[i] = (speci_exec_input){ .slot = r->seqs[i], .tree = r->root_on_device ? &none : r->trees[i],
                                           .n_grown = r->root_on_device };
    }
    const speci_exec_feed feed = { .nodes = r->root_on_device ? s->roots : NULL, .ld = 1, .grown = r->pending ? r->pending->grown : NULL,
                                   .ld_grown = r->pending ? r->pending->ld_grown : 0 };
    const speci_exec_tokens likeliest = { .token = r->likeliest, .next = r->hand_on };
    const spec_status status = s->exec->kind->forward(s->exec, s->inputs, r->n, &feed, greedy ? &likeliest : NULL);
    /* A pass that failed on its way has written over rows of the one before. */
    if (status == SPEC_OK || status == SPEC_E_DEVICE || status == SPEC_E_NOMEM) forget_scores(s);
    SPEC_TRY(status);
    for (int32_t i = 0; i < r->n; i++) keep_part(s, r, i);
    for (int32_t i = 0; i < r->n && r == &s->round; i++) s->seqs[r->seqs[i]].part = i;
    r->n_part = r->n;
    r->by_shape = r->pending != NULL;
    r->queued = true;
    return r->adjusted && !r->by_shape ? adjust(s, r) : SPEC_OK;
}

void speci_round_drop(spec_session *s, engine_round *r)
{
    for (int32_t i = 0; i < r->n_part; i++) {
        s->exec->kind->commit(s->exec, r->part[i].seq, NULL, 0);
        s->seqs[r->part[i].seq].part = -1;
    }
    r->n_part = 0;
    r->marked = r->by_shape = false;
}

void speci_sequence_forget(spec_session *s, int32_t seq)
{
    engine_round *flight = speci_flight(s, seq), own = s->round;
    if (flight) speci_round_drop(s, flight);
    if (s->seqs[seq].part < 0) return;
    own.part += s->seqs[seq].part, own.n_part = 1;
    speci_round_drop(s, &own);
}

/* --- DRAFT is read, before the trees are scored or after --- */

static bool same_shape(const spec_tree *a, const spec_tree *b)
{
    return a->n == b->n && memcmp(a->parent, b->parent, (size_t)a->n * sizeof *a->parent) == 0;
}

/* Trees that were scored by their shapes now have their tokens. */
static void fill_parts(spec_session *s, engine_round *r)
{
    for (int32_t i = 0; i < r->n_part; i++)
        if (!same_shape(&r->part[i].tree, r->trees[i])) r->reshaped = true;
    r->by_shape = false;
    if (r->reshaped) speci_round_drop(s, r);
    for (int32_t i = 0; i < r->n_part; i++) keep_tree(s, &r->part[i], r->trees[i]);
}

spec_status speci_draft_read(spec_session *s, engine_round *r)
{
    speci_draft *d = r->pending;
    r->reshaped = false;
    if (!d) return SPEC_OK;
    spec_status status = wait(s, r);
    r->pending = NULL;
    status = speci_draft_take(d, status);
    SPEC_TRY(end_proposals(s, r, status));
    if (!r->by_shape) return SPEC_OK;
    fill_parts(s, r);
    return r->adjusted ? adjust(s, r) : SPEC_OK;
}

/* --- VERIFY --- */

/* The rule that a part of a sequence that samples is verified by; NULL: there is no such rule. After a root alone the target
 * decides under any. */
static const speci_verify_rule *rule_for(const spec_session *s, const engine_part *p, spec_verify_rule rule)
{
    const engine_seq *q = &s->seqs[p->seq];
    const float temperature = q->request.p.sampling.temperature;
    const bool has_probs = p->probs_round != 0 && p->probs_round == q->proposal.round;
    const spec_tree_kind kind = has_probs ? p->tree.kind : SPEC_TREE_DETERMINISTIC;
    const speci_verify_rule *v = speci_verify_resolve(rule, kind, speci_tree_is_flat(&p->tree), temperature, s->ops);
    if (!v || v->greedy || p->tree.n > 1) return v;
    return speci_verify_resolve(SPEC_VERIFY_AUTO, SPEC_TREE_DETERMINISTIC, true, temperature, s->ops);
}

static spec_status choose_rule(const spec_session *s, engine_part *p, spec_verify_rule rule, const speci_verify_rule **out)
{
    const engine_seq *q = &s->seqs[p->seq];
    const speci_verify_rule *v = *out = rule_for(s, p, rule);
    if (!v) return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    if (p->tree.n == 1 && !v->greedy) return SPEC_OK;
    SPEC_TRY(spec_verify_is_lossless(&p->tree, v->id, q->request.p.sampling.temperature));
    if (!speci_verify_runs_on(v, s->ops))
        return speci_fail(SPEC_E_UNSUPPORTED, "the backend %s cannot verify by %s: verify by %s", s->ops->name, v->name,
                          spec_verify_rule_name(SPEC_VERIFY_AUTO));
    if (v->uses_draft_probs && (p->probs_round == 0 || p->probs_round != q->proposal.round))
        return speci_fail(SPEC_E_INVALID, "%s needs the distributions that the tree was drawn from, and the session has none "
                          "of it: verify it by %s, or with spec_verify_probs", v->name,
                          spec_verify_rule_name(SPEC_VERIFY_NAIVE));
    return SPEC_OK;
}

/* Adds a part to what is being verified. */
static spec_status add_item(spec_session *s, engine_round *r, engine_part *p)
{
    const engine_seq *q = &s->seqs[p->seq];
    const speci_verify_rule *rule = &speci_verify_greedy; /* at T = 0 all rules are one */
    if (q->request.p.sampling.temperature > 0) SPEC_TRY(choose_rule(s, p, r->rule, &rule));
    p->item = (speci_verify_item){ .rule = rule, .tree = &p->tree, .sampling = &q->request.p.sampling, .position = p->position,
                                   .logits_row = p->first_row, .q_row = p->seq * s->site.n_q,
                                   .likeliest = r->likeliest + p->first_row, .eos = q->request.ends,
                                   .n_eos = q->request.n_end, .path = p->path, .n_path = &p->n_path, .token = &p->token };
    speci_verify_batch_add(&r->batch, &p->item);
    return SPEC_OK;
}

spec_status speci_verify_start(spec_session *s, engine_round *r)
{
    speci_verify_batch *b = &r->batch;
    r->queued = true;
    b->items = NULL;
    for (int32_t i = r->n_part - 1; i >= 0; i--) {
        engine_part *p = &r->part[i];
        p->item.rule = NULL; /* the likeliest token after a root alone comes with the pass: no rule has to look at it */
        if (p->tree.n > 1 || s->seqs[p->seq].request.p.sampling.temperature > 0) SPEC_TRY(add_item(s, r, p));
    }
    if (!b->items) return SPEC_OK;
    b->ops = s->ops;
    b->logits = s->exec->logits;
    b->next = r->hand_on;
    b->rows.n_candidate = b->rows.n_call = 0;
    return speci_verify_batch_enqueue(b);
}

/* What a part emits: the tokens of its path behind the root, then the one that follows. Returns how many. */
static int32_t emitted(const engine_part *p, int32_t *tokens)
{
    for (int32_t k = 1; k < p->n_path; k++) tokens[k - 1] = p->tree.token[p->path[k]];
    tokens[p->n_path - 1] = p->token;
    return p->n_path;
}

/* The text ends with the token that completes a stop string: the path goes no further. Of a request that has some. */
static spec_status cut_at_stop(spec_session *s, engine_part *p)
{
    engine_seq *q = &s->seqs[p->seq];
    int32_t tokens[SPEC_MAX_DEPTH + 2], n;
    SPEC_TRY(speci_text_cut(&q->text, &q->request, tokens, emitted(p, tokens), &n));
    if (n < p->n_path) p->n_path = n, p->token = tokens[n - 1];
    return SPEC_OK;
}

spec_status speci_verify_read(spec_session *s, engine_round *r)
{
    SPEC_TRY(wait(s, r));
    for (int32_t i = 0; i < r->n_part; i++) {
        engine_part *p = &r->part[i];
        if (p->item.rule) continue;
        p->path[0] = 0, p->n_path = 1, p->token = r->likeliest[p->first_row];
        if (p->token < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node 0 are not numbers");
    }
    if (r->batch.items) SPEC_TRY(speci_verify_batch_walk(&r->batch));
    for (int32_t i = 0; i < r->n_part; i++)
        if (s->seqs[r->part[i].seq].request.stops.n > 0) SPEC_TRY(cut_at_stop(s, &r->part[i]));
    return SPEC_OK;
}

/* --- COMMIT --- */

/* The path is known where a tree has but its root. */
spec_status speci_commit_start(spec_session *s, engine_round *r)
{
    for (int32_t i = 0; i < r->n_part; i++) {
        engine_part *p = &r->part[i];
        if (p->tree.n == 1) p->path[0] = 0, p->n_path = 1;
        s->exec->kind->commit(s->exec, p->seq, p->path, p->n_path);
    }
    return SPEC_OK;
}

static spec_stop stop_of(const spec_session *s, const engine_seq *q)
{
    const engine_request *r = &q->request;
    const int32_t token = q->ids[q->n_ids - 1];
    if (speci_has_id(r->ends, r->n_eos, token)) return SPEC_STOP_EOS;
    if (speci_has_id(r->ends, r->n_end, token)) return SPEC_STOP_STRING;
    if (q->n_ids >= q->n_end) return SPEC_STOP_LENGTH;
    return s->n_ctx > 0 && q->n_ids >= s->n_ctx ? SPEC_STOP_CONTEXT : SPEC_STOP_NONE;
}

/* What came of a proposal that was scored and verified as it was. */
static void tell_outcome(spec_session *s, const engine_part *p)
{
    const engine_proposal *own = &s->seqs[p->seq].proposal;
    speci_drafters_tell(&s->drafters, &(speci_draft_outcome){ .tree = &p->tree, .path = p->path, .n_path = p->n_path, .by = own->by,
                                                              .maker = own->maker, .builder = own->builder });
    if (p->round == s->outcome.round) speci_ways_tell(s, p);
}

/* Drafters are told of all parts, even if one of them fails: all are committed. */
spec_status speci_commit_read(spec_session *s, engine_round *r)
{
    r->told = SPEC_OK;
    for (int32_t i = 0; i < r->n_part; i++) {
        engine_part *p = &r->part[i];
        engine_seq *q = &s->seqs[p->seq];
        if (p->round) tell_outcome(s, p);
        q->n_ids += emitted(p, q->ids + q->n_ids);
        q->proposal.round = 0;
        q->part = -1;
        q->n_step++;
        if (s->drafters.n > 0) {
            const speci_draft_seq ask = speci_sequence_asked(s, p->seq);
            const spec_status told = s->tells_hidden ? speci_hidden_path(s, &ask, p) : SPEC_OK;
            if (told != SPEC_OK) r->told = told, s->exec->kind->break_seq(s->exec, p->seq);
            speci_sequence_tell(s, &ask);
        }
        q->stop = stop_of(s, q);
        if (q->text.tokenizer)
            SPEC_TRY(speci_text_add(&q->text, &q->request, q->ids + q->n_ids - p->n_path, p->n_path, &q->stop));
    }
    if (r->told == SPEC_OK && s->watches) speci_watch_round(s, r);
    r->n_part = 0;
    return SPEC_OK;
}
