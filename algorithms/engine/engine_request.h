/* engine_request.h - what is wanted of a sequence, as a session keeps it. Internal. */
#ifndef SPEC_ENGINE_REQUEST_H
#define SPEC_ENGINE_REQUEST_H

#include "algorithms/engine/engine_stop.h"
#include "models/model.h"

/* A request, copied: what its pointers point to is owned here. */
typedef struct engine_request {
    spec_request p;
    speci_stops stops;
    int32_t *ends;         /* [n_end] the text ends at these tokens: the first n_eos end it as the model does (SPEC_STOP_EOS), */
    int32_t n_end, n_eos;  /* the others are special tokens that stop strings name */
} engine_request;

/* *out is a checked copy of `given`, which has this library's size. Errors: E_INVALID, E_UNSUPPORTED, E_NOMEM; then *out holds nothing. */
spec_status speci_request_open(engine_request *out, const spec_model *target, const spec_request *given);
spec_status speci_request_copy(engine_request *out, const spec_model *target, const engine_request *from);
void speci_request_close(engine_request *r, const spec_allocator *a);
spec_status speci_sampling_check(const spec_sampling *p);

#endif
