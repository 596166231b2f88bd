/* test_plan.c - a plan made ready leaves every tensor with the bits that its operations leave one by one, however the
 * backend fuses them: a norm and the product behind it, of a head; a product that makes the time steps of a scan, and the scan;
 * over random trees. A product that is no head may take the norm's factor itself: it is then near. And the tokens that a pass
 * ends with are of that pass alone. */
#include <math.h>
#include <stdio.h>

#include "tests/support_plan.h"

enum { NODES = 64, ROWS = TEST_NODES, MAX_PATH = 6 };

typedef struct plan_case {
    const char *name;
    int32_t n_in, n_out, glu;
} plan_case;

static const plan_case cases[] = {
    { "norm_linear", 256, 96, 0 },
    { "norm_linear_1152", 1152, 48, 0 },
    { "norm_linear_2560", 2560, 40, 0 },
    { "norm_linear_5120", 5120, 16, 0 },
    { "norm_linear_8192", 8192, 24, 0 },
    { "norm_linear_9216", 9216, 16, 0 },
    { "norm_linear_odd", 300, 72, 0 },
    { "norm_linear_tiles", 384, 6000, 0 },
    { "norm_glu", 768, 200, 1 },
    { "norm_glu_tiles", 128, 9000, 1 },
};

/* Two sets of tensors that begin alike: one for each way. */
typedef struct tensors {
    test_buffer x, normed, y;
} tensors;

typedef struct plan_test {
    const test_device *d;
    const plan_case *c;
    test_buffer norm_weight, bias;
    spec_weight *w;
    tensors of[2];
} plan_test;

static tensors make_tensors(const plan_test *t, spec_dtype type)
{
    const plan_case *c = t->c;
    const size_t n_y = (size_t)(c->glu ? c->n_out / 2 : c->n_out);
    test_random random = { 31 };
    double *x = test_values(&random, ROWS * (size_t)c->n_in, 2.0), *y = test_values(&random, ROWS * n_y, 2.0);
    tensors b;
    b.x = test_buffer_from(t->d, x, ROWS * (size_t)c->n_in, SPEC_DTYPE_F32);
    b.normed = test_buffer_from(t->d, x, ROWS * (size_t)c->n_in, type);
    b.y = test_buffer_from(t->d, y, ROWS * n_y, SPEC_DTYPE_F32);
    free(y);
    free(x);
    return b;
}

static void free_tensors(tensors *b)
{
    test_buffer *all[] = { &b->x, &b->normed, &b->y };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) test_buffer_free(all[i]);
}

static void make_ops(const plan_test *t, const tensors *b, bool head, spec_op ops[2])
{
    const plan_case *c = t->c;
    const int32_t n_y = c->glu ? c->n_out / 2 : c->n_out;
    const spec_view normed = test_view(&b->normed, c->n_in), y = test_view(&b->y, n_y);
    ops[0] = (spec_op){ .kind = SPEC_OP_NORM,
                        .u.norm = { .dim = c->n_in, .n_group = 1, .eps = 1e-5f, .weight = t->norm_weight.data,
                                    .x = test_view(&b->x, c->n_in), .y = normed } };
    ops[1] = (spec_op){ .kind = SPEC_OP_LINEAR, .head = head,
                        .u.linear = { .w = t->w, .n_in = c->n_in, .n_out = c->n_out, .glu = c->glu, .bias = t->bias.data,
                                      .act = c->glu ? SPEC_ACT_SILU : SPEC_ACT_NONE, .scale = 0.75f, .x = normed, .y = y } };
}

/* y of a product that is no head, which may have taken the norm's factor: a row of x is then rounded in front of it, and not
 * behind. */
static void compare_near(const plan_test *t, spec_dtype type, const spec_step_block *step, const test_buffer *ready,
                         const test_buffer *one_by_one)
{
    const int32_t n_y = t->c->glu ? t->c->n_out / 2 : t->c->n_out;
    double *got = test_read(ready), *want = test_read(one_by_one);
    test_compare(t->d, t->c->name, "y", got, want, step->n_row, n_y, test_tolerance(type));
    free(want);
    free(got);
}

