/* backend_probe.h - the check of path invariance when a device opens. Internal. */
#ifndef SPEC_BACKEND_PROBE_H
#define SPEC_BACKEND_PROBE_H

#include "backends/backend.h"

spec_status speci_backend_probe(spec_backend *be);

#endif
