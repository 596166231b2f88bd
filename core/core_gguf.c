/* core_gguf.c - the header of a GGUF file. */
#include "core/core_gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOAD_STEP = 1 << 20, KEY_MAX = 65535, TENSOR_NAME_MAX = 255, ALIGNMENT = 32, ALIGNMENT_MAX = 1 << 20 };
/* The fewest bytes that a pair and a tensor take: bounds what a count may claim. */
enum { PAIR_LEAST = 8 + 1 + 4 + 1, TENSOR_LEAST = 8 + 1 + 4 + 8 + 4 + 8 };

typedef struct reader {
    const speci_file *map;
    size_t at, loaded;
    speci_gguf *g;
} reader;

/* ----------------------------------------------------------------------------------------- bytes --- */

/* Bytes [at, at + n) can be read. */
static spec_status need(reader *r, uint64_t n, const char *what)
{
    if (n > r->map->n - r->at)
        return speci_fail(SPEC_E_FORMAT, "%s: %s at byte %zu needs %" PRIu64 " bytes, but the file ends at %zu: it is cut short or damaged",
                          r->g->file, what, r->at, n, r->map->n);
    const size_t end = r->at + (size_t)n;
    if (end <= r->loaded || r->map->fd < 0) return SPEC_OK;
    const size_t step = r->map->n - r->loaded < LOAD_STEP ? r->map->n : r->loaded + LOAD_STEP, to = end > step ? end : step;
    SPEC_TRY(speci_file_load(r->map, r->g->file, r->loaded, to - r->loaded));
    r->loaded = to;
    return SPEC_OK;
}

/* A number of n bytes. */
static spec_status number(reader *r, uint64_t *out, size_t n, const char *what)
{
    SPEC_TRY(need(r, n, what));
    *out = speci_little_endian(r->map->data + r->at, n);
    r->at += n;
    return SPEC_OK;
}

static spec_status string(reader *r, const char **out, uint64_t *n, const char *what)
{
    SPEC_TRY(number(r, n, 8, what));
    SPEC_TRY(need(r, *n, what));
    *out = (const char *)r->map->data + r->at;
    r->at += (size_t)*n;
    return SPEC_OK;
}

/* A key or a name, copied: *out is its place in g->text. No file has control characters there, and messages show them. */
static spec_status name(reader *r, size_t *out, size_t max, const char *what)
{
    const char *s;
    uint64_t n;
    const size_t at = r->at;
    SPEC_TRY(string(r, &s, &n, what));
    if (n == 0 || n > max)
        return speci_fail(SPEC_E_FORMAT, "%s: %s at byte %zu has %" PRIu64 " bytes, expected 1 to %zu", r->g->file, what, at, n, max);
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] < ' ' || (uint8_t)s[i] > '~')
            return speci_fail(SPEC_E_FORMAT, "%s: %s at byte %zu has the byte 0x%02X, expected printable ASCII", r->g->file, what, at,
                              (unsigned)(uint8_t)s[i]);
    *out = r->g->text.n;
    SPEC_TRY(speci_buf_add(&r->g->text, s, (size_t)n));
    return speci_buf_add(&r->g->text, "", 1);
}

/* ---------------------------------------------------------------------------------------- values --- */

static const struct {
    const char *name;
    size_t bytes; /* 0: not fixed */
} value_types[] = { /* by number */
    { "u8", 1 }, { "i8", 1 }, { "u16", 2 }, { "i16", 2 }, { "u32", 4 }, { "i32", 4 }, { "f32", 4 }, { "bool", 1 }, { "string", 0 },
    { "array", 0 }, { "u64", 8 }, { "i64", 8 }, { "f64", 8 },
};
enum { N_VALUE_TYPE = sizeof value_types / sizeof *value_types };

static const char *key_at(const reader *r, size_t key) { return r->g->text.data + key; }

static spec_status value_type(reader *r, speci_gguf_kind *out, size_t key)
{
    uint64_t type;
    SPEC_TRY(number(r, &type, 4, key_at(r, key)));
    if (type >= N_VALUE_TYPE)
        return speci_fail(SPEC_E_FORMAT, "%s: %s has values of type %" PRIu64 ", which is not known (0 to %d)", r->g->file, key_at(r, key),
                          type, N_VALUE_TYPE - 1);
    *out = (speci_gguf_kind)type;
    return SPEC_OK;
}

static spec_status strings(reader *r, uint64_t n, size_t key)
{
    const char *s;
    uint64_t n_byte;
    for (uint64_t i = 0; i < n; i++) SPEC_TRY(string(r, &s, &n_byte, key_at(r, key)));
    return SPEC_OK;
}

