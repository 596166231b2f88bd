/* test_gguf.c - the container: values of every type, hostile headers and tensors, which are refused in these words, files in parts,
 * memory that runs out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_directory.h"
#include "tests/support_gguf.h"
#include "tests/support_memory.h"
#include "tests/support_model.h"

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_K = 12, I32 = 26 };

/* b is used up: the file as a checkpoint, in an allocation of exactly its size, so that a sanitizer sees a read beyond. */
static spec_status read_bytes(model_checkpoint **c, gguf_bytes *b, const spec_allocator *a)
{
    uint8_t *exact = malloc(b->n ? b->n : 1);
    if (b->n) memcpy(exact, b->data, b->n);
    free(b->data);
    *b = (gguf_bytes){ .data = exact, .n = b->n };
    const spec_status status = speci_checkpoint_open_memory(c, exact, b->n, "hostile.gguf", a);
    assert_true((*c != NULL) == (status == SPEC_OK));
    return status;
}

static void expect(gguf_bytes *b, spec_status code, const char *part, const char *other, const char *what)
{
    model_checkpoint *c = NULL;
    const spec_status status = read_bytes(&c, b, &speci_malloc);
    if (status != code || (code && (!strstr(spec_last_error(), part) || !strstr(spec_last_error(), other))))
        fail_msg("%s: gave %s (%s), expected %s with \"%s\" and \"%s\"", what, spec_status_name(status), status ? spec_last_error() : "",
                 spec_status_name(code), part, other);
    speci_checkpoint_close(c);
    free(b->data);
    *b = (gguf_bytes){ 0 };
}

/* --- a good file --- */

/* Two pairs, a tensor of 8 values of F32 and one of two rows of a block of Q4_0. */
static gguf_bytes good(void)
{
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 2, 2);
    gguf_text(&b, "general.architecture", "llama");
    gguf_u32(&b, "llama.block_count", 7);
    gguf_tensor(&b, "b", 2, (const uint64_t[]){ 32, 2 }, Q4_0, 32);
    gguf_tensor(&b, "a", 1, (const uint64_t[]){ 8 }, F32, 0);
    gguf_pad(&b, 32);
    for (int i = 0; i < 32 + 36; i++) gguf_number(&b, (uint64_t)i, 1);
    return b;
}

static void a_good_file(void **state)
{
    (void)state;
    model_checkpoint *c = NULL;
    gguf_bytes b = good();
    OK(read_bytes(&c, &b, &speci_malloc));
    const model_tensor *t = speci_checkpoint_find(c, "b");
    assert_non_null(t);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 2); /* turned round: rows first */
    assert_int_equal(t->dim[1], 32);
    assert_int_equal(t->bytes, 36);
    assert_string_equal(t->dtype_name, "Q4_0");
    assert_ptr_equal(t->data, b.data + b.n - 36);
    assert_int_equal(t->dtype, SPEC_DTYPE_AUTO);
    assert_non_null(t->blocks);
    t = speci_checkpoint_find(c, "a");
    assert_int_equal(t->dtype, SPEC_DTYPE_F32);
    assert_null(t->blocks);
    assert_int_equal(t->data[5], 5);
    int64_t n = 0;
    OK(speci_gguf_integer(speci_checkpoint_gguf(c), "llama.block_count", &n));
    assert_int_equal(n, 7);
    speci_checkpoint_close(c);
    free(b.data);
}

/* Every prefix is refused, and read within its bounds. */
static void truncated(void **state)
{
    (void)state;
    gguf_bytes whole = good();
    for (size_t n = 0; n < whole.n; n++) {
        gguf_bytes b = { 0 };
        model_checkpoint *c = NULL;
        gguf_put(&b, whole.data, n);
        if (read_bytes(&c, &b, &speci_malloc) != SPEC_E_FORMAT) fail_msg("%zu of %zu bytes: %s", n, whole.n, spec_last_error());
        free(b.data);
    }
    free(whole.data);
}

