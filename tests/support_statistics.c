/* support_statistics.c - see support_statistics.h. */
#include "tests/support_statistics.h"

#include <math.h>
#include <string.h>

#include "tests/support_distribution.h"
#include "tests/support_model.h"

enum { V = PROBS_V };

/* --------------------------------------------------------------------------------- chi-square --- */

double support_gamma_q(double a, double x)
{
    if (!(x > 0)) return 1.0;
    const double front = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1) { /* P(a, x) = front sum_n x^n / (a (a+1) .. (a+n)) */
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-17; n++) sum += term *= x / (a + n);
        return 1 - front * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d; /* Lentz's continued fraction */
    for (int i = 1; i < 10000; i++) {
        const double an = -i * (i - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (fabs(d * c - 1) < 1e-15) break;
    }
    return front * h;
}

void probs_chi_add(chi_square *c, const double *p, const int64_t *count, int32_t n)
{
    int64_t total = 0;
    double rest_p = 0, rest = 0;
    int32_t cells = 0;
    for (int32_t i = 0; i < n; i++) {
        total += count[i];
        if (p[i] == 0 && count[i] > 0) c->impossible = true;
    }
    if (total < 50) return;
    for (int32_t i = 0; i < n; i++) {
        const double expect = p[i] * (double)total;
        if (expect < 8) {
            rest_p += p[i];
            rest += (double)count[i];
            continue;
        }
        c->x += ((double)count[i] - expect) * ((double)count[i] - expect) / expect;
        cells++;
    }
    if (rest_p * (double)total >= 1) {
        const double expect = rest_p * (double)total;
        c->x += (rest - expect) * (rest - expect) / expect;
        cells++;
    }
    if (cells > 1) c->dof += cells - 1;
}

double probs_chi_p(const chi_square *c)
{
    if (c->impossible) return 0;
    return c->dof > 0 ? support_gamma_q(0.5 * c->dof, 0.5 * c->x) : 1;
}

void probs_check_chi_square(void **state)
{
    (void)state;
    static const struct {
        double dof, x, p;
    } known[] = { { 1, 3.841458820694124, 0.05 },       { 2, 9.210340371976182, 0.01 },
                  { 10, 18.30703805327515, 0.05 },      { 100, 124.3421134026906, 0.05 },
                  { 4, 54.06896446, 5.0906e-11 },       { 7, 6.345811195595612, 0.5 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const double p = support_gamma_q(known[i].dof / 2, known[i].x / 2);
        if (fabs(p / known[i].p - 1) > 1e-4) fail_msg("dof %g, x %g: %g", known[i].dof, known[i].x, p);
    }
}

/* ----------------------------------------------------------------------------- expected distributions --- */

static const int32_t first_context[PROBS_CONTEXT + 1] = { 0, 1, 1 + V, 1 + V + V * V }; /* of each length */

int32_t probs_context(const int32_t *tokens, int32_t n)
{
    int32_t code = 0;
    for (int32_t i = 0; i < n; i++) code = code * V + tokens[i];
    return first_context[n] + code;
}

int32_t probs_context_tokens(int32_t *tokens, int32_t context)
{
    int32_t n = PROBS_CONTEXT;
    while (context < first_context[n]) n--;
    int32_t code = context - first_context[n];
    for (int32_t i = n; i-- > 0; code /= V) tokens[i] = code % V;
    return n;
}

enum { N_TEXT = V * V * V };

/* Token i >= 1 of text `code`, one of all texts of PROBS_CONTEXT tokens behind the prompt. */
static int32_t token_of(int32_t code, int32_t i)
{
    for (; i < PROBS_CONTEXT; i++) code /= V;
    return code % V;
}

/* One step of all texts that begin with `start`, with their tokens i pending. */
static void step_texts(logits_table *t, spec_session *s, const int32_t *seqs, int32_t start, int32_t i)
{
    int32_t pending[N_TEXT], parent = -1, root = 0;
    spec_tree tree[N_TEXT];
    const spec_tree *trees[N_TEXT];
    for (int32_t code = 0; code < N_TEXT; code++) {
        pending[code] = i == 0 ? start : token_of(code, i);
        tree[code] = (spec_tree){ .n = 1, .cap = 1, .token = &pending[code], .parent = &parent };
        trees[code] = &tree[code];
    }
    OK(spec_score(s, seqs, N_TEXT, trees));
    for (int32_t code = 0; code < N_TEXT; code++) {
        int32_t tokens[PROBS_CONTEXT] = { 0 }, rest = 0;
        for (int32_t k = 1; k <= PROBS_CONTEXT; k++) {
            if (k <= i) tokens[k - 1] = token_of(code, k);
            else rest += token_of(code, k);
        }
        if (rest == 0) OK(spec_node_logits(s, t->row[start][probs_context(tokens, i)], seqs[code], 0)); /* once each */
        OK(spec_commit(s, seqs[code], &root, 1, i < PROBS_CONTEXT ? token_of(code, i + 1) : 0));
    }
}

void probs_read_logits(logits_table *t, spec_model *m)
{
    spec_session *s = support_session(m, 1, N_TEXT);
    int32_t seqs[N_TEXT];
    for (int32_t start = 0; start < PROBS_START; start++) {
        for (int32_t i = 0; i < N_TEXT; i++) OK(spec_sequence_add(s, &seqs[i], &start, 1, NULL));
        for (int32_t i = 0; i <= PROBS_CONTEXT; i++) step_texts(t, s, seqs, start, i);
        for (int32_t i = 0; i < N_TEXT; i++) OK(spec_sequence_remove(s, seqs[i]));
    }
    spec_session_close(s);
}

void probs_of(double *probs, const float *logits, const spec_sampling *s)
{
    double e[V], mass = 0, sum = 0, total = 0;
    int32_t order[V];
    for (int32_t i = 0; i < V; i++) order[i] = i;
    for (int32_t i = 0; i < V; i++)
        for (int32_t j = i + 1; j < V; j++)
            if (logits[order[j]] > logits[order[i]]) {
                const int32_t t = order[i];
                order[i] = order[j], order[j] = t;
            }
    const int32_t k = s->top_k > 0 && s->top_k < V ? s->top_k : V;
    for (int32_t i = 0; i < k; i++) {
        e[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)s->temperature);
        mass += e[i];
    }
    for (int32_t i = 0; i < V; i++) probs[i] = 0;
    for (int32_t i = 0; i < k; i++) {
        const bool full = s->top_p > 0 && s->top_p < 1 && sum >= (double)s->top_p * mass;
        sum += e[i];
        if (full || e[i] < (double)s->min_p) continue;
        probs[order[i]] = e[i];
        total += e[i];
    }
    for (int32_t i = 0; i < V; i++) probs[i] /= total;
}

