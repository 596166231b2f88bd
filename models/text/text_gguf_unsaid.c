/* text_gguf_unsaid.c - what a GGUF file cannot say of a tokenizer, and what follows from it.
 *
 * Whoever reads such a file looks for added tokens in the text as it is, all at once, and has each token once: as an added one, or as a
 * piece that is merged. */
#include <stdio.h>
#include <string.h>

#include "models/text/text_gguf.h"

static const char *string_of(const spec_tokenizer *t, const speci_added *token) { return t->added.text.data + token->offset; }

typedef bool unsaid_test(const spec_tokenizer *t, const speci_added *token, bool overlaps);

static bool has_flags(const spec_tokenizer *t, const speci_added *token, bool overlaps)
{
    return (void)t, (void)overlaps, token->lstrip || token->rstrip || token->single_word;
}

/* NFC leaves ASCII alone, but for what joins with a mark behind it: letters, and < = >. */
static bool nfc_leaves(const char *string, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)string[i] >= 0x80) return false;
    const uint8_t last = n ? (uint8_t)string[n - 1] : 0, letter = last | 0x20;
    return !(letter >= 'a' && letter <= 'z') && !(last >= '<' && last <= '>');
}

/* Where it overlaps others, it matters that they are looked for first. */
static bool needs_normalizer(const spec_tokenizer *t, const speci_added *token, bool overlaps)
{
    const speci_norm *norms = (const speci_norm *)(const void *)t->norms.data;
    const size_t n_norm = t->norms.n / sizeof *norms;
    if (!token->normalized || overlaps) return token->normalized;
    if (n_norm == 0) return false;
    return n_norm > 1 || norms->kind != SPECI_NORM_NFC || !nfc_leaves(string_of(t, token), token->n);
}

/* Where the text has the token's string, the added one comes first. So a piece is merged only from what the normalizer has changed, or
 * where special tokens are text. */
static bool is_merged_too(const spec_tokenizer *t, const speci_added *token, bool overlaps)
{
    (void)overlaps;
    static const char mark[] = "\xE2\x96\x81";
    if (!t->spm || token->id >= speci_vocab_n_id(&t->vocab) || t->bpe.rank[token->id] == UINT32_MAX) return false;
    const size_t n_mark = sizeof mark - 1;
    bool marked = false;
    for (size_t i = 0; i + n_mark <= token->n && !marked; i++) marked = memcmp(string_of(t, token) + i, mark, n_mark) == 0;
    return token->special || marked || speci_gguf_is_own(t, token->id);
}

static const struct {
    unsaid_test *is;
    const char *what;
} unsaid[] = {
    { has_flags, "they take white space along, or stand between words only (lstrip, rstrip, single_word), which a GGUF file does not say" },
    { needs_normalizer, "they are looked for behind others, in normalised text (normalized), which a GGUF file does not say" },
    { is_merged_too, "they are pieces of the model, too, and a GGUF file has each token once" },
};

/* The space in front of a text comes behind added tokens, too, where a GGUF file is read. */
static void tell_space(const spec_tokenizer *t, speci_unsaid_fn *tell, void *user_data)
{
    const speci_norm *norm = t->norms.n ? (const speci_norm *)(const void *)t->norms.data : NULL;
    if (!t->spm || !norm || !norm->dummy_prefix || norm->each_segment) return;
    tell(user_data, "text behind an added token gets a space in front, and so other ids: a GGUF file does not say that it gets none "
                    "(legacy)");
}

static void tell_added(const spec_tokenizer *t, const bool *overlaps, speci_unsaid_fn *tell, void *user_data)
{
    const speci_added *all = (const speci_added *)(const void *)t->added.items.data;
    const size_t n = t->added.items.n / sizeof *all;
    for (size_t k = 0; k < sizeof unsaid / sizeof *unsaid; k++) {
        char text[320];
        size_t i = 0;
        while (i < n && !unsaid[k].is(t, &all[i], overlaps[i])) i++;
        if (i == n) continue;
        snprintf(text, sizeof text, "added tokens, \"%.*s\" among them: %s: texts with them may get other ids",
                 all[i].n > 60 ? 60 : (int)all[i].n, string_of(t, &all[i]), unsaid[k].what);
        tell(user_data, text);
    }
}

spec_status speci_tokenizer_tell_unsaid(const spec_tokenizer *t, speci_unsaid_fn *tell, void *user_data)
{
    bool *overlaps = speci_alloc(&t->allocator, t->added.items.n / sizeof(speci_added), sizeof *overlaps);
    if (!overlaps) return SPEC_E_NOMEM;
    const spec_status status = speci_added_overlaps(overlaps, &t->added);
    if (status == SPEC_OK) tell_added(t, overlaps, tell, user_data), tell_space(t, tell, user_data);
    speci_free(&t->allocator, overlaps);
    return status;
}
