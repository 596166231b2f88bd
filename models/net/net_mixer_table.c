/* net_mixer_table.c - the one table of mixers, by model_branch_kind. A new one is a file, a kind and a row. */
#include "models/net/net_mixer.h"

static const net_mixer *const mixers[] = {
    [MODEL_ATTENTION] = &speci_mixer_attention,
    [MODEL_MAMBA1] = &speci_mixer_mamba1,
    [MODEL_MAMBA2] = &speci_mixer_mamba2,
    [MODEL_SHORT_CONV] = &speci_mixer_short_conv,
    [MODEL_MLP] = &speci_mixer_mlp,
};
_Static_assert(sizeof mixers / sizeof *mixers == MODEL_N_KIND, "a row for every kind");

const net_mixer *speci_net_mixer(const model_branch *b) { return mixers[b->kind]; }

int32_t speci_model_mixers(const spec_model *m, spec_mixer_count out[MODEL_N_KIND])
{
    int32_t count[MODEL_N_KIND] = { 0 }, n = 0;
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < m->layers[i].n_branch; j++) count[m->layers[i].branch[j].kind]++;
    for (int32_t k = 0; k < MODEL_N_KIND; k++)
        if (count[k] > 0) out[n++] = (spec_mixer_count){ mixers[k]->name, count[k] };
    return n;
}
