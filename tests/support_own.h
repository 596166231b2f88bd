/* support_own.h - a model of the library's as an application's own engine: a session of its own, driven by the public calls,
 * stands behind the callbacks of spec_model_ops. It holds the library to its word: what may follow what, and that all that
 * began has ended. And any callback can be told to fail. */
#ifndef SUPPORT_OWN_H
#define SUPPORT_OWN_H

#include "tests/support_model.h"

/* Callbacks that can fail. */
typedef enum own_call { OWN_BEGIN, OWN_PREFILL, OWN_SCORE, OWN_COMMIT, OWN_FORK, OWN_SAVE, OWN_RESTORE, OWN_N_CALL } own_call;

typedef struct own_engine {
    spec_session *inner;
    int32_t n_vocab;
    int32_t n_alive;           /* sequences that have begun and not ended */
    int32_t n_call[OWN_N_CALL];
    int32_t n_score;           /* calls of spec_score inside */
    int32_t n_again;           /* trees whose first nodes were scored before */
    int32_t most_trees;        /* of one call */
    int32_t n_close;
    /* The fail_at-th callback from now on fails, before it does anything; 0: none. */
    int32_t fail_at;
    spec_status fail_with;
    bool says_nothing;
    own_call failed;           /* which one did */
    void (*on_prefill)(void *arg); /* called by each prefill, may be NULL */
    void *arg;
    bool spoils;               /* score writes `spoil` where the logit of token 1 behind its last node belongs, */
    float spoil;
    bool spoils_all;           /* or where all of that row does */
    int32_t lies;              /* save adds so many bytes when it is called for the second time */
} own_engine;

/* An engine that runs `model`: at most n_seq sequences, trees of n_node nodes. */
void support_engine_open(own_engine *e, spec_model *model, int32_t n_seq, int32_t n_node);
/* Every sequence has ended. */
void support_engine_close(own_engine *e);
/* Its callbacks, all of them; identity 77. */
spec_model_ops support_engine_ops(own_engine *e);
/* The model made of them, on `be`. */
spec_model *support_engine_model(own_engine *e, spec_backend *be);
/* The sentence of a callback that was told to fail. */
#define OWN_SENTENCE "the engine was told to fail"

#endif
