/* text_utf8.c - UTF-8, white space, and GPT-2's byte alphabet. */
#include <string.h>

#include "models/text/text_tokenizer.h"

/* Table 3-7 of the Unicode standard: the second byte's range depends on the first, which is what excludes overlong
 * forms, surrogates and everything above U+10FFFF; third and fourth bytes are 80..BF. */
static size_t lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

int speci_utf8_state(const uint8_t *s, size_t n)
{
    uint8_t low, high;
    size_t len = n ? lead_length(s[0], &low, &high) : 0;
    if (n == 0) return 0;
    if (len == 0 || n > len) return -1;
    if (n > 1 && (s[1] < low || s[1] > high)) return -1;
    for (size_t i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return -1;
    return n == len;
}

size_t speci_utf8_length(const char *s, size_t n)
{
    uint8_t low, high;
    if (n == 0) return 0;
    size_t len = lead_length((uint8_t)s[0], &low, &high);
    if (len == 0 || len > n) return 0;
    return speci_utf8_state((const uint8_t *)s, len) == 1 ? len : 0;
}

size_t speci_utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        size_t len = speci_utf8_length(s + i, n - i);
        if (len == 0) return i;
        i += len;
    }
    return n;
}

int32_t speci_utf8_decode(const char *s, size_t *len)
{
    const uint8_t *u = (const uint8_t *)s;
    if (u[0] < 0x80) return *len = 1, u[0];
    if (u[0] < 0xE0) return *len = 2, (u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    if (u[0] < 0xF0) return *len = 3, (u[0] & 0x0F) << 12 | (u[1] & 0x3F) << 6 | (u[2] & 0x3F);
    return *len = 4, (u[0] & 0x07) << 18 | (u[1] & 0x3F) << 12 | (u[2] & 0x3F) << 6 | (u[3] & 0x3F);
}

size_t speci_utf8_encode(char out[4], int32_t cp)
{
    if (cp < 0x80) return out[0] = (char)cp, 1;
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    static const int lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    out[0] = (char)(lead[n] | cp);
    return n;
}

size_t speci_utf8_before(const char *s, size_t i)
{
    do i--;
    while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80);
    return i;
}

bool speci_is_space(int32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

/* Bytes that are printable in Latin-1 stand for themselves; the other 68, in order, for U+0100 and following. */
static bool stands_for_itself(int32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

int32_t speci_byte_to_char(uint8_t byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    if (byte <= 0xA0) return 0x121 + (byte - 0x7F);
    return 0x143; /* 0xAD, the soft hyphen */
}

int speci_char_to_byte(int32_t cp)
{
    if (cp < 0x100) return stands_for_itself(cp) ? cp : -1;
    if (cp <= 0x120) return cp - 0x100;
    if (cp <= 0x142) return cp - 0x121 + 0x7F;
    return cp == 0x143 ? 0xAD : -1;
}
