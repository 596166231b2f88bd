/* mini_model.c - see mini_model.h. */
#include "tests/mini_model.h"

#include <math.h>

enum {
    DIM = 48, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    M2_HEADS = 4, M2_DIM = 8, M2_STATE = 16, M2_GROUPS = 2, M2_INNER = M2_HEADS * M2_DIM,
    M2_CONV = M2_INNER + 2 * M2_GROUPS * M2_STATE, M2_IN = M2_CONV + M2_HEADS + M2_INNER,
    M1_INNER = 40, M1_STATE = 8, M1_IN = 2 * M1_INNER, M1_X = M1_INNER + 2 * M1_STATE, WIDTH = 4,
    RING = 2 * SPEC_CHUNK + MINI_NODES
};

/* ------------------------------------------------------------------------------------- network --- */

/* Zeroed device memory. */
static void *memory(mini_model *m, size_t n, spec_dtype dtype)
{
    size_t bytes = n * test_type_size(dtype);
    void *p = NULL;
    test_ok(m->d->ops->alloc(m->d->dev, &p, bytes), "alloc");
    test_ok(m->d->ops->zero(m->d->io, &(spec_range){ p, bytes }, 1), "zero");
    test_ok(m->d->ops->sync(m->d->io), "sync");
    m->memory[m->n_memory].p = p;
    m->memory[m->n_memory++].bytes = bytes;
    return p;
}

static spec_view rows(mini_model *m, int32_t columns, spec_dtype dtype)
{
    spec_view v = { memory(m, (size_t)MINI_ROWS * (size_t)columns, dtype), dtype, columns };
    return v;
}

static spec_view columns(spec_view v, int32_t first)
{
    v.data = (char *)v.data + (size_t)first * test_type_size(v.dtype);
    return v;
}

/* n floats in (low, high) on the device */
static float *floats(mini_model *m, int32_t n, double low, double high)
{
    float host[512], *p = memory(m, (size_t)n, SPEC_DTYPE_F32);
    for (int32_t i = 0; i < n; i++) host[i] = (float)(low + (high - low) * test_uniform(&m->random));
    test_ok(m->d->ops->upload(m->d->io, p, host, (size_t)n * sizeof *host), "upload");
    test_ok(m->d->ops->sync(m->d->io), "sync");
    return p;
}

static spec_weight *weight(mini_model *m, int32_t n_out, int32_t n_in)
{
    double *v = test_values(&m->random, (size_t)n_out * (size_t)n_in, 1.7 / sqrt(n_in));
    spec_weight *w = test_weight(m->d, v, n_out, n_in, m->dtype, m->dtype, 0, 1);
    m->weights[m->n_weight++] = w;
    free(v);
    return w;
}

static spec_op *add(mini_model *m, spec_op_kind kind)
{
    m->ops[m->n_op].kind = kind;
    return &m->ops[m->n_op++];
}

static void add_norm(mini_model *m, spec_view x, spec_view y)
{
    add(m, SPEC_OP_NORM)->u.norm = (spec_norm_args){ .dim = DIM, .n_group = 1, .eps = 1e-5f, .x = x, .y = y,
                                                     .weight = floats(m, DIM, 0.5, 1.5) };
}

static void add_linear(mini_model *m, int32_t n_out, int32_t n_in, spec_view x, spec_view y, int32_t accumulate)
{
    add(m, SPEC_OP_LINEAR)->u.linear = (spec_linear_args){ .w = weight(m, n_out, n_in), .n_in = n_in, .n_out = n_out,
                                                           .scale = 1.0f, .add = accumulate, .x = x, .y = y };
}

/* Before the embedding: spec_kv_commit_args. */
static void add_commit(mini_model *m)
{
    size_t n_kv = (size_t)TEST_PAGES * TEST_SEQS * KV_HEADS * SPEC_PAGE * HEAD_DIM;
    m->kv = (spec_kv){ memory(m, n_kv, m->dtype), memory(m, n_kv, m->dtype), m->dtype, TEST_PAGES * TEST_SEQS, KV_HEADS,
                       HEAD_DIM };
    add(m, SPEC_OP_KV_COMMIT)->u.kv_commit = (spec_kv_commit_args){ &m->kv, 1 };
}

