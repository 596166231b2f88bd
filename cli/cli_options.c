/* cli_options.c - the options of every command, as one table: parsing, environment and help come from it. */
#define _GNU_SOURCE /* getopt_long_only: "-md" is one option, not -m with the value "d" */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef enum option_kind {
    FLAG,
    TEXT,
    TEXTS,
    INT,
    SEED, /* the field, uint64_t, receives all of its range */
    REAL,
    CHOICE, /* one of the words that `arg` lists; the field, int32_t, receives its number */
    RULE,   /* a verification rule's name; the field, int32_t, receives the rule */
    TREE,   /* added to cli_options.tree */
    DRAFT,  /* added to cli_options.draft */
    IDS,    /* token ids, added to a cli_ids */
    BIAS,   /* added to cli_options.bias */
    CHAIN   /* K: the same as the tree "chain:K" */
} option_kind;

typedef struct option_row {
    const char *name;
    char letter;       /* 0 = none */
    const char *alias; /* a long name with one dash, or NULL */
    const char *arg;   /* what help calls the value; NULL for flags */
    const char *env;   /* the variable that gives a default, or NULL */
    int commands;
    option_kind kind;
    size_t offset; /* in cli_options */
    double min, max;
    const char *help;
} option_row;

#define AT(field) offsetof(cli_options, field)
#define DECODE (CLI_RUN | CLI_TREE)
#define WORK (CLI_RUN | CLI_TREE | CLI_INFO)
#define ALL (CLI_RUN | CLI_TREE | CLI_INFO | CLI_TOP)
#define MAX_INT 2147483647.0

