/* bench_main.c - spec-bench: options, modes. */
#define _GNU_SOURCE /* getopt_long */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

static const bench_mode modes[] = {
    { "step", "time of a step by number of nodes and tree", bench_step, false },
    { "generate", "end to end: trees x rules x temperatures, beside plain decoding", bench_generate, false },
    { "load", "end to end with --sequences at once: drafters beside plainly", bench_load, false },
    { "rules", "what traversal verification accepts of drafted trees, beside multi-step sampling", bench_rules, false },
    { "draft", "drafting by the model for itself, or by --drafter for it, per tree and per level", bench_draft, false },
    { "prefill", "tokens per second of prompts of --tokens", bench_prefill, false },
    { "append", "prompts of --tokens behind decoded tokens, and beside another sequence", bench_append, false },
    { "replay", "what applying an accepted path adds to a step; replay and joint", bench_replay, false },
    { "sequences", "steps of several sequences at once", bench_sequences, false },
    { "fork", "a sequence behind --context tokens is copied", bench_fork, false },
    { "rows", "distributions, verification and draws over rows of 128k logits (no model)", bench_rows, true },
    { "attention", "attention over trees of --nodes by the order of nodes, beside dense attention (no model)",
      bench_attention, true },
    { "text", "drafters from text: a step, a fork and memory behind --tokens of history; --tree \"ngram;...\" (no model)",
      bench_text_drafters, true },
    { "png", "drafters of --tree along the text --prompts in tokens of --model: a proposal, and tokens per step (no model)", bench_png,
      true },
    { "machine", "the machine's bounds: bandwidth, matrix rate, calls, looks (no model)", bench_machine, true },
    { "memory", "what a session for --nodes takes beyond one for a single node; loading", bench_memory, false },
};
enum { N_MODE = sizeof modes / sizeof modes[0] };

/* --- lists --- */

bool bench_item(char *out, size_t cap, const char *list, char separator, int32_t i)
{
    const char *at = list;
    for (; at && i > 0; i--) {
        at = strchr(at, separator);
        if (at) at++;
    }
    if (!at) return false;
    const char *end = strchr(at, separator);
    snprintf(out, cap, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
    return true;
}

static bool whole_number(int32_t *out, const char *text, int32_t min)
{
    char *end;
    errno = 0;
    const long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > INT32_MAX) return false;
    *out = (int32_t)v;
    return true;
}

spec_status bench_ints(int32_t *out, int32_t cap, int32_t *n, const char *list, const char *what)
{
    char item[32];
    for (*n = 0; bench_item(item, sizeof item, list, ',', *n); ++*n) {
        if (*n == cap) return speci_fail(SPEC_E_INVALID, "%s: more than %d numbers", what, cap);
        if (!whole_number(&out[*n], item, 1))
            return speci_fail(SPEC_E_INVALID, "%s %s: whole numbers from 1 on, with commas between them", what, list);
    }
    return SPEC_OK;
}

spec_status bench_temperature(float *out, const char *item)
{
    char *end;
    *out = strtof(item, &end);
    if (end == item || *end) return speci_fail(SPEC_E_INVALID, "--temp %s: not a number", item);
    return SPEC_OK;
}

/* --- options --- */

