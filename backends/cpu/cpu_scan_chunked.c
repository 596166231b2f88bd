/* cpu_scan_chunked.c - the scan's chunked form (spec_scan_args; algorithms.md 8.6).
 *
 *   y_i = E_i (S C_i) + sum over the near tokens j of node i, ascending, of (P_ij dt_j (C_i . B_j)) x_j + D x_i
 *
 * A task is a run of whole heads that read the same B and C, for one sequence: what does not depend on the head, above
 * all C . B, is computed once for them. In order: whole chunks of committed tokens are folded into the stored state;
 * then, for a head at a time, the products S C of all new nodes, a piece of S after the other, so that S is read once;
 * then their near tokens. Nodes whose path goes on to a further chunk have their products with a folded copy of the
 * piece, a *version* of it. Mostly there is one such version, that of committed tokens, and it is computed once for all
 * nodes that have it.
 *
 * What a node's output is made of, and in which order, follows from its path: committed tokens and nodes of the tree
 * stand in one array, and a path is a list of its entries. */
#include "backends/cpu/cpu_scan.h"

enum {
    W = SPEC_CHUNK,
    NEAR = 2 * SPEC_CHUNK,                       /* tokens that a node reads one by one, at most */
    PATH = 2 * SPEC_CHUNK + SPEC_MAX_DEPTH + 1,  /* tokens from the first that the stored state lacks to a node */
    VERSIONS = PATH / SPEC_CHUNK,                /* that are folded from another, at most */
    PIECE = 16                                    /* rows of the state that are worked on at a time */
};

/* The rows of a head with some chunks folded in. Version 0 is the stored state. */
typedef struct version {
    int32_t base;     /* it is that version after one more chunk, */
    int32_t token[W]; /* these tokens */
    int32_t first;    /* number of the first token behind it */
    int32_t output, n; /* outputs of the new nodes that have it: n from this one on */
    float e[CPU_RUN], u[W * CPU_RUN];
} version;

/* The output of a new node. */
typedef struct output {
    int32_t node;
    int32_t n_near, near[NEAR]; /* tokens */
    float e[CPU_RUN];
} output;

typedef struct chunked_task {
    scan_part part;
    const spec_step_node *nodes;
    int32_t n_left;    /* committed tokens behind the stored state: tokens [0, n_left); */
    int32_t n_node;    /* nodes of the tree: tokens [n_left, n_left + n_node) */
    int32_t n_version;
    /* scratch, by token */
    scan_node *from;
    float *b;          /* [n_state] */
    float *dt, *decay; /* [CPU_RUN] */
    float *x;          /* [head_dim], of one head */
    /* by output */
    output *outputs;
    float *c;          /* [n_state] */
    float *cb;         /* [NEAR] C . B */
    float *w;          /* [NEAR][CPU_RUN] */
    float *y;          /* [head_dim], of one head */
    cpu_recall *recalls;
    /* others */
    int32_t *version_of; /* [n_node] */
    version *versions;
    float *copy;         /* [PIECE][n_state] */
} chunked_task;

static void *take(uint8_t *scratch, size_t *at, size_t n, size_t size)
{
    void *p = scratch ? scratch + *at : NULL;
    *at += (n * size + 63) / 64 * 64;
    return p;
}

/* Divides the scratch among its parts; returns its bytes. */
static size_t take_all(chunked_task *t, const spec_scan_args *a, uint8_t *s)
{
    const size_t node = (size_t)a->n_node, token = NEAR + node, f = sizeof(float);
    const size_t n_state = (size_t)a->n_state, dim = (size_t)a->head_dim;
    size_t at = 0;
    t->from = take(s, &at, token, sizeof *t->from);
    t->b = take(s, &at, token * n_state, f);
    t->dt = take(s, &at, token * CPU_RUN, f);
    t->decay = take(s, &at, token * CPU_RUN, f);
    t->x = take(s, &at, token * dim, f);
    t->outputs = take(s, &at, node, sizeof *t->outputs);
    t->c = take(s, &at, node * n_state, f);
    t->cb = take(s, &at, node * NEAR, f);
    t->w = take(s, &at, node * NEAR * CPU_RUN, f);
    t->y = take(s, &at, node * dim, f);
    t->recalls = take(s, &at, node, sizeof *t->recalls);
    t->version_of = take(s, &at, node, sizeof *t->version_of);
    t->versions = take(s, &at, node + 1, sizeof *t->versions);
    t->copy = take(s, &at, PIECE * n_state, f);
    return at;
}

