/* text_translate.c - see text_translate.h. */
#include "models/text/text_translate.h"

#include <string.h>

#include "models/text/text_tokenizer.h"

/* --- what all of it asks of a tokenizer --- */

static spec_status encode(speci_buf *out, const spec_tokenizer *t, const char *text, size_t n, uint32_t flags)
{
    size_t n_id = 0, room = n + 16; /* no tokenizer but one that decomposes characters makes more */
    for (;;) {
        SPEC_TRY(speci_buf_reserve(out, room * sizeof(int32_t)));
        const spec_status status = spec_tokenizer_encode(t, speci_buf_ids(out) + speci_buf_n_ids(out), room, &n_id, text, n, flags);
        if (status == SPEC_OK) break;
        if (status != SPEC_E_FULL) return status;
        room = n_id;
    }
    out->n += n_id * sizeof(int32_t);
    return SPEC_OK;
}

spec_status speci_encode_on(speci_buf *out, const spec_tokenizer *t, const char *text, size_t n)
{
    return encode(out, t, text, n, SPEC_TOKEN_CONTINUE);
}

/* The bytes of a token that stands for text; *n = 0: it does not. */
static const char *text_of(const spec_tokenizer *t, int32_t n_row, int32_t id, size_t *n)
{
    const char *piece = id < n_row ? spec_tokenizer_piece(t, n, id) : NULL;
    if (!piece || id == t->bpe.unk || spec_tokenizer_is_special(t, id)) *n = 0;
    return piece;
}

bool speci_same_pieces(const spec_tokenizer *x, const spec_tokenizer *y, int32_t n, int32_t *id)
{
    if (n > x->n_vocab) n = x->n_vocab;
    if (n > y->n_vocab) n = y->n_vocab;
    for (*id = 0; *id < n; ++*id) {
        size_t nx, ny;
        const char *px = spec_tokenizer_piece(x, &nx, *id), *py = spec_tokenizer_piece(y, &ny, *id);
        if (nx != ny || (nx > 0 && memcmp(px, py, nx) != 0)) return false;
    }
    return true;
}

/* --- tokens by their bytes --- */

typedef struct piece_table {
    const spec_tokenizer *t;
    speci_vocab first;  /* bytes -> the smallest id that has them */
    int32_t *counts;    /* [n] of that id: the one of the same bytes that counts */
} piece_table;

/* The token that the tokenizer itself writes for bytes that several stand for. */
static spec_status choose(piece_table *p, int32_t known, int32_t id, const char *text, size_t n)
{
    speci_buf ids = { .a = p->first.text.a };
    if (speci_utf8_check(text, n) != n) return SPEC_OK;
    const spec_status status = speci_encode_on(&ids, p->t, text, n);
    if (status == SPEC_OK && ids.n == sizeof id && memcmp(ids.data, &id, sizeof id) == 0) p->counts[known] = id;
    speci_buf_free(&ids);
    return status;
}

static spec_status table_open(piece_table *p, const spec_tokenizer *t, int32_t n_row, const spec_allocator *a)
{
    const int32_t most = n_row < t->n_vocab ? n_row : t->n_vocab;
    *p = (piece_table){ .t = t };
    speci_vocab_init(&p->first, a);
    if (!(p->counts = speci_alloc(a, (size_t)most, sizeof *p->counts))) return SPEC_E_NOMEM;
    for (int32_t id = 0; id < most; id++) {
        size_t n;
        const char *text = text_of(t, n_row, id, &n);
        p->counts[id] = id;
        if (n == 0) continue;
        const int32_t known = speci_vocab_find(&p->first, text, n);
        SPEC_TRY(known < 0 ? speci_vocab_add(&p->first, text, n, id) : choose(p, known, id, text, n));
    }
    return SPEC_OK;
}

static void table_close(piece_table *p, const spec_allocator *a)
{
    if (!p->t) return;
    speci_vocab_free(&p->first);
    speci_free(a, p->counts);
}

static int32_t table_find(const piece_table *p, const char *text, size_t n)
{
    const int32_t id = n > 0 ? speci_vocab_find(&p->first, text, n) : -1;
    return id < 0 ? -1 : p->counts[id];
}

/* --- the map --- */

typedef struct tables {
    piece_table from, to;
    speci_buf ids; /* int32_t */
} tables;

static int32_t special_of(const speci_token_map *m, int32_t token)
{
    size_t n = 0;
    const char *s = speci_tokenizer_string(m->from, token, &n);
    int32_t id = s ? speci_tokenizer_find(m->to, s, n) : -1;
    if (id >= 0 && !spec_tokenizer_is_special(m->to, id)) id = -1;
    if (id < 0 && token == m->from->bos) id = m->to->bos;
    if (id < 0 && token == m->from->eos) id = m->to->eos;
    return id < m->n_to ? id : -1;
}

