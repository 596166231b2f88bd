/* timeline.cpp - what runs on a GPU, and when: a library that the driver loads into a program, and that writes a line for each
 * kernel and copy when the program ends: begin and end in nanoseconds, blocks, threads of a block, name. It hardly changes the
 * program: captured graphs and programmatic launches stay what they are (steps take 1 to 6 % more).
 *
 * Needs CUPTI, which not every toolkit has, so it is built by hand; CUPTI: its directory.
 *
 *   g++ -O1 -shared -fPIC -I$CUPTI/include -I/usr/local/cuda/include tests/bench/timeline.cpp -o timeline.so -L$CUPTI/lib64 -lcupti
 *   CUDA_INJECTION64_PATH=$PWD/timeline.so TIMELINE=step.txt build/bin/spec-bench step -m mamba2-130m -b cuda --nodes 1 -r 3
 *   python3 tests/bench/timeline.py step.txt */
#include <cupti.h>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct span {
    uint64_t begin, end;
    int64_t blocks;
    int32_t threads;
    std::string name;
};
std::mutex lock;
std::vector<span> spans;

void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *n_record)
{
    *size = (size_t)8 << 20;
    *buffer = (uint8_t *)std::aligned_alloc(8, *size);
    *n_record = 0; /* as many as fit */
}

void CUPTIAPI buffer_full(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t used)
{
    std::lock_guard<std::mutex> held(lock);
    for (CUpti_Activity *r = nullptr; cuptiActivityGetNextRecord(buffer, used, &r) == CUPTI_SUCCESS;) {
        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto *k = (const CUpti_ActivityKernel9 *)r;
            spans.push_back({ k->start, k->end, (int64_t)k->gridX * k->gridY * k->gridZ, k->blockX * k->blockY * k->blockZ,
                              k->name ? k->name : "?" });
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto *c = (const CUpti_ActivityMemcpy5 *)r;
            spans.push_back({ c->start, c->end, 0, 0, "copy" });
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const auto *c = (const CUpti_ActivityMemset4 *)r;
            spans.push_back({ c->start, c->end, 0, 0, "set" });
        }
    }
    std::free(buffer);
}

void write_spans()
{
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const char *path = std::getenv("TIMELINE");
    std::FILE *f = std::fopen(path ? path : "timeline.txt", "w");
    if (!f) {
        std::perror(path ? path : "timeline.txt");
        return;
    }
    for (const span &s : spans)
        std::fprintf(f, "%llu %llu %lld %d %s\n", (unsigned long long)s.begin, (unsigned long long)s.end, (long long)s.blocks,
                     s.threads, s.name.c_str());
    std::fclose(f);
}

} // namespace

/* The driver calls it when the program first uses CUDA. */
extern "C" int InitializeInjection(void)
{
    CUptiResult r = cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full);
    const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET };
    for (CUpti_ActivityKind kind : kinds)
        if (r == CUPTI_SUCCESS) r = cuptiActivityEnable(kind);
    if (r != CUPTI_SUCCESS) std::fprintf(stderr, "timeline: CUPTI answers %d, nothing will be written\n", (int)r);
    else std::atexit(write_spans);
    return 1;
}
