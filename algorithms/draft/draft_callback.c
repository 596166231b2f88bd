/* draft_callback.c - an application's own drafter: it proposes whole trees, or tells distributions from which the library's
 * builders grow them. */
#include "algorithms/draft/draft.h"

#include <string.h>

enum { ROWS = SPEC_MAX_DEPTH + 1 }; /* hidden rows that the application gets at once: a whole path */

/* --- the object --- */

static spec_status keep_ops(spec_drafter *d, const spec_drafter_ops *ops)
{
    SPEC_TRY(speci_drafter_take_taps(d, ops->taps, ops->n_tap));
    spec_drafter_ops *copy = speci_alloc(&speci_malloc, 1, sizeof *copy);
    if (!copy) return SPEC_E_NOMEM;
    *copy = *ops;
    copy->taps = d->taps;
    d->own = copy;
    return SPEC_OK;
}

spec_status spec_drafter_from_ops(spec_drafter **out, const spec_drafter_ops *ops, const spec_drafter_params *params)
{
    spec_drafter_ops own = { .struct_size = sizeof own };
    SPEC_NEED(out, "out");
    *out = NULL;
    SPEC_NEED(ops, "ops");
    SPEC_TRY(speci_params_read(&own, sizeof own, ops, "spec_drafter_ops"));
    if (!own.draft == !own.probs)
        return speci_fail(SPEC_E_INVALID, "a drafter needs one of the callbacks draft and probs, this one has %s",
                          own.draft ? "both" : "neither");
    if (!own.save != !own.restore)
        return speci_fail(SPEC_E_INVALID, "a drafter has both of the callbacks save and restore, or none; this one has one");
    if (!own.hidden != (own.n_tap == 0))
        return speci_fail(SPEC_E_INVALID, "a drafter has taps and the callback hidden, or neither; this one has %d taps%s",
                          own.n_tap, own.hidden ? " and the callback" : "");
    SPEC_TRY(speci_drafter_create(out, &speci_draft_callback, &speci_malloc, params, own.draft == NULL));
    const spec_status status = keep_ops(*out, &own);
    if (status == SPEC_OK) return SPEC_OK;
    spec_drafter_close(*out);
    *out = NULL;
    return status;
}

static void close_ops(spec_drafter *d)
{
    spec_drafter_ops *ops = d->own;
    if (!ops) return; /* it was never whole: the application still has it */
    if (ops->close) ops->close(ops->user_data);
    speci_free(&speci_malloc, ops);
}

static const spec_drafter_ops *ops_of(const speci_draft *d) { return d->drafter->own; }

/* n_failure: as of before the callback. */
static spec_status told(spec_status status, uint64_t n_failure, const char *callback)
{
    return speci_callback_status(status, n_failure, callback, "the application's drafter");
}

/* --- in a session --- */

typedef struct callback_draft {
    float *q;                  /* [n_row][n_vocab] the application's distributions, on their way to the device; or NULL */
    float *hidden;             /* [n_tap][ROWS][dim of the target] */
    const float **rows;        /* [n_tap] in it */
    spec_draft_request *asked; /* [n_seq] */
    spec_tree *trees;          /* [n_seq] what the application fills */
} callback_draft;

static spec_status prepare_hidden(const speci_draft *d, callback_draft *c)
{
    const size_t n = (size_t)d->drafter->n_tap, each = (size_t)ROWS * (size_t)d->site->target->dim;
    if (n == 0) return SPEC_OK;
    if (!(c->hidden = speci_alloc(d->site->a, n * each, sizeof *c->hidden))) return SPEC_E_NOMEM;
    if (!(c->rows = speci_alloc(d->site->a, n, sizeof *c->rows))) return SPEC_E_NOMEM;
    for (size_t k = 0; k < n; k++) c->rows[k] = c->hidden + k * each;
    return SPEC_OK;
}

static spec_status prepare(speci_draft *d)
{
    const speci_draft_site *site = d->site;
    callback_draft *c = speci_alloc(site->a, 1, sizeof *c);
    if (!c) return SPEC_E_NOMEM;
    d->state = c;
    const size_t n = (size_t)site->n_seq, row = (size_t)site->target->n_vocab;
    if (ops_of(d)->probs && !(c->q = speci_alloc(site->a, (size_t)d->size.n_q * row, sizeof *c->q))) return SPEC_E_NOMEM;
    SPEC_TRY(prepare_hidden(d, c));
    if (!(c->asked = speci_alloc(site->a, n, sizeof *c->asked))) return SPEC_E_NOMEM;
    return (c->trees = speci_alloc(site->a, n, sizeof *c->trees)) ? SPEC_OK : SPEC_E_NOMEM;
}

