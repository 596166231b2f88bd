/* support_own.c - see support_own.h.
 *
 * The session inside knows a sequence by a pending token, which the engine's contract does not: there a sequence is tokens, all
 * of which were fed. So the last of them is the pending token inside, and trees hang below it, one node deeper. Only the first
 * tree of a sequence has its own root there: until then the tokens wait, so that all of them are prefilled inside, as a session
 * does that has the model itself. */
#include "tests/support_own.h"

#include <stdlib.h>
#include <string.h>

enum { NODES = 256 };

typedef struct own_text {
    own_engine *e;
    int32_t inner;          /* sequence of the session inside; -1: none yet */
    int32_t *prompt, n_prompt;
    bool root_pends;        /* the pending token inside is the tree's root, and no token of the sequence */
    bool has_tree;
    int32_t n;              /* nodes of the tree, which were scored, */
    int32_t token[NODES], parent[NODES];
    int32_t scored;         /* by this call of spec_score inside: the next one takes the scores of all others */
    int32_t in_token[NODES + 1], in_parent[NODES + 1]; /* the tree inside */
    spec_tree in;
} own_text;

static spec_status count(own_engine *e, own_call call)
{
    e->n_call[call]++;
    if (e->fail_at == 0 || --e->fail_at > 0) return SPEC_OK;
    e->failed = call;
    return e->says_nothing ? e->fail_with : spec_fail(e->fail_with, OWN_SENTENCE);
}

static own_text *new_text(own_engine *e)
{
    own_text *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->e = e, t->inner = -1;
    e->n_alive++;
    return t;
}

static spec_status begin(void *user, void **seq)
{
    SPEC_TRY(count(user, OWN_BEGIN));
    *seq = new_text(user);
    return SPEC_OK;
}

static void end(void *user, void *seq)
{
    own_engine *e = user;
    own_text *t = seq;
    assert_ptr_equal(t->e, e);
    if (t->inner >= 0) OK(spec_sequence_remove(e->inner, t->inner));
    free(t->prompt);
    free(t);
    e->n_alive--;
}

static spec_status prefill(void *user, void *seq, const int32_t *ids, size_t n)
{
    own_engine *e = user;
    own_text *t = seq;
    assert_true(t->e == e && n > 0 && !t->has_tree);
    SPEC_TRY(count(e, OWN_PREFILL));
    if (e->on_prefill) e->on_prefill(e->arg);
    if (t->inner >= 0 && !t->root_pends) return spec_sequence_append(e->inner, t->inner, ids, n, NULL);
    if (t->inner >= 0) SPEC_TRY(spec_sequence_remove(e->inner, t->inner)); /* its root was no token of the sequence */
    t->inner = -1, t->root_pends = false;
    t->prompt = realloc(t->prompt, ((size_t)t->n_prompt + n) * sizeof *ids);
    assert_non_null(t->prompt);
    memcpy(t->prompt + t->n_prompt, ids, n * sizeof *ids);
    t->n_prompt += (int32_t)n;
    return SPEC_OK;
}

/* --- score --- */

static int32_t pending(const own_engine *e, const own_text *t)
{
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(e->inner, &ids, &n, t->inner));
    return ids[n - 1];
}

static spec_status first_tree(own_engine *e, own_text *t, int32_t root)
{
    int32_t *ids = malloc(((size_t)t->n_prompt + 1) * sizeof *ids);
    assert_non_null(ids);
    if (t->n_prompt > 0) memcpy(ids, t->prompt, (size_t)t->n_prompt * sizeof *ids);
    ids[t->n_prompt] = root;
    const spec_status status = spec_sequence_add(e->inner, &t->inner, ids, (size_t)t->n_prompt + 1, NULL);
    t->root_pends = status == SPEC_OK;
    free(ids);
    return status;
}

/* What the library says of the tree. */
static void check_tree(const own_engine *e, const own_text *t, const spec_model_tree *m)
{
    const spec_tree *tree = m->tree;
    assert_true(t->e == e && tree->n > 0 && tree->n < NODES && m->n_fed < tree->n);
    assert_true(tree->kind == SPEC_TREE_UNROLLED && !tree->rank && !tree->prob && !tree->q_row);
    OK(spec_tree_check(tree, NODES, e->n_vocab));
    assert_int_equal(t->has_tree, m->n_fed > 0);
    if (m->n_fed == 0) return;
    assert_int_equal(m->n_fed, t->n);
    assert_memory_equal(tree->token, t->token, (size_t)t->n * sizeof *t->token);
    assert_memory_equal(tree->parent, t->parent, (size_t)t->n * sizeof *t->parent);
}

