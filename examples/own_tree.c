/* own_tree.c - a builder of your own, which says what trees a model drafts: a node gets another child as long as those before it
 * leave a fifth of the draft distribution. That follows from earlier siblings alone, never from the candidate itself, so siblings
 * stay draws, and text keeps the target's distribution. own_tree models/demo-target models/demo-drafter "Once upon a time" */
#include <spec_trees.h>
#include <stdio.h>
#include <string.h>

enum { N_NODE = 24, N_CHILD = 3 }; /* at most, in a tree and behind a node */

/* How likely the drafter finds the text from the root to x. */
static float path_probability(const spec_tree *tree, int32_t x)
{
    float p = 1;
    for (; x > 0; x = tree->parent[x]) p *= tree->prob[x];
    return p;
}

/* One round: children for the nodes that were fed in the last one, then the nodes to feed next. All that is known of a tree is in
 * the tree, since trees of several sequences grow in turns. The root comes first, and its row of candidates has number 0. */
static spec_status expand(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                          int32_t *n_feed, int32_t n_feed_max)
{
    (void)user_data;
    const int32_t n = tree->n, last_parent = n > 1 ? tree->parent[n - 1] : -1; /* nodes behind it have no children yet */
    for (int32_t x = last_parent + 1; x < n; x++) {
        if (tree->q_row[x] < 0) continue; /* not fed */
        const spec_candidate *c = candidates + (size_t)tree->q_row[x] * (size_t)k;
        float left = 1;
        for (int32_t j = 0; j < k && c[j].token >= 0 && left > 0.2f && tree->n < N_NODE; left -= c[j++].prob)
            (void)spec_tree_add(tree, x, c[j].token, c[j].prob);
    }
    *n_feed = 0;
    for (int32_t x = n; x < tree->n && *n_feed < n_feed_max; x++)
        if (path_probability(tree, x) > 0.05f) feed[(*n_feed)++] = x;
    return SPEC_OK;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: own_tree TARGET DRAFTER PROMPT\n"), 2;
    spec_backend *backend = NULL; spec_model *target = NULL, *small = NULL; spec_drafter *drafter = NULL; spec_session *session = NULL;
    const spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = N_NODE, .n_row = 10, .n_level = 4, .depth = 4, .k = N_CHILD,
                                   .kind = SPEC_TREE_SAMPLED, .expand = expand };
    spec_drafter_params params = SPEC_DRAFTER_PARAMS_INIT;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    request.n_predict = 64, request.sampling.temperature = 0.8f, request.sampling.seed = 1;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_open(&target, backend, argv[1], NULL);
    if (status == SPEC_OK) status = spec_model_open(&small, backend, argv[2], NULL);
    if (status == SPEC_OK) status = spec_builder_from_ops(&params.builder, &ops, NULL);
    if (status == SPEC_OK) status = spec_drafter_from_model(&drafter, small, &params);
    if (status == SPEC_OK) status = spec_session_open(&session, target, drafter, NULL);
    if (status == SPEC_OK) status = spec_generate(session, &r, argv[3], strlen(argv[3]), &request);
    if (status == SPEC_OK) printf("%s\n%zu tokens in %d steps, %d drafts\n", r.text, r.n_ids, (int)r.n_step, (int)r.n_drafted);
    if (status != SPEC_OK) fprintf(stderr, "%s\n", spec_last_error());
    spec_result_free(&r), spec_session_close(session), spec_drafter_close(drafter), spec_builder_close(params.builder);
    spec_model_close(small), spec_model_close(target), spec_backend_close(backend);
    return status != SPEC_OK;
}
