/* support_taps.c - see support_taps.h. */
#include "tests/support_taps.h"

#include <stdio.h>

#include "core/core_half.h"

static const char *const models[] = { "llama3", "mamba", "mamba2", "bamba", "lfm2" };
static const spec_dtype types[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16 };

int32_t taps_below(uint64_t *random, int32_t n) { return (int32_t)(support_random(random) % (uint32_t)n); }

static test_device device_of(const spec_model *m)
{
    test_device d = { support_backend_name(), m->backend, m->backend->ops, m->backend->dev, NULL };
    d.io = test_row_queue(&d, m->n_vocab);
    return d;
}

static int32_t all_taps(const spec_model *m, spec_tap *taps)
{
    int32_t n = 0;
    assert_true(m->n_layer + 2 <= MOST_TAP && m->dim <= MOST_DIM && m->n_vocab == N_VOCAB);
    while (n < m->n_layer) taps[n] = (spec_tap){ SPEC_TAP_LAYER, n }, n++;
    taps[n++] = (spec_tap){ SPEC_TAP_LAST, 0 };
    taps[n++] = (spec_tap){ SPEC_TAP_NORM, 0 };
    return n;
}

void taps_open(taps_worker *w, spec_model *m, bool taps)
{
    *w = (taps_worker){ .model = m, .d = device_of(m), .random = 5 };
    if (taps) w->n_tap = all_taps(m, w->taps);
    const speci_exec_params p = { .n_seq = N_SEQ, .n_ctx = N_CTX, .n_node = N_NODE, .taps = w->taps,
                                  .n_tap = w->n_tap };
    spec_plan plans[2];
    OK(m->exec->open(&w->net, m, &p));
    w->net->kind->plans(w->net, plans);
    OK(w->d.ops->queue_open(w->d.dev, &w->queue, plans, 2, m->n_vocab));
    OK(w->net->kind->attach(w->net, w->queue, true));
}

void taps_close(taps_worker *w)
{
    speci_exec_close(w->net);
    w->d.ops->queue_close(w->queue);
    w->d.ops->queue_close(w->d.io);
}

static size_t type_bytes(spec_dtype t) { return t == SPEC_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t); }

/* Row `row` of a tensor as float32 [n]. */
void taps_read_row(taps_worker *w, spec_view v, int32_t row, int32_t n, float *out)
{
    uint16_t half[MOST_DIM];
    const size_t size = type_bytes(v.dtype);
    void *to = v.dtype == SPEC_DTYPE_F32 ? (void *)out : half;
    OK(w->d.ops->download(w->queue, to, (const char *)v.data + (size_t)row * (size_t)v.ld * size, (size_t)n * size));
    OK(w->d.ops->sync(w->queue));
    for (int32_t i = 0; v.dtype != SPEC_DTYPE_F32 && i < n; i++)
        out[i] = v.dtype == SPEC_DTYPE_BF16 ? speci_from_bf16(half[i]) : speci_from_f16(half[i]);
}

/* hidden [n_tap][MOST_DIM] */
void taps_read(taps_worker *w, int32_t phase, int32_t row, float hidden[MOST_TAP][MOST_DIM])
{
    for (int32_t i = 0; i < w->n_tap; i++) taps_read_row(w, w->net->kind->tap(w->net, phase, i), row, w->model->dim, hidden[i]);
}

uint64_t taps_tensor_bytes(int32_t rows, int32_t cols, spec_dtype type)
{
    return ((uint64_t)rows * (uint64_t)cols * type_bytes(type) + 255) / 256 * 256;
}

/* The operation alone, over n rows whose tokens are `token` (or NULL), into y [n][cols] f32. */
void taps_run_alone(const test_device *d, spec_op *op, spec_view *y, spec_dtype type, int32_t n, int32_t cols,
                      const int32_t *token, float *out)
{
    int32_t parent[N_ROW];
    for (int32_t i = 0; i < n; i++) parent[i] = i > 0 ? 0 : -1;
    const test_seq s = { .n_node = n, .parent = parent, .token = token };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    test_buffer b = test_buffer_new(d, (size_t)(n * cols), type);
    *y = test_view(&b, cols);
    test_run(d, op, step, n);
    double *got = test_read(&b);
    for (int32_t i = 0; i < n * cols; i++) out[i] = (float)got[i];
    free(got);
    free(step);
    test_buffer_free(&b);
}

/* The head's product of n rows. */
void taps_run_head(const test_device *d, const spec_model *m, spec_view x, int32_t n, float *logits)
{
    const model_linear *h = &m->head;
    spec_op op = { .kind = SPEC_OP_LINEAR,
                   .u.linear = { .w = h->w, .n_in = h->n_in, .n_out = h->n_out, .bias = h->bias, .x = x,
                                 .act = m->logit_cap > 0 ? SPEC_ACT_CAP : SPEC_ACT_NONE,
                                 .scale = m->logit_cap > 0 ? m->logit_cap : m->logit_scale != 0 ? m->logit_scale : 1 } };
    taps_run_alone(d, &op, &op.u.linear.y, SPEC_DTYPE_F32, n, m->n_vocab, NULL, logits);
}

void taps_expect_same(const char *what, int32_t row, const float *got, const float *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: column %d of row %d is %.9g, expected %.9g", what, i, row, (double)got[i], (double)want[i]);
}

void taps_draw(uint64_t *random, taps_tree *t, int32_t root, int32_t n)
{
    t->tree = (spec_tree){ .n = n, .cap = N_NODE, .token = t->token, .parent = t->parent };
    t->token[0] = root, t->parent[0] = -1;
    for (int32_t i = 1; i < n; i++) {
        t->parent[i] = taps_below(random, 3) ? i - 1 : taps_below(random, i);
        t->token[i] = (t->token[t->parent[i]] * 5 + i) % N_VOCAB; /* siblings differ: i does */
    }
}

taps_text taps_make_text(int32_t n_prompt)
{
    taps_text t = { .n = n_prompt + 1, .n_prompt = n_prompt };
    for (int32_t i = 0; i < t.n; i++) t.ids[i] = (i * 7 + 3) % N_VOCAB;
    return t;
}

void taps_plain_step(taps_worker *w, int32_t slot, int32_t token)
{
    int32_t parent = -1, path = 0;
    const spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent };
    const speci_exec_input in = { .slot = slot, .tree = &tree };
    OK(w->net->kind->forward(w->net, &in, 1, NULL, NULL));
    w->net->kind->commit(w->net, slot, &path, 1);
}

spec_status taps_propose(void *user, spec_draft_request *requests, int32_t n)
{
    taps_proposer *p = user;
    for (int32_t k = 0; k < n; k++) {
        taps_tree t;
        spec_tree *tree = requests[k].tree;
        taps_draw(&p->random, &t, tree->token[0], tree->cap < N_NODE ? tree->cap : N_NODE);
        for (int32_t i = 1; i < t.tree.n; i++) spec_tree_add(tree, t.parent[i], t.token[i], 0);
        p->n_called++;
    }
    return SPEC_OK;
}

void taps_each_model(spec_backend *backend, void (*check)(taps_worker *w))
{
    for (int32_t i = 0; i < N_ELEMENTS(models); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) {
            char path[256];
            taps_worker w;
            snprintf(path, sizeof path, SPEC_TEST_DIR "/golden/%s", models[i]);
            spec_model *m = support_model(backend, path, types[k]);
            taps_open(&w, m, true);
            check(&w);
            taps_close(&w);
            spec_model_close(m);
        }
}