/* The tree inside. */
static spec_status shift(own_engine *e, own_text *t, const spec_tree *tree)
{
    if (t->inner < 0) SPEC_TRY(first_tree(e, t, tree->token[0]));
    const int32_t d = t->root_pends ? 0 : 1;
    t->in = (spec_tree){ .n = d + tree->n, .cap = NODES + 1, .token = t->in_token, .parent = t->in_parent,
                         .kind = SPEC_TREE_UNROLLED };
    t->in_token[0] = pending(e, t), t->in_parent[0] = -1;
    if (d == 0) assert_int_equal(t->in_token[0], tree->token[0]);
    for (int32_t i = 0; i < tree->n; i++) {
        t->in_token[d + i] = tree->token[i];
        t->in_parent[d + i] = tree->parent[i] + d;
    }
    return SPEC_OK;
}

static void keep(own_text *t, const spec_tree *tree)
{
    t->has_tree = true;
    t->n = tree->n;
    memcpy(t->token, tree->token, (size_t)tree->n * sizeof *t->token);
    memcpy(t->parent, tree->parent, (size_t)tree->n * sizeof *t->parent);
}

static spec_status score_inside(own_engine *e, own_text **texts, int32_t n)
{
    int32_t seqs[16];
    const spec_tree *p[16];
    e->n_score++;
    for (int32_t k = 0; k < n; k++) {
        seqs[k] = texts[k]->inner, p[k] = &texts[k]->in;
        texts[k]->scored = e->n_score;
    }
    return spec_score(e->inner, seqs, n, p);
}

static spec_status score_all(own_engine *e, float *logits, const spec_model_tree *trees, int32_t n)
{
    own_text *texts[16];
    for (int32_t k = 0; k < n; k++) {
        texts[k] = trees[k].seq;
        SPEC_TRY(shift(e, texts[k], trees[k].tree));
    }
    SPEC_TRY(score_inside(e, texts, n));
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = trees[k].n_fed; i < trees[k].tree->n; i++, logits += e->n_vocab)
            SPEC_TRY(spec_node_logits(e->inner, logits, texts[k]->inner, i + texts[k]->in.n - trees[k].tree->n));
    return SPEC_OK;
}

static void spoil(const own_engine *e, float *logits, const spec_model_tree *trees, int32_t n)
{
    int32_t n_row = 0;
    for (int32_t k = 0; k < n; k++) n_row += trees[k].tree->n - trees[k].n_fed;
    float *row = logits + (size_t)(n_row - 1) * (size_t)e->n_vocab;
    for (int32_t i = 0; i < e->n_vocab; i++)
        if (i == 1 || e->spoils_all) row[i] = e->spoil;
}

static spec_status score(void *user, float *logits, const spec_model_tree *trees, int32_t n)
{
    own_engine *e = user;
    assert_in_range(n, 1, 16);
    for (int32_t k = 0; k < n; k++) check_tree(e, trees[k].seq, &trees[k]);
    SPEC_TRY(count(e, OWN_SCORE));
    SPEC_TRY(score_all(e, logits, trees, n));
    if (e->spoils) spoil(e, logits, trees, n);
    for (int32_t k = 0; k < n; k++) {
        keep(trees[k].seq, trees[k].tree);
        e->n_again += trees[k].n_fed > 0;
    }
    if (n > e->most_trees) e->most_trees = n;
    return SPEC_OK;
}

/* --- commit --- */

static void check_path(const own_text *t, const int32_t *path, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(path[i], 0, t->n - 1);
        assert_int_equal(t->parent[path[i]], i > 0 ? path[i - 1] : -1);
    }
}

/* The last token of the path pends inside, the others are committed. */
static spec_status commit_inside(own_engine *e, own_text *t, const int32_t *path, int32_t n)
{
    int32_t way[NODES], n_way = 0;
    if (!t->root_pends) way[n_way++] = 0;
    for (int32_t i = 0; i + 1 < n; i++) way[n_way++] = path[i] + (t->root_pends ? 0 : 1);
    if (n_way == 0) return spec_rollback(e->inner, t->inner);
    if (t->scored != e->n_score) SPEC_TRY(score_inside(e, &t, 1));
    return spec_commit(e->inner, t->inner, way, n_way, t->token[path[n - 1]]);
}

