/* test_tokenizer.c - tokenizers against the packages that define them.
 *
 *   golden/tokenizers/          trained tokenizers with vectors (tokenizers package)
 *   tokenizer_cases.jsonl       components put together at random (tokenizers package; tools/make_tokenizer_cases.py)
 *   tokenizer_spm/              SentencePiece models (sentencepiece package; tools/make_spm_cases.py)
 *   tokenizer_beside.jsonl      the files beside a tokenizer's own (transformers package; tools/make_beside_cases.py)
 *   SPEC_SHARED/data, models    real vocabularies, published vectors, hashes of whole prompt files; skipped without
 * and, with what is made here: refusals by name, broken files, memory that runs out, threads, long texts. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utf8proc.h>

#include "models/text/text_tokenizer.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"
#include "tests/support_memory.h"
#include "tests/support_model.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/tokenizers"
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A path from a format; in a buffer of its own until the next but three calls. */
static const char *path_of(const char *fmt, ...)
{
    static char paths[4][1024];
    static int next;
    char *path = paths[next = (next + 1) % 4];
    va_list args;
    va_start(args, fmt);
    vsnprintf(path, sizeof paths[0], fmt, args);
    va_end(args);
    return path;
}

static const char *shared(void)
{
    const char *path = getenv("SPEC_SHARED");
    if (!path || !*path) {
        print_message("not run: SPEC_SHARED is not set\n");
        skip();
    }
    char data[512];
    snprintf(data, sizeof data, "%s/data", path);
    if (!speci_is_directory(data)) {
        print_message("not run: SPEC_SHARED has no data/\n");
        skip();
    }
    return path;
}

/* ------------------------------------------------------------------------- encoding, decoding --- */

typedef struct ids {
    int32_t *id;
    size_t n;
} ids;

static ids encode(const spec_tokenizer *t, const char *text, size_t n_text, uint32_t flags)
{
    ids out = { NULL, 0 };
    size_t n;
    spec_status status = spec_tokenizer_encode(t, NULL, 0, &out.n, text, n_text, flags);
    out.id = malloc((out.n + 1) * sizeof *out.id);
    if (out.n == 0) {
        OK(status);
        return out;
    }
    FAILS(status, SPEC_E_FULL, "there is room for 0");
    OK(spec_tokenizer_encode(t, out.id, out.n, &n, text, n_text, flags));
    assert_int_equal(n, out.n);
    return out;
}

/* The text of ids; the stream must give the same, and never more than it says. */
static char *decode(const spec_tokenizer *t, const int32_t *id, size_t n_id, uint32_t flags, size_t *n)
{
    size_t need, part, cap = support_tokenizer_info(t).piece_max + 16, at = 0;
    (void)spec_tokenizer_decode(t, NULL, 0, &need, id, n_id, flags);
    char *text = malloc(need + 1), *streamed = malloc(need + cap + 16);
    OK(spec_tokenizer_decode(t, text, need, n, id, n_id, flags));
    assert_int_equal(*n, need);
    text[need] = 0;
    spec_text_stream stream = { { 0 }, 0, 0 };
    for (size_t i = 0; i < n_id; i++) {
        OK(spec_text_stream_push(&stream, streamed + at, cap, &part, t, id[i], flags));
        at += part;
        assert_true(at <= need);
    }
    OK(spec_text_stream_end(&stream, streamed + at, 16, &part));
    assert_int_equal(at + part, need);
    assert_memory_equal(streamed, text, need);
    free(streamed);
    return text;
}

static void check_ids(const spec_tokenizer *t, const json_t *text, uint32_t flags, const json_t *expected,
                      const char *where)
{
    ids found = encode(t, json_string_value(text), json_string_length(text), flags);
    bool same = found.n == json_array_size(expected);
    for (size_t i = 0; same && i < found.n; i++) same = found.id[i] == json_integer_value(json_array_get(expected, i));
    free(found.id);
    if (!same) fail_msg("%s: flags %u: '%s' is encoded otherwise", where, flags, json_string_value(text));
}

static void check_text(const spec_tokenizer *t, const json_t *list, uint32_t flags, const json_t *expected,
                       const char *where)
{
    size_t n_id = json_array_size(list), n;
    int32_t *id = malloc((n_id + 1) * sizeof *id);
    for (size_t i = 0; i < n_id; i++) id[i] = (int32_t)json_integer_value(json_array_get(list, i));
    char *text = decode(t, id, n_id, flags, &n);
    if (n != json_string_length(expected) || memcmp(text, json_string_value(expected), n) != 0)
        fail_msg("%s: decoded '%s', expected '%s'", where, text, json_string_value(expected));
    free(text);
    free(id);
}

/* Calls each(arg, line) for every JSON line of a file; returns how many there were. */
static size_t each_line(const char *path, void (*each)(void *arg, json_t *line, const char *where), void *arg)
{
    char *text, *line, *rest;
    size_t n, count = 0;
    OK(speci_file_read(&text, &n, path, 1 << 26, NULL));
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json;
        const char *where = path_of("%s:%zu", path, ++count);
        OK(speci_json_parse(&json, line, strlen(line), where));
        each(arg, json, where);
        json_decref(json);
    }
    speci_free(NULL, text);
    assert_true(count > 0);
    return count;
}

/* ----------------------------------------------------------------------------------- vectors --- */

static void golden_line(void *arg, json_t *line, const char *where)
{
    const spec_tokenizer *t = arg;
    const json_t *text = json_object_get(line, "text"), *with = json_object_get(line, "ids");
    check_ids(t, text, SPEC_TOKEN_ADD_SPECIAL | SPEC_TOKEN_PARSE_SPECIAL, with, where);
    check_ids(t, text, SPEC_TOKEN_PARSE_SPECIAL, json_object_get(line, "ids_plain"), where);
    check_text(t, with, 0, json_object_get(line, "decoded"), where);
}

static void test_golden(void **state)
{
    static const char *const names[] = { "gpt2-style",  "gpt_neox-style", "llama3-style",
                                         "qwen2-style", "spm-metaspace",  "spm-prepend" };
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        spec_tokenizer *t;
        OK(spec_tokenizer_open(&t, path_of(GOLDEN "/%s", names[i]), NULL));
        size_t n = each_line(path_of(GOLDEN "/%s/vectors.jsonl", names[i]), golden_line, t);
        print_message("%s: %zu texts\n", names[i], n);
        spec_tokenizer_close(t);
    }
}

