/* bench_prefill.c - prompts: tokens per second, and the products' arithmetic per second (two operations for each weight
 * of a matrix and token; of the head, whose product is left out, none), beside the rate of one large product in the
 * same run. */
#include "tests/bench/bench.h"

enum { MOST = 10 };

static spec_status times(double *ms, int32_t repeats, spec_session *s, int32_t n_ids)
{
    int32_t seq;
    for (int32_t i = -1; i < repeats; i++) {
        const double start = speci_now_ms();
        SPEC_TRY(bench_sequence(&seq, s, n_ids, NULL));
        if (i >= 0) ms[i] = speci_now_ms() - start;
        SPEC_TRY(spec_sequence_remove(s, seq));
    }
    return SPEC_OK;
}

static spec_status measure(bench *b, int32_t n, double matrix_tflops)
{
    const spec_model *m = b->model;
    const int32_t repeats = b->o.repeats < MOST ? b->o.repeats : MOST;
    const int32_t n_ids = m->n_ctx > 0 && n + 1 >= m->n_ctx ? m->n_ctx - 1 : n + 1; /* the last id is not fed yet */
    double ms[MOST];
    spec_session *s;
    SPEC_TRY(bench_session(&s, b, NULL, n_ids + 1, 1, 1));
    const spec_status status = times(ms, repeats, s, n_ids);
    spec_session_close(s);
    SPEC_TRY(status);
    json_t *r = bench_record(b, "prefill");
    const double seconds = bench_median(ms, repeats) / 1e3;
    const double head = (double)m->n_vocab * m->dim * (m->embed == m->head.w ? 1 : 2);
    bench_count(r, "nodes", n);
    bench_text(r, "tree", "chain");
    bench_count(r, "tokens", n_ids - 1);
    bench_times(r, ms, repeats);
    bench_number(r, "tokens_per_s", (n_ids - 1) / seconds);
    const double tflops = 2 * ((double)m->n_parameters - head) * (n_ids - 1) / seconds / 1e12;
    bench_number(r, "tflops", tflops);
    bench_number(r, "matrix_tflops", matrix_tflops);
    bench_number(r, "matrix_share", tflops / matrix_tflops);
    return bench_emit(b, r, bench_floor_ms(b, 0, 1));
}

spec_status bench_prefill(bench *b)
{
    int32_t tokens[32], n;
    double matrix_tflops;
    SPEC_TRY(bench_ints(tokens, 32, &n, b->o.tokens ? b->o.tokens : "512,2048", "--tokens"));
    SPEC_TRY(bench_matrix_tflops(&matrix_tflops, b, b->model->dtype));
    for (int32_t i = 0; i < n; i++) SPEC_TRY(measure(b, tokens[i], matrix_tflops));
    return SPEC_OK;
}
