/* model_generation.h - what generation_config.json says of decoding: the defaults of a request. Internal. */
#ifndef SPEC_MODEL_GENERATION_H
#define SPEC_MODEL_GENERATION_H

#include "models/files/files_config.h"
#include "models/model.h"

typedef struct model_generation model_generation;

/* Reads the keys of an open file, when the model's ids are known. What is wrong in it is no failure here: it is kept, and told to
 * who asks for the defaults. */
spec_status speci_generation_read(model_generation **out, const spec_model *m, model_config *file);
/* Its sampling alone, where what is wrong is a failure; *samples: do_sample. */
spec_status speci_generation_sampling(spec_request *out, model_config *file, bool *samples);
void speci_generation_close(model_generation *g, const spec_allocator *a);

#endif
