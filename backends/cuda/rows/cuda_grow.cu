/* cuda_grow.cu - trees that grow on the device: expansions; candidates are drawn in cuda_probs.cu. The host's form of the
 * same is backend_grow.c; values, order, ties and keys are its own. Host arrays travel as parameters of the kernels; nothing
 * waits. */
#include <string.h>

#include "backends/cuda/rows/cuda_select.cuh"

spec_status speci_cuda_check_slots(spec_queue *q, const char *op, const spec_grow *g, const int32_t *slots, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= g->n_slot)
            return q->dev->host->fail(SPEC_E_INVALID, "cuda %s: slot %d of %d", op, slots[i], g->n_slot);
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------- expand --- */

/* Most expansions are of few candidates, a thread for each: their kernel is short, which for one that runs once a level is
 * what counts. THREADS: of a block. RESULT_BATCH: most trees of a launch that writes them for the host. */
enum { PLACES = SPEC_MAX_FRONTIER, EXPAND_FEW = 256, EXPAND_MANY = 512, RESULT_BATCH = 16 };

/* The rule, as a parameter of the kernel, for the trees of a batch. */
struct expand_batch {
    spec_grow g;
    int32_t n_place, k;
    bool takes, lists;              /* `take` and `next` are there */
    double threshold;
    int32_t n_add, n_max, n_next;
    double next_threshold;
    int32_t slot[ROW_BATCH], feed_base[ROW_BATCH];
    uint8_t take[PLACES];           /* at most k */
    int16_t next[PLACES];           /* -1: a candidate that there is not */
    bool begins;                    /* with `root` */
    spec_grow_node root[ROW_BATCH];
    const int32_t *feed_token;      /* or NULL */
    char *out;                      /* or NULL: for the host, tree i of the batch at i * out_bytes: n, nodes from 16 on */
    size_t out_bytes;
};
static_assert(PLACES * SPEC_MAX_CHILD <= 1 << 15 && SPEC_MAX_CHILD < 256, "candidates and their counts fit");

template <int THREADS> struct expand_shared {
    spec_grow_node at[PLACES]; /* the nodes of the frontier that is expanded */
    int32_t was[PLACES];       /* their numbers */
    int32_t root_fed, first;
    int32_t eligible[PLACES];  /* how many of a place's first candidates */
    unsigned int bins[256];
    uint64_t bits[EXPAND_FEW];
    uint64_t border;
    int bin, rest;
    int warp[THREADS / 32];
};
/* Beside it, for each of the n_place k candidates: itself, and the number f k + j of the one that became added node i,
 * ascending. */
extern __shared__ spec_candidate expand_candidate[];
static size_t expand_bytes(int n_item) { return (size_t)n_item * (sizeof(spec_candidate) + sizeof(uint16_t)); }

/* How many of the items before this thread's, and *total of all, have `in`. */
template <int THREADS> static __device__ __forceinline__ int block_rank(expand_shared<THREADS> *s, bool in, int *total)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const unsigned ballot = __ballot_sync(0xffffffffu, in);
    __syncthreads(); /* the last use of s->warp */
    if (lane == 0) s->warp[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), sum = 0;
#pragma unroll 4
    for (int w = 0; w < THREADS / 32; w++) before += w < warp ? s->warp[w] : 0, sum += s->warp[w];
    *total = sum;
    return before;
}

/* Not negative numbers, in the order of their bits. */
static __device__ __forceinline__ uint64_t value_bits(double v) { return (uint64_t)__double_as_longlong(v + 0.0); }

/* The bits of the n-th largest value of the items that `in` takes, of which there are at least n >= 1; *ties: how
 * many of the items with that value belong to the n largest. Of few items each counts those in front of it. */
