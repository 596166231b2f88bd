/* test_drafts.c - trees that a session grows on the device, in batches and with replay, are those of the library's
 * builders on plain arrays under the drafter's plain distributions; and the walk over them is that of spec_verify_probs. A drafter that
 * was not used for a while knows what was emitted meanwhile. */
#include "tests/support_drafts.h"
#include "tests/support_greedy.h"

#include <stdio.h>

#include "algorithms/engine/engine.h"
#include "tests/support_sequence.h"

static spec_backend *backend;

typedef struct setting {
    const char *name, *target, *drafter;
    spec_dtype dtype;
    spec_sampling sampling;
    spec_verify_rule verify;
    int32_t n_node, n_token;
} setting;

#define GOLDEN SPEC_TEST_DIR "/golden/"
#define LAW8 GOLDEN "law8-target", GOLDEN "law8-drafter"
#define DEMO SPEC_TEST_MODELS "/demo-target", SPEC_TEST_MODELS "/demo-drafter"

static const setting settings[] = {
    { "greedy", LAW8, SPEC_DTYPE_F32, { .seed = 0 }, SPEC_VERIFY_AUTO, 0, 48 },
    { "greedy, bf16, fewer nodes", LAW8, SPEC_DTYPE_BF16, { .seed = 0 }, SPEC_VERIFY_GREEDY, 7, 48 },
    { "T = 1", LAW8, SPEC_DTYPE_F32, { .temperature = 1, .seed = 5 }, SPEC_VERIFY_AUTO, 0, 80 },
    { "T = 1, mss", LAW8, SPEC_DTYPE_F32, { .temperature = 1, .seed = 9 }, SPEC_VERIFY_MSS, 0, 80 },
    { "T = 0.9, chain", LAW8, SPEC_DTYPE_F32, { .temperature = 0.9f, .seed = 10 }, SPEC_VERIFY_CHAIN, 0, 48 },
    { "T = 0.9, block", LAW8, SPEC_DTYPE_F32, { .temperature = 0.9f, .seed = 11 }, SPEC_VERIFY_BLOCK, 0, 48 },
    { "T = 0.7, top-k 5, fewer nodes", LAW8, SPEC_DTYPE_F32, { .temperature = 0.7f, .top_k = 5, .seed = 6 },
      SPEC_VERIFY_AUTO, 9, 80 },
    { "T = 0.8, top-p 0.9, naive", LAW8, SPEC_DTYPE_BF16, { .temperature = 0.8f, .top_p = 0.9f, .seed = 7 },
      SPEC_VERIFY_NAIVE, 0, 80 },
    { "demo, T = 0.8, top-p 0.9", DEMO, SPEC_DTYPE_F32, { .temperature = 0.8f, .top_p = 0.9f, .seed = 8 },
      SPEC_VERIFY_AUTO, 0, 12 },
};

static void check(void **state)
{
    const setting *t = *state;
    drafts_run run = { .target = support_model(backend, t->target, t->dtype),
                       .drafter = support_model(backend, t->drafter, t->dtype), .sampling = t->sampling,
                       .verify = t->verify, .n_node = t->n_node, .n_token = t->n_token };
    drafts_counts all = { 0 };
    run.plain = run.drafter;
    for (int32_t i = 0; support_trees[i]; i++) {
        drafts_counts c = { 0 };
        run.tree = support_trees[i];
        support_drafts(&c, &run);
        if (c.n_tree_differ > 0 || c.n_walk_differ > 0)
            fail_msg("%s, %s: of %lld trees %lld differ, of %lld walks %lld", t->name, run.tree, (long long)c.n_tree,
                     (long long)c.n_tree_differ, (long long)c.n_walk, (long long)c.n_walk_differ);
        assert_true(c.n_drafted > 0);
        all.n_tree += c.n_tree, all.n_drafted += c.n_drafted, all.n_small += c.n_small;
    }
    print_message("  %s: %lld trees, %lld nodes below their roots, %lld trees near the end\n", t->name,
                  (long long)all.n_tree, (long long)all.n_drafted, (long long)all.n_small);
    assert_true(all.n_small > 0);
    spec_model_close(run.drafter);
    spec_model_close(run.target);
}

/* --- catching up --- */

static const char *const families[] = { "llama2", "mamba", "mamba2", "bamba", "mambainllama", "lfm2" };

/* Steps that draft nothing. */
static void go_on(spec_session *s, int32_t seq, int32_t n_step)
{
    for (int32_t i = 0; i < n_step; i++) {
        const int32_t *ids;
        size_t n;
        int32_t path[1], n_path, next, parent = -1;
        OK(spec_sequence_ids(s, &ids, &n, seq));
        int32_t token = ids[n - 1];
        const spec_tree root = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *tree = &root;
        OK(spec_score(s, &seq, 1, &tree));
        OK(spec_verify(s, path, &n_path, &next, seq, SPEC_VERIFY_AUTO));
        OK(spec_commit(s, seq, path, n_path, next));
    }
}

/* A model that drafts for itself has all its drafts accepted, however many tokens its drafter has to apply first: by replay
 * alone, by one pass or by several, for each sequence as many as it needs; and again behind each of these. */
