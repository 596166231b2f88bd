/* test_sequence_golden.c - saved sequences of this version, as an earlier build wrote them: they are taken, saved again
 * to the same bytes, and go on as known: the next draft, the logits after the pending token, the ids that follow. A
 * layout that changes needs another version (engine_save.c), and new files:
 *
 *     SPEC_TEST_BACKEND=cpu:portable SPEC_GOLDEN_WRITE=1 test_sequence_golden      writes golden/sequences/ */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_decode.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { N_PROMPT = 21, N_BEFORE = 5, N_AFTER = 24, N_VOCAB = 96, MOST_NODE = 8, MOST_BYTES = 1 << 17 };

static spec_backend *backend;

static const struct golden_case {
    const char *name, *target, *drafter; /* drafter NULL: plain decoding */
    const char *tree;
    spec_sampling sampling;
} cases[] = {
    { "bamba-llama2", GOLDEN "bamba", GOLDEN "llama2", "product:2,2", { .temperature = 0 } },
    { "mamba2-mamba2", GOLDEN "mamba2", GOLDEN "mamba2", "chain:3", { .temperature = 0.9f, .top_p = 0.95f, .seed = 12 } },
    { "llama3-mamba", GOLDEN "llama3", GOLDEN "mamba", "product:2,1", { .temperature = 1, .seed = 14 } },
    { "mamba", GOLDEN "mamba", NULL, NULL, { .temperature = 1.1f, .top_k = 40, .min_p = 0.01f, .seed = 13 } },
};

/* --- files --- */

static FILE *open_file(const struct golden_case *c, const char *end, const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "sequences/%s.%s", c->name, end);
    FILE *f = fopen(path, mode);
    if (!f) fail_msg("%s cannot be opened", path);
    return f;
}

/* What a sequence does next. */
typedef struct future {
    int32_t n_node, token[MOST_NODE]; /* of the next draft */
    float logits[N_VOCAB];            /* after the pending token */
    int32_t ids[N_AFTER];
} future;

static void write_files(const struct golden_case *c, const support_stream *saved, const future *next)
{
    FILE *f = open_file(c, "specseq", "wb");
    assert_int_equal(fwrite(saved->data, 1, saved->n, f), saved->n);
    assert_int_equal(fclose(f), 0);
    f = open_file(c, "next", "w");
    fprintf(f, "%d\n", next->n_node);
    for (int32_t i = 0; i < next->n_node; i++) fprintf(f, "%d\n", next->token[i]);
    for (int32_t i = 0; i < N_VOCAB; i++) fprintf(f, "%.9g\n", (double)next->logits[i]);
    for (int32_t i = 0; i < N_AFTER; i++) fprintf(f, "%d\n", next->ids[i]);
    assert_int_equal(fclose(f), 0);
}

static void read_files(const struct golden_case *c, support_stream *saved, future *next)
{
    FILE *f = open_file(c, "specseq", "rb");
    *saved = (support_stream){ .data = malloc(MOST_BYTES), .cap = MOST_BYTES };
    assert_non_null(saved->data);
    saved->n = fread(saved->data, 1, MOST_BYTES, f);
    fclose(f);
    f = open_file(c, "next", "r");
    assert_int_equal(fscanf(f, "%d", &next->n_node), 1);
    assert_in_range(next->n_node, 1, MOST_NODE);
    for (int32_t i = 0; i < next->n_node; i++) assert_int_equal(fscanf(f, "%d", &next->token[i]), 1);
    for (int32_t i = 0; i < N_VOCAB; i++) assert_int_equal(fscanf(f, "%f", &next->logits[i]), 1);
    for (int32_t i = 0; i < N_AFTER; i++) assert_int_equal(fscanf(f, "%d", &next->ids[i]), 1);
    fclose(f);
}

/* --- sequences --- */

typedef struct bench {
    spec_model *target, *small;
    spec_drafter *dr;
    spec_session *s;
} bench;

