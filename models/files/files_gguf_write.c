/* files_gguf_write.c - writes a GGUF file: the head, then each tensor, a batch of rows at a time, of which each thread
 * packs some. What stands in the source as it is to stand is copied; all else goes by way of float32. */
#include "models/files/files_gguf_write.h"

#include <math.h>
#include <string.h>

#include "core/core_half.h"

enum { BATCH = 1 << 18, PIECE = 1 << 12 }; /* values between two writes, and of a thread's task; or a row */

typedef struct writing {
    const gguf_new_file *file;
    speci_writer *w;
    double done, all; /* bytes */
} writing;

static uint64_t bytes_of(const gguf_stored *t)
{
    return (uint64_t)(t->dim[0] * t->dim[1]) / t->type->n_value * t->type->bytes;
}

/* Which head of the source is head h of [q | k | v]. */
static int64_t source_head(const gguf_stored *t, int64_t h)
{
    const int64_t n_q = t->n_head / t->n_kv_head, n_run = n_q + 2;
    if (h < t->n_head) return h / n_q * n_run + h % n_q;
    const int64_t kv = h - t->n_head;
    return kv % t->n_kv_head * n_run + n_q + kv / t->n_kv_head;
}

/* Which row of the source. */
static int64_t source_row(const gguf_stored *t, int64_t row)
{
    const int64_t dim = t->head_dim, h = dim ? row / dim : 0, r = dim ? row % dim : 0;
    switch (t->order) {
    case GGUF_PAIRS_TOGETHER: return h * dim + r / 2 + (r % 2 ? dim / 2 : 0);
    case GGUF_QKV_IN_ORDER: return source_head(t, h) * dim + r;
    default: return row;
    }
}

static bool is_same(const gguf_stored *t)
{
    if (!t->from || t->order != GGUF_AS_THEY_ARE || t->map != GGUF_SAME) return false;
    return t->from->blocks ? t->from->blocks == t->type : t->type->n_value == 1 && t->from->dtype == t->type->dtype;
}

static void change(float *x, size_t n, gguf_map map)
{
    for (size_t i = 0; i < n && map == GGUF_MINUS_EXP; i++) x[i] = -expf(x[i]);
    for (size_t i = 0; i < n && map == GGUF_PLUS_ONE; i++) x[i] += 1;
}

/* Rows [row, row + n) as float32. */
static void take_rows(float *x, const gguf_stored *t, int64_t row, int64_t n)
{
    const size_t n_col = (size_t)t->dim[1];
    if (t->made) {
        memcpy(x, t->made + (size_t)row * n_col, (size_t)n * n_col * sizeof *x);
    } else if (t->order == GGUF_AS_THEY_ARE) {
        speci_tensor_floats(x, t->from, (size_t)(t->first + row) * n_col, (size_t)n * n_col);
    } else {
        for (int64_t i = 0; i < n; i++)
            speci_tensor_floats(x + (size_t)i * n_col, t->from, (size_t)(t->first + source_row(t, row + i)) * n_col, n_col);
    }
    change(x, (size_t)n * n_col, t->map);
}

static spec_status beyond(const gguf_stored *t, double x, const char *type)
{
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s has the value %g, or one near it, which %s cannot hold: take another type",
                      t->from ? t->from->file : "", t->from ? t->from->name : t->name, x, type);
}

static spec_status pack_f16(uint16_t *out, const float *x, size_t n, const gguf_stored *t)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = speci_to_f16(x[i]);
        if (isinf(speci_from_f16(out[i])) && !isinf(x[i])) return beyond(t, (double)x[i], "F16");
    }
    return SPEC_OK;
}

static spec_status pack(void *out, const float *x, size_t n, const gguf_stored *t)
{
    const gguf_type *type = t->type;
    if (type->packing) {
        const size_t n_block = n / type->n_value, n_packed = speci_pack(type->packing, out, x, n_block);
        return n_packed == n_block ? SPEC_OK : beyond(t, (double)x[n_packed * type->n_value], type->name);
    }
    if (type->dtype == SPEC_DTYPE_F16) return pack_f16(out, x, n, t);
    for (size_t i = 0; i < n && type->dtype == SPEC_DTYPE_BF16; i++) ((uint16_t *)out)[i] = speci_to_bf16(x[i]);
    if (type->dtype == SPEC_DTYPE_F32) memcpy(out, x, n * sizeof *x);
    return SPEC_OK;
}

