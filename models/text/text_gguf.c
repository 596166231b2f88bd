/* text_gguf.c - a tokenizer from the metadata of a GGUF file: `gpt2` (byte-level BPE), which becomes the tokenizer.json that its
 * authors have, and `llama` (SentencePiece).
 *
 * A gpt2 file names its normalizer and its splits by one word, tokenizer.ggml.pre. Sources: llama.cpp, src/llama-vocab.cpp, for the
 * words and what goes by the same rules; the patterns are those of the models' own tokenizer.json. Not told by the file and not kept:
 * white space that added tokens take with them (lstrip, rstrip). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "models/text/text_json.h"
#include "models/text/text_gguf.h"

/* --- pre-tokenizers --- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words by case, with or without contractions behind them. */
#define CASED(behind, digits)                                                                                                       \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" behind "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" behind "|" digits                    \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES
#define DEEPSEEK_WORDS                                                                                                              \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES
#define SENTENCES " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Punctuation, contiguous: ASCII's includes symbols. */
#define MARKS "[\\p{P}$+<=>^`|~]+"

typedef struct pre_row {
    const char *names;       /* words, with a space between */
    const char *patterns[4]; /* splits, one after the other */
    bool nfc;
    bool whole_first;        /* a split that is a token is that token (ignore_merges) */
    bool bos;                /* where the file does not say */
} pre_row;

