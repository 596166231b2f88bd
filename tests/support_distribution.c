/* support_distribution.c - see support_distribution.h.
 *
 * A draw is a sequence of one prompt token with its own seed, decoded for two steps and removed. As many as a session
 * holds are decoded together; jobs (a case, some seeds) run on as many threads as there are CPUs, each with a session
 * of its own over shared models. Counted are
 *   single   the first emitted token                             against p(a)
 *   joint    the first two emitted tokens, in one step or two     against p(a) p(b | a)
 *   in step  where the first draft was accepted: what follows it  against p(b | a)
 *   across   the first token of the second step                   against p(c | all that the first step emitted)
 *            and where its first draft was accepted what follows it  against p(d | all that was emitted)
 *   accept   whether a first draft was accepted, where their number is fixed, against the exact probability
 * "in step" and "across" are conditional: given what was emitted before, a token has the target's distribution,
 * whatever the drafts were. Everything goes through the public calls: what a known bug does to a tree it does to a copy
 * between spec_draft and spec_score, saying what is not so of its kind, which the library cannot know; only faults
 * below the calls are put behind a session. */
#include "tests/support_distribution.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_accept.h"
#include "tests/support_decode.h"
#include "tests/support_statistics.h"
#include "tests/support_model.h"
#include "tests/support_request.h"
#include "tests/support_sequence.h"

enum { V = PROBS_V, MAX_NODE = 32, MAX_TOKEN = 32, MAX_SEQ = 2048, OWN_NODE = 8 /* of a caller's own builder */ };

/* ----------------------------------------------------------------------------------- the tables --- */

typedef enum probs_source {
    FROM_MODEL, /* the drafter is a network */
    FROM_OTHER, /* the same with another vocabulary, by the tokens of both */
    FROM_TEXT,  /* and by its text */
    FROM_HEAD,  /* a head on the target's hidden states; the first step of a sequence has none */
    FROM_HEAD_OF_5, /* the same, which drafts five of the eight tokens */
    FROM_CHAIN_HEAD, /* one whose rows are a chain, with token info */
    FROM_ROWS_LEFT,  /* the same: half of the sequences draft from the rows that a rejection has left, beside the others */
    FROM_DISTRIBUTIONS,  /* an application's distributions */
    FROM_OWN,   /* a network's distributions, a caller's own builder that draws */
    FROM_CHOICE /* the same, and it chooses among the likeliest */
} probs_source;

/* What becomes of a copy of the drafted tree before it is scored. "Small" is a draft probability below 0.1. */
typedef enum probs_edit {
    AS_DRAFTED,
    BY_SLOT,       /* no third child where the second one's probability is small, one child behind a second child */
    SORTED,        /* ranks by falling probability */
    MERGED,        /* repeated siblings are removed, the first stays */
    DROPPED_THIRD, /* third children whose own probability is small */
    DROPPED        /* all nodes whose own probability is small */
} probs_edit;

enum { AS_IT_IS = -1 };

typedef struct probs_tree {
    const char *name, *text; /* text: of the builder; NULL = a caller's own */
    probs_source source;
    probs_edit edit;
    int32_t kind;            /* what the copy is then said to be: a spec_tree_kind, or AS_IT_IS */
    uint32_t rules;          /* those that keep the distribution (algorithms.md 3.6), as bits */
    int32_t k;               /* children of the root, 0 = not always as many */
    probs_how how;           /* how they come to be */
} probs_tree;

#define R(rule) (1u << SPEC_VERIFY_##rule)
#define SAMPLED_RULES (R(NAIVE) | R(MSS) | R(TRAVERSAL))
#define REPEAT_RULES (R(NAIVE) | R(MSS) | R(MSS_REPEAT) | R(TRAVERSAL))

