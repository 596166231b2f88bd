/* draft_png.c - prompt and corpus n-grams (algorithms.md 15; Snakes and Ladders, PNG).
 *
 * D drafts of K tokens behind the pending one, merged into one trie. First those that followed it most often in the sequence;
 * what is missing comes from a corpus table, by the longest context that it has, and then from its extension order. Rows are
 * taken up to an end-of-text token, and one that adds no node does not count. From the paper differ: the table's contexts of
 * several tokens, the trie in place of rows side by side, and an extension table of the corpus in place of the model. */
#include "algorithms/corpus/corpus.h"
#include "algorithms/draft/draft.h"
#include "algorithms/draft/draft_png_grams.h"

#include <string.h>

enum { DEFAULT_D = 2, MOST_NODE = 255 };

/* --- the object --- */

typedef struct png_drafter {
    speci_corpus_table table;
    int32_t n_row, n_draft; /* D, K */
} png_drafter;

static spec_status read_counts(png_drafter *p, const char *args, const char *counts)
{
    const int32_t most = p->table.header.shape.n_draft;
    int32_t v[2] = { DEFAULT_D, most };
    if (counts && speci_parse_counts(counts, v, 2) < 1)
        return speci_fail(SPEC_E_INVALID, "the drafter \"png\" is written png:FILE,D,K, found \"%.200s\"", args);
    if (v[1] > most)
        return speci_fail(SPEC_E_INVALID, "the drafter \"png\" is to draft %d tokens in a row, the table in \"%.200s\" has %d",
                          v[1], args, most);
    if (v[0] < 1 || v[1] < 1 || v[0] > MOST_NODE / v[1])
        return speci_fail(SPEC_E_INVALID, "the drafter \"png\" drafts at least 1 and at most %d tokens, found \"%.200s\": "
                          "%d times %d", MOST_NODE, args, v[0], v[1]);
    p->n_row = v[0], p->n_draft = v[1];
    return SPEC_OK;
}

/* Cuts `path`, a copy of the arguments, behind FILE: the longest beginning that is a file, since its name may have commas. */
static size_t cut_path(char *path)
{
    for (char *end = path + strlen(path); end; end = strrchr(path, ',')) {
        *end = '\0';
        if (speci_file_exists(path)) break;
    }
    return strlen(path);
}

static spec_status open(spec_drafter *d, const char *args)
{
    if (args[0] == '\0' || args[0] == ',')
        return speci_fail(SPEC_E_INVALID, "the drafter \"png\" needs a corpus table, png:FILE: spec ngram build makes one");
    png_drafter *p = speci_alloc(d->allocator, 1, sizeof *p);
    char *path = speci_strdup(d->allocator, args);
    const size_t n = path ? cut_path(path) : 0;
    d->own = p;
    spec_status status = p && path ? SPEC_OK : SPEC_E_NOMEM;
    if (p) p->table.file.fd = -1;
    if (status == SPEC_OK) status = speci_corpus_open(&p->table, path, d->allocator);
    speci_free(d->allocator, path);
    SPEC_TRY(status);
    SPEC_TRY(read_counts(p, args, args[n] ? args + n + 1 : NULL));
    d->n_draft = p->n_row * p->n_draft;
    return SPEC_OK;
}

static void close(spec_drafter *d)
{
    png_drafter *p = d->own;
    if (p) speci_corpus_close(&p->table, d->allocator);
    speci_free(d->allocator, p);
}

static spec_status check(const spec_drafter *d, const spec_model *target)
{
    const png_drafter *p = d->own;
    return speci_corpus_fits(&p->table, target->tokenizer, target->n_vocab);
}

/* --- in a session --- */

static png_grams *grams_of(const speci_draft *d, int32_t seq) { return (png_grams *)d->state + seq; }

static spec_status prepare(speci_draft *d)
{
    const png_drafter *p = d->drafter->own;
    d->state = speci_alloc(d->site->a, (size_t)d->site->n_seq, sizeof(png_grams));
    for (int32_t i = 0; d->state && i < d->site->n_seq; i++)
        *grams_of(d, i) = (png_grams){ .a = d->site->a, .n_draft = p->n_draft, .n_row = p->n_row };
    return d->state ? SPEC_OK : SPEC_E_NOMEM;
}

static void end(speci_draft *d, int32_t seq) { speci_png_grams_free(grams_of(d, seq)); }