static const pre_row pres[] = {
    { "default", { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" }, false, false, false },
    { "falcon", { MARKS, GPT2, "[0-9][0-9][0-9]" }, false, false, false },
    { "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2", { WORDS("\\p{N}{1,3}") }, false, true, true },
    { "dbrx smaug-bpe chatglm-bpe", { WORDS("\\p{N}{1,3}") }, false, false, false },
    { "glm4", { WORDS("\\p{N}{1,3}") }, false, true, false },
    { "qwen2", { WORDS("\\p{N}") }, true, false, false },
    { "deepseek-r1-qwen hunyuan stablelm2 megrez grok-2", { WORDS("\\p{N}") }, false, false, false },
    { "qwen35", { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES },
      true, false, false },
    { "gpt-2 phi-2 jais exaone4", { GPT2 }, false, false, false },
    { "mpt olmo", { GPT2 }, true, false, false },
    { "smollm starcoder refact codeshell exaone", { "\\p{N}", GPT2 }, false, false, false },
    { "command-r", { "\\p{N}", GPT2 }, true, false, false },
    { "tekken", { CASED("", "\\p{N}") }, false, true, true },
    { "gpt-4o llama4 kanana2", { CASED(CONTRACTIONS "?", "\\p{N}{1,3}") }, false, false, false },
    { "deepseek-v3", { "\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_WORDS }, false, false, false },
    { "bloom poro-chat gpt3-finnish", { SENTENCES }, false, false, false },
};

static bool has_word(const char *words, const char *word, size_t n)
{
    for (const char *s = words; *s; s += strcspn(s, " "), s += *s == ' ')
        if (strcspn(s, " ") == n && memcmp(s, word, n) == 0) return true;
    return false;
}

static spec_status find_pre(const pre_row **out, const speci_gguf *g)
{
    const char *word = NULL;
    size_t n = 0;
    SPEC_TRY(speci_gguf_text(g, "tokenizer.ggml.pre", &word, &n));
    if (!word)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tokenizer.ggml.pre is missing, and a gpt2 tokenizer cannot be read without: convert the "
                          "model anew, or give a tokenizer of its own", g->file);
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (has_word(pres[i].names, word, n)) {
            *out = &pres[i];
            return SPEC_OK;
        }
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: tokenizer.ggml.pre is \"%.*s\", which is not known: give a tokenizer of its own", g->file,
                      n > 60 ? 60 : (int)n, word);
}

/* --- and the way back: which word has the splits of a tokenizer.json --- */

typedef struct splits {
    const char *patterns[4];
    int n; /* -1: there is something that no word has */
    bool prefix_space;
} splits;

static void add_split(splits *s, const char *pattern)
{
    if (!pattern || s->n < 0 || s->n == 4) s->n = -1;
    else s->patterns[s->n++] = pattern;
}

static const char *text_at(const json_t *json, const char *key) { return json_string_value(json_object_get(json, key)); }

static void find_splits(splits *s, const json_t *json)
{
    const char *type = text_at(json, "type") ? text_at(json, "type") : "";
    const json_t *list = json_object_get(json, "pretokenizers");
    if (strcmp(type, "Sequence") == 0) {
        for (size_t i = 0; i < json_array_size(list); i++) find_splits(s, json_array_get(list, i));
    } else if (strcmp(type, "Split") == 0) {
        const char *behavior = text_at(json, "behavior");
        const bool plain = behavior && strcmp(behavior, "Isolated") == 0 && !json_is_true(json_object_get(json, "invert"));
        add_split(s, plain ? text_at(json_object_get(json, "pattern"), "Regex") : NULL);
    } else if (strcmp(type, "Punctuation") == 0) {
        const char *behavior = text_at(json, "behavior");
        add_split(s, behavior && strcmp(behavior, "Contiguous") == 0 ? MARKS : NULL);
    } else if (strcmp(type, "Digits") == 0) {
        add_split(s, json_is_true(json_object_get(json, "individual_digits")) ? "\\p{N}" : NULL);
    } else if (strcmp(type, "ByteLevel") == 0) {
        if (!json_is_false(json_object_get(json, "use_regex"))) add_split(s, GPT2);
        s->prefix_space = !json_is_false(json_object_get(json, "add_prefix_space"));
    } else {
        s->n = -1;
    }
}

static bool same_splits(const splits *s, const pre_row *row)
{
    for (int i = 0; i < 4; i++) {
        const char *a = i < s->n ? s->patterns[i] : NULL, *b = row->patterns[i];
        if (!a != !b || (a && strcmp(a, b) != 0)) return false;
    }
    return true;
}

static bool find_word(const char **out, bool *prefix_space, const json_t *root, bool whole_first)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    const char *type = text_at(normalizer, "type");
    const bool none = !normalizer || json_is_null(normalizer), nfc = type && strcmp(type, "NFC") == 0;
    splits s = { .n = 0 };
    find_splits(&s, json_object_get(root, "pre_tokenizer"));
    *prefix_space = s.prefix_space;
    for (size_t i = 0; i < sizeof pres / sizeof *pres && s.n >= 0 && (none || nfc); i++)
        if (pres[i].nfc == nfc && pres[i].whole_first == whole_first && same_splits(&s, &pres[i])) {
            *out = pres[i].names;
            return true;
        }
    return false;
}

spec_status speci_gguf_pre_of(const char **out, bool *prefix_space, const spec_tokenizer *t)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_read(&root, t->path, SPECI_TOK_FILE_MAX, &t->allocator));
    const bool found = find_word(out, prefix_space, root, t->bpe.ignore_merges);
    if (t->said.prefix_space >= 0) *prefix_space = t->said.prefix_space;
    json_decref(root);
    if (found) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: GGUF has no word (tokenizer.ggml.pre) for how this tokenizer splits text", t->path);
}

/* --- what both kinds have --- */

typedef struct token_list {
    const speci_gguf *g;
    const speci_gguf_value *tokens, *types, *scores;
    const spec_allocator *a;
} token_list;

static spec_status find_tokens(token_list *l, const speci_gguf *g)
{
    *l = (token_list){ .g = g };
    SPEC_TRY(speci_gguf_array(g, "tokenizer.ggml.tokens", SPECI_GGUF_STRING, &l->tokens));
    SPEC_TRY(speci_gguf_array(g, "tokenizer.ggml.token_type", SPECI_GGUF_I32, &l->types));
    SPEC_TRY(speci_gguf_array(g, "tokenizer.ggml.scores", SPECI_GGUF_F32, &l->scores));
    if (!l->tokens || l->tokens->n == 0 || l->tokens->n > SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: tokenizer.ggml.tokens is missing or has %llu entries, expected 1 to %d", g->file,
                          l->tokens ? (unsigned long long)l->tokens->n : 0, SPECI_TOK_ID_LIMIT);
    if ((l->types && l->types->n != l->tokens->n) || (l->scores && l->scores->n != l->tokens->n))
        return speci_fail(SPEC_E_FORMAT, "%s: %s has another number of entries than tokenizer.ggml.tokens, %llu", g->file,
                          l->types && l->types->n != l->tokens->n ? "tokenizer.ggml.token_type" : "tokenizer.ggml.scores",
                          (unsigned long long)l->tokens->n);
    return SPEC_OK;
}

