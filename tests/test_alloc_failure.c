/* test_alloc_failure.c - out of memory, on the host and on the device, at the n-th allocation for every n of a short run:
 * the call fails with E_NOMEM and a message, every object stays usable (the call is made again and the run ends as it
 * should) or can be closed, and nothing is lost. */
#include "tests/support_decode.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "tests/support_sequence.h"

/* --- memory that fails --- */

enum { GUARD = 64 }; /* bytes behind every block */

typedef struct failing {
    atomic_llong calls, fail_at, blocks, bytes; /* fail_at 0: never */
    atomic_int failed, bad_free;
    bool onwards; /* every call from fail_at on */
} failing;

static bool fails_now(failing *f)
{
    const long long call = atomic_fetch_add(&f->calls, 1) + 1, at = atomic_load(&f->fail_at);
    if (at == 0 || call < at || (call > at && !f->onwards)) return false;
    atomic_fetch_add(&f->failed, 1);
    return true;
}

static void *failing_alloc(void *user, size_t bytes, size_t align)
{
    failing *f = user;
    if (fails_now(f)) return NULL;
    const size_t room = (bytes + GUARD + align - 1) / align * align;
    uint8_t *p = aligned_alloc(align, room);
    if (!p) return NULL;
    memset(p, 0xA5, room); /* nobody may count on zeros */
    atomic_fetch_add(&f->blocks, 1);
    atomic_fetch_add(&f->bytes, (long long)bytes);
    return p;
}

static void failing_free(void *user, void *p, size_t bytes)
{
    failing *f = user;
    if (!p) return;
    for (size_t i = 0; i < GUARD; i++)
        if (((const uint8_t *)p)[bytes + i] != 0xA5) atomic_fetch_add(&f->bad_free, 1);
    atomic_fetch_sub(&f->blocks, 1);
    atomic_fetch_sub(&f->bytes, (long long)bytes);
    free(p);
}

/* What the library takes past an allocator comes from calloc, which the linker wraps. */
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
static atomic_llong n_calloc;

void *__wrap_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_calloc, 1);
    return __real_calloc(n, size);
}

/* A backend's table with device memory that fails. */
static failing device;
static const spec_backend_ops *inner;

static spec_status device_alloc(spec_device *dev, void **out, size_t bytes)
{
    if (fails_now(&device)) return speci_fail(SPEC_E_NOMEM, "injected: no device memory for %zu bytes", bytes);
    SPEC_TRY(inner->alloc(dev, out, bytes));
    atomic_fetch_add(&device.blocks, 1);
    atomic_fetch_add(&device.bytes, (long long)bytes);
    return SPEC_OK;
}

static void device_free(spec_device *dev, void *p, size_t bytes)
{
    if (p) atomic_fetch_sub(&device.blocks, 1), atomic_fetch_sub(&device.bytes, (long long)bytes);
    inner->free(dev, p, bytes);
}

static spec_status weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc)
{
    if (fails_now(&device)) return speci_fail(SPEC_E_NOMEM, "injected: no device memory for a weight");
    SPEC_TRY(inner->weight_open(dev, out, desc));
    atomic_fetch_add(&device.blocks, 1);
    return SPEC_OK;
}

static void weight_close(spec_device *dev, spec_weight *w)
{
    if (w) atomic_fetch_sub(&device.blocks, 1);
    inner->weight_close(dev, w);
}

static spec_status queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    if (fails_now(&device)) return speci_fail(SPEC_E_NOMEM, "injected: no device memory for a queue");
    SPEC_TRY(inner->queue_open(dev, out, plans, n_plan, n_vocab));
    atomic_fetch_add(&device.blocks, 1);
    return SPEC_OK;
}

static void queue_close(spec_queue *q)
{
    if (q) atomic_fetch_sub(&device.blocks, 1);
    inner->queue_close(q);
}

/* --- a short run --- */

enum { N_DRAFTER = 4 };

