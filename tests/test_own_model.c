/* test_own_model.c - an application's engine as target, as drafter and as both: its text is that of the model behind it, opened
 * directly, by every builder and rule, greedy and sampled, many at once, forked, saved and restored. Its callbacks' errors come
 * through as they are and leave nothing half done; and what it lacks is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"
#include "tests/late_backend.h"
#include "tests/support_corpus.h"
#include "tests/support_decode.h"
#include "tests/support_greedy.h"
#include "tests/support_memory.h"
#include "tests/support_own.h"
#include "tests/test.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"
enum { N_PROMPT = 3, WIDTH = 9, N_NEW = 40, N_VOCAB = 8, SEQS = 8, NODES = 64 };

/* Padded with -1; one of a single token: nothing is prefilled. */
static const int32_t prompt_ids[N_PROMPT * WIDTH] = { 1, 0, 3, 2, 5, 0, 4, 7, 6, 5, -1, -1, -1, -1, -1, -1, -1, -1,
                                                      2, 2, 6, 1, -1, -1, -1, -1, -1 };
static const greedy_prompts prompts = { .n = N_PROMPT, .width = WIDTH, .ids = prompt_ids };

static spec_backend *backend;

/* A pair of models, and the same pair behind callbacks. */
typedef struct pair {
    spec_model *target, *small, *own_target, *own_small;
    own_engine big_engine, small_engine;
} pair;

static void open_pair_on(pair *p, spec_backend *be)
{
    p->target = support_model(be, GOLDEN "law8-target", SPEC_DTYPE_F32);
    p->small = support_model(be, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    support_engine_open(&p->big_engine, p->target, SEQS, NODES);
    support_engine_open(&p->small_engine, p->small, SEQS, NODES);
    p->own_target = support_engine_model(&p->big_engine, be);
    p->own_small = support_engine_model(&p->small_engine, be);
}
static void open_pair(pair *p) { open_pair_on(p, backend); }

static void close_pair(pair *p)
{
    own_engine *engines[] = { &p->big_engine, &p->small_engine };
    spec_model_close(p->own_target);
    spec_model_close(p->own_small);
    for (int i = 0; i < 2; i++) {
        support_engine_close(engines[i]);
        assert_int_equal(engines[i]->n_close, 1);
    }
    spec_model_close(p->target);
    spec_model_close(p->small);
}

/* Who is behind callbacks. */
static const struct {
    const char *name;
    bool target, drafter;
} whom[] = { { "target", true, false }, { "drafter", false, true }, { "both", true, true } };
enum { N_WHO = 3 };

static greedy_run run_of(const pair *p, int32_t who, const char *tree)
{
    return (greedy_run){ .target = whom[who].target ? p->own_target : p->target,
                         .drafter = whom[who].drafter ? p->own_small : p->small, .tree = tree, .n_new = N_NEW };
}

static void expect_same(const int32_t *want, const int32_t *got, const char *name, const char *tree, int32_t n_at_once)
{
    const int64_t at = support_first_difference(want, got, N_PROMPT * N_NEW);
    if (at >= 0)
        fail_msg("%s, %s, %d at once: prompt %d differs at token %d", name, tree, n_at_once, (int)at / N_NEW, (int)at % N_NEW);
}

/* --- text --- */

static void greedy_text_is_the_models(void **state)
{
    (void)state;
    pair p;
    int32_t want[N_PROMPT * N_NEW], got[N_PROMPT * N_NEW];
    open_pair(&p);
    greedy_run run = run_of(&p, 0, NULL);
    run.target = p.target;
    support_greedy(want, NULL, &run, &prompts);
    run.target = p.own_target;
    support_greedy(got, NULL, &run, &prompts);
    expect_same(want, got, "plain", "no tree", 1);
    for (int32_t who = 0; who < N_WHO; who++) {
        greedy_counts c = { 0 };
        for (int32_t i = 0; support_trees[i]; i++) {
            run = run_of(&p, who, support_trees[i]);
            run.n_at_once = 1 + 2 * (i % 2);
            support_greedy(got, &c, &run, &prompts);
            expect_same(want, got, whom[who].name, support_trees[i], run.n_at_once);
        }
        assert_true(c.accepting * 5 >= c.steps && c.rejecting * 5 >= c.steps && c.branched * 20 >= c.steps);
    }
    assert_true(p.small_engine.n_again > 0 && p.big_engine.n_again == 0); /* trees of a drafter grow */
    assert_true(p.big_engine.most_trees == N_PROMPT && p.small_engine.most_trees == N_PROMPT);
    close_pair(&p);
}

/* Of the models opened directly with the same seeds, tree by tree and rule by rule: draws and distributions are theirs. */
static void sampled_text_is_the_models(void **state)
{
    (void)state;
    static const struct {
        const char *tree;
        spec_verify_rule rule;
    } cases[] = { { "chain:4", SPEC_VERIFY_CHAIN },       { "chain:3", SPEC_VERIFY_AUTO },
                  { "product:3,2", SPEC_VERIFY_MSS },     { "product-repeat:3,2", SPEC_VERIFY_MSS_REPEAT },
                  { "beam:3,3", SPEC_VERIFY_NAIVE },      { "dyspec:10", SPEC_VERIFY_AUTO },
                  { "sequoia:12", SPEC_VERIFY_AUTO },     { "eagle2:4,12,3", SPEC_VERIFY_AUTO },
                  { "dyspec-threshold:0.05,16", SPEC_VERIFY_NAIVE } };
    const spec_sampling sampling = { .temperature = 0.9f, .top_p = 0.95f, .seed = 5 };
    pair p;
    int32_t want[N_PROMPT * N_NEW], got[N_PROMPT * N_NEW];
    open_pair(&p);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int32_t who = -1; who < N_WHO; who++) {
            greedy_run run = run_of(&p, who < 0 ? 0 : who, cases[i].tree);
            if (who < 0) run.target = p.target;
            run.sampling = &sampling, run.verify = cases[i].rule, run.n_at_once = 1 + 2 * (int32_t)(i % 2);
            support_greedy(who < 0 ? want : got, NULL, &run, &prompts);
            if (who >= 0) expect_same(want, got, whom[who].name, cases[i].tree, run.n_at_once);
        }
    close_pair(&p);
}

