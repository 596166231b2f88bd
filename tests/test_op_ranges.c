/* test_op_ranges.c - lists of ranges of device memory are zeroed and copied, all of them and nothing beside them. */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

enum { N_RANGE = 500, ROOM = 4 << 20, MARK = 0x5a };

typedef struct memory {
    test_device *d;
    void *on_device;
    char *want, *got;
} memory;

static memory memory_new(test_device *d)
{
    memory m = { .d = d, .want = malloc(ROOM), .got = malloc(ROOM) };
    assert_true(m.want && m.got);
    test_ok(d->ops->alloc(d->dev, &m.on_device, ROOM), "alloc");
    for (size_t i = 0; i < ROOM; i++) m.want[i] = (char)(MARK + i % 97);
    test_ok(d->ops->upload(d->io, m.on_device, m.want, ROOM), "upload");
    return m;
}

static void compare(const memory *m, const char *what, int32_t n)
{
    test_ok(m->d->ops->download(m->d->io, m->got, m->on_device, ROOM), "download");
    test_ok(m->d->ops->sync(m->d->io), "sync");
    for (size_t i = 0; i < ROOM; i++)
        if (m->got[i] != m->want[i])
            fail_msg("%s %s: %d ranges: byte %zu is %d, not %d", m->d->name, what, n, i, m->got[i], m->want[i]);
}

static void memory_free(memory *m)
{
    m->d->ops->free(m->d->dev, m->on_device, ROOM);
    free(m->got);
    free(m->want);
}

/* n ranges one behind the other, with a gap of 0 to 40 bytes behind each; sizes by turns of `sizes`. `whole`: all begin and
 * end at multiples of 16. Copies come from the memory's other half. */
static void check(test_device *d, int32_t n, const size_t *sizes, int32_t n_size, bool whole)
{
    spec_range range[N_RANGE];
    spec_range_copy copy[N_RANGE];
    memory zeroed = memory_new(d), copied = memory_new(d);
    const size_t unit = whole ? 16 : 1, half = ROOM / 2 + (whole ? 0 : 5);
    for (size_t i = 0, at = 0; i < (size_t)n; i++) {
        const size_t bytes = sizes[i % (size_t)n_size] * unit;
        assert_true(half + at + bytes <= ROOM);
        range[i] = (spec_range){ (char *)zeroed.on_device + at, bytes };
        copy[i] = (spec_range_copy){ (char *)copied.on_device + at, (char *)copied.on_device + half + at, bytes };
        memset(zeroed.want + at, 0, bytes);
        memcpy(copied.want + at, copied.want + half + at, bytes);
        at += bytes + i * 7 % 41 / unit * unit;
    }
    test_ok(d->ops->zero(d->io, range, n), "zero");
    test_ok(d->ops->copy(d->io, copy, n), "copy");
    compare(&zeroed, "zero", n);
    compare(&copied, "copy", n);
    memory_free(&copied);
    memory_free(&zeroed);
}

static void each(test_device *d)
{
    static const size_t mixed[] = { 1, 0, 15, 16, 17, 4095, 4096, 3, 14001, 64 };
    static const size_t large[] = { 60000, 1, 0, 4097 }; /* of 16 bytes */
    for (int32_t whole = 0; whole < 2; whole++) {
        check(d, 0, mixed, 1, whole);
        check(d, 1, mixed, 1, whole);
        check(d, 2, large, 1, whole);
        check(d, 7, mixed, N_ELEMENTS(mixed), whole);
    }
    check(d, 4, large, N_ELEMENTS(large), true);
    check(d, 150, mixed, N_ELEMENTS(mixed), false); /* as many copies as a launch of CUDA takes; */
    check(d, 151, mixed, N_ELEMENTS(mixed), false);
    check(d, 225, mixed, N_ELEMENTS(mixed), false); /* as many zeros */
    check(d, 226, mixed, N_ELEMENTS(mixed), false);
    check(d, N_RANGE, mixed, N_ELEMENTS(mixed), false);
}

static void test_ranges(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ranges) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
