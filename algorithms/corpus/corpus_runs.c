/* corpus_runs.c - windows sorted within the memory that there is, spilled, and merged. */
#include "algorithms/corpus/corpus_runs.h"

#include <string.h>

enum { COUNT = 8 /* bytes */, BYTES_PER_PLACE = 12, LEAST_PLACES = 4 * SPECI_CORPUS_MAX_WINDOW };
enum { MOST_BUFFER = 1 << 22, TELL_EVERY = 1 << 16 };

static size_t window_bytes(const corpus_runs *r) { return (size_t)r->n_window * SPECI_CORPUS_TOKEN; }
static size_t record_bytes(const corpus_runs *r) { return window_bytes(r) + COUNT; }

/* --- open, close --- */

spec_status speci_corpus_runs_open(corpus_runs *r, int32_t n_vocab, int32_t n_window, size_t memory, const char *beside,
                                   const spec_allocator *a)
{
    size_t cap = memory / BYTES_PER_PLACE;
    if (cap > UINT32_MAX / 2) cap = UINT32_MAX / 2;
    if (cap < LEAST_PLACES) cap = LEAST_PLACES;
    *r = (corpus_runs){ .a = a, .n_vocab = n_vocab, .n_window = n_window, .memory = memory, .cap = cap,
                        .ends = { .a = a } };
    SPEC_TRY(speci_scratch_open(&r->file, beside, a));
    r->token = speci_alloc(a, cap, sizeof *r->token);
    r->at[0] = speci_alloc(a, cap, sizeof *r->at[0]);
    r->at[1] = speci_alloc(a, cap, sizeof *r->at[1]);
    r->first = speci_alloc(a, (size_t)n_vocab + 2, sizeof *r->first);
    return r->token && r->at[0] && r->at[1] && r->first ? SPEC_OK : SPEC_E_NOMEM;
}

static void free_places(corpus_runs *r)
{
    void *arrays[] = { r->token, r->at[0], r->at[1], r->first };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(r->a, arrays[i]);
    r->token = NULL, r->at[0] = r->at[1] = r->first = NULL;
}

void speci_corpus_runs_close(corpus_runs *r)
{
    free_places(r);
    speci_scratch_close(&r->file);
    speci_buf_free(&r->ends);
}

/* --- sorted runs --- */

/* Sorts the places 0 to n - 1 by the n_window tokens that begin there, into at[0]: by the last of them first, and each time
 * keeping the order of those before (a radix sort whose digits are tokens). So its time depends on no text. */
static void sort(corpus_runs *r, size_t n)
{
    for (size_t i = 0; i < n; i++) r->at[0][i] = (uint32_t)i;
    for (int32_t k = r->n_window - 1; k >= 0; k--) {
        const int32_t *digit = r->token + k;
        memset(r->first, 0, ((size_t)r->n_vocab + 2) * sizeof *r->first);
        for (size_t i = 0; i < n; i++) r->first[digit[i] + 1]++;
        for (int32_t t = 0; t < r->n_vocab; t++) r->first[t + 1] += r->first[t];
        for (size_t i = 0; i < n; i++) r->at[1][r->first[digit[r->at[0][i]]]++] = r->at[0][i];
        uint32_t *sorted = r->at[1];
        r->at[1] = r->at[0], r->at[0] = sorted;
    }
}

static void put_window(const corpus_runs *r, uint8_t *to, size_t place)
{
    bool ended = false;
    for (int32_t k = 0; k < r->n_window; k++, to += SPECI_CORPUS_TOKEN) {
        const int32_t token = r->token[place + (size_t)k];
        ended = ended || token == r->n_vocab;
        speci_corpus_put(to, ended ? SPECI_CORPUS_NONE : (uint64_t)token, SPECI_CORPUS_TOKEN);
    }
}

