/* model_source.h - what a model is made from: a Hugging Face directory or a GGUF file. Internal. */
#ifndef SPEC_MODEL_SOURCE_H
#define SPEC_MODEL_SOURCE_H

#include "models/families/family_gguf.h"

typedef struct model_source { /* zero to begin */
    char path[2][MODEL_MAX_PATH];
    model_config config, generation; /* generation stays without a root where there is no such file */
    model_checkpoint *checkpoint;    /* NULL: a directory, whose weights are not open yet */
    const model_gguf *gguf;          /* NULL: a Hugging Face directory */
} model_source;

/* Is it a directory or a GGUF file? Else what to do about it. */
spec_status speci_source_check(const char *path);
/* Reads the config of m->path. Close it either way. */
spec_status speci_source_read(model_source *s, const spec_model *m);
/* The model's bos and end tokens, as the two files have them. Its n_vocab is known. */
spec_status speci_source_ids(spec_model *m, const model_source *s);
void speci_source_close(model_source *s);
bool speci_has_tokenizer(const char *dir);

#endif