static void spm_line(void *arg, json_t *line, const char *where)
{
    const json_t *text = json_object_get(line, "text"), *list = json_object_get(line, "ids");
    if (text) check_ids(arg, text, 0, list, where);
    check_text(arg, list, SPEC_TOKEN_SKIP_SPECIAL, json_object_get(line, "decoded"), where);
}

static void test_spm(void **state)
{
    static const char *const names[] = { "plain", "bytes", "extra", "noprefix" };
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        spec_tokenizer *t;
        OK(spec_tokenizer_open(&t, path_of(SPEC_TEST_DIR "/tokenizer_spm/%s.model", names[i]), NULL));
        each_line(path_of(SPEC_TEST_DIR "/tokenizer_spm/%s.jsonl", names[i]), spm_line, t);
        assert_int_equal(support_tokenizer_info(t).bos, 1);
        assert_int_equal(support_tokenizer_info(t).eos, 2);
        ids with = encode(t, "<s>x", 4, SPEC_TOKEN_ADD_SPECIAL | SPEC_TOKEN_PARSE_SPECIAL);
        assert_true(with.n >= 3 && with.id[0] == 1 && with.id[1] == 1);
        free(with.id);
        spec_tokenizer_close(t);
    }
}

/* ------------------------------------------------------------------- tokenizers made from parts --- */

/* A golden tokenizer.json with `patch` over it; "model" key by key, others whole. */
static json_t *patched(const char *base, const json_t *patch, const json_t *added)
{
    json_t *root;
    const char *key;
    json_t *value;
    OK(speci_json_read(&root, path_of(GOLDEN "/%s/tokenizer.json", base), 1 << 24, NULL));
    json_object_foreach((json_t *)(uintptr_t)patch, key, value)
    {
        if (strcmp(key, "model") == 0 && json_is_object(value))
            json_object_update(json_object_get(root, "model"), value);
        else
            json_object_set(root, key, value);
    }
    if (added) json_array_extend(json_object_get(root, "added_tokens"), (json_t *)(uintptr_t)added);
    return root;
}

/* Opens bytes as a file; the file is gone afterwards. */
static spec_status open_bytes(spec_tokenizer **t, const void *data, size_t n, const spec_allocator *a)
{
    char path[] = "/tmp/spec-test-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
    close(fd);
    spec_status status = spec_tokenizer_open(t, path, a);
    unlink(path);
    return status;
}

static spec_status open_json(spec_tokenizer **t, const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);
    spec_status status = open_bytes(t, text, strlen(text), NULL);
    free(text);
    return status;
}

static spec_status open_patched(spec_tokenizer **t, const char *base, const char *patch)
{
    json_t *json, *root;
    OK(speci_json_parse(&json, patch, strlen(patch), "patch"));
    root = patched(base, json, NULL);
    spec_status status = open_json(t, root);
    json_decref(json);
    json_decref(root);
    return status;
}

static void component_line(void *arg, json_t *line, const char *where)
{
    size_t *n_case = arg, i;
    json_t *one, *root = patched(json_string_value(json_object_get(line, "base")), json_object_get(line, "patch"),
                                 json_object_get(line, "added"));
    spec_tokenizer *t;
    spec_status status = open_json(&t, root);
    if (status != SPEC_OK) fail_msg("%s: %s", where, spec_last_error());
    json_array_foreach(json_object_get(line, "cases"), i, one)
    {
        const json_t *list = json_object_get(one, "ids");
        check_ids(t, json_object_get(one, "text"), (uint32_t)json_integer_value(json_object_get(one, "flags")), list,
                  where);
        check_text(t, list, 0, json_object_get(one, "decoded"), where);
        ++*n_case;
    }
    spec_tokenizer_close(t);
    json_decref(root);
}

static void test_components(void **state)
{
    size_t n_case = 0;
    (void)state;
    size_t n = each_line(SPEC_TEST_DIR "/tokenizer_cases.jsonl", component_line, &n_case);
    print_message("%zu tokenizers, %zu texts\n", n, n_case);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *patch, *part;
        spec_status code;
    } cases[] = {
        { "{\"model\": {\"type\": \"Unigram\"}}", "'Unigram'", SPEC_E_UNSUPPORTED },
        { "{\"model\": {\"dropout\": 0.1}}", "dropout", SPEC_E_UNSUPPORTED },
        { "{\"model\": {\"merges\": [\"a b c\"]}}", "merge 0", SPEC_E_FORMAT },
        { "{\"model\": {\"merges\": [[\"a\", \"nosuch\"]]}}", "'nosuch'", SPEC_E_FORMAT },
        { "{\"model\": {\"unk_token\": \"nosuch\"}}", "'nosuch'", SPEC_E_FORMAT },
        { "{\"model\": {\"vocab\": {\"a\": -1}}}", "'a' has the id -1", SPEC_E_FORMAT },
        { "{\"model\": {\"vocab\": {\"a\": 99999999}}}", "99999999", SPEC_E_FORMAT },
        { "{\"model\": {\"vocab\": {\"a\": \"b\"}}}", "not an integer", SPEC_E_FORMAT },
        { "{\"model\": null}", "\"model\"", SPEC_E_FORMAT },
        { "{\"normalizer\": {\"type\": \"Precompiled\"}}", "'Precompiled'", SPEC_E_UNSUPPORTED },
        { "{\"normalizer\": {\"type\": \"Strip\", \"strip_right\": true}}", "strip_left", SPEC_E_FORMAT },
        { "{\"normalizer\": {\"type\": \"Strip\", \"strip_left\": true}}", "strip_right", SPEC_E_FORMAT },
        { "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"\"}}",
          "empty pattern", SPEC_E_UNSUPPORTED },
        { "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"X\"}]}}", "'X'",
          SPEC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", "'UnicodeScripts'", SPEC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": "
          "\"Isolated\"}}",
          "&&", SPEC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}}",
          "not understood", SPEC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"X\"}}",
          "behavior", SPEC_E_FORMAT },
        { "{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}}", "one character", SPEC_E_FORMAT },
        { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [], \"special_tokens\": {}}}",
          "Sequence A", SPEC_E_FORMAT },
        { "{\"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"x\", 9999], \"sep\": [\"x\", 0]}}",
          "9999", SPEC_E_FORMAT },
        { "{\"added_tokens\": [{\"id\": 600, \"content\": \"<x>\"}, {\"id\": 601, \"content\": \"<x>\"}]}", "'<x>' occurs twice",
          SPEC_E_FORMAT },
        { "{\"decoder\": {\"type\": \"CTC\"}}", "'CTC'", SPEC_E_UNSUPPORTED },
        { "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Strip\", "
          "\"content\": "
          "\" \", \"start\": 0, \"stop\": 1}]}}",
          "'Strip'", SPEC_E_UNSUPPORTED },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        spec_tokenizer *t;
        spec_status status = open_patched(&t, "gpt2-style", cases[i].patch);
        if (status != cases[i].code || !strstr(spec_last_error(), cases[i].part) || !strstr(spec_last_error(), "spec-test-tokenizer-"))
            fail_msg("%s: %s: %s", cases[i].patch, spec_status_name(status), spec_last_error());
        assert_null(t);
    }
}

