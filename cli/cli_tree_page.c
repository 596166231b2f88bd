/* cli_tree_page.c - the page of `spec tree`. Its data is one JSON object in a script element:
 *
 *   { model, drafter, ..., prompt,
 *     ids: [token id], texts: [its text or null],     every token of the steps once; elsewhere tokens are places in it
 *     steps: [{ token, parent, rank, draft, target: [n], path: [n_path], next, next_target, chosen, text }] }
 */
#include "cli/cli_tree_page.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_text.h"

/* --- JSON in a script element --- */

/* "<" would let text end the script element or open a comment in it; U+2028 and U+2029 end lines for some readers. */
static bool needs_escape(uint32_t c)
{
    return c < 0x20 || c == 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || c == 0x2028 ||
           c == 0x2029;
}

static void put_string(FILE *to, const char *text, size_t n)
{
    fputc('"', to);
    for (size_t i = 0, size; i < n; i += size) {
        uint32_t c = 0;
        size = cli_character(text + i, n - i, &c);
        if (size == 0)
            fprintf(to, "\\\\x%02x", (unsigned)(unsigned char)text[i]), size = 1;
        else if (needs_escape(c))
            fprintf(to, "\\u%04x", (unsigned)c);
        else
            fwrite(text + i, 1, size, to);
    }
    fputc('"', to);
}

static void put_text(FILE *to, const char *key, const char *text)
{
    fprintf(to, "\"%s\":", key);
    if (text != NULL)
        put_string(to, text, strlen(text));
    else
        fputs("null", to);
    fputc(',', to);
}

static void put_number(FILE *to, double x) /* JSON has no infinity */
{
    if (isfinite(x))
        fprintf(to, "%.4g", x);
    else
        fputs("null", to);
}

static void put_value(FILE *to, const char *key, double x)
{
    fprintf(to, "\"%s\":", key);
    put_number(to, x);
    fputc(',', to);
}

static void put_integers(FILE *to, const char *key, const int32_t *x, int32_t n)
{
    fprintf(to, "\"%s\":[", key);
    for (int32_t i = 0; i < n; i++) fprintf(to, "%s%d", i > 0 ? "," : "", x[i]);
    fputs("],", to);
}

static void put_numbers(FILE *to, const char *key, const float *x, int32_t n)
{
    fprintf(to, "\"%s\":[", key);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0) fputc(',', to);
        put_number(to, (double)x[i]);
    }
    fputs("],", to);
}

/* --- the tokens that occur, ascending --- */

typedef struct token_list {
    int32_t *id;
    size_t n;
} token_list;

static int by_id(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool collect_tokens(token_list *list, const cli_tree_page *page)
{
    size_t n = 1;
    for (int32_t i = 0; i < page->n_step; i++) n += (size_t)page->steps[i].n + 1;
    *list = (token_list){ malloc(n * sizeof *list->id), 0 };
    if (list->id == NULL) return false;
    n = 0;
    for (int32_t i = 0; i < page->n_step; i++) {
        const cli_tree_step *step = &page->steps[i];
        for (int32_t k = 0; k < step->n; k++) list->id[n++] = step->token[k];
        list->id[n++] = step->next;
    }
    qsort(list->id, n, sizeof *list->id, by_id);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || list->id[i] != list->id[i - 1]) list->id[list->n++] = list->id[i];
    return true;
}

static int32_t place_of(const token_list *list, int32_t id)
{
    const int32_t *found = bsearch(&id, list->id, list->n, sizeof *list->id, by_id);
    return (int32_t)(found - list->id);
}

static void put_tokens(FILE *to, const cli_tree_page *page, const token_list *list)
{
    put_integers(to, "ids", list->id, (int32_t)list->n);
    fputs("\n\"texts\":[", to);
    for (size_t i = 0; i < list->n; i++) {
        size_t n = 0;
        const char *text = page->piece(page->user_data, list->id[i], &n);
        if (i > 0) fputc(',', to);
        if (text != NULL)
            put_string(to, text, n);
        else
            fputs("null", to);
    }
    fputs("],\n", to);
}

/* --- the page --- */

static void put_settings(FILE *to, const cli_tree_page *page)
{
    const spec_sampling *s = &page->sampling;
    put_text(to, "model", page->model);
    put_text(to, "drafter", page->drafter);
    put_text(to, "tree", page->tree);
    put_text(to, "verify", page->verify);
    put_text(to, "adapt", page->adapt);
    put_text(to, "device", page->device);
    put_text(to, "dtype", page->dtype);
    put_text(to, "stop", page->stop);
    put_text(to, "version", page->version);
    fprintf(to, "\"top_k\":%d,\"seed\":\"%llu\",", s->top_k, (unsigned long long)s->seed);
    put_value(to, "temperature", (double)s->temperature);
    put_value(to, "top_p", (double)s->top_p);
    put_value(to, "min_p", (double)s->min_p);
    fputs("\"prompt\":", to);
    put_string(to, page->prompt, page->n_prompt);
    fputs(",\n", to);
}

static void put_step(FILE *to, const cli_tree_step *step, const token_list *list)
{
    fputs("{\"token\":[", to);
    for (int32_t i = 0; i < step->n; i++) fprintf(to, "%s%d", i > 0 ? "," : "", place_of(list, step->token[i]));
    fputs("],", to);
    put_integers(to, "parent", step->parent, step->n);
    put_integers(to, "rank", step->rank, step->n);
    put_numbers(to, "draft", step->draft, step->n);
    put_numbers(to, "target", step->target, step->n);
    put_integers(to, "path", step->path, step->n_path);
    fprintf(to, "\"next\":%d,\"next_target\":", place_of(list, step->next));
    put_number(to, (double)step->next_target);
    fprintf(to, ",\"chosen\":%d,\"text\":", step->chosen);
    put_string(to, step->text, step->n_text);
    fputc('}', to);
}

spec_status cli_tree_page_write(FILE *to, const cli_tree_page *page)
{
    token_list list;
    if (!collect_tokens(&list, page)) return SPEC_E_NOMEM;
    fwrite(cli_tree_page_head, 1, cli_tree_page_head_bytes, to);
    fputs("{", to);
    put_settings(to, page);
    put_tokens(to, page, &list);
    fputs("\"steps\":[", to);
    for (int32_t i = 0; i < page->n_step; i++) {
        fputs(i > 0 ? ",\n" : "\n", to);
        put_step(to, &page->steps[i], &list);
    }
    fputs("]}", to);
    fwrite(cli_tree_page_tail, 1, cli_tree_page_tail_bytes, to);
    free(list.id);
    return fflush(to) != 0 || ferror(to) ? SPEC_E_IO : SPEC_OK;
}
