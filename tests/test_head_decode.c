/* test_head_decode.c - decoding with heads on hidden states: text equals plain text, token for token, with every
 * builder, alone and four at once; and what a head keeps of a sequence stays in step with it, through paths, copies,
 * saved sequences, prompts that are appended, steps that it did not draft: it drafts then what a head drafts that is
 * told the whole text at once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/draft/draft_model.h"
#include "algorithms/engine/engine.h"
#include "tests/late_backend.h"
#include "tests/support_decode.h"
#include "tests/support_greedy.h"
#include "tests/support_sequence.h"

#define HEADS SPEC_TEST_DIR "/golden/heads/"
#define TARGETS SPEC_TEST_DIR "/golden/"

static spec_backend *backend;

typedef struct head_case {
    const char *head, *target;
    int32_t n_vocab;
} head_case;

static const head_case cases[] = {
    { "eagle2-llama2", "llama2", 96 },  { "eagle2-bamba", "bamba", 96 },       { "eagle2-mamba2", "mamba2", 96 },
    { "eagle2-law8", "law8-target", 8 }, { "eagle3-llama2", "llama2", 96 },     { "eagle3-bamba", "bamba", 96 },
    { "eagle3-mamba2", "mamba2", 96 },  { "eagle3-speculators", "bamba", 96 }, { "eagle3-law8", "law8-target", 8 },
    { "lyanna-bare", "llama2", 96 },    { "lyanna-bamba", "bamba", 96 },       { "lyanna-mamba2", "mamba2", 96 },
    { "lyanna-law8", "law8-target", 8 },
};
enum { N_CASE = sizeof cases / sizeof *cases, N_PROMPT = 4, WIDTH = 23, N_NEW = 40, N_CTX = 160 };

static spec_model *open_model(const char *where, const char *name, spec_dtype dtype)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", where, name);
    return support_model(backend, path, dtype);
}

/* Of different lengths: a prompt of one token has no hidden row yet. */
static greedy_prompts prompts_of(const head_case *c, int32_t ids[N_PROMPT * WIDTH])
{
    static const int32_t lengths[N_PROMPT] = { WIDTH, 1, 9, 2 };
    uint64_t random = 3;
    for (int32_t i = 0; i < N_PROMPT; i++)
        for (int32_t k = 0; k < WIDTH; k++)
            ids[i * WIDTH + k] = k < lengths[i] ? (int32_t)(support_random(&random) % (uint32_t)c->n_vocab) : -1;
    return (greedy_prompts){ .n = N_PROMPT, .width = WIDTH, .ids = ids };
}

/* --- text --- */

typedef struct setting {
    const char *name;
    spec_dtype dtype;
    int32_t n_at_once, every, first; /* of all builders every so many, from the first-th on */
    float temperature;
    spec_advance advance;
    spec_draft_state draft_state;
    int32_t n_resample, across; /* of heads that can */
    spec_token_info info;       /* of heads that have it */
} setting;

static const setting settings[] = {
    { "f32, alone", SPEC_DTYPE_F32, 1, 1, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0, 0, 0 },
    { "f32, four at once", SPEC_DTYPE_F32, 4, 1, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0, 0, 0 },
    { "bf16, four at once", SPEC_DTYPE_BF16, 4, 3, 1, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0, 0, 0 },
    { "f16, sampled, four at once", SPEC_DTYPE_F16, 4, 3, 2, 0.8f, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0, 0, 0 },
    { "f32, joint", SPEC_DTYPE_F32, 2, 4, 2, 0, SPEC_ADVANCE_JOINT, SPEC_DRAFT_STATE_REPLAY, 0, 0, 0 },
    { "f32, a state per node", SPEC_DTYPE_F32, 2, 4, 3, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_PER_NODE, 0, 0, 0 },
    { "f32, four at once, once more", SPEC_DTYPE_F32, 4, 1, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 5, 0, 0 },
    { "bf16, sampled, once more", SPEC_DTYPE_BF16, 2, 1, 0, 0.7f, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 9, 0, 0 },
    { "f32, once more, across four", SPEC_DTYPE_F32, 4, 1, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 5, 1, 0 },
    { "bf16, sampled, once more, across four", SPEC_DTYPE_BF16, 4, 1, 0, 0.7f, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 3, 1, 0 },
    { "f32, once more, across one", SPEC_DTYPE_F32, 1, 3, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 5, 1, 0 },
    { "bf16, four at once, collapsed", SPEC_DTYPE_BF16, 4, 1, 0, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 0, 0,
      SPEC_TOKEN_INFO_COLLAPSED },
    { "f16, once more, across two, collapsed", SPEC_DTYPE_F16, 2, 3, 1, 0, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY, 5, 1,
      SPEC_TOKEN_INFO_COLLAPSED },
};