/* Zero bytes in the vocabulary's keys and in merges; and U+0001, by which such keys are told from others. */
static void test_nul(void **state)
{
    static const char file[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"\\u0000\": 1, \"a\\u0000\" : 2, \"\\u0001\": 3,"
        "\"\\u00010\": 4, \"0\": 5, \"b\": 6, \"\\\\u0000\": 7}, \"merges\": [\"a \\u0000\", [\"\\u0001\", \"0\"]]}}";
    static const char text[] = "ba\0\0\x01\x01" "0";
    static const int32_t expected[] = { 6, 2, 1, 3, 4 };
    spec_tokenizer *t;
    size_t n;
    (void)state;
    OK(open_bytes(&t, file, sizeof file - 1, NULL));
    ids list = encode(t, text, sizeof text - 1, 0);
    assert_int_equal(list.n, COUNT(expected));
    assert_memory_equal(list.id, expected, sizeof expected);
    free(list.id);
    assert_memory_equal(spec_tokenizer_piece(t, &n, 2), "a\0", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(spec_tokenizer_piece(t, &n, 7), "\\u0000", 6); /* a backslash, and no escape behind it */
    assert_int_equal(n, 6);
    spec_tokenizer_close(t);
}

/* What other programs read: named, with the next step. */
static void test_other_formats(void **state)
{
    static const char tiktoken[] = "IQ== 0\nIg== 1\nIGE= 2\n";
    static const struct {
        const char *name, *part;
    } cases[] = {
        { "tekken.json", "tekken.json is not read: make tokenizer.json" },
        { "qwen.tiktoken", ".tiktoken is not read: make tokenizer.json" },
        { "merges.txt", "merges.txt is not read: make tokenizer.json" },
        { "config.json", "neither tokenizer.json nor tokenizer.model is there: make tokenizer.json" },
        { "tokenizer.model", "tokenizer.model: tiktoken files are not read: make tokenizer.json" },
    };
    spec_tokenizer *t;
    (void)state;
    FAILS(open_bytes(&t, tiktoken, sizeof tiktoken - 1, NULL), SPEC_E_UNSUPPORTED, "tiktoken files are not read");
    for (size_t i = 0; i < COUNT(cases); i++) {
        char dir[SUPPORT_DIRECTORY];
        assert_non_null(support_directory_new(dir));
        support_write(path_of("%s/%s", dir, cases[i].name), tiktoken, sizeof tiktoken - 1);
        const spec_status status = spec_tokenizer_open(&t, dir, NULL);
        if (status == SPEC_OK || !strstr(spec_last_error(), cases[i].part))
            fail_msg("%s: %s", cases[i].name, status ? spec_last_error() : "opened");
        assert_int_equal(support_directory_delete(dir), 0);
    }
}

static void expect_ids(const spec_tokenizer *t, const char *text, const int32_t *id, size_t n, const char *what)
{
    ids list = encode(t, text, strlen(text), 0);
    if (list.n != n || memcmp(list.id, id, n * sizeof *id) != 0)
        fail_msg("%s, \"%s\": %zu ids, the first %d", what, text, list.n, list.n ? list.id[0] : -1);
    free(list.id);
}

/* What the tokenizers package (0.23.3) makes of a text whose spaces go: only where none did is a mark put in front. */
static void test_stripped(void **state)
{
    static const char form[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":{\"type\":\"Strip\",\"strip_left\":%s,\"strip_right\":true},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":true},"
        "\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xE2\x96\x81\":1,"
        "\"\xE2\x96\x81""a\":2,\"b\":3,\"\xE2\x96\x81""b\":4},\"merges\":[[\"\xE2\x96\x81\",\"a\"],[\"\xE2\x96\x81\",\"b\"]]}}";
    static const struct {
        const char *left, *text;
        size_t n;
        int32_t ids[3];
    } cases[] = {
        { "true", "a", 1, { 2 } },           { "true", "  a", 1, { 0 } },         { "true", " a b  ", 2, { 0, 4 } },
        { "true", "a b  ", 2, { 2, 4 } },    { "false", "a", 1, { 2 } },          { "false", "  a", 2, { 1, 2 } },
        { "false", " a b  ", 2, { 2, 4 } },  { "false", "a b  ", 2, { 2, 4 } },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char json[sizeof form + 8];
        spec_tokenizer *t;
        const int n = snprintf(json, sizeof json, form, cases[i].left);
        OK(open_bytes(&t, json, (size_t)n, NULL));
        expect_ids(t, cases[i].text, cases[i].ids, cases[i].n, path_of("strip_left %s", cases[i].left));
        spec_tokenizer_close(t);
    }
}

/* What the tokenizers package (0.23.3) makes of merges whose right halves have a prefix: what they become has it once. */
static void test_prefixed(void **state)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
        "\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\","
        "\"vocab\":{\"a\":0,\"##b\":1,\"ab\":2,\"##c\":3,\"##bc\":4,\"abc\":5},"
        "\"merges\":[[\"a\",\"##b\"],[\"##b\",\"##c\"],[\"ab\",\"##c\"]]}}";
    static const struct {
        const char *text;
        size_t n;
        int32_t ids[2];
    } cases[] = { { "ab", 1, { 2 } }, { "abc", 1, { 5 } }, { "abbc", 2, { 2, 4 } }, { "ac", 2, { 0, 3 } } };
    spec_tokenizer *t;
    (void)state;
    OK(open_bytes(&t, json, sizeof json - 1, NULL));
    for (size_t i = 0; i < COUNT(cases); i++) expect_ids(t, cases[i].text, cases[i].ids, cases[i].n, "a prefix");
    spec_tokenizer_close(t);
}

/* The table of Nmt, of all characters, as the tokenizers package (0.23.3) has it: how many become spaces and how many go, and the sums of
 * their numbers. */
static void test_nmt(void **state)
{
    speci_norm nmt = { .kind = SPECI_NORM_NMT };
    const speci_buf norms = { .data = (char *)&nmt, .n = sizeof nmt };
    speci_norm_work work = { .a = { .a = &speci_malloc }, .b = { .a = &speci_malloc } };
    int64_t n_space = 0, n_gone = 0, spaces = 0, gone = 0;
    (void)state;
    for (int32_t c = 1; c < 0x110000; c++) {
        char text[4];
        const char *out;
        size_t n_out;
        bool origin = true;
        if (c >= 0xD800 && c < 0xE000) continue;
        const size_t n = speci_utf8_encode(text, c);
        OK(speci_normalize(&norms, text, n, &origin, &work, &out, &n_out));
        if (n_out == 0) n_gone++, gone += c;
        else if (n_out == 1 && *out == ' ') n_space++, spaces += c;
        else if (n_out != n || memcmp(out, text, n) != 0) fail_msg("U+%04X is changed", (unsigned)c);
    }
    assert_true(n_space == 16 && spaces == 203739 && n_gone == 30 && gone == 881);
    speci_buf_free(&work.a), speci_buf_free(&work.b);
}

/* Each byte that is no character may become U+FFFD: piece_max has room for that. */
static void test_broken_piece(void **state)
{
    enum { ID = 20000, N = 40 };
    char patch[256], text[4 * N];
    int32_t id = ID;
    spec_tokenizer *t;
    size_t n;
    (void)state;
    int at = snprintf(patch, sizeof patch, "{\"model\": {\"vocab\": {\"");
    for (int i = 0; i < N; i++) patch[at++] = (char)0xC3, patch[at++] = (char)0xBF; /* GPT-2's character of the byte 0xFF */
    (void)snprintf(patch + at, sizeof patch - (size_t)at, "\": %d}, \"merges\": []}}", ID);
    OK(open_patched(&t, "gpt2-style", patch));
    free(decode(t, &id, 1, 0, &n));
    assert_int_equal(n, 3 * N);
    assert_true(support_tokenizer_info(t).piece_max >= 3 * N);
    OK(spec_tokenizer_decode(t, text, sizeof text, &n, &id, 1, 0));
    spec_tokenizer_close(t);
}

/* A file that is larger than any of its kind is not read. */
static void test_too_large(void **state)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model" }, *const begins[] = { "{", "\n" };
    spec_tokenizer *t;
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        char dir[SUPPORT_DIRECTORY];
        assert_non_null(support_directory_new(dir));
        support_write(path_of("%s/%s", dir, names[i]), begins[i], 1);
        assert_int_equal(truncate(path_of("%s/%s", dir, names[i]), ((off_t)1 << 28) + 1), 0);
        FAILS(spec_tokenizer_open(&t, dir, NULL), SPEC_E_FORMAT, "more than 268435456 bytes, which is too large");
        assert_int_equal(support_directory_delete(dir), 0);
    }
}