static void check_ways(plan_test *t, spec_dtype type, const spec_step_block *step, bool head, const char *what)
{
    spec_op ops[2];
    for (int32_t i = 0; i < 2; i++) t->of[i] = make_tensors(t, type);
    make_ops(t, &t->of[0], head, ops);
    support_plan_run(t->d, ops, 2, step, NODES, 1);
    make_ops(t, &t->of[1], head, ops);
    support_plan_one_by_one(t->d, ops, 2, step, NODES, 1);
    const tensors *a = &t->of[0], *b = &t->of[1];
    const char *name = t->c->name;
    if (head) {
        support_plan_same(t->d, name, what, "normed", &a->normed, &b->normed);
        support_plan_same(t->d, name, what, "y", &a->y, &b->y);
    } else {
        compare_near(t, type, step, &a->y, &b->y);
    }
    for (int32_t i = 0; i < 2; i++) free_tensors(&t->of[i]);
}

static void check_step(plan_test *t, spec_dtype type, const test_seq *seqs, int32_t n_seq, const char *what)
{
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, n_seq, 0);
    check_ways(t, type, step, true, what);
    check_ways(t, type, step, false, what);
    free(step);
}

/* A random tree of n new nodes, behind fed ones or behind a replayed path. */
static void check_rows(plan_test *t, spec_dtype type, int32_t n, test_random *random)
{
    static const int32_t path[MAX_PATH] = { 0, 2, 3, 7, 8, 20 };
    int32_t parent[TEST_NODES];
    char what[96];
    const int32_t n_fed = n > 1 && n < 40 && test_below(random, 3) == 0 ? 1 + test_below(random, NODES - n) : 0;
    test_seq s = { .slot = test_below(random, TEST_SEQS), .parity = test_below(random, 2), .n_past = 9, .path = path,
                   .n_node = n_fed + n, .n_fed = n_fed, .parent = parent };
    parent[0] = -1;
    for (int32_t i = 1; i < s.n_node; i++) parent[i] = test_below(random, 2) ? i - 1 : test_below(random, i);
    if (n_fed == 0) {
        s.n_replay = test_below(random, MAX_PATH + 1);
        s.n_advance = test_below(random, 3) == 0 ? 1 : 0;
    }
    snprintf(what, sizeof what, "%s, %d rows, %d fed, path of %d, %d advance", spec_dtype_name(type), n, n_fed, s.n_replay,
             s.n_advance);
    check_step(t, type, &s, 1, what);
}

static void check_sequences(plan_test *t, spec_dtype type)
{
    static const int32_t parent[] = { -1, 0, 0, 1 }, path[] = { 0, 3 };
    const test_seq two[] = { { .slot = 1, .n_past = 5, .n_node = 4, .parent = parent },
                             { .slot = 6, .parity = 1, .n_past = 7, .n_replay = 2, .path = path, .n_node = 2, .parent = parent } };
    check_step(t, type, two, 2, "two sequences");
}

static void run_case(test_device *d, const plan_case *c, spec_dtype type)
{
    static const int32_t rows[] = { 1, 1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 32, 33, 63 };
    plan_test t = { .d = d, .c = c };
    test_random random = { 30 };
    double *w = test_values(&random, (size_t)c->n_in * (size_t)c->n_out, 1.7 / sqrt(c->n_in));
    double *v = test_values(&random, (size_t)c->n_in + (size_t)c->n_out, 1.0);
    t.w = test_weight(d, w, c->n_out, c->n_in, type, type, c->glu, 1);
    t.norm_weight = test_floats(d, v, (size_t)c->n_in);
    t.bias = test_floats(d, v, (size_t)c->n_out);
    for (int32_t i = 0; i < N_ELEMENTS(rows); i++) check_rows(&t, type, rows[i], &random);
    check_sequences(&t, type);
    test_buffer_free(&t.bias);
    test_buffer_free(&t.norm_weight);
    d->ops->weight_close(d->dev, t.w);
    free(v);
    free(w);
}

