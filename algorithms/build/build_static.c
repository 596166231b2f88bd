/* build_static.c - fixed shapes: those of STree (Fig. 3; algorithms.md 4.3 says how far they are known), EAGLE's
 * 25 drafts, or a file's. A shape is the parents of nodes 1, 2, ...; siblings stand in order of rank. */
#include "algorithms/build/build.h"

#include <string.h>

static const uint8_t shape_a[] = { 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 7 };
static const uint8_t shape_b[] = { 0, 0, 0, 0, 1, 1, 2, 2, 3, 3,  4,  4,  5,  5,
                                   6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12 };
static const uint8_t shape_c[] = { 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9 };
static const uint8_t shape_d[] = { 0, 0, 0, 0, 1, 1, 2, 5, 5, 6, 8, 8 };
static const uint8_t shape_e[] = { 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10, 10, 10 };
static const uint8_t shape_eagle[] = { 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 5, 6, 6, 7, 7, 8, 13, 13, 13, 21, 21 };

static const struct {
    const char *name;
    const uint8_t *parent;
    int32_t n;
} shapes[] = {
    { "A", shape_a, sizeof shape_a }, { "B", shape_b, sizeof shape_b }, { "C", shape_c, sizeof shape_c },
    { "D", shape_d, sizeof shape_d }, { "E", shape_e, sizeof shape_e }, { "eagle", shape_eagle, sizeof shape_eagle },
};

/* One line [text, end): a number, or nothing (-1) but a comment; -2 for anything else. */
static int32_t parse_line(const char *text, const char *end)
{
    const char *hash = memchr(text, '#', (size_t)(end - text));
    if (hash) end = hash;
    while (text < end && (*text == ' ' || *text == '\t')) text++;
    while (text < end && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) end--;
    if (text == end) return -1;
    int32_t value = 0;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9' || value > SPECI_MAX_NODE) return -2;
        value = 10 * value + (*text - '0');
    }
    return value;
}

/* The shape of a file: line by line the parent of node 1, 2, ...; 0 is the root, which has no line of its own. */
static spec_status parse_file(const char *path, const char *text, size_t size, int32_t *parent, int32_t *n)
{
    const char *end = text + size;
    *n = 1;
    for (int32_t line = 1; text < end; line++) {
        const char *eol = memchr(text, '\n', (size_t)(end - text));
        if (!eol) eol = end;
        const int32_t value = parse_line(text, eol);
        text = eol < end ? eol + 1 : end;
        if (value == -1) continue;
        if (*n == SPECI_MAX_NODE)
            return speci_fail(SPEC_E_FORMAT, "%s:%d: a tree of more than %d nodes", path, line, SPECI_MAX_NODE);
        if (value < 0 || value >= *n)
            return speci_fail(SPEC_E_FORMAT,
                              "%s:%d: expected the parent of node %d, a number from 0 to %d, and nothing else", path,
                              line, *n, *n - 1);
        parent[(*n)++] = value;
    }
    if (*n == 1) return speci_fail(SPEC_E_FORMAT, "%s: no node: expected lines with the parent of node 1, 2, ...", path);
    return SPEC_OK;
}

static spec_status read_shape(const spec_builder *b, const char *path, int32_t *parent, int32_t *n)
{
    enum { MOST_BYTES = 1 << 16 };
    char *text;
    size_t size;
    SPEC_TRY(speci_file_read(&text, &size, path, MOST_BYTES, b->allocator));
    const spec_status status = parse_file(path, text, size, parent, n);
    speci_free(b->allocator, text);
    return status;
}

static spec_status open(spec_builder *b, const char *args)
{
    int32_t parent[SPECI_MAX_NODE] = { -1 }, n = 0;
    if (args[0] == '@' && args[1] != 0) SPEC_TRY(read_shape(b, args + 1, parent, &n));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(args, shapes[i].name) != 0) continue;
        n = 1 + shapes[i].n;
        for (int32_t j = 1; j < n; j++) parent[j] = shapes[i].parent[j - 1];
    }
    if (n == 0) return speci_builder_refuse(b, args, NULL);
    b->info.kind = SPEC_TREE_SAMPLED;
    return speci_builder_static(b, args, parent, n);
}

const speci_builder_kind speci_build_static = { .name = "static", .args = "A|B|C|D|E|eagle|@FILE",
                                              .help = "a fixed shape; FILE: lines with the parent of node 1, 2, ...",
                                              .open = open };