static spec_status fixed(reader *r, const speci_gguf_value *v, size_t key)
{
    const size_t bytes = value_types[v->type].bytes;
    const uint64_t total = v->n > UINT64_MAX / bytes ? UINT64_MAX : v->n * bytes;
    SPEC_TRY(need(r, total, key_at(r, key)));
    for (uint64_t i = 0; v->type == SPECI_GGUF_BOOL && i < v->n; i++)
        if (r->map->data[r->at + i] > 1)
            return speci_fail(SPEC_E_FORMAT, "%s: %s is a bool of %u, expected 0 or 1", r->g->file, key_at(r, key),
                              r->map->data[r->at + i]);
    r->at += (size_t)total;
    return SPEC_OK;
}

static spec_status value(reader *r, speci_gguf_value *v, size_t key)
{
    *v = (speci_gguf_value){ .n = 1 };
    SPEC_TRY(value_type(r, &v->type, key));
    if (v->type == SPECI_GGUF_ARRAY) {
        v->is_array = true;
        SPEC_TRY(value_type(r, &v->type, key));
        SPEC_TRY(number(r, &v->n, 8, key_at(r, key)));
        if (v->type == SPECI_GGUF_ARRAY)
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is an array of arrays, which is not supported", r->g->file, key_at(r, key));
    }
    v->data = r->map->data + r->at;
    return v->type == SPECI_GGUF_STRING ? strings(r, v->n, key) : fixed(r, v, key);
}

/* ---------------------------------------------------------------------------------------- the file --- */

/* A count of things that take `least` bytes each. */
static spec_status count(reader *r, size_t *out, size_t least, const char *what)
{
    uint64_t n;
    SPEC_TRY(number(r, &n, 8, what));
    if (n > (r->map->n - r->at) / least)
        return speci_fail(SPEC_E_FORMAT, "%s: %s is %" PRIu64 ", more than a file of %zu bytes can have", r->g->file, what, n, r->map->n);
    *out = (size_t)n;
    return SPEC_OK;
}

static spec_status head(reader *r)
{
    uint64_t version;
    SPEC_TRY(need(r, 4, "the magic"));
    SPEC_TRY(speci_file_refuse_pointer(r->map->data, r->map->n < 64 ? r->map->n : 64, r->g->file));
    if (memcmp(r->map->data, "GGUF", 4) != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: does not begin with \"GGUF\": not a GGUF file", r->g->file);
    r->at = 4;
    SPEC_TRY(number(r, &version, 4, "the version"));
    if (version != 2 && version != 3)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: GGUF of version %" PRIu64 "%s, expected 2 or 3", r->g->file, version,
                          version && version % 65536 == 0 ? " (a big-endian file)" : "");
    r->g->version = (uint32_t)version;
    SPEC_TRY(count(r, &r->g->n_tensor, TENSOR_LEAST, "the number of tensors"));
    return count(r, &r->g->n_pair, PAIR_LEAST, "the number of pairs");
}

/* keys [n]: places in g->text, which moves while it grows. */
static spec_status pairs(reader *r, size_t *keys)
{
    speci_gguf *g = r->g;
    for (size_t i = 0; i < g->n_pair; i++) {
        SPEC_TRY(name(r, &keys[i], KEY_MAX, "a key"));
        SPEC_TRY(value(r, &g->pairs[i].value, keys[i]));
    }
    return SPEC_OK;
}

static spec_status tensor(reader *r, speci_gguf_tensor *t, size_t *at)
{
    uint64_t n_dim, type;
    SPEC_TRY(name(r, at, TENSOR_NAME_MAX, "a tensor's name"));
    SPEC_TRY(number(r, &n_dim, 4, key_at(r, *at)));
    if (n_dim == 0 || n_dim > SPECI_GGUF_DIMS)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s has %" PRIu64 " dimensions, expected 1 to %d", r->g->file, key_at(r, *at), n_dim,
                          SPECI_GGUF_DIMS);
    t->n_dim = (uint32_t)n_dim;
    for (uint32_t i = 0; i < t->n_dim; i++) {
        SPEC_TRY(number(r, &t->dim[i], 8, key_at(r, *at)));
        if (t->dim[i] == 0 || t->dim[i] > INT64_MAX)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: dimension %u is %" PRIu64 ", expected 1 and more", r->g->file,
                              key_at(r, *at), i, t->dim[i]);
    }
    SPEC_TRY(number(r, &type, 4, key_at(r, *at)));
    t->type = (uint32_t)type;
    return number(r, &t->offset, 8, key_at(r, *at));
}

static spec_status tensors(reader *r, size_t *names)
{
    for (size_t i = 0; i < r->g->n_tensor; i++) SPEC_TRY(tensor(r, &r->g->tensors[i], &names[i]));
    return SPEC_OK;
}

static int by_key(const void *x, const void *y)
{
    return strcmp(((const speci_gguf_pair *)x)->key, ((const speci_gguf_pair *)y)->key);
}

