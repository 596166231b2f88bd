/* support_directory.c - a directory that a test has to itself. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "tests/support_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char support_directory[32];

int support_directory_make(void **state)
{
    (void)state;
    strcpy(support_directory, "/tmp/spec-test-XXXXXX");
    return mkdtemp(support_directory) ? 0 : -1;
}

int support_directory_remove(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", support_directory);
    return system(command);
}
