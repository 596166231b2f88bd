/* test_ahead.c - steps whose work is queued before the host has read what it is about, the next token of plain decoding or a
 * drafted tree: the same tokens as by the four calls, which never do so, whatever is done between steps; and what happens
 * when a text ends or a device fails then.
 *
 * A device that computes in its calls never goes ahead, so the CPU is made late: what arg-max, accept and expand find is
 * handed out by wait and sync alone, and stands as nonsense until then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "tests/support_decode.h"
#include "algorithms/engine/engine.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* --- a device that is late --- */

enum { NONSENSE = -77, MOST_LATE = 4096 };

static struct {
    struct {
        int32_t *to, value;
    } result[MOST_LATE];
    uint64_t n, n_out, end[MOST_LATE], n_mark; /* results asked for, handed out; of each mark */
    bool forgets;     /* next steps are not told the token */
    bool fails;       /* the next wait does */
    bool not_numbers; /* the next arg-max finds none */
} late;

static void hand_out(uint64_t end)
{
    for (; late.n_out < end; late.n_out++) {
        const uint64_t i = late.n_out % MOST_LATE;
        *late.result[i].to = late.result[i].value;
    }
}

static void delay(int32_t *to, int32_t n)
{
    for (int32_t i = 0; i < n; i++, late.n++) {
        assert_true(late.n - late.n_out < MOST_LATE);
        late.result[late.n % MOST_LATE].to = to + i, late.result[late.n % MOST_LATE].value = to[i];
        to[i] = NONSENSE;
    }
}

static spec_status late_argmax(spec_queue *q, const spec_argmax_args *args)
{
    spec_argmax_args a = *args;
    if (late.forgets) a.next = NULL;
    const spec_status status = speci_cpu_ops.argmax(q, &a);
    if (late.not_numbers) a.host_out_token[0] = -1;
    late.not_numbers = false;
    delay(a.host_out_token, a.n_row);
    return status;
}

static spec_status late_accept(spec_queue *q, const spec_accept_args *args)
{
    spec_accept_args a = *args;
    if (late.forgets) a.next = NULL;
    const spec_status status = speci_cpu_ops.accept(q, &a);
    delay(a.host_out_choice, a.n_row);
    delay(a.host_out_token, a.n_row);
    return status;
}

static spec_status late_accept_tree(spec_queue *q, const spec_accept_tree_args *a)
{
    const spec_status status = speci_cpu_ops.accept_tree(q, a);
    delay(a->host_out_token, a->n_row);
    return status;
}

static spec_status late_expand(spec_queue *q, const spec_expand_args *a)
{
    const spec_status status = speci_cpu_ops.expand(q, a);
    for (int32_t i = 0; a->host_out_n && i < a->n; i++) delay(a->host_out_n + a->host_slot[i], 1);
    return status;
}

static spec_status late_sync(spec_queue *q)
{
    hand_out(late.n);
    return speci_cpu_ops.sync(q);
}

static spec_status late_mark(spec_queue *q, uint64_t *mark)
{
    (void)q;
    late.end[late.n_mark % MOST_LATE] = late.n;
    *mark = late.n_mark++;
    return SPEC_OK;
}

static spec_status late_wait(spec_queue *q, uint64_t mark)
{
    (void)q;
    assert_true(mark < late.n_mark);
    if (late.fails) {
        late.fails = false;
        return speci_fail(SPEC_E_DEVICE, "injected: the device is lost");
    }
    hand_out(late.end[mark % MOST_LATE]);
    return SPEC_OK;
}

static spec_backend *backend;
static bool is_late; /* the CPU made late; else a device that goes ahead by itself */