/* Drafters from text and a union of drafters over an engine; and an engine that drafts for itself. */
static void other_drafters(void **state)
{
    (void)state;
    pair p;
    int32_t want[N_NEW], got[N_NEW];
    char png[64];
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, WIDTH, NULL, N_NEW, want);
    support_table(png, want, N_NEW, p.target->n_vocab, 2, 4);
    for (int32_t k = 0; k < 6; k++) {
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *d[2] = { NULL, NULL };
        spec_session *s = NULL;
        spec_request gp = SPEC_REQUEST_INIT;
        spec_result r = SPEC_RESULT_INIT;
        OK(spec_drafter_open(&d[0], k < 2 ? "ngram:2,4" : k < 4 ? "trie:12,4,1" : png, NULL));
        OK(spec_drafter_from_model(&d[1], k % 2 ? p.own_target : p.own_small, NULL));
        sp.drafters = d, sp.n_drafter = 2, sp.combine = k % 2 ? SPEC_DRAFT_FIRST : SPEC_DRAFT_UNION;
        OK(spec_session_open(&s, p.own_target, NULL, &sp));
        gp.n_predict = N_NEW, gp.ignore_eos = 1;
        OK(spec_generate_ids(s, &r, prompt_ids, WIDTH, &gp));
        assert_int_equal(r.n_ids, N_NEW);
        memcpy(got, r.ids, sizeof got);
        assert_memory_equal(want, got, sizeof want);
        assert_true(r.n_accepted > 0);
        spec_result_free(&r);
        spec_session_close(s);
        for (int i = 0; i < 2; i++) spec_drafter_close(d[i]);
    }
    support_table_remove(png);
    close_pair(&p);
}

/* Two sessions over one engine, in turns: their sequences are strangers. */
static void sessions_share_an_engine(void **state)
{
    (void)state;
    pair p;
    int32_t want[2][N_NEW], n[2] = { 0 }, seq[2];
    spec_session *s[2];
    open_pair(&p);
    for (int k = 0; k < 2; k++) {
        const int32_t *ids = prompt_ids + 2 * k * WIDTH;
        support_plain_ids(p.target, ids, 4, NULL, N_NEW, want[k]);
        s[k] = support_session(p.own_target, 1, 2);
        OK(spec_sequence_add(s[k], &seq[k], ids, 4, NULL));
        assert_int_equal(seq[k], 0);
    }
    for (int32_t i = 0; i < 2 * N_NEW; i++) {
        spec_step_result r = { 0 };
        OK(step_into(s[i % 2], &r, &seq[i % 2], 1));
        assert_int_equal(r.n_tokens, 1);
        assert_int_equal(r.tokens[0], want[i % 2][n[i % 2]++]);
    }
    for (int k = 0; k < 2; k++) spec_session_close(s[k]);
    close_pair(&p);
}

/* On a device that is late and can be run ahead of, trees are waited for, and no pass is scored that nobody asked for. */
static void late_devices_are_waited_for(void **state)
{
    (void)state;
    spec_backend *late;
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    pair p;
    int32_t want[N_PROMPT * N_NEW], got[N_PROMPT * N_NEW];
    bp.n_threads = 1;
    late_reset();
    OK(spec_backend_open_ops(&late, &late_ops, NULL, &bp));
    open_pair_on(&p, late);
    for (int k = 0; k < 2; k++) {
        const spec_sampling sampling = { .temperature = (float)k, .seed = 9 };
        greedy_run run = run_of(&p, 0, NULL);
        greedy_counts c = { 0 };
        run.sampling = &sampling, run.target = p.target, run.verify = k ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO;
        support_greedy(want, NULL, &run, &prompts);
        run.target = p.own_target;
        memset(p.big_engine.n_call, 0, sizeof p.big_engine.n_call);
        support_greedy(got, &c, &run, &prompts);
        expect_same(want, got, "plain", "no tree", 1);
        assert_int_equal(p.big_engine.n_call[OWN_SCORE], c.steps);
        for (int32_t who = 0; who < N_WHO; who++) {
            greedy_run speculative = run_of(&p, who, "product:3,2,1");
            speculative.sampling = run.sampling, speculative.verify = run.verify, speculative.n_at_once = 2;
            support_greedy(got, NULL, &speculative, &prompts);
            expect_same(want, got, whom[who].name, speculative.tree, 2);
        }
    }
    close_pair(&p);
    spec_backend_close(late);
}

