/* bench_rows.c - what is done with logits: distributions, verification and draws over rows of a 128k vocabulary, no model.
 *
 *   argmax         the largest of each row
 *   distribution, distribution-top-p temperature 1; and top-p 0.9
 *   verify         distribution-top-p, and multi-step sampling over a full binary tree of the rows: what a sampled step does
 *                  after its pass. The candidates are drawn from the draft distributions
 *   verify-tree    distribution-top-p, and acceptance in the whole tree, as traversal verification needs it
 *   verify-none    verify, with candidates that the target's distributions have dropped: all are rejected
 *   draw-top, draw-race, draw-repeat   eight candidates of each row
 *
 * median_ms: one call with one look. queued_ms: calls one after the other before one look. The floor is each array read
 * and written once. */
#include <string.h>

#include "tests/bench/bench.h"

enum { N_VOCAB = 128256, MOST_ROWS = 64, DRAWN = 8, CHILDREN = 2, WARM = 2, QUEUED = 16 };

typedef struct rows {
    bench *b;
    spec_queue *q;
    float *block; /* on the device: four arrays of MOST_ROWS rows */
    float *logits, *draft_logits, *p, *q_probs;
    int32_t n;
    int32_t index[MOST_ROWS], first[MOST_ROWS + 1], q_row[MOST_ROWS], parent[MOST_ROWS];
    int32_t likely[MOST_ROWS][CHILDREN], dropped[MOST_ROWS][CHILDREN]; /* drawn from q_probs; p is 0 there */
    int32_t candidate[MOST_ROWS * CHILDREN];
    int32_t choice[MOST_ROWS], token[MOST_ROWS];
    float u[MOST_ROWS], u_last[MOST_ROWS], prob[MOST_ROWS];
    uint64_t key[MOST_ROWS];
    spec_sampling sampling[MOST_ROWS];
    spec_candidate drawn[MOST_ROWS * DRAWN];
    double *ms;
} rows;

static const size_t row_bytes = (size_t)N_VOCAB * sizeof(float);

/* --- operations --- */

static spec_status argmax(rows *t)
{
    return t->b->be->ops->argmax(t->q, &(spec_argmax_args){ .logits = t->logits, .ld = N_VOCAB, .n_vocab = N_VOCAB,
                                                            .n_row = t->n, .host_out_token = t->token });
}

static spec_status distributions(rows *t, const float *logits, float *out, float top_p)
{
    for (int32_t i = 0; i < t->n; i++) t->sampling[i] = (spec_sampling){ .temperature = 1, .top_p = top_p };
    return t->b->be->ops->probs(t->q, &(spec_probs_args){ .logits = logits, .ld = N_VOCAB, .n_valid = N_VOCAB,
                                                      .probs = out, .ld_probs = N_VOCAB, .n_probs = N_VOCAB,
                                                      .n_row = t->n, .host_src = t->index, .host_dst = t->index,
                                                      .host_sampling = t->sampling });
}

static spec_status probs(rows *t)
{
    return distributions(t, t->logits, t->p, 0);
}

static spec_status probs_top_p(rows *t)
{
    return distributions(t, t->logits, t->p, 0.9f);
}

static spec_status accept(rows *t, int32_t tokens[][CHILDREN])
{
    for (int32_t i = 0; i < t->n; i++)
        memcpy(t->candidate + t->first[i], tokens[i], (size_t)(t->first[i + 1] - t->first[i]) * sizeof *t->candidate);
    SPEC_TRY(probs_top_p(t));
    return t->b->be->ops->accept(t->q, &(spec_accept_args){ .p = t->p, .q = t->q_probs, .ld_p = N_VOCAB,
                                                            .ld_q = N_VOCAB, .n_vocab = N_VOCAB, .n_row = t->n,
                                                            .n_candidate = t->first[t->n], .host_p_row = t->index,
                                                            .host_q_row = t->q_row, .host_first_candidate = t->first,
                                                            .host_candidate = t->candidate, .host_u = t->u,
                                                            .host_u_last = t->u_last, .host_out_choice = t->choice,
                                                            .host_out_token = t->token });
}

static spec_status verify(rows *t)
{
    return accept(t, t->likely);
}

static spec_status verify_none(rows *t)
{
    return accept(t, t->dropped);
}