/* Every kind of builder. Rules are written down, not asked of the library. */
static const probs_tree trees[] = {
    { "chain:3", "chain:3", 0, 0, AS_IT_IS, UINT32_MAX & ~R(GREEDY), 1, PROBS_WITHOUT },
    { "static:A", "static:A", 0, 0, AS_IT_IS, SAMPLED_RULES, 3, PROBS_WITHOUT },
    { "product:3,2", "product:3,2", 0, 0, AS_IT_IS, SAMPLED_RULES, 3, PROBS_WITHOUT },
    { "product-repeat:3,2", "product-repeat:3,2", 0, 0, AS_IT_IS, REPEAT_RULES, 3, PROBS_REPEAT },
    { "beam:3,2", "beam:3,2", 0, 0, AS_IT_IS, R(NAIVE), 3, PROBS_TOP },
    { "dyspec:6", "dyspec:6", 0, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "dyspec-threshold:0.05", "dyspec-threshold:0.05,8,4,3", 0, 0, AS_IT_IS, SAMPLED_RULES, 0,
      PROBS_WITHOUT },
    { "sequoia:6", "sequoia:6", 0, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "eagle2:3,6,2", "eagle2:3,6,2", 0, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "distributions, product:3,2", "product:3,2", FROM_DISTRIBUTIONS, 0, AS_IT_IS, SAMPLED_RULES, 3, PROBS_WITHOUT },
    { "distributions, product-repeat:3,2", "product-repeat:3,2", FROM_DISTRIBUTIONS, 0, AS_IT_IS, REPEAT_RULES, 3,
      PROBS_REPEAT },
    { "distributions, dyspec:6", "dyspec:6", FROM_DISTRIBUTIONS, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "own builder, draws", NULL, FROM_OWN, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "own builder, chooses", NULL, FROM_CHOICE, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "other vocabulary, chain:3", "chain:3", FROM_OTHER, 0, AS_IT_IS, UINT32_MAX & ~R(GREEDY), 0,
      PROBS_WITHOUT },
    { "other vocabulary, product:3,2", "product:3,2", FROM_OTHER, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "other vocabulary, product-repeat:3,2", "product-repeat:3,2", FROM_OTHER, 0, AS_IT_IS, REPEAT_RULES, 0,
      PROBS_REPEAT },
    { "other vocabulary, dyspec:6", "dyspec:6", FROM_OTHER, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "other vocabulary's text, product:3,2", "product:3,2", FROM_TEXT, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "head, chain:3", "chain:3", FROM_HEAD, 0, AS_IT_IS, UINT32_MAX & ~R(GREEDY), 0, PROBS_WITHOUT },
    { "head, product:3,2", "product:3,2", FROM_HEAD, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "head, eagle2:3,6,2", "eagle2:3,6,2", FROM_HEAD, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "head of five tokens, chain:3", "chain:3", FROM_HEAD_OF_5, 0, AS_IT_IS, UINT32_MAX & ~R(GREEDY), 0, PROBS_WITHOUT },
    { "head of five tokens, product-repeat:3,2", "product-repeat:3,2", FROM_HEAD_OF_5, 0, AS_IT_IS, REPEAT_RULES, 0, PROBS_REPEAT },
    { "head of five tokens, dyspec:6", "dyspec:6", FROM_HEAD_OF_5, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "chain head, product:3,2", "product:3,2", FROM_CHAIN_HEAD, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "chain head, eagle2:3,6,2", "eagle2:3,6,2", FROM_CHAIN_HEAD, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "rows left, product:3,2", "product:3,2", FROM_ROWS_LEFT, 0, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
    { "rows left, eagle2:3,6,2", "eagle2:3,6,2", FROM_ROWS_LEFT, 0, AS_IT_IS, R(NAIVE), 0, PROBS_TOP },
    { "product:3,2 cut by slot", "product:3,2", 0, BY_SLOT, AS_IT_IS, SAMPLED_RULES, 0, PROBS_WITHOUT },
};
enum { N_TREE = sizeof trees / sizeof *trees };

#define PLAIN { 1.0f, 0, 0, 0, 0 }
#define COLD { 0.7f, 0, 0, 0, 0 }
#define TOP_P { 0.8f, 0, 0.9f, 0, 0 }
#define MIN_P { 0.7f, 0, 0.98f, 0.1f, 0 }
#define CUT { 0.7f, 6, 0.95f, 0, 0 }

typedef struct probs_case {
    char name[64]; /* "" = the tree's */
    probs_tree tree;
    spec_verify_rule rule;
    int32_t start; /* the prompt */
    spec_sampling sampling;
    float draft_temperature;
    probs_fault fault;
    int64_t n_draw; /* of controls and bugs in all, else of each seed */
    const spec_request *request; /* but for its sampling; NULL = nothing more is asked for */
} probs_case;

/* Each tree under each of its rules at each of these, the first with all the draws ... */
static const struct probs_setting {
    const char *name;
    int32_t start;
    spec_sampling sampling;
} settings[] = { { "T 1", 3, PLAIN }, { "T 0.8, top-p 0.9", 6, TOP_P } };
enum { N_SETTING = sizeof settings / sizeof *settings };

/* ... some under requests that change the target's logits by the path, one at each of the settings ... */
static const support_masked masked = { 1, NULL };
static const spec_logit_bias biases[] = { { 2, 0.8f }, { 5, -INFINITY } };
static const spec_request requests[N_SETTING] = {
    { .struct_size = sizeof(spec_request), .repeat_penalty = 1.6f, .presence_penalty = 0.7f, .frequency_penalty = 0.5f,
      .bias = biases, .n_bias = 2 },
    { .struct_size = sizeof(spec_request), .repeat_penalty = 0.8f, .presence_penalty = -0.6f, .frequency_penalty = 0.9f,
      .n_penalty = 2, .bias = biases, .n_bias = 1, .mask = support_mask, .mask_user_data = (void *)(uintptr_t)&masked },
};
static const char *const request_trees[] = { "chain:3", "product:3,2", "dyspec:6" };
#define REQUEST_RULES (R(NAIVE) | R(CHAIN) | R(MSS) | R(BLOCK) | R(TRAVERSAL))
enum { N_REQUEST_TREE = sizeof request_trees / sizeof *request_trees };

/* ... and some under distributions that draft and target do not share. */
static const probs_case variants[] = {
    { "chain:3, colder, min-p",
      { "", "chain:3", 0, 0, AS_IT_IS, 0, 1, PROBS_WITHOUT }, SPEC_VERIFY_CHAIN, 1, MIN_P, 0.5f, 0, 0, NULL },
    { "chain:3, colder, min-p, block",
      { "", "chain:3", 0, 0, AS_IT_IS, 0, 1, PROBS_WITHOUT }, SPEC_VERIFY_BLOCK, 1, MIN_P, 0.5f, 0, 0, NULL },
    { "product:3,2, hotter, cut, mss",
      { "", "product:3,2", 0, 0, AS_IT_IS, 0, 3, PROBS_WITHOUT }, SPEC_VERIFY_MSS, 6, CUT, 1.3f, 0, 0, NULL },
    { "product:3,2, hotter, cut",
      { "", "product:3,2", 0, 0, AS_IT_IS, 0, 3, PROBS_WITHOUT }, SPEC_VERIFY_AUTO, 6, CUT, 1.3f, 0, 0, NULL },
    { "product-repeat:3,2, hotter",
      { "", "product-repeat:3,2", 0, 0, AS_IT_IS, 0, 3, PROBS_REPEAT }, SPEC_VERIFY_AUTO, 0, MIN_P, 1.5f, 0, 0, NULL },
    { "dyspec:6, colder", { "", "dyspec:6", 0, 0, AS_IT_IS, 0, 0, 0 }, SPEC_VERIFY_AUTO, 4, PLAIN, 0.6f, 0, 0, NULL },
    { "other vocabulary, chain:3, T 0.7", { "", "chain:3", FROM_OTHER, 0, AS_IT_IS, 0, 0, 0 }, SPEC_VERIFY_CHAIN, 3, COLD, 0, 0, 0, NULL },
    { "other vocabulary, product:3,2, T 0.7", { "", "product:3,2", FROM_OTHER, 0, AS_IT_IS, 0, 0, 0 }, SPEC_VERIFY_AUTO, 6, COLD, 0, 0, 0,
      NULL },
    { "other vocabulary's text, chain:3, T 0.7", { "", "chain:3", FROM_TEXT, 0, AS_IT_IS, 0, 0, 0 }, SPEC_VERIFY_AUTO, 3, COLD, 0, 0, 0,
      NULL },
    { "eagle2:3,6,2, colder, cut",
      { "", "eagle2:3,6,2", 0, 0, AS_IT_IS, 0, 0, 0 }, SPEC_VERIFY_AUTO, 4, CUT, 0.5f, 0, 0, NULL },
};
enum { N_VARIANT = sizeof variants / sizeof *variants, MAX_CASE = (N_TREE + N_REQUEST_TREE) * 6 * N_SETTING + N_VARIANT };

#define DRAWN3 { "", "product:3", 0, 0, AS_IT_IS, 0, 0, 0 }
#define OTHER3 { "", "product:3", FROM_OTHER, 0, AS_IT_IS, 0, 0, 0 }
#define EDITED(text, edit, kind) { "", text, 0, edit, kind, 0, 0, 0 }
#define CASE(tree, rule, fault, n) tree, SPEC_VERIFY_##rule, 3, PLAIN, 0, fault, n, NULL
#define REQUESTED(tree, rule, fault, n) tree, SPEC_VERIFY_##rule, 3, PLAIN, 0, fault, n, &requests[0]

/* What looks like a bug of the table below and is none. */
static const probs_case controls[] = {
    { "right: on the host", CASE(DRAWN3, MSS, FAULT_HOST, 10000) },
    { "right: on the host, with replacement",
      CASE(EDITED("product-repeat:3", 0, AS_IT_IS), MSS_REPEAT, FAULT_HOST, 10000) },
    { "right: on the host, traversal", CASE(EDITED("product:3,2", 0, AS_IT_IS), TRAVERSAL, FAULT_HOST, 10000) },
    { "right: on the host, block", CASE(EDITED("chain:3", 0, AS_IT_IS), BLOCK, FAULT_HOST, 10000) },
    { "right: repeats removed, traversal",
      CASE(EDITED("product-repeat:3,2", MERGED, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 10000) },
    { "right: other vocabulary, on the host", CASE(OTHER3, MSS, FAULT_HOST, 10000) },
    { "right: repeats removed", CASE(EDITED("product-repeat:3,2", MERGED, SPEC_TREE_SAMPLED), MSS, 0, 10000) },
    { "right: sorted, naive", CASE(EDITED("product:3,2", SORTED, AS_IT_IS), NAIVE, 0, 10000) },
    { "right: sorted, naive, since it is deterministic", CASE(EDITED("product:3,2", SORTED, SPEC_TREE_DETERMINISTIC), AUTO, 0, 10000) },
    { "right: dropped by own q, naive", CASE(EDITED("product:3,2", DROPPED, AS_IT_IS), AUTO, 0, 10000) },
};
enum { N_CONTROL = sizeof controls / sizeof *controls };

/* Every "no" of 3.6, the bugs of 3.8, and some below the calls. */
static const probs_case bugs[] = {
    { "sampled without replacement, by mss-repeat",
      CASE(EDITED("product:3", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 100000) },
    { "repeats removed, by mss-repeat",
      CASE(EDITED("product-repeat:3", MERGED, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 100000) },
    { "dyspec, by mss-repeat", CASE(EDITED("dyspec:6", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 100000) },
    { "dyspec-threshold, by mss-repeat",
      CASE(EDITED("dyspec-threshold:0.05,8,4,3", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 100000) },
    { "the likeliest 3, by mss", CASE(EDITED("beam:3,1", 0, SPEC_TREE_SAMPLED), MSS, 0, 5000) },
    { "the likeliest 3, by mss-repeat", CASE(EDITED("beam:3,1", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 5000) },
    { "the likeliest 1, by chain", CASE(EDITED("beam:1,3", 0, SPEC_TREE_SAMPLED), CHAIN, 0, 5000) },
    { "beam, by mss", CASE(EDITED("beam:3,2", 0, SPEC_TREE_SAMPLED), MSS, 0, 5000) },
    { "beam, by mss-repeat", CASE(EDITED("beam:3,2", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 5000) },
    { "eagle2, by mss", CASE(EDITED("eagle2:3,6,2", 0, SPEC_TREE_SAMPLED), MSS, 0, 5000) },
    { "eagle2, by mss-repeat", CASE(EDITED("eagle2:3,6,2", 0, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 5000) },
    { "siblings sorted by q, by mss", CASE(EDITED("product:3", SORTED, SPEC_TREE_SAMPLED), MSS, 0, 5000) },
    { "siblings sorted by q, by mss-repeat",
      CASE(EDITED("product:3", SORTED, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 5000) },
    { "siblings verified by falling q", CASE(DRAWN3, MSS, FAULT_ORDER, 5000) },
    { "each dropped for its own q, by mss", CASE(EDITED("product:3", DROPPED, SPEC_TREE_SAMPLED), MSS, 0, 5000) },
    { "each dropped for its own q, by mss-repeat",
      CASE(EDITED("product:3", DROPPED, SPEC_TREE_SAMPLED_IID), MSS_REPEAT, 0, 5000) },
    { "third dropped for its own q", CASE(EDITED("product:3", DROPPED_THIRD, SPEC_TREE_SAMPLED), MSS, 0, 400000) },
    { "last draw from p", CASE(DRAWN3, MSS, FAULT_LAST_FROM_P, 50000) },
    { "last draw from p, chain", CASE(EDITED("chain:2", 0, AS_IT_IS), CHAIN, FAULT_LAST_FROM_P, 5000) },
    { "verified by the root of q", CASE(DRAWN3, MSS, FAULT_ROOT_Q, 50000) },
    { "verified by the root of q, chain", CASE(EDITED("chain:2", 0, AS_IT_IS), CHAIN, FAULT_ROOT_Q, 5000) },
    { "other vocabulary, verified by a share of q", CASE(OTHER3, MSS, FAULT_SHARE_OF_Q, 5000) },
    { "one uniform for two draws, chain", CASE(EDITED("chain:2", 0, AS_IT_IS), CHAIN, FAULT_ONE_UNIFORM, 5000) },
    { "the likeliest 3, by traversal", CASE(EDITED("beam:3,1", 0, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 5000) },
    { "the likeliest 1, by block", CASE(EDITED("beam:1,3", 0, SPEC_TREE_SAMPLED), BLOCK, 0, 5000) },
    { "beam, by traversal", CASE(EDITED("beam:3,2", 0, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 5000) },
    { "eagle2, by traversal", CASE(EDITED("eagle2:3,6,2", 0, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 5000) },
    { "siblings sorted by q, by traversal", CASE(EDITED("product:3", SORTED, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 5000) },
    { "each dropped for its own q, by traversal",
      CASE(EDITED("product:3", DROPPED, SPEC_TREE_SAMPLED), TRAVERSAL, 0, 5000) },
    { "last draw from p, traversal", CASE(EDITED("product:2,1", 0, AS_IT_IS), TRAVERSAL, FAULT_LAST_FROM_P, 50000) },
    { "last draw from p, block", CASE(EDITED("chain:2", 0, AS_IT_IS), BLOCK, FAULT_LAST_FROM_P, 5000) },
    { "verified by the root of q, traversal", CASE(EDITED("product:2,1", 0, AS_IT_IS), TRAVERSAL, FAULT_ROOT_Q, 50000) },
    { "verified by the root of q, block", CASE(EDITED("chain:2", 0, AS_IT_IS), BLOCK, FAULT_ROOT_Q, 5000) },
    { "residual from p alone, traversal", CASE(EDITED("product:2,1", 0, AS_IT_IS), TRAVERSAL, FAULT_RESIDUAL_OF_P, 50000) },
    { "residual from p alone, block", CASE(EDITED("chain:3", 0, AS_IT_IS), BLOCK, FAULT_RESIDUAL_OF_P, 5000) },
    { "the parent's weight is lost, traversal", CASE(EDITED("product:2,1", 0, AS_IT_IS), TRAVERSAL, FAULT_WEIGHT_LOST, 50000) },
    { "the parent's weight is lost, block", CASE(EDITED("chain:3", 0, AS_IT_IS), BLOCK, FAULT_WEIGHT_LOST, 5000) },
    { "penalties of the parent's path, block", REQUESTED(EDITED("chain:3", 0, AS_IT_IS), BLOCK, FAULT_PARENT_PATH, 5000) },
    { "penalties of the parent's path", REQUESTED(EDITED("chain:3", 0, AS_IT_IS), CHAIN, FAULT_PARENT_PATH, 5000) },
    { "accepted drafts lost from the state", CASE(EDITED("chain:2", 0, AS_IT_IS), CHAIN, FAULT_LATE_STATE, 5000) },
};
enum { N_BUG = sizeof bugs / sizeof *bugs };

/* ------------------------------------------------------------------------------------- drafting --- */

static spec_backend *backend;
static spec_model *target, *drafter, *other; /* other: the drafter with another vocabulary */
static spec_model *head, *head_of_5, *chain_head;
static logits_table *target_logits, *draft_logits;

static spec_sampling draft_sampling(const probs_case *c)
{
    spec_sampling s = c->tree.how == PROBS_TOP ? (spec_sampling)PLAIN : c->sampling;
    if (c->draft_temperature > 0) s.temperature = c->draft_temperature;
    return s;
}

/* A session and what a job keeps for each of its sequences. */
typedef struct probs_work {
    const probs_case *c;
    int32_t n_seq;
    spec_session *s;
    spec_drafter *dr;
    spec_builder *own;
    spec_backend_ops ops;
    double probs[PROBS_N_CONTEXT][V]; /* the application's */
    spec_tree edited[MAX_SEQ];
    const spec_tree *scored[MAX_SEQ];
    int32_t seqs[MAX_SEQ], tokens[MAX_SEQ][MAX_TOKEN], n_tokens[MAX_SEQ], n_first[MAX_SEQ];
    const spec_step_result *results[MAX_SEQ];
} probs_work;

/* An application's distributions: the drafter's after the first tokens, then always the same. */
static spec_status app_distributions(void *user_data, int32_t seq, const int32_t *ids, size_t n, const spec_tree *tree,
                            const int32_t *nodes, int32_t n_node, float *distributions, int32_t n_vocab)
{
    const probs_work *w = user_data;
    (void)seq;
    for (int32_t i = 0; i < n_node; i++) {
        int32_t path[MAX_NODE], tokens[PROBS_CONTEXT], n_path = 0, n_token = 0;
        for (int32_t node = nodes[i]; node > 0; node = tree->parent[node]) path[n_path++] = tree->token[node];
        for (size_t j = 1; j < n && n_token < PROBS_CONTEXT; j++) tokens[n_token++] = ids[j];
        while (n_path > 0 && n_token < PROBS_CONTEXT) tokens[n_token++] = path[--n_path];
        for (int32_t v = 0; v < n_vocab; v++)
            distributions[(size_t)i * (size_t)n_vocab + (size_t)v] = (float)w->probs[probs_context(tokens, n_token)][v];
    }
    return SPEC_OK;
}

/* Two levels: two children, a third where the second one's probability is not small (it was sampled before); then one
 * child of each, two of the first. */
static spec_status own_expand(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k,
                            int32_t *feed, int32_t *n_feed, int32_t n_feed_max)
{
    const bool first = tree->n == 1;
    const int32_t n = tree->n;
    (void)user_data;
    *n_feed = 0;
    for (int32_t node = first ? 0 : 1; node < n; node++) {
        const spec_candidate *c = candidates + (size_t)tree->q_row[node] * (size_t)k;
        const int32_t most = !first ? 1 + (node == 1) : c[1].token >= 0 && c[1].prob >= 0.1f ? 3 : 2;
        for (int32_t j = 0; j < most && c[j].token >= 0; j++) {
            const int32_t child = spec_tree_add(tree, node, c[j].token, c[j].prob);
            if (first && *n_feed < n_feed_max) feed[(*n_feed)++] = child;
        }
    }
    return SPEC_OK;
}

/* One level: the likeliest and the third. */
static spec_status choosing_expand(void *user_data, spec_tree *tree, const spec_candidate *candidates, int32_t k,
                                 int32_t *feed, int32_t *n_feed, int32_t n_feed_max)
{
    (void)user_data, (void)feed, (void)n_feed_max;
    *n_feed = 0;
    for (int32_t j = 0; j < k; j += 2)
        if (candidates[j].token >= 0) (void)spec_tree_add(tree, 0, candidates[j].token, candidates[j].prob);
    return SPEC_OK;
}

static spec_status open_own(probs_work *w)
{
    spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = OWN_NODE, .n_row = 4, .n_level = 2, .depth = 2,
                             .k = 3, .kind = SPEC_TREE_SAMPLED, .expand = own_expand };
    if (w->c->tree.source == FROM_CHOICE) ops.kind = SPEC_TREE_DETERMINISTIC, ops.expand = choosing_expand;
    return spec_builder_from_ops(&w->own, &ops, NULL);
}

static spec_status open_drafter(probs_work *w)
{
    const probs_case *c = w->c;
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    p.tree = c->tree.text;
    p.temperature = c->draft_temperature;
    if (c->tree.source == FROM_DISTRIBUTIONS) {
        const spec_drafter_ops ops = { .struct_size = sizeof ops, .user_data = w, .probs = app_distributions };
        const spec_sampling ds = draft_sampling(c);
        for (int32_t i = 0; i < PROBS_N_CONTEXT; i++) probs_of(w->probs[i], draft_logits->row[c->start][i], &ds);
        return spec_drafter_from_ops(&w->dr, &ops, &p);
    }
    if (c->tree.source == FROM_OWN || c->tree.source == FROM_CHOICE) SPEC_TRY(open_own(w));
    p.builder = w->own;
    if (c->tree.source == FROM_OTHER) p.vocab = SPEC_DRAFT_VOCAB_INTERSECTION;
    if (c->tree.source == FROM_TEXT) p.vocab = SPEC_DRAFT_VOCAB_TEXT;
    if (c->tree.source == FROM_HEAD) return spec_drafter_from_model(&w->dr, head, &p);
    if (c->tree.source == FROM_ROWS_LEFT) p.n_resample = 2, p.resample_across = 1;
    if (c->tree.source == FROM_CHAIN_HEAD || c->tree.source == FROM_ROWS_LEFT) return spec_drafter_from_model(&w->dr, chain_head, &p);
    if (c->tree.source == FROM_HEAD_OF_5) return spec_drafter_from_model(&w->dr, head_of_5, &p);
    return spec_drafter_from_model(&w->dr, p.vocab != SPEC_DRAFT_VOCAB_AUTO ? other : drafter, &p);
}

static spec_status open_work(probs_work *w, const probs_case *c, int32_t n_seq)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    w->c = c, w->n_seq = n_seq;
    SPEC_TRY(open_drafter(w));
    p.n_seq = n_seq, p.n_ctx = 64, p.verify = c->rule;
    SPEC_TRY(spec_session_open(&w->s, target, w->dr, &p));
    for (int32_t i = 0; i < n_seq; i++) SPEC_TRY(spec_tree_alloc(&w->edited[i], MAX_NODE, NULL));
    if (c->fault == FAULT_NONE || c->fault == FAULT_LATE_STATE) return SPEC_OK;
    w->ops = *w->s->ops;
    probs_plant(w->s->ops, c->fault);
    if (c->fault == FAULT_PARENT_PATH) w->ops.adjust = probs_faulty_adjust;
    else w->ops.accept = probs_faulty_accept, w->ops.accept_tree = probs_faulty_accept_tree;
    w->s->ops = &w->ops;
    return SPEC_OK;
}

static void close_work(probs_work *w)
{
    spec_session_close(w->s);
    spec_drafter_close(w->dr);
    spec_builder_close(w->own);
    for (int32_t i = 0; i < w->n_seq; i++) spec_tree_free(&w->edited[i], NULL);
    free(w);
}

/* ------------------------------------------------------------------------------ edits of a tree --- */

static int32_t sibling(const spec_tree *t, int32_t node, int32_t rank)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] == t->parent[node] && t->rank[i] == rank) return i;
    return -1;
}

static bool is_small(const spec_tree *t, int32_t node) { return t->prob[node] < 0.1f; }

static bool repeats(const spec_tree *t, int32_t node)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] == t->parent[node] && t->token[i] == t->token[node] && t->rank[i] < t->rank[node]) return true;
    return false;
}

static bool keeps(const spec_tree *t, int32_t node, probs_edit edit)
{
    const bool third = t->rank[node] == 2;
    const int32_t parent = t->parent[node];
    if (edit == BY_SLOT && parent > 0 && t->rank[parent] == 1) return t->rank[node] == 0;
    if (edit == BY_SLOT) return !third || !is_small(t, sibling(t, node, 1));
    if (edit == MERGED) return !repeats(t, node);
    if (edit == DROPPED_THIRD) return !third || !is_small(t, node);
    return !is_small(t, node);
}

static void sort_siblings(spec_tree *t)
{
    int32_t rank[MAX_NODE] = { 0 };
    for (int32_t i = 1; i < t->n; i++)
        for (int32_t j = 1; j < t->n; j++)
            if (t->parent[j] == t->parent[i]) rank[i] += t->prob[j] > t->prob[i] || (t->prob[j] == t->prob[i] && j < i);
    memcpy(t->rank, rank, (size_t)t->n * sizeof *rank);
}

static void edit_tree(spec_tree *t, const probs_tree *how)
{
    uint8_t keep[MAX_NODE] = { 1 };
    int32_t map[MAX_NODE];
    if (how->edit == SORTED) {
        sort_siblings(t);
    } else if (how->edit != AS_DRAFTED) {
        for (int32_t i = 1; i < t->n; i++) keep[i] = keeps(t, i, how->edit);
        spec_tree_prune(t, map, keep, how->edit == BY_SLOT);
    }
    if (how->kind != AS_IT_IS) t->kind = (spec_tree_kind)how->kind;
}

static bool is_edited(const probs_case *c) { return c->tree.edit != AS_DRAFTED || c->tree.kind != AS_IT_IS; }

/* draft, and score of the trees or their edited copies. */
static spec_status draft_and_score(probs_work *w, int32_t n)
{
    SPEC_TRY(spec_draft(w->s, w->scored, w->seqs, n));
    for (int32_t i = 0; i < n && is_edited(w->c); i++) {
        SPEC_TRY(spec_tree_copy(&w->edited[i], w->scored[i]));
        edit_tree(&w->edited[i], &w->c->tree);
        w->scored[i] = &w->edited[i];
    }
    return spec_score(w->s, w->seqs, n, w->scored);
}

/* -------------------------------------------------------------------------------------- a batch --- */

static spec_status four_calls(probs_work *w, int32_t n)
{
    int32_t path[MAX_NODE], n_path, token;
    SPEC_TRY(draft_and_score(w, n));
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(spec_verify(w->s, path, &n_path, &token, w->seqs[i], SPEC_VERIFY_AUTO)); /* the session's rule */
        SPEC_TRY(spec_commit(w->s, w->seqs[i], path, n_path, token));
    }
    return SPEC_OK;
}

/* One step of n sequences; what each emitted so far is in tokens. */
static spec_status one_step(probs_work *w, int32_t n)
{
    if (is_edited(w->c)) SPEC_TRY(four_calls(w, n));
    else SPEC_TRY(spec_step(w->s, w->results, w->seqs, n));
    for (int32_t i = 0; i < n; i++) {
        const int32_t root = 0, *ids;
        size_t n_ids;
        SPEC_TRY(spec_sequence_ids(w->s, &ids, &n_ids, w->seqs[i]));
        if (w->c->fault == FAULT_LATE_STATE) w->s->exec->kind->commit(w->s->exec, w->seqs[i], &root, 1);
        if (n_ids > MAX_TOKEN) return speci_fail(SPEC_E_FULL, "a few steps emitted %zu tokens", n_ids - 1);
        w->n_tokens[i] = (int32_t)n_ids - 1;
        memcpy(w->tokens[i], ids + 1, (n_ids - 1) * sizeof *ids);
    }
    return SPEC_OK;
}

typedef struct probs_counts {
    int64_t n, accepted, single[V], joint[V * V], in_step[V][V], across[PROBS_N_CONTEXT][V];
} probs_counts;

static void count(probs_counts *k, const int32_t *tokens, int32_t n_first, int32_t n)
{
    k->n++;
    k->single[tokens[0]]++;
    k->joint[tokens[0] * V + tokens[1]]++;
    if (n_first > 1) k->accepted++, k->in_step[tokens[0]][tokens[1]]++;
    if (n_first <= PROBS_CONTEXT) k->across[probs_context(tokens, n_first)][tokens[n_first]]++;
    if (n_first < PROBS_CONTEXT && n > n_first + 1) k->across[probs_context(tokens, n_first + 1)][tokens[n_first + 1]]++;
}

/* Draws of `seed` from number `first` on. */
static spec_status batch(probs_work *w, probs_counts *counts, int32_t seed, uint64_t first, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        spec_request request = SPEC_REQUEST_INIT;
        if (w->c->request) request = *w->c->request;
        request.sampling = w->c->sampling;
        request.sampling.seed = ((uint64_t)seed << 40) + first + (uint64_t)i;
        SPEC_TRY(spec_sequence_add(w->s, &w->seqs[i], &w->c->start, 1, &request));
    }
    SPEC_TRY(one_step(w, n));
    if (w->c->tree.source == FROM_ROWS_LEFT) SPEC_TRY(one_step(w, n)); /* the first that drafts: of these rows some are left */
    memcpy(w->n_first, w->n_tokens, sizeof w->n_first);
    SPEC_TRY(one_step(w, n));
    for (int32_t i = 0; i < n; i++) {
        count(counts, w->tokens[i], w->n_first[i], w->n_tokens[i]);
        SPEC_TRY(spec_sequence_remove(w->s, w->seqs[i]));
    }
    return SPEC_OK;
}

/* ----------------------------------------------------------------------------------------- jobs --- */

typedef struct probs_job {
    const probs_case *c;
    int32_t seed, n_seed; /* seeds [seed, seed + n_seed) */
    uint64_t first;       /* draws [first, first + n) of each */
    int64_t n;
    spec_status status;
    char message[256];
    probs_counts *counts;   /* [n_seed] */
} probs_job;

/* A pass on a GPU costs little more for many sequences than for few: as many as it takes. */
static spec_status sequences_at_once(const probs_case *c, int32_t *n)
{
    spec_builder *b;
    spec_builder_info info = { .struct_size = sizeof info, .n_node = OWN_NODE };
    spec_status status = SPEC_OK;
    *n = 64;
    if (strncmp(support_backend_name(), "cpu", 3) == 0) return SPEC_OK;
    if (c->tree.text) {
        SPEC_TRY(spec_builder_open(&b, c->tree.text, NULL));
        status = spec_builder_get_info(b, &info);
        spec_builder_close(b);
    }
    const int32_t most = info.n_node > info.n_row ? info.n_node : info.n_row;
    const bool other_tokens = c->tree.source == FROM_OTHER || c->tree.source == FROM_TEXT; /* paths may have more tokens there */
    /* A head is fed all that was accepted, in front of its tree. */
    const bool by_head = c->tree.source >= FROM_HEAD && c->tree.source <= FROM_ROWS_LEFT;
    *n = target->backend->info.row_max / (1 + most + (other_tokens ? 8 : 0) + (by_head ? 2 * most : 0)); /* of two steps, maybe */
    if (*n > MAX_SEQ) *n = MAX_SEQ;
    return status;
}

static void run_job(void *jobs, int32_t number)
{
    probs_job *job = (probs_job *)jobs + number;
    probs_work *w = calloc(1, sizeof *w);
    int32_t n_seq;
    job->status = sequences_at_once(job->c, &n_seq);
    if (job->status == SPEC_OK) job->status = open_work(w, job->c, n_seq);
    for (int32_t i = 0; i < job->n_seed; i++)
        for (int64_t at = 0; at < job->n && job->status == SPEC_OK; at += w->n_seq) {
            const int64_t left = job->n - at;
            job->status = batch(w, &job->counts[i], job->seed + i, job->first + (uint64_t)at,
                                left < w->n_seq ? (int32_t)left : w->n_seq);
        }
    if (job->status != SPEC_OK) snprintf(job->message, sizeof job->message, "%s", spec_last_error());
    close_work(w);
}

static void run_jobs(probs_job *jobs, int32_t n)
{
    support_parallel(n, run_job, jobs);
    for (int32_t i = 0; i < n; i++)
        if (jobs[i].status != SPEC_OK) fail_msg("%s, seed %d: %s", jobs[i].c->name, jobs[i].seed, jobs[i].message);
}

/* ------------------------------------------------------------------------------------ statistics --- */

enum { SINGLE, JOINT, IN_STEP, ACROSS, ACCEPT, N_STATISTIC };
static const char *const statistic_names[] = { "single", "joint", "in step", "across", "accept" };

/* The target's, after the prompt and a context. */
static void target_probs(double *out, const probs_case *c, int32_t context)
{
    float logits[V];
    int32_t ids[1 + PROBS_CONTEXT] = { c->start };
    const int32_t n = 1 + probs_context_tokens(ids + 1, context);
    memcpy(logits, target_logits->row[c->start][context], sizeof logits);
    if (c->request) support_change_logits(logits, V, c->request, ids, (size_t)n, 1);
    probs_of(out, logits, &c->sampling);
}

/* P(a first draft is accepted), or -1: not so simple. */
static double expected_acceptance(const probs_case *c)
{
    double p[V], q[V];
    const spec_sampling ds = draft_sampling(c);
    spec_verify_rule rule = c->rule;
    if (c->tree.k == 0) return -1;
    target_probs(p, c, 0);
    probs_of(q, draft_logits->row[c->start][0], &ds);
    if (rule == SPEC_VERIFY_AUTO) rule = c->tree.how == PROBS_REPEAT ? SPEC_VERIFY_MSS_REPEAT : SPEC_VERIFY_MSS;
    if (rule >= SPEC_VERIFY_BLOCK) rule = SPEC_VERIFY_MSS; /* a first draft's subtree has the same share */
    return probs_accepts(p, q, c->tree.k, c->tree.how, rule);
}

static void p_values(double out[N_STATISTIC], const probs_case *c, const probs_counts *k)
{
    chi_square chi[N_STATISTIC] = { { 0 } };
    double probs[PROBS_N_CONTEXT][V], joint[V * V];
    for (int32_t i = 0; i < PROBS_N_CONTEXT; i++) target_probs(probs[i], c, i);
    probs_chi_add(&chi[SINGLE], probs[0], k->single, V);
    for (int32_t a = 0; a < V; a++) {
        const double *after = probs[probs_context(&a, 1)];
        for (int32_t b = 0; b < V; b++) joint[a * V + b] = probs[0][a] * after[b];
        probs_chi_add(&chi[IN_STEP], after, k->in_step[a], V);
    }
    probs_chi_add(&chi[JOINT], joint, k->joint, V * V);
    for (int32_t i = 0; i < PROBS_N_CONTEXT; i++) probs_chi_add(&chi[ACROSS], probs[i], k->across[i], V);
    const double accepts = expected_acceptance(c), p[] = { accepts, 1 - accepts };
    const int64_t seen[] = { k->accepted, k->n - k->accepted };
    if (accepts >= 0) probs_chi_add(&chi[ACCEPT], p, seen, 2);
    for (int i = 0; i < N_STATISTIC; i++) out[i] = probs_chi_p(&chi[i]);
}

static void add_counts(probs_counts *to, const probs_counts *from)
{
    const int64_t *x = (const int64_t *)(const void *)from;
    int64_t *y = (int64_t *)(void *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *y; i++) y[i] += x[i];
}

static int32_t check_p(const probs_case *c, const char *what, const probs_counts *k, double bar)
{
    double p[N_STATISTIC];
    int32_t n_bad = 0;
    p_values(p, c, k);
    for (int i = 0; i < N_STATISTIC; i++)
        if (!(p[i] > bar)) {
            n_bad++;
            print_error("  %s, %s: %s has p = %.3g in %lld draws; the bar is %.3g\n", c->name, what, statistic_names[i],
                        p[i], (long long)k->n, bar);
        }
    return n_bad;
}

/* ------------------------------------------------------------------------------- every builder --- */

static const probs_size *size;

static int32_t draws_of_seed(bool all)
{
    const char *text = getenv("SPEC_DISTRIBUTION_DRAWS");
    if (text && *text) return (int32_t)strtol(text, NULL, 10);
    return all ? size->n_draw : size->n_draw_more;
}

/* Of a drafter with another vocabulary both have tokenizers, in builds that have them. */
static bool is_there(const probs_case *c) { return other || (c->tree.source != FROM_OTHER && c->tree.source != FROM_TEXT); }

/* A tree at a setting, and with a request or NULL, under each of the rules that are among its own; returns how many cases. */
static int32_t add_cases(probs_case *out, const probs_tree *t, int32_t setting, const spec_request *request, uint32_t rules)
{
    const struct probs_setting *s = &settings[setting];
    int32_t n = 0;
    for (int rule = SPEC_VERIFY_NAIVE; rule <= SPEC_VERIFY_TRAVERSAL; rule++) {
        if (!(t->rules & rules & 1u << rule)) continue;
        out[n] = (probs_case){ .tree = *t, .rule = (spec_verify_rule)rule, .start = s->start, .sampling = s->sampling,
                               .n_draw = draws_of_seed(setting == 0 && !request), .request = request };
        snprintf(out[n].name, sizeof out->name, "%s, %s%s", t->name, s->name, request ? ", request" : "");
        n += is_there(&out[n]);
    }
    return n;
}

static bool takes_requests(const probs_tree *t)
{
    for (int32_t i = 0; i < N_REQUEST_TREE; i++)
        if (strcmp(t->name, request_trees[i]) == 0) return true;
    return false;
}

static int32_t make_cases(probs_case *out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < N_TREE * N_SETTING; i++)
        n += add_cases(out + n, &trees[i / N_SETTING], i % N_SETTING, NULL, UINT32_MAX);
    for (int32_t i = 0; i < N_TREE * N_SETTING; i++)
        if (takes_requests(&trees[i / N_SETTING]))
            n += add_cases(out + n, &trees[i / N_SETTING], i % N_SETTING, &requests[i % N_SETTING], REQUEST_RULES);
    for (int32_t i = 0; i < N_VARIANT; i++) {
        out[n] = variants[i];
        out[n].n_draw = draws_of_seed(false);
        n += is_there(&out[n]);
    }
    return n;
}

static void print_case(const probs_case *c, const probs_counts *k)
{
    double p[N_STATISTIC];
    const double accepts = expected_acceptance(c);
    p_values(p, c, k);
    print_message("  %-42s %-10s %8lld draws, p:", c->name, spec_verify_rule_name(c->rule), (long long)k->n);
    for (int i = 0; i < N_STATISTIC; i++)
        if (i != ACCEPT || accepts >= 0) print_message(" %s %.3g,", statistic_names[i], p[i]);
    print_message(" accepted %.5f", (double)k->accepted / (double)k->n);
    if (accepts >= 0) print_message(" of %.5f", accepts);
    print_message("\n");
}

/* SPEC_DISTRIBUTION_CASES=A-B: cases A to B, counted from 1, and none of the other tests; so processes can share the
 * work. */
static const char *only_cases(void)
{
    const char *text = getenv("SPEC_DISTRIBUTION_CASES");
    return text && *text ? text : NULL;
}

/* The cases [*first, *end) of n_case. */
static void case_range(int32_t n_case, int32_t *first, int32_t *end)
{
    const char *text = only_cases();
    *first = 0, *end = n_case;
    if (!text) return;
    if (sscanf(text, "%d-%d", first, end) != 2 || *first < 1 || *end < *first || *end > n_case)
        fail_msg("SPEC_DISTRIBUTION_CASES is \"%s\", not two of the numbers 1 to %d, as in 1-%d", text, n_case, n_case);
    (*first)--;
}

/* Each case by itself and by seed; n_test: statistics of all cases, here or in other processes. */
static int32_t check_counts(const probs_case *cases, int32_t n_case, const probs_counts *counts, int32_t n_test)
{
    const int32_t n_seed = size->n_seed;
    const double bar = 0.001 / n_test;
    int32_t n_bad = 0;
    for (int32_t i = 0; i < n_case; i++) {
        probs_counts all = { 0 };
        for (int32_t j = 0; j < n_seed; j++) {
            char what[32];
            snprintf(what, sizeof what, "seed %d", 1 + j);
            n_bad += check_p(&cases[i], what, &counts[i * n_seed + j], bar);
            add_counts(&all, &counts[i * n_seed + j]);
        }
        n_bad += check_p(&cases[i], "all seeds", &all, bar);
        print_case(&cases[i], &all);
    }
    return n_bad;
}

static void check_distributions(void **state)
{
    enum { SEEDS = 5 }; /* of a job */
    probs_case *all = calloc(MAX_CASE, sizeof *all);
    const int32_t n_all = make_cases(all), n_seed = size->n_seed, n_part = (n_seed + SEEDS - 1) / SEEDS;
    int32_t first, end;
    (void)state;
    case_range(n_all, &first, &end);
    const probs_case *cases = all + first;
    const int32_t n_case = end - first;
    probs_counts *counts = calloc((size_t)n_case * (size_t)n_seed, sizeof *counts);
    probs_job *jobs = calloc((size_t)n_case * (size_t)n_part, sizeof *jobs);
    /* Neighbours are of different kinds: threads wait for different things. */
    for (int32_t i = 0; i < n_case * n_part; i++) {
        const int32_t c = i % n_case, seed = i / n_case * SEEDS, left = n_seed - seed;
        jobs[i] = (probs_job){ .c = &cases[c], .seed = 1 + seed, .n_seed = left < SEEDS ? left : SEEDS,
                             .first = (uint64_t)(first + c) << 32, .n = cases[c].n_draw,
                             .counts = counts + c * n_seed + seed };
    }
    run_jobs(jobs, n_case * n_part);
    const int32_t n_bad = check_counts(cases, n_case, counts, n_all * (n_seed + 1) * N_STATISTIC);
    free(jobs);
    free(counts);
    free(all);
    if (n_bad) fail_msg("%d statistics under the bar", n_bad);
}

/* ------------------------------------------------------------------------ known bugs, and controls --- */

static int32_t parts_of(const probs_case *c, int32_t part)
{
    return c->n_draw <= size->n_bug_max && is_there(c) ? (int32_t)(c->n_draw / part) : 0;
}

/* Counts of each case; in parts, so that all threads have work. */
static void run_cases(probs_counts *counts, const probs_case *cases, int32_t n, int32_t number)
{
    enum { PART = 5000 };
    int32_t n_job = 0, at = 0;
    for (int32_t i = 0; i < n; i++) n_job += parts_of(&cases[i], PART);
    probs_job *jobs = calloc((size_t)n_job, sizeof *jobs);
    probs_counts *parts = calloc((size_t)n_job, sizeof *parts);
    for (int32_t i = 0; i < n; i++)
        for (int32_t part = 0; part < parts_of(&cases[i], PART); part++, at++)
            jobs[at] = (probs_job){ .c = &cases[i], .seed = 1, .n_seed = 1, .n = PART, .counts = &parts[at],
                                  .first = ((uint64_t)(number + i) << 32) + (uint64_t)part * PART };
    run_jobs(jobs, n_job);
    for (int32_t i = 0; i < n_job; i++) add_counts(&counts[jobs[i].c - cases], &parts[i]);
    free(parts);
    free(jobs);
}

static void check_controls(void **state)
{
    probs_counts *counts = calloc(N_CONTROL, sizeof *counts);
    int32_t n_bad = 0;
    (void)state;
    run_cases(counts, controls, N_CONTROL, 224);
    for (int32_t i = 0; i < N_CONTROL; i++) {
        if (counts[i].n == 0) continue;
        n_bad += check_p(&controls[i], "control", &counts[i], 0.001 / (N_CONTROL * N_STATISTIC));
        print_case(&controls[i], &counts[i]);
    }
    free(counts);
    if (n_bad) fail_msg("%d statistics under the bar", n_bad);
}

static void check_bugs(void **state)
{
    probs_counts *counts = calloc(N_BUG, sizeof *counts);
    int32_t n_unseen = 0;
    (void)state;
    run_cases(counts, bugs, N_BUG, 192);
    for (int32_t i = 0; i < N_BUG; i++) {
        double p[N_STATISTIC];
        int least = 0;
        if (counts[i].n == 0) continue;
        p_values(p, &bugs[i], &counts[i]);
        for (int j = 1; j < N_STATISTIC; j++)
            if (p[j] < p[least]) least = j;
        print_message("  bug: %-44s %8lld draws: p = %.3g (%s)\n", bugs[i].name, (long long)counts[i].n, p[least],
                      statistic_names[least]);
        n_unseen += !(p[least] < 1e-9);
    }
    free(counts);
    if (n_unseen) fail_msg("%d known bugs were not seen", n_unseen);
}

/* ------------------------------------------------------------------------- rules that do not fit --- */

typedef struct answer {
    int32_t path[MAX_NODE], n_path, token;
} answer;

static probs_work *open_one(const probs_case *c)
{
    probs_work *w = calloc(1, sizeof *w);
    spec_sampling sampling = c->sampling;
    OK(open_work(w, c, 1));
    sampling.seed = 12;
    OK(add_sampled(w->s, &w->seqs[0], &c->start, 1, &sampling));
    return w;
}

static answer ask(probs_work *w, spec_verify_rule rule)
{
    answer a = { .n_path = 0 };
    OK(spec_verify(w->s, a.path, &a.n_path, &a.token, w->seqs[0], rule));
    return a;
}

static void check_same(const probs_work *w, const answer *a, const answer *b)
{
    const int32_t *ids;
    size_t n;
    assert_memory_equal(a, b, sizeof *a);
    OK(spec_sequence_ids(w->s, &ids, &n, w->seqs[0]));
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], w->c->start);
}

/* All rules at a scored tree: those of the table walk it; each other one says no, and nothing has changed. */
static answer check_rules_of(const probs_case *c)
{
    probs_work *w = open_one(c);
    OK(draft_and_score(w, 1));
    const answer naive = ask(w, SPEC_VERIFY_NAIVE);
    for (int i = SPEC_VERIFY_GREEDY; i <= SPEC_VERIFY_TRAVERSAL; i++) {
        const spec_verify_rule rule = (spec_verify_rule)i;
        answer a;
        if (c->tree.rules & 1u << i) {
            OK(spec_verify_is_lossless(w->scored[0], rule, 1));
            (void)ask(w, rule);
        } else {
            FAILS(spec_verify_is_lossless(w->scored[0], rule, 1), SPEC_E_INVALID, spec_verify_rule_name(rule));
            FAILS(spec_verify(w->s, a.path, &a.n_path, &a.token, w->seqs[0], rule), SPEC_E_INVALID,
                  spec_verify_rule_name(rule));
        }
        a = ask(w, SPEC_VERIFY_NAIVE);
        check_same(w, &a, &naive);
    }
    close_work(w);
    return naive;
}

/* A session that was opened for such a rule steps no step, and then goes on as if none had been asked for. */
static void check_refused_step(probs_case c, const answer *naive)
{
    for (int rule = SPEC_VERIFY_GREEDY; rule <= SPEC_VERIFY_TRAVERSAL; rule++) {
        if (c.tree.rules & 1u << rule) continue;
        c.rule = (spec_verify_rule)rule;
        probs_work *w = open_one(&c);
        FAILS(spec_step(w->s, w->results, w->seqs, 1), SPEC_E_INVALID, spec_verify_rule_name(c.rule));
        OK(draft_and_score(w, 1));
        const answer a = ask(w, SPEC_VERIFY_NAIVE);
        check_same(w, &a, naive);
        OK(spec_commit(w->s, w->seqs[0], a.path, a.n_path, a.token));
        close_work(w);
    }
}

static void check_refusals(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_TREE; i++) {
        probs_case c = { .tree = trees[i], .start = 3, .sampling = PLAIN };
        if (c.tree.source >= FROM_HEAD && c.tree.source <= FROM_ROWS_LEFT) continue; /* it has drafted nothing yet */
        const answer naive = check_rules_of(&c);
        if (!is_edited(&c)) check_refused_step(c, &naive);
    }
}

