/* test_memory.c - the estimate of a session's device memory is exact: a backend that counts compares it with what the
 * session takes, for every kind of model, drafter and option. The CPU's kernels, whose device memory is the host's. */
#include <stdlib.h>
#include <string.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "backends/backend.h"
#include "backends/cpu/cpu.h"
#include "tests/support_decode.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* --- the backend that counts --- */

enum { MOST_BUFFERS = 4096 };

static struct {
    struct {
        void *p;
        size_t bytes;
    } buffer[MOST_BUFFERS];
    int32_t n_buffer;
    uint64_t bytes;       /* of the buffers that there are */
    uint64_t queue_bytes; /* what the latest queue was said to take, by the plans that it was opened with */
} counted;

static spec_status counting_alloc(spec_device *dev, void **out, size_t bytes)
{
    SPEC_TRY(speci_cpu_ops.alloc(dev, out, bytes));
    assert_true(counted.n_buffer < MOST_BUFFERS);
    counted.buffer[counted.n_buffer].p = *out;
    counted.buffer[counted.n_buffer++].bytes = bytes;
    counted.bytes += bytes;
    return SPEC_OK;
}

static void counting_free(spec_device *dev, void *p, size_t bytes)
{
    int32_t i = 0;
    if (!p) return;
    while (i < counted.n_buffer && counted.buffer[i].p != p) i++;
    assert_true(i < counted.n_buffer);
    assert_int_equal(counted.buffer[i].bytes, bytes); /* what is freed is said to be as large as it was */
    counted.bytes -= bytes;
    counted.buffer[i] = counted.buffer[--counted.n_buffer];
    speci_cpu_ops.free(dev, p, bytes);
}

static spec_status counting_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan,
                                       int32_t n_vocab)
{
    if (n_plan > 1) counted.queue_bytes = speci_cpu_ops.queue_bytes(dev, plans, n_plan, n_vocab); /* a head's table takes one for itself */
    return speci_cpu_ops.queue_open(dev, out, plans, n_plan, n_vocab);
}

/* With marks a session takes memory for steps that go ahead. Here all that was queued is done. */
static spec_status mark(spec_queue *q, uint64_t *m)
{
    (void)q;
    *m = 0;
    return SPEC_OK;
}

static spec_status wait_for(spec_queue *q, uint64_t m)
{
    (void)q, (void)m;
    return SPEC_OK;
}

static spec_backend *open_counting(spec_backend_ops *ops, bool with_marks)
{
    spec_backend *be = NULL;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    *ops = speci_cpu_ops;
    ops->alloc = counting_alloc, ops->free = counting_free, ops->queue_open = counting_queue_open;
    if (with_marks) ops->mark = mark, ops->wait = wait_for;
    p.n_threads = 2;
    OK(spec_backend_open_ops(&be, ops, NULL, &p));
    return be;
}

/* --- drafters --- */

static spec_status draft_nothing(void *user, spec_draft_request *requests, int32_t n)
{
    (void)user, (void)requests, (void)n;
    return SPEC_OK;
}

static spec_status uniform(void *user, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree,
                           const int32_t *nodes, int32_t n_node, float *probs, int32_t n_vocab)
{
    (void)user, (void)seq, (void)ids, (void)n, (void)tree, (void)nodes;
    for (int32_t i = 0; i < n_node * n_vocab; i++) probs[i] = 1.0f / (float)n_vocab;
    return SPEC_OK;
}

typedef struct drafting {
    const char *tree;  /* NULL with a model: no drafter */
    bool whole, probs; /* an application's own: whole trees; distributions for `tree` */
    spec_adapt adapt;
} drafting;

