/* support_paths.c - see support_paths.h. */
#include "tests/support_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/engine/engine.h"

enum { MAX_NODE = 256, MAX_SEQ = 8, MAX_PROMPT = 70, N_LEAF = 3, N_CTX = 240 };

/* Llama with grouped heads, a sliding window, parallel layers; soft caps; Mamba-1; Mamba-2; both hybrids; short convolutions; two with
 * the other form of scans. */
static const struct {
    const char *name;
    spec_scan_form scan;
} models[] = {
    { "llama3", SPEC_SCAN_CHUNKED }, { "mistral", SPEC_SCAN_CHUNKED },        { "gpt_neox", SPEC_SCAN_CHUNKED },
    { "qwen3", SPEC_SCAN_CHUNKED },  { "mamba", SPEC_SCAN_CHUNKED },          { "mamba2", SPEC_SCAN_CHUNKED },
    { "bamba", SPEC_SCAN_CHUNKED },  { "mambainllama", SPEC_SCAN_CHUNKED },   { "mamba2-ssd-cfg", SPEC_SCAN_CHUNKED },
    { "lfm2", SPEC_SCAN_CHUNKED },   { "bamba", SPEC_SCAN_RECURRENT },        { "mamba2", SPEC_SCAN_RECURRENT },
    { "gemma2", SPEC_SCAN_CHUNKED },
};

/* ------------------------------------------------------------------------------------- worlds --- */

/* A trie of continuations: node 0 is the prompt's last token. hash: of the logits after plain steps along the path. */
typedef struct world {
    int32_t prompt[MAX_PROMPT], n_prompt;
    int32_t n, cap;
    int32_t *token, *parent, *depth, *height; /* height 0: a leaf */
    int32_t *child, *sibling;                 /* first child, next sibling; -1 */
    uint64_t *hash;
} world;

typedef struct paths {
    const paths_size *size;
    paths_counts *counts;
    uint64_t random;
    int32_t n_seq, n_node; /* of the session at hand */
    int32_t n_vocab;
    float *row;
} paths;

static int32_t below(paths *p, int32_t n) { return (int32_t)(support_random(&p->random) % (uint32_t)n); }

/* FNV-1a over words */
static uint64_t hash_row(const float *row, int32_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        h = (h ^ bits) * 0x100000001B3u;
    }
    return h;
}

static int32_t find_child(const world *w, int32_t node, int32_t token)
{
    int32_t c = w->child[node];
    while (c >= 0 && w->token[c] != token) c = w->sibling[c];
    return c;
}

static int32_t add_node(world *w, int32_t parent, int32_t token)
{
    const int32_t i = w->n++;
    assert_true(i < w->cap);
    w->token[i] = token, w->parent[i] = parent, w->child[i] = -1, w->sibling[i] = -1;
    w->depth[i] = parent < 0 ? 0 : w->depth[parent] + 1;
    if (parent < 0) return i;
    w->sibling[i] = w->child[parent];
    w->child[parent] = i;
    for (int32_t x = parent, h = 1; x >= 0 && w->height[x] < h; x = w->parent[x], h++) w->height[x] = h;
    return i;
}

static int32_t new_child(paths *p, world *w, int32_t parent)
{
    int32_t token;
    do token = below(p, p->n_vocab);
    while (find_child(w, parent, token) >= 0);
    return add_node(w, parent, token);
}

/* The pending token scored alone. */
static uint64_t plain_hash(paths *p, spec_session *s, int32_t seq)
{
    const int32_t root = -1;
    const engine_seq *q = &s->seqs[seq];
    const spec_tree tree = { .n = 1, .cap = 1, .token = &q->ids[q->n_ids - 1], .parent = (int32_t *)(uintptr_t)&root };
    const spec_tree *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    OK(spec_node_logits(s, p->row, seq, 0));
    return hash_row(p->row, p->n_vocab);
}

/* Plain steps from the prompt along path [n] of the trie. New nodes get leaves for siblings: another pending token
 * at the same place is one step more. */
