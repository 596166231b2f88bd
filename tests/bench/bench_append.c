/* bench_append.c - prompts of --tokens behind decoded ones (--context tokens, some of which were generated): tokens per second,
 * beside an ordinary prompt of as many in the same run. And what a sequence waits for while a prompt of --tokens is admitted
 * beside it, consumed in parts: the longest of its steps, beside a plain step. */
#include "tests/bench/bench.h"

enum { MOST = 10, WARM = 3, DECODED = 24, MOST_STEP = 512 };

static spec_status decode(spec_session *s, int32_t seq, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const spec_step_result *r;
        SPEC_TRY(spec_step(s, &r, &seq, 1));
    }
    return SPEC_OK;
}

static void fill(int32_t *ids, int32_t n, const spec_session *s)
{
    for (int32_t i = 0; i < n; i++) ids[i] = 1 + (int32_t)(7919 * (int64_t)(i + 1) % (s->target->n_vocab - 1));
}

/* --- appended prompts --- */

static spec_status time_prompt(double *ms, spec_session *s, int32_t n)
{
    int32_t seq;
    const double start = speci_now_ms();
    SPEC_TRY(bench_sequence(&seq, s, n + 1, NULL)); /* the last id is not consumed */
    *ms = speci_now_ms() - start;
    return spec_sequence_remove(s, seq);
}

static spec_status time_append(double *ms, spec_session *s, const int32_t *ids, int32_t n, int32_t context)
{
    int32_t seq;
    SPEC_TRY(bench_sequence(&seq, s, context, NULL));
    SPEC_TRY(decode(s, seq, DECODED));
    SPEC_TRY(s->ops->sync(s->queue)); /* a pass that ran ahead is not part of it */
    const double start = speci_now_ms();
    SPEC_TRY(spec_sequence_append(s, seq, ids, (size_t)n, NULL));
    *ms = speci_now_ms() - start;
    return spec_sequence_remove(s, seq);
}

static spec_status measure_append(bench *b, int32_t n, int32_t *ids)
{
    const int32_t repeats = b->o.repeats < MOST ? b->o.repeats : MOST, context = b->o.context ? b->o.context : 128;
    double plain[MOST], ms[MOST];
    spec_session *s;
    SPEC_TRY(bench_session(&s, b, NULL, context + DECODED + n + 2, 1, 1));
    fill(ids, n, s);
    spec_status status = SPEC_OK;
    for (int32_t i = -1; i < repeats && status == SPEC_OK; i++) {
        status = time_prompt(&plain[i < 0 ? 0 : i], s, n);
        if (status == SPEC_OK) status = time_append(&ms[i < 0 ? 0 : i], s, ids, n, context);
    }
    spec_session_close(s);
    SPEC_TRY(status);
    json_t *r = bench_record(b, "append");
    bench_count(r, "tokens", n);
    bench_count(r, "context", context);
    bench_times(r, ms, repeats);
    bench_number(r, "prompt_ms", bench_median(plain, repeats));
    bench_number(r, "rate_of_prompt", bench_median(plain, repeats) / bench_median(ms, repeats));
    return bench_emit(b, r, bench_floor_ms(b, 0, 1));
}

/* --- a prompt beside a sequence --- */

typedef struct waiting {
    double ms[MOST_STEP], plain;
    int32_t n, longest; /* steps; which of them took longest */
} waiting;

static spec_status time_steps(waiting *w, spec_session *s, const int32_t *ids, int32_t n)
{
    double ms[64];
    int32_t seqs[2];
    const spec_step_result *r[2];
    SPEC_TRY(bench_sequence(&seqs[0], s, 128, NULL));
    SPEC_TRY(decode(s, seqs[0], WARM));
    for (int32_t i = 0; i < 64; i++) {
        const double start = speci_now_ms();
        SPEC_TRY(spec_step(s, r, seqs, 1));
        ms[i] = speci_now_ms() - start;
    }
    w->plain = bench_median(ms, 64);
    SPEC_TRY(spec_sequence_add(s, &seqs[1], ids, (size_t)n, NULL));
    w->n = w->longest = 0;
    do {
        const double start = speci_now_ms();
        SPEC_TRY(spec_step(s, r, seqs, 2));
        w->ms[w->n] = speci_now_ms() - start;
        if (w->ms[w->n] > w->ms[w->longest]) w->longest = w->n;
        w->n++;
    } while (r[1]->n_tokens == 0 && w->n < MOST_STEP); /* until it has joined */
    SPEC_TRY(spec_sequence_remove(s, seqs[1]));
    return spec_sequence_remove(s, seqs[0]);
}

static spec_status measure_beside(bench *b, int32_t n, int32_t part, int32_t *ids)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    static waiting w;
    p.n_ctx = n + 512, p.n_seq = 2, p.n_node = 1, p.n_prompt_step = part;
    p.lab = &b->o.lab;
    SPEC_TRY(spec_session_open(&s, b->model, NULL, &p));
    fill(ids, n, s);
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i <= WARM && status == SPEC_OK; i++) status = time_steps(&w, s, ids, n);
    spec_session_close(s);
    SPEC_TRY(status);
    json_t *r = bench_record(b, "beside");
    bench_count(r, "tokens", n);
    bench_count(r, "part", part);
    bench_count(r, "steps", w.n);
    bench_count(r, "longest_at", w.longest);
    bench_number(r, "longest_ms", w.ms[w.longest]);
    bench_number(r, "plain_ms", w.plain);
    bench_number(r, "plain_steps", w.ms[w.longest] / w.plain);
    bench_times(r, w.ms, w.n);
    return bench_emit(b, r, bench_floor_ms(b, 0, 1));
}

spec_status bench_append(bench *b)
{
    int32_t tokens[32], n, most = 0;
    SPEC_TRY(bench_ints(tokens, 32, &n, b->o.tokens ? b->o.tokens : "128,512,2048", "--tokens"));
    for (int32_t i = 0; i < n; i++) most = tokens[i] > most ? tokens[i] : most;
    int32_t *ids = speci_alloc(NULL, (size_t)most, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < n && status == SPEC_OK; i++) status = measure_append(b, tokens[i], ids);
    for (int32_t part = 64; part <= 128 && status == SPEC_OK; part *= 2) status = measure_beside(b, most, part, ids);
    speci_free(NULL, ids);
    return status;
}
