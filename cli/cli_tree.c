/* cli_tree.c - spec tree: decodes with the four calls, keeps every drafted tree, writes the page that shows them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cli_tree_page.h"
#include "cli/cli_whole.h"

typedef struct recorder {
    const cli_options *options;
    spec_request request;
    const spec_tokenizer *tokenizer;
    spec_model_info info;
    spec_session *session;
    int32_t seq;
    int32_t *path;          /* [n_node] */
    float *probs;             /* [n_vocab] */
    char *piece;            /* [piece_cap] text of one token */
    size_t piece_cap;
    spec_text_stream stream;
    cli_tree_step *steps;   /* [options->n_step] */
    int32_t n_step, n_emitted;
    char *prompt;           /* as its tokens say it */
    size_t n_prompt;
    const char *stop;
    const char *reason;     /* of a failure that the library has no sentence about */
} recorder;

static void step_free(cli_tree_step *step)
{
    free(step->token); /* the block of parent, rank and path too */
    free(step->draft); /* and of target */
    free(step->text);
}

static void recorder_free(recorder *r)
{
    for (int32_t i = 0; i < r->n_step; i++) step_free(&r->steps[i]);
    free(r->steps);
    free(r->path);
    free(r->probs);
    free(r->piece);
    free(r->prompt);
}

static spec_status no_memory(recorder *r)
{
    r->reason = "out of memory";
    return SPEC_E_NOMEM;
}

static int failure(const recorder *r)
{
    return r->reason == NULL ? cli_failure() : cli_error("%s", r->reason);
}

/* --- one step --- */

static bool step_alloc(cli_tree_step *step, const recorder *r, int32_t n, int32_t n_path)
{
    const size_t nodes = (size_t)n;
    *step = (cli_tree_step){ .n = n, .n_path = n_path };
    step->token = malloc(4 * nodes * sizeof *step->token);
    step->draft = malloc(2 * nodes * sizeof *step->draft);
    step->text = malloc((size_t)n_path * r->piece_cap);
    if (step->token == NULL || step->draft == NULL || step->text == NULL) {
        step_free(step);
        return false;
    }
    step->parent = step->token + nodes;
    step->rank = step->parent + nodes;
    step->path = step->rank + nodes;
    step->target = step->draft + nodes;
    return true;
}

/* The target's probability of `token` after `node`, whose distribution has been fetched at a temperature above 0. At
 * temperature 0 the distribution is all on one token, which says little: then the softmax of the logits. */
static spec_status probability(float *p, const recorder *r, int32_t node, int32_t token)
{
    if (r->request.sampling.temperature > 0) {
        *p = r->probs[token];
        return SPEC_OK;
    }
    float logprob = 0;
    const spec_status status = spec_node_logprobs(r->session, &logprob, NULL, NULL, r->seq, node, token, 0);
    *p = expf(logprob);
    return status;
}

/* Probabilities of the children of `node`, and of the next token where it follows that node. */
static spec_status fill_target(cli_tree_step *step, const recorder *r, int32_t node)
{
    const bool last = step->path[step->n_path - 1] == node;
    bool asked = last;
    for (int32_t i = node + 1; i < step->n; i++) asked = asked || step->parent[i] == node;
    if (!asked) return SPEC_OK;
    spec_status status = SPEC_OK;
    if (r->request.sampling.temperature > 0) status = spec_node_probs(r->session, r->probs, r->seq, node);
    for (int32_t i = node + 1; i < step->n && status == SPEC_OK; i++)
        if (step->parent[i] == node) status = probability(&step->target[i], r, node, step->token[i]);
    if (last && status == SPEC_OK) status = probability(&step->next_target, r, node, step->next);
    return status;
}

/* What the tokens of the step add to the text. */
static spec_status fill_text(cli_tree_step *step, recorder *r)
{
    for (int32_t i = 1; i <= step->n_path; i++) {
        const int32_t id = i < step->n_path ? step->token[step->path[i]] : step->next;
        size_t n = 0;
        const spec_status status = spec_text_stream_push(&r->stream, r->piece, r->piece_cap, &n, r->tokenizer, id, 0);
        if (status != SPEC_OK) return status;
        memcpy(step->text + step->n_text, r->piece, n);
        step->n_text += n;
    }
    return SPEC_OK;
}

/* After verify, before commit: the distributions are there, and the tree is. */
static spec_status record(recorder *r, const spec_tree *tree, int32_t n_path, int32_t next)
{
    cli_tree_step *step = &r->steps[r->n_step];
    if (!step_alloc(step, r, tree->n, n_path)) return no_memory(r);
    r->n_step++;
    const size_t n = (size_t)tree->n;
    memcpy(step->token, tree->token, n * sizeof *step->token);
    memcpy(step->parent, tree->parent, n * sizeof *step->parent);
    memcpy(step->path, r->path, (size_t)n_path * sizeof *step->path);
    spec_tree_ranks(tree, step->rank);
    step->next = next;
    for (int32_t i = 0; i < tree->n; i++) {
        step->draft[i] = i > 0 && tree->prob != NULL ? tree->prob[i] : NAN;
        step->target[i] = NAN;
    }
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < tree->n && status == SPEC_OK; i++) status = fill_target(step, r, i);
    return status == SPEC_OK ? fill_text(step, r) : status;
}