static void add_attention(mini_model *m, spec_view residual, spec_view normed)
{
    spec_view qkv = rows(m, QKV, SPEC_DTYPE_F32), y = rows(m, HEADS * HEAD_DIM, m->dtype);
    add_norm(m, residual, normed);
    add_linear(m, QKV, DIM, normed, qkv, 0);
    add(m, SPEC_OP_ROPE_KV)->u.rope_kv = (spec_rope_kv_args){ .qkv = qkv, .n_head = HEADS, .eps = 1e-5f,
                                                              .inv_freq = floats(m, HEAD_DIM / 2, 0.01, 1.0),
                                                              .n_rot = HEAD_DIM, .kv = m->kv };
    add(m, SPEC_OP_ATTENTION)->u.attention = (spec_attention_args){ .q = qkv, .n_head = HEADS, .scale = 0.6f,
                                                                    .window = m->window, .kv = m->kv, .y = y };
    add_linear(m, DIM, HEADS * HEAD_DIM, y, residual, 1);
}

/* The convolution of `channels` columns of u; its output is left in *y, what the scan replays in *replay. */
static void add_conv(mini_model *m, spec_view u, int32_t channels, spec_view *y, void **replay)
{
    *y = rows(m, channels, m->dtype);
    *replay = memory(m, (size_t)MINI_SEQS * 2 * MINI_NODES * (size_t)channels, m->dtype);
    add(m, SPEC_OP_CONV)->u.conv = (spec_conv_args){
        .u = u, .n_channel = channels, .width = WIDTH, .weight = floats(m, channels * WIDTH, -1.0, 1.0),
        .bias = floats(m, channels, -0.5, 0.5), .dtype = m->dtype,
        .window = memory(m, (size_t)TEST_SEQS * 2 * (WIDTH - 1) * (size_t)channels, m->dtype),
        .cache = memory(m, (size_t)TEST_SEQS * 2 * MINI_NODES * (size_t)channels, m->dtype), .replay_y = *replay,
        .n_node = MINI_NODES, .y = *y, .act = SPEC_ACT_SILU };
}

static void add_recent(mini_model *m, spec_scan_args *a)
{
    a->chunk = SPEC_CHUNK;
    a->n_recent_max = RING;
    a->recent_x = memory(m, TEST_SEQS * RING * M2_INNER, m->dtype);
    a->recent_b = memory(m, TEST_SEQS * RING * M2_GROUPS * M2_STATE, m->dtype);
    a->recent_dt = memory(m, TEST_SEQS * RING * M2_HEADS, SPEC_DTYPE_F32);
}

static void add_mamba2(mini_model *m, spec_view residual, spec_view normed, bool chunked)
{
    spec_view in = rows(m, M2_IN, SPEC_DTYPE_F32), scanned = rows(m, M2_INNER, SPEC_DTYPE_F32), xbc;
    spec_view gated = rows(m, M2_INNER, m->dtype);
    void *replay;
    add_norm(m, residual, normed);
    add_linear(m, M2_IN, DIM, normed, in, 0);
    add_conv(m, in, M2_CONV, &xbc, &replay);
    add(m, SPEC_OP_SCAN)->u.scan = (spec_scan_args){
        .n_head = M2_HEADS, .head_dim = M2_DIM, .n_state = M2_STATE, .x_rep = 1, .b_rep = M2_HEADS / M2_GROUPS,
        .c_rep = M2_HEADS / M2_GROUPS, .a = floats(m, M2_HEADS, -1.5, -0.1), .d = floats(m, M2_HEADS, -1.0, 1.0),
        .dt_bias = floats(m, M2_HEADS, -1.0, 1.0), .dt_max = INFINITY, .x = xbc, .b = columns(xbc, M2_INNER),
        .c = columns(xbc, M2_INNER + M2_GROUPS * M2_STATE), .dt = columns(in, M2_CONV), .dtype = m->dtype,
        .replay_y = replay, .replay_ld = M2_CONV, .replay_b_col = M2_INNER, .b_in_conv = 1,
        .state = memory(m, (size_t)TEST_SEQS * M2_INNER * M2_STATE, SPEC_DTYPE_F32),
        .cache_dt = memory(m, (size_t)TEST_SEQS * 2 * MINI_NODES * M2_HEADS, SPEC_DTYPE_F32), .n_node = MINI_NODES,
        .y = scanned };
    if (chunked) add_recent(m, &m->ops[m->n_op - 1].u.scan);
    add(m, SPEC_OP_NORM)->u.norm = (spec_norm_args){ .dim = M2_INNER, .n_group = M2_GROUPS, .eps = 1e-5f, .x = scanned,
                                                     .weight = floats(m, M2_INNER, 0.5, 1.5),
                                                     .gate = columns(in, M2_CONV + M2_HEADS), .y = gated };
    add_linear(m, DIM, M2_INNER, gated, residual, 1);
}

