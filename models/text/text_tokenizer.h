/* text_tokenizer.h - the inside of spec_tokenizer: text to ids and back. Internal: users see spec.h.
 *
 * A tokenizer is a pipeline, read from tokenizer.json (or built from a SentencePiece tokenizer.model, which needs
 * a few of the same parts). The reference is the `tokenizers` package; every step does what it does there:
 *
 *     text -> added tokens that match raw text      text_added.c
 *          -> normalizer                            text_normalize.c
 *          -> added tokens that match normalized text
 *          -> pre-tokenizer: splits                 text_pretokenize.c, patterns in ..._regex.c
 *          -> BPE on each split                     text_bpe.c
 *          -> post-processor: ids before and after
 *     ids  -> pieces of text, streamed              text_decode.c
 *
 * Readers: text_json.c, text_spm.c, text_gguf.c; of the files beside it text_beside.c.
 * Foundations: ..._text.c (UTF-8), ..._vocab.c (hash tables).
 * All of it is immutable after open; a call that needs memory has its own scratch.
 * Known differences from the package: properties of characters that are newer than the Unicode version of PCRE2 or
 * utf8proc; in decoding, an ill-formed run of byte tokens keeps its well-formed characters (see decode.c). */
#ifndef SPEC_MODEL_TOKENIZER_H
#define SPEC_MODEL_TOKENIZER_H

#include "core/core_gguf.h"

/* ------------------------------------------------------------------ UTF-8 (..._text.c) --- */

/* The bytes of the well-formed character at s, 0 if there is none (end, overlong, surrogate, over U+10FFFF). */
size_t speci_utf8_length(const char *s, size_t n);
/* Can s [n], n <= 4, begin a character? 1 = it is exactly one, 0 = it is the beginning of one, -1 = neither. */
int speci_utf8_state(const uint8_t *s, size_t n);
/* The code point at s, which is well-formed; *len receives its bytes. */
int32_t speci_utf8_decode(const char *s, size_t *len);
size_t speci_utf8_encode(char out[4], int32_t cp);
/* Where the character before s + i begins. s is well-formed, i > 0 is a boundary. */
size_t speci_utf8_before(const char *s, size_t i);
/* The offset of the first byte that is not UTF-8; n if all is well. */
size_t speci_utf8_check(const char *s, size_t n);
bool speci_is_space(int32_t cp); /* Unicode White_Space */
/* GPT-2's bijection of bytes and printable characters: byte -> code point, and back (-1: not in it). */
int32_t speci_byte_to_char(uint8_t byte);
int speci_char_to_byte(int32_t cp);

/* --------------------------------------------------------------- tables (..._vocab.c) --- */

enum { SPECI_TOK_ID_LIMIT = 1 << 22 }; /* ids are below it: tables are indexed by id, and files are not trusted */
enum { SPECI_TOK_FILE_MAX = 1 << 28 }; /* bytes of a file; the largest known is 34 MB */

/* Strings and ids, both ways. Zero to begin, except the three `a`s (speci_vocab_init). */
typedef struct speci_vocab {
    speci_buf text;    /* the strings, one after another */
    speci_buf entries; /* vocab_entry [n] */
    speci_buf by_id;   /* uint32_t [n_id]: entry + 1, 0 = the id is not used */
    uint32_t *slot;    /* [n_slot] open addressing: entry + 1 */
    size_t n_slot, n;
    size_t longest; /* bytes of the longest string */
    const char *file; /* that they are read from, for messages; NULL: none */
} speci_vocab;
void speci_vocab_init(speci_vocab *v, const spec_allocator *a);
void speci_vocab_free(speci_vocab *v);
/* Two strings may have one id (the later one is its string); a string that is there already is E_FORMAT. */
spec_status speci_vocab_add(speci_vocab *v, const char *s, size_t n, int32_t id);
int32_t speci_vocab_find(const speci_vocab *v, const char *s, size_t n); /* -1 = none */
const char *speci_vocab_string(const speci_vocab *v, int32_t id, size_t *n);
int32_t speci_vocab_n_id(const speci_vocab *v); /* largest id + 1 */

