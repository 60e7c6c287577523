// Memory: an anonymous file, mapped. A cuMem handle is exported as its descriptor, an IPC handle names it in /proc.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "fake_cuda.h"

namespace fake {

enum Kind { ALLOCATED, HOST, IMPORTED, MAPPED };
constexpr size_t PAGE = 4096, GRANULE = 2 << 20, CONTEXT = 520 << 20, LARGE = 64 << 10;
constexpr unsigned int MAGIC = 0xfa4ec0da;

struct Memory {  // counted by its mappings and by the handles of it that are out
  int file;
  size_t size;
  int device;
  bool host;
  int users = 1;
};
struct Mapping {
  size_t size;
  Kind kind;
  Memory* memory;
};
struct IpcHandle {
  unsigned int magic;
  int pid, file, device;
  size_t size;
};

static std::mutex& lock = *new std::mutex;
static std::map<uintptr_t, Mapping>& mappings = *new std::map<uintptr_t, Mapping>;

static Memory* create(size_t size, int device, bool host) {
  int file = memfd_create(host ? "fake-cuda-host" : "fake-cuda-gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)size)) return nullptr;
  return new Memory{file, size, device, host};
}

static void leave(Memory* memory) {
  if (--memory->users) return;
  close(memory->file);
  delete memory;
}

static const Mapping* find(const void* at, uintptr_t* base = nullptr) {
  auto next = mappings.upper_bound((uintptr_t)at);
  if (next == mappings.begin()) return nullptr;
  auto found = std::prev(next);
  if ((uintptr_t)at >= found->first + found->second.size) return nullptr;
  if (base) *base = found->first;
  return &found->second;
}

static size_t used_locked(int device) {
  size_t used = CONTEXT;
  for (auto& [at, mapping] : mappings)
    if ((mapping.kind == ALLOCATED || mapping.kind == MAPPED) && mapping.memory->device == device) used += mapping.size;
  return used;
}

size_t used_memory(int device) {
  std::lock_guard<std::mutex> held(lock);
  return used_locked(device);
}

bool is_pageable(const void* at) {
  std::lock_guard<std::mutex> held(lock);
  return !find(at);
}

static cudaError_t allocate(void** out, size_t asked, Kind kind) {
  LIVING;
  *out = nullptr;
  if (!asked) return cudaSuccess;
  size_t size = (asked + PAGE - 1) / PAGE * PAGE;
  std::lock_guard<std::mutex> held(lock);
  if (kind == ALLOCATED && used_locked(device) + size > memory_of(visible()[device])) return refuse(cudaErrorMemoryAllocation);
  fake_cuda_trace("memory %lu", size);
  Memory* memory = create(size, device, kind == HOST);
  if (!memory) return refuse(cudaErrorMemoryAllocation);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->file, 0);
  if (at == MAP_FAILED) return leave(memory), refuse(cudaErrorMemoryAllocation);
  mappings[(uintptr_t)at] = {size, kind, memory};
  *out = at;
  return cudaSuccess;
}

static cudaError_t release(void* at) {
  if (!at) return cudaSuccess;
  std::lock_guard<std::mutex> held(lock);
  auto found = mappings.find((uintptr_t)at);
  if (found == mappings.end()) return refuse(cudaErrorInvalidValue);
  munmap(at, found->second.size);
  leave(found->second.memory);
  mappings.erase(found);
  return cudaSuccess;
}

static void fill(char* at, int value, size_t size) {
  uintptr_t first = ((uintptr_t)at + PAGE - 1) & ~(PAGE - 1), last = ((uintptr_t)at + size) & ~(PAGE - 1);
  if (value || size < LARGE || madvise((void*)first, last - first, MADV_REMOVE)) {  // zeros: give the pages back
    memset(at, value, size);
    return;
  }
  memset(at, 0, first - (uintptr_t)at);
  memset((void*)last, 0, (uintptr_t)at + size - last);
}

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaMalloc(void** out, size_t size) {
  NOT_WHILE_CAPTURING("cudaMalloc");
  return allocate(out, size, ALLOCATED);
}
cudaError_t cudaFree(void* at) {
  if (!at) return broken() ? refuse(broken()) : cudaSuccess;
  NOT_WHILE_CAPTURING("cudaFree");
  return release(at);
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t) { return allocate(out, size, ALLOCATED); }
cudaError_t cudaMallocFromPoolAsync(void** out, size_t size, cudaMemPool_t, cudaStream_t) {
  return allocate(out, size, ALLOCATED);
}
cudaError_t cudaFreeAsync(void* at, cudaStream_t stream) {
  issue(stream, [=] { release(at); }, true);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned int) { return allocate(out, size, HOST); }
cudaError_t cudaMallocHost(void** out, size_t size) { return allocate(out, size, HOST); }
cudaError_t cudaFreeHost(void* at) { return release(at); }
cudaError_t cudaHostRegister(void*, size_t, unsigned int) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned int) {
  *out = host;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps*) {
  *out = (cudaMemPool_t)1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int) { return cudaMemPoolCreate(out, nullptr); }
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  LIVING;
  *total = memory_of(visible()[device]);
  *free = *total - std::min(*total, used_memory(device));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* at) {
  std::lock_guard<std::mutex> held(lock);
  const Mapping* found = find(at);
  memset(out, 0, sizeof *out);
  out->device = found ? found->memory->device : -2;
  out->type = !found ? cudaMemoryTypeUnregistered : found->memory->host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  out->devicePointer = found ? (void*)at : nullptr;
  out->hostPointer = found && found->memory->host ? (void*)at : nullptr;
  return cudaSuccess;
}