static void detach(speci_draft *d)
{
    callback_draft *c = d->state;
    if (!c) return;
    void *arrays[] = { c->q, c->hidden, (void *)c->rows, c->asked, c->trees, c };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(d->site->a, arrays[i]);
    d->state = NULL;
}

/* q, as sequence seq. */
static spec_status begin(const speci_draft *d, const speci_draft_seq *q, int32_t seq)
{
    const spec_drafter_ops *o = ops_of(d);
    if (!o->prefill) return SPEC_OK;
    const uint64_t before = speci_n_failure();
    return told(o->prefill(o->user_data, seq, q->ids, (size_t)q->n_ids), before, "prefill");
}

static spec_status prefill(speci_draft *d, const speci_draft_seq *q) { return begin(d, q, q->seq); }

/* Rows first .. first + n - 1 of h, at all taps. */
static spec_status fetch(const speci_draft *d, const speci_draft_hidden *h, int32_t first, int32_t n)
{
    callback_draft *c = d->state;
    const speci_draft_site *site = d->site;
    const int32_t dim = site->target->dim, n_tap = d->drafter->n_tap;
    const size_t each = (size_t)ROWS * (size_t)dim;
    for (int32_t k = 0; k < n_tap; k++)
        SPEC_TRY(speci_hidden_download(site, c->hidden + (size_t)k * each, h, k, first, n));
    SPEC_TRY(site->ops->sync(site->queue));
    for (int32_t k = 0; k < n_tap; k++)
        speci_hidden_widen(c->hidden + (size_t)k * each, (size_t)n * (size_t)dim, h->taps[k].dtype);
    return SPEC_OK;
}

static spec_status hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    const callback_draft *c = d->state;
    const spec_drafter_ops *o = ops_of(d);
    for (int32_t i = 0; i < h->n; i += ROWS) {
        const int32_t n = h->n - i < ROWS ? h->n - i : ROWS;
        SPEC_TRY(fetch(d, h, i, n));
        const uint64_t before = speci_n_failure();
        const spec_status status = o->hidden(o->user_data, q->seq, q->ids, (size_t)q->n_ids, h->first + i, n, c->rows);
        SPEC_TRY(told(status, before, "hidden"));
    }
    return SPEC_OK;
}

static void end(speci_draft *d, int32_t seq)
{
    const spec_drafter_ops *o = ops_of(d);
    if (o->end) o->end(o->user_data, seq);
}

static void committed(speci_draft *d, const speci_draft_seq *q, int32_t n_new)
{
    const spec_drafter_ops *o = ops_of(d);
    if (o->committed) o->committed(o->user_data, q->seq, q->ids, (size_t)q->n_ids, n_new);
}

static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    const spec_drafter_ops *o = ops_of(d);
    if (!o->fork) return begin(d, q, to);
    const uint64_t before = speci_n_failure();
    return told(o->fork(o->user_data, q->seq, to), before, "fork");
}

/* --- whole trees --- */

/* Drops the nodes that have no use. */
static void clip(const speci_draft_seq *q)
{
    uint8_t keep[SPECI_MAX_NODE];
    int32_t depth[SPECI_MAX_NODE];
    spec_tree_depths(q->tree, depth);
    for (int32_t i = 0; i < q->tree->n; i++) keep[i] = depth[i] <= q->depth_max;
    spec_tree_prune(q->tree, depth, keep, 1);
}

static spec_status take(const speci_draft *d, const speci_draft_seq *q, const spec_tree *own)
{
    spec_tree *t = q->tree;
    const int32_t n_node = d->site->n_node;
    if (own->n < 1 || own->n > n_node || own->cap != n_node || own->token != t->token || own->parent != t->parent ||
        own->token[0] != q->ids[q->n_ids - 1])
        return speci_fail(SPEC_E_INVALID, "the application's drafter changed the root or overran its tree");
    SPEC_TRY(spec_tree_check(own, n_node, d->site->target->n_vocab));
    t->n = own->n;
    for (int32_t i = 0; i < t->n; i++) t->prob[i] = i == 0, t->q_row[i] = -1;
    spec_tree_ranks(own, t->rank);
    clip(q);
    return SPEC_OK;
}

