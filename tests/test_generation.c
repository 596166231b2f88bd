/* test_generation.c - generation_config.json as the defaults of a request: what is taken from it, what is named as not done, what
 * is wrong in it; and texts that transformers gives by such files. */
#include "tests/support_decode.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/support_own.h"

#define BASE SPEC_TEST_DIR "/golden/llama2" /* 96 ids, end token 2, no such file of its own */

static spec_backend *backend;

static spec_model *model_with(const char *text, char *dir)
{
    const variant_file file = { "generation_config.json", text };
    support_variant(dir, BASE, &file, 1);
    return support_model(backend, dir, SPEC_DTYPE_F32);
}

/* --- what is taken --- */

typedef struct taken_case {
    const char *text;
    spec_sampling sampling;
    float repeat;
    int32_t n_predict, n_stop;
    const char *stop[2];
    int32_t n_never, never[3];
    const char *unread;
} taken_case;

static const taken_case taken[] = {
    { .text = "{}", .unread = "" },
    { .text = "{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 20, \"min_p\": 0.05}",
      .sampling = { 0.6f, 20, 0.9f, 0.05f, 0 }, .unread = "" },
    { .text = "{\"do_sample\": true}", .sampling = { .temperature = 1 }, .unread = "" },
    { .text = "{\"do_sample\": true, \"temperature\": 1, \"top_p\": 1.0, \"top_k\": null, \"min_p\": 0,"
              "\"repetition_penalty\": 1.0}",
      .sampling = { .temperature = 1 }, .unread = "" },
    { .text = "{\"do_sample\": true, \"top_p\": 0}", .sampling = { .temperature = 1, .top_p = FLT_MIN }, .unread = "" },
    /* Without sampling they say nothing, as in transformers. */
    { .text = "{\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 20, \"min_p\": 0.1, \"typical_p\": 0.5, \"eta_cutoff\": 0.1}",
      .unread = "" },
    { .text = "{\"do_sample\": null, \"temperature\": 0.0}", .unread = "" },
    { .text = "{\"repetition_penalty\": 1.25, \"max_new_tokens\": 77, \"max_length\": 20}", .repeat = 1.25f, .n_predict = 77,
      .unread = "" },
    { .text = "{\"stop_strings\": \"###\"}", .n_stop = 1, .stop = { "###" }, .unread = "" },
    { .text = "{\"stop_strings\": [\"\\n\\n\", \"Ende \\u00e4\"]}", .n_stop = 2, .stop = { "\n\n", "Ende \303\244" },
      .unread = "" },
    { .text = "{\"stop_strings\": []}", .unread = "" },
    /* 96 and -1 are no ids of the model, 2 is its end token. */
    { .text = "{\"suppress_tokens\": [5, 96, -1, 2]}", .n_never = 2, .never = { 5, 2 }, .unread = "" },
    { .text = "{\"suppress_tokens\": [5], \"bad_words_ids\": [[7], [2], [95]]}", .n_never = 3, .never = { 5, 7, 95 },
      .unread = "" },
    { .text = "{\"suppress_tokens\": [5], \"bad_words_ids\": [[7], [8, 9]]}", .n_never = 1, .never = { 5 },
      .unread = "bad_words_ids" },
    { .text = "{\"eos_token_id\": [7, 9], \"bad_words_ids\": [[7], [2]]}", .n_never = 1, .never = { 2 }, .unread = "" },
    /* Every key that is not done; the same with the values that change nothing; and those of no interest. */
    { .text = "{\"do_sample\": true, \"begin_suppress_tokens\": [1], \"constraints\": [1], \"dola_layers\": \"low\","
              "\"encoder_no_repeat_ngram_size\": 2, \"encoder_repetition_penalty\": 1.1, \"epsilon_cutoff\": 0.1,"
              "\"eta_cutoff\": 0.1, \"exponential_decay_length_penalty\": [5, 1.1], \"force_words_ids\": [[1]],"
              "\"forced_bos_token_id\": 0, \"forced_eos_token_id\": [0], \"guidance_scale\": 1.5, \"min_length\": 3,"
              "\"min_new_tokens\": 3, \"no_repeat_ngram_size\": 2, \"num_beams\": 4, \"penalty_alpha\": 0.6,"
              "\"sequence_bias\": {\"[1]\": 2}, \"token_healing\": true, \"top_h\": 0.4, \"typical_p\": 0.9,"
              "\"watermarking_config\": {\"bias\": 2}}",
      .sampling = { .temperature = 1 },
      .unread = "begin_suppress_tokens, constraints, dola_layers, encoder_no_repeat_ngram_size, encoder_repetition_penalty, "
                "epsilon_cutoff, eta_cutoff, exponential_decay_length_penalty, force_words_ids, forced_bos_token_id, "
                "forced_eos_token_id, guidance_scale, min_length, min_new_tokens, no_repeat_ngram_size, num_beams, "
                "penalty_alpha, sequence_bias, token_healing, top_h, typical_p, watermarking_config" },
    { .text = "{\"do_sample\": true, \"begin_suppress_tokens\": [], \"constraints\": null, \"dola_layers\": \"\","
              "\"encoder_no_repeat_ngram_size\": 0, \"encoder_repetition_penalty\": 1, \"epsilon_cutoff\": 0.0,"
              "\"eta_cutoff\": 0, \"exponential_decay_length_penalty\": null, \"force_words_ids\": [],"
              "\"forced_bos_token_id\": null, \"forced_eos_token_id\": null, \"guidance_scale\": 1, \"min_length\": 0,"
              "\"min_new_tokens\": 0, \"no_repeat_ngram_size\": 0, \"num_beams\": 1.0, \"penalty_alpha\": 0,"
              "\"sequence_bias\": {}, \"token_healing\": false, \"top_h\": 1.0, \"typical_p\": 1, \"watermarking_config\": null,"
              "\"bad_words_ids\": [], \"suppress_tokens\": null, \"transformers_version\": \"5\", \"pad_token_id\": 0}",
      .sampling = { .temperature = 1 }, .unread = "" },
};

