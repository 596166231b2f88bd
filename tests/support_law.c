/* support_law.c - see support_law.h.
 *
 * A draw is a sequence of one prompt token with its own seed, decoded for two steps and removed. Sequences are packed
 * N_SEQ at a time; jobs (case, seed) run on as many threads as there are CPUs, each with a session of its own over shared
 * models. Counted are
 *   single   the first emitted token                             against p(a)
 *   joint    the first two emitted tokens, in one step or two     against p(a) p(b | a)
 *   in step  where the first draft was accepted: what follows it  against p(b | a)
 *   across   the first token of the second step                   against p(c | all that the first step emitted)
 *   accept   whether the first draft was accepted                 against sum min(p, q), or sum p q for the naive rule
 * "in step" and "across" are conditional: given what was emitted before, a token has the target's law, whatever the
 * drafts were. Trees of several candidates per node are put in the place of the drafter's proposal, with the laws they
 * were drawn from; from there on they take the library's own way. */
#include "tests/support_law.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algo.h"
#include "tests/support_model.h"

enum { V = 8, N_SEQ = 64, N_START = V, MAX_CANDIDATE = 3 };

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

typedef struct chi_square {
    double x;
    int32_t dof;
    bool impossible; /* something was seen that has probability zero */
} chi_square;

/* One multinomial sample. Cells that expect less than 8 are pooled. */
static void chi_add(chi_square *c, const double *p, const int64_t *count, int32_t n)
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

static double chi_p(const chi_square *c)
{
    if (c->impossible) return 0;
    return c->dof > 0 ? support_gamma_q(0.5 * c->dof, 0.5 * c->x) : 1;
}

static void check_chi_square(void **state)
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

/* ----------------------------------------------------------------------------- expected laws --- */

/* Contexts: the start token and up to three more, numbered by length, then as base-8 numbers. */
enum { MAX_CONTEXT = 3, N_CONTEXT = 1 + V + V * V + V * V * V };

static int32_t context_number(const int32_t *tokens, int32_t n)
{
    static const int32_t first[MAX_CONTEXT + 1] = { 0, 1, 1 + V, 1 + V + V * V };
    int32_t code = 0;
    for (int32_t i = 0; i < n; i++) code = code * V + tokens[i];
    return first[n] + code;
}

typedef struct logits_table {
    float row[N_START][N_CONTEXT][V];
} logits_table;

/* By plain steps: one token at a time, no drafter. */
static void read_logits(logits_table *t, spec_model *m)
{
    spec_session *s = support_session(m, 1, 1);
    for (int32_t start = 0; start < N_START; start++)
        for (int32_t code = 0; code < V * V * V; code++) {
            const int32_t next[MAX_CONTEXT + 1] = { code / (V * V), code / V % V, code % V, 0 };
            int32_t seq;
            OK(spec_sequence_add(s, &seq, &start, 1, NULL));
            for (int32_t i = 0; i <= MAX_CONTEXT; i++)
                support_plain_step(s, seq, i == 0 ? start : next[i - 1], next[i],
                                   t->row[start][context_number(next, i)]);
            OK(spec_sequence_remove(s, seq));
        }
    spec_session_close(s);
}

/* Temperature, top-k, top-p, min-p, softmax, in the plainest way (spec.h, spec_sampling). */
static void plain_law(double *law, const float *logits, const spec_sampling *s)
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
    for (int32_t i = 0; i < V; i++) law[i] = 0;
    for (int32_t i = 0; i < k; i++) {
        const bool full = s->top_p > 0 && s->top_p < 1 && sum >= (double)s->top_p * mass;
        sum += e[i];
        if (full || e[i] < (double)s->min_p) continue;
        law[order[i]] = e[i];
        total += e[i];
    }
    for (int32_t i = 0; i < V; i++) law[i] /= total;
}

/* ------------------------------------------------------------ verification on the host, right and wrong --- */

typedef enum law_fault {
    FAULT_NONE,        /* the backend's own operation */
    FAULT_HOST,        /* this file's, right: shows that what follows is wrong for its own reason only */
    FAULT_REPLACEMENT, /* D never changes: the rule for draws with replacement */
    FAULT_LAST_FROM_P, /* after all rejections a draw from p instead of R */
    FAULT_ROOT_Q,      /* judged by the square root of q, normalised */
    FAULT_ONE_UNIFORM, /* the last draw with the uniform that rejected */
    FAULT_LATE_STATE   /* commit loses the accepted drafts: the state stays behind the text */
} law_fault;

static double normalise(double *v, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += v[i];
    for (int32_t i = 0; i < n && sum > 0; i++) v[i] /= sum;
    return sum;
}

static int32_t draw(const double *v, int32_t n, double u)
{
    double total = 0, sum = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) total += v[i];
    for (int32_t i = 0; i < n; i++) {
        if (!(v[i] > 0)) continue;
        sum += v[i], last = i;
        if (sum > u * total) return i;
    }
    return last;
}

