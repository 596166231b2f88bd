/* model_exec.c - what holds of every executor, whatever its kind. */
#include "models/exec.h"

void speci_exec_close(speci_exec *e)
{
    if (e) e->kind->close(e);
}

spec_status speci_exec_bytes(const spec_model *model, const speci_exec_params *p, spec_memory *out)
{
    speci_exec *e;
    SPEC_TRY(model->exec->open(&e, model, p));
    e->kind->memory(e, out);
    e->kind->close(e);
    return SPEC_OK;
}

spec_status speci_exec_warm(speci_exec *e, const speci_exec_input *in, int32_t n_in)
{
    return e->kind->warm ? e->kind->warm(e, in, n_in) : SPEC_OK;
}

int32_t speci_exec_n_recent(const speci_exec *e, int32_t slot) { return e->kind->n_recent ? e->kind->n_recent(e, slot) : 0; }

bool speci_exec_can_lag(const speci_exec *e, int32_t n_past, int32_t n_recent)
{
    return e->kind->can_lag ? e->kind->can_lag(e, n_past, n_recent) : n_recent == 0;
}

spec_status speci_exec_seq_bytes(speci_exec *e, int32_t slot, uint64_t *bytes)
{
    if (e->kind->seq_bytes) return e->kind->seq_bytes(e, slot, bytes);
    *bytes = e->kind->data_bytes(e, e->kind->n_past(e, slot), speci_exec_n_recent(e, slot));
    return SPEC_OK;
}

spec_status speci_exec_check_bytes(const speci_exec *e, int32_t n_past, int32_t n_recent, uint64_t bytes, const char *whose)
{
    const uint64_t expected = e->kind->data_bytes ? e->kind->data_bytes(e, n_past, n_recent) : bytes;
    if (bytes == expected) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of the %s's memory, expected %llu", (unsigned long long)bytes,
                      whose, (unsigned long long)expected);
}

spec_argmax_args speci_exec_argmax(const speci_exec *e, int32_t first_row, int32_t n_row)
{
    return (spec_argmax_args){ .logits = e->logits + (size_t)first_row * (size_t)e->n_logit, .ld = e->n_logit, .n_vocab = e->n_logit,
                               .n_row = n_row };
}