static spec_status sort_pairs(speci_gguf *g)
{
    if (g->n_pair) qsort(g->pairs, g->n_pair, sizeof *g->pairs, by_key);
    for (size_t i = 1; i < g->n_pair; i++)
        if (strcmp(g->pairs[i - 1].key, g->pairs[i].key) == 0)
            return speci_fail(SPEC_E_FORMAT, "%s: the key %s is there twice", g->file, g->pairs[i].key);
    return SPEC_OK;
}

static spec_status check_alignment(reader *r)
{
    speci_gguf *g = r->g;
    int64_t alignment = ALIGNMENT;
    SPEC_TRY(speci_gguf_integer(g, "general.alignment", &alignment));
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return speci_fail(SPEC_E_FORMAT, "%s: general.alignment is %" PRId64 ", expected a power of two from 8 to %d", g->file, alignment,
                          ALIGNMENT_MAX);
    const size_t past = r->at % (size_t)alignment, data = past ? r->at + (size_t)alignment - past : r->at;
    g->data = data < r->map->n ? data : r->map->n; /* without tensors the padding may be missing */
    for (size_t i = 0; i < g->n_tensor; i++)
        if (g->tensors[i].offset % (uint64_t)alignment)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: the offset %" PRIu64 " is no multiple of the alignment, %" PRId64, g->file,
                              g->tensors[i].name, g->tensors[i].offset, alignment);
    return SPEC_OK;
}

static spec_status read_all(reader *r, size_t *places)
{
    speci_gguf *g = r->g;
    SPEC_TRY(pairs(r, places));
    SPEC_TRY(tensors(r, places + g->n_pair));
    for (size_t i = 0; i < g->n_pair; i++) g->pairs[i].key = g->text.data + places[i];
    for (size_t i = 0; i < g->n_tensor; i++) g->tensors[i].name = g->text.data + places[g->n_pair + i];
    SPEC_TRY(sort_pairs(g));
    return check_alignment(r);
}

spec_status speci_gguf_read(speci_gguf *out, const speci_file *map, const char *file, const spec_allocator *a)
{
    *out = (speci_gguf){ .file = file, .text = { .a = a }, .a = a };
    reader r = { .map = map, .g = out };
    SPEC_TRY(head(&r));
    size_t *places = speci_alloc(a, out->n_pair + out->n_tensor, sizeof *places);
    out->pairs = speci_alloc(a, out->n_pair, sizeof *out->pairs);
    out->tensors = speci_alloc(a, out->n_tensor, sizeof *out->tensors);
    const spec_status status = places && out->pairs && out->tensors ? read_all(&r, places) : SPEC_E_NOMEM;
    speci_free(a, places);
    return status;
}

void speci_gguf_close(speci_gguf *g)
{
    speci_free(g->a, g->pairs);
    speci_free(g->a, g->tensors);
    speci_buf_free(&g->text);
    *g = (speci_gguf){ 0 };
}

bool speci_is_gguf(const char *path)
{
    char magic[4] = "";
    speci_file file;
    if (!speci_file_exists(path) || speci_file_map(&file, path) != SPEC_OK) return false;
    const bool read = file.n >= sizeof magic && speci_file_read_at(&file, path, magic, 0, sizeof magic) == SPEC_OK;
    speci_file_unmap(&file);
    return read && memcmp(magic, "GGUF", sizeof magic) == 0;
}

/* ---------------------------------------------------------------------------------------- access --- */

const speci_gguf_value *speci_gguf_find(const speci_gguf *g, const char *key)
{
    const speci_gguf_pair wanted = { .key = key };
    const speci_gguf_pair *p = g->n_pair ? bsearch(&wanted, g->pairs, g->n_pair, sizeof wanted, by_key) : NULL;
    return p ? &p->value : NULL;
}

static spec_status wrong_type(const speci_gguf *g, const char *key, const speci_gguf_value *v, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s is %s%s, expected %s", g->file, key, v->is_array ? "an array of " : "of type ",
                      value_types[v->type].name, expected);
}

static bool is_integer(speci_gguf_kind type)
{
    return type <= SPECI_GGUF_I32 || type == SPECI_GGUF_U64 || type == SPECI_GGUF_I64;
}

/* What jansson has not made of a value, since errno was 0. */
static spec_status not_made(const speci_gguf *g, const char *key)
{
    if (errno == ENOMEM) return speci_fail(SPEC_E_NOMEM, "%s: no memory for %s", g->file, key);
    return speci_fail(SPEC_E_FORMAT, "%s: %s is not UTF-8", g->file, key);
}

