/* spec_main.c - the program `spec`. */
#define _GNU_SOURCE /* O_PATH */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli_table.h"

static void print_device(void *user_data, const char *name, const char *text)
{
    if (name != NULL)
        printf("%-16s %s\n", name, text != NULL ? text : "");
    else
        fprintf(user_data, "not available: %s\n", text);
    cli_stdout_flush(); /* the next backend's libraries may flush too, and then nobody is told why it failed */
}

static int top(const cli_options *o)
{
    if (o->version) {
        printf("spec %s\n", spec_version());
        return CLI_OK;
    }
    if (o->list_devices) {
        const spec_backend_params params = cli_backend_params(o);
        return spec_backend_list(&params, print_device, stdout) == SPEC_OK ? CLI_OK : cli_failure();
    }
    cli_hint(stderr);
    return CLI_USAGE;
}

static cli_command command_named(const char *name)
{
    for (size_t i = 0; i < cli_n_command; i++)
        if (cli_command_rows[i].name != NULL && strcmp(cli_command_rows[i].name, name) == 0) return cli_command_rows[i].command;
    return CLI_TOP;
}

static int call(cli_command command, const cli_options *o)
{
    switch (command) {
    case CLI_RUN: return cli_run(o);
    case CLI_TREE: return cli_tree(o);
    case CLI_INFO: return cli_info(o);
    case CLI_NGRAM: return cli_ngram(o);
    case CLI_CONVERT: return cli_convert(o);
    case CLI_TOP: break;
    }
    return top(o);
}

/* Before the options are read, which may be wrong. */
static cli_json_form json_form(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0) return CLI_JSON_OBJECT;
        if (strcmp(argv[i], "--json-lines") == 0) return CLI_JSON_LINES;
    }
    return CLI_JSON_NONE;
}

/* A standard stream that the caller has closed: the next file to be opened would get its number, and reports would be written into
 * it. What takes the number here can neither be read nor written, so a closed stdout stays an error. */
static void hold_closed_streams(void)
{
    int file;
    do file = open("/", O_PATH);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file >= 0) close(file);
}

int main(int argc, char **argv)
{
    hold_closed_streams();
    /* Room for help and reports in one write, so that the reason why it failed is still known afterwards. */
    static char gathered[1 << 16];
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, gathered, _IOFBF, sizeof gathered);
    cli_errors_as(json_form(argc, argv));

    cli_command command = CLI_TOP;
    if (argc > 1 && argv[1][0] != '-') {
        command = command_named(argv[1]);
        if (command == CLI_TOP)
            return cli_stdout_end(cli_usage_error("\"%s\" is no command, need run, tree, info, ngram or convert", argv[1]));
        argc--, argv++;
    }
    cli_options options;
    int code = cli_options_parse(&options, command, argc, argv);
    cli_errors_as(options.json_lines ? CLI_JSON_LINES : options.json ? CLI_JSON_OBJECT : CLI_JSON_NONE);
    if (code < 0) code = call(command, &options);
    cli_options_free(&options);
    return cli_stdout_end(code);
}
