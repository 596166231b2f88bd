/* net_plan.c - a model's layers as lists of operations.
 *
 * speci_net_emit runs twice: first with nothing to write to, which counts operations and measures memory, then for real.
 * Tensors are reused from layer to layer. Between operations: the residual, projections and time steps are f32,
 * whatever a product will read is of the compute type. */
#include "models/net/net_mixer.h"

/* Branches of a parallel layer may have one norm between them. */
static bool has_norm_of_first(const model_layer *l, int32_t j)
{
    return j > 0 && l->branch[j].norm.weight == l->branch[0].norm.weight;
}

/* Normed inputs that live at once. */
static int32_t norms_at_once(const model_layer *l)
{
    int32_t n = 0;
    for (int32_t j = 0; l->parallel && j < l->n_branch; j++) n += !has_norm_of_first(l, j);
    return net_max(n, 1);
}

static net_widths widths_of(const spec_model *m)
{
    net_widths w = { .n_norm = 1 };
    for (int32_t i = 0; i < m->n_layer; i++) {
        const model_layer *l = &m->layers[i];
        w.n_norm = net_max(w.n_norm, norms_at_once(l));
        for (int32_t j = 0; j < l->n_branch; j++) {
            const net_mixer *mixer = l->branch[j].mixer;
            if (mixer->widths) mixer->widths(&w, &l->branch[j]);
            if (l->branch[j].behind.weight) w.branch = m->dim;
        }
    }
    return w;
}

/* --- tensors --- */

/* Layers that a pass without rows may be in at once: so many places has what convolutions hand to scans. Such a pass is of one sequence,
 * and the places of others are free. */
enum { REPLAY_PLACES = 4 };

/* What every row of a pass has. */
static void take_rows(net_emitter *e, int32_t rows)
{
    const spec_model *m = e->model;
    const net_widths w = widths_of(m);
    e->residual = speci_net_tensor(e, rows, m->dim, SPEC_DTYPE_F32);
    for (int32_t i = 0; i < w.n_norm; i++) e->normed[i] = speci_net_tensor(e, rows, m->dim, m->dtype);
    e->projection = speci_net_tensor(e, rows, w.projection, SPEC_DTYPE_F32);
    e->conv = speci_net_tensor(e, rows, w.channel, m->dtype);
    e->select = speci_net_tensor(e, rows, w.select, m->dtype);
    e->dt = speci_net_tensor(e, rows, w.dt, SPEC_DTYPE_F32);
    e->scan = speci_net_tensor(e, rows, w.scan, SPEC_DTYPE_F32);
    e->mixed = speci_net_tensor(e, rows, w.mixed, m->dtype);
    e->branch = speci_net_tensor(e, rows, w.branch, SPEC_DTYPE_F32);
    if (m->intake) speci_net_take_intake_rows(e, rows);
}

size_t speci_net_rows_bytes(const spec_model *model, int32_t rows)
{
    net_memory memory = { 0 };
    net_emitter e = { .memory = &memory, .model = model };
    take_rows(&e, rows);
    return memory.work.n;
}

/* What convolutions make of a sequence's nodes for the scans behind them. */
static size_t replay_bytes(const net_emitter *e)
{
    const spec_model *m = e->model;
    return net_aligned((size_t)e->shape->n_cache * 2 * (size_t)widths_of(m).channel * speci_dtype_bytes(m->dtype));
}

static void take_tensors(net_emitter *e)
{
    const spec_model *m = e->model;
    const size_t n_row = (size_t)e->shape->n_row_decode;
    take_rows(e, net_max(e->shape->n_row_decode, e->shape->chunk));
    e->replay = net_take(&e->memory->work, (size_t)net_max(e->shape->n_seq, REPLAY_PLACES) * replay_bytes(e));
    e->plans->logits = net_take(&e->memory->work, n_row * (size_t)speci_model_n_logit(m) * sizeof(float));
    if (m->intake) speci_net_take_intake(e);
}

