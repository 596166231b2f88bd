/* fuzz_config.c - any text as config.json, with any bytes as its safetensors file: the text, a zero byte, the file.
 * A model or an error, nothing else. The same text as generation_config.json: defaults, or one sentence each time. */
#include <stdlib.h>
#include <string.h>

#include "models/exec.h"
#include "models/families/family.h"
#include "models/model_generation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static spec_backend *backend; /* opened once: it keeps no state between inputs */

static spec_model *new_model(void)
{
    spec_model *m = NULL;
    if (speci_model_new(&m, backend, &speci_exec_net, "/nonexistent") != SPEC_OK) abort();
    m->dtype = SPEC_DTYPE_F32;
    return m;
}

static spec_status build(model_config *config, model_checkpoint *checkpoint)
{
    const model_family *family = NULL;
    SPEC_TRY(speci_family_find(&family, config, "/nonexistent"));
    spec_model *m = new_model();
    model_builder b = { .model = m, .checkpoint = checkpoint, .config = config, .dir = "/nonexistent" };
    if (backend->ops->queue_open(backend->dev, &b.queue, NULL, 0, 0) != SPEC_OK) abort();
    spec_status status = family->build(&b);
    if (backend->ops->sync(b.queue) != SPEC_OK) abort();
    if (status == SPEC_OK && (!m->embed || !m->head.w || !m->unknown_keys)) abort();
    backend->ops->queue_close(b.queue);
    spec_model_close(m);
    return status;
}

static void read_generation(const char *text, size_t n)
{
    model_config config = { 0 };
    int32_t eos = 2;
    spec_model m = { .n_vocab = 96, .n_eos = 1, .eos = &eos, .allocator = &speci_malloc };
    spec_request r = SPEC_REQUEST_INIT;
    if (speci_config_parse(&config, text, n, "generation_config.json") != SPEC_OK) return;
    if (speci_generation_read(&m.generation, &m, &config) != SPEC_OK) abort();
    speci_config_close(&config);
    const spec_status status = spec_request_from_model(&r, &m, NULL);
    if (status != SPEC_OK && status != SPEC_E_FORMAT) abort();
    for (int32_t i = 0; i < r.n_stop; i++)
        if (!r.stop[i][0]) abort();
    for (int32_t i = 0; i < r.n_bias; i++)
        if (r.bias[i].token < 0 || r.bias[i].token >= m.n_vocab) abort();
    speci_generation_close(m.generation, m.allocator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t no_tensors[] = "\2\0\0\0\0\0\0\0{}";
    model_config config = { 0 };
    model_checkpoint *checkpoint = NULL;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 1;
    if (!backend && spec_backend_open(&backend, "cpu:portable", &p) != SPEC_OK) abort();

    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t n_text = zero ? (size_t)(zero - data) : size;
    const uint8_t *file = zero ? zero + 1 : no_tensors;
    const size_t n_file = zero ? size - n_text - 1 : sizeof no_tensors - 1;
    read_generation((const char *)data, n_text);
    if (speci_config_parse(&config, (const char *)data, n_text, "config.json") == SPEC_OK &&
        speci_checkpoint_open_memory(&checkpoint, file, n_file, "fuzz.safetensors", &speci_malloc) == SPEC_OK)
        (void)build(&config, checkpoint);
    speci_checkpoint_close(checkpoint);
    speci_config_close(&config);
    return 0;
}
