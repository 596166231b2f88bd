/* test_decode_calls.c - the four calls, drafters of an application's own, drafters that do not fit, memory: what is
 * refused, with which words, and that a sequence goes on as if nothing had been asked. */
#include "tests/support_decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "tests/support_sequence.h"

static spec_backend *backend;
static spec_model *target, *small;

enum { N_PROMPT = 6, N_NEW = 40, N_VOCAB = 4096 };
static const int32_t prompt[N_PROMPT] = { 0, 310, 287, 1045, 99, 512 };
static const spec_sampling greedy, sampled = { 0.9f, 0, 0.95f, 0, 21 };

/* --- drafters of an application's own --- */

typedef struct own_drafter {
    const int32_t *truth;  /* what plain decoding says after the prompt */
    int32_t n_prompt, n_truth;
    int32_t kind;
    int32_t n_begin, n_end, n_close, n_draft;
    uint64_t random;
} own_drafter;

static int32_t truth_at(const own_drafter *d, size_t position)
{
    const size_t i = position - (size_t)d->n_prompt;
    return i < (size_t)d->n_truth ? d->truth[i] : 1;
}

static void add(spec_tree *t, int32_t token, int32_t parent)
{
    if (t->n == t->cap) return;
    t->token[t->n] = token;
    t->parent[t->n++] = parent;
}

static void oracle(own_drafter *d, size_t n, spec_tree *t)
{
    for (size_t i = 0; t->n < t->cap; i++) add(t, truth_at(d, n + i), t->n - 1);
}

static void nonsense(own_drafter *d, size_t n, spec_tree *t)
{
    (void)n;
    while (t->n < t->cap) add(t, (int32_t)(support_random(&d->random) % N_VOCAB), t->n - 1);
}

/* Under each node of the true path: a wrong child before the right one, a wrong one after it with a child of its own, in
 * breadth-first order. The trunk has the length that fits. */
static void branching(own_drafter *d, size_t n, spec_tree *t)
{
    for (int32_t trunk = 0, depth = 0; t->n + 4 <= t->cap; depth++) {
        const int32_t truth = truth_at(d, n + (size_t)depth);
        const int32_t wrong = (truth + 1 + (int32_t)(support_random(&d->random) % 50)) % N_VOCAB;
        add(t, wrong, trunk);
        const int32_t next = t->n;
        add(t, truth, trunk);
        add(t, (truth + 100) % N_VOCAB, trunk);
        add(t, truth, t->n - 1);
        trunk = next;
    }
}

/* Sometimes right for a while, sometimes nothing at all. */
static void moody(own_drafter *d, size_t n, spec_tree *t)
{
    const int32_t good = (int32_t)(support_random(&d->random) % 5);
    for (int32_t i = 0; i < good + 2 && good > 0; i++)
        add(t, i < good ? truth_at(d, n + (size_t)i) : 7, t->n - 1);
}

static void (*const kinds[])(own_drafter *, size_t, spec_tree *) = { oracle, nonsense, branching, moody };
enum { ORACLE, NONSENSE, BRANCHING, MOODY, N_KIND };
static const char *const kind_names[] = { "oracle", "nonsense", "branching", "moody" };

static spec_status own_draft(void *user, spec_draft_request *requests, int32_t n)
{
    own_drafter *d = user;
    d->n_draft++;
    for (int32_t i = 0; i < n; i++) {
        spec_tree *tree = requests[i].tree;
        assert_int_equal(tree->n, 1);
        assert_int_equal(tree->token[0], requests[i].ids[requests[i].n_ids - 1]);
        kinds[d->kind](d, requests[i].n_ids, tree);
    }
    return SPEC_OK;
}

static spec_status own_begin(void *user, int32_t seq, const int32_t *ids, size_t n)
{
    (void)seq, (void)ids, (void)n;
    ((own_drafter *)user)->n_begin++;
    return SPEC_OK;
}
static void own_end(void *user, int32_t seq) { (void)seq, ((own_drafter *)user)->n_end++; }
static void own_close(void *user) { ((own_drafter *)user)->n_close++; }

static spec_session *open_own(own_drafter *d, spec_drafter **dr, spec_drafter_ops ops, int32_t n_draft, int32_t n_node)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    ops.struct_size = sizeof ops, ops.user_data = d;
    dp.n_draft = n_draft;
    sp.n_node = n_node, sp.n_ctx = 512;
    OK(spec_drafter_from_ops(dr, &ops, &dp));
    OK(spec_session_open(&s, target, *dr, &sp));
    return s;
}