size_t speci_cpu_scan_chunked_scratch(const spec_scan_args *a)
{
    chunked_task t;
    return a->n_node < 1 ? 0 : take_all(&t, a, NULL);
}

/* --- tokens --- */

static int32_t n_committed(const spec_step_seq *s)
{
    return s->n_recent + s->n_replay;
}

/* The entry of the recent-token buffers for a position. */
static size_t recent_entry(const scan_part *t, int32_t position)
{
    const spec_scan_args *a = t->job->a;
    return (size_t)t->s->slot * (size_t)a->n_recent_max + (size_t)(position % a->n_recent_max);
}

static void *recent_x_at(const scan_part *t, size_t entry)
{
    const spec_scan_args *a = t->job->a;
    return cpu_item(a->recent_x, a->dtype, entry * (size_t)spec_scan_columns(a->n_head, a->x_rep, a->head_dim));
}

static void *recent_b_at(const scan_part *t, size_t entry)
{
    const spec_scan_args *a = t->job->a;
    return cpu_item(a->recent_b, a->dtype, entry * (size_t)spec_scan_columns(a->n_head, a->b_rep, a->n_state));
}

static float *recent_dt_at(const scan_part *t, size_t entry)
{
    return t->job->a->recent_dt + entry * (size_t)t->job->a->n_head;
}

/* Committed token j of the pass: a recent one, or one of the path behind them. */
static scan_node committed(const scan_part *t, int32_t j)
{
    const spec_step_seq *s = t->s;
    if (j >= s->n_recent) {
        const int32_t i = j - s->n_recent;
        return speci_cpu_scan_replayed(t, i, s->parity ^ 1, (spec_step_paths(t->job->q->step) + s->first_path)[i]);
    }
    const size_t entry = recent_entry(t, s->n_past - n_committed(s) + j);
    return (scan_node){ .x = recent_x_at(t, entry), .b = recent_b_at(t, entry), .b_type = t->job->a->dtype,
                        .dt = recent_dt_at(t, entry), .row = -1 };
}

/* Node i of the tree; the caches have the dt of a new one from here on. */
static scan_node tree_node(const scan_part *t, int32_t i)
{
    scan_node n = speci_cpu_scan_node(t, i);
    if (i < t->s->n_fed) return n;
    speci_cpu_scan_fill(t, i);
    n.dt = speci_cpu_scan_cache_dt(t, t->s->parity, i);
    return n;
}

/* Puts the task's part of a token into the recent-token buffers. A block of x or B belongs to the task that has its
 * first head. */
static void put_recent(const scan_part *t, const scan_node *n, int32_t position)
{
    const spec_scan_args *a = t->job->a;
    const size_t entry = recent_entry(t, position), n_state = (size_t)a->n_state, dim = (size_t)a->head_dim;
    float b[CPU_STATE_MAX];
    memcpy(recent_dt_at(t, entry) + t->head0, n->dt + t->head0, (size_t)t->n_head * sizeof(float));
    for (int32_t h = t->head0; h < t->head0 + t->n_head; h++) {
        const size_t block_x = (size_t)(h / a->x_rep), block_b = (size_t)(h / a->b_rep);
        if (h % a->x_rep == 0)
            memcpy(cpu_item(recent_x_at(t, entry), a->dtype, block_x * dim), cpu_item(n->x, a->dtype, block_x * dim),
                   dim * speci_dtype_bytes(a->dtype));
        if (h % a->b_rep != 0) continue;
        speci_cpu_scan_b(t, n, h / a->b_rep, b);
        t->job->q->dev->loops->store(cpu_item(recent_b_at(t, entry), a->dtype, block_b * n_state), a->dtype, b, n_state);
    }
}

/* Token `at` of the task is n. */
static void take_token(chunked_task *t, int32_t at, scan_node n)
{
    const scan_part *part = &t->part;
    float *dt = t->dt + at * CPU_RUN;
    t->from[at] = n;
    speci_cpu_scan_b(part, &n, part->head0 / part->job->a->b_rep, t->b + (size_t)at * (size_t)part->job->a->n_state);
    memset(dt, 0, CPU_RUN * sizeof *dt);
    speci_cpu_scan_dt(part, &n, part->head0, part->n_head, dt);
}

