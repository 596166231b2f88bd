/* bench_bandwidth.c - how fast memory is read: by threads on the host, by an operation that only reads on a device.
 *
 * The best of several runs over a block that no cache holds: it is a bound, and others use the machine too. */
#define _GNU_SOURCE /* madvise; pthread_barrier */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/bench/bench.h"

/* --- the host --- */

/* One stream of addresses does not fill a core's queue of misses: the hardware runs ahead within a page only. Eight
 * streams, each told a KiB ahead, read twice as fast on the Xeon of docs/performance.md. */
enum { HOST_RUNS = 17, STREAMS = 8, AHEAD = 16 /* lines */, HUGE_PAGE = 2 << 20 };
static const size_t host_bytes = (size_t)1 << 30; /* caches of 260 MiB exist */

typedef uint64_t line __attribute__((vector_size(64)));

typedef struct reader {
    const line *from;
    size_t n; /* lines of a stream */
    pthread_barrier_t *barrier;
    uint64_t sum;
    pthread_t thread;
} reader;

/* What lies behind the block may be prefetched: that touches nothing. */
static uint64_t read_all(const line *from, size_t n)
{
    line a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    for (size_t i = 0; i + 4 <= n; i += 4) {
        for (size_t s = 0; s < STREAMS; s++) {
            const line *p = from + s * n + i;
            for (size_t k = 0; k < 4; k++) __builtin_prefetch(p + AHEAD + k);
            a ^= p[0], b ^= p[1], c ^= p[2], d ^= p[3];
        }
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

/* Between two barriers the caller takes the time. The first run brings the pages in. */
static void *read_runs(void *arg)
{
    reader *r = arg;
    for (int run = 0; run < HOST_RUNS; run++) {
        pthread_barrier_wait(r->barrier);
        r->sum ^= read_all(r->from, r->n);
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

static double best_run(pthread_barrier_t *barrier)
{
    double best = INFINITY;
    for (int run = 0; run < HOST_RUNS; run++) {
        pthread_barrier_wait(barrier);
        const double start = speci_now_ms();
        pthread_barrier_wait(barrier);
        const double ms = speci_now_ms() - start;
        if (run > 0 && ms < best) best = ms;
    }
    return best;
}

/* Bytes per second. Threads that cannot be started would leave the barrier waiting: the program ends. */
static double time_readers(reader *readers, int32_t n, uint64_t *block)
{
    pthread_barrier_t barrier;
    const size_t stream = host_bytes / sizeof(line) / (size_t)n / STREAMS / 4 * 4;
    pthread_barrier_init(&barrier, NULL, (unsigned)n + 1);
    for (int32_t i = 0; i < n; i++) {
        readers[i] = (reader){ .from = (const line *)(const void *)block + (size_t)i * STREAMS * stream, .n = stream,
                               .barrier = &barrier };
        if (pthread_create(&readers[i].thread, NULL, read_runs, &readers[i]) != 0) abort();
    }
    const double ms = best_run(&barrier);
    for (int32_t i = 0; i < n; i++) {
        pthread_join(readers[i].thread, NULL);
        block[0] ^= readers[i].sum; /* the sums are used: the reading is not left out */
    }
    pthread_barrier_destroy(&barrier);
    return (double)n * STREAMS * (double)stream * sizeof(line) / (ms / 1e3);
}

static spec_status host_bandwidth(double *out, int32_t n_thread)
{
    char *memory = speci_alloc(NULL, 1, host_bytes + HUGE_PAGE);
    reader *readers = speci_alloc(NULL, (size_t)n_thread, sizeof *readers);
    if (memory && readers) {
        const size_t up = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
        uint64_t *block = (uint64_t *)(void *)(memory + up);
        (void)madvise(block, host_bytes, MADV_HUGEPAGE); /* where it is refused, small pages do */
        for (size_t i = 0; i < host_bytes / sizeof *block; i += 8) block[i] = i; /* pages of their own */
        *out = time_readers(readers, n_thread, block);
    }
    const bool ok = memory && readers;
    speci_free(NULL, readers);
    speci_free(NULL, memory);
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}

/* --- a device --- */

/* The arg-max of long rows reads all of them and writes 4 bytes each. Many rows, so that a device deals them to its
 * processors evenly; calls in a row before a look, so that what a look costs (some 10 us) is nothing beside half a
 * millisecond a call. */
enum { ROWS = 512, DEVICE_RUNS = 6, CALLS = 8 };
static const size_t device_bytes = (size_t)2 << 30;

static spec_status device_runs(double *out, const spec_backend_ops *ops, spec_queue *q, const float *block)
{
    const int32_t n = (int32_t)(device_bytes / sizeof(float) / ROWS);
    int32_t token[ROWS];
    double best = INFINITY;
    const spec_argmax_args args = { .logits = block, .ld = n, .n_vocab = n, .n_row = ROWS, .host_out_token = token };
    for (int run = 0; run < DEVICE_RUNS; run++) {
        SPEC_TRY(ops->sync(q));
        const double start = speci_now_ms();
        for (int i = 0; i < CALLS; i++) SPEC_TRY(ops->argmax(q, &args));
        SPEC_TRY(ops->sync(q));
        const double ms = (speci_now_ms() - start) / CALLS;
        if (run > 0 && ms < best) best = ms;
    }
    *out = (double)device_bytes / (best / 1e3);
    return SPEC_OK;
}

static spec_status device_bandwidth(double *out, const spec_backend *be)
{
    spec_queue *q = NULL;
    void *block = NULL;
    const spec_plan plan = { .phase = SPEC_PHASE_DECODE, .n_row_max = ROWS, .n_seq_max = 1, .n_node_max = ROWS,
                             .n_kv_max = SPEC_PAGE };
    SPEC_TRY(be->ops->alloc(be->dev, &block, device_bytes));
    spec_status status = be->ops->queue_open(be->dev, &q, &plan, 1, (int32_t)(device_bytes / sizeof(float) / ROWS));
    if (status == SPEC_OK) status = be->ops->zero(q, &(spec_range){ block, device_bytes }, 1);
    if (status == SPEC_OK) status = device_runs(out, be->ops, q, block);
    if (q) be->ops->queue_close(q);
    be->ops->free(be->dev, block, device_bytes);
    return status;
}

spec_status bench_read_bandwidth(double *out, const spec_backend *be, int32_t n_thread)
{
    return be->info.host_visible ? host_bandwidth(out, n_thread) : device_bandwidth(out, be);
}
