/* pages_bash.c - the completion of bash. */
#include "cli/pages/pages.h"

/* "-m|--model)" */
static void put_pattern(FILE *to, const cli_option *row)
{
    char name[64];
    for (int i = 0; pages_name(name, sizeof name, row, i); i++) fprintf(to, "%s%s", i > 0 ? "|" : "", name);
    fputc(')', to);
}

static void put_values(FILE *to)
{
    pages_words words;
    fputs("    case $before in\n", to);
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        const pages_value value = pages_value_of(row, &words);
        if (value == PAGES_NONE) continue;
        fputs("        ", to);
        put_pattern(to, row);
        switch (value) {
        case PAGES_WORDS: fprintf(to, " _spec_offer -W '%s'; return ;;\n", words.text); break;
        case PAGES_FILE: fputs(" compopt -o filenames; _spec_offer -f; return ;;\n", to); break;
        case PAGES_DIRECTORY: fputs(" compopt -o filenames; _spec_offer -d; return ;;\n", to); break;
        default: fputs(" return ;;\n", to);
        }
    }
    fputs("    esac\n", to);
}

static void put_options(FILE *to, cli_command command)
{
    char name[64];
    const char *between = "";
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        if (!pages_offers(row, command)) continue;
        for (int k = 0; pages_name(name, sizeof name, row, k); k++, between = " ") fprintf(to, "%s%s", between, name);
    }
}

void pages_bash(FILE *to)
{
    fputs("# The completion of spec for bash, made from its table of options.\n"
          "_spec_offer() { mapfile -t COMPREPLY < <(compgen \"$@\" -- \"$word\"); }\n"
          "_spec()\n{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options\n"
          "    COMPREPLY=()\n"
          "    case $word in\n" /* "--name=value" is three words */
          "        =) word= ;;\n"
          "        *) [ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD-2]} ;;\n"
          "    esac\n",
          to);
    put_values(to);
    fputs("    case ${COMP_WORDS[1]} in\n", to);
    for (size_t i = 0; i < cli_n_command; i++) {
        const cli_command_row *row = &cli_command_rows[i];
        fprintf(to, "        %s) options='", row->name != NULL ? row->name : "*");
        put_options(to, row->command);
        fputs("' ;;\n", to);
    }
    fputs("    esac\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ] && [[ $word != -* ]]; then\n"
          "        _spec_offer -W '",
          to);
    for (size_t i = 0; i < cli_n_command; i++)
        if (cli_command_rows[i].name != NULL) fprintf(to, "%s%s", i > 0 ? " " : "", cli_command_rows[i].name);
    fputs("'\n"
          "    elif [[ $word == -* ]]; then\n"
          "        _spec_offer -W \"$options\"\n"
          "    elif [ \"${COMP_WORDS[1]}\" = ngram ]; then\n"
          "        if [ \"$COMP_CWORD\" -eq 2 ]; then _spec_offer -W build; else compopt -o filenames; _spec_offer -f; fi\n"
          "    elif [ \"$COMP_CWORD\" -gt 1 ]; then\n"
          "        compopt -o filenames; _spec_offer -d\n"
          "    fi\n"
          "}\n"
          "complete -F _spec spec\n",
          to);
}
