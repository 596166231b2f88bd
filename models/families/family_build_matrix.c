/* family_build_matrix.c - tensors to weights on the device: linear maps, embeddings, heads. */
#include "models/families/family_build.h"

#include <string.h>

#include "core/core_dtype.h"
#include "core/core_half.h"

/* --- rows of tensors, as the device is to have them --- */

/* What a linear map is made of: tensors with their row ranges, in the order of the result's rows. */
typedef struct rows {
    const model_tensor *t;
    int32_t first, n;
} rows;

/* Rows [first, first + n) of t as `type`, as the device is to have them. */
typedef spec_status (*copy_rows)(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type);

static spec_status copy_same(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type)
{
    (void)type;
    const size_t n_in = (size_t)t->dim[1];
    memcpy(out, t->data + speci_tensor_bytes(t, (size_t)first * n_in), speci_tensor_bytes(t, (size_t)n * n_in));
    return SPEC_OK;
}

static spec_status copy_f32(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type)
{
    (void)type;
    const size_t n_in = (size_t)t->dim[1];
    speci_tensor_floats(out, t, (size_t)first * n_in, (size_t)n * n_in);
    return SPEC_OK;
}

/* As 16-bit numbers, a piece at a time. */
static void copy_narrow(uint16_t *out, const model_tensor *t, int32_t first, int32_t n, uint16_t (*narrow)(float))
{
    float x[SPEC_K_BLOCK]; /* which is a multiple of all blocks' */
    const size_t n_in = (size_t)t->dim[1], end = (size_t)(first + n) * n_in;
    for (size_t i = (size_t)first * n_in; i < end; i += SPEC_K_BLOCK) {
        const size_t n_piece = end - i < SPEC_K_BLOCK ? end - i : SPEC_K_BLOCK;
        speci_tensor_floats(x, t, i, n_piece);
        for (size_t k = 0; k < n_piece; k++) *out++ = narrow(x[k]);
    }
}

static spec_status copy_bf16(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type)
{
    (void)type;
    copy_narrow(out, t, first, n, speci_to_bf16);
    return SPEC_OK;
}

static spec_status copy_f16(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type)
{
    (void)type;
    copy_narrow(out, t, first, n, speci_to_f16);
    return SPEC_OK;
}

static spec_status copy_quantised(void *out, const model_tensor *t, int32_t first, int32_t n, spec_dtype type)
{
    if (t->blocks && t->blocks->dtype == type) return copy_same(out, t, first, n, type);
    return speci_quantise(speci_packing_of(type), out, t, first, n);
}

/* Rows of a part of the copy, n_piece of them a task. */
typedef struct copying {
    const rows *r;
    uint8_t *to;
    size_t row_bytes;
    int32_t n_piece;
    copy_rows copy;
    spec_dtype type;
} copying;

static spec_status copy_piece(void *arg, int32_t i)
{
    const copying *c = arg;
    const int32_t first = i * c->n_piece, left = c->r->n - first;
    return c->copy(c->to + (size_t)first * c->row_bytes, c->r->t, c->r->first + first, left < c->n_piece ? left : c->n_piece, c->type);
}

/* On the backend's threads. */
static spec_status copy_part(const model_builder *b, uint8_t *to, const rows *r, const spec_weight_desc *desc,
                             copy_rows copy, size_t row_bytes)
{
    enum { PIECE = 1 << 12 }; /* values, or a row */
    copying c = { r, to, row_bytes, desc->n_in < PIECE ? PIECE / desc->n_in : 1, copy, desc->dtype };
    return speci_parallel(b->model->backend, (r->n - 1) / c.n_piece + 1, copy_piece, &c);
}

/* Takes the matrix to the device from a copy, which is one part. */
static spec_status open_copy(model_builder *b, const spec_weight **out, spec_weight_desc *desc, const rows *r, int32_t n,
                             copy_rows copy, size_t row_bytes)
{
    const spec_allocator *a = b->model->allocator;
    uint8_t *x = speci_alloc(a, (size_t)desc->n_out, row_bytes), *at = x;
    spec_status status = x ? SPEC_OK : SPEC_E_NOMEM;
    for (int32_t i = 0; i < n && status == SPEC_OK; i++) {
        status = copy_part(b, at, &r[i], desc, copy, row_bytes);
        at += (size_t)r[i].n * row_bytes;
    }
    desc->parts = &(spec_weight_part){ x, desc->n_out };
    desc->n_part = 1;
    if (status == SPEC_OK) status = speci_model_own_weight(b->model, out, desc);
    speci_free(a, x);
    return status;
}

