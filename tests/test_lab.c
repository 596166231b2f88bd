/* test_lab.c - options of spec_lab.h in sessions: with joint attainment a session tells the same log-probabilities as
 * with replay and as plain decoding, bit for bit; values that are none are refused. (Text under these options:
 * test_decode_greedy.c.) */
#include <string.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "tests/support_decode.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { N_PROMPT = 9, N_NEW = 40, N_TOP = 3, N_STEP = 12 };

static spec_backend *backend;
static const char *const models[] = { GOLDEN "llama3", GOLDEN "mamba", GOLDEN "mamba2", GOLDEN "bamba" };
static const spec_sampling samplings[] = { { 0 }, { .temperature = 0.9f, .top_p = 0.9f, .seed = 21 } };

typedef struct session {
    spec_drafter *dr;
    spec_session *s;
} session;

/* The model drafts for itself, so that deep paths are accepted. tree NULL: plain decoding. */
static session open_session(spec_model *m, const char *tree, spec_advance advance, int32_t n_seq)
{
    session o = { 0 };
    spec_lab lab = SPEC_LAB_INIT;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    lab.advance = advance;
    dp.tree = tree;
    sp.n_ctx = 128, sp.n_seq = n_seq, sp.verify = SPEC_VERIFY_NAIVE, sp.lab = &lab;
    if (tree) OK(spec_drafter_from_model(&o.dr, m, &dp));
    OK(spec_session_open(&o.s, m, o.dr, &sp));
    return o;
}

static void close_session(session *o)
{
    spec_session_close(o->s);
    spec_drafter_close(o->dr);
}

static void make_prompt(int32_t *ids, uint64_t random)
{
    for (int32_t i = 0; i < N_PROMPT; i++) ids[i] = (int32_t)(support_random(&random) % 90);
}

static spec_result generate(spec_model *m, const char *tree, spec_advance advance, const spec_sampling *sampling)
{
    int32_t ids[N_PROMPT];
    spec_result r = SPEC_RESULT_INIT;
    spec_request p = SPEC_REQUEST_INIT;
    session o = open_session(m, tree, advance, 1);
    make_prompt(ids, 5);
    p.n_predict = N_NEW, p.logprobs = 1, p.n_top = N_TOP, p.ignore_eos = 1, p.sampling = *sampling;
    OK(spec_generate_ids(o.s, &r, ids, N_PROMPT, &p));
    close_session(&o);
    return r;
}

static void generated_logprobs(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        for (size_t i = 0; i < sizeof samplings / sizeof *samplings; i++) {
            spec_model *m = support_model(backend, models[k], SPEC_DTYPE_AUTO);
            spec_result plain = generate(m, NULL, SPEC_ADVANCE_REPLAY, &samplings[i]);
            spec_result replay = generate(m, "product:3,2,1", SPEC_ADVANCE_REPLAY, &samplings[i]);
            spec_result joint = generate(m, "product:3,2,1", SPEC_ADVANCE_JOINT, &samplings[i]);
            assert_true(joint.n_accepted > 0);
            support_same(&replay, &plain, models[k]);
            support_same(&joint, &plain, models[k]);
            spec_result_free(&plain);
            spec_result_free(&replay);
            spec_result_free(&joint);
            spec_model_close(m);
        }
}

/* A step of sequences seqs [2] by the four calls; out [..]: what every node of both trees tells. Returns how much. */
static int32_t step_and_tell(session *o, const int32_t *seqs, float *out)
{
    const spec_tree *trees[2];
    int32_t path[64], n_path, next, n = 0;
    OK(spec_draft(o->s, trees, seqs, 2));
    OK(spec_score(o->s, seqs, 2, trees));
    for (int32_t i = 0; i < 2; i++)
        for (int32_t node = 0; node < trees[i]->n; node++) {
            int32_t top[N_TOP];
            OK(spec_node_logprobs(o->s, out + n, top, out + n + 1, seqs[i], node, trees[i]->token[node], N_TOP));
            n += 1 + N_TOP;
            for (int32_t j = 0; j < N_TOP; j++) out[n++] = (float)top[j];
        }
    for (int32_t i = 0; i < 2; i++) {
        OK(spec_verify(o->s, path, &n_path, &next, seqs[i], SPEC_VERIFY_AUTO));
        OK(spec_commit(o->s, seqs[i], path, n_path, next));
    }
    return n;
}

/* Two sequences, whose accepted paths differ in length: with joint attainment, rows of paths stand before, between and
 * behind the rows of trees. */
static void node_logprobs(void **state)
{
    (void)state;
    enum { CAP = 2 * 64 * (1 + 2 * N_TOP) };
    static float told[2][CAP];
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        spec_model *m = support_model(backend, models[k], SPEC_DTYPE_AUTO);
        session o[2];
        int32_t ids[N_PROMPT], seqs[2][2], n[2];
        for (int32_t i = 0; i < 2; i++) {
            o[i] = open_session(m, "product:2,2", i ? SPEC_ADVANCE_JOINT : SPEC_ADVANCE_REPLAY, 2);
            for (int32_t j = 0; j < 2; j++) {
                make_prompt(ids, 30 + (uint64_t)j);
                OK(add_sampled(o[i].s, &seqs[i][j], ids, N_PROMPT, &samplings[j]));
            }
        }
        for (int32_t step = 0; step < N_STEP; step++) {
            for (int32_t i = 0; i < 2; i++) n[i] = step_and_tell(&o[i], seqs[i], told[i]);
            assert_int_equal(n[0], n[1]);
            if (memcmp(told[0], told[1], (size_t)n[0] * sizeof(float)) != 0)
                fail_msg("%s: log-probabilities of step %d differ", models[k], step);
        }
        for (int32_t i = 0; i < 2; i++) close_session(&o[i]);
        spec_model_close(m);
    }
}

static void refusals(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_AUTO);
    const spec_lab wrong[] = {
        { sizeof(spec_lab), (spec_scan_form)2, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0 },
        { sizeof(spec_lab), SPEC_SCAN_CHUNKED, (spec_advance)-1, SPEC_DRAFT_STATE_REPLAY, 0 },
        { sizeof(spec_lab), SPEC_SCAN_CHUNKED, SPEC_ADVANCE_REPLAY, (spec_draft_state)2, 0 },
        { 0, SPEC_SCAN_CHUNKED, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        spec_memory memory = { .struct_size = sizeof memory };
        spec_session *s;
        const char *says = wrong[i].struct_size ? "each is 0 or 1" : "spec_lab";
        sp.lab = &wrong[i];
        FAILS(spec_session_open(&s, m, NULL, &sp), SPEC_E_INVALID, says);
        FAILS(spec_session_estimate(&memory, m, NULL, &sp), SPEC_E_INVALID, says);
    }
    spec_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_logprobs),
        cmocka_unit_test(node_logprobs),
        cmocka_unit_test(refusals),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
