/* cli_options.c - reads the environment and the command line into cli_options, by the table. */
#define _GNU_SOURCE /* getopt_long_only: "-md" is one option, not -m with the value "d" */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_table.h"

static size_t row_of(const char *name)
{
    size_t i = 0;
    while (strcmp(cli_option_rows[i].name, name) != 0) i++;
    return i;
}

static bool is_of(const cli_option *row, cli_command command)
{
    return (row->commands & (int)command) != 0;
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

static bool is_named(const cli_option *row, const char *name, size_t n)
{
    return cli_word_number(row->name, name, n) >= 0 || cli_word_number(row->alias, name, n) >= 0;
}

/* A word that is no option of the command. If it is one of another, says of which. */
static int not_an_option(const char *word, cli_command command)
{
    const char *name = word + 1 + (word[1] == '-');
    const size_t n = strcspn(name, "=");
    char commands[64] = "";
    size_t i = 0;
    while (i < cli_n_option && !is_named(&cli_option_rows[i], name, n) && (n != 1 || cli_option_rows[i].letter != name[0])) i++;
    if (i == cli_n_option || is_of(&cli_option_rows[i], command))
        return cli_usage_error("\"%s\" is not an option, nor the beginning of just one", word);
    for (size_t k = 0; k < cli_n_command; k++) {
        const cli_command_row *row = &cli_command_rows[k];
        const size_t at = strlen(commands);
        if (is_of(&cli_option_rows[i], row->command))
            snprintf(commands + at, sizeof commands - at, "%sspec %s", at > 0 ? ", " : "", row->name != NULL ? row->name : "alone");
    }
    return cli_usage_error("\"%s\" is not an option here, but of %s", word, commands);
}

/* A name as libraries spell it, with underscores, that is an option of the command with dashes; NULL: it is none. */
static const cli_option *option_with_dashes(const char *dashed, const char *name, cli_command command)
{
    const size_t n = strlen(dashed);
    for (size_t i = 0; i < cli_n_option && strncmp(dashed, name, n) != 0; i++)
        if (is_of(&cli_option_rows[i], command) && is_named(&cli_option_rows[i], dashed, n)) return &cli_option_rows[i];
    return NULL;
}

/* An option of another program, or one that is spelled otherwise here. -1: neither. */
static int check_elsewhere(const char *word, const char *name, size_t n, cli_command command)
{
    char dashed[40] = "";
    snprintf(dashed, sizeof dashed, "%.*s", (int)(n < sizeof dashed ? n : 0), name);
    for (char *c = dashed; *c != 0; c++)
        if (*c == '_') *c = '-';
    const char *answer = cli_elsewhere(dashed);
    if (answer != NULL) return cli_usage_error("\"%s\" is not an option: %s", word, answer);
    const cli_option *row = option_with_dashes(dashed, name, command);
    return row != NULL ? cli_usage_error("\"%s\" is not an option: it is called --%s", word, row->name) : -1;
}

/* A word of the command line that begins with a dash, before getopt reads it. getopt takes one dash and several letters for
 * a short option with its value: "-ngl" would be "-n gl", "-hf" would print the help. And a letter that is none for the beginning
 * of a name. Here such a word has to be a name as it stands, a letter, or one with its number ("-n64"). Returns -1 if it may be
 * read. */
static int check_word(const char *word, cli_command command)
{
    const char *name = word + 1 + (word[1] == '-');
    const size_t n = strcspn(name, "=");
    bool known = word[1] == '-'; /* getopt finds the ones that are not */
    const cli_option *letter = NULL;
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        if (!is_of(row, command)) continue;
        if (is_named(row, name, n)) return -1;
        if (row->letter != name[0]) continue;
        if (name[1] == 0) return -1;
        if (row->arg == NULL) continue;
        letter = row;
        const bool number = row->kind == CLI_INT || row->kind == CLI_COUNT || row->kind == CLI_SEED;
        if (number && isdigit((unsigned char)name[1 + (name[1] == '-')])) known = true;
    }
    const int end = check_elsewhere(word, name, n, command);
    if (end >= 0 || known) return end;
    if (letter != NULL)
        return cli_usage_error("\"%s\" is not an option; the value of -%c stands apart: -%c %s", word, name[0], name[0],
                               letter->arg);
    return not_an_option(word, command);
}

