/* net_plan.c - a model's layers as a list of operations.
 *
 * speci_net_emit runs twice: first with nothing to write to, which counts operations and measures memory, then for real.
 * Tensors are reused from layer to layer. Between operations: the residual, projections and time steps are f32,
 * whatever a product will read is of the compute type. */
#include "models/net/net.h"

static size_t align_up(size_t n) { return (n + 255) & ~(size_t)255; }

void *speci_net_take(net_arena *arena, size_t bytes)
{
    void *p = arena->base ? arena->base + arena->n : NULL;
    arena->n += align_up(bytes);
    return p;
}

static size_t type_bytes(spec_dtype t) { return t == SPEC_DTYPE_BF16 || t == SPEC_DTYPE_F16 ? 2 : 4; }

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

static bool has_branch(const spec_model *m, bool (*is)(const model_branch *b))
{
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++)
            if (is(&m->layers[i].branch[j])) return true;
    return false;
}

static bool attends(const model_branch *b) { return b->kind == MODEL_ATTENTION; }

/* Chunked scans need one decay per head. */
static bool can_window(const model_branch *b) { return b->kind == MODEL_MAMBA && !b->u.mamba.a_per_state; }

bool speci_model_attends(const spec_model *m) { return has_branch(m, attends); }

/* The widest row of each tensor over all layers. */
typedef struct widths {
    int32_t n_norm;   /* normed inputs that live at once: the branches of a parallel layer */
    int32_t projection, channel, select, dt, scan, mixed;
} widths;

static void widen(widths *w, const model_branch *b)
{
    if (b->kind == MODEL_ATTENTION) {
        const model_attention *a = &b->u.attention;
        w->projection = max32(w->projection, a->qkv.n_out);
        w->mixed = max32(w->mixed, a->n_head * a->head_dim);
    } else if (b->kind == MODEL_MAMBA) {
        const model_mamba *a = &b->u.mamba;
        w->projection = max32(w->projection, a->in.n_out);
        w->channel = max32(w->channel, a->n_channel);
        w->mixed = max32(w->mixed, a->n_head * a->head_dim);
        if (a->select.w) w->select = max32(w->select, a->select.n_out), w->dt = max32(w->dt, a->n_head);
        if (a->has_norm) w->scan = max32(w->scan, a->n_head * a->head_dim);
    } else {
        w->mixed = max32(w->mixed, b->u.mlp.n_inner);
    }
}

static widths widths_of(const spec_model *m)
{
    widths w = { .n_norm = 1 };
    for (int32_t i = 0; i < m->n_layer; i++) {
        const model_layer *l = &m->layers[i];
        if (l->parallel) w.n_norm = max32(w.n_norm, l->n_branch);
        for (int32_t j = 0; j < l->n_branch; j++) widen(&w, &l->branch[j]);
    }
    return w;
}

/* --- tensors --- */

typedef struct emitter {
    net_plans *plans;
    net_memory *memory;
    const spec_model *model;
    const net_shape *shape;
    spec_view residual, normed[MODEL_MAX_BRANCH], projection, conv, select, dt, scan, mixed;
    float *normed_squares[MODEL_MAX_BRANCH], *mixed_squares; /* of deferred norms */
    void *replay;
    int32_t phase; /* of the plan being emitted */
} emitter;

static spec_view tensor(emitter *e, int32_t rows, int32_t cols, spec_dtype type)
{
    spec_view v = { .dtype = type, .ld = cols };
    if (cols > 0) v.data = speci_net_take(&e->memory->work, (size_t)rows * (size_t)cols * type_bytes(type));
    return v;
}

/* float16 would lose what is much larger or smaller than the rows' usual values. */
static bool defers(const spec_model *m)
{
    return m->dtype == SPEC_DTYPE_BF16 && m->dim <= m->backend->info.defer_norms;
}

static float *squares(emitter *e, int32_t rows, int32_t cols)
{
    return tensor(e, rows, defers(e->model) ? cols / SPEC_SQUARES : 0, SPEC_DTYPE_F32).data;
}

