/* test_vocab.c - models that draft with another vocabulary (algorithms.md 18): the text is the target's, token for token; drafts are
 * what the drafter itself would say of the tokens that both have; a permuted vocabulary drafts as the same one; copies and saved
 * sequences go on alike. Vocabularies are made here, of the 96 ids of the models in golden/; a drafter's rows of embedding and head
 * are the target's rows of the same tokens, so that it is often right. */
#include "tests/support_decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/draft/draft_model.h"
#include "algorithms/engine/engine.h"
#include "backends/cpu/cpu.h"
#include "tests/support_greedy.h"
#include "tests/support_sequence.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"
#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))

static spec_backend *backend;

/* ------------------------------------------------------------------------------- vocabularies --- */

enum { V = 96, END = 95 /* a special token, where there is one */ };

typedef struct vocabulary {
    char piece[V][4];
    int32_t n_piece[V];
    int32_t n; /* V, or END with a special token behind them */
} vocabulary;

typedef enum vocabulary_kind {
    LETTERS,  /* a token for each printable character, space and newline; none is special */
    PERMUTED, /* the same, with other ids */
    PAIRS,    /* half of the characters, and pairs of them */
    OTHER,    /* the same but for a few of the pairs, with other ids */
    BYTES,    /* characters, bytes of two that are not ASCII, and parts of these */
    SINGLE,   /* those bytes alone */
    APART,    /* the other half, and pairs of them: nothing in common with PAIRS */
    N_VOCABULARY
} vocabulary_kind;
static const char *const kind_names[] = { "letters", "permuted", "pairs", "other", "bytes", "single", "apart" };

static int32_t find(const vocabulary *v, const char *piece, int32_t n)
{
    for (int32_t i = 0; i < v->n; i++)
        if (v->n_piece[i] == n && memcmp(v->piece[i], piece, (size_t)n) == 0) return i;
    return -1;
}

static void put(vocabulary *v, const char *piece, int32_t n_piece)
{
    if (v->n == END || find(v, piece, n_piece) >= 0) return;
    memcpy(v->piece[v->n], piece, (size_t)n_piece);
    v->n_piece[v->n++] = n_piece;
}

/* Characters [first, first + n) of the 94 that are printable. */
static void put_characters(vocabulary *v, int32_t first, int32_t n)
{
    for (int32_t i = first; i < first + n; i++) put(v, (char[]){ (char)('!' + i) }, 1);
}

/* Pairs of them, until there are `upto` pieces. */
static void put_pairs(vocabulary *v, int32_t first, int32_t n, int32_t upto, uint64_t random)
{
    while (v->n < upto) {
        const char pair[] = { (char)('!' + first + (int32_t)(support_random(&random) % (uint32_t)n)),
                              (char)('!' + first + (int32_t)(support_random(&random) % (uint32_t)n)) };
        put(v, pair, 2);
    }
}

static void put_bytes(vocabulary *v, bool parts)
{
    static const char *const singles[] = { "\xE2", "\x82", "\xAC", "\xC3", "\xA9" };
    for (int32_t i = 0; i < COUNT(singles); i++) put(v, singles[i], 1);
    if (parts) put(v, "\xE2\x82", 2), put(v, "\xC3\xA9", 2), put(v, "\xE2\x82\xAC", 3);
}

/* 37 has no factor in common with 95 and 96. */
static void permute(vocabulary *v)
{
    const vocabulary old = *v;
    for (int32_t i = 0; i < v->n; i++) {
        memcpy(v->piece[i * 37 % v->n], old.piece[i], sizeof old.piece[i]);
        v->n_piece[i * 37 % v->n] = old.n_piece[i];
    }
}

static vocabulary make(vocabulary_kind kind)
{
    vocabulary v = { 0 };
    if (kind == LETTERS || kind == PERMUTED) {
        put_characters(&v, 0, 94), put(&v, " ", 1);
        v.piece[v.n][0] = '\n', v.n_piece[v.n++] = 1;
    }
    if (kind == PAIRS || kind == OTHER) put_characters(&v, 0, 46), put_pairs(&v, 0, 46, END - 5, 1);
    if (kind == PAIRS || kind == OTHER) put_pairs(&v, 0, 46, END, kind == PAIRS ? 2 : 3);
    if (kind == BYTES) put_bytes(&v, true), put_characters(&v, 0, 80), put_pairs(&v, 0, 80, END, 4);
    if (kind == SINGLE) put_bytes(&v, false), put_characters(&v, 0, 90);
    if (kind == APART) put_characters(&v, 46, 48), put_pairs(&v, 46, 48, END, 5);
    if (kind == PERMUTED || kind == OTHER) permute(&v);
    return v;
}

