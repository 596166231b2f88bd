/* draft_vocab.c - the vocabulary of a model that drafts: the target's, or another one (algorithms.md 18).
 *
 * With another one the sequence is kept in the drafter's ids (draft_grow.c), and there are two ways to draft:
 *
 *   intersection   logits go to the places of the target's ids; those without a twin are -infinity (spec_gather_args).
 *                  Distributions made of them are restricted and normalised before anything is drawn, and all that follows
 *                  (trees, rules) is as with the target's own vocabulary
 *   text           trees grow in the drafter's ids, likeliest first, and become text (draft_write.c) */
#include "algorithms/draft/draft_model.h"

#include <math.h>
#include <stdio.h>

enum {
    COVER_PERCENT = 60, /* of the drafter's probability, for the intersection */
    PROBE_MOST = 128,   /* tokens of the probe text that the drafter reads */
    ROOM = 256,         /* ids behind a context, so that no step takes memory: those of a path and a long piece */
    ROOM_ENDLESS = 1024 /* ids, and half as many more as there are, where there is no limit of context */
};

/* Prose, dialogue, numbers and code, in about equal parts. */
static const char probe_text[] =
    "The harbour lay quiet in the early morning, and only two of the fishing boats had not come back yet. \"They will be late,\" "
    "said the old woman, \"because the wind has turned.\" Nobody answered her.\n\n"
    "In 1998 the town had 4,250 people; by 2020 there were 3,117, which is about 27% fewer. If this goes on, how many will be "
    "left in 2042? First we work out the change per year.\n\n"
    "def total(items):\n    result = 0\n    for item in items:\n        if item.price > 0:\n"
    "            result += item.price * item.count\n    return result\n";

/* --- does it fit the target? --- */

spec_status speci_draft_vocab_check(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    if (m->tokenizer && target->tokenizer) return SPEC_OK;
    if (d->vocab != SPEC_DRAFT_VOCAB_AUTO)
        return speci_fail(SPEC_E_INVALID, "to draft by another vocabulary takes the tokenizers of both models, and %s has none",
                          m->tokenizer ? target->path : m->path);
    if (m->n_vocab != target->n_vocab)
        return speci_fail(SPEC_E_INVALID,
                          "the drafter has %d ids and the target %d, and without both tokenizers they cannot be compared: give %s "
                          "its tokenizer", m->n_vocab, target->n_vocab, m->tokenizer ? target->path : m->path);
    return SPEC_OK;
}

/* Tokens that one of the models has no row for are never proposed. */
static bool is_other(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    int32_t first;
    if (d->vocab != SPEC_DRAFT_VOCAB_AUTO) return true;
    if (!m->tokenizer || !target->tokenizer) return false;
    return !speci_same_pieces(m->tokenizer, target->tokenizer, speci_min32(m->n_vocab, target->n_vocab), &first);
}

/* --- memory --- */

/* A row of logits or distributions for every row of draft distributions. */
static size_t rows_bytes(const model_draft *m, int32_t n_column)
{
    return (size_t)m->d->site->n_seq * (size_t)m->d->site->n_q * (size_t)n_column * sizeof(float);
}

static size_t column_bytes(const model_draft *m)
{
    return ((size_t)m->d->site->target->n_vocab * sizeof(int32_t) + 255) / 256 * 256;
}

/* Until it is chosen there is room for both. */
static size_t vocab_bytes(const model_draft *m)
{
    const size_t text = rows_bytes(m, m->model->n_vocab);
    const size_t intersection = column_bytes(m) + rows_bytes(m, m->d->site->target->n_vocab);
    if (m->vocab.how == SPEC_DRAFT_VOCAB_TEXT) return text;
    if (m->vocab.how == SPEC_DRAFT_VOCAB_INTERSECTION) return intersection;
    return text > intersection ? text : intersection;
}

spec_status speci_draft_vocab_open(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    const spec_model *target = site->target;
    m->vocab.n_q_column = target->n_vocab;
    if (m->is_head) {
        m->vocab.columns = speci_head_columns(m->model);
        m->vocab.bytes = m->vocab.columns ? column_bytes(m) + rows_bytes(m, target->n_vocab) : 0;
        return SPEC_OK;
    }
    if (!is_other(m->d->drafter, target)) return SPEC_OK;
    SPEC_TRY(speci_token_map_open(&m->vocab.map, target->tokenizer, target->n_vocab, m->model->tokenizer, m->model->n_vocab,
                                  site->a));
    m->vocab.how = m->d->drafter->vocab;
    m->vocab.bytes = vocab_bytes(m);
    return SPEC_OK;
}

