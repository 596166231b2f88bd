/* text_spm.h - a SentencePiece model on its way to a tokenizer: from a tokenizer.model (text_spm.c), or from the metadata of a GGUF
 * file (text_gguf.c). Internal. */
#ifndef SPEC_TEXT_SPM_H
#define SPEC_TEXT_SPM_H

#include "models/text/text_tokenizer.h"

enum { SPM_NORMAL = 1, SPM_UNKNOWN, SPM_CONTROL, SPM_USER_DEFINED, SPM_UNUSED, SPM_BYTE }; /* types of pieces, numbered as in files */
enum { SPM_MODEL_BPE = 2 };

typedef struct speci_spm_piece {
    int32_t id;
    float score;
    int type;
} speci_spm_piece;

typedef struct speci_spm {
    spec_tokenizer *t;
    speci_buf pieces; /* speci_spm_piece [n]; the strings are in t->vocab */
    uint64_t model_type;
    bool whitespace_as_suffix, byte_fallback;
    int32_t bos, eos, unk;
    const uint8_t *unk_surface;
    size_t n_unk_surface;
    bool dummy_prefix, remove_extra, escape;
    size_t n_charsmap;
    char name[64]; /* of the normalizer */
} speci_spm;

extern const speci_spm speci_spm_defaults; /* what the proto says when it says nothing; t and pieces.a are to be set */
/* The next piece. UNUSED ones have an id, and are never merged to. */
spec_status speci_spm_add(speci_spm *m, const char *string, size_t n, float score, int type);
/* Fills the tokenizer. */
spec_status speci_spm_finish(speci_spm *m);

#endif
