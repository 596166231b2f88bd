/* test_plan_norm.c - plans with deferred norms (spec_norm_args.squares). What makes a norm's input may make its output
 * too, but a plan leaves every tensor with the bits that its operations leave one by one: a product that adds to the
 * residual (or an embedding), the norm of that, and the products that read it; a windowed scan, the norm of its outputs,
 * and the product that adds to the residual. Tensors go on from step to step, and each step is run twice: the second time
 * a backend may replay what it captured. */
#include <math.h>
#include <stdio.h>

#include "tests/support_plan.h"

enum { PASSES = 2 };

static test_buffer random_values(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    double *v = test_values(random, n, scale);
    const test_buffer b = test_buffer_from(d, v, n, type);
    free(v);
    return b;
}

static spec_weight *random_weight(const test_device *d, int32_t n_out, int32_t n_in, spec_dtype type, int32_t glu,
                                  test_random *random)
{
    double *v = test_values(random, (size_t)n_out * (size_t)n_in, 1.7 / sqrt(n_in));
    spec_weight *w = test_weight(d, v, n_out, n_in, type, type, glu, 1);
    free(v);
    return w;
}

/* One tensor in both ways: [0] by the plan, [1] one by one. They begin alike. */
typedef struct pair {
    test_buffer of[2];
} pair;

static pair random_pair(const test_device *d, size_t n, double scale, spec_dtype type, test_random *random)
{
    test_random again = *random;
    const pair p = { { random_values(d, n, scale, type, random), random_values(d, n, scale, type, &again) } };
    return p;
}

static void free_pair(pair *p)
{
    test_buffer_free(&p->of[0]);
    test_buffer_free(&p->of[1]);
}

static void run_one_by_one(const test_device *d, const spec_op *ops, int32_t n, const spec_step_block *step, int32_t n_node)
{
    for (int32_t pass = 0; pass < PASSES; pass++)
        for (int32_t i = 0; i < n; i++) test_run(d, &ops[i], step, n_node);
}

/* ------------------------------------------------------------------- behind products and embeddings --- */

enum {
    BIAS = 1,    /* of all products */
    GLU = 2,     /* of the product behind the norm */
    NARROW = 4,  /* its y is of the compute type */
    TWO = 8,     /* another one reads the same */
    LAYERS = 16, /* of its y, NARROW, a third adds to the residual, whose norm takes the first one's place, and is read */
    GATE = 32,   /* before the norm */
    PLAIN = 64,  /* the first product does not add */
    EMBED = 128, /* in place of the first product */
    APART = 256, /* the norm is of another tensor than the one made */
    NORMS = 512  /* TWO, but the other one reads another norm of the same tensor (layers whose branches are parallel) */
};

typedef struct chain_case {
    const char *name;
    int32_t n_in, dim, n_out;
    int32_t pad; /* columns between rows of the residual */
    float scale;
    int32_t flags;
} chain_case;

static const chain_case chains[] = {
    { "768", 768, 768, 96, 0, 1.0f, 0 },
    { "2560", 5120, 2560, 80, 0, 1.0f, 0 },
    { "4096", 512, 4096, 64, 0, 1.0f, 0 },
    { "8192", 256, 8192, 48, 0, 1.0f, BIAS },
    { "one_sum", 64, 16, 40, 0, 1.0f, 0 },
    { "three_sums", 72, 48, 33, 0, 1.0f, BIAS },
    { "odd_inputs", 300, 784, 77, 0, 1.0f, BIAS },
    { "odd_outputs", 256, 768, 101, 0, 1.0f, TWO },
    { "scaled", 256, 1040, 112, 0, 0.3f, BIAS },
    { "tiles", 768, 768, 6000, 0, 1.0f, NARROW },
    { "padded", 512, 768, 96, 32, 1.0f, 0 },
    { "padded_odd", 512, 272, 96, 3, -0.7f, BIAS },
    { "glu", 768, 768, 400, 0, 1.0f, GLU | NARROW },
    { "glu_padded", 1536, 2576, 200, 16, 1.0f, GLU | BIAS },
    { "two", 768, 768, 160, 0, 1.0f, TWO | GLU | NARROW },
    { "norms", 512, 768, 160, 0, 1.0f, TWO | NORMS },
    { "norms_padded", 256, 1536, 96, 8, 0.5f, TWO | NORMS | BIAS | NARROW },
    { "layers", 1536, 768, 512, 0, 1.0f, LAYERS | GLU | NARROW },
    { "layers_biased", 512, 2560, 300, 16, 0.5f, LAYERS | NARROW | BIAS },
    { "layers_two", 256, 1024, 256, 0, 1.0f, LAYERS | TWO | NARROW },
    { "gate", 256, 768, 96, 0, 1.0f, GATE },
    { "plain", 256, 768, 96, 0, 0.75f, PLAIN | BIAS },
    { "embed", 1, 768, 128, 0, 2.0f, EMBED | GLU | NARROW },
    { "embed_layers", 1, 2560, 64, 0, 1.0f, EMBED | LAYERS | NARROW },
    { "apart", 256, 768, 96, 0, 1.0f, APART },
};

