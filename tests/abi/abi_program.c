/* abi_program.c - uses every public struct that grows, and prints what came of it. Compiled with the headers as programs of other
 * versions know them (abi_headers.py) and linked with today's library, it must print the same. What lies behind a struct, or in
 * fields that the library does not know, is garbage: it must be neither read nor written. Last fields are not used: an older
 * program lacks them.
 *
 *     abi_program TARGET DRAFTER FILE     FILE is written
 */
#include <spec_trees.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi_structs.h"

/* --- structs, and garbage behind what both sides know --- */

enum { BEHIND = 128, GARBAGE = 0xA5 };

static size_t known(size_t size, const char *name)
{
    const size_t library = spec_struct_size(name);
    if (library == 0) fprintf(stderr, "spec_struct_size does not know %s\n", name), exit(1);
    return size < library ? size : library;
}

static void *begin(void *room, size_t n_room, size_t size, const char *name)
{
    const size_t n = known(size, name);
    memset(room, GARBAGE, n_room);
    spec_struct_init(room, size);
    memset((unsigned char *)room + n, GARBAGE, n_room - n);
    return room;
}

static void expect_garbage(const void *room, size_t n_room, size_t size, const char *name)
{
    for (size_t i = known(size, name); i < n_room; i++)
        if (((const unsigned char *)room)[i] != GARBAGE) fprintf(stderr, "%s: byte %zu was written\n", name, i), exit(1);
}

