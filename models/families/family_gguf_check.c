/* family_gguf_check.c - what is planned for a GGUF file is read as a file is, and must come to the config that it was made from. So
 * nothing is left out in silence that such files have no word for. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_gguf_write.h"

/* The file as far as a config needs it: its keys, and which tensors there are. */
static spec_status open_planned(model_checkpoint **out, speci_buf *head, const gguf_writing *w)
{
    model_tensor *t = speci_alloc(w->a, w->n_tensor, sizeof *t);
    spec_status status = t ? speci_gguf_head_bytes(w->head, head) : SPEC_E_NOMEM;
    for (size_t i = 0; i < w->n_tensor && status == SPEC_OK; i++) {
        const gguf_stored *s = &w->tensors[i];
        t[i] = (model_tensor){ .name = s->name,
                               .dtype = SPEC_DTYPE_F32,
                               .dtype_name = "F32",
                               .n_dim = s->n_dim,
                               .dim = { s->dim[0], s->dim[1] },
                               .data = (const uint8_t *)s->made };
    }
    if (status == SPEC_OK)
        status = speci_checkpoint_open_planned(out, (const uint8_t *)head->data, head->n, t, w->n_tensor,
                                               w->config->file, w->a);
    speci_free(w->a, t);
    return status;
}

/* As a model is opened, until its config is read. */
static spec_status read_back(json_t *taken, spec_model *m, model_checkpoint *c, const char *file)
{
    const model_gguf *row = NULL;
    const model_family *family = NULL;
    model_config config = { 0 };
    SPEC_TRY(speci_gguf_config(&config, &row, c, file));
    config.taken = taken;
    speci_checkpoint_rename(c, row->names);
    model_builder b = {
        .model = m, .checkpoint = c, .config = &config, .form = row->form, .dir = file, .config_only = true
    };
    spec_status status = speci_family_find(&family, &config, file);
    if (status == SPEC_OK) status = family->build(&b);
    speci_config_close(&config);
    return b.config_read ? SPEC_OK : status;
}

/* Rotary scalings are told by tensors, too, and shares of heads by whole dimensions (family_gguf_write.c). The others come to what
 * another key says: layer_types, no_rope_layers, intermediate_size, shapes of tensors. */
static bool is_elsewhere(const char *key)
{
    static const char *const keys[] = { "partial_rotary_factor",    "sliding_window_pattern",
                                        "no_rope_layer_interval",   "block_ff_dim",
                                        "block_auto_adjust_ff_dim", "block_multiple_of",
                                        "block_ffn_dim_multiplier", "new_decoder_architecture" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return strncmp(key, "rope_scaling.", strlen("rope_scaling.")) == 0;
}

/* Files have numbers as float32. A key that the other family does not ask for means nothing there. */
static bool same(const json_t *a, const json_t *b)
{
    double x, y;
    if (!b || json_equal(a, b)) return true;
    if (!speci_json_number(a, &x) || !speci_json_number(b, &y)) return false;
    return x == y || fabs(x - y) <= 1e-6 * fabs(x);
}

static spec_status compare(const gguf_writing *w, const json_t *back)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)w->taken, key, v)
    {
        const json_t *other = json_object_get(back, key);
        if (!is_elsewhere(key) && !same(v, other))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is %s, for which GGUF files of %s have no key: they mean %s",
                              w->config->file, key, speci_value_of(v).s, w->row->architecture, speci_value_of(other).s);
    }
    return SPEC_OK;
}

static spec_status no_such_file(const gguf_writing *w)
{
    char why[512];
    snprintf(why, sizeof why, "%s", spec_last_error());
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: it cannot be written to GGUF, since a file of %s would say: %s",
                      w->config->file, w->row->architecture, why);
}

spec_status speci_gguf_check(const gguf_writing *w, spec_model *m)
{
    speci_buf head = { .a = w->a };
    model_checkpoint *c = NULL;
    json_t *back = json_object();
    spec_status status = back ? open_planned(&c, &head, w) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = read_back(back, m, c, "GGUF");
    if (status != SPEC_OK && status != SPEC_E_NOMEM) status = no_such_file(w);
    if (status == SPEC_OK) status = compare(w, back);
    speci_checkpoint_close(c);
    speci_buf_free(&head);
    json_decref(back);
    return status;
}