static void check_request(const spec_request *r, const taken_case *c)
{
    assert_float_equal(r->sampling.temperature, c->sampling.temperature, 0);
    assert_int_equal(r->sampling.top_k, c->sampling.top_k);
    assert_float_equal(r->sampling.top_p, c->sampling.top_p, 0);
    assert_float_equal(r->sampling.min_p, c->sampling.min_p, 0);
    assert_float_equal(r->repeat_penalty, c->repeat, 0);
    assert_int_equal(r->n_predict, c->n_predict);
    assert_int_equal(r->n_stop, c->n_stop);
    for (int32_t i = 0; i < c->n_stop; i++) assert_string_equal(r->stop[i], c->stop[i]);
    assert_int_equal(r->n_bias, c->n_never);
    for (int32_t i = 0; i < c->n_never; i++) {
        assert_int_equal(r->bias[i].token, c->never[i]);
        assert_true(r->bias[i].bias == -INFINITY);
    }
}

/* What no file says is zero. */
static void check_rest(const spec_request *r)
{
    spec_request rest = *r;
    const spec_request none = SPEC_REQUEST_INIT;
    rest.sampling = none.sampling;
    rest.repeat_penalty = 0, rest.n_predict = 0, rest.n_stop = 0, rest.stop = NULL, rest.n_bias = 0, rest.bias = NULL;
    assert_memory_equal(&rest, &none, sizeof none);
}

