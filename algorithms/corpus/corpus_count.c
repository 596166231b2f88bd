/* corpus_count.c - counts continuations in sorted windows, and keeps the most frequent ones. */
#include "algorithms/corpus/corpus_count.h"

#include <string.h>

enum { TOKEN = SPECI_CORPUS_TOKEN };

spec_status speci_corpus_counts_open(corpus_counts *c, const speci_corpus_shape *shape, const char *beside,
                                     const spec_allocator *a)
{
    *c = (corpus_counts){ .a = a, .shape = *shape };
    for (int32_t o = 0; o <= shape->n_context; o++) {
        SPEC_TRY(speci_scratch_open(&c->orders[o].nodes, beside, a));
        SPEC_TRY(speci_scratch_open(&c->orders[o].rows, beside, a));
    }
    c->next = speci_alloc(a, (size_t)shape->n_vocab * (size_t)shape->n_row, sizeof *c->next);
    return c->next ? SPEC_OK : SPEC_E_NOMEM;
}

void speci_corpus_counts_close(corpus_counts *c)
{
    for (int32_t o = 0; o < SPECI_CORPUS_MAX_ORDER; o++) {
        speci_scratch_close(&c->orders[o].nodes);
        speci_scratch_close(&c->orders[o].rows);
    }
    speci_free(c->a, c->next);
    c->next = NULL;
}

/* --- the most frequent --- */

/* Later ones come behind those of the same count. */
static void offer(corpus_best *b, int32_t most, uint64_t count, const uint8_t *tokens, int32_t n)
{
    if (b->n == most && count <= b->row[most - 1].count) return;
    if (b->n < most) b->n++;
    int32_t at = b->n - 1;
    for (; at > 0 && b->row[at - 1].count < count; at--) b->row[at] = b->row[at - 1];
    b->row[at].count = count;
    memcpy(b->row[at].tokens, tokens, (size_t)(n * TOKEN));
}

/* A count as a row has it. */
static uint32_t cut(uint64_t count) { return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX; }

/* --- nodes and rows --- */

static spec_status put_row(const corpus_counts *c, corpus_order *o, uint64_t count, const uint8_t *tokens)
{
    uint8_t bytes[4];
    speci_corpus_put(bytes, cut(count), sizeof bytes);
    SPEC_TRY(speci_scratch_add(&o->rows, bytes, sizeof bytes));
    o->n_row++;
    return speci_scratch_add(&o->rows, tokens, (size_t)(c->shape.n_draft * TOKEN));
}

/* A node whose rows are those from first_row on. */
static spec_status put_node(corpus_counts *c, int32_t order, uint64_t token, uint64_t first_row, uint64_t first_node)
{
    uint8_t bytes[TOKEN + 8];
    corpus_order *o = &c->orders[order];
    if (first_row > UINT32_MAX || first_node > UINT32_MAX)
        return speci_fail(SPEC_E_FULL, "more than %u contexts or continuations of order %d: keep fewer of them (min_count)",
                          UINT32_MAX, order + 1);
    speci_corpus_put(bytes, token, TOKEN);
    speci_corpus_put(bytes + TOKEN, first_row, 4);
    speci_corpus_put(bytes + TOKEN + 4, first_node, 4);
    o->n_node++;
    return speci_scratch_add(&o->nodes, bytes, (size_t)speci_corpus_node_bytes(&c->shape, order));
}

/* --- windows --- */

static bool has_end(const uint8_t *tokens, int32_t n)
{
    return speci_corpus_get(tokens + (n - 1) * TOKEN, TOKEN) == SPECI_CORPUS_NONE; /* behind an end nothing comes */
}

/* The continuation that was being counted in this order is over. */
static void end_continuation(corpus_counts *c, int32_t order)
{
    corpus_order *o = &c->orders[order];
    const uint8_t *tokens = c->last + (order + 1) * TOKEN;
    if (o->count >= c->shape.min_count && !has_end(tokens, c->shape.n_draft))
        offer(&o->best, c->shape.n_row, o->count, tokens, c->shape.n_draft);
    o->count = 0;
}

/* The context is over. If it has continuations, so have the shorter ones that it begins with, whose nodes come later. */
static spec_status end_context(corpus_counts *c, int32_t order)
{
    corpus_order *o = &c->orders[order];
    const uint64_t token = speci_corpus_get(c->last + order * TOKEN, TOKEN), first_row = o->n_row;
    for (int32_t i = 0; i < o->best.n; i++) SPEC_TRY(put_row(c, o, o->best.row[i].count, o->best.row[i].tokens));
    if (o->best.n > 0) SPEC_TRY(put_node(c, order, token, first_row, o->first));
    o->best.n = 0;
    return SPEC_OK;
}