/* GPT-2's alphabet of bytes. */
static int32_t byte_char(uint8_t byte)
{
    int32_t n = 256;
    const bool shown = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    for (int32_t b = 0; b < byte && !shown; b++) n += !((b > 32 && b < 127) || (b > 160 && b != 173));
    return shown ? byte : n;
}

static void shown(char out[16], const char *piece, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t c = byte_char((uint8_t)piece[i]);
        if (c < 0x80) *out++ = (char)c;
        else *out++ = (char)(0xC0 | c >> 6), *out++ = (char)(0x80 | (c & 0x3F));
    }
    *out = 0;
}

static void add_merge(json_t *merges, const char *piece, int32_t left, int32_t n)
{
    char a[16], b[16];
    shown(a, piece, left);
    shown(b, piece + left, n - left);
    json_array_append_new(merges, json_pack("[s, s]", a, b));
}

static char *tokenizer_text(const vocabulary *v)
{
    json_t *ids = json_object(), *merges = json_array();
    for (int32_t i = 0; i < v->n; i++) {
        char text[16];
        shown(text, v->piece[i], v->n_piece[i]);
        json_object_set_new(ids, text, json_integer(i));
        if (v->n_piece[i] > 1) add_merge(merges, v->piece[i], v->n_piece[i] - 1, v->n_piece[i]);
    }
    json_t *special = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", END, "content", "<e>", "single_word", 0, "lstrip", 0,
                                "rstrip", 0, "normalized", 0, "special", 1);
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0);
    json_t *j = json_pack("{s:s, s:[], s:n, s:O, s:n, s:o, s:{s:s, s:o, s:o}}", "version", "1.0", "added_tokens", "normalizer",
                          "pre_tokenizer", bytes, "post_processor", "decoder", bytes, "model", "type", "BPE", "vocab", ids, "merges",
                          merges);
    if (v->n == END) json_array_append(json_object_get(j, "added_tokens"), special);
    json_decref(special);
    assert_non_null(j);
    char *text = json_dumps(j, 0);
    json_decref(j);
    return text;
}

/* ------------------------------------------------------------------------------------- models --- */

static spec_model *open_dir(spec_backend *be, const char *dir)
{
    spec_model *m = support_model(be, dir, SPEC_DTYPE_F32);
    support_variant_remove(dir);
    return m;
}

static spec_model *target_of(spec_backend *be, const char *base, vocabulary_kind kind)
{
    char dir[64];
    const vocabulary v = make(kind);
    char *text = tokenizer_text(&v);
    const variant_file files[] = { { "tokenizer.json", text } };
    support_variant(dir, base, files, 1);
    free(text);
    return open_dir(be, dir);
}

/* `base` with the vocabulary `kind`, its rows taken from where a target with `of` has them. */
static spec_model *drafter_of(spec_backend *be, const char *base, vocabulary_kind kind, vocabulary_kind of)
{
    char dir[64];
    const vocabulary v = make(kind), t = make(of);
    int32_t from[V];
    for (int32_t i = 0; i < V; i++) {
        const int32_t twin = i == v.n ? END : find(&t, v.piece[i], v.n_piece[i]);
        from[i] = twin >= 0 ? twin : i;
    }
    char *text = tokenizer_text(&v);
    const variant_file files[] = { { "tokenizer.json", text }, { "model.safetensors", NULL } };
    support_variant(dir, base, files, 2);
    support_take_rows(dir, base, V, from, V);
    free(text);
    return open_dir(be, dir);
}

static const char *const bases[] = { GOLDEN "llama2", GOLDEN "mamba2", GOLDEN "bamba", GOLDEN "lfm2" };
static const char *const base_names[] = { "llama", "mamba2", "hybrid", "lfm2" };
enum { N_BASE = COUNT(bases) };

/* ------------------------------------------------------------------------------- same text --- */

enum { N_PROMPT = 3, WIDTH = 9, N_NEW = 20 };

/* Any ids but the special one: of LETTERS every text is written as its tokenizer would. */
static greedy_prompts random_prompts(int32_t *ids, uint64_t random)
{
    for (int32_t i = 0; i < N_PROMPT * WIDTH; i++) ids[i] = (int32_t)(support_random(&random) % END);
    for (int32_t i = 0; i < N_PROMPT; i++)
        for (int32_t k = WIDTH - i; k < WIDTH; k++) ids[i * WIDTH + k] = -1;
    return (greedy_prompts){ .n = N_PROMPT, .width = WIDTH, .ids = ids };
}

