/* test_drafters.c - drafters beside a model: prompt lookup against a search that is obviously right; several drafters of a session
 * never change its text; an application's drafter is told of every token, once and in order, through copies and saved states. */
#include "tests/support_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/draft/draft_trie.h"
#include "algorithms/engine/engine.h"
#include "tests/support_corpus.h"
#include "tests/support_sequence.h"

static spec_backend *backend;

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* ------------------------------------------------------------------------------ prompt lookup --- */

/* algorithms.md 15, word by word: out [m] = what followed the last n tokens where they stand first, for the longest n <= n_most, and
 * n_least at least, behind which there is anything to propose. */
static int32_t look_up(int32_t *out, const int32_t *ids, int32_t n_ids, int32_t n_most, int32_t n_least, int32_t m, int32_t eos)
{
    for (int32_t n = n_most; n >= n_least; n--) {
        for (int32_t end = n - 1; end < n_ids - 1; end++) {
            int32_t n_out = 0;
            if (n > n_ids || memcmp(ids + end + 1 - n, ids + n_ids - n, (size_t)n * sizeof *ids) != 0) continue;
            for (int32_t at = end + 1; at < n_ids && n_out < m && ids[at] != eos; at++) out[n_out++] = ids[at];
            if (n_out > 0) return n_out;
            break;
        }
    }
    return 0;
}

typedef struct lookup_case {
    const char *name, *text; /* of the drafter */
    int32_t n, m, alphabet, least;
} lookup_case;

static const lookup_case lookups[] = {
    { "lookup ngram", "ngram", 3, 10, 3, 1 },        { "lookup ngram:1,1", "ngram:1,1", 1, 1, 4, 1 },
    { "lookup ngram:2,5", "ngram:2,5", 2, 5, 2, 1 }, { "lookup ngram:16,20", "ngram:16,20", 16, 20, 2, 1 },
    { "lookup ngram:4,3", "ngram:4,3", 4, 3, 8, 1 }, { "lookup ngram:4,3,2", "ngram:4,3,2", 4, 3, 8, 2 },
    { "lookup ngram:3,5,3", "ngram:3,5,3", 3, 5, 4, 3 },
};

static void check_proposal(spec_session *s, int32_t seq, const lookup_case *t, int32_t *n_proposed)
{
    const spec_tree *tree;
    const int32_t *ids;
    size_t n;
    int32_t want[SPEC_MAX_DEPTH];
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_sequence_ids(s, &ids, &n, seq));
    const int32_t n_want = look_up(want, ids, (int32_t)n, t->n, t->least, t->m, 0);
    assert_int_equal(tree->n, 1 + n_want);
    assert_int_equal(tree->token[0], ids[n - 1]);
    for (int32_t i = 1; i < tree->n; i++) {
        assert_int_equal(tree->token[i], want[i - 1]);
        assert_int_equal(tree->parent[i], i - 1);
    }
    *n_proposed += n_want;
}

/* Commits one random token, or as much of the proposal as chance says: both ways in which a sequence grows. */
static void grow(spec_session *s, int32_t seq, int32_t alphabet, uint64_t *random)
{
    const spec_tree *tree;
    int32_t path[SPEC_MAX_DEPTH + 1], n = 1;
    OK(spec_draft(s, &tree, &seq, 1));
    OK(spec_score(s, &seq, 1, &tree));
    for (path[0] = 0; n < tree->n && support_random(random) % 3 > 0; n++) path[n] = n;
    OK(spec_commit(s, seq, path, n, (int32_t)(support_random(random) % (uint32_t)alphabet)));
}

