/* cli_request.c - the request that the options come to. With --generation-config it begins with what the model's file says, and
 * options and variables win. */
#include <float.h>

#include "cli/cli.h"
#include "cli/cli_text.h"

/* 0 is "off": a smaller mass than a float holds is not, and keeps the likeliest alone, as every tiny one does. */
static float top_p_of(double p)
{
    return p > 0 && (float)p == 0 ? FLT_MIN : (float)p;
}

static void set_sampling(spec_sampling *s, const cli_options *o)
{
    if (o->temp >= 0) s->temperature = (float)o->temp;
    if (o->top_k >= 0) s->top_k = o->top_k;
    if (o->top_p >= 0) s->top_p = top_p_of(o->top_p);
    if (o->min_p >= 0) s->min_p = (float)o->min_p;
    s->seed = o->seed;
}

static void set_penalties(spec_request *r, const cli_options *o)
{
    if (o->repeat_penalty >= 0) r->repeat_penalty = (float)o->repeat_penalty;
    r->presence_penalty = (float)o->presence_penalty;
    r->frequency_penalty = (float)o->frequency_penalty;
    r->n_penalty = o->repeat_last_n > 0 ? o->repeat_last_n : 0;
    if (o->repeat_last_n == 0) r->repeat_penalty = r->presence_penalty = r->frequency_penalty = 0; /* they look at nothing */
    if (o->n_bias > 0) r->bias = o->bias, r->n_bias = o->n_bias;
}

static void set_ends(spec_request *r, const cli_options *o)
{
    if (o->n_predict > 0) r->n_predict = o->n_predict;
    if (o->n_stop > 0) r->stop = o->stop, r->n_stop = o->n_stop;
    r->end_ids = o->end_ids.ids;
    r->n_end_id = (int32_t)o->end_ids.n;
    r->ignore_eos = o->ignore_eos;
}

int cli_request(spec_request *out, const cli_context *c, const cli_options *o)
{
    const char *unread = "";
    *out = (spec_request)SPEC_REQUEST_INIT;
    if (o->generation_config && spec_request_from_model(out, c->target, &unread) != SPEC_OK) return cli_failure();
    if (unread[0] != 0) {
        fputs("spec: warning: generation_config.json says more, which is not done: ", stderr);
        cli_put_plain(stderr, unread);
        fputc('\n', stderr);
    }
    set_sampling(&out->sampling, o);
    set_penalties(out, o);
    set_ends(out, o);
    out->logprobs = o->n_logprobs >= 0;
    out->n_top = o->n_logprobs > 0 ? o->n_logprobs : 0;
    out->no_bos = o->no_bos;
    out->parse_special = o->parse_special;
    out->keep_special = o->keep_special;
    return CLI_OK;
}
