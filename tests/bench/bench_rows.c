/* bench_rows.c - what is done with logits: laws, verification and draws over rows of a 128k vocabulary, no model.
 *
 *   argmax      the largest of each row                       law, law-top-p   temperature 1; and top-p 0.9
 *   verify      laws with top-p 0.9, a copy of the draft laws, multi-step sampling over a full binary tree of the
 *               rows: what a sampled step does after its pass
 *   draw-top, draw-race, draw-repeat   four candidates of each row
 *
 * Each time is of one call with one look. The floor is each array read and written once. */
#include <string.h>

#include "tests/bench/bench.h"

enum { N_VOCAB = 128256, MOST_ROWS = 64, CANDIDATES = 4, WARM = 2 };

typedef struct rows {
    bench *b;
    spec_queue *q;
    char *block; /* on the device: four arrays of MOST_ROWS rows */
    float *logits, *p, *q_law, *q_work;
    int32_t n;
    int32_t index[MOST_ROWS], first[MOST_ROWS + 1], candidate[MOST_ROWS], q_row[MOST_ROWS];
    int32_t choice[MOST_ROWS], token[MOST_ROWS];
    float u[MOST_ROWS], u_last[MOST_ROWS];
    uint64_t key[MOST_ROWS];
    spec_sampling sampling[MOST_ROWS];
    spec_candidate drawn[MOST_ROWS * CANDIDATES];
    double *ms;
} rows;

static const size_t row_bytes = (size_t)N_VOCAB * sizeof(float);

/* --- operations --- */

static spec_status argmax(rows *t)
{
    return t->b->be->ops->argmax(t->q, &(spec_argmax_args){ .logits = t->logits, .ld = N_VOCAB, .n_vocab = N_VOCAB,
                                                            .n_row = t->n, .host_out_token = t->token });
}

static spec_status laws(rows *t, float *out, float top_p)
{
    for (int32_t i = 0; i < t->n; i++) t->sampling[i] = (spec_sampling){ .temperature = 1, .top_p = top_p };
    return t->b->be->ops->law(t->q, &(spec_law_args){ .logits = t->logits, .ld = N_VOCAB, .n_valid = N_VOCAB,
                                                      .law = out, .ld_law = N_VOCAB, .n_law = N_VOCAB,
                                                      .n_row = t->n, .host_src = t->index, .host_dst = t->index,
                                                      .host_sampling = t->sampling });
}

static spec_status law(rows *t)
{
    return laws(t, t->p, 0);
}

static spec_status law_top_p(rows *t)
{
    return laws(t, t->p, 0.9f);
}

static spec_status verify(rows *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    SPEC_TRY(laws(t, t->p, 0.9f));
    SPEC_TRY(ops->copy(t->q, t->q_work, t->q_law, (size_t)t->n * row_bytes));
    return ops->accept(t->q, &(spec_accept_args){ .p = t->p, .q = t->q_work, .ld_p = N_VOCAB, .ld_q = N_VOCAB,
                                                  .n_vocab = N_VOCAB, .n_row = t->n, .n_candidate = t->first[t->n],
                                                  .host_p_row = t->index, .host_q_row = t->q_row,
                                                  .host_first_candidate = t->first, .host_candidate = t->candidate,
                                                  .host_u = t->u, .host_u_last = t->u_last,
                                                  .host_out_choice = t->choice, .host_out_token = t->token });
}

static spec_status draw(rows *t, spec_draw_how how)
{
    return t->b->be->ops->draw(t->q, &(spec_draw_args){ .law = t->q_law, .ld = N_VOCAB, .n_vocab = N_VOCAB,
                                                        .n_row = t->n, .k = CANDIDATES, .how = how,
                                                        .host_law_row = t->index, .host_key = t->key,
                                                        .host_out = t->drawn });
}

static spec_status draw_top(rows *t)
{
    return draw(t, SPEC_DRAW_TOP);
}

