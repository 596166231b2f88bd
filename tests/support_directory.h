/* support_directory.h - directories that a test has to itself. */
#ifndef TESTS_SUPPORT_DIRECTORY_H
#define TESTS_SUPPORT_DIRECTORY_H

enum { SUPPORT_DIRECTORY = 32 };
/* A new one, empty; NULL: it could not be made. And away with it and all that is in it; 0: it is gone. */
char *support_directory_new(char dir[SUPPORT_DIRECTORY]);
int support_directory_delete(const char *dir);

/* The path of the one between a test's setup and its teardown, which are cmocka's. */
extern char support_directory[SUPPORT_DIRECTORY];
int support_directory_make(void **state);
int support_directory_remove(void **state);

#endif