#define STRUCT(type, name)                                                                                                     \
    struct { type it; unsigned char behind[BEHIND]; } name##_room;                                                             \
    type *const name = begin(&name##_room, sizeof name##_room, sizeof(type), #type)
#define UNTOUCHED(type, name) expect_garbage(&name##_room, sizeof name##_room, sizeof(type), #type)

#define OK(call) ok(call, #call)
static void ok(spec_status status, const char *call)
{
    if (status != SPEC_OK) fprintf(stderr, "%s: %s: %s\n", call, spec_status_name(status), spec_last_error()), exit(1);
}

/* --- a backend and its models --- */

static spec_backend *backend;
static spec_model *target, *small;
static int n_pool, n_progress;

static void pool(void *user_data, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    (void)user_data;
    for (int32_t i = 0; i < n; i++) body(arg, i);
    n_pool++;
}

static int progress(void *user_data, double fraction)
{
    ++*(int *)user_data;
    return fraction < 0;
}

static void open_models(char **paths)
{
    STRUCT(spec_backend_params, bp);
    bp->n_threads = 2, bp->parallel_for = pool;
    OK(spec_backend_open(&backend, "cpu", bp));
    STRUCT(spec_model_params, mp);
    mp->progress = progress, mp->progress_user_data = &n_progress;
    OK(spec_model_open(&target, backend, paths[0], mp));
    OK(spec_model_open(&small, backend, paths[1], NULL));
    STRUCT(spec_model_info, info);
    OK(spec_model_get_info(target, info, 4));
    UNTOUCHED(spec_model_info, info);
    printf("model: %s, %d ids, %d layers, %d ends, %llu parameters, %llu bytes a token, weights %d, progress %d\n", info->family,
           (int)info->n_vocab, (int)info->n_layer, (int)info->n_eos, (unsigned long long)info->n_parameters,
           (unsigned long long)info->bytes_kv_token, (int)info->weights, n_progress > 0);
}

/* --- texts --- */

static int on_text(void *user_data, const char *text, size_t n_text, const int32_t *ids, size_t n_ids)
{
    (void)text, (void)ids;
    *(size_t *)user_data += n_text + n_ids;
    return 0;
}

static void print_result(const spec_result *r)
{
    printf("%s [%s, %d prompt tokens, %zu ids in %lld steps, %lld drafted, %lld accepted, 2 of them in %lld]\n", r->text,
           spec_stop_name(r->stop), (int)r->n_prompt, r->n_ids, (long long)r->n_step, (long long)r->n_drafted,
           (long long)r->n_accepted, (long long)r->accepted[2]);
}

static void generate(spec_session *s, const char *prompt)
{
    static const char *const stop[] = { "dog", " with" };
    const spec_logit_bias bias[] = { { 11, -2.0f } };
    size_t n_told = 0;
    STRUCT(spec_request, r);
    r->n_predict = 40, r->stop = stop, r->n_stop = 2, r->bias = bias, r->n_bias = 1, r->frequency_penalty = 0.1f;
    r->sampling.temperature = 0.8f, r->sampling.seed = 3, r->logprobs = 1, r->on_text = on_text, r->text_user_data = &n_told;
    STRUCT(spec_result, result);
    OK(spec_generate(s, result, prompt, strlen(prompt), r));
    print_result(result);
    printf("told %zu, first log-probability %.4f\n", n_told, result->logprobs[0].logprob);
    spec_result_free(result);
    OK(spec_generate(s, result, "The", 3, NULL));
    print_result(result);
    spec_result_free(result);
    UNTOUCHED(spec_request, r);
    UNTOUCHED(spec_result, result);
}

static void print_step(const spec_step_result *r)
{
    printf("%.*s [%d tokens, %d of %d accepted, stop %d, prompt %d, drafter %d, tree %d]\n", (int)r->n_text, r->text,
           (int)r->n_tokens, (int)r->n_accepted, (int)r->n_drafted, (int)r->stop, (int)r->n_prompt_left, (int)r->drafter,
           (int)r->tree);
}

/* Two sequences side by side, one of which goes on. */
static void step(spec_session *s)
{
    const int32_t prompt[] = { 300, 12, 45, 200, 301 };
    const spec_step_result *results[2];
    int32_t seqs[2];
    STRUCT(spec_request, r);
    r->n_predict = 9, r->ignore_eos = 1;
    OK(spec_sequence_add(s, &seqs[0], prompt, 5, r));
    OK(spec_sequence_add(s, &seqs[1], prompt, 3, NULL));
    for (int i = 0; i < 4; i++) {
        OK(spec_step(s, results, seqs, 2));
        print_step(results[0]), print_step(results[1]);
    }
    r->sampling.temperature = 1, r->n_predict = 12;
    OK(spec_sequence_append(s, seqs[0], prompt, 2, r));
    OK(spec_sequence_set_request(s, seqs[1], r));
    OK(spec_step(s, results, seqs, 2));
    print_step(results[0]), print_step(results[1]);
    STRUCT(spec_result, result);
    OK(spec_generate_more(s, result, seqs[1], " and", 4, r));
    print_result(result);
    spec_result_free(result);
    UNTOUCHED(spec_result, result);
    OK(spec_sequence_remove(s, seqs[0]));
    OK(spec_sequence_remove(s, seqs[1]));
}

/* Takes the drafter. */
static void run_session(spec_drafter *drafter)
{
    spec_session *s;
    STRUCT(spec_session_params, p);
    p->n_ctx = 256, p->n_seq = 2, p->drafters = &drafter, p->n_drafter = 1, p->combine = SPEC_DRAFT_CHOOSE;
    STRUCT(spec_tokenizer_info, tokens);
    OK(spec_tokenizer_get_info(spec_model_tokenizer(target), tokens));
    UNTOUCHED(spec_tokenizer_info, tokens);
    printf("tokenizer: %d ids, %d begins, %d ends, pieces of %zu bytes\n", (int)tokens->n_vocab, (int)tokens->bos, (int)tokens->eos,
           tokens->piece_max);
    STRUCT(spec_memory, memory);
    OK(spec_session_estimate(memory, target, NULL, p));
    OK(spec_session_open(&s, target, NULL, p));
    STRUCT(spec_session_info, info);
    OK(spec_session_get_info(s, info));
    UNTOUCHED(spec_memory, memory);
    UNTOUCHED(spec_session_info, info);
    printf("session: %llu bytes of weights, %llu of state, %llu of caches; %d of %d free, %d tokens\n",
           (unsigned long long)memory->bytes_model, (unsigned long long)memory->bytes_state, (unsigned long long)memory->bytes_kv,
           (int)info->n_seq_free, (int)info->n_seq, (int)info->n_ctx);
    generate(s, "Once upon a time");
    step(s);
    STRUCT(spec_drafter_stats, stats);
    OK(spec_session_get_drafter_stats(s, stats, 0));
    UNTOUCHED(spec_drafter_stats, stats);
    printf("drafter: asked %s, %lld of %lld accepted\n", stats->n_asked >= stats->n_proposed ? "often" : "never",
           (long long)stats->n_accepted, (long long)stats->n_drafted);
    spec_session_close(s);
    spec_drafter_close(drafter);
}

/* --- a builder and a drafter of one's own --- */

/* Two children for the root and each of its children. */
static spec_status expand(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                          int32_t *n_feed, int32_t n_feed_max)
{
    const int32_t n = tree->n, first = n > 1;
    (void)user_data;
    for (int32_t x = first; x < n; x++) {
        const spec_candidate *c = candidates + tree->q_row[x] * k;
        for (int32_t j = 0; j < k && c[j].token >= 0; j++) (void)spec_tree_add(tree, x, c[j].token, c[j].prob);
    }
    for (*n_feed = 0; n == 1 && *n_feed < tree->n - 1 && *n_feed < n_feed_max; ++*n_feed) feed[*n_feed] = *n_feed + 1;
    return SPEC_OK;
}

static spec_builder *own_builder(void)
{
    spec_builder *builder;
    STRUCT(spec_builder_ops, ops);
    ops->n_node = 7, ops->n_row = 3, ops->n_level = 2, ops->depth = 2, ops->k = 2, ops->kind = SPEC_TREE_SAMPLED;
    ops->expand = expand;
    OK(spec_builder_from_ops(&builder, ops, NULL));
    STRUCT(spec_builder_info, info);
    OK(spec_builder_get_info(builder, info));
    UNTOUCHED(spec_builder_info, info);
    printf("builder: %d nodes, %d rows, %d levels, depth %d\n", (int)info->n_node, (int)info->n_row, (int)info->n_level,
           (int)info->depth);
    return builder;
}

enum { N_WORD = 8 };

static spec_status slope(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n, float *probs, int32_t n_vocab)
{
    (void)user_data, (void)tree, (void)nodes;
    for (int32_t i = 0; i < n * n_vocab; i++) probs[i] = (float)(i % n_vocab + 1) / (float)(n_vocab * (n_vocab + 1) / 2);
    return SPEC_OK;
}

/* A tree on plain arrays, and which of it is accepted. */
static void build_and_verify(void)
{
    spec_builder *builder = own_builder();
    spec_tree tree;
    float p[7 * N_WORD], q[3 * N_WORD];
    int32_t path[7], n_path, token;
    OK(spec_tree_alloc(&tree, 7, NULL));
    STRUCT(spec_build_args, build);
    build->token = 4, build->n_vocab = N_WORD, build->probs = slope, build->draw = 1, build->seed = 6, build->step = 2;
    build->q = q;
    OK(spec_builder_build(builder, &tree, build));
    (void)slope(NULL, NULL, NULL, 7, p, N_WORD);
    STRUCT(spec_verify_args, verify);
    verify->tree = &tree, verify->n_vocab = N_WORD, verify->p = p, verify->q = q, verify->temperature = 1;
    verify->seed = 6, verify->position = 3;
    OK(spec_verify_probs(path, &n_path, &token, verify));
    for (int32_t i = 0; i < tree.n; i++) printf("%d<%d ", (int)tree.token[i], (int)tree.parent[i]);
    for (int32_t i = 0; i < n_path; i++) printf("/%d", (int)path[i]);
    printf(" then %d\n", (int)token);
    spec_tree_free(&tree, NULL);
    spec_builder_close(builder);
}

static void costs(const char *path)
{
    spec_builder *builder;
    STRUCT(spec_cost_profile, profile);
    profile->target = (spec_cost_table){ .n = 2, .n_node = { 1, 9 }, .ms = { 1, 2 } };
    strcpy(profile->target_of, "a target");
    OK(spec_builder_open(&builder, "sequoia:6", NULL));
    OK(spec_builder_costs(builder, profile));
    remove(path);
    OK(spec_cost_save(profile, path));
    STRUCT(spec_cost_profile, loaded);
    OK(spec_cost_load(loaded, path));
    UNTOUCHED(spec_cost_profile, loaded);
    printf("costs: %d, %.2f ms of %s\n", (int)loaded->target.n, spec_cost_ms(&loaded->target, 5), loaded->target_of);
    spec_builder_close(builder);
}

static void convert(const char *from, const char *path)
{
    spec_model *m;
    STRUCT(spec_convert_params, p);
    n_progress = 0;
    p->type = "q8_0", p->progress = progress, p->progress_user_data = &n_progress;
    remove(path); /* the costs, which are not replaced by a model */
    OK(spec_model_convert(backend, from, path, p));
    OK(spec_model_open(&m, backend, path, NULL));
    STRUCT(spec_model_info, info);
    OK(spec_model_get_info(m, info, 1));
    printf("converted: %llu bytes, progress %d\n", (unsigned long long)info->bytes_weights, n_progress > 0);
    spec_model_close(m);
}

static int n_end;
static void end_sequence(void *user_data, int32_t seq) { (void)user_data, (void)seq, n_end++; }

/* The last two tokens once more. */
static spec_status draft(void *user_data, spec_draft_request *requests, int32_t n)
{
    (void)user_data;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < 2 && k < requests[i].depth_max && requests[i].n_ids > 1; k++)
            if (spec_tree_add(requests[i].tree, k, requests[i].ids[requests[i].n_ids - 2 + (size_t)k], 0) < 0) break;
    return SPEC_OK;
}

