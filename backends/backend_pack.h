/* backend_pack.h - float32 rows as blocks of weights (spec_blocks.h), on the host: the way back from backend_blocks.h. Internal.
 *
 * Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are ggml's blocks byte for byte (quantize_row_*_ref), but for blocks whose scale is 0 in f16: their
 * numbers are those of zeros. Q4_K, Q5_K and Q6_K have no blocks that are right by definition: theirs come from a search for small
 * squared errors, and differ from other programs'. The same values give the same bytes on every machine. */
#ifndef SPEC_BACKEND_PACK_H
#define SPEC_BACKEND_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "backends/spec_blocks.h"

typedef struct speci_packing {
    const char *name;                            /* as options have it: "q4_k" */
    uint32_t n_value, bytes;                     /* of a block */
    float most;                                  /* the largest |x| that blocks hold */
    void (*pack_one)(void *block, const float *x); /* values that fit: for speci_pack, which checks */
} speci_packing;

extern const speci_packing speci_pack_q8_0, speci_pack_q4_0, speci_pack_q4_1, speci_pack_q5_0, speci_pack_q5_1, speci_pack_q4_k,
    speci_pack_q5_k, speci_pack_q6_k;

/* Packs n blocks from x [n * n_value] to `blocks`, at an even address, and returns how many it packed: fewer than n where the block
 * after those has a value that is not finite or beyond `most`. Any number of threads may pack at once. */
size_t speci_pack(const speci_packing *packing, void *blocks, const float *x, size_t n);

#endif
