/* net_save.c - the memory of a sequence as a whole: copied to another slot, written, read.
 *
 * With no path pending, a sequence is its recurrent states with the recent tokens behind them, one half of each convolution
 * window, and K and V of the positions that it covers. The replay caches hold nothing that is still needed. */
#include "models/net/net.h"

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static int32_t n_pages(int32_t n_past) { return n_past / SPEC_PAGE + (n_past % SPEC_PAGE > 0); }

/* --- copy --- */

/* A list that is handed to the device whenever it is full. */
typedef struct copy_list {
    net_exec *net;
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

/* Buffer by buffer, both halves of what has two; of KV whole pages. */
typedef struct copy_work {
    copy_list list;
    int32_t from, to;
} copy_work;

static spec_status copy_buffer(void *arg, const net_buffer *b)
{
    copy_work *w = arg;
    const net_seq *from = &w->list.net->seqs[w->from], *to = &w->list.net->seqs[w->to];
    const size_t n = speci_net_slot_bytes(b);
    if (!b->saved) return SPEC_OK;
    if (b->role != NET_KV)
        return copy_later(&w->list, b->base + (size_t)w->to * n, b->base + (size_t)w->from * n, n);
    for (int32_t p = 0; p < n_pages(from->n_past); p++)
        SPEC_TRY(copy_later(&w->list, b->base + (size_t)to->page[p] * n, b->base + (size_t)from->page[p] * n, n));
    return SPEC_OK;
}

static spec_status copy_memory(net_exec *net, int32_t from, int32_t to)
{
    net_seq *f = &net->seqs[from], *t = &net->seqs[to];
    copy_work w = { .list = { .net = net }, .from = from, .to = to };
    SPEC_TRY(speci_net_zero_begun(net));
    SPEC_TRY(speci_net_flush(&net->base, from));
    SPEC_TRY(speci_net_each_buffer(&net->plans, copy_buffer, &w));
    SPEC_TRY(copy_now(&w.list));
    t->n_past = f->n_past, t->n_recent = f->n_recent, t->parity = f->parity;
    t->n_path = t->n_fed = 0;
    t->broken = false;
    t->live = true;
    return SPEC_OK;
}

spec_status speci_net_copy(speci_exec *exec, int32_t from, int32_t to)
{
    net_exec *net = exec->state;
    SPEC_TRY(speci_net_reserve(net, &net->seqs[to], speci_net_n_past(exec, from)));
    const spec_status status = copy_memory(net, from, to);
    if (status != SPEC_OK) speci_net_end(exec, to);
    return status;
}

/* --- a sequence as spans of device memory --- */

typedef spec_status (*span_fn)(void *arg, char *data, size_t bytes);

typedef struct span_walk {
    const net_seq *s; /* no pages in it (page NULL): sizes are right and places are not */
    int32_t slot;
    span_fn each;
    void *arg;
} span_walk;

/* What does not grow with the tokens. */
static spec_status fixed_spans(const span_walk *w, const net_buffer *b)
{
    const size_t half = b->bytes * (size_t)b->n;
    const size_t first = (size_t)w->slot * speci_net_slot_bytes(b) + (b->halves ? (size_t)w->s->parity * half : 0);
    return w->each(w->arg, b->base + first, half);
}

/* The recent tokens of n neighbouring buffers, oldest first, wherever in the buffers they are: all of a token, then the next's. */
static spec_status recent_spans(const span_walk *w, const net_buffer *b, int32_t n)
{
    for (int32_t p = w->s->n_past - w->s->n_recent; p < w->s->n_past; p++)
        for (int32_t i = 0; i < n; i++) {
            const size_t entry = (size_t)w->slot * (size_t)b[i].n + (size_t)(p % b[i].n);
            SPEC_TRY(w->each(w->arg, b[i].base + entry * b[i].bytes, b[i].bytes));
        }
    return SPEC_OK;
}

/* The covered positions, page by page and head by head. */
static spec_status page_spans(const span_walk *w, const net_buffer *b)
{
    const size_t page = speci_net_slot_bytes(b), head = page / (size_t)b->n;
    for (int32_t p = 0; p < n_pages(w->s->n_past); p++) {
        const int32_t left = w->s->n_past - p * SPEC_PAGE;
        char *at = b->base + (size_t)(w->s->page ? w->s->page[p] : 0) * page;
        if (left >= SPEC_PAGE) SPEC_TRY(w->each(w->arg, at, page));
        for (int32_t h = 0; left < SPEC_PAGE && h < b->n; h++)
            SPEC_TRY(w->each(w->arg, at + (size_t)h * head, (size_t)left * b->bytes));
    }
    return SPEC_OK;
}

static bool is_saved(const net_buffer *b, net_role role) { return b->saved && b->bytes > 0 && b->role == role; }

static spec_status kept_spans(const span_walk *w, const net_kept *kept)
{
    for (int32_t i = 0; i < kept->n; i++) {
        const net_buffer *b = &kept->buffer[i];
        int32_t n = 1;
        if (is_saved(b, NET_STATE) || is_saved(b, NET_CONV)) SPEC_TRY(fixed_spans(w, b));
        if (!is_saved(b, NET_RECENT)) continue;
        while (i + n < kept->n && is_saved(b + n, NET_RECENT)) n++;
        SPEC_TRY(recent_spans(w, b, n));
        i += n - 1;
    }
    return SPEC_OK;
}

static spec_status kv_spans(void *arg, const net_buffer *b)
{
    return is_saved(b, NET_KV) ? page_spans(arg, b) : SPEC_OK;
}

/* Calls each() for all that belongs to the sequence, in the order of the file: branch by branch what is no KV, then KV. */
static spec_status spans(const net_exec *net, const net_seq *s, int32_t slot, span_fn each, void *arg)
{
    span_walk w = { .s = s, .slot = slot, .each = each, .arg = arg };
    for (int32_t i = 0; i < net->plans.n_kept; i++) SPEC_TRY(kept_spans(&w, &net->plans.kept[i]));
    return speci_net_each_buffer(&net->plans, kv_spans, &w);
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

static span_sizes sizes_of(const net_exec *net, int32_t n_past, int32_t n_recent)
{
    span_sizes m = { 0 };
    const net_seq s = { .n_past = n_past, .n_recent = n_recent };
    spans(net, &s, 0, measure, &m);
    return m;
}

bool speci_net_can_lag(const speci_exec *exec, int32_t n_past, int32_t n_recent)
{
    const net_exec *net = exec->state;
    return n_recent == 0 || (net->shape.n_recent_max > 0 && n_recent > 0 && n_recent <= n_past && n_recent < 2 * SPEC_CHUNK);
}

/* By which frequencies keys were turned, if the model has two sets: a byte in front of its memory. */
static spec_status write_set(const net_exec *net, speci_put_fn put, void *arg)
{
    const int32_t n_short = speci_net_n_short(net->base.model);
    const uint8_t is_long = speci_net_is_long(&net->shape, n_short);
    return n_short > 0 ? put(arg, &is_long, 1) : SPEC_OK;
}

static spec_status read_set(const net_exec *net, speci_get_fn get, void *arg)
{
    const int32_t n_short = speci_net_n_short(net->base.model);
    uint8_t was_long;
    if (n_short == 0) return SPEC_OK;
    SPEC_TRY(get(arg, &was_long, 1));
    if (was_long == speci_net_is_long(&net->shape, n_short)) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT,
                      "saved sequence: of a session whose n_ctx was %s %d, where the model's positions change; this one's is %d",
                      was_long ? "beyond" : "at most", n_short + 1, net->shape.n_ctx);
}

/* States, and as much again for each position: a count that a file claims is answered at once, however large. */
uint64_t speci_net_data_bytes(const speci_exec *exec, int32_t n_past, int32_t n_recent)
{
    const net_exec *net = exec->state;
    const uint64_t none = sizes_of(net, 0, 0).total, position = sizes_of(net, 1, 0).total - none;
    const uint64_t recent = sizes_of(net, 1, 1).total - none - position, set = speci_net_n_short(net->base.model) > 0;
    return set + none + (uint64_t)n_past * position + (uint64_t)n_recent * recent;
}

/* --- write, read --- */

enum { STAGE = 1 << 20 }; /* bytes that are fetched from the device at once, unless a span is larger */

typedef struct transfer {
    net_exec *net;
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

spec_status speci_net_write(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg)
{
    net_exec *net = exec->state;
    const net_seq *s = &net->seqs[slot];
    transfer t = { .net = net, .put = put, .arg = arg };
    t.cap = max_size(sizes_of(net, s->n_past, s->n_recent).largest, STAGE);
    SPEC_TRY(speci_net_zero_begun(net));
    SPEC_TRY(write_set(net, put, arg));
    if (!(t.stage = speci_alloc(net->a, 1, t.cap))) return SPEC_E_NOMEM;
    spec_status status = spans(net, s, slot, write_span, &t);
    if (status == SPEC_OK) status = drain(&t);
    if (t.n > 0) net->ops->sync(net->queue); /* after an error: nothing may still be on its way into the stage */
    speci_free(net->a, t.stage);
    return status;
}

/* The bytes follow from the positions. */
spec_status speci_net_read(speci_exec *exec, int32_t slot, const speci_exec_saved *saved, speci_get_fn get, void *arg)
{
    net_exec *net = exec->state;
    net_seq *s = &net->seqs[slot];
    SPEC_TRY(read_set(net, get, arg));
    SPEC_TRY(speci_net_reserve(net, s, saved->n_past));
    speci_net_begin(exec, slot);
    SPEC_TRY(speci_net_zero_begun(net));
    s->n_past = saved->n_past, s->n_recent = saved->n_recent;
    transfer t = { .net = net, .get = get, .arg = arg };
    if (!(t.stage = speci_alloc(net->a, 1, sizes_of(net, s->n_past, s->n_recent).largest))) return SPEC_E_NOMEM;
    const spec_status status = spans(net, s, slot, read_span, &t);
    speci_free(net->a, t.stage);
    return status;
}
