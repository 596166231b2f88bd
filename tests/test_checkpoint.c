/* test_checkpoint.c - hostile and unusual checkpoints: what is refused and in which words, what is accepted; loading
 * that is stopped or runs out of memory leaves nothing behind. */
#define _POSIX_C_SOURCE 200809L /* symlink */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support_directory.h"
#include "tests/support_file.h"
#include "tests/support_memory.h"
#include "tests/support_model.h"

/* --- messages --- */

static void expect_failure(spec_status status, spec_status code, const char *const *parts, const char *what)
{
    if (status != code)
        fail_msg("%s: gave %s (%s), expected %s", what, spec_status_name(status), status ? spec_last_error() : "",
                 spec_status_name(code));
    for (size_t i = 0; i < 4 && parts[i]; i++)
        if (!strstr(spec_last_error(), parts[i]))
            fail_msg("%s: the message is \"%s\", expected \"%s\" in it", what, spec_last_error(), parts[i]);
}

/* --- one file, in memory --- */

typedef struct file_case {
    const char *name, *header;
    size_t n_buffer;
    spec_status code;
    const char *parts[4];
} file_case;

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B(begin, end) "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"
#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const file_case file_cases[] = {
    { "base", "{" A "," B(8, 16) "}", 16, SPEC_OK, { 0 } },
    { "padding", "{" A "," B(8, 16) "}       ", 16, SPEC_OK, { 0 } },
    { "metadata", "{\"__metadata__\":{\"format\":\"pt\"}," A "}", 8, SPEC_OK, { 0 } },
    { "any_order", "{" B(8, 16) "," A "}", 16, SPEC_OK, { 0 } },
    { "empty_tensor", "{" A ",\"b\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[8,8]}}", 8, SPEC_OK, { 0 } },
    { "empty_tensor_first", "{\"b\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[0,0]}," A "}", 8, SPEC_OK, { 0 } },
    { "empty_tensor_there", "{" A ",\"b\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[0,0]}}", 8, SPEC_OK, { 0 } },
    { "scalar", ONE("\"I64\"", "[]", "[0,8]"), 8, SPEC_OK, { 0 } },
    { "no_tensors", "{}", 0, SPEC_OK, { 0 } },
    { "overlap", "{" A "," B(4, 12) "}", 12, SPEC_E_FORMAT, { "hostile", "tensor b", "overlaps a" } },
    { "same_place", "{" A "," B(0, 8) "}", 8, SPEC_E_FORMAT, { "hostile", "overlaps" } },
    { "gap", "{" A "," B(12, 20) "}", 20, SPEC_E_FORMAT, { "hostile", "gap of 4 bytes at 8", "tensor b" } },
    { "gap_at_start", ONE("\"F32\"", "[1]", "[4,8]"), 8, SPEC_E_FORMAT, { "gap of 4 bytes at 0" } },
    { "gap_at_end", "{" A "}", 12, SPEC_E_FORMAT, { "end at 8", "12 bytes" } },
    { "truncated_buffer", "{" A "," B(8, 16) "}", 12, SPEC_E_FORMAT, { "tensor b", "[8, 16]", "12 bytes" } },
    { "huge_end", ONE("\"F32\"", "[2]", "[0,922337203685477580]"), 8, SPEC_E_FORMAT, { "tensor a", "buffer of 8" } },
    { "beyond_64_bits", ONE("\"F32\"", "[2]", "[0,99999999999999999999]"), 8, SPEC_E_FORMAT, { "tensor a" } },
    { "backwards", ONE("\"F32\"", "[2]", "[8,0]"), 8, SPEC_E_FORMAT, { "tensor a", "[8, 0]" } },
    { "negative", ONE("\"F32\"", "[2]", "[-8,0]"), 8, SPEC_E_FORMAT, { "tensor a", "[-8, 0]" } },
    { "offsets_missing", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, SPEC_E_FORMAT, { "tensor a", "data_offsets" } },
    { "offsets_three", ONE("\"F32\"", "[2]", "[0,4,8]"), 8, SPEC_E_FORMAT, { "tensor a", "[begin, end]" } },
    { "offsets_text", ONE("\"F32\"", "[2]", "[\"0\",8]"), 8, SPEC_E_FORMAT, { "tensor a", "data_offsets" } },
    { "size_differs", ONE("\"F32\"", "[3]", "[0,8]"), 8, SPEC_E_FORMAT,
      { "tensor a", "F32 [3] takes 12 bytes", "hold 8" } },
    { "type_differs", ONE("\"BF16\"", "[2]", "[0,8]"), 8, SPEC_E_FORMAT, { "BF16 [2] takes 4 bytes", "hold 8" } },
    { "dtype_new", ONE("\"F31\"", "[2]", "[0,8]"), 8, SPEC_OK, { 0 } }, /* of a size that nobody knows */
    { "dtype_new_leaves", ONE("\"F31\"", "[2]", "[0,9]"), 8, SPEC_E_FORMAT, { "tensor a", "leave the buffer" } },
    { "dtype_number", ONE("32", "[2]", "[0,8]"), 8, SPEC_E_FORMAT, { "tensor a", "dtype" } },
    { "product_overflow", ONE("\"F32\"", "[4294967296,4294967296,4294967296]", "[0,8]"), 8, SPEC_E_FORMAT,
      { "tensor a", "overflows", "4294967296" } },
    { "bytes_overflow", ONE("\"F32\"", "[922337203685477580,32]", "[0,8]"), 8, SPEC_E_FORMAT,
      { "tensor a", "overflows" } },
    { "zero_hides_overflow", ONE("\"F32\"", "[0,922337203685477580,99]", "[0,0]"), 0, SPEC_OK, { 0 } },
    { "dimension_negative", ONE("\"F32\"", "[-2]", "[0,8]"), 8, SPEC_E_FORMAT, { "tensor a", "dimension 0" } },
    { "dimension_real", ONE("\"F32\"", "[2.5]", "[0,8]"), 8, SPEC_E_FORMAT, { "tensor a", "dimension 0" } },
    { "five_dimensions", ONE("\"F32\"", "[1,1,1,1,2]", "[0,8]"), 8, SPEC_OK, { 0 } },
    { "nine_dimensions", ONE("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, SPEC_E_UNSUPPORTED,
      { "tensor a", "9 dimensions", "at most 8" } },
    { "float4", ONE("\"F4\"", "[16]", "[0,8]"), 8, SPEC_OK, { 0 } },
    { "float6", ONE("\"F6_E2M3\"", "[4]", "[0,3]"), 3, SPEC_OK, { 0 } },
    { "float6_other", ONE("\"F6_E3M2\"", "[2,2]", "[0,3]"), 3, SPEC_OK, { 0 } },
    { "float8_fnuz", ONE("\"F8_E4M3FNUZ\"", "[8]", "[0,8]"), 8, SPEC_OK, { 0 } },
    { "float8_fnuz_other", ONE("\"F8_E5M2FNUZ\"", "[8]", "[0,8]"), 8, SPEC_OK, { 0 } },
    { "float4_half_byte", ONE("\"F4\"", "[3]", "[0,2]"), 2, SPEC_E_FORMAT, { "tensor a", "F4 [3]", "inside a byte" } },
    { "float4_size", ONE("\"F4\"", "[4]", "[0,4]"), 4, SPEC_E_FORMAT, { "tensor a", "takes 2 bytes", "hold 4" } },
    { "shape_missing", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, SPEC_E_FORMAT, { "tensor a", "shape" } },
    { "not_an_entry", "{\"a\":7}", 8, SPEC_E_FORMAT, { "tensor a" } },
    { "duplicate", "{" A "," A "}", 8, SPEC_E_FORMAT, { "hostile", "a" } },
    { "array", "[" "]", 0, SPEC_E_FORMAT, { "not a JSON object" } },
    { "not_json", "{\"a\":", 0, SPEC_E_FORMAT, { "hostile" } },
    { "empty", "", 0, SPEC_E_FORMAT, { "hostile" } },
};

