/* bench_device.c - a backend, models on it, the machine's bandwidth, and sessions to measure. */
#include <stdio.h>
#include <string.h>

#include "models/families/family_build.h"
#include "models/model_intake.h"
#include "models/net/net_mixer_attention.h"
#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

/* --- bandwidth --- */

static spec_status measure_bandwidth(bench *b)
{
    const bool device = !b->be->info.host_visible;
    if (b->o.bandwidth_gbs > 0) {
        b->bandwidth = b->o.bandwidth_gbs * 1e9;
        b->bandwidth_kind = "given";
        b->valid = !device;
        return SPEC_OK;
    }
    b->bandwidth_kind = "read";
    SPEC_TRY(bench_read_bandwidth(&b->bandwidth, b->be, b->o.n_threads));
    b->valid = !device || b->bandwidth >= b->o.least_gbs * 1e9;
    if (!b->valid)
        fprintf(stderr, "spec-bench: void: memory is read at %.0f GB/s, less than %.0f (--least)\n", b->bandwidth / 1e9,
                b->o.least_gbs);
    return SPEC_OK;
}

/* --- opening --- */

static spec_status dtype_of(spec_dtype *out, const char *name)
{
    *out = SPEC_DTYPE_AUTO;
    if (!name || strcmp(name, "auto") == 0) return SPEC_OK;
    for (spec_dtype t = SPEC_DTYPE_F32; t <= SPEC_DTYPE_F16; t++)
        if (strcmp(name, spec_dtype_name(t)) == 0) *out = t;
    return *out ? SPEC_OK : speci_fail(SPEC_E_INVALID, "--dtype %s: f32, bf16, f16 or auto", name);
}

static spec_status weights_of(spec_dtype *out, const char *name)
{
    *out = SPEC_DTYPE_AUTO;
    if (!name || strcmp(name, "auto") == 0) return SPEC_OK;
    for (spec_dtype t = SPEC_DTYPE_Q8_0; t <= SPEC_DTYPE_Q6_K; t++)
        if (strcmp(name, spec_dtype_name(t)) == 0) *out = t;
    return *out ? SPEC_OK : speci_fail(SPEC_E_INVALID, "--weights %s: auto, or blocks as the program has them", name);
}

static void short_name(char *out, size_t cap, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/') at--;
    snprintf(out, cap, "%.*s", (int)(n - at), path + at);
}

/* A model that was written for this run is gone from the disk when it is open. */
static spec_status open_model(bench *b, spec_model **out, char *name, size_t cap, const char *what, double *seconds)
{
    char dir[4096];
    bool written;
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    SPEC_TRY(dtype_of(&p.dtype, b->o.dtype));
    SPEC_TRY(weights_of(&p.weights, b->o.weights));
    SPEC_TRY(bench_model_directory(dir, sizeof dir, what, b->o.keep, &written));
    short_name(name, cap, what);
    const double start = speci_now_ms();
    const spec_status status = spec_model_open(out, b->be, dir, &p);
    if (seconds) *seconds = (speci_now_ms() - start) / 1e3;
    if (written) bench_model_remove(dir);
    return status;
}

spec_status bench_open(bench *b, bool with_model)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = b->o.n_threads;
    p.plugin_dir = b->o.plugin_dir;
    SPEC_TRY(spec_backend_open(&b->be, b->o.backend, &p));
    b->o.n_threads = b->be->host.n_threads;
    SPEC_TRY(measure_bandwidth(b));
    snprintf(b->model_name, sizeof b->model_name, "none");
    if (!with_model) return SPEC_OK;
    if (!b->o.model) return speci_fail(SPEC_E_INVALID, "--model NAME|DIR is missing");
    SPEC_TRY(open_model(b, &b->model, b->model_name, sizeof b->model_name, b->o.model, &b->load_s));
    if (!b->o.drafter) return SPEC_OK;
    return open_model(b, &b->draft_model, b->draft_name, sizeof b->draft_name, b->o.drafter, NULL);
}

void bench_close(bench *b)
{
    spec_model_close(b->draft_model);
    spec_model_close(b->model);
    spec_backend_close(b->be);
    json_decref(b->old);
}

/* --- sessions --- */

