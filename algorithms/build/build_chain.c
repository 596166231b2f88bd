/* build_chain.c - K drafts in a row (algorithms.md 4.1). */
#include "algorithms/build/build.h"

static spec_status open(spec_builder *b, const char *args)
{
    int32_t n, parent[SPEC_MAX_DEPTH + 1];
    if (speci_parse_counts(args, &n, 1) != 1) return speci_builder_refuse(b, args, NULL);
    if (n < 1 || n > SPEC_MAX_DEPTH) return speci_builder_refuse(b, args, "K is 1 to 63");
    for (int32_t i = 0; i <= n; i++) parent[i] = i - 1;
    b->info.kind = SPEC_TREE_SAMPLED;
    return speci_builder_static(b, args, parent, n + 1);
}

const speci_builder_kind speci_build_chain = {
    .name = "chain", .args = "K", .help = "K drafts in a row", .open = open
};
