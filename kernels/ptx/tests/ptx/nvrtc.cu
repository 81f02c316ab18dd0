// What the parser must read: everything that NVRTC writes for a module without CUB.
extern "C" __device__ int vprintf(const char *, const char *);
__device__ int table[4] = {1, 2, -3, 4};
__device__ int other;
__device__ int *pointer = &table[2];
__device__ const char *message = "hello";
__constant__ double constants[3] = {1.5, -0.0, 1e300};
__constant__ float floats[2] = {1.5f, -0.0f};
struct Pair { int a; int *b; };
__device__ Pair pair = {3, &table[1]};
struct __attribute__((packed)) Packed { char a; int *b; };
__device__ Packed packed = {3, &table[1]};
typedef int (*Function)(int);
__device__ __noinline__ int triple(int x) { return x * 3 + table[x & 3]; }
__device__ __noinline__ int seventh(int x) { return x / 7; }
__device__ Function functions[2] = {triple, seventh};
extern "C" __device__ __noinline__ __int128 div128(__int128 a, __int128 b) { return a / b; }
struct Args { const void *p; long long n; float f[3]; };
extern "C" __global__ void __launch_bounds__(256, 2)
everything(Args s, __int128 *out, int which, double x, float *fo) {
  extern __shared__ char dynamic[];
  __shared__ unsigned long long counts[32];
  int v = ((const int *)s.p)[threadIdx.x];
  if (threadIdx.x < 32) counts[threadIdx.x] = s.n;
  __syncthreads();
  out[threadIdx.x] = div128(out[threadIdx.x], counts[v & 31]);
  int q = functions[which](v);
  switch (which) {
  case 0: q += 1; break; case 1: q *= 7; break; case 2: q ^= 9; break; case 3: q -= other; break;
  case 4: q = __popc(q); break; case 5: q = -q; break; case 6: q = q * q; break; default: q = 99;
  }
  other = q; dynamic[threadIdx.x] = q;
  fo[0] = s.f[which] + pow(x, constants[which]) + floats[which & 1] + sqrt(x) + sin(x) + (float)x / s.f[1] + *pointer
        + message[which] + *pair.b + *packed.b;
  int local[8];
  for (int i = 0; i < 8; i++) local[i] = ((int *)s.p)[i];
  for (int i = 0; i < q % 8; i++) local[(i * which) % 8] += i;
  fo[1] = local[which];
  if (q == 4) { int a = 3; vprintf("x %d", (const char *)&a); __trap(); }
  atomicAdd(fo + 2, 1.0f); atomicAdd((double *)out, 1.0); atomicMax((long long *)out, 3LL);
  atomicCAS((unsigned long long *)out, 1ull, 2ull); atomicAdd_block(&other, q);
  __threadfence(); __nanosleep(300);
  fo[3] = __shfl_down_sync(~0u, v, 3); fo[4] = __match_any_sync(~0u, v); fo[5] = __activemask();
  fo[6] = __ballot_sync(~0u, v > 3); fo[7] = __syncthreads_count(v > 3);
  int4 w = ((const int4 *)s.p)[threadIdx.x]; ((int4 *)out)[threadIdx.x] = make_int4(w.y, w.x, w.w, w.z);
  unsigned old; asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p atom.acq_rel.gpu.global.add.u32 %0, [%2], 1; }"
      : "=r"(old) : "r"(v), "l"(out) : "memory");
  fo[8] = old;
}