static const option_row rows[] = {
    { "model", 'm', NULL, "DIR", "SPEC_MODEL", WORK, TEXT, AT(model), 0, 0, "the model: a Hugging Face directory" },
    { "model-draft", 0, "md", "DIR", "SPEC_MODEL_DRAFT", WORK, TEXT, AT(model_draft), 0, 0,
      "the model that drafts; none: plain decoding" },
    { "tokenizer", 0, NULL, "PATH", "SPEC_TOKENIZER", WORK, TEXT, AT(tokenizer), 0, 0,
      "tokenizer.json, tokenizer.model or their directory, if not the model's" },
    { "prompt", 'p', NULL, "TEXT", NULL, DECODE, TEXT, AT(prompt), 0, 0, "the prompt" },
    { "file", 'f', NULL, "FILE", NULL, DECODE, TEXT, AT(file), 0, 0,
      "read the prompt from FILE, as it is (- for stdin)" },
    { "prompt-ids", 0, NULL, "ID,ID,...", NULL, DECODE, IDS, AT(prompt_ids), 0, MAX_INT,
      "the prompt as token ids, to which nothing is added; the way for a model without a tokenizer" },
    { "n-predict", 'n', NULL, "N", "SPEC_N_PREDICT", DECODE, INT, AT(n_predict), 1, MAX_INT,
      "generate at most N tokens (128; tree: what the steps give)" },
    { "ctx-size", 'c', NULL, "N", "SPEC_CTX_SIZE", WORK, INT, AT(n_ctx), 0, MAX_INT,
      "tokens of context; 0 is the model's own limit (0)" },
    { "temp", 0, NULL, "T", "SPEC_TEMP", DECODE, REAL, AT(temp), 0, 1e6, "temperature; 0 is greedy (0)" },
    { "top-k", 0, NULL, "K", "SPEC_TOP_K", DECODE, INT, AT(top_k), 0, MAX_INT,
      "sample from the K likeliest; 0 is off (0)" },
    { "top-p", 0, NULL, "P", "SPEC_TOP_P", DECODE, REAL, AT(top_p), 0, 1,
      "sample from the likeliest that hold mass P; 0 or 1 is off (0)" },
    { "min-p", 0, NULL, "P", "SPEC_MIN_P", DECODE, REAL, AT(min_p), 0, 1,
      "leave out what is under P times the likeliest; 0 is off (0)" },
    { "seed", 's', NULL, "N", "SPEC_SEED", DECODE, SEED, AT(seed), 0, 0, "seed of the random numbers (0)" },
    { "dtype", 0, NULL, "TYPE", "SPEC_DTYPE", WORK, TEXT, AT(dtype), 0, 0,
      "compute type: auto, f32, bf16, f16 (auto: the file's)" },
    { "weights", 0, NULL, "auto|q8_0", "SPEC_WEIGHTS", WORK, CHOICE, AT(weights), 0, 0,
      "quantise matrices while loading: q8_0, int8 in blocks of 32 (auto: as they are)" },
    { "no-bos", 0, NULL, NULL, NULL, DECODE, FLAG, AT(no_bos), 0, 0, "do not add special tokens to the prompt" },
    { "parse-special", 0, NULL, NULL, NULL, DECODE, FLAG, AT(parse_special), 0, 0,
      "recognise special tokens written in the prompt (not for untrusted text)" },
    { "ignore-eos", 0, NULL, NULL, NULL, DECODE, FLAG, AT(ignore_eos), 0, 0, "go on after an end-of-text token" },
    { "stop", 0, NULL, "TEXT", NULL, CLI_RUN, TEXTS, AT(stop), 0, 0,
      "end before TEXT, which may be a special token; may be repeated" },
    { "special", 0, NULL, NULL, NULL, CLI_RUN, FLAG, AT(keep_special), 0, 0, "write special tokens in the text" },
    { "logprobs", 0, NULL, "N", "SPEC_LOGPROBS", CLI_RUN, INT, AT(n_logprobs), 0, 20,
      "log-probabilities of each token and of the N likeliest" },
    { "end-id", 0, NULL, "ID,ID,...", NULL, CLI_RUN, IDS, AT(end_ids), 0, MAX_INT,
      "token ids that end the text as the model's end-of-text tokens do" },
    { "repeat-penalty", 0, NULL, "X", "SPEC_REPEAT_PENALTY", DECODE, REAL, AT(repeat_penalty), 0, 1e6,
      "divide positive logits of tokens of prompt and output by X, multiply negative ones; 0 or 1 is off (1)" },
    { "presence-penalty", 0, NULL, "X", "SPEC_PRESENCE_PENALTY", DECODE, REAL, AT(presence_penalty), -1e6, 1e6,
      "subtract X once from logits of tokens of the output (0)" },
    { "frequency-penalty", 0, NULL, "X", "SPEC_FREQUENCY_PENALTY", DECODE, REAL, AT(frequency_penalty), -1e6, 1e6,
      "and X for each time that they stand there (0)" },
    { "repeat-last-n", 0, NULL, "N", "SPEC_REPEAT_LAST_N", DECODE, INT, AT(repeat_last_n), -1, MAX_INT,
      "penalties look at the last N tokens; 0: at none, -1: at all (-1)" },
    { "logit-bias", 0, NULL, "TOKEN_ID(+|-)BIAS", NULL, DECODE, BIAS, AT(bias), 0, MAX_INT,
      "add to a token's logit: 15043+1, or 15043-inf for never; may be repeated" },
    { "generation-config", 0, NULL, NULL, NULL, DECODE, FLAG, AT(generation_config), 0, 0,
      "begin with what the model's generation_config.json says; options win" },
    { "tree", 0, NULL, "KIND[:ARGS]", "SPEC_TREE", WORK, TREE, AT(tree), 0, 0,
      "the trees that -md drafts; several (again, or with ; between them) need --adapt (chain:4)" },
    { "draft", 0, NULL, "KIND[:ARGS]", "SPEC_DRAFT", WORK, DRAFT, AT(draft), 0, 0,
      "draft without a model; several (again, or with ; between them) stand in front of -md" },
    { "draft-combine", 0, NULL, "first|union|choose", "SPEC_DRAFT_COMBINE", WORK, CHOICE, AT(draft_combine), 0, 0,
      "several drafters: the first that proposes, all their trees merged, or --adapt's choice (first)" },
    { "spec-draft-n-max", 0, NULL, "K", "SPEC_DRAFT_N_MAX", WORK, CHAIN, AT(tree), 1, 63, "means --tree chain:K" },
    { "draft-temp", 0, NULL, "T", "SPEC_DRAFT_TEMP", WORK, REAL, AT(draft_temp), 0, 1e6,
      "temperature of the draft distribution; 0: the target's, for a greedy target 1 (0)" },
    { "verify", 0, NULL, "RULE", "SPEC_VERIFY", DECODE, RULE, AT(verify), 0, 0,
      "the rule that accepts drafts; one that would change the model's distribution is refused (auto)" },
    { "adapt", 0, NULL, "off|cost|ucb", "SPEC_ADAPT", DECODE, CHOICE, AT(adapt), 0, 0,
      "choose among the trees and no draft at all: by step costs and acceptance, or by trying (off)" },
    { "cost-profile", 0, NULL, "FILE", "SPEC_COST_PROFILE", DECODE, TEXT, AT(cost_profile), 0, 0,
      "step costs of this machine; measured and saved if FILE is not there" },
    { "scan", 0, NULL, "window|recurrent", "SPEC_SCAN", WORK, CHOICE, AT(scan), 0, 0,
      "Mamba-2 over a tree: products with a state that lags, or state by state (window)" },
    { "advance", 0, NULL, "replay|joint", "SPEC_ADVANCE", WORK, CHOICE, AT(advance), 0, 0,
      "accepted tokens: replayed from the cache, or fed again with the next tree (replay)" },
    { "draft-state", 0, NULL, "replay|per-node", "SPEC_DRAFT_STATE", WORK, CHOICE, AT(draft_state), 0, 0,
      "a recurrent drafter: replays the path to a node, or keeps a state per node (replay)" },
    { "html", 0, NULL, "FILE", NULL, CLI_TREE, TEXT, AT(html), 0, 0, "write the page to FILE" },
    { "steps", 0, NULL, "N", NULL, CLI_TREE, INT, AT(n_step), 1, CLI_MAX_STEP, "show at most N steps (200)" },
    { "backend", 0, NULL, "NAME", "SPEC_BACKEND", WORK, TEXT, AT(backend), 0, 0,
      "cpu, cpu:portable, cuda, cuda:1, or a plugin's path (cpu)" },
    { "plugin-dir", 0, NULL, "DIR", "SPEC_PLUGIN_DIR", ALL, TEXT, AT(plugin_dir), 0, 0,
      "where to look for backends first (../lib from the program)" },
    { "threads", 't', NULL, "N", "SPEC_THREADS", ALL, INT, AT(n_threads), 0, 4096,
      "CPU threads; 0 is what the process may use (0)" },
    { "json", 0, NULL, NULL, NULL, CLI_RUN | CLI_INFO, FLAG, AT(json), 0, 0,
      "print one JSON object instead of text and report" },
    { "ids", 0, NULL, NULL, NULL, CLI_RUN, FLAG, AT(ids), 0, 0, "print token ids instead of text" },
    { "check", 0, NULL, NULL, NULL, CLI_RUN, FLAG, AT(check), 0, 0,
      "also decode plainly; exit 3 if the tokens differ (temperature 0 only)" },
    { "verbose", 'v', NULL, NULL, NULL, ALL, FLAG, AT(verbose), 0, 0, "print the library's log" },
    { "list-devices", 0, NULL, NULL, NULL, CLI_TOP, FLAG, AT(list_devices), 0, 0, "list the devices that can be used" },
    { "version", 0, NULL, NULL, NULL, CLI_TOP, FLAG, AT(version), 0, 0, "print the version" },
    { "help", 'h', NULL, NULL, NULL, ALL, FLAG, AT(help), 0, 0, "print this" },
};
#define N_ROW (sizeof rows / sizeof rows[0])

