/* ref_ops.c - see ref_ops.h: obviously right rather than fast. */
#include "tests/ref_ops.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_statistics.h"

double ref_silu(double x)
{
    return x / (1.0 + exp(-x));
}

double ref_activation(double x, spec_activation act, double scale)
{
    switch (act) {
    case SPEC_ACT_SILU: return ref_silu(x);
    case SPEC_ACT_GELU: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case SPEC_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case SPEC_ACT_RELU: return x > 0.0 ? x : 0.0;
    case SPEC_ACT_CAP: return tanh(x / scale);
    case SPEC_ACT_NONE: break;
    }
    return x;
}

void ref_norm(double *y, const double *x, const double *gate, const double *weight, const double *bias, int32_t dim,
              int32_t n_group, double eps, spec_norm_kind kind, int32_t norm_first)
{
    int32_t size = dim / n_group;
    for (int32_t i = 0; i < dim && kind == SPEC_NORM_NONE; i++) y[i] = x[i];
    for (int32_t g = 0; g < dim && kind != SPEC_NORM_NONE; g += size) {
        double mean = 0.0, square = 0.0;
        for (int32_t i = g; i < g + size; i++) {
            y[i] = x[i] * (gate && !norm_first ? ref_silu(gate[i]) : 1.0);
            mean += y[i] / size;
        }
        if (kind != SPEC_NORM_LAYER) mean = 0.0;
        for (int32_t i = g; i < g + size; i++) square += (y[i] - mean) * (y[i] - mean) / size;
        for (int32_t i = g; i < g + size; i++) {
            y[i] = (y[i] - mean) / sqrt(square + eps) * weight[i] + (bias ? bias[i] : 0.0);
            if (gate && norm_first) y[i] *= ref_silu(gate[i]);
        }
    }
}

void ref_product(double *y, const double *w, const double *x, const double *bias, int32_t n_out, int32_t n_in)
{
    for (int32_t o = 0; o < n_out; o++) {
        double sum = bias ? bias[o] : 0.0;
        for (int32_t i = 0; i < n_in; i++) sum += w[(size_t)o * (size_t)n_in + (size_t)i] * x[i];
        y[o] = sum;
    }
}

float ref_q8_0(int8_t *q, const float *w)
{
    float most = 0.0f;
    for (int32_t i = 0; i < SPEC_Q8_BLOCK; i++) most = fmaxf(most, fabsf(w[i]));
    const float scale = most / 127.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int32_t i = 0; i < SPEC_Q8_BLOCK; i++) q[i] = (int8_t)roundf(w[i] * inverse);
    return scale;
}

void ref_rope(double *head, const double *weight, int32_t dim, double eps, const double *inv_freq, int32_t n_rot,
              int32_t position, double gain)
{
    double square = 0.0;
    for (int32_t i = 0; i < dim; i++) square += head[i] * head[i] / dim;
    for (int32_t i = 0; i < dim && weight; i++) head[i] = head[i] / sqrt(square + eps) * weight[i];
    for (int32_t i = 0; i < n_rot / 2; i++) {
        double angle = position * inv_freq[i], a = head[i], b = head[i + n_rot / 2];
        head[i] = gain * (a * cos(angle) - b * sin(angle));
        head[i + n_rot / 2] = gain * (b * cos(angle) + a * sin(angle));
    }
}

void ref_attention(double *o, const double *q, const double *k, const double *v, int32_t n, int32_t dim, double scale,
                   int32_t window, double cap)
{
    int32_t first = window > 0 && n > window ? n - window : 0;
    double m = -INFINITY, total = 0.0, *s = calloc((size_t)n, sizeof *s);
    for (int32_t t = first; t < n; t++) {
        for (int32_t i = 0; i < dim; i++) s[t] += scale * q[i] * k[t * dim + i];
        if (cap > 0) s[t] = cap * tanh(s[t] / cap);
        if (s[t] > m) m = s[t];
    }
    for (int32_t t = first; t < n; t++) total += exp(s[t] - m);
    for (int32_t i = 0; i < dim; i++) {
        o[i] = 0.0;
        for (int32_t t = first; t < n; t++) o[i] += exp(s[t] - m) / total * v[t * dim + i];
    }
    free(s);
}

