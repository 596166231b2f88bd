/* draft_trie_propose.c - a tree out of counts (algorithms.md 15; Lookahead of Zhao and others 2024, section 4.2).
 *
 * The last tokens are looked for from the longest suffix to the last token alone. What follows there is taken best first, by
 * (1 - w) f_prompt + w f_past, until the tree is full. A shorter suffix adds to what the longer ones have found, and none is asked
 * any more when the tree has as many nodes below its root as grams have tokens. Counts never grow downwards, so best first takes a
 * node before what is below it. */
#include "algorithms/draft/draft_trie.h"

static const double PAST_WEIGHT = 1e-4;

spec_status speci_trie_proposer_open(speci_trie_proposer *p, int32_t n_node, const spec_allocator *a)
{
    const size_t n = (size_t)n_node;
    *p = (speci_trie_proposer){ .n_node = n_node };
    p->heap = speci_alloc(a, 2 * SPECI_TRIE_LOOK * n, sizeof *p->heap);
    p->order = speci_alloc(a, n, sizeof *p->order);
    p->scratch = speci_alloc(a, 3 * n, sizeof *p->scratch);
    if (!p->heap || !p->order || !p->scratch) return SPEC_E_NOMEM;
    return spec_tree_alloc(&p->tree, n_node, a);
}

void speci_trie_proposer_close(speci_trie_proposer *p, const spec_allocator *a)
{
    speci_free(a, p->heap);
    speci_free(a, p->order);
    speci_free(a, p->scratch);
    spec_tree_free(&p->tree, a);
}

/* --- the heap --- */

static bool is_better(const speci_trie_candidate *a, const speci_trie_candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->order < b->order);
}

static void push(speci_trie_proposer *p, speci_trie_candidate c)
{
    int32_t i = p->n_heap++;
    c.order = p->n_found++;
    for (; i > 0 && is_better(&c, &p->heap[(i - 1) / 2]); i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = c;
}

static speci_trie_candidate pop(speci_trie_proposer *p)
{
    const speci_trie_candidate best = p->heap[0], last = p->heap[--p->n_heap];
    int32_t i = 0;
    for (int32_t k; (k = 2 * i + 1) < p->n_heap; i = k) {
        if (k + 1 < p->n_heap && is_better(&p->heap[k + 1], &p->heap[k])) k++;
        if (!is_better(&p->heap[k], &last)) break;
        p->heap[i] = p->heap[k];
    }
    p->heap[i] = last;
    return best;
}

/* --- followers --- */

static double score_of(const speci_trie_place *at, uint32_t prompt, uint32_t past)
{
    const double in_prompt = prompt ? speci_trie_value(at->prompt, prompt) : 0, in_past = past ? speci_trie_value(at->past, past) : 0;
    return (1 - PAST_WEIGHT) * in_prompt + PAST_WEIGHT * in_past;
}

static uint32_t find_below(const speci_trie_counts *t, uint32_t node, int32_t token)
{
    return node ? speci_trie_find(t, node, token) : 0;
}

/* The followers of `node` in t, which are there: at most SPECI_TRIE_LOOK, the one that was counted last first. */
static int32_t followers(uint32_t *out, const speci_trie_counts *t, uint32_t node)
{
    int32_t n = 0, looked = 0;
    for (uint32_t x = node ? t->node[node].child : 0; x && looked < SPECI_TRIE_LOOK; x = t->node[x].next, looked++)
        if (speci_trie_value(t, x)) out[n++] = x;
    return n;
}

static bool has(const uint32_t *nodes, int32_t n, uint32_t node)
{
    for (int32_t i = 0; i < n; i++)
        if (nodes[i] == node) return true;
    return false;
}

/* What follows c, those of the prompt first; each token once. c itself is node `parent` of the tree. */
static void push_followers(speci_trie_proposer *p, const speci_trie_place *at, const speci_trie_candidate *c, int32_t parent)
{
    uint32_t in_prompt[SPECI_TRIE_LOOK], in_past[SPECI_TRIE_LOOK];
    const int32_t n_prompt = followers(in_prompt, at->prompt, c->prompt), n_past = followers(in_past, at->past, c->past);
    speci_trie_candidate next = { .parent = parent, .depth = c->depth + 1 };
    for (int32_t i = 0; i < n_prompt; i++) {
        next.token = at->prompt->node[in_prompt[i]].token;
        next.prompt = in_prompt[i], next.past = find_below(at->past, c->past, next.token);
        next.score = score_of(at, next.prompt, next.past);
        push(p, next);
    }
    for (int32_t i = 0; i < n_past; i++) {
        next.token = at->past->node[in_past[i]].token;
        next.prompt = find_below(at->prompt, c->prompt, next.token), next.past = in_past[i];
        if (next.prompt && has(in_prompt, n_prompt, next.prompt)) continue;
        next.score = score_of(at, next.prompt, next.past);
        push(p, next);
    }
}

/* --- the tree --- */

static int32_t child_of(const spec_tree *t, int32_t parent, int32_t token)
{
    for (int32_t i = parent + 1; i < t->n; i++)
        if (t->parent[i] == parent && t->token[i] == token) return i;
    return -1;
}

/* Adds what followed one suffix. */
static void add_suffix(speci_trie_proposer *p, const speci_draft_seq *q, const speci_trie_place *at, int32_t n_suffix,
                       const spec_model *target)
{
    const speci_trie_candidate root = { .prompt = at->prompt ? at->in_prompt.at[n_suffix] : 0, .past = at->in_past.at[n_suffix] };
    p->n_heap = 0, p->n_found = 0;
    push_followers(p, at, &root, 0);
    while (p->n_heap > 0) {
        const speci_trie_candidate c = pop(p);
        if (speci_draft_ends_text(target, c.token)) continue;
        int32_t x = child_of(&p->tree, c.parent, c.token);
        if (x < 0 && p->tree.n == p->n_node) return;
        if (x < 0) x = spec_tree_add(&p->tree, c.parent, c.token, 0);
        if (c.depth < q->depth_max) push_followers(p, at, &c, x);
    }
}

void speci_trie_propose(speci_trie_proposer *p, speci_draft_seq *q, const speci_trie_place *at, const spec_model *target)
{
    const int32_t depth = at->past->depth;
    p->tree.n = 0;
    (void)spec_tree_add(&p->tree, -1, q->tree->token[0], 1);
    for (int32_t n = depth - 1; n > 0 && p->tree.n <= depth && p->tree.n < p->n_node; n--) {
        if (p->tree.n == 1 && n < speci_draft_least(q, 0)) break; /* shorter suffixes only add to what was found */
        add_suffix(p, q, at, n, target);
        if (q->n_match == 0 && p->tree.n > 1) q->n_match = n;
    }
    spec_tree_order(&p->tree, p->order, SPEC_ORDER_DEPTH_FIRST, p->scratch);
    (void)spec_tree_permute(&p->tree, q->tree, p->order); /* has the room */
}
