/* test_op_accept_tree.c - acceptance in whole trees (spec_accept_tree_args): the probabilities of all nodes against traversal
 * verification done leaf by leaf, and what would follow each of them. */
#include <math.h>
#include <stdio.h>

#include "tests/ref_ops.h"
#include "tests/ref_traversal.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32

enum { IDS = 48, MOST_ROWS = 400, MOST_TREES = 8 };

/* Trees of one call. Distributions have IDS ids that are not zero, anywhere in rows of n_vocab columns: the reference knows
 * them by number. */
typedef struct trees {
    int32_t n_vocab, n_row, n_tree, first[MOST_TREES + 1];
    int32_t id[IDS];                        /* column, ascending */
    double p[MOST_ROWS][IDS], q[MOST_ROWS][IDS];
    int32_t row[MOST_ROWS], q_row[MOST_ROWS], parent[MOST_ROWS], number[MOST_ROWS], token[MOST_ROWS]; /* number: of the token */
    float u_last[MOST_ROWS], prob[MOST_ROWS];
    int32_t out[MOST_ROWS];
} trees;

static void normalise(double *row)
{
    double sum = 0;
    for (int32_t i = 0; i < IDS; i++) sum += row[i];
    for (int32_t i = 0; i < IDS; i++) row[i] = test_round(row[i] / sum, F32);
}

/* Some ids that are likely, some that are not there; what the target thinks of it, now and then the same. */
static void random_rows(test_random *r, double *p, double *q)
{
    const int32_t power = 1 + test_below(r, 5), drop = 3 + test_below(r, 6);
    const double noise = test_below(r, 20) == 0 ? 0 : 3 * test_uniform(r);
    for (int32_t i = 0; i < IDS; i++) {
        q[i] = test_below(r, drop) == 0 ? 0 : pow(test_uniform(r), power);
        p[i] = test_below(r, 10) == 0 && noise > 0 ? 0.1 * test_uniform(r) : q[i] * exp(noise * test_signed(r));
    }
    normalise(p);
    normalise(q);
}

/* A token that q has, and no earlier candidate of the row; -1: there is none. */
static int32_t candidate(const trees *t, test_random *r, int32_t parent)
{
    for (int32_t tries = 0; tries < 200; tries++) {
        const int32_t y = test_below(r, IDS);
        bool free = t->q[parent][y] > 0;
        for (int32_t c = parent + 1; c < t->n_row; c++) free = free && !(t->parent[c] == parent && t->number[c] == y);
        if (free) return y;
    }
    return -1;
}

static void add_row(trees *t, test_random *r, int32_t parent, int32_t number)
{
    const int32_t i = t->n_row++;
    random_rows(r, t->p[i], t->q[i]);
    t->row[i] = i, t->q_row[i] = i, t->parent[i] = parent, t->number[i] = number;
    t->token[i] = number < 0 ? -1 : t->id[number];
    t->u_last[i] = (float)test_uniform(r);
}

/* Level by level; a row has up to `width` candidates. */
static void add_tree(trees *t, test_random *r, int32_t n, int32_t width)
{
    const int32_t root = t->first[t->n_tree++] = t->n_row;
    int32_t depth[MOST_ROWS] = { 0 };
    add_row(t, r, -1, -1);
    for (int32_t i = root; i < t->n_row; i++)
        for (int32_t k = 1 + test_below(r, width); k > 0 && t->n_row - root < n && depth[i - root] < SPEC_MAX_DEPTH; k--) {
            const int32_t y = candidate(t, r, i);
            if (y < 0) break;
            depth[t->n_row - root] = depth[i - root] + 1;
            add_row(t, r, i, y);
        }
    t->first[t->n_tree] = t->n_row;
}

