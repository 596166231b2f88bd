/* files_gguf_types.h - the types of tensors in GGUF files: one row each. Internal. */
#ifndef SPEC_MODEL_GGUF_TYPES_H
#define SPEC_MODEL_GGUF_TYPES_H

#include "backends/backend_blocks.h"
#include "backends/backend_pack.h"
#include "core/core.h"

typedef struct gguf_type {
    uint32_t id;      /* in files: ggml's enum ggml_type */
    const char *name; /* as its tools write it: "Q4_K" */
    uint32_t n_value, bytes; /* of a block; 1 value for plain types */
    spec_dtype dtype; /* that backends may keep; AUTO (0): none is */
    speci_unpack_fn *unpack; /* blocks to float32; NULL: the type is only known by name and size, or is plain */
    const speci_packing *packing; /* the way back; NULL: none, or plain */
} gguf_type;

/* NULL: no such type. */
const gguf_type *speci_gguf_type(uint32_t id);
const gguf_type *speci_gguf_type_of(spec_dtype dtype);
/* The type itself for rows that are whole blocks, or llama.cpp's choice of blocks of 32 in its place; NULL where rows are none of
 * these, either. */
const gguf_type *speci_gguf_type_fitting(const gguf_type *type, int64_t n_col);
const gguf_type *speci_gguf_type_named(const char *name, size_t n); /* in letters of any case */

#endif
