/* test_decode_api.c - what generating promises: speculative decoding says what plain decoding says, to the last token,
 * byte and bit, whatever ends it. The models that ship, on the backend under test. */
#include "tests/support_decode.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "tests/support_sequence.h"

static spec_backend *backend;
static spec_model *target, *small;

static const char *const prompts[] = { "Once upon a time", "The old ship", "In the garden", "x = ", "She said: \"" };
enum { N_PROMPT = sizeof prompts / sizeof *prompts };

/* --- running --- */

/* Which session: K 0 is plain. */
typedef struct setup {
    spec_model *target;
    int32_t k, n_ctx;
    spec_verify_rule rule;
} setup;

typedef struct open_setup {
    spec_session *s;
    spec_drafter *dr;
} open_setup;

static open_setup begin(const setup *u)
{
    open_setup o;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_ctx = u->n_ctx, p.verify = u->rule;
    o.s = support_open(u->target ? u->target : target, u->k ? small : NULL, u->k, &p, &o.dr);
    return o;
}

static void end(open_setup *o)
{
    spec_session_close(o->s);
    spec_drafter_close(o->dr);
}

static spec_request asked(int32_t n_predict)
{
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = n_predict;
    return p;
}

static spec_result generate(const setup *u, const char *prompt, const spec_request *p)
{
    spec_result r = SPEC_RESULT_INIT;
    open_setup o = begin(u);
    OK(spec_generate(o.s, &r, prompt, strlen(prompt), p));
    end(&o);
    return r;
}

static void check_statistics(const spec_result *r, int32_t k)
{
    assert_int_equal(r->n_emitted, r->n_accepted + r->n_step);
    assert_true(r->n_accepted <= r->n_drafted && r->n_drafted <= r->n_step * k);
    assert_true((int64_t)r->n_ids <= r->n_emitted);
    if (r->stop != SPEC_STOP_STRING) assert_int_equal(r->n_ids, r->n_emitted);
    if (k == 0) assert_int_equal(r->n_step, r->n_ids);
    assert_true(r->prefill_ms >= 0 && r->decode_ms > 0);
}

/* The same request plainly and with drafts of several lengths. */
static spec_result everywhere(const setup *base, const char *prompt, const spec_request *p, const char *what)
{
    static const int32_t ks[] = { 1, 4, 8 };
    setup u = *base;
    u.k = 0;
    const spec_result plain = generate(&u, prompt, p);
    check_statistics(&plain, 0);
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s, K %d, \"%s\"", what, ks[i], prompt);
        u.k = ks[i];
        spec_result r = generate(&u, prompt, p);
        support_same(&r, &plain, name);
        check_statistics(&r, ks[i]);
        spec_result_free(&r);
    }
    return plain;
}

/* --- length --- */

static void same_text(void **state)
{
    (void)state;
    const spec_request p = asked(96);
    for (int i = 0; i < N_PROMPT; i++) {
        spec_result r = everywhere(&(setup){ 0 }, prompts[i], &p, "same text");
        assert_true(r.stop == SPEC_STOP_EOS || (r.stop == SPEC_STOP_LENGTH && r.n_ids == 96));
        assert_int_equal(strlen(r.text), r.n_text);
        spec_result_free(&r);
    }
}

static void drafts_are_accepted_and_rejected(void **state)
{
    (void)state;
    int64_t accepted = 0, drafted = 0;
    for (int i = 0; i < N_PROMPT; i++) {
        const spec_request p = asked(96);
        spec_result r = generate(&(setup){ .k = 4 }, prompts[i], &p);
        accepted += r.n_accepted, drafted += r.n_drafted;
        spec_result_free(&r);
    }
    print_message("  %lld of %lld drafts accepted\n", (long long)accepted, (long long)drafted);
    assert_true(accepted > drafted / 10 && accepted < drafted - drafted / 10);
}

static void n_predict_is_exact(void **state)
{
    (void)state;
    spec_request p = asked(24);
    p.ignore_eos = 1;
    spec_result all = generate(&(setup){ 0 }, prompts[0], &p);
    open_setup o = begin(&(setup){ .k = 8 });
    for (int32_t n = 1; n <= 24; n++) {
        spec_result r = SPEC_RESULT_INIT;
        p.n_predict = n;
        OK(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p));
        assert_int_equal(r.stop, SPEC_STOP_LENGTH);
        assert_int_equal(r.n_ids, n);
        assert_memory_equal(r.ids, all.ids, (size_t)n * sizeof(int32_t));
        check_statistics(&r, 8);
        spec_result_free(&r);
    }
    end(&o);
    spec_result_free(&all);
}

/* --- context --- */

static int count_calls(void *n, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)n_text, (void)ids, (void)n_ids;
    ++*(int *)n;
    return 0;
}

