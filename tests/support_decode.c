/* support_decode.c - see support_decode.h. */
#define _DEFAULT_SOURCE /* symlink */
#include "tests/support_decode.h"

#include "algorithms/draft/draft_model.h"
#include "algorithms/engine/engine.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- directories --- */

const char support_tokenizer8[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
    "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
    "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7},\"merges\":[]}}";

char *support_other_tokenizer8(void)
{
    json_t *j = json_loads(support_tokenizer8, 0, NULL), *model = json_object_get(j, "model");
    assert_non_null(model);
    json_object_set_new(model, "vocab", json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "b", 0, "a", 1, "f", 2, "bc", 3, "d", 4, "c",
                                                  5, "cd", 6, "g", 7));
    json_object_set_new(model, "merges", json_pack("[[s, s], [s, s]]", "b", "c", "c", "d"));
    char *text = json_dumps(j, 0);
    json_decref(j);
    return text;
}

static const variant_file *replaced(const variant_file *files, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    return NULL;
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    support_write(path, text, strlen(text));
}

void support_variant(char *dir, const char *base, const variant_file *files, size_t n)
{
    assert_non_null(support_directory_new(dir));
    DIR *d = opendir(base);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char from[1200], to[1200];
        struct stat st;
        snprintf(from, sizeof from, "%s/%s", base, e->d_name);
        snprintf(to, sizeof to, "%s/%s", dir, e->d_name);
        if (stat(from, &st) != 0 || !S_ISREG(st.st_mode) || replaced(files, n, e->d_name)) continue;
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
    for (size_t i = 0; i < n; i++)
        if (files[i].text) write_file(dir, files[i].name, files[i].text);
}

void support_variant_remove(const char *dir)
{
    assert_int_equal(support_directory_delete(dir), 0);
}

char *support_json_with(const char *base, const char *name, const char *changes)
{
    char path[700];
    const char *key;
    json_t *value, *j = NULL, *c = json_loads(changes, 0, NULL);
    assert_non_null(c);
    snprintf(path, sizeof path, "%s/%s", base, name);
    OK(speci_json_read(&j, path, 1u << 24, &speci_malloc));
    json_object_foreach(c, key, value) {
        if (json_is_null(value)) json_object_del(j, key);
        else json_object_set(j, key, value);
    }
    char *text = json_dumps(j, 0);
    assert_non_null(text);
    json_decref(c);
    json_decref(j);
    return text;
}

/* Rows are ids in the embedding and the head only. */
static bool has_ids(const model_tensor *t, int64_t rows)
{
    return t->n_dim == 2 && t->dim[0] == rows && (strstr(t->name, "embed") || strstr(t->name, "lm_head"));
}

static const char *type_name(spec_dtype t) { return t == SPEC_DTYPE_F32 ? "F32" : t == SPEC_DTYPE_F16 ? "F16" : "BF16"; }

void support_grow_rows(const char *dir, const char *base, int64_t rows, int64_t n)
{
    int32_t *from = malloc((size_t)n * sizeof *from);
    for (int64_t r = 0; r < n; r++) from[r] = (int32_t)(r < rows ? r : -1 - r % rows);
    support_take_rows(dir, base, rows, from, n);
    free(from);
}

