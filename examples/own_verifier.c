/* own_verifier.c - a rule of acceptance of your own: a token is drawn from the target's distribution behind the root; where a
 * child has it, the walk goes on behind that child. This is SPEC_VERIFY_NAIVE by hand: drafts do not change the text of a seed.
 *
 *     own_verifier models/demo-target models/demo-drafter "The old house"
 */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NODE = 16, N_STEP = 24, SEED = 1 }; /* product:3,2,1 has 16 nodes */

/* p: room for a distribution. A draw is named by seed, place and purpose: of the library's rules, 1. */
static spec_status step(spec_session *s, int32_t seq, float *p, int32_t n_vocab)
{
    const spec_tree *tree;
    const int32_t *ids;
    size_t n_id;
    int32_t path[N_NODE], n_path = 0, token = 0; /* accepted nodes, path[0] = 0; the token behind the last of them */
    spec_status status = spec_draft(s, &tree, &seq, 1);
    if (status == SPEC_OK) status = spec_score(s, &seq, 1, &tree);
    if (status == SPEC_OK) status = spec_sequence_ids(s, &ids, &n_id, seq);
    for (int32_t node = 0; status == SPEC_OK && node < tree->n;) {
        const int32_t parent = path[n_path++] = node;
        status = spec_node_probs(s, p, seq, parent);
        if (status == SPEC_OK) token = spec_draw(p, n_vocab, spec_uniform(SEED, n_id++, 1, 0));
        do node++; /* to the child that has the token, or to the end */
        while (node < tree->n && (tree->parent[node] != parent || tree->token[node] != token));
    }
    return status == SPEC_OK ? spec_commit(s, seq, path, n_path, token) : status;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: own_verifier TARGET DRAFTER PROMPT\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL, *small = NULL; spec_drafter *drafter = NULL; spec_session *s = NULL;
    const spec_drafter_params params = { .struct_size = sizeof params, .tree = "product:3,2,1" };
    const spec_request request = { .struct_size = sizeof request, .sampling = { .temperature = 1, .seed = SEED }, .ignore_eos = 1 };
    spec_model_info info = SPEC_STRUCT_INIT(spec_model_info);
    int32_t seq;
    const int32_t *ids;
    size_t n_id, n_text;
    char text[4096];
    float *p = NULL;
    int failed = spec_backend_open(&backend, "cpu", NULL) || spec_model_open(&target, backend, argv[1], NULL) ||
                 spec_model_open(&small, backend, argv[2], NULL) || spec_drafter_from_model(&drafter, small, &params) ||
                 spec_session_open(&s, target, drafter, NULL) || spec_model_get_info(target, &info, 1) ||
                 spec_sequence_add_text(s, &seq, argv[3], strlen(argv[3]), &request);
    if (!failed && !(p = malloc((size_t)info.n_vocab * sizeof *p))) failed = spec_fail(SPEC_E_NOMEM, "no memory") != SPEC_OK;
    for (int i = 0; i < N_STEP && !failed; i++) failed = step(s, seq, p, info.n_vocab) != SPEC_OK;
    failed = failed || spec_sequence_ids(s, &ids, &n_id, seq) ||
             spec_tokenizer_decode(spec_model_tokenizer(target), text, sizeof text, &n_text, ids, n_id, 0);
    if (failed) fprintf(stderr, "%s\n", spec_last_error());
    else printf("%.*s\n%zu tokens behind %d steps\n", (int)n_text, text, n_id, N_STEP);
    spec_session_close(s), spec_drafter_close(drafter), spec_model_close(small), spec_model_close(target);
    spec_backend_close(backend), free(p);
    return failed;
}
