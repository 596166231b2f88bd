/* test_device_error.c - a device that fails once, at any operation of a step. The sequences of a failed pass can only
 * be removed; other sequences of the session go on as if nothing had been, and a place that was given back is as good
 * as new. */
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/cpu/cpu.h"
#include "tests/support_decode.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* --- the CPU, with one operation that fails once --- */

/* Those of a pass are numbered as their kinds are. */
typedef enum operation { PROBS = SPEC_OP_N, ACCEPT, ACCEPT_TREE, ARGMAX, DRAW, EXPAND, SYNC, ADJUST, N_OPERATION } operation;

static const char *name_of(int32_t op)
{
    static const char *const names[] = { "probs", "accept", "accept_tree", "argmax", "draw", "expand", "sync", "adjust" };
    return op < PROBS ? speci_op_kinds[op].name : names[op - PROBS];
}

static struct {
    int32_t of;
    int32_t after; /* so many calls succeed before the one that fails; -1: none fails */
} fault = { N_OPERATION, -1 };

static spec_status strike(int32_t op)
{
    if (op != fault.of || fault.after < 0 || fault.after-- > 0) return SPEC_OK;
    return speci_fail(SPEC_E_DEVICE, "injected: the device failed in %s", name_of(op));
}

static spec_status run(spec_queue *q, const spec_op *op)
{
    SPEC_TRY(strike((int32_t)op->kind));
    return speci_cpu_ops.op[op->kind].run(q, op);
}

static spec_status probs(spec_queue *q, const spec_probs_args *a)
{
    SPEC_TRY(strike(PROBS));
    return speci_cpu_ops.probs(q, a);
}

static spec_status accept(spec_queue *q, const spec_accept_args *a)
{
    SPEC_TRY(strike(ACCEPT));
    return speci_cpu_ops.accept(q, a);
}

static spec_status accept_tree(spec_queue *q, const spec_accept_tree_args *a)
{
    SPEC_TRY(strike(ACCEPT_TREE));
    return speci_cpu_ops.accept_tree(q, a);
}

static spec_status argmax(spec_queue *q, const spec_argmax_args *a)
{
    SPEC_TRY(strike(ARGMAX));
    return speci_cpu_ops.argmax(q, a);
}

static spec_status draw(spec_queue *q, const spec_draw_args *a)
{
    SPEC_TRY(strike(DRAW));
    return speci_cpu_ops.draw(q, a);
}

static spec_status expand(spec_queue *q, const spec_expand_args *a)
{
    SPEC_TRY(strike(EXPAND));
    return speci_cpu_ops.expand(q, a);
}

static spec_status sync(spec_queue *q)
{
    SPEC_TRY(strike(SYNC));
    return speci_cpu_ops.sync(q);
}

static spec_status adjust(spec_queue *q, const spec_adjust_args *a)
{
    SPEC_TRY(strike(ADJUST));
    return speci_cpu_ops.adjust(q, a);
}

static spec_backend *backend;

static void open_backend(void)
{
    static spec_backend_ops ops;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    ops = speci_cpu_ops;
    for (int32_t k = 0; k < SPEC_OP_N; k++) ops.op[k].run = run;
    ops.probs = probs, ops.accept = accept, ops.accept_tree = accept_tree, ops.argmax = argmax, ops.draw = draw;
    ops.expand = expand, ops.sync = sync, ops.adjust = adjust;
    p.n_threads = 1;
    OK(spec_backend_open_ops(&backend, &ops, NULL, &p));
}

/* --- sequences --- */

enum { N_SEQ = 3, N_FAILING = 2, N_PROMPT = 5, N_NEW = 24, N_BEFORE = 2 };

static const spec_sampling samplings[N_SEQ] = { { 0 },
                                                { .temperature = 0.8f, .seed = 4 },
                                                { .temperature = 1, .seed = 6 } };

