/* support_gguf.h - GGUF files made in memory. */
#ifndef SUPPORT_GGUF_H
#define SUPPORT_GGUF_H

#include "core/core_gguf.h"

/* A growing file. Zero to begin; free(data). */
typedef struct gguf_bytes {
    uint8_t *data;
    size_t n, cap;
} gguf_bytes;
void gguf_put(gguf_bytes *b, const void *data, size_t n);
void gguf_number(gguf_bytes *b, uint64_t x, size_t bytes);
void gguf_string(gguf_bytes *b, const char *s, size_t n);
/* Zeros up to a multiple of `alignment`. */
void gguf_pad(gguf_bytes *b, size_t alignment);
/* The file at `path`; the bytes are freed. */
void gguf_write(gguf_bytes *b, const char *path);

/* "GGUF", the version and the counts. */
void gguf_head(gguf_bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_pair);
void gguf_text(gguf_bytes *b, const char *key, const char *value);
void gguf_u32(gguf_bytes *b, const char *key, uint32_t value);
void gguf_f32(gguf_bytes *b, const char *key, float value);
void gguf_flag(gguf_bytes *b, const char *key, bool value);
/* An array's beginning; its elements follow. */
void gguf_array(gguf_bytes *b, const char *key, speci_gguf_kind kind, uint64_t n);
/* dims [n_dim], fastest first. */
void gguf_tensor(gguf_bytes *b, const char *name, uint32_t n_dim, const uint64_t *dims, uint32_t type, uint64_t offset);

#endif
