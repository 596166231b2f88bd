/* cpu_device.c - the CPU as a device: choice of kernels, memory. */
#include "backends/cpu/cpu.h"

/* ------------------------------------------------------------------------------------- device --- */

/* Best first; the last one runs everywhere. */
static const cpu_isa *const isas[] = {
#if CPU_AMX
    &speci_cpu_isa_amx,
#endif
#if CPU_X86
    &speci_cpu_isa_avx512bf16,
    &speci_cpu_isa_avx512,
    &speci_cpu_isa_avx2,
#endif
    &speci_cpu_isa_portable,
};
enum { N_ISA = sizeof isas / sizeof isas[0] };

/* arg: NULL or "" for the best that this machine has, else a name. */
static spec_status choose_isa(const cpu_isa **out, const spec_host *host, const char *arg)
{
    bool any = !arg || !arg[0];
    for (size_t i = 0; i < N_ISA; i++) {
        if (!any && strcmp(arg, isas[i]->name) != 0) continue;
        *out = isas[i];
        if (isas[i]->supported() && (!any || !isas[i]->preferred || isas[i]->preferred())) return SPEC_OK;
        if (!any) return host->fail(SPEC_E_DEVICE, "cpu: this machine has no %s", arg);
    }
    if (strcmp(arg, "amx") == 0)
        return host->fail(SPEC_E_DEVICE, "cpu: this library was built without amx, which its compiler did not know");
    return host->fail(SPEC_E_INVALID, "cpu: no kernels named \"%s\"; there are portable, avx2, avx512, avx512bf16, amx", arg);
}

spec_status speci_cpu_open(spec_device **out, const spec_host *host, const char *arg)
{
    const cpu_isa *isa = NULL;
    CPU_TRY(choose_isa(&isa, host, arg));
    spec_device *dev = host->alloc(host, 1, sizeof *dev);
    if (!dev) return SPEC_E_NOMEM;
    dev->host = host;
    dev->isa = isa;
    dev->loops = isa->loops;
    spec_status status = speci_cpu_pool_open(&dev->pool, host);
    if (status != SPEC_OK) {
        host->free(host, dev);
        return status;
    }
#if defined(SPEC_HAVE_BLAS)
    speci_cpu_blas_open(dev);
#endif
    *out = dev;
    return SPEC_OK;
}

void speci_cpu_close(spec_device *dev)
{
    if (!dev) return;
    const spec_host *host = dev->host;
    speci_cpu_pool_close(dev->pool);
#if defined(SPEC_HAVE_BLAS)
    speci_cpu_blas_close(dev);
#endif
    host->free(host, dev);
}

void speci_cpu_run_tasks(spec_device *dev, int32_t n, cpu_task_fn *body, void *arg)
{
    speci_cpu_parallel(dev->pool, n, body, arg);
}

spec_status speci_cpu_info(spec_device *dev, spec_device_info *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->name, "cpu:", 4);
    strncpy(out->name + 4, dev->isa->name, sizeof out->name - 5);
    out->host_visible = 1;
    out->row_max = 1024;
    out->prefill_rows[0] = CPU_PREFILL_CHUNK;
    return SPEC_OK;
}

spec_status speci_cpu_list(const spec_host *host, void (*each)(void *, const char *, const char *), void *user)
{
    const cpu_isa *isa = NULL;
    CPU_TRY(choose_isa(&isa, host, NULL));
    each(user, NULL, isa->name);
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------------- memory --- */

enum { ALIGN = 256 };

/* Host memory is 64-byte aligned: 256 more bytes hold the shift to the next multiple of 256, and where it came from. */
spec_status speci_cpu_alloc(spec_device *dev, void **out, size_t bytes)
{
    uint8_t *p = bytes <= SIZE_MAX - ALIGN ? dev->host->alloc(dev->host, 1, bytes + ALIGN) : NULL;
    if (!p) return dev->host->fail(SPEC_E_NOMEM, "cpu: no memory for %zu bytes", bytes);
    uint8_t *aligned = p + (ALIGN - (uintptr_t)p % ALIGN);
    memcpy(aligned - sizeof p, &p, sizeof p);
    *out = aligned;
    return SPEC_OK;
}

void speci_cpu_free(spec_device *dev, void *aligned, size_t bytes)
{
    uint8_t *p = NULL;
    (void)bytes;
    if (!aligned) return;
    memcpy(&p, (uint8_t *)aligned - sizeof p, sizeof p);
    dev->host->free(dev->host, p);
}