typedef struct bench {
    spec_model *m;
    spec_drafter *dr;
    spec_session *s;
    int32_t seqs[N_SEQ];
    int32_t text[N_SEQ][N_NEW]; /* of plain decoding */
    bool broken_target; /* the pass that failed was the target's: there is no other */
    bool by_rounds;     /* the trees of a step are fed in rounds, and not every sequence is in each of these passes */
    const char *what;
} bench;

static void make_prompt(int32_t *ids, int32_t k)
{
    for (int32_t i = 0; i < N_PROMPT; i++) ids[i] = 3 + 7 * k + 5 * i;
}

static int32_t add(bench *b, int32_t k)
{
    int32_t ids[N_PROMPT], seq;
    make_prompt(ids, k);
    OK(add_sampled(b->s, &seq, ids, N_PROMPT, &samplings[k]));
    return seq;
}

/* What sequence `seq` has so far is what plain decoding gives; stops at an end of text. Returns how many tokens are
 * new. */
static int32_t expect_text(const bench *b, int32_t seq, int32_t k)
{
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(b->s, &ids, &n, seq));
    for (size_t i = N_PROMPT; i < n && i - N_PROMPT < N_NEW; i++)
        if (ids[i] != b->text[k][i - N_PROMPT])
            fail_msg("%s: token %d of sequence %d is %d, plain decoding gives %d", b->what, (int)i - N_PROMPT, k,
                     ids[i], b->text[k][i - N_PROMPT]);
    return (int32_t)n - N_PROMPT;
}

static void go_on(const bench *b, int32_t seq, int32_t k)
{
    spec_step_result r = { .stop = SPEC_STOP_NONE };
    while (r.stop == SPEC_STOP_NONE && expect_text(b, seq, k) < N_NEW) OK(step_into(b->s, &r, &seq, 1));
    (void)expect_text(b, seq, k);
}

static int discard(void *user, const void *data, size_t n)
{
    (void)user, (void)data, (void)n;
    return 0;
}

/* A pass failed: nothing can be asked of the sequence but its ids, and that it goes. */
static void expect_broken(const bench *b, int32_t seq, int32_t k, size_t n_before)
{
    static const char says[] = "an earlier pass failed";
    spec_step_result r;
    const int32_t *ids;
    int32_t copy, parent = -1;
    size_t n;
    (void)expect_text(b, seq, k);
    OK(spec_sequence_ids(b->s, &ids, &n, seq));
    assert_int_equal(n, n_before);
    int32_t token = ids[n - 1];
    const spec_tree root = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *tree = &root;
    for (int32_t again = 0; again < 2; again++) {
        FAILS(step_into(b->s, &r, &seq, 1), SPEC_E_STATE, says);
        if (b->broken_target) FAILS(spec_score(b->s, &seq, 1, &tree), SPEC_E_STATE, says);
        FAILS(spec_sequence_fork(b->s, &copy, seq), SPEC_E_STATE, says);
        FAILS(spec_sequence_save(b->s, seq, discard, NULL), SPEC_E_STATE, says);
    }
}

/* --- a step that fails --- */

