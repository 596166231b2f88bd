/* An application outside the tree: the installed headers, a device, a model, a few tokens. */
#include <spec.h>
#include <spec_backend.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    spec_backend *backend = NULL;
    spec_model *model = NULL;
    spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result result = SPEC_RESULT_INIT;
    const int32_t prompt[] = { 0, 1, 2 };

    request.n_predict = 8;
    request.ignore_eos = 1;
    if (argc != 2) return 2;
    if (strcmp(spec_version(), SPEC_VERSION) != 0) return 3;
    int ok = spec_backend_open(&backend, "cpu", NULL) == SPEC_OK &&
             spec_model_open(&model, backend, argv[1], NULL) == SPEC_OK &&
             spec_session_open(&session, model, NULL, NULL) == SPEC_OK &&
             spec_generate_ids(session, &result, prompt, 3, &request) == SPEC_OK && result.n_ids == 8;
    if (ok)
        printf("spec %s generated %zu tokens on %s\n", spec_version(), result.n_ids, spec_backend_name(backend));
    else
        fprintf(stderr, "failed: %s\n", spec_last_error());
    spec_result_free(&result);
    spec_session_close(session);
    spec_model_close(model);
    spec_backend_close(backend);
    return ok ? 0 : 1;
}
