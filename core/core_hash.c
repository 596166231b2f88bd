/* core_hash.c - a 64-bit checksum of a stream of bytes, eight at a time. Each step is a bijection of the state and of
 * the word that goes in, so no change that is confined to one word of eight bytes can go unseen. */
#include "core/core.h"

#include <string.h>

enum { WORD = 8 };

static uint64_t little_endian(const uint8_t *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
           (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

/* The odd factor spreads a bit upwards, the shift brings it down again. */
static uint64_t absorb(uint64_t state, uint64_t word)
{
    state = (state ^ word) * 0x9E3779B97F4A7C15u;
    return state ^ state >> 32;
}

void speci_hash_add(speci_hash *hash, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t held = (size_t)(hash->n % WORD);
    hash->n += n;
    for (; held > 0 && n > 0; n--) {
        hash->held[held++] = *p++;
        if (held < WORD) continue;
        hash->state = absorb(hash->state, little_endian(hash->held));
        held = 0;
    }
    for (; n >= WORD; n -= WORD, p += WORD) hash->state = absorb(hash->state, little_endian(p));
    if (n > 0) memcpy(hash->held + held, p, n);
}

void speci_hash_text(speci_hash *hash, const char *text) { speci_hash_add(hash, text, strlen(text) + 1); }

uint64_t speci_hash_value(const speci_hash *hash)
{
    uint8_t last[WORD] = { 0 };
    memcpy(last, hash->held, (size_t)(hash->n % WORD));
    uint64_t state = absorb(absorb(hash->state, little_endian(last)), hash->n);
    return absorb(state, 0);
}

uint64_t speci_hash_of(const void *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n);
    return speci_hash_value(&h);
}
