/* choose_cost.c - what a step costs and what it brings (algorithms.md 14, 4.7): tables of measured times, their
 * files, the expected emitted tokens of a shape, and the choice of most tokens per second. */
#include "algorithms/choose/choose.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_json.h"

static const double max_ms = 1e9; /* eleven days */
enum { MAX_ENTRY = sizeof((spec_cost_table *)0)->ms / sizeof(float) };

/* ---------------------------------------------------------------------------------- the table --- */

/* How many entries it has; 0: it is no table. */
static int32_t entries(const spec_cost_table *t) { return t && t->n >= 1 && t->n <= (int32_t)MAX_ENTRY ? t->n : 0; }

/* Below the first entry the first is taken: a smaller pass has its fixed costs too. Beyond the last one, times that
 * happened to fall are not continued: at some size they would be negative. */
float spec_cost_ms(const spec_cost_table *table, int32_t n_node)
{
    const int32_t n = entries(table);
    if (n_node <= 0 || n == 0) return 0;
    int32_t i = 0;
    while (i < n && table->n_node[i] < n_node) i++;
    if (i == 0 || n == 1) return table->ms[0];
    const bool beyond = i == n;
    if (beyond) i--;
    const double x0 = table->n_node[i - 1], x1 = table->n_node[i], y0 = (double)table->ms[i - 1];
    double slope = ((double)table->ms[i] - y0) / (x1 - x0);
    if (!beyond) return (float)(y0 + slope * (n_node - x0));
    if (slope < 0) slope = 0;
    return (float)((double)table->ms[i] + slope * (n_node - x1));
}

double speci_cost_ms(const spec_cost_table *table, double n)
{
    const int32_t whole = n < INT32_MAX - 1 ? (int32_t)n : INT32_MAX - 1;
    const double below = (double)spec_cost_ms(table, whole), part = n - whole;
    return part > 0 ? below + part * ((double)spec_cost_ms(table, whole + 1) - below) : below;
}

/* Polynomials that are orthogonal over the table's nodes: the normal equations are then diagonal, and sizes from 1 to
 * thousands lose no digits.   p0 = 1,  p1 = x - m,  p2 = (x - alpha) p1 - beta */
void spec_cost_fit(const spec_cost_table *table, double coefficient[3], int quadratic)
{
    if (!table || !coefficient) return;
    const int32_t n = entries(table);
    double m = 0, mean = 0, s11 = 0, s1x = 0, s1y = 0;
    coefficient[0] = coefficient[1] = coefficient[2] = 0;
    if (n < 1) return;
    for (int32_t i = 0; i < n; i++) m += table->n_node[i] / (double)n, mean += (double)table->ms[i] / n;
    for (int32_t i = 0; i < n; i++) {
        const double p1 = table->n_node[i] - m;
        s11 += p1 * p1, s1x += p1 * p1 * table->n_node[i], s1y += p1 * (double)table->ms[i];
    }
    if (n < 2 || s11 == 0) {
        coefficient[0] = mean;
        return;
    }
    const double b1 = s1y / s11;
    double b2 = 0, s22 = 0, s2y = 0;
    const double alpha = s1x / s11, beta = s11 / n;
    for (int32_t i = 0; quadratic && n > 2 && i < n; i++) {
        const double p1 = table->n_node[i] - m, p2 = (table->n_node[i] - alpha) * p1 - beta;
        s22 += p2 * p2, s2y += p2 * ((double)table->ms[i] - mean - b1 * p1);
    }
    if (s22 > 0) b2 = s2y / s22;
    coefficient[2] = b2;
    coefficient[1] = b1 - b2 * (alpha + m);
    coefficient[0] = mean - b1 * m + b2 * (alpha * m - beta);
}

/* A table as files and sessions hold it. `where` begins the message. */
static spec_status check_table(const spec_cost_table *t, int32_t n_min, spec_status code, const char *where,
                               const char *name)
{
    if (t->n < n_min || t->n > MAX_ENTRY)
        return speci_fail(code, "%s: \"%s\" has %d entries; %d to %d are possible", where, name, t->n, n_min,
                          MAX_ENTRY);
    for (int32_t i = 0; i < t->n; i++) {
        if (t->n_node[i] < 1 || (i > 0 && t->n_node[i] <= t->n_node[i - 1]))
            return speci_fail(code, "%s: \"%s\" entry %d is for %d nodes; entries ascend from 1", where, name, i,
                              t->n_node[i]);
        if (!(t->ms[i] >= 0 && (double)t->ms[i] <= max_ms))
            return speci_fail(code, "%s: \"%s\" entry %d takes %g ms", where, name, i, (double)t->ms[i]);
    }
    return SPEC_OK;
}

