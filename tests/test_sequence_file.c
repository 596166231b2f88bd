/* test_sequence_file.c - sequences forked, saved and restored: copies go on as the original would have alone, bit for
 * bit, and so does the original; what was cut short, changed or made for another model is refused and leaves
 * nothing. */
#include "tests/support_decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"
#include "models/net/net.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { N_PROMPT = 140, N_BEFORE = 7, N_AFTER = 9, N_DRAFT = 4, HEADER = 192, DEMO = 5 };

static spec_backend *backend;
static const spec_sampling greedy = { 0 }, sampled = { 0.8f, 0, 0.98f, 0, 77 };

/* --- models and sessions --- */

/* Random models draft for themselves: all is accepted at temperature 0, some of it when the draft distribution is
 * another. */
static const struct pair {
    const char *name, *target, *drafter;
    spec_dtype dtype;
    bool agree; /* drafts are accepted at any temperature */
} pairs[] = {
    { "mamba", GOLDEN "mamba", GOLDEN "mamba", SPEC_DTYPE_AUTO, true },
    { "mamba2", GOLDEN "mamba2-bf16", GOLDEN "mamba2-bf16", SPEC_DTYPE_AUTO, true },
    { "llama", GOLDEN "llama3", GOLDEN "llama3", SPEC_DTYPE_AUTO, true },
    { "bamba, llama drafts", GOLDEN "bamba", GOLDEN "llama2", SPEC_DTYPE_F32, false },
    { "llama, mamba drafts", GOLDEN "llama2-f16", GOLDEN "mamba", SPEC_DTYPE_F16, false },
    { "demo", DEMO_TARGET, DEMO_DRAFTER, SPEC_DTYPE_BF16, true },
};

typedef struct bench {
    const struct pair *pair;
    spec_model *target, *small;
    spec_drafter *dr;
    spec_session *s;
} bench;

static void open_models(bench *b, const struct pair *p)
{
    b->pair = p;
    b->target = support_model(backend, p->target, p->dtype);
    b->small = support_model(backend, p->drafter, p->dtype);
}

static void open_on(bench *b, spec_model *target, spec_model *small, int32_t n_seq, int32_t n_ctx, int32_t n_draft)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    dp.n_draft = n_draft, dp.temperature = 1.4f;
    sp.n_seq = n_seq, sp.n_ctx = n_ctx;
    b->dr = NULL;
    if (small) OK(spec_drafter_from_model(&b->dr, small, &dp));
    OK(spec_session_open(&b->s, target, b->dr, &sp));
}

static void open_session(bench *b, int32_t n_seq) { open_on(b, b->target, b->small, n_seq, 250, N_DRAFT); }

static void close_session(bench *b)
{
    spec_session_close(b->s);
    spec_drafter_close(b->dr);
}

static void close_models(bench *b)
{
    spec_model_close(b->small);
    spec_model_close(b->target);
}

static int32_t add_seeded(spec_session *s, const spec_sampling *sampling, int32_t n, uint64_t random)
{
    int32_t ids[160], seq;
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)(support_random(&random) % 90);
    OK(add_endless(s, &seq, ids, (size_t)n, sampling));
    return seq;
}

static int32_t add(spec_session *s, const spec_sampling *sampling) { return add_seeded(s, sampling, N_PROMPT, 11); }

/* --- what a sequence does --- */

/* Each step: what was drafted, the logits along the accepted path, what was emitted; as one number. */
typedef struct trace {
    uint64_t step[N_BEFORE + N_AFTER];
    int32_t n_step, n_drafted, n_accepted;
} trace;

static void finish_step(spec_session *s, int32_t seq, const spec_tree *tree, trace *t)
{
    static float logits[4096];
    int32_t path[SPEC_MAX_DEPTH + 1], n_path, token;
    speci_hash h = { 0 };
    OK(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO));
    speci_hash_add(&h, tree->token, (size_t)tree->n * sizeof *tree->token);
    speci_hash_add(&h, path, (size_t)n_path * sizeof *path);
    speci_hash_add(&h, &token, sizeof token);
    for (int32_t i = 0; i < n_path; i++) {
        OK(spec_node_logits(s, logits, seq, path[i]));
        speci_hash_add(&h, logits, (size_t)s->target->n_vocab * sizeof *logits);
    }
    t->step[t->n_step++] = speci_hash_value(&h);
    t->n_drafted += tree->n - 1, t->n_accepted += n_path - 1;
    OK(spec_commit(s, seq, path, n_path, token));
}

/* n sequences in one pass. */
static void step_all(spec_session *s, const int32_t *seqs, int32_t n, trace *const *traces)
{
    const spec_tree *trees[4];
    OK(spec_draft(s, trees, seqs, n));
    OK(spec_score(s, seqs, n, trees));
    for (int32_t i = 0; i < n; i++) finish_step(s, seqs[i], trees[i], traces[i]);
}

static void steps(spec_session *s, int32_t seq, int32_t n, trace *t)
{
    for (int32_t i = 0; i < n; i++) step_all(s, &seq, 1, &t);
}

static trace alone(bench *b, const spec_sampling *sampling)
{
    trace t = { 0 };
    open_session(b, 1);
    steps(b->s, add(b->s, sampling), N_BEFORE + N_AFTER, &t);
    close_session(b);
    return t;
}

/* t is what `want` was from step `first` on. */
static void expect(const trace *t, const trace *want, int32_t first, const char *who)
{
    for (int32_t i = 0; i < t->n_step; i++)
        if (t->step[i] != want->step[first + i]) fail_msg("%s: step %d is another than alone", who, first + i);
    assert_true(t->n_step > 0);
}

static void each_pair(void (*check)(bench *b, const spec_sampling *sampling))
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        bench b;
        open_models(&b, &pairs[i]);
        print_message("  %s\n", pairs[i].name);
        check(&b, &greedy);
        check(&b, &sampled);
        close_models(&b);
    }
}

/* --- fork --- */

/* Another sequence is in slot 0, and slot 2 was used before. */
static int32_t begin_between(bench *b, const spec_sampling *sampling, trace *t)
{
    trace other = { 0 };
    open_session(b, 4);
    steps(b->s, add_seeded(b->s, &sampled, 20, 5), 2, &other);
    const int32_t seq = add(b->s, sampling), used = add_seeded(b->s, &greedy, 70, 6);
    steps(b->s, used, 3, &other);
    OK(spec_sequence_remove(b->s, used));
    steps(b->s, seq, N_BEFORE, t);
    return seq;
}

static void check_fork(bench *b, const spec_sampling *sampling)
{
    const trace want = alone(b, sampling);
    trace before = { 0 }, t[3] = { 0 };
    int32_t seqs[3];
    seqs[0] = begin_between(b, sampling, &before);
    expect(&before, &want, 0, "before");
    OK(spec_sequence_fork(b->s, &seqs[1], seqs[0]));
    speci_exec *const drafter = support_drafter_exec(b->s);
    assert_int_equal(drafter->kind->n_past(drafter, seqs[1]), drafter->kind->n_past(drafter, seqs[0]));
    steps(b->s, seqs[1], 2, &t[1]); /* the copy goes ahead, and is copied */
    OK(spec_sequence_fork(b->s, &seqs[2], seqs[1]));
    trace *const all[] = { &t[0], &t[1], &t[2] };
    for (int i = 0; i < N_AFTER - 2; i++) step_all(b->s, seqs, 3, all);
    expect(&t[0], &want, N_BEFORE, "the original");
    expect(&t[1], &want, N_BEFORE, "the copy");
    expect(&t[2], &want, N_BEFORE + 2, "the copy's copy");
    close_session(b);
}

