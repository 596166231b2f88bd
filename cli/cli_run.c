/* cli_run.c - spec run: text from a prompt. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "cli/cli.h"
#include "cli/cli_read.h"

int cli_prompt_read(cli_prompt *out, const cli_options *o)
{
    if (o->prompt_ids.ids != NULL) return CLI_OK;
    if (o->prompt != NULL) {
        *out = (cli_prompt){ o->prompt, NULL, strlen(o->prompt) };
        return CLI_OK;
    }
    FILE *from = strcmp(o->file, "-") == 0 ? stdin : fopen(o->file, "rb");
    if (from == NULL) return cli_error("%s: %s", o->file, strerror(errno));
    cli_bytes text = { NULL, 0, 0 };
    const int code = cli_read_all(&text, from, o->file);
    if (from != stdin) fclose(from);
    if (code != CLI_OK) free(text.data);
    else *out = (cli_prompt){ text.data, text.data, text.n };
    return code;
}

/* Streams what is final: text, ids with a space between them, or an object. Stops when stdout is gone. */
static int write_text(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    const cli_options *o = user_data;
    if (o->json_lines) {
        cli_report_tokens(text, n_text, ids, n_ids);
    } else if (o->ids) {
        for (size_t i = 0; i < n_ids; i++) {
            char id[16];
            cli_print(id, (size_t)snprintf(id, sizeof id, "%d ", ids[i]));
        }
    } else {
        cli_print(text, n_text);
    }
    cli_stdout_flush();
    return ferror(stdout);
}

/* One text in a session, which is closed. */
static spec_status generate(spec_result *result, spec_session *session, const cli_options *o,
                            const cli_prompt *prompt, const spec_request *p)
{
    cli_interrupt_session(session);
    const spec_status status = o->prompt_ids.ids != NULL
                                   ? spec_generate_ids(session, result, o->prompt_ids.ids, o->prompt_ids.n, p)
                                   : spec_generate(session, result, prompt->data, prompt->n, p);
    cli_interrupt_session(NULL);
    spec_session_close(session);
    return status;
}

static spec_status generate_drafted(spec_result *result, const cli_context *c, const cli_options *o,
                                    const cli_prompt *prompt, spec_request request)
{
    spec_session *session = NULL;
    const spec_status status = cli_session_open(&session, c, o);
    if (!o->json) request.on_text = write_text, request.text_user_data = (void *)o;
    return status != SPEC_OK ? status : generate(result, session, o, prompt, &request);
}

/* What --check compares with: no drafter, and every form of computing the exact one. */
static spec_status generate_plain(spec_result *result, const cli_context *c, const cli_options *o,
                                  const cli_prompt *prompt, const spec_request *request)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_ctx = o->n_ctx;
    spec_session *session = NULL;
    const spec_status status = spec_session_open(&session, c->target, NULL, &p);
    return status != SPEC_OK ? status : generate(result, session, o, prompt, request);
}

static cli_check compare(const spec_result *a, const spec_result *plain)
{
    const size_t n = a->n_ids < plain->n_ids ? a->n_ids : plain->n_ids;
    cli_check check = { .done = true, .decode_ms = plain->decode_ms };
    while (check.position < n && a->ids[check.position] == plain->ids[check.position]) check.position++;
    check.equal = check.position == n && a->n_ids == plain->n_ids;
    return check;
}

/* The temperature that counts is known when the model is. */
static int check_request(const spec_request *r, const cli_options *o)
{
    if (!o->check || !(r->sampling.temperature > 0)) return CLI_OK;
    return cli_usage_error("--check needs --temp 0, and generation_config.json says %g", (double)r->sampling.temperature);
}

static void print_difference(const spec_result *a, const spec_result *plain, size_t i)
{
    fprintf(stderr, "spec: --check: speculative and plain decoding differ at generated token %zu: ", i);
    if (i < a->n_ids)
        fprintf(stderr, "%d", a->ids[i]);
    else
        fprintf(stderr, "the end (%s)", spec_stop_name(a->stop));
    if (i < plain->n_ids)
        fprintf(stderr, " against %d\n", plain->ids[i]);
    else
        fprintf(stderr, " against the end (%s)\n", spec_stop_name(plain->stop));
}

static spec_status check(cli_report *r, spec_result *plain, const cli_prompt *prompt, const spec_request *request)
{
    const spec_status status = generate_plain(plain, r->context, r->options, prompt, request);
    if (status != SPEC_OK) return status;
    r->check = compare(r->result, plain);
    if (!r->check.equal) print_difference(r->result, plain, r->check.position);
    return SPEC_OK;
}

int cli_run(const cli_options *o)
{
    cli_context context = { 0 };
    cli_prompt prompt = { 0 };
    spec_request request;
    spec_result result = SPEC_RESULT_INIT, plain = SPEC_RESULT_INIT;
    cli_report report = { .context = &context, .options = o, .result = &result };
    report.info.struct_size = sizeof report.info;
    report.memory.struct_size = sizeof report.memory;

    int code = cli_prompt_read(&prompt, o);
    if (code != CLI_OK) return code;
    cli_interrupt_install();
    code = cli_open(&context, o);
    if (code != CLI_OK) goto end;
    if (o->prompt_ids.ids == NULL) code = cli_need_tokenizer(&context, o, "the prompt is text");
    if (code != CLI_OK) goto end;
    code = cli_request(&request, &context, o);
    if (code == CLI_OK) code = check_request(&request, o);
    if (code != CLI_OK) goto end;
    const bool has_tokenizer = spec_model_tokenizer(context.target) != NULL, json = o->json || o->json_lines;
    if (!has_tokenizer && !o->ids && !json)
        fputs("spec: warning: the model has no tokenizer; --ids prints what it generates\n", stderr);

    spec_lab lab;
    const spec_session_params session_params = cli_session_params(&context, o, &lab);
    if (spec_model_get_info(context.target, &report.info, context.n_node) != SPEC_OK ||
        spec_session_estimate(&report.memory, context.target, NULL, &session_params) != SPEC_OK) {
        code = cli_failure();
        goto end;
    }

    spec_status status = generate_drafted(&result, &context, o, &prompt, request);
    /* A line on a terminal ends as lines do; in a file or pipe the text stays as it is. */
    const bool open_line = o->ids ? result.n_ids > 0 : result.n_text > 0 && result.text[result.n_text - 1] != '\n';
    if (!json && open_line && (o->ids || isatty(STDOUT_FILENO))) cli_print("\n", 1);
    cli_stdout_flush();
    if (status == SPEC_OK && o->check) status = check(&report, &plain, &prompt, &request);
    if (status != SPEC_OK && status != SPEC_E_ABORTED) {
        code = cli_failure();
        goto end;
    }
    if (status == SPEC_E_ABORTED)
        code = cli_interrupt_code(CLI_FAILURE);
    else if (report.check.done && !report.check.equal)
        code = CLI_DIFFERS;
    const int saved = cli_save_past(&context, o);
    if (code == CLI_OK) code = saved;
    if (json)
        cli_report_json(&report);
    else
        cli_report_text(stderr, &report);
end:
    spec_result_free(&plain);
    spec_result_free(&result);
    cli_close(&context);
    free(prompt.owned);
    return code;
}
