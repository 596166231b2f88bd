/* pages_main.c - spec-cli-pages man|bash|zsh|fish: writes that page to stdout. */
#include <string.h>

#include "cli/pages/pages.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*write)(FILE *to);
    } pages[] = { { "man", pages_man }, { "bash", pages_bash }, { "zsh", pages_zsh }, { "fish", pages_fish } };
    for (size_t i = 0; i < sizeof pages / sizeof pages[0] && argc == 2; i++) {
        if (strcmp(argv[1], pages[i].name) != 0) continue;
        pages[i].write(stdout);
        return fflush(stdout) != 0 || ferror(stdout) ? 1 : 0;
    }
    fputs("usage: spec-cli-pages man|bash|zsh|fish\n", stderr);
    return 2;
}
