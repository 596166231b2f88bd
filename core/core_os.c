/* core_os.c - the operating system: files, clock, processors, shared libraries. Other system calls: core_pages.c, core_writer.c. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_ALLOC, dladdr */
#include "core/core.h"

#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------ files --- */

/* Opens a file for reading and says its size; directories are refused here, because open() accepts them and only a later read()
 * fails, with a message that does not help. `whole`: it will be read at any place, which a pipe or a device cannot be; and to open a
 * pipe would wait for its writer. */
static spec_status open_for_reading(int *fd, size_t *n, const char *path, bool whole)
{
    SPEC_TRY(speci_path_check(path));
    *fd = open(path, O_RDONLY | O_CLOEXEC | (whole ? O_NONBLOCK : 0));
    if (*fd < 0) return speci_fail_errno(path, "cannot open");
    struct stat st;
    spec_status status = SPEC_OK;
    if (fstat(*fd, &st) != 0)
        status = speci_fail_errno(path, "cannot stat");
    else if (S_ISDIR(st.st_mode))
        status = speci_fail(SPEC_E_IO, "%s: is a directory, expected a file", path);
    else if (whole && !S_ISREG(st.st_mode))
        status = speci_fail(SPEC_E_IO, "%s: is a pipe or a device, expected a file", path);
    else if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX / 2)
        status = speci_fail(SPEC_E_IO, "%s: its size does not fit the address space", path);
    if (status != SPEC_OK) {
        close(*fd);
        return status;
    }
    *n = (size_t)st.st_size;
    return SPEC_OK;
}

static spec_status map_file(speci_file *out, const char *path, bool own_pages)
{
    static const uint8_t nothing[1] = { 0 };
    int fd;
    size_t n;
    SPEC_TRY(open_for_reading(&fd, &n, path, true));
    if (n == 0) { /* mmap refuses length 0; data must not be NULL all the same */
        *out = (speci_file){ nothing, 0, -1 };
        close(fd);
        return SPEC_OK;
    }
    void *p = own_pages ? mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0)
                        : mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        const spec_status status = speci_fail_errno(path, own_pages ? "cannot map" : "cannot reserve addresses");
        close(fd);
        return status;
    }
    *out = (speci_file){ p, n, fd };
    return SPEC_OK;
}

/* The addresses are reserved, and reading fills them: pages mapped from a file that another program cuts short end the
 * process (SIGBUS) when they are touched, and no check before the touch is in time. */
spec_status speci_file_map(speci_file *out, const char *path) { return map_file(out, path, false); }
spec_status speci_file_share(speci_file *out, const char *path) { return map_file(out, path, true); }

void speci_file_unmap(speci_file *file)
{
    if (file->n) {
        munmap((void *)(uintptr_t)file->data, file->n);
        close(file->fd);
    }
    *file = (speci_file){ NULL, 0, -1 };
}

spec_status speci_file_read_at(const speci_file *file, const char *path, void *out, size_t offset, size_t n)
{
    assert(offset <= file->n && n <= file->n - offset);
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(file->fd, (char *)out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return speci_fail_errno(path, "cannot read");
        if (got == 0)
            return speci_fail(SPEC_E_IO, "%s: ends at byte %zu, but had %zu bytes when it was opened: another program cut it short",
                              path, offset + done, file->n);
        done += (size_t)got;
    }
    return SPEC_OK;
}

spec_status speci_file_load(const speci_file *file, const char *path, size_t offset, size_t n)
{
    assert(offset <= file->n && n <= file->n - offset);
    if (n == 0) return SPEC_OK;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    uint8_t *data = (uint8_t *)(uintptr_t)file->data;
    if (mprotect(data + first, offset + n - first, PROT_READ | PROT_WRITE) != 0)
        return speci_fail_errno(path, "no memory to read it into");
    return speci_file_read_at(file, path, data + offset, offset, n);
}