static spec_status take_step(recorder *r, int32_t *next)
{
    const spec_tree *tree = NULL;
    int32_t n_path = 0;
    spec_status status = spec_draft(r->session, &tree, &r->seq, 1);
    if (status == SPEC_OK) status = spec_score(r->session, &r->seq, 1, &tree);
    if (status == SPEC_OK)
        status = spec_verify(r->session, r->path, &n_path, next, r->seq, (spec_verify_rule)r->options->verify);
    if (status == SPEC_OK) status = record(r, tree, n_path, *next);
    if (status == SPEC_OK) status = spec_draft_choice(r->session, &r->steps[r->n_step - 1].chosen, r->seq);
    if (status == SPEC_OK) status = spec_commit(r->session, r->seq, r->path, n_path, *next);
    if (status == SPEC_OK) r->n_emitted += n_path;
    return status;
}

static bool is_eos(const recorder *r, int32_t token)
{
    for (int32_t i = 0; i < r->info.n_eos; i++)
        if (r->info.eos[i] == token) return true;
    return false;
}

static spec_status take_steps(recorder *r)
{
    const cli_options *o = r->options;
    const int32_t n_most = r->request.n_predict > 0 ? r->request.n_predict : INT32_MAX;
    r->stop = "steps";
    while (r->n_step < o->n_step && r->n_emitted < n_most) {
        int32_t next = 0;
        const spec_status status = take_step(r, &next);
        if (status == SPEC_E_FULL && r->n_step > 0) {
            r->stop = spec_stop_name(SPEC_STOP_CONTEXT);
            return SPEC_OK;
        }
        if (status != SPEC_OK) return status;
        if (!o->ignore_eos && is_eos(r, next)) {
            r->stop = spec_stop_name(SPEC_STOP_EOS);
            return SPEC_OK;
        }
    }
    if (r->n_emitted >= n_most) r->stop = spec_stop_name(SPEC_STOP_LENGTH);
    return SPEC_OK;
}

/* --- the prompt --- */

/* The prompt's ids; an empty prompt is BOS. Free *out. */
static spec_status encode(recorder *r, int32_t **out, size_t *n, const cli_prompt *prompt)
{
    const cli_options *o = r->options;
    if (o->prompt_ids.ids != NULL) {
        *out = malloc(o->prompt_ids.n * sizeof **out);
        if (*out == NULL) return no_memory(r);
        memcpy(*out, o->prompt_ids.ids, o->prompt_ids.n * sizeof **out);
        *n = o->prompt_ids.n;
        return SPEC_OK;
    }
    const uint32_t flags = (o->no_bos ? 0u : (uint32_t)SPEC_TOKEN_ADD_SPECIAL) |
                           (o->parse_special ? (uint32_t)SPEC_TOKEN_PARSE_SPECIAL : 0u);
    spec_status status = spec_tokenizer_encode(r->tokenizer, NULL, 0, n, prompt->data, prompt->n, flags);
    if (status != SPEC_OK && status != SPEC_E_FULL) return status;
    const size_t cap = *n + 1;
    *out = malloc(cap * sizeof **out);
    if (*out == NULL) return no_memory(r);
    status = spec_tokenizer_encode(r->tokenizer, *out, cap, n, prompt->data, prompt->n, flags);
    if (status == SPEC_OK && *n == 0 && r->info.bos >= 0) (*out)[(*n)++] = r->info.bos;
    return status;
}

static spec_status decode_prompt(recorder *r, const int32_t *ids, size_t n)
{
    r->prompt = malloc((n + 1) * r->piece_cap);
    if (r->prompt == NULL) return no_memory(r);
    spec_status status = SPEC_OK;
    for (size_t i = 0; i < n && status == SPEC_OK; i++) {
        char *end = r->prompt + r->n_prompt;
        size_t more = 0;
        status = spec_text_stream_push(&r->stream, end, r->piece_cap, &more, r->tokenizer, ids[i], 0);
        r->n_prompt += more;
    }
    return status;
}

static spec_status start(recorder *r, const cli_prompt *prompt)
{
    spec_request request = r->request;
    request.n_predict = -1, request.n_stop = 0; /* trees are shown whole; take_steps ends */
    int32_t *ids = NULL;
    size_t n = 0;
    spec_status status = encode(r, &ids, &n, prompt);
    if (status == SPEC_OK) status = decode_prompt(r, ids, n);
    if (status == SPEC_OK) status = spec_sequence_add(r->session, &r->seq, ids, n, &request);
    free(ids);
    return status;
}

/* --- the page --- */

static const char *piece_of(const void *user_data, int32_t id, size_t *n)
{
    return spec_tokenizer_piece(user_data, n, id);
}

/* Those of --draft, then the model; "" without one. */
static char *drafter_names(const cli_options *o)
{
    const char *draft = o->draft != NULL ? o->draft : "", *model = o->model_draft != NULL ? o->model_draft : "";
    const size_t n = strlen(draft) + strlen(model) + 3;
    char *all = malloc(n);
    if (all != NULL) snprintf(all, n, "%s%s%s", draft, draft[0] != 0 && model[0] != 0 ? "; " : "", model);
    return all;
}

