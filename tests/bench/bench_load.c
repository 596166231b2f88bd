/* bench_load.c - so many sequences at once, with drafters beside plainly: tokens per second of all of them.
 *
 * Each sequence that has its --predict tokens makes room for the next prompt, so that there are always as many; prompts are not
 * counted. Plain and drafted runs take turns, each with a session of its own, so what a choice observes is part of its run; of either
 * the fastest run counts, and its longest step is told. */
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { MOST_SEQ = 256, TURNS = 5, WARM_STEPS = 4 };

typedef struct loaded {
    const bench *b;
    const bench_workload *task;
    spec_session *s;
    float temperature;
    int32_t n_seq, seqs[MOST_SEQ], left[MOST_SEQ], n_prompt; /* left: tokens to go; n_prompt: prompts that were begun */
    int64_t n_token, n_step;                                /* steps of a sequence each */
    double ms, longest_ms;                                  /* of all steps; of one */
    int64_t longest_at;
} loaded;

static spec_status begin(loaded *l, int32_t i)
{
    const bench_prompt *p = &l->task->prompts[l->n_prompt % l->task->n];
    const spec_sampling sampling = { .temperature = l->temperature, .top_p = (float)l->b->o.top_p, .seed = (uint64_t)++l->n_prompt };
    l->left[i] = l->b->o.n_predict;
    return add_endless(l->s, &l->seqs[i], p->ids, p->n, &sampling);
}

static spec_status step(loaded *l, bool counts)
{
    const spec_step_result *r[MOST_SEQ];
    const double start = speci_now_ms();
    SPEC_TRY(spec_step(l->s, r, l->seqs, l->n_seq));
    const double ms = speci_now_ms() - start;
    int32_t n_token = 0;
    for (int32_t i = 0; i < l->n_seq; i++) n_token += r[i]->n_tokens, l->left[i] -= r[i]->n_tokens;
    if (counts && ms > l->longest_ms) l->longest_ms = ms, l->longest_at = l->n_step / l->n_seq;
    if (counts) l->ms += ms, l->n_token += n_token, l->n_step += l->n_seq;
    for (int32_t i = 0; i < l->n_seq; i++) {
        if (l->left[i] > 0) continue;
        SPEC_TRY(spec_sequence_remove(l->s, l->seqs[i]));
        SPEC_TRY(begin(l, i));
    }
    return SPEC_OK;
}

/* A few steps first: what is made at first use is made then. */
static spec_status run(loaded *l)
{
    for (int32_t i = 0; i < l->n_seq; i++) SPEC_TRY(begin(l, i));
    for (int32_t i = 0; i < WARM_STEPS; i++) SPEC_TRY(step(l, false));
    while (l->n_token < (int64_t)l->n_seq * l->b->o.n_predict) SPEC_TRY(step(l, true));
    return SPEC_OK;
}

static double rate(const loaded *l) /* tokens per ms */
{
    return (double)l->n_token / l->ms;
}

/* *best: becomes this run where it is the first or faster. draft NULL: plain. */
static spec_status turn(loaded *best, loaded l, const char *draft, const char *tree)
{
    bench_set set = { .n = 0 };
    spec_status status = bench_set_open(&set, l.b, draft, tree);
    if (status == SPEC_OK) status = bench_set_session(&l.s, l.b, &set, SPEC_VERIFY_AUTO, bench_positions(l.b, l.task), l.n_seq);
    if (status == SPEC_OK) status = run(&l);
    spec_session_close(l.s);
    bench_set_close(&set);
    if (status == SPEC_OK && (best->n_token == 0 || rate(&l) > rate(best))) *best = l;
    return status;
}

static spec_status emit(bench *b, const loaded *l, const loaded *plain, const char *draft, const char *tree)
{
    json_t *r = bench_record(b, "load");
    bench_set_describe(r, b, draft, tree);
    bench_number(r, "temperature", (double)l->temperature);
    bench_text(r, "task", l->task->name);
    bench_count(r, "sequences", l->n_seq);
    bench_count(r, "emitted", l->n_token);
    bench_number(r, "emitted_per_step", (double)l->n_token / (double)l->n_step);
    bench_number(r, "tokens_per_s", 1e3 * rate(l));
    bench_number(r, "over_plain", rate(l) / rate(plain));
    bench_count(r, "longest_at", l->longest_at);
    bench_number(r, "longest_ms", l->longest_ms);
    double ms[] = { l->ms * l->n_seq / (double)l->n_step };
    bench_times(r, ms, 1);
    return bench_emit(b, r, bench_floor_ms(b, (int32_t)l->task->prompts[0].n, l->n_seq));
}

static spec_status measure(bench *b, const bench_workload *task, float temperature, int32_t n_seq)
{
    const char *draft = b->o.draft ? b->o.draft : "model", *tree = b->o.tree ? b->o.tree : "chain:4";
    const loaded fresh = { .b = b, .task = task, .temperature = temperature, .n_seq = n_seq };
    loaded plain = { .n_token = 0 }, drafted = { .n_token = 0 };
    bool model;
    SPEC_TRY(bench_set_has_model(&model, b, draft));
    for (int32_t i = 0; i < TURNS; i++) {
        SPEC_TRY(turn(&plain, fresh, NULL, NULL));
        SPEC_TRY(turn(&drafted, fresh, draft, model ? tree : NULL));
    }
    SPEC_TRY(emit(b, &plain, &plain, NULL, NULL));
    return emit(b, &drafted, &plain, draft, model ? tree : NULL);
}

static spec_status each_count(bench *b, const bench_workload *task)
{
    int32_t counts[32], n;
    char text[32];
    float temperature;
    SPEC_TRY(bench_ints(counts, 32, &n, b->o.sequences ? b->o.sequences : "1,2,4,8,16,32", "--sequences"));
    for (int32_t t = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "0", ',', t); t++) {
        SPEC_TRY(bench_temperature(&temperature, text));
        for (int32_t i = 0; i < n; i++) {
            if (counts[i] > MOST_SEQ) return speci_fail(SPEC_E_INVALID, "--sequences %d: at most %d", counts[i], MOST_SEQ);
            SPEC_TRY(measure(b, task, temperature, counts[i]));
        }
    }
    return SPEC_OK;
}

spec_status bench_load(bench *b)
{
    return bench_each_workload(b, each_count);
}
