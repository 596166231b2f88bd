/* test_null_arguments.c - NULL in place of an object, an array or a result is E_INVALID with a sentence that names the call, and
 * never a crash; what returns no status gives nothing. Each public function with each pointer that is not optional. */
#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "tests/support_decode.h"

#include <string.h>

static void refused(spec_status status, const char *call)
{
    if (status != SPEC_E_INVALID) fail_msg("%s gives %s", call, spec_status_name(status));
    if (strlen(spec_last_error()) < 8) fail_msg("%s has no sentence", call);
}
static void nothing(bool is_nothing, const char *call)
{
    if (!is_nothing) fail_msg("%s gives something", call);
}

#define REFUSED(call) refused((call), #call)
#define NOTHING(call) nothing(!(call), #call)

/* What every call could be given. */
typedef struct things {
    spec_backend *be;
    spec_model *model;
    spec_drafter *drafter;
    spec_session *session;
    spec_builder *builder;
    const spec_tokenizer *tokenizer;
    spec_tree tree, other;
    int32_t seq;
} things;

static int take(void *user_data, const void *data, size_t n) { return (void)user_data, (void)data, (void)n, 0; }
static int give(void *user_data, void *data, size_t n) { return (void)user_data, (void)data, (void)n, 1; }

static spec_status no_draft(void *user_data, spec_draft_request *requests, int32_t n)
{
    return (void)user_data, (void)requests, (void)n, SPEC_OK;
}

static void open_things(things *t)
{
    static const int32_t prompt[] = { 5, 7, 9 };
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    t->be = support_backend();
    t->model = support_model(t->be, DEMO_TARGET, SPEC_DTYPE_F32);
    t->tokenizer = spec_model_tokenizer(t->model);
    p.tree = "product:2,1";
    OK(spec_drafter_from_model(&t->drafter, t->model, &p));
    OK(spec_session_open(&t->session, t->model, t->drafter, NULL));
    OK(spec_sequence_add(t->session, &t->seq, prompt, 3, NULL));
    OK(spec_builder_open(&t->builder, "chain:3", NULL));
    OK(spec_tree_alloc(&t->tree, 8, NULL));
    OK(spec_tree_alloc(&t->other, 8, NULL));
    assert_int_equal(spec_tree_add(&t->tree, -1, 1, 1), 0);
    assert_int_equal(spec_tree_add(&t->other, -1, 1, 1), 0);
}

static void close_things(things *t)
{
    spec_tree_free(&t->tree, NULL);
    spec_tree_free(&t->other, NULL);
    spec_builder_close(t->builder);
    spec_session_close(t->session);
    spec_drafter_close(t->drafter);
    spec_model_close(t->model);
    spec_backend_close(t->be);
}

