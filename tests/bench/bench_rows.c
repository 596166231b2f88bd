/* bench_rows.c - what operations over rows of the vocabulary cost on this device. One JSON object a line on stdout.
 *
 *   bench_rows [-b BACKEND] [-n ROWS] [-v VOCAB] [-r REPEATS] [--plugin-dir DIR]        cpu 64 131072 200
 *
 * Microseconds per call over all rows: REPEATS calls are enqueued, then the queue is waited for. Laws have
 * temperature 1 and top-p 0.9, draft laws temperature 1; nodes have 3 candidates. A step's verification is law + copy +
 * accept: `accept_drawn` for candidates drawn from the draft laws, `accept_none` where all are rejected. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"

enum { N_CANDIDATE = 3, N_DRAW = 8 };

typedef struct bench {
    const char *backend_name, *plugin_dir;
    int32_t n_row, n_vocab, repeats;
    const spec_backend_ops *ops;
    spec_device *dev;
    spec_queue *q;
    float *target, *drafter, *p, *draft, *draft_copy; /* [n_row][n_vocab] on the device: logits, laws */
    int32_t *row, *first, *choice, *token, *out;      /* [n_row], first [n_row + 1] */
    uint64_t *key;
    spec_sampling *cut, *plain;
    spec_candidate *candidate; /* [n_row][N_DRAW] */
    int32_t *drawn, *dropped;  /* [n_row][N_CANDIDATE] tokens: drawn from the draft law; of law 0 */
    float *u, *u_last;
} bench;

static void need(spec_status status)
{
    if (status == SPEC_OK) return;
    fprintf(stderr, "bench_rows: %s\n", spec_last_error());
    exit(1);
}

static void *host_array(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (p) return p;
    fprintf(stderr, "bench_rows: no memory\n");
    exit(1);
}

static size_t n_value(const bench *b) { return (size_t)b->n_row * (size_t)b->n_vocab; }

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* Logits that are about normal, of standard deviation 3; the drafter's are the target's with noise. */
static void make_logits(bench *b)
{
    uint64_t state = 1;
    float *v = host_array(n_value(b), sizeof *v);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n_value(b); i++) {
            const double noise = uniform(&state) + uniform(&state) + uniform(&state) - 1.5; /* deviation 1/2 */
            v[i] = (float)(pass == 0 ? 6.0 * noise : (double)v[i] + noise);
        }
        need(b->ops->upload(b->q, pass == 0 ? b->target : b->drafter, v, n_value(b) * sizeof *v));
    }
    need(b->ops->sync(b->q));
    free(v);
}

/* --- the operations --- */

static void op_argmax(bench *b)
{
    need(b->ops->argmax(b->q, &(spec_argmax_args){ .logits = b->target, .ld = b->n_vocab, .n_vocab = b->n_vocab,
                                                   .n_row = b->n_row, .host_out_token = b->out }));
}

static void law(bench *b, const float *logits, float *to, const spec_sampling *sampling)
{
    need(b->ops->law(b->q, &(spec_law_args){ .logits = logits,
                                             .ld = b->n_vocab,
                                             .n_valid = b->n_vocab,
                                             .law = to,
                                             .ld_law = b->n_vocab,
                                             .n_law = b->n_vocab,
                                             .n_row = b->n_row,
                                             .host_src = b->row,
                                             .host_dst = b->row,
                                             .host_sampling = sampling }));
}
static void op_law(bench *b) { law(b, b->target, b->p, b->cut); }
static void op_law_draft(bench *b) { law(b, b->drafter, b->draft, b->plain); }

static void op_copy(bench *b) { need(b->ops->copy(b->q, b->draft_copy, b->draft, n_value(b) * sizeof(float))); }

