/* files_checkpoint.c - the weights of a directory: one safetensors file, or the shards that an index names; or of a GGUF file: it, or
 * the parts that its name and metadata tell. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/files/files_checkpoint.h"

#define INDEX_MAX ((size_t)64 << 20)
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

typedef struct shard {
    char *path;
    speci_file map; /* data NULL for a checkpoint in memory */
    json_t *header; /* owns the tensors' names; of a GGUF file the next one does */
    speci_gguf gguf;
} shard;

struct model_checkpoint {
    const spec_allocator *a;
    char *path;
    shard *shards;
    size_t n_shard, cap_shard;
    model_tensor *tensors; /* sorted by name once open */
    size_t n_tensor;
    bool is_gguf;
    const model_rename *const *names; /* NULL: as families say them */
};

/* --- shards --- */

/* A new, empty shard at the end; its parts are freed with the checkpoint. */
static spec_status add_shard(model_checkpoint *c, shard **out, const char *path)
{
    if (c->n_shard == c->cap_shard) {
        const size_t cap = c->cap_shard ? 2 * c->cap_shard : 4;
        shard *shards = speci_alloc(c->a, cap, sizeof *shards);
        if (!shards) return SPEC_E_NOMEM;
        if (c->n_shard) memcpy(shards, c->shards, c->n_shard * sizeof *shards);
        speci_free(c->a, c->shards);
        c->shards = shards, c->cap_shard = cap;
    }
    char *copy = speci_strdup(c->a, path);
    if (!copy) return SPEC_E_NOMEM;
    *out = &c->shards[c->n_shard++];
    **out = (shard){ .path = copy };
    return SPEC_OK;
}

/* What speci_safetensors_read touches: the header's length and the header. A length that leaves the file is refused
 * there. */
static spec_status load_header(const shard *s)
{
    const size_t n_text = s->map.n < 64 ? s->map.n : 64; /* the length, or a pointer's first line */
    SPEC_TRY(speci_file_load(&s->map, s->path, 0, n_text));
    SPEC_TRY(speci_file_refuse_pointer(s->map.data, n_text, s->path));
    if (s->map.n < 8) return SPEC_OK;
    const uint64_t n = speci_little_endian(s->map.data, 8);
    if (n > SAFETENSORS_HEADER_MAX || n > s->map.n - 8) return SPEC_OK;
    return speci_file_load(&s->map, s->path, 8, (size_t)n);
}

static spec_status open_shard(model_checkpoint *c, const char *path)
{
    shard *s = NULL;
    SPEC_TRY(add_shard(c, &s, path));
    SPEC_TRY(speci_file_map(&s->map, path));
    SPEC_TRY(load_header(s));
    return speci_safetensors_read(&c->tensors, &c->n_tensor, &s->header, s->map.data, s->map.n, s->path, c->a);
}

static spec_status open_gguf(model_checkpoint *c, const char *path)
{
    shard *s = NULL;
    SPEC_TRY(add_shard(c, &s, path));
    SPEC_TRY(speci_file_map(&s->map, path));
    SPEC_TRY(speci_gguf_read(&s->gguf, &s->map, s->path, c->a));
    return speci_gguf_tensors(&c->tensors, &c->n_tensor, &s->gguf, s->map.data, s->map.n, c->a);
}

/* --- the tensor index --- */