static void usage(FILE *to)
{
    fprintf(to, "usage: spec-bench MODE... --model NAME|DIR [options]\n\n");
    for (size_t i = 0; i < N_MODE; i++) fprintf(to, "  %-10s %s\n", modes[i].name, modes[i].help);
    fprintf(to, "\n"
                "  -m, --model NAME|DIR        a shape (below; random weights, written and removed) or a directory\n"
                "  -d, --drafter NAME|DIR      generate, load, rules, draft: the model or head that drafts\n"
                "                              (draft without it: the model itself)\n"
                "  -b, --backend NAME          cpu (default), cuda, ...      -t, --threads N\n"
                "      --plugin-dir DIR        where backends lie\n"
                "      --dtype f32|bf16|f16    default: the file's\n"
                "      --weights q8_0|q4_k|..  quantise matrices; default: as they are\n"
                "      --nodes N,N,...         nodes of a pass\n"
                "      --tree LIST             step: chain,binary,random,unrolled, or KIND:ARGS;KIND:ARGS;...\n"
                "      --verify LIST           auto,naive,chain,mss,...      --temp LIST   temperatures\n"
                "      --top-p P               with temperatures above 0\n"
                "      --sequences N,N,...     sequences at once (generate: N)\n"
                "      --tokens N,N,...        lengths of prompts; tokens to apply\n"
                "      --draft LIST            generate, load: drafters in place of the model, \"ngram:3,15;trie;png:FILE;model;\n"
                "                              ngram+model\": sets of them by ';', several of a set by '+',\n"
                "                              \"model\" being --drafter with --tree\n"
                "      --draft-combine first|union|choose, --draft-vocab auto|intersection|text\n"
                "      --draft-resample N, --draft-resample-left R, --draft-resample-across,\n"
                "      --draft-token-info factored|collapsed: of Lyanna heads\n"
                "      --adapt off|cost|ucb    cost and ucb choose among the trees of --tree (and the drafters of a set, by choose)\n"
                "      --cost-profile FILE     --adapt cost by these step costs in place of measured ones (spec run --cost-profile)\n"
                "      --scan chunked|recurrent, --advance replay|joint, --draft-state replay|per-node\n"
                "      --prompts FILE,...      JSON lines with \"prompt\"; default: SPEC_SHARED/data/prompts\n"
                "      --chat TEXT             a chat format: the prompt stands for {}, and special tokens are those\n"
                "      --n-prompt N            prompts of a file (default 5)  -n N   tokens for each (default 128)\n"
                "      --ignore-eos            go on to the last token asked for\n"
                "  -c, --context N             tokens before what is measured  -r, --repeats N (default 50)\n"
                "      --bandwidth GB/S        in place of measuring it\n"
                "      --least GB/S            a device that reads more slowly makes the run void (default 4300: H200)\n"
                "      --json                  one object a line\n"
                "      --compare OLD.json      adds ratios to an earlier report's lines\n"
                "      --keep DIR              keeps models that are written, and uses what is there\n\n  shapes:  ");
    bench_model_list(to);
}

enum { O_PLUGINS = 256, O_DTYPE, O_WEIGHTS, O_NODES, O_TREE, O_VERIFY, O_TEMP, O_TOP_P, O_DRAFT, O_COMBINE, O_VOCAB, O_RESAMPLE, O_LEFT,
       O_ACROSS, O_INFO, O_COSTS, O_ADAPT, O_SCAN, O_ADVANCE, O_STATE, O_PROMPTS, O_CHAT, O_N_PROMPT, O_IGNORE_EOS, O_BANDWIDTH,
       O_LEAST, O_SEQUENCES, O_TOKENS, O_JSON, O_COMPARE, O_KEEP, O_HELP };

