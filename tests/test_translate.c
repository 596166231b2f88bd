/* test_translate.c - tokens of one tokenizer in those of another, for every pair of the tokenizers in golden/tokenizers, against
 * rules that are obviously right: maps by comparing all tokens with all; texts by encoding them; tokens one by one by the bytes that
 * they come to. And text behind tokens, against the whole text's ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/text/text_translate.h"
#include "tests/support_memory.h"
#include "tests/support_model.h"

#define GOLDEN SPEC_TEST_DIR "/golden/tokenizers/"
#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))

static const char *const names[] = { "gpt2-style", "gpt_neox-style", "llama3-style", "qwen2-style", "spm-metaspace", "spm-prepend" };
enum { N_TOKENIZER = COUNT(names) };
static spec_tokenizer *tokenizers[N_TOKENIZER];

/* None of them begins or ends with a space, and all are in NFC: no tokenizer changes their bytes. */
static const char *const texts[] = {
    "Once upon a time, there was a little girl.",
    "for i in range(10):\n        print(i * 2)  # twice\n\n\nreturn 12345",
    "na\xC3\xAFve caf\xC3\xA9 \xE2\x82\xAC 12.50 \xE2\x80\x94 \xE2\x80\x9Cquoted\xE2\x80\x9D",
    "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xAE\xE6\x96\x87 \xF0\x9F\x98\x80\xF0\x9F\x91\x8D done",
    "It's the dog's; they'll say \"we've  two   spaces\".",
    "x",
};

/* --- what the checks are made of --- */

static int32_t n_ids(const spec_tokenizer *t)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    OK(spec_tokenizer_get_info(t, &info));
    return info.n_vocab;
}

static const char *text_of(const spec_tokenizer *t, int32_t id, size_t *n)
{
    const char *piece = spec_tokenizer_piece(t, n, id);
    if (!piece || spec_tokenizer_is_special(t, id)) *n = 0;
    return piece;
}

static bool same_bytes(const spec_tokenizer *x, int32_t a, const spec_tokenizer *y, int32_t b)
{
    size_t na, nb;
    const char *pa = text_of(x, a, &na), *pb = text_of(y, b, &nb);
    return na > 0 && na == nb && memcmp(pa, pb, na) == 0;
}

/* SentencePiece shows its unknown token by text of its own, which is no token's. */
static bool is_unknown(const spec_tokenizer *t, int32_t id)
{
    size_t n;
    const char *piece = spec_tokenizer_piece(t, &n, id);
    return piece && n == 5 && memcmp(piece, "<unk>", 5) == 0;
}

static int32_t encode(const spec_tokenizer *t, int32_t *ids, int32_t cap, const char *text, uint32_t flags)
{
    size_t n;
    OK(spec_tokenizer_encode(t, ids, (size_t)cap, &n, text, strlen(text), flags));
    return (int32_t)n;
}

/* The bytes of ids [n]: of the whole tokens. */
static size_t bytes_of(const spec_tokenizer *t, const int32_t *ids, int32_t n, char *out, size_t cap)
{
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = text_of(t, ids[i], &n_piece);
        assert_true(at + n_piece <= cap);
        if (n_piece > 0) memcpy(out + at, piece, n_piece);
        at += n_piece;
    }
    return at;
}

static speci_token_map *open_map(int32_t from, int32_t to)
{
    speci_token_map *m = NULL;
    OK(speci_token_map_open(&m, tokenizers[from], n_ids(tokenizers[from]), tokenizers[to],
                            n_ids(tokenizers[to]), &speci_malloc));
    return m;
}

enum { MOST = 1024 };

/* --- maps --- */

/* How many tokens of t stand for the same bytes as this one. */
static int32_t n_alike(const spec_tokenizer *t, const spec_tokenizer *other, int32_t id)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_ids(t); i++) n += same_bytes(t, i, other, id);
    return n;
}

static void check_twins(const speci_token_map *m, const char *what)
{
    int32_t n_twin = 0, *taken = calloc((size_t)m->n_to, sizeof *taken);
    for (int32_t t = 0; t < m->n_from; t++) {
        const int32_t twin = m->twin[t], alike_to = n_alike(m->to, m->from, t), alike_from = n_alike(m->from, m->from, t);
        if (twin >= 0 && !same_bytes(m->from, t, m->to, twin)) fail_msg("%s: token %d has the twin %d, of other bytes", what, t, twin);
        if (twin >= 0 && taken[twin]++) fail_msg("%s: token %d is the twin of two", what, twin);
        if (twin < 0 && alike_to > 0 && alike_from == 1) fail_msg("%s: token %d has no twin, and %d alike", what, t, alike_to);
        n_twin += twin >= 0;
    }
    assert_int_equal(n_twin, m->n_twin);
    free(taken);
}

