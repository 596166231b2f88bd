/* cli_read.c - see cli_read.h. */
#define _POSIX_C_SOURCE 200809L /* getc_unlocked, flockfile */
#include "cli/cli_read.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { FIRST = 65536 };

/* Room for one byte more. There may be one above the bound: it tells that there are too many. */
static bool has_room(cli_bytes *b)
{
    if (b->n < b->cap) return true;
    size_t cap = b->cap > 0 ? 2 * b->cap : FIRST;
    if (cap > (size_t)CLI_TEXT_MOST + 1) cap = (size_t)CLI_TEXT_MOST + 1;
    char *more = realloc(b->data, cap);
    if (more == NULL) return false;
    b->data = more, b->cap = cap;
    return true;
}

static int failure(const char *path) { return cli_error("%s: %s", path, strerror(errno)); }

int cli_read_all(cli_bytes *out, FILE *from, const char *path)
{
    for (size_t got = 1; got > 0 && out->n <= CLI_TEXT_MOST; out->n += got) {
        if (!has_room(out)) return failure(path);
        got = fread(out->data + out->n, 1, out->cap - out->n, from);
    }
    if (ferror(from)) return failure(path);
    return out->n <= CLI_TEXT_MOST ? CLI_OK : cli_error("%s: more than %d bytes, which is too long for a prompt", path, CLI_TEXT_MOST);
}

int cli_read_line(cli_bytes *out, FILE *from, const char *path, size_t number)
{
    int code = CLI_OK;
    out->n = 0;
    flockfile(from);
    for (int c = 0; c != '\n' && code == CLI_OK && (c = getc_unlocked(from)) != EOF;) {
        if (!has_room(out)) code = failure(path);
        else out->data[out->n++] = (char)c;
        if (out->n > CLI_TEXT_MOST) code = cli_error("%s: line %zu: more than %d bytes, which is too long", path, number, CLI_TEXT_MOST);
    }
    funlockfile(from);
    return code == CLI_OK && ferror(from) ? failure(path) : code;
}
