/* count_step.c - a program of count_step.py, linked with a library that was compiled with -finstrument-functions: prints who calls
 * whom in one spec_step, as pairs of addresses, the caller first (0: this program), one a line.
 *
 *     count_step TARGET DRAFTER TREE        a greedy step with TREE of the drafter
 *     count_step TARGET                     a plain one
 *
 * Public calls only. The step is one of many: what only the first ones do (memory, plans, costs) was done before. */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include "tests/support_sequence.h"

enum { N_WARM = 8, MOST = 4096, DEEP = 256 };

typedef struct call {
    void *caller, *function;
} call;
static call calls[MOST];
static void *stack[DEEP]; /* stack[0] is this program */
static int n_call, depth, counts;

/* The compiler calls these round every function of the library; one thread computes. */
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *caller);
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller; /* an address inside of it */
    if (!counts) return;
    void *const from = stack[depth];
    stack[++depth] = function;
    for (int i = 0; i < n_call; i++)
        if (calls[i].function == function && calls[i].caller == from) return;
    if (n_call < MOST) calls[n_call++] = (call){ from, function };
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function, (void)caller;
    if (counts) depth--;
}

static void check(spec_status status)
{
    if (status == SPEC_OK) return;
    fprintf(stderr, "count_step: %s\n", spec_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: %s TARGET [DRAFTER TREE]\n", argv[0]);
        return 2;
    }
    spec_backend_params params = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *backend;
    spec_model *target, *small = NULL;
    spec_drafter *drafter = NULL;
    spec_session *session;
    params.n_threads = 1;
    check(spec_backend_open(&backend, "cpu", &params));
    check(spec_model_open(&target, backend, argv[1], NULL));
    if (argc == 4) {
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        dp.tree = argv[3];
        check(spec_model_open(&small, backend, argv[2], NULL));
        check(spec_drafter_from_model(&drafter, small, &dp));
    }
    check(spec_session_open(&session, target, drafter, NULL));

    const int32_t prompt[] = { 3, 1, 4, 1, 5 };
    spec_sampling greedy = { 0 };
    spec_step_result result;
    int32_t seq;
    check(add_sampled(session, &seq, prompt, sizeof prompt / sizeof *prompt, &greedy));
    for (int i = 0; i < N_WARM; i++) check(step_into(session, &result, &seq, 1));
    counts = 1;
    check(step_into(session, &result, &seq, 1));
    counts = 0;
    for (int i = 0; i < n_call; i++) printf("%#zx %#zx\n", (size_t)calls[i].caller, (size_t)calls[i].function);

    spec_session_close(session);
    spec_drafter_close(drafter);
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return 0;
}
