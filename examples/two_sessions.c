/* two_sessions.c - two threads, each with a session of its own, over one loaded model. A backend and its models are shared; a
 * session and its drafter belong to one thread at a time.
 *
 *     two_sessions models/demo-target models/demo-drafter
 */
#include <pthread.h>
#include <spec.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    spec_model *target, *small;
    const char *prompt;
    int failed;
} job;

static void *run(void *arg)
{
    job *j = arg;
    spec_drafter *drafter = NULL;
    spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result result = SPEC_RESULT_INIT;
    request.n_predict = 48;
    spec_status status = spec_drafter_from_model(&drafter, j->small, NULL);
    if (status == SPEC_OK) status = spec_session_open(&session, j->target, drafter, NULL);
    if (status == SPEC_OK) status = spec_generate(session, &result, j->prompt, strlen(j->prompt), &request);
    if (status == SPEC_OK) printf("%s%s\n", j->prompt, result.text);
    else fprintf(stderr, "%s: %s\n", j->prompt, spec_last_error()); /* of this thread: read it where the call failed */
    j->failed = status != SPEC_OK;
    spec_result_free(&result);
    spec_session_close(session);
    spec_drafter_close(drafter);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: %s TARGET DRAFTER\n", argv[0]), 2;
    spec_backend *backend = NULL;
    spec_model *target = NULL, *small = NULL;
    pthread_t threads[2];
    int n_thread = 0;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_model_open(&small, backend, argv[2], NULL);
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());

    job jobs[2] = { { target, small, "Once upon a time", 0 }, { target, small, "The old house stood", 0 } };
    while (status == SPEC_OK && n_thread < 2 && pthread_create(&threads[n_thread], NULL, run, &jobs[n_thread]) == 0) n_thread++;
    for (int i = 0; i < n_thread; i++) pthread_join(threads[i], NULL);
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return n_thread < 2 || jobs[0].failed || jobs[1].failed;
}