enum { OF_BYTES = sizeof((spec_cost_profile *)0)->target_of };

static spec_status check_words(const char *text, spec_status code, const char *where, const char *name)
{
    size_t n = 0;
    while (n < OF_BYTES && text[n] >= ' ' && text[n] <= '~') n++;
    if (n < OF_BYTES && text[n] == 0) return SPEC_OK;
    return speci_fail(code, "%s: \"%s\" is no text of at most %d printable ASCII characters", where, name, OF_BYTES - 1);
}

/* A session without a drafter that is a model has no draft times. */
static spec_status check_profile(const spec_cost_profile *p, spec_status code, const char *where)
{
    SPEC_TRY(check_table(&p->target, 1, code, where, "target"));
    SPEC_TRY(check_table(&p->draft, 0, code, where, "draft"));
    SPEC_TRY(check_table(&p->sequences, 0, code, where, "sequences"));
    SPEC_TRY(check_words(p->target_of, code, where, "target_of"));
    return check_words(p->draft_of, code, where, "draft_of");
}

/* ---------------------------------------------------------------------------------------- files --- */

/* {"spec_cost_profile": 1, "target": {"n_node": [1, 8], "ms": [10.5, 11.25]}, "draft": {"n_node": [], "ms": []},
 *  "sequences": {"n_node": [], "ms": []}, "target_of": "...", "draft_of": ""}    files need not have the last three */
static const char version_key[] = "spec_cost_profile", begin[] = "{\"spec_cost_prof"; /* another JSON file is not replaced */
enum { VERSION = 1, MAX_FILE = 1 << 16, DIGITS = 9 }; /* nine digits give a float back */

static json_t *table_to_json(const spec_cost_table *t)
{
    json_t *nodes = json_array(), *ms = json_array();
    bool ok = nodes && ms;
    for (int32_t i = 0; ok && i < t->n; i++)
        ok = json_array_append_new(nodes, json_integer(t->n_node[i])) == 0 &&
             json_array_append_new(ms, json_real((double)t->ms[i])) == 0;
    json_t *out = ok ? json_pack("{s:O, s:O}", "n_node", nodes, "ms", ms) : NULL;
    json_decref(nodes);
    json_decref(ms);
    return out;
}

static spec_status write_text(const char *path, char *text)
{
    speci_writer w;
    if (!text) return speci_fail(SPEC_E_NOMEM, "%s: no memory for the costs", path);
    spec_status status = speci_writer_open(&w, path, begin, NULL);
    if (status == SPEC_OK) status = speci_writer_close(&w, speci_writer_put(&w, text, strlen(text)));
    free(text);
    return status;
}

spec_status spec_cost_save(const spec_cost_profile *profile, const char *path)
{
    spec_cost_profile p = { .struct_size = sizeof p };
    if (!profile || !path) return speci_fail(SPEC_E_INVALID, "saving costs needs a profile and a path");
    SPEC_TRY(speci_params_read(&p, sizeof p, profile, "spec_cost_profile"));
    SPEC_TRY(check_profile(&p, SPEC_E_INVALID, path));
    json_t *target = table_to_json(&p.target), *draft = table_to_json(&p.draft), *many = table_to_json(&p.sequences), *root = NULL;
    if (target && draft && many)
        root = json_pack("{s:i, s:O, s:O, s:O, s:s, s:s}", version_key, VERSION, "target", target, "draft", draft, "sequences", many,
                         "target_of", p.target_of, "draft_of", p.draft_of);
    json_decref(target);
    json_decref(draft);
    json_decref(many);
    if (!root) return speci_fail(SPEC_E_NOMEM, "%s: no memory for the costs", path);
    char *text = speci_json_dump(root, JSON_REAL_PRECISION(DIGITS));
    json_decref(root);
    return write_text(path, text);
}

static spec_status read_entry(const json_t *node, const json_t *ms, spec_cost_table *t, int32_t i, const char *where)
{
    double time;
    if (!json_is_integer(node) || json_integer_value(node) < 1 || json_integer_value(node) > INT32_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: \"n_node\" %d is not a number of nodes", where, i);
    if (!speci_json_number(ms, &time) || !(time >= 0 && time <= max_ms))
        return speci_fail(SPEC_E_FORMAT, "%s: \"ms\" %d is not a time", where, i);
    t->n_node[i] = (int32_t)json_integer_value(node);
    t->ms[i] = (float)time;
    return SPEC_OK;
}