static void run_drafters(void)
{
    spec_drafter *drafter;
    spec_builder *builder;
    OK(spec_builder_open(&builder, "product:3,2", NULL));
    STRUCT(spec_drafter_params, p);
    p->temperature = 0.9f, p->builder = builder, p->vocab = SPEC_DRAFT_VOCAB_INTERSECTION;
    OK(spec_drafter_from_model(&drafter, small, p));
    run_session(drafter);
    spec_builder_close(builder);
    STRUCT(spec_drafter_ops, ops);
    ops->draft = draft, ops->end = end_sequence;
    OK(spec_drafter_from_ops(&drafter, ops, NULL));
    run_session(drafter);
    printf("%d sequences have ended\n", n_end);
}

/* --- a model of one's own: three times a token, and one, is the next --- */

static int n_fork;
static spec_status begin_seq(void *user_data, void **seq) { return (void)user_data, *seq = &n_fork, SPEC_OK; }
static spec_status fork_seq(void *user_data, void **copy, void *seq) { return (void)user_data, n_fork++, *copy = seq, SPEC_OK; }
static spec_status prefill(void *user_data, void *seq, const int32_t *ids, size_t n)
{
    return (void)user_data, (void)seq, (void)ids, (void)n, SPEC_OK;
}
static spec_status score(void *user_data, float *logits, const spec_model_tree *trees, int32_t n)
{
    (void)user_data;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = trees[k].n_fed; i < trees[k].tree->n; i++, logits += N_WORD)
            for (int32_t c = 0; c < N_WORD; c++) logits[c] = c == (3 * trees[k].tree->token[i] + 1) % N_WORD;
    return SPEC_OK;
}
static spec_status commit(void *user_data, void *seq, const int32_t *path, int32_t n)
{
    return (void)user_data, (void)seq, (void)path, (void)n, SPEC_OK;
}
static void end_seq(void *user_data, void *seq) { (void)user_data, (void)seq; }