/* What every row of a pass has. */
static void take_rows(emitter *e, int32_t rows)
{
    const spec_model *m = e->model;
    const widths w = widths_of(m);
    e->residual = tensor(e, rows, m->dim, SPEC_DTYPE_F32);
    for (int32_t i = 0; i < w.n_norm; i++) {
        e->normed[i] = tensor(e, rows, m->dim, m->dtype);
        e->normed_squares[i] = squares(e, rows, m->dim);
    }
    e->projection = tensor(e, rows, w.projection, SPEC_DTYPE_F32);
    e->conv = tensor(e, rows, w.channel, m->dtype);
    e->select = tensor(e, rows, w.select, m->dtype);
    e->dt = tensor(e, rows, w.dt, SPEC_DTYPE_F32);
    e->scan = tensor(e, rows, w.scan, SPEC_DTYPE_F32);
    e->mixed = tensor(e, rows, w.mixed, m->dtype);
    e->mixed_squares = squares(e, rows, w.scan);
}

static void take_tensors(emitter *e)
{
    const spec_model *m = e->model;
    const size_t n_row = (size_t)e->shape->n_row_decode;
    take_rows(e, max32(e->shape->n_row_decode, e->shape->chunk));
    e->replay = speci_net_take(&e->memory->work, n_row * 2 * (size_t)widths_of(m).channel * type_bytes(m->dtype));
    e->plans->logits = speci_net_take(&e->memory->work, n_row * (size_t)m->n_vocab * sizeof(float));
    e->plans->best = e->shape->best ? speci_net_take(&e->memory->work, n_row * sizeof(uint64_t)) : NULL;
}

/* --- taps --- */

static spec_view tap_memory(emitter *e, const spec_tap *tap, int32_t rows)
{
    return tensor(e, rows, e->model->dim, tap->where == SPEC_TAP_NORM ? e->model->dtype : SPEC_DTYPE_F32);
}

/* A phase has rows of its own: what a decode pass kept is still wanted while another sequence's prompt is applied. */
static void take_taps(emitter *e)
{
    const net_shape *s = e->shape;
    for (int32_t i = 0; i < s->n_tap; i++) {
        const spec_view decode = tap_memory(e, &s->taps[i], s->n_row_decode), prefill = tap_memory(e, &s->taps[i], s->chunk);
        if (!e->plans->taps[0]) continue;
        e->plans->taps[SPEC_PHASE_DECODE][i] = decode, e->plans->taps[SPEC_PHASE_PREFILL][i] = prefill;
    }
}

static bool has_tap(const emitter *e, int32_t where)
{
    for (int32_t i = 0; i < e->shape->n_tap; i++)
        if (e->shape->taps[i].where == where) return true;
    return false;
}

/* --- shapes --- */

static size_t rows_bytes(const spec_model *model, int32_t rows)
{
    net_memory memory = { 0 };
    emitter e = { .memory = &memory, .model = model };
    take_rows(&e, rows);
    return memory.work.n;
}

/* Rows of prefill passes. What the largest take is small beside the model: a sixteenth of its weights, or 64 MiB. None
 * is larger than the context asks for, which changes nothing of how prompts that fit it are cut. */
static void plan_chunks(net_shape *s, const spec_model *model, int32_t n_ctx)
{
    const spec_device_info *info = &model->backend->info;
    const size_t weights = (size_t)model->bytes_weights / 16, least = (size_t)64 << 20;
    const size_t room = weights > least ? weights : least;
    s->chunk = s->chunk_least = info->prefill_chunk;
    if (info->prefill_least <= 0) return;
    while (s->chunk_least % 2 == 0 && s->chunk_least / 2 >= info->prefill_least) s->chunk_least /= 2;
    while (s->chunk > s->chunk_least && ((n_ctx > 0 && s->chunk / 2 >= n_ctx) || rows_bytes(model, s->chunk) > room))
        s->chunk /= 2;
}