static void own_drafters_change_nothing(void **state)
{
    (void)state;
    int32_t truth[N_NEW];
    const spec_sampling *const distributions[] = { &greedy, &sampled };
    for (int probs = 0; probs < 2; probs++) {
        support_plain_ids(target, prompt, N_PROMPT, distributions[probs], N_NEW, truth);
        for (int kind = 0; kind < N_KIND; kind++) {
            own_drafter d = { .truth = truth, .n_prompt = N_PROMPT, .n_truth = N_NEW, .kind = kind, .random = 3 };
            spec_drafter *dr;
            const spec_drafter_ops ops = { .draft = own_draft, .prefill = own_begin, .end = own_end, .close = own_close };
            spec_session *s = open_own(&d, &dr, ops, 12, 0);
            spec_request p = SPEC_REQUEST_INIT;
            spec_result r = SPEC_RESULT_INIT;
            p.n_predict = N_NEW, p.ignore_eos = 1, p.sampling = *distributions[probs];
            OK(spec_generate_ids(s, &r, prompt, N_PROMPT, &p));
            assert_int_equal(r.n_ids, N_NEW);
            assert_memory_equal(r.ids, truth, sizeof truth);
            print_message("  %-10s T %.1f: %lld of %lld accepted in %lld steps\n", kind_names[kind],
                          (double)distributions[probs]->temperature, (long long)r.n_accepted, (long long)r.n_drafted,
                          (long long)r.n_step);
            if (kind == ORACLE) assert_int_equal(r.n_step, (N_NEW + 12) / 13);
            if (kind == BRANCHING) assert_int_equal(r.n_step, (N_NEW + 3) / 4);
            if (kind == NONSENSE) assert_true(r.n_accepted <= 2);
            spec_result_free(&r);
            assert_int_equal(d.n_begin, 1);
            assert_int_equal(d.n_end, 1);
            spec_session_close(s);
            assert_int_equal(d.n_close, 0);
            spec_drafter_close(dr);
            assert_int_equal(d.n_close, 1);
        }
    }
}

/* --- drafters that misbehave --- */

enum { NO_STATUS = 77 };

static void too_many(spec_tree *t) { t->n = t->cap + 1; }
static void none(spec_tree *t) { t->n = 0; }
static void negative(spec_tree *t) { t->n = -5; }
static void other_root(spec_tree *t) { t->token[0]++; }
static void root_with_parent(spec_tree *t) { t->parent[0] = 0; }
static void twins(spec_tree *t) { add(t, 5, 0), add(t, 6, 0), add(t, 5, 0); }
static void later_parent(spec_tree *t) { add(t, 5, 2), add(t, 6, 0); }
static void own_parent(spec_tree *t) { add(t, 5, 1); }
static void second_root(spec_tree *t) { add(t, 5, -1); }
static void far_parent(spec_tree *t) { add(t, 5, 1000000); }
static void unknown_token(spec_tree *t) { add(t, N_VOCAB, 0); }
static void negative_token(spec_tree *t) { add(t, -1, 0); }

static const struct misbehaviour {
    const char *name;
    void (*fill)(spec_tree *);
    spec_status code;
    const char *words;
} misbehaviours[] = {
    { "too many nodes", too_many, SPEC_E_INVALID, "overran its tree" },
    { "no node", none, SPEC_E_INVALID, "changed the root or overran" },
    { "minus five nodes", negative, SPEC_E_INVALID, "overran" },
    { "another root", other_root, SPEC_E_INVALID, "changed the root" },
    { "a root with a parent", root_with_parent, SPEC_E_INVALID, "node 0 has parent 0" },
    { "siblings alike", twins, SPEC_E_INVALID, "siblings with the same token 5" },
    { "a parent behind its child", later_parent, SPEC_E_INVALID, "node 1 has parent 2" },
    { "a node that is its own parent", own_parent, SPEC_E_INVALID, "node 1 has parent 1" },
    { "two roots", second_root, SPEC_E_INVALID, "node 1 has parent -1" },
    { "a parent out of sight", far_parent, SPEC_E_INVALID, "node 1 has parent 1000000" },
    { "an unknown token", unknown_token, SPEC_E_INVALID, "4096" },
    { "a negative token", negative_token, SPEC_E_INVALID, "-1" },
    { "an error", NULL, SPEC_E_DEVICE, "sequence 0: draft of the application's drafter failed with E_DEVICE" },
    { "no status", NULL, SPEC_E_INVALID, "draft of the application's drafter returned 77, which is no status" },
};

typedef struct unreliable {
    own_drafter good;
    const struct misbehaviour *now; /* NULL: behaves */
} unreliable;

static spec_status unreliable_draft(void *user, spec_draft_request *requests, int32_t n)
{
    unreliable *d = user;
    if (!d->now) return own_draft(&d->good, requests, n);
    if (!d->now->fill) return d->now->code == SPEC_E_INVALID ? (spec_status)NO_STATUS : d->now->code;
    d->now->fill(requests[0].tree);
    return SPEC_OK;
}

static void misbehaving_drafters_are_refused(void **state)
{
    (void)state;
    int32_t truth[N_NEW];
    support_plain_ids(target, prompt, N_PROMPT, NULL, N_NEW, truth);
    unreliable d = { .good = { .truth = truth, .n_prompt = N_PROMPT, .n_truth = N_NEW, .kind = MOODY, .random = 9 } };
    spec_drafter *dr;
    spec_session *s = open_own(&d.good, &dr, (spec_drafter_ops){ .draft = unreliable_draft }, 6, 0);
    int32_t seq;
    size_t n = 0;
    const int32_t *ids;
    spec_step_result r;
    OK(spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL));
    for (size_t i = 0; n < N_PROMPT + N_NEW - 8; i++) {
        const struct misbehaviour *m = &misbehaviours[i % (sizeof misbehaviours / sizeof *misbehaviours)];
        int32_t before, after;
        OK(spec_sequence_ids(s, &ids, &n, seq));
        before = (int32_t)n;
        d.now = m;
        FAILS(step_into(s, &r, &seq, 1), m->code, m->words);
        OK(spec_sequence_ids(s, &ids, &n, seq));
        after = (int32_t)n;
        assert_int_equal(after, before);
        d.now = NULL;
        OK(step_into(s, &r, &seq, 1));
        OK(spec_sequence_ids(s, &ids, &n, seq));
        assert_memory_equal(ids + N_PROMPT, truth, (n - N_PROMPT) * sizeof *ids);
    }
    spec_session_close(s);
    spec_drafter_close(dr);
    const spec_drafter_ops empty = { .struct_size = sizeof empty };
    FAILS(spec_drafter_from_ops(&dr, NULL, NULL), SPEC_E_INVALID, "ops is NULL");
    FAILS(spec_drafter_from_ops(&dr, &empty, NULL), SPEC_E_INVALID, "one of the callbacks draft and probs");
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    dp.n_draft = 64;
    FAILS(spec_drafter_from_model(&dr, small, &dp), SPEC_E_INVALID, "n_draft is 64");
    dp.n_draft = 0, dp.temperature = -1;
    FAILS(spec_drafter_from_model(&dr, small, &dp), SPEC_E_INVALID, "temperature is -1");
}

