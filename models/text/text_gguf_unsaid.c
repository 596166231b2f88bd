/* text_gguf_unsaid.c - what a GGUF file cannot say of a tokenizer, and what follows from it.
 *
 * Whoever reads such a file looks for added tokens in the text as it is, all at once, and has each token once: as an added one, or as a
 * piece that is merged. */
#include <stdio.h>
#include <string.h>

#include "models/text/text_gguf.h"

static const char *string_of(const spec_tokenizer *t, const speci_added *token) { return t->added.text.data + token->offset; }

static bool has_flags(const spec_tokenizer *t, const speci_added *token)
{
    return (void)t, token->lstrip || token->rstrip || token->single_word;
}

/* NFC leaves ASCII alone, but for what joins with a mark behind it: letters, and < = >. */
static bool nfc_leaves(const char *string, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)string[i] >= 0x80) return false;
    const uint8_t last = n ? (uint8_t)string[n - 1] : 0, letter = last | 0x20;
    return !(letter >= 'a' && letter <= 'z') && !(last >= '<' && last <= '>');
}

/* Does an end of `a` begin b, or is b in a? */
static bool runs_into(const char *a, size_t n_a, const char *b, size_t n_b)
{
    for (size_t i = 0; i < n_a; i++)
        if (memcmp(a + i, b, n_a - i < n_b ? n_a - i : n_b) == 0) return true;
    return false;
}

/* Can a text have the two so that one of them is lost? Then it matters which is looked for first. */
static bool overlap(const spec_tokenizer *t, const speci_added *a, const speci_added *b)
{
    return runs_into(string_of(t, a), a->n, string_of(t, b), b->n) || runs_into(string_of(t, b), b->n, string_of(t, a), a->n);
}

static bool needs_normalizer(const spec_tokenizer *t, const speci_added *token)
{
    const speci_norm *norms = (const speci_norm *)(const void *)t->norms.data;
    const speci_added *all = (const speci_added *)(const void *)t->added.items.data;
    const size_t n_norm = t->norms.n / sizeof *norms;
    if (!token->normalized) return false;
    for (size_t i = 0; i < t->added.items.n / sizeof *all; i++)
        if (!all[i].normalized && overlap(t, token, &all[i])) return true;
    if (n_norm == 0) return false;
    return n_norm > 1 || norms->kind != SPECI_NORM_NFC || !nfc_leaves(string_of(t, token), token->n);
}

/* Where the text has the token's string, the added one comes first. So a piece is merged only from what the normalizer has changed, or
 * where special tokens are text. */
static bool is_merged_too(const spec_tokenizer *t, const speci_added *token)
{
    static const char mark[] = "\xE2\x96\x81";
    if (!t->spm || token->id >= speci_vocab_n_id(&t->vocab) || t->bpe.rank[token->id] == UINT32_MAX) return false;
    const size_t n_mark = sizeof mark - 1;
    bool marked = false;
    for (size_t i = 0; i + n_mark <= token->n && !marked; i++) marked = memcmp(string_of(t, token) + i, mark, n_mark) == 0;
    return token->special || marked || speci_gguf_is_own(t, token->id);
}

typedef bool unsaid_test(const spec_tokenizer *t, const speci_added *token);

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

void speci_tokenizer_tell_unsaid(const spec_tokenizer *t, speci_unsaid_fn *tell, void *user_data)
{
    const speci_added *all = (const speci_added *)(const void *)t->added.items.data;
    const size_t n = t->added.items.n / sizeof *all;
    for (size_t k = 0; k < sizeof unsaid / sizeof *unsaid; k++) {
        char text[320];
        size_t i = 0;
        while (i < n && !unsaid[k].is(t, &all[i])) i++;
        if (i == n) continue;
        snprintf(text, sizeof text, "added tokens, \"%.*s\" among them: %s: texts with them may get other ids",
                 all[i].n > 60 ? 60 : (int)all[i].n, string_of(t, &all[i]), unsaid[k].what);
        tell(user_data, text);
    }
    tell_space(t, tell, user_data);
}
