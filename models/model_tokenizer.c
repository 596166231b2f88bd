/* model_tokenizer.c - the tokenizer of a model: does it fit, and the ids that it knows. */
#include "models/model.h"

/* Ids that no file gave: the original layouts have no such keys. */
spec_status speci_model_ids_of_tokenizer(spec_model *m, const spec_tokenizer *tokenizer)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    SPEC_TRY(spec_tokenizer_get_info(tokenizer, &info));
    if (m->bos < 0 && info.bos < m->n_vocab) m->bos = info.bos;
    if (m->eos || info.eos < 0 || info.eos >= m->n_vocab) return SPEC_OK;
    m->eos = speci_alloc(m->allocator, 1, sizeof *m->eos);
    if (!m->eos) return SPEC_E_NOMEM;
    m->eos[0] = info.eos;
    m->n_eos = 1;
    return SPEC_OK;
}

/* Rows are padded to a round number. Many more rows than tokens tell of another tokenizer: text is then not what the model says. */
static void warn_of_rows(const spec_model *m, const char *path, int32_t n)
{
    if (10 * (int64_t)n >= 9 * (int64_t)m->n_vocab) return;
    speci_log(m->backend, SPEC_LOG_WARN,
              "%s: the tokenizer has ids up to %d, but the model of %s has %d rows, far more: it may be another model's tokenizer",
              path, n - 1, m->path, m->n_vocab);
}

/* Special tokens may be added to a tokenizer after training (a token to pad with), without rows for them: a text with one
 * is refused when its ids are given to a session. A piece of the vocabulary without a row tells of another tokenizer. */
static spec_status check_rows(const spec_model *m, const char *path)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    size_t n_piece = 0;
    const char *piece = NULL;
    SPEC_TRY(spec_tokenizer_get_info(m->tokenizer, &info));
    const int32_t n = info.n_vocab;
    warn_of_rows(m, path, n);
    if (n <= m->n_vocab) return SPEC_OK;
    for (int32_t id = m->n_vocab; id < n; id++)
        if (spec_tokenizer_piece(m->tokenizer, &n_piece, id) && !spec_tokenizer_is_special(m->tokenizer, id))
            return speci_fail(SPEC_E_FORMAT, "%s: the tokenizer has ids up to %d, but the model of %s has %d rows", path,
                              n - 1, m->path, m->n_vocab);
    piece = spec_tokenizer_piece(m->tokenizer, &n_piece, n - 1);
    speci_log(m->backend, SPEC_LOG_WARN,
              "%s: the tokenizer has ids up to %d (\"%.*s\"), but the model of %s has %d rows: a text with such a token is "
              "refused", path, n - 1, n_piece > 64 ? 64 : (int)n_piece, piece ? piece : "", m->path, m->n_vocab);
    return SPEC_OK;
}

spec_status speci_model_fit_tokenizer(spec_model *m, const char *path)
{
    SPEC_TRY(check_rows(m, path));
    return speci_model_ids_of_tokenizer(m, m->tokenizer);
}

spec_status speci_model_open_tokenizer(spec_model *m, const char *path)
{
    SPEC_TRY(spec_tokenizer_open(&m->opened_tokenizer, path, m->allocator));
    m->tokenizer = m->opened_tokenizer;
    return speci_model_fit_tokenizer(m, path);
}

/* Each piece with its length, so that no two vocabularies are one text; an id that is not used is no empty piece. */
uint64_t speci_tokenizer_sum(const spec_tokenizer *tokenizer)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    speci_hash h = { 0 };
    if (!tokenizer || spec_tokenizer_get_info(tokenizer, &info) != SPEC_OK) return 0;
    for (int32_t id = 0; id < info.n_vocab; id++) {
        size_t n = 0;
        const char *piece = spec_tokenizer_piece(tokenizer, &n, id);
        const uint64_t behind = piece ? n + 1 : 0;
        uint8_t length[4];
        for (int i = 0; i < 4; i++) length[i] = (uint8_t)(behind >> 8 * i);
        speci_hash_add(&h, length, sizeof length);
        speci_hash_add(&h, piece, n);
    }
    const uint64_t sum = speci_hash_value(&h);
    return sum ? sum : 1;
}