/* --- what callbacks return --- */

typedef struct refusing {
    const char *callback; /* that fails */
    spec_status returned;
} refusing;

static spec_status refuse(void *user, const char *callback)
{
    const refusing *r = user;
    return strcmp(r->callback, callback) == 0 ? r->returned : SPEC_OK;
}

static spec_status refusing_prefill(void *user, int32_t seq, const int32_t *ids, size_t n)
{
    return (void)seq, (void)ids, (void)n, refuse(user, "prefill");
}
static spec_status refusing_fork(void *user, int32_t seq, int32_t copy) { return (void)seq, (void)copy, refuse(user, "fork"); }
static spec_status refusing_save(void *user, int32_t seq, spec_write_fn write, void *data)
{
    const spec_status status = refuse(user, "save");
    return (void)seq, status != SPEC_OK ? status : write(data, "x", 1) ? SPEC_E_IO : SPEC_OK;
}
static spec_status refusing_restore(void *user, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *data)
{
    char x;
    const spec_status status = refuse(user, "restore");
    return (void)seq, (void)ids, (void)n, status != SPEC_OK ? status : read(data, &x, 1) ? SPEC_E_IO : SPEC_OK;
}
static spec_status refusing_probs(void *user, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree,
                                  const int32_t *nodes, int32_t n_node, float *probs, int32_t n_vocab)
{
    (void)seq, (void)ids, (void)n, (void)tree, (void)nodes;
    memset(probs, 0, (size_t)n_node * (size_t)n_vocab * sizeof *probs);
    for (int32_t i = 0; i < n_node; i++) probs[(size_t)i * (size_t)n_vocab + 5] = 1;
    return refuse(user, "probs");
}
static spec_status refusing_hidden(void *user, int32_t seq, const int32_t *ids, size_t n, int32_t first, int32_t n_row,
                                   const float *const *rows)
{
    return (void)seq, (void)ids, (void)n, (void)first, (void)n_row, (void)rows, refuse(user, "hidden");
}

/* All that a drafter is asked in the life of a sequence, up to what fails. */
static spec_status live(refusing *r)
{
    static const spec_tap tap = { SPEC_TAP_NORM, 0 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .user_data = r, .probs = refusing_probs, .prefill = refusing_prefill,
                                   .fork = refusing_fork, .identity = 3, .save = refusing_save, .restore = refusing_restore,
                                   .taps = &tap, .n_tap = 1, .hidden = refusing_hidden };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *dr;
    spec_session *s;
    spec_step_result result;
    int32_t seq, copy;
    support_stream saved = { 0 };
    dp.tree = "chain:2", sp.n_ctx = 64, sp.n_seq = 3;
    OK(spec_drafter_from_ops(&dr, &ops, &dp));
    OK(spec_session_open(&s, target, dr, &sp));
    spec_status status = spec_sequence_add(s, &seq, prompt, N_PROMPT, NULL);
    if (status == SPEC_OK) status = step_into(s, &result, &seq, 1);
    if (status == SPEC_OK) status = spec_sequence_fork(s, &copy, seq);
    if (status == SPEC_OK) status = spec_sequence_save(s, seq, support_to_stream, &saved);
    if (status == SPEC_OK) status = spec_sequence_restore(s, &copy, support_from_stream, &saved);
    spec_session_close(s);
    spec_drafter_close(dr);
    free(saved.data);
    return status;
}

static void each_callback_is_named_when_it_fails(void **state)
{
    (void)state;
    static const char *const callbacks[] = { "prefill", "hidden", "probs", "fork", "save", "restore" };
    refusing none = { "none", SPEC_OK };
    OK(live(&none));
    for (size_t i = 0; i < sizeof callbacks / sizeof *callbacks; i++) {
        char words[80];
        refusing no_status = { callbacks[i], (spec_status)NO_STATUS }, silent = { callbacks[i], SPEC_E_FULL };
        snprintf(words, sizeof words, "%s of the application's drafter returned 77, which is no status", callbacks[i]);
        FAILS(live(&no_status), SPEC_E_INVALID, words);
        snprintf(words, sizeof words, "%s of the application's drafter failed with E_FULL, and said", callbacks[i]);
        FAILS(live(&silent), SPEC_E_FULL, words);
    }
}

/* --- score --- */

enum { MAX_TREE = 80 };
typedef struct tree_case {
    const char *name;
    int32_t n, token[8], parent[8];
    spec_status code;
    const char *words;
} tree_case;

