/* test_plan_norm.c - plans with norms in front of products. A backend may leave a norm's factor to the one product that reads its
 * rows, and what makes the norm's input may make its output too; but a plan leaves every tensor with the bits that its operations
 * leave apart: a product that adds to the residual (or an embedding), the norm of that with the products that read it (behind
 * scans: test_plan_scan.c). Where somebody else reads the norm's rows, they are those of the norm alone. Tensors go on from step
 * to step, and each step is run twice: the second time a backend may replay what it captured. */
#include <stdio.h>

#include "tests/support_plan.h"

enum { PASSES = 2 };

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
    NORMS = 512, /* TWO, but the other one reads another norm of the same tensor (layers whose branches are parallel) */
    KEPT = 1024  /* the norm's rows are kept behind the products: compared with the operations one by one */
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
    { "embed_layers_whole", 1, 768, 256, 0, 1.0f, EMBED | LAYERS | NARROW },
    { "embed_layers_glu", 1, 1024, 512, 0, 1.0f, EMBED | LAYERS | GLU | NARROW },
    { "apart", 256, 768, 96, 0, 1.0f, APART },
    { "kept", 256, 768, 96, 0, 1.0f, KEPT },
    { "kept_embed", 1, 256, 64, 0, 1.0f, EMBED | KEPT | NARROW },
};

enum { MOST_ROWS = 130, MOST_OPS = 9, VOCAB = 50 };

typedef struct chain_test {
    const test_device *d;
    const chain_case *c;
    char name[96];
    int32_t n_y; /* columns of what is behind the norm */
    spec_weight *first, *behind, *third;
    test_buffer x, gate, norm_weight, bias;
    plan_pair residual, made, normed[2], kept; /* made: APART; [1]: NORMS */
    plan_pair y[3];                                  /* of the product, of another, behind the second norm */
} chain_test;

static bool has(const chain_test *t, int32_t flag) { return (t->c->flags & flag) != 0; }

static chain_test open_chain(const test_device *d, const chain_case *c, plan_types types)
{
    const spec_dtype type = types.compute;
    chain_test t = { .d = d, .c = c, .n_y = c->flags & GLU ? c->n_out / 2 : c->n_out };
    support_plan_name(t.name, sizeof t.name, c->name, types);
    test_random random = { 41 };
    const size_t dim = (size_t)c->dim, residual = MOST_ROWS * (size_t)(c->dim + c->pad);
    const spec_dtype y = has(&t, NARROW) ? type : SPEC_DTYPE_F32;
    if (has(&t, EMBED)) t.first = support_plan_weight(d, VOCAB, c->dim, types, 0, &random);
    else t.first = support_plan_weight(d, c->dim, c->n_in, types, 0, &random);
    t.behind = support_plan_weight(d, c->n_out, c->dim, types, has(&t, GLU), &random);
    if (has(&t, LAYERS)) t.third = support_plan_weight(d, c->dim, t.n_y, types, 0, &random);
    t.x = support_plan_values(d, MOST_ROWS * (size_t)c->n_in, 2.0, type, &random);
    t.gate = support_plan_values(d, MOST_ROWS * dim, 2.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = support_plan_values(d, dim + 8, 1.5, SPEC_DTYPE_F32, &random);
    t.bias = support_plan_values(d, dim + (size_t)c->n_out, 1.0, SPEC_DTYPE_F32, &random);
    t.residual = support_plan_pair(d, residual, 2.0, SPEC_DTYPE_F32, &random);
    t.made = support_plan_pair(d, residual, 2.0, SPEC_DTYPE_F32, &random);
    for (int32_t i = 0; i < 2; i++) t.normed[i] = support_plan_pair(d, MOST_ROWS * dim, 2.0, type, &random);
    t.kept = support_plan_pair(d, MOST_ROWS * dim, 2.0, type, &random);
    for (int32_t i = 0; i < 3; i++) t.y[i] = support_plan_pair(d, MOST_ROWS * (size_t)t.n_y, 2.0, y, &random);
    return t;
}

static void close_chain(chain_test *t)
{
    plan_pair *pairs[] = { &t->residual, &t->made, &t->normed[0], &t->normed[1], &t->kept, &t->y[0],
                      &t->y[1], &t->y[2] };
    test_buffer *buffers[] = { &t->x, &t->gate, &t->norm_weight, &t->bias };
    spec_weight *weights[] = { t->first, t->behind, t->third };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) support_plan_free(pairs[i]);
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
                               .y = test_view(&t->normed[i].of[way], dim) } };
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
    if (has(t, KEPT))
        ops[n++] = (spec_op){ .kind = SPEC_OP_KEEP,
                              .u.keep = { .dim = t->c->dim, .x = test_view(&t->normed[0].of[way], t->c->dim),
                                          .y = test_view(&t->kept.of[way], t->c->dim) } };
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
    for (int32_t i = 0; i < n; i++) test_ok(speci_op_supports(t->d->ops, t->d->dev, &ops[0][i]), t->c->name);
    support_plan_run(t->d, ops[0], n, step, rows, PASSES);
    if (has(t, KEPT)) support_plan_one_by_one(t->d, ops[1], n, step, rows, PASSES);
    else support_plan_apart(t->d, ops[1], n, step, rows, PASSES);
    const plan_tensor all[] = { { "the residual", &t->residual }, { "what the first made", &t->made },
                                { "y of the norm", &t->normed[0] },
                                { "y of another norm", &t->normed[1] }, { "the norm's rows, kept", &t->kept },
                                { "y behind the norm", &t->y[0] }, { "y of another", &t->y[1] },
                                { "y behind the second norm", &t->y[2] } };
    snprintf(what, sizeof what, "%d rows", rows);
    support_plan_same_all(t->d, t->name, what, all, N_ELEMENTS(all));
    free(step);
}

static void each_chain(test_device *d)
{
    static const int32_t rows[] = { 1, 20, 2, 5, 16, 17, 33, 64, 100, MOST_ROWS };
    static const plan_types types[] = { { SPEC_DTYPE_BF16, SPEC_DTYPE_BF16 }, { SPEC_DTYPE_F32, SPEC_DTYPE_F32 },
                                        { SPEC_DTYPE_BF16, SPEC_DTYPE_Q8_0 } };
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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_chains) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
