/* net_mixer.c - the mixers that a model has. */
#include "models/net/net_mixer.h"

#include <string.h>

bool speci_net_is_first(const spec_model *m, int32_t layer, int32_t branch)
{
    for (int32_t i = 0; i <= layer; i++)
        for (int32_t j = 0; j < (i < layer ? m->layers[i].n_branch : branch); j++)
            if (m->layers[i].branch[j].mixer == m->layers[layer].branch[branch].mixer) return false;
    return true;
}

static int32_t n_first(const spec_model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) n += speci_net_is_first(m, i, j);
    return n;
}

static void count(spec_model *m, const char *name)
{
    int32_t k = m->n_mixer;
    while (k > 0 && strcmp(m->mixers[k - 1].name, name) > 0) k--;
    if (k == 0 || m->mixers[k - 1].name != name) {
        memmove(m->mixers + k + 1, m->mixers + k, (size_t)(m->n_mixer++ - k) * sizeof *m->mixers);
        m->mixers[k++] = (spec_mixer_count){ .name = name };
    }
    m->mixers[k - 1].n++;
}

spec_status speci_model_list_mixers(spec_model *m)
{
    if (!(m->mixers = speci_alloc(m->allocator, (size_t)n_first(m), sizeof *m->mixers))) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) count(m, m->layers[i].branch[j].mixer->name);
    return SPEC_OK;
}