static void open_backend(void)
{
    static spec_backend_ops ops;
    backend = support_backend();
    if (backend->ops->mark) return;
    spec_backend_close(backend);
    is_late = true;
    ops = speci_cpu_ops;
    ops.argmax = late_argmax, ops.accept = late_accept, ops.accept_tree = late_accept_tree, ops.expand = late_expand, ops.sync = late_sync;
    ops.mark = late_mark, ops.wait = late_wait;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 2;
    OK(spec_backend_open_ops(&backend, &ops, NULL, &p));
}

/* --- what is compared --- */

enum { N_PROMPT = 3, N_NEW = 24 };
static const int32_t prompt[N_PROMPT] = { 3, 1, 4 };
static const spec_sampling samplings[] = { { 0 }, { .temperature = 0.9f, .top_p = 0.95f, .seed = 5 } };
static const char *const models[] = { GOLDEN "mamba", GOLDEN "mamba2", GOLDEN "mistral", GOLDEN "bamba" };

static spec_session *open_session(spec_model *m, int32_t n_seq, int32_t n_ctx)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    p.n_seq = n_seq, p.n_ctx = n_ctx, p.n_node = 4;
    OK(spec_session_open(&s, m, NULL, &p));
    return s;
}

static int32_t pending(spec_session *s, int32_t seq)
{
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seq));
    return ids[n - 1];
}

/* A step of the four calls over the pending token and `wrong` drafts below it. */
static int32_t call_step(spec_session *s, int32_t seq, int32_t wrong)
{
    int32_t token[4] = { pending(s, seq), 0, 1, 2 }, parent[4] = { -1, 0, 0, 0 }, path[4], n_path, next;
    const spec_tree tree = { .n = 1 + wrong, .cap = 4, .token = token, .parent = parent };
    const spec_tree *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_verify(s, path, &n_path, &next, seq, SPEC_VERIFY_NAIVE));
    OK(spec_commit(s, seq, path, 1, n_path > 1 ? token[path[1]] : next));
    return pending(s, seq);
}

static int32_t one_step(spec_session *s, int32_t seq)
{
    spec_step_result r = { 0 };
    OK(step_into(s, &r, &seq, 1));
    assert_int_equal(r.n_tokens, 1);
    assert_int_equal(r.tokens[0], pending(s, seq));
    assert_int_equal(r.n_drafted + r.n_accepted + r.branched, 0);
    assert_int_equal(r.tree, -1);
    return r.tokens[0];
}

static void truth(int32_t out[N_NEW], spec_model *m, const spec_sampling *sampling)
{
    spec_session *s = open_session(m, 1, 64);
    int32_t seq;
    OK(add_sampled(s, &seq, prompt, N_PROMPT, sampling));
    for (int32_t i = 0; i < N_NEW; i++) out[i] = call_step(s, seq, 0);
    spec_session_close(s);
}

static void expect(int32_t got, int32_t wanted, const char *what, int32_t i)
{
    if (got != wanted) fail_msg("%s: token %d is %d, by the four calls %d", what, i, got, wanted);
}

/* --- tests --- */

static int32_t generate_differs(spec_model *m, const spec_sampling *sampling, const int32_t *wanted)
{
    spec_session *s = open_session(m, 1, 64);
    spec_request p = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    p.n_predict = N_NEW, p.ignore_eos = 1, p.sampling = *sampling;
    const uint64_t before = late.n_mark;
    OK(spec_generate_ids(s, &r, prompt, N_PROMPT, &p));
    assert_int_equal(r.n_ids, N_NEW);
    assert_int_equal(r.stop, SPEC_STOP_LENGTH);
    if (is_late) assert_int_equal(late.n_mark - before, N_NEW); /* every step, and none behind the last */
    int32_t n = 0;
    for (int32_t i = 0; i < N_NEW; i++) n += r.ids[i] != wanted[i];
    spec_result_free(&r);
    spec_session_close(s);
    return n;
}

