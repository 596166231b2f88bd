/* verify_traversal.c - traversal verification (algorithms.md 3.10; Weng et al., arXiv 2505.12398), which is block
 * verification on a chain (3.9; Sun et al., arXiv 2403.10444).
 *
 * A node u has a weight w. Given the path to u, the subtree of u is to emit a share w of what the target would emit there: 1 for the
 * root, min(w R(y) / D(y), 1) for the child y of a node of weight w. Once everything below u was rejected, what is left
 * of w is the probability with which u itself is accepted. No draw decides about a weight, so those of all nodes
 * are found first (spec_backend_ops.accept_tree, or here), and then the nodes draw: of those accepted, the first one counts in
 * the order in which subtrees are rejected, siblings in draw order and children before their parent.
 *
 * Draws about nodes are keyed by the position of the token after the root and a node's number, level by level. A later step
 * begins behind it, so no draw comes twice: by their own positions, nodes that a step did not reach would share
 * draws with those of the next one. */
#include "algorithms/verify/verify.h"

/* What was found of a tree's rows, which are its nodes level by level, siblings in draw order. */
typedef struct tree_rows {
    int32_t n;
    const int32_t *node, *parent; /* [n]; node's numbers begin at first_node, parent's at first_row */
    int32_t first_node, first_row;
    const float *prob;    /* [n] with which the row is accepted once what is below it was not */
    const int32_t *token; /* [n] what follows then; -1: its logits are not numbers */
    int32_t *next;        /* [n] the row at which the path goes on, or -1 */
} tree_rows;

/* A row is on the path if it or anything below it is accepted, and nothing below its earlier siblings is. One without numbers
 * is taken for accepted, so that the walk ends there and says so. */
static void choose(const tree_rows *t, uint64_t seed, uint64_t position)
{
    for (int32_t i = 0; i < t->n; i++) t->next[i] = -1;
    for (int32_t i = t->n - 1; i > 0; i--) /* what is below comes behind, and so do later siblings */
        if (t->next[i] >= 0 || t->token[i] < 0 || spec_uniform(seed, position, SPECI_DRAW_NODE, (uint32_t)i) < t->prob[i])
            t->next[t->parent[i] - t->first_row] = i;
}

/* The draw of what follows a node, as other rules have it: at a leaf plain decoding's. */
static float last_uniform(uint64_t seed, uint64_t position, bool leaf)
{
    return spec_uniform(seed, position, leaf ? SPECI_DRAW_TARGET : SPECI_DRAW_RESIDUAL, 0);
}

typedef struct walker {
    const spec_tree *tree;
    tree_rows rows;
    int32_t at; /* row */
} walker;

static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    walker *w = arg;
    const int32_t next = w->rows.next[w->at];
    (void)node, (void)depth;
    *child = next < 0 ? -1 : w->rows.node[next] - w->rows.first_node;
    *token = next < 0 ? w->rows.token[w->at] : w->tree->token[*child];
    w->at = next;
    return SPEC_OK;
}

/* --- in a session --- */

static void add_rows(speci_verify_batch *b, const speci_verify_item *x, int32_t first_row)
{
    speci_verify_rows *r = &b->rows;
    int32_t *node = r->dst + x->p_row, *parent = r->parent + x->p_row;
    speci_tree_levels(x->tree, node, parent);
    for (int32_t i = 0; i < x->tree->n; i++) {
        const int32_t row = x->p_row + i;
        const uint64_t position = x->position + (uint64_t)speci_tree_depth(x->tree, node[i]);
        const bool leaf = speci_tree_next_child(x->tree, node[i], -1) < 0;
        r->q_row[row] = leaf ? -1 : x->q_row + x->tree->q_row[node[i]];
        r->candidate[row] = x->tree->token[node[i]];
        r->u_last[row] = last_uniform(x->sampling->seed, position, leaf);
        node[i] += x->p_row; /* the distributions of a node are row p_row + node */
        if (i > 0) parent[i] += x->p_row - first_row;
    }
}

static spec_status enqueue(speci_verify_batch *b, const speci_verify_item *items)
{
    const speci_verify_rows *r = &b->rows;
    const int32_t row = items->p_row, ld = b->n_vocab;
    int32_t n = 0;
    for (const speci_verify_item *x = items; x; n += x->tree->n, x = x->next) add_rows(b, x, row);
    return b->ops->accept_tree(b->queue, &(spec_accept_tree_args){
        .p = b->p, .q = b->q, .ld_p = ld, .ld_q = ld, .n_vocab = ld, .n_row = n, .host_p_row = r->dst + row,
        .host_q_row = r->q_row + row, .host_parent = r->parent + row, .host_token = r->candidate + row,
        .host_u_last = r->u_last + row, .host_out_prob = r->prob + row, .host_out_token = r->token + row });
}

