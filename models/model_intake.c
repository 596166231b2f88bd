/* model_intake.c - heads, as a session asks about them: do they go with a target, what do they need of it? */
#include "models/model_intake.h"

#include <stdio.h>
#include <string.h>

#include "models/exec.h"

void speci_intake_close(model_intake *in, const spec_allocator *a)
{
    if (!in) return;
    if (in->info) {
        speci_free(a, in->info->hot);
        speci_free(a, in->info->w2);
        speci_free(a, in->info->norm);
        speci_free(a, in->info);
    }
    speci_free(a, in->columns);
    speci_free(a, in);
}

/* --- taps --- */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Source of the rule for three: SafeAILab/EAGLE modeling_llama_kv.py: what enters layers 2, n / 2 and n - 3. */
static int32_t layer_of(const model_intake *in, int32_t i, int32_t n_layer)
{
    const int32_t rule[] = { least(2, n_layer - 1), n_layer / 2, n_layer > 3 ? n_layer - 3 : 0 };
    return in->believes ? in->said[i] : rule[i < 3 ? i : 2];
}

void speci_intake_taps(const model_intake *in, const spec_model *target, spec_tap out[MODEL_MAX_TAP])
{
    const int32_t n_layer = target ? target->n_layer : 1 << 20;
    for (int32_t i = 0; i < in->n_tap; i++) {
        const int32_t layer = in->after_norm ? n_layer : layer_of(in, i, n_layer);
        out[i] = layer >= n_layer ? (spec_tap){ .where = SPEC_TAP_NORM } : (spec_tap){ .where = SPEC_TAP_LAYER, .layer = layer };
    }
}

int32_t speci_head_n_tap(const spec_model *head) { return head->intake ? head->intake->n_tap : 0; }

void speci_head_taps(const spec_model *head, const spec_model *target, spec_tap *out) { speci_intake_taps(head->intake, target, out); }

const int32_t *speci_head_columns(const spec_model *head) { return head->intake->columns; }

bool speci_head_chains(const spec_model *head) { return head->intake->hands_input; }

bool speci_head_has_token_info(const spec_model *head) { return head->intake && head->intake->info; }

/* --- does it go with the target? --- */

/* Files that count outputs of layers, or from the embedding on, are off by one. */
static void warn_of_layers(const spec_model *head, const spec_model *target)
{
    const model_intake *in = head->intake;
    int32_t off = 0;
    for (int32_t i = 0; i < in->n_said && !in->believes; i++) {
        const int32_t by = in->said[i] - layer_of(in, i, target->n_layer);
        if (i == 0) off = by;
        if (by < -1 || by > 1 || by != off) off = 2;
    }
    if (off == 2)
        speci_log(head->backend, SPEC_LOG_WARN,
                  "%s: its layers are taken for 2, n / 2 and n - 3 of %d, and the file says others (%d, %d, %d): "
                  "where it drafts badly, open it with head_layers FILE (--head-layers file)",
                  head->path, target->n_layer, in->said[0], in->said[1], in->said[2]);
}

static spec_status check_layers(const spec_model *head, const spec_model *target)
{
    const model_intake *in = head->intake;
    for (int32_t i = 0; i < in->n_said; i++)
        if (in->said[i] > target->n_layer)
            return speci_fail(SPEC_E_INVALID, "%s: this %s head reads what enters layer %d, and %s has %d layers: it was made for "
                              "another target", head->path, in->kind, in->said[i], target->path, target->n_layer);
    warn_of_layers(head, target);
    return SPEC_OK;
}

/* Whose matrices serve as embedding and head? */
static spec_status check_ends(const spec_model *head, const spec_model *target)
{
    const model_intake *in = head->intake;
    const bool borrows = !head->embed || !head->head.w;
    if (borrows && head->dim != target->dim)
        return speci_fail(SPEC_E_INVALID, "%s: this %s head is %d wide and has no %s of its own, and %s is %d wide: it was made for "
                          "another target", head->path, in->kind, head->dim, head->embed ? "lm_head" : "embed_tokens", target->path,
                          target->dim);
    if (!head->head.w && in->ties && target->head.w != target->embed)
        return speci_fail(SPEC_E_INVALID, "%s: this %s head says that embedding and lm_head are one matrix (tie_word_embeddings), and "
                          "those of %s are two: it was made for another target", head->path, in->kind, target->path);
    if (borrows && head->dtype != target->dtype)
        return speci_fail(SPEC_E_INVALID, "%s computes in %s and %s in %s: open the head with the target's dtype", head->path,
                          spec_dtype_name(head->dtype), target->path, spec_dtype_name(target->dtype));
    return SPEC_OK;
}

spec_status speci_head_check(const spec_model *head, const spec_model *target)
{
    const model_intake *in = head->intake;
    if (target->exec != &speci_exec_net)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: a head reads hidden states, and the engine %s tells none", head->path, target->path);
    if (target->intake) return speci_head_refuse(target);
    if (in->n_hidden != target->dim)
        return speci_fail(SPEC_E_INVALID, "%s: this %s head reads hidden rows of %d columns, and those of %s have %d: it was made for "
                          "another target", head->path, in->kind, in->n_hidden, target->path, target->dim);
    if (head->n_vocab != target->n_vocab)
        return speci_fail(SPEC_E_INVALID, "%s: this %s head is for %d ids, and %s has %d: it was made for another target", head->path,
                          in->kind, head->n_vocab, target->path, target->n_vocab);
    SPEC_TRY(check_layers(head, target));
    return check_ends(head, target);
}

spec_status speci_head_refuse(const spec_model *head)
{
    return speci_fail(SPEC_E_INVALID, "%s: an %s head drafts for another model and says nothing by itself: give it as drafter", head->path,
                      head->intake->kind);
}

/* --- in words --- */

void speci_head_tell(const spec_model *head, char *out, size_t cap)
{
    const model_intake *in = head->intake;
    size_t n = (size_t)snprintf(out, cap, "%s, for a target of hidden size %d with %d ids; reads what ", in->kind, in->n_hidden,
                                head->n_vocab);
    if (in->after_norm) n += (size_t)snprintf(out + n, n < cap ? cap - n : 0, "leaves the final norm");
    else if (!in->believes) n += (size_t)snprintf(out + n, n < cap ? cap - n : 0, "enters layers 2, n / 2 and n - 3 of n");
    else n += (size_t)snprintf(out + n, n < cap ? cap - n : 0, "enters layers");
    if (in->n_said > 0 && !in->believes && n < cap) n += (size_t)snprintf(out + n, cap - n, " (not what the file says:");
    for (int32_t i = 0; i < in->n_said && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s %d", i > 0 ? "," : "", in->said[i]);
    if (in->n_said > 0 && !in->believes && n < cap) n += (size_t)snprintf(out + n, cap - n, ")");
    if (head->head.w && n < cap) n += (size_t)snprintf(out + n, cap - n, "; drafts %d ids", speci_model_n_logit(head));
    if (in->info && n < cap)
        n += (size_t)snprintf(out + n, cap - n, "; token info of %d hot ids, rank %d", in->info->n_hot, in->info->rank);
    if (n < cap)
        (void)snprintf(out + n, cap - n, "; embedding %s, lm_head %s", head->embed ? "its own" : "the target's",
                       head->head.w ? "its own" : "the target's");
}
