/* net_shape.c - the sizes of an executor, from its model and what is asked of it. */
#include "models/net/net_mixer.h"

/* Rows of prefill passes. What the largest take is small beside the model: a sixteenth of its weights, or 64 MiB. None
 * is larger than the context asks for, which changes nothing of how prompts that fit it are cut. */
static void plan_chunks(net_shape *s, const spec_model *model, int32_t n_ctx, int32_t n_chunk)
{
    const spec_device_info *info = &model->backend->info;
    const size_t weights = (size_t)model->bytes_weights / 16, least = (size_t)64 << 20;
    const size_t room = weights > least ? weights : least;
    int32_t n = 1;
    while (n < SPEC_PREFILL_SIZES && info->prefill_rows[n] > 0) n++;
    while (n > 1 && ((n_ctx > 0 && info->prefill_rows[n - 2] >= n_ctx) || (n_chunk > 0 && info->prefill_rows[n - 1] > n_chunk) ||
                     speci_net_rows_bytes(model, info->prefill_rows[n - 1]) > room))
        n--;
    s->chunk_least = info->prefill_rows[0], s->chunk = info->prefill_rows[n - 1];
}

int32_t speci_net_n_short(const spec_model *m)
{
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) {
            const model_branch *b = &m->layers[i].branch[j];
            const int32_t n = b->mixer->n_short ? b->mixer->n_short(b) : 0;
            if (n > 0) return n;
        }
    return 0;
}

bool speci_net_is_long(const net_shape *s, int32_t n_short)
{
    return n_short > 0 && (s->n_ctx == 0 || s->n_ctx - 1 > n_short); /* the last token of a context is never fed */
}

net_shape speci_net_shape_of(const spec_model *model, const speci_exec_params *p)
{
    net_shape s = { .n_seq = p->n_seq, .n_node = p->n_node, .n_ctx = speci_model_attends(model) ? p->n_ctx : 0 };
    s.node_state = p->node_state, s.joint = p->joint, s.collapsed = p->collapsed;
    s.taps = p->taps, s.n_tap = p->n_tap;
    s.target = p->target;
    const int32_t n_path = s.n_node < SPEC_MAX_DEPTH + 1 ? s.n_node : SPEC_MAX_DEPTH + 1;
    s.n_cache = s.n_node + (s.joint ? n_path : 0);
    if (!p->recurrent && !p->node_state)
        s.n_recent_max = spec_recent_capacity(s.joint ? 0 : n_path, s.joint ? n_path : 0);
    if (s.n_recent_max > 0 && s.n_recent_max < 3 * SPEC_CHUNK) s.n_recent_max = 3 * SPEC_CHUNK; /* what net_settle.c fills */
    if (!speci_net_keeps(model, NET_RECENT, &s)) s.n_recent_max = 0;
    s.n_row_decode = s.n_seq * s.n_cache;
    plan_chunks(&s, model, p->n_ctx, p->n_chunk);
    /* A tree at the last position of the context still writes its nodes to slots behind it. A path in front of it lies
     * within the context. */
    s.n_page_seq = s.n_ctx ? (s.n_ctx + s.n_node + SPEC_PAGE - 1) / SPEC_PAGE : 0;
    s.n_page = s.n_page_seq * s.n_seq;
    return s;
}
