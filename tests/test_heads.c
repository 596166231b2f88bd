/* test_heads.c - heads on hidden states against the plain PyTorch form of their equations (golden/heads): rows of pairs, by decode and by
 * prefill passes; chains of their own rows, and logits; trees, through sessions. Then what a head is refused for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/model_intake.h"
#include "tests/support_decode.h"
#include "tests/support_request.h"
#include "tests/support_sequence.h"

#define HEADS SPEC_TEST_DIR "/golden/heads/"
#define TARGETS SPEC_TEST_DIR "/golden/"
#define TOLERANCE 1e-4

static spec_backend *backend;

static const char *const names[] = { "eagle2-bamba", "eagle2-llama2", "eagle2-mamba2", "eagle2-law8", "eagle3-bamba", "eagle3-llama2",
                                     "eagle3-mamba2", "eagle3-speculators", "eagle3-law8", "lyanna-bare", "lyanna-bamba",
                                     "lyanna-mamba2", "lyanna-law8" };
enum { N_CASE = sizeof names / sizeof *names, N_NODE = 40, MOST = 4096 };

typedef struct scene {
    const char *name;
    spec_model *target, *head;
    golden g;
    json_t *told; /* golden.json */
    const int32_t *ids;
    int32_t n_ids;
} scene;

static const char *path_of(char *out, size_t cap, const char *a, const char *b, const char *c)
{
    snprintf(out, cap, "%s%s%s", a, b, c);
    return out;
}

static void open_scene(scene *s, const char *name)
{
    char path[512];
    int64_t n;
    *s = (scene){ .name = name };
    s->told = json_load_file(path_of(path, sizeof path, HEADS, name, "/golden.json"), 0, NULL);
    assert_non_null(s->told);
    support_golden_open(&s->g, path_of(path, sizeof path, HEADS, name, "/golden.safetensors"));
    const char *target = json_string_value(json_object_get(s->told, "target"));
    s->target = support_model(backend, path_of(path, sizeof path, TARGETS, target, ""), SPEC_DTYPE_F32);
    s->head = support_model(backend, path_of(path, sizeof path, HEADS, name, ""), SPEC_DTYPE_F32);
    s->ids = support_golden_find(&s->g, "ids", &n, NULL);
    s->n_ids = (int32_t)n;
}

static void close_scene(scene *s)
{
    spec_model_close(s->head);
    spec_model_close(s->target);
    support_golden_close(&s->g);
    json_decref(s->told);
}

/* --- the network: a head's executor alone, given the golden's rows --- */

typedef struct worker {
    const scene *s;
    const spec_backend_ops *ops;
    speci_exec *exec;
    spec_queue *queue;
    int32_t n_tap, dim, n_hidden;
} worker;

static void open_worker(worker *w, const scene *s, bool collapsed)
{
    static const spec_tap last = { SPEC_TAP_LAST, 0 };
    spec_plan plans[2];
    *w = (worker){ .s = s, .ops = backend->ops, .n_tap = speci_head_n_tap(s->head), .dim = s->head->dim,
                   .n_hidden = s->target->dim };
    const speci_exec_params p = { .n_seq = 2, .n_ctx = 128, .n_node = N_NODE, .taps = &last, .n_tap = 1, .target = s->target,
                                  .collapsed = collapsed };
    OK(speci_head_check(s->head, s->target));
    OK(s->head->exec->open(&w->exec, s->head, &p));
    w->exec->kind->plans(w->exec, plans);
    OK(w->ops->queue_open(backend->dev, &w->queue, plans, 2, s->target->n_vocab));
    OK(w->exec->kind->attach(w->exec, w->queue, true));
}

static void close_worker(worker *w)
{
    speci_exec_close(w->exec);
    w->ops->queue_close(w->queue);
}

/* The rows of positions [first, first + n), to the executor's rows from `row` on. */
static void give(const worker *w, int32_t row, int32_t first, int32_t n)
{
    const float *rows = support_golden_find(&w->s->g, w->n_tap > 1 ? "taps" : "hidden", NULL, NULL);
    for (int32_t k = 0; k < w->n_tap; k++) {
        const spec_view to = w->exec->kind->given(w->exec, k);
        for (int32_t i = 0; i < n; i++)
            OK(w->ops->upload(w->queue, (float *)to.data + (size_t)(row + i) * (size_t)to.ld,
                              rows + ((size_t)(first + i) * (size_t)w->n_tap + (size_t)k) * (size_t)w->n_hidden,
                              (size_t)w->n_hidden * sizeof(float)));
    }
}