/* (a, b) -> (rank, id): the merges of BPE, the edges of a trie. */
typedef struct speci_pair {
    uint32_t a, b, rank;
    int32_t id; /* -1 = free slot */
} speci_pair;
typedef struct speci_pairs {
    speci_pair *slot;
    size_t n_slot, n;
    const spec_allocator *a;
} speci_pairs;
spec_status speci_pairs_put(speci_pairs *p, speci_pair pair); /* replaces what was there */
const speci_pair *speci_pairs_get(const speci_pairs *p, uint32_t a, uint32_t b);
void speci_pairs_free(speci_pairs *p);

/* ------------------------------------------------------------- patterns (..._regex.c) --- */

typedef struct speci_regex speci_regex; /* immutable */
typedef struct speci_match speci_match; /* a search in progress, for one thread */

/* Compiles a pattern in Oniguruma's syntax (the reference's), or a literal. Constructs that PCRE2 understands
 * otherwise are translated, or refused by name. `what` begins messages. */
spec_status speci_regex_open(speci_regex **out, const char *pattern, size_t n, bool literal, const char *what,
                             const spec_allocator *a);
void speci_regex_close(speci_regex *re);
spec_status speci_match_open(speci_match **out, const speci_regex *re);
void speci_match_close(speci_match *m);
/* Starts on text [n], well-formed UTF-8; next gives the matches in order, *found false after the last. */
void speci_match_start(speci_match *m, const char *text, size_t n);
spec_status speci_match_next(speci_match *m, bool *found, size_t *start, size_t *end);

/* ---------------------------------------------------- strings to look for (..._trie.c) --- */

typedef struct speci_trie {
    speci_pairs edges;      /* (node, byte) -> node; node 0 is the root */
    speci_buf leaf;         /* uint32_t [n_node]: an item's index + 1, 0 = none ends here; empty: no strings */
    uint32_t root[256];     /* the edges of the root once more: most bytes of a text begin no string */
} speci_trie;
/* Enters `string` for item number `index`. The first of equals stays, and an empty one is passed over. */
spec_status speci_trie_put(speci_trie *trie, const char *string, size_t n, size_t index);
/* The longest string of the trie that text [n] begins with: its item and its bytes. */
bool speci_trie_longest(const speci_trie *trie, const char *text, size_t n, size_t *index, size_t *len);
uint32_t speci_trie_child(const speci_trie *trie, uint32_t node, uint8_t byte); /* to the node behind it; 0: none */
bool speci_trie_ends(const speci_trie *trie, uint32_t node);                   /* does a string end there? */
size_t speci_trie_n_node(const speci_trie *trie);
void speci_trie_free(speci_trie *trie);

/* --------------------------------------------------------- added tokens (..._added.c) --- */

typedef struct speci_added {
    size_t offset, n; /* its string in speci_added_set.text */
    size_t shown_offset, n_shown; /* what decoding shows: its normalized form, if it is looked for in that */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} speci_added;
typedef struct speci_added_set {
    speci_buf text, items; /* bytes; speci_added [n] */
    speci_trie raw, normalized;
    speci_vocab ids;    /* string -> index of the item */
    speci_regex *word;  /* one word character; NULL unless a token is single_word */
    speci_buf by_token; /* uint32_t [n]: token id -> index + 1 */
} speci_added_set;

typedef struct speci_segment { /* of a text: an added token, or what lies between two */
    size_t offset, n;
    int32_t id; /* -1 = text */
} speci_segment;

