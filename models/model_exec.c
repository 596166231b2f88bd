/* model_exec.c - a model at work in a session, whatever its kind: each call goes to the hook of its name. */
#include "models/exec.h"

bool speci_exec_waits(const spec_model *model) { return model->exec->waits; }

spec_status speci_exec_open(speci_exec **out, const spec_model *model, const speci_exec_params *p)
{
    return model->exec->open(out, model, p);
}

void speci_exec_close(speci_exec *e)
{
    if (e) e->kind->close(e);
}

void speci_exec_plans(const speci_exec *e, spec_plan plans[2]) { e->kind->plans(e, plans); }
void speci_exec_memory(const speci_exec *e, spec_memory *out) { e->kind->memory(e, out); }

spec_status speci_exec_bytes(const spec_model *model, const speci_exec_params *p, spec_memory *out)
{
    speci_exec *e;
    SPEC_TRY(speci_exec_open(&e, model, p));
    speci_exec_memory(e, out);
    speci_exec_close(e);
    return SPEC_OK;
}

spec_status speci_exec_attach(speci_exec *e, spec_queue *queue, bool capture) { return e->kind->attach(e, queue, capture); }

/* --- sequences --- */

void speci_exec_begin(speci_exec *e, int32_t slot) { e->kind->begin(e, slot); }
void speci_exec_end(speci_exec *e, int32_t slot) { e->kind->end(e, slot); }

spec_status speci_exec_prefill(speci_exec *e, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks)
{
    return e->kind->prefill(e, slot, ids, n, hooks);
}

spec_status speci_exec_forward(speci_exec *e, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                               const speci_exec_tokens *tokens)
{
    return e->kind->forward(e, in, n_in, feed, tokens);
}

spec_status speci_exec_forward_part(speci_exec *e, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                    const speci_exec_feed *feed)
{
    return e->kind->forward_part(e, part, in, n_in, feed);
}

spec_status speci_exec_warm(speci_exec *e, int32_t slot, const spec_tree *tree)
{
    return e->kind->warm ? e->kind->warm(e, slot, tree) : SPEC_OK;
}

void speci_exec_commit(speci_exec *e, int32_t slot, const int32_t *path, int32_t n_path)
{
    e->kind->commit(e, slot, path, n_path);
}

void speci_exec_break(speci_exec *e, int32_t slot) { e->kind->break_seq(e, slot); }
spec_status speci_exec_flush(speci_exec *e, int32_t slot) { return e->kind->flush(e, slot); }
int32_t speci_exec_n_past(const speci_exec *e, int32_t slot) { return e->kind->n_past(e, slot); }
int32_t speci_exec_n_recent(const speci_exec *e, int32_t slot) { return e->kind->n_recent ? e->kind->n_recent(e, slot) : 0; }

/* --- sequences as a whole --- */

spec_status speci_exec_copy(speci_exec *e, int32_t from, int32_t to) { return e->kind->copy(e, from, to); }

bool speci_exec_can_lag(const speci_exec *e, int32_t n_past, int32_t n_recent)
{
    return e->kind->can_lag ? e->kind->can_lag(e, n_past, n_recent) : n_recent == 0;
}

uint64_t speci_exec_data_bytes(const speci_exec *e, int32_t n_past, int32_t n_recent)
{
    return e->kind->data_bytes(e, n_past, n_recent);
}

spec_status speci_exec_seq_bytes(speci_exec *e, int32_t slot, uint64_t *bytes)
{
    if (e->kind->seq_bytes) return e->kind->seq_bytes(e, slot, bytes);
    *bytes = e->kind->data_bytes(e, speci_exec_n_past(e, slot), speci_exec_n_recent(e, slot));
    return SPEC_OK;
}

spec_status speci_exec_check_bytes(const speci_exec *e, int32_t n_past, int32_t n_recent, uint64_t bytes, const char *whose)
{
    const uint64_t expected = e->kind->data_bytes ? e->kind->data_bytes(e, n_past, n_recent) : bytes;
    if (bytes == expected) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of the %s's memory, expected %llu", (unsigned long long)bytes,
                      whose, (unsigned long long)expected);
}

spec_status speci_exec_write(speci_exec *e, int32_t slot, speci_put_fn put, void *arg)
{
    return e->kind->write(e, slot, put, arg);
}

spec_status speci_exec_read(speci_exec *e, int32_t slot, int32_t n_past, int32_t n_recent, uint64_t bytes, speci_get_fn get,
                            void *arg)
{
    return e->kind->read(e, slot, n_past, n_recent, bytes, get, arg);
}

/* --- what a pass gave --- */

int32_t speci_exec_first_row(const speci_exec *e, int32_t k) { return e->first_row[k]; }

float *speci_exec_logits(const speci_exec *e, int32_t *ld)
{
    *ld = e->n_logit;
    return e->logits;
}

spec_view speci_exec_given(const speci_exec *e, int32_t tap) { return e->kind->given(e, tap); }

spec_view speci_exec_tap(const speci_exec *e, int32_t phase, int32_t tap) { return e->kind->tap(e, phase, tap); }

spec_argmax_args speci_argmax_of(const float *logits, int32_t n_logit, int32_t first_row, int32_t n_row)
{
    return (spec_argmax_args){ .logits = logits + (size_t)first_row * (size_t)n_logit, .ld = n_logit, .n_vocab = n_logit,
                               .n_row = n_row };
}

spec_argmax_args speci_exec_argmax(const speci_exec *e, int32_t first_row, int32_t n_row)
{
    return speci_argmax_of(e->logits, e->n_logit, first_row, n_row);
}
