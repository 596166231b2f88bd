/* files_gguf.c - the tensors of a GGUF file whose header was read (core_gguf.h): types, shapes, places.
 *
 * Dimensions are turned round: files name the fastest first, we the slowest. A row, which is the fastest dimension, is whole blocks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "models/files/files_checkpoint.h"

static spec_status read_shape(model_tensor *t, const speci_gguf_tensor *from, const gguf_type *type)
{
    size_t n = 1;
    t->n_dim = (int32_t)from->n_dim;
    for (uint32_t i = 0; i < from->n_dim; i++) t->dim[from->n_dim - 1 - i] = (int64_t)from->dim[i];
    if (from->dim[0] % type->n_value)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: %s has blocks of %u values, but rows of %" PRIu64, t->file, t->name, type->name,
                          type->n_value, from->dim[0]);
    for (uint32_t i = 0; i < from->n_dim; i++)
        if (__builtin_mul_overflow(n, (size_t)from->dim[i], &n) || n > SIZE_MAX / 8)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: shape %s overflows a size", t->file, t->name,
                              speci_shape_of(t->n_dim, t->dim).s);
    if (__builtin_mul_overflow(n / type->n_value, (size_t)type->bytes, &t->bytes))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: shape %s overflows a size", t->file, t->name, speci_shape_of(t->n_dim, t->dim).s);
    return SPEC_OK;
}

static spec_status read_tensor(model_tensor *t, const speci_gguf *g, const speci_gguf_tensor *from, const uint8_t *data, size_t bytes)
{
    const gguf_type *type = speci_gguf_type(from->type);
    const size_t room = bytes - g->data;
    *t = (model_tensor){ .name = from->name, .file = g->file };
    if (!type)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s has the type %u, which is not known: the file may be newer than this library",
                          t->file, t->name, from->type);
    t->dtype_name = type->name;
    t->blocks = type->unpack ? type : NULL;
    if (type->n_value == 1) t->dtype = type->dtype;
    SPEC_TRY(read_shape(t, from, type));
    if (from->offset > room || t->bytes > room - (size_t)from->offset)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: %zu bytes at %" PRIu64 " of the data leave the file, whose data has %zu: "
                          "it is cut short or damaged", t->file, t->name, t->bytes, from->offset, room);
    t->data = data + g->data + (size_t)from->offset;
    return SPEC_OK;
}

static int by_place(const void *pa, const void *pb)
{
    const model_tensor *a = *(const model_tensor *const *)pa, *b = *(const model_tensor *const *)pb;
    return (a->data > b->data) - (a->data < b->data);
}

/* Gaps are padding, and what other programs put there. */
static spec_status check_apart(const model_tensor *t, size_t n, const spec_allocator *a)
{
    const model_tensor **order = speci_alloc(a, n, sizeof *order);
    spec_status status = SPEC_OK;
    if (!order) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) order[i] = &t[i];
    if (n) qsort(order, n, sizeof *order, by_place);
    for (size_t i = 1; i < n && status == SPEC_OK; i++)
        if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
            status = speci_fail(SPEC_E_FORMAT, "%s: tensor %s overlaps %s", t->file, order[i]->name, order[i - 1]->name);
    speci_free(a, order);
    return status;
}

spec_status speci_gguf_tensors(model_tensor **tensors, size_t *n, const speci_gguf *header, const uint8_t *data, size_t bytes,
                               const spec_allocator *a)
{
    model_tensor *all = speci_alloc(a, *n + header->n_tensor, sizeof *all), *new = all ? all + *n : NULL;
    spec_status status = all ? SPEC_OK : SPEC_E_NOMEM;
    if (all && *n) memcpy(all, *tensors, *n * sizeof *all);
    for (size_t i = 0; i < header->n_tensor && status == SPEC_OK; i++)
        status = read_tensor(&new[i], header, &header->tensors[i], data, bytes);
    if (status == SPEC_OK) status = check_apart(new, header->n_tensor, a);
    if (status != SPEC_OK) {
        speci_free(a, all);
        return status;
    }
    speci_free(a, *tensors);
    *tensors = all;
    *n += header->n_tensor;
    return SPEC_OK;
}
