/* text_json.c - reads tokenizer.json (format of the `tokenizers` package): its model, its added tokens, and section by section the rest.
 *
 * Each section has a file, text_json_<section>.c, and in it one table that maps a component's "type" to the function that reads it; a
 * type that is not in the table is refused by name. `truncation` and `padding` are not read: how long a text may be is the caller's
 * matter. */
#include <string.h>

#include "models/text/text_json.h"

/* --------------------------------------------------------------------------------------- BPE model --- */

/* A string or null; *out is a copy or NULL. */
static spec_status read_optional(const spec_tokenizer *t, const json_t *json, const char *key, char **out)
{
    const json_t *value = json_object_get(json, key);
    *out = NULL;
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_string(value)) return speci_text_bad(t->path, key, "a string or null");
    if (json_string_length(value) == 0) return SPEC_OK;
    *out = speci_strdup(&t->allocator, json_string_value(value));
    return *out ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status put_piece(spec_tokenizer *t, const char *key, const json_t *id, speci_buf *work)
{
    const char *piece;
    size_t n;
    SPEC_TRY(speci_json_key(key, &piece, &n, work));
    if (!json_is_integer(id))
        return speci_fail(SPEC_E_FORMAT, "%s: the id of token '%.64s' is not an integer", t->path, key);
    if (json_integer_value(id) < 0 || json_integer_value(id) >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: token '%.64s' has the id %lld, expected 0 to %d", t->path, key,
                          (long long)json_integer_value(id), SPECI_TOK_ID_LIMIT - 1);
    return speci_vocab_add(&t->vocab, piece, n, (int32_t)json_integer_value(id));
}

static spec_status read_vocab(spec_tokenizer *t, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab"), *value;
    speci_buf work = { .a = &t->allocator };
    spec_status status = SPEC_OK;
    const char *key;
    if (!json_is_object(vocab)) return speci_text_bad(t->path, "vocab", "an object");
    json_object_foreach(vocab, key, value)
        if (status == SPEC_OK) status = put_piece(t, key, value, &work);
    speci_buf_free(&work);
    return status;
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char *half[2], size_t n[2])
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *end = s + json_string_length(merge);
        const char *space = memchr(s, ' ', (size_t)(end - s));
        if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
        half[0] = s;
        n[0] = (size_t)(space - s);
        half[1] = space + 1;
        n[1] = (size_t)(end - half[1]);
        return true;
    }
    if (json_array_size(merge) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(merge, i);
        if (!json_is_string(value)) return false;
        half[i] = json_string_value(value);
        n[i] = json_string_length(value);
    }
    return true;
}

static spec_status unknown_token(const spec_tokenizer *t, size_t rank, const char *s, size_t n)
{
    return speci_fail(SPEC_E_FORMAT, "%s: merge %zu needs the token '%.*s', which the vocabulary lacks", t->path, rank,
                      n > 64 ? 64 : (int)n, s);
}

/* Merge number `rank`: the ids of both halves and of what they become; the right half loses the prefix that marks it
 * as a continuation. */
static spec_status put_merge(spec_tokenizer *t, const json_t *merge, size_t rank, speci_buf *joined)
{
    const char *half[2];
    size_t n[2];
    int32_t id[2];
    if (!merge_halves(merge, half, n))
        return speci_fail(SPEC_E_FORMAT, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", t->path, rank);
    for (int i = 0; i < 2; i++) {
        id[i] = speci_vocab_find(&t->vocab, half[i], n[i]);
        if (id[i] < 0) return unknown_token(t, rank, half[i], n[i]);
    }
    size_t skip = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    if (skip > n[1]) skip = n[1];
    joined->n = 0;
    SPEC_TRY(speci_buf_add(joined, half[0], n[0]));
    SPEC_TRY(speci_buf_add(joined, half[1] + skip, n[1] - skip));
    speci_pair pair = { (uint32_t)id[0], (uint32_t)id[1], (uint32_t)rank, -1 };
    pair.id = speci_vocab_find(&t->vocab, joined->data, joined->n);
    if (pair.id < 0) return unknown_token(t, rank, joined->data, joined->n);
    speci_bpe_put_join(&t->bpe, half[0], n[0], half[1], n[1]);
    return speci_pairs_put(&t->bpe.merges, pair); /* of equal merges the last counts, as in the reference */
}

static spec_status read_merges(spec_tokenizer *t, const json_t *model)
{
    const json_t *merges = json_object_get(model, "merges");
    speci_buf joined = { .a = &t->allocator };
    spec_status status = SPEC_OK;
    if (!json_is_array(merges)) return speci_text_bad(t->path, "merges", "an array");
    size_t rank = 0;
    for (size_t i = 0; status == SPEC_OK && i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *line = json_string_value(merge);
        if (line && strncmp(line, "#version", 8) == 0) continue; /* the first line of a merges.txt */
        status = put_merge(t, merge, rank++, &joined);
    }
    speci_buf_free(&joined);
    return status;
}

static spec_status read_unk(spec_tokenizer *t, const json_t *model)
{
    const json_t *value = json_object_get(model, "unk_token");
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_string(value)) return speci_text_bad(t->path, "unk_token", "a string or null");
    t->bpe.unk = speci_vocab_find(&t->vocab, json_string_value(value), json_string_length(value));
    if (t->bpe.unk >= 0) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: the unk_token '%.64s' is not in the vocabulary", t->path,
                      json_string_value(value));
}

