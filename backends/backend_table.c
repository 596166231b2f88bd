/* backend_table.c - the backends: built in, as plugins, or an application's own table.
 *
 * To add a backend that is built in: one row in `built_in`. A plugin needs none. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/backend_plugin.h"
#include "backends/backend_probe.h"

static const spec_backend_ops *const built_in[] = { &speci_cpu_ops };
enum { N_BUILT_IN = sizeof built_in / sizeof built_in[0] };

enum { NAME_CAP = 128, HEAD_CAP = 4096 };

/* ------------------------------------------------------------------------------- host services --- */

static spec_backend *backend_of(const spec_host *host)
{
    return (spec_backend *)(uintptr_t)((const char *)host - offsetof(spec_backend, host));
}

static void logv(const spec_backend *be, spec_log_level level, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
static void logv(const spec_backend *be, spec_log_level level, const char *fmt, va_list args)
{
    char text[1024];
    if (!be->log) return;
    vsnprintf(text, sizeof text, fmt, args);
    be->log(be->log_user_data, level, text);
}

void speci_log(const spec_backend *be, spec_log_level level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    logv(be, level, fmt, args);
    va_end(args);
}

static void host_log(const spec_host *host, spec_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void host_log(const spec_host *host, spec_log_level level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    logv(backend_of(host), level, fmt, args);
    va_end(args);
}

static void *host_alloc(const spec_host *host, size_t n, size_t size)
{
    return speci_alloc(&backend_of(host)->allocator, n, size);
}

static void host_free(const spec_host *host, void *p)
{
    speci_free(&backend_of(host)->allocator, p);
}

static void host_parallel_for(const spec_host *host, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    const spec_backend *be = backend_of(host);
    be->parallel_for(be->parallel_user_data, n, body, arg);
}

/* A backend without a device: what params say, and the services. NULL with an error set. */
static spec_backend *backend_new(const spec_backend_params *params)
{
    const spec_allocator *allocator = params->allocator ? params->allocator : &speci_malloc;
    spec_backend *be = speci_alloc(allocator, 1, sizeof *be);
    if (!be) return NULL;
    be->allocator = *allocator;
    be->log = params->log;
    be->log_user_data = params->log_user_data;
    be->parallel_for = params->parallel_for;
    be->parallel_user_data = params->parallel_user_data;
    be->host.abi = SPEC_BACKEND_ABI;
    be->host.n_threads = params->n_threads > 0 ? params->n_threads : speci_n_cpus();
    be->host.fail = speci_fail;
    be->host.log = host_log;
    be->host.alloc = host_alloc;
    be->host.free = host_free;
    be->host.parallel_for = params->parallel_for ? host_parallel_for : NULL;
    return be;
}

void spec_backend_close(spec_backend *be)
{
    if (!be || !speci_let_go(&be->holds)) return;
    spec_allocator allocator = be->allocator;
    if (be->dev) be->ops->close(be->dev);
    if (be->lib) speci_dl_close(be->lib);
    speci_free(&allocator, be);
}

/* The caller's params, or defaults. */
static spec_status read_params(spec_backend_params *out, const spec_backend_params *params)
{
    *out = (spec_backend_params)SPEC_BACKEND_PARAMS_INIT;
    SPEC_TRY(speci_params_read(out, sizeof *out, params, "spec_backend_params"));
    if (out->n_threads < 0 || out->n_threads > 4096)
        return speci_fail(SPEC_E_INVALID, "%d threads", out->n_threads);
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------- check of a table --- */

typedef void (*any_function)(void);

static const struct {
    const char *name;
    size_t offset;
} required[] = {
#define ENTRY(name) { #name, offsetof(spec_backend_ops, name) }
    ENTRY(open),      ENTRY(close),        ENTRY(info),       ENTRY(list),        ENTRY(alloc),    ENTRY(free),
    ENTRY(weight_bytes), ENTRY(weight_open), ENTRY(weight_close), ENTRY(queue_open), ENTRY(queue_bytes),
    ENTRY(queue_close), ENTRY(upload),     ENTRY(download),   ENTRY(copy),        ENTRY(zero),     ENTRY(sync),
    ENTRY(step_bind), ENTRY(argmax),       ENTRY(probs),      ENTRY(accept),      ENTRY(logprob),  ENTRY(draw),
    ENTRY(expand),
#undef ENTRY
};

/* Behind the last required member. */
static const size_t least_size = offsetof(spec_backend_ops, plan_prepare);

static spec_status check_operations(const spec_backend_ops *ops)
{
    for (int32_t i = 0; i < SPEC_OP_N; i++) {
        const spec_backend_op *op = &ops->op[i];
        if (!op->supports != !op->run || (op->run && (int32_t)op->kind != i))
            return speci_fail(SPEC_E_INVALID, "backend %s: the row of the operation %s is of kind %d, or half empty", ops->name,
                              speci_op_kinds[i].name, (int)op->kind);
        if (!op->run && !speci_op_kinds[i].fallback && !speci_op_kinds[i].optional)
            return speci_fail(SPEC_E_INVALID, "backend %s lacks the required operation %s", ops->name, speci_op_kinds[i].name);
    }
    return SPEC_OK;
}

/* *ops becomes `given` as this library knows it: an older table ends earlier, a newer one goes on. */
static spec_status take_table(spec_backend_ops *ops, const spec_backend_ops *given)
{
    memset(ops, 0, sizeof *ops);
    if (!given) return speci_fail(SPEC_E_INVALID, "no backend table");
    if (given->abi != SPEC_BACKEND_ABI)
        return speci_fail(SPEC_E_UNSUPPORTED, "the backend was built for ABI %u, the library has ABI %u", given->abi,
                          SPEC_BACKEND_ABI);
    if (given->struct_size < least_size)
        return speci_fail(SPEC_E_UNSUPPORTED, "the backend's table has %zu bytes, what is required takes %zu", given->struct_size,
                          least_size);
    memcpy(ops, given, given->struct_size < sizeof *ops ? given->struct_size : sizeof *ops);
    if (!ops->name) return speci_fail(SPEC_E_INVALID, "the backend's table has no name");
    SPEC_TRY(check_operations(ops));
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        any_function f;
        memcpy(&f, (const char *)ops + required[i].offset, sizeof f);
        if (!f) return speci_fail(SPEC_E_INVALID, "backend %s lacks the required operation %s", ops->name, required[i].name);
    }
    int n = !!ops->plan_prepare + !!ops->plan_run + !!ops->plan_free;
    if (n != 0 && n != 3)
        return speci_fail(SPEC_E_INVALID, "backend %s has some of plan_prepare, plan_run, plan_free: all or none",
                          ops->name);
    if (!ops->mark != !ops->wait)
        return speci_fail(SPEC_E_INVALID, "backend %s has one of mark and wait: both or none", ops->name);
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------------- opening --- */

static spec_status check_info(const spec_backend_ops *ops, const spec_device_info *info)
{
    const int32_t *rows = info->prefill_rows;
    bool good = rows[0] > 0;
    for (int32_t i = 1; i < SPEC_PREFILL_SIZES && rows[i] != 0; i++) good = good && rows[i] == 2 * rows[i - 1];
    if (good) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "backend %s: sizes of prefill passes are %d, %d, %d, ...", ops->name, rows[0], rows[1],
                      rows[2]);
}

/* Gives be a table and a device. */
static spec_status open_device(spec_backend *be, const spec_backend_ops *ops, const char *arg)
{
    SPEC_TRY(take_table(&be->table, ops));
    be->ops = &be->table;
    SPEC_TRY(be->ops->open(&be->dev, &be->host, arg));
    SPEC_TRY(be->ops->info(be->dev, &be->info));
    be->info.name[sizeof be->info.name - 1] = '\0';
    SPEC_TRY(check_info(be->ops, &be->info));
    return speci_backend_probe(be);
}

spec_status spec_backend_open_ops(spec_backend **out, const spec_backend_ops *ops, const char *arg,
                                  const spec_backend_params *params)
{
    spec_backend_params p;
    if (!out) return speci_fail(SPEC_E_INVALID, "no place for the backend");
    *out = NULL;
    SPEC_TRY(read_params(&p, params));
    spec_backend *be = backend_new(&p);
    if (!be) return SPEC_E_NOMEM;
    spec_status status = open_device(be, ops, arg);
    if (status != SPEC_OK) {
        spec_backend_close(be);
        return status;
    }
    *out = be;
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------------- by name --- */

/* "cuda:1" -> "cuda", "1". A path is kept whole where such a file exists. *arg is NULL without a colon. */
static spec_status split_name(char *head, size_t cap, const char **arg, const char *name)
{
    const char *colon = strchr(name, '/') ? strrchr(name, ':') : strchr(name, ':');
    if (colon && strchr(name, '/') && (strchr(colon, '/') || speci_file_exists(name))) colon = NULL;
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    if (n == 0 || n >= cap) return speci_fail(SPEC_E_INVALID, "\"%.100s\" is not the name of a backend", name);
    memcpy(head, name, n);
    head[n] = '\0';
    *arg = colon ? colon + 1 : NULL;
    return SPEC_OK;
}

spec_status spec_backend_open(spec_backend **out, const char *name, const spec_backend_params *params)
{
    spec_backend_params p;
    char head[HEAD_CAP];
    const char *arg = NULL;
    const spec_backend_ops *table = NULL;
    void *lib = NULL;
    if (!out) return speci_fail(SPEC_E_INVALID, "no place for the backend");
    *out = NULL;
    if (!name) return speci_fail(SPEC_E_INVALID, "no name of a backend");
    SPEC_TRY(read_params(&p, params));
    SPEC_TRY(split_name(head, sizeof head, &arg, name));
    for (size_t i = 0; i < N_BUILT_IN; i++)
        if (strcmp(head, built_in[i]->name) == 0) return spec_backend_open_ops(out, built_in[i], arg, &p);
    SPEC_TRY(speci_plugin_load(&lib, &table, head, p.plugin_dir));
    spec_status status = spec_backend_open_ops(out, table, arg, &p);
    if (status == SPEC_OK) (*out)->lib = lib;
    else speci_dl_close(lib);
    return status;
}

const char *spec_backend_name(const spec_backend *be)
{
    return be ? be->info.name : "";
}

/* --------------------------------------------------------------------------------------- listing --- */

typedef struct listing {
    const char *name; /* of the kind */
    void (*each)(void *user_data, const char *name, const char *text);
    void *user_data;
} listing;

static void list_one(void *user, const char *arg, const char *text)
{
    const listing *l = user;
    char name[NAME_CAP];
    snprintf(name, sizeof name, arg && arg[0] ? "%s:%s" : "%s", l->name, arg);
    l->each(l->user_data, name, text);
}

/* Devices of one table; what cannot be listed is told as a reason. */
static void list_table(const spec_backend *be, const spec_backend_ops *ops, listing *l)
{
    l->name = ops->name;
    if (ops->list(&be->host, list_one, l) != SPEC_OK) l->each(l->user_data, NULL, spec_last_error());
}

static void list_plugin(const spec_backend *be, const char *name, const char *plugin_dir, listing *l)
{
    const spec_backend_ops *given;
    spec_backend_ops table;
    void *lib = NULL;
    spec_status status = speci_plugin_load(&lib, &given, name, plugin_dir);
    if (status == SPEC_OK) status = take_table(&table, given);
    if (status == SPEC_OK) list_table(be, &table, l);
    else l->each(l->user_data, NULL, spec_last_error());
    if (lib) speci_dl_close(lib);
}

spec_status spec_backend_list(const spec_backend_params *params,
                              void (*each)(void *user_data, const char *name, const char *text), void *user_data)
{
    spec_backend_params p;
    if (!each) return speci_fail(SPEC_E_INVALID, "no function to call");
    SPEC_TRY(read_params(&p, params));
    spec_backend *be = backend_new(&p);
    if (!be) return SPEC_E_NOMEM;
    listing l = { NULL, each, user_data };
    for (size_t i = 0; i < N_BUILT_IN; i++) list_table(be, built_in[i], &l);
    for (const char *const *name = speci_plugins; *name; name++) list_plugin(be, *name, p.plugin_dir, &l);
    spec_backend_close(be);
    return SPEC_OK;
}