static size_t row_of(const char *name)
{
    size_t i = 0;
    while (strcmp(rows[i].name, name) != 0) i++;
    return i;
}

int cli_usage_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("spec: ", stderr);
    vfprintf(stderr, fmt, args);
    fputs(" (spec --help shows the options)\n", stderr);
    va_end(args);
    return CLI_USAGE;
}

/* The number of `word` in words "a|b|c", -1 if it is none of them. */
static int32_t word_number(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (int32_t i = 0;; i++) {
        const size_t length = strcspn(words, "|");
        if (length == n && strncmp(words, word, n) == 0) return i;
        if (words[length] == 0) return -1;
        words += length + 1;
    }
}

/* A rule that is looked up by its name, and the names there are: "a|b|c". */
typedef struct rule_search {
    const char *name;
    int32_t rule; /* -1 until found */
    char names[256];
} rule_search;

static void search_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    rule_search *s = user;
    const size_t n = strlen(s->names);
    (void)help;
    if (strcmp(name, s->name) == 0) s->rule = (int32_t)rule;
    snprintf(s->names + n, sizeof s->names - n, "%s%s", n > 0 ? "|" : "", name);
}

static int set_rule(int32_t *field, const char *name, const char *source)
{
    rule_search s = { .name = name, .rule = -1 };
    spec_verify_rule_list(search_rule, &s);
    if (s.rule < 0) return cli_usage_error("%s is \"%s\", need one of %s", source, name, s.names);
    *field = s.rule;
    return -1;
}