static trees *make_trees(test_random *r, int32_t n_vocab)
{
    static const struct {
        int32_t n, width;
    } sizes[] = { { 1, 1 }, { 5, 1 }, { 2, 1 }, { 16, 3 }, { 40, 1 }, { 1, 1 }, { 90, 2 }, { 150, 8 } };
    trees *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->n_vocab = n_vocab;
    for (int32_t i = 0; i < IDS; i++) t->id[i] = (int32_t)((int64_t)i * n_vocab / IDS) + test_below(r, n_vocab / IDS);
    for (int32_t i = 0; i < N_ELEMENTS(sizes); i++) add_tree(t, r, sizes[i].n, sizes[i].width);
    for (int32_t i = 0; i < t->n_row; i++) {
        bool leaf = true;
        for (int32_t c = i + 1; c < t->n_row; c++) leaf = leaf && t->parent[c] != i;
        if (leaf) t->q_row[i] = -1;
    }
    return t;
}

static double *spread(const trees *t, double (*rows)[IDS])
{
    double *v = calloc((size_t)t->n_row * (size_t)t->n_vocab, sizeof *v);
    assert_non_null(v);
    for (int32_t i = 0; i < t->n_row; i++)
        for (int32_t k = 0; k < IDS; k++) v[(size_t)i * (size_t)t->n_vocab + (size_t)t->id[k]] = rows[i][k];
    return v;
}

static spec_accept_tree_args args_of(trees *t, const test_buffer *p, const test_buffer *q)
{
    return (spec_accept_tree_args){ .p = p->data, .q = q->data, .ld_p = t->n_vocab, .ld_q = t->n_vocab, .n_vocab = t->n_vocab,
                                    .n_row = t->n_row, .host_p_row = t->row, .host_q_row = t->q_row, .host_parent = t->parent,
                                    .host_token = t->token, .host_u_last = t->u_last, .host_out_prob = t->prob,
                                    .host_out_token = t->out };
}

static void reference(ref_leaves *out, const trees *t, int32_t first, int32_t end)
{
    ref_tree tree = { .n = end - first, .v = IDS, .token = t->number + first };
    int32_t parent[REF_NODES];
    for (int32_t i = first; i < end; i++) {
        parent[i - first] = i == first ? -1 : t->parent[i] - first;
        tree.p[i - first] = t->p[i];
        tree.q[i - first] = i == first ? NULL : t->q[t->parent[i]];
    }
    tree.parent = parent;
    ref_traversal(out, &tree, REF_RIGHT);
}

typedef struct compared {
    int32_t n_row, n_rough, n_token;
} compared;

/* Rows are compared that are asked once in a million times at least: behind a rejection that only rounding allows, what is left
 * is rounding too. Probabilities are quotients of sums in float32; where Z + 1 - w is small a few may be off by more. A draw
 * within rounding of a border could go either way, and after a row that is not accepted nothing is drawn. */
static void check_tree(const test_device *d, const trees *t, int32_t first, int32_t end, compared *c)
{
    static ref_leaves want;
    double asked = 1;
    reference(&want, t, first, end);
    for (int32_t k = 0; k < want.n && asked > 1e-6; asked *= 1 - want.accept[k++]) {
        const int32_t i = first + want.node[k], token = ref_draw(want.b[k], IDS, (double)t->u_last[i]);
        const double off = fabs((double)t->prob[i] - want.accept[k]), u = (double)t->u_last[i];
        c->n_row++;
        c->n_rough += off > 1e-5;
        if (!(off < 2e-3))
            fail_msg("%s: %d columns, row %d of a tree of %d: probability %.7f, not %.7f", d->name, t->n_vocab, i - first,
                     end - first, (double)t->prob[i], want.accept[k]);
        if (want.accept[k] < 1e-5 || ref_draw(want.b[k], IDS, u - 1e-4) != token || ref_draw(want.b[k], IDS, u + 1e-4) != token)
            continue;
        c->n_token++;
        if (t->out[i] != t->id[token]) fail_msg("%s: row %d: token %d, not %d", d->name, i, t->out[i], t->id[token]);
    }
}