static const struct option options[] = {
    { "model", required_argument, NULL, 'm' },          { "drafter", required_argument, NULL, 'd' },
    { "backend", required_argument, NULL, 'b' },        { "threads", required_argument, NULL, 't' },
    { "context", required_argument, NULL, 'c' },        { "repeats", required_argument, NULL, 'r' },
    { "plugin-dir", required_argument, NULL, O_PLUGINS }, { "dtype", required_argument, NULL, O_DTYPE },
    { "weights", required_argument, NULL, O_WEIGHTS },
    { "nodes", required_argument, NULL, O_NODES },      { "tree", required_argument, NULL, O_TREE },
    { "verify", required_argument, NULL, O_VERIFY },    { "temp", required_argument, NULL, O_TEMP },
    { "draft", required_argument, NULL, O_DRAFT },      { "draft-combine", required_argument, NULL, O_COMBINE },
    { "draft-vocab", required_argument, NULL, O_VOCAB }, { "chat", required_argument, NULL, O_CHAT },
    { "draft-resample", required_argument, NULL, O_RESAMPLE }, { "draft-resample-left", required_argument, NULL, O_LEFT },
    { "draft-resample-across", no_argument, NULL, O_ACROSS }, { "draft-token-info", required_argument, NULL, O_INFO },
    { "cost-profile", required_argument, NULL, O_COSTS },
    { "top-p", required_argument, NULL, O_TOP_P },      { "adapt", required_argument, NULL, O_ADAPT },
    { "scan", required_argument, NULL, O_SCAN },        { "advance", required_argument, NULL, O_ADVANCE },
    { "draft-state", required_argument, NULL, O_STATE }, { "prompts", required_argument, NULL, O_PROMPTS },
    { "n-prompt", required_argument, NULL, O_N_PROMPT }, { "ignore-eos", no_argument, NULL, O_IGNORE_EOS },
    { "bandwidth", required_argument, NULL, O_BANDWIDTH }, { "least", required_argument, NULL, O_LEAST },
    { "json", no_argument, NULL, O_JSON },
    { "compare", required_argument, NULL, O_COMPARE },  { "keep", required_argument, NULL, O_KEEP },
    { "sequences", required_argument, NULL, O_SEQUENCES }, { "tokens", required_argument, NULL, O_TOKENS },
    { "help", no_argument, NULL, O_HELP },              { NULL, 0, NULL, 0 },
};

/* The place of `text` among names [n], or -1. */
static int choice(const char *text, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) return i;
    return -1;
}

static bool real_number(double *out, const char *text, double min)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= min;
}

static bool set_choice(bench_options *o, int c, const char *text)
{
    static const char *const adapts[] = { "off", "cost", "ucb" }, *const scans[] = { "chunked", "recurrent" };
    static const char *const advances[] = { "replay", "joint" }, *const states[] = { "replay", "per-node" };
    static const char *const combines[] = { "first", "union", "choose" };
    static const char *const vocabs[] = { "auto", "intersection", "text" }, *const infos[] = { "factored", "collapsed" };
    const int i = c == O_ADAPT     ? choice(text, adapts, 3)
                  : c == O_COMBINE ? choice(text, combines, 3)
                  : c == O_VOCAB   ? choice(text, vocabs, 3)
                  : c == O_INFO    ? choice(text, infos, 2)
                  : c == O_SCAN    ? choice(text, scans, 2)
                  : c == O_ADVANCE ? choice(text, advances, 2)
                                   : choice(text, states, 2);
    if (i < 0) return false;
    if (c == O_ADAPT) o->adapt = (spec_adapt)i;
    else if (c == O_COMBINE) o->combine = (spec_draft_combine)i;
    else if (c == O_VOCAB) o->vocab = (spec_draft_vocab)i;
    else if (c == O_INFO) o->token_info = (spec_token_info)i;
    else if (c == O_SCAN) o->lab.scan = (spec_scan_form)i;
    else if (c == O_ADVANCE) o->lab.advance = (spec_advance)i;
    else o->lab.draft_state = (spec_draft_state)i;
    return true;
}

/* The options that are texts, by their letter. */
static const char **text_option(bench_options *o, int c)
{
    switch (c) {
    case 'm': return &o->model;
    case 'd': return &o->drafter;
    case 'b': return &o->backend;
    case O_PLUGINS: return &o->plugin_dir;
    case O_DTYPE: return &o->dtype;
    case O_WEIGHTS: return &o->weights;
    case O_NODES: return &o->nodes;
    case O_TREE: return &o->tree;
    case O_DRAFT: return &o->draft;
    case O_VERIFY: return &o->verify;
    case O_TEMP: return &o->temperature;
    case O_SEQUENCES: return &o->sequences;
    case O_TOKENS: return &o->tokens;
    case O_PROMPTS: return &o->prompts;
    case O_CHAT: return &o->chat;
    case O_COSTS: return &o->costs;
    case O_COMPARE: return &o->compare;
    case O_KEEP: return &o->keep;
    default: return NULL;
    }
}

