/* test_tokenizer_gguf.c - tokenizers from the metadata of GGUF files: the same ids and texts as the files that they were made from,
 * published vectors, what is refused, chat templates. */
#define _POSIX_C_SOURCE 200809L /* strtok_r */

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/core_json.h"
#include "models/text/text_spm.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"
#include "tests/support_gguf.h"
#include "tests/support_memory.h"
#include "tests/support_model.h"

#define GOLDEN SPEC_TEST_DIR "/golden/tokenizers/"
#define SPM SPEC_TEST_DIR "/tokenizer_spm/"

static char file[128];

static int make_dir(void **state)
{
    const int failed = support_directory_make(state);
    snprintf(file, sizeof file, "%s/v.gguf", support_directory);
    return failed;
}

/* --- from a tokenizer.json, by its words alone --- */

typedef struct word {
    const char *s; /* NULL: no token has this id */
    int type;
} word;

static void put_words(gguf_bytes *b, const word *w, int32_t n)
{
    char pad[32];
    gguf_array(b, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) {
        snprintf(pad, sizeof pad, "[PAD%d]", i);
        gguf_string(b, w[i].s ? w[i].s : pad, strlen(w[i].s ? w[i].s : pad));
    }
    gguf_array(b, "tokenizer.ggml.token_type", SPECI_GGUF_I32, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) gguf_number(b, (uint64_t)(w[i].s ? w[i].type : SPM_UNUSED), 4);
}

static void put_merges(gguf_bytes *b, const json_t *merges)
{
    char line[8192];
    gguf_array(b, "tokenizer.ggml.merges", SPECI_GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_is_string(m)) snprintf(line, sizeof line, "%s", json_string_value(m));
        else snprintf(line, sizeof line, "%s %s", json_string_value(json_array_get(m, 0)), json_string_value(json_array_get(m, 1)));
        gguf_string(b, line, strlen(line));
    }
}

/* The tokenizer of dir_json as a converter would write it, with three rows more than it has ids. bos < 0: none. */
static gguf_bytes words_of(const char *dir_json, const char *pre, int32_t bos, int32_t eos)
{
    char path[4096];
    json_t *root, *id;
    const char *key;
    size_t i;
    static word words[1 << 17];
    int32_t n = 0;
    memset(words, 0, sizeof words);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir_json);
    OK(speci_json_read(&root, path, 1 << 26, NULL));
    json_object_foreach(json_object_get(json_object_get(root, "model"), "vocab"), key, id) {
        words[json_integer_value(id)] = (word){ key, SPM_NORMAL };
        if (json_integer_value(id) >= n) n = (int32_t)json_integer_value(id) + 1;
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, id) {
        const json_int_t at = json_integer_value(json_object_get(id, "id"));
        const bool special = json_is_true(json_object_get(id, "special"));
        words[at] = (word){ json_string_value(json_object_get(id, "content")), special ? SPM_CONTROL : SPM_USER_DEFINED };
        if (at >= n) n = (int32_t)at + 1;
    }
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 0, (uint64_t)(5 + (bos >= 0) + (eos >= 0)));
    gguf_text(&b, "tokenizer.ggml.model", "gpt2");
    gguf_text(&b, "tokenizer.ggml.pre", pre);
    put_words(&b, words, n + 3);
    put_merges(&b, json_object_get(json_object_get(root, "model"), "merges"));
    if (bos >= 0) gguf_u32(&b, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    if (eos >= 0) gguf_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    json_decref(root);
    return b;
}

static spec_tokenizer *open_gguf(gguf_bytes b)
{
    spec_tokenizer *t = NULL;
    support_write(file, b.data, b.n);
    free(b.data);
    OK(spec_tokenizer_open(&t, file, NULL));
    return t;
}

/* --- the same --- */

static size_t encode(const spec_tokenizer *t, int32_t **ids, const char *text, size_t n_text, uint32_t flags)
{
    size_t n = 0;
    const size_t cap = n_text + 16;
    *ids = malloc(cap * sizeof **ids);
    OK(spec_tokenizer_encode(t, *ids, cap, &n, text, n_text, flags));
    return n;
}

