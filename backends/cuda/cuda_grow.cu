/* cuda_grow.cu - trees that grow on the device: begin, draw candidates, expand. The host's form of the same is
 * backend_grow.c; values, order, ties and keys are its own. Host arrays travel as parameters, results through pinned
 * memory; nothing waits. */
#include "cuda_select.cuh"

static spec_status check_slots(spec_queue *q, const char *op, const spec_grow *g, const int32_t *slots, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= g->n_slot)
            return q->dev->host->fail(SPEC_E_INVALID, "cuda %s: slot %d of %d", op, slots[i], g->n_slot);
    return SPEC_OK;
}

static int32_t batch_of(const spec_queue *q, int32_t left) { return left < q->row_cap ? left : q->row_cap; }

/* ----------------------------------------------------------------------------------- begin --- */

/* One block per tree. */
static __global__ void __launch_bounds__(128) grow_kernel(spec_grow g, const spec_grow_node *root, const int32_t *slots)
{
    const size_t slot = (size_t)slots[blockIdx.x];
    int32_t *frontier = g.frontier + slot * (size_t)g.cap_frontier;
    for (int i = (int)threadIdx.x; i < g.cap_frontier; i += (int)blockDim.x) frontier[i] = i == 0 ? 0 : -1;
    if (threadIdx.x != 0) return;
    g.n[slot] = 1;
    g.node[slot * (size_t)g.cap] = root[blockIdx.x];
}