/* token 0 stands for the pending token, unless the name says otherwise */
static const tree_case bad_trees[] = {
    { "no node", 0, { 0 }, { -1 }, SPEC_E_INVALID, "a tree of 0 nodes" },
    { "a root with a parent", 2, { 0, 5 }, { 0, 0 }, SPEC_E_INVALID, "node 0 has parent 0" },
    { "two roots", 2, { 0, 5 }, { -1, -1 }, SPEC_E_INVALID, "node 1 has parent -1" },
    { "its own parent", 3, { 0, 5, 6 }, { -1, 0, 2 }, SPEC_E_INVALID, "node 2 has parent 2" },
    { "a cycle", 4, { 0, 5, 6, 7 }, { -1, 3, 1, 2 }, SPEC_E_INVALID, "node 1 has parent 3" },
    { "a parent behind the tree", 2, { 0, 5 }, { -1, 40 }, SPEC_E_INVALID, "node 1 has parent 40" },
    { "a parent far below", 2, { 0, 5 }, { -1, INT32_MIN }, SPEC_E_INVALID, "node 1 has parent" },
    { "a negative token", 3, { 0, 5, -7 }, { -1, 0, 1 }, SPEC_E_INVALID, "node 2 has token -7; the vocabulary" },
    { "a token too large", 3, { 0, N_VOCAB, 5 }, { -1, 0, 1 }, SPEC_E_INVALID, "node 1 has token 4096; the vocabulary" },
    { "siblings alike", 4, { 0, 5, 6, 5 }, { -1, 0, 1, 0 }, SPEC_E_INVALID, "siblings with the same token 5" },
    { "another root", 2, { 77, 5 }, { -1, 0 }, SPEC_E_INVALID, "the root is token 77; the pending token" },
};

static spec_session *open_calls(int32_t n_node, int32_t *seq, int32_t n_seq)
{
    spec_session *s = support_session(target, n_node, n_seq);
    for (int32_t i = 0; i < n_seq; i++) OK(spec_sequence_add(s, &seq[i], prompt, N_PROMPT, NULL));
    return s;
}

/* Logits after the prompt and after one more token. */
static void expect_logits(spec_session *s, int32_t seq, const float *want, const char *what)
{
    int32_t token[] = { prompt[N_PROMPT - 1], 33 }, parent[] = { -1, 0 };
    const spec_tree tree = { .n = 2, .cap = 2, .token = token, .parent = parent }, *trees = &tree;
    float *row = malloc(N_VOCAB * sizeof *row);
    OK(spec_score(s, &seq, 1, &trees));
    for (int32_t node = 0; node < 2; node++) {
        OK(spec_node_logits(s, row, seq, node));
        if (memcmp(row, want + node * N_VOCAB, N_VOCAB * sizeof *row) != 0)
            fail_msg("logits of node %d are not what they were before %s", node, what);
    }
    free(row);
}

static float *first_logits(void)
{
    float *rows = malloc(2 * N_VOCAB * sizeof *rows);
    int32_t seq;
    spec_session *s = open_calls(1, &seq, 1);
    support_plain_step(s, seq, prompt[N_PROMPT - 1], 33, rows);
    support_plain_step(s, seq, 33, 34, rows + N_VOCAB);
    spec_session_close(s);
    return rows;
}

static void bad_trees_are_refused(void **state)
{
    (void)state;
    float *want = first_logits();
    int32_t seqs[2], token[MAX_TREE], parent[MAX_TREE];
    spec_session *s = open_calls(MAX_TREE - 8, seqs, 2);
    for (size_t i = 0; i < sizeof bad_trees / sizeof *bad_trees; i++) {
        const tree_case *c = &bad_trees[i];
        memcpy(token, c->token, sizeof c->token);
        memcpy(parent, c->parent, sizeof c->parent);
        if (token[0] == 0) token[0] = prompt[N_PROMPT - 1];
        const spec_tree bad = { .n = c->n, .cap = c->n, .token = token, .parent = parent }, *both[2] = { &bad, &bad };
        FAILS(spec_score(s, seqs, 1, both), c->code, c->words);
        /* also where the other sequence's tree is good */
        int32_t good_token = prompt[N_PROMPT - 1], good_parent = -1;
        const spec_tree good = { .n = 1, .cap = 1, .token = &good_token, .parent = &good_parent };
        both[0] = &good;
        FAILS(spec_score(s, seqs, 2, both), c->code, c->words);
        expect_logits(s, seqs[i % 2], want, c->name);
    }
    for (int32_t i = 0; i < MAX_TREE; i++) token[i] = i == 0 ? prompt[N_PROMPT - 1] : i, parent[i] = i - 1;
    const spec_tree big = { .n = MAX_TREE, .cap = MAX_TREE, .token = token, .parent = parent }, deep = { .n = 65, .cap = 65, .token = token,
                                                                                                    .parent = parent };
    const spec_tree deepest = { .n = 64, .cap = 64, .token = token, .parent = parent };
    const spec_tree *trees[2] = { &big, &big };
    FAILS(spec_score(s, seqs, 1, trees), SPEC_E_INVALID, "a tree of 80 nodes; 1 to 72 are planned for");
    trees[0] = NULL;
    FAILS(spec_score(s, seqs, 1, trees), SPEC_E_INVALID, "a tree without tokens");
    trees[0] = &deep;
    FAILS(spec_score(s, seqs, 1, trees), SPEC_E_INVALID, "node 64 is deeper than 63");
    expect_logits(s, seqs[0], want, "a deep tree");
    trees[0] = &deepest;
    OK(spec_score(s, seqs, 1, trees));
    expect_logits(s, seqs[0], want, "the deepest tree");
    spec_session_close(s);
    free(want);
}

