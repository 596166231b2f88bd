/* text_added.c - added and special tokens: found in the text before anything else is done to it.
 *
 * Leftmost, then longest, without overlap; a trie over bytes, so the cost does not grow with their number. */
#include <string.h>

#include "models/text/text_tokenizer.h"

void speci_added_init(speci_added_set *s, const spec_allocator *a)
{
    *s = (speci_added_set){ .text = { .a = a }, .items = { .a = a }, .by_token = { .a = a } };
    s->raw.edges.a = s->raw.leaf.a = a;
    s->normalized.edges.a = s->normalized.leaf.a = a;
    speci_vocab_init(&s->ids, a);
}

void speci_added_free(speci_added_set *s)
{
    speci_buf_free(&s->text);
    speci_buf_free(&s->items);
    speci_buf_free(&s->by_token);
    speci_trie_free(&s->raw);
    speci_trie_free(&s->normalized);
    speci_vocab_free(&s->ids);
    speci_regex_close(s->word);
    s->word = NULL;
}

static spec_status need_word(speci_added_set *s, const speci_added *token)
{
    static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";
    if (!token->single_word || s->word) return SPEC_OK;
    return speci_regex_open(&s->word, word, sizeof word - 1, false, "single_word", s->text.a);
}

spec_status speci_added_put(speci_added_set *s, const char *content, size_t n, const speci_added *token)
{
    if (token->id < 0 || token->id >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: added token '%.*s' has the id %d, expected 0 to %d",
                          s->ids.file ? s->ids.file : "added tokens", n > 64 ? 64 : (int)n, content, token->id, SPECI_TOK_ID_LIMIT - 1);
    speci_added item = *token;
    size_t index = s->items.n / sizeof item;
    item.offset = item.shown_offset = s->text.n;
    item.n = item.n_shown = n;
    SPEC_TRY(speci_vocab_add(&s->ids, content, n, (int32_t)index));
    SPEC_TRY(speci_buf_add(&s->text, content, n));
    SPEC_TRY(speci_buf_add(&s->items, &item, sizeof item));
    size_t need = ((size_t)item.id + 1) * sizeof(uint32_t);
    if (s->by_token.n < need) {
        SPEC_TRY(speci_buf_reserve(&s->by_token, need - s->by_token.n));
        memset(s->by_token.data + s->by_token.n, 0, need - s->by_token.n);
        s->by_token.n = need;
    }
    ((uint32_t *)(void *)s->by_token.data)[item.id] = (uint32_t)index + 1;
    return need_word(s, token);
}

spec_status speci_added_change(speci_added_set *s, int32_t index, const speci_added *token)
{
    speci_added *item = (speci_added *)(void *)s->items.data + index;
    item->single_word = token->single_word;
    item->lstrip = token->lstrip, item->rstrip = token->rstrip;
    item->normalized = token->normalized, item->special = item->special || token->special;
    return need_word(s, token);
}

static const speci_added *item_at(const speci_added_set *s, size_t i)
{
    return (const speci_added *)(const void *)s->items.data + i;
}

const speci_added *speci_added_of_id(const speci_added_set *s, int32_t id)
{
    if (id < 0 || (size_t)id >= s->by_token.n / sizeof(uint32_t)) return NULL;
    uint32_t index = ((const uint32_t *)(const void *)s->by_token.data)[id];
    return index ? item_at(s, index - 1) : NULL;
}

/* -------------------------------------------------------------------------------- entering --- */

/* Enters one token into its trie. One that is looked for in normalized text is normalized itself, and decoding shows
 * it so. */
static spec_status place(spec_tokenizer *t, size_t index, speci_norm_work *work)
{
    speci_added *token = (speci_added *)(void *)t->added.items.data + index;
    const char *string = t->added.text.data + token->offset;
    size_t n = token->n;
    bool origin = true;
    if (!token->normalized) return speci_trie_put(&t->added.raw, string, n, index);
    SPEC_TRY(speci_normalize(&t->norms, string, n, &origin, work, &string, &n));
    SPEC_TRY(speci_trie_put(&t->added.normalized, string, n, index));
    if (t->norms.n == 0) return SPEC_OK; /* nothing was done to it */
    token->shown_offset = t->added.text.n;
    token->n_shown = n;
    return speci_buf_add(&t->added.text, string, n);
}

