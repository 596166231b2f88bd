/* cli_convert.c - spec convert: a model as a GGUF file. */
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

static int show_progress(void *user_data, double fraction)
{
    (void)user_data;
    if (fraction < 1) cli_progress("writing", "%3.0f %%", fraction * 100);
    else cli_progress_end();
    return cli_interrupted();
}

/* A pipe has no size; and a file that is stdout was replaced, so that stdout is the one before. */
static void report(const char *path, double ms)
{
    struct stat s;
    fprintf(stderr, "%s: ", path);
    if (strcmp(path, CLI_STDOUT) != 0 && stat(path, &s) == 0 && S_ISREG(s.st_mode)) fprintf(stderr, "%.1f MB in ", (double)s.st_size / 1e6);
    fprintf(stderr, "%.1f s\n", ms / 1e3);
}

int cli_convert(const cli_options *o)
{
    const double start = cli_now_ms();
    const spec_backend_params backend_params = cli_backend_params(o);
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    spec_backend *backend = NULL;
    p.type = o->type, p.tokenizer_path = o->tokenizer;
    p.progress = show_progress;
    cli_interrupt_install();
    spec_status status = spec_backend_open(&backend, "cpu", &backend_params);
    if (status == SPEC_OK) status = spec_model_convert(backend, o->model, o->output, &p);
    spec_backend_close(backend);
    if (status != SPEC_OK) return cli_failure();
    report(o->output, cli_now_ms() - start);
    return CLI_OK;
}
