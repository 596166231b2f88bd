/* support_steps.h - the trees of a step that the tests of convolution and of scan share: alone and several, with a path to replay,
 * in parts, with an accepted path in front, without rows, as a prompt. None has more than 12 nodes. */
#ifndef TESTS_SUPPORT_STEPS_H
#define TESTS_SUPPORT_STEPS_H

#include "tests/test.h"

static const int32_t chain[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
static const int32_t bush[] = { -1, 0, 1, 1, 0, 4, 0, 5, 3, 2 };
static const int32_t star[] = { -1, 0, 0, 0, 0, 0 };
static const int32_t late_bush[] = { -1, 0, 1, 2, 3, 3, 4, 4, 5, 6 }; /* below a chain of 4 */
static const int32_t path_root[] = { 0 };
static const int32_t path_two[] = { 0, 4 };
static const int32_t path_far[] = { 0, 1, 3, 8, 11 };

static const test_seq one[] = { { .slot = 0, .n_past = 5, .n_node = 1, .parent = chain } };
static const test_seq one_replay[] = { { .slot = 0, .n_past = 5, .n_replay = 1, .path = path_root, .n_node = 1,
                                         .parent = chain } };
static const test_seq tree[] = { { .slot = 1, .parity = 1, .n_past = 5, .n_node = 10, .parent = bush } };
static const test_seq tree_replay[] = { { .slot = 1, .n_past = 9, .n_replay = 2, .path = path_two, .n_node = 10,
                                          .parent = bush } };
static const test_seq fed[] = { { .slot = 2, .n_past = 9, .n_node = 10, .n_fed = 4, .parent = bush } };
static const test_seq several[] = { { .slot = 3, .n_past = 9, .n_replay = 2, .path = path_two, .n_node = 10,
                                      .parent = bush },
                                    { .slot = 0, .parity = 1, .n_past = 9, .n_replay = 1, .path = path_root,
                                      .n_node = 1, .parent = chain },
                                    { .slot = 5, .parity = 1, .n_past = 9, .n_node = 6, .n_fed = 2, .parent = star },
                                    { .slot = 2, .parity = 1, .n_past = 9, .n_replay = 5, .path = path_far,
                                      .n_node = 12, .parent = chain } };
static const test_seq advance[] = { { .slot = 1, .n_past = 9, .n_node = 10, .parent = late_bush, .n_advance = 4 } };
static const test_seq advance_one[] = { { .slot = 1, .parity = 1, .n_past = 9, .n_node = 10, .parent = bush, .n_advance = 1 },
                                        { .slot = 4, .n_past = 9, .n_node = 10, .parent = late_bush, .n_advance = 4 } };
static const test_seq advance_all[] = { { .slot = 4, .n_past = 9, .n_replay = 2, .path = path_two, .n_node = 5,
                                          .parent = chain, .n_advance = 5 } };
static const test_seq flush[] = { { .slot = 3, .n_past = 9, .n_replay = 5, .path = path_far } };
static const test_seq flush_some[] = { { .slot = 3, .n_past = 9, .n_replay = 2, .path = path_two },
                                       { .slot = 1, .parity = 1, .n_past = 9, .n_node = 10, .parent = bush },
                                       { .slot = 2, .parity = 1, .n_past = 9, .n_replay = 1, .path = path_root } };
static const test_seq prompt[] = { { .slot = 2, .parity = 1, .n_past = 0, .n_node = 11, .parent = chain } };

#endif
