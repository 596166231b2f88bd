/* files_fingerprint.c - telling one model from another without reading all of it. */
#include "models/files/files_checkpoint.h"

enum { SAMPLE = 4096 }; /* bytes at either end of a tensor */

static int add_text(const char *text, size_t n, void *hash)
{
    speci_hash_add(hash, text, n);
    return 0;
}

static spec_status add_tensor(speci_hash *h, const model_checkpoint *c, const model_tensor *t)
{
    uint8_t sample[2 * SAMPLE];
    const size_t n = t->bytes < sizeof sample ? t->bytes : sizeof sample, n_first = n < sizeof sample ? n : SAMPLE;
    speci_hash_text(h, t->name);
    speci_hash_text(h, t->dtype_name);
    speci_hash_add(h, &t->n_dim, sizeof t->n_dim);
    speci_hash_add(h, t->dim, (size_t)t->n_dim * sizeof *t->dim);
    SPEC_TRY(speci_checkpoint_read(c, t, sample, 0, n_first));
    SPEC_TRY(speci_checkpoint_read(c, t, sample + n_first, t->bytes - (n - n_first), n - n_first));
    speci_hash_add(h, sample, n);
    return SPEC_OK;
}

spec_status speci_model_fingerprint(uint64_t *out, const json_t *config, const model_checkpoint *c, spec_dtype weights)
{
    speci_hash h = { 0 };
    size_t n;
    if (json_dump_callback(config, add_text, &h, JSON_COMPACT | JSON_SORT_KEYS) != 0)
        return speci_fail(SPEC_E_NOMEM, "%s: no memory to go through config.json", speci_checkpoint_path(c));
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    for (size_t i = 0; i < n; i++) SPEC_TRY(add_tensor(&h, c, &t[i]));
    if (weights != SPEC_DTYPE_AUTO) speci_hash_text(&h, spec_dtype_name(weights));
    *out = speci_hash_value(&h);
    return SPEC_OK;
}
