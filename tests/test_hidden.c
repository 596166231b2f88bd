/* test_hidden.c - hidden rows that drafters ask for. Two drafters of a session, an application's and one inside the library, are
 * told the rows of every committed token, once and in order, whatever brought it: prompts at once or in parts, steps, paths of
 * trees, appended prompts, copies and saved sequences, several at once. They are the rows of the sequence alone, bit for bit, and
 * the head makes of them the logits that were read. */
#define SPEC_EXPERIMENTAL
#include <stdio.h>

#include "algorithms/engine/engine.h"
#include "models/net/net.h"
#include "spec_lab.h"
#include "tests/late_backend.h"
#include "tests/support_taps.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *backend;

/* --- drafters that listen --- */

enum {
    N_LIVE = 4, N_ASKED = 2, N_TURN = 70, MOST_IDS = N_CTX - 110, /* room for what a turn may add */
    BY_OPS = 0, INSIDE = 1 /* the two drafters of a session */
};

/* What a drafter was told of a sequence. */
typedef struct told {
    int32_t first, n;         /* positions first to n - 1 */
    bool anew;                /* it began by a prefill that no rows came with: those of `first` on follow */
    int32_t ids[N_CTX], next; /* next: the id behind them */
    float rows[N_CTX][N_ASKED][MOST_DIM];
} told;

typedef struct listener {
    const spec_model *m;
    spec_tap taps[N_ASKED];
    uint64_t random;
    told of[N_LIVE];
    int32_t n_prefill, n_end, fail_in; /* fail_in: calls of hidden until one fails; 0: none does */
} listener;

/* The token at position p of seq. */
static void hear(listener *l, int32_t seq, int32_t p, int32_t id, const float *const row[N_ASKED])
{
    told *t = &l->of[seq];
    if (t->anew) t->first = t->n = p, t->anew = false;
    assert_int_equal(p, t->n);
    t->ids[t->n] = id;
    for (int32_t k = 0; k < N_ASKED; k++) memcpy(t->rows[t->n][k], row[k], (size_t)l->m->dim * sizeof(float));
    t->n++;
}

static spec_status begin_or_fail(listener *l, const int32_t *ids, size_t n, int32_t first, int32_t n_row)
{
    assert_true(n_row > 0 && (size_t)(first + n_row) < n);
    assert_true(ids[first + n_row] >= 0 && ids[first + n_row] < N_VOCAB);
    return l->fail_in > 0 && --l->fail_in == 0 ? spec_fail(SPEC_E_ABORTED, "rows are not wanted") : SPEC_OK;
}

static spec_status ops_hidden(void *user, int32_t seq, const int32_t *ids, size_t n, int32_t first, int32_t n_row,
                              const float *const *rows)
{
    listener *l = user;
    const size_t dim = (size_t)l->m->dim;
    SPEC_TRY(begin_or_fail(l, ids, n, first, n_row));
    for (int32_t i = 0; i < n_row; i++) {
        const float *row[N_ASKED];
        for (int32_t k = 0; k < N_ASKED; k++) row[k] = rows[k] + (size_t)i * dim;
        hear(l, seq, first + i, ids[first + i], row);
    }
    l->of[seq].next = ids[first + n_row];
    return SPEC_OK;
}

/* Rows of a prompt have come before it; or none ever will. */
static spec_status ops_prefill(void *user, int32_t seq, const int32_t *ids, size_t n)
{
    listener *l = user;
    (void)ids;
    l->of[seq].anew = l->of[seq].n != (int32_t)n - 1;
    l->n_prefill++;
    return SPEC_OK;
}

static spec_status ops_fork(void *user, int32_t seq, int32_t copy)
{
    listener *l = user;
    l->of[copy] = l->of[seq];
    return SPEC_OK;
}

static spec_status ops_save(void *user, int32_t seq, spec_write_fn write, void *data)
{
    listener *l = user;
    return write(data, &l->of[seq], sizeof l->of[seq]) ? SPEC_E_IO : SPEC_OK;
}

