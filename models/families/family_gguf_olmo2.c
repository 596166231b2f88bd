/* family_gguf_olmo2.c - OLMo 2 and OLMo 3 from GGUF, and back. Both say that they are OLMo 2's: OLMo 3 has windows.
 * Source: llama.cpp, conversion/olmo.py, src/models/olmo2.cpp. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"
#include "models/families/family_transformer.h"

static const gguf_key keys[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", SPECI_GGUF_WINDOWS, GGUF_WHOLE },
    { "rope.freq_base_swa", SPECI_OLMO3_SLIDING_THETA, GGUF_REAL },
    { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_set(r, "attention_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL));
    SPEC_TRY(speci_gguf_windows(r));
    if (speci_gguf_config_integer(r, "sliding_window") == 0) return speci_gguf_set(r, "sliding_window", json_null(), NULL);
    return speci_gguf_set(r, "model_type", json_string("olmo3"), "general.architecture");
}

static spec_status write(gguf_writing *w) { return json_object_get(w->taken, "sliding_window") ? speci_gguf_put_windows(w) : SPEC_OK; }

const model_gguf speci_gguf_olmo2 = { .architecture = "olmo2", .model_type = "olmo2", .also = "olmo3", .names = speci_gguf_bare_names,
                                      .keys = keys, .finish = finish, .write = write };
