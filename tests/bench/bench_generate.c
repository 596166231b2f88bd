/* bench_generate.c - end to end: every tree x rule x temperature over the prompts of a file, beside plain decoding of
 * the same prompts in the same run. Counts are of the steps alone, without prefill.
 *
 * host_work_ms: what the host itself spends in a step, building, queueing, verifying: steps of the first prompt again,
 * the queue drained before each call and all waiting left out (bench_count.c). In the measured steps most of it happens
 * while the device is at work. */
#define _POSIX_C_SOURCE 200809L /* scandir */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_json.h"
#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { MAX_PROMPTS = 256, MAX_CONFIGS = 64, RANDOM_LENGTH = 64, MAX_LENGTH = 1024, WARM_TOKENS = 16, HOST_TOKENS = 64,
       MAX_PATH = 4096 };

typedef struct prompt {
    int32_t *ids;
    size_t n;
} prompt;

typedef struct workload {
    char name[64];
    prompt prompts[MAX_PROMPTS];
    int32_t n;
} workload;

/* What came of decoding a task. */
typedef struct tally {
    int64_t n_step, n_token, n_speculated, n_branched, n_node;
    int32_t n_node_max; /* of a tree, as the session planned */
    bool host_alone;    /* step_ms: without waiting */
    double ms, host_work_ms;
    bench_counts counts;
    double *step_ms;
    int64_t cap;
} tally;

typedef struct configuration {
    const char *tree; /* NULL: plain */
    const char *verify;
    spec_verify_rule rule;
    float temperature;
} configuration;

/* --- prompts --- */

static void free_task(workload *t)
{
    for (int32_t i = 0; i < t->n; i++) speci_free(NULL, t->prompts[i].ids);
    t->n = 0;
}

/* Most tokens of a prompt: the rest of a context is for what is generated, and trees. */
static size_t longest(const bench *b)
{
    const int32_t limit = b->model->n_ctx, room = limit - b->o.n_predict - SPECI_MAX_NODE;
    const size_t wanted = b->o.context > 0 ? (size_t)b->o.context : MAX_LENGTH;
    return limit > 0 && room > 0 && (size_t)room < wanted ? (size_t)room : wanted;
}

static spec_status add_text(const bench *b, workload *t, const char *text, size_t n_text)
{
    const spec_tokenizer *tokenizer = spec_model_tokenizer(b->model);
    prompt p = { .n = 0 };
    const spec_status asked = spec_tokenizer_encode(tokenizer, NULL, 0, &p.n, text, n_text, SPEC_TOKEN_ADD_SPECIAL);
    if (asked != SPEC_OK && asked != SPEC_E_FULL) return asked;
    p.ids = speci_alloc(NULL, p.n + 1, sizeof *p.ids);
    if (!p.ids) return SPEC_E_NOMEM;
    t->prompts[t->n++] = p;
    prompt *at = &t->prompts[t->n - 1];
    SPEC_TRY(spec_tokenizer_encode(tokenizer, at->ids, at->n, &at->n, text, n_text, SPEC_TOKEN_ADD_SPECIAL));
    if (at->n > longest(b)) at->n = longest(b);
    if (at->n == 0) speci_free(NULL, t->prompts[--t->n].ids);
    return SPEC_OK;
}

static spec_status add_line(const bench *b, workload *t, const char *line, size_t n, const char *path)
{
    json_t *root;
    SPEC_TRY(speci_json_parse(&root, line, n, path));
    const json_t *text = json_object_get(root, "prompt");
    const spec_status status = json_is_string(text)
                                   ? add_text(b, t, json_string_value(text), json_string_length(text))
                                   : speci_fail(SPEC_E_FORMAT, "%s: a line without \"prompt\"", path);
    json_decref(root);
    return status;
}

static int32_t n_prompt(const bench *b)
{
    return b->o.n_prompt < MAX_PROMPTS ? b->o.n_prompt : MAX_PROMPTS;
}

