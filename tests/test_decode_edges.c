/* test_decode_edges.c - where trees do not fit: less room than a builder wants, the end of a text, end-of-text
 * tokens on a branch, drafters that know fewer ids or fewer positions, what updates a choice among trees; and builders
 * and distributions of the application's own. Whatever happens, text is that of plain decoding: greedy, and sampled under naive
 * verification. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_decode.h"
#include "tests/support_greedy.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

enum { N_NEW = 40 };
static const int32_t prompt[] = { 3, 1, 4 };
enum { N_PROMPT = 3 };
static spec_backend *backend;
static spec_model *target, *drafter; /* of 8 tokens */

/* Text by a drafter, with both ways to choose tokens: n_predict ids that are plain decoding's. Sums of both in *sum,
 * which may be NULL. */
static void expect_plain(spec_model *model, spec_drafter *dr, const spec_session_params *params, int32_t n_predict,
                         const char *what, spec_result *sum)
{
    for (int sampled = 0; sampled < 2; sampled++) {
        spec_session_params sp = *params;
        spec_request p = SPEC_REQUEST_INIT;
        spec_session *s;
        spec_result r = SPEC_RESULT_INIT;
        int32_t *plain = calloc((size_t)n_predict, sizeof *plain);
        if (sampled) p.sampling = (spec_sampling){ .temperature = 0.8f, .top_p = 0.9f, .seed = 3 };
        p.n_predict = n_predict, p.ignore_eos = 1;
        sp.verify = sampled ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO;
        support_plain_ids(model, prompt, N_PROMPT, &p.sampling, n_predict, plain);
        OK(spec_session_open(&s, model, dr, &sp));
        OK(spec_generate_ids(s, &r, prompt, N_PROMPT, &p));
        if ((int32_t)r.n_ids != n_predict || r.stop != SPEC_STOP_LENGTH)
            fail_msg("%s: %zu ids, stop %s; expected %d", what, r.n_ids, spec_stop_name(r.stop), n_predict);
        const int64_t at = support_first_difference(plain, r.ids, n_predict);
        if (at >= 0) fail_msg("%s, %s: token %d differs", what, sampled ? "sampled" : "greedy", (int)at);
        if (sum) {
            sum->n_step += r.n_step, sum->n_drafted += r.n_drafted, sum->n_accepted += r.n_accepted;
            sum->n_speculated += r.n_speculated, sum->n_branched += r.n_branched;
        }
        spec_result_free(&r);
        spec_session_close(s);
        free(plain);
    }
}

static spec_drafter *open_drafter(spec_model *model, const char *tree)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *dr;
    p.tree = tree;
    OK(spec_drafter_from_model(&dr, model, &p));
    return dr;
}

static void fewer_nodes(void **state)
{
    (void)state;
    static const int32_t most[] = { 1, 2, 3, 5, 9 };
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_drafter *dr = open_drafter(drafter, support_trees[i]);
        for (size_t k = 0; k < sizeof most / sizeof *most; k++) {
            spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
            spec_result sum = { 0 };
            sp.n_node = most[k];
            expect_plain(target, dr, &sp, N_NEW, support_trees[i], &sum);
            assert_true(sum.n_drafted <= sum.n_step * (most[k] - 1));
            assert_true((sum.n_drafted > 0) == (most[k] > 1));
        }
        spec_drafter_close(dr);
    }
}

/* A node has its place if one token more fits behind it. */
static void last_places(void **state)
{
    (void)state;
    enum { N_CTX = N_PROMPT + 3 };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    int32_t seq, token[4] = { prompt[N_PROMPT - 1], 1, 2, 3 }, parent[4] = { -1, 0, 1, 2 };
    sp.n_ctx = N_CTX, sp.n_node = 4;
    OK(spec_session_open(&s, target, NULL, &sp));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL));
    for (int32_t n = 1; n <= 4; n++) {
        const spec_tree tree = { .n = n, .cap = n, .token = token, .parent = parent }, *trees = &tree;
        if (n <= 3) OK(spec_score(s, &seq, 1, &trees));
        else FAILS(spec_score(s, &seq, 1, &trees), SPEC_E_FULL, "node 3 would stand behind the context of");
    }
    spec_session_close(s);
}

