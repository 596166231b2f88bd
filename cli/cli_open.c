/* cli_open.c - backend, models and drafter as the options say; progress, log. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "cli/cli.h"
#include "cli/cli_text.h"
#include "cli/cli_whole.h"

/* ------------------------------------------------------------------------- log and progress --- */

/* A build without tokenizers says so of every path, and others say that there is nothing. */
static bool has_tokenizers(void)
{
    spec_tokenizer *tokenizer = NULL;
    return spec_tokenizer_open(&tokenizer, "", NULL) != SPEC_E_UNSUPPORTED;
}

int cli_need_tokenizer(const cli_context *c, const cli_options *o, const char *why)
{
    spec_model_info info = SPEC_STRUCT_INIT(spec_model_info);
    const char *ids = o->prompt_ids.ids == NULL ? "; --prompt-ids takes a prompt that is already token ids" : "";
    if (spec_model_tokenizer(c->target) != NULL) return CLI_OK;
    if (spec_model_get_info(c->target, &info, 1) != SPEC_OK) return cli_failure();
    if (info.head != NULL)
        return cli_error("%s is a head, which drafts for the model that it was made for: name that with -m, and the head with -md",
                         o->model);
    if (!has_tokenizers()) return cli_error("%s, and %s%s", spec_last_error(), why, ids);
    if (info.format != NULL && strcmp(info.format, "gguf") == 0)
        return cli_error("%s has no tokenizer in it, and %s. Give one with --tokenizer%s", o->model, why, ids);
    return cli_error("%s has no tokenizer.json or tokenizer.model, and %s. Download it, give another place with --tokenizer, or "
                     "make it with the transformers library: AutoTokenizer.from_pretrained(...).save_pretrained(\"%s\")%s",
                     o->model, why, o->model, ids);
}

double cli_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void log_line(void *user_data, spec_log_level level, const char *text)
{
    const cli_options *o = user_data;
    if (level != SPEC_LOG_WARN && !o->verbose) return;
    cli_progress_end();
    fputs(level == SPEC_LOG_WARN ? "spec: warning: " : "spec: ", stderr);
    cli_put_plain(stderr, text);
    fputc('\n', stderr);
}

static int show_progress(void *user_data, double fraction)
{
    if (fraction < 1)
        cli_progress(user_data, "%3.0f %%", fraction * 100);
    else
        cli_progress_end();
    return cli_interrupted();
}

/* ------------------------------------------------------------------------------------- open --- */

spec_backend_params cli_backend_params(const cli_options *o)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = o->n_threads;
    p.plugin_dir = o->plugin_dir;
    p.log = log_line;
    p.log_user_data = (void *)o;
    return p;
}

spec_session_params cli_session_params(const cli_context *c, const cli_options *o, spec_lab *lab)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.drafters = c->drafters, p.n_drafter = c->n_drafter;
    p.combine = (spec_draft_combine)o->draft_combine;
    p.n_ctx = o->n_ctx;
    p.verify = (spec_verify_rule)o->verify;
    p.adapt = (spec_adapt)o->adapt;
    *lab = (spec_lab)SPEC_LAB_INIT;
    lab->scan = (spec_scan_form)o->scan;
    lab->advance = (spec_advance)o->advance;
    lab->draft_state = (spec_draft_state)o->draft_state;
    p.lab = lab;
    return p;
}

spec_status cli_session_open(spec_session **out, const cli_context *c, const cli_options *o)
{
    spec_lab lab;
    spec_session_params p = cli_session_params(c, o, &lab);
    const bool measure = o->cost_profile != NULL && access(o->cost_profile, F_OK) != 0 && errno == ENOENT;
    if (!measure) p.profile = o->cost_profile;
    spec_session *session = NULL;
    spec_status status = spec_session_open(&session, c->target, NULL, &p);
    if (status == SPEC_OK && measure) {
        spec_cost_profile profile = { .struct_size = sizeof profile };
        status = spec_session_profile(session, &profile);
        if (status == SPEC_OK) status = spec_cost_save(&profile, o->cost_profile);
    }
    if (status == SPEC_OK)
        *out = session;
    else
        spec_session_close(session);
    return status;
}