/* ---------------------------------------------------------------------------------- whose distributions --- */

/* Drafts of `n` sequences; the caller closes. */
static probs_work *draft_many(const probs_case *c, int32_t n)
{
    probs_work *w = calloc(1, sizeof *w);
    spec_sampling sampling = c->sampling;
    OK(open_work(w, c, n));
    for (int32_t i = 0; i < n; i++) {
        sampling.seed = 100 + (uint64_t)i;
        OK(add_sampled(w->s, &w->seqs[i], &c->start, 1, &sampling));
    }
    OK(spec_draft(w->s, w->scored, w->seqs, n));
    return w;
}

static int32_t depth_of(const spec_tree *t)
{
    int32_t depth[MAX_NODE], deepest = 0;
    spec_tree_depths(t, depth);
    for (int32_t i = 0; i < t->n; i++)
        if (depth[i] > deepest) deepest = depth[i];
    return deepest;
}

/* A network's distributions and the same distributions told by an application grow the same trees: on a device or not,
 * by levels or host-driven. */
static void check_same_trees(void **state)
{
    enum { N = 64 };
    (void)state;
    for (int32_t i = 0; i < N_TREE; i++) {
        probs_case c = { .tree = trees[i], .start = 3, .sampling = PLAIN };
        if (c.tree.source != FROM_MODEL || c.tree.edit != AS_DRAFTED) continue;
        probs_work *a = draft_many(&c, N);
        c.tree.source = FROM_DISTRIBUTIONS;
        probs_work *b = draft_many(&c, N);
        int32_t n_same = 0;
        for (int32_t k = 0; k < N; k++) {
            const spec_tree *x = a->scored[k], *y = b->scored[k];
            if (depth_of(x) > PROBS_CONTEXT + 1 || depth_of(y) > PROBS_CONTEXT + 1) continue; /* app_distributions knows no more */
            n_same++;
            if (x->n != y->n) fail_msg("%s: %d nodes from a network, %d from its distributions", trees[i].name, x->n, y->n);
            assert_int_equal(x->kind, y->kind);
            assert_memory_equal(x->token, y->token, (size_t)x->n * sizeof *x->token);
            assert_memory_equal(x->parent, y->parent, (size_t)x->n * sizeof *x->parent);
            assert_memory_equal(x->rank, y->rank, (size_t)x->n * sizeof *x->rank);
            for (int32_t j = 0; j < x->n; j++) assert_float_equal(x->prob[j], y->prob[j], 1e-5);
        }
        assert_true(n_same > N / 2);
        close_work(b);
        close_work(a);
    }
}