static spec_status ops_restore(void *user, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *data)
{
    listener *l = user;
    (void)ids, (void)n;
    return read(data, &l->of[seq], sizeof l->of[seq]) ? SPEC_E_IO : SPEC_OK;
}

static void ops_end(void *user, int32_t seq)
{
    listener *l = user;
    l->of[seq].n = l->of[seq].first = 0;
    l->n_end++;
}

static spec_status ops_draft(void *user, spec_draft_request *requests, int32_t n)
{
    listener *l = user;
    taps_proposer p = { .random = l->random };
    const spec_status status = taps_propose(&p, requests, n);
    l->random = p.random;
    return status;
}

static spec_drafter_ops listening(listener *l)
{
    return (spec_drafter_ops){ .struct_size = sizeof(spec_drafter_ops), .user_data = l, .draft = ops_draft,
                               .prefill = ops_prefill, .fork = ops_fork, .save = ops_save, .restore = ops_restore, .identity = 7,
                               .end = ops_end, .taps = l->taps, .n_tap = N_ASKED, .hidden = ops_hidden };
}

/* The same inside the library: it proposes nothing, and reads rows where the pass has left them. */
static spec_status inner_hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    listener *l = d->drafter->own;
    taps_worker reader = { .d = { .ops = d->site->ops }, .queue = d->site->queue };
    SPEC_TRY(begin_or_fail(l, q->ids, (size_t)q->n_ids, h->first, h->n));
    for (int32_t i = 0; i < h->n; i++) {
        float rows[N_ASKED][MOST_DIM];
        const float *const row[N_ASKED] = { rows[0], rows[1] };
        for (int32_t k = 0; k < N_ASKED; k++) taps_read_row(&reader, h->taps[k], speci_hidden_row(h, i), l->m->dim, rows[k]);
        hear(l, q->seq, h->first + i, q->ids[h->first + i], row);
    }
    l->of[q->seq].next = q->ids[h->first + h->n];
    return SPEC_OK;
}

static spec_status inner_enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)d, (void)b, (void)seqs, (void)n;
    return SPEC_OK;
}

static spec_status inner_fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    return ops_fork(d->drafter->own, q->seq, to);
}

static void inner_end(speci_draft *d, int32_t seq) { ops_end(d->drafter->own, seq); }

static uint64_t inner_identity(const spec_drafter *d)
{
    (void)d;
    return 9;
}

static spec_status inner_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    const listener *l = d->drafter->own;
    *bytes = sizeof l->of[q->seq];
    return put ? put(arg, &l->of[q->seq], sizeof l->of[q->seq]) : SPEC_OK;
}

static spec_status inner_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    listener *l = d->drafter->own;
    assert_int_equal(bytes, sizeof l->of[q->seq]);
    return get(arg, &l->of[q->seq], sizeof l->of[q->seq]);
}

static const speci_draft_kind inner_kind = {
    .name = "listener", .hidden = inner_hidden, .enqueue = inner_enqueue, .fork = inner_fork, .end = inner_end,
    .identity = inner_identity, .save = inner_save, .restore = inner_restore,
};

/* How the tokens of a sequence were applied: parts of prompts, and steps one by one. */
typedef struct history {
    int32_t n, part[N_CTX]; /* > 0: so many tokens of a prompt; 0: a step */
    bool scored[N_CTX];     /* its logits are known: */
    float logits[N_CTX][N_VOCAB];
} history;

typedef struct scene {
    taps_worker *w;
    spec_session *s;
    listener heard[2];
    spec_drafter *drafter[2];
    history past[N_LIVE];
    bool live[N_LIVE];
    uint64_t random;
} scene;

static spec_drafter *open_inner(listener *l)
{
    spec_drafter *d;
    OK(speci_drafter_create(&d, &inner_kind, NULL, NULL, false));
    OK(speci_drafter_take_taps(d, l->taps, N_ASKED));
    d->own = l;
    return d;
}