/* The next word that getopt will read as an option, NULL if there is none. */
static const char *next_word(int argc, char **argv)
{
    for (int i = optind; i < argc; i++)
        if (argv[i][0] == '-' && argv[i][1] != 0) return strcmp(argv[i], "--") != 0 ? argv[i] : NULL;
    return NULL;
}

/* "1,2,3", or as --ids prints them: "1 2 3 ". */
static int add_ids(cli_ids *list, const cli_option *row, const char *value, const char *source)
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
    if (!isdigit((unsigned char)*value) || id > INT32_MAX || (*sign != '+' && *sign != '-') || end == sign || *end != 0 ||
        isnan(bias) || bias == INFINITY)
        return cli_usage_error("%s is \"%s\", need a token id, + or -, and a number, such as 15043+1 or 15043-inf", source,
                               value);
    spec_logit_bias *more = realloc(o->bias, ((size_t)o->n_bias + 1) * sizeof *more);
    if (more == NULL) return cli_usage_error("out of memory");
    o->bias = more;
    o->bias[o->n_bias++] = (spec_logit_bias){ .token = (int32_t)id, .bias = bias };
    return -1;
}

/* --draft model:DIR is -md DIR, if no other model drafts (settle_model_draft). */
static int set_model_draft(cli_options *o, const char *dir, const char *source)
{
    if (dir[0] == 0) return cli_usage_error("%s is \"model:\", need the directory of a model or a head behind it", source);
    if (o->draft_model != NULL && strcmp(o->draft_model, dir) != 0)
        return cli_usage_error("%s has model:%s and model:%s: one model can draft", source, o->draft_model, dir);
    free(o->draft_model);
    o->draft_model = strdup(dir);
    o->draft_model_from_env = source[0] != '-';
    return o->draft_model != NULL ? -1 : cli_usage_error("out of memory");
}

static int draft_add(cli_options *o, const char *text, const char *source)
{
    if (text[0] != 0 && strspn(text, "0123456789") == strlen(text))
        return cli_usage_error("%s is %s, need a kind of drafter; --spec-draft-n-max %s drafts so many tokens in a row",
                               source, text, text);
    if (strcmp(text, "model") == 0) text = "model:";
    if (strncmp(text, "model:", 6) == 0) return set_model_draft(o, text + 6, source);
    return list_add(&o->draft, &o->draft_from_env, text, source[0] != '-');
}

/* What the environment named is forgotten with the first drafter of the command line. */
static void forget_drafts_of_env(cli_options *o)
{
    if (o->draft_from_env) free(o->draft), o->draft = NULL, o->draft_from_env = false;
    if (o->draft_model_from_env) free(o->draft_model), o->draft_model = NULL, o->draft_model_from_env = false;
}

/* Drafters with ; between them. */
static int drafts_add(cli_options *o, const char *texts, const char *source)
{
    char *copy = strdup(texts), *rest = copy, *text;
    int end = copy != NULL ? -1 : cli_usage_error("out of memory");
    if (source[0] == '-') forget_drafts_of_env(o);
    while (end < 0 && (text = strsep(&rest, ";")) != NULL) end = draft_add(o, text, source);
    free(copy);
    return end;
}

static int set_text(const char **field, const cli_option *row, const char *value, const char *source)
{
    if (value[0] == 0 && row->letter != 'p') return cli_usage_error("%s is empty, need %s", source, row->arg);
    *field = row->kind == CLI_TO && strcmp(value, "-") == 0 ? CLI_STDOUT : value;
    return -1;
}

static int stop_add(cli_options *o, const char *value)
{
    const char **more = realloc(o->stop, ((size_t)o->n_stop + 1) * sizeof *more);
    if (more == NULL) return cli_usage_error("out of memory");
    o->stop = more;
    o->stop[o->n_stop++] = value;
    return -1;
}

/* One of the row's words: its number, or the word itself. */
static int set_word(void *field, const cli_option *row, const char *value, const char *source)
{
    const int number = cli_word_number(row->arg, value, strlen(value));
    if (number < 0) return cli_usage_error("%s is \"%s\", need one of %s", source, value, row->arg);
    if (row->kind == CLI_CHOICE) *(int32_t *)field = number;
    else *(const char **)field = value;
    return -1;
}

/* Did strto... read all of the value? */
static bool is_number(const char *value, const char *end)
{
    return end != value && *end == 0 && !isspace((unsigned char)*value);
}

