/* text_beside.c - the files beside a tokenizer's own: tokenizer_config.json, and of older models added_tokens.json and
 * special_tokens_map.json.
 *
 * Source: transformers 5.24, tokenization_utils_base.py (_from_pretrained) and tokenization_utils_tokenizers.py
 * (TokenizersBackend.__init__). Tokens are added in this order:
 *
 *     added_tokens_decoder of tokenizer_config.json, whose flags count more than those of the tokenizer's own file;
 *     where that key is missing, added_tokens.json
 *     special tokens: bos_token, eos_token, ... and the lists of extra ones, as special_tokens_map.json has them where
 *     it counts, or tokenizer_config.json
 *
 * A token that is there keeps its id. The ids of the others follow the largest; a file that says another is refused,
 * where the reference gives the token another id than the file says. */
#include <stdlib.h>
#include <string.h>

#include "models/text/text_json.h"

struct speci_beside {
    char dir[4096];
    json_t *config, *names, *added; /* the three files, in the order of the comment above; NULL = not there or of no effect */
};

#define CONFIG "tokenizer_config.json"
#define NAMES "special_tokens_map.json"
#define ADDED "added_tokens.json"

/* ------------------------------------------------------------------------------------- opening --- */

static spec_status find_dir(speci_beside *b, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 0; /* "/tokenizer.json" */
    if (n >= sizeof b->dir) return speci_fail(SPEC_E_INVALID, "a path of %zu bytes is too long", n);
    memcpy(b->dir, slash ? path : ".", slash ? n : 1);
    return SPEC_OK;
}

static spec_status read_one(json_t **out, const speci_beside *b, const char *name, const spec_allocator *a)
{
    char path[4096];
    SPEC_TRY(speci_path_join(path, sizeof path, b->dir, name));
    return speci_file_exists(path) ? speci_json_read(out, path, SPECI_TOK_FILE_MAX, a) : SPEC_OK;
}

static int flag_of(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return json_is_boolean(value) ? json_is_true(value) : -1;
}

/* Classes that only wrap tokenizer.json take what it says; the others make their pre-tokenizer anew. */
static bool only_wraps(const json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    return name && (strcmp(name, "PreTrainedTokenizerFast") == 0 || strcmp(name, "TokenizersBackend") == 0);
}

static spec_status read_all(speci_beside *b, spec_tokenizer *t)
{
    const spec_allocator *a = &t->allocator;
    SPEC_TRY(find_dir(b, t->path));
    SPEC_TRY(read_one(&b->config, b, CONFIG, a));
    t->said = (speci_said){ .add_bos = flag_of(b->config, "add_bos_token"), .add_eos = flag_of(b->config, "add_eos_token"),
                            .prefix_space = only_wraps(b->config) ? -1 : flag_of(b->config, "add_prefix_space"),
                            .legacy = flag_of(b->config, "legacy"), .bos = -1, .eos = -1 };
    if (json_object_get(b->config, "added_tokens_decoder")) return SPEC_OK;
    SPEC_TRY(read_one(&b->names, b, NAMES, a));
    return read_one(&b->added, b, ADDED, a);
}

void speci_beside_close(speci_beside *b, const spec_allocator *a)
{
    if (!b) return;
    json_decref(b->config);
    json_decref(b->names);
    json_decref(b->added);
    speci_free(a, b);
}

spec_status speci_beside_open(speci_beside **out, spec_tokenizer *t)
{
    speci_beside *b = speci_alloc(&t->allocator, 1, sizeof *b);
    *out = b;
    return b ? read_all(b, t) : SPEC_E_NOMEM;
}

/* ---------------------------------------------------------------------------------- one token --- */

/* The id of the next token that is new (AddedVocabulary::add_tokens in tokenizers). */
static int32_t next_id(const spec_tokenizer *t)
{
    const int32_t n_added = (int32_t)(t->added.by_token.n / sizeof(uint32_t));
    return n_added > (int32_t)t->vocab.n ? n_added : (int32_t)t->vocab.n;
}

/* id: what the file says, -1 = nothing. change: the flags of a token that was added before are replaced. */
static spec_status put(spec_tokenizer *t, const char *file, const char *content, size_t n, speci_added token, int64_t id,
                       bool change)
{
    const int32_t index = speci_vocab_find(&t->added.ids, content, n);
    size_t n_other;
    if (n == 0) return SPEC_OK; /* the reference leaves them out too */
    if (t->spm) token.normalized = false; /* its pieces are looked for in the text as it is */
    if (index >= 0) return change ? speci_added_change(&t->added, index, &token) : SPEC_OK;
    token.id = speci_vocab_find(&t->vocab, content, n);
    if (token.id >= 0) return speci_added_put(&t->added, content, n, &token);
    token.id = next_id(t);
    const char *other = speci_tokenizer_string(t, token.id, &n_other);
    if (other)
        return speci_fail(SPEC_E_FORMAT, "%s: %s: the added token '%.*s' would get the id %d, which '%.*s' has: ids in front are free",
                          t->path, file, n > 64 ? 64 : (int)n, content, token.id, n_other > 64 ? 64 : (int)n_other, other);
    if (id >= 0 && id != token.id)
        return speci_fail(SPEC_E_FORMAT, "%s: %s: the added token '%.*s' has the id %lld, expected %d, the next that is free: "
                          "the file is of another vocabulary", t->path, file, n > 64 ? 64 : (int)n, content, (long long)id,
                          token.id);
    return speci_added_put(&t->added, content, n, &token);
}