/* What branches keep: taken once, used by both plans. */
static void take_kept(net_emitter *e)
{
    net_plans *p = e->plans;
    p->n_kept = p->n_zeroed = 0;
    for (int32_t i = 0; i < e->model->n_layer; i++)
        for (int32_t j = 0; j < e->model->layers[i].n_branch; j++) {
            net_kept kept = speci_net_kept_of(e->model, &e->model->layers[i].branch[j], e->shape);
            speci_net_take_kept(&kept, e->memory, e->shape);
            for (int32_t k = 0; k < kept.n; k++) p->n_zeroed += kept.buffer[k].zeroed && kept.buffer[k].bytes > 0;
            if (p->kept) p->kept[p->n_kept] = kept;
            p->n_kept++;
        }
}

/* --- plans --- */

/* What must stand first, of each kind of mixer that the model has. */
static void emit_front(net_emitter *e)
{
    for (int32_t i = 0; i < e->model->n_layer; i++)
        for (int32_t j = 0; j < e->model->layers[i].n_branch; j++) {
            const net_mixer *mixer = e->model->layers[i].branch[j].mixer;
            if (mixer->front && speci_net_is_first(e->model, i, j)) mixer->front(e);
        }
}

static void emit_layer(net_emitter *e, const model_layer *l, const net_kept *kept)
{
    static const net_kept nothing_yet = { 0 };
    net_input input[MODEL_MAX_BRANCH];
    for (int32_t j = 0, n = 0; l->parallel && j < l->n_branch; j++)
        input[j] = has_norm_of_first(l, j) ? input[0] : speci_net_emit_input(e, &l->branch[j].norm, n++);
    for (int32_t j = 0; j < l->n_branch; j++) {
        const model_branch *b = &l->branch[j];
        if (!l->parallel) input[j] = b->first ? speci_net_emit_first(e, &b->norm) : speci_net_emit_input(e, &b->norm, 0);
        b->mixer->emit(e, b, (kept ? &kept[j] : &nothing_yet)->buffer, input[j]);
    }
}

static void emit_layers(net_emitter *e)
{
    int32_t branch = 0;
    for (int32_t i = 0; i < e->model->n_layer; i++) {
        speci_net_emit_keep(e, SPEC_TAP_LAYER, i, e->residual);
        emit_layer(e, &e->model->layers[i], e->plans->kept ? &e->plans->kept[branch] : NULL);
        branch += e->model->layers[i].n_branch;
    }
}

static spec_view logits_of(const net_emitter *e)
{
    return (spec_view){ e->plans->logits, SPEC_DTYPE_F32, speci_model_n_logit(e->model) };
}

/* A cap of logits is an activation whose scale it is. */
static spec_linear_args head_args(const spec_model *of)
{
    const bool capped = of->logit_cap > 0;
    return (spec_linear_args){ .act = capped ? SPEC_ACT_CAP : SPEC_ACT_NONE, .scale = capped ? of->logit_cap : of->logit_scale };
}

static void emit_head(net_emitter *e, net_input last)
{
    const int32_t at = e->plans->n_op[e->phase];
    const spec_model *of = speci_net_head_of(e);
    speci_net_emit_linear(e, &of->head, last, logits_of(e), head_args(of));
    if (e->plans->ops[e->phase]) e->plans->ops[e->phase][at].head = 1;
}

static net_input emit_last(net_emitter *e)
{
    return speci_net_emit_norm(e, &e->model->final_norm, e->residual, (spec_view){ 0 }, 0, e->normed[0]);
}

static void emit_handed_logits(net_emitter *e)
{
    speci_net_emit_handed(e);
    emit_head(e, emit_last(e));
}

/* The final norm's rows are kept behind the head, in front of which an operation of its own would keep the norm from handing
 * its rows on. A prefill pass applies tokens; nobody reads its logits, and those of the pass before are still wanted. */
