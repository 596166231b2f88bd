/* family_gguf_cohere2.c - Cohere 2 from GGUF, and back. llama.cpp's converter leaves out which layers have a window: then every fourth has
 * none, which is the class's rule, too. Source: llama.cpp, conversion/command_r.py, src/models/cohere2.cpp. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const gguf_key keys[] = {
    { "attention.layer_norm_epsilon", "layer_norm_eps", GGUF_REAL },
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", SPECI_GGUF_WINDOWS, GGUF_WHOLE },
    { "logit_scale", "logit_scale", GGUF_REAL },
    { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_set(r, "attention_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL));
    return speci_gguf_windows(r);
}

const model_gguf speci_gguf_cohere2 = { .architecture = "cohere2", .model_type = "cohere2", .names = speci_gguf_llama_names, .keys = keys,
                                        .finish = finish, .write = speci_gguf_put_windows };
