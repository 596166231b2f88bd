/* core_write.c - files that are written: such that appear whole or not at all, and such that have no name. */
#define _GNU_SOURCE
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, TRIES = 1000 };

/* A new file beside `path`, whose name nobody has: PATH.<process>-<i>.tmp */
static spec_status create(speci_out *o)
{
    const size_t cap = strlen(o->path) + 48;
    if (!(o->temp = speci_alloc(o->a, cap, 1))) return SPEC_E_NOMEM;
    for (int i = 0; i < TRIES; i++) {
        (void)snprintf(o->temp, cap, "%s.%ld-%d.tmp", o->path, (long)getpid(), i);
        o->fd = open(o->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0) return SPEC_OK;
        if (errno != EEXIST) break;
    }
    return speci_fail_errno(o->path, "cannot create a file beside it");
}

static spec_status begin(speci_out *o, const char *path, bool unnamed)
{
    if (speci_is_directory(path)) return speci_fail(SPEC_E_IO, "%s: is a directory, expected the name of a file", path);
    if (!(o->path = speci_strdup(o->a, path)) || !(o->buffer = speci_alloc(o->a, BUFFER, 1))) return SPEC_E_NOMEM;
    SPEC_TRY(create(o));
    o->created = true;
    if (unnamed && unlink(o->temp) != 0) return speci_fail_errno(o->temp, "cannot unlink");
    if (unnamed) o->created = false;
    return SPEC_OK;
}

static spec_status open_file(speci_out *o, const char *path, const spec_allocator *a, bool unnamed)
{
    *o = (speci_out){ .a = a, .fd = -1 };
    const spec_status status = begin(o, path, unnamed);
    if (status != SPEC_OK) speci_out_close(o);
    return status;
}

spec_status speci_out_open(speci_out *o, const char *path, const spec_allocator *a) { return open_file(o, path, a, false); }

spec_status speci_out_open_unnamed(speci_out *o, const char *beside, const spec_allocator *a)
{
    return open_file(o, beside, a, true);
}

static spec_status write_all(const speci_out *o, const uint8_t *data, size_t n)
{
    while (n > 0) {
        const ssize_t put = write(o->fd, data, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return speci_fail_errno(o->path, "cannot write");
        data += put, n -= (size_t)put;
    }
    return SPEC_OK;
}

spec_status speci_out_flush(speci_out *o)
{
    SPEC_TRY(write_all(o, o->buffer, o->held));
    o->held = 0;
    return SPEC_OK;
}

spec_status speci_out_add(speci_out *o, const void *data, size_t n)
{
    if (n > BUFFER - o->held) SPEC_TRY(speci_out_flush(o));
    if (n > BUFFER) SPEC_TRY(write_all(o, data, n));
    else memcpy(o->buffer + o->held, data, n), o->held += n;
    o->n += n;
    return SPEC_OK;
}

spec_status speci_out_read(const speci_out *o, void *to, uint64_t offset, size_t n)
{
    const speci_file file = { .n = (size_t)o->n, .fd = o->fd };
    return speci_file_read_at(&file, o->path, to, (size_t)offset, n);
}

spec_status speci_out_commit(speci_out *o)
{
    SPEC_TRY(speci_out_flush(o));
    if (fsync(o->fd) != 0) return speci_fail_errno(o->path, "cannot write");
    if (rename(o->temp, o->path) != 0) return speci_fail_errno(o->path, "cannot be replaced");
    o->created = false;
    return SPEC_OK;
}

void speci_out_close(speci_out *o)
{
    if (o->path && o->fd >= 0) (void)close(o->fd);
    if (o->created) (void)unlink(o->temp);
    void *parts[] = { o->path, o->temp, o->buffer };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) speci_free(o->a, parts[i]);
    *o = (speci_out){ .fd = -1 };
}