static void check_objects(void **state)
{
    things t;
    spec_backend *be;
    spec_model *m;
    spec_drafter *d;
    spec_session *s;
    spec_model_info info = { .struct_size = sizeof info };
    spec_memory memory = { .struct_size = sizeof memory };
    spec_request request = SPEC_REQUEST_INIT;
    spec_drafter_stats stats = SPEC_DRAFTER_STATS_INIT;
    const spec_model_ops model_ops = SPEC_MODEL_OPS_INIT;
    (void)state;
    open_things(&t);
    REFUSED(spec_backend_open(NULL, "cpu", NULL));
    REFUSED(spec_backend_open(&be, NULL, NULL));
    REFUSED(spec_backend_open_ops(NULL, NULL, NULL, NULL));
    REFUSED(spec_backend_open_ops(&be, NULL, NULL, NULL));
    REFUSED(spec_backend_list(NULL, NULL, NULL));
    NOTHING(spec_backend_name(NULL)[0]);
    REFUSED(spec_model_open(NULL, t.be, DEMO_TARGET, NULL));
    REFUSED(spec_model_open(&m, NULL, DEMO_TARGET, NULL));
    REFUSED(spec_model_open(&m, t.be, NULL, NULL));
    REFUSED(spec_model_convert(NULL, DEMO_TARGET, "/no/such/folder/m.gguf", NULL));
    REFUSED(spec_model_convert(t.be, NULL, "/no/such/folder/m.gguf", NULL));
    REFUSED(spec_model_convert(t.be, DEMO_TARGET, NULL, NULL));
    NOTHING(spec_model_tokenizer(NULL));
    REFUSED(spec_model_get_info(NULL, &info, 1));
    REFUSED(spec_model_get_info(t.model, NULL, 1));
    REFUSED(spec_request_from_model(NULL, t.model, NULL));
    REFUSED(spec_request_from_model(&request, NULL, NULL));
    REFUSED(spec_drafter_from_model(NULL, t.model, NULL));
    REFUSED(spec_drafter_from_model(&d, NULL, NULL));
    REFUSED(spec_drafter_open(NULL, "ngram", NULL));
    REFUSED(spec_drafter_open(&d, NULL, NULL));
    REFUSED(spec_drafter_from_ops(&d, NULL, NULL));
    REFUSED(spec_drafter_from_ops(NULL, &(spec_drafter_ops){ .struct_size = sizeof(spec_drafter_ops), .draft = no_draft }, NULL));
    REFUSED(spec_model_from_ops(NULL, t.be, &model_ops));
    REFUSED(spec_model_from_ops(&m, NULL, &model_ops));
    REFUSED(spec_model_from_ops(&m, t.be, NULL));
    REFUSED(spec_session_get_drafter_stats(NULL, &stats, 0));
    REFUSED(spec_session_get_drafter_stats(t.session, NULL, 0));
    REFUSED(spec_drafter_save(NULL, "past"));
    REFUSED(spec_drafter_save(t.drafter, NULL));
    REFUSED(spec_drafter_load(NULL, "past"));
    REFUSED(spec_drafter_load(t.drafter, NULL));
    NOTHING(spec_drafter_n_node(NULL) > 1); /* a root alone */
    REFUSED(spec_session_open(NULL, t.model, NULL, NULL));
    REFUSED(spec_session_open(&s, NULL, NULL, NULL));
    REFUSED(spec_session_estimate(NULL, t.model, NULL, NULL));
    REFUSED(spec_session_estimate(&memory, NULL, NULL, NULL));
    close_things(&t);
}

/* After an error what `out` points at is NULL, whatever stood there: to close it is safe. */
#define GIVES_NULL(call, object) ((object) = NOWHERE, REFUSED(call), nothing(!(object), #call))
#define NOWHERE ((void *)(uintptr_t)16)

static void check_out(void **state)
{
    things t;
    spec_backend *be;
    spec_tokenizer *tokenizer;
    spec_model *m;
    spec_drafter *d;
    spec_session *s;
    spec_builder *b;
    spec_corpus *corpus;
    const spec_drafter_ops drafter_ops = { .struct_size = sizeof drafter_ops };
    const spec_builder_ops builder_ops = { .struct_size = sizeof builder_ops };
    const spec_drafter_params tree = { .struct_size = sizeof tree, .tree = "none such" };
    const spec_model_ops model_ops = SPEC_MODEL_OPS_INIT;
    (void)state;
    open_things(&t);
    GIVES_NULL(spec_backend_open(&be, NULL, NULL), be);
    GIVES_NULL(spec_backend_open_ops(&be, NULL, NULL, NULL), be);
#ifndef SPEC_NO_TOKENIZER
    GIVES_NULL(spec_tokenizer_open(&tokenizer, NULL, NULL), tokenizer);
#else
    (void)tokenizer;
#endif
    GIVES_NULL(spec_model_open(&m, NULL, DEMO_TARGET, NULL), m);
    GIVES_NULL(spec_model_from_ops(&m, NULL, &model_ops), m);
    GIVES_NULL(spec_model_from_ops(&m, t.be, NULL), m);
    GIVES_NULL(spec_model_from_ops(&m, t.be, &model_ops), m);
    GIVES_NULL(spec_drafter_from_model(&d, NULL, NULL), d);
    GIVES_NULL(spec_drafter_from_model(&d, t.model, &tree), d);
    GIVES_NULL(spec_drafter_open(&d, "none such", NULL), d);
    GIVES_NULL(spec_drafter_from_ops(&d, NULL, NULL), d);
    GIVES_NULL(spec_drafter_from_ops(&d, &drafter_ops, NULL), d);
    GIVES_NULL(spec_session_open(&s, NULL, NULL, NULL), s);
    GIVES_NULL(spec_builder_open(&b, "none such", NULL), b);
    GIVES_NULL(spec_builder_from_ops(&b, &builder_ops, NULL), b);
    GIVES_NULL(spec_corpus_open(&corpus, NULL, NULL), corpus);
    close_things(&t);
}