static spec_status write_record(corpus_runs *r, uint8_t *record, uint64_t count)
{
    if (count == 0) return SPEC_OK;
    speci_corpus_put(record + window_bytes(r), count, COUNT);
    return speci_scratch_add(&r->file, record, record_bytes(r));
}

/* A run of the windows that begin at the places 0 to n - 1. */
static spec_status write_run(corpus_runs *r, size_t n)
{
    uint8_t record[SPECI_CORPUS_MAX_WINDOW * SPECI_CORPUS_TOKEN + COUNT], window[SPECI_CORPUS_MAX_WINDOW * SPECI_CORPUS_TOKEN];
    uint64_t count = 0;
    sort(r, n);
    for (size_t i = 0; i < n; i++) {
        if (r->token[r->at[0][i]] == r->n_vocab) break; /* the ends of texts, which are the last */
        put_window(r, window, r->at[0][i]);
        if (count > 0 && memcmp(window, record, window_bytes(r)) == 0) {
            count++;
            continue;
        }
        SPEC_TRY(write_record(r, record, count));
        memcpy(record, window, window_bytes(r));
        count = 1;
    }
    SPEC_TRY(write_record(r, record, count));
    return speci_buf_add(&r->ends, &r->file.n, sizeof r->file.n);
}

/* Makes room. Places whose window is not whole stay, and become the first ones. */
static spec_status spill(corpus_runs *r)
{
    const size_t stay = (size_t)r->n_window - 1, n = r->n - stay;
    SPEC_TRY(write_run(r, n));
    memmove(r->token, r->token + n, stay * sizeof *r->token);
    r->n = stay;
    return SPEC_OK;
}

spec_status speci_corpus_runs_add(corpus_runs *r, const int32_t *tokens, size_t n)
{
    while (n > 0) {
        const size_t part = n < r->cap - r->n ? n : r->cap - r->n;
        memcpy(r->token + r->n, tokens, part * sizeof *tokens);
        r->n += part, tokens += part, n -= part;
        if (r->n == r->cap) SPEC_TRY(spill(r));
    }
    return SPEC_OK;
}

spec_status speci_corpus_runs_end(corpus_runs *r)
{
    const int32_t end = r->n_vocab;
    return r->n == 0 || r->token[r->n - 1] == end ? SPEC_OK : speci_corpus_runs_add(r, &end, 1);
}

/* What is left, as one more run. */
static spec_status spill_last(corpus_runs *r)
{
    for (int32_t k = 0; k < r->n_window; k++) {
        const int32_t end = r->n_vocab;
        SPEC_TRY(speci_corpus_runs_add(r, &end, 1));
    }
    SPEC_TRY(write_run(r, r->n - ((size_t)r->n_window - 1)));
    return speci_scratch_flush(&r->file);
}

/* --- merged --- */

typedef struct cursor {
    uint64_t next, end;   /* what is still to be read of the run in the file */
    uint8_t *buffer;      /* [n] of it */
    size_t n, at;         /* at: the record that is next */
} cursor;

typedef struct merging {
    const corpus_runs *runs;
    cursor *cursors;
    uint8_t *buffers;
    size_t each;          /* bytes of a buffer: whole records */
    uint32_t *heap;       /* [n_heap] cursors that are not at their end, the one with the least window first */
    size_t n_heap;
} merging;

static const uint8_t *record_of(const merging *m, uint32_t k) { return m->cursors[k].buffer + m->cursors[k].at; }

static bool before(const merging *m, uint32_t a, uint32_t b)
{
    return memcmp(record_of(m, a), record_of(m, b), window_bytes(m->runs)) < 0;
}

static void sift(merging *m, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < m->n_heap;) {
        if (child + 1 < m->n_heap && before(m, m->heap[child + 1], m->heap[child])) child++;
        if (!before(m, m->heap[child], m->heap[i])) return;
        const uint32_t other = m->heap[child];
        m->heap[child] = m->heap[i], m->heap[i] = other;
        i = child;
    }
}

