/* draft_open.c - drafters as objects: what all kinds share, and the kinds that are made from text. */
#include "algorithms/draft/draft.h"

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

spec_status speci_drafter_create(spec_drafter **out, const speci_draft_kind *kind, const spec_allocator *a,
                                 const spec_drafter_params *params, bool builders)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    *out = NULL;
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_drafter_params"));
    if (p.n_draft < 0 || p.n_draft > SPEC_MAX_DEPTH)
        return speci_fail(SPEC_E_INVALID, "n_draft is %d; it must be 1 to %d (0 = %d)", p.n_draft, SPEC_MAX_DEPTH,
                          DEFAULT_N_DRAFT);
    if (!(p.temperature >= 0))
        return speci_fail(SPEC_E_INVALID, "draft temperature is %g", (double)p.temperature);
    if ((uint32_t)p.vocab > SPEC_DRAFT_VOCAB_TEXT)
        return speci_fail(SPEC_E_INVALID, "there is no way %d to draft with another vocabulary", (int)p.vocab);
    if (p.vocab != SPEC_DRAFT_VOCAB_AUTO && kind != &speci_draft_model)
        return speci_fail(SPEC_E_INVALID, "vocab is of drafters that are models; this one proposes ids of the target");
    if (p.n_resample < 0 || p.n_resample >= SPECI_MAX_NODE || p.resample_left < 0)
        return speci_fail(SPEC_E_INVALID, "n_resample is %d and resample_left %d: they are 0 to %d, and 0 or more", p.n_resample,
                          p.resample_left, SPECI_MAX_NODE - 1);
    if (p.resample_across != 0 && p.resample_across != 1)
        return speci_fail(SPEC_E_INVALID, "resample_across is %d: it is 0 or 1", p.resample_across);
    if (p.resample_across && p.n_resample == 0)
        return speci_fail(SPEC_E_INVALID, "resample_across is 1 and n_resample 0: it needs n_resample of at least 1");
    if ((uint32_t)p.token_info > SPEC_TOKEN_INFO_COLLAPSED)
        return speci_fail(SPEC_E_INVALID, "there is no form %d of token info", (int)p.token_info);
    if (!builders && (p.tree || p.builder))
        return speci_fail(SPEC_E_INVALID, "a drafter that proposes whole trees builds them itself: no tree, no builder");
    spec_drafter *d = speci_alloc(a, 1, sizeof *d);
    if (!d) return SPEC_E_NOMEM;
    d->memory = a ? *a : speci_malloc;
    d->allocator = &d->memory;
    d->kind = kind;
    d->n_draft = p.n_draft ? p.n_draft : DEFAULT_N_DRAFT;
    d->temperature = p.temperature;
    d->vocab = p.vocab;
    d->n_resample = p.n_resample, d->resample_left = p.resample_left, d->resample_across = p.resample_across;
    d->token_info = p.token_info;
    atomic_flag_clear(&d->in_use);
    const spec_status status = builders ? open_builders(d, &p) : SPEC_OK;
    if (status != SPEC_OK) {
        spec_drafter_close(d);
        return status;
    }
    *out = d;
    return SPEC_OK;
}

void spec_drafter_close(spec_drafter *d)
{
    if (!d || !speci_let_go(&d->holds)) return;
    if (d->kind->close) d->kind->close(d);
    for (int32_t i = 0; i < d->n_builder && !d->borrowed; i++) spec_builder_close(d->builders[i]);
    const spec_allocator memory = d->memory; /* it lies in what is freed last */
    spec_model *held = d->held;              /* whose backend it may be of */
    speci_free(&memory, d->builders);
    speci_free(&memory, d->taps);
    speci_free(&memory, d);
    spec_model_close(held);
}

spec_status speci_drafter_take_taps(spec_drafter *d, const spec_tap *taps, int32_t n)
{
    if (n < 0 || (n > 0 && !taps)) return speci_fail(SPEC_E_INVALID, "a list of %d taps%s", n, taps ? "" : ", which is NULL");
    if (n == 0) return SPEC_OK;
    if (!(d->taps = speci_alloc(d->allocator, (size_t)n, sizeof *d->taps))) return SPEC_E_NOMEM;
    memcpy(d->taps, taps, (size_t)n * sizeof *taps);
    d->n_tap = n;
    return SPEC_OK;
}