static bool has_child(const spec_tree *t, int32_t node)
{
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->parent[i] == node) return true;
    return false;
}

/* Where a tree has lost its last nodes, a node names draft distributions if it still has children that were sampled from them. */
static void rows_of_fewer_nodes(void **state)
{
    (void)state;
    static const spec_sampling sampling = { .temperature = 0.8f, .seed = 3 };
    int32_t n_row = 0;
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_drafter *dr = open_drafter(drafter, support_trees[i]);
        for (int32_t n_node = 2; n_node <= 9; n_node++) {
            spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
            const spec_tree *t;
            spec_session *s;
            int32_t seq;
            sp.n_node = n_node;
            OK(spec_session_open(&s, target, dr, &sp));
            OK(add_sampled(s, &seq, prompt, N_PROMPT, &sampling));
            OK(spec_draft(s, &t, &seq, 1));
            assert_true(t->n <= n_node);
            for (int32_t x = 0; x < t->n; x++) {
                if (t->q_row[x] >= 0 && !has_child(t, x))
                    fail_msg("%s, %d nodes: node %d has row %d", support_trees[i], n_node, x, t->q_row[x]);
                n_row += t->q_row[x] >= 0;
            }
            spec_session_close(s);
        }
        spec_drafter_close(dr);
    }
    assert_true(n_row > 0);
}

/* The last trees have room for what is still wanted, and n_predict is exact. */
static void text_ends(void **state)
{
    (void)state;
    const spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_drafter *dr = open_drafter(drafter, support_trees[i]);
        for (int32_t n = 1; n <= 12; n++) expect_plain(target, dr, &sp, n, support_trees[i], NULL);
        spec_drafter_close(dr);
    }
}

/* --- end of text inside a path --- */

typedef struct oracle {
    const int32_t *text; /* what follows the prompt */
    int32_t n_text, n_vocab;
} oracle;

/* The true continuation, each of its tokens a second child. */
static spec_status second_children(void *user, spec_draft_request *requests, int32_t n)
{
    const oracle *o = user;
    spec_tree *tree = requests[0].tree;
    int32_t node = 0;
    assert_int_equal(n, 1);
    for (int32_t at = (int32_t)requests[0].n_ids - N_PROMPT; at < o->n_text && tree->n + 2 <= tree->cap; at++) {
        (void)spec_tree_add(tree, node, (o->text[at] + 1) % o->n_vocab, 0);
        node = spec_tree_add(tree, node, o->text[at], 0);
    }
    return SPEC_OK;
}

/* The first token that does not stand before it in a text, from place `from` on. */
static int32_t first_new(const int32_t *ids, int32_t from, int32_t n)
{
    for (int32_t i = from; i < n; i++) {
        bool seen = false;
        for (int32_t j = 0; j < i; j++) seen = seen || ids[j] == ids[i];
        if (!seen) return i;
    }
    return -1;
}

static spec_model *with_eos(char *dir, const char *base, int32_t eos)
{
    char changes[64];
    snprintf(changes, sizeof changes, "{\"eos_token_id\": [%d]}", eos);
    char *text = support_json_with(base, "generation_config.json", changes);
    const variant_file file = { "generation_config.json", text };
    support_variant(dir, base, &file, 1);
    free(text);
    return support_model(backend, dir, SPEC_DTYPE_F32);
}