static void check_lookup(void **state)
{
    enum { PROMPTS = 60, STEPS = 12, N_MOST = 40 };
    const lookup_case *t = *state;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_model *model = support_model(backend, GOLDEN "mamba", SPEC_DTYPE_F32); /* its token 0 ends a text */
    spec_drafter *d;
    spec_session *s;
    uint64_t random = 32;
    int32_t ids[N_MOST], n_proposed = 0;
    OK(spec_drafter_open(&d, t->text, NULL));
    p.n_ctx = 1024;
    OK(spec_session_open(&s, model, d, &p));
    for (int32_t i = 0; i < PROMPTS; i++) {
        const int32_t n = 1 + (int32_t)(support_random(&random) % N_MOST);
        int32_t seq, copy;
        for (int32_t k = 0; k < n; k++) ids[k] = (int32_t)(support_random(&random) % (uint32_t)t->alphabet);
        OK(spec_sequence_add(s, &seq, ids, (size_t)n, NULL));
        for (int32_t k = 0; k < STEPS; k++) {
            check_proposal(s, seq, t, &n_proposed);
            grow(s, seq, t->alphabet, &random);
        }
        FAILS(spec_sequence_fork(s, &copy, seq), SPEC_E_BUSY, "");
        OK(spec_sequence_remove(s, seq));
    }
    assert_true(n_proposed > PROMPTS);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

static void check_refused(void **state)
{
    (void)state;
    spec_drafter *d = NULL;
    FAILS(spec_drafter_open(&d, "ngram:0,4", NULL), SPEC_E_INVALID, "0,4");
    FAILS(spec_drafter_open(&d, "ngram:3,0", NULL), SPEC_E_INVALID, "3,0");
    FAILS(spec_drafter_open(&d, "ngram:17,4", NULL), SPEC_E_INVALID, "17,4");
    FAILS(spec_drafter_open(&d, "ngram:x", NULL), SPEC_E_INVALID, "x");
    FAILS(spec_drafter_open(&d, "ngram:3,4,0", NULL), SPEC_E_INVALID, "1 <= L <= N");
    FAILS(spec_drafter_open(&d, "ngram:3,4,4", NULL), SPEC_E_INVALID, "4 to 3");
    FAILS(spec_drafter_open(&d, "ngram:3,4,2,1", NULL), SPEC_E_INVALID, "N,M,L");
    FAILS(spec_drafter_open(&d, "n-gram", NULL), SPEC_E_INVALID, "n-gram");
    assert_null(d);
}

/* -------------------------------------------------------------------------- in front of others --- */

/* One token that never stands in a text. */
enum { SIGNAL = 90 };
static spec_status signal_asked(void *user_data, spec_draft_request *requests, int32_t n)
{
    (void)user_data;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(requests[i].tree, 0, SIGNAL, 0);
    return SPEC_OK;
}

/* Did the last n of ids stand earlier? */
static bool stood(const int32_t *ids, int32_t n_ids, int32_t n)
{
    for (int32_t end = n - 1; end < n_ids - 1; end++)
        if (memcmp(ids + end + 1 - n, ids + n_ids - n, (size_t)n * sizeof *ids) == 0) return n_ids >= n;
    return false;
}

typedef struct front_case {
    const char *name, *text;
    spec_adapt adapt;
    int32_t least; /* tokens of a match; 0: as the choice says */
    bool counts;   /* it does not propose by each match */
} front_case;
static const front_case fronts[] = {
    { "in front ngram", "ngram:3,5", SPEC_ADAPT_OFF, 2, false },
    { "in front ngram, one token", "ngram:3,5,1", SPEC_ADAPT_OFF, 1, false },
    { "in front ngram, three tokens", "ngram:4,5,3", SPEC_ADAPT_OFF, 3, false },
    { "in front ngram:1", "ngram:1,5", SPEC_ADAPT_OFF, 1, false },
    { "in front trie", "trie:8,4,1", SPEC_ADAPT_OFF, 2, true },
    { "in front ngram, chosen", "ngram:3,5", SPEC_ADAPT_COST, 0, true },
    { "in front trie, chosen", "trie:8,4,1", SPEC_ADAPT_COST, 0, true },
};

/* Who proposes: the first where enough of the last tokens have stood before, else the one behind it. */
static void check_front(void **state)
{
    enum { STEPS = 300, ALPHABET = 14 };
    const front_case *t = *state;
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = signal_asked };
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_model *model = support_model(backend, GOLDEN "mamba", SPEC_DTYPE_F32);
    spec_drafter *list[2];
    spec_session *s;
    uint64_t random = 5;
    int32_t seq, prompt = 1, n_by[3] = { 0 };
    dp.n_draft = 1;
    OK(spec_drafter_open(&list[0], t->text, NULL));
    OK(spec_drafter_from_ops(&list[1], &ops, &dp));
    p.n_ctx = 4096, p.drafters = list, p.n_drafter = 2, p.adapt = t->adapt;
    p.combine = t->adapt == SPEC_ADAPT_OFF ? SPEC_DRAFT_FIRST : SPEC_DRAFT_CHOOSE;
    if (t->adapt == SPEC_ADAPT_COST) p.profile = SPEC_TEST_DIR "/bench/tasks/costs_7b.json";
    OK(spec_session_open(&s, model, NULL, &p));
    OK(spec_sequence_add(s, &seq, &prompt, 1, NULL));
    for (int32_t i = 0; i < STEPS; i++) {
        const spec_tree *tree;
        const int32_t *ids;
        size_t n;
        int32_t chosen, path[SPEC_MAX_DEPTH + 1] = { 0 };
        OK(spec_draft(s, &tree, &seq, 1));
        OK(spec_draft_choice(s, &chosen, seq));
        OK(spec_sequence_ids(s, &ids, &n, seq));
        const int32_t by = tree->n < 2 ? 2 : tree->token[1] == SIGNAL, n_ids = (int32_t)n;
        n_by[by]++;
        if (by == 0) assert_true(stood(ids, n_ids, t->least > 0 ? t->least : 1));
        else if (!t->counts) assert_false(stood(ids, n_ids, t->least));
        if (by == 0) assert_true(s->seqs[seq].proposal.n_match > 0 && stood(ids, n_ids, s->seqs[seq].proposal.n_match));
        if (chosen < 0) assert_int_equal(by, 2);
        int32_t n_path = 1;
        while (n_path < tree->n && by == 0 && tree->parent[n_path] == n_path - 1 && support_random(&random) % 4 > 0)
            path[n_path] = n_path, n_path++;
        OK(spec_score(s, &seq, 1, &tree));
        OK(spec_commit(s, seq, path, n_path, 1 + (int32_t)(support_random(&random) % ALPHABET)));
    }
    assert_true(n_by[0] > 0 && n_by[1] > 0);
    spec_session_close(s);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(list[k]);
    spec_model_close(model);
}

/* ---------------------------------------------------------------------- an application's drafter --- */

/* It proposes right tokens and wrong ones, and holds the text of every sequence as it was told. */
enum { WITNESS_SEQS = 4, WITNESS_IDS = 512 };
typedef struct witness {
    int32_t ids[WITNESS_SEQS][WITNESS_IDS], n[WITNESS_SEQS]; /* n 0: no such sequence */
    const int32_t *right;   /* [n_right] the text, or NULL: nothing it proposes is meant to be right */
    int32_t n_right;
    spec_status fails;      /* what draft returns */
    int32_t n_lost;         /* so many prefills fail, when they have begun a sequence */
    int32_t n_draft, n_prefill, n_fork, n_save, n_restore, n_end, n_close;
} witness;

static void same_ids(const witness *w, int32_t seq, const int32_t *ids, size_t n)
{
    assert_int_equal(w->n[seq], n);
    assert_memory_equal(w->ids[seq], ids, n * sizeof *ids);
}