/* The step of the first sequences fails at call `after` of the operation. False: it has fewer calls. */
static bool fail_step(bench *b, int32_t op, int32_t after)
{
    spec_step_result r[N_SEQ];
    size_t n_before[N_SEQ];
    const int32_t *ids;
    for (int32_t k = 0; k < N_SEQ; k++) b->seqs[k] = add(b, k);
    for (int32_t i = 0; i < N_BEFORE; i++) OK(step_into(b->s, r, b->seqs, N_SEQ));
    for (int32_t k = 0; k < N_SEQ; k++) OK(spec_sequence_ids(b->s, &ids, &n_before[k], b->seqs[k]));
    fault.of = op, fault.after = after;
    const spec_status status = step_into(b->s, r, b->seqs, N_FAILING);
    const bool struck = fault.after < 0;
    fault.after = -1;
    if (struck && status != SPEC_E_DEVICE)
        fail_msg("%s: the step gives %s", b->what, spec_status_name(status));
    int32_t n_broken = 0;
    for (int32_t k = 0; struck && k < N_FAILING; k++) {
        const bool goes_on = (op >= PROBS || b->by_rounds) && step_into(b->s, r, &b->seqs[k], 1) == SPEC_OK;
        if (goes_on) (void)expect_text(b, b->seqs[k], k); /* right, if at all */
        else if (op < PROBS) expect_broken(b, b->seqs[k], k, n_before[k]), n_broken++;
    }
    assert_true(!struck || op >= PROBS || n_broken > 0);
    for (int32_t k = 0; k < N_FAILING; k++) OK(spec_sequence_remove(b->s, b->seqs[k]));
    go_on(b, b->seqs[N_SEQ - 1], N_SEQ - 1);
    if (struck) {
        const int32_t fresh = add(b, 0);
        go_on(b, fresh, 0);
        OK(spec_sequence_remove(b->s, fresh));
    }
    OK(spec_sequence_remove(b->s, b->seqs[N_SEQ - 1]));
    return struck;
}

typedef bool fail_fn(bench *b, int32_t op, int32_t after);

static void fail_everywhere(const char *model, const char *tree, fail_fn *step)
{
    char what[256];
    bench b = { .what = what, .m = support_model(backend, model, SPEC_DTYPE_F32) };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    int32_t n_struck = 0, ids[N_PROMPT];
    for (int32_t k = 0; k < N_SEQ; k++) {
        make_prompt(ids, k);
        support_plain_ids(b.m, ids, N_PROMPT, &samplings[k], N_NEW, b.text[k]);
    }
    dp.tree = tree;
    sp.n_seq = N_SEQ + 1, sp.n_ctx = 64, sp.verify = SPEC_VERIFY_NAIVE;
    b.broken_target = !tree, b.by_rounds = tree && strncmp(tree, "dyspec", 6) == 0;
    if (tree) OK(spec_drafter_from_model(&b.dr, b.m, &dp));
    OK(spec_session_open(&b.s, b.m, b.dr, &sp));
    for (int32_t op = 0; op < N_OPERATION; op++)
        for (int32_t after = 0;; after += 1 + after / 4) {
            snprintf(what, sizeof what, "%s, %s: %s fails after %d", model, tree ? tree : "plain", name_of(op), after);
            if (!step(&b, op, after)) break;
            n_struck++;
        }
    assert_true(n_struck > 20);
    spec_session_close(b.s);
    spec_drafter_close(b.dr);
    spec_model_close(b.m);
}

static void plain_steps(void **state)
{
    (void)state;
    fail_everywhere(GOLDEN "llama3", NULL, fail_step);
    fail_everywhere(GOLDEN "mamba", NULL, fail_step);
    fail_everywhere(GOLDEN "bamba", NULL, fail_step);
}

static void steps_with_trees(void **state)
{
    (void)state;
    fail_everywhere(GOLDEN "llama3", "chain:3", fail_step);
    fail_everywhere(GOLDEN "mamba2", "product:2,2", fail_step);
    fail_everywhere(GOLDEN "bamba", "dyspec:5", fail_step);
}

/* --- prefill, and the calls one by one --- */

/* A sequence whose prompt fails is not there, and nothing of it is left. */
static void prompts(void **state)
{
    (void)state;
    bench b = { .what = "after a prompt that failed", .m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32) };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    int32_t ids[N_PROMPT], seq;
    make_prompt(ids, 0);
    support_plain_ids(b.m, ids, N_PROMPT, &samplings[0], N_NEW, b.text[0]);
    sp.n_ctx = 64;
    OK(spec_session_open(&b.s, b.m, NULL, &sp));
    for (int32_t op = 0; op < PROBS; op++) {
        if (op == SPEC_OP_KV_COMMIT || op == SPEC_OP_KEEP || op >= SPEC_OP_RECYCLE)
            continue; /* nothing is pending, nobody asked for rows, no head */
        fault.of = op, fault.after = 0;
        FAILS(spec_sequence_add(b.s, &seq, ids, N_PROMPT, NULL), SPEC_E_DEVICE, name_of(op));
        fault.after = -1;
        seq = add(&b, 0);
        go_on(&b, seq, 0);
        OK(spec_sequence_remove(b.s, seq));
    }
    spec_session_close(b.s);
    spec_model_close(b.m);
}

