/* core_gguf_write.h - what stands before the tensors' bytes of a GGUF file (core_gguf.h), on its way to a file. Internal. */
#ifndef SPEC_CORE_GGUF_WRITE_H
#define SPEC_CORE_GGUF_WRITE_H

#include "core/core_gguf.h"

enum { SPECI_GGUF_ALIGNMENT = 32 }; /* of tensors in what we write, which is the default */

typedef struct speci_gguf_head { /* zero to begin, except the two `a`s (speci_gguf_head_begin) */
    speci_buf pairs, tensors;
    uint64_t n_pair, n_tensor;
    uint64_t offset; /* of the next tensor, from where the data begins */
} speci_gguf_head;

void speci_gguf_head_begin(speci_gguf_head *h, const spec_allocator *a);
void speci_gguf_head_free(speci_gguf_head *h);

/* A pair each. A key that is there already is the caller's mistake: it is not looked for. */
spec_status speci_gguf_put_text(speci_gguf_head *h, const char *key, const char *s, size_t n);
spec_status speci_gguf_put_whole(speci_gguf_head *h, const char *key, uint32_t value);
spec_status speci_gguf_put_real(speci_gguf_head *h, const char *key, float value);
spec_status speci_gguf_put_flag(speci_gguf_head *h, const char *key, bool value);
/* An array: its beginning, and n elements to follow. */
spec_status speci_gguf_put_array(speci_gguf_head *h, const char *key, speci_gguf_kind kind, uint64_t n);
spec_status speci_gguf_put_element(speci_gguf_head *h, const void *value, size_t bytes); /* as it lies in memory */
spec_status speci_gguf_put_string(speci_gguf_head *h, const char *s, size_t n);
/* A pair of another file as it is. */
spec_status speci_gguf_put_pair(speci_gguf_head *h, const speci_gguf_pair *pair);

/* The next tensor, of `bytes` bytes. dim [n_dim], the slowest first. Its data stand in the order of these calls, each padded with zeros
 * to the alignment. */
spec_status speci_gguf_put_tensor(speci_gguf_head *h, const char *name, int32_t n_dim, const int64_t *dim, uint32_t type, uint64_t bytes);

/* Adds all of it, padded to where the data begin. */
spec_status speci_gguf_head_bytes(const speci_gguf_head *h, speci_buf *out);
/* Writes the same. */
spec_status speci_gguf_head_write(const speci_gguf_head *h, speci_writer *w);
/* Zeros behind n bytes of data. */
spec_status speci_gguf_write_padding(speci_writer *w, uint64_t n);

#endif