/* As an executor: what a queue must be ready for; and the likeliest token, handed on on the device, is the next tree's root. */
static void roots_stand_on_the_device(void **state)
{
    (void)state;
    enum { N_SEQ = 2, N_NODE = 3 };
    const speci_exec_params params = { .n_seq = N_SEQ, .n_ctx = 64, .n_node = N_NODE };
    int32_t want[3], token = prompt_ids[3], parent = -1, path = 0, likeliest[N_NODE];
    const spec_tree root = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, none = { 0 };
    const spec_step_node unset[N_SEQ] = { { .token = -1, .parent = -1 }, { .token = -1, .parent = -1 } };
    const spec_backend_ops *ops = backend->ops;
    pair p;
    speci_exec *e;
    spec_plan plans[2];
    spec_queue *q;
    void *device;
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 4, NULL, 3, want);
    OK(p.own_target->exec->open(&e, p.own_target, &params));
    e->kind->plans(e, plans);
    assert_int_equal(plans[0].n_op + plans[1].n_op, 0);
    assert_int_equal(plans[0].n_row_max, N_SEQ * N_NODE);
    OK(ops->queue_open(backend->dev, &q, plans, 2, N_VOCAB));
    OK(e->kind->attach(e, q, true));
    OK(ops->alloc(backend->dev, &device, sizeof unset));
    OK(ops->upload(q, device, unset, sizeof unset));
    spec_step_node *const roots = device;
    e->kind->begin(e, 1);
    OK(e->kind->prefill(e, 1, prompt_ids, 3, NULL));
    speci_exec_input in = { .slot = 1, .tree = &root };
    const speci_exec_tokens tokens = { likeliest, roots + 1 };
    const speci_exec_feed feed = { .nodes = roots, .ld = 1 };
    for (int32_t i = 0; i < 3; i++) {
        OK(e->kind->forward(e, &in, 1, &feed, &tokens));
        OK(ops->sync(q));
        assert_int_equal(likeliest[0], want[i]);
        assert_int_equal(e->first_row[0], 0);
        e->kind->commit(e, 1, &path, 1);
        assert_int_equal(e->kind->n_past(e, 1), 4 + i);
        in = (speci_exec_input){ .slot = 1, .tree = &none, .n_grown = 1 };
    }
    OK(ops->upload(q, device, unset, sizeof unset)); /* no token at all: a device that cannot be believed */
    FAILS(e->kind->forward(e, &in, 1, &feed, NULL), SPEC_E_DEVICE, "node 0 of a tree is token -1");
    FAILS(e->kind->flush(e, 1), SPEC_E_STATE, "an earlier pass failed");
    e->kind->end(e, 1);
    FAILS(e->kind->flush(e, 0), SPEC_E_STATE, "it is empty");
    ops->free(backend->dev, device, sizeof unset);
    speci_exec_close(e);
    ops->queue_close(q);
    close_pair(&p);
}

/* --- fork, save, restore --- */

static void steps(spec_session *s, int32_t seq, int32_t *out, int32_t n)
{
    for (int32_t n_out = 0; n_out < n;) {
        spec_step_result r = { 0 };
        OK(step_into(s, &r, &seq, 1));
        for (int32_t i = 0; i < r.n_tokens && n_out < n; i++) out[n_out++] = r.tokens[i];
    }
}

static spec_session *open_session(spec_model *target, spec_model *small, spec_drafter **d, const char *tree)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    *d = NULL;
    dp.tree = tree, sp.n_seq = 3;
    if (small) OK(spec_drafter_from_model(d, small, &dp));
    OK(spec_session_open(&s, target, *d, &sp));
    return s;
}

static int32_t add(spec_session *s, int32_t n)
{
    const spec_sampling sampling = { .temperature = 0.8f, .seed = 3 };
    int32_t seq;
    OK(add_endless(s, &seq, prompt_ids, (size_t)n, &sampling));
    return seq;
}

/* Before the first step, where the engine has a prompt alone, and behind some. */
static void copies_go_on(void **state)
{
    (void)state;
    enum { BEFORE = 7, AFTER = 20 };
    pair p;
    open_pair(&p);
    for (int32_t before = 0; before <= BEFORE; before += BEFORE)
        for (int32_t n_prompt = 1; n_prompt <= 5; n_prompt += 4) {
            int32_t begun[BEFORE], want[AFTER], got[AFTER], copy, back;
            support_stream file = { 0 };
            spec_drafter *d, *d2;
            spec_session *s = open_session(p.own_target, p.own_small, &d, "chain:3");
            const int32_t seq = add(s, n_prompt);
            steps(s, seq, begun, before);
            OK(spec_sequence_fork(s, &copy, seq));
            OK(spec_sequence_save(s, seq, support_to_stream, &file));
            steps(s, seq, want, AFTER);
            steps(s, copy, got, AFTER);
            assert_memory_equal(want, got, sizeof want);
            OK(spec_sequence_restore(s, &back, support_from_stream, &file));
            steps(s, back, got, AFTER);
            assert_memory_equal(want, got, sizeof want);
            spec_session_close(s);
            spec_drafter_close(d);
            s = open_session(p.own_target, p.own_small, &d2, "chain:3");
            file.at = 0;
            OK(spec_sequence_restore(s, &back, support_from_stream, &file));
            steps(s, back, got, AFTER);
            assert_memory_equal(want, got, sizeof want);
            spec_session_close(s);
            spec_drafter_close(d2);
            free(file.data);
        }
    close_pair(&p);
}

/* A score outlives the copy of its sequence: its rows can be read, and its path committed. */
static void scores_outlive_copies(void **state)
{
    (void)state;
    enum { N = 12 };
    int32_t want[N + 2], token[] = { 0, 0, 6 }, parent[] = { -1, 0, 0 }, path[2] = { 0, 1 }, seq, copy, got[N];
    float before[N_VOCAB], after[N_VOCAB];
    pair p;
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 4, NULL, N + 2, want);
    spec_session *s = support_session(p.own_target, 3, 2);
    token[0] = prompt_ids[3], token[1] = want[0];
    const spec_tree tree = { .n = 3, .cap = 3, .token = token, .parent = parent }, *trees = &tree;
    OK(spec_sequence_add(s, &seq, prompt_ids, 4, NULL));
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_node_logits(s, before, seq, 1));
    OK(spec_sequence_fork(s, &copy, seq));
    OK(spec_node_logits(s, after, seq, 1));
    assert_memory_equal(before, after, sizeof before);
    OK(spec_commit(s, seq, path, 2, want[1]));
    for (int32_t i = 0; i < 2; i++) {
        const int32_t n_known = i ? 0 : 2, which = i ? copy : seq;
        for (int32_t k = 0; k < N; k++) {
            spec_step_result r = { 0 };
            OK(step_into(s, &r, &which, 1));
            got[k] = r.tokens[0];
        }
        assert_memory_equal(got, want + n_known, sizeof got);
    }
    spec_session_close(s);
    close_pair(&p);
}

