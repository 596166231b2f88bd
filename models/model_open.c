/* model_open.c - a directory or a GGUF file becomes a model: family, weights on the device, ids, tokenizer. */
#include <stdio.h>
#include <string.h>

#include "models/exec.h"
#include "models/families/family.h"
#include "models/model_generation.h"
#include "models/model_source.h"
#include "models/model_unused.h"

/* --- types --- */

/* " or q8_0, q4_0": the blocks that a backend keeps. */
static void kept_types(char *text, size_t cap, uint64_t kept)
{
    text[0] = 0;
    for (int32_t t = SPEC_DTYPE_Q8_0; t <= SPEC_DTYPE_Q6_K; t++)
        if (kept >> t & 1) {
            const size_t n = strlen(text);
            snprintf(text + n, cap - n, "%s%s", n > 0 ? ", " : " or ", spec_dtype_name((spec_dtype)t));
        }
}

static spec_status check_types(const spec_backend *be, spec_dtype t, spec_dtype weights)
{
    if (weights != SPEC_DTYPE_AUTO && !speci_packing_of(weights))
        return speci_fail(SPEC_E_INVALID, "weights is %s, expected auto, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k",
                          spec_dtype_name(weights));
    if (weights != SPEC_DTYPE_AUTO && (be->ops->weight_blocks >> weights & 1) == 0) {
        char kept[96];
        kept_types(kept, sizeof kept, be->ops->weight_blocks);
        return speci_fail(SPEC_E_UNSUPPORTED, "weights is %s, which %s does not keep: take auto%s", spec_dtype_name(weights), be->info.name,
                          kept);
    }
    if (t == SPEC_DTYPE_AUTO || t == SPEC_DTYPE_F32 || t == SPEC_DTYPE_BF16 || t == SPEC_DTYPE_F16) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "dtype is %s, expected auto, f32, bf16 or f16", spec_dtype_name(t));
}

/* What a tensor's values are computed in: bfloat16 for blocks, whose range of scales float16 may not have for sums. */
static spec_dtype dtype_of(const model_tensor *t) { return t->blocks ? SPEC_DTYPE_BF16 : t->dtype; }

/* The type that most bytes of matrices have. */
static spec_status main_dtype(spec_dtype *out, const model_checkpoint *c)
{
    static const spec_dtype types[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16 };
    size_t n, best = 0;
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    for (size_t k = 0; k < 3; k++) {
        size_t bytes = 0;
        for (size_t i = 0; i < n; i++)
            if (dtype_of(&t[i]) == types[k] && t[i].n_dim >= 2) bytes += t[i].bytes;
        if (bytes > best) best = bytes, *out = types[k];
    }
    if (best) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: no matrix of type F32, BF16 or F16 among %zu tensors",
                      speci_checkpoint_path(c), n);
}

/* --- what was not used --- */

static spec_status check_unused(const spec_model *m, const model_config *config, const model_checkpoint *c)
{
    SPEC_TRY(speci_model_check_unused(m, config, c));
    if (m->unknown_keys[0])
        speci_log(m->backend, SPEC_LOG_WARN, "%s: keys%s that are not known, and so were ignored: %s",
                  m->path, speci_checkpoint_gguf(c) ? "" : " of config.json", m->unknown_keys);
    return SPEC_OK;
}

/* --- tokenizer --- */

/* A GGUF file of a model for ids says "none". */
static bool has_tokenizer(const spec_model *m, const speci_gguf *gguf)
{
    if (!gguf) return speci_has_tokenizer(m->path);
    const char *kind = NULL;
    size_t n = 0;
    const bool read = speci_gguf_text(gguf, "tokenizer.ggml.model", &kind, &n) == SPEC_OK; /* else the reader says why */
    return !read || (kind && !(n == 4 && memcmp(kind, "none", n) == 0));
}

static spec_status open_tokenizer(spec_model *m, const char *path, const speci_gguf *gguf)
{
#ifdef SPEC_NO_TOKENIZER
    if (!path) return SPEC_OK; /* ids work as ever; a path that was asked for gets the reason */
#endif
    if (!path) {
        if (!has_tokenizer(m, gguf)) return SPEC_OK;
        path = m->path;
    }
    return speci_model_open_tokenizer(m, path);
}

/* --- open --- */

