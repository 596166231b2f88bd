/* family_codegen.c - CodeGen: GPT-J without biases in attention and with q, k and v in one tensor, whose rows are in the order of the four
 * devices that it was trained on: of each its quarter of q, then of v, then of k. Source: transformers models/codegen. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

enum { N_DEVICE = 4 };

/* from [3 * dim]: the row of the tensor that is row i of [q | k | v]. */
static void order(int32_t *from, int32_t dim)
{
    static const int32_t place[3] = { 0, 2, 1 }; /* of q, k, v */
    const int32_t quarter = dim / N_DEVICE;
    for (int32_t j = 0; j < 3; j++)
        for (int32_t i = 0; i < dim; i++) *from++ = (i / quarter * 3 + place[j]) * quarter + i % quarter;
}

spec_status speci_family_codegen(model_builder *b)
{
    const model_config *c = b->config;
    model_transformer t = speci_gptj;
    SPEC_TRY(speci_gptj_read(b->config, &t));
    (void)speci_config_take(b->config, "n_ctx"); /* which the class does not read */
    if (t.dim % N_DEVICE)
        return speci_fail(SPEC_E_FORMAT, "%s: n_embd is %d, expected a multiple of %d", c->file, t.dim, N_DEVICE);
    int32_t *from = speci_alloc(b->model->allocator, (size_t)(3 * t.dim), sizeof *from);
    if (!from) return SPEC_E_NOMEM;
    order(from, t.dim);
    t.qkv = MODEL_QKV_FUSED, t.qkv_from = from;
    const spec_status status = speci_transformer_build(b, &t, NULL);
    speci_free(b->model->allocator, from);
    return status;
}
