/* late_backend.c - see late_backend.h. A queue is the CPU's with a list of results that are on their way. */
#include "tests/late_backend.h"

#include <stdlib.h>
#include <string.h>

late_settings late_set;
late_counts late_count;

void late_reset(void)
{
    late_set = (late_settings){ .fail_prepare = -1, .fail_wait = -1, .disturb = -1 };
    late_count = (late_counts){ .n_alive = late_count.n_alive };
}

double late_now(void) { return late_count.ms; }

/* --- results on their way --- */

typedef struct result {
    void *to, *bytes;
    size_t n;
} result;

struct spec_queue {
    spec_queue *cpu;
    result *results;
    int32_t n, cap;
    uint64_t n_come, n_mark, end[LATE_MARKS]; /* results handed out; of mark m % LATE_MARKS, those asked for before it */
};

/* Where what is for `to` may be written at once. */
static void *room_for(spec_queue *q, void *to, size_t n)
{
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 16;
        q->results = realloc(q->results, (size_t)q->cap * sizeof *q->results);
        if (!q->results) abort();
    }
    void *bytes = malloc(n + 1);
    if (!bytes) abort();
    memset(to, LATE_POISON, n);
    q->results[q->n++] = (result){ to, bytes, n };
    return bytes;
}

/* As room_for(), of n results of `size` bytes; NULL for none. */
static void *rooms_for(spec_queue *q, void *to, int32_t n, size_t size) { return to ? room_for(q, to, (size_t)n * size) : NULL; }

static spec_status hand_out(spec_queue *q, uint64_t end)
{
    int32_t n = 0;
    if (late_set.fail_wait >= 0 && late_set.fail_wait-- == 0) return speci_fail(SPEC_E_DEVICE, "injected: the device failed, late");
    for (; n < q->n && q->n_come < end; n++, q->n_come++) {
        memcpy(q->results[n].to, q->results[n].bytes, q->results[n].n);
        free(q->results[n].bytes);
        late_count.late++;
    }
    q->n -= n;
    if (n > 0) memmove(q->results, q->results + n, (size_t)q->n * sizeof *q->results);
    return SPEC_OK;
}

static spec_status late_sync(spec_queue *q)
{
    late_count.ms += late_count.queued_ms, late_count.queued_ms = 0;
    return hand_out(q, q->n_come + (uint64_t)q->n);
}

static spec_status late_mark(spec_queue *q, uint64_t *mark)
{
    q->end[q->n_mark % LATE_MARKS] = q->n_come + (uint64_t)q->n;
    *mark = q->n_mark++;
    return SPEC_OK;
}

static spec_status late_wait(spec_queue *q, uint64_t mark)
{
    if (mark >= q->n_mark) return speci_fail(SPEC_E_INVALID, "a mark that was never set");
    return q->n_mark - mark > LATE_MARKS ? late_sync(q) : hand_out(q, q->end[mark % LATE_MARKS]);
}

/* --- queues and transfers --- */

static const spec_backend_ops *cpu(void) { return &speci_cpu_ops; }

static spec_status late_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    spec_queue *q = calloc(1, sizeof *q);
    if (!q) abort();
    const spec_status status = cpu()->queue_open(dev, &q->cpu, plans, n_plan, n_vocab);
    if (status == SPEC_OK) *out = q, late_count.n_alive++;
    else free(q);
    return status;
}

static void late_queue_close(spec_queue *q)
{
    if (!q) return;
    cpu()->queue_close(q->cpu);
    for (int32_t i = 0; i < q->n; i++) free(q->results[i].bytes); /* nobody waits any more */
    free(q->results);
    free(q);
    late_count.n_alive--;
}

static spec_status late_upload(spec_queue *q, void *dst, const void *src, size_t n) { return cpu()->upload(q->cpu, dst, src, n); }
static spec_status late_download(spec_queue *q, void *dst, const void *src, size_t n)
{
    return cpu()->download(q->cpu, room_for(q, dst, n), src, n);
}
static spec_status late_copy(spec_queue *q, const spec_range_copy *r, int32_t n) { return cpu()->copy(q->cpu, r, n); }
static spec_status late_zero(spec_queue *q, const spec_range *r, int32_t n) { return cpu()->zero(q->cpu, r, n); }

/* --- operations by themselves --- */

static spec_status late_step_bind(spec_queue *q, const spec_step_block *b) { return cpu()->step_bind(q->cpu, b); }

static spec_status late_run(spec_queue *q, const spec_op *op)
{
    late_count.alone++;
    return cpu()->op[op->kind].run(q->cpu, op);
}