static spec_status verify_tree(rows *t)
{
    for (int32_t i = 1; i < t->n; i++) t->candidate[i] = t->likely[t->parent[i]][(i - 1) % CHILDREN];
    SPEC_TRY(probs_top_p(t));
    return t->b->be->ops->accept_tree(t->q, &(spec_accept_tree_args){ .p = t->p, .q = t->q_probs, .ld_p = N_VOCAB,
                                                                      .ld_q = N_VOCAB, .n_vocab = N_VOCAB, .n_row = t->n,
                                                                      .host_p_row = t->index, .host_q_row = t->q_row,
                                                                      .host_parent = t->parent, .host_token = t->candidate,
                                                                      .host_u_last = t->u_last, .host_out_prob = t->prob,
                                                                      .host_out_token = t->token });
}

static spec_status draw(rows *t, spec_draw_how how)
{
    return t->b->be->ops->draw(t->q, &(spec_draw_args){ .probs = t->q_probs, .ld = N_VOCAB, .n_vocab = N_VOCAB,
                                                        .n_row = t->n, .k = DRAWN, .how = how,
                                                        .host_probs_row = t->index, .host_key = t->key,
                                                        .host_out = t->drawn });
}

static spec_status draw_top(rows *t)
{
    return draw(t, SPEC_DRAW_TOP);
}

static spec_status draw_race(rows *t)
{
    return draw(t, SPEC_DRAW_GUMBEL_TOPK);
}

static spec_status draw_repeat(rows *t)
{
    return draw(t, SPEC_DRAW_REPEAT);
}

/* passes: how often the rows are read or written at least. */
typedef struct measured {
    const char *name;
    spec_status (*run)(rows *t);
    double passes;
} measured;

static const measured all[] = {
    { "argmax", argmax, 1 },           { "distribution", probs, 2 },           { "distribution-top-p", probs_top_p, 2 },
    { "verify", verify, 4 },           { "verify-none", verify_none, 4 },     { "verify-tree", verify_tree, 4 },
    { "draw-top", draw_top, 1 },       { "draw-race", draw_race, 1 }, { "draw-repeat", draw_repeat, 1 },
};

/* --- data --- */

/* The sum of four uniforms, near enough to a normal distribution; of deviation 1. */
static float normal(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    const uint64_t x = *state, sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
    return ((float)sum - 131070.0f) / 37837.0f;
}

/* Rows as language models make them, a few likely tokens and a long tail; the drafter's are the target's with noise. */
static spec_status fill(rows *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    float *row = speci_alloc(NULL, N_VOCAB, sizeof *row);
    uint64_t state = 88172645463325252u;
    spec_status status = row ? SPEC_OK : SPEC_E_NOMEM;
    for (size_t r = 0; status == SPEC_OK && r < MOST_ROWS; r++) {
        for (int32_t i = 0; i < N_VOCAB; i++) row[i] = 3 * normal(&state);
        status = ops->upload(t->q, t->logits + r * N_VOCAB, row, row_bytes);
        for (int32_t i = 0; i < N_VOCAB; i++) row[i] += 0.5f * normal(&state);
        if (status == SPEC_OK) status = ops->upload(t->q, t->draft_logits + r * N_VOCAB, row, row_bytes);
    }
    speci_free(NULL, row);
    return status;
}

/* A full binary tree: node i has the children 2 i + 1 and 2 i + 2. */
static void plan_tree(rows *t, int32_t n)
{
    t->n = n;
    t->first[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t left = 2 * i + 1, count = left + 1 < n ? 2 : left < n ? 1 : 0;
        t->first[i + 1] = t->first[i] + count;
        t->q_row[i] = count ? i : -1;
        t->index[i] = i;
        t->parent[i] = i > 0 ? (i - 1) / 2 : -1;
        t->key[i] = spec_stream_root(7, (uint64_t)i);
        t->u[i] = t->u_last[i] = spec_uniform(7, (uint64_t)i, 0, 0);
    }
}

static spec_status find_dropped(rows *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    float *p = speci_alloc(NULL, MOST_ROWS, row_bytes);
    spec_status status = p ? ops->download(t->q, p, t->p, MOST_ROWS * row_bytes) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = ops->sync(t->q);
    for (int32_t r = 0; status == SPEC_OK && r < MOST_ROWS; r++)
        for (int32_t i = 0, n = 0; i < N_VOCAB && n < CHILDREN; i++)
            if (p[(size_t)r * N_VOCAB + (size_t)i] == 0) t->dropped[r][n++] = i;
    speci_free(NULL, p);
    return status;
}