/* The bytes of a safetensors file; *n their number. */
static uint8_t *make_file(const char *header, size_t n_buffer, size_t *n)
{
    const size_t n_header = strlen(header);
    *n = 8 + n_header + n_buffer;
    uint8_t *data = calloc(*n, 1);
    for (int i = 0; i < 8; i++) data[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    memcpy(data + 8, header, n_header);
    return data;
}

/* data [n] in an allocation of exactly that size, so that a sanitizer sees a read beyond. */
static spec_status read_bytes(const uint8_t *data, size_t n)
{
    model_checkpoint *c = NULL;
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, data, n);
    const spec_status status = speci_checkpoint_open_memory(&c, exact, n, "hostile.safetensors", &speci_malloc);
    assert_true((c != NULL) == (status == SPEC_OK));
    speci_checkpoint_close(c);
    free(exact);
    return status;
}

static void hostile_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof file_cases / sizeof *file_cases; i++) {
        const file_case *c = &file_cases[i];
        size_t n;
        uint8_t *data = make_file(c->header, c->n_buffer, &n);
        expect_failure(read_bytes(data, n), c->code, c->parts, c->name);
        free(data);
    }
}

/* As the format has them: eight values of a type take as many bytes as one of them has bits. */
static void sizes_of_types(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
    } types[] = {
        { "F32", 32 }, { "BF16", 16 }, { "F16", 16 }, { "F64", 64 }, { "I64", 64 }, { "U64", 64 }, { "C64", 64 }, { "I32", 32 },
        { "U32", 32 }, { "I16", 16 },  { "U16", 16 }, { "I8", 8 },   { "U8", 8 },   { "BOOL", 8 }, { "F4", 4 },
        { "F8_E4M3", 8 }, { "F8_E5M2", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 },
        { "F6_E2M3", 6 }, { "F6_E3M2", 6 },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int more = 0; more < 2; more++) {
            char header[128];
            size_t n;
            const int bytes = types[i].bits + more;
            snprintf(header, sizeof header, ONE("\"%s\"", "[2,4]", "[0,%d]"), types[i].name, bytes);
            uint8_t *data = make_file(header, (size_t)bytes, &n);
            expect_failure(read_bytes(data, n), more ? SPEC_E_FORMAT : SPEC_OK, (const char *const[4]){ 0 }, types[i].name);
            free(data);
        }
}

