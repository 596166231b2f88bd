/* cuda_ops.cu - the kinds of operations: one row each, and one for each pair that a single kernel does. */
#include "backends/cuda/scan/cuda_scan.cuh"

/* --- rows --- */

#define CHECK(kind) [](spec_device *dev, const spec_op *op) { return speci_cuda_check_##kind(dev, &op->u.kind); }

const cuda_kind speci_cuda_kinds[SPEC_OP_N] = {
    /* SPEC_OP_EMBED */
    { CHECK(embed), [](spec_queue *q, const cuda_op *o, cuda_pass *pass) { return speci_cuda_embed(q, &o->op.u.embed, pass->best); } },
    /* SPEC_OP_NORM */
    { CHECK(norm), [](spec_queue *q, const cuda_op *o, cuda_pass *pass) {
          const cuda_norm_args a = cuda_norm_of(o);
          return speci_cuda_norm(q, &a, pass);
      } },
    /* SPEC_OP_LINEAR */
    { CHECK(linear), [](spec_queue *q, const cuda_op *o, cuda_pass *pass) {
          const cuda_linear_args a = cuda_linear_of(o);
          return speci_cuda_linear(q, &a, o == pass->head ? pass->best : NULL, pass);
      } },
    /* SPEC_OP_KV_COMMIT */
    { CHECK(kv_commit), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_kv_commit(q, &o->op.u.kv_commit); } },
    /* SPEC_OP_ROPE_KV */
    { CHECK(rope_kv), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_rope_kv(q, &o->op.u.rope_kv); } },
    /* SPEC_OP_ATTENTION */
    { CHECK(attention),
      [](spec_queue *q, const cuda_op *o, cuda_pass *pass) { return speci_cuda_attention(q, &o->op.u.attention, pass); } },
    /* SPEC_OP_CONV */
    { CHECK(conv), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_conv(q, &o->op.u.conv); } },
    /* SPEC_OP_SCAN */
    { CHECK(scan), [](spec_queue *q, const cuda_op *o, cuda_pass *pass) { return speci_cuda_scan(q, &o->op.u.scan, pass); } },
    /* SPEC_OP_KEEP */
    { CHECK(keep), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_keep(q, &o->op.u.keep); } },
    /* SPEC_OP_RECYCLE */
    { CHECK(recycle), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_recycle(q, &o->op.u.recycle); } },
    /* SPEC_OP_BIAS */
    { CHECK(bias), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_bias(q, &o->op.u.bias); } },
    /* SPEC_OP_GLU */
    { CHECK(glu), [](spec_queue *q, const cuda_op *o, cuda_pass *) { return speci_cuda_glu(q, &o->op.u.glu); } },
};
static_assert(SPEC_OP_GLU + 1 == SPEC_OP_N, "a row a kind, in their order");

/* --- pairs --- */

static bool embed_norm(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status)
{
    const cuda_norm_args norm = cuda_norm_of(o + 1);
    return speci_cuda_embed_norm(q, &o->op.u.embed, &norm, pass, status);
}

static bool linear_norm(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status)
{
    const cuda_linear_args a = cuda_linear_of(o);
    const cuda_norm_args norm = cuda_norm_of(o + 1);
    return speci_cuda_linear_norm(q, &a, &norm, pass, status);
}

static bool linear_conv(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status)
{
    const cuda_linear_args a = cuda_linear_of(o);
    return speci_cuda_linear_conv(q, &a, &o[1].op.u.conv, o[2].op.kind == SPEC_OP_SCAN, pass, status);
}

static bool linear_scan(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status)
{
    const cuda_linear_args dt = cuda_linear_of(o);
    return speci_cuda_scan_dt(q, &dt, &o[1].op.u.scan, pass, status);
}

static bool scan_norm(spec_queue *q, const cuda_op *o, cuda_pass *pass, spec_status *status)
{
    const cuda_norm_args norm = cuda_norm_of(o + 1);
    return speci_cuda_scan_norm(q, &o->op.u.scan, &norm, pass, status);
}

static const cuda_fusion fusions[] = {
    { SPEC_OP_EMBED, SPEC_OP_NORM, false, embed_norm },   /* the norm is deferred */
    { SPEC_OP_LINEAR, SPEC_OP_NORM, false, linear_norm }, /* of what the product adds to, deferred */
    { SPEC_OP_LINEAR, SPEC_OP_CONV, false, linear_conv }, /* of some of the product's outputs */
    { SPEC_OP_LINEAR, SPEC_OP_SCAN, false, linear_scan }, /* the product makes dt */
    { SPEC_OP_SCAN, SPEC_OP_NORM, true, scan_norm },      /* deferred */
};

const cuda_fusion *speci_cuda_fusion_of(spec_op_kind first, spec_op_kind second)
{
    for (const cuda_fusion &f : fusions)
        if (f.first == first && f.second == second) return &f;
    return NULL;
}

/* --- the table's --- */

static spec_status check_known(spec_device *dev, const spec_op *op)
{
    if ((int)op->kind >= 0 && op->kind < SPEC_OP_N) return SPEC_OK;
    return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda: operation of unknown kind %d", (int)op->kind);
}

spec_status speci_cuda_supports(spec_device *dev, const spec_op *op)
{
    SPEC_TRY(check_known(dev, op));
    return speci_cuda_kinds[op->kind].check(dev, op);
}

spec_status speci_cuda_run(spec_queue *q, const spec_op *op)
{
    SPEC_TRY(check_known(q->dev, op));
    const cuda_op alone = { *op, NULL, 0.0f, NULL, NULL };
    cuda_pass pass = {};
    return speci_cuda_kinds[op->kind].run(q, &alone, &pass);
}