/* ------------------------------------------------------------------------------ special tokens --- */

/* "<s>" or {"content": "<s>", ...}. */
static const json_t *content_of(const json_t *value)
{
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    return json_is_string(content) ? content : NULL;
}

/* The value of bos_token and its like. */
static const json_t *said(const speci_beside *b, const char *key)
{
    const json_t *value = json_object_get(b->names, key);
    return value ? value : json_object_get(b->config, key);
}

static spec_status push(speci_buf *list, const json_t *value)
{
    return content_of(value) ? speci_buf_add(list, &value, sizeof value) : SPEC_OK;
}

/* [token, ...] or { name: token, ... } */
static spec_status push_each(speci_buf *list, const json_t *values)
{
    const char *key;
    json_t *value;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)values, i, value) SPEC_TRY(push(list, value));
    json_object_foreach((json_t *)(uintptr_t)values, key, value) SPEC_TRY(push(list, value));
    return SPEC_OK;
}

static const char *const named[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" };
enum { N_NAMED = sizeof named / sizeof *named };

static bool is_named(const char *key)
{
    for (size_t i = 0; i < N_NAMED; i++)
        if (strcmp(named[i], key) == 0) return true;
    return false;
}

/* image_token and what else a model has. */
static spec_status push_own(speci_buf *list, const json_t *file)
{
    static const char end[] = "_token";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)file, key, value) {
        const size_t n = strlen(key), n_end = sizeof end - 1;
        if (n > n_end && strcmp(key + n - n_end, end) == 0 && !is_named(key)) SPEC_TRY(push(list, value));
    }
    return SPEC_OK;
}

/* list: const json_t *[n], in the order in which new ones get their ids. */
static spec_status list_special(const speci_beside *b, speci_buf *list)
{
    for (size_t i = 0; i < N_NAMED; i++) SPEC_TRY(push(list, said(b, named[i])));
    SPEC_TRY(push_own(list, b->config));
    SPEC_TRY(push_own(list, b->names));
    const json_t *extra = said(b, "extra_special_tokens");
    return push_each(list, extra ? extra : said(b, "additional_special_tokens"));
}

/* The strings of the list, for is_special. */
static spec_status enter_special(speci_vocab *names, const speci_buf *list)
{
    const json_t *const *values = (const json_t *const *)(const void *)list->data;
    for (size_t i = 0; i < list->n / sizeof *values; i++) {
        const json_t *content = content_of(values[i]);
        const size_t n = json_string_length(content);
        if (n > 0 && speci_vocab_find(names, json_string_value(content), n) < 0)
            SPEC_TRY(speci_vocab_add(names, json_string_value(content), n, 0));
    }
    return SPEC_OK;
}

static bool is_special(const speci_vocab *names, const char *content, size_t n) { return speci_vocab_find(names, content, n) >= 0; }

static spec_status add_special(const speci_buf *list, spec_tokenizer *t)
{
    const json_t *const *values = (const json_t *const *)(const void *)list->data;
    for (size_t i = 0; i < list->n / sizeof *values; i++) {
        speci_added token = { .id = -1 };
        const json_t *content = content_of(values[i]);
        const char *string = json_string_value(content);
        size_t n = json_string_length(content);
        if (json_is_object(values[i])) SPEC_TRY(speci_text_read_added(CONFIG, values[i], &token, &string, &n));
        if (!json_object_get(values[i], "normalized")) token.normalized = false;
        token.special = true;
        SPEC_TRY(put(t, CONFIG, string, n, token, -1, false));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------- lists of added tokens --- */

typedef struct entry {
    json_int_t id;
    const char *key;
    const json_t *value;
} entry;

static int by_id(const void *x, const void *y)
{
    const json_int_t a = ((const entry *)x)->id, b = ((const entry *)y)->id;
    return a < b ? -1 : a > b;
}

/* The decimal digits of a key; -1 = it is none, or too large. */
static json_int_t number_of(const char *key)
{
    json_int_t id = 0;
    for (const char *s = key; *s; s++) {
        if (*s < '0' || *s > '9' || id > SPECI_TOK_ID_LIMIT) return -1;
        id = 10 * id + (*s - '0');
    }
    return *key ? id : -1;
}

/* entry [n] of an object, by id, which is the key or the value. */
static spec_status list_entries(speci_buf *list, const spec_tokenizer *t, const json_t *object, const char *file, bool id_is_key)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const json_int_t id = id_is_key ? number_of(key) : json_is_integer(value) ? json_integer_value(value) : -1;
        const entry e = { id, key, value };
        if (id < 0 || id >= SPECI_TOK_ID_LIMIT)
            return speci_fail(SPEC_E_FORMAT, "%s: %s: the id of '%.64s' is missing or wrong, expected 0 to %d", t->path, file,
                              key, SPECI_TOK_ID_LIMIT - 1);
        SPEC_TRY(speci_buf_add(list, &e, sizeof e));
    }
    if (list->n) qsort(list->data, list->n / sizeof(entry), sizeof(entry), by_id);
    return SPEC_OK;
}