static int type_of(const token_list *l, uint64_t id)
{
    const int64_t type = l->types ? speci_gguf_integer_at(l->types, id) : SPM_NORMAL;
    return type >= SPM_NORMAL && type <= SPM_BYTE ? (int)type : 0;
}

/* An id of the file: *out stays where it is absent, and is -1 where no token has it. */
static spec_status id_of(const token_list *l, const char *key, int32_t *out)
{
    int64_t id = *out;
    SPEC_TRY(speci_gguf_integer(l->g, key, &id));
    *out = id >= 0 && (uint64_t)id < l->tokens->n ? (int32_t)id : -1;
    return SPEC_OK;
}

static spec_status flag_of(const speci_gguf *g, const char *key, int *said)
{
    bool flag = false;
    SPEC_TRY(speci_gguf_flag(g, key, &flag));
    if (speci_gguf_find(g, key)) *said = flag;
    return SPEC_OK;
}

static spec_status chat_template(spec_tokenizer *t, const speci_gguf *g)
{
    const char *text = NULL;
    size_t n = 0;
    SPEC_TRY(speci_gguf_text(g, "tokenizer.chat_template", &text, &n));
    if (!text) return SPEC_OK;
    t->chat_template = speci_alloc(&t->allocator, n + 1, 1);
    if (!t->chat_template) return SPEC_E_NOMEM;
    memcpy(t->chat_template, text, n);
    return SPEC_OK;
}

/* --- gpt2: a tokenizer.json --- */

static spec_status no_memory(const token_list *l) { return speci_fail(SPEC_E_NOMEM, "%s: out of memory", l->g->file); }

typedef struct bpe_tokens {
    json_t *vocab, *added;
    json_t *apart; /* where a split that is a token is that token: strings of added ones, which text is not; else NULL */
} bpe_tokens;

static spec_status put_token(const token_list *l, const bpe_tokens *to, const char *s, size_t n, uint64_t id)
{
    const int type = type_of(l, id);
    const bool is_added = type == SPM_CONTROL || type == SPM_UNKNOWN || type == SPM_USER_DEFINED;
    if (type == SPM_UNUSED) return SPEC_OK; /* rows of the table that no token has */
    errno = 0;
    json_t *text = n && !memchr(s, 0, n) ? json_stringn(s, n) : NULL;
    if (!text && errno == ENOMEM) return no_memory(l);
    if (!text || type == 0 || json_object_getn(to->vocab, s, n) || json_object_getn(to->apart, s, n)) {
        json_decref(text);
        return speci_fail(SPEC_E_FORMAT, "%s: tokenizer.ggml.tokens: token %llu is empty, not UTF-8, there twice, or of a type that is not "
                          "known", l->g->file, (unsigned long long)id);
    }
    bool good = true;
    if (is_added)
        good = json_array_append_new(to->added, json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t)id, "content", text, "special",
                                                          type != SPM_USER_DEFINED, "normalized", 0)) == 0;
    json_decref(text);
    json_t *strings = is_added && to->apart ? to->apart : to->vocab;
    good = good && json_object_setn_new(strings, s, n, json_integer((json_int_t)id)) == 0;
    return good ? SPEC_OK : no_memory(l);
}

static spec_status put_tokens(const token_list *l, const bpe_tokens *to)
{
    size_t at = 0, n;
    for (uint64_t id = 0; id < l->tokens->n; id++) {
        const char *s = speci_gguf_next(l->tokens, &at, &n);
        SPEC_TRY(put_token(l, to, s, n, id));
    }
    return SPEC_OK;
}

static bool keep_piece(const bpe_tokens *to, const char *s, size_t n)
{
    json_t *id = json_object_getn(to->apart, s, n);
    return !id || json_object_setn(to->vocab, s, n, id) == 0;
}

