/* test_prefill.c - how a prompt is cut into passes: the CPU, told that its passes may be of several sizes, is watched;
 * and what is decoded behind a prompt does not depend on the sizes. And what an appended prompt asks for in front of that,
 * and what it follows. */
#include <string.h>

#include "backends/backend.h"
#include "tests/support_decode.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { MOST = 64, LEAST = 8, MOST_PASS = 8, N_VOCAB = 96, MOST_IDS = 200, N_CTX = 256 };

static struct {
    int32_t n, rows[MOST_PASS], n_fed;
    int32_t n_row;            /* of the pass that runs */
    int32_t idle[SPEC_OP_N];  /* operations of passes without rows, by kind */
} seen;

static spec_status info_of_sizes(spec_device *dev, spec_device_info *out)
{
    const spec_status status = speci_cpu_ops.info(dev, out);
    for (int32_t i = 0, rows = LEAST; rows <= MOST; rows *= 2) out->prefill_rows[i++] = rows;
    return status;
}

static spec_status run(spec_queue *q, const spec_op *op)
{
    if (seen.n_row == 0) seen.idle[op->kind]++;
    return speci_cpu_ops.op[op->kind].run(q, op);
}

static spec_status watch(spec_queue *q, const spec_step_block *block)
{
    seen.n_row = block->n_row;
    if (block->phase == SPEC_PHASE_PREFILL) {
        assert_true(seen.n < MOST_PASS);
        seen.rows[seen.n++] = block->n_row_run;
        seen.n_fed += block->n_row;
    }
    return speci_cpu_ops.step_bind(q, block);
}

static spec_backend *backend, *plain;

static int open_backends(void **state)
{
    (void)state;
    static spec_backend_ops ops;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 2;
    ops = speci_cpu_ops;
    ops.info = info_of_sizes, ops.step_bind = watch;
    for (int k = 0; k < SPEC_OP_N; k++)
        if (ops.op[k].run) ops.op[k].run = run;
    OK(spec_backend_open_ops(&backend, &ops, NULL, &p));
    OK(spec_backend_open_ops(&plain, &speci_cpu_ops, NULL, &p));
    return 0;
}

static int close_backends(void **state)
{
    (void)state;
    spec_backend_close(backend);
    spec_backend_close(plain);
    return 0;
}

static spec_session *open_session(spec_model *m, int32_t n_ctx)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    p.n_ctx = n_ctx;
    OK(spec_session_open(&s, m, NULL, &p));
    return s;
}

/* Logits behind a prompt of n tokens and one more. */
static void read_prompt(spec_session *s, int32_t n, float row[N_VOCAB])
{
    int32_t ids[MOST_IDS], seq;
    for (int32_t i = 0; i <= n; i++) ids[i] = i * 7 % N_VOCAB;
    memset(&seen, 0, sizeof seen);
    OK(spec_sequence_add(s, &seq, ids, (size_t)n + 1, NULL));
    support_plain_step(s, seq, ids[n], 3, row);
    OK(spec_sequence_remove(s, seq));
}

static const struct {
    int32_t n, rows[MOST_PASS];
} cuts[] = {
    { 0, { 0 } },          { 1, { 8 } },          { 8, { 8 } },           { 9, { 16 } },
    { 17, { 32 } },        { 33, { 32, 8 } },     { 47, { 32, 16 } },     { 48, { 64 } },
    { 64, { 64 } },        { 65, { 64, 8 } },     { 100, { 64, 32, 8 } }, { 112, { 64, 64 } },
    { 150, { 64, 64, 32 } },
};
enum { N_CUT = sizeof cuts / sizeof *cuts };

/* A small context, which takes less memory, cuts its prompts as a large one does. */
static void prompts_are_cut_by_their_length(void **state)
{
    (void)state;
    float row[N_VOCAB];
    spec_model *m = support_model(backend, GOLDEN "llama3", SPEC_DTYPE_F32);
    for (int32_t i = 0; i < N_CUT; i++)
        for (int small = 0; small < 2; small++) {
            spec_session *s = open_session(m, small ? cuts[i].n + 2 : N_CTX);
            read_prompt(s, cuts[i].n, row);
            assert_int_equal(seen.n_fed, cuts[i].n);
            for (int32_t k = 0; k < MOST_PASS; k++)
                assert_int_equal(k < seen.n ? seen.rows[k] : 0, cuts[i].rows[k]);
            spec_session_close(s);
        }
    spec_model_close(m);
}

static void a_small_context_has_small_passes(void **state)
{
    (void)state;
    static const int32_t contexts[] = { 8, 16, 32, 64 };
    uint64_t before = 0;
    spec_model *m = support_model(backend, GOLDEN "mamba2", SPEC_DTYPE_F32);
    for (size_t i = 0; i <= sizeof contexts / sizeof *contexts; i++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_memory memory = { .struct_size = sizeof memory };
        p.n_ctx = i < sizeof contexts / sizeof *contexts ? contexts[i] : 0; /* none: as large as they come */
        OK(spec_session_estimate(&memory, m, NULL, &p));
        if (p.n_ctx) assert_true(memory.bytes_work > before);
        else assert_int_equal(memory.bytes_work, before);
        before = memory.bytes_work;
    }
    spec_model_close(m);
}

