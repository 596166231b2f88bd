/* core_gguf_write.c - see core_gguf_write.h. Numbers are put as they lie in memory, which is little-endian. */
#include "core/core_gguf_write.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

enum { VERSION = 3 };

void speci_gguf_head_begin(speci_gguf_head *h, const spec_allocator *a)
{
    *h = (speci_gguf_head){ .pairs = { .a = a }, .tensors = { .a = a } };
}

void speci_gguf_head_free(speci_gguf_head *h)
{
    speci_buf_free(&h->pairs);
    speci_buf_free(&h->tensors);
}

static spec_status put_u32(speci_buf *b, uint32_t x) { return speci_buf_add(b, &x, sizeof x); }
static spec_status put_u64(speci_buf *b, uint64_t x) { return speci_buf_add(b, &x, sizeof x); }

static spec_status put_string(speci_buf *b, const char *s, size_t n)
{
    SPEC_TRY(put_u64(b, n));
    return speci_buf_add(b, s, n);
}

static spec_status begin_pair(speci_gguf_head *h, const char *key, speci_gguf_kind kind)
{
    h->n_pair++;
    SPEC_TRY(put_string(&h->pairs, key, strlen(key)));
    return put_u32(&h->pairs, (uint32_t)kind);
}

spec_status speci_gguf_put_text(speci_gguf_head *h, const char *key, const char *s, size_t n)
{
    SPEC_TRY(begin_pair(h, key, SPECI_GGUF_STRING));
    return put_string(&h->pairs, s, n);
}

spec_status speci_gguf_put_whole(speci_gguf_head *h, const char *key, uint32_t value)
{
    SPEC_TRY(begin_pair(h, key, SPECI_GGUF_U32));
    return put_u32(&h->pairs, value);
}

spec_status speci_gguf_put_real(speci_gguf_head *h, const char *key, float value)
{
    SPEC_TRY(begin_pair(h, key, SPECI_GGUF_F32));
    return speci_buf_add(&h->pairs, &value, sizeof value);
}

spec_status speci_gguf_put_flag(speci_gguf_head *h, const char *key, bool value)
{
    const uint8_t byte = value;
    SPEC_TRY(begin_pair(h, key, SPECI_GGUF_BOOL));
    return speci_buf_add(&h->pairs, &byte, 1);
}

spec_status speci_gguf_put_array(speci_gguf_head *h, const char *key, speci_gguf_kind kind, uint64_t n)
{
    SPEC_TRY(begin_pair(h, key, SPECI_GGUF_ARRAY));
    SPEC_TRY(put_u32(&h->pairs, (uint32_t)kind));
    return put_u64(&h->pairs, n);
}

spec_status speci_gguf_put_element(speci_gguf_head *h, const void *value, size_t bytes) { return speci_buf_add(&h->pairs, value, bytes); }
spec_status speci_gguf_put_string(speci_gguf_head *h, const char *s, size_t n) { return put_string(&h->pairs, s, n); }

spec_status speci_gguf_put_pair(speci_gguf_head *h, const speci_gguf_pair *pair)
{
    const speci_gguf_value *v = &pair->value;
    if (v->is_array) SPEC_TRY(speci_gguf_put_array(h, pair->key, v->type, v->n));
    else SPEC_TRY(begin_pair(h, pair->key, v->type));
    return speci_buf_add(&h->pairs, v->data, speci_gguf_bytes(v));
}

/* --- tensors --- */

static uint64_t padding(uint64_t n) { return (SPECI_GGUF_ALIGNMENT - n % SPECI_GGUF_ALIGNMENT) % SPECI_GGUF_ALIGNMENT; }

spec_status speci_gguf_put_tensor(speci_gguf_head *h, const char *name, int32_t n_dim, const int64_t *dim, uint32_t type, uint64_t bytes)
{
    speci_buf *b = &h->tensors;
    SPEC_TRY(put_string(b, name, strlen(name)));
    SPEC_TRY(put_u32(b, (uint32_t)n_dim));
    for (int32_t i = n_dim; i-- > 0;) SPEC_TRY(put_u64(b, (uint64_t)dim[i]));
    SPEC_TRY(put_u32(b, type));
    SPEC_TRY(put_u64(b, h->offset));
    h->n_tensor++;
    h->offset += bytes + padding(bytes);
    return SPEC_OK;
}

static const uint8_t zeros[SPECI_GGUF_ALIGNMENT];

spec_status speci_gguf_write_padding(speci_writer *w, uint64_t n) { return speci_writer_put(w, zeros, (size_t)padding(n)); }

spec_status speci_gguf_head_bytes(const speci_gguf_head *h, speci_buf *out)
{
    SPEC_TRY(speci_buf_add(out, "GGUF", 4));
    SPEC_TRY(put_u32(out, VERSION));
    SPEC_TRY(put_u64(out, h->n_tensor));
    SPEC_TRY(put_u64(out, h->n_pair));
    SPEC_TRY(speci_buf_add(out, h->pairs.data, h->pairs.n));
    SPEC_TRY(speci_buf_add(out, h->tensors.data, h->tensors.n));
    return speci_buf_add(out, zeros, (size_t)padding(out->n));
}

spec_status speci_gguf_head_write(const speci_gguf_head *h, speci_writer *w)
{
    speci_buf head = { .a = h->pairs.a };
    spec_status status = speci_gguf_head_bytes(h, &head);
    if (status == SPEC_OK) status = speci_writer_put(w, head.data, head.n);
    speci_buf_free(&head);
    return status;
}