typedef struct run {
    const spec_backend_ops *ops; /* NULL: the backend is opened by name */
    const spec_allocator *allocator;
    spec_backend *be;
    const struct variant *variant; /* NULL: the first */
    spec_model *target, *small;
    spec_drafter *drafters[N_DRAFTER]; /* a model, one that asks for hidden rows, and two from text */
    spec_session *s;
    spec_result result;
    int32_t n_prompt_step, seq;
    spec_stop stop;
    spec_draft_combine combine;
} run;

static char target_dir[64], drafter_dir[64], other_dir[64];

/* Drafters with the target's vocabulary, and with another one; heads. */
static const struct variant {
    const char *dir;
    spec_draft_vocab vocab;
    spec_token_info info;
    int32_t n_resample;
} variants[] = { { drafter_dir, SPEC_DRAFT_VOCAB_AUTO, 0, 0 }, { other_dir, SPEC_DRAFT_VOCAB_AUTO, 0, 0 },
               { other_dir, SPEC_DRAFT_VOCAB_TEXT, 0, 0 },
               { SPEC_TEST_DIR "/golden/heads/eagle3-law8", SPEC_DRAFT_VOCAB_AUTO, 0, 0 },
               { SPEC_TEST_DIR "/golden/heads/lyanna-law8", SPEC_DRAFT_VOCAB_AUTO, SPEC_TOKEN_INFO_FACTORED, 0 },
               { SPEC_TEST_DIR "/golden/heads/lyanna-law8", SPEC_DRAFT_VOCAB_AUTO, SPEC_TOKEN_INFO_COLLAPSED, 2 } };
enum { N_VARIANT = sizeof variants / sizeof *variants };

static spec_status open_backend(run *r)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 2;
    p.allocator = r->allocator;
    p.plugin_dir = getenv("SPEC_TEST_PLUGIN_DIR");
    return r->ops ? spec_backend_open_ops(&r->be, r->ops, strchr(support_backend_name(), ':')
                                                              ? strchr(support_backend_name(), ':') + 1 : NULL, &p)
                  : spec_backend_open(&r->be, support_backend_name(), &p);
}

static spec_status open_target(run *r) { return spec_model_open(&r->target, r->be, target_dir, NULL); }
static spec_status open_small(run *r)
{
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.weights = SPEC_DTYPE_Q8_0; /* which takes memory of its own */
    return spec_model_open(&r->small, r->be, r->variant ? r->variant->dir : drafter_dir, &p);
}
static spec_status open_drafter(run *r)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    if (r->variant) p.vocab = r->variant->vocab, p.token_info = r->variant->info, p.n_resample = r->variant->n_resample;
    return spec_drafter_from_model(&r->drafters[0], r->small, &p);
}

static const spec_tap taps[] = { { SPEC_TAP_LAYER, 1 }, { SPEC_TAP_NORM, 0 }, { SPEC_TAP_LAST, 0 } };

static spec_status draft_nothing(void *user, spec_draft_request *requests, int32_t n)
{
    (void)user, (void)requests, (void)n;
    return SPEC_OK;
}

static spec_status hear(void *user, int32_t seq, const int32_t *ids, size_t n, int32_t first, int32_t n_row,
                        const float *const *rows)
{
    (void)user, (void)seq, (void)ids, (void)n, (void)first;
    return n_row > 0 && rows[0][0] == rows[0][0] ? SPEC_OK : SPEC_E_INVALID;
}

static spec_status open_listener(run *r)
{
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = draft_nothing, .taps = taps + 1, .n_tap = 2,
                                   .hidden = hear };
    return spec_drafter_from_ops(&r->drafters[1], &ops, NULL);
}

static spec_status open_lookup(run *r) { return spec_drafter_open(&r->drafters[2], "ngram:3,4", r->allocator); }
static spec_status open_trie(run *r) { return spec_drafter_open(&r->drafters[3], "trie:4,3,1", r->allocator); }

static spec_session_params session_params(const run *r)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_seq = 2, p.n_ctx = 100;
    p.taps = taps, p.n_tap = 2;
    p.drafters = r->drafters, p.n_drafter = N_DRAFTER;
    p.n_prompt_step = r->n_prompt_step, p.combine = r->combine;
    return p;
}

static spec_status predict(run *r)
{
    const spec_session_params p = session_params(r);
    spec_memory m = { .struct_size = sizeof m };
    return spec_session_estimate(&m, r->target, NULL, &p);
}