static spec_status read_task(const bench *b, workload *t, const char *path)
{
    char *text;
    size_t n;
    const char *base = strrchr(path, '/');
    snprintf(t->name, sizeof t->name, "%s", base ? base + 1 : path);
    t->name[strcspn(t->name, ".")] = 0;
    SPEC_TRY(speci_file_read(&text, &n, path, (size_t)1 << 28, NULL));
    spec_status status = SPEC_OK;
    for (char *line = text; status == SPEC_OK && *line && t->n < n_prompt(b);) {
        const size_t length = strcspn(line, "\n");
        if (length > 0) status = add_line(b, t, line, length, path);
        line += length + (line[length] == '\n');
    }
    speci_free(NULL, text);
    return status;
}

/* For a model without a tokenizer: ids without a meaning. */
static spec_status random_task(const bench *b, workload *t)
{
    uint64_t state = 88172645463325252u;
    snprintf(t->name, sizeof t->name, "random");
    for (; t->n < n_prompt(b); t->n++) {
        prompt *p = &t->prompts[t->n];
        p->n = b->o.context > 0 ? (size_t)b->o.context : RANDOM_LENGTH;
        p->ids = speci_alloc(NULL, p->n, sizeof *p->ids);
        if (!p->ids) return SPEC_E_NOMEM;
        for (size_t i = 0; i < p->n; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            p->ids[i] = (int32_t)(state % (uint64_t)b->model->n_vocab);
        }
    }
    return SPEC_OK;
}

/* --- decoding --- */

static spec_status keep_time(tally *t, double ms)
{
    if (t->n_step == t->cap) {
        const int64_t cap = t->cap ? 2 * t->cap : 1024;
        double *more = speci_alloc(NULL, (size_t)cap, sizeof *more);
        if (!more) return SPEC_E_NOMEM;
        if (t->step_ms) memcpy(more, t->step_ms, (size_t)t->cap * sizeof *more);
        speci_free(NULL, t->step_ms);
        t->step_ms = more, t->cap = cap;
    }
    t->step_ms[t->n_step] = ms;
    return SPEC_OK;
}

static spec_status tally_step(tally *t, spec_session *s, int32_t seq, spec_step_result *r)
{
    const bench_counts before = bench_count_now();
    const double start = speci_now_ms();
    SPEC_TRY(step_into(s, r, &seq, 1));
    const double ms = speci_now_ms() - start;
    const bench_counts after = bench_count_now();
    SPEC_TRY(keep_time(t, t->host_alone ? ms - (after.wait_ms - before.wait_ms) : ms));
    t->n_step++;
    t->ms += ms;
    t->n_token += r->n_tokens;
    t->n_node += r->n_drafted + 1;
    t->n_speculated += r->n_drafted > 0;
    t->n_branched += r->branched;
    t->counts.n_sync += after.n_sync - before.n_sync;
    t->counts.n_alloc += after.n_alloc - before.n_alloc;
    t->counts.n_read += after.n_read - before.n_read;
    return SPEC_OK;
}

static spec_status decode(tally *t, const bench *b, spec_session *s, const prompt *p, const spec_sampling *sampling,
                          int32_t n_predict)
{
    int32_t seq;
    SPEC_TRY((b->o.ignore_eos ? add_endless : add_sampled)(s, &seq, p->ids, p->n, sampling));
    spec_status status = SPEC_OK;
    spec_step_result r = { .stop = SPEC_STOP_NONE };
    for (int32_t n = 0; status == SPEC_OK && n < n_predict && r.stop == SPEC_STOP_NONE; n += r.n_tokens)
        status = tally_step(t, s, seq, &r);
    SPEC_TRY(status);
    return spec_sequence_remove(s, seq);
}

/* The median of what the host itself spends in a step. */
static spec_status measure_host(double *work_ms, const bench *b, spec_session *s, const workload *task,
                                const spec_sampling *sampling)
{
    tally host = { .host_alone = true };
    const int32_t n = b->o.n_predict < HOST_TOKENS ? b->o.n_predict : HOST_TOKENS;
    bench_count_drain(true);
    const spec_status status = decode(&host, b, s, &task->prompts[0], sampling, n);
    bench_count_drain(false);
    *work_ms = host.n_step > 0 ? bench_median(host.step_ms, (int32_t)host.n_step) : 0;
    speci_free(NULL, host.step_ms);
    return status;
}