/* Added tokens that a merge needs or makes are pieces of the model, too. */
static spec_status keep_pieces(const token_list *l, const bpe_tokens *to, const speci_gguf_value *merges)
{
    size_t at = 0, n;
    speci_buf joined = { .a = l->a };
    spec_status status = SPEC_OK;
    for (uint64_t i = 0; i < merges->n && status == SPEC_OK && json_object_size(to->apart) > 0; i++) {
        const char *s = speci_gguf_next(merges, &at, &n), *space = n ? memchr(s + 1, ' ', n - 1) : NULL;
        if (!space) continue; /* no merge: reading it will say so */
        const size_t left = (size_t)(space - s), right = n - left - 1;
        joined.n = 0;
        status = speci_buf_add(&joined, s, left);
        if (status == SPEC_OK) status = speci_buf_add(&joined, space + 1, right);
        if (status == SPEC_OK && !(keep_piece(to, s, left) && keep_piece(to, space + 1, right) && keep_piece(to, joined.data, joined.n)))
            status = no_memory(l);
    }
    speci_buf_free(&joined);
    return status;
}

static spec_status put_pieces(const token_list *l, bpe_tokens *to, const speci_gguf_value *merges, bool whole_first)
{
    if (whole_first && !(to->apart = json_object())) return no_memory(l);
    spec_status status = put_tokens(l, to);
    if (status == SPEC_OK && to->apart) status = keep_pieces(l, to, merges);
    json_decref(to->apart);
    return status;
}

static json_t *split_by(const char *pattern)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated");
}

static json_t *pre_tokenizer(const pre_row *pre, bool prefix_space)
{
    json_t *list = json_array();
    bool good = true;
    for (size_t i = 0; i < sizeof pre->patterns / sizeof *pre->patterns && pre->patterns[i]; i++)
        good = json_array_append_new(list, split_by(pre->patterns[i])) == 0 && good;
    good = json_array_append_new(list, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix_space, "use_regex",
                                                 0)) == 0 && good;
    if (good) return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
    json_decref(list);
    return NULL;
}

static spec_status bpe_root(const token_list *l, json_t *root, const pre_row *pre)
{
    const speci_gguf_value *merges = NULL;
    int prefix_space = 0;
    SPEC_TRY(speci_gguf_array(l->g, "tokenizer.ggml.merges", SPECI_GGUF_STRING, &merges));
    SPEC_TRY(flag_of(l->g, "tokenizer.ggml.add_space_prefix", &prefix_space));
    if (!merges) return speci_fail(SPEC_E_FORMAT, "%s: tokenizer.ggml.merges is missing", l->g->file);
    json_t *model = json_pack("{s:s, s:b, s:{}}", "type", "BPE", "ignore_merges", pre->whole_first, "vocab"), *added = json_array();
    bool good = json_object_set_new(root, "model", model) == 0;
    good = json_object_set_new(root, "added_tokens", added) == 0 && good; /* it is taken over in either case */
    if (!good) return no_memory(l);
    SPEC_TRY(put_pieces(l, &(bpe_tokens){ json_object_get(model, "vocab"), added, NULL }, merges, pre->whole_first));
    json_t *list;
    SPEC_TRY(speci_gguf_take(&list, l->g, "tokenizer.ggml.merges", merges));
    good = json_object_set_new(model, "merges", list) == 0;
    if (pre->nfc) good = json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC")) == 0 && good;
    good = json_object_set_new(root, "pre_tokenizer", pre_tokenizer(pre, prefix_space)) == 0 && good;
    good = json_object_set_new(root, "decoder", json_pack("{s:s}", "type", "ByteLevel")) == 0 && good;
    return good ? SPEC_OK : no_memory(l);
}

static spec_status read_gpt2(spec_tokenizer *t, const token_list *l)
{
    const pre_row *pre = NULL;
    SPEC_TRY(find_pre(&pre, l->g));
    t->said.add_bos = pre->bos, t->said.add_eos = 0;
    json_t *root = json_object();
    spec_status status = root ? bpe_root(l, root, pre) : no_memory(l);
    if (status == SPEC_OK) status = speci_tokenizer_read_root(t, root);
    json_decref(root);
    return status;
}

