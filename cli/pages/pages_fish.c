/* pages_fish.c - the completion of fish. */
#include "cli/pages/pages.h"

static void put_quoted(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text != 0; text++) {
        if (*text == '\\' || *text == '\'') fputc('\\', to);
        fputc(*text, to);
    }
    fputc('\'', to);
}

/* When the option is offered: behind the commands that have it, or before any. */
static void put_condition(FILE *to, const cli_option *row, bool before)
{
    if (before) {
        fputs(" -n __fish_use_subcommand", to);
        return;
    }
    fputs(" -n '__fish_seen_subcommand_from", to);
    for (size_t i = 0; i < cli_n_command; i++)
        if (cli_command_rows[i].name != NULL && pages_offers(row, cli_command_rows[i].command))
            fprintf(to, " %s", cli_command_rows[i].name);
    fputc('\'', to);
}

static void put_value(FILE *to, const cli_option *row)
{
    pages_words words;
    switch (pages_value_of(row, &words)) {
    case PAGES_NONE: break;
    case PAGES_TEXT: fputs(" -x", to); break;
    case PAGES_FILE: fputs(" -r -F", to); break;
    case PAGES_DIRECTORY: fputs(" -x -a '(__fish_complete_directories)'", to); break;
    case PAGES_WORDS:
        fputs(" -x -a ", to);
        put_quoted(to, words.text);
        break;
    }
}

static void put_option(FILE *to, const cli_option *row, bool before)
{
    char name[64];
    fputs("complete -c spec", to);
    put_condition(to, row, before);
    for (int i = 0; pages_name(name, sizeof name, row, i); i++)
        fprintf(to, " %s %s", name[1] == '-' ? "-l" : name[2] == 0 ? "-s" : "-o", name + 1 + (name[1] == '-'));
    put_value(to, row);
    fputs(" -d ", to);
    put_quoted(to, row->help);
    fputc('\n', to);
}

void pages_fish(FILE *to)
{
    fputs("# The completion of spec for fish, made from its table of options.\n"
          "complete -c spec -f\n",
          to);
    for (size_t i = 0; i < cli_n_command; i++) {
        const cli_command_row *row = &cli_command_rows[i];
        if (row->name == NULL) continue;
        fprintf(to, "complete -c spec -n __fish_use_subcommand -a %s -d ", row->name);
        put_quoted(to, row->help);
        fprintf(to, "\ncomplete -c spec -n '__fish_seen_subcommand_from %s' ", row->name);
        fputs(row->command == CLI_NGRAM ? "-F -a build\n" : "-a '(__fish_complete_directories)'\n", to);
    }
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        if (pages_offers(row, CLI_TOP)) put_option(to, row, true);
        if (pages_offers(row, CLI_RUN) || pages_offers(row, CLI_TREE) || pages_offers(row, CLI_INFO) ||
            pages_offers(row, CLI_NGRAM))
            put_option(to, row, false);
    }
}
