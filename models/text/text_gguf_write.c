/* text_gguf_write.c - an open tokenizer as the metadata of a GGUF file: text_gguf.c the other way.
 *
 * Scores of a SentencePiece model are told by their order, which is all that merging asks of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/text/text_gguf.h"

bool speci_gguf_is_own(const spec_tokenizer *t, int32_t id)
{
    size_t index = 0, len = 0, n;
    const char *s = speci_vocab_string(&t->vocab, id, &n);
    return s && speci_trie_longest(&t->bpe.user_defined, s, n, &index, &len) && len == n && index == (size_t)id;
}

static bool is_byte(const spec_tokenizer *t, int32_t id)
{
    for (int b = 0; t->bpe.byte_fallback && b < 256; b++)
        if (t->bpe.byte_id[b] == id) return true;
    return false;
}

/* What the model takes whole itself stays so where it was added, too: it is found in normalised text. */
static int type_of(const spec_tokenizer *t, int32_t id, const char *s)
{
    const speci_added *added = speci_added_of_id(&t->added, id);
    if (!s) return SPM_UNUSED;
    if (t->spm && id == t->bpe.unk) return SPM_UNKNOWN;
    if (t->spm && speci_gguf_is_own(t, id)) return SPM_USER_DEFINED;
    if (added) return added->special ? SPM_CONTROL : SPM_USER_DEFINED;
    if (!t->spm) return SPM_NORMAL;
    if (is_byte(t, id)) return SPM_BYTE;
    return t->bpe.rank[id] == UINT32_MAX ? SPM_UNUSED : SPM_NORMAL;
}

/* A piece of the model that users defined must not look like an added token. */
static float score_of(const spec_tokenizer *t, int32_t id, int type)
{
    if (id >= speci_vocab_n_id(&t->vocab)) return SPECI_ADDED_SCORE;
    if (type == SPM_USER_DEFINED && !speci_gguf_is_own(t, id)) return SPECI_ADDED_SCORE;
    if (t->bpe.rank[id] == UINT32_MAX) return 0.0f;
    const float score = -(float)t->bpe.rank[id];
    return score == SPECI_ADDED_SCORE && type == SPM_USER_DEFINED ? score - 0.5f : score;
}

static spec_status put_tokens(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    size_t n;
    char none[32];
    SPEC_TRY(speci_gguf_put_array(h, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, (uint64_t)n_vocab));
    for (int32_t id = 0; id < n_vocab; id++) {
        const char *s = speci_tokenizer_string(t, id, &n);
        if (!s) n = (size_t)snprintf(none, sizeof none, "[PAD%d]", id);
        SPEC_TRY(speci_gguf_put_string(h, s ? s : none, n));
    }
    SPEC_TRY(speci_gguf_put_array(h, "tokenizer.ggml.token_type", SPECI_GGUF_I32, (uint64_t)n_vocab));
    for (int32_t id = 0; id < n_vocab; id++) {
        const char *s = speci_tokenizer_string(t, id, &n);
        const int32_t type = type_of(t, id, s);
        SPEC_TRY(speci_gguf_put_element(h, &type, sizeof type));
    }
    return SPEC_OK;
}

static spec_status put_scores(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    SPEC_TRY(speci_gguf_put_array(h, "tokenizer.ggml.scores", SPECI_GGUF_F32, (uint64_t)n_vocab));
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t n;
        const char *s = speci_tokenizer_string(t, id, &n);
        const float score = score_of(t, id, type_of(t, id, s));
        SPEC_TRY(speci_gguf_put_element(h, &score, sizeof score));
    }
    return SPEC_OK;
}

/* --- merges, in their order --- */

static int by_rank(const void *x, const void *y)
{
    const uint32_t a = ((const speci_pair *)x)->rank, b = ((const speci_pair *)y)->rank;
    return (a > b) - (a < b);
}

static spec_status put_merge(speci_gguf_head *h, const spec_tokenizer *t, const speci_pair *p, speci_buf *line)
{
    size_t n_a, n_b;
    const char *a = speci_vocab_string(&t->vocab, (int32_t)p->a, &n_a), *b = speci_vocab_string(&t->vocab, (int32_t)p->b, &n_b);
    line->n = 0;
    SPEC_TRY(speci_buf_add(line, a, n_a));
    SPEC_TRY(speci_buf_add(line, " ", 1));
    SPEC_TRY(speci_buf_add(line, b, n_b));
    return speci_gguf_put_string(h, line->data, line->n);
}

