/* test_tree_page.c - the page of `spec tree` from made-up steps: its data is one JSON value whatever the text holds,
 * nothing in the text can leave the script element, and 500 steps of 64 nodes stay small. */
#define _GNU_SOURCE /* memmem, open_memstream */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "cli/cli_tree_page.h"
#include "tests/test.h"

enum { N_MOST = 64 };

/* --- pages --- */

typedef struct made_step {
    int32_t token[N_MOST], parent[N_MOST], rank[N_MOST], path[N_MOST];
    float draft[N_MOST], target[N_MOST];
} made_step;

/* A chain of n nodes with tokens first, first + 1, ..., of which n_path are accepted. */
static cli_tree_step chain(made_step *m, int32_t n, int32_t n_path, int32_t first)
{
    for (int32_t i = 0; i < n; i++) {
        m->token[i] = first + i;
        m->parent[i] = i - 1;
        m->rank[i] = 0;
        m->path[i] = i;
        m->draft[i] = i == 0 ? NAN : 0.5f;
        m->target[i] = i == 0 ? NAN : 0.25f;
    }
    return (cli_tree_step){ .n = n, .token = m->token, .parent = m->parent, .rank = m->rank, .draft = m->draft,
                            .target = m->target, .path = m->path, .n_path = n_path, .next = first + n,
                            .next_target = 0.125f, .text = "", .n_text = 0 };
}

typedef struct texts {
    const char *const *text; /* of token i: text[i], NULL for none */
    int32_t n;
} texts;

static const char *piece_of(const void *user_data, int32_t id, size_t *n)
{
    const texts *t = user_data;
    const char *text = t->text[id % t->n];
    *n = text != NULL ? strlen(text) : 0;
    return text;
}

static cli_tree_page page_of(const cli_tree_step *steps, int32_t n_step, const texts *t)
{
    return (cli_tree_page){ .model = "a/target", .drafter = "a/drafter", .tree = "chain:4",
                            .verify = "auto", .adapt = "off", .device = "cpu", .dtype = "f32", .stop = "length",
                            .version = "1.2.3", .prompt = "", .n_prompt = 0, .steps = steps,
                            .n_step = n_step, .piece = piece_of, .user_data = t };
}

static char *write_page(const cli_tree_page *page, size_t *n)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, n);
    assert_non_null(to);
    assert_int_equal(cli_tree_page_write(to, page), SPEC_OK);
    fclose(to);
    return text;
}

/* The page's data: from the end of the head to the first end of a script after it, as a reader of HTML finds it. */
static json_t *data_of(const char *text, size_t n)
{
    assert_true(n > cli_tree_page_head_bytes + cli_tree_page_tail_bytes);
    const char *from = text + cli_tree_page_head_bytes;
    const char *to = memmem(from, n - cli_tree_page_head_bytes, "</script", 8);
    assert_non_null(to);
    assert_ptr_equal(to, text + n - cli_tree_page_tail_bytes); /* the template's own end, not one in the data */
    assert_null(memchr(from, '<', (size_t)(to - from)));
    json_error_t error;
    json_t *data = json_loadb(from, (size_t)(to - from), JSON_REJECT_DUPLICATES, &error);
    if (data == NULL) fail_msg("the data is not JSON: %s at %d", error.text, error.position);
    return data;
}

static void assert_string(const json_t *value, const char *want)
{
    assert_true(json_is_string(value));
    assert_string_equal(json_string_value(value), want);
}

/* --- what is written --- */