typedef struct pair_case {
    vocabulary_kind target, drafter;
} pair_case;
static const pair_case pairs[] = { { PAIRS, OTHER }, { OTHER, LETTERS }, { LETTERS, PERMUTED }, { BYTES, SINGLE }, { PAIRS, APART } };
/* Accepted of 1000 drafted, at least: where nearly all is shared. Random models are right by chance alone behind a text that they
 * read in other tokens. */
static const int32_t least[] = { 50, 1, 100, 5, 0 };
static const spec_draft_vocab hows[] = { SPEC_DRAFT_VOCAB_AUTO, SPEC_DRAFT_VOCAB_INTERSECTION, SPEC_DRAFT_VOCAB_TEXT };
static const char *const how_names[] = { "auto", "intersection", "text" };
static const char *const some_trees[] = { "chain:4", "product:3,2,1", "product-repeat:3,2", "beam:3,3", "dyspec:12", "eagle2:3,8,3" };

/* Greedy, and sampled by naive verification: what the target says plainly, whatever is drafted. */
static void check_texts(int32_t base, const pair_case *c, greedy_counts counts[3])
{
    int32_t ids[N_PROMPT * WIDTH], plain[2][N_PROMPT * N_NEW], spec[N_PROMPT * N_NEW];
    const spec_sampling sampling = { .temperature = 0.9f, .seed = 7 };
    const greedy_prompts p = random_prompts(ids, 5);
    greedy_run run = { .target = target_of(backend, bases[base], c->target), .n_new = N_NEW, .n_at_once = N_PROMPT };
    support_greedy(plain[0], NULL, &run, &p);
    run.sampling = &sampling;
    support_greedy(plain[1], NULL, &run, &p);
    run.drafter = drafter_of(backend, bases[base], c->drafter, c->target);
    for (int32_t i = 0; i < 2 * 3 * COUNT(some_trees); i++) {
        const int32_t sampled = i % 2, how = i / 2 % 3, tree = i / 6;
        run.sampling = sampled ? &sampling : NULL;
        run.verify = sampled ? SPEC_VERIFY_NAIVE : SPEC_VERIFY_AUTO;
        run.vocab = hows[how], run.tree = some_trees[tree];
        run.n_at_once = 1 + (i + base) % N_PROMPT;
        support_greedy(spec, &counts[how], &run, &p);
        const int64_t at = support_first_difference(plain[sampled], spec, N_PROMPT * N_NEW);
        if (at >= 0)
            fail_msg("%s, %s drafts for %s by %s, %s, %s: prompt %d differs at token %d", base_names[base], kind_names[c->drafter],
                     kind_names[c->target], how_names[how], run.tree, sampled ? "sampled" : "greedy", (int)(at / N_NEW), (int)(at % N_NEW));
    }
    spec_model_close(run.drafter);
    spec_model_close(run.target);
}

static void texts_are_the_targets(void **state)
{
    (void)state;
    for (int32_t k = 0; k < COUNT(pairs); k++) {
        greedy_counts counts[3] = { 0 };
        for (int32_t base = 0; base < N_BASE; base++) check_texts(base, &pairs[k], counts);
        print_message("  %s for %s: accepted", kind_names[pairs[k].drafter], kind_names[pairs[k].target]);
        for (int32_t how = 0; how < 3; how++)
            print_message(" %lld of %lld by %s%s", (long long)counts[how].accepted, (long long)counts[how].drafted, how_names[how],
                          how < 2 ? "," : "\n");
        const bool apart = pairs[k].drafter == APART;
        for (int32_t how = 0; how < 3; how++) assert_true(counts[how].accepted * 1000 >= least[k] * counts[how].drafted);
        if (apart) assert_int_equal(counts[1].drafted, 0); /* nothing in common: plain decoding */
    }
}

/* --- a permuted vocabulary is the same one --- */

typedef struct rule_case {
    float temperature;
    spec_verify_rule verify;
} rule_case;
static const rule_case rules[] = { { 0, SPEC_VERIFY_AUTO }, { 0.7f, SPEC_VERIFY_AUTO }, { 1, SPEC_VERIFY_AUTO }, { 1, SPEC_VERIFY_NAIVE } };

/* The text and every count, of every tree (half of them with each target): with the permuted vocabulary, and with the same one by
 * the map in place of by ids. On a backend that gathers, and (cpu) on one that leaves it to the host. */
