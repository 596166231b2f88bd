/* engine_stop.c - stop strings in growing text. */
#include "algorithms/engine/engine_stop.h"

#include <string.h>

static size_t longest(const speci_stops *stops)
{
    size_t n = 0;
    for (int32_t i = 0; i < stops->n; i++) {
        const size_t len = strlen(stops->strings[i]);
        if (len > n) n = len;
    }
    return n;
}

static bool starts_at(const char *text, size_t n, const char *string)
{
    const size_t len = strlen(string);
    return len > 0 && len <= n && memcmp(text, string, len) == 0;
}

bool speci_stop_find(const speci_stops *stops, const char *text, size_t n, size_t n_old, size_t *at)
{
    const size_t reach = longest(stops);
    if (reach == 0) return false;
    for (size_t i = n_old > reach - 1 ? n_old - (reach - 1) : 0; i < n; i++)
        for (int32_t k = 0; k < stops->n; k++)
            if (starts_at(text + i, n - i, stops->strings[k])) {
                *at = i;
                return true;
            }
    return false;
}

size_t speci_stop_held(const speci_stops *stops, const char *text, size_t n)
{
    const size_t reach = longest(stops);
    for (size_t held = reach < n ? reach : n; held > 0; held--)
        for (int32_t k = 0; k < stops->n; k++) {
            const size_t len = strlen(stops->strings[k]);
            if (held < len && memcmp(text + n - held, stops->strings[k], held) == 0) return held;
        }
    return 0;
}