static void run_model(void)
{
    spec_model *model;
    spec_session *s;
    const int32_t prompt = 2;
    int32_t seq, copy;
    STRUCT(spec_model_ops, ops);
    ops->n_vocab = N_WORD, ops->bos = -1, ops->begin = begin_seq, ops->prefill = prefill, ops->score = score;
    ops->commit = commit, ops->end = end_seq, ops->fork = fork_seq;
    OK(spec_model_from_ops(&model, backend, ops));
    STRUCT(spec_session_params, p);
    p->n_seq = 2;
    OK(spec_session_open(&s, model, NULL, p));
    STRUCT(spec_request, r);
    r->n_predict = 6;
    STRUCT(spec_result, result);
    OK(spec_generate_ids(s, result, &prompt, 1, r));
    for (size_t i = 0; i < result->n_ids; i++) printf("%d ", (int)result->ids[i]);
    OK(spec_sequence_add(s, &seq, &prompt, 1, r));
    OK(spec_sequence_fork(s, &copy, seq));
    printf("forks: %d\n", n_fork);
    spec_result_free(result);
    spec_session_close(s);
    spec_model_close(model);
}

/* --- a corpus table --- */

static void corpus(const char *path)
{
    char table[600];
    int32_t ids[64];
    spec_corpus *c;
    STRUCT(spec_corpus_params, p);
    p->n_vocab = 40, p->n_context = 2, p->n_draft = 3, p->n_row = 2, p->min_count = 1, p->memory = (size_t)1 << 20;
    STRUCT(spec_corpus_info, info);
    for (int32_t i = 0; i < 64; i++) ids[i] = i * i % 7;
    snprintf(table, sizeof table, "%s.png", path);
    OK(spec_corpus_open(&c, table, p));
    OK(spec_corpus_add_ids(c, ids, 64));
    OK(spec_corpus_write(c, info));
    spec_corpus_close(c);
    UNTOUCHED(spec_corpus_info, info);
    printf("corpus: %lld texts, %lld tokens, %lld contexts, %lld continuations, %lld bytes, %lld of runs\n", (long long)info->n_text,
           (long long)info->n_token, (long long)info->n_context, (long long)info->n_continuation, (long long)info->bytes,
           (long long)info->bytes_runs);
    remove(table);
}

/* --- all of it --- */

static void count_sizes(void)
{
    int n_smaller = 0, n_larger = 0, n = 0;
#define COUNT(type)                                                                                                            \
    n++, n_smaller += sizeof(type) < spec_struct_size(#type), n_larger += sizeof(type) > spec_struct_size(#type);
    ABI_STRUCTS(COUNT)
    fprintf(stderr, "%d structs: %d are smaller than the library's, %d are larger\n", n, n_smaller, n_larger);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    count_sizes();
    open_models(argv + 1);
    run_drafters();
    printf("pool %d\n", n_pool > 0);
    build_and_verify();
    costs(argv[3]);
    convert(argv[2], argv[3]);
    run_model();
    corpus(argv[3]);
    spec_model_close(small), spec_model_close(target), spec_backend_close(backend);
    return 0;
}