static void forks_go_on_as_alone(void **state)
{
    (void)state;
    each_pair(check_fork);
}

/* Between the calls of a step: the original's proposal and score stay good. */
static void check_fork_within(bench *b, const spec_sampling *sampling)
{
    const trace want = alone(b, sampling);
    trace t = { 0 }, copies[2] = { 0 };
    int32_t copy[2];
    const spec_tree *tree;
    const int32_t seq = begin_between(b, sampling, &t);
    OK(spec_draft(b->s, &tree, &seq, 1));
    OK(spec_sequence_fork(b->s, &copy[0], seq));
    OK(spec_score(b->s, &seq, 1, &tree));
    OK(spec_sequence_fork(b->s, &copy[1], seq));
    finish_step(b->s, seq, tree, &t);
    for (int i = 0; i < 2; i++) {
        steps(b->s, copy[i], N_AFTER, &copies[i]);
        expect(&copies[i], &want, N_BEFORE, i ? "copied after score" : "copied after draft");
    }
    steps(b->s, seq, N_AFTER - 1, &t);
    expect(&t, &want, 0, "the original");
    close_session(b);
}

static void forks_within_a_step(void **state)
{
    (void)state;
    each_pair(check_fork_within);
}

static void seeds(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[DEMO]);
    const trace want = alone(&b, &sampled);
    trace t[3] = { 0 };
    int32_t copy[2];
    const int32_t seq = begin_between(&b, &sampled, &t[0]);
    for (int i = 0; i < 2; i++) {
        OK(spec_sequence_fork(b.s, &copy[i], seq));
        OK(spec_sequence_seed(b.s, copy[i], 4711));
        steps(b.s, copy[i], N_AFTER, &t[1 + i]);
    }
    steps(b.s, seq, N_AFTER, &t[0]);
    expect(&t[0], &want, 0, "the original");
    assert_memory_equal(t[1].step, t[2].step, N_AFTER * sizeof *t[1].step);
    assert_memory_not_equal(t[1].step, want.step + N_BEFORE, N_AFTER * sizeof *t[1].step);
    FAILS(spec_sequence_seed(b.s, 4, 1), SPEC_E_INVALID, "no sequence 4");
    close_session(&b);
    close_models(&b);
}

static int32_t n_free_pages(const spec_session *s)
{
    const net_exec *target = s->exec->state;
    const speci_exec *own = support_drafter_exec(s);
    const net_exec *drafter = own ? own->state : NULL;
    return target->n_free + (drafter ? drafter->n_free : 0);
}

static void forks_that_do_not_fit(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[2]); /* both attend */
    const trace want = alone(&b, &sampled);
    trace t = { 0 };
    int32_t copy = -5, copies[2];
    const int32_t seq = begin_between(&b, &sampled, &t);
    net_exec *const nets[] = { b.s->exec->state, support_drafter_exec(b.s)->state };
    for (int i = 0; i < 2; i++) {
        const int32_t n_free = nets[i]->n_free, all = n_free_pages(b.s);
        nets[i]->n_free = 2;
        FAILS(spec_sequence_fork(b.s, &copy, seq), SPEC_E_BUSY, "no free KV page: 3 needed, 2 free");
        assert_int_equal(nets[i]->n_free, 2);
        nets[i]->n_free = n_free;
        assert_int_equal(n_free_pages(b.s), all);
        assert_int_equal(copy, -5);
    }
    FAILS(spec_sequence_fork(b.s, &copy, 3), SPEC_E_INVALID, "no sequence 3");
    for (int i = 0; i < 2; i++) OK(spec_sequence_fork(b.s, &copies[i], seq));
    FAILS(spec_sequence_fork(b.s, &copy, seq), SPEC_E_BUSY, "all 4 sequences");
    OK(spec_sequence_remove(b.s, copies[0]));
    for (int i = 0; i < 2; i++) {
        nets[i]->seqs[seq].broken = true;
        FAILS(spec_sequence_fork(b.s, &copy, seq), SPEC_E_STATE, "an earlier pass failed");
        nets[i]->seqs[seq].broken = false;
    }
    steps(b.s, seq, N_AFTER, &t);
    expect(&t, &want, 0, "the original");
    close_session(&b);
    close_models(&b);
}

typedef struct forking {
    spec_session *s;
    int32_t copy; /* -1: none yet */
} forking;

/* Forks the one sequence of a generation after its first step. */
static int fork_once(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    forking *f = user;
    (void)text, (void)n_text, (void)ids, (void)n_ids;
    if (f->copy < 0) OK(spec_sequence_fork(f->s, &f->copy, 0));
    return 0;
}

/* A generation is to end after N tokens, and so is its copy: trees are clipped there, so neither overshoots. All drafts
 * are accepted, five tokens a step: without the limit most copies would. */
static void forks_keep_the_limit(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[1]);
    open_session(&b, 2);
    for (int32_t n_predict = N_DRAFT + 2; n_predict < N_DRAFT + 14; n_predict++) {
        forking f = { b.s, -1 };
        spec_request p = SPEC_REQUEST_INIT;
        spec_result r = SPEC_RESULT_INIT;
        spec_step_result step;
        const int32_t prompt[] = { 5, 11, 23 }, *ids;
        size_t n;
        p.n_predict = n_predict, p.ignore_eos = 1, p.on_text = fork_once, p.text_user_data = &f;
        OK(spec_generate_ids(b.s, &r, prompt, 3, &p));
        assert_int_equal(r.n_ids, n_predict);
        assert_true(r.n_accepted > 0);
        for (n = 0; n < 3 + (size_t)n_predict;) {
            OK(step_into(b.s, &step, &f.copy, 1));
            OK(spec_sequence_ids(b.s, &ids, &n, f.copy));
        }
        assert_int_equal(n, 3 + n_predict);
        assert_memory_equal(ids + 3, r.ids, (size_t)n_predict * sizeof *ids);
        OK(spec_sequence_remove(b.s, f.copy));
        spec_result_free(&r);
    }
    close_session(&b);
    close_models(&b);
}

/* --- streams --- */

typedef support_stream stream;

static stream save(spec_session *s, int32_t seq)
{
    stream f = { 0 };
    OK(spec_sequence_save(s, seq, support_to_stream, &f));
    return f;
}

static int32_t restore(spec_session *s, stream *f)
{
    int32_t seq;
    f->at = 0;
    OK(spec_sequence_restore(s, &seq, support_from_stream, f));
    assert_int_equal(f->at, f->n);
    return seq;
}

static void refuses(spec_session *s, stream *f, spec_status code, const char *part)
{
    const int32_t before = n_free_pages(s);
    int32_t seq = -5;
    f->at = 0;
    FAILS(spec_sequence_restore(s, &seq, support_from_stream, f), code, part);
    assert_int_equal(seq, -5);
    assert_int_equal(n_free_pages(s), before);
}