static spec_status table_from_json(const json_t *root, const char *name, spec_cost_table *t, const char *where)
{
    const json_t *table = json_object_get(root, name);
    const json_t *nodes = json_object_get(table, "n_node"), *ms = json_object_get(table, "ms");
    if (!json_is_array(nodes) || !json_is_array(ms) || json_array_size(nodes) != json_array_size(ms))
        return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" needs arrays \"n_node\" and \"ms\" of the same length", where,
                          name);
    if (json_array_size(nodes) > MAX_ENTRY)
        return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" has %zu entries; %d are possible", where, name,
                          json_array_size(nodes), MAX_ENTRY);
    t->n = (int32_t)json_array_size(nodes);
    for (int32_t i = 0; i < t->n; i++)
        SPEC_TRY(read_entry(json_array_get(nodes, (size_t)i), json_array_get(ms, (size_t)i), t, i, where));
    return SPEC_OK;
}

static spec_status words_from_json(const json_t *root, const char *name, char *out, const char *where)
{
    const json_t *text = json_object_get(root, name);
    if (!text) return SPEC_OK;
    if (!json_is_string(text) || json_string_length(text) >= OF_BYTES || json_string_length(text) != strlen(json_string_value(text)))
        return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" is no text of at most %d characters", where, name, OF_BYTES - 1);
    memcpy(out, json_string_value(text), json_string_length(text) + 1);
    return SPEC_OK;
}

static spec_status profile_from_json(const json_t *root, spec_cost_profile *p, const char *path)
{
    const json_t *version = json_object_get(root, version_key);
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return speci_fail(SPEC_E_FORMAT, "%s: no step costs: \"%s\" is not %d", path, version_key, VERSION);
    SPEC_TRY(table_from_json(root, "target", &p->target, path));
    SPEC_TRY(table_from_json(root, "draft", &p->draft, path));
    if (json_object_get(root, "sequences")) SPEC_TRY(table_from_json(root, "sequences", &p->sequences, path));
    SPEC_TRY(words_from_json(root, "target_of", p->target_of, path));
    SPEC_TRY(words_from_json(root, "draft_of", p->draft_of, path));
    return check_profile(p, SPEC_E_FORMAT, path);
}

spec_status spec_cost_load(spec_cost_profile *profile, const char *path)
{
    spec_cost_profile p = { .struct_size = sizeof p };
    json_t *root;
    if (!profile || !path) return speci_fail(SPEC_E_INVALID, "loading costs needs a profile and a path");
    SPEC_TRY(speci_json_read(&root, path, MAX_FILE, NULL));
    spec_status status = profile_from_json(root, &p, path);
    json_decref(root);
    SPEC_TRY(status);
    return speci_params_write(profile, &p, sizeof p, "spec_cost_profile");
}

/* ----------------------------------------------------------------------------------- the choice --- */

static int32_t rank_of(const spec_tree *t, int32_t node)
{
    if (t->rank) return t->rank[node];
    int32_t rank = 0;
    for (int32_t i = 1; i < node; i++) rank += t->parent[i] == t->parent[node];
    return rank;
}

/* A node is emitted when every node of its path is the accepted one. */
double spec_expected_emitted(const spec_tree *tree, const float *a, int32_t n_a)
{
    if (!tree) return 0;
    if (!a) n_a = 0;
    double emitted = 1;
    for (int32_t i = 1; i < tree->n; i++) {
        double reach = 1;
        for (int32_t c = i; c > 0 && reach > 0; c = tree->parent[c]) {
            const int32_t rank = rank_of(tree, c);
            reach *= rank < n_a ? (double)a[rank] : 0;
        }
        emitted += reach;
    }
    return emitted;
}

int32_t spec_choose_rate(const double *emitted, const double *ms, int32_t n)
{
    if (!emitted || !ms) return 0;
    int32_t best = 0;
    double best_rate = -(double)INFINITY;
    for (int32_t i = 0; i < n; i++) {
        const double rate = emitted[i] / ms[i];
        if (rate > best_rate) best = i, best_rate = rate; /* false for what is not a number */
    }
    return best;
}

/* ------------------------------------------------------------------------------------- the times --- */

static int compare_ms(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double speci_by_rank(double *ms, size_t n, size_t rank)
{
    qsort(ms, n, sizeof *ms, compare_ms);
    return ms[rank];
}