/* A few tokens first: what is made at first use (captured passes, pages) is made then. */
static spec_status decode_task(tally *t, const bench *b, spec_session *s, const workload *task, float temperature)
{
    tally warm = { .n_step = 0 };
    spec_sampling sampling = { .temperature = temperature, .top_p = (float)b->o.top_p, .seed = 1 };
    const spec_status warmed = decode(&warm, b, s, &task->prompts[0], &sampling, WARM_TOKENS);
    speci_free(NULL, warm.step_ms);
    SPEC_TRY(warmed);
    for (int32_t i = 0; i < task->n; i++) {
        sampling.seed = (uint64_t)i + 1;
        SPEC_TRY(decode(t, b, s, &task->prompts[i], &sampling, b->o.n_predict));
    }
    sampling.seed = 1;
    return measure_host(&t->host_work_ms, b, s, task, &sampling);
}

static int32_t positions(const bench *b, const workload *t)
{
    size_t most = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (t->prompts[i].n > most) most = t->prompts[i].n;
    const int32_t n = (int32_t)most + b->o.n_predict + SPECI_MAX_NODE, limit = b->model->n_ctx;
    return limit > 0 && n > limit ? limit : n;
}

static spec_status open_session(spec_session **s, const bench *b, spec_drafter *drafter, const configuration *c,
                                int32_t n_ctx)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_ctx = n_ctx;
    p.verify = c->rule;
    p.adapt = drafter ? b->o.adapt : SPEC_ADAPT_OFF;
    p.lab = &b->o.lab;
    return spec_session_open(s, b->model, drafter, &p);
}

static spec_status decode_configuration(tally *t, const bench *b, const configuration *c, const workload *task)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *drafter = NULL;
    spec_session *s = NULL;
    p.tree = c->tree;
    if (c->tree) SPEC_TRY(spec_drafter_from_model(&drafter, b->draft_model, &p));
    spec_status status = open_session(&s, b, drafter, c, positions(b, task));
    if (status == SPEC_OK) {
        t->n_node_max = s->n_node;
        status = decode_task(t, b, s, task, c->temperature);
    }
    spec_session_close(s);
    spec_drafter_close(drafter);
    return status;
}

/* --- the report --- */

static double per_second(const tally *t)
{
    return 1e3 * (double)t->n_token / t->ms;
}

static spec_status emit(bench *b, tally *t, const configuration *c, const workload *task, const tally *plain)
{
    const double steps = (double)t->n_step;
    static const char *const adapts[] = { "off", "cost", "ucb" };
    json_t *r = bench_record(b, "generate");
    bench_text(r, "drafter", c->tree ? b->draft_name : "none");
    bench_text(r, "tree", c->tree ? c->tree : "none");
    bench_text(r, "verify", c->verify);
    bench_text(r, "adapt", c->tree ? adapts[b->o.adapt] : "off");
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
    bench_number(r, "branched_share", (double)t->n_branched / steps);
    bench_number(r, "host_work_ms", t->host_work_ms);
    bench_number(r, "host_work_share", t->host_work_ms / bench_median(t->step_ms, (int32_t)t->n_step));
    bench_number(r, "read_bytes_per_step", (double)t->counts.n_read / steps);
    bench_number(r, "syncs_per_step", (double)t->counts.n_sync / steps);
    bench_number(r, "allocs_per_step", (double)t->counts.n_alloc / steps);
    bench_times(r, t->step_ms, (int32_t)t->n_step);
    return bench_emit(b, r, bench_floor_ms(b, (int32_t)task->prompts[0].n, 1));
}

/* A rule that would bias the output is refused by the library: that is told, and the run goes on. */
static spec_status one(bench *b, const configuration *c, const workload *task, const tally *plain)
{
    tally t = { .n_step = 0 };
    spec_status status = decode_configuration(&t, b, c, task);
    if (status == SPEC_E_INVALID) {
        fprintf(stderr, "spec-bench: left out: %s with %s at temperature %g: %s\n", c->tree, c->verify,
                (double)c->temperature, spec_last_error());
        status = SPEC_OK;
    } else if (status == SPEC_OK && t.n_step > 0) {
        status = emit(b, &t, c, task, plain);
    }
    speci_free(NULL, t.step_ms);
    return status;
}