// What leaves pageable memory is read before the call returns, what goes there is there when it returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  LIVING;
  bool captured = stream_of(stream)->graph != nullptr;
  if (!captured && is_pageable(from)) {
    auto copy = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + size);
    issue(stream, [=] { memcpy(to, copy->data(), size); }, true);
  } else {
    issue(stream, [=] { memmove(to, from, size); }, true);
  }
  if (!captured && is_pageable(to)) stream_of(stream)->drain();
  return broken() ? refuse(broken()) : cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  NOT_WHILE_CAPTURING("cudaMemcpy");
  if (cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr)) return error;
  stream_of(nullptr)->drain();
  return broken() ? refuse(broken()) : cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
  for (size_t i = 0; i < count; i++)
    if (cudaError_t error = cudaMemcpyAsync(to[i], from[i], sizes[i], cudaMemcpyDefault, stream)) return error;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t stream) {
  LIVING;
  issue(stream, [=] { fill((char*)at, value, size); }, true);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, size_t size) { return cudaMemsetAsync(at, value, size, nullptr); }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* at) {
  std::lock_guard<std::mutex> held(lock);
  const Mapping* found = find(at);
  if (!found) return refuse(cudaErrorInvalidValue);
  IpcHandle handle{MAGIC, (int)getpid(), found->memory->file, found->memory->device, found->size};
  memset(out, 0, sizeof *out);
  memcpy(out, &handle, sizeof handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t given, unsigned int) {
  LIVING;
  IpcHandle handle;
  char path[64];
  memcpy(&handle, &given, sizeof handle);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
  int file = handle.magic == MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void* at = file < 0 ? MAP_FAILED : mmap(nullptr, handle.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return refuse(cudaErrorInvalidValue);
  fake_cuda_trace("memory %lu", handle.size);
  std::lock_guard<std::mutex> held(lock);
  mappings[(uintptr_t)at] = {handle.size, IMPORTED, new Memory{file, handle.size, handle.device, false}};
  *out = at;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* at) { return release(at); }

CUresult cuMemAlloc(CUdeviceptr* out, size_t size) { return (CUresult)cudaMalloc((void**)out, size); }
CUresult cuMemFree(CUdeviceptr at) { return (CUresult)cudaFree((void*)at); }
CUresult cuMemsetD32Async(CUdeviceptr at, unsigned int value, size_t count, CUstream stream) {
  issue(stream, [=] { std::fill_n((unsigned int*)at, count, value); }, true);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr at) {
  std::lock_guard<std::mutex> held(lock);
  uintptr_t begin;
  const Mapping* found = find((void*)at, &begin);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = begin;
  if (size) *size = found->size;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr at) {
  std::lock_guard<std::mutex> held(lock);
  const Mapping* found = find((void*)at);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)out = found->memory->device; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned int*)out = found->memory->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int*)out = found->kind == ALLOCATED; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *(uint64_t*)out = found->kind == MAPPED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
      break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp* wish, unsigned long long) {
  if (broken()) return (CUresult)broken();
  if (wish->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  bool host = wish->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  if (!host && used_memory(wish->location.id) + size > memory_of(visible()[wish->location.id])) return CUDA_ERROR_OUT_OF_MEMORY;
  Memory* made = create(size, wish->location.id, host);
  *out = (CUmemGenericAllocationHandle)made;
  return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::mutex> held(lock);
  leave((Memory*)handle);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *out = GRANULE;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr, unsigned long long) {
  alignment = std::max(alignment, GRANULE);
  void* at = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  uintptr_t begin = (uintptr_t)at, aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) munmap(at, aligned - begin);
  munmap((void*)(aligned + size), begin + alignment - aligned);
  *out = aligned;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
  munmap((void*)at, size);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  auto* memory = (Memory*)handle;
  fake_cuda_trace("memory %lu", size);
  std::lock_guard<std::mutex> held(lock);
  void* there = mmap((void*)at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file, (off_t)offset);
  if (there == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  memory->users++;
  mappings[at] = {size, memory->host ? HOST : MAPPED, memory};
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  std::lock_guard<std::mutex> held(lock);
  for (auto each = mappings.lower_bound(at); each != mappings.end() && each->first < at + size;) {
    leave(each->second.memory);
    each = mappings.erase(each);
  }
  mmap((void*)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* at) {
  std::lock_guard<std::mutex> held(lock);
  const Mapping* found = find(at);
  if (!found || found->kind == ALLOCATED) return CUDA_ERROR_INVALID_VALUE;
  found->memory->users++;
  *out = (CUmemGenericAllocationHandle)found->memory;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  auto* memory = (Memory*)handle;
  memset(out, 0, sizeof *out);
  out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  out->location.type = memory->host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  out->location.id = memory->device;
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *(int*)out = fcntl(((Memory*)handle)->file, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* file, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int own = fcntl((int)(uintptr_t)file, F_DUPFD_CLOEXEC, 0);
  off_t size = lseek(own, 0, SEEK_END);
  if (own < 0 || size < 0) return CUDA_ERROR_INVALID_VALUE;
  *out = (CUmemGenericAllocationHandle) new Memory{own, (size_t)size, device, false};
  return CUDA_SUCCESS;
}

// A multicast object is memory like any other, so that NVLS is set up and chosen; what it would reduce traps.
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* out, const CUmulticastObjectProp* wish) {
  Memory* made = create(wish->size, device, false);
  *out = (CUmemGenericAllocationHandle)made;
  return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMulticastGetGranularity(size_t* out, const CUmulticastObjectProp*, CUmulticastGranularity_flags) {
  *out = GRANULE;
  return CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return CUDA_SUCCESS; }
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
                            unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) { return CUDA_SUCCESS; }
}
