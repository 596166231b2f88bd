/* cli_table.h - commands and options as data. Parsing, help, the man page and the shells' completions come from it. */
#ifndef SPEC_CLI_TABLE_H
#define SPEC_CLI_TABLE_H

#include <stddef.h>

#include "cli/cli.h"

typedef enum cli_kind {
    CLI_FLAG,
    CLI_TEXT,
    CLI_TO,     /* a file to write; "-" is stdout */
    CLI_TEXTS,
    CLI_INT,
    CLI_COUNT,  /* as CLI_INT, or -1: no limit; the field receives INT32_MAX then */
    CLI_SEED,   /* the field, uint64_t, receives all of its range */
    CLI_REAL,
    CLI_CHOICE, /* one of the words that `arg` lists; the field, int32_t, receives its number */
    CLI_WORD,   /* the same, and the field receives the word */
    CLI_RULE,   /* a verification rule's name; the field, int32_t, receives the rule */
    CLI_TREES,  /* added to cli_options.tree */
    CLI_DRAFTS, /* added to cli_options.draft */
    CLI_IDS,    /* token ids, added to a cli_ids */
    CLI_BIAS,   /* added to cli_options.bias */
    CLI_CHAIN   /* K: the same as the tree "chain:K" */
} cli_kind;

enum { CLI_LAB = 1 << 8, CLI_MAX_OPTION = 80 };

typedef struct cli_option {
    const char *name;
    char letter;       /* 0 = none */
    const char *alias; /* other names, "a|b", with one dash or two; or NULL */
    const char *arg;   /* what help calls the value; NULL for flags */
    const char *env;   /* the variable that gives a default, or NULL */
    int commands;      /* those that have it; and CLI_LAB: of experiments, which --help-lab shows and --help does not */
    cli_kind kind;
    size_t offset; /* in cli_options */
    double min, max;
    const char *help;
} cli_option;

extern const cli_option cli_option_rows[];
extern const size_t cli_n_option;

typedef struct cli_command_row {
    cli_command command;
    const char *name; /* NULL for CLI_TOP */
    const char *arguments;
    const char *help;
} cli_command_row;

extern const cli_command_row cli_command_rows[];
extern const size_t cli_n_command;

typedef struct cli_status_row {
    int status;
    const char *help;
} cli_status_row;

extern const cli_status_row cli_status_rows[];
extern const size_t cli_n_status;

/* The number of the word that is `word` [n] in words "a|b|c"; -1 if it is none of them, or words is NULL. */
int cli_word_number(const char *words, const char *word, size_t n);
/* What an option of another program, `name` without dashes in front, is called here; NULL if it is none that we know. */
const char *cli_elsewhere(const char *name);

#endif