static void long_prompts_are_refused(void **state)
{
    (void)state;
    int32_t ids[64];
    for (int i = 0; i < 64; i++) ids[i] = 100 + i;
    for (int32_t k = 0; k <= 4; k += 4) {
        open_setup o = begin(&(setup){ .n_ctx = 32, .k = k });
        spec_request p = asked(4);
        int n_called = 0;
        p.on_text = count_calls, p.text_user_data = &n_called;
        spec_result r = SPEC_RESULT_INIT;
        for (size_t n = 32; n <= 64; n += 16) {
            FAILS(spec_generate_ids(o.s, &r, ids, n, &p), SPEC_E_FULL, "tokens does not fit a context of 32");
            assert_int_equal(r.n_ids, 0);
            spec_result_free(&r);
        }
        assert_int_equal(n_called, 0);
        OK(spec_generate_ids(o.s, &r, ids, 31, &p));
        assert_int_equal(r.n_ids, 1);
        assert_int_equal(r.stop, SPEC_STOP_CONTEXT);
        spec_result_free(&r);
        FAILS(spec_generate_ids(o.s, &r, ids, 0, &p), SPEC_E_INVALID, "at least one token");
        spec_result_free(&r);
        ids[3] = 4096;
        FAILS(spec_generate_ids(o.s, &r, ids, 8, &p), SPEC_E_INVALID, "4096");
        spec_result_free(&r);
        ids[3] = -1;
        FAILS(spec_generate_ids(o.s, &r, ids, 8, &p), SPEC_E_INVALID, "-1");
        spec_result_free(&r);
        ids[3] = 103;
        end(&o);
    }
    spec_session *s; /* longer than what the model was trained on, which is a warning; and one with no room for a token */
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    sp.n_ctx = 4096;
    OK(spec_session_open(&s, target, NULL, &sp));
    spec_session_close(s);
    sp.n_ctx = 1;
    FAILS(spec_session_open(&s, target, NULL, &sp), SPEC_E_INVALID, "n_ctx is 1");
    assert_null(s);
}

/* Rows of all sequences, and pages of all contexts, are counted in 31 bits. */
static void sizes_beyond_counting(void **state)
{
    (void)state;
    static const struct {
        int32_t n_seq, n_ctx, n_node;
        const char *part;
    } cases[] = {
        { INT32_MAX, 0, 0, "more rows than" },
        { INT32_MAX / 2, 64, 256, "more rows than" },
        { 16777216, 64, 256, "more rows than" }, /* 2^32 rows: none, in 32 bits */
        { 128, 1 << 30, 0, "128 sequences of 1073741824 tokens are more than 68719476736: take a smaller n_ctx" },
        { 256, 1 << 30, 0, "256 sequences" }, /* 2^32 pages */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_session *s;
        spec_memory memory = SPEC_STRUCT_INIT(spec_memory);
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        p.n_seq = cases[i].n_seq, p.n_ctx = cases[i].n_ctx, p.n_node = cases[i].n_node;
        FAILS(spec_session_open(&s, target, NULL, &p), SPEC_E_UNSUPPORTED, cases[i].part);
        FAILS(spec_session_estimate(&memory, target, NULL, &p), SPEC_E_UNSUPPORTED, cases[i].part);
    }
}

static void *alloc_little(void *user_data, size_t bytes, size_t align)
{
    (void)user_data;
    return bytes > (size_t)1 << 30 ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void free_little(void *user_data, void *p, size_t bytes)
{
    (void)user_data, (void)bytes;
    free(p);
}

/* A context that nobody named. */
static void no_memory_for_the_models_context(void **state)
{
    (void)state;
    static const spec_allocator little = { alloc_little, free_little, NULL };
    char path[64];
    char *config = support_json_with(DEMO_TARGET, "config.json", "{\"max_position_embeddings\": 1073741824}");
    const variant_file changed = { "config.json", config };
    support_variant(path, DEMO_TARGET, &changed, 1);
    spec_backend *be;
    spec_model *m;
    spec_session *s;
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    bp.allocator = &little;
    OK(spec_backend_open(&be, "cpu:portable", &bp));
    OK(spec_model_open(&m, be, path, NULL));
    FAILS(spec_session_open(&s, m, NULL, NULL), SPEC_E_NOMEM, "n_ctx is not set, and the model's own is 1073741824 tokens");
    p.n_ctx = 64;
    OK(spec_session_open(&s, m, NULL, &p));
    spec_session_close(s);
    spec_model_close(m);
    spec_backend_close(be);
    support_variant_remove(path);
    free(config);
}

static void context_ends_alike(void **state)
{
    (void)state;
    enum { N_CTX = 40 };
    int32_t ids[N_CTX];
    for (int i = 0; i < N_CTX; i++) ids[i] = 200 + 7 * i;
    static const int32_t ks[] = { 1, 4, 8 };
    open_setup plain = begin(&(setup){ .n_ctx = N_CTX });
    for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
        open_setup o = begin(&(setup){ .n_ctx = N_CTX, .k = ks[j] });
        for (size_t n = 1; n < N_CTX; n += n < 28 ? 9 : 1) {
            spec_request p = asked(1000);
            spec_result a = SPEC_RESULT_INIT, b = SPEC_RESULT_INIT;
            p.ignore_eos = 1;
            OK(spec_generate_ids(plain.s, &a, ids, n, &p));
            OK(spec_generate_ids(o.s, &b, ids, n, &p));
            assert_int_equal(a.stop, SPEC_STOP_CONTEXT);
            assert_int_equal(a.n_ids, N_CTX - n);
            support_same(&b, &a, "end of context");
            spec_result_free(&a);
            spec_result_free(&b);
        }
        end(&o);
    }
    end(&plain);
}

