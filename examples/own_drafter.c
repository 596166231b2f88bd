/* own_drafter.c - a drafter of your own: it remembers what followed each pair of tokens, and proposes that. What it has seen in
 * one text it knows in the next, so the same text takes fewer steps the second time. own_drafter TARGET "Once upon a time" */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PLACE = 1 << 16 };
typedef struct memory { int32_t next[N_PLACE]; } memory; /* what followed a pair of tokens last, plus 1; 0: nothing yet */

static int32_t *place(memory *m, int32_t a, int32_t b)
{
    return &m->next[((uint32_t)a * 2654435761u + (uint32_t)b * 40503u) % N_PLACE];
}

/* Called after each step, whoever drafted: the last n_new of ids [n] are new. */
static void committed(void *user_data, int32_t seq, const int32_t *ids, size_t n, int32_t n_new)
{
    (void)seq;
    for (size_t i = n - (size_t)n_new; i < n; i++)
        if (i >= 2) *place(user_data, ids[i - 2], ids[i - 1]) = ids[i] + 1;
}

/* A chain below node 0, the root, which is the last id. Any tree is allowed, or none: no proposal changes the text. */
static spec_status draft(void *user_data, spec_draft_request *requests, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const spec_draft_request *r = &requests[i];
        int32_t a = r->n_ids > 1 ? r->ids[r->n_ids - 2] : 0, b = r->ids[r->n_ids - 1], node = 0, c;
        for (; node >= 0 && node < r->depth_max && (c = *place(user_data, a, b) - 1) >= 0; a = b, b = c)
            node = spec_tree_add(r->tree, node, c, 0); /* -1: the tree is full */
    }
    return SPEC_OK;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: own_drafter TARGET PROMPT\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL; spec_drafter *drafter = NULL; spec_session *session = NULL;
    spec_drafter_params params = SPEC_DRAFTER_PARAMS_INIT;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result result = SPEC_RESULT_INIT;
    memory *m = calloc(1, sizeof *m);
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .user_data = m, .draft = draft, .committed = committed };
    params.n_draft = 8, request.n_predict = 64;
    spec_status status = m ? spec_backend_open(&backend, "cpu", NULL) : spec_fail(SPEC_E_NOMEM, "no memory");
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_drafter_from_ops(&drafter, &ops, &params);
    if (status == SPEC_OK) status = spec_session_open(&session, target, drafter, NULL);
    for (int i = 0; i < 2 && status == SPEC_OK; i++) {
        status = spec_generate(session, &result, argv[2], strlen(argv[2]), &request);
        if (status == SPEC_OK) printf("%s\n%zu tokens in %lld steps\n", result.text, result.n_ids, (long long)result.n_step);
        spec_result_free(&result);
    }
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_session_close(session), spec_drafter_close(drafter), spec_model_close(target), spec_backend_close(backend), free(m);
    return status != SPEC_OK;
}