static void check_corpora(void **state)
{
    spec_corpus *corpus;
    const spec_corpus_params of_ids = { .struct_size = sizeof of_ids, .n_vocab = 8 };
    (void)state;
    REFUSED(spec_corpus_open(NULL, "/tmp/none", &of_ids));
    REFUSED(spec_corpus_open(&corpus, NULL, &of_ids));
    REFUSED(spec_corpus_open(&corpus, "/tmp/none", NULL));
    OK(spec_corpus_open(&corpus, "/tmp/none", &of_ids));
    REFUSED(spec_corpus_add_text(NULL, "a", 1));
    REFUSED(spec_corpus_add_text(corpus, NULL, 1));
    REFUSED(spec_corpus_add_ids(NULL, NULL, 0));
    REFUSED(spec_corpus_add_ids(corpus, NULL, 1));
    REFUSED(spec_corpus_end_text(NULL));
    REFUSED(spec_corpus_write(NULL, NULL));
    spec_corpus_close(corpus);
    spec_corpus_close(NULL);
}

/* What has nothing to do does nothing. */
static void check_nothing(void **state)
{
    (void)state;
    spec_session_cancel(NULL);
    spec_session_close(NULL);
    spec_drafter_close(NULL);
    spec_model_close(NULL);
    spec_backend_close(NULL);
    spec_builder_close(NULL);
    spec_tokenizer_close(NULL);
    spec_result_free(NULL);
    spec_drafter_list(NULL, NULL);
    spec_builder_list(NULL, NULL);
    spec_verify_rule_list(NULL, NULL);
}

static void check_text(void **state)
{
#ifdef SPEC_NO_TOKENIZER
    (void)state;
    skip(); /* its functions say that they are not there */
#else
    things t;
    char text[16];
    int32_t ids[4] = { 1 };
    size_t n;
    spec_tokenizer *tokenizer;
    spec_text_stream stream = { 0 };
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    (void)state;
    open_things(&t);
    REFUSED(spec_tokenizer_open(NULL, DEMO_TARGET, NULL));
    REFUSED(spec_tokenizer_open(&tokenizer, NULL, NULL));
    REFUSED(spec_tokenizer_get_info(NULL, &info));
    REFUSED(spec_tokenizer_get_info(t.tokenizer, NULL));
    n = 1;
    NOTHING(spec_tokenizer_piece(NULL, &n, 1));
    assert_int_equal(n, 0);
    NOTHING(spec_tokenizer_piece(t.tokenizer, NULL, 1));
    NOTHING(spec_tokenizer_is_special(NULL, 1));
    REFUSED(spec_tokenizer_encode(NULL, ids, 4, &n, "a", 1, 0));
    REFUSED(spec_tokenizer_encode(t.tokenizer, NULL, 4, &n, "a", 1, 0));
    REFUSED(spec_tokenizer_encode(t.tokenizer, ids, 4, NULL, "a", 1, 0));
    REFUSED(spec_tokenizer_encode(t.tokenizer, ids, 4, &n, NULL, 1, 0));
    REFUSED(spec_tokenizer_decode(NULL, text, 16, &n, ids, 1, 0));
    REFUSED(spec_tokenizer_decode(t.tokenizer, NULL, 16, &n, ids, 1, 0));
    REFUSED(spec_tokenizer_decode(t.tokenizer, text, 16, NULL, ids, 1, 0));
    REFUSED(spec_tokenizer_decode(t.tokenizer, text, 16, &n, NULL, 1, 0));
    REFUSED(spec_text_stream_push(NULL, text, 16, &n, t.tokenizer, 1, 0));
    REFUSED(spec_text_stream_push(&stream, text, 16, &n, NULL, 1, 0));
    REFUSED(spec_text_stream_push(&stream, NULL, 16, &n, t.tokenizer, 1, 0));
    REFUSED(spec_text_stream_push(&stream, text, 16, NULL, t.tokenizer, 1, 0));
    REFUSED(spec_text_stream_end(NULL, text, 16, &n));
    REFUSED(spec_text_stream_end(&stream, NULL, 16, &n));
    REFUSED(spec_text_stream_end(&stream, text, 16, NULL));
    close_things(&t);
#endif
}