/* A pattern that would take longer than the universe gives up with a message. */
static void test_step_limit(void **state)
{
    spec_tokenizer *t;
    size_t n;
    char text[64];
    (void)state;
    memset(text, 'a', sizeof text);
    OK(open_patched(&t, "gpt2-style",
                    "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
                    "\"(?:a|aa|aaa)+[bc]\"}, \"behavior\": \"Isolated\"}}"));
    FAILS(spec_tokenizer_encode(t, NULL, 0, &n, text, sizeof text, 0), SPEC_E_UNSUPPORTED, "gave up");
    spec_tokenizer_close(t);
}

/* ------------------------------------------------------------------------- arguments and results --- */

static void test_arguments(void **state)
{
    spec_tokenizer *t;
    int32_t id[8], minus = -1, beyond = 100000;
    char text[8];
    size_t n;
    spec_text_stream stream = { { 0 }, 0, 0 }, wrong = { { 0 }, 9, 0 };
    (void)state;
    FAILS(spec_tokenizer_open(&t, GOLDEN, NULL), SPEC_E_IO, "neither tokenizer.json nor tokenizer.model");
    FAILS(spec_tokenizer_open(&t, "/nonexistent/x.json", NULL), SPEC_E_IO, "/nonexistent/x.json");
    OK(spec_tokenizer_open(&t, GOLDEN "/gpt2-style", NULL));
    FAILS(spec_tokenizer_encode(t, id, 8, &n, "ab\xff", 3, 0), SPEC_E_INVALID, "byte 2 is 0xFF");
    FAILS(spec_tokenizer_encode(t, id, 8, &n, "\xed\xa0\x80", 3, 0), SPEC_E_INVALID, "byte 0");
    FAILS(spec_tokenizer_encode(t, id, 8, &n, "a", 1, 64), SPEC_E_INVALID, "flags");
    FAILS(spec_tokenizer_encode(t, id, 1, &n, "x y z", 5, 0), SPEC_E_FULL, "room for 1");
    assert_true(n > 1);
    FAILS(spec_tokenizer_decode(t, text, 8, &n, &minus, 1, 0), SPEC_E_INVALID, "-1");
    OK(spec_tokenizer_decode(t, text, 8, &n, &beyond, 1, 0)); /* padding of the head: says nothing */
    assert_int_equal(n, 0);
    FAILS(spec_text_stream_push(&wrong, text, 8, &n, t, 0, 0), SPEC_E_INVALID, "zero");
    FAILS(spec_text_stream_push(&stream, text, 0, &n, t, 1, 0), SPEC_E_FULL, "room for 0");
    OK(spec_text_stream_push(&stream, text, 8, &n, t, 1, 0)); /* nothing was lost */
    assert_int_equal(n, 1);
    assert_null(spec_tokenizer_piece(t, &n, -1));
    assert_null(spec_tokenizer_piece(t, &n, beyond));
    assert_non_null(spec_tokenizer_piece(t, &n, 0));
    assert_int_equal(n, 1);
    assert_false(spec_tokenizer_is_special(t, 0));
    assert_true(spec_tokenizer_is_special(t, support_tokenizer_info(t).n_vocab - 1));
    spec_tokenizer_close(t);
    spec_tokenizer_close(NULL);
}