static spec_status give_prompt(void *arg, int32_t first, int32_t n)
{
    give(arg, 0, first, n);
    return SPEC_OK;
}

static void expect_row(const worker *w, const char *what, const float *at, const float *want, int32_t n)
{
    float got[MOST];
    assert_true(n <= MOST);
    OK(w->ops->download(w->queue, got, at, (size_t)n * sizeof *got));
    OK(w->ops->sync(w->queue));
    const double error = support_error(got, want, (size_t)n);
    if (!(error <= TOLERANCE)) fail_msg("%s: %s: off by %.3g of the largest", w->s->name, what, error);
}

static void expect_out(const worker *w, const char *what, int32_t phase, int32_t row, const char *tensor, int32_t at)
{
    const spec_view v = w->exec->kind->tap(w->exec, phase, 0);
    const float *want = support_golden_find(&w->s->g, tensor, NULL, NULL);
    expect_row(w, what, (const float *)v.data + (size_t)row * (size_t)v.ld, want + (size_t)at * (size_t)w->dim, w->dim);
}

/* With token info: the reference's row, which is without, and that of the collapsed table for `token`. */
static void expect_logits(const worker *w, int32_t row, int32_t at, int32_t token)
{
    const int32_t ld = w->exec->n_logit;
    int64_t cols;
    float want[MOST];
    const float *plain = support_golden_find(&w->s->g, "chain_logits", NULL, &cols), *logits = w->exec->logits;
    const model_token_info *info = w->s->head->intake->info;
    const float *table = info ? support_golden_find(&w->s->g, "info_table", NULL, NULL) : NULL;
    assert_int_equal(ld, cols);
    for (int32_t i = 0; i < ld; i++)
        want[i] = plain[(size_t)at * (size_t)ld + (size_t)i] + (table ? table[(size_t)token * (size_t)ld + (size_t)i] : 0);
    expect_row(w, "logits of the chain", logits + (size_t)row * (size_t)ld, want, ld);
}

/* n_prompt pairs by prefill, the others as a chain in front of a draft; then the golden's chain, node by node, beside another branch. */
static void check_network(const worker *w, int32_t n_prompt)
{
    const scene *s = w->s;
    const int32_t n_pair = s->n_ids - 1, slot = 1;
    const int32_t *drafts = support_golden_find(&s->g, "chain_tokens", NULL, NULL);
    const speci_prefill_hooks hooks = { .give = give_prompt, .arg = (void *)(uintptr_t)w };
    spec_tree tree;
    OK(spec_tree_alloc(&tree, N_NODE, NULL));
    w->exec->kind->begin(w->exec, slot);
    OK(w->exec->kind->prefill(w->exec, slot, s->ids + 1, (size_t)n_prompt, &hooks));
    for (int32_t i = 0; i < n_prompt; i++) expect_out(w, "pairs, prefilled", SPEC_PHASE_PREFILL, i, "context", i);
    for (int32_t i = n_prompt; i < n_pair; i++) (void)spec_tree_add(&tree, tree.n - 1, s->ids[i + 1], 1);
    give(w, 0, n_prompt, n_pair - n_prompt);
    speci_exec_input in = { .slot = slot, .tree = &tree };
    OK(w->exec->kind->forward(w->exec, &in, 1, NULL, NULL));
    for (int32_t i = n_prompt; i < n_pair; i++) expect_out(w, "pairs", SPEC_PHASE_DECODE, i - n_prompt, "context", i);
    int32_t row = tree.n - 1, node = row;
    expect_out(w, "chain", SPEC_PHASE_DECODE, row, "chain", 0);
    expect_logits(w, row, 0, s->ids[n_pair]);
    for (int32_t i = 1; i < 6; i++) {
        in.n_fed = tree.n;
        (void)spec_tree_add(&tree, node, (drafts[i - 1] + 1) % s->head->n_vocab, 1); /* it changes nothing of the others */
        node = spec_tree_add(&tree, node, drafts[i - 1], 1);
        OK(w->exec->kind->forward(w->exec, &in, 1, NULL, NULL));
        expect_out(w, "chain", SPEC_PHASE_DECODE, 1, "chain", i);
        expect_logits(w, 1, i, drafts[i - 1]);
    }
    spec_tree_free(&tree, NULL);
    w->exec->kind->end(w->exec, slot);
}

