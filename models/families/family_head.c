/* family_head.c - what the layouts of heads share. */
#include "models/families/family_head.h"

#include <string.h>

bool speci_head_has(const model_checkpoint *c, const char *name) { return c && speci_checkpoint_find(c, name) != NULL; }

bool speci_head_is_class(const model_config *c, const char *part)
{
    const json_t *classes = json_object_get(c->root, "architectures");
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const char *name = json_string_value(json_array_get(classes, i));
        if (name && strstr(name, part)) return true;
    }
    return false;
}

spec_status speci_head_read(model_config *c, model_transformer *out)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = 1e-6, .rope = speci_rope_whole_head };
    SPEC_TRY(speci_transformer_read(c, out, &defaults));
    SPEC_TRY(speci_transformer_read_biases(c, out)); /* the file's tensors say which there are */
    out->out_bias = false;
    out->n_layer = 1;
    return SPEC_OK;
}

spec_status speci_head_begin(model_builder *b, const model_transformer *t, const char *kind, int32_t n_hidden)
{
    spec_model *m = b->model;
    SPEC_TRY(speci_model_build_begin(b, t->n_vocab, t->dim, 1, t->n_ctx));
    if (!(m->intake = speci_alloc(m->allocator, 1, sizeof *m->intake))) return SPEC_E_NOMEM;
    m->intake->kind = kind, m->intake->n_hidden = n_hidden, m->intake->n_tap = 1;
    m->intake->ties = t->tied;
    return SPEC_OK;
}

spec_status speci_head_layer(model_builder *b, const model_transformer *t, const char *prefix)
{
    model_layer *l = &b->model->layers[0];
    model_transformer own = *t;
    own.bare = true; /* the intake, or a copy of the residual, is what attention reads */
    own.qkv_bias = speci_head_has(b->checkpoint, speci_namef("%s.self_attn.q_proj.bias", prefix).s);
    own.out_bias = speci_head_has(b->checkpoint, speci_namef("%s.self_attn.o_proj.bias", prefix).s);
    own.qk_norm = speci_head_has(b->checkpoint, speci_namef("%s.self_attn.q_norm.weight", prefix).s);
    l->n_branch = 2;
    SPEC_TRY(speci_transformer_attention(b, &l->branch[0], &own, prefix, NULL, 0));
    l->branch[0].first = true;
    return speci_transformer_mlp(b, &l->branch[1], t, prefix, "post_attention_layernorm", "mlp");
}

spec_status speci_head_embedding(model_builder *b)
{
    const spec_model *m = b->model;
    model_tensor *t = speci_checkpoint_find(b->checkpoint, "embed_tokens.weight");
    if (m->dim != m->intake->n_hidden) return speci_model_build_embed(b, "embed_tokens.weight");
    if (!t) return SPEC_OK;
    const int64_t shape[] = { m->n_vocab, m->dim };
    if (!speci_tensor_has_shape(t, 2, shape))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: expected shape %s, found %s", t->file, t->name, speci_shape_of(2, shape).s,
                          speci_shape_of(t->n_dim, t->dim).s);
    t->used = true;
    return SPEC_OK;
}
