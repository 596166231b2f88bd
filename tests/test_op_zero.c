/* test_op_zero.c - ranges of device memory are zeroed, all of them and nothing beside them. */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

enum { N_RANGE = 500, ROOM = 4 << 20, MARK = 0x5a };

/* n ranges one behind the other, with a gap of 0 to 40 bytes behind each; sizes by turns of `sizes`. `whole`: all begin and
 * end at multiples of 16. */
static void check(test_device *d, int32_t n, const size_t *sizes, int32_t n_size, bool whole)
{
    spec_range range[N_RANGE];
    char *want = malloc(ROOM), *got = malloc(ROOM);
    void *memory = NULL;
    size_t at = 0;
    assert_true(want && got);
    test_ok(d->ops->alloc(d->dev, &memory, ROOM), "alloc");
    memset(want, MARK, ROOM);
    test_ok(d->ops->upload(d->io, memory, want, ROOM), "upload");
    for (int32_t i = 0; i < n; i++) {
        const size_t unit = whole ? 16 : 1, bytes = sizes[i % n_size] * unit;
        range[i] = (spec_range){ (char *)memory + at, bytes };
        assert_true(at + bytes <= ROOM);
        memset(want + at, 0, bytes);
        at += bytes + (size_t)(i * 7 % 41) / unit * unit;
    }
    test_ok(d->ops->zero(d->io, range, n), "zero");
    test_ok(d->ops->download(d->io, got, memory, ROOM), "download");
    test_ok(d->ops->sync(d->io), "sync");
    for (size_t i = 0; i < ROOM; i++)
        if (got[i] != want[i])
            fail_msg("%s: %d ranges: byte %zu is %d, not %d", d->name, n, i, got[i], want[i]);
    d->ops->free(d->dev, memory, ROOM);
    free(got);
    free(want);
}

static void each(test_device *d)
{
    static const size_t mixed[] = { 1, 0, 15, 16, 17, 4095, 4096, 3, 20001, 64 };
    static const size_t large[] = { 100000, 1, 0, 4097 }; /* of 16 bytes */
    for (int32_t whole = 0; whole < 2; whole++) {
        check(d, 0, mixed, 1, whole);
        check(d, 1, mixed, 1, whole);
        check(d, 2, large, 1, whole);
        check(d, 7, mixed, N_ELEMENTS(mixed), whole);
    }
    check(d, 4, large, N_ELEMENTS(large), true);
    check(d, 224, mixed, N_ELEMENTS(mixed), false);
    check(d, 225, mixed, N_ELEMENTS(mixed), false);
    check(d, N_RANGE, mixed, N_ELEMENTS(mixed), false);
}

static void test_zero(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_zero) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