static void check_text(const setting *t, const head_case *c, greedy_counts *sum)
{
    const spec_sampling sampling = { .temperature = t->temperature, .top_p = 0.9f, .seed = 5 };
    int32_t ids[N_PROMPT * WIDTH], plain[N_PROMPT * N_NEW], spec[N_PROMPT * N_NEW];
    const greedy_prompts p = prompts_of(c, ids);
    greedy_run run = { .target = open_model(TARGETS, c->target, t->dtype), .n_new = N_NEW, .n_at_once = t->n_at_once,
                       .advance = t->advance, .draft_state = t->draft_state, .n_resample = t->n_resample,
                       .resample_across = t->across, .token_info = t->info };
    if (t->temperature > 0) run.sampling = &sampling, run.verify = SPEC_VERIFY_NAIVE;
    support_greedy(plain, NULL, &run, &p);
    run.drafter = open_model(HEADS, c->head, t->dtype);
    for (int32_t i = 0; support_trees[i]; i++) {
        if (i % t->every != t->first) continue;
        run.tree = support_trees[i];
        support_greedy(spec, sum, &run, &p);
        const int64_t at = support_first_difference(plain, spec, N_PROMPT * N_NEW);
        if (at >= 0)
            fail_msg("%s, %s, %s: prompt %d differs at token %d", t->name, c->head, run.tree, (int)(at / N_NEW), (int)(at % N_NEW));
    }
    spec_model_close(run.drafter);
    spec_model_close(run.target);
}

static bool serves(const setting *t, const char *head)
{
    const bool chains = strncmp(head, "lyanna", 6) == 0, informed = chains && strcmp(head, "lyanna-bare") != 0;
    return (t->n_resample == 0 || chains) && (t->info == SPEC_TOKEN_INFO_FACTORED || informed);
}

static void text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        greedy_counts n = { 0 };
        for (int32_t k = 0; k < N_CASE; k++)
            if (serves(&settings[i], cases[k].head)) check_text(&settings[i], &cases[k], &n);
        print_message("  %s: %lld steps, %lld accept a draft, %lld on a branch\n", settings[i].name, (long long)n.steps,
                      (long long)n.accepting, (long long)n.branched);
        assert_true(n.accepting * 20 >= n.steps && n.branched > 0);
    }
}

/* --- in step --- */

#define TREE "beam:3,3"

typedef struct life {
    const head_case *c;
    spec_model *target, *head;
    spec_session *s;
    spec_drafter *d[2]; /* the head; and in front of it what drafts in its place now and then */
    uint64_t random;
    int32_t n_compared, part; /* part: tokens of a prompt that a step consumes; 0 = all at once */
} life;

static spec_session *open_session(life *l, spec_drafter **d, int32_t n_seq)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    dp.tree = TREE, sp.n_ctx = N_CTX, sp.n_seq = n_seq, sp.n_prompt_step = n_seq > 1 ? l->part : 0;
    OK(spec_drafter_from_model(d, l->head, &dp));
    OK(spec_session_open(&s, l->target, *d, &sp));
    return s;
}

static int32_t ids_of(const life *l, int32_t seq, const int32_t **ids)
{
    size_t n;
    OK(spec_sequence_ids(l->s, ids, &n, seq));
    return (int32_t)n;
}

/* Nodes of nearly the same probability may change places: a prompt's rows come by other kernels than those of steps. */
static void expect_alike(const life *l, const spec_tree *a, const spec_tree *b)
{
    assert_int_equal(a->n, b->n);
    for (int32_t i = 1; i < a->n && i <= 3; i++)
        if (fabsf(a->prob[i] - b->prob[i]) > 2e-3f)
            fail_msg("%s: child %d has probability %g in step, %g told at once", l->c->head, i, (double)a->prob[i], (double)b->prob[i]);
    if (a->n < 2 || a->prob[1] - a->prob[2] < 1e-2f) return;
    if (a->token[1] != b->token[1]) fail_msg("%s: drafts %d in step, %d told at once", l->c->head, a->token[1], b->token[1]);
}