/* Every token is written by ids that come to the same bytes; a token without text by a special one, or nothing. */
static void check_writing(const speci_token_map *m, const char *what)
{
    for (int32_t t = 0; t < m->n_from; t++) {
        char bytes[256];
        size_t n_text;
        const char *text = text_of(m->from, t, &n_text);
        const int32_t *ids = m->ids + m->first[t], n = m->first[t + 1] - m->first[t];
        const size_t n_byte = bytes_of(m->to, ids, n, bytes, sizeof bytes);
        if (n_text == 0) {
            assert_true(n <= 1 && (n == 0 || spec_tokenizer_is_special(m->to, ids[0])));
            continue;
        }
        if (n == 0) { /* half a character */
            bool ascii = true;
            for (size_t i = 0; i < n_text; i++) ascii = ascii && (uint8_t)text[i] < 0x80;
            if (ascii && !is_unknown(m->from, t)) fail_msg("%s: token %d is not written at all", what, t);
            continue;
        }
        if (n_byte != n_text || memcmp(bytes, text, n_text) != 0) fail_msg("%s: token %d is written by other bytes", what, t);
        if (m->twin[t] >= 0) assert_true(n == 1 && ids[0] == m->twin[t]);
    }
}

static void maps(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER * N_TOKENIZER; i++) {
        char what[96];
        speci_token_map *m = open_map(i / N_TOKENIZER, i % N_TOKENIZER);
        snprintf(what, sizeof what, "%s in %s", names[i / N_TOKENIZER], names[i % N_TOKENIZER]);
        check_twins(m, what);
        check_writing(m, what);
        if (i / N_TOKENIZER == i % N_TOKENIZER)
            for (int32_t t = 0; t < m->n_from; t++)
                assert_true(m->twin[t] == t || m->twin[t] < 0);
        speci_token_map_close(m);
    }
}

/* Of two tokens with the same bytes the one that the tokenizer writes itself: in SentencePiece the piece, and not the byte. */
static void bytes_beside_pieces(void **state)
{
    (void)state;
    const int32_t spm = 5, gpt2 = 0;
    speci_token_map *m = open_map(gpt2, spm);
    int32_t letter, n_double = 0;
    for (int32_t t = 0; t < m->n_from; t++) {
        if (m->twin[t] < 0 || n_alike(m->to, m->from, t) < 2) continue;
        size_t n;
        char text[32] = "";
        const char *piece = text_of(m->from, t, &n);
        memcpy(text, piece, n);
        n_double++;
        assert_int_equal(encode(m->to, &letter, 1, text, SPEC_TOKEN_CONTINUE), 1);
        assert_int_equal(m->twin[t], letter);
    }
    assert_true(n_double > 20);
    speci_token_map_close(m);
}

/* --- sequences --- */

static const int32_t *translated(const speci_translation *x, int32_t *n)
{
    *n = (int32_t)speci_buf_n_ids(&x->ids);
    return speci_buf_ids(&x->ids);
}

/* A text as a prompt becomes what the other tokenizer makes of the text, in front of it what that puts there. */
static void prompts(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER * N_TOKENIZER; i++) {
        speci_token_map *m = open_map(i / N_TOKENIZER, i % N_TOKENIZER);
        for (int32_t k = 0; k < COUNT(texts); k++) {
            int32_t from[MOST], want[MOST], n_own;
            const int32_t n_from = encode(m->from, from, MOST, texts[k], SPEC_TOKEN_ADD_SPECIAL);
            const int32_t n_want = encode(m->to, want, MOST, texts[k], SPEC_TOKEN_ADD_SPECIAL);
            speci_translation x = { .ids.a = &speci_malloc };
            OK(speci_translation_begin(&x, m));
            OK(speci_translate(&x, m, from, n_from, true));
            const int32_t *own = translated(&x, &n_own);
            if (n_own != n_want || memcmp(own, want, (size_t)n_want * sizeof *want) != 0)
                fail_msg("%s in %s: the prompt '%s' becomes other ids", names[i / N_TOKENIZER], names[i % N_TOKENIZER], texts[k]);
            assert_int_equal(x.n_from, n_from);
            assert_int_equal(x.n_held, 0);
            speci_buf_free(&x.ids);
        }
        speci_token_map_close(m);
    }
}