void speci_added_init(speci_added_set *s, const spec_allocator *a);
void speci_added_free(speci_added_set *s);
spec_status speci_added_put(speci_added_set *s, const char *content, size_t n, const speci_added *token);
/* Gives item number `index` the flags of `token`; a special one stays special. */
spec_status speci_added_change(speci_added_set *s, int32_t index, const speci_added *token);
const speci_added *speci_added_of_id(const speci_added_set *s, int32_t id);
/* Appends the segments of text to out (speci_segment). Special tokens are passed over unless parse_special. */
spec_status speci_added_split(const speci_added_set *s, const speci_trie *trie, const char *text, size_t n,
                              bool parse_special, speci_buf *out);
/* out [items]: can a token that is looked for in normalized text stand in one text with one that is looked for before, so that one of the
 * two is lost (text_overlap.c)? */
spec_status speci_added_overlaps(bool *out, const speci_added_set *s);

/* ---------------------------------------------------------- normalizers (..._normalize.c) --- */

typedef enum speci_norm_kind {
    SPECI_NORM_NFC,
    SPECI_NORM_NFD,
    SPECI_NORM_NFKC,
    SPECI_NORM_NFKD,
    SPECI_NORM_LOWERCASE,
    SPECI_NORM_REPLACE,       /* matches of re by text */
    SPECI_NORM_PREPEND,       /* text, unless the string is empty */
    SPECI_NORM_STRIP,         /* white space, left and right */
    SPECI_NORM_STRIP_ACCENTS, /* combining marks */
    SPECI_NORM_NMT,           /* control characters away, odd spaces to spaces */
    SPECI_NORM_BYTE_LEVEL,    /* bytes to GPT-2's characters */
    SPECI_NORM_SPM            /* SentencePiece: dummy prefix, extra white space, U+2581 for spaces */
} speci_norm_kind;
typedef struct speci_norm {
    speci_norm_kind kind;
    speci_regex *re;
    char *text;
    size_t n_text;
    bool left, right;                           /* STRIP */
    bool dummy_prefix, remove_extra, escape;    /* SPM */
    bool each_segment;                          /* SPM: a dummy prefix behind added tokens, too */
} speci_norm;
/* The steps `norms` (speci_norm) one after another on text [n]; the result is *out [*n_out], in `work` or the text
 * itself. *origin: does the first character stem from the first character of the whole input (some pre-tokenizers
 * ask)? It is cleared when that was removed. */
typedef struct speci_norm_work {
    speci_buf a, b, code_points, order;
} speci_norm_work;
spec_status speci_normalize(const speci_buf *norms, const char *text, size_t n, bool *origin,
                            speci_norm_work *work, const char **out, size_t *n_out);
void speci_norms_free(speci_buf *norms);
/* The steps for a text that goes on behind another (SPEC_TOKEN_CONTINUE): what they refer to stays with `norms`. */
spec_status speci_norms_continue(speci_buf *out, const speci_buf *norms);

/* ------------------------------------------------------- pre-tokenizers (..._pretokenize.c) --- */

typedef enum speci_split_behavior {
    SPECI_SPLIT_REMOVED,
    SPECI_SPLIT_ISOLATED,
    SPECI_SPLIT_MERGED_WITH_PREVIOUS,
    SPECI_SPLIT_MERGED_WITH_NEXT,
    SPECI_SPLIT_CONTIGUOUS
} speci_split_behavior;
typedef enum speci_pre_kind {
    SPECI_PRE_SPLIT,        /* at the matches of re */
    SPECI_PRE_PREFIX_SPACE, /* a space in front, unless there is one */
    SPECI_PRE_MARK,         /* Metaspace: spaces become text; text in front, by `prepend` */
    SPECI_PRE_BYTE_LEVEL,   /* bytes to GPT-2's characters */
    SPECI_PRE_FIXED         /* `length` characters each */
} speci_pre_kind;
typedef enum speci_prepend { SPECI_PREPEND_NEVER, SPECI_PREPEND_FIRST, SPECI_PREPEND_ALWAYS } speci_prepend;
typedef struct speci_pre {
    speci_pre_kind kind;
    speci_regex *re;
    speci_split_behavior behavior;
    bool invert; /* SPLIT: what lies between matches counts as the match */
    char text[4];
    size_t n_text;
    speci_prepend prepend;
    size_t length;
} speci_pre;
typedef struct speci_split {
    size_t offset, n; /* in speci_pre_work.text */
    bool origin;      /* begins where the whole input begins */
} speci_split;
typedef struct speci_pre_work {
    speci_buf text, splits; /* the result: bytes; speci_split [n] */
    speci_buf text2, splits2;
} speci_pre_work;
spec_status speci_pretokenize(const speci_buf *pres, const char *text, size_t n, bool origin, speci_pre_work *work);
void speci_pres_free(speci_buf *pres);
spec_status speci_pres_continue(speci_buf *out, const speci_buf *pres); /* as speci_norms_continue */