static void check_permuted(spec_backend *be, int32_t base)
{
    int32_t ids[N_PROMPT * WIDTH], want[N_PROMPT * N_NEW], got[N_PROMPT * N_NEW];
    const greedy_prompts p = random_prompts(ids, 6);
    spec_model *same = drafter_of(be, bases[base], LETTERS, LETTERS), *permuted = drafter_of(be, bases[base], PERMUTED, LETTERS);
    greedy_run run = { .target = target_of(be, bases[base], LETTERS), .n_new = N_NEW, .n_at_once = 2 };
    int64_t accepted = 0;
    for (int32_t i = base % 2; i < 10 && support_trees[i]; i += 2)
        for (int32_t r = 0; r < COUNT(rules); r++) {
            const spec_sampling sampling = { .temperature = rules[r].temperature, .top_p = 0.95f, .seed = 9 };
            greedy_counts counts[3] = { 0 };
            run.tree = support_trees[i], run.verify = rules[r].verify, run.sampling = &sampling;
            run.drafter = same, run.vocab = SPEC_DRAFT_VOCAB_AUTO;
            support_greedy(want, &counts[0], &run, &p);
            run.vocab = SPEC_DRAFT_VOCAB_INTERSECTION;
            for (int32_t k = 1; k < 3; k++) {
                run.drafter = k == 1 ? same : permuted;
                support_greedy(got, &counts[k], &run, &p);
                if (support_first_difference(want, got, N_PROMPT * N_NEW) >= 0 || memcmp(&counts[0], &counts[k], sizeof counts[0]) != 0)
                    fail_msg("%s, %s, T %g: %lld of %lld accepted %s; %lld of %lld by the same vocabulary", base_names[base], run.tree,
                             (double)rules[r].temperature, (long long)counts[k].accepted, (long long)counts[k].drafted,
                             k == 1 ? "by the map" : "by the permuted vocabulary", (long long)counts[0].accepted,
                             (long long)counts[0].drafted);
            }
            accepted += counts[0].accepted;
        }
    assert_true(accepted > 150);
    spec_model_close(same);
    spec_model_close(permuted);
    spec_model_close(run.target);
}

static void permuted_is_the_same(void **state)
{
    (void)state;
    for (int32_t base = 0; base < N_BASE; base++) check_permuted(backend, base);
}

static void permuted_on_the_host(void **state)
{
    (void)state;
    spec_backend *be;
    spec_backend_ops ops = speci_cpu_ops;
    ops.gather = NULL;
    OK(spec_backend_open_ops(&be, &ops, NULL, NULL));
    check_permuted(be, 2);
    spec_backend_close(be);
}

/* ------------------------------------------------------------------------------- in step --- */

static const model_draft *draft_of(const spec_session *s) { return s->drafters.draft[0].state; }

/* The bytes of tokens [n], special ones left out. */
static size_t bytes_of(const spec_tokenizer *t, const int32_t *ids, int32_t n, char *out, size_t cap)
{
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = spec_tokenizer_piece(t, &n_piece, ids[i]);
        if (spec_tokenizer_is_special(t, ids[i])) continue;
        assert_true(at + n_piece <= cap);
        memcpy(out + at, piece, n_piece);
        at += n_piece;
    }
    return at;
}

/* The sequence in the drafter's ids is the same text. */
static const int32_t *check_own(const spec_session *s, int32_t seq, int32_t *n_own)
{
    enum { CAP = 4096 };
    static char want[CAP], got[CAP];
    const model_draft *m = draft_of(s);
    const speci_translation *x = &m->seqs[seq].own;
    const engine_seq *q = &s->seqs[seq];
    const int32_t *own = speci_buf_ids(&x->ids);
    *n_own = (int32_t)speci_buf_n_ids(&x->ids);
    assert_int_equal(x->n_from, q->n_ids);
    const size_t n_want = bytes_of(s->target->tokenizer, q->ids, q->n_ids, want, CAP);
    size_t n_got = bytes_of(m->model->tokenizer, own, *n_own, got, CAP - 4);
    memcpy(got + n_got, x->held, (size_t)x->n_held);
    n_got += (size_t)x->n_held;
    assert_int_equal(n_got, n_want);
    assert_memory_equal(got, want, n_want);
    return own;
}

