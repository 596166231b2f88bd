/* own_verifier.c - a rule of acceptance of your own: a token is drawn from the target's distribution behind the root; where a
 * child has it, the walk goes on behind that child. This is SPEC_VERIFY_NAIVE by hand: spec_verify must find the same.
 *
 *     own_verifier models/demo-target models/demo-drafter "Once upon a time"
 */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 1, N_STEP = 24 };
typedef struct walk { int32_t path[256], n, token; } walk; /* accepted nodes, path[0] = 0; the token behind the last of them */

/* p: room for a distribution; n_id: tokens so far. A draw is named by seed, place and purpose: of the library's rules, 1. */
static spec_status verify(walk *w, spec_session *s, int32_t seq, const spec_tree *tree, size_t n_id, float *p, int32_t n_vocab)
{
    spec_status status = SPEC_OK;
    w->n = 0;
    for (int32_t node = 0; node < tree->n && status == SPEC_OK;) {
        const int32_t parent = w->path[w->n++] = node;
        status = spec_node_probs(s, p, seq, parent);
        w->token = spec_draw(p, n_vocab, spec_uniform(SEED, n_id++, 1, 0));
        do node++; /* to the child that has the token, or to the end */
        while (node < tree->n && (tree->parent[node] != parent || tree->token[node] != w->token));
    }
    return status;
}

/* The four calls. *same: has spec_verify found what we have? */
static spec_status step(spec_session *s, int32_t seq, size_t *n_id, float *p, int32_t n_vocab, int *same)
{
    const spec_tree *tree;
    walk own, theirs;
    spec_status status = spec_draft(s, &tree, &seq, 1);
    if (status == SPEC_OK) status = spec_score(s, &seq, 1, &tree);
    if (status == SPEC_OK) status = verify(&own, s, seq, tree, *n_id, p, n_vocab);
    if (status == SPEC_OK) status = spec_verify(s, theirs.path, &theirs.n, &theirs.token, seq, SPEC_VERIFY_NAIVE);
    if (status != SPEC_OK) return status;
    *same = own.n == theirs.n && own.token == theirs.token && !memcmp(own.path, theirs.path, (size_t)own.n * sizeof *own.path);
    *n_id += (size_t)own.n; /* the accepted ones, without the root, and the token */
    return spec_commit(s, seq, own.path, own.n, own.token);
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: own_verifier TARGET DRAFTER PROMPT\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL, *small = NULL; spec_drafter *drafter = NULL; spec_session *s = NULL;
    spec_drafter_params params = SPEC_DRAFTER_PARAMS_INIT;
    spec_request request = SPEC_REQUEST_INIT;
    spec_model_info info = SPEC_STRUCT_INIT(spec_model_info);
    const int32_t *ids;
    int32_t seq, n_step = 0, n_same = 0;
    size_t n_id = 0;
    float *p = NULL;
    params.tree = "product:3,2,1", request.sampling.temperature = 1, request.sampling.seed = SEED, request.ignore_eos = 1;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_model_open(&small, backend, argv[2], NULL);
    if (status == SPEC_OK) status = spec_drafter_from_model(&drafter, small, &params);
    if (status == SPEC_OK) status = spec_session_open(&s, target, drafter, NULL);
    if (status == SPEC_OK) status = spec_model_get_info(target, &info, 1);
    if (status == SPEC_OK && !(p = malloc((size_t)info.n_vocab * sizeof *p))) status = spec_fail(SPEC_E_NOMEM, "no memory");
    if (status == SPEC_OK) status = spec_sequence_add_text(s, &seq, argv[3], strlen(argv[3]), &request);
    if (status == SPEC_OK) status = spec_sequence_ids(s, &ids, &n_id, seq);
    for (int same; status == SPEC_OK && n_step < N_STEP; n_step += status == SPEC_OK)
        if ((status = step(s, seq, &n_id, p, info.n_vocab, &same)) == SPEC_OK) n_same += same;
    if (status == SPEC_OK) printf("%zu tokens, %d steps, in %d of them as spec_verify\n", n_id, (int)n_step, (int)n_same);
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_session_close(s), spec_drafter_close(drafter), spec_model_close(small), spec_model_close(target);
    spec_backend_close(backend), free(p);
    return status != SPEC_OK || n_same < n_step;
}
