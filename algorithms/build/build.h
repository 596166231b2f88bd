/* build.h - builders of draft trees: a kind is one file build_<kind>.c and one row of build_table.c. Internal. */
#ifndef SPEC_BUILD_H
#define SPEC_BUILD_H

#include "algorithms/tree/tree.h"
#include "backends/backend_grow.h"

/* Limits of every builder: nodes of a tree, rows of distributions, places of a frontier; and nodes while growing. */
enum { SPECI_MAX_NODE = 256, SPECI_MAX_POOL = 4096 };
/* Below every slot's value. That can be less than 0: a distribution's sum is 1 within 1e-3, and of draws with
 * replacement k may have probability 1 together many times. */
#define SPECI_NO_THRESHOLD (-1e3)

/* A level of growth as data: what a draw and an expansion (spec_draw_args, spec_expand_args) need to know. So the same
 * rules run on a device that does not wait for the host, and on plain arrays. Growth ends at a level whose n_next is 0
 * (which may come before info.n_level: sequoia's shape changes in `observe`). The distribution of what follows frontier
 * place p of level L is row (sum of n_place of the levels before) + p, whether or not there is a node. */
typedef struct speci_level {
    int32_t n_place;           /* places of the frontier that this level starts from; level 0: 1, the root */
    int32_t k;                 /* candidates per place */
    int32_t *take;             /* [n_place] or NULL; owned by the builder */
    double threshold;          /* SPECI_NO_THRESHOLD: every candidate that exists */
    int32_t n_add;
    int32_t n_next;            /* the next level's n_place; 0 at the last */
    int32_t *next;             /* [n_next] or NULL; owned by the builder */
    double next_threshold;
} speci_level;

typedef struct speci_builder_kind {
    const char *name, *args, *help; /* "beam", "M,N", "M beams, N levels" */
    /* Parses args (what follows the colon, "" if nothing) and fills the builder: sizes, kind, levels. */
    spec_status (*open)(spec_builder *b, const char *args);
    /* NULL, or selects which nodes of the grown pool stay: keep [pool->n], all 1 before. In a sampled tree this must
     * not depend on a node's own token or probability; later siblings of what is dropped go too. */
    void (*keep)(const spec_builder *b, const spec_tree *pool, uint8_t *keep);
    /* NULL, or growth is host-driven, by this callback (spec_builder_ops.expand, with the builder as user_data). */
    spec_status (*expand)(void *builder, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                        int32_t *n_feed, int32_t n_feed_max);
    void (*observe)(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n); /* or NULL */
    void (*costs)(spec_builder *b, const spec_cost_profile *profile);                /* or NULL */
} speci_builder_kind;
extern const speci_builder_kind *const speci_build_table[]; /* ends with NULL */

struct spec_builder {
    const speci_builder_kind *kind;
    spec_allocator memory;    /* a copy of the caller's */
    const spec_allocator *allocator; /* &memory */
    char *text;
    spec_builder_info info;   /* what the finished tree needs; info.kind: at a temperature above 0 */
    int32_t n_pool;           /* nodes while growing, root included: >= info.n_node; 0 while opening = info.n_node */
    int32_t k;                /* most candidates per node */
    bool host_driven;         /* it grows by `expand`, and not by levels */
    bool known_shape;         /* it grows a shape that is known before anything is drawn, wherever distributions have candidates
                                 enough. `observe` and `costs` may change the shape, but not that it is known */
    speci_level *levels;       /* [info.n_level] or NULL */
    int32_t *places;          /* where the levels' take and next lie: [2 * info.n_node], or NULL */
    spec_builder_ops ops;     /* a caller's own builder: ops.expand */
    void *own;                /* a kind's own numbers, freed with speci_free */
    spec_tree pool;           /* [n_pool] scratch: a grown tree */
    uint8_t *keep;            /* [n_pool] scratch */
    int32_t *map;             /* [n_pool] scratch */
};
/* A tree that grows is of the builder's info.kind where sampling is wanted, else deterministic. By kind: how its candidates are drawn. */
extern const spec_draw_how speci_builder_how[SPEC_TREE_UNROLLED];
/* Stream of the draws after `node`: from its slot, the ranks on its path. tree->rank must be there. */
uint64_t speci_builder_key(const spec_tree *tree, int32_t node, uint64_t seed, uint64_t step);
/* The known shape of a builder that has one, up to depth_max below the root of t, which is there; its tokens are -1. */
void speci_builder_known_shape(const spec_builder *b, int32_t depth_max, spec_tree *t);
/* For host-driven builders. Begins tree (room for its n_pool nodes, with rank and q_row): the root, fed: row 0. */
void speci_builder_begin(spec_tree *tree, spec_tree_kind kind, int32_t token);
/* Calls `expand`, and checks what a caller's own did: the tree stays a tree of n_vocab tokens, fits b->n_pool and info.depth, in a
 * sampled tree child j of a node is its candidate j, and feed (room for info.n_row) names nodes that were not fed.
 * Those get the next rows, in order: q_row. candidates [rows so far][b->k]. After an error the tree is of no use. */
