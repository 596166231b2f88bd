/* cli_help.c - --help, from the tables. */
#include <string.h>

#include "cli/cli_table.h"

static void print_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    (void)rule;
    fprintf(user, "  %-29s %s\n", name, help);
}

static void print_kind(void *user, const char *name, const char *args, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", name, args[0] != 0 && args[0] != '[' ? ":" : "", args);
    if (strlen(left) > 29) fprintf(user, "  %s\n", left), left[0] = 0;
    fprintf(user, "  %-29s %s\n", left, help);
}

static void print_usage(FILE *to, cli_command command)
{
    fputs("usage:\n", to);
    for (size_t i = 0; i < cli_n_command; i++) {
        const cli_command_row *row = &cli_command_rows[i];
        char left[80];
        snprintf(left, sizeof left, "%s%s%s", row->name != NULL ? row->name : "", row->name != NULL ? " " : "", row->arguments);
        if (command == CLI_TOP || command == row->command) fprintf(to, "  spec %-55s %s\n", left, row->help);
    }
}

static void print_option(FILE *to, const cli_option *row)
{
    char dash[8] = "", left[80];
    if (row->letter != 0) snprintf(dash, sizeof dash, "-%c,", row->letter);
    if (row->letter == 0 && row->alias != NULL && strlen(row->alias) == 2) snprintf(dash, sizeof dash, "-%s,", row->alias);
    snprintf(left, sizeof left, "%-4s --%s %s", dash, row->name, row->arg != NULL ? row->arg : "");
    if (strlen(left) > 30) fprintf(to, "  %s\n", left), left[0] = 0;
    fprintf(to, "  %-30s %s%s%s%s\n", left, row->help, row->env != NULL ? " [" : "", row->env != NULL ? row->env : "",
            row->env != NULL ? "]" : "");
}

static void print_options(FILE *to, cli_command command, bool lab)
{
    const int of = command == CLI_TOP ? CLI_RUN | CLI_TREE | CLI_INFO | CLI_NGRAM | CLI_CONVERT | CLI_TOP : (int)command;
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        if ((row->commands & of) != 0 && ((row->commands & CLI_LAB) != 0) == lab) print_option(to, row);
    }
}

static void print_status(FILE *to)
{
    fputs("\nexit status:\n", to);
    for (size_t i = 0; i < cli_n_status; i++) fprintf(to, "  %-29d %s\n", cli_status_rows[i].status, cli_status_rows[i].help);
}

void cli_help(FILE *to, cli_command command, bool lab)
{
    print_usage(to, command);
    fprintf(to, "\noptions%s (default; variable that sets it):\n", lab ? " of experiments" : "");
    print_options(to, command, lab);
    if (lab) return;
    if ((command & (CLI_RUN | CLI_TREE | CLI_INFO)) != 0) {
        fputs("\ntrees (--tree):\n", to);
        spec_builder_list(print_kind, to);
        fputs("\ndrafters (--draft):\n", to);
        spec_drafter_list(print_kind, to);
    }
    if ((command & (CLI_RUN | CLI_TREE)) != 0) {
        fputs("\nrules (--verify):\n", to);
        spec_verify_rule_list(print_rule, to);
    }
    if (command == CLI_RUN || command == CLI_TOP)
        fputs("\nGenerated text goes to stdout, everything else to stderr.\n", to);
    print_status(to);
}

void cli_hint(FILE *to)
{
    fputs("usage: spec run DIR -p TEXT                      generate text with the model in DIR\n"
          "       spec run DIR -md DIR -p TEXT              the same text, a smaller model drafting\n"
          "       spec tree DIR DIR -p TEXT --html FILE     a page that shows what was drafted and accepted\n"
          "       spec info DIR                             what a model is, and what a session takes\n"
          "spec --help shows everything, spec run --help one command, spec --list-devices the devices\n", to);
}
