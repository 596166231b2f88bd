/* cuda_parallel.cu - work of the host beside the device's: on the application's pool, else on threads that end with it. */
#include <atomic>
#include <thread>

#include "backends/cuda/cuda.cuh"

void speci_cuda_parallel(spec_device *dev, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    enum { MOST = 16 };
    const spec_host *const h = dev->host;
    if (h->parallel_for) return h->parallel_for(h, n, body, arg);
    std::atomic<int32_t> next(0);
    auto work = [&] {
        for (int32_t i = next++; i < n; i = next++) body(arg, i);
    };
    std::thread threads[MOST - 1];
    const int32_t n_more = min(min(n, h->n_threads), (int32_t)MOST) - 1;
    for (int32_t i = 0; i < n_more; i++) {
        try {
            threads[i] = std::thread(work);
        } catch (...) { /* no thread to be had: the others do its part */
        }
    }
    work();
    for (std::thread &t : threads)
        if (t.joinable()) t.join();
}