/* --------------------------------------------------------------------- BPE (..._bpe.c) --- */

typedef struct speci_bpe {
    bool spm;           /* SentencePiece's rules: a merge is allowed if the joined text is a piece, best score first */
    bool ignore_merges; /* a split that is a token as a whole is that token */
    bool fuse_unk, byte_fallback;
    int32_t unk;                  /* -1 = none: unknown characters vanish */
    char *prefix, *suffix;        /* continuing_subword_prefix, end_of_word_suffix; NULL = none */
    speci_pairs merges;           /* not for spm */
    uint32_t *rank;               /* spm: [n_id] order by score, equal scores alike; UINT32_MAX = not mergeable */
    speci_trie user_defined;      /* spm: pieces that are taken whole before merging; leaf = id + 1 */
    int32_t byte_id[256];         /* "<0x00>" ... "<0xFF>", -1 = not there */
    /* Which characters may be joined at all: a bit for each hash of (last of the left, first of the right); other
     * pairs may share a bit. Where it is off no merge ever reaches across, and the text is cut (see bpe.c). */
    uint64_t joins[1 << 12];
} speci_bpe;
typedef struct speci_bpe_work {
    speci_buf symbols, heap, key;
} speci_bpe_work;
/* Appends the ids (int32_t) of one split. */
spec_status speci_bpe_encode(const speci_bpe *bpe, const speci_vocab *vocab, const char *text, size_t n,
                             speci_bpe_work *work, speci_buf *ids);
void speci_bpe_init(speci_bpe *bpe, const spec_allocator *a);
void speci_bpe_free(speci_bpe *bpe, const spec_allocator *a);
/* Fills byte_id from the vocabulary. */
void speci_bpe_find_bytes(speci_bpe *bpe, const speci_vocab *vocab);
/* Enters into joins what a merge joins: two strings of the vocabulary; or all neighbours in a piece (spm). */
void speci_bpe_put_join(speci_bpe *bpe, const char *left, size_t n_left, const char *right, size_t n_right);
void speci_bpe_put_joins(speci_bpe *bpe, const char *piece, size_t n);

/* ---------------------------------------------------------------- decoding (..._decode.c) --- */

typedef enum speci_dec_kind { /* what is done to each token on its own, when the tokenizer is opened */
    SPECI_DEC_REPLACE,
    SPECI_DEC_STRIP,
    SPECI_DEC_METASPACE,
    SPECI_DEC_BYTE_LEVEL,
    SPECI_DEC_BYTE_FALLBACK
} speci_dec_kind;
typedef struct speci_dec {
    speci_dec_kind kind;
    speci_regex *re; /* REPLACE by text; STRIP, METASPACE: the character is text */
    char *text;
    size_t n_text;
    size_t start, stop; /* STRIP: characters at most */
    bool drop_first;    /* METASPACE: the first token loses its marks */
} speci_dec;
typedef struct speci_piece {
    uint32_t offset, n;
    bool used;
} speci_piece;
typedef struct speci_decoder {
    speci_buf steps; /* speci_dec; these two only until the pieces are made */
    int phase;       /* what the steps so far make of tokens (text_json_decode.c) */
    int32_t unk;     /* spm: the unknown piece is shown as unk_text (borrowed from the file); else -1 */
    const char *unk_text;
    size_t n_unk_text;
    /* What is left to do on the running text: */
    bool join_space;     /* no decoder at all: tokens are separated by a space */
    bool each_byte;      /* each ill-formed byte becomes U+FFFD (else: each maximal beginning of a character) */
    uint8_t strip;       /* characters strip_char to drop at the beginning; 255 = all */
    char strip_char[4];
    size_t n_strip_char;
    bool strip_pieces;   /* SentencePiece's way: the space of a piece, not any space */
    speci_buf text;      /* the pieces' bytes */
    speci_buf pieces;    /* speci_piece [n_id] */
    speci_buf first;     /* the same for a token that comes first; empty = no difference */
    size_t piece_max;
} speci_decoder;
void speci_decoder_free(speci_decoder *d);