int32_t spec_drafter_n_node(const spec_drafter *d) { return d ? speci_draft_size_of(d).n_node : 1; }

/* --- from text --- */

static spec_status unknown_kind(const char *text)
{
    char names[256] = "";
    size_t n = 0;
    for (const speci_draft_kind *const *k = speci_draft_table; *k && n < sizeof names; k++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s%s%s", n ? ", " : "", (*k)->name, (*k)->args[0] ? ":" : "",
                              (*k)->args);
    return speci_fail(SPEC_E_INVALID, "no drafter is called \"%.60s\"; kinds: %s", text, names);
}

spec_status spec_drafter_open(spec_drafter **out, const char *text, const spec_allocator *allocator)
{
    if (!out) return speci_fail(SPEC_E_INVALID, "no place for the drafter");
    *out = NULL;
    if (!text) return speci_fail(SPEC_E_INVALID, "a drafter needs the name of a kind");
    const size_t n = strcspn(text, ":");
    const char *args = text[n] == ':' ? text + n + 1 : "";
    const speci_draft_kind *const *k = speci_draft_table;
    while (*k && (strlen((*k)->name) != n || strncmp((*k)->name, text, n) != 0)) k++;
    if (!*k) return unknown_kind(text);
    spec_drafter *d;
    SPEC_TRY(speci_drafter_create(&d, *k, allocator, NULL, false));
    const spec_status status = (*k)->open(d, args);
    if (status != SPEC_OK) {
        spec_drafter_close(d);
        return status;
    }
    *out = d;
    return SPEC_OK;
}

void spec_drafter_list(void (*each)(void *user, const char *name, const char *args, const char *help), void *user)
{
    if (!each) return;
    for (const speci_draft_kind *const *k = speci_draft_table; *k; k++) each(user, (*k)->name, (*k)->args, (*k)->help);
}

/* --- its past --- */

spec_status spec_drafter_save(const spec_drafter *d, const char *path)
{
    SPEC_NEED(d, "drafter");
    SPEC_NEED(path, "path");
    if (!d->kind->save_file)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the drafter \"%s\" keeps no past that could be saved", path, d->kind->name);
    return d->kind->save_file(d, path);
}

spec_status spec_drafter_load(spec_drafter *d, const char *path)
{
    SPEC_NEED(d, "drafter");
    SPEC_NEED(path, "path");
    if (!d->kind->load_file)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the drafter \"%s\" keeps no past that could be loaded", path, d->kind->name);
    if (atomic_flag_test_and_set(&d->in_use))
        return speci_fail(SPEC_E_STATE, "%s: the drafter serves a session; load before the session is opened", path);
    const spec_status status = d->kind->load_file(d, path);
    atomic_flag_clear(&d->in_use);
    return status;
}

/* --- what its trees need --- */

speci_draft_size speci_draft_size_of(const spec_drafter *d)
{
    speci_draft_size z = { .n_node = d->n_builder == 0 ? d->n_draft + 1 : 1 };
    for (int32_t i = 0; i < d->n_builder; i++) {
        const spec_builder *b = d->builders[i];
        z.n_node = speci_max32(z.n_node, b->info.n_node);
        z.n_q = speci_max32(z.n_q, b->info.n_row);
        z.pool = speci_max32(z.pool, b->n_pool);
        if (b->host_driven) {
            z.n_candidate = speci_max32(z.n_candidate, b->k);
            continue;
        }
        z.cap = speci_max32(z.cap, b->n_pool);
        /* Levels of a kind that observes change; never beyond its rows. */
        if (b->kind->observe) z.frontier = speci_max32(z.frontier, b->info.n_row);
        for (int32_t l = 0; l < b->info.n_level; l++)
            z.frontier = speci_max32(z.frontier, speci_max32(b->levels[l].n_place, b->levels[l].n_next));
    }
    if (d->n_resample > 0) z.n_node = z.n_node + d->n_resample < SPECI_MAX_NODE ? z.n_node + d->n_resample : SPECI_MAX_NODE;
    return z;
}