static spec_status witness_draft(void *user_data, spec_draft_request *requests, int32_t n)
{
    witness *w = user_data;
    w->n_draft++;
    if (w->fails != SPEC_OK) return w->fails;
    for (int32_t i = 0; i < n; i++) {
        spec_tree *t = requests[i].tree;
        same_ids(w, requests[i].seq, requests[i].ids, requests[i].n_ids);
        const int32_t at = (int32_t)requests[i].n_ids, token = at < w->n_right ? w->right[at] : 1;
        if (t->cap < 4 || at % 5 == 4) continue;
        t->token[1] = (token + 1) % 8, t->parent[1] = 0; /* a wrong one first */
        t->token[2] = token, t->parent[2] = 0;
        t->token[3] = at + 1 < w->n_right ? w->right[at + 1] : 2, t->parent[3] = 2;
        t->n = 4;
    }
    return SPEC_OK;
}

static spec_status witness_prefill(void *user_data, int32_t seq, const int32_t *ids, size_t n)
{
    witness *w = user_data;
    assert_int_equal(w->n[seq], 0);
    assert_true(n <= WITNESS_IDS);
    memcpy(w->ids[seq], ids, n * sizeof *ids);
    w->n[seq] = (int32_t)n;
    w->n_prefill++;
    return w->n_lost-- > 0 ? SPEC_E_IO : SPEC_OK;
}

static void witness_committed(void *user_data, int32_t seq, const int32_t *ids, size_t n, int32_t n_new)
{
    witness *w = user_data;
    assert_true(n_new > 0 && n <= WITNESS_IDS);
    same_ids(w, seq, ids, n - (size_t)n_new);
    memcpy(w->ids[seq], ids, n * sizeof *ids);
    w->n[seq] = (int32_t)n;
}

static spec_status witness_fork(void *user_data, int32_t seq, int32_t copy)
{
    witness *w = user_data;
    assert_int_equal(w->n[copy], 0);
    memcpy(w->ids[copy], w->ids[seq], sizeof w->ids[seq]);
    w->n[copy] = w->n[seq];
    w->n_fork++;
    return SPEC_OK;
}

static spec_status witness_save(void *user_data, int32_t seq, spec_write_fn write, void *write_data)
{
    witness *w = user_data;
    w->n_save++;
    return write(write_data, &w->n[seq], sizeof w->n[seq]) || write(write_data, w->ids[seq], (size_t)w->n[seq] * sizeof(int32_t))
               ? SPEC_E_IO
               : SPEC_OK;
}

static spec_status witness_restore(void *user_data, int32_t seq, const int32_t *ids, size_t n, spec_read_fn read, void *read_data)
{
    witness *w = user_data;
    assert_int_equal(w->n[seq], 0);
    w->n_restore++;
    if (read(read_data, &w->n[seq], sizeof w->n[seq]) || read(read_data, w->ids[seq], (size_t)w->n[seq] * sizeof(int32_t)))
        return SPEC_E_IO;
    same_ids(w, seq, ids, n);
    return SPEC_OK;
}

static void witness_end(void *user_data, int32_t seq)
{
    witness *w = user_data;
    w->n[seq] = 0;
    w->n_end++;
}
static void witness_close(void *user_data) { ((witness *)user_data)->n_close++; }

static spec_drafter *witness_open(witness *w, uint64_t identity)
{
    const spec_drafter_ops ops = {
        .struct_size = sizeof ops, .user_data = w, .draft = witness_draft, .prefill = witness_prefill,
        .committed = witness_committed, .fork = witness_fork, .identity = identity, .save = witness_save,
        .restore = witness_restore, .end = witness_end, .close = witness_close,
    };
    spec_drafter *d;
    OK(spec_drafter_from_ops(&d, &ops, NULL));
    return d;
}

/* ------------------------------------------------------------------------------- combinations --- */

static const char *const families[] = { "llama2", "mamba", "mamba2", "bamba", "mambainllama", "lfm2" };
enum { N_NEW = 60, N_PROMPT = 6, N_LIST = 5 };

