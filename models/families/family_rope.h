/* family_rope.h - rotary positions from config.json: old and new spellings, and the scalings that only change the
 * frequencies and the scale of scores. Internal. */
#ifndef SPEC_MODEL_ROPE_H
#define SPEC_MODEL_ROPE_H

#include "models/files/files_config.h"

#define MODEL_ROPE_DIVIDED_NAME "divided" /* as rope_type; files of transformers have no such type */

typedef enum model_rope_type {
    MODEL_ROPE_DEFAULT, MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3, MODEL_ROPE_YARN, MODEL_ROPE_LONGROPE,
    MODEL_ROPE_DIVIDED, /* each frequency by a number of its own: what GGUF files make of llama3 */
    MODEL_ROPE_DYNAMIC /* up to max_position_embeddings, where it is as default. Beyond, frequencies change with each token */
} model_rope_type;

typedef struct model_rope {
    model_rope_type type;
    double theta;
    double partial; /* the share of a head that turns */
    double factor;                               /* linear, llama3, yarn; longrope: by how much it prolongs */
    double low_freq_factor, high_freq_factor;    /* llama3 */
    double original_max_position;                /* llama3, yarn, longrope */
    double beta_fast, beta_slow;                 /* yarn: turns in the original length */
    bool truncate;                               /* yarn: the bounds of the ramp are whole dimensions */
    double attention_factor;                     /* yarn, longrope: of queries and of keys; 0 otherwise, which stands for 1 */
    const json_t *short_factor, *long_factor;    /* longrope: divisors of the frequencies, in config.json; divided: the first alone */
} model_rope;

/* How a family spells and defaults the top-level keys. */
typedef struct model_rope_keys {
    const char *theta;        /* "rope_theta" */
    const char *partial;      /* "partial_rotary_factor" */
    double theta_default;     /* 0: 10000 */
    double partial_default;
    bool partial_top_counts;  /* the top-level key is honoured; else it may only repeat what holds anyway */
    bool whole_head;          /* the family turns whole heads: anything else is refused */
    const char *sliding_theta; /* of speci_rope_read_two: "rope_local_base_freq"; NULL: the base is the other layers' */
    double sliding_default;    /* of that key; 0: the other layers' base */
    int32_t original_default; /* of the top-level original_max_position_embeddings, for longrope; 0: none */
} model_rope_keys;

spec_status speci_rope_read(model_config *c, model_rope *out, const model_rope_keys *keys);
/* Of a family whose layers with a window turn otherwise: rope_parameters has an object for each kind of layer; or the keys are as
 * ever, and layers with a window turn by keys->sliding_theta, without a scaling. */
spec_status speci_rope_read_two(model_config *c, model_rope *full, model_rope *sliding, const model_rope_keys *keys);
const char *speci_rope_type_name(const model_rope *rope);
/* Dimensions of a head that turn: int(head_dim * partial), which must be even. */
spec_status speci_rope_dims(const model_rope *rope, int32_t *n_rot, int32_t head_dim, const char *file);
/* Queries and keys each have the attention factor where they turn: what scores are multiplied by, if whole heads turn, else the
 * dimensions that do. */
void speci_rope_gains(const model_rope *rope, double *score, double *turned, int32_t n_rot, int32_t head_dim);
/* The context of a model whose config says n_ctx: the positions that a scaling is made for, since files keep the length before it. */
int32_t speci_rope_context(const model_rope *rope, int32_t n_ctx);
/* freq [n_rot / 2]: radians per position. */
spec_status speci_rope_frequencies(const model_rope *rope, float *freq, int32_t n_rot, const char *file);
/* The longest sequences that those are for, and the frequencies of longer ones, of all their positions; 0: all lengths. */
int32_t speci_rope_short_length(const model_rope *rope);
spec_status speci_rope_long_frequencies(const model_rope *rope, float *freq, int32_t n_rot, const char *file);

#endif