spec_status speci_cuda_grow(spec_queue *q, const spec_grow_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_slots(q, "grow", a->grow, a->host_slot, a->n));
    for (int32_t r = 0, n; r < a->n; r += n) {
        n = batch_of(q, a->n - r);
        const size_t m = (size_t)n;
        cuda_param p;
        SPEC_TRY(speci_cuda_param_begin(q, &p, m * (sizeof(spec_grow_node) + 4)));
        const spec_grow_node *root =
            (const spec_grow_node *)speci_cuda_param_add(q, &p, a->host_root + r, m * sizeof(spec_grow_node));
        const int32_t *slot = (const int32_t *)speci_cuda_param_add(q, &p, a->host_slot + r, m * 4);
        SPEC_TRY(speci_cuda_param_end(q, &p));
        grow_kernel<<<(unsigned)n, 128, 0, q->stream>>>(*a->grow, root, slot);
        SPEC_TRY(cuda_launched(q, "grow"));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------------ draw --- */

/* What a row of a draw belongs to, and where its candidates go. */
struct draw_rows {
    const float *law;
    int32_t ld, n_vocab, k;
    const int32_t *law_row;
    bool grows;                   /* of trees: */
    spec_grow g;
    const int32_t *slot, *place;
    const uint64_t *key;          /* else */
    spec_candidate *out;          /* [row][k] or NULL */
};
struct draw_row {
    const float *law;
    uint64_t key;
    bool there; /* false: the place has no node */
    spec_candidate *own, *out; /* either may be NULL */
};

static __device__ draw_row row_of(const draw_rows &a, int i)
{
    draw_row r;
    r.law = a.law + (size_t)a.law_row[i] * a.ld;
    r.out = a.out ? a.out + (size_t)i * a.k : NULL;
    r.own = NULL, r.there = true;
    if (!a.grows) {
        r.key = a.key[i];
        return r;
    }
    const size_t slot = (size_t)a.slot[i], place = slot * (size_t)a.g.cap_frontier + (size_t)a.place[i];
    const int32_t node = a.g.frontier[place];
    r.own = a.g.candidate + place * SPEC_MAX_CHILD;
    r.there = node >= 0;
    r.key = r.there ? a.g.node[slot * (size_t)a.g.cap + (size_t)node].key : 0;
    return r;
}

static __device__ __forceinline__ void candidate_put(const draw_row &r, int j, int token)
{
    spec_candidate c;
    c.token = token, c.prob = token >= 0 ? r.law[token] : 0.0f;
    if (r.own) r.own[j] = c;
    if (r.out) r.out[j] = c;
}

/* Entries of a law for block_top: by law, or by their values in the race. A block of random words serves a pair, so
 * pairs are looked at together; the few that are looked at again have theirs made again, which saves 4 bytes per
 * entry of all rows. */
template <bool RACE> struct law_entry {
    const float *law;
    int n;
    uint64_t key;
    __device__ __forceinline__ unsigned long long rank(float l, int i, uint32_t high, uint32_t low) const
    {
        if (!(l > 0.0f)) return 0;
        return entry_rank(RACE ? spec_race_value(l, high, low) : l, i);
    }
    __device__ __forceinline__ void pair(int p, unsigned long long *a, unsigned long long *b) const
    {
        const float first = law[2 * p], second = 2 * p + 1 < n ? law[2 * p + 1] : 0.0f;
        uint32_t w[4] = { 0, 0, 0, 0 };
        if (RACE && (first > 0.0f || second > 0.0f)) spec_race_words(key, (uint32_t)p, w);
        *a = rank(first, 2 * p, w[0], w[1]), *b = rank(second, 2 * p + 1, w[2], w[3]);
    }
    __device__ __forceinline__ unsigned long long one(int i) const
    {
        unsigned long long a, b;
        pair(i / 2, &a, &b);
        return i % 2 ? b : a;
    }
};

struct draw_shared {
    top_shared<TEAM_THREADS> top;
    unsigned long long best[SPEC_MAX_CHILD]; /* of the block's slice */
};
static_assert(TEAM * SPEC_MAX_CHILD == TEAM_THREADS, "the slices' best are sorted one per thread");

/* TOP and RACE: a team per row. Every block finds the k best of its slice, the first one the k best of those. */
template <bool RACE>
static __global__ void __launch_bounds__(TEAM_THREADS, 2) draw_best_kernel(draw_rows a)
{
    __shared__ draw_shared s;
    const draw_row r = row_of(a, team_row());
    const int t = (int)threadIdx.x, b = team_block();
    if (!r.there) { /* the same in all blocks */
        if (b == 0 && t < a.k) candidate_put(r, t, -1);
        return;
    }
    const team_slice part = slice_of(a.n_vocab);
    law_entry<RACE> entry;
    entry.law = r.law, entry.n = a.n_vocab, entry.key = r.key;
    unsigned long long rank = block_top<TEAM_THREADS>(entry, part.first, part.end, a.k, &s.top);
    if (t < SPEC_MAX_CHILD) s.best[t] = t < a.k ? rank : 0;
    team_sync();
    if (b == 0) {
        const int peer = t / SPEC_MAX_CHILD;
        if (team_blocks() > 1) {
            rank = peer < team_blocks() ? team_peer(s.best, peer)[t % SPEC_MAX_CHILD] : 0ull;
            rank = block_sort<TEAM_THREADS>(rank, s.top.sort);
        }
        if (t < a.k) candidate_put(r, t, rank ? rank_id(rank) : -1);
    }
    team_sync();
}

/* REPEAT: a team per row, a warp per draw. */
static __global__ void __launch_bounds__(TEAM_THREADS, 2) draw_repeat_kernel(draw_rows a)
{
    __shared__ team_parts<double> sums;
    const draw_row r = row_of(a, team_row());
    const int warp = team_block() * TEAM_WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (!r.there) {
        if (warp == 0)
            for (int j = lane; j < a.k; j += 32) candidate_put(r, j, -1);
        return;
    }
    (void)team_ranges(&sums, r.law, NULL, a.n_vocab, [](int, float l, float) { return l; });
    for (int j = warp; j < a.k; j += team_blocks() * TEAM_WARPS) {
        const int token = team_draw(&sums, [&](int i) { return r.law[i]; }, a.n_vocab,
                                    spec_repeat_uniform(r.key, (uint32_t)j));
        if (lane == 0) candidate_put(r, j, token);
    }
}

static spec_status draw_batch(spec_queue *q, const spec_draw_args *a, int32_t r, int32_t n)
{
    const size_t m = (size_t)n;
    cuda_param p;
    draw_rows d;
    d.law = a->law, d.ld = a->ld, d.n_vocab = a->n_vocab, d.k = a->k;
    d.grows = a->grow != NULL, d.g = a->grow ? *a->grow : spec_grow(), d.key = NULL, d.slot = d.place = NULL,
    d.out = NULL;
    SPEC_TRY(speci_cuda_param_begin(q, &p, m * 12));
    if (!a->grow) d.key = (const uint64_t *)speci_cuda_param_add(q, &p, a->host_key + r, m * 8);
    d.law_row = (const int32_t *)speci_cuda_param_add(q, &p, a->host_law_row + r, m * 4);
    if (a->grow) {
        d.slot = (const int32_t *)speci_cuda_param_add(q, &p, a->host_slot + r, m * 4);
        d.place = (const int32_t *)speci_cuda_param_add(q, &p, a->host_place + r, m * 4);
    }
    SPEC_TRY(speci_cuda_param_end(q, &p));
    if (a->host_out) {
        const size_t bytes = m * (size_t)a->k * sizeof(spec_candidate);
        void *out;
        SPEC_TRY(speci_cuda_result_room(q, bytes + 16, 1));
        SPEC_TRY(speci_cuda_result(q, &out, a->host_out + (size_t)r * (size_t)a->k, bytes));
        d.out = (spec_candidate *)out;
    }
    void (*kernel)(draw_rows) = draw_repeat_kernel;
    if (a->how == SPEC_DRAW_TOP) kernel = draw_best_kernel<false>;
    else if (a->how == SPEC_DRAW_RACE) kernel = draw_best_kernel<true>;
    return team_launch(q, "draw", kernel, n, team_of(a->n_vocab), d);
}

spec_status speci_cuda_draw(spec_queue *q, const spec_draw_args *a)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    if (a->k < 1 || a->k > SPEC_MAX_CHILD || a->n_vocab < 1 || a->ld < a->n_vocab)
        return h->fail(SPEC_E_INVALID, "cuda draw: %d candidates of %d values, rows %d apart", a->k, a->n_vocab, a->ld);
    if (a->grow) SPEC_TRY(check_slots(q, "draw", a->grow, a->host_slot, a->n_row));
    for (int32_t i = 0; a->grow && i < a->n_row; i++)
        if (a->host_place[i] < 0 || a->host_place[i] >= a->grow->cap_frontier)
            return h->fail(SPEC_E_INVALID, "cuda draw: place %d of a frontier of %d", a->host_place[i],
                           a->grow->cap_frontier);
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = batch_of(q, a->n_row - r);
        SPEC_TRY(draw_batch(q, a, r, n));
    }
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------- expand --- */

