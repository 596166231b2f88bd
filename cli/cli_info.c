/* cli_info.c - spec info: what a model is, and what a session on it will take. */
#include <jansson.h>
#include <stdlib.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "cli/cli.h"
#include "cli/cli_text.h"

static void print_bytes(FILE *to, const char *what, uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double n = (double)bytes;
    int unit = 0;
    while (n >= 1024 && unit < 4) n /= 1024, unit++;
    fprintf(to, "%-16s %.*f %s\n", what, unit == 0 ? 0 : 2, n, units[unit]);
}

/* "gguf, 211 tensors: 151 Q4_1 (80.22 MiB), ..." */
static void print_format(FILE *to, const spec_model_info *i)
{
    int32_t n = 0;
    if (i->format == NULL) return;
    for (int32_t k = 0; k < i->n_type; k++) n += i->types[k].n;
    fprintf(to, "%-16s %s, %d tensors:", "file", i->format, n);
    for (int32_t k = 0; k < i->n_type; k++)
        fprintf(to, "%s %d %s (%.2f MiB)", k > 0 ? "," : "", i->types[k].n, i->types[k].name, (double)i->types[k].bytes / 1048576);
    fputc('\n', to);
}

/* Zeros for none. */
static spec_tokenizer_info tokenizer_info(const spec_tokenizer *t)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    if (t != NULL) (void)spec_tokenizer_get_info(t, &info);
    return info;
}

static void print_tokenizer(FILE *to, const spec_tokenizer *t)
{
    const spec_tokenizer_info info = tokenizer_info(t);
    if (t == NULL) fprintf(to, "%-16s none: ids only\n", "tokenizer");
    else fprintf(to, "%-16s %d ids, %s chat template\n", "tokenizer", info.n_vocab, info.chat_template != NULL ? "with a" : "no");
}

static void print_text(FILE *to, const cli_context *c, const spec_model_info *i, const spec_memory *m, int32_t n_ctx)
{
    fprintf(to, "%-16s %s\n", "model", i->path);
    fprintf(to, "%-16s %s\n", "family", i->family);
    if (i->head != NULL) fprintf(to, "%-16s %s\n", "head", i->head);
    print_format(to, i);
    fprintf(to, "%-16s %d (", "layers", i->n_layer);
    for (int32_t k = 0; k < i->n_mixer; k++) fprintf(to, "%s%d %s", k > 0 ? ", " : "", i->mixers[k].n, i->mixers[k].name);
    fputs(")\n", to);
    fprintf(to, "%-16s %llu\n", "parameters", (unsigned long long)i->n_parameters);
    fprintf(to, "%-16s %d\n", "vocabulary", i->n_vocab);
    if (i->n_ctx > 0)
        fprintf(to, "%-16s %d tokens\n", "context", i->n_ctx);
    else
        fprintf(to, "%-16s no limit\n", "context");
    fprintf(to, "%-16s %d\n%-16s", "bos", i->bos, "eos");
    for (int32_t k = 0; k < i->n_eos; k++) fprintf(to, " %d", i->eos[k]);
    if (i->n_eos == 0) fputs(" none", to);
    fputc('\n', to);
    print_tokenizer(to, spec_model_tokenizer(c->target));
    fprintf(to, "%-16s %s\n", "compute type", spec_dtype_name(i->dtype));
    fprintf(to, "%-16s %s\n", "device", spec_backend_name(c->backend));
    fprintf(to, "%-16s ", "unknown keys");
    cli_put_plain(to, i->unknown_keys != NULL && i->unknown_keys[0] != 0 ? i->unknown_keys : "none");
    fputc('\n', to);
    char *said = cli_generation_text(c->target);
    fprintf(to, "%-16s %s%s\n", "generation", said != NULL && said[0] != 0 ? said : "nothing in generation_config.json",
            said != NULL && said[0] != 0 ? " (generation_config.json; followed with --generation-config)" : "");
    free(said);
    if (i->weights != SPEC_DTYPE_AUTO) fprintf(to, "%-16s %s\n", "matrices", spec_dtype_name(i->weights));
    print_bytes(to, "weights", i->bytes_weights);
    print_bytes(to, "state/sequence", i->bytes_state_seq);
    print_bytes(to, "KV/token", i->bytes_kv_token);
    if (i->head != NULL) return; /* a session is its target's */

    fputs("\nA session", to);
    if (n_ctx > 0) fprintf(to, " of %d tokens", n_ctx);
    fprintf(to, "%s takes on the device:\n", c->n_drafter > 0 ? " with this drafter" : "");
    print_bytes(to, "  weights", m->bytes_model);
    print_bytes(to, "  state", m->bytes_state);
    print_bytes(to, "  KV cache", m->bytes_kv);
    print_bytes(to, "  work", m->bytes_work);
    print_bytes(to, "  total", m->bytes_model + m->bytes_state + m->bytes_kv + m->bytes_work);
}

