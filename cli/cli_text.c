/* cli_text.c - texts of others: UTF-8, and what may not go to a terminal. */
#include "cli/cli_text.h"

#include <string.h>

size_t cli_character(const char *text, size_t n, uint32_t *c)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *s = (const unsigned char *)text;
    const size_t size = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (size == 0 || size > n) return 0;
    *c = size == 1 ? s[0] : s[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if (s[i] >> 6 != 2) return 0;
        *c = *c << 6 | (s[i] & 0x3fu);
    }
    return *c < least[size] || *c > 0x10ffff || *c >> 11 == 0x1b ? 0 : size;
}

/* Those of ASCII, and the 32 behind it (C1), which some terminals obey as well. */
static int is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0);
}

void cli_put_plain(FILE *to, const char *text)
{
    for (size_t n = strlen(text), size; n > 0; n -= size, text += size) {
        uint32_t c = 0;
        size = cli_character(text, n, &c);
        if (size > 0 && is_control(c)) fprintf(to, "\\x%02x", (unsigned)c);
        else fwrite(text, 1, size += size == 0, to); /* bytes of another encoding stay */
    }
}