/* Ids of `to` that have no row go. */
static void drop_rowless(const speci_token_map *m, speci_buf *ids, size_t begin)
{
    int32_t *id = speci_buf_ids(ids);
    size_t kept = begin / sizeof *id;
    for (size_t i = kept; i < speci_buf_n_ids(ids); i++)
        if (id[i] < m->n_to) id[kept++] = id[i];
    ids->n = kept * sizeof *id;
}

static spec_status write_token(const speci_token_map *m, tables *t, int32_t token)
{
    size_t n;
    const char *text = text_of(m->from, m->n_from, token, &n);
    const bool special = spec_tokenizer_is_special(m->from, token);
    const int32_t id = special ? special_of(m, token) : table_find(&t->to, text, n);
    if (id >= 0) return speci_buf_add(&t->ids, &id, sizeof id);
    if (n == 0 || speci_utf8_check(text, n) != n) return SPEC_OK;
    const size_t begin = t->ids.n;
    SPEC_TRY(speci_encode_on(&t->ids, m->to, text, n));
    drop_rowless(m, &t->ids, begin);
    return SPEC_OK;
}

static void find_twin(speci_token_map *m, const tables *t, int32_t token)
{
    size_t n;
    const char *text = text_of(m->from, m->n_from, token, &n);
    m->twin[token] = table_find(&t->from, text, n) == token ? table_find(&t->to, text, n) : -1;
    m->n_twin += m->twin[token] >= 0;
}

static spec_status fill(speci_token_map *m, tables *t)
{
    SPEC_TRY(table_open(&t->from, m->from, m->n_from, m->a));
    SPEC_TRY(table_open(&t->to, m->to, m->n_to, m->a));
    m->twin = speci_alloc(m->a, (size_t)m->n_from, sizeof *m->twin);
    m->first = speci_alloc(m->a, (size_t)m->n_from + 1, sizeof *m->first);
    if (!m->twin || !m->first) return SPEC_E_NOMEM;
    for (int32_t token = 0; token < m->n_from; token++) {
        find_twin(m, t, token);
        SPEC_TRY(write_token(m, t, token));
        m->first[token + 1] = (int32_t)speci_buf_n_ids(&t->ids);
    }
    for (int32_t b = 0; b < 256; b++) {
        const char byte = (char)b;
        m->byte[b] = table_find(&t->to, &byte, 1);
    }
    if (!(m->ids = speci_alloc(m->a, t->ids.n, 1))) return SPEC_E_NOMEM;
    if (t->ids.n > 0) memcpy(m->ids, t->ids.data, t->ids.n);
    return SPEC_OK;
}

spec_status speci_token_map_open(speci_token_map **out, const spec_tokenizer *from, int32_t n_from, const spec_tokenizer *to,
                                 int32_t n_to, const spec_allocator *a)
{
    tables t = { .ids = { .a = a } };
    speci_token_map *m = speci_alloc(a, 1, sizeof *m);
    *out = NULL;
    if (!m) return SPEC_E_NOMEM;
    *m = (speci_token_map){ .from = from, .to = to, .a = a, .n_from = n_from, .n_to = n_to };
    const spec_status status = fill(m, &t);
    table_close(&t.from, a);
    table_close(&t.to, a);
    speci_buf_free(&t.ids);
    if (status == SPEC_OK) *out = m;
    else speci_token_map_close(m);
    return status;
}

void speci_token_map_close(speci_token_map *m)
{
    if (!m) return;
    speci_free(m->a, m->twin);
    speci_free(m->a, m->first);
    speci_free(m->a, m->ids);
    speci_free(m->a, m);
}

/* --- translations --- */

static spec_status put(speci_translation *x, const speci_token_map *m, const int32_t *ids, size_t n)
{
    if (speci_buf_n_ids(&x->ids) + n > INT32_MAX / 2)
        return speci_fail(SPEC_E_FULL, "a sequence of more than %d tokens of the drafter is too long", INT32_MAX / 2);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < m->n_to) SPEC_TRY(speci_buf_add(&x->ids, &ids[i], sizeof *ids));
    return SPEC_OK;
}

spec_status speci_translation_begin(speci_translation *x, const speci_token_map *m)
{
    x->ids.n = 0, x->n_from = x->n_held = 0;
    return put(x, m, speci_buf_ids(&m->to->before), speci_buf_n_ids(&m->to->before));
}

