/* model_own.c - the list of what a model owns on the device. */
#include "models/model.h"

typedef struct model_owned {
    struct model_owned *next;
    spec_weight *weight; /* one of the two */
    void *memory;
    size_t bytes;
} model_owned;

/* The entry is made first, so that nothing on the device is ever without one. */
static model_owned *new_owned(spec_model *m, size_t bytes)
{
    model_owned *o = speci_alloc(m->allocator, 1, sizeof *o);
    if (!o) return NULL;
    o->bytes = bytes;
    o->next = m->owned;
    m->owned = o;
    return o;
}

spec_status speci_model_own_weight(spec_model *m, const spec_weight **out, const spec_weight_desc *desc)
{
    const spec_backend *be = m->backend;
    model_owned *o = new_owned(m, 0);
    if (!o) return SPEC_E_NOMEM;
    SPEC_TRY(be->ops->weight_open(be->dev, &o->weight, desc));
    m->bytes_weights += be->ops->weight_bytes(be->dev, desc);
    *out = o->weight;
    return SPEC_OK;
}

spec_status speci_model_own_memory(spec_model *m, void **out, size_t bytes)
{
    const spec_backend *be = m->backend;
    model_owned *o = new_owned(m, bytes);
    if (!o) return SPEC_E_NOMEM;
    SPEC_TRY(be->ops->alloc(be->dev, &o->memory, bytes));
    m->bytes_weights += bytes;
    *out = o->memory;
    return SPEC_OK;
}

void speci_model_free_owned(spec_model *m)
{
    const spec_backend *be = m->backend;
    while (m->owned) {
        model_owned *o = m->owned;
        m->owned = o->next;
        if (o->weight) be->ops->weight_close(be->dev, o->weight);
        if (o->memory) be->ops->free(be->dev, o->memory, o->bytes);
        speci_free(m->allocator, o);
    }
}