/* Against a head that is told the whole text. */
static void compare(life *l, int32_t seq)
{
    const int32_t *ids, n = ids_of(l, seq, &ids);
    life fresh = *l;
    const spec_tree *in_step, *at_once;
    int32_t other;
    spec_drafter *d;
    OK(spec_draft(l->s, &in_step, &seq, 1));
    fresh.s = open_session(&fresh, &d, 1);
    OK(add_endless(fresh.s, &other, ids, (size_t)n, NULL));
    OK(spec_draft(fresh.s, &at_once, &other, 1));
    expect_alike(l, in_step, at_once);
    l->n_compared += in_step->n > 1;
    spec_session_close(fresh.s);
    spec_drafter_close(d);
}

static void steps(life *l, int32_t seq, int32_t n)
{
    const int32_t *ids;
    spec_step_result r;
    for (int32_t i = 0; i < n && ids_of(l, seq, &ids) < N_CTX - 40; i++) OK(step_into(l->s, &r, &seq, 1));
}

/* A prompt in parts is consumed by steps, the last of which emits. */
static void consume(life *l, int32_t seq)
{
    const int32_t *ids, n = ids_of(l, seq, &ids);
    spec_step_result r;
    while (l->part > 0 && ids_of(l, seq, &ids) == n) OK(step_into(l->s, &r, &seq, 1));
}

/* A tree of the caller's: the root alone, or a chain whose every token is committed. The head drafts nothing of it. */
static void foreign_step(life *l, int32_t seq, int32_t depth)
{
    int32_t token[8], parent[8], path[8];
    const int32_t *ids, n = ids_of(l, seq, &ids);
    const spec_tree tree = { .n = depth + 1, .cap = 8, .token = token, .parent = parent, .kind = SPEC_TREE_DETERMINISTIC };
    const spec_tree *trees = &tree;
    if (n >= N_CTX - 40) return;
    for (int32_t i = 0; i <= depth; i++) {
        token[i] = i == 0 ? ids[n - 1] : (int32_t)(support_random(&l->random) % (uint32_t)l->c->n_vocab);
        parent[i] = i - 1, path[i] = i;
    }
    OK(spec_score(l->s, &seq, 1, &trees));
    OK(spec_commit(l->s, seq, path, depth + 1, token[0]));
}

static void append(life *l, int32_t seq, int32_t n)
{
    int32_t more[24];
    const int32_t *ids;
    for (int32_t i = 0; i < n; i++) more[i] = (int32_t)(support_random(&l->random) % (uint32_t)l->c->n_vocab);
    if (ids_of(l, seq, &ids) + n < N_CTX - 40) OK(spec_sequence_append(l->s, seq, more, (size_t)n, NULL));
    consume(l, seq);
}

static int32_t copy_of(life *l, int32_t seq)
{
    int32_t to;
    OK(spec_sequence_fork(l->s, &to, seq));
    return to;
}

/* Of a sequence of n ids: its head's start is where a file says such numbers. A first position beyond all is refused. */
static void forged(life *l, support_stream *stream, int32_t n)
{
    int32_t v[4], seq, n_refused = 0;
    for (size_t at = 0; at + sizeof v <= stream->n; at++) {
        memcpy(v, stream->data + at, sizeof v);
        if (v[0] != 0 || v[1] < 0 || v[2] < 1 || v[2] >= n || v[1] != n - 1 - v[2] || v[3] < 0 || v[3] > v[2]) continue;
        const int32_t beyond = INT32_MAX;
        memcpy(stream->data + at + sizeof v[0], &beyond, sizeof beyond);
        const spec_status status = spec_sequence_restore(l->s, &seq, support_from_stream, stream);
        n_refused += status == SPEC_E_FORMAT && strstr(spec_last_error(), "its head has") != NULL;
        if (status == SPEC_OK) OK(spec_sequence_remove(l->s, seq));
        memcpy(stream->data + at, v, sizeof v);
        stream->at = 0;
    }
    assert_true(n_refused > 0);
}

