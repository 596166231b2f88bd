/* text_pretokenize.c - cuts normalized text into the splits that BPE works on one by one.
 *
 * The many pre-tokenizers of tokenizer.json come down to five steps (the reader translates them): ByteLevel is a
 * prefix space, a split at GPT-2's pattern and the byte alphabet; Digits, Punctuation, Whitespace... are patterns. */
#include <string.h>

#include "models/text/text_tokenizer.h"

static spec_status put_split(speci_buf *splits, size_t offset, size_t end, bool origin)
{
    if (offset == end) return SPEC_OK; /* empty splits vanish everywhere */
    speci_split split = { offset, end - offset, origin };
    return speci_buf_add(splits, &split, sizeof split);
}

/* --------------------------------------------------------------------------------- splitting --- */

/* One split being cut. A piece is either a match of the pattern or what lies between two; the behavior says which
 * pieces are joined or dropped, and the last one is kept back because the next may join it. */
typedef struct cut {
    speci_split_behavior behavior;
    speci_buf *splits;
    size_t base; /* offset of the split in the text */
    bool origin; /* of the split */
    bool pending, pending_match;
    size_t start, end; /* the piece that is kept back */
} cut;

static spec_status flush(cut *c)
{
    if (!c->pending) return SPEC_OK;
    c->pending = false;
    return put_split(c->splits, c->base + c->start, c->base + c->end, c->origin && c->start == 0);
}

static spec_status put_piece(cut *c, size_t start, size_t end, bool match)
{
    bool join = false;
    switch (c->behavior) {
    case SPECI_SPLIT_REMOVED:
        if (match) return SPEC_OK;
        break;
    case SPECI_SPLIT_ISOLATED:
        break;
    case SPECI_SPLIT_CONTIGUOUS:
        join = c->pending && match == c->pending_match;
        break;
    case SPECI_SPLIT_MERGED_WITH_PREVIOUS:
        join = c->pending && match && !c->pending_match;
        break;
    case SPECI_SPLIT_MERGED_WITH_NEXT:
        join = c->pending && !match && c->pending_match;
        break;
    }
    if (!join) {
        SPEC_TRY(flush(c));
        c->start = start;
    }
    c->end = end;
    c->pending = true;
    c->pending_match = match;
    return SPEC_OK;
}

static spec_status cut_at_matches(const speci_pre *pre, speci_match *m, const char *text, const speci_split *split,
                                  speci_buf *out)
{
    cut c = { .behavior = pre->behavior, .splits = out, .base = split->offset, .origin = split->origin };
    size_t done = 0, start, end;
    bool found;
    speci_match_start(m, text + split->offset, split->n);
    for (;;) {
        SPEC_TRY(speci_match_next(m, &found, &start, &end));
        if (!found) break;
        if (done < start) SPEC_TRY(put_piece(&c, done, start, pre->invert));
        SPEC_TRY(put_piece(&c, start, end, !pre->invert));
        done = end;
    }
    if (done < split->n) SPEC_TRY(put_piece(&c, done, split->n, pre->invert));
    return flush(&c);
}

static spec_status split_all(const speci_pre *pre, speci_pre_work *work)
{
    const speci_split *split = (const speci_split *)(const void *)work->splits.data;
    speci_match *m;
    spec_status status = SPEC_OK;
    SPEC_TRY(speci_match_open(&m, pre->re));
    for (size_t i = 0; status == SPEC_OK && i < work->splits.n / sizeof *split; i++)
        status = cut_at_matches(pre, m, work->text.data, split + i, &work->splits2);
    speci_match_close(m);
    return status;
}

static spec_status split_fixed(const speci_pre *pre, const char *text, const speci_split *split, speci_buf *out)
{
    size_t start = 0, i = 0, count = 0;
    while (i < split->n) {
        i += speci_utf8_length(text + split->offset + i, split->n - i);
        if (++count < pre->length && i < split->n) continue;
        SPEC_TRY(put_split(out, split->offset + start, split->offset + i, split->origin && start == 0));
        start = i;
        count = 0;
    }
    return SPEC_OK;
}

/* --------------------------------------------------------------------- steps that change text --- */