static void accept_tokens(bench *b, const int32_t *tokens)
{
    need(b->ops->accept(b->q, &(spec_accept_args){ .p = b->p,
                                                   .q = b->draft_copy,
                                                   .ld_p = b->n_vocab,
                                                   .ld_q = b->n_vocab,
                                                   .n_vocab = b->n_vocab,
                                                   .n_row = b->n_row,
                                                   .n_candidate = b->n_row * N_CANDIDATE,
                                                   .host_p_row = b->row,
                                                   .host_q_row = b->row,
                                                   .host_first_candidate = b->first,
                                                   .host_candidate = tokens,
                                                   .host_u = b->u,
                                                   .host_u_last = b->u_last,
                                                   .host_out_choice = b->choice,
                                                   .host_out_token = b->token }));
}
static void op_accept_drawn(bench *b) { accept_tokens(b, b->drawn); }
static void op_accept_none(bench *b) { accept_tokens(b, b->dropped); }

static void draw(bench *b, spec_draw_how how)
{
    need(b->ops->draw(b->q, &(spec_draw_args){ .law = b->draft,
                                               .ld = b->n_vocab,
                                               .n_vocab = b->n_vocab,
                                               .n_row = b->n_row,
                                               .k = N_DRAW,
                                               .how = how,
                                               .host_law_row = b->row,
                                               .host_key = b->key,
                                               .host_out = b->candidate }));
}
static void op_draw_top(bench *b) { draw(b, SPEC_DRAW_TOP); }
static void op_draw_race(bench *b) { draw(b, SPEC_DRAW_RACE); }
static void op_draw_repeat(bench *b) { draw(b, SPEC_DRAW_REPEAT); }

static void op_verify(bench *b)
{
    op_law(b);
    op_copy(b);
    op_accept_drawn(b);
}

/* --- time --- */

static void report(bench *b, const char *what, void (*op)(bench *))
{
    for (int32_t i = 0; i < 5; i++) op(b);
    need(b->ops->sync(b->q));
    const double start = speci_now_ms();
    for (int32_t i = 0; i < b->repeats; i++) op(b);
    need(b->ops->sync(b->q));
    printf("{\"what\":\"%s\",\"rows\":%d,\"vocab\":%d,\"us\":%.2f}\n", what, b->n_row, b->n_vocab,
           1e3 * (speci_now_ms() - start) / b->repeats);
    fflush(stdout);
}

/* The candidates: drawn from the draft laws, and tokens that the target's law has dropped. */
static void make_candidates(bench *b)
{
    float *p = host_array(n_value(b), sizeof *p);
    op_law(b);
    op_law_draft(b);
    op_copy(b);
    op_draw_race(b);
    need(b->ops->sync(b->q));
    need(b->ops->download(b->q, p, b->p, n_value(b) * sizeof *p));
    need(b->ops->sync(b->q));
    for (int32_t r = 0; r < b->n_row; r++) {
        int32_t n = 0;
        for (int32_t j = 0; j < N_CANDIDATE; j++) b->drawn[r * N_CANDIDATE + j] = b->candidate[r * N_DRAW + j].token;
        for (int32_t i = 0; i < b->n_vocab && n < N_CANDIDATE; i++)
            if (p[(size_t)r * (size_t)b->n_vocab + (size_t)i] == 0.0f) b->dropped[r * N_CANDIDATE + n++] = i;
    }
    free(p);
}

static void arguments(bench *b, int argc, char **argv)
{
    static const struct option options[] = { { "plugin-dir", required_argument, 0, 'p' }, { 0, 0, 0, 0 } };
    for (int c; (c = getopt_long(argc, argv, "b:n:v:r:", options, NULL)) != -1;) {
        if (c == 'b') b->backend_name = optarg;
        else if (c == 'n') b->n_row = atoi(optarg);
        else if (c == 'v') b->n_vocab = atoi(optarg);
        else if (c == 'r') b->repeats = atoi(optarg);
        else if (c == 'p') b->plugin_dir = optarg;
        else exit(2);
    }
    if (b->n_row > 0 && b->n_vocab >= 64 && b->repeats > 0) return;
    fprintf(stderr, "usage: bench_rows [-b BACKEND] [-n ROWS] [-v VOCAB] [-r REPEATS] [--plugin-dir DIR]\n");
    exit(2);
}

