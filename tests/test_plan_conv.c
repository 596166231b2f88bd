/* test_plan_conv.c - plans with a product and the convolution of what it makes, or of some of its columns, and a norm in front.
 * A plan leaves them with the bits that they leave apart, whatever it does together, and the window, the cache and the
 * entries for the scan likewise. Tensors go on from step to step, and each step is run twice: the second time a backend may
 * replay what it captured. */
#include <stdio.h>

#include "tests/support_plan.h"

enum { PASSES = 2, MOST_OPS = 3 };

enum {
    BIAS = 1,     /* of the filter */
    NARROW = 4,   /* y is of the compute type */
    SCALED = 8,   /* the product has a scale and a bias, */
    ACTIVATE = 16, /* and an activation */
    NORM = 32,    /* x from a norm in front */
    APART = 64    /* the convolution is of another tensor */
};

typedef struct conv_case {
    const char *name;
    int32_t n_in, front, channels, behind; /* columns of y: in front of the convolution's, its own, behind */
    int32_t width;
    int32_t flags;
} conv_case;

static const conv_case convs[] = {
    { "mamba", 768, 0, 1536, 1536, 4, BIAS | NORM },
    { "mamba2_130m", 768, 1536, 1792, 24, 4, BIAS | NORM },
    { "mamba2_370m", 1024, 2048, 2304, 32, 4, BIAS | NORM },
    { "many_tiles", 256, 4096, 4352, 64, 4, BIAS },
    { "deep", 2304, 64, 96, 16, 4, BIAS },
    { "deep_tiles", 2560, 2560, 2688, 40, 4, 0 },
    { "half_parts", 512, 32, 128, 0, 4, BIAS | SCALED | ACTIVATE },
    { "narrow", 384, 16, 160, 7, 4, BIAS | NARROW },
    { "one_tile", 128, 0, 16, 0, 4, 0 },
    { "odd_front", 256, 24, 64, 8, 4, BIAS },
    { "odd_channels", 256, 32, 72, 8, 4, BIAS },
    { "odd_inputs", 200, 32, 64, 8, 4, BIAS },
    { "width_3", 256, 32, 64, 8, 3, BIAS },
    { "apart", 256, 32, 64, 8, 4, BIAS | APART },
    { "scaled", 640, 16, 304, 120, 4, BIAS | SCALED },
    { "scaled_tiles", 128, 500, 4000, 500, 4, BIAS | SCALED },
    { "norm", 768, 100, 300, 40, 4, BIAS | SCALED | NORM },
    { "norm_1536", 1536, 0, 136, 64, 4, BIAS | SCALED | NORM },
    { "norm_deep", 2560, 36, 64, 0, 3, BIAS | SCALED | NORM },
    { "norm_odd", 200, 9, 33, 35, 2, BIAS | SCALED | NORM },
    { "norm_narrow", 768, 16, 304, 120, 4, BIAS | SCALED | NORM | NARROW },
};

typedef struct conv_test {
    const test_device *d;
    char name[96];
    const conv_case *c;
    spec_dtype type;
    int32_t n_y;
    spec_weight *w;
    test_buffer x, product_bias, filter, bias, other, residual, norm_weight;
    plan_pair normed, y, window, cache, replayed, convolved; /* normed: x with NORM */
} conv_test;

static bool has(const conv_test *t, int32_t flag) { return (t->c->flags & flag) != 0; }

static conv_test open_conv(const test_device *d, const conv_case *c, plan_types types)
{
    const spec_dtype type = types.compute;
    conv_test t = { .d = d, .c = c, .type = type, .n_y = c->front + c->channels + c->behind };
    support_plan_name(t.name, sizeof t.name, c->name, types);
    test_random random = { 47 };
    const size_t channels = (size_t)c->channels, y = PLAN_ROWS * (size_t)t.n_y;
    const spec_dtype made = has(&t, NARROW) ? type : SPEC_DTYPE_F32;
    t.w = support_plan_weight(d, t.n_y, c->n_in, types, 0, &random);
    t.x = support_plan_values(d, PLAN_ROWS * (size_t)c->n_in, 2.0, type, &random);
    t.product_bias = support_plan_values(d, (size_t)t.n_y, 1.0, SPEC_DTYPE_F32, &random);
    t.filter = support_plan_values(d, channels * (size_t)c->width, 1.0, SPEC_DTYPE_F32, &random);
    t.bias = support_plan_values(d, channels, 1.0, SPEC_DTYPE_F32, &random);
    t.other = support_plan_values(d, y, 1.0, made, &random);
    t.residual = support_plan_values(d, PLAN_ROWS * (size_t)c->n_in, 2.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = support_plan_values(d, (size_t)c->n_in, 1.0, SPEC_DTYPE_F32, &random);
    t.normed = support_plan_pair(d, PLAN_ROWS * (size_t)c->n_in, 2.0, type, &random);
    t.y = support_plan_pair(d, y, 1.0, made, &random);
    t.window = support_plan_pair(d, PLAN_SLOTS * 2 * (size_t)(c->width - 1) * channels, 1.0, type, &random);
    t.cache = support_plan_pair(d, PLAN_SLOTS * 2 * PLAN_NODES * channels, 1.0, type, &random);
    t.replayed = support_plan_pair(d, PLAN_SLOTS * 2 * PLAN_NODES * channels, 1.0, type, &random);
    t.convolved = support_plan_pair(d, PLAN_ROWS * channels, 1.0, type, &random);
    return t;
}

static void close_conv(conv_test *t)
{
    plan_pair *pairs[] = { &t->normed, &t->y, &t->window, &t->cache, &t->replayed, &t->convolved };
    test_buffer *buffers[] = { &t->x, &t->product_bias, &t->filter, &t->bias, &t->other, &t->residual,
                               &t->norm_weight };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) support_plan_free(pairs[i]);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    t->d->ops->weight_close(t->d->dev, t->w);
}