/* The engine behind a model of ops that lack something. */
static spec_model *model_without(own_engine *e, bool fork, bool save, uint64_t identity)
{
    spec_model *m = NULL;
    spec_model_ops ops = support_engine_ops(e);
    ops.identity = identity;
    if (!fork) ops.fork = NULL;
    if (!save) ops.save = NULL, ops.restore = NULL;
    OK(spec_model_from_ops(&m, backend, &ops));
    return m;
}

static void what_is_missing_is_refused(void **state)
{
    (void)state;
    pair p;
    int32_t copy = -5, want[12], got[12];
    support_stream file = { 0 };
    spec_drafter *d;
    open_pair(&p);
    spec_model *const bare = model_without(&p.big_engine, false, false, 77);
    spec_model *const nameless = model_without(&p.big_engine, true, true, 0);
    spec_model *const other = model_without(&p.big_engine, true, true, 78);
    spec_session *s = open_session(bare, NULL, &d, NULL);
    int32_t seq = add(s, 4);
    FAILS(spec_sequence_fork(s, &copy, seq), SPEC_E_UNSUPPORTED,
          "the model engine cannot fork a sequence: it has no callback fork");
    assert_int_equal(copy, -5);
    FAILS(spec_sequence_save(s, seq, support_to_stream, &file), SPEC_E_UNSUPPORTED, "it has no callbacks save and restore");
    assert_int_equal(file.n_write, 0);
    steps(s, seq, want, 12); /* it goes on */
    spec_session_close(s);
    s = open_session(nameless, NULL, &d, NULL);
    seq = add(s, 4);
    FAILS(spec_sequence_save(s, seq, support_to_stream, &file), SPEC_E_UNSUPPORTED, "it has no identity");
    spec_session_close(s);
    /* Another identity is another model. */
    s = open_session(p.own_target, NULL, &d, NULL);
    seq = add(s, 4);
    OK(spec_sequence_save(s, seq, support_to_stream, &file));
    spec_session_close(s);
    s = open_session(other, NULL, &d, NULL);
    FAILS(spec_sequence_restore(s, &copy, support_from_stream, &file), SPEC_E_FORMAT, "fingerprint");
    spec_session_close(s);
    free(file.data);
    file = (support_stream){ 0 };
    /* As a drafter it begins anew. */
    s = open_session(p.target, bare, &d, "chain:3");
    seq = add(s, 4);
    OK(spec_sequence_save(s, seq, support_to_stream, &file));
    OK(spec_sequence_restore(s, &copy, support_from_stream, &file));
    steps(s, seq, want, 12);
    steps(s, copy, got, 12);
    assert_memory_equal(want, got, sizeof want);
    spec_session_close(s);
    spec_drafter_close(d);
    free(file.data);
    spec_model *const models[] = { bare, nameless, other };
    for (int i = 0; i < 3; i++) spec_model_close(models[i]);
    p.big_engine.n_close = 0;
    close_pair(&p);
}

/* Bytes that are not what they were, by the engine's fault or the file's. */
static void saved_bytes_are_counted(void **state)
{
    (void)state;
    pair p;
    spec_drafter *d;
    int32_t back;
    support_stream file = { 0 };
    open_pair(&p);
    spec_session *s = open_session(p.own_target, NULL, &d, NULL);
    const int32_t seq = add(s, 4);
    p.big_engine.lies = 4;
    FAILS(spec_sequence_save(s, seq, support_to_stream, &file), SPEC_E_INVALID, "when asked again");
    p.big_engine.lies = 0;
    for (int32_t k = 1; k <= 3; k++) {
        support_stream short_of = { .fail_at = k };
        FAILS(spec_sequence_save(s, seq, support_to_stream, &short_of), SPEC_E_IO, "the application did not take");
        free(short_of.data);
    }
    free(file.data);
    file = (support_stream){ 0 };
    OK(spec_sequence_save(s, seq, support_to_stream, &file));
    const size_t whole = file.n;
    file.n = whole - 9; /* its checksum and a byte of the engine's */
    FAILS(spec_sequence_restore(s, &back, support_from_stream, &file), SPEC_E_FORMAT, "it ends after");
    file.n = whole, file.at = 0;
    OK(spec_sequence_restore(s, &back, support_from_stream, &file));
    spec_session_close(s);
    free(file.data);
    close_pair(&p);
}

/* --- callbacks that fail --- */

/* What is done while callbacks fail: each call is made again until it succeeds. Where the target's sequences are lost, it gives
 * up: after E_DEVICE, and where `prefill` has failed behind an add. */
typedef struct scene {
    spec_session *s;
    own_engine *e;
    bool is_target;
    spec_status code;
    const char *sentence;
    int32_t n_failed;
} scene;

/* Is it to be made again? */
static bool failed(scene *c, spec_status status, const char *call)
{
    if (status == SPEC_OK) return false;
    if (status != c->code || !strstr(spec_last_error(), c->sentence))
        fail_msg("%s gave %s \"%s\", expected %s \"%s\"", call, spec_status_name(status), spec_last_error(),
                 spec_status_name(c->code), c->sentence);
    c->n_failed++;
    return true;
}

