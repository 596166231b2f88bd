/* backend_parallel.c - work of the library itself, on the threads that a backend has. */
#include <limits.h>
#include <stdatomic.h>

#include "backends/backend.h"

typedef struct pieces {
    spec_status (*piece)(void *arg, int32_t i);
    void *arg;
    atomic_int failed; /* the first that failed, so far; INT_MAX for none */
} pieces;

static void do_piece(void *arg, int32_t i)
{
    pieces *p = arg;
    if (p->piece(p->arg, i) == SPEC_OK) return;
    int first = atomic_load(&p->failed);
    while (i < first && !atomic_compare_exchange_weak(&p->failed, &first, i)) { }
}

spec_status speci_parallel(const spec_backend *be, int32_t n, spec_status (*piece)(void *arg, int32_t i), void *arg)
{
    pieces p = { piece, arg, INT_MAX };
    if (be->ops->parallel) be->ops->parallel(be->dev, n, do_piece, &p);
    else if (be->parallel_for) be->parallel_for(be->parallel_user_data, n, do_piece, &p);
    else
        for (int32_t i = 0; i < n; i++) do_piece(&p, i);
    const int failed = atomic_load(&p.failed);
    return failed == INT_MAX ? SPEC_OK : piece(arg, failed); /* an error's text is the thread's that met it */
}