static int32_t conv_ops(const conv_test *t, int32_t way, spec_op ops[MOST_OPS])
{
    const conv_case *c = t->c;
    const test_buffer *const of = has(t, APART) ? &t->other : &t->y.of[way];
    const test_buffer *const x = has(t, NORM) ? &t->normed.of[way] : &t->x;
    int32_t n = 0;
    if (has(t, NORM))
        ops[n++] = (spec_op){ .kind = SPEC_OP_NORM,
                              .u.norm = { .dim = c->n_in, .n_group = 1, .eps = 1e-5f, .weight = t->norm_weight.data,
                                          .x = test_view(&t->residual, c->n_in), .y = test_view(x, c->n_in) } };
    ops[n++] = (spec_op){ .kind = SPEC_OP_LINEAR,
                          .u.linear = { .w = t->w, .n_in = c->n_in, .n_out = t->n_y, .scale = has(t, SCALED) ? 0.75f : 1.0f,
                                        .bias = has(t, SCALED) ? t->product_bias.data : NULL,
                                        .act = has(t, ACTIVATE) ? SPEC_ACT_SILU : SPEC_ACT_NONE,
                                        .x = test_view(x, c->n_in), .y = test_view(&t->y.of[way], t->n_y) } };
    ops[n++] = (spec_op){ .kind = SPEC_OP_CONV,
                          .u.conv = { .u = support_plan_column(of, t->n_y, c->front), .n_channel = c->channels,
                                      .width = c->width, .weight = t->filter.data,
                                      .bias = has(t, BIAS) ? t->bias.data : NULL, .dtype = t->type,
                                      .window = t->window.of[way].data, .cache = t->cache.of[way].data,
                                      .replay_y = t->replayed.of[way].data, .n_node = PLAN_NODES,
                                      .y = test_view(&t->convolved.of[way], c->channels),
                                      .act = SPEC_ACT_SILU } };
    return n;
}

static void check_conv(void *test, const spec_step_block *step, const char *what)
{
    const conv_test *t = test;
    spec_op ops[2][MOST_OPS];
    int32_t n = 0;
    for (int32_t way = 0; way < 2; way++) n = conv_ops(t, way, ops[way]);
    support_plan_run(t->d, ops[0], n, step, PLAN_NODES, PASSES);
    support_plan_apart(t->d, ops[1], n, step, PLAN_NODES, PASSES);
    const plan_tensor all[] = { { "y of the norm", &t->normed }, { "y of the product", &t->y },
                                { "the window", &t->window }, { "the cache", &t->cache }, { "replay_y", &t->replayed },
                                { "y of the convolution", &t->convolved } };
    support_plan_same_all(t->d, t->name, what, all, N_ELEMENTS(all));
}

static void each_conv(test_device *d)
{
    static const plan_types types[] = { { SPEC_DTYPE_BF16, SPEC_DTYPE_BF16 }, { SPEC_DTYPE_F16, SPEC_DTYPE_F16 },
                                        { SPEC_DTYPE_F32, SPEC_DTYPE_F32 },   { SPEC_DTYPE_BF16, SPEC_DTYPE_Q8_0 },
                                        { SPEC_DTYPE_F16, SPEC_DTYPE_Q8_0 },  { SPEC_DTYPE_F32, SPEC_DTYPE_Q8_0 } };
    for (int32_t i = 0; i < N_ELEMENTS(convs); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) {
            conv_test t = open_conv(d, &convs[i], types[k]);
            spec_op ops[MOST_OPS];
            const int32_t n = conv_ops(&t, 0, ops);
            if (support_plan_can(d, t.name, ops, n)) support_plan_each_step(d, check_conv, &t);
            close_conv(&t);
        }
}

static void test_convs(void **state)
{
    (void)state;
    test_each_device(each_conv);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_convs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
