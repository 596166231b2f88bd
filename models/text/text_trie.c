/* text_trie.c - strings to look for, by bytes. */
#include "models/text/text_tokenizer.h"

void speci_trie_free(speci_trie *trie)
{
    speci_pairs_free(&trie->edges);
    speci_buf_free(&trie->leaf);
}

uint32_t speci_trie_child(const speci_trie *trie, uint32_t node, uint8_t byte)
{
    if (node == 0) return trie->root[byte];
    const speci_pair *edge = speci_pairs_get(&trie->edges, node, byte);
    return edge ? (uint32_t)edge->id : 0;
}

size_t speci_trie_n_node(const speci_trie *trie) { return trie->leaf.n / sizeof(uint32_t); }

bool speci_trie_ends(const speci_trie *trie, uint32_t node) { return ((const uint32_t *)(const void *)trie->leaf.data)[node] != 0; }

spec_status speci_trie_put(speci_trie *trie, const char *string, size_t n, size_t index)
{
    uint32_t node = 0, none = 0;
    if (n == 0) return SPEC_OK; /* it would match everywhere */
    if (trie->leaf.n == 0) SPEC_TRY(speci_buf_add(&trie->leaf, &none, sizeof none));
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)string[i];
        uint32_t next = speci_trie_child(trie, node, byte);
        if (next == 0) {
            next = (uint32_t)speci_trie_n_node(trie);
            SPEC_TRY(speci_buf_add(&trie->leaf, &none, sizeof none));
            speci_pair edge = { node, byte, 0, (int32_t)next };
            SPEC_TRY(speci_pairs_put(&trie->edges, edge));
            if (node == 0) trie->root[byte] = next;
        }
        node = next;
    }
    uint32_t *leaf = (uint32_t *)(void *)trie->leaf.data + node;
    if (*leaf == 0) *leaf = (uint32_t)index + 1;
    return SPEC_OK;
}

bool speci_trie_longest(const speci_trie *trie, const char *text, size_t n, size_t *index, size_t *len)
{
    uint32_t node = 0;
    *len = 0;
    for (size_t i = 0; i < n; i++) {
        node = speci_trie_child(trie, node, (uint8_t)text[i]);
        if (node == 0) break;
        uint32_t leaf = ((const uint32_t *)(const void *)trie->leaf.data)[node];
        if (leaf) {
            *index = leaf - 1;
            *len = i + 1;
        }
    }
    return *len > 0;
}