static void each_tree(test_device *d)
{
    static const int32_t vocabularies[] = { IDS, 1000, 9999, 20011 };
    compared c = { 0 };
    test_random random = { 31 };
    if (!d->ops->accept_tree) {
        print_message("SKIP %s: it has no accept_tree\n", d->name);
        return;
    }
    for (int32_t v = 0; v < N_ELEMENTS(vocabularies); v++) {
        trees *t = make_trees(&random, vocabularies[v]);
        const size_t n = (size_t)t->n_row * (size_t)t->n_vocab;
        double *rows_p = spread(t, t->p), *rows_q = spread(t, t->q);
        test_buffer p = test_buffer_from(d, rows_p, n, F32), q = test_buffer_from(d, rows_q, n, F32);
        spec_queue *queue = test_row_queue(d, t->n_vocab);
        const spec_accept_tree_args a = args_of(t, &p, &q);
        test_ok(d->ops->accept_tree(queue, &a), "accept_tree");
        test_ok(d->ops->sync(queue), "sync");
        for (int32_t i = 0; i < t->n_tree; i++) check_tree(d, t, t->first[i], t->first[i + 1], &c);
        d->ops->queue_close(queue);
        test_buffer_free(&q), test_buffer_free(&p);
        free(rows_q), free(rows_p), free(t);
    }
    print_message("  %s: %d rows and %d tokens compared, %d probabilities off by more than 1e-5\n", d->name, c.n_row, c.n_token,
                  c.n_rough);
    assert_true(c.n_row > 400 && c.n_rough < c.n_row / 50 && c.n_token > 80);
}

static void test_trees(void **state)
{
    (void)state;
    test_each_device(each_tree);
}

/* --- on the brink --- */

enum { FEW = 4 };

/* Two rows below a root, a chain. What is found of each row. */
static void run_chain(const test_device *d, const double *p, const double *q, const int32_t *token, float *prob, int32_t *out)
{
    static const int32_t row[] = { 0, 1, 2 }, q_row[] = { 0, 1, -1 }, parent[] = { -1, 0, 1 };
    static const float u_last[] = { 0.5f, 0.5f, 0.5f };
    test_buffer bp = test_buffer_from(d, p, 3 * FEW, F32), bq = test_buffer_from(d, q, 3 * FEW, F32);
    spec_queue *queue = test_row_queue(d, FEW);
    const spec_accept_tree_args a = { .p = bp.data, .q = bq.data, .ld_p = FEW, .ld_q = FEW, .n_vocab = FEW, .n_row = 3,
                                      .host_p_row = row, .host_q_row = q_row, .host_parent = parent, .host_token = token,
                                      .host_u_last = u_last, .host_out_prob = prob, .host_out_token = out };
    test_ok(d->ops->accept_tree(queue, &a), "accept_tree");
    test_ok(d->ops->sync(queue), "sync");
    d->ops->queue_close(queue);
    test_buffer_free(&bq), test_buffer_free(&bp);
}