/* One node. q NULL: candidates are judged by point masses. */
static void judge(const float *p, const float *q, int32_t n, const int32_t *y, const float *u, int32_t k, float u_last,
                  law_fault fault, int32_t *choice, int32_t *token)
{
    double r[V], d[V] = { 0 }, last = (double)u_last;
    for (int32_t i = 0; i < n; i++) r[i] = (double)p[i], d[i] = q ? (double)q[i] : 0;
    for (int32_t i = 0; fault == FAULT_ROOT_Q && i < n; i++) d[i] = sqrt(d[i]);
    normalise(d, n);
    *choice = -1;
    for (int32_t j = 0; j < k; j++) {
        if (!q) memset(d, 0, sizeof d), d[y[j]] = 1;
        if (d[y[j]] == 0) continue;
        if ((double)u[j] * d[y[j]] < r[y[j]]) {
            *choice = j, *token = y[j];
            return;
        }
        if (fault == FAULT_ONE_UNIFORM) last = (double)u[j];
        for (int32_t i = 0; i < n; i++) r[i] = r[i] > d[i] ? r[i] - d[i] : 0;
        normalise(r, n);
        if (fault == FAULT_REPLACEMENT) continue;
        d[y[j]] = 0;
        if (normalise(d, n) <= 0) break;
    }
    for (int32_t i = 0; fault == FAULT_LAST_FROM_P && i < n; i++) r[i] = (double)p[i];
    *token = draw(r, n, last);
}

/* What stands behind a session's `accept` while a fault is planted; a job runs on one thread. */
static _Thread_local struct {
    const spec_backend_ops *ops;
    law_fault fault;
} planted;

static spec_status judge_rows(spec_queue *queue, const spec_accept_args *a, float (*p)[V], float (*q)[V])
{
    const size_t bytes = (size_t)a->n_vocab * sizeof(float);
    for (int32_t i = 0; i < a->n_row; i++) {
        const int32_t q_row = a->host_q_row[i];
        SPEC_TRY(planted.ops->download(queue, p[i], a->p + (size_t)a->host_p_row[i] * (size_t)a->ld_p, bytes));
        if (q_row >= 0) SPEC_TRY(planted.ops->download(queue, q[i], a->q + (size_t)q_row * (size_t)a->ld_q, bytes));
    }
    SPEC_TRY(planted.ops->sync(queue));
    for (int32_t i = 0; i < a->n_row; i++) {
        const int32_t first = a->host_first_candidate[i];
        judge(p[i], a->host_q_row[i] >= 0 ? q[i] : NULL, a->n_vocab, a->host_candidate + first, a->host_u + first,
              a->host_first_candidate[i + 1] - first, a->host_u_last[i], planted.fault, &a->host_out_choice[i],
              &a->host_out_token[i]);
    }
    return SPEC_OK;
}

static spec_status faulty_accept(spec_queue *queue, const spec_accept_args *a)
{
    float(*rows)[V] = calloc(2 * (size_t)a->n_row, sizeof *rows);
    const spec_status status = judge_rows(queue, a, rows, rows + a->n_row);
    free(rows);
    return status;
}

/* ------------------------------------------------------------------------------------- proposals --- */

typedef enum law_proposal {
    CHAIN,        /* the drafter's own, by spec_step */
    CHAIN_CALLS,  /* the same by draft, score, verify, commit */
    DRAWN,        /* siblings drawn without replacement, in draw order */
    SORTED,       /* the same by falling q */
    REPEATED,     /* independent draws, duplicates and all: for the fixture (a tree has no equal siblings) */
    MERGED,       /* independent draws, duplicates removed */
    TOP,          /* the likeliest, verified by the naive rule */
    TOP_AS_DRAWN, /* the likeliest, judged as if they had been drawn */
    STOPPED,      /* drawn; no third where the second one's q is small */
    DROPPED_LAST, /* drawn; the third is dropped where its own q is small */
    DROPPED       /* drawn; each is dropped where its own q is small */
} law_proposal;

/* What of k candidates in draw order is proposed, and in which order; the number that is left. */
static int32_t filter(law_proposal how, const double *q, double small, int32_t *y, int32_t k)
{
    int32_t n = 0;
    for (int32_t j = 0; j < k; j++) {
        bool keep = true;
        for (int32_t i = 0; i < n && how == MERGED; i++) keep = keep && y[i] != y[j];
        if (how == STOPPED && j == 2) keep = q[y[1]] >= small;
        if (how == DROPPED_LAST && j == 2) keep = q[y[2]] >= small;
        if (how == DROPPED) keep = q[y[j]] >= small;
        if (keep) y[n++] = y[j];
    }
    for (int32_t i = 0; how == SORTED && i < n; i++)
        for (int32_t j = i + 1; j < n; j++)
            if (q[y[j]] > q[y[i]]) {
                const int32_t t = y[i];
                y[i] = y[j], y[j] = t;
            }
    return n;
}

static bool with_replacement(law_proposal how) { return how == REPEATED || how == MERGED; }
static bool by_rank(law_proposal how) { return how == TOP || how == TOP_AS_DRAWN; }

/* Up to k candidates from q; u [k]. */
static int32_t propose(law_proposal how, const double *q, int32_t n, double small, const float *u, int32_t *y, int32_t k)
{
    double left[V];
    int32_t count = 0;
    memcpy(left, q, (size_t)n * sizeof *left);
    for (; count < k; count++) {
        int32_t best = -1;
        if (by_rank(how)) {
            for (int32_t i = 0; i < n; i++)
                if (left[i] > 0 && (best < 0 || left[i] > left[best])) best = i;
        } else {
            best = draw(left, n, (double)u[count]);
        }
        if (best < 0) break;
        y[count] = best;
        if (!with_replacement(how)) left[best] = 0;
    }
    return filter(how, q, small, y, count);
}

/* ------------------------------------------------------------------- the fixture, exactly --- */

/* algorithms.md 3.8. The law of what is emitted follows from the operation's own answers: for every proposal, the
 * borders of each uniform are found by bisection over its 2^24 values. */