static void expect_same_bytes(const stream *a, const stream *b, const char *what)
{
    if (a->n != b->n) fail_msg("%s: %zu bytes, then %zu", what, a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        if (a->data[i] != b->data[i]) fail_msg("%s: byte %zu of %zu differs", what, i, a->n);
}

/* --- save, restore --- */

static void check_save(bench *b, const spec_sampling *sampling)
{
    const trace want = alone(b, sampling);
    trace t = { 0 }, r[2] = { 0 }, other = { 0 };
    int32_t seqs[2];
    const int32_t seq = begin_between(b, sampling, &t);
    stream f = save(b->s, seq), again = save(b->s, seq);
    expect_same_bytes(&f, &again, "saved twice");
    free(again.data);
    steps(b->s, seq, N_AFTER, &t);
    expect(&t, &want, 0, "the original");
    assert_true(!b->pair->agree || t.n_accepted > 0);
    close_session(b);

    open_on(b, b->target, b->small, 3, 0, N_DRAFT); /* another session, other limits, its memory used before */
    const int32_t used = add_seeded(b->s, &sampled, 90, 7);
    steps(b->s, used, 3, &other);
    seqs[0] = restore(b->s, &f);
    OK(spec_sequence_remove(b->s, used));
    seqs[1] = restore(b->s, &f);
    assert_int_equal(seqs[1], used);
    for (int i = 0; i < 2; i++) {
        again = save(b->s, seqs[i]);
        expect_same_bytes(&f, &again, "restored and saved");
        free(again.data);
    }
    trace *const both[] = { &r[0], &r[1] };
    for (int i = 0; i < N_AFTER; i++) step_all(b->s, seqs, 2, both);
    expect(&r[0], &want, N_BEFORE, "restored");
    expect(&r[1], &want, N_BEFORE, "restored over another");
    close_session(b);
    free(f.data);
}

static void restored_go_on_as_alone(void **state)
{
    (void)state;
    each_pair(check_save);
}

/* Forked and saved before its first pass, in memory that another sequence used. */
static void check_unfed(bench *b, const spec_sampling *sampling)
{
    trace want = { 0 }, other = { 0 }, t[3] = { 0 };
    int32_t seqs[3];
    open_session(b, 1);
    steps(b->s, add_seeded(b->s, sampling, 1, 12), N_AFTER, &want);
    close_session(b);

    open_session(b, 3);
    const int32_t used = add_seeded(b->s, &sampled, 20, 5);
    steps(b->s, used, 2, &other);
    OK(spec_sequence_remove(b->s, used));
    seqs[0] = add_seeded(b->s, sampling, 1, 12);
    assert_int_equal(seqs[0], used);
    stream f = save(b->s, seqs[0]);
    OK(spec_sequence_remove(b->s, seqs[0]));
    seqs[0] = restore(b->s, &f);
    steps(b->s, seqs[0], N_AFTER, &t[0]);
    OK(spec_sequence_remove(b->s, seqs[0]));
    seqs[1] = add_seeded(b->s, sampling, 1, 12);
    OK(spec_sequence_fork(b->s, &seqs[2], seqs[1]));
    for (int i = 1; i < 3; i++) steps(b->s, seqs[i], N_AFTER, &t[i]);
    expect(&t[0], &want, 0, "restored");
    expect(&t[1], &want, 0, "the original");
    expect(&t[2], &want, 0, "the copy");
    close_session(b);
    free(f.data);
}

static void unfed_go_on_as_alone(void **state)
{
    (void)state;
    each_pair(check_unfed);
}

/* Saved between score and commit: the score is forgotten, nothing else. Saved right after admission. */
static void saved_within_a_step(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[3]);
    const trace want = alone(&b, &sampled);
    trace t = { 0 }, r = { 0 };
    const spec_tree *tree;
    float probs;
    int32_t seq = begin_between(&b, &sampled, &t);
    OK(spec_draft(b.s, &tree, &seq, 1));
    OK(spec_score(b.s, &seq, 1, &tree));
    stream f = save(b.s, seq);
    FAILS(spec_node_logits(b.s, &probs, seq, 0), SPEC_E_STATE, "nothing was scored");
    steps(b.s, seq, N_AFTER, &t);
    expect(&t, &want, 0, "the original");
    steps(b.s, restore(b.s, &f), N_AFTER, &r);
    expect(&r, &want, N_BEFORE, "restored");
    close_session(&b);
    free(f.data);

    open_session(&b, 2);
    f = save(b.s, add(b.s, &sampled));
    memset(&r, 0, sizeof r);
    steps(b.s, restore(b.s, &f), N_AFTER, &r);
    expect(&r, &want, 0, "restored from the start");
    close_session(&b);
    free(f.data);
    close_models(&b);
}

/* --- paths with gaps --- */

/* A tree of the caller's, and the path 0, 2, 4, 5 through it: what is pending lies scattered in caches and KV slots. */
static void commit_scattered(spec_session *s, int32_t seq, const int32_t *tokens, int32_t next)
{
    int32_t token[] = { tokens[0], 50, tokens[1], 51, tokens[2], tokens[3], 52 };
    int32_t parent[] = { -1, 0, 0, 2, 2, 4, 1 };
    const int32_t path[] = { 0, 2, 4, 5 };
    const spec_tree tree = { .n = 7, .cap = 7, .token = token, .parent = parent }, *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_commit(s, seq, path, 4, next));
}

static void score_root(spec_session *s, int32_t seq, int32_t root, float *row)
{
    int32_t parent = -1;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &root, .parent = &parent }, *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_node_logits(s, row, seq, 0));
    OK(spec_rollback(s, seq));
}

static void check_scattered(bench *b, const spec_sampling *sampling)
{
    static float want[4096], row[4096];
    const int32_t next = 33;
    int32_t seq, copy;
    open_on(b, b->target, b->small, 3, 250, 6);
    seq = add(b->s, sampling);
    const int32_t tokens[] = { b->s->seqs[seq].ids[N_PROMPT - 1], 61, 62, 63 };
    for (int i = 0; i < 4; i++) support_plain_step(b->s, seq, tokens[i], i < 3 ? tokens[i + 1] : next, NULL);
    score_root(b->s, seq, next, want);
    OK(spec_sequence_remove(b->s, seq));
    seq = add(b->s, sampling);
    commit_scattered(b->s, seq, tokens, next);
    OK(spec_sequence_fork(b->s, &copy, seq));
    stream f = save(b->s, copy);
    const int32_t seqs[] = { seq, copy, restore(b->s, &f) };
    for (int i = 2; i >= 0; i--) {
        score_root(b->s, seqs[i], next, row);
        if (memcmp(row, want, (size_t)b->target->n_vocab * sizeof *row) != 0)
            fail_msg("%s: the logits are others than those of single steps",
                     i == 0 ? "original" : i == 1 ? "copy" : "restored");
    }
    free(f.data);
    close_session(b);
}

static void scattered_paths(void **state)
{
    (void)state;
    each_pair(check_scattered);
}

/* --- nets of both kinds --- */

/* A net of two slots on a queue of its own. */
typedef struct small_net {
    speci_exec *net;
    spec_queue *queue;
} small_net;