static spec_status open_session(run *r)
{
    const spec_session_params p = session_params(r);
    return spec_session_open(&r->s, r->target, NULL, &p);
}

static spec_status generate(run *r)
{
    static const char *const stops[] = { "hhhhhhhhhhhh" };
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = 64; /* as many bytes: the zero behind them asks for a larger buffer */
    p.logprobs = 1, p.n_top = 2, p.stop = stops, p.n_stop = 1;
    spec_result_free(&r->result);
    r->result.struct_size = sizeof r->result;
    return spec_generate(r->s, &r->result, "badcafe", 7, &p);
}

static const struct {
    const char *name;
    spec_status (*call)(run *);
} calls[] = {
    { "spec_backend_open", open_backend },      { "spec_model_open, target", open_target },
    { "spec_model_open, drafter", open_small }, { "spec_drafter_from_model", open_drafter },
    { "spec_drafter_from_ops", open_listener }, { "spec_drafter_open, ngram", open_lookup },
    { "spec_drafter_open, trie", open_trie },
    { "spec_session_estimate", predict },        { "spec_session_open", open_session },
    { "spec_generate", generate },
};

static void finish(run *r)
{
    spec_result_free(&r->result);
    spec_session_close(r->s);
    for (int i = 0; i < N_DRAFTER; i++) spec_drafter_close(r->drafters[i]);
    spec_model_close(r->small);
    spec_model_close(r->target);
    spec_backend_close(r->be);
}

static char expected[80];

/* One run in which `f` fails as it is set. again: a call that failed is made once more, and must then succeed. */
static void run_once(run *r, failing *f, bool again)
{
    bool complete = true;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && complete; i++) {
        spec_status status = calls[i].call(r);
        const int n_failed = atomic_load(&f->failed);
        if (status != SPEC_OK && (status != SPEC_E_NOMEM || n_failed == 0 || !*spec_last_error()))
            fail_msg("%s at allocation %lld: %s \"%s\"", calls[i].name, atomic_load(&f->fail_at),
                     spec_status_name(status), spec_last_error());
        if (status != SPEC_OK && again) status = calls[i].call(r);
        if (status != SPEC_OK && again)
            fail_msg("%s, again after allocation %lld failed: %s \"%s\"", calls[i].name, atomic_load(&f->fail_at),
                     spec_status_name(status), spec_last_error());
        complete = status == SPEC_OK;
    }
    if (complete && expected[0] == 0) snprintf(expected, sizeof expected, "%s", r->result.text);
    if (complete) assert_string_equal(r->result.text, expected);
    finish(r);
}

static void expect_nothing_left(const failing *f, long long n)
{
    if (atomic_load(&f->blocks) || atomic_load(&f->bytes))
        fail_msg("after allocation %lld failed, %lld blocks, %lld bytes were not given back", n, atomic_load(&f->blocks),
                 atomic_load(&f->bytes));
    if (atomic_load(&f->bad_free)) fail_msg("allocation %lld: bytes behind a block were written", n);
}

static void reset(failing *f, long long fail_at, bool onwards)
{
    memset(f, 0, sizeof *f);
    atomic_store(&f->fail_at, fail_at);
    f->onwards = onwards;
}

/* --- tests --- */

/* From one allocation that fails to the next. Of what other vocabularies take a part is sampled: they read tokenizers at length. So is
 * what devices take, where a run opens contexts: the code is the CPU's, but for the backend's few. */
static long long next_host(int variant, long long n)
{
    const bool is_cpu = strncmp(support_backend_name(), "cpu", 3) == 0;
    if (!is_cpu) return n < 16 ? n + 1 : n + 25 + n % 13;
    return variant == 0 ? n + 1 : n + 1 + n % 13;
}

