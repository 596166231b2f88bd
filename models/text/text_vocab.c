/* text_vocab.c - the two hash tables of a tokenizer, both with open addressing and at most half full. */
#include <string.h>

#include "models/text/text_tokenizer.h"

typedef struct vocab_entry {
    size_t offset, n;
    int32_t id;
} vocab_entry;

/* ------------------------------------------------------------------------- strings and ids --- */

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

void speci_vocab_init(speci_vocab *v, const spec_allocator *a)
{
    *v = (speci_vocab){ .text = { .a = a }, .entries = { .a = a }, .by_id = { .a = a } };
}

void speci_vocab_free(speci_vocab *v)
{
    const spec_allocator *a = v->text.a;
    speci_buf_free(&v->text);
    speci_buf_free(&v->entries);
    speci_buf_free(&v->by_id);
    speci_free(a, v->slot);
    speci_vocab_init(v, a);
}

static vocab_entry *entry_at(const speci_vocab *v, size_t i)
{
    return (vocab_entry *)(void *)v->entries.data + i;
}

/* The slot that holds the string, or the free one where it belongs. */
static size_t find_slot(const speci_vocab *v, const char *s, size_t n)
{
    size_t mask = v->n_slot - 1;
    for (size_t i = (size_t)hash_bytes(s, n) & mask;; i = (i + 1) & mask) {
        if (v->slot[i] == 0) return i;
        const vocab_entry *e = entry_at(v, v->slot[i] - 1);
        if (e->n == n && (n == 0 || memcmp(v->text.data + e->offset, s, n) == 0)) return i;
    }
}

static spec_status grow_slots(speci_vocab *v)
{
    if (2 * (v->n + 1) <= v->n_slot) return SPEC_OK;
    size_t n_slot = v->n_slot ? 2 * v->n_slot : 64;
    uint32_t *slot = speci_alloc(v->text.a, n_slot, sizeof *slot);
    if (!slot) return SPEC_E_NOMEM;
    speci_free(v->text.a, v->slot);
    v->slot = slot;
    v->n_slot = n_slot;
    for (size_t i = 0; i < v->n; i++) {
        const vocab_entry *e = entry_at(v, i);
        v->slot[find_slot(v, v->text.data + e->offset, e->n)] = (uint32_t)i + 1;
    }
    return SPEC_OK;
}

static spec_status set_by_id(speci_vocab *v, int32_t id, uint32_t entry)
{
    size_t need = ((size_t)id + 1) * sizeof(uint32_t);
    if (v->by_id.n < need) {
        SPEC_TRY(speci_buf_reserve(&v->by_id, need - v->by_id.n));
        memset(v->by_id.data + v->by_id.n, 0, need - v->by_id.n);
        v->by_id.n = need;
    }
    ((uint32_t *)(void *)v->by_id.data)[id] = entry + 1;
    return SPEC_OK;
}

spec_status speci_vocab_add(speci_vocab *v, const char *s, size_t n, int32_t id)
{
    const char *file = v->file ? v->file : "a vocabulary";
    if (id < 0 || id >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: token '%.*s' has the id %d, expected 0 to %d", file, n > 64 ? 64 : (int)n, s, id,
                          SPECI_TOK_ID_LIMIT - 1);
    SPEC_TRY(grow_slots(v));
    size_t slot = find_slot(v, s, n);
    if (v->slot[slot]) return speci_fail(SPEC_E_FORMAT, "%s: token '%.*s' occurs twice", file, n > 64 ? 64 : (int)n, s);
    vocab_entry e = { v->text.n, n, id };
    SPEC_TRY(speci_buf_add(&v->text, s, n));
    SPEC_TRY(speci_buf_add(&v->entries, &e, sizeof e));
    SPEC_TRY(set_by_id(v, id, (uint32_t)v->n));
    v->slot[slot] = (uint32_t)++v->n;
    if (n > v->longest) v->longest = n;
    return SPEC_OK;
}

int32_t speci_vocab_find(const speci_vocab *v, const char *s, size_t n)
{
    if (v->n == 0 || n > v->longest) return -1;
    uint32_t entry = v->slot[find_slot(v, s, n)];
    return entry ? entry_at(v, entry - 1)->id : -1;
}

const char *speci_vocab_string(const speci_vocab *v, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= speci_vocab_n_id(v)) return NULL;
    uint32_t entry = ((const uint32_t *)(const void *)v->by_id.data)[id];
    if (entry == 0) return NULL;
    const vocab_entry *e = entry_at(v, entry - 1);
    *n = e->n;
    return v->text.data ? v->text.data + e->offset : "";
}

int32_t speci_vocab_n_id(const speci_vocab *v)
{
    return (int32_t)(v->by_id.n / sizeof(uint32_t));
}

/* ---------------------------------------------------------------------------------- pairs --- */

static size_t find_pair(const speci_pairs *p, uint32_t a, uint32_t b)
{
    size_t mask = p->n_slot - 1;
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    for (size_t i = (size_t)(h >> 32) & mask;; i = (i + 1) & mask)
        if (p->slot[i].id < 0 || (p->slot[i].a == a && p->slot[i].b == b)) return i;
}

static spec_status grow_pairs(speci_pairs *p)
{
    if (2 * (p->n + 1) <= p->n_slot) return SPEC_OK;
    speci_pairs bigger = *p;
    bigger.n_slot = p->n_slot ? 2 * p->n_slot : 64;
    bigger.slot = speci_alloc(p->a, bigger.n_slot, sizeof *bigger.slot);
    if (!bigger.slot) return SPEC_E_NOMEM;
    for (size_t i = 0; i < bigger.n_slot; i++) bigger.slot[i].id = -1;
    for (size_t i = 0; i < p->n_slot; i++)
        if (p->slot[i].id >= 0) bigger.slot[find_pair(&bigger, p->slot[i].a, p->slot[i].b)] = p->slot[i];
    speci_free(p->a, p->slot);
    *p = bigger;
    return SPEC_OK;
}

spec_status speci_pairs_put(speci_pairs *p, speci_pair pair)
{
    SPEC_TRY(grow_pairs(p));
    size_t slot = find_pair(p, pair.a, pair.b);
    if (p->slot[slot].id < 0) p->n++;
    p->slot[slot] = pair;
    return SPEC_OK;
}

const speci_pair *speci_pairs_get(const speci_pairs *p, uint32_t a, uint32_t b)
{
    if (p->n == 0) return NULL;
    size_t slot = find_pair(p, a, b);
    return p->slot[slot].id < 0 ? NULL : &p->slot[slot];
}

void speci_pairs_free(speci_pairs *p)
{
    speci_free(p->a, p->slot);
    p->slot = NULL;
    p->n = p->n_slot = 0;
}