typedef struct combined {
    const char *drafters; /* of each a letter: n-gram, trie, model, application's, prompt and corpus n-grams */
    spec_draft_combine combine;
    spec_adapt adapt;
} combined;
static const combined combinations[] = {
    { "n", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "nm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "nam", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },   { "mn", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "nm", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },    { "amn", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },
    { "aa", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },    { "mm", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },
    { "nm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_OFF },   { "nma", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST },
    { "nma", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_UCB },  { "nm", SPEC_DRAFT_FIRST, SPEC_ADAPT_COST },
    { "nam", SPEC_DRAFT_UNION, SPEC_ADAPT_COST },
    { "t", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "ntm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "tam", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },   { "nt", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },
    { "tmt", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },   { "ntm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST },
    { "mt", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_UCB },
    { "p", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "npm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "pp", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },    { "mpa", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },
    { "pnm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST }, { "p", SPEC_DRAFT_FIRST, SPEC_ADAPT_UCB },
};

/* png: the text of its drafter */
static spec_drafter *drafter_of(char letter, spec_model *model, witness *w, const char *png)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d;
    p.tree = "chain:2;product:2,1";
    if (letter == 'a') return witness_open(w, 1);
    if (letter == 'n') OK(spec_drafter_open(&d, "ngram:2,4", NULL));
    if (letter == 't') OK(spec_drafter_open(&d, "trie:12,4,1", NULL));
    if (letter == 'p') OK(spec_drafter_open(&d, png, NULL));
    if (letter == 'm') OK(spec_drafter_from_model(&d, model, &p));
    return d;
}

/* What steps have told of drafts: of each drafter, and at [n] of those that several have made, or none. */
typedef struct told_drafts {
    int32_t n; /* drafters */
    struct {
        int64_t n_tree, n_drafted, n_accepted;
    } by[N_LIST + 1];
} told_drafts;

static void add_told(told_drafts *t, const spec_step_result *r)
{
    const int32_t k = r->drafter >= 0 ? r->drafter : t->n;
    t->by[k].n_tree += r->n_drafted > 0, t->by[k].n_drafted += r->n_drafted, t->by[k].n_accepted += r->n_accepted;
}

/* Each drafter's counts are what steps have told of it; and nodes of trees that several have made count for one of them. Returns how many
 * were accepted. */
static int32_t check_counts(const spec_session *s, const told_drafts *t, const char *what)
{
    int64_t n_drafted = 0, n_accepted = 0, all = 0;
    for (int32_t k = 0; k < t->n; k++) {
        spec_drafter_stats c = SPEC_DRAFTER_STATS_INIT;
        OK(spec_session_get_drafter_stats(s, &c, k));
        const int64_t drafted = c.n_drafted - t->by[k].n_drafted, accepted = c.n_accepted - t->by[k].n_accepted,
                      proposed = c.n_proposed - t->by[k].n_tree;
        const bool good = drafted >= 0 && accepted >= 0 && accepted <= drafted && proposed >= 0 && proposed <= t->by[t->n].n_tree &&
                          (drafted > 0) == (proposed > 0) && c.n_proposed <= c.n_asked;
        if (!good) fail_msg("%s: counts of drafter %d", what, k);
        n_drafted += drafted, n_accepted += accepted, all += c.n_accepted;
    }
    assert_int_equal(n_drafted, t->by[t->n].n_drafted);
    assert_int_equal(n_accepted, t->by[t->n].n_accepted);
    return (int32_t)all;
}

/* Two sequences at once, with unlike prompts, in a session of t->n drafters. */
static void check_text(spec_session *s, const int32_t prompt[2][N_PROMPT], const int32_t want[2][N_NEW], const char *what, told_drafts *t)
{
    const spec_request options = { .struct_size = sizeof options, .ignore_eos = 1, .n_predict = N_NEW };
    int32_t seqs[2], n_out[2] = { 0 };
    for (int32_t i = 0; i < 2; i++) {
        OK(spec_sequence_add(s, &seqs[i], prompt[i], N_PROMPT, NULL));
        OK(spec_sequence_set_request(s, seqs[i], &options));
    }
    while (n_out[0] < N_NEW || n_out[1] < N_NEW) {
        int32_t going[2], n = 0;
        spec_step_result r[2];
        for (int32_t i = 0; i < 2; i++)
            if (n_out[i] < N_NEW) going[n++] = i;
        const int32_t at[2] = { seqs[going[0]], seqs[going[n - 1]] };
        OK(step_into(s, r, at, n));
        for (int32_t k = 0; k < n; k++) {
            const int32_t i = going[k];
            assert_true(r[k].n_tokens > 0 && n_out[i] + r[k].n_tokens <= N_NEW);
            if (memcmp(r[k].tokens, want[i] + n_out[i], (size_t)r[k].n_tokens * sizeof(int32_t)) != 0)
                fail_msg("%s: text %d differs from plain text behind %d tokens", what, i, n_out[i]);
            n_out[i] += r[k].n_tokens;
            add_told(t, &r[k]);
        }
    }
}

static void check_combination(spec_model *model, const combined *c, const int32_t prompt[2][N_PROMPT],
                              const int32_t want[2][N_NEW], const int32_t *text, const char *png)
{
    witness w[N_LIST] = { 0 };
    spec_drafter *list[N_LIST];
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    const int32_t n = (int32_t)strlen(c->drafters);
    int32_t n_close = 0, n_witness = 0;
    for (int32_t k = 0; k < n; k++) {
        w[k].right = text, w[k].n_right = N_PROMPT + N_NEW;
        list[k] = drafter_of(c->drafters[k], model, &w[k], png);
    }
    p.n_seq = 2, p.n_ctx = 200, p.drafters = list, p.n_drafter = n, p.combine = c->combine, p.adapt = c->adapt;
    OK(spec_session_open(&s, model, NULL, &p));
    told_drafts t = { .n = n };
    check_text(s, prompt, want, c->drafters, &t);
    const int32_t n_accepted = check_counts(s, &t, c->drafters);
    if (strpbrk(c->drafters, "map") && c->adapt == SPEC_ADAPT_OFF && !(c->combine == SPEC_DRAFT_CHOOSE))
        assert_true(n_accepted > N_NEW / 4);
    spec_session_close(s);
    for (int32_t k = 0; k < n; k++) {
        spec_drafter_close(list[k]);
        n_close += w[k].n_close, n_witness += c->drafters[k] == 'a';
        assert_int_equal(w[k].n_end, w[k].n_prefill); /* the profile has sequences of its own */
    }
    assert_int_equal(n_close, n_witness);
}

static void check_combinations(void **state)
{
    static const int32_t prompt[2][N_PROMPT] = { { 5, 3, 5, 3, 7, 5 }, { 2, 4, 6, 4, 2, 4 } };
    int32_t want[2][N_NEW], text[N_PROMPT + N_NEW];
    char path[256], png[64];
    (void)snprintf(path, sizeof path, GOLDEN "%s", (const char *)*state);
    spec_model *model = support_model(backend, path, SPEC_DTYPE_F32);
    for (int32_t i = 0; i < 2; i++) support_plain_ids(model, prompt[i], N_PROMPT, NULL, N_NEW, want[i]);
    memcpy(text, prompt[0], sizeof prompt[0]);
    memcpy(text + N_PROMPT, want[0], sizeof want[0]);
    support_table(png, text, N_PROMPT + N_NEW, model->n_vocab, 3, 5); /* right for one sequence, wrong for the other */
    for (size_t i = 0; i < sizeof combinations / sizeof *combinations; i++)
        check_combination(model, &combinations[i], prompt, want, text, png);
    support_table_remove(png);
    spec_model_close(model);
}

/* ------------------------------------------------------------------------- drafters from text, and sequences' lives --- */

enum { N_LIFE = 3, LIFE_IDS = 128 };
static const char *const lives[] = { "n", "t", "nt", "tn", "tm", "p", "np", "pm" };

static void until_stop(spec_session *s, const int32_t *seqs, int32_t n, int32_t *n_proposal, int32_t *n_none)
{
    bool stopped[N_LIFE] = { false };
    for (;;) {
        int32_t going[N_LIFE], who[N_LIFE], n_going = 0;
        spec_step_result r[N_LIFE];
        for (int32_t i = 0; i < n; i++)
            if (!stopped[i]) who[n_going] = i, going[n_going++] = seqs[i];
        if (n_going == 0) return;
        OK(step_into(s, r, going, n_going));
        for (int32_t i = 0; i < n_going; i++) {
            stopped[who[i]] = r[i].stop != SPEC_STOP_NONE;
            *(r[i].n_drafted > 0 ? n_proposal : n_none) += 1;
        }
    }
}

/* Prompts, steps, a fork, a saved and restored copy, another prompt, penalties: the ids of three sequences. */
static void live(spec_session *s, int32_t ids[N_LIFE][LIFE_IDS], int32_t *n_proposal, int32_t *n_none)
{
    static const int32_t prompt[] = { 5, 3, 5, 3, 7, 5, 3, 5 }, further[] = { 2, 4, 2, 4, 6, 2 };
    spec_request request = { .struct_size = sizeof request, .ignore_eos = 1, .n_predict = 15 };
    support_stream saved = { 0 };
    int32_t seqs[N_LIFE];
    OK(spec_sequence_add(s, &seqs[0], prompt, 8, &request));
    until_stop(s, seqs, 1, n_proposal, n_none);
    OK(spec_sequence_fork(s, &seqs[1], seqs[0]));
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_set_request(s, seqs[i], &request));
    until_stop(s, seqs, 2, n_proposal, n_none);
    OK(spec_sequence_save(s, seqs[1], support_to_stream, &saved));
    OK(spec_sequence_restore(s, &seqs[2], support_from_stream, &saved));
    request.n_predict = 30;
    OK(spec_sequence_append(s, seqs[0], further, 6, &request));
    OK(spec_sequence_set_request(s, seqs[2], &request));
    request.repeat_penalty = 1.4f, request.presence_penalty = 0.3f;
    OK(spec_sequence_set_request(s, seqs[1], &request));
    until_stop(s, seqs, 3, n_proposal, n_none);
    for (int32_t i = 0; i < N_LIFE; i++) {
        const int32_t *all;
        size_t n;
        OK(spec_sequence_ids(s, &all, &n, seqs[i]));
        assert_true(n <= LIFE_IDS);
        memcpy(ids[i], all, n * sizeof *all);
        OK(spec_sequence_remove(s, seqs[i]));
    }
    free(saved.data);
}

/* Twice in one session: the second time the trie has a past. */
static void check_life(spec_model *model, const char *drafters, int32_t want[N_LIFE][LIFE_IDS], const char *png)
{
    int32_t n_proposal = 0, n_none = 0, n = 0;
    spec_drafter *list[N_LIST];
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    for (; drafters[n]; n++) list[n] = drafter_of(drafters[n], model, NULL, png);
    p.n_seq = N_LIFE, p.n_ctx = 200, p.drafters = list, p.n_drafter = n;
    OK(spec_session_open(&s, model, NULL, &p));
    for (int32_t again = 0; again < 2; again++) {
        int32_t got[N_LIFE][LIFE_IDS] = { { 0 } };
        live(s, got, &n_proposal, &n_none);
        for (int32_t i = 0; i < N_LIFE; i++)
            for (int32_t k = 0; k < LIFE_IDS; k++)
                if (got[i][k] != want[i][k])
                    fail_msg("%s: sequence %d has %d at %d, plain decoding %d", drafters, i, got[i][k], k, want[i][k]);
    }
    assert_true(n_proposal > 10 && (n_none > 0 || strchr(drafters, 'm')));
    spec_session_close(s);
    for (int32_t i = 0; i < n; i++) spec_drafter_close(list[i]);
}

static void check_lives(void **state)
{
    int32_t want[N_LIFE][LIFE_IDS] = { { 0 } }, n_proposal = 0, n_none = 0;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    char path[256], png[64];
    (void)snprintf(path, sizeof path, GOLDEN "%s", (const char *)*state);
    spec_model *model = support_model(backend, path, SPEC_DTYPE_F32);
    p.n_seq = N_LIFE, p.n_ctx = 200;
    OK(spec_session_open(&s, model, NULL, &p));
    live(s, want, &n_proposal, &n_none);
    assert_int_equal(n_proposal, 0);
    spec_session_close(s);
    support_table(png, want[0], LIFE_IDS / 4, model->n_vocab, 2, 4); /* of few ids: some steps propose nothing */
    for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) check_life(model, lives[i], want, png);
    support_table_remove(png);
    spec_model_close(model);
}

/* Prompts, and the ids of restored sequences, serve their sequence alone: the past has what was emitted. */
static void check_past(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 7, 3, 1 };
    spec_request request = { .struct_size = sizeof request, .ignore_eos = 1, .n_predict = 9 };
    support_stream saved = { 0 };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *d = drafter_of('t', model, NULL, NULL);
    const speci_trie *t = d->own;
    spec_session *s;
    int32_t seqs[2], n_proposal = 0, n_none = 0;
    p.n_seq = 2;
    OK(spec_session_open(&s, model, d, &p));
    OK(spec_sequence_add(s, &seqs[0], prompt, 6, &request));
    OK(spec_sequence_append(s, seqs[0], prompt, 4, &request));
    OK(spec_sequence_save(s, seqs[0], support_to_stream, &saved));
    OK(spec_sequence_restore(s, &seqs[1], support_from_stream, &saved));
    assert_int_equal(t->past.n_counted, 0);
    until_stop(s, seqs, 1, &n_proposal, &n_none);
    assert_int_equal(t->past.n_counted, 9 * 4 - (3 + 2 + 1)); /* runs of up to 4 of the 9 tokens */
    OK(spec_sequence_append(s, seqs[0], prompt, 3, &request));
    assert_int_equal(t->past.n_counted, 9 * 4 - (3 + 2 + 1));
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
    free(saved.data);
}

static int32_t child_of_root(const spec_tree *t, int32_t token)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] == 0 && t->token[i] == token) return i;
    return 0;
}