static int set_seed(uint64_t *field, const char *value, const char *source)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long n = strtoull(value, &end, 10);
    if (!is_number(value, end)) return cli_usage_error("%s is \"%s\", need a whole number", source, value);
    if (errno != 0 || *value == '-') /* strtoull takes a minus and wraps */
        return cli_usage_error("%s is %s, need 0 to %llu: each gives its own text, and none a random one", source, value,
                               (unsigned long long)UINT64_MAX);
    *field = n;
    return -1;
}

/* A whole number in the row's range; of CLI_COUNT -1 is no limit. */
static int set_int(int32_t *field, const cli_option *row, const char *value, const char *source)
{
    char *end = NULL;
    errno = 0;
    const long long n = strtoll(value, &end, 10);
    const bool no_limit = row->kind == CLI_COUNT && n == -1;
    if (!is_number(value, end)) return cli_usage_error("%s is \"%s\", need a whole number", source, value);
    if (!no_limit && (errno != 0 || (double)n < row->min || (double)n > row->max))
        return cli_usage_error("%s is %s, need %s%.0f to %.10g", source, value, row->kind == CLI_COUNT ? "-1 or " : "", row->min,
                               row->max);
    *field = no_limit ? INT32_MAX : (int32_t)n;
    return -1;
}

static int set_real(double *field, const cli_option *row, const char *value, const char *source)
{
    char *end = NULL;
    const double x = strtod(value, &end);
    if (!is_number(value, end)) return cli_usage_error("%s is \"%s\", need a number", source, value);
    if (!isfinite(x) || x < row->min || x > row->max)
        return cli_usage_error("%s is %s, need %g to %g", source, value, row->min, row->max);
    *field = x;
    return -1;
}

/* --spec-draft-n-max K is --tree chain:K. */
static int chain_add(cli_options *o, const cli_option *row, const char *value, const char *source)
{
    char chain[32];
    int32_t k = 0;
    const int end = set_int(&k, row, value, source);
    if (end >= 0) return end;
    snprintf(chain, sizeof chain, "chain:%d", (int)k);
    return tree_add(o, chain, source[0] != '-');
}

/* Stores `value` where the row says. `source` names it in messages: "--temp" or "SPEC_TEMP". */
static int option_set(cli_options *o, const cli_option *row, const char *value, const char *source)
{
    void *field = (char *)o + row->offset;
    switch (row->kind) {
    case CLI_FLAG:
        *(bool *)field = true;
        return -1;
    case CLI_TEXT:
    case CLI_TO:
        return set_text(field, row, value, source);
    case CLI_TEXTS:
        return stop_add(o, value);
    case CLI_CHOICE:
    case CLI_WORD:
        return set_word(field, row, value, source);
    case CLI_RULE:
        return set_rule(field, value, source);
    case CLI_TREES:
        return tree_add(o, value, source[0] != '-');
    case CLI_DRAFTS:
        return drafts_add(o, value, source);
    case CLI_SEED:
        return set_seed(field, value, source);
    case CLI_IDS:
        return add_ids(field, row, value, source);
    case CLI_BIAS:
        return bias_add(o, value, source);
    case CLI_CHAIN:
        return chain_add(o, row, value, source);
    case CLI_COUNT:
    case CLI_INT:
        return set_int(field, row, value, source);
    case CLI_REAL:
        return set_real(field, row, value, source);
    }
    return CLI_USAGE;
}

/* What the command line asks of drafts, and nothing drafts: an option that would do nothing is refused. The environment may
 * say it, for the runs that draft. */
static int check_drafts(const cli_options *o, const bool *given)
{
    static const char *const of_model[] = { "tree", "spec-draft-n-max", "draft-temp", "draft-vocab", "draft-state", "draft-resample",
                                            "draft-resample-left", "draft-resample-across", "draft-token-info" };
    static const char *const of_any[] = { "adapt", "draft-combine" };
    static const char *const of_resample[] = { "draft-resample-left", "draft-resample-across" };
    for (size_t i = 0; i < sizeof of_resample / sizeof of_resample[0] && o->draft_resample == 0; i++)
        if (given[row_of(of_resample[i])] && o->model_draft != NULL)
            return cli_usage_error("--%s is for what --draft-resample N adds, and N is 0", of_resample[i]);
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

/* Escapes as C has them, in place: the text gets no longer. */
static int unescape(char *text, const char *source)
{
    static const char letters[] = "nrt\"'\\", bytes[] = "\n\r\t\"'\\";
    char *to = text;
    for (const char *at = text; *at != 0;) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        const char *letter = at[1] != 0 ? strchr(letters, at[1]) : NULL;
        unsigned int byte = 0;
        int n = 0;
        if (letter != NULL)
            byte = (unsigned char)bytes[letter - letters], n = 2;
        else if (at[1] == 'x' && isxdigit((unsigned char)at[2]) && isxdigit((unsigned char)at[3]))
            sscanf(at + 2, "%2x", &byte), n = 4;
        if (byte == 0)
            return cli_usage_error("%s has \"%.4s\", need \\n, \\r, \\t, \\\", \\', \\\\ or \\x01 to \\xff", source, at);
        *to++ = (char)byte;
        at += n;
    }
    *to = 0;
    return -1;
}