/* Characters whose bytes are spread over tokens; broken ones. Ids of the byte alphabet: byte 0xE2 is 158, 0x82 226... */
static void test_stream(void **state)
{
    static const char *const texts[] = { "\xe2\x82\xac", "\xf0\x9f\x98\x80 \xc3\xa9" };
    spec_tokenizer *t;
    size_t n;
    (void)state;
    OK(spec_tokenizer_open(&t, GOLDEN "/gpt2-style", NULL));
    for (size_t i = 0; i < COUNT(texts); i++) {
        ids list = encode(t, texts[i], strlen(texts[i]), 0);
        char *text = decode(t, list.id, list.n, 0, &n);
        assert_string_equal(text, texts[i]);
        free(text);
        text = decode(t, list.id, list.n - 1, 0, &n); /* ends inside a character: U+FFFD, once */
        assert_true(n >= 3 && memcmp(text + n - 3, "\xef\xbf\xbd", 3) == 0);
        free(text);
        free(list.id);
    }
    spec_tokenizer_close(t);
    /* With byte fallback each broken byte is one U+FFFD, and characters of the same run stay. */
    static const int32_t run[] = { 3 + 0xE2, 3 + 0x82, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 0xFF };
    OK(spec_tokenizer_open(&t, GOLDEN "/spm-prepend", NULL));
    char *text = decode(t, run, COUNT(run), 0, &n);
    assert_string_equal(text, "\xef\xbf\xbd\xef\xbf\xbd\xe2\x82\xac\xef\xbf\xbd");
    free(text);
    spec_tokenizer_close(t);
}

/* A stream that goes on after a prompt gives what the whole text has beyond the prompt's, for every token: the space
 * that SentencePiece and Strip take off the beginning of a text is not taken off the first new token. */
static void check_going_on(const char *path)
{
    spec_tokenizer *t;
    size_t n, n_whole, part, n_end, n_spaces = 0;
    OK(spec_tokenizer_open(&t, path, NULL));
    ids prompt = encode(t, "a b", 3, 0);
    int32_t *both = malloc((prompt.n + 1) * sizeof *both);
    memcpy(both, prompt.id, prompt.n * sizeof *both);
    free(decode(t, prompt.id, prompt.n, 0, &n));
    char *text = malloc(support_tokenizer_info(t).piece_max + 32);
    for (int32_t id = 0; id < support_tokenizer_info(t).n_vocab; id++) {
        spec_text_stream stream = { .n_tokens = (int32_t)prompt.n };
        both[prompt.n] = id;
        char *whole = decode(t, both, prompt.n + 1, 0, &n_whole);
        OK(spec_text_stream_push(&stream, text, support_tokenizer_info(t).piece_max + 16, &part, t, id, 0));
        OK(spec_text_stream_end(&stream, text + part, 16, &n_end));
        if (part + n_end != n_whole - n || memcmp(text, whole + n, part + n_end) != 0)
            fail_msg("%s: token %d goes on with \"%.*s\", expected \"%s\"", path, id, (int)(part + n_end), text, whole + n);
        n_spaces += part > 0 && text[0] == ' ';
        free(whole);
    }
    assert_true(n_spaces > 1);
    free(text);
    free(both);
    free(prompt.id);
    spec_tokenizer_close(t);
}

static void test_going_on(void **state)
{
    static const char *const models[] = { "plain", "bytes", "extra", "noprefix" };
    static const char *const jsons[] = { "gpt2-style", "llama3-style", "spm-metaspace", "spm-prepend" };
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++)
        check_going_on(path_of(SPEC_TEST_DIR "/tokenizer_spm/%s.model", models[i]));
    for (size_t i = 0; i < COUNT(jsons); i++) check_going_on(path_of(GOLDEN "/%s", jsons[i]));
}

/* A directory with a copy of `base`, a file below tests/, and `files`, { name: content }. */
static void make_dir(char *dir, const char *base, const json_t *files)
{
    char *data;
    const char *name;
    json_t *content;
    size_t n;
    assert_non_null(support_directory_new(dir));
    OK(speci_file_read(&data, &n, path_of(SPEC_TEST_DIR "/%s", base), 1 << 24, NULL));
    support_write(path_of("%s/tokenizer%s", dir, strrchr(base, '.')), data, n);
    speci_free(NULL, data);
    json_object_foreach((json_t *)(uintptr_t)files, name, content)
        assert_int_equal(json_dump_file(content, path_of("%s/%s", dir, name), JSON_ENCODE_ANY), 0);
}

static void expect_number(const json_t *line, const char *key, int32_t found)
{
    if (found != json_integer_value(json_object_get(line, key)))
        fail_msg("%s: %s is %d, expected %d", json_string_value(json_object_get(line, "name")), key, found,
                 (int)json_integer_value(json_object_get(line, key)));
}

static void beside_line(void *arg, json_t *line, const char *where)
{
    char dir[SUPPORT_DIRECTORY];
    spec_tokenizer *t;
    (void)arg, (void)where;
    make_dir(dir, json_string_value(json_object_get(line, "base")), json_object_get(line, "files"));
    OK(spec_tokenizer_open(&t, dir, NULL));
    check_ids(t, json_object_get(line, "text"), SPEC_TOKEN_ADD_SPECIAL | SPEC_TOKEN_PARSE_SPECIAL, json_object_get(line, "ids"),
              json_string_value(json_object_get(line, "name")));
    check_ids(t, json_object_get(line, "text"), SPEC_TOKEN_ADD_SPECIAL, json_object_get(line, "ids_split"),
              json_string_value(json_object_get(line, "name")));
    expect_number(line, "n_vocab", support_tokenizer_info(t).n_vocab);
    /* The package knows no BOS that only a post-processor names. */
    if (json_integer_value(json_object_get(line, "bos")) >= 0) expect_number(line, "bos", support_tokenizer_info(t).bos);
    expect_number(line, "eos", support_tokenizer_info(t).eos);
    spec_tokenizer_close(t);
    assert_int_equal(support_directory_delete(dir), 0);
}

