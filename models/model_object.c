/* model_object.c - a model as an object, whatever it is made of: new, closed, asked. */
#include "models/exec.h"
#include "models/model_generation.h"
#include "models/model_intake.h"

#define NODE_MAX 4096 /* nodes that a size is told for */

spec_status speci_model_new(spec_model **out, spec_backend *backend, const speci_exec_kind *exec, const char *path)
{
    spec_model *m = speci_alloc(&backend->allocator, 1, sizeof *m);
    if (!m) return SPEC_E_NOMEM;
    m->backend = backend;
    m->exec = exec;
    m->allocator = &backend->allocator;
    m->bos = -1;
    m->path = speci_strdup(m->allocator, path);
    speci_hold(&backend->holds);
    *out = m;
    if (m->path) return SPEC_OK;
    spec_model_close(m);
    return SPEC_E_NOMEM;
}

void spec_model_close(spec_model *m)
{
    if (!m || !speci_let_go(&m->holds)) return;
    spec_backend *be = m->backend;
    m->exec->close_model(m);
    spec_tokenizer_close(m->opened_tokenizer);
    speci_generation_close(m->generation, m->allocator);
    for (int32_t i = 0; i < m->n_layer; i++)
        for (int32_t j = 0; j < MODEL_MAX_BRANCH; j++) speci_free(m->allocator, m->layers[i].branch[j].own);
    speci_free(m->allocator, m->layers);
    speci_free(m->allocator, m->mixers);
    speci_free(m->allocator, m->types);
    speci_free(m->allocator, m->eos);
    speci_intake_close(m->intake, m->allocator);
    speci_free(m->allocator, m->told);
    speci_free(m->allocator, m->unknown_keys);
    speci_free(m->allocator, m->path);
    speci_free(m->allocator, m);
    spec_backend_close(be);
}

/* --- getters --- */

const spec_tokenizer *spec_model_tokenizer(const spec_model *m) { return m ? m->tokenizer : NULL; }

spec_status spec_model_get_info(const spec_model *m, spec_model_info *out, int32_t n_node)
{
    if (!m || !out) return speci_fail(SPEC_E_INVALID, "spec_model_get_info needs a model and info");
    if (n_node < 1 || n_node > NODE_MAX)
        return speci_fail(SPEC_E_INVALID, "n_node is %d, expected 1 to %d", n_node, NODE_MAX);
    spec_memory memory = { .struct_size = sizeof memory };
    SPEC_TRY(speci_exec_bytes(m, &(speci_exec_params){ .n_seq = 1, .n_ctx = SPEC_PAGE, .n_node = n_node }, &memory));
    spec_model_info info = { .family = m->family, .path = m->path,
                             .unknown_keys = m->unknown_keys, .dtype = m->dtype, .n_vocab = m->n_vocab,
                             .n_layer = m->n_layer, .n_ctx = m->n_ctx, .bos = m->bos, .n_eos = m->n_eos,
                             .eos = m->eos, .n_parameters = m->n_parameters, .bytes_weights = m->bytes_weights,
                             .bytes_state_seq = memory.bytes_state, .weights = m->weights,
                             .bytes_kv_token = speci_model_kept(m).bytes_kv_token, .n_mixer = m->n_mixer,
                             .mixers = m->mixers, .dim = m->dim, .n_type = m->n_type, .types = m->types,
                             .format = m->format, .head = m->told, .backend = m->backend };
    return speci_params_write(out, &info, sizeof info, "spec_model_info");
}