static void host_memory_fails(void **state)
{
    (void)state;
    failing f;
    const spec_allocator allocator = { failing_alloc, failing_free, &f };
    for (int i = 0; i < 2 * N_VARIANT; i++) {
        const int way = i % 2; /* once, and the call is made again; from then on */
        long long n = 0;
        do {
            run r = { .allocator = &allocator, .variant = &variants[i / 2] };
            reset(&f, n = next_host(i / 2, n), way == 1);
            run_once(&r, &f, way == 0);
            expect_nothing_left(&f, n);
        } while (atomic_load(&f.failed) > 0);
        print_message("  about %lld host allocations%s\n", n - 1, way ? ", all from the n-th on" : "");
        assert_true(n > 50);
    }
}

static void device_memory_fails(void **state)
{
    (void)state;
    spec_backend *be = support_backend(); /* keeps a plugin loaded */
    spec_backend_ops ops = *be->ops;
    inner = be->ops;
    ops.alloc = device_alloc, ops.free = device_free;
    ops.weight_open = weight_open, ops.weight_close = weight_close;
    ops.queue_open = queue_open, ops.queue_close = queue_close;
    for (int i = 0; i < 2 * N_VARIANT; i++) {
        const int way = i % 2;
        long long n = 0;
        do {
            run r = { .ops = &ops, .variant = &variants[i / 2] };
            reset(&device, ++n, way == 1);
            run_once(&r, &device, way == 0);
            expect_nothing_left(&device, n);
        } while (atomic_load(&device.failed) > 0);
        print_message("  %lld device allocations%s\n", n - 1, way ? ", all from the n-th on" : "");
        assert_true(n > 20);
    }
    spec_backend_close(be);
}

/* A generation that fails leaves what was said until then, and the session. */
static void generation_keeps_what_was_said(void **state)
{
    (void)state;
    failing f;
    const spec_allocator allocator = { failing_alloc, failing_free, &f };
    reset(&f, 0, false);
    run r = { .allocator = &allocator };
    for (size_t i = 0; i + 1 < sizeof calls / sizeof *calls; i++) OK(calls[i].call(&r));
    const long long before = atomic_load(&f.calls);
    OK(generate(&r));
    const long long n = atomic_load(&f.calls) - before;
    for (long long i = 1; i <= n; i++) {
        const long long blocks = atomic_load(&f.blocks);
        spec_result_free(&r.result);
        const long long free_blocks = atomic_load(&f.blocks);
        atomic_store(&f.fail_at, atomic_load(&f.calls) + i);
        assert_int_equal(generate(&r), SPEC_E_NOMEM);
        assert_true(!r.result.text || strncmp(r.result.text, expected, r.result.n_text) == 0);
        spec_result_free(&r.result);
        assert_int_equal(atomic_load(&f.blocks), free_blocks);
        OK(generate(&r));
        assert_string_equal(r.result.text, expected);
        assert_int_equal(atomic_load(&f.blocks), blocks);
    }
    finish(&r);
    expect_nothing_left(&f, n);
}

/* Sequences: E_NOMEM on admission leaves the others alone. */
static void sequences_survive(void **state)
{
    (void)state;
    failing f;
    const spec_allocator allocator = { failing_alloc, failing_free, &f };
    reset(&f, 0, false);
    run r = { .allocator = &allocator };
    for (size_t i = 0; i + 1 < sizeof calls / sizeof *calls; i++) OK(calls[i].call(&r));
    const int32_t ids[] = { 1, 2, 3 };
    int32_t a, b;
    size_t n;
    const int32_t *now;
    spec_step_result step[2];
    OK(spec_sequence_add(r.s, &a, ids, 3, NULL));
    OK(step_into(r.s, step, &a, 1));
    const long long calls_before = atomic_load(&f.calls), blocks = atomic_load(&f.blocks);
    for (long long i = 1;; i++) {
        atomic_store(&f.fail_at, atomic_load(&f.calls) + i);
        atomic_store(&f.failed, 0);
        const spec_status status = spec_sequence_add(r.s, &b, ids, 3, NULL);
        if (status == SPEC_OK) break;
        assert_int_equal(status, SPEC_E_NOMEM);
        assert_int_equal(atomic_load(&f.blocks), blocks);
        assert_true(i < 50);
    }
    assert_true(atomic_load(&f.calls) > calls_before + 1);
    const long long steady = atomic_load(&f.calls);
    atomic_store(&f.fail_at, steady + 1); /* a step allocates nothing */
    const int32_t both[] = { a, b };
    for (int i = 0; i < 8; i++) OK(step_into(r.s, step, both, 2));
    assert_int_equal(atomic_load(&f.calls), steady);
    OK(spec_sequence_ids(r.s, &now, &n, b));
    int32_t said[64];
    memcpy(said, now, n * sizeof *now);
    size_t m;
    OK(spec_sequence_ids(r.s, &now, &m, a));
    assert_memory_equal(said, now, (n < m ? n : m) * sizeof *now); /* both say the same */
    finish(&r);
    expect_nothing_left(&f, 0);
}