/* A pure state-space model has no limit; one as a drafter goes on as long as the target does. */
static void no_limit_without_attention(void **state)
{
    (void)state;
    spec_request p = asked(2200);
    p.ignore_eos = 1;
    spec_result r = generate(&(setup){ .target = small }, prompts[0], &p);
    assert_int_equal(r.stop, SPEC_STOP_LENGTH);
    assert_int_equal(r.n_ids, 2200);
    spec_result s = generate(&(setup){ .target = small, .k = 3 }, prompts[0], &p);
    support_same(&s, &r, "2200 tokens");
    assert_int_equal(s.n_accepted, s.n_drafted); /* it drafts for itself */
    spec_result_free(&r);
    spec_result_free(&s);
}

/* --- stop strings --- */

typedef struct stream {
    char text[8192];
    int32_t ids[1024];
    size_t n_text, n_ids;
} stream;

static int collect(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    stream *s = user;
    assert_true(s->n_text + n_text <= sizeof s->text && s->n_ids + n_ids <= 1024);
    memcpy(s->text + s->n_text, text, n_text);
    memcpy(s->ids + s->n_ids, ids, n_ids * sizeof *ids);
    s->n_text += n_text, s->n_ids += n_ids;
    return 0;
}

static void expect_streamed(const stream *s, const spec_result *r)
{
    assert_int_equal(s->n_text, r->n_text);
    assert_memory_equal(s->text, r->text, r->n_text);
    assert_int_equal(s->n_ids, r->n_ids);
    assert_memory_equal(s->ids, r->ids, r->n_ids * sizeof(int32_t));
}

/* Where the earliest of the strings begins that is complete first; SIZE_MAX: nowhere. */
static size_t first_match(const char *text, size_t n, const char *const *stop, int32_t n_stop)
{
    for (size_t end = 1; end <= n; end++)
        for (size_t at = 0; at < end; at++)
            for (int32_t k = 0; k < n_stop; k++)
                if (strlen(stop[k]) == end - at && memcmp(text + at, stop[k], end - at) == 0) return at;
    return SIZE_MAX;
}

/* With these stop strings: text ends before the match; the ids are those that complete it. `all` is without any. */
static void check_stops(const spec_result *all, const char *prompt, const char *const *stop, int32_t n_stop)
{
    static const int32_t ks[] = { 0, 1, 4, 8 };
    const size_t at = first_match(all->text, all->n_text, stop, n_stop);
    spec_result plain = { 0 };
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        stream *s = calloc(1, sizeof *s);
        spec_request p = asked((int32_t)all->n_ids);
        p.stop = stop, p.n_stop = n_stop, p.on_text = collect, p.text_user_data = s;
        spec_result r = generate(&(setup){ .k = ks[i] }, prompt, &p);
        expect_streamed(s, &r);
        if (i == 0) plain = r;
        else support_same(&r, &plain, stop[0]);
        if (i > 0) spec_result_free(&r);
        free(s);
    }
    assert_int_equal(plain.stop, at == SIZE_MAX ? all->stop : SPEC_STOP_STRING);
    if (at == SIZE_MAX) assert_int_equal(plain.n_text, all->n_text);
    else assert_true(n_stop == 1 ? plain.n_text == at : plain.n_text <= at); /* several may be complete at once */
    assert_memory_equal(plain.text, all->text, plain.n_text);
    assert_memory_equal(plain.ids, all->ids, plain.n_ids * sizeof(int32_t));
    spec_result_free(&plain);
}

/* Substrings of what is said without, of all lengths and places: many begin or end inside a token or a path. */
static void stop_strings_end_the_text(void **state)
{
    (void)state;
    const spec_request p = asked(64);
    spec_result all = generate(&(setup){ 0 }, prompts[0], &p);
    assert_true(all.n_text > 80);
    static const size_t lengths[] = { 1, 2, 5, 11, 23 };
    for (size_t at = 3; at + 30 < all.n_text; at += 47)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            char stop[32] = "";
            memcpy(stop, all.text + at, lengths[k]);
            const char *const list[] = { stop };
            check_stops(&all, prompts[0], list, 1);
        }
    spec_result_free(&all);
}

static void several_stop_strings(void **state)
{
    (void)state;
    const spec_request p = asked(64);
    spec_result all = generate(&(setup){ 0 }, prompts[1], &p);
    char a[16] = "", b[16] = "", never[16] = "", tail[16] = "";
    assert_true(all.n_text > 80);
    memcpy(a, all.text + 60, 6);
    memcpy(b, all.text + 40, 9);
    memcpy(never, all.text + 20, 7), never[7] = '\x01';            /* begins in the text, is never complete */
    memcpy(tail, all.text + all.n_text - 5, 5), tail[5] = '\x01';  /* is withheld, then flushed */
    const char *const both[] = { a, b }, *const nothing[] = { never, tail, "\x02" }, *const one[] = { never, a, "", tail };
    check_stops(&all, prompts[1], both, 2);
    check_stops(&all, prompts[1], nothing, 3);
    check_stops(&all, prompts[1], one, 4);
    spec_result_free(&all);
}