static void find_decays(chunked_task *t, int32_t n_token)
{
    float a[CPU_RUN] = { 0 };
    memcpy(a, t->part.job->a->a + t->part.head0, (size_t)t->part.n_head * sizeof *a);
    t->part.job->q->dev->loops->decays(t->decay, t->dt, a, (size_t)n_token);
}

/* x of the tokens, for head h. */
static void take_x(chunked_task *t, int32_t h, int32_t n_token)
{
    const spec_scan_args *a = t->part.job->a;
    const size_t dim = (size_t)a->head_dim, at = (size_t)(h / a->x_rep) * dim;
    if (h > t->part.head0 && h % a->x_rep != 0) return; /* that of the head before */
    for (int32_t i = 0; i < n_token; i++)
        t->part.job->q->dev->loops->load(t->x + (size_t)i * dim, cpu_item(t->from[i].x, a->dtype, at), a->dtype, dim);
}

/* --- folds --- */

static void weigh_chunk(const chunked_task *t, version *v)
{
    t->part.job->q->dev->loops->weights(v->u, v->e, t->dt, t->decay, v->token, NULL, W);
}

/* n rows from channel p of head h on, through the chunk of v. */
static void fold(const chunked_task *t, float *to, const float *from, const version *v, int32_t h, int32_t p, int32_t n)
{
    const spec_scan_args *a = t->part.job->a;
    const int32_t lane = h - t->part.head0;
    cpu_chunk w = { .e = v->e[lane] };
    for (int32_t j = 0; j < W; j++) {
        w.u[j] = v->u[j * CPU_RUN + lane];
        w.x[j] = t->x + (size_t)v->token[j] * (size_t)a->head_dim + p;
        w.b[j] = t->b + (size_t)v->token[j] * (size_t)a->n_state;
    }
    t->part.job->q->dev->loops->fold(to, from, (size_t)n, (size_t)a->n_state, &w);
}

/* The stored rows of head h. */
static float *state_of(const chunked_task *t, int32_t h)
{
    const spec_scan_args *a = t->part.job->a;
    const size_t head = (size_t)t->part.s->slot * (size_t)a->n_head + (size_t)h;
    return a->state + head * (size_t)a->head_dim * (size_t)a->n_state;
}

/* The committed tokens' whole chunks but the last go into the stored state. Token 0 is then the first behind them. */
static void fold_committed(chunked_task *t)
{
    const scan_part *part = &t->part;
    version *v = &t->versions[0];
    for (int32_t j = 0; j < W; j++) v->token[j] = j;
    for (int32_t k = 0; k < spec_chunk_folds(n_committed(part->s)); k++) {
        for (int32_t j = 0; j < W; j++) take_token(t, j, committed(part, k * W + j));
        find_decays(t, W);
        weigh_chunk(t, v);
        for (int32_t h = part->head0; h < part->head0 + part->n_head; h++) {
            take_x(t, h, W);
            fold(t, state_of(t, h), state_of(t, h), v, h, 0, part->job->a->head_dim);
        }
    }
}

/* --- paths --- */

/* The path's tokens up to node i, by number: entries [0, number of i]. */
static void find_path(const chunked_task *t, int32_t i, int32_t path[PATH])
{
    for (int32_t j = 0; j < t->n_left; j++) path[j] = j;
    for (; i >= 0; i = t->nodes[i].parent) path[t->n_left + t->nodes[i].depth] = t->n_left + i;
}

static int32_t folds_of(const chunked_task *t, int32_t i)
{
    return spec_chunk_folds(t->n_left + t->nodes[i].depth);
}

/* The version of node i, made if no node before has it. Those of the nodes before are known. */
static int32_t find_version(chunked_task *t, int32_t i)
{
    const int32_t up = t->nodes[i].parent, base = up < 0 ? 0 : t->version_of[up];
    if (up < 0 || folds_of(t, i) == folds_of(t, up)) return base;
    int32_t path[PATH];
    find_path(t, i, path);
    const int32_t *chunk = path + t->versions[base].first;
    for (int32_t k = 1; k < t->n_version; k++)
        if (t->versions[k].base == base && t->versions[k].token[W - 1] == chunk[W - 1]) return k;
    version *v = &t->versions[t->n_version];
    *v = (version){ .base = base, .first = t->versions[base].first + W };
    memcpy(v->token, chunk, sizeof v->token);
    weigh_chunk(t, v);
    return t->n_version++;
}

