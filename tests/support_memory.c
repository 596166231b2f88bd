/* support_memory.c - an allocator that fails where it is told to, and counts blocks. */
#include "tests/support_memory.h"

#include <stdlib.h>
#include <string.h>

static void *take(void *user, size_t bytes, size_t align)
{
    support_memory *m = user;
    m->n_call++;
    if (m->fail_at > 0 && (m->onwards ? m->n_call >= m->fail_at : m->n_call == m->fail_at)) return NULL;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!p) return NULL;
    memset(p, 0xA5, bytes);
    m->n_block++;
    return p;
}

static void give(void *user, void *p, size_t bytes)
{
    (void)bytes;
    if (p) ((support_memory *)user)->n_block--;
    free(p);
}

spec_allocator support_allocator(support_memory *m)
{
    return (spec_allocator){ take, give, m };
}
