/* cpu_loops.c - the inner loops for any machine. */
#include "backends/cpu/cpu_loops.h"

const cpu_loops speci_cpu_loops_portable = CPU_LOOPS_TABLE;
