/* support_directory.h - a directory that a test has to itself. */
#ifndef TESTS_SUPPORT_DIRECTORY_H
#define TESTS_SUPPORT_DIRECTORY_H

/* Its path, between a test's setup and its teardown, which are cmocka's. */
extern char support_directory[32];
int support_directory_make(void **state);
int support_directory_remove(void **state);

#endif
