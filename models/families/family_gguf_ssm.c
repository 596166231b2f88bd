/* family_gguf_ssm.c - Mamba-1 and Mamba-2 from GGUF. A stands there, not its logarithm. Source: llama.cpp, conversion/mamba.py. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const model_rename own[] = {
    { "backbone.embeddings", "token_embd" },
    { "backbone.norm_f", "output_norm" },
    { "lm_head", "output" },
    { "backbone.layers.#.norm", "blk.#.attn_norm" },
    { "backbone.layers.#.mixer.in_proj", "blk.#.ssm_in" },
    { "backbone.layers.#.mixer.conv1d", "blk.#.ssm_conv1d" },
    { "backbone.layers.#.mixer.x_proj", "blk.#.ssm_x" },
    { "backbone.layers.#.mixer.dt_proj", "blk.#.ssm_dt" },
    { "backbone.layers.#.mixer.dt_bias", "blk.#.ssm_dt.bias" },
    { "backbone.layers.#.mixer.A_log", "blk.#.ssm_a" },
    { "backbone.layers.#.mixer.D", "blk.#.ssm_d" },
    { "backbone.layers.#.mixer.norm", "blk.#.ssm_norm" },
    { "backbone.layers.#.mixer.out_proj", "blk.#.ssm_out" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

static spec_status finish(gguf_reading *r)
{
    const int64_t inner = speci_gguf_config_integer(r, "intermediate_size"), dim = speci_gguf_config_integer(r, "hidden_size");
    bool norms = false;
    SPEC_TRY(speci_gguf_flag(r->file, "mamba.ssm.dt_b_c_rms", &norms));
    if (norms)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: mamba.ssm.dt_b_c_rms is true: norms of dt, B and C are not supported", r->file->file);
    SPEC_TRY(speci_gguf_set(r, "expand", json_integer(dim > 0 ? inner / dim : 0), "ssm.inner_size"));
    SPEC_TRY(speci_gguf_set(r, "use_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.ssm_in.bias")), NULL));
    return speci_gguf_set(r, "use_conv_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.ssm_conv1d.bias")), NULL);
}

/* llama.cpp wants the keys of a transformer; there is no longest text, which it gets as 2^20. */
static spec_status write(gguf_writing *w)
{
    SPEC_TRY(speci_gguf_put_own_whole(w, "context_length", 1 << 20));
    SPEC_TRY(speci_gguf_put_own_whole(w, "feed_forward_length", 0));
    return speci_gguf_put_own_whole(w, "attention.head_count", 0);
}

static spec_status write1(gguf_writing *w)
{
    SPEC_TRY(speci_gguf_put_flag(w->head, "mamba.ssm.dt_b_c_rms", false));
    return write(w);
}

static const gguf_key mamba_keys[] = {
    { "context_length", NULL, GGUF_WHOLE },
    { "feed_forward_length", NULL, GGUF_WHOLE },
    { "attention.head_count", NULL, GGUF_WHOLE },
    { "ssm.dt_b_c_rms", NULL, GGUF_WHOLE },
    { "attention.layer_norm_rms_epsilon", "layer_norm_epsilon", GGUF_REAL },
    { "ssm.conv_kernel", "conv_kernel", GGUF_WHOLE },
    { "ssm.inner_size", "intermediate_size", GGUF_WHOLE },
    { "ssm.state_size", "state_size", GGUF_WHOLE },
    { "ssm.time_step_rank", "time_step_rank", GGUF_WHOLE },
    { NULL, NULL, 0 },
};

const model_gguf speci_gguf_mamba = { .architecture = "mamba", .model_type = "mamba", .names = names, .keys = mamba_keys,
                                      .form = { .decays = true }, .finish = finish, .write = write1 };

static spec_status finish2(gguf_reading *r)
{
    const int64_t inner = speci_gguf_config_integer(r, "intermediate_size"), n_head = speci_gguf_config_integer(r, "num_heads");
    SPEC_TRY(speci_gguf_set(r, "head_dim", json_integer(n_head > 0 ? inner / n_head : 0), "ssm.inner_size"));
    return finish(r);
}

static const gguf_key mamba2_keys[] = {
    { "context_length", NULL, GGUF_WHOLE },
    { "feed_forward_length", NULL, GGUF_WHOLE },
    { "attention.head_count", NULL, GGUF_WHOLE },
    { "attention.layer_norm_rms_epsilon", "layer_norm_epsilon", GGUF_REAL },
    { "ssm.conv_kernel", "conv_kernel", GGUF_WHOLE },
    { "ssm.inner_size", "intermediate_size", GGUF_WHOLE },
    { "ssm.state_size", "state_size", GGUF_WHOLE },
    { "ssm.time_step_rank", "num_heads", GGUF_WHOLE },
    { "ssm.group_count", "n_groups", GGUF_WHOLE },
    { NULL, NULL, 0 },
};

const model_gguf speci_gguf_mamba2 = { .architecture = "mamba2", .model_type = "mamba2", .names = names, .keys = mamba2_keys,
                                       .form = { .decays = true }, .finish = finish2, .write = write };