/* Leaves as bytes and comes back. */
static int32_t restored(life *l, int32_t seq)
{
    support_stream stream = { 0 };
    const int32_t *ids, n = ids_of(l, seq, &ids);
    int32_t back;
    OK(spec_sequence_save(l->s, seq, support_to_stream, &stream));
    OK(spec_sequence_remove(l->s, seq));
    forged(l, &stream, n);
    OK(spec_sequence_restore(l->s, &back, support_from_stream, &stream));
    free(stream.data);
    return back;
}

static void live(life *l)
{
    int32_t ids[N_PROMPT * WIDTH], seq;
    (void)prompts_of(l->c, ids);
    spec_drafter *d;
    l->s = open_session(l, &d, 3);
    OK(add_endless(l->s, &seq, ids, WIDTH, NULL));
    consume(l, seq);
    compare(l, seq);
    for (int32_t turn = 0; turn < 6; turn++) {
        steps(l, seq, 1 + turn);
        compare(l, seq);
        for (int32_t i = 0; i < 3 * turn; i++) foreign_step(l, seq, i % 5);
        compare(l, seq);
        const int32_t copy = copy_of(l, seq);
        steps(l, seq, 2);
        compare(l, copy);
        steps(l, copy, 1);
        compare(l, copy);
        compare(l, seq);
        OK(spec_sequence_remove(l->s, turn % 2 ? seq : copy));
        seq = restored(l, turn % 2 ? copy : seq);
        compare(l, seq);
        append(l, seq, 1 + 3 * turn);
        compare(l, seq);
    }
    spec_session_close(l->s);
    spec_drafter_close(d);
}

static void in_step(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_CASE; i++) {
        life l = { .c = &cases[i], .target = open_model(TARGETS, cases[i].target, SPEC_DTYPE_F32),
                   .head = open_model(HEADS, cases[i].head, SPEC_DTYPE_F32), .random = 7, .part = i % 2 ? 5 : 0 };
        live(&l);
        assert_true(l.n_compared > 20);
        spec_model_close(l.head);
        spec_model_close(l.target);
    }
}

/* --- one product for the logits of a chain --- */

enum { N_TWIN = 3 };

typedef struct twin {
    spec_session *s;
    spec_drafter *d;
    model_draft *m;
    int32_t seqs[N_TWIN];
} twin;

static void open_twin(twin *t, spec_model *target, spec_model *head, const char *tree, float temperature, bool off)
{
    static const int32_t ids[] = { 1, 4, 2, 3, 5, 0, 7, 6, 2 };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    dp.tree = tree, sp.n_ctx = N_CTX, sp.n_seq = N_TWIN;
    OK(spec_drafter_from_model(&t->d, head, &dp));
    OK(spec_session_open(&t->s, target, t->d, &sp));
    t->m = t->s->drafters.draft[0].state;
    t->m->chain.off = off;
    for (int32_t i = 0; i < N_TWIN; i++) {
        const spec_sampling sampling = { .temperature = temperature, .seed = (uint64_t)i };
        OK(add_endless(t->s, &t->seqs[i], ids, (size_t)(9 - 3 * i), &sampling));
    }
}

static void close_twin(twin *t)
{
    spec_session_close(t->s);
    spec_drafter_close(t->d);
}

/* Trees, probabilities and the distributions that they were drawn from, bit for bit. */
static void expect_twins(const twin *a, const twin *b, const char *what)
{
    const spec_tree *x[N_TWIN], *y[N_TWIN];
    const size_t n_q = (size_t)a->m->d->site->n_q * (size_t)a->s->target->n_vocab;
    float *p = calloc(2 * n_q, sizeof *p), *q = p + n_q;
    OK(spec_draft(a->s, x, a->seqs, N_TWIN));
    OK(spec_draft(b->s, y, b->seqs, N_TWIN));
    for (int32_t i = 0; i < N_TWIN; i++) {
        const size_t n = (size_t)x[i]->n;
        if (x[i]->n != y[i]->n || memcmp(x[i]->token, y[i]->token, n * sizeof *x[i]->token) != 0 ||
            memcmp(x[i]->parent, y[i]->parent, n * sizeof *x[i]->parent) != 0 ||
            memcmp(x[i]->prob, y[i]->prob, n * sizeof *x[i]->prob) != 0 ||
            memcmp(x[i]->q_row, y[i]->q_row, n * sizeof *x[i]->q_row) != 0)
            fail_msg("%s: another tree from one chain than level by level", what);
        const twin *t[2] = { a, b };
        for (int32_t k = 0; k < 2; k++)
            OK(backend->ops->download(t[k]->s->queue, k ? q : p, t[k]->m->d->site->q + (size_t)a->seqs[i] * n_q, n_q * sizeof *p));
        OK(backend->ops->sync(a->s->queue));
        OK(backend->ops->sync(b->s->queue));
        for (size_t k = 0; k < n; k++) {
            const size_t row = x[i]->q_row[k] < 0 ? 0 : (size_t)x[i]->q_row[k] * (size_t)a->s->target->n_vocab;
            if (x[i]->q_row[k] >= 0 && memcmp(p + row, q + row, (size_t)a->s->target->n_vocab * sizeof *p) != 0)
                fail_msg("%s: another distribution behind node %zu", what, k);
        }
    }
    free(p);
}