/* Every value in desc's type. */
static spec_status open_unpacked(model_builder *b, const spec_weight **out, spec_weight_desc *desc, const rows *r, int32_t n)
{
    const copy_rows copy = desc->dtype == SPEC_DTYPE_F32 ? copy_f32 : desc->dtype == SPEC_DTYPE_BF16 ? copy_bf16 : copy_f16;
    return open_copy(b, out, desc, r, n, copy, (size_t)desc->n_in * speci_dtype_bytes(desc->dtype));
}

/* Does the device take such blocks as they are? */
static bool keeps(const model_builder *b, spec_dtype type)
{
    return type != SPEC_DTYPE_AUTO && (b->model->backend->ops->weight_blocks >> type & 1) != 0;
}

/* The blocks that a matrix with rows of n_in columns is quantised to. AUTO: to none, or the device does not take what stands in for the
 * blocks that were asked for. */
static spec_dtype quantised_as(const model_builder *b, int32_t n_in)
{
    const spec_dtype type = speci_quantised_as(b->model->weights, n_in);
    return keeps(b, type) ? type : SPEC_DTYPE_AUTO;
}

/* What stands in the file is kept: all parts are alike. */
static spec_status open_kept(model_builder *b, const spec_weight **out, spec_weight_desc *desc, const rows *r, int32_t n)
{
    const size_t row_bytes = speci_tensor_bytes(r[0].t, (size_t)desc->n_in);
    spec_weight_part parts[MODEL_MAX_PART];
    if (n > MODEL_MAX_PART) return open_copy(b, out, desc, r, n, copy_same, row_bytes);
    for (int32_t i = 0; i < n; i++) parts[i] = (spec_weight_part){ r[i].t->data + (size_t)r[i].first * row_bytes, r[i].n };
    desc->parts = parts, desc->n_part = n;
    return speci_model_own_weight(b->model, out, desc);
}

/* Blocks become the compute type, which is told when all is loaded. */
static spec_status open_from_blocks(model_builder *b, const spec_weight **out, spec_weight_desc *desc, const rows *r, int32_t n)
{
    desc->dtype = desc->compute;
    b->n_unpacked++;
    for (int32_t i = 0; i < n; i++) b->bytes_packed += speci_tensor_bytes(r[i].t, (size_t)r[i].n * (size_t)desc->n_in);
    b->bytes_unpacked += (size_t)desc->n_out * (size_t)desc->n_in * speci_dtype_bytes(desc->dtype);
    return open_unpacked(b, out, desc, r, n);
}

static spec_status open_matrix(model_builder *b, const spec_weight **out, const rows *r, int32_t n, int32_t n_in,
                               bool glu, bool gather)
{
    const gguf_type *const blocks = r[0].t->blocks;
    if (b->shapes_only) return SPEC_OK;
    spec_weight_desc desc = { .n_in = n_in, .dtype = blocks ? blocks->dtype : r[0].t->dtype, .compute = b->model->dtype,
                              .glu = glu, .gather = gather };
    bool unlike = false, packed = false; /* unlike: a fine-tune was merged into some of the parts, say */
    for (int32_t i = 0; i < n; i++) {
        unlike = unlike || r[i].t->dtype != r[0].t->dtype || r[i].t->blocks != blocks;
        packed = packed || r[i].t->blocks;
        desc.n_out += r[i].n;
    }
    const spec_dtype quantised = quantised_as(b, n_in);
    if (quantised != SPEC_DTYPE_AUTO) {
        const speci_packing *const packing = speci_packing_of(quantised);
        desc.dtype = quantised;
        return open_copy(b, out, &desc, r, n, copy_quantised, (size_t)n_in / packing->n_value * packing->bytes);
    }
    if (packed && (unlike || !blocks || !keeps(b, blocks->dtype))) return open_from_blocks(b, out, &desc, r, n);
    if (unlike) {
        desc.dtype = SPEC_DTYPE_F32;
        return open_unpacked(b, out, &desc, r, n);
    }
    return open_kept(b, out, &desc, r, n);
}

