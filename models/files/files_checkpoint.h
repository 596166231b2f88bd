/* files_checkpoint.h - a Hugging Face directory, or a GGUF file and its parts, as data: tensors by name. Internal.
 * Every file is hostile: sizes, offsets, dtypes, shapes and products are checked before use. */
#ifndef SPEC_MODEL_CHECKPOINT_H
#define SPEC_MODEL_CHECKPOINT_H

#include "core/core_gguf.h"
#include "models/files/files_gguf_types.h"
#include "models/model.h"

#define MODEL_MAX_DIM 8 /* more than a family takes: a picture's or film's patches may stand in the file, unused */
#define MODEL_MAX_PATH 4096
#define SAFETENSORS_HEADER_MAX 100000000u /* bytes */

typedef struct model_tensor {
    const char *name; /* borrowed from the checkpoint */
    const char *file; /* for messages */
    spec_dtype dtype; /* F32, BF16, F16; AUTO (0) = another type, whose name is in dtype_name */
    const char *dtype_name; /* static, unless is_new_type */
    bool is_new_type; /* the library knows no such type: dtype_name is borrowed from the checkpoint, as the name is */
    const gguf_type *blocks; /* rows of such blocks, dtype being AUTO; NULL = none, or none that can be unpacked */
    int32_t n_dim;
    int64_t dim[MODEL_MAX_DIM];
    const uint8_t *data; /* any alignment; to be touched between speci_checkpoint_load and _done only */
    size_t bytes;
    bool used; /* set when a family takes it */
} model_tensor;

/* Values [first, first + n) as float32, of one that has a type or blocks; of these whole ones. */
void speci_tensor_floats(float *out, const model_tensor *t, size_t first, size_t n);
bool speci_tensor_has_shape(const model_tensor *t, int32_t n_dim, const int64_t *dim);
/* The bytes of so many values. */
size_t speci_tensor_bytes(const model_tensor *t, size_t n);

typedef struct model_checkpoint model_checkpoint; /* opaque: mapped files, the tensor index */

/* One file: checks the header and appends its tensors to *tensors [*n] (from speci_alloc, moved as it grows). Names
 * are borrowed from *header, which the caller decrefs after the tensors. On error nothing is appended and *header is
 * NULL. Also the fuzz target's entry. */
spec_status speci_safetensors_read(model_tensor **tensors, size_t *n, json_t **header, const uint8_t *data,
                                   size_t bytes, const char *file, const spec_allocator *a);

/* The same of a GGUF file whose header was read: tensors of known types, within the file, sharing no byte. Names are borrowed from
 * the header. */
spec_status speci_gguf_tensors(model_tensor **tensors, size_t *n, const speci_gguf *header, const uint8_t *data, size_t bytes,
                               const spec_allocator *a);

/* Of a directory model.safetensors, or the shards of model.safetensors.index.json; else a GGUF file, which is the first part where
 * it has several. */
spec_status speci_checkpoint_open(model_checkpoint **out, const char *path, const spec_allocator *a);
/* One file in memory, safetensors or, by its first bytes, GGUF, which must outlive the checkpoint: for tests and fuzzers. `file` is
 * copied. */
spec_status speci_checkpoint_open_memory(model_checkpoint **out, const uint8_t *data, size_t bytes, const char *file,
                                         const spec_allocator *a);
/* The head of a GGUF file without tensors, which must outlive the checkpoint, and tensors [n], which are copied, but for their names. */
spec_status speci_checkpoint_open_planned(model_checkpoint **out, const uint8_t *head, size_t bytes, const model_tensor *tensors, size_t n,
                                          const char *file, const spec_allocator *a);
void speci_checkpoint_close(model_checkpoint *c);
model_tensor *speci_checkpoint_find(const model_checkpoint *c, const char *name); /* NULL if absent */
/* The metadata of a GGUF file; NULL for others. */
const speci_gguf *speci_checkpoint_gguf(const model_checkpoint *c);

/* What tensors that families ask for are called in the file. In both `#` stands for a layer's number. What follows `name` in the
 * tensor's, ".weight" or ".bias", follows `stored`, too; nothing else may. */
typedef struct model_rename {
    const char *name, *stored; /* NULL: the end */
} model_rename;
/* The name that the row gives, made in out [cap]; NULL where it does not fit. And that of the first row that fits, of lists one after
 * another (NULL: the end). */
const char *speci_renamed_by(const model_rename *row, const char *name, char *out, size_t cap);
const char *speci_renamed(const model_rename *const *lists, const char *name, char *out, size_t cap);
/* From now on names are looked up by these lists, which are borrowed; a name that no row has is not there. */
void speci_checkpoint_rename(model_checkpoint *c, const model_rename *const *lists);
/* The name in the file, for messages: `name` itself, or made in out [cap]. */
const char *speci_checkpoint_stored(const model_checkpoint *c, const char *name, char *out, size_t cap);

/* All tensors, by name; borrowed. */
model_tensor *speci_checkpoint_tensors(const model_checkpoint *c, size_t *n);
const char *speci_checkpoint_path(const model_checkpoint *c); /* the directory or file, for messages */
/* Reads the tensor's bytes, which must not be touched before. E_IO when the file was cut short meanwhile. */
spec_status speci_checkpoint_load(const model_checkpoint *c, const model_tensor *t);
/* Bytes [offset, offset + n) of them alone; several threads may, of parts that do not overlap. */
spec_status speci_checkpoint_load_part(const model_checkpoint *c, const model_tensor *t, size_t offset, size_t n);
/* Bytes [offset, offset + n) of a tensor, loaded or not, into out. */
spec_status speci_checkpoint_read(const model_checkpoint *c, const model_tensor *t, void *out, size_t offset, size_t n);
/* The tensor's bytes were copied: their memory is given back, until they are loaded again. */
void speci_checkpoint_done(const model_checkpoint *c, const model_tensor *t);

/* What tells one model from another in a saved sequence: a hash of config.json (keys sorted) and of every tensor's name,
 * type, shape, and first and last 4 KiB; and of what matrices were made of, unless that is AUTO. Not all bytes are read,
 * to cost nothing beside loading; training changes tensors all over. */
spec_status speci_model_fingerprint(uint64_t *out, const json_t *config, const model_checkpoint *c, spec_dtype weights);

bool speci_has_file(const char *dir, const char *name); /* dir/name is there */
/* Fails for a directory in which `missing` is missing; says what the directory is, where its files tell, and what to do. */
spec_status speci_directory_refuse(const char *dir, const char *missing);

/* "[96, 32]" for messages. */
typedef struct model_shape_text {
    char s[192];
} model_shape_text;
model_shape_text speci_shape_of(int32_t n_dim, const int64_t *dim);

#endif