/* The drafters' taps are partly each other's and the session's. */
static void open_scene(scene *c, taps_worker *w, const spec_session_params *params)
{
    const spec_tap own[] = { { SPEC_TAP_LAYER, 0 }, { SPEC_TAP_LAST, 0 } };
    const listener by_ops = { .m = w->model, .taps = { { SPEC_TAP_LAYER, 1 }, { SPEC_TAP_NORM, 0 } }, .random = 3 };
    const listener inside = { .m = w->model, .taps = { { SPEC_TAP_NORM, 0 }, { SPEC_TAP_LAST, 0 } } };
    spec_session_params p = *params;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    memset(c, 0, sizeof *c);
    c->w = w, c->random = 11;
    c->heard[BY_OPS] = by_ops, c->heard[INSIDE] = inside;
    const spec_drafter_ops ops = listening(&c->heard[BY_OPS]);
    dp.n_draft = N_NODE - 1;
    OK(spec_drafter_from_ops(&c->drafter[BY_OPS], &ops, &dp));
    c->drafter[INSIDE] = open_inner(&c->heard[INSIDE]);
    p.n_seq = N_LIVE, p.n_ctx = N_CTX, p.taps = own, p.n_tap = N_ELEMENTS(own), p.drafters = c->drafter, p.n_drafter = 2;
    OK(spec_session_open(&c->s, w->model, NULL, &p));
}

static void close_scene(scene *c)
{
    spec_session_close(c->s);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(c->drafter[k]);
}

static int32_t ids_of(const scene *c, int32_t seq, const int32_t **ids)
{
    size_t n;
    OK(spec_sequence_ids(c->s, ids, &n, seq));
    return (int32_t)n;
}

/* --- what they must have been told: the rows of plain steps, and of prompts applied alike, one sequence alone --- */

static float reference[N_CTX][MOST_TAP][MOST_DIM];

static spec_status see_reference(void *arg, int32_t first, int32_t n)
{
    taps_worker *w = arg;
    for (int32_t i = 0; i < n; i++) taps_read(w, SPEC_PHASE_PREFILL, i, reference[first + i]);
    return SPEC_OK;
}

static void make_reference(taps_worker *w, const history *h, const int32_t *ids, int32_t n)
{
    const speci_prefill_hooks hooks = { .chunk = see_reference, .arg = w };
    int32_t at = 0;
    w->net->kind->begin(w->net, PLAIN);
    for (int32_t i = 0; i < h->n && at < n; i++) {
        if (h->part[i] > 0) OK(w->net->kind->prefill(w->net, PLAIN, ids + at, (size_t)h->part[i], &hooks));
        else taps_plain_step(w, PLAIN, ids[at]), taps_read(w, SPEC_PHASE_DECODE, 0, reference[at]);
        at += h->part[i] > 0 ? h->part[i] : 1;
    }
    assert_true(at >= n);
    w->net->kind->end(w->net, PLAIN);
}

static int32_t number_of(const taps_worker *w, const spec_tap *tap)
{
    int32_t i = 0;
    while (w->taps[i].where != tap->where || w->taps[i].layer != tap->layer) i++;
    assert_true(i < w->n_tap);
    return i;
}

/* head(tap after the final norm) = logits, where these were read. */
static void check_heads(const taps_worker *w, const history *h, const told *t, int32_t norm)
{
    static float logits[N_NODE * N_VOCAB];
    double row[N_NODE * MOST_DIM];
    const int32_t dim = w->model->dim;
    for (int32_t at = 0; at < t->n; at += N_NODE) {
        const int32_t n = t->n - at < N_NODE ? t->n - at : N_NODE;
        for (int32_t i = 0; i < n * dim; i++) row[i] = (double)t->rows[at + i / dim][norm][i % dim];
        test_buffer x = test_buffer_from(&w->d, row, (size_t)(n * dim), w->model->dtype); /* exact: it was of this type */
        taps_run_head(&w->d, w->model, test_view(&x, dim), n, logits);
        for (int32_t i = 0; i < n; i++)
            if (h->scored[at + i])
                taps_expect_same("head of a told row", at + i, logits + i * N_VOCAB, h->logits[at + i], N_VOCAB);
        test_buffer_free(&x);
    }
}