/* One more of a list. What the environment named is forgotten with the first one of the command line. */
static int list_add(char **list, bool *list_from_env, const char *text, bool from_env)
{
    const bool fresh = *list == NULL || (*list_from_env && !from_env);
    char *joined = NULL;
    if (asprintf(&joined, "%s%s%s", fresh ? "" : *list, fresh ? "" : ";", text) < 0)
        return cli_usage_error("out of memory");
    free(*list);
    *list = joined;
    *list_from_env = from_env;
    return -1;
}

static int tree_add(cli_options *o, const char *text, bool from_env)
{
    return list_add(&o->tree, &o->tree_from_env, text, from_env);
}

/* Options of other programs that people try here, without dashes, and what to do instead. */
static const struct {
    const char *name, *answer;
} elsewhere[] = {
    { "ngl", "the whole model goes to the device of --backend" },
    { "gpu-layers", "the whole model goes to the device of --backend" },
    { "n-gpu-layers", "the whole model goes to the device of --backend" },
    { "cnv", "there is no chat: write the model's template into the prompt, with --parse-special" },
    { "conversation", "there is no chat: write the model's template into the prompt, with --parse-special" },
    { "hf", "nothing is downloaded: give the model's directory with -m DIR" },
    { "hf-repo", "nothing is downloaded: give the model's directory with -m DIR" },
    { "draft-max", "--spec-draft-n-max K drafts K tokens in a row" },
    { "draft-n", "--spec-draft-n-max K drafts K tokens in a row" },
};

/* A word of the command line that begins with a dash, before getopt reads it. getopt takes one dash and several letters for
 * a short option with its value: "-ngl" would be "-n gl", "-hf" would print the help. Here such a word has to be a name as it
 * stands, or a letter with its number ("-n64"). Returns -1 if it may be read. */