/* What the drafter says next of ids [n], over the tokens that the target has: the likeliest, n_draft in a row, as ids of the target. */
static void likeliest_shared(const model_draft *m, const int32_t *ids, int32_t n, int32_t n_draft, int32_t *out)
{
    const speci_token_map *map = m->vocab.map;
    spec_session *s = support_session((spec_model *)(uintptr_t)m->model, 1, 1);
    int32_t seq, pending = ids[n - 1];
    float row[V];
    OK(add_endless(s, &seq, ids, (size_t)n, NULL));
    for (int32_t k = 0; k < n_draft; k++) {
        const spec_tree t = { .n = 1, .cap = 1, .token = &pending, .parent = (int32_t[]){ -1 } }, *trees = &t;
        const int32_t root = 0;
        OK(spec_score(s, &seq, 1, &trees));
        OK(spec_node_logits(s, row, seq, 0));
        out[k] = -1;
        for (int32_t t_id = 0; t_id < V; t_id++)
            if (map->twin[t_id] >= 0 && (out[k] < 0 || row[map->twin[t_id]] > row[map->twin[out[k]]])) out[k] = t_id;
        pending = map->twin[out[k]];
        OK(spec_commit(s, seq, &root, 1, pending));
    }
    spec_session_close(s);
}

/* Its own drafts, whatever was accepted, rejected or committed by others. */
static void check_drafts(spec_session *s, const int32_t *seqs, int32_t n, int32_t n_draft, int32_t *n_held)
{
    const spec_tree *trees[4];
    int32_t want[8], n_own;
    OK(spec_draft(s, trees, seqs, n));
    for (int32_t i = 0; i < n; i++) {
        const model_draft *m = draft_of(s);
        const int32_t *own = check_own(s, seqs[i], &n_own);
        if (m->seqs[seqs[i]].own.n_held > 0) { /* behind half a character it says nothing */
            ++*n_held;
            assert_int_equal(trees[i]->n, 1);
            continue;
        }
        likeliest_shared(m, own, n_own, n_draft, want);
        assert_int_equal(trees[i]->n, n_draft + 1);
        assert_memory_equal(trees[i]->token + 1, want, (size_t)n_draft * sizeof *want);
    }
}

static spec_session *open_pair(int32_t base, const pair_case *c, spec_draft_vocab how, const char *tree, int32_t n_ctx, spec_drafter **d)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    spec_model *target = target_of(backend, bases[base], c->target), *small = drafter_of(backend, bases[base], c->drafter, c->target);
    dp.tree = tree, dp.vocab = how;
    sp.n_seq = 3, sp.n_ctx = n_ctx;
    OK(spec_drafter_from_model(d, small, &dp));
    OK(spec_session_open(&s, target, *d, &sp));
    spec_model_close(small); /* held by what was opened from them */
    spec_model_close(target);
    return s;
}

static void commit_token(spec_session *s, int32_t seq, int32_t token)
{
    const int32_t *ids;
    size_t n;
    OK(spec_sequence_ids(s, &ids, &n, seq));
    support_plain_step(s, seq, ids[n - 1], token, NULL);
}

static void drafts_are_the_drafters_own(void **state)
{
    (void)state;
    int32_t n_accepted = 0;
    for (int32_t i = 0; i < N_BASE * COUNT(pairs); i++) {
        const pair_case *c = &pairs[i / N_BASE];
        if (c->drafter == APART) continue;
        spec_drafter *d;
        spec_session *s = open_pair(i % N_BASE, c, SPEC_DRAFT_VOCAB_INTERSECTION, "chain:4", 200, &d);
        int32_t ids[N_PROMPT * WIDTH], seqs[3], n_held = 0;
        uint64_t random = 8;
        (void)random_prompts(ids, 7);
        for (int32_t k = 0; k < 3; k++) OK(add_endless(s, &seqs[k], ids + k * WIDTH, (size_t)(WIDTH - k), NULL));
        for (int32_t step = 0; step < 12; step++) {
            spec_step_result r[3];
            check_drafts(s, seqs, 3, 4, &n_held);
            OK(step_into(s, r, seqs, 1 + step % 3));
            n_accepted += r[0].n_accepted;
            if (step % 4 != 3) continue;
            for (int32_t k = 0; k < 7; k++) /* text that the drafter has not drafted: whole characters and parts, special tokens */
                commit_token(s, seqs[1], k == 5 ? END : (int32_t)(support_random(&random) % END));
            const int32_t prompt[] = { 3, 1, END, 4, 1 };
            OK(spec_sequence_append(s, seqs[2], prompt, COUNT(prompt), NULL));
        }
        for (int32_t token = 0; token < END && c->target == BYTES; token++) { /* every beginning of a character */
            commit_token(s, seqs[0], token);
            check_drafts(s, seqs, 1, 4, &n_held);
        }
        assert_true((n_held > 0) == (c->target == BYTES));
        spec_session_close(s);
        spec_drafter_close(d);
    }
    assert_true(n_accepted > 30);
}

