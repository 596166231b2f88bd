/* support_corpus.h - corpora for tests, and what a table of one must hold, by counting all of it. */
#ifndef SUPPORT_CORPUS_H
#define SUPPORT_CORPUS_H

#include "spec_trees.h"

enum { CORPUS_TEXTS = 16, CORPUS_DRAFT = 8, CORPUS_ROWS = 8 };

/* Texts side by side in ids [n]: text i ends in front of end[i]. */
typedef struct corpus {
    int32_t *ids;
    int32_t n, end[CORPUS_TEXTS], n_text;
    int32_t n_vocab, n_context, n_draft, n_row, min_count;
} corpus;

/* n_text texts of up to `most` ids below n_vocab, in which some passages come again. Free ids. */
void corpus_random(corpus *c, int32_t most, uint64_t *random);
/* Writes its table to `path`. memory: as in spec_corpus_params; allocator may be NULL. */
spec_status corpus_write(const corpus *c, const char *path, size_t memory, const spec_allocator *allocator,
                         spec_corpus_info *info);

/* A table of one text in a file of its own, and the drafter "png:FILE,D,K" over it, whose text goes into `text` [64].
 * support_table_remove removes the file. */
void support_table(char *text, const int32_t *ids, int32_t n, int32_t n_vocab, int32_t d, int32_t k);
void support_table_remove(const char *text);

typedef struct corpus_row {
    int32_t count, n, tokens[CORPUS_DRAFT];
} corpus_row;
/* By brute force: the rows that follow context [n_context_tokens]; extension: those of the extension order, behind context
 * [1]. Returns how many. */
int32_t corpus_rows(corpus_row *rows, const corpus *c, const int32_t *context, int32_t n_context_tokens, int extension);

#endif