/* Every prefix of a good file is refused, and read within its bounds. */
static void truncated_files(void **state)
{
    (void)state;
    size_t n;
    uint8_t *data = make_file("{" A "," B(8, 16) "}", 16, &n);
    for (size_t k = 0; k < n; k++) {
        const bool cut = k >= 8 && k < n - 16; /* inside the header */
        expect_failure(read_bytes(data, k), SPEC_E_FORMAT, (const char *const[4]){ cut ? "truncated" : "" }, "a prefix");
    }
    assert_int_equal(read_bytes(data, n), SPEC_OK);
    expect_failure(read_bytes(data, 5), SPEC_E_FORMAT, (const char *const[4]){ "5 bytes", "at least 8" }, "5 bytes");
    expect_failure(read_bytes(data, 40), SPEC_E_FORMAT, (const char *const[4]){ "truncated", "40" }, "40 bytes");
    data[7] = 0x7f; /* a header of 9 * 10^18 bytes */
    expect_failure(read_bytes(data, n), SPEC_E_FORMAT, (const char *const[4]){ "header of", "at most 100000000" },
                   "huge header");
    free(data);
}

static void tensors_by_name(void **state)
{
    (void)state;
    size_t n;
    uint8_t *data = make_file("{" B(8, 16) "," A "}", 16, &n);
    model_checkpoint *c = NULL;
    OK(speci_checkpoint_open_memory(&c, data, n, "memory", &speci_malloc));
    const model_tensor *b = speci_checkpoint_find(c, "b");
    assert_non_null(b);
    assert_null(speci_checkpoint_find(c, "c"));
    assert_ptr_equal(b->data, data + n - 8);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(b->dtype, SPEC_DTYPE_F32);
    assert_string_equal(b->dtype_name, "F32");
    assert_int_equal(b->n_dim, 1);
    assert_int_equal(b->dim[0], 2);
    speci_checkpoint_close(c);
    free(data);
}

/* --- directories --- */

static const char *const dir = support_directory;