static void each(test_device *d)
{
    if (!d->ops->plan_prepare) {
        printf("%s: walks its plans\n", d->name);
        return;
    }
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        run_case(d, &cases[i], SPEC_DTYPE_BF16);
        run_case(d, &cases[i], SPEC_DTYPE_F16);
        if (i % 4 == 2) run_case(d, &cases[i], SPEC_DTYPE_F32);
    }
}

static void test_ready(void **state)
{
    (void)state;
    test_each_device(each);
}

/* ------------------------------------------------------------------- time steps, and the scan --- */

enum { STATES = 16 };

typedef struct dt_case {
    const char *name;
    int32_t heads, rank; /* channels, and inputs of the product */
    float scale;
    bool gate;
} dt_case;

static const dt_case dt_cases[] = {
    { "dt_scan", 64, 48, 1.0f, true },       { "dt_scan_odd", 37, 16, 1.0f, true },
    { "dt_scan_whole", 96, 128, 1.0f, true }, { "dt_scan_160", 80, 160, 1.0f, false },
    { "dt_scan_536", 48, 536, 1.0f, true },  { "dt_scan_1000", 32, 1000, 1.0f, true },
    { "dt_scan_rank_7", 40, 7, 1.0f, true }, { "dt_scan_scaled", 40, 48, 0.5f, true },
};

/* What the two operations write. */
typedef struct dt_tensors {
    test_buffer dt, y, state, cache_dt, cache_b;
} dt_tensors;

typedef struct dt_test {
    const test_device *d;
    const dt_case *c;
    spec_dtype type;
    spec_weight *w;
    test_buffer select, x, z, replay, a, skip, bias; /* select: [inputs of the product | B | C] */
} dt_test;

static test_buffer random_values(const dt_test *t, size_t n, double scale, spec_dtype type, test_random *random)
{
    double *v = test_values(random, n, scale);
    const test_buffer b = test_buffer_from(t->d, v, n, type);
    free(v);
    return b;
}

static dt_tensors make_dt_tensors(const dt_test *t)
{
    const size_t heads = (size_t)t->c->heads, nodes = TEST_SEQS * 2 * NODES;
    test_random random = { 32 };
    dt_tensors b;
    b.dt = random_values(t, ROWS * heads, 1.0, SPEC_DTYPE_F32, &random);
    b.y = random_values(t, ROWS * heads, 1.0, t->type, &random);
    b.state = random_values(t, TEST_SEQS * heads * STATES, 1.0, SPEC_DTYPE_F32, &random);
    b.cache_dt = random_values(t, nodes * heads, 0.5, SPEC_DTYPE_F32, &random);
    b.cache_b = random_values(t, nodes * STATES, 1.0, t->type, &random);
    return b;
}

static void make_dt_ops(const dt_test *t, const dt_tensors *b, spec_op ops[2])
{
    const int32_t n = t->c->heads, rank = t->c->rank;
    const spec_view select = test_view(&t->select, rank + 2 * STATES);
    spec_view in_b = select, in_c = select;
    in_b.data = (char *)select.data + (size_t)rank * test_type_size(t->type);
    in_c.data = (char *)in_b.data + STATES * test_type_size(t->type);
    ops[0] = (spec_op){ .kind = SPEC_OP_LINEAR,
                        .u.linear = { .w = t->w, .n_in = rank, .n_out = n, .scale = t->c->scale, .x = select,
                                      .y = test_view(&b->dt, n) } };
    ops[1] = (spec_op){ .kind = SPEC_OP_SCAN,
                        .u.scan = { .n_head = n, .head_dim = 1, .n_state = STATES, .x_rep = 1, .b_rep = n, .c_rep = n,
                                    .a = t->a.data, .a_per_state = 1, .d = t->skip.data, .dt_bias = t->bias.data,
                                    .dt_max = INFINITY, .x = test_view(&t->x, n), .b = in_b, .c = in_c,
                                    .dt = test_view(&b->dt, n), .dtype = t->type, .replay_y = t->replay.data,
                                    .replay_ld = n, .state = b->state.data, .cache_dt = b->cache_dt.data,
                                    .cache_b = b->cache_b.data, .n_node = NODES, .y = test_view(&b->y, n) } };
    if (t->c->gate) ops[1].u.scan.z = test_view(&t->z, n);
}