/* A text as two prompts is the same text: nothing comes between them. */
static void prompts_in_parts(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER * N_TOKENIZER; i++) {
        speci_token_map *m = open_map(i / N_TOKENIZER, i % N_TOKENIZER);
        for (int32_t k = 0; k < COUNT(texts); k++) {
            int32_t from[MOST], n_own;
            char text[2][4 * MOST];
            size_t n[2];
            const int32_t n_from = encode(m->from, from, MOST, texts[k], 0);
            for (int32_t part = 0; part < 2; part++) {
                const int32_t n_first = part * n_from / 2;
                speci_translation x = { .ids.a = &speci_malloc };
                if (n_first > 0) OK(speci_translate(&x, m, from, n_first, true));
                OK(speci_translate(&x, m, from + n_first, n_from - n_first, true));
                const int32_t *own = translated(&x, &n_own);
                n[part] = bytes_of(m->to, own, n_own, text[part], sizeof text[part]);
                speci_buf_free(&x.ids);
            }
            const size_t space[2] = { n[0] > 0 && text[0][0] == ' ', n[1] > 0 && text[1][0] == ' ' }; /* SentencePiece's, or not */
            if (n[0] - space[0] != n[1] - space[1] || memcmp(text[0] + space[0], text[1] + space[1], n[0] - space[0]) != 0)
                fail_msg("%s in %s: '%s' is another text in two parts", names[i / N_TOKENIZER], names[i % N_TOKENIZER], texts[k]);
        }
        speci_token_map_close(m);
    }
}

/* Tokens one by one: at any point the bytes that came in are those that went out and those that are held, which are fewer than a
 * character; ids only grow; and how the tokens were split over calls makes no difference. */
static void one_by_one(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER * N_TOKENIZER; i++) {
        speci_token_map *m = open_map(i / N_TOKENIZER, i % N_TOKENIZER);
        for (int32_t k = 0; k < COUNT(texts); k++) {
            int32_t from[MOST], first[MOST], n_first = 0, n_own;
            char in[4 * MOST], out[4 * MOST];
            const int32_t n_from = encode(m->from, from, MOST, texts[k], 0);
            speci_translation x = { .ids.a = &speci_malloc }, y = { .ids.a = &speci_malloc };
            for (int32_t t = 0; t < n_from; t++) {
                OK(speci_translate(&x, m, from + t, 1, false));
                const int32_t *own = translated(&x, &n_own);
                assert_memory_equal(own ? own : first, first, (size_t)n_first * sizeof *first);
                memcpy(first, own, (size_t)n_own * sizeof *own);
                n_first = n_own;
                size_t n_in = bytes_of(m->from, from, t + 1, in, sizeof in), n_out = bytes_of(m->to, own, n_own, out, sizeof out);
                const size_t skipped = in[0] == ' ' && (n_out == 0 || out[0] != ' '); /* that SentencePiece puts in front */
                if (n_out == 0) continue;
                memcpy(out + n_out, x.held, (size_t)x.n_held);
                n_out += (size_t)x.n_held;
                if (n_out != n_in - skipped || memcmp(in + skipped, out, n_out) != 0)
                    fail_msg("%s in %s: '%s' is another text after token %d", names[i / N_TOKENIZER], names[i % N_TOKENIZER], texts[k], t);
            }
            assert_int_equal(x.n_held, 0);
            OK(speci_translate(&y, m, from, n_from, false));
            const int32_t *own = translated(&y, &n_own);
            assert_int_equal(n_own, n_first);
            assert_memory_equal(own, first, (size_t)n_own * sizeof *own);
            speci_buf_free(&x.ids);
            speci_buf_free(&y.ids);
        }
        speci_token_map_close(m);
    }
}

static int32_t find(const spec_tokenizer *t, const char *bytes, size_t n)
{
    for (int32_t id = 0; id < n_ids(t); id++) {
        size_t n_piece;
        const char *piece = text_of(t, id, &n_piece);
        if (n_piece == n && memcmp(piece, bytes, n) == 0) return id;
    }
    fail_msg("there is no such token");
    return -1;
}

