/* bench_generate.c - end to end: every set of drafters x tree x rule x temperature over the prompts of a file, beside plain decoding
 * of the same prompts in the same run. Counts are of the steps alone, without prefill.
 *
 * host_work_ms: what the host itself spends in a step, building, queueing, verifying: steps of the first prompt again,
 * the queue drained before each call and all waiting left out (bench_count.c). In the measured steps most of it happens
 * while the device is at work. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { WARM_TOKENS = 16, HOST_TOKENS = 64, MAX_TEXT = 512, MAX_AT_ONCE = 64 };

/* What came of decoding a task. */
typedef struct tally {
    int64_t n_call;   /* of spec_step: for all sequences */
    int64_t n_step, n_token, n_speculated, n_branched, n_node; /* steps of a sequence */
    int64_t n_by[BENCH_MAX_DRAFTER]; /* steps by the drafter that proposed */
    int64_t n_reached[SPEC_MAX_DEPTH + 1]; /* steps that accepted so many drafts, or more */
    int32_t n_node_max; /* of a tree, as the session planned */
    int32_t n_seq;      /* prompts at once */
    bool host_alone;    /* step_ms: without waiting */
    double ms, host_work_ms;
    bench_counts counts;
    double *step_ms;
    int64_t cap;
} tally;

typedef struct configuration {
    const char *draft; /* drafters with '+' between them; NULL: plain */
    const char *tree;  /* of the model among them; NULL: there is none */
    const char *verify;
    spec_verify_rule rule;
    float temperature;
} configuration;

/* --- decoding --- */

static spec_status keep_time(tally *t, double ms)
{
    if (t->n_call == t->cap) {
        const int64_t cap = t->cap ? 2 * t->cap : 1024;
        double *more = speci_alloc(NULL, (size_t)cap, sizeof *more);
        if (!more) return SPEC_E_NOMEM;
        if (t->step_ms) memcpy(more, t->step_ms, (size_t)t->cap * sizeof *more);
        speci_free(NULL, t->step_ms);
        t->step_ms = more, t->cap = cap;
    }
    t->step_ms[t->n_call++] = ms;
    return SPEC_OK;
}

static void tally_result(tally *t, const spec_step_result *r)
{
    t->n_step++;
    t->n_token += r->n_tokens;
    t->n_node += r->n_drafted + 1;
    t->n_speculated += r->n_drafted > 0;
    t->n_branched += r->branched;
    if (r->drafter >= 0) t->n_by[r->drafter]++;
    for (int32_t d = 0; d <= r->n_accepted && d <= SPEC_MAX_DEPTH && r->n_drafted > 0; d++) t->n_reached[d]++;
}

static spec_status tally_step(tally *t, spec_session *s, const int32_t *seqs, int32_t n, spec_step_result *r)
{
    const bench_counts before = bench_count_now();
    const double start = speci_now_ms();
    SPEC_TRY(step_into(s, r, seqs, n));
    const double ms = speci_now_ms() - start;
    const bench_counts after = bench_count_now();
    SPEC_TRY(keep_time(t, t->host_alone ? ms - (after.wait_ms - before.wait_ms) : ms));
    t->ms += ms;
    for (int32_t i = 0; i < n; i++) tally_result(t, &r[i]);
    t->counts.n_sync += after.n_sync - before.n_sync;
    t->counts.n_alloc += after.n_alloc - before.n_alloc;
    t->counts.n_read += after.n_read - before.n_read;
    return SPEC_OK;
}

/* Prompts [n], all at once; prompt i with seed + i. Those that are at their end leave the others. */
static spec_status decode(tally *t, const bench *b, spec_session *s, const bench_prompt *p, int32_t n, const spec_sampling *sampling,
                          int32_t n_predict)
{
    int32_t seqs[MAX_AT_ONCE], n_out[MAX_AT_ONCE] = { 0 };
    spec_step_result r[MAX_AT_ONCE];
    spec_sampling own = *sampling;
    for (int32_t i = 0; i < n; i++, own.seed++)
        SPEC_TRY((b->o.ignore_eos ? add_endless : add_sampled)(s, &seqs[i], p[i].ids, p[i].n, &own));
    while (n > 0) {
        int32_t kept = 0;
        SPEC_TRY(tally_step(t, s, seqs, n, r));
        for (int32_t i = 0; i < n; i++) {
            const int32_t seq = seqs[i], out = n_out[i] + r[i].n_tokens;
            if (out < n_predict && r[i].stop == SPEC_STOP_NONE) seqs[kept] = seq, n_out[kept++] = out;
            else SPEC_TRY(spec_sequence_remove(s, seq));
        }
        n = kept;
    }
    return SPEC_OK;
}