enum { MOST_ROWS = 130, MOST_OPS = 8, VOCAB = 50 };

typedef struct chain_test {
    const test_device *d;
    const chain_case *c;
    spec_dtype type;
    int32_t n_y; /* columns of what is behind the norm */
    spec_weight *first, *behind, *third;
    test_buffer x, gate, norm_weight, bias;
    pair residual, made, normed[2], squares[2]; /* made: APART; [1]: NORMS */
    pair y[3];                                  /* of the product, of another, behind the second norm */
} chain_test;

static bool has(const chain_test *t, int32_t flag) { return (t->c->flags & flag) != 0; }

static chain_test open_chain(const test_device *d, const chain_case *c, spec_dtype type)
{
    chain_test t = { .d = d, .c = c, .type = type, .n_y = c->flags & GLU ? c->n_out / 2 : c->n_out };
    test_random random = { 41 };
    const size_t dim = (size_t)c->dim, residual = MOST_ROWS * (size_t)(c->dim + c->pad);
    const spec_dtype y = has(&t, NARROW) ? type : SPEC_DTYPE_F32;
    if (has(&t, EMBED)) t.first = random_weight(d, VOCAB, c->dim, type, 0, &random);
    else t.first = random_weight(d, c->dim, c->n_in, type, 0, &random);
    t.behind = random_weight(d, c->n_out, c->dim, type, has(&t, GLU), &random);
    if (has(&t, LAYERS)) t.third = random_weight(d, c->dim, t.n_y, type, 0, &random);
    t.x = random_values(d, MOST_ROWS * (size_t)c->n_in, 2.0, type, &random);
    t.gate = random_values(d, MOST_ROWS * dim, 2.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = random_values(d, dim + 8, 1.5, SPEC_DTYPE_F32, &random);
    t.bias = random_values(d, dim + (size_t)c->n_out, 1.0, SPEC_DTYPE_F32, &random);
    t.residual = random_pair(d, residual, 2.0, SPEC_DTYPE_F32, &random);
    t.made = random_pair(d, residual, 2.0, SPEC_DTYPE_F32, &random);
    for (int32_t i = 0; i < 2; i++) {
        t.normed[i] = random_pair(d, MOST_ROWS * dim, 2.0, type, &random);
        t.squares[i] = random_pair(d, MOST_ROWS * dim / SPEC_SQUARES, 2.0, SPEC_DTYPE_F32, &random);
    }
    for (int32_t i = 0; i < 3; i++) t.y[i] = random_pair(d, MOST_ROWS * (size_t)t.n_y, 2.0, y, &random);
    return t;
}

static void close_chain(chain_test *t)
{
    pair *pairs[] = { &t->residual, &t->made, &t->normed[0], &t->normed[1], &t->squares[0], &t->squares[1], &t->y[0],
                      &t->y[1], &t->y[2] };
    test_buffer *buffers[] = { &t->x, &t->gate, &t->norm_weight, &t->bias };
    spec_weight *weights[] = { t->first, t->behind, t->third };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) free_pair(pairs[i]);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    for (int32_t i = 0; i < N_ELEMENTS(weights); i++)
        if (weights[i]) t->d->ops->weight_close(t->d->dev, weights[i]);
}