/* Every bit of the header turned: an error or a file, never a read beyond. */
static void flipped(void **state)
{
    (void)state;
    gguf_bytes whole = good();
    for (size_t bit = 0; bit < 8 * (whole.n - 68); bit++) {
        gguf_bytes b = { 0 };
        model_checkpoint *c = NULL;
        size_t n;
        unsigned sum = 0;
        gguf_put(&b, whole.data, whole.n);
        b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (read_bytes(&c, &b, &speci_malloc) == SPEC_OK) {
            const model_tensor *t = speci_checkpoint_tensors(c, &n);
            for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < t[i].bytes; k++) sum += t[i].data[k];
        }
        assert_true(sum < 100000);
        speci_checkpoint_close(c);
        free(b.data);
    }
    free(whole.data);
}

/* --- values --- */

static const struct {
    const char *key;
    speci_gguf_kind kind;
    uint64_t bits;
    size_t bytes;
    int64_t value;
} numbers[] = { { "u8", SPECI_GGUF_U8, 255, 1, 255 }, { "i8", SPECI_GGUF_I8, 255, 1, -1 }, { "u16", SPECI_GGUF_U16, 65535, 2, 65535 },
             { "i16", SPECI_GGUF_I16, 65535, 2, -1 }, { "u32", SPECI_GGUF_U32, 0xffffffffu, 4, 4294967295 },
             { "i32", SPECI_GGUF_I32, 0xfffffffeu, 4, -2 }, { "i64", SPECI_GGUF_I64, UINT64_MAX, 8, -1 },
             { "u64", SPECI_GGUF_U64, 1ull << 40, 8, 1ll << 40 }, { "u64max", SPECI_GGUF_U64, UINT64_MAX, 8, INT64_MAX } };
enum { N_NUMBER = sizeof numbers / sizeof *numbers };

static void write_values(gguf_bytes *b)
{
    gguf_head(b, 2, 0, N_NUMBER + 5);
    for (int i = 0; i < N_NUMBER; i++) {
        gguf_string(b, numbers[i].key, strlen(numbers[i].key));
        gguf_number(b, numbers[i].kind, 4);
        gguf_number(b, numbers[i].bits, numbers[i].bytes);
    }
    gguf_f32(b, "f32", 0.25f);
    gguf_f32(b, "nan", NAN);
    gguf_flag(b, "flag", true);
    gguf_array(b, "words", SPECI_GGUF_STRING, 2);
    gguf_string(b, "one", 3);
    gguf_string(b, "", 0);
    gguf_array(b, "numbers", SPECI_GGUF_U16, 3);
    for (int i = 0; i < 3; i++) gguf_number(b, (uint64_t)i + 300, 2);
}

static void check_numbers(const speci_gguf *g)
{
    for (int i = 0; i < N_NUMBER; i++) {
        int64_t x = 0;
        OK(speci_gguf_integer(g, numbers[i].key, &x));
        assert_true(x == numbers[i].value);
    }
    assert_true(speci_gguf_number_at(speci_gguf_find(g, "f32"), 0) == 0.25);
    bool flag = false;
    OK(speci_gguf_flag(g, "flag", &flag));
    assert_true(flag);
}

static void check_arrays(const speci_gguf *g)
{
    const speci_gguf_value *words = NULL, *three = NULL;
    OK(speci_gguf_array(g, "words", SPECI_GGUF_STRING, &words));
    OK(speci_gguf_array(g, "numbers", SPECI_GGUF_I32, &three));
    size_t at = 0, n;
    assert_memory_equal(speci_gguf_next(words, &at, &n), "one", 3);
    assert_int_equal(n, 3);
    speci_gguf_next(words, &at, &n);
    assert_int_equal(n, 0);
    assert_int_equal(speci_gguf_integer_at(three, 2), 302);
    json_t *list = speci_gguf_json(words), *nan = speci_gguf_json(speci_gguf_find(g, "nan"));
    double x;
    assert_string_equal(json_string_value(json_array_get(list, 0)), "one");
    assert_true(speci_json_number(nan, &x) && isnan(x));
    json_decref(list);
    json_decref(nan);
}

