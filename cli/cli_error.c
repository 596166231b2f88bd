/* cli_error.c - how errors are told: a line on stderr and, where JSON was asked for, an object on stdout; the ends of stdout. */
#define _GNU_SOURCE /* vasprintf */
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_text.h"

/* Errors can come before the options are read, so main says it first. */
static cli_json_form error_form;

void cli_errors_as(cli_json_form form)
{
    error_form = form;
}

/* The text [*n], where each byte that is not UTF-8 is U+FFFD; NULL: no memory. */
static char *as_utf8(size_t *n, const char *text)
{
    static const char other[] = "\xef\xbf\xbd";
    enum { OTHER = sizeof other - 1 };
    size_t left = strlen(text);
    char *copy = malloc(left * OTHER);
    *n = 0;
    for (size_t size; copy != NULL && left > 0; left -= size, text += size) {
        uint32_t c;
        size = cli_character(text, left, &c);
        const bool known = size > 0;
        memcpy(copy + *n, known ? text : other, known ? size : OTHER);
        *n += known ? size : OTHER;
        if (!known) size = 1;
    }
    return copy;
}

json_t *cli_json_text(const char *text)
{
    if (text == NULL) return json_null();
    json_t *string = json_string(text);
    if (string != NULL) return string;
    size_t n;
    char *copy = as_utf8(&n, text);
    string = copy != NULL ? json_stringn(copy, n) : json_string("out of memory");
    free(copy);
    return string;
}

static int tell(int code, const char *message, const char *hint)
{
    const bool colour = code != CLI_USAGE && cli_terminal() && getenv("NO_COLOR") == NULL;
    cli_progress_end();
    fputs(colour ? "\033[1mspec: " : "spec: ", stderr);
    cli_put_plain(stderr, message);
    fprintf(stderr, "%s%s\n", hint, colour ? "\033[0m" : "");
    if (error_form == CLI_JSON_NONE) return code;
    json_t *o = json_object();
    json_object_set_new(o, "error", cli_json_text(message));
    json_object_set_new(o, "exit_status", json_integer(code));
    json_object_set_new(o, "version", json_string(spec_version()));
    cli_json_print(o, error_form, "error");
    return code;
}

static int tell_args(int code, const char *hint, const char *fmt, va_list args)
{
    char *message = NULL;
    if (vasprintf(&message, fmt, args) < 0) message = NULL;
    code = tell(code, message != NULL ? message : "out of memory", hint);
    free(message);
    return code;
}

int cli_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int code = tell_args(cli_interrupt_code(CLI_FAILURE), "", fmt, args);
    va_end(args);
    return code;
}

int cli_usage_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int code = tell_args(CLI_USAGE, " (spec --help shows the options)", fmt, args);
    va_end(args);
    return code;
}

int cli_failure(void)
{
    return cli_error("%s", spec_last_error());
}

/* --------------------------------------------------------------------------------- stdout --- */

static int stdout_error; /* errno of the first failure: what is called afterwards sets others */

void cli_print(const char *data, size_t n)
{
    if (n > 0 && fwrite(data, 1, n, stdout) < n && stdout_error == 0) stdout_error = errno;
}

void cli_stdout_flush(void)
{
    if (fflush(stdout) != 0 && stdout_error == 0) stdout_error = errno;
}

int cli_stdout_end(int code)
{
    cli_stdout_flush();
    if (!ferror(stdout)) return code;
    fprintf(stderr, "spec: stdout: %s\n", stdout_error != 0 ? strerror(stdout_error) : "could not be written");
    return code == CLI_OK ? CLI_FAILURE : code;
}

char *cli_json_dump(const json_t *value, size_t flags)
{
    errno = 0;
    char *text = json_dumps(value, flags);
    if (text == NULL || errno != ENOMEM) return text;
    free(text);
    return NULL;
}

void cli_json_print(json_t *o, cli_json_form form, const char *type)
{
    json_t *line = json_pack("{s:s}", "type", type);
    json_object_update(line, o);
    char *text = form == CLI_JSON_LINES ? cli_json_dump(line, JSON_PRESERVE_ORDER)
                                        : cli_json_dump(o, JSON_PRESERVE_ORDER | JSON_INDENT(2));
    if (text != NULL) {
        cli_print(text, strlen(text));
        cli_print("\n", 1);
    } else {
        fputs("spec: out of memory\n", stderr);
    }
    cli_stdout_flush();
    free(text);
    json_decref(line);
    json_decref(o);
}