static void put(const char *name, const void *data, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    support_write(path, data, n);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

static void put_tensors(const char *name, const char *header, size_t n_buffer)
{
    size_t n;
    uint8_t *data = make_file(header, n_buffer, &n);
    put(name, data, n);
    free(data);
}

static void expect_open(spec_status code, const char *p0, const char *p1, const char *p2, const char *what)
{
    model_checkpoint *c = NULL;
    expect_failure(speci_checkpoint_open(&c, dir, &speci_malloc), code, (const char *const[4]){ p0, p1, p2 }, what);
    assert_true((c != NULL) == (code == SPEC_OK));
    speci_checkpoint_close(c);
}

#define INDEX "model.safetensors.index.json"
#define SHARD1 "{" A "}"
#define SHARD2 "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

static void index_of(const char *a, const char *b)
{
    char text[512];
    snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":{\"a\":\"%s\",\"b\":\"%s\"}}", a, b);
    put_text(INDEX, text);
}

static void shards(void **state)
{
    (void)state;
    put_tensors("m1.safetensors", SHARD1, 8);
    put_tensors("m2.safetensors", SHARD2, 8);
    index_of("m1.safetensors", "m2.safetensors");
    expect_open(SPEC_OK, NULL, NULL, NULL, "two shards");
    index_of("m1.safetensors", "m3.safetensors");
    expect_open(SPEC_E_IO, "m3.safetensors", "missing", "b", "missing shard");
    /* What counts is that a tensor is found when a family asks for it, not what the index says of its place. */
    index_of("m1.safetensors", "m1.safetensors");
    expect_open(SPEC_OK, NULL, NULL, NULL, "an entry too many");
    index_of("m2.safetensors", "m1.safetensors");
    expect_open(SPEC_OK, NULL, NULL, NULL, "swapped");
    index_of("./m1.safetensors", "m2.safetensors");
    expect_open(SPEC_OK, NULL, NULL, NULL, "a dot and a slash before the name");
    put_tensors("m2.safetensors", "{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}", 8);
    index_of("m1.safetensors", "m2.safetensors");
    expect_open(SPEC_E_FORMAT, "tensor a is in two files", "m1", "m2", "duplicate over shards");
}

static void shard_names(void **state)
{
    (void)state;
    static const char *const names[] = { "../m1.safetensors",    "./../m1.safetensors", ".//m1.safetensors",
                                         "sub/m1.safetensors",   "/etc/m1.safetensors", "..",
                                         "..\\\\m1.safetensors", "a..safetensors" };
    put_tensors("m1.safetensors", SHARD1, 8);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        index_of("m1.safetensors", names[i]);
        expect_open(SPEC_E_FORMAT, "weight_map", "b", "beside the index", names[i]);
    }
    index_of("m1.safetensors", "m2.bin");
    expect_open(SPEC_E_UNSUPPORTED, "m2.bin", "expected a .safetensors file", "b", "another kind of file");
    index_of("m1.safetensors", ".safetensors");
    expect_open(SPEC_E_UNSUPPORTED, "\".safetensors\"", "expected a .safetensors file", "b", "a name that is an ending");
    put_text(INDEX, "{\"weight_map\":{\"a\":7}}");
    expect_open(SPEC_E_FORMAT, INDEX, "a has no file name", NULL, "number for a name");
    put_text(INDEX, "{\"weight_map\":[]}");
    expect_open(SPEC_E_FORMAT, INDEX, "weight_map", NULL, "list for a map");
    put_text(INDEX, "{\"weight_map\":{\"a\":\"m1.safetensors\",\"a\":\"m1.safetensors\"}}");
    expect_open(SPEC_E_FORMAT, INDEX, NULL, NULL, "duplicate key");
    put_text(INDEX, "{");
    expect_open(SPEC_E_FORMAT, INDEX, NULL, NULL, "not JSON");
}