template <int THREADS, typename In, typename Bits>
static __device__ __forceinline__ uint64_t nth_of_few(expand_shared<THREADS> *s, int n_item, int n, const In &in,
                                                      const Bits &bits, int *ties)
{
    const int t = (int)threadIdx.x;
    __syncthreads();
    if (t < n_item) s->bits[t] = in(t) ? bits(t) + 1 : 0;
    __syncthreads();
    if (t < n_item && s->bits[t]) {
        const uint64_t mine = s->bits[t];
        int before = 0, equal = 0;
#pragma unroll 2
        for (int i = 0; i < n_item; i++) {
            before += s->bits[i] > mine;
            equal += s->bits[i] == mine && i < t;
        }
        if (before + equal == n - 1) s->border = mine - 1, s->rest = equal + 1;
    }
    __syncthreads();
    *ties = s->rest;
    return s->border;
}

/* The same of any number: 8 bits at a time. */
template <int THREADS, typename In, typename Bits>
static __device__ uint64_t nth_largest(expand_shared<THREADS> *s, int n_item, int n, const In &in, const Bits &bits, int *ties)
{
    const int t = (int)threadIdx.x;
    uint64_t prefix = 0;
    int rest = n;
    for (int digit = 56; digit >= 0; digit -= 8) {
        __syncthreads();
        if (t < 256) s->bins[t] = 0;
        __syncthreads();
        for (int i = t; i < n_item; i += THREADS) {
            if (!in(i)) continue;
            const uint64_t b = bits(i);
            if (digit == 56 || b >> (digit + 8) == prefix >> (digit + 8)) atomicAdd(&s->bins[b >> digit & 255], 1u);
        }
        __syncthreads();
        if (t < 32) { /* lane l: bins 255 - 8 l downwards */
            int mine = 0;
            for (int i = 0; i < 8; i++) mine += (int)s->bins[255 - 8 * t - i];
            int sum = mine;
            for (int d = 1; d < 32; d *= 2) {
                const int o = __shfl_up_sync(0xffffffffu, sum, d);
                if (t >= d) sum += o;
            }
            const unsigned reached = __ballot_sync(0xffffffffu, sum >= rest);
            if (reached && t == __ffs((int)reached) - 1) {
                int run = sum - mine, b = 255 - 8 * t;
                while (run + (int)s->bins[b] < rest) run += (int)s->bins[b--];
                s->bin = b, s->rest = rest - run;
            }
        }
        __syncthreads();
        prefix |= (uint64_t)s->bin << digit;
        rest = s->rest;
    }
    *ties = rest;
    return prefix;
}

/* Calls take(i, position) for the n items of largest value among those that `in` takes (all, if they are not more), in
 * ascending order of i; ties go to the earlier. Returns how many. */
template <int THREADS, typename In, typename Bits, typename Take>
static __device__ __forceinline__ int each_best(expand_shared<THREADS> *s, int n_item, int n, const In &in, const Bits &bits,
                                                const Take &take)
{
    const int t = (int)threadIdx.x;
    int total = 0, ties = 0;
    if (n <= 0) return 0;
    for (int base = 0; base < n_item; base += THREADS) total += __syncthreads_count(base + t < n_item && in(base + t));
    const bool all = total <= n;
    uint64_t border = 0;
    if (!all && THREADS == EXPAND_FEW) border = nth_of_few(s, n_item, n, in, bits, &ties);
    else if (!all) border = nth_largest(s, n_item, n, in, bits, &ties);
    int taken = 0, tied = 0;
    for (int base = 0; base < n_item; base += THREADS) {
        const int i = base + t;
        bool chosen = i < n_item && in(i);
        int n_take;
        if (!all) {
            const uint64_t b = chosen ? bits(i) : 0;
            const bool tie = chosen && b == border;
            int n_tie;
            const int before = tied + block_rank(s, tie, &n_tie);
            chosen = chosen && (b > border || (tie && before < ties));
            tied += n_tie;
        }
        const int position = taken + block_rank(s, chosen, &n_take);
        if (chosen) take(i, position);
        taken += n_take;
        if (THREADS == EXPAND_FEW) break;
    }
    return taken;
}