static void check_told(scene *c, int32_t seq)
{
    taps_worker *w = c->w;
    const int32_t *ids, n_ids = ids_of(c, seq, &ids);
    make_reference(w, &c->past[seq], ids, c->heard[BY_OPS].of[seq].n);
    for (int32_t k = 0; k < 2; k++) {
        const listener *l = &c->heard[k];
        const told *t = &l->of[seq];
        assert_true(t->n < n_ids && (t->n == 0 || t->next == ids[t->n]));
        assert_int_equal(t->n, c->heard[BY_OPS].of[seq].n);
        for (int32_t i = 0; i < t->n; i++) {
            assert_int_equal(t->ids[i], ids[i]);
            for (int32_t a = 0; a < N_ASKED; a++)
                taps_expect_same("a told row", i, t->rows[i][a], reference[i][number_of(w, &l->taps[a])], w->model->dim);
        }
        check_heads(w, &c->past[seq], t, k == BY_OPS ? 1 : 0);
    }
}

/* --- turns: everything that brings tokens, in any order --- */

static int32_t live_of(const scene *c, int32_t *seqs)
{
    int32_t n = 0;
    for (int32_t i = 0; i < N_LIVE; i++)
        if (c->live[i]) seqs[n++] = i;
    return n;
}

/* All but the pending token have been told. */
static bool is_told(const scene *c, int32_t seq)
{
    const int32_t *ids;
    return c->heard[BY_OPS].of[seq].n == ids_of(c, seq, &ids) - 1;
}

static void note_part(history *h, int32_t n)
{
    if (n > 0) h->part[h->n++] = n;
}

static void add_one(scene *c)
{
    const taps_text t = taps_make_text(10 + taps_below(&c->random, 90));
    const spec_request r = { .struct_size = sizeof r, .ignore_eos = 1 };
    const int32_t first = taps_below(&c->random, 9); /* so that prompts differ */
    int32_t seq, seqs[N_LIVE];
    if (live_of(c, seqs) == N_LIVE) return;
    OK(spec_sequence_add(c->s, &seq, t.ids + first, (size_t)(t.n_prompt - 9), &r));
    memset(&c->past[seq], 0, sizeof c->past[seq]);
    c->live[seq] = true;
    note_part(&c->past[seq], t.n_prompt - 10);
}

static void remove_one(scene *c, int32_t seq)
{
    check_told(c, seq);
    OK(spec_sequence_remove(c->s, seq));
    c->live[seq] = false;
}

static void append_to(scene *c, int32_t seq)
{
    const taps_text t = taps_make_text(1 + taps_below(&c->random, 40));
    OK(spec_sequence_append(c->s, seq, t.ids + 1, (size_t)t.n_prompt, NULL));
    note_part(&c->past[seq], t.n_prompt); /* the pending token, and all that was appended but the last */
}

static void fork_one(scene *c, int32_t seq)
{
    int32_t copy, seqs[N_LIVE];
    if (live_of(c, seqs) == N_LIVE) return;
    OK(spec_sequence_fork(c->s, &copy, seq));
    c->past[copy] = c->past[seq];
    c->live[copy] = true;
}

static int put_bytes(void *user, const void *data, size_t n) { return speci_buf_add(user, data, n) == SPEC_OK ? 0 : 1; }

typedef struct source {
    const speci_buf *buf;
    size_t at;
} source;

static int get_bytes(void *user, void *data, size_t n)
{
    source *f = user;
    if (n > f->buf->n - f->at) return 1;
    memcpy(data, f->buf->data + f->at, n);
    f->at += n;
    return 0;
}