static spec_status advance(writing *s, double bytes)
{
    s->done += bytes;
    return s->file->progress ? s->file->progress(s->file->user_data, s->all > 0 ? s->done / s->all : 1) : SPEC_OK;
}

/* A batch: rows [row, row + n), n_piece of them a task. */
typedef struct batch {
    const gguf_stored *t;
    float *x;
    uint8_t *out;
    size_t row_bytes;
    int64_t row, n, n_piece;
} batch;

static spec_status pack_piece(void *arg, int32_t i)
{
    const batch *b = arg;
    const int64_t first = i * b->n_piece, left = b->n - first, n = left < b->n_piece ? left : b->n_piece;
    float *x = b->x + (size_t)(first * b->t->dim[1]);
    take_rows(x, b->t, b->row + first, n);
    return pack(b->out + (size_t)first * b->row_bytes, x, (size_t)(n * b->t->dim[1]), b->t);
}

static int64_t rows_of(const gguf_stored *t, int64_t values) { return t->dim[1] < values ? values / t->dim[1] : 1; }

static spec_status write_rows(writing *s, const gguf_stored *t, float *x, uint8_t *out, int64_t n_row)
{
    batch b = { t, x, out, (size_t)(bytes_of(t) / (uint64_t)t->dim[0]), 0, 0, rows_of(t, PIECE) };
    for (; b.row < t->dim[0]; b.row += n_row) {
        b.n = t->dim[0] - b.row < n_row ? t->dim[0] - b.row : n_row;
        SPEC_TRY(speci_parallel(s->file->be, (int32_t)((b.n + b.n_piece - 1) / b.n_piece), pack_piece, &b));
        SPEC_TRY(speci_writer_put(s->w, out, (size_t)b.n * b.row_bytes));
        SPEC_TRY(advance(s, (double)b.n * (double)b.row_bytes));
    }
    return SPEC_OK;
}

static spec_status write_copy(writing *s, const gguf_stored *t)
{
    const size_t row_bytes = (size_t)(bytes_of(t) / (uint64_t)t->dim[0]);
    SPEC_TRY(speci_writer_put(s->w, t->from->data + (size_t)t->first * row_bytes, (size_t)bytes_of(t)));
    return advance(s, (double)bytes_of(t));
}

static spec_status write_tensor(writing *s, const gguf_stored *t)
{
    const int64_t n_row = rows_of(t, t->dim[0] * t->dim[1] < BATCH ? t->dim[0] * t->dim[1] : BATCH);
    const size_t n = (size_t)(n_row * t->dim[1]);
    if (t->from) SPEC_TRY(speci_checkpoint_load(s->file->source, t->from));
    float *x = is_same(t) ? NULL : speci_alloc(s->file->a, n, sizeof *x);
    uint8_t *out = x ? speci_alloc(s->file->a, n, sizeof *x) : NULL; /* no type takes more */
    spec_status status = is_same(t) || out ? SPEC_OK : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = out ? write_rows(s, t, x, out, n_row) : write_copy(s, t);
    speci_free(s->file->a, x);
    speci_free(s->file->a, out);
    if (t->from) speci_checkpoint_done(s->file->source, t->from);
    return status == SPEC_OK ? speci_gguf_write_padding(s->w, bytes_of(t)) : status;
}

static spec_status write_all(writing *s)
{
    SPEC_TRY(speci_gguf_head_write(s->file->head, s->w));
    for (size_t i = 0; i < s->file->n; i++) SPEC_TRY(write_tensor(s, &s->file->tensors[i]));
    return SPEC_OK;
}

spec_status speci_gguf_write(const gguf_new_file *file)
{
    speci_writer w;
    writing s = { .file = file, .w = &w };
    for (size_t i = 0; i < file->n; i++) {
        const gguf_stored *t = &file->tensors[i];
        s.all += (double)bytes_of(t);
        SPEC_TRY(speci_gguf_put_tensor(file->head, t->name, t->n_dim, t->dim, t->type->id, bytes_of(t)));
    }
    SPEC_TRY(speci_writer_open(&w, file->path, "GGUF", file->a));
    return speci_writer_close(&w, write_all(&s));
}