/* The median of what the host itself spends in a step. */
static spec_status measure_host(double *work_ms, const bench *b, spec_session *s, const bench_workload *task,
                                const spec_sampling *sampling)
{
    tally host = { .host_alone = true };
    const int32_t n = b->o.n_predict < HOST_TOKENS ? b->o.n_predict : HOST_TOKENS;
    bench_count_drain(true);
    const spec_status status = decode(&host, b, s, &task->prompts[0], 1, sampling, n);
    bench_count_drain(false);
    *work_ms = host.n_call > 0 ? bench_median(host.step_ms, (int32_t)host.n_call) : 0;
    speci_free(NULL, host.step_ms);
    return status;
}

/* A few tokens first: what is made at first use (captured passes, pages) is made then. */
static spec_status decode_task(tally *t, const bench *b, spec_session *s, const bench_workload *task, float temperature)
{
    tally warm = { .n_step = 0 };
    spec_sampling sampling = { .temperature = temperature, .top_p = (float)b->o.top_p, .seed = 1 };
    const int32_t first = task->n < t->n_seq ? task->n : t->n_seq;
    const spec_status warmed = decode(&warm, b, s, task->prompts, first, &sampling, WARM_TOKENS);
    speci_free(NULL, warm.step_ms);
    SPEC_TRY(warmed);
    for (int32_t i = 0; i < task->n; i += t->n_seq) {
        sampling.seed = (uint64_t)i + 1;
        SPEC_TRY(decode(t, b, s, &task->prompts[i], task->n - i < t->n_seq ? task->n - i : t->n_seq, &sampling, b->o.n_predict));
    }
    sampling.seed = 1;
    return measure_host(&t->host_work_ms, b, s, task, &sampling);
}

static spec_status decode_configuration(tally *t, const bench *b, const configuration *c, const bench_workload *task)
{
    bench_set set = { .n = 0 };
    spec_session *s = NULL;
    int32_t n;
    t->n_seq = 1;
    if (b->o.sequences) SPEC_TRY(bench_ints(&t->n_seq, 1, &n, b->o.sequences, "--sequences"));
    if (t->n_seq > MAX_AT_ONCE) return speci_fail(SPEC_E_INVALID, "--sequences %d: generate has up to %d at once", t->n_seq, MAX_AT_ONCE);
    spec_status status = bench_set_open(&set, b, c->draft, c->tree);
    if (status == SPEC_OK) status = bench_set_session(&s, b, &set, c->rule, bench_positions(b, task), t->n_seq);
    if (status == SPEC_OK) {
        t->n_node_max = s->n_node;
        status = decode_task(t, b, s, task, c->temperature);
    }
    spec_session_close(s);
    bench_set_close(&set);
    return status;
}

/* --- the report --- */

static double per_second(const tally *t)
{
    return 1e3 * (double)t->n_token / t->ms;
}

/* Steps by the drafter that proposed, in the set's order: "12,0,85". Steps without a proposal, and unions, are none's. */
static void put_steps_by_drafter(json_t *r, const tally *t, const char *set)
{
    char text[MAX_TEXT], item[MAX_TEXT];
    size_t n = 0;
    for (int32_t i = 0; i < BENCH_MAX_DRAFTER && bench_item(item, sizeof item, set, '+', i); i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i > 0 ? "," : "", (long long)t->n_by[i]);
    bench_text(r, "steps_by_drafter", text);
}

/* With all drafts before it accepted, how often one of depth 1, 2, ... was, in steps that drafted: "0.91,0.8". Depths that fewer than
 * MIN_REACHED steps came to are left out. */
