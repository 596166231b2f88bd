/* draft_table.c - the kinds of drafters that are made from text, in the order in which they are listed. */
#include "algorithms/draft/draft.h"

const speci_draft_kind *const speci_draft_table[] = {
    &speci_draft_ngram,
    &speci_draft_trie,
    &speci_draft_png,
    NULL,
};