static void one_product(void **state)
{
    (void)state;
    int32_t n_chain = 0;
    for (int32_t i = 0; i < N_CASE; i++) {
        if (strncmp(cases[i].head, "lyanna", 6) != 0) continue;
        spec_model *target = open_model(TARGETS, cases[i].target, SPEC_DTYPE_BF16);
        spec_model *head = open_model(HEADS, cases[i].head, SPEC_DTYPE_BF16);
        for (int32_t k = 0; k < 2; k++)
            for (int32_t j = 0; support_trees[j]; j++) {
                twin a, b;
                open_twin(&a, target, head, support_trees[j], k ? 0.8f : 0, false);
                open_twin(&b, target, head, support_trees[j], k ? 0.8f : 0, true);
                for (int32_t step = 0; step < 6; step++) {
                    spec_step_result r[N_TWIN];
                    expect_twins(&a, &b, support_trees[j]);
                    n_chain += a.m->chain.now;
                    assert_false(b.m->chain.now);
                    OK(step_into(a.s, r, a.seqs, N_TWIN));
                    OK(step_into(b.s, r, b.seqs, N_TWIN));
                }
                close_twin(&a);
                close_twin(&b);
            }
        spec_model_close(head);
        spec_model_close(target);
    }
    assert_true(n_chain > 200);
}

/* --- one wait for a draft, whatever it is made of --- */

static int32_t n_wait, n_again, n_ride;
static bool rode[N_PROMPT];       /* in the step before */
static int32_t covered[N_PROMPT]; /* positions that the head's executor had by then */

static spec_status counted_sync(spec_queue *q)
{
    n_wait++;
    return late_ops.sync(q);
}

/* A step by its four calls, of all sequences. */
static void counted_step(spec_session *s, const int32_t *seqs, int32_t n)
{
    const model_draft *m = s->drafters.draft[0].state;
    const spec_tree *trees[N_PROMPT];
    int32_t path[SPECI_MAX_NODE], n_path, next;
    n_wait = 0;
    OK(spec_draft(s, trees, seqs, n));
    assert_true(n_wait <= 1);
    for (int32_t i = 0; i < n; i++) {
        const model_seq *q = &m->seqs[seqs[i]];
        n_again += q->again.grows, n_ride += q->rides;
        assert_false(q->rides && rode[i]); /* rows serve once in place of a fresh tree: a new chain comes first */
        rode[i] = q->rides;
        const int32_t n_past = m->exec->kind->n_past(m->exec, seqs[i]); /* what waits for a pass stays, also where none comes */
        assert_true(n_past >= covered[i]);
        covered[i] = n_past;
        if (q->rides) assert_int_equal(s->seqs[seqs[i]].proposal.depth, q->depth); /* what a pass over trees by their shape goes by */
    }
    OK(spec_score(s, seqs, n, trees));
    for (int32_t i = 0; i < n; i++) {
        OK(spec_verify(s, path, &n_path, &next, seqs[i], SPEC_VERIFY_AUTO));
        OK(spec_commit(s, seqs[i], path, n_path, next));
    }
}