/* --- in the middle of a text --- */

static const int32_t prompt[] = { 1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2, 4, 1 };
enum { N_PROMPT = sizeof prompt / sizeof *prompt, N_FIRST = 9 };

static spec_status add(run *r)
{
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = 10, p.ignore_eos = 1;
    return spec_sequence_add(r->s, &r->seq, prompt, N_FIRST, &p);
}

static spec_status append(run *r) { return spec_sequence_append(r->s, r->seq, prompt + N_FIRST, N_PROMPT - N_FIRST, NULL); }

static spec_status step(run *r)
{
    const spec_step_result *result;
    SPEC_TRY(spec_step(r->s, &result, &r->seq, 1));
    r->stop = result->stop;
    return SPEC_OK;
}

/* The sequence goes on as its copy. */
static spec_status fork_to_copy(run *r)
{
    int32_t copy;
    SPEC_TRY(spec_sequence_fork(r->s, &copy, r->seq));
    OK(spec_sequence_remove(r->s, r->seq));
    r->seq = copy;
    return SPEC_OK;
}

/* A call that failed for want of memory is made again. */
static void call_again(run *r, const failing *f, spec_status (*call)(run *))
{
    const int n_failed = atomic_load(&f->failed);
    spec_status status = call(r);
    if (status == SPEC_E_NOMEM && atomic_load(&f->failed) > n_failed) status = call(r);
    if (status != SPEC_OK)
        fail_msg("variant %d, allocation %lld failed: %s \"%s\"", (int)(r->variant - variants), atomic_load(&f->fail_at),
                 spec_status_name(status), spec_last_error());
}

/* Prompts that steps consume, a copy, and what follows each of them. */
static size_t talk(run *r, const failing *f, int32_t *ids)
{
    static spec_status (*const turns[])(run *) = { add, append, fork_to_copy, append };
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        call_again(r, f, turns[i]);
        if (turns[i] == fork_to_copy) continue;
        do call_again(r, f, step);
        while (r->stop == SPEC_STOP_NONE);
    }
    const int32_t *now;
    size_t n;
    OK(spec_sequence_ids(r->s, &now, &n, r->seq));
    memcpy(ids, now, n * sizeof *ids);
    return n;
}

/* Memory that is missing in the middle of a text costs neither the sequence nor a token, whoever drafts. */
static void texts_survive(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_VARIANT; i++) {
        failing f;
        const spec_allocator allocator = { failing_alloc, failing_free, &f };
        int32_t want[200], ids[200];
        size_t n_want = 0;
        long long n = 0;
        reset(&f, 0, false);
        run r = { .allocator = &allocator, .variant = &variants[i / 2], .n_prompt_step = 1,
                  .combine = i % 2 ? SPEC_DRAFT_UNION : SPEC_DRAFT_FIRST };
        for (size_t k = 0; k + 2 < sizeof calls / sizeof *calls; k++) OK(calls[k].call(&r));
        do {
            OK(open_session(&r));
            atomic_store(&f.failed, 0);
            atomic_store(&f.fail_at, n > 0 ? atomic_load(&f.calls) + n : 0);
            const size_t n_ids = talk(&r, &f, ids);
            if (n == 0) memcpy(want, ids, n_ids * sizeof *ids), n_want = n_ids;
            assert_int_equal(n_ids, n_want);
            assert_memory_equal(ids, want, n_ids * sizeof *ids);
            spec_session_close(r.s);
            r.s = NULL;
        } while (n++ == 0 || atomic_load(&f.failed) > 0);
        finish(&r);
        expect_nothing_left(&f, n);
        assert_true(n > 10);
    }
}

