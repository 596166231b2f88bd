/* draft_open.c - drafters as objects: a model, or an application's own callbacks. */
#include "algorithms/engine/engine.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_N_DRAFT = 4 };

/* --- its trees --- */

/* The k-th piece of "a;b;c", or NULL behind the last. */
static const char *piece(const char *text, int32_t k, size_t *n)
{
    for (; k > 0 && text; k--) {
        text = strchr(text, ';');
        if (text) text++;
    }
    if (text) *n = strcspn(text, ";");
    return text;
}

static spec_status open_builder(spec_drafter *d, const char *text, size_t n)
{
    char *own = speci_alloc(d->allocator, n + 1, 1);
    if (!own) return SPEC_E_NOMEM;
    memcpy(own, text, n);
    const spec_status status = spec_builder_open(&d->builders[d->n_builder], own, d->allocator);
    if (status == SPEC_OK) d->n_builder++;
    speci_free(d->allocator, own);
    return status;
}

static spec_status open_builders(spec_drafter *d, const spec_drafter_params *p)
{
    char chain[32];
    snprintf(chain, sizeof chain, "chain:%d", d->n_draft);
    const char *text = p->tree ? p->tree : chain;
    size_t n = 0;
    int32_t count = 1;
    while (!p->builder && piece(text, count, &n)) count++;
    if (count >= SPEC_MAX_ARM)
        return speci_fail(SPEC_E_INVALID, "%d trees to choose from; at most %d", count, SPEC_MAX_ARM - 1);
    if (!(d->builders = speci_alloc(d->allocator, (size_t)count, sizeof *d->builders))) return SPEC_E_NOMEM;
    if (p->builder) {
        d->builders[0] = p->builder;
        d->n_builder = 1;
        d->borrowed = true;
        return SPEC_OK;
    }
    for (int32_t i = 0; i < count; i++) {
        const char *at = piece(text, i, &n);
        SPEC_TRY(open_builder(d, at, n));
    }
    return SPEC_OK;
}

static spec_status create(spec_drafter **out, const spec_allocator *a, const spec_drafter_params *params,
                          bool whole_trees)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    *out = NULL;
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_drafter_params"));
    if (p.n_draft < 0 || p.n_draft > SPEC_MAX_DEPTH)
        return speci_fail(SPEC_E_INVALID, "n_draft is %d; it must be 1 to %d (0 = %d)", p.n_draft, SPEC_MAX_DEPTH,
                          DEFAULT_N_DRAFT);
    if (!(p.temperature >= 0))
        return speci_fail(SPEC_E_INVALID, "draft temperature is %g", (double)p.temperature);
    if (whole_trees && (p.tree || p.builder))
        return speci_fail(SPEC_E_INVALID, "a drafter that proposes whole trees builds them itself: no tree, no builder");
    spec_drafter *d = speci_alloc(a, 1, sizeof *d);
    if (!d) return SPEC_E_NOMEM;
    d->allocator = a;
    d->n_draft = p.n_draft ? p.n_draft : DEFAULT_N_DRAFT;
    d->temperature = p.temperature;
    atomic_flag_clear(&d->in_use);
    const spec_status status = whole_trees ? SPEC_OK : open_builders(d, &p);
    if (status != SPEC_OK) {
        spec_drafter_close(d);
        return status;
    }
    *out = d;
    return SPEC_OK;
}

spec_status spec_drafter_from_model(spec_drafter **out, spec_model *model, const spec_drafter_params *params)
{
    SPEC_TRY(create(out, model->allocator, params, false));
    (*out)->model = model;
    return SPEC_OK;
}

spec_status spec_drafter_from_ops(spec_drafter **out, const spec_drafter_ops *ops, const spec_drafter_params *params)
{
    spec_drafter_ops own = { .struct_size = sizeof own };
    SPEC_TRY(speci_params_read(&own, sizeof own, ops, "spec_drafter_ops"));
    if (!own.draft == !own.distributions)
        return speci_fail(SPEC_E_INVALID, "a drafter needs one of the callbacks draft and distributions, this one has %s",
                          own.draft ? "both" : "neither");
    SPEC_TRY(create(out, &speci_malloc, params, own.draft != NULL));
    (*out)->ops = own;
    return SPEC_OK;
}

void spec_drafter_close(spec_drafter *d)
{
    if (!d) return;
    if (d->ops.close) d->ops.close(d->ops.user_data);
    for (int32_t i = 0; i < d->n_builder && !d->borrowed; i++) spec_builder_close(d->builders[i]);
    speci_free(d->allocator, d->builders);
    speci_free(d->allocator, d);
}

/* --- does it fit a target? --- */

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

/* A drafter speaks in ids: where its pieces differ from the target's, its proposals would mean something else. */
static spec_status check_pieces(const spec_model *draft, const spec_model *target)
{
    const spec_tokenizer *d = draft->tokenizer, *t = target->tokenizer;
    const int32_t n = min32(spec_tokenizer_n_vocab(d), spec_tokenizer_n_vocab(t));
    for (int32_t id = 0; id < n; id++) {
        size_t nd, nt;
        const char *pd = spec_tokenizer_piece(d, id, &nd), *pt = spec_tokenizer_piece(t, id, &nt);
        if (nd != nt || (nd > 0 && memcmp(pd, pt, nd) != 0))
            return speci_fail(SPEC_E_INVALID,
                              "the drafter has another vocabulary: token %d is \"%.*s\" in %s and \"%.*s\" in %s", id,
                              (int)nd, pd ? pd : "", draft->path, (int)nt, pt ? pt : "", target->path);
    }
    return SPEC_OK;
}

spec_status speci_drafter_check(const spec_drafter *d, const spec_model *target)
{
    if (!d->model) return SPEC_OK;
    if (d->model->backend != target->backend)
        return speci_fail(SPEC_E_INVALID, "the drafter %s is on backend %s, the target on %s: load both on one",
                          d->model->path, spec_backend_name(d->model->backend), spec_backend_name(target->backend));
    if (d->model->tokenizer && target->tokenizer) return check_pieces(d->model, target);
    if (d->model->n_vocab != target->n_vocab)
        return speci_fail(SPEC_E_INVALID,
                          "the drafter has %d ids and the target %d, and without both tokenizers they cannot be compared",
                          d->model->n_vocab, target->n_vocab);
    return SPEC_OK;
}
