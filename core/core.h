/* core.h - what every room of the library stands on: errors, memory, logging, the operating system.
 * Knows nothing of devices, models or algorithms. Internal: not installed. */
#ifndef SPEC_CORE_H
#define SPEC_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spec_trees.h"

/* --- errors (core_error.c) --- */

/* Stores the sentence for this thread and returns `code`: the only writer. */
spec_status speci_fail(spec_status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* E_IO: "path: doing: " and what errno says. */
spec_status speci_fail_errno(const char *path, const char *doing);

/* Failures of this thread so far: has a callback told its sentence? */
uint64_t speci_n_failure(void);
/* What an application's callback returned, made fit to be passed on: a status that is none becomes E_INVALID, and a failure without
 * a sentence gets one. n_failure: speci_n_failure() as of before the call. */
spec_status speci_callback_status(spec_status status, uint64_t n_failure, const char *callback, const char *whose);

/* Of a public function: what it cannot do without. `what` is the parameter's name in the header. */
#define SPEC_NEED(given, what)                                                                     \
    do {                                                                                           \
        if (!(given)) return speci_fail(SPEC_E_INVALID, "%s: %s is NULL", __func__, what);         \
    } while (0)

#define SPEC_TRY(call)                                                                             \
    do {                                                                                           \
        spec_status try_status_ = (call);                                                          \
        if (try_status_ != SPEC_OK) return try_status_;                                            \
    } while (0)

/* --- structs that grow (core_struct.c) --- */

/* Reads a caller's parameter struct, which may be older (shorter) or newer (longer) than ours: what both know is copied
 * into out [size], which holds the defaults. `in` NULL is all defaults. Every such struct begins with struct_size. */
spec_status speci_params_read(void *out, size_t size, const void *in, const char *name);
/* The way back, for results: `out` begins with its struct_size, which stays. */
spec_status speci_params_write(void *out, const void *from, size_t size, const char *name);

/* --- numbers --- */

static inline int32_t speci_min32(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t speci_max32(int32_t a, int32_t b) { return a > b ? a : b; }
/* A number of n bytes, at most 8, the least one first. */
static inline uint64_t speci_little_endian(const uint8_t *p, size_t n)
{
    uint64_t x = 0;
    while (n-- > 0) x = x << 8 | p[n];
    return x;
}
/* Is it among ids [n]? */
static inline bool speci_has_id(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* --- objects that others need --- */

/* An object is freed when its owner has closed it and nothing that was opened from it is left: each of these holds it. Zero to
 * begin: the owner alone. Any thread may hold and let go. */
typedef struct speci_holds {
    atomic_int n; /* beside the owner; -1: the last has let go */
} speci_holds;
static inline void speci_hold(speci_holds *h) { (void)atomic_fetch_add(&h->n, 1); }
/* true: that was the last, and the object is to be freed. */
static inline bool speci_let_go(speci_holds *h) { return atomic_fetch_sub(&h->n, 1) == 0; }

/* --- memory (core_alloc.c) --- */

extern const spec_allocator speci_malloc; /* malloc and free */
/* Zeroed memory for n items of `size` bytes, 64-byte aligned; NULL with an error set when it cannot be had (also
 * when n * size overflows). n * size == 0 gives a valid pointer. A NULL allocator means malloc. */
void *speci_alloc(const spec_allocator *a, size_t n, size_t size);
void speci_free(const spec_allocator *a, void *p); /* p from speci_alloc, or NULL */
char *speci_strdup(const spec_allocator *a, const char *s);

/* A growing array of bytes: text, ids, tables. Zero to begin, except `a`. */
typedef struct speci_buf {
    char *data;
    size_t n, cap;
    const spec_allocator *a;
} speci_buf;
spec_status speci_buf_reserve(speci_buf *b, size_t extra); /* room for `extra` more bytes */
spec_status speci_buf_add(speci_buf *b, const void *data, size_t n);
void speci_buf_free(speci_buf *b);
/* Of a buffer of ids, which are int32_t. */
static inline int32_t *speci_buf_ids(const speci_buf *b) { return (int32_t *)(void *)b->data; }
static inline size_t speci_buf_n_ids(const speci_buf *b) { return b->n / sizeof(int32_t); }

/* Zeroed pages of the system, or NULL; given back with the same number of bytes (core_pages.c). */
void *speci_pages_take(size_t bytes);
void speci_pages_give(void *p, size_t bytes);

/* --- checksums (core_hash.c) --- */

/* A checksum of a stream of bytes, whatever the pieces in which they come: against accidents, not against forgers. Zero
 * to begin. */
typedef struct speci_hash {
    uint64_t state, n; /* n: bytes so far */
    uint8_t held[8];   /* the last n % 8 of them */
} speci_hash;
void speci_hash_add(speci_hash *hash, const void *data, size_t n);
void speci_hash_text(speci_hash *hash, const char *text); /* with its zero */
uint64_t speci_hash_value(const speci_hash *hash);
uint64_t speci_hash_of(const void *data, size_t n); /* of these bytes alone */

/* --- the operating system (core_os.c, core_writer.c) --- */

typedef struct speci_file { /* a file's bytes at fixed addresses, of which only loaded ranges may be touched */
    const uint8_t *data;
    size_t n;
    int fd;
} speci_file;
/* Not of a pipe or a device (E_IO): they have no ranges. */
spec_status speci_file_map(speci_file *out, const char *path);
/* The same with the file's own pages, read-only: they are read when they are touched, and shared with other processes. For
 * files that are replaced and never changed: where another program cuts it short, touching what is gone ends the process. */
spec_status speci_file_share(speci_file *out, const char *path);
void speci_file_unmap(speci_file *file);
/* Reads [offset, offset + n), which lies in the file, to its place in data. E_IO when the file has become shorter.
 * Again after speci_file_done. `path` is for messages. */
spec_status speci_file_load(const speci_file *file, const char *path, size_t offset, size_t n);
/* The same into out [n] instead. */
spec_status speci_file_read_at(const speci_file *file, const char *path, void *out, size_t offset, size_t n);
/* The memory of [offset, offset + n) is given back; the range must not be touched any more. */
void speci_file_done(const speci_file *file, size_t offset, size_t n);
/* E_FORMAT if n bytes are more than `max`, as no such file has. */
spec_status speci_file_refuse_large(size_t n, size_t max, const char *path);
/* A small file (at most `max` bytes) as a zero-terminated string. */
spec_status speci_file_read(char **out, size_t *n, const char *path, size_t max, const spec_allocator *a);
/* A file that is written: under another name beside it, and in place of what is there when it is complete. What writers that were
 * killed left under such names is removed. A device or a pipe is written itself. A file that is there, and does not begin with `magic`
 * (at most 16 bytes), is not replaced: E_INVALID. */
typedef struct speci_writer {
    const char *path; /* borrowed */
    char *target;     /* path, with links followed; NULL for what is written itself */
    char *partial;    /* the other name */
    int fd;
    const spec_allocator *a;
} speci_writer;
spec_status speci_writer_open(speci_writer *w, const char *path, const char *magic, const spec_allocator *a);
/* What opening refuses, to be told before long work. */
spec_status speci_writer_check(const char *path, const char *magic);
spec_status speci_writer_put(speci_writer *w, const void *data, size_t n);
/* With SPEC_OK the file is complete; with an error it is dropped, and the error returned. */
spec_status speci_writer_close(speci_writer *w, spec_status status);
/* Is something of that name there? A directory and a link to nothing are: opening says what is wrong with them. */
bool speci_file_exists(const char *path);
/* E_IO where the path cannot be followed, or ends at a link to what is not there. Where there is nothing: OK. */
spec_status speci_path_check(const char *path);
/* A repository that was cloned without its large files has text in place of them: E_FORMAT, saying so. */
spec_status speci_file_refuse_pointer(const void *data, size_t n, const char *path);
bool speci_is_directory(const char *path);
bool speci_dir_has_ending(const char *path, const char *ending); /* of the name of one of its entries */
bool speci_ends_with(const char *s, const char *end);
/* dir + "/" + name into out [cap]; fails when it does not fit. */
spec_status speci_path_join(char *out, size_t cap, const char *dir, const char *name);

/* A file without a name: it grows at its end, can be read from anywhere, and is gone when it is closed. All zero: none,
 * which may be closed. */
typedef struct speci_scratch {
    const spec_allocator *a;
    char *beside;    /* NULL: there is no file */
    int fd;
    uint64_t n;      /* bytes so far */
    uint8_t *buffer;
    size_t held;     /* of these n, in the buffer */
} speci_scratch;
spec_status speci_scratch_open(speci_scratch *s, const char *beside, const spec_allocator *a); /* in the folder of that path */
spec_status speci_scratch_add(speci_scratch *s, const void *data, size_t n);
spec_status speci_scratch_flush(speci_scratch *s);
/* Bytes [offset, offset + n) that were added and flushed. */
spec_status speci_scratch_read(const speci_scratch *s, void *to, uint64_t offset, size_t n);
void speci_scratch_close(speci_scratch *s);

double speci_now_ms(void);        /* monotonic */
int speci_n_cpus(void);           /* affinity mask and cgroup quota, at least 1 */
void speci_cpu_name(char *out, size_t cap); /* as the system says it, "" if it does not */
/* The directory of the shared library (or program) that holds this code, "" if unknown. */
void speci_library_dir(char *out, size_t cap);
/* Loads a shared library; on failure *why receives the loader's words (borrowed until the next call on the thread). */
void *speci_dl_open(const char *path, const char **why);
void *speci_dl_symbol(void *lib, const char *name);
void speci_dl_close(void *lib);

#endif