static small_net open_net(spec_model *m, int32_t n_node, bool joint)
{
    const speci_exec_params p = { .n_seq = 2, .n_ctx = 200, .n_node = n_node, .joint = joint };
    const spec_backend_ops *ops = m->backend->ops;
    small_net n;
    spec_plan plans[2];
    OK(m->exec->open(&n.net, m, &p));
    n.net->kind->plans(n.net, plans);
    OK(ops->queue_open(m->backend->dev, &n.queue, plans, 2, m->n_vocab));
    OK(n.net->kind->attach(n.net, n.queue, true));
    return n;
}

static void close_net(const small_net *n, const spec_model *m)
{
    speci_exec_close(n->net);
    m->backend->ops->queue_close(n->queue);
}

/* Feeds a tree of one node, or the scattered one, and reads its rows. */
static void feed(small_net *n, const spec_model *m, int32_t slot, int32_t root, int32_t n_node, float *row)
{
    int32_t token[] = { root, 50, 61, 51, 62, 63, 52 }, parent[] = { -1, 0, 0, 2, 2, 4, 1 };
    const spec_tree tree = { .n = n_node, .cap = 7, .token = token, .parent = parent };
    const speci_exec_input in = { .slot = slot, .tree = &tree };
    OK(n->net->kind->forward(n->net, &in, 1, NULL, NULL));
    const float *logits = n->net->logits + (size_t)n->net->first_row[0] * (size_t)n->net->n_logit;
    OK(m->backend->ops->download(n->queue, row, logits, (size_t)n_node * (size_t)m->n_vocab * sizeof *row));
    OK(m->backend->ops->sync(n->queue));
}

/* The arg-max of the last pass's first rows. */
static void read_tokens(const small_net *n, const spec_model *m, int32_t n_row, int32_t *token)
{
    spec_argmax_args a = speci_exec_argmax(n->net, 0, n_row);
    a.host_out_token = token;
    OK(m->backend->ops->argmax(n->queue, &a));
    OK(m->backend->ops->sync(n->queue));
}

static spec_status put_bytes(void *arg, const void *data, size_t n) { return support_to_stream(arg, data, n), SPEC_OK; }
static spec_status get_bytes(void *arg, void *data, size_t n)
{
    assert_int_equal(support_from_stream(arg, data, n), 0);
    return SPEC_OK;
}

/* Whether paths are replayed or fed again: what is applied before its time is the same, moves from one kind of net to
 * the other, and leaves the last pass's logits and their arg-max alone. */
static void nets_of_both_kinds(void **state)
{
    (void)state;
    enum { N_VOCAB = 96, N_IDS = 70 };
    static const char *const names[] = { "mamba", "mamba2", "llama3", "bamba", "lfm2" };
    static const int32_t path[] = { 0, 2, 4, 5 };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char dir[600];
        int32_t ids[N_IDS], token[7], token_now[7];
        float row[N_VOCAB], want[N_VOCAB], last[7 * N_VOCAB], now[7 * N_VOCAB];
        stream f[2] = { { 0 }, { 0 } };
        snprintf(dir, sizeof dir, GOLDEN "%s", names[k]);
        spec_model *const m = support_model(backend, dir, SPEC_DTYPE_F32);
        assert_int_equal(m->n_vocab, N_VOCAB);
        for (int32_t i = 0; i < N_IDS; i++) ids[i] = i * 7 % N_VOCAB;
        for (int joint = 0; joint < 2; joint++) {
            small_net n = open_net(m, 8, joint == 1), other = open_net(m, 8, joint == 0);
            n.net->kind->begin(n.net, 0);
            OK(n.net->kind->prefill(n.net, 0, ids, N_IDS, NULL));
            feed(&n, m, 0, 60, 7, last);
            read_tokens(&n, m, 7, token);
            for (int32_t i = 0; i < 7; i++) assert_true(token[i] >= 0);
            n.net->kind->commit(n.net, 0, path, 4);
            OK(n.net->kind->flush(n.net, 0));
            read_tokens(&n, m, 7, token_now);
            assert_memory_equal(token_now, token, sizeof token);
            assert_int_equal(n.net->kind->n_past(n.net, 0), N_IDS + 4);
            OK(m->backend->ops->download(n.queue, now, n.net->logits, sizeof now));
            OK(m->backend->ops->sync(n.queue));
            assert_memory_equal(now, last, sizeof now);
            OK(n.net->kind->copy(n.net, 0, 1));
            OK(n.net->kind->write(n.net, 1, put_bytes, &f[joint]));
            const int32_t n_recent = speci_exec_n_recent(n.net, 1);
            assert_int_equal(n_recent, strncmp(names[k], "mamba2", 6) == 0 || strcmp(names[k], "bamba") == 0 ? 4 : 0);
            assert_int_equal(f[joint].n, n.net->kind->data_bytes(n.net, N_IDS + 4, n_recent));
            OK(other.net->kind->read(other.net, 1, &(speci_exec_saved){ N_IDS + 4, n_recent, f[joint].n }, get_bytes, &f[joint]));
            feed(&n, m, 0, 33, 1, joint ? row : want);
            if (joint) assert_memory_equal(row, want, sizeof row);
            feed(&n, m, 1, 33, 1, row);
            assert_memory_equal(row, want, sizeof row);
            feed(&other, m, 1, 33, 1, row);
            assert_memory_equal(row, want, sizeof row);
            close_net(&n, m);
            close_net(&other, m);
        }
        expect_same_bytes(&f[0], &f[1], names[k]);
        free(f[0].data);
        free(f[1].data);
        spec_model_close(m);
    }
}

/* --- recent tokens --- */

/* Greedy text does not depend on who drafts. */
static void expect_text(spec_session *s, stream *f, const int32_t *want, size_t n_want)
{
    spec_step_result r;
    const int32_t *ids;
    size_t n = 0;
    const int32_t seq = restore(s, f);
    while (n < n_want) {
        OK(step_into(s, &r, &seq, 1));
        OK(spec_sequence_ids(s, &ids, &n, seq));
    }
    assert_memory_equal(ids, want, n_want * sizeof *ids);
    OK(spec_sequence_remove(s, seq));
}

enum { N_KIND = 3, N_SAVED = 9 };

/* One net reads a text token by token, one replays paths, one feeds them again: rings of three sizes. Wherever in a
 * window they are, what is saved is the same bytes, and each goes on from what another saved. */
