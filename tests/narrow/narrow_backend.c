/* narrow_backend.c - a plugin that can do as little as a backend may: the CPU's operations in float32, without blocks, recurrent layers,
 * and what is optional. The tests of operations have to skip what it lacks (docs/adding-a-backend.md). One device at a time. */
#include <stdbool.h>
#include <string.h>

#include "backends/backend.h"

static const spec_host *host;

static spec_status refuse(const char *what) { return host->fail(SPEC_E_UNSUPPORTED, "narrow has no %s", what); }

static spec_status open_device(spec_device **out, const spec_host *its, const char *arg)
{
    host = its;
    return speci_cpu_ops.open(out, its, arg ? arg : "portable");
}

static spec_status info(spec_device *dev, spec_device_info *out)
{
    const spec_status status = speci_cpu_ops.info(dev, out);
    strcpy(out->name, "narrow");
    return status;
}

static spec_status weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc)
{
    return desc->dtype >= SPEC_DTYPE_Q8_0 ? refuse("blocks") : speci_cpu_ops.weight_open(dev, out, desc);
}

static bool is_f32(const spec_op *op)
{
    switch (op->kind) {
    case SPEC_OP_NORM: return op->u.norm.y.dtype == SPEC_DTYPE_F32;
    case SPEC_OP_LINEAR: return op->u.linear.x.dtype == SPEC_DTYPE_F32 && op->u.linear.y.dtype == SPEC_DTYPE_F32;
    case SPEC_OP_ROPE_KV: return op->u.rope_kv.kv.dtype == SPEC_DTYPE_F32;
    case SPEC_OP_ATTENTION: return op->u.attention.kv.dtype == SPEC_DTYPE_F32;
    case SPEC_OP_KEEP: return op->u.keep.x.dtype == SPEC_DTYPE_F32 && op->u.keep.y.dtype == SPEC_DTYPE_F32;
    case SPEC_OP_CONV:
    case SPEC_OP_SCAN: return false;
    default: return true;
    }
}

/* What nobody can do is refused by the CPU, as E_INVALID. */
static spec_status supports(spec_device *dev, const spec_op *op)
{
    const spec_status status = speci_cpu_ops.op[op->kind].supports(dev, op);
    return status == SPEC_OK && !is_f32(op) ? refuse("such layers, or not in this type") : status;
}

static spec_status run(spec_queue *q, const spec_op *op)
{
    return is_f32(op) ? speci_cpu_ops.op[op->kind].run(q, op) : refuse("such layers, or not in this type");
}

__attribute__((visibility("default"))) const spec_backend_ops *spec_backend_table(void);
const spec_backend_ops *spec_backend_table(void)
{
    static spec_backend_ops table;
    table = speci_cpu_ops;
    table.struct_size = offsetof(spec_backend_ops, plan_prepare); /* nothing that is optional */
    table.name = "narrow", table.open = open_device, table.info = info, table.weight_open = weight_open;
    for (int32_t i = 0; i < SPEC_OP_RECYCLE; i++) table.op[i].supports = supports, table.op[i].run = run;
    memset(&table.op[SPEC_OP_KV_COMMIT], 0, sizeof table.op[0]);
    for (int32_t i = SPEC_OP_RECYCLE; i < SPEC_OP_N; i++) memset(&table.op[i], 0, sizeof table.op[i]);
    return &table;
}