static void walk_path(paths *p, world *w, spec_session *s, const int32_t *path, int32_t n, int32_t n_known)
{
    const int32_t root = 0;
    int32_t seq;
    OK(spec_sequence_add(s, &seq, w->prompt, (size_t)w->n_prompt, NULL));
    for (int32_t i = 0; i < n; i++) {
        engine_seq *q = &s->seqs[seq];
        for (int32_t k = 0; k < N_LEAF && i >= n_known && i > 0; k++) {
            const int32_t leaf = new_child(p, w, path[i - 1]);
            q->ids[q->n_ids - 1] = w->token[leaf];
            w->hash[leaf] = plain_hash(p, s, seq);
        }
        q->ids[q->n_ids - 1] = w->token[path[i]];
        w->hash[path[i]] = plain_hash(p, s, seq);
        if (i + 1 < n) OK(spec_commit(s, seq, &root, 1, w->token[path[i + 1]]));
    }
    OK(spec_sequence_remove(s, seq));
}

static void make_world(paths *p, world *w, spec_session *s, int32_t n_prompt)
{
    const int32_t depth = p->size->depth;
    w->cap = 1 + p->size->n_walk * depth * (1 + N_LEAF);
    int32_t **arrays[] = { &w->token, &w->parent, &w->depth, &w->height, &w->child, &w->sibling };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = calloc((size_t)w->cap, sizeof(int32_t));
    w->hash = calloc((size_t)w->cap, sizeof *w->hash);
    int32_t *path = calloc((size_t)depth + 1, sizeof *path);
    w->n_prompt = n_prompt;
    for (int32_t i = 0; i < n_prompt; i++) w->prompt[i] = below(p, p->n_vocab);
    add_node(w, -1, w->prompt[n_prompt - 1]);
    for (int32_t k = 0; k < p->size->n_walk; k++) {
        int32_t from = k % 4 == 0 ? 0 : below(p, w->n), n = w->depth[from] + 1; /* some more at the root */
        const int32_t n_known = k == 0 ? 0 : n;
        for (int32_t x = from, i = n; x >= 0; x = w->parent[x]) path[--i] = x;
        while (n <= depth) path[n] = new_child(p, w, path[n - 1]), n++;
        walk_path(p, w, s, path, n, n_known);
    }
    free(path);
}

static void free_world(world *w)
{
    int32_t *arrays[] = { w->token, w->parent, w->depth, w->height, w->child, w->sibling };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(w->hash);
}

/* -------------------------------------------------------------------------------------- trees --- */

typedef struct drawn {
    int32_t token[MAX_NODE], parent[MAX_NODE], at[MAX_NODE], depth[MAX_NODE]; /* at: in the trie */
    spec_tree tree;
} drawn;

typedef enum shape { SHAPE_ANY, SHAPE_DEEP, SHAPE_WIDE, SHAPE_CHAIN, SHAPE_STAR, SHAPE_BINARY, SHAPE_N } shape;

static int32_t draw_parent(paths *p, shape how, int32_t n)
{
    switch (how) {
    case SHAPE_DEEP: return below(p, 5) ? n - 1 : below(p, n);
    case SHAPE_WIDE: return below(p, n < 4 ? n : 4);
    case SHAPE_CHAIN: return n - 1;
    case SHAPE_STAR: return 0;
    case SHAPE_BINARY: return (n - 1) / 2;
    default: return below(p, n);
    }
}

/* A child of x in the trie that the tree's node `parent` does not have yet (any, with repeats); -1: none. Deep ones
 * are preferred, for the tree to be able to grow. */
static int32_t draw_child(paths *p, const world *w, const drawn *t, int32_t parent)
{
    int32_t best = -1, n = 0;
    for (int32_t c = w->child[t->at[parent]]; c >= 0; c = w->sibling[c]) {
        bool used = false;
        for (int32_t i = parent + 1; i < t->tree.n && t->tree.kind != SPEC_TREE_SAMPLED_IID && !used; i++)
            used = t->parent[i] == parent && t->at[i] == c;
        if (used) continue;
        n++;
        const bool deep = w->height[c] > 0, was_deep = best >= 0 && w->height[best] > 0;
        if (best < 0 || (deep && !was_deep) || (deep == was_deep && below(p, n) == 0)) best = c;
    }
    return best;
}

static int32_t draw_size(paths *p)
{
    static const int32_t most[] = { 8, 32, 128, MAX_NODE };
    const int32_t m = most[below(p, 4)];
    return below(p, 16) == 0 ? m : 2 + below(p, m - 1);
}