/* The latest trees are scored and committed: counts of the session's drafters are then so many nodes each. */
static void check_drafted(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees, const int64_t *n_drafted,
                          int32_t n_drafter)
{
    OK(spec_score(s, seqs, n, trees));
    for (int32_t i = 0; i < n; i++) {
        int32_t path[SPEC_MAX_DEPTH + 1], n_path, token;
        OK(spec_verify(s, path, &n_path, &token, seqs[i], SPEC_VERIFY_AUTO));
        OK(spec_commit(s, seqs[i], path, n_path, token));
    }
    for (int32_t k = 0; k < n_drafter; k++) {
        spec_drafter_stats stats = SPEC_DRAFTER_STATS_INIT;
        OK(spec_session_get_drafter_stats(s, &stats, k));
        if (stats.n_drafted != n_drafted[k]) fail_msg("drafter %d: %d nodes, expected %d", k, (int)stats.n_drafted, (int)n_drafted[k]);
    }
}

/* Behind a drafter that finds nothing the union has, for every sequence, all nodes of both; FIRST has those of the first alone. A node
 * counts for the drafter that has proposed it. */
static void check_union(void **state)
{
    static const int32_t other[] = { 5, 5, 5, 5, 5, 5, 5, 5 }, prompts[2][3] = { { 7, 3, 1 }, { 2, 6, 4 } };
    const spec_draft_combine combine = (spec_draft_combine)(uintptr_t)*state;
    witness w[2] = { { .n_right = 0 }, { .right = other, .n_right = 8 } };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    const spec_tree *trees[2];
    spec_session *s;
    int32_t seqs[2];
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *list[3] = { drafter_of('n', model, NULL, NULL), witness_open(&w[0], 1), witness_open(&w[1], 2) };
    p.n_seq = 2, p.n_node = 16, p.drafters = list, p.n_drafter = 3, p.combine = combine;
    OK(spec_session_open(&s, model, NULL, &p));
    for (int32_t i = 0; i < 2; i++) OK(spec_sequence_add(s, &seqs[i], prompts[i], 3, NULL));
    OK(spec_draft(s, trees, seqs, 2));
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(trees[i]->n, combine == SPEC_DRAFT_UNION ? 7 : 4);
        for (int32_t token = 0; token < 8; token++) {
            const bool proposed = token == 1 || token == 2 || (combine == SPEC_DRAFT_UNION && (token == 5 || token == 6));
            assert_int_equal(child_of_root(trees[i], token) > 0, proposed);
        }
    }
    check_drafted(s, seqs, 2, trees, (int64_t[]){ 0, 6, combine == SPEC_DRAFT_UNION ? 6 : 0 }, 3);
    spec_session_close(s);
    for (int32_t i = 0; i < 3; i++) spec_drafter_close(list[i]);
    spec_model_close(model);
}