static void check_within_windows(const char *path, spec_dtype dtype)
{
    static const int32_t way[] = { 0, 2, 4, 5 };
    static float rows[N_KIND][7 * 4096];
    spec_model *const m = support_model(backend, path, dtype);
    const size_t row = (size_t)m->n_vocab * sizeof **rows;
    small_net nets[N_KIND] = { open_net(m, 1, false), open_net(m, 7, false), open_net(m, 9, true) };
    int32_t ids[20], n_past = 20, n_saved = 0, n_recent = 0, most = 0;
    for (int32_t i = 0; i < n_past; i++) ids[i] = 3 * i;
    for (int k = 0; k < N_KIND; k++) {
        nets[k].net->kind->begin(nets[k].net, 0);
        OK(nets[k].net->kind->prefill(nets[k].net, 0, ids, (size_t)n_past, NULL));
    }
    for (int32_t round = 0; n_saved < N_SAVED; round++) {
        const int32_t n = 1 + round * 3 % 4, text[] = { round, 61, 62, 63 };
        for (int k = 1; k < N_KIND; k++) {
            feed(&nets[k], m, 0, round, 7, rows[k]);
            nets[k].net->kind->commit(nets[k].net, 0, way, n);
        }
        for (int32_t i = 0; i < n; i++) {
            feed(&nets[0], m, 0, text[i], 1, rows[0]);
            nets[0].net->kind->commit(nets[0].net, 0, way, 1);
            for (int k = 1; k < N_KIND; k++)
                assert_memory_equal(rows[k] + (size_t)way[i] * (size_t)m->n_vocab, rows[0], row);
        }
        n_past += n;
        const bool over = (n_past - 20) / SPEC_CHUNK > (n_past - 20 - n) / SPEC_CHUNK; /* a window's end is pending */
        if (!over && round % 5 != 4) continue;
        stream f[N_KIND] = { { 0 } };
        for (int k = 0; k < N_KIND; k++) {
            OK(nets[k].net->kind->flush(nets[k].net, 0));
            OK(nets[k].net->kind->write(nets[k].net, 0, put_bytes, &f[k]));
            n_recent = speci_exec_n_recent(nets[k].net, 0);
            assert_int_equal(f[k].n, nets[k].net->kind->data_bytes(nets[k].net, n_past, n_recent));
            if (k > 0) expect_same_bytes(&f[0], &f[k], path);
        }
        assert_in_range(n_recent, 1, 2 * SPEC_CHUNK - 1);
        most = n_recent > most ? n_recent : most;
        for (int k = 0; k < N_KIND; k++) { /* a copy, of what another saved, goes on in place of the original */
            stream *const from = &f[(k + 1) % N_KIND];
            nets[k].net->kind->end(nets[k].net, 0);
            OK(nets[k].net->kind->read(nets[k].net, 1, &(speci_exec_saved){ n_past, n_recent, from->n }, get_bytes, from));
            OK(nets[k].net->kind->copy(nets[k].net, 1, 0));
            nets[k].net->kind->end(nets[k].net, 1);
            assert_int_equal(speci_exec_n_recent(nets[k].net, 0), n_recent);
        }
        for (int k = 0; k < N_KIND; k++) free(f[k].data);
        n_saved++;
    }
    assert_true(n_past - 20 > 3 * SPEC_CHUNK && most > SPEC_CHUNK);
    for (int k = 0; k < N_KIND; k++) close_net(&nets[k], m);
    spec_model_close(m);
}

static void within_windows(void **state)
{
    (void)state;
    check_within_windows(GOLDEN "mamba2", SPEC_DTYPE_F32);
    check_within_windows(GOLDEN "mamba2", SPEC_DTYPE_BF16);
    check_within_windows(GOLDEN "bamba", SPEC_DTYPE_F16);
}

static void open_form(bench *b, spec_scan_form scan, spec_draft_state draft_state)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    dp.n_draft = N_DRAFT, dp.temperature = 1.4f;
    spec_lab lab = SPEC_LAB_INIT;
    lab.scan = scan, lab.draft_state = draft_state;
    sp.n_seq = 2, sp.n_ctx = 250, sp.lab = &lab;
    OK(spec_drafter_from_model(&b->dr, b->small, &dp));
    OK(spec_session_open(&b->s, b->target, b->dr, &sp));
}

/* States that lag are for sessions whose scans let them; a drafter that keeps a state per node is prefilled instead. */
static void forms_of_scans(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[1]);
    trace t = { 0 }, want = { 0 }, r[2] = { 0 };
    open_form(&b, SPEC_SCAN_CHUNKED, SPEC_DRAFT_STATE_REPLAY);
    const int32_t seq = add(b.s, &greedy);
    stream unfed = save(b.s, seq);
    steps(b.s, seq, N_BEFORE, &t);
    stream f = save(b.s, seq);
    assert_true(speci_exec_n_recent(b.s->exec, seq) > 0 && speci_exec_n_recent(support_drafter_exec(b.s), seq) > 0);
    steps(b.s, seq, N_AFTER, &want);
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(b.s, &ids, &n, seq));
    int32_t *const text = malloc(n * sizeof *text);
    memcpy(text, ids, n * sizeof *ids);
    close_session(&b);

    open_form(&b, SPEC_SCAN_RECURRENT, SPEC_DRAFT_STATE_REPLAY);
    refuses(b.s, &f, SPEC_E_FORMAT, "as chunked scans leave them; this session has none");
    int32_t other = restore(b.s, &unfed); /* nothing lags behind a prompt */
    steps(b.s, other, N_BEFORE, &r[0]);
    assert_int_equal(speci_exec_n_recent(b.s->exec, other), 0);
    stream recurrent = save(b.s, other);
    close_session(&b);

    open_form(&b, SPEC_SCAN_CHUNKED, SPEC_DRAFT_STATE_PER_NODE);
    expect_text(b.s, &f, text, n);
    other = restore(b.s, &recurrent);
    steps(b.s, other, N_AFTER, &r[1]);
    assert_true(speci_exec_n_recent(b.s->exec, other) > 0);
    assert_int_equal(speci_exec_n_recent(support_drafter_exec(b.s), other), 0);
    close_session(&b);
    free(text);
    free(recurrent.data);
    free(unfed.data);
    free(f.data);
    close_models(&b);
}

/* --- other drafters, other sizes --- */

static int32_t own_begun;
static spec_status own_prefill(void *user, int32_t seq, const int32_t *ids, size_t n)
{
    (void)user, (void)ids, (void)n;
    own_begun = seq;
    return SPEC_OK;
}
static spec_status own_draft(void *user, spec_draft_request *requests, int32_t n)
{
    (void)user, (void)requests, (void)n;
    return SPEC_OK;
}

static void other_drafters(void **state)
{
    (void)state;
    bench b, c;
    open_models(&b, &pairs[3]);
    spec_model *const mamba = support_model(backend, GOLDEN "mamba", SPEC_DTYPE_F32);
    trace t = { 0 };
    const int32_t *ids;
    size_t n;
    int32_t want[250];
    const int32_t seq = begin_between(&b, &greedy, &t);
    stream f = save(b.s, seq);
    steps(b.s, seq, N_AFTER, &t);
    OK(spec_sequence_ids(b.s, &ids, &n, seq));
    memcpy(want, ids, n * sizeof *ids);
    close_session(&b);

    spec_model *const small[] = { NULL, mamba, b.target, b.small };
    for (int i = 0; i < 4; i++) {
        open_on(&c, b.target, small[i], 2, 0, 1 + i);
        expect_text(c.s, &f, want, n);
        stream g = save(c.s, restore(c.s, &f));
        close_session(&c);
        open_session(&b, 1); /* and back */
        expect_text(b.s, &g, want, n);
        close_session(&b);
        free(g.data);
    }

    spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = own_draft, .prefill = own_prefill };
    spec_drafter *dr;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    int32_t copy;
    sp.n_seq = 3, sp.n_node = 4;
    OK(spec_drafter_from_ops(&dr, &ops, NULL));
    OK(spec_session_open(&c.s, b.target, dr, &sp));
    const int32_t first = restore(c.s, &f);
    assert_int_equal(own_begun, first);
    OK(spec_sequence_fork(c.s, &copy, first));
    assert_int_equal(own_begun, copy);
    expect_text(c.s, &f, want, n);
    spec_session_close(c.s);
    spec_drafter_close(dr);
    spec_model_close(mamba);
    close_models(&b);
    free(f.data);
}