/* Draft distributions of all rows, and both kinds of candidates. */
static spec_status prepare(rows *t)
{
    SPEC_TRY(fill(t));
    plan_tree(t, MOST_ROWS);
    SPEC_TRY(probs_top_p(t));
    SPEC_TRY(find_dropped(t));
    SPEC_TRY(distributions(t, t->draft_logits, t->q_probs, 0.9f));
    SPEC_TRY(draw_race(t));
    SPEC_TRY(t->b->be->ops->sync(t->q));
    for (int32_t r = 0; r < MOST_ROWS; r++)
        for (int32_t j = 0; j < CHILDREN; j++) t->likely[r][j] = t->drawn[r * DRAWN + j].token;
    return SPEC_OK;
}

/* --- the mode --- */

static spec_status time_one(rows *t, const measured *m)
{
    const spec_backend_ops *ops = t->b->be->ops;
    for (int32_t i = -WARM; i < t->b->o.repeats; i++) {
        SPEC_TRY(ops->sync(t->q));
        const double start = speci_now_ms();
        SPEC_TRY(m->run(t));
        SPEC_TRY(ops->sync(t->q));
        if (i >= 0) t->ms[i] = speci_now_ms() - start;
    }
    const double start = speci_now_ms();
    for (int32_t i = 0; i < QUEUED; i++) SPEC_TRY(m->run(t));
    SPEC_TRY(ops->sync(t->q));
    const double queued_ms = (speci_now_ms() - start) / QUEUED;
    json_t *r = bench_record(t->b, "rows");
    bench_text(r, "what", m->name);
    bench_count(r, "nodes", t->n);
    bench_text(r, "tree", "binary");
    bench_count(r, "n_vocab", N_VOCAB);
    bench_times(r, t->ms, t->b->o.repeats);
    bench_number(r, "queued_ms", queued_ms);
    return bench_emit(t->b, r, 1e3 * m->passes * t->n * (double)row_bytes / t->b->bandwidth);
}

static spec_status run(rows *t)
{
    int32_t nodes[16], n;
    SPEC_TRY(bench_ints(nodes, 16, &n, t->b->o.nodes ? t->b->o.nodes : "1,16,64", "--nodes"));
    SPEC_TRY(prepare(t));
    for (int32_t i = 0; i < n; i++) {
        if (nodes[i] > MOST_ROWS) return speci_fail(SPEC_E_INVALID, "--nodes: at most %d rows", MOST_ROWS);
        plan_tree(t, nodes[i]);
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            if (all[k].run != verify_tree || t->b->be->ops->accept_tree) SPEC_TRY(time_one(t, &all[k]));
    }
    return SPEC_OK;
}

static spec_status open_rows(rows *t)
{
    const spec_backend *be = t->b->be;
    void *at = NULL;
    t->ms = speci_alloc(NULL, (size_t)t->b->o.repeats, sizeof *t->ms);
    if (!t->ms) return SPEC_E_NOMEM;
    SPEC_TRY(be->ops->alloc(be->dev, &at, 4 * MOST_ROWS * row_bytes));
    t->block = at;
    float **const arrays[] = { &t->logits, &t->draft_logits, &t->p, &t->q_probs };
    for (size_t i = 0; i < 4; i++) *arrays[i] = t->block + i * MOST_ROWS * N_VOCAB;
    const spec_plan plan = { .phase = SPEC_PHASE_DECODE, .n_row_max = MOST_ROWS, .n_seq_max = 1,
                             .n_node_max = MOST_ROWS, .n_kv_max = SPEC_PAGE };
    return be->ops->queue_open(be->dev, &t->q, &plan, 1, N_VOCAB);
}

spec_status bench_rows(bench *b)
{
    rows *t = speci_alloc(NULL, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    t->b = b;
    spec_status status = open_rows(t);
    if (status == SPEC_OK) status = run(t);
    if (t->q) b->be->ops->sync(t->q);
    if (t->q) b->be->ops->queue_close(t->q);
    if (t->block) b->be->ops->free(b->be->dev, t->block, 4 * MOST_ROWS * row_bytes);
    speci_free(NULL, t->ms);
    speci_free(NULL, t);
    return status;
}