static void expect_eos(spec_model *model, spec_drafter *dr, const int32_t *plain, int32_t end, const char *what,
                       bool on_branch)
{
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_request p = SPEC_REQUEST_INIT;
    spec_session *s;
    spec_result r = SPEC_RESULT_INIT;
    p.n_predict = 24;
    OK(spec_session_open(&s, model, dr, &sp));
    OK(spec_generate_ids(s, &r, prompt, N_PROMPT, &p));
    if (r.stop != SPEC_STOP_EOS || (int32_t)r.n_ids != end + 1 || support_first_difference(r.ids, plain, end + 1) >= 0)
        fail_msg("%s: %zu ids, stop %s; expected %d", what, r.n_ids, spec_stop_name(r.stop), end + 1);
    if (on_branch) { /* one step: what stands before the end was accepted, the end itself is the last token */
        assert_int_equal(r.n_step, 1);
        assert_int_equal(r.n_accepted, end);
        assert_int_equal(r.n_branched, 1);
    }
    spec_result_free(&r);
    spec_session_close(s);
}

static void eos_on_a_branch(void **state)
{
    (void)state;
    char dir[64];
    int32_t plain[24];
    spec_model *demo = support_model(backend, DEMO_DRAFTER, SPEC_DTYPE_F32);
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(demo, &info, 1));
    support_plain_ids(demo, prompt, N_PROMPT, NULL, 24, plain);
    spec_model_close(demo);
    const int32_t end = first_new(plain, 2, 24);
    assert_true(end >= 2);
    demo = with_eos(dir, DEMO_DRAFTER, plain[end]);
    oracle o = { plain, 24, info.n_vocab };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = second_children, .user_data = &o };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *dr;
    dp.n_draft = 50;
    OK(spec_drafter_from_ops(&dr, &ops, &dp));
    expect_eos(demo, dr, plain, end, "second children", true);
    spec_drafter_close(dr);
    /* The same network drafts: the first of each look is accepted, up to the end. */
    for (int32_t i = 0; support_trees[i]; i++) {
        dr = open_drafter(demo, support_trees[i]);
        expect_eos(demo, dr, plain, end, support_trees[i], false);
        spec_drafter_close(dr);
    }
    spec_model_close(demo);
    support_variant_remove(dir);
}

/* --- other drafters --- */

/* A drafter of 48 positions drafts as long as it has one for the root, and then no longer. */
/* A drafter of n_ctx positions drafts as deep as it has some: the deepest nodes need none. */
static void expect_depths(spec_model *shorter, int32_t n_ctx)
{
    spec_drafter *dr = open_drafter(shorter, "chain:3");
    for (int32_t n = n_ctx - 4; n <= n_ctx + 2; n++) {
        const int32_t left = n_ctx - n + 1, depth = left > 3 ? 3 : left > 0 ? left : 0;
        int32_t ids[64], seq;
        const spec_tree *t;
        spec_session *s;
        for (int32_t i = 0; i < n; i++) ids[i] = prompt[i % N_PROMPT];
        OK(spec_session_open(&s, target, dr, NULL));
        OK(spec_sequence_add(s, &seq, ids, (size_t)n, NULL));
        OK(spec_draft(s, &t, &seq, 1));
        if (t->n != depth + 1) fail_msg("%d ids of a context of %d: %d drafts, expected %d", n, n_ctx, t->n - 1, depth);
        spec_session_close(s);
    }
    spec_drafter_close(dr);
}

static void shorter_contexts(void **state)
{
    (void)state;
    enum { POSITIONS = 48, N_LONG = 120 };
    char dir[64];
    char *config = support_json_with(GOLDEN "law8-target", "config.json", "{\"max_position_embeddings\": 48}");
    const variant_file file = { "config.json", config };
    support_variant(dir, GOLDEN "law8-target", &file, 1);
    spec_model *shorter = support_model(backend, dir, SPEC_DTYPE_F32);
    const spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_result sum = { 0 };
        spec_drafter *dr = open_drafter(shorter, support_trees[i]);
        expect_plain(target, dr, &sp, N_LONG, support_trees[i], &sum);
        assert_true(sum.n_drafted > 0 && sum.n_accepted > 0);
        /* One token each, in two texts, from 49 or 50 ids on: the last tree is one level deep. */
        const int64_t alone = sum.n_step - sum.n_speculated;
        assert_in_range(alone, 2 * (N_PROMPT + N_LONG - POSITIONS - 2), 2 * (N_PROMPT + N_LONG - POSITIONS - 1));
        spec_drafter_close(dr);
    }
    expect_depths(shorter, POSITIONS);
    spec_model_close(shorter);
    support_variant_remove(dir);
    free(config);
}