static bool alike(const rows *a, const rows *b) { return a->t->blocks == b->t->blocks && a->t->dtype == b->t->dtype; }

/* Runs of rows that are alike, the first of which is out's own weight, the others `more`. */
static spec_status open_runs(model_builder *b, model_linear *out, const rows *r, int32_t n)
{
    for (int32_t i = 0, k = -1, end; i < n; i = end, k++) {
        int32_t n_out = 0;
        for (end = i; end < n && alike(&r[end], &r[i]); end++) n_out += r[end].n;
        SPEC_TRY(open_matrix(b, k < 0 ? &out->w : &out->more[k].w, r + i, end - i, out->n_in, false, false));
        if (k >= 0) out->more[k].n_out = n_out;
    }
    return SPEC_OK;
}

/* The weights of a linear map. Where some of its parts are blocks, and not all of them alike, each keeps its own; gates
 * and what they multiply where the backend joins them behind their products. */
static spec_status open_rows(model_builder *b, model_linear *out, const rows *r, int32_t n, bool glu)
{
    int32_t n_run = 1;
    bool packed = r[0].t->blocks;
    for (int32_t i = 1; i < n; i++) {
        n_run += !alike(&r[i], &r[i - 1]);
        packed = packed || r[i].t->blocks;
    }
    const bool quantised = quantised_as(b, out->n_in) != SPEC_DTYPE_AUTO;
    const bool apart = !glu || b->model->backend->ops->op[SPEC_OP_GLU].run;
    if (packed && apart && !quantised && n_run > 1 && n_run <= 1 + MODEL_LINEAR_MORE) return open_runs(b, out, r, n);
    return open_matrix(b, &out->w, r, n, out->n_in, glu, false);
}

/* The same rows of the biases, one after the other. */
static spec_status upload_bias(model_builder *b, const float **out, const rows *r, int32_t n, int32_t n_out)
{
    float *x = speci_alloc(b->model->allocator, (size_t)n_out, sizeof *x);
    size_t at = 0;
    if (!x) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < n; i++)
        speci_tensor_floats(x + at, r[i].t, (size_t)r[i].first, (size_t)r[i].n), at += (size_t)r[i].n;
    const spec_status status = speci_model_build_upload(b, out, x, (size_t)n_out);
    speci_free(b->model->allocator, x);
    return status;
}

static int32_t count_runs(const model_part *p) { return p->from ? p->n_out / p->n_run : 1; }

/* Appends the runs of t, in the part's order; returns behind them. */
static rows *add_runs(rows *r, const model_tensor *t, const model_part *p)
{
    if (!p->from) *r++ = (rows){ t, 0, p->n_out };
    for (int32_t i = 0; p->from && i < count_runs(p); i++) {
        const int32_t before = i / p->n_from * p->n_from * p->n_run;
        *r++ = (rows){ t, before + p->from[i % p->n_from], p->n_run };
    }
    return r;
}

/* The tensors of the parts, in pairs: weight [2 i], bias [2 i + 1] or NULL. */
static spec_status find_parts(model_builder *b, model_tensor **t, const model_stack *s)
{
    for (int32_t i = 0; i < s->n_part; i++) {
        const model_part *p = &s->parts[i];
        const int64_t dim[] = { p->n_out, s->n_in };
        t[2 * i + 1] = NULL;
        SPEC_TRY(speci_model_build_tensor(b, &t[2 * i], speci_namef("%s.weight", p->prefix.s).s, 2, dim));
        if (s->bias) SPEC_TRY(speci_model_build_tensor(b, &t[2 * i + 1], speci_namef("%s.bias", p->prefix.s).s, 1, dim));
    }
    return SPEC_OK;
}