/* Verification that fails has changed nothing: it may be repeated. */
static void verification(void **state)
{
    (void)state;
    static const operation ops[] = { PROBS, ACCEPT, SYNC };
    bench b = { .what = "after a verification that failed",
                .m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32) };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    int32_t ids[N_PROMPT];
    make_prompt(ids, 1);
    support_plain_ids(b.m, ids, N_PROMPT, &samplings[1], N_NEW, b.text[1]);
    sp.n_ctx = 64;
    OK(spec_session_open(&b.s, b.m, NULL, &sp));
    const int32_t seq = add(&b, 1);
    for (size_t i = 0; i < 3 * (sizeof ops / sizeof *ops); i++) {
        const spec_tree *tree;
        int32_t path[2], n_path, token;
        OK(spec_draft(b.s, &tree, &seq, 1));
        OK(spec_score(b.s, &seq, 1, &tree));
        fault.of = (int32_t)ops[i % 3], fault.after = 0;
        FAILS(spec_verify(b.s, path, &n_path, &token, seq, SPEC_VERIFY_NAIVE), SPEC_E_DEVICE, name_of((int32_t)ops[i % 3]));
        fault.after = -1;
        OK(spec_verify(b.s, path, &n_path, &token, seq, SPEC_VERIFY_NAIVE));
        OK(spec_commit(b.s, seq, path, n_path, token));
        (void)expect_text(&b, seq, 1);
    }
    OK(spec_sequence_remove(b.s, seq));
    spec_session_close(b.s);
    spec_model_close(b.m);
}

/* The same of drafted trees, by the rule that they are verified by. */
static void verification_of_trees(void **state)
{
    (void)state;
    static const operation ops[] = { PROBS, ACCEPT_TREE, SYNC };
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    bench b = { .what = "after a verification of a tree that failed", .m = m };
    dp.tree = "product:2,2", dp.temperature = 2;
    sp.n_ctx = 64;
    OK(spec_drafter_from_model(&b.dr, m, &dp));
    OK(spec_session_open(&b.s, m, b.dr, &sp));
    const int32_t seq = add(&b, 1);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const spec_tree *tree;
        int32_t path[2][8], n_path[2], token[2];
        OK(spec_draft(b.s, &tree, &seq, 1));
        OK(spec_score(b.s, &seq, 1, &tree));
        OK(spec_verify(b.s, path[0], &n_path[0], &token[0], seq, SPEC_VERIFY_AUTO));
        fault.of = (int32_t)ops[i], fault.after = 0;
        FAILS(spec_verify(b.s, path[1], &n_path[1], &token[1], seq, SPEC_VERIFY_AUTO), SPEC_E_DEVICE, name_of((int32_t)ops[i]));
        fault.after = -1;
        OK(spec_verify(b.s, path[1], &n_path[1], &token[1], seq, SPEC_VERIFY_AUTO));
        assert_int_equal(n_path[0], n_path[1]);
        assert_int_equal(token[0], token[1]);
        assert_memory_equal(path[0], path[1], (size_t)n_path[0] * sizeof *path[0]);
        OK(spec_commit(b.s, seq, path[1], n_path[1], token[1]));
    }
    OK(spec_sequence_remove(b.s, seq));
    spec_session_close(b.s);
    spec_drafter_close(b.dr);
    spec_model_close(m);
}