static int32_t special(const spec_tokenizer *t, const char *text)
{
    int32_t id;
    assert_int_equal(encode(t, &id, 1, text, SPEC_TOKEN_PARSE_SPECIAL), 1);
    assert_true(spec_tokenizer_is_special(t, id));
    return id;
}

/* Characters in parts: held back until they are whole, and given up where another or a special token begins. `from` has bytes as
 * tokens; the twin of the first byte is taken away, as a vocabulary without bytes would have it. */
static void characters_in_parts(void **state)
{
    (void)state;
    speci_token_map *m = open_map(0, 1);
    const int32_t e2 = find(m->from, "\xE2", 1), b82 = find(m->from, "\x82", 1), ac = find(m->from, "\xAC", 1), x = find(m->from, "x", 1);
    const int32_t end = special(m->from, "<|endoftext|>"), end_to = special(m->to, "<|endoftext|>");
    int32_t n_own;
    speci_translation w = { .ids.a = &speci_malloc };
    OK(speci_translate(&w, m, &e2, 1, false)); /* as it is, a byte that both have is a token that both have */
    assert_int_equal(w.n_held, 0);
    assert_int_equal(*translated(&w, &n_own), m->byte[0xE2]);
    assert_int_equal(n_own, 1);
    for (int32_t t = e2 + 1; t <= m->n_from; t++) m->first[t]--; /* written by nothing from here on */
    memmove(m->ids + m->first[e2], m->ids + m->first[e2] + 1, (size_t)(m->first[m->n_from] - m->first[e2]) * sizeof *m->ids);
    w.ids.n = 0, w.n_from = 1;
    const int32_t euro[] = { e2, b82, ac };
    for (int32_t i = 0; i < 3; i++) {
        OK(speci_translate(&w, m, &euro[i], 1, false));
        (void)translated(&w, &n_own);
        assert_int_equal(w.n_held, i < 2 ? i + 1 : 0);
        assert_true(i == 2 ? n_own > 0 : n_own == 0);
    }
    int32_t want[8];
    const int32_t n_want = encode(m->to, want, 8, "\xE2\x82\xAC", SPEC_TOKEN_CONTINUE);
    assert_int_equal(n_own, n_want);
    assert_memory_equal(translated(&w, &n_own), want, (size_t)n_want * sizeof *want);

    w.ids.n = 0;
    const int32_t broken[] = { e2, x }; /* the half character goes as the byte that it is */
    OK(speci_translate(&w, m, broken, 2, false));
    const int32_t *own = translated(&w, &n_own), bytes[] = { m->byte[0xE2], find(m->to, "x", 1) };
    assert_int_equal(n_own, 2);
    assert_memory_equal(own, bytes, sizeof bytes);

    w.ids.n = 0;
    const int32_t cut[] = { e2, b82, end, x };
    OK(speci_translate(&w, m, cut, 4, false));
    own = translated(&w, &n_own);
    assert_int_equal(n_own, 2);
    assert_int_equal(own[0], end_to);
    assert_int_equal(own[1], bytes[1]);
    speci_buf_free(&w.ids);
    speci_token_map_close(m);
}

