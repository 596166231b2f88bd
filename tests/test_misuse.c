/* test_misuse.c - objects closed in every order; sessions that are called while they are in a call, by callbacks and by other
 * threads; what spec_session_cancel ends, and what it does not. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support_decode.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static const int32_t prompt[] = { 3, 1, 4, 1, 5 };

/* --- every order of closing --- */

static atomic_int n_block;

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    (void)user;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1) != 0) return NULL;
    atomic_fetch_add(&n_block, 1);
    return p;
}

static void counting_free(void *user, void *p, size_t bytes)
{
    (void)user, (void)bytes;
    if (p) atomic_fetch_sub(&n_block, 1);
    free(p);
}

enum { BACKEND, TARGET, SMALL, DRAFTER, SESSION, N_OBJECT };
typedef struct objects {
    spec_backend *backend;
    spec_model *target, *small;
    spec_drafter *drafter;
    spec_session *session;
} objects;

static void close_one(const objects *o, int32_t which)
{
    if (which == BACKEND) spec_backend_close(o->backend);
    if (which == TARGET) spec_model_close(o->target);
    if (which == SMALL) spec_model_close(o->small);
    if (which == DRAFTER) spec_drafter_close(o->drafter);
    if (which == SESSION) spec_session_close(o->session);
}

/* With a sequence that has drafted and stands between two steps. */
static objects open_all(void)
{
    static const spec_allocator allocator = { counting_alloc, counting_free, NULL };
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    objects o;
    int32_t seq;
    const spec_step_result *r;
    p.allocator = &allocator;
    p.plugin_dir = getenv("SPEC_TEST_PLUGIN_DIR");
    OK(spec_backend_open(&o.backend, support_backend_name(), &p));
    OK(spec_model_open(&o.target, o.backend, GOLDEN "law8-target", NULL));
    OK(spec_model_open(&o.small, o.backend, GOLDEN "law8-drafter", NULL));
    OK(spec_drafter_from_model(&o.drafter, o.small, NULL));
    OK(spec_session_open(&o.session, o.target, o.drafter, NULL));
    OK(add_endless(o.session, &seq, prompt, 5, NULL));
    for (int i = 0; i < 2; i++) OK(spec_step(o.session, &r, &seq, 1));
    return o;
}

/* The n-th of all orders. */
static void order_of(int32_t *order, int32_t n)
{
    int32_t left[N_OBJECT], n_left = N_OBJECT;
    for (int32_t i = 0; i < N_OBJECT; i++) left[i] = i;
    for (int32_t i = 0; i < N_OBJECT; i++) {
        const int32_t k = n % n_left;
        n /= n_left;
        order[i] = left[k];
        memmove(left + k, left + k + 1, (size_t)(--n_left - k) * sizeof *left);
    }
}

static void close_orders(void **state)
{
    enum { N_ORDER = 120 };
    const int32_t step = strncmp(support_backend_name(), "cuda", 4) == 0 ? 11 : 1; /* a device opens slowly */
    (void)state;
    for (int32_t n = 0; n < N_ORDER; n += step) {
        int32_t order[N_OBJECT];
        const objects o = open_all();
        order_of(order, n);
        assert_true(atomic_load(&n_block) > 0);
        for (int32_t i = 0; i < N_OBJECT; i++) {
            assert_true(atomic_load(&n_block) > 0);
            close_one(&o, order[i]);
        }
        if (atomic_load(&n_block) != 0) fail_msg("order %d: %d blocks are left", n, atomic_load(&n_block));
    }
}