/* --- rows of logits --- */

static spec_status late_argmax(spec_queue *q, const spec_argmax_args *given)
{
    spec_argmax_args a = *given;
    a.host_out_token = rooms_for(q, a.host_out_token, a.n_row, sizeof *a.host_out_token);
    return cpu()->argmax(q->cpu, &a);
}

static spec_status late_probs(spec_queue *q, const spec_probs_args *a) { return cpu()->probs(q->cpu, a); }

static spec_status late_accept(spec_queue *q, const spec_accept_args *given)
{
    spec_accept_args a = *given;
    a.host_out_choice = rooms_for(q, a.host_out_choice, a.n_row, sizeof *a.host_out_choice);
    a.host_out_token = rooms_for(q, a.host_out_token, a.n_row, sizeof *a.host_out_token);
    return cpu()->accept(q->cpu, &a);
}

static spec_status late_accept_tree(spec_queue *q, const spec_accept_tree_args *given)
{
    spec_accept_tree_args a = *given;
    a.host_out_prob = rooms_for(q, a.host_out_prob, a.n_row, sizeof *a.host_out_prob);
    a.host_out_token = rooms_for(q, a.host_out_token, a.n_row, sizeof *a.host_out_token);
    return cpu()->accept_tree(q->cpu, &a);
}

static spec_status late_logprob(spec_queue *q, const spec_logprob_args *given)
{
    spec_logprob_args a = *given;
    a.host_out_logprob = rooms_for(q, a.host_out_logprob, a.n_row, sizeof *a.host_out_logprob);
    a.host_out_top = rooms_for(q, a.host_out_top, a.n_row * a.n_top, sizeof *a.host_out_top);
    a.host_out_top_logprob = rooms_for(q, a.host_out_top_logprob, a.n_row * a.n_top, sizeof *a.host_out_top_logprob);
    return cpu()->logprob(q->cpu, &a);
}

static spec_status late_draw(spec_queue *q, const spec_draw_args *given)
{
    spec_draw_args a = *given;
    a.host_out = rooms_for(q, a.host_out, a.n_row * a.k, sizeof *a.host_out);
    return cpu()->draw(q->cpu, &a);
}

/* Trees come each to its slot's place: of a tree its nodes, and no more. */
static spec_status late_expand(spec_queue *q, const spec_expand_args *given)
{
    spec_expand_args a = *given;
    if (!a.host_out_n) return cpu()->expand(q->cpu, &a);
    const size_t slots = (size_t)a.grow->n_slot, cap = (size_t)a.grow->cap;
    int32_t *n = calloc(slots, sizeof *n);
    spec_grow_node *node = calloc(slots * cap, sizeof *node);
    if (!n || !node) abort();
    a.host_out_n = n, a.host_out_node = node;
    const spec_status status = cpu()->expand(q->cpu, &a);
    for (int32_t i = 0; i < a.n && status == SPEC_OK; i++) {
        const size_t slot = (size_t)a.host_slot[i], bytes = (size_t)n[slot] * sizeof *node;
        memcpy(room_for(q, given->host_out_n + slot, sizeof *n), &n[slot], sizeof *n);
        memcpy(room_for(q, given->host_out_node + slot * cap, bytes), node + slot * cap, bytes);
    }
    free(n);
    free(node);
    return status;
}

/* --- plans --- */

enum { ROUNDED = 16, SHAPES = ROUNDED * ROUNDED * 2 * 2, LATE_OPS = 64 /* of a plan for passes without rows */ };

struct spec_prepared {
    spec_plan plan; /* operations and layers of kv_commit are copies */
    bool captures, ready[SHAPES];
};

static void late_plan_free(spec_queue *q, spec_prepared *p)
{
    (void)q;
    if (!p) return;
    for (int32_t i = 0; i < p->plan.n_op; i++)
        if (p->plan.ops[i].kind == SPEC_OP_KV_COMMIT) free((void *)(uintptr_t)p->plan.ops[i].u.kv_commit.layers);
    free((void *)(uintptr_t)p->plan.ops);
    free(p);
    late_count.n_alive--;
}

static void take_op(spec_op *op, int32_t phase)
{
    if (op->kind == SPEC_OP_KV_COMMIT) {
        const size_t bytes = (size_t)op->u.kv_commit.n_layer * sizeof(spec_kv);
        spec_kv *layers = malloc(bytes + 1);
        if (!layers) abort();
        op->u.kv_commit.layers = memcpy(layers, op->u.kv_commit.layers, bytes);
    }
    if (op->kind == SPEC_OP_NORM && phase == SPEC_PHASE_DECODE && late_set.alters) op->u.norm.eps += 0.1f;
}