static void print_json(const cli_context *c, const spec_model_info *i, const spec_memory *m)
{
    json_t *o = json_object();
    json_object_set_new(o, "model", cli_json_text(i->path));
    json_object_set_new(o, "family", json_string(i->family));
    json_object_set_new(o, "head", cli_json_text(i->head));
    json_object_set_new(o, "format", cli_json_text(i->format));
    json_t *types = json_object();
    for (int32_t k = 0; k < i->n_type; k++)
        json_object_set_new(types, i->types[k].name,
                            json_pack("{s:i, s:I}", "n", i->types[k].n, "bytes", (json_int_t)i->types[k].bytes));
    json_object_set_new(o, "types", types);
    json_object_set_new(o, "n_layer", json_integer(i->n_layer));
    json_t *mixers = json_object();
    for (int32_t k = 0; k < i->n_mixer; k++) json_object_set_new(mixers, i->mixers[k].name, json_integer(i->mixers[k].n));
    json_object_set_new(o, "mixers", mixers);
    json_object_set_new(o, "n_parameters", json_integer((json_int_t)i->n_parameters));
    json_object_set_new(o, "n_vocab", json_integer(i->n_vocab));
    json_object_set_new(o, "n_ctx", json_integer(i->n_ctx));
    json_object_set_new(o, "bos", json_integer(i->bos));
    json_t *eos = json_array();
    for (int32_t k = 0; k < i->n_eos; k++) json_array_append_new(eos, json_integer(i->eos[k]));
    json_object_set_new(o, "eos", eos);
    const spec_tokenizer *t = spec_model_tokenizer(c->target);
    const char *chat = tokenizer_info(t).chat_template;
    json_object_set_new(o, "tokenizer", json_boolean(t != NULL));
    json_object_set_new(o, "chat_template", cli_json_text(chat));
    json_object_set_new(o, "dtype", json_string(spec_dtype_name(i->dtype)));
    json_object_set_new(o, "weights", json_string(spec_dtype_name(i->weights)));
    json_object_set_new(o, "backend", json_string(spec_backend_name(c->backend)));
    json_object_set_new(o, "unknown_keys", cli_json_text(i->unknown_keys != NULL ? i->unknown_keys : ""));
    json_object_set_new(o, "generation_config", cli_generation_config(c->target));
    json_object_set_new(o, "bytes_weights", json_integer((json_int_t)i->bytes_weights));
    json_object_set_new(o, "bytes_state_seq", json_integer((json_int_t)i->bytes_state_seq));
    json_object_set_new(o, "bytes_kv_token", json_integer((json_int_t)i->bytes_kv_token));
    json_t *session = json_object();
    json_object_set_new(session, "bytes_model", json_integer((json_int_t)m->bytes_model));
    json_object_set_new(session, "bytes_state", json_integer((json_int_t)m->bytes_state));
    json_object_set_new(session, "bytes_kv", json_integer((json_int_t)m->bytes_kv));
    json_object_set_new(session, "bytes_work", json_integer((json_int_t)m->bytes_work));
    json_object_set_new(o, "session", i->head != NULL ? json_null() : json_incref(session));
    json_decref(session);
    json_object_set_new(o, "version", json_string(spec_version()));
    cli_json_print(o, CLI_JSON_OBJECT, "info");
}

int cli_info(const cli_options *o)
{
    cli_context context = { 0 };
    cli_interrupt_install();
    int code = cli_open(&context, o);
    if (code == CLI_OK) {
        spec_model_info info = { .struct_size = sizeof info };
        spec_memory memory = { .struct_size = sizeof memory };
        spec_lab lab;
        const spec_session_params params = cli_session_params(&context, o, &lab);
        if (spec_model_get_info(context.target, &info, context.n_node) != SPEC_OK ||
            (info.head == NULL && spec_session_estimate(&memory, context.target, NULL, &params) != SPEC_OK))
            code = cli_failure();
        else if (o->json)
            print_json(&context, &info, &memory);
        else
            print_text(stdout, &context, &info, &memory, o->n_ctx > 0 ? o->n_ctx : info.n_ctx);
    }
    cli_close(&context);
    return code;
}