static void compare_dt(const dt_test *t, int32_t rows, const char *tensor, const test_buffer *a, const test_buffer *b)
{
    char what[48];
    snprintf(what, sizeof what, "%s, %d rows", spec_dtype_name(t->type), rows);
    support_plan_same(t->d, t->c->name, what, tensor, a, b);
}

static void check_dt(dt_test *t, const test_seq *seqs, int32_t n_seq)
{
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, n_seq, 0);
    dt_tensors of[2];
    spec_op ops[2];
    for (int32_t i = 0; i < 2; i++) of[i] = make_dt_tensors(t);
    make_dt_ops(t, &of[0], ops);
    support_plan_run(t->d, ops, 2, step, NODES, 1);
    make_dt_ops(t, &of[1], ops);
    support_plan_one_by_one(t->d, ops, 2, step, NODES, 1);
    compare_dt(t, step->n_row, "dt", &of[0].dt, &of[1].dt);
    compare_dt(t, step->n_row, "y", &of[0].y, &of[1].y);
    compare_dt(t, step->n_row, "the state", &of[0].state, &of[1].state);
    compare_dt(t, step->n_row, "cache_dt", &of[0].cache_dt, &of[1].cache_dt);
    compare_dt(t, step->n_row, "cache_b", &of[0].cache_b, &of[1].cache_b);
    for (int32_t i = 0; i < 2; i++) {
        test_buffer *all[] = { &of[i].dt, &of[i].y, &of[i].state, &of[i].cache_dt, &of[i].cache_b };
        for (int32_t k = 0; k < N_ELEMENTS(all); k++) test_buffer_free(all[k]);
    }
    free(step);
}

static void run_dt_case(test_device *d, const dt_case *c, spec_dtype type)
{
    static const int32_t rows[] = { 1, 9, 20, 61 }, path[] = { 0, 1, 3 };
    const size_t heads = (size_t)c->heads, inputs = (size_t)(c->rank + 2 * STATES);
    dt_test t = { .d = d, .c = c, .type = type };
    test_random random = { 33 };
    double *w = test_values(&random, heads * (size_t)c->rank, 1.7 / sqrt(c->rank));
    double *a = test_values(&random, heads * STATES, 4.0);
    for (size_t i = 0; i < heads * STATES; i++) a[i] = -fabs(a[i]) - 0.1;
    t.w = test_weight(d, w, c->heads, c->rank, type, type, 0, 1);
    t.a = test_floats(d, a, heads * STATES);
    t.select = random_values(&t, ROWS * inputs, 2.0, type, &random);
    t.x = random_values(&t, ROWS * heads, 1.0, type, &random);
    t.z = random_values(&t, ROWS * heads, 2.0, SPEC_DTYPE_F32, &random);
    t.replay = random_values(&t, TEST_SEQS * 2 * NODES * heads, 1.0, type, &random);
    t.skip = random_values(&t, heads, 1.0, SPEC_DTYPE_F32, &random);
    t.bias = random_values(&t, heads, 1.0, SPEC_DTYPE_F32, &random);
    for (int32_t i = 0; i < N_ELEMENTS(rows); i++) {
        int32_t parent[TEST_NODES] = { -1 };
        for (int32_t k = 1; k < rows[i]; k++) parent[k] = test_below(&random, k);
        const test_seq two[] = { { .slot = 5, .n_past = 9, .n_replay = i % 4, .path = path, .n_node = rows[i],
                                   .parent = parent },
                                 { .slot = 2, .parity = 1, .n_past = 9, .n_node = 3, .n_fed = 1, .parent = parent } };
        check_dt(&t, two, rows[i] >= 3 && rows[i] < TEST_NODES - 3 ? 1 + i % 2 : 1);
    }
    test_buffer *all[] = { &t.a, &t.select, &t.x, &t.z, &t.replay, &t.skip, &t.bias };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) test_buffer_free(all[i]);
    d->ops->weight_close(d->dev, t.w);
    free(a);
    free(w);
}

