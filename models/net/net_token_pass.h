/* net_token_pass.h - passes of the device over listed tokens, behind no sequence: rows of a table, then a product. What tables about tokens
 * are made by, when a session opens (net_token_info.c, net_token_table.c). Internal to models/net. */
#ifndef SPEC_NET_TOKEN_PASS_H
#define SPEC_NET_TOKEN_PASS_H

#include "models/net/net.h"

/* y = W table[token], rounded to the compute type in between. Filled by the caller up to `out`. */
typedef struct net_token_pass {
    net_exec *net;
    const spec_weight *table, *w;
    int32_t wide, n_out;  /* columns of the table; outputs of W */
    int32_t rows;         /* tokens of a pass at most: a size of the device's prefill passes */
    spec_dtype out;       /* of y: f32 or compute type */
    spec_queue *queue;
    void *memory;
    size_t bytes;
    spec_view x, x_in, y;
    spec_op ops[3];
} net_token_pass;

spec_status speci_net_token_pass_open(net_token_pass *p);
void speci_net_token_pass_close(net_token_pass *p);
/* Queues the pass over ids [n], n <= rows: y's rows [0, n) then. */
spec_status speci_net_token_pass_run(net_token_pass *p, const int32_t *ids, int32_t n);

#endif