/* Steps take no memory, neither through the allocator nor past it; with UNION, where drafters are united. */
static void steps_take_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_VARIANT; i++) {
        if (variants[i / 2].dir == other_dir) continue; /* its tokenizer writes what was emitted, which takes memory */
        failing f;
        const spec_allocator allocator = { failing_alloc, failing_free, &f };
        reset(&f, 0, false);
        run r = { .allocator = &allocator, .variant = &variants[i / 2], .combine = i % 2 ? SPEC_DRAFT_UNION : SPEC_DRAFT_FIRST };
        for (size_t k = 0; k + 1 < sizeof calls / sizeof *calls; k++) OK(calls[k].call(&r));
        OK(add(&r));
        OK(step(&r)); /* the index of prompt lookup grows by pieces: not by so few tokens */
        const long long n_alloc = atomic_load(&f.calls), n_past = atomic_load(&n_calloc);
        for (int k = 0; k < 8; k++) OK(step(&r));
        assert_int_equal(atomic_load(&f.calls), n_alloc);
        assert_int_equal(atomic_load(&n_calloc), n_past);
        finish(&r);
        expect_nothing_left(&f, 0);
    }
}

typedef struct saved_bytes {
    uint8_t data[1 << 17];
    size_t n, at;
} saved_bytes;

static int to_bytes(void *user, const void *data, size_t n)
{
    saved_bytes *f = user;
    if (n > sizeof f->data - f->n) return 1;
    memcpy(f->data + f->n, data, n);
    f->n += n;
    return 0;
}

static int from_bytes(void *user, void *data, size_t n)
{
    saved_bytes *f = user;
    if (n > f->n - f->at) return 1;
    memcpy(data, f->data + f->at, n);
    f->at += n;
    return 0;
}

static spec_status fork_first(run *r, saved_bytes *f, int32_t *seq)
{
    (void)f;
    return spec_sequence_fork(r->s, seq, 0);
}

static spec_status save_first(run *r, saved_bytes *f, int32_t *seq)
{
    *seq = -1; /* nothing is admitted */
    f->n = 0;
    return spec_sequence_save(r->s, 0, to_bytes, f);
}

static spec_status restore_saved(run *r, saved_bytes *f, int32_t *seq)
{
    f->at = 0;
    return spec_sequence_restore(r->s, seq, from_bytes, f);
}

/* Forks, saves and restores that fail leave nothing, and the sequence as it was. */
static void copies_fail(void **state)
{
    (void)state;
    static spec_status (*const ways[])(run *, saved_bytes *, int32_t *) = { fork_first, save_first, restore_saved };
    static saved_bytes saved;
    failing f;
    const spec_allocator allocator = { failing_alloc, failing_free, &f };
    reset(&f, 0, false);
    run r = { .allocator = &allocator };
    for (size_t i = 0; i + 1 < sizeof calls / sizeof *calls; i++) OK(calls[i].call(&r));
    const int32_t ids[] = { 1, 2, 3 }, *now;
    const spec_sampling sampling = { 0.8f, 0, 0, 0, 5 };
    int32_t seq, copy;
    size_t n, m;
    spec_step_result step[2];
    OK(add_sampled(r.s, &seq, ids, 3, &sampling));
    for (int i = 0; i < 4; i++) OK(step_into(r.s, step, &seq, 1));
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        const long long blocks = atomic_load(&f.blocks);
        long long i = 1;
        for (;; i++) {
            atomic_store(&f.fail_at, atomic_load(&f.calls) + i);
            const spec_status status = ways[k](&r, &saved, &copy);
            if (status == SPEC_OK) break;
            assert_int_equal(status, SPEC_E_NOMEM);
            assert_int_equal(atomic_load(&f.blocks), blocks);
            assert_true(i < 50);
        }
        atomic_store(&f.fail_at, 0);
        assert_true(i > 1);
        if (copy < 0) continue;
        const int32_t both[] = { seq, copy };
        for (int j = 0; j < 3; j++) OK(step_into(r.s, step, both, 2));
        OK(spec_sequence_ids(r.s, &now, &n, copy));
        int32_t said[100];
        memcpy(said, now, n * sizeof *now);
        OK(spec_sequence_ids(r.s, &now, &m, seq));
        if (k == 0) assert_int_equal(n, m);
        assert_memory_equal(said, now, (n < m ? n : m) * sizeof *now); /* both say the same */
        OK(spec_sequence_remove(r.s, copy));
    }
    finish(&r);
    expect_nothing_left(&f, 0);
}