/* What is not there changes nothing; what is of another type is refused. */
static void check_others(const speci_gguf *g)
{
    const speci_gguf_value *words = NULL;
    bool flag = false;
    int64_t unchanged = 5;
    OK(speci_gguf_integer(g, "absent", &unchanged));
    assert_int_equal(unchanged, 5);
    FAILS(speci_gguf_integer(g, "f32", &unchanged), SPEC_E_FORMAT, "f32 is of type f32, expected an integer");
    FAILS(speci_gguf_integer(g, "numbers", &unchanged), SPEC_E_FORMAT, "numbers is an array of u16, expected an integer");
    FAILS(speci_gguf_flag(g, "u8", &flag), SPEC_E_FORMAT, "u8 is of type u8, expected a bool");
    FAILS(speci_gguf_array(g, "words", SPECI_GGUF_F32, &words), SPEC_E_FORMAT, "words is an array of string, expected an array of f32");
}

static void values(void **state)
{
    (void)state;
    gguf_bytes b = { 0 };
    model_checkpoint *c = NULL;
    write_values(&b);
    OK(read_bytes(&c, &b, &speci_malloc));
    const speci_gguf *g = speci_checkpoint_gguf(c);
    check_numbers(g);
    check_arrays(g);
    check_others(g);
    speci_checkpoint_close(c);
    free(b.data);
}

/* --- hostile headers --- */

static gguf_bytes with_pair(const void *pair, size_t n)
{
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 0, 1);
    gguf_put(&b, pair, n);
    gguf_pad(&b, 64);
    return b;
}

static void hostile_heads(void **state)
{
    (void)state;
    gguf_bytes b = { 0 };
    expect(&b, SPEC_E_FORMAT, "hostile.gguf", "", "an empty file");
    gguf_put(&b, "GGML\3\0\0\0", 8);
    expect(&b, SPEC_E_FORMAT, "safetensors", "", "another magic is the other format");
    static const struct {
        uint32_t version;
        const char *part;
    } versions[] = { { 0, "version 0" }, { 1, "version 1, expected 2 or 3" }, { 4, "version 4" }, { 3u << 24, "big-endian" } };
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        gguf_head(&b, versions[i].version, 0, 0);
        gguf_pad(&b, 64);
        expect(&b, SPEC_E_UNSUPPORTED, versions[i].part, "", "version");
    }
    gguf_head(&b, 3, UINT64_MAX, 0);
    expect(&b, SPEC_E_FORMAT, "number of tensors is 18446744073709551615", "more than a file of 24", "tensors without end");
    gguf_head(&b, 3, 0, UINT64_MAX / 3);
    gguf_pad(&b, 64);
    expect(&b, SPEC_E_FORMAT, "number of pairs is", "more than a file of 64", "pairs without end");
    gguf_head(&b, 3, 0, 0);
    expect(&b, SPEC_OK, "", "", "nothing in it");
}

#define PAIR(bytes) with_pair(bytes, sizeof bytes - 1)