/* The step of one sequence fails where another is scored already: that one goes on, and is verified by its own rows or by none. */
static bool fail_beside(bench *b, int32_t op, int32_t after)
{
    const spec_tree *trees[2];
    spec_step_result r[N_SEQ];
    int32_t path[SPEC_MAX_DEPTH + 1], n_path, token;
    for (int32_t k = 0; k < 2; k++) b->seqs[k] = add(b, k);
    OK(step_into(b->s, r, b->seqs, 2));
    const int32_t both[2] = { b->seqs[1], b->seqs[0] }; /* the first rows are those that the step writes over */
    OK(spec_draft(b->s, trees, both, 2));
    OK(spec_score(b->s, both, 2, trees));
    fault.of = op, fault.after = after;
    const spec_status status = step_into(b->s, r, &b->seqs[0], 1);
    const bool struck = fault.after < 0;
    fault.after = -1;
    if (struck && status != SPEC_E_DEVICE) fail_msg("%s: the step gives %s", b->what, spec_status_name(status));
    const spec_status verified = spec_verify(b->s, path, &n_path, &token, b->seqs[1], SPEC_VERIFY_AUTO);
    if (verified == SPEC_OK) OK(spec_commit(b->s, b->seqs[1], path, n_path, token));
    else if (verified != SPEC_E_STATE) fail_msg("%s: %s", b->what, spec_last_error());
    go_on(b, b->seqs[1], 1);
    for (int32_t k = 0; k < 2; k++) OK(spec_sequence_remove(b->s, b->seqs[k]));
    return struck;
}

static void beside_scored(void **state)
{
    (void)state;
    fail_everywhere(GOLDEN "mamba2", NULL, fail_beside);
    fail_everywhere(GOLDEN "llama3", "product:2,2", fail_beside);
    fail_everywhere(GOLDEN "bamba", "dyspec:5", fail_beside);
}

/* Logits that could not be adjusted were not scored, and the sequence can only be removed: nothing is verified by those of the model. */
static void adjusted_scores(void **state)
{
    (void)state;
    static const operation ops[] = { ADJUST, ARGMAX };
    static const spec_logit_bias bias = { 3, 0.5f };
    spec_request r = SPEC_REQUEST_INIT;
    bench b = { .what = "after logits that were not adjusted", .m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32) };
    int32_t ids[N_PROMPT];
    make_prompt(ids, 1);
    r.bias = &bias, r.n_bias = 1;
    OK(spec_session_open(&b.s, b.m, NULL, NULL));
    for (size_t i = 0; i < 2 * (sizeof ops / sizeof *ops); i++) {
        int32_t seq, token = ids[N_PROMPT - 1], parent = -1, path[2], n_path;
        const spec_tree root = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *tree = &root;
        spec_step_result step;
        OK(spec_sequence_add(b.s, &seq, ids, N_PROMPT, &r));
        fault.of = (int32_t)ops[i / 2], fault.after = 0;
        if (i % 2) FAILS(step_into(b.s, &step, &seq, 1), SPEC_E_DEVICE, name_of((int32_t)ops[i / 2]));
        else FAILS(spec_score(b.s, &seq, 1, &tree), SPEC_E_DEVICE, name_of((int32_t)ops[i / 2]));
        fault.after = -1;
        FAILS(spec_verify(b.s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO), SPEC_E_STATE, "nothing was scored");
        FAILS(spec_score(b.s, &seq, 1, &tree), SPEC_E_STATE, "an earlier pass failed");
        FAILS(step_into(b.s, &step, &seq, 1), SPEC_E_STATE, "an earlier pass failed");
        OK(spec_sequence_remove(b.s, seq));
    }
    spec_session_close(b.s);
    spec_model_close(b.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_steps),
        cmocka_unit_test(steps_with_trees),
        cmocka_unit_test(prompts),
        cmocka_unit_test(verification),
        cmocka_unit_test(verification_of_trees),
        cmocka_unit_test(adjusted_scores),
        cmocka_unit_test(beside_scored),
    };
    open_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