static void emit_end(net_emitter *e)
{
    const spec_model *m = e->model;
    const bool decode = e->phase == SPEC_PHASE_DECODE;
    speci_net_emit_keep(e, SPEC_TAP_LAST, 0, e->residual);
    if (!decode && !speci_net_has_tap(e->shape, SPEC_TAP_NORM)) return;
    const net_input last = emit_last(e);
    if (decode) emit_head(e, last);
    if (decode && m->intake && m->intake->info) speci_net_emit_info(e, logits_of(e));
    if (decode && m->intake) speci_net_emit_hand_down(e, last.x);
    speci_net_emit_keep(e, SPEC_TAP_NORM, 0, last.x);
}

static void emit_plan(net_emitter *e)
{
    if (e->phase == SPEC_PHASE_DECODE) emit_front(e);
    if (e->model->intake) speci_net_emit_intake(e);
    else speci_net_emit_embed(e);
    emit_layers(e);
    emit_end(e);
}

/* Plans of their own for the parts of a pass (net_part.c), over tensors that there are. */
static void emit_parts(net_emitter *e)
{
    net_plans *const whole = e->plans;
    for (int32_t i = 0; i < 2; i++) {
        net_plans part = *whole;
        part.ops[SPEC_PHASE_DECODE] = whole->part[i], part.n_op[SPEC_PHASE_DECODE] = 0;
        e->plans = &part, e->phase = SPEC_PHASE_DECODE;
        if (i == 0) emit_handed_logits(e);
        else if (e->model->intake->info) speci_net_emit_info(e, logits_of(e));
        whole->n_part[i] = part.n_op[SPEC_PHASE_DECODE];
    }
    e->plans = whole;
}

/* The plans of passes without rows: parts of the decode plan, which are as long at most. A scan's convolution stands in front of it, and
 * both have a place of their own, which the layers behind do not wait for (spec_plan). */
static void pick(net_emitter *e)
{
    net_plans *const plans = e->plans;
    if (!plans->ops[SPEC_PHASE_DECODE]) {
        plans->n_op[NET_REPLAY] = plans->n_op[NET_FOLD] = plans->n_op[SPEC_PHASE_DECODE];
        return;
    }
    const size_t bytes = replay_bytes(e);
    for (int32_t i = 0, n_scan = 0; i < plans->n_op[SPEC_PHASE_DECODE]; i++) {
        spec_op op = plans->ops[SPEC_PHASE_DECODE][i];
        char *const replay = (char *)e->replay + (size_t)(n_scan % REPLAY_PLACES) * bytes;
        if (!speci_op_kinds[op.kind].replays) continue;
        if (op.kind == SPEC_OP_CONV && op.u.conv.replay_y) op.u.conv.replay_y = replay;
        if (op.kind == SPEC_OP_SCAN) op.u.scan.replay_y = replay, n_scan++;
        plans->ops[NET_REPLAY][plans->n_op[NET_REPLAY]++] = op;
        if (op.kind == SPEC_OP_SCAN && op.u.scan.chunk > 0) plans->ops[NET_FOLD][plans->n_op[NET_FOLD]++] = op;
    }
}

void speci_net_emit(net_plans *plans, net_memory *memory, const spec_model *model, const net_shape *shape)
{
    net_emitter e = { .plans = plans, .memory = memory, .model = model, .shape = shape };
    memory->work.n = memory->state.n = memory->kv.n = 0;
    for (int i = 0; i < NET_PLANS; i++) plans->n_op[i] = 0;
    plans->n_kv = 0;
    take_tensors(&e);
    take_kept(&e);
    speci_net_take_taps(&e);
    for (e.phase = SPEC_PHASE_DECODE; e.phase <= SPEC_PHASE_PREFILL; e.phase++) emit_plan(&e);
    if (model->intake && model->intake->hands_input) emit_parts(&e);
    pick(&e);
}