void ref_conv(double *y, const double *u, int32_t n, int32_t channels, const double *weight, const double *bias,
              int32_t width, spec_activation act)
{
    for (int32_t c = 0; c < channels; c++) {
        double sum = bias ? bias[c] : 0.0;
        for (int32_t k = 0; k < width; k++) sum += weight[c * width + width - 1 - k] * u[(n - 1 - k) * channels + c];
        y[c] = act == SPEC_ACT_SILU ? ref_silu(sum) : sum;
    }
}

double ref_dt(double x, double lo, double hi)
{
    return fmin(fmax(x > 20.0 ? x : log1p(exp(x)), lo), hi);
}

void ref_scan(double *s, double *y, const double *x, int32_t dim, int32_t n_state, double dt, const double *a,
              int32_t per_state, const double *b, const double *c, double d)
{
    const double decay = exp(dt * a[0]);
    for (int32_t p = 0; p < dim; p++) {
        double sum = 0.0;
        for (int32_t n = 0; n < n_state; n++) {
            double *e = &s[p * n_state + n];
            *e = (per_state ? exp(dt * a[n]) : decay) * *e + dt * x[p] * b[n];
            if (y) sum += *e * c[n];
        }
        if (y) y[p] = sum + d * x[p];
    }
}

/* The id that comes next in the order (value descending, id ascending) after `last`; -1 first. */
static int32_t next_rank(const double *v, int32_t n, int32_t last)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        bool after = last < 0 || v[i] < v[last] || (v[i] == v[last] && i > last);
        if (after && (best < 0 || v[i] > v[best])) best = i;
    }
    return best;
}

void ref_probs(double *probs, const double *logits, int32_t n, const spec_sampling *s)
{
    double *e = calloc((size_t)n, sizeof *e), mass = 0.0, kept = 0.0, total = 0.0;
    int32_t count = s->top_k > 0 && s->top_k < n ? s->top_k : n, top = next_rank(logits, n, -1), id = -1;
    for (int32_t i = 0; i < n; i++) e[i] = exp((logits[i] - logits[top]) / (double)s->temperature);
    for (int32_t r = 0; r < count; r++) mass += e[id = next_rank(logits, n, id)];
    memset(probs, 0, (size_t)n * sizeof *probs);
    id = -1;
    for (int32_t r = 0; r < count; r++) {
        probs[id = next_rank(logits, n, id)] = 1.0;
        kept += e[id];
        if (s->top_p > 0.0f && s->top_p < 1.0f && kept >= (double)s->top_p * mass) break;
    }
    for (int32_t i = 0; i < n; i++) {
        probs[i] = probs[i] > 0.0 && !(e[i] < (double)s->min_p) ? e[i] : 0.0;
        total += probs[i];
    }
    for (int32_t i = 0; i < n; i++) probs[i] /= total;
    free(e);
}

int32_t ref_draw(const double *probs, int32_t n, double u)
{
    double total = 0.0, sum = 0.0;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) total += probs[i];
    for (int32_t i = 0; i < n; i++) {
        sum += probs[i];
        if (probs[i] > 0.0) last = i;
        if (probs[i] > 0.0 && sum > u * total) return i;
    }
    return last;
}

int32_t ref_accept(int32_t *token, double *p, double *q, int32_t n, const int32_t *candidates, int32_t n_candidate,
                   const float *u, double u_last)
{
    for (int32_t j = 0; j < n_candidate; j++) {
        int32_t y = candidates[j];
        double mass = q ? q[y] : 1.0;
        if (mass == 0.0) continue;
        if ((double)u[j] * mass < p[y]) {
            *token = y;
            return j;
        }
        for (int32_t i = 0; i < n; i++) p[i] = fmax(p[i] - (q ? q[i] : i == y ? p[i] : 0.0), 0.0);
        probs_normalise(p, n);
        if (!q) continue;
        q[y] = 0.0;
        if (probs_normalise(q, n) == 0.0) break;
    }
    *token = ref_draw(p, n, u_last);
    return -1;
}
