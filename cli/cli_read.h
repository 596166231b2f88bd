/* cli_read.h - texts that are read whole, within a bound: a device may give bytes without end. */
#ifndef SPEC_CLI_READ_H
#define SPEC_CLI_READ_H

#include <stddef.h>
#include <stdio.h>

/* Bytes of one text. A longer one has no tokens (spec_tokenizer_encode). */
enum { CLI_TEXT_MOST = (1 << 28) - 1 };

typedef struct cli_bytes {
    char *data; /* NULL: none were read; free it */
    size_t n, cap;
} cli_bytes;

/* All that is left of a file, behind what `out` holds. An exit code; has printed the reason. `path` is for messages. */
int cli_read_all(cli_bytes *out, FILE *from, const char *path);
/* The next line with its line feed, in place of what `out` holds; n 0: there is none. number: the line's, for messages. */
int cli_read_line(cli_bytes *out, FILE *from, const char *path, size_t number);

#endif