static void check_sequences(void **state)
{
    things t;
    const int32_t ids[] = { 1, 2 };
    const int32_t *got;
    size_t n;
    int32_t seq;
    spec_request params = SPEC_REQUEST_INIT;
    spec_session_info info = SPEC_STRUCT_INIT(spec_session_info);
    spec_result result = SPEC_RESULT_INIT;
    spec_drafter_stats stats = SPEC_DRAFTER_STATS_INIT;
    spec_cost_profile profile = { .struct_size = sizeof profile };
    (void)state;
    open_things(&t);
    REFUSED(spec_sequence_add(NULL, &seq, ids, 2, NULL));
    REFUSED(spec_sequence_add(t.session, NULL, ids, 2, NULL));
    REFUSED(spec_sequence_add(t.session, &seq, NULL, 2, NULL));
    REFUSED(spec_sequence_remove(NULL, 0));
    REFUSED(spec_sequence_set_request(NULL, 0, NULL));
    REFUSED(spec_sequence_add_text(NULL, &seq, "a", 1, NULL));
    REFUSED(spec_sequence_add_text(t.session, NULL, "a", 1, NULL));
    REFUSED(spec_sequence_add_text(t.session, &seq, NULL, 1, NULL));
    REFUSED(spec_sequence_append_text(NULL, t.seq, "a", 1, NULL));
    REFUSED(spec_sequence_append_text(t.session, t.seq, NULL, 1, NULL));
    REFUSED(spec_sequence_append(NULL, 0, ids, 1, NULL));
    REFUSED(spec_sequence_append(t.session, t.seq, NULL, 1, NULL));
    REFUSED(spec_session_get_info(NULL, &info));
    REFUSED(spec_session_get_info(t.session, NULL));
    REFUSED(spec_generate_more(NULL, &result, 0, "a", 1, NULL));
    REFUSED(spec_generate_more(t.session, NULL, t.seq, "a", 1, NULL));
    REFUSED(spec_generate_more(t.session, &result, t.seq, NULL, 1, NULL));
    spec_struct_init(NULL, 8);
    assert_int_equal(spec_struct_size(NULL), 0);
    REFUSED(spec_sequence_ids(NULL, &got, &n, 0));
    REFUSED(spec_sequence_ids(t.session, NULL, &n, t.seq));
    REFUSED(spec_sequence_ids(t.session, &got, NULL, t.seq));
    REFUSED(spec_sequence_fork(NULL, &seq, 0));
    REFUSED(spec_sequence_fork(t.session, NULL, t.seq));
    REFUSED(spec_sequence_seed(NULL, 0, 1));
    REFUSED(spec_sequence_save(NULL, 0, take, NULL));
    REFUSED(spec_sequence_save(t.session, t.seq, NULL, NULL));
    REFUSED(spec_sequence_restore(NULL, &seq, give, NULL));
    REFUSED(spec_sequence_restore(t.session, NULL, give, NULL));
    REFUSED(spec_sequence_restore(t.session, &seq, NULL, NULL));
    REFUSED(spec_generate(NULL, &result, "a", 1, &params));
    REFUSED(spec_generate(t.session, &result, NULL, 1, &params));
    REFUSED(spec_generate(t.session, NULL, "a", 1, &params));
    REFUSED(spec_generate_ids(NULL, &result, ids, 2, &params));
    REFUSED(spec_generate_ids(t.session, &result, NULL, 2, &params));
    REFUSED(spec_generate_ids(t.session, NULL, ids, 2, &params));
    REFUSED(spec_session_profile(NULL, &profile));
    REFUSED(spec_session_profile(t.session, NULL));
    REFUSED(spec_session_get_drafter_stats(NULL, &stats, 0));
    REFUSED(spec_session_get_drafter_stats(t.session, NULL, 0));
    close_things(&t);
}