spec_status speci_draft_vocab_seq(model_draft *m, model_seq *s)
{
    const speci_draft_size *z = &m->d->size;
    s->own.ids.a = m->d->site->a;
    if (!m->vocab.map || m->vocab.how == SPEC_DRAFT_VOCAB_INTERSECTION) return SPEC_OK;
    return spec_tree_alloc(&s->written, z->pool > z->n_node ? z->pool : z->n_node, m->d->site->a);
}

void speci_draft_vocab_close(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    for (int32_t i = 0; m->seqs && i < site->n_seq; i++) {
        speci_buf_free(&m->seqs[i].own.ids);
        spec_tree_free(&m->seqs[i].written, site->a);
    }
    if (m->vocab.base) site->ops->free(site->dev, m->vocab.base, m->vocab.bytes);
    speci_token_map_close(m->vocab.map);
}

/* --- how much of the drafter's probability is on the target's tokens? --- */

/* Of one row of logits, on tokens with a twin. */
static double covered(const uint8_t *has_twin, const float *logits, int32_t n)
{
    double all = 0, mapped = 0;
    float most = -INFINITY;
    for (int32_t i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
    for (int32_t i = 0; i < n; i++) {
        const double e = exp((double)logits[i] - (double)most);
        all += e, mapped += has_twin[i] ? e : 0;
    }
    return all > 0 ? mapped / all : 0;
}

/* Scratch of a measurement. */
typedef struct probe {
    speci_buf ids;     /* int32_t */
    float *rows;       /* [n_node][n_vocab] */
    uint8_t *has_twin; /* [n_vocab] */
    spec_tree chain;
} probe;

static spec_status probe_open(probe *p, const model_draft *m)
{
    const spec_allocator *a = m->d->site->a;
    const speci_token_map *map = m->vocab.map;
    const size_t n_vocab = (size_t)m->model->n_vocab;
    p->ids.a = a;
    SPEC_TRY(speci_encode_on(&p->ids, map->to, probe_text, sizeof probe_text - 1));
    SPEC_TRY(spec_tree_alloc(&p->chain, speci_min32(m->n_node, SPEC_MAX_DEPTH + 1), a));
    p->rows = speci_alloc(a, (size_t)p->chain.cap * n_vocab, sizeof *p->rows);
    p->has_twin = speci_alloc(a, n_vocab, sizeof *p->has_twin);
    if (!p->rows || !p->has_twin) return SPEC_E_NOMEM;
    for (int32_t t = 0; t < map->n_from; t++)
        if (map->twin[t] >= 0) p->has_twin[map->twin[t]] = 1;
    return SPEC_OK;
}

static void probe_close(probe *p, const spec_allocator *a)
{
    speci_buf_free(&p->ids);
    spec_tree_free(&p->chain, a);
    speci_free(a, p->rows);
    speci_free(a, p->has_twin);
}

/* One pass over the next ids [n]; adds up what its rows cover. */
static spec_status probe_pass(model_draft *m, probe *p, const int32_t *ids, int32_t n, double *sum)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n_vocab = m->model->n_vocab;
    const speci_exec_input in = { .slot = 0, .tree = &p->chain };
    p->chain.n = 0;
    for (int32_t i = 0; i < n; i++) m->path[i] = spec_tree_add(&p->chain, i - 1, ids[i] < n_vocab ? ids[i] : 0, 0);
    SPEC_TRY(m->exec->kind->forward(m->exec, &in, 1, NULL, NULL));
    for (int32_t i = 0; i < n; i++) {
        const float *logits = m->exec->logits + (size_t)(m->exec->first_row[0] + i) * (size_t)m->exec->n_logit;
        SPEC_TRY(site->ops->download(site->queue, p->rows + (size_t)i * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof *logits));
    }
    SPEC_TRY(site->ops->sync(site->queue));
    for (int32_t i = 0; i < n; i++) *sum += covered(p->has_twin, p->rows + (size_t)i * (size_t)n_vocab, n_vocab);
    m->exec->kind->commit(m->exec, 0, m->path, n);
    return SPEC_OK;
}