static const double fixture_p[] = { .22, .08, .30, .25, .15 }, fixture_q[] = { .30, .24, .20, .16, .10 };
enum { FIXTURE_V = 5, FIXTURE_ROWS = 125 };

static const struct fixture_case {
    const char *name;
    law_proposal proposal;
    law_fault fault;
    double accepted, distance; /* accepted -1: not known */
} fixture_cases[] = {
    { "without replacement", DRAWN, FAULT_NONE, 0.99348, 0 },
    { "top 3, naive", TOP, FAULT_NONE, 0.60, 0 },
    { "independent, duplicates skipped", REPEATED, FAULT_NONE, -1, 0 },
    { "independent, duplicates removed", MERGED, FAULT_NONE, -1, 0 },
    { "stopped by the second", STOPPED, FAULT_NONE, -1, 0 },
    { "this file's own rule", DRAWN, FAULT_HOST, 0.99348, 0 },
    { "with replacement", REPEATED, FAULT_REPLACEMENT, 0.93002, 0 },
    { "bug: siblings sorted by q", SORTED, FAULT_NONE, -1, 0.34654 },
    { "bug: top 3 judged by p/q", TOP_AS_DRAWN, FAULT_NONE, -1, 0.51333 },
    { "bug: replacement rule on draws without", DRAWN, FAULT_REPLACEMENT, -1, 0.00652 },
    { "bug: replacement rule, duplicates removed", MERGED, FAULT_REPLACEMENT, -1, 0.00338 },
    { "bug: third dropped for its own q", DROPPED_LAST, FAULT_NONE, -1, 0.01980 },
    { "bug: each dropped for its own q", DROPPED, FAULT_NONE, -1, 0.29415 },
    { "bug: last draw from p", DRAWN, FAULT_LAST_FROM_P, -1, 0.00489 },
    { "bug: judged by the root of q", DRAWN, FAULT_ROOT_Q, -1, 0.06261 },
};

typedef struct fixture {
    spec_session *s;
    const spec_backend_ops *ops;
    spec_status (*accept)(spec_queue *, const spec_accept_args *);
    void *p, *q;
    int32_t n; /* proposals */
    double weight[FIXTURE_ROWS];
    int32_t y[FIXTURE_ROWS][MAX_CANDIDATE], k[FIXTURE_ROWS];
    bool naive;
    /* one call */
    float u[FIXTURE_ROWS][MAX_CANDIDATE], u_last[FIXTURE_ROWS];
    int32_t choice[FIXTURE_ROWS], token[FIXTURE_ROWS];
} fixture;

#define U(i) ((float)(i) * 0x1p-24f)
enum { U_END = 1 << 24 };

/* All ordered triples with their probability, as candidates. */
static void fixture_proposals(fixture *f, law_proposal how)
{
    f->n = 0;
    for (int32_t code = 0; code < FIXTURE_ROWS; code++) {
        int32_t *y = f->y[f->n];
        double weight = 1, left = 1;
        const int32_t triple[] = { code / 25, code / 5 % 5, code % 5 };
        if (by_rank(how) && code > 0) break;
        if (by_rank(how)) {
            f->k[0] = propose(how, fixture_q, FIXTURE_V, 0, NULL, y, 3);
        } else {
            for (int32_t j = 0; j < 3; j++) {
                for (int32_t i = 0; i < j && !with_replacement(how); i++)
                    if (triple[i] == triple[j]) weight = 0;
                weight *= fixture_q[triple[j]] / left;
                if (!with_replacement(how)) left -= fixture_q[triple[j]];
                y[j] = triple[j];
            }
            if (weight <= 0) continue;
            f->k[f->n] = filter(how, fixture_q, 0.20, y, 3);
        }
        f->weight[f->n++] = weight;
    }
}

static void fixture_call(fixture *f)
{
    float p[FIXTURE_ROWS][FIXTURE_V], q[FIXTURE_ROWS][FIXTURE_V], u[FIXTURE_ROWS * MAX_CANDIDATE];
    int32_t row[FIXTURE_ROWS], q_row[FIXTURE_ROWS], first[FIXTURE_ROWS + 1], y[FIXTURE_ROWS * MAX_CANDIDATE], n = 0;
    for (int32_t i = 0; i < f->n; i++) {
        for (int32_t v = 0; v < FIXTURE_V; v++) p[i][v] = (float)fixture_p[v], q[i][v] = (float)fixture_q[v];
        row[i] = i, q_row[i] = f->naive ? -1 : i, first[i] = n;
        for (int32_t j = 0; j < f->k[i]; j++) y[n] = f->y[i][j], u[n++] = f->u[i][j];
    }
    first[f->n] = n;
    OK(f->ops->upload(f->s->queue, f->p, p, sizeof p));
    OK(f->ops->upload(f->s->queue, f->q, q, sizeof q));
    OK(f->accept(f->s->queue, &(spec_accept_args){ .p = f->p, .q = f->q, .ld_p = FIXTURE_V, .ld_q = FIXTURE_V,
                                                   .n_vocab = FIXTURE_V, .n_row = f->n, .n_candidate = n,
                                                   .host_p_row = row, .host_q_row = q_row,
                                                   .host_first_candidate = first, .host_candidate = y, .host_u = u,
                                                   .host_u_last = f->u_last, .host_out_choice = f->choice,
                                                   .host_out_token = f->token }));
    OK(f->ops->sync(f->s->queue));
}

