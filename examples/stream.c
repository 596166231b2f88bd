/* stream.c - text as it comes, and how likely the model finds it. Enter stops it, from another thread, and saves the sequence:
 * the next run goes on from there as if nothing had happened.
 *     stream models/demo-target "Once upon a time" FILE */
#include <pthread.h>
#include <spec.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *wait_for_enter(void *session)
{
    for (char c; read(STDIN_FILENO, &c, 1) == 1;) spec_session_cancel(session); /* the one call that any thread may make */
    return NULL;
}

static int put(void *file, const void *data, size_t n) { return fwrite(data, 1, n, file) != n; }
static int get(void *file, void *data, size_t n) { return fread(data, 1, n, file) != n; }
static int on_text(void *file, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    return (void)ids, (void)n_ids, put(file, text, n_text) || fflush(file); /* 0: go on */
}

static int save(spec_session *session, int32_t seq, const char *path) /* what was saved before stays until this is whole */
{
    char part[4096];
    FILE *file = snprintf(part, sizeof part, "%s.part", path) < (int)sizeof part ? fopen(part, "wb") : NULL;
    const spec_status status = file ? spec_sequence_save(session, seq, put, file) : SPEC_OK;
    const int whole = file && fclose(file) == 0 && status == SPEC_OK && rename(part, path) == 0;
    if (!whole) status != SPEC_OK ? (void)fprintf(stderr, "%s\n", spec_last_error()) : perror(path);
    if (file && !whole) remove(part);
    return whole;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: stream TARGET PROMPT FILE\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL; spec_drafter *drafter = NULL; spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT; spec_result result = SPEC_RESULT_INIT;
    FILE *file = fopen(argv[3], "rb"); pthread_t thread; int32_t seq; double sum = 0;
    request.n_predict = -1, request.logprobs = 1, request.on_text = on_text, request.text_user_data = stdout;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_drafter_open(&drafter, "ngram:3,8", NULL);
    if (status == SPEC_OK) status = spec_session_open(&session, target, drafter, NULL);
    if (status == SPEC_OK && file) status = spec_sequence_restore(session, &seq, get, file);
    if (status == SPEC_OK && !file) status = spec_sequence_add_text(session, &seq, argv[2], strlen(argv[2]), NULL);
    if (file) fclose(file);
    const int listens = status == SPEC_OK && pthread_create(&thread, NULL, wait_for_enter, session) == 0;
    if (status == SPEC_OK) status = spec_generate_more(session, &result, seq, "", 0, &request);
    if (listens) pthread_cancel(thread), pthread_join(thread, NULL);
    for (size_t i = 0; i < result.n_ids; i++) sum += result.logprobs[i].logprob;
    if (status == SPEC_OK || status == SPEC_E_ABORTED)
        fprintf(stderr, "\n[%s, %zu tokens, log-probability %.3f]\n", spec_stop_name(result.stop), result.n_ids, sum);
    else fprintf(stderr, "%s\n", spec_last_error());
    if (status == SPEC_OK) remove(argv[3]); /* the text has ended */
    const int done = status == SPEC_OK || (status == SPEC_E_ABORTED && save(session, seq, argv[3]));
    spec_result_free(&result), spec_session_close(session), spec_drafter_close(drafter), spec_model_close(target);
    spec_backend_close(backend);
    return !done;
}
