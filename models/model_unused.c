/* model_unused.c - tensors that the family did not take: left-overs, or a part of another network than config.json says?
 *
 * A tensor counts as such a part where it stands in the stack of layers, in the module that holds the stack, or beside one
 * that was taken (lm_head.bias). Then the text would be wrong, and the model is refused. Anything else is reported. */
#include <stdlib.h>
#include <string.h>

#include "models/families/family_build.h"
#include "models/model_unused.h"

static bool begins_with(const char *s, const char *start) { return strncmp(s, start, strlen(start)) == 0; }

/* Does a component of the name, between dots, begin so? */
static bool has_component(const char *name, const char *start)
{
    for (const char *s = name; s; s = strchr(s, '.') ? strchr(s, '.') + 1 : NULL)
        if (begins_with(s, start)) return true;
    return false;
}

/* Buffers that older versions of transformers saved with the weights: rotary frequencies and causal masks. */
static bool is_known_buffer(const char *name)
{
    static const char *const ends[] = { ".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", ".attn.bias",
                                        ".attn.masked_bias", ".attn.causal_mask" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (speci_ends_with(name, ends[i])) return true;
    return false;
}

/* What stands inside a model and is not part of its text: rotary buffers of any name, adapters that were merged, heads that
 * draft. */
static bool is_left_over(const char *name)
{
    static const char *const parts[] = { "rotary_emb", "rotary_pos_emb", "lora_", "mtp", "medusa", "eagle", "draft" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (has_component(name, parts[i])) return true;
    return false;
}

/* The bytes of "model.layers." in "model.layers.3.mlp.up_proj.weight"; 0 where no component is a number. */
static size_t stack_length(const char *name)
{
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t digits = strspn(dot + 1, "0123456789");
        if (digits && dot[1 + digits] == '.') return (size_t)(dot + 1 - name);
    }
    return 0;
}

/* The bytes of "model." in "model.layers.": the module that holds the stack; 0 = none. */
static size_t trunk_length(const char *stack, size_t n)
{
    for (size_t i = n - 1; i-- > 0;)
        if (stack[i] == '.') return i + 1;
    return 0;
}

static bool same_module(const char *a, const char *b)
{
    const char *dot = strrchr(a, '.');
    const size_t n = dot ? (size_t)(dot + 1 - a) : 0;
    return n && strncmp(a, b, n) == 0 && !strchr(b + n, '.');
}

/* Layers behind the last that draft the next tokens. */
static int32_t draft_layers(const model_config *config)
{
    const json_int_t n = json_integer_value(json_object_get(config->root, "num_nextn_predict_layers"));
    return n > 0 && n < MODEL_DIM_MAX ? (int32_t)n : 0;
}

typedef struct trunk {
    const char *name; /* of a tensor that was taken, from the stack; NULL = there is none */
    size_t n_stack, n_trunk;
} trunk;

static trunk find_trunk(const model_tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t n_stack = t[i].used ? stack_length(t[i].name) : 0;
        if (n_stack) return (trunk){ t[i].name, n_stack, trunk_length(t[i].name, n_stack) };
    }
    return (trunk){ 0 };
}

static bool in_stack(const trunk *k, const char *name)
{
    return k->name && strncmp(k->name, name, k->n_stack) == 0 && strspn(name + k->n_stack, "0123456789") > 0;
}

/* "model.embed_positions.weight": in the module, and in no module of many parts within it. */
static bool in_trunk(const trunk *k, const char *name)
{
    if (!k->name || !k->n_trunk || strncmp(k->name, name, k->n_trunk) != 0) return false;
    const char *dot = strchr(name + k->n_trunk, '.');
    return !dot || !strchr(dot + 1, '.');
}

static bool beside_used(const model_tensor *t, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (t[i].used && same_module(name, t[i].name)) return true;
    return false;
}

static spec_status refuse(const spec_model *m, const model_config *config, const model_tensor *t, const trunk *k)
{
    const long layer = in_stack(k, t->name) ? strtol(t->name + k->n_stack, NULL, 10) : -1;
    if (layer >= m->n_layer)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s is of layer %ld (from 0), but %s says that there are %d layers: expected "
                          "as many as the file has", t->file, t->name, layer, config->file, m->n_layer);
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s would count, but a %s model has none of that name: %s does not describe "
                      "the file. Take the file's own config.json, or leave the tensor out if it is a left-over",
                      t->file, t->name, m->family, config->file);
}

spec_status speci_model_check_unused(const spec_model *m, const model_config *config, const model_checkpoint *c)
{
    size_t n, n_unused = 0;
    const char *first = NULL;
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    const trunk k = find_trunk(t, n);
    const int32_t n_layer = m->n_layer + draft_layers(config);
    for (size_t i = 0; i < n; i++) {
        const char *name = t[i].name;
        if (t[i].used || is_known_buffer(name)) continue;
        const long layer = in_stack(&k, name) ? strtol(name + k.n_stack, NULL, 10) : -1;
        const bool drafts = layer >= m->n_layer && layer < n_layer;
        if (m->intake) return refuse(m, config, &t[i], &k); /* a head's layouts have no left-overs, and names of variants alike */
        if (!drafts && !is_left_over(name) && (layer >= 0 || in_trunk(&k, name) || beside_used(t, n, name)))
            return refuse(m, config, &t[i], &k);
        if (n_unused++ == 0) first = name;
    }
    if (n_unused)
        speci_log(m->backend, SPEC_LOG_WARN, "%s: %zu tensor%s not used, %s first", m->path, n_unused,
                  n_unused == 1 ? "" : "s", first);
    return SPEC_OK;
}