/* Nor do they serve a copy once more. */
static void copies_do_not_ride(spec_session *s, const int32_t *seqs)
{
    const model_draft *m = s->drafters.draft[0].state;
    for (int32_t i = 0; i < N_PROMPT; i++) {
        const spec_tree *trees[2];
        int32_t copy;
        if (!rode[i]) continue;
        OK(spec_sequence_fork(s, &copy, seqs[i]));
        OK(spec_draft(s, trees, (const int32_t[]){ seqs[i > 0 ? 0 : 1], copy }, 2));
        assert_false(m->seqs[copy].rides);
        OK(spec_sequence_remove(s, copy));
    }
}

/* On a device whose results come late: drafts once more, beside fresh ones and in their place. */
static void check_waits(spec_model *target, spec_model *head, const char *tree, int32_t across, const int32_t *plain,
                        const greedy_prompts *p)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *s;
    int32_t seqs[N_PROMPT];
    dp.tree = tree, dp.n_resample = 4, dp.resample_across = across, sp.n_ctx = N_CTX, sp.n_seq = N_PROMPT + 1;
    OK(spec_drafter_from_model(&d, head, &dp));
    OK(spec_session_open(&s, target, d, &sp));
    size_t n_prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) {
        for (n_prompt[i] = 1; n_prompt[i] < WIDTH && p->ids[i * WIDTH + (int32_t)n_prompt[i]] >= 0;) n_prompt[i]++;
        OK(add_endless(s, &seqs[i], p->ids + i * WIDTH, n_prompt[i], NULL));
    }
    n_again = n_ride = 0;
    memset(rode, 0, sizeof rode), memset(covered, 0, sizeof covered);
    for (int32_t step = 0; step < 12; step++) {
        counted_step(s, seqs, N_PROMPT);
        copies_do_not_ride(s, seqs);
    }
    assert_true(n_again > 0 && (n_ride > 0) == (across > 0));
    for (int32_t i = 0; i < N_PROMPT; i++) {
        const int32_t *ids;
        size_t n;
        OK(spec_sequence_ids(s, &ids, &n, seqs[i]));
        for (size_t k = n_prompt[i]; k < n && k < n_prompt[i] + N_NEW; k++)
            if (ids[k] != plain[(size_t)i * N_NEW + k - n_prompt[i]])
                fail_msg("%s, across %d: prompt %d differs at %zu", tree, across, i, k);
    }
    spec_session_close(s);
    spec_drafter_close(d);
}

static void one_wait(void **state)
{
    spec_backend *const tested = backend;
    spec_backend_ops ops = late_ops;
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    int32_t ids[N_PROMPT * WIDTH], plain[N_PROMPT * N_NEW];
    (void)state;
    ops.sync = counted_sync, bp.n_threads = 1;
    late_reset();
    OK(spec_backend_open_ops(&backend, &ops, NULL, &bp));
    for (int32_t i = 0; i < N_CASE; i++) {
        if (strncmp(cases[i].head, "lyanna", 6) != 0) continue;
        const greedy_prompts p = prompts_of(&cases[i], ids);
        greedy_run run = { .target = open_model(TARGETS, cases[i].target, SPEC_DTYPE_F32), .n_new = N_NEW };
        spec_model *head = open_model(HEADS, cases[i].head, SPEC_DTYPE_F32);
        support_greedy(plain, NULL, &run, &p);
        for (int32_t across = 0; across < 2; across++) {
            check_waits(run.target, head, "eagle2:3,12,5", across, plain, &p);
            check_waits(run.target, head, "beam:3,4", across, plain, &p);
        }
        spec_model_close(head);
        spec_model_close(run.target);
    }
    spec_backend_close(backend);
    backend = tested;
}

/* --- drafts that are made twice --- */

static void expect_same_draft(spec_session *s, int32_t seq, const spec_tree *want, const char *what)
{
    const spec_tree *tree;
    OK(spec_draft(s, &tree, &seq, 1));
    if (!speci_tree_equal(tree, want)) fail_msg("%s: %d nodes, expected the same %d", what, tree->n, want->n);
}

/* Where rows of the chain before give a tree once more, they are there for a draft that is made again, as after a call that failed behind
 * it, and for a copy. */
