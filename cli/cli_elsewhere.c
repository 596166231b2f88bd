/* cli_elsewhere.c - options of other programs that people try here, llama.cpp's above all, and what to do instead. Libraries write theirs
 * with underscores, which count as dashes. */
#include <string.h>

#include "cli/cli_table.h"

static const struct {
    const char *names, *answer; /* names without dashes in front, "a|b" */
} rows[] = {
    /* the device */
    { "ngl|gpu-layers|n-gpu-layers|ngld|gpu-layers-draft|n-gpu-layers-draft|sm|split-mode|ts|tensor-split|mg|main-gpu|nkvo|no-kv-offload|"
      "ot|override-tensor|cmoe|cpu-moe|ncmoe|n-cpu-moe|device-map|tensor-parallel-size|tp",
      "the whole model goes to the device of --backend" },
    { "dev|device|devd|device-draft|gpu", "--backend NAME says where target and drafter are; --list-devices lists what there is" },
    { "td|threads-draft|tb|threads-batch|tbd|threads-batch-draft", "-t N says it for all passes" },
    { "C|cpu-mask|Cr|cpu-range|cpu-strict|prio|poll", "-t N says how many threads; on which processors is for taskset to say" },
    { "numa", "on which processors and memory it runs is for numactl to say" },
    { "gpu-memory-utilization|swap-space|cpu-offload-gb|max-num-seqs",
      "a session takes what its context needs: -c N says how much, spec info tells the bytes" },
    { "enforce-eager|use-cache|trust-remote-code", "nothing of that is done otherwise, and no code of a model is run: leave it out" },
    { "b|batch-size|ub|ubatch-size", "prompts are divided as the device wants it: leave it out" },
    { "fa|flash-attn|attn-implementation", "there is one form of attention: leave it out" },
    { "ctk|cache-type-k|ctv|cache-type-v|ctkd|ctvd|kv-cache-dtype", "the KV cache has the type of --dtype" },
    { "mlock|no-mmap|mmap", "weights are read once, and files are not kept: leave it out" },
    /* the model */
    { "hf|hfr|hf-repo|hff|hf-file|hft|hf-token|hfd|hfrd|hf-repo-draft|mu|model-url",
      "nothing is downloaded: give the model's directory with -m DIR" },
    { "fp16|bf16|half|torch-dtype|load-in-4bit|load-in-8bit|quantization|quantize",
      "--dtype is the compute type; --weights q8_0, q4_k, ... quantises" },
    { "rope-scaling|rope-scale|rope-freq-base|rope-freq-scale|yarn-orig-ctx|yarn-ext-factor|yarn-attn-factor|yarn-beta-slow|yarn-beta-fast",
      "config.json says how positions turn" },
    { "override-kv|check-tensors", "what the model's files say is honoured, or refused by name" },
    { "lora|lora-scaled|control-vector|control-vector-scaled", "adapters are not read: merge them into the weights" },
    { "mm|mmproj|mmproj-url|image|audio", "prompts are text" },
    /* drafts */
    { "assistant-model|draft-model|speculative-model", "-md DIR names the model that drafts" },
    { "speculative-config|speculative-algorithm", "-md DIR names the model or the head that drafts, --draft NAME another drafter" },
    { "num-assistant-tokens|num-speculative-tokens|speculative-num-draft-tokens", "--spec-draft-n-max K drafts K tokens in a row" },
    { "draft-min|draft-n-min|spec-draft-n-min|draft-p-min|spec-draft-p-min|draft-p-split|assistant-confidence-threshold",
      "a tree says how much is drafted: --tree dyspec-threshold:T,N drafts what is likely enough" },
    { "cd|ctx-size-draft", "the drafter has the context of -c N" },
    { "lookup-cache-static|lcs|lookup-cache-dynamic|lcd|spec-type|spec-ngram-size-n|spec-ngram-size-m|"
      "spec-ngram-min-hits|prompt-lookup-num-tokens|prompt-lookup-max|prompt-lookup-min",
      "--draft ngram:N,M drafts from the text so far, --draft png:FILE also from a corpus (spec ngram build)" },
    /* the prompt and the chat */
    { "cnv|conversation|sys|system-prompt|chat-template|chat-template-file|jinja|i|interactive|if|interactive-first|mli|multiline-input|"
      "in-prefix|in-suffix|reasoning-format|reasoning-budget",
      "there is no chat: write the model's template into the prompt, with --parse-special" },
    { "no-cnv|no-conversation|st|single-turn|no-jinja", "there is no chat to turn off: leave it out" },
    { "bf|binary-file", "-f FILE reads the prompt as it is" },
    { "no-escape", "text is taken as it is: leave it out; -e turns escapes on" },
    { "prompt-cache|prompt-cache-all|prompt-cache-ro|slot-save-path",
      "the program keeps no sequences; a program of yours can (examples/stream.c)" },
    { "host|port|np|parallel|n-parallel|cb|cont-batching|no-cont-batching|embedding|embeddings|reranking|pooling|"
      "slots|metrics|api-key",
      "there is no server; a program of yours can have many sequences in a session (examples/batch.c)" },
    /* the text */
    { "max-tokens|max-new-tokens|max-length|num-predict", "-n N is how many tokens there are at most" },
    { "n-ctx|context|context-size|context-length|max-model-len|max-seq-len", "-c N is how many tokens of context there is room for" },
    { "keep|context-shift", "the context never shifts: generation ends where it is full" },
    { "min-tokens|min-new-tokens|min-length", "the model's end tokens end the text; --ignore-eos goes on behind them" },
    { "r|reverse-prompt|stop-strings|stop-sequences", "--stop TEXT ends before TEXT" },
    { "stop-token-ids|eos-token-id", "--end-id ID ends the text as the model's own end tokens do" },
    { "temperature|do-sample", "--temp T is the temperature; above 0 it samples" },
    { "repetition-penalty", "it is called --repeat-penalty" },
    { "no-repeat-ngram-size|encoder-repetition-penalty|diversity-penalty",
      "--repeat-penalty, --presence-penalty and --frequency-penalty make tokens rarer that came before" },
    { "num-beams|num-beam-groups|num-return-sequences|best-of|length-penalty|early-stopping",
      "there is one text, greedy or sampled; --tree beam:M,N drafts with beams" },
    { "dry-multiplier|dry-base|dry-allowed-length|dry-penalty-last-n|dry-sequence-breaker|mirostat|mirostat-lr|mirostat-ent|typical|"
      "typical-p|epsilon-cutoff|eta-cutoff|penalty-alpha|adaptive-target|xtc-probability|xtc-threshold|top-n-sigma|samplers|sampling-seq|"
      "dynatemp-range|dynatemp-exp",
      "sampling has --temp, --top-k, --top-p and --min-p" },
    { "grammar|grammar-file|j|json-schema|json-schema-file|jf|guided-json|guided-regex|guided-choice|guided-grammar",
      "output has no grammar; a program of yours can say which tokens may follow (mask in spec_request)" },
    { "ppl|perplexity|hellaswag|winogrande|multiple-choice|kl-divergence",
      "texts are written, not rated; --logprobs N tells the log-probability of each token that is written" },
    /* what is printed */
    { "log-file|lv|verbosity|log-verbosity|verbose-prompt", "-v prints the library's log, on stderr" },
    { "stream|quiet|silent", "the text alone goes to stdout, as it comes, and the report to stderr: leave it out" },
    { "no-display-prompt|color|simple-io|warmup|no-warmup|log-disable|no-perf|no-context-shift|offline|swa-full|kv-unified|kvu|no-repack",
      "so it is here: leave it out" },
};

const char *cli_elsewhere(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (cli_word_number(rows[i].names, name, strlen(name)) >= 0) return rows[i].answer;
    return NULL;
}
