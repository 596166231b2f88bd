/* core_gguf.h - GGUF files: metadata by key, and which tensors lie where. Internal. What keys and types of tensors mean is for the
 * rooms above. Every file is hostile: counts, lengths, types and duplicates are checked before use.
 *
 *     "GGUF", u32 version, u64 tensors, u64 pairs
 *     pairs      string key, u32 type, value; an array is u32 type, u64 count, elements; a string u64 bytes, bytes
 *     tensors    string name, u32 dimensions, u64 dimension each (fastest first), u32 type, u64 offset in the data
 *     data       at the next multiple of general.alignment
 *
 * Little-endian. Source: ggml's specification of GGUF. */
#ifndef SPEC_CORE_GGUF_H
#define SPEC_CORE_GGUF_H

#include "core/core_json.h"

enum { SPECI_GGUF_DIMS = 4 }; /* at most, as ggml has it */

typedef enum speci_gguf_kind { /* of values, numbered as in files */
    SPECI_GGUF_U8, SPECI_GGUF_I8, SPECI_GGUF_U16, SPECI_GGUF_I16, SPECI_GGUF_U32, SPECI_GGUF_I32, SPECI_GGUF_F32, SPECI_GGUF_BOOL,
    SPECI_GGUF_STRING, SPECI_GGUF_ARRAY, SPECI_GGUF_U64, SPECI_GGUF_I64, SPECI_GGUF_F64
} speci_gguf_kind;

typedef struct speci_gguf_value {
    speci_gguf_kind type; /* of an array: its elements', which are no arrays */
    bool is_array;
    uint64_t n;           /* elements; 1 for what is no array */
    const uint8_t *data;  /* checked; any alignment */
} speci_gguf_value;

typedef struct speci_gguf_pair {
    const char *key;
    speci_gguf_value value;
} speci_gguf_pair;

typedef struct speci_gguf_tensor {
    const char *name;
    uint32_t n_dim, type;
    uint64_t dim[SPECI_GGUF_DIMS]; /* as in the file: fastest first; > 0 */
    uint64_t offset;               /* from `data`; a multiple of the alignment, not checked against the file's end */
} speci_gguf_tensor;

typedef struct speci_gguf { /* keys, names and values live as long as it and the file's bytes */
    const char *file;              /* for messages; borrowed */
    uint32_t version;
    speci_gguf_pair *pairs;        /* [n_pair], by key */
    size_t n_pair;
    speci_gguf_tensor *tensors;    /* [n_tensor], as in the file */
    size_t n_tensor;
    size_t data;                   /* where the tensors' bytes begin, at most the file's length */
    speci_buf text;                /* keys and names, each with its zero */
    const spec_allocator *a;
} speci_gguf;

/* Reads what stands before the tensors' bytes, which are not touched, and loads it (speci_file_load; a file with fd -1 is in memory).
 * Zero to begin; close is good for that too. */
spec_status speci_gguf_read(speci_gguf *out, const speci_file *map, const char *file, const spec_allocator *a);
void speci_gguf_close(speci_gguf *g);

/* Does the file begin as a GGUF file does? */
bool speci_is_gguf(const char *path);

const speci_gguf_value *speci_gguf_find(const speci_gguf *g, const char *key); /* NULL if absent */
/* The values of keys that may be absent, which leaves *out alone; E_FORMAT by name for another type. Integers of any width are
 * integers; strings are UTF-8 without zero bytes, not terminated, borrowed. */
spec_status speci_gguf_text(const speci_gguf *g, const char *key, const char **out, size_t *n);
spec_status speci_gguf_integer(const speci_gguf *g, const char *key, int64_t *out);
spec_status speci_gguf_flag(const speci_gguf *g, const char *key, bool *out);
/* An array of that type (any integers for SPECI_GGUF_I32): *out NULL if absent. */
spec_status speci_gguf_array(const speci_gguf *g, const char *key, speci_gguf_kind type, const speci_gguf_value **out);

size_t speci_gguf_bytes(const speci_gguf_value *v); /* of the elements, as they stand in the file */
/* Elements of a value: strings in order, from `at`, which is 0 to begin; numbers by index. */
const char *speci_gguf_next(const speci_gguf_value *v, size_t *at, size_t *n);
int64_t speci_gguf_integer_at(const speci_gguf_value *v, uint64_t i); /* a u64 beyond is INT64_MAX */
double speci_gguf_number_at(const speci_gguf_value *v, uint64_t i);
/* The value as JSON; NULL for a string that is not UTF-8, or without memory. */
json_t *speci_gguf_json(const speci_gguf_value *v);
/* The same, and an error that names the key: E_FORMAT or E_NOMEM. */
spec_status speci_gguf_take(json_t **out, const speci_gguf *g, const char *key, const speci_gguf_value *v);

#endif
