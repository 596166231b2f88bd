/* batch.c - eight prompts, each with a request of its own, in one session of N sequences (4). What finds no room comes later.
 * Prompts are read by the steps, a few tokens of them by each (the library says how few it can), so that no text waits for them.
 *     batch models/demo-target [N] */
#include <spec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_JOB = 8, SIZE = sizeof(spec_request) };
typedef struct job { const char *prompt; spec_request request; int32_t seq; int n_token, n_wait; char text[4096]; } job;

/* A step of the jobs at [*n]. Those that have ended are printed and removed, which makes room. */
static spec_status step(spec_session *session, job **at, int32_t *n)
{
    const spec_step_result *r[N_JOB]; int32_t seqs[N_JOB], n_left = 0;
    for (int32_t i = 0; i < *n; i++) seqs[i] = at[i]->seq;
    spec_status status = spec_step(session, r, seqs, *n);
    for (int32_t i = 0; i < *n && status == SPEC_OK; i++) {
        job *j = at[i];
        snprintf(j->text + strlen(j->text), sizeof j->text - strlen(j->text), "%.*s", (int)r[i]->n_text, r[i]->text);
        j->n_token += r[i]->n_tokens, j->n_wait += r[i]->n_tokens == 0; /* none while its prompt is being read, or waits to be */
        if (r[i]->stop == SPEC_STOP_NONE) { at[n_left++] = j; continue; }
        printf("[%s, %d tokens, waited %d steps] %s|%s\n", spec_stop_name(r[i]->stop), j->n_token, j->n_wait, j->prompt, j->text);
        status = spec_sequence_remove(session, j->seq);
    }
    return *n = n_left, status;
}

int main(int argc, char **argv)
{
    if (argc < 2) return fprintf(stderr, "usage: batch TARGET [N]\n"), 2;
    static const char *const sentence[] = { "." }, *const ball = "A red ball, a blue ball, a red ball, a blue ball";
    job *at[N_JOB], jobs[N_JOB] = { /* what is left out is 0: the default */
        { .prompt = "The dog", .request = { SIZE, .n_predict = 30 } },
        { .prompt = "The dog", .request = { SIZE, .n_predict = 30, .ignore_eos = 1 } },
        { .prompt = "The dog", .request = { SIZE, .n_predict = 60, .stop = sentence, .n_stop = 1 } },
        { .prompt = "The old house", .request = { SIZE, .n_predict = 20, .sampling = { .temperature = 1, .seed = 1 } } },
        { .prompt = "The old house", .request = { SIZE, .n_predict = 40, .sampling = { .temperature = 0.7f, .top_k = 20 } } },
        { .prompt = "The old house", .request = { SIZE, .n_predict = 50, .sampling = { .temperature = 1, .min_p = 0.1f, .seed = 3 } } },
        { .prompt = ball, .request = { SIZE, .n_predict = 24 } },
        { .prompt = ball, .request = { SIZE, .n_predict = 24, .repeat_penalty = 1.8f } },
    };
    spec_backend *backend = NULL; spec_model *target = NULL; spec_drafter *drafter = NULL; spec_session *session = NULL;
    spec_session_params params = { sizeof params, .n_seq = argc > 2 ? atoi(argv[2]) : 4, .n_prompt_step = 4 };
    int32_t n = 0, next = 0;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_drafter_open(&drafter, "ngram:3,8", NULL);
    if (status == SPEC_OK) status = spec_session_open(&session, target, drafter, &params);
    while (status == SPEC_OK && (next < N_JOB || n > 0)) {
        job *j = next < N_JOB ? &jobs[next] : NULL;
        if (j) status = spec_sequence_add_text(session, &j->seq, j->prompt, strlen(j->prompt), &j->request);
        if (j && status == SPEC_OK) at[n++] = j, next++;
        if (!j || status == SPEC_E_BUSY) status = step(session, at, &n); /* busy: again behind a step */
    }
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_session_close(session), spec_drafter_close(drafter), spec_model_close(target), spec_backend_close(backend);
    return status != SPEC_OK;
}