/* A tree is as deep as its tokens fit the limit: one more is emitted behind them. */
static void check_clipped(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1 };
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    for (int32_t n_predict = 1; n_predict <= 4; n_predict++) {
        witness w = { 0 };
        spec_drafter *d = witness_open(&w, 1);
        spec_request r = SPEC_REQUEST_INIT;
        const spec_tree *t;
        spec_session *s;
        int32_t seq, deepest = 0;
        r.n_predict = n_predict;
        OK(spec_session_open(&s, model, d, NULL));
        OK(spec_sequence_add(s, &seq, prompt, 3, &r));
        OK(spec_draft(s, &t, &seq, 1));
        for (int32_t i = 0; i < t->n; i++) deepest = speci_max32(deepest, speci_tree_depth(t, i));
        assert_int_equal(deepest, speci_min32(n_predict - 1, 2));
        spec_session_close(s);
        spec_drafter_close(d);
    }
    spec_model_close(model);
}

/* --- who observes --- */

static int32_t n_observed[2];
static void observe_first(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n)
{
    (void)b, (void)n_node, (void)ranks, (void)n;
    n_observed[0]++;
}
static void observe_second(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n)
{
    (void)b, (void)n_node, (void)ranks, (void)n;
    n_observed[1]++;
}

/* A builder is told what came of a tree that is its own, not of a union. */
static void check_observed(void **state)
{
    (void)state;
    static const spec_draft_combine combines[] = { SPEC_DRAFT_FIRST, SPEC_DRAFT_UNION };
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    for (int k = 0; k < 2; k++) {
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *list[2] = { drafter_of('m', model, NULL, NULL), drafter_of('m', model, NULL, NULL) };
        speci_builder_kind kinds[2];
        spec_session *s;
        spec_result r = SPEC_RESULT_INIT;
        spec_request request = SPEC_REQUEST_INIT;
        for (int i = 0; i < 2; i++) {
            kinds[i] = *list[i]->builders[0]->kind;
            kinds[i].observe = i == 0 ? observe_first : observe_second;
            list[i]->builders[0]->kind = &kinds[i];
        }
        n_observed[0] = n_observed[1] = 0;
        p.drafters = list, p.n_drafter = 2, p.combine = combines[k];
        request.n_predict = 12, request.ignore_eos = 1;
        OK(spec_session_open(&s, model, NULL, &p));
        OK(spec_generate_ids(s, &r, prompt, 4, &request));
        assert_true(r.n_accepted > 0);
        assert_true((n_observed[0] > 0) == (combines[k] == SPEC_DRAFT_FIRST));
        assert_int_equal(n_observed[1], 0);
        spec_result_free(&r);
        spec_session_close(s);
        for (int i = 0; i < 2; i++) spec_drafter_close(list[i]);
    }
    spec_model_close(model);
}