static void check_catching_up(void **state)
{
    enum { N = 11, N_SEQ = 3 };
    static const int32_t steps[N] = { 40, 0, 1, 2, 3, 9, 70, 0, 5, 1, 33 };
    const int32_t prompt[] = { 7, 3, 11, 5 };
    char path[256];
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *drafter;
    spec_session *s;
    int32_t seqs[N_SEQ];
    (void)snprintf(path, sizeof path, GOLDEN "%s", (const char *)*state);
    spec_model *model = support_model(backend, path, SPEC_DTYPE_F32);
    dp.tree = "chain:3", sp.n_ctx = 240, sp.n_seq = N_SEQ;
    OK(spec_drafter_from_model(&drafter, model, &dp));
    OK(spec_session_open(&s, model, drafter, &sp));
    for (int32_t k = 0; k < N_SEQ; k++) OK(add_endless(s, &seqs[k], prompt + k, 4 - (size_t)k, NULL));
    for (int32_t i = 0; i < N; i++) {
        spec_step_result r[N_SEQ];
        for (int32_t k = 0; k < N_SEQ; k++) go_on(s, seqs[k], steps[(i + 3 * k) % N]);
        OK(step_into(s, r, seqs, N_SEQ));
        for (int32_t k = 0; k < N_SEQ; k++)
            if (r[k].n_drafted != 3 || r[k].n_accepted != 3)
                fail_msg("sequence %d, behind %d steps: %d of %d drafts accepted", k, steps[(i + 3 * k) % N], r[k].n_accepted,
                         r[k].n_drafted);
    }
    spec_session_close(s);
    spec_drafter_close(drafter);
    spec_model_close(model);
}

/* --- end of text --- */

static void add_ending(spec_session *s, int32_t *seq, uint64_t seed, const int32_t *ends, int32_t n_end)
{
    const int32_t prompt[] = { 3, 1 };
    spec_request r = SPEC_REQUEST_INIT;
    r.sampling = (spec_sampling){ .temperature = 1, .seed = seed };
    r.ignore_eos = 1, r.end_ids = ends, r.n_end_id = n_end;
    OK(spec_sequence_add(s, seq, prompt, 2, &r));
}

/* The second path is the first one, and its token, cut at the first end token. */
static void check_cut(const spec_tree *t, const int32_t *path, const int32_t *n_path, const int32_t *token, const int32_t *ends)
{
    int32_t n = 1;
    while (n < n_path[0] && t->token[path[n]] != ends[0] && t->token[path[n]] != ends[1]) n++;
    assert_int_equal(n_path[1], n);
    assert_int_equal(token[1], n < n_path[0] ? t->token[path[n]] : token[0]);
}

/* A path that goes through an end token ends there, under rules that decide about whole paths too: the same trees and draws
 * with end tokens and without. */
static void check_ends(void **state)
{
    static const spec_verify_rule rules[] = { SPEC_VERIFY_MSS, SPEC_VERIFY_TRAVERSAL };
    static const int32_t ends[] = { 2, 5 };
    enum { N_SEED = 300 };
    spec_model *target = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_model *drafter = support_model(backend, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *s;
    int32_t n_cut = 0;
    (void)state;
    dp.tree = "product:2,2,1", sp.n_ctx = 64, sp.n_seq = 2;
    OK(spec_drafter_from_model(&d, drafter, &dp));
    OK(spec_session_open(&s, target, d, &sp));
    for (uint64_t seed = 0; seed < N_SEED; seed++) {
        const spec_tree *trees[2];
        int32_t seqs[2];
        for (int32_t i = 0; i < 2; i++) add_ending(s, &seqs[i], seed, ends, 2 * i);
        OK(spec_draft(s, trees, seqs, 2));
        assert_true(speci_tree_equal(trees[0], trees[1]));
        OK(spec_score(s, seqs, 2, trees));
        for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
            int32_t path[2][16], n_path[2], token[2];
            for (int32_t i = 0; i < 2; i++) OK(spec_verify(s, path[i], &n_path[i], &token[i], seqs[i], rules[k]));
            check_cut(trees[0], path[0], n_path, token, ends);
            n_cut += n_path[1] < n_path[0];
        }
        for (int32_t i = 0; i < 2; i++) OK(spec_sequence_remove(s, seqs[i]));
    }
    assert_true(n_cut > N_SEED / 10);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(drafter);
    spec_model_close(target);
}

int main(void)
{
    enum { N = sizeof settings / sizeof *settings, N_FAMILY = sizeof families / sizeof *families };
    struct CMUnitTest tests[N + N_FAMILY + 1];
    backend = support_backend();
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ settings[i].name, check, NULL, NULL, (void *)(uintptr_t)&settings[i] };
    for (size_t i = 0; i < N_FAMILY; i++)
        tests[N + i] = (struct CMUnitTest){ families[i], check_catching_up, NULL, NULL, (void *)(uintptr_t)families[i] };
    tests[N + N_FAMILY] = (struct CMUnitTest){ "end of text", check_ends, NULL, NULL, NULL };
    const int failed = _cmocka_run_group_tests("drafts", tests, N + N_FAMILY + 1, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
