/* bench_output.c - records: one JSON object a line, or a row of a table; their comparison with an earlier report. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_commit.h" /* made by the build */
#include "core/core_json.h"
#include "tests/bench/bench.h"

/* What a measurement is of; everything else in a record is what came out. */
static const char *const identity[] = { "mode", "model", "drafter", "backend", "dtype", "weights", "what", "nodes",
                                        "tree", "scan", "advance", "draft_state", "adapt", "combine", "vocab", "resample",
                                        "resample_across", "token_info", "verify", "temperature", "task", "context",
                                        "sequences", "path", "tokens", "threads", "level", "rows", "n_vocab" };
/* The same in every record of a run: said once above a table. */
static const char *const constant[] = { "mode", "model", "backend", "dtype", "weights", "threads", "bandwidth_gbs",
                                        "bandwidth", "valid", "commit" };
enum { N_IDENTITY = sizeof identity / sizeof *identity, N_CONSTANT = sizeof constant / sizeof *constant };

static bool is_in(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0) return true;
    return false;
}

/* --- records --- */

void bench_text(json_t *record, const char *key, const char *value)
{
    json_object_set_new(record, key, json_string(value));
}

void bench_count(json_t *record, const char *key, int64_t value)
{
    json_object_set_new(record, key, json_integer(value));
}

/* JSON has no infinity: a ratio to nothing is null. */
void bench_number(json_t *record, const char *key, double value)
{
    json_object_set_new(record, key, isfinite(value) ? json_real(value) : json_null());
}

void bench_scan(json_t *record, const bench *b)
{
    bench_text(record, "scan", b->o.lab.scan == SPEC_SCAN_CHUNKED ? "chunked" : "recurrent");
}

json_t *bench_record(const bench *b, const char *mode)
{
    json_t *r = json_object();
    bench_text(r, "mode", mode);
    bench_text(r, "model", b->model_name);
    bench_text(r, "backend", spec_backend_name(b->be));
    bench_text(r, "dtype", b->model ? spec_dtype_name(b->model->dtype) : "f32");
    if (b->model && b->model->weights != SPEC_DTYPE_AUTO) bench_text(r, "weights", spec_dtype_name(b->model->weights));
    bench_count(r, "threads", b->o.n_threads);
    return r;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *ms, int32_t n)
{
    if (n < 1) return NAN;
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    return n % 2 ? ms[n / 2] : (ms[n / 2 - 1] + ms[n / 2]) / 2;
}

void bench_times(json_t *record, double *ms, int32_t n)
{
    bench_number(record, "median_ms", bench_median(ms, n));
    bench_number(record, "min_ms", n > 0 ? ms[0] : NAN);
}

/* --- comparison --- */

spec_status bench_compare_open(bench *b)
{
    char *text = NULL;
    size_t n = 0;
    if (!b->o.compare) return SPEC_OK;
    SPEC_TRY(speci_file_read(&text, &n, b->o.compare, (size_t)1 << 28, NULL));
    b->old = json_array();
    spec_status status = SPEC_OK;
    for (char *line = text, *end; status == SPEC_OK && *line; line = end) {
        end = line + strcspn(line, "\n");
        json_t *record = NULL;
        if (end > line) status = speci_json_parse(&record, line, (size_t)(end - line), b->o.compare);
        if (record) json_array_append_new(b->old, record);
        if (*end) end++;
    }
    speci_free(NULL, text);
    return status;
}

static const json_t *counterpart(const bench *b, const json_t *record)
{
    size_t i;
    json_t *old;
    json_array_foreach(b->old, i, old) {
        bool same = true;
        for (size_t k = 0; same && k < N_IDENTITY; k++) {
            const json_t *x = json_object_get(record, identity[k]), *y = json_object_get(old, identity[k]);
            same = (!x && !y) || (x && y && json_equal(x, y));
        }
        if (same) return old;
    }
    return NULL;
}

