/* support_memory.h - an allocator that fails where it is told to, and counts blocks. Of one thread. */
#ifndef TESTS_SUPPORT_MEMORY_H
#define TESTS_SUPPORT_MEMORY_H

#include <stdbool.h>

#include "spec.h"

typedef struct support_memory {
    int64_t n_call;
    int64_t fail_at; /* this call fails, counted from 1; 0: none */
    bool onwards;    /* and all calls behind it */
    int64_t n_block; /* taken, and not given back */
} support_memory;

/* What it gives is full of bytes: nobody may count on zeros. `m` must outlive it. */
spec_allocator support_allocator(support_memory *m);

#endif