static void open_rows(bench *b)
{
    const size_t rows = (size_t)b->n_row, bytes = n_value(b) * sizeof(float);
    float **const device[] = { &b->target, &b->drafter, &b->p, &b->draft, &b->draft_copy };
    uint64_t state = 2;
    const spec_plan plan = { .phase = SPEC_PHASE_DECODE, .n_row_max = b->n_row, .n_seq_max = 1, .n_node_max = b->n_row,
                             .n_kv_max = SPEC_PAGE };
    need(b->ops->queue_open(b->dev, &b->q, &plan, 1, b->n_vocab));
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
        void *p;
        need(b->ops->alloc(b->dev, &p, bytes));
        *device[i] = p;
    }
    b->row = host_array(rows, sizeof *b->row), b->first = host_array(rows + 1, sizeof *b->first);
    b->choice = host_array(rows, sizeof *b->choice), b->token = host_array(rows, sizeof *b->token);
    b->out = host_array(rows, sizeof *b->out), b->key = host_array(rows, sizeof *b->key);
    b->cut = host_array(rows, sizeof *b->cut), b->plain = host_array(rows, sizeof *b->plain);
    b->candidate = host_array(rows * N_DRAW, sizeof *b->candidate);
    b->drawn = host_array(rows * N_CANDIDATE, sizeof *b->drawn);
    b->dropped = host_array(rows * N_CANDIDATE, sizeof *b->dropped);
    b->u = host_array(rows * N_CANDIDATE, sizeof *b->u), b->u_last = host_array(rows, sizeof *b->u_last);
    for (int32_t r = 0; r < b->n_row; r++) {
        b->row[r] = r, b->first[r + 1] = (r + 1) * N_CANDIDATE, b->key[r] = spec_stream_root(7, (uint64_t)r);
        b->cut[r] = (spec_sampling){ .temperature = 1.0f, .top_p = 0.9f };
        b->plain[r] = (spec_sampling){ .temperature = 1.0f };
        b->u_last[r] = (float)uniform(&state);
        for (int32_t j = 0; j < N_CANDIDATE; j++) b->u[r * N_CANDIDATE + j] = (float)uniform(&state);
    }
}

static void close_rows(bench *b)
{
    float *const device[] = { b->target, b->drafter, b->p, b->draft, b->draft_copy };
    void *const host[] = { b->row, b->first,     b->choice, b->token,   b->out, b->key,   b->cut,
                           b->plain, b->candidate, b->drawn,  b->dropped, b->u,   b->u_last };
    b->ops->queue_close(b->q);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        b->ops->free(b->dev, device[i], n_value(b) * sizeof(float));
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

int main(int argc, char **argv)
{
    bench b = { .backend_name = "cpu", .n_row = 64, .n_vocab = 131072, .repeats = 200 };
    spec_backend_params params = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be;
    arguments(&b, argc, argv);
    params.plugin_dir = b.plugin_dir;
    need(spec_backend_open(&be, b.backend_name, &params));
    b.ops = be->ops, b.dev = be->dev;
    open_rows(&b);
    make_logits(&b);
    make_candidates(&b);
    printf("{\"what\":\"run\",\"backend\":\"%s\",\"version\":\"%s\"}\n", spec_backend_name(be), spec_version());
    report(&b, "argmax", op_argmax);
    report(&b, "law", op_law);
    report(&b, "law_draft", op_law_draft);
    report(&b, "copy", op_copy);
    report(&b, "accept_drawn", op_accept_drawn);
    op_copy(&b); /* a backend may overwrite rows of p and q */
    op_law(&b);
    report(&b, "accept_none", op_accept_none);
    report(&b, "draw_top", op_draw_top);
    report(&b, "draw_race", op_draw_race);
    report(&b, "draw_repeat", op_draw_repeat);
    report(&b, "verify", op_verify);
    close_rows(&b);
    spec_backend_close(be);
    return 0;
}