/* A tree sampled with replacement may repeat a token among siblings. Beside another drafter, which proposes nothing or finds no room,
 * it is no draw any more: siblings are distinct, and the text is plain text of the same seed. */
static void check_union_of_repeated(void **state)
{
    (void)state;
    enum { N = 40, N_SEED = 12 };
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_model *small = support_model(backend, GOLDEN "law8-drafter", SPEC_DTYPE_F32);
    for (int32_t n_node = 3; n_node <= 24; n_node += 7) {
        spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
        spec_session_params p = SPEC_SESSION_PARAMS_INIT;
        spec_drafter *list[2];
        spec_session *s;
        dp.tree = "product-repeat:3,2";
        for (int32_t k = 0; k < 2; k++) OK(spec_drafter_from_model(&list[k], small, &dp));
        p.n_node = n_node, p.drafters = list, p.n_drafter = 2, p.combine = SPEC_DRAFT_UNION, p.verify = SPEC_VERIFY_NAIVE;
        OK(spec_session_open(&s, model, NULL, &p));
        for (uint64_t seed = 1; seed <= N_SEED; seed++) {
            int32_t want[N];
            spec_request r = SPEC_REQUEST_INIT;
            spec_result got = SPEC_RESULT_INIT;
            r.sampling = (spec_sampling){ .temperature = 0.7f, .seed = seed }, r.n_predict = N, r.ignore_eos = 1;
            support_plain_ids(model, prompt, 4, &r.sampling, N, want);
            OK(spec_generate_ids(s, &got, prompt, 4, &r));
            assert_int_equal(got.n_ids, N);
            assert_memory_equal(got.ids, want, sizeof want);
            spec_result_free(&got);
        }
        spec_session_close(s);
        for (int32_t k = 0; k < 2; k++) spec_drafter_close(list[k]);
    }
    spec_model_close(small);
    spec_model_close(model);
}

/* ------------------------------------------------------------------------------------ the hooks --- */

static void go_on(spec_session *s, int32_t seq, int32_t n)
{
    const spec_request options = { .struct_size = sizeof options, .ignore_eos = 1 };
    spec_step_result r;
    OK(spec_sequence_set_request(s, seq, &options));
    for (int32_t i = 0; i < n; i++) OK(step_into(s, &r, &seq, 1));
}

static void check_told(spec_session *s, int32_t seq, const witness *w)
{
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seq));
    same_ids(w, seq, ids, n);
}

/* A drafter that forks nothing begins the copy from its ids. */
static void check_fork_by_prefill(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    witness w = { 0 };
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .user_data = &w, .draft = witness_draft, .prefill = witness_prefill,
                                   .committed = witness_committed, .end = witness_end };
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *d;
    spec_session *s;
    int32_t seq, copy;
    p.n_seq = 2;
    OK(spec_drafter_from_ops(&d, &ops, NULL));
    OK(spec_session_open(&s, model, d, &p));
    OK(spec_sequence_add(s, &seq, prompt, 4, NULL));
    go_on(s, seq, 3);
    OK(spec_sequence_fork(s, &copy, seq));
    check_told(s, copy, &w);
    go_on(s, copy, 3);
    check_told(s, copy, &w);
    check_told(s, seq, &w);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* Tokens of a sequence are told once and in order: with steps, with the four calls, in copies, in restored ones. */
static void check_hooks(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    support_stream saved = { 0 }, again = { 0 };
    witness w = { 0 };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s;
    int32_t a, b, c, path[1] = { 0 };
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *d = witness_open(&w, 77);
    p.n_seq = 3;
    OK(spec_session_open(&s, model, d, &p));
    OK(spec_sequence_add(s, &a, prompt, 4, NULL));
    go_on(s, a, 9);
    const spec_tree *tree;
    OK(spec_draft(s, &tree, &a, 1));
    OK(spec_score(s, &a, 1, &tree));
    OK(spec_commit(s, a, path, 1, 6));
    check_told(s, a, &w);
    OK(spec_sequence_fork(s, &b, a));
    go_on(s, a, 3);
    go_on(s, b, 5);
    check_told(s, a, &w);
    check_told(s, b, &w);
    OK(spec_sequence_save(s, b, support_to_stream, &saved));
    OK(spec_sequence_save(s, b, support_to_stream, &again));
    assert_int_equal(saved.n, again.n);
    assert_memory_equal(saved.data, again.data, saved.n);
    OK(spec_sequence_restore(s, &c, support_from_stream, &saved));
    check_told(s, c, &w);
    go_on(s, c, 4);
    check_told(s, c, &w);
    assert_int_equal(w.n_prefill, 1);
    assert_int_equal(w.n_fork, 1);
    assert_int_equal(w.n_restore, 1);
    assert_true(w.n_save >= 2);
    OK(spec_sequence_remove(s, b));
    assert_int_equal(w.n_end, 1);
    spec_session_close(s);
    assert_int_equal(w.n_end, 3);
    assert_int_equal(w.n_close, 0);
    spec_drafter_close(d);
    assert_int_equal(w.n_close, 1);

    /* A drafter of another identity does not get those bytes: it is told the ids. */
    witness other = { 0 };
    d = witness_open(&other, 78);
    OK(spec_session_open(&s, model, d, &p));
    saved.at = 0;
    OK(spec_sequence_restore(s, &c, support_from_stream, &saved));
    assert_int_equal(other.n_restore, 0);
    assert_int_equal(other.n_prefill, 1);
    check_told(s, c, &other);
    spec_session_close(s);
    spec_drafter_close(d);
    free(saved.data);
    free(again.data);
    spec_model_close(model);
}

