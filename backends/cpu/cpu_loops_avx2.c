/* cpu_loops_avx2.c - the inner loops, compiled for AVX2 (flags: cpu.h). */
#include "backends/cpu/cpu.h"

#if CPU_X86
#include "backends/cpu/cpu_loops.h"

const cpu_loops speci_cpu_loops_avx2 = CPU_LOOPS_TABLE;
#else
typedef int speci_cpu_loops_avx2_is_empty;
#endif
