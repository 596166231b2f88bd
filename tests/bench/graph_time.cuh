/* graph_time.cuh - how long a captured graph takes, for the programs that time kernels without the library. */
#ifndef SPEC_BENCH_GRAPH_TIME_CUH
#define SPEC_BENCH_GRAPH_TIME_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

/* Milliseconds of what `launch` launches on q: captured, replayed so many times a round; the least of the rounds. */
template <typename F> static float time_graph(cudaStream_t q, int replays, int rounds, F launch)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    check(cudaStreamBeginCapture(q, cudaStreamCaptureModeThreadLocal), "capture");
    launch();
    check(cudaStreamEndCapture(q, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    float least = 0.0f;
    for (int round = 0; round < rounds; round++) {
        float ms;
        check(cudaEventRecord(begin, q), "event");
        for (int i = 0; i < replays; i++) check(cudaGraphLaunch(exec, q), "launch");
        check(cudaEventRecord(end, q), "event");
        check(cudaStreamSynchronize(q), "graph");
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        if (round == 0 || ms < least) least = ms;
    }
    check(cudaEventDestroy(begin), "event");
    check(cudaEventDestroy(end), "event");
    check(cudaGraphExecDestroy(exec), "graph");
    check(cudaGraphDestroy(graph), "graph");
    return least / replays;
}

#endif
