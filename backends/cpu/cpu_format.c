/* cpu_format.c - the formats of weights: one row each. */
#include "backends/cpu/cpu.h"

static const cpu_format *const formats[] = { &speci_cpu_format_f32, &speci_cpu_format_bf16, &speci_cpu_format_f16,
                                             &speci_cpu_format_q8_0, &speci_cpu_format_q4_0, &speci_cpu_format_q4_1,
                                             &speci_cpu_format_q5_0, &speci_cpu_format_q5_1, &speci_cpu_format_q4_k,
                                             &speci_cpu_format_q5_k, &speci_cpu_format_q6_k };

const cpu_format *speci_cpu_format_of(spec_dtype dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i]->dtype == dtype) return formats[i];
    return NULL;
}
