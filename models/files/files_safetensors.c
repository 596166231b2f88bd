/* files_safetensors.c - reads the header of a safetensors file.
 *
 *     8 bytes    length of the header, little-endian
 *     header     JSON: name -> { dtype, shape, data_offsets: [begin, end) }, and "__metadata__"
 *     buffer     the tensors, without gaps or overlaps
 *
 * The rules are those of the reference reader (huggingface/safetensors, safetensors/src/tensor.rs): at most 100 MB of
 * header, offsets that tile the buffer, sizes that agree with shape and dtype. Alignment is not promised. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/files/files_checkpoint.h"

typedef struct type_row {
    const char *name;
    size_t bits;
    spec_dtype dtype;
} type_row;

/* Types that are not float16, bfloat16 or float32 may stand in a file (masks, counters) but not be used. So may those that the format
 * gets when this table is old: nothing is known of their size. */
static const type_row types[] = {
    { "F32", 32, SPEC_DTYPE_F32 },         { "BF16", 16, SPEC_DTYPE_BF16 },       { "F16", 16, SPEC_DTYPE_F16 },
    { "F64", 64, SPEC_DTYPE_AUTO },        { "I64", 64, SPEC_DTYPE_AUTO },        { "U64", 64, SPEC_DTYPE_AUTO },
    { "C64", 64, SPEC_DTYPE_AUTO },        { "I32", 32, SPEC_DTYPE_AUTO },        { "U32", 32, SPEC_DTYPE_AUTO },
    { "I16", 16, SPEC_DTYPE_AUTO },        { "U16", 16, SPEC_DTYPE_AUTO },        { "I8", 8, SPEC_DTYPE_AUTO },
    { "U8", 8, SPEC_DTYPE_AUTO },          { "BOOL", 8, SPEC_DTYPE_AUTO },        { "F8_E4M3", 8, SPEC_DTYPE_AUTO },
    { "F8_E5M2", 8, SPEC_DTYPE_AUTO },     { "F8_E8M0", 8, SPEC_DTYPE_AUTO },     { "F8_E4M3FNUZ", 8, SPEC_DTYPE_AUTO },
    { "F8_E5M2FNUZ", 8, SPEC_DTYPE_AUTO }, { "F6_E2M3", 6, SPEC_DTYPE_AUTO },     { "F6_E3M2", 6, SPEC_DTYPE_AUTO },
    { "F4", 4, SPEC_DTYPE_AUTO },
};

static const type_row *find_type(const char *name)
{
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

model_shape_text speci_shape_of(int32_t n_dim, const int64_t *dim)
{
    model_shape_text t = { "[" };
    for (int32_t i = 0; i < n_dim; i++) {
        const size_t n = strlen(t.s);
        snprintf(t.s + n, sizeof t.s - n, "%s%" PRId64, i ? ", " : "", dim[i]);
    }
    strcat(t.s, "]"); /* 8 numbers of at most 20 characters fit with room to spare */
    return t;
}

/* Shape and the bytes that shape and type make. */
static spec_status read_shape(model_tensor *t, size_t *bytes, const json_t *shape, size_t type_bits)
{
    const size_t n_dim = json_array_size(shape);
    if (!json_is_array(shape))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: shape is missing or not an array", t->file, t->name);
    if (n_dim > MODEL_MAX_DIM)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s: %zu dimensions, expected at most %d", t->file, t->name,
                          n_dim, MODEL_MAX_DIM);
    size_t n = 1;
    t->n_dim = (int32_t)n_dim;
    for (size_t i = 0; i < n_dim; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: dimension %zu of the shape is not a number >= 0", t->file,
                              t->name, i);
        t->dim[i] = json_integer_value(d);
    }
    for (size_t i = 0; i < n_dim; i++)
        if (__builtin_mul_overflow(n, (size_t)t->dim[i], &n))
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: shape %s overflows a size", t->file, t->name,
                              speci_shape_of(t->n_dim, t->dim).s);
    if (__builtin_mul_overflow(n, type_bits, &n))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: shape %s overflows a size", t->file, t->name,
                          speci_shape_of(t->n_dim, t->dim).s);
    if (n % 8 != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: %s %s ends inside a byte", t->file, t->name, t->dtype_name,
                          speci_shape_of(t->n_dim, t->dim).s);
    *bytes = n / 8;
    return SPEC_OK;
}

static spec_status read_offsets(model_tensor *t, const json_t *offsets, const uint8_t *buffer, size_t n_buffer)
{
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: data_offsets is not [begin, end]", t->file, t->name);
    const json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin || (uint64_t)end > n_buffer)
        return speci_fail(SPEC_E_FORMAT,
                          "%s: tensor %s: data_offsets [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
                          "] leave the buffer of %zu bytes",
                          t->file, t->name, begin, end, n_buffer);
    t->data = buffer + begin;
    t->bytes = (size_t)(end - begin);
    return SPEC_OK;
}

