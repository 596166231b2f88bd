/* test_process.c - what the library does to the process around it: forked children. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support_decode.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *open_backend(const char *name, int32_t n_threads)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    p.n_threads = n_threads;
    OK(spec_backend_open(&be, name, &p));
    return be;
}

/* --- fork --- */

/* A child has none of its parent's threads. It decodes with what it inherited, and closes it; so does the parent. */
static void forked_child_closes(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 1, 2, 3 };
    int32_t want[8], got[8];
    spec_backend *be = open_backend("cpu", 4);
    spec_model *m = support_model(be, GOLDEN "llama3", SPEC_DTYPE_AUTO);
    support_plain_ids(m, prompt, 3, NULL, 8, want);
    nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL); /* the workers are asleep */
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        support_plain_ids(m, prompt, 3, NULL, 8, got);
        spec_model_close(m);
        spec_backend_close(be);
        _exit(memcmp(got, want, sizeof want) == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the child ended by signal %d (%d: it hung)", WTERMSIG(status), SIGALRM);
    assert_int_equal(WEXITSTATUS(status), 0);
    support_plain_ids(m, prompt, 3, NULL, 8, got);
    assert_memory_equal(got, want, sizeof want);
    spec_model_close(m);
    spec_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(forked_child_closes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
