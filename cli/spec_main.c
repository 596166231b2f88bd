/* spec_main.c - the program `spec`. */
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static void print_device(void *user_data, const char *name, const char *text)
{
    if (name != NULL)
        printf("%-16s %s\n", name, text != NULL ? text : "");
    else
        fprintf(user_data, "not available: %s\n", text);
    cli_stdout_flush(); /* the next backend's libraries may flush too, and then nobody learns why it failed */
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
    cli_help(stderr, CLI_TOP);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        cli_command command;
        int (*call)(const cli_options *o);
    } commands[] = { { "run", CLI_RUN, cli_run }, { "tree", CLI_TREE, cli_tree }, { "info", CLI_INFO, cli_info } };

    cli_command command = CLI_TOP;
    int (*call)(const cli_options *) = top;
    if (argc > 1 && argv[1][0] != '-') {
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
            if (strcmp(argv[1], commands[i].name) == 0) command = commands[i].command, call = commands[i].call;
        if (command == CLI_TOP) return cli_usage_error("\"%s\" is no command, need run, tree or info", argv[1]);
        argv[1] = argv[0]; /* getopt's messages begin with it */
        argc--, argv++;
    }
    /* Room for help and reports in one write, so that the reason why it failed is still known afterwards. */
    static char gathered[1 << 16];
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, gathered, _IOFBF, sizeof gathered);
    cli_options options;
    int code = cli_options_parse(&options, command, argc, argv);
    if (code < 0) code = call(&options);
    cli_options_free(&options);
    return cli_stdout_end(code);
}
