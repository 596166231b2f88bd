/* net.h - inside of a net: shared by the files net_executor*.c and net_plan.c. Internal. */
#ifndef SPEC_NET_H
#define SPEC_NET_H

#include "models/model.h"

/* A region of device memory that is handed out front to back. With base NULL it only measures. */
typedef struct net_arena {
    char *base;
    size_t n;
} net_arena;
void *speci_net_take(net_arena *arena, size_t bytes); /* 256-byte aligned */

/* Device memory that belongs to one sequence slot: zeroed before a sequence's first pass. Slot i is `bytes` at
 * base + i * bytes. */
typedef struct net_slot_memory {
    char *base;
    size_t bytes;
} net_slot_memory;

typedef struct net_memory {
    net_arena work, state, kv;
} net_memory;

/* The forward pass of a model as two plans over the same tensors. */
typedef struct net_plans {
    spec_op *ops[2];          /* by phase; NULL while only measuring */
    int32_t n_op[2];
    spec_kv *kv;              /* [n_attention] */
    int32_t n_kv;
    net_slot_memory *slot_memory; /* states and windows of all recurrent layers */
    int32_t n_slot_memory;
    float *logits;            /* f32 [n_row_decode][n_vocab] */
    uint64_t *best;           /* [n_row_decode] their rows' largest (spec_linear_args), or NULL */
    spec_view *taps[2];       /* by phase: [n_tap] where hidden rows are kept; NULL while only measuring */
} net_plans;

/* Sizes that both files need. */
typedef struct net_shape {
    int32_t n_seq, n_node, n_ctx; /* n_node: of a caller's tree. n_ctx 0 = no attention, no limit */
    int32_t n_cache;              /* nodes that a pass feeds per sequence: n_node; joint: and a path in front */
    int32_t n_row_decode;         /* n_seq * n_cache */
    int32_t chunk, chunk_least;   /* most and fewest rows of a prefill pass: a power of two apart */
    int32_t n_page_seq, n_page;   /* pages of the longest sequence; of the pool */
    int32_t n_recent_max;               /* recent tokens that chunked scans can have; 0: no scan is windowed */
    bool node_state, joint;       /* speci_exec_params */
    bool best;                    /* rows' largest are noted: asked for, and the device can */
    const spec_tap *taps;         /* [n_tap] */
    int32_t n_tap;
} net_shape;
net_shape speci_net_shape_of(const spec_model *model, const speci_exec_params *p);

/* Emits both plans. With plans->ops NULL it counts operations and measures memory (arena bases NULL). */
void speci_net_emit(net_plans *plans, net_memory *memory, const spec_model *model, const net_shape *shape);

/* --- a net --- */

typedef struct net_seq {
    bool live;
    bool begun;      /* its slot's memory has not been zeroed yet */
    bool broken;     /* a device error left it between two passes: only good for end */
    int32_t n_past;  /* positions applied, without the pending path */
    int32_t n_recent; /* of these, behind the states of chunked scans */
    int32_t n_path;  /* pending path */
    int32_t *path;   /* [n_node]; joint: its tokens */
    int32_t *token;  /* [n_node] joint: of the last tree */
    int32_t parity;  /* half that the last pass wrote */
    int32_t n_fed;   /* nodes of the current tree in the caches */
    int32_t n_page;
    int32_t *page;   /* [n_page_seq] */
} net_seq;

struct speci_exec {
    const spec_model *model;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    net_shape shape;
    net_memory memory;
    net_plans plans;
    spec_tap *taps;      /* [n_tap] */
    spec_queue *queue;
    spec_prepared *prepared[2];
    net_seq *seqs;       /* [n_seq] */
    spec_range *to_zero; /* [n_slot_memory] */
    int32_t *free_pages; /* [n_page], a stack */
    int32_t n_free;
    spec_step_block *block;
    size_t block_cap;
};

/* Zeroes the memory of the sequences that have begun: neighbours together, so that admitting many costs a few calls. */
spec_status speci_net_zero_begun(speci_exec *net);

/* Takes pages until n slots fit, or none. */
spec_status speci_net_reserve(speci_exec *net, net_seq *s, int32_t n);

#endif