static int check_word(const char *word, cli_command command)
{
    const char *name = word + 1 + (word[1] == '-');
    const size_t n = strcspn(name, "=");
    bool known = word[1] == '-' || name[1] == 0; /* getopt names the ones that are not */
    for (size_t i = 0; i < N_ROW; i++) {
        const option_row *row = &rows[i];
        if ((row->commands & (int)command) == 0) continue;
        if (strlen(row->name) == n && strncmp(row->name, name, n) == 0) return -1;
        if (row->alias != NULL && strlen(row->alias) == n && strncmp(row->alias, name, n) == 0) return -1;
        const bool number = row->kind == INT || row->kind == SEED;
        if (number && row->letter == name[0] && isdigit((unsigned char)name[1 + (name[1] == '-')])) known = true;
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (strlen(elsewhere[i].name) == n && strncmp(elsewhere[i].name, name, n) == 0)
            return cli_usage_error("\"%s\" is not an option: %s", word, elsewhere[i].answer);
    if (known) return -1;
    for (size_t i = 0; i < N_ROW; i++)
        if (rows[i].letter == name[0] && rows[i].arg != NULL && (rows[i].commands & (int)command) != 0)
            return cli_usage_error("\"%s\" is not an option; the value of -%c stands apart: -%c %s", word, name[0], name[0],
                                   rows[i].arg);
    return cli_usage_error("\"%s\" is not an option", word);
}

/* The next word that getopt will read as an option, NULL if there is none. */
static const char *next_word(int argc, char **argv)
{
    for (int i = optind; i < argc; i++)
        if (argv[i][0] == '-' && argv[i][1] != 0) return strcmp(argv[i], "--") != 0 ? argv[i] : NULL;
    return NULL;
}

/* "1,2,3", or as --ids prints them: "1 2 3 ". */
static int add_ids(cli_ids *list, const option_row *row, const char *value, const char *source)
{
    int32_t *ids = realloc(list->ids, (list->n + strlen(value) / 2 + 1) * sizeof *ids);
    size_t n = list->n;
    if (ids == NULL) return cli_usage_error("out of memory");
    list->ids = ids;
    for (const char *at = value + strspn(value, " \n"); *at != 0;) {
        char *end = NULL;
        errno = 0;
        const long long id = strtoll(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno != 0 || (double)id > row->max)
            return cli_usage_error("%s is \"%s\", need token ids with commas between them, such as 1,2,3", source, value);
        ids[n++] = (int32_t)id;
        at = end + strspn(end, " \n");
        if (at[0] == ',' && at[1] != 0) at++, at += strspn(at, " \n");
        else if (at == end && *at != 0)
            return cli_usage_error("%s is \"%s\", need token ids with commas between them, such as 1,2,3", source, value);
    }
    if (n == list->n) return cli_usage_error("%s is empty, need token ids", source);
    list->n = n;
    return -1;
}

/* "15043+1", "15043-0.5", "15043-inf". */
static int bias_add(cli_options *o, const char *value, const char *source)
{
    char *sign = NULL, *end = NULL;
    const long long id = strtoll(value, &sign, 10);
    const float bias = strtof(sign, &end);
    if (!isdigit((unsigned char)*value) || (double)id > MAX_INT || (*sign != '+' && *sign != '-') || end == sign || *end != 0 ||
        isnan(bias) || bias == INFINITY)
        return cli_usage_error("%s is \"%s\", need a token id, + or -, and a number, such as 15043+1 or 15043-inf", source,
                               value);
    spec_logit_bias *more = realloc(o->bias, ((size_t)o->n_bias + 1) * sizeof *more);
    if (more == NULL) return cli_usage_error("out of memory");
    o->bias = more;
    o->bias[o->n_bias++] = (spec_logit_bias){ .token = (int32_t)id, .bias = bias };
    return -1;
}

/* Stores `value` where the row says. `source` names it in messages: "--temp" or "SPEC_TEMP". */
static int option_set(cli_options *o, const option_row *row, const char *value, const char *source)
{
    void *field = (char *)o + row->offset;
    char *end = NULL;
    errno = 0;
    switch (row->kind) {
    case FLAG:
        *(bool *)field = true;
        return -1;
    case TEXT:
        *(const char **)field = value;
        return -1;
    case TEXTS: {
        const char **more = realloc(o->stop, ((size_t)o->n_stop + 1) * sizeof *more);
        if (more == NULL) return cli_usage_error("out of memory");
        o->stop = more;
        o->stop[o->n_stop++] = value;
        return -1;
    }
    case CHOICE:
        *(int32_t *)field = word_number(row->arg, value);
        if (*(int32_t *)field < 0) return cli_usage_error("%s is \"%s\", need one of %s", source, value, row->arg);
        return -1;
    case RULE:
        return set_rule(field, value, source);
    case TREE:
        return tree_add(o, value, source[0] != '-');
    case DRAFT:
        if (value[0] != 0 && strspn(value, "0123456789") == strlen(value))
            return cli_usage_error("%s is %s, need a kind of drafter; --spec-draft-n-max %s drafts so many tokens in a row",
                                   source, value, value);
        return list_add(&o->draft, &o->draft_from_env, value, source[0] != '-');
    case SEED: {
        const unsigned long long n = strtoull(value, &end, 10);
        if (end == value || *end != 0 || isspace((unsigned char)*value))
            return cli_usage_error("%s is \"%s\", need a whole number", source, value);
        if (errno != 0 || *value == '-') /* strtoull takes a minus and wraps */
            return cli_usage_error("%s is %s, need 0 to %llu", source, value, (unsigned long long)UINT64_MAX);
        *(uint64_t *)field = n;
        return -1;
    }
    case IDS:
        return add_ids(field, row, value, source);
    case BIAS:
        return bias_add(o, value, source);
    case CHAIN:
    case INT: {
        const long long n = strtoll(value, &end, 10);
        if (end == value || *end != 0 || isspace((unsigned char)*value))
            return cli_usage_error("%s is \"%s\", need a whole number", source, value);
        if (errno != 0 || (double)n < row->min || (double)n > row->max)
            return cli_usage_error("%s is %s, need %.0f to %.10g", source, value, row->min, row->max);
        if (row->kind == CHAIN) {
            char chain[32];
            snprintf(chain, sizeof chain, "chain:%lld", n);
            return tree_add(o, chain, source[0] != '-');
        }
        *(int32_t *)field = (int32_t)n;
        return -1;
    }
    case REAL: {
        const double x = strtod(value, &end);
        if (end == value || *end != 0 || isspace((unsigned char)*value))
            return cli_usage_error("%s is \"%s\", need a number", source, value);
        if (!isfinite(x) || x < row->min || x > row->max)
            return cli_usage_error("%s is %s, need %g to %g", source, value, row->min, row->max);
        *(double *)field = x;
        return -1;
    }
    }
    return CLI_USAGE;
}

/* What the command line asks of drafts, and nothing drafts: an option that would do nothing is refused. The environment may
 * say it, for the runs that draft. */
static int check_drafts(const cli_options *o, const bool *given)
{
    static const char *const of_model[] = { "tree", "spec-draft-n-max", "draft-temp", "draft-state" };
    static const char *const of_any[] = { "adapt", "draft-combine" };
    if (o->model_draft != NULL) return -1;
    for (size_t i = 0; i < sizeof of_model / sizeof of_model[0]; i++)
        if (given[row_of(of_model[i])] && strcmp(o->tree, "none") != 0)
            return cli_usage_error("--%s is for a model that drafts, and there is none: give one with -md DIR%s", of_model[i],
                                   o->draft != NULL ? "; what --draft proposes is said in its own arguments" : "");
    for (size_t i = 0; i < sizeof of_any / sizeof of_any[0] && o->draft == NULL; i++)
        if (given[row_of(of_any[i])])
            return cli_usage_error("--%s needs a drafter: give one with -md DIR or --draft KIND", of_any[i]);
    return -1;
}

/* given [N_ROW]: the options that the command line has */
static int check_together(cli_options *o, cli_command command, const bool *given)
{
    static const char *const types[] = { "auto", "f32", "bf16", "f16" };
    bool known = false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) known = known || strcmp(o->dtype, types[i]) == 0;
    if (!known) return cli_usage_error("--dtype is \"%s\", need auto, f32, bf16 or f16", o->dtype);
    if (command == CLI_TOP) return -1;
    if (o->model == NULL) return cli_usage_error("no model: give one with -m DIR");
    if (o->tree == NULL) {
        const int end = tree_add(o, "chain:4", false);
        if (end >= 0) return end;
    }
    if (command == CLI_INFO) return check_drafts(o, given);
    if (o->draft_combine == SPEC_DRAFT_CHOOSE && o->adapt == SPEC_ADAPT_OFF)
        return cli_usage_error("--draft-combine choose needs --adapt cost or ucb");
    if (o->adapt == SPEC_ADAPT_OFF && strchr(o->tree, ';') != NULL)
        return cli_usage_error("several trees (%s) need --adapt cost or ucb", o->tree);
    if (command == CLI_TREE && o->html == NULL) return cli_usage_error("no page: name one with --html FILE");
    const char *const first = o->prompt != NULL ? "-p" : o->file != NULL ? "-f" : "--prompt-ids";
    const char *const other = o->prompt_ids.ids != NULL ? "--prompt-ids" : "-f";
    const int n_prompt = (o->prompt != NULL) + (o->file != NULL) + (o->prompt_ids.ids != NULL);
    if (n_prompt > 1) return cli_usage_error("%s and %s are both given, need one", first, other);
    if (n_prompt == 0) return cli_usage_error("no prompt: give one with -p TEXT, -f FILE or --prompt-ids ID,ID,...");
    if (o->check && o->temp > 0) return cli_usage_error("--check needs --temp 0");
    for (int32_t i = 0; i < o->n_stop; i++)
        if (o->stop[i][0] == 0) return cli_usage_error("--stop is empty");
    return check_drafts(o, given);
}

