/* support_gguf.c - see support_gguf.h. */
#include "tests/support_gguf.h"

#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/support_file.h"

void gguf_put(gguf_bytes *b, const void *data, size_t n)
{
    while (b->n + n > b->cap) b->data = realloc(b->data, b->cap = b->cap ? 2 * b->cap : 256);
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
}

void gguf_number(gguf_bytes *b, uint64_t x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) gguf_put(b, &(uint8_t){ (uint8_t)(x >> 8 * i) }, 1);
}

void gguf_string(gguf_bytes *b, const char *s, size_t n)
{
    gguf_number(b, n, 8);
    gguf_put(b, s, n);
}

void gguf_pad(gguf_bytes *b, size_t alignment)
{
    while (b->n % alignment) gguf_number(b, 0, 1);
}

void gguf_head(gguf_bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_pair)
{
    gguf_put(b, "GGUF", 4);
    gguf_number(b, version, 4);
    gguf_number(b, n_tensor, 8);
    gguf_number(b, n_pair, 8);
}

static void begin(gguf_bytes *b, const char *key, speci_gguf_kind kind)
{
    gguf_string(b, key, strlen(key));
    gguf_number(b, kind, 4);
}

void gguf_text(gguf_bytes *b, const char *key, const char *value)
{
    begin(b, key, SPECI_GGUF_STRING);
    gguf_string(b, value, strlen(value));
}

void gguf_u32(gguf_bytes *b, const char *key, uint32_t value)
{
    begin(b, key, SPECI_GGUF_U32);
    gguf_number(b, value, 4);
}

void gguf_f32(gguf_bytes *b, const char *key, float value)
{
    begin(b, key, SPECI_GGUF_F32);
    gguf_put(b, &value, sizeof value);
}

void gguf_flag(gguf_bytes *b, const char *key, bool value)
{
    begin(b, key, SPECI_GGUF_BOOL);
    gguf_number(b, value, 1);
}

void gguf_array(gguf_bytes *b, const char *key, speci_gguf_kind kind, uint64_t n)
{
    begin(b, key, SPECI_GGUF_ARRAY);
    gguf_number(b, kind, 4);
    gguf_number(b, n, 8);
}

void gguf_tensor(gguf_bytes *b, const char *name, uint32_t n_dim, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    gguf_string(b, name, strlen(name));
    gguf_number(b, n_dim, 4);
    for (uint32_t i = 0; i < n_dim; i++) gguf_number(b, dims[i], 8);
    gguf_number(b, type, 4);
    gguf_number(b, offset, 8);
}

void gguf_write(gguf_bytes *b, const char *path)
{
    support_write(path, b->data, b->n);
    free(b->data);
    *b = (gguf_bytes){ 0 };
}
