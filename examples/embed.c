/* embed.c - spec in an application: open a device, load a target and a drafter, stream text.
 *
 *     embed models/demo-target models/demo-drafter "Once upon a time"
 */
#include <spec.h>
#include <stdio.h>
#include <string.h>

static int on_text(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)ids, (void)n_ids;
    fwrite(text, 1, n_text, user_data);
    fflush(user_data);
    return 0; /* anything else stops the generation */
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s TARGET DRAFTER PROMPT\n", argv[0]);
        return 2;
    }
    spec_backend *backend = NULL;
    spec_model *target = NULL, *small = NULL;
    spec_drafter *drafter = NULL;
    spec_session *session = NULL;
    spec_result result = SPEC_RESULT_INIT;
    spec_status status;

    if ((status = spec_backend_open(&backend, "cpu", NULL)) != SPEC_OK) goto end;
    if ((status = spec_model_open(&target, backend, argv[1], NULL)) != SPEC_OK) goto end;
    if ((status = spec_model_open(&small, backend, argv[2], NULL)) != SPEC_OK) goto end;
    if ((status = spec_drafter_from_model(&drafter, small, NULL)) != SPEC_OK) goto end;
    if ((status = spec_session_open(&session, target, drafter, NULL)) != SPEC_OK) goto end;

    spec_request request = SPEC_REQUEST_INIT;
    request.n_predict = 64;
    request.sampling.temperature = 0; /* greedy: exactly what the target alone would say */
    request.on_text = on_text;
    request.text_user_data = stdout;
    status = spec_generate(session, &result, argv[3], strlen(argv[3]), &request);
    if (status == SPEC_OK) printf("\n%zu tokens in %lld steps\n", result.n_ids, (long long)result.n_step);
end:
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_result_free(&result);
    spec_session_close(session);
    spec_drafter_close(drafter);
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return status == SPEC_OK ? 0 : 1;
}