/* Bytes that could begin a stop string are not delivered before they are known not to. */
static int watch_withheld(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    stream *s = user;
    (void)ids, (void)n_ids;
    memcpy(s->text + s->n_text, text, n_text);
    s->n_text += n_text;
    return 0;
}

static void nothing_is_taken_back(void **state)
{
    (void)state;
    spec_request p = asked(64);
    spec_result all = generate(&(setup){ 0 }, prompts[0], &p);
    char stop[64] = "";
    memcpy(stop, all.text + 20, 40);
    const char *const list[] = { stop };
    for (int32_t k = 0; k <= 8; k += 4) {
        stream *s = calloc(1, sizeof *s);
        p.stop = list, p.n_stop = 1, p.on_text = watch_withheld, p.text_user_data = s;
        spec_result r = generate(&(setup){ .k = k }, prompts[0], &p);
        assert_int_equal(r.stop, SPEC_STOP_STRING);
        assert_int_equal(r.n_text, 20);
        assert_int_equal(s->n_text, 20);
        spec_result_free(&r);
        free(s);
    }
    spec_result_free(&all);
}

/* --- end of text --- */

static spec_model *open_with(const char *name, const char *changes, char *dir)
{
    char *text = support_json_with(DEMO_TARGET, name, changes);
    const variant_file file = { name, text };
    support_variant(dir, DEMO_TARGET, &file, 1);
    spec_model *m = support_model(backend, dir, SPEC_DTYPE_AUTO);
    free(text);
    return m;
}

/* The first position at which id stands, from `from` on; every earlier one counts too. */
static size_t place_of(const spec_result *r, int32_t id)
{
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] == id) return i;
    return SIZE_MAX;
}

static void eos_ids_end_the_text(void **state)
{
    (void)state;
    spec_request p = asked(64);
    p.ignore_eos = 1;
    spec_result all = generate(&(setup){ 0 }, prompts[2], &p);
    for (size_t at = 1; at < 40; at += 13)
        for (int list = 0; list < 2; list++) {
            char dir[64], changes[128];
            const int32_t id = all.ids[at];
            snprintf(changes, sizeof changes, list ? "{\"eos_token_id\": [4095, %d, 0]}" : "{\"eos_token_id\": %d}", id);
            spec_model *m = open_with("generation_config.json", changes, dir);
            spec_model_info info = { .struct_size = sizeof info };
            OK(spec_model_get_info(m, &info, 1));
            assert_int_equal(info.n_eos, list ? 3 : 1);
            p = asked(64);
            spec_result r = everywhere(&(setup){ .target = m }, prompts[2], &p, "eos");
            assert_int_equal(r.stop, SPEC_STOP_EOS);
            if (!list) assert_int_equal(r.n_ids, place_of(&all, id) + 1);
            assert_memory_equal(r.ids, all.ids, r.n_ids * sizeof(int32_t));
            if (r.n_ids > 1) { /* its text is that of the ids before */
                p.n_predict = (int32_t)r.n_ids - 1;
                spec_result before = generate(&(setup){ .target = m }, prompts[2], &p);
                assert_string_equal(r.text, before.text);
                spec_result_free(&before);
            }
            spec_result_free(&r);
            p = asked(64), p.ignore_eos = 1;
            r = everywhere(&(setup){ .target = m }, prompts[2], &p, "eos ignored");
            support_same(&r, &all, "eos ignored");
            spec_result_free(&r);
            spec_model_close(m);
            support_variant_remove(dir);
        }
    spec_result_free(&all);
}

/* Nothing is fed after an end-of-text token: the step says so, and the sequence's ids end there. */
static void eos_ends_a_path(void **state)
{
    (void)state;
    char dir[64], changes[64];
    const int32_t ids[] = { 11, 12 };
    int32_t plain[48];
    support_plain_ids(small, ids, 2, NULL, 48, plain);
    snprintf(changes, sizeof changes, "{\"eos_token_id\": [%d]}", plain[2]);
    char *text = support_json_with(DEMO_DRAFTER, "generation_config.json", changes);
    const variant_file file = { "generation_config.json", text };
    support_variant(dir, DEMO_DRAFTER, &file, 1);
    spec_model *m = support_model(backend, dir, SPEC_DTYPE_AUTO);
    open_setup o = begin(&(setup){ .target = m, .k = 6 }); /* the same network drafts: everything is accepted */
    int32_t seq;
    spec_step_result r;
    OK(spec_sequence_add(o.s, &seq, ids, 2, NULL));
    OK(step_into(o.s, &r, &seq, 1));
    size_t at = 0;
    while (plain[at] != plain[2]) at++;
    assert_int_equal(r.stop, SPEC_STOP_EOS);
    assert_int_equal(r.n_tokens, at + 1);
    assert_int_equal(r.n_accepted, at);
    assert_memory_equal(r.tokens, plain, (at + 1) * sizeof *plain);
    end(&o);
    spec_model_close(m);
    support_variant_remove(dir);
    free(text);
}