static void detach(speci_draft *d)
{
    for (int32_t i = 0; d->state && i < d->site->n_seq; i++) end(d, i);
    speci_free(d->site->a, d->state);
    d->state = NULL;
}

static spec_status catch_up(const speci_draft *d, const speci_draft_seq *q)
{
    return speci_png_grams_catch_up(grams_of(d, q->seq), q->ids, q->n_ids);
}

static spec_status prefill(speci_draft *d, const speci_draft_seq *q)
{
    const speci_draft_site *site = d->site;
    if (site->n_ctx > 0)
        SPEC_TRY(speci_png_grams_reserve(grams_of(d, q->seq), q->ids, site->n_ctx, site->target->n_vocab));
    return catch_up(d, q);
}

static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    return speci_png_grams_copy(grams_of(d, to), grams_of(d, q->seq));
}

/* --- proposals --- */

typedef struct proposal {
    const speci_draft *d;
    speci_draft_seq *q;
    int32_t n_row, n_draft; /* rows that are still missing; tokens of a row that have a use */
} proposal;

/* Merges a row of tokens [n], found by a match of n_match, into the trie, as far as there is room. */
static void add_row(proposal *p, const int32_t *tokens, int32_t n, int32_t n_match)
{
    spec_tree *t = p->q->tree;
    const int32_t before = t->n;
    for (int32_t i = 0, node = 0; i < n && i < p->n_draft && !speci_draft_ends_text(p->d->site->target, tokens[i]); i++) {
        const int32_t there = speci_tree_child_with(t, node, tokens[i]);
        node = there < 0 ? spec_tree_add(t, node, tokens[i], 0) : there;
        if (node < 0) break; /* there is no room */
    }
    p->n_row -= t->n > before;
    if (t->n > before && p->q->n_match < n_match) p->q->n_match = n_match;
}

static void add_of_sequence(proposal *p)
{
    const png_grams *g = grams_of(p->d, p->q->seq);
    const png_gram *rows = speci_png_grams_rows(g, p->q->ids[p->q->n_ids - 1]);
    for (int32_t i = 0; rows && i < g->n_row && rows[i].count > 0 && p->n_row > 0; i++)
        add_row(p, p->q->ids + rows[i].at + 1, g->n_draft, 1);
}

/* The continuations of the last tokens, of one order of the table. */
static spec_status add_of_order(proposal *p, const speci_corpus_table *table, int32_t order)
{
    const bool extension = order == table->header.shape.n_context;
    const int32_t n_context = extension ? 1 : order + 1;
    int32_t tokens[SPECI_CORPUS_MAX_DRAFT];
    speci_corpus_rows rows;
    if (p->q->n_ids < n_context) return SPEC_OK;
    SPEC_TRY(speci_corpus_find(table, &rows, order, p->q->ids + p->q->n_ids - n_context));
    for (int32_t i = 0; i < rows.n && p->n_row > 0; i++) add_row(p, tokens, speci_corpus_row(table, &rows, i, tokens), n_context);
    return SPEC_OK;
}

static spec_status look_up(const speci_draft *d, speci_draft_seq *q)
{
    const png_drafter *own = d->drafter->own;
    const int32_t n_context = own->table.header.shape.n_context;
    proposal p = { d, q, own->n_row, own->n_draft < q->depth_max ? own->n_draft : q->depth_max };
    add_of_sequence(&p);
    for (int32_t order = n_context - 1; order >= 0 && p.n_row > 0; order--) SPEC_TRY(add_of_order(&p, &own->table, order));
    return p.n_row > 0 ? add_of_order(&p, &own->table, n_context) : SPEC_OK;
}

/* The match is the longest context that has brought a row. */
static spec_status propose(const speci_draft *d, speci_draft_seq *q)
{
    SPEC_TRY(look_up(d, q));
    if (q->n_match < speci_draft_least(q, 0)) q->tree->n = 1, q->n_match = 0;
    return SPEC_OK;
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)b;
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(catch_up(d, &seqs[i]));
        SPEC_TRY(propose(d, &seqs[i]));
    }
    return SPEC_OK;
}

const speci_draft_kind speci_draft_png = {
    .name = "png", .args = "FILE,D,K",
    .help = "what most often followed in the text and in a corpus (spec ngram build): D drafts of K tokens (2; the table's)",
    .open = open, .close = close, .check = check, .prepare = prepare, .detach = detach, .prefill = prefill, .fork = fork,
    .enqueue = enqueue,
    .end = end,
};