static int by_name(const void *pa, const void *pb)
{
    const model_tensor *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

static spec_status sort_tensors(model_checkpoint *c)
{
    if (c->n_tensor) qsort(c->tensors, c->n_tensor, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < c->n_tensor; i++) {
        const model_tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        if (a->file == b->file) return speci_fail(SPEC_E_FORMAT, "%s: tensor %s is there twice", a->file, a->name);
        return speci_fail(SPEC_E_FORMAT, "tensor %s is in two files: %s and %s", a->name, a->file, b->file);
    }
    return SPEC_OK;
}

/* Does `name` begin with `pattern`, whose # is a number? What is behind, and the number [n_digit]; else NULL. */
static const char *match(const char *name, const char *pattern, const char **number, size_t *n_digit)
{
    for (; *pattern; pattern++) {
        if (*pattern != '#' && *pattern != *name) return NULL;
        if (*pattern == '#') {
            *number = name;
            *n_digit = strspn(name, "0123456789");
            if (*n_digit == 0) return NULL;
            name += *n_digit;
        } else {
            name++;
        }
    }
    return name;
}

static bool is_rest(const char *s) { return *s == '\0' || strcmp(s, ".weight") == 0 || strcmp(s, ".bias") == 0; }

const char *speci_renamed_by(const model_rename *row, const char *name, char *out, size_t cap)
{
    const char *number = "";
    size_t n_digit = 0;
    const char *rest = match(name, row->name, &number, &n_digit);
    if (!rest || !is_rest(rest)) return NULL;
    const char *hash = strchr(row->stored, '#');
    const int n_before = (int)(hash ? (size_t)(hash - row->stored) : strlen(row->stored));
    snprintf(out, cap, "%.*s%.*s%s%s", n_before, row->stored, (int)n_digit, number, hash ? hash + 1 : "", rest);
    return out;
}

const char *speci_renamed(const model_rename *const *lists, const char *name, char *out, size_t cap)
{
    for (; lists && *lists; lists++)
        for (const model_rename *row = *lists; row->name; row++)
            if (speci_renamed_by(row, name, out, cap)) return out;
    return NULL;
}

const char *speci_checkpoint_stored(const model_checkpoint *c, const char *name, char *out, size_t cap)
{
    const char *stored = speci_renamed(c->names, name, out, cap);
    return stored ? stored : name;
}

model_tensor *speci_checkpoint_find(const model_checkpoint *c, const char *name)
{
    char stored[256];
    const model_tensor key = { .name = speci_checkpoint_stored(c, name, stored, sizeof stored) };
    return c->n_tensor ? bsearch(&key, c->tensors, c->n_tensor, sizeof key, by_name) : NULL;
}

void speci_checkpoint_rename(model_checkpoint *c, const model_rename *const *lists) { c->names = lists; }

const speci_gguf *speci_checkpoint_gguf(const model_checkpoint *c) { return c->is_gguf ? &c->shards[0].gguf : NULL; }

model_tensor *speci_checkpoint_tensors(const model_checkpoint *c, size_t *n)
{
    *n = c->n_tensor;
    return c->tensors;
}

const char *speci_checkpoint_path(const model_checkpoint *c) { return c->path; }

/* The shard whose file holds t; NULL for a checkpoint in memory. */
static const shard *shard_of(const model_checkpoint *c, const model_tensor *t)
{
    for (size_t i = 0; i < c->n_shard; i++)
        if (c->shards[i].map.data && c->shards[i].path == t->file) return &c->shards[i];
    return NULL;
}

spec_status speci_checkpoint_load(const model_checkpoint *c, const model_tensor *t)
{
    return speci_checkpoint_load_part(c, t, 0, t->bytes);
}

spec_status speci_checkpoint_load_part(const model_checkpoint *c, const model_tensor *t, size_t offset, size_t n)
{
    const shard *s = shard_of(c, t);
    return s ? speci_file_load(&s->map, s->path, (size_t)(t->data - s->map.data) + offset, n) : SPEC_OK;
}

spec_status speci_checkpoint_read(const model_checkpoint *c, const model_tensor *t, void *out, size_t offset, size_t n)
{
    const shard *s = shard_of(c, t);
    if (s) return speci_file_read_at(&s->map, s->path, out, (size_t)(t->data - s->map.data) + offset, n);
    memcpy(out, t->data + offset, n);
    return SPEC_OK;
}

void speci_checkpoint_done(const model_checkpoint *c, const model_tensor *t)
{
    const shard *s = shard_of(c, t);
    if (s) speci_file_done(&s->map, (size_t)(t->data - s->map.data), t->bytes);
}

/* --- shards by index --- */

/* A shard lies beside its index: a name that leads elsewhere is refused. (What the name is a link to does not
 * matter: download caches keep the files as links.) */
static spec_status check_shard_name(const char *name, const char *tensor, const char *index)
{
    const size_t n = name ? strlen(name) : 0, n_end = strlen(".safetensors");
    if (!name) return speci_fail(SPEC_E_FORMAT, "%s: weight_map: %s has no file name", index, tensor);
    if (strchr(name, '/') || strchr(name, '\\') || strstr(name, ".."))
        return speci_fail(SPEC_E_FORMAT,
                          "%s: weight_map: %s is in \"%.200s\", expected the name of a file beside the index (no "
                          "slash, no \"..\")",
                          index, tensor, name);
    if (n <= n_end || strcmp(name + n - n_end, ".safetensors") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: weight_map: %s is in \"%.200s\", expected a .safetensors file", index,
                          tensor, name);
    return SPEC_OK;
}

/* Opens the shard if it is not open yet; *out its path in the checkpoint. */
static spec_status need_shard(model_checkpoint *c, const char **out, const char *name, const char *tensor,
                              const char *index)
{
    char path[MODEL_MAX_PATH];
    if (name && strncmp(name, "./", 2) == 0) name += 2;
    SPEC_TRY(check_shard_name(name, tensor, index));
    SPEC_TRY(speci_path_join(path, sizeof path, c->path, name));
    for (size_t i = c->n_shard; i-- > 0;)
        if (strcmp(c->shards[i].path, path) == 0) {
            *out = c->shards[i].path;
            return SPEC_OK;
        }
    if (!speci_file_exists(path))
        return speci_fail(SPEC_E_IO, "%s: missing: %s says that it holds %s", path, index, tensor);
    SPEC_TRY(open_shard(c, path));
    *out = c->shards[c->n_shard - 1].path;
    return SPEC_OK;
}

/* The map is asked for the shards' names only. Which tensor it puts where does not matter: a tensor that is in none of
 * them, or that no family needs, is found out when it is asked for. */
static spec_status open_map(model_checkpoint *c, json_t *map, const char *index)
{
    const char *tensor, *path;
    json_t *value;
    if (!json_is_object(map)) return speci_fail(SPEC_E_FORMAT, "%s: weight_map is missing or not an object", index);
    json_object_foreach(map, tensor, value)
        SPEC_TRY(need_shard(c, &path, json_string_value(value), tensor, index));
    return sort_tensors(c);
}

static spec_status open_index(model_checkpoint *c, const char *index)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_read(&root, index, INDEX_MAX, c->a));
    const spec_status status = open_map(c, json_object_get(root, "weight_map"), index);
    json_decref(root);
    return status;
}