/* The struct of an allocator is copied by whatever opens with one: the caller's own may go. */
static void allocators_are_copied(void **state)
{
    spec_allocator a = { counting_alloc, counting_free, NULL };
    spec_corpus_params of_ids = SPEC_CORPUS_PARAMS_INIT;
    spec_drafter *d[2];
    spec_builder *b;
    spec_corpus *c;
    (void)state;
    of_ids.n_vocab = 8, of_ids.allocator = &a;
    OK(spec_drafter_open(&d[0], "ngram:3,4", &a));
    OK(spec_drafter_open(&d[1], "trie:4,3,1", &a));
    OK(spec_builder_open(&b, "chain:3", &a));
    OK(spec_corpus_open(&c, "/tmp/none", &of_ids));
    assert_true(atomic_load(&n_block) > 0);
    memset(&a, 0, sizeof a);
    spec_drafter_close(d[0]);
    spec_drafter_close(d[1]);
    spec_builder_close(b);
    spec_corpus_close(c);
    assert_int_equal(atomic_load(&n_block), 0);
}

/* What lives on is whole: text after everything else was closed. */
static void lives_on(void **state)
{
    (void)state;
    const objects o = open_all();
    spec_result r = SPEC_RESULT_INIT, again = SPEC_RESULT_INIT;
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = 20, p.ignore_eos = 1;
    OK(spec_sequence_remove(o.session, 0));
    OK(spec_generate_ids(o.session, &r, prompt, 5, &p));
    for (int32_t i = 0; i < SESSION; i++) close_one(&o, i);
    OK(spec_generate_ids(o.session, &again, prompt, 5, &p));
    assert_memory_equal(r.ids, again.ids, 20 * sizeof *r.ids);
    spec_result_free(&r), spec_result_free(&again);
    spec_session_close(o.session);
    assert_int_equal(atomic_load(&n_block), 0);
}

/* --- calls of a session that is in one --- */

typedef struct scene {
    spec_session *s;
    int32_t seq;
    void (*inside)(struct scene *c); /* is called by the drafter */
    int32_t n_inside;
    bool closes;
} scene;

static int to_nowhere(void *user, const void *data, size_t n) { return (void)user, (void)data, (void)n, 0; }
static int from_nowhere(void *user, void *data, size_t n) { return (void)user, (void)data, (void)n, 1; }

/* All that a program can ask of a session. */
static void every_call_is_refused(scene *c)
{
    static float row[1 << 12];
    spec_session *s = c->s;
    const spec_tree *tree = NULL;
    const spec_step_result *r;
    const int32_t *ids;
    size_t n;
    int32_t x, path[8] = { 0 }, y;
    spec_result result = SPEC_RESULT_INIT;
    spec_session_info info = SPEC_STRUCT_INIT(spec_session_info);
    spec_cost_profile profile = { .struct_size = sizeof profile };
#define IN_USE(call) FAILS(call, SPEC_E_STATE, "in a call already")
    IN_USE(spec_step(s, &r, &c->seq, 1));
    IN_USE(spec_draft(s, &tree, &c->seq, 1));
    IN_USE(spec_score(s, &c->seq, 1, &tree));
    IN_USE(spec_verify(s, path, &x, &y, c->seq, SPEC_VERIFY_AUTO));
    IN_USE(spec_commit(s, c->seq, path, 1, 1));
    IN_USE(spec_rollback(s, c->seq));
    IN_USE(spec_draft_choice(s, &x, c->seq));
    IN_USE(spec_node_probs(s, row, c->seq, 0));
    IN_USE(spec_draft_probs(s, row, c->seq, 0));
    IN_USE(spec_node_logits(s, row, c->seq, 0));
    IN_USE(spec_node_hidden(s, row, c->seq, 0, 0));
    IN_USE(spec_node_logprobs(s, row, NULL, NULL, c->seq, 0, 1, 0));
    IN_USE(spec_sequence_add(s, &x, prompt, 5, NULL));
    IN_USE(spec_sequence_append(s, c->seq, prompt, 5, NULL));
    IN_USE(spec_sequence_set_request(s, c->seq, NULL));
    IN_USE(spec_sequence_seed(s, c->seq, 1));
    IN_USE(spec_sequence_remove(s, c->seq));
    IN_USE(spec_sequence_ids(s, &ids, &n, c->seq));
    IN_USE(spec_sequence_fork(s, &x, c->seq));
    IN_USE(spec_sequence_save(s, c->seq, to_nowhere, NULL));
    IN_USE(spec_sequence_restore(s, &x, from_nowhere, NULL));
    IN_USE(spec_generate_ids(s, &result, prompt, 5, NULL));
    IN_USE(spec_generate_more(s, &result, c->seq, NULL, 0, NULL));
    IN_USE(spec_session_get_info(s, &info));
    IN_USE(spec_session_profile(s, &profile));
    spec_result_free(&result);
    c->n_inside++;
}

