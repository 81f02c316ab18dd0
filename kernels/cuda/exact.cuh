// Arithmetic on doubles as the host does it: each step rounded by itself, no product fused into a sum.
#pragma once
#include "common.cuh"

__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double subtract(double a, double b) { return __dsub_rn(a, b); }
__device__ inline double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double divide(double a, double b) { return __ddiv_rn(a, b); }

constexpr double LN_2_HIGH = 6.93147180369123816490e-01, LN_2_LOW = 1.90821492927058770002e-10;