static spec_status draft_trees(speci_draft *d, const speci_draft_seq *seqs, int32_t n)
{
    callback_draft *c = d->state;
    const spec_drafter_ops *o = ops_of(d);
    for (int32_t i = 0; i < n; i++) {
        spec_tree *t = seqs[i].tree;
        c->trees[i] = (spec_tree){ .n = 1, .cap = d->site->n_node, .token = t->token, .parent = t->parent };
        c->asked[i] = (spec_draft_request){ .seq = seqs[i].seq, .ids = seqs[i].ids, .n_ids = (size_t)seqs[i].n_ids,
                                            .depth_max = seqs[i].depth_max, .tree = &c->trees[i] };
    }
    const uint64_t before = speci_n_failure();
    spec_status status = told(o->draft(o->user_data, c->asked, n), before, "draft");
    if (status != SPEC_OK) return speci_fail(status, "drafting for sequence %d: %s", seqs[0].seq, spec_last_error());
    for (int32_t i = 0; i < n; i++) {
        status = take(d, &seqs[i], &c->trees[i]);
        if (status != SPEC_OK) return speci_fail(status, "drafting for sequence %d: %s", seqs[i].seq, spec_last_error());
    }
    return SPEC_OK;
}

/* --- distributions --- */

typedef struct probs_call {
    const spec_drafter_ops *ops;
    const speci_draft_seq *q;
} probs_call;

static spec_status ask_probs(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n, float *probs,
                             int32_t n_vocab)
{
    const probs_call *c = user_data;
    const spec_drafter_ops *o = c->ops;
    const uint64_t before = speci_n_failure();
    return told(o->probs(o->user_data, c->q->seq, c->q->ids, (size_t)c->q->n_ids, tree, nodes, n, probs, n_vocab), before, "probs");
}

/* The library's builder over the application's distributions, which then go to the device for verification. */
static spec_status build_tree(speci_draft *d, spec_builder *b, const speci_draft_seq *q)
{
    const callback_draft *c = d->state;
    const speci_draft_site *site = d->site;
    probs_call call = { ops_of(d), q };
    const spec_build_args args = { .struct_size = sizeof args, .token = q->tree->token[0], .n_vocab = site->target->n_vocab,
                                   .probs = ask_probs, .user_data = &call, .draw = q->sampling->temperature > 0,
                                   .seed = q->sampling->seed, .step = q->step, .q = c->q, .depth_max = q->depth_max };
    SPEC_TRY(spec_builder_build(b, q->tree, &args));
    const size_t row = (size_t)site->target->n_vocab, n = (size_t)site->n_q * row;
    return site->ops->upload(site->queue, site->q + (size_t)q->seq * n, c->q, (size_t)b->info.n_row * row * sizeof(float));
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    if (!b) return draft_trees(d, seqs, n);
    for (int32_t i = 0; i < n; i++) {
        const spec_status status = build_tree(d, b, &seqs[i]);
        if (status != SPEC_OK) return speci_fail(status, "drafting for sequence %d: %s", seqs[i].seq, spec_last_error());
    }
    return SPEC_OK;
}

/* --- save, restore --- */

static uint64_t identity(const spec_drafter *d)
{
    const spec_drafter_ops *o = d->own;
    return o->save ? o->identity : 0;
}

static spec_status save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    const spec_drafter_ops *o = ops_of(d);
    speci_app_writer w = { .put = put, .arg = arg };
    *bytes = 0;
    if (!o->save) return SPEC_OK;
    const uint64_t before = speci_n_failure();
    const spec_status status = told(o->save(o->user_data, q->seq, speci_app_write, &w), before, "save");
    *bytes = w.n;
    return w.status != SPEC_OK ? w.status : status;
}

static spec_status restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    const spec_drafter_ops *o = ops_of(d);
    if (!o->restore) return prefill(d, q);
    speci_app_reader r = { .whose = "drafter", .left = bytes, .get = get, .arg = arg };
    const uint64_t before = speci_n_failure();
    const spec_status status = o->restore(o->user_data, q->seq, q->ids, (size_t)q->n_ids, speci_app_read, &r);
    return speci_app_read_end(&r, told(status, before, "restore"));
}

const speci_draft_kind speci_draft_callback = {
    .name = "callback", .close = close_ops, .prepare = prepare, .detach = detach, .hidden = hidden, .prefill = prefill,
    .enqueue = enqueue, .committed = committed, .fork = fork, .end = end, .identity = identity, .save = save, .restore = restore,
};
