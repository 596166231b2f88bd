/* engine_measured.c - what step costs were measured of, in words: costs of another machine are told, since by them the choice among ways
 * to draft would go wrong. */
#include <stdio.h>
#include <string.h>

#include "algorithms/engine/engine.h"
#include "core/core_dtype.h"

/* As a profile can hold it: printable ASCII. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}

/* A device of the host computes on its threads, and is named by its kernels alone. */
static void device_of(char *out, size_t cap, const spec_backend *be)
{
    const int32_t n = be->host.n_threads;
    char cpu[64];
    snprintf(out, cap, "%s", be->info.name);
    if (!be->info.host_visible) return;
    speci_cpu_name(cpu, sizeof cpu);
    snprintf(out, cap, "%s, %d thread%s%s%s", be->info.name, n, n == 1 ? "" : "s", cpu[0] ? " of " : "", cpu);
}

void speci_measured_of(char *out, size_t cap, const spec_model *m)
{
    char device[256];
    device_of(device, sizeof device, m->backend);
    const unsigned long long bytes = m->bytes_weights;
    snprintf(out, cap, "%s in %s, %llu bytes of weights, on %s", m->family, speci_dtype_name(m->dtype), bytes, device);
    make_plain(out);
}

/* Nothing is known of what an application or an older version wrote. */
static void check(const spec_model *m, const char *said, const char *what, const char *path)
{
    char own[sizeof((spec_cost_profile *)0)->target_of];
    speci_measured_of(own, sizeof own, m);
    if (!said[0] || strcmp(said, own) == 0) return;
    speci_log(m->backend, SPEC_LOG_WARN,
              "%s: step costs of another %s, by which the choice among trees may be a poor one: they are of %s; this is %s. Without the "
              "file they are measured", path, what, said, own);
}

void speci_measured_check(const spec_session *s, const spec_model *drafter, const char *path)
{
    check(s->site.target, s->profile.target_of, "target or machine", path);
    if (drafter) check(drafter, s->profile.draft_of, "drafter or machine", path);
}
