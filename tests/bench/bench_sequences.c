/* bench_sequences.c - several sequences in one pass: score + verify of all, with one look, + commit of the roots. */
#include <stdio.h>

#include "tests/bench/bench.h"

enum { WARM = 3, MOST_SEQ = 256 };

typedef struct many {
    bench *b;
    spec_session *s;
    int32_t n_seq, context, nodes;
    int32_t seqs[MOST_SEQ];
    spec_tree tree[MOST_SEQ];
    const spec_tree *trees[MOST_SEQ];
    double *ms; /* [repeats] */
} many;

static spec_status step(many *t, double *ms)
{
    const int32_t *ids, root = 0;
    size_t n;
    for (int32_t i = 0; i < t->n_seq; i++) {
        SPEC_TRY(spec_sequence_ids(t->s, &ids, &n, t->seqs[i]));
        t->tree[i].token[0] = ids[n - 1];
    }
    const double start = speci_now_ms();
    SPEC_TRY(spec_score(t->s, t->seqs, t->n_seq, t->trees));
    t->s->round.rule = SPEC_VERIFY_AUTO;
    SPEC_TRY(speci_verify_start(t->s, &t->s->round));
    SPEC_TRY(speci_verify_read(t->s, &t->s->round));
    for (int32_t i = 0; i < t->n_seq; i++) SPEC_TRY(spec_commit(t->s, t->seqs[i], &root, 1, 1));
    *ms = speci_now_ms() - start;
    return SPEC_OK;
}

static spec_status times(many *t)
{
    double ms;
    for (int32_t i = 0; i < t->n_seq; i++) {
        SPEC_TRY(bench_sequence(&t->seqs[i], t->s, t->context, NULL));
        SPEC_TRY(bench_tree(&t->tree[i], t->b->o.tree ? t->b->o.tree : "binary", t->nodes));
        t->trees[i] = &t->tree[i];
    }
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(step(t, &ms));
    for (int32_t i = 0; i < t->b->o.repeats; i++) SPEC_TRY(step(t, &t->ms[i]));
    return SPEC_OK;
}

static spec_status emit(many *t, double plain_ms)
{
    bench *b = t->b;
    json_t *r = bench_record(b, "sequences");
    bench_count(r, "sequences", t->n_seq);
    bench_count(r, "nodes", t->nodes);
    bench_text(r, "tree", b->o.tree ? b->o.tree : "binary");
    bench_scan(r, b);
    bench_count(r, "context", t->context);
    bench_times(r, t->ms, b->o.repeats);
    const double median = bench_median(t->ms, b->o.repeats);
    bench_number(r, "plain_ms", plain_ms);
    bench_number(r, "over_plain", median / plain_ms);
    bench_number(r, "steps_per_s", 1e3 * t->n_seq / median);
    return bench_emit(b, r, bench_floor_ms(b, t->context, t->n_seq));
}

/* More rows than the device takes, or more memory than it has: told and left out. */
static spec_status measure(many *t, double plain_ms)
{
    bench *b = t->b;
    const int32_t n_ctx = t->context + b->o.repeats + WARM + SPEC_MAX_DEPTH + 2;
    spec_status status = bench_session(&t->s, b, NULL, n_ctx, t->nodes, t->n_seq);
    if (status == SPEC_E_UNSUPPORTED || status == SPEC_E_NOMEM) {
        fprintf(stderr, "spec-bench: left out: %s\n", spec_last_error());
        return SPEC_OK;
    }
    if (status == SPEC_OK) status = times(t);
    spec_session_close(t->s);
    return status == SPEC_OK ? emit(t, plain_ms) : status;
}

static spec_status run(many *t)
{
    int32_t nodes[16], n, counts[16], n_count;
    bench_plain plain;
    SPEC_TRY(bench_ints(nodes, 16, &n, t->b->o.nodes ? t->b->o.nodes : "1,8", "--nodes"));
    SPEC_TRY(bench_ints(counts, 16, &n_count, t->b->o.sequences ? t->b->o.sequences : "1,2,4,8,16,32,64",
                        "--sequences"));
    SPEC_TRY(bench_plain_step(&plain, t->b, t->context));
    for (int32_t i = 0; i < n_count; i++)
        for (int32_t k = 0; k < n; k++) {
            if (counts[i] > MOST_SEQ) return speci_fail(SPEC_E_INVALID, "--sequences: at most %d", MOST_SEQ);
            t->n_seq = counts[i], t->nodes = nodes[k];
            SPEC_TRY(measure(t, plain.ms));
        }
    return SPEC_OK;
}

spec_status bench_sequences(bench *b)
{
    many *t = speci_alloc(NULL, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    t->b = b;
    t->context = b->o.context ? b->o.context : 128;
    t->ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *t->ms);
    spec_status status = t->ms ? SPEC_OK : SPEC_E_NOMEM;
    for (int32_t i = 0; status == SPEC_OK && i < MOST_SEQ; i++)
        status = spec_tree_alloc(&t->tree[i], SPECI_MAX_NODE, NULL);
    if (status == SPEC_OK) status = run(t);
    for (int32_t i = 0; i < MOST_SEQ; i++) spec_tree_free(&t->tree[i], NULL);
    speci_free(NULL, t->ms);
    speci_free(NULL, t);
    return status;
}