static spec_status build(spec_model *m, model_builder *b, const model_family *family)
{
    const spec_backend *be = m->backend;
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(b->checkpoint, &n);
    for (size_t i = 0; i < n; i++) b->bytes_total += t[i].bytes;
    SPEC_TRY(be->ops->queue_open(be->dev, &b->queue, NULL, 0, 0));
    spec_status status = family->build(b);
    if (status == SPEC_OK) status = be->ops->sync(b->queue);
    be->ops->queue_close(b->queue);
    if (status == SPEC_OK && !speci_model_attends(m)) m->n_ctx = 0;
    if (status == SPEC_OK) status = speci_model_list_mixers(m);
    return status;
}

static spec_status tell_head(spec_model *m)
{
    char text[512];
    speci_head_tell(m, text, sizeof text);
    return (m->told = speci_strdup(m->allocator, text)) ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status load_weights(spec_model *m, model_source *s, const spec_model_params *p)
{
    const model_family *family = speci_family_find_head(&s->config, NULL);
    if (!family) SPEC_TRY(speci_family_find(&family, &s->config, m->path));
    if (!s->checkpoint) SPEC_TRY(speci_checkpoint_open(&s->checkpoint, m->path, m->allocator));
    const model_family *head = speci_family_find_head(&s->config, s->checkpoint);
    if (head) family = head;
    m->family = family->name;
    if (s->gguf) speci_checkpoint_rename(s->checkpoint, s->gguf->names);
    model_builder b = { .model = m, .checkpoint = s->checkpoint, .config = &s->config, .dir = m->path,
                        .progress = p->progress, .progress_user_data = p->progress_user_data, .head_layers = p->head_layers };
    if (s->gguf) b.form = s->gguf->form;
    m->dtype = p->dtype;
    m->weights = p->weights;
    if (m->dtype == SPEC_DTYPE_AUTO) SPEC_TRY(main_dtype(&m->dtype, s->checkpoint));
    SPEC_TRY(speci_model_fingerprint(&m->fingerprint, s->config.root, s->checkpoint, m->weights));
    SPEC_TRY(speci_model_list_types(m, s->checkpoint));
    SPEC_TRY(build(m, &b, family));
    if (m->intake) SPEC_TRY(tell_head(m));
    if (b.n_unpacked)
        speci_log(m->backend, SPEC_LOG_INFO,
                  "%s: %d matri%s of blocks that %s does not keep, or of unlike ones, became %s: %.1f MiB in the file, %.1f MiB here",
                  m->path, (int)b.n_unpacked, b.n_unpacked == 1 ? "x" : "ces", m->backend->info.name, spec_dtype_name(m->dtype),
                  (double)b.bytes_packed / 1048576.0, (double)b.bytes_unpacked / 1048576.0);
    return check_unused(m, &s->config, s->checkpoint);
}

static spec_status load_parts(spec_model *m, model_source *s, const spec_model_params *p)
{
    SPEC_TRY(speci_source_read(s, m));
    SPEC_TRY(load_weights(m, s, p));
    SPEC_TRY(speci_source_ids(m, s));
    SPEC_TRY(open_tokenizer(m, p->tokenizer_path, speci_checkpoint_gguf(s->checkpoint)));
    return s->generation.root ? speci_generation_read(&m->generation, m, &s->generation) : SPEC_OK;
}

static spec_status load(spec_model *m, const spec_model_params *p)
{
    model_source s = { 0 };
    const spec_status status = load_parts(m, &s, p);
    speci_source_close(&s);
    SPEC_TRY(status);
    if (p->progress && p->progress(p->progress_user_data, 1.0) != 0)
        return speci_fail(SPEC_E_ABORTED, "%s: loading was stopped by the application", m->path);
    return SPEC_OK;
}

spec_status spec_model_open(spec_model **out, spec_backend *backend, const char *path, const spec_model_params *params)
{
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    spec_model *m = NULL;
    if (out) *out = NULL;
    if (!out || !backend || !path || !path[0])
        return speci_fail(SPEC_E_INVALID, "spec_model_open needs out, a backend and a path that is not empty");
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_model_params"));
    SPEC_TRY(check_types(backend, p.dtype, p.weights));
    if ((uint32_t)p.head_layers > SPEC_HEAD_LAYERS_FILE)
        return speci_fail(SPEC_E_INVALID, "there is no way %d to choose the layers that a head reads", (int)p.head_layers);
    SPEC_TRY(speci_source_check(path));
    SPEC_TRY(speci_model_new(&m, backend, &speci_exec_net, path));
    const spec_status status = load(m, &p);
    if (status != SPEC_OK) {
        spec_model_close(m);
        return status;
    }
    *out = m;
    return SPEC_OK;
}