spec_status bench_session(spec_session **out, const bench *b, spec_drafter *drafter, int32_t n_ctx, int32_t n_node,
                          int32_t n_seq)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_ctx = n_ctx;
    p.n_node = n_node;
    p.n_seq = n_seq;
    p.lab = &b->o.lab;
    return spec_session_open(out, b->model, drafter, &p);
}

spec_status bench_sequence(int32_t *seq, spec_session *s, int32_t n, const spec_sampling *sampling)
{
    int32_t *ids = speci_alloc(NULL, (size_t)n, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < n; i++) ids[i] = 1 + (int32_t)(7919 * (int64_t)(i + 1) % (s->target->n_vocab - 1));
    const spec_status status = add_endless(s, seq, ids, (size_t)n, sampling);
    speci_free(NULL, ids);
    return status;
}

/* --- the floor --- */

/* The KV cache of a position that a sliding window leaves out. */
static double unseen_bytes(const spec_model *m, const model_branch *x, int32_t context)
{
    if (x->mixer != &speci_mixer_attention) return 0;
    const model_attention *u = x->own;
    const int32_t unseen = u->window > 0 && u->window < context ? context - u->window : 0;
    return 2.0 * (m->dtype == SPEC_DTYPE_F32 ? 4 : 2) * u->n_kv_head * u->head_dim * unseen;
}

/* Of a sequence: states and convolutions are read and written, KV is read. */
static double kept_bytes(const spec_model *m, int32_t context)
{
    const model_kept k = speci_model_kept(m);
    double bytes = 2.0 * (double)(k.bytes_state + k.bytes_conv) + (double)k.bytes_kv_token * context;
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) bytes -= unseen_bytes(m, &m->layers[i].branch[j], context);
    return bytes;
}

double bench_weight_bytes(const spec_model *m)
{
    const double bytes = (double)m->bytes_weights;
    if (m->embed == m->head.w) return bytes;
    const double n = (double)m->n_vocab * m->dim;
    const speci_packing *const packing = speci_packing_of(speci_quantised_as(m->weights, m->dim));
    if (packing) return bytes - n / packing->n_value * packing->bytes;
    return bytes * (1 - n / (double)m->n_parameters); /* weights have one width */
}

static double step_bytes(const spec_model *m, int32_t context, int32_t n_seq)
{
    return bench_weight_bytes(m) + n_seq * kept_bytes(m, context);
}

double bench_floor_ms(const bench *b, int32_t context, int32_t n_seq) { return 1e3 * step_bytes(b->model, context, n_seq) / b->bandwidth; }

/* The matrix that makes its logits, where that is the target's. */
static double borrowed_bytes(const bench *b, const spec_model *drafter)
{
    const spec_model *m = b->model;
    if (!speci_model_is_head(drafter) || drafter->head.w) return 0;
    return (double)m->n_vocab * m->dim * (double)m->bytes_weights / (double)m->n_parameters;
}

/* Of the head's own weights those that drafts do not read (less), and what a draft reads in their place. */
static double info_bytes(const bench *b, const spec_model *drafter, const spec_builder_info *tree, double *less)
{
    const model_token_info *info = drafter->intake->info;
    const double size = drafter->dtype == SPEC_DTYPE_F32 ? 4 : 2;
    *less = 0;
    if (!info) return 0;
    *less = size * info->rank * drafter->dim; /* W1: it made the table */
    if (b->o.token_info == SPEC_TOKEN_INFO_FACTORED) return 0;
    *less += size * info->rank * drafter->n_vocab;
    return size * info->n_hot * tree->n_row;
}

double bench_draft_floor_ms(const bench *b, const spec_model *drafter, const spec_builder_info *tree, int32_t context)
{
    const bool chains = speci_model_is_head(drafter) && speci_head_chains(drafter);
    double less = 0, info = chains ? info_bytes(b, drafter, tree, &less) : 0;
    const double bytes = tree->n_level * (step_bytes(drafter, context, 1) - less) + info +
                         (chains ? 1 : tree->n_level) * borrowed_bytes(b, drafter);
    return 1e3 * bytes / b->bandwidth;
}

spec_drafter_params bench_drafter_params(const bench *b)
{
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    p.vocab = b->o.vocab, p.token_info = b->o.token_info;
    p.n_resample = b->o.resample, p.resample_left = b->o.resample_left, p.resample_across = b->o.resample_across;
    return p;
}