static void bad_sequences_are_refused(void **state)
{
    (void)state;
    float *want = first_logits();
    int32_t seqs[2], token = prompt[N_PROMPT - 1], parent = -1;
    const spec_tree one = { .n = 1, .cap = 1, .token = &token, .parent = &parent }, *trees[3] = { &one, &one, &one };
    spec_session *s = open_calls(4, seqs, 2);
    spec_step_result r[3];
    int32_t twice[] = { seqs[0], seqs[0] }, unknown[] = { seqs[0], 7 }, negative_one[] = { -1 }, three[] = { 0, 1, 2 };
    FAILS(spec_score(s, twice, 2, trees), SPEC_E_INVALID, "given twice");
    FAILS(spec_score(s, unknown, 2, trees), SPEC_E_INVALID, "no sequence 7");
    FAILS(spec_score(s, negative_one, 1, trees), SPEC_E_INVALID, "no sequence -1");
    FAILS(spec_score(s, three, 3, trees), SPEC_E_INVALID, "3 sequences; the session has 2");
    FAILS(spec_score(s, seqs, 0, trees), SPEC_E_INVALID, "0 sequences");
    FAILS(step_into(s, r, twice, 2), SPEC_E_INVALID, "given twice");
    FAILS(spec_draft(s, trees, unknown, 2), SPEC_E_INVALID, "no sequence 7");
    OK(spec_sequence_remove(s, seqs[1]));
    FAILS(step_into(s, r, seqs, 2), SPEC_E_INVALID, "no sequence");
    FAILS(spec_sequence_remove(s, seqs[1]), SPEC_E_INVALID, "no sequence");
    expect_logits(s, seqs[0], want, "sequences that are not there");
    int32_t again;
    OK(spec_sequence_add(s, &again, prompt, N_PROMPT, NULL));
    assert_int_equal(again, seqs[1]); /* numbers are used again */
    expect_logits(s, again, want, "the number was used before");
    FAILS(spec_sequence_add(s, &again, prompt, N_PROMPT, NULL), SPEC_E_BUSY, "all 2 sequences");
    spec_session_close(s);
    free(want);
}

static void calls_out_of_order_are_refused(void **state)
{
    (void)state;
    float *want = first_logits(), *row = malloc(N_VOCAB * sizeof *row);
    int32_t seq, path[4] = { 0 }, n_path, token;
    spec_session *s = open_calls(4, &seq, 1);
    FAILS(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO), SPEC_E_STATE, "nothing was scored");
    FAILS(spec_commit(s, seq, path, 1, 5), SPEC_E_STATE, "nothing was scored");
    FAILS(spec_node_logits(s, row, seq, 0), SPEC_E_STATE, "nothing was scored");
    FAILS(spec_node_logprobs(s, row, NULL, NULL, seq, 0, 1, 0), SPEC_E_STATE, "nothing was scored");
    OK(spec_rollback(s, seq));
    expect_logits(s, seq, want, "calls before score");

    int32_t tokens[] = { prompt[N_PROMPT - 1], 33, 34, 35 }, parents[] = { -1, 0, 0, 1 };
    const spec_tree tree = { .n = 4, .cap = 4, .token = tokens, .parent = parents }, *trees = &tree;
    OK(spec_score(s, &seq, 1, &trees));
    FAILS(spec_verify(s, path, &n_path, &token, seq, (spec_verify_rule)9), SPEC_E_INVALID, "rule 9");
    static const struct {
        int32_t n, path[6], token;
        const char *words;
    } bad[] = {
        { 0, { 0 }, 5, "a path of 0 nodes" },         { -1, { 0 }, 5, "a path of -1 nodes" },
        { 5, { 0, 1, 3, 3, 3 }, 5, "a path of 5" },   { 1, { 1 }, 5, "begin at the root" },
        { 2, { 0, 0 }, 5, "entry 1 is node 0" },      { 2, { 0, 3 }, 5, "node 3, not a child of node 0" },
        { 2, { 0, 4 }, 5, "entry 1 is node 4" },      { 2, { 0, -1 }, 5, "entry 1 is node -1" },
        { 3, { 0, 2, 3 }, 5, "not a child of node 2" }, { 3, { 0, 1, 1 }, 5, "not a child of node 1" },
        { 2, { 0, 1 }, N_VOCAB, "token 4096" },       { 1, { 0 }, -1, "token -1" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        FAILS(spec_commit(s, seq, bad[i].path, bad[i].n, bad[i].token), SPEC_E_INVALID, bad[i].words);
    spec_request other = SPEC_REQUEST_INIT; /* a score is of the request that it was asked with */
    other.sampling.top_k = -1;
    FAILS(spec_sequence_set_request(s, seq, &other), SPEC_E_INVALID, "top_k");
    OK(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO));
    OK(spec_sequence_set_request(s, seq, NULL));
    FAILS(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO), SPEC_E_STATE, "nothing was scored");
    OK(spec_score(s, &seq, 1, &trees));
    const int32_t good[] = { 0, 1, 3 };
    OK(spec_commit(s, seq, good, 3, 44));
    FAILS(spec_commit(s, seq, good, 3, 44), SPEC_E_STATE, "nothing was scored");
    const int32_t *ids, expected[] = { 33, 35, 44 };
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seq));
    assert_int_equal(n, N_PROMPT + 3);
    assert_memory_equal(ids + N_PROMPT, expected, sizeof expected);
    spec_session_close(s);
    free(row);
    free(want);
}