static void put_acceptance(json_t *r, const tally *t)
{
    enum { MIN_REACHED = 10 };
    char text[MAX_TEXT] = "";
    size_t n = 0;
    for (int32_t d = 1; d <= SPEC_MAX_DEPTH && t->n_reached[d - 1] >= MIN_REACHED && t->n_reached[d] > 0 && n < sizeof text; d++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.3f", d > 1 ? "," : "", (double)t->n_reached[d] / (double)t->n_reached[d - 1]);
    if (n > 0) bench_text(r, "accepted_by_depth", text);
}

static spec_status emit(bench *b, tally *t, const configuration *c, const bench_workload *task, const tally *plain)
{
    const double steps = (double)t->n_step, calls = (double)t->n_call;
    static const char *const vocabs[] = { "auto", "intersection", "text" };
    json_t *r = bench_record(b, "generate");
    bench_set_describe(r, b, c->draft, c->tree);
    if (c->tree && b->o.vocab) bench_text(r, "vocab", vocabs[b->o.vocab]);
    if (t->n_seq > 1) bench_count(r, "sequences", t->n_seq);
    if (c->tree && b->o.resample) bench_count(r, "resample", b->o.resample);
    if (c->tree && b->o.resample_across) bench_text(r, "resample_across", "yes");
    if (c->tree && b->o.token_info) bench_text(r, "token_info", "collapsed");
    bench_text(r, "verify", c->verify);
    bench_number(r, "temperature", (double)c->temperature);
    bench_text(r, "task", task->name);
    bench_count(r, "prompts", task->n);
    bench_count(r, "emitted", t->n_token);
    bench_count(r, "steps", t->n_step);
    bench_count(r, "nodes", t->n_node_max);
    bench_number(r, "nodes_per_step", (double)t->n_node / steps);
    bench_number(r, "emitted_per_step", (double)t->n_token / steps);
    bench_number(r, "tokens_per_s", per_second(t));
    bench_number(r, "over_plain", per_second(t) / per_second(plain));
    bench_number(r, "speculated_share", (double)t->n_speculated / steps);
    if (c->draft && strchr(c->draft, '+')) put_steps_by_drafter(r, t, c->draft);
    if (c->draft) put_acceptance(r, t);
    bench_number(r, "branched_share", (double)t->n_branched / steps);
    bench_number(r, "host_work_ms", t->host_work_ms);
    bench_number(r, "host_work_share", t->host_work_ms / bench_median(t->step_ms, (int32_t)t->n_call));
    bench_number(r, "read_bytes_per_step", (double)t->counts.n_read / calls);
    bench_number(r, "syncs_per_step", (double)t->counts.n_sync / calls);
    bench_number(r, "allocs_per_step", (double)t->counts.n_alloc / calls);
    bench_times(r, t->step_ms, (int32_t)t->n_call);
    return bench_emit(b, r, bench_floor_ms(b, (int32_t)task->prompts[0].n, t->n_seq));
}

/* A rule that would bias the output is refused by the library: that is told, and the run goes on. */
static spec_status one(bench *b, const configuration *c, const bench_workload *task, const tally *plain)
{
    tally t = { .n_step = 0 };
    spec_status status = decode_configuration(&t, b, c, task);
    if (status == SPEC_E_INVALID) {
        fprintf(stderr, "spec-bench: left out: %s, %s with %s at temperature %g: %s\n", c->draft,
                c->tree ? c->tree : "no tree", c->verify, (double)c->temperature, spec_last_error());
        status = SPEC_OK;
    } else if (status == SPEC_OK && t.n_step > 0) {
        status = emit(b, &t, c, task, plain);
    }
    speci_free(NULL, t.step_ms);
    return status;
}

static spec_status each_rule(bench *b, configuration c, const bench_workload *task, const tally *plain)
{
    char verify[32];
    for (int32_t k = 0; bench_item(verify, sizeof verify, b->o.verify ? b->o.verify : "auto", ',', k); k++) {
        c.verify = verify;
        SPEC_TRY(bench_rule(&c.rule, verify));
        SPEC_TRY(one(b, &c, task, plain));
    }
    return SPEC_OK;
}

/* With a choice at run time the trees are one configuration. */
static spec_status each_tree(bench *b, configuration c, const bench_workload *task, const tally *plain)
{
    char tree[MAX_TEXT];
    const char *trees = b->o.tree ? b->o.tree : "chain:4", separator = b->o.adapt ? '\n' : ';';
    for (int32_t i = 0; bench_item(tree, sizeof tree, trees, separator, i); i++) {
        c.tree = tree;
        SPEC_TRY(each_rule(b, c, task, plain));
    }
    return SPEC_OK;
}

/* Every set of drafters by every tree and rule at one temperature. */
static spec_status each_set(bench *b, const bench_workload *task, float temperature, const tally *plain)
{
    char set[MAX_TEXT];
    const char *sets = b->o.draft ? b->o.draft : b->draft_model ? "model" : NULL;
    for (int32_t i = 0; sets && bench_item(set, sizeof set, sets, ';', i); i++) {
        const configuration c = { .draft = set, .temperature = temperature };
        bool model;
        SPEC_TRY(bench_set_has_model(&model, b, set));
        SPEC_TRY((model ? each_tree : each_rule)(b, c, task, plain));
    }
    return SPEC_OK;
}

static spec_status each_temperature(bench *b, const bench_workload *task)
{
    char text[32];
    for (int32_t i = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "0", ',', i); i++) {
        configuration c = { .verify = "auto" };
        tally plain = { .n_step = 0 };
        SPEC_TRY(bench_temperature(&c.temperature, text));
        spec_status status = decode_configuration(&plain, b, &c, task);
        if (status == SPEC_OK && plain.n_step > 0) status = emit(b, &plain, &c, task, &plain);
        if (status == SPEC_OK) status = each_set(b, task, c.temperature, &plain);
        speci_free(NULL, plain.step_ms);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

spec_status bench_generate(bench *b)
{
    bench_count_install(b->be);
    return bench_each_workload(b, each_temperature);
}
