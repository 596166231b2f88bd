/* build.c - builders: opening them by text, what all kinds share, and a caller's own. How they grow on plain
 * arrays is in build_arrays.c. */
#include "algorithms/build/build.h"

#include <string.h>

/* ------------------------------------------------------------------------------- open and close --- */

spec_status speci_builder_refuse(const spec_builder *b, const char *args, const char *why)
{
    const speci_builder_kind *k = b->kind;
    if (k->args[0] == 0)
        return speci_fail(SPEC_E_INVALID, "the tree \"%s\" takes no numbers, found \"%s\"", k->name, args);
    return speci_fail(SPEC_E_INVALID, "the tree \"%s\" is written %s:%s (%s), found \"%s\"%s%s", k->name, k->name,
                      k->args, k->help, args, why ? ": " : "", why ? why : "");
}

static spec_status new_builder(spec_builder **out, const char *text, const spec_allocator *allocator)
{
    spec_builder *b = speci_alloc(allocator, 1, sizeof *b);
    if (!b) return SPEC_E_NOMEM;
    b->memory = allocator ? *allocator : speci_malloc;
    b->allocator = &b->memory;
    b->text = speci_strdup(allocator, text);
    b->info = (spec_builder_info){ .struct_size = sizeof b->info, .text = b->text };
    *out = b;
    return b->text ? SPEC_OK : SPEC_E_NOMEM;
}

/* Sizes are within the limits, else the kind named in `text` asked for too much. */
static spec_status check_sizes(const spec_builder *b)
{
    const spec_builder_info *i = &b->info;
    if (i->n_node < 1 || i->n_node > SPECI_MAX_NODE || i->n_row < 0 || i->n_row > SPECI_MAX_NODE)
        return speci_fail(SPEC_E_INVALID,
                          "the tree \"%s\" has up to %d nodes and %d distributions; at most %d are possible", b->text,
                          i->n_node, i->n_row, SPECI_MAX_NODE);
    if (b->n_pool < i->n_node || b->n_pool > SPECI_MAX_POOL)
        return speci_fail(SPEC_E_INVALID, "the tree \"%s\" has up to %d nodes while it grows; at most %d are possible",
                          b->text, b->n_pool, SPECI_MAX_POOL);
    if (i->depth < 0 || i->depth > SPEC_MAX_DEPTH)
        return speci_fail(SPEC_E_INVALID, "the tree \"%s\" is up to %d deep; at most %d are possible", b->text,
                          i->depth, SPEC_MAX_DEPTH);
    if (b->k < 0 || b->k > SPEC_MAX_CHILD)
        return speci_fail(SPEC_E_INVALID, "the tree \"%s\" has up to %d children per node; at most %d are possible",
                          b->text, b->k, SPEC_MAX_CHILD);
    return SPEC_OK;
}

/* Does it grow all candidates of its places, and no place by their values? */
static bool is_fixed(const speci_level *l)
{
    return l->n_add <= 0 && l->threshold <= SPECI_NO_THRESHOLD && (l->n_next == 0 || l->next);
}

static bool has_known_shape(const spec_builder *b)
{
    if (b->host_driven || b->kind->keep) return false;
    for (int32_t i = 0; i < b->info.n_level; i++) {
        if (!is_fixed(&b->levels[i])) return false;
        if (b->levels[i].n_next == 0) return true; /* growth ends here, whatever levels there are behind it */
    }
    return false;
}