static void same_text(const spec_tokenizer *a, const spec_tokenizer *b, const int32_t *ids, size_t n)
{
    for (int32_t skip = 0; skip < 2; skip++) {
        const uint32_t flags = skip ? SPEC_TOKEN_SKIP_SPECIAL : 0;
        static char text[2][1 << 16];
        size_t n_text[2];
        OK(spec_tokenizer_decode(a, text[0], sizeof text[0], &n_text[0], ids, n, flags));
        OK(spec_tokenizer_decode(b, text[1], sizeof text[1], &n_text[1], ids, n, flags));
        assert_int_equal(n_text[0], n_text[1]);
        assert_memory_equal(text[0], text[1], n_text[0]);
    }
}

static void same_ids(const spec_tokenizer *a, const spec_tokenizer *b, const char *text, size_t n_text)
{
    for (uint32_t flags = 0; flags < 4; flags++) {
        int32_t *x, *y;
        const size_t n = encode(a, &x, text, n_text, flags), n_other = encode(b, &y, text, n_text, flags);
        if (n != n_other || memcmp(x, y, n * sizeof *x) != 0)
            fail_msg("\"%s\", flags %u: %zu ids and %zu, or others", text, flags, n, n_other);
        same_text(a, b, x, n);
        free(x);
        free(y);
    }
}

/* Every text of a file of vectors. */
static size_t same_vectors(const spec_tokenizer *a, const spec_tokenizer *b, const char *path)
{
    char *lines, *line, *rest;
    size_t n, count = 0;
    OK(speci_file_read(&lines, &n, path, 1 << 26, NULL));
    for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), count++) {
        json_t *json;
        OK(speci_json_parse(&json, line, strlen(line), path));
        const json_t *text = json_object_get(json, "text");
        if (text) same_ids(a, b, json_string_value(text), json_string_length(text));
        json_decref(json);
    }
    speci_free(NULL, lines);
    assert_true(count > 50);
    return count;
}

static void bpe(void **state)
{
    static const struct {
        const char *name, *pre;
        int32_t bos, eos;
    } cases[] = { { "gpt2-style", "gpt-2", -1, 512 }, { "gpt_neox-style", "mpt", 600, 600 }, { "gpt_neox-style", "olmo", -1, -1 },
                  { "llama3-style", "llama-bpe", 640, 641 }, { "qwen2-style", "qwen2", -1, 600 } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[4096];
        spec_tokenizer *own = NULL;
        snprintf(path, sizeof path, GOLDEN "%s", cases[i].name);
        OK(spec_tokenizer_open(&own, path, NULL));
        spec_tokenizer *t = open_gguf(words_of(path, cases[i].pre, cases[i].bos, cases[i].eos));
        snprintf(path, sizeof path, GOLDEN "%s/vectors.jsonl", cases[i].name);
        same_vectors(own, t, path);
        assert_int_equal(support_tokenizer_info(t).n_vocab, support_tokenizer_info(own).n_vocab);
        assert_int_equal(support_tokenizer_info(t).bos, cases[i].bos);
        assert_int_equal(support_tokenizer_info(t).eos, cases[i].eos);
        for (int32_t id = 0; id < support_tokenizer_info(own).n_vocab; id++)
            assert_int_equal(spec_tokenizer_is_special(t, id), spec_tokenizer_is_special(own, id));
        spec_tokenizer_close(t);
        spec_tokenizer_close(own);
    }
}

/* Lines {"pre", "text", "ids"} (tools/make_pre_cases.py): tokenizers with the splits that the words stand for. */
static void pre_line(const spec_tokenizer *t, const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *wanted = json_object_get(line, "ids");
    int32_t *ids;
    const size_t n = encode(t, &ids, json_string_value(text), json_string_length(text), 0);
    bool same = n == json_array_size(wanted);
    for (size_t i = 0; same && i < n; i++) same = ids[i] == json_integer_value(json_array_get(wanted, i));
    if (!same) fail_msg("%s: \"%s\": other ids", json_string_value(json_object_get(line, "pre")), json_string_value(text));
    free(ids);
}