void support_take_rows(const char *dir, const char *base, int64_t rows, const int32_t *from_row, int64_t n)
{
    char path[700];
    golden g;
    json_t *header = json_object();
    size_t end = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", base);
    support_golden_open(&g, path);
    for (size_t i = 0; i < g.n; i++) {
        const model_tensor *t = &g.tensors[i];
        const bool grows = has_ids(t, rows);
        const size_t bytes = grows ? t->bytes / (size_t)rows * (size_t)n : t->bytes;
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dim; d++) json_array_append_new(shape, json_integer(d == 0 && grows ? n : t->dim[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(t->dtype), "shape", shape,
                                      "data_offsets", (json_int_t)end, (json_int_t)(end + bytes)));
        end += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t n_text = strlen(text);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(&n_text, sizeof n_text, 1, f);
    fwrite(text, 1, n_text, f);
    for (size_t i = 0; i < g.n; i++) {
        const model_tensor *t = &g.tensors[i];
        const bool grows = has_ids(t, rows);
        const size_t row = grows ? t->bytes / (size_t)rows : t->bytes;
        const size_t sign = t->dtype == SPEC_DTYPE_F32 ? 3 : 1; /* the byte of each element that has the sign bit */
        for (int64_t r = 0; r < (grows ? n : 1); r++) {
            const bool flips = grows && from_row[r] < 0;
            const uint8_t *from = (const uint8_t *)t->data + (size_t)(!grows ? 0 : flips ? -1 - from_row[r] : from_row[r]) * row;
            for (size_t k = 0; k < row; k++) {
                const uint8_t flip = flips && k % (sign + 1) == sign ? 0x80 : 0;
                fputc(from[k] ^ flip, f);
            }
        }
    }
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(header);
    support_golden_close(&g);
}

/* --- sessions and results --- */

spec_session *support_open(spec_model *target, spec_model *small, int32_t n_draft, const spec_session_params *params,
                           spec_drafter **dr)
{
    spec_session *s = NULL;
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    p.n_draft = n_draft;
    *dr = NULL;
    if (small) OK(spec_drafter_from_model(dr, small, &p));
    OK(spec_session_open(&s, target, *dr, params));
    return s;
}

void support_same(const spec_result *a, const spec_result *b, const char *what)
{
    if (a->n_ids != b->n_ids || a->stop != b->stop)
        fail_msg("%s: %zu ids, stop %s; expected %zu, %s", what, a->n_ids, spec_stop_name(a->stop), b->n_ids,
                 spec_stop_name(b->stop));
    for (size_t i = 0; i < a->n_ids; i++)
        if (a->ids[i] != b->ids[i]) fail_msg("%s: id %zu is %d, expected %d", what, i, a->ids[i], b->ids[i]);
    if (a->n_text != b->n_text || memcmp(a->text ? a->text : "", b->text ? b->text : "", a->n_text) != 0)
        fail_msg("%s: text \"%s\", expected \"%s\"", what, a->text, b->text);
    if (!a->logprobs != !b->logprobs) fail_msg("%s: only one has log-probabilities", what);
    for (size_t i = 0; a->logprobs && i < a->n_ids; i++)
        if (memcmp(&a->logprobs[i], &b->logprobs[i], sizeof *a->logprobs) != 0)
            fail_msg("%s: log-probabilities of id %zu differ: %.9g, expected %.9g", what, i,
                     (double)a->logprobs[i].logprob, (double)b->logprobs[i].logprob);
}

void support_plain_ids(spec_model *m, const int32_t *ids, size_t n, const spec_sampling *sampling, int32_t n_predict,
                       int32_t *out)
{
    spec_session *s = NULL;
    spec_request p = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    p.n_predict = n_predict, p.ignore_eos = 1;
    if (sampling) p.sampling = *sampling;
    OK(spec_session_open(&s, m, NULL, NULL));
    OK(spec_generate_ids(s, &r, ids, n, &p));
    assert_int_equal(r.n_ids, n_predict);
    memcpy(out, r.ids, r.n_ids * sizeof *out);
    spec_result_free(&r);
    spec_session_close(s);
}

/* --- saved sequences --- */

int support_to_stream(void *user, const void *data, size_t n)
{
    support_stream *f = user;
    if (++f->n_write == f->fail_at) return 1;
    if (f->n + n > f->cap) {
        f->cap = 2 * (f->n + n);
        f->data = realloc(f->data, f->cap);
        assert_non_null(f->data);
    }
    memcpy(f->data + f->n, data, n);
    f->n += n;
    return 0;
}

int support_from_stream(void *user, void *data, size_t n)
{
    support_stream *f = user;
    if (n > f->n - f->at) return 1;
    memcpy(data, f->data + f->at, n);
    f->at += n;
    return 0;
}

/* --- inside of a session --- */

static const model_draft *model_of(const spec_session *s)
{
    if (s->drafters.n == 0 || s->drafters.draft[0].kind != &speci_draft_model) return NULL;
    return s->drafters.draft[0].state;
}

speci_exec *support_drafter_exec(const spec_session *s)
{
    const model_draft *m = model_of(s);
    return m ? m->exec : NULL;
}

bool support_drafter_outgrown(const spec_session *s, int32_t seq) { return model_of(s)->seqs[seq].outgrown; }
