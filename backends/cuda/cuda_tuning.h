/* cuda_tuning.h - numbers of a device that launches decide by, chosen by measurement on an H200. They say how
 * work is divided, never what is computed: no value here changes a bit. Tile configurations that a kernel is compiled
 * for stand with their kernel; README.md lists them. */
#ifndef SPEC_CUDA_TUNING_H
#define SPEC_CUDA_TUNING_H

#include <stddef.h>
#include <stdint.h>

struct spec_device;

/* A part of the multiprocessors. */
struct cuda_share {
    int32_t n, of;
    constexpr int32_t operator()(int32_t n_sm) const { return n_sm * n / of; }
};

/* The values are an H100's and an H200's, whose multiprocessors are the same. */
struct cuda_tuning {
    /* The chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu). With more units a block, B and C are read
     * fewer times, and multiprocessors are left to the product behind, whose weights can then be on their way. With fewer,
     * more multiprocessors work on the scan. */

    /* Blocks of two units to a multiprocessor from which on blocks have two units. */
    int32_t chunked_several = 2;
    /* Rows of a sequence up to which no cluster shares its channels, since a cluster's start costs more than it saves. */
    int32_t chunked_split_rows = 8;
    /* What clusters may fill: where the rows are one tile, and else. */
    cuda_share chunked_split_one = { 1, 2 }, chunked_split = { 1, 1 };
    /* Units of a block at most: up to chunked_split_rows rows, and else. */
    int32_t chunked_units_few = 3, chunked_units = 4;
    /* What blocks may fill, the rest being the next product's: where the rows are one tile, and else. */
    cuda_share chunked_fill_one = { 2, 3 }, chunked_fill = { 3, 4 };
    /* Rows of a tile up to which several threads share a row's near tokens (8 at most: the kernel has one tile of C), and up
     * to which a thread has two channels, not four: more threads, and more reads of weights. */
    int32_t chunked_few_rows = 4, chunked_narrow_rows = 16;
    /* Warps of a block at least, and with several blocks to a multiprocessor; more bring tokens and make C . B sooner, and
     * leave the next kernel fewer registers. Warps without a state, where registers suffice. */
    int32_t chunked_warps = 12, chunked_warps_several = 8, chunked_helpers = 4;

    /* The recurrent scan of Mamba-1 (cuda_scan_state.cu): steps of a path that a chunk of steps has room for besides the
     * rows. With more a chunk takes more threads, with fewer a path takes a second chunk. */
    int32_t state_path = 4;

    /* Attention in 16 bit (cuda_attention_matrix.cu). With more tiles than this a block walks all chunks of its rows; else
     * each chunk has a block, and a second kernel merges them. */
    cuda_share attention_whole = { 1, 2 };
    /* With more tiles than this the one row of plain decoding asks for K and V before the next kernel is set up: its loads
     * do not wait behind that one's weights, which begin later. */
    cuda_share attention_kv_first = { 1, 5 };
    /* Warps of a tree's block, of 16: fewer leave a block of the next product its registers. */
    int32_t attention_warps_tree = 12;
    /* Prefill (cuda_attention_prefill.cu): bytes that a block asks for, so that two are on a multiprocessor, not three. */
    size_t attention_prefill_shared = (size_t)80 << 10;

    /* K and V of the accepted path (cuda_kv_commit.cu): blocks of a cache at most, since all layers are one launch. */
    int32_t commit_blocks = 64;
};

static constexpr cuda_tuning cuda_tuning_hopper = {};

/* Another device would be chosen here. */
static inline const cuda_tuning &cuda_tuning_of(const spec_device *) { return cuda_tuning_hopper; }

#endif
