/* family_gguf_exaone4.c - EXAONE 4 from GGUF, and back. Without a window all layers turn. Source: llama.cpp, conversion/exaone.py. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const gguf_key keys[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", SPECI_GGUF_WINDOWS, GGUF_WHOLE },
    { NULL, NULL, 0 },
};

/* A config without the key has the class's window: null is none. */
static spec_status finish(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_windows(r));
    if (speci_gguf_config_integer(r, "sliding_window") != 0) return SPEC_OK;
    return json_object_set_new(r->config, "sliding_window", json_null()) == 0 ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status write(gguf_writing *w)
{
    return json_integer_value(json_object_get(w->taken, "sliding_window")) > 0 ? speci_gguf_put_windows(w) : SPEC_OK;
}

const model_gguf speci_gguf_exaone4 = { .architecture = "exaone4", .model_type = "exaone4", .names = speci_gguf_bare_names, .keys = keys,
                                        .finish = finish, .write = write };
