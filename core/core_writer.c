/* core_writer.c - a file that gets its name when it is whole: until then it has another one beside it. */
#define _GNU_SOURCE /* flock, realpath, dirfd */
#include "core/core.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Does a file that is there begin as `magic` says? One without bytes is anybody's. */
static spec_status check_old(const char *path, const char *magic)
{
    char begin[16] = { 0 };
    const size_t n = strlen(magic);
    assert(n <= sizeof begin);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? pread(fd, begin, n, 0) : -1;
    const spec_status status = got < 0 ? speci_fail_errno(path, "cannot be replaced") : SPEC_OK;
    if (fd >= 0) close(fd);
    if (got <= 0 || memcmp(begin, magic, n) == 0) return status;
    return speci_fail(SPEC_E_INVALID, "%s: is there, and is not a file of this kind (one begins with %s): it is not replaced", path, magic);
}

spec_status speci_writer_check(const char *path, const char *magic)
{
    struct stat st;
    if (!path[0]) return speci_fail(SPEC_E_INVALID, "a path is empty, expected the name of a file to write");
    if (stat(path, &st) != 0) return SPEC_OK;
    if (S_ISDIR(st.st_mode)) return speci_fail(SPEC_E_IO, "%s: is a directory, expected a file", path);
    if (access(path, W_OK) != 0) return speci_fail_errno(path, "cannot be written");
    return S_ISREG(st.st_mode) ? check_old(path, magic) : SPEC_OK;
}

/* A device or a pipe is written and stays what it is. So is the file that a link names and that is not there yet. */
static bool stays(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) return !S_ISREG(st.st_mode);
    return lstat(path, &st) == 0;
}

/* --- the other name: target.PROCESS.NUMBER.part --- */

/* Behind a dot and digits, or NULL. */
static const char *skip_number(const char *s)
{
    const size_t n = s && s[0] == '.' ? strspn(s + 1, "0123456789") : 0;
    return n ? s + 1 + n : NULL;
}

/* No other name will do: a download of the user's may be called target.part, or target.2.part. */
static bool is_partial(const char *name, const char *base)
{
    const size_t n = strlen(base);
    const char *end = strncmp(name, base, n) == 0 ? skip_number(skip_number(name + n)) : NULL;
    return end && strcmp(end, ".part") == 0;
}

/* A writer holds a lock on its file until it ends, however it ends. So a file that can be locked is nobody's. */
static void remove_if_left(int dir, const char *name)
{
    const int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) (void)unlinkat(dir, name, 0);
    close(fd);
}

/* What writers of the same target left that were killed. */
static void remove_left(const char *target)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(target, '/'), *base = slash ? slash + 1 : target;
    const size_t n = slash ? (size_t)(base - target) : 0;
    if (n >= sizeof folder) return;
    memcpy(folder, target, n), folder[n] = 0;
    DIR *d = opendir(n ? folder : ".");
    for (const struct dirent *e; d && (e = readdir(d));)
        if (is_partial(e->d_name, base)) remove_if_left(dirfd(d), e->d_name);
    if (d) closedir(d);
}

/* Another writer may take a new file for one that was left, until it is locked. */
static bool lock(int fd)
{
    struct stat st;
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) return true; /* a file system without locks, on which nobody removes anything */
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

/* The name has the process in it, and a number, for two threads may write the same. */
enum { NUMBERS_BYTES = 48 };

static int open_partial(speci_writer *w, mode_t mode)
{
    const size_t cap = strlen(w->target) + NUMBERS_BYTES;
    for (unsigned k = 0;; k++) {
        snprintf(w->partial, cap, "%s.%ld.%u.part", w->target, (long)getpid(), k);
        const int fd = open(w->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) return fd;
        if (fd >= 0 && lock(fd)) return fd;
        if (fd >= 0) close(fd);
    }
}

/* Of a link the file behind it is replaced, and the link stays. */
static spec_status name_files(speci_writer *w)
{
    char whole[PATH_MAX];
    const char *target = realpath(w->path, whole) ? whole : w->path; /* where it is not there yet, as it was said */
    w->target = speci_strdup(w->a, target);
    w->partial = w->target ? speci_alloc(w->a, strlen(target) + NUMBERS_BYTES, 1) : NULL;
    if (!w->partial) return SPEC_E_NOMEM;
    remove_left(target);
    return SPEC_OK;
}

static void free_names(speci_writer *w)
{
    speci_free(w->a, w->partial);
    speci_free(w->a, w->target);
    w->partial = w->target = NULL;
}

spec_status speci_writer_open(speci_writer *w, const char *path, const char *magic, const spec_allocator *a)
{
    struct stat st;
    *w = (speci_writer){ .path = path, .fd = -1, .a = a };
    SPEC_TRY(speci_writer_check(path, magic));
    const bool in_place = stays(path), old = stat(path, &st) == 0;
    const mode_t mode = old ? st.st_mode & 0777 : 0666; /* who may read it stays as it was */
    spec_status status = in_place ? SPEC_OK : name_files(w);
    if (status == SPEC_OK) {
        w->fd = in_place ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : open_partial(w, mode);
        const bool beside = old && !in_place; /* it may be written, and its folder may not */
        if (w->fd < 0) status = speci_fail_errno(path, beside ? "cannot make a file beside it, to replace it" : "cannot be written");
    }
    if (status != SPEC_OK) free_names(w);
    else if (old && !in_place) (void)fchmod(w->fd, mode); /* whatever the umask takes */
    return status;
}

spec_status speci_writer_put(speci_writer *w, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(w->fd, (const char *)data + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return speci_fail_errno(w->path, "cannot be written");
        done += (size_t)put;
    }
    return SPEC_OK;
}

/* On the disk before it has the name: a machine that stops leaves one whole file or the other. Locked until it has it. */
spec_status speci_writer_close(speci_writer *w, spec_status status)
{
    if (status == SPEC_OK && fsync(w->fd) != 0 && errno != EINVAL) status = speci_fail_errno(w->path, "cannot be written");
    if (w->partial && status == SPEC_OK && rename(w->partial, w->target) != 0) status = speci_fail_errno(w->path, "cannot be replaced");
    if (w->partial && status != SPEC_OK) (void)unlink(w->partial);
    if (close(w->fd) != 0 && status == SPEC_OK) status = speci_fail_errno(w->path, "cannot be written");
    free_names(w);
    return status;
}
