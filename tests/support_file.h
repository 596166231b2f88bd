/* support_file.h - files that tests write. */
#ifndef TESTS_SUPPORT_FILE_H
#define TESTS_SUPPORT_FILE_H

#include <stddef.h>

/* The file is these bytes [n], or the test fails. */
void support_write(const char *path, const void *data, size_t n);

#endif
