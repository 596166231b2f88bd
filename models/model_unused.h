/* model_unused.h - what becomes of tensors that the family did not take. Internal. */
#ifndef SPEC_MODEL_UNUSED_H
#define SPEC_MODEL_UNUSED_H

#include "models/files/files_checkpoint.h"
#include "models/files/files_config.h"

/* Refuses a checkpoint with tensors that another network would compute with; logs what else was not used. */
spec_status speci_model_check_unused(const spec_model *m, const model_config *config, const model_checkpoint *c);

#endif
