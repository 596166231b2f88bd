/* plain_arrays.c - verification on plain arrays, where any rule can be tried. The distributions of target and drafter are fetched
 * from the device. Here the rule is the library's, and has to find what spec_verify finds.
 *
 *     plain_arrays models/demo-target models/demo-drafter "Once upon a time" [BACKEND]
 */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NODE = 22, N_STEP = 16, SEED = 1 }; /* product:3,2,2 has 22 nodes */
typedef struct walk { int32_t path[N_NODE], n, token; } walk; /* accepted nodes, path[0] = 0; the token behind the last of them */

/* p, q [N_NODE][n_vocab]: room for distributions. A row of q is the one that a node's children were drawn from. */
static spec_status step(spec_session *s, int32_t seq, float *p, float *q, size_t n_vocab)
{
    const spec_tree *tree; const int32_t *ids; size_t n_id;
    walk own, theirs;
    spec_status status = spec_draft(s, &tree, &seq, 1);
    if (status == SPEC_OK) status = spec_score(s, &seq, 1, &tree);
    if (status == SPEC_OK) status = spec_sequence_ids(s, &ids, &n_id, seq);
    for (int32_t i = 0; status == SPEC_OK && i < tree->n; i++) {
        const int32_t row = tree->q_row[i]; /* -1: a leaf */
        status = spec_node_probs(s, p + (size_t)i * n_vocab, seq, i);
        if (status == SPEC_OK && row >= 0) status = spec_draft_probs(s, q + (size_t)row * n_vocab, seq, row);
    }
    if (status != SPEC_OK) return status;
    const spec_verify_args args = { .struct_size = sizeof args, .tree = tree, .n_vocab = (int32_t)n_vocab, .p = p, .q = q,
                                    .temperature = 1, .seed = SEED, .position = n_id }; /* of the token behind the root */
    status = spec_verify_probs(own.path, &own.n, &own.token, &args);
    if (status == SPEC_OK) status = spec_verify(s, theirs.path, &theirs.n, &theirs.token, seq, SPEC_VERIFY_AUTO);
    if (status != SPEC_OK) return status;
    printf("%d nodes, %d accepted\n", (int)tree->n, (int)own.n - 1); /* the root is not counted */
    if (own.n != theirs.n || own.token != theirs.token || memcmp(own.path, theirs.path, (size_t)own.n * sizeof *own.path))
        return spec_fail(SPEC_E_STATE, "spec_verify finds another path or token");
    return spec_commit(s, seq, own.path, own.n, own.token);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) return fprintf(stderr, "usage: plain_arrays TARGET DRAFTER PROMPT [BACKEND]\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL, *small = NULL; spec_drafter *drafter = NULL; spec_session *s = NULL;
    const spec_drafter_params params = { .struct_size = sizeof params, .tree = "product:3,2,2" };
    const spec_request request = { .struct_size = sizeof request, .sampling = { .temperature = 1, .seed = SEED }, .ignore_eos = 1 };
    spec_model_info info = SPEC_STRUCT_INIT(spec_model_info);
    int32_t seq;
    float *p = NULL;
    int failed = spec_backend_open(&backend, argc > 4 ? argv[4] : "cpu", NULL) ||
                 spec_model_open(&target, backend, argv[1], NULL) || spec_model_open(&small, backend, argv[2], NULL) ||
                 spec_drafter_from_model(&drafter, small, &params) || spec_session_open(&s, target, drafter, NULL) ||
                 spec_model_get_info(target, &info, 1) || spec_sequence_add_text(s, &seq, argv[3], strlen(argv[3]), &request);
    const size_t n_vocab = (size_t)info.n_vocab;
    if (!failed && !(p = malloc(2 * N_NODE * n_vocab * sizeof *p))) failed = spec_fail(SPEC_E_NOMEM, "no memory") != SPEC_OK;
    for (int i = 0; i < N_STEP && !failed; i++) failed = step(s, seq, p, p + N_NODE * n_vocab, n_vocab) != SPEC_OK;
    if (failed) fprintf(stderr, "%s\n", spec_last_error());
    spec_session_close(s), spec_drafter_close(drafter), spec_model_close(small), spec_model_close(target);
    spec_backend_close(backend), free(p);
    return failed;
}