/* The eligible candidates of place f: how many of its first ones. */
static __device__ int n_eligible(const expand_batch &a, const spec_candidate *c, double value, int f)
{
    const int most = a.takes ? a.take[f] : a.k;
    double drawn = 0.0;
    int j = 0;
    for (; j < most && c[j].token >= 0; j++) {
        if (!(value * (1.0 - drawn) >= a.threshold)) break;
        drawn += (double)c[j].prob;
    }
    return j;
}

/* What is known of a tree in front of its candidates: written by kernels that end before the one that draws lets this one be. */
template <int THREADS>
static __device__ __forceinline__ void frontier_read(expand_shared<THREADS> *s, const expand_batch &a, size_t slot)
{
    const int32_t *frontier = a.g.frontier + slot * (size_t)a.g.cap_frontier;
    const spec_grow_node *node = a.g.node + slot * (size_t)a.g.cap;
    const int t = (int)threadIdx.x;
    if (a.begins) {
        if (t == 0) s->was[0] = 0, s->at[0] = a.root[blockIdx.x], s->first = 1, s->root_fed = a.root[blockIdx.x].fed;
        return;
    }
    if (t < a.n_place) {
        const int x = frontier[t];
        s->was[t] = x;
        if (x >= 0) s->at[t] = node[x];
    }
    if (t == THREADS - 1) s->first = a.g.n[slot], s->root_fed = node[0].fed;
}

/* The tree as it is goes to the host, by all threads. */
static __device__ __forceinline__ void hand_out(const expand_batch &a, const spec_grow_node *node, int n)
{
    static_assert(sizeof(spec_grow_node) % 8 == 0, "a node is whole words");
    char *const out = a.out + blockIdx.x * a.out_bytes;
    const int n_word = n * (int)(sizeof *node / 8);
    for (int i = (int)threadIdx.x; i < n_word; i += (int)blockDim.x) ((uint64_t *)(out + 16))[i] = ((const uint64_t *)node)[i];
    if (threadIdx.x == 0) *(int32_t *)out = n;
}

/* One block per tree. A thread per place counts its eligible candidates; then a thread per candidate. */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS) expand_kernel(const __grid_constant__ expand_batch a)
{
    __shared__ expand_shared<THREADS> s;
    const int t = (int)threadIdx.x, k = a.k, n_item = a.n_place * k, base = a.feed_base[blockIdx.x];
    const size_t slot = (size_t)a.slot[blockIdx.x];
    int32_t *frontier = a.g.frontier + slot * (size_t)a.g.cap_frontier;
    spec_grow_node *node = a.g.node + slot * (size_t)a.g.cap;
    spec_step_node *feed = a.g.feed + slot * (size_t)a.g.cap_feed + base;
    const spec_candidate *candidate = a.g.candidate + slot * (size_t)a.g.cap_frontier * SPEC_MAX_CHILD;
    uint16_t *const added = (uint16_t *)(expand_candidate + n_item);
    frontier_read(&s, a, slot);
    grid_wait();
    if (a.begins && t == 0) node[0] = a.root[blockIdx.x];
    for (int i = t; i < n_item; i += THREADS)
        expand_candidate[i] = candidate[(size_t)(i / k) * SPEC_MAX_CHILD + (size_t)(i % k)];
    __syncthreads();
    if (t < a.n_place) s.eligible[t] = s.was[t] >= 0 ? n_eligible(a, expand_candidate + t * k, s.at[t].value, t) : 0;
    __syncthreads();

    /* The children. */
    const int first = s.first, room = a.n_max > first ? a.n_max - first : 0;
    auto value = [&](int i) { return s.at[i / k].value * (double)expand_candidate[i].prob; };
    const int chosen = each_best(
        &s, n_item, a.n_add > 0 ? a.n_add : n_item, [&](int i) { return i % k < s.eligible[i / k]; },
        [&](int i) { return value_bits(value(i)); },
        [&](int i, int position) {
            if (position >= room) return;
            const spec_grow_node &x = s.at[i / k];
            const spec_candidate c = expand_candidate[i];
            spec_grow_node child;
            child.key = spec_stream_child(x.key, i % k), child.value = value(i);
            child.token = c.token, child.parent = s.was[i / k], child.depth = x.depth + 1, child.rank = i % k;
            child.prob = c.prob, child.fed = -1;
            node[first + position] = child;
            added[position] = (uint16_t)i;
        });
    const int n_added = chosen < room ? chosen : room;
    __syncthreads();

    /* The next frontier: place i has added node `at`, or -1. */
    auto place = [&](int i, int at) {
        spec_step_node fed = { 0, 0, 1, 0 };
        if (at >= 0) {
            const int item = added[at];
            node[first + at].fed = base + i;
            const int token = expand_candidate[item].token;
            fed.token = a.feed_token ? a.feed_token[token] : token, fed.parent = s.at[item / k].fed;
            fed.depth = s.root_fed + s.at[item / k].depth + 1;
        }
        frontier[i] = at >= 0 ? first + at : -1;
        feed[i] = fed;
    };
    int filled = a.n_next;
    if (a.lists) {
        for (int i = t; i < a.n_next; i += THREADS) {
            int low = 0, high = n_added; /* the first added candidate >= next[i] */
            while (low < high) {
                const int middle = (low + high) / 2;
                if ((int)added[middle] < a.next[i]) low = middle + 1;
                else high = middle;
            }
            place(i, low < n_added && (int)added[low] == a.next[i] ? low : -1);
        }
    } else {
        filled = each_best(&s, n_added, a.n_next, [&](int i) { return value(added[i]) >= a.next_threshold; },
                           [&](int i) { return value_bits(value(added[i])); },
                           [&](int i, int position) { place(position, i); });
    }
    for (int i = filled + t; i < a.g.cap_frontier; i += THREADS) {
        if (i < a.n_next) place(i, -1);
        else frontier[i] = -1;
    }
    if (t == 0) a.g.n[slot] = first + n_added;
    if (!a.out) return;
    __syncthreads();
    hand_out(a, node, first + n_added);
}

