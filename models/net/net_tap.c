/* net_tap.c - hidden-state taps: rows of a pass that are kept for whoever asked, one operation and one tensor each. */
#include "models/net/net_mixer.h"

#include <string.h>

static spec_status check(const spec_tap *taps, int32_t n, int32_t n_layer)
{
    if (n < 0 || (n > 0 && !taps)) return speci_fail(SPEC_E_INVALID, "a list of %d taps%s", n, taps ? "" : ", which is NULL");
    for (int32_t i = 0; i < n; i++) {
        const spec_tap *t = &taps[i];
        const int32_t most = t->where == SPEC_TAP_LAYER ? n_layer - 1 : 0;
        if (t->where < SPEC_TAP_LAYER || t->where > SPEC_TAP_NORM || t->layer < 0 || t->layer > most)
            return speci_fail(SPEC_E_INVALID, "tap %d: there is no place %d, layer %d in a model of %d layers", i, t->where,
                              t->layer, n_layer);
    }
    return SPEC_OK;
}

spec_status speci_net_open_taps(net_exec *net)
{
    net_shape *s = &net->shape;
    SPEC_TRY(check(s->taps, s->n_tap, net->base.model->n_layer));
    if (s->n_tap == 0) return SPEC_OK;
    const size_t n = (size_t)s->n_tap;
    if (!(net->taps = speci_alloc(net->a, n, sizeof *net->taps))) return SPEC_E_NOMEM;
    memcpy(net->taps, s->taps, n * sizeof *net->taps);
    s->taps = net->taps;
    for (int i = 0; i < 2; i++)
        if (!(net->plans.taps[i] = speci_alloc(net->a, n, sizeof(spec_view)))) return SPEC_E_NOMEM;
    return SPEC_OK;
}

void speci_net_close_taps(net_exec *net)
{
    for (int i = 0; i < 2; i++) speci_free(net->a, net->plans.taps[i]);
    speci_free(net->a, net->taps);
}

/* A phase has rows of its own: what a decode pass kept is still wanted while another sequence's prompt is applied. */
void speci_net_take_taps(net_emitter *e)
{
    const net_shape *s = e->shape;
    for (int32_t i = 0; i < s->n_tap; i++) {
        const spec_dtype type = s->taps[i].where == SPEC_TAP_NORM ? e->model->dtype : SPEC_DTYPE_F32;
        e->plans->taps[SPEC_PHASE_DECODE][i] = speci_net_tensor(e, s->n_row_decode, e->model->dim, type);
        e->plans->taps[SPEC_PHASE_PREFILL][i] = speci_net_tensor(e, s->chunk, e->model->dim, type);
    }
}

void speci_net_emit_keep(net_emitter *e, int32_t where, int32_t layer, spec_view x)
{
    for (int32_t i = 0; i < e->shape->n_tap; i++) {
        const spec_tap *tap = &e->shape->taps[i];
        if (tap->where != where || (where == SPEC_TAP_LAYER && tap->layer != layer)) continue;
        speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_KEEP, .head = 1,
                                        .u.keep = { .dim = e->model->dim, .x = x, .y = e->plans->taps[e->phase][i] } });
    }
}

bool speci_net_has_tap(const net_shape *s, int32_t where)
{
    for (int32_t i = 0; i < s->n_tap; i++)
        if (s->taps[i].where == where) return true;
    return false;
}

spec_view speci_net_tap(const speci_exec *exec, int32_t phase, int32_t tap)
{
    const net_exec *net = exec->state;
    return net->plans.taps[phase][tap];
}