/* That tokens reach the next step is seen: where they do not, texts are others. */
static void texts(void **state)
{
    (void)state;
    int32_t wanted[N_NEW];
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        spec_model *m = support_model(backend, models[k], SPEC_DTYPE_F32);
        for (size_t i = 0; i < 2; i++) {
            truth(wanted, m, &samplings[i]);
            if (generate_differs(m, &samplings[i], wanted) > 0) fail_msg("%s: tokens differ", models[k]);
            late.forgets = true;
            if (is_late && generate_differs(m, &samplings[i], wanted) == 0)
                fail_msg("%s: a step over another token went unnoticed", models[k]);
            late.forgets = false;
        }
        spec_model_close(m);
    }
}

static int keep(void *user, const void *data, size_t n)
{
    speci_buf *b = user;
    return speci_buf_add(b, data, n) != SPEC_OK;
}

typedef struct reading {
    const char *data;
    size_t n;
} reading;

static int give(void *user, void *data, size_t n)
{
    reading *r = user;
    if (n > r->n) return 1;
    memcpy(data, r->data, n);
    r->data += n, r->n -= n;
    return 0;
}

/* One of the two goes on. */
static int32_t one_of(spec_session *s, int32_t seq, int32_t copy, bool original)
{
    OK(spec_sequence_remove(s, original ? copy : seq));
    return original ? seq : copy;
}

static int32_t restored(spec_session *s, int32_t seq)
{
    int32_t to;
    speci_buf b = { 0 };
    OK(spec_sequence_save(s, seq, keep, &b));
    reading r = { b.data, b.n };
    OK(spec_sequence_restore(s, &to, give, &r));
    speci_buf_free(&b);
    return to;
}

static int32_t forked(spec_session *s, int32_t seq)
{
    int32_t to;
    OK(spec_sequence_fork(s, &to, seq));
    return to;
}

/* Between two steps, each time with a pass that went ahead. */
static int32_t interrupt(spec_session *s, int32_t a, int32_t b, int32_t n)
{
    const bool original = n % 4 > 1;
    switch (n % 10) {
    case 1: OK(spec_rollback(s, a)); break;
    case 3: return one_of(s, a, restored(s, a), original);
    case 5: return one_of(s, a, forked(s, a), original);
    case 7: OK(spec_sequence_seed(s, a, (uint64_t)n)), OK(spec_sequence_seed(s, b, (uint64_t)n)); break;
    default: break;
    }
    return a;
}

static void interruptions(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        for (size_t i = 0; i < 2; i++) {
            spec_model *m = support_model(backend, models[k], SPEC_DTYPE_F32);
            spec_session *s = open_session(m, 3, 256);
            int32_t a, b;
            OK(add_sampled(s, &a, prompt, N_PROMPT, &samplings[i]));
            OK(add_sampled(s, &b, prompt, N_PROMPT, &samplings[i]));
            for (int32_t n = 0; n < 60; n++) {
                a = interrupt(s, a, b, n);
                const bool calls = n % 5 == 4 || n % 15 == 5; /* in place of what went ahead; now and then two of them in a row */
                const int32_t got = calls ? call_step(s, a, 2) : one_step(s, a);
                expect(got, call_step(s, b, 0), models[k], n);
            }
            spec_session_close(s);
            spec_model_close(m);
        }
}

/* By turns, all in one call, and new sequences in the places of others. */
static void sequences(void **state)
{
    (void)state;
    int32_t wanted[2][N_NEW], seqs[2];
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    for (size_t i = 0; i < 2; i++) truth(wanted[i], m, &samplings[i]);
    spec_session *s = open_session(m, 2, 64);
    for (int32_t round = 0; round < 3; round++) {
        for (int32_t i = 0; i < 2; i++) OK(add_sampled(s, &seqs[i], prompt, N_PROMPT, &samplings[i]));
        for (int32_t n = 0; n < N_NEW - round; n++) {
            spec_step_result r[2];
            if (n % 4 == 3) OK(step_into(s, r, seqs, 2));
            for (int32_t i = 0; i < 2; i++)
                expect(n % 4 == 3 ? r[i].tokens[0] : one_step(s, seqs[i]), wanted[i][n], "by turns", n);
        }
        for (int32_t i = 0; i < 2; i++) OK(spec_sequence_remove(s, seqs[i]));
    }
    spec_session_close(s);
    spec_model_close(m);
}

