// What NCCL's device sources need of CUDA when a host compiler compiles them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct SimtThread {
  uint3 threadIdx, blockIdx;
  dim3 blockDim, gridDim;
  char *shared, *dynamic;
};
extern thread_local SimtThread* simt_thread;
extern "C" {
void simt_yield();  // let other threads go on: in every loop that polls
void simt_barrier(int name, int threads);
bool simt_barrier_or(bool vote, int name, int threads);
unsigned int simt_warp(bool vote);  // a barrier of the warp; its ballot
void simt_not_built();              // in place of functions of NCCL that were left out
}

#ifndef SIMT_ENGINE
#define threadIdx (simt_thread->threadIdx)
#define blockIdx (simt_thread->blockIdx)
#define blockDim (simt_thread->blockDim)
#define gridDim (simt_thread->gridDim)
#define ncclShmem (*(ncclShmemData*)simt_thread->shared)
#define ncclShmemPerWarp ((ulong2*)simt_thread->dynamic)
#define __syncthreads() simt_barrier(0, blockDim.x)
#define __syncwarp(...) ((void)simt_warp(false))
#define __any_sync(mask, vote) (simt_warp(vote) != 0)
#define __all_sync(mask, vote) (simt_warp(!(vote)) == 0)
#define __ballot_sync(mask, vote) simt_warp(vote)
#define __threadfence_system() __sync_synchronize()
#define __threadfence() __sync_synchronize()
#define __threadfence_block() __sync_synchronize()
#define __cvta_generic_to_shared(at) ((size_t)(at))
#define __cvta_generic_to_global(at) ((size_t)(at))
#define __ffs(x) __builtin_ffs(x)
#define __popc(x) __builtin_popcount(x)
#define __clzll(x) __builtin_clzll(x)
#define __popcll(x) __builtin_popcountll(x)
#define __trap() __builtin_trap()
#define __fdividef(a, b) ((a) / (b))
#define __float2int_rd(x) ((int)std::floor(x))
#undef __launch_bounds__
#define __launch_bounds__(...)
using std::max;
using std::min;

static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
  return (unsigned int)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (uint64_t)a * b >> 32; }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
static inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned int out = 0;
  for (int i = 0; i < 4; i++) out |= (unsigned int)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
static inline uint64_t simt_time() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// What scripts/on_cpu/ptx.py writes in place of PTX. Two words of 64 bits are stored one after the other, each at once.
template <int BYTES> struct SimtWord;
template <> struct SimtWord<1> { typedef uint8_t type; };
template <> struct SimtWord<2> { typedef uint16_t type; };
template <> struct SimtWord<4> { typedef uint32_t type; };
template <> struct SimtWord<8> { typedef uint64_t type; };
template <int BYTES, typename A> static inline auto simt_load(A at) {
  return *(volatile typename SimtWord<BYTES>::type*)(uintptr_t)at;
}
template <int BYTES, typename A, typename V> static inline void simt_store(A at, V value) {
  *(volatile typename SimtWord<BYTES>::type*)(uintptr_t)at = (typename SimtWord<BYTES>::type)value;
}
template <typename A, typename X, typename Y> static inline void simt_load2(A at, X& x, Y& y) {
  x = simt_load<8>((uintptr_t)at), y = simt_load<8>((uintptr_t)at + 8);
}
template <typename A, typename X, typename Y> static inline void simt_store2(A at, X x, Y y) {
  simt_store<8>((uintptr_t)at, x), simt_store<8>((uintptr_t)at + 8, y);
}
template <typename A> static inline void simt_load4(A at, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  uint64_t x, y;
  simt_load2(at, x, y);
  a = (uint32_t)x, b = x >> 32, c = (uint32_t)y, d = y >> 32;
}
template <typename A> static inline void simt_store4(A at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  simt_store2(at, a | (uint64_t)b << 32, c | (uint64_t)d << 32);
}
template <typename T> static inline void simt_point(T*& out, uintptr_t at) { out = (T*)at; }
#endif