/* Of what has just failed. */
static bool loses(const scene *c) { return c->code == SPEC_E_DEVICE || (c->is_target && c->e->failed == OWN_PREFILL); }

/* A prompt of more tokens than a step emits. */
static bool append(scene *c, int32_t seq)
{
    int32_t more[70];
    bool lost = false;
    for (int32_t i = 0; i < 70; i++) more[i] = (5 * i + i / 7) % N_VOCAB;
    while (!lost && failed(c, spec_sequence_append(c->s, seq, more, 70, NULL), "append")) {
        const int32_t *ids;
        size_t n_ids;
        lost = loses(c);
        OK(spec_sequence_ids(c->s, &ids, &n_ids, seq));
        if (!lost && c->e->failed == OWN_COMMIT) assert_true(n_ids < 70); /* it is as before */
    }
    return !lost;
}

static bool play(scene *c, int32_t *out, int32_t n)
{
    int32_t seq, copy = -1, back = -1, n_out = 0;
    const spec_sampling sampling = { .temperature = 0.8f, .seed = 3 };
    support_stream file = { 0 };
    spec_step_result r[2];
    bool lost = false;
    while (failed(c, add_endless(c->s, &seq, prompt_ids, 5, &sampling), "add")) {}
    for (int32_t i = 0; i < 3 && !lost; i++) {
        while (!lost && failed(c, step_into(c->s, r, &seq, 1), "step")) lost = loses(c);
        for (int32_t k = 0; k < r[0].n_tokens && n_out < n && !lost; k++) out[n_out++] = r[0].tokens[k];
        if (i == 1 && !lost) lost = !append(c, seq);
    }
    while (!lost && failed(c, spec_sequence_fork(c->s, &copy, seq), "fork")) lost = loses(c);
    for (int32_t i = 0; i < 4 && !lost; i++) {
        const int32_t both[] = { seq, copy };
        while (!lost && failed(c, step_into(c->s, r, both, 2), "step of two")) lost = loses(c);
        for (int32_t k = 0; k < r[0].n_tokens && n_out < n && !lost; k++) out[n_out++] = r[0].tokens[k];
    }
    while (!lost && failed(c, spec_sequence_save(c->s, copy, support_to_stream, &file), "save")) {
        lost = loses(c);
        free(file.data);
        file = (support_stream){ 0 };
    }
    while (!lost && failed(c, spec_sequence_restore(c->s, &back, support_from_stream, &file), "restore")) file.at = 0;
    while (!lost && n_out < n) {
        while (!lost && failed(c, step_into(c->s, r, &back, 1), "step of what was restored")) lost = loses(c);
        for (int32_t k = 0; k < r[0].n_tokens && n_out < n && !lost; k++) out[n_out++] = r[0].tokens[k];
    }
    OK(spec_sequence_remove(c->s, seq));
    if (copy >= 0) OK(spec_sequence_remove(c->s, copy));
    if (back >= 0) OK(spec_sequence_remove(c->s, back));
    free(file.data);
    return !lost;
}

/* The n-th callback fails, for every n; as target, as drafter, with the sentence of the engine and without. A session that went
 * through it is as good as new. */
static void callbacks_fail(void **state)
{
    (void)state;
    enum { N = 40 };
    static const struct {
        spec_status code;
        bool says_nothing;
        spec_status told;
    } ways[] = { { SPEC_E_NOMEM, false, SPEC_E_NOMEM }, { SPEC_E_FULL, true, SPEC_E_FULL }, { SPEC_E_DEVICE, false, SPEC_E_DEVICE },
                 { (spec_status)1234, false, SPEC_E_INVALID } };
    pair p;
    open_pair(&p);
    for (int32_t who = 0; who < 4; who++) /* 2, 3: prompts are consumed by steps */
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            own_engine *e = who % 2 ? &p.small_engine : &p.big_engine;
            spec_drafter *d;
            spec_session *s = open_session(who % 2 ? p.target : p.own_target, who % 2 ? p.own_small : p.small, &d, "product:2,2");
            s->n_prompt_step = who < 2 ? 0 : 16;
            int32_t want[N], got[N], seen[OWN_N_CALL] = { 0 };
            scene c = { .s = s, .e = e, .is_target = who % 2 == 0, .code = ways[w].told, .sentence = OWN_SENTENCE };
            if (ways[w].says_nothing) c.sentence = "of the model engine failed with E_FULL, and said nothing more";
            e->fail_with = ways[w].code, e->says_nothing = ways[w].says_nothing;
            assert_true(play(&c, want, N));
            for (int32_t n = 1;; n++) {
                c.n_failed = 0;
                e->fail_at = n;
                const bool whole = play(&c, got, N);
                assert_int_equal(e->n_alive, 0);
                if (c.n_failed == 0) break;
                assert_int_equal(c.n_failed, 1);
                seen[e->failed]++;
                if (whole) assert_memory_equal(want, got, sizeof want);
                else assert_true(loses(&c));
            }
            e->fail_at = 0;
            for (int32_t k = 0; k < OWN_N_CALL; k++) assert_true(seen[k] > 0);
            assert_true(play(&c, got, N));
            assert_memory_equal(want, got, sizeof want);
            spec_session_close(s);
            spec_drafter_close(d);
        }
    close_pair(&p);
}

/* Logits that are none are refused, of a target and of a drafter; the step can be made again. One that is minus infinity is a token
 * that never comes. */