static void splits(void **state)
{
    char *lines, *line, *rest, before[64] = "";
    spec_tokenizer *t = NULL;
    size_t n, n_word = 0;
    (void)state;
    OK(speci_file_read(&lines, &n, GOLDEN "pre.jsonl", 1 << 24, NULL));
    for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json;
        OK(speci_json_parse(&json, line, strlen(line), "pre.jsonl"));
        const char *pre = json_string_value(json_object_get(json, "pre"));
        if (strcmp(pre, before) != 0) {
            spec_tokenizer_close(t);
            t = open_gguf(words_of(GOLDEN "gpt2-style", pre, -1, -1));
            snprintf(before, sizeof before, "%s", pre);
            n_word++;
        }
        pre_line(t, json);
        json_decref(json);
    }
    spec_tokenizer_close(t);
    speci_free(NULL, lines);
    assert_int_equal(n_word, 16);
}

/* --- from a tokenizer.model --- */

/* `llama`, from what the library has read of a SentencePiece model: scores by rank. */
static gguf_bytes pieces_as_gguf(const spec_tokenizer *t, bool prefix, bool remove_extra)
{
    gguf_bytes b = { 0 };
    const int32_t n = speci_vocab_n_id(&t->vocab);
    int32_t *type = calloc((size_t)n, sizeof *type);
    size_t len, index;
    for (int32_t id = 0; id < n; id++) {
        const char *s = speci_vocab_string(&t->vocab, id, &len);
        const bool defined = speci_trie_longest(&t->bpe.user_defined, s, len, &index, &(size_t){ 0 }) && (int32_t)index == id;
        type[id] = id == t->bpe.unk                   ? SPM_UNKNOWN
                   : spec_tokenizer_is_special(t, id) ? SPM_CONTROL
                   : defined                          ? SPM_USER_DEFINED
                                                      : SPM_NORMAL;
    }
    for (int k = 0; t->bpe.byte_fallback && k < 256; k++) type[t->bpe.byte_id[k]] = SPM_BYTE;
    gguf_head(&b, 3, 0, 6);
    gguf_text(&b, "tokenizer.ggml.model", "llama");
    gguf_flag(&b, "tokenizer.ggml.add_space_prefix", prefix);
    gguf_flag(&b, "tokenizer.ggml.remove_extra_whitespaces", remove_extra);
    gguf_array(&b, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, (uint64_t)n);
    for (int32_t id = 0; id < n; id++) {
        const char *s = speci_vocab_string(&t->vocab, id, &len);
        gguf_string(&b, s, len);
    }
    gguf_array(&b, "tokenizer.ggml.token_type", SPECI_GGUF_I32, (uint64_t)n);
    for (int32_t id = 0; id < n; id++) gguf_number(&b, (uint64_t)type[id], 4);
    gguf_array(&b, "tokenizer.ggml.scores", SPECI_GGUF_F32, (uint64_t)n);
    for (int32_t id = 0; id < n; id++) {
        const float score = t->bpe.rank[id] == UINT32_MAX ? 0.0f : -(float)t->bpe.rank[id];
        gguf_put(&b, &score, sizeof score);
    }
    free(type);
    return b;
}

static void sentence_piece(void **state)
{
    static const struct {
        const char *name;
        bool prefix, remove_extra;
    } cases[] = { { "plain", true, false }, { "bytes", true, false }, { "extra", true, true }, { "noprefix", false, false } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256], config[1024];
        spec_tokenizer *own = NULL;
        snprintf(path, sizeof path, "%s/tokenizer.model", support_directory);
        snprintf(config, sizeof config, "cp " SPM "%s.model %s", cases[i].name, path);
        assert_int_equal(system(config), 0);
        snprintf(config, sizeof config, "%s/tokenizer_config.json", support_directory);
        support_write(config, "{\"legacy\": true}", 16); /* as GGUF has it: a space behind special tokens, too */
        OK(spec_tokenizer_open(&own, path, NULL));
        spec_tokenizer *t = open_gguf(pieces_as_gguf(own, cases[i].prefix, cases[i].remove_extra));
        snprintf(path, sizeof path, SPM "%s.jsonl", cases[i].name);
        if (strcmp(cases[i].name, "noprefix") != 0) same_vectors(own, t, path); /* it has a text of its own for unknown pieces */
        assert_int_equal(support_tokenizer_info(t).bos, 1);
        assert_int_equal(support_tokenizer_info(t).eos, 2);
        spec_tokenizer_close(t);
        spec_tokenizer_close(own);
    }
}

