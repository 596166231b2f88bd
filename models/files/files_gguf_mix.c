/* files_gguf_mix.c - which tensor of a new file gets which type.
 *
 * A type with a size alone is that of all matrices. The mixes give the better type to the head (or the embeddings that are the head), and,
 * in the first and the last eighth of the layers and every third between, to values and down projections. Source: llama.cpp,
 * src/llama-quant.cpp, whose mixes of these names are so, but for models of many experts. */
#include <stdio.h>
#include <string.h>

#include "models/files/files_gguf_write.h"

static const gguf_mix mixes[] = {
    { "f32", "F32", "F32", 0 },    { "f16", "F16", "F16", 1 },    { "bf16", "BF16", "BF16", 32 },  { "q8_0", "Q8_0", "Q8_0", 7 },
    { "q6_k", "Q6_K", "Q6_K", 18 }, { "q5_k", "Q5_K", "Q5_K", 16 }, { "q4_k", "Q4_K", "Q4_K", 14 },  { "q5_k_m", "Q5_K", "Q6_K", 17 },
    { "q4_k_m", "Q4_K", "Q6_K", 15 }, { "q5_1", "Q5_1", "Q5_1", 9 }, { "q5_0", "Q5_0", "Q5_0", 8 },   { "q4_1", "Q4_1", "Q4_1", 3 },
    { "q4_0", "Q4_0", "Q4_0", 2 },
};
enum { N_MIX = sizeof mixes / sizeof *mixes };

const gguf_mix *speci_gguf_mix(const char *name)
{
    for (size_t i = 0; i < N_MIX; i++)
        if (strcmp(mixes[i].name, name) == 0) return &mixes[i];
    return NULL;
}

void speci_gguf_mix_names(char *out, size_t cap)
{
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < N_MIX && n < cap; i++) n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", mixes[i].name);
}

static const gguf_type *type_named(const char *name) { return speci_gguf_type_named(name, strlen(name)); }

static const gguf_type *type_for(const char *name, int64_t n_col)
{
    const gguf_type *type = speci_gguf_type_fitting(type_named(name), n_col);
    return type ? type : type_named("F16");
}

/* Vectors, and what is a few numbers for each channel. */
static bool is_small(const gguf_stored *t)
{
    static const char *const parts[] = { "_norm.", "ssm_conv1d.", "shortconv.conv.", "ssm_a", "ssm_d", "rope_f" };
    if (t->n_dim < 2) return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *found = strstr(t->name, parts[i]);
        if (found && (parts[i][strlen(parts[i]) - 1] == '.' || found[strlen(parts[i])] == '\0')) return true;
    }
    return false;
}

static bool is_head(const gguf_stored *tensors, size_t n, const gguf_stored *t)
{
    if (strcmp(t->name, "output.weight") == 0) return true;
    if (strcmp(t->name, "token_embd.weight") != 0) return false;
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, "output.weight") == 0) return false;
    return true;
}

static bool is_better(const gguf_stored *t, int n_layer)
{
    int i = 0;
    char part[GGUF_NAME_MAX] = "";
    if (sscanf(t->name, "blk.%d.%63s", &i, part) != 2 || n_layer <= 0) return false;
    if (strcmp(part, "attn_v.weight") != 0 && strcmp(part, "ffn_down.weight") != 0) return false;
    const int eighth = n_layer / 8;
    return i < eighth || i >= 7 * n_layer / 8 || (i - eighth) % 3 == 2;
}

void speci_gguf_choose_types(gguf_stored *tensors, size_t n, const gguf_mix *mix, int32_t n_layer, size_t *n_other)
{
    *n_other = 0;
    for (size_t i = 0; i < n; i++) {
        gguf_stored *t = &tensors[i];
        const char *wanted = is_small(t) ? "F32" : is_head(tensors, n, t) || is_better(t, n_layer) ? mix->better : mix->most;
        t->type = type_for(wanted, t->dim[1]);
        *n_other += t->type != type_named(wanted);
    }
}