static void network(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_CASE; i++) {
        scene s;
        worker w;
        open_scene(&s, names[i]);
        for (int32_t collapsed = 0; collapsed <= speci_head_has_token_info(s.head); collapsed++) {
            open_worker(&w, &s, collapsed);
            check_network(&w, 0);
            check_network(&w, 12);
            close_worker(&w);
        }
        close_scene(&s);
    }
}

/* --- trees, from the session's own rows --- */

/* Is the golden's path in the tree? */
static bool has_path(const spec_tree *t, const json_t *path)
{
    int32_t node = 0;
    for (size_t i = 0; i < json_array_size(path) && node >= 0; i++) {
        const int32_t token = (int32_t)json_integer_value(json_array_get(path, i));
        int32_t child = -1;
        for (int32_t c = node + 1; c < t->n; c++)
            if (t->parent[c] == node && t->token[c] == token) child = c;
        node = child;
    }
    return node >= 0;
}

static void expect_tree(const scene *s, const char *what, const spec_tree *t, const json_t *nodes)
{
    assert_int_equal(t->n - 1, json_array_size(nodes));
    for (size_t i = 0; i < json_array_size(nodes); i++)
        if (!has_path(t, json_object_get(json_array_get(nodes, i), "path")))
            fail_msg("%s, %s: node %zu of the reference's tree is missing", s->name, what, i);
}

/* `parts`: how the ids come: at once, or in prompts that are appended. */
static void check_tree(const scene *s, const json_t *tree, int32_t parts, spec_token_info info)
{
    char text[64];
    const json_t *levels = json_object_get(tree, "depth") ? json_object_get(tree, "depth") : json_object_get(tree, "rows");
    const int k = (int)json_integer_value(json_object_get(tree, "k")), depth = (int)json_integer_value(levels);
    snprintf(text, sizeof text, "eagle2:%d,%d,%d", k, 1 + (int)json_integer_value(json_object_get(tree, "budget")), depth);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *session;
    const spec_tree *drafted;
    int32_t seq;
    dp.tree = text, dp.token_info = info, sp.n_ctx = 128;
    OK(spec_drafter_from_model(&d, s->head, &dp));
    OK(spec_session_open(&session, s->target, d, &sp));
    const int32_t first = parts > 1 ? s->n_ids / 2 : s->n_ids;
    OK(add_endless(session, &seq, s->ids, (size_t)first, NULL));
    if (first < s->n_ids) OK(spec_sequence_append(session, seq, s->ids + first, (size_t)(s->n_ids - first), NULL));
    for (int32_t i = 0; i < 2; i++) { /* twice, since nobody has scored the first */
        OK(spec_draft(session, &drafted, &seq, 1));
        expect_tree(s, text, drafted, json_object_get(tree, "nodes"));
    }
    spec_session_close(session);
    spec_drafter_close(d);
}

static void trees(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_CASE; i++) {
        scene s;
        size_t k;
        const json_t *tree;
        open_scene(&s, names[i]);
        json_array_foreach(json_object_get(s.told, "trees"), k, tree)
        {
            const char *kind = json_string_value(json_object_get(tree, "kind"));
            if (strcmp(kind, "eagle") != 0 && strcmp(kind, "token_info") != 0) continue;
            check_tree(&s, tree, 1, SPEC_TOKEN_INFO_FACTORED);
            check_tree(&s, tree, 2, SPEC_TOKEN_INFO_FACTORED);
            if (speci_head_has_token_info(s.head)) check_tree(&s, tree, 1, SPEC_TOKEN_INFO_COLLAPSED);
        }
        close_scene(&s);
    }
}

/* --- drafts once more, from rows that a rejection has left --- */

static bool same_path(const json_t *a, const json_t *b) { return json_equal(json_object_get(a, "path"), json_object_get(b, "path")); }