static void logits_are_numbers(void **state)
{
    (void)state;
    static const struct {
        float spoil;
        bool all;
    } ways[] = { { NAN, false }, { INFINITY, false }, { NAN, true }, { -INFINITY, true } };
    enum { N = 24 };
    pair p;
    int32_t want[N], got[N], seq;
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 5, NULL, N, want);
    for (int32_t who = 0; who < 2; who++) {
        own_engine *e = who ? &p.small_engine : &p.big_engine;
        spec_drafter *d;
        spec_session *s = open_session(who ? p.target : p.own_target, who ? p.own_small : p.small, &d, "product:2,2");
        int32_t n = 0;
        OK(add_endless(s, &seq, prompt_ids, 5, NULL));
        for (size_t w = 0; n < N; w = (w + 1) % 4) {
            spec_step_result r = { 0 };
            e->spoils = true, e->spoil = ways[w].spoil, e->spoils_all = ways[w].all;
            FAILS(step_into(s, &r, &seq, 1), SPEC_E_INVALID, "are no numbers below infinity");
            e->spoils = false;
            OK(step_into(s, &r, &seq, 1));
            for (int32_t i = 0; i < r.n_tokens && n < N; i++) got[n++] = r.tokens[i];
        }
        assert_memory_equal(want, got, sizeof want);
        e->spoils = true, e->spoil = -INFINITY, e->spoils_all = false;
        OK(step_into(s, &(spec_step_result){ 0 }, &seq, 1));
        e->spoils = false;
        spec_session_close(s);
        spec_drafter_close(d);
    }
    close_pair(&p);
}

/* A prompt can be stopped between two pieces. */
static int32_t n_poll;
static int stop_at_third(void *user)
{
    (void)user;
    return ++n_poll >= 3;
}

static void prompts_can_be_stopped(void **state)
{
    (void)state;
    enum { LONG = 1300 };
    int32_t ids[LONG], seq;
    pair p;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    open_pair(&p);
    for (int32_t i = 0; i < LONG; i++) ids[i] = i % N_VOCAB;
    n_poll = 0;
    sp.abort = stop_at_third, sp.n_ctx = LONG + 8;
    OK(spec_session_open(&s, p.own_target, NULL, &sp));
    FAILS(spec_sequence_add(s, &seq, ids, LONG, NULL), SPEC_E_ABORTED, "stopped after 1024 of 1299 prompt tokens");
    assert_int_equal(p.big_engine.n_call[OWN_PREFILL], 2);
    assert_int_equal(p.big_engine.n_alive, 0);
    n_poll = -100;
    OK(spec_sequence_add(s, &seq, ids, LONG, NULL));
    assert_int_equal(p.big_engine.n_call[OWN_PREFILL], 5);
    spec_session_cancel(s);
    spec_step_result r = { 0 };
    FAILS(step_into(s, &r, &seq, 1), SPEC_E_ABORTED, "stopped");
    assert_int_equal(p.big_engine.n_alive, 1);
    spec_session_close(s);
    close_pair(&p);
}

/* --- limits and sizes --- */

static void contexts_end(void **state)
{
    (void)state;
    enum { CTX = 24, SMALL = 16 };
    int32_t want[CTX];
    pair p;
    spec_model *limited[2] = { NULL, NULL };
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 5, NULL, CTX - 5, want);
    spec_model_ops ops = support_engine_ops(&p.big_engine);
    ops.n_ctx = CTX;
    OK(spec_model_from_ops(&limited[0], backend, &ops));
    ops = support_engine_ops(&p.small_engine);
    ops.n_ctx = SMALL; /* trees become less deep at its end, and behind it there are none */
    OK(spec_model_from_ops(&limited[1], backend, &ops));
    spec_drafter *d;
    spec_session *s = open_session(limited[0], limited[1], &d, "chain:4");
    spec_request gp = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    gp.ignore_eos = 1;
    OK(spec_generate_ids(s, &r, prompt_ids, 5, &gp));
    assert_int_equal(r.stop, SPEC_STOP_CONTEXT);
    assert_int_equal(r.n_ids, CTX - 5);
    assert_memory_equal(r.ids, want, (CTX - 5) * sizeof *want);
    assert_true(r.n_speculated > 0 && r.n_speculated < r.n_step);
    spec_result_free(&r);
    spec_session_close(s);
    spec_drafter_close(d);
    for (int i = 0; i < 2; i++) spec_model_close(limited[i]);
    p.big_engine.n_close = p.small_engine.n_close = 0;
    close_pair(&p);
}

static void what_is_known_is_told(void **state)
{
    (void)state;
    enum { N_NODE = 5, N_SEQ = 2 };
    pair p;
    spec_model_info info = { .struct_size = sizeof info };
    spec_memory m = { .struct_size = sizeof m };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    open_pair(&p);
    OK(spec_model_get_info(p.own_target, &info, 16));
    assert_string_equal(info.family, "own");
    assert_string_equal(info.path, "engine");
    assert_string_equal(info.unknown_keys, "");
    assert_true(info.dtype == SPEC_DTYPE_F32 && info.n_vocab == N_VOCAB && info.n_ctx == 0 && info.bos == -1 && info.n_eos == 0);
    assert_true(info.n_layer == 0 && info.n_mixer == 0 && info.bytes_weights == 0 && info.bytes_state_seq == 0);
    assert_ptr_equal(info.backend, backend);
    assert_null(spec_model_tokenizer(p.own_target));
    sp.n_node = N_NODE, sp.n_seq = N_SEQ;
    OK(spec_session_estimate(&m, p.own_target, NULL, &sp));
    assert_true(m.bytes_model == 0 && m.bytes_state == 0 && m.bytes_kv == 0);
    const uint64_t rows = (uint64_t)N_NODE * N_SEQ * N_VOCAB * sizeof(float);
    assert_true(m.bytes_work >= 2 * rows); /* logits and distributions */
    for (int32_t i = 0; i < OWN_N_CALL; i++) assert_int_equal(p.big_engine.n_call[i], 0);
    close_pair(&p);
}