/* ---------------------------------------------------------------------- the tokenizer --- */

/* What tokenizer_config.json says, for those who read the tokenizer's own file: 1 = true, 0 = false, -1 = nothing. */
typedef struct speci_said {
    int add_bos, add_eos; /* of a tokenizer.model or a GGUF file; tokenizer.json has a post-processor */
    int prefix_space;     /* of ByteLevel and SentencePiece: a space in front of the text */
    int legacy;           /* of SentencePiece: 1 = such a space behind added tokens, too */
    int32_t bos, eos;     /* ids */
} speci_said;

struct spec_tokenizer {
    spec_allocator allocator;
    char *path;
    bool spm, gguf; /* a SentencePiece model; read from a GGUF file */
    speci_said said;
    speci_vocab vocab; /* the model's own; added tokens may lie outside it */
    speci_added_set added;
    speci_buf norms, pres; /* speci_norm, speci_pre */
    speci_bpe bpe;
    speci_buf before, after; /* int32_t: ids that SPEC_TOKEN_ADD_SPECIAL puts round the text */
    speci_decoder decoder;
    int32_t bos, eos, n_vocab;
    char *chat_template; /* NULL = none */
};

/* The readers fill a zeroed tokenizer whose parts are initialised. */
spec_status speci_tokenizer_read_json(spec_tokenizer *t, const char *path);
spec_status speci_tokenizer_read_root(spec_tokenizer *t, const json_t *root); /* what is in a tokenizer.json */
spec_status speci_tokenizer_read_spm(spec_tokenizer *t, const uint8_t *data, size_t n);
spec_status speci_tokenizer_read_gguf(spec_tokenizer *t, const speci_gguf *g); /* tells everything in t->said, too */
/* Formats that are not read (text_other.c): fails for a file that is one; fails for a directory without a tokenizer. */
spec_status speci_tokenizer_refuse_other(const char *path, const uint8_t *data, size_t n);
spec_status speci_tokenizer_none(const char *dir);

/* Enters the added tokens into their tries, once there are no more to come. */
spec_status speci_added_place(spec_tokenizer *t);

/* The files beside the tokenizer's own (text_beside.c): tokenizer_config.json and others, any of which may be missing. */
typedef struct speci_beside speci_beside;
/* Reads them, and fills t->said but for the ids. */
spec_status speci_beside_open(speci_beside **out, spec_tokenizer *t);
/* Adds their tokens to those of the tokenizer's file, tells the ids of BOS and EOS in t->said, and takes the chat template. */
spec_status speci_beside_add(const speci_beside *b, spec_tokenizer *t);
void speci_beside_close(speci_beside *b, const spec_allocator *a);

/* The string of an id as decoding sees it, added tokens first; NULL = not used. */
const char *speci_tokenizer_string(const spec_tokenizer *t, int32_t id, size_t *n);
int32_t speci_tokenizer_find(const spec_tokenizer *t, const char *s, size_t n);
/* Makes the table of pieces; the last step of open. */
spec_status speci_decoder_build(spec_tokenizer *t);

#endif