/* -e: what was typed on the command line. These strings are argv's, which is the program's to change. */
static int unescape_texts(cli_options *o)
{
    int end = o->prompt != NULL ? unescape((char *)o->prompt, "-p") : -1;
    for (int32_t i = 0; i < o->n_stop && end < 0; i++) end = unescape((char *)o->stop[i], "--stop");
    return end;
}

static int check_ngram(const cli_options *o)
{
    if (o->n_word == 0 || strcmp(o->words[0], "build") != 0)
        return cli_usage_error("ngram %s: need spec ngram build CORPUS... -m DIR -o FILE", o->n_word > 0 ? o->words[0] : "alone");
    if (o->model == NULL && o->tokenizer == NULL)
        return cli_usage_error("whose tokens? Name the model that the table is for with -m DIR, or its --tokenizer");
    if (o->n_word == 1) return cli_usage_error("no corpus: name its files behind build (- for stdin)");
    if (o->output == NULL) return cli_usage_error("no table: name one with -o FILE");
    return -1;
}

/* given [cli_n_option]: the options that the command line has */
static int check_together(cli_options *o, cli_command command, const bool *given)
{
    if (command == CLI_TOP) return -1;
    if (command == CLI_NGRAM) return check_ngram(o);
    if (command == CLI_CONVERT && o->model != NULL && o->output == NULL)
        return cli_usage_error("no file to write: name one with -o FILE.gguf");
    if (o->model == NULL) return cli_usage_error("no model: name its directory or GGUF file, or give it with -m DIR");
    if (command == CLI_CONVERT) return -1;
    o->draft_past_from_env = !given[row_of("draft-past")];
    if (o->json && o->json_lines) return cli_usage_error("--json and --json-lines are both given, need one");
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
    const int end = o->escape ? unescape_texts(o) : -1;
    return end >= 0 ? end : check_drafts(o, given);
}

enum { FIRST_LONG = 256, MAX_NAME = 4 * CLI_MAX_OPTION };

/* What getopt is to know. A long option's value is FIRST_LONG and its row's number. */
typedef struct getopt_tables {
    struct option longs[MAX_NAME + 1];
    char letters[2 * CLI_MAX_OPTION + 2];
    size_t n_long, n_letter;
    char names[MAX_NAME * 8];
    size_t n_name;
} getopt_tables;

static void add_names(getopt_tables *t, const cli_option *row, const char *words, int value)
{
    while (words != NULL) {
        const size_t n = strcspn(words, "|");
        char *name = t->names + t->n_name;
        memcpy(name, words, n);
        name[n] = 0;
        t->n_name += n + 1;
        t->longs[t->n_long++] = (struct option){ name, row->arg != NULL ? required_argument : no_argument, NULL, value };
        words = words[n] != 0 ? words + n + 1 : NULL;
    }
}

static void getopt_tables_fill(getopt_tables *t, cli_command command)
{
    *t = (getopt_tables){ .letters = ":", .n_letter = 1 }; /* what is wrong we say ourselves */
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        if (!is_of(row, command)) continue;
        add_names(t, row, row->name, FIRST_LONG + (int)i);
        add_names(t, row, row->alias, FIRST_LONG + (int)i);
        if (row->letter != 0) t->letters[t->n_letter++] = row->letter;
        if (row->letter != 0 && row->arg != NULL) t->letters[t->n_letter++] = ':';
    }
}

/* The row of what getopt found, or could not take (optopt); NULL: none. */
static const cli_option *row_found(int found, cli_command command)
{
    if (found >= FIRST_LONG) return &cli_option_rows[found - FIRST_LONG];
    for (size_t i = 0; i < cli_n_option && found != 0; i++)
        if (found == cli_option_rows[i].letter && is_of(&cli_option_rows[i], command)) return &cli_option_rows[i];
    return NULL;
}