static spec_op first_op(const chain_test *t, int32_t way)
{
    const chain_case *c = t->c;
    const spec_view y = test_view(has(t, APART) ? &t->made.of[way] : &t->residual.of[way], c->dim + c->pad);
    if (has(t, EMBED))
        return (spec_op){ .kind = SPEC_OP_EMBED,
                          .u.embed = { .table = t->first, .n_vocab = VOCAB, .dim = c->dim, .scale = c->scale, .y = y } };
    return (spec_op){ .kind = SPEC_OP_LINEAR,
                      .u.linear = { .w = t->first, .n_in = c->n_in, .n_out = c->dim, .scale = c->scale,
                                    .add = !has(t, PLAIN), .bias = has(t, BIAS) ? t->bias.data : NULL,
                                    .x = test_view(&t->x, c->n_in), .y = y } };
}

/* Into normed[i], with weights that are not those of the other. */
static spec_op norm_op(const chain_test *t, int32_t way, int32_t i)
{
    const int32_t dim = t->c->dim;
    spec_op op = { .kind = SPEC_OP_NORM,
                   .u.norm = { .dim = dim, .n_group = 1, .eps = 1e-3f, .weight = (const float *)t->norm_weight.data + 8 * i,
                               .x = test_view(&t->residual.of[way], dim + t->c->pad),
                               .y = test_view(&t->normed[i].of[way], dim), .squares = t->squares[i].of[way].data } };
    if (has(t, GATE)) op.u.norm.gate = test_view(&t->gate, dim);
    return op;
}

/* Of what a norm wrote, into y[i]. */
static spec_op behind_op(const chain_test *t, int32_t way, int32_t i)
{
    const int32_t from = i == 1 && has(t, NORMS) ? 1 : 0;
    return (spec_op){ .kind = SPEC_OP_LINEAR,
                      .u.linear = { .w = t->behind, .n_in = t->c->dim, .n_out = t->c->n_out, .glu = has(t, GLU),
                                    .act = has(t, GLU) ? SPEC_ACT_SILU : SPEC_ACT_NONE, .scale = i == 1 ? 0.75f : 1.0f,
                                    .bias = has(t, BIAS) ? t->bias.data : NULL,
                                    .x = test_view(&t->normed[from].of[way], t->c->dim),
                                    .squares = t->squares[from].of[way].data, .eps = 1e-3f,
                                    .y = test_view(&t->y[i].of[way], t->n_y) } };
}

static spec_op third_op(const chain_test *t, int32_t way)
{
    const spec_view residual = test_view(&t->residual.of[way], t->c->dim + t->c->pad);
    return (spec_op){ .kind = SPEC_OP_LINEAR,
                      .u.linear = { .w = t->third, .n_in = t->n_y, .n_out = t->c->dim, .scale = t->c->scale, .add = 1,
                                    .x = test_view(&t->y[0].of[way], t->n_y), .y = residual } };
}

static int32_t chain_ops(const chain_test *t, int32_t way, spec_op ops[MOST_OPS])
{
    int32_t n = 0;
    ops[n++] = first_op(t, way);
    ops[n++] = norm_op(t, way, 0);
    if (has(t, NORMS)) ops[n++] = norm_op(t, way, 1);
    ops[n++] = behind_op(t, way, 0);
    if (has(t, TWO)) ops[n++] = behind_op(t, way, 1);
    if (has(t, LAYERS)) {
        ops[n++] = third_op(t, way);
        ops[n++] = norm_op(t, way, 0);
        ops[n++] = behind_op(t, way, 2);
    }
    return n;
}

static void check_chain(const chain_test *t, int32_t rows)
{
    int32_t parent[MOST_ROWS], token[MOST_ROWS], n = 0;
    spec_op ops[2][MOST_OPS];
    char what[48];
    for (int32_t i = 0; i < rows; i++) parent[i] = i - 1, token[i] = (7 * i + rows) % VOCAB;
    const test_seq s = { .n_node = rows, .parent = parent, .token = token };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    for (int32_t way = 0; way < 2; way++) n = chain_ops(t, way, ops[way]);
    for (int32_t i = 0; i < n; i++) test_ok(t->d->ops->can(t->d->dev, &ops[0][i]), t->c->name);
    support_plan_run(t->d, ops[0], n, step, rows, PASSES);
    run_one_by_one(t->d, ops[1], n, step, rows);
    const struct {
        const char *name;
        const pair *p;
    } all[] = { { "the residual", &t->residual }, { "what the first made", &t->made }, { "y of the norm", &t->normed[0] },
                { "squares", &t->squares[0] }, { "y of another norm", &t->normed[1] }, { "its squares", &t->squares[1] },
                { "y behind the norm", &t->y[0] }, { "y of another", &t->y[1] }, { "y behind the second norm", &t->y[2] } };
    snprintf(what, sizeof what, "%s, %d rows", spec_dtype_name(t->type), rows);
    for (int32_t i = 0; i < N_ELEMENTS(all); i++)
        support_plan_same(t->d, t->c->name, what, all[i].name, &all[i].p->of[0], &all[i].p->of[1]);
    free(step);
}