/* The mean over the probe text, read by decode passes, which have logits. */
static spec_status measure_cover(model_draft *m, double *cover)
{
    probe p = { 0 };
    double sum = 0;
    spec_status status = probe_open(&p, m);
    const int32_t *ids = speci_buf_ids(&p.ids);
    int32_t n = speci_min32((int32_t)(p.ids.n / sizeof *ids), PROBE_MOST);
    if (m->n_ctx > 0) n = speci_min32(n, m->n_ctx);
    if (status == SPEC_OK) m->exec->kind->begin(m->exec, 0);
    for (int32_t i = 0, k; i < n && status == SPEC_OK; i += k) {
        k = speci_min32(n - i, p.chain.cap);
        status = probe_pass(m, &p, ids + i, k, &sum);
    }
    m->exec->kind->end(m->exec, 0);
    probe_close(&p, m->d->site->a);
    *cover = n > 0 ? sum / n : 0;
    return status;
}

/* --- how it drafts --- */

static spec_status choose(model_draft *m)
{
    double cover = 0;
    model_vocab *v = &m->vocab;
    char why[96] = "as asked for";
    if (v->how == SPEC_DRAFT_VOCAB_AUTO) {
        SPEC_TRY(measure_cover(m, &cover));
        v->how = 100 * cover >= COVER_PERCENT ? SPEC_DRAFT_VOCAB_INTERSECTION : SPEC_DRAFT_VOCAB_TEXT;
        snprintf(why, sizeof why, "they have %.0f %% of its probability on a probe text, and %d %% decide", 100 * cover, COVER_PERCENT);
    }
    speci_log(m->model->backend, SPEC_LOG_INFO,
              "%s has another vocabulary than %s: %d of its %d tokens are tokens of both. It drafts by %s: %s", m->model->path,
              m->d->site->target->path, v->map->n_twin, m->model->n_vocab,
              v->how == SPEC_DRAFT_VOCAB_TEXT ? "text" : "their intersection", why);
    return SPEC_OK;
}

spec_status speci_draft_vocab_attach(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    model_vocab *v = &m->vocab;
    v->q = site->q;
    if (!v->map && !v->columns) return SPEC_OK;
    if (v->map) SPEC_TRY(choose(m));
    SPEC_TRY(site->ops->alloc(site->dev, &v->base, v->bytes));
    v->by_text = v->map && v->how == SPEC_DRAFT_VOCAB_TEXT;
    if (v->by_text) {
        v->q = v->base;
        v->n_q_column = m->model->n_vocab;
        return SPEC_OK;
    }
    if (v->map) v->columns = v->feed = v->map->twin;
    v->column = v->base;
    v->logits = (float *)(void *)((char *)v->base + column_bytes(m));
    return site->ops->upload(site->queue, v->column, v->columns, (size_t)site->target->n_vocab * sizeof *v->column);
}

/* --- room for a sequence in the drafter's ids --- */

static int32_t n_ids_of(const spec_tokenizer *t, const spec_allocator *a)
{
    speci_buf ids = { .a = a };
    const spec_status status = speci_encode_on(&ids, t, probe_text, sizeof probe_text - 1);
    const int32_t n = status == SPEC_OK ? (int32_t)speci_buf_n_ids(&ids) : 1;
    speci_buf_free(&ids);
    return n > 0 ? n : 1;
}

/* As the probe text needs them, and a quarter more. */
int32_t speci_draft_positions(const model_draft *m, int32_t n_ctx)
{
    const speci_token_map *map = m->vocab.map;
    const spec_allocator *a = m->d->site->a;
    if (!map) return n_ctx;
    const int64_t n = (int64_t)n_ctx * n_ids_of(map->to, a) / n_ids_of(map->from, a) * 5 / 4 + ROOM;
    return n < 1 << 30 ? (int32_t)n : 1 << 30;
}

int64_t speci_draft_room_of(const model_draft *m, const speci_draft_seq *q)
{
    const int32_t n_ctx = m->n_ctx > 0 ? m->n_ctx : m->n_own;
    return n_ctx > 0 ? (int64_t)n_ctx + ROOM : (int64_t)q->n_ids + q->n_ids / 2 + ROOM_ENDLESS;
}
