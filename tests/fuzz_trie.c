/* fuzz_trie.c - a saved trie that somebody has changed: an error, or a drafter that works; nothing else.
 *
 * The input is edits of a good file, which is made here: one byte of flags (1: leave the checksum as it is, so that it catches them),
 * then 4 bytes an edit: place (little-endian, 3 bytes; its highest bit: cut the file off there) and the byte to put there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/draft/draft_trie.h"
#include "tests/support_directory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_ID = 60, SUM = 8 };

static struct { /* once for all inputs */
    char dir[SUPPORT_DIRECTORY], path[64];
    uint8_t *good, *edited;
    size_t n;
} all;

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_trie: %s: %s\n", what, spec_last_error());
    abort();
}

/* A drafter's text, as a session tells it. It drafts at every place. */
static void work(spec_drafter *d)
{
    int32_t ids[N_ID];
    spec_tree tree;
    const spec_model target = { .n_vocab = 9 };
    const speci_draft_site site = { .target = &target, .a = &speci_malloc, .n_seq = 1, .n_node = SPECI_MAX_NODE };
    speci_draft at_work = { .drafter = d, .kind = d->kind, .site = &site, .size = speci_draft_size_of(d) };
    if (d->kind->check(d, &target) != SPEC_OK) return;
    for (int32_t i = 0; i < N_ID; i++) ids[i] = i * i % 7;
    require(spec_tree_alloc(&tree, SPECI_MAX_NODE, NULL) == SPEC_OK, "a tree");
    require(d->kind->prepare(&at_work) == SPEC_OK && d->kind->attach(&at_work) == SPEC_OK, "a session");
    for (int32_t i = 5; i <= N_ID; i++) {
        speci_draft_seq q = { .ids = ids, .n_ids = i, .n_prompt = 5, .depth_max = SPEC_MAX_DEPTH, .tree = &tree };
        if (i == 5) require(d->kind->prefill(&at_work, &q) == SPEC_OK, "a prompt");
        else d->kind->committed(&at_work, &q, 1);
        tree.n = 0;
        (void)spec_tree_add(&tree, -1, ids[i - 1], 1);
        require(d->kind->enqueue(&at_work, NULL, &q, 1) == SPEC_OK, "a draft");
        require(spec_tree_check(&tree, SPECI_MAX_NODE, target.n_vocab) == SPEC_OK, "a tree that is none");
    }
    d->kind->detach(&at_work);
    spec_tree_free(&tree, NULL);
}

static spec_drafter *open_drafter(void)
{
    spec_drafter *d = NULL;
    require(spec_drafter_open(&d, "trie:8,4,1", NULL) == SPEC_OK, "a drafter");
    return d;
}

static void end(void)
{
    (void)support_directory_delete(all.dir);
    free(all.good);
    free(all.edited);
}

static void begin(void)
{
    require(support_directory_new(all.dir) != NULL, "a directory");
    (void)snprintf(all.path, sizeof all.path, "%s/past", all.dir);
    (void)atexit(end);
    spec_drafter *d = open_drafter();
    work(d);
    require(spec_drafter_save(d, all.path) == SPEC_OK, "save");
    spec_drafter_close(d);
    FILE *f = fopen(all.path, "rb");
    all.good = malloc(1 << 20), all.edited = malloc(1 << 20);
    require(f && all.good && all.edited, "the file");
    all.n = fread(all.good, 1, 1 << 20, f);
    (void)fclose(f);
}

static size_t edit(const uint8_t *data, size_t size, int forge)
{
    size_t n = all.n;
    speci_hash h = { 0 };
    memcpy(all.edited, all.good, all.n);
    for (; size >= 4; data += 4, size -= 4) {
        const size_t place = ((size_t)data[0] | (size_t)data[1] << 8 | (size_t)(data[2] & 0x7f) << 16) % all.n;
        if (data[2] & 0x80) n = place;
        else all.edited[place] = data[3];
    }
    if (!forge || n < SUM) return n;
    speci_hash_add(&h, all.edited, n - SUM);
    for (size_t i = 0; i < SUM; i++) all.edited[n - SUM + i] = (uint8_t)(speci_hash_value(&h) >> 8 * i);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!all.good) begin();
    const int forge = size > 0 && !(data[0] & 1);
    const size_t n = edit(data + (size > 0), size > 0 ? size - 1 : 0, forge);
    const int same = n == all.n && memcmp(all.edited, all.good, n) == 0;
    FILE *f = fopen(all.path, "wb");
    require(f && fwrite(all.edited, 1, n, f) == n && fclose(f) == 0, "the file");
    spec_drafter *d = open_drafter();
    const spec_status status = spec_drafter_load(d, all.path);
    require(status == SPEC_OK || !same, "the good file is refused");
    require(status != SPEC_OK || same || forge, "a changed file was taken");
    require(status == SPEC_OK || spec_last_error()[0] != 0, "a failure without a message");
    work(d);
    spec_drafter_close(d);
    return 0;
}