static spec_status put_merges(speci_gguf_head *h, const spec_tokenizer *t)
{
    const speci_pairs *from = &t->bpe.merges;
    speci_pair *all = speci_alloc(&t->allocator, from->n, sizeof *all);
    speci_buf line = { .a = &t->allocator };
    size_t n = 0;
    if (!all) return SPEC_E_NOMEM;
    for (size_t i = 0; i < from->n_slot; i++)
        if (from->slot[i].id >= 0) all[n++] = from->slot[i];
    if (n) qsort(all, n, sizeof *all, by_rank);
    spec_status status = speci_gguf_put_array(h, "tokenizer.ggml.merges", SPECI_GGUF_STRING, n);
    for (size_t i = 0; i < n && status == SPEC_OK; i++) status = put_merge(h, t, &all[i], &line);
    speci_buf_free(&line);
    speci_free(&t->allocator, all);
    return status;
}

/* --- both kinds --- */

static spec_status put_text(speci_gguf_head *h, const char *key, const char *s) { return speci_gguf_put_text(h, key, s, strlen(s)); }

static spec_status put_gpt2(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    const char *pre = NULL;
    bool prefix_space = false;
    SPEC_TRY(speci_gguf_pre_of(&pre, &prefix_space, t));
    SPEC_TRY(put_text(h, "tokenizer.ggml.model", "gpt2"));
    SPEC_TRY(speci_gguf_put_text(h, "tokenizer.ggml.pre", pre, strcspn(pre, " ")));
    SPEC_TRY(put_tokens(h, t, n_vocab));
    SPEC_TRY(speci_gguf_put_flag(h, "tokenizer.ggml.add_space_prefix", prefix_space));
    return put_merges(h, t);
}

static spec_status put_llama(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    const speci_norm *norm = t->norms.n ? (const speci_norm *)(const void *)t->norms.data : NULL;
    SPEC_TRY(put_text(h, "tokenizer.ggml.model", "llama"));
    SPEC_TRY(put_text(h, "tokenizer.ggml.pre", "default"));
    SPEC_TRY(put_tokens(h, t, n_vocab));
    SPEC_TRY(put_scores(h, t, n_vocab));
    SPEC_TRY(speci_gguf_put_flag(h, "tokenizer.ggml.add_space_prefix", norm && norm->dummy_prefix));
    SPEC_TRY(speci_gguf_put_flag(h, "tokenizer.ggml.remove_extra_whitespaces", norm && norm->remove_extra));
    if (t->bpe.unk < 0) return SPEC_OK;
    return speci_gguf_put_whole(h, "tokenizer.ggml.unknown_token_id", (uint32_t)t->bpe.unk);
}

/* A token that is looked for in normalised text is written in that form, which another token may have. */
static spec_status check_strings(const spec_tokenizer *t)
{
    const speci_added *all = (const speci_added *)(const void *)t->added.items.data;
    spec_status status = SPEC_OK;
    speci_vocab seen;
    speci_vocab_init(&seen, &t->allocator);
    for (size_t i = 0; i < t->added.items.n / sizeof *all && status == SPEC_OK; i++) {
        const char *shown = t->added.text.data + all[i].shown_offset;
        const size_t n = all[i].n_shown;
        if (all[i].shown_offset == all[i].offset) continue;
        const int32_t other = speci_tokenizer_find(t, shown, n), again = speci_vocab_find(&seen, shown, n);
        if ((other >= 0 && other != all[i].id) || again >= 0)
            status = speci_fail(SPEC_E_UNSUPPORTED, "%s: tokens %d and %d are both \"%.*s\" in normalised text: a GGUF file has each "
                                "string once", t->path, again >= 0 ? again : other, all[i].id, n > 60 ? 60 : (int)n, shown);
        else status = speci_vocab_add(&seen, shown, n, all[i].id);
    }
    speci_vocab_free(&seen);
    return status;
}

spec_status speci_tokenizer_put_gguf(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab)
{
    if (t->n_vocab > n_vocab)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the tokenizer has ids up to %d, but the model %d rows: "
                          "a GGUF file has as many tokens as rows", t->path, t->n_vocab - 1, n_vocab);
    SPEC_TRY(check_strings(t));
    SPEC_TRY(t->spm ? put_llama(h, t, n_vocab) : put_gpt2(h, t, n_vocab));
    SPEC_TRY(speci_gguf_put_flag(h, "tokenizer.ggml.add_bos_token", t->before.n > 0));
    SPEC_TRY(speci_gguf_put_flag(h, "tokenizer.ggml.add_eos_token", t->after.n > 0));
    if (!t->chat_template) return SPEC_OK;
    return put_text(h, "tokenizer.chat_template", t->chat_template);
}

int32_t speci_tokenizer_first(const spec_tokenizer *t)
{
    return t->before.n ? speci_buf_ids(&t->before)[0] : -1;
}