/* An error of the application's ends the call, and nothing else: the text goes on as if it had not been. */
static void check_error(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    enum { N = 40 };
    witness w = { 0 };
    int32_t want[N], seq;
    const int32_t *ids;
    size_t n;
    spec_session *s;
    spec_step_result r;
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *d = witness_open(&w, 1);
    support_plain_ids(model, prompt, 4, NULL, N, want);
    OK(spec_session_open(&s, model, d, NULL));
    OK(spec_sequence_add(s, &seq, prompt, 4, NULL));
    for (n = 4; n < N;) {
        go_on(s, seq, 1);
        w.fails = SPEC_E_IO;
        FAILS(step_into(s, &r, &seq, 1), SPEC_E_IO, "sequence 0: draft of the application's drafter failed with E_IO");
        w.fails = SPEC_OK;
        check_told(s, seq, &w);
        OK(spec_sequence_ids(s, &ids, &n, seq));
    }
    assert_memory_equal(ids + 4, want, (N - 4) * sizeof *want);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* A sequence that was not admitted is ended once. */
static void check_never_begun(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    witness w = { .n_lost = 1 };
    spec_session *s;
    int32_t seq;
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *d = witness_open(&w, 1);
    OK(spec_session_open(&s, model, d, NULL));
    FAILS(spec_sequence_add(s, &seq, prompt, 4, NULL), SPEC_E_IO, "prefill of the application's drafter failed with E_IO");
    assert_int_equal(w.n_end, 1);
    OK(spec_sequence_add(s, &seq, prompt, 4, NULL));
    check_told(s, seq, &w);
    spec_session_close(s);
    spec_drafter_close(d);
    spec_model_close(model);
}

/* A drafter that could not begin is told so, and begins with the next step; the text waits for it. One in front of it that could is told
 * nothing twice. */
static void check_begun_late(void **state)
{
    (void)state;
    static const int32_t prompt[] = { 7, 3, 1, 5 };
    enum { N = 20 };
    witness w = { .n_lost = 2 }, front = { 0 };
    int32_t want[N], seq;
    const int32_t *ids;
    size_t n = 0;
    spec_session *s;
    spec_step_result r = { .n_tokens = 0 };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_model *model = support_model(backend, GOLDEN "law8-target", SPEC_DTYPE_F32);
    spec_drafter *list[2] = { witness_open(&front, 1), witness_open(&w, 2) };
    support_plain_ids(model, prompt, 4, NULL, N, want);
    p.n_prompt_step = 64, p.drafters = list, p.n_drafter = 2;
    OK(spec_session_open(&s, model, NULL, &p));
    OK(spec_sequence_add(s, &seq, prompt, 4, NULL));
    for (int i = 1; i <= 2; i++) {
        FAILS(step_into(s, &r, &seq, 1), SPEC_E_IO, "prefill of the application's drafter failed with E_IO");
        assert_int_equal(w.n_end, i);
    }
    while (n < N) {
        go_on(s, seq, 1);
        check_told(s, seq, &w);
        check_told(s, seq, &front);
        OK(spec_sequence_ids(s, &ids, &n, seq));
    }
    assert_memory_equal(ids + 4, want, (N - 4) * sizeof *want);
    assert_int_equal(w.n_prefill, 3);
    assert_int_equal(front.n_prefill, 1);
    spec_session_close(s);
    for (int32_t k = 0; k < 2; k++) spec_drafter_close(list[k]);
    spec_model_close(model);
}

int main(void)
{
    enum { N_LOOKUP = sizeof lookups / sizeof *lookups, N_FRONT = sizeof fronts / sizeof *fronts,
           N_FAMILY = sizeof families / sizeof *families, N_OTHER = 12 };
    struct CMUnitTest tests[N_LOOKUP + 2 * N_FAMILY + N_FRONT + N_OTHER] = {
        cmocka_unit_test(check_refused),
        cmocka_unit_test(check_hooks),
        cmocka_unit_test(check_error),
        cmocka_unit_test(check_past),
        cmocka_unit_test(check_begun_late),
        cmocka_unit_test(check_never_begun),
        cmocka_unit_test(check_observed),
        cmocka_unit_test(check_clipped),
        cmocka_unit_test(check_fork_by_prefill),
        cmocka_unit_test(check_union_of_repeated),
        { "first", check_union, NULL, NULL, (void *)(uintptr_t)SPEC_DRAFT_FIRST },
        { "union", check_union, NULL, NULL, (void *)(uintptr_t)SPEC_DRAFT_UNION },
    };
    backend = support_backend();
    for (size_t i = 0; i < N_LOOKUP; i++)
        tests[N_OTHER + i] = (struct CMUnitTest){ lookups[i].name, check_lookup, NULL, NULL, (void *)(uintptr_t)&lookups[i] };
    for (size_t i = 0; i < N_FAMILY; i++)
        tests[N_OTHER + N_LOOKUP + i] =
            (struct CMUnitTest){ families[i], check_combinations, NULL, NULL, (void *)(uintptr_t)families[i] };
    for (size_t i = 0; i < N_FAMILY; i++)
        tests[N_OTHER + N_LOOKUP + N_FAMILY + i] =
            (struct CMUnitTest){ families[i], check_lives, NULL, NULL, (void *)(uintptr_t)families[i] };
    for (size_t i = 0; i < N_FRONT; i++)
        tests[N_OTHER + N_LOOKUP + 2 * N_FAMILY + i] =
            (struct CMUnitTest){ fronts[i].name, check_front, NULL, NULL, (void *)(uintptr_t)&fronts[i] };
    const int failed = _cmocka_run_group_tests("drafters", tests, sizeof tests / sizeof *tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