net_shape speci_net_shape_of(const spec_model *model, const speci_exec_params *p)
{
    net_shape s = { .n_seq = p->n_seq, .n_node = p->n_node, .n_ctx = speci_model_attends(model) ? p->n_ctx : 0 };
    s.node_state = p->node_state, s.joint = p->joint;
    s.best = p->best && model->backend->info.row_best;
    s.taps = p->taps, s.n_tap = p->n_tap;
    const int32_t n_path = min32(s.n_node, SPEC_MAX_DEPTH + 1);
    s.n_cache = s.n_node + (s.joint ? n_path : 0);
    if (has_branch(model, can_window) && !p->recurrent && !p->node_state)
        s.n_recent_max = spec_recent_capacity(s.joint ? 0 : n_path, s.joint ? n_path : 0);
    s.n_row_decode = s.n_seq * s.n_cache;
    plan_chunks(&s, model, p->n_ctx);
    /* A tree at the last position of the context still writes its nodes to slots behind it. A path in front of it lies
     * within the context. */
    s.n_page_seq = s.n_ctx ? (s.n_ctx + s.n_node + SPEC_PAGE - 1) / SPEC_PAGE : 0;
    s.n_page = s.n_page_seq * s.n_seq;
    return s;
}

/* The columns [col, ...) of a tensor, as rows of `cols` for a tensor that is narrower than its widest use. */
static spec_view columns(spec_view v, int32_t col)
{
    if (v.data) v.data = (char *)v.data + (size_t)col * type_bytes(v.dtype);
    return v;
}
static spec_view packed(spec_view v, int32_t cols)
{
    v.ld = cols;
    return v;
}

/* --- operations --- */

static void emit(emitter *e, spec_op op)
{
    spec_op *ops = e->plans->ops[e->phase];
    if (ops) ops[e->plans->n_op[e->phase]] = op;
    e->plans->n_op[e->phase]++;
}

/* Rows x, which are those of `where`, are kept for every tap there. */
static void emit_keep(emitter *e, int32_t where, int32_t layer, spec_view x)
{
    for (int32_t i = 0; i < e->shape->n_tap; i++) {
        const spec_tap *tap = &e->shape->taps[i];
        if (tap->where != where || (where == SPEC_TAP_LAYER && tap->layer != layer)) continue;
        const spec_view y = e->plans->taps[e->phase] ? e->plans->taps[e->phase][i] : (spec_view){ 0 };
        emit(e, (spec_op){ .kind = SPEC_OP_KEEP, .u.keep = { .dim = e->model->dim, .x = x, .y = y } });
    }
}

/* What a product reads. */
typedef struct product_input {
    spec_view x;
    const float *squares; /* of the deferred norm that made it, or NULL */
    float eps;
} product_input;

/* Prefill's library products have nothing behind their sums that a factor could be put in. */
static bool can_defer(const emitter *e, const model_norm *n, int32_t norm_first)
{
    return defers(e->model) && e->phase == SPEC_PHASE_DECODE && n->kind == SPEC_NORM_RMS && n->n_group == 1 && !n->bias &&
           !norm_first && n->dim % SPEC_SQUARES == 0;
}

static product_input emit_norm(emitter *e, const model_norm *n, spec_view x, spec_view gate, int32_t norm_first, spec_view y,
                               float *squares_of_y)
{
    float *const s = can_defer(e, n, norm_first) ? squares_of_y : NULL;
    emit(e, (spec_op){ .kind = SPEC_OP_NORM,
                       .u.norm = { .kind = n->kind, .dim = n->dim, .n_group = n->n_group, .eps = n->eps,
                                   .weight = n->weight, .bias = n->bias, .x = x, .gate = gate,
                                   .norm_first = norm_first, .y = y, .squares = s } });
    return (product_input){ y, s, n->eps };
}

/* The residual's. */
static product_input emit_input(emitter *e, const model_norm *n, int32_t branch)
{
    return emit_norm(e, n, e->residual, (spec_view){ 0 }, 0, e->normed[branch], e->normed_squares[branch]);
}

static void emit_linear(emitter *e, const model_linear *l, product_input in, spec_view y, spec_linear_args extra)
{
    extra.w = l->w, extra.n_in = l->n_in, extra.n_out = l->n_out, extra.bias = l->bias;
    extra.x = in.x, extra.squares = in.squares, extra.eps = in.eps, extra.y = y;
    if (extra.scale == 0.0f) extra.scale = 1.0f;
    emit(e, (spec_op){ .kind = SPEC_OP_LINEAR, .u.linear = extra });
}

