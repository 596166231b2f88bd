/* cli_table.c - the commands and options of the program. */
#include <string.h>

#include "cli/cli_table.h"

const cli_command_row cli_command_rows[] = {
    { CLI_RUN, "run", "DIR [-md DIR] -p TEXT | -f FILE | --prompt-ids IDS", "generate text" },
    { CLI_TREE, "tree", "DIR [DIR] -p TEXT --html FILE", "write a page that shows the drafted trees" },
    { CLI_INFO, "info", "DIR", "tell what a model is, and what a session takes" },
    { CLI_NGRAM, "ngram", "build CORPUS... -m DIR -o FILE", "count the n-grams of texts, for --draft png:FILE" },
    { CLI_CONVERT, "convert", "DIR|FILE -o FILE.gguf [--type TYPE]", "write a model as a GGUF file" },
    { CLI_TOP, NULL, "--list-devices | --version | --help", "" },
};
const size_t cli_n_command = sizeof cli_command_rows / sizeof cli_command_rows[0];

const cli_status_row cli_status_rows[] = {
    { CLI_OK, "success" },
    { CLI_FAILURE, "failure: the reason is on stderr" },
    { CLI_USAGE, "wrong usage" },
    { CLI_DIFFERS, "--check found a difference" },
    { 129, "stopped by SIGHUP (its terminal was closed), after the report of what there was" },
    { 130, "stopped by SIGINT (Ctrl-C), likewise" },
    { 143, "stopped by SIGTERM, likewise" },
};
const size_t cli_n_status = sizeof cli_status_rows / sizeof cli_status_rows[0];

#define AT(field) offsetof(cli_options, field)
#define DECODE (CLI_RUN | CLI_TREE)
#define WORK (CLI_RUN | CLI_TREE | CLI_INFO)
#define DEVICE (CLI_RUN | CLI_TREE | CLI_INFO | CLI_TOP)
#define ALL (DEVICE | CLI_NGRAM | CLI_CONVERT)
#define MAX_INT 2147483647.0

