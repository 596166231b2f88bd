/* cli_report.c - what a run was: for people on stderr, for machines as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* ------------------------------------------------------------------------------------- text --- */

static void print_time(FILE *to, const char *what, double ms, size_t n)
{
    fprintf(to, "%-8s %9.1f ms / %4zu tokens (%.2f ms per token, %.1f tokens per second)\n", what, ms, n,
            ratio(ms, (double)n), ratio((double)n, ms / 1e3));
}

/* A sequence's last token is scored by the first step: a prompt of one token leaves nothing to compute, and no rate. */
static void print_prompt(FILE *to, const spec_result *r)
{
    if (r->n_prompt > 1)
        print_time(to, "prompt", r->prefill_ms, (size_t)r->n_prompt);
    else
        fprintf(to, "%-8s 1 token: nothing was computed before the first step\n", "prompt");
}

/* The text of a token, as JSON quotes it; "<e2 80>" of one that is a part of a character; nothing without a tokenizer. */
static void print_piece(FILE *to, const spec_tokenizer *tokenizer, int32_t id)
{
    size_t n = 0;
    const char *piece = tokenizer != NULL ? spec_tokenizer_piece(tokenizer, &n, id) : NULL;
    if (piece == NULL) return;
    json_t *text = json_stringn(piece, n);
    if (text != NULL) {
        fputc(' ', to);
        json_dumpf(text, to, JSON_ENCODE_ANY);
        json_decref(text);
        return;
    }
    for (size_t i = 0; i < n; i++) fprintf(to, "%s%02x", i == 0 ? " <" : " ", (unsigned)(unsigned char)piece[i]);
    fputc('>', to);
}

static void print_logprob(FILE *to, const spec_tokenizer *tokenizer, int32_t id, float value)
{
    fprintf(to, "%d", id);
    print_piece(to, tokenizer, id);
    fprintf(to, " %.6f", (double)value);
}

static void print_logprobs(FILE *to, const spec_tokenizer *tokenizer, const spec_result *r)
{
    for (size_t i = 0; i < r->n_ids; i++) {
        const spec_logprob *l = &r->logprobs[i];
        fprintf(to, "logprob  %zu: ", i);
        print_logprob(to, tokenizer, r->ids[i], l->logprob);
        for (int32_t k = 0; k < l->n_top; k++) {
            fputs(k == 0 ? " of " : ", ", to);
            print_logprob(to, tokenizer, l->top_id[k], l->top_logprob[k]);
        }
        fputc('\n', to);
    }
}

/* Steps by accepted drafts, without the zeros at the end: returns how many numbers there are. */
static int32_t histogram_size(const spec_result *r)
{
    int32_t n = (int32_t)(sizeof r->accepted / sizeof r->accepted[0]);
    while (n > 0 && r->accepted[n - 1] == 0) n--;
    return n;
}

static double nodes_per_step(const spec_result *r) /* roots included */
{
    return ratio((double)(r->n_drafted + r->n_step), (double)r->n_step);
}

static void print_trees(FILE *to, const cli_report *r)
{
    const spec_result *result = r->result;
    char *proposals = cli_proposals(r->options);
    fprintf(to, "%-8s %s, verified by %s: %.1f nodes per step, drafts in %.1f %% of the steps, %lld on a side branch\n",
            "trees", proposals != NULL ? proposals : "?", spec_verify_rule_name((spec_verify_rule)r->options->verify),
            nodes_per_step(result), 100 * ratio((double)result->n_speculated, (double)result->n_step),
            (long long)result->n_branched);
    free(proposals);
    fprintf(to, "%-8s", "accepted");
    for (int32_t k = 0; k < histogram_size(result); k++)
        fprintf(to, "%s %d: %lld", k > 0 ? "," : "", k, (long long)result->accepted[k]);
    fputs(" steps\n", to);
}

void cli_report_text(FILE *to, const cli_report *r)
{
    const spec_result *result = r->result;
    if (result->logprobs != NULL) print_logprobs(to, spec_model_tokenizer(r->context->target), result);
    fprintf(to, "\n%-8s %s, %s%s%s\n", "device", spec_backend_name(r->context->backend), spec_dtype_name(r->info.dtype),
            r->info.weights == SPEC_DTYPE_AUTO ? "" : ", weights in ",
            r->info.weights == SPEC_DTYPE_AUTO ? "" : spec_dtype_name(r->info.weights));
    fprintf(to, "%-8s %9.1f ms\n", "load", r->context->load_ms);
    print_prompt(to, result);
    print_time(to, "decode", result->decode_ms, result->n_ids);
    fprintf(to, "%-8s %lld, accepted %lld of %lld drafted tokens (%.1f %%), %.2f emitted per step; stopped by %s\n",
            "steps", (long long)result->n_step, (long long)result->n_accepted, (long long)result->n_drafted,
            100 * ratio((double)result->n_accepted, (double)result->n_drafted),
            ratio((double)result->n_emitted, (double)result->n_step), spec_stop_name(result->stop));
    if (r->context->n_drafter > 0) print_trees(to, r);
    if (r->check.done) {
        print_time(to, "plain", r->check.decode_ms, result->n_ids);
        fprintf(to, "%-8s %s; %.2f times the speed of plain decoding\n", "check", r->check.equal ? "equal" : "DIFFERS",
                ratio(r->check.decode_ms, result->decode_ms));
    }
}

/* ------------------------------------------------------------------------------------- JSON --- */

