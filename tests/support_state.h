/* support_state.h - what sequences remember after many steps of random trees is what plain steps leave. */
#ifndef SUPPORT_STATE_H
#define SUPPORT_STATE_H

#include "tests/support_model.h"

/* A test program over models of every kind. n_step steps of random trees for each of two sequences, of which random
 * paths are accepted (some scored twice, some rolled back, some in forks): state, convolution windows and KV are
 * those of plain steps over the same tokens after the same prefill, bit for bit: what spec_sequence_save writes, and
 * the logits that follow. Returns the number of failed tests. */
int support_state_run(int32_t n_step);

#endif
