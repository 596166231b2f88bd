/* text_normalize.c - what is done to text before it is split: Unicode forms, replacements, white space. */
#include <string.h>
#include <utf8proc.h>

#include "models/text/text_tokenizer.h"

static spec_status put_char(speci_buf *out, int32_t cp)
{
    char bytes[4];
    return speci_buf_add(out, bytes, speci_utf8_encode(bytes, cp));
}

/* --------------------------------------------------------------------------- Unicode forms --- */

/* Characters that the reference's older tables do not know as marks or as decomposable: they pass unchanged. Ids
 * must be those that the model was trained with, hence not "corrected" here. Sorted. */
static const struct {
    int32_t first, last;
} inert[] = {
    { 0x7FD, 0x7FD },     { 0x898, 0x89F },     { 0x8CA, 0x8D3 },     { 0x9FE, 0x9FE },     { 0xC3C, 0xC3C },
    { 0xD3B, 0xD3C },     { 0xEBA, 0xEBA },     { 0x1715, 0x1715 },   { 0x1ABF, 0x1ACE },   { 0x1DF6, 0x1DFA },
    { 0x32FF, 0x32FF },   { 0xA7F2, 0xA7F4 },   { 0xA82C, 0xA82C },   { 0xAB69, 0xAB69 },   { 0x10781, 0x107BA },
    { 0x10D24, 0x10D27 }, { 0x10EAB, 0x10EAC }, { 0x10EFD, 0x10EFF }, { 0x10F46, 0x10F50 }, { 0x10F82, 0x10F85 },
    { 0x11070, 0x11070 }, { 0x1133B, 0x1133B }, { 0x1145E, 0x1145E }, { 0x11839, 0x1183A }, { 0x11938, 0x11938 },
    { 0x1193D, 0x1193E }, { 0x11943, 0x11943 }, { 0x119E0, 0x119E0 }, { 0x11A34, 0x11A34 }, { 0x11A47, 0x11A47 },
    { 0x11A99, 0x11A99 }, { 0x11D42, 0x11D45 }, { 0x11D97, 0x11D97 }, { 0x11F41, 0x11F42 }, { 0x16FF0, 0x16FF1 },
    { 0x1E030, 0x1E06D }, { 0x1E08F, 0x1E08F }, { 0x1E130, 0x1E136 }, { 0x1E2AE, 0x1E2AE }, { 0x1E2EC, 0x1E2EF },
    { 0x1E4EC, 0x1E4EF }, { 0x1F16C, 0x1F16C }, { 0x1FBF0, 0x1FBF9 },
};

