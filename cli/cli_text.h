/* cli_text.h - texts of others: paths, and what messages quote of files. They can hold any byte. */
#ifndef SPEC_CLI_TEXT_H
#define SPEC_CLI_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The bytes of the UTF-8 character at s [n], n >= 1, and its number; 0 if they are not one. */
size_t cli_character(const char *s, size_t n, uint32_t *c);
/* Writes a text that is to stay on its line, and to move nothing on a terminal: control characters are told as \x1b. */
void cli_put_plain(FILE *to, const char *text);

#endif
