/* build_none.c - no drafts: the root alone, plain decoding. */
#include "algorithms/build/build.h"

static spec_status open(spec_builder *b, const char *args)
{
    if (args[0]) return speci_builder_refuse(b, args, NULL);
    b->info.n_node = 1;
    return SPEC_OK;
}

const speci_builder_kind speci_build_none = { .name = "none", .args = "", .help = "no drafts", .open = open };