/* Scores are free to be repeated, forgotten, done for others in between; verify too. */
static void scores_leave_no_trace(void **state)
{
    (void)state;
    enum { N = 10 };
    float *want = malloc(N * N_VOCAB * sizeof *want), *row = malloc(N_VOCAB * sizeof *row);
    int32_t seqs[2], truth[N + 1];
    support_plain_ids(target, prompt, N_PROMPT, NULL, N + 1, truth);
    spec_session *s = open_calls(1, seqs, 1);
    for (int32_t i = 0; i < N; i++)
        support_plain_step(s, seqs[0], i ? truth[i - 1] : prompt[N_PROMPT - 1], truth[i], want + i * N_VOCAB);
    spec_session_close(s);

    s = open_calls(8, seqs, 2);
    uint64_t random = 31;
    for (int32_t i = 0; i + 2 < N; i += 2) {
        const int32_t pending = i ? truth[i - 1] : prompt[N_PROMPT - 1];
        int32_t path[8], n_path, token, again, paths[3] = { 0, 2, 5 };
        for (int round = 0; round < 3; round++) { /* other trees, forgotten or not */
            int32_t tokens[8] = { pending }, parents[8] = { -1 };
            for (int32_t k = 1; k < 8; k++)
                tokens[k] = 100 * k + (int32_t)(support_random(&random) % 90),
                parents[k] = (int32_t)(support_random(&random) % (uint32_t)k);
            const spec_tree t = { .n = 8, .cap = 8, .token = tokens, .parent = parents }, *trees[] = { &t, &t };
            OK(spec_score(s, seqs, i ? 1 : 2, trees));
            if (i) FAILS(spec_node_logits(s, row, seqs[1], 0), SPEC_E_STATE, "nothing was scored"); /* not any more */
            else OK(spec_node_logits(s, row, seqs[1], 7));
            if (round == 1) OK(spec_rollback(s, seqs[0]));
            if (round == 1) FAILS(spec_node_logits(s, row, seqs[0], 0), SPEC_E_STATE, "nothing was scored");
        }
        int32_t tokens[8] = { pending, 1, truth[i], 2, truth[i], truth[i + 1], 3, 4 }, parents[8] = { -1, 0, 0, 0, 1, 2, 2, 5 };
        const spec_tree t = { .n = 8, .cap = 8, .token = tokens, .parent = parents }, *trees = &t;
        OK(spec_score(s, seqs, 1, &trees));
        for (int k = 0; k < 3; k++) {
            OK(spec_verify(s, path, &n_path, &token, seqs[0], SPEC_VERIFY_GREEDY));
            assert_int_equal(n_path, 3);
            assert_memory_equal(path, paths, sizeof paths);
            again = k ? again : token;
            assert_int_equal(token, again);
            assert_int_equal(token, truth[i + 2]);
        }
        for (int32_t k = 0; k < 3; k++) {
            OK(spec_node_logits(s, row, seqs[0], paths[k]));
            assert_memory_equal(row, want + (i + k) * N_VOCAB, N_VOCAB * sizeof *row);
        }
        OK(spec_commit(s, seqs[0], path, 2, truth[i + 1])); /* less than what was accepted is a path too */
    }
    spec_session_close(s);
    free(row);
    free(want);
}

/* --- a model's drafts --- */

/* What is proposed is what the drafter itself would say next, whatever was accepted, rejected or committed by others:
 * its state follows the text. */
static void expect_own_drafts(spec_session *s, const int32_t *seqs, int32_t n, int32_t n_draft)
{
    const spec_tree *trees[4];
    int32_t want[8];
    OK(spec_draft(s, trees, seqs, n));
    for (int32_t i = 0; i < n; i++) {
        const int32_t *ids;
        size_t n_ids;
        OK(spec_sequence_ids(s, &ids, &n_ids, seqs[i]));
        support_plain_ids(small, ids, n_ids, NULL, n_draft, want);
        assert_int_equal(trees[i]->n, n_draft + 1);
        assert_memory_equal(trees[i]->token + 1, want, (size_t)n_draft * sizeof *want);
        for (int32_t k = 0; k <= n_draft; k++) assert_int_equal(trees[i]->parent[k], k - 1);
    }
}

/* Distributions of a draft are there until another one begins, or its tree is committed. */
static void distributions_go_with_their_draft(void **state)
{
    (void)state;
    static const spec_sampling sampling = { .temperature = 0.8f, .seed = 3 };
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *dr;
    const spec_tree *tree;
    int32_t seq, choice, path[SPEC_MAX_DEPTH + 1], n_path, token;
    sp.n_ctx = 64;
    spec_session *s = support_open(target, small, 4, &sp, &dr);
    float *probs = malloc((size_t)target->n_vocab * sizeof *probs);
    OK(add_sampled(s, &seq, prompt, N_PROMPT, &sampling));
    FAILS(spec_draft_probs(s, probs, seq, 0), SPEC_E_STATE, "no draft distribution 0 now");
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_draft_probs(s, probs, seq, 0));
    OK(spec_draft_choice(s, &choice, seq));
    assert_int_equal(choice, 0);
    OK(spec_score(s, &seq, 1, &tree));
    OK(spec_verify(s, path, &n_path, &token, seq, SPEC_VERIFY_AUTO));
    OK(spec_draft_probs(s, probs, seq, 0));
    OK(spec_commit(s, seq, path, n_path, token));
    FAILS(spec_draft_probs(s, probs, seq, 0), SPEC_E_STATE, "no draft distribution 0 now");
    OK(spec_draft_choice(s, &choice, seq));
    assert_int_equal(choice, -1);
    free(probs);
    spec_session_close(s);
    spec_drafter_close(dr);
}

