/* test_files.c - files that the library writes: what is there is replaced when the new one is whole, and nothing is ever replaced
 * that is no file of that kind: a device, a pipe, a link, somebody's text. */
#define _XOPEN_SOURCE 700 /* symlink, mkfifo */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support_decode.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"

static const char *const dir = support_directory;

/* Four names at once. */
static const char *in_dir(const char *name)
{
    static char path[4][384];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const char *text) { support_write(in_dir(name), text, strlen(text)); }

static void expect_text(const char *name, const char *text)
{
    char got[64] = "";
    FILE *f = fopen(in_dir(name), "rb");
    assert_non_null(f);
    assert_true(fread(got, 1, sizeof got - 1, f) <= sizeof got - 1);
    fclose(f);
    assert_string_equal(got, text);
}

static mode_t mode_of(const char *name)
{
    struct stat s;
    assert_int_equal(lstat(in_dir(name), &s), 0);
    return s.st_mode;
}

/* Writes "NEW of this" into files that begin with "NEW"; with an error in between if it is to fail. */
static spec_status write_new(const char *name, spec_status in_between)
{
    static const char text[] = "NEW of this";
    speci_writer w;
    SPEC_TRY(speci_writer_open(&w, in_dir(name), "NEW", &speci_malloc));
    const spec_status status = speci_writer_put(&w, text, strlen(text));
    return speci_writer_close(&w, status == SPEC_OK ? in_between : status);
}

static void replaces_its_own_kind(void **state)
{
    (void)state;
    OK(write_new("a", SPEC_OK));
    expect_text("a", "NEW of this");
    put("a", "NEW, but older, and longer than the next one");
    assert_int_equal(write_new("a", SPEC_E_ABORTED), SPEC_E_ABORTED);
    expect_text("a", "NEW, but older, and longer than the next one");
    assert_int_equal(chmod(in_dir("a"), 0600), 0);
    OK(write_new("a", SPEC_OK));
    expect_text("a", "NEW of this");
    assert_int_equal(mode_of("a") & 0777, 0600); /* what was private stays so */
    put("b", "");
    OK(write_new("b", SPEC_OK)); /* mktemp makes such files */
    expect_text("b", "NEW of this");
    assert_int_equal(write_new("c", SPEC_E_ABORTED), SPEC_E_ABORTED);
    assert_int_equal(access(in_dir("c"), F_OK), -1);
    assert_false(speci_dir_has_ending(dir, ".part"));
}

/* What a writer that was killed has left is removed by the next one of that file; what another writer is at work on is not. */
static void what_was_left(void **state)
{
    (void)state;
    speci_writer one, other;
    put("a.123456.7.part", "NEW"), put("b.1.1.part", "of another");
    put("a.part", "a download"), put("a.2.part", "of a book"), put("a.text.1.part", "of a text");
    OK(speci_writer_open(&one, in_dir("a"), "NEW", &speci_malloc));
    char *first = strdup(one.partial);
    OK(speci_writer_open(&other, in_dir("a"), "NEW", &speci_malloc));
    assert_string_not_equal(first, other.partial);
    assert_int_equal(access(first, F_OK), 0);
    OK(speci_writer_put(&one, "NEW one", 7));
    OK(speci_writer_put(&other, "NEW other", 9));
    OK(speci_writer_close(&one, SPEC_OK));
    expect_text("a", "NEW one");
    OK(speci_writer_close(&other, SPEC_OK));
    expect_text("a", "NEW other");
    assert_int_equal(access(in_dir("a.123456.7.part"), F_OK), -1);
    expect_text("b.1.1.part", "of another");
    expect_text("a.part", "a download");
    expect_text("a.2.part", "of a book");
    expect_text("a.text.1.part", "of a text");
    remove(in_dir("b.1.1.part")), remove(in_dir("a.part")), remove(in_dir("a.2.part")), remove(in_dir("a.text.1.part"));
    free(first);
}

/* No name at all is said in words, whoever reads or writes. */
static void empty_paths(void **state)
{
    (void)state;
    spec_tokenizer *t = NULL;
    spec_drafter *d = NULL;
    speci_file file;
    FAILS(speci_file_map(&file, ""), SPEC_E_INVALID, "a path is empty");
    FAILS(speci_writer_check("", "NEW"), SPEC_E_INVALID, "a path is empty");
#ifndef SPEC_NO_TOKENIZER
    FAILS(spec_tokenizer_open(&t, "", NULL), SPEC_E_INVALID, "a path is empty");
#endif
    OK(spec_drafter_open(&d, "trie", NULL));
    FAILS(spec_drafter_save(d, ""), SPEC_E_INVALID, "a path is empty");
    FAILS(spec_drafter_load(d, ""), SPEC_E_INVALID, "a path is empty");
    spec_drafter_close(d);
    (void)t;
}