static void drafts_again(void **state)
{
    (void)state;
    const head_case *c = &cases[N_CASE - 1];
    const int32_t ids[] = { 1, 2, 3, 4, 1, 2 };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_model *target = open_model(TARGETS, c->target, SPEC_DTYPE_F32), *head = open_model(HEADS, c->head, SPEC_DTYPE_F32);
    const spec_tree *tree;
    spec_tree first;
    spec_drafter *d;
    spec_session *s;
    spec_step_result r;
    int32_t seq, copy;
    dp.tree = "eagle2:3,8,3", dp.n_resample = 3, sp.n_ctx = N_CTX, sp.n_seq = 2;
    OK(spec_drafter_from_model(&d, head, &dp));
    OK(spec_session_open(&s, target, d, &sp));
    OK(spec_tree_alloc(&first, SPECI_MAX_NODE, NULL));
    OK(add_endless(s, &seq, ids, sizeof ids / sizeof *ids, NULL));
    for (int32_t step = 0; step < 20; step++) {
        OK(spec_sequence_fork(s, &copy, seq));
        OK(spec_draft(s, &tree, &seq, 1));
        OK(spec_tree_copy(&first, tree));
        expect_same_draft(s, seq, &first, "once more");
        expect_same_draft(s, copy, &first, "of a copy");
        OK(spec_sequence_remove(s, copy));
        OK(step_into(s, &r, &seq, 1));
    }
    spec_tree_free(&first, NULL);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(head);
    spec_model_close(target);
}

/* --- prompts that are stopped --- */

static int32_t n_poll_left; /* 0: nothing is stopped */
static int stop_once(void *user)
{
    (void)user;
    return n_poll_left > 0 && --n_poll_left == 0;
}

enum { LONG = 150, N_STOPPED = 40 };

/* A prompt, some steps, an appended prompt, the rest; what is stopped goes on with the next step. Returns how often that was. */
static int32_t stopped_text(spec_session *s, int32_t n_poll, int32_t *out)
{
    int32_t ids[LONG], seq, n_out = 0, n_stopped = 0;
    spec_request r = SPEC_REQUEST_INIT;
    r.sampling = (spec_sampling){ .temperature = 0.7f, .seed = 6 }, r.ignore_eos = 1;
    for (int32_t i = 0; i < LONG; i++) ids[i] = (7 * i + i / 5) % 96;
    n_poll_left = n_poll;
    OK(spec_sequence_add(s, &seq, ids, LONG, &r));
    for (bool appended = false; n_out < N_STOPPED;) {
        spec_step_result step = { 0 };
        const spec_status status = step_into(s, &step, &seq, 1);
        n_stopped += status == SPEC_E_ABORTED;
        if (status == SPEC_E_ABORTED) continue;
        OK(status);
        for (int32_t k = 0; k < step.n_tokens && n_out < N_STOPPED; k++) out[n_out++] = step.tokens[k];
        if (n_out >= 5 && !appended) OK(spec_sequence_append(s, seq, ids, LONG, NULL)), appended = true;
    }
    n_poll_left = 0;
    OK(spec_sequence_remove(s, seq));
    return n_stopped;
}

/* Wherever a prompt is stopped, the target's or a drafter's, the sequence goes on with the drafts, and so the text, as if it was not. */
static void stopped_prompts(void **state)
{
    (void)state;
    spec_model *target = open_model(TARGETS, "bamba", SPEC_DTYPE_F32), *head = open_model(HEADS, "eagle3-bamba", SPEC_DTYPE_F32);
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *list[2];
    spec_session *s;
    int32_t want[N_STOPPED], got[N_STOPPED], n_poll = 1;
    dp.tree = "chain:3";
    OK(spec_drafter_from_model(&list[0], head, &dp));
    OK(spec_drafter_from_model(&list[1], target, &dp));
    sp.n_ctx = 400, sp.drafters = list, sp.n_drafter = 2, sp.n_prompt_step = 1000, sp.abort = stop_once;
    OK(spec_session_open(&s, target, NULL, &sp));
    assert_int_equal(stopped_text(s, 0, want), 0);
    for (; stopped_text(s, n_poll, got) > 0; n_poll++)
        if (memcmp(got, want, sizeof want) != 0) fail_msg("the text is another one when it is stopped at poll %d", n_poll);
    assert_true(n_poll > 20);
    spec_session_close(s);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(list[k]);
    spec_model_close(head);
    spec_model_close(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(text), cmocka_unit_test(in_step), cmocka_unit_test(one_product),
                                        cmocka_unit_test(one_wait), cmocka_unit_test(drafts_again), cmocka_unit_test(stopped_prompts) };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