spec_status speci_builder_expand(spec_builder *b, spec_tree *tree, int32_t n_vocab, const spec_candidate *candidates, int32_t *feed,
                                 int32_t *n_feed);
/* b->pool becomes nodes [n] of a tree that grew in a spec_grow. Its q_row says where they were fed, by which their rows are known. */
spec_status speci_builder_take(spec_builder *b, spec_tree_kind kind, const spec_grow_node *nodes, int32_t n);
/* pool, a grown tree (it is pruned in place: not deeper than depth_max (0 = no limit), what the kind's keep drops), is
 * copied to tree. A tree with less room than it needs loses the last nodes. pool->q_row says which row is whose; rows behind which
 * nothing stands are forgotten. */
spec_status speci_builder_trim(const spec_builder *b, spec_tree *pool, int32_t depth_max, spec_tree *tree);

/* For the kinds. E_INVALID: what the kind takes, and that args is not it (`why`, may be NULL: says more). */
spec_status speci_builder_refuse(const spec_builder *b, const char *args, const char *why);
/* Whole numbers from 0 to 100000, separated by commas and nothing else: their count, or -1 if args is anything else or
 * more than cap. */
int32_t speci_parse_counts(const char *args, int32_t *out, int32_t cap);
/* The decimal number ("0.02", "2e-3") that s begins with; *end behind it. False if there is none. No locale. */
bool speci_parse_real(const char *s, double *out, const char **end);
/* Memory for levels [n_level] and, with_places, for takes and nexts of trees of info.n_node nodes. */
spec_status speci_builder_levels(spec_builder *b, int32_t n_level, bool with_places);
/* Levels for a fixed shape: parent [n], parents before children, siblings in order of rank; parent[0] is not read.
 * Nodes with children are fed, others not. Sets info.depth, n_row, n_level and k by it. The levels must have room for
 * the shape's depth. scratch [4 n] */
void speci_builder_shape(spec_builder *b, const int32_t *parent, int32_t n, int32_t *scratch);
/* The same with memory of its own: a builder of one shape. n up to SPECI_MAX_NODE, not deeper than SPEC_MAX_DEPTH, at
 * most SPEC_MAX_CHILD children: else refused. */
spec_status speci_builder_static(spec_builder *b, const char *args, const int32_t *parent, int32_t n);

extern const speci_builder_kind speci_build_none, speci_build_chain, speci_build_static, speci_build_product,
    speci_build_product_repeat, speci_build_beam, speci_build_dyspec, speci_build_dyspec_threshold, speci_build_sequoia,
    speci_build_eagle2;

typedef struct speci_sequoia_args {
    const float *a; /* [n_a] */
    int32_t n_a, m, l;
    const spec_cost_profile *costs; /* or NULL */
} speci_sequoia_args;
/* Sequoia's dynamic program on plain arrays: the shape of m nodes (at most SPECI_MAX_NODE) in l levels, both with the
 * root, with the most expected emitted tokens, which it returns, when a node's child b < n_a (n_a <= 32) is accepted
 * with probability a[b]. With costs: of all sizes from 2 to m and depths to l, the one with the most expected tokens
 * per unit of time, a step of m' nodes and l' levels taking target(m') + (l' - 1) draft(its mean width). parent [m]
 * receives it, breadth first; *n is less than m where m nodes do not fit, or do not pay. work: of speci_sequoia_bytes,
 * aligned as a double. */
size_t speci_sequoia_bytes(int32_t m, int32_t l, int32_t n_a);
double speci_sequoia(const speci_sequoia_args *args, void *work, int32_t *parent, int32_t *n);

/* Levels of trees of n drafts where nobody says how many: 2 + log2 n (DS: below 10 at 64 nodes). */
static inline int32_t speci_usual_depth(int32_t n)
{
    int32_t bits = 0;
    while ((1 << bits) < n) bits++;
    return 2 + bits;
}

#endif