static void empty_prompts_start_from_bos(void **state)
{
    (void)state;
    const int32_t bos = 0;
    spec_request p = asked(32);
    for (int32_t k = 0; k <= 4; k += 4) {
        open_setup o = begin(&(setup){ .k = k });
        spec_result a = SPEC_RESULT_INIT, b = SPEC_RESULT_INIT;
        OK(spec_generate(o.s, &a, "", 0, &p));
        assert_int_equal(a.n_prompt, 1);
        OK(spec_generate_ids(o.s, &b, &bos, 1, &p));
        support_same(&a, &b, "from BOS");
        spec_result_free(&a);
        spec_result_free(&b);
        end(&o);
    }
    char dir[64];
    char *config = support_json_with(DEMO_TARGET, "config.json", "{\"bos_token_id\": null}");
    char *generation = support_json_with(DEMO_TARGET, "generation_config.json", "{\"bos_token_id\": null}");
    const variant_file files[] = { { "config.json", config }, { "generation_config.json", generation },
                                   { "tokenizer_config.json", "{}" } };
    support_variant(dir, DEMO_TARGET, files, 3);
    spec_model *m = support_model(backend, dir, SPEC_DTYPE_AUTO);
    open_setup o = begin(&(setup){ .target = m });
    spec_result r = SPEC_RESULT_INIT;
    FAILS(spec_generate(o.s, &r, "", 0, &p), SPEC_E_INVALID, "no BOS");
    spec_result_free(&r);
    OK(spec_generate(o.s, &r, "a", 1, &p));
    spec_result_free(&r);
    FAILS(spec_generate(o.s, &r, "a\xff", 2, &p), SPEC_E_INVALID, "UTF-8");
    spec_result_free(&r);
    end(&o);
    spec_model_close(m);
    support_variant_remove(dir);
    free(config);
    free(generation);
}

/* --- log-probabilities --- */

static void check_top(const spec_logprob *l, int32_t id, int32_t n)
{
    assert_int_equal(l->n_top, n);
    assert_true(l->logprob <= 0);
    double mass = 0;
    for (int32_t i = 0; i < n; i++) {
        mass += exp((double)l->top_logprob[i]);
        if (i > 0) assert_true(l->top_logprob[i] < l->top_logprob[i - 1] ||
                               (l->top_logprob[i] == l->top_logprob[i - 1] && l->top_id[i] > l->top_id[i - 1]));
        if (l->top_id[i] == id) assert_true(l->top_logprob[i] == l->logprob);
    }
    assert_true(mass < 1 + 1e-5);
}

static void logprobs_have_the_bits_of_plain(void **state)
{
    (void)state;
    static const int32_t tops[] = { 0, 3, 20 };
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++)
        for (int sampled = 0; sampled < 2; sampled++) {
            spec_request p = asked(40);
            p.logprobs = 1, p.n_top = tops[i];
            if (sampled) p.sampling = (spec_sampling){ 0.8f, 0, 0.9f, 0, 7 };
            spec_result r = everywhere(&(setup){ .rule = sampled ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO }, prompts[0],
                                       &p, "logprobs");
            assert_non_null(r.logprobs);
            for (size_t k = 0; k < r.n_ids; k++) {
                check_top(&r.logprobs[k], r.ids[k], tops[i]);
                if (!sampled && tops[i] > 0) assert_int_equal(r.logprobs[k].top_id[0], r.ids[k]);
            }
            spec_result_free(&r);
        }
    spec_result r = SPEC_RESULT_INIT;
    spec_request p = asked(4);
    p.logprobs = 1, p.n_top = 21;
    open_setup o = begin(&(setup){ 0 });
    FAILS(spec_generate(o.s, &r, "a", 1, &p), SPEC_E_INVALID, "21");
    spec_result_free(&r);
    end(&o);
}