int cli_options_parse(cli_options *o, cli_command command, int argc, char **argv)
{
    *o = (cli_options){ .backend = "cpu", .dtype = "auto", .n_logprobs = -1, .n_step = 200, .temp = -1, .top_k = -1, .top_p = -1,
                        .min_p = -1, .repeat_penalty = -1, .repeat_last_n = -1 };

    bool given[N_ROW] = { false };
    struct option longs[2 * N_ROW + 1];
    char letters[2 * N_ROW + 1];
    size_t n_long = 0, n_letter = 0;
    for (size_t i = 0; i < N_ROW; i++) {
        const option_row *row = &rows[i];
        if ((row->commands & (int)command) == 0) continue;
        const int has_arg = row->arg != NULL ? required_argument : no_argument;
        longs[n_long++] = (struct option){ row->name, has_arg, NULL, 256 + (int)i };
        if (row->alias != NULL) longs[n_long++] = (struct option){ row->alias, has_arg, NULL, 256 + (int)i };
        if (row->letter != 0) letters[n_letter++] = row->letter;
        if (row->letter != 0 && row->arg != NULL) letters[n_letter++] = ':';

        const char *value = row->env != NULL ? getenv(row->env) : NULL;
        if (value != NULL && value[0] != 0) {
            const int end = option_set(o, row, value, row->env);
            if (end >= 0) return end;
        }
    }
    longs[n_long] = (struct option){ 0 };
    letters[n_letter] = 0;

    for (;;) {
        const char *word = next_word(argc, argv);
        const int refused = word != NULL ? check_word(word, command) : -1;
        if (refused >= 0) return refused;
        const int found = getopt_long_only(argc, argv, letters, longs, NULL);
        if (found == -1) break;
        const option_row *row = NULL;
        for (size_t i = 0; i < N_ROW; i++)
            if (found == 256 + (int)i || (found == rows[i].letter && (rows[i].commands & (int)command))) row = &rows[i];
        if (row == NULL) { /* getopt has said why */
            fputs("spec --help shows the options\n", stderr);
            return CLI_USAGE;
        }
        char source[40];
        snprintf(source, sizeof source, "--%s", row->name);
        given[row - rows] = true;
        const int end = option_set(o, row, optarg, source);
        if (end >= 0) return end;
    }
    if (o->help) {
        cli_help(stdout, command);
        return CLI_OK;
    }
    if ((command == CLI_INFO || command == CLI_TREE) && optind < argc) o->model = argv[optind++];
    if (command == CLI_TREE && optind < argc) o->model_draft = argv[optind++];
    if (optind < argc) return cli_usage_error("\"%s\" is not expected here", argv[optind]);
    return check_together(o, command, given);
}

