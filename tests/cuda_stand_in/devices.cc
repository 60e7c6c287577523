// Devices, their properties, errors.
#include <string.h>

#include "errors.inc"
#include "fake_cuda.h"

namespace fake {

thread_local int device = 0;
static thread_local cudaError_t last = cudaSuccess;
static std::atomic<int> sticky{cudaSuccess};

cudaError_t refuse(cudaError_t error) { return last = error; }
void break_context(cudaError_t error) { sticky = error; }
cudaError_t broken() { return (cudaError_t)sticky.load(); }

static long find(const std::string& name) {  // an index, or the begin of a UUID; -1: no GPU of this machine
  char* end;
  long index = strtol(name.c_str(), &end, 10);
  if (!name.empty() && !*end) return index < gpus() ? index : -1;
  for (long gpu = 0; gpu < gpus() && name.size() > 4; gpu++) {
    char uuid[41];
    gpu_uuid_text(gpu, uuid);
    if (!name.compare(0, name.size(), uuid, name.size() < 40 ? name.size() : 40)) return gpu;
  }
  return -1;
}

const std::vector<long>& visible() {
  static const std::vector<long>& all = *[] {
    auto* found = new std::vector<long>;
    const char* listed = getenv("CUDA_VISIBLE_DEVICES");
    for (long gpu = 0; !listed && gpu < gpus(); gpu++) found->push_back(gpu);
    while (listed) {  // ends at the first that there is not, as CUDA's
      const char* comma = strchr(listed, ',');
      long gpu = find(comma ? std::string(listed, comma) : std::string(listed));
      if (gpu < 0) break;
      found->push_back(gpu);
      listed = comma ? comma + 1 : nullptr;
    }
    return found;
  }();
  return all;
}

static bool exists(int index) { return index >= 0 && index < (int)visible().size(); }

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaGetLastError() {
  cudaError_t error = last;
  last = broken();
  return error;
}
cudaError_t cudaPeekAtLastError() { return last; }

const char* cudaGetErrorName(cudaError_t error) {
  for (auto& known : ERRORS)
    if (known.code == error) return known.name;
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorUnknown: return "unknown error";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = (int)visible().size();
  return *count ? cudaSuccess : refuse(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* index) {
  *index = device;
  return visible().empty() ? refuse(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  device = index;
  return broken() ? refuse(broken()) : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = (int)setting("FAKE_CUDA_DRIVER", CUDART_VERSION);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* shown, int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  unsigned int domain, bus, slot;
  gpu_address(visible()[index], &domain, &bus, &slot);
  memset(shown, 0, sizeof *shown);
  snprintf(shown->name, sizeof shown->name, "%s", gpu_name());
  gpu_uuid(visible()[index], (unsigned char*)shown->uuid.bytes);
  shown->pciDomainID = (int)domain, shown->pciBusID = (int)bus, shown->pciDeviceID = (int)slot;
  shown->totalGlobalMem = gpu_memory();
  shown->major = (int)setting("FAKE_CUDA_SM", 90) / 10, shown->minor = (int)setting("FAKE_CUDA_SM", 90) % 10;
  shown->multiProcessorCount = 132, shown->warpSize = 32, shown->maxThreadsPerMultiProcessor = 2048;
  shown->maxThreadsPerBlock = shown->maxThreadsDim[0] = shown->maxThreadsDim[1] = 1024, shown->maxThreadsDim[2] = 64;
  shown->maxGridSize[0] = 0x7fffffff, shown->maxGridSize[1] = shown->maxGridSize[2] = 65535;
  shown->sharedMemPerBlock = 49152, shown->sharedMemPerBlockOptin = 232448, shown->sharedMemPerMultiprocessor = 233472;
  shown->regsPerBlock = shown->regsPerMultiprocessor = 65536, shown->maxBlocksPerMultiProcessor = 32;
  shown->l2CacheSize = 50 << 20, shown->memoryBusWidth = 5120, shown->asyncEngineCount = 3;
  shown->canMapHostMemory = shown->unifiedAddressing = shown->memoryPoolsSupported = shown->concurrentKernels = 1;
  shown->cooperativeLaunch = shown->managedMemory = shown->computePreemptionSupported = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp shown;
  if (cudaError_t error = cudaGetDeviceProperties(&shown, index)) return error;
  switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = shown.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = shown.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)shown.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)shown.sharedMemPerBlockOptin; break;
    case cudaDevAttrMultiProcessorCount: *value = shown.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = shown.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = shown.warpSize; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  unsigned int domain, bus, slot;
  gpu_address(visible()[index], &domain, &bus, &slot);
  snprintf(text, length, "%04x:%02x:%02x.0", domain, bus, slot);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int one, int other) {
  *can = one != other && setting("FAKE_NVML_P2P", 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
}
