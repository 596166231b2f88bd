/* model_types.c - what the tensors of a model's file are made of. */
#include <stdlib.h>
#include <string.h>

#include "models/files/files_checkpoint.h"

static int by_bytes(const void *x, const void *y)
{
    const spec_type_count *a = x, *b = y;
    return a->bytes != b->bytes ? (a->bytes < b->bytes) - (a->bytes > b->bytes) : strcmp(a->name, b->name);
}

static void add(spec_type_count *types, int32_t *n, const model_tensor *t)
{
    const char *name = t->is_new_type ? "other" : t->dtype_name; /* static, as spec.h says */
    int32_t i = 0;
    while (i < *n && strcmp(types[i].name, name) != 0) i++;
    if (i == *n) types[(*n)++] = (spec_type_count){ .name = name };
    types[i].n++;
    types[i].bytes += t->bytes;
}

spec_status speci_model_list_types(spec_model *m, const model_checkpoint *c)
{
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    m->format = speci_checkpoint_gguf(c) ? "gguf" : "safetensors";
    m->types = speci_alloc(m->allocator, n, sizeof *m->types);
    if (!m->types) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) add(m->types, &m->n_type, &t[i]);
    if (m->n_type > 1) qsort(m->types, (size_t)m->n_type, sizeof *m->types, by_bytes);
    return SPEC_OK;
}