static void check_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        char dir[64];
        const char *unread = NULL;
        spec_request r;
        memset(&r, 0x55, sizeof r);
        r.struct_size = sizeof r;
        spec_model *m = model_with(taken[i].text, dir);
        OK(spec_request_from_model(&r, m, &unread));
        check_request(&r, &taken[i]);
        check_rest(&r);
        assert_string_equal(unread, taken[i].unread);
        OK(spec_request_from_model(&r, m, NULL));
        spec_model_close(m);
        support_variant_remove(dir);
    }
}

/* A struct of another version of the header, a model without the file, an application's engine. */
static void check_others(void **state)
{
    (void)state;
    struct {
        spec_request r;
        char more[16];
    } later;
    char dir[64];
    const char *unread = NULL;
    own_engine e;
    const taken_case nothing = { .unread = "" };
    spec_model *m = model_with("{\"do_sample\": true, \"repetition_penalty\": 2}", dir);
    memset(&later, 0x55, sizeof later);
    later.r.struct_size = offsetof(spec_request, n_predict);
    OK(spec_request_from_model(&later.r, m, NULL));
    assert_int_equal(later.r.struct_size, offsetof(spec_request, n_predict));
    assert_float_equal(later.r.sampling.temperature, 1, 0);
    assert_int_equal(later.r.n_predict, 0x55555555);
    later.r.struct_size = sizeof later;
    OK(spec_request_from_model(&later.r, m, NULL));
    assert_float_equal(later.r.repeat_penalty, 2, 0);
    assert_int_equal(later.more[0], 0x55);
    later.r.struct_size = 0;
    FAILS(spec_request_from_model(&later.r, m, NULL), SPEC_E_INVALID, "struct_size");
    spec_model_close(m);
    support_variant_remove(dir);

    m = support_model(backend, BASE, SPEC_DTYPE_F32);
    support_engine_open(&e, m, 1, 1);
    spec_model *own = support_engine_model(&e, backend), *models[] = { m, own };
    for (int i = 0; i < 2; i++) {
        spec_request r = { .struct_size = sizeof r, .n_predict = 3 };
        OK(spec_request_from_model(&r, models[i], &unread));
        check_request(&r, &nothing);
        check_rest(&r);
        assert_string_equal(unread, "");
    }
    spec_model_close(own);
    support_engine_close(&e);
    spec_model_close(m);
}

/* --- what is wrong --- */

static const struct {
    const char *text, *message;
} wrong[] = {
    { "{\"do_sample\": 1}", "generation_config.json: do_sample is 1, expected true or false" },
    { "{\"temperature\": -0.5}", "generation_config.json: temperature is -0.5, expected a number from 0" },
    { "{\"temperature\": \"warm\"}", "temperature is \"warm\", expected a number" },
    { "{\"temperature\": 1e60}", "temperature is 1e+60, expected" },
    { "{\"temperature\": Infinity}", "temperature is inf, expected" },
    { "{\"do_sample\": true, \"top_k\": -1}", "top_k is -1, expected an integer from 0" },
    { "{\"top_k\": 2.5}", "top_k is 2.5, expected an integer" },
    { "{\"top_p\": 1.5}", "top_p is 1.5, expected a number from 0 to 1" },
    { "{\"top_p\": NaN}", "top_p is nan, expected" },
    { "{\"min_p\": [0]}", "min_p is an array, expected a number from 0 to 1" },
    { "{\"repetition_penalty\": 0}", "repetition_penalty is 0, expected a number" },
    { "{\"max_new_tokens\": 0}", "max_new_tokens is 0, expected an integer from 1" },
    { "{\"max_new_tokens\": 3000000000}", "max_new_tokens is 3000000000, expected" },
    { "{\"stop_strings\": 7}", "stop_strings has 7, expected strings" },
    { "{\"stop_strings\": [\"a\", \"\"]}", "stop_strings has \"\", expected strings" },
    { "{\"stop_strings\": [\"a\\u0000b\"]}", "stop_strings has \"a\", expected strings" },
    { "{\"suppress_tokens\": 5}", "suppress_tokens is 5, expected a list" },
    { "{\"suppress_tokens\": [5, \"6\"]}", "suppress_tokens has \"6\", expected ids" },
    { "{\"bad_words_ids\": {}}", "bad_words_ids is an object, expected a list" },
    { "{\"bad_words_ids\": [5]}", "bad_words_ids has 5, expected lists of ids" },
    { "{\"bad_words_ids\": [[5], []]}", "bad_words_ids has an empty list, expected lists of ids" },
    { "{\"bad_words_ids\": [[5], [true]]}", "bad_words_ids has true, expected ids" },
};