/* Would the rule keep the distribution of what this builder makes? Asked of the smallest tree that has a draft: what
 * only larger trees break is refused by the session. */
static spec_status check_rule(const spec_builder_info *info, const cli_options *o)
{
    if (o->generation_config && o->temp < 0) return SPEC_OK; /* the temperature is known with the model; the session checks */
    int32_t token[] = { 0, 0 }, parent[] = { -1, 0 };
    const spec_tree tree = { .n = info->n_node > 1 ? 2 : 1, .cap = 2, .token = token, .parent = parent,
                             .kind = o->temp > 0 ? info->kind : SPEC_TREE_DETERMINISTIC };
    return spec_verify_is_lossless(&tree, (spec_verify_rule)o->verify, o->temp > 0 ? (float)o->temp : 0);
}

static spec_status check_tree(const char *text, const cli_options *o)
{
    spec_builder *builder = NULL;
    spec_builder_info info = { .struct_size = sizeof info };
    spec_status status = spec_builder_open(&builder, text, NULL);
    if (status == SPEC_OK) status = spec_builder_get_info(builder, &info);
    if (status == SPEC_OK) status = check_rule(&info, o);
    spec_builder_close(builder);
    return status;
}

/* Every tree of the options before a model is loaded. */
static int check_trees(const cli_options *o)
{
    char *texts = strdup(o->tree), *rest = texts, *text;
    int code = texts != NULL ? CLI_OK : cli_error("out of memory");
    while (code == CLI_OK && (text = strsep(&rest, ";")) != NULL) {
        const spec_status status = check_tree(text, o);
        if (status != SPEC_OK) code = cli_failure();
        if (status == SPEC_E_INVALID) code = CLI_USAGE;
    }
    free(texts);
    return code;
}

/* The drafters of --draft, before a model is loaded. */
static int open_drafters(cli_context *c, const cli_options *o)
{
    if (o->draft == NULL) return CLI_OK;
    char *texts = strdup(o->draft), *rest = texts, *text;
    int code = texts != NULL ? CLI_OK : cli_error("out of memory");
    while (code == CLI_OK && (text = strsep(&rest, ";")) != NULL) {
        if (c->n_drafter == CLI_MAX_DRAFTER - 1) {
            code = cli_usage_error("--draft names more than %d drafters, which are the most", CLI_MAX_DRAFTER - 1);
            break;
        }
        const spec_status status = spec_drafter_open(&c->drafters[c->n_drafter], text, NULL);
        if (status == SPEC_OK) c->n_drafter++;
        else code = cli_failure();
        if (status == SPEC_E_INVALID) code = CLI_USAGE;
    }
    free(texts);
    return code;
}

/* The first drafter that keeps its past takes what was saved. A file that is not there yet is no mistake; one that cannot be written at
 * the end is, before the text is. */
static int load_past(const cli_context *c, const cli_options *o)
{
    if (o->draft_past == NULL) return CLI_OK;
    for (int32_t i = 0; i < c->n_drafter; i++) {
        const spec_status status = spec_drafter_load(c->drafters[i], o->draft_past);
        if (status == SPEC_E_UNSUPPORTED) continue;
        if (status == SPEC_OK || (access(o->draft_past, F_OK) != 0 && errno == ENOENT)) return cli_whole_may(o->draft_past);
        return cli_failure();
    }
    if (o->draft_past_from_env) return CLI_OK; /* it is there for runs with such a drafter */
    return cli_usage_error("--draft-past is for a drafter that keeps its past, such as --draft trie, and there is none");
}

int cli_save_past(const cli_context *c, const cli_options *o)
{
    if (o->draft_past == NULL) return CLI_OK;
    spec_status status = SPEC_E_UNSUPPORTED;
    for (int32_t i = 0; i < c->n_drafter && status == SPEC_E_UNSUPPORTED; i++)
        status = spec_drafter_save(c->drafters[i], o->draft_past);
    return status == SPEC_OK || (status == SPEC_E_UNSUPPORTED && o->draft_past_from_env) ? CLI_OK : cli_failure();
}