static void draw_tree(paths *p, const world *w, int32_t at, int32_t most, drawn *t)
{
    const int32_t drawn_size = draw_size(p), n = drawn_size < most ? drawn_size : most;
    const shape how = (shape)below(p, SHAPE_N);
    t->tree = (spec_tree){ .n = 1, .cap = MAX_NODE, .token = t->token, .parent = t->parent,
                           .kind = below(p, 4) ? SPEC_TREE_DETERMINISTIC : SPEC_TREE_SAMPLED_IID };
    t->token[0] = w->token[at], t->parent[0] = -1, t->at[0] = at, t->depth[0] = 0;
    for (int32_t miss = 0; t->tree.n < n && miss < 200;) {
        const int32_t i = t->tree.n, parent = miss < 3 ? draw_parent(p, how, i) : below(p, i);
        const int32_t c = t->depth[parent] < SPEC_MAX_DEPTH ? draw_child(p, w, t, parent) : -1;
        if (c < 0) {
            miss++;
            continue;
        }
        t->token[i] = w->token[c], t->parent[i] = parent, t->at[i] = c, t->depth[i] = t->depth[parent] + 1;
        t->tree.n++, miss = 0;
    }
}

/* ------------------------------------------------------------------------------------- a walk --- */

typedef struct reader {
    int32_t seq, at;
    const world *w;
    drawn tree;
} reader;

static void compare(paths *p, const reader *r, int32_t node, const float *row)
{
    p->counts->n_node++;
    p->counts->n_differ += hash_row(row, p->n_vocab) != r->w->hash[r->tree.at[node]];
    if (r->tree.depth[node] > p->counts->deepest) p->counts->deepest = r->tree.depth[node];
}

static void score(paths *p, spec_session *s, reader *const *who, int32_t n)
{
    const spec_tree *trees[MAX_SEQ] = { NULL };
    int32_t seqs[MAX_SEQ] = { 0 };
    for (int32_t i = 0; i < n; i++) trees[i] = &who[i]->tree.tree, seqs[i] = who[i]->seq;
    OK(spec_score(s, seqs, n, trees));
    for (int32_t i = 0; i < n; i++)
        for (int32_t node = 0; node < trees[i]->n; node++) {
            OK(spec_node_logits(s, p->row, seqs[i], node));
            compare(p, who[i], node, p->row);
        }
}

/* The trees fed in up to three passes, as a drafter's net is. */
static void score_parts(paths *p, spec_session *s, reader *const *who, int32_t n)
{
    int32_t fed[MAX_SEQ] = { 0 };
    for (int32_t pass = 0; pass < 3; pass++) {
        speci_exec_input in[MAX_SEQ];
        reader *in_pass[MAX_SEQ];
        const int32_t ld = s->exec->n_logit;
        int32_t end[MAX_SEQ], m = 0;
        for (int32_t i = 0; i < n; i++) {
            drawn *t = &who[i]->tree;
            const int32_t left = t->tree.n - fed[i];
            if (left == 0) continue;
            end[m] = pass == 2 ? t->tree.n : fed[i] + 1 + below(p, left);
            in[m] = (speci_exec_input){ .slot = who[i]->seq, .tree = &t->tree, .n_fed = fed[i] };
            in_pass[m++] = who[i];
            fed[i] = end[m - 1];
        }
        spec_tree part[MAX_SEQ];
        for (int32_t i = 0; i < m; i++) part[i] = *in[i].tree, part[i].n = end[i], in[i].tree = &part[i];
        if (m == 0) break;
        OK(s->exec->kind->forward(s->exec, in, m, NULL, NULL));
        for (int32_t i = 0, row = 0; i < m; i++)
            for (int32_t node = in[i].n_fed; node < end[i]; node++, row++) {
                OK(s->ops->download(s->queue, p->row, s->exec->logits + (size_t)row * (size_t)ld, (size_t)ld * sizeof *p->row));
                OK(s->ops->sync(s->queue));
                compare(p, in_pass[i], node, p->row);
            }
    }
    for (int32_t i = 0; i < n; i++) p->counts->n_part++;
}

