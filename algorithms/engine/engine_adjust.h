/* engine_adjust.h - penalties, biases and masks: the logits of every node of a tree, changed by the node's own path. Internal.
 *
 * A pass leaves the model's logits; before anything is decided by them, those of sequences whose requests say so are kept aside and
 * changed in place. Verification, arg-max and distributions then know nothing of it, and log-probabilities read what was kept. */
#ifndef SPEC_ENGINE_ADJUST_H
#define SPEC_ENGINE_ADJUST_H

#include "backends/backend.h"

struct engine_round;

/* What a sequence's request changes, and the tokens that it has counted. */
typedef struct engine_adjust {
    spec_mask_fn mask;
    void *mask_user_data;
    float repeat, presence, frequency; /* repeat 1, the others 0: off */
    int32_t window;                    /* penalties count so many last tokens; 0 = all */
    int32_t n_vocab;
    float *bias;                       /* [n_vocab] */
    int32_t *n_seen, *n_out;           /* [n_vocab] in the window: at all, and emitted */
    int32_t *entry;                    /* [n_vocab] number in `edits` plus one; 0 = it has none */
    spec_logit_edit *edits;            /* [n_edit] of all nodes, by ids [0, to) */
    int32_t n_edit;
    int32_t from, to;                  /* ids [from, to) are counted */
} engine_adjust;

/* What a session needs for it: taken when the first such request comes. */
typedef struct engine_adjuster {
    float *raw;        /* device [n_seq * n_node][n_vocab] the model's logits */
    void *room;        /* device: what the operation holds */
    size_t raw_bytes, room_bytes;
    speci_buf rows, edits, masks; /* of a pass */
} engine_adjuster;

/* NULL in *out: the request changes nothing. Errors: E_INVALID (a setting out of its range), E_NOMEM. */
spec_status speci_adjust_open(engine_adjust **out, spec_session *s, const spec_request *request);
spec_status speci_adjust_copy(engine_adjust **out, const spec_session *s, const engine_adjust *from);
void speci_adjust_close(const spec_session *s, engine_adjust *a);
/* What counts as emitted has changed: a prompt was appended. a may be NULL. */
void speci_adjust_recount(engine_adjust *a);
void speci_adjuster_close(spec_session *s);
/* Of a round with such requests: the logits of its parts, whose tokens are with the host; and the arg-max of those at temperature 0. */
spec_status speci_round_adjust(spec_session *s, struct engine_round *r);

#endif