/* y = residual += scale * W x */
static void emit_out(emitter *e, const model_linear *l, product_input in, float scale)
{
    emit_linear(e, l, in, e->residual, (spec_linear_args){ .add = 1, .scale = scale });
}

static void emit_attention(emitter *e, const model_attention *a, const spec_kv *kv, product_input in, float scale)
{
    const int32_t n_qkv = (a->n_head + 2 * a->n_kv_head) * a->head_dim;
    const spec_view qkv = packed(e->projection, n_qkv), y = packed(e->mixed, a->n_head * a->head_dim);
    emit_linear(e, &a->qkv, in, qkv, (spec_linear_args){ 0 });
    emit(e, (spec_op){ .kind = SPEC_OP_ROPE_KV,
                       .u.rope_kv = { .qkv = qkv, .n_head = a->n_head, .q_norm = a->q_norm, .k_norm = a->k_norm,
                                      .eps = a->qk_eps, .inv_freq = a->inv_freq, .n_rot = a->n_rot, .kv = *kv } });
    emit(e, (spec_op){ .kind = SPEC_OP_ATTENTION,
                       .u.attention = { .q = qkv, .n_head = a->n_head, .scale = a->scale, .window = a->window,
                                        .kv = *kv, .y = y } });
    emit_out(e, &a->out, (product_input){ .x = y }, scale);
}

/* A recurrent layer's memory, [n_seq] slots each. */
typedef struct recurrent_memory {
    float *state, *cache_dt, *node_state, *recent_dt;
    void *window, *cache_u, *cache_b, *recent_x, *recent_b;
} recurrent_memory;

static void *take_slots(emitter *e, size_t bytes_slot, bool zeroed)
{
    void *p = speci_net_take(&e->memory->state, bytes_slot * (size_t)e->shape->n_seq);
    if (zeroed) {
        if (e->plans->slot_memory)
            e->plans->slot_memory[e->plans->n_slot_memory] = (net_slot_memory){ p, bytes_slot };
        e->plans->n_slot_memory++;
    }
    return p;
}

/* Entries of the scan's rings; 0: it is recurrent. */
static int32_t ring_of(const emitter *e, const model_mamba *a) { return a->a_per_state ? 0 : e->shape->n_recent_max; }

static recurrent_memory take_recurrent(emitter *e, const model_mamba *a)
{
    const size_t t = type_bytes(e->model->dtype), node = 2 * (size_t)e->shape->n_cache;
    const size_t state = (size_t)a->n_head * (size_t)a->head_dim * (size_t)a->n_state * sizeof(float);
    const size_t b = (size_t)spec_scan_columns(a->n_head, a->b_rep, a->n_state);
    recurrent_memory r = { 0 };
    r.state = take_slots(e, state, true);
    if (e->shape->node_state) r.node_state = take_slots(e, (size_t)e->shape->n_cache * state, false);
    if (ring_of(e, a) > 0) {
        const size_t n = (size_t)ring_of(e, a);
        r.recent_x = take_slots(e, n * (size_t)spec_scan_columns(a->n_head, a->x_rep, a->head_dim) * t, true);
        r.recent_b = take_slots(e, n * b * t, true);
        r.recent_dt = take_slots(e, n * (size_t)a->n_head * sizeof(float), true);
    }
    r.window = take_slots(e, 2 * (size_t)(a->width - 1) * (size_t)a->n_channel * t, true);
    r.cache_u = take_slots(e, node * (size_t)a->n_channel * t, false);
    r.cache_dt = take_slots(e, node * (size_t)a->n_head * sizeof(float), false);
    if (a->select.w)
        r.cache_b = take_slots(e, node * b * t, false);
    return r;
}

