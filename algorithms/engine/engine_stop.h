/* engine_stop.h - stop strings in growing text. Internal. */
#ifndef SPEC_ENGINE_STOP_H
#define SPEC_ENGINE_STOP_H

#include "core/core.h"

typedef struct speci_stops {
    const char *const *strings; /* [n], empty ones never match */
    int32_t n;
} speci_stops;

/* The first match in text [n] that ends in its new part, [n_old, n): *at is where it begins. */
bool speci_stop_find(const speci_stops *stops, const char *text, size_t n, size_t n_old, size_t *at);
/* Bytes at the end of text that may be the beginning of a match. */
size_t speci_stop_held(const speci_stops *stops, const char *text, size_t n);

#endif
