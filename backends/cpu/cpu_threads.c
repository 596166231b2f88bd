/* cpu_threads.c - the pool: a job is a count and a function; threads take numbers until none is left.
 *
 * Results do not depend on who takes what, since every task writes its own outputs in its own order.
 * Between jobs a worker first looks for the next one for some microseconds, since the operations of a pass follow each
 * other closely, and then sleeps. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "backends/cpu/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <fenv.h>
#endif

enum { SPINS_WORKER = 4000, SPINS_CALLER = 1000 };

/* Forks that lie between this process and the first one. Counted in the child, so that asking whether a pool's threads
 * are there takes no system call. */
static atomic_uint n_fork;
static pthread_once_t counting = PTHREAD_ONCE_INIT;
static void count_fork(void) { atomic_fetch_add_explicit(&n_fork, 1, memory_order_relaxed); }
static void count_forks(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

struct cpu_pool {
    const spec_host *host;
    unsigned n_fork;        /* forks before it was opened; more of them: the workers are the parent's */
    int32_t n_worker;
    pthread_t *workers;
    atomic_flag used;       /* a caller has the pool */
    atomic_int open;        /* 1 while tasks of the current job may be taken */
    atomic_int inside;      /* workers that may be looking at the job */
    atomic_uint generation; /* grows with every job */
    atomic_int next;        /* the next task */
    atomic_int sleepers;
    atomic_int quit;
    pthread_mutex_t lock;   /* for sleeping only */
    pthread_cond_t wake;
    /* the job; written while open is 0 and inside is 0 */
    int32_t n;
    cpu_task_fn *body;
    void *arg;
};

/* --- rounding and flush modes --- */

#if defined(__x86_64__)
typedef unsigned cpu_modes;
static cpu_modes modes_enter(void)
{
    cpu_modes old = _mm_getcsr();
    _mm_setcsr(0x1f80); /* nearest even, subnormals kept, exceptions masked */
    return old;
}
static void modes_leave(cpu_modes old)
{
    _mm_setcsr(old);
}
#else
typedef fenv_t cpu_modes;
static cpu_modes modes_enter(void)
{
    cpu_modes old;
    fegetenv(&old);
    fesetenv(FE_DFL_ENV);
    return old;
}
static void modes_leave(cpu_modes old)
{
    fesetenv(&old);
}
#endif

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* --- workers --- */

static void take_tasks(cpu_pool *p)
{
    for (;;) {
        int32_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->n) return;
        p->body(p->arg, i);
    }
}

/* Waits for a generation other than `seen`. */
static void await_job(cpu_pool *p, unsigned seen)
{
    for (int i = 0; i < SPINS_WORKER; i++) {
        if (atomic_load(&p->generation) != seen) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker(void *arg)
{
    cpu_pool *p = arg;
    unsigned seen = 0;
    (void)modes_enter();
    for (;;) {
        await_job(p, seen);
        seen = atomic_load(&p->generation);
        if (atomic_load(&p->quit)) return NULL;
        /* `inside` before `open`: the caller clears `open`, then waits for `inside` to be 0, and only then may
         * change the job. */
        atomic_fetch_add(&p->inside, 1);
        if (atomic_load(&p->open)) take_tasks(p);
        atomic_fetch_sub(&p->inside, 1);
    }
}

static void announce(cpu_pool *p)
{
    atomic_fetch_add(&p->generation, 1u);
    if (atomic_load(&p->sleepers) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Threads that cannot be started are done without. Signals stay with the application's threads. */
static void start_workers(cpu_pool *p, int32_t n)
{
    sigset_t all, old;
    sigfillset(&all);
    bool masked = pthread_sigmask(SIG_SETMASK, &all, &old) == 0;
    while (p->n_worker < n && pthread_create(&p->workers[p->n_worker], NULL, worker, p) == 0) p->n_worker++;
    if (masked) pthread_sigmask(SIG_SETMASK, &old, NULL);
}

spec_status speci_cpu_pool_open(cpu_pool **out, const spec_host *host)
{
    cpu_pool *p = host->alloc(host, 1, sizeof *p);
    if (!p) return SPEC_E_NOMEM;
    int32_t n = host->parallel_for ? 0 : host->n_threads - 1;
    p->host = host;
    (void)pthread_once(&counting, count_forks);
    p->n_fork = atomic_load(&n_fork);
    atomic_flag_clear(&p->used);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    if (n > 0) {
        p->workers = host->alloc(host, (size_t)n, sizeof *p->workers);
        if (!p->workers) {
            speci_cpu_pool_close(p);
            return SPEC_E_NOMEM;
        }
        start_workers(p, n);
        if (p->n_worker < n)
            host->log(host, SPEC_LOG_WARN, "cpu: %d of %d threads could be started", p->n_worker + 1, n + 1);
    }
    *out = p;
    return SPEC_OK;
}

static bool has_workers(const cpu_pool *p)
{
    return p->n_worker > 0 && p->n_fork == atomic_load_explicit(&n_fork, memory_order_relaxed);
}

void speci_cpu_pool_close(cpu_pool *p)
{
    if (!p) return;
    if (p->n_fork == atomic_load(&n_fork)) { /* in a forked child the lock may be held, and the condition waited for, for ever */
        atomic_store(&p->quit, 1);
        announce(p);
        for (int32_t i = 0; i < p->n_worker; i++) pthread_join(p->workers[i], NULL);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    p->host->free(p->host, p->workers);
    p->host->free(p->host, p);
}

/* --- callers --- */

static void run_alone(int32_t n, cpu_task_fn *body, void *arg)
{
    cpu_modes old = modes_enter();
    for (int32_t i = 0; i < n; i++) body(arg, i);
    modes_leave(old);
}

typedef struct host_job {
    cpu_task_fn *body;
    void *arg;
} host_job;

static void host_task(void *arg, int32_t i)
{
    const host_job *job = arg;
    cpu_modes old = modes_enter();
    job->body(job->arg, i);
    modes_leave(old);
}

static void run_pool(cpu_pool *p, int32_t n, cpu_task_fn *body, void *arg)
{
    cpu_modes old = modes_enter();
    p->n = n;
    p->body = body;
    p->arg = arg;
    atomic_store(&p->next, 0);
    atomic_store(&p->open, 1);
    announce(p);
    take_tasks(p);
    atomic_store(&p->open, 0);
    for (int spins = 0; atomic_load(&p->inside) != 0; spins++) {
        if (spins < SPINS_CALLER) relax();
        else sched_yield();
    }
    modes_leave(old);
}

void speci_cpu_parallel(cpu_pool *p, int32_t n, cpu_task_fn *body, void *arg)
{
    if (n <= 0) return;
    if (p->host->parallel_for && n > 1) {
        host_job job = { body, arg };
        p->host->parallel_for(p->host, n, host_task, &job);
    } else if (n == 1 || !has_workers(p) || atomic_flag_test_and_set(&p->used)) {
        run_alone(n, body, arg);
    } else {
        run_pool(p, n, body, arg);
        atomic_flag_clear(&p->used);
    }
}
