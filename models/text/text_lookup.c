/* text_lookup.c - ids and strings of a tokenizer that is open: added tokens first, then the vocabulary. */
#include "models/text/text_tokenizer.h"

const char *speci_tokenizer_string(const spec_tokenizer *t, int32_t id, size_t *n)
{
    const speci_added *added = speci_added_of_id(&t->added, id);
    if (!added) return speci_vocab_string(&t->vocab, id, n);
    *n = added->n_shown;
    return t->added.text.data + added->shown_offset;
}

int32_t speci_tokenizer_find(const spec_tokenizer *t, const char *s, size_t n)
{
    int32_t index = speci_vocab_find(&t->added.ids, s, n);
    if (index >= 0) return ((const speci_added *)(const void *)t->added.items.data)[index].id;
    return speci_vocab_find(&t->vocab, s, n);
}

spec_status spec_tokenizer_get_info(const spec_tokenizer *tokenizer, spec_tokenizer_info *info)
{
    SPEC_NEED(tokenizer, "tokenizer");
    SPEC_NEED(info, "info");
    const spec_tokenizer_info own = { .n_vocab = tokenizer->n_vocab, .bos = tokenizer->bos, .eos = tokenizer->eos,
                                      .piece_max = tokenizer->decoder.piece_max, .chat_template = tokenizer->chat_template };
    return speci_params_write(info, &own, sizeof own, "spec_tokenizer_info");
}

int spec_tokenizer_is_special(const spec_tokenizer *tokenizer, int32_t id)
{
    if (!tokenizer) return 0;
    const speci_added *added = speci_added_of_id(&tokenizer->added, id);
    return added && added->special;
}
