/* engine_adjust.c - see engine_adjust.h. */
#include "algorithms/engine/engine_adjust.h"

#include <math.h>
#include <string.h>

#include "algorithms/engine/engine.h"

/* --- the request --- */

static bool penalises(const spec_request *p)
{
    return (p->repeat_penalty != 0 && p->repeat_penalty != 1) || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static spec_status check(const spec_session *s, const spec_request *p)
{
    const bool finite = isfinite(p->repeat_penalty) && isfinite(p->presence_penalty) && isfinite(p->frequency_penalty);
    if (!finite || p->repeat_penalty < 0)
        return speci_fail(SPEC_E_INVALID, "repeat_penalty %g, presence_penalty %g, frequency_penalty %g: numbers, the first not "
                          "negative", (double)p->repeat_penalty, (double)p->presence_penalty, (double)p->frequency_penalty);
    if (p->n_penalty < 0) return speci_fail(SPEC_E_INVALID, "n_penalty is %d", p->n_penalty);
    if (p->n_bias < 0 || (p->n_bias > 0 && !p->bias)) return speci_fail(SPEC_E_INVALID, "n_bias is %d, bias is %s", p->n_bias,
                                                                         p->bias ? "given" : "NULL");
    for (int32_t i = 0; i < p->n_bias; i++) {
        const spec_logit_bias *b = &p->bias[i];
        if (b->token < 0 || b->token >= s->target->n_vocab)
            return speci_fail(SPEC_E_INVALID, "bias %d is for token %d, not in the vocabulary of %d ids", i, b->token, s->target->n_vocab);
        if (isnan(b->bias) || b->bias == INFINITY)
            return speci_fail(SPEC_E_INVALID, "bias %d, of token %d, is %g: a number, or -infinity", i, b->token, (double)b->bias);
    }
    return SPEC_OK;
}

static spec_status alloc(engine_adjust *a, const spec_session *s)
{
    const size_t n = (size_t)a->n_vocab;
    a->bias = speci_alloc(s->a, n, sizeof *a->bias);
    a->n_seen = speci_alloc(s->a, n, sizeof *a->n_seen);
    a->n_out = speci_alloc(s->a, n, sizeof *a->n_out);
    a->entry = speci_alloc(s->a, n, sizeof *a->entry);
    a->edits = speci_alloc(s->a, n, sizeof *a->edits);
    return a->bias && a->n_seen && a->n_out && a->entry && a->edits ? SPEC_OK : SPEC_E_NOMEM;
}

void speci_adjust_close(const spec_session *s, engine_adjust *a)
{
    if (!a) return;
    void *arrays[] = { a->bias, a->n_seen, a->n_out, a->entry, a->edits, a };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(s->a, arrays[i]);
}

/* Device memory for passes of any of the session's sequences. */
static spec_status open_adjuster(spec_session *s)
{
    engine_adjuster *j = &s->adjuster;
    const size_t n_vocab = (size_t)s->target->n_vocab, rows = (size_t)s->n_seq * (size_t)s->n_node;
    const size_t own = 2 * (SPEC_MAX_DEPTH + 1), edits = (size_t)s->n_seq * n_vocab + rows * own;
    void *at = NULL;
    if (!j->raw) {
        j->raw_bytes = rows * n_vocab * sizeof *j->raw;
        SPEC_TRY(s->ops->alloc(s->dev, &at, j->raw_bytes));
        j->raw = at;
    }
    if (j->room) return SPEC_OK;
    j->room_bytes = spec_adjust_room(rows, edits, rows, (n_vocab + 31) / 32);
    j->rows.a = j->edits.a = j->masks.a = s->a;
    return s->ops->alloc(s->dev, &j->room, j->room_bytes);
}

void speci_adjuster_close(spec_session *s)
{
    engine_adjuster *j = &s->adjuster;
    if (j->raw) s->ops->free(s->dev, j->raw, j->raw_bytes);
    if (j->room) s->ops->free(s->dev, j->room, j->room_bytes);
    speci_buf_free(&j->rows), speci_buf_free(&j->edits), speci_buf_free(&j->masks);
}

/* What an entry comes to by the counts as they are. */
static spec_logit_edit edit_of(const engine_adjust *a, int32_t token)
{
    const int32_t n_out = a->n_out[token];
    return (spec_logit_edit){ .token = token, .repeat = a->n_seen[token] > 0 ? a->repeat : 1.0f,
                              .add = a->bias[token] - (n_out > 0 ? a->presence : 0.0f) - a->frequency * (float)n_out };
}

static void refresh(engine_adjust *a, int32_t token)
{
    if (a->entry[token] == 0) a->entry[token] = ++a->n_edit;
    a->edits[a->entry[token] - 1] = edit_of(a, token);
}

/* Is there a token that neither the mask (NULL: none) nor a bias forbids? */
static bool any_left(const engine_adjust *a, const uint32_t *mask)
{
    for (int32_t i = 0; i < a->n_vocab; i++)
        if ((!mask || (mask[i / 32] >> (i % 32) & 1)) && a->bias[i] != -INFINITY) return true;
    return false;
}

static spec_status fill(engine_adjust *a, const spec_session *s, const spec_request *p)
{
    SPEC_TRY(alloc(a, s));
    for (int32_t i = 0; i < p->n_bias; i++) a->bias[p->bias[i].token] += p->bias[i].bias;
    for (int32_t i = 0; i < p->n_bias; i++) {
        const int32_t token = p->bias[i].token;
        if (a->bias[token] == INFINITY) return speci_fail(SPEC_E_INVALID, "the biases of token %d add up to infinity", token);
        refresh(a, token);
    }
    return any_left(a, NULL) ? SPEC_OK : speci_fail(SPEC_E_INVALID, "biases of -infinity leave no token");
}

spec_status speci_adjust_open(engine_adjust **out, spec_session *s, const spec_request *p)
{
    *out = NULL;
    SPEC_TRY(check(s, p));
    if (!p->mask && p->n_bias == 0 && !penalises(p)) return SPEC_OK;
    SPEC_TRY(open_adjuster(s));
    engine_adjust *a = speci_alloc(s->a, 1, sizeof *a);
    if (!a) return SPEC_E_NOMEM;
    *a = (engine_adjust){ .mask = p->mask, .mask_user_data = p->mask_user_data,
                          .repeat = p->repeat_penalty != 0 ? p->repeat_penalty : 1.0f, .presence = p->presence_penalty,
                          .frequency = p->frequency_penalty, .window = p->n_penalty, .n_vocab = s->target->n_vocab };
    const spec_status status = fill(a, s, p);
    if (status == SPEC_OK) *out = a;
    else speci_adjust_close(s, a);
    return status;
}

spec_status speci_adjust_copy(engine_adjust **out, const spec_session *s, const engine_adjust *from)
{
    *out = NULL;
    if (!from) return SPEC_OK;
    const size_t n = (size_t)from->n_vocab;
    engine_adjust *a = speci_alloc(s->a, 1, sizeof *a);
    if (!a) return SPEC_E_NOMEM;
    *a = *from;
    if (alloc(a, s) != SPEC_OK) {
        speci_adjust_close(s, a);
        return SPEC_E_NOMEM;
    }
    memcpy(a->bias, from->bias, n * sizeof *a->bias);
    memcpy(a->n_seen, from->n_seen, n * sizeof *a->n_seen);
    memcpy(a->n_out, from->n_out, n * sizeof *a->n_out);
    memcpy(a->entry, from->entry, n * sizeof *a->entry);
    memcpy(a->edits, from->edits, (size_t)from->n_edit * sizeof *a->edits);
    *out = a;
    return SPEC_OK;
}

/* --- counts --- */

static bool counts(const engine_adjust *a) { return a->repeat != 1 || a->presence != 0 || a->frequency != 0; }

/* Token ids[i] comes into the window (by 1) or leaves it (by -1). */
static void count(engine_adjust *a, const engine_seq *q, int32_t i, int32_t by)
{
    a->n_seen[q->ids[i]] += by;
    if (i >= q->n_prompt) a->n_out[q->ids[i]] += by;
}

/* Where the window that ends in front of ids[to] begins. */
static int32_t window_begin(const engine_adjust *a, int32_t to)
{
    const int32_t begin = a->window > 0 && to > a->window ? to - a->window : 0;
    return begin > a->from ? begin : a->from;
}

static void move_window(engine_adjust *a, const engine_seq *q, int32_t to)
{
    for (; a->to < to; a->to++) count(a, q, a->to, 1), refresh(a, q->ids[a->to]);
    for (const int32_t from = window_begin(a, to); a->from < from; a->from++) count(a, q, a->from, -1), refresh(a, q->ids[a->from]);
}

/* What was emitted begins elsewhere, after a prompt: everything is counted anew, and so each entry refreshed, before the next pass. */
void speci_adjust_recount(engine_adjust *a)
{
    if (!a) return;
    memset(a->n_seen, 0, (size_t)a->n_vocab * sizeof *a->n_seen);
    memset(a->n_out, 0, (size_t)a->n_vocab * sizeof *a->n_out);
    a->from = a->to = 0;
}

/* --- nodes --- */

/* One tree of a pass. */
typedef struct tree_view {
    spec_session *s;
    engine_seq *q;
    engine_part *part;
    int32_t first_edit;
    int32_t mask_of[SPECI_MAX_NODE]; /* of each node; -1: none, -2: the node cannot be reached */
} tree_view;

enum { NO_MASK = -1, OUT_OF_REACH = -2 };

static int32_t n_of(const speci_buf *b, size_t size) { return (int32_t)(b->n / size); }

/* The node's path goes behind the sequence's ids, where there is room for it (speci_sequence_room, check_context). Returns its depth. */
static int32_t lay_path(const tree_view *v, int32_t node)
{
    const spec_tree *t = &v->part->tree;
    const int32_t depth = speci_tree_depth(t, node);
    for (int32_t i = node, d = depth; d > 0; i = t->parent[i], d--) v->q->ids[v->q->n_ids + d - 1] = t->token[i];
    return depth;
}

static bool reaches(const tree_view *v, int32_t node)
{
    const spec_tree *t = &v->part->tree;
    if (node == 0) return true;
    const int32_t above = v->mask_of[t->parent[node]], token = t->token[node], n_word = (v->s->target->n_vocab + 31) / 32;
    if (above == OUT_OF_REACH || speci_has_id(v->q->request.ends, v->q->request.n_end, token)) return false;
    const uint32_t *masks = (const uint32_t *)(const void *)v->s->adjuster.masks.data;
    return above == NO_MASK || (masks[(size_t)above * (size_t)n_word + (size_t)token / 32] >> (token % 32) & 1);
}

/* Asks the application which tokens may follow ids [n]. */
static spec_status add_mask(tree_view *v, int32_t node, size_t n)
{
    const engine_adjust *a = v->q->adjust;
    speci_buf *b = &v->s->adjuster.masks;
    const size_t bytes = ((size_t)a->n_vocab + 31) / 32 * sizeof(uint32_t);
    SPEC_TRY(speci_buf_reserve(b, bytes));
    uint32_t *mask = (uint32_t *)(void *)(b->data + b->n);
    memset(mask, 0xff, bytes);
    if (a->mask(a->mask_user_data, mask, a->n_vocab, v->q->ids, n) != 0)
        return speci_fail(SPEC_E_ABORTED, "stopped by the mask callback");
    if (!any_left(a, mask))
        return speci_fail(SPEC_E_INVALID, "mask and biases of sequence %d leave no token after %zu ids", v->part->seq, n);
    v->mask_of[node] = n_of(b, bytes);
    b->n += bytes;
    return SPEC_OK;
}

/* The tokens whose counts a path changes, each once: its own, and those that leave the window for them. */
static int32_t list_changed(const engine_adjust *a, const engine_seq *q, int32_t from, int32_t to, int32_t *tokens)
{
    int32_t n = 0;
    for (int32_t i = a->from < from ? a->from : a->to; i < to; i++) {
        if (i == from && i < a->to) i = a->to; /* those between stay */
        int32_t k = 0;
        while (k < n && tokens[k] != q->ids[i]) k++;
        if (k == n) tokens[n++] = q->ids[i];
    }
    return n;
}

static void count_path(engine_adjust *a, const engine_seq *q, int32_t from, int32_t to, int32_t by)
{
    for (int32_t i = a->to; i < to; i++) count(a, q, i, by);
    for (int32_t i = a->from; i < from; i++) count(a, q, i, -by);
}

/* Edits of the entries that the path changes. */
static spec_status add_own(tree_view *v, int32_t depth)
{
    engine_adjust *a = v->q->adjust;
    const int32_t to = a->to + depth, from = window_begin(a, to);
    int32_t changed[2 * (SPEC_MAX_DEPTH + 1)];
    spec_status status = SPEC_OK;
    count_path(a, v->q, from, to, 1);
    const int32_t n = list_changed(a, v->q, from, to, changed);
    for (int32_t i = 0; i < n && status == SPEC_OK; i++) {
        const spec_logit_edit e = edit_of(a, changed[i]);
        status = speci_buf_add(&v->s->adjuster.edits, &e, sizeof e);
    }
    count_path(a, v->q, from, to, -1);
    return status;
}

static spec_status add_node(tree_view *v, int32_t node)
{
    engine_adjuster *j = &v->s->adjuster;
    engine_adjust *a = v->q->adjust;
    v->mask_of[node] = OUT_OF_REACH;
    if (!reaches(v, node)) return SPEC_OK;
    v->mask_of[node] = NO_MASK;
    const int32_t depth = lay_path(v, node), first_own = n_of(&j->edits, sizeof(spec_logit_edit));
    if (a->mask) SPEC_TRY(add_mask(v, node, (size_t)(v->q->n_ids + depth)));
    if (counts(a) && depth > 0) SPEC_TRY(add_own(v, depth));
    const spec_adjust_row row = { .src = v->part->raw_row + node, .dst = v->part->first_row + node, .first_edit = v->first_edit,
                                  .n_edit = a->n_edit, .first_own = first_own,
                                  .n_own = n_of(&j->edits, sizeof(spec_logit_edit)) - first_own, .mask = v->mask_of[node] };
    return speci_buf_add(&j->rows, &row, sizeof row);
}

/* --- a pass --- */

static spec_status keep_raw(spec_session *s, const engine_part *p)
{
    const size_t ld = (size_t)s->exec->n_logit;
    const spec_range_copy range = { s->adjuster.raw + (size_t)p->raw_row * ld, s->exec->logits + (size_t)p->first_row * ld,
                                    (size_t)p->tree.n * ld * sizeof(float) };
    return s->ops->copy(s->queue, &range, 1);
}

static spec_status add_part(spec_session *s, engine_part *p)
{
    engine_adjuster *j = &s->adjuster;
    tree_view v = { .s = s, .q = &s->seqs[p->seq], .part = p };
    engine_adjust *a = v.q->adjust;
    if (counts(a)) move_window(a, v.q, v.q->n_ids);
    v.first_edit = n_of(&j->edits, sizeof(spec_logit_edit));
    SPEC_TRY(speci_buf_add(&j->edits, a->edits, (size_t)a->n_edit * sizeof *a->edits));
    for (int32_t i = 0; i < p->tree.n; i++) SPEC_TRY(add_node(&v, i));
    return keep_raw(s, p);
}

static spec_status find_likeliest(spec_session *s, const engine_round *r)
{
    for (int32_t i = 0; i < r->n_part; i++) {
        const engine_part *p = &r->part[i];
        const engine_seq *q = &s->seqs[p->seq];
        if (!q->adjust || q->request.p.sampling.temperature != 0) continue;
        spec_argmax_args a = speci_exec_argmax(s->exec, p->first_row, p->tree.n);
        a.host_out_token = r->likeliest + p->first_row;
        SPEC_TRY(s->ops->argmax(s->queue, &a));
    }
    return SPEC_OK;
}

spec_status speci_round_adjust(spec_session *s, engine_round *r)
{
    engine_adjuster *j = &s->adjuster;
    const int32_t ld = s->exec->n_logit;
    int32_t n_raw = 0;
    j->rows.n = j->edits.n = j->masks.n = 0;
    for (int32_t i = 0; i < r->n_part; i++) {
        engine_part *p = &r->part[i];
        if (!s->seqs[p->seq].adjust) continue;
        p->raw_row = n_raw, n_raw += p->tree.n;
        SPEC_TRY(add_part(s, p));
    }
    const size_t word = ((size_t)ld + 31) / 32;
    const spec_adjust_args args = { .logits = j->raw, .out = s->exec->logits, .ld = ld, .n_vocab = ld,
                                    .n_row = n_of(&j->rows, sizeof(spec_adjust_row)),
                                    .n_edit = n_of(&j->edits, sizeof(spec_logit_edit)),
                                    .n_mask = n_of(&j->masks, word * sizeof(uint32_t)), .n_word = (int32_t)word,
                                    .host_row = (const spec_adjust_row *)(const void *)j->rows.data,
                                    .host_edit = (const spec_logit_edit *)(const void *)j->edits.data,
                                    .host_mask = (const uint32_t *)(const void *)j->masks.data, .room = j->room };
    SPEC_TRY(speci_adjust(s->ops, s->queue, &args, s->a));
    return find_likeliest(s, r);
}
