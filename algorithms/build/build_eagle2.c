/* build_eagle2.c - EAGLE-2: expand and re-rank (algorithms.md 16). Every node of a frontier of K gets its K
 * likeliest children, all of which enter the pool, and the K best of them are the next frontier; in the end the N - 1
 * best of the pool stay. D counts the root's level. Values are products of probabilities, in place of the sums of their
 * logarithms. */
#include "algorithms/build/build.h"

static spec_status open(spec_builder *b, const char *args)
{
    int32_t number[3];
    if (speci_parse_counts(args, number, 3) != 3) return speci_builder_refuse(b, args, NULL);
    const int32_t k = number[0], n = number[1], d = number[2];
    if (k < 1 || k > SPEC_MAX_CHILD || n < 1 || n > SPECI_MAX_NODE || d < 1 || d > SPEC_MAX_DEPTH)
        return speci_builder_refuse(b, args, "K is 1 to 64, N 1 to 256, D 1 to 63");
    b->n_pool = 1 + k + (d - 1) * k * k;
    b->info.n_row = 1 + (d - 1) * k;
    if (b->n_pool > SPECI_MAX_POOL || b->info.n_row > SPECI_MAX_NODE)
        return speci_builder_refuse(b, args, "(D - 1) K is at most 255, (D - 1) K K + K at most 4095");
    b->info.n_node = n < b->n_pool ? n : b->n_pool;
    b->info.depth = d;
    b->k = k;
    b->own = speci_alloc(b->allocator, (size_t)b->n_pool, sizeof(double)); /* values of the pool's nodes */
    if (!b->own) return SPEC_E_NOMEM;
    SPEC_TRY(speci_builder_levels(b, d, false));
    for (int32_t i = 0; i < d; i++)
        b->levels[i] = (speci_level){ .n_place = i == 0 ? 1 : k, .k = k, .threshold = SPECI_NO_THRESHOLD,
                                     .n_next = i == d - 1 ? 0 : k };
    return SPEC_OK;
}

/* The best come first. Values never grow along a path, so what is kept is closed under parents: on a tie (a probability
 * of 1) the earlier node goes first, and the pool grew level by level. */
static void keep_best(const spec_builder *b, const spec_tree *pool, uint8_t *keep)
{
    double *value = b->own;
    value[0] = 1.0;
    for (int32_t i = 1; i < pool->n; i++) {
        const float prob = pool->prob[i] < 1.0f ? pool->prob[i] : 1.0f; /* a distribution's sum is 1 but for rounding */
        value[i] = value[pool->parent[i]] * (double)prob;
        keep[i] = 0;
    }
    for (int32_t n = 1; n < b->info.n_node && n < pool->n; n++) {
        int32_t best = -1;
        for (int32_t i = 1; i < pool->n; i++)
            if (!keep[i] && (best < 0 || value[i] > value[best])) best = i;
        keep[best] = 1;
    }
}

const speci_builder_kind speci_build_eagle2 = { .name = "eagle2", .args = "K,N,D",
                                              .help = "K best of each level expanded, D levels, the N - 1 best kept",
                                              .open = open, .keep = keep_best };