/* The nodes of both, each once. */
static json_t *united(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    size_t i, k;
    const json_t *x, *y;
    json_array_foreach(b, i, x)
    {
        bool there = false;
        json_array_foreach(a, k, y) there = there || same_path(x, y);
        if (!there) json_array_append(all, (json_t *)(uintptr_t)x);
    }
    return all;
}

/* The drafts of a step are accepted as the golden says, whatever the target thinks of them; then its next tree. */
static void check_again(const scene *s, const json_t *fused, int32_t n_resample, int32_t left, const json_t *want)
{
    const json_t *accepted = json_object_get(fused, "accepted");
    int32_t token[16], parent[16], path[16], seq;
    const int32_t n = 1 + (int32_t)json_array_size(accepted);
    const spec_tree scored = { .n = n, .cap = 16, .token = token, .parent = parent, .kind = SPEC_TREE_DETERMINISTIC };
    const spec_tree *trees = &scored, *drafted;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *session;
    dp.tree = "eagle2:3,13,6", dp.n_resample = n_resample, dp.resample_left = left, sp.n_ctx = 128, sp.n_seq = 2;
    OK(spec_drafter_from_model(&d, s->head, &dp));
    OK(spec_session_open(&session, s->target, d, &sp));
    OK(add_endless(session, &seq, s->ids, 5, NULL)); /* another one beside it */
    OK(add_endless(session, &seq, s->ids, (size_t)s->n_ids, NULL));
    OK(spec_draft(session, &drafted, &seq, 1));
    for (int32_t i = 0; i < n; i++) {
        token[i] = i == 0 ? s->ids[s->n_ids - 1] : (int32_t)json_integer_value(json_array_get(accepted, (size_t)i - 1));
        parent[i] = i - 1, path[i] = i;
    }
    OK(spec_score(session, &seq, 1, &trees));
    OK(spec_commit(session, seq, path, n, (int32_t)json_integer_value(json_object_get(fused, "bonus"))));
    OK(spec_draft(session, &drafted, &seq, 1));
    expect_tree(s, "drafts once more", drafted, want);
    spec_session_close(session);
    spec_drafter_close(d);
}

static const json_t *likeliest(const json_t *nodes)
{
    const json_t *best = json_array_get(nodes, 0), *node;
    size_t i;
    json_array_foreach(nodes, i, node)
        if (json_number_value(json_object_get(node, "score")) > json_number_value(json_object_get(best, "score"))) best = node;
    return best;
}

/* Of two sequences the second one drafts from the rows that are left alone, beside a fresh draft of the first; and
 * asked for by itself, from a chain of its own. */
static void check_across(const scene *s, const json_t *fused, const json_t *resampled, const json_t *fresh)
{
    const json_t *accepted = json_object_get(fused, "accepted");
    int32_t token[16], parent[16], path[16], seqs[2];
    const int32_t n = 1 + (int32_t)json_array_size(accepted), root = 0;
    const int32_t bonus = (int32_t)json_integer_value(json_object_get(fused, "bonus"));
    const spec_tree *trees[2], *drafted[2];
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *session;
    spec_tree scored[2] = { { .n = 1, .cap = 16, .token = &token[15], .parent = &parent[15] },
                            { .n = n, .cap = 16, .token = token, .parent = parent } };
    dp.tree = "eagle2:3,9,6", dp.n_resample = 8, dp.resample_across = 1, sp.n_ctx = 128, sp.n_seq = 2;
    OK(spec_drafter_from_model(&d, s->head, &dp));
    OK(spec_session_open(&session, s->target, d, &sp));
    for (int32_t i = 0; i < 2; i++) OK(add_endless(session, &seqs[i], s->ids, (size_t)(i == 0 ? 5 : s->n_ids), NULL));
    OK(spec_draft(session, drafted, seqs, 2));
    token[15] = s->ids[4], parent[15] = -1;
    for (int32_t i = 0; i < n; i++) {
        token[i] = i == 0 ? s->ids[s->n_ids - 1] : (int32_t)json_integer_value(json_array_get(accepted, (size_t)i - 1));
        parent[i] = i - 1, path[i] = i;
    }
    for (int32_t i = 0; i < 2; i++) trees[i] = &scored[i];
    OK(spec_score(session, seqs, 2, trees));
    OK(spec_commit(session, seqs[0], &root, 1, 3));
    OK(spec_commit(session, seqs[1], path, n, bonus));
    for (int32_t i = 0; i < 2; i++) { /* twice, since nobody has scored the first */
        OK(spec_draft(session, drafted, seqs, 2));
        if (json_array_size(resampled) > 0) expect_tree(s, "rows left, across sequences", drafted[1], resampled);
        assert_true(drafted[0]->n > 1);
    }
    OK(spec_draft(session, drafted, &seqs[1], 1)); /* alone, as it goes without the other one */
    if (!has_path(drafted[0], json_object_get(likeliest(fresh), "path"))) fail_msg("%s: alone, it has another chain", s->name);
    spec_session_close(session);
    spec_drafter_close(d);
}

