/* fuzz_tokenizer.c - a tokenizer file nobody vouches for, and a text.
 *
 * Input: the file; after a byte 0xFF, which JSON never has, may follow a text beside the built-in one.
 * Whatever opens must encode without trouble, and the stream must give what decoding gives. What a GGUF file would not say of it can be
 * told. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/text/text_gguf.h"
#include "spec_trees.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static spec_tokenizer_info info_of(const spec_tokenizer *t)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    (void)spec_tokenizer_get_info(t, &info);
    return info;
}

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_tokenizer: %s\n", what);
    abort();
}

static spec_status open_bytes(spec_tokenizer **t, const uint8_t *data, size_t n)
{
    char path[] = "/tmp/spec-fuzz-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    require(fd >= 0 && write(fd, data, n) == (ssize_t)n, "no temporary file");
    close(fd);
    spec_status status = spec_tokenizer_open(t, path, NULL);
    unlink(path);
    return status;
}

static void check_decode(const spec_tokenizer *t, const int32_t *id, size_t n_id, uint32_t flags)
{
    size_t need, part, at = 0, cap = info_of(t).piece_max + 16;
    spec_text_stream stream = { { 0 }, 0, 0 };
    (void)spec_tokenizer_decode(t, NULL, 0, &need, id, n_id, flags);
    char *text = malloc(need + 1), *streamed = malloc(need + cap + 16);
    require(text && streamed, "no memory");
    require(spec_tokenizer_decode(t, text, need, &part, id, n_id, flags) == SPEC_OK && part == need, "decode");
    for (size_t i = 0; i < n_id; i++) {
        require(spec_text_stream_push(&stream, streamed + at, cap, &part, t, id[i], flags) == SPEC_OK, "push");
        at += part;
        require(at <= need, "the stream is longer than the text");
    }
    require(spec_text_stream_end(&stream, streamed + at, 16, &part) == SPEC_OK, "end");
    require(at + part == need && memcmp(text, streamed, need) == 0, "the stream differs from the text");
    free(text);
    free(streamed);
}

static void ignore(void *user_data, const char *text) { (void)user_data, (void)text; }

static void exercise(const spec_tokenizer *t, const char *text, size_t n_text)
{
    for (uint32_t flags = 0; flags < 4; flags++) {
        size_t n;
        spec_status status = spec_tokenizer_encode(t, NULL, 0, &n, text, n_text, flags);
        if (status != SPEC_OK && status != SPEC_E_FULL) continue;
        int32_t *id = malloc((n + 2) * sizeof *id);
        require(id && spec_tokenizer_encode(t, id, n, &n, text, n_text, flags) == SPEC_OK, "encode");
        for (size_t i = 0; i < n; i++) require(id[i] >= 0 && id[i] < info_of(t).n_vocab, "id out of range");
        check_decode(t, id, n, flags & 1 ? SPEC_TOKEN_SKIP_SPECIAL : 0);
        free(id);
    }
    int32_t some[64]; /* any ids, in an order that no text gives */
    for (int32_t i = 0; i < 64; i++) some[i] = i * 37 % (info_of(t).n_vocab + 2);
    check_decode(t, some, 64, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = " Hello  w\xc3\xb6rld, don't! 123 <s>\xe2\x96\x81\xf0\x9f\x98\x80\n\t\n \xcc\x81"
                               "e\xcc\xa3\xcc\x81";
    const uint8_t *end = n ? memchr(data, 0xFF, n) : NULL;
    spec_tokenizer *t;
    if (open_bytes(&t, data, end && data[0] == '{' ? (size_t)(end - data) : n) != SPEC_OK) {
        require(t == NULL && spec_last_error()[0] != 0, "a failure without a message");
        return 0;
    }
    require(speci_tokenizer_tell_unsaid(t, ignore, NULL) == SPEC_OK, "what a GGUF file does not say");
    exercise(t, text, sizeof text - 1);
    if (end) exercise(t, (const char *)end + 1, n - (size_t)(end - data) - 1);
    spec_tokenizer_close(t);
    return 0;
}