static spec_status read_model(spec_tokenizer *t, const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    double dropout = 0;
    if (!json_is_object(model)) return speci_text_bad(t->path, "model", "an object");
    /* Old files have no type; then it is the merges that make it BPE. */
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the model '%.64s' is not supported, only BPE is", t->path,
                          json_is_string(type) ? json_string_value(type) : "?");
    if (speci_json_number(json_object_get(model, "dropout"), &dropout) && !(dropout == 0))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: dropout is %g: encoding at random is not supported", t->path,
                          dropout);
    SPEC_TRY(speci_text_read_bool(t->path, model, "fuse_unk", false, &t->bpe.fuse_unk));
    SPEC_TRY(speci_text_read_bool(t->path, model, "byte_fallback", false, &t->bpe.byte_fallback));
    SPEC_TRY(speci_text_read_bool(t->path, model, "ignore_merges", false, &t->bpe.ignore_merges));
    SPEC_TRY(read_optional(t, model, "continuing_subword_prefix", &t->bpe.prefix));
    SPEC_TRY(read_optional(t, model, "end_of_word_suffix", &t->bpe.suffix));
    SPEC_TRY(read_vocab(t, model));
    SPEC_TRY(read_unk(t, model));
    speci_bpe_find_bytes(&t->bpe, &t->vocab);
    return read_merges(t, model);
}

/* ------------------------------------------------------------------------------------ added tokens --- */

spec_status speci_text_read_added(const char *file, const json_t *json, speci_added *out, const char **content, size_t *n)
{
    *out = (speci_added){ .id = -1 };
    SPEC_TRY(speci_text_read_string(file, json, "content", content, n));
    SPEC_TRY(speci_text_read_bool(file, json, "single_word", false, &out->single_word));
    SPEC_TRY(speci_text_read_bool(file, json, "lstrip", false, &out->lstrip));
    SPEC_TRY(speci_text_read_bool(file, json, "rstrip", false, &out->rstrip));
    SPEC_TRY(speci_text_read_bool(file, json, "special", false, &out->special));
    return speci_text_read_bool(file, json, "normalized", !out->special, &out->normalized);
}

static spec_status put_added(spec_tokenizer *t, const json_t *json, size_t index)
{
    speci_added token;
    const char *content;
    size_t n, n_other;
    json_int_t id;
    SPEC_TRY(speci_text_read_added(t->path, json, &token, &content, &n));
    SPEC_TRY(speci_text_read_int(t->path, json, "id", 0, SPECI_TOK_ID_LIMIT - 1, &id));
    if (n == 0) return SPEC_OK;                         /* the reference leaves them out too */
    token.id = speci_vocab_find(&t->vocab, content, n); /* what the model knows already keeps its id */
    if (token.id < 0) {
        token.id = (int32_t)id;
        if (speci_tokenizer_string(t, token.id, &n_other))
            return speci_fail(SPEC_E_FORMAT, "%s: added token %zu '%.64s' has the id %d, which another token has",
                              t->path, index, content, token.id);
    }
    return speci_added_put(&t->added, content, n, &token);
}

static spec_status read_added(spec_tokenizer *t, const json_t *root)
{
    const json_t *list = json_object_get(root, "added_tokens");
    if (list && !json_is_null(list) && !json_is_array(list)) return speci_text_bad(t->path, "added_tokens", "an array");
    for (size_t i = 0; i < json_array_size(list); i++) SPEC_TRY(put_added(t, json_array_get(list, i), i));
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------------- the file --- */

/* A section that may be missing or null. */
static spec_status read_section(spec_tokenizer *t, const json_t *root, const char *section, speci_text_read_fn read)
{
    const json_t *json = json_object_get(root, section);
    return json && !json_is_null(json) ? read(t, json, 0) : SPEC_OK;
}

spec_status speci_tokenizer_read_root(spec_tokenizer *t, const json_t *root)
{
    SPEC_TRY(read_model(t, json_object_get(root, "model")));
    SPEC_TRY(read_section(t, root, "normalizer", speci_text_read_normalizer));
    SPEC_TRY(read_section(t, root, "pre_tokenizer", speci_text_read_pre_tokenizer));
    SPEC_TRY(read_added(t, root));
    SPEC_TRY(read_section(t, root, "post_processor", speci_text_read_post_processor));
    const json_t *decoder = json_object_get(root, "decoder");
    t->decoder.join_space = !decoder || json_is_null(decoder);
    return read_section(t, root, "decoder", speci_text_read_decoder);
}

spec_status speci_tokenizer_read_json(spec_tokenizer *t, const char *path)
{
    json_t *root;
    SPEC_TRY(speci_json_read(&root, path, SPECI_TOK_FILE_MAX, &t->allocator));
    spec_status status = speci_tokenizer_read_root(t, root);
    json_decref(root);
    return status;
}
