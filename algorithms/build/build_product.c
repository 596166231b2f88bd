/* build_product.c - product trees: every node of depth i has N(i+1) children (SpecInfer; Mamba Drafters;
 * algorithms.md 4.2). */
#include "algorithms/build/build.h"

static spec_status open_product(spec_builder *b, const char *args)
{
    int32_t width[SPEC_MAX_DEPTH], parent[SPECI_MAX_NODE] = { -1 }, n = 1, first = 0;
    const int32_t n_layer = speci_parse_counts(args, width, SPEC_MAX_DEPTH);
    if (n_layer < 1) return speci_builder_refuse(b, args, NULL);
    for (int32_t i = 0; i < n_layer; i++) {
        const int32_t end = n;
        if (width[i] < 1) return speci_builder_refuse(b, args, "every node has at least 1 child");
        for (int32_t x = first; x < end; x++)
            for (int32_t j = 0; j < width[i]; j++) {
                if (n == SPECI_MAX_NODE) return speci_builder_refuse(b, args, "there can be 256 nodes, root included");
                parent[n++] = x;
            }
        first = end;
    }
    b->info.kind = SPEC_TREE_SAMPLED;
    return speci_builder_static(b, args, parent, n);
}

static spec_status open_repeat(spec_builder *b, const char *args)
{
    SPEC_TRY(open_product(b, args));
    b->info.kind = SPEC_TREE_SAMPLED_IID;
    return SPEC_OK;
}

/* A repeated token that was rejected once is rejected again (3.2), so nothing below the repetition is ever reached. A
 * level of growth knows slots, not tokens: what it grew there goes here. */
static void keep_reachable(const spec_builder *b, const spec_tree *pool, uint8_t *keep)
{
    (void)b;
    for (int32_t i = 1; i < pool->n; i++) {
        const int32_t x = pool->parent[i];
        for (int32_t j = 1; j < pool->n && x > 0; j++)
            if (pool->parent[j] == pool->parent[x] && pool->token[j] == pool->token[x] && pool->rank[j] < pool->rank[x])
                keep[i] = 0;
    }
}

const speci_builder_kind speci_build_product = { .name = "product", .args = "N1,N2,...",
                                               .help = "every node of depth i has N(i+1) children",
                                               .open = open_product };
const speci_builder_kind speci_build_product_repeat = { .name = "product-repeat", .args = "N1,N2,...",
                                                      .help = "product, sampled with replacement", .open = open_repeat,
                                                      .keep = keep_reachable };
