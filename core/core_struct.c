/* core_struct.c - public structs that grow: read and written by the size that both sides know, and their sizes for bindings. */
#define SPEC_EXPERIMENTAL
#include <string.h>

#include "core/core.h"
#include "spec_lab.h"

void spec_struct_init(void *params, size_t struct_size)
{
    if (!params || struct_size < sizeof struct_size) return;
    memset(params, 0, struct_size);
    memcpy(params, &struct_size, sizeof struct_size);
}

#define SIZE(type) { #type, sizeof(type) }
static const struct {
    const char *name;
    size_t size;
} sizes[] = {
    SIZE(spec_backend_params), SIZE(spec_model_params), SIZE(spec_model_info), SIZE(spec_tokenizer_info), SIZE(spec_drafter_params),
    SIZE(spec_session_params), SIZE(spec_session_info), SIZE(spec_drafter_stats), SIZE(spec_memory), SIZE(spec_request), SIZE(spec_result),
    SIZE(spec_drafter_ops), SIZE(spec_model_ops), SIZE(spec_verify_args), SIZE(spec_builder_info), SIZE(spec_build_args),
    SIZE(spec_builder_ops), SIZE(spec_cost_profile), SIZE(spec_lab), SIZE(spec_corpus_params), SIZE(spec_corpus_info),
    SIZE(spec_convert_params),
};

size_t spec_struct_size(const char *name)
{
    for (size_t i = 0; name && i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) return sizes[i].size;
    return 0;
}

static spec_status check_size(size_t n, const char *name)
{
    if (n >= sizeof n) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "%s.struct_size is %zu: set it with the struct's initialiser, or to its size", name, n);
}

spec_status speci_params_read(void *out, size_t size, const void *in, const char *name)
{
    if (!in) return SPEC_OK;
    size_t n;
    memcpy(&n, in, sizeof n);
    SPEC_TRY(check_size(n, name));
    memcpy(out, in, n < size ? n : size);
    memcpy(out, &size, sizeof size);
    return SPEC_OK;
}

spec_status speci_params_write(void *out, const void *from, size_t size, const char *name)
{
    size_t n;
    memcpy(&n, out, sizeof n);
    SPEC_TRY(check_size(n, name));
    memcpy(out, from, n < size ? n : size);
    memcpy(out, &n, sizeof n);
    return SPEC_OK;
}
