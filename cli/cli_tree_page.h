/* cli_tree_page.h - the page of `spec tree`: HTML with its data inside, from plain data. */
#ifndef SPEC_CLI_TREE_PAGE_H
#define SPEC_CLI_TREE_PAGE_H

#include <stdio.h>

#include "spec_trees.h"

/* One step: the drafted tree, what became of it, the text that it added. */
typedef struct cli_tree_step {
    int32_t n;                      /* nodes, root included */
    int32_t *token, *parent, *rank; /* [n] as in spec_tree */
    float *draft, *target;          /* [n] probabilities of the token after its parent; NaN: not known */
    int32_t *path;                  /* [n_path] accepted nodes, the root first */
    int32_t n_path;
    int32_t next;                   /* the token that followed, and the target's probability of it */
    float next_target;
    int32_t chosen;                 /* which of the trees that are listed in `tree`, -1: no draft was chosen */
    char *text;                     /* UTF-8 [n_text] */
    size_t n_text;
} cli_tree_step;

typedef struct cli_tree_page {
    const char *model, *drafter; /* drafter NULL: there is none */
    const char *tree; /* the trees to choose from, ';' between them */
    const char *verify, *adapt, *device, *dtype, *stop, *version;
    spec_sampling sampling;
    const char *prompt;
    size_t n_prompt;
    const cli_tree_step *steps; /* [n_step] */
    int32_t n_step;
    /* The bytes of a token, NULL for one that has none. */
    const char *(*piece)(const void *user_data, int32_t id, size_t *n);
    const void *user_data;
} cli_tree_page;

/* SPEC_OK; SPEC_E_IO (errno says why); SPEC_E_NOMEM. Strings that are not UTF-8 get their wrong bytes as "\xff". */
spec_status cli_tree_page_write(FILE *to, const cli_tree_page *page);

/* cli/tree_page.html, cut in two where the data goes (embed_page.cmake). */
extern const unsigned char cli_tree_page_head[], cli_tree_page_tail[];
extern const size_t cli_tree_page_head_bytes, cli_tree_page_tail_bytes;

#endif