/* {"against": commit, "median_ms": new / old, ...} for times and rates, or NULL. */
static json_t *ratios(const bench *b, json_t *record)
{
    const json_t *old = b->old ? counterpart(b, record) : NULL;
    if (!old) return NULL;
    json_t *out = json_object(), *value;
    const char *key;
    const json_t *commit = json_object_get(old, "commit");
    bench_text(out, "against", json_is_string(commit) ? json_string_value(commit) : "?");
    json_object_foreach(record, key, value) {
        const json_t *before = json_object_get(old, key);
        if (!json_is_real(value) || !json_is_number(before) || is_in(identity, N_IDENTITY, key)) continue;
        if (json_number_value(before) != 0) bench_number(out, key, json_real_value(value) / json_number_value(before));
    }
    return out;
}

/* --- printing --- */

static void format(char *out, size_t cap, const json_t *v)
{
    if (json_is_string(v)) snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_integer(v)) snprintf(out, cap, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(out, cap, "%.4g", json_real_value(v));
    else snprintf(out, cap, "-");
}

static int width_of(const char *key)
{
    const int n = (int)strlen(key);
    return n > 9 ? n : 9;
}

static bool in_table(const char *key, const json_t *value)
{
    return !is_in(constant, N_CONSTANT, key) && !json_is_object(value);
}

/* The heading of a table, where it is not the one that stands there already. */
static void heading(bench *b, json_t *record)
{
    char columns[sizeof b->columns] = "", constants[512];
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(record, key, value)
        if (in_table(key, value) && n < sizeof columns)
            n += (size_t)snprintf(columns + n, sizeof columns - n, "%*s ", width_of(key), key);
    if (strcmp(columns, b->columns) == 0) return;
    memcpy(b->columns, columns, sizeof columns);
    snprintf(constants, sizeof constants, "%s%s of %s, %s%s on %s, %d threads, %.1f GB/s (%s), commit %s",
             b->valid ? "" : "VOID: ",
             json_string_value(json_object_get(record, "mode")), b->model_name,
             json_string_value(json_object_get(record, "dtype")),
             b->model && b->model->weights != SPEC_DTYPE_AUTO ? " with weights in blocks" : "", spec_backend_name(b->be),
             b->o.n_threads,
             b->bandwidth / 1e9, b->bandwidth_kind, json_string_value(json_object_get(record, "commit")));
    printf("\n%s\n%s\n", constants, columns);
}

static void row(bench *b, json_t *record)
{
    const char *key;
    json_t *value;
    char text[160];
    heading(b, record);
    json_object_foreach(record, key, value) {
        if (!in_table(key, value)) continue;
        format(text, sizeof text, value);
        printf("%*s ", width_of(key), text);
    }
    putchar('\n');
    json_t *compared = json_object_get(record, "compare");
    json_object_foreach(compared, key, value) {
        format(text, sizeof text, value);
        printf("   %s %s%s", key, json_is_real(value) ? "x " : "", text);
    }
    if (compared) putchar('\n');
}

static void json_line(const json_t *record)
{
    char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(7));
    if (text) puts(text);
    free(text);
}

spec_status bench_emit(bench *b, json_t *record, double floor_ms)
{
    const char *commit = getenv("SPEC_BENCH_COMMIT");
    bench_number(record, "floor_ms", floor_ms);
    bench_number(record, "bandwidth_gbs", b->bandwidth / 1e9);
    bench_text(record, "bandwidth", b->bandwidth_kind);
    json_object_set_new(record, "valid", json_boolean(b->valid));
    bench_text(record, "commit", commit && commit[0] ? commit : BENCH_COMMIT);
    json_t *compared = ratios(b, record);
    if (compared) json_object_set_new(record, "compare", compared);
    if (b->o.json) json_line(record);
    else row(b, record);
    json_decref(record);
    fflush(stdout);
    return ferror(stdout) ? speci_fail(SPEC_E_IO, "the report cannot be written") : SPEC_OK;
}