static int option_error(int found, const char *word, cli_command command)
{
    const cli_option *row = row_found(optopt, command);
    if (row != NULL && found == ':') return cli_usage_error("\"%s\" needs an argument: %s", word, row->arg);
    if (row != NULL) return cli_usage_error("\"%s\" takes no argument", word);
    return not_an_option(word, command);
}

static int read_environment(cli_options *o, cli_command command)
{
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *row = &cli_option_rows[i];
        const char *value = row->env != NULL && is_of(row, command) ? getenv(row->env) : NULL;
        const int end = value != NULL && value[0] != 0 ? option_set(o, row, value, row->env) : -1;
        if (end >= 0) return end;
    }
    return -1;
}

/* given [cli_n_option]: receives which options were there */
static int read_words(cli_options *o, cli_command command, int argc, char **argv, bool *given)
{
    getopt_tables tables;
    getopt_tables_fill(&tables, command);
    opterr = 0;
    for (;;) {
        const char *word = next_word(argc, argv);
        const int refused = word != NULL ? check_word(word, command) : -1;
        if (refused >= 0) return refused;
        const int found = getopt_long_only(argc, argv, tables.letters, tables.longs, NULL);
        if (found == -1) return -1;
        if (found == '?' || found == ':') return option_error(found, word, command);
        const cli_option *row = row_found(found, command);
        char source[40];
        snprintf(source, sizeof source, "--%s", row->name);
        given[row - cli_option_rows] = true;
        const int end = option_set(o, row, optarg, source);
        if (end >= 0) return end;
    }
}

/* Words that are no options: the model and, of tree, the model that drafts, where no option gave them. */
static int read_places(cli_options *o, cli_command command, int argc, char **argv, const bool *given)
{
    for (int i = optind; i < argc; i++)
        if (argv[i][0] == 0) return cli_usage_error("an empty word is not expected here: a variable without a value?");
    if (command == CLI_NGRAM) {
        o->words = argv + optind, o->n_word = argc - optind;
        return -1;
    }
    if (command != CLI_TOP && optind < argc && !given[row_of("model")]) o->model = argv[optind++];
    if (command == CLI_TREE && optind < argc && !given[row_of("model-draft")]) o->model_draft = argv[optind++];
    if (optind == argc) return -1;
    const char *hint = command == CLI_RUN       ? ": the prompt stands behind -p, a drafter behind -md"
                       : command == CLI_CONVERT ? ": the file to write stands behind -o"
                                                : "";
    return cli_usage_error("\"%s\" is not expected here%s", argv[optind], hint);
}

/* One model drafts: that of -md (or the second word of tree), or that of --draft model:DIR. One that the command line names wins
 * over one of the environment. of_env: what SPEC_MODEL_DRAFT says */
static int settle_model_draft(cli_options *o, const char *of_env)
{
    const bool from_env = o->model_draft == of_env;
    if (o->draft_model == NULL) return -1;
    if (o->model_draft != NULL && from_env == o->draft_model_from_env && strcmp(o->model_draft, o->draft_model) != 0)
        return cli_usage_error("%s %s and %s model:%s: one model can draft", from_env ? "SPEC_MODEL_DRAFT" : "-md", o->model_draft,
                               from_env ? "SPEC_DRAFT" : "--draft", o->draft_model);
    if (o->model_draft == NULL || from_env) o->model_draft = o->draft_model;
    return -1;
}

int cli_options_parse(cli_options *o, cli_command command, int argc, char **argv)
{
    *o = (cli_options){ .backend = "cpu", .n_logprobs = -1, .n_step = 200, .temp = -1, .top_k = -1, .top_p = -1, .min_p = -1,
                        .repeat_penalty = -1, .repeat_last_n = -1 };
    if (command == CLI_TREE) o->n_predict = INT32_MAX;
    bool given[CLI_MAX_OPTION] = { false };
    int end = read_environment(o, command);
    const char *const of_env = o->model_draft;
    if (end < 0) end = read_words(o, command, argc, argv, given);
    if (end < 0 && (o->help || o->help_lab)) {
        cli_help(stdout, command, o->help_lab);
        return CLI_OK;
    }
    if (end < 0) end = read_places(o, command, argc, argv, given);
    if (end < 0) end = settle_model_draft(o, of_env);
    return end >= 0 ? end : check_together(o, command, given);
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
    free(o->draft_model);
    o->stop = NULL;
    o->tree = o->draft = o->draft_model = NULL;
}