const cli_option cli_option_rows[] = {
    { "model", 'm', NULL, "DIR", "SPEC_MODEL", WORK | CLI_NGRAM | CLI_CONVERT, CLI_TEXT, AT(model), 0, 0,
      "the model: a Hugging Face directory or a GGUF file" },
    { "model-draft", 0, "md", "DIR", "SPEC_MODEL_DRAFT", WORK, CLI_TEXT, AT(model_draft), 0, 0,
      "the model that drafts, or a head; none: plain decoding" },
    { "tokenizer", 0, NULL, "PATH", "SPEC_TOKENIZER", WORK | CLI_NGRAM | CLI_CONVERT, CLI_TEXT, AT(tokenizer), 0, 0,
      "tokenizer.json, tokenizer.model, their directory or a GGUF file, if not the model's" },
    { "prompt", 'p', NULL, "TEXT", NULL, DECODE, CLI_TEXT, AT(prompt), 0, 0, "the prompt" },
    { "file", 'f', NULL, "FILE", NULL, DECODE, CLI_TEXT, AT(file), 0, 0,
      "read the prompt from FILE, as it is (- for stdin)" },
    { "prompt-ids", 0, NULL, "ID,ID,...", NULL, DECODE, CLI_IDS, AT(prompt_ids), 0, MAX_INT,
      "the prompt as token ids, to which nothing is added; the way for a model without a tokenizer" },
    { "escape", 'e', NULL, NULL, NULL, DECODE, CLI_FLAG, AT(escape), 0, 0,
      "\\n, \\t, \\r, \\\", \\', \\\\ and \\xHH in -p and --stop mean what they do in C" },
    { "n-predict", 'n', "predict", "N", "SPEC_N_PREDICT", DECODE, CLI_COUNT, AT(n_predict), 1, MAX_INT,
      "generate at most N tokens; -1: until the text or the context ends (128; tree: what the steps give)" },
    { "ctx-size", 'c', NULL, "N", "SPEC_CTX_SIZE", WORK, CLI_INT, AT(n_ctx), 0, MAX_INT,
      "tokens of context; 0 is the model's own limit (0)" },
    { "temp", 0, NULL, "T", "SPEC_TEMP", DECODE, CLI_REAL, AT(temp), 0, 1e6, "temperature; 0 is greedy (0)" },
    { "top-k", 0, NULL, "K", "SPEC_TOP_K", DECODE, CLI_INT, AT(top_k), 0, MAX_INT,
      "sample from the K likeliest; 0 is off (0)" },
    { "top-p", 0, NULL, "P", "SPEC_TOP_P", DECODE, CLI_REAL, AT(top_p), 0, 1,
      "sample from the likeliest that hold mass P; 0 or 1 is off (0)" },
    { "min-p", 0, NULL, "P", "SPEC_MIN_P", DECODE, CLI_REAL, AT(min_p), 0, 1,
      "leave out what is under P times the likeliest; 0 is off (0)" },
    { "seed", 's', NULL, "N", "SPEC_SEED", DECODE, CLI_SEED, AT(seed), 0, 0, "seed of the random numbers (0)" },
    { "dtype", 0, NULL, "auto|f32|bf16|f16", "SPEC_DTYPE", WORK, CLI_CHOICE, AT(dtype), 0, 0,
      "compute type (auto: the file's)" },
    { "weights", 0, NULL, "auto|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k", "SPEC_WEIGHTS", WORK, CLI_CHOICE, AT(weights), 0, 0,
      "quantise matrices while loading, to the blocks of GGUF files of that name (auto: as they are)" },
    { "head-layers", 0, NULL, "rule|file", "SPEC_HEAD_LAYERS", WORK, CLI_CHOICE, AT(head_layers), 0, 0,
      "an EAGLE-3 head reads layers 2, n/2, n-3, or those that its file names (rule)" },
    { "no-bos", 0, NULL, NULL, NULL, DECODE, CLI_FLAG, AT(no_bos), 0, 0, "do not add special tokens to the prompt" },
    { "parse-special", 0, NULL, NULL, NULL, DECODE, CLI_FLAG, AT(parse_special), 0, 0,
      "recognise special tokens written in the prompt (not for untrusted text)" },
    { "ignore-eos", 0, NULL, NULL, NULL, DECODE, CLI_FLAG, AT(ignore_eos), 0, 0,
      "go on after an end-of-text token; with -n -1 to the context's end, which models without attention have by -c alone" },
    { "stop", 0, NULL, "TEXT", NULL, CLI_RUN, CLI_TEXTS, AT(stop), 0, 0,
      "end before TEXT, which may be a special token; may be repeated" },
    { "special", 0, "sp", NULL, NULL, CLI_RUN, CLI_FLAG, AT(keep_special), 0, 0, "write special tokens in the text" },
    { "logprobs", 0, NULL, "N", "SPEC_LOGPROBS", CLI_RUN, CLI_INT, AT(n_logprobs), 0, 20,
      "log-probabilities of each token and of the N likeliest" },
    { "end-id", 0, NULL, "ID,ID,...", NULL, CLI_RUN, CLI_IDS, AT(end_ids), 0, MAX_INT,
      "token ids that end the text as the model's end-of-text tokens do" },
    { "repeat-penalty", 0, NULL, "X", "SPEC_REPEAT_PENALTY", DECODE, CLI_REAL, AT(repeat_penalty), 0, 1e6,
      "divide positive logits of tokens of prompt and output by X, multiply negative ones; 0 or 1 is off (1)" },
    { "presence-penalty", 0, NULL, "X", "SPEC_PRESENCE_PENALTY", DECODE, CLI_REAL, AT(presence_penalty), -1e6, 1e6,
      "subtract X once from logits of tokens of the output (0)" },
    { "frequency-penalty", 0, NULL, "X", "SPEC_FREQUENCY_PENALTY", DECODE, CLI_REAL, AT(frequency_penalty), -1e6, 1e6,
      "and X for each time that they stand there (0)" },
    { "repeat-last-n", 0, NULL, "N", "SPEC_REPEAT_LAST_N", DECODE, CLI_INT, AT(repeat_last_n), -1, MAX_INT,
      "penalties look at the last N tokens; 0: at none, -1: at all (-1)" },
    { "logit-bias", 0, NULL, "TOKEN_ID(+|-)BIAS", NULL, DECODE, CLI_BIAS, AT(bias), 0, MAX_INT,
      "add to a token's logit: 15043+1, or 15043-inf for never; may be repeated" },
    { "generation-config", 0, NULL, NULL, NULL, DECODE, CLI_FLAG, AT(generation_config), 0, 0,
      "begin with what the model's generation_config.json says; options win" },
    { "tree", 0, NULL, "KIND[:ARGS]", "SPEC_TREE", WORK, CLI_TREES, AT(tree), 0, 0,
      "the trees that -md drafts; several (again, or with ; between them) need --adapt (chain:4)" },
    { "draft", 0, NULL, "KIND[:ARGS]", "SPEC_DRAFT", WORK, CLI_DRAFTS, AT(draft), 0, 0,
      "draft without a model; several (again, or with ; between them) stand in front of -md. model:DIR is -md DIR" },
    { "draft-combine", 0, NULL, "first|union|choose", "SPEC_DRAFT_COMBINE", WORK, CLI_CHOICE, AT(draft_combine), 0, 0,
      "several drafters: the first that proposes, all their trees merged, or --adapt's choice (first)" },
    { "draft-past", 0, NULL, "FILE", "SPEC_DRAFT_PAST", CLI_RUN, CLI_TEXT, AT(draft_past), 0, 0,
      "what --draft trie has counted in texts so far: read if FILE is there, written at the end" },
    { "spec-draft-n-max", 0, "draft-max|draft-n", "K", "SPEC_DRAFT_N_MAX", WORK, CLI_CHAIN, AT(tree), 1, 63,
      "means --tree chain:K" },
    { "draft-temp", 0, NULL, "T", "SPEC_DRAFT_TEMP", WORK, CLI_REAL, AT(draft_temp), 0, 1e6,
      "temperature of the draft distribution; 0: the target's, for a greedy target 1 (0)" },
    { "draft-vocab", 0, NULL, "auto|intersection|text", "SPEC_DRAFT_VOCAB", WORK, CLI_CHOICE, AT(draft_vocab), 0, 0,
      "a drafter with another vocabulary: by the tokens of both, or by its text (auto: -v says which and why)" },
    { "draft-resample", 0, NULL, "N", "SPEC_DRAFT_RESAMPLE", WORK, CLI_INT, AT(draft_resample), 0, 255,
      "a Lyanna head: add the N best nodes of a tree from the rows that a rejection has left (0)" },
    { "draft-resample-left", 0, NULL, "R", "SPEC_DRAFT_RESAMPLE_LEFT", WORK, CLI_INT, AT(draft_resample_left), 0, 63,
      "only where more than R rows are left (0)" },
    { "draft-resample-across", 0, NULL, NULL, NULL, WORK, CLI_FLAG, AT(draft_resample_across), 0, 0,
      "sequences of a batch take turns: such a tree in place of the next draft, beside drafts of others" },
    { "draft-token-info", 0, NULL, "factored|collapsed", "SPEC_DRAFT_TOKEN_INFO", WORK, CLI_CHOICE, AT(draft_token_info), 0, 0,
      "a Lyanna head: what it knows of tokens as two factors, or as one table: more memory, fewer bytes per draft (factored)" },
    { "verify", 0, NULL, "RULE", "SPEC_VERIFY", DECODE, CLI_RULE, AT(verify), 0, 0,
      "the rule that accepts drafts; one that would change the model's distribution is refused (auto)" },
    { "adapt", 0, NULL, "off|cost|ucb", "SPEC_ADAPT", DECODE, CLI_CHOICE, AT(adapt), 0, 0,
      "choose among the trees and no draft at all: by step costs and acceptance, or by trying (off)" },
    { "cost-profile", 0, NULL, "FILE", "SPEC_COST_PROFILE", DECODE, CLI_TEXT, AT(cost_profile), 0, 0,
      "step costs of this machine; measured and saved if FILE is not there" },
    { "scan", 0, NULL, "chunked|recurrent", "SPEC_SCAN", WORK | CLI_LAB, CLI_CHOICE, AT(scan), 0, 0,
      "Mamba-2 over a tree: products with a state that lags, or state by state (chunked)" },
    { "advance", 0, NULL, "replay|joint", "SPEC_ADVANCE", WORK | CLI_LAB, CLI_CHOICE, AT(advance), 0, 0,
      "accepted tokens: replayed from the cache, or fed again with the next tree (replay)" },
    { "draft-state", 0, NULL, "replay|per-node", "SPEC_DRAFT_STATE", WORK | CLI_LAB, CLI_CHOICE, AT(draft_state), 0, 0,
      "a recurrent drafter: replays the path to a node, or keeps a state per node (replay)" },
    { "html", 0, NULL, "FILE", NULL, CLI_TREE, CLI_TO, AT(html), 0, 0, "write the page to FILE (- for stdout)" },
    { "steps", 0, NULL, "N", NULL, CLI_TREE, CLI_INT, AT(n_step), 1, CLI_MAX_STEP, "show at most N steps (200)" },
    { "output", 'o', NULL, "FILE", NULL, CLI_NGRAM | CLI_CONVERT, CLI_TO, AT(output), 0, 0,
      "write the table, or the model, to FILE (- for stdout)" },
    { "type", 0, NULL, "f32|f16|bf16|q8_0|q6_k|q5_k|q4_k|q5_k_m|q4_k_m|q5_1|q5_0|q4_1|q4_0", NULL, CLI_CONVERT, CLI_WORD,
      AT(type), 0, 0, "the type of its matrices (q4_k_m)" },
    { "json-field", 0, NULL, "NAME", NULL, CLI_NGRAM, CLI_TEXT, AT(json_field), 0, 0,
      "the field that is the text, of a CORPUS of JSON lines (.jsonl, .ndjson) (text)" },
    { "order", 0, NULL, "N", NULL, CLI_NGRAM, CLI_INT, AT(order), 1, 8, "contexts of 1 to N tokens (3)" },
    { "length", 0, NULL, "K", NULL, CLI_NGRAM, CLI_INT, AT(length), 1, 32, "tokens of what follows them (6)" },
    { "rows", 0, NULL, "N", NULL, CLI_NGRAM, CLI_INT, AT(n_row), 1, 16, "keep the N most frequent that follow a context (4)" },
    { "min-count", 0, NULL, "N", NULL, CLI_NGRAM, CLI_INT, AT(min_count), 1, MAX_INT,
      "leave out what follows a context less often; 1 keeps everything (2)" },
    { "memory", 0, NULL, "MIB", NULL, CLI_NGRAM, CLI_INT, AT(memory), 1, MAX_INT,
      "memory for sorting; what is larger goes to a file beside FILE that has no name (1024)" },
    { "backend", 0, NULL, "NAME", "SPEC_BACKEND", WORK, CLI_TEXT, AT(backend), 0, 0,
      "cpu, cpu:portable, cuda, cuda:1, or a plugin's path (cpu)" },
    { "plugin-dir", 0, NULL, "DIR", "SPEC_PLUGIN_DIR", DEVICE, CLI_TEXT, AT(plugin_dir), 0, 0,
      "where to look for backends first (beside libspec.so)" },
    { "threads", 't', NULL, "N", "SPEC_THREADS", DEVICE | CLI_CONVERT, CLI_INT, AT(n_threads), 0, 4096,
      "CPU threads; 0 is what the process may use (0)" },
    { "json", 0, NULL, NULL, NULL, CLI_RUN | CLI_INFO, CLI_FLAG, AT(json), 0, 0,
      "print one JSON object instead of text and report, and of an error" },
    { "json-lines", 0, NULL, NULL, NULL, CLI_RUN, CLI_FLAG, AT(json_lines), 0, 0,
      "print text as it comes, then the report or the error: a JSON object a line" },
    { "ids", 0, NULL, NULL, NULL, CLI_RUN, CLI_FLAG, AT(ids), 0, 0, "print token ids instead of text" },
    { "check", 0, NULL, NULL, NULL, CLI_RUN, CLI_FLAG, AT(check), 0, 0,
      "also decode plainly; exit 3 if the tokens differ (temperature 0 only)" },
    { "verbose", 'v', NULL, NULL, NULL, ALL, CLI_FLAG, AT(verbose), 0, 0, "print the library's log" },
    { "list-devices", 0, NULL, NULL, NULL, CLI_TOP, CLI_FLAG, AT(list_devices), 0, 0, "list the devices that can be used" },
    { "version", 0, NULL, NULL, NULL, CLI_TOP, CLI_FLAG, AT(version), 0, 0, "print the version" },
    { "help", 'h', NULL, NULL, NULL, ALL, CLI_FLAG, AT(help), 0, 0, "print this help" },
    { "help-lab", 0, NULL, NULL, NULL, DEVICE, CLI_FLAG, AT(help_lab), 0, 0, "print the options of experiments" },
};
_Static_assert(sizeof cli_option_rows / sizeof cli_option_rows[0] <= CLI_MAX_OPTION, "more options than parsing has room for");
const size_t cli_n_option = sizeof cli_option_rows / sizeof cli_option_rows[0];

int cli_word_number(const char *words, const char *word, size_t n)
{
    for (int i = 0; words != NULL; i++) {
        const size_t length = strcspn(words, "|");
        if (length == n && strncmp(words, word, n) == 0) return i;
        words = words[length] != 0 ? words + length + 1 : NULL;
    }
    return -1;
}
