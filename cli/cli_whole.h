/* cli_whole.h - a text that the program writes to a file, whole or not at all. */
#ifndef SPEC_CLI_WHOLE_H
#define SPEC_CLI_WHOLE_H

#include "cli/cli.h"

typedef struct cli_whole {
    FILE *to;
    const char *path;
    char *target, *partial; /* NULL: it is written where it is */
} cli_whole;

/* Of a text that begins with `begin`, at most 32 bytes. A file of another kind is not replaced. All tell what failed, and return an exit
 * code. */
int cli_whole_open(cli_whole *w, const char *path, const char *begin);
/* whole false: nothing is left of it. */
int cli_whole_close(cli_whole *w, bool whole);
/* Would it open? Told before the work and not behind it. */
int cli_whole_check(const char *path, const char *begin);
/* May a file that the library writes get this name, as far as permissions say? */
int cli_whole_may(const char *path);

#endif
