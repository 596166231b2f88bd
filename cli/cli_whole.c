/* cli_whole.c - a text that the program writes gets its name when it is whole, as files of the library do (spec.h, Files). */
#define _GNU_SOURCE /* lstat, realpath, strdup, fchmod, flock */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli_whole.h"

/* A device or a pipe is written and stays what it is. So is the file that a link names and that is not there yet. */
static bool stays(const char *path)
{
    struct stat s;
    if (stat(path, &s) == 0) return !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
    return lstat(path, &s) == 0;
}

/* What lies at `path` may be replaced: nothing, an empty file, one that begins as this text does. */
static int check_old(const char *path, const char *begin)
{
    char have[32] = { 0 };
    const size_t n = strlen(begin);
    FILE *old = fopen(path, "rb");
    if (old == NULL) return errno == ENOENT ? CLI_OK : cli_error("%s: %s", path, strerror(errno));
    const size_t got = fread(have, 1, n, old);
    const bool wrong = ferror(old) != 0;
    fclose(old);
    if (wrong || access(path, W_OK) != 0) return cli_error("%s: %s", path, strerror(errno));
    if (got == 0 || memcmp(have, begin, n) == 0) return CLI_OK;
    return cli_error("%s: is there, and is not a file of this kind (one begins with %s): it is not replaced", path,
                     begin);
}

/* Of a link the file behind it is replaced, and the link stays. */
static bool name_files(cli_whole *w)
{
    w->target = access(w->path, F_OK) == 0 ? realpath(w->path, NULL) : strdup(w->path);
    const size_t cap = w->target != NULL ? strlen(w->target) + 32 : 0;
    w->partial = cap > 0 ? malloc(cap) : NULL;
    if (w->partial != NULL) snprintf(w->partial, cap, "%s.spec.part", w->target);
    return w->partial != NULL;
}

/* Is the file still what its name leads to? Whoever wrote it before may have given it the other name. */
static bool has_name(int fd, const char *name)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(name, &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/* What a program that was killed left there is written over. One that is still at work holds a lock: it is waited for, and has given the
 * file its name then. */
static FILE *open_partial(const char *name)
{
    for (;;) {
        const int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return NULL;
        const bool stopped = flock(fd, LOCK_EX) != 0 && errno == EINTR; /* there are file systems without locks */
        const bool mine = !stopped && has_name(fd, name);
        FILE *const to = mine && ftruncate(fd, 0) == 0 ? fdopen(fd, "wb") : NULL;
        if (to != NULL) return to;
        const int reason = stopped ? EINTR : errno;
        close(fd);
        if (stopped || mine) return errno = reason, NULL;
    }
}

static void keep_mode(const cli_whole *w)
{
    struct stat s;
    if (stat(w->target, &s) == 0) (void)fchmod(fileno(w->to), s.st_mode & 0777);
}

static void free_names(cli_whole *w)
{
    free(w->partial);
    free(w->target);
    w->partial = w->target = NULL;
}

int cli_whole_open(cli_whole *w, const char *path, const char *begin)
{
    *w = (cli_whole){ .path = path };
    if (strcmp(path, CLI_STDOUT) == 0) {
        w->to = stdout; /* not opened anew: what is there already stays in front */
        return CLI_OK;
    }
    if (stays(path)) {
        w->to = fopen(path, "wb");
    } else {
        const int code = check_old(path, begin);
        if (code != CLI_OK) return code;
        if (name_files(w)) w->to = open_partial(w->partial);
        if (w->to != NULL) keep_mode(w);
    }
    if (w->to != NULL) return CLI_OK;
    const int reason = errno;
    const char *doing = w->target != NULL && access(w->target, F_OK) == 0 ? "cannot make a file beside it, to replace it: " : "";
    const int code = cli_error("%s: %s%s", path, doing, strerror(reason));
    free_names(w);
    return code;
}

int cli_whole_close(cli_whole *w, bool whole)
{
    int reason = fflush(w->to) != 0 || ferror(w->to) ? errno : 0;
    if (w->to == stdout) clearerr(stdout); /* what failed is told here, and not once more at the end */
    const bool good = whole && reason == 0;
    if (w->partial != NULL && good && rename(w->partial, w->target) != 0) reason = errno;
    if (w->partial != NULL && (!good || reason != 0)) (void)remove(w->partial);
    if (w->to != stdout && fclose(w->to) != 0 && reason == 0) reason = errno; /* locked until here */
    free_names(w);
    return reason == 0 ? CLI_OK : cli_error("%s: %s", w->path, strerror(reason));
}

int cli_whole_check(const char *path, const char *begin)
{
    cli_whole w;
    if (stays(path)) return CLI_OK; /* a pipe is opened once */
    const int code = cli_whole_open(&w, path, begin);
    return code == CLI_OK ? cli_whole_close(&w, false) : code;
}

int cli_whole_may(const char *path)
{
    struct stat s;
    const bool there = stat(path, &s) == 0;
    if (there && S_ISDIR(s.st_mode)) return cli_error("%s: is a directory, need a file", path);
    char *name = there ? realpath(path, NULL) : strdup(path);
    if (name == NULL) return cli_error("%s: %s", path, strerror(errno));
    const bool beside = !there || S_ISREG(s.st_mode);
    const bool may = (!there || access(path, W_OK) == 0) && (!beside || access(dirname(name), W_OK) == 0);
    const int reason = errno;
    free(name);
    return may ? CLI_OK : cli_error("%s: cannot be written: %s", path, strerror(reason));
}