/* Adds what is accepted as candidate j; reach: the probability of getting so far. The uniforms of the others are at
 * their largest, which rejects whoever can be rejected. */
static void fixture_accept(fixture *f, int32_t j, double *reach, double *law, double *accepted)
{
    int32_t low[FIXTURE_ROWS], high[FIXTURE_ROWS];
    for (int32_t i = 0; i < f->n; i++) low[i] = 0, high[i] = U_END;
    for (int bit = 0; bit <= 24; bit++) {
        for (int32_t i = 0; i < f->n; i++)
            for (int32_t k = 0; k < MAX_CANDIDATE; k++) f->u[i][k] = k == j ? U((low[i] + high[i]) / 2 < U_END ? (low[i] + high[i]) / 2 : U_END - 1)
                                                                               : U(U_END - 1);
        fixture_call(f);
        for (int32_t i = 0; i < f->n; i++) {
            const int32_t mid = (low[i] + high[i]) / 2;
            if (low[i] == high[i]) continue;
            if (f->choice[i] == j) low[i] = mid + 1;
            else high[i] = mid;
        }
    }
    for (int32_t i = 0; i < f->n; i++) {
        const double t = (double)low[i] / U_END; /* uniforms below are accepted */
        if (j >= f->k[i]) continue;
        law[f->y[i][j]] += f->weight[i] * reach[i] * t;
        *accepted += f->weight[i] * reach[i] * t;
        reach[i] *= 1 - t;
    }
}

/* Adds the last draw: the borders between tokens. */
static void fixture_last(fixture *f, const double *reach, double *law)
{
    int32_t before[FIXTURE_ROWS] = { 0 };
    for (int32_t v = 0; v < FIXTURE_V; v++) {
        int32_t low[FIXTURE_ROWS], high[FIXTURE_ROWS];
        for (int32_t i = 0; i < f->n; i++) low[i] = 0, high[i] = U_END;
        for (int bit = 0; bit <= 24; bit++) {
            for (int32_t i = 0; i < f->n; i++) {
                f->u_last[i] = U((low[i] + high[i]) / 2 < U_END ? (low[i] + high[i]) / 2 : U_END - 1);
                for (int32_t k = 0; k < MAX_CANDIDATE; k++) f->u[i][k] = U(U_END - 1);
            }
            fixture_call(f);
            for (int32_t i = 0; i < f->n; i++) {
                const int32_t mid = (low[i] + high[i]) / 2;
                if (low[i] == high[i]) continue;
                if (f->choice[i] < 0 && f->token[i] <= v) low[i] = mid + 1;
                else high[i] = mid;
            }
        }
        for (int32_t i = 0; i < f->n; i++) {
            law[v] += f->weight[i] * reach[i] * (double)(low[i] - before[i]) / U_END;
            before[i] = low[i];
        }
    }
}

static spec_backend *backend;
static spec_model *target, *drafter;

static void check_fixture_case(fixture *f, const struct fixture_case *c)
{
    double reach[FIXTURE_ROWS], law[FIXTURE_V] = { 0 }, accepted = 0, distance = 0;
    fixture_proposals(f, c->proposal);
    f->naive = c->proposal == TOP;
    f->accept = c->fault == FAULT_NONE ? f->ops->accept : faulty_accept;
    planted.ops = f->ops, planted.fault = c->fault;
    for (int32_t i = 0; i < f->n; i++) reach[i] = 1, f->u_last[i] = 0;
    for (int32_t j = 0; j < MAX_CANDIDATE; j++) fixture_accept(f, j, reach, law, &accepted);
    fixture_last(f, reach, law);
    for (int32_t v = 0; v < FIXTURE_V; v++) distance += 0.5 * fabs(law[v] - fixture_p[v]);
    print_message("  %-44s accepted %.5f, distance from p %.5f\n", c->name, accepted, distance);
    /* the known numbers have five decimals; uniforms have 24 bits, laws are float32 */
    assert_true(c->accepted < 0 || fabs(accepted - c->accepted) < 1e-5);
    assert_true(fabs(distance - c->distance) < (c->distance > 0 ? 1e-5 : 2e-6));
}

static void check_fixture(void **state)
{
    (void)state;
    fixture *f = calloc(1, sizeof *f);
    f->s = support_session(target, 8, N_SEQ); /* a queue for 512 rows and candidates */
    f->ops = f->s->ops;
    const size_t bytes = FIXTURE_ROWS * FIXTURE_V * sizeof(float);
    OK(f->ops->alloc(f->s->dev, &f->p, bytes));
    OK(f->ops->alloc(f->s->dev, &f->q, bytes));
    for (size_t i = 0; i < sizeof fixture_cases / sizeof *fixture_cases; i++)
        check_fixture_case(f, &fixture_cases[i]);
    f->ops->free(f->s->dev, f->p, bytes);
    f->ops->free(f->s->dev, f->q, bytes);
    spec_session_close(f->s);
    free(f);
}

/* ---------------------------------------------------------------------------------- the harness --- */

typedef struct law_case {
    const char *name;
    law_proposal proposal;
    spec_verify_rule rule;
    int32_t n_draft;          /* chains: K. Trees: children of the root ... */
    int32_t n_second;         /* ... and of each of them */
    int32_t start;            /* the prompt */
    spec_sampling sampling;
    float draft_temperature;
    /* known bugs */
    law_fault fault;
    double small;             /* q that is "small" */
    int64_t n_draw;
} law_case;

#define PLAIN { 1.0f, 0, 0, 0, 0 }
#define CUT { 0.7f, 6, 0.95f, 0, 0 }
#define MIN_P { 0.7f, 0, 0.98f, 0.1f, 0 }

