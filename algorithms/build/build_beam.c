/* build_beam.c - beam search (algorithms.md 4.4): of all extensions of the M beams the M best are the next ones;
 * all layers stay in the tree. Ties: the earlier beam, then the likelier candidate (smaller id). */
#include "algorithms/build/build.h"

static spec_status open(spec_builder *b, const char *args)
{
    int32_t number[2];
    if (speci_parse_counts(args, number, 2) != 2) return speci_builder_refuse(b, args, NULL);
    const int32_t m = number[0], n = number[1];
    if (m < 1 || m > SPEC_MAX_CHILD || n < 1 || n > SPEC_MAX_DEPTH || 1 + m * n > SPECI_MAX_NODE)
        return speci_builder_refuse(b, args, "M is 1 to 64, N 1 to 63, M N at most 255");
    b->info.n_node = 1 + m * n;
    b->info.n_row = 1 + m * (n - 1);
    b->info.depth = n;
    b->k = m;
    SPEC_TRY(speci_builder_levels(b, n, false));
    for (int32_t i = 0; i < n; i++)
        b->levels[i] = (speci_level){ .n_place = i == 0 ? 1 : m, .k = m, .threshold = SPECI_NO_THRESHOLD, .n_add = m,
                                     .n_next = i == n - 1 ? 0 : m };
    return SPEC_OK;
}

const speci_builder_kind speci_build_beam = {
    .name = "beam", .args = "M,N", .help = "M beams, N levels", .open = open
};