/* The distribution that drafts are drawn from is the drafter's over the tokens of both, normalised, by the sampling asked for. */
static void distributions_are_restricted(void **state)
{
    (void)state;
    const pair_case c = { PAIRS, OTHER };
    const spec_sampling sampling = { .temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .seed = 3 };
    spec_drafter *d;
    spec_session *s = open_pair(1, &c, SPEC_DRAFT_VOCAB_INTERSECTION, "product:4,2", 200, &d);
    int32_t ids[N_PROMPT * WIDTH], seq, n_own, n_seen = 0;
    (void)random_prompts(ids, 9);
    OK(add_endless(s, &seq, ids, WIDTH, &sampling));
    for (int32_t step = 0; step < 10; step++) {
        const spec_tree *t;
        const model_draft *m = draft_of(s);
        OK(spec_draft(s, &t, &seq, 1));
        const int32_t *own = check_own(s, seq, &n_own);
        spec_session *plain = support_session((spec_model *)(uintptr_t)m->model, 1, 1);
        float row[V], shared[V], probs[V];
        int32_t scratch[V], other, pending = own[n_own - 1];
        OK(add_endless(plain, &other, own, (size_t)n_own, NULL));
        const spec_tree root = { .n = 1, .cap = 1, .token = &pending, .parent = (int32_t[]){ -1 } }, *trees = &root;
        OK(spec_score(plain, &other, 1, &trees));
        OK(spec_node_logits(plain, row, other, 0));
        for (int32_t id = 0; id < V; id++) shared[id] = m->vocab.map->twin[id] >= 0 ? row[m->vocab.map->twin[id]] : -INFINITY;
        OK(spec_probs(probs, shared, V, &sampling, scratch));
        for (int32_t i = 1; i < t->n; i++) {
            if (t->parent[i] != 0) continue;
            n_seen++;
            assert_true(fabs((double)t->prob[i] - (double)probs[t->token[i]]) < 1e-5);
        }
        spec_session_close(plain);
        spec_step_result r;
        OK(step_into(s, &r, &seq, 1));
    }
    assert_true(n_seen > 20);
    spec_session_close(s);
    spec_drafter_close(d);
}

/* ------------------------------------------------------------------------------- copies --- */

enum { GO_ON = 12 };

static void steps(spec_session *s, int32_t seq, spec_step_result *out, int32_t *tokens)
{
    for (int32_t i = 0, at = 0; i < GO_ON; i++) {
        OK(step_into(s, &out[i], &seq, 1));
        for (int32_t k = 0; k < out[i].n_tokens; k++, at++) tokens[at] = out[i].tokens[k];
    }
}

/* A copy and what was saved go on as the original: drafts, acceptance, tokens. */
static void copies_go_on(void **state)
{
    (void)state;
    const spec_sampling sampling = { .temperature = 0.8f, .seed = 12 };
    for (int32_t i = 0; i < N_BASE * 2 * 2; i++) {
        const pair_case c = i / N_BASE % 2 ? (pair_case){ BYTES, SINGLE } : (pair_case){ PAIRS, OTHER };
        const spec_draft_vocab how = i / N_BASE / 2 ? SPEC_DRAFT_VOCAB_TEXT : SPEC_DRAFT_VOCAB_INTERSECTION;
        spec_drafter *d, *d2;
        spec_session *s = open_pair(i % N_BASE, &c, how, "product:2,2,1", 240, &d), *s2;
        int32_t ids[N_PROMPT * WIDTH], seq, copy, back, tokens[3][GO_ON * 8] = { { 0 } };
        spec_step_result r[3][GO_ON];
        support_stream file = { 0 };
        (void)random_prompts(ids, 10);
        OK(add_endless(s, &seq, ids, WIDTH, &sampling));
        for (int32_t k = 0; k < 5; k++) OK(step_into(s, r[0], &seq, 1));
        if (c.target == BYTES) commit_token(s, seq, 5), commit_token(s, seq, 5); /* half a character is held back */
        OK(spec_sequence_fork(s, &copy, seq));
        OK(spec_sequence_save(s, seq, support_to_stream, &file));
        s2 = open_pair(i % N_BASE, &c, how, "product:2,2,1", 240, &d2);
        OK(spec_sequence_restore(s2, &back, support_from_stream, &file));
        steps(s, seq, r[0], tokens[0]);
        steps(s, copy, r[1], tokens[1]);
        steps(s2, back, r[2], tokens[2]);
        for (int32_t k = 1; k < 3; k++) {
            assert_memory_equal(tokens[0], tokens[k], sizeof tokens[0]);
            for (int32_t j = 0; j < GO_ON; j++) {
                assert_int_equal(r[0][j].n_drafted, r[k][j].n_drafted);
                assert_int_equal(r[0][j].n_accepted, r[k][j].n_accepted);
            }
        }
        free(file.data);
        spec_session_close(s), spec_session_close(s2);
        spec_drafter_close(d), spec_drafter_close(d2);
    }
}