/* A prompt is consumed in parts beside a sequence whose next pass has gone ahead: that pass is its step, no other one is queued, and
 * no part either, for which the step behind would wait beside its own. */
static void prompts_beside(void **state)
{
    (void)state;
    enum { N_LONG = 200, N_BEFORE = 4 };
    int32_t wanted[2][N_NEW], ids[N_LONG], seqs[2], n = 0;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    spec_step_result r[2];
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    sp.n_seq = 2, sp.n_ctx = 512, sp.n_prompt_step = 1;
    for (int32_t i = 0; i < N_LONG; i++) ids[i] = 3 + i % 50;
    for (size_t i = 0; i < 2; i++) {
        truth(wanted[i], m, &samplings[i]);
        OK(spec_session_open(&s, m, NULL, &sp));
        OK(add_sampled(s, &seqs[0], prompt, N_PROMPT, &samplings[i]));
        for (n = 0; n < N_BEFORE; n++) expect(one_step(s, seqs[0]), wanted[i][n], "alone", n);
        const uint64_t begun = late.n;
        expect(one_step(s, seqs[0]), wanted[i][n], "alone", n), n++;
        const uint64_t asked = late.n, of_pass = asked - begun;
        uint64_t n_beside = 0;
        OK(spec_sequence_add(s, &seqs[1], ids, N_LONG, NULL));
        for (;; n++, n_beside++) {
            OK(step_into(s, r, seqs, 2));
            expect(r[0].tokens[0], wanted[i][n], "beside a prompt", n);
            if (is_late && n_beside == 0) assert_int_equal(r[1].n_prompt_left, N_LONG - 1);
            if (n_beside > 0) assert_true(r[1].n_prompt_left < N_LONG - 1);
            if (r[1].n_prompt_left == 0) break;
        }
        assert_true(n_beside > 0);
        if (is_late) assert_int_equal(late.n - asked, n_beside * of_pass); /* passes: one fewer than steps */
        spec_session_close(s);
    }
    spec_model_close(m);
}

/* Where not drafting is one of the choices: its steps go ahead. Those of trees do not, but sampled ones have a mark too,
 * behind the draft. */
static void choices(void **state)
{
    (void)state;
    enum { N_LONG = 150 };
    static const spec_adapt adapts[] = { SPEC_ADAPT_UCB, SPEC_ADAPT_COST };
    spec_model *m = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_model *small = support_model(backend, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    for (size_t i = 0; i < 4; i++) {
        const spec_sampling *sampling = &samplings[i % 2];
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *dr;
        spec_session *s, *plain = open_session(m, 1, 256);
        spec_step_result r = { .stop = SPEC_STOP_NONE };
        int32_t seq, other, n_plain = 0, n_tree = 0;
        dp.tree = "chain:2;product:2,2";
        sp.n_ctx = 256, sp.adapt = adapts[i / 2], sp.verify = i % 2 ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO;
        OK(spec_drafter_from_model(&dr, small, &dp));
        OK(spec_session_open(&s, m, dr, &sp));
        s->profile.target = (spec_cost_table){ .n = 2, .n_node = { 1, 64 }, .ms = { 1, 1 } }; /* trees that may pay, however small */
        s->draft_costs[0].n = 0;                                                              /* the model is */
        OK(add_sampled(s, &seq, prompt, N_PROMPT, sampling));
        OK(add_sampled(plain, &other, prompt, N_PROMPT, sampling));
        const uint64_t before = late.n_mark;
        for (int32_t n = 0; n < N_LONG; n_plain += r.tree < 0, n_tree += r.tree >= 0) {
            OK(step_into(s, &r, &seq, 1));
            for (int32_t k = 0; k < r.n_tokens; k++) expect(r.tokens[k], call_step(plain, other, 0), "a choice", n++);
        }
        assert_true(n_plain > 0 && n_tree > 0);
        const int32_t n_marked = n_plain + (sampling->temperature > 0 ? n_tree : 0);
        if (is_late) assert_in_range(late.n_mark - before, n_marked, n_marked + 1);
        spec_session_close(plain);
        spec_session_close(s);
        spec_drafter_close(dr);
    }
    spec_model_close(small);
    spec_model_close(m);
}

/* Sequences that draft, beside plain ones. */
typedef struct pair {
    spec_session *s, *plain;
    int32_t seqs[2], other[2];
    int32_t n[2]; /* tokens so far */
    int32_t fewest; /* drafts of a step */
} pair;

/* One step of n of them. */
static void pair_step(pair *p, int32_t n, const char *what)
{
    spec_step_result r[2];
    OK(step_into(p->s, r, p->seqs, n));
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < r[i].n_tokens; k++)
            expect(r[i].tokens[k], call_step(p->plain, p->other[i], 0), what, p->n[i]++);
        if (r[i].n_drafted < p->fewest) p->fewest = r[i].n_drafted;
    }
}