/* The order of outputs: those of a version behind each other. */
static void order_outputs(chunked_task *t)
{
    t->n_version = 1;
    t->versions[0] = (version){ .base = 0 };
    for (int32_t i = 0; i < t->n_node; i++) t->version_of[i] = find_version(t, i);
    for (int32_t k = 0, n = 0; k < t->n_version; k++) {
        version *v = &t->versions[k];
        v->output = n;
        for (int32_t i = t->part.s->n_fed; i < t->n_node; i++) {
            if (t->version_of[i] != k) continue;
            int32_t path[PATH];
            output *p = &t->outputs[n++];
            p->node = i;
            p->n_near = t->n_left + t->nodes[i].depth + 1 - v->first;
            find_path(t, i, path);
            memcpy(p->near, path + v->first, (size_t)p->n_near * sizeof *path);
        }
        v->n = n - v->output;
    }
}

/* C, and C . B of the near tokens: committed ones lie behind each other, of the others what does is taken at once. */
static void find_weights(chunked_task *t)
{
    const spec_scan_args *a = t->part.job->a;
    const cpu_loops *loops = t->part.job->q->dev->loops;
    const size_t n_state = (size_t)a->n_state, block = (size_t)(t->part.head0 / a->c_rep);
    for (int32_t i = 0; i < t->part.s->n_row; i++) {
        const scan_node *n = &t->from[t->n_left + t->outputs[i].node];
        loops->load(t->c + (size_t)i * n_state, cpu_item(n->c, a->c.dtype, block * n_state), a->c.dtype, n_state);
    }
    for (int32_t k = 0; k < t->n_version; k++) {
        const version *v = &t->versions[k];
        const int32_t shared = cpu_max(t->n_left - v->first, 0);
        if (v->n == 0) continue;
        loops->products(t->cb + v->output * NEAR, NEAR, t->c + (size_t)v->output * n_state, (size_t)v->n,
                        t->b + (size_t)v->first * n_state, (size_t)shared, n_state, NULL);
        for (int32_t i = v->output; i < v->output + v->n; i++) {
            output *p = &t->outputs[i];
            for (int32_t j = shared, n = 1; j < p->n_near; j += n, n = 1) {
                while (j + n < p->n_near && p->near[j + n] == p->near[j] + n) n++;
                loops->products(t->cb + i * NEAR + j, NEAR, t->c + (size_t)i * n_state, 1,
                                t->b + (size_t)p->near[j] * n_state, (size_t)n, n_state, NULL);
            }
            loops->weights(t->w + (size_t)i * NEAR * CPU_RUN, p->e, t->dt, t->decay, p->near, t->cb + i * NEAR,
                           (size_t)p->n_near);
        }
    }
}

/* --- outputs --- */

/* n rows from channel p of head h on, as version k has them: the stored ones, or the copy, which is that of version
 * *copied (0: none), made so. */
static const float *piece_of(const chunked_task *t, const float *stored, int32_t k, int32_t *copied, int32_t h,
                             int32_t p, int32_t n)
{
    int32_t missing[VERSIONS], n_missing = 0;
    if (k == 0) return stored;
    for (int32_t v = k; v != 0 && v != *copied; v = t->versions[v].base) missing[n_missing++] = v;
    const float *from = n_missing == 0 || t->versions[missing[n_missing - 1]].base != 0 ? t->copy : stored;
    while (n_missing > 0) {
        fold(t, t->copy, from, &t->versions[missing[--n_missing]], h, p, n);
        from = t->copy;
    }
    *copied = k;
    return t->copy;
}

