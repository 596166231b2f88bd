/* family_transformer.h - what the transformers share, and the attention and MLP layers of the hybrids: sizes, biases, kinds of
 * norms and of MLPs, and names of tensors, which are Llama's where a family says nothing else. Internal. */
#ifndef SPEC_MODEL_TRANSFORMER_H
#define SPEC_MODEL_TRANSFORMER_H

#include "models/families/family_build.h"

#define MODEL_HEAD_MAX 65536
#define MODEL_HEAD_DIM_MAX 4096

/* Tensors that families name differently. */
typedef struct model_transformer_names {
    const char *embed, *head, *final_norm;   /* "model.embed_tokens.weight", "lm_head", "model.norm" */
    const char *layers;                      /* "model.layers": layer 3 is "model.layers.3" */
    const char *norm1, *norm2;               /* below a layer: of attention, of the MLP; norm2 NULL: the MLP has attention's */
    const char *behind1, *behind2;           /* below a layer: norms of what attention and MLP give, before it is added; or NULL */
    const char *attention, *mlp;             /* below a layer */
    const char *qkv, *out, *q_norm, *k_norm; /* below attention; qkv: where it is one tensor */
    const char *gate, *up, *gate_up, *down;  /* below the MLP */
} model_transformer_names;
extern const model_transformer_names speci_llama_names;

/* The norms of layers, and the last one. */
typedef enum model_norm_parts {
    MODEL_NORM_RMS,         /* weight */
    MODEL_NORM_LAYER,       /* layer norm: weight and bias */
    MODEL_NORM_LAYER_SCALE, /* layer norm: weight alone */
    MODEL_NORM_LAYER_BARE   /* layer norm: neither */
} model_norm_parts;

/* q, k and v: three tensors, or one with all heads of q, then of k and of v, or one with, for each head of keys, the heads of q that
 * read it, then its k and its v. */
typedef enum model_qkv { MODEL_QKV_APART, MODEL_QKV_FUSED, MODEL_QKV_BY_GROUP } model_qkv;

typedef struct model_transformer {
    int32_t dim, n_inner, n_layer, n_vocab, n_ctx;
    int32_t n_head, n_kv_head, head_dim;
    double eps;
    model_norm_parts norm;
    spec_activation act;
    bool tied;
    bool qkv_bias, out_bias, mlp_bias, head_bias, qk_norm;
    bool qk_norm_whole;        /* over all heads at once */
    bool bare;                 /* attention and MLP read the residual as it is */
    model_qkv qkv;
    const int32_t *qkv_from;   /* fused: [rows] which row of the tensor is row i of [q | k | v]; NULL = row i */
    bool fused_mlp;            /* gate and up are one tensor */
    bool ungated;              /* the MLP is down(act(up x)) */
    int32_t qkv_in;            /* columns that q, k and v read; 0 = dim (qkv apart) */
    bool parallel;             /* attention and MLP read the same residual */
    bool interleaved;          /* dimensions 0 and 1 of a head turn together, 2 and 3, ... (no qkv by group, no qk_norm) */
    double attention_scale;    /* of scores; 0 = 1 / sqrt(head_dim) */
    double attention_cap;      /* of scores, softly; 0 = none */
    double residual_scale;     /* of what branches add; 0 = 1 */
    int32_t window;            /* of layers that nothing else is said of; 0 = full attention */
    model_rope rope;
    model_rope rope_sliding;   /* of layers with a window; theta 0: as the others */
    const model_transformer_names *names; /* NULL: Llama's */
} model_transformer;

/* What differs between the configuration classes. */
typedef struct model_transformer_defaults {
    int32_t n_ctx;       /* max_position_embeddings */
    int32_t n_inner_times; /* intermediate_size by hidden_size; 0 = it must be said */
    int32_t n_kv_head;   /* num_key_value_heads; 0 = as many as heads. null means that in every class */
    int32_t head_dim;    /* head_dim; 0 = hidden_size / num_attention_heads */
    const char *eps_key; /* NULL = "rms_norm_eps" */
    double eps;          /* of that key */
    bool tied;           /* tie_word_embeddings */
    const char *act;     /* hidden_act; NULL = "silu" */
    model_rope_keys rope;
    bool two_ropes;      /* layers with a window turn otherwise than the others */
} model_transformer_defaults;

extern const model_rope_keys speci_rope_whole_head; /* rope_theta, 10000, all of a head */

/* Reads the keys that all of them have; the families add biases and norms. */
spec_status speci_transformer_read(model_config *c, model_transformer *out, const model_transformer_defaults *d);

/* attention_bias, one key for all four projections, and mlp_bias: what most classes have. */
spec_status speci_transformer_read_biases(model_config *c, model_transformer *t);

