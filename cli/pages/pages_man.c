/* pages_man.c - spec(1), in the macros of man(7). */
#include "cli/pages/pages.h"

/* Text as roff shows it: a dash is a dash, a backslash one. No line of it begins with a control character. */
static void put(FILE *to, const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", to);
    for (; *text != 0; text++) {
        switch (*text) {
        case '\\': fputs("\\e", to); break;
        case '-': fputs("\\-", to); break;
        case '\'': fputs("\\(aq", to); break;
        case '|': fputs("|\\:", to); break; /* behind which a line may end */
        default: fputc(*text, to);
        }
    }
}

static void put_line(FILE *to, const char *text)
{
    put(to, text);
    fputc('\n', to);
}

static void put_bold(FILE *to, const char *text)
{
    fputs("\\fB", to);
    put(to, text);
    fputs("\\fR", to);
}

static void put_commands(FILE *to, const cli_option *row)
{
    const int all = CLI_RUN | CLI_TREE | CLI_INFO;
    if ((row->commands & all) == all) return;
    const char *between = "Of ";
    for (size_t i = 0; i < cli_n_command; i++) {
        if ((row->commands & (int)cli_command_rows[i].command) == 0) continue;
        fputs(between, to);
        if (cli_command_rows[i].name != NULL)
            put_bold(to, cli_command_rows[i].name);
        else
            fputs("no command", to);
        between = ", ";
    }
    fputs(".\n", to);
}

static void put_option(FILE *to, const cli_option *row)
{
    char name[64];
    fputs(".TP\n", to);
    for (int i = 0; pages_name(name, sizeof name, row, i); i++) {
        if (i > 0) fputs(", ", to);
        put_bold(to, name);
    }
    if (row->arg != NULL) {
        fputs(" \\fI", to);
        put(to, row->arg);
        fputs("\\fR", to);
    }
    fputc('\n', to);
    put(to, row->help);
    fputs(".\n", to);
    put_commands(to, row);
    if (row->env != NULL) fprintf(to, "Variable: \\fB%s\\fR.\n", row->env);
}

static void put_options(FILE *to, bool lab)
{
    for (size_t i = 0; i < cli_n_option; i++)
        if (((cli_option_rows[i].commands & CLI_LAB) != 0) == lab) put_option(to, &cli_option_rows[i]);
}

static void put_item(FILE *to, const char *name, const char *args, const char *help)
{
    fputs(".TP\n", to);
    put_bold(to, name);
    if (args[0] != 0) {
        fputs(args[0] == '[' ? "\\fI" : ":\\fI", to);
        put(to, args);
        fputs("\\fR", to);
    }
    fputc('\n', to);
    put_line(to, help);
}

static void put_kind(void *user, const char *name, const char *args, const char *help)
{
    put_item(user, name, args, help);
}

static void put_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    (void)rule;
    put_item(user, name, "", help);
}

static void put_synopsis(FILE *to)
{
    fputs(".SH SYNOPSIS\n", to);
    for (size_t i = 0; i < cli_n_command; i++) {
        const cli_command_row *row = &cli_command_rows[i];
        fputs(i > 0 ? ".br\n\\fBspec\\fR " : "\\fBspec\\fR ", to);
        if (row->name != NULL) put_bold(to, row->name), fputc(' ', to);
        put(to, row->arguments);
        fputs(row->name != NULL ? " [\\fIoptions\\fR]\n" : "\n", to);
    }
}

static void put_commands_section(FILE *to)
{
    fputs(".SH COMMANDS\n", to);
    for (size_t i = 0; i < cli_n_command; i++)
        if (cli_command_rows[i].name != NULL) put_item(to, cli_command_rows[i].name, "", cli_command_rows[i].help);
}

static void put_examples(FILE *to)
{
    static const char *const examples[][2] = {
        { "spec run target -md drafter -p \"Once upon a time\" -n 64", "Text of a model, a smaller one drafting." },
        { "spec run target --draft ngram -f prompt.txt -n -1 --check",
          "To the end of the text, drafting from the text so far; compared with plain decoding." },
        { "spec ngram build notes.txt log.jsonl -m target -o notes.png",
          "A table of what follows what in these texts, for --draft png:notes.png." },
        { "spec tree target drafter -p \"Once\" --tree product:3,2,2 --html trees.html", "A page of the trees." },
    };
    fputs(".SH EXAMPLES\n", to);
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        fputs(".TP\n", to);
        put_bold(to, examples[i][0]);
        fputc('\n', to);
        put_line(to, examples[i][1]);
    }
}

void pages_man(FILE *to)
{
    fprintf(to, ".TH SPEC 1 \"\" \"spec %s\" \"User Commands\"\n", spec_version());
    fputs(".SH NAME\nspec \\- text from language models by speculative decoding\n", to);
    put_synopsis(to);
    fputs(".SH DESCRIPTION\n"
          "A large model, the target, needs one pass over its weights for every token.\n"
          "A drafter guesses the next few tokens; the target checks all of them in one pass, and keeps those that it would have\n"
          "said itself.\nThe text is that of the target alone; a pass emits more than one token of it.\n.PP\n"
          "A model is a directory as Hugging Face tools write it: config.json, safetensors, and the files of a tokenizer.\n"
          "Generated text goes to stdout, everything else to stderr.\n",
          to);
    put_commands_section(to);
    fputs(".SH OPTIONS\nWhat stands in parentheses is the default.\n"
          "A variable of the environment gives another; the command line goes first.\n",
          to);
    put_options(to, false);
    fputs(".SH TREES\nWhat is drafted in a step, for \\fB\\-\\-tree\\fR.\n", to);
    spec_builder_list(put_kind, to);
    fputs(".SH DRAFTERS\nThey need no model, for \\fB\\-\\-draft\\fR.\n", to);
    spec_drafter_list(put_kind, to);
    fputs(".SH RULES\nWhich drafts are accepted, for \\fB\\-\\-verify\\fR.\n", to);
    spec_verify_rule_list(put_rule, to);
    fputs(".SH OPTIONS OF EXPERIMENTS\nThe first word is the default.\n", to);
    put_options(to, true);
    fputs(".SH EXIT STATUS\n", to);
    for (size_t i = 0; i < cli_n_status; i++) {
        char status[16];
        snprintf(status, sizeof status, "%d", cli_status_rows[i].status);
        put_item(to, status, "", cli_status_rows[i].help);
    }
    put_examples(to);
}