spec_status speci_gguf_text(const speci_gguf *g, const char *key, const char **out, size_t *n)
{
    const speci_gguf_value *v = speci_gguf_find(g, key);
    size_t at = 0;
    if (!v) return SPEC_OK;
    if (v->is_array || v->type != SPECI_GGUF_STRING) return wrong_type(g, key, v, "a string");
    *out = speci_gguf_next(v, &at, n);
    if (memchr(*out, 0, *n)) return speci_fail(SPEC_E_FORMAT, "%s: %s has a zero byte", g->file, key);
    errno = 0;
    json_t *text = json_stringn(*out, *n); /* which checks that it is UTF-8 */
    json_decref(text);
    return text ? SPEC_OK : not_made(g, key);
}

spec_status speci_gguf_integer(const speci_gguf *g, const char *key, int64_t *out)
{
    const speci_gguf_value *v = speci_gguf_find(g, key);
    if (!v) return SPEC_OK;
    if (v->is_array || !is_integer(v->type)) return wrong_type(g, key, v, "an integer");
    *out = speci_gguf_integer_at(v, 0);
    return SPEC_OK;
}

spec_status speci_gguf_flag(const speci_gguf *g, const char *key, bool *out)
{
    const speci_gguf_value *v = speci_gguf_find(g, key);
    if (!v) return SPEC_OK;
    if (v->is_array || v->type != SPECI_GGUF_BOOL) return wrong_type(g, key, v, "a bool");
    *out = v->data[0];
    return SPEC_OK;
}

spec_status speci_gguf_array(const speci_gguf *g, const char *key, speci_gguf_kind type, const speci_gguf_value **out)
{
    const speci_gguf_value *v = *out = speci_gguf_find(g, key);
    if (!v || (v->is_array && (v->type == type || (type == SPECI_GGUF_I32 && is_integer(v->type))))) return SPEC_OK;
    const char *expected = type == SPECI_GGUF_STRING ? "an array of strings" : type == SPECI_GGUF_F32 ? "an array of f32"
                           : "an array of integers";
    return wrong_type(g, key, v, expected);
}

size_t speci_gguf_bytes(const speci_gguf_value *v)
{
    size_t at = 0, n;
    if (v->type != SPECI_GGUF_STRING) return (size_t)v->n * value_types[v->type].bytes;
    for (uint64_t i = 0; i < v->n; i++) (void)speci_gguf_next(v, &at, &n);
    return at;
}

const char *speci_gguf_next(const speci_gguf_value *v, size_t *at, size_t *n)
{
    const uint8_t *s = v->data + *at;
    *n = (size_t)speci_little_endian(s, 8);
    *at += 8 + *n;
    return (const char *)s + 8;
}

int64_t speci_gguf_integer_at(const speci_gguf_value *v, uint64_t i)
{
    const size_t bytes = value_types[v->type].bytes;
    const uint64_t x = speci_little_endian(v->data + i * bytes, bytes);
    switch (v->type) {
    case SPECI_GGUF_I8: return (int8_t)x;
    case SPECI_GGUF_I16: return (int16_t)x;
    case SPECI_GGUF_I32: return (int32_t)x;
    case SPECI_GGUF_I64: return (int64_t)x;
    default: return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    }
}

double speci_gguf_number_at(const speci_gguf_value *v, uint64_t i)
{
    const size_t bytes = value_types[v->type].bytes;
    const uint64_t x = speci_little_endian(v->data + i * bytes, bytes);
    const uint32_t narrow = (uint32_t)x;
    float f;
    double d;
    memcpy(&f, &narrow, sizeof f);
    memcpy(&d, &x, sizeof d);
    return v->type == SPECI_GGUF_F32 ? (double)f : v->type == SPECI_GGUF_F64 ? d : (double)speci_gguf_integer_at(v, i);
}

/* The form that core_json.h has for what JSON has no number for. */
static json_t *real(double x)
{
    if (isfinite(x)) return json_real(x);
    return json_pack("{s:s}", "__float__", isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
}

static json_t *element(const speci_gguf_value *v, uint64_t i, size_t *at)
{
    size_t n;
    if (v->type == SPECI_GGUF_STRING) {
        const char *s = speci_gguf_next(v, at, &n);
        return json_stringn(s, n);
    }
    if (v->type == SPECI_GGUF_BOOL) return json_boolean(v->data[i]);
    return is_integer(v->type) ? json_integer(speci_gguf_integer_at(v, i)) : real(speci_gguf_number_at(v, i));
}

json_t *speci_gguf_json(const speci_gguf_value *v)
{
    size_t at = 0;
    if (!v->is_array) return element(v, 0, &at);
    json_t *list = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        if (json_array_append_new(list, element(v, i, &at)) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

spec_status speci_gguf_take(json_t **out, const speci_gguf *g, const char *key, const speci_gguf_value *v)
{
    errno = 0;
    *out = speci_gguf_json(v);
    return *out ? SPEC_OK : not_made(g, key);
}