/* What its section of a saved sequence begins with: head, then what is held back, then ids. */
typedef struct section {
    int32_t outgrown, n_past, n_recent, n_own, n_held;
    uint8_t held[4];
    int32_t ids[1];
} section;

static spec_status put_section(void *arg, const void *data, size_t n) { return support_to_stream(arg, data, n) ? SPEC_E_IO : SPEC_OK; }
static spec_status get_section(void *arg, void *data, size_t n) { return support_from_stream(arg, data, n) ? SPEC_E_IO : SPEC_OK; }

static spec_status restore_section(spec_session *s, int32_t seq, int32_t to, support_stream *file)
{
    speci_draft *d = &s->drafters.draft[0];
    speci_draft_seq q = speci_sequence_asked(s, seq);
    q.seq = to;
    file->at = 0;
    const spec_status status = d->kind->restore(d, &q, file->n, get_section, file);
    d->kind->end(d, to);
    return status;
}

/* Ids that a file cannot have are refused; a file of a session that had the same vocabulary, or of one that drafted by text, is read,
 * since its ids can be made anew, or are the same. */
static void saved_ids_are_checked(void **state)
{
    (void)state;
    const pair_case c = { PAIRS, OTHER };
    spec_drafter *d;
    spec_session *s = open_pair(1, &c, SPEC_DRAFT_VOCAB_INTERSECTION, "chain:3", 100, &d);
    speci_draft *draft = &s->drafters.draft[0];
    int32_t ids[N_PROMPT * WIDTH], seq, n_own;
    uint64_t bytes;
    support_stream file = { 0 };
    (void)random_prompts(ids, 11);
    OK(add_endless(s, &seq, ids, WIDTH, NULL));
    const speci_draft_seq q = speci_sequence_asked(s, seq);
    OK(draft->kind->save(draft, &q, &bytes, NULL, NULL));
    OK(draft->kind->save(draft, &q, &bytes, put_section, &file));
    assert_int_equal(bytes, file.n);
    OK(restore_section(s, seq, 2, &file));
    const int32_t *own = check_own(s, seq, &n_own);
    section *at = (section *)(void *)file.data;
    assert_int_equal(at->n_own, n_own + 1);
    assert_memory_equal(at->ids, own, (size_t)n_own * sizeof *own);
    const struct {
        int32_t *field, value;
        const char *said;
    } wrong[] = { { &at->ids[2], V, "token 2 of its drafter is 96 of 96" }, { &at->ids[0], -1, "token 0 of its drafter is -1" },
                  { &at->n_held, 4, "holds back 4 bytes" },                 { &at->n_held, -1, "holds back -1 bytes" },
                  { &at->n_own, 1 << 28, "ids of a drafter in" },           { &at->n_own, n_own, "is at position" },
                  { &at->n_past, n_own, "is at position" } };
    for (int32_t i = 0; i < COUNT(wrong); i++) {
        const int32_t kept = *wrong[i].field;
        *wrong[i].field = wrong[i].value;
        FAILS(restore_section(s, seq, 2, &file), SPEC_E_FORMAT, wrong[i].said);
        *wrong[i].field = kept;
    }
    OK(restore_section(s, seq, 2, &file));
    at->n_own = 0; /* of a session with the same vocabulary: the rest is skipped */
    OK(restore_section(s, seq, 2, &file));
    free(file.data);
    spec_session_close(s);
    spec_drafter_close(d);
}

/* ------------------------------------------------------------------------------- limits --- */

/* The drafter's context is counted in its own tokens: at its end drafts end, and the text goes on. */
static void contexts_end(void **state)
{
    (void)state;
    enum { CTX = 250 };
    const pair_case c = { PAIRS, OTHER };
    for (int32_t how = 1; how < 3; how++) {
        spec_drafter *d;
        spec_session *s = open_pair(0, &c, hows[how], "chain:4", CTX, &d);
        int32_t ids[N_PROMPT * WIDTH], seq, n_drafted = 0, n_late = 0;
        spec_step_result r = { 0 };
        (void)random_prompts(ids, 13);
        OK(add_endless(s, &seq, ids, WIDTH, NULL));
        while (r.stop == SPEC_STOP_NONE) {
            OK(step_into(s, &r, &seq, 1));
            n_drafted += r.n_drafted;
            const model_draft *m = draft_of(s);
            if (m->n_ctx > 0 && m->seqs[seq].n_ids > m->n_ctx) n_late++, assert_true(m->seqs[seq].outgrown);
        }
        assert_int_equal(r.stop, SPEC_STOP_CONTEXT);
        assert_true(n_drafted > 50);
        print_message("  %s: %d steps behind the drafter's %d positions\n", how_names[how], n_late, draft_of(s)->n_ctx);
        spec_session_close(s);
        spec_drafter_close(d);
    }
}

