/* backend_plugin.h - backends that are loaded at run time. Internal. */
#ifndef SPEC_BACKEND_PLUGIN_H
#define SPEC_BACKEND_PLUGIN_H

#include "backends/backend.h"

/* Those that belong to the project, by name; NULL behind the last. */
extern const char *const speci_plugins[];

/* Loads the plugin that `name` means, a plain name or a path. *table is its table, which nobody has checked, and lives as long as
 * *lib, which the caller closes (speci_dl_close). On error *lib is NULL. plugin_dir may be NULL. */
spec_status speci_plugin_load(void **lib, const spec_backend_ops **table, const char *name, const char *plugin_dir);

#endif