/* Download caches keep a directory of links into a store of blobs. */
static void links_into_a_cache(void **state)
{
    (void)state;
    char blob[256], link[256];
    snprintf(blob, sizeof blob, "%s/blobs", dir);
    assert_int_equal(mkdir(blob, 0700), 0);
    put_tensors("blobs/0a1b", SHARD1, 8);
    put_tensors("blobs/2c3d", SHARD2, 8);
    snprintf(link, sizeof link, "%s/m1.safetensors", dir);
    assert_int_equal(symlink("blobs/0a1b", link), 0);
    snprintf(blob, sizeof blob, "%s/blobs/2c3d", dir);
    snprintf(link, sizeof link, "%s/m2.safetensors", dir);
    assert_int_equal(symlink(blob, link), 0);
    index_of("m1.safetensors", "m2.safetensors");
    expect_open(SPEC_OK, NULL, NULL, NULL, "links");
    assert_int_equal(unlink(blob), 0);
    expect_open(SPEC_E_IO, "m2.safetensors: a link to what is not there", NULL, NULL, "a link to nothing");
}

static uint64_t fingerprint_of(const char *header, const char *config, spec_dtype weights)
{
    model_checkpoint *c;
    uint64_t out = 0;
    size_t n;
    uint8_t *data = make_file(header, 16384, &n);
    json_t *root;
    OK(speci_json_parse(&root, config, strlen(config), "config"));
    data[n - 1] = 7;
    OK(speci_checkpoint_open_memory(&c, data, n, "memory", &speci_malloc));
    OK(speci_model_fingerprint(&out, root, c, weights));
    speci_checkpoint_close(c);
    json_decref(root);
    free(data);
    return out;
}

/* Models of the same bytes are told apart by what says something of them: names, types, shapes, the config, the weights that are made. */
static void fingerprints(void **state)
{
    (void)state;
#define TENSOR(name, type, shape) "{\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[0,16384]}}"
    static const struct {
        const char *header, *config;
        spec_dtype weights;
    } cases[] = {
        { TENSOR("a", "F32", "[64,64]"), "{\"x\":1}", SPEC_DTYPE_AUTO }, { TENSOR("b", "F32", "[64,64]"), "{\"x\":1}", SPEC_DTYPE_AUTO },
        { TENSOR("a", "F32", "[32,128]"), "{\"x\":1}", SPEC_DTYPE_AUTO }, { TENSOR("a", "F32", "[4096]"), "{\"x\":1}", SPEC_DTYPE_AUTO },
        { TENSOR("a", "BF16", "[64,128]"), "{\"x\":1}", SPEC_DTYPE_AUTO }, { TENSOR("a", "F16", "[64,128]"), "{\"x\":1}", SPEC_DTYPE_AUTO },
        { TENSOR("a", "F32", "[64,64]"), "{\"x\":2}", SPEC_DTYPE_AUTO }, { TENSOR("a", "F32", "[64,64]"), "{\"x\":1}", SPEC_DTYPE_Q8_0 },
    };
    enum { N = sizeof cases / sizeof *cases };
    uint64_t found[N];
    for (size_t i = 0; i < N; i++) {
        found[i] = fingerprint_of(cases[i].header, cases[i].config, cases[i].weights);
        assert_true(found[i] == fingerprint_of(cases[i].header, cases[i].config, cases[i].weights));
        for (size_t k = 0; k < i; k++)
            if (found[k] == found[i]) fail_msg("cases %zu and %zu have one fingerprint", k, i);
    }
}

static void other_formats(void **state)
{
    (void)state;
    static const struct {
        const char *name, *part, *next; /* each is told before those above it */
    } cases[] = {
        { "model-00001-of-00002.safetensors", "shards without their index", "expected model.safetensors" },
        { "m.pt", "pickle", "Hugging Face layout" },
        { "m.gguf", "GGUF", "give its path" },
        { "params.json", "Mistral's own format", "Hugging Face layout" },
        { "consolidated.00.pth", "Meta's own format", "convert_llama_weights_to_hf" },
        { "pytorch_model.bin", "pickle", "examples/convert_bin.py" },
        { "snapshots/", "the download cache's directory", "the one below snapshots/" },
        { "adapter_config.json", "a LoRA adapter", "merge it" },
    };
    expect_open(SPEC_E_IO, dir, "model.safetensors or " INDEX, "as transformers writes it", "an empty directory");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        const bool is_directory = cases[i].name[strlen(cases[i].name) - 1] == '/';
        if (is_directory) { /* a file of that name is none */
            put_text("snapshots", "{}");
            expect_open(SPEC_E_UNSUPPORTED, "is missing; found", cases[i - 1].part, cases[i - 1].next, cases[i - 1].name);
            snprintf(path, sizeof path, "%s/snapshots", dir);
            assert_int_equal(unlink(path), 0);
            assert_int_equal(mkdir(path, 0700), 0);
        } else {
            put_text(cases[i].name, "{}");
        }
        expect_open(SPEC_E_UNSUPPORTED, "is missing; found", cases[i].part, cases[i].next, cases[i].name);
    }
    put_tensors("model.safetensors", SHARD1, 8);
    expect_open(SPEC_OK, NULL, NULL, NULL, "safetensors beside pickle");
}