/* S C of all outputs, for head h. */
static void find_products(const chunked_task *t, int32_t h)
{
    const spec_scan_args *a = t->part.job->a;
    const size_t n_state = (size_t)a->n_state, dim = (size_t)a->head_dim;
    for (int32_t p = 0; p < a->head_dim; p += PIECE) {
        const int32_t n = cpu_min(PIECE, a->head_dim - p);
        const bool last = h == t->part.head0 + t->part.n_head - 1 && p + 2 * PIECE > a->head_dim;
        const float *stored = state_of(t, h) + (size_t)p * n_state, *soon = last ? NULL : stored + PIECE * n_state;
        for (int32_t k = 0, copied = 0; k < t->n_version; k++) {
            const version *v = &t->versions[k];
            if (v->n == 0) continue;
            const float *s = piece_of(t, stored, k, &copied, h, p, n);
            float *y = t->y + (size_t)v->output * dim + p;
            t->part.job->q->dev->loops->products(y, dim, t->c + (size_t)v->output * n_state, (size_t)v->n, s, (size_t)n,
                                                 n_state, soon);
            soon = NULL;
        }
    }
}

/* Adds the near tokens to the products S C of version k's nodes, for head h. Committed ones are the same for all. */
static void add_near(const chunked_task *t, const version *v, int32_t h)
{
    const size_t dim = (size_t)t->part.job->a->head_dim;
    const int32_t lane = h - t->part.head0;
    for (int32_t i = 0; i < v->n; i++) {
        const output *p = &t->outputs[v->output + i];
        t->recalls[i] = (cpu_recall){ .y = t->y + (size_t)(v->output + i) * dim, .e = p->e[lane],
                                      .w = t->w + (size_t)(v->output + i) * NEAR * CPU_RUN + lane, .token = p->near,
                                      .n_token = (size_t)p->n_near };
    }
    t->part.job->q->dev->loops->recall(t->recalls, (size_t)v->n, (size_t)cpu_max(t->n_left - v->first, 0), t->x, dim);
}

static void store_output(const chunked_task *t, int32_t i, int32_t h)
{
    const int32_t dim = t->part.job->a->head_dim, token = t->n_left + t->outputs[i].node;
    for (int32_t c = 0; c < dim; c += SCAN_ROWS)
        speci_cpu_scan_store(&t->part, &t->from[token], t->y + (size_t)i * (size_t)dim + c,
                             t->x + (size_t)token * (size_t)dim + c, h, c, cpu_min(SCAN_ROWS, dim - c));
}

/* The task's tokens are those that the stored state lacks, and the tree. */
static void take_tokens(chunked_task *t)
{
    const scan_part *part = &t->part;
    const int32_t m = n_committed(part->s);
    t->nodes = spec_step_nodes(part->job->q->step) + part->s->first_node;
    t->n_left = spec_chunk_left(m);
    t->n_node = part->s->n_fed + part->s->n_row;
    for (int32_t j = 0; j < t->n_left; j++) take_token(t, j, committed(part, m - t->n_left + j));
    for (int32_t i = 0; i < t->n_node; i++) take_token(t, t->n_left + i, tree_node(part, i));
    find_decays(t, t->n_left + t->n_node);
}

static void run_nodes(chunked_task *t)
{
    const scan_part *part = &t->part;
    take_tokens(t);
    order_outputs(t);
    find_weights(t);
    for (int32_t h = part->head0; h < part->head0 + part->n_head; h++) {
        take_x(t, h, t->n_left + t->n_node);
        find_products(t, h);
        for (int32_t k = 0; k < t->n_version; k++) add_near(t, &t->versions[k], h);
        for (int32_t i = 0; i < part->s->n_row; i++) store_output(t, i, h);
    }
    for (int32_t i = 0; i < part->s->n_advance; i++)
        put_recent(part, &t->from[t->n_left + i], part->s->n_past + i);
}

/* --- tasks --- */

/* Heads that share B and C. */
static int32_t sharing(const spec_scan_args *a)
{
    int32_t x = a->b_rep, y = a->c_rep;
    while (y > 0) {
        const int32_t rest = x % y;
        x = y, y = rest;
    }
    return x;
}

void speci_cpu_scan_chunked_cut(scan_job *job)
{
    const spec_scan_args *a = job->a;
    const int32_t unit = sharing(a), n_unit = cpu_max(job->q->step->n_seq, 1) * (a->n_head / unit);
    const int32_t busy = cpu_parts(2 * job->q->dev->host->n_threads, n_unit); /* parts for two tasks per thread */
    const int32_t heads = cpu_parts(unit, cpu_min(unit, cpu_max(cpu_parts(unit, CPU_RUN), busy)));
    job->rows = heads * a->head_dim;
    job->n_part = a->n_head / unit * cpu_parts(unit, heads);
}

