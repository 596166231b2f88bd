/* bench_bandwidth.c - how fast threads read memory: each its own part of a block that no cache holds. */
#define _POSIX_C_SOURCE 200809L /* pthread_barrier */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { RUNS = 9 };
static const size_t block_bytes = (size_t)512 << 20;

/* Sixteen loads of 16 bytes in flight: as many as the plainest x86-64 and AArch64 have registers for. */
typedef uint64_t lanes __attribute__((vector_size(64)));

typedef struct reader {
    const lanes *from;
    size_t n;
    pthread_barrier_t *barrier;
    uint64_t sum;
    pthread_t thread;
} reader;

static uint64_t read_all(const lanes *from, size_t n)
{
    lanes a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    for (size_t i = 0; i + 4 <= n; i += 4) a ^= from[i], b ^= from[i + 1], c ^= from[i + 2], d ^= from[i + 3];
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

/* Between two barriers the caller takes the time. The first run brings the pages in. */
static void *read_runs(void *arg)
{
    reader *r = arg;
    for (int run = 0; run < RUNS; run++) {
        pthread_barrier_wait(r->barrier);
        r->sum ^= read_all(r->from, r->n);
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

static double best_run(pthread_barrier_t *barrier)
{
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        pthread_barrier_wait(barrier);
        const double start = speci_now_ms();
        pthread_barrier_wait(barrier);
        const double ms = speci_now_ms() - start;
        if (run > 0 && (best == 0 || ms < best)) best = ms;
    }
    return best;
}

/* Threads that cannot be started would leave the barrier waiting: the program ends. */
static double time_readers(reader *readers, int32_t n, uint64_t *block)
{
    pthread_barrier_t barrier;
    const size_t part = block_bytes / sizeof(lanes) / (size_t)n;
    pthread_barrier_init(&barrier, NULL, (unsigned)n + 1);
    for (int32_t i = 0; i < n; i++) {
        readers[i] = (reader){ .from = (const lanes *)(const void *)block + (size_t)i * part, .n = part,
                               .barrier = &barrier };
        if (pthread_create(&readers[i].thread, NULL, read_runs, &readers[i]) != 0) abort();
    }
    const double ms = best_run(&barrier);
    for (int32_t i = 0; i < n; i++) {
        pthread_join(readers[i].thread, NULL);
        block[0] ^= readers[i].sum; /* the sums are used: the reading is not left out */
    }
    pthread_barrier_destroy(&barrier);
    return ms;
}

spec_status bench_read_bandwidth(double *out, int32_t n_thread)
{
    uint64_t *block = speci_alloc(NULL, 1, block_bytes);
    reader *readers = speci_alloc(NULL, (size_t)n_thread, sizeof *readers);
    if (block && readers) {
        for (size_t i = 0; i < block_bytes / sizeof *block; i += 8) block[i] = i; /* pages of their own */
        *out = (double)block_bytes / (time_readers(readers, n_thread, block) / 1e3);
    }
    const bool ok = block && readers;
    speci_free(NULL, readers);
    speci_free(NULL, block);
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}