static void each_dt(test_device *d)
{
    for (int32_t i = 0; d->ops->plan_prepare && i < N_ELEMENTS(dt_cases); i++) {
        run_dt_case(d, &dt_cases[i], SPEC_DTYPE_BF16);
        if (i % 3 == 0) run_dt_case(d, &dt_cases[i], SPEC_DTYPE_F16);
        if (i == 0) run_dt_case(d, &dt_cases[i], SPEC_DTYPE_F32);
    }
}

static void test_dt(void **state)
{
    (void)state;
    test_each_device(each_dt);
}

/* -------------------------------------------------------- the largest of a row, pass after pass --- */

/* Passes of the same rows with different tokens: what an earlier one has noted may be larger. */
enum { HEAD_TOKENS = 40, HEAD_PASSES = 8 };

typedef struct head_case {
    int32_t dim, n_vocab;
    spec_dtype type;
} head_case;

static const head_case head_cases[] = {
    { 64, 333, SPEC_DTYPE_F32 },   { 128, 1003, SPEC_DTYPE_BF16 }, { 256, 9001, SPEC_DTYPE_BF16 },
    { 100, 77, SPEC_DTYPE_BF16 },  { 128, 501, SPEC_DTYPE_F16 },   { 2560, 3100, SPEC_DTYPE_BF16 },
    { 96, 333, SPEC_DTYPE_Q8_0 },
};

typedef struct head_test {
    const test_device *d;
    spec_op ops[3];
    test_buffer norm_weight, x, normed, y;
    void *next;
    spec_weight *table, *head;
} head_test;

static head_test make_head(const test_device *d, const head_case *c)
{
    head_test t = { .d = d };
    test_random random = { 33 };
    const spec_dtype type = c->type == SPEC_DTYPE_Q8_0 ? SPEC_DTYPE_BF16 : c->type;
    double *table = test_values(&random, (size_t)(HEAD_TOKENS * c->dim), 1.0);
    double *head = test_values(&random, (size_t)(c->n_vocab * c->dim), 1.0);
    double *weight = test_values(&random, (size_t)c->dim, 1.0);
    t.table = test_weight(d, table, HEAD_TOKENS, c->dim, type, type, 0, 1);
    t.head = test_weight(d, head, c->n_vocab, c->dim, c->type, type, 0, 1);
    t.norm_weight = test_floats(d, weight, (size_t)c->dim);
    t.x = test_buffer_new(d, (size_t)(ROWS * c->dim), SPEC_DTYPE_F32);
    t.normed = test_buffer_new(d, (size_t)(ROWS * c->dim), type);
    t.y = test_buffer_new(d, (size_t)(ROWS * c->n_vocab), SPEC_DTYPE_F32);
    test_ok(d->ops->alloc(d->dev, &t.next, ROWS * sizeof(spec_step_node)), "alloc");
    const spec_view x = test_view(&t.x, c->dim), normed = test_view(&t.normed, c->dim);
    t.ops[0] = (spec_op){ .kind = SPEC_OP_EMBED, .u.embed = { t.table, HEAD_TOKENS, c->dim, 1.0f, x } };
    t.ops[1] = (spec_op){ .kind = SPEC_OP_NORM, .u.norm = { .dim = c->dim, .n_group = 1, .eps = 1e-5f,
                                                            .weight = t.norm_weight.data, .x = x, .y = normed } };
    t.ops[2] = (spec_op){ .kind = SPEC_OP_LINEAR, .head = 1,
                          .u.linear = { .w = t.head, .n_in = c->dim, .n_out = c->n_vocab, .scale = 1.0f, .x = normed,
                                        .y = test_view(&t.y, c->n_vocab) } };
    free(weight);
    free(head);
    free(table);
    return t;
}