/* It goes on where it may find another's place. */
static void save_and_restore(scene *c, int32_t seq)
{
    static history past;
    speci_buf buf = { .a = NULL };
    int32_t again, seqs[N_LIVE];
    OK(spec_sequence_save(c->s, seq, put_bytes, &buf));
    past = c->past[seq];
    remove_one(c, seq);
    if (live_of(c, seqs) < N_LIVE - 1) add_one(c);
    OK(spec_sequence_restore(c->s, &again, get_bytes, &(source){ .buf = &buf }));
    c->past[again] = past;
    c->live[again] = true;
    speci_buf_free(&buf);
}

/* The four calls: a random path of each tree is committed, its logits kept. */
static void commit_random(scene *c, int32_t seq, const spec_tree *t)
{
    history *h = &c->past[seq];
    const int32_t *ids, n_ids = ids_of(c, seq, &ids);
    int32_t path[N_NODE], n = 0;
    for (int32_t i = taps_below(&c->random, t->n); i >= 0; i = t->parent[i]) path[n++] = i;
    for (int32_t i = 0; i < n / 2; i++) {
        const int32_t other = path[i];
        path[i] = path[n - 1 - i], path[n - 1 - i] = other;
    }
    for (int32_t i = 0; i < n; i++) {
        OK(spec_node_logits(c->s, h->logits[n_ids - 1 + i], seq, path[i]));
        h->scored[n_ids - 1 + i] = true;
        h->part[h->n++] = 0;
    }
    OK(spec_commit(c->s, seq, path, n, taps_below(&c->random, N_VOCAB)));
}

static void four_calls(scene *c)
{
    const spec_tree *trees[N_LIVE];
    int32_t seqs[N_LIVE], n = live_of(c, seqs);
    if (n > 1 && taps_below(&c->random, 2)) seqs[0] = seqs[n - 1], n--; /* not always all, nor in order */
    OK(spec_draft(c->s, trees, seqs, n));
    if (taps_below(&c->random, 3) == 0) { /* a score that comes to nothing */
        OK(spec_score(c->s, seqs, n, trees));
        OK(spec_rollback(c->s, seqs[0]));
    }
    OK(spec_score(c->s, seqs, n, trees));
    if (taps_below(&c->random, 3) == 0) add_one(c); /* applied meanwhile */
    for (int32_t i = n - 1; i >= 0; i--) commit_random(c, seqs[i], trees[i]);
}

/* Steps over every live sequence; those whose prompts are consumed take part. */
static void steps(scene *c)
{
    for (int32_t k = 1 + taps_below(&c->random, 3); k > 0; k--) {
        const spec_step_result *r[N_LIVE];
        int32_t seqs[N_LIVE], n = live_of(c, seqs);
        if (taps_below(&c->random, 3) == 0) n = 1;
        OK(spec_step(c->s, r, seqs, n));
        for (int32_t i = 0; i < n; i++)
            for (int32_t j = 0; j < r[i]->n_tokens; j++) c->past[seqs[i]].part[c->past[seqs[i]].n++] = 0;
    }
}

static void take_turn(scene *c)
{
    int32_t seqs[N_LIVE], n = live_of(c, seqs);
    if (n == 0) {
        add_one(c);
        return;
    }
    const int32_t *ids, seq = seqs[taps_below(&c->random, n)];
    for (int32_t i = 0; i < n; i++)
        if (ids_of(c, seqs[i], &ids) > MOST_IDS) {
            remove_one(c, seqs[i]);
            return;
        }
    switch (taps_below(&c->random, 10)) {
    case 0: case 1: add_one(c); break;
    case 2: remove_one(c, seq); break;
    case 3: if (is_told(c, seq)) append_to(c, seq); break;
    case 4: fork_one(c, seq); break;
    case 5: save_and_restore(c, seq); break;
    case 6: case 7: four_calls(c); break;
    default: steps(c); break;
    }
}