static void emit_mamba(emitter *e, const model_mamba *a, const recurrent_memory *r, product_input input, float scale)
{
    const spec_dtype type = e->model->dtype;
    const int32_t inner = a->n_head * a->head_dim;
    const spec_view in = packed(e->projection, a->in.n_out), conv = packed(e->conv, a->n_channel);
    const spec_view y = packed(e->mixed, inner), z = columns(in, a->col_z);
    const spec_view scanned = packed(e->scan, inner);
    const bool selective = a->select.w != NULL;

    emit_linear(e, &a->in, input, in, (spec_linear_args){ 0 });
    emit(e, (spec_op){ .kind = SPEC_OP_CONV,
                       .u.conv = { .u = columns(in, a->col_u), .n_channel = a->n_channel, .width = a->width,
                                   .weight = a->conv_weight, .bias = a->conv_bias, .dtype = type,
                                   .window = r->window, .cache = r->cache_u, .replay_y = e->replay,
                                   .n_node = e->shape->n_cache, .y = conv } });
    spec_scan_args s = { .n_head = a->n_head, .head_dim = a->head_dim, .n_state = a->n_state, .x_rep = a->x_rep,
                         .b_rep = a->b_rep, .c_rep = a->c_rep, .a = a->a, .a_per_state = a->a_per_state, .d = a->d,
                         .dt_bias = a->dt_bias, .dt_min = a->dt_min, .dt_max = a->dt_max,
                         .x = columns(conv, a->x_col), .dtype = type, .replay_y = e->replay,
                         .replay_ld = a->n_channel, .replay_x_col = a->x_col, .replay_b_col = a->b_col,
                         .b_in_conv = !selective, .state = r->state, .cache_dt = r->cache_dt, .cache_b = r->cache_b,
                         .n_node = e->shape->n_cache, .node_state = r->node_state, .n_recent_max = ring_of(e, a),
                         .chunk = ring_of(e, a) > 0 ? SPEC_CHUNK : 0, .recent_x = r->recent_x,
                         .recent_b = r->recent_b, .recent_dt = r->recent_dt };
    if (selective) {
        const spec_view select = packed(e->select, a->select.n_out), dt = packed(e->dt, a->n_head);
        emit_linear(e, &a->select, (product_input){ .x = conv }, select, (spec_linear_args){ 0 });
        emit_linear(e, &a->dt, (product_input){ .x = select }, dt, (spec_linear_args){ 0 });
        s.b = columns(select, a->dt_rank), s.c = columns(select, a->dt_rank + a->n_state), s.dt = dt;
    } else {
        s.b = columns(conv, a->b_col), s.c = columns(conv, a->c_col), s.dt = columns(in, a->col_dt);
    }
    /* Where the gate comes before the norm, the scan applies it: many blocks there, few in a norm of few rows. */
    const bool gate_late = a->has_norm && a->norm_first;
    if (!gate_late) s.z = z;
    s.y = a->has_norm ? scanned : y;
    emit(e, (spec_op){ .kind = SPEC_OP_SCAN, .u.scan = s });
    product_input mixed = { .x = y };
    if (a->has_norm)
        mixed = emit_norm(e, &a->norm, scanned, gate_late ? z : (spec_view){ 0 }, gate_late, y, e->mixed_squares);
    emit_out(e, &a->out, mixed, scale);
}

static void emit_mlp(emitter *e, const model_mlp *m, product_input in, float scale)
{
    const spec_view inner = packed(e->mixed, m->n_inner);
    emit_linear(e, &m->up, in, inner, (spec_linear_args){ .act = m->act, .glu = m->glu });
    emit_out(e, &m->down, (product_input){ .x = inner }, scale);
}

/* --- layers --- */

/* What a layer's branches own, in the order of the branches; taken once, used by both plans. */
typedef struct layer_memory {
    recurrent_memory recurrent[MODEL_MAX_BRANCH];
    spec_kv kv[MODEL_MAX_BRANCH];
} layer_memory;

static spec_kv take_kv(emitter *e, const model_attention *a)
{
    const size_t bytes = (size_t)e->shape->n_page * (size_t)a->n_kv_head * SPEC_PAGE * (size_t)a->head_dim *
                         type_bytes(e->model->dtype);
    spec_kv kv = { .dtype = e->model->dtype, .n_page = e->shape->n_page, .n_kv_head = a->n_kv_head,
                   .head_dim = a->head_dim };
    kv.k = speci_net_take(&e->memory->kv, bytes);
    kv.v = speci_net_take(&e->memory->kv, bytes);
    if (e->plans->kv) e->plans->kv[e->plans->n_kv] = kv;
    e->plans->n_kv++;
    return kv;
}