/* Tokens that were added to the model split the text before anything else; pieces that it has itself do not. */
static void added_to_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        float score;
        int type;
    } pieces[] = { { "<unk>", 0, SPM_UNKNOWN }, { "<s>", 0, SPM_CONTROL }, { "</s>", 0, SPM_CONTROL }, { "a", -1, SPM_NORMAL },
                   { "\xE2\x96\x81", -2, SPM_NORMAL }, { "\xE2\x96\x81" "a", 0, SPM_NORMAL }, { "[in]", 0, SPM_USER_DEFINED },
                   { "[out]", -1000, SPM_USER_DEFINED }, { "[PAD8]", -10000, SPM_UNUSED } };
    enum { N = sizeof pieces / sizeof *pieces };
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 0, 7);
    gguf_text(&b, "tokenizer.ggml.model", "llama");
    gguf_text(&b, "tokenizer.ggml.pre", "default");
    gguf_array(&b, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, N);
    for (int i = 0; i < N; i++) gguf_string(&b, pieces[i].s, strlen(pieces[i].s));
    gguf_array(&b, "tokenizer.ggml.scores", SPECI_GGUF_F32, N);
    for (int i = 0; i < N; i++) gguf_put(&b, &pieces[i].score, 4);
    gguf_array(&b, "tokenizer.ggml.token_type", SPECI_GGUF_I32, N);
    for (int i = 0; i < N; i++) gguf_number(&b, (uint64_t)pieces[i].type, 4);
    gguf_flag(&b, "tokenizer.ggml.add_eos_token", true);
    gguf_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    spec_tokenizer *t = open_gguf(b);
    int32_t *ids;
    static const int32_t wanted[] = { 1, 5, 6, 3, 7, 5, 2 }, size = N;
    const size_t n = encode(t, &ids, "a[in]a[out]a", 12, SPEC_TOKEN_ADD_SPECIAL);
    assert_int_equal(n, 7);
    assert_memory_equal(ids, wanted, sizeof wanted);
    assert_int_equal(support_tokenizer_info(t).n_vocab, size);
    free(ids);
    spec_tokenizer_close(t);
}

/* --- published vectors --- */

static const char *shared(void)
{
    const char *where = getenv("SPEC_SHARED");
    if (!where) skip();
    return where;
}

/* vectors.inp: texts with a line "__ggml_vocab_test__" between them; vectors.out: a line of ids for each. */
static void check_vectors(const spec_tokenizer *t, const char *where)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    char path[4096], *inp, *out;
    size_t n_inp, n_out, count = 0;
    snprintf(path, sizeof path, "%s/vectors.inp", where);
    OK(speci_file_read(&inp, &n_inp, path, 1 << 20, NULL));
    snprintf(path, sizeof path, "%s/vectors.out", where);
    OK(speci_file_read(&out, &n_out, path, 1 << 20, NULL));
    char *text = inp, *line = out;
    for (char *end = text; end; text = end ? end + strlen(between) : text, count++) {
        int32_t *ids;
        end = strstr(text, between);
        const size_t n = encode(t, &ids, text, end ? (size_t)(end - text) : strlen(text), SPEC_TOKEN_PARSE_SPECIAL);
        for (size_t i = 0; i < n; i++)
            if (strtol(line, &line, 10) != ids[i]) fail_msg("%s: text %zu, id %zu differs", where, count, i);
        line += strspn(line, " ");
        if (*line && *line != '\n') fail_msg("%s: text %zu has too few ids", where, count);
        line += *line == '\n';
        free(ids);
    }
    assert_int_equal(count, 47);
    speci_free(NULL, inp);
    speci_free(NULL, out);
}