/* A sequence that has outgrown its drafter's context goes on without it, restored or forked. */
static void outgrown_drafters(void **state)
{
    (void)state;
    bench b;
    char dir[64], *text = support_json_with(GOLDEN "llama2", "config.json", "{\"max_position_embeddings\": 150}");
    const variant_file file = { "config.json", text };
    support_variant(dir, GOLDEN "llama2", &file, 1);
    b.target = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    b.small = support_model(backend, dir, SPEC_DTYPE_F32);
    trace before = { 0 }, t = { 0 }, r = { 0 }, k = { 0 };
    const spec_tree *tree;
    int32_t copy;
    open_session(&b, 2);
    const int32_t seq = add_seeded(b.s, &sampled, 149, 11);
    OK(spec_draft(b.s, &tree, &seq, 1));
    assert_int_equal(tree->n, 3); /* the root and its child stand at the last two positions */
    while (b.s->seqs[seq].n_ids <= 150) steps(b.s, seq, 1, &before);
    OK(spec_draft(b.s, &tree, &seq, 1));
    assert_int_equal(tree->n, 1);
    assert_true(support_drafter_outgrown(b.s, seq));
    OK(spec_sequence_fork(b.s, &copy, seq));
    stream f = save(b.s, copy);
    steps(b.s, seq, N_AFTER, &t);
    steps(b.s, copy, N_AFTER, &k);
    expect(&k, &t, 0, "the copy");
    close_session(&b);
    open_session(&b, 2);
    const int32_t restored = restore(b.s, &f);
    assert_true(support_drafter_outgrown(b.s, restored));
    steps(b.s, restored, N_AFTER, &r);
    expect(&r, &t, 0, "restored");
    assert_int_equal(t.n_drafted + r.n_drafted, 0);
    close_session(&b);
    free(f.data);
    close_models(&b);
    support_variant_remove(dir);
    free(text);
}

static void limits(void **state)
{
    (void)state;
    bench b, c;
    open_models(&b, &pairs[2]);
    trace t = { 0 };
    const int32_t seq = begin_between(&b, &greedy, &t);
    int32_t n = b.s->seqs[seq].n_ids;
    stream f = save(b.s, seq);
    spec_request six = SPEC_REQUEST_INIT, many = SPEC_REQUEST_INIT; /* the second: more than this session's context has */
    six.n_predict = 6, many.n_predict = 300;
    OK(spec_sequence_set_request(b.s, seq, &six));
    stream limited = save(b.s, seq);
    OK(spec_sequence_set_request(b.s, seq, &many));
    stream wide = save(b.s, seq);
    open_on(&c, b.target, b.small, 1, n - 1, N_DRAFT);
    refuses(c.s, &f, SPEC_E_FULL, "does not fit a context of");
    close_session(&c);
    open_on(&c, b.target, b.small, 1, n, N_DRAFT); /* fits, and is at its end */
    spec_step_result r;
    const int32_t full = restore(c.s, &f);
    FAILS(step_into(c.s, &r, &full, 1), SPEC_E_FULL, "reached the context");
    refuses(c.s, &f, SPEC_E_BUSY, "all 1 sequences");
    assert_int_equal(f.at, 0); /* nothing was read in vain */
    close_session(&c);
    open_on(&c, b.target, b.small, 2, n + 20, N_DRAFT);
    assert_int_equal(c.s->seqs[restore(c.s, &f)].n_limit, n + 20); /* only the context limited it */
    assert_int_equal(c.s->seqs[restore(c.s, &limited)].n_limit, n + 6);
    close_session(&c);
    open_on(&c, b.target, b.small, 1, n + 400, N_DRAFT);
    assert_int_equal(c.s->seqs[restore(c.s, &wide)].n_limit, n + 300);
    close_session(&c);
    close_session(&b);
    close_models(&b);
    free(f.data);
    free(limited.data);
    free(wide.data);
}

/* --- text --- */

/* Steps until the text has ended, or n_step steps; what they told goes behind text [*n]. */
static spec_stop tell(spec_session *s, int32_t seq, int32_t n_step, char *text, size_t *n)
{
    spec_step_result r = { 0 };
    for (int32_t i = 0; i < n_step && r.stop == SPEC_STOP_NONE; i++) {
        OK(step_into(s, &r, &seq, 1));
        memcpy(text + *n, r.text, r.n_text);
        *n += r.n_text;
    }
    return r.stop;
}

enum { N_TEXT = 30, TEXT_ROOM = 4096 };

/* Saved and restored after each number of steps: the text, up to this stop string, is that of one sequence. */
static void check_text(bench *b, const char *stop, const char *want, size_t n_want, spec_stop why)
{
    for (int32_t n_before = 1; n_before < N_TEXT; n_before++) {
        char text[TEXT_ROOM];
        size_t n = 0;
        spec_request r = SPEC_REQUEST_INIT;
        r.stop = &stop, r.n_stop = 1, r.n_predict = N_TEXT, r.ignore_eos = 1;
        int32_t seq = add(b->s, &greedy);
        OK(spec_sequence_set_request(b->s, seq, &r));
        spec_stop end = tell(b->s, seq, n_before, text, &n);
        const int32_t n_left = b->s->seqs[seq].n_end - b->s->seqs[seq].n_ids;
        stream f = save(b->s, seq);
        OK(spec_sequence_remove(b->s, seq));
        seq = restore(b->s, &f);
        r.n_predict = n_left;
        if (end == SPEC_STOP_NONE) {
            OK(spec_sequence_set_request(b->s, seq, &r));
            end = tell(b->s, seq, N_TEXT, text, &n);
        }
        OK(spec_sequence_remove(b->s, seq));
        if (end != why || n != n_want || memcmp(text, want, n) != 0)
            fail_msg("saved after %d steps, \"%s\" ends: \"%.*s\" in place of \"%.*s\"", n_before, stop, (int)n, text, (int)n_want, want);
        free(f.data);
    }
}

static void text_held_by_stop_strings(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    bench b;
    char text[TEXT_ROOM] = "", stop[16] = "";
    size_t n = 0;
    open_models(&b, &pairs[DEMO]);
    open_on(&b, b.target, NULL, 1, 250, 0);
    int32_t seq = add(b.s, &greedy);
    spec_request r = SPEC_REQUEST_INIT;
    r.n_predict = N_TEXT, r.ignore_eos = 1;
    OK(spec_sequence_set_request(b.s, seq, &r));
    (void)tell(b.s, seq, N_TEXT, text, &n);
    OK(spec_sequence_remove(b.s, seq));
    assert_true(n > 40);
    memcpy(stop, text + n / 2, 12);
    check_text(&b, stop, text, (size_t)(strstr(text, stop) - text), SPEC_STOP_STRING);
    stop[11] = '#'; /* nearly there, which holds it back for a while */
    check_text(&b, stop, text, n, SPEC_STOP_LENGTH);
    close_session(&b);
    close_models(&b);
}

