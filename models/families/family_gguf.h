/* family_gguf.h - GGUF files as what families read: a config in Hugging Face's words, tensors by Hugging Face's names. Internal.
 *
 * A row for each general.architecture, in a file beside the family's own: names of tensors, names of keys, and what the converter
 * has done to weights. Source: llama.cpp, conversion/<family>.py and gguf-py/gguf/tensor_mapping.py. */
#ifndef SPEC_MODEL_FAMILY_GGUF_H
#define SPEC_MODEL_FAMILY_GGUF_H

#include "models/families/family_build.h"

/* A key below the architecture's name, "attention.head_count", and the key of config.json: "num_attention_heads"; one that stands in
 * an object there is "rope_scaling.factor". NULL: it means nothing for this family. */
typedef enum gguf_kind { GGUF_WHOLE, GGUF_REAL, GGUF_FLAG, GGUF_WORD } gguf_kind; /* u32, f32, bool, string: how it is written */
typedef struct gguf_key {
    const char *gguf, *config;
    gguf_kind kind;
} gguf_key;

/* A file on its way to a config. */
typedef struct gguf_reading {
    const speci_gguf *file;
    const char *architecture;
    const model_checkpoint *checkpoint; /* not renamed yet: tensors by the file's names */
    json_t *config, *said;              /* so far (model_config) */
} gguf_reading;

/* A Hugging Face directory on its way to a file (family_gguf_write.h). */
typedef struct gguf_writing gguf_writing;

typedef struct model_gguf {
    const char *architecture, *model_type;
    const char *also; /* other model_types that are written as this one, with a space between; NULL = none */
    const model_rename *const *names; /* lists that follow one another; NULL: the end */
    const model_rename *halves; /* a tensor that the file has as two, one row for each; NULL = none */
    const gguf_key *keys; /* count before those that all share; NULL = none */
    model_form form;
    spec_status (*finish)(gguf_reading *r);  /* what tables cannot say; NULL = nothing */
    spec_status (*write)(gguf_writing *w);   /* the same on the way back */
} model_gguf;

/* The rows (family_gguf_<family>.c) */
extern const model_gguf speci_gguf_llama, speci_gguf_qwen2, speci_gguf_qwen3, speci_gguf_mamba, speci_gguf_mamba2, speci_gguf_gptneox,
    speci_gguf_phi3, speci_gguf_granite, speci_gguf_granitehybrid, speci_gguf_starcoder2, speci_gguf_gemma, speci_gguf_smollm3,
    speci_gguf_olmo, speci_gguf_seed_oss, speci_gguf_ernie4_5, speci_gguf_stablelm, speci_gguf_command_r, speci_gguf_lfm2,
    speci_gguf_gemma2, speci_gguf_gemma3, speci_gguf_olmo2, speci_gguf_exaone4, speci_gguf_glm4, speci_gguf_cohere2, speci_gguf_chatglm,
    speci_gguf_falcon, speci_gguf_exaone, speci_gguf_phi2;

/* Names that rows share (family_gguf_names.c): of the embedding, the last norm and the head; of q, k, v and o; of the norms of q and k;
 * of gate, up and down; of the norms in front of both branches. */
extern const model_rename speci_gguf_ends[], speci_gguf_attention[], speci_gguf_qk_norms[], speci_gguf_mlp[], speci_gguf_norms_before[];
extern const model_rename *const speci_gguf_llama_names[]; /* all of these: Llama, and what keeps to its names */
extern const model_rename *const speci_gguf_bare_names[];  /* of families whose branches have norms behind them alone */
/* attention_bias and mlp_bias, by the tensors that there are: a row's finish. */
spec_status speci_gguf_llama_biases(gguf_reading *r);

/* Makes the config of an open GGUF file, and tells its row. config.json's keys that the file has no word for are set, too: sizes that
 * tensors tell, and whether embeddings are tied. The config's messages name the file's keys. */
spec_status speci_gguf_config(model_config *out, const model_gguf **row, const model_checkpoint *c, const char *file);
/* The defaults of decoding, as generation_config.json has them; out->root stays NULL where the file says nothing. */
spec_status speci_gguf_generation(model_config *out, const speci_gguf *g);

/* The row of a model_type; NULL = none. */
const model_gguf *speci_gguf_row(const char *model_type);
/* The model_types that have one, ", " between, into out [cap]. */
void speci_gguf_row_names(char *out, size_t cap);
/* The keys that all rows share, and those of general.sampling; ended by NULL. */
extern const gguf_key speci_gguf_shared[], speci_gguf_sampling[];
const gguf_key *speci_gguf_find_key(const gguf_key *list, const char *key);

/* For rows: sets a key, owning the value (NULL is no memory), or deletes it (JSON's null); `from` is the file's key, for messages, or
 * NULL. */
spec_status speci_gguf_set(gguf_reading *r, const char *key, json_t *value, const char *from);
/* The file's value of a key below the architecture's name; NULL if absent. */
const speci_gguf_value *speci_gguf_own(const gguf_reading *r, const char *key);
/* An integer of the config so far; 0 where it is none. */
int64_t speci_gguf_config_integer(const gguf_reading *r, const char *key);
bool speci_gguf_has_tensor(const gguf_reading *r, const char *name);
/* A row's key for attention.sliding_window_pattern; its finish, behind which this is layer_types or sliding_window_pattern. */
#define SPECI_GGUF_WINDOWS "_sliding_windows"
spec_status speci_gguf_windows(gguf_reading *r);
/* Of a hybrid, whose attention.head_count_kv has a number for each layer: sets num_key_value_heads, and appends to types each layer's,
 * `attention` where there are heads of keys, else `other`; to attending (NULL: not wanted) the numbers of the former. */
spec_status speci_gguf_layers(gguf_reading *r, json_t *types, json_t *attending, const char *attention, const char *other);

#endif