/* --- a GGUF file in parts: NAME-00001-of-00003.gguf --- */

static spec_status part_number(const speci_gguf *g, int64_t *no, int64_t *n)
{
    *no = 0, *n = 1;
    SPEC_TRY(speci_gguf_integer(g, "split.no", no));
    SPEC_TRY(speci_gguf_integer(g, "split.count", n));
    if (*n >= 1 && *n < 100000 && *no >= 0 && *no < *n) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: split.no is %" PRId64 " and split.count %" PRId64 ", expected a part of 1 to 99999", g->file, *no,
                      *n);
}

/* out [MODEL_MAX_PATH]: the name of part `no`, from 0, of n, of which `path` is one. */
static spec_status part_path(char *out, const char *path, int64_t no, int64_t n)
{
    char end[64];
    const size_t n_path = strlen(path), n_end = strlen("-00001-of-00001.gguf");
    snprintf(end, sizeof end, "-of-%05" PRId64 ".gguf", n);
    if (n_path >= MODEL_MAX_PATH || n_path < n_end || strcmp(path + n_path - strlen(end), end) != 0)
        return speci_fail(SPEC_E_FORMAT,
                          "%s: a file of %" PRId64 " parts: expected a name that ends in -00001%s, with the others beside it",
                          path, n, end);
    snprintf(out, MODEL_MAX_PATH, "%.*s-%05" PRId64 "%s", (int)(n_path - n_end), path, no + 1, end);
    return SPEC_OK;
}

static spec_status open_part(model_checkpoint *c, int64_t i, int64_t n)
{
    char path[MODEL_MAX_PATH];
    int64_t its_no, its_n;
    SPEC_TRY(part_path(path, c->path, i, n));
    if (!speci_file_exists(path))
        return speci_fail(SPEC_E_IO, "%s: missing: %s is the first of %" PRId64 " parts", path, c->path, n);
    SPEC_TRY(open_gguf(c, path));
    SPEC_TRY(part_number(&c->shards[c->n_shard - 1].gguf, &its_no, &its_n));
    if (its_no == i && its_n == n) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: says that it is part %" PRId64 " of %" PRId64 ", expected %" PRId64 " of %" PRId64, path,
                      its_no + 1, its_n, i + 1, n);
}

static spec_status open_parts(model_checkpoint *c)
{
    char first[MODEL_MAX_PATH];
    int64_t no, n, n_tensor = -1;
    c->is_gguf = true;
    SPEC_TRY(open_gguf(c, c->path));
    SPEC_TRY(part_number(&c->shards[0].gguf, &no, &n));
    SPEC_TRY(speci_gguf_integer(&c->shards[0].gguf, "split.tensors.count", &n_tensor));
    if (no > 0) {
        SPEC_TRY(part_path(first, c->path, 0, n));
        return speci_fail(SPEC_E_INVALID, "%s: part %" PRId64 " of %" PRId64 ": open the first, %s", c->path, no + 1, n, first);
    }
    for (int64_t i = 1; i < n; i++) SPEC_TRY(open_part(c, i, n));
    if (n_tensor >= 0 && (size_t)n_tensor != c->n_tensor)
        return speci_fail(SPEC_E_FORMAT, "%s: split.tensors.count is %" PRId64 ", but the %" PRId64 " parts have %zu tensors", c->path,
                          n_tensor, n, c->n_tensor);
    return sort_tensors(c);
}

