/* bench_png.c - drafters from text beside a text that no target has to say: what a proposal takes, and how many tokens a step
 * would emit if the target went on as the text does. Drafters of --tree (png:FILE;...), over the first of --prompts, a text
 * in tokens of --model. It is read in sequences of --context tokens, twice: the first time brings a table into memory. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { MOST_TEXT = 1 << 28 };

typedef struct reading {
    spec_model target; /* as much of it as drafters look at */
    speci_draft_site site;
    speci_draft draft;
    speci_draft_seq q;
    spec_tree tree;
    spec_sampling sampling;
    const int32_t *ids; /* [n_ids] */
    int32_t n_ids, n_context;
    double *us;         /* [n_ids] of each step */
    int32_t n_step;
    int64_t n_drafted, n_emitted;
    double open_ms;     /* of the drafter: a table is compared with its checksums */
} reading;

/* How far the text goes along the tree, behind its first `n` tokens. */
static int32_t accepted(const spec_tree *t, const int32_t *text, int32_t n)
{
    int32_t k = 0;
    for (int32_t node = 0; k < n && (node = speci_tree_child_with(t, node, text[k])) > 0;) k++;
    return k;
}

static spec_status step(reading *r, int32_t end)
{
    r->tree.n = 0;
    (void)spec_tree_add(&r->tree, -1, r->q.ids[r->q.n_ids - 1], 1);
    const double start = speci_now_ms();
    SPEC_TRY(r->draft.kind->enqueue(&r->draft, NULL, &r->q, 1));
    r->us[r->n_step++] = 1e3 * (speci_now_ms() - start);
    const int32_t left = end - r->q.n_ids, n = accepted(&r->tree, r->q.ids + r->q.n_ids, left), emitted = n < left ? n + 1 : n;
    r->n_drafted += r->tree.n - 1, r->n_emitted += emitted;
    r->q.n_ids += emitted;
    return SPEC_OK;
}

/* All of the text, a sequence after another, each from its first token on. */
static spec_status read_text(reading *r)
{
    r->n_step = 0, r->n_drafted = r->n_emitted = 0;
    for (int32_t first = 0; first + r->n_context <= r->n_ids; first += r->n_context) {
        r->q.ids = r->ids + first, r->q.n_ids = 1;
        while (r->q.n_ids < r->n_context) SPEC_TRY(step(r, r->n_context));
        r->draft.kind->end(&r->draft, 0);
    }
    return SPEC_OK;
}

static spec_status measure(bench *b, reading *r, const char *text)
{
    SPEC_TRY(read_text(r));
    const double first = bench_median(r->us, r->n_step);
    SPEC_TRY(read_text(r));
    json_t *record = bench_record(b, "png");
    bench_text(record, "what", text);
    bench_count(record, "context", r->n_context);
    bench_number(record, "open_ms", r->open_ms);
    bench_number(record, "first_us", first);
    bench_number(record, "proposal_us", bench_median(r->us, r->n_step));
    bench_number(record, "slow_us", r->us[(int64_t)r->n_step * 99 / 100]);
    bench_number(record, "worst_us", r->us[r->n_step - 1]);
    bench_count(record, "steps", r->n_step);
    bench_number(record, "drafted", (double)r->n_drafted / r->n_step);
    bench_number(record, "emitted", (double)r->n_emitted / r->n_step);
    return bench_emit(b, record, 0);
}

static spec_status measure_drafter(bench *b, reading *r, const char *text)
{
    spec_drafter *drafter;
    const double start = speci_now_ms();
    SPEC_TRY(spec_drafter_open(&drafter, text, NULL));
    r->open_ms = speci_now_ms() - start;
    r->site = (speci_draft_site){ .target = &r->target, .a = &speci_malloc, .n_seq = 1, .n_node = SPECI_MAX_NODE };
    r->draft = (speci_draft){ .drafter = drafter, .kind = drafter->kind, .site = &r->site,
                              .size = speci_draft_size_of(drafter) };
    r->q = (speci_draft_seq){ .sampling = &r->sampling, .depth_max = SPEC_MAX_DEPTH, .tree = &r->tree };
    spec_status status = drafter->kind->check ? drafter->kind->check(drafter, &r->target) : SPEC_OK;
    if (status == SPEC_OK) {
        status = drafter->kind->prepare(&r->draft);
        if (status == SPEC_OK) status = measure(b, r, text);
        drafter->kind->detach(&r->draft);
    }
    spec_drafter_close(drafter);
    return status;
}

static spec_status measure_all(bench *b, reading *r, const spec_tokenizer *tokenizer, const char *text, size_t n_text)
{
    char drafter[512];
    size_t n;
    spec_tokenizer_info info = { .struct_size = sizeof info };
    const size_t room = n_text + 16;
    int32_t *ids = speci_alloc(NULL, room, sizeof *ids);
    r->ids = ids;
    r->us = speci_alloc(NULL, room, sizeof *r->us);
    spec_status status = r->ids && r->us ? spec_tree_alloc(&r->tree, SPECI_MAX_NODE, NULL) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = spec_tokenizer_get_info(tokenizer, &info);
    if (status == SPEC_OK) status = spec_tokenizer_encode(tokenizer, ids, room, &n, text, n_text, SPEC_TOKEN_PARSE_SPECIAL);
    if (status == SPEC_OK) {
        r->n_ids = (int32_t)n;
        if (r->n_context > r->n_ids) r->n_context = r->n_ids;
        r->target = (spec_model){ .n_vocab = info.n_vocab, .tokenizer = tokenizer };
        for (int32_t k = 0; status == SPEC_OK && bench_item(drafter, sizeof drafter, b->o.tree, ';', k); k++)
            status = measure_drafter(b, r, drafter);
    }
    spec_tree_free(&r->tree, NULL);
    speci_free(NULL, r->us);
    speci_free(NULL, ids);
    return status;
}

spec_status bench_png(bench *b)
{
    reading r = { .n_context = b->o.context ? b->o.context : 1024 };
    char path[512];
    spec_tokenizer *tokenizer;
    char *text;
    size_t n;
    if (!b->o.model || !b->o.tree || !b->o.prompts)
        return speci_fail(SPEC_E_INVALID, "png needs --model DIR (its tokenizer), --tree png:FILE;... and --prompts TEXT");
    (void)bench_item(path, sizeof path, b->o.prompts, ',', 0);
    SPEC_TRY(speci_file_read(&text, &n, path, MOST_TEXT, NULL));
    spec_status status = spec_tokenizer_open(&tokenizer, b->o.model, NULL);
    if (status == SPEC_OK) {
        status = measure_all(b, &r, tokenizer, text, n);
        spec_tokenizer_close(tokenizer);
    }
    speci_free(NULL, text);
    return status;
}
