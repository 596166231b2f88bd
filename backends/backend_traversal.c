/* backend_traversal.c - the traversal schedule: the order in which a scan takes the new nodes of a tree (spec_traversal_node;
 * algorithms.md 8.3).
 *
 * A whole tree is taken depth first, smallest subtree first. A node with several children saves its state; all but the
 * child that comes right after it load it from there. A waiting state belongs to an ancestor whose largest child is
 * still to come, so each one more than halves what is left: at most log2 n wait. */
#include "backends/backend.h"

enum { MAX_NODE = 512 /* SPEC_MAX_SAVED states would do for larger trees, too: spec_traversal_saved */ };

typedef struct walk {
    const spec_step_node *nodes;
    int32_t n;
    int32_t size[MAX_NODE];  /* of the subtree */
    int32_t left[MAX_NODE];  /* children still to come */
    int32_t saved[MAX_NODE]; /* as which saved state it waits, -1 = none */
    bool done[MAX_NODE];
} walk;

/* The smallest child still to come of the nearest of `at` and its ancestors that has one; -1 at the end. */
static int32_t next_node(const walk *w, int32_t at)
{
    while (at >= 0 && w->left[at] == 0) at = w->nodes[at].parent;
    int32_t next = -1;
    for (int32_t c = at + 1; at >= 0 && c < w->n; c++)
        if (w->nodes[c].parent == at && !w->done[c] && (next < 0 || w->size[c] < w->size[next])) next = c;
    return next;
}

static void whole_tree(const spec_step_node *nodes, int32_t n, spec_traversal_node *schedule)
{
    walk w = { .nodes = nodes, .n = n };
    for (int32_t i = 0; i < n; i++) w.size[i] = 1, w.saved[i] = -1;
    for (int32_t i = n - 1; i > 0; i--) w.size[nodes[i].parent] += w.size[i], w.left[nodes[i].parent]++;
    int32_t at = -1, node = n > 0 ? 0 : -1, n_saved = 0;
    for (; node >= 0; at = node, node = next_node(&w, node)) {
        const int32_t parent = nodes[node].parent;
        *schedule = (spec_traversal_node){ .node = node, .load = parent == at ? SPEC_LOAD_LIVE : w.saved[parent], .save = -1 };
        w.done[node] = true;
        if (parent >= 0 && --w.left[parent] == 0 && w.saved[parent] >= 0) n_saved--; /* nobody needs it after this */
        if (w.left[node] > 1) schedule->save = w.saved[node] = n_saved++;
        schedule++;
    }
}

void speci_traversal_schedule(const spec_step_node *nodes, int32_t n_fed, int32_t n_given, int32_t n_row,
                               spec_traversal_node *schedule)
{
    if (n_fed == 0 && n_given == n_row && n_row > 1 && n_row <= MAX_NODE) {
        whole_tree(nodes, n_row, schedule);
        return;
    }
    for (int32_t i = 0; i < n_row; i++) {
        const int32_t node = n_fed + i;
        const bool live = node == 0 || (node < n_given && nodes[node].parent == (i > 0 ? node - 1 : -1));
        schedule[i] = (spec_traversal_node){ .node = node, .load = live ? SPEC_LOAD_LIVE : SPEC_LOAD_PATH, .save = -1 };
    }
}