static void check_steps(void **state)
{
    things t;
    const spec_tree *trees[1];
    const spec_tree *none[1] = { NULL };
    float *row;
    int32_t path[8] = { 0 }, n_path, token, tree;
    const spec_step_result *result;
    (void)state;
    open_things(&t);
    row = calloc(1u << 16, sizeof *row);
    REFUSED(spec_draft(NULL, trees, &t.seq, 1));
    REFUSED(spec_draft(t.session, trees, NULL, 1));
    REFUSED(spec_draft(t.session, NULL, &t.seq, 1));
    REFUSED(spec_draft_choice(NULL, &tree, 0));
    REFUSED(spec_draft_choice(t.session, NULL, t.seq));
    REFUSED(spec_draft_probs(NULL, row, 0, 0));
    REFUSED(spec_draft_probs(t.session, NULL, t.seq, 0));
    OK(spec_draft(t.session, trees, &t.seq, 1));
    REFUSED(spec_score(NULL, &t.seq, 1, trees));
    REFUSED(spec_score(t.session, NULL, 1, trees));
    REFUSED(spec_score(t.session, &t.seq, 1, NULL));
    REFUSED(spec_score(t.session, &t.seq, 1, none));
    OK(spec_score(t.session, &t.seq, 1, trees));
    REFUSED(spec_verify(NULL, path, &n_path, &token, 0, SPEC_VERIFY_AUTO));
    REFUSED(spec_verify(t.session, NULL, &n_path, &token, t.seq, SPEC_VERIFY_AUTO));
    REFUSED(spec_verify(t.session, path, NULL, &token, t.seq, SPEC_VERIFY_AUTO));
    REFUSED(spec_verify(t.session, path, &n_path, NULL, t.seq, SPEC_VERIFY_AUTO));
    REFUSED(spec_commit(NULL, 0, path, 1, 1));
    REFUSED(spec_commit(t.session, t.seq, NULL, 1, 1));
    REFUSED(spec_node_probs(NULL, row, 0, 0));
    REFUSED(spec_node_probs(t.session, NULL, t.seq, 0));
    REFUSED(spec_node_logits(NULL, row, 0, 0));
    REFUSED(spec_node_logits(t.session, NULL, t.seq, 0));
    REFUSED(spec_node_hidden(NULL, row, 0, 0, 0));
    REFUSED(spec_node_hidden(t.session, NULL, t.seq, 0, 0));
    REFUSED(spec_node_logprobs(NULL, row, NULL, NULL, 0, 0, 1, 0));
    REFUSED(spec_node_logprobs(t.session, NULL, NULL, NULL, t.seq, 0, 1, 0));
    REFUSED(spec_node_logprobs(t.session, row, NULL, NULL, t.seq, 0, 1, 4));
    REFUSED(spec_rollback(NULL, 0));
    REFUSED(spec_step(NULL, &result, &t.seq, 1));
    REFUSED(spec_step(t.session, &result, NULL, 1));
    REFUSED(spec_step(t.session, NULL, &t.seq, 1));
    free(row);
    close_things(&t);
}

static void check_trees(void **state)
{
    things t;
    spec_tree tree;
    int32_t order[8] = { 0 };
    const uint8_t keep[8] = { 1 };
    (void)state;
    open_things(&t);
    REFUSED(spec_tree_alloc(NULL, 4, NULL));
    REFUSED(spec_tree_copy(NULL, &t.tree));
    REFUSED(spec_tree_copy(&t.tree, NULL));
    NOTHING(spec_tree_add(NULL, -1, 1, 1) >= 0);
    REFUSED(spec_tree_check(NULL, 8, 8));
    spec_tree_free(NULL, NULL);
    spec_tree_depths(NULL, order);
    spec_tree_depths(&t.tree, NULL);
    spec_tree_ranks(NULL, order);
    spec_tree_ranks(&t.tree, NULL);
    spec_tree_masks(NULL, (uint32_t *)order);
    spec_tree_masks(&t.tree, NULL);
    spec_tree_conv_ancestors(NULL, order, 4);
    spec_tree_conv_ancestors(&t.tree, NULL, 4);
    spec_tree_order(NULL, order, SPEC_ORDER_DEPTH_FIRST, order);
    spec_tree_order(&t.tree, NULL, SPEC_ORDER_DEPTH_FIRST, order);
    REFUSED(spec_tree_permute(NULL, &tree, order));
    REFUSED(spec_tree_permute(&t.tree, &t.other, NULL));
    REFUSED(spec_tree_permute(&t.tree, NULL, order));
    spec_tree_prune(NULL, order, keep, 0);
    spec_tree_prune(&t.tree, order, NULL, 0);
    REFUSED(spec_tree_union(&t.other, NULL, NULL, &t.tree));
    REFUSED(spec_tree_union(&t.other, NULL, &t.tree, NULL));
    REFUSED(spec_tree_union(NULL, NULL, &t.tree, &t.tree));
    NOTHING(spec_tree_blocks(NULL, 16));
    REFUSED(spec_tree_unroll(NULL, &t.other, order));
    REFUSED(spec_tree_unroll(&t.tree, NULL, order));
    close_things(&t);
}

