/* text_none.c - a build without tokenizers: the functions are there and say so. Ids work as ever.
 * Compiled instead of the other text_*.c files. */
#ifdef SPEC_NO_TOKENIZER
#include "models/text/text_gguf.h"
#include "models/text/text_translate.h"

static spec_status none(void)
{
    return speci_fail(SPEC_E_UNSUPPORTED, "this build has no tokenizers (SPEC_TOKENIZER=OFF): use token ids");
}

spec_status spec_tokenizer_open(spec_tokenizer **out, const char *path, const spec_allocator *allocator)
{
    (void)path;
    (void)allocator;
    if (out) *out = NULL;
    return none();
}

void spec_tokenizer_close(spec_tokenizer *tokenizer)
{
    (void)tokenizer;
}

spec_status spec_tokenizer_get_info(const spec_tokenizer *tokenizer, spec_tokenizer_info *info)
{
    (void)tokenizer;
    (void)info;
    return none();
}

const char *spec_tokenizer_piece(const spec_tokenizer *tokenizer, size_t *n, int32_t id)
{
    (void)tokenizer;
    (void)id;
    if (n) *n = 0;
    return NULL;
}

int spec_tokenizer_is_special(const spec_tokenizer *tokenizer, int32_t id)
{
    (void)tokenizer;
    (void)id;
    return 0;
}

spec_status spec_tokenizer_encode(const spec_tokenizer *tokenizer, int32_t *ids, size_t cap, size_t *n,
                                  const char *text, size_t n_text, uint32_t flags)
{
    (void)tokenizer;
    (void)ids;
    (void)cap;
    (void)text;
    (void)n_text;
    (void)flags;
    if (n) *n = 0;
    return none();
}

spec_status spec_tokenizer_decode(const spec_tokenizer *tokenizer, char *text, size_t cap, size_t *n,
                                  const int32_t *ids, size_t n_ids, uint32_t flags)
{
    (void)tokenizer;
    (void)text;
    (void)cap;
    (void)ids;
    (void)n_ids;
    (void)flags;
    if (n) *n = 0;
    return none();
}

spec_status spec_text_stream_push(spec_text_stream *stream, char *text, size_t cap, size_t *n, const spec_tokenizer *tokenizer,
                                  int32_t id, uint32_t flags)
{
    (void)stream;
    (void)tokenizer;
    (void)text;
    (void)cap;
    (void)id;
    (void)flags;
    if (n) *n = 0;
    return none();
}

spec_status spec_text_stream_end(spec_text_stream *stream, char *text, size_t cap, size_t *n)
{
    (void)stream;
    (void)text;
    (void)cap;
    if (n) *n = 0;
    return none();
}

spec_status speci_token_map_open(speci_token_map **out, const spec_tokenizer *from, int32_t n_from, const spec_tokenizer *to,
                                 int32_t n_to, const spec_allocator *a)
{
    (void)from, (void)n_from, (void)to, (void)n_to, (void)a;
    *out = NULL;
    return none();
}

void speci_token_map_close(speci_token_map *map)
{
    (void)map;
}

bool speci_same_pieces(const spec_tokenizer *x, const spec_tokenizer *y, int32_t n, int32_t *id)
{
    (void)x, (void)y, (void)n;
    *id = 0;
    return true;
}

spec_status speci_translation_begin(speci_translation *x, const speci_token_map *map)
{
    (void)x, (void)map;
    return none();
}

spec_status speci_translate(speci_translation *x, const speci_token_map *map, const int32_t *tokens, int32_t n, bool as_text)
{
    (void)x, (void)map, (void)tokens, (void)n, (void)as_text;
    return none();
}

spec_status speci_encode_on(speci_buf *out, const spec_tokenizer *t, const char *text, size_t n)
{
    (void)out, (void)t, (void)text, (void)n;
    return none();
}

spec_status speci_encode_behind(speci_buf *out, const spec_tokenizer *t, const int32_t *tokens, int32_t n_token, const char *text,
                                size_t n)
{
    (void)out, (void)t, (void)tokens, (void)n_token, (void)text, (void)n;
    return none();
}

spec_status speci_tokenizer_put_gguf(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    (void)h, (void)t, (void)n_vocab;
    return none();
}

spec_status speci_tokenizer_tell_unsaid(const spec_tokenizer *t, speci_unsaid_fn *tell, void *user_data)
{
    (void)t, (void)tell, (void)user_data;
    return none();
}

int32_t speci_tokenizer_first(const spec_tokenizer *t)
{
    (void)t;
    return -1;
}
#endif
typedef int speci_tokenizer_none_not_empty; /* ISO C wants a declaration in every file */