static spec_status check_expand(spec_queue *q, const spec_expand_args *a)
{
    const spec_host *h = q->dev->host;
    const spec_grow *g = a->grow;
    SPEC_TRY(speci_cuda_check_slots(q, "expand", g, a->host_slot, a->n));
    if (a->n_place < 0 || (a->host_root && a->n_place != 1) || a->n_place > g->cap_frontier || a->n_place > PLACES ||
        a->n_next < 0 || a->n_next > PLACES || a->n_next > g->cap_frontier || a->n_max > g->cap || a->k < 1 || a->k > SPEC_MAX_CHILD)
        return h->fail(SPEC_E_INVALID, "cuda expand: %d places to %d of %d (%d at most), %d candidates, %d nodes of %d",
                       a->n_place, a->n_next, g->cap_frontier, (int)PLACES, a->k, a->n_max, g->cap);
    for (int32_t i = 0; i < a->n; i++)
        if (a->host_feed_base[i] < 0 || a->host_feed_base[i] + a->n_next > g->cap_feed)
            return h->fail(SPEC_E_INVALID, "cuda expand: nodes %d to %d of a drafter's tree of %d",
                           a->host_feed_base[i], a->host_feed_base[i] + a->n_next, g->cap_feed);
    return SPEC_OK;
}

static expand_batch rule_of(const spec_expand_args *a)
{
    expand_batch b = {};
    b.g = *a->grow, b.n_place = a->n_place, b.k = a->k, b.takes = a->host_take != NULL, b.lists = a->host_next != NULL;
    b.begins = a->host_root != NULL;
    b.threshold = a->threshold, b.n_add = a->n_add, b.n_max = a->n_max, b.n_next = a->n_next;
    b.next_threshold = a->next_threshold, b.feed_token = a->feed_token;
    for (int32_t f = 0; a->host_take && f < a->n_place; f++)
        b.take[f] = (uint8_t)(a->host_take[f] < 0 ? 0 : a->host_take[f] < a->k ? a->host_take[f] : a->k);
    for (int32_t i = 0; a->host_next && i < a->n_next; i++)
        b.next[i] = (int16_t)(a->host_next[i] >= 0 && a->host_next[i] < a->n_place * a->k ? a->host_next[i] : -1);
    return b;
}