static void costs_are_measured(void **state)
{
    (void)state;
    pair p;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_cost_profile profile = { .struct_size = sizeof profile };
    spec_session *s = NULL;
    spec_drafter *d = NULL;
    int32_t want[12], got[12];
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 5, NULL, 12, want);
    dp.tree = "chain:2;product:2,2", sp.adapt = SPEC_ADAPT_COST;
    OK(spec_drafter_from_model(&d, p.own_small, &dp));
    OK(spec_session_open(&s, p.own_target, d, &sp));
    OK(spec_session_profile(s, &profile));
    assert_true(profile.target.n > 1 && profile.draft.n > 1 && profile.target.ms[0] > 0);
    int32_t seq;
    OK(spec_sequence_add(s, &seq, prompt_ids, 5, NULL));
    steps(s, seq, got, 12);
    assert_memory_equal(want, got, sizeof want);
    spec_session_close(s);
    spec_drafter_close(d);
    close_pair(&p);
}

/* --- what is refused --- */

static void arguments(void **state)
{
    (void)state;
    pair p;
    spec_model *m = NULL;
    const int32_t eos[] = { 3, N_VOCAB };
    open_pair(&p);
    const spec_model_ops good = support_engine_ops(&p.big_engine);
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        spec_model_ops o = good;                                                                   \
        change;                                                                                    \
        FAILS(spec_model_from_ops(&m, backend, &o), SPEC_E_INVALID, part);                         \
        assert_null(m);                                                                            \
    } while (0)
    REFUSED(o.begin = NULL, "needs the callback begin");
    REFUSED(o.prefill = NULL, "needs the callback prefill");
    REFUSED(o.score = NULL, "needs the callback score");
    REFUSED(o.commit = NULL, "needs the callback commit");
    REFUSED(o.end = NULL, "needs the callback end");
    REFUSED(o.save = NULL, "save and restore, or none");
    REFUSED(o.restore = NULL, "save and restore, or none");
    REFUSED(o.n_vocab = 0, "n_vocab is 0");
    REFUSED(o.n_ctx = -1, "n_ctx -1");
    REFUSED(o.bos = N_VOCAB, "bos 8");
    REFUSED(o.n_eos = 1, "a list of 1 eos tokens, which is NULL");
    REFUSED((o.eos = eos, o.n_eos = 2), "eos token 1 is 8");
    REFUSED(o.struct_size = 0, "spec_model_ops.struct_size is 0");
    REFUSED((o.tokenizer_path = "x", o.tokenizer = (const spec_tokenizer *)&o), "one of the two");
#undef REFUSED
    FAILS(spec_model_from_ops(NULL, backend, &good), SPEC_E_INVALID, "out is NULL");
    FAILS(spec_model_from_ops(&m, NULL, &good), SPEC_E_INVALID, "backend is NULL");
    FAILS(spec_model_from_ops(&m, backend, NULL), SPEC_E_INVALID, "ops is NULL");
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    const spec_tap tap = { SPEC_TAP_LAST, 0 };
    sp.taps = &tap, sp.n_tap = 1;
    FAILS(spec_session_open(&s, p.own_target, NULL, &sp), SPEC_E_UNSUPPORTED, "it tells no hidden states");
    spec_lab lab = SPEC_LAB_INIT;
    lab.advance = SPEC_ADVANCE_JOINT;
    sp.n_tap = 0, sp.lab = &lab;
    FAILS(spec_session_open(&s, p.own_target, NULL, &sp), SPEC_E_UNSUPPORTED, "joint attainment");
    close_pair(&p);
}

/* --- memory that fails --- */

/* Both models are engines of the device that runs out; what is behind them is on another. */
static spec_status short_run(spec_backend *be, own_engine *target, own_engine *small, int32_t *out, int32_t n)
{
    spec_model *m[2] = { NULL, NULL };
    spec_drafter *d = NULL;
    spec_session *s = NULL;
    spec_result r = SPEC_RESULT_INIT;
    spec_request gp = SPEC_REQUEST_INIT;
    spec_model_ops ops[] = { support_engine_ops(target), support_engine_ops(small) };
    const int32_t eos = 7;
    ops[0].eos = &eos, ops[0].n_eos = 1;
    gp.n_predict = n, gp.ignore_eos = 1;
    spec_status status = spec_model_from_ops(&m[0], be, &ops[0]);
    if (status == SPEC_OK) status = spec_model_from_ops(&m[1], be, &ops[1]);
    if (status == SPEC_OK) status = spec_drafter_from_model(&d, m[1], NULL);
    if (status == SPEC_OK) status = spec_session_open(&s, m[0], d, NULL);
    if (status == SPEC_OK) status = spec_generate_ids(s, &r, prompt_ids, 5, &gp);
    if (status == SPEC_OK) memcpy(out, r.ids, (size_t)n * sizeof *out);
    spec_result_free(&r);
    spec_session_close(s);
    spec_drafter_close(d);
    for (int i = 0; i < 2; i++) spec_model_close(m[i]);
    return status;
}

