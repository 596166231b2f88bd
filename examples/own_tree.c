/* own_tree.c - a tree and a verifier of your own, a step at a time through the four calls.
 *
 *     own_tree models/demo-target models/demo-drafter "Once upon a time" [BACKEND]
 *
 * The builder: a node gets another child as long as those before it leave a fifth of the draft distribution. This depends
 * on earlier siblings only, never on the candidate itself, so siblings stay draws and the text keeps the target's
 * distribution.
 * The verifier: the distributions are fetched from the device and verified on plain arrays, where any rule can be tried.
 * Here it is the library's, and must find what spec_verify found.
 */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NODE = 24, N_ROW = 10, N_LEVEL = 4, N_CHILD = 3, N_STEP = 16, MAX_PROMPT = 1024 };

/* --- the builder --- */

static int has_child(const spec_tree *tree, int32_t x)
{
    for (int32_t i = x + 1; i < tree->n; i++)
        if (tree->parent[i] == x) return 1;
    return 0;
}

/* How likely the drafter finds the text from the root to x. */
static float path_probability(const spec_tree *tree, int32_t x)
{
    float p = 1;
    for (; x > 0; x = tree->parent[x]) p *= tree->prob[x];
    return p;
}

/* One round: children for the nodes whose candidates are new, then the nodes to feed next. All that it knows of
 * a tree it reads from the tree: trees of several sequences grow in turns. */
static spec_status expand(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                          int32_t *n_feed, int32_t n_feed_max)
{
    (void)user_data;
    const int32_t n_before = tree->n;
    for (int32_t x = 0; x < n_before; x++) {
        if (tree->q_row[x] < 0 || has_child(tree, x)) continue;
        const spec_candidate *c = candidates + (size_t)tree->q_row[x] * (size_t)k;
        float left = 1;
        for (int32_t j = 0; j < k && c[j].token >= 0 && left > 0.2f && tree->n < N_NODE; j++) {
            (void)spec_tree_add(tree, x, c[j].token, c[j].prob);
            left -= c[j].prob;
        }
    }
    *n_feed = 0;
    for (int32_t x = n_before; x < tree->n && *n_feed < n_feed_max; x++)
        if (path_probability(tree, x) > 0.05f) feed[(*n_feed)++] = x;
    return SPEC_OK;
}

static const spec_builder_ops own_builder = { .struct_size = sizeof own_builder, .n_node = N_NODE, .n_row = N_ROW,
                                              .n_level = N_LEVEL, .depth = N_LEVEL, .k = N_CHILD,
                                              .kind = SPEC_TREE_SAMPLED, .expand = expand };

/* --- the verifier --- */

typedef struct run {
    spec_session *session;
    const spec_tokenizer *tokenizer;
    spec_model_info info;
    spec_sampling sampling;
    int32_t seq;
    float *p, *q; /* [N_NODE][n_vocab], [N_ROW][n_vocab] */
} run;

static spec_status verify(const run *r, const spec_tree *tree, int32_t *path, int32_t *n_path, int32_t *token)
{
    const size_t n_vocab = (size_t)r->info.n_vocab;
    const int32_t *ids;
    size_t n_ids;
    spec_status status = spec_sequence_ids(r->session, &ids, &n_ids, r->seq);
    for (int32_t i = 0; i < tree->n && status == SPEC_OK; i++) {
        status = spec_node_probs(r->session, r->p + (size_t)i * n_vocab, r->seq, i);
        const int32_t row = tree->q_row[i]; /* -1: a leaf */
        if (status == SPEC_OK && row >= 0)
            status = spec_draft_probs(r->session, r->q + (size_t)row * n_vocab, r->seq, row);
    }
    if (status != SPEC_OK) return status;
    const spec_verify_args args = { .struct_size = sizeof args, .tree = tree, .n_vocab = r->info.n_vocab, .p = r->p,
                                    .q = r->q, .temperature = r->sampling.temperature, .seed = r->sampling.seed,
                                    .position = n_ids }; /* the root is token n_ids - 1 */
    return spec_verify_probs(path, n_path, token, &args);
}

/* --- steps --- */

static void print_token(const run *r, int32_t id)
{
    size_t n;
    const char *piece = spec_tokenizer_piece(r->tokenizer, &n, id);
    printf("%.*s", (int)n, piece ? piece : "");
}

