/* files_gguf_write.h - tensors on their way into a GGUF file: what each is made of, its type, and the writing. Internal. */
#ifndef SPEC_MODEL_GGUF_WRITE_H
#define SPEC_MODEL_GGUF_WRITE_H

#include "core/core_gguf_write.h"
#include "models/files/files_checkpoint.h"

enum { GGUF_NAME_MAX = 64 }; /* with its zero: as ggml has it */

typedef enum gguf_order { /* of rows, against the source's */
    GGUF_AS_THEY_ARE,
    GGUF_PAIRS_TOGETHER, /* of each head 0, n / 2, 1, n / 2 + 1, .. */
    GGUF_QKV_IN_ORDER    /* q of all heads, then k, then v; the source has for each head of keys its heads of q, k and v */
} gguf_order;

typedef enum gguf_map { GGUF_SAME, GGUF_MINUS_EXP, GGUF_PLUS_ONE } gguf_map; /* of each value */

typedef struct gguf_stored {
    char name[GGUF_NAME_MAX];
    const model_tensor *from;
    const float *made; /* values [dim[0]] instead of from; owned by whoever planned it */
    int64_t first;     /* row of from that is the first here */
    int32_t n_dim;
    int64_t dim[2];    /* rows first; of a vector dim[1] is 1 */
    const gguf_type *type;
    gguf_order order;
    int32_t n_head, n_kv_head, head_dim; /* for an order */
    gguf_map map;
} gguf_stored;

/* What `--type` names. */
typedef struct gguf_mix {
    const char *name;
    const char *most, *better; /* types of matrices; `better`: of the head, and of some values and down projections */
    uint32_t file_type;        /* general.file_type: llama.cpp's enum llama_ftype */
} gguf_mix;
const gguf_mix *speci_gguf_mix(const char *name); /* NULL: none */
void speci_gguf_mix_names(char *out, size_t cap); /* "f32, f16, ..." */

/* Chooses the type of each tensor: F32 for vectors and what is small. *n_other: matrices that got another one, since their rows are no
 * multiple of its blocks. n_layer: 0 where that is not known, and then no layer has `better`. */
void speci_gguf_choose_types(gguf_stored *tensors, size_t n, const gguf_mix *mix, int32_t n_layer, size_t *n_other);

/* Told the share that is written; other than SPEC_OK stops. */
typedef spec_status (*gguf_progress)(void *user_data, double fraction);
typedef struct gguf_new_file {
    const char *path;
    speci_gguf_head *head;          /* receives what it says of the tensors */
    const gguf_stored *tensors;     /* [n] */
    size_t n;
    const model_checkpoint *source; /* the tensors' */
    const spec_backend *be;         /* they are packed on its threads: the same bytes by any number */
    gguf_progress progress;
    void *user_data;
    const spec_allocator *a;
} gguf_new_file;
/* Writes a file that is there in whole or not at all. */
spec_status speci_gguf_write(const gguf_new_file *file);

#endif