static void free_head(head_test *t)
{
    t->d->ops->free(t->d->dev, t->next, ROWS * sizeof(spec_step_node));
    test_buffer *all[] = { &t->norm_weight, &t->x, &t->normed, &t->y };
    for (int32_t i = 0; i < N_ELEMENTS(all); i++) test_buffer_free(all[i]);
    t->d->ops->weight_close(t->d->dev, t->table);
    t->d->ops->weight_close(t->d->dev, t->head);
}

/* As found by the pass itself and put into the next step (found, NULL: not asked for), against a look at the rows, of which there
 * are n. */
static void check_tokens(const head_test *t, const head_case *c, spec_queue *q, int32_t n, const int32_t *found, int32_t pass)
{
    int32_t read[ROWS];
    spec_step_node next[ROWS];
    const spec_argmax_args a = { t->y.data, c->n_vocab, c->n_vocab, n, read, NULL };
    test_ok(t->d->ops->argmax(q, &a), "argmax");
    test_ok(t->d->ops->download(q, next, t->next, sizeof next), "download");
    test_ok(t->d->ops->sync(q), "sync");
    for (int32_t r = 0; found && r < n; r++)
        if (found[r] != read[r] || next[r].token != read[r])
            fail_msg("%s: head of %d x %d in %s, pass %d: row %d of %d is found to be token %d, and %d in the next step, but is %d",
                     t->d->name, c->n_vocab, c->dim, spec_dtype_name(c->type), pass, r, n, found[r], next[r].token, read[r]);
}

static void run_head(const test_device *d, const head_case *c, int32_t n, test_random *random)
{
    const spec_backend_ops *o = d->ops;
    head_test t = make_head(d, c);
    int32_t parent[ROWS], token[ROWS] = { 0 };
    for (int32_t i = 0; i < n; i++) parent[i] = i - 1;
    const test_seq s = { .n_node = n, .parent = parent, .token = token };
    spec_plan plan = { t.ops, N_ELEMENTS(t.ops), SPEC_PHASE_DECODE, ROWS, TEST_SEQS, NODES, TEST_PAGES * SPEC_PAGE };
    spec_queue *q = NULL;
    spec_prepared *p = NULL;
    test_ok(o->queue_open(d->dev, &q, &plan, 1, c->n_vocab), "queue_open");
    test_ok(speci_plan_prepare(o, q, &p, &plan, true), "plan_prepare");
    for (int32_t pass = 0; pass < HEAD_PASSES; pass++) {
        int32_t found[ROWS];
        const bool asks = pass % 3 != 1; /* the first time, captured, and again */
        const int32_t n_asked = pass % 2 == 0 ? n : (n + 1) / 2;
        const spec_argmax_args a = { t.y.data, c->n_vocab, c->n_vocab, n_asked, found, t.next };
        for (int32_t i = 0; i < n; i++) token[i] = test_below(random, HEAD_TOKENS);
        spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
        test_ok(speci_plan_run(o, q, &plan, p, step, asks ? &a : NULL), "plan_run");
        check_tokens(&t, c, q, asks ? n_asked : n, asks ? found : NULL, pass);
        free(step);
    }
    if (p) o->plan_free(q, p);
    o->queue_close(q);
    free_head(&t);
}

static void each_head(test_device *d)
{
    static const int32_t rows[] = { 1, 2, 8, 13, 24, 33, 64 };
    test_random random = { 34 };
    for (int32_t i = 0; i < N_ELEMENTS(head_cases); i++)
        for (int32_t r = 0; r < N_ELEMENTS(rows); r++)
            if (d->ops->plan_prepare || r % 3 == i % 3) run_head(d, &head_cases[i], rows[r], &random);
}

static void test_head(void **state)
{
    (void)state;
    test_each_device(each_head);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_dt), cmocka_unit_test(test_ready),
                                        cmocka_unit_test(test_head) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