/* ------------------------------------------------------------------------------------------ main --- */

static void check_fixture(void **state)
{
    (void)state;
    probs_check_fixture(target);
}

/* The target has a tokenizer of its eight tokens; a drafter has another one, of which six are the same. */
static void open_named(void)
{
#ifdef SPEC_NO_TOKENIZER
    target = support_model(backend, SPEC_TEST_DIR "/golden/law8-target", SPEC_DTYPE_F32);
#else
    char dir[64], *text = support_other_tokenizer8();
    const variant_file named = { "tokenizer.json", support_tokenizer8 }, others = { "tokenizer.json", text };
    support_variant(dir, SPEC_TEST_DIR "/golden/law8-target", &named, 1);
    target = support_model(backend, dir, SPEC_DTYPE_F32);
    support_variant_remove(dir);
    support_variant(dir, SPEC_TEST_DIR "/golden/law8-drafter", &others, 1);
    other = support_model(backend, dir, SPEC_DTYPE_F32);
    support_variant_remove(dir);
    free(text);
#endif
}

static int open_models(void **state)
{
    (void)state;
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    p.n_threads = 1; /* the jobs are the threads */
    backend = support_backend_again(&p);
    if (!backend) return -1;
    open_named();
    drafter = support_model(backend, SPEC_TEST_DIR "/golden/law8-drafter", SPEC_DTYPE_F32);
    head = support_model(backend, SPEC_TEST_DIR "/golden/heads/eagle2-law8", SPEC_DTYPE_F32);
    head_of_5 = support_model(backend, SPEC_TEST_DIR "/golden/heads/eagle3-law8", SPEC_DTYPE_F32);
    chain_head = support_model(backend, SPEC_TEST_DIR "/golden/heads/lyanna-law8", SPEC_DTYPE_F32);
    target_logits = calloc(1, sizeof *target_logits);
    draft_logits = calloc(1, sizeof *draft_logits);
    probs_read_logits(target_logits, target);
    probs_read_logits(draft_logits, drafter);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    free(target_logits);
    free(draft_logits);
    spec_model_close(other);
    spec_model_close(chain_head);
    spec_model_close(head_of_5);
    spec_model_close(head);
    spec_model_close(drafter);
    spec_model_close(target);
    spec_backend_close(backend);
    return 0;
}

int support_probs_run(const probs_size *s)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probs_check_chi_square), cmocka_unit_test(check_fixture),  cmocka_unit_test(check_refusals),
        cmocka_unit_test(check_same_trees),     cmocka_unit_test(check_bugs),     cmocka_unit_test(check_controls),
        cmocka_unit_test(check_distributions),
    };
    size = s;
    if (only_cases()) {
        const struct CMUnitTest distributions[] = { cmocka_unit_test(check_distributions) };
        return cmocka_run_group_tests_name("decode_probs", distributions, open_models, close_models);
    }
    return cmocka_run_group_tests_name("decode_probs", tests, open_models, close_models);
}