static void hostile_pairs(void **state)
{
    (void)state;
    const struct {
        gguf_bytes b;
        spec_status code;
        const char *part, *other;
    } cases[] = {
        { PAIR("\0\0\0\0\0\0\0\0\4\0\0\0\7\0\0\0"), SPEC_E_FORMAT, "a key at byte 24 has 0 bytes", "expected 1 to 65535" },
        { PAIR("\0\0\1\0\0\0\0\0abc"), SPEC_E_FORMAT, "a key at byte 32 needs 65536 bytes", "cut short" },
        { PAIR("\2\0\0\0\0\0\0\0a\0\4\0\0\0\7\0\0\0"), SPEC_E_FORMAT, "a key at byte 24 has the byte 0x00", "printable" },
        { PAIR("\2\0\0\0\0\0\0\0a\x80\4\0\0\0\7\0\0\0"), SPEC_E_FORMAT, "the byte 0x80", "printable" },
        { PAIR("\1\0\0\0\0\0\0\0a\15\0\0\0\7\0\0\0"), SPEC_E_FORMAT, "a has values of type 13", "not known" },
        { PAIR("\1\0\0\0\0\0\0\0a\10\0\0\0\377\377\377\377\377\377\377\377x"), SPEC_E_FORMAT, "a at byte", "18446744073709551615 bytes" },
        { PAIR("\1\0\0\0\0\0\0\0a\7\0\0\0\2"), SPEC_E_FORMAT, "a is a bool of 2", "0 or 1" },
        { PAIR("\1\0\0\0\0\0\0\0a\11\0\0\0\6\0\0\0\377\377\377\377\377\377\377\77"), SPEC_E_FORMAT, "a at byte", "cut short" },
        { PAIR("\1\0\0\0\0\0\0\0a\11\0\0\0\10\0\0\0\377\377\377\377\0\0\0\0\1"), SPEC_E_FORMAT, "a at byte", "cut short" },
        { PAIR("\1\0\0\0\0\0\0\0a\11\0\0\0\11\0\0\0\1\0\0\0\0\0\0\0"), SPEC_E_UNSUPPORTED, "a is an array of arrays", "" },
        { PAIR("\1\0\0\0\0\0\0\0a\11\0\0\0\7\0\0\0\2\0\0\0\0\0\0\0\1\3"), SPEC_E_FORMAT, "a is a bool of 3", "" },
        { PAIR("\21\0\0\0\0\0\0\0general.alignment\4\0\0\0\0\0\0\0"), SPEC_E_FORMAT, "general.alignment is 0", "power of two" },
        { PAIR("\21\0\0\0\0\0\0\0general.alignment\4\0\0\0\60\0\0\0"), SPEC_E_FORMAT, "general.alignment is 48", "power of two" },
        { PAIR("\21\0\0\0\0\0\0\0general.alignment\4\0\0\0\4\0\0\0"), SPEC_E_FORMAT, "general.alignment is 4", "from 8" },
        { PAIR("\21\0\0\0\0\0\0\0general.alignment\10\0\0\0\1\0\0\0\0\0\0\0x"), SPEC_E_FORMAT, "general.alignment", "an integer" },
        { PAIR("\21\0\0\0\0\0\0\0general.alignment\4\0\0\0\100\0\0\0"), SPEC_OK, "", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_bytes b = cases[i].b;
        expect(&b, cases[i].code, cases[i].part, cases[i].other, cases[i].part);
    }
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 0, 2);
    gguf_u32(&b, "same", 1);
    gguf_u32(&b, "same", 1);
    expect(&b, SPEC_E_FORMAT, "the key same is there twice", "", "a duplicate key");
}

/* --- hostile tensors --- */

typedef struct one_tensor {
    const char *name;
    uint32_t n_dim;
    uint64_t dim[5];
    uint32_t type;
    uint64_t offset;
} one_tensor;

typedef struct tensor_case {
    one_tensor t[2]; /* the second may be missing */
    size_t n_data;
    spec_status code;
    const char *part, *other;
} tensor_case;