/* Against a softmax in double of the node's logits; over all ids they sum to 1. */
static void logprobs_are_log_softmax(void **state)
{
    (void)state;
    enum { N = 4096 };
    float *logits = malloc(N * sizeof *logits), top[64], one;
    int32_t seq, ids[] = { 300, 301, 302 }, parents[] = { -1, 0, 1, 0 }, tokens[] = { 302, 5, 6, 7 }, top_id[64];
    const spec_tree tree = { .n = 4, .cap = 4, .token = tokens, .parent = parents }, *trees = &tree;
    spec_session *s = support_session(target, 4, 1);
    OK(spec_sequence_add(s, &seq, ids, 3, NULL));
    OK(spec_score(s, &seq, 1, &trees));
    for (int32_t node = 0; node < 4; node++) {
        double sum = 0, mass = 0, max = -INFINITY;
        OK(spec_node_logits(s, logits, seq, node));
        for (int i = 0; i < N; i++) max = fmax(max, (double)logits[i]);
        for (int i = 0; i < N; i++) sum += exp((double)logits[i] - max);
        for (int32_t i = 0; i < N; i++) {
            OK(spec_node_logprobs(s, &one, NULL, NULL, seq, node, i, 0));
            assert_true(fabs((double)one - ((double)logits[i] - max - log(sum))) < 1e-5 * (1 + fabs((double)one)));
            mass += exp((double)one);
        }
        assert_true(fabs(mass - 1) < 1e-5);
        OK(spec_node_logprobs(s, &one, top_id, top, seq, node, 9, 64));
        for (int i = 0; i + 1 < 64; i++) assert_true(top[i] >= top[i + 1]);
    }
    FAILS(spec_node_logprobs(s, &one, NULL, NULL, seq, 4, 0, 0), SPEC_E_INVALID, "node 4 of a tree of 4");
    FAILS(spec_node_logprobs(s, &one, NULL, NULL, seq, 0, N, 0), SPEC_E_INVALID, "token 4096");
    FAILS(spec_node_logprobs(s, &one, top_id, top, seq, 0, 0, 65), SPEC_E_INVALID, "at most 64");
    FAILS(spec_node_logits(s, logits, seq + 1, 0), SPEC_E_INVALID, "no sequence");
    spec_session_close(s);
    free(logits);
}

/* --- stopping --- */

typedef struct stopper {
    int calls, stop_at; /* stops at that call */
    spec_session *session;
    pthread_t thread;
} stopper;

static int stop_text(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)n_text, (void)ids, (void)n_ids;
    stopper *s = user;
    return ++s->calls == s->stop_at;
}

static int stop_poll(void *user)
{
    stopper *s = user;
    return ++s->calls == s->stop_at;
}

/* What there is of r begins all's. */
static void expect_prefix(const spec_result *r, const spec_result *all)
{
    assert_int_equal(r->stop, SPEC_STOP_ABORTED);
    assert_true(r->n_ids < all->n_ids && r->n_text <= all->n_text);
    if (r->n_ids) assert_memory_equal(r->ids, all->ids, r->n_ids * sizeof(int32_t));
    if (r->n_text) assert_memory_equal(r->text, all->text, r->n_text);
}

static void the_text_callback_stops(void **state)
{
    (void)state;
    spec_request p = asked(48);
    spec_result all = generate(&(setup){ 0 }, prompts[0], &p);
    for (int32_t k = 0; k <= 4; k += 4) {
        open_setup o = begin(&(setup){ .k = k });
        for (int at = 1; at < 6; at += 2) {
            stopper s = { .stop_at = at };
            spec_result r = SPEC_RESULT_INIT;
            p = asked(48), p.on_text = stop_text, p.text_user_data = &s;
            FAILS(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p), SPEC_E_ABORTED, "text callback");
            expect_prefix(&r, &all);
            assert_true(r.n_ids > 0);
            assert_int_equal(s.calls, at);
            spec_result_free(&r);
            p = asked(48);
            OK(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p));
            support_same(&r, &all, "after the callback stopped");
            spec_result_free(&r);
        }
        end(&o);
    }
    spec_result_free(&all);
}

/* 560 tokens: several chunks of prefill. */
static void abort_is_polled_between_passes(void **state)
{
    (void)state;
    enum { N = 560, N_NEW = 5 };
    int32_t ids[N];
    uint64_t random = 5;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(support_random(&random) % 4095 + 1);
    spec_request p = asked(N_NEW);
    p.ignore_eos = 1;
    for (int32_t k = 0; k <= 4; k += 4) {
        spec_result all = SPEC_RESULT_INIT, r = SPEC_RESULT_INIT;
        open_setup o = begin(&(setup){ .k = k });
        OK(spec_generate_ids(o.s, &all, ids, N, &p));
        end(&o);
        stopper s = { 0 };
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        sp.abort = stop_poll, sp.abort_user_data = &s;
        o.s = support_open(target, k ? small : NULL, k, &sp, &o.dr);
        int n_in_prefill = 0;
        for (int at = 1;; at++) {
            s.calls = 0, s.stop_at = at;
            const spec_status status = spec_generate_ids(o.s, &r, ids, N, &p);
            if (status == SPEC_OK) break;
            assert_int_equal(status, SPEC_E_ABORTED);
            expect_prefix(&r, &all);
            n_in_prefill += r.n_step == 0;
            spec_result_free(&r);
            assert_true(at < 100);
        }
        support_same(&r, &all, "when nothing stops it");
        print_message("  K %d: stopped at %d polls, %d of them before the first step\n", k, s.calls, n_in_prefill);
        assert_true(n_in_prefill >= 3);
        spec_result_free(&r);
        spec_result_free(&all);
        end(&o);
    }
}

static void *cancel(void *session)
{
    spec_session_cancel(session);
    return NULL;
}

