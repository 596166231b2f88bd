/* support_accept.c - see support_accept.h. */
#include "tests/support_accept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref_traversal.h"
#include "tests/support_statistics.h"
#include "tests/support_model.h"

enum { V = PROBS_V };

/* ------------------------------------------------------------ verification on the host, right and wrong --- */

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

/* Places of k siblings in the order in which they are verified. */
static void sibling_order(int32_t *order, const int32_t *y, const float *q, int32_t k, probs_fault fault)
{
    for (int32_t i = 0; i < k; i++) {
        int32_t j = i;
        for (; fault == FAULT_ORDER && j > 0 && q[y[i]] > q[y[order[j - 1]]]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
}

/* One node, algorithms.md 3.2. repeat: candidates were sampled with replacement. */
static void accept(const float *p, const float *q, int32_t n, const int32_t *y, const float *u, int32_t k, float u_last,
                  bool repeat, probs_fault fault, int32_t *choice, int32_t *token)
{
    double r[V], d[V] = { 0 }, last = (double)u_last;
    int32_t order[SPEC_MAX_CHILD];
    for (int32_t i = 0; i < n; i++) r[i] = (double)p[i], d[i] = k > 0 ? (double)q[i] : 0;
    for (int32_t i = 0; fault == FAULT_ROOT_Q && i < n; i++) d[i] = sqrt(d[i]);
    probs_normalise(d, n);
    for (int32_t i = 0; fault == FAULT_SHARE_OF_Q && i < n; i++) d[i] *= 0.6;
    sibling_order(order, y, q, k, fault);
    *choice = -1;
    for (int32_t i = 0; i < k; i++) {
        const int32_t j = order[i];
        if (d[y[j]] == 0) continue;
        if ((double)u[j] * d[y[j]] < r[y[j]]) {
            *choice = j, *token = y[j];
            return;
        }
        if (fault == FAULT_ONE_UNIFORM) last = (double)u[j];
        for (int32_t v = 0; v < n; v++) r[v] = r[v] > d[v] ? r[v] - d[v] : 0;
        (void)probs_normalise(r, n);
        if (repeat) continue;
        d[y[j]] = 0;
        if (probs_normalise(d, n) <= 0) break;
    }
    for (int32_t i = 0; fault == FAULT_LAST_FROM_P && i < n; i++) r[i] = (double)p[i];
    *token = draw(r, n, last);
}

/* What stands behind a session's operation while a fault is planted; a job runs on one thread. */
static _Thread_local struct {
    const spec_backend_ops *ops;
    probs_fault fault;
} planted;

/* Device rows from the first to the last that is named, in one copy. */
typedef struct probs_rows {
    float *data;
    int32_t first, ld;
} probs_rows;

static spec_status fetch(probs_rows *out, spec_queue *queue, const float *base, int32_t ld, const int32_t *row,
                         int32_t n)
{
    int32_t first = INT32_MAX, end = 0;
    for (int32_t i = 0; i < n; i++) {
        if (row[i] >= 0 && row[i] < first) first = row[i];
        if (row[i] >= end) end = row[i] + 1;
    }
    *out = (probs_rows){ .first = first, .ld = ld };
    if (end == 0) return SPEC_OK;
    const size_t size = (size_t)(end - first) * (size_t)ld;
    out->data = calloc(size, sizeof *out->data);
    return planted.ops->download(queue, out->data, base + (size_t)first * (size_t)ld, size * sizeof *out->data);
}

static const float *row_at(const probs_rows *r, int32_t row)
{
    static const float none[V];
    return row < 0 ? none : r->data + (size_t)(row - r->first) * (size_t)r->ld;
}

static spec_status accept_rows(spec_queue *queue, const spec_accept_args *a, probs_rows *p, probs_rows *q)
{
    SPEC_TRY(fetch(p, queue, a->p, a->ld_p, a->host_p_row, a->n_row));
    SPEC_TRY(fetch(q, queue, a->q, a->ld_q, a->host_q_row, a->n_row));
    SPEC_TRY(planted.ops->sync(queue));
    for (int32_t i = 0; i < a->n_row; i++) {
        const int32_t first = a->host_first_candidate[i];
        accept(row_at(p, a->host_p_row[i]), row_at(q, a->host_q_row[i]), a->n_vocab, a->host_candidate + first,
              a->host_u + first, a->host_first_candidate[i + 1] - first, a->host_u_last[i], a->repeat != 0,
              planted.fault, &a->host_out_choice[i], &a->host_out_token[i]);
    }
    return SPEC_OK;
}

void probs_plant(const spec_backend_ops *ops, probs_fault fault)
{
    planted.ops = ops, planted.fault = fault;
}

spec_status probs_faulty_accept(spec_queue *queue, const spec_accept_args *a)
{
    probs_rows p = { 0 }, q = { 0 };
    const spec_status status = accept_rows(queue, a, &p, &q);
    free(p.data);
    free(q.data);
    return status;
}

/* --- whole trees --- */

static ref_fault tree_fault(void)
{
    switch (planted.fault) {
    case FAULT_LAST_FROM_P: return REF_BONUS_OF_P;
    case FAULT_ORDER: return REF_SORTED;
    case FAULT_RESIDUAL_OF_P: return REF_RESIDUAL_OF_P;
    case FAULT_WEIGHT_LOST: return REF_WEIGHT_LOST;
    default: return REF_RIGHT;
    }
}

/* The tree of rows [first, end). */
static void accept_tree(const spec_accept_tree_args *a, const probs_rows *p, const probs_rows *q, int32_t first, int32_t end)
{
    static _Thread_local ref_leaves leaves;
    static _Thread_local double rows[2][REF_NODES][V];
    int32_t parent[REF_NODES];
    ref_tree t = { .n = end - first, .v = a->n_vocab, .parent = parent, .token = a->host_token + first };
    for (int32_t i = 0; i < t.n; i++) {
        for (int32_t v = 0; v < t.v; v++) {
            const double d = (double)row_at(q, a->host_q_row[first + i])[v];
            rows[0][i][v] = (double)row_at(p, a->host_p_row[first + i])[v];
            rows[1][i][v] = planted.fault == FAULT_ROOT_Q ? sqrt(d) : d;
        }
        if (a->host_q_row[first + i] >= 0) (void)probs_normalise(rows[1][i], t.v);
        parent[i] = a->host_parent[first + i] < 0 ? -1 : a->host_parent[first + i] - first;
        t.p[i] = rows[0][i];
        t.q[i] = i > 0 ? rows[1][parent[i]] : NULL;
    }
    ref_traversal(&leaves, &t, tree_fault());
    for (int32_t k = 0; k < leaves.n; k++) {
        const int32_t row = first + leaves.node[k];
        a->host_out_prob[row] = (float)leaves.accept[k];
        a->host_out_token[row] = draw(leaves.b[k], t.v, (double)a->host_u_last[row]);
    }
}

static spec_status accept_trees(spec_queue *queue, const spec_accept_tree_args *a, probs_rows *p, probs_rows *q)
{
    SPEC_TRY(fetch(p, queue, a->p, a->ld_p, a->host_p_row, a->n_row));
    SPEC_TRY(fetch(q, queue, a->q, a->ld_q, a->host_q_row, a->n_row));
    SPEC_TRY(planted.ops->sync(queue));
    for (int32_t first = 0, end; first < a->n_row; first = end) {
        end = first + 1;
        while (end < a->n_row && a->host_parent[end] >= 0) end++;
        accept_tree(a, p, q, first, end);
    }
    return SPEC_OK;
}

spec_status probs_faulty_accept_tree(spec_queue *queue, const spec_accept_tree_args *a)
{
    probs_rows p = { 0 }, q = { 0 };
    const spec_status status = accept_trees(queue, a, &p, &q);
    free(p.data);
    free(q.data);
    return status;
}

/* ------------------------------------------------------------------------- a request's words, wrong --- */

/* In a chain the row in front is the parent's; the rows of a tree share their first edit. */
static bool is_child(const spec_adjust_row *row, const spec_adjust_row *front)
{
    return row->first_edit == front->first_edit && row->src == front->src + 1;
}

spec_status probs_faulty_adjust(spec_queue *queue, const spec_adjust_args *a)
{
    spec_adjust_args args = *a;
    spec_adjust_row *rows = calloc((size_t)a->n_row, sizeof *rows);
    for (int32_t i = 0; i < a->n_row; i++) {
        const spec_adjust_row *row = &a->host_row[i], *from = i > 0 && is_child(row, row - 1) ? row - 1 : row;
        rows[i] = *row;
        rows[i].first_own = from->first_own, rows[i].n_own = from->n_own, rows[i].mask = from->mask;
    }
    args.host_row = rows;
    spec_status status = speci_adjust(planted.ops, queue, &args, &speci_malloc);
    if (status == SPEC_OK) status = planted.ops->sync(queue); /* rows are read until then */
    free(rows);
    return status;
}

/* ------------------------------------------------------------------------------------- proposals --- */

typedef enum probs_proposal {
    SAMPLED,        /* siblings sampled without replacement, in draw order */
    SORTED,       /* the same by falling q */
    REPEATED,     /* independent draws, duplicates and all */
    MERGED,       /* independent draws, duplicates removed */
    TOP,          /* the likeliest */
    STOPPED,      /* sampled; no third where the second one's q is small */
    DROPPED_LAST, /* sampled; the third is dropped where its own q is small */
    DROPPED       /* sampled; each is dropped where its own q is small */
} probs_proposal;

/* What of k candidates in draw order is proposed, and in which order; the number that is left. */
static int32_t filter(probs_proposal how, const double *q, double small, int32_t *y, int32_t k)
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

static bool with_replacement(probs_proposal how) { return how == REPEATED || how == MERGED; }
/* The k likeliest. */
static int32_t top(const double *q, int32_t n, int32_t *y, int32_t k)
{
    double left[V];
    memcpy(left, q, (size_t)n * sizeof *left);
    for (int32_t j = 0; j < k; j++) {
        y[j] = 0;
        for (int32_t i = 1; i < n; i++)
            if (left[i] > left[y[j]]) y[j] = i;
        left[y[j]] = 0;
    }
    return k;
}

/* ------------------------------------------------------------------- the fixture, exactly --- */

/* algorithms.md 3.8. The distribution of what is emitted follows from the operation's own answers: for every proposal,
 * the borders of each uniform are found by bisection over its 2^24 values. */
static const double fixture_p[] = { .22, .08, .30, .25, .15 }, fixture_q[] = { .30, .24, .20, .16, .10 };
enum { FIXTURE_V = 5, FIXTURE_ROWS = 125, MAX_CANDIDATE = 3 };

static const struct fixture_case {
    const char *name;
    probs_proposal proposal;
    int32_t repeat; /* the rule for draws with replacement */
    probs_fault fault;
    double accepted, distance; /* accepted -1: not known */
} fixture_cases[] = {
    { "without replacement", SAMPLED, 0, FAULT_NONE, 0.99348, 0 },
    { "with replacement", REPEATED, 1, FAULT_NONE, 0.93002, 0 },
    { "independent, duplicates skipped", REPEATED, 0, FAULT_NONE, -1, 0 },
    { "independent, duplicates removed", MERGED, 0, FAULT_NONE, -1, 0 },
    { "stopped by the second", STOPPED, 0, FAULT_NONE, -1, 0 },
    { "without replacement, on the host", SAMPLED, 0, FAULT_HOST, 0.99348, 0 },
    { "with replacement, on the host", REPEATED, 1, FAULT_HOST, 0.93002, 0 },
    { "bug: siblings sorted by q", SORTED, 0, FAULT_NONE, -1, 0.34654 },
    { "bug: top 3 verified by p/q", TOP, 0, FAULT_NONE, -1, 0.51333 },
    { "bug: replacement rule on draws without", SAMPLED, 1, FAULT_NONE, -1, 0.00652 },
    { "bug: replacement rule, duplicates removed", MERGED, 1, FAULT_NONE, -1, 0.00338 },
    { "bug: third dropped for its own q", DROPPED_LAST, 0, FAULT_NONE, -1, 0.01980 },
    { "bug: each dropped for its own q", DROPPED, 0, FAULT_NONE, -1, 0.29415 },
    { "bug: last draw from p", SAMPLED, 0, FAULT_LAST_FROM_P, -1, 0.00489 },
    { "bug: verified by the root of q", SAMPLED, 0, FAULT_ROOT_Q, -1, 0.06261 },
};

typedef struct fixture {
    spec_session *s;
    const spec_backend_ops *ops;
    spec_status (*accept)(spec_queue *, const spec_accept_args *);
    void *p, *q;
    int32_t n; /* proposals */
    double weight[FIXTURE_ROWS];
    int32_t y[FIXTURE_ROWS][MAX_CANDIDATE], k[FIXTURE_ROWS];
    int32_t repeat;
    /* one call */
    float u[FIXTURE_ROWS][MAX_CANDIDATE], u_last[FIXTURE_ROWS];
    int32_t choice[FIXTURE_ROWS], token[FIXTURE_ROWS];
} fixture;

/* Uniforms are multiples of 2^-24. */
enum { U_END = 1 << 24 };
static const float largest = (float)(U_END - 1) * 0x1p-24f;

static float middle(int32_t low, int32_t high)
{
    const int32_t i = (low + high) / 2;
    return i < U_END ? (float)i * 0x1p-24f : largest;
}

/* All ordered triples with their probability, as candidates. */
static void fixture_proposals(fixture *f, probs_proposal how)
{
    f->n = 0;
    for (int32_t code = 0; code < FIXTURE_ROWS; code++) {
        int32_t *y = f->y[f->n];
        double weight = 1, left = 1;
        const int32_t triple[] = { code / 25, code / 5 % 5, code % 5 };
        if (how == TOP && code > 0) break;
        if (how == TOP) {
            f->k[0] = top(fixture_q, FIXTURE_V, y, 3);
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
        row[i] = i, q_row[i] = i, first[i] = n;
        for (int32_t j = 0; j < f->k[i]; j++) y[n] = f->y[i][j], u[n++] = f->u[i][j];
    }
    first[f->n] = n;
    OK(f->ops->upload(f->s->queue, f->p, p, sizeof p));
    OK(f->ops->upload(f->s->queue, f->q, q, sizeof q));
    OK(f->accept(f->s->queue, &(spec_accept_args){ .p = f->p, .q = f->q, .ld_p = FIXTURE_V, .ld_q = FIXTURE_V,
                                                   .n_vocab = FIXTURE_V, .n_row = f->n, .n_candidate = n,
                                                   .repeat = f->repeat,
                                                   .host_p_row = row, .host_q_row = q_row,
                                                   .host_first_candidate = first, .host_candidate = y, .host_u = u,
                                                   .host_u_last = f->u_last, .host_out_choice = f->choice,
                                                   .host_out_token = f->token }));
    OK(f->ops->sync(f->s->queue));
}

/* Adds what is accepted as candidate j; reach: the probability of getting so far. The uniforms of the others are at
 * their largest, which rejects whoever can be rejected. */
static void fixture_accept(fixture *f, int32_t j, double *reach, double *probs, double *accepted)
{
    int32_t low[FIXTURE_ROWS], high[FIXTURE_ROWS];
    for (int32_t i = 0; i < f->n; i++) low[i] = 0, high[i] = U_END;
    for (int bit = 0; bit <= 24; bit++) {
        for (int32_t i = 0; i < f->n; i++)
            for (int32_t k = 0; k < MAX_CANDIDATE; k++) f->u[i][k] = k == j ? middle(low[i], high[i]) : largest;
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
        probs[f->y[i][j]] += f->weight[i] * reach[i] * t;
        *accepted += f->weight[i] * reach[i] * t;
        reach[i] *= 1 - t;
    }
}

/* Adds the last draw: the borders between tokens. */
static void fixture_last(fixture *f, const double *reach, double *probs)
{
    int32_t before[FIXTURE_ROWS] = { 0 };
    for (int32_t v = 0; v < FIXTURE_V; v++) {
        int32_t low[FIXTURE_ROWS], high[FIXTURE_ROWS];
        for (int32_t i = 0; i < f->n; i++) low[i] = 0, high[i] = U_END;
        for (int bit = 0; bit <= 24; bit++) {
            for (int32_t i = 0; i < f->n; i++) {
                f->u_last[i] = middle(low[i], high[i]);
                for (int32_t k = 0; k < MAX_CANDIDATE; k++) f->u[i][k] = largest;
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
            probs[v] += f->weight[i] * reach[i] * (double)(low[i] - before[i]) / U_END;
            before[i] = low[i];
        }
    }
}

static void check_fixture_case(fixture *f, const struct fixture_case *c)
{
    double reach[FIXTURE_ROWS], probs[FIXTURE_V] = { 0 }, accepted = 0, distance = 0;
    fixture_proposals(f, c->proposal);
    f->repeat = c->repeat;
    f->accept = c->fault == FAULT_NONE ? f->ops->accept : probs_faulty_accept;
    probs_plant(f->ops, c->fault);
    for (int32_t i = 0; i < f->n; i++) reach[i] = 1, f->u_last[i] = 0;
    for (int32_t j = 0; j < MAX_CANDIDATE; j++) fixture_accept(f, j, reach, probs, &accepted);
    fixture_last(f, reach, probs);
    for (int32_t v = 0; v < FIXTURE_V; v++) distance += 0.5 * fabs(probs[v] - fixture_p[v]);
    print_message("  %-44s accepted %.5f, distance from p %.5f\n", c->name, accepted, distance);
    /* the known numbers have five decimals; uniforms have 24 bits, distributions are float32 */
    assert_true(c->accepted < 0 || fabs(accepted - c->accepted) < 1e-5);
    assert_true(fabs(distance - c->distance) < (c->distance > 0 ? 1e-5 : 2e-6));
}

void probs_check_fixture(spec_model *model)
{
    fixture *f = calloc(1, sizeof *f);
    f->s = support_session(model, 8, 64); /* a queue for 512 rows and candidates */
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