/* Where two strings become equal by normalizing, special tokens come first. */
static spec_status place_all(spec_tokenizer *t, speci_norm_work *work)
{
    size_t n = t->added.items.n / sizeof(speci_added);
    for (size_t i = 0; i < 2 * n; i++)
        if (item_at(&t->added, i % n)->special == (i < n)) SPEC_TRY(place(t, i % n, work));
    return SPEC_OK;
}

spec_status speci_added_place(spec_tokenizer *t)
{
    const spec_allocator *a = &t->allocator;
    speci_norm_work work = { { .a = a }, { .a = a }, { .a = a }, { .a = a } };
    spec_status status = place_all(t, &work);
    speci_buf_free(&work.a);
    speci_buf_free(&work.b);
    speci_buf_free(&work.code_points);
    speci_buf_free(&work.order);
    return status;
}

/* ------------------------------------------------------------------------------ splitting --- */

/* Is the character at s [n], of which there is one, a word character? */
static spec_status is_word(speci_match *m, const char *s, size_t n, bool *yes)
{
    size_t start, end;
    speci_match_start(m, s, n);
    return speci_match_next(m, yes, &start, &end);
}

/* Is there a word character right before or after [start, end)? */
static spec_status touches_word(speci_match *m, const char *text, size_t n, size_t start, size_t end, bool *yes)
{
    *yes = false;
    if (start > 0) {
        size_t before = speci_utf8_before(text, start);
        SPEC_TRY(is_word(m, text + before, start - before, yes));
    }
    if (!*yes && end < n) SPEC_TRY(is_word(m, text + end, speci_utf8_length(text + end, n - end), yes));
    return SPEC_OK;
}

static size_t spaces_before(const char *text, size_t start, size_t limit)
{
    while (start > limit) {
        size_t len, before = speci_utf8_before(text, start);
        if (!speci_is_space(speci_utf8_decode(text + before, &len))) break;
        start = before;
    }
    return start;
}

static size_t spaces_after(const char *text, size_t n, size_t end)
{
    size_t len;
    while (end < n && speci_is_space(speci_utf8_decode(text + end, &len))) end += len;
    return end;
}

static spec_status put_segment(speci_buf *out, size_t start, size_t end, int32_t id)
{
    speci_segment segment = { start, end - start, id };
    return speci_buf_add(out, &segment, sizeof segment);
}

static spec_status split(const speci_added_set *s, const speci_trie *trie, speci_match *word, const char *text,
                         size_t n, bool parse_special, speci_buf *out)
{
    size_t done = 0; /* everything before it is in a segment */
    for (size_t i = 0; i < n;) {
        size_t index, len;
        if (!trie->root[(uint8_t)text[i]] || !speci_trie_longest(trie, text + i, n - i, &index, &len)) {
            i++;
            continue;
        }
        const speci_added *token = item_at(s, index);
        size_t start = i, end = i + len;
        i = end; /* a match that is discarded below is used up all the same, as in the reference */
        if (token->special && !parse_special) continue;
        if (token->single_word) {
            bool inside;
            SPEC_TRY(touches_word(word, text, n, start, end, &inside));
            if (inside) continue;
        }
        /* An rstrip before may have taken white space that this match has, or all of it. */
        if (token->lstrip) start = start > done ? spaces_before(text, start, done) : done;
        if (token->rstrip) end = spaces_after(text, n, end);
        if (start >= end) continue;
        if (done < start) SPEC_TRY(put_segment(out, done, start, -1));
        SPEC_TRY(put_segment(out, start, end, token->id));
        done = end;
    }
    return done < n ? put_segment(out, done, n, -1) : SPEC_OK;
}

spec_status speci_added_split(const speci_added_set *s, const speci_trie *trie, const char *text, size_t n,
                              bool parse_special, speci_buf *out)
{
    speci_match *word = NULL;
    if (trie->leaf.n == 0) return n ? put_segment(out, 0, n, -1) : SPEC_OK;
    if (s->word) SPEC_TRY(speci_match_open(&word, s->word));
    spec_status status = split(s, trie, word, text, n, parse_special, out);
    speci_match_close(word);
    return status;
}