static void keeps_other_files(void **state)
{
    (void)state;
    static const char *const texts[] = { "NE", "a text of the user's", "new", "\nNEW" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put("a", texts[i]);
        FAILS(write_new("a", SPEC_OK), SPEC_E_INVALID, "it is not replaced");
        FAILS(speci_writer_check(in_dir("a"), "NEW"), SPEC_E_INVALID, "begins with NEW");
        expect_text("a", texts[i]);
    }
    assert_int_equal(mkdir(in_dir("d"), 0700), 0);
    FAILS(write_new("d", SPEC_OK), SPEC_E_IO, "is a directory, expected a file");
    FAILS(write_new("none/a", SPEC_OK), SPEC_E_IO, "cannot be written: No such file");
    char name[251]; /* it may be written, and one with the numbers behind it may not */
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = 0;
    put(name, "NEW, older");
    FAILS(write_new(name, SPEC_OK), SPEC_E_IO, "cannot make a file beside it, to replace it: File name too long");
    if (geteuid() != 0) {
        OK(write_new("e", SPEC_OK));
        assert_int_equal(chmod(in_dir("e"), 0444), 0);
        FAILS(write_new("e", SPEC_OK), SPEC_E_IO, "cannot be written: Permission denied");
    }
    assert_false(speci_dir_has_ending(dir, ".part"));
}

static void links_stay(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("d"), 0700), 0);
    assert_int_equal(symlink("d/file", in_dir("link")), 0);
    OK(write_new("link", SPEC_OK)); /* to nothing, as yet */
    expect_text("d/file", "NEW of this");
    put("d/file", "NEW, older");
    OK(write_new("link", SPEC_OK));
    assert_true(S_ISLNK(mode_of("link")));
    assert_true(S_ISREG(mode_of("d/file")));
    expect_text("d/file", "NEW of this");
    assert_int_equal(symlink("none/file", in_dir("lost")), 0);
    FAILS(write_new("lost", SPEC_OK), SPEC_E_IO, "lost: cannot be written: No such file");
    assert_true(S_ISLNK(mode_of("lost")));
    assert_false(speci_dir_has_ending(dir, ".part"));
    assert_false(speci_dir_has_ending(in_dir("d"), ".part"));
}

static void pipes_are_written(void **state)
{
    (void)state;
    char got[32] = "";
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    const int reader = open(in_dir("pipe"), O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    OK(write_new("pipe", SPEC_OK));
    assert_int_equal(read(reader, got, sizeof got), 11);
    assert_string_equal(got, "NEW of this");
    close(reader);
    assert_true(S_ISFIFO(mode_of("pipe")));
}

/* The public calls that write: each says what begins its files. */
static void public_calls(void **state)
{
    (void)state;
    static const char text[] = "{ of another program";
    spec_drafter *trie;
    spec_corpus *corpus;
    spec_cost_profile costs = SPEC_STRUCT_INIT(spec_cost_profile);
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    p.n_vocab = 8;
    put("a", text);
    OK(spec_drafter_open(&trie, "trie", NULL));
    FAILS(spec_drafter_save(trie, in_dir("a")), SPEC_E_INVALID, "it is not replaced");
    FAILS(spec_corpus_open(&corpus, in_dir("a"), &p), SPEC_E_INVALID, "it is not replaced"); /* before hours of counting */
    expect_text("a", text);
    costs.target.n = 1, costs.target.n_node[0] = 1, costs.target.ms[0] = 1;
    put("b", "GGUF of another program");
    FAILS(spec_cost_save(&costs, in_dir("b")), SPEC_E_INVALID, "it is not replaced");
    expect_text("b", "GGUF of another program");
    put("b", "{\n  \"model_type\": \"llama\"\n}");
    FAILS(spec_cost_save(&costs, in_dir("b")), SPEC_E_INVALID, "it is not replaced");
    OK(spec_cost_save(&costs, in_dir("c")));
    OK(spec_cost_save(&costs, in_dir("c")));
    spec_drafter_close(trie);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, support_directory_make, support_directory_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(replaces_its_own_kind), IN_DIR(what_was_left), IN_DIR(empty_paths), IN_DIR(keeps_other_files),
        IN_DIR(links_stay), IN_DIR(pipes_are_written), IN_DIR(public_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