/* A drafter without attention drafts up to the last token of the session's context. */
static void endless_drafters(void **state)
{
    (void)state;
    enum { N_CTX = 40 };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_step_result r = { .stop = SPEC_STOP_NONE };
    spec_session *s;
    const int32_t *ids;
    size_t n;
    int32_t seq, n_step = 0;
    spec_drafter *dr = open_drafter(drafter, "product:3,2,2");
    sp.n_ctx = N_CTX, sp.n_node = 4;
    OK(spec_session_open(&s, target, dr, &sp));
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL));
    for (; r.stop != SPEC_STOP_CONTEXT && n_step < N_CTX; n_step++) {
        OK(spec_sequence_ids(s, &ids, &n, seq));
        OK(step_into(s, &r, &seq, 1));
        assert_int_equal(r.n_drafted > 0, n + 1 < N_CTX);
    }
    OK(spec_sequence_ids(s, &ids, &n, seq));
    assert_int_equal(n, N_CTX);
    spec_session_close(s);
    spec_drafter_close(dr);
}

/* --- the choice among trees --- */

static int32_t choice_of(spec_session *s, const int32_t *seqs, int32_t n)
{
    const spec_tree *trees[2];
    int32_t choice, again;
    OK(spec_draft(s, trees, seqs, n));
    OK(spec_draft_choice(s, &choice, seqs[0]));
    OK(spec_draft_choice(s, &again, seqs[n - 1]));
    assert_int_equal(again, choice);
    assert_int_equal(trees[0]->n > 1, choice >= 0);
    OK(spec_score(s, seqs, n, trees));
    return choice;
}

static void commit(spec_session *s, int32_t seq)
{
    int32_t path[SPEC_MAX_DEPTH + 1], n_path, token;
    OK(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO));
    OK(spec_commit(s, seq, path, n_path, token));
}

/* A bandit uses each arm once in the beginning, and there is one for each load: so it is seen when it was updated. */
static void rounds_update_builders(void **state)
{
    (void)state;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    int32_t seqs[2];
    spec_drafter *dr = open_drafter(drafter, "chain:3;product:2,2");
    sp.adapt = SPEC_ADAPT_UCB, sp.n_seq = 2;
    OK(spec_session_open(&s, target, dr, &sp));
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_add(s, &seqs[i], prompt, N_PROMPT, NULL));
    assert_int_equal(choice_of(s, seqs, 2), -1);
    assert_int_equal(choice_of(s, seqs, 2), -1); /* nothing was committed */
    commit(s, seqs[0]);
    assert_int_equal(choice_of(s, seqs, 2), -1); /* not all of them */
    commit(s, seqs[1]);
    commit(s, seqs[0]);
    assert_int_equal(choice_of(s, &seqs[0], 1), -1); /* another load */
    commit(s, seqs[0]);
    assert_int_equal(choice_of(s, seqs, 2), 0);
    /* A tree of the caller's own tells nothing about the drafter's. */
    int32_t token, parent = -1;
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seqs[1]));
    token = ids[n - 1];
    const spec_tree own = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *trees = &own;
    commit(s, seqs[0]);
    OK(spec_score(s, &seqs[1], 1, &trees));
    commit(s, seqs[1]);
    assert_int_equal(choice_of(s, seqs, 2), 0);
    commit(s, seqs[1]);
    commit(s, seqs[0]);
    assert_int_equal(choice_of(s, seqs, 2), 1);
    /* As by steps. */
    spec_step_result r[2];
    OK(step_into(s, r, seqs, 2));
    assert_true(r[0].tree == 1 && r[1].tree == 1);
    spec_session_close(s);
    spec_drafter_close(dr);
}

