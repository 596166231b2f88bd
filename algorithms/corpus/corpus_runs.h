/* corpus_runs.h - all windows of a corpus in order, with bounded memory: sorted runs in a file without a name, merged.
 * Internal.
 *
 * A window is the n_window tokens that begin at a place of the corpus, as bytes (corpus.h); behind the end of a text they are
 * SPECI_CORPUS_NONE. */
#ifndef SPEC_CORPUS_RUNS_H
#define SPEC_CORPUS_RUNS_H

#include "algorithms/corpus/corpus.h"

enum { SPECI_CORPUS_MAX_WINDOW = SPECI_CORPUS_MAX_CONTEXT + SPECI_CORPUS_MAX_DRAFT };

typedef struct corpus_runs {
    const spec_allocator *a;
    int32_t n_vocab, n_window;
    size_t memory;       /* bytes at most, but for 4 * n_vocab and the buffers of files */
    int32_t *token;      /* [cap] texts, each with n_vocab behind it */
    uint32_t *at[2];     /* [cap] places in it, sorted from one to the other */
    uint32_t *first;     /* [n_vocab + 2] where the places of a token go */
    size_t cap, n;
    speci_scratch file;      /* the runs: windows and counts, in order, each once in its run */
    speci_buf ends;      /* uint64_t [n_run] where they end in the file */
} corpus_runs;

/* `beside`: the path in whose folder the runs are kept. speci_corpus_runs_close frees what it took, also after an error. */
spec_status speci_corpus_runs_open(corpus_runs *r, int32_t n_vocab, int32_t n_window, size_t memory, const char *beside,
                                   const spec_allocator *a);
void speci_corpus_runs_close(corpus_runs *r);
/* Tokens [n] of the text; it ends with speci_corpus_runs_end. */
spec_status speci_corpus_runs_add(corpus_runs *r, const int32_t *tokens, size_t n);
spec_status speci_corpus_runs_end(corpus_runs *r);
typedef spec_status (*corpus_window_fn)(void *arg, const uint8_t *window, uint64_t count);
/* Calls each(arg, window, count) for every window that begins with a token, in order, once; nothing can be added any more.
 * done: told from time to time how much of it, 0..1, lies behind; non-zero from it ends the call. */
spec_status speci_corpus_runs_merge(corpus_runs *r, corpus_window_fn each, void *arg, spec_progress_fn done, void *done_arg);

#endif