static spec_status fill(const merging *m, cursor *c)
{
    const uint64_t left = c->end - c->next;
    c->n = left < m->each ? (size_t)left : m->each;
    c->at = 0;
    SPEC_TRY(speci_scratch_read(&m->runs->file, c->buffer, c->next, c->n));
    c->next += c->n;
    return SPEC_OK;
}

/* Takes the least window [window_bytes] out of one run, and its count there. */
static spec_status take(merging *m, uint8_t *window, uint64_t *count)
{
    cursor *c = &m->cursors[m->heap[0]];
    memcpy(window, c->buffer + c->at, window_bytes(m->runs));
    *count = speci_corpus_get(c->buffer + c->at + window_bytes(m->runs), COUNT);
    c->at += record_bytes(m->runs);
    if (c->at == c->n && c->next < c->end) SPEC_TRY(fill(m, c));
    if (c->at == c->n) m->heap[0] = m->heap[--m->n_heap];
    sift(m, 0);
    return SPEC_OK;
}

static spec_status begin(merging *m)
{
    const corpus_runs *r = m->runs;
    const size_t n_run = r->ends.n / sizeof(uint64_t), record = record_bytes(r);
    const uint64_t *ends = (const uint64_t *)(const void *)r->ends.data;
    size_t each = r->memory / n_run;
    if (each > MOST_BUFFER) each = MOST_BUFFER;
    m->each = each < record ? record : each / record * record;
    if (!(m->cursors = speci_alloc(r->a, n_run, sizeof *m->cursors))) return SPEC_E_NOMEM;
    if (!(m->buffers = speci_alloc(r->a, n_run, m->each))) return SPEC_E_NOMEM;
    if (!(m->heap = speci_alloc(r->a, n_run, sizeof *m->heap))) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n_run; i++) {
        cursor *c = &m->cursors[i];
        *c = (cursor){ .next = i > 0 ? ends[i - 1] : 0, .end = ends[i], .buffer = m->buffers + i * m->each };
        SPEC_TRY(fill(m, c));
        if (c->n > 0) m->heap[m->n_heap++] = (uint32_t)i;
    }
    for (size_t i = m->n_heap; i > 0; i--) sift(m, i - 1);
    return SPEC_OK;
}

static spec_status merge(merging *m, corpus_window_fn each, void *arg, spec_progress_fn done, void *done_arg)
{
    const size_t n = window_bytes(m->runs);
    uint8_t window[SPECI_CORPUS_MAX_WINDOW * SPECI_CORPUS_TOKEN], next[SPECI_CORPUS_MAX_WINDOW * SPECI_CORPUS_TOKEN];
    uint64_t count = 0, more, n_taken = 0;
    while (m->n_heap > 0) {
        SPEC_TRY(take(m, next, &more));
        if (count > 0 && memcmp(window, next, n) != 0) {
            SPEC_TRY(each(arg, window, count));
            count = 0;
        }
        if (count == 0) memcpy(window, next, n);
        count += more;
        const double part = (double)(++n_taken * record_bytes(m->runs)) / (double)m->runs->file.n;
        if (n_taken % TELL_EVERY == 1 && done && done(done_arg, part) != 0)
            return speci_fail(SPEC_E_ABORTED, "building a corpus table was stopped");
    }
    return count > 0 ? each(arg, window, count) : SPEC_OK;
}

spec_status speci_corpus_runs_merge(corpus_runs *r, corpus_window_fn each, void *arg, spec_progress_fn done, void *done_arg)
{
    merging m = { .runs = r };
    SPEC_TRY(speci_corpus_runs_end(r));
    SPEC_TRY(spill_last(r));
    free_places(r);
    spec_status status = begin(&m);
    if (status == SPEC_OK) status = merge(&m, each, arg, done, done_arg);
    void *parts[] = { m.cursors, m.buffers, m.heap };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) speci_free(r->a, parts[i]);
    return status;
}
