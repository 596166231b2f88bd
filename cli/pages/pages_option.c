/* pages_option.c - what the pages tell of an option: its names, and what stands behind it. */
#include <string.h>

#include "cli/pages/pages.h"

static void add_word(pages_words *words, const char *word)
{
    const size_t n = strlen(words->text);
    snprintf(words->text + n, sizeof words->text - n, "%s%s", n > 0 ? " " : "", word);
}

static void add_kind(void *user, const char *name, const char *args, const char *help)
{
    (void)args, (void)help;
    add_word(user, name);
}

static void add_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    (void)rule, (void)help;
    add_word(user, name);
}

static void add_choices(pages_words *words, const char *choices)
{
    snprintf(words->text, sizeof words->text, "%s", choices);
    for (char *c = words->text; *c != 0; c++)
        if (*c == '|') *c = ' ';
}

pages_value pages_value_of(const cli_option *row, pages_words *words)
{
    *words = (pages_words){ "" };
    if (row->arg == NULL) return PAGES_NONE;
    if (row->kind == CLI_CHOICE || row->kind == CLI_WORD) add_choices(words, row->arg);
    if (row->kind == CLI_RULE) spec_verify_rule_list(add_rule, words);
    if (row->kind == CLI_TREES) spec_builder_list(add_kind, words);
    if (row->kind == CLI_DRAFTS) spec_drafter_list(add_kind, words);
    if (strcmp(row->name, "backend") == 0) add_choices(words, "cpu|cpu:portable|cuda");
    if (words->text[0] != 0) return PAGES_WORDS;
    if (strcmp(row->arg, "DIR") == 0) return PAGES_DIRECTORY;
    return strcmp(row->arg, "FILE") == 0 || strcmp(row->arg, "PATH") == 0 ? PAGES_FILE : PAGES_TEXT;
}

bool pages_repeats(const cli_option *row)
{
    return row->kind == CLI_TEXTS || row->kind == CLI_TREES || row->kind == CLI_DRAFTS;
}

bool pages_offers(const cli_option *row, cli_command command)
{
    return (row->commands & (int)command) != 0 && (row->commands & CLI_LAB) == 0;
}

/* The i-th of "a|b|c". */
static bool word_at(char *out, size_t cap, const char *words, int i)
{
    for (; words != NULL; i--) {
        const size_t n = strcspn(words, "|");
        if (i == 0) {
            snprintf(out, cap, "%.*s", (int)n, words);
            return true;
        }
        words = words[n] != 0 ? words + n + 1 : NULL;
    }
    return false;
}

bool pages_name(char *out, size_t cap, const cli_option *row, int i)
{
    char word[64];
    if (row->letter != 0 && i-- == 0) {
        snprintf(out, cap, "-%c", row->letter);
        return true;
    }
    if (i > 0 && !word_at(word, sizeof word, row->alias, i - 1)) return false;
    if (i == 0) snprintf(word, sizeof word, "%s", row->name);
    snprintf(out, cap, "%s%s", strlen(word) > 2 ? "--" : "-", word); /* -md, -sp */
    return true;
}
