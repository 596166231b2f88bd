/* own_executor.c - an application's engine at work: opened, attached (which takes room for logits), closed. */
#include "models/own/own.h"

enum { PIECE = 512 /* tokens of a prompt between two looks at whether it is to be stopped */ };

static size_t n_rows(const own_exec *own) { return (size_t)own->n_seq * (size_t)own->n_node; }
static size_t logits_bytes(const own_exec *own)
{
    return n_rows(own) * (size_t)own->base.model->n_vocab * sizeof(float);
}

static spec_status check(const spec_model *m, const speci_exec_params *p)
{
    const char *const what = p->n_tap != 0 ? "it tells no hidden states" : p->joint ? "joint attainment is of layers" : NULL;
    if (!what) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "the model %s is an application's own: %s", m->path, what);
}

static spec_status alloc_host(own_exec *own)
{
    const size_t n_seq = (size_t)own->n_seq, n_node = (size_t)own->n_node;
    if (!(own->seqs = speci_alloc(own->a, n_seq, sizeof *own->seqs))) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n_seq; i++) {
        own_seq *s = &own->seqs[i];
        s->tree = (spec_tree){ .cap = own->n_node, .kind = SPEC_TREE_UNROLLED };
        if (!(s->path = speci_alloc(own->a, n_node, sizeof *s->path))) return SPEC_E_NOMEM;
        if (!(s->tree.token = speci_alloc(own->a, n_node, sizeof *s->tree.token))) return SPEC_E_NOMEM;
        if (!(s->tree.parent = speci_alloc(own->a, n_node, sizeof *s->tree.parent))) return SPEC_E_NOMEM;
    }
    if (!(own->shown = speci_alloc(own->a, n_seq, sizeof *own->shown))) return SPEC_E_NOMEM;
    if (!(own->base.first_row = speci_alloc(own->a, n_seq, sizeof(int32_t)))) return SPEC_E_NOMEM;
    if (!(own->nodes = speci_alloc(own->a, n_rows(own), sizeof *own->nodes))) return SPEC_E_NOMEM;
    return (own->grown = speci_alloc(own->a, n_rows(own), sizeof *own->grown)) ? SPEC_OK : SPEC_E_NOMEM;
}

spec_status speci_own_open(speci_exec **out, const spec_model *model, const speci_exec_params *p)
{
    *out = NULL;
    SPEC_TRY(check(model, p));
    own_exec *own = speci_alloc(model->allocator, 1, sizeof *own);
    if (!own) return SPEC_E_NOMEM;
    own->base = (speci_exec){ .kind = &speci_exec_own, .state = own, .model = model, .n_logit = speci_model_n_logit(model) };
    own->app = model->own;
    own->ops = model->backend->ops, own->dev = model->backend->dev, own->a = model->allocator;
    own->n_seq = p->n_seq, own->n_node = p->n_node;
    own->piece = p->n_chunk > 0 && p->n_chunk < PIECE ? p->n_chunk : PIECE;
    const spec_status status = alloc_host(own);
    if (status != SPEC_OK) {
        speci_own_close(&own->base);
        return status;
    }
    *out = &own->base;
    return SPEC_OK;
}

void speci_own_close(speci_exec *exec)
{
    own_exec *own = exec->state;
    for (int32_t i = 0; own->seqs && i < own->n_seq; i++) {
        own_seq *s = &own->seqs[i];
        speci_own_end(exec, i);
        speci_free(own->a, s->path);
        speci_free(own->a, s->tree.token);
        speci_free(own->a, s->tree.parent);
    }
    if (own->base.logits) own->ops->free(own->dev, own->base.logits, logits_bytes(own));
    void *arrays[] = { own->seqs, own->shown, own->base.first_row, own->nodes, own->grown, own->rows, own };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(own->a, arrays[i]);
}

/* The device runs no pass, but the row operations behind one: over so many rows. */
void speci_own_plans(const speci_exec *exec, spec_plan plans[2])
{
    plans[0] = plans[1] = (spec_plan){ .phase = SPEC_PHASE_DECODE };
    plans[0].n_row_max = (int32_t)n_rows(exec->state);
}

void speci_own_memory(const speci_exec *exec, spec_memory *out) { out->bytes_work += logits_bytes(exec->state); }

spec_status speci_own_attach(speci_exec *exec, spec_queue *queue, bool capture)
{
    own_exec *own = exec->state;
    void *at = NULL;
    (void)capture; /* no pass that could be */
    own->queue = queue;
    if (!(own->rows = speci_alloc(own->a, 1, logits_bytes(own)))) return SPEC_E_NOMEM;
    SPEC_TRY(own->ops->alloc(own->dev, &at, logits_bytes(own)));
    own->base.logits = at;
    return SPEC_OK;
}