/* The model loads and decodes; the defaults are refused each time, and the request stays as it was. */
static void check_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char dir[64];
        const int32_t ids[] = { 5, 7 };
        int32_t out[2];
        const spec_request before = { .struct_size = sizeof before, .n_predict = 9, .n_top = 3 };
        spec_model *m = model_with(wrong[i].text, dir);
        for (int again = 0; again < 2; again++) {
            spec_request r = before;
            FAILS(spec_request_from_model(&r, m, NULL), SPEC_E_FORMAT, wrong[i].message);
            assert_memory_equal(&r, &before, sizeof r);
        }
        support_plain_ids(m, ids, 2, NULL, 2, out);
        spec_model_close(m);
        support_variant_remove(dir);
    }
}

/* --- texts --- */

/* transformers 5.24, AutoModelForCausalLM.generate of tests/golden/llama2 in float32 with such a file, from the prompt below. */
static const struct {
    const char *text;
    spec_stop stop;
    size_t n;
    int32_t ids[24];
} texts[] = {
    { "{\"max_new_tokens\": 24, \"eos_token_id\": 95}", SPEC_STOP_LENGTH, 24,
      { 85, 13, 53, 23, 13, 44, 13, 74, 24, 44, 17, 36, 85, 24, 51, 59, 71, 68, 84, 89, 15, 15, 15, 13 } },
    { "{\"max_new_tokens\": 24, \"eos_token_id\": 95, \"repetition_penalty\": 1.4, \"suppress_tokens\": [53, 200, -1],"
      "\"bad_words_ids\": [[13], [95]]}", SPEC_STOP_LENGTH, 24,
      { 85, 15, 15, 15, 14, 89, 15, 15, 15, 15, 82, 46, 89, 23, 47, 54, 66, 38, 19, 22, 71, 89, 59, 50 } },
    { "{\"max_new_tokens\": 24, \"eos_token_id\": [95, 44], \"repetition_penalty\": 1.4, \"bad_words_ids\": [[44], [13]],"
      "\"temperature\": 0.7, \"top_k\": 3}", SPEC_STOP_EOS, 21,
      { 85, 15, 15, 15, 14, 89, 15, 15, 15, 15, 82, 46, 89, 23, 47, 54, 66, 53, 20, 87, 44 } },
};

static void check_texts(void **state)
{
    static const int32_t prompt[] = { 7, 3, 1, 5, 3, 2, 9, 4, 3 };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char dir[64];
        spec_session *s;
        spec_request r = SPEC_REQUEST_INIT;
        spec_result result = SPEC_RESULT_INIT;
        spec_model *m = model_with(texts[i].text, dir);
        OK(spec_request_from_model(&r, m, NULL));
        OK(spec_session_open(&s, m, NULL, NULL));
        OK(spec_generate_ids(s, &result, prompt, sizeof prompt / sizeof *prompt, &r));
        assert_int_equal(result.n_ids, texts[i].n);
        assert_memory_equal(result.ids, texts[i].ids, result.n_ids * sizeof *result.ids);
        assert_int_equal(result.stop, texts[i].stop);
        spec_result_free(&result);
        spec_session_close(s);
        spec_model_close(m);
        support_variant_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_taken), cmocka_unit_test(check_others), cmocka_unit_test(check_wrong),
        cmocka_unit_test(check_texts),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests_name("generation", tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