static const drafting draftings[] = {
    { NULL, false, false, SPEC_ADAPT_OFF },
    { "chain:3", false, false, SPEC_ADAPT_OFF },
    { "product:3,2", false, false, SPEC_ADAPT_OFF },
    { "product-repeat:2,2", false, false, SPEC_ADAPT_OFF },
    { "beam:3,2", false, false, SPEC_ADAPT_OFF },
    { "dyspec:6", false, false, SPEC_ADAPT_OFF },
    { "dyspec-threshold:0.05,16,4,3", false, false, SPEC_ADAPT_OFF },
    { "sequoia:8", false, false, SPEC_ADAPT_OFF },
    { "eagle2:3,6,2", false, false, SPEC_ADAPT_OFF },
    { "none", false, false, SPEC_ADAPT_OFF },
    { "chain:2;product:3,3;dyspec:9", false, false, SPEC_ADAPT_UCB },
    { NULL, true, false, SPEC_ADAPT_OFF },
    { "product:3,2", false, true, SPEC_ADAPT_OFF },
    { "dyspec:6", false, true, SPEC_ADAPT_OFF },
};

static void open_drafter(spec_drafter **dr, spec_model *small, const drafting *d)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = d->whole ? draft_nothing : NULL,
                                   .probs = d->probs ? uniform : NULL };
    *dr = NULL;
    dp.tree = d->tree;
    if (d->whole) dp.n_draft = 5;
    if (d->whole || d->probs) OK(spec_drafter_from_ops(dr, &ops, &dp));
    else if (d->tree) OK(spec_drafter_from_model(dr, small, &dp));
}

/* --- sessions --- */

static void run_some(spec_session *s)
{
    const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7 };
    const spec_sampling sampled = { .temperature = 0.8f, .seed = 2 };
    int32_t seq;
    spec_step_result r;
    OK(add_sampled(s, &seq, ids, 7, &sampled));
    for (int32_t i = 0; i < 3; i++) OK(step_into(s, &r, &seq, 1));
    OK(spec_sequence_remove(s, seq));
}

static void check_session(spec_model *target, spec_model *small, const drafting *d, const spec_session_params *given,
                          const char *what)
{
    spec_session_params sp = *given;
    spec_memory m = { .struct_size = sizeof m };
    spec_drafter *dr;
    spec_session *s;
    sp.adapt = d->adapt;
    open_drafter(&dr, small, d);
    const uint64_t before = counted.bytes;
    OK(spec_session_estimate(&m, target, dr, &sp));
    assert_int_equal(counted.bytes, before);
    assert_true(m.bytes_model >= target->bytes_weights);
    OK(spec_session_open(&s, target, dr, &sp));
    const uint64_t taken = counted.bytes - before + counted.queue_bytes,
                   estimated = m.bytes_state + m.bytes_kv + m.bytes_work;
    if (taken != estimated)
        fail_msg("%s, %s%s, scan %d, advance %d, draft state %d, %d sequences: estimated %llu bytes, taken %llu", what,
                 d->tree ? d->tree : "no tree", d->whole || d->probs ? " of ops" : "", (int)sp.lab->scan,
                 (int)sp.lab->advance, (int)sp.lab->draft_state, sp.n_seq, (unsigned long long)estimated,
                 (unsigned long long)taken);
    if (d->adapt == SPEC_ADAPT_OFF) run_some(s);
    assert_int_equal(counted.bytes - before + counted.queue_bytes, taken); /* the steady state takes nothing */
    spec_session_close(s);
    spec_drafter_close(dr);
    assert_int_equal(counted.bytes, before);
}