/* Advances along a random path, to a pending token with a future; false: there is none. */
static bool advance(paths *p, spec_session *s, reader *r, bool parts)
{
    const drawn *t = &r->tree;
    int32_t path[MAX_NODE], n = 0, next = -1, node = 0;
    for (int32_t i = 0; i < 20 && next < 0; i++) {
        node = below(p, 3) ? below(p, t->tree.n) : t->tree.n - 1;
        for (int32_t c = r->w->child[t->at[node]], m = 0; c >= 0; c = r->w->sibling[c])
            if (r->w->height[c] > 0 && below(p, ++m) == 0) next = c;
    }
    if (next < 0) return false;
    for (int32_t x = node; x >= 0; x = t->parent[x]) n++;
    for (int32_t x = node, i = n; x >= 0; x = t->parent[x]) path[--i] = x;
    if (parts) { /* the net's own commit: what spec_commit does */
        engine_seq *q = &s->seqs[r->seq];
        for (int32_t i = 1; i < n; i++) q->ids[q->n_ids++] = t->token[path[i]];
        q->ids[q->n_ids++] = r->w->token[next];
        s->exec->kind->commit(s->exec, r->seq, path, n);
    } else {
        OK(spec_commit(s, r->seq, path, n, r->w->token[next]));
    }
    r->at = next;
    return true;
}

static void begin_reader(paths *p, spec_session *s, reader *r, const world *worlds)
{
    r->w = &worlds[below(p, p->size->n_world)];
    r->at = 0;
    OK(spec_sequence_add(s, &r->seq, r->w->prompt, (size_t)r->w->n_prompt, NULL));
}

static void step(paths *p, spec_session *s, reader *readers, const world *worlds)
{
    reader *who[MAX_SEQ];
    const int32_t n_want = 1 + below(p, p->n_seq), first = below(p, p->n_seq);
    int32_t n = 0;
    for (int32_t i = 0; n < n_want; i++) who[n++] = &readers[(first + i) % p->n_seq];
    for (int32_t again = below(p, 3); again >= 0; again--) { /* scores that lead nowhere, before the one that counts */
        for (int32_t i = 0; i < n; i++) draw_tree(p, who[i]->w, who[i]->at, p->n_node, &who[i]->tree);
        if (again == 0) break;
        score(p, s, who, n);
        if (below(p, 2)) OK(spec_rollback(s, who[0]->seq));
    }
    const bool parts = below(p, 3) == 0;
    if (parts) score_parts(p, s, who, n);
    else score(p, s, who, n);
    p->counts->n_tree += n;
    if (n > p->counts->widest) p->counts->widest = n;
    for (int32_t i = 0; i < n; i++) {
        if (who[i]->tree.tree.n > p->counts->largest) p->counts->largest = who[i]->tree.tree.n;
        if (advance(p, s, who[i], parts)) continue;
        OK(spec_sequence_remove(s, who[i]->seq));
        begin_reader(p, s, who[i], worlds);
    }
}

static spec_session *open_session(const paths *p, spec_model *model, int32_t n_node, int32_t n_seq)
{
    spec_session_params params = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    params.n_node = n_node, params.n_seq = n_seq;
    spec_lab lab = SPEC_LAB_INIT;
    lab.scan = p->size->scan;
    params.n_ctx = N_CTX, params.lab = &lab;
    OK(spec_session_open(&s, model, NULL, &params));
    return s;
}

/* n_tree trees more, in a session of its own. */
static void read_trees(paths *p, spec_model *tested, const world *worlds, int32_t n_tree, int32_t n_seq, int32_t n_node)
{
    reader *readers = calloc((size_t)n_seq, sizeof *readers);
    spec_session *s = open_session(p, tested, n_node, n_seq);
    const int64_t end = p->counts->n_tree + n_tree;
    p->n_seq = n_seq, p->n_node = n_node;
    for (int32_t i = 0; i < n_seq; i++) begin_reader(p, s, &readers[i], worlds);
    while (p->counts->n_tree < end) step(p, s, readers, worlds);
    spec_session_close(s);
    free(readers);
}

