/* fuzz_gguf.c - any bytes as a GGUF file: an error, or tensors within the file, values as JSON, and a config, of which a model is built.
 * (Its tokenizer: fuzz_tokenizer.c.) */
#include <stdlib.h>
#include <string.h>

#include "models/exec.h"
#include "models/families/family.h"
#include "models/families/family_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static spec_backend *backend; /* opened once: it keeps no state between inputs */

/* Every byte that a tensor claims must be readable, and tensors must not share any. */
static void touch(const model_checkpoint *c, size_t size)
{
    float values[SPEC_K_BLOCK];
    size_t n, total = 0;
    unsigned sum = 0;
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < t[i].bytes; k++) sum += t[i].data[k];
        total += t[i].bytes;
        if (speci_checkpoint_find(c, t[i].name) != &t[i]) abort();
        if (t[i].blocks) speci_tensor_floats(values, &t[i], 0, t[i].blocks->n_value);
    }
    if (total > size || (sum && !total)) abort();
}

static void read_values(const speci_gguf *g)
{
    for (size_t i = 0; i < g->n_pair; i++) {
        const char *text = NULL;
        size_t n;
        int64_t integer;
        bool flag;
        if (speci_gguf_find(g, g->pairs[i].key) != &g->pairs[i].value) abort();
        json_decref(speci_gguf_json(&g->pairs[i].value));
        (void)speci_gguf_text(g, g->pairs[i].key, &text, &n);
        (void)speci_gguf_integer(g, g->pairs[i].key, &integer);
        (void)speci_gguf_flag(g, g->pairs[i].key, &flag);
    }
}

static spec_status build(model_config *config, model_checkpoint *checkpoint, const model_gguf *row)
{
    const model_family *family = NULL;
    spec_model *m = NULL;
    SPEC_TRY(speci_family_find(&family, config, "/nonexistent"));
    if (speci_model_new(&m, backend, &speci_exec_net, "/nonexistent") != SPEC_OK) abort();
    m->dtype = SPEC_DTYPE_BF16;
    speci_checkpoint_rename(checkpoint, row->names);
    model_builder b = { .model = m, .checkpoint = checkpoint, .config = config, .dir = "/nonexistent", .form = row->form };
    if (backend->ops->queue_open(backend->dev, &b.queue, NULL, 0, 0) != SPEC_OK) abort();
    const spec_status status = family->build(&b);
    if (backend->ops->sync(b.queue) != SPEC_OK) abort();
    if (status == SPEC_OK && (!m->embed || !m->head.w || !m->unknown_keys)) abort();
    backend->ops->queue_close(b.queue);
    spec_model_close(m);
    return status;
}

static void read_file(model_checkpoint *c, size_t size)
{
    const model_gguf *row = NULL;
    model_config config = { 0 }, generation = { 0 };
    touch(c, size);
    if (!speci_checkpoint_gguf(c)) return;
    read_values(speci_checkpoint_gguf(c));
    (void)speci_gguf_generation(&generation, speci_checkpoint_gguf(c));
    if (speci_gguf_config(&config, &row, c, "fuzz.gguf") == SPEC_OK) (void)build(&config, c, row);
    speci_config_close(&generation);
    speci_config_close(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_checkpoint *c = NULL;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 1;
    if (!backend && spec_backend_open(&backend, "cpu:portable", &p) != SPEC_OK) abort();
    uint8_t *file = malloc(size ? size : 1); /* aligned, as a mapped file is */
    if (!file) abort();
    if (size) memcpy(file, data, size);
    const spec_status status = speci_checkpoint_open_memory(&c, file, size, "fuzz.gguf", &speci_malloc);
    if ((c != NULL) != (status == SPEC_OK)) abort();
    if (c) read_file(c, size);
    speci_checkpoint_close(c);
    free(file);
    return 0;
}
