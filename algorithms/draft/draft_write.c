/* draft_write.c - drafts of a model with another vocabulary by their text (algorithms.md 18, string-level exact match).
 *
 * The text of a path is encoded by the target's tokenizer, behind the sequence. What that gives are candidates which follow from
 * the draft alone, so the tree is deterministic. */
#include "algorithms/draft/draft_model.h"

typedef struct writer {
    const speci_draft_site *site;
    const spec_tokenizer *own, *target;
    const speci_draft_seq *q;
    speci_buf text, ids; /* of a path: bytes; int32_t */
} writer;

/* The ids below the root, as far as there is room. */
static void add_path(const writer *w)
{
    const int32_t *ids = speci_buf_ids(&w->ids), n = (int32_t)speci_buf_n_ids(&w->ids);
    spec_tree *t = w->q->tree;
    for (int32_t i = 0, node = 0; i < n && i < w->q->depth_max; i++) {
        if (ids[i] >= w->site->target->n_vocab) return;
        const int32_t known = speci_tree_child_with(t, node, ids[i]);
        if (known < 0 && t->n >= w->site->n_node) return;
        node = known >= 0 ? known : spec_tree_add(t, node, ids[i], 0);
    }
}

/* The path to a node of the drafter's tree, up to a token that stands for no text. */
static spec_status write_path(writer *w, const spec_tree *from, int32_t node)
{
    int32_t path[SPEC_MAX_DEPTH + 1], n = 0;
    for (; node > 0; node = from->parent[node]) path[n++] = from->token[node];
    w->text.n = w->ids.n = 0;
    while (n-- > 0) {
        size_t n_piece;
        const char *piece = spec_tokenizer_piece(w->own, &n_piece, path[n]);
        if (!piece || n_piece == 0 || spec_tokenizer_is_special(w->own, path[n])) break;
        SPEC_TRY(speci_buf_add(&w->text, piece, n_piece));
    }
    SPEC_TRY(speci_encode_behind(&w->ids, w->target, w->q->ids, w->q->n_ids, w->text.data, w->text.n));
    add_path(w);
    return SPEC_OK;
}

static bool is_leaf(const spec_tree *t, int32_t node)
{
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->parent[i] == node) return false;
    return true;
}

spec_status speci_draft_write(model_draft *m, const model_seq *s, const speci_draft_seq *q)
{
    const speci_draft_site *site = m->d->site;
    writer w = { .site = site, .own = m->model->tokenizer, .target = site->target->tokenizer, .q = q, .text = { .a = site->a },
                 .ids = { .a = site->a } };
    spec_status status = SPEC_OK;
    for (int32_t i = 1; i < s->written.n && status == SPEC_OK; i++)
        if (is_leaf(&s->written, i)) status = write_path(&w, &s->written, i);
    speci_buf_free(&w.text);
    speci_buf_free(&w.ids);
    return status;
}
