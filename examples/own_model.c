/* own_model.c - an engine of your own as target, behind callbacks: what followed two bytes in a text follows them again. The
 * library drafts by prompt lookup, and verifies and samples by the engine's logits. Tokens are bytes. */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>

static const char text[] = "the cat sat on the mat, and the rat sat on the cat, and the bat sat on the hat that the rat had. the ";
typedef struct sequence { int32_t last, tree[256]; } sequence; /* its last token; tokens of the tree's nodes */

static spec_status begin(void *user, void **seq)
{
    return (void)user, (*seq = calloc(1, sizeof(sequence))) ? SPEC_OK : spec_fail(SPEC_E_NOMEM, "no memory for a sequence");
}
static void end(void *user, void *seq) { (void)user, free(seq); }
static spec_status prefill(void *user, void *seq, const int32_t *ids, size_t n)
{
    return (void)user, ((sequence *)seq)->last = ids[n - 1], SPEC_OK;
}
static spec_status score(void *user, float *logits, const spec_model_tree *trees, int32_t n)
{
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = trees[k].n_fed; i < trees[k].tree->n; i++, logits += 256) {
            sequence *s = trees[k].seq;
            const int32_t up = trees[k].tree->parent[i], before = up < 0 ? s->last : s->tree[up];
            s->tree[i] = trees[k].tree->token[i];
            for (int32_t c = 0; c < 256; c++) logits[c] = -20;
            for (const char *at = text; at[2]; at++)
                if (at[0] == before && at[1] == s->tree[i]) logits[(int)at[2]] += logits[(int)at[2]] < 0 ? 20 : 1;
        }
    return (void)user, SPEC_OK;
}
static spec_status commit(void *user, void *seq, const int32_t *path, int32_t n)
{
    sequence *s = seq;
    return (void)user, s->last = n > 0 ? s->tree[path[n - 1]] : s->last, SPEC_OK;
}

int main(void)
{
    const int32_t prompt[] = { 't', 'h', 'e', ' ' };
    const spec_model_ops ops = { .struct_size = sizeof ops, .n_vocab = 256, .bos = -1, .begin = begin, .prefill = prefill,
                                 .score = score, .commit = commit, .end = end };
    spec_backend *backend = NULL; spec_model *model = NULL; spec_drafter *drafter = NULL; spec_session *session = NULL;
    spec_request request = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    request.n_predict = 200, request.sampling.temperature = 1, request.sampling.seed = 3;
    spec_status status = spec_backend_open(&backend, "cpu", NULL);
    if (status == SPEC_OK) status = spec_model_from_ops(&model, backend, &ops);
    if (status == SPEC_OK) status = spec_drafter_open(&drafter, "ngram:3,8", NULL);
    if (status == SPEC_OK) status = spec_session_open(&session, model, drafter, NULL);
    if (status == SPEC_OK) status = spec_generate_ids(session, &r, prompt, 4, &request);
    for (size_t i = 0; i < r.n_ids; i++) putchar(r.ids[i]);
    printf("\n%zu tokens in %lld steps. %s\n", r.n_ids, (long long)r.n_step, status == SPEC_OK ? "" : spec_last_error());
    spec_result_free(&r);
    spec_session_close(session), spec_drafter_close(drafter), spec_model_close(model), spec_backend_close(backend);
    return status != SPEC_OK;
}