static spec_status late_plan_prepare(spec_queue *q, spec_prepared **out, const spec_plan *plan, int32_t capture)
{
    (void)q;
    if (late_set.fail_prepare >= 0 && late_set.fail_prepare-- == 0) return speci_fail(SPEC_E_NOMEM, "injected: no room for a plan");
    spec_prepared *p = calloc(1, sizeof *p);
    spec_op *ops = calloc((size_t)plan->n_op, sizeof *ops);
    if (!p || !ops) abort();
    for (int32_t i = 0; i < plan->n_op; i++) {
        ops[i] = plan->ops[i];
        take_op(&ops[i], plan->phase);
    }
    p->plan = *plan, p->plan.ops = ops, p->captures = capture;
    late_count.n_prepared[capture != 0]++, late_count.n_alive++;
    *out = p;
    return SPEC_OK;
}

/* Has a path been accepted whose nodes are not the first of their tree? */
static bool moves(const spec_step_block *b)
{
    bool any = false;
    for (int32_t i = 0; i < b->n_seq; i++) {
        const spec_step_seq *s = &spec_step_seqs(b)[i];
        any = any || (s->n_replay > 0 && spec_step_paths(b)[s->first_path + s->n_replay - 1] != s->n_replay - 1);
    }
    return any;
}

static int32_t rounded(int32_t n)
{
    int32_t power = 0;
    while (1 << power < n && power < ROUNDED - 1) power++;
    return power;
}

/* A step's shape: rows and sequences rounded up, a path to move, an arg-max. */
static int32_t shape_of(const spec_step_block *b, bool path, bool finds)
{
    return ((rounded(b->n_row_run) * ROUNDED + rounded(b->n_seq)) * 2 + path) * 2 + finds;
}

static const void *place_of(const spec_op *op)
{
    return op->kind == SPEC_OP_CONV ? op->u.conv.replay_y : op->kind == SPEC_OP_SCAN ? op->u.scan.replay_y : NULL;
}

/* Operations of a pass without rows, by turns of their places, the last place first: in order at each place, and nowhere else. */
static spec_status walk_places(spec_queue *q, const spec_prepared *p)
{
    bool done[LATE_OPS] = { false };
    if (p->plan.n_op > LATE_OPS) return speci_fail(SPEC_E_INVALID, "a plan of %d operations", p->plan.n_op);
    for (int32_t n_left = p->plan.n_op; n_left > 0;) {
        const void *turn[LATE_OPS]; /* places that have had theirs */
        int32_t n_turn = 0, first[LATE_OPS];
        for (int32_t i = 0; i < p->plan.n_op; i++) {
            const void *place = place_of(&p->plan.ops[i]);
            int32_t k = 0;
            while (k < n_turn && turn[k] != place) k++;
            if (!done[i] && k == n_turn) turn[n_turn] = place, first[n_turn++] = i;
        }
        for (; n_turn > 0; n_turn--, n_left--) {
            const spec_op *op = &p->plan.ops[first[n_turn - 1]];
            done[first[n_turn - 1]] = true;
            SPEC_TRY(cpu()->op[op->kind].run(q->cpu, op));
        }
    }
    return SPEC_OK;
}

static spec_status walk(spec_queue *q, const spec_prepared *p, const spec_step_block *b)
{
    SPEC_TRY(cpu()->step_bind(q->cpu, b));
    if (b->n_row == 0) return walk_places(q, p);
    for (int32_t i = 0; i < p->plan.n_op; i++) {
        const spec_op *op = &p->plan.ops[i];
        if (!b->no_head || !op->head) SPEC_TRY(cpu()->op[op->kind].run(q->cpu, op));
    }
    return SPEC_OK;
}

static double pass_ms(const spec_prepared *p, const spec_step_block *b)
{
    if (late_set.by_rows) return LATE_MS * b->n_row / 16.0;
    return p->plan.n_op <= late_set.light ? LATE_MS / 2.0 : LATE_MS;
}

static void count_pass(spec_prepared *p, const spec_step_block *b, bool finds)
{
    bool *ready = &p->ready[shape_of(b, moves(b), finds)];
    if (b->phase != SPEC_PHASE_DECODE) return;
    late_count.pass++;
    late_count.empty += b->n_row == 0, late_count.no_head += b->no_head != 0, late_count.found += finds;
    const bool cold = p->captures && !*ready;
    late_count.cold += cold;
    late_count.ms += pass_ms(p, b) + (cold ? LATE_COLD_MS : 0);
    if (late_set.disturb >= 0 && late_set.disturb-- == 0) late_count.ms += LATE_COLD_MS;
    *ready = true;
}