static void tokenizers_fail(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2-style", "gpt_neox-style", "llama3-style",
                                         "qwen2-style", "spm-metaspace", "spm-prepend" };
    static const char text[] = "The cafe\xcc\x81 said: 12345 times \xe2\x80\x9cyes\xe2\x80\x9d, \n\n  didn't it?";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        failing f;
        const spec_allocator allocator = { failing_alloc, failing_free, &f };
        int32_t ids[200], want[200];
        size_t n_want = 0, n;
        snprintf(path, sizeof path, SPEC_TEST_DIR "/golden/tokenizers/%s", names[i]);
        long long at = 0, total = 0;
        do { /* 0: nothing fails; the tokenizers are large, so most of the middle is sampled */
            spec_tokenizer *t = NULL;
            reset(&f, at, false);
            spec_status status = spec_tokenizer_open(&t, path, &allocator);
            if (status == SPEC_OK) status = spec_tokenizer_encode(t, ids, 200, &n, text, sizeof text - 1, 1);
            if (status != SPEC_OK && (status != SPEC_E_NOMEM || atomic_load(&f.failed) == 0))
                fail_msg("%s at allocation %lld: %s %s", names[i], at, spec_status_name(status), spec_last_error());
            if (status != SPEC_OK && t) status = spec_tokenizer_encode(t, ids, 200, &n, text, sizeof text - 1, 1);
            if (at == 0) memcpy(want, ids, n * sizeof *ids), n_want = n, total = atomic_load(&f.calls);
            if (status == SPEC_OK) assert_int_equal(n, n_want);
            if (status == SPEC_OK) assert_memory_equal(ids, want, n * sizeof *ids);
            spec_tokenizer_close(t);
            expect_nothing_left(&f, at);
            at += at < 200 || at > total - 200 ? 1 : 17;
        } while (at <= total);
        print_message("  %-16s %lld allocations\n", names[i], total);
    }
}

/* --- main --- */

static int make_models(void **state)
{
    (void)state;
    const variant_file files[] = { { "tokenizer.json", support_tokenizer8 },
                                   { "generation_config.json", "{\"stop_strings\": [\"a\", \"b\"], \"num_beams\": 2, "
                                                               "\"suppress_tokens\": [1], \"bad_words_ids\": [[1, 2]]}" } };
    const variant_file wrong[] = { files[0], { "generation_config.json", "{\"stop_strings\": [\"a\", 1]}" } };
    support_variant(target_dir, SPEC_TEST_DIR "/golden/law8-target", files, 2);
    support_variant(drafter_dir, SPEC_TEST_DIR "/golden/law8-drafter", wrong, 2);
    char *other = support_other_tokenizer8();
    const variant_file others[] = { { "tokenizer.json", other }, wrong[1] };
    support_variant(other_dir, SPEC_TEST_DIR "/golden/law8-drafter", others, 2);
    free(other);
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    support_variant_remove(target_dir);
    support_variant_remove(drafter_dir);
    support_variant_remove(other_dir);
    return 0;
}

int main(void)
{
#ifdef SPEC_NO_TOKENIZER
    printf("SKIPPED: built without tokenizers\n");
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_fails),
        cmocka_unit_test(device_memory_fails),
        cmocka_unit_test(generation_keeps_what_was_said),
        cmocka_unit_test(sequences_survive),
        cmocka_unit_test(texts_survive),
        cmocka_unit_test(steps_take_nothing),
        cmocka_unit_test(copies_fail),
        cmocka_unit_test(tokenizers_fail),
    };
    spec_backend_close(support_backend());
    return cmocka_run_group_tests_name("alloc_failure", tests, make_models, remove_models);
}
