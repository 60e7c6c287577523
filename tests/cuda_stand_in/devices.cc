// Devices, their properties, errors.
#include <string.h>

#include "errors.inc"
#include "fake_cuda.h"
#include "properties.h"

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
  show_properties(shown, visible()[index]);
  return cudaSuccess;
}
long fake_cuda_gpu(int index) { return exists(index) ? visible()[index] : -1; }  // for cuda_12.c

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
