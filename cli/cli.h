/* cli.h - the program `spec`: options, what a command opens, reports. A user of spec.h like any other. */
#ifndef SPEC_CLI_H
#define SPEC_CLI_H

#include <stdbool.h>
#include <stdio.h>

#include "spec_trees.h"

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2, CLI_DIFFERS = 3 }; /* exit codes; 128 + N: stopped by signal N */
#define CLI_STDOUT "/dev/stdout" /* what "-" is as a file to write */

typedef enum cli_command { /* TOP: none given */
    CLI_RUN = 1, CLI_INFO = 2, CLI_TOP = 4, CLI_TREE = 8, CLI_NGRAM = 16, CLI_CONVERT = 32
} cli_command;

/* --- options (cli_options.c) --- */

enum { CLI_MAX_STEP = 500 }; /* of a page */
enum { CLI_MAX_DRAFTER = 8, CLI_MAX_NODE = 256 /* of a tree, as spec.h says */ };

typedef struct cli_ids {
    int32_t *ids; /* [n]; NULL: none were given */
    size_t n;
} cli_ids;

/* A number that a model's generation_config.json may say is negative, n_predict 0, until an option says it. */
typedef struct cli_options {
    const char *model, *model_draft, *tokenizer;
    const char *prompt, *file;
    cli_ids prompt_ids, end_ids;
    const char *backend, *plugin_dir;
    const char **stop; /* [n_stop] */
    int32_t n_stop;
    int32_t n_predict, n_ctx, n_threads, n_logprobs;
    double temp, draft_temp, top_p, min_p;
    int32_t top_k;
    double repeat_penalty, presence_penalty, frequency_penalty;
    int32_t repeat_last_n; /* 0: penalties look at nothing, -1: at everything */
    spec_logit_bias *bias; /* [n_bias] */
    int32_t n_bias;
    uint64_t seed;
    char *tree; /* every --tree, ';' between them, for the model that drafts; "chain:4" if there is none */
    char *draft; /* every --draft, ';' between them; NULL if there is none */
    char *draft_model; /* DIR of --draft model:DIR, which is model_draft too if no -md wins, or NULL */
    bool tree_from_env, draft_from_env, draft_model_from_env, draft_past_from_env;
    int32_t draft_combine, draft_vocab; /* as the enumerations of spec.h */
    int32_t draft_resample, draft_resample_left, draft_token_info, head_layers;
    int32_t verify, adapt, scan, advance, draft_state; /* as the enumerations of spec.h and spec_lab.h */
    int32_t dtype, weights; /* the number of the word */
    const char *cost_profile, *draft_past;
    const char *html;
    int32_t n_step;
    char **words; /* [n_word] of ngram: what it is to do, and the corpus; argv's */
    int32_t n_word;
    const char *output, *json_field, *type;
    int32_t order, length, n_row, min_count, memory; /* of a corpus table; 0: the library's default; memory: MiB */
    bool escape, no_bos, parse_special, keep_special, ignore_eos, generation_config, draft_resample_across;
    bool json, json_lines, ids, check, verbose;
    bool list_devices, version, help, help_lab;
} cli_options;

/* Defaults, then the environment, then argv [argc], whose first entry is not read. Returns -1, or the exit code when
 * the program is to end: usage errors have been printed then. Free with cli_options_free. */
int cli_options_parse(cli_options *o, cli_command command, int argc, char **argv);
void cli_options_free(cli_options *o);
/* What drafts, in the order of the session: the drafters of --draft, then the trees of -md, ';' between them; "" if nothing
 * does. Free it; NULL: out of memory. */
char *cli_proposals(const cli_options *o);

/* --- help (cli_help.c) --- */

void cli_help(FILE *to, cli_command command, bool lab); /* lab: the options of experiments in place of the others */
void cli_hint(FILE *to);                                 /* five lines, for a call without arguments */

/* --- errors and stdout (cli_error.c) --- */

typedef enum cli_json_form { CLI_JSON_NONE = 0, CLI_JSON_OBJECT = 1, CLI_JSON_LINES = 2 } cli_json_form;