static int is_eos(const run *r, int32_t token)
{
    for (int32_t i = 0; i < r->info.n_eos; i++)
        if (r->info.eos[i] == token) return 1;
    return 0;
}

/* *same: did both verifiers find the same? *end: has the text ended? */
static spec_status step(const run *r, int *same, int *end)
{
    const spec_tree *tree;
    int32_t path[N_NODE], own_path[N_NODE], n_path, n_own, token, own_token;
    spec_status status = spec_draft(r->session, &tree, &r->seq, 1);
    if (status == SPEC_OK) status = spec_score(r->session, &r->seq, 1, &tree);
    if (status == SPEC_OK) status = spec_verify(r->session, path, &n_path, &token, r->seq, SPEC_VERIFY_AUTO);
    if (status == SPEC_OK) status = verify(r, tree, own_path, &n_own, &own_token);
    if (status != SPEC_OK) return status;
    *end = is_eos(r, token); /* there spec_verify ends the path; plain arrays know no end of text */
    *same = *end || (own_token == token && n_own == n_path);
    for (int32_t i = 0; i < n_path && !*end && *same; i++) *same = own_path[i] == path[i];
    printf("%2d nodes, %d accepted:", (int)tree->n, (int)n_path - 1);
    for (int32_t i = 1; i < n_path; i++) print_token(r, tree->token[path[i]]);
    printf(" |");
    print_token(r, token);
    printf("%s\n", *same ? "" : "   (the plain arrays say something else)");
    return spec_commit(r->session, r->seq, path, n_path, token);
}

static spec_status take_steps(run *r, const char *prompt, int *n_same, int *n_step)
{
    int32_t ids[MAX_PROMPT];
    size_t n;
    spec_request request = SPEC_REQUEST_INIT;
    request.sampling = r->sampling;
    spec_status status = spec_tokenizer_encode(r->tokenizer, ids, MAX_PROMPT, &n, prompt, strlen(prompt),
                                               SPEC_TOKEN_ADD_SPECIAL);
    if (status == SPEC_OK) status = spec_sequence_add(r->session, &r->seq, ids, n, &request);
    for (int same, end = 0; *n_step < N_STEP && !end && status == SPEC_OK; ++*n_step) {
        status = step(r, &same, &end);
        if (status == SPEC_OK) *n_same += same;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: %s TARGET DRAFTER PROMPT [BACKEND]\n", argv[0]);
        return 2;
    }
    spec_backend *backend = NULL;
    spec_model *target = NULL, *small = NULL;
    spec_builder *builder = NULL;
    spec_drafter *drafter = NULL;
    spec_drafter_params params = SPEC_DRAFTER_PARAMS_INIT;
    run r = { .info = { .struct_size = sizeof r.info }, .sampling = { .temperature = 0.8f, .seed = 1 } };
    int n_same = 0, n_step = 0;
    spec_status status;

    if ((status = spec_backend_open(&backend, argc > 4 ? argv[4] : "cpu", NULL)) != SPEC_OK) goto end;
    if ((status = spec_model_open(&target, backend, argv[1], NULL)) != SPEC_OK) goto end;
    if ((status = spec_model_open(&small, backend, argv[2], NULL)) != SPEC_OK) goto end;
    if ((status = spec_builder_from_ops(&builder, &own_builder, NULL)) != SPEC_OK) goto end;
    params.builder = builder;
    if ((status = spec_drafter_from_model(&drafter, small, &params)) != SPEC_OK) goto end;
    if ((status = spec_session_open(&r.session, target, drafter, NULL)) != SPEC_OK) goto end;
    if ((status = spec_model_get_info(target, &r.info, N_NODE)) != SPEC_OK) goto end;
    r.p = malloc((size_t)(N_NODE + N_ROW) * (size_t)r.info.n_vocab * sizeof *r.p);
    if (!r.p) status = spec_fail(SPEC_E_NOMEM, "no memory for distributions");
    if (status != SPEC_OK) goto end;
    r.q = r.p + (size_t)N_NODE * (size_t)r.info.n_vocab;
    r.tokenizer = spec_model_tokenizer(target);
    status = take_steps(&r, argv[3], &n_same, &n_step);
    if (status == SPEC_OK) printf("%d steps, both verifiers agree in %d\n", n_step, n_same);
end:
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    free(r.p);
    spec_session_close(r.session);
    spec_drafter_close(drafter);
    spec_builder_close(builder);
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return status == SPEC_OK && n_step > 0 && n_same == n_step ? 0 : 1;
}
