/* bench_prompts.c - workloads: the prompts of files, and what they need of a session; rules by name. */
#define _POSIX_C_SOURCE 200809L /* scandir */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_json.h"
#include "tests/bench/bench.h"

enum { RANDOM_LENGTH = 64, MAX_LENGTH = 1024, MAX_PATH = 4096 };

/* --- prompts --- */

static void free_task(bench_workload *t)
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

static spec_status add_ids(const bench *b, bench_workload *t, const char *text, size_t n_text, uint32_t flags)
{
    const spec_tokenizer *tokenizer = spec_model_tokenizer(b->model);
    bench_prompt p = { .n = 0 };
    const spec_status asked = spec_tokenizer_encode(tokenizer, NULL, 0, &p.n, text, n_text, flags);
    if (asked != SPEC_OK && asked != SPEC_E_FULL) return asked;
    p.ids = speci_alloc(NULL, p.n + 1, sizeof *p.ids);
    if (!p.ids) return SPEC_E_NOMEM;
    t->prompts[t->n++] = p;
    bench_prompt *at = &t->prompts[t->n - 1];
    SPEC_TRY(spec_tokenizer_encode(tokenizer, at->ids, at->n, &at->n, text, n_text, flags));
    if (at->n > longest(b)) at->n = longest(b);
    if (at->n == 0) speci_free(NULL, t->prompts[--t->n].ids);
    return SPEC_OK;
}

/* As a chat format has it, which writes all special tokens itself; or as it is. */
static spec_status add_text(const bench *b, bench_workload *t, const char *text, size_t n_text)
{
    if (!b->o.chat) return add_ids(b, t, text, n_text, SPEC_TOKEN_ADD_SPECIAL);
    const char *place = strstr(b->o.chat, "{}");
    if (!place) return speci_fail(SPEC_E_INVALID, "--chat: there is no {} for the prompt");
    const size_t cap = strlen(b->o.chat) + n_text;
    char *whole = speci_alloc(NULL, cap, 1);
    if (!whole) return SPEC_E_NOMEM;
    const int n = snprintf(whole, cap, "%.*s%.*s%s", (int)(place - b->o.chat), b->o.chat, (int)n_text, text, place + 2);
    const spec_status status = add_ids(b, t, whole, (size_t)n, SPEC_TOKEN_PARSE_SPECIAL);
    speci_free(NULL, whole);
    return status;
}

static spec_status add_line(const bench *b, bench_workload *t, const char *line, size_t n, const char *path)
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
    return b->o.n_prompt < BENCH_PROMPTS ? b->o.n_prompt : BENCH_PROMPTS;
}

static spec_status read_task(const bench *b, bench_workload *t, const char *path)
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
static spec_status random_task(const bench *b, bench_workload *t)
{
    uint64_t state = 88172645463325252u;
    snprintf(t->name, sizeof t->name, "random");
    for (; t->n < n_prompt(b); t->n++) {
        bench_prompt *p = &t->prompts[t->n];
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

int32_t bench_positions(const bench *b, const bench_workload *t)
{
    size_t most = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (t->prompts[i].n > most) most = t->prompts[i].n;
    const int32_t n = (int32_t)most + b->o.n_predict + SPECI_MAX_NODE, limit = b->model->n_ctx;
    return limit > 0 && n > limit ? limit : n;
}

/* --- rules --- */

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

spec_status bench_rule(spec_verify_rule *out, const char *name)
{
    named_rule want = { .name = name };
    spec_verify_rule_list(match_rule, &want);
    if (!want.found) return speci_fail(SPEC_E_INVALID, "--verify %s: there is no such rule", name);
    *out = want.rule;
    return SPEC_OK;
}

/* --- files of prompts --- */

static spec_status run_task(bench *b, const char *path, bench_run_fn run)
{
    bench_workload *t = speci_alloc(NULL, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    spec_status status = path ? read_task(b, t, path) : random_task(b, t);
    if (status == SPEC_OK && t->n == 0) status = speci_fail(SPEC_E_INVALID, "%s: no prompts", path);
    if (status == SPEC_OK) status = run(b, t);
    free_task(t);
    speci_free(NULL, t);
    return status;
}

static int is_jsonl(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return dot && strcmp(dot, ".jsonl") == 0;
}

static spec_status each_shared(bench *b, const char *shared, bench_run_fn run)
{
    char dir[MAX_PATH], path[MAX_PATH];
    struct dirent **names;
    SPEC_TRY(speci_path_join(dir, sizeof dir, shared, "data/prompts"));
    const int n = scandir(dir, &names, is_jsonl, alphasort);
    if (n < 0) return speci_fail(SPEC_E_IO, "%s: %s", dir, strerror(errno));
    spec_status status = SPEC_OK;
    for (int i = 0; i < n; i++) {
        if (status == SPEC_OK) status = speci_path_join(path, sizeof path, dir, names[i]->d_name);
        if (status == SPEC_OK) status = run_task(b, path, run);
        free(names[i]);
    }
    free(names);
    return status;
}

spec_status bench_each_workload(bench *b, bench_run_fn run)
{
    char path[MAX_PATH];
    const char *shared = getenv("SPEC_SHARED");
    if (!spec_model_tokenizer(b->model)) return run_task(b, NULL, run);
    if (!b->o.prompts && !shared)
        return speci_fail(SPEC_E_INVALID, "--prompts FILE is missing, and SPEC_SHARED is not set");
    if (!b->o.prompts) return each_shared(b, shared, run);
    for (int32_t i = 0; bench_item(path, sizeof path, b->o.prompts, ',', i); i++) SPEC_TRY(run_task(b, path, run));
    return SPEC_OK;
}