static void emit_layer(emitter *e, const model_layer *l, const layer_memory *mem)
{
    product_input input[MODEL_MAX_BRANCH];
    for (int32_t j = 0; l->parallel && j < l->n_branch; j++) input[j] = emit_input(e, &l->branch[j].norm, j);
    for (int32_t j = 0; j < l->n_branch; j++) {
        const model_branch *b = &l->branch[j];
        if (!l->parallel) input[j] = emit_input(e, &b->norm, 0);
        if (b->kind == MODEL_ATTENTION) emit_attention(e, &b->u.attention, &mem->kv[j], input[j], b->scale);
        else if (b->kind == MODEL_MAMBA) emit_mamba(e, &b->u.mamba, &mem->recurrent[j], input[j], b->scale);
        else emit_mlp(e, &b->u.mlp, input[j], b->scale);
    }
}

static void emit_layers(emitter *e)
{
    for (int32_t i = 0; i < e->model->n_layer; i++) {
        const model_layer *l = &e->model->layers[i];
        layer_memory mem = { 0 };
        for (int32_t j = 0; j < l->n_branch; j++) {
            const model_branch *b = &l->branch[j];
            if (b->kind == MODEL_ATTENTION) mem.kv[j] = take_kv(e, &b->u.attention);
            if (b->kind == MODEL_MAMBA) mem.recurrent[j] = take_recurrent(e, &b->u.mamba);
        }
        for (e->phase = SPEC_PHASE_DECODE; e->phase <= SPEC_PHASE_PREFILL; e->phase++) {
            emit_keep(e, SPEC_TAP_LAYER, i, e->residual);
            emit_layer(e, l, &mem);
        }
    }
}

/* Never deferred: its rows are what the head multiplies, and may be kept. They are kept behind the head, in front of which an
 * operation of its own would keep the norm from handing its rows on. A prefill pass applies tokens; nobody reads its logits, and
 * those of the pass before are still wanted. */
static void emit_end(emitter *e)
{
    const spec_model *m = e->model;
    for (e->phase = SPEC_PHASE_DECODE; e->phase <= SPEC_PHASE_PREFILL; e->phase++) {
        emit_keep(e, SPEC_TAP_LAST, 0, e->residual);
        if (e->phase == SPEC_PHASE_PREFILL && !has_tap(e, SPEC_TAP_NORM)) continue;
        const product_input in = emit_norm(e, &m->final_norm, e->residual, (spec_view){ 0 }, 0, e->normed[0], NULL);
        if (e->phase == SPEC_PHASE_DECODE)
            emit_linear(e, &m->head, in, (spec_view){ e->plans->logits, SPEC_DTYPE_F32, m->n_vocab },
                        (spec_linear_args){ .scale = m->logit_scale, .best = e->plans->best });
        emit_keep(e, SPEC_TAP_NORM, 0, in.x);
    }
}

void speci_net_emit(net_plans *plans, net_memory *memory, const spec_model *model, const net_shape *shape)
{
    emitter e = { .plans = plans, .memory = memory, .model = model, .shape = shape };
    memory->work.n = memory->state.n = memory->kv.n = 0;
    plans->n_op[0] = plans->n_op[1] = plans->n_kv = plans->n_slot_memory = 0;
    take_tensors(&e);
    take_taps(&e);
    for (e.phase = SPEC_PHASE_DECODE; e.phase <= SPEC_PHASE_PREFILL; e.phase++) {
        if (e.phase == SPEC_PHASE_DECODE && speci_model_attends(model)) /* plans->kv is filled below */
            emit(&e, (spec_op){ .kind = SPEC_OP_KV_COMMIT, .u.kv_commit = { .layers = plans->kv } });
        emit(&e, (spec_op){ .kind = SPEC_OP_EMBED,
                            .u.embed = { .table = model->embed, .n_vocab = model->n_vocab, .dim = model->dim,
                                         .scale = model->embed_scale, .y = e.residual,
                                         .best = e.phase == SPEC_PHASE_DECODE ? plans->best : NULL } });
    }
    emit_layers(&e);
    emit_end(&e);

    spec_op *first = plans->ops[SPEC_PHASE_DECODE];
    if (first && first->kind == SPEC_OP_KV_COMMIT) first->u.kv_commit.n_layer = plans->n_kv;
}
