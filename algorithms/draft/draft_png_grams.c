/* draft_png_grams.c - n-grams of a sequence, counted as it grows. A gram that is counted once more is the latest of its
 * token, and no other count changes: so the most frequent ones are kept by looking at that one alone. */
#include "algorithms/draft/draft_png_grams.h"

#include <string.h>

enum { CAP_LEAST = 256 };

static size_t mix(uint64_t h, uint32_t value)
{
    h = (h ^ value) * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 32);
}

static bool same(const png_grams *g, const int32_t *ids, int32_t a, int32_t b)
{
    return memcmp(ids + a, ids + b, ((size_t)g->n_draft + 1) * sizeof *ids) == 0;
}

/* Where the gram that begins at `at` is, or would be. */
static png_gram *find_gram(const png_grams *g, const int32_t *ids, int32_t at)
{
    size_t h = 0;
    for (int32_t i = 0; i <= g->n_draft; i++) h = mix(h, (uint32_t)ids[at + i]);
    for (;; h++) {
        png_gram *x = &g->gram[h & (g->cap_gram - 1)];
        if (x->count == 0 || same(g, ids, x->at, at)) return x;
    }
}

/* Where the token is, or would be. */
static size_t find_token(const png_grams *g, int32_t token)
{
    size_t h = mix(0, (uint32_t)token);
    while (g->token[h & (g->cap_token - 1)] != 0 && g->token[h & (g->cap_token - 1)] != token + 1) h++;
    return h & (g->cap_token - 1);
}

/* --- room --- */

static size_t grown(size_t cap, size_t used)
{
    if (cap == 0) cap = CAP_LEAST;
    while (cap < 2 * used) cap *= 2;
    return cap;
}

static spec_status reserve_grams(png_grams *g, const int32_t *ids, size_t used)
{
    png_grams larger = *g;
    if ((larger.cap_gram = grown(g->cap_gram, used)) == g->cap_gram) return SPEC_OK;
    if (!(larger.gram = speci_alloc(g->a, larger.cap_gram, sizeof *larger.gram))) return SPEC_E_NOMEM;
    for (size_t i = 0; i < g->cap_gram; i++)
        if (g->gram[i].count > 0) *find_gram(&larger, ids, g->gram[i].at) = g->gram[i];
    speci_free(g->a, g->gram);
    *g = larger;
    return SPEC_OK;
}

static spec_status reserve_tokens(png_grams *g, size_t used)
{
    const size_t n_row = (size_t)g->n_row;
    png_grams larger = *g;
    if ((larger.cap_token = grown(g->cap_token, used)) == g->cap_token) return SPEC_OK;
    if (!(larger.token = speci_alloc(g->a, larger.cap_token, sizeof *larger.token))) return SPEC_E_NOMEM;
    if (!(larger.row = speci_alloc(g->a, larger.cap_token * n_row, sizeof *larger.row))) {
        speci_free(g->a, larger.token);
        return SPEC_E_NOMEM;
    }
    for (size_t i = 0; i < g->cap_token; i++) {
        if (g->token[i] == 0) continue;
        const size_t to = find_token(&larger, g->token[i] - 1);
        larger.token[to] = g->token[i];
        memcpy(larger.row + to * n_row, g->row + i * n_row, n_row * sizeof *g->row);
    }
    speci_free(g->a, g->token);
    speci_free(g->a, g->row);
    *g = larger;
    return SPEC_OK;
}

spec_status speci_png_grams_reserve(png_grams *g, const int32_t *ids, int32_t n, int32_t n_vocab)
{
    SPEC_TRY(reserve_grams(g, ids, (size_t)n));
    return reserve_tokens(g, (size_t)(n < n_vocab ? n : n_vocab));
}

/* --- counting --- */

/* The gram x was counted just now: its place among the rows [n_row]. */
static void rank(const png_grams *g, const int32_t *ids, png_gram *row, png_gram x)
{
    int32_t at = 0;
    while (at < g->n_row - 1 && row[at].count > 0 && !same(g, ids, row[at].at, x.at)) at++;
    if (row[at].count > x.count) return; /* the last row, of another gram */
    for (; at > 0 && row[at - 1].count <= x.count; at--) row[at] = row[at - 1];
    row[at] = x;
}

static spec_status count(png_grams *g, const int32_t *ids, int32_t at)
{
    SPEC_TRY(reserve_grams(g, ids, g->n_gram + 1));
    SPEC_TRY(reserve_tokens(g, g->n_token + 1));
    png_gram *x = find_gram(g, ids, at);
    const size_t token = find_token(g, ids[at]);
    g->n_gram += x->count == 0, g->n_token += g->token[token] == 0;
    *x = (png_gram){ at, x->count + 1 };
    g->token[token] = ids[at] + 1;
    rank(g, ids, g->row + token * (size_t)g->n_row, *x);
    return SPEC_OK;
}

spec_status speci_png_grams_catch_up(png_grams *g, const int32_t *ids, int32_t n)
{
    for (; g->n_indexed < n - g->n_draft; g->n_indexed++) SPEC_TRY(count(g, ids, g->n_indexed));
    return SPEC_OK;
}

const png_gram *speci_png_grams_rows(const png_grams *g, int32_t token)
{
    const size_t at = g->cap_token > 0 ? find_token(g, token) : 0;
    return g->cap_token > 0 && g->token[at] != 0 ? g->row + at * (size_t)g->n_row : NULL;
}

spec_status speci_png_grams_copy(png_grams *to, const png_grams *from)
{
    png_grams copy = *from;
    copy.a = to->a;
    copy.gram = speci_alloc(to->a, from->cap_gram, sizeof *copy.gram);
    copy.token = speci_alloc(to->a, from->cap_token, sizeof *copy.token);
    copy.row = speci_alloc(to->a, from->cap_token * (size_t)from->n_row, sizeof *copy.row);
    if (!copy.gram || !copy.token || !copy.row) {
        speci_png_grams_free(&copy);
        return SPEC_E_NOMEM;
    }
    if (from->cap_gram > 0) memcpy(copy.gram, from->gram, from->cap_gram * sizeof *copy.gram);
    if (from->cap_token > 0) {
        memcpy(copy.token, from->token, from->cap_token * sizeof *copy.token);
        memcpy(copy.row, from->row, from->cap_token * (size_t)from->n_row * sizeof *copy.row);
    }
    *to = copy;
    return SPEC_OK;
}

void speci_png_grams_free(png_grams *g)
{
    void *arrays[] = { g->gram, g->token, g->row };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(g->a, arrays[i]);
    *g = (png_grams){ .a = g->a, .n_draft = g->n_draft, .n_row = g->n_row };
}