/* A clock that does not depend on the machine: what it chooses does not. */
static double tick(void)
{
    static double now;
    return now += 1;
}

static void play(taps_worker *w, const spec_session_params *params)
{
    static scene c;
    open_scene(&c, w, params);
    c.s->now_ms = tick;
    for (int32_t i = 0; i < N_TURN; i++) take_turn(&c);
    for (int32_t i = 0; i < N_LIVE; i++)
        if (c.live[i]) remove_one(&c, i);
    assert_int_equal(c.heard[BY_OPS].n_end, c.heard[INSIDE].n_end);
    close_scene(&c);
}

static void play_all(taps_worker *w)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    const spec_lab joint = { .struct_size = sizeof joint, .advance = SPEC_ADVANCE_JOINT };
    play(w, &p);
    p.n_prompt_step = backend->info.prefill_rows[0]; /* prompts are consumed by the steps */
    play(w, &p);
    p.adapt = SPEC_ADAPT_UCB; /* and some steps are plain ones */
    play(w, &p);
    p = (spec_session_params)SPEC_SESSION_PARAMS_INIT;
    p.lab = &joint;
    play(w, &p);
}

/* --- what may go wrong --- */

static void open_listening(spec_session **s, spec_drafter **d, spec_model *m, listener *l, bool keeps_state,
                           int32_t n_prompt_step)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    memset(l, 0, sizeof *l);
    l->m = m, l->random = 5;
    l->taps[0] = (spec_tap){ SPEC_TAP_LAST, 0 }, l->taps[1] = (spec_tap){ SPEC_TAP_NORM, 0 };
    spec_drafter_ops ops = listening(l);
    if (!keeps_state) ops.fork = NULL, ops.save = NULL, ops.restore = NULL;
    dp.n_draft = N_NODE - 1;
    p.n_seq = N_LIVE, p.n_ctx = N_CTX, p.n_prompt_step = n_prompt_step;
    OK(spec_drafter_from_ops(d, &ops, &dp));
    OK(spec_session_open(s, m, *d, &p));
}

/* A prompt's or a path's rows that the drafter did not take: the call says so, the sequence is lost, and no other. */
static void check_refusals(taps_worker *w)
{
    static listener l;
    const spec_tree *trees[2];
    const spec_step_result *r;
    const taps_text t = taps_make_text(90);
    const int32_t root = 0;
    spec_session *s;
    spec_drafter *d;
    int32_t seqs[2], other;
    open_listening(&s, &d, w->model, &l, true, 0);
    l.fail_in = 2;
    FAILS(spec_sequence_add(s, &other, t.ids, 90, NULL), SPEC_E_ABORTED, "rows are not wanted");
    assert_int_equal(l.n_end, 1);
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_add(s, &seqs[i], t.ids + i, 20, NULL));
    OK(spec_draft(s, trees, seqs, 2));
    OK(spec_score(s, seqs, 2, trees));
    l.fail_in = 1;
    FAILS(spec_commit(s, seqs[0], &root, 1, 3), SPEC_E_ABORTED, "rows are not wanted");
    OK(spec_commit(s, seqs[1], &root, 1, 3));
    FAILS(spec_step(s, &r, &seqs[0], 1), SPEC_E_STATE, "");
    OK(spec_step(s, &r, &seqs[1], 1));
    OK(spec_sequence_remove(s, seqs[0]));
    OK(spec_sequence_add(s, &seqs[0], t.ids, 20, NULL));
    const spec_step_result *both[2] = { NULL, NULL };
    const int32_t *ids;
    size_t n_ids;
    l.fail_in = 1; /* of two sequences in one step the first */
    const int32_t n = l.of[seqs[1]].n;
    FAILS(spec_step(s, both, seqs, 2), SPEC_E_ABORTED, "rows are not wanted");
    assert_true(l.of[seqs[1]].n > n);
    for (int32_t i = 0; i < 2; i++) { /* what was committed is told */
        OK(spec_sequence_ids(s, &ids, &n_ids, seqs[i]));
        assert_non_null(both[i]);
        assert_true(both[i]->n_tokens > 0);
        assert_memory_equal(both[i]->tokens, ids + n_ids - both[i]->n_tokens, (size_t)both[i]->n_tokens * sizeof *ids);
    }
    FAILS(spec_step(s, &r, &seqs[0], 1), SPEC_E_STATE, "");
    OK(spec_step(s, &r, &seqs[1], 1));
    spec_session_close(s);
    spec_drafter_close(d);

    open_listening(&s, &d, w->model, &l, true, backend->info.prefill_rows[0]);
    OK(spec_sequence_add(s, &seqs[0], t.ids, 90, NULL));
    l.fail_in = 1;
    FAILS(spec_step(s, &r, seqs, 1), SPEC_E_ABORTED, "rows are not wanted");
    FAILS(spec_step(s, &r, seqs, 1), SPEC_E_STATE, "");
    spec_session_close(s);
    spec_drafter_close(d);
}