void speci_file_done(const speci_file *file, size_t offset, size_t n)
{
    if (offset >= file->n) return;
    if (n > file->n - offset) n = file->n - offset;
    /* Only pages that lie wholly inside the range: a neighbour may still be in use. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t first = (offset + page - 1) / page * page;
    size_t last = (offset + n) / page * page;
    if (offset + n == file->n) last = file->n;
    if (first >= last) return;
    /* A new reservation in place of the pages gives back what they count against a limit of memory, too. */
    (void)mmap((void *)(uintptr_t)(file->data + first), last - first, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

spec_status speci_file_refuse_large(size_t n, size_t max, const char *path)
{
    if (n <= max) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: more than %zu bytes, which is too large for such a file", path, max);
}

static spec_status read_all(int fd, speci_buf *buf, const char *path, size_t max)
{
    for (;;) {
        SPEC_TRY(speci_buf_reserve(buf, 4096));
        ssize_t got = read(fd, buf->data + buf->n, buf->cap - buf->n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return speci_fail_errno(path, "cannot read");
        if (got == 0) return SPEC_OK;
        buf->n += (size_t)got;
        SPEC_TRY(speci_file_refuse_large(buf->n, max, path));
    }
}

spec_status speci_file_read(char **out, size_t *n, const char *path, size_t max, const spec_allocator *a)
{
    int fd;
    size_t size;
    SPEC_TRY(open_for_reading(&fd, &size, path, false));
    speci_buf buf = { .a = a };
    spec_status status = read_all(fd, &buf, path, max); /* st_size is 0 for /proc, so read to the end */
    close(fd);
    if (status == SPEC_OK) status = speci_buf_add(&buf, "", 1);
    if (status != SPEC_OK) {
        speci_buf_free(&buf);
        return status;
    }
    *out = buf.data;
    *n = buf.n - 1;
    return SPEC_OK;
}

bool speci_file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

spec_status speci_path_check(const char *path)
{
    struct stat st;
    if (!path[0]) return speci_fail(SPEC_E_INVALID, "a path is empty, expected the name of a file");
    if (stat(path, &st) == 0) return SPEC_OK;
    const bool nothing = errno == ENOENT || errno == ENOTDIR;
    if (!nothing) return speci_fail_errno(path, "cannot open");
    return lstat(path, &st) == 0 ? speci_fail(SPEC_E_IO, "%s: a link to what is not there", path) : SPEC_OK;
}

bool speci_is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool speci_ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

bool speci_dir_has_ending(const char *path, const char *ending)
{
    DIR *dir = opendir(path);
    bool found = false;
    for (const struct dirent *e; dir && !found && (e = readdir(dir));) found = speci_ends_with(e->d_name, ending);
    if (dir) closedir(dir);
    return found;
}

spec_status speci_path_join(char *out, size_t cap, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    const char *between = n && dir[n - 1] == '/' ? "" : "/";
    int len = snprintf(out, cap, "%s%s%s", dir, between, name);
    if (len < 0 || (size_t)len >= cap)
        return speci_fail(SPEC_E_INVALID, "the path %s/%s is longer than %zu bytes", dir, name, cap - 1);
    return SPEC_OK;
}

/* --------------------------------------------------------------------------- files without a name --- */

enum { SCRATCH_BUFFER = 1 << 18, SCRATCH_TRIES = 1000 };

/* Made under a name that nobody has, which is taken away again at once: where the process ends, so does the file. */
static spec_status open_unnamed(speci_scratch *s)
{
    const size_t cap = strlen(s->beside) + 48;
    char *name = speci_alloc(s->a, cap, 1);
    if (!name) return SPEC_E_NOMEM;
    for (int i = 0; i < SCRATCH_TRIES && s->fd < 0 && (i == 0 || errno == EEXIST); i++) {
        (void)snprintf(name, cap, "%s.%ld-%d.tmp", s->beside, (long)getpid(), i);
        s->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    const spec_status status = s->fd < 0 || unlink(name) != 0 ? speci_fail_errno(s->beside, "cannot make a file beside it") : SPEC_OK;
    speci_free(s->a, name);
    return status;
}

spec_status speci_scratch_open(speci_scratch *s, const char *beside, const spec_allocator *a)
{
    *s = (speci_scratch){ .a = a, .fd = -1 };
    spec_status status = SPEC_E_NOMEM;
    if ((s->beside = speci_strdup(a, beside)) && (s->buffer = speci_alloc(a, SCRATCH_BUFFER, 1))) status = open_unnamed(s);
    if (status != SPEC_OK) speci_scratch_close(s);
    return status;
}

static spec_status scratch_write(const speci_scratch *s, const void *data, size_t n)
{
    speci_writer w = { .path = s->beside, .fd = s->fd };
    return speci_writer_put(&w, data, n);
}

spec_status speci_scratch_flush(speci_scratch *s)
{
    SPEC_TRY(scratch_write(s, s->buffer, s->held));
    s->held = 0;
    return SPEC_OK;
}

spec_status speci_scratch_add(speci_scratch *s, const void *data, size_t n)
{
    if (n > SCRATCH_BUFFER - s->held) SPEC_TRY(speci_scratch_flush(s));
    if (n > SCRATCH_BUFFER) SPEC_TRY(scratch_write(s, data, n));
    else memcpy(s->buffer + s->held, data, n), s->held += n;
    s->n += n;
    return SPEC_OK;
}

spec_status speci_scratch_read(const speci_scratch *s, void *to, uint64_t offset, size_t n)
{
    const speci_file file = { .n = (size_t)s->n, .fd = s->fd };
    return speci_file_read_at(&file, s->beside, to, (size_t)offset, n);
}

void speci_scratch_close(speci_scratch *s)
{
    if (s->beside && s->fd >= 0) close(s->fd);
    speci_free(s->a, s->beside);
    speci_free(s->a, s->buffer);
    *s = (speci_scratch){ .fd = -1 };
}

/* ------------------------------------------------------------------------ clock, processors --- */

double speci_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

/* CPUs in the affinity mask. The kernel's mask may be wider than cpu_set_t (1024): then it says EINVAL. */
static int n_cpus_affinity(void)
{
    for (int width = 1024; width <= 1 << 16; width *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)width);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)width);
        int rc = sched_getaffinity(0, bytes, set);
        int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
        if (rc != 0 && errno != EINVAL) break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : (int)online;
}

/* The first line of a pseudo-file. */
static bool read_line(char *line, size_t cap, const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, (int)cap, f) != NULL;
    fclose(f);
    return ok;
}

