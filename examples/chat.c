/* chat.c - a conversation in one living sequence: each line of stdin is a turn, behind all turns and answers before it. The
 * model reads the tokens of a turn once, and never reads the conversation again.
 *
 *     chat models/demo-target models/demo-drafter
 */
#include <spec.h>
#include <stdio.h>
#include <string.h>

static int on_text(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)user_data, (void)ids, (void)n_ids;
    fwrite(text, 1, n_text, stdout);
    return fflush(stdout); /* 0: go on */
}

/* The first turn admits the sequence (with the model's BOS, if it has one); the others are appended to it. */
static spec_status answer(spec_session *session, int32_t *seq, spec_result *result, const char *turn, const spec_request *request)
{
    if (*seq >= 0) return spec_generate_more(session, result, *seq, turn, strlen(turn), request);
    const int32_t *ids;
    size_t n = 0;
    spec_status status = spec_sequence_add_text(session, seq, turn, strlen(turn), request);
    if (status == SPEC_OK) status = spec_sequence_ids(session, &ids, &n, *seq);
    if (status == SPEC_OK) status = spec_generate_more(session, result, *seq, "", 0, request);
    result->n_prompt = (int32_t)n;
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: %s TARGET DRAFTER\n", argv[0]), 2;
    spec_backend *backend = NULL;
    spec_model *target = NULL, *small = NULL;
    spec_drafter *drafter = NULL;
    spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result result = SPEC_RESULT_INIT;
    char turn[4096]; /* what is longer is two turns */
    int32_t seq = -1;
    request.n_predict = 64, request.on_text = on_text;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_model_open(&small, backend, argv[2], NULL);
    if (status == SPEC_OK) status = spec_drafter_from_model(&drafter, small, NULL);
    if (status == SPEC_OK) status = spec_session_open(&session, target, drafter, NULL);
    while (status == SPEC_OK && fgets(turn, sizeof turn, stdin)) {
        turn[strcspn(turn, "\n")] = 0;
        status = answer(session, &seq, &result, turn, &request);
        printf("\n");
        fprintf(stderr, "[%d tokens read, %zu said in %d steps]\n", (int)result.n_prompt, result.n_ids, (int)result.n_step);
        spec_result_free(&result);
    }
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_session_close(session), spec_drafter_close(drafter);
    spec_model_close(small), spec_model_close(target), spec_backend_close(backend);
    return status != SPEC_OK;
}
