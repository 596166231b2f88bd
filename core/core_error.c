/* core_error.c - the sentence of the latest failure, one fixed buffer per thread.
 *
 * A fixed buffer rather than an allocation: reporting that memory is gone must not need memory. */
#define _GNU_SOURCE /* strerror_r */
#include "core/core.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/core_dtype.h"

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char last_error[MESSAGE_BYTES];
static _Thread_local uint64_t n_failure;

spec_status speci_fail(spec_status code, const char *fmt, ...)
{
    /* Formatted apart from its final place, so that an argument may be spec_last_error() itself. */
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0) strcpy(text, "(message could not be formatted)");
    va_end(args);
    memcpy(last_error, text, sizeof text);
    n_failure++;
    return code;
}

spec_status speci_fail_errno(const char *path, const char *doing)
{
    char text[128] = "";
    int code = errno;
    /* GNU strerror_r may return a string of its own; it is thread-safe, which strerror is not. */
    const char *why = strerror_r(code, text, sizeof text);
    return speci_fail(SPEC_E_IO, "%s: %s: %s", path, doing, why);
}

uint64_t speci_n_failure(void) { return n_failure; }

spec_status spec_fail(spec_status code, const char *text) { return speci_fail(code, "%s", text ? text : ""); }

const char *spec_last_error(void)
{
    return last_error;
}

const char *spec_version(void)
{
    return SPEC_VERSION;
}

static const char *name_of(spec_status status)
{
    switch (status) {
    case SPEC_OK: return "OK";
    case SPEC_E_INVALID: return "E_INVALID";
    case SPEC_E_NOMEM: return "E_NOMEM";
    case SPEC_E_IO: return "E_IO";
    case SPEC_E_FORMAT: return "E_FORMAT";
    case SPEC_E_UNSUPPORTED: return "E_UNSUPPORTED";
    case SPEC_E_DEVICE: return "E_DEVICE";
    case SPEC_E_STATE: return "E_STATE";
    case SPEC_E_FULL: return "E_FULL";
    case SPEC_E_BUSY: return "E_BUSY";
    case SPEC_E_ABORTED: return "E_ABORTED";
    }
    return NULL;
}

const char *spec_status_name(spec_status status)
{
    const char *name = name_of(status);
    return name ? name : "unknown status";
}

spec_status speci_callback_status(spec_status status, uint64_t n_failure_before, const char *callback, const char *whose)
{
    const char *name = name_of(status);
    const bool said = n_failure != n_failure_before;
    if (!name)
        return speci_fail(SPEC_E_INVALID, "%s of %s returned %d, which is no status%s%s", callback, whose, (int)status,
                          said ? ": " : "", said ? last_error : "");
    if (status == SPEC_OK || said) return status;
    return speci_fail(status, "%s of %s failed with %s, and said nothing more", callback, whose, name);
}

const char *spec_dtype_name(spec_dtype dtype) { return speci_dtype_name(dtype); }