/* A character of several tokens, saved within it. */
static void text_of_half_a_character(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const char character[] = "\xf0\x9f\x8c\xb5";
    bench b;
    char text[TEXT_ROOM];
    int32_t ids[8];
    size_t n_id, n = 0;
    open_models(&b, &pairs[DEMO]);
    open_on(&b, b.target, NULL, 1, 250, 0);
    OK(spec_tokenizer_encode(spec_model_tokenizer(b.target), ids, 8, &n_id, character, 4, SPEC_TOKEN_CONTINUE));
    assert_in_range(n_id, 2, 4);
    int32_t seq = add(b.s, &greedy);
    for (size_t i = 0; i < n_id; i++) {
        const spec_logit_bias only = { ids[i], 1e6f };
        spec_request r = SPEC_REQUEST_INIT;
        r.bias = &only, r.n_bias = 1;
        OK(spec_sequence_set_request(b.s, seq, &r));
        (void)tell(b.s, seq, 1, text, &n);
        assert_int_equal(n, i + 1 < n_id ? 0 : 4);
        stream f = save(b.s, seq);
        OK(spec_sequence_remove(b.s, seq));
        seq = restore(b.s, &f);
        free(f.data);
    }
    assert_memory_equal(text, character, 4);
    close_session(&b);
    close_models(&b);
}

/* --- what is refused --- */

static void put64(uint8_t *at, uint64_t v)
{
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | at[i];
    return v;
}

static uint64_t sum_of(const uint8_t *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n);
    return speci_hash_value(&h);
}

/* Makes the checksums good again. */
static void forge(stream *f)
{
    put64(f->data + HEADER - 8, sum_of(f->data, HEADER - 8));
    put64(f->data + f->n - 8, sum_of(f->data, f->n - 8));
}

/* From place i of n bytes to the next that is damaged: all of the header and of the checksum, some of the ids, which
 * end at `end`, and of the rest. */
static size_t next_place(size_t i, size_t n, size_t end)
{
    return i < HEADER || i + 9 > n ? 1 : i < end ? 13 : 1 + n / 300;
}

static void damaged(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[3]);
    const trace want = alone(&b, &sampled);
    trace t = { 0 }, r = { 0 };
    const int32_t seq = begin_between(&b, &sampled, &t);
    stream f = save(b.s, seq);
    const size_t n = f.n, end = HEADER + 4 * (size_t)b.s->seqs[seq].n_ids; /* of the ids */
    for (size_t i = 0; i < n; i += next_place(i, n, end)) {
        stream cut = { .data = f.data, .n = i };
        refuses(b.s, &cut, SPEC_E_FORMAT, "it ends after");
    }
    for (size_t i = 0; i < n; i += next_place(i, n, end))
        for (int bit = 0; bit < 8; bit += 7) {
            f.data[i] ^= (uint8_t)(1 << bit);
            refuses(b.s, &f, SPEC_E_FORMAT, i < 8 ? "not a saved sequence" : i < 12 ? "version" : "");
            f.data[i] ^= (uint8_t)(1 << bit);
        }
    print_message("  %zu bytes\n", n);
    steps(b.s, restore(b.s, &f), N_AFTER, &r);
    expect(&r, &want, N_BEFORE, "restored after all that");
    steps(b.s, seq, N_AFTER, &t);
    expect(&t, &want, 0, "the original");
    close_session(&b);
    close_models(&b);
    free(f.data);
}

/* Checksums are good, values are not. */
enum { DRAFTER = 1 << 20 }; /* offsets from there on are those of the drafter's section */
static const struct {
    size_t at;
    uint32_t value;
    const char *part;
} forgeries[] = {
    { 8, 3, "version 3, this library reads version 4" },
    { 8, 5, "version 5, this library reads version 4" },
    { 12, 4 + 1, "flags 5" },
    { 16, 0, "0 ids" },
    { 16, UINT32_MAX, "-1 ids" },
    { 16, INT32_MAX, "2147483647 ids" },
    { 16, INT32_MAX / 2, "of the target's memory" },
    { 16, 1, "of 0 positions, which cannot be" },
    { 20, UINT32_MAX, "may become -1" },
    { 32, 0xBF800000u, "sampling" },
    { 32, 0, "temperature nan" }, /* value: see below */
    { 36, UINT32_MAX, "top-k -1" },
    { 56, 0x0a7f0a41u, "names no model family" },
    { 56, 0x41414141u, "of family AAAAa" },
    { 80, 77, "of compute type" },
    { 84, 7, "with 7 ids" },
    { 88, 7, "7 columns" },
    { 92, 7, "7 layers" },
    { 96, 7, "fingerprint" },
    { 104, 1, "1 bytes of the target's memory" },
    { 112, UINT32_MAX, "its states lag -1 of" },
    { 112, 0, "of the target's memory" },
    { 112, 2 * SPEC_CHUNK, "its states lag 32 of" },
    { 112, INT32_MAX, "its states lag 2147483647 of" },
    { 112, 1u << 31, "its states lag -2147483648 of" },
    { 116, UINT32_MAX, "-1 drafters" },
    { 132, 4, "and 4 of a character" },
    { 136, UINT32_MAX, "behind -1 tokens" },
    { 140, UINT32_MAX, "-1 bytes of text held back" },
    { 140, INT32_MAX, "it ends after" },
    { DRAFTER + 24, 1, "1 bytes of a drafter" },
    { DRAFTER + 24, 100, "84 bytes of the drafter's memory" }, /* without the 16 in front of it */
    { DRAFTER + 36, UINT32_MAX, "its drafter is at position -1" },
    { DRAFTER + 36, 10000, "its drafter is at position 10000" },
    { DRAFTER + 40, UINT32_MAX, "its drafter's states lag -1 of" },
    { HEADER, 96, "token 0 is 96" },
    { HEADER + 4 * 100, UINT32_MAX, "token 100 is -1" },
};

static void forged(void **state)
{
    (void)state;
    static const float nan_bits = NAN;
    uint32_t not_a_number;
    memcpy(&not_a_number, &nan_bits, sizeof not_a_number);
    bench b;
    open_models(&b, &pairs[3]);
    trace t = { 0 }, r = { 0 };
    const int32_t seq = begin_between(&b, &sampled, &t);
    stream f = save(b.s, seq);
    uint8_t *const kept = malloc(f.n);
    memcpy(kept, f.data, f.n);
    const size_t drafter = HEADER + 4 * (size_t)b.s->seqs[seq].n_ids + (size_t)get64(f.data + 104); /* its section */
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        const size_t at = forgeries[i].at < DRAFTER ? forgeries[i].at : forgeries[i].at - DRAFTER + drafter;
        const uint32_t v = strstr(forgeries[i].part, "nan") ? not_a_number : forgeries[i].value;
        for (int k = 0; k < 4; k++) f.data[at + (size_t)k] = (uint8_t)(v >> 8 * k);
        forge(&f);
        refuses(b.s, &f, SPEC_E_FORMAT, forgeries[i].part);
        memcpy(f.data, kept, f.n);
    }
    /* A drafter that is another one is skipped by the size in the file, however large. */
    put64(f.data + drafter + 16, 99), put64(f.data + drafter + 24, UINT64_MAX - 7);
    forge(&f);
    refuses(b.s, &f, SPEC_E_FORMAT, "it ends after");
    memcpy(f.data, kept, f.n);
    steps(b.s, restore(b.s, &f), N_AFTER, &r);
    steps(b.s, seq, N_AFTER, &t);
    assert_memory_equal(r.step, t.step + N_BEFORE, N_AFTER * sizeof *r.step);
    close_session(&b);
    close_models(&b);
    free(kept);
    free(f.data);
}