/* What every builder needs once its sizes are known. */
static spec_status complete(spec_builder *b)
{
    if (b->n_pool == 0) b->n_pool = b->info.n_node;
    SPEC_TRY(check_sizes(b));
    b->host_driven = b->kind->expand != NULL;
    b->known_shape = has_known_shape(b);
    SPEC_TRY(spec_tree_alloc(&b->pool, b->n_pool, b->allocator));
    b->keep = speci_alloc(b->allocator, (size_t)b->n_pool, sizeof *b->keep);
    b->map = speci_alloc(b->allocator, (size_t)b->n_pool, sizeof *b->map);
    return b->keep && b->map ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status unknown_kind(const char *text)
{
    char names[256] = "";
    size_t n = 0;
    for (const speci_builder_kind *const *k = speci_build_table; *k; k++) {
        const size_t len = strlen((*k)->name);
        if (n + len + 3 > sizeof names) break;
        if (n) names[n++] = ',', names[n++] = ' ';
        memcpy(names + n, (*k)->name, len + 1);
        n += len;
    }
    return speci_fail(SPEC_E_INVALID, "no tree is called \"%.64s\"; kinds: %s", text, names);
}

static spec_status find_kind(const speci_builder_kind **out, const char **args, const char *text)
{
    const size_t n = strcspn(text, ":");
    for (const speci_builder_kind *const *k = speci_build_table; *k; k++) {
        if (strlen((*k)->name) != n || memcmp((*k)->name, text, n) != 0) continue;
        *out = *k;
        *args = text[n] ? text + n + 1 : text + n;
        return SPEC_OK;
    }
    return unknown_kind(text);
}

spec_status spec_builder_open(spec_builder **out, const char *text, const spec_allocator *allocator)
{
    SPEC_NEED(out, "out");
    *out = NULL;
    if (!text) return speci_fail(SPEC_E_INVALID, "no tree is named");
    const speci_builder_kind *kind = NULL;
    const char *args = "";
    SPEC_TRY(find_kind(&kind, &args, text));
    spec_builder *b = NULL;
    spec_status status = new_builder(&b, text, allocator);
    if (status == SPEC_OK) {
        b->kind = kind;
        status = kind->open(b, args);
    }
    if (status == SPEC_OK) status = complete(b);
    if (status != SPEC_OK) {
        spec_builder_close(b);
        return status;
    }
    *out = b;
    return SPEC_OK;
}

void spec_builder_close(spec_builder *builder)
{
    if (!builder) return;
    const spec_allocator memory = builder->memory, *a = &memory; /* it lies in what is freed last */
    spec_tree_free(&builder->pool, a);
    speci_free(a, builder->keep);
    speci_free(a, builder->map);
    speci_free(a, builder->levels);
    speci_free(a, builder->places);
    speci_free(a, builder->own);
    speci_free(a, builder->text);
    speci_free(a, builder);
}

static spec_status expand_of_caller(void *builder, spec_tree *tree, const spec_candidate *candidates, int32_t k,
                                  int32_t *feed, int32_t *n_feed, int32_t n_feed_max)
{
    const spec_builder_ops *ops = &((const spec_builder *)builder)->ops;
    const uint64_t before = speci_n_failure();
    const spec_status status = ops->expand(ops->user_data, tree, candidates, k, feed, n_feed, n_feed_max);
    return speci_callback_status(status, before, "expand", "the application's builder");
}

static const speci_builder_kind callers_own = { .name = "own", .args = "", .help = "a caller's own builder",
                                               .expand = expand_of_caller };

static spec_status check_ops(const spec_builder_ops *ops)
{
    if (!ops->expand) return speci_fail(SPEC_E_INVALID, "a builder needs the callback expand");
    if (ops->kind < SPEC_TREE_DETERMINISTIC || ops->kind > SPEC_TREE_SAMPLED_IID)
        return speci_fail(SPEC_E_INVALID, "a builder of trees of kind %d, which is none", (int)ops->kind);
    if (ops->n_row < 1 || ops->n_level < 1 || ops->k < 1)
        return speci_fail(SPEC_E_INVALID,
                          "a builder with %d distributions, %d rounds and %d candidates; it needs 1 of each",
                          ops->n_row, ops->n_level, ops->k);
    return SPEC_OK;
}

spec_status spec_builder_from_ops(spec_builder **out, const spec_builder_ops *ops, const spec_allocator *allocator)
{
    SPEC_NEED(out, "out");
    *out = NULL;
    if (!ops) return speci_fail(SPEC_E_INVALID, "a builder without operations");
    spec_builder_ops own = { .struct_size = sizeof own };
    SPEC_TRY(speci_params_read(&own, sizeof own, ops, "spec_builder_ops"));
    SPEC_TRY(check_ops(&own));
    spec_builder *b = NULL;
    spec_status status = new_builder(&b, callers_own.name, allocator);
    if (status == SPEC_OK) {
        b->kind = &callers_own;
        b->ops = own;
        b->k = own.k;
        b->info.n_node = own.n_node, b->info.n_row = own.n_row, b->info.n_level = own.n_level;
        b->info.depth = own.depth, b->info.kind = own.kind;
        status = complete(b);
    }
    if (status != SPEC_OK) {
        spec_builder_close(b);
        return status;
    }
    *out = b;
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------- what it is --- */

void spec_builder_list(void (*each)(void *user, const char *name, const char *args, const char *help), void *user)
{
    if (!each) return;
    for (const speci_builder_kind *const *k = speci_build_table; *k; k++)
        each(user, (*k)->name, (*k)->args, (*k)->help);
}

spec_status spec_builder_get_info(const spec_builder *builder, spec_builder_info *info)
{
    SPEC_NEED(builder, "builder");
    SPEC_NEED(info, "info");
    return speci_params_write(info, &builder->info, sizeof builder->info, "spec_builder_info");
}

void spec_builder_observe(spec_builder *builder, int32_t n_node, const int32_t *ranks, int32_t n)
{
    if (!builder || (!ranks && n > 0)) return;
    if (builder->kind->observe && n_node >= 1 && n >= 0) builder->kind->observe(builder, n_node, ranks, n);
}

spec_status spec_builder_costs(spec_builder *builder, const spec_cost_profile *profile)
{
    spec_cost_profile own = { .struct_size = sizeof own };
    if (!profile) return speci_fail(SPEC_E_INVALID, "no costs are given");
    SPEC_TRY(speci_params_read(&own, sizeof own, profile, "spec_cost_profile"));
    const int32_t most = (int32_t)(sizeof own.target.ms / sizeof *own.target.ms);
    if (own.target.n < 1) return speci_fail(SPEC_E_INVALID, "the profile has no costs of the target's passes");
    if (own.target.n > most || own.draft.n > most)
        return speci_fail(SPEC_E_INVALID, "the profile has %d costs of the target's passes and %d of the drafter's: at most %d each",
                          own.target.n, own.draft.n, most);
    if (builder->kind->costs) builder->kind->costs(builder, &own);
    return SPEC_OK;
}

const spec_draw_how speci_builder_how[SPEC_TREE_UNROLLED] = {
    [SPEC_TREE_DETERMINISTIC] = SPEC_DRAW_TOP,
    [SPEC_TREE_SAMPLED] = SPEC_DRAW_GUMBEL_TOPK,
    [SPEC_TREE_SAMPLED_IID] = SPEC_DRAW_REPEAT,
};

/* --------------------------------------------------------------------------------- host-driven --- */

uint64_t speci_builder_key(const spec_tree *tree, int32_t node, uint64_t seed, uint64_t step)
{
    int32_t rank[SPEC_MAX_DEPTH + 1], n = 0;
    for (; node > 0; node = tree->parent[node]) rank[n++] = tree->rank[node];
    uint64_t key = spec_stream_root(seed, step);
    while (n > 0) key = spec_stream_child(key, rank[--n]);
    return key;
}

void speci_builder_begin(spec_tree *tree, spec_tree_kind kind, int32_t token)
{
    tree->n = 0;
    tree->kind = kind;
    (void)spec_tree_add(tree, -1, token, 1.0f);
    tree->q_row[0] = 0;
}

static int32_t rows_of(const spec_tree *tree)
{
    int32_t n = 0;
    for (int32_t i = 0; i < tree->n; i++) n += tree->q_row[i] >= 0;
    return n;
}

/* In a sampled tree the callback selects among slots: node i holds the candidate of its slot. */
static spec_status check_candidates(const spec_builder *b, const spec_tree *tree, const spec_candidate *candidates)
{
    for (int32_t i = 1; i < tree->n; i++) {
        const int32_t row = tree->q_row[tree->parent[i]], rank = tree->rank[i];
        if (row < 0)
            return speci_fail(SPEC_E_INVALID, "node %d hangs below node %d, which was not fed", i, tree->parent[i]);
        const int32_t sampled = rank < b->k ? candidates[(size_t)row * (size_t)b->k + (size_t)rank].token : -1;
        if (tree->token[i] != sampled)
            return speci_fail(SPEC_E_INVALID, "node %d, child %d of node %d, has token %d; its candidate is %d", i,
                              rank, tree->parent[i], tree->token[i], sampled);
    }
    return SPEC_OK;
}

static spec_status check_feed(const spec_tree *tree, const int32_t *feed, int32_t n_feed, int32_t n_feed_max)
{
    if (n_feed < 0 || n_feed > n_feed_max)
        return speci_fail(SPEC_E_INVALID, "expand asks for %d distributions; %d are left", n_feed, n_feed_max);
    for (int32_t i = 0; i < n_feed; i++) {
        if (feed[i] < 0 || feed[i] >= tree->n)
            return speci_fail(SPEC_E_INVALID, "expand feeds node %d of %d", feed[i], tree->n);
        bool again = tree->q_row[feed[i]] >= 0;
        for (int32_t j = 0; j < i; j++) again |= feed[j] == feed[i];
        if (again) return speci_fail(SPEC_E_INVALID, "expand feeds node %d, which was fed before", feed[i]);
    }
    return SPEC_OK;
}

static spec_status check_expansion(const spec_builder *b, const spec_tree *tree, int32_t n_vocab, const spec_candidate *candidates,
                                   int32_t token, int32_t n_row)
{
    SPEC_TRY(spec_tree_check(tree, b->n_pool, n_vocab));
    if (tree->token[0] != token || rows_of(tree) != n_row)
        return speci_fail(SPEC_E_INVALID, "expand changed the root or what was fed");
    spec_tree_depths(tree, b->map);
    for (int32_t i = 0; i < tree->n; i++)
        if (b->map[i] > b->info.depth)
            return speci_fail(SPEC_E_INVALID, "node %d is %d deep; the builder said at most %d", i, b->map[i],
                              b->info.depth);
    return speci_tree_sampled(tree->kind) ? check_candidates(b, tree, candidates) : SPEC_OK;
}

spec_status speci_builder_expand(spec_builder *b, spec_tree *tree, int32_t n_vocab, const spec_candidate *candidates, int32_t *feed,
                                 int32_t *n_feed)
{
    const int32_t n_row = rows_of(tree), token = tree->token[0], n_left = b->info.n_row - n_row;
    const spec_tree_kind kind = tree->kind;
    *n_feed = 0;
    SPEC_TRY(b->kind->expand(b, tree, candidates, b->k, feed, n_feed, n_left));
    tree->kind = kind; /* whatever a caller's own has made of it */
    if (b->kind == &callers_own) {
        SPEC_TRY(check_expansion(b, tree, n_vocab, candidates, token, n_row));
        SPEC_TRY(check_feed(tree, feed, *n_feed, n_left));
    }
    for (int32_t i = 0; i < *n_feed; i++) tree->q_row[feed[i]] = n_row + i;
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------------- finish --- */

spec_status speci_builder_take(spec_builder *b, spec_tree_kind kind, const spec_grow_node *nodes, int32_t n)
{
    if (n < 1 || n > b->n_pool)
        return speci_fail(SPEC_E_INVALID, "the tree \"%s\" grew %d nodes; it has 1 to %d", b->text, n, b->n_pool);
    b->pool.n = n;
    b->pool.kind = kind;
    for (int32_t i = 0; i < n; i++) {
        b->pool.token[i] = nodes[i].token;
        b->pool.parent[i] = nodes[i].parent;
        b->pool.rank[i] = nodes[i].rank;
        b->pool.prob[i] = nodes[i].prob;
        b->pool.q_row[i] = nodes[i].fed;
    }
    return SPEC_OK;
}

/* What is left out is left out by slot: neither depth, nor room, nor the keep of a kind that samples, depends on a node's own token
 * or probability. */

static void cut_depth(const spec_builder *b, spec_tree *pool, int32_t depth_max)
{
    spec_tree_depths(pool, b->map);
    for (int32_t i = 0; i < pool->n; i++) b->keep[i] = b->map[i] <= depth_max;
    spec_tree_prune(pool, b->map, b->keep, 1);
}

static void select_by_kind(const spec_builder *b, spec_tree *pool)
{
    memset(b->keep, 1, (size_t)b->n_pool);
    b->kind->keep(b, pool, b->keep);
    spec_tree_prune(pool, b->map, b->keep, 1);
}

static void cut_room(const spec_builder *b, spec_tree *pool, int32_t n)
{
    for (int32_t i = 0; i < pool->n; i++) b->keep[i] = i < n;
    spec_tree_prune(pool, b->map, b->keep, 1);
}

spec_status speci_builder_trim(const spec_builder *b, spec_tree *pool, int32_t depth_max, spec_tree *tree)
{
    if (depth_max > 0 && depth_max < b->info.depth) cut_depth(b, pool, depth_max);
    if (b->kind->keep) select_by_kind(b, pool);
    if (pool->n > tree->cap) cut_room(b, pool, tree->cap);
    speci_tree_forget_rows(pool);
    return spec_tree_copy(tree, pool);
}

/* -------------------------------------------------------------------------------- known shapes --- */

void speci_builder_known_shape(const spec_builder *b, int32_t depth_max, spec_tree *t)
{
    int32_t frontier[SPECI_MAX_NODE] = { 0 }, child[SPECI_MAX_NODE], n_place = 1;
    t->n = 1;
    for (int32_t level = 0; level < depth_max && n_place > 0; level++) {
        const speci_level *l = &b->levels[level];
        const int32_t first = t->n;
        for (int32_t f = 0; f < n_place; f++) {
            const int32_t n = frontier[f] < 0 ? 0 : l->take ? l->take[f] : l->k;
            for (int32_t j = 0; j < n && t->n < b->n_pool; j++) child[spec_tree_add(t, frontier[f], -1, 1)] = f * l->k + j;
        }
        n_place = l->n_next;
        for (int32_t i = 0; i < n_place; i++) {
            frontier[i] = -1;
            for (int32_t x = first; x < t->n; x++)
                if (child[x] == l->next[i]) frontier[i] = x;
        }
    }
}