/* ----------------------------------------------------------------------------------- acceptance --- */

double probs_normalise(double *v, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += v[i];
    for (int32_t i = 0; i < n && sum > 0; i++) v[i] /= sum;
    return sum;
}

/* The next candidate is sampled from `from` and verified by R against D. Naive is D = a point mass (3.4). */
static double accepts(const double *r, const double *d, const double *from, int32_t k, probs_how how,
                      spec_verify_rule rule)
{
    double sum = 0;
    for (int32_t y = 0; y < V && k > 0; y++) {
        double r2[V], d2[V], from2[V], mass = d[y];
        if (!(from[y] > 0)) continue;
        for (int32_t i = 0; i < V; i++) {
            d2[i] = rule == SPEC_VERIFY_NAIVE ? i == y : d[i];
            r2[i] = d[y] > 0 || rule == SPEC_VERIFY_NAIVE ? fmax(r[i] - d2[i], 0) : r[i];
            from2[i] = how == PROBS_WITHOUT && i == y ? 0 : from[i];
        }
        if (rule == SPEC_VERIFY_NAIVE) mass = 1;
        const double a = mass > 0 ? fmin(1, r[y] / mass) : 0;
        if (rule == SPEC_VERIFY_MSS) d2[y] = 0;
        const bool more = a < 1 && probs_normalise(r2, V) > 0 && probs_normalise(from2, V) > 0;
        if (rule == SPEC_VERIFY_MSS) (void)probs_normalise(d2, V);
        sum += from[y] * (a + (more ? (1 - a) * accepts(r2, d2, from2, k - 1, how, rule) : 0));
    }
    return sum;
}

double probs_accepts(const double *p, const double *q, int32_t k, probs_how how, spec_verify_rule rule)
{
    if (how != PROBS_TOP) return accepts(p, q, q, k, how, rule);
    double left[V], sum = 0;
    memcpy(left, q, sizeof left);
    for (; k > 0; k--) {
        int32_t best = 0;
        for (int32_t i = 1; i < V; i++)
            if (left[i] > left[best]) best = i;
        if (left[best] > 0) sum += p[best];
        left[best] = 0;
    }
    return sum;
}