/* --- whole models --- */

static spec_backend *backend;

static int open_backend(void **state)
{
    (void)state;
    return spec_backend_open(&backend, "cpu:portable", NULL) == SPEC_OK ? 0 : -1;
}

static int close_backend(void **state)
{
    (void)state;
    spec_backend_close(backend);
    return 0;
}

static void expect_model(const char *path, spec_status code, const char *p0, const char *p1, const char *p2)
{
    spec_model *m = NULL;
    expect_failure(spec_model_open(&m, backend, path, NULL), code, (const char *const[4]){ p0, p1, p2 }, path);
    assert_null(m);
}

static void paths(void **state)
{
    (void)state;
    char path[256];
    expect_model("some-org/some-model", SPEC_E_IO, "no such directory",
                 "huggingface-cli download some-org/some-model --local-dir some-model", NULL);
    expect_model("/no/such/place", SPEC_E_IO, "/no/such/place: no such directory", NULL, NULL);
    assert_null(strstr(spec_last_error(), "download"));
    put_text("m.gguf", "GGUF");
    put_text("m.bin", "PK");
    put_text("m.safetensors", "");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    expect_model(path, SPEC_E_FORMAT, "m.gguf: the version at byte 4", "cut short", NULL);
    expect_model("/no/such/place.gguf", SPEC_E_IO, "no such file", NULL, NULL);
    snprintf(path, sizeof path, "%s/m.bin", dir);
    expect_model(path, SPEC_E_UNSUPPORTED, "m.bin", "examples/convert_bin.py", NULL);
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    expect_model(path, SPEC_E_INVALID, "m.safetensors: a file", "expected the directory", NULL);
    expect_model(dir, SPEC_E_UNSUPPORTED, "config.json is missing; found *.gguf", "GGUF", "give its path");
    spec_model *m = NULL;
    assert_int_equal(spec_model_open(&m, NULL, dir, NULL), SPEC_E_INVALID);
    assert_int_equal(spec_model_open(&m, backend, "", NULL), SPEC_E_INVALID);
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.dtype = SPEC_DTYPE_I32;
    assert_int_equal(spec_model_open(&m, backend, dir, &p), SPEC_E_INVALID);
    spec_model_close(NULL);
}

/* Whatever of its files is a link to nothing, a directory, not what a text should begin with, or a pipe in place of a file that is read
 * in parts (nobody waits for its writer): the model is refused by that name. So it is where it could do without the file, whose end
 * tokens would be missed. */