static int cancel_from_thread(void *user, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)n_text, (void)ids, (void)n_ids;
    stopper *s = user;
    if (++s->calls == s->stop_at) {
        assert_int_equal(pthread_create(&s->thread, NULL, cancel, s->session), 0);
        pthread_join(s->thread, NULL);
    }
    return 0;
}

static void another_thread_cancels(void **state)
{
    (void)state;
    spec_request p = asked(48);
    spec_result all = generate(&(setup){ 0 }, prompts[0], &p), r = SPEC_RESULT_INIT;
    for (int32_t k = 0; k <= 4; k += 4) {
        open_setup o = begin(&(setup){ .k = k });
        stopper s = { .stop_at = 3, .session = o.s };
        p = asked(48), p.on_text = cancel_from_thread, p.text_user_data = &s;
        FAILS(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p), SPEC_E_ABORTED, "");
        expect_prefix(&r, &all);
        assert_int_equal(s.calls, 3); /* no pass more, no text more */
        spec_result_free(&r);
        p = asked(48);
        spec_session_cancel(o.s); /* between two calls: the next one ends */
        FAILS(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p), SPEC_E_ABORTED, "stopped");
        assert_int_equal(r.n_ids, 0);
        assert_int_equal(r.stop, SPEC_STOP_ABORTED);
        spec_result_free(&r);
        OK(spec_generate(o.s, &r, prompts[0], strlen(prompts[0]), &p));
        support_same(&r, &all, "after it was cancelled");
        spec_result_free(&r);
        end(&o);
    }
    spec_result_free(&all);
}

/* A cancellation at any moment of a run that would last long ends it. */
static void cancelled_at_any_time(void **state)
{
    (void)state;
    int32_t ids[900];
    for (int i = 0; i < 900; i++) ids[i] = 50 + i;
    open_setup o = begin(&(setup){ .target = small });
    for (int i = 0; i < 8; i++) {
        pthread_t thread;
        spec_result r = SPEC_RESULT_INIT;
        spec_request p = asked(1000000);
        p.ignore_eos = 1;
        assert_int_equal(pthread_create(&thread, NULL, cancel, o.s), 0);
        assert_int_equal(spec_generate_ids(o.s, &r, ids, 900, &p), SPEC_E_ABORTED);
        pthread_join(thread, NULL);
        assert_int_equal(r.stop, SPEC_STOP_ABORTED);
        spec_result_free(&r);
    }
    end(&o);
}

/* --- random numbers --- */

static void naive_equals_plain(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        spec_request p = asked(64);
        p.sampling = (spec_sampling){ 0.8f, 0, 0.9f, 0, seed };
        spec_result r = everywhere(&(setup){ .rule = SPEC_VERIFY_NAIVE }, prompts[seed % N_PROMPT], &p, "naive");
        spec_result_free(&r);
    }
    spec_result r = SPEC_RESULT_INIT;
    open_setup o = begin(&(setup){ .rule = SPEC_VERIFY_GREEDY });
    spec_request p = asked(4);
    p.sampling.temperature = 1;
    FAILS(spec_generate(o.s, &r, "a", 1, &p), SPEC_E_INVALID, "greedy verification");
    spec_result_free(&r);
    p.sampling.temperature = -1;
    FAILS(spec_generate(o.s, &r, "a", 1, &p), SPEC_E_INVALID, "temperature is -1");
    spec_result_free(&r);
    p.sampling.temperature = NAN;
    FAILS(spec_generate(o.s, &r, "a", 1, &p), SPEC_E_INVALID, "temperature");
    spec_result_free(&r);
    end(&o);
}

static void the_same_seed_says_the_same(void **state)
{
    (void)state;
    for (int32_t k = 0; k <= 4; k += 4) {
        spec_request p = asked(48);
        p.sampling = (spec_sampling){ 1.0f, 0, 0, 0, 7 };
        spec_result a = generate(&(setup){ .k = k }, prompts[0], &p), b = generate(&(setup){ .k = k }, prompts[0], &p);
        support_same(&b, &a, "same seed");
        spec_result_free(&b);
        static const uint64_t others[] = { 5, 7 + (1ull << 32), 6 + (1ull << 63) };
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            p.sampling.seed = others[i];
            b = generate(&(setup){ .k = k }, prompts[0], &p);
            assert_true(a.n_ids != b.n_ids || memcmp(a.ids, b.ids, a.n_ids * sizeof(int32_t)) != 0);
            spec_result_free(&b);
        }
        spec_result_free(&a);
    }
}

/* --- several sequences --- */

enum { N_MANY = 7, MANY_NEW = 40 };

typedef struct many {
    int32_t prompt[24], n_prompt, starts_at, n_new; /* enters before that step */
    spec_sampling sampling;
    int32_t alone[MANY_NEW + 16], seq;
} many;

static void run_alone(many *m, int32_t k)
{
    open_setup o = begin(&(setup){ .k = k });
    const int32_t *ids;
    size_t n = 0;
    spec_step_result r;
    OK(add_sampled(o.s, &m->seq, m->prompt, (size_t)m->n_prompt, &m->sampling));
    for (; n < (size_t)(m->n_prompt + m->n_new); OK(spec_sequence_ids(o.s, &ids, &n, m->seq)))
        OK(step_into(o.s, &r, &m->seq, 1));
    memcpy(m->alone, ids + m->n_prompt, (size_t)m->n_new * sizeof *ids);
    end(&o);
}

