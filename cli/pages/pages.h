/* pages.h - the man page and the shells' completions, written from the tables of the program when it is built. */
#ifndef SPEC_PAGES_H
#define SPEC_PAGES_H

#include <stdbool.h>
#include <stdio.h>

#include "cli/cli_table.h"

void pages_man(FILE *to);
void pages_bash(FILE *to);
void pages_zsh(FILE *to);
void pages_fish(FILE *to);

/* --- what they share (pages_option.c) --- */

/* What stands behind an option: nothing, text of any kind, one of some words, a file or a directory. */
typedef enum pages_value { PAGES_NONE, PAGES_TEXT, PAGES_WORDS, PAGES_FILE, PAGES_DIRECTORY } pages_value;
typedef struct pages_words {
    char text[512]; /* words with a space between them */
} pages_words;

pages_value pages_value_of(const cli_option *row, pages_words *words); /* words is filled for PAGES_WORDS */
bool pages_repeats(const cli_option *row);
/* Is it one that completions offer for the command? Options of experiments are none. */
bool pages_offers(const cli_option *row, cli_command command);
/* Every way to write the option: "-m", "--model", "-md" and so on; false when there is no i-th one. */
bool pages_name(char *out, size_t cap, const cli_option *row, int i);

#endif
