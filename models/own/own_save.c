/* own_save.c - a sequence as a whole: the engine copies, writes and reads it. */
#include "models/own/own.h"

spec_status speci_own_copy(speci_exec *exec, int32_t from, int32_t to)
{
    own_exec *own = exec->state;
    own_seq *f = &own->seqs[from], *t = &own->seqs[to];
    if (!own->app->fork)
        return speci_fail(SPEC_E_UNSUPPORTED, "the model %s cannot fork a sequence: it has no callback fork", exec->model->path);
    SPEC_TRY(speci_own_ready(own, from));
    const uint64_t before = speci_n_failure();
    const spec_status status = own->app->fork(own->app->user_data, &t->seq, f->seq);
    f->broken = status == SPEC_E_DEVICE;
    SPEC_TRY(speci_own_told(own, "fork", before, status));
    void *const seq = t->seq;
    speci_own_begin(exec, to);
    t->seq = seq, t->known = true;
    t->n_past = f->n_past;
    return SPEC_OK;
}

/* A model that has identity, as the library knows it, has both callbacks. */
static spec_status check_saves(const own_exec *own)
{
    if (own->base.model->fingerprint != 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "the model %s cannot save or restore a sequence: it has no %s", own->base.model->path,
                      own->app->save ? "identity" : "callbacks save and restore");
}

static spec_status save(own_exec *own, own_seq *s, speci_app_writer *w)
{
    const uint64_t before = speci_n_failure();
    const spec_status status = own->app->save(own->app->user_data, s->seq, speci_app_write, w);
    if (w->status != SPEC_OK) return w->status;
    s->broken = status == SPEC_E_DEVICE;
    return speci_own_told(own, "save", before, status);
}

spec_status speci_own_seq_bytes(speci_exec *exec, int32_t slot, uint64_t *bytes)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    speci_app_writer w = { 0 };
    SPEC_TRY(check_saves(own));
    SPEC_TRY(save(own, s, &w));
    *bytes = s->n_saved = w.n;
    return SPEC_OK;
}

spec_status speci_own_write(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    speci_app_writer w = { .put = put, .arg = arg };
    SPEC_TRY(save(own, s, &w));
    if (w.n == s->n_saved) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "the model %s saved %llu bytes, and %llu when asked again", exec->model->path,
                      (unsigned long long)s->n_saved, (unsigned long long)w.n);
}

/* No token is behind its states: it cannot lag. */
spec_status speci_own_read(speci_exec *exec, int32_t slot, const speci_exec_saved *saved, speci_get_fn get, void *arg)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    speci_app_reader r = { .whose = "model", .left = saved->bytes, .get = get, .arg = arg };
    SPEC_TRY(check_saves(own));
    speci_own_begin(exec, slot);
    const uint64_t before = speci_n_failure();
    const spec_status status =
        speci_own_told(own, "restore", before, own->app->restore(own->app->user_data, &s->seq, speci_app_read, &r));
    s->known = status == SPEC_OK;
    s->n_past = saved->n_past;
    return speci_app_read_end(&r, status);
}