/* BOS and EOS from tokenizer_config.json, as strings and as objects, and add_bos_token for a tokenizer.model. */
static void test_config(void **state)
{
    static const char config[] = "{\"tokenizer_config.json\": {\"bos_token\": {\"content\": \"</s>\"},"
                                 " \"eos_token\": \"<s>\",\"add_bos_token\": false, \"add_eos_token\": true}}";
    char dir[SUPPORT_DIRECTORY];
    json_t *files = json_loads(config, 0, NULL);
    spec_tokenizer *t;
    (void)state;
    make_dir(dir, "tokenizer_spm/plain.model", files);
    OK(spec_tokenizer_open(&t, dir, NULL));
    assert_int_equal(support_tokenizer_info(t).bos, 2);
    assert_int_equal(support_tokenizer_info(t).eos, 1);
    ids list = encode(t, "", 0, SPEC_TOKEN_ADD_SPECIAL);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.id[0], 1);
    free(list.id);
    spec_tokenizer_close(t);
    assert_int_equal(support_directory_delete(dir), 0);
    json_decref(files);
}

static void test_beside(void **state)
{
    (void)state;
    size_t n = each_line(SPEC_TEST_DIR "/tokenizer_beside.jsonl", beside_line, NULL);
    print_message("%zu tokenizers with files beside them\n", n);
}

/* What AutoTokenizer would give another id than the file says, and files that are broken. */
static void test_beside_refused(void **state)
{
    static const struct {
        const char *files, *part;
    } cases[] = {
        { "{\"added_tokens.json\": {\"<x>\": 50}}", "added_tokens.json: the added token '<x>' has the id 50, expected" },
        { "{\"added_tokens.json\": {\"<x>\": 9000}}", "has the id 9000, expected" },
        { "{\"added_tokens.json\": {\"<x>\": \"one\"}}", "the id of '<x>' is missing or wrong" },
        { "{\"tokenizer_config.json\": {\"added_tokens_decoder\": {\"50\": {\"content\": \"<x>\"}}}}", "'<x>' has the id 50" },
        { "{\"tokenizer_config.json\": {\"added_tokens_decoder\": {\"x\": {\"content\": \"<x>\"}}}}", "the id of 'x'" },
        { "{\"tokenizer_config.json\": {\"added_tokens_decoder\": {\"99999999999\": {\"content\": \"<x>\"}}}}", "99999999999" },
        { "{\"tokenizer_config.json\": {\"added_tokens_decoder\": {\"50\": {}}}}", "\"content\" is missing" },
        { "{\"tokenizer_config.json\": {\"added_tokens_decoder\": {\"50\": {\"content\": \"<x>\", \"lstrip\": 1}}}}", "lstrip" },
    };
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        char dir[SUPPORT_DIRECTORY];
        json_t *files = json_loads(cases[i / 2].files, 0, NULL);
        spec_tokenizer *t;
        assert_non_null(files);
        make_dir(dir, i % 2 ? "tokenizer_spm/bytes.model" : "golden/tokenizers/gpt2-style/tokenizer.json", files);
        FAILS(spec_tokenizer_open(&t, dir, NULL), SPEC_E_FORMAT, cases[i / 2].part);
        assert_int_equal(support_directory_delete(dir), 0);
        json_decref(files);
    }
}

/* A vocabulary with a gap: the id that the next token would get is another token's. */
static void test_beside_taken(void **state)
{
    char dir[SUPPORT_DIRECTORY];
    spec_tokenizer *t;
    (void)state;
    json_t *files = json_loads("{\"tokenizer.json\": {\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 2}, \"merges\": []}},"
                               " \"added_tokens.json\": {\"<x>\": 2}}", 0, NULL);
    assert_non_null(files);
    make_dir(dir, "golden/tokenizers/gpt2-style/tokenizer.json", files);
    FAILS(spec_tokenizer_open(&t, dir, NULL), SPEC_E_FORMAT, "the added token '<x>' would get the id 2, which 'b' has");
    assert_int_equal(support_directory_delete(dir), 0);
    json_decref(files);
}

/* ----------------------------------------------------------------------------- things that go wrong --- */

static void truncate_all(const char *path, size_t step)
{
    char *data;
    size_t n;
    OK(speci_file_read(&data, &n, path, 1 << 24, NULL));
    for (size_t cut = 0; cut < n; cut += step) {
        spec_tokenizer *t;
        spec_status status = open_bytes(&t, data, cut, NULL);
        if (status == SPEC_OK) { /* a protobuf message may end after any field */
            ids list = encode(t, "a b", 3, 0);
            free(list.id);
        }
        spec_tokenizer_close(t);
    }
    speci_free(NULL, data);
}

static void test_truncated(void **state)
{
    (void)state;
    truncate_all(SPEC_TEST_DIR "/tokenizer_spm/bytes.model", 7);
    truncate_all(GOLDEN "/llama3-style/tokenizer.json", 61);
}

/* Opens and encodes with every allocation failing once, in steps. (A pattern whose machine code could not be made runs
 * all the same, hence SPEC_OK.) */