/* --- the application's own --- */

/* The two first candidates of whatever was fed last, of which the second goes on: a comb. user: NULL, or a token in place of that. */
static spec_status comb(void *user, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                        int32_t *n_feed, int32_t n_feed_max)
{
    const int32_t *other = user;
    int32_t last = 0, next = -1;
    for (int32_t i = 1; i < tree->n; i++)
        if (tree->q_row[i] > tree->q_row[last]) last = i;
    const spec_candidate *c = candidates + (size_t)tree->q_row[last] * (size_t)k;
    for (int32_t j = 0; j < 2 && c[j].token >= 0; j++)
        next = spec_tree_add(tree, last, j == 1 && other ? *other : c[j].token, c[j].prob);
    *n_feed = next >= 0 && n_feed_max > 0;
    feed[0] = next;
    return SPEC_OK;
}

static void own_builders(void **state)
{
    (void)state;
    static const spec_tree_kind kinds[] = { SPEC_TREE_DETERMINISTIC, SPEC_TREE_SAMPLED, SPEC_TREE_SAMPLED_IID };
    const spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = 9, .n_row = 4, .n_level = 4, .depth = 4,
                                       .k = 3, .kind = kinds[i], .expand = comb };
        spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
        spec_drafter *dr;
        spec_result sum = { 0 };
        OK(spec_builder_from_ops(&p.builder, &ops, NULL));
        OK(spec_drafter_from_model(&dr, drafter, &p));
        expect_plain(target, dr, &sp, N_NEW, "a comb", &sum);
        assert_true(sum.n_accepted > 0 && sum.n_branched > 0 && sum.n_drafted > 4 * sum.n_step);
        spec_drafter_close(dr);
        spec_builder_close(p.builder);
    }
}

static void smaller_vocabularies(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    char dirs[2][64];
    spec_model *models[2];
    for (int i = 0; i < 2; i++) { /* a target of 24 ids, a drafter of 11; tokenizers tell that they agree */
        const char *base = i == 0 ? GOLDEN "law8-target" : GOLDEN "law8-drafter";
        char changes[64];
        const int rows = i == 0 ? 24 : 11;
        snprintf(changes, sizeof changes, "{\"vocab_size\": %d}", rows);
        char *config = support_json_with(base, "config.json", changes);
        const variant_file files[] = { { "config.json", config }, { "model.safetensors", NULL },
                                       { "tokenizer.json", support_tokenizer8 } };
        support_variant(dirs[i], base, files, 3);
        support_grow_rows(dirs[i], base, 8, rows);
        free(config);
        models[i] = support_model(backend, dirs[i], SPEC_DTYPE_F32);
    }
    const spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_result sum = { 0 };
        spec_drafter *dr = open_drafter(models[1], support_trees[i]);
        expect_plain(models[0], dr, &sp, N_NEW, support_trees[i], &sum);
        assert_true(sum.n_accepted > 0);
        spec_drafter_close(dr);
    }
    /* A builder may name, and go on behind, what the target alone has. */
    int32_t other = 20;
    const spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = 9, .n_row = 4, .n_level = 4, .depth = 4, .k = 3,
                                   .expand = comb, .user_data = &other };
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *dr;
    OK(spec_builder_from_ops(&p.builder, &ops, NULL));
    OK(spec_drafter_from_model(&dr, models[1], &p));
    expect_plain(models[0], dr, &sp, N_NEW, "a comb of another token", NULL);
    spec_drafter_close(dr);
    spec_builder_close(p.builder);
    for (int i = 1; i >= 0; i--) spec_model_close(models[i]), support_variant_remove(dirs[i]);
}

typedef struct own_distributions {
    int64_t n_asked;
} own_distributions;