static void *on_thread(void *arg)
{
    every_call_is_refused(arg);
    return NULL;
}

static void another_thread(scene *c)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, on_thread, c), 0);
    pthread_join(thread, NULL);
}

static void cancel(scene *c) { spec_session_cancel(c->s), c->n_inside++; }
static void close_inside(scene *c) { spec_session_close(c->s), c->n_inside++; }

static spec_status draft(void *user_data, spec_draft_request *requests, int32_t n)
{
    scene *c = user_data;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(requests[i].tree, 0, 2, 1);
    if (c->inside) c->inside(c);
    return SPEC_OK;
}

typedef struct stage {
    spec_backend *backend;
    spec_model *model;
    spec_drafter *drafter;
    scene scene;
} stage;

static void open_stage(stage *t)
{
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .user_data = &t->scene, .draft = draft };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    t->scene = (scene){ 0 };
    p.n_seq = 2;
    t->backend = support_backend();
    t->model = support_model(t->backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    OK(spec_drafter_from_ops(&t->drafter, &ops, NULL));
    OK(spec_session_open(&t->scene.s, t->model, t->drafter, &p));
    OK(add_endless(t->scene.s, &t->scene.seq, prompt, 5, NULL));
}

static void close_stage(stage *t)
{
    spec_session_close(t->scene.s);
    spec_drafter_close(t->drafter);
    spec_model_close(t->model);
    spec_backend_close(t->backend);
}

static void in_use(void **state)
{
    void (*const inside[])(scene *) = { every_call_is_refused, another_thread };
    (void)state;
    for (int k = 0; k < 2; k++) {
        const spec_step_result *r;
        stage t;
        open_stage(&t);
        t.scene.inside = inside[k];
        for (int32_t i = 0; i < 3; i++) OK(spec_step(t.scene.s, &r, &t.scene.seq, 1));
        assert_int_equal(t.scene.n_inside, 3);
        close_stage(&t);
    }
}

/* A callback may close the session: it is gone when the call has returned. */
static void closed_inside(void **state)
{
    const spec_step_result *r;
    stage t;
    (void)state;
    open_stage(&t);
    t.scene.inside = close_inside;
    (void)spec_step(t.scene.s, &r, &t.scene.seq, 1);
    assert_int_equal(t.scene.n_inside, 1);
    t.scene.s = NULL;
    spec_session *again; /* the drafter serves nobody */
    OK(spec_session_open(&again, t.model, t.drafter, NULL));
    spec_session_close(again);
    close_stage(&t);
}

/* --- cancel --- */