/* Room for trees [first, first + n) of the call where a kernel can write them for the host: each its count, 16 bytes, and its
 * nodes. None where they are too many. */
static spec_status batch_results(spec_queue *q, const spec_expand_args *a, int32_t first, int32_t n, expand_batch *b)
{
    const size_t cap = (size_t)a->grow->cap, bytes = cap * sizeof(spec_grow_node);
    b->out = NULL;
    b->out_bytes = 16 + cuda_round_up(bytes, 16);
    if (n > RESULT_BATCH || (size_t)n * b->out_bytes > q->result_cap / 2) return SPEC_OK;
    SPEC_TRY(speci_cuda_result_room(q, (size_t)n * b->out_bytes, 2 * n));
    for (int32_t i = 0; i < n; i++) {
        const size_t slot = (size_t)a->host_slot[first + i];
        void *out_n, *out_node;
        SPEC_TRY(speci_cuda_result(q, &out_n, a->host_out_n + slot, sizeof(int32_t)));
        SPEC_TRY(speci_cuda_result(q, &out_node, a->host_out_node + slot * cap, bytes));
        if (i == 0) b->out = (char *)out_n;
    }
    return SPEC_OK;
}

/* The same trees by copies behind the kernel. */
static spec_status batch_copies(spec_queue *q, const spec_expand_args *a, int32_t first, int32_t n)
{
    const spec_grow *g = a->grow;
    const size_t cap = (size_t)g->cap;
    for (int32_t i = first; i < first + n; i++) {
        const size_t slot = (size_t)a->host_slot[i];
        SPEC_TRY(speci_cuda_download(q, a->host_out_n + slot, g->n + slot, sizeof(int32_t)));
        SPEC_TRY(speci_cuda_download(q, a->host_out_node + slot * cap, g->node + slot * cap, cap * sizeof(spec_grow_node)));
    }
    return SPEC_OK;
}

spec_status speci_cuda_expand(spec_queue *q, const spec_expand_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_expand(q, a));
    const int n_item = a->n_place * a->k, threads = n_item <= EXPAND_FEW ? EXPAND_FEW : EXPAND_MANY;
    const size_t shared = expand_bytes(n_item);
    void (*kernel)(expand_batch) = n_item <= EXPAND_FEW ? expand_kernel<EXPAND_FEW> : expand_kernel<EXPAND_MANY>;
    if (shared > q->dev->shared_most)
        return q->dev->host->fail(SPEC_E_UNSUPPORTED, "cuda expand: %d candidates of %d places do not fit a block of %s", a->k, a->n_place,
                                  q->dev->name);
    if (n_item > EXPAND_FEW) {
        const size_t most = expand_bytes(PLACES * SPEC_MAX_CHILD), room = most < q->dev->shared_most ? most : q->dev->shared_most;
        const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room);
        if (e != cudaSuccess) return speci_cuda_status(q->dev, e, "expand");
    }
    expand_batch b = rule_of(a);
    for (int32_t r = 0, n; r < a->n; r += n) {
        n = a->n - r < ROW_BATCH ? a->n - r : ROW_BATCH;
        memcpy(b.slot, a->host_slot + r, (size_t)n * 4), memcpy(b.feed_base, a->host_feed_base + r, (size_t)n * 4);
        if (a->host_root) memcpy(b.root, a->host_root + r, (size_t)n * sizeof b.root[0]);
        if (a->host_out_n) SPEC_TRY(batch_results(q, a, r, n, &b));
        SPEC_TRY(cuda_launch(q, "expand", kernel, dim3((unsigned)n), dim3((unsigned)threads), shared, 1, b));
        if (a->host_out_n && !b.out) SPEC_TRY(batch_copies(q, a, r, n));
    }
    return SPEC_OK;
}