static void memory_fails(void **state)
{
    (void)state;
    enum { N = 16 };
    pair p;
    int32_t want[N], got[N], n = 0;
    spec_status status;
    support_memory f;
    const spec_allocator allocator = support_allocator(&f);
    open_pair(&p);
    support_plain_ids(p.target, prompt_ids, 5, NULL, N, want);
    do {
        spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
        bp.allocator = &allocator;
        f = (support_memory){ 0 };
        spec_backend *be = support_backend_again(&bp);
        assert_non_null(be);
        f.fail_at = f.n_call + ++n;
        status = short_run(be, &p.big_engine, &p.small_engine, got, N);
        if (status != SPEC_OK) assert_int_equal(status, SPEC_E_NOMEM);
        spec_backend_close(be);
        assert_int_equal(f.n_block, 0);
        assert_int_equal(p.big_engine.n_alive + p.small_engine.n_alive, 0);
    } while (status != SPEC_OK);
    assert_memory_equal(want, got, sizeof want);
    assert_true(n > 80);
    p.big_engine.n_close = p.small_engine.n_close = 0;
    close_pair(&p);
}

/* --- text --- */

#ifndef SPEC_NO_TOKENIZER
static void tokenizers_are_taken(void **state)
{
    (void)state;
    char dir[64], path[96];
    const variant_file file = { "tokenizer.json", support_tokenizer8 };
    spec_tokenizer *t = NULL;
    pair p;
    support_variant(dir, GOLDEN "law8-target", &file, 1);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    OK(spec_tokenizer_open(&t, path, NULL));
    open_pair(&p);
    spec_model *real = support_model(backend, dir, SPEC_DTYPE_F32);
    for (int k = 0; k < 2; k++) {
        spec_model_ops ops = support_engine_ops(&p.big_engine);
        spec_model *m = NULL, *models[2] = { real, NULL };
        spec_result r[2] = { SPEC_RESULT_INIT, SPEC_RESULT_INIT };
        if (k) ops.tokenizer = t;
        else ops.tokenizer_path = path;
        OK(spec_model_from_ops(&m, backend, &ops));
        models[1] = m;
        for (int i = 0; i < 2; i++) {
            spec_session *s = support_session(models[i], 1, 1);
            spec_request gp = SPEC_REQUEST_INIT;
            gp.n_predict = 20, gp.logprobs = 1, gp.n_top = 2;
            OK(spec_generate(s, &r[i], "badcafe", 7, &gp));
            spec_session_close(s);
        }
        assert_true(r[0].n_text > 0);
        support_same(&r[1], &r[0], "an engine with a tokenizer");
        for (int i = 0; i < 2; i++) spec_result_free(&r[i]);
        ops.n_vocab = 5;
        FAILS(spec_model_from_ops(&models[1], backend, &ops), SPEC_E_FORMAT, "has 5 rows");
        spec_model_close(m);
    }
    spec_tokenizer_close(t); /* the second model left it open */
    spec_model_close(real);
    p.big_engine.n_close = 0;
    close_pair(&p);
    support_variant_remove(dir);
}
#endif

/* A prompt behind decoded tokens: the engine is given it as one, or hears of it by its drafts. */
static void two_turns(int32_t *out, int32_t n_new, spec_model *target, spec_model *small)
{
    spec_drafter *d = NULL;
    spec_session *s = small ? open_session(target, small, &d, "chain:3") : support_session(target, 1, 1);
    const int32_t more[] = { 3, 1, 6, 2, 2, 5 };
    const int32_t *ids;
    size_t n;
    int32_t seq;
    OK(add_endless(s, &seq, prompt_ids, 5, NULL));
    for (int turn = 0; turn < 2; turn++) {
        spec_request r = SPEC_REQUEST_INIT;
        const spec_step_result *step;
        r.n_predict = n_new, r.ignore_eos = 1;
        OK(turn ? spec_sequence_append(s, seq, more, 6, &r) : spec_sequence_set_request(s, seq, &r));
        do OK(spec_step(s, &step, &seq, 1));
        while (step->stop == SPEC_STOP_NONE);
        OK(spec_sequence_ids(s, &ids, &n, seq));
        memcpy(out + turn * n_new, ids + n - (size_t)n_new, (size_t)n_new * sizeof *out);
    }
    spec_session_close(s);
    spec_drafter_close(d);
}

static void prompts_go_on(void **state)
{
    (void)state;
    enum { N = 14 };
    pair p;
    int32_t want[2 * N], got[2 * N];
    open_pair(&p);
    two_turns(want, N, p.target, NULL);
    two_turns(got, N, p.own_target, NULL);
    assert_memory_equal(got, want, sizeof got);
    two_turns(got, N, p.own_target, p.own_small);
    assert_memory_equal(got, want, sizeof got);
    two_turns(got, N, p.target, p.own_target);
    assert_memory_equal(got, want, sizeof got);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_go_on), cmocka_unit_test(greedy_text_is_the_models), cmocka_unit_test(sampled_text_is_the_models),
        cmocka_unit_test(other_drafters), cmocka_unit_test(sessions_share_an_engine),
        cmocka_unit_test(late_devices_are_waited_for), cmocka_unit_test(roots_stand_on_the_device),
        cmocka_unit_test(copies_go_on), cmocka_unit_test(scores_outlive_copies),
        cmocka_unit_test(what_is_missing_is_refused), cmocka_unit_test(saved_bytes_are_counted),
        cmocka_unit_test(callbacks_fail), cmocka_unit_test(logits_are_numbers), cmocka_unit_test(prompts_can_be_stopped),
        cmocka_unit_test(contexts_end), cmocka_unit_test(what_is_known_is_told), cmocka_unit_test(costs_are_measured),
        cmocka_unit_test(arguments), cmocka_unit_test(memory_fails),
#ifndef SPEC_NO_TOKENIZER
        cmocka_unit_test(tokenizers_are_taken),
#endif
    };
    backend = support_backend();
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return n_failed;
}
