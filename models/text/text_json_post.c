/* text_json_post.c - reads the section "post_processor" of tokenizer.json: tokens that stand round a text. */
#include <string.h>

#include "models/text/text_json.h"

static spec_status put_id(spec_tokenizer *t, speci_buf *list, const json_t *value, const char *token)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: post_processor: the id of '%.64s' is missing or wrong", t->path, token);
    int32_t id32 = (int32_t)id;
    return speci_buf_add(list, &id32, sizeof id32);
}

/* A processor's ids go round those of the processors before it. */
static spec_status wrap(spec_tokenizer *t, speci_buf *before, const speci_buf *after)
{
    SPEC_TRY(speci_buf_add(before, t->before.data, t->before.n));
    t->before.n = 0;
    SPEC_TRY(speci_buf_add(&t->before, before->data, before->n));
    return speci_buf_add(&t->after, after->data, after->n);
}

/* "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], with the ids in "special_tokens". */
static spec_status read_template(spec_tokenizer *t, const json_t *json, speci_buf *before, speci_buf *after)
{
    const json_t *single = json_object_get(json, "single"), *tokens = json_object_get(json, "special_tokens");
    bool seen = false;
    if (!json_is_array(single)) return speci_text_bad(t->path, "single", "an array");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const char *token = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const char *part = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (part && strcmp(part, "A") == 0 && !seen) {
            seen = true;
            continue;
        }
        if (!token) return speci_text_bad(t->path, "single", "SpecialToken and one Sequence A");
        const json_t *ids = json_object_get(json_object_get(tokens, token), "ids");
        if (!json_is_array(ids)) return speci_text_bad(t->path, "special_tokens", "the ids of every token of the template");
        for (size_t k = 0; k < json_array_size(ids); k++)
            SPEC_TRY(put_id(t, seen ? after : before, json_array_get(ids, k), token));
    }
    return seen ? wrap(t, before, after) : speci_text_bad(t->path, "single", "a Sequence A");
}

static spec_status post_template(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_buf before = { .a = &t->allocator }, after = { .a = &t->allocator };
    spec_status status = read_template(t, json, &before, &after);
    speci_buf_free(&before);
    speci_buf_free(&after);
    return status;
}

/* BertProcessing and RobertaProcessing: "cls": ["<s>", 0], "sep": ["</s>", 2]. */
static spec_status post_cls_sep(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_buf before = { .a = &t->allocator }, after = { .a = &t->allocator };
    spec_status status = put_id(t, &before, json_array_get(json_object_get(json, "cls"), 1), "cls");
    if (status == SPEC_OK) status = put_id(t, &after, json_array_get(json_object_get(json, "sep"), 1), "sep");
    if (status == SPEC_OK) status = wrap(t, &before, &after);
    speci_buf_free(&before);
    speci_buf_free(&after);
    return status;
}

static spec_status post_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)t, (void)json, (void)depth; /* it only moves offsets */
    return SPEC_OK;
}

static spec_status post_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_sequence(t, json, "processors", speci_text_read_post_processor, depth);
}

static const speci_text_component post_processors[] = {
    { "TemplateProcessing", post_template }, { "ByteLevel", post_byte_level }, { "BertProcessing", post_cls_sep },
    { "RobertaProcessing", post_cls_sep },   { "Sequence", post_sequence },    { NULL, NULL },
};

spec_status speci_text_read_post_processor(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_component(t, json, "post_processor", post_processors, depth);
}
