/* own_sequence.c - the slots of sequences, and when the engine hears of what became of them.
 *
 * The session's `begin` and `commit` cannot fail, an engine's can: both are told with the next call that can, as the device
 * applies a path with the next pass. */
#include <stdio.h>
#include <string.h>

#include "models/own/own.h"

spec_status speci_own_told(const own_exec *own, const char *callback, uint64_t n_failure, spec_status status)
{
    char whose[256];
    snprintf(whose, sizeof whose, "the model %.200s", own->base.model->path);
    return speci_callback_status(status, n_failure, callback, whose);
}

void speci_own_begin(speci_exec *exec, int32_t slot)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    s->live = true;
    s->known = s->broken = s->has_tree = false;
    s->n_past = s->n_path = s->n_fed = 0;
}

void speci_own_end(speci_exec *exec, int32_t slot)
{
    const own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    if (s->known) own->app->end(own->app->user_data, s->seq);
    s->live = s->known = false;
}

spec_status speci_own_check_live(const own_exec *own, int32_t slot)
{
    const own_seq *s = &own->seqs[slot];
    if (s->live && !s->broken) return SPEC_OK;
    return speci_fail(SPEC_E_STATE, "sequence slot %d cannot go on: %s", slot,
                      s->live ? "an earlier pass failed" : "it is empty");
}

static spec_status introduce(own_exec *own, own_seq *s)
{
    const uint64_t before = speci_n_failure();
    SPEC_TRY(speci_own_told(own, "begin", before, own->app->begin(own->app->user_data, &s->seq)));
    s->known = true;
    return SPEC_OK;
}

static spec_status end_tree(own_exec *own, own_seq *s)
{
    const uint64_t before = speci_n_failure();
    const spec_status status = own->app->commit(own->app->user_data, s->seq, s->path, s->n_path);
    s->broken = status == SPEC_E_DEVICE;
    SPEC_TRY(speci_own_told(own, "commit", before, status));
    s->has_tree = false;
    s->n_past += s->n_path;
    s->n_path = s->n_fed = 0;
    return SPEC_OK;
}

/* A tree that the engine was to forget before its path was known, since the sequence was copied or saved in between: it is scored
 * once more. */
static spec_status recall(own_exec *own, own_seq *s)
{
    const spec_model_tree again = { .seq = s->seq, .tree = &s->tree };
    const uint64_t before = speci_n_failure();
    const spec_status status = own->app->score(own->app->user_data, own->rows, &again, 1);
    s->broken = status == SPEC_E_DEVICE;
    s->has_tree = status == SPEC_OK;
    return speci_own_told(own, "score", before, status);
}

spec_status speci_own_ready(own_exec *own, int32_t slot)
{
    own_seq *s = &own->seqs[slot];
    SPEC_TRY(speci_own_check_live(own, slot));
    if (!s->known) SPEC_TRY(introduce(own, s));
    if (s->n_path > 0 && !s->has_tree) SPEC_TRY(recall(own, s));
    return s->has_tree ? end_tree(own, s) : SPEC_OK;
}

spec_status speci_own_flush(speci_exec *exec, int32_t slot) { return speci_own_ready(exec->state, slot); }

void speci_own_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    s->n_path = n_path > 0 ? n_path : 0;
    if (n_path > 0) memcpy(s->path, path, (size_t)n_path * sizeof *path);
    s->n_fed = 0;
}

void speci_own_break(speci_exec *exec, int32_t slot)
{
    own_exec *own = exec->state;
    own->seqs[slot].broken = true;
}

int32_t speci_own_n_past(const speci_exec *exec, int32_t slot)
{
    const own_exec *own = exec->state;
    const own_seq *s = &own->seqs[slot];
    return s->n_past + s->n_path;
}