typedef struct named_rule {
    const char *name;
    spec_verify_rule rule;
    bool found;
} named_rule;

static void match_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    named_rule *want = user;
    (void)help;
    if (strcmp(want->name, name) == 0) want->rule = rule, want->found = true;
}

static spec_status rule_of(spec_verify_rule *out, const char *name)
{
    named_rule want = { .name = name };
    spec_verify_rule_list(match_rule, &want);
    if (!want.found) return speci_fail(SPEC_E_INVALID, "--verify %s: there is no such rule", name);
    *out = want.rule;
    return SPEC_OK;
}

/* Every tree by every rule at one temperature. With a choice at run time the trees are one configuration. */
static spec_status each_tree(bench *b, const workload *task, float temperature, const tally *plain)
{
    char tree[512], verify[32];
    const char *trees = b->o.tree ? b->o.tree : "chain:4", separator = b->o.adapt ? '\n' : ';';
    for (int32_t i = 0; bench_item(tree, sizeof tree, trees, separator, i); i++)
        for (int32_t k = 0; bench_item(verify, sizeof verify, b->o.verify ? b->o.verify : "auto", ',', k); k++) {
            configuration c = { .tree = tree, .verify = verify, .temperature = temperature };
            SPEC_TRY(rule_of(&c.rule, verify));
            SPEC_TRY(one(b, &c, task, plain));
        }
    return SPEC_OK;
}

static spec_status each_temperature(bench *b, const workload *task)
{
    char text[32], *end;
    for (int32_t i = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "0", ',', i); i++) {
        const configuration c = { .verify = "auto", .temperature = strtof(text, &end) };
        tally plain = { .n_step = 0 };
        if (end == text || *end) return speci_fail(SPEC_E_INVALID, "--temp %s: not a number", text);
        spec_status status = decode_configuration(&plain, b, &c, task);
        if (status == SPEC_OK && plain.n_step > 0) status = emit(b, &plain, &c, task, &plain);
        if (status == SPEC_OK && b->draft_model) status = each_tree(b, task, c.temperature, &plain);
        speci_free(NULL, plain.step_ms);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

static spec_status run_task(bench *b, const char *path)
{
    workload *t = speci_alloc(NULL, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    spec_status status = path ? read_task(b, t, path) : random_task(b, t);
    if (status == SPEC_OK && t->n == 0) status = speci_fail(SPEC_E_INVALID, "%s: no prompts", path);
    if (status == SPEC_OK) status = each_temperature(b, t);
    free_task(t);
    speci_free(NULL, t);
    return status;
}

/* --- files of prompts --- */

static int is_jsonl(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return dot && strcmp(dot, ".jsonl") == 0;
}

static spec_status each_shared(bench *b, const char *shared)
{
    char dir[MAX_PATH], path[MAX_PATH];
    struct dirent **names;
    SPEC_TRY(speci_path_join(dir, sizeof dir, shared, "data/prompts"));
    const int n = scandir(dir, &names, is_jsonl, alphasort);
    if (n < 0) return speci_fail(SPEC_E_IO, "%s: %s", dir, strerror(errno));
    spec_status status = SPEC_OK;
    for (int i = 0; i < n; i++) {
        if (status == SPEC_OK) status = speci_path_join(path, sizeof path, dir, names[i]->d_name);
        if (status == SPEC_OK) status = run_task(b, path);
        free(names[i]);
    }
    free(names);
    return status;
}

spec_status bench_generate(bench *b)
{
    char path[MAX_PATH];
    const char *shared = getenv("SPEC_SHARED");
    bench_count_install(b->be);
    if (!spec_model_tokenizer(b->model)) return run_task(b, NULL);
    if (!b->o.prompts && !shared)
        return speci_fail(SPEC_E_INVALID, "--prompts FILE is missing, and SPEC_SHARED is not set");
    if (!b->o.prompts) return each_shared(b, shared);
    for (int32_t i = 0; bench_item(path, sizeof path, b->o.prompts, ',', i); i++) SPEC_TRY(run_task(b, path));
    return SPEC_OK;
}
