/* ref_ops.h - the operations by their formulas, in double, one token after the other. Trees are not known here: a test
 * gives the sequence of a node's path and takes the last output. */
#ifndef SPEC_REF_OPS_H
#define SPEC_REF_OPS_H

#include <stdint.h>

#include "backends/spec_backend.h"

double ref_silu(double x);
double ref_activation(double x, spec_activation act, double scale); /* scale: what then multiplies it */

/* One row [dim]; gate and bias may be NULL. */
void ref_norm(double *y, const double *x, const double *gate, const double *weight, const double *bias, int32_t dim,
              int32_t n_group, double eps, spec_norm_kind kind, int32_t norm_first);
/* y [n_out] = W [n_out][n_in] x + bias (or NULL) */
void ref_product(double *y, const double *w, const double *x, const double *bias, int32_t n_out, int32_t n_in);
/* w [32] as a block of Q8_0, q [32], after ggml's quantize_row_q8_0_ref. Returns the scale before it becomes f16. */
float ref_q8_0(int8_t *q, const float *w);
/* head [dim]: RMS norm with weight (or NULL), then rotation of the first n_rot dimensions, which are times gain */
void ref_rope(double *head, const double *weight, int32_t dim, double eps, const double *inv_freq, int32_t n_rot,
              int32_t position, double gain);
/* o [dim] = softmax(s_t) v over keys [n][dim] and values [n][dim], s_t = scale q . k_t, or cap tanh(s_t / cap) with a cap; window 0 = all,
 * else the last `window` */
void ref_attention(double *o, const double *q, const double *k, const double *v, int32_t n, int32_t dim, double scale,
                   int32_t window, double cap);
/* y [channels] for the last of n inputs u [n][channels], n >= width */
void ref_conv(double *y, const double *u, int32_t n, int32_t channels, const double *weight, const double *bias,
              int32_t width, spec_activation act);
/* clamp(softplus(x), lo, hi) */
double ref_dt(double x, double lo, double hi);
/* One head, one token: s [dim][n_state] = exp(dt a) s + dt x b^T; y [dim] = s c + d x (y NULL: not wanted).
 * a: one value, or [n_state] with per_state. */
void ref_scan(double *s, double *y, const double *x, int32_t dim, int32_t n_state, double dt, const double *a,
              int32_t per_state, const double *b, const double *c, double d);
/* distribution [n] of logits [n] (algorithms.md 2.1) */
void ref_probs(double *probs, const double *logits, int32_t n, const spec_sampling *s);
/* Smallest i with distribution[i] > 0 and cumulated distribution > u total. */
int32_t ref_draw(const double *probs, int32_t n, double u);
/* Multi-step speculative sampling without replacement (algorithms.md 3.2). q NULL: point masses (3.4). Returns the accepted
 * candidate or -1 with *token drawn. p and q are overwritten. */
int32_t ref_accept(int32_t *token, double *p, double *q, int32_t n, const int32_t *candidates, int32_t n_candidate,
                   const float *u, double u_last);

#endif