/* Steps those that are there, in an order that changes; removes each when it has said enough. */
static int32_t run_step(spec_session *s, many *all, int32_t step)
{
    int32_t seqs[N_MANY], n = 0, left = 0;
    spec_step_result results[N_MANY];
    for (int32_t i = 0; i < N_MANY; i++) {
        const int32_t at = (i * 3 + step) % N_MANY;
        if (all[at].seq >= 0 && (step + at) % 5 != 0) seqs[n++] = all[at].seq;
        left += all[i].seq != -2;
    }
    if (n > 0) OK(step_into(s, results, seqs, n));
    for (int32_t i = 0; i < N_MANY; i++) {
        const int32_t *ids;
        size_t n_ids;
        if (all[i].seq < 0) continue;
        OK(spec_sequence_ids(s, &ids, &n_ids, all[i].seq));
        if (n_ids < (size_t)(all[i].n_prompt + all[i].n_new)) continue;
        assert_memory_equal(ids + all[i].n_prompt, all[i].alone, (size_t)all[i].n_new * sizeof *ids);
        OK(spec_sequence_remove(s, all[i].seq));
        all[i].seq = -2;
    }
    return left;
}

static void many_equal_alone(void **state)
{
    (void)state;
    for (int32_t k = 0; k <= 4; k += 4) {
        many all[N_MANY];
        uint64_t random = 11;
        for (int32_t i = 0; i < N_MANY; i++) {
            all[i] = (many){ .n_prompt = 1 + 3 * i, .starts_at = 4 * i, .n_new = 12 + 4 * i };
            for (int32_t j = 0; j < all[i].n_prompt; j++)
                all[i].prompt[j] = (int32_t)(support_random(&random) % 4095 + 1);
            if (i % 3) all[i].sampling = (spec_sampling){ 0.7f, i == 2 ? 40 : 0, 0.95f, 0, (uint64_t)i };
            run_alone(&all[i], k);
            all[i].seq = -1;
        }
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        sp.n_seq = 4, sp.n_ctx = 512;
        spec_drafter *dr;
        spec_session *s = support_open(target, k ? small : NULL, k, &sp, &dr);
        bool was_full = false;
        int32_t step = 0, left;
        do {
            for (int32_t i = 0; i < N_MANY; i++) {
                if (all[i].seq != -1 || step < all[i].starts_at) continue;
                const spec_status status =
                    add_sampled(s, &all[i].seq, all[i].prompt, (size_t)all[i].n_prompt, &all[i].sampling);
                if (status == SPEC_OK) continue;
                assert_int_equal(status, SPEC_E_BUSY);
                all[i].seq = -1;
                was_full = true;
            }
            left = run_step(s, all, step);
        } while (left > 0 && step++ < 1000);
        assert_int_equal(left, 0);
        assert_true(was_full || k > 0);
        FAILS(spec_sequence_remove(s, 0), SPEC_E_INVALID, "no sequence 0");
        spec_session_close(s);
        spec_drafter_close(dr);
    }
}

/* --- main --- */

static int open_models(void **state)
{
    (void)state;
    target = support_model(backend, DEMO_TARGET, SPEC_DTYPE_AUTO);
    small = support_model(backend, DEMO_DRAFTER, SPEC_DTYPE_AUTO);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(backend);
    return 0;
}

int main(void)
{
#ifdef SPEC_NO_TOKENIZER
    printf("SKIPPED: built without tokenizers\n");
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text),
        cmocka_unit_test(drafts_are_accepted_and_rejected),
        cmocka_unit_test(n_predict_is_exact),
        cmocka_unit_test(long_prompts_are_refused),
        cmocka_unit_test(sizes_beyond_counting), cmocka_unit_test(no_memory_for_the_models_context),
        cmocka_unit_test(context_ends_alike),
        cmocka_unit_test(no_limit_without_attention),
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(several_stop_strings),
        cmocka_unit_test(nothing_is_taken_back),
        cmocka_unit_test(eos_ids_end_the_text),
        cmocka_unit_test(eos_ends_a_path),
        cmocka_unit_test(empty_prompts_start_from_bos),
        cmocka_unit_test(logprobs_have_the_bits_of_plain),
        cmocka_unit_test(logprobs_are_log_softmax),
        cmocka_unit_test(the_text_callback_stops),
        cmocka_unit_test(abort_is_polled_between_passes),
        cmocka_unit_test(another_thread_cancels),
        cmocka_unit_test(cancelled_at_any_time),
        cmocka_unit_test(naive_equals_plain),
        cmocka_unit_test(the_same_seed_says_the_same),
        cmocka_unit_test(many_equal_alone),
    };
    backend = support_backend();
    return cmocka_run_group_tests_name("decode_api", tests, open_models, close_models);
}