static void check_rules(void **state)
{
    spec_verify_args verify = { .struct_size = sizeof verify };
    int32_t path[8], n, token;
    const float logits[4] = { 0 };
    float probs[4];
    (void)state;
    REFUSED(spec_verify_is_lossless(NULL, SPEC_VERIFY_AUTO, 1));
    REFUSED(spec_verify_probs(path, &n, &token, NULL));
    REFUSED(spec_verify_probs(NULL, &n, &token, &verify));
    REFUSED(spec_verify_probs(path, NULL, &token, &verify));
    REFUSED(spec_verify_probs(path, &n, NULL, &verify));
    REFUSED(spec_verify_probs(path, &n, &token, &verify));
    REFUSED(spec_probs(NULL, logits, 4, NULL, NULL));
    REFUSED(spec_probs(probs, NULL, 4, NULL, NULL));
    NOTHING(spec_draw(NULL, 4, 0.5f) > 0);
}

static void check_builders(void **state)
{
    things t;
    spec_builder *b;
    spec_builder_info info = { .struct_size = sizeof info };
    spec_build_args args = { .struct_size = sizeof args };
    spec_builder_ops ops = { .struct_size = sizeof ops };
    spec_cost_profile profile = { .struct_size = sizeof profile };
    const int32_t ranks[1] = { 0 };
    (void)state;
    open_things(&t);
    REFUSED(spec_builder_open(NULL, "chain:2", NULL));
    REFUSED(spec_builder_open(&b, NULL, NULL));
    REFUSED(spec_builder_get_info(NULL, &info));
    REFUSED(spec_builder_get_info(t.builder, NULL));
    REFUSED(spec_builder_build(NULL, &t.other, &args));
    REFUSED(spec_builder_build(t.builder, &t.other, NULL));
    REFUSED(spec_builder_build(t.builder, NULL, &args));
    REFUSED(spec_builder_build(t.builder, &t.other, &args));
    REFUSED(spec_builder_from_ops(NULL, &ops, NULL));
    REFUSED(spec_builder_from_ops(&b, NULL, NULL));
    REFUSED(spec_builder_from_ops(&b, &ops, NULL));
    spec_builder_observe(NULL, 1, ranks, 1);
    spec_builder_observe(t.builder, 1, NULL, 1);
    REFUSED(spec_builder_costs(NULL, &profile));
    REFUSED(spec_builder_costs(t.builder, NULL));
    close_things(&t);
}

static void check_costs(void **state)
{
    things t;
    spec_cost_profile profile = { .struct_size = sizeof profile };
    double coefficient[3];
    const double some[2] = { 1, 1 };
    const float probs[4] = { 0 };
    (void)state;
    open_things(&t);
    NOTHING(spec_cost_ms(NULL, 1) > 0);
    spec_cost_fit(NULL, coefficient, 0);
    spec_cost_fit(&profile.target, NULL, 0);
    REFUSED(spec_cost_save(NULL, "/nowhere"));
    REFUSED(spec_cost_save(&profile, NULL));
    REFUSED(spec_cost_load(NULL, "/nowhere"));
    REFUSED(spec_cost_load(&profile, NULL));
    NOTHING(spec_expected_emitted(NULL, probs, 1) > 0);
    NOTHING(spec_expected_emitted(&t.tree, NULL, 1) > 1);
    NOTHING(spec_choose_rate(NULL, some, 2) > 0);
    NOTHING(spec_choose_rate(some, NULL, 2) > 0);
    REFUSED(spec_bandit_open(NULL, 2, 1));
    NOTHING(spec_bandit_choose(NULL) > 0);
    spec_bandit_update(NULL, 0, 1, 1);
    REFUSED(spec_paper_bandit_open(NULL, 2, 1));
    NOTHING(spec_paper_bandit_choose(NULL) > 0);
    spec_paper_bandit_update(NULL, 0, 1, 1);
    close_things(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_objects), cmocka_unit_test(check_out),      cmocka_unit_test(check_corpora),
        cmocka_unit_test(check_nothing), cmocka_unit_test(check_text),     cmocka_unit_test(check_sequences),
        cmocka_unit_test(check_steps),   cmocka_unit_test(check_trees),    cmocka_unit_test(check_rules),
        cmocka_unit_test(check_builders), cmocka_unit_test(check_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