static void cancelled(void **state)
{
    const spec_step_result *r;
    const spec_tree *tree;
    const int32_t *ids;
    size_t n;
    int32_t seq;
    stage t;
    (void)state;
    open_stage(&t);
    scene *c = &t.scene;
    c->inside = cancel; /* while it drafts: a step ends, and the next one does not */
    FAILS(spec_step(c->s, &r, &c->seq, 1), SPEC_E_ABORTED, "stopped after drafting");
    c->inside = NULL;
    OK(spec_step(c->s, &r, &c->seq, 1));
    spec_session_cancel(c->s); /* between calls: the next of those that take time */
    FAILS(spec_draft(c->s, &tree, &c->seq, 1), SPEC_E_ABORTED, "drafting");
    OK(spec_draft(c->s, &tree, &c->seq, 1));
    spec_session_cancel(c->s);
    OK(spec_sequence_ids(c->s, &ids, &n, c->seq));
    FAILS(spec_score(c->s, &c->seq, 1, &tree), SPEC_E_ABORTED, "scoring");
    OK(spec_score(c->s, &c->seq, 1, &tree));
    OK(spec_rollback(c->s, c->seq));
    spec_session_cancel(c->s);
    FAILS(spec_sequence_add(c->s, &seq, prompt, 5, NULL), SPEC_E_ABORTED, "prompt");
    OK(spec_sequence_add(c->s, &seq, prompt, 5, NULL));
    OK(spec_sequence_remove(c->s, seq));
    spec_session_cancel(c->s); /* an appended prompt is consumed by the next step */
    FAILS(spec_sequence_append(c->s, c->seq, prompt, 5, NULL), SPEC_E_ABORTED, "prompt");
    OK(spec_step(c->s, &r, &c->seq, 1));
    assert_true(r->n_tokens > 0);
    close_stage(&t);
}

/* A result without room for what has to be freed is refused, and nothing behind it is touched, whatever is freed. */
static void results_have_room(void **state)
{
    (void)state;
    const objects o = open_all();
    OK(spec_sequence_remove(o.session, 0));
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = 4;
    for (size_t size = 0; size < offsetof(spec_result, stop); size += sizeof size) {
        size_t *room = malloc(size > sizeof size ? size : sizeof size); /* a sanitizer sees what is read behind it */
        assert_non_null(room);
        if (size > sizeof size) memset(room, 0xff, size);
        *room = size;
        FAILS(spec_generate_ids(o.session, (spec_result *)(void *)room, prompt, 5, &p), SPEC_E_INVALID, "spec_result.struct_size");
        spec_result_free((spec_result *)(void *)room);
        free(room);
    }
    for (int i = 0; i < N_OBJECT; i++) close_one(&o, N_OBJECT - 1 - i);
    assert_int_equal(atomic_load(&n_block), 0);
}

/* Choices of a session that there are none of: the numbers in front of the first and behind the last. */
static void wrong_choices(void **state)
{
    (void)state;
    const objects o = open_all();
    static const struct {
        int32_t verify, adapt, combine, n_prompt_step, n_drafter;
        const char *part;
    } cases[] = {
        { 99, 0, 0, 0, 0, "no verification rule 99" },  { 0, -1, 0, 0, 0, "no way -1 to choose" },
        { 0, SPEC_ADAPT_UCB + 1, 0, 0, 0, "to choose among trees" }, { 0, 0, -1, 0, 0, "no way -1 to combine" },
        { 0, 0, SPEC_DRAFT_CHOOSE + 1, 0, 0, "to combine drafters" }, { 0, 0, 0, -1, 0, "n_prompt_step is -1" },
        { 0, 0, 0, 0, 2, "a list of 2 drafters, which is NULL" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_session *s;
        p.verify = (spec_verify_rule)cases[i].verify, p.adapt = (spec_adapt)cases[i].adapt;
        p.combine = (spec_draft_combine)cases[i].combine, p.n_prompt_step = cases[i].n_prompt_step;
        p.n_drafter = cases[i].n_drafter;
        FAILS(spec_session_open(&s, o.target, NULL, &p), SPEC_E_INVALID, cases[i].part);
        assert_null(s);
    }
    for (int i = 0; i < N_OBJECT; i++) close_one(&o, N_OBJECT - 1 - i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_orders),      cmocka_unit_test(allocators_are_copied), cmocka_unit_test(lives_on),
        cmocka_unit_test(results_have_room), cmocka_unit_test(in_use),                cmocka_unit_test(closed_inside),
        cmocka_unit_test(cancelled),         cmocka_unit_test(wrong_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