static json_t *token_list(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *number(double x) /* JSON has no infinity */
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* Of a token that is a part of a character the text is null, and its bytes are told. */
static void add_piece(json_t *o, const spec_tokenizer *tokenizer, int32_t id)
{
    size_t n = 0;
    const char *piece = tokenizer != NULL ? spec_tokenizer_piece(tokenizer, &n, id) : NULL;
    json_t *text = piece != NULL ? json_stringn(piece, n) : NULL;
    json_object_set_new(o, "text", text != NULL ? text : json_null());
    if (piece == NULL || text != NULL) return;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    json_object_set_new(o, "bytes", bytes);
}

static json_t *logprob(const spec_tokenizer *tokenizer, int32_t token, float value)
{
    json_t *o = json_pack("{s:i, s:o}", "token", (int)token, "logprob", number(value));
    add_piece(o, tokenizer, token);
    return o;
}

static json_t *logprob_list(const spec_tokenizer *tokenizer, const spec_result *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_ids; i++) {
        const spec_logprob *l = &r->logprobs[i];
        json_t *entry = logprob(tokenizer, r->ids[i], l->logprob), *top = json_array();
        for (int32_t k = 0; k < l->n_top; k++)
            json_array_append_new(top, logprob(tokenizer, l->top_id[k], l->top_logprob[k]));
        json_object_set_new(entry, "top", top);
        json_array_append_new(list, entry);
    }
    return list;
}

static json_t *check_object(const cli_check *c)
{
    json_t *o = json_object();
    json_object_set_new(o, "equal", json_boolean(c->equal));
    json_object_set_new(o, "position", c->equal ? json_null() : json_integer((json_int_t)c->position));
    json_object_set_new(o, "decode_ms", json_real(c->decode_ms));
    return o;
}

static json_t *histogram(const spec_result *r)
{
    json_t *list = json_array();
    for (int32_t k = 0; k < histogram_size(r); k++) json_array_append_new(list, json_integer(r->accepted[k]));
    return list;
}

/* How it was drafted, and what came of it. */
static void add_trees(json_t *o, const cli_report *r)
{
    const spec_result *result = r->result;
    const cli_options *options = r->options;
    json_object_set_new(o, "draft", cli_json_text(options->draft));
    json_object_set_new(o, "tree", cli_json_text(options->model_draft != NULL ? options->tree : NULL));
    json_object_set_new(o, "verify", json_string(spec_verify_rule_name((spec_verify_rule)r->options->verify)));
    json_object_set_new(o, "nodes_per_step", json_real(nodes_per_step(result)));
    json_object_set_new(o, "accepted_histogram", histogram(result));
    json_object_set_new(o, "speculated_share", json_real(ratio((double)result->n_speculated, (double)result->n_step)));
    json_object_set_new(o, "branched", json_integer(result->n_branched));
}

void cli_report_tokens(const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    json_t *o = json_object();
    json_object_set_new(o, "text", json_stringn(n_text > 0 ? text : "", n_text));
    json_object_set_new(o, "tokens", token_list(ids, n_ids));
    cli_json_print(o, CLI_JSON_LINES, "tokens");
}

void cli_report_json(const cli_report *r)
{
    const spec_result *result = r->result;
    json_t *o = json_object();
    json_object_set_new(o, "text", result->text != NULL ? json_stringn(result->text, result->n_text) : json_null());
    json_object_set_new(o, "tokens", token_list(result->ids, result->n_ids));
    json_object_set_new(o, "n_prompt", json_integer(result->n_prompt));
    json_object_set_new(o, "n_generated", json_integer((json_int_t)result->n_ids));
    json_object_set_new(o, "steps", json_integer(result->n_step));
    json_object_set_new(o, "drafted", json_integer(result->n_drafted));
    json_object_set_new(o, "accepted", json_integer(result->n_accepted));
    json_object_set_new(o, "emitted_per_step", json_real(ratio((double)result->n_emitted, (double)result->n_step)));
    add_trees(o, r);
    json_object_set_new(o, "stop_reason", json_string(spec_stop_name(result->stop)));
    json_object_set_new(o, "load_ms", json_real(r->context->load_ms));
    json_object_set_new(o, "prefill_ms", json_real(result->prefill_ms));
    json_object_set_new(o, "decode_ms", json_real(result->decode_ms));
    json_object_set_new(o, "tokens_per_second", json_real(ratio((double)result->n_ids, result->decode_ms / 1e3)));
    json_object_set_new(o, "backend", json_string(spec_backend_name(r->context->backend)));
    json_object_set_new(o, "dtype", json_string(spec_dtype_name(r->info.dtype)));
    json_object_set_new(o, "weights", json_string(spec_dtype_name(r->info.weights)));
    const uint64_t seed = r->options->seed;
    char digits[24]; /* JSON libraries hold numbers up to 2^63 - 1; a larger seed is a string */
    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    json_object_set_new(o, "seed", seed <= INT64_MAX ? json_integer((json_int_t)seed) : json_string(digits));
    json_object_set_new(o, "model", cli_json_text(r->options->model));
    json_object_set_new(o, "drafter", cli_json_text(r->options->model_draft));
    json_object_set_new(o, "bytes_model", json_integer((json_int_t)r->memory.bytes_model));
    json_object_set_new(o, "bytes_state", json_integer((json_int_t)r->memory.bytes_state));
    json_object_set_new(o, "bytes_kv", json_integer((json_int_t)r->memory.bytes_kv));
    json_object_set_new(o, "bytes_work", json_integer((json_int_t)r->memory.bytes_work));
    json_object_set_new(o, "version", json_string(spec_version()));
    const spec_tokenizer *tokenizer = spec_model_tokenizer(r->context->target);
    if (result->logprobs != NULL) json_object_set_new(o, "logprobs", logprob_list(tokenizer, result));
    if (r->check.done) json_object_set_new(o, "check", check_object(&r->check));
    cli_json_print(o, r->options->json_lines ? CLI_JSON_LINES : CLI_JSON_OBJECT, "result");
}