static spec_status late_plan_run(spec_queue *q, spec_prepared *p, const spec_step_block *b, const spec_argmax_args *argmax)
{
    if (b->phase != p->plan.phase || b->n_row_run > p->plan.n_row_max || b->n_seq > p->plan.n_seq_max)
        return speci_fail(SPEC_E_INVALID, "a step that the plan was not made for");
    count_pass(p, b, argmax != NULL);
    SPEC_TRY(walk(q, p, b));
    return argmax ? late_argmax(q, argmax) : SPEC_OK;
}

/* The step is run, as it may be. */
static spec_status late_plan_warm(spec_queue *q, spec_prepared *p, const spec_step_block *b)
{
    if (late_set.one_warm && b->n_seq > 1) return SPEC_OK;
    late_count.warm++;
    for (int32_t i = 0; i < 4; i++) {
        p->ready[shape_of(b, i % 2 != 0, i / 2 != 0)] = true;
        late_count.queued_ms += pass_ms(p, b);
        SPEC_TRY(walk(q, p, b));
    }
    return SPEC_OK;
}

/* --- the table --- */

static spec_status late_open(spec_device **out, const spec_host *host, const char *arg) { return cpu()->open(out, host, arg); }
static void late_close(spec_device *dev) { cpu()->close(dev); }
static spec_status late_info(spec_device *dev, spec_device_info *out)
{
    SPEC_TRY(cpu()->info(dev, out));
    out->host_visible = 0;
    return SPEC_OK;
}
static spec_status late_list(const spec_host *host, void (*each)(void *, const char *, const char *), void *user)
{
    return cpu()->list(host, each, user);
}
static spec_status late_alloc(spec_device *dev, void **out, size_t n) { return cpu()->alloc(dev, out, n); }
static void late_free(spec_device *dev, void *p, size_t n) { cpu()->free(dev, p, n); }
static size_t late_weight_bytes(spec_device *dev, const spec_weight_desc *d) { return cpu()->weight_bytes(dev, d); }
static spec_status late_weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *d)
{
    return cpu()->weight_open(dev, out, d);
}
static void late_weight_close(spec_device *dev, spec_weight *w) { cpu()->weight_close(dev, w); }
static size_t late_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    return cpu()->queue_bytes(dev, plans, n_plan, n_vocab);
}
static spec_status late_supports(spec_device *dev, const spec_op *op) { return cpu()->op[op->kind].supports(dev, op); }

#define ROW(kind) [kind] = { kind, late_supports, late_run }
const spec_backend_ops late_ops = {
    .abi = SPEC_BACKEND_ABI,
    .struct_size = sizeof(spec_backend_ops),
    .name = "late",
    .open = late_open,
    .close = late_close,
    .info = late_info,
    .list = late_list,
    .alloc = late_alloc,
    .free = late_free,
    .weight_bytes = late_weight_bytes,
    .weight_open = late_weight_open,
    .weight_close = late_weight_close,
    .queue_open = late_queue_open,
    .queue_bytes = late_queue_bytes,
    .queue_close = late_queue_close,
    .upload = late_upload,
    .download = late_download,
    .copy = late_copy,
    .zero = late_zero,
    .sync = late_sync,
    .step_bind = late_step_bind,
    .op = { ROW(SPEC_OP_EMBED), ROW(SPEC_OP_NORM), ROW(SPEC_OP_LINEAR), ROW(SPEC_OP_KV_COMMIT), ROW(SPEC_OP_ROPE_KV),
            ROW(SPEC_OP_ATTENTION), ROW(SPEC_OP_CONV), ROW(SPEC_OP_SCAN), ROW(SPEC_OP_KEEP),
            ROW(SPEC_OP_RECYCLE), ROW(SPEC_OP_BIAS), ROW(SPEC_OP_GLU) },
    .argmax = late_argmax,
    .probs = late_probs,
    .accept = late_accept,
    .accept_tree = late_accept_tree,
    .logprob = late_logprob,
    .draw = late_draw,
    .expand = late_expand,
    .plan_prepare = late_plan_prepare,
    .plan_run = late_plan_run,
    .plan_free = late_plan_free,
    .mark = late_mark,
    .wait = late_wait,
    .plan_warm = late_plan_warm,
    .knows = SPEC_KNOWS_CAP | SPEC_KNOWS_GAIN,
};