static void vectors(void **state)
{
    static const struct {
        const char *name, *pre; /* NULL: the vocabulary is a GGUF file */
    } cases[] = { { "phi3-spm", NULL }, { "gpt2", "gpt-2" }, { "gpt-neox", "mpt" } };
    (void)state;
    const char *data = shared();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char where[2048], path[4096];
        spec_tokenizer *t = NULL;
        snprintf(where, sizeof where, "%s/data/tokenizers/%s", data, cases[i].name);
        snprintf(path, sizeof path, "%s/vocab.gguf", where);
        if (cases[i].pre) t = open_gguf(words_of(where, cases[i].pre, 0, 0));
        else OK(spec_tokenizer_open(&t, path, NULL));
        check_vectors(t, where);
        spec_tokenizer_close(t);
    }
}

/* --- refused --- */

typedef struct refused_case {
    const char *model, *pre;
    int n_token, n_type, n_merges; /* -1: not there */
    const char *first;             /* the first token */
    spec_status code;
    const char *part;
} refused_case;

static const refused_case refused[] = {
    { NULL, "gpt-2", 2, 2, 0, "a", SPEC_E_FORMAT, "tokenizer.ggml.model is missing" },
    { "bert", "gpt-2", 2, 2, 0, "a", SPEC_E_UNSUPPORTED, "tokenizer.ggml.model is \"bert\", expected gpt2 or llama" },
    { "gpt2", NULL, 2, 2, 0, "a", SPEC_E_UNSUPPORTED, "tokenizer.ggml.pre is missing" },
    { "gpt2", "gpt", 2, 2, 0, "a", SPEC_E_UNSUPPORTED, "tokenizer.ggml.pre is \"gpt\", which is not known" },
    { "gpt2", "", 2, 2, 0, "a", SPEC_E_UNSUPPORTED, "tokenizer.ggml.pre is \"\", which is not known" },
    { "gpt2", "gpt-2 phi-2", 2, 2, 0, "a", SPEC_E_UNSUPPORTED, "which is not known" },
    { "gpt2", "gpt-2", -1, 2, 0, "a", SPEC_E_FORMAT, "tokenizer.ggml.tokens is missing" },
    { "gpt2", "gpt-2", 0, 0, 0, "a", SPEC_E_FORMAT, "tokenizer.ggml.tokens is missing or has 0 entries" },
    { "gpt2", "gpt-2", 2, 3, 0, "a", SPEC_E_FORMAT, "tokenizer.ggml.token_type has another number of entries" },
    { "gpt2", "gpt-2", 2, 2, -1, "a", SPEC_E_FORMAT, "tokenizer.ggml.merges is missing" },
    { "gpt2", "gpt-2", 2, 2, 1, "a", SPEC_E_FORMAT, "merge" },
    { "gpt2", "gpt-2", 2, 2, 0, "", SPEC_E_FORMAT, "token 0 is empty" },
    { "gpt2", "gpt-2", 2, 2, 0, "\xff", SPEC_E_FORMAT, "token 0 is empty, not UTF-8" },
    { "gpt2", "gpt-2", 2, 2, 0, "b", SPEC_E_FORMAT, "token 1 is empty, not UTF-8, there twice" },
    { "llama", NULL, 2, 2, -1, "a", SPEC_E_FORMAT, "tokenizer.ggml.scores is missing" },
    { "gpt2", "gpt-2", 2, 2, 0, "a", SPEC_OK, "" },
};

static gguf_bytes make_refused(const refused_case *c)
{
    gguf_bytes b = { 0 };
    const int n_pair = (c->model != NULL) + (c->pre != NULL) + (c->n_token >= 0) + (c->n_type >= 0) + (c->n_merges >= 0);
    gguf_head(&b, 3, 0, (uint64_t)n_pair);
    if (c->model) gguf_text(&b, "tokenizer.ggml.model", c->model);
    if (c->pre) gguf_text(&b, "tokenizer.ggml.pre", c->pre);
    if (c->n_token >= 0) gguf_array(&b, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, (uint64_t)c->n_token);
    for (int i = 0; i < c->n_token; i++) gguf_string(&b, i ? "b" : c->first, i ? 1 : strlen(c->first));
    if (c->n_type >= 0) gguf_array(&b, "tokenizer.ggml.token_type", SPECI_GGUF_I32, (uint64_t)c->n_type);
    for (int i = 0; i < c->n_type; i++) gguf_number(&b, SPM_NORMAL, 4);
    if (c->n_merges >= 0) gguf_array(&b, "tokenizer.ggml.merges", SPECI_GGUF_STRING, (uint64_t)c->n_merges);
    for (int i = 0; i < c->n_merges; i++) gguf_string(&b, "b c", 3);
    return b;
}

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const refused_case *c = &refused[i];
        gguf_bytes b = make_refused(c);
        spec_tokenizer *t = NULL;
        support_write(file, b.data, b.n);
        free(b.data);
        if (c->code) FAILS(spec_tokenizer_open(&t, file, NULL), c->code, c->part);
        else OK(spec_tokenizer_open(&t, file, NULL));
        assert_true((t != NULL) == (c->code == SPEC_OK));
        spec_tokenizer_close(t);
    }
}