static void test_steps(void **state)
{
    (void)state;
    const char *const words[] = { "zero", "one", "two", "three", NULL };
    const texts t = { words, 5 };
    made_step made[2];
    cli_tree_step steps[] = { chain(&made[0], 3, 2, 0), chain(&made[1], 1, 1, 3) };
    steps[0].text = "onethree";
    steps[0].n_text = 8;
    cli_tree_page page = page_of(steps, 2, &t);
    page.sampling = (spec_sampling){ 0.75f, 40, 0.9f, 0, UINT64_MAX };
    page.drafter = NULL;
    size_t n;
    char *text = write_page(&page, &n);
    json_t *data = data_of(text, n);

    assert_string(json_object_get(data, "model"), "a/target");
    assert_true(json_is_null(json_object_get(data, "drafter")));
    assert_string(json_object_get(data, "seed"), "18446744073709551615");
    assert_true(json_real_value(json_object_get(data, "temperature")) == 0.75);
    /* ids: 0 to 3 from the first step, 3 and 4 from the second, each once */
    const json_t *ids = json_object_get(data, "ids"), *names = json_object_get(data, "texts");
    assert_int_equal(json_array_size(ids), 5);
    assert_int_equal(json_array_size(names), 5);
    for (size_t i = 0; i < 5; i++) assert_int_equal(json_integer_value(json_array_get(ids, i)), i);
    assert_string(json_array_get(names, 3), "three");
    assert_true(json_is_null(json_array_get(names, 4)));

    const json_t *list = json_object_get(data, "steps"), *step = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 2);
    assert_string(json_object_get(step, "text"), "onethree");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(step, "parent"), 2)), 1);
    assert_int_equal(json_array_size(json_object_get(step, "path")), 2);
    assert_true(json_is_null(json_array_get(json_object_get(step, "draft"), 0)));
    assert_true(json_real_value(json_array_get(json_object_get(step, "draft"), 1)) == 0.5);
    assert_true(json_real_value(json_array_get(json_object_get(step, "target"), 2)) == 0.25);
    assert_int_equal(json_integer_value(json_object_get(step, "next")), 3);
    assert_true(json_real_value(json_object_get(step, "next_target")) == 0.125);
    json_decref(data);
    free(text);
}

/* --- text that would leave the script, or is not text --- */

static void test_escapes(void **state)
{
    (void)state;
    const char *const words[] = {
        "</script><script>alert(1)</script>", "<!--", "\"\\/", "\n\r\t\001\177", ("a\xe2\x80\xa8" "b\xe2\x80\xa9"),
        "\xf0\x9f\x8c\xb3 \xc3\xa9", "\xff", "\xc0\xaf", "\xed\xa0\x80", "\xe2\x82", "\xf4\x90\x80\x80", "]]>&",
    };
    const char *const want[] = {
        "</script><script>alert(1)</script>", "<!--", "\"\\/", "\n\r\t\001\177", ("a\xe2\x80\xa8" "b\xe2\x80\xa9"),
        "\xf0\x9f\x8c\xb3 \xc3\xa9", "\\xff", "\\xc0\\xaf", "\\xed\\xa0\\x80", "\\xe2\\x82",
        "\\xf4\\x90\\x80\\x80", "]]>&",
    };
    const texts t = { words, N_ELEMENTS(words) };
    made_step made;
    cli_tree_step step = chain(&made, N_ELEMENTS(words) - 1, 1, 0);
    step.text = (char *)(uintptr_t)words[0];
    step.n_text = strlen(words[0]);
    cli_tree_page page = page_of(&step, 1, &t);
    page.model = words[0];
    page.prompt = "</script>\xe2\x80\xa8";
    page.n_prompt = 12;
    size_t n;
    char *text = write_page(&page, &n);
    json_t *data = data_of(text, n);
    const json_t *names = json_object_get(data, "texts");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) assert_string(json_array_get(names, i), want[i]);
    assert_string(json_object_get(data, "model"), words[0]);
    assert_string(json_object_get(json_array_get(json_object_get(data, "steps"), 0), "text"), words[0]);
    /* Readers of JavaScript of before 2019 end a line at these. */
    assert_null(memmem(text, n, "\xe2\x80\xa8", 3));
    assert_null(memmem(text, n, "\xe2\x80\xa9", 3));
    json_decref(data);
    free(text);
}