static void add_mamba1(mini_model *m, spec_view residual, spec_view normed)
{
    spec_view in = rows(m, M1_IN, SPEC_DTYPE_F32), dbc = rows(m, M1_X, SPEC_DTYPE_F32);
    spec_view scanned = rows(m, M1_INNER, m->dtype), x;
    void *replay;
    add_norm(m, residual, normed);
    add_linear(m, M1_IN, DIM, normed, in, 0);
    add_conv(m, in, M1_INNER, &x, &replay);
    add_linear(m, M1_X, M1_INNER, x, dbc, 0);
    add(m, SPEC_OP_SCAN)->u.scan = (spec_scan_args){
        .n_head = M1_INNER, .head_dim = 1, .n_state = M1_STATE, .x_rep = 1, .b_rep = M1_INNER, .c_rep = M1_INNER,
        .a = floats(m, M1_INNER * M1_STATE, -2.0, -0.1), .a_per_state = 1, .d = floats(m, M1_INNER, -1.0, 1.0),
        .dt_bias = floats(m, M1_INNER, -1.0, 1.0), .dt_max = INFINITY, .x = x, .b = columns(dbc, M1_INNER),
        .c = columns(dbc, M1_INNER + M1_STATE), .dt = dbc, .z = columns(in, M1_INNER), .dtype = m->dtype,
        .replay_y = replay, .replay_ld = M1_INNER,
        .state = memory(m, (size_t)TEST_SEQS * M1_INNER * M1_STATE, SPEC_DTYPE_F32),
        .cache_dt = memory(m, (size_t)TEST_SEQS * 2 * MINI_NODES * M1_INNER, SPEC_DTYPE_F32),
        .cache_b = memory(m, (size_t)TEST_SEQS * 2 * MINI_NODES * M1_STATE, m->dtype), .n_node = MINI_NODES, .y = scanned };
    add_linear(m, DIM, M1_INNER, scanned, residual, 1);
}

void mini_open(mini_model *m, const test_device *d, spec_dtype dtype, int32_t window)
{
    memset(m, 0, sizeof *m);
    m->d = d;
    m->dtype = dtype;
    m->window = window;
    m->random.state = 77;
    spec_view residual = rows(m, DIM, SPEC_DTYPE_F32), normed = rows(m, DIM, dtype);
    m->logits = rows(m, MINI_VOCAB, SPEC_DTYPE_F32);
    add_commit(m);
    add(m, SPEC_OP_EMBED)->u.embed = (spec_embed_args){ weight(m, MINI_VOCAB, DIM), MINI_VOCAB, DIM, 1.0f, residual };
    add_attention(m, residual, normed);
    add_mamba2(m, residual, normed, true);
    add_mamba2(m, residual, normed, false);
    add_mamba1(m, residual, normed);
    add_norm(m, residual, normed);
    add_linear(m, MINI_VOCAB, DIM, normed, m->logits, 0);
    m->ops[m->n_op - 1].head = 1;
    spec_plan plans[2] = {
        { m->ops, m->n_op, SPEC_PHASE_DECODE, MINI_ROWS, MINI_SEQS, MINI_NODES, TEST_PAGES * SPEC_PAGE },
        { m->ops, m->n_op, SPEC_PHASE_PREFILL, MINI_CHUNK, 1, MINI_CHUNK, TEST_PAGES * SPEC_PAGE },
    };
    test_ok(d->ops->queue_open(d->dev, &m->q, plans, 2, MINI_VOCAB), "queue_open");
}

static void make_ready(mini_model *m)
{
    const spec_plan plan = { m->ops, m->n_op, SPEC_PHASE_DECODE, MINI_ROWS, MINI_SEQS, MINI_NODES,
                             TEST_PAGES * SPEC_PAGE };
    test_ok(speci_plan_prepare(m->d->ops, m->q, &m->prepared, &plan, true), "plan_prepare");
}

void mini_close(mini_model *m)
{
    if (m->prepared) m->d->ops->plan_free(m->q, m->prepared);
    m->d->ops->queue_close(m->q);
    for (int32_t i = 0; i < m->n_weight; i++) m->d->ops->weight_close(m->d->dev, m->weights[i]);
    for (int32_t i = 0; i < m->n_memory; i++) m->d->ops->free(m->d->dev, m->memory[i].p, m->memory[i].bytes);
}