/* By their strings, else by their office, else by nothing; and no token with text ever is a special one, or the other way round. */
static void special_tokens(void **state)
{
    (void)state;
    const int32_t llama3 = 2, qwen2 = 3, spm = 4;
    speci_token_map *m = open_map(llama3, qwen2), *back = open_map(qwen2, llama3), *to_spm = open_map(qwen2, spm);
    const int32_t begin = special(m->from, "<|begin_of_text|>"), turn = special(m->from, "<|eot_id|>");
    assert_int_equal(m->first[begin + 1] - m->first[begin], 0);
    assert_int_equal(m->first[turn + 1] - m->first[turn], 0);
    const int32_t im = special(back->from, "<|im_start|>");
    assert_int_equal(back->first[im + 1] - back->first[im], 0);
    const speci_token_map *const all[] = { m, back, to_spm };
    for (int32_t k = 0; k < COUNT(all); k++)
        for (int32_t t = 0; t < all[k]->n_from; t++)
            for (int32_t i = all[k]->first[t]; i < all[k]->first[t + 1]; i++)
                assert_int_equal(!spec_tokenizer_is_special(all[k]->from, t), !spec_tokenizer_is_special(all[k]->to, all[k]->ids[i]));
    /* Text on both sides of a special token is encoded apart. */
    int32_t ids[MOST], want[MOST], n_own, n = encode(back->from, ids, MOST, "Hello", 0);
    ids[n++] = im;
    n += encode(back->from, ids + n, MOST - n, "world", 0);
    int32_t n_want = encode(back->to, want, MOST, "Hello", SPEC_TOKEN_ADD_SPECIAL);
    n_want += encode(back->to, want + n_want, MOST - n_want, "world", SPEC_TOKEN_CONTINUE);
    speci_translation x = { .ids.a = &speci_malloc };
    OK(speci_translation_begin(&x, back));
    OK(speci_translate(&x, back, ids, n, true));
    const int32_t *own = translated(&x, &n_own);
    assert_int_equal(n_own, n_want);
    assert_memory_equal(own, want, (size_t)n_want * sizeof *want);
    speci_buf_free(&x.ids);
    speci_token_map_close(m);
    speci_token_map_close(back);
    speci_token_map_close(to_spm);
}

/* --- text that goes on --- */

/* A text in two parts, the second one as the continuation: no byte comes between, and none is lost. */
static void going_on(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER; i++)
        for (int32_t k = 0; k < COUNT(texts); k++)
            for (size_t cut = 1; cut < strlen(texts[k]); cut++) {
                int32_t ids[MOST];
                char out[4 * MOST];
                if (((uint8_t)texts[k][cut] & 0xC0) == 0x80) continue; /* in a character */
                const int32_t n = encode(tokenizers[i], ids, MOST, texts[k] + cut, SPEC_TOKEN_CONTINUE);
                const size_t n_out = bytes_of(tokenizers[i], ids, n, out, sizeof out);
                if (n_out != strlen(texts[k] + cut) || memcmp(out, texts[k] + cut, n_out) != 0)
                    fail_msg("%s: '%s' goes on by other bytes", names[i], texts[k] + cut);
            }
}

/* Behind the first tokens of a text, while all of them are looked at, its rest is the rest of its ids. Further on what comes out, if
 * anything, comes to the same text. */
static void behind(void **state)
{
    (void)state;
    int32_t n_exact = 0, n_some = 0, n_none = 0;
    for (int32_t i = 0; i < N_TOKENIZER; i++)
        for (int32_t k = 0; k < COUNT(texts); k++) {
            int32_t ids[MOST];
            char all[4 * MOST], out[4 * MOST];
            const spec_tokenizer *t = tokenizers[i];
            const int32_t n = encode(t, ids, MOST, texts[k], 0);
            const size_t n_all = bytes_of(t, ids, n, all, sizeof all);
            for (int32_t at = 1; at < n; at++) {
                const size_t n_front = bytes_of(t, ids, at, out, sizeof out);
                speci_buf rest = { .a = &speci_malloc };
                OK(speci_encode_behind(&rest, t, ids, at, all + n_front, n_all - n_front));
                const int32_t n_rest = (int32_t)(rest.n / sizeof *ids);
                const bool same = n_rest == n - at && memcmp(rest.data, ids + at, rest.n) == 0;
                if (at <= 16 && !same) fail_msg("%s: '%s' behind %d tokens is written otherwise", names[i], texts[k], at);
                const size_t n_out = bytes_of(t, (const int32_t *)(const void *)rest.data, n_rest, out, sizeof out);
                if (n_rest > 0 && (n_out != n_all - n_front || memcmp(out, all + n_front, n_out) != 0))
                    fail_msg("%s: '%s' behind %d tokens is another text", names[i], texts[k], at);
                n_exact += same, n_some += n_rest > 0 && !same, n_none += n_rest == 0;
                speci_buf_free(&rest);
            }
        }
    print_message("  behind tokens: %d as in the whole text, %d otherwise, %d not at all\n", n_exact, n_some, n_none);
    assert_true(n_exact > 20 * (n_some + n_none));
}

static int32_t the_of(const spec_tokenizer *t)
{
    int32_t ids[MOST];
    assert_int_equal(encode(t, ids, MOST, " the", 0), 1);
    return ids[0];
}

/* Tokens that the tokenizer would not have written, and text that would change the last one: nothing. A half character at the end is
 * left out. */