static void fail_all(const char *path)
{
    bool done = false;
    for (int64_t at = 1; !done; at += 1 + at / 40) {
        support_memory f = { .fail_at = at };
        const spec_allocator a = support_allocator(&f);
        spec_tokenizer *t;
        int32_t id[64];
        size_t n;
        static const char text[] = "Don\'t <s> na\xc3\xafve  12";
        spec_status status = spec_tokenizer_open(&t, path, &a);
        if (status == SPEC_OK) status = spec_tokenizer_encode(t, id, 64, &n, text, sizeof text - 1, 3);
        done = f.n_call < at;
        assert_true(status == SPEC_OK || (status == SPEC_E_NOMEM && !done));
        spec_tokenizer_close(t);
        assert_int_equal(f.n_block, 0);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    fail_all(GOLDEN "/llama3-style");
    fail_all(GOLDEN "/qwen2-style");
    fail_all(GOLDEN "/spm-prepend");
    fail_all(SPEC_TEST_DIR "/tokenizer_spm/bytes.model");
    char dir[SUPPORT_DIRECTORY];
    json_t *files = json_loads("{\"added_tokens.json\": {\"<x>\": 513, \"he\": 7},"
                               " \"special_tokens_map.json\": {\"eos_token\": \"<x>\"}}", 0, NULL);
    make_dir(dir, "golden/tokenizers/gpt2-style/tokenizer.json", files);
    fail_all(dir);
    assert_int_equal(support_directory_delete(dir), 0);
    json_decref(files);
}

static void *encode_often(void *arg)
{
    static const char text[] = "Threads share a tokenizer; each call has its own memory. \xc3\xa9\xf0\x9f\x98\x80 1234";
    intptr_t total = 0;
    for (int i = 0; i < 200; i++) {
        int32_t id[256];
        size_t n = 0;
        if (spec_tokenizer_encode(arg, id, 256, &n, text, sizeof text - 1, 0) != SPEC_OK) return NULL;
        total += (intptr_t)n;
    }
    return (void *)total;
}

static void test_threads(void **state)
{
    spec_tokenizer *t;
    pthread_t thread[4];
    void *total[4], *expected;
    (void)state;
    OK(spec_tokenizer_open(&t, GOLDEN "/llama3-style", NULL));
    expected = encode_often(t);
    assert_non_null(expected);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], &total[i]);
    for (int i = 0; i < 4; i++) assert_ptr_equal(total[i], expected);
    spec_tokenizer_close(t);
}

/* 1 MB of one character, of one word, of marks in the wrong order: nothing is quadratic. The bound is loose, for slow
 * machines and sanitizers; a quadratic step would take an hour. */
static void test_long(void **state)
{
    static const char *const names[] = { "gpt2-style", "llama3-style", "qwen2-style", "spm-metaspace" };
    static const char *const units[] = {
        "a", "the", " ", "\n", " \n", "<", "1", "'", "\xcc\x81\xcc\xa3", "\xf0\x9f\x98\x80"
    };
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES + 8);
    (void)state;
    for (size_t i = 0; i < COUNT(names) * COUNT(units); i++) {
        const char *name = names[i / COUNT(units)], *unit = units[i % COUNT(units)];
        spec_tokenizer *t;
        size_t n = 0, count, len = strlen(unit);
        while (n + len <= BYTES) {
            memcpy(text + n, unit, len);
            n += len;
        }
        OK(spec_tokenizer_open(&t, path_of(GOLDEN "/%s", name), NULL));
        double start = speci_now_ms();
        (void)spec_tokenizer_encode(t, NULL, 0, &count, text, n, 0);
        assert_true(count > 0);
        if (speci_now_ms() - start > 30000) fail_msg("%s: 1 MB of '%s' takes over 30 s", name, unit);
        spec_tokenizer_close(t);
    }
    free(text);
}

/* ------------------------------------------------------------------------------- shared data --- */

/* SHA-256 (FIPS 180-4), for the hashes of whole files' encodings. */
typedef struct sha256 {
    uint32_t h[8];
    uint8_t block[64];
    uint64_t n;
} sha256;

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(sha256 *s)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a =
            v[7] + (rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t b =
            (rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += a;
        v[0] = a + b;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void sha256_add(sha256 *s, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s->block[s->n++ % 64] = ((const uint8_t *)data)[i];
        if (s->n % 64 == 0) sha256_block(s);
    }
}

static void sha256_hex(sha256 *s, char hex[65])
{
    uint64_t bits = s->n * 8;
    uint8_t tail[8];
    sha256_add(s, "\x80", 1);
    while (s->n % 64 != 56) sha256_add(s, "", 1);
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, tail, 8);
    for (int i = 0; i < 8; i++) sprintf(hex + 8 * i, "%08x", (unsigned)s->h[i]);
}

typedef struct whole_file {
    const spec_tokenizer *t;
    uint32_t flags;
    size_t n_texts, n_ids;
    sha256 sha;
} whole_file;

/* Every string of a value, in order, nested ones too; what is encoded must decode to itself. */
static void hash_strings(whole_file *w, const json_t *value)
{
    json_t *item;
    const char *key;
    size_t i, n;
    json_array_foreach((json_t *)(uintptr_t)value, i, item) hash_strings(w, item);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) hash_strings(w, item);
    if (!json_is_string(value)) return;
    ids list = encode(w->t, json_string_value(value), json_string_length(value), w->flags);
    sha256_add(&w->sha, list.id, list.n * sizeof *list.id); /* little-endian machines */
    char *text = decode(w->t, list.id, list.n, 0, &n);
    assert_int_equal(n, json_string_length(value));
    assert_memory_equal(text, json_string_value(value), n);
    free(text);
    free(list.id);
    w->n_texts++;
    w->n_ids += list.n;
}

static void hash_line(void *arg, json_t *line, const char *where)
{
    (void)where;
    hash_strings(arg, line);
}

static void check_hashes(const spec_tokenizer *t, uint32_t flags, const json_t *files, const char *name)
{
    const char *file;
    json_t *expected;
    size_t n_texts = 0, n_ids = 0;
    json_object_foreach((json_t *)(uintptr_t)files, file, expected)
    {
        char hex[65];
        whole_file w = { .t = t, .flags = flags };
        static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
        memcpy(w.sha.h, start, sizeof start);
        each_line(path_of("%s/data/prompts/%s", shared(), file), hash_line, &w);
        sha256_hex(&w.sha, hex);
        if (strcmp(hex, json_string_value(json_object_get(expected, "sha256"))) != 0)
            fail_msg("%s: %s: %zu texts, %zu ids, other ids than expected", name, file, w.n_texts, w.n_ids);
        n_texts += w.n_texts;
        n_ids += w.n_ids;
    }
    print_message("%s: %zu texts, %zu ids\n", name, n_texts, n_ids);
}

static void test_hashes(void **state)
{
    static const struct {
        const char *key, *path;
        uint32_t flags;
    } cases[] = {
        { "shared", "models/llama-target", SPEC_TOKEN_PARSE_SPECIAL },
        { "gpt2", "data/tokenizers/gpt2", SPEC_TOKEN_PARSE_SPECIAL },
        { "gpt-neox", "data/tokenizers/gpt-neox", SPEC_TOKEN_PARSE_SPECIAL },
        { "mistral-spm", "data/tokenizers/mistral-spm", 0 },
    };
    json_t *hashes;
    (void)state;
    const char *dir = shared();
    OK(speci_json_read(&hashes, GOLDEN "/prompt_hashes.json", 1 << 20, NULL));
    for (size_t i = 0; i < COUNT(cases); i++) {
        spec_tokenizer *t;
        OK(spec_tokenizer_open(&t, path_of("%s/%s", dir, cases[i].path), NULL));
        check_hashes(t, cases[i].flags, json_object_get(hashes, cases[i].key), cases[i].key);
        spec_tokenizer_close(t);
    }
    json_decref(hashes);
}

