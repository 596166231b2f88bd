/* text_overlap.c - added tokens that lose a text to one another: an end of one begins the other, or one is in the other.
 *
 * Each string is followed, from each of its bytes on, through the trie of those that are looked for otherwise. So the cost grows with the
 * strings, not with the pairs of them. */
#include <string.h>

#include "models/text/text_tokenizer.h"

enum { ENTERED = 1, HELD = 2 }; /* of a node: a string's end came as far as here; a string went on behind what ends here */

/* Follows string [n] from each of its bytes on: does an end of it begin one of the trie's, or has it one in it? marks [n_node], or NULL:
 * receives where. */
static bool follow(const speci_trie *trie, const char *string, size_t n, uint8_t *marks)
{
    bool meets = false;
    for (size_t start = 0; start < n; start++) {
        uint32_t node = 0;
        size_t i = start;
        for (; i < n && (node = speci_trie_child(trie, node, (uint8_t)string[i])) > 0; i++) {
            if (!speci_trie_ends(trie, node)) continue;
            meets = true;
            if (marks) marks[node] |= HELD;
        }
        if (i < n) continue;
        meets = true;
        if (marks) marks[node] |= ENTERED;
    }
    return meets;
}

/* Is a string of the trie marked, or one that it goes on from? */
static bool is_marked(const speci_trie *trie, const char *string, size_t n, const uint8_t *marks)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        if ((node = speci_trie_child(trie, node, (uint8_t)string[i])) == 0) return false;
        if (marks[node] & ENTERED) return true;
    }
    return marks[node] & HELD;
}

static void find_overlaps(bool *out, const speci_added_set *s, uint8_t *marks)
{
    const speci_added *all = (const speci_added *)(const void *)s->items.data;
    const size_t n = s->items.n / sizeof *all;
    for (size_t i = 0; i < n; i++)
        if (!all[i].normalized) (void)follow(&s->normalized, s->text.data + all[i].offset, all[i].n, marks);
    for (size_t i = 0; i < n; i++) {
        const char *string = s->text.data + all[i].shown_offset;
        out[i] = all[i].normalized &&
                 (follow(&s->raw, string, all[i].n_shown, NULL) || is_marked(&s->normalized, string, all[i].n_shown, marks));
    }
}

spec_status speci_added_overlaps(bool *out, const speci_added_set *s)
{
    const size_t n_node = speci_trie_n_node(&s->normalized);
    memset(out, 0, s->items.n / sizeof(speci_added) * sizeof *out);
    if (n_node == 0 || speci_trie_n_node(&s->raw) == 0) return SPEC_OK;
    uint8_t *marks = speci_alloc(s->items.a, n_node, sizeof *marks);
    if (!marks) return SPEC_E_NOMEM;
    find_overlaps(out, s, marks);
    speci_free(s->items.a, marks);
    return SPEC_OK;
}