static const law_case cases[] = {
    { "chain of 1", CHAIN, SPEC_VERIFY_AUTO, 1, 0, 3, PLAIN, 0, 0, 0, 0 },
    { "chain of 2", CHAIN, SPEC_VERIFY_MSS, 2, 0, 4, PLAIN, 0, 0, 0, 0 },
    { "chain of 4", CHAIN, SPEC_VERIFY_MSS, 4, 0, 0, PLAIN, 0, 0, 0, 0 },
    { "chain of 1, truncated", CHAIN_CALLS, SPEC_VERIFY_AUTO, 1, 0, 6, CUT, 0, 0, 0, 0 },
    { "chain of 2, truncated by min-p", CHAIN_CALLS, SPEC_VERIFY_MSS, 2, 0, 1, MIN_P, 0, 0, 0, 0 },
    { "chain of 4, drafted colder", CHAIN, SPEC_VERIFY_MSS, 4, 0, 3, MIN_P, 0.5f, 0, 0, 0 },
    { "chain of 2, naive", CHAIN, SPEC_VERIFY_NAIVE, 2, 0, 3, PLAIN, 0, 0, 0, 0 },
    { "chain of 4, naive, truncated", CHAIN_CALLS, SPEC_VERIFY_NAIVE, 4, 0, 0, CUT, 0, 0, 0, 0 },
    { "tree 3 x 2", DRAWN, SPEC_VERIFY_AUTO, 3, 2, 3, PLAIN, 0, 0, 0, 0 },
    { "tree 3 x 2, truncated, drafted hotter", DRAWN, SPEC_VERIFY_MSS, 3, 2, 6, CUT, 1.3f, 0, 0, 0 },
};
enum { N_CASE = sizeof cases / sizeof *cases };

static const law_case controls[] = {
    { "right: this file's own rule", DRAWN, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, FAULT_HOST, 0, 30000 },
    { "right: duplicates removed", MERGED, SPEC_VERIFY_MSS, 3, 2, 3, PLAIN, 0, 0, 0, 30000 },
    { "right: stopped by the second", STOPPED, SPEC_VERIFY_MSS, 3, 2, 3, PLAIN, 0, 0, 0.1, 30000 },
    { "right: top 3, naive", TOP, SPEC_VERIFY_AUTO, 3, 2, 3, PLAIN, 0, 0, 0, 30000 },
    { "right: top 3, point masses", TOP, SPEC_VERIFY_MSS, 3, 2, 3, PLAIN, 0, 0, 0, 30000 },
};
enum { N_CONTROL = sizeof controls / sizeof *controls };

static const law_case bugs[] = {
    { "bug: siblings sorted by q", SORTED, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, 0, 0, 10000 },
    { "bug: top 3 judged by p/q", TOP_AS_DRAWN, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, 0, 0, 10000 },
    { "bug: replacement rule on draws without", DRAWN, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, FAULT_REPLACEMENT, 0, 400000 },
    { "bug: replacement rule, duplicates removed", MERGED, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, FAULT_REPLACEMENT, 0, 400000 },
    { "bug: third dropped for its own q", DROPPED_LAST, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, 0, 0.1, 400000 },
    { "bug: each dropped for its own q", DROPPED, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, 0, 0.1, 10000 },
    { "bug: last draw from p", DRAWN, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, FAULT_LAST_FROM_P, 0, 200000 },
    { "bug: last draw from p, chain", CHAIN, SPEC_VERIFY_MSS, 2, 0, 3, PLAIN, 0, FAULT_LAST_FROM_P, 0, 10000 },
    { "bug: judged by the root of q", DRAWN, SPEC_VERIFY_MSS, 3, 0, 3, PLAIN, 0, FAULT_ROOT_Q, 0, 200000 },
    { "bug: judged by the root of q, chain", CHAIN, SPEC_VERIFY_MSS, 2, 0, 3, PLAIN, 0, FAULT_ROOT_Q, 0, 10000 },
    { "bug: one uniform for two draws, chain", CHAIN, SPEC_VERIFY_MSS, 2, 0, 3, PLAIN, 0, FAULT_ONE_UNIFORM, 0, 10000 },
    { "bug: accepted drafts lost from the state", CHAIN, SPEC_VERIFY_MSS, 2, 0, 3, PLAIN, 0, FAULT_LATE_STATE, 0, 10000 },
};
enum { N_BUG = sizeof bugs / sizeof *bugs };

typedef struct law_counts {
    int64_t n, accepted, single[V], joint[V * V], in_step[V][V], across[N_CONTEXT][V];
} law_counts;

typedef struct law_job {
    const law_case *c;
    int32_t seed;
    uint64_t first; /* draws [first, first + n) of the seed */
    int64_t n;
    spec_status status;
    char message[256];
    law_counts counts;
} law_job;

static logits_table *target_logits, *draft_logits;

static bool is_chain(const law_case *c) { return c->proposal == CHAIN || c->proposal == CHAIN_CALLS; }

static spec_sampling draft_sampling(const law_case *c)
{
    spec_sampling s = c->sampling;
    if (c->draft_temperature > 0) s.temperature = c->draft_temperature;
    return s;
}

/* A session and what a job keeps for each of its sequences. */
typedef struct law_work {
    const law_case *c;
    spec_session *s;
    spec_drafter *dr;
    spec_backend_ops ops;
    float q[N_SEQ * MAX_CANDIDATE * MAX_CANDIDATE * V]; /* laws of proposals, as the session keeps them */
    double law[N_CONTEXT][V];                           /* the drafter's */
} law_work;