/* A distribution that depends on the node's token and its parent's. */
static spec_status tell_distributions(void *user, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree,
                             const int32_t *nodes, int32_t n_node, float *distributions, int32_t n_vocab)
{
    own_distributions *o = user;
    (void)seq;
    assert_int_equal(tree->token[0], ids[n - 1]);
    for (int32_t i = 0; i < n_node; i++) {
        const int32_t x = nodes[i], before = x > 0 ? tree->token[tree->parent[x]] : n > 1 ? ids[n - 2] : 0;
        float *probs = distributions + (size_t)i * (size_t)n_vocab, sum = 0;
        uint64_t random = (uint64_t)(tree->token[x] * n_vocab + before);
        for (int32_t v = 0; v < n_vocab; v++) sum += probs[v] = (float)(1 + support_random(&random) % 100);
        for (int32_t v = 0; v < n_vocab; v++) probs[v] /= sum;
        o->n_asked++;
    }
    return SPEC_OK;
}

static void own_distributions_draft(void **state)
{
    (void)state;
    const spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    own_distributions o = { 0 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .probs = tell_distributions, .user_data = &o };
    for (int32_t i = 0; support_trees[i]; i++) {
        spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
        spec_drafter *dr;
        spec_result sum = { 0 };
        p.tree = support_trees[i];
        o.n_asked = 0;
        OK(spec_drafter_from_ops(&dr, &ops, &p));
        expect_plain(target, dr, &sp, N_NEW, support_trees[i], &sum);
        assert_true(o.n_asked >= sum.n_speculated && sum.n_drafted > 0 && sum.n_accepted > 0);
        spec_drafter_close(dr);
    }
}

/* --- what the application gets wrong --- */

typedef struct slip {
    spec_status code;
    const char *says;
} slip;

static int32_t now; /* which slip is due, 0 = none; the callback that makes it sets it back */

/* Two sequences; each slip in turn, then a step as it should be: which goes on as if nothing had been tried. */
static void expect_recovery(spec_drafter *dr, const slip *slips, int32_t n_slip)
{
    const spec_sampling sampling = { .temperature = 0.8f, .top_p = 0.9f, .seed = 3 };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_step_result r[2];
    spec_session *s;
    const int32_t *ids;
    int32_t seqs[2], plain[N_NEW + 4];
    size_t n[2] = { N_PROMPT, N_PROMPT }, after;
    sp.n_seq = 2, sp.verify = SPEC_VERIFY_NAIVE;
    support_plain_ids(target, prompt, N_PROMPT, &sampling, N_NEW + 4, plain);
    OK(spec_session_open(&s, target, dr, &sp));
    for (int32_t i = 0; i < 2; i++) OK(add_sampled(s, &seqs[i], prompt, N_PROMPT, &sampling));
    for (int32_t i = 0; n[0] < N_PROMPT + N_NEW || i < n_slip; i++) {
        now = 1 + i % n_slip;
        FAILS(step_into(s, r, seqs, 2), slips[i % n_slip].code, slips[i % n_slip].says);
        assert_int_equal(now, 0);
        for (int32_t k = 0; k < 2; k++) {
            OK(spec_sequence_ids(s, &ids, &after, seqs[k]));
            assert_int_equal(after, n[k]);
        }
        OK(step_into(s, r, seqs, 2));
        for (int32_t k = 0; k < 2; k++) {
            OK(spec_sequence_ids(s, &ids, &n[k], seqs[k]));
            const int64_t n_new = (int64_t)n[k] - N_PROMPT, most = n_new < N_NEW + 4 ? n_new : N_NEW + 4;
            if (support_first_difference(plain, ids + N_PROMPT, most) >= 0)
                fail_msg("other text after \"%s\"", slips[i % n_slip].says);
        }
    }
    spec_session_close(s);
}

static const slip probs_slips[] = { { SPEC_E_INVALID, "has nan for token 2" }, { SPEC_E_INVALID, "has -0.5 for token 2" },
                                  { SPEC_E_INVALID, "has inf for token 2" }, { SPEC_E_INVALID, "has the sum 2" },
                                  { SPEC_E_ABORTED, "drafting for sequence" } };

