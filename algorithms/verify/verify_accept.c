/* verify_accept.c - rules that the device decides at every node at once (spec_backend_ops.accept): the walk from the
 * root is then a look-up. A position's draws are keyed by (seed, position, purpose), so it is decided once, whatever
 * the tree. */
#include "algorithms/verify/verify.h"

/* The next free call: its rows begin at p_row `row`. */
static spec_accept_args begin_call(speci_verify_batch *b, int32_t row, bool repeat)
{
    speci_verify_rows *r = &b->rows;
    const int32_t ld = b->n_vocab;
    int32_t *first = r->first + row + r->n_call++; /* each call has one entry more than rows */
    first[0] = 0;
    return (spec_accept_args){ .p = b->p, .q = b->q, .ld_p = ld, .ld_q = ld, .n_vocab = ld, .repeat = repeat,
                               .host_p_row = r->dst + row, .host_q_row = r->q_row + row, .host_first_candidate = first,
                               .host_candidate = r->candidate + r->n_candidate, .host_u = r->u + r->n_candidate,
                               .host_u_last = r->u_last + row, .host_out_choice = r->choice + row,
                               .host_out_token = r->token + row, .next = b->next };
}

/* The children of `node` as candidates of the call; how many. position: of the token that follows the node. */
static int32_t add_candidates(speci_verify_rows *r, const speci_verify_item *x, int32_t node, uint64_t position)
{
    int32_t n = 0;
    for (int32_t c = -1; (c = speci_tree_next_child(x->tree, node, c)) >= 0; n++) {
        const int32_t at = r->n_candidate++;
        r->candidate[at] = x->tree->token[c];
        r->u[at] = spec_uniform(x->sampling->seed, position, SPECI_DRAW_ACCEPT, (uint32_t)n);
    }
    return n;
}

static void add_nodes(speci_verify_batch *b, const speci_verify_item *x, spec_accept_args *a)
{
    speci_verify_rows *r = &b->rows;
    int32_t *first = r->first + (a->host_first_candidate - r->first);
    for (int32_t node = 0; node < x->tree->n; node++) {
        const int32_t row = x->p_row + node;
        const uint64_t position = x->position + (uint64_t)speci_tree_depth(x->tree, node);
        const int32_t n = x->rule->uses_draft_probs ? add_candidates(r, x, node, position) : 0;
        r->q_row[row] = n > 0 ? x->q_row + x->tree->q_row[node] : -1;
        r->u_last[row] = spec_uniform(x->sampling->seed, position, n > 0 ? SPECI_DRAW_RESIDUAL : SPECI_DRAW_TARGET, 0);
        a->n_candidate += n;
        first[++a->n_row] = a->n_candidate;
    }
}

static spec_status enqueue(speci_verify_batch *b, const speci_verify_item *items)
{
    spec_accept_args a = begin_call(b, items->p_row, items->rule->device == &speci_verify_by_accept_repeat);
    for (const speci_verify_item *x = items; x; x = x->next) add_nodes(b, x, &a);
    return b->ops->accept(b->queue, &a);
}

/* --- the walk --- */

typedef struct results {
    const speci_verify_item *x;
    const int32_t *choice, *token; /* [tree->n] of accept */
} results;

static int32_t nth_child(const spec_tree *t, int32_t node, int32_t n)
{
    int32_t child = -1;
    while (n-- >= 0) child = speci_tree_next_child(t, node, child);
    return child;
}

/* A rejected candidate cannot be drawn again: a child that has the residual's token has p > 0 there only by rounding,
 * and to follow it would be wrong. So only a rule without candidates follows the token. */
static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    const results *r = arg;
    (void)depth;
    *token = r->token[node];
    if (!r->x->rule->uses_draft_probs) *child = speci_tree_child_with(r->x->tree, node, *token);
    else *child = r->choice[node] < 0 ? -1 : nth_child(r->x->tree, node, r->choice[node]);
    return SPEC_OK;
}

static spec_status walk(const speci_verify_batch *b, const speci_verify_item *items)
{
    for (const speci_verify_item *x = items; x; x = x->next) {
        results r = { .x = x, .choice = b->rows.choice + x->p_row, .token = b->rows.token + x->p_row };
        SPEC_TRY(speci_verify_walk(decide, &r, x, x->path, x->n_path, x->token));
    }
    return SPEC_OK;
}

const speci_verify_device speci_verify_by_accept = { .needs_probs = true, .enqueue = enqueue, .walk = walk };
const speci_verify_device speci_verify_by_accept_repeat = { .needs_probs = true, .enqueue = enqueue, .walk = walk };