/* CPUs that a quota of `quota` per `period` microseconds allows, rounded up; 0 = no limit. */
static int cpus_of_quota(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return 0;
    long long n = (quota + period - 1) / period;
    return n > INT_MAX ? INT_MAX : (int)n;
}

/* The quota of one cgroup directory; 0 = none there. */
static int quota_of_directory(const char *dir, bool v2)
{
    char path[PATH_MAX + 64], line[128];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_line(line, sizeof line, path)) return 0;
    if (v2) /* "max 100000" or "150000 100000" */
        return sscanf(line, "%lld %lld", &quota, &period) == 2 ? cpus_of_quota(quota, period) : 0;
    if (sscanf(line, "%lld", &quota) != 1) return 0; /* -1 = no limit */
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (!read_line(line, sizeof line, path) || sscanf(line, "%lld", &period) != 1) return 0;
    return cpus_of_quota(quota, period);
}

/* The tightest quota from `group` up to the root of the hierarchy mounted at `mount`: a parent's limit holds for
 * its children. In a container the path that /proc names is often not visible; the root then stands for it. */
static int quota_of_path(const char *mount, const char *group, bool v2)
{
    char dir[PATH_MAX];
    int best = 0;
    int len = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (len < 0 || (size_t)len >= sizeof dir) return 0;
    size_t root = strlen(mount);
    for (;;) {
        int n = quota_of_directory(dir, v2);
        if (n > 0 && (best == 0 || n < best)) best = n;
        if (strlen(dir) <= root) return best;
        *strrchr(dir, '/') = 0; /* group begins with '/', so there is one */
    }
}

/* True if `name` is one of the comma-separated words of `list`. */
static bool has_word(const char *list, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i + len <= n; i++)
        if ((i == 0 || list[i - 1] == ',') && (i + len == n || list[i + len] == ',') &&
            strncmp(list + i, name, len) == 0)
            return true;
    return false;
}

/* Lines of /proc/self/cgroup are "id:controllers:/path"; version 2 has the one with an empty middle. */
static int n_cpus_cgroup(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return 0;
    char line[PATH_MAX];
    int best = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        size_t n_list = (size_t)(group - list - 1);
        int n = 0;
        if (n_list == 0)
            n = quota_of_path("/sys/fs/cgroup", group + 1, true);
        else if (has_word(list + 1, n_list, "cpu"))
            n = quota_of_path("/sys/fs/cgroup/cpu", group + 1, false);
        if (n > 0 && (best == 0 || n < best)) best = n;
    }
    fclose(f);
    return best;
}

int speci_n_cpus(void)
{
    int n = n_cpus_affinity();
    int quota = n_cpus_cgroup();
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}

void speci_cpu_name(char *out, size_t cap)
{
    static const char key[] = "model name";
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    if (cap > 0) out[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strncmp(line, key, sizeof key - 1) == 0 ? strchr(line, ':') : NULL;
        if (!value) continue;
        value += 1 + strspn(value + 1, " ");
        snprintf(out, cap, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f) fclose(f);
}

/* ------------------------------------------------------------------------- shared libraries --- */

void speci_library_dir(char *out, size_t cap)
{
    static const char here = 0; /* an address inside this library */
    char real[PATH_MAX];
    Dl_info info;
    if (cap == 0) return;
    out[0] = 0;
    if (!dladdr(&here, &info) || !info.dli_fname) return;
    /* dladdr repeats argv[0] for a program, which need not be a path; /proc knows better. */
    const char *name = strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe";
    if (!realpath(name, real)) return;
    char *slash = strrchr(real, '/');
    if (!slash) return;
    *slash = 0;
    int len = snprintf(out, cap, "%s", slash == real ? "/" : real);
    if (len < 0 || (size_t)len >= cap) out[0] = 0;
}

void *speci_dl_open(const char *path, const char **why)
{
    /* Now and local: a missing symbol is an error here, with a message, and plugins do not see each other. */
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib && why) {
        *why = dlerror();
        if (!*why) *why = "unknown reason";
    }
    return lib;
}

void *speci_dl_symbol(void *lib, const char *name)
{
    return dlsym(lib, name);
}

void speci_dl_close(void *lib)
{
    if (lib) dlclose(lib);
}

spec_status speci_file_refuse_pointer(const void *data, size_t n, const char *path)
{
    static const char begins[] = "version https://git-lfs.github.com/spec/";
    if (n < sizeof begins - 1 || memcmp(data, begins, sizeof begins - 1) != 0) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: a git-lfs pointer, not the file itself: run \"git lfs pull\" in its repository", path);
}