void cli_errors_as(cli_json_form form); /* errors are printed on stdout too, in this form */
/* Each prints "spec: <text>" and returns the exit code: CLI_FAILURE, or the signal's if one came. */
int cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int cli_failure(void); /* with the library's sentence */
int cli_usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* CLI_USAGE */
/* To stdout. The first failure's reason is kept for cli_stdout_end. */
void cli_print(const char *data, size_t n);
void cli_stdout_flush(void);
/* The exit code of a command that ends with `code`: an output that could not be written is a failure, and says why. */
int cli_stdout_end(int code);
struct json_t;
/* A string of a report. What is not UTF-8 in it, as a path may be, is U+FFFD. NULL: null. */
struct json_t *cli_json_text(const char *text);
/* json_dumps, which leaves bytes out where memory is gone: NULL then. Free it. */
char *cli_json_dump(const struct json_t *value, size_t flags);
/* Prints the object, which is taken: indented, or as one line that begins with its type. */
void cli_json_print(struct json_t *o, cli_json_form form, const char *type);

/* --- progress (cli_progress.c) --- */

bool cli_terminal(void); /* stderr is one that moves and shows as it is told */
/* Shows "DOING: HOW FAR" on it, the second as printf does, in place of what was shown. Errors and warnings take it back. */
void cli_progress(const char *doing, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_end(void);

/* --- what a command works with (cli_open.c) --- */

typedef struct cli_context {
    spec_backend *backend;
    spec_model *target, *small; /* small: the drafter's model, or NULL */
    spec_drafter *drafters[CLI_MAX_DRAFTER]; /* [n_drafter] those of --draft, then the model */
    int32_t n_drafter;
    int32_t n_node;             /* of the largest tree that is drafted; 1 without a drafter */
    double load_ms;
} cli_context;

/* Prints the reason and returns an exit code when it fails; cli_close either way. */
int cli_open(cli_context *c, const cli_options *o);
void cli_close(cli_context *c);
/* Text needs the target's tokenizer: without one, says how to get it and what else can be done. An exit code. */
int cli_need_tokenizer(const cli_context *c, const cli_options *o, const char *why);
spec_backend_params cli_backend_params(const cli_options *o);
spec_session_params cli_session_params(const cli_context *c, const cli_options *o, spec_lab *lab); /* lab is filled, and pointed at */
/* A session that drafts as the options say; step costs that are wanted and not there are measured and saved. */
spec_status cli_session_open(spec_session **out, const cli_context *c, const cli_options *o);
/* The past of the first drafter that keeps one, to the file of --draft-past. An exit code. */
int cli_save_past(const cli_context *c, const cli_options *o);
double cli_now_ms(void);

/* --- signals (cli_signal.c) --- */

/* SIGINT and SIGTERM end a load at the next file part, a session after its current pass; a second one ends the program. */
void cli_interrupt_install(void);
bool cli_interrupted(void);
int cli_interrupt_code(int code);                  /* the exit code for the signal that came; `code` if none did */
void cli_interrupt_session(spec_session *session); /* the one to cancel; NULL = none */

/* What the model's generation_config.json says (spec_request_from_model): an object of its keys, empty if it says nothing;
 * "unread" names what is not done, "error" what is wrong. Free with json_decref. */
struct json_t *cli_generation_config(const spec_model *model);
/* The same as text, "key value, key value"; "" for none. Free it; NULL: out of memory. */
char *cli_generation_text(const spec_model *model);
/* The request of the options (cli_request.c). An exit code; has printed the reason, or a warning of what the file says more. */
int cli_request(spec_request *out, const cli_context *c, const cli_options *o);

/* --- commands --- */

int cli_run(const cli_options *o);
int cli_info(const cli_options *o);
int cli_tree(const cli_options *o);
int cli_ngram(const cli_options *o);
int cli_convert(const cli_options *o);

/* The prompt's text as the options give it, none with --prompt-ids. owned is NULL when it is the option's own text, else free it. */
typedef struct cli_prompt {
    const char *data;
    char *owned;
    size_t n;
} cli_prompt;
int cli_prompt_read(cli_prompt *out, const cli_options *o); /* an exit code; has printed the reason */

/* --- reports (cli_report.c) --- */

typedef struct cli_check {
    bool done, equal;
    size_t position;  /* of the first difference, in generated tokens */
    double decode_ms; /* of the plain run */
} cli_check;

typedef struct cli_report {
    const cli_context *context;
    const cli_options *options;
    const spec_result *result;
    spec_model_info info;
    spec_memory memory;
    cli_check check;
} cli_report;

void cli_report_text(FILE *to, const cli_report *r);
void cli_report_json(const cli_report *r); /* in the form that the options say */
void cli_report_tokens(const char *text, size_t n_text, const int32_t *ids, size_t n_ids); /* a line of --json-lines */

#endif