/* --- memory that runs out --- */

static void no_memory_of(gguf_bytes b)
{
    support_memory f = { .fail_at = 1 };
    const spec_allocator a = support_allocator(&f);
    spec_status status = SPEC_E_NOMEM;
    support_write(file, b.data, b.n);
    free(b.data);
    for (; status == SPEC_E_NOMEM; f.fail_at++) {
        spec_tokenizer *t = NULL;
        f.n_call = 0;
        status = spec_tokenizer_open(&t, file, &a);
        spec_tokenizer_close(t);
        assert_int_equal(f.n_block, 0);
    }
    OK(status);
    assert_true(f.fail_at > 20);
}

static void no_memory(void **state)
{
    spec_tokenizer *own = NULL;
    (void)state;
    no_memory_of(words_of(GOLDEN "llama3-style", "llama-bpe", 640, 641));
    OK(spec_tokenizer_open(&own, SPM "bytes.model", NULL));
    no_memory_of(pieces_as_gguf(own, true, false));
    spec_tokenizer_close(own);
}

/* --- chat templates --- */

static void expect_template(const char *path, const char *expected)
{
    spec_tokenizer *t = NULL;
    OK(spec_tokenizer_open(&t, path, NULL));
    const char *found = support_tokenizer_info(t).chat_template;
    if (expected) assert_string_equal(found, expected);
    else assert_null(found);
    spec_tokenizer_close(t);
}

static void templates(void **state)
{
    (void)state;
    char path[4096];
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 0, 5);
    gguf_text(&b, "tokenizer.ggml.model", "gpt2");
    gguf_text(&b, "tokenizer.ggml.pre", "gpt-2");
    gguf_array(&b, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, 1);
    gguf_string(&b, "a", 1);
    gguf_array(&b, "tokenizer.ggml.merges", SPECI_GGUF_STRING, 0);
    gguf_text(&b, "tokenizer.chat_template", "{{ messages }}\xc3\xa9");
    support_write(file, b.data, b.n);
    free(b.data);
    expect_template(file, "{{ messages }}\xc3\xa9");

    snprintf(path, sizeof path, "cp " GOLDEN "gpt2-style/tokenizer.json %s", support_directory);
    assert_int_equal(system(path), 0);
    expect_template(support_directory, NULL);
    static const struct {
        const char *config, *expected;
    } configs[] = {
        { "{\"chat_template\": \"one\"}", "one" },
        { "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": \"two\"}]}", "two" },
        { "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}]}", NULL },
        { "{\"chat_template\": null}", NULL },
    };
    snprintf(path, sizeof path, "%s/tokenizer_config.json", support_directory);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        support_write(path, configs[i].config, strlen(configs[i].config));
        expect_template(support_directory, configs[i].expected);
    }
    support_write(path, configs[0].config, strlen(configs[0].config));
    snprintf(path, sizeof path, "%s/chat_template.jinja", support_directory);
    support_write(path, "three", 5);
    expect_template(support_directory, "three");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe), cmocka_unit_test(splits), cmocka_unit_test(sentence_piece), cmocka_unit_test(added_to_pieces),
        cmocka_unit_test(vectors), cmocka_unit_test(refusals), cmocka_unit_test(no_memory), cmocka_unit_test(templates),
    };
    return cmocka_run_group_tests(tests, make_dir, support_directory_remove);
}