/* A drafter that keeps nothing for copies and saved sequences begins them by prefill, and hears from the pending token on. */
static void check_beginning_anew(taps_worker *w)
{
    static listener l;
    const taps_text t = taps_make_text(30);
    const spec_step_result *r;
    const int32_t *ids;
    spec_session *s;
    spec_drafter *d;
    speci_buf buf = { .a = NULL };
    int32_t seqs[3];
    size_t n[3];
    open_listening(&s, &d, w->model, &l, false, 0);
    OK(spec_sequence_add(s, &seqs[0], t.ids, 30, &(spec_request){ .struct_size = sizeof(spec_request), .ignore_eos = 1 }));
    for (int32_t i = 0; i < 3; i++) OK(spec_step(s, &r, seqs, 1));
    OK(spec_sequence_fork(s, &seqs[1], seqs[0]));
    OK(spec_sequence_save(s, seqs[0], put_bytes, &buf));
    OK(spec_sequence_restore(s, &seqs[2], get_bytes, &(source){ .buf = &buf }));
    assert_int_equal(l.n_prefill, 3);
    for (int32_t i = 0; i < 3; i++) OK(spec_sequence_ids(s, &ids, &n[i], seqs[i]));
    for (int32_t k = 0; k < 2; k++)
        for (int32_t i = 2; i >= 0; i--) OK(spec_step(s, &r, &seqs[i], 1));
    for (int32_t i = 1; i < 3; i++) {
        const told *whole = &l.of[seqs[0]], *part = &l.of[seqs[i]];
        assert_int_equal(part->first, (int32_t)n[i] - 1);
        const int32_t end = whole->n < part->n ? whole->n : part->n; /* their texts are one */
        assert_true(end > part->first);
        for (int32_t p = part->first; p < end; p++) {
            assert_int_equal(part->ids[p], whole->ids[p]);
            taps_expect_same("rows behind a prefill", p, part->rows[p][0], whole->rows[p][0], l.m->dim);
        }
    }
    speci_buf_free(&buf);
    spec_session_close(s);
    spec_drafter_close(d);
}

/* What a tap of this type takes. */
static uint64_t tap_bytes(const taps_worker *w, spec_dtype type)
{
    const net_exec *net = w->net->state;
    const net_shape *s = &net->shape;
    return taps_tensor_bytes(s->n_row_decode, w->model->dim, type) + taps_tensor_bytes(s->chunk, w->model->dim, type);
}