/* "32000": {"content": "<|im_end|>", ...} */
static spec_status add_decoder(const speci_buf *entries, const speci_vocab *special, spec_tokenizer *t)
{
    const entry *e = (const entry *)(const void *)entries->data;
    for (size_t i = 0; i < entries->n / sizeof *e; i++) {
        speci_added token;
        const char *content;
        size_t n;
        SPEC_TRY(speci_text_read_added(CONFIG, e[i].value, &token, &content, &n));
        token.special = token.special || is_special(special, content, n);
        SPEC_TRY(put(t, CONFIG, content, n, token, e[i].id, true));
    }
    return SPEC_OK;
}

/* "<|im_end|>": 32000 */
static spec_status add_added(const speci_buf *entries, const speci_vocab *special, spec_tokenizer *t, speci_buf *work)
{
    const entry *e = (const entry *)(const void *)entries->data;
    for (size_t i = 0; i < entries->n / sizeof *e; i++) {
        speci_added token = { .id = -1 };
        const char *content;
        size_t n;
        SPEC_TRY(speci_json_key(e[i].key, &content, &n, work));
        token.special = is_special(special, content, n);
        token.normalized = !token.special;
        SPEC_TRY(put(t, ADDED, content, n, token, e[i].id, false));
    }
    return SPEC_OK;
}

/* What adding takes. */
typedef struct work {
    speci_buf special, entries, key; /* const json_t *[n], entry [n], bytes */
    speci_vocab names;               /* of the special ones */
} work;

static spec_status add_all(const speci_beside *b, spec_tokenizer *t, work *w)
{
    const json_t *decoder = json_object_get(b->config, "added_tokens_decoder");
    SPEC_TRY(list_special(b, &w->special));
    SPEC_TRY(enter_special(&w->names, &w->special));
    SPEC_TRY(list_entries(&w->entries, t, decoder ? decoder : b->added, decoder ? CONFIG : ADDED, decoder != NULL));
    SPEC_TRY(decoder ? add_decoder(&w->entries, &w->names, t) : add_added(&w->entries, &w->names, t, &w->key));
    return add_special(&w->special, t);
}

/* --------------------------------------------------------------------------------- chat template --- */

#define TEMPLATE "chat_template.jinja"

/* A text, or a list of named ones, of which one is the default. */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)value, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(value);
}

/* The file counts first, as in transformers. */
static spec_status take_template(const speci_beside *b, spec_tokenizer *t)
{
    char path[4096];
    size_t n;
    SPEC_TRY(speci_path_join(path, sizeof path, b->dir, TEMPLATE));
    if (speci_file_exists(path)) return speci_file_read(&t->chat_template, &n, path, SPECI_TOK_FILE_MAX, &t->allocator);
    const char *text = template_of(b->config);
    if (text && !(t->chat_template = speci_strdup(&t->allocator, text))) return SPEC_E_NOMEM;
    return SPEC_OK;
}

static int32_t id_of(const speci_beside *b, const spec_tokenizer *t, const char *key)
{
    const json_t *content = content_of(said(b, key));
    return content ? speci_tokenizer_find(t, json_string_value(content), json_string_length(content)) : -1;
}

spec_status speci_beside_add(const speci_beside *b, spec_tokenizer *t)
{
    const spec_allocator *a = &t->allocator;
    work w = { .special = { .a = a }, .entries = { .a = a }, .key = { .a = a } };
    speci_vocab_init(&w.names, a);
    const spec_status status = add_all(b, t, &w);
    speci_buf_free(&w.special);
    speci_buf_free(&w.entries);
    speci_buf_free(&w.key);
    speci_vocab_free(&w.names);
    if (status != SPEC_OK) return status; /* what cannot be added leaves the names of tokens half entered */
    t->said.bos = id_of(b, t, "bos_token");
    t->said.eos = id_of(b, t, "eos_token");
    return take_template(b, t);
}