/* Metaspace: spaces become pre->text, which is also put in front: always, or at the beginning of the whole input. */
static spec_status put_marked(const speci_pre *pre, const char *s, size_t n, bool origin, speci_buf *out)
{
    bool there = (n >= pre->n_text && memcmp(s, pre->text, pre->n_text) == 0) || s[0] == ' ';
    bool wanted = pre->prepend == SPECI_PREPEND_ALWAYS || (pre->prepend == SPECI_PREPEND_FIRST && origin);
    if (wanted && !there) SPEC_TRY(speci_buf_add(out, pre->text, pre->n_text));
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && s[i] != ' ') i++;
        SPEC_TRY(speci_buf_add(out, s + start, i - start));
        if (i == n) break;
        SPEC_TRY(speci_buf_add(out, pre->text, pre->n_text));
        i++;
    }
    return SPEC_OK;
}

static spec_status put_byte_level(const char *s, size_t n, speci_buf *out)
{
    char bytes[4];
    for (size_t i = 0; i < n; i++)
        SPEC_TRY(speci_buf_add(out, bytes, speci_utf8_encode(bytes, speci_byte_to_char((uint8_t)s[i]))));
    return SPEC_OK;
}

static spec_status rewrite_all(const speci_pre *pre, speci_pre_work *work)
{
    const speci_split *split = (const speci_split *)(const void *)work->splits.data;
    work->text2.n = 0;
    for (size_t i = 0; i < work->splits.n / sizeof *split; i++) {
        const char *s = work->text.data + split[i].offset;
        size_t begin = work->text2.n, n = split[i].n;
        if (pre->kind == SPECI_PRE_PREFIX_SPACE) {
            if (s[0] != ' ') SPEC_TRY(speci_buf_add(&work->text2, " ", 1));
            SPEC_TRY(speci_buf_add(&work->text2, s, n));
        } else if (pre->kind == SPECI_PRE_MARK) {
            SPEC_TRY(put_marked(pre, s, n, split[i].origin, &work->text2));
        } else {
            SPEC_TRY(put_byte_level(s, n, &work->text2));
        }
        SPEC_TRY(put_split(&work->splits2, begin, work->text2.n, split[i].origin));
    }
    speci_buf swap = work->text;
    work->text = work->text2;
    work->text2 = swap;
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------- the steps --- */

static spec_status step(const speci_pre *pre, speci_pre_work *work)
{
    const speci_split *split = (const speci_split *)(const void *)work->splits.data;
    switch (pre->kind) {
    case SPECI_PRE_SPLIT:
        return split_all(pre, work);
    case SPECI_PRE_FIXED:
        for (size_t i = 0; i < work->splits.n / sizeof *split; i++)
            SPEC_TRY(split_fixed(pre, work->text.data, split + i, &work->splits2));
        return SPEC_OK;
    case SPECI_PRE_PREFIX_SPACE:
    case SPECI_PRE_MARK:
    case SPECI_PRE_BYTE_LEVEL:
        return rewrite_all(pre, work);
    }
    return SPEC_OK;
}

spec_status speci_pretokenize(const speci_buf *pres, const char *text, size_t n, bool origin, speci_pre_work *work)
{
    const speci_pre *pre = (const speci_pre *)(const void *)pres->data;
    work->text.n = work->splits.n = 0;
    SPEC_TRY(speci_buf_add(&work->text, text, n));
    SPEC_TRY(put_split(&work->splits, 0, n, origin));
    for (size_t i = 0; i < pres->n / sizeof *pre; i++) {
        work->splits2.n = 0;
        SPEC_TRY(step(pre + i, work));
        speci_buf swap = work->splits;
        work->splits = work->splits2;
        work->splits2 = swap;
    }
    return SPEC_OK;
}

spec_status speci_pres_continue(speci_buf *out, const speci_buf *pres)
{
    const speci_pre *pre = (const speci_pre *)(const void *)pres->data;
    for (size_t i = 0; i < pres->n / sizeof *pre; i++) {
        speci_pre step = pre[i];
        if (step.kind == SPECI_PRE_PREFIX_SPACE) continue;
        step.prepend = SPECI_PREPEND_NEVER;
        SPEC_TRY(speci_buf_add(out, &step, sizeof step));
    }
    return SPEC_OK;
}

void speci_pres_free(speci_buf *pres)
{
    speci_pre *pre = (speci_pre *)(void *)pres->data;
    for (size_t i = 0; i < pres->n / sizeof *pre; i++) speci_regex_close(pre[i].re);
    speci_buf_free(pres);
}
