/* two_sessions.c - two threads, each with a session of its own, over one loaded model.
 *
 *     two_sessions models/demo-target models/demo-drafter
 *
 * A backend and its models are shared; a session and its drafter belong to one thread at a time.
 */
#include <pthread.h>
#include <spec.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    spec_model *target, *small;
    const char *prompt;
    spec_result result;
    char error[256]; /* spec_last_error() is per thread, so it is read on the thread that failed */
    spec_status status;
} job;

static void *run(void *arg)
{
    job *j = arg;
    spec_drafter *drafter = NULL;
    spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT;
    request.n_predict = 48;

    j->status = spec_drafter_from_model(&drafter, j->small, NULL);
    if (j->status == SPEC_OK) j->status = spec_session_open(&session, j->target, drafter, NULL);
    if (j->status == SPEC_OK) j->status = spec_generate(session, &j->result, j->prompt, strlen(j->prompt), &request);
    if (j->status != SPEC_OK) snprintf(j->error, sizeof j->error, "%s", spec_last_error());
    spec_session_close(session);
    spec_drafter_close(drafter);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s TARGET DRAFTER\n", argv[0]);
        return 2;
    }
    spec_backend *backend = NULL;
    spec_model *target = NULL, *small = NULL;
    job jobs[2] = { { .prompt = "Once upon a time", .result = SPEC_RESULT_INIT },
                    { .prompt = "The old house stood", .result = SPEC_RESULT_INIT } };
    pthread_t threads[2];
    int failed = 1;

    if (spec_backend_open(&backend, "cpu", NULL) != SPEC_OK ||
        spec_model_open(&target, backend, argv[1], NULL) != SPEC_OK ||
        spec_model_open(&small, backend, argv[2], NULL) != SPEC_OK) {
        fprintf(stderr, "%s\n", spec_last_error());
        goto end;
    }
    int n_started = 0;
    failed = 0;
    for (int i = 0; i < 2; i++) {
        jobs[i].target = target;
        jobs[i].small = small;
        if (pthread_create(&threads[i], NULL, run, &jobs[i]) != 0) break;
        n_started++;
    }
    for (int i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        if (i >= n_started)
            fprintf(stderr, "session %d: no thread\n", i);
        else if (jobs[i].status != SPEC_OK)
            fprintf(stderr, "session %d: %s\n", i, jobs[i].error);
        else
            printf("session %d: %s%s\n", i, jobs[i].prompt, jobs[i].result.text);
        failed |= i >= n_started || jobs[i].status != SPEC_OK;
        spec_result_free(&jobs[i].result);
    }
end:
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return failed;
}