static const tensor_case tensor_cases[] = {
    { { { "a", 1, { 8 }, F32, 0 } }, 32, SPEC_OK, "", "" },
    { { { "a", 1, { 8 }, F32, 0 }, { "b", 1, { 1 }, F32, 64 } }, 68, SPEC_OK, "a gap is padding", "" },
    { { { "a", 1, { 8 }, F32, 0 } }, 31, SPEC_E_FORMAT, "tensor a: 32 bytes at 0", "has 31" },
    { { { "a", 1, { 8 }, F32, 32 } }, 32, SPEC_E_FORMAT, "tensor a: 32 bytes at 32", "has 32" },
    { { { "a", 1, { 8 }, F32, 1ull << 63 } }, 32, SPEC_E_FORMAT, "tensor a", "leave the file" },
    { { { "a", 1, { 8 }, F32, UINT64_MAX - 31 } }, 32, SPEC_E_FORMAT, "tensor a", "leave the file" },
    { { { "a", 1, { 8 }, F32, 8 } }, 64, SPEC_E_FORMAT, "tensor a: the offset 8", "multiple of the alignment, 32" },
    { { { "a", 1, { 16 }, F32, 0 }, { "b", 1, { 8 }, F32, 32 } }, 64, SPEC_E_FORMAT, "tensor b overlaps a", "" },
    { { { "a", 1, { 8 }, F32, 0 }, { "b", 1, { 8 }, F32, 0 } }, 64, SPEC_E_FORMAT, "overlaps", "" },
    { { { "a", 1, { 8 }, F32, 0 }, { "a", 1, { 8 }, F32, 32 } }, 64, SPEC_E_FORMAT, "tensor a is there twice", "" },
    { { { "a", 0, { 0 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a has 0 dimensions", "expected 1 to 4" },
    { { { "a", 5, { 1, 1, 1, 1, 1 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a has 5 dimensions", "expected 1 to 4" },
    { { { "a", 2, { 8, 0 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a: dimension 1 is 0", "" },
    { { { "a", 2, { 8, 1ull << 63 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a: dimension 1 is 9223372036854775808", "" },
    { { { "a", 3, { 1 << 30, 1 << 30, 1 << 30 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a", "overflows" },
    { { { "a", 2, { 1ull << 31, 1ull << 30 }, F32, 0 } }, 32, SPEC_E_FORMAT, "tensor a", "overflows" },
    { { { "a", 1, { 8 }, 4, 0 } }, 32, SPEC_E_UNSUPPORTED, "tensor a has the type 4", "newer" },
    { { { "a", 1, { 8 }, 999, 0 } }, 32, SPEC_E_UNSUPPORTED, "tensor a has the type 999", "newer" },
    { { { "a", 1, { 8 }, I32, 0 } }, 32, SPEC_OK, "a type that nobody asks for", "" },
    { { { "a", 1, { 48 }, Q4_0, 0 } }, 32, SPEC_E_FORMAT, "tensor a: Q4_0 has blocks of 32 values", "rows of 48" },
    { { { "a", 2, { 128, 2 }, Q4_K, 0 } }, 144, SPEC_E_FORMAT, "tensor a: Q4_K has blocks of 256 values", "rows of 128" },
    { { { "a", 2, { 256, 2 }, Q4_K, 0 } }, 287, SPEC_E_FORMAT, "tensor a: 288 bytes", "has 287" },
    { { { "a", 2, { 256, 2 }, Q4_K, 0 } }, 288, SPEC_OK, "", "" },
};

static gguf_bytes with_tensors(const one_tensor *t, size_t n_data)
{
    gguf_bytes b = { 0 };
    const uint64_t n = t[1].name ? 2 : 1;
    gguf_head(&b, 3, n, 0);
    for (uint64_t i = 0; i < n; i++) gguf_tensor(&b, t[i].name, t[i].n_dim, t[i].dim, t[i].type, t[i].offset);
    gguf_pad(&b, 32);
    while (n_data-- > 0) gguf_number(&b, 0, 1);
    return b;
}

static void hostile_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tensor_cases / sizeof *tensor_cases; i++) {
        const tensor_case *c = &tensor_cases[i];
        gguf_bytes b = with_tensors(c->t, c->n_data);
        expect(&b, c->code, c->part, c->other, c->part);
    }
}

/* --- files in parts --- */

static const char *const dir = support_directory;

static void write_file(const char *name, gguf_bytes b)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    gguf_write(&b, path);
}

static void write_part(const char *name, uint32_t no, uint32_t n, uint32_t n_tensor, const char *tensor)
{
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 1, 3);
    gguf_u32(&b, "split.no", no);
    gguf_u32(&b, "split.count", n);
    gguf_u32(&b, "split.tensors.count", n_tensor);
    gguf_tensor(&b, tensor, 1, (const uint64_t[]){ 8 }, F32, 0);
    gguf_pad(&b, 32);
    for (int i = 0; i < 32; i++) gguf_number(&b, no, 1);
    write_file(name, b);
}

static void expect_open(const char *name, spec_status code, const char *part)
{
    char path[256];
    model_checkpoint *c = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (code) FAILS(speci_checkpoint_open(&c, path, &speci_malloc), code, part);
    else OK(speci_checkpoint_open(&c, path, &speci_malloc));
    speci_checkpoint_close(c);
}

#define PART(no) "m-0000" #no "-of-00003.gguf"

static void parts(void **state)
{
    (void)state;
    write_part(PART(1), 0, 3, 3, "a");
    write_part(PART(2), 1, 3, 3, "b");
    expect_open(PART(1), SPEC_E_IO, PART(3) ": missing");
    write_part(PART(3), 2, 3, 3, "c");
    expect_open(PART(1), SPEC_OK, NULL);
    expect_open(PART(2), SPEC_E_INVALID, "part 2 of 3: open the first, ");
    expect_open(PART(2), SPEC_E_INVALID, PART(1));
    write_part(PART(3), 2, 3, 3, "a");
    expect_open(PART(1), SPEC_E_FORMAT, "tensor a is in two files");
    write_part(PART(3), 1, 3, 3, "c");
    expect_open(PART(1), SPEC_E_FORMAT, "part 2 of 3, expected 3 of 3");
    write_part(PART(3), 2, 4, 3, "c");
    expect_open(PART(1), SPEC_E_FORMAT, "part 3 of 4, expected 3 of 3");
    write_part(PART(3), 2, 3, 3, "c");
    write_part(PART(1), 0, 3, 4, "a");
    expect_open(PART(1), SPEC_E_FORMAT, "split.tensors.count is 4, but the 3 parts have 3 tensors");
    write_part("single.gguf", 0, 3, 3, "a");
    expect_open("single.gguf", SPEC_E_FORMAT, "expected a name that ends in -00001-of-00003.gguf");
    write_part("single.gguf", 3, 3, 3, "a");
    expect_open("single.gguf", SPEC_E_FORMAT, "split.no is 3 and split.count 3");
    write_part("single.gguf", 0, 1, 1, "a");
    expect_open("single.gguf", SPEC_OK, NULL);
}

/* What a tensor has is read from its own part. */
static void values_of_parts(void **state)
{
    (void)state;
    char path[256];
    model_checkpoint *c = NULL;
    write_part(PART(1), 0, 3, 3, "a");
    write_part(PART(2), 1, 3, 3, "b");
    write_part(PART(3), 2, 3, 3, "c");
    snprintf(path, sizeof path, "%s/" PART(1), dir);
    OK(speci_checkpoint_open(&c, path, &speci_malloc));
    for (int i = 0; i < 3; i++) {
        model_tensor *t = speci_checkpoint_find(c, (const char *const[]){ "a", "b", "c" }[i]);
        OK(speci_checkpoint_load(c, t));
        assert_int_equal(t->data[31], i);
        speci_checkpoint_done(c, t);
    }
    speci_checkpoint_close(c);
}

/* A header longer than what is loaded at once. */
static void long_header(void **state)
{
    (void)state;
    enum { N = 300000 };
    gguf_bytes b = { 0 };
    gguf_head(&b, 3, 1, 2);
    gguf_array(&b, "words", SPECI_GGUF_STRING, N);
    for (int i = 0; i < N; i++) gguf_string(&b, "word", 4);
    gguf_u32(&b, "behind", 77);
    gguf_tensor(&b, "a", 1, (const uint64_t[]){ 8 }, F32, 0);
    gguf_pad(&b, 32);
    for (int i = 0; i < 32; i++) gguf_number(&b, 9, 1);
    write_file("long.gguf", b);
    char path[256];
    model_checkpoint *c = NULL;
    int64_t x = 0;
    snprintf(path, sizeof path, "%s/long.gguf", dir);
    OK(speci_checkpoint_open(&c, path, &speci_malloc));
    OK(speci_gguf_integer(speci_checkpoint_gguf(c), "behind", &x));
    assert_int_equal(x, 77);
    model_tensor *t = speci_checkpoint_find(c, "a");
    OK(speci_checkpoint_load(c, t));
    assert_int_equal(t->data[0], 9);
    speci_checkpoint_close(c);
}

/* --- memory that runs out --- */

static void no_memory(void **state)
{
    (void)state;
    support_memory f = { 0 };
    const spec_allocator a = support_allocator(&f);
    for (f.fail_at = 1;; f.fail_at++) {
        model_checkpoint *c = NULL;
        gguf_bytes b = good();
        f.n_call = 0;
        const spec_status status = read_bytes(&c, &b, &a);
        speci_checkpoint_close(c);
        free(b.data);
        assert_int_equal(f.n_block, 0);
        if (status == SPEC_OK) break;
        assert_int_equal(status, SPEC_E_NOMEM);
    }
    assert_true(f.fail_at > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file), cmocka_unit_test(truncated), cmocka_unit_test(flipped), cmocka_unit_test(values),
        cmocka_unit_test(hostile_heads), cmocka_unit_test(hostile_pairs), cmocka_unit_test(hostile_tensors),
        cmocka_unit_test_setup_teardown(parts, support_directory_make, support_directory_remove),
        cmocka_unit_test_setup_teardown(values_of_parts, support_directory_make, support_directory_remove),
        cmocka_unit_test_setup_teardown(long_header, support_directory_make, support_directory_remove), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
