/* core_alloc.c - all host memory of the library: zeroed, 64-byte aligned, through the caller's allocator.
 *
 * An allocator's free wants the size back, callers do not keep it: it lies in a header of one alignment unit
 * before the memory that is handed out.
 *
 * Zeros of a caller's allocator are written. Without one, small blocks come from calloc, and large ones are pages of the system, which
 * takes none before they are used: a KV cache takes what its sequences fill, not what they may grow to. And they go back when they
 * are freed, where a heap may keep them. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, PAGE = 4096 };

#if defined(__SANITIZE_ADDRESS__)
#define LARGE SIZE_MAX /* the sanitizer watches malloc */
#else
#define LARGE ((size_t)1 << 20)
#endif

typedef struct block_header {
    size_t bytes; /* as asked of the allocator, this header included */
    void *start;  /* what the allocator gave */
} block_header;
_Static_assert(sizeof(block_header) <= ALIGN, "the header must fit before the aligned memory");

static void *malloc_alloc(void *user_data, size_t bytes, size_t align)
{
    (void)user_data;
    if (bytes >= LARGE) return align <= PAGE ? speci_pages_take(bytes) : NULL;
    if (align < sizeof(void *)) align = sizeof(void *);
    if (bytes > SIZE_MAX - align) return NULL;
    return aligned_alloc(align, (bytes + align - 1) / align * align); /* C11 wants a multiple */
}

static void malloc_free(void *user_data, void *p, size_t bytes)
{
    (void)user_data;
    if (p && bytes >= LARGE) speci_pages_give(p, bytes);
    else free(p);
}

const spec_allocator speci_malloc = { malloc_alloc, malloc_free, NULL };

/* The block of `bytes` bytes at start + skip + ALIGN; NULL with an error set when there is no start. */
static void *block_at(char *start, size_t skip, size_t bytes)
{
    if (!start) {
        speci_fail(SPEC_E_NOMEM, "out of host memory: %zu bytes could not be had", bytes);
        return NULL;
    }
    *(block_header *)(void *)(start + skip) = (block_header){ bytes + ALIGN, start };
    return start + skip + ALIGN;
}

/* `bytes` bytes, not zeroed. */
static void *block_alloc(const spec_allocator *a, size_t bytes)
{
    if (!a) a = &speci_malloc;
    return block_at(bytes <= SIZE_MAX - 2 * ALIGN ? a->alloc(a->user_data, bytes + ALIGN, ALIGN) : NULL, 0, bytes);
}

/* `bytes` zero bytes from calloc, which aligns by less than we promise. */
static void *calloc_block(size_t bytes)
{
    if (bytes >= LARGE - ALIGN && bytes <= SIZE_MAX - ALIGN) return block_at(speci_pages_take(bytes + ALIGN), 0, bytes);
    char *start = bytes <= SIZE_MAX - 2 * ALIGN ? calloc(1, bytes + 2 * ALIGN) : NULL;
    return block_at(start, (ALIGN - (uintptr_t)start % ALIGN) % ALIGN, bytes);
}

void *speci_alloc(const spec_allocator *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size) {
        speci_fail(SPEC_E_NOMEM, "out of host memory: %zu items of %zu bytes overflow", n, size);
        return NULL;
    }
    if (!a || a->alloc == malloc_alloc) return calloc_block(n * size);
    void *p = block_alloc(a, n * size);
    if (p) memset(p, 0, n * size);
    return p;
}

void speci_free(const spec_allocator *a, void *p)
{
    if (!p) return;
    if (!a) a = &speci_malloc;
    block_header *block = (block_header *)(void *)((char *)p - ALIGN);
    a->free(a->user_data, block->start, block->bytes);
}

char *speci_strdup(const spec_allocator *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = block_alloc(a, n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

spec_status speci_buf_reserve(speci_buf *b, size_t extra)
{
    if (extra <= b->cap - b->n) return SPEC_OK;
    if (extra > SIZE_MAX / 2 - b->n)
        return speci_fail(SPEC_E_NOMEM, "out of host memory: a buffer of %zu + %zu bytes", b->n, extra);
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < b->n + extra) cap += cap; /* doubling: n appends cost O(n) */
    char *data = block_alloc(b->a, cap);
    if (!data) return SPEC_E_NOMEM;
    if (b->n) memcpy(data, b->data, b->n);
    speci_free(b->a, b->data);
    b->data = data;
    b->cap = cap;
    return SPEC_OK;
}

spec_status speci_buf_add(speci_buf *b, const void *data, size_t n)
{
    SPEC_TRY(speci_buf_reserve(b, n));
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
    return SPEC_OK;
}

void speci_buf_free(speci_buf *b)
{
    speci_free(b->a, b->data);
    b->data = NULL;
    b->n = b->cap = 0;
}
