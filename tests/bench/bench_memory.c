/* bench_memory.c - what trees cost in memory: a session for n nodes against one for a single node, by the library's own
 * prediction; and, for the larger, the prediction against what the device says was taken. */
#include <stdio.h>

#include "tests/bench/bench.h"

/* Anonymous resident memory of this process: mapped files are not in it. */
static uint64_t resident_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

/* Bytes taken on the device: what it says is missing, or for the host's own memory what is resident. */
static spec_status taken_bytes(uint64_t *out, const bench *b)
{
    spec_device_info info;
    SPEC_TRY(b->be->ops->info(b->be->dev, &info));
    *out = info.host_visible ? resident_bytes() : info.bytes_total - info.bytes_free;
    return SPEC_OK;
}

static spec_status predict(spec_memory *out, const bench *b, int32_t n_node)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    *out = (spec_memory){ .struct_size = sizeof *out };
    p.n_ctx = b->o.context;
    p.n_node = n_node;
    p.lab = &b->o.lab;
    return spec_session_estimate(out, b->model, NULL, &p);
}

static double session_bytes(const spec_memory *m)
{
    return (double)(m->bytes_state + m->bytes_kv + m->bytes_work);
}

static spec_status taken_by_session(double *out, const bench *b, int32_t n_node)
{
    uint64_t before, after;
    spec_session *s;
    SPEC_TRY(taken_bytes(&before, b));
    SPEC_TRY(bench_session(&s, b, NULL, b->o.context, n_node, 1));
    const spec_status status = taken_bytes(&after, b);
    spec_session_close(s);
    *out = (double)after - (double)before;
    return status;
}

static spec_status measure(bench *b, int32_t n_node)
{
    spec_memory one, many;
    double taken;
    SPEC_TRY(predict(&one, b, 1));
    SPEC_TRY(predict(&many, b, n_node));
    SPEC_TRY(taken_by_session(&taken, b, n_node));
    const double model = (double)many.bytes_model, extra = session_bytes(&many) - session_bytes(&one);
    json_t *r = bench_record(b, "memory");
    bench_count(r, "nodes", n_node);
    bench_text(r, "tree", "any");
    bench_scan(r, b);
    bench_count(r, "bytes_model", (int64_t)many.bytes_model);
    bench_count(r, "bytes_one_node", (int64_t)session_bytes(&one));
    bench_count(r, "bytes", (int64_t)session_bytes(&many));
    bench_count(r, "extra_state", (int64_t)(many.bytes_state - one.bytes_state));
    bench_count(r, "extra_kv", (int64_t)(many.bytes_kv - one.bytes_kv));
    bench_count(r, "extra_work", (int64_t)(many.bytes_work - one.bytes_work));
    bench_number(r, "extra_percent", 100 * extra / model);
    bench_number(r, "state_per_node_percent", 100 * n_node * (double)speci_model_kept(b->model).bytes_state / model);
    bench_number(r, "taken_over_predicted", taken / session_bytes(&many));
    bench_number(r, "load_s", b->load_s);
    bench_number(r, "load_gbs", model / b->load_s / 1e9);
    return bench_emit(b, r, bench_floor_ms(b, 0, 1));
}

spec_status bench_memory(bench *b)
{
    int32_t nodes[32], n;
    SPEC_TRY(bench_ints(nodes, 32, &n, b->o.nodes ? b->o.nodes : "64", "--nodes"));
    for (int32_t i = 0; i < n; i++) SPEC_TRY(measure(b, nodes[i]));
    return SPEC_OK;
}
