/* Declares the words of CUDA C++ that the patterns' snippets use, so that a C++ compiler can check them without nvcc. */
#pragma once
#include <math.h>
#include <stddef.h>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct gm_dim3 {
    unsigned x, y, z;
};
struct gm_half4 {
    float x, y, z, w;
};
using float4 = gm_half4;
extern const gm_dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
float __shfl_xor_sync(unsigned mask, float value, int lane_mask, int width = 32);
float rsqrtf(float);
float __expf(float);
size_t __cvta_generic_to_shared(const void *);