/* Of these the heads: num_attention_heads, num_key_value_heads, head_dim; t->dim is set. */
spec_status speci_transformer_read_heads(model_config *c, model_transformer *t, const model_transformer_defaults *d);

/* The branches of a layer. `layer` is "model.layers.3", norm and mlp are names below it; norm NULL: it is not made. */
spec_status speci_transformer_attention(model_builder *b, model_branch *out, const model_transformer *t,
                                        const char *layer, const char *norm, int32_t window);
spec_status speci_transformer_mlp(model_builder *b, model_branch *out, const model_transformer *t, const char *layer,
                                  const char *norm, const char *mlp);

/* What differs from layer to layer. */
typedef struct model_transformer_layer {
    int32_t window; /* 0 = full attention */
    bool no_rope;
} model_transformer_layer;

/* Reads what the config says of layers [n_layer], which have t's window so far. */
typedef spec_status (*model_read_layers)(model_config *c, model_transformer_layer *layers, const model_transformer *t);
/* Has a list in the config an entry for each layer? */
spec_status speci_transformer_check_layers(const model_config *c, const char *key, const json_t *list, int32_t n_layer);
/* A list of layers by number; *out NULL: the config has none. Is one in it? */
spec_status speci_transformer_layer_numbers(model_config *c, const json_t **out, const char *key, int32_t n_layer);
bool speci_transformer_is_listed(const json_t *list, int32_t layer);
/* layer_types, where the config has it: "full_attention", or "sliding_attention" with a window of `width`; 0: refused,
 * by the key that says so, `off`. */
spec_status speci_transformer_layer_types(model_config *c, model_transformer_layer *layers, int32_t n_layer,
                                          int32_t width, const char *off);

/* A window of `width` in all layers but every `pattern`-th, unless layer_types says which. */
spec_status speci_transformer_windows(model_config *c, model_transformer_layer *layers, int32_t n_layer, int32_t width, int32_t pattern);
/* Every how many layers one has no window, from the first such on; 0: it is not so regular. */
int32_t speci_transformer_period(const model_transformer_layer *layers, int32_t n_layer);

/* A whole model of attention and MLP layers. read NULL: all layers are alike. More layers than the
 * checkpoint can have are refused. */
spec_status speci_transformer_build(model_builder *b, const model_transformer *t, model_read_layers read);

/* Gemma's hidden_activation: family_gemma.c; of family_gemma2.c and family_gemma3.c, which have names of tensors alike, too. */
spec_status speci_gemma_one_activation(model_config *c, model_transformer *t);
extern const model_transformer_names speci_gemma_names;

/* A GPT-J config, and what it leaves to the family: family_gptj.c and family_codegen.c. */
extern const model_transformer speci_gptj;
spec_status speci_gptj_read(model_config *c, model_transformer *t);

/* Reads a GLM config: family_glm.c and family_glm4.c. */
spec_status speci_glm_read(model_config *c, model_transformer *t);

/* Of families whose branches read the residual as it is, and have norms behind them: family_olmo2.c, family_exaone4.c. */
extern const model_transformer_names speci_bare_names;
/* The rotary base of OLMo 3's layers with a window, where a GGUF file has another for them: no key of config.json. */
#define SPECI_OLMO3_SLIDING_THETA "_sliding_rope_theta"

/* Reads a Mistral config, sliding_window included: family_mistral.c and family_ministral.c. */
spec_status speci_mistral_read(model_config *c, model_transformer *t);

/* Granite's factors of embeddings and logits; those of scores and of what branches add go to t. family_granite.c and
 * family_granitemoehybrid.c. */
typedef struct model_granite_scales {
    float embed, logits;
} model_granite_scales;
spec_status speci_granite_read_scales(model_config *c, model_transformer *t, model_granite_scales *out);

/* The Mamba-2 keys of a hybrid, mamba_n_heads and so on, and a layer's mixer: family_bamba.c and family_granitemoehybrid.c. */
spec_status speci_bamba_read_mamba(model_config *c, model_mamba2_shape *out, const model_transformer *t);
spec_status speci_bamba_build_mamba(model_builder *b, model_branch *out, const model_transformer *t,
                                    const model_mamba2_shape *m, const char *layer);

/* Reads a Cohere config and builds: family_cohere.c and family_cohere2.c. */
spec_status speci_cohere_build(model_builder *b, const model_transformer_defaults *defaults, model_read_layers read);

/* Reads a Qwen config's windows and builds: the end of family_qwen2.c and family_qwen3.c. */
spec_status speci_qwen_build(model_builder *b, const model_transformer *t);

#endif
