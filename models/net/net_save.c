/* net_save.c - the memory of a sequence as a whole: copied to another slot, written, read.
 *
 * With no path pending, a sequence is its recurrent states with the recent tokens behind them, one half of each convolution
 * window, and K and V of the positions that it covers. The replay caches hold nothing that is still needed. */
#include "models/net/net.h"

static size_t type_bytes(spec_dtype t) { return t == SPEC_DTYPE_BF16 || t == SPEC_DTYPE_F16 ? 2 : 4; }

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static size_t head_bytes(const spec_kv *kv) /* of a page */
{
    return SPEC_PAGE * (size_t)kv->head_dim * type_bytes(kv->dtype);
}

static size_t page_bytes(const spec_kv *kv) { return (size_t)kv->n_kv_head * head_bytes(kv); }

static int32_t n_pages(int32_t n_past) { return n_past / SPEC_PAGE + (n_past % SPEC_PAGE > 0); }

/* --- copy --- */

/* A list that is handed to the device whenever it is full. */
typedef struct copy_list {
    speci_exec *net;
    int32_t n;
    spec_range_copy range[256];
} copy_list;

static spec_status copy_now(copy_list *c)
{
    const int32_t n = c->n;
    c->n = 0;
    return n > 0 ? c->net->ops->copy(c->net->queue, c->range, n) : SPEC_OK;
}

static spec_status copy_later(copy_list *c, char *to, const char *from, size_t bytes)
{
    if (c->n == sizeof c->range / sizeof *c->range) SPEC_TRY(copy_now(c));
    c->range[c->n++] = (spec_range_copy){ to, from, bytes };
    return SPEC_OK;
}

static spec_status copy_pages(copy_list *c, const net_seq *from, const net_seq *to)
{
    for (int32_t i = 0; i < c->net->plans.n_kv; i++) {
        const spec_kv *kv = &c->net->plans.kv[i];
        const size_t n = page_bytes(kv);
        char *halves[] = { kv->k, kv->v };
        for (int32_t p = 0; p < n_pages(from->n_past); p++)
            for (int h = 0; h < 2; h++)
                SPEC_TRY(copy_later(c, halves[h] + (size_t)to->page[p] * n, halves[h] + (size_t)from->page[p] * n, n));
    }
    return SPEC_OK;
}

static spec_status copy_memory(speci_exec *net, int32_t from, int32_t to)
{
    net_seq *f = &net->seqs[from], *t = &net->seqs[to];
    copy_list c = { .net = net };
    SPEC_TRY(speci_net_zero_begun(net));
    SPEC_TRY(speci_exec_flush(net, from));
    for (int32_t i = 0; i < net->plans.n_slot_memory; i++) {
        const net_slot_memory *m = &net->plans.slot_memory[i];
        SPEC_TRY(copy_later(&c, m->base + (size_t)to * m->bytes, m->base + (size_t)from * m->bytes, m->bytes));
    }
    SPEC_TRY(copy_pages(&c, f, t));
    SPEC_TRY(copy_now(&c));
    t->n_past = f->n_past, t->n_recent = f->n_recent, t->parity = f->parity;
    t->n_path = t->n_fed = 0;
    t->broken = t->begun = false;
    t->live = true;
    return SPEC_OK;
}

spec_status speci_exec_copy(speci_exec *net, int32_t from, int32_t to)
{
    SPEC_TRY(speci_net_reserve(net, &net->seqs[to], speci_exec_n_past(net, from)));
    const spec_status status = copy_memory(net, from, to);
    if (status != SPEC_OK) speci_exec_end(net, to);
    return status;
}

/* --- a sequence as spans of device memory --- */

typedef spec_status (*span_fn)(void *arg, char *data, size_t bytes);

/* x, B and dt of the recent tokens, oldest first, wherever in the rings they are. */
static spec_status recent_spans(const spec_scan_args *a, const net_seq *s, int32_t slot, span_fn each, void *arg)
{
    const size_t type = type_bytes(a->dtype), dt = (size_t)a->n_head * sizeof(float);
    const size_t x = (size_t)spec_scan_columns(a->n_head, a->x_rep, a->head_dim) * type;
    const size_t b = (size_t)spec_scan_columns(a->n_head, a->b_rep, a->n_state) * type;
    for (int32_t p = s->n_past - s->n_recent; p < s->n_past; p++) {
        const size_t entry = (size_t)slot * (size_t)a->n_recent_max + (size_t)(p % a->n_recent_max);
        SPEC_TRY(each(arg, (char *)a->recent_x + entry * x, x));
        SPEC_TRY(each(arg, (char *)a->recent_b + entry * b, b));
        SPEC_TRY(each(arg, (char *)a->recent_dt + entry * dt, dt));
    }
    return SPEC_OK;
}

static spec_status recurrent_spans(const spec_op *op, const net_seq *s, int32_t slot, span_fn each, void *arg)
{
    if (op->kind == SPEC_OP_CONV) {
        const spec_conv_args *a = &op->u.conv;
        const size_t half = (size_t)(a->width - 1) * (size_t)a->n_channel * type_bytes(a->dtype);
        return each(arg, (char *)a->window + ((size_t)slot * 2 + (size_t)s->parity) * half, half);
    }
    if (op->kind == SPEC_OP_SCAN) {
        const spec_scan_args *a = &op->u.scan;
        const size_t bytes = (size_t)a->n_head * (size_t)a->head_dim * (size_t)a->n_state * sizeof *a->state;
        SPEC_TRY(each(arg, (char *)a->state + (size_t)slot * bytes, bytes));
        if (a->chunk > 0) return recent_spans(a, s, slot, each, arg);
    }
    return SPEC_OK;
}