static void test_mistral(void **state)
{
    spec_tokenizer *t;
    (void)state;
    OK(spec_tokenizer_open(&t, path_of("%s/data/tokenizers/mistral-spm", shared()), NULL));
    each_line(GOLDEN "/mistral.jsonl", spm_line, t);
    spec_tokenizer_close(t);
}

/* vectors.inp: texts with a line "__ggml_vocab_test__" between them; vectors.out: a line of ids for each. */
static size_t check_vectors(const spec_tokenizer *t, const char *dir)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    char *inp, *out;
    size_t n_inp, n_out, count = 0;
    OK(speci_file_read(&inp, &n_inp, path_of("%s/vectors.inp", dir), 1 << 20, NULL));
    OK(speci_file_read(&out, &n_out, path_of("%s/vectors.out", dir), 1 << 20, NULL));
    char *text = inp, *line = out;
    for (;;) {
        char *end = strstr(text, between);
        ids list = encode(t, text, end ? (size_t)(end - text) : strlen(text), SPEC_TOKEN_PARSE_SPECIAL);
        for (size_t i = 0; i < list.n; i++)
            if (strtol(line, &line, 10) != list.id[i]) fail_msg("%s: text %zu, id %zu differs", dir, count, i);
        line += strspn(line, " ");
        if (*line && *line != '\n') fail_msg("%s: text %zu has too few ids", dir, count);
        free(list.id);
        count++;
        if (!end) break;
        text = end + strlen(between);
        if (*line) line++;
    }
    speci_free(NULL, inp);
    speci_free(NULL, out);
    return count;
}

static void test_vectors(void **state)
{
    static const char *const names[] = { "gpt2", "gpt-neox" };
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        spec_tokenizer *t;
        const char *dir = path_of("%s/data/tokenizers/%s", shared(), names[i]);
        OK(spec_tokenizer_open(&t, dir, NULL));
        assert_int_equal(check_vectors(t, dir), 47);
        spec_tokenizer_close(t);
    }
}

/* Does an end of `a` begin b, or is b in a? */
static bool runs_into(const char *a, const char *b)
{
    for (size_t i = 0; a[i]; i++)
        if (strncmp(a + i, b, strlen(a + i) < strlen(b) ? strlen(a + i) : strlen(b)) == 0) return true;
    return false;
}

/* Which tokens overlap others, against each with each: sets of short strings of a few letters. */
static void test_overlaps(void **state)
{
    (void)state;
    enum { MOST = 8, LENGTH = 5 };
    test_random random = { 17 };
    int32_t n_true = 0, n_false = 0;
    for (int32_t set = 0; set < 3000; set++) {
        spec_tokenizer t = { .allocator = speci_malloc };
        char strings[MOST][LENGTH + 1];
        bool normalized[MOST], found[MOST];
        int32_t n = 0;
        speci_added_init(&t.added, &t.allocator);
        for (int32_t i = 0, most = 2 + test_below(&random, MOST - 1); i < most; i++) {
            const int32_t len = 1 + test_below(&random, LENGTH);
            for (int32_t k = 0; k < len; k++) strings[n][k] = "abcdefgh"[test_below(&random, 2 + set % 7)];
            strings[n][len] = 0;
            if (speci_vocab_find(&t.added.ids, strings[n], (size_t)len) >= 0) continue;
            const speci_added token = { .id = n, .normalized = normalized[n] = test_below(&random, 2) };
            OK(speci_added_put(&t.added, strings[n++], (size_t)len, &token));
        }
        OK(speci_added_place(&t));
        OK(speci_added_overlaps(found, &t.added));
        for (int32_t i = 0; i < n; i++) {
            bool want = false;
            for (int32_t k = 0; k < n && normalized[i]; k++)
                want = want || (!normalized[k] && (runs_into(strings[i], strings[k]) || runs_into(strings[k], strings[i])));
            if (found[i] != want) fail_msg("set %d: %s: %d, expected %d", set, strings[i], found[i], want);
            n_true += want, n_false += normalized[i] && !want;
        }
        speci_added_free(&t.added);
    }
    assert_true(n_true > 1000 && n_false > 1000);
}

/* A character that is cut off ends what is valid, whatever stands behind it. White space is what Unicode says. */
static void test_utf8(void **state)
{
    (void)state;
    static const int32_t edges[] = { 0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF };
    for (size_t i = 0; i < COUNT(edges); i++) {
        char text[1 + 4 + 4] = "a";
        const size_t len = speci_utf8_encode(text + 1, edges[i]);
        memcpy(text + 1 + len, text + 1, len);
        for (size_t n = 0; n <= 1 + 2 * len; n++)
            assert_int_equal(speci_utf8_check(text, n), n == 0 ? 0 : n < 1 + len ? 1 : n < 1 + 2 * len ? 1 + len : 1 + 2 * len);
    }
    for (int32_t cp = 0; cp <= 0x10FFFF; cp++) {
        const utf8proc_category_t c = utf8proc_category(cp);
        const bool want = c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP ||
                          (cp >= 0x09 && cp <= 0x0D) || cp == 0x85;
        if (speci_is_space(cp) != want) fail_msg("U+%04X", (unsigned)cp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_spm),        cmocka_unit_test(test_components),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_step_limit), cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_stream),       cmocka_unit_test(test_config),     cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_threads),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_hashes),       cmocka_unit_test(test_mistral),    cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_going_on),     cmocka_unit_test(test_nul),        cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_too_large),    cmocka_unit_test(test_stripped),   cmocka_unit_test(test_beside_taken),
        cmocka_unit_test(test_broken_piece), cmocka_unit_test(test_nmt),
        cmocka_unit_test(test_beside),       cmocka_unit_test(test_beside_refused), cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_utf8),          cmocka_unit_test(test_prefixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