/* A zero byte is a character like others; jansson refuses to read it. */
static void test_zero_byte(void **state)
{
    (void)state;
    const char *const words[] = { "a" };
    const texts t = { words, 1 };
    made_step made;
    const cli_tree_step step = chain(&made, 1, 1, 0);
    cli_tree_page page = page_of(&step, 1, &t);
    page.prompt = "x\0y";
    page.n_prompt = 3;
    size_t n;
    char *text = write_page(&page, &n);
    assert_non_null(memmem(text, n, "\"x\\u0000y\"", 10));
    free(text);
}

/* --- size --- */

/* Random trees of 64 nodes, every token another one out of 32 000 pieces of up to 12 bytes. */
static void test_size(void **state)
{
    (void)state;
    enum { N_STEP = 500, N_TOKEN = 32000, SIZE_MOST = 2500000 };
    test_random random = { 7 };
    char (*names)[13] = calloc(N_TOKEN, sizeof *names);
    const char **words = calloc(N_TOKEN, sizeof *words);
    made_step *made = calloc(N_STEP, sizeof *made);
    cli_tree_step *steps = calloc(N_STEP, sizeof *steps);
    assert_true(names != NULL && words != NULL && made != NULL && steps != NULL);
    for (int32_t i = 0; i < N_TOKEN; i++) {
        const int32_t length = 1 + test_below(&random, 12);
        for (int32_t k = 0; k < length; k++) names[i][k] = (char)('a' + test_below(&random, 26));
        words[i] = names[i];
    }
    for (int32_t s = 0; s < N_STEP; s++) {
        steps[s] = chain(&made[s], N_MOST, 1, 0);
        steps[s].next = test_below(&random, N_TOKEN);
        for (int32_t i = 0; i < N_MOST; i++) {
            made[s].token[i] = test_below(&random, N_TOKEN);
            if (i > 0) made[s].parent[i] = test_below(&random, i);
            made[s].rank[i] = i;
            made[s].draft[i] = (float)test_uniform(&random) * 1e-3f;
            made[s].target[i] = (float)test_uniform(&random) * 1e-3f;
        }
    }
    const texts t = { words, N_TOKEN };
    const cli_tree_page page = page_of(steps, N_STEP, &t);
    size_t n;
    char *text = write_page(&page, &n);
    json_t *data = data_of(text, n);
    assert_int_equal(json_array_size(json_object_get(data, "steps")), N_STEP);
    assert_in_range(n, 500000, SIZE_MOST);
    json_decref(data);
    free(text), free(steps), free(made), free(words), free(names);
}

/* --- failures --- */

static void test_full_disk(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "wb");
    if (full == NULL) skip();
    const char *const words[] = { "a" };
    const texts t = { words, 1 };
    made_step made;
    const cli_tree_step step = chain(&made, 2, 1, 0);
    const cli_tree_page page = page_of(&step, 1, &t);
    assert_int_equal(cli_tree_page_write(full, &page), SPEC_E_IO);
    fclose(full);
}

/* Opens offline: nothing in the template names another place. */
static void test_template(void **state)
{
    (void)state;
    static const char *const foreign[] = { "http:", "https:", "src=", "<link", "@import", "url(", "fetch(", "import(" };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_null(memmem(cli_tree_page_head, cli_tree_page_head_bytes, foreign[i], strlen(foreign[i])));
        assert_null(memmem(cli_tree_page_tail, cli_tree_page_tail_bytes, foreign[i], strlen(foreign[i])));
    }
    assert_memory_equal(cli_tree_page_head, "<!doctype html>", 15);
    assert_memory_equal(cli_tree_page_tail + cli_tree_page_tail_bytes - 8, "</html>\n", 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),     cmocka_unit_test(test_escapes),   cmocka_unit_test(test_zero_byte),
        cmocka_unit_test(test_size),      cmocka_unit_test(test_full_disk), cmocka_unit_test(test_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