static int stops_second(void *user)
{
    int32_t *n = user;
    return *n > 0 && --*n == 0;
}

/* Trees of a known shape are scored before they are read; where a distribution has fewer candidates than the shape has places, once
 * more. Stopped or failed between draft and verdict, nothing of it stays. */
static void unseen_trees(void **state)
{
    (void)state;
    static const struct {
        const char *tree;
        spec_sampling sampling[2];
        int32_t n_full;
        bool fewer; /* drafts than n_full, in some step */
    } cases[] = {
        { "chain:3", { { .temperature = 0 }, { .temperature = 0 } }, 3, false },
        { "product:3,2", { { .temperature = 0 }, { .temperature = 0.9f, .seed = 3 } }, 9, false },
        { "sequoia:8", { { .temperature = 0.9f, .seed = 4 }, { .temperature = 0.7f, .seed = 5 } }, 8, false },
        { "product:3,2", { { .temperature = 1.2f, .top_p = 0.7f, .seed = 6 }, { .temperature = 0 } }, 9, true },
        { "product:2,2,2", { { .temperature = 2, .top_p = 0.5f, .seed = 7 }, { .temperature = 0.9f, .top_k = 1 } }, 14, true },
    };
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32); /* drafts for itself: deep paths are taken */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        pair p = { .fewest = 1000 };
        int32_t calls = 0;
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *dr;
        dp.tree = cases[c].tree;
        sp.n_seq = 2, sp.n_ctx = 256, sp.verify = SPEC_VERIFY_NAIVE, sp.abort = stops_second, sp.abort_user_data = &calls;
        OK(spec_drafter_from_model(&dr, m, &dp));
        OK(spec_session_open(&p.s, m, dr, &sp));
        p.plain = open_session(m, 2, 256);
        for (int32_t i = 0; i < 2; i++) {
            OK(add_sampled(p.s, &p.seqs[i], prompt, N_PROMPT, &cases[c].sampling[i]));
            OK(add_sampled(p.plain, &p.other[i], prompt, N_PROMPT, &cases[c].sampling[i]));
        }
        for (int32_t step = 0; step < 40; step++) {
            spec_step_result r[2];
            if (step % 7 == 3) {
                calls = 2;
                FAILS(step_into(p.s, r, p.seqs, 2), SPEC_E_ABORTED, "stopped after drafting");
            }
            pair_step(&p, 1 + step % 2, cases[c].tree);
        }
        if (cases[c].fewer) assert_in_range(p.fewest, 0, cases[c].n_full - 1);
        else assert_int_equal(p.fewest, cases[c].n_full);
        if (is_late && cases[c].sampling[0].temperature > 0) { /* greedy steps have nothing to wait for but the end */
            spec_step_result r = { 0 };
            int32_t path[16], n_path, token;
            late.fails = true;
            FAILS(step_into(p.s, &r, p.seqs, 1), SPEC_E_DEVICE, "the device is lost");
            FAILS(spec_verify(p.s, path, &n_path, &token, p.seqs[0], SPEC_VERIFY_AUTO), SPEC_E_STATE, "nothing was scored");
        }
        spec_session_close(p.plain);
        spec_session_close(p.s);
        spec_drafter_close(dr);
    }
    spec_model_close(m);
}