static const char page_begins[] = "<!doctype html>";

static int write_whole(const char *path, const cli_tree_page *page)
{
    cli_whole w;
    const int code = cli_whole_open(&w, path, page_begins);
    if (code != CLI_OK) return code;
    const bool memory = cli_tree_page_write(w.to, page) != SPEC_E_NOMEM;
    const int closed = cli_whole_close(&w, memory); /* tells of what could not be written, too */
    return memory ? closed : cli_error("%s: out of memory", path);
}

static int write_page(const recorder *r, const cli_context *c)
{
    static const char *const adapts[] = { "off", "cost", "ucb" };
    const cli_options *o = r->options;
    char *proposals = cli_proposals(o), *drafters = drafter_names(o);
    /* What spec_draft_choice numbers: one for each drafter and tree, or the trees that all drafters share. */
    const bool by_tree = o->model_draft != NULL && o->draft_combine != SPEC_DRAFT_CHOOSE;
    const cli_tree_page page = {
        .model = o->model,
        .drafter = drafters != NULL && drafters[0] != 0 ? drafters : NULL,
        .tree = by_tree ? o->tree : proposals,
        .verify = spec_verify_rule_name((spec_verify_rule)o->verify),
        .adapt = adapts[o->adapt],
        .device = spec_backend_name(c->backend),
        .dtype = spec_dtype_name(r->info.dtype),
        .stop = r->stop,
        .version = spec_version(),
        .sampling = r->request.sampling,
        .prompt = r->prompt != NULL ? r->prompt : "",
        .n_prompt = r->n_prompt,
        .steps = r->steps,
        .n_step = r->n_step,
        .piece = piece_of,
        .user_data = r->tokenizer,
    };
    const bool memory = proposals != NULL && drafters != NULL;
    const int code = memory ? write_whole(o->html, &page) : cli_error("out of memory");
    free(proposals);
    free(drafters);
    if (code != CLI_OK) return code;
    fprintf(stderr, "%s: %d step%s, %.2f tokens emitted per step%s\n", o->html, r->n_step, r->n_step == 1 ? "" : "s",
            r->n_step > 0 ? (double)r->n_emitted / r->n_step : 0.0,
            c->n_drafter == 0 ? "; no drafter (-md, --draft): every tree is its root alone" : "");
    return CLI_OK;
}

static spec_status prepare(recorder *r, const cli_context *c)
{
    r->info.struct_size = sizeof r->info;
    spec_tokenizer_info tokens = SPEC_STRUCT_INIT(spec_tokenizer_info);
    spec_status status = spec_model_get_info(c->target, &r->info, c->n_node);
    if (status == SPEC_OK) status = spec_tokenizer_get_info(r->tokenizer, &tokens);
    if (status != SPEC_OK) return status;
    r->piece_cap = tokens.piece_max + 16;
    r->path = malloc((size_t)c->n_node * sizeof *r->path);
    r->probs = malloc((size_t)r->info.n_vocab * sizeof *r->probs);
    r->piece = malloc(r->piece_cap);
    r->steps = calloc((size_t)r->options->n_step, sizeof *r->steps);
    if (r->path == NULL || r->probs == NULL || r->piece == NULL || r->steps == NULL) return no_memory(r);
    return cli_session_open(&r->session, c, r->options);
}

static int decode(recorder *r, const cli_context *c, const cli_prompt *prompt)
{
    r->tokenizer = spec_model_tokenizer(c->target);
    if (cli_need_tokenizer(c, r->options, "trees are shown as text") != CLI_OK) return CLI_FAILURE;
    const int code = cli_request(&r->request, c, r->options);
    if (code != CLI_OK) return code;
    spec_status status = prepare(r, c);
    if (status != SPEC_OK) return failure(r);
    cli_interrupt_session(r->session);
    status = start(r, prompt);
    if (status == SPEC_OK) status = take_steps(r);
    cli_interrupt_session(NULL);
    if (status != SPEC_OK && status != SPEC_E_ABORTED) return failure(r);
    if (status == SPEC_E_ABORTED) r->stop = spec_stop_name(SPEC_STOP_ABORTED);
    const int written = write_page(r, c); /* what there is, when it was stopped */
    return status == SPEC_OK ? written : cli_interrupt_code(CLI_FAILURE);
}

int cli_tree(const cli_options *o)
{
    cli_context context = { 0 };
    cli_prompt prompt = { 0 };
    recorder r = { .options = o };
    int code = cli_prompt_read(&prompt, o);
    if (code != CLI_OK) return code;
    cli_interrupt_install();
    code = cli_whole_check(o->html, page_begins); /* before the models load, and not after the last step */
    if (code == CLI_OK) code = cli_open(&context, o);
    if (code == CLI_OK) code = decode(&r, &context, &prompt);
    spec_session_close(r.session);
    recorder_free(&r);
    cli_close(&context);
    free(prompt.owned);
    return code;
}