/* Puts a tree in the place of the drafter's proposal of sequence seq, which has emitted tokens [n]. */
static void put_tree(law_work *w, int32_t seq, const int32_t *tokens, int32_t n)
{
    const law_case *c = w->c;
    algo_seq *q = &w->s->seqs[seq];
    spec_tree *t = &q->draft;
    int32_t context[MAX_CONTEXT + 1];
    memcpy(context, tokens, (size_t)n * sizeof *tokens);
    t->n = 0;
    (void)spec_tree_add(t, -1, q->ids[q->n_ids - 1], 1);
    t->kind = c->proposal == TOP ? SPEC_TREE_CHOSEN : SPEC_TREE_DRAWN;
    q->draft_step = q->n_step;
    const int32_t n_inner = n == 0 && c->n_second > 0 ? 1 + c->n_draft : 1; /* the second step: the root's children only */
    for (int32_t node = 0; node < n_inner && node < t->n; node++) {
        int32_t y[MAX_CANDIDATE], k = node == 0 ? c->n_draft : c->n_second;
        float u[MAX_CANDIDATE];
        if (node > 0) context[n] = t->token[node];
        const double *law = w->law[context_number(context, n + (node > 0))];
        for (int32_t i = 0; i < V; i++)
            w->q[((size_t)seq * (size_t)w->s->n_q + (size_t)node) * V + (size_t)i] = (float)law[i];
        for (int32_t j = 0; j < k; j++)
            u[j] = spec_uniform(q->sampling.seed, q->n_step, SPEC_STREAM_RACE, (uint32_t)(node * MAX_CANDIDATE + j));
        t->q_row[node] = node;
        k = propose(c->proposal, law, V, c->small, u, y, k);
        for (int32_t j = 0; j < k; j++) (void)spec_tree_add(t, node, y[j], 0);
    }
}

static spec_status tree_step(law_work *w, const int32_t *seqs, const int32_t (*tokens)[MAX_CONTEXT + 8],
                             const int32_t *n_tokens)
{
    spec_session *s = w->s;
    for (int32_t i = 0; i < N_SEQ; i++) {
        put_tree(w, seqs[i], tokens[i], n_tokens[i] < MAX_CONTEXT ? n_tokens[i] : MAX_CONTEXT);
        s->step_trees[i] = &s->seqs[seqs[i]].draft;
    }
    SPEC_TRY(s->ops->upload(s->queue, s->q, w->q, s->q_bytes));
    SPEC_TRY(spec_score(s, seqs, N_SEQ, s->step_trees));
    SPEC_TRY(speci_verify(s, seqs, N_SEQ, s->rule, s->step_paths, s->step_n_path, s->step_token));
    for (int32_t i = 0; i < N_SEQ; i++)
        SPEC_TRY(spec_commit(s, seqs[i], s->step_paths + i * s->n_node, s->step_n_path[i], s->step_token[i]));
    return SPEC_OK;
}

static spec_status four_calls(law_work *w, const int32_t *seqs)
{
    spec_session *s = w->s;
    const spec_tree *trees[N_SEQ];
    int32_t path[8], n_path, token;
    SPEC_TRY(spec_draft(s, seqs, N_SEQ, trees));
    SPEC_TRY(spec_score(s, seqs, N_SEQ, trees));
    for (int32_t i = 0; i < N_SEQ; i++) {
        SPEC_TRY(spec_verify(s, seqs[i], SPEC_VERIFY_AUTO, path, &n_path, &token));
        SPEC_TRY(spec_commit(s, seqs[i], path, n_path, token));
    }
    return SPEC_OK;
}

/* One step of all sequences; what each emitted is appended to tokens. */
static spec_status one_step(law_work *w, const int32_t *seqs, int32_t (*tokens)[MAX_CONTEXT + 8], int32_t *n_tokens)
{
    spec_step_result results[N_SEQ];
    if (w->c->proposal == CHAIN) SPEC_TRY(spec_step(w->s, seqs, N_SEQ, results));
    else if (w->c->proposal == CHAIN_CALLS) SPEC_TRY(four_calls(w, seqs));
    else SPEC_TRY(tree_step(w, seqs, (const int32_t(*)[MAX_CONTEXT + 8])tokens, n_tokens));
    for (int32_t i = 0; i < N_SEQ; i++) {
        const int32_t *ids;
        size_t n;
        SPEC_TRY(spec_sequence_ids(w->s, seqs[i], &ids, &n));
        const int32_t root = 0;
        if (w->c->fault == FAULT_LATE_STATE) speci_net_commit(w->s->net, seqs[i], &root, 1);
        n_tokens[i] = (int32_t)n - 1;
        memcpy(tokens[i], ids + 1, (n - 1) * sizeof *ids);
    }
    return SPEC_OK;
}

static void count(law_counts *k, const int32_t *tokens, int32_t n_first)
{
    k->n++;
    k->single[tokens[0]]++;
    k->joint[tokens[0] * V + tokens[1]]++;
    if (n_first > 1) k->accepted++, k->in_step[tokens[0]][tokens[1]]++;
    if (n_first <= MAX_CONTEXT) k->across[context_number(tokens, n_first)][tokens[n_first]]++;
}

