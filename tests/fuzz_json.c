/* fuzz_json.c - JSON as model files have it: any bytes either parse or fail with a message, and what was parsed and
 * written parses again to the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_json: %s\n", what);
    abort();
}

static void visit(const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    double number;
    if (speci_json_number(value, &number)) require(json_is_number(value) || json_is_object(value), "not a number");
    json_array_foreach((json_t *)(uintptr_t)value, i, item) visit(item);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) visit(item);
}

/* Do all keys stand for themselves? */
static bool plain_keys(const json_t *value)
{
    speci_buf work = { .a = NULL };
    bool plain = true;
    const char *key, *string;
    json_t *item;
    size_t i, n;
    json_array_foreach((json_t *)(uintptr_t)value, i, item) plain = plain_keys(item) && plain;
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
        require(speci_json_key(key, &string, &n, &work) == SPEC_OK && n <= strlen(key), "a key without a string");
        plain = string == key && plain_keys(item) && plain;
    }
    speci_buf_free(&work);
    return plain;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *value, *again;
    if (speci_json_parse(&value, (const char *)data, n, "input") != SPEC_OK) {
        require(value == NULL && spec_last_error()[0] != 0, "a failure without a message");
        return 0;
    }
    visit(value);
    char *text = json_dumps(value, JSON_COMPACT);
    require(text != NULL, "cannot be written");
    require(speci_json_parse(&again, text, strlen(text), "output") == SPEC_OK, "does not parse again");
    require(!plain_keys(value) || json_equal(value, again), "is not the same again");
    free(text);
    json_decref(again);
    json_decref(value);
    return 0;
}