static void files_that_are_none(void **state)
{
    (void)state;
    static const char *const files[] = { "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
                                         "model.safetensors" };
    static const char bom[] = "\xEF\xBB\xBF{}", utf16[] = "\xFF\xFE{\0}\0";
    char from[512], to[512], what[64], gone[512];
    for (size_t k = 0; k < 5; k++)
        for (size_t i = k == 4 ? 3 : 0; i < sizeof files / sizeof *files - (k == 2 || k == 3); i++) {
#ifdef SPEC_NO_TOKENIZER
            if (strncmp(files[i], "tokenizer", 9) == 0) continue;
#endif
            for (size_t j = 0; j < sizeof files / sizeof *files; j++) {
                snprintf(from, sizeof from, SPEC_TEST_MODELS "/demo-drafter/%s", files[j]);
                snprintf(to, sizeof to, "%s/%s", dir, files[j]);
                (void)remove(to);
                assert_int_equal(symlink(from, to), 0);
            }
            snprintf(to, sizeof to, "%s/%s", dir, files[i]);
            assert_int_equal(unlink(to), 0);
            snprintf(gone, sizeof gone, "%s/gone", dir);
            if (k == 0) assert_int_equal(symlink(gone, to), 0);
            if (k == 1) assert_int_equal(mkdir(to, 0700), 0);
            if (k == 2) put(files[i], bom, sizeof bom - 1);
            if (k == 3) put(files[i], utf16, sizeof utf16 - 1);
            if (k == 4) assert_int_equal(mkfifo(to, 0600), 0);
            static const char *const parts[] = { "a link to what is not there", "is a directory, expected a file",
                                                 "begins with a byte order mark, expected UTF-8 without one", "is UTF-16, expected UTF-8",
                                                 "is a pipe or a device, expected a file" };
            snprintf(what, sizeof what, "%s: %s", files[i], parts[k]);
            expect_model(dir, k < 2 || k == 4 ? SPEC_E_IO : SPEC_E_FORMAT, what, NULL, NULL);
        }
    (void)remove(to);
    snprintf(to, sizeof to, "%s/config.json", dir);
    (void)remove(to);
    expect_model(dir, SPEC_E_IO, "config.json is missing: expected a directory", NULL, NULL);
    snprintf(to, sizeof to, "%s/link.gguf", dir);
    assert_int_equal(symlink(gone, to), 0);
    expect_model(to, SPEC_E_IO, "link.gguf: a link to what is not there", NULL, NULL);
}

static void what_a_model_says(void **state)
{
    (void)state;
    spec_model *m = support_model(backend, SPEC_TEST_DIR "/golden/bamba", SPEC_DTYPE_AUTO);
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 8));
    assert_string_equal(info.family, "bamba");
    assert_int_equal(info.dtype, SPEC_DTYPE_F32);
    assert_int_equal(info.n_vocab, 96);
    assert_int_equal(info.n_layer, 4);
    assert_int_equal(info.dim, m->dim);
    static const spec_mixer_count mixers[] = { { "attention", 2 }, { "mamba2", 2 }, { "mlp", 4 } };
    assert_int_equal(info.n_mixer, (int32_t)(sizeof mixers / sizeof *mixers));
    for (int32_t i = 0; i < info.n_mixer; i++) {
        assert_string_equal(info.mixers[i].name, mixers[i].name);
        assert_int_equal(info.mixers[i].n, mixers[i].n);
    }
    assert_int_equal(info.n_ctx, 256);
    assert_int_equal(info.n_eos, 1);
    assert_int_equal(info.eos[0], 0);
    assert_int_equal(info.bytes_kv_token, 2 * 2 * (2 * 8) * 4); /* layers, K and V, heads x head_dim, f32 */
    assert_true(info.bytes_state_seq > 0 && info.bytes_weights > info.n_parameters);
    assert_string_equal(info.unknown_keys, "");
    assert_null(spec_model_tokenizer(m));
    assert_ptr_equal(info.backend, backend);
    /* An older caller's struct is shorter: nothing is written behind it. */
    spec_model_info old = { .struct_size = offsetof(spec_model_info, n_vocab), .n_vocab = -7 };
    OK(spec_model_get_info(m, &old, 1));
    assert_string_equal(old.family, "bamba");
    assert_int_equal(old.n_vocab, -7);
    FAILS(spec_model_get_info(m, &info, 0), SPEC_E_INVALID, "n_node");
    spec_model_close(m);
}

/* --- failure in the middle --- */

/* Another program cuts the file short at one of the calls. */
typedef struct cut {
    char path[256];
    int n_call, cut_at;
} cut;

static int cut_short(void *user_data, double fraction)
{
    cut *c = user_data;
    (void)fraction;
    if (++c->n_call == c->cut_at) assert_int_equal(truncate(c->path, 4096), 0);
    return 0;
}