static bool is_inert(int32_t cp)
{
    size_t low = 0, high = sizeof inert / sizeof *inert;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > inert[middle].last)
            low = middle + 1;
        else if (cp < inert[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

static int combining_class(int32_t cp)
{
    if (cp < 0x300 || is_inert(cp)) return 0;
    return utf8proc_get_property(cp)->combining_class;
}

static spec_status decompose(const char *text, size_t n, bool compatibility, speci_buf *code_points)
{
    utf8proc_option_t options = UTF8PROC_DECOMPOSE;
    if (compatibility) options |= UTF8PROC_COMPAT;
    code_points->n = 0;
    for (size_t i = 0, len; i < n; i += len) {
        int32_t cp = speci_utf8_decode(text + i, &len), parts[32]; /* the longest decomposition has 18 */
        utf8proc_ssize_t n_part = 1;
        if (cp < 0x80 || is_inert(cp))
            parts[0] = cp;
        else
            n_part = utf8proc_decompose_char(cp, parts, sizeof parts / sizeof *parts, options, NULL);
        if (n_part < 0 || (size_t)n_part > sizeof parts / sizeof *parts)
            return speci_fail(SPEC_E_UNSUPPORTED, "U+%04X cannot be decomposed", (unsigned)cp);
        SPEC_TRY(speci_buf_add(code_points, parts, (size_t)n_part * sizeof *parts));
    }
    return SPEC_OK;
}

/* Sorts a run of marks by combining class, equals in order. Counting, not the usual exchange of neighbours: that is
 * quadratic, and a text may be one run. */
static void sort_run(int32_t *run, int32_t *copy, size_t n)
{
    size_t start[257] = { 0 };
    memcpy(copy, run, n * sizeof *run);
    for (size_t i = 0; i < n; i++) start[combining_class(copy[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) run[start[combining_class(copy[i])]++] = copy[i];
}

static spec_status reorder(speci_buf *code_points, speci_buf *order)
{
    int32_t *cp = (int32_t *)(void *)code_points->data;
    size_t n = code_points->n / sizeof *cp;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && combining_class(cp[end]) != 0) end++;
        if (end - i > 1) {
            order->n = 0;
            SPEC_TRY(speci_buf_reserve(order, (end - i) * sizeof *cp));
            sort_run(cp + i, (int32_t *)(void *)order->data, end - i);
        }
        i = end + 1;
    }
    return SPEC_OK;
}

static spec_status unicode_form(const speci_norm *norm, const char *text, size_t n, speci_norm_work *work,
                                speci_buf *out)
{
    bool compatibility = norm->kind == SPECI_NORM_NFKC || norm->kind == SPECI_NORM_NFKD;
    bool compose = norm->kind == SPECI_NORM_NFC || norm->kind == SPECI_NORM_NFKC;
    size_t i = 0;
    while (i < n && (uint8_t)text[i] < 0x80) i++;
    if (i == n) return speci_buf_add(out, text, n); /* ASCII is in every form */
    SPEC_TRY(decompose(text, n, compatibility, &work->code_points));
    SPEC_TRY(reorder(&work->code_points, &work->order));
    int32_t *cp = (int32_t *)(void *)work->code_points.data;
    utf8proc_ssize_t count = (utf8proc_ssize_t)(work->code_points.n / sizeof *cp);
    if (compose) count = utf8proc_normalize_utf32(cp, count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (count < 0) return speci_fail(SPEC_E_UNSUPPORTED, "text cannot be normalized: %s", utf8proc_errmsg(count));
    for (utf8proc_ssize_t k = 0; k < count; k++) SPEC_TRY(put_char(out, cp[k]));
    return SPEC_OK;
}

/* ---------------------------------------------------------------------- character by character --- */

static bool is_mark(int32_t cp)
{
    utf8proc_category_t category = utf8proc_category(cp);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

/* The reference's table of the rules of "nmt" normalization; -1 = removed. */
static int32_t nmt_char(int32_t cp)
{
    if ((cp >= 0x1 && cp <= 0x8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F)
        return -1;
    if (cp == 0x9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) ||
        cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

static spec_status map_char(speci_norm_kind kind, int32_t cp, speci_buf *out)
{
    if (kind == SPECI_NORM_LOWERCASE) {
        /* The one character whose lower case is two; final sigma is not looked for, as in the reference. */
        if (cp == 0x130) return speci_buf_add(out, "i\xCC\x87", 3);
        return put_char(out, utf8proc_tolower(cp));
    }
    if (kind == SPECI_NORM_STRIP_ACCENTS) return is_mark(cp) ? SPEC_OK : put_char(out, cp);
    cp = nmt_char(cp);
    return cp < 0 ? SPEC_OK : put_char(out, cp);
}

static spec_status map_chars(speci_norm_kind kind, const char *text, size_t n, bool *origin, speci_buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        SPEC_TRY(map_char(kind, speci_utf8_decode(text + i, &len), out));
        if (i == 0 && out->n == 0) *origin = false; /* the first character is gone */
    }
    return SPEC_OK;
}

static spec_status byte_level(const char *text, size_t n, speci_buf *out)
{
    for (size_t i = 0; i < n; i++) SPEC_TRY(put_char(out, speci_byte_to_char((uint8_t)text[i])));
    return SPEC_OK;
}

/* ----------------------------------------------------------------------- strings and white space --- */

static spec_status replace_all(const speci_norm *norm, speci_match *m, const char *text, size_t n, bool *origin,
                               speci_buf *out)
{
    size_t done = 0, start, end;
    bool found;
    speci_match_start(m, text, n);
    for (;;) {
        SPEC_TRY(speci_match_next(m, &found, &start, &end));
        if (!found) break;
        SPEC_TRY(speci_buf_add(out, text + done, start - done));
        SPEC_TRY(speci_buf_add(out, norm->text, norm->n_text));
        /* What replaces one character stands where it stood; of several, where the last one stood. */
        if (start == 0 && end > 0 && (norm->n_text == 0 || speci_utf8_length(text, n) != end)) *origin = false;
        done = end;
    }
    return speci_buf_add(out, text + done, n - done);
}

static spec_status replace(const speci_norm *norm, const char *text, size_t n, bool *origin, speci_buf *out)
{
    speci_match *m;
    SPEC_TRY(speci_match_open(&m, norm->re));
    spec_status status = replace_all(norm, m, text, n, origin, out);
    speci_match_close(m);
    return status;
}

static spec_status strip(const speci_norm *norm, const char *text, size_t n, bool *origin, speci_buf *out)
{
    size_t start = 0, end = n, len;
    while (norm->left && start < end && speci_is_space(speci_utf8_decode(text + start, &len))) start += len;
    while (norm->right && end > start) {
        size_t before = speci_utf8_before(text, end);
        if (!speci_is_space(speci_utf8_decode(text + before, &len))) break;
        end = before;
    }
    if (start > 0) *origin = false;
    return speci_buf_add(out, text + start, end - start);
}

/* SentencePiece's own normalizer without a character map (Normalizer::Normalize in sentencepiece). With
 * remove_extra, runs of spaces become one, and spaces at both ends go. The dummy prefix is for the beginning of the
 * whole text only: after a special token there is none, but in the tokenizers that transformers calls legacy, where a
 * space stands for it (Metaspace in tokenizers). */
static spec_status spm(const speci_norm *norm, const char *text, size_t n, bool origin, speci_buf *out)
{
    static const char mark[] = "\xE2\x96\x81"; /* U+2581 */
    const char *space = norm->escape ? mark : " ";
    size_t n_space = norm->escape ? 3 : 1, i = 0;
    while (norm->remove_extra && i < n && text[i] == ' ') i++;
    if (i == n) return SPEC_OK;
    if (norm->dummy_prefix && (origin || (norm->each_segment && text[i] != ' '))) SPEC_TRY(speci_buf_add(out, space, n_space));
    while (i < n) {
        size_t start = i;
        while (i < n && text[i] != ' ') i++;
        SPEC_TRY(speci_buf_add(out, text + start, i - start));
        if (i == n) break;
        SPEC_TRY(speci_buf_add(out, space, n_space));
        i++;
        while (norm->remove_extra && i < n && text[i] == ' ') i++;
    }
    while (norm->remove_extra && out->n >= n_space && memcmp(out->data + out->n - n_space, space, n_space) == 0)
        out->n -= n_space;
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------- the steps --- */

static spec_status step(const speci_norm *norm, const char *text, size_t n, bool *origin, speci_norm_work *work,
                        speci_buf *out)
{
    switch (norm->kind) {
    case SPECI_NORM_NFC:
    case SPECI_NORM_NFD:
    case SPECI_NORM_NFKC:
    case SPECI_NORM_NFKD:
        return unicode_form(norm, text, n, work, out);
    case SPECI_NORM_LOWERCASE:
    case SPECI_NORM_STRIP_ACCENTS:
    case SPECI_NORM_NMT:
        return map_chars(norm->kind, text, n, origin, out);
    case SPECI_NORM_REPLACE:
        return replace(norm, text, n, origin, out);
    case SPECI_NORM_PREPEND:
        if (n == 0) return SPEC_OK;
        SPEC_TRY(speci_buf_add(out, norm->text, norm->n_text));
        return speci_buf_add(out, text, n);
    case SPECI_NORM_STRIP:
        return strip(norm, text, n, origin, out);
    case SPECI_NORM_BYTE_LEVEL:
        return byte_level(text, n, out);
    case SPECI_NORM_SPM:
        return spm(norm, text, n, *origin, out);
    }
    return SPEC_OK;
}

spec_status speci_normalize(const speci_buf *norms, const char *text, size_t n, bool *origin, speci_norm_work *work,
                            const char **out, size_t *n_out)
{
    const speci_norm *norm = (const speci_norm *)(const void *)norms->data;
    speci_buf *to = &work->a;
    for (size_t i = 0; i < norms->n / sizeof *norm; i++) {
        to->n = 0;
        SPEC_TRY(step(norm + i, text, n, origin, work, to));
        text = to->data ? to->data : "";
        n = to->n;
        to = to == &work->a ? &work->b : &work->a;
    }
    *out = text;
    *n_out = n;
    return SPEC_OK;
}

spec_status speci_norms_continue(speci_buf *out, const speci_buf *norms)
{
    const speci_norm *norm = (const speci_norm *)(const void *)norms->data;
    for (size_t i = 0; i < norms->n / sizeof *norm; i++) {
        speci_norm step = norm[i];
        if (step.kind == SPECI_NORM_PREPEND || step.kind == SPECI_NORM_STRIP) continue;
        step.dummy_prefix = step.remove_extra = false;
        SPEC_TRY(speci_buf_add(out, &step, sizeof step));
    }
    return SPEC_OK;
}

void speci_norms_free(speci_buf *norms)
{
    speci_norm *norm = (speci_norm *)(void *)norms->data;
    for (size_t i = 0; i < norms->n / sizeof *norm; i++) {
        speci_regex_close(norm[i].re);
        speci_free(norms->a, norm[i].text);
    }
    speci_buf_free(norms);
}