static void drafts_are_the_drafters_own(void **state)
{
    (void)state;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *dr;
    int32_t seqs[3], n_rejecting = 0, n_accepting = 0;
    sp.n_seq = 3, sp.n_ctx = 256;
    spec_session *s = support_open(target, small, 4, &sp, &dr);
    for (int32_t i = 0; i < 3; i++) OK(spec_sequence_add(s, &seqs[i], prompt, (size_t)(N_PROMPT - i), NULL));
    for (int32_t step = 0; step < 14; step++) {
        spec_step_result r[3];
        expect_own_drafts(s, seqs, 3, 4);
        if (step % 5 != 4) { /* the drafts above are drafted anew */
            OK(step_into(s, r, seqs, 1 + step % 3));
            n_accepting += r[0].n_accepted > 0, n_rejecting += r[0].n_accepted < r[0].n_drafted;
            continue;
        }
        for (int32_t k = 0; k < 9; k++) { /* text that the drafter sees only afterwards, more than one pass of it */
            const int32_t *ids;
            size_t n;
            OK(spec_sequence_ids(s, &ids, &n, seqs[1]));
            support_plain_step(s, seqs[1], ids[n - 1], 200 + 13 * k, NULL);
        }
    }
    print_message("  %d steps accepted, %d rejected\n", n_accepting, n_rejecting);
    assert_true(n_accepting > 1 && n_rejecting > 1);
    spec_session_close(s);
    spec_drafter_close(dr);
}

/* --- drafters that do not fit --- */

static void another_backend_is_refused(void **state)
{
    (void)state;
    spec_backend *other = support_backend_again(NULL);
    assert_non_null(other);
    spec_model *m = support_model(other, DEMO_DRAFTER, SPEC_DTYPE_AUTO);
    spec_drafter *dr;
    spec_session *s;
    OK(spec_drafter_from_model(&dr, m, NULL));
    FAILS(spec_session_open(&s, target, dr, NULL), SPEC_E_INVALID, "load both on one");
    spec_drafter_close(dr);
    spec_model_close(m);
    spec_backend_close(other);
}

static void a_drafter_serves_one_session(void **state)
{
    (void)state;
    spec_drafter *dr;
    spec_session *s, *t;
    OK(spec_drafter_from_model(&dr, small, NULL));
    OK(spec_session_open(&s, target, dr, NULL));
    for (int i = 0; i < 3; i++) {
        FAILS(spec_session_open(&t, target, dr, NULL), SPEC_E_STATE, "already serves");
        assert_null(t);
    }
    spec_result r = SPEC_RESULT_INIT;
    spec_request p = SPEC_REQUEST_INIT;
    p.n_predict = 8;
    OK(spec_generate_ids(s, &r, prompt, N_PROMPT, &p)); /* the refusals did not take it away */
    spec_result_free(&r);
    spec_session_close(s);
    OK(spec_session_open(&t, target, dr, NULL));
    spec_session_close(t);
    spec_drafter_close(dr);
}

/* --- padded vocabularies --- */

/* An 8-token model with n rows of embeddings and head, n >= 8. */
static spec_model *open_padded(char *dir, const char *name, int n, bool with_tokenizer)
{
    char base[512], changes[64];
    snprintf(base, sizeof base, SPEC_TEST_DIR "/golden/%s", name);
    snprintf(changes, sizeof changes, "{\"vocab_size\": %d}", n);
    char *config = support_json_with(base, "config.json", changes);
    const variant_file files[] = { { "config.json", config }, { "model.safetensors", NULL },
                                   { "tokenizer.json", with_tokenizer ? support_tokenizer8 : NULL } };
    support_variant(dir, base, files, 3);
    support_grow_rows(dir, base, 8, n);
    free(config);
    return support_model(backend, dir, SPEC_DTYPE_F32);
}

