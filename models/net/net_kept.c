/* net_kept.c - what mixers declare that they keep: its sizes, its memory, and the walk over it. */
#include "models/net/net_mixer.h"

net_kept speci_net_kept_of(const spec_model *m, const model_branch *b, const net_shape *s)
{
    net_kept kept = { 0 };
    if (b->mixer->buffers) kept.n = b->mixer->buffers(kept.buffer, m, b, s);
    return kept;
}

size_t speci_net_slot_bytes(const net_buffer *b)
{
    return b->bytes * (size_t)b->n * (b->role == NET_KV ? SPEC_PAGE : b->halves ? 2 : 1);
}

void speci_net_take_kept(net_kept *kept, net_memory *memory, const net_shape *s)
{
    for (int32_t i = 0; i < kept->n; i++) {
        net_buffer *b = &kept->buffer[i];
        const size_t n = (size_t)(b->role == NET_KV ? s->n_page : s->n_seq);
        if (b->bytes > 0) b->base = net_take(b->role == NET_KV ? &memory->kv : &memory->state, n * speci_net_slot_bytes(b));
    }
}

bool speci_net_keeps(const spec_model *m, net_role role, const net_shape *s)
{
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) {
            const net_kept kept = speci_net_kept_of(m, &m->layers[i].branch[j], s);
            for (int32_t k = 0; k < kept.n; k++)
                if (kept.buffer[k].role == role && kept.buffer[k].bytes > 0) return true;
        }
    return false;
}

bool speci_model_attends(const spec_model *m) { return speci_net_keeps(m, NET_KV, &(net_shape){ 0 }); }

spec_status speci_net_each_buffer(const net_plans *plans, net_buffer_fn each, void *arg)
{
    for (int32_t i = 0; i < plans->n_kept; i++)
        for (int32_t k = 0; k < plans->kept[i].n; k++)
            if (plans->kept[i].buffer[k].bytes > 0) SPEC_TRY(each(arg, &plans->kept[i].buffer[k]));
    return SPEC_OK;
}

model_kept speci_model_kept(const spec_model *m)
{
    model_kept sum = { 0 };
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) {
            const net_kept kept = speci_net_kept_of(m, &m->layers[i].branch[j], &(net_shape){ 0 });
            for (int32_t k = 0; k < kept.n; k++) {
                const net_buffer *b = &kept.buffer[k];
                if (b->role == NET_STATE) sum.bytes_state += b->bytes;
                if (b->role == NET_CONV) sum.bytes_conv += b->bytes;
                if (b->role == NET_KV) sum.bytes_kv_token += b->bytes * (size_t)b->n;
            }
        }
    return sum;
}