void mini_run(mini_model *m, const spec_step_block *step, float *logits)
{
    spec_plan plan = { m->ops, m->n_op, step->phase, MINI_ROWS, MINI_SEQS, MINI_NODES, TEST_PAGES * SPEC_PAGE };
    if (step->phase == SPEC_PHASE_PREFILL) { /* a prefill plan has no kv_commit */
        spec_op ops[32];
        int32_t n = 0;
        for (int32_t i = 0; i < m->n_op; i++)
            if (m->ops[i].kind != SPEC_OP_KV_COMMIT) ops[n++] = m->ops[i];
        plan.ops = ops;
        plan.n_op = n;
        test_ok(speci_plan_run(m->d->ops, m->q, &plan, NULL, step, NULL), "prefill");
    } else {
        test_ok(speci_plan_run(m->d->ops, m->q, &plan, m->prepared, step, NULL), "pass");
    }
    size_t bytes = (size_t)step->n_row * MINI_VOCAB * sizeof *logits;
    test_ok(m->d->ops->download(m->q, logits, m->logits.data, bytes), "download");
    test_ok(m->d->ops->sync(m->q), "sync");
}

/* ---------------------------------------------------------------------------------- invariance --- */

enum { TEXT = 90, STEPS = 50 };

/* One text in decoding. */
typedef struct reader {
    int32_t slot, parity, n_past, n_recent;
    int32_t n_replay, path[MINI_NODES];  /* accepted in the last step */
    int32_t parent[MINI_NODES], token[MINI_NODES], n_node;
    int32_t n_true, on_text[MINI_NODES]; /* nodes that are the text, root first */
    const int32_t *text;
} reader;

static int32_t prefill(mini_model *m, reader *r, int32_t n)
{
    int32_t parent[MINI_CHUNK];
    float logits[MINI_CHUNK * MINI_VOCAB];
    for (int32_t i = 0; i < MINI_CHUNK; i++) parent[i] = i - 1;
    for (int32_t at = 0; at < n; at += MINI_CHUNK) {
        int32_t count = n - at < MINI_CHUNK ? n - at : MINI_CHUNK;
        test_seq s = { .slot = r->slot, .parity = r->parity, .n_past = at, .n_node = count, .parent = parent,
                       .token = r->text + at };
        spec_step_block *step = test_step(SPEC_PHASE_PREFILL, &s, 1, MINI_CHUNK);
        mini_run(m, step, logits);
        free(step);
        r->parity ^= 1;
    }
    r->n_past = n;
    return n;
}

/* What the library calls a commit: the pending path of the next step. Of the one before, whole windows were folded. */
static void commit(reader *r, int32_t n_path)
{
    r->n_recent = spec_chunk_left(r->n_recent + r->n_replay);
    r->n_replay = n_path;
    memcpy(r->path, r->on_text, (size_t)n_path * sizeof *r->path);
    r->n_past += n_path;
    r->parity ^= 1;
}

/* want [TEXT][MINI_VOCAB]: logits of each position by one-node steps. */
static void read_plainly(mini_model *m, const int32_t *text, int32_t slot, int32_t prompt, float *want)
{
    static const int32_t root[] = { -1 };
    reader r = { .slot = slot, .text = text, .on_text = { 0 } };
    prefill(m, &r, prompt);
    while (r.n_past < TEXT) {
        test_seq s = { .slot = slot, .parity = r.parity, .n_past = r.n_past, .n_replay = r.n_replay, .path = r.path,
                       .n_recent = r.n_recent, .n_node = 1, .parent = root, .token = text + r.n_past };
        spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
        mini_run(m, step, want + r.n_past * MINI_VOCAB);
        free(step);
        commit(&r, 1);
    }
}

/* A random tree that holds the text from n_past on, up to some depth, among other branches. */
static void grow(reader *r, test_random *random)
{
    int32_t most = TEXT - r->n_past < 7 ? TEXT - r->n_past : 7, depth[MINI_NODES] = { 0 };
    r->n_node = 1 + test_below(random, MINI_NODES);
    r->parent[0] = -1;
    r->token[0] = r->text[r->n_past];
    r->on_text[0] = 0;
    r->n_true = 1;
    for (int32_t i = 1; i < r->n_node; i++) {
        bool extend = r->n_true < most && test_below(random, 3) == 0;
        r->parent[i] = extend ? r->on_text[r->n_true - 1] : test_below(random, i);
        if (!extend && test_below(random, 2)) r->parent[i] = i - 1;
        depth[i] = depth[r->parent[i]] + 1;
        r->token[i] = extend ? r->text[r->n_past + r->n_true] : test_below(random, MINI_VOCAB);
        if (extend) r->on_text[r->n_true++] = i;
    }
}