static spec_status draw_race(rows *t)
{
    return draw(t, SPEC_DRAW_RACE);
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
    { "argmax", argmax, 1 },       { "law", law, 2 },               { "law-top-p", law_top_p, 2 },
    { "verify", verify, 6 },       { "draw-top", draw_top, 1 },     { "draw-race", draw_race, 1 },
    { "draw-repeat", draw_repeat, 1 },
};

/* --- data --- */

/* Rows as language models make them: a few likely tokens and a long tail. The sum of four uniforms is near enough to a
 * normal law, of deviation 3. */
static spec_status fill(rows *t)
{
    float *row = speci_alloc(NULL, N_VOCAB, sizeof *row);
    uint64_t state = 88172645463325252u;
    spec_status status = row ? SPEC_OK : SPEC_E_NOMEM;
    for (int32_t r = 0; status == SPEC_OK && r < MOST_ROWS; r++) {
        for (int32_t i = 0; i < N_VOCAB; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            const uint64_t sum = (state & 0xffff) + (state >> 16 & 0xffff) + (state >> 32 & 0xffff) + (state >> 48);
            row[i] = ((float)sum - 131070.0f) * (3.0f / 37837.0f);
        }
        status = t->b->be->ops->upload(t->q, t->logits + (size_t)r * N_VOCAB, row, row_bytes);
    }
    speci_free(NULL, row);
    return status;
}

/* A full binary tree: node i has the children 2 i + 1 and 2 i + 2. */
static void plan_tree(rows *t, int32_t n)
{
    t->n = n;
    for (int32_t i = 0; i < n; i++) {
        t->first[i] = i == 0 ? 0 : t->first[i];
        const int32_t left = 2 * i + 1, count = left + 1 < n ? 2 : left < n ? 1 : 0;
        t->first[i + 1] = t->first[i] + count;
        t->q_row[i] = count ? i : -1;
        t->index[i] = i;
        t->key[i] = (uint64_t)i + 1;
        t->candidate[i] = 1 + 97 * i;
        t->u[i] = t->u_last[i] = 0.5f;
    }
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
    json_t *r = bench_record(t->b, "rows");
    bench_text(r, "what", m->name);
    bench_count(r, "nodes", t->n);
    bench_text(r, "tree", "binary");
    bench_count(r, "n_vocab", N_VOCAB);
    bench_times(r, t->ms, t->b->o.repeats);
    return bench_emit(t->b, r, 1e3 * m->passes * t->n * (double)row_bytes / t->b->bandwidth);
}

static spec_status run(rows *t)
{
    int32_t nodes[16], n;
    SPEC_TRY(bench_ints(nodes, 16, &n, t->b->o.nodes ? t->b->o.nodes : "1,16,64", "--nodes"));
    SPEC_TRY(fill(t));
    plan_tree(t, MOST_ROWS);
    SPEC_TRY(laws(t, t->q_law, 0.9f));
    for (int32_t i = 0; i < n; i++) {
        if (nodes[i] > MOST_ROWS) return speci_fail(SPEC_E_INVALID, "--nodes: at most %d rows", MOST_ROWS);
        plan_tree(t, nodes[i]);
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) SPEC_TRY(time_one(t, &all[k]));
    }
    return SPEC_OK;
}

static spec_status open_rows(rows *t)
{
    const spec_backend *be = t->b->be;
    const size_t array = MOST_ROWS * row_bytes;
    void *at = NULL;
    t->ms = speci_alloc(NULL, (size_t)t->b->o.repeats, sizeof *t->ms);
    if (!t->ms) return SPEC_E_NOMEM;
    SPEC_TRY(be->ops->alloc(be->dev, &at, 4 * array));
    t->block = at;
    t->logits = at;
    t->p = t->logits + MOST_ROWS * (size_t)N_VOCAB;
    t->q_law = t->p + MOST_ROWS * (size_t)N_VOCAB;
    t->q_work = t->q_law + MOST_ROWS * (size_t)N_VOCAB;
    return be->ops->queue_open(be->dev, &t->q, NULL, 0, N_VOCAB);
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
