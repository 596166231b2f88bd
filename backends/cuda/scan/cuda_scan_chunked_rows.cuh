/* cuda_scan_chunked_rows.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): what a
 * block reads of the pass itself, behind its wait for the kernel in front: x, B, C and dt of the rows, and gates. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_ROWS_CUH
#define SPEC_CUDA_SCAN_CHUNKED_ROWS_CUH

#include "backends/cuda/scan/cuda_scan_chunked_out.cuh"

/* Has the address found here: the compiler would find it where it is used, behind the wait, where nothing else hides
 * that. It cannot know that no address is odd. */
static __device__ __forceinline__ void found(const void *p)
{
    asm volatile("{ .reg .b32 low; .reg .pred odd; cvt.u32.u64 low, %0; and.b32 low, low, 1; setp.ne.u32 odd, low, 0;"
                 " @odd trap; }" ::"l"(p)
                 : "memory");
}

template <typename K> struct chunked_rows {
    typedef typename K::T T;
    const chunked_block<K> &b;
    const chunked_copies<K> &copies;
    const chunked_times<K> &times;
    const chunked_outputs<K> &outputs;
    chunked_output<K::V> &first;             /* of a thread's outputs in each tile */
    typename chunked_times<K>::head head;    /* of a warp's first task */
    const T *c_rows;                        /* C of row 0 of the pass */
    int ld;                                 /* of x or B, whichever this lane copies */
    bool has_out, has_dt, has_row, reads_gate;
    struct sources {
        const float *dt, *gate; /* this thread's first */
        const T *row, *c;       /* x or B, and C, of this warp's first row */
    };

    __device__ __forceinline__ chunked_rows(const chunked_block<K> &block, const chunked_copies<K> &of, const chunked_times<K> &time,
                                           const chunked_outputs<K> &out, chunked_output<K::V> &f)
        : b(block), copies(of), times(time), outputs(out), first(f)
    {
        head = times.head_of(times.first_task);
        has_out = b.has_channel(first.c);
    }
    __device__ __forceinline__ void prepare() /* what is known of them before the wait, found when all else is on its way */
    {
        ld = copies.has_b ? b.a.b.ld : b.a.x.ld;
        c_rows = (const T *)b.a.c.data + b.grid.c_rep.of(b.first_head) * K::NS + b.lane * 8;
        has_dt = times.first_task < times.n_task, has_row = b.warp < b.n_seen;
        reads_gate = has_out && b.a.z.data && first.r < b.n_first;
    }
    __device__ __forceinline__ void find(sources &from) const
    {
        const size_t row = (size_t)(b.s.first_row + b.warp);
        from.dt = times.where(times.first_task), from.gate = outputs.where_gate(first, b.s.first_row + b.begin + first.r);
        from.row = (const T *)(copies.has_b ? b.a.b.data : b.a.x.data) + copies.col + row * ld;
        from.c = c_rows + (row + b.begin) * b.a.c.ld;
    }
    __device__ __forceinline__ void find_now(sources &from) const
    {
        find(from);
        if (has_dt) found(from.dt);
        if (reads_gate) found(from.gate);
        if (has_row && copies.has) found(from.row);
        if (has_row && copies.has_b) found(from.c);
    }

    __device__ __forceinline__ void copy_c(int r, const T *from) const /* to row r of the tile */
    {
        const uint32_t to = (uint32_t)__cvta_generic_to_shared(outputs.shared.c + b.lane * 8);
        if (copies.has_b) scan_copy16(to + (uint32_t)r * (K::LD * (uint32_t)sizeof(T)), from);
    }
    /* All that is read: x and B of the rows seen, of tokens of the path and nodes fed before, C of the first tile, dt;
     * not waited for. */
    __device__ __forceinline__ void bring(sources from)
    {
        float own = has_dt ? *from.dt : 0.0f;
        if (reads_gate) first.load_gate(from.gate);
        uint32_t to = copies.to + (b.tree0 + b.s.n_fed + b.warp) * copies.to_ld;
#pragma unroll 1
        for (int i = b.warp; i < b.n_seen; i += b.n_warp) {
            if (copies.has) scan_copy16(to, from.row);
            if (i < (K::SPLIT ? b.n_first : b.grid.tile_rows)) copy_c(i, from.c);
            to += b.n_warp * copies.to_ld, from.row += b.n_warp * ld, from.c += b.n_warp * b.a.c.ld;
        }
        if (b.s.n_replay > 0) copies.path(copies.known.held0, 0, copies.known.n_held);
        if (b.s.n_fed > 0) copies.fed();
#pragma unroll 1
        for (int task = times.first_task; task < times.n_task;) {
            times.keep_row(task, own, head);
            task += b.n_warp;
            if (task < times.n_task) own = *times.where(task), head = times.head_of(task);
        }
    }

    /* Of a tile behind the first, from row0 on, n rows: C, while the outputs of the tile before are made, and the gate. */
    __device__ __forceinline__ void bring_c(int row0, int n) const
    {
#pragma unroll 1
        for (int i = b.warp; i < n; i += b.n_warp) copy_c(i, c_rows + (size_t)(b.s.first_row + row0 + i) * b.a.c.ld);
    }
    __device__ __forceinline__ void load_gate(int row0, int n)
    {
        if (b.a.z.data && has_out && first.r < n) first.load_gate(outputs.where_gate(first, b.s.first_row + row0 + first.r));
    }

    /* The tile's outputs, by whole warps where FEW. */
    __device__ __forceinline__ void put(int row0, int n, int skipped) const
    {
        const int i0 = b.tid / K::LANES;
#pragma unroll 1
        for (int i = i0; i < n * (int)b.grid.wide.by; i += b.n_thread / K::LANES) {
            chunked_output<K::V> o = first;
            if (i != i0) o = outputs.find(i);
            if (!b.has_channel(o.c)) continue;
            if (i != i0 && b.a.z.data) o.load_gate(outputs.where_gate(o, b.s.first_row + row0 + o.r));
            outputs.put(o, b.s.first_row + row0 + o.r, b.s.n_fed + row0 + o.r, skipped);
        }
    }
};

#endif