/* What several ask for is kept once. */
static void check_shared_memory(taps_worker *w)
{
    static listener l;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_memory m[4];
    const spec_tap own = { SPEC_TAP_LAST, 0 };
    spec_drafter *d[2];
    l = (listener){ .m = w->model, .taps = { { SPEC_TAP_LAST, 0 }, { SPEC_TAP_NORM, 0 } } };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter_ops ops = listening(&l), deaf = ops;
    deaf.taps = NULL, deaf.n_tap = 0, deaf.hidden = NULL;
    dp.n_draft = N_NODE - 1;
    OK(spec_drafter_from_ops(&d[0], &deaf, &dp));
    OK(spec_drafter_from_ops(&d[1], &ops, &dp));
    p.n_seq = N_SEQ, p.n_ctx = N_CTX;
    for (int32_t i = 0; i < 4; i++) {
        m[i] = (spec_memory){ .struct_size = sizeof m[i] };
        p.taps = &own, p.n_tap = i % 2;
        OK(spec_session_estimate(&m[i], w->model, d[i / 2], &p));
    }
    const uint64_t last = tap_bytes(w, SPEC_DTYPE_F32), norm = tap_bytes(w, w->model->dtype);
    assert_int_equal(m[1].bytes_work - m[0].bytes_work, last);
    assert_int_equal(m[2].bytes_work - m[0].bytes_work, last + norm);
    assert_int_equal(m[3].bytes_work, m[2].bytes_work);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(d[k]);
}

/* --- the tests: of every model, in every type --- */

/* Passes as small as the device takes them: prompts have several. */
static void each_listening(void (*check)(taps_worker *w))
{
    const int32_t second = backend->info.prefill_rows[1];
    backend->info.prefill_rows[1] = 0;
    taps_each_model(backend, check);
    backend->info.prefill_rows[1] = second;
}

/* A pass of a prompt has more rows than an application is told at once. */
static void check_large_passes(taps_worker *w)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    play(w, &p);
}

static void drafters_are_told_of_large_passes(void **state)
{
    (void)state;
    int32_t *rows = backend->info.prefill_rows;
    const int32_t first = rows[0];
    if (rows[0] < 2 * (SPEC_MAX_DEPTH + 1)) rows[0] = 2 * (SPEC_MAX_DEPTH + 1);
    each_listening(check_large_passes);
    rows[0] = first;
}

static void check_listeners(taps_worker *w)
{
    play_all(w);
    check_refusals(w);
    check_beginning_anew(w);
    check_shared_memory(w);
}

static void drafters_are_told(void **state)
{
    (void)state;
    each_listening(check_listeners);
}

/* Results that the host does not wait for are no numbers; and steps could run ahead. */
static void drafters_are_told_late(void **state)
{
    spec_backend *const own = backend;
    const spec_backend_params p = { .struct_size = sizeof p, .n_threads = 1 };
    (void)state;
    late_reset();
    OK(spec_backend_open_ops(&backend, &late_ops, NULL, &p));
    each_listening(play_all);
    spec_backend_close(backend);
    backend = own;
}

static void wrong_listeners_are_refused(void **state)
{
    (void)state;
    static listener l;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    spec_drafter *d;
    spec_session *s;
    l = (listener){ .m = m, .taps = { { SPEC_TAP_LAYER, 0 }, { SPEC_TAP_LAYER, m->n_layer } } };
    const spec_drafter_ops good = listening(&l);
    spec_drafter_ops o = good;
    o.hidden = NULL;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "taps and the callback hidden");
    o = good, o.n_tap = 0;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "taps and the callback hidden");
    o = good, o.n_tap = -1;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "a list of -1 taps");
    o = good, o.taps = NULL;
    FAILS(spec_drafter_from_ops(&d, &o, NULL), SPEC_E_INVALID, "a list of 2 taps, which is NULL");
    assert_null(d);
    OK(spec_drafter_from_ops(&d, &good, NULL));
    FAILS(spec_session_open(&s, m, d, NULL), SPEC_E_INVALID, "tap 1: there is no place");
    spec_drafter_close(d);
    spec_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafters_are_told),                 cmocka_unit_test(drafters_are_told_late),
        cmocka_unit_test(drafters_are_told_of_large_passes), cmocka_unit_test(wrong_listeners_are_refused),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