/* t->name and t->file are set. */
static spec_status read_tensor(model_tensor *t, const json_t *entry, const uint8_t *buffer, size_t n_buffer)
{
    const char *type_name = json_string_value(json_object_get(entry, "dtype"));
    const type_row *type = find_type(type_name);
    size_t bytes = 0;
    if (!json_is_object(entry)) return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: not an object", t->file, t->name);
    if (!type_name)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: dtype is missing or not a string, expected one like F32, BF16 or F16", t->file,
                          t->name);
    t->dtype = type ? type->dtype : SPEC_DTYPE_AUTO;
    t->dtype_name = type ? type->name : type_name;
    t->is_new_type = !type;
    SPEC_TRY(read_shape(t, &bytes, json_object_get(entry, "shape"), type ? type->bits : 8));
    SPEC_TRY(read_offsets(t, json_object_get(entry, "data_offsets"), buffer, n_buffer));
    if (type && t->bytes != bytes)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: %s %s takes %zu bytes, data_offsets hold %zu", t->file,
                          t->name, t->dtype_name, speci_shape_of(t->n_dim, t->dim).s, bytes, t->bytes);
    return SPEC_OK;
}

static int by_place(const void *pa, const void *pb)
{
    const model_tensor *a = *(const model_tensor *const *)pa, *b = *(const model_tensor *const *)pb;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* an empty tensor before the one that begins there */
}

/* The tensors, in order of their place, cover [0, n_buffer) exactly. */
static spec_status check_tiles(const model_tensor **order, size_t n, const uint8_t *buffer, size_t n_buffer,
                               const char *file)
{
    size_t at = 0;
    qsort(order, n, sizeof *order, by_place);
    for (size_t i = 0; i < n; i++) {
        const size_t begin = (size_t)(order[i]->data - buffer);
        if (begin < at)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s begins at %zu and overlaps %s, which ends at %zu", file,
                              order[i]->name, begin, order[i - 1]->name, at);
        if (begin > at)
            return speci_fail(SPEC_E_FORMAT, "%s: gap of %zu bytes at %zu before tensor %s", file, begin - at, at,
                              order[i]->name);
        at = begin + order[i]->bytes;
    }
    if (at != n_buffer)
        return speci_fail(SPEC_E_FORMAT, "%s: the tensors end at %zu, the buffer has %zu bytes (gap of %zu)", file, at,
                          n_buffer, n_buffer - at);
    return SPEC_OK;
}

/* Fills tensors [n], n being the entries of the header without __metadata__. */
static spec_status read_tensors(model_tensor *tensors, size_t n, json_t *header, const uint8_t *buffer,
                                size_t n_buffer, const char *file, const spec_allocator *a)
{
    const char *name;
    json_t *entry;
    size_t i = 0;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        tensors[i].name = name;
        tensors[i].file = file;
        SPEC_TRY(read_tensor(&tensors[i], entry, buffer, n_buffer));
        i++;
    }
    const model_tensor **order = speci_alloc(a, n, sizeof *order);
    if (!order) return SPEC_E_NOMEM;
    for (i = 0; i < n; i++) order[i] = &tensors[i];
    const spec_status status = check_tiles(order, n, buffer, n_buffer, file);
    speci_free(a, order);
    return status;
}

static spec_status read_header(json_t **header, size_t *n_header, const uint8_t *data, size_t bytes, const char *file)
{
    if (bytes < 8)
        return speci_fail(SPEC_E_FORMAT, "%s: %zu bytes, a safetensors file has at least 8", file, bytes);
    const uint64_t n = speci_little_endian(data, 8);
    if (n > SAFETENSORS_HEADER_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: header of %" PRIu64 " bytes, expected at most %u: not a safetensors file",
                          file, n, SAFETENSORS_HEADER_MAX);
    if (n > bytes - 8)
        return speci_fail(SPEC_E_FORMAT, "%s: truncated: header of %" PRIu64 " bytes in a file of %zu", file, n, bytes);
    SPEC_TRY(speci_json_parse(header, (const char *)data + 8, (size_t)n, file));
    *n_header = (size_t)n;
    if (json_is_object(*header)) return SPEC_OK;
    json_decref(*header);
    *header = NULL;
    return speci_fail(SPEC_E_FORMAT, "%s: the header is not a JSON object", file);
}

spec_status speci_safetensors_read(model_tensor **tensors, size_t *n, json_t **header, const uint8_t *data,
                                   size_t bytes, const char *file, const spec_allocator *a)
{
    size_t n_header = 0;
    *header = NULL;
    SPEC_TRY(read_header(header, &n_header, data, bytes, file));
    const size_t n_new = json_object_size(*header) - (json_object_get(*header, "__metadata__") ? 1 : 0);
    model_tensor *all = speci_alloc(a, *n + n_new, sizeof *all);
    spec_status status = all ? SPEC_OK : SPEC_E_NOMEM;
    if (all) {
        if (*n) memcpy(all, *tensors, *n * sizeof *all);
        status = read_tensors(all + *n, n_new, *header, data + 8 + n_header, bytes - 8 - n_header, file, a);
    }
    if (status != SPEC_OK) {
        speci_free(a, all);
        json_decref(*header);
        *header = NULL;
        return status;
    }
    speci_free(a, *tensors);
    *tensors = all;
    *n += n_new;
    return SPEC_OK;
}