static spec_status open_parts(model_builder *b, model_linear *out, model_tensor *const *t, const model_stack *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_part; i++) n += count_runs(&s->parts[i]);
    rows *r = speci_alloc(b->model->allocator, (size_t)n, sizeof *r), *end = r;
    if (!r) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < s->n_part; i++) end = add_runs(end, t[2 * i], &s->parts[i]);
    spec_status status = open_rows(b, out, r, n, s->glu);
    end = r;
    for (int32_t i = 0; s->bias && i < s->n_part; i++) end = add_runs(end, t[2 * i + 1], &s->parts[i]);
    if (s->bias && status == SPEC_OK) status = upload_bias(b, &out->bias, r, n, out->n_out);
    speci_free(b->model->allocator, r);
    return status;
}

spec_status speci_model_build_stack(model_builder *b, model_linear *out, const model_stack *stack)
{
    model_tensor *t[2 * MODEL_MAX_PART];
    *out = (model_linear){ .n_in = stack->n_in };
    for (int32_t i = 0; i < stack->n_part; i++) out->n_out += stack->parts[i].n_out;
    SPEC_TRY(find_parts(b, t, stack));
    if (b->shapes_only) return SPEC_OK;
    SPEC_TRY(open_parts(b, out, t, stack));
    for (int32_t i = 0; i < 2 * stack->n_part; i++)
        if (t[i]) SPEC_TRY(speci_model_build_copied(b, t[i]));
    return SPEC_OK;
}

spec_status speci_model_build_linear(model_builder *b, model_linear *out, const char *prefix, int32_t n_out, int32_t n_in, bool bias)
{
    const model_part part = { .prefix = speci_namef("%s", prefix), .n_out = n_out };
    return speci_model_build_stack(b, out, &(model_stack){ .parts = &part, .n_part = 1, .n_in = n_in, .bias = bias });
}

/* --- embeddings and head --- */

/* The one check that reads weights where shapes alone are asked for; else the embeddings are there. */
static spec_status load_both(model_builder *b, const model_tensor *embed, const model_tensor *head)
{
    if (!b->shapes_only) return speci_model_build_load(b, head);
    SPEC_TRY(speci_checkpoint_load(b->checkpoint, embed));
    return speci_checkpoint_load(b->checkpoint, head);
}

/* Versions of transformers differ on which of the two counts when a tied model's file has both: only copies are
 * taken. */
static spec_status check_copy(model_builder *b, const model_tensor *embed, const char *head)
{
    model_tensor *t = speci_checkpoint_find(b->checkpoint, head);
    if (!t) return SPEC_OK;
    SPEC_TRY(load_both(b, embed, t));
    if (!speci_tensor_has_shape(t, embed->n_dim, embed->dim) || t->dtype != embed->dtype || t->blocks != embed->blocks ||
        memcmp(t->data, embed->data, t->bytes) != 0)
        return speci_fail(SPEC_E_FORMAT,
                          "%s: tensor %s differs from %s, but %s ties the two (tie_word_embeddings): expected a copy or "
                          "none",
                          t->file, head, embed->name, b->config->file);
    t->used = true;
    return speci_model_build_copied(b, t);
}

static spec_status build_embed(model_builder *b, const char *embed, const char *copy)
{
    spec_model *m = b->model;
    model_tensor *t = NULL;
    SPEC_TRY(speci_model_build_tensor(b, &t, embed, 2, (int64_t[]){ m->n_vocab, m->dim }));
    if (copy) SPEC_TRY(check_copy(b, t, copy));
    SPEC_TRY(open_matrix(b, &m->embed, &(rows){ t, 0, m->n_vocab }, 1, m->dim, false, true));
    return speci_model_build_copied(b, t);
}

spec_status speci_model_build_embed(model_builder *b, const char *embed) { return build_embed(b, embed, NULL); }

spec_status speci_model_build_ends(model_builder *b, const char *embed, const char *head, bool tied)
{
    spec_model *m = b->model;
    model_tensor *t = NULL;
    const int64_t shape[2] = { m->n_vocab, m->dim };
    SPEC_TRY(build_embed(b, embed, tied ? head : NULL));
    m->head = (model_linear){ .w = m->embed, .n_in = m->dim, .n_out = m->n_vocab };
    if (tied) return SPEC_OK;
    SPEC_TRY(speci_model_build_tensor(b, &t, head, 2, shape));
    SPEC_TRY(open_matrix(b, &m->head.w, &(rows){ t, 0, m->n_vocab }, 1, m->dim, false, false));
    return speci_model_build_copied(b, t);
}