/* As tell_distributions, but of the second sequence one distribution behind the root is none. */
static spec_status slip_in_distributions(void *user, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree,
                                const int32_t *nodes, int32_t n_node, float *distributions, int32_t n_vocab)
{
    static const float entries[] = { 0, NAN, -0.5f, INFINITY };
    const int32_t due = now;
    SPEC_TRY(tell_distributions(user, seq, ids, n, tree, nodes, n_node, distributions, n_vocab));
    if (due == 0 || seq != 1 || nodes[n_node - 1] == 0) return SPEC_OK;
    float *probs = distributions + (size_t)(n_node - 1) * (size_t)n_vocab;
    now = 0;
    if (due == 5) return SPEC_E_ABORTED;
    if (due < 4) probs[2] = entries[due];
    for (int32_t v = 0; v < n_vocab && due == 4; v++) probs[v] *= 2;
    return SPEC_OK;
}

static void wrong_distributions(void **state)
{
    (void)state;
    static const char *const trees[] = { "product:3,2,2", "dyspec:16" }; /* by levels, by looks */
    own_distributions o = { 0 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .probs = slip_in_distributions, .user_data = &o };
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
        spec_drafter *dr;
        p.tree = trees[i];
        OK(spec_drafter_from_ops(&dr, &ops, &p));
        expect_recovery(dr, probs_slips, sizeof probs_slips / sizeof *probs_slips);
        spec_drafter_close(dr);
    }
}

static const slip expand_slips[] = { { SPEC_E_ABORTED, "" }, { SPEC_E_INVALID, "feeds node 1000" },
                                   { SPEC_E_INVALID, "changed the root" }, { SPEC_E_INVALID, "has parent" },
                                   { SPEC_E_INVALID, "siblings with the same token" },
                                   { SPEC_E_INVALID, "has token 1000; the vocabulary has 8" } };

/* A comb that slips when the network has been fed twice. */
static spec_status slip_in_expand(void *user, spec_tree *tree, const spec_candidate *candidates, int32_t k,
                                int32_t *feed, int32_t *n_feed, int32_t n_feed_max)
{
    const int32_t due = now, before = tree->n;
    SPEC_TRY(comb(user, tree, candidates, k, feed, n_feed, n_feed_max));
    if (due == 0 || before == 1) return SPEC_OK;
    now = 0;
    if (due == 1) return SPEC_E_ABORTED;
    if (due == 2) feed[0] = 1000, *n_feed = 1;
    if (due == 3) tree->token[0] ^= 1;
    if (due == 4) tree->parent[before] = before + 1;
    if (due == 5) tree->token[before + 1] = tree->token[before];
    if (due == 6) tree->token[before + 1] = 1000;
    return SPEC_OK;
}

static void wrong_expansions(void **state)
{
    (void)state;
    const spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = 9, .n_row = 4, .n_level = 4, .depth = 4, .k = 3,
                                   .kind = SPEC_TREE_SAMPLED, .expand = slip_in_expand };
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *dr;
    OK(spec_builder_from_ops(&p.builder, &ops, NULL));
    OK(spec_drafter_from_model(&dr, drafter, &p));
    expect_recovery(dr, expand_slips, sizeof expand_slips / sizeof *expand_slips);
    spec_drafter_close(dr);
    spec_builder_close(p.builder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_nodes),      cmocka_unit_test(text_ends),    cmocka_unit_test(eos_on_a_branch),
        cmocka_unit_test(shorter_contexts), cmocka_unit_test(own_builders), cmocka_unit_test(own_distributions_draft),
        cmocka_unit_test(endless_drafters), cmocka_unit_test(rounds_update_builders), cmocka_unit_test(wrong_distributions),
        cmocka_unit_test(wrong_expansions), cmocka_unit_test(rows_of_fewer_nodes), cmocka_unit_test(last_places),
        cmocka_unit_test(smaller_vocabularies),
    };
    backend = support_backend();
    target = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    drafter = support_model(backend, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_model_close(drafter);
    spec_model_close(target);
    spec_backend_close(backend);
    return failed;
}