void speci_cpu_scan_chunked_task(void *arg, int32_t i)
{
    const scan_job *job = arg;
    const spec_step_seq *s = spec_step_seqs(job->q->step) + i / job->n_part;
    const int32_t unit = sharing(job->a), heads = job->rows / job->a->head_dim, parts = cpu_parts(unit, heads);
    const int32_t part = i % job->n_part, begin = part % parts * heads;
    chunked_task t = { .part = { .job = job, .s = s } };
    t.part.head0 = part / parts * unit + begin;
    t.part.n_head = cpu_min(heads, unit - begin);
    t.part.row0 = t.part.head0 * job->a->head_dim;
    t.part.n_row = t.part.n_head * job->a->head_dim;

    uint8_t *scratch = speci_cpu_scratch_take(job->q);
    (void)take_all(&t, job->a, scratch);
    fold_committed(&t);
    for (int32_t j = 0; j < s->n_replay; j++) {
        const scan_node n = committed(&t.part, s->n_recent + j);
        put_recent(&t.part, &n, s->n_past - s->n_replay + j);
    }
    if (s->n_row > 0) run_nodes(&t);
    speci_cpu_scratch_give(job->q, scratch);
}

/* --- checks --- */

spec_status speci_cpu_scan_chunked_check(const spec_device *dev, const spec_scan_args *a)
{
    const spec_host *h = dev->host;
    if (a->chunk != SPEC_CHUNK)
        return h->fail(SPEC_E_UNSUPPORTED, "scan: chunks of %d tokens, supported are %d", a->chunk, SPEC_CHUNK);
    if (a->a_per_state || a->node_state)
        return h->fail(SPEC_E_UNSUPPORTED, "scan: the chunked form takes one decay per head, and keeps no states of "
                       "nodes");
    if (a->n_recent_max < spec_recent_capacity(1, 0))
        return h->fail(SPEC_E_INVALID, "scan: buffers of %d recent tokens, need at least %d", a->n_recent_max,
                       spec_recent_capacity(1, 0));
    if (!a->recent_x || !a->recent_b || !a->recent_dt)
        return h->fail(SPEC_E_INVALID, "scan: no recent-token buffers");
    return SPEC_OK;
}

/* A node's number must say where it is in its path. */
static spec_status check_tree(const scan_job *job, const spec_step_seq *s)
{
    const spec_step_node *nodes = spec_step_nodes(job->q->step) + s->first_node;
    for (int32_t i = 0; i < s->n_fed + s->n_row; i++) {
        const spec_step_node *n = &nodes[i];
        if (n->parent < -1 || n->parent >= i || n->depth != (n->parent < 0 ? 0 : nodes[n->parent].depth + 1) ||
            n->depth > SPEC_MAX_DEPTH || (i < s->n_advance && n->parent != i - 1))
            return job->q->dev->host->fail(SPEC_E_INVALID, "scan: node %d: parent %d, depth %d; the first %d are a "
                                           "chain, and the deepest is %d", i, n->parent, n->depth, s->n_advance,
                                           SPEC_MAX_DEPTH);
    }
    return SPEC_OK;
}

spec_status speci_cpu_scan_chunked_check_step(const scan_job *job, const spec_step_seq *s)
{
    const spec_host *h = job->q->dev->host;
    const int32_t *path = spec_step_paths(job->q->step) + s->first_path;
    if (s->n_recent < 0 || s->n_replay < 0 || s->n_recent > job->a->n_recent_max || s->n_past < n_committed(s) ||
        n_committed(s) + s->n_advance > job->a->n_recent_max)
        return h->fail(SPEC_E_INVALID, "scan: %d recent tokens, %d replayed and %d in front, of %d positions; the "
                       "buffers hold %d", s->n_recent, s->n_replay, s->n_advance, s->n_past, job->a->n_recent_max);
    if (s->n_fed > 0 && (s->n_replay > 0 || spec_chunk_folds(s->n_recent) > 0))
        return h->fail(SPEC_E_INVALID, "scan: %d recent tokens and %d replayed in a later pass over a tree",
                       s->n_recent, s->n_replay);
    for (int32_t j = 0; j < s->n_replay; j++)
        if (path[j] < 0 || path[j] >= job->a->n_node)
            return h->fail(SPEC_E_INVALID, "scan: node %d replayed; the caches hold %d", path[j], job->a->n_node);
    return check_tree(job, s);
}