static void open_bench(bench *b, const struct golden_case *c)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    *b = (bench){ .target = support_model(backend, c->target, SPEC_DTYPE_F32) };
    if (c->drafter) {
        b->small = support_model(backend, c->drafter, SPEC_DTYPE_F32);
        dp.tree = c->tree;
        OK(spec_drafter_from_model(&b->dr, b->small, &dp));
    }
    sp.n_ctx = 128;
    if (c->sampling.temperature > 0 && c->drafter) sp.verify = SPEC_VERIFY_MSS; /* what auto meant when the files were made */
    OK(spec_session_open(&b->s, b->target, b->dr, &sp));
}

static void close_bench(bench *b)
{
    spec_session_close(b->s);
    spec_drafter_close(b->dr);
    spec_model_close(b->small);
    spec_model_close(b->target);
}

static void go_on(spec_session *s, int32_t seq, future *out)
{
    const int32_t *ids;
    const spec_tree *tree;
    size_t first, n;
    spec_step_result r;
    OK(spec_draft(s, &tree, &seq, 1));
    assert_in_range(tree->n, 1, MOST_NODE);
    out->n_node = tree->n;
    memcpy(out->token, tree->token, (size_t)tree->n * sizeof *out->token);
    OK(spec_score(s, &seq, 1, &tree));
    OK(spec_node_logits(s, out->logits, seq, 0));
    OK(spec_rollback(s, seq));
    OK(spec_sequence_ids(s, &ids, &first, seq));
    for (n = first; n < first + N_AFTER;) {
        OK(step_into(s, &r, &seq, 1));
        OK(spec_sequence_ids(s, &ids, &n, seq));
    }
    memcpy(out->ids, ids + first, sizeof out->ids);
}

static void make(const struct golden_case *c)
{
    support_stream saved = { 0 };
    future next;
    int32_t prompt[N_PROMPT], seq;
    spec_step_result r;
    bench b;
    open_bench(&b, c);
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 3 + 11 * i % 90;
    OK(add_sampled(b.s, &seq, prompt, N_PROMPT, &c->sampling));
    for (int32_t i = 0; i < N_BEFORE; i++) OK(step_into(b.s, &r, &seq, 1));
    OK(spec_sequence_save(b.s, seq, support_to_stream, &saved));
    go_on(b.s, seq, &next);
    write_files(c, &saved, &next);
    free(saved.data);
    close_bench(&b);
}

static void expect_same(const support_stream *got, const support_stream *want, const char *name)
{
    for (size_t i = 0; i < got->n && i < want->n; i++)
        if (got->data[i] != want->data[i]) fail_msg("%s: saved again, byte %zu of %zu differs", name, i, want->n);
    assert_int_equal(got->n, want->n);
}

/* Other kernels round otherwise: 1e-4 of the largest logit is what goldens of models allow, too. */
static void expect_future(const future *got, const future *want, const char *name)
{
    assert_int_equal(got->n_node, want->n_node);
    for (int32_t i = 0; i < want->n_node; i++)
        if (got->token[i] != want->token[i])
            fail_msg("%s: node %d is %d, expected %d", name, i, got->token[i], want->token[i]);
    const double error = support_error(got->logits, want->logits, N_VOCAB);
    if (!(error <= 1e-4)) fail_msg("%s: logits differ by %.3g of the largest", name, error);
    for (int32_t i = 0; i < N_AFTER; i++)
        if (got->ids[i] != want->ids[i]) fail_msg("%s: id %d is %d, expected %d", name, i, got->ids[i], want->ids[i]);
}

static void files_of_this_version(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        support_stream file, again = { 0 };
        future want, got;
        int32_t seq;
        bench b;
        if (getenv("SPEC_GOLDEN_WRITE")) make(&cases[k]);
        read_files(&cases[k], &file, &want);
        open_bench(&b, &cases[k]);
        OK(spec_sequence_restore(b.s, &seq, support_from_stream, &file));
        assert_int_equal(file.at, file.n);
        OK(spec_sequence_save(b.s, seq, support_to_stream, &again));
        expect_same(&again, &file, cases[k].name);
        go_on(b.s, seq, &got);
        expect_future(&got, &want, cases[k].name);
        close_bench(&b);
        free(file.data);
        free(again.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(files_of_this_version) };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