static void check_pair(spec_backend *be, const char *target_name, const char *small_name)
{
    static const struct {
        int32_t n_ctx, n_seq, n_node;
    } sizes[] = { { 0, 1, 0 }, { 250, 3, 0 }, { 100, 2, 24 } };
    spec_model *target = support_model(be, target_name, SPEC_DTYPE_AUTO);
    spec_model *small = support_model(be, small_name, SPEC_DTYPE_AUTO);
    for (size_t k = 0; k < sizeof draftings / sizeof *draftings; k++)
        for (int32_t options = 0; options < 8; options++) {
            spec_lab lab = SPEC_LAB_INIT;
            lab.scan = options & 1 ? SPEC_SCAN_RECURRENT : SPEC_SCAN_CHUNKED;
            lab.advance = options & 2 ? SPEC_ADVANCE_JOINT : SPEC_ADVANCE_REPLAY;
            lab.draft_state = options & 4 ? SPEC_DRAFT_STATE_PER_NODE : SPEC_DRAFT_STATE_REPLAY;
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
                sp.n_ctx = sizes[i].n_ctx, sp.n_seq = sizes[i].n_seq, sp.n_node = sizes[i].n_node, sp.lab = &lab;
                check_session(target, small, &draftings[k], &sp, target_name);
            }
        }
    spec_model_close(small);
    spec_model_close(target);
}

static void sessions(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        { GOLDEN "llama3", GOLDEN "mamba2" },      { GOLDEN "mamba", GOLDEN "llama3" },
        { GOLDEN "mamba2", GOLDEN "mamba" },       { GOLDEN "bamba", GOLDEN "bamba" },
        { GOLDEN "mambainllama", GOLDEN "bamba" }, { GOLDEN "mistral", GOLDEN "mistral" },
        { GOLDEN "llama2", GOLDEN "heads/eagle2-llama2" }, { GOLDEN "bamba", GOLDEN "heads/eagle3-bamba" },
        { GOLDEN "mamba2", GOLDEN "heads/lyanna-mamba2" },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int32_t with_marks = 0; with_marks < 2; with_marks++) {
            spec_backend_ops ops;
            spec_backend *be = open_counting(&ops, with_marks != 0);
            check_pair(be, pairs[i][0], pairs[i][1]);
            spec_backend_close(be);
            assert_int_equal(counted.bytes, 0);
        }
}

/* --- the CPU's queues: what queue_bytes says is what they take beside what is the host's by nature --- */

static uint64_t host_bytes; /* as the library asked for them */
static uint64_t header;     /* what it puts in front of each of its allocations */

static void *host_alloc(void *user, size_t bytes, size_t align)
{
    void *p = speci_malloc.alloc(user, bytes, align);
    if (p) host_bytes += bytes - header;
    return p;
}

static void host_free(void *user, void *p, size_t bytes)
{
    if (p) host_bytes -= bytes - header;
    speci_malloc.free(user, p, bytes);
}

static const spec_allocator host_counting = { host_alloc, host_free, NULL };

static void measure_header(void)
{
    void *nothing = speci_alloc(&host_counting, 1, 0);
    const uint64_t found = host_bytes;
    speci_free(&host_counting, nothing);
    header = found;
}

static spec_status host_counting_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan,
                                            int32_t n_vocab)
{
    const uint64_t before = host_bytes;
    SPEC_TRY(speci_cpu_ops.queue_open(dev, out, plans, n_plan, n_vocab));
    const spec_queue *q = *out;
    const uint64_t of_host = sizeof *q + q->step_cap + (size_t)q->n_slot * sizeof *q->slot_taken;
    assert_int_equal(host_bytes - before, of_host + speci_cpu_ops.queue_bytes(dev, plans, n_plan, n_vocab));
    return SPEC_OK;
}

static void queues(void **state)
{
    (void)state;
    static const char *const names[] = { GOLDEN "llama3", GOLDEN "mamba", GOLDEN "mamba2-bf16", GOLDEN "bamba" };
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    spec_backend_ops ops = speci_cpu_ops;
    spec_backend *be;
    ops.queue_open = host_counting_queue_open;
    measure_header();
    p.n_threads = 3, p.allocator = &host_counting;
    OK(spec_backend_open_ops(&be, &ops, NULL, &p));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        spec_model *m = support_model(be, names[i], SPEC_DTYPE_AUTO);
        spec_session *s = support_session(m, 12, 2);
        spec_session_close(s);
        spec_model_close(m);
    }
    spec_backend_close(be);
    assert_int_equal(host_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(sessions), cmocka_unit_test(queues) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