static int refuse(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)n_text, (void)ids;
    return (*(size_t *)user += n_ids) >= 5;
}

/* Ends that are seen late: the callback's, the context's, somebody's who asks to stop. */
static void ends(void **state)
{
    (void)state;
    int32_t wanted[N_NEW], seq;
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    truth(wanted, m, &samplings[0]);
    spec_session *s = open_session(m, 1, N_PROMPT + 9);
    spec_request p = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    size_t seen = 0;
    p.ignore_eos = 1, p.on_text = refuse, p.text_user_data = &seen;
    assert_int_equal(spec_generate_ids(s, &r, prompt, N_PROMPT, &p), SPEC_E_ABORTED);
    assert_int_equal(r.n_ids, 5);
    assert_memory_equal(r.ids, wanted, 5 * sizeof *wanted);
    spec_result_free(&r);
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL));
    for (int32_t n = 0; n < 9; n++) {
        spec_step_result step = { 0 };
        spec_session_cancel(s);
        FAILS(step_into(s, &step, &seq, 1), SPEC_E_ABORTED, "stopped");
        OK(step_into(s, &step, &seq, 1));
        expect(step.tokens[0], wanted[n], "up to the context's end", n);
        if (step.stop != SPEC_STOP_EOS) assert_int_equal(step.stop, n == 8 ? SPEC_STOP_CONTEXT : SPEC_STOP_NONE);
    }
    spec_step_result step = { 0 };
    FAILS(step_into(s, &step, &seq, 1), SPEC_E_FULL, "has reached the context");
    spec_session_close(s);
    spec_model_close(m);
}

/* After E_DEVICE a sequence can only be removed; the session goes on. */
static void failures(void **state)
{
    (void)state;
    if (!is_late) skip();
    int32_t wanted[N_NEW], seq;
    spec_step_result r = { 0 };
    spec_model *m = support_model(backend, GOLDEN "bamba", SPEC_DTYPE_F32);
    truth(wanted, m, &samplings[0]);
    spec_session *s = open_session(m, 1, 64);
    for (int32_t n_before = 0; n_before < 3; n_before++)
        for (int32_t kind = 0; kind < 2; kind++) {
            OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL));
            for (int32_t n = 0; n < n_before; n++) expect(one_step(s, seq), wanted[n], "before", n);
            late.fails = kind == 0, late.not_numbers = kind == 1;
            if (kind == 1 && n_before > 0) expect(one_step(s, seq), wanted[n_before], "queued before", n_before);
            FAILS(step_into(s, &r, &seq, 1), SPEC_E_DEVICE, kind == 0 ? "the device is lost" : "not numbers");
            FAILS(step_into(s, &r, &seq, 1), SPEC_E_STATE, "an earlier pass failed");
            OK(spec_sequence_remove(s, seq));
        }
    spec_session_close(s);
    spec_model_close(m);
}

int main(void)
{
    open_backend();
    const struct CMUnitTest tests[] = { cmocka_unit_test(texts), cmocka_unit_test(interruptions),
                                        cmocka_unit_test(sequences), cmocka_unit_test(prompts_beside),
                                        cmocka_unit_test(choices), cmocka_unit_test(unseen_trees), cmocka_unit_test(ends),
                                        cmocka_unit_test(failures) };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