static void padded_vocabularies_work(void **state)
{
    (void)state;
    static const int rows[] = { 8, 11, 24 };
    const int32_t start[] = { 3, 1 };
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++) {
            char dir_t[64], dir_d[64];
            spec_model *t = open_padded(dir_t, "law8-target", rows[i], true);
            spec_model *d = open_padded(dir_d, "law8-drafter", rows[j], true);
            for (uint64_t seed = 0; seed < 8; seed++) {
                const spec_sampling probs = { seed ? 1.0f : 0.0f, 0, 0, 0, seed };
                spec_request p = SPEC_REQUEST_INIT;
                spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
                spec_drafter *dr;
                spec_result r = SPEC_RESULT_INIT;
                int32_t plain[100];
                support_plain_ids(t, start, 2, &probs, 100, plain);
                p.n_predict = 100, p.sampling = probs;
                sp.verify = seed ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO;
                spec_session *s = support_open(t, d, 3, &sp, &dr);
                OK(spec_generate_ids(s, &r, start, 2, &p));
                assert_int_equal(r.n_ids, 100);
                assert_memory_equal(r.ids, plain, sizeof plain);
                spec_result_free(&r);
                spec_session_close(s);
                spec_drafter_close(dr);
                sp.verify = SPEC_VERIFY_MSS; /* its distribution is for test_decode_distribution.c; here it must run */
                s = support_open(t, d, 3, &sp, &dr);
                p.sampling.temperature = 1;
                OK(spec_generate_ids(s, &r, start, 2, &p));
                assert_int_equal(r.n_ids, 100);
                spec_result_free(&r);
                spec_session_close(s);
                spec_drafter_close(dr);
            }
            spec_model_close(d);
            spec_model_close(t);
            support_variant_remove(dir_t);
            support_variant_remove(dir_d);
        }
    /* without tokenizers, only the numbers of rows can be compared */
    char dir[64];
    spec_model *t = support_model(backend, SPEC_TEST_DIR "/golden/law8-target", SPEC_DTYPE_F32);
    spec_model *d = open_padded(dir, "law8-drafter", 11, false);
    spec_drafter *dr;
    spec_session *s;
    OK(spec_drafter_from_model(&dr, d, NULL));
    FAILS(spec_session_open(&s, t, dr, NULL), SPEC_E_INVALID, "11 ids and the target 8");
    spec_drafter_close(dr);
    spec_model_close(d);
    spec_model_close(t);
    support_variant_remove(dir);
}

/* --- memory --- */

typedef struct counter {
    uint64_t now;
} counter;

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    ((counter *)user)->now += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counting_free(void *user, void *p, size_t bytes)
{
    if (p) ((counter *)user)->now -= bytes;
    free(p);
}

static void expect_bytes(const char *what, uint64_t predicted, uint64_t taken)
{
    print_message("  %-44s predicted %9llu, taken %9llu bytes\n", what, (unsigned long long)predicted,
                  (unsigned long long)taken);
    if (fabs((double)taken - (double)predicted) > 0.05 * (double)predicted) fail_msg("%s: not within 5 %%", what);
}

/* Device memory of the CPU is host memory, and all of it comes through the allocator. */
static void memory_is_as_predicted(void **state)
{
    (void)state;
    counter c = { 0 };
    const spec_allocator allocator = { counting_alloc, counting_free, &c };
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    bp.allocator = &allocator, bp.n_threads = 2;
    if (strncmp(support_backend_name(), "cpu", 3) != 0) skip();
    spec_backend *be = support_backend_again(&bp);
    assert_non_null(be);
    char dir[64];
    const variant_file no_tokenizer = { "tokenizer.json", NULL };
    support_variant(dir, DEMO_TARGET, &no_tokenizer, 1);
    uint64_t before = c.now;
    spec_model *bare = support_model(be, dir, SPEC_DTYPE_AUTO), *t, *d;
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(bare, &info, 1));
    expect_bytes("weights", info.bytes_weights, c.now - before);
    spec_model_close(bare);
    support_variant_remove(dir);

    t = support_model(be, DEMO_TARGET, SPEC_DTYPE_AUTO);
    d = support_model(be, DEMO_DRAFTER, SPEC_DTYPE_AUTO);
    static const struct {
        int32_t k, n_ctx, n_seq, n_node;
    } shapes[] = { { 0, 0, 1, 0 }, { 4, 0, 1, 0 }, { 4, 512, 8, 0 }, { 8, 2048, 16, 0 }, { 0, 256, 4, 16 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        spec_drafter *dr = NULL;
        spec_session *s;
        spec_memory m = { .struct_size = sizeof m };
        char what[64];
        dp.n_draft = shapes[i].k;
        sp.n_ctx = shapes[i].n_ctx, sp.n_seq = shapes[i].n_seq, sp.n_node = shapes[i].n_node;
        const uint64_t at_start = c.now;
        if (shapes[i].k) OK(spec_drafter_from_model(&dr, d, &dp));
        before = c.now;
        OK(spec_session_estimate(&m, t, dr, &sp));
        assert_int_equal(c.now, before);
        OK(spec_session_open(&s, t, dr, &sp));
        snprintf(what, sizeof what, "session: K %d, context %d, %d sequences", shapes[i].k, shapes[i].n_ctx, shapes[i].n_seq);
        expect_bytes(what, m.bytes_state + m.bytes_kv + m.bytes_work, c.now - before);
        spec_session_close(s);
        spec_drafter_close(dr);
        assert_int_equal(c.now, at_start);
    }
    spec_model_close(t);
    spec_model_close(d);
    spec_backend_close(be);
    assert_int_equal(c.now, 0);
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
        cmocka_unit_test(own_drafters_change_nothing),
        cmocka_unit_test(misbehaving_drafters_are_refused),
        cmocka_unit_test(each_callback_is_named_when_it_fails),
        cmocka_unit_test(bad_trees_are_refused),
        cmocka_unit_test(bad_sequences_are_refused),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(scores_leave_no_trace),
        cmocka_unit_test(drafts_are_the_drafters_own),
        cmocka_unit_test(distributions_go_with_their_draft),
        cmocka_unit_test(another_backend_is_refused),
        cmocka_unit_test(a_drafter_serves_one_session),
        cmocka_unit_test(padded_vocabularies_work),
        cmocka_unit_test(memory_is_as_predicted),
    };
    backend = support_backend();
    return cmocka_run_group_tests_name("decode_calls", tests, open_models, close_models);
}