static bool set(bench_options *o, int c, const char *text)
{
    const char **place = text_option(o, c);
    if (place) {
        *place = text;
        return true;
    }
    switch (c) {
    case 't': return whole_number(&o->n_threads, text, 1);
    case 'c': return whole_number(&o->context, text, 1);
    case 'r': return whole_number(&o->repeats, text, 1);
    case 'n': return whole_number(&o->n_predict, text, 1);
    case O_RESAMPLE: return whole_number(&o->resample, text, 0);
    case O_LEFT: return whole_number(&o->resample_left, text, 0);
    case O_ACROSS: return o->resample_across = true;
    case O_N_PROMPT: return whole_number(&o->n_prompt, text, 1);
    case O_TOP_P: return real_number(&o->top_p, text, 0);
    case O_BANDWIDTH: return real_number(&o->bandwidth_gbs, text, 0);
    case O_LEAST: return real_number(&o->least_gbs, text, 0);
    case O_JSON: return o->json = true;
    case O_IGNORE_EOS: return o->ignore_eos = true;
    case O_ADAPT:
    case O_COMBINE:
    case O_VOCAB:
    case O_INFO:
    case O_SCAN:
    case O_ADVANCE:
    case O_STATE: return set_choice(o, c, text);
    default: return false;
    }
}

static const bench_mode *mode_of(const char *name)
{
    for (size_t i = 0; name && i < N_MODE; i++)
        if (strcmp(modes[i].name, name) == 0) return &modes[i];
    return NULL;
}

/* Modes to run, in order: their count, or 0: then *code is what the program ends with. */
static int arguments(bench_options *o, const bench_mode *run[N_MODE], int argc, char **argv, int *code)
{
    int n = 0;
    for (int c; (c = getopt_long(argc, argv, "m:d:b:t:c:r:n:", options, NULL)) != -1;) {
        *code = c == O_HELP ? 0 : 2;
        if (c == O_HELP) usage(stdout);
        if (c == O_HELP || c == '?') return 0;
        if (!set(o, c, optarg)) {
            fprintf(stderr, "spec-bench: \"%s\" is not a value of that option (spec-bench --help)\n", optarg);
            return 0;
        }
    }
    for (; n < N_MODE && optind + n < argc; n++)
        if (!(run[n] = mode_of(argv[optind + n]))) break;
    *code = 2;
    if (n > 0 && optind + n == argc) return n;
    if (n == N_MODE) fprintf(stderr, "spec-bench: more than %d modes\n", N_MODE);
    else if (optind + n < argc) fprintf(stderr, "spec-bench: \"%s\" is not a mode (spec-bench --help)\n", argv[optind + n]);
    else usage(stderr);
    return 0;
}

int main(int argc, char **argv)
{
    bench b = { .o = { .backend = "cpu", .repeats = 50, .n_prompt = 5, .n_predict = 128, .least_gbs = 4300, .lab = SPEC_LAB_INIT } };
    const bench_mode *run[N_MODE];
    bool with_model = false;
    int code = 2;
    const int n = arguments(&b.o, run, argc, argv, &code);
    if (n == 0) return code;
    for (int i = 0; i < n; i++) with_model = with_model || !run[i]->no_model;
    spec_status status = bench_compare_open(&b);
    if (status == SPEC_OK) status = bench_open(&b, with_model);
    for (int i = 0; status == SPEC_OK && i < n; i++) status = run[i]->run(&b);
    if (status != SPEC_OK) fprintf(stderr, "spec-bench: %s\n", spec_last_error());
    bench_close(&b);
    return status == SPEC_OK ? 0 : 1;
}