static void each_chain(test_device *d)
{
    static const int32_t rows[] = { 1, 20, 2, 5, 16, 17, 33, 64, 100, MOST_ROWS };
    static const spec_dtype types[] = { SPEC_DTYPE_BF16, SPEC_DTYPE_F32 };
    const int32_t n_rows = d->ops->plan_prepare ? N_ELEMENTS(rows) : 2; /* both ways are a walk */
    for (int32_t i = 0; i < N_ELEMENTS(chains); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) {
            chain_test t = open_chain(d, &chains[i], types[k]);
            for (int32_t r = 0; r < n_rows; r++) check_chain(&t, rows[r]);
            close_chain(&t);
        }
}

static void test_chains(void **state)
{
    (void)state;
    test_each_device(each_chain);
}

/* ----------------------------------------------------------------------------- behind windowed scans --- */

enum { NODES = 64, ROWS = 2 * NODES, SLOTS = 3, RING = 2 * SPEC_WINDOW + 3 * NODES, PAST = 200 };
enum { NO_GATE, SCAN_GATE, NORM_GATE };

typedef struct scan_case {
    const char *name;
    int32_t heads, head_dim, states, rep; /* rep: of B and C */
    int32_t gate;
    int32_t n_out;
    spec_dtype type;
} scan_case;

