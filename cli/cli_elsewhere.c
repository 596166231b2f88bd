/* cli_elsewhere.c - options of other programs (llama.cpp's above all) that people try here, and what to do instead. */
#include "cli/cli_table.h"

static const struct {
    const char *names, *answer; /* names without dashes, "a|b" */
} rows[] = {
    { "ngl|gpu-layers|n-gpu-layers|ngld|gpu-layers-draft|n-gpu-layers-draft|sm|split-mode|ts|tensor-split|mg|main-gpu",
      "the whole model goes to the device of --backend" },
    { "dev|device|devd|device-draft", "--backend NAME says where target and drafter are; --list-devices lists what there is" },
    { "cnv|conversation|sys|system-prompt|chat-template|chat-template-file|jinja|i|interactive|if|interactive-first",
      "there is no chat: write the model's template into the prompt, with --parse-special" },
    { "no-cnv|no-conversation|st|single-turn|no-jinja", "there is no chat to turn off: leave it out" },
    { "hf|hfr|hf-repo|hff|hf-file|hft|hf-token|hfd|hfrd|hf-repo-draft|mu|model-url",
      "nothing is downloaded: give the model's directory with -m DIR" },
    { "draft-min|draft-n-min|spec-draft-n-min|draft-p-min|spec-draft-p-min|draft-p-split",
      "a tree says how much is drafted: --tree dyspec-threshold:T,N drafts what is likely enough" },
    { "cd|ctx-size-draft", "the drafter has the context of -c N" },
    { "td|threads-draft|tb|threads-batch|tbd|threads-batch-draft", "-t N says it for all passes" },
    { "lookup-cache-static|lcs|lookup-cache-dynamic|lcd|spec-type",
      "--draft ngram:N,M drafts from the text so far, --draft png:FILE also from a corpus (spec ngram build)" },
    { "no-escape", "text is taken as it is: leave it out; -e turns escapes on" },
    { "r|reverse-prompt", "--stop TEXT ends before TEXT" },
    { "no-display-prompt|color|simple-io|no-warmup|log-disable|no-perf|no-context-shift",
      "so it is here: leave it out" },
    { "keep|context-shift", "the context never shifts: generation ends where it is full" },
    { "b|batch-size|ub|ubatch-size", "prompts are divided as the device wants it: leave it out" },
    { "fa|flash-attn", "there is one form of attention: leave it out" },
    { "ctk|cache-type-k|ctv|cache-type-v|ctkd|ctvd", "the KV cache has the type of --dtype" },
    { "mlock|no-mmap|mmap|numa", "weights are read once, and files are not kept: leave it out" },
    { "rope-scaling|rope-scale|rope-freq-base|rope-freq-scale|yarn-orig-ctx", "config.json says how positions turn" },
    { "dry-multiplier|mirostat|typical|"
      "xtc-probability|top-n-sigma|samplers|sampling-seq|dynatemp-range",
      "sampling has --temp, --top-k, --top-p and --min-p" },
    { "grammar|grammar-file|j|json-schema|json-schema-file|jf", "output has no grammar" },
    { "lora|lora-scaled|control-vector", "adapters are not read: merge them into the weights" },
};

const char *cli_elsewhere(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (cli_word_number(rows[i].names, name, n) >= 0) return rows[i].answer;
    return NULL;
}