char *cli_proposals(const cli_options *o)
{
    const char *draft = o->draft != NULL ? o->draft : "", *tree = o->model_draft != NULL ? o->tree : "";
    char *all = NULL;
    return asprintf(&all, "%s%s%s", draft, draft[0] != 0 && tree[0] != 0 ? ";" : "", tree) < 0 ? NULL : all;
}

void cli_options_free(cli_options *o)
{
    free(o->stop);
    free(o->prompt_ids.ids);
    free(o->end_ids.ids);
    free(o->bias);
    o->prompt_ids = o->end_ids = (cli_ids){ 0 };
    o->bias = NULL;
    free(o->tree);
    free(o->draft);
    o->stop = NULL;
    o->tree = o->draft = NULL;
}

static void print_rule(void *user, spec_verify_rule rule, const char *name, const char *help)
{
    (void)rule;
    fprintf(user, "  %-29s %s\n", name, help);
}

static void print_kind(void *user, const char *name, const char *args, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", name, args[0] != 0 && args[0] != '[' ? ":" : "", args);
    fprintf(user, "  %-29s %s\n", left, help);
}

void cli_help(FILE *to, cli_command command)
{
    static const struct {
        cli_command command;
        const char *line;
    } usage[] = {
        { CLI_RUN, "spec run -m DIR [-md DIR] -p TEXT | -f FILE | --prompt-ids IDS [options]   generate text" },
        { CLI_TREE, "spec tree DIR [DIR] -p TEXT | -f FILE --html FILE      a page that shows the drafted trees" },
        { CLI_INFO, "spec info DIR [options]                                 what a model is, what it will take" },
        { CLI_TOP, "spec --list-devices | --version | --help" },
    };
    fputs("usage:\n", to);
    for (size_t i = 0; i < sizeof usage / sizeof usage[0]; i++)
        if (command == CLI_TOP || command == usage[i].command) fprintf(to, "  %s\n", usage[i].line);
    fputs("\noptions (default; variable that sets it):\n", to);
    for (size_t i = 0; i < N_ROW; i++) {
        const option_row *row = &rows[i];
        if (command != CLI_TOP && (row->commands & (int)command) == 0) continue;
        char dash[8] = "", left[80];
        if (row->letter != 0) snprintf(dash, sizeof dash, "-%c,", row->letter);
        if (row->alias != NULL) snprintf(dash, sizeof dash, "-%s,", row->alias);
        snprintf(left, sizeof left, "%-4s --%s %s", dash, row->name, row->arg != NULL ? row->arg : "");
        if (strlen(left) > 30) fprintf(to, "  %s\n", left), left[0] = 0;
        fprintf(to, "  %-30s %s%s%s%s\n", left, row->help, row->env != NULL ? " [" : "",
                row->env != NULL ? row->env : "", row->env != NULL ? "]" : "");
    }
    if (command != CLI_TOP) {
        fputs("\ntrees (--tree):\n", to);
        spec_builder_list(print_kind, to);
        fputs("\ndrafters (--draft):\n", to);
        spec_drafter_list(print_kind, to);
    }
    if ((command & DECODE) != 0) {
        fputs("\nrules (--verify):\n", to);
        spec_verify_rule_list(print_rule, to);
    }
    if (command == CLI_RUN || command == CLI_TOP)
        fputs("\nGenerated text goes to stdout, everything else to stderr.\n", to);
    fputs("\nexit status: 0 ok, 1 failure, 2 usage, 3 --check found a difference\n", to);
}
