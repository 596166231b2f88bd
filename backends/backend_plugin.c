/* backend_plugin.c - shared objects with a backend's table: where they are looked for, and what is said if none is found. */
#include "backends/backend_plugin.h"

#include <stdio.h>
#include <string.h>

const char *const speci_plugins[] = { "cuda", NULL };

enum { NAME_CAP = 64, PATH_CAP = 4096, REASON_CAP = 6144 };

/* What was tried, for the message. */
typedef struct reasons {
    char text[REASON_CAP];
    size_t n;
} reasons;

static void add_reason(reasons *r, const char *place, const char *why)
{
    bool named = why && strncmp(why, place, strlen(place)) == 0; /* most loaders begin with the path */
    int n = snprintf(r->text + r->n, sizeof r->text - r->n, "%s%s%s%s", r->n ? "; " : "", named ? "" : place,
                     named ? "" : ": ", why ? why : "?");
    if (n > 0) r->n = r->n + (size_t)n < sizeof r->text ? r->n + (size_t)n : sizeof r->text - 1;
}

static void *try_load(const char *path, reasons *tried)
{
    const char *why = NULL;
    void *lib = speci_dl_open(path, &why);
    if (!lib) add_reason(tried, path, why);
    return lib;
}

static void *try_dir(const char *dir, const char *file, reasons *tried)
{
    char path[PATH_CAP];
    if (!dir || !dir[0]) return NULL;
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    return n > 0 && (size_t)n < sizeof path ? try_load(path, tried) : NULL;
}

/* libspec-<name>.so: in the directory of the params, beside the library, by the loader. A program that has the library in it
 * lies in bin, and the plugins in the lib beside that, in a build and where it is installed. */
static void *find_plugin(const char *name, const char *plugin_dir, reasons *tried)
{
    char file[NAME_CAP + 16], beside[PATH_CAP], lib_of_bin[PATH_CAP + 8];
    snprintf(file, sizeof file, "libspec-%s.so", name);
    speci_library_dir(beside, sizeof beside);
    snprintf(lib_of_bin, sizeof lib_of_bin, "%s/../lib", beside);
    const bool other = beside[0] && !speci_ends_with(beside, "/lib"); /* which it would be once more */
    const char *const places[] = { plugin_dir, beside, other ? lib_of_bin : NULL };
    void *lib = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !lib; i++) lib = try_dir(places[i], file, tried);
    return lib ? lib : try_load(file, tried);
}

static spec_status find_table(const spec_backend_ops **out, void *lib, const char *name)
{
    spec_backend_entry entry;
    void *symbol = speci_dl_symbol(lib, SPEC_BACKEND_ENTRY);
    if (!symbol)
        return speci_fail(SPEC_E_UNSUPPORTED, "plugin %s does not export %s", name, SPEC_BACKEND_ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    *out = entry();
    return SPEC_OK;
}

static bool is_plain_name(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    return name[0] && strlen(name) < NAME_CAP && strspn(name, plain) == strlen(name);
}

static bool is_known_plugin(const char *name)
{
    for (const char *const *known = speci_plugins; *known; known++)
        if (strcmp(*known, name) == 0) return true;
    return false;
}

spec_status speci_plugin_load(void **lib, const spec_backend_ops **table, const char *name, const char *plugin_dir)
{
    reasons tried = { .n = 0 };
    *lib = NULL, *table = NULL;
    if (strchr(name, '/')) {
        *lib = try_load(name, &tried);
        if (!*lib) return speci_fail(SPEC_E_DEVICE, "no plugin: %s", tried.text);
    } else {
        if (!is_plain_name(name)) return speci_fail(SPEC_E_INVALID, "\"%.100s\" is not the name of a backend", name);
        *lib = find_plugin(name, plugin_dir, &tried);
        if (!*lib && is_known_plugin(name))
            return speci_fail(SPEC_E_DEVICE, "no plugin for %s: %s", name, tried.text);
        if (!*lib)
            return speci_fail(SPEC_E_INVALID, "unknown backend \"%s\" (built in: cpu; plugin: cuda): %s", name, tried.text);
    }
    const spec_status status = find_table(table, *lib, name);
    if (status != SPEC_OK) {
        speci_dl_close(*lib);
        *lib = NULL;
    }
    return status;
}