static spec_status walk_scored(const speci_verify_batch *b, const speci_verify_item *items)
{
    const speci_verify_rows *r = &b->rows;
    const int32_t first = items->p_row;
    for (const speci_verify_item *x = items; x; x = x->next) {
        const int32_t row = x->p_row;
        walker w = { .tree = x->tree,
                     .rows = { .n = x->tree->n, .node = r->dst + row, .first_node = row, .parent = r->parent + row,
                               .first_row = row - first, .prob = r->prob + row, .token = r->token + row,
                               .next = r->choice + row } };
        choose(&w.rows, x->sampling->seed, x->position);
        SPEC_TRY(speci_verify_walk(decide, &w, x, x->path, x->n_path, x->token));
    }
    return SPEC_OK;
}

static bool fits(const spec_backend_ops *ops) { return ops->accept_tree != NULL; }

const speci_verify_device speci_verify_by_accept_tree = { .needs_probs = true, .fits = fits, .enqueue = enqueue,
                                                          .walk = walk_scored };

/* --- on plain arrays --- */

/* The weight of a candidate y, of whose distributions R and D are left. */
static float enter(float w, float r, float d)
{
    if (!(w * r > 0)) return 0;
    return w * r / d < 1 ? w * r / d : 1;
}

/* The weight of a node of weight w after a candidate's rejection, which left Z. */
static float leave(float w, double z)
{
    if (z > 0) return (float)(z / (z + (1 - (double)w)));
    return w == 1 ? 1.0f : 0.0f;
}

/* Rejects the candidates of row i, which are the rows from `first` on; prob: their weights, and in the end the row's. */
static void reject_candidates(speci_residual *left, const int32_t *node, const int32_t *parent, float *prob, int32_t i,
                              int32_t first)
{
    const spec_tree *t = left->a->tree;
    speci_residual_begin(left, node[i]);
    for (int32_t c = first; c < t->n && parent[c] == i; c++) {
        const float *d = speci_residual_draft(left, node[c]);
        const int32_t y = t->token[node[c]];
        prob[c] = d[y] > 0 ? enter(prob[i], left->r[y], d[y]) : 0;
        if (d[y] == 0 || prob[i] == 0) continue;
        prob[i] = leave(prob[i], speci_residual_reject(left, node[c], d, prob[i]));
    }
}

/* Does what accept_tree does. */
static void find(speci_residual *left, const int32_t *node, const int32_t *parent, float *prob, int32_t *token)
{
    const spec_verify_args *a = left->a;
    prob[0] = 1;
    for (int32_t i = 0, first = 1; i < a->tree->n; i++) {
        const uint64_t position = a->position + (uint64_t)speci_tree_depth(a->tree, node[i]);
        const bool leaf = first == a->tree->n || parent[first] != i;
        reject_candidates(left, node, parent, prob, i, first);
        token[i] = spec_draw(left->r, a->n_vocab, last_uniform(a->seed, position, leaf));
        while (first < a->tree->n && parent[first] == i) first++;
    }
}

spec_status speci_verify_traversal_walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token)
{
    const size_t n = (size_t)a->tree->n;
    speci_residual left;
    SPEC_TRY(speci_residual_open(&left, a, false));
    int32_t *ints = speci_alloc(a->allocator, 4 * n, sizeof *ints);
    float *prob = speci_alloc(a->allocator, n, sizeof *prob);
    spec_status status = ints && prob ? SPEC_OK : SPEC_E_NOMEM;
    if (status == SPEC_OK) {
        int32_t *node = ints, *parent = ints + n, *follows = ints + 2 * n;
        walker w = { .tree = a->tree, .rows = { .n = a->tree->n, .node = node, .parent = parent, .prob = prob,
                                                .token = follows, .next = ints + 3 * n } };
        speci_tree_levels(a->tree, node, parent);
        find(&left, node, parent, prob, follows);
        choose(&w.rows, a->seed, a->position);
        status = speci_verify_walk(decide, &w, NULL, path, n_path, token);
    }
    speci_free(a->allocator, prob);
    speci_free(a->allocator, ints);
    speci_residual_close(&left);
    return status;
}

static const char *objection(spec_tree_kind kind, bool chain)
{
    (void)chain;
    return speci_verify_not_sampled(kind);
}

const speci_verify_rule speci_verify_traversal = {
    .id = SPEC_VERIFY_TRAVERSAL,
    .name = "traversal",
    .help = "traversal verification, which decides about whole paths; for sampled trees",
    .uses_draft_probs = true,
    .auto_kinds = 1u << SPEC_TREE_SAMPLED,
    .deep = true,
    .objection = objection,
    .walk = speci_verify_traversal_walk,
    .device = &speci_verify_by_accept_tree,
};