static spec_status commit(void *user, void *seq, const int32_t *path, int32_t n)
{
    own_engine *e = user;
    own_text *t = seq;
    assert_true(t->e == e && t->has_tree && n >= 0);
    check_path(t, path, n);
    SPEC_TRY(count(e, OWN_COMMIT));
    SPEC_TRY(n > 0 ? commit_inside(e, t, path, n) : spec_rollback(e->inner, t->inner));
    if (n > 0) t->root_pends = false;
    t->has_tree = false;
    return SPEC_OK;
}

/* --- fork, save, restore --- */

static void copy_prompt(own_text *to, const int32_t *ids, int32_t n)
{
    to->n_prompt = n;
    if (n == 0) return;
    assert_non_null(to->prompt = malloc((size_t)n * sizeof *ids));
    memcpy(to->prompt, ids, (size_t)n * sizeof *ids);
}

static spec_status fork_text(void *user, void **copy, void *seq)
{
    own_engine *e = user;
    const own_text *t = seq;
    int32_t inner = -1;
    assert_true(t->e == e && !t->has_tree);
    SPEC_TRY(count(e, OWN_FORK));
    if (t->inner >= 0) SPEC_TRY(spec_sequence_fork(e->inner, &inner, t->inner));
    own_text *c = *copy = new_text(e);
    c->inner = inner, c->root_pends = t->root_pends;
    copy_prompt(c, t->prompt, t->n_prompt);
    return SPEC_OK;
}

typedef struct saved_text {
    int32_t has_inner, root_pends, n_prompt;
} saved_text;

static spec_status save(void *user, void *seq, spec_write_fn write, void *data)
{
    own_engine *e = user;
    const own_text *t = seq;
    const saved_text h = { t->inner >= 0, t->root_pends, t->n_prompt };
    assert_true(t->e == e && !t->has_tree);
    SPEC_TRY(count(e, OWN_SAVE));
    if (e->lies > 0 && e->n_call[OWN_SAVE] % 2 == 0 && write(data, "lies", (size_t)e->lies)) return SPEC_E_IO;
    if (write(data, &h, sizeof h) || (h.n_prompt > 0 && write(data, t->prompt, (size_t)h.n_prompt * sizeof *t->prompt)))
        return SPEC_E_IO;
    return h.has_inner ? spec_sequence_save(e->inner, t->inner, write, data) : SPEC_OK;
}

static spec_status restore(void *user, void **seq, spec_read_fn read, void *data)
{
    own_engine *e = user;
    saved_text h;
    int32_t inner = -1, ids[128];
    SPEC_TRY(count(e, OWN_RESTORE));
    if (read(data, &h, sizeof h)) return SPEC_E_IO;
    assert_in_range(h.n_prompt, 0, 128);
    if (h.n_prompt > 0 && read(data, ids, (size_t)h.n_prompt * sizeof *ids)) return SPEC_E_IO;
    if (h.has_inner) SPEC_TRY(spec_sequence_restore(e->inner, &inner, read, data));
    own_text *t = *seq = new_text(e);
    t->inner = inner, t->root_pends = h.root_pends;
    copy_prompt(t, ids, h.n_prompt);
    return SPEC_OK;
}

static void close_engine(void *user) { ((own_engine *)user)->n_close++; }

/* --- the engine --- */

void support_engine_open(own_engine *e, spec_model *model, int32_t n_seq, int32_t n_node)
{
    spec_model_info info = { .struct_size = sizeof info };
    memset(e, 0, sizeof *e);
    OK(spec_model_get_info(model, &info, 1));
    e->n_vocab = info.n_vocab;
    e->inner = support_session(model, n_node + 1, n_seq);
}

void support_engine_close(own_engine *e)
{
    assert_int_equal(e->n_alive, 0);
    spec_session_close(e->inner);
}

spec_model_ops support_engine_ops(own_engine *e)
{
    spec_model_ops ops = SPEC_MODEL_OPS_INIT;
    ops.user_data = e, ops.name = "engine", ops.n_vocab = e->n_vocab, ops.identity = 77;
    ops.begin = begin, ops.prefill = prefill, ops.score = score, ops.commit = commit, ops.end = end;
    ops.fork = fork_text, ops.save = save, ops.restore = restore, ops.close = close_engine;
    return ops;
}

spec_model *support_engine_model(own_engine *e, spec_backend *be)
{
    const spec_model_ops ops = support_engine_ops(e);
    spec_model *m = NULL;
    OK(spec_model_from_ops(&m, be, &ops));
    return m;
}