static void behind_others(void **state)
{
    (void)state;
    const spec_tokenizer *t = tokenizers[0];
    speci_buf out = { .a = &speci_malloc };
    int32_t ids[MOST];
    const int32_t the = encode(t, ids, MOST, " the", 0), letters[] = { find(t, " t", 2), find(t, "h", 1), find(t, "e", 1) };
    assert_int_equal(the, 1);
    OK(speci_encode_behind(&out, t, letters, 3, " dog", 4));
    assert_int_equal(out.n, 0);
    for (int32_t n_same = 1; n_same <= 4; n_same++) { /* at least half of the last tokens, which end the tail, are its own */
        int32_t tail[7] = { letters[0], letters[1], letters[2], the_of(t), the_of(t), the_of(t), the_of(t) };
        out.n = 0;
        OK(speci_encode_behind(&out, t, tail, 3 + n_same, " the", 4));
        assert_int_equal(out.n, n_same >= 3 ? sizeof *ids : 0);
    }
    out.n = 0;
    OK(speci_encode_behind(&out, t, letters, 1, "he dog", 6)); /* " t" would become " the" */
    assert_int_equal(out.n, 0);
    OK(speci_encode_behind(&out, t, ids, 1, " dog\xE2\x82", 6));
    const int32_t n_dog = encode(t, ids, MOST, " dog", SPEC_TOKEN_CONTINUE);
    assert_int_equal(out.n, (size_t)n_dog * sizeof *ids);
    assert_memory_equal(out.data, ids, out.n);
    out.n = 0;
    const int32_t end[] = { letters[0], special(t, "<|endoftext|>") }; /* a text of its own begins behind it */
    OK(speci_encode_behind(&out, t, end, 2, " dog", 4));
    assert_int_equal(out.n, (size_t)n_dog * sizeof *ids);
    out.n = 0;
    OK(speci_encode_behind(&out, t, NULL, 0, " dog", 4));
    assert_int_equal(out.n, (size_t)n_dog * sizeof *ids);
    speci_buf_free(&out);
}

/* --- memory that runs out --- */

/* The translation is as before when a call fails. */
static void no_memory(void **state)
{
    (void)state;
    support_memory s = { 0 };
    const spec_allocator a = support_allocator(&s);
    const spec_tokenizer *from = tokenizers[0], *to = tokenizers[4];
    int32_t ids[MOST], n_fail = 0, n_own;
    const int32_t n = encode(from, ids, MOST, texts[2], 0);
    speci_token_map *m = NULL;
    for (;; n_fail++) {
        s = (support_memory){ .fail_at = n_fail + 1, .onwards = true };
        if (speci_token_map_open(&m, from, n_ids(from), to, n_ids(to), &a) == SPEC_OK) break;
        assert_null(m);
    }
    assert_true(n_fail > 5);
    for (n_fail = 0;; n_fail++) {
        speci_translation x = { .ids.a = &a };
        s = (support_memory){ .fail_at = n_fail + 1, .onwards = true };
        const spec_status status = speci_translate(&x, m, ids, n, true);
        (void)translated(&x, &n_own);
        assert_true(status == SPEC_OK ? n_own > 0 && x.n_from == n : n_own == 0 && x.n_from == 0 && x.n_held == 0);
        s.fail_at = 0;
        speci_buf_free(&x.ids);
        if (status == SPEC_OK) break;
    }
    assert_true(n_fail > 1);
    speci_token_map_close(m);
}

/* --- main --- */

static int open_all(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER; i++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "%s", names[i]);
        OK(spec_tokenizer_open(&tokenizers[i], path, NULL));
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TOKENIZER; i++) spec_tokenizer_close(tokenizers[i]);
    return 0;
}

int main(void)
{
#ifdef SPEC_NO_TOKENIZER
    printf("SKIPPED: built without tokenizers\n");
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps),           cmocka_unit_test(bytes_beside_pieces), cmocka_unit_test(prompts),
        cmocka_unit_test(prompts_in_parts),
        cmocka_unit_test(one_by_one),     cmocka_unit_test(characters_in_parts), cmocka_unit_test(special_tokens),
        cmocka_unit_test(going_on),       cmocka_unit_test(behind),              cmocka_unit_test(behind_others),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("translate", tests, open_all, close_all);
}
