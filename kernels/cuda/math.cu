// Functions of numbers that generated kernels call: what the hardware does not do in one instruction.
//
//   pipeline ── call ──► math_sin ── call ──► reduction of large arguments
//
// Called   by value, one thread one number; no memory is touched.
// Floats   IEEE 754 doubles, within two units of the last place of the exact result; special cases as C99, annex F.
//          Single precision converts, calls and rounds once.
// Loops    end for every argument, since rows that are NULL may hold any.
#include "common.cuh"

#define HELPER extern "C" __device__ __noinline__

#define UNARY(name, body)                                                                                              \
  HELPER double math_##name(double x) { return body(x); }
UNARY(acos, acos)
UNARY(asin, asin)
UNARY(atan, atan)
UNARY(cbrt, cbrt)
UNARY(cos, cos)
UNARY(cosh, cosh)
UNARY(exp, exp)
UNARY(ln, log)
UNARY(ln_1p, log1p)
UNARY(log10, log10)
UNARY(log2, log2)
UNARY(sin, sin)
UNARY(sinh, sinh)
UNARY(tan, tan)
UNARY(tanh, tanh)

#define BINARY(name, body)                                                                                             \
  HELPER double math_##name(double x, double y) { return body(x, y); }
BINARY(atan2, atan2)
BINARY(hypot, hypot)
BINARY(power, pow)

__device__ inline u64 magnitude(i64 x) { return x < 0 ? 0 - (u64)x : (u64)x; }

__device__ inline u64 common_divisor(u64 a, u64 b) {
  while (b) {
    u64 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// The greatest common divisor; -1 where it is 2^63.
HELPER i64 math_gcd(i64 x, i64 y) {
  u64 divisor = common_divisor(magnitude(x), magnitude(y));
  return divisor >> 63 ? -1 : (i64)divisor;
}

// The least common multiple; -1 where it does not fit.
HELPER i64 math_lcm(i64 x, i64 y) {
  u64 a = magnitude(x), b = magnitude(y);
  if (!a || !b) return 0;
  a /= common_divisor(a, b);
  u64 low = a * b;
  return __umul64hi(a, b) || low >> 63 ? -1 : (i64)low;
}

// n! for n up to 20; -1 beyond, and below 0.
HELPER i64 math_factorial(i64 n) {
  if (n < 0 || n > 20) return -1;
  i64 product = 1;
  for (i64 factor = 2; factor <= n; factor++) product *= factor;
  return product;
}
