/* cpu_scratch.c - the scratch memory of tasks: pieces of a queue's, each taken by one task at a time. */
#define _POSIX_C_SOURCE 200809L /* sched_yield */
#include <sched.h>

#include "backends/cpu/cpu.h"

uint8_t *speci_cpu_scratch_take(spec_queue *q)
{
    for (;;) {
        for (int32_t i = 0; i < q->n_slot; i++)
            if (atomic_exchange(&q->slot_taken[i], 1) == 0) return q->scratch + (size_t)i * q->slot_bytes;
        sched_yield(); /* a host's parallel_for may use more threads than it said */
    }
}

void speci_cpu_scratch_give(spec_queue *q, uint8_t *p)
{
    atomic_store(&q->slot_taken[(size_t)(p - q->scratch) / q->slot_bytes], 0);
}