static void once_more(void **state)
{
    int32_t n = 0;
    (void)state;
    for (int32_t i = 0; i < N_CASE; i++) {
        if (strncmp(names[i], "lyanna", 6) != 0) continue;
        scene s;
        size_t k;
        const json_t *tree, *resampled = NULL;
        open_scene(&s, names[i]);
        json_array_foreach(json_object_get(s.told, "trees"), k, tree)
        {
            const char *kind = json_string_value(json_object_get(tree, "kind"));
            if (strcmp(kind, "resampled") == 0) resampled = json_object_get(tree, "nodes");
            if (strcmp(kind, "fused") != 0) continue;
            const json_t *fresh = json_object_get(tree, "fresh");
            const int32_t n_left = 5 - (int32_t)json_array_size(json_object_get(tree, "accepted"));
            json_t *all = united(fresh, resampled);
            check_again(&s, tree, 4, 0, json_object_get(tree, "nodes"));
            check_again(&s, tree, 8, 0, all);
            check_again(&s, tree, 8, 2, n_left > 2 ? all : fresh);
            check_again(&s, tree, 0, 0, fresh);
            check_across(&s, tree, resampled, fresh);
            json_decref(all);
            n++;
        }
        close_scene(&s);
    }
    assert_true(n > 10);
}

/* --- what is refused, by name --- */

static spec_status open_session(const char *target, const char *head, const char *changes, spec_dtype dtype)
{
    char dir[64], path[512];
    char *config = support_json_with(head, "config.json", changes);
    const variant_file file = { "config.json", config };
    spec_model *t = support_model(backend, path_of(path, sizeof path, TARGETS, target, ""), SPEC_DTYPE_F32), *h = NULL;
    spec_drafter *d = NULL;
    spec_session *s = NULL;
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.dtype = dtype;
    support_variant(dir, head, &file, 1);
    spec_status status = spec_model_open(&h, backend, dir, &p);
    if (status == SPEC_OK) status = spec_drafter_from_model(&d, h, NULL);
    if (status == SPEC_OK) status = spec_session_open(&s, t, d, NULL);
    support_variant_remove(dir);
    free(config);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(h);
    spec_model_close(t);
    return status;
}