static void all_sizes_say_the_same(void **state)
{
    (void)state;
    static const char *const names[] = { GOLDEN "mamba", GOLDEN "mamba2", GOLDEN "llama3", GOLDEN "bamba",
                                          GOLDEN "lfm2", GOLDEN "gemma2" };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        spec_model *m = support_model(backend, names[k], SPEC_DTYPE_F32);
        spec_model *other = support_model(plain, names[k], SPEC_DTYPE_F32);
        spec_session *s = open_session(m, N_CTX), *t = open_session(other, N_CTX);
        for (int32_t i = 0; i < N_CUT; i++) {
            float got[N_VOCAB], want[N_VOCAB];
            read_prompt(s, cuts[i].n, got);
            read_prompt(t, cuts[i].n, want);
            assert_true(support_error(got, want, N_VOCAB) <= 1e-5); /* a library's sums may go by the rows */
        }
        spec_session_close(s);
        spec_session_close(t);
        spec_model_close(m);
        spec_model_close(other);
    }
}

/* A path that is pending, and states that lag, are seen to by the operations that apply paths: no weight is read for that. */
static void what_is_pending_asks_for_no_product(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t scans, commits; /* of 3 layers: a scan applies the path, a chunked one folds what is left */
    } models[] = { { GOLDEN "mamba2", 2 * 3, 0 }, { GOLDEN "mamba", 3, 0 }, { GOLDEN "llama3", 0, 1 } };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        spec_model *m = support_model(backend, models[i].name, SPEC_DTYPE_F32);
        spec_session *s = open_session(m, N_CTX);
        const int32_t ids[] = { 1, 5, 9, 2, 7 };
        const spec_step_result *r;
        int32_t seq;
        OK(spec_sequence_add(s, &seq, ids, 5, NULL));
        OK(spec_step(s, &r, &seq, 1));
        memset(&seen, 0, sizeof seen);
        OK(spec_sequence_append(s, seq, ids, 5, NULL));
        for (int k = 0; k < SPEC_OP_N; k++) {
            if (k == SPEC_OP_SCAN) assert_int_equal(seen.idle[k], models[i].scans);
            else if (k == SPEC_OP_KV_COMMIT) assert_int_equal(seen.idle[k], models[i].commits);
            else if (k != SPEC_OP_CONV) assert_int_equal(seen.idle[k], 0);
        }
        spec_session_close(s);
        spec_model_close(m);
    }
}

/* Two sequences of a session decode by turns, then each gets a prompt more, which states that cover all before it are needed for. What
 * they say is what a sequence says that got all of it as one prompt. */
static void appended_prompts_follow_their_own(void **state)
{
    (void)state;
    enum { N_SEQ = 2, N_PROMPT = 5, N_MORE = 9 };
    static const int32_t n_step[] = { 1, 14, 31, 32, 47, 64, 77 };
    spec_model *m = support_model(plain, GOLDEN "mamba2", SPEC_DTYPE_F32);
    for (size_t i = 0; i < sizeof n_step / sizeof *n_step; i++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_session *s, *fresh = open_session(m, N_CTX);
        int32_t ids[N_SEQ][MOST_IDS], seq[N_SEQ], other, n = N_PROMPT;
        float got[N_VOCAB], want[N_VOCAB];
        p.n_ctx = N_CTX, p.n_seq = N_SEQ;
        OK(spec_session_open(&s, m, NULL, &p));
        for (int32_t k = 0; k < N_SEQ; k++) {
            for (int32_t j = 0; j < MOST_IDS; j++) ids[k][j] = (j * (7 + 4 * k) + k) % N_VOCAB;
            OK(spec_sequence_add(s, &seq[k], ids[k], N_PROMPT, NULL));
        }
        for (; n < N_PROMPT + n_step[i]; n++)
            for (int32_t k = 0; k < N_SEQ; k++) support_plain_step(s, seq[k], ids[k][n - 1], ids[k][n], got);
        for (int32_t k = N_SEQ - 1; k >= 0; k--) OK(spec_sequence_append(s, seq[k], ids[k] + n, N_MORE, NULL));
        n += N_MORE;
        for (int32_t k = 0; k < N_SEQ; k++) {
            support_plain_step(s, seq[k], ids[k][n - 1], 3, got);
            OK(spec_sequence_add(fresh, &other, ids[k], (size_t)n, NULL));
            support_plain_step(fresh, other, ids[k][n - 1], 3, want);
            OK(spec_sequence_remove(fresh, other));
            const double error = support_error(got, want, N_VOCAB);
            if (!(error <= 1e-4)) fail_msg("sequence %d behind %d steps: %g apart", k, n_step[i], error);
        }
        spec_session_close(s);
        spec_session_close(fresh);
    }
    spec_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_cut_by_their_length),
        cmocka_unit_test(a_small_context_has_small_passes),
        cmocka_unit_test(all_sizes_say_the_same),
        cmocka_unit_test(what_is_pending_asks_for_no_product),
        cmocka_unit_test(appended_prompts_follow_their_own),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
