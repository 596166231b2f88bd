/* family_gguf_write.h - a Hugging Face directory as a GGUF file: the tables of family_gguf.h the other way. Internal. */
#ifndef SPEC_MODEL_FAMILY_GGUF_WRITE_H
#define SPEC_MODEL_FAMILY_GGUF_WRITE_H

#include "models/families/family_gguf.h"
#include "models/files/files_gguf_write.h"

struct gguf_writing { /* zero to begin; the fields before the gap are to be set */
    speci_gguf_head *head;
    const model_gguf *row;
    const model_config *config;
    const json_t *taken;        /* {key: value} (model_config) */
    const model_checkpoint *checkpoint;
    const spec_allocator *a;

    gguf_stored *tensors;       /* [n_tensor] of the new file; from speci_alloc */
    size_t n_tensor, cap;
    float *made;                /* values of tensors that no file has */
};

/* Fills tensors (without types) and head: the architecture, and what stands below its name. A tensor that has no name there is left out. */
spec_status speci_gguf_plan(gguf_writing *w);
/* Fails for one of these that is used. */
spec_status speci_gguf_check_named(const gguf_writing *w);
/* The tensors of a GGUF file as they are, but for those that are not used and whose type or shape is none here. */
spec_status speci_gguf_plan_same(gguf_writing *w);
void speci_gguf_plan_free(gguf_writing *w);
/* Would the file, read again, come to what was taken? m: what reading a config needs. */
spec_status speci_gguf_check(const gguf_writing *w, spec_model *m);

/* A key below the architecture's name. */
spec_status speci_gguf_put_own_whole(gguf_writing *w, const char *key, uint32_t value);
/* attention.head_count_kv of a hybrid: a number for each layer, 0 where it does not attend. A row's write. */
spec_status speci_gguf_put_layers(gguf_writing *w);
/* attention.sliding_window_pattern: a flag for each layer. A row's write. */
spec_status speci_gguf_put_windows(gguf_writing *w);

#endif
