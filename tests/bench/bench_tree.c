/* bench_tree.c - trees to measure with, by name: shapes of any size, and those that a builder makes. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

/* --- shapes of any size --- */

static int32_t parent_of(const char *kind, int32_t i, uint64_t *state)
{
    if (strcmp(kind, "chain") == 0) return i - 1;
    if (strcmp(kind, "random") != 0) return (i - 1) / 2;
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((*state >> 33) % (uint64_t)i);
}

static spec_status grow(spec_tree *tree, const char *kind, int32_t n)
{
    uint64_t state = 1;
    tree->n = 0;
    if (n > tree->cap) return speci_fail(SPEC_E_FULL, "a tree of %d nodes; at most %d", n, tree->cap);
    for (int32_t i = 0; i < n; i++)
        spec_tree_add(tree, i ? parent_of(kind, i, &state) : -1, 1 + i, 1);
    return SPEC_OK;
}

static spec_status unroll(spec_tree *tree, int32_t n)
{
    spec_tree binary;
    SPEC_TRY(spec_tree_alloc(&binary, SPECI_MAX_NODE, NULL));
    spec_status status = grow(&binary, "binary", n);
    if (status == SPEC_OK) status = spec_tree_unroll(&binary, tree, NULL);
    spec_tree_free(&binary, NULL);
    return status;
}

/* --- trees of builders --- */

enum { N_PROBS = 128 };

/* Behind every node the distribution 1/2, 1/4, 1/8, ...: what a tree looks like then depends on its builder alone. */
static spec_status halves(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n, float *distributions,
                          int32_t n_vocab)
{
    (void)user_data, (void)tree, (void)nodes;
    for (int32_t i = 0; i < n; i++) {
        float p = 1;
        for (int32_t k = 0; k < n_vocab; k++) distributions[(size_t)i * (size_t)n_vocab + (size_t)k] = p *= 0.5f;
    }
    return SPEC_OK;
}

static spec_status build(spec_tree *tree, const char *text)
{
    spec_builder *builder;
    spec_builder_info info = { .struct_size = sizeof info };
    const spec_build_args args = { .struct_size = sizeof args, .n_vocab = N_PROBS, .probs = halves };
    SPEC_TRY(spec_builder_open(&builder, text, NULL));
    spec_status status = spec_builder_get_info(builder, &info);
    if (status == SPEC_OK && info.n_node > tree->cap)
        status = speci_fail(SPEC_E_FULL, "%s: a tree of %d nodes; at most %d", text, info.n_node, tree->cap);
    if (status == SPEC_OK) status = spec_builder_build(builder, tree, &args);
    tree->kind = SPEC_TREE_DETERMINISTIC; /* by a distribution of ours, not by one that verification could ask for */
    spec_builder_close(builder);
    return status;
}

/* --- by name --- */

bool bench_tree_built(const char *kind) { return strchr(kind, ':') != NULL; }

spec_status bench_tree(spec_tree *tree, const char *kind, int32_t n)
{
    static const char *const kinds[] = { "chain", "binary", "random", "unrolled" };
    bool known = bench_tree_built(kind);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known = known || strcmp(kinds[i], kind) == 0;
    if (!known)
        return speci_fail(SPEC_E_INVALID, "--tree %s: chain, binary, random, unrolled, or a builder's like static:A",
                          kind);
    tree->kind = SPEC_TREE_DETERMINISTIC;
    SPEC_TRY(bench_tree_built(kind) ? build(tree, kind)
             : strcmp(kind, "unrolled") == 0 ? unroll(tree, n) : grow(tree, kind, n));
    return strcmp(kind, "chain") == 0 && n > SPEC_MAX_DEPTH + 1
               ? speci_fail(SPEC_E_FULL, "a chain of %d nodes is deeper than %d", n, SPEC_MAX_DEPTH)
               : SPEC_OK;
}

bool bench_tree_item(char *out, size_t cap, const char *list, int32_t i)
{
    return bench_item(out, cap, list, bench_tree_built(list) ? ';' : ',', i);
}
