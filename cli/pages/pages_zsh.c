/* pages_zsh.c - the completion of zsh: a function that calls _arguments with one specification for each name of an option. */
#include <string.h>

#include "cli/pages/pages.h"

/* Between single quotes: a part of a specification, in which colons and brackets are marks. */
static void put(FILE *to, const char *text)
{
    for (; *text != 0; text++) {
        if (strchr(":[]\\", *text) != NULL) fputc('\\', to);
        fputs(*text == '\'' ? "'\\'" : "", to);
        fputc(*text, to);
    }
}

static void put_names(FILE *to, const cli_option *row)
{
    char name[64];
    for (int i = 0; pages_name(name, sizeof name, row, i); i++) fprintf(to, "%s%s", i > 0 ? " " : "", name);
}

static void put_value(FILE *to, const cli_option *row)
{
    pages_words words;
    const pages_value value = pages_value_of(row, &words);
    if (value == PAGES_NONE) return;
    fputc(':', to);
    put(to, row->arg);
    fputc(':', to);
    if (value == PAGES_FILE) fputs("_files", to);
    if (value == PAGES_DIRECTORY) fputs("_directories", to);
    if (value == PAGES_WORDS) {
        fputc('(', to);
        put(to, words.text);
        fputc(')', to);
    }
}

static void put_option(FILE *to, const cli_option *row)
{
    char name[64];
    for (int i = 0; pages_name(name, sizeof name, row, i); i++) {
        fputs(" \\\n                '", to);
        if (pages_repeats(row)) {
            fputc('*', to);
        } else {
            fputc('(', to);
            put_names(to, row);
            fputc(')', to);
        }
        fprintf(to, "%s%s[", name, row->arg != NULL && name[1] == '-' ? "=" : "");
        put(to, row->help);
        fputc(']', to);
        put_value(to, row);
        fputc('\'', to);
    }
}

static void put_places(FILE *to, cli_command command)
{
    if (command == CLI_NGRAM) fputs(" \\\n                '1:what to do:(build)' \\\n                '*:corpus:_files'", to);
    else if (command != CLI_TOP) fputs(" \\\n                '1:model:_directories'", to);
    if (command == CLI_TREE) fputs(" \\\n                '2:model that drafts:_directories'", to);
}

void pages_zsh(FILE *to)
{
    fputs("#compdef spec\n"
          "# The completion of spec for zsh, made from its table of options.\n"
          "_spec() {\n"
          "    local -a commands=(",
          to);
    for (size_t i = 0; i < cli_n_command; i++)
        if (cli_command_rows[i].name != NULL) fprintf(to, " '%s:%s'", cli_command_rows[i].name, cli_command_rows[i].help);
    fputs(" )\n"
          "    local command=$words[2]\n"
          "    if (( CURRENT == 2 )) && [[ $command != -* ]]; then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    case $command in\n",
          to);
    for (size_t i = 0; i < cli_n_command; i++) {
        const cli_command_row *row = &cli_command_rows[i];
        fprintf(to, "        %s)\n", row->name != NULL ? row->name : "*");
        if (row->name != NULL) fputs("            shift words; (( CURRENT-- ))\n", to);
        fputs("            _arguments", to);
        put_places(to, row->command);
        for (size_t k = 0; k < cli_n_option; k++)
            if (pages_offers(&cli_option_rows[k], row->command)) put_option(to, &cli_option_rows[k]);
        fputs(" ;;\n", to);
    }
    fputs("    esac\n"
          "}\n"
          "_spec \"$@\"\n",
          to);
}
