/* support_drafts.c - see support_drafts.h. */
#include "tests/support_drafts.h"

#include <stdlib.h>
#include <string.h>

#include "algorithms/engine/engine.h"
#include "tests/support_sequence.h"

enum { N_SEQ = 3, MAX_NODE = 256, MAX_PATH = SPEC_MAX_DEPTH + 1 };

typedef struct drafting {
    const drafts_run *run;
    drafts_counts *counts;
    spec_session *s, *plain;
    spec_builder *builder; /* of the plain trees */
    spec_builder_info info;
    int32_t n_vocab, n_node;
    int32_t seq[N_SEQ], plain_seq[N_SEQ];
    float *p, *q;          /* [MAX_NODE][n_vocab] */
    spec_tree tree;
} drafting;

/* ------------------------------------------------------------------------------- plain trees --- */

typedef struct asking {
    drafting *d;
    int32_t seq;
} asking;

static spec_status plain_distributions(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n,
                                       float *distributions, int32_t n_vocab)
{
    const asking *a = user_data;
    spec_session *s = a->d->plain;
    OK(spec_score(s, &a->seq, 1, &tree));
    for (int32_t i = 0; i < n; i++)
        OK(spec_node_probs(s, distributions + (size_t)i * (size_t)n_vocab, a->seq, nodes[i]));
    return SPEC_OK;
}

/* As many levels of drafts as can be accepted before the text ends. */
static int32_t room_of(const drafting *d, int32_t k)
{
    const engine_seq *q = &d->s->seqs[d->seq[k]];
    const int32_t room = q->n_limit - q->n_ids - 1;
    return room < d->n_node - 1 ? room : d->n_node - 1;
}

static void build_plainly(drafting *d, int32_t k)
{
    const engine_seq *q = &d->s->seqs[d->seq[k]];
    asking a = { d, d->plain_seq[k] };
    const int32_t room = room_of(d, k);
    const spec_build_args args = { .struct_size = sizeof args, .token = q->ids[q->n_ids - 1], .n_vocab = d->n_vocab,
                                   .probs = plain_distributions, .user_data = &a,
                                   .draw = q->request.p.sampling.temperature > 0, .seed = q->request.p.sampling.seed, .step = q->n_step,
                                   .depth_max = room };
    d->tree.n = 0;
    if (room > 0) OK(spec_builder_build(d->builder, &d->tree, &args));
    else (void)spec_tree_add(&d->tree, -1, args.token, 1.0f);
    if (d->tree.n > d->n_node) d->tree.n = d->n_node;
}

static bool same_tree(const spec_tree *a, const spec_tree *b)
{
    const size_t bytes = (size_t)a->n * sizeof(int32_t);
    return speci_tree_equal(a, b) && memcmp(a->rank, b->rank, bytes) == 0 &&
           memcmp(a->prob, b->prob, (size_t)a->n * sizeof(float)) == 0 && (a->n == 1 || a->kind == b->kind);
}

/* ------------------------------------------------------------------------------------- walks --- */

/* The run's rule, and where it does not fit a tree the one that does. */
static spec_verify_rule rule_for(const drafting *d, int32_t k, const spec_tree *t)
{
    const float temperature = d->s->seqs[d->seq[k]].request.p.sampling.temperature;
    return spec_verify_is_lossless(t, d->run->verify, temperature) == SPEC_OK ? d->run->verify : SPEC_VERIFY_AUTO;
}

/* The walk over the distributions that the session tells, by the same rule. */
static void walk_plainly(drafting *d, int32_t k, const spec_tree *t, int32_t *path, int32_t *n_path, int32_t *token)
{
    spec_session *s = d->s;
    const size_t row = (size_t)d->n_vocab;
    const engine_seq *q = &s->seqs[d->seq[k]];
    spec_tree by_node = *t;
    int32_t q_row[MAX_NODE];
    for (int32_t i = 0; i < t->n; i++) {
        OK(spec_node_probs(s, d->p + (size_t)i * row, d->seq[k], i));
        q_row[i] = t->q_row[i] >= 0 ? i : -1;
        if (t->q_row[i] >= 0) OK(spec_draft_probs(s, d->q + (size_t)i * row, d->seq[k], t->q_row[i]));
    }
    by_node.q_row = q_row;
    const spec_verify_args args = { .struct_size = sizeof args, .tree = &by_node, .n_vocab = d->n_vocab, .p = d->p,
                                    .q = d->q, .rule = rule_for(d, k, t), .temperature = q->request.p.sampling.temperature,
                                    .seed = q->request.p.sampling.seed, .position = (uint64_t)q->n_ids };
    OK(spec_verify_probs(path, n_path, token, &args));
}

static void advance(drafting *d, int32_t k, const spec_tree *t, const int32_t *path, int32_t n_path, int32_t token)
{
    int32_t ids[MAX_PATH], parent[MAX_PATH], chain[MAX_PATH], ranks[MAX_PATH], n = 0;
    for (int32_t i = 0; i < n_path; i++) ids[i] = t->token[path[i]], parent[i] = i - 1, chain[i] = i;
    for (int32_t i = 1; i < n_path; i++) ranks[n++] = t->rank[path[i]];
    if (speci_tree_next_child(t, path[n_path - 1], -1) >= 0) ranks[n++] = -1;
    spec_builder_observe(d->builder, t->n, ranks, n);
    const spec_tree accepted = { .n = n_path, .cap = n_path, .token = ids, .parent = parent }, *trees = &accepted;
    OK(spec_score(d->plain, &d->plain_seq[k], 1, &trees));
    OK(spec_commit(d->plain, d->plain_seq[k], chain, n_path, token));
    OK(spec_commit(d->s, d->seq[k], path, n_path, token));
}

