/* family_head.h - what the layouts of heads share: one layer of attention and MLP, whose first input model_intake.h says. Internal. */
#ifndef SPEC_MODEL_HEAD_H
#define SPEC_MODEL_HEAD_H

#include "models/families/family_transformer.h"
#include "models/model_intake.h"

/* What config.json, or an object in it, says of the layer: a Llama's keys. How many layers it counts is not believed: there is one. */
spec_status speci_head_read(model_config *c, model_transformer *out);
/* Ends the reading of config.json; the model has one empty layer then, and an intake, which is the builder's to fill. */
spec_status speci_head_begin(model_builder *b, const model_transformer *t, const char *kind, int32_t n_hidden);
/* The layer below `prefix`. Of attention biases and of norms of q and k the file's tensors tell. */
spec_status speci_head_layer(model_builder *b, const model_transformer *t, const char *prefix);
/* The file's own embedding, where the target's cannot serve; else a copy of the target's may be there, and is left out. */
spec_status speci_head_embedding(model_builder *b);
/* Is the tensor in the file? */
bool speci_head_has(const model_checkpoint *c, const char *name);
/* Does `architectures` name such a class? */
bool speci_head_is_class(const model_config *c, const char *part);

#endif