/* --- llama: a SentencePiece model --- */

/* Added tokens are looked for in the text as it is; other pieces that users define are the model's own. */
static spec_status put_piece(speci_spm *m, const token_list *l, const char *s, size_t n, uint64_t id)
{
    const int type = type_of(l, id);
    const float score = (float)speci_gguf_number_at(l->scores, id);
    const bool is_added = type == SPM_USER_DEFINED && score == SPECI_ADDED_SCORE;
    const speci_added token = { .id = (int32_t)id };
    SPEC_TRY(speci_spm_add(m, s, n, score, is_added ? SPM_UNUSED : type));
    return is_added ? speci_added_put(&m->t->added, s, n, &token) : SPEC_OK;
}

static spec_status read_pieces(speci_spm *m, const token_list *l)
{
    size_t at = 0, n;
    int n_byte = 0;
    for (uint64_t id = 0; id < l->tokens->n; id++) {
        const char *s = speci_gguf_next(l->tokens, &at, &n);
        SPEC_TRY(put_piece(m, l, s, n, id));
        n_byte += type_of(l, id) == SPM_BYTE;
    }
    m->byte_fallback = n_byte == 256;
    return speci_spm_finish(m);
}

static spec_status read_llama(spec_tokenizer *t, const token_list *l)
{
    speci_spm m = speci_spm_defaults;
    int prefix = 1, remove_extra = 0;
    m.t = t;
    m.pieces.a = &t->allocator;
    m.model_type = SPM_MODEL_BPE;
    t->spm = true;
    t->said.add_bos = 1, t->said.legacy = 1; /* a space behind added tokens, as llama.cpp has it */
    if (speci_gguf_find(l->g, "tokenizer.ggml.precompiled_charsmap")) m.n_charsmap = 1; /* refused */
    if (!l->scores || !l->types)
        return speci_fail(SPEC_E_FORMAT, "%s: tokenizer.ggml.%s is missing", l->g->file, l->scores ? "token_type" : "scores");
    SPEC_TRY(id_of(l, "tokenizer.ggml.unknown_token_id", &m.unk));
    SPEC_TRY(flag_of(l->g, "tokenizer.ggml.add_space_prefix", &prefix));
    SPEC_TRY(flag_of(l->g, "tokenizer.ggml.remove_extra_whitespaces", &remove_extra));
    m.dummy_prefix = prefix, m.remove_extra = remove_extra;
    const spec_status status = read_pieces(&m, l);
    speci_buf_free(&m.pieces);
    return status;
}

/* --- the file --- */

spec_status speci_tokenizer_read_gguf(spec_tokenizer *t, const speci_gguf *g)
{
    const char *model = NULL;
    token_list l;
    size_t n = 0;
    t->said = (speci_said){ .add_bos = -1, .add_eos = -1, .prefix_space = -1, .legacy = -1, .bos = -1, .eos = -1 };
    SPEC_TRY(speci_gguf_text(g, "tokenizer.ggml.model", &model, &n));
    if (!model) return speci_fail(SPEC_E_FORMAT, "%s: tokenizer.ggml.model is missing: the file has no tokenizer", g->file);
    const bool gpt2 = has_word("gpt2", model, n);
    if (!gpt2 && !has_word("llama", model, n))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tokenizer.ggml.model is \"%.*s\", expected gpt2 or llama: give a tokenizer of its own",
                          g->file, n > 60 ? 60 : (int)n, model);
    SPEC_TRY(find_tokens(&l, g));
    l.a = &t->allocator;
    SPEC_TRY(gpt2 ? read_gpt2(t, &l) : read_llama(t, &l));
    if (!gpt2) t->said.bos = 1, t->said.eos = 2;
    SPEC_TRY(id_of(&l, "tokenizer.ggml.bos_token_id", &t->said.bos));
    SPEC_TRY(id_of(&l, "tokenizer.ggml.eos_token_id", &t->said.eos));
    SPEC_TRY(flag_of(g, "tokenizer.ggml.add_bos_token", &t->said.add_bos));
    SPEC_TRY(flag_of(g, "tokenizer.ggml.add_eos_token", &t->said.add_eos));
    return chat_template(t, g);
}