/* A download that begins again, a copy in place: an error at whatever moment, and never the end of the process. */
static void files_cut_short(void **state)
{
    (void)state;
    static const char *const names[] = { "config.json", "model.safetensors" };
    cut c = { .cut_at = 0 };
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.progress = cut_short;
    p.progress_user_data = &c;
    snprintf(c.path, sizeof c.path, "%s/model.safetensors", dir);
    for (int at = 0, n = 1; at < n; at++) {
        spec_model *m = NULL;
        char path[256];
        for (size_t i = 0; i < 2; i++) {
            char *data;
            size_t n_data;
            snprintf(path, sizeof path, SPEC_TEST_DIR "/golden/bamba/%s", names[i]);
            OK(speci_file_read(&data, &n_data, path, (size_t)64 << 20, &speci_malloc));
            put(names[i], data, n_data);
            speci_free(&speci_malloc, data);
        }
        c.n_call = 0, c.cut_at = at;
        const spec_status status = spec_model_open(&m, backend, dir, &p);
        if (at == 0) n = c.n_call - 1; /* after the last tensors nothing is read any more */
        if (at == 0) OK(status);
        else if (status != SPEC_OK) FAILS(status, SPEC_E_IO, "cut it short");
        else assert_true(at > n / 2); /* the tensors that came after lie before the cut */
        assert_true((m != NULL) == (status == SPEC_OK));
        spec_model_close(m);
    }
}

typedef struct watch {
    double last;
    int n_call, stop_at;
} watch;

static int on_progress(void *user_data, double fraction)
{
    watch *w = user_data;
    assert_true(fraction >= w->last && fraction <= 1.0);
    w->last = fraction;
    return ++w->n_call == w->stop_at;
}

static void progress_and_abort(void **state)
{
    (void)state;
    watch w = { 0 };
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    spec_model *m = NULL;
    p.progress = on_progress;
    p.progress_user_data = &w;
    OK(spec_model_open(&m, backend, SPEC_TEST_DIR "/golden/bamba", &p));
    spec_model_close(m);
    assert_true(w.last == 1.0);
    for (int n = w.n_call, i = 1; i <= n; i++) {
        w = (watch){ .stop_at = i };
        FAILS(spec_model_open(&m, backend, SPEC_TEST_DIR "/golden/bamba", &p), SPEC_E_ABORTED, "stopped");
        assert_null(m);
    }
}

/* The n-th allocation fails, for every n: each time the model is not there, and all memory is back. */
static void out_of_memory(void **state)
{
    const char *path = *state;
    support_memory f = { 0 };
    const spec_allocator a = support_allocator(&f);
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    p.allocator = &a;
    p.n_threads = 1;
    OK(spec_backend_open(&be, "cpu:portable", &p));
    const int64_t n_block = f.n_block;
    spec_status status = SPEC_E_NOMEM;
    for (long n = 1; status != SPEC_OK; n++) {
        spec_model *m = NULL;
        f.n_call = 0, f.fail_at = n;
        status = spec_model_open(&m, be, path, NULL);
        if (status != SPEC_OK && status != SPEC_E_NOMEM)
            fail_msg("%s, allocation %ld: %s", path, n, spec_last_error());
        assert_true((m != NULL) == (status == SPEC_OK));
        spec_model_close(m);
        if (f.n_block != n_block) fail_msg("%s, allocation %ld: %d blocks are lost", path, n, (int)(f.n_block - n_block));
        assert_true(n < 100000);
    }
    f.fail_at = 0;
    spec_backend_close(be);
    assert_int_equal(f.n_block, 0);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, support_directory_make, support_directory_remove)
#define NO_MEMORY(name) { "out_of_memory " name, out_of_memory, NULL, NULL, SPEC_TEST_DIR "/golden/" name }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(truncated_files),       cmocka_unit_test(sizes_of_types),
        cmocka_unit_test(tensors_by_name),
        cmocka_unit_test(fingerprints),
        IN_DIR(shards),
        IN_DIR(shard_names),
        IN_DIR(links_into_a_cache),
        IN_DIR(other_formats),
        IN_DIR(paths),
        IN_DIR(files_that_are_none),
        cmocka_unit_test(what_a_model_says),
        cmocka_unit_test(progress_and_abort),
        IN_DIR(files_cut_short),
        NO_MEMORY("bamba"),
        NO_MEMORY("gguf/bamba.gguf"),
        NO_MEMORY("gguf/phi3-long.gguf"),
        NO_MEMORY("gpt_neox"),
        NO_MEMORY("lfm2"),
        NO_MEMORY("mamba"),
        NO_MEMORY("mambainllama"),
        NO_MEMORY("qwen2"),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
