/* fuzz_safetensors.c - any bytes as a safetensors file: an error or tensors within the file, nothing else. */
#include <stdlib.h>

#include "models/files/files_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every byte that a tensor claims must be readable, and tensors must not share any: the sum cannot exceed the file. */
static void touch(const model_checkpoint *c, size_t size)
{
    size_t n, total = 0;
    unsigned sum = 0;
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < t[i].bytes; k++) sum += t[i].data[k];
        total += t[i].bytes;
        if (speci_checkpoint_find(c, t[i].name) != &t[i]) abort();
    }
    if (total > size || (sum && !total)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_checkpoint *c = NULL;
    const spec_status status = speci_checkpoint_open_memory(&c, data, size, "fuzz.safetensors", &speci_malloc);
    if ((c != NULL) != (status == SPEC_OK)) abort();
    if (c) touch(c, size);
    speci_checkpoint_close(c);
    return 0;
}