static void end_pair(corpus_counts *c)
{
    const uint8_t *token = c->last + TOKEN;
    if (!has_end(token, 1)) offer(&c->pairs, c->shape.n_row, c->n_pair, token, 1);
    c->n_pair = 0;
}

static void end_token(corpus_counts *c)
{
    corpus_next *next = c->next + speci_corpus_get(c->last, TOKEN) * (size_t)c->shape.n_row;
    for (int32_t i = 0; i < c->pairs.n; i++)
        next[i] = (corpus_next){ (uint32_t)speci_corpus_get(c->pairs.row[i].tokens, TOKEN), cut(c->pairs.row[i].count) };
    c->pairs.n = 0;
}

/* Ends what a window does not share that has the first n_same tokens of the last one; longer contexts first. */
static spec_status end_unlike(corpus_counts *c, int32_t n_same)
{
    for (int32_t o = c->shape.n_context - 1; o >= 0; o--) {
        if (n_same < o + 1 + c->shape.n_draft) end_continuation(c, o);
        if (n_same < o + 1) SPEC_TRY(end_context(c, o));
    }
    if (n_same < 2) end_pair(c);
    if (n_same < 1) end_token(c);
    return SPEC_OK;
}

spec_status speci_corpus_counts_add(corpus_counts *c, const uint8_t *window, uint64_t count)
{
    const int32_t n = c->shape.n_context + c->shape.n_draft;
    int32_t n_same = 0;
    while (c->begun && n_same < n && memcmp(window + n_same * TOKEN, c->last + n_same * TOKEN, TOKEN) == 0) n_same++;
    if (c->begun) SPEC_TRY(end_unlike(c, n_same));
    for (int32_t o = 0; o < c->shape.n_context; o++) {
        if (n_same < o + 1) c->orders[o].first = c->orders[o + 1].n_node;
        c->orders[o].count += count;
    }
    c->n_pair += count;
    memcpy(c->last, window, (size_t)(n * TOKEN));
    c->begun = true;
    return SPEC_OK;
}

/* --- the extension order --- */

/* The rank-th next token of `token`, and behind it each time the most frequent one. */
static spec_status put_extension(corpus_counts *c, uint32_t token, int32_t rank)
{
    uint8_t tokens[SPECI_CORPUS_MAX_DRAFT * TOKEN];
    const size_t n_row = (size_t)c->shape.n_row;
    corpus_next at = c->next[token * n_row + (size_t)rank];
    const uint32_t count = at.count;
    if (count == 0) return SPEC_OK;
    for (int32_t k = 0; k < c->shape.n_draft; k++) {
        speci_corpus_put(tokens + k * TOKEN, at.count > 0 ? at.token : SPECI_CORPUS_NONE, TOKEN);
        if (at.count > 0) at = c->next[at.token * n_row];
    }
    return put_row(c, &c->orders[c->shape.n_context], count, tokens);
}

static spec_status extend(corpus_counts *c)
{
    const corpus_order *o = &c->orders[c->shape.n_context];
    for (int32_t t = 0; t < c->shape.n_vocab; t++) {
        const uint64_t first = o->n_row;
        for (int32_t rank = 0; rank < c->shape.n_row; rank++) SPEC_TRY(put_extension(c, (uint32_t)t, rank));
        if (o->n_row > first) SPEC_TRY(put_node(c, c->shape.n_context, (uint64_t)t, first, 0));
    }
    return SPEC_OK;
}

spec_status speci_corpus_counts_end(corpus_counts *c)
{
    if (c->begun) SPEC_TRY(end_unlike(c, 0));
    SPEC_TRY(extend(c));
    for (int32_t o = 0; o <= c->shape.n_context; o++) {
        const uint64_t first_node = o < c->shape.n_context - 1 ? c->orders[o + 1].n_node : 0;
        SPEC_TRY(put_node(c, o, SPECI_CORPUS_NONE, c->orders[o].n_row, first_node));
        SPEC_TRY(speci_scratch_flush(&c->orders[o].nodes));
        SPEC_TRY(speci_scratch_flush(&c->orders[o].rows));
    }
    return SPEC_OK;
}