static const scan_case scans[] = {
    { "scan_24", 24, 64, 128, 24, SCAN_GATE, 768, SPEC_DTYPE_BF16 },
    { "scan_80", 80, 64, 128, 80, SCAN_GATE, 256, SPEC_DTYPE_BF16 },
    { "scan_groups", 16, 64, 128, 8, SCAN_GATE, 101, SPEC_DTYPE_BF16 },
    { "scan_64_states", 24, 64, 64, 12, SCAN_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_no_gate", 24, 64, 64, 24, NO_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_norm_gate", 24, 64, 128, 24, NORM_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_one_head", 1, 64, 128, 1, SCAN_GATE, 33, SPEC_DTYPE_BF16 },
    { "scan_other_sizes", 12, 32, 16, 6, SCAN_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_f32", 8, 64, 128, 8, SCAN_GATE, 96, SPEC_DTYPE_F32 },
};

typedef struct scan_test {
    const test_device *d;
    const scan_case *c;
    int32_t inner, n_b, ld_conv, ld_in;
    spec_weight *w;
    test_buffer conv, in, replay, a, skip, dt_bias, norm_weight; /* conv: [x | B | C]; in: [z | dt] */
    /* scanned: the norm alone reads it, so a plan need not write it */
    pair scanned, state, recent_x, recent_b, recent_dt, cache_dt, normed, squares, residual;
} scan_test;

/* Decays and time steps in [low, high] times sign. */
static test_buffer between(const test_device *d, size_t n, double low, double high, test_random *random)
{
    double *v = test_values(random, n, 1.0);
    for (size_t i = 0; i < n; i++) v[i] = low + (high - low) * fabs(v[i]);
    const test_buffer b = test_floats(d, v, n);
    free(v);
    return b;
}

static pair between_pair(const test_device *d, size_t n, double low, double high, test_random *random)
{
    test_random again = *random;
    const pair p = { { between(d, n, low, high, random), between(d, n, low, high, &again) } };
    return p;
}

static scan_test open_scan(const test_device *d, const scan_case *c)
{
    scan_test t = { .d = d, .c = c, .inner = c->heads * c->head_dim, .n_b = c->heads / c->rep * c->states };
    test_random random = { 43 };
    const size_t heads = (size_t)c->heads, inner = (size_t)t.inner, n_b = (size_t)t.n_b;
    t.ld_conv = t.inner + 2 * t.n_b, t.ld_in = t.inner + c->heads;
    t.w = random_weight(d, c->n_out, t.inner, c->type, 0, &random);
    t.conv = random_values(d, ROWS * (size_t)t.ld_conv, 1.0, c->type, &random);
    t.in = random_values(d, ROWS * (size_t)t.ld_in, 2.0, SPEC_DTYPE_F32, &random);
    t.replay = random_values(d, SLOTS * 2 * NODES * (size_t)t.ld_conv, 1.0, c->type, &random);
    t.a = between(d, heads, -2.0, -0.05, &random);
    t.skip = random_values(d, heads, 1.0, SPEC_DTYPE_F32, &random);
    t.dt_bias = random_values(d, heads, 1.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = random_values(d, inner, 1.5, SPEC_DTYPE_F32, &random);
    t.scanned = random_pair(d, ROWS * inner, 1.0, SPEC_DTYPE_F32, &random);
    t.state = random_pair(d, SLOTS * inner * (size_t)c->states, 1.0, SPEC_DTYPE_F32, &random);
    t.recent_x = random_pair(d, SLOTS * RING * inner, 1.0, c->type, &random);
    t.recent_b = random_pair(d, SLOTS * RING * n_b, 1.0, c->type, &random);
    t.recent_dt = between_pair(d, SLOTS * RING * heads, 0.001, 0.5, &random);
    t.cache_dt = between_pair(d, SLOTS * 2 * NODES * heads, 0.001, 0.5, &random);
    t.normed = random_pair(d, ROWS * inner, 1.0, c->type, &random);
    t.squares = random_pair(d, ROWS * inner / SPEC_SQUARES, 1.0, SPEC_DTYPE_F32, &random);
    t.residual = random_pair(d, ROWS * (size_t)c->n_out, 1.0, SPEC_DTYPE_F32, &random);
    return t;
}

static void close_scan(scan_test *t)
{
    pair *pairs[] = { &t->scanned, &t->state, &t->recent_x, &t->recent_b, &t->recent_dt, &t->cache_dt, &t->normed,
                      &t->squares, &t->residual };
    test_buffer *buffers[] = { &t->conv, &t->in, &t->replay, &t->a, &t->skip, &t->dt_bias, &t->norm_weight };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) free_pair(pairs[i]);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    t->d->ops->weight_close(t->d->dev, t->w);
}

static spec_view column(const test_buffer *b, int32_t ld, int32_t col)
{
    spec_view v = test_view(b, ld);
    v.data = (char *)v.data + (size_t)col * test_type_size(v.dtype);
    return v;
}

static spec_op scan_op(const scan_test *t, int32_t way)
{
    const scan_case *c = t->c;
    spec_op op = { .kind = SPEC_OP_SCAN };
    op.u.scan = (spec_scan_args){
        .n_head = c->heads, .head_dim = c->head_dim, .n_state = c->states, .x_rep = 1, .b_rep = c->rep, .c_rep = c->rep,
        .a = t->a.data, .d = t->skip.data, .dt_bias = t->dt_bias.data, .dt_max = INFINITY,
        .x = test_view(&t->conv, t->ld_conv), .b = column(&t->conv, t->ld_conv, t->inner),
        .c = column(&t->conv, t->ld_conv, t->inner + t->n_b), .dt = column(&t->in, t->ld_in, t->inner), .dtype = c->type,
        .replay_y = t->replay.data, .replay_ld = t->ld_conv, .replay_b_col = t->inner, .b_in_conv = 1,
        .state = t->state.of[way].data, .cache_dt = t->cache_dt.of[way].data, .n_node = NODES,
        .y = test_view(&t->scanned.of[way], t->inner), .window = SPEC_WINDOW, .n_ring = RING,
        .recent_x = t->recent_x.of[way].data, .recent_b = t->recent_b.of[way].data,
        .recent_dt = t->recent_dt.of[way].data };
    if (c->gate == SCAN_GATE) op.u.scan.z = test_view(&t->in, t->ld_in);
    return op;
}

static void scan_ops(const scan_test *t, int32_t way, spec_op ops[3])
{
    const spec_view normed = test_view(&t->normed.of[way], t->inner);
    float *const squares = t->squares.of[way].data;
    ops[0] = scan_op(t, way);
    ops[1] = (spec_op){ .kind = SPEC_OP_NORM,
                        .u.norm = { .dim = t->inner, .n_group = 1, .eps = 1e-3f, .weight = t->norm_weight.data,
                                    .x = test_view(&t->scanned.of[way], t->inner), .y = normed, .squares = squares } };
    if (t->c->gate == NORM_GATE) ops[1].u.norm.gate = test_view(&t->in, t->ld_in);
    ops[2] = (spec_op){ .kind = SPEC_OP_LINEAR,
                        .u.linear = { .w = t->w, .n_in = t->inner, .n_out = t->c->n_out, .scale = 0.75f, .add = 1,
                                      .x = normed, .y = test_view(&t->residual.of[way], t->c->n_out),
                                      .squares = squares, .eps = 1e-3f } };
}

static void check_scan(const scan_test *t, const test_seq *seqs, int32_t n_seq)
{
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, n_seq, 0);
    spec_op ops[2][3];
    char what[64];
    for (int32_t way = 0; way < 2; way++) scan_ops(t, way, ops[way]);
    support_plan_run(t->d, ops[0], 3, step, NODES, PASSES);
    run_one_by_one(t->d, ops[1], 3, step, NODES);
    const struct {
        const char *name;
        const pair *p;
    } all[] = { { "the state", &t->state }, { "recent x", &t->recent_x }, { "recent B", &t->recent_b },
                { "recent dt", &t->recent_dt }, { "cache_dt", &t->cache_dt }, { "y of the norm", &t->normed },
                { "squares", &t->squares }, { "the residual", &t->residual } };
    snprintf(what, sizeof what, "%d rows of %d sequences, %d recent, path of %d", step->n_row, n_seq, seqs[0].n_recent,
             seqs[0].n_replay);
    for (int32_t i = 0; i < N_ELEMENTS(all); i++)
        support_plan_same(t->d, t->c->name, what, all[i].name, &all[i].p->of[0], &all[i].p->of[1]);
    free(step);
}

static void check_scans(const scan_test *t)
{
    static const int32_t path[] = { 0, 2, 3, 7, 8, 20 };
    static const struct {
        int32_t n, n_fed, n_recent, n_replay, n_advance;
    } steps[] = { { 1, 0, 0, 0, 0 },  { 20, 0, 31, 5, 0 }, { 1, 0, 31, 1, 0 },   { 5, 0, 17, 3, 0 },  { 16, 0, 20, 2, 0 },
                  { 33, 0, 3, 6, 0 }, { 64, 0, 29, 6, 0 }, { 40, 12, 16, 0, 0 }, { 20, 0, 14, 0, 4 }, { 64, 44, 31, 0, 0 } };
    const int32_t n_steps = t->d->ops->plan_prepare ? N_ELEMENTS(steps) : 2;
    test_random random = { 44 };
    int32_t parent[NODES] = { -1 };
    for (int32_t i = 0; i < n_steps; i++) {
        for (int32_t k = 1; k < steps[i].n; k++)
            parent[k] = k < steps[i].n_advance || test_below(&random, 2) ? k - 1 : test_below(&random, k);
        const test_seq s = { .slot = i % SLOTS, .parity = i / 2 % 2, .n_past = PAST, .n_recent = steps[i].n_recent,
                             .path = path, .n_replay = steps[i].n_replay, .n_node = steps[i].n, .n_fed = steps[i].n_fed,
                             .parent = parent, .n_advance = steps[i].n_advance };
        check_scan(t, &s, 1);
    }
    const test_seq three[] = { { .slot = 2, .n_past = PAST, .n_recent = 20, .path = path, .n_replay = 2, .n_node = 20,
                                 .parent = parent },
                               { .slot = 0, .n_past = PAST, .n_recent = 30, .path = path, .n_replay = 4 },
                               { .slot = 1, .parity = 1, .n_past = PAST, .n_recent = 9, .n_node = 5, .parent = parent } };
    check_scan(t, three, 3);
}

static void each_scan(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(scans); i++) {
        scan_test t = open_scan(d, &scans[i]);
        const spec_op op = scan_op(&t, 0);
        if (test_can(d, scans[i].name, &op)) check_scans(&t);
        close_scan(&t);
    }
}

static void test_scans(void **state)
{
    (void)state;
    test_each_device(each_scan);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_chains), cmocka_unit_test(test_scans) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
