/* cli_progress.c - how far a long task is: one line of a terminal, which is taken back before anything else is written. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

static char shown[64]; /* "": nothing is */

bool cli_terminal(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDERR_FILENO) && kind != NULL && strcmp(kind, "dumb") != 0;
}

/* Columns of the terminal; a line that fills the last one may begin another. */
static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void cli_progress(const char *doing, const char *fmt, ...)
{
    char far[32], line[sizeof shown];
    if (!cli_terminal()) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(far, sizeof far, fmt, args);
    va_end(args);
    snprintf(line, sizeof line, "%s: %s", doing, far);
    if ((int)strlen(line) >= columns()) snprintf(line, sizeof line, "%.*s", columns() - 1, far);
    if (strcmp(line, shown) == 0) return;
    strcpy(shown, line);
    fprintf(stderr, "\r%s\033[K", shown);
}

void cli_progress_end(void)
{
    if (shown[0] == 0) return;
    shown[0] = 0;
    fputs("\r\033[K", stderr);
}