/* Nodes of the largest tree. */
static int32_t tree_nodes(const cli_context *c, const cli_options *o)
{
    int32_t most = 1, sum = 1;
    for (int32_t i = 0; i < c->n_drafter; i++) {
        const int32_t n = spec_drafter_n_node(c->drafters[i]);
        if (n > most) most = n;
        sum += n - 1;
    }
    if (o->draft_combine != SPEC_DRAFT_UNION) return most;
    return sum < CLI_MAX_NODE ? sum : CLI_MAX_NODE;
}

/* A head computes as its target does, whatever its file has. */
static spec_status open_small(cli_context *c, const cli_options *o, spec_model_params *p)
{
    spec_model_info small = { .struct_size = sizeof small }, target = { .struct_size = sizeof target };
    spec_status status = spec_model_open(&c->small, c->backend, o->model_draft, p);
    if (status == SPEC_OK) status = spec_model_get_info(c->small, &small, 1);
    if (status == SPEC_OK) status = spec_model_get_info(c->target, &target, 1);
    if (status != SPEC_OK || small.head == NULL || small.dtype == target.dtype) return status;
    spec_model_close(c->small);
    c->small = NULL;
    p->dtype = target.dtype;
    return spec_model_open(&c->small, c->backend, o->model_draft, p);
}

int cli_open(cli_context *c, const cli_options *o)
{
    *c = (cli_context){ 0 };
    const double start = cli_now_ms();
    int code = check_trees(o);
    if (code == CLI_OK) code = open_drafters(c, o);
    if (code == CLI_OK) code = load_past(c, o);
    if (code != CLI_OK) return code;
    const spec_backend_params backend_params = cli_backend_params(o);
    if (spec_backend_open(&c->backend, o->backend, &backend_params) != SPEC_OK) return cli_failure();

    spec_model_params model_params = SPEC_MODEL_PARAMS_INIT;
    static const spec_dtype dtypes[] = { SPEC_DTYPE_AUTO, SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16 }; /* of the options */
    static const spec_dtype weights[] = { SPEC_DTYPE_AUTO, SPEC_DTYPE_Q8_0, SPEC_DTYPE_Q4_0, SPEC_DTYPE_Q4_1, SPEC_DTYPE_Q5_0,
                                         SPEC_DTYPE_Q5_1, SPEC_DTYPE_Q4_K, SPEC_DTYPE_Q5_K, SPEC_DTYPE_Q6_K };
    model_params.dtype = dtypes[o->dtype];
    model_params.weights = weights[o->weights];
    model_params.head_layers = (spec_head_layers)o->head_layers;
    model_params.tokenizer_path = o->tokenizer;
    model_params.progress = show_progress;
    model_params.progress_user_data = "model";
    if (spec_model_open(&c->target, c->backend, o->model, &model_params) != SPEC_OK) return cli_failure();

    char *said = o->verbose ? cli_generation_text(c->target) : NULL;
    if (said != NULL && said[0] != 0)
        fprintf(stderr, "spec: generation_config.json says %s; %s\n", said,
                o->generation_config ? "options win" : "it is not followed without --generation-config");
    free(said);

    if (o->model_draft != NULL) {
        model_params.tokenizer_path = NULL;
        model_params.progress_user_data = "drafter";
        if (open_small(c, o, &model_params) != SPEC_OK) return cli_failure();
        spec_drafter_params drafter_params = SPEC_DRAFTER_PARAMS_INIT;
        drafter_params.tree = o->tree;
        drafter_params.temperature = (float)o->draft_temp;
        drafter_params.vocab = (spec_draft_vocab)o->draft_vocab;
        drafter_params.n_resample = o->draft_resample, drafter_params.resample_left = o->draft_resample_left;
        drafter_params.resample_across = o->draft_resample_across;
        drafter_params.token_info = (spec_token_info)o->draft_token_info;
        if (spec_drafter_from_model(&c->drafters[c->n_drafter], c->small, &drafter_params) != SPEC_OK) return cli_failure();
        c->n_drafter++;
    }
    c->n_node = tree_nodes(c, o);
    c->load_ms = cli_now_ms() - start;
    return CLI_OK;
}

void cli_close(cli_context *c)
{
    for (int32_t i = 0; i < c->n_drafter; i++) spec_drafter_close(c->drafters[i]);
    spec_model_close(c->small);
    spec_model_close(c->target);
    spec_backend_close(c->backend);
}