static void copy_with_flip(const char *from, const char *to, long at)
{
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    FILE *in = fopen(path, "rb");
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *out = fopen(path, "wb");
    assert_true(in && out);
    fseek(in, 0, SEEK_END);
    const long n = ftell(in);
    rewind(in);
    for (long i = 0; i < n; i++) fputc(fgetc(in) ^ (i == n + at), out);
    assert_int_equal(fclose(in) | fclose(out), 0);
}

static void other_models(void **state)
{
    (void)state;
    bench b, c;
    trace t = { 0 };
    char flipped[64], changed[64];
    char *const text = support_json_with(GOLDEN "llama2", "config.json", "{\"rms_norm_eps\": 2e-6}");
    const variant_file weights = { "model.safetensors", NULL }, config = { "config.json", text };
    support_variant(flipped, GOLDEN "llama2", &weights, 1);
    copy_with_flip(GOLDEN "llama2", flipped, -2); /* the last tensor's last bytes */
    support_variant(changed, GOLDEN "llama2", &config, 1);
    b.target = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32), b.small = NULL;
    open_session(&b, 1);
    const int32_t seq = add(b.s, &greedy);
    steps(b.s, seq, 2, &t);
    stream f = save(b.s, seq);
    const struct {
        const char *path, *part;
        spec_dtype dtype, weights;
    } others[] = {
        { GOLDEN "mamba2", "of family llama, the target is mamba2", SPEC_DTYPE_F32, SPEC_DTYPE_AUTO },
        { GOLDEN "llama3", "32 columns, 2 layers; the target has 96, 48, 2", SPEC_DTYPE_F32, SPEC_DTYPE_AUTO },
        { flipped, "of another model: fingerprint", SPEC_DTYPE_F32, SPEC_DTYPE_AUTO },
        { changed, "of another model: fingerprint", SPEC_DTYPE_F32, SPEC_DTYPE_AUTO },
        { GOLDEN "llama2", "of compute type f32, the target's is bf16", SPEC_DTYPE_BF16, SPEC_DTYPE_AUTO },
        { GOLDEN "llama2", "of another model: fingerprint", SPEC_DTYPE_F32, SPEC_DTYPE_Q8_0 },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        spec_model *const m = support_model_of(backend, others[i].path, others[i].dtype, others[i].weights);
        open_on(&c, m, NULL, 1, 250, 0);
        refuses(c.s, &f, SPEC_E_FORMAT, others[i].part);
        close_session(&c);
        spec_model_close(m);
    }
    spec_model *const again = support_model(backend, GOLDEN "llama2", SPEC_DTYPE_F32);
    open_on(&c, again, NULL, 1, 250, 0);
    restore(c.s, &f);
    close_session(&c);
    spec_model_close(again);
    close_session(&b);
    spec_model_close(b.target);
    support_variant_remove(flipped);
    support_variant_remove(changed);
    free(text);
    free(f.data);
}

/* Every byte that is looked at counts: at both ends of the file's last tensor, 192 x 96 of bfloat16. */
static void fingerprints(void **state)
{
    (void)state;
    static const long ends[] = { -1, -4096, -36864, -36864 + 4095 };
    spec_model *const m = support_model(backend, DEMO_TARGET, SPEC_DTYPE_F32);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char dir[64];
        const variant_file weights = { "model.safetensors", NULL };
        support_variant(dir, DEMO_TARGET, &weights, 1);
        copy_with_flip(DEMO_TARGET, dir, ends[i]);
        spec_model *const other = support_model(backend, dir, SPEC_DTYPE_F32);
        assert_true(other->fingerprint != m->fingerprint);
        spec_model_close(other);
        support_variant_remove(dir);
    }
    spec_model_close(m);
}

/* --- callbacks that fail --- */

static void writes_that_fail(void **state)
{
    (void)state;
    bench b;
    open_models(&b, &pairs[3]);
    const trace want = alone(&b, &sampled);
    trace t = { 0 };
    int32_t at;
    const int32_t seq = begin_between(&b, &sampled, &t);
    stream whole = save(b.s, seq);
    for (at = 1; at <= whole.n_write; at++) {
        stream f = { .fail_at = at };
        FAILS(spec_sequence_save(b.s, seq, support_to_stream, &f), SPEC_E_IO, "the application did not take");
        assert_int_equal(f.n_write, at);
        free(f.data);
    }
    assert_true(at > 4);
    for (int i = 0; i < 2; i++) {
        net_exec *const net = (i ? support_drafter_exec(b.s) : b.s->exec)->state;
        stream f = { 0 };
        net->seqs[seq].broken = true;
        FAILS(spec_sequence_save(b.s, seq, support_to_stream, &f), SPEC_E_STATE, "an earlier pass failed");
        assert_int_equal(f.n_write, 0);
        net->seqs[seq].broken = false;
    }
    int32_t none;
    FAILS(spec_sequence_save(b.s, 3, support_to_stream, &whole), SPEC_E_INVALID, "no sequence 3");
    FAILS(spec_sequence_save(b.s, seq, NULL, NULL), SPEC_E_INVALID, "write callback");
    FAILS(spec_sequence_restore(b.s, &none, NULL, NULL), SPEC_E_INVALID, "read callback");
    steps(b.s, seq, N_AFTER, &t);
    expect(&t, &want, 0, "the original");
    close_session(&b);
    close_models(&b);
    free(whole.data);
}

/* --- the checksum --- */

static void checksums(void **state)
{
    (void)state;
    uint8_t data[100] = { 0 };
    for (size_t n = 0; n < sizeof data; n++) {
        const uint64_t want = sum_of(data, n);
        assert_true(n == 0 || want != sum_of(data, n - 1)); /* zeros count */
        for (size_t cut = 0; cut <= n; cut++) { /* in whatever pieces */
            speci_hash h = { 0 };
            speci_hash_add(&h, data, cut / 2);
            speci_hash_add(&h, data + cut / 2, cut - cut / 2);
            speci_hash_add(&h, data + cut, n - cut);
            assert_true(speci_hash_value(&h) == want);
        }
        for (size_t i = 0; i < 8 * n; i++) {
            data[i / 8] ^= (uint8_t)(1 << i % 8);
            assert_true(sum_of(data, n) != want);
            data[i / 8] ^= (uint8_t)(1 << i % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_go_on_as_alone),
        cmocka_unit_test(forks_within_a_step),
        cmocka_unit_test(seeds),
        cmocka_unit_test(forks_that_do_not_fit),
        cmocka_unit_test(forks_keep_the_limit),
        cmocka_unit_test(restored_go_on_as_alone),
        cmocka_unit_test(unfed_go_on_as_alone),
        cmocka_unit_test(saved_within_a_step),
        cmocka_unit_test(scattered_paths),
        cmocka_unit_test(nets_of_both_kinds),
        cmocka_unit_test(within_windows),
        cmocka_unit_test(forms_of_scans),
        cmocka_unit_test(other_drafters),
        cmocka_unit_test(outgrown_drafters),
        cmocka_unit_test(limits),
        cmocka_unit_test(text_held_by_stop_strings),
        cmocka_unit_test(text_of_half_a_character),
        cmocka_unit_test(damaged),
        cmocka_unit_test(forged),
        cmocka_unit_test(other_models),
        cmocka_unit_test(fingerprints),
        cmocka_unit_test(writes_that_fail),
        cmocka_unit_test(checksums),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