void support_paths(paths_counts *counts, spec_model *plain, spec_model *tested, const paths_size *size,
                   uint64_t seed)
{
    static const int32_t prompts[] = { 7, 70, 1, 33, 64 };
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(plain, &info, 1));
    paths p = { .size = size, .counts = counts, .random = seed, .n_vocab = info.n_vocab };
    p.row = calloc((size_t)p.n_vocab, sizeof *p.row);
    world *worlds = calloc((size_t)size->n_world, sizeof *worlds);
    assert_true(size->depth + MAX_PROMPT < N_CTX && size->n_world <= (int32_t)(sizeof prompts / sizeof *prompts));
    *counts = (paths_counts){ 0 };
    spec_session *s = open_session(&p, plain, 1, 1);
    for (int32_t i = 0; i < size->n_world; i++) make_world(&p, &worlds[i], s, prompts[i]);
    spec_session_close(s);
    /* A pass has at most 1024 rows on the CPU. */
    read_trees(&p, tested, worlds, size->n_tree / 2, MAX_SEQ, 120);
    read_trees(&p, tested, worlds, size->n_tree - size->n_tree / 2, 3, MAX_NODE);
    for (int32_t i = 0; i < size->n_world; i++) free_world(&worlds[i]);
    free(worlds);
    free(p.row);
}

/* --------------------------------------------------------------------------------- the program --- */

/* A model in a type. */
typedef struct job {
    const char *model;
    spec_dtype dtype;
    paths_size size;
    uint64_t seed;
    spec_model *open;
    paths_counts counts;
    char name[64];
} job;

enum { N_MODEL = sizeof models / sizeof *models, N_TYPE = SPEC_DTYPE_F16 + 1 };
static job jobs[N_MODEL * N_TYPE];
static int32_t n_job;

static void run_job(void *arg, int32_t i)
{
    job *j = (job *)arg + i;
    support_paths(&j->counts, j->open, j->open, &j->size, j->seed);
}

static int run_jobs(void **state)
{
    (void)state;
    spec_backend *backend = support_backend();
    for (int32_t i = 0; i < n_job; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/golden/%s", SPEC_TEST_DIR, jobs[i].model);
        jobs[i].open = support_model(backend, path, jobs[i].dtype);
    }
    support_share(n_job, run_job, jobs);
    for (int32_t i = 0; i < n_job; i++) spec_model_close(jobs[i].open);
    spec_backend_close(backend);
    return 0;
}

static void check(void **state)
{
    const job *j = *state;
    const paths_counts c = j->counts;
    print_message("  %s: %lld trees of up to %d nodes, %d deep, by up to %d; %lld in parts; "
                  "%lld of %lld nodes differ\n", j->name, (long long)c.n_tree, c.largest, c.deepest, c.widest,
                  (long long)c.n_part, (long long)c.n_differ, (long long)c.n_node);
    assert_int_equal(c.n_differ, 0);
    assert_true(c.n_node > 0 && c.largest > 64 && c.deepest > 8 && c.widest > 4 && c.n_part > 0);
}

/* Is `name` what the environment asks for, if it asks? */
static bool wanted(const char *variable, const char *name)
{
    const char *only = getenv(variable);
    return !only || !*only || strcmp(only, name) == 0;
}

int support_paths_run(const paths_size *size, uint32_t dtypes)
{
    struct CMUnitTest tests[N_MODEL * N_TYPE];
    for (int32_t i = 0; i < N_MODEL * N_TYPE; i++) {
        const spec_dtype dtype = (spec_dtype)(i / N_MODEL);
        const char *model = models[i % N_MODEL].name, *type = spec_dtype_name(dtype);
        if (!(dtypes >> dtype & 1) || !wanted("SPEC_TEST_MODEL", model) || !wanted("SPEC_TEST_DTYPE", type)) continue;
        job *j = &jobs[n_job];
        *j = (job){ .model = model, .dtype = dtype, .size = *size,
                    .seed = 10 * (uint64_t)(i % N_MODEL) + (uint64_t)dtype };
        j->size.scan = models[i % N_MODEL].scan;
        snprintf(j->name, sizeof j->name, "%s, %s%s", model, type, j->size.scan ? ", recurrent" : "");
        tests[n_job++] = (struct CMUnitTest){ j->name, check, NULL, NULL, j };
    }
    return _cmocka_run_group_tests("paths", tests, (size_t)n_job, run_jobs, NULL);
}
