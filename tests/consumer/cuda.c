/* An application that links the CUDA backend instead of loading it at run time. */
#include <spec_cuda.h>
#include <stdio.h>

int main(void)
{
    spec_backend *backend = NULL;
    const spec_status status = spec_backend_open_ops(&backend, spec_cuda_ops(), NULL, NULL);
    printf("%s\n", status == SPEC_OK ? spec_backend_name(backend) : spec_last_error());
    spec_backend_close(backend);
    return status == SPEC_OK || status == SPEC_E_DEVICE ? 0 : 1;
}