static void each_brink(test_device *d)
{
    static const struct {
        const char *name;
        double p[3 * FEW], q[3 * FEW];
        int32_t token[3];
        float prob[3];
        int32_t out[3]; /* -2: any */
    } cases[] = {
        { "p is q: Z is 0 and w is 1", { .25, .25, .5, 0, .5, .5, 0, 0, 0, 0, 1, 0 }, { .25, .25, .5, 0, .5, .5, 0, 0 },
          { -1, 0, 1 }, { 1, 1, 1 }, { 2, 0, 2 } },
        { "nothing but rounding is left: p without the candidate", { .5 - 1.0 / (1 << 25), .5, 1e-13, 0, 1, 0, 0, 0, 1, 0, 0, 0 },
          { .5, .5, 0, 0, 1, 0, 0, 0 }, { -1, 0, 0 }, { 1, -1, -1 }, { 1, -2, 0 } },
        { "the target wants no draft", { 0, 0, 0, 1, .5, .5, 0, 0, 1, 0, 0, 0 }, { 1, 0, 0, 0, .5, .5, 0, 0 }, { -1, 0, 0 },
          { 1, 0, 0 }, { 3, -2, -2 } },
        { "the draft was never drawn", { .5, .5, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0 }, { 0, 1, 0, 0, 1, 0, 0, 0 }, { -1, 0, 0 },
          { 1, 0, 0 }, { 1, -2, -2 } },
        { "Z is 0 and w is not 1", { .25, .75, 0, 0, .5, .5, 0, 0, 1, 0, 0, 0 }, { 1, 0, 0, 0, .5, .5, 0, 0 }, { -1, 0, 0 },
          { 1, 0, .25f }, { 1, -2, 0 } },
        { "logits that are not numbers", { .5, .5, 0, 0, NAN, NAN, NAN, NAN, 0, 0, 0, 0 }, { .5, .5, 0, 0, .5, .5, 0, 0 },
          { -1, 0, 0 }, { 1, -1, -1 }, { -2, -1, -1 } },
    };
    if (!d->ops->accept_tree) return;
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        float prob[3] = { -7, -7, -7 };
        int32_t out[3] = { -7, -7, -7 };
        run_chain(d, cases[i].p, cases[i].q, cases[i].token, prob, out);
        for (int32_t k = 0; k < 3; k++)
            if ((cases[i].prob[k] >= 0 && fabsf(prob[k] - cases[i].prob[k]) > 1e-6f) || !(prob[k] >= 0 && prob[k] <= 1) ||
                (cases[i].out[k] > -2 && out[k] != cases[i].out[k]))
                fail_msg("%s, %s: row %d: probability %g, token %d", d->name, cases[i].name, k, (double)prob[k], out[k]);
    }
}

static void test_brink(void **state)
{
    (void)state;
    test_each_device(each_brink);
}

/* --- refused --- */

static void each_refused(test_device *d)
{
    test_random random = { 32 };
    if (!d->ops->accept_tree) return;
    trees *t = make_trees(&random, IDS);
    double *rows = spread(t, t->p);
    test_buffer p = test_buffer_from(d, rows, (size_t)t->n_row * IDS, F32);
    spec_queue *queue = test_row_queue(d, IDS);
    const int32_t root = t->first[3], last = t->first[4] - 1; /* a tree of 16 */
    const struct {
        int32_t *entry, value;
        const char *says;
    } wrong[] = {
        { &t->parent[0], 0, "row 0" },                { &t->parent[last], last, "is a candidate of row" },
        { &t->parent[last], 0, "is a candidate of" }, { &t->parent[last], root, "is a candidate of row" },
        { &t->token[last], IDS, "of 48" },            { &t->token[last], -1, "is token -1" },
        { &t->q_row[root], -1, "is a candidate of" },
    };
    for (int32_t i = 0; i < N_ELEMENTS(wrong); i++) {
        const spec_accept_tree_args a = args_of(t, &p, &p);
        const int32_t right = *wrong[i].entry;
        *wrong[i].entry = wrong[i].value;
        assert_int_equal(d->ops->accept_tree(queue, &a), SPEC_E_INVALID);
        if (!strstr(spec_last_error(), wrong[i].says)) fail_msg("%s: %d: %s", d->name, i, spec_last_error());
        *wrong[i].entry = right;
    }
    spec_accept_tree_args a = args_of(t, &p, &p);
    a.ld_q = IDS - 1;
    assert_int_equal(d->ops->accept_tree(queue, &a), SPEC_E_INVALID);
    a.ld_q = IDS, a.ld_p = IDS - 1;
    assert_int_equal(d->ops->accept_tree(queue, &a), SPEC_E_INVALID);
    d->ops->queue_close(queue);
    test_buffer_free(&p);
    free(rows), free(t);
}

static void test_refused(void **state)
{
    (void)state;
    test_each_device(each_refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_brink),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