enum { PLACES = 256, EXPAND_THREADS = 512, EXPAND_WARPS = EXPAND_THREADS / 32 };

/* The rule, and its arrays on the device. */
struct expand_rule {
    spec_grow g;
    const int32_t *slot, *feed_base;
    int32_t n_place, k;
    const int32_t *take; /* or NULL */
    double threshold;
    int32_t n_add, n_max, n_next;
    const int32_t *next; /* or NULL */
    double next_threshold;
};

struct expand_shared {
    int32_t was[PLACES]; /* the frontier that is expanded */
    double value[PLACES];
    int32_t eligible[PLACES];           /* how many of a place's first candidates */
    unsigned int bins[256];
    uint64_t prefix;
    int bin, rest;
    int warp[EXPAND_WARPS];
    uint16_t added[PLACES * SPEC_MAX_CHILD]; /* candidate f k + j that became added node i; ascending */
};

/* How many of the items before this thread's, and *total of all, have `in`. */
static __device__ int block_rank(expand_shared *s, bool in, int *total)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const unsigned ballot = __ballot_sync(0xffffffffu, in);
    __syncthreads(); /* the last use of s->warp */
    if (lane == 0) s->warp[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), sum = 0;
    for (int w = 0; w < EXPAND_WARPS; w++) before += w < warp ? s->warp[w] : 0, sum += s->warp[w];
    *total = sum;
    return before;
}

/* Not negative numbers, in the order of their bits. */
static __device__ __forceinline__ uint64_t value_bits(double v) { return (uint64_t)__double_as_longlong(v + 0.0); }

/* The bits of the n-th largest value of the items that `in` takes, of which there are at least n >= 1; *ties: how
 * many of the items with that value belong to the n largest. 8 bits at a time. */