static spec_status batch(law_work *w, law_job *job, uint64_t first)
{
    int32_t seqs[N_SEQ], tokens[N_SEQ][MAX_CONTEXT + 8], n_tokens[N_SEQ] = { 0 }, n_first[N_SEQ];
    for (int32_t i = 0; i < N_SEQ; i++) {
        spec_sampling sampling = w->c->sampling;
        sampling.seed = ((uint64_t)job->seed << 40) + first + (uint64_t)i;
        SPEC_TRY(spec_sequence_add(w->s, &seqs[i], &w->c->start, 1, &sampling));
    }
    SPEC_TRY(one_step(w, seqs, tokens, n_tokens));
    memcpy(n_first, n_tokens, sizeof n_first);
    SPEC_TRY(one_step(w, seqs, tokens, n_tokens));
    for (int32_t i = 0; i < N_SEQ; i++) {
        count(&job->counts, tokens[i], n_first[i]);
        SPEC_TRY(spec_sequence_remove(w->s, seqs[i]));
    }
    return SPEC_OK;
}

static spec_status work_open(law_work *w)
{
    const law_case *c = w->c;
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    dp.n_draft = is_chain(c) ? c->n_draft : MAX_CANDIDATE * MAX_CANDIDATE;
    dp.temperature = c->draft_temperature;
    SPEC_TRY(spec_drafter_from_model(&w->dr, drafter, &dp));
    sp.n_seq = N_SEQ, sp.n_ctx = 64, sp.verify = c->rule;
    SPEC_TRY(spec_session_open(&w->s, target, w->dr, &sp));
    const spec_sampling ds = draft_sampling(c);
    for (int32_t i = 0; i < N_CONTEXT; i++) plain_law(w->law[i], draft_logits->row[c->start][i], &ds);
    w->ops = *w->s->ops;
    if (c->fault == FAULT_NONE || c->fault == FAULT_LATE_STATE) return SPEC_OK;
    planted.ops = w->s->ops, planted.fault = c->fault;
    w->ops.accept = faulty_accept;
    w->s->ops = &w->ops;
    return SPEC_OK;
}

static void run_job(law_job *job)
{
    law_work *w = calloc(1, sizeof *w);
    w->c = job->c;
    job->status = work_open(w);
    for (int64_t i = 0; i < job->n && job->status == SPEC_OK; i += N_SEQ)
        job->status = batch(w, job, job->first + (uint64_t)i);
    if (job->status != SPEC_OK) snprintf(job->message, sizeof job->message, "%s", spec_last_error());
    spec_session_close(w->s);
    spec_drafter_close(w->dr);
    free(w);
}

/* Jobs on threads: each takes the next one that nobody has. */
typedef struct law_pool {
    law_job *jobs;
    int32_t n;
    atomic_int next;
} law_pool;

static void *worker(void *arg)
{
    law_pool *pool = arg;
    for (int32_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->n;) run_job(&pool->jobs[i]);
    return NULL;
}

static void run_jobs(law_job *jobs, int32_t n)
{
    enum { MAX_THREAD = 16 };
    pthread_t threads[MAX_THREAD];
    law_pool pool = { .jobs = jobs, .n = n };
    const int32_t n_thread = speci_n_cpus() < MAX_THREAD ? speci_n_cpus() : MAX_THREAD;
    for (int32_t i = 0; i < n_thread; i++) assert_int_equal(pthread_create(&threads[i], NULL, worker, &pool), 0);
    for (int32_t i = 0; i < n_thread; i++) pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < n; i++)
        if (jobs[i].status != SPEC_OK) fail_msg("%s, seed %d: %s", jobs[i].c->name, jobs[i].seed, jobs[i].message);
}

/* ------------------------------------------------------------------------------------ statistics --- */

enum { SINGLE, JOINT, IN_STEP, ACROSS, ACCEPT, N_STATISTIC };
static const char *const statistic_names[] = { "single", "joint", "in step", "across", "accept" };

/* P(the first draft of a chain is accepted). */
static double chain_accepts(const law_case *c, const double *p)
{
    double q[V], sum = 0;
    const spec_sampling ds = draft_sampling(c);
    plain_law(q, draft_logits->row[c->start][0], &ds);
    for (int32_t i = 0; i < V; i++) sum += c->rule == SPEC_VERIFY_NAIVE ? p[i] * q[i] : p[i] < q[i] ? p[i] : q[i];
    return sum;
}

static void p_values(double out[N_STATISTIC], const law_case *c, const law_counts *k)
{
    chi_square chi[N_STATISTIC] = { { 0 } };
    double law[N_CONTEXT][V], joint[V * V];
    for (int32_t i = 0; i < N_CONTEXT; i++) plain_law(law[i], target_logits->row[c->start][i], &c->sampling);
    chi_add(&chi[SINGLE], law[0], k->single, V);
    for (int32_t a = 0; a < V; a++) {
        const double *after = law[context_number(&a, 1)];
        for (int32_t b = 0; b < V; b++) joint[a * V + b] = law[0][a] * after[b];
        chi_add(&chi[IN_STEP], after, k->in_step[a], V);
    }
    chi_add(&chi[JOINT], joint, k->joint, V * V);
    for (int32_t i = 0; i < N_CONTEXT; i++) chi_add(&chi[ACROSS], law[i], k->across[i], V);
    if (is_chain(c)) {
        const double accepts = chain_accepts(c, law[0]), p[] = { accepts, 1 - accepts };
        const int64_t seen[] = { k->accepted, k->n - k->accepted };
        chi_add(&chi[ACCEPT], p, seen, 2);
    }
    for (int i = 0; i < N_STATISTIC; i++) out[i] = chi_p(&chi[i]);
}