/* Compares rows [first, first + n) = nodes [fed, fed + n) of r that are on the text. */
static int32_t differing(const reader *r, const float *rows_, int32_t fed, int32_t n, const float *want, int32_t *compared)
{
    int32_t count = 0;
    for (int32_t i = 0; i < r->n_true; i++) {
        int32_t row = r->on_text[i] - fed;
        if (row < 0 || row >= n) continue;
        ++*compared;
        count += memcmp(rows_ + row * MINI_VOCAB, want + (r->n_past + i) * MINI_VOCAB, MINI_VOCAB * sizeof(float)) != 0;
    }
    return count;
}

/* One step of all readers that are not at their end: in one pass, or in two with the trees cut. */
static int32_t step_all(mini_model *m, reader *readers, float *const *want, test_random *random, int32_t *compared)
{
    float logits[MINI_ROWS * MINI_VOCAB];
    test_seq s[MINI_SEQS];
    reader *who[MINI_SEQS];
    int32_t n = 0, cut[MINI_SEQS], differ = 0;
    bool two = test_below(random, 3) == 0;
    for (int32_t i = 0; i < MINI_SEQS; i++) {
        reader *r = &readers[i];
        if (r->n_past >= TEXT || test_below(random, 5) == 0) continue; /* some sit out */
        grow(r, random);
        cut[n] = two ? 1 + test_below(random, r->n_node) : r->n_node;
        s[n] = (test_seq){ .slot = r->slot, .parity = r->parity, .n_past = r->n_past, .n_replay = r->n_replay,
                           .path = r->path, .n_recent = r->n_recent, .n_node = cut[n], .parent = r->parent,
                           .token = r->token };
        who[n++] = r;
    }
    for (int32_t pass = 0; pass < 2 && n > 0; pass++) {
        spec_step_block *step = test_step(SPEC_PHASE_DECODE, s, n, 0);
        if (step->n_row > 0) mini_run(m, step, logits);
        for (int32_t i = 0, row = 0; i < n; i++) {
            int32_t count = s[i].n_node - s[i].n_fed;
            differ += differing(who[i], logits + row * MINI_VOCAB, s[i].n_fed, count, want[who[i] - readers], compared);
            row += count;
            s[i].n_recent = spec_chunk_left(s[i].n_recent + s[i].n_replay);
            s[i].n_replay = 0;
            s[i].n_fed = cut[i];
            s[i].n_node = who[i]->n_node;
        }
        free(step);
    }
    for (int32_t i = 0; i < n; i++) commit(who[i], 1 + test_below(random, who[i]->n_true));
    return differ;
}

bool mini_can(const test_device *d, spec_dtype dtype, int32_t window)
{
    mini_model m;
    bool can = true;
    mini_open(&m, d, dtype, window);
    for (int32_t i = 0; can && i < m.n_op; i++) can = test_can(d, "a hybrid network", &m.ops[i]);
    mini_close(&m);
    return can;
}

int32_t mini_invariance(const test_device *plain, const test_device *d, spec_dtype dtype, int32_t window, int32_t prompt,
                        uint64_t seed, int32_t *compared)
{
    test_random random = { seed };
    int32_t text[MINI_SEQS][TEXT], differ = 0;
    float *want[MINI_SEQS];
    reader readers[MINI_SEQS];
    mini_model m;
    for (int32_t i = 0; i < MINI_SEQS; i++) {
        for (int32_t t = 0; t < TEXT; t++) text[i][t] = test_below(&random, MINI_VOCAB);
        want[i] = calloc(TEXT * MINI_VOCAB, sizeof *want[i]);
        mini_open(&m, plain, dtype, window);
        if (seed % 2 == 0) make_ready(&m);
        read_plainly(&m, text[i], (i * 3 + 1) % TEST_SEQS, prompt + i, want[i]);
        mini_close(&m);
    }
    *compared = 0;
    mini_open(&m, d, dtype, window);
    if (seed % 2 == 0) make_ready(&m);
    for (int32_t i = 0; i < MINI_SEQS; i++) {
        readers[i] = (reader){ .slot = MINI_SEQS - 1 - i, .text = text[i] };
        prefill(&m, &readers[i], prompt + i);
    }
    for (int32_t i = 0; i < STEPS; i++) differ += step_all(&m, readers, want, &random, compared);
    mini_close(&m);
    for (int32_t i = 0; i < MINI_SEQS; i++) free(want[i]);
    return differ;
}