/* The first n positions of a page. */
static spec_status page_spans(const spec_kv *kv, char *page, int32_t n, span_fn each, void *arg)
{
    if (n == SPEC_PAGE) return each(arg, page, page_bytes(kv));
    const size_t head = head_bytes(kv);
    for (int32_t h = 0; h < kv->n_kv_head; h++)
        SPEC_TRY(each(arg, page + (size_t)h * head, head / SPEC_PAGE * (size_t)n));
    return SPEC_OK;
}

/* Calls each() for all that belongs to the sequence, in the order of the file. With no pages in s (s->page NULL) sizes
 * are right and places are not. */
static spec_status spans(const speci_exec *net, const net_seq *s, int32_t slot, span_fn each, void *arg)
{
    for (int32_t i = 0; i < net->plans.n_op[SPEC_PHASE_DECODE]; i++)
        SPEC_TRY(recurrent_spans(&net->plans.ops[SPEC_PHASE_DECODE][i], s, slot, each, arg));
    for (int32_t i = 0; i < net->plans.n_kv; i++) {
        const spec_kv *kv = &net->plans.kv[i];
        char *halves[] = { kv->k, kv->v };
        for (int h = 0; h < 2; h++)
            for (int32_t p = 0; p < n_pages(s->n_past); p++) {
                const int32_t left = s->n_past - p * SPEC_PAGE;
                char *page = halves[h] + (size_t)(s->page ? s->page[p] : 0) * page_bytes(kv);
                SPEC_TRY(page_spans(kv, page, left < SPEC_PAGE ? left : SPEC_PAGE, each, arg));
            }
    }
    return SPEC_OK;
}

typedef struct span_sizes {
    uint64_t total;
    size_t largest;
} span_sizes;

static spec_status measure(void *arg, char *data, size_t bytes)
{
    span_sizes *m = arg;
    (void)data;
    m->total += bytes;
    m->largest = max_size(m->largest, bytes);
    return SPEC_OK;
}

static span_sizes sizes_of(const speci_exec *net, int32_t n_past, int32_t n_recent)
{
    span_sizes m = { 0 };
    const net_seq s = { .n_past = n_past, .n_recent = n_recent };
    spans(net, &s, 0, measure, &m);
    return m;
}

bool speci_exec_can_lag(const speci_exec *net, int32_t n_past, int32_t n_recent)
{
    return n_recent == 0 || (net->shape.n_recent_max > 0 && n_recent > 0 && n_recent <= n_past && n_recent < 2 * SPEC_CHUNK);
}

/* States, and as much again for each position: a count that a file claims is answered at once, however large. */
uint64_t speci_exec_data_bytes(const speci_exec *net, int32_t n_past, int32_t n_recent)
{
    const uint64_t none = sizes_of(net, 0, 0).total, position = sizes_of(net, 1, 0).total - none;
    return none + (uint64_t)n_past * position + (uint64_t)n_recent * (sizes_of(net, 1, 1).total - none - position);
}

/* --- write, read --- */

enum { STAGE = 1 << 20 }; /* bytes that are fetched from the device at once, unless a span is larger */

typedef struct transfer {
    speci_exec *net;
    speci_put_fn put;
    speci_get_fn get;
    void *arg;
    char *stage;
    size_t n, cap;
} transfer;

static spec_status drain(transfer *t)
{
    const size_t n = t->n;
    t->n = 0;
    if (n == 0) return SPEC_OK;
    SPEC_TRY(t->net->ops->sync(t->net->queue));
    return t->put(t->arg, t->stage, n);
}

static spec_status write_span(void *arg, char *data, size_t bytes)
{
    transfer *t = arg;
    if (bytes > t->cap - t->n) SPEC_TRY(drain(t));
    SPEC_TRY(t->net->ops->download(t->net->queue, t->stage + t->n, data, bytes));
    t->n += bytes;
    return SPEC_OK;
}

static spec_status read_span(void *arg, char *data, size_t bytes)
{
    transfer *t = arg;
    SPEC_TRY(t->get(t->arg, t->stage, bytes));
    return t->net->ops->upload(t->net->queue, data, t->stage, bytes);
}

spec_status speci_exec_write(speci_exec *net, int32_t slot, speci_put_fn put, void *arg)
{
    const net_seq *s = &net->seqs[slot];
    transfer t = { .net = net, .put = put, .arg = arg };
    t.cap = max_size(sizes_of(net, s->n_past, s->n_recent).largest, STAGE);
    SPEC_TRY(speci_net_zero_begun(net));
    if (!(t.stage = speci_alloc(net->a, 1, t.cap))) return SPEC_E_NOMEM;
    spec_status status = spans(net, s, slot, write_span, &t);
    if (status == SPEC_OK) status = drain(&t);
    if (t.n > 0) net->ops->sync(net->queue); /* after an error: nothing may still be on its way into the stage */
    speci_free(net->a, t.stage);
    return status;
}

spec_status speci_exec_read(speci_exec *net, int32_t slot, int32_t n_past, int32_t n_recent, speci_get_fn get, void *arg)
{
    net_seq *s = &net->seqs[slot];
    SPEC_TRY(speci_net_reserve(net, s, n_past));
    speci_exec_begin(net, slot);
    SPEC_TRY(speci_net_zero_begun(net));
    s->n_past = n_past, s->n_recent = n_recent;
    transfer t = { .net = net, .get = get, .arg = arg };
    if (!(t.stage = speci_alloc(net->a, 1, sizes_of(net, n_past, n_recent).largest))) return SPEC_E_NOMEM;
    const spec_status status = spans(net, s, slot, read_span, &t);
    speci_free(net->a, t.stage);
    return status;
}