static void refusals(void **state)
{
    static const struct {
        const char *target, *head, *changes;
        spec_dtype dtype;
        spec_status status;
        const char *says;
    } wrong[] = {
        { "law8-target", "eagle2-bamba", "{}", 0, SPEC_E_INVALID, "reads hidden rows of 32 columns" },
        { "bamba", "eagle3-law8", "{}", 0, SPEC_E_INVALID, "reads hidden rows of 16 columns" },
        { "bamba", "eagle3-bamba", "{\"vocab_size\": 97}", 0, SPEC_E_INVALID, "is for 97 ids" },
        { "bamba", "eagle3-bamba", "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, 2, 30]}}", 0, SPEC_E_INVALID,
          "enters layer 30" },
        { "bamba", "eagle3-bamba", "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, 2]}}", 0, SPEC_E_FORMAT,
          "has 2 entries, expected 3" },
        { "bamba", "eagle3-bamba", "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, 2, -1]}}", 0, SPEC_E_FORMAT,
          "ids[2] is -1" },
        { "bamba", "eagle2-bamba", "{\"tie_word_embeddings\": true}", 0, SPEC_E_INVALID, "tie_word_embeddings" },
        { "bamba", "eagle2-bamba", "{}", SPEC_DTYPE_BF16, SPEC_E_INVALID, "open the head with the target's dtype" },
        { "bamba", "eagle2-bamba", "{\"bias\": false}", 0, SPEC_E_UNSUPPORTED, "fc.bias" },
        { "bamba", "eagle2-bamba", "{\"num_key_value_heads\": 4}", 0, SPEC_E_FORMAT, "layers.0.self_attn.k_proj.weight" },
        { "bamba", "eagle3-bamba", "{\"draft_vocab_size\": 47}", 0, SPEC_E_FORMAT, "d2t" },
        { "bamba", "eagle3-bamba", "{\"target_hidden_size\": 33}", 0, SPEC_E_FORMAT, "fc.weight" },
        { "bamba", "eagle3-speculators", "{\"norm_before_fc\": false}", 0, SPEC_E_UNSUPPORTED, "input_norm" },
        { "bamba", "lyanna-bamba", "{\"token_info_hot\": 39}", 0, SPEC_E_FORMAT, "token_info.hot_ids" },
        { "bamba", "lyanna-bamba", "{\"token_info_rank\": 0}", 0, SPEC_E_UNSUPPORTED, "token_info" },
        { "bamba", "lyanna-bamba", "{\"vocab_size\": 60}", 0, SPEC_E_FORMAT, "expected ascending ids below 60" },
        { "llama2", "eagle3-llama2", "{\"draft_vocab_size\": 95}", 0, SPEC_E_FORMAT, "d2t is missing" },
    };
    char path[512];
    spec_model *h;
    spec_session *s;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        path_of(path, sizeof path, HEADS, wrong[i].head, "");
        FAILS(open_session(wrong[i].target, path, wrong[i].changes, wrong[i].dtype), wrong[i].status, wrong[i].says);
    }
    OK(open_session("bamba", path_of(path, sizeof path, HEADS, "eagle3-bamba", ""), "{\"eagle_config\": null}", 0));
    OK(open_session("bamba", path, "{\"architectures\": [\"LlamaForCausalLM\"]}", 0)); /* as the first that were published say */
    OK(open_session("bamba", path, "{\"num_hidden_layers\": 40}", 0));
    h = support_model(backend, path, SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d;
    dp.n_resample = 4;
    FAILS(spec_drafter_from_model(&d, h, &dp), SPEC_E_INVALID, "whose rows are a chain");
    dp.n_resample = 0, dp.resample_across = 1;
    FAILS(spec_drafter_from_model(&d, h, &dp), SPEC_E_INVALID, "needs n_resample");
    dp.resample_across = 0, dp.token_info = SPEC_TOKEN_INFO_COLLAPSED;
    FAILS(spec_drafter_from_model(&d, h, &dp), SPEC_E_INVALID, "this has none");
    dp.token_info = 7;
    FAILS(spec_drafter_from_model(&d, h, &dp), SPEC_E_INVALID, "no form 7");
    dp.token_info = SPEC_TOKEN_INFO_FACTORED;
    dp.n_resample = -1;
    FAILS(spec_drafter_from_model(&d, h, &dp), SPEC_E_INVALID, "n_resample");
    FAILS(spec_session_open(&s, h, NULL, NULL), SPEC_E_INVALID, "drafts for another model");
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(h, &info, 8));
    assert_string_equal(info.family, "eagle3");
    assert_non_null(strstr(info.head, "enters layers 2, 2, 1; drafts 48 ids"));
    spec_model_close(h);
}

/* A backend may lack the operation that collapsed token info needs. */
static void without_bias(void **state)
{
    spec_backend *const tested = backend;
    spec_backend_ops ops = *backend->ops;
    scene s;
    (void)state;
    ops.op[SPEC_OP_BIAS] = (spec_backend_op){ .kind = SPEC_OP_BIAS };
    OK(spec_backend_open_ops(&backend, &ops, NULL, NULL));
    open_scene(&s, "lyanna-bamba");
    for (int32_t info = SPEC_TOKEN_INFO_COLLAPSED; info >= SPEC_TOKEN_INFO_FACTORED; info--) {
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        spec_drafter *d;
        spec_session *session = NULL;
        dp.token_info = (spec_token_info)info;
        OK(spec_drafter_from_model(&d, s.head, &dp));
        if (info == SPEC_TOKEN_INFO_FACTORED) OK(spec_session_open(&session, s.target, d, NULL));
        else FAILS(spec_session_open(&session, s.target, d, NULL), SPEC_E_UNSUPPORTED, "has no operation bias");
        spec_session_close(session);
        spec_drafter_close(d);
    }
    close_scene(&s);
    spec_backend_close(backend);
    backend = tested;
}

