/* model_stream.c - the bytes of a saved sequence that an application's callbacks write and read. */
#include "models/exec.h"

int speci_app_write(void *writer, const void *data, size_t n)
{
    speci_app_writer *w = writer;
    w->n += n;
    if (w->put && w->status == SPEC_OK) w->status = w->put(w->arg, data, n);
    return w->status != SPEC_OK;
}

int speci_app_read(void *reader, void *data, size_t n)
{
    speci_app_reader *r = reader;
    if (n > r->left) r->status = speci_fail(SPEC_E_FORMAT, "saved sequence: its %s's %zu bytes end too early", r->whose, n);
    if (r->status == SPEC_OK) r->status = r->get(r->arg, data, n);
    if (r->status == SPEC_OK) r->left -= n;
    return r->status != SPEC_OK;
}

spec_status speci_app_read_end(const speci_app_reader *r, spec_status status)
{
    if (r->status != SPEC_OK) return r->status;
    if (status == SPEC_OK && r->left > 0)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its %s left %llu bytes", r->whose, (unsigned long long)r->left);
    return status;
}