template <typename In, typename Bits>
static __device__ uint64_t nth_largest(expand_shared *s, int n_item, int n, const In &in, const Bits &bits, int *ties)
{
    const int t = (int)threadIdx.x;
    uint64_t prefix = 0;
    int rest = n;
    for (int digit = 56; digit >= 0; digit -= 8) {
        __syncthreads();
        if (t < 256) s->bins[t] = 0;
        __syncthreads();
        for (int i = t; i < n_item; i += EXPAND_THREADS) {
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
template <typename In, typename Bits, typename Take>
static __device__ int each_best(expand_shared *s, int n_item, int n, const In &in, const Bits &bits, const Take &take)
{
    const int t = (int)threadIdx.x;
    int total = 0, count, ties = 0;
    for (int base = 0; base < n_item; base += EXPAND_THREADS) {
        (void)block_rank(s, base + t < n_item && in(base + t), &count);
        total += count;
    }
    if (n <= 0) return 0;
    const bool all = total <= n;
    const uint64_t border = all ? 0 : nth_largest(s, n_item, n, in, bits, &ties);
    int taken = 0, tied = 0;
    for (int base = 0; base < n_item; base += EXPAND_THREADS) {
        const int i = base + t;
        const bool here = i < n_item && in(i);
        const uint64_t b = here && !all ? bits(i) : 0;
        int n_tie, n_take;
        const bool tie = here && !all && b == border;
        const int before = tied + block_rank(s, tie, &n_tie);
        const bool chosen = here && (all || b > border || (tie && before < ties));
        const int position = taken + block_rank(s, chosen, &n_take);
        if (chosen) take(i, position);
        tied += n_tie, taken += n_take;
    }
    return taken;
}

/* The eligible candidates of place f: how many of its first ones. */
static __device__ int n_eligible(const expand_rule &a, const spec_candidate *c, double value, int f)
{
    const int most = a.take && a.take[f] < a.k ? a.take[f] : a.k;
    double drawn = 0.0;
    int j = 0;
    for (; j < most && c[j].token >= 0; j++) {
        if (!(value * (1.0 - drawn) >= a.threshold)) break;
        drawn += (double)c[j].prob;
    }
    return j;
}

/* One block per tree. A thread per place counts its eligible candidates; then a thread per candidate. */
static __global__ void __launch_bounds__(EXPAND_THREADS) expand_kernel(expand_rule a)
{
    __shared__ expand_shared s;
    const int t = (int)threadIdx.x, k = a.k;
    const size_t slot = (size_t)a.slot[blockIdx.x];
    int32_t *frontier = a.g.frontier + slot * (size_t)a.g.cap_frontier;
    spec_grow_node *node = a.g.node + slot * (size_t)a.g.cap;
    spec_step_node *feed = a.g.feed + slot * (size_t)a.g.cap_feed + a.feed_base[blockIdx.x];
    const spec_candidate *candidate = a.g.candidate + slot * (size_t)a.g.cap_frontier * SPEC_MAX_CHILD;
    const int first = a.g.n[slot];
    for (int f = t; f < a.n_place; f += EXPAND_THREADS) {
        const int x = frontier[f];
        s.was[f] = x;
        s.value[f] = x >= 0 ? node[x].value : 0.0;
        s.eligible[f] = x >= 0 ? n_eligible(a, candidate + (size_t)f * SPEC_MAX_CHILD, s.value[f], f) : 0;
    }
    __syncthreads();

    /* The children. */
    auto of = [&](int i) { return candidate[(size_t)(i / k) * SPEC_MAX_CHILD + (size_t)(i % k)]; };
    auto value = [&](int i) { return s.value[i / k] * (double)of(i).prob; };
    const int room = a.n_max > first ? a.n_max - first : 0, n_item = a.n_place * k;
    const int chosen = each_best(
        &s, n_item, a.n_add > 0 ? a.n_add : n_item, [&](int i) { return i % k < s.eligible[i / k]; },
        [&](int i) { return value_bits(value(i)); },
        [&](int i, int position) {
            if (position >= room) return;
            const int x = s.was[i / k], j = i % k;
            const spec_candidate c = of(i);
            spec_grow_node child;
            child.key = spec_stream_child(node[x].key, j), child.value = value(i);
            child.token = c.token, child.parent = x, child.depth = node[x].depth + 1, child.rank = j;
            child.prob = c.prob, child.fed = -1;
            node[first + position] = child;
            s.added[position] = (uint16_t)i;
        });
    const int n_added = chosen < room ? chosen : room;
    __syncthreads();

    /* The next frontier. */
    auto place = [&](int i, int x) {
        spec_step_node fed = { 0, 0, 1, 0 };
        if (x >= 0) {
            node[x].fed = a.feed_base[blockIdx.x] + i;
            fed.token = node[x].token, fed.parent = node[node[x].parent].fed, fed.depth = node[0].fed + node[x].depth;
        }
        frontier[i] = x;
        feed[i] = fed;
    };
    int filled = a.n_next;
    if (a.next) {
        for (int i = t; i < a.n_next; i += EXPAND_THREADS) {
            int low = 0, high = n_added; /* the first added candidate >= next[i] */
            while (low < high) {
                const int middle = (low + high) / 2;
                if ((int)s.added[middle] < a.next[i]) low = middle + 1;
                else high = middle;
            }
            place(i, low < n_added && (int)s.added[low] == a.next[i] ? first + low : -1);
        }
    } else {
        filled = each_best(&s, n_added, a.n_next, [&](int i) { return node[first + i].value >= a.next_threshold; },
                           [&](int i) { return value_bits(node[first + i].value); },
                           [&](int i, int position) { place(position, first + i); });
    }
    for (int i = filled + t; i < a.g.cap_frontier; i += EXPAND_THREADS) {
        if (i < a.n_next) place(i, -1);
        else frontier[i] = -1;
    }
    if (t == 0) a.g.n[slot] = first + n_added;
}

static spec_status check_expand(spec_queue *q, const spec_expand_args *a)
{
    const spec_host *h = q->dev->host;
    const spec_grow *g = a->grow;
    SPEC_TRY(check_slots(q, "expand", g, a->host_slot, a->n));
    if (a->n_place < 0 || a->n_place > g->cap_frontier || a->n_place > PLACES || a->n_next < 0 || a->n_next > PLACES ||
        a->n_next > g->cap_frontier || a->n_max > g->cap || a->k < 1 || a->k > SPEC_MAX_CHILD)
        return h->fail(SPEC_E_INVALID, "cuda expand: %d places to %d of %d (%d at most), %d candidates, %d nodes of %d",
                       a->n_place, a->n_next, g->cap_frontier, (int)PLACES, a->k, a->n_max, g->cap);
    for (int32_t i = 0; i < a->n; i++)
        if (a->host_feed_base[i] < 0 || a->host_feed_base[i] + a->n_next > g->cap_feed)
            return h->fail(SPEC_E_INVALID, "cuda expand: nodes %d to %d of a drafter's tree of %d",
                           a->host_feed_base[i], a->host_feed_base[i] + a->n_next, g->cap_feed);
    return SPEC_OK;
}

spec_status speci_cuda_expand(spec_queue *q, const spec_expand_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_expand(q, a));
    for (int32_t r = 0, n; r < a->n; r += n) {
        n = batch_of(q, a->n - r);
        const size_t m = (size_t)n, places = a->host_take ? (size_t)a->n_place : 0;
        const size_t nexts = a->host_next ? (size_t)a->n_next : 0;
        cuda_param p;
        expand_rule rule;
        rule.g = *a->grow, rule.n_place = a->n_place, rule.k = a->k, rule.threshold = a->threshold;
        rule.n_add = a->n_add, rule.n_max = a->n_max, rule.n_next = a->n_next, rule.next_threshold = a->next_threshold;
        SPEC_TRY(speci_cuda_param_begin(q, &p, m * 8 + (places + nexts) * 4));
        rule.slot = (const int32_t *)speci_cuda_param_add(q, &p, a->host_slot + r, m * 4);
        rule.feed_base = (const int32_t *)speci_cuda_param_add(q, &p, a->host_feed_base + r, m * 4);
        const void *take = speci_cuda_param_add(q, &p, a->host_take, places * 4);
        const void *next = speci_cuda_param_add(q, &p, a->host_next, nexts * 4);
        rule.take = a->host_take ? (const int32_t *)take : NULL;
        rule.next = a->host_next ? (const int32_t *)next : NULL;
        SPEC_TRY(speci_cuda_param_end(q, &p));
        expand_kernel<<<(unsigned)n, EXPAND_THREADS, 0, q->stream>>>(rule);
        SPEC_TRY(cuda_launched(q, "expand"));
    }
    return SPEC_OK;
}
