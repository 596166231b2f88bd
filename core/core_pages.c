/* core_pages.c - pages of the system, below everything that takes memory. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>

#include "core/core.h"

void *speci_pages_take(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void speci_pages_give(void *p, size_t bytes) { (void)munmap(p, bytes); }