static void add_counts(law_counts *to, const law_counts *from)
{
    const int64_t *x = (const int64_t *)(const void *)from;
    int64_t *y = (int64_t *)(void *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *y; i++) y[i] += x[i];
}

static int32_t check_p(const law_case *c, const char *what, const law_counts *k, double bar)
{
    double p[N_STATISTIC];
    int32_t n_bad = 0;
    p_values(p, c, k);
    for (int i = 0; i < N_STATISTIC; i++)
        if (!(p[i] > bar)) {
            n_bad++;
            print_error("  %s, %s: %s has p = %.3g in %lld draws; the bar is %.3g\n", c->name, what, statistic_names[i],
                        p[i], (long long)k->n, bar);
        }
    return n_bad;
}

static const law_size *size;

static void check_laws(void **state)
{
    (void)state;
    const int32_t n_job = size->n_seed * N_CASE;
    const double bar = 0.001 / ((n_job + N_CASE) * N_STATISTIC);
    int32_t n_bad = 0;
    law_job *jobs = calloc((size_t)n_job, sizeof *jobs);
    law_counts *all = calloc(N_CASE, sizeof *all);
    for (int32_t i = 0; i < n_job; i++)
        jobs[i] = (law_job){ .c = &cases[i % N_CASE], .seed = 1 + i / N_CASE, .first = (uint64_t)(i % N_CASE) << 32,
                             .n = size->n_draw / N_CASE };
    run_jobs(jobs, n_job);
    for (int32_t i = 0; i < n_job; i++) {
        char what[32];
        snprintf(what, sizeof what, "seed %d", jobs[i].seed);
        n_bad += check_p(jobs[i].c, what, &jobs[i].counts, bar);
        add_counts(&all[i % N_CASE], &jobs[i].counts);
    }
    for (int32_t i = 0; i < N_CASE; i++) {
        double p[N_STATISTIC];
        p_values(p, &cases[i], &all[i]);
        n_bad += check_p(&cases[i], "all seeds", &all[i], bar);
        print_message("  %-40s %8lld draws, first draft accepted %.3f; p:", cases[i].name, (long long)all[i].n,
                      (double)all[i].accepted / (double)all[i].n);
        for (int k = 0; k < N_STATISTIC; k++) print_message(" %s %.3g", statistic_names[k], p[k]);
        print_message("\n");
    }
    free(all);
    free(jobs);
    if (n_bad) fail_msg("%d statistics under the bar", n_bad);
}

/* Runs one case in parts, so that all threads have work. */
static void run_case(law_counts *k, const law_case *c)
{
    enum { PARTS = 8 };
    law_job *jobs = calloc(PARTS, sizeof *jobs);
    memset(k, 0, sizeof *k);
    for (int i = 0; i < PARTS; i++)
        jobs[i] = (law_job){ .c = c, .seed = 1, .first = (uint64_t)(i + 32) << 32, .n = c->n_draw / PARTS };
    run_jobs(jobs, PARTS);
    for (int i = 0; i < PARTS; i++) add_counts(k, &jobs[i].counts);
    free(jobs);
}

static void check_controls(void **state)
{
    (void)state;
    law_counts k;
    int32_t n_bad = 0;
    for (int32_t i = 0; i < N_CONTROL; i++) {
        run_case(&k, &controls[i]);
        n_bad += check_p(&controls[i], "control", &k, 0.001 / (N_CONTROL * N_STATISTIC));
    }
    if (n_bad) fail_msg("%d statistics under the bar", n_bad);
}

static void check_bugs(void **state)
{
    (void)state;
    law_counts k;
    int32_t n_unseen = 0;
    for (int32_t i = 0; i < N_BUG; i++) {
        double p[N_STATISTIC], least = 1;
        int worst = 0;
        if (bugs[i].n_draw > size->n_bug_max) continue;
        run_case(&k, &bugs[i]);
        p_values(p, &bugs[i], &k);
        for (int j = 0; j < N_STATISTIC; j++)
            if (p[j] < least) least = p[j], worst = j;
        print_message("  %-44s %8lld draws: p = %.3g (%s)\n", bugs[i].name, (long long)k.n, least,
                      statistic_names[worst]);
        n_unseen += !(least < 1e-9);
    }
    if (n_unseen) fail_msg("%d known bugs were not seen", n_unseen);
}

/* ------------------------------------------------------------------------------------------ main --- */

static int open_models(void **state)
{
    (void)state;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 1; /* the jobs are the threads */
    backend = support_backend_again(&p);
    if (!backend) return -1;
    target = support_model(backend, SPEC_TEST_DIR "/golden/law8-target", SPEC_DTYPE_F32);
    drafter = support_model(backend, SPEC_TEST_DIR "/golden/law8-drafter", SPEC_DTYPE_F32);
    target_logits = calloc(1, sizeof *target_logits);
    draft_logits = calloc(1, sizeof *draft_logits);
    read_logits(target_logits, target);
    read_logits(draft_logits, drafter);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    free(target_logits);
    free(draft_logits);
    spec_model_close(drafter);
    spec_model_close(target);
    spec_backend_close(backend);
    return 0;
}

int support_law_run(const law_size *s)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_chi_square), cmocka_unit_test(check_fixture), cmocka_unit_test(check_bugs),
        cmocka_unit_test(check_controls),   cmocka_unit_test(check_laws),
    };
    size = s;
    return cmocka_run_group_tests_name("decode_law", tests, open_models, close_models);
}
