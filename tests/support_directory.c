/* support_directory.c - directories that a test has to itself. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "tests/support_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char support_directory[SUPPORT_DIRECTORY];

char *support_directory_new(char dir[SUPPORT_DIRECTORY])
{
    strcpy(dir, "/tmp/spec-test-XXXXXX");
    return mkdtemp(dir);
}

int support_directory_delete(const char *dir)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int support_directory_make(void **state)
{
    (void)state;
    return support_directory_new(support_directory) ? 0 : -1;
}

int support_directory_remove(void **state)
{
    (void)state;
    return support_directory_delete(support_directory);
}