/* Is the tree the plain one? */
static bool check_tree(drafting *d, int32_t k, const spec_tree *t)
{
    drafts_counts *c = d->counts;
    build_plainly(d, k);
    const bool same = same_tree(t, &d->tree);
    c->n_tree++, c->n_drafted += t->n - 1;
    c->n_tree_differ += !same;
    c->n_small += room_of(d, k) < d->info.depth;
    return same;
}

static void check_walk(drafting *d, int32_t k, const spec_tree *t)
{
    int32_t path[2][MAX_NODE + 1], n_path[2], token[2];
    OK(spec_verify(d->s, path[0], &n_path[0], &token[0], d->seq[k], rule_for(d, k, t)));
    walk_plainly(d, k, t, path[1], &n_path[1], &token[1]);
    d->counts->n_walk++;
    d->counts->n_walk_differ += n_path[0] != n_path[1] || token[0] != token[1] ||
                                memcmp(path[0], path[1], (size_t)n_path[0] * sizeof path[0][0]) != 0;
}

/* Drafts, scores, compares and commits for the sequences that are not at their end; false: all are, or a tree
 * differs, which then may be none that can be scored. */
static bool step(drafting *d)
{
    const spec_tree *trees[N_SEQ] = { NULL };
    int32_t seqs[N_SEQ] = { 0 }, who[N_SEQ], n = 0;
    bool same = true;
    for (int32_t k = 0; k < N_SEQ; k++)
        if (d->s->seqs[d->seq[k]].n_ids < d->run->n_token) seqs[n] = d->seq[k], who[n++] = k;
    if (n == 0) return false;
    OK(spec_draft(d->s, trees, seqs, n));
    for (int32_t i = 0; i < n; i++) same = check_tree(d, who[i], trees[i]) && same;
    if (!same) return false;
    OK(spec_score(d->s, seqs, n, trees));
    for (int32_t i = 0; i < n; i++) check_walk(d, who[i], trees[i]);
    for (int32_t i = 0; i < n; i++) {
        int32_t path[MAX_NODE], n_path, token;
        OK(spec_verify(d->s, path, &n_path, &token, seqs[i], rule_for(d, who[i], trees[i])));
        advance(d, who[i], trees[i], path, n_path, token);
    }
    return true;
}

static void add_sequences(drafting *d)
{
    for (int32_t k = 0; k < N_SEQ; k++) {
        int32_t ids[4];
        const size_t n = (size_t)(1 + k);
        spec_sampling sampling = d->run->sampling, plain = sampling;
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(3 * i + (size_t)k + 1) % d->n_vocab;
        sampling.seed += (uint64_t)k;
        /* Deterministic trees are ranked by the plain softmax. */
        if (sampling.temperature == 0 || d->info.kind == SPEC_TREE_DETERMINISTIC)
            plain = (spec_sampling){ .temperature = 1 };
        OK(add_endless(d->s, &d->seq[k], ids, n, &sampling));
        OK(add_sampled(d->plain, &d->plain_seq[k], ids, n, &plain));
        d->s->seqs[d->seq[k]].n_limit = d->run->n_token; /* as spec_generate does */
    }
}

void support_drafts(drafts_counts *counts, const drafts_run *run)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_model_info model = { .struct_size = sizeof model };
    spec_drafter *drafter = NULL;
    drafting d = { .run = run, .counts = counts, .info = { .struct_size = sizeof d.info } };
    OK(spec_model_get_info(run->target, &model, 1));
    d.n_vocab = model.n_vocab;
    OK(spec_builder_open(&d.builder, run->tree, NULL));
    OK(spec_builder_get_info(d.builder, &d.info));
    OK(spec_tree_alloc(&d.tree, d.info.n_node, NULL));
    d.p = calloc((size_t)MAX_NODE * (size_t)d.n_vocab, sizeof *d.p);
    d.q = calloc((size_t)MAX_NODE * (size_t)d.n_vocab, sizeof *d.q);
    dp.tree = run->tree;
    sp.n_seq = N_SEQ, sp.n_node = run->n_node, sp.n_ctx = run->n_token;
    OK(spec_drafter_from_model(&drafter, run->drafter, &dp));
    OK(spec_session_open(&d.s, run->target, drafter, &sp));
    d.n_node = d.s->n_node;
    sp.n_node = MAX_NODE;
    OK(spec_session_open(&d.plain, run->plain, NULL, &sp));
    add_sequences(&d);
    while (step(&d)) {}
    spec_session_close(d.plain);
    spec_session_close(d.s);
    spec_drafter_close(drafter);
    spec_tree_free(&d.tree, NULL);
    spec_builder_close(d.builder);
    free(d.p);
    free(d.q);
}
