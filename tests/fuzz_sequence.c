/* fuzz_sequence.c - a saved sequence that somebody has changed: an error or a sequence that can go on, nothing else.
 *
 * The input is edits of a good file, made here from the models of golden/law8-*: one byte of flags (1: leave the
 * checksums as they are, so that they catch it; 2: a session without drafter), then 4 bytes an edit: place
 * (little-endian, 3 bytes; its highest bit: cut the file off there) and the byte to put there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "support_sequence.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAP = 1 << 18, HEADER = 192 };

typedef struct bytes {
    uint8_t data[CAP];
    size_t n, at;
} bytes;

static struct { /* once for all inputs */
    spec_model *target, *small;
    bytes good, edited;
} all;

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_sequence: %s: %s\n", what, spec_last_error());
    abort();
}

static int take(void *user, const void *data, size_t n)
{
    bytes *b = user;
    require(n <= CAP - b->n, "the good file is too large");
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

static int give(void *user, void *data, size_t n)
{
    bytes *b = user;
    if (n > b->n - b->at) return 1;
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return 0;
}

static spec_session *open_session(spec_drafter *dr)
{
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    sp.n_ctx = 100, sp.n_seq = 2;
    require(spec_session_open(&s, all.target, dr, &sp) == SPEC_OK, "session");
    return s;
}

static void begin(void)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5 };
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    spec_drafter *dr = NULL;
    spec_step_result r;
    int32_t seq = 0;
    bp.n_threads = 1;
    require(spec_backend_open(&be, "cpu:portable", &bp) == SPEC_OK, "backend");
    require(spec_model_open(&all.target, be, SPEC_TEST_DIR "/golden/law8-target", NULL) == SPEC_OK, "target");
    require(spec_model_open(&all.small, be, SPEC_TEST_DIR "/golden/law8-drafter", NULL) == SPEC_OK, "drafter's model");
    require(spec_drafter_from_model(&dr, all.small, NULL) == SPEC_OK, "drafter");
    spec_session *s = open_session(dr);
    require(spec_sequence_add(s, &seq, ids, 5, NULL) == SPEC_OK, "add");
    for (int i = 0; i < 3; i++) require(step_into(s, &r, &seq, 1) == SPEC_OK, "step");
    require(spec_sequence_save(s, seq, take, &all.good) == SPEC_OK, "save");
    spec_session_close(s);
    spec_drafter_close(dr);
}

static void put_sum(uint8_t *at, const uint8_t *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n);
    const uint64_t sum = speci_hash_value(&h);
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(sum >> 8 * i);
}

static void edit(bytes *b, const uint8_t *data, size_t size, int forge)
{
    memcpy(b->data, all.good.data, all.good.n);
    b->n = all.good.n, b->at = 0;
    for (; size >= 4; data += 4, size -= 4) {
        const size_t place = ((size_t)data[0] | (size_t)data[1] << 8 | (size_t)(data[2] & 0x7f) << 16) % all.good.n;
        if (data[2] & 0x80) b->n = place;
        else b->data[place] = data[3];
    }
    if (!forge || b->n < HEADER + 8) return;
    put_sum(b->data + HEADER - 8, b->data, HEADER - 8);
    put_sum(b->data + b->n - 8, b->data, b->n - 8);
}

static void restore(spec_session *s, bytes *file, int checked)
{
    spec_step_result r;
    int32_t seq = -5;
    const int same = file->n == all.good.n && memcmp(file->data, all.good.data, all.good.n) == 0;
    const spec_status status = spec_sequence_restore(s, &seq, give, file);
    require((status == SPEC_OK) == (seq >= 0), "a sequence without success, or the reverse");
    require(status == SPEC_OK || !same, "the good file is refused");
    require(status == SPEC_OK || spec_last_error()[0] != 0, "a failure without a message");
    require(status != SPEC_OK || same || !checked, "a changed file was taken");
    if (status != SPEC_OK) return;
    for (int i = 0; i < 2; i++) (void)step_into(s, &r, &seq, 1); /* distributions may be without a number: an error */
    require(spec_sequence_remove(s, seq) == SPEC_OK, "remove");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    spec_drafter *dr = NULL;
    if (!all.target) begin();
    if (size < 1) return 0;
    edit(&all.edited, data + 1, size - 1, !(data[0] & 1));
    if (!(data[0] & 2)) require(spec_drafter_from_model(&dr, all.small, NULL) == SPEC_OK, "drafter");
    spec_session *const s = open_session(dr);
    restore(s, &all.edited, data[0] & 1);
    spec_session_close(s);
    spec_drafter_close(dr);
    return 0;
}