/* --- open --- */

static spec_status open_files(model_checkpoint *c)
{
    char path[MODEL_MAX_PATH];
    if (!speci_is_directory(c->path)) return open_parts(c);
    if (speci_has_file(c->path, SINGLE)) { /* preferred to an index beside it, as transformers does */
        SPEC_TRY(speci_path_join(path, sizeof path, c->path, SINGLE));
        SPEC_TRY(open_shard(c, path));
        return sort_tensors(c);
    }
    if (!speci_has_file(c->path, INDEX)) return speci_directory_refuse(c->path, SINGLE " or " INDEX);
    SPEC_TRY(speci_path_join(path, sizeof path, c->path, INDEX));
    return open_index(c, path);
}

static spec_status new_checkpoint(model_checkpoint **out, const char *path, const spec_allocator *a)
{
    model_checkpoint *c = speci_alloc(a, 1, sizeof *c);
    *out = NULL;
    if (!c) return SPEC_E_NOMEM;
    c->a = a;
    c->path = speci_strdup(a, path);
    if (!c->path) {
        speci_checkpoint_close(c);
        return SPEC_E_NOMEM;
    }
    *out = c;
    return SPEC_OK;
}

static spec_status finish(model_checkpoint **out, model_checkpoint *c, spec_status status)
{
    if (status != SPEC_OK) speci_checkpoint_close(c);
    *out = status == SPEC_OK ? c : NULL;
    return status;
}

spec_status speci_checkpoint_open(model_checkpoint **out, const char *path, const spec_allocator *a)
{
    model_checkpoint *c = NULL;
    *out = NULL;
    SPEC_TRY(new_checkpoint(&c, path, a));
    return finish(out, c, open_files(c));
}

static spec_status read_memory(model_checkpoint *c, const uint8_t *data, size_t bytes)
{
    shard *s = NULL;
    SPEC_TRY(add_shard(c, &s, c->path));
    c->is_gguf = bytes >= 4 && memcmp(data, "GGUF", 4) == 0;
    if (c->is_gguf) {
        SPEC_TRY(speci_gguf_read(&s->gguf, &(speci_file){ data, bytes, -1 }, s->path, c->a));
        SPEC_TRY(speci_gguf_tensors(&c->tensors, &c->n_tensor, &s->gguf, data, bytes, c->a));
    } else {
        SPEC_TRY(speci_safetensors_read(&c->tensors, &c->n_tensor, &s->header, data, bytes, s->path, c->a));
    }
    return sort_tensors(c);
}

spec_status speci_checkpoint_open_memory(model_checkpoint **out, const uint8_t *data, size_t bytes, const char *file,
                                         const spec_allocator *a)
{
    model_checkpoint *c = NULL;
    *out = NULL;
    SPEC_TRY(new_checkpoint(&c, file, a));
    return finish(out, c, read_memory(c, data, bytes));
}

static spec_status add_tensors(model_checkpoint *c, const model_tensor *tensors, size_t n)
{
    speci_free(c->a, c->tensors);
    c->tensors = speci_alloc(c->a, n, sizeof *c->tensors);
    c->n_tensor = c->tensors ? n : 0;
    if (!c->tensors) return SPEC_E_NOMEM;
    if (n) memcpy(c->tensors, tensors, n * sizeof *tensors);
    for (size_t i = 0; i < n; i++) c->tensors[i].file = c->path;
    return sort_tensors(c);
}

spec_status speci_checkpoint_open_planned(model_checkpoint **out, const uint8_t *head, size_t bytes, const model_tensor *tensors, size_t n,
                                          const char *file, const spec_allocator *a)
{
    model_checkpoint *c = NULL;
    *out = NULL;
    SPEC_TRY(new_checkpoint(&c, file, a));
    spec_status status = read_memory(c, head, bytes);
    if (status == SPEC_OK) status = add_tensors(c, tensors, n);
    return finish(out, c, status);
}

void speci_checkpoint_close(model_checkpoint *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_shard; i++) {
        json_decref(c->shards[i].header);
        speci_gguf_close(&c->shards[i].gguf);
        if (c->shards[i].map.data) speci_file_unmap(&c->shards[i].map);
        speci_free(c->a, c->shards[i].path);
    }
    speci_free(c->a, c->shards);
    speci_free(c->a, c->tensors);
    speci_free(c->a, c->path);
    speci_free(c->a, c);
}