static char logged[2048];

static void keep_log(void *user, spec_log_level level, const char *text)
{
    (void)user;
    if (level == SPEC_LOG_INFO) snprintf(logged, sizeof logged, "%s", text);
}

/* By itself: the intersection where it has most of the drafter's probability, else text; the log says which and why. */
static void auto_says_which(void **state)
{
    (void)state;
    static const struct {
        pair_case c;
        spec_draft_vocab how;
    } cases[] = { { { LETTERS, PERMUTED }, SPEC_DRAFT_VOCAB_INTERSECTION }, { { PAIRS, APART }, SPEC_DRAFT_VOCAB_TEXT },
                  { { BYTES, SINGLE }, SPEC_DRAFT_VOCAB_INTERSECTION } };
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    bp.log = keep_log;
    spec_backend *be = support_backend_again(&bp), *kept = backend;
    assert_non_null(be);
    backend = be;
    for (int32_t i = 0; i < COUNT(cases); i++) {
        spec_drafter *d;
        logged[0] = 0;
        spec_session *s = open_pair(i, &cases[i].c, SPEC_DRAFT_VOCAB_AUTO, "chain:4", 100, &d);
        print_message("  %s\n", logged);
        assert_int_equal(draft_of(s)->vocab.how, cases[i].how);
        assert_non_null(strstr(logged, cases[i].how == SPEC_DRAFT_VOCAB_TEXT ? "by text" : "by their intersection"));
        assert_non_null(strstr(logged, "% of its probability"));
        spec_session_close(s);
        spec_drafter_close(d);
    }
    backend = kept;
    spec_backend_close(be);
}

static spec_status draft_nothing(void *user, spec_draft_request *requests, int32_t n)
{
    (void)user, (void)requests, (void)n;
    return SPEC_OK;
}

static void what_cannot_work_is_refused(void **state)
{
    (void)state;
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_model *target = target_of(backend, bases[0], LETTERS), *plain = support_model(backend, bases[0], SPEC_DTYPE_F32);
    spec_drafter *d = NULL;
    spec_session *s = NULL;
    p.vocab = (spec_draft_vocab)3;
    FAILS(spec_drafter_from_model(&d, plain, &p), SPEC_E_INVALID, "no way 3");
    p.vocab = SPEC_DRAFT_VOCAB_TEXT;
    OK(spec_drafter_from_model(&d, plain, &p)); /* it has ids only */
    FAILS(spec_session_open(&s, target, d, NULL), SPEC_E_INVALID, "golden/llama2 has none");
    spec_drafter_close(d);
    spec_model *more = support_model(backend, GOLDEN "gpt_neox", SPEC_DTYPE_F32); /* 104 ids, and no tokenizer */
    OK(spec_drafter_from_model(&d, more, NULL));
    FAILS(spec_session_open(&s, target, d, NULL), SPEC_E_INVALID, "the drafter has 104 ids and the target 96");
    spec_drafter_close(d);
    p.vocab = SPEC_DRAFT_VOCAB_INTERSECTION; /* an application's drafter proposes ids of the target */
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = draft_nothing };
    FAILS(spec_drafter_from_ops(&d, &ops, &p), SPEC_E_INVALID, "drafters that are models");
    assert_null(s);
    spec_model_close(more);
    spec_model_close(plain);
    spec_model_close(target);
}

int main(void)
{
#ifdef SPEC_NO_TOKENIZER
    printf("SKIPPED: built without tokenizers\n");
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_targets),
        cmocka_unit_test(permuted_is_the_same),
        cmocka_unit_test(permuted_on_the_host),
        cmocka_unit_test(drafts_are_the_drafters_own),
        cmocka_unit_test(distributions_are_restricted),
        cmocka_unit_test(copies_go_on),
        cmocka_unit_test(saved_ids_are_checked),
        cmocka_unit_test(contexts_end),
        cmocka_unit_test(auto_says_which),
        cmocka_unit_test(what_cannot_work_is_refused),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests_name("vocab", tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
