/* text_other.c - tokenizers in formats that are not read, told by a file's name or first bytes. */
#include <string.h>

#include "models/text/text_tokenizer.h"

#define MAKE "make tokenizer.json (transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"

/* "IQ== 0", a token in base64 and its rank, is tiktoken's first line. */
static bool is_tiktoken(const uint8_t *data, size_t n)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    size_t i = 0, rank;
    while (i < n && data[i] && strchr(base64, data[i])) i++;
    if (i == 0 || i % 4 || i >= n || data[i] != ' ') return false;
    for (rank = ++i; i < n && data[i] >= '0' && data[i] <= '9';) i++;
    return i > rank && i < n && (data[i] == '\n' || data[i] == '\r');
}

spec_status speci_tokenizer_refuse_other(const char *path, const uint8_t *data, size_t n)
{
    if (speci_ends_with(path, "tekken.json"))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tekken files are not read: " MAKE, path);
    if (speci_ends_with(path, ".tiktoken") || is_tiktoken(data, n))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tiktoken files are not read: " MAKE, path);
    return SPEC_OK;
}

spec_status speci_tokenizer_none(const char *dir)
{
    static const char *const others[] = { "tekken.json", ".tiktoken", "merges.txt" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (speci_dir_has_ending(dir, others[i]))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: neither tokenizer.json nor tokenizer.model is there, and %s is not read: "
                              MAKE, dir, others[i]);
    return speci_fail(SPEC_E_IO, "%s: neither tokenizer.json nor tokenizer.model is there: " MAKE, dir);
}