/* --- which layers an EAGLE-3 head reads --- */

static spec_model *head_with(const char *changes, spec_head_layers how)
{
    char dir[64], path[512];
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    spec_model *h;
    char *config = support_json_with(path_of(path, sizeof path, HEADS, "eagle3-bamba", ""), "config.json", changes);
    const variant_file file = { "config.json", config };
    p.head_layers = how;
    support_variant(dir, path, &file, 1);
    OK(spec_model_open(&h, backend, dir, &p));
    support_variant_remove(dir);
    free(config);
    return h;
}

/* Of bamba's four layers the rule takes 2, 2 and 1; 4 is what leaves the final norm. */
static void layers(void **state)
{
    static const struct {
        const char *changes;
        spec_head_layers how;
        int32_t want[3];
        const char *says;
    } table[] = {
        { "{\"eagle_config\": null}", SPEC_HEAD_LAYERS_RULE, { 2, 2, 1 }, "enters layers 2, n / 2 and n - 3 of n; drafts" },
        { "{\"eagle_config\": null}", SPEC_HEAD_LAYERS_FILE, { 2, 2, 1 }, "enters layers 2, n / 2 and n - 3 of n; drafts" },
        { "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, 1, 0]}}", SPEC_HEAD_LAYERS_RULE, { 2, 2, 1 },
          "enters layers 2, n / 2 and n - 3 of n (not what the file says: 1, 1, 0); drafts" },
        { "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, 1, 0]}}", SPEC_HEAD_LAYERS_FILE, { 1, 1, 0 },
          "enters layers 1, 1, 0; drafts" },
        { "{\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [0, 3, 4], \"layer_ids_are_inputs\": true}}", SPEC_HEAD_LAYERS_RULE,
          { 0, 3, 4 }, "enters layers 0, 3, 4; drafts" },
        { "{\"eagle_config\": null, \"eagle_aux_hidden_state_layer_ids\": [3, 2, 1], \"layer_ids_are_inputs\": true}",
          SPEC_HEAD_LAYERS_RULE, { 3, 2, 1 }, "enters layers 3, 2, 1; drafts" },
        { "{\"eagle_config\": null, \"eagle_aux_hidden_state_layer_ids\": [3, 2, 1], \"layer_ids_are_inputs\": false}",
          SPEC_HEAD_LAYERS_RULE, { 2, 2, 1 }, "(not what the file says: 3, 2, 1)" },
    };
    char path[512];
    spec_model *target = support_model(backend, path_of(path, sizeof path, TARGETS, "bamba", ""), SPEC_DTYPE_F32), *h;
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    (void)state;
    assert_int_equal(target->n_layer, 4);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        spec_tap taps[MODEL_MAX_TAP];
        spec_model_info info = { .struct_size = sizeof info };
        h = head_with(table[i].changes, table[i].how);
        OK(speci_head_check(h, target));
        speci_head_taps(h, target, taps);
        for (int32_t k = 0; k < 3; k++) {
            assert_int_equal(taps[k].where, table[i].want[k] == 4 ? SPEC_TAP_NORM : SPEC_TAP_LAYER);
            if (table[i].want[k] < 4) assert_int_equal(taps[k].layer, table[i].want[k]);
        }
        OK(spec_model_get_info(h, &info, 8));
        if (!strstr(info.head, table[i].says)) fail_msg("case %zu: \"%s\" is not in \"%s\"", i, table[i].says, info.head);
        spec_model_close(h);
    }
    p.head_layers = 2;
    FAILS(spec_model_open(&h, backend, path_of(path, sizeof path, HEADS, "eagle3-bamba", ""), &p), SPEC_E_INVALID, "no way 2");
    spec_model_close(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(network), cmocka_unit_test(trees), cmocka_unit_test(once_more),
                                        cmocka_unit_test(refusals), cmocka_unit_test(without_bias),
                                        cmocka_unit_test(layers) };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