/* Scratch of a call. */
typedef struct writer {
    speci_translation *x;
    const speci_token_map *m;
    speci_buf bytes, ids;
    bool goes_on; /* there is text in front */
} writer;

static spec_status put_text(writer *w, const char *text, size_t n)
{
    w->ids.n = 0;
    SPEC_TRY(encode(&w->ids, w->m->to, text, n, w->goes_on ? SPEC_TOKEN_CONTINUE : 0));
    w->goes_on = true;
    return put(w->x, w->m, speci_buf_ids(&w->ids), speci_buf_n_ids(&w->ids));
}

/* w->bytes goes: whole characters as text; what begins one is held back; a byte that does neither is the token of that byte, where
 * there is one. */
static spec_status put_bytes(writer *w)
{
    const char *s = w->bytes.data;
    w->x->n_held = 0;
    for (size_t left = w->bytes.n; left > 0;) {
        const size_t good = speci_utf8_check(s, left);
        if (good > 0) SPEC_TRY(put_text(w, s, good));
        s += good, left -= good;
        if (left == 0) break;
        if (left < sizeof w->x->held && speci_utf8_state((const uint8_t *)s, left) == 0) {
            memcpy(w->x->held, s, left);
            w->x->n_held = (int32_t)left;
            break;
        }
        const int32_t id = w->m->byte[(uint8_t)*s];
        if (id >= 0) SPEC_TRY(put(w->x, w->m, &id, 1));
        w->goes_on = true;
        s++, left--;
    }
    w->bytes.n = 0;
    return SPEC_OK;
}

static spec_status take_held(writer *w)
{
    SPEC_TRY(speci_buf_add(&w->bytes, w->x->held, (size_t)w->x->n_held));
    w->x->n_held = 0;
    return SPEC_OK;
}

/* The bytes of a token; of one that comes first in a text without the space that its tokenizer put there. */
static spec_status take_piece(writer *w, int32_t token, bool first)
{
    const spec_tokenizer *from = w->m->from;
    size_t n;
    const char *text = text_of(from, w->m->n_from, token, &n);
    if (!first || n == 0) return speci_buf_add(&w->bytes, text, n);
    spec_text_stream stream = { { 0 }, 0, 0 };
    const size_t room = from->decoder.piece_max + 16;
    SPEC_TRY(speci_buf_reserve(&w->bytes, room));
    SPEC_TRY(spec_text_stream_push(&stream, w->bytes.data + w->bytes.n, room, &n, from, token, 0));
    w->bytes.n += n;
    return speci_buf_add(&w->bytes, stream.held, (size_t)stream.n_held);
}

static spec_status put_special(writer *w, int32_t token, bool first)
{
    const speci_token_map *m = w->m;
    SPEC_TRY(take_held(w));
    SPEC_TRY(put_bytes(w));
    w->x->n_held = 0; /* a character that a special token cuts off is none */
    if (first && token == m->from->bos && m->to->before.n > 0) return SPEC_OK; /* both begin in their own way */
    return put(w->x, m, m->ids + m->first[token], (size_t)(m->first[token + 1] - m->first[token]));
}

static spec_status put_token(writer *w, int32_t token, bool as_text)
{
    const speci_token_map *m = w->m;
    const int32_t n = token < m->n_from ? m->first[token + 1] - m->first[token] : 0;
    const bool first = w->x->n_from == 0;
    w->x->n_from++;
    if (spec_tokenizer_is_special(m->from, token)) return put_special(w, token, first);
    if (!as_text && w->x->n_held == 0 && n > 0) return put(w->x, m, m->ids + m->first[token], (size_t)n);
    SPEC_TRY(take_held(w));
    SPEC_TRY(take_piece(w, token, !w->goes_on && w->bytes.n == 0));
    return as_text ? SPEC_OK : put_bytes(w);
}

spec_status speci_translate(speci_translation *x, const speci_token_map *m, const int32_t *tokens, int32_t n, bool as_text)
{
    const speci_translation before = *x;
    writer w = { .x = x, .m = m, .bytes = { .a = m->a }, .ids = { .a = m->a }, .goes_on = x->n_from > 0 };
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < n && status == SPEC_OK; i++) status = put_token(&w, tokens[i], as_text);
    if (as_text && status == SPEC_OK && w.bytes.n > 0) status = put_bytes(&w);
    speci_buf_free(&w.bytes);
    speci_buf_free(&w.ids);
    if (status == SPEC_OK) return SPEC_OK;
    x->ids.n = before.ids.n, x->n_from = before.n_from, x->n_held = before.n_held;
    memcpy(x->held, before.held, sizeof x->held);
    return status;
}
